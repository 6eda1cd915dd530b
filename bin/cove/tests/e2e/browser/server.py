# The server inside: pages, server-sent events, a WebSocket that echoes, and a place for reports.
import base64, hashlib, json, os, socket, ssl, sys, threading

PAGE = open("/srv/page.html", "rb").read()


def read_exactly(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def answer(stream, status, kind, body, more=""):
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    stream.write(head.encode() + body)
    stream.flush()


def web_socket(stream, headers):
    accept = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(accept.encode()).digest()).decode()
    stream.write(
        f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )
    stream.flush()
    while True:
        first, length = read_exactly(stream, 2)
        length &= 0x7F
        if length == 126:
            length = int.from_bytes(read_exactly(stream, 2), "big")
        mask = read_exactly(stream, 4)
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(read_exactly(stream, length)))
        if first & 0x0F == 8:
            return
        head = bytes([first, length]) if length < 126 else bytes([first, 126]) + length.to_bytes(2, "big")
        stream.write(head + text)
        stream.flush()


def serve(connection):
    stream = connection.makefile("rwb")
    line = stream.readline().decode().split()
    headers = {}
    while True:
        field = stream.readline().decode().strip()
        if not field:
            break
        name, _, value = field.partition(":")
        headers[name.lower()] = value.strip()
    path = line[1].partition("?")[0]
    if path == "/":
        answer(stream, "200 OK", "text/html", PAGE, "Set-Cookie: theirs=1; Path=/\r\n")
    elif path == "/headers":
        answer(stream, "200 OK", "application/json", json.dumps(headers).encode())
    elif path == "/events":
        stream.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for number in range(3):
            stream.write(f"data: {number}\n\n".encode())
            stream.flush()
        # The connection stays open: what arrives has arrived live.
        connection.recv(1)
    elif path == "/socket":
        web_socket(stream, headers)
    elif path in ("/size", "/report"):
        body = read_exactly(stream, int(headers["content-length"]))
        if path == "/report":
            with open("/tmp/report.new", "wb") as report:
                report.write(body)
            os.rename("/tmp/report.new", "/tmp/report")
        answer(stream, "200 OK", "text/plain", str(len(body)).encode())
    else:
        answer(stream, "404 Not Found", "text/plain", b"")


def guarded(connection):
    try:
        serve(connection)
    except (OSError, EOFError, ValueError, IndexError, KeyError):
        pass
    finally:
        connection.close()


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
secure = None
if len(sys.argv) > 2:
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(sys.argv[2])
while True:
    connection, _ = listener.accept()
    if secure:
        try:
            connection = secure.wrap_socket(connection, server_side=True)
        except (OSError, ssl.SSLError):
            connection.close()
            continue
    threading.Thread(target=guarded, args=(connection,), daemon=True).start()
