"""Uses unmodified boto3 with a placeholder for its keys: boto.py ADDRESS PORT NAME CA S3_PLACEHOLDER DB_PLACEHOLDER.
Prints one line of JSON: what each step came to."""
import base64, hashlib, io, json, socket, ssl, sys, urllib.request, zlib
import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

address, port, name, ca, s3_key, db_key = sys.argv[1:]
found = socket.getaddrinfo
# The only name there is in this network.
socket.getaddrinfo = lambda host, *rest, **more: found(address if host == name else host, *rest, **more)
url = f"https://{name}:{port}"
told = {}


def client(service, key, region="eu-central-1", **more):
    config = Config(s3={"addressing_style": "path", **more.pop("s3", {})}, retries={"max_attempts": 1}, **more)
    return boto3.client(service, endpoint_url=url, region_name=region, verify=ca, aws_access_key_id=key, aws_secret_access_key="unused", aws_session_token="stale", config=config)


def step(name, act):
    try:
        told[name] = act()
    except ClientError as error:
        told[name] = error.response["ResponseMetadata"]["HTTPStatusCode"]


s3 = client("s3", s3_key)
large = bytes(range(256)) * 40_000


def default():
    s3.put_object(Bucket="b", Key="a b/(c)+d", Body=io.BytesIO(b"hello"))
    return s3.get_object(Bucket="b", Key="a b/(c)+d")["Body"].read().decode()


def hashed():
    signed = client("s3", s3_key, request_checksum_calculation="when_required", s3={"payload_signing_enabled": True})
    signed.put_object(Bucket="b", Key="hashed", Body=b"hashed")
    return signed.head_object(Bucket="b", Key="hashed")["ContentLength"]


def unsigned():
    client("s3", s3_key, request_checksum_calculation="when_required", s3={"payload_signing_enabled": False}).put_object(Bucket="b", Key="unsigned", Body=b"unsigned")
    return s3.get_object(Bucket="b", Key="unsigned", Range="bytes=2-4")["Body"].read().decode()


def transferred():
    s3.upload_fileobj(io.BytesIO(large), "b", "large", Config=boto3.s3.transfer.TransferConfig(multipart_threshold=1 << 30))
    back = io.BytesIO()
    # In ranges, several at once.
    s3.download_fileobj("b", "large", back, Config=boto3.s3.transfer.TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=1 << 20))
    return hashlib.sha256(back.getvalue()).hexdigest() == hashlib.sha256(large).hexdigest()


def presigned():
    signed = s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "a b/(c)+d", "ResponseContentType": "text/x y"}, ExpiresIn=3600)
    return urllib.request.urlopen(signed, context=ssl.create_default_context(cafile=ca)).read().decode()


def signed_chunks(kind, trailers):
    """Chunks that the client signed with keys that nobody has."""
    nothing = "0" * 64
    body = b"".join(b"%x;chunk-signature=%s\r\n%s\r\n" % (len(piece), nothing.encode(), piece) for piece in (large[:65536], large[:5]))
    body += b"0;chunk-signature=%s\r\n%s\r\n" % (nothing.encode(), trailers)
    headers = {"x-amz-content-sha256": kind, "x-amz-date": "20260101T000000Z", "x-amz-decoded-content-length": "65541", "Content-Encoding": "aws-chunked", "Content-Type": "text/plain"}
    signed = ";".join(sorted(["host", *(name.lower() for name in headers)]))
    headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={s3_key}/20260101/eu-central-1/s3/aws4_request, SignedHeaders={signed}, Signature={nothing}"
    request = urllib.request.Request(f"{url}/b/chunks", data=body, headers=headers, method="PUT")
    try:
        return urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca)).status
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]


step("default", default)
step("hashed", hashed)
step("unsigned", unsigned)
step("transferred", transferred)
step("presigned", presigned)
step("signed chunks", lambda: signed_chunks("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", b""))
checksum = base64.b64encode(zlib.crc32(large[:65536] + large[:5]).to_bytes(4, "big"))
step("signed trailers", lambda: signed_chunks("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", b"x-amz-checksum-crc32:%s\r\nx-amz-trailer-signature:%s\r\n" % (checksum, b"0" * 64)))
step("dynamodb", lambda: client("dynamodb", db_key).list_tables()["TableNames"])
step("other region", lambda: client("s3", s3_key, "us-east-1").list_buckets())
step("other service", lambda: client("dynamodb", s3_key).list_tables())
request = urllib.request.Request(url, headers={"Authorization": f"AWS4-ECDSA-P256-SHA256 Credential={s3_key}/20260101/s3/aws4_request, SignedHeaders=host, Signature=00"})
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca))
except urllib.error.HTTPError as error:
    told["sigv4a"] = [error.code, error.read().decode()]
print(json.dumps(told), flush=True)
