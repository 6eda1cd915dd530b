/** The connection to a server: requests with retries, and calls that are not about one sandbox. */

import { type ApiError, ConnectionError, CoveError, fromDetail } from "./errors.js";
import { asyncDispose, sleep } from "./flow.js";
import { Leases } from "./leases.js";
import { camel } from "./names.js";
import { joined } from "./results.js";
import { type ClientOptions, resolve, Settings } from "./settings.js";
import { open, reason, type Transport, unseen, untrusted } from "./transport.js";
import type { Approval, Event, ImageInfo, Key, Scope, Secret, SecretLimit, SecretUser, SshKey, Usage } from "./types.js";
import {
  ATTEMPTS_MAX,
  type Call,
  type Cancel,
  failure,
  Lines,
  NDJSON,
  parsed,
  PATIENCE_S,
  pauseBefore,
  queryString,
  RECONNECT_FOR_MS,
  RECONNECT_PAUSE_MS,
  repeatable,
  resendable,
  wholeSeconds,
  worthAnotherTry,
} from "./wire.js";

/** What {@link Client.pull} takes beside the image. */
export interface PullOptions extends Cancel {
  username?: string | undefined;
  password?: string | undefined;
}

const shared = new Map<string, Client>();

/**
 * A server and a key. Most programs need none: sandboxes find the server by themselves.
 *
 * Without options `COVE_URL` and `COVE_API_KEY` are used, then the context that `cove login` stored. On the server's
 * own machine root needs neither.
 */
export class Client {
  readonly #settings: Settings;
  #transport: Transport | undefined;
  /** @internal */
  readonly _leases = new Leases((call) => this._json(call));

  constructor(options: ClientOptions = {}) {
    this.#settings = options instanceof Settings ? options : resolve(options);
  }

  /** The client of sandboxes that are created without one. */
  static default(): Client {
    const settings = resolve();
    const key = JSON.stringify(settings);
    let client = shared.get(key);
    if (client === undefined) shared.set(key, (client = new Client(settings)));
    return client;
  }

  /** The server's address. */
  get url(): string {
    return this.#settings.url;
  }

