/** The code interpreter: contexts that keep their variables between runs, and rich results. */

import type { Client } from "./client.js";
import { ConnectionError, fromDetail, NotFoundError } from "./errors.js";
import { asyncDispose, undoing } from "./flow.js";
import { type Check, CodeOutput, CodeResult } from "./results.js";
import type { CodeContextInfo, CodeError, Language } from "./types.js";
import { type Cancel, milliseconds, NDJSON, sandboxPath } from "./wire.js";

/** Seconds that interrupting aborted code may take before the caller hears of the abort. */
const ABORT_PATIENCE_S = 10;

/** What running code takes. */
export interface CodeOptions extends Cancel {
  /** Default: Python; in a context, the context's. */
  language?: Language | undefined;
  /** Seconds after which the code is interrupted; its variables stay. */
  timeout?: number | undefined;
  /** Whether a failure throws {@link CodeFailed}. Default: only when the timeout passed. */
  check?: Check;
  /** Called with text as it arrives. */
  onStdout?: ((text: string) => void | Promise<void>) | undefined;
  onStderr?: ((text: string) => void | Promise<void>) | undefined;
  /** Called with each result as it arrives. */
  onResult?: ((result: CodeOutput) => void | Promise<void>) | undefined;
}

/** What {@link Code.context} takes. */
export interface ContextOptions extends Cancel {
  cwd?: string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  user?: string | undefined;
}

interface CodeEvent {
  type: string;
  text: string;
  result: { data: Record<string, unknown>; main: boolean };
  error: unknown;
  context: unknown;
  exit_code?: number | null;
  timed_out?: boolean;
  context_ended?: boolean;
  truncated?: boolean;
  duration_ms?: number;
}

/**
 * `box.code`. Runs without a context share one default context per language. The value of the last expression
 * is a result, in all its formats: `text`, `html`, `json`, `png`.
 */
export class Code {
  readonly #client: Client;
  readonly #sandbox: string;

  /** @internal */
  constructor(client: Client, sandbox: string) {
    this.#client = client;
    this.#sandbox = sandbox;
  }

  /** Runs code (default: Python) and waits until it ends. Aborting the signal interrupts it. */
  async run(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return this._run(code, undefined, options);
  }

  /** Creates another context with its own variables. `await using` deletes it. */
  async context(language: Language = "python", options: ContextOptions = {}): Promise<CodeContext> {
    const { signal, ...rest } = options;
    const path = sandboxPath(this.#sandbox, "/code/contexts");
    return undoing(
      signal,
      async () =>
        new CodeContext(
          this,
          this.#client,
          this.#sandbox,
          await this.#client._get<CodeContextInfo>({ method: "POST", path, json: { language, ...rest } }),
        ),
      (made) => made.delete(),
    );
  }

  /** Lists the running contexts. */
  async contexts(options: Cancel = {}): Promise<CodeContext[]> {
    const path = sandboxPath(this.#sandbox, "/code/contexts");
    const found = await this.#client._items<CodeContextInfo>({ method: "GET", path, ...options });
    return found.map((info) => new CodeContext(this, this.#client, this.#sandbox, info));
  }

  /** @internal */
  async _run(code: string, context: string | undefined, options: CodeOptions): Promise<CodeResult> {
    const { language, timeout, signal } = options;
    signal?.throwIfAborted();
    const control = new AbortController();
    let running: string | undefined;
    let ending: Promise<void> | undefined;
    const abort = () => {
      // Before the code has begun, leaving is enough: it is never run.
      ending = (running === undefined ? Promise.resolve() : this._interrupt(running)).finally(() => control.abort());
    };
    signal?.addEventListener("abort", abort, { once: true });
    const json = { code, language, context, timeout_ms: milliseconds(timeout) };
    const path = sandboxPath(this.#sandbox, "/code/run");
    const headers = { accept: NDJSON };
    const said = { stdout: "", stderr: "" };
    const results: CodeOutput[] = [];
    let thrown: CodeError | undefined;
    let end: CodeEvent | undefined;
    try {
      const call = { method: "POST", path, json, headers, patience: null, signal: control.signal } as const;
      for await (const value of this.#client._lines(call)) {
        const event = value as CodeEvent;
        if (event.type === "started") {
          running = (event.context as { id: string }).id;
          if (signal?.aborted) abort();
        } else if (event.type === "stdout" || event.type === "stderr") {
          said[event.type] += event.text;
          await (event.type === "stdout" ? options.onStdout : options.onStderr)?.(event.text);
        } else if (event.type === "result") {
          const result = new CodeOutput(event.result);
          results.push(result);
          await options.onResult?.(result);
        } else if (event.type === "error") {
          thrown = event.error as CodeError;
        } else if (event.type === "failed") {
          throw fromDetail(event.error);
        } else if (event.type === "end") {
          end = event;
        }
      }
    } catch (error) {
      if (signal?.aborted) await ending;
      else throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    signal?.throwIfAborted();
    if (end === undefined) throw new ConnectionError("lost the connection before the code ended");
    return new CodeResult({
      context: String(end.context),
      stdout: said.stdout,
      stderr: said.stderr,
      results,
      error: thrown,
      exitCode: end.exit_code ?? undefined,
      timedOut: end.timed_out === true,
      contextEnded: end.context_ended === true,
      truncated: end.truncated === true,
      duration: (end.duration_ms ?? 0) / 1000,
    })._checked(options.check);
  }

  /** @internal Interrupts a context; no error when it has ended already, or when the server does not answer. */
  async _interrupt(context: string): Promise<void> {
    const path = sandboxPath(this.#sandbox, `/code/contexts/${encodeURIComponent(context)}/interrupt`);
    await this.#client._done({ method: "POST", path, patience: ABORT_PATIENCE_S }).catch(() => {});
  }
}

/** A context with its own variables. `await using` deletes it. */
export class CodeContext implements AsyncDisposable {
  /** Its language, directory and user. */
  readonly info: CodeContextInfo;
  readonly #code: Code;
  readonly #client: Client;
  readonly #path: string;

  /** @internal */
  constructor(code: Code, client: Client, sandbox: string, info: CodeContextInfo) {
    this.#code = code;
    this.#client = client;
    this.#path = sandboxPath(sandbox, `/code/contexts/${encodeURIComponent(info.id)}`);
    this.info = info;
  }

  get id(): string {
    return this.info.id;
  }

  get language(): Language {
    return this.info.language;
  }

  async [asyncDispose](): Promise<void> {
    try {
      await this.delete();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  /** Runs code in this context, like `box.code.run`. */
  async run(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    return this.#code._run(code, this.id, options);
  }

  /** Interrupts the code that runs now. Variables are kept. */
  async interrupt(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "POST", path: `${this.#path}/interrupt`, ...options });
  }

  /** Deletes the context. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "DELETE", path: this.#path, ...options });
  }
}
