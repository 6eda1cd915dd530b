/** The behaviour that all SDKs share: `sdk/vectors`, run by the tests of each. */

import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, describe, test } from "node:test";

import * as cove from "../src/index.js";
import { Client, ConfigurationError, CoveError, Image, Sandbox, Template, Volume } from "../src/index.js";
import { camel } from "../src/names.js";
import { resolve } from "../src/settings.js";
import { pack, unpack } from "../src/trees.js";
import { misbehaving } from "./misbehaving.js";
import { SMALL } from "./small.js";

type Values = Record<string, unknown>;
interface Failure {
  error?: string;
  code?: string;
  says?: string[];
}
interface Step {
  on?: string;
  do: string;
  args?: unknown[];
  options?: Values;
  as?: string;
  collect?: "text" | "values";
  expect?: unknown;
  hides?: string;
  fails?: Failure;
}
interface Scenario {
  name: string;
  create?: Values;
  steps: Step[];
}
interface Wire {
  name: string;
  call: string;
  answers: { drop?: boolean; status: number; headers?: Record<string, string>; body?: unknown; text?: string }[];
  requests: number;
  one_key?: boolean;
  no_key?: boolean;
  same_body?: boolean;
  fails?: Failure;
}
interface Built {
  name: string;
  from?: unknown[];
  files?: Record<string, string>;
  steps: unknown[][];
  dockerfile: string;
  ignore?: string;
  archive?: Record<string, string>;
  fails?: string[];
}
interface Configured {
  name: string;
  contexts?: unknown;
  mode?: string;
  files?: Record<string, string>;
  env?: Record<string, string>;
  options?: Values;
  expect?: Values;
  fails?: string[];
  hides?: string;
}

function load<T>(name: string): T[] {
  return JSON.parse(readFileSync(`${process.env["COVE_SOURCE"]}/sdk/vectors/${name}`, "utf8")) as T[];
}

/** Methods whose arguments by position may be left out, and how many there are. */
const POSITIONS: Record<string, number> = { terminal: 1, "git.add": 2, "files.find": 2, "code.context": 1, fork: 1, "files.chmod": 2, files: 1 };

function name(text: string): string {
  return text.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

function field(value: unknown, path: string): unknown {
  return path.split(".").reduce((found, part) => (found as Values)[part in (found as object) ? part : name(part)], value);
}

function only(value: unknown, key: string): string | undefined {
  const keys = typeof value === "object" && value !== null && !Array.isArray(value) ? Object.keys(value) : [];
  return keys.length === 1 && keys[0] === key ? String((value as Values)[key]) : undefined;
}

function bytes(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}

/** An argument; the names of options are this package's, those of a caller's own maps stay. */
function argument(value: unknown, known: Values): unknown {
  const reference = only(value, "$");
  if (reference !== undefined) return field(known, reference);
  const encoded = only(value, "base64");
  if (encoded !== undefined) return bytes(encoded);
  if (Array.isArray(value)) return value.map((item) => argument(item, known));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, argument(item, known)]));
}

/** Options that have another name here. */
const RENAMED: Record<string, string> = { source: "from" };

function options(values: Values, known: Values): Values {
  return Object.fromEntries(
    Object.entries(values).map(([key, value]) => {
      // How a volume is mounted is said by this package's own options, too.
      const mount = (how: unknown): unknown => (only(how, "$") === undefined ? options(how as Values, known) : argument(how, known));
      if (key !== "volumes") return [RENAMED[key] ?? name(key), argument(value, known)];
      return [key, Object.fromEntries(Object.entries(value as Values).map(([path, how]) => [path, mount(how)]))];
    }),
  );
}

function agree(told: unknown, wanted: unknown, known: Values, where: string): void {
  const pattern = only(wanted, "matches");
  const reference = only(wanted, "$");
  const encoded = only(wanted, "base64");
  if (pattern !== undefined) assert.match(String(told), new RegExp(pattern), where);
  else if (reference !== undefined) assert.equal(told, field(known, reference), where);
  else if (encoded !== undefined) assert.deepEqual(told, bytes(encoded), where);
  else if (Array.isArray(wanted)) {
    assert.ok(Array.isArray(told) && told.length === wanted.length, `${where}: ${JSON.stringify(told)}`);
    wanted.forEach((item, index) => agree(told[index], item, known, `${where}[${index}]`));
  } else if (typeof wanted === "object" && wanted !== null) {
    for (const [key, item] of Object.entries(wanted)) agree(field(told, key), item, known, `${where}.${key}`);
  } else assert.equal(told ?? null, wanted, where);
}

function failed(error: unknown, wanted: Failure, where: string): void {
  assert.ok(error instanceof Error, where);
  if (wanted.error !== undefined) {
    const kind = (cove as Values)[wanted.error] as typeof Error;
    assert.ok(error instanceof kind, `${where}: ${error.name}: ${error.message}`);
    if (wanted.error !== "FileError" && wanted.error !== "ApiError") assert.equal(error.name, wanted.error);
  }
  if (wanted.code !== undefined) assert.equal((error as cove.ApiError).code, wanted.code, where);
  for (const part of wanted.says ?? []) assert.ok(error.message.includes(part), `${where}: ${error.message}`);
}

