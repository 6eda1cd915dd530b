"""Checks identity tokens with PyJWT, as a service that trusts the server would. Run by scripts/test-identity."""

import json
import os
import time
import urllib.request

import jwt

URL = os.environ["COVE_URL"]


def ask(method, path, body=None):
    request = urllib.request.Request(URL + path, method=method)
    request.add_header("Authorization", "Bearer " + os.environ["COVE_API_KEY"])
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, data) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def refused(why, token, keys, **options):
    try:
        jwt.decode(token, keys.get_signing_key_from_jwt(token), algorithms=["RS256"], **options)
    except jwt.PyJWTError as error:
        return error
    raise SystemExit(f"accepted: {why}")


with urllib.request.urlopen(URL + "/.well-known/openid-configuration") as answer:
    issuer = json.loads(answer.read())
assert issuer["issuer"] == URL, issuer
keys = jwt.PyJWKClient(issuer["jwks_uri"], cache_keys=False, cache_jwk_set=False)
box = ask("POST", "/v1/sandboxes", {"labels": {"team": "blue"}})
path = f"/v1/sandboxes/{box['id']}/identity"
try:
    made = ask("POST", path, {"audience": "vault"})
    key = keys.get_signing_key_from_jwt(made["token"])
    good = {"audience": "vault", "issuer": URL}
    claims = jwt.decode(made["token"], key, algorithms=["RS256"], options={"require": ["exp", "iat", "nbf", "sub"]}, **good)
    assert claims["sub"].endswith(f"/sandbox/{box['id']}"), claims
    assert claims["cove"]["labels"] == {"team": "blue"}, claims
    refused("another audience", made["token"], keys, audience="other", issuer=URL)
    refused("another issuer", made["token"], keys, audience="vault", issuer="https://other.example")
    short = ask("POST", path, {"audience": "vault", "expires_s": 1})["token"]
    while time.time() < jwt.decode(short, options={"verify_signature": False})["exp"] + 1:
        time.sleep(0.1)
    assert isinstance(refused("an old token", short, keys, **good), jwt.ExpiredSignatureError)
    # A key that others know: what it signed is refused once the list of keys is read again.
    ask("POST", "/v1/identity/rotate", {"at_once": True})
    refused("a withdrawn key", made["token"], keys, **good)
    again = ask("POST", path, {"audience": "vault"})["token"]
    jwt.decode(again, keys.get_signing_key_from_jwt(again), algorithms=["RS256"], **good)
finally:
    ask("DELETE", f"/v1/sandboxes/{box['id']}")
print("PyJWT: good")
