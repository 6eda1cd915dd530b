/** The results of commands and code. */

import { Buffer } from "node:buffer";

import { CodeFailed, CodeTimedOut, CommandFailed, CommandTimedOut, fromDetail, ProtocolError } from "./errors.js";
import type { CodeError } from "./types.js";
import { OUTPUT_MAX } from "./wire.js";

/** A piece of a command's output. */
export interface Output {
  readonly stream: "stdout" | "stderr";
  readonly data: Uint8Array;
  /** The same as text; pieces end at whole characters, so that they can be joined. */
  readonly text: string;
  /** Where it begins in its stream. */
  readonly offset: number;
  /** Bytes before this piece that the sandbox no longer had. */
  readonly dropped: number;
}

/**
 * When a failure throws. `true`: always. `false`: never. Not given: only when the `timeout` passed.
 */
export type Check = boolean | undefined;

/** The result of a command: exit code and output. */
export class Result {
  readonly exitCode: number;
  readonly stdoutBytes: Uint8Array;
  readonly stderrBytes: Uint8Array;
  readonly signal: number | undefined;
  /** The kernel killed it because it ran out of memory. */
  readonly oom: boolean;
  readonly timedOut: boolean;
  /** Seconds. */
  readonly duration: number;
  /** The id of its process. */
  readonly process: string | undefined;
  /** Part of the output was dropped. */
  readonly truncated: boolean;
  readonly memoryLimitBytes: number | undefined;
  readonly memoryPeakBytes: number | undefined;
  /** The command. */
  readonly command: string | undefined;
  /** What to do about a failure, if the server knows; for example that the network is off. */
  readonly hint: string | undefined;

  /** @internal */
  constructor(fields: Fields<Result>) {
    this.exitCode = fields.exitCode;
    this.stdoutBytes = fields.stdoutBytes;
    this.stderrBytes = fields.stderrBytes;
    this.signal = fields.signal;
    this.oom = fields.oom;
    this.timedOut = fields.timedOut;
    this.duration = fields.duration;
    this.process = fields.process;
    this.truncated = fields.truncated;
    this.memoryLimitBytes = fields.memoryLimitBytes;
    this.memoryPeakBytes = fields.memoryPeakBytes;
    this.command = fields.command;
    this.hint = fields.hint;
  }

  get stdout(): string {
    return new TextDecoder().decode(this.stdoutBytes);
  }

  get stderr(): string {
    return new TextDecoder().decode(this.stderrBytes);
  }

  /** Whether the exit code is 0. */
  get ok(): boolean {
    return this.exitCode === 0;
  }

  /** Returns itself, or throws {@link CommandFailed} if the command failed. */
  check(): this {
    if (this.timedOut) throw new CommandTimedOut(this);
    if (!this.ok) throw new CommandFailed(this);
    return this;
  }

  /** @internal */
  _checked(check: Check): this {
    return check || (check === undefined && this.timedOut) ? this.check() : this;
  }

  toString(): string {
    return this.stdout;
  }
}

/** A result of code in all its formats: media type to text or JSON. */
export class CodeOutput {
  readonly data: Readonly<Record<string, unknown>>;
  /** Whether it is the value of the code's last expression. */
  readonly main: boolean;

  /** @internal */
  constructor(fields: { data: Record<string, unknown>; main: boolean }) {
    this.data = fields.data;
    this.main = fields.main;
  }

  get text(): string | undefined {
    return this.#form("text/plain");
  }

  get html(): string | undefined {
    return this.#form("text/html");
  }

  get json(): unknown {
    return this.data["application/json"];
  }

  /** The PNG image as bytes. */
  get png(): Uint8Array | undefined {
    return this.file("image/png");
  }

  /** A binary format as bytes: `image/jpeg`, `application/pdf`. */
  file(form: string): Uint8Array | undefined {
    const found = this.#form(form);
    return found === undefined ? undefined : fromBase64(found);
  }

  #form(name: string): string | undefined {
    const found = this.data[name];
    return typeof found === "string" ? found : undefined;
  }
}

/** The result of a run of code: output, results and exception. */
export class CodeResult {
  /** The context's id. */
  readonly context: string;
  readonly stdout: string;
  readonly stderr: string;
  readonly results: readonly CodeOutput[];
  readonly error: CodeError | undefined;
  /** Exit code of a shell's last command. */
  readonly exitCode: number | undefined;
  readonly timedOut: boolean;
  /** The context's process ended during the run; its variables are lost. */
  readonly contextEnded: boolean;
  readonly truncated: boolean;
  /** Seconds. */
  readonly duration: number;

