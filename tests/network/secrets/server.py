"""An HTTPS server that tells what it was asked, in ways that give values away: server.py ADDRESS PORT CERT KEY LOG."""
import base64, gzip, http.server, json, os, ssl, sys, time

address, port, cert, key, log = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def file(self, path):
        """A file of a private repository, for whoever has the password."""
        right = "Basic " + base64.b64encode(b"git:canary-basic+0123456789").decode()
        if self.headers.get("authorization") != right:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        found = os.path.isfile(path)
        data = open(path, "rb").read() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def answer(self):
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length).decode()
        told = {"method": self.command, "path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}, "body": body}
        with open(log, "a") as file:
            file.write(json.dumps(told) + "\n")
        told["base64"] = base64.b64encode(json.dumps(told["headers"]).encode()).decode()
        text = json.dumps(told).encode()
        path = self.path.split("?")[0]
        if path.startswith("/repo.git/"):
            return self.file(os.path.join(os.path.dirname(log), path[1:]))
        if path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "https://www.good.example:8443/" + (self.headers.get("authorization") or ""))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Seen", self.headers.get("authorization") or "nothing")
        if path == "/gzip":
            text = gzip.compress(text)
            self.send_header("Content-Encoding", "gzip")
        if path in ("/split", "/slow"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            secret = (self.headers.get("authorization") or "").encode()
            if path == "/split":
                for at in range(0, len(secret), 3):
                    self.piece(secret[at:at + 3])
                    time.sleep(0.005)
                self.piece(b"")
                return
            try:
                while True:
                    self.piece(b"tick\n")
                    time.sleep(0.02)
            except OSError:
                self.close_connection = True
            return
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_TRACE = answer


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
