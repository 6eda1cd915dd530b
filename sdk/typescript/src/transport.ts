/**
 * `fetch`, set up for long answers. Node's and Bun's own time limits are switched off, because a command may be
 * silent for hours; the client has its own. Own certificates need a different option in each runtime.
 */

import { readFileSync } from "node:fs";

import { ConfigurationError } from "./errors.js";
import type { Settings } from "./settings.js";

/** Milliseconds to reach the server. */
const CONNECT_TIMEOUT_MS = 10_000;
/** How long an unused connection is kept; shorter than the server's own limit of 75 seconds. */
const KEEP_ALIVE_MS = 60_000;

type Init = RequestInit & Record<string, unknown>;

export interface Transport {
  send(url: string, init: RequestInit): Promise<Response>;
  close(): Promise<void>;
}

interface Agent {
  close(): Promise<void>;
}
type AgentClass = new (options: object) => Agent;
interface Deno {
  createHttpClient(options: { caCerts: string[] }): { close(): void };
}

/** The class of Node's connection pools, which Node itself uses but does not export. */
function nodeAgent(): AgentClass | undefined {
  // The first use of a fetch class loads the library that registers its pool.
  new Headers();
  const host = globalThis as unknown as Record<symbol, object | undefined>;
  for (const symbol of Object.getOwnPropertySymbols(globalThis)) {
    if (!symbol.description?.startsWith("undici.globalDispatcher")) continue;
    const kind = host[symbol]?.constructor;
    if (kind?.name === "Agent") return kind as unknown as AgentClass;
  }
  return undefined;
}

function certificates(settings: Settings): string | undefined {
  if (!settings.url.startsWith("https:")) return undefined;
  if (settings.caFile === undefined) return settings.caPem;
  try {
    return readFileSync(settings.caFile, "utf8");
  } catch (error) {
    throw new ConfigurationError(`cannot read the certificates: ${String(error)}`, { cause: error });
  }
}

export function open(settings: Settings): Transport {
  const ca = certificates(settings);
  const scope = globalThis as { Bun?: unknown; Deno?: Deno };
  let extra: Record<string, unknown> = {};
  let close = async (): Promise<void> => {};
  if (scope.Bun !== undefined) {
    extra = { timeout: false, ...(ca === undefined ? {} : { tls: { ca } }) };
  } else if (scope.Deno !== undefined) {
    if (ca !== undefined) {
      const client = scope.Deno.createHttpClient({ caCerts: [ca] });
      extra = { client };
      close = async () => client.close();
    }
  } else {
    const kind = nodeAgent();
    if (kind !== undefined) {
      const connect = { timeout: CONNECT_TIMEOUT_MS, ...(ca === undefined ? {} : { ca }) };
      const agent = new kind({ headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: KEEP_ALIVE_MS, connect });
      extra = { dispatcher: agent };
      close = () => agent.close();
    } else if (ca !== undefined) {
      throw new ConfigurationError("this runtime cannot use caFile; set NODE_EXTRA_CA_CERTS instead");
    }
  }
  return {
    send: (url, init) => fetch(url, { ...init, ...extra } as Init),
    close,
  };
}

/** The codes of failures before a connection stood: the server saw nothing of the request. */
const UNSEEN = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ETIMEDOUT",
  "UND_ERR_CONNECT_TIMEOUT",
  "ConnectionRefused",
  "FailedToOpenSocket",
]);

/** A failure of `fetch`, whose reason is in it or in its cause, as each runtime likes. */
interface Failure {
  code?: unknown;
  message?: unknown;
  cause?: { code?: unknown; message?: unknown };
}

/** Whether the server saw nothing of a request that failed with this. */
export function unseen(error: unknown): boolean {
  const { code, message, cause } = error as Failure;
  if (UNSEEN.has(String(cause?.code ?? code))) return true;
  return /\(Connect\)|tcp connect error|dns error/.test(`${message} ${cause?.message}`);
}

/** Whether the server's certificate was the reason; no other try can help. */
export function untrusted(error: unknown): boolean {
  const { code, message, cause } = error as Failure;
  const told = `${code} ${cause?.code} ${message} ${cause?.message}`;
  return /CERT|UNABLE_TO_VERIFY|UNABLE_TO_GET_ISSUER|invalid peer certificate/.test(told);
}

/** What the runtime says about a failed request. */
export function reason(error: unknown): string {
  const { message, cause, code } = error as Failure;
  return String(cause?.message || cause?.code || message || code || error);
}
