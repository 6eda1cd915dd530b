/** The sandbox itself. */

import { Client } from "./client.js";
import { Code } from "./code.js";
import { ConflictError, CoveError, NotFoundError, WaitTimeout } from "./errors.js";
import { Files, type Runner } from "./files.js";
import { asyncDispose, each, sleep, undoing, values } from "./flow.js";
import { Git } from "./git.js";
import { Image } from "./image.js";
import type { LeaseOptions } from "./leases.js";
import { LEASE_DEFAULT_S, PAGE_MAX, STOP_GRACE_DEFAULT_MS } from "./limits.js";
import { camel, snake } from "./names.js";
import { Process, processInfo, Stream, Terminal } from "./process.js";
import type { Check, Result } from "./results.js";
import { type ClientChoice, type ForkOptions, Forks, Snapshot, SNAPSHOT_PATIENCE_S } from "./snapshot.js";
import type {
  Egress,
  Event,
  Identity,
  IdentityToken,
  Metrics,
  NetworkPolicy,
  Placement,
  Port,
  ProcessInfo,
  Service,
  ResourcesRequest,
  SandboxInfo,
  SecretGrant,
  Share,
  SnapshotInfo,
  SshAccess,
  State,
  Timeline,
} from "./types.js";
import { Template } from "./template.js";
import { type Mounted, mounts } from "./volume.js";
import {
  type Call,
  type Cancel,
  type Command,
  commandBody,
  type CommandOptions,
  inputBody,
  lifecycle,
  type LifecycleOptions,
  megabytes,
  given,
  networkBody,
  once,
  PATIENCE_S,
  sandboxPath,
  shown,
  type Size,
  unlessEmpty,
  wholeSeconds,
} from "./wire.js";

/** Seconds a create may take: an image may have to be made first. */
const CREATE_PATIENCE_S = 1200;
/** What a terminal runs by default. */
const LOGIN_SHELL: Command = ["/bin/sh", "-c", "exec $(command -v bash || echo sh) -i"];
/** Milliseconds between two looks for a port. */
const PORT_PAUSE_MS = 20;
/** Works of {@link Sandbox.map} that are done at once. */
const MAP_AT_ONCE = 10;

/** `"none"`, `"open"`, a list of what can be reached, or the policy itself. */
export type Network = "none" | "open" | readonly string[] | NetworkPolicy;

/** What {@link Sandbox.create} takes. Everything has a default. */
export interface SandboxOptions extends ClientChoice, LifecycleOptions, LeaseOptions {
  /** Default: `debian`. */
  image?: string | undefined;
  /** Start from a snapshot's disk instead of an image. */
  snapshot?: string | Snapshot | undefined;
  /** With `snapshot`: continue its processes. */
  restoreMemory?: boolean | undefined;
  /** Start from a template with its defaults: the object, `name`, `name:tag`, `name:version` or its id. */
  template?: string | Template | undefined;
  name?: string | undefined;
  /** CPUs. Default: 1. */
  cpu?: number | undefined;
  /** Default: 1 GiB. */
  memory?: Size | undefined;
  disk?: Size | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  /** User that its commands run as. */
  user?: string | undefined;
  /** Working directory of its commands. */
  workdir?: string | undefined;
  /** Network policy. Default: `"none"`. */
  network?: Network | undefined;
  isolation?: string | undefined;
  /** With `isolation: "vm"`. Default: `"kvm"`; `"software"` is slow emulation. */
  accel?: "kvm" | "software" | undefined;
  /** Gives it an identity, with tokens from `http://cove.internal:16910/`. `{}` grants nothing else. */
  identity?: Identity | undefined;
  /** Secrets of the organisation that it may use through placeholders. `network` must list their hosts. */
  secrets?: readonly SecretGrant[] | undefined;
  /** Mounts: `{ "/data": volume }`, or `{ "/data": { volume, readOnly: true } }`. */
  volumes?: Readonly<Record<string, Mounted>> | undefined;
  /** Which hosts it may be on: labels, a zone, taints to tolerate. Default: any host without taints. */
  placement?: Placement | undefined;
  /** Limits that have no option of their own here. */
  resources?: Partial<ResourcesRequest> | undefined;
  /** Whether `await using` does not delete it. It has no lease then. {@link Sandbox.get} finds it again. */
  keep?: boolean | undefined;
}

