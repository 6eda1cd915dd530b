"""The official Python client drives every tool: client.py http|stdio PROGRAM IMAGE."""

import asyncio
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

transport, program, image = sys.argv[1:]
url, key = os.environ["COVE_URL"], os.environ["COVE_API_KEY"]


def connection(mode: str):
    if transport == "stdio":
        env = {"COVE_URL": url, "COVE_API_KEY": key}
        return Client(StdioServerParameters(command=program, args=["mcp"], env=env), mode=mode)
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=120)
    return Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode)


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, f"{tool}: {result.content}"
    return result


async def refused(client, tool, words, **arguments):
    result = await client.call_tool(tool, arguments)
    text = result.content[0].text
    assert result.is_error and words in text, f"{tool}: {text}"


async def work(client):
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert {"sandbox_create", "run", "run_output", "code", "file_edit", "sandbox_rollback"} <= tools, tools

    made = (await call(client, "sandbox_create", image=image, labels={"for": "mcp"})).structured_content
    box = made["id"]
    try:
        result = await call(client, "run", sandbox=box, command="echo out; echo err >&2; exit 3")
        assert result.structured_content["exit_code"] == 3, result
        assert result.structured_content["stdout"] == "out\n", result
        assert "[stderr]\nerr" in result.content[0].text, result

        # A long command: a handle, its rest by offsets, and progress on the way.
        told = []

        async def progress(done, total, message):
            told.append((done, message))

        result = await client.call_tool(
            "run",
            {"sandbox": box, "command": "echo first; until [ -e /tmp/go ]; do sleep 0.1; done; echo second", "wait_s": 10},
            progress_callback=progress,
        )
        handle = result.structured_content
        assert handle["running"] and handle["stdout"] == "first\n", handle
        assert told and told[0][1] == "first", told
        await call(client, "file_write", sandbox=box, path="/tmp/go", text="")
        result = await call(
            client,
            "run_output",
            sandbox=box,
            process=handle["process"],
            stdout_from=handle["stdout_next"],
            stderr_from=handle["stderr_next"],
        )
        assert result.structured_content["stdout"] == "second\n", result
        assert result.structured_content["exit_code"] == 0, result

        # Much output: its beginning, its end, and where the rest is.
        result = await call(client, "run", sandbox=box, command="seq 1 20000", max_output_bytes=1000)
        text = result.structured_content["stdout"]
        assert text.startswith("1\n2\n") and text.endswith("20000\n") and "bytes left out" in text, text

        await call(client, "file_write", sandbox=box, path="/project/a/notes.txt", text="one\ntwo\ntwo\n")
        await refused(client, "file_edit", "2 times", sandbox=box, path="/project/a/notes.txt", old_text="two", new_text="x")
        await call(client, "file_edit", sandbox=box, path="/project/a/notes.txt", old_text="one", new_text="three")
        read = await call(client, "file_read", sandbox=box, path="/project/a/notes.txt")
        assert read.content[0].text == "three\ntwo\ntwo\n", read
        read = await call(client, "file_read", sandbox=box, path="/project/a/notes.txt", offset=6, max_bytes=3)
        assert read.structured_content["text"] == "two", read
        found = await call(client, "file_search", sandbox=box, path="/project", text="thr.e", name="*.txt")
        assert found.structured_content["lines"] == ["/project/a/notes.txt:1:three"], found
        listed = await call(client, "file_list", sandbox=box, path="/project", depth=2)
        assert [e["path"] for e in listed.structured_content["entries"]] == ["/project/a", "/project/a/notes.txt"], listed

        taken = (await call(client, "snapshot_create", sandbox=box)).structured_content
        await call(client, "run", sandbox=box, command="rm -r /project")
        await call(client, "sandbox_rollback", sandbox=box, snapshot=taken["id"])
        await call(client, "file_read", sandbox=box, path="/project/a/notes.txt")
        fork = (await call(client, "sandbox_fork", sandbox=box)).structured_content["sandboxes"][0]["id"]
        await call(client, "file_read", sandbox=fork, path="/project/a/notes.txt")
        await call(client, "sandbox_delete", sandbox=fork)

        started = await call(client, "run", sandbox=box, command="sleep 1000", wait_s=0)
        process = started.structured_content["process"]
        listed = (await call(client, "process_list", sandbox=box)).structured_content["processes"]
        assert process in [p["process"] for p in listed], listed
        await call(client, "process_signal", sandbox=box, process=process)
        ended = await call(client, "run_output", sandbox=box, process=process)
        assert ended.structured_content["exit_code"] == 143, ended

        ports = await call(client, "port_list", sandbox=box)
        assert ports.structured_content["ports"] == [], ports
        link = (await call(client, "port_share", sandbox=box, port=8000)).structured_content
        assert link["token"] in link["url"], link
        await call(client, "port_unshare", sandbox=box, port=8000)

        # What is wrong is said in words, and changes nothing.
        await refused(client, "run", "unknown field `commnd`", sandbox=box, commnd="true")
        await refused(client, "run", "wait_s is at most", sandbox=box, command="true", wait_s=10_000)
        await refused(client, "sandbox_find", "not_found", sandbox="no-such-sandbox")
        found = await call(client, "sandbox_find", labels={"for": "mcp"})
        assert box in [s["id"] for s in found.structured_content["sandboxes"]], found
    finally:
        await call(client, "sandbox_delete", sandbox=box)


async def main():
    for mode in ["auto", "legacy"]:
        async with connection(mode) as client:
            print(f"python {transport} {mode}: {client.protocol_version}")
            if mode == "auto":
                await work(client)
            else:
                await call(client, "sandbox_find")


asyncio.run(main())