  /** Closes its connections and stops renewing leases. */
  async close(): Promise<void> {
    this._leases.stop();
    const transport = this.#transport;
    this.#transport = undefined;
    await transport?.close();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Lists the images that sandboxes can start from. */
  async images(options: Cancel = {}): Promise<ImageInfo[]> {
    return this._items<ImageInfo>({ method: "GET", path: "/v1/images", ...options });
  }

  /** Returns an image by name or id. */
  async image(name: string, options: Cancel = {}): Promise<ImageInfo> {
    return this._get<ImageInfo>({ method: "GET", path: `/v1/images/${encodeURIComponent(name)}`, ...options });
  }

  /** Pulls an image from an OCI registry, for example `docker.io/library/python:3.12-slim`. */
  async pull(reference: string, options: PullOptions = {}): Promise<ImageInfo> {
    const { signal, username, password } = options;
    let last: { state?: string; error?: unknown; image?: unknown } | undefined;
    for await (const job of this._lines({
      method: "POST",
      path: "/v1/images",
      json: { type: "registry", reference, username, password },
      headers: { accept: NDJSON },
      patience: null,
      signal,
    })) {
      last = job as typeof last;
    }
    if (last === undefined || last.state === "running") {
      throw new ConnectionError("the server ended before the image was ready");
    }
    if (last.error) throw fromDetail(last.error);
    return camel<ImageInfo>(last.image);
  }

  /** Removes an image that no sandbox uses. */
  async removeImage(name: string, options: Cancel = {}): Promise<void> {
    await this._done({ method: "DELETE", path: `/v1/images/${encodeURIComponent(name)}`, ...options });
  }

  /** Returns the usage of the organisation or of one sandbox: CPU, memory and disk over time. */
  async usage(sandbox?: string, options: Cancel = {}): Promise<Usage> {
    const call: Call = { method: "GET", path: "/v1/usage", query: { sandbox }, ...options };
    return camel<Usage>(((await this._json(call)) as { total: unknown }).total);
  }

  /** Lists the kept events of all sandboxes, oldest first. */
  async events(after?: number, options: Cancel = {}): Promise<Event[]> {
    return this._items<Event>({ method: "GET", path: "/v1/events", query: { after }, ...options });
  }

  /**
   * Yields new events of all sandboxes without end; with `after`, first those after that event. After a lost
   * connection it reconnects and continues after the last event.
   */
  followEvents(after?: number, options: Cancel = {}): AsyncGenerator<Event, void, undefined> {
    return this._events("/v1/events", after, options.signal);
  }

  /** Lists the API keys that this key can see. */
  async keys(options: Cancel = {}): Promise<Key[]> {
    return this.#all<Key>({ method: "GET", path: "/v1/keys", ...options });
  }

  /**
   * Creates an API key. Its `token` is shown only here; `expires` is in seconds; `sandbox` binds it to one
   * sandbox.
   */
  async createKey(
    name: string,
    scopes: readonly Scope[] = ["manage"],
    options: Cancel & { expires?: number; org?: string; sandbox?: string } = {},
  ): Promise<Key> {
    const { expires, org, sandbox, signal } = options;
    const json = { name, scopes, org, sandbox, expires_in_s: wholeSeconds("expires", expires) };
    return this._get<Key>({ method: "POST", path: "/v1/keys", json, signal });
  }

  /** Revokes a key immediately and for ever. */
  async revokeKey(id: string, options: Cancel = {}): Promise<void> {
    await this._done({ method: "DELETE", path: `/v1/keys/${encodeURIComponent(id)}`, ...options });
  }

  /** Lists the public keys that can log in to the organisation's sandboxes over SSH. */
  async sshKeys(options: Cancel = {}): Promise<SshKey[]> {
    return this.#all<SshKey>({ method: "GET", path: "/v1/ssh-keys", ...options });
  }

  /** Adds a public key (a line like that of `id_ed25519.pub`) for SSH logins; `expires` is in seconds. */
  async addSshKey(name: string, publicKey: string, options: Cancel & { expires?: number } = {}): Promise<SshKey> {
    const json = { name, public_key: publicKey.trim(), expires_in_s: wholeSeconds("expires", options.expires) };
    return this._get<SshKey>({ method: "POST", path: "/v1/ssh-keys", json, signal: options.signal });
  }

  /** Removes a public key for SSH logins. */
  async removeSshKey(id: string, options: Cancel = {}): Promise<void> {
    await this._done({ method: "DELETE", path: `/v1/ssh-keys/${encodeURIComponent(id)}`, ...options });
  }

  /** Lists the secrets of the organisation. No call returns a value. */
  async secrets(options: Cancel = {}): Promise<Secret[]> {
    return this.#all<Secret>({ method: "GET", path: "/v1/secrets", ...options });
  }

  /**
   * Stores a secret, or a new value of one, for requests to `hosts`. `use` is its place in a request: `bearer`,
   * `basic`, `header:NAME`, `query:NAME`, `form:NAME`, `totp:PLACE:NAME`, `sigv4:REGION/SERVICE`, or `exposed`,
   * without hosts, for a value that sandboxes hold themselves. With `ask` each request that uses it waits for
   * `approve`. `limits` bound what all requests that use it
   * may use.
   */
  async setSecret(
    name: string,
    value: string,
    options: Cancel & { hosts?: readonly string[]; use?: string; ask?: boolean; limits?: readonly SecretLimit[] } = {},
  ): Promise<Secret> {
    const { hosts = [], use = "bearer", ask = false, limits = [] } = options;
    const json = { name, value, hosts: [...hosts], use, ask, limits: limits.map((limit) => ({ ...limit })) };
    return this._get<Secret>({ method: "POST", path: "/v1/secrets", json, signal: options.signal });
  }

  /** Lists the sandboxes that used a secret, the latest first. */
  async secretUses(name: string, options: Cancel = {}): Promise<SecretUser[]> {
    return this.#all<SecretUser>({ method: "GET", path: `/v1/secrets/${encodeURIComponent(name)}/uses`, ...options });
  }

  /** Removes a secret and closes connections that used it. */
  async removeSecret(name: string, options: Cancel = {}): Promise<void> {
    await this._done({ method: "DELETE", path: `/v1/secrets/${encodeURIComponent(name)}`, ...options });
  }

  /** Lists requests of sandboxes that wait for an approval, and decided ones; oldest first. */
  async approvals(options: Cancel = {}): Promise<Approval[]> {
    return this.#all<Approval>({ method: "GET", path: "/v1/approvals", ...options });
  }

  /**
   * Approves one request with a secret. With `seconds`, approves all requests of its sandbox with the secret to
   * the host for that time.
   */
  async approve(id: string, options: Cancel & { seconds?: number } = {}): Promise<void> {
    const json = { decision: "approve", for_seconds: wholeSeconds("seconds", options.seconds) };
    const path = `/v1/approvals/${encodeURIComponent(id)}`;
    await this._done({ method: "POST", path, json, signal: options.signal });
  }

  /** Denies a request with a secret, or revokes its approval. */
  async deny(id: string, options: Cancel = {}): Promise<void> {
    const path = `/v1/approvals/${encodeURIComponent(id)}`;
    await this._done({ method: "POST", path, json: { decision: "deny" }, signal: options.signal });
  }

  async #all<T>(call: Call): Promise<T[]> {
    const found: T[] = [];
    for await (const item of this._pages<T>(call)) found.push(item);
    return found;
  }

