/** The package itself: names follow the contract, codes have classes, every public thing is explained. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { BY_CODE } from "../src/errors.js";
import { Client, CoveError } from "../src/index.js";
import { camel, snake } from "../src/names.js";

interface Schema {
  $ref?: string;
  format?: string;
  type?: string | string[];
  additionalProperties?: unknown;
  properties?: Record<string, Schema>;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
}

/** Every property of every schema. */
function* properties(schema: Schema): Generator<[string, Schema]> {
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    yield [name, property];
    yield* properties(property);
  }
  for (const part of [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])]) yield* properties(part);
}

async function contract(): Promise<Record<string, Schema>> {
  const document = (await (await fetch(`${Client.default().url}/openapi.json`)).json()) as {
    components: { schemas: Record<string, Schema> };
  };
  return document.components.schemas;
}

function isTime(schema: Schema): boolean {
  return schema.$ref?.endsWith("/Timestamp") === true || (schema.anyOf ?? schema.oneOf ?? []).some(isTime);
}

test("what the contract calls a time is one here, and what it calls a map keeps its keys", async () => {
  let times = 0;
  let maps = 0;
  for (const [schema, definition] of Object.entries(await contract())) {
    for (const [name, property] of properties(definition)) {
      const where = `${schema}.${name}`;
      // Queries are the caller's; what is tested is what comes from the server.
      if (isTime(property) && !schema.endsWith("Query")) {
        assert.match(name, /(^|_)at$/, where);
        times++;
      }
      if (typeof property.additionalProperties === "object" || property.additionalProperties === true) {
        assert.ok(["args", "data", "env", "labels", "options", "taints", "tolerations"].includes(name), where);
        maps++;
      }
      assert.equal(Object.keys(snake(camel({ [name]: 1 })) as object)[0], name, where);
    }
  }
  assert.ok(times > 10 && maps > 3, `${times} times, ${maps} maps`);
});

test("nulls are left out, times are dates, and a caller's own keys stay", () => {
  const told = camel<Record<string, unknown>>({
    created_at: "2026-01-02T03:04:05.678Z",
    name: null,
    labels: { team_name: "x" },
    io_read_mb_s: 1,
    list: [{ a_b: 1 }],
  });
  assert.deepEqual(told, {
    createdAt: new Date("2026-01-02T03:04:05.678Z"),
    labels: { team_name: "x" },
    ioReadMbS: 1,
    list: [{ aB: 1 }],
  });
  assert.throws(() => camel({ at: "yesterday" }), CoveError);
});

test("every error code of the server has a class, and no other has", () => {
  const pages = readdirSync(`${process.env["COVE_SOURCE"]}/docs/errors`);
  const codes = pages.map((page) => page.replace(/\.md$/, "")).filter((code) => code !== "README");
  assert.deepEqual(codes.sort(), Object.keys(BY_CODE).sort());
});

test("the two SDKs have the same classes", () => {
  const python = readFileSync(`${process.env["COVE_SOURCE"]}/sdk/python/src/cove/__init__.py`, "utf8");
  const all = /__all__ = \[(.*?)\]/s.exec(python)?.[1] ?? "";
  const names = [...all.matchAll(/"([A-Z]\w+)"/g)].map((match) => match[1] ?? "");
  const source = readFileSync(`${process.env["COVE_SOURCE"]}/sdk/typescript/src/index.ts`, "utf8");
  const types = readFileSync(`${process.env["COVE_SOURCE"]}/sdk/typescript/src/types.ts`, "utf8");
  const missing = names.filter(
    (name) => !name.startsWith("Async") && !new RegExp(`\\b${name}\\b`).test(source) && !new RegExp(`export (interface|type) ${name}\\b`).test(types),
  );
  assert.ok(names.length > 60);
  assert.deepEqual(missing, []);
});
