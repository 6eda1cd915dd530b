// The official TypeScript SDK against a real server. Each check says what went wrong by throwing.
const assert = require("node:assert/strict");
const { Daytona, DaytonaNotFoundError, DaytonaError, Image } = require("@daytonaio/sdk");

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

    await box.fs.createFolder("/home/daytona/f", "755");
    await box.fs.uploadFile(Buffer.from("one\n"), "/home/daytona/f/one");
    await box.fs.uploadFiles([{ source: Buffer.from("two\n"), destination: "/home/daytona/f/two" }]);
    assert.equal((await box.fs.downloadFile("/home/daytona/f/one")).toString(), "one\n");
    const several = await box.fs.downloadFiles([{ source: "/home/daytona/f/two" }, { source: "/home/daytona/none" }]);
    assert.equal(several[0].result.toString(), "two\n");
    assert.ok(several[1].error);
    assert.deepEqual((await box.fs.listFiles("/home/daytona/f")).map((file) => file.name).sort(), ["one", "two"]);
    assert.equal((await box.fs.findFiles("/home/daytona/f", "two"))[0].line, 1);
    assert.equal((await box.fs.getFileDetails("/home/daytona/f/one")).size, 4);
    await box.fs.deleteFile("/home/daytona/f", true);

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

    await box.git.clone("http://127.0.0.1:1/none", "/home/daytona/none").then(
      () => assert.fail("there is nobody"),
      (error) => assert.ok(error instanceof DaytonaError),
    );
    await box.stop();
    assert.equal(box.state, "stopped");
    await box.start();
    assert.equal(box.state, "started");

    const volume = await client.volume.create(`${name}-data`);
    assert.ok((await client.volume.list()).some((found) => found.id === volume.id));
    await client.volume.delete(volume);

    const logs = [];
    const image = Image.base("debian").runCommands(`echo ${name} > /opt/name; echo said-$((6 * 7))`);
    const snapshot = await client.snapshot.create({ name: `Node/${name}`, image }, { onLogs: (line) => logs.push(line) });
    assert.match(logs.join("\n"), /said-42/);
    const built = await client.create({ snapshot: snapshot.name });
    assert.equal((await built.process.executeCommand("cat /opt/name")).result, `${name}\n`);
    await built.delete();
    await client.snapshot.delete(await client.snapshot.get(`Node/${name}`));
    const straight = await client.create({ image: image.env({ B: "c" }) }, { onSnapshotCreateLogs: (line) => logs.push(line) });
    assert.equal((await straight.process.executeCommand("cat /opt/name; echo $B")).result, `${name}\nc\n`);
    await straight.delete();
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
