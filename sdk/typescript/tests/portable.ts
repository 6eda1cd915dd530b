// What the runtimes say about failed connections differs; what this package says does not. Run on all of them.
import { createServer, type AddressInfo } from "node:net";

import { Client, ConnectionError } from "cove";

/** An address where nobody listens any more. */
async function gone(): Promise<string> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  await new Promise((done) => server.close(done));
  return `http://127.0.0.1:${port}`;
}

const url = await gone();
try {
  await new Client({ url, apiKey: "key" }).images();
} catch (error) {
  const told = error instanceof ConnectionError && error.message.startsWith(`cannot reach ${url}: `);
  console.log(told ? "told where" : error);
}
// A command that was never sent is tried again; the pauses between six tries show it.
const begun = Date.now();
await new Client({ url, apiKey: "key" })._json({ method: "POST", path: "/v1/x", json: {} }).catch(() => {});
console.log(Date.now() - begun > 500 ? "tried again" : "given up");
// prints: told where
// prints: tried again
