"""Another organisation's sandbox through every door, and tokens that are good for something else.

Needs E2B_API_KEY to be the installation's own, because it makes another organisation with a key.
"""

import http.client
import io
import json
import os
import struct
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

import e2b

BASE = os.environ["E2B_API_URL"]


def ask(method, path, body=None, headers=None, base=BASE):
    """Status and text of one request."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(base + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


def flipped(tag):
    """A signature that is never the same."""
    return ("B" if tag[0] == "A" else "A") + tag[1:]


def framed(message):
    text = json.dumps(message).encode()
    return struct.pack(">BI", 0, len(text)) + text


PLANE = [
    ("GET", "/sandboxes/{id}", None),
    ("DELETE", "/sandboxes/{id}", None),
    ("POST", "/sandboxes/{id}/connect", {"timeout": 5}),
    ("POST", "/v2/sandboxes/{id}/connect", {"timeout": 5}),
    ("POST", "/sandboxes/{id}/timeout", {"timeout": 1}),
    ("POST", "/sandboxes/{id}/pause", {}),
    ("PUT", "/sandboxes/{id}/network", {}),
    ("GET", "/sandboxes/{id}/metrics", None),
    ("POST", "/sandboxes/{id}/snapshots", {}),
    ("POST", "/sandboxes/{id}/fork", {}),
]
UNARY = [
    ("/process.Process/List", {}),
    ("/process.Process/SendInput", {"process": {"pid": 2}, "input": {"stdin": ""}}),
    ("/process.Process/CloseStdin", {"process": {"pid": 2}}),
    ("/process.Process/SendSignal", {"process": {"pid": 2}, "signal": "SIGNAL_SIGKILL"}),
    ("/process.Process/Update", {"process": {"pid": 2}, "pty": {"size": {"cols": 1, "rows": 1}}}),
    ("/filesystem.Filesystem/Stat", {"path": "/"}),
    ("/filesystem.Filesystem/MakeDir", {"path": "/tmp/x"}),
    ("/filesystem.Filesystem/Move", {"source": "/etc", "destination": "/tmp/x"}),
    ("/filesystem.Filesystem/ListDir", {"path": "/"}),
    ("/filesystem.Filesystem/Remove", {"path": "/etc"}),
    ("/filesystem.Filesystem/CreateWatcher", {"path": "/"}),
    ("/filesystem.Filesystem/GetWatcherEvents", {"watcherId": "watch_0"}),
    ("/filesystem.Filesystem/RemoveWatcher", {"watcherId": "watch_0"}),
]
STREAMS = [
    ("/process.Process/Start", {"process": {"cmd": "/bin/true"}}),
    ("/process.Process/Connect", {"process": {"pid": 2}}),
    ("/process.Process/StreamInput", {"start": {"process": {"pid": 2}}}),
    ("/filesystem.Filesystem/WatchDir", {"path": "/"}),
]
CODE = [
    ("POST", "/execute", {"code": "1"}),
    ("GET", "/contexts", None),
    ("POST", "/contexts", {}),
    ("DELETE", "/contexts/prc_x", None),
    ("POST", "/contexts/prc_x/restart", None),
]


def inside(id, token, port="49983", header="X-Access-Token"):
    shown = {header: token} if token else {}
    return {"E2b-Sandbox-Id": id, "E2b-Sandbox-Port": port, **shown}


def refused_everywhere(id, token):
    """No service of this sandbox answers whoever shows this."""
    for path, body in UNARY:
        status, text = ask("POST", path, body, inside(id, token))
        assert (status, json.loads(text)["code"]) == (401, "unauthenticated"), (path, status, text)
    for path, body in STREAMS:
        headers = {**inside(id, token), "Content-Type": "application/connect+json"}
        status, text = ask("POST", path, framed(body), headers)
        assert status == 200 and '"unauthenticated"' in text and '"start"' not in text, (path, status, text)
    for header in ("X-Access-Token", "E2B-Traffic-Access-Token"):
        for method, path, body in CODE:
            status, text = ask(method, path, body, inside(id, token, "49999", header))
            assert status == 401, (path, status, text)
    for method, body in (("GET", None), ("POST", b"x")):
        status, text = ask(method, "/files?path=/etc/passwd", body, inside(id, token))
        assert status == 401, (method, status, text)
    assert ask("GET", "/health", None, inside(id, token))[0] == 401


def native(method, path, body):
    """A request to Cove's own interface."""
    key = {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}
    status, text = ask(method, path, body, key, base=os.environ["COVE_URL"])
    assert status in (200, 201), (path, status, text)
    return json.loads(text)


