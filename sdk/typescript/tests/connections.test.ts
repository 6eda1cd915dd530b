/** Settings, certificates, pauses, and servers that say nothing. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import { Client, ConfigurationError, ConnectionError, RateLimitError } from "../src/index.js";
import { resolve } from "../src/settings.js";
import { Lines, pauseBefore } from "../src/wire.js";
import { json, misbehaving } from "./misbehaving.js";

const scratch = mkdtempSync(join(tmpdir(), "cove-connections-"));
after(() => rmSync(scratch, { recursive: true }));

test("settings come from arguments, then the environment, then the machine", () => {
  const before = { ...process.env };
  try {
    delete process.env["COVE_URL"];
    delete process.env["COVE_API_KEY"];
    delete process.env["COVE_CONTEXT"];
    process.env["COVE_DATA_DIR"] = scratch;
    assert.deepEqual([resolve().url, resolve().apiKey], ["http://127.0.0.1:7070", undefined]);
    writeFileSync(join(scratch, "url"), "http://127.0.0.1:9\n");
    writeFileSync(join(scratch, "root.key"), "secret\n");
    assert.deepEqual([resolve().url, resolve().apiKey], ["http://127.0.0.1:9", "secret"]);
    assert.equal(resolve({ url: "http://127.0.0.1:9/" }).apiKey, "secret");
    // The root key is sent to no other server.
    assert.equal(resolve({ url: "http://elsewhere.example" }).apiKey, undefined);
    process.env["COVE_URL"] = "http://elsewhere.example/";
    assert.deepEqual([resolve().url, resolve().apiKey], ["http://elsewhere.example", undefined]);
    process.env["COVE_API_KEY"] = "mine";
    assert.deepEqual([resolve().apiKey, resolve({ apiKey: "other" }).apiKey], ["mine", "other"]);
    for (const url of ["nowhere", "ftp://x", "http://", "http:///x"]) assert.throws(() => resolve({ url }), ConfigurationError);
  } finally {
    process.env = before;
  }
});

test("pauses grow and end", () => {
  const pauses = Array.from({ length: 19 }, (_, index) => pauseBefore(index + 1, undefined, 1));
  assert.deepEqual(pauses, [...pauses].sort((a, b) => a - b));
  assert.deepEqual([pauses[0], pauses.at(-1)], [50, 5000]);
  assert.equal(pauseBefore(1, new RateLimitError({ code: "rate_limited", message: "no", retryAfter: 1e9 })), 30_000);
});

test("lines may be cut anywhere", () => {
  const text = '{"a":"ü"}\n\n{"b":[1,2]}\n{"c":null}\n';
  for (let size = 1; size < 8; size++) {
    const lines = new Lines();
    const bytes = new TextEncoder().encode(text);
    const found: unknown[] = [];
    for (let at = 0; at < bytes.length; at += size) found.push(...lines.feed(bytes.subarray(at, at + size)));
    assert.deepEqual(found, [{ a: "ü" }, { b: [1, 2] }, { c: null }]);
  }
});

test("a server that is not there is an error that says where", async () => {
  const gone = await misbehaving(() => {});
  await gone[Symbol.asyncDispose]();
  await assert.rejects(new Client({ url: gone.url, apiKey: "key" }).images(), (error) => {
    assert.ok(error instanceof ConnectionError);
    assert.ok(error.message.includes(gone.url) && error.message.includes("COVE_URL"), error.message);
    return true;
  });
});

test("an answer that stops is given up after its patience", async () => {
  await using silent = await misbehaving(() => {});
  await using stopping = await misbehaving((_, response) => void response.writeHead(200).write('{"items"'));
  for (const { url } of [silent, stopping]) {
    const client = new Client({ url, apiKey: "key" });
    const call = { method: "POST", path: "/v1/x", patience: 0.1 } as const;
    await assert.rejects(client._json(call), (error) => error instanceof ConnectionError && /in time/.test(error.message));
  }
});

test("lists are read to their last page", async () => {
  await using server = await misbehaving((request, response) => {
    const cursor = new URL(request.url, "http://x").searchParams.get("cursor");
    json(response, 200, cursor === null ? { items: [{ id: "1" }], next_cursor: "more" } : { items: [{ id: "2" }] });
  });
  const client = new Client({ url: server.url, apiKey: "key" });
  const found: unknown[] = [];
  for await (const item of client._pages({ method: "GET", path: "/v1/x", query: { a: "b" } })) found.push(item);
  assert.deepEqual(found, [{ id: "1" }, { id: "2" }]);
  assert.deepEqual(server.asked.map((one) => one.url), ["/v1/x?a=b", "/v1/x?a=b&cursor=more"]);
});

test("a certificate of one's own is trusted when its file is named, and only then", async () => {
  const [key, certificate] = [join(scratch, "key.pem"), join(scratch, "certificate.pem")];
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"];
  const request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
  execFileSync("openssl", [...request, ...subject, "-keyout", key, "-out", certificate], { stdio: "ignore" });
  const server = createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, (_, response) => {
    json(response, 200, { items: [] });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const before = { ...process.env };
  try {
    await using trusting = new Client({ url, apiKey: "key", caFile: certificate });
    assert.deepEqual(await trusting.images(), []);
    await using other = new Client({ url, apiKey: "key" });
    await assert.rejects(other.images(), (error) => error instanceof ConnectionError && /not trusted.*COVE_CA_FILE/.test(error.message));
    await using missing = new Client({ url, apiKey: "key", caFile: join(scratch, "none.pem") });
    await assert.rejects(missing.images(), ConfigurationError);

    for (const name of ["COVE_URL", "COVE_API_KEY", "COVE_CA_FILE", "COVE_CONTEXT", "COVE_DATA_DIR"]) delete process.env[name];
    process.env["XDG_CONFIG_HOME"] = scratch;
    mkdirSync(join(scratch, "cove"), { mode: 0o700 });
    const login = { url, api_key: "key", ca_pem: `# Ü\n${readFileSync(certificate, "utf8")}` };
    const contexts = JSON.stringify({ current: "own", contexts: { own: login } });
    writeFileSync(join(scratch, "cove", "contexts.json"), contexts, { mode: 0o600 });
    assert.deepEqual(await Client.default().images(), []);
    await Client.default().close();
  } finally {
    process.env = before;
    server.closeAllConnections();
    server.close();
  }
});