async function collected(result: unknown, how: "text" | "values"): Promise<unknown> {
  const values: unknown[] = [];
  for await (const value of result as AsyncIterable<unknown>) values.push(value);
  if (how === "values") return values;
  const texts = { stdout: "", stderr: "" };
  for (const value of values as cove.Output[]) texts[value.stream] += value.text;
  return texts;
}

async function follow(known: Values, steps: Step[]): Promise<void> {
  for (const [index, step] of steps.entries()) {
    const where = `step ${index + 1}, ${step.do}`;
    const path = step.do.split(".").map(name);
    const method = path.pop() ?? "";
    const owner = path.reduce((found, part) => (found as Values)[part], known[step.on ?? "box"]) as Record<string, (...args: unknown[]) => unknown>;
    const args = (step.args ?? []).map((value) => argument(value, known));
    if (step.on === "Sandbox" && method === "create") args.push({ ...SMALL, ...options(step.options ?? {}, known) });
    else if (step.options !== undefined) {
      while (args.length < (POSITIONS[step.do] ?? 0)) args.push(undefined);
      args.push(options(step.options, known));
    }
    let result: unknown;
    try {
      assert.equal(typeof owner[method], "function", where);
      result = await owner[method]?.(...args);
      if (step.collect !== undefined) result = await collected(result, step.collect);
    } catch (error) {
      if (step.fails === undefined) throw error;
      failed(error, step.fails, where);
      continue;
    }
    assert.equal(step.fails, undefined, `${where}: it worked`);
    if (step.hides !== undefined) assert.ok(!JSON.stringify(result).includes(step.hides), `${where}: it shows ${step.hides}`);
    if (step.as !== undefined) known[step.as] = result;
    if ("expect" in step) agree(result, step.expect, known, where);
  }
}

describe("against a real server", { concurrency: 4 }, () => {
  for (const scenario of load<Scenario>("sandboxes.json")) {
    test(scenario.name, async () => {
      await using box = await Sandbox.create({ ...SMALL, ...(options(scenario.create ?? {}, {}) as cove.SandboxOptions) });
      await follow({ box }, scenario.steps);
    });
  }

  const client = new Client();
  const other = new Client();
  after(() => Promise.all([client.close(), other.close()]));
  for (const scenario of load<Scenario>("resources.json")) {
    test(scenario.name, async () => {
      const unique = `vectors-${Math.random().toString(16).slice(2, 10)}`;
      const names = { name: unique, other_name: `${unique}-other` };
      await follow({ client, other, Sandbox, Volume, ...names }, scenario.steps);
    });
  }
});

const SANDBOX = {
  id: "sbx_x",
  state: "running",
  image: "debian",
  created_at: "2026-01-01T00:00:00Z",
  generation: 1,
};

async function* pieces(): AsyncGenerator<Uint8Array> {
  yield new TextEncoder().encode("one");
  yield new TextEncoder().encode("two");
}

async function ask(client: Client, call: string): Promise<unknown> {
  const box = new Sandbox(client, camel<cove.SandboxInfo>(SANDBOX), true);
  switch (call) {
    case "images":
      return client.images();
    case "create":
      return Sandbox.create({ client });
    case "delete":
      return box.delete();
    case "exec":
      return box.run("true");
    case "upload":
      return box.files.write("/srv/x", pieces());
    case "upload_file":
      return box.files.upload(new URL(import.meta.url).pathname, "/srv/x");
    default:
      throw new Error(`${call} is not known here`);
  }
}

describe("against a server that misbehaves", { concurrency: 4 }, () => {
  for (const vector of load<Wire>("wire.json")) {
    test(vector.name, async () => {
      await using server = await misbehaving((_, response, number) => {
        const answer = vector.answers[Math.min(number, vector.answers.length) - 1];
        if (answer === undefined || answer.drop) response.destroy();
        else response.writeHead(answer.status, answer.headers ?? {}).end(answer.text ?? JSON.stringify(answer.body));
      });
      await using client = new Client({ url: server.url, apiKey: "key" });
      let thrown: unknown;
      await ask(client, vector.call).catch((error: unknown) => (thrown = error));
      if (vector.fails === undefined) assert.equal(thrown, undefined);
      else failed(thrown, vector.fails, vector.call);
      assert.equal(server.asked.length, vector.requests);
      const keys = new Set(server.asked.map((one) => one.key));
      if (vector.one_key) assert.ok(keys.size === 1 && !keys.has(undefined));
      const bodies = new Set(server.asked.map((one) => one.body));
      if (vector.same_body) assert.ok(bodies.size === 1 && !bodies.has(""));
      if (vector.no_key) assert.deepEqual([...keys], [undefined]);
    });
  }
});

function write(directory: string, files: Record<string, string>): void {
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(directory, path)), { recursive: true });
    writeFileSync(join(directory, path), content);
  }
}

/** Runs with an empty directory. */
async function within(body: (directory: string) => Promise<void>): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), "cove-image-"));
  try {
    await body(directory);
  } finally {
    rmSync(directory, { recursive: true });
  }
}

