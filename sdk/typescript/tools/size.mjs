// What the package adds to a program: bundled, minified and gzipped. Fails above the limit.
import { gzipSync } from "node:zlib";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const LIMIT_BYTES = 30 * 1024;

const bundle = await build({
  entryPoints: [fileURLToPath(new URL("../dist/index.js", import.meta.url))],
  bundle: true,
  minify: true,
  format: "esm",
  platform: "node",
  target: "node20",
  write: false,
});
const size = gzipSync(bundle.outputFiles[0].contents, { level: 9 }).length;
console.log(`${size} bytes minified and gzipped, of at most ${LIMIT_BYTES}`);
process.exit(size > LIMIT_BYTES ? 1 : 0);
