/**
 * The server and the key. Arguments have precedence over the environment (`COVE_URL`, `COVE_API_KEY`,
 * `COVE_CA_FILE`). On the server's own machine root needs neither: the address and the first key are in the
 * data directory (`COVE_DATA_DIR`, default `/var/lib/cove`), as for the command line.
 */

import { readFileSync } from "node:fs";
import process from "node:process";

import { ConfigurationError } from "./errors.js";

const DEFAULT_URL = "http://127.0.0.1:7070";
const DEFAULT_DATA_DIR = "/var/lib/cove";

/** What {@link Client} takes. */
export interface ClientOptions {
  /** Address of the server: `https://cove.example.com`. Default: `COVE_URL`, then the server of this machine. */
  url?: string | undefined;
  /** Default: `COVE_API_KEY`; on the server's own machine its first key. */
  apiKey?: string | undefined;
  /** A PEM file with the certificates to trust instead of the system's. Default: `COVE_CA_FILE`. */
  caFile?: string | undefined;
}

export interface Settings {
  readonly url: string;
  readonly apiKey: string | undefined;
  readonly caFile: string | undefined;
}

/** A variable of the environment; undefined also where the runtime forbids reading it (Deno). */
function variable(name: string): string | undefined {
  try {
    return process.env[name] || undefined;
  } catch {
    return undefined;
  }
}

function word(directory: string, name: string): string | undefined {
  try {
    return readFileSync(`${directory}/${name}`, "utf8").trim() || undefined;
  } catch {
    return undefined;
  }
}

function trimmed(url: string): string {
  return url.replace(/\/+$/, "");
}

export function resolve(options: ClientOptions = {}): Settings {
  const directory = variable("COVE_DATA_DIR") ?? DEFAULT_DATA_DIR;
  const local = word(directory, "url");
  const told = options.url || variable("COVE_URL");
  const url = trimmed(told ?? local ?? DEFAULT_URL);
  if (!/^https?:\/\/[^/]/.test(url) || !URL.canParse(url)) {
    throw new ConfigurationError(`not the address of a server: ${JSON.stringify(url)}; it should look like ${DEFAULT_URL}`);
  }
  let apiKey = options.apiKey || variable("COVE_API_KEY");
  // The root key belongs to the server of this machine and is sent to no other.
  if (apiKey === undefined && (told === undefined || (local !== undefined && url === trimmed(local)))) {
    apiKey = word(directory, "root.key");
  }
  return { url, apiKey, caFile: options.caFile || variable("COVE_CA_FILE") };
}