  /** @internal The answer's head, its body still to come. Tries again where that is safe and may help. */
  async _send(call: Call): Promise<Answer> {
    const transport = (this.#transport ??= open(this.#settings));
    for (let attempt = 1; ; attempt++) {
      call.signal?.throwIfAborted();
      let refused: ApiError | undefined;
      const last = attempt >= ATTEMPTS_MAX || !resendable(call);
      try {
        const answer = await this.#attempt(transport, call);
        const { status, headers } = answer.response;
        if (status < 400) return answer;
        refused = failure(status, headers.get("retry-after"), await answer.text());
        // An earlier try did it.
        if (call.method === "DELETE" && attempt > 1 && refused.code === "not_found") return answer;
        if (last || !worthAnotherTry(call, refused)) throw refused;
      } catch (error) {
        if (error instanceof CoveError && !(error instanceof ConnectionError)) throw error;
        call.signal?.throwIfAborted();
        if (untrusted(error)) {
          const hint = "name a PEM file that has it: COVE_CA_FILE, or caFile of the client";
          const what = `the certificate of ${this.url} is not trusted`;
          throw new ConnectionError(`${what}: ${reason(error)}; ${hint}`, { cause: error });
        }
        const early = unseen(error);
        if (last || !(early || repeatable(call))) {
          if (error instanceof CoveError) throw error;
          const hint = early ? "; is it running? COVE_URL, or `cove login`, says where it is" : "";
          const what = early ? `cannot reach ${this.url}` : "lost the connection";
          throw new ConnectionError(`${what}: ${reason(error)}${hint}`, { cause: error });
        }
      }
      await sleep(pauseBefore(attempt, refused), call.signal);
    }
  }

  async #attempt(transport: Transport, call: Call): Promise<Answer> {
    const control = new AbortController();
    const watch = new Watch(control, call);
    const headers: Record<string, string> = { ...call.headers };
    if (this.#settings.apiKey !== undefined) headers["authorization"] = `Bearer ${this.#settings.apiKey}`;
    const init: RequestInit & { duplex?: "half" } = { method: call.method, headers, signal: control.signal };
    if (call.json !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(call.json);
    } else if (call.content !== undefined) {
      headers["content-type"] ??= "application/octet-stream";
      const body = typeof call.content === "function" ? call.content() : call.content;
      init.body = body as NonNullable<RequestInit["body"]>;
      if (body instanceof ReadableStream) init.duplex = "half";
    }
    try {
      const response = await watch.during(transport.send(this.url + call.path + queryString(call.query), init));
      return new Answer(response, control, watch);
    } catch (error) {
      watch.end();
      throw watch.cause(error);
    }
  }

  /** @internal */
  async _json(call: Call): Promise<unknown> {
    return parsed(await (await this._send(call)).text());
  }

  /** @internal */
  async _get<T>(call: Call): Promise<T> {
    return camel<T>(await this._json(call));
  }

  /** @internal */
  async _items<T>(call: Call): Promise<T[]> {
    return ((await this._get<{ items: T[] }>(call)) as { items: T[] }).items;
  }

  /** @internal */
  async _done(call: Call): Promise<void> {
    await (await this._send(call)).text();
  }

  /** @internal The items of a list, page by page. */
  async *_pages<T>(call: Call): AsyncGenerator<T, void, undefined> {
    let cursor: string | undefined;
    do {
      const page = await this._get<{ items: T[]; nextCursor?: string }>({ ...call, query: { ...call.query, cursor } });
      yield* page.items;
      cursor = page.nextCursor;
    } while (cursor);
  }

  /** @internal The JSON values of a live answer as they come. */
  async *_lines(call: Call): AsyncGenerator<unknown, void, undefined> {
    const lines = new Lines();
    for await (const piece of (await this._send(call)).pieces()) yield* lines.feed(piece);
  }

  /** @internal Events as they happen, over broken connections and restarts of the server. */
  async *_events(path: string, after: number | undefined, signal?: AbortSignal): AsyncGenerator<Event, void, undefined> {
    let last = after;
    let lost: number | undefined;
    for (;;) {
      const lines = new Lines();
      const begun = Date.now();
      let why: CoveError = new ConnectionError("the server closed the stream of events");
      try {
        const call: Call = { method: "GET", path, query: { follow: true, after: last }, patience: null, signal };
        for await (const piece of (await this._send(call)).pieces()) {
          for (const [kind, data] of lines.events(piece)) {
            if (kind === "lost") {
              throw new CoveError("some events were lost, because they were not read in time; begin again with events()");
            }
            const event = camel<Event>(data);
            last = event.id;
            lost = undefined;
            yield event;
          }
        }
      } catch (error) {
        if (!(error instanceof ConnectionError)) throw error;
        why = error;
      }
      const now = Date.now();
      if (lost === undefined || now - begun > RECONNECT_FOR_MS) lost = now;
      if (now - lost > RECONNECT_FOR_MS) throw why;
      await sleep(RECONNECT_PAUSE_MS, signal);
    }
  }

  /**
   * @internal The values of a command's live answer over broken connections and restarts of the server. `again`
   * is the call that goes on where the values so far ended, or undefined when there is nothing to go on with.
   */
  async *_reconnecting(first: Call, again: () => Call | undefined): AsyncGenerator<unknown, void, undefined> {
    let call = first;
    let lost: number | undefined;
    let ended = false;
    for (;;) {
      let why: CoveError | undefined;
      const begun = Date.now();
      try {
        for await (const value of this._lines(call)) {
          const { type, error } = value as { type?: unknown; error?: unknown };
          if (type === "error") {
            const problem = fromDetail(error);
            if (!["unavailable", "guest_unreachable"].includes(problem.code)) throw problem;
            why = problem;
            break;
          }
          lost = undefined;
          ended = type === "exit";
          yield value;
          // Nothing follows an exit. Reading on lets the answer end, so that its connection can be used again.
        }
        if (ended) return;
        why ??= new ConnectionError("the output ended early");
      } catch (error) {
        if (ended) return;
        if (!(error instanceof ConnectionError)) throw error;
        why = error;
      }
      const now = Date.now();
      // A connection that lasted was a good one, even when the command had nothing to say.
      if (lost === undefined || now - begun > RECONNECT_FOR_MS) lost = now;
      const onward = again();
      if (onward === undefined || now - lost > RECONNECT_FOR_MS) throw why;
      call = onward;
      await sleep(RECONNECT_PAUSE_MS, call.signal);
    }
  }
}

/** Ends a request when its caller wants that, or when nothing came for too long. */
class Watch {
  readonly #control: AbortController;
  readonly #call: Call;
  readonly #abort = () => this.#control.abort(this.#call.signal?.reason);
  #silent = false;

