"""The loop inside: the agent itself runs in the sandbox, and this program follows what it says, live.

Everything the agent can break is its own computer. It reaches nothing but what the network policy lists:
with a real model that is the model's API, here it is nothing at all.
"""

from __future__ import annotations

from cove import Sandbox

AGENT = '''
import json, subprocess, sys

def model(transcript):
    """A stand-in for a model: what to run next, given what happened so far."""
    turns = [
        "printf 'b 2\\\\na 1\\\\nc 3\\\\n' > /tmp/data",
        "sort /tmp/data | awk '{ sum += $2 } END { print sum }'",
        None,
    ]
    return turns[len(transcript)]

def say(**what):
    print(json.dumps(what), flush=True)

say(task=sys.argv[1])
transcript = []
while command := model(transcript):
    say(run=command)
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    transcript.append((command, done.stdout))
    say(exit_code=done.returncode, output=done.stdout)
    # A person may look at each step before the next.
    if sys.stdin.readline().strip() != "go on":
        sys.exit(1)
say(answer=transcript[-1][1].strip())
'''


def main() -> None:
    import json

    with Sandbox(memory="512M", network="none") as box:
        box.files.write("/srv/agent.py", AGENT)
        agent = box.start(["python3", "/srv/agent.py", "add up the numbers"], stdin=True)
        unfinished = ""
        for out in agent:
            *lines, unfinished = (unfinished + out.text).split("\n")
            for line in lines:
                said = json.loads(line)
                print(*(f"{what}: {value!r}" for what, value in said.items()), flush=True)
                if "exit_code" in said:
                    agent.send("go on\n")
        print("the agent ended with", agent.wait().exit_code)


if __name__ == "__main__":
    main()
