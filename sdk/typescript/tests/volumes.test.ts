/** Volumes against a real server. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { InUseError, PathNotFoundError, Sandbox, Volume } from "../src/index.js";
import { type Mounted, mounts } from "../src/volume.js";
import { SMALL } from "./small.js";

function name(): string {
  return `ts-${Math.random().toString(16).slice(2, 10)}`;
}

describe("volumes", () => {
  test("are not mounted by options that nobody knows", () => {
    const wrong = { volume: "data", read_only: true } as unknown as Mounted;
    assert.throws(() => mounts({ "/data": wrong }), /read_only/);
    assert.deepEqual(mounts({ "/data": { volume: "data", readOnly: true } }), [
      { volume: "data", path: "/data", read_only: true },
    ]);
  });

  test("outlive the sandboxes that share them", async () => {
    const volume = await Volume.create(name(), { size: "64M" });
    try {
      await Sandbox.with({ ...SMALL, volumes: { "/data": volume } }, async (writer) => {
        await writer.run("echo one > /data/file", { check: true });
        await Sandbox.with({ ...SMALL, volumes: { "/old": { volume, readOnly: true } } }, async (reader) => {
          assert.equal((await reader.run("cat /old/file")).stdout, "one\n");
          assert.notEqual((await reader.run("echo two > /old/file")).exitCode, 0);
        });
        await assert.rejects(volume.delete(), InUseError);
        assert.deepEqual((await Volume.get(volume.name)).info.usedBy, [writer.id]);
      });
      assert.equal(await volume.read("/file"), "one\n");
    } finally {
      await volume.delete();
    }
  });

  test("have files and copies without a sandbox", async () => {
    const volume = await Volume.create(name(), { size: "64M" });
    assert.equal(await volume.write("/a/b", "text", { mode: 0o600 }), 4);
    const copy = await Volume.create(`${volume.name}-copy`, { from: volume, readOnly: true });
    await volume.move("/a/b", "/c");
    await volume.mkdir("/d/e");
    await volume.remove("/d", { recursive: true });
    const found = await volume.files("/", { depth: 2 });
    assert.deepEqual(found.map((file) => file.path), ["/a", "/c"]);
    await assert.rejects(volume.read("/a/b"), PathNotFoundError);
    assert.equal(await copy.read("/a/b"), "text");
    await assert.rejects(copy.write("/x", ""));
    const all = await Volume.list();
    assert.ok(all.some((each) => each.id === copy.id));
    await copy.delete();
    await volume.delete();
  });
});
