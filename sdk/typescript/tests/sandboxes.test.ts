/** What the shared vectors cannot say: blocks, iteration, callbacks, and connections that break. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { describe, test } from "node:test";

import {
  AlreadyExistsError,
  AuthenticationError,
  Client,
  CommandFailed,
  ForbiddenError,
  NotFoundError,
  Sandbox,
  Snapshot,
} from "../src/index.js";
import { SMALL } from "./small.js";

describe("sandboxes", { concurrency: 4 }, () => {
  test("are gone after their block, also after an error", async () => {
    let id = "";
    const block = async () => {
      await using box = await Sandbox.create(SMALL);
      id = box.id;
      throw new Error("in the block");
    };
    await assert.rejects(block, /in the block/);
    await assert.rejects(Sandbox.get(id), (error) => error instanceof NotFoundError && error.requestId !== undefined);
    await assert.rejects(
      Sandbox.with(SMALL, (box) => {
        id = box.id;
        throw new Error("in the function");
      }),
      /in the function/,
    );
    await assert.rejects(Sandbox.get(id), NotFoundError);
  });

  test("that are kept outlive their block, and deleting twice is no error", async () => {
    let box: Sandbox;
    {
      await using kept = await Sandbox.create("debian", { ...SMALL, keep: true });
      box = kept;
    }
    {
      await using same = await Sandbox.get(box.id);
      assert.equal(same.state, "running");
    }
    await (await Sandbox.get(box.id)).delete();
    await using gone = box;
    assert.ok(gone);
  });

  test("have names of their own, and times are dates", async () => {
    const name = `only-${process.pid}-${Date.now()}`;
    await using box = await Sandbox.create({ ...SMALL, name, labels: { run: name } });
    await assert.rejects(Sandbox.create({ ...SMALL, name }), AlreadyExistsError);
    assert.equal((await Sandbox.get(name)).id, box.id);
    assert.ok(Math.abs(Date.now() - box.info.createdAt.getTime()) < 3_600_000);
    const found: string[] = [];
    for await (const one of Sandbox.list({ labels: { run: name } })) found.push(one.id);
    assert.deepEqual(found, [box.id]);
    const [event] = await box.events();
    assert.ok(event?.type === "state" && event.at instanceof Date && event.sandbox === box.id);
  });

  test("tell callbacks while the command runs, and wait for them", async () => {
    await using box = await Sandbox.create(SMALL);
    let heard = "";
    // It ends only because what it wrote was heard before it ended.
    const result = await box.run("echo ready; until test -e /tmp/go; do sleep 0.01; done; echo gone", {
      timeout: 300,
      onStdout: async (text) => {
        heard += text;
        if (text.includes("ready")) await box.files.write("/tmp/go", "");
      },
    });
    assert.ok(result.ok);
    assert.equal(heard, "ready\ngone\n");
    await assert.rejects(
      box.run("echo x", {
        onStdout: () => {
          throw new Error("mine");
        },
      }),
      /mine/,
    );
  });

  test("stream output, which can be left and resumed", async () => {
    await using box = await Sandbox.create(SMALL);
    const stream = box.stream("echo begun; until test -e /tmp/go; do sleep 0.01; done; echo over; exit 5");
    for await (const out of stream) {
      assert.equal(out.text, "begun\n");
      break;
    }
    const process = await box.process(stream.id);
    assert.ok((await process.info()).running);
    await box.files.write("/tmp/go", "");
    const result = await stream.result();
    assert.equal(result.stdout, "begun\nover\n");
    assert.equal(result.exitCode, 5);
    await assert.rejects(process.wait({ check: true }), CommandFailed);
    const offline = await box.run("getent hosts pypi.org");
    assert.match(offline.hint ?? "", /is off; pypi.org was refused/);
    const blaming = await box.run("echo 'Could not resolve host: example.com' >&2; exit 6");
    assert.equal(blaming.hint, undefined);
    assert.throws(() => offline.check(), /--allow preset:packages/);
    assert.equal(result.hint, undefined);
    let again = "";
    for await (const out of process) again += out.text;
    assert.equal(again, "begun\nover\n");
  });

  test("deliver much output whole", async () => {
    await using box = await Sandbox.create(SMALL);
    const result = await box.run("head -c 20000000 /dev/zero");
    assert.equal(result.stdoutBytes.length, 20_000_000);
    assert.equal(result.truncated, false);
  });

  test("lose and repeat no byte when connections break", async () => {
    await using box = await Sandbox.create(SMALL);
    await using proxy = await breaking(Client.default().url);
    const through = await Sandbox.get(box.id, { client: new Client({ url: proxy.url, apiKey: key() }) });
    // It goes on only after its connection was cut.
    const go = (number: number) => `until test -e /tmp/go${number}; do sleep 0.01; done`;
    let text = "";
    let cuts = 0;
    for await (const out of through.stream(`seq 1 20; ${go(1)}; seq 21 40; ${go(2)}; seq 41 60`)) {
      text += out.text;
      while (cuts < 2 && text.includes(`\n${20 * (cuts + 1)}\n`)) {
        proxy.cut();
        await box.files.write(`/tmp/go${++cuts}`, "");
      }
    }
    assert.equal(text, Array.from({ length: 60 }, (_, index) => `${index + 1}\n`).join(""));
    assert.equal(cuts, 2);
  });

  test("work in forks, in the order of the items, and nothing is left", async () => {
    await using box = await Sandbox.create({ ...SMALL, labels: { test: "map" } });
    await box.files.write("/srv/base", "40");
    const add = async (fork: Sandbox, number: number) =>
      Number((await fork.run(`echo $(($(cat /srv/base) + ${number}))`)).stdout);
    assert.deepEqual(await box.map(add, [1, 2, 3], { concurrency: 2 }), [41, 42, 43]);
    await assert.rejects(
      box.map(async (_, number) => assert.notEqual(number, 2, "no two"), [1, 2]),
      /no two/,
    );
    assert.deepEqual(await box.map(add, []), []);
    assert.deepEqual(await box.snapshots(), []);
  });

  test("are put back when an attempt fails", async () => {
    await using box = await Sandbox.create(SMALL);
    await box.files.write("/srv/state", "good");
    const failing = box.attempt(async () => {
      await box.files.write("/srv/state", "bad");
      throw new Error("that was wrong");
    });
    await assert.rejects(failing, /that was wrong/);
    assert.equal(await box.files.read("/srv/state"), "good");
    assert.equal(await box.attempt(() => box.files.write("/srv/state", "better")), 6);
    assert.equal(await box.files.read("/srv/state"), "better");
    assert.deepEqual(await box.snapshots(), []);
  });

  test("begin from snapshots, which are listed", async () => {
    await using box = await Sandbox.create(SMALL);
    await box.files.write("/srv/seed", "1");
    const snapshot = await box.snapshot();
    try {
      await using forks = await snapshot.fork(2);
      assert.equal(forks.length, 2);
      for (const fork of forks) assert.equal(await fork.files.read("/srv/seed"), "1");
      await using other = await Sandbox.create({ ...SMALL, snapshot });
      assert.equal(await other.files.read("/srv/seed"), "1");
      assert.ok((await Snapshot.list()).some((one) => one.id === snapshot.id));
      assert.equal((await Snapshot.get(snapshot.id)).info.createdAt.getTime(), snapshot.info.createdAt.getTime());
    } finally {
      await snapshot.delete();
    }
  });

  test("tell what their network policy decided", async () => {
    await using box = await Sandbox.create({ ...SMALL, network: ["*.example.com"] });
    await box.run("getent hosts elsewhere.example.org");
    for await (const entry of box.egress({ verdict: "denied", follow: true })) {
      assert.equal(entry.name, "elsewhere.example.org");
      assert.ok(entry.at instanceof Date);
      break;
    }
  });

  test("tell what happens to them, over broken connections", async () => {
    await using box = await Sandbox.create(SMALL);
    await using proxy = await breaking(Client.default().url);
    const through = await Sandbox.get(box.id, { client: new Client({ url: proxy.url, apiKey: key() }) });
    const seen: string[] = [];
    for await (const event of through.followEvents(0)) {
      if (event.type !== "state") continue;
      seen.push(event.state);
      if (event.state === "running" && seen.length === 1) {
        proxy.cut();
        await box.freeze();
        await box.resume();
      }
      if (event.state === "running" && seen.length > 1) break;
    }
    assert.deepEqual(seen, ["running", "frozen", "running"]);
  });

  test("are reached with keys that can be made and revoked", async () => {
    await using client = new Client();
    const made = await client.createKey("from the tests", ["read"], { expires: 600 });
    await using reader = new Client({ url: client.url, apiKey: made.token });
    assert.ok((await reader.images()).length > 0);
    await assert.rejects(Sandbox.create({ client: reader }), ForbiddenError);
    assert.ok((await client.keys()).some((one) => one.id === made.id && one.token === undefined));
    await client.revokeKey(made.id);
    await assert.rejects(reader.images(), AuthenticationError);
    const line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIH81UMn11ondsSBCafN+gPqjEXOjQcVn8n194LMQHp81 tests\n";
    const added = await client.addSshKey(`tests-${process.pid}`, line, { expires: 600 });
    assert.ok((await client.sshKeys()).some((one) => one.fingerprint === added.fingerprint));
    await client.removeSshKey(added.id);
    assert.ok(!(await client.sshKeys()).some((one) => one.id === added.id));
    const name = `tests-${process.pid}`;
    const value = "canary-typescript-0123456789";
    const secret = await client.setSecret(name, value, { hosts: ["api.example.com"], use: "basic" });
    assert.deepEqual([secret.hosts, secret.use, secret.lastUsedAt], [["api.example.com"], "basic", undefined]);
    const listed = (await client.secrets()).filter((one) => one.name === name);
    assert.ok(listed.length === 1 && !JSON.stringify(listed).includes(value));
    const asks = await client.setSecret(name, value, { hosts: ["api.example.com"], ask: true });
    assert.ok(asks.ask && !(await client.approvals()).some((one) => one.secret === name));
    await assert.rejects(client.approve("apr_aaaaaaaaaaaaaaaaaaaa", { seconds: 60 }), NotFoundError);
    await assert.rejects(client.deny("apr_aaaaaaaaaaaaaaaaaaaa"), NotFoundError);
    const limits = [{ of: "requests", per: "day", max: 10 }] as const;
    const limited = await client.setSecret(name, value, { hosts: ["api.example.com"], limits });
    assert.deepEqual([limited.budgets[0]?.max, limited.budgets[0]?.used, limited.budgets.length], [10, 0, 1]);
    await client.removeSecret(name);
    assert.ok(!(await client.secrets()).some((one) => one.name === name));
  });

  test("are closed to a wrong key", async () => {
    await using client = new Client({ url: Client.default().url, apiKey: "cove_wrong" });
    await assert.rejects(client.images(), AuthenticationError);
  });

  test("can be made many at once", async () => {
    const one = (number: number) => Sandbox.with({ ...SMALL, memory: 128 }, async (box) => (await box.run(`echo ${number}`)).stdout);
    assert.deepEqual(await Promise.all([0, 1, 2, 3, 4, 5].map(one)), ["0\n", "1\n", "2\n", "3\n", "4\n", "5\n"]);
  });
});

/** The key of the server under test, which is sent to no other address by itself. */
function key(): string {
  const { COVE_API_KEY, COVE_DATA_DIR } = process.env;
  return COVE_API_KEY ?? readFileSync(`${COVE_DATA_DIR}/root.key`, "utf8").trim();
}

/** A proxy whose connections can be cut. */
async function breaking(target: string): Promise<{ url: string; cut(): void } & AsyncDisposable> {
  const { hostname, port } = new URL(target);
  const open = new Set<Socket>();
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    open.add(near).add(far);
    near.on("error", () => {}).on("close", () => far.destroy());
    far.on("error", () => {}).on("close", () => near.destroy());
    near.pipe(far).pipe(near);
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut() {
      for (const socket of open) socket.destroy();
      open.clear();
    },
    async [Symbol.asyncDispose]() {
      for (const socket of open) socket.destroy();
      await new Promise((done) => server.close(done));
    },
  };
}
