// The official TypeScript client: client.mjs http|stdio PROGRAM IMAGE.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [kind, program, image] = process.argv.slice(2);
const { COVE_URL, COVE_API_KEY } = process.env;
const transport =
  kind === "stdio"
    ? new StdioClientTransport({ command: program, args: ["mcp"], env: { COVE_URL, COVE_API_KEY } })
    : new StreamableHTTPClientTransport(new URL(`${COVE_URL}/mcp`), {
        requestInit: { headers: { Authorization: `Bearer ${COVE_API_KEY}` } },
      });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);

const call = async (name, args, options) => {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  assert(!result.isError, `${name}: ${JSON.stringify(result.content)}`);
  return result;
};
const { tools } = await client.listTools();
assert(tools.some((tool) => tool.name === "run" && tool.inputSchema.additionalProperties === false));
const box = (await call("sandbox_create", { image })).structuredContent.id;
try {
  const told = [];
  const options = { onprogress: (progress) => told.push(progress) };
  const done = await call("run", { sandbox: box, command: "echo begun; sleep 10; echo ended" }, options);
  assert.equal(done.structuredContent.stdout, "begun\nended\n");
  assert.equal(told[0].message, "begun");
  await call("file_write", { sandbox: box, path: "/tmp/x", base64: "AAH/" });
  const read = await call("file_read", { sandbox: box, path: "/tmp/x" });
  assert.equal(read.structuredContent.base64, "AAH/");
  const wrong = await client.callTool({ name: "run", arguments: { sandbox: box, command: "true", extra: 1 } });
  assert(wrong.isError && wrong.content[0].text.includes("unknown field `extra`"), JSON.stringify(wrong));
  await assert.rejects(client.callTool({ name: "no_such_tool", arguments: {} }), /no tool/);
  if (kind === "stdio") {
    // Cancelling ends the command.
    const abort = new AbortController();
    const running = client.callTool({ name: "run", arguments: { sandbox: box, command: "sleep 1234" } }, undefined, {
      signal: abort.signal,
    });
    const sleeping = async () =>
      (await call("process_list", { sandbox: box })).structuredContent.processes.some((p) => p.argv.join(" ").includes("sleep 1234"));
    const until = async (wanted) => {
      for (const end = Date.now() + 300_000; (await sleeping()) !== wanted; ) assert(Date.now() < end, `sleeping is not ${wanted}`);
    };
    await until(true);
    abort.abort();
    await assert.rejects(running);
    await until(false);
  }
} finally {
  await call("sandbox_delete", { sandbox: box });
}
await client.close();
console.log(`typescript ${kind}: ok`);
