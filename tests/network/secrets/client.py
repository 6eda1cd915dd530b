"""Sends requests given as JSON lines on standard input over one TLS connection and prints each answer as JSON:
client.py ADDRESS PORT SNI CA. A line is {"head": "GET / HTTP/1.1\\r\\n...", "body": "..."}."""
import http.client, json, socket, ssl, sys

address, port, name, ca = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
try:
    stream = context.wrap_socket(socket.create_connection((address, int(port)), 600), server_hostname=name)
except (OSError, ssl.SSLError) as error:
    print(json.dumps({"failed": str(error)}), flush=True)
    sys.exit(0)
for line in sys.stdin:
    asked = json.loads(line)
    try:
        stream.sendall((asked["head"] + asked.get("body", "")).encode())
        response = http.client.HTTPResponse(stream, method=asked["head"].split(" ")[0])
        response.begin()
        if asked.get("stream"):
            print(json.dumps({"status": response.status, "body": response.read(5).decode()}), flush=True)
            while response.read(5):
                pass
            print(json.dumps({"ended": True}), flush=True)
            break
        body = response.read().decode("latin-1")
        print(json.dumps({"status": response.status, "headers": dict(response.getheaders()), "body": body}), flush=True)
    except (OSError, http.client.HTTPException) as error:
        print(json.dumps({"failed": repr(error)}), flush=True)
        break