/** What {@link Sandbox.run} takes. */
export interface RunOptions extends CommandOptions {
  /** Its standard input. */
  input?: string | Uint8Array | undefined;
  /** Whether a failure throws {@link CommandFailed}. Default: only when the timeout passed. */
  check?: Check;
  /** Called with text as it arrives. */
  onStdout?: ((text: string) => void | Promise<void>) | undefined;
  onStderr?: ((text: string) => void | Promise<void>) | undefined;
}

/** What {@link Sandbox.start} takes. */
export interface StartOptions extends CommandOptions {
  /** Whether its input stays open for {@link Process.send}. */
  stdin?: boolean | undefined;
  /** Label to find it by. */
  tag?: string | undefined;
  /** Bytes of each stream that the sandbox keeps. Default: 256 KiB. */
  keepOutput?: number | undefined;
}

/** What {@link Sandbox.terminal} takes. */
export interface TerminalOptions extends Omit<CommandOptions, "timeout"> {
  /** Default: 80. */
  cols?: number | undefined;
  /** Default: 24. */
  rows?: number | undefined;
}

/** What {@link Sandbox.startService} takes. */
export interface ServiceOptions extends Omit<CommandOptions, "timeout"> {
  /** Whether it is started again after its end. Default: `on_failure`. */
  restart?: "no" | "on_failure" | "always" | undefined;
}

/** Options of {@link Sandbox.update}; fields that are not given stay. */
export interface UpdateOptions extends Cancel, LifecycleOptions {
  name?: string | undefined;
  labels?: Readonly<Record<string, string>> | undefined;
  cpu?: number | undefined;
  memory?: Size | undefined;
  memoryMax?: Size | undefined;
  disk?: Size | undefined;
  pids?: number | undefined;
}

/** What {@link Sandbox.egress} takes. */
export interface EgressOptions extends Cancel {
  verdict?: Egress["verdict"] | undefined;
  protocol?: Egress["protocol"] | undefined;
  name?: string | undefined;
  after?: number | undefined;
  /** Whether to continue with new decisions. */
  follow?: boolean | undefined;
}

function createBody(options: SandboxOptions, lease: object | undefined): unknown {
  const { image, snapshot, template, restoreMemory, name, isolation, accel } = options;
  const { env, labels, user, workdir } = options;
  if ((image as unknown) instanceof Image) {
    throw new CoveError("image: build it with Template.build(name, { image }), then give the template");
  }
  const limits = {
    cpu: options.cpu,
    memory_mb: megabytes("memory", options.memory),
    disk_mb: megabytes("disk", options.disk),
  };
  return {
    image,
    snapshot: snapshot instanceof Snapshot ? snapshot.id : snapshot,
    memory: restoreMemory || undefined,
    template: template instanceof Template ? template.id : template,
    name,
    isolation,
    accel,
    identity: options.identity && snake(options.identity),
    secrets: options.secrets,
    resources: unlessEmpty({ ...(snake(options.resources ?? {}) as object), ...given(limits) }),
    env,
    labels,
    user,
    workdir,
    network: networkBody(options.network),
    lifecycle: unlessEmpty({ ...lifecycle(options), ...given({ lease }) }),
    volumes: mounts(options.volumes),
    placement: options.placement,
  };
}

/**
 * A machine that is created in milliseconds and deleted at the end of its block.
 *
 * ```ts
 * await using box = await Sandbox.create();
 * console.log((await box.run("echo hello")).stdout);
 * ```
 */
export class Sandbox implements AsyncDisposable {
  /** Its files. */
  readonly files: Files;
  /** Its code interpreter. */
  readonly code: Code;
  /** Its working trees. */
  readonly git: Git;
  readonly #client: Client;
  #keep: boolean;
  #leased: boolean;
  #info: SandboxInfo;
  #deleted = false;

