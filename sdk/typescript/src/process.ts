/** Commands while they run: streams that survive their connection, background processes, terminals. */

import type { Client } from "./client.js";
import { CoveError, NotFoundError, ProcessGoneError, WaitTimeout } from "./errors.js";
import { asyncDispose, sleep } from "./flow.js";
import { type Check, type Output, type Result, Transcript } from "./results.js";
import type { ProcessInfo } from "./types.js";
import { type Call, type Cancel, NDJSON, sandboxPath } from "./wire.js";

/** Seconds that ending an aborted command may take before the caller hears of the abort. */
const ABORT_PATIENCE_S = 10;
/** Milliseconds between two looks at a terminal. */
const SCREEN_PAUSE_MS = 20;

/** What waiting for a command takes. */
export interface WaitOptions extends Cancel {
  /** Whether a failure throws {@link CommandFailed}. Default: only when the timeout passed. */
  check?: Check;
}

/** @internal */
export function processInfo(info: ProcessInfo): ProcessInfo {
  return { ...info, running: info.exit === undefined };
}

/**
 * A command in the background. It keeps running without a client, also after this program has ended.
 *
 * Iterating yields its output from the beginning, live, until it ends. No byte is lost or repeated when the
 * connection breaks or the server restarts.
 */
export class Process implements AsyncIterable<Output> {
  /** @internal */
  protected readonly _client: Client;
  /** @internal */
  protected readonly _sandbox: string;
  /** @internal */
  protected _id: string | undefined;
  /** @internal */
  protected readonly _command: string | undefined;

  /** @internal */
  constructor(client: Client, sandbox: string, id: string | undefined, command: string | undefined) {
    this._client = client;
    this._sandbox = sandbox;
    this._id = id;
    this._command = command;
  }

  /** The process's id in its sandbox. */
  get id(): string {
    if (this._id === undefined) throw new CoveError("the command has not been started yet");
    return this._id;
  }

  /** @internal */
  protected _call(method: "GET" | "POST", rest: string, more: Partial<Call> = {}): Call {
    const path = sandboxPath(this._sandbox, `/processes/${encodeURIComponent(this.id)}${rest}`);
    return { method, path, ...more };
  }

  /** @internal */
  protected _follow(transcript: Transcript, follow: boolean, signal: AbortSignal | undefined): Call {
    const { stdout, stderr } = transcript.offsets;
    const query = { stdout_from: stdout, stderr_from: stderr, follow };
    return this._call("GET", "/output", { query, patience: null, signal });
  }

  /** Returns its command, user, start time and result. */
  async info(options: Cancel = {}): Promise<ProcessInfo> {
    return processInfo(await this._client._get<ProcessInfo>(this._call("GET", "", options)));
  }

  [Symbol.asyncIterator](): AsyncIterator<Output, undefined> {
    return this.output() as AsyncIterator<Output, undefined>;
  }

  /** Yields its output from the beginning until it ends. With `follow: false`, only the output so far. */
  async *output(options: Cancel & { follow?: boolean } = {}): AsyncGenerator<Output, void, undefined> {
    const { follow = true, signal } = options;
    const transcript = new Transcript(0);
    const call = () => this._follow(transcript, follow, signal);
    const events = follow ? this._client._reconnecting(call(), call) : this._client._lines(call());
    for await (const event of events) {
      const told = transcript.take(event);
      if (told !== undefined) yield told;
    }
  }

  /**
   * Waits until it ends and returns its result with the kept output. An aborted signal ends the wait, not the
   * command.
   */
  async wait(options: WaitOptions = {}): Promise<Result> {
    const transcript = new Transcript();
    transcript.process = this.id;
    const call = () => this._follow(transcript, true, options.signal);
    for await (const event of this._client._reconnecting(call(), call)) transcript.take(event);
    return transcript.result(this._command)._checked(options.check);
  }

  /** Writes to its input; with `close`, closes the input afterwards. */
  async send(data: string | Uint8Array, options: Cancel & { close?: boolean } = {}): Promise<void> {
    const content = typeof data === "string" ? new TextEncoder().encode(data) : data;
    const { close, signal } = options;
    await this._client._done(this._call("POST", "/stdin", { query: { close }, content, signal }));
  }

