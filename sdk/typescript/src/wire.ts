/**
 * What needs no connection: requests as values, when to try again, errors from answers, values from lines, bodies
 * from arguments.
 */

import { Buffer } from "node:buffer";

import { type ApiError, fromDetail, ProtocolError } from "./errors.js";
import { EXEC_STDIN_MAX } from "./limits.js";
import { snake } from "./names.js";
import type { components } from "./openapi.js";

export type Schemas = components["schemas"];

/** Tries of one request, the first included. */
export const ATTEMPTS_MAX = 6;
/** Pauses between tries grow from the first to the second, in seconds. */
const PAUSE_FIRST_S = 0.05;
const PAUSE_MAX_S = 5;
/** The longest pause that a server can ask for. */
const RETRY_AFTER_MAX_S = 30;
/** For how long a broken stream is resumed. */
export const RECONNECT_FOR_MS = 30_000;
export const RECONNECT_PAUSE_MS = 200;
/** Bytes of each stream that a result keeps. */
export const OUTPUT_MAX = 64 * 1024 * 1024;
/** Characters of the longest line of a live answer. */
const LINE_MAX = 64 * 1024 * 1024;
/** Seconds without a byte after which a request fails. */
export const PATIENCE_S = 120;

export const NDJSON = "application/x-ndjson";

/** An argument that every call takes. */
export interface Cancel {
  /** Ends the call and the work that it started in the sandbox. */
  signal?: AbortSignal | undefined;
}

/** What is sent: bytes, a stream, which can be sent once, or what makes a new stream for every try. */
export type Body = Uint8Array | ReadableStream<Uint8Array> | (() => ReadableStream<Uint8Array>);

/** One request. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, unknown>;
  json?: unknown;
  content?: Body;
  headers?: Record<string, string>;
  /** Seconds without a byte before it is given up; `null`: as long as it takes. */
  patience?: number | null;
  /** May be sent again although the server may have acted on it. Default: yes for GET and DELETE. */
  repeatable?: boolean;
  signal?: AbortSignal | undefined;
}

/** The same with a key of its own, so that the server acts on it once however often it arrives. */
export function once(call: Call): Call {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const key = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { ...call, repeatable: true, headers: { ...call.headers, "idempotency-key": key } };
}

export function repeatable(call: Call): boolean {
  return call.repeatable ?? (call.method === "GET" || call.method === "DELETE");
}

/** Whether the body can be sent a second time. */
export function resendable(call: Call): boolean {
  return !(call.content instanceof ReadableStream);
}

export function sandboxPath(sandbox: string, rest = ""): string {
  return `/v1/sandboxes/${encodeURIComponent(sandbox)}${rest}`;
}

/** A query string of the values that say something. */
export function queryString(values: Record<string, unknown> = {}): string {
  const told = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== false) told.set(key, String(value));
  }
  const text = told.toString();
  return text && `?${text}`;
}

/** The error of an answer that is not a success. */
export function failure(status: number, retryAfter: string | null, body: string): ApiError {
  const seconds = retryAfter === null || retryAfter === "" ? Number.NaN : Number(retryAfter);
  let detail: unknown;
  try {
    detail = (JSON.parse(body) as { error?: unknown } | null)?.error;
  } catch {
    // Not the server's own answer; its status says enough.
  }
  return fromDetail(detail, status, Number.isFinite(seconds) ? seconds : undefined);
}

/** Milliseconds to wait before the next try, after so many. */
export function pauseBefore(attempt: number, error?: ApiError, random = Math.random()): number {
  if (error?.retryAfter !== undefined) return Math.min(error.retryAfter, RETRY_AFTER_MAX_S) * 1000;
  return Math.min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** (attempt - 1)) * (0.5 + random / 2) * 1000;
}

/** Whether the server said that it did nothing and that later is better. */
export function worthAnotherTry(call: Call, error: ApiError): boolean {
  if (["rate_limited", "unavailable", "no_capacity", "runner_unreachable"].includes(error.code)) return true;
  return repeatable(call) && [502, 503, 504].includes(error.status) && error.code !== "port_closed";
}

/** JSON values from the bytes of a live answer. */
export class Lines {
  #decoder = new TextDecoder();
  #rest = "";
  #kind = "";

  /** The values, one of each line. */
  *feed(bytes: Uint8Array): Generator<unknown, void, undefined> {
    for (const line of this.#whole(bytes)) if (line.trim() !== "") yield parsed(line);
  }

  /** The values of server-sent events, each with its name, which may be empty. */
  *events(bytes: Uint8Array): Generator<[string, unknown], void, undefined> {
    for (const line of this.#whole(bytes)) {
      const [, name, value = ""] = /^(\w+):(.*)$/.exec(line) ?? [];
      if (name === "event") this.#kind = value.trim();
      if (name !== "data") continue;
      yield [this.#kind, parsed(value)];
      this.#kind = "";
    }
  }

  #whole(bytes: Uint8Array): string[] {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > LINE_MAX) throw new ProtocolError("a line of the answer is too long");
    return lines;
  }
}

export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ProtocolError("the server's answer is not JSON");
  }
}

