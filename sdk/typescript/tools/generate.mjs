// Writes src/openapi.ts, the types of the server's contract, from its OpenAPI document.
//
//   node tools/generate.mjs URL-OR-FILE           writes the file
//   node tools/generate.mjs URL-OR-FILE --check   fails when the file is not current
import { readFile, writeFile } from "node:fs/promises";
import openapi, { astToString } from "openapi-typescript";

const [source, mode] = process.argv.slice(2);
if (!source) {
  console.error("usage: node tools/generate.mjs URL-OR-FILE [--check]");
  process.exit(2);
}
const text = /^https?:/.test(source) ? await (await fetch(source)).text() : await readFile(source, "utf8");
const document = JSON.parse(text);
// The client writes its own paths; what it needs are the bodies.
const nodes = await openapi({ ...document, paths: {} }, { silent: true });
const generated = `// Written by tools/generate.mjs from the server's OpenAPI document. Do not edit.\n\n${astToString(nodes)}`;
const target = new URL("../src/openapi.ts", import.meta.url);
if (mode === "--check") {
  if ((await readFile(target, "utf8")) !== generated) {
    console.error("src/openapi.ts is not current; run scripts/test-typescript --write");
    process.exit(1);
  }
} else {
  await writeFile(target, generated);
}