  /** Closes its input. */
  async closeStdin(options: Cancel = {}): Promise<void> {
    await this.send("", { ...options, close: true });
  }

  /** Sends a signal, `"INT"` or `2`, to its whole process group. */
  async signal(signal: string | number, options: Cancel = {}): Promise<void> {
    await this._client._done(this._call("POST", "/signal", { json: { signal: String(signal) }, ...options }));
  }

  /** Sends SIGTERM. */
  async terminate(options: Cancel = {}): Promise<void> {
    await this.signal("TERM", options);
  }

  /** Sends SIGKILL. */
  async kill(options: Cancel = {}): Promise<void> {
    await this.signal("KILL", options);
  }

  /** @internal Kills it and waits for its end; no error when it has ended already, or when nobody answers. */
  async _end(transcript: Transcript = new Transcript(0)): Promise<void> {
    const signal = AbortSignal.timeout(ABORT_PATIENCE_S * 1000);
    try {
      await this._client._done(this._call("POST", "/signal", { json: { signal: "KILL" }, repeatable: true, signal }));
      for await (const _ of this._client._lines(this._follow(transcript, true, signal)));
    } catch {
      // The caller hears of the abort, whatever came of this.
    }
  }
}

/**
 * A command in the foreground, followed from its first byte. Made by `box.stream(…)`; it starts with the first
 * read. Leaving the loop does not end the command; {@link result} or another loop continues where the last one
 * stopped. Aborting its signal ends the command.
 */
export class Stream extends Process {
  readonly #transcript = new Transcript();
  readonly #body: Record<string, unknown>;
  readonly #signal: AbortSignal | undefined;
  #control = new AbortController();
  #events: AsyncGenerator<unknown, void, undefined> | undefined;
  #begun = false;
  #ending: Promise<void> | undefined;

  /** @internal */
  constructor(client: Client, sandbox: string, body: Record<string, unknown>, command: string, signal?: AbortSignal) {
    super(client, sandbox, undefined, command);
    this.#body = body;
    this.#signal = signal;
  }

  override [Symbol.asyncIterator](): AsyncIterator<Output, undefined> {
    return {
      next: () => this.#next(),
      return: async () => {
        await this.close();
        return { done: true, value: undefined };
      },
    };
  }