  /** @internal */
  constructor(fields: Fields<CodeResult>) {
    this.context = fields.context;
    this.stdout = fields.stdout;
    this.stderr = fields.stderr;
    this.results = fields.results;
    this.error = fields.error;
    this.exitCode = fields.exitCode;
    this.timedOut = fields.timedOut;
    this.contextEnded = fields.contextEnded;
    this.truncated = fields.truncated;
    this.duration = fields.duration;
  }

  /** Whether there was no exception and no timeout, and a shell's exit code is 0. */
  get ok(): boolean {
    return this.error === undefined && !this.timedOut && !this.exitCode;
  }

  /** The value of the last expression. */
  get main(): CodeOutput | undefined {
    return this.results.find((result) => result.main);
  }

  /** The value of the last expression, as text. */
  get text(): string | undefined {
    return this.main?.text;
  }

  /** The first PNG image. */
  get png(): Uint8Array | undefined {
    return this.results.find((result) => result.png !== undefined)?.png;
  }

  /** Returns itself, or throws {@link CodeFailed} if the code failed. */
  check(): this {
    if (this.timedOut) throw new CodeTimedOut(this);
    if (!this.ok) throw new CodeFailed(this);
    return this;
  }

  /** @internal */
  _checked(check: Check): this {
    return check || (check === undefined && this.timedOut) ? this.check() : this;
  }
}

/** The data of a class: its fields without methods and what is computed from others. */
type Computed = "ok" | "stdout" | "stderr" | "main" | "text" | "png" | "check" | "_checked" | "toString";
type Fields<T> = T extends Result ? Omit<Result, Computed> : Omit<CodeResult, Exclude<Computed, "stdout" | "stderr">>;

export function fromBase64(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}

type StreamName = "stdout" | "stderr";

/** Follows a command's events: where each stream is, what it wrote, how it ended. */
export class Transcript {
  process: string | undefined;
  exit: Record<string, unknown> | undefined;
  readonly offsets = { stdout: 0, stderr: 0 };
  #kept: Record<StreamName, Uint8Array[]> = { stdout: [], stderr: [] };
  #room: Record<StreamName, number>;
  #truncated = false;
  #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  #encoder = new TextEncoder();

  constructor(keep: number = OUTPUT_MAX) {
    this.#room = { stdout: keep, stderr: keep };
  }

  /** Notes an event; some output when it is that. */
  take(value: unknown): Output | undefined {
    const event = value as Record<string, unknown> | null;
    switch (event?.["type"]) {
      case "started":
        this.process = String((event["process"] as { id: unknown }).id);
        return undefined;
      case "exit":
        this.exit = event;
        return undefined;
      case "stdout":
      case "stderr":
        return this.#output(event["type"], event);
      case "error":
        throw fromDetail(event["error"]);
      default:
        return undefined;
    }
  }

  #output(stream: StreamName, event: Record<string, unknown>): Output | undefined {
    const { text, data: encoded } = event;
    const data = typeof text === "string" ? this.#encoder.encode(text) : fromBase64(String(encoded ?? ""));
    const offset = Number(event["offset"]);
    const dropped = Number(event["dropped"] ?? 0);
    this.offsets[stream] = offset + data.length;
    // Said by the server, not by the command; the exit has it as well.
    if (data.length === 0 && "hint" in event) return undefined;
    const room = this.#room[stream];
    if (room > 0) this.#kept[stream].push(data.length > room ? data.subarray(0, room) : data);
    this.#room[stream] = Math.max(0, room - data.length);
    if (data.length > room || dropped > 0) this.#truncated = true;
    return { stream, data, text: this.#decoders[stream].decode(data, { stream: true }), offset, dropped };
  }

  result(command: string | undefined): Result {
    const end = this.exit;
    if (end === undefined) throw new ProtocolError("the output ended before the command");
    const number = (name: string) => (typeof end[name] === "number" ? end[name] : undefined);
    return new Result({
      exitCode: Number(end["exit_code"]),
      stdoutBytes: joined(this.#kept.stdout),
      stderrBytes: joined(this.#kept.stderr),
      signal: number("signal"),
      oom: end["oom"] === true,
      timedOut: end["timed_out"] === true,
      duration: (number("duration_ms") ?? 0) / 1000,
      process: this.process,
      truncated: this.#truncated,
      memoryLimitBytes: number("memory_limit_bytes"),
      memoryPeakBytes: number("memory_peak_bytes"),
      command,
      hint: typeof end["hint"] === "string" ? end["hint"] : undefined,
    });
  }
}

export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