  constructor(control: AbortController, call: Call) {
    this.#control = control;
    this.#call = call;
    call.signal?.addEventListener("abort", this.#abort, { once: true });
  }

  /** Waits for something that must come before the patience ends. */
  async during<T>(work: Promise<T>): Promise<T> {
    const patience = this.#call.patience === undefined ? PATIENCE_S : this.#call.patience;
    if (patience === null) return work;
    const timer = setTimeout(() => {
      this.#silent = true;
      this.#control.abort();
    }, patience * 1000);
    try {
      return await work;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Why the request ended, when something it waited for failed. */
  cause(error: unknown): unknown {
    if (this.#call.signal?.aborted) return this.#call.signal.reason;
    if (this.#silent) return new ConnectionError("the server did not answer in time", { cause: error });
    return error;
  }

  end(): void {
    this.#call.signal?.removeEventListener("abort", this.#abort);
  }
}

/** An answer whose body is still to come. */
class Answer {
  readonly response: Response;
  readonly #control: AbortController;
  readonly #watch: Watch;

  constructor(response: Response, control: AbortController, watch: Watch) {
    this.response = response;
    this.#control = control;
    this.#watch = watch;
  }

  async *pieces(): AsyncGenerator<Uint8Array, void, undefined> {
    // What was refused has been read already.
    const reader = this.response.bodyUsed ? undefined : this.response.body?.getReader();
    let done = reader === undefined;
    try {
      while (reader !== undefined) {
        const read = await this.#watch.during(reader.read());
        done = read.done;
        if (read.done) return;
        yield read.value;
      }
    } catch (error) {
      const cause = this.#watch.cause(error);
      if (cause !== error || error instanceof CoveError) throw cause;
      throw new ConnectionError(`lost the connection: ${reason(error)}`, { cause: error });
    } finally {
      this.#watch.end();
      if (!done) {
        this.#control.abort();
        reader?.cancel().catch(() => {});
      }
    }
  }

  async bytes(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this.pieces()) pieces.push(piece);
    return pieces.length === 1 && pieces[0] ? pieces[0] : joined(pieces);
  }

  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }
}