def main():
    org = native("POST", "/v1/orgs", {"name": f"e2b-{uuid.uuid4().hex[:12]}"})
    key = native("POST", "/v1/keys", {"name": "other", "scopes": ["manage"], "org": org["id"]})
    other_key = key["token"]
    mine = e2b.Sandbox.create()
    theirs = e2b.Sandbox.create(api_key=other_key)
    try:
        check(mine, theirs, other_key)
    finally:
        mine.kill()
        theirs.kill()


def check(mine, theirs, other_key):
    id, token = mine.sandbox_id, mine._envd_access_token
    nobody = "sbx-aaaaaaaaaaaaaaaaaaaa"
    for method, path, body in PLANE:
        # The same words as for a sandbox that never was.
        there = ask(method, path.format(id=id), body, {"X-API-KEY": other_key})
        nowhere = ask(method, path.format(id=nobody), body, {"X-API-KEY": other_key})
        said = (there[0], there[1].replace(id[4:], "ID"))
        assert said == (nowhere[0], nowhere[1].replace(nobody[4:], "ID")) and said[0] == 404, (path, there, nowhere)
        assert ask(method, path.format(id=id), body)[0] == 401, path
        assert ask(method, path.format(id=id), body, {"X-API-KEY": token})[0] == 401, path
    listed = {one.sandbox_id for one in e2b.Sandbox.list(api_key=other_key).next_items()}
    assert id not in listed and theirs.sandbox_id in listed

    foreign = theirs._envd_access_token
    key, tag = token.split(".")
    other = foreign.split(".")[0]
    for shown in (None, "", "x", foreign, f"{other}.{tag}", f"{key}.{flipped(tag)}", f"{key}.", token + "A" * 300):
        refused_everywhere(id, shown)
    # A token is good for one sandbox and one purpose.
    refused_everywhere(theirs.sandbox_id, token)
    refused_everywhere(nobody, token)
    status, _ = ask("POST", "/process.Process/List", {}, inside(id, mine.traffic_access_token))
    assert status == 401, status
    # Other ports are not reached through this address, with any token.
    status, text = ask("POST", "/process.Process/List", {}, inside(id, token, "22"))
    assert status == 400 and "get_host" in text, (status, text)

    volumes_open_for_their_own_tokens(other_key, token)
    revoked_keys_open_nothing()
    uploads_are_good_once_and_for_one_organisation(other_key)
    odd_requests(id, token)
    assert mine.commands.run("echo unharmed").stdout == "unharmed\n"


CONTENT = [
    ("GET", "path", None),
    ("PATCH", "path", {"mode": 511}),
    ("DELETE", "path", None),
    ("GET", "dir", None),
    ("POST", "dir", None),
    ("GET", "file", None),
    ("PUT", "file", b"x"),
]