function made(vector: Built, directory: string): Image {
  write(directory, vector.files ?? {});
  const call = (on: unknown, step: unknown[]): Image => {
    const [method, ...args] = step.map((value) => {
      const file = only(value, "file");
      return file === undefined ? value : join(directory, file);
    });
    return (on as Record<string, (...args: unknown[]) => Image>)[name(String(method))]!(...args);
  };
  return vector.steps.reduce<Image>((image, step) => {
    const before = image.dockerfile;
    const following = call(image, step);
    assert.equal(image.dockerfile, before);
    return following;
  }, call(Image, vector.from ?? ["debian"]));
}

/** The files of what a build sends. */
async function archived(image: Image, into: string): Promise<Record<string, string>> {
  const { context, sources } = image._parts;
  await unpack(pack(context, sources), into);
  const paths = (readdirSync(into, { recursive: true }) as string[]).filter((path) => statSync(join(into, path)).isFile());
  return Object.fromEntries(paths.map((path) => [path, readFileSync(join(into, path), "utf8")]));
}

describe("settings", () => {
  for (const vector of load<Configured>("settings.json")) {
    test(vector.name, () =>
      within(async (directory) => {
        const here = (text: string): string => text.replaceAll("{dir}", directory);
        const files = { ...vector.files };
        if (vector.contexts !== undefined) files["home/.config/cove/contexts.json"] = JSON.stringify(vector.contexts);
        write(directory, files);
        for (const file of Object.keys(files)) chmodSync(join(directory, file), parseInt(vector.mode ?? "0600", 8));
        const given = options(vector.options ?? {}, {});
        const before = { ...process.env };
        try {
          for (const variable of Object.keys(process.env)) {
            if (variable.startsWith("COVE_") || variable === "XDG_CONFIG_HOME") delete process.env[variable];
          }
          for (const [variable, value] of Object.entries({ HOME: "{dir}/home", ...vector.env })) process.env[variable] = here(value);
          const { fails, hides } = vector;
          if (fails !== undefined) {
            assert.throws(
              () => resolve(given),
              (error) => {
                assert.ok(error instanceof ConfigurationError);
                for (const part of fails) assert.ok(error.message.includes(here(part)), error.message);
                return hides === undefined || !error.message.includes(hides);
              },
            );
            return;
          }
          agree(resolve(given), vector.expect, {}, "settings");
          assert.equal(new Client(given).url, resolve(given).url);
        } finally {
          process.env = before;
        }
      }),
    );
  }
});

describe("an image is this Dockerfile", () => {
  for (const vector of load<Built>("images.json")) {
    test(vector.name, () =>
      within(async (directory) => {
        const { fails } = vector;
        if (fails !== undefined) {
          assert.throws(
            () => made(vector, join(directory, "here")),
            (error) => error instanceof CoveError && fails.every((part) => error.message.includes(name(part))),
          );
          return;
        }
        const image = made(vector, join(directory, "here"));
        assert.equal(image.dockerfile, vector.dockerfile);
        assert.equal(image._parts.ignore, vector.ignore);
        assert.deepEqual(await archived(image, join(directory, "there")), vector.archive ?? {});
      }),
    );
  }
});

test("what no Dockerfile can say is refused", () =>
  within(async (directory) => {
    assert.throws(() => Image.debian().run(["echo", "\ud800"]), /Unicode/);
    assert.throws(() => Image.debian().copy(join(directory, "missing"), "/srv/"), /ENOENT/);
    assert.throws(() => Image.debian().copy("/", "/srv/"), /neither a file nor a directory/);
    write(directory, { Dockerfile: "FROM debian" });
    symlinkSync("nowhere", join(directory, ".cove-copy"));
    const image = Image.fromDockerfile(join(directory, "Dockerfile")).copy(join(directory, "Dockerfile"), "/srv/");
    assert.throws(() => image._parts, /the context has \.cove-copy/);
    await assert.rejects(Template.build("x", { image, context: directory }), /has its own/);
    await assert.rejects(Sandbox.create({ image: image as unknown as string }), /Template\.build/);
  }));

test("links are followed only where a copy names them", () =>
  within(async (directory) => {
    write(directory, { "real/file": "text" });
    symlinkSync("/etc/passwd", join(directory, "real/inner"));
    symlinkSync("real", join(directory, "link"));
    const image = Image.debian().copy(join(directory, "link"), "/srv");
    const bytes = [];
    for await (const piece of pack(undefined, image._parts.sources)) bytes.push(piece);
    const entries = bytes.filter((piece) => piece.length === 512 && Buffer.from(piece.subarray(257, 262)).toString() === "ustar");
    const kinds = entries.map((piece) => `${Buffer.from(piece.subarray(0, 100)).toString().replace(/\0+$/, "")} ${String.fromCharCode(piece[156]!)}`);
    assert.deepEqual(kinds, [".cove-copy/0/link/ 5", ".cove-copy/0/link/file 0", ".cove-copy/0/link/inner 2"]);
  }));
