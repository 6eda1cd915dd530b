// Checks an unpacked package: it has what it names and nothing else, and its types hide nothing behind `any`.
//
//   node tools/package.mjs DIRECTORY
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

const root = process.argv[2];
const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const files = readdirSync(root, { recursive: true }).filter((name) => statSync(join(root, name)).isFile());
const wrong = files.filter((name) => !/^(package\.json|README\.md|LICENSE|dist\/\w+(\.d\.ts|\.js))$/.test(name));
const problems = wrong.map((name) => `${name} should not be in the package`);
for (const named of ["README.md", manifest.main, manifest.types, ...Object.values(manifest.exports["."])]) {
  if (!files.includes(named.replace(/^\.\//, ""))) problems.push(`${named} is missing`);
}
if (Object.keys({ ...manifest.dependencies, ...manifest.peerDependencies, ...manifest.optionalDependencies }).length > 0) {
  problems.push("it has dependencies at run time");
}
for (const name of files.filter((file) => file.endsWith(".d.ts"))) {
  const code = readFileSync(join(root, name), "utf8").replace(/\/\*.*?\*\//gs, "").replace(/\/\/.*$/gm, "");
  if (/\bany\b/.test(code)) problems.push(`${name} has \`any\``);
}
for (const name of files.filter((file) => file.endsWith(".js"))) {
  for (const [, from] of readFileSync(join(root, name), "utf8").matchAll(/^(?:import|export) .*?from "(.*?)";$/gm)) {
    if (!from.startsWith("./") && !from.startsWith("node:")) problems.push(`${name} imports ${from}`);
  }
}
for (const problem of problems) console.error(problem);
process.exit(problems.length > 0 ? 1 : 0);
