"""The client's part of a TLS handshake over a connection that somebody else holds: handshake.py SNI CA. Prints its
first bytes as base64, reads the server's as base64, and prints whether the server's certificate was good."""
import base64, ssl, sys

name, ca = sys.argv[1:]
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = ssl.create_default_context(cafile=ca).wrap_bio(incoming, outgoing, server_hostname=name)
try:
    tls.do_handshake()
except ssl.SSLWantReadError:
    print(base64.b64encode(outgoing.read()).decode(), flush=True)
incoming.write(base64.b64decode(sys.stdin.readline()))
try:
    tls.do_handshake()
    print("verified", flush=True)
except ssl.SSLError as error:
    print(f"failed: {error}", flush=True)