def volumes_open_for_their_own_tokens(other_key, sandbox_token):
    """A volume of another organisation, and tokens that are good for something else."""
    made = native("POST", "/v1/keys", {"name": "short", "scopes": ["manage"]})
    mine = e2b.Volume.create(f"mine-{uuid.uuid4().hex[:8]}")
    same = e2b.Volume.connect(mine.volume_id, api_key=made["token"])
    theirs = e2b.Volume.create(f"theirs-{uuid.uuid4().hex[:8]}", api_key=other_key)
    id, nobody = mine.volume_id, "vol_aaaaaaaaaaaaaaaaaaaa"
    try:
        mine.write_file("/f", "mine")
        other, key = {"X-API-KEY": other_key}, {"X-API-KEY": os.environ["E2B_API_KEY"]}
        for method in ("GET", "DELETE"):
            there = ask(method, f"/volumes/{id}", None, other)
            assert there[0] == 404 and ask(method, f"/volumes/{nobody}", None, other)[0] == 404, there
            assert ask(method, f"/volumes/{id}")[0] == 401
        assert id not in ask("GET", "/volumes", None, other)[1]
        mounts = {"templateID": "base", "volumeMounts": [{"name": mine.name, "path": "/data"}]}
        status, text = ask("POST", "/v2/sandboxes", mounts, other)
        assert status == 400 and "not found" in text, (status, text)
        status, text = ask("POST", "/v2/sandboxes", {**mounts, "volumeMounts": [{**mounts["volumeMounts"][0], "x": 1}]}, key)
        assert status == 400, (status, text)

        def refused(id, token):
            headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
            for method, what, body in CONTENT:
                status, text = ask(method, f"/volumecontent/{id}/{what}?path=/f", body, headers)
                assert status == 401 and json.loads(text)["code"] == "unauthenticated", (method, what, status, text)

        maker, tag = mine.token.split(".")
        foreign = theirs.token.split(".")[0]
        for token in (None, "", "x", theirs.token, f"{foreign}.{tag}", f"{maker}.{flipped(tag)}", mine.token + "A" * 300,
                      sandbox_token, os.environ["E2B_API_KEY"], same.token.split(".")[0] + "." + tag):
            refused(id, token)
        for other_id in (theirs.volume_id, nobody, "..%2f..", "x"):
            refused(other_id, mine.token)
        # It opens no sandbox, and nothing of the plane.
        assert ask("GET", "/volumes", None, {"X-API-KEY": mine.token})[0] == 401
        headers = {"Authorization": f"Bearer {mine.token}"}
        for query in ("", "path=", "path=/f&path=/g", "path=/f&user=root", "path=/../../etc/passwd", "path=%00", "path=/" + "x" * 5000):
            status, text = ask("GET", f"/volumecontent/{id}/path?{query}", None, headers)
            assert status == 400 and json.loads(text)["code"] == "invalid_argument", (query, status, text)
        for body in (b"", b"null", b'{"mode":4096}', b'{"uid":70000}', b'{"owner":"root"}'):
            status, text = ask("PATCH", f"/volumecontent/{id}/path?path=/f", body, headers)
            assert status == 400, (body, status, text)
        # The token ends with its key.
        assert same.read_file("/f") == "mine"
        status, _ = ask("DELETE", f"/v1/keys/{made['id']}", None, {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}, os.environ["COVE_URL"])
        assert status in (200, 204), status
        refused(id, same.token)
        assert mine.read_file("/f") == "mine"
    finally:
        assert e2b.Volume.destroy(id) is True
        assert e2b.Volume.destroy(theirs.volume_id, api_key=other_key) is True


def revoked_keys_open_nothing():
    """What a key was given ends with the key, links to files included."""
    made = native("POST", "/v1/keys", {"name": "short", "scopes": ["manage"]})
    box = e2b.Sandbox.create(api_key=made["token"])
    try:
        box.files.write("/tmp/secret", "x")
        url = box.download_url("/tmp/secret")
        with urllib.request.urlopen(url, timeout=300) as response:
            assert response.read() == b"x"
        token = box._envd_access_token
        status, _ = ask("DELETE", f"/v1/keys/{made['id']}", None, {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}, os.environ["COVE_URL"])
        assert status in (200, 204), status
        refused_everywhere(box.sandbox_id, token)
        assert ask("GET", url[len(os.environ["COVE_URL"]) :], None, None, os.environ["COVE_URL"])[0] == 401
    finally:
        e2b.Sandbox.kill(box.sandbox_id)


