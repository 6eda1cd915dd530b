/** What becomes of sandboxes that nobody needs any more. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, NotFoundError, Sandbox } from "../src/index.js";
import { SMALL } from "./small.js";

const PATIENCE_MS = 300_000;
/** Long enough for a busy machine to renew it in time. */
const LEASE_S = 20;

async function untilPutAway(box: Sandbox): Promise<void> {
  const deadline = Date.now() + PATIENCE_MS;
  while (!((await box.refresh()).state !== "running" && box.info.lease?.lapsed)) {
    assert.ok(Date.now() < deadline, JSON.stringify(box.info));
    await new Promise((done) => setTimeout(done, 200));
  }
}

test("a sandbox that is not renewed is put away, and one that is renewed is not", async () => {
  await using kept = await Sandbox.create({ ...SMALL, lease: LEASE_S });
  const client = new Client();
  const { id } = await Sandbox.create({ ...SMALL, lease: LEASE_S, client });
  await client.close();
  await untilPutAway(await Sandbox.get(id));
  assert.equal((await kept.refresh()).state, "running");
  {
    await using again = await Sandbox.connect(id);
    assert.equal(again.info.lease?.lapsed, false);
    await again.resume();
    assert.equal((await again.run("echo on")).stdout, "on\n");
  }
  await assert.rejects(Sandbox.get(id), NotFoundError);
});

test("a holder that lost the lease does not delete at the end of its block", async () => {
  await using other = new Client();
  let taken: Sandbox;
  {
    await using box = await Sandbox.create(SMALL);
    taken = await Sandbox.connect(box.id, { client: other });
  }
  assert.equal((await taken.refresh()).state, "running");
  await taken.delete();
});

test("kept sandboxes have no lease, and forks have one", async () => {
  const box = await Sandbox.create({ ...SMALL, keep: true });
  assert.equal(box.info.lease, undefined);
  {
    await using forks = await box.fork();
    assert.ok(forks.at(0)?.info.lease);
  }
  await box.delete();
});
