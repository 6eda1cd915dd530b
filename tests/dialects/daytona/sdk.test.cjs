// The official TypeScript SDK against a real server. Each check says what went wrong by throwing.
const assert = require("node:assert/strict");
const { Daytona, DaytonaNotFoundError, DaytonaError } = require("@daytonaio/sdk");

async function main() {
  const client = new Daytona();
  const name = `node-${Math.random().toString(36).slice(2, 10)}`;
  const box = await client.create({ name, envVars: { A: "b" }, labels: { who: name }, autoStopInterval: 15 });
  try {
    assert.equal(box.state, "started");
    assert.equal(box.autoStopInterval, 15);
    assert.equal((await client.get(name)).id, box.id);
    const found = [];
    for await (const item of client.list({ labels: { who: name } })) found.push(item.id);
    assert.deepEqual(found, [box.id]);

    const said = await box.process.executeCommand("echo hello $A; exit 3");
    assert.deepEqual([said.exitCode, said.result], [3, "hello b\n"]);
    assert.equal((await box.process.codeRun("print(6 * 7)")).result, "42\n");

    await box.fs.createFolder("/root/f", "755");
    await box.fs.uploadFile(Buffer.from("one\n"), "/root/f/one");
    await box.fs.uploadFiles([{ source: Buffer.from("two\n"), destination: "/root/f/two" }]);
    assert.equal((await box.fs.downloadFile("/root/f/one")).toString(), "one\n");
    const several = await box.fs.downloadFiles([{ source: "/root/f/two" }, { source: "/root/none" }]);
    assert.equal(several[0].result.toString(), "two\n");
    assert.ok(several[1].error);
    assert.deepEqual((await box.fs.listFiles("/root/f")).map((file) => file.name).sort(), ["one", "two"]);
    assert.equal((await box.fs.findFiles("/root/f", "two"))[0].line, 1);
    assert.equal((await box.fs.getFileDetails("/root/f/one")).size, 4);
    await box.fs.deleteFile("/root/f", true);

    await box.process.createSession("s");
    await box.process.executeSessionCommand("s", { command: "cd /tmp" });
    const where = await box.process.executeSessionCommand("s", { command: "pwd" });
    assert.equal(where.stdout, "/tmp\n");
    const later = await box.process.executeSessionCommand("s", { command: "echo out; echo err >&2", runAsync: true });
    let out = "";
    let err = "";
    await box.process.getSessionCommandLogs("s", later.cmdId, (text) => (out += text), (text) => (err += text));
    assert.deepEqual([out, err], ["out\n", "err\n"]);
    await box.process.deleteSession("s");

    let typed = "";
    const pty = await box.process.createPty({
      id: "t",
      cols: 80,
      rows: 24,
      onData: (bytes) => (typed += Buffer.from(bytes).toString()),
    });
    await pty.waitForConnection();
    await pty.sendInput("echo in-$((40 + 2)); exit 5\n");
    assert.equal((await pty.wait()).exitCode, 5);
    assert.match(typed, /in-42/);

    const ran = await box.codeInterpreter.runCode("x = 42\nprint(x)");
    assert.equal(ran.stdout, "42\n");

    await box.git.clone("http://127.0.0.1:1/none", "/root/none").then(
      () => assert.fail("there is nobody"),
      (error) => assert.ok(error instanceof DaytonaError),
    );
    await box.stop();
    assert.equal(box.state, "stopped");
    await box.start();
    assert.equal(box.state, "started");
    await assert.rejects(client.volume.list(), /volumes are managed/);
    await assert.rejects(client.get("there-is-none"), DaytonaNotFoundError);
  } finally {
    await box.delete();
  }
  await assert.rejects(client.get(name), DaytonaNotFoundError);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