/** A command: text for the user's shell, or a program and its arguments. */
export type Command = string | readonly string[];

export function shown(command: Command): string {
  return typeof command === "string" ? command : command.join(" ");
}

/** Options of a command. */
export interface CommandOptions extends Cancel {
  /** Its working directory. Default: the sandbox's. */
  cwd?: string | undefined;
  /** Variables in addition to the sandbox's. */
  env?: Readonly<Record<string, string>> | undefined;
  /** User that it runs as. Default: the sandbox's user. */
  user?: string | undefined;
  /** Seconds after which it and its children are killed. */
  timeout?: number | undefined;
}

export function commandBody(command: Command, options: CommandOptions): Record<string, unknown> {
  const { cwd, env, user, timeout } = options;
  const what = typeof command === "string" ? { command } : { argv: command.map(String) };
  return { ...what, cwd, env, user, timeout_ms: milliseconds(timeout) };
}

export function milliseconds(seconds: number | undefined): number | undefined {
  if (seconds === undefined) return undefined;
  if (!(seconds > 0)) throw new RangeError("a timeout must be more than 0 seconds");
  return Math.max(1, Math.round(seconds * 1000));
}

export function wholeSeconds(name: string, seconds: number | undefined): number | undefined {
  if (seconds === undefined) return undefined;
  if (!(seconds >= 1)) throw new RangeError(`${name} must be at least one second`);
  return Math.round(seconds);
}

export function inputBody(input: string | Uint8Array | undefined): Record<string, unknown> {
  if (input === undefined) return {};
  const bytes = typeof input === "string" ? new TextEncoder().encode(input) : input;
  if (bytes.length > EXEC_STDIN_MAX) {
    throw new RangeError(
      `input has ${bytes.length} bytes, and a command takes at most ${EXEC_STDIN_MAX} with it; ` +
        "start the command with stdin: true and send the input, or write it to a file",
    );
  }
  return typeof input === "string" ? { stdin: input } : { stdin_base64: Buffer.from(bytes).toString("base64") };
}

/** A size: MiB, or text like `"512M"` or `"2G"`. */
export type Size = number | string;

const SIZE = /^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*$/i;
const FACTORS: Record<string, number> = { "": 1, k: 1 / 1024, m: 1, g: 1024, t: 1024 * 1024 };

export function megabytes(name: string, value: Size | undefined): number | undefined {
  if (value === undefined || typeof value === "number") return value;
  const match = SIZE.exec(value);
  if (match === null) {
    throw new TypeError(`${name} must be a number of MiB, or text like "512M" or "2G", not ${JSON.stringify(value)}`);
  }
  return Math.max(1, Math.round(Number(match[1]) * (FACTORS[(match[2] ?? "").toLowerCase()] ?? 1)));
}

export function networkBody(network: string | readonly string[] | object | undefined): unknown {
  if (network === undefined) return undefined;
  if (typeof network === "string") {
    if (!["none", "open", "allowlist"].includes(network)) {
      throw new TypeError(`network is "none", "open" or a list of what can be reached, not ${JSON.stringify(network)}`);
    }
    return { mode: network };
  }
  return Array.isArray(network) ? { mode: "allowlist", allow: network } : snake(network);
}

/** The fields that are not undefined. */
export function given<T extends object>(values: T): Partial<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Partial<T>;
}

/** The object, or undefined when all its fields are. */
export function unlessEmpty<T extends object>(value: T): T | undefined {
  return Object.values(value).some((item) => item !== undefined) ? value : undefined;
}

export function octal(mode: number | undefined): string | undefined {
  return mode === undefined ? undefined : mode.toString(8).padStart(4, "0");
}

/** Lifecycle rules of a sandbox, in seconds. */
export interface LifecycleOptions {
  /** Idle time after which its processes are frozen in memory. */
  freezeAfter?: number | undefined;
  /** Idle time after which it is paused to disk. */
  pauseAfter?: number | undefined;
  /** Idle time after which its processes are ended. */
  stopAfter?: number | undefined;
  /** Idle time after which it is deleted. */
  deleteAfter?: number | undefined;
  /** Age at which it is always deleted. */
  maxLifetime?: number | undefined;
}

/** @internal The same as the server has it. */
export function lifecycle(options: LifecycleOptions): Record<string, number | undefined> {
  return {
    freeze_after_s: wholeSeconds("freezeAfter", options.freezeAfter),
    pause_after_s: wholeSeconds("pauseAfter", options.pauseAfter),
    stop_after_s: wholeSeconds("stopAfter", options.stopAfter),
    delete_after_s: wholeSeconds("deleteAfter", options.deleteAfter),
    max_lifetime_s: wholeSeconds("maxLifetime", options.maxLifetime),
  };
}
