/** Files against a real server, and archives that mean harm. */

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { chmod, mkdir, mkdtemp, readdir, readFile, readlink, rm, stat, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, describe, test } from "node:test";

import { CoveError, PathNotFoundError, Sandbox } from "../src/index.js";
import { pack, unpack } from "../src/trees.js";
import { SMALL } from "./small.js";

const scratch = await mkdtemp(join(tmpdir(), "cove-files-"));
after(() => rm(scratch, { recursive: true }));

async function place(name: string): Promise<string> {
  return mkdtemp(join(scratch, `${name}-`));
}

describe("files", { concurrency: 4 }, () => {
  test("are written from everything that has bytes", async () => {
    await using box = await Sandbox.create(SMALL);
    const data = new Uint8Array(randomBytes(300_000));
    const halves = [data.subarray(0, 100_000), data.subarray(100_000)];
    const contents = {
      bytes: data,
      buffer: data.buffer.slice(0),
      blob: new Blob([data]),
      stream: new Blob([data]).stream() as ReadableStream<Uint8Array>,
      pieces: halves,
      generator: (async function* () {
        yield* halves;
      })(),
    };
    for (const [name, content] of Object.entries(contents)) {
      assert.equal(await box.files.write(`/srv/${name}`, content), data.length, name);
      assert.deepEqual(await box.files.readBytes(`/srv/${name}`), data, name);
    }
    const pieces: Uint8Array[] = [];
    for await (const piece of box.files.stream("/srv/bytes")) pieces.push(piece);
    assert.deepEqual(new Uint8Array(Buffer.concat(pieces)), data);
    await assert.rejects(box.files.read("/srv/bytes"), TypeError);
  });

  test("that fail while they are read are not written", async () => {
    await using box = await Sandbox.create(SMALL);
    const failing = (async function* () {
      yield new Uint8Array(10);
      throw new Error("the source broke");
    })();
    await assert.rejects(box.files.write("/srv/half", failing));
    assert.equal(await box.files.exists("/srv/half"), false);
  });

  test("are watched", async () => {
    await using box = await Sandbox.create(SMALL);
    const seen: string[] = [];
    for await (const change of box.files.watch("/tmp")) {
      if (change.type === "ready") await box.run("touch /tmp/new");
      else seen.push(change.path ?? "");
      if (seen.length > 0) break;
    }
    assert.deepEqual(seen, ["/tmp/new"]);
  });

  test("and trees go up and come down", async () => {
    await using box = await Sandbox.create(SMALL);
    const here = await place("tree");
    const long = `${"very-".repeat(30)}long-name-ü.txt`;
    await mkdir(join(here, "in", "sub", "empty"), { recursive: true });
    await writeFile(join(here, "in", "sub", "run.sh"), "#!/bin/sh\necho ran\n");
    await chmod(join(here, "in", "sub", "run.sh"), 0o755);
    await writeFile(join(here, "in", long), randomBytes(1000));
    await symlink("sub/run.sh", join(here, "in", "link"));
    await symlink("/etc/passwd", join(here, "in", "outward"));
    await box.files.upload(join(here, "in"), "/srv/app");
    assert.equal((await box.run("/srv/app/sub/run.sh && readlink /srv/app/link /srv/app/outward")).stdout, "ran\nsub/run.sh\n/etc/passwd\n");
    await box.files.download("/srv/app", join(here, "out"));
    assert.deepEqual((await readdir(join(here, "out"))).sort(), [long, "link", "sub"].sort());
    assert.equal(await readlink(join(here, "out", "link")), "sub/run.sh");
    assert.deepEqual(await readFile(join(here, "out", long)), await readFile(join(here, "in", long)));
    assert.equal((await stat(join(here, "out", "sub", "run.sh"))).mode & 0o777, 0o755);
    assert.ok((await stat(join(here, "out", "sub", "empty"))).isDirectory());
    await box.files.upload(join(here, "in", "sub", "run.sh"), "/srv/one.sh");
    assert.ok((await box.run("/srv/one.sh")).ok);
    await box.files.download("/srv/one.sh", join(here, "one.sh"));
    assert.match(await readFile(join(here, "one.sh"), "utf8"), /echo ran/);
    await assert.rejects(box.files.download("/srv/none", join(here, "none")), PathNotFoundError);
    assert.ok(!(await readdir(here)).some((name) => name.startsWith(".cove") || name === "none"));
  });
});

interface Entry {
  name: string;
  type: string;
  content?: string;
  target?: string;
  mode?: number;
}

