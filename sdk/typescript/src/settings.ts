/**
 * The server and the key. Arguments have precedence over the environment (`COVE_URL`, `COVE_CONTEXT`, `COVE_API_KEY`,
 * `COVE_CA_FILE`), and that over the current context of `cove login`. On the server's own machine root needs none of
 * them: the address and the first key are in the data directory (`COVE_DATA_DIR`, default `/var/lib/cove`). The rules
 * are those of the command line.
 */

import { closeSync, fstatSync, openSync, readFileSync } from "node:fs";
import process from "node:process";

import { ConfigurationError } from "./errors.js";

const DEFAULT_URL = "http://127.0.0.1:7070";
const DEFAULT_DATA_DIR = "/var/lib/cove";

/** What {@link Client} takes. */
export interface ClientOptions {
  /**
   * Address of the server: `https://cove.example.com`. Default: `COVE_URL`, then the context, then the server of this
   * machine.
   */
  url?: string | undefined;
  /** Default: `COVE_API_KEY`, then the context's key; on the server's own machine its first key. */
  apiKey?: string | undefined;
  /** A PEM file with the certificates to trust instead of the system's. Default: `COVE_CA_FILE`, then the context's. */
  caFile?: string | undefined;
  /** A server of `cove context ls`. Default: `COVE_CONTEXT`, then the current context. */
  context?: string | undefined;
}

/** The settings in force. */
export class Settings {
  constructor(
    readonly url: string,
    readonly apiKey: string | undefined,
    readonly caFile: string | undefined,
    readonly caPem: string | undefined,
  ) {}
}

interface Context {
  url: string;
  api_key: string;
  ca_pem: string | null | undefined;
}

interface Contexts {
  current: string | null | undefined;
  contexts: Map<string, Context>;
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

type Fields = Record<string, unknown>;

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}

function isOptionalText(value: unknown): value is string | null | undefined {
  return value === undefined || value === null || isText(value);
}

function contextsFile(): string | undefined {
  const directory = (name: string): string | undefined => {
    const value = variable(name);
    return value?.startsWith("/") ? value : undefined;
  };
  const home = directory("HOME");
  const config = directory("XDG_CONFIG_HOME") ?? (home === undefined ? undefined : `${home}/.config`);
  return config === undefined ? undefined : `${config}/cove/contexts.json`;
}

/** The content of the file; undefined where this user never logged in. */
function readOwn(path: string): string | undefined {
  let file: number;
  try {
    file = openSync(path, "r");
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(String((error as { code?: unknown }).code))) return undefined;
    throw new ConfigurationError(`cannot read ${path}: ${String(error)}`, { cause: error });
  }
  try {
    // Windows has no such bits.
    if (process.platform !== "win32" && (fstatSync(file).mode & 0o077) !== 0) {
      throw new ConfigurationError(`other users may read or change ${path}, which has API keys; run: chmod 600 ${path}`);
    }
    return readFileSync(file, "utf8");
  } catch (error) {
    if (error instanceof ConfigurationError) throw error;
    throw new ConfigurationError(`cannot read ${path}: ${String(error)}`, { cause: error });
  } finally {
    closeSync(file);
  }
}

/** What is wrong with the file is said without its text, which has keys. */
function parse(text: string, refuse: (why: string) => never): Contexts {
  const fields = (value: unknown, what: string, known: string[]): Fields => {
    if (!isFields(value)) return refuse(`${what} is not an object`);
    const unknown = Object.keys(value).find((name) => !known.includes(name));
    return unknown === undefined ? value : refuse(`unknown field '${unknown}'`);
  };
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    refuse("it is not JSON");
  }
  const { current, contexts = {} } = fields(data, "it", ["current", "contexts"]);
  if (!isOptionalText(current) || !isFields(contexts)) return refuse("current must be a name, contexts an object");
  const found = new Map<string, Context>();
  for (const [name, value] of Object.entries(contexts)) {
    const { url, api_key, ca_pem } = fields(value, `context '${name}'`, ["url", "api_key", "ca_pem"]);
    if (!isText(url) || !isText(api_key) || !isOptionalText(ca_pem)) {
      return refuse(`context '${name}' needs url and api_key, as texts`);
    }
    found.set(name, { url, api_key, ca_pem });
  }
  return { current, contexts: found };
}

/** The context of that name; without a name the current one. */
function contextOf(name?: string): Context | undefined {
  const path = contextsFile();
  const text = path === undefined ? undefined : readOwn(path);
  const { current, contexts } = parse(text ?? "{}", (why) => {
    throw new ConfigurationError(`cannot read ${path}: ${why}; delete the file and run \`cove login\` again`);
  });
  const wanted = name || current;
  if (!wanted) return undefined;
  const found = contexts.get(wanted);
  if (found !== undefined) return found;
  const known = [...contexts.keys()].sort().join(", ");
  const hint = known === "" ? "`cove login URL` adds one" : `known contexts: ${known}`;
  throw new ConfigurationError(`there is no context ${JSON.stringify(wanted)}; ${hint}`);
}

/** The address or the context that names the server; neither means this machine's. */
function chosen(options: ClientOptions): { url?: string | undefined; login?: Context | undefined } {
  let { url, context } = options;
  if (url && context) throw new ConfigurationError("url and context both name a server; give one of them");
  if (!url && !context) {
    [url, context] = [variable("COVE_URL"), variable("COVE_CONTEXT")];
    if (url && context) throw new ConfigurationError("COVE_URL and COVE_CONTEXT both name a server; set one of them");
  }
  if (context) return { login: contextOf(context) };
  if (url) return { url };
  return variable("COVE_DATA_DIR") === undefined ? { login: contextOf() } : {};
}

export function resolve(options: ClientOptions = {}): Settings {
  const directory = variable("COVE_DATA_DIR") ?? DEFAULT_DATA_DIR;
  const { url: named, login } = chosen(options);
  const local = login === undefined ? word(directory, "url") : undefined;
  const url = trimmed(login?.url ?? named ?? local ?? DEFAULT_URL);
  if (!/^https?:\/\/[^/]/.test(url) || !URL.canParse(url)) {
    throw new ConfigurationError(`not the address of a server: ${JSON.stringify(url)}; it should look like ${DEFAULT_URL}`);
  }
  let apiKey = options.apiKey || variable("COVE_API_KEY") || login?.api_key;
  // The root key belongs to the server of this machine and is sent to no other.
  const isLocal = login === undefined && (named === undefined || (local !== undefined && url === trimmed(local)));
  if (apiKey === undefined && isLocal) apiKey = word(directory, "root.key");
  const caFile = options.caFile || variable("COVE_CA_FILE");
  return new Settings(url, apiKey, caFile, caFile === undefined ? (login?.ca_pem ?? undefined) : undefined);
}
