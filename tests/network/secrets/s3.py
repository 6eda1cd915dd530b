"""An HTTPS server in the likeness of S3 and DynamoDB that checks every signature with botocore, and the signatures of
chunks by itself: s3.py ADDRESS PORT CERT KEY LOG. Objects live in memory."""
import base64, hashlib, hmac, http.server, json, ssl, sys, urllib.parse, zlib
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

address, port, cert, key, log = sys.argv[1:]
ID, SECRET, TOKEN = "AKIDCANARYCANARY0001", "canary/aws+secret0123456789", "canary-session-token=="
objects = {}


class Wrong(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Wrong(what)


def signature(auth, scope, request):
    request.context["timestamp"] = scope[0]
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return auth.signature(text, request)


def signing_key(date, region, service):
    key = ("AWS4" + SECRET).encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def chunks(raw, last, context, key, signed, trailer):
    """Data, trailers; every signature is checked."""
    data, trailers, at = b"", {}, 0
    sha = lambda text: hashlib.sha256(text).hexdigest()
    while True:
        end = raw.index(b"\r\n", at)
        head = raw[at:end].decode()
        size = int(head.split(";")[0], 16)
        at = end + 2
        piece = raw[at:at + size]
        if signed:
            text = "\n".join(["AWS4-HMAC-SHA256-PAYLOAD", *context, last, sha(b""), sha(piece)])
            last = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
            check(head.split("chunk-signature=")[1] == last, "chunk signature")
        data += piece
        at += size
        if size == 0:
            break
        check(raw[at:at + 2] == b"\r\n", "chunk end")
        at += 2
    lines = [line for line in raw[at:].decode().split("\r\n") if line]
    check(bool(lines) == trailer, "trailers")
    if trailer and signed:
        last_line = lines.pop()
        text = "\n".join(["AWS4-HMAC-SHA256-TRAILER", *context, last, sha("".join(f"{line}\n" for line in lines).encode())])
        want = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        check(last_line == f"x-amz-trailer-signature:{want}", "trailer signature")
    for line in lines:
        name, value = line.split(":", 1)
        trailers[name] = value
    return data, trailers


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def authenticated(self, raw):
        """The body that was meant, after everything about the signature was right."""
        url = f"https://{self.headers['host']}{self.path}"
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True))
        credentials = Credentials(ID, SECRET, TOKEN)
        presigned = "X-Amz-Signature" in query
        if presigned:
            fields = {"Credential": query["X-Amz-Credential"], "SignedHeaders": query["X-Amz-SignedHeaders"], "Signature": query["X-Amz-Signature"]}
            check(query["X-Amz-Security-Token"] == TOKEN, "token")
            date = query["X-Amz-Date"]
            url = url.replace(f"&X-Amz-Signature={fields['Signature']}", "")
        else:
            algorithm, _, rest = self.headers["authorization"].partition(" ")
            check(algorithm == "AWS4-HMAC-SHA256", "algorithm")
            fields = dict(part.strip().split("=", 1) for part in rest.split(","))
            check(self.headers["x-amz-security-token"] == TOKEN, "token")
            date = self.headers["x-amz-date"]
        key_id, day, region, service, _ = fields["Credential"].split("/")
        check(key_id == ID and date.startswith(day), "credential")
        signed = {name: self.headers[name] for name in fields["SignedHeaders"].split(";")}
        amz = {name.lower() for name in self.headers if name.lower().startswith("x-amz-")}
        check(amz <= set(signed), "unsigned headers")
        kind = {("s3", False): S3SigV4Auth, ("s3", True): S3SigV4QueryAuth}.get((service, presigned), SigV4Auth)
        request = AWSRequest(method=self.command, url=url, headers=signed, data=raw)
        want = signature(kind(credentials, service, region), (date,), request)
        check(want == fields["Signature"], "signature")
        said = self.headers.get("x-amz-content-sha256", "")
        context = (date, f"{day}/{region}/{service}/aws4_request")
        if said.startswith("STREAMING-"):
            is_signed, trailer = "HMAC" in said, said.endswith("-TRAILER")
            raw, trailers = chunks(raw, want, context, signing_key(day, region, service), is_signed, trailer)
            check(len(raw) == int(self.headers["x-amz-decoded-content-length"]), "decoded length")
            if "x-amz-checksum-crc32" in trailers:
                crc = base64.b64encode(zlib.crc32(raw).to_bytes(4, "big")).decode()
                check(trailers["x-amz-checksum-crc32"] == crc, "checksum")
        elif len(said) == 64:
            check(said == hashlib.sha256(raw).hexdigest(), "hash")
        return said or ("presigned" if presigned else "hashed"), raw

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        raw = b""
        while True:
            size = int(self.rfile.readline(), 16)
            raw += self.rfile.read(size)
            self.rfile.readline()
            if size == 0:
                return raw

    def answer(self):
        raw = self.body()
        told = {"method": self.command, "path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}}
        status, body, extra = 200, b"", {}
        try:
            told["payload"], data = self.authenticated(raw)
            path = self.path.partition("?")[0]
            if self.headers.get("x-amz-target"):
                body = b'{"TableNames": ["one"]}'
            elif self.command == "PUT":
                objects[path] = data
                extra["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
            elif path not in objects:
                status = 404
            else:
                body = objects[path]
                extra["ETag"] = f'"{hashlib.md5(body).hexdigest()}"'
                wanted = self.headers.get("range")
                if wanted:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    whole, status = len(body), 206
                    body = body[int(first):int(last) + 1 if last else None]
                    extra["Content-Range"] = f"bytes {first}-{int(first) + len(body) - 1}/{whole}"
        except (Wrong, KeyError, ValueError, TypeError) as error:
            status, told["wrong"] = 403, repr(error)
            body = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{error!r}</Message></Error>".encode()
        with open(log, "a") as file:
            file.write(json.dumps(told) + "\n")
        self.send_response(status)
        for name, value in extra.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = answer


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print("ready", flush=True)
server.serve_forever()