/** An archive written by hand, because no tool writes such. */
async function* hostile(...entries: Entry[]): AsyncGenerator<Uint8Array> {
  for (const { name, type, content = "", target = "", mode = 0o4777 } of entries) {
    const header = Buffer.alloc(512);
    header.write(name, 0);
    header.write(mode.toString(8).padStart(7, "0"), 100);
    header.write(content.length.toString(8).padStart(11, "0"), 124);
    header.write(type, 156);
    header.write(target, 157);
    header.write("ustar\x0000", 257);
    header.fill(" ", 148, 156);
    header.write(header.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0"), 148);
    yield new Uint8Array(header);
    if (content.length > 0) yield new Uint8Array(Buffer.from(content.padEnd(Math.ceil(content.length / 512) * 512, "\0")));
  }
  yield new Uint8Array(1024);
}

/** All paths below a directory; links are not followed. */
async function everything(directory: string, prefix = ""): Promise<string[]> {
  const found: string[] = [];
  for (const entry of await readdir(join(directory, prefix), { withFileTypes: true })) {
    const path = join(prefix, entry.name);
    found.push(path);
    if (entry.isDirectory()) found.push(...(await everything(directory, path)));
  }
  return found.sort();
}

describe("archives", () => {
  const attacks: Record<string, Entry[]> = {
    "a path upwards": [{ name: "../escaped", type: "0", content: "x" }],
    "an absolute path": [{ name: "/etc/../../../escaped", type: "0", content: "x" }],
    "a link upwards": [{ name: "a", type: "2", target: ".." }, { name: "a/escaped", type: "0", content: "x" }],
    "a link to the root": [{ name: "a", type: "2", target: "/" }, { name: "a/escaped", type: "0", content: "x" }],
    "links over links": [
      { name: "d", type: "2", target: "e" },
      { name: "e", type: "2", target: "../.." },
      { name: "d/escaped", type: "0", content: "x" },
    ],
    "a link inside that is moved outside": [
      { name: "deep", type: "5" },
      { name: "deep/up", type: "2", target: ".." },
      { name: "deep/up/up", type: "2", target: ".." },
      { name: "up/escaped", type: "0", content: "x" },
    ],
    "a hard link outside": [{ name: "h", type: "1", target: "../secret" }, { name: "h", type: "0", content: "x" }],
    "a directory outside": [{ name: "a", type: "2", target: ".." }, { name: "a/escaped", type: "5" }],
    "a long name that lies": [{ name: "x", type: "L", content: "../escaped\0" }, { name: "fine", type: "0", content: "x" }],
    "an extended header that lies": [{ name: "x", type: "x", content: "19 path=../escaped\n" }, { name: "fine", type: "0", content: "x" }],
  };
  for (const [name, entries] of Object.entries(attacks)) {
    test(`with ${name} write nothing outside`, async () => {
      const here = await place("hostile");
      await writeFile(join(here, "secret"), "untouched");
      await unpack(hostile(...entries), join(here, "deep", "target")).catch((error: unknown) => {
        assert.ok(error instanceof Error);
      });
      const outside = (await everything(here)).filter((path) => !path.startsWith(join("deep", "target")));
      assert.deepEqual(outside, ["deep", "secret"]);
      assert.equal(await readFile(join(here, "secret"), "utf8"), "untouched");
    });
  }

  test("leave privileges and devices behind", async () => {
    const here = await place("privileges");
    await unpack(hostile({ name: "su", type: "0", content: "x" }, { name: "null", type: "3" }), join(here, "out"));
    assert.deepEqual(await everything(join(here, "out")), ["su"]);
    assert.equal((await stat(join(here, "out", "su"))).mode & 0o7777, 0o777);
  });

  test("that are damaged or cut are refused", async () => {
    const here = await place("damaged");
    const pieces: Uint8Array[] = [];
    for await (const piece of hostile({ name: "a", type: "0", content: "x".repeat(600) })) pieces.push(piece);
    const whole = Buffer.concat(pieces);
    const flipped = Buffer.from(whole);
    flipped.writeUInt8((flipped[3] ?? 0) ^ 1, 3);
    for (const bytes of [flipped, whole.subarray(0, 700), whole.subarray(0, 100)]) {
      await assert.rejects(unpack(one(bytes), join(here, "out")), CoveError);
    }
  });

  test("of a directory can be read by other programs", async () => {
    const here = await place("pack");
    await mkdir(join(here, "in"));
    await writeFile(join(here, "in", "a".repeat(150)), "long name");
    await writeFile(join(here, "in", "ü"), "umlaut");
    const pieces: Uint8Array[] = [];
    for await (const piece of pack(join(here, "in"))) pieces.push(piece);
    await writeFile(join(here, "all.tar"), Buffer.concat(pieces));
    const { execFileSync } = await import("node:child_process");
    const listed = execFileSync("tar", ["-tf", join(here, "all.tar"), "--quoting-style=literal"], { encoding: "utf8" });
    assert.deepEqual(listed.trim().split("\n").sort(), ["a".repeat(150), "ü"].sort());
  });
});

async function* one(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield new Uint8Array(bytes);
}
