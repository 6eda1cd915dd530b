"""Best of ten: one sandbox is set up, ten forks of it try one idea each, the best is kept.

Setting up is paid for once, however many try, and no attempt sees what another did.
"""

from __future__ import annotations

from cove import Sandbox

PROGRAM = """\
import sys, time

def longest_word(text):
    BODY

text = open("/srv/text").read()
begun = time.process_time()
assert longest_word(text) == "x" * 40
print(time.process_time() - begun)
"""

# What ten runs of a model came up with; some are wrong.
IDEAS = [
    "return max(text.split(), key=len)",
    "return sorted(text.split(), key=len)[-1]",
    "return sorted(text.split())[-1]",
    "return text.split()[0]",
    "return max(set(text.split()), key=len)",
    "return max((w for w in text.split()), key=lambda w: len(w))",
    "return max(text.split(' '), key=len).strip()",
    "import re; return max(re.findall(r'\\S+', text), key=len)",
    "best = ''\n    for w in text.split():\n        if len(w) > len(best): best = w\n    return best",
    "return max(text)",
]


def attempt(fork: Sandbox, idea: str) -> float | None:
    """Seconds of CPU the idea takes, or nothing when it is wrong."""
    fork.files.write("/srv/program.py", PROGRAM.replace("BODY", idea))
    result = fork.run(["python3", "/srv/program.py"], timeout=60, check=False)
    return float(result.stdout) if result.ok else None


def main() -> None:
    with Sandbox(memory="512M", disk="1G") as box:
        # The expensive part happens once: here a text of a few megabytes.
        script = "import random; random.seed(7); print(' '.join('x' * random.randint(1, 40) for _ in range(200_000)))"
        box.run(["sh", "-c", f'python3 -c "{script}" > /srv/text'], check=True)
        scores = box.map(attempt, IDEAS)
        for idea, score in zip(IDEAS, scores):
            told = "wrong" if score is None else f"{score * 1000:.0f} ms"
            print(f"{told:>8}  {idea.splitlines()[-1].strip()}")
        best = min((score, idea) for score, idea in zip(scores, IDEAS) if score is not None)
        # The base never changed; the winner's idea is applied to it.
        attempt(box, best[1])
        print("kept:", box.run("sed -n 4p /srv/program.py").stdout.strip())


if __name__ == "__main__":
    main()
