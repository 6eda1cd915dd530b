"""The loop outside: an agent in this program whose tools work in a sandbox.

deepagents and its Daytona backend are used as they come from PyPI. Cove answers as Daytona does, so all it
takes is ``DAYTONA_API_URL=<server>/daytona`` and ``DAYTONA_API_KEY=<a key>``.
"""

from __future__ import annotations

from daytona import Daytona
from deepagents import create_deep_agent
from langchain_daytona import DaytonaSandbox

from scripted_model import ScriptedModel

PROGRAM = """\
def primes(below):
    return [n for n in range(2, below) if all(n % d for d in range(2, n))]

print(sum(primes(100)))
"""

# Put a model of yours here: create_deep_agent(model="anthropic:…") takes its name.
model = ScriptedModel(
    turns=[
        ("write_file", {"file_path": "/tmp/primes.py", "content": PROGRAM}),
        ("execute", {"command": "python3 /tmp/primes.py"}),
        ("edit_file", {"file_path": "/tmp/primes.py", "old_string": "100", "new_string": "1000"}),
        ("execute", {"command": "python3 /tmp/primes.py"}),
        "The primes below 1000 add up to: {seen}",
    ]
)


def main() -> None:
    daytona = Daytona()
    sandbox = daytona.create()
    try:
        agent = create_deep_agent(model=model, backend=DaytonaSandbox(sandbox=sandbox))
        question = "What do the primes below 1000 add up to? Write a program and run it."
        for step in agent.stream({"messages": [("user", question)]}, stream_mode="values"):
            message = step["messages"][-1]
            for call in getattr(message, "tool_calls", ()):
                print(f"→ {call['name']} {list(call['args'].values())[0]}")
            if message.text:
                print(f"{message.type}: {message.text.strip()}")
    finally:
        sandbox.delete()


if __name__ == "__main__":
    main()
