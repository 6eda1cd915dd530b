"""How long create + run + kill takes with the official SDK, and what of it is the SDK's own.

    measure.py [ROUNDS]

The SDK's own part is what is left when the same requests, written out by hand over one kept connection, take
their share.
"""

import http.client
import json
import os
import statistics
import struct
import sys
import time
from urllib.parse import urlsplit

from e2b import Sandbox

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 50
WARM_UP = 5


def by_sdk():
    box = Sandbox.create()
    box.commands.run("echo hello")
    box.kill()


place = urlsplit(os.environ["E2B_API_URL"])
connection = http.client.HTTPConnection(place.netloc)


def ask(method, path, body, headers):
    connection.request(method, place.path + path, body, headers)
    response = connection.getresponse()
    text = response.read()
    assert response.status < 300, (response.status, text)
    return text


def by_hand():
    key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    made = json.loads(ask("POST", "/v2/sandboxes", json.dumps({"templateID": "base"}), key))
    start = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo hello"]}}).encode()
    headers = {
        "E2b-Sandbox-Id": made["sandboxID"],
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": made["envdAccessToken"],
        "Content-Type": "application/connect+json",
    }
    ask("POST", "/process.Process/Start", struct.pack(">BI", 0, len(start)) + start, headers)
    ask("DELETE", f"/sandboxes/{made['sandboxID']}", None, key)


def timed(what):
    started = time.perf_counter()
    what()
    return (time.perf_counter() - started) * 1e3


# Turn by turn, so that a busy moment of the machine meets both.
rounds = [(timed(by_sdk), timed(by_hand)) for _ in range(WARM_UP + ROUNDS)][WARM_UP:]
sdk, hand = (statistics.median(times) for times in zip(*rounds))
print(
    f"create + run + kill, median of {ROUNDS}: {sdk:.1f} ms with the SDK, {hand:.1f} ms by hand, "
    f"{sdk - hand:.1f} ms the SDK's own"
)
