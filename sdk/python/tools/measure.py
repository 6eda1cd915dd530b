"""Measures what the SDK adds: its import, and create + run against the server the environment names."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def main(rounds: int = 50) -> None:
    imports = []
    for _ in range(10):
        source = "import time; t = time.perf_counter(); import cove; print(time.perf_counter() - t)"
        imports.append(float(subprocess.check_output([sys.executable, "-c", source])))
    print(f"import cove: median {statistics.median(imports) * 1000:.0f} ms")

    import cove

    with cove.Sandbox() as box:
        box.run("true")
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        with cove.Sandbox() as box:
            box.run(["true"])
            times.append(time.perf_counter() - begun)
    print(f"create + run: median {statistics.median(times) * 1000:.1f} ms, best {min(times) * 1000:.1f} ms")


if __name__ == "__main__":
    main()