def archive(*names):
    """A tar archive of empty files, whatever they are called."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def uploads_are_good_once_and_for_one_organisation(other_key):
    """Links for archives of template builds, and what such archives may have in them."""
    key, other = {"X-API-KEY": os.environ["E2B_API_KEY"]}, {"X-API-KEY": other_key}
    name, hash = f"hostile-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex * 2

    def reserve(key):
        status, text = ask("POST", "/v3/templates", {"name": name}, key)
        assert status == 202, (status, text)
        return json.loads(text)["buildID"]

    def link(key):
        status, text = ask("GET", f"/templates/{name}/files/{hash}", None, key)
        assert status == 201, (status, text)
        return json.loads(text)

    def send(url, body, headers=None):
        return ask("PUT", url, body, {"Content-Type": "application/x-tar", **(headers or {})}, base="")[0]

    copy = {"fromImage": "e2bdev/base", "steps": [{"type": "COPY", "args": ["x", "/tmp/x"], "filesHash": hash}]}
    build = reserve(key)
    first = link(key)
    assert first["present"] is False
    # Nothing but the link counts, and it ends with its use, however that ends.
    assert send(first["url"][:-1] + ("0" if first["url"][-1] != "0" else "1"), b"x") == 401
    assert send(first["url"], archive("../../x")) == 200
    for again in (first["url"], first["url"].split("?")[0] + "?link="):
        assert send(again, archive("x")) == 401, again
    # The size that a request says is refused before a byte is read; the link is still good then.
    second = link(key)
    assert second["present"] is True
    host = urllib.parse.urlsplit(second["url"])
    raw = http.client.HTTPConnection(host.netloc, timeout=300)
    raw.putrequest("PUT", f"{host.path}?{host.query}")
    raw.putheader("Content-Length", str(1 << 40))
    raw.endheaders()
    assert raw.getresponse().status == 413
    raw.close()
    # Another organisation sees neither the build nor the files.
    assert link(other)["present"] is False
    for method, path, body in (
        ("POST", f"/v2/templates/{name}/builds/{build}", copy),
        ("GET", f"/templates/{name}/builds/{build}/status", None),
    ):
        status, text = ask(method, path, body, other)
        assert status in (400, 404) and build not in text.replace(f"'{build}'", ""), (path, status, text)
    theirs = reserve(other)
    status, text = ask("POST", f"/v2/templates/{name}/builds/{theirs}", copy, other)
    assert status == 400 and "not uploaded" in text, (status, text)
    # What leads out of an archive fails the build, and nothing is unpacked.
    assert ask("POST", f"/v2/templates/{name}/builds/{build}", copy, key)[0] == 202
    assert ask("POST", f"/v2/templates/{name}/builds/{build}", copy, key)[0] == 400
    deadline = time.monotonic() + 300
    while True:
        state = json.loads(ask("GET", f"/templates/{name}/builds/{build}/status", None, key)[1])
        if state["status"] != "building" or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    assert state["status"] == "error" and "leads out" in state["reason"]["message"], state
    # A key that is revoked takes its links along.
    made = native("POST", "/v1/keys", {"name": "short", "scopes": ["manage"]})
    late = link({"X-API-KEY": made["token"]})
    bearer = {"Authorization": f"Bearer {os.environ['E2B_API_KEY']}"}
    assert ask("DELETE", f"/v1/keys/{made['id']}", None, bearer, os.environ["COVE_URL"])[0] in (200, 204)
    assert send(late["url"], archive("x")) == 401
    for bad in ("x", "F" * 64, "0" * 63, "..%2f" * 8):
        assert ask("GET", f"/templates/{name}/files/{bad}", None, key)[0] == 400, bad


def odd_requests(id, token):
    """What makes no sense is refused in the contract's own form, and changes nothing."""
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    for body in (b"", b"[]", b"{", b"null", b'{"templateID":"base","surprise":1}', b"\xff"):
        status, text = ask("POST", "/v2/sandboxes", body, key)
        assert status == 400 and json.loads(text)["code"] == 400, (body, status, text)
    for path in ("/nothing", "/v1/sandboxes", "/sandboxes/x/y/z", "/default-templates", "/volumes/a/b", "/secrets"):
        status, text = ask("GET", path, None, key)
        assert status in (404, 501) and json.loads(text)["code"] == status, (path, status, text)
        assert ask("GET", path)[0] == 401, path
    headers = inside(id, token)
    stat = "/filesystem.Filesystem/Stat"
    for path in ("/" + "x" * 5000, "a\0b"):
        status, text = ask("POST", stat, {"path": path}, headers)
        assert status == 400 and json.loads(text)["code"] == "invalid_argument", (status, text)
    for path in ("../../../../etc/shadow-of-the-host", "/proc/1/root/var/lib/cove/root.key", "~root/../../x"):
        status, text = ask("POST", stat, {"path": path}, headers)
        assert status == 404, (path, status, text)
    status, text = ask("POST", stat, {"path": "/", "more": 1}, headers)
    assert status == 400, (status, text)
    status, text = ask("POST", stat, b"\x0a\x01/", {**headers, "Content-Type": "application/proto"})
    assert status == 501, (status, text)
    start = {**headers, "Content-Type": "application/connect+json"}
    for body in (b"", b"\0\0", b"\x01\0\0\0\2{}", b"\0\xff\xff\xff\xff", b"\0\0\0\0\2[]", framed({"process": {}})):
        status, text = ask("POST", "/process.Process/Start", body, start)
        assert status == 200 and '"error"' in text and '"start"' not in text, (body, status, text)


if __name__ == "__main__":
    main()
    print("ok")
