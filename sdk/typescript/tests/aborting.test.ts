/** Aborting a call ends what it was doing, and leaves nothing behind. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { Client, type Process, Sandbox } from "../src/index.js";
import { misbehaving } from "./misbehaving.js";
import { SMALL } from "./small.js";

/** Waits for a state, with a generous deadline. */
async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + 300_000;
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, `never came: ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

async function running(box: Sandbox): Promise<number> {
  return (await box.processes()).filter((one) => one.running && one.kind !== "code_context").length;
}

async function labelled(label: string): Promise<Sandbox[]> {
  const found: Sandbox[] = [];
  for await (const box of Sandbox.list({ labels: { test: label } })) found.push(box);
  return found;
}

describe("aborting", { concurrency: 4 }, () => {
  test("ends the command of a run, and rejects with the reason", async () => {
    await using box = await Sandbox.create(SMALL);
    const control = new AbortController();
    const reason = new Error("enough");
    const run = box.run("echo begun; sleep 1000", { signal: control.signal, onStdout: () => control.abort(reason) });
    await assert.rejects(run, (error) => error === reason);
    await until("the command's end", async () => (await running(box)) === 0);
  });

  test("ends a command that has written nothing, with its children", async () => {
    await using box = await Sandbox.create(SMALL);
    const control = new AbortController();
    const run = box.run("sleep 1000 & sleep 1000", { signal: control.signal });
    run.catch(() => {});
    await until("the command", async () => (await running(box)) === 1);
    control.abort();
    await assert.rejects(run, { name: "AbortError" });
    await until("the command's end", async () => (await running(box)) === 0);
    // Its children were sent the same signal, and may end a moment later.
    await until("its children's end", async () => (await box.run(["pgrep", "sleep"])).exitCode === 1);
  });

  test("ends a command that was aborted while it was being started", async () => {
    await using box = await Sandbox.create(SMALL);
    const control = new AbortController();
    const run = box.run("touch /tmp/ran; sleep 1000", { signal: control.signal });
    run.catch(() => {});
    // The request is on its way; nothing is known of the command yet.
    await Promise.resolve();
    control.abort();
    await assert.rejects(run, { name: "AbortError" });
    await until("the command's end", async () => (await running(box)) === 0);
  });

  test("starts nothing when it came before the call", async () => {
    await using box = await Sandbox.create(SMALL);
    const signal = AbortSignal.abort();
    await assert.rejects(box.run("touch /tmp/ran", { signal }), { name: "AbortError" });
    await assert.rejects(box.start("touch /tmp/ran", { signal }), { name: "AbortError" });
    await assert.rejects(box.code.run("open('/tmp/ran', 'w')", { signal }), { name: "AbortError" });
    await assert.rejects(box.files.write("/tmp/ran", "", { signal }), { name: "AbortError" });
    assert.equal(await box.files.exists("/tmp/ran"), false);
  });

  test("ends a stream between two reads", async () => {
    await using box = await Sandbox.create(SMALL);
    const control = new AbortController();
    const stream = box.stream("while true; do echo more; sleep 0.01; done", { signal: control.signal });
    let pieces = 0;
    const loop = (async () => {
      for await (const _ of stream) if (++pieces === 3) control.abort();
    })();
    await assert.rejects(loop, { name: "AbortError" });
    assert.equal(pieces, 3);
    await until("the command's end", async () => (await running(box)) === 0);
  });

  test("of a wait leaves the process alone", async () => {
    await using box = await Sandbox.create(SMALL);
    const process: Process = await box.start("until test -e /tmp/go; do sleep 0.01; done; echo over");
    const control = new AbortController();
    const wait = process.wait({ signal: control.signal });
    control.abort();
    await assert.rejects(wait, { name: "AbortError" });
    await box.files.write("/tmp/go", "");
    assert.equal((await process.wait()).stdout, "over\n");
  });

  test("interrupts code and keeps its variables", async () => {
    await using box = await Sandbox.create(SMALL);
    await box.code.run("kept = 7");
    const control = new AbortController();
    const run = box.code.run("print('begun', flush=True)\nimport time; time.sleep(1000)", {
      signal: control.signal,
      onStdout: () => control.abort(),
    });
    await assert.rejects(run, { name: "AbortError" });
    assert.equal((await box.code.run("kept")).text, "7");
  });

  test("of a create deletes what was made meanwhile", async () => {
    const label = `aborted-${process.pid}-${Date.now()}`;
    for (const pause of [0, 1, 5, 20]) {
      const control = new AbortController();
      const made = Sandbox.create({ ...SMALL, labels: { test: label }, signal: control.signal });
      made.catch(() => {});
      await new Promise((done) => setTimeout(done, pause));
      control.abort();
      await made.then(
        (box) => box.delete(),
        (error: Error) => assert.equal(error.name, "AbortError"),
      );
    }
    await until("their end", async () => (await labelled(label)).length === 0);
  });

  test("of forks deletes those that were made meanwhile", async () => {
    const label = `forked-${process.pid}-${Date.now()}`;
    await using box = await Sandbox.create(SMALL);
    const control = new AbortController();
    const forks = box.fork(2, { labels: { test: label }, signal: control.signal });
    forks.catch(() => {});
    await Promise.resolve();
    control.abort();
    await assert.rejects(forks, { name: "AbortError" });
    // Only afterwards can nothing come any more: another fork of the same sandbox waits its turn.
    await (await box.fork(1)).delete();
    await until("their end", async () => (await labelled(label)).length === 0);
  });

  test("does not wait for a server that does not answer", async () => {
    await using server = await misbehaving(() => {});
    const client = new Client({ url: server.url, apiKey: "key" });
    const begun = Date.now();
    await assert.rejects(client.images({ signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    await assert.rejects(Sandbox.create({ client, signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
    assert.ok(Date.now() - begun < 60_000);
  });

  test("ends the pause between two tries", async () => {
    await using server = await misbehaving((_, response) => {
      response.writeHead(503, { "retry-after": "30" }).end('{"error":{"code":"unavailable","message":"later"}}');
    });
    const client = new Client({ url: server.url, apiKey: "key" });
    const control = new AbortController();
    const images = client.images({ signal: control.signal });
    images.catch(() => {});
    await until("the first try", async () => server.asked.length === 1);
    control.abort();
    await assert.rejects(images, { name: "AbortError" });
    assert.equal(server.asked.length, 1);
  });
});
