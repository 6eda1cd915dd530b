"""How long create + exec + delete take with the SDK, and how much of that is the SDK's own.

    scripts/test-daytona --run "$PWD/tests/dialects/daytona/measure.py" [ROUNDS]

The same three requests are made once more over one bare connection; the difference is the SDK's.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from daytona import Daytona

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
WARM = 5

client = Daytona()
url = urlsplit(os.environ["DAYTONA_API_URL"])
wire = http.client.HTTPConnection(url.netloc)
headers = {"Authorization": f"Bearer {os.environ['DAYTONA_API_KEY']}", "Content-Type": "application/json"}


def with_sdk() -> None:
    sandbox = client.create()
    assert sandbox.process.exec("echo hello").result == "hello\n"
    sandbox.delete()


def ask(method: str, path: str, body: object = None) -> dict[str, object]:
    wire.request(method, url.path + path, None if body is None else json.dumps(body), headers)
    answer = wire.getresponse()
    data = json.loads(answer.read())
    assert answer.status == 200, data
    return data


def bare() -> None:
    made = ask("POST", "/sandbox", {"labels": {"code-toolbox-language": "python"}})
    said = ask("POST", f"/toolbox/{made['id']}/process/execute", {"command": "echo hello"})
    assert said["result"] == "hello\n"
    ask("DELETE", f"/sandbox/{made['id']}")


def median(work: Callable[[], None]) -> float:
    times = []
    for turn in range(ROUNDS + WARM):
        begun = time.perf_counter()
        work()
        if turn >= WARM:
            times.append((time.perf_counter() - begun) * 1e3)
    times.sort()
    print(f"{work.__name__}: median {statistics.median(times):.1f} ms, p95 {times[int(len(times) * 0.95)]:.1f} ms")
    return statistics.median(times)


print(f"create + exec + delete, {ROUNDS} rounds")
sdk, own = median(with_sdk), median(bare)
print(f"the SDK's own part: {sdk - own:.1f} ms")