  /** @internal */
  constructor(client: Client, info: SandboxInfo, keep: boolean, lease: number | null = null) {
    this.#client = client;
    this.#info = info;
    this.#keep = keep;
    this.#leased = lease !== null;
    if (lease !== null) client._leases.hold(info.id, lease);
    const run: Runner = (command, options) => this.run(command, options);
    this.files = new Files(client, info.id, run);
    this.code = new Code(client, info.id);
    this.git = new Git(run);
  }

  /** Creates a sandbox from an image or with options. */
  static async create(image: string, options?: SandboxOptions): Promise<Sandbox>;
  static async create(options?: SandboxOptions): Promise<Sandbox>;
  static async create(first?: string | SandboxOptions, second: SandboxOptions = {}): Promise<Sandbox> {
    const options = typeof first === "string" ? { ...second, image: first } : (first ?? {});
    const { client = Client.default(), keep = false, leaseDeleteAfter, signal } = options;
    const lease = keep ? null : options.lease === undefined ? LEASE_DEFAULT_S : options.lease;
    const asked = lease === null ? undefined : client._leases.request(lease, leaseDeleteAfter);
    const json = createBody(options, asked);
    // The same key for every try, so that there is never more than one.
    const call = once({ method: "POST", path: "/v1/sandboxes", json, patience: CREATE_PATIENCE_S });
    return undoing(
      signal,
      async () => new Sandbox(client, await client._get<SandboxInfo>(call), keep, lease),
      (box) => box.delete(),
    );
  }

  /**
   * Creates a sandbox, does the work with it and deletes it, for runtimes without `await using`.
   *
   * ```ts
   * const text = await Sandbox.with(async (box) => (await box.run("date")).stdout);
   * ```
   */
  static async with<R>(work: (box: Sandbox) => Promise<R> | R): Promise<R>;
  static async with<R>(options: SandboxOptions, work: (box: Sandbox) => Promise<R> | R): Promise<R>;
  static async with<R>(
    first: SandboxOptions | ((box: Sandbox) => Promise<R> | R),
    second?: (box: Sandbox) => Promise<R> | R,
  ): Promise<R> {
    const [options, work] = typeof first === "function" ? [{}, first] : [first, second];
    if (work === undefined) throw new TypeError("the second argument must be a function");
    const box = await Sandbox.create(options);
    try {
      return await work(box);
    } finally {
      await box[asyncDispose]();
    }
  }

  /** Returns an existing sandbox, by id or name. `await using` does not delete it. */
  static async get(sandbox: string, options: ClientChoice = {}): Promise<Sandbox> {
    const { client = Client.default(), signal } = options;
    const info = await client._get<SandboxInfo>({ method: "GET", path: sandboxPath(sandbox), signal });
    return new Sandbox(client, info, true);
  }

  /**
   * Returns an existing sandbox, by id or name, and takes its lease over or starts one. `await using` deletes
   * it. The former holder can keep using the sandbox, but no longer renews or deletes it.
   */
  static async connect(sandbox: string, options: ClientChoice & LeaseOptions = {}): Promise<Sandbox> {
    const { client = Client.default(), leaseDeleteAfter, signal } = options;
    const lease = options.lease ?? LEASE_DEFAULT_S;
    const json = client._leases.request(lease, leaseDeleteAfter);
    const info = await client._get<SandboxInfo>({ method: "PUT", path: sandboxPath(sandbox, "/lease"), json, signal });
    return new Sandbox(client, info, false, lease);
  }

  /** Ends the lease: the sandbox stays until it is deleted, and `await using` does not delete it. */
  async detach(options: Cancel = {}): Promise<this> {
    await this.#asHolder("/lease", options);
    this.#leased = false;
    this.#keep = true;
    return this.refresh(options);
  }

