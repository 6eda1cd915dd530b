/** A server that answers as told, to see how the client copes. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  method: string;
  url: string;
  key: string | undefined;
  body: string;
}

export interface Misbehaving extends AsyncDisposable {
  url: string;
  asked: Asked[];
}

export type Respond = (request: Asked, response: ServerResponse, number: number) => void;

export async function misbehaving(respond: Respond): Promise<Misbehaving> {
  const asked: Asked[] = [];
  const server = createServer((request: IncomingMessage, response) => {
    let body = "";
    request.on("data", (piece: Buffer) => (body += piece.toString()));
    request.on("end", () => {
      const key = request.headers["idempotency-key"];
      const told = { method: request.method ?? "", url: request.url ?? "", key: key === undefined ? key : String(key), body };
      asked.push(told);
      respond(told, response, asked.length);
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    },
  };
}

export function json(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): void {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
}
