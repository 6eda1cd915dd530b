// Writes every TypeScript program of the README and of docs/typescript.md to a file of its own, so that it is
// compiled and run.
//
//   node tools/readme.mjs DIRECTORY
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

const pages = [new URL("../README.md", import.meta.url), `${process.env.COVE_SOURCE}/docs/typescript.md`];
const programs = pages.flatMap((page) => {
  const found = [...readFileSync(page, "utf8").matchAll(/^```ts\n(.*?)^```$/gms)].map((match) => match[1]);
  if (found.length === 0) throw new Error(`${page} has no programs`);
  return found;
});
mkdirSync(process.argv[2], { recursive: true });
programs.forEach((program, index) => {
  writeFileSync(`${process.argv[2]}/program${String(index + 1).padStart(2, "0")}.ts`, `${program}\nexport {};\n`);
});