  /** A deletion that this client can make only while it has the lease. Without the lease it does nothing. */
  async #asHolder(rest: string, options: Cancel = {}): Promise<void> {
    const { holder } = this.#client._leases;
    this.#client._leases.drop(this.id);
    try {
      await this.#client._done(this.#call("DELETE", rest, { query: { holder }, ...options }));
    } catch (error) {
      if (!(error instanceof ConflictError) || (await this.refresh()).info.lease?.holder === holder) throw error;
    }
  }

  /** Lists sandboxes: all, or those that match. */
  static async *list(
    options: ClientChoice & { labels?: Readonly<Record<string, string>>; state?: State; name?: string } = {},
  ): AsyncGenerator<Sandbox, void, undefined> {
    const { client = Client.default(), labels = {}, state, name, signal } = options;
    const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`).join(",") || undefined;
    const call: Call = { method: "GET", path: "/v1/sandboxes", query: { labels: pairs, state, name }, signal };
    for await (const info of client._pages<SandboxInfo>(call)) yield new Sandbox(client, info, true);
  }

  async [asyncDispose](): Promise<void> {
    if (this.#keep || this.#deleted) return;
    try {
      if (this.#leased) await this.#asHolder("");
      else await this.delete();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
    this.#deleted = true;
  }

  /** The state that the server last reported; {@link refresh} updates it. */
  get info(): SandboxInfo {
    return this.#info;
  }

  get id(): string {
    return this.#info.id;
  }

  get name(): string | undefined {
    return this.#info.name;
  }

  get state(): State {
    return this.#info.state;
  }

  get labels(): Readonly<Record<string, string>> {
    return this.#info.labels;
  }

  #call(method: Call["method"], rest = "", more: Partial<Call> = {}): Call {
    return { method, path: sandboxPath(this.id, rest), ...more };
  }

  async #told(call: Call): Promise<this> {
    this.#info = await this.#client._get<SandboxInfo>(call);
    return this;
  }

  /** Updates {@link info} from the server. */
  async refresh(options: Cancel = {}): Promise<this> {
    return this.#told(this.#call("GET", "", options));
  }

  /**
   * Runs a command and waits until it ends. A string is for the user's shell; an array is a program and its
   * arguments, without a shell.
   *
   * After `timeout` seconds the command and its children are killed, and this throws {@link CommandTimedOut};
   * with `check: false` the result says `timedOut` instead. With `check: true` any exit code but 0 throws
   * {@link CommandFailed}. Aborting the signal kills the command. A lost connection or a restart of the server
   * does not end it: the output continues where it stopped.
   */
  async run(command: Command, options: RunOptions = {}): Promise<Result> {
    const { check, onStdout, onStderr, ...rest } = options;
    const stream = this.stream(command, rest);
    try {
      for await (const out of stream) {
        if (out.text) await (out.stream === "stdout" ? onStdout : onStderr)?.(out.text);
      }
      return await stream.result(check === undefined ? {} : { check });
    } finally {
      await stream.close();
    }
  }

  /** Runs a command and yields its output while it runs; `result()` of the stream returns its result. */
  stream(command: Command, options: Omit<RunOptions, "check" | "onStdout" | "onStderr"> = {}): Stream {
    const body = { ...commandBody(command, options), ...inputBody(options.input) };
    return new Stream(this.#client, this.id, body, shown(command), options.signal);
  }

  /** Starts a command in the background, such as a server or a long build. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const { stdin, tag, keepOutput, signal } = options;
    const body = { ...commandBody(command, options), tag, ring_bytes: keepOutput, stdin_open: stdin || undefined };
    const begin = async () => new Process(this.#client, this.id, await this.#begin(body), shown(command));
    return undoing(signal, begin, (made) => made._end());
  }

  /** Opens a terminal with a shell or a command. */
  async terminal(command: Command = LOGIN_SHELL, options: TerminalOptions = {}): Promise<Terminal> {
    const { cols = 80, rows = 24, signal } = options;
    const body = { ...commandBody(command, options), pty: { cols, rows } };
    const begin = async () => new Terminal(this.#client, this.id, await this.#begin(body), shown(command));
    return undoing(signal, begin, (made) => made._end());
  }

  async #begin(json: unknown): Promise<string> {
    return (await this.#client._get<ProcessInfo>(this.#call("POST", "/processes", { json }))).id;
  }

  /** Lists the commands of this sandbox, including ended ones that are still recorded. */
  async processes(options: Cancel = {}): Promise<ProcessInfo[]> {
    return (await this.#client._items<ProcessInfo>(this.#call("GET", "/processes", options))).map(processInfo);
  }

  /** Returns a command by id, to follow it, write to it or end it. */
  async process(id: string, options: Cancel = {}): Promise<Process> {
    const call = this.#call("GET", `/processes/${encodeURIComponent(id)}`, options);
    const info = await this.#client._get<ProcessInfo>(call);
    return new Process(this.#client, this.id, info.id, shown(info.argv));
  }

  /**
   * Starts a command that comes back when the sandbox is started, and when it ends if `restart` says so. `env` is
   * kept on the sandbox's disk; variables of the sandbox and its secrets are not.
   */
  async startService(name: string, command: Command, options: ServiceOptions = {}): Promise<Service> {
    const { restart, signal } = options;
    const json = { ...commandBody(command, options), name, restart };
    return this.#client._get<Service>(this.#call("POST", "/services", { json, signal }));
  }

  /** Lists the services of this sandbox. */
  async services(options: Cancel = {}): Promise<Service[]> {
    return this.#client._items<Service>(this.#call("GET", "/services", options));
  }

  /** Ends a service and removes it. */
  async removeService(name: string, options: Cancel = {}): Promise<void> {
    await this.#client._done(this.#call("DELETE", `/services/${encodeURIComponent(name)}`, options));
  }

  /** Lists the TCP ports that programs in the sandbox listen on. */
  async ports(options: Cancel = {}): Promise<Port[]> {
    const found = await this.#client._items<Port>(this.#call("GET", "/ports", options));
    return found.map((port) => ({ ...port, public: port.public ?? false }));
  }

  /** Waits until a program in the sandbox listens on a port, at most `timeout` seconds (default 30). */
  async waitForPort(port: number, options: Cancel & { timeout?: number } = {}): Promise<Port> {
    const { timeout = 30, signal } = options;
    const deadline = Date.now() + timeout * 1000;
    for (;;) {
      const found = (await this.ports({ signal })).find((one) => one.port === port);
      if (found !== undefined) return found;
      if (Date.now() > deadline) throw new WaitTimeout(`nothing listens on port ${port} after ${timeout} seconds`);
      await sleep(PORT_PAUSE_MS, signal);
    }
  }

  /**
   * Returns a link to a server in the sandbox, for people without a key; valid for `expires` seconds (default:
   * an hour). With `public: true` no link is needed until {@link unshare}.
   */
  async share(port: number, options: Cancel & { expires?: number; public?: boolean } = {}): Promise<Share> {
    const json = { expires_s: wholeSeconds("expires", options.expires), public: options.public || undefined };
    const call = this.#call("POST", `/ports/${port}/share`, { json, signal: options.signal });
    const share = await this.#client._get<Share>(call);
    const { hostname, search } = new URL(share.url);
    const url = hostname.endsWith(".localhost") ? share.pathUrl + search : share.url;
    return { ...share, url, browserUrl: share.url };
  }

  /** Revokes all links to a port and makes it private. */
  async unshare(port: number, options: Cancel = {}): Promise<void> {
    await this.#client._done(this.#call("DELETE", `/ports/${port}/share`, options));
  }

  /** Changes what it may reach. Connections that are no longer allowed are closed immediately. */
  async setNetwork(network: Network, options: Cancel = {}): Promise<this> {
    return this.#told(this.#call("PATCH", "", { json: { network: networkBody(network) }, ...options }));
  }

  /** Yields the decisions of its network policy, oldest first; with `follow`, also new ones without end. */
  async *egress(options: EgressOptions = {}): AsyncGenerator<Egress, void, undefined> {
    const { signal, ...query } = options;
    const call = this.#call("GET", "/egress", { query: { ...query, limit: PAGE_MAX }, signal });
    if (!options.follow) {
      yield* await this.#client._items<Egress>(call);
      return;
    }
    for await (const line of this.#client._lines({ ...call, patience: null })) {
      if ((line as { type?: string }).type === "entry") yield camel<Egress>(line);
    }
  }

  /** Returns its resource usage. */
  async metrics(options: Cancel = {}): Promise<Metrics> {
    return this.#client._get<Metrics>(this.#call("GET", "/metrics", options));
  }

  /** Lists its events, oldest first. */
  async events(after?: number, options: Cancel = {}): Promise<Event[]> {
    return this.#client._items<Event>(this.#call("GET", "/events", { query: { after }, ...options }));
  }

  /**
   * Yields its new events without end; with `after`, first those after that event. After a lost connection it
   * reconnects and continues after the last event.
   */
  followEvents(after?: number, options: Cancel = {}): AsyncGenerator<Event, void, undefined> {
    return this.#client._events(sandboxPath(this.id, "/events"), after, options.signal);
  }

  /** Returns a token that identifies the sandbox, valid for `expires` seconds (default: 300, at most 900). */
  async identityToken(audience: string, options: Cancel & { expires?: number } = {}): Promise<IdentityToken> {
    const json = { audience, expires_s: wholeSeconds("expires", options.expires) };
    return this.#client._get<IdentityToken>(this.#call("POST", "/identity", { json, signal: options.signal }));
  }

  /** Returns how to log in over SSH, with a token that is valid for `expires` seconds. */
  async ssh(options: Cancel & { expires?: number } = {}): Promise<SshAccess> {
    const json = { expires_s: wholeSeconds("expires", options.expires) };
    return this.#client._get<SshAccess>(this.#call("POST", "/ssh", { json, signal: options.signal }));
  }

  /** Ends its SSH sessions and revokes all its SSH tokens. */
  async revokeSsh(options: Cancel = {}): Promise<void> {
    await this.#client._done(this.#call("DELETE", "/ssh", options));
  }

  /** Changes its name, labels or limits while it runs; fields that are not given stay. */
  async update(options: UpdateOptions): Promise<this> {
    const times = given(lifecycle(options));
    const json = {
      name: options.name,
      labels: options.labels,
      resources: unlessEmpty({
        cpu: options.cpu,
        memory_mb: megabytes("memory", options.memory),
        memory_max_mb: megabytes("memoryMax", options.memoryMax),
        disk_mb: megabytes("disk", options.disk),
        pids: options.pids,
      }),
      // The server replaces a lifecycle whole.
      lifecycle: unlessEmpty(times) && { ...(snake(this.info.lifecycle) as object), ...times },
    };
    return this.#told(this.#call("PATCH", "", { json, signal: options.signal }));
  }

  /** Ends its processes and keeps its disk; they get `grace` seconds (default 10) to end by themselves. */
  async stop(options: Cancel & { grace?: number } = {}): Promise<this> {
    const { grace, signal } = options;
    const json = grace === undefined ? undefined : { grace_ms: Math.round(grace * 1000) };
    const patience = PATIENCE_S + (grace ?? STOP_GRACE_DEFAULT_MS / 1000);
    return this.#told(this.#call("POST", "/stop", { json, patience, signal }));
  }

  /** Saves its memory to disk and frees CPU and memory. The next command resumes it where it was. */
  async pause(options: Cancel = {}): Promise<this> {
    return this.#told(this.#call("POST", "/pause", { patience: SNAPSHOT_PATIENCE_S, ...options }));
  }

  /** Suspends its processes and keeps them in memory; waking takes about a millisecond. */
  async freeze(options: Cancel = {}): Promise<this> {
    return this.#told(this.#call("POST", "/freeze", options));
  }

  /** Runs it again, whether it was stopped, paused or frozen. */
  async resume(options: Cancel = {}): Promise<this> {
    const how = (await this.refresh(options)).state === "stopped" ? "/start" : "/resume";
    return this.#told(this.#call("POST", how, { patience: SNAPSHOT_PATIENCE_S, ...options }));
  }

  /**
   * Takes a snapshot of its disk, and with `memory` of its processes too. The sandbox keeps running. With
   * `durable` the call returns once object storage has it, which the server must have.
   */
  async snapshot(
    options: Cancel & { name?: string; memory?: boolean; durable?: boolean } = {},
  ): Promise<Snapshot> {
    const { name, memory, durable, signal } = options;
    const json = { name, memory: memory || undefined, durable: durable || undefined };
    const call = once(this.#call("POST", "/snapshots", { json, patience: SNAPSHOT_PATIENCE_S }));
    return undoing(
      signal,
      async () => new Snapshot(this.#client, await this.#client._get<SnapshotInfo>(call)),
      (made) => made.delete(),
    );
  }

  /** Lists its snapshots. */
  async snapshots(options: Cancel = {}): Promise<Snapshot[]> {
    const found: Snapshot[] = [];
    for await (const info of this.#client._pages<SnapshotInfo>(this.#call("GET", "/snapshots", options))) {
      found.push(new Snapshot(this.#client, info));
    }
    return found;
  }

  /** Rolls it back to a snapshot; with `memory`, its processes too. Returns a snapshot of its previous state. */
  async rollback(to: string | Snapshot, options: Cancel & { memory?: boolean } = {}): Promise<Snapshot> {
    const { memory = false, signal } = options;
    const json = { snapshot: to instanceof Snapshot ? to.id : to, memory };
    const call = this.#call("POST", "/rollback", { json, patience: SNAPSHOT_PATIENCE_S, signal });
    const { sandbox, kept } = await this.#client._get<{ sandbox: SandboxInfo; kept: SnapshotInfo }>(call);
    this.#info = sandbox;
    return new Snapshot(this.#client, kept);
  }

  /** Creates copies of it; with `memory` they continue its processes. */
  async fork(count = 1, options: ForkOptions = {}): Promise<Forks> {
    return Forks._make(this.#client, sandboxPath(this.id, "/fork"), count, options);
  }

  /**
   * Does the work for each item in its own fork, several at a time, and returns the results in the items'
   * order. All forks start from the same state and are deleted when their work is done. The first error is
   * thrown when all have ended.
   */
  async map<T, R>(
    work: (fork: Sandbox, item: T) => Promise<R>,
    items: Iterable<T>,
    options: Cancel & { memory?: boolean; concurrency?: number } = {},
  ): Promise<R[]> {
    const { memory = false, concurrency = MAP_AT_ONCE, signal } = options;
    const todo = [...items];
    const origin = todo.length > concurrency ? await this.snapshot({ memory, signal }) : this;
    const outcomes: PromiseSettledResult<R>[] = [];
    try {
      for (let begin = 0; begin < todo.length; begin += concurrency) {
        const some = todo.slice(begin, begin + concurrency);
        const forks = await origin.fork(some.length, { memory, signal });
        try {
          const pairs = [...forks].map((fork, index) => [fork, some[index] as T] as const);
          outcomes.push(
            ...(await each(pairs, concurrency, async ([fork, item]) => {
              try {
                return await work(fork, item);
              } finally {
                await fork[asyncDispose]();
              }
            })),
          );
        } finally {
          await forks.delete();
        }
      }
    } finally {
      if (origin instanceof Snapshot) await origin.delete();
    }
    return values(outcomes);
  }

  /**
   * All or nothing: when the work throws, the sandbox is rolled back. Without `memory` only the disk is
   * restored and the processes are ended; with `memory` the processes are restored too.
   */
  async attempt<R>(work: (box: this) => Promise<R> | R, options: Cancel & { memory?: boolean } = {}): Promise<R> {
    const { memory = false, signal } = options;
    const before = await this.snapshot({ memory, signal });
    let result: R;
    try {
      result = await work(this);
    } catch (error) {
      await (await this.rollback(before, { memory })).delete();
      await before.delete();
      throw error;
    }
    await before.delete();
    return result;
  }

  /** Returns its snapshots, forks and rollbacks, and its current position. */
  async timeline(options: Cancel = {}): Promise<Timeline> {
    return this.#client._get<Timeline>(this.#call("GET", "/timeline", options));
  }

  /** Deletes it and everything in it. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done(this.#call("DELETE", "", options));
    this.#client._leases.drop(this.id);
    this.#deleted = true;
  }
}