  /** Waits until it ends and returns its result; output that was not read is skipped. */
  async result(options: { check?: Check } = {}): Promise<Result> {
    while (!(await this.#next()).done);
    return this.#transcript.result(this._command)._checked(options.check);
  }

  /** The same as {@link result}. */
  override async wait(options: WaitOptions = {}): Promise<Result> {
    return this.result(options);
  }

  /** Stops following. The command keeps running. */
  async close(): Promise<void> {
    this.#events = undefined;
    this.#control.abort();
    this.#signal?.removeEventListener("abort", this.#abort);
  }

  async #next(): Promise<IteratorResult<Output, undefined>> {
    for (;;) {
      // Before the command's id is known it cannot be ended, so an abort waits for that.
      if (this.#signal?.aborted && (this._id !== undefined || !this.#begun)) return this.#aborted(this.#signal);
      if (this.#transcript.exit !== undefined) return { done: true, value: undefined };
      const events = (this.#events ??= this.#open());
      let step: IteratorResult<unknown, void>;
      try {
        step = await events.next();
      } catch (error) {
        if (this.#signal?.aborted) return this.#aborted(this.#signal);
        if (this.#events !== events) return { done: true, value: undefined };
        await this.close();
        throw error;
      }
      if (this.#events !== events) return { done: true, value: undefined };
      if (step.done) {
        await this.close();
        return { done: true, value: undefined };
      }
      const told = this.#transcript.take(step.value);
      this._id = this.#transcript.process;
      if (this.#transcript.exit !== undefined) {
        // The answer ends by itself; nobody waits for that.
        events.next().catch(() => {});
        this.#events = undefined;
        this.#signal?.removeEventListener("abort", this.#abort);
      } else if (told !== undefined) {
        return { done: false, value: told };
      }
    }
  }

  #open(): AsyncGenerator<unknown, void, undefined> {
    this.#control = new AbortController();
    this.#signal?.addEventListener("abort", this.#abort, { once: true });
    const { signal } = this.#control;
    const again = () => (this._id === undefined ? undefined : this._follow(this.#transcript, true, signal));
    if (this.#begun) {
      const onward = again();
      if (onward === undefined) throw new CoveError("the command was left before it was known to have started");
      return this._client._reconnecting(onward, again);
    }
    this.#begun = true;
    const path = sandboxPath(this._sandbox, "/exec");
    const headers = { accept: NDJSON };
    return this._client._reconnecting(
      { method: "POST", path, json: this.#body, headers, patience: null, signal },
      again,
    );
  }

  #abort = (): void => {
    const control = this.#control;
    if (this._id === undefined) {
      setTimeout(() => control.abort(), ABORT_PATIENCE_S * 1000).unref?.();
    } else {
      this.#ending ??= this._end(this.#transcript).then(() => control.abort());
    }
  };

  async #aborted(signal: AbortSignal): Promise<never> {
    if (this._id !== undefined) await (this.#ending ??= this._end(this.#transcript));
    await this.close();
    throw signal.reason;
  }
}

/** How long to wait for something to appear. */
export interface ScreenOptions extends Cancel {
  /** Seconds. */
  timeout?: number;
}

/** A command with a terminal (default: a shell): send input and wait for output. `await using` ends it. */
export class Terminal extends Process implements AsyncDisposable {
  readonly #transcript = new Transcript(0);
  #screen = "";

  async [asyncDispose](): Promise<void> {
    try {
      await this.kill();
    } catch (error) {
      if (!(error instanceof ProcessGoneError || error instanceof NotFoundError)) throw error;
    }
  }

  /** Changes the terminal's size. */
  async resize(cols: number, rows: number, options: Cancel = {}): Promise<void> {
    await this._client._done(this._call("POST", "/resize", { json: { cols, rows }, ...options }));
  }

  /** Returns the output since the last read; waits at most `timeout` seconds (default: 1) for some. */
  async read(options: ScreenOptions = {}): Promise<string> {
    await this.#more(Date.now() + (options.timeout ?? 1) * 1000, options.signal);
    const text = this.#screen;
    this.#screen = "";
    return text;
  }

  /**
   * Waits at most `timeout` seconds (default: 30) until the output matches and returns the text up to the end
   * of the match. A string is a regular expression.
   */
  async expect(pattern: RegExp | string, options: ScreenOptions = {}): Promise<string> {
    const { timeout = 30, signal } = options;
    const expression = typeof pattern === "string" ? new RegExp(pattern) : new RegExp(pattern, pattern.flags.replace(/[gy]/g, ""));
    const deadline = Date.now() + timeout * 1000;
    for (;;) {
      const found = expression.exec(this.#screen);
      if (found !== null) {
        const end = found.index + found[0].length;
        const text = this.#screen.slice(0, end);
        this.#screen = this.#screen.slice(end);
        return text;
      }
      if (!(await this.#more(deadline, signal))) {
        const tail = JSON.stringify(this.#screen.slice(-500));
        throw new WaitTimeout(`${expression} did not appear in ${timeout} seconds; the terminal ends with ${tail}`);
      }
    }
  }

  /** Reads the output so far, or the next output before the deadline. */
  async #more(deadline: number, signal: AbortSignal | undefined): Promise<boolean> {
    for (;;) {
      let came = false;
      for await (const event of this._client._lines(this._follow(this.#transcript, false, signal))) {
        const told = this.#transcript.take(event);
        if (told === undefined) continue;
        this.#screen += told.text;
        came = true;
      }
      if (came) return true;
      if (Date.now() >= deadline || this.#transcript.exit !== undefined) return false;
      await sleep(SCREEN_PAUSE_MS, signal);
    }
  }
}
