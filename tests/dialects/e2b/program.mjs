// What the official E2B SDK for JavaScript does against a Cove server.
//
//   program.mjs [--table FILE]        run where `e2b` and `@e2b/code-interpreter` are installed

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { pathToFileURL } from "node:url";

const modules = createRequire(`${process.env.COVE_E2B_NODE ?? process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(modules.resolve(name).replace(/\.js$/, ".mjs")).href);
const e2b = await load("e2b");
const code = await load("@e2b/code-interpreter");
const { Sandbox } = e2b;

const DEADLINE_MS = 300_000;
const works = new Map();
const refused = new Map();
const checks = [];

function covers(names, check) {
  for (const name of names) works.set(name, check.name);
  checks.push(check);
}

function refuses(reason, names, check) {
  for (const name of names) refused.set(name, reason);
  checks.push(check);
}

async function until(what, look) {
  const started = Date.now();
  while (Date.now() - started < DEADLINE_MS) {
    if (await look()) return;
    await new Promise((done) => setTimeout(done, 20));
  }
  throw new Error(`waited in vain: ${what}`);
}

async function raises(kind, call, saying = "") {
  try {
    await call();
  } catch (error) {
    assert.equal(error.constructor.name, kind, `${error.constructor.name}: ${error.message}`);
    assert.ok(error.message.includes(saying), error.message);
    return error;
  }
  assert.fail(`no ${kind} was thrown`);
}

async function within(options, use) {
  const box = await Sandbox.create(options);
  try {
    return await use(box);
  } finally {
    await box.kill();
  }
}

covers(
  ["Sandbox.create", "Sandbox.connect", "Sandbox.kill", "Sandbox.getInfo", "Sandbox.getFullInfo", "Sandbox.isRunning", "Sandbox.setTimeout", "Sandbox.list", "Commands.run"],
  async function aSandboxIsMadeUsedAndKilled() {
    const mark = `js-${Math.random()}`;
    const box = await Sandbox.create({ timeoutMs: 600_000, metadata: { mark }, envs: { GREETING: "hello" } });
    try {
      const done = await box.commands.run("echo $GREETING; echo aside >&2");
      assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["hello\n", "aside\n", 0]);
      assert.equal(await box.isRunning(), true);
      assert.equal((await box.getInfo()).metadata.mark, mark);
      assert.equal((await Sandbox.getFullInfo(box.sandboxId)).sandboxId, box.sandboxId);
      await box.setTimeout(1_800_000);
      assert.ok((await box.getInfo()).endAt - Date.now() > 1_300_000);
      const listed = await Sandbox.list({ query: { metadata: { mark } } }).nextItems();
      assert.deepEqual(listed.map((one) => one.sandboxId), [box.sandboxId]);
      const again = await Sandbox.connect(box.sandboxId);
      assert.equal((await again.commands.run("echo same")).stdout, "same\n");
    } finally {
      assert.equal(await box.kill(), true);
    }
    assert.equal(await box.isRunning(), false);
    assert.equal(await Sandbox.kill(box.sandboxId), false);
    await raises("SandboxNotFoundError", () => Sandbox.getInfo(box.sandboxId));
    await raises("AuthenticationError", () => Sandbox.create({ apiKey: `cove_${"0".repeat(64)}` }));
  },
);

covers(["Sandbox.pause", "Sandbox.betaPause", "Sandbox.createSnapshot", "Sandbox.listSnapshots", "Sandbox.deleteSnapshot", "Sandbox.fork"], async function statesAreKept() {
  await within({}, async (box) => {
    await box.files.write("/tmp/state", "kept");
    await box.pause();
    assert.equal(await box.isRunning(), false);
    const again = await Sandbox.connect(box.sandboxId);
    assert.equal(await again.files.read("/tmp/state"), "kept");
    await box.betaPause();
    await Sandbox.connect(box.sandboxId);
    const taken = await box.createSnapshot();
    const listed = await box.listSnapshots().nextItems();
    assert.ok(listed.some((one) => one.snapshotId === taken.snapshotId));
    const child = await Sandbox.create(taken.snapshotId);
    assert.equal(await child.files.read("/tmp/state"), "kept");
    await child.kill();
    assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), true);
    const children = await box.fork({ count: 2 });
    for (const fork of children) {
      assert.equal(await fork.files.read("/tmp/state"), "kept");
      await fork.kill();
    }
  });
});

covers(["Sandbox.getMetrics", "Sandbox.updateNetwork", "Sandbox.getHost"], async function settingsAreToldAndChanged() {
  await within({}, async (box) => {
    const [now] = await box.getMetrics();
    assert.ok(now.memUsed > 0 && now.cpuCount >= 1);
    await box.updateNetwork({ allowOut: ["example.com"], denyOut: [e2b.ALL_TRAFFIC] });
    const { network } = await box.getInfo();
    assert.deepEqual(network.allowOut, ["example.com"]);
    await raises("SandboxError", () => box.updateNetwork({ denyOut: ["10.0.0.0/8"] }), "denyOut");
    assert.ok(box.getHost(3000).startsWith(`3000-${box.sandboxId}.`));
  });
});

covers(
  ["Commands.list", "Commands.kill", "Commands.connect", "Commands.sendStdin", "Commands.closeStdin", "CommandHandle.wait", "CommandHandle.kill", "CommandHandle.disconnect", "CommandHandle.sendStdin", "CommandHandle.closeStdin", "CommandHandle.exitCode", "CommandHandle.error", "CommandHandle.stdout", "CommandHandle.stderr"],
  async function commandsAreFollowedFedAndEnded() {
    await within({}, async (box) => {
      const error = await raises("CommandExitError", () => box.commands.run("echo out; exit 7"));
      assert.deepEqual([error.exitCode, error.stdout], [7, "out\n"]);
      await raises("TimeoutError", () => box.commands.run("sleep 600", { timeoutMs: 1000 }));
      await raises("InvalidArgumentError", () => box.commands.run("true", { cwd: "/no/such/place" }));
      const seen = [];
      await box.commands.run("echo a; echo b >&2", { onStdout: (text) => seen.push(text), onStderr: (text) => seen.push(text) });
      assert.deepEqual(seen.sort(), ["a\n", "b\n"]);
      const cat = await box.commands.run("cat; echo end >&2", { background: true, stdin: true });
      await box.commands.sendStdin(cat.pid, "one ");
      await cat.sendStdin("two");
      assert.ok((await box.commands.list()).some((one) => one.pid === cat.pid));
      await cat.closeStdin();
      assert.equal((await cat.wait()).stdout, "one two");
      assert.deepEqual([cat.exitCode, cat.error, cat.stdout, cat.stderr], [0, undefined, "one two", "end\n"]);
      const wc = await box.commands.run("wc -c", { background: true, stdin: true });
      await box.commands.closeStdin(wc.pid);
      assert.equal((await wc.wait()).stdout, "0\n");
      const slow = await box.commands.run("echo begun; sleep 600", { background: true });
      await slow.disconnect();
      const again = await box.commands.connect(slow.pid);
      assert.equal(await again.kill(), true);
      await until("it is gone", async () => !(await box.commands.kill(slow.pid)));
    });
  },
);

covers(["Pty.create", "Pty.connect", "Pty.sendInput", "Pty.resize", "Pty.kill"], async function terminalsBehaveLikeTerminals() {
  await within({}, async (box) => {
    let seen = "";
    const onData = (bytes) => (seen += new TextDecoder().decode(bytes));
    const terminal = await box.pty.create({ cols: 80, rows: 24, onData });
    await box.pty.resize(terminal.pid, { cols: 111, rows: 33 });
    await box.pty.sendInput(terminal.pid, new TextEncoder().encode("stty size; exit 0\n"));
    assert.equal((await terminal.wait()).exitCode, 0);
    assert.ok(seen.includes("33 111"), seen);
    const other = await box.pty.create({ cols: 80, rows: 24, onData });
    await box.pty.connect(other.pid, { onData });
    assert.equal(await box.pty.kill(other.pid), true);
  });
});

covers(
  ["Filesystem.read", "Filesystem.write", "Filesystem.writeFiles", "Filesystem.list", "Filesystem.makeDir", "Filesystem.rename", "Filesystem.remove", "Filesystem.exists", "Filesystem.getInfo", "Filesystem.watchDir", "WatchHandle.stop"],
  async function filesAreKept() {
    await within({}, async (box) => {
      await box.files.write("/tmp/dir/a ü.txt", "text");
      assert.equal(await box.files.read("/tmp/dir/a ü.txt"), "text");
      const bytes = new Uint8Array(70_000).map((_, at) => at);
      await box.files.write("/tmp/dir/blob", bytes.buffer);
      assert.deepEqual(await box.files.read("/tmp/dir/blob", { format: "bytes" }), bytes);
      await box.files.writeFiles([{ path: "/tmp/dir/1", data: "1" }, { path: "/tmp/dir/2", data: "2" }]);
      assert.equal((await box.files.list("/tmp/dir")).length, 4);
      assert.equal(await box.files.makeDir("/tmp/dir/sub"), true);
      assert.equal(await box.files.makeDir("/tmp/dir/sub"), false);
      assert.equal((await box.files.rename("/tmp/dir/1", "/tmp/dir/3")).path, "/tmp/dir/3");
      assert.equal((await box.files.getInfo("/tmp/dir/3")).size, 1);
      const events = [];
      const watch = await box.files.watchDir("/tmp/dir", (event) => events.push(`${event.type} ${event.name}`));
      await box.files.write("/tmp/dir/new", "x");
      await until("the change is told", () => events.some((event) => event.endsWith(" new")));
      await watch.stop();
      await box.files.remove("/tmp/dir");
      assert.equal(await box.files.exists("/tmp/dir"), false);
      await raises("FileNotFoundError", () => box.files.read("/nope"));
      await raises("InvalidArgumentError", () => box.files.list("/etc/hostname"));
    });
  },
);

covers(["Sandbox.downloadUrl", "Sandbox.uploadUrl"], async function linksAreSigned() {
  await within({}, async (box) => {
    const form = new FormData();
    form.append("file", new Blob(["by link"]), "up");
    const sent = await fetch(await box.uploadUrl("/tmp/up"), { method: "POST", body: form });
    assert.equal(sent.status, 200);
    const url = await box.downloadUrl("/tmp/up", { useSignatureExpiration: 60_000 });
    assert.equal(await (await fetch(url)).text(), "by link");
    assert.equal((await fetch(url.replace("%2Fup", "%2Fother").replace("/up", "/other"))).status, 401);
  });
});

covers(
  ["Git.clone", "Git.init", "Git.remoteAdd", "Git.remoteGet", "Git.status", "Git.branches", "Git.createBranch", "Git.checkoutBranch", "Git.deleteBranch", "Git.add", "Git.commit", "Git.reset", "Git.restore", "Git.push", "Git.pull", "Git.setConfig", "Git.getConfig", "Git.configureUser", "Git.dangerouslyAuthenticate"],
  async function gitWorksInside() {
    await within({}, async (box) => {
      const { git } = box;
      const repo = "/tmp/repo";
      await box.commands.run("git init -q --bare /tmp/far.git && git -C /tmp/far.git symbolic-ref HEAD refs/heads/main");
      await git.init(repo, { initialBranch: "main" });
      await git.configureUser("Ada", "ada@example.com");
      await git.setConfig("core.pager", "cat", { scope: "local", path: repo });
      assert.equal(await git.getConfig("core.pager", { scope: "local", path: repo }), "cat");
      await box.files.write(`${repo}/a`, "1");
      await git.add(repo);
      await git.commit(repo, "first");
      assert.equal((await git.status(repo)).fileStatus.length, 0);
      await git.remoteAdd(repo, "origin", "/tmp/far.git");
      assert.equal(await git.remoteGet(repo, "origin"), "/tmp/far.git");
      await git.push(repo, { remote: "origin", branch: "main", setUpstream: true });
      await git.clone("/tmp/far.git", { path: "/tmp/copy" });
      await git.pull(repo);
      await git.createBranch(repo, "side");
      await git.checkoutBranch(repo, "main");
      assert.deepEqual((await git.branches(repo)).branches.sort(), ["main", "side"]);
      await git.deleteBranch(repo, "side");
      await box.files.write(`${repo}/a`, "spoilt");
      await git.restore(repo, { paths: ["a"] });
      await git.reset(repo, { mode: "hard", target: "HEAD" });
      assert.equal(await box.files.read(`${repo}/a`), "1");
      await git.dangerouslyAuthenticate({ username: "ada", password: "secret", host: "git.example" });
    });
  },
);

covers(["CodeSandbox.runCode", "CodeSandbox.createCodeContext", "CodeSandbox.listCodeContexts", "CodeSandbox.removeCodeContext"], async function codeRunsInContexts() {
  const box = await code.Sandbox.create("base");
  try {
    await box.runCode("x = 20");
    const done = await box.runCode("print('said'); x * 2 + 2");
    assert.deepEqual([done.text, done.logs.stdout], ["42", ["said\n"]]);
    assert.equal((await box.runCode("1 / 0")).error.name, "ZeroDivisionError");
    const context = await box.createCodeContext({ cwd: "/tmp" });
    assert.equal((await box.runCode("'x' in globals()", { context })).text, "False");
    assert.ok((await box.listCodeContexts()).some((one) => one.id === context.id));
    await box.removeCodeContext(context);
  } finally {
    await box.kill();
  }
});

refuses("a context's id is its process's; remove it and make another", ["CodeSandbox.restartCodeContext"], async function contextsAreNotRestarted() {
  const box = await code.Sandbox.create("base");
  try {
    const context = await box.createCodeContext();
    await raises("SandboxError", () => box.restartCodeContext(context), "501");
  } finally {
    await box.kill();
  }
});

covers(["Sandbox.getMcpUrl", "Sandbox.getMcpToken"], async function aGatewayIsStartedByTheClient() {
  await raises("SandboxError", () => Sandbox.create("base", { mcp: { x: {} } }), "MCP gateway");
  await within({}, async (box) => {
    await box.files.write("/etc/mcp-gateway/.token", "told", { user: "root" });
    assert.ok(box.getMcpUrl().endsWith("/mcp"));
    assert.equal(await box.getMcpToken(), "told");
  });
});

covers(["Template.exists", "Template.aliasExists"], async function namesThatCanBeBegunFromExist() {
  assert.equal(await e2b.Template.exists("base"), true);
  assert.equal(await e2b.Template.aliasExists("no-such-template"), false);
});

covers(
  ["Template.build", "Template.buildInBackground", "Template.getBuildStatus", "Template.assignTags", "Template.removeTags", "Template.getTags"],
  async function templatesAreBuiltAndTagged() {
    const name = `js-${Math.random().toString(36).slice(2, 10)}`;
    const context = mkdtempSync(`${tmpdir()}/cove-e2b-`);
    try {
      mkdirSync(`${context}/folder`);
      writeFileSync(`${context}/folder/test.txt`, "from the context");
      symlinkSync("test.txt", `${context}/folder/link.txt`);
      const template = e2b.Template({ fileContextPath: context })
        .fromBaseImage()
        .copy("folder/*", "folder")
        .runCmd(`grep -q context folder/link.txt && : ${name}`)
        .setStartCmd("echo $$ > /tmp/pid; exec sleep 1000000", e2b.waitForFile("/tmp/pid"));
      const logs = [];
      const made = await e2b.Template.build(template, name, { cpuCount: 1, memoryMB: 512, onBuildLogs: (entry) => logs.push(entry.message) });
      assert.ok(logs.some((message) => message.includes("[builder ")), logs.join());
      const box = await Sandbox.create(name);
      assert.equal((await box.commands.run("kill -0 $(cat /tmp/pid) && whoami && cat folder/test.txt")).stdout, "user\nfrom the context");
      await box.kill();
      assert.equal((await e2b.Template.assignTags(name, ["v2"])).buildId, made.buildId);
      await e2b.Template.removeTags(name, ["v2"]);
      assert.deepEqual((await e2b.Template.getTags(name)).map((one) => one.tag), ["default"]);
      const again = await e2b.Template.buildInBackground(e2b.Template().fromTemplate(name).runCmd("exit 4"), name);
      await until("the build ends", async () => (await e2b.Template.getBuildStatus(again)).status !== "building");
      const failed = await e2b.Template.getBuildStatus(again);
      assert.ok(failed.status === "error" && failed.reason.message.includes("exit status 4"), failed.reason?.message);
    } finally {
      rmSync(context, { recursive: true });
      const headers = { "X-API-KEY": process.env.E2B_API_KEY };
      await fetch(`${process.env.E2B_API_URL}/templates/${name}`, { method: "DELETE", headers });
    }
  },
);

covers(
  ["create", "connect", "getInfo", "list", "destroy", "makeDir", "exists", "updateMetadata", "readFile", "writeFile", "remove"].map((name) => `Volume.${name}`),
  async function volumesAreMadeFilledAndMounted() {
    const name = `Js_${Math.random().toString(36).slice(2, 10)}`;
    const volume = await e2b.Volume.create(name);
    try {
      assert.equal(volume.name, name);
      const again = await e2b.Volume.connect(volume.volumeId);
      assert.equal((await e2b.Volume.getInfo(volume.volumeId)).name, name);
      assert.ok((await e2b.Volume.list()).some((one) => one.volumeId === volume.volumeId));
      assert.equal((await volume.makeDir("/a/b", { mode: 0o755, force: true })).mode & 0o777, 0o755);
      await again.writeFile("/a/b/f", "text ü");
      assert.equal(await volume.readFile("/a/b/f"), "text ü");
      assert.deepEqual((await volume.list("/a", { depth: 2 })).map((one) => one.path), ["/a/b", "/a/b/f"]);
      assert.equal((await volume.updateMetadata("/a/b/f", { mode: 0o600 })).mode, 0o600);
      assert.equal((await volume.getInfo("/a/b/f")).uid, 9090);
      await raises("VolumeError", () => volume.writeFile("/a/b/f", "again"), "already exists");
      await within({ volumeMounts: { "/data": name } }, async (box) => {
        await box.commands.run("cp /data/a/b/f /tmp/f || true; echo inside > /data/inside", { user: "root" });
        assert.equal(await volume.readFile("/inside"), "inside\n");
        assert.deepEqual((await box.getInfo()).volumeMounts.map((mount) => [mount.name, mount.path]), [[name, "/data"]]);
      });
      await volume.remove("/a");
      assert.equal(await volume.exists("/a"), false);
    } finally {
      assert.equal(await e2b.Volume.destroy(volume.volumeId), true);
    }
  },
);

refuses(
  "Cove's secrets are not kept by this dialect",
  ["create", "update", "getInfo", "list", "exists", "destroy", "fill", "iamToken"].map((name) => `Secret.${name}`),
  async function secretsAreNotKept() {
    await raises("SecretError", () => e2b.Secret.create("mine", "value"), "secrets");
    await raises("SecretError", () => e2b.Secret.getInfo("mine"), "secrets");
  },
);

// Written in TypeScript as private or internal; the language they become has no such word.
const INTERNAL = new Set([
  "Sandbox.resolveApiOpts", "Sandbox.fileUrl", "Sandbox.createSandbox", "Sandbox.forkSandbox", "Sandbox.connectSandbox",
  "Sandbox.resolveOpts", "Commands.supportsStdinClose", "Commands.start", "CommandHandle.flushDecoders",
  "CommandHandle.iterateEvents", "CommandHandle.handleEvents", "WatchHandle.iterateEvents", "WatchHandle.handleEvents",
  "Git.runGit", "Git.runShell", "Git.getRemoteUrl", "Git.resolveRemoteName", "Git.withRemoteCredentials", "Git.hasUpstream",
  "CodeSandbox.jupyterUrl", "CodeSandbox.getJupyterRequestUrl", "CodeSandbox.includeDiagnostics", "CodeSandbox.handleRequestError",
]);

function own(object) {
  const skipped = ["constructor", "length", "name", "prototype", "boundOpts"];
  return Object.getOwnPropertyNames(object).filter((name) => !name.startsWith("_") && !name.startsWith("default") && !skipped.includes(name));
}

async function methods() {
  const found = new Set();
  for (let one = Sandbox; one?.name; one = Object.getPrototypeOf(one)) own(one).forEach((name) => found.add(`Sandbox.${name}`));
  for (let one = Sandbox.prototype; one !== Object.prototype; one = Object.getPrototypeOf(one)) own(one).forEach((name) => found.add(`Sandbox.${name}`));
  own(code.Sandbox.prototype).forEach((name) => found.add(`CodeSandbox.${name}`));
  for (const title of ["Volume", "Secret"]) [...own(e2b[title]), ...own(e2b[title].prototype)].forEach((name) => found.add(`${title}.${name}`));
  // The rest of a template writes it down and asks nobody.
  own(e2b.Template).filter((name) => !name.startsWith("to")).forEach((name) => found.add(`Template.${name}`));
  await within({}, async (box) => {
    const command = await box.commands.run("sleep 600", { background: true });
    const watch = await box.files.watchDir("/tmp", () => {});
    const parts = { Commands: box.commands, CommandHandle: command, Pty: box.pty, Filesystem: box.files, WatchHandle: watch, Git: box.git };
    for (const [title, part] of Object.entries(parts)) own(Object.getPrototypeOf(part)).forEach((name) => found.add(`${title}.${name}`));
    await watch.stop();
    await command.kill();
  });
  return [...found].filter((name) => !INTERNAL.has(name));
}

let failed = 0;
const there = await methods();
const said = new Set([...works.keys(), ...refused.keys()]);
for (const name of there.filter((name) => !said.has(name))) {
  console.log(`nothing is said of ${name}`);
  failed += 1;
}
for (const name of [...said].filter((name) => !there.includes(name))) {
  console.log(`there is no ${name}`);
  failed += 1;
}
for (const check of checks) {
  try {
    await check();
    console.log(`ok      ${check.name}`);
  } catch (error) {
    console.log(`FAILED  ${check.name}\n${error.stack}`);
    failed += 1;
  }
}
const at = process.argv.indexOf("--table");
if (at > 0) {
  const version = (name) => JSON.parse(readFileSync(`${modules.resolve(name).replace(/\/dist\/.*/, "")}/package.json`)).version;
  const rows = there.sort().map((name) => `| \`${name}\` | ${refused.has(name) ? `refused: ${refused.get(name)}` : "works"} |`);
  const title = ["e2b", "@e2b/code-interpreter"].map((name) => `\`${name}\` ${version(name)}`).join(" and ");
  writeFileSync(process.argv[at + 1], `## JavaScript: ${title}\n\n| method | |\n|---|---|\n${rows.join("\n")}\n`);
}
process.exit(failed ? 1 : 0);
