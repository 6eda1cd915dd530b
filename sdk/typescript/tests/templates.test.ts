/** Templates against a real server. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { BuildFailed, CoveError, Image, InUseError, NotFoundError, Sandbox, Template } from "../src/index.js";
import { SMALL } from "./small.js";

test("sandboxes begin from versions and tags of templates", async () => {
  const name = `ts-${Math.random().toString(16).slice(2, 10)}`;
  const [one, two] = await Sandbox.with(SMALL, async (box) => {
    await box.run("echo one > /state", { check: true });
    const first = await box.snapshot();
    await box.run("echo two > /state", { check: true });
    return [first, await box.snapshot()] as const;
  });
  const first = await Template.create(name, one, {
    env: { MODE: "fast" },
    workdir: "/tmp",
    memoryLimit: "200M",
    maxLifetime: 3600,
    resources: { pids: 100 },
  });
  assert.deepEqual([first.info.lifecycle.maxLifetimeS, first.info.resources.pids], [3600, 100]);
  // What JavaScript can give and the types forbid is not ignored.
  for (const wrong of [{ lifecycle: { max_lifetime_s: 1 } }, { tags: "stable" }]) {
    await assert.rejects(Template.create(name, one, wrong as object), CoveError);
  }
  const second = await Template.create(name, two.id, { tags: ["next"] });
  assert.deepEqual([first.version, second.version, first.info.tags], [1, 2, ["latest"]]);
  await Sandbox.with({ template: name }, async (box) => {
    assert.equal((await box.run("cat /state; echo $MODE; pwd")).stdout, "one\nfast\n/tmp\n");
    assert.equal(box.info.resources.memoryMb, 200);
  });
  await Sandbox.with({ template: name, pauseAfter: 60 }, async (box) => {
    assert.deepEqual([box.info.lifecycle.pauseAfterS, box.info.lifecycle.maxLifetimeS], [60, 3600]);
  });
  await Sandbox.with({ template: `${name}:next`, env: { MODE: "slow" } }, async (box) => {
    assert.equal((await box.run("cat /state; echo $MODE")).stdout, "two\nslow\n");
  });
  await second.tag("latest");
  assert.equal((await Template.get(name)).version, 2);
  await second.untag("next");
  assert.deepEqual(second.info.tags, ["latest"]);
  await assert.rejects(Template.get(`${name}:next`), NotFoundError);
  assert.deepEqual((await Template.list({ name })).map((each) => each.version), [2, 1]);
  await assert.rejects(one.delete(), InUseError);
  await first.delete();
  await second.delete();
  await one.delete();
  await two.delete();
});

test("templates are built from Dockerfiles, and a build that fails says why", async () => {
  const name = `ts-${Math.random().toString(16).slice(2, 10)}`;
  const context = await mkdtemp(join(tmpdir(), "cove-build-"));
  try {
    await writeFile(join(context, "Dockerfile"), "FROM debian\nARG who\nCOPY note /note\nRUN echo $who >> /note\n");
    await writeFile(join(context, "note"), "hello\n");
    const steps: string[] = [];
    const template = await Template.build(name, {
      context,
      args: { who: "you" },
      network: "none",
      onLog: (line) => steps.push(line.type),
    });
    assert.ok(steps.length > 0);
    await Sandbox.with({ template }, async (box) => {
      assert.equal((await box.run("cat /note")).stdout, "hello\nyou\n");
    });
    await template.delete();
    await assert.rejects(Template.build(name, { dockerfile: "FROM debian\nRUN exit 3\n", network: "none" }), BuildFailed);
    await assert.rejects(Template.build(name, { dockerfile: "FROM debian", nocache: true } as object), CoveError);
    await assert.rejects(Template.build(name, {}), CoveError);
  } finally {
    await rm(context, { recursive: true });
  }
});

test("templates are built from images of steps, and arguments reach the tools as they are", async () => {
  const name = `ts-${Math.random().toString(16).slice(2, 10)}`;
  const hostile = "a b'c\"d $HOME \\ <<EOF";
  const directory = await mkdtemp(join(tmpdir(), "cove-image-"));
  try {
    await writeFile(join(directory, "na*me"), "file");
    const image = Image.debian()
      .copy(join(directory, "na*me"), "/srv/")
      .run(["sh", "-c", 'printf %s "$1" > /srv/said', "sh", hostile])
      .run("cat <<'END' > /srv/lines\none\ntwo\nEND")
      .env({ SAID: hostile })
      .workdir("/srv/my app")
      .user("nobody");
    const template = await Template.build(name, { image, network: "none" });
    await Sandbox.with({ template }, async (box) => {
      const said = await box.run('cat /srv/said; printf %s "$SAID"; pwd; cat /srv/lines /srv/na?me; id -un');
      assert.equal(said.stdout, `${hostile}${hostile}/srv/my app\none\ntwo\nfilenobody\n`);
    });
    await template.delete();
  } finally {
    await rm(directory, { recursive: true });
  }
});
