/** Snapshots and the sandboxes that start from them. */

import { createReadStream } from "node:fs";

import { Client } from "./client.js";
import { type ApiError, ForkFailed, fromDetail } from "./errors.js";
import { streamed } from "./files.js";
import { asyncDispose, each, undoing, values } from "./flow.js";
import { LEASE_DEFAULT_S } from "./limits.js";
import { camel } from "./names.js";
import { Sandbox } from "./sandbox.js";
import { replacing } from "./trees.js";
import type { SandboxInfo, SnapshotInfo } from "./types.js";
import { type Cancel, once } from "./wire.js";

/** Forks that are deleted at once. */
const DELETE_AT_ONCE = 16;
/** Seconds a snapshot or a fork may take: much memory goes to disk. */
export const SNAPSHOT_PATIENCE_S = 600;

/** Which server to ask. */
export interface ClientChoice extends Cancel {
  /** Default: {@link Client.default}. */
  client?: Client | undefined;
}

/** What forking takes. */
export interface ForkOptions extends Cancel {
  /** Whether the forks continue the processes. */
  memory?: boolean;
  /** Their name; with several forks, its beginning. */
  name?: string;
  labels?: Readonly<Record<string, string>>;
}

function at(snapshot: string, rest = ""): string {
  return `/v1/snapshots/${encodeURIComponent(snapshot)}${rest}`;
}

/** A saved state of a sandbox, to roll back to or to start others from. It outlives its sandbox. */
export class Snapshot {
  /** Its size, kind and origin. */
  readonly info: SnapshotInfo;
  readonly #client: Client;

  /** @internal */
  constructor(client: Client, info: SnapshotInfo) {
    this.#client = client;
    this.info = info;
  }

  get id(): string {
    return this.info.id;
  }

  get name(): string | undefined {
    return this.info.name;
  }

  /** Returns an existing snapshot, by id or name. */
  static async get(snapshot: string, options: ClientChoice = {}): Promise<Snapshot> {
    const { client = Client.default(), signal } = options;
    return new Snapshot(client, await client._get<SnapshotInfo>({ method: "GET", path: at(snapshot), signal }));
  }

  /** Lists the snapshots of the organisation. */
  static async list(options: ClientChoice = {}): Promise<Snapshot[]> {
    const { client = Client.default(), signal } = options;
    const found: Snapshot[] = [];
    for await (const info of client._pages<SnapshotInfo>({ method: "GET", path: "/v1/snapshots", signal })) {
      found.push(new Snapshot(client, info));
    }
    return found;
  }

  /** Creates sandboxes from this state; with `memory` they continue its processes. */
  async fork(count = 1, options: ForkOptions = {}): Promise<Forks> {
    return Forks._make(this.#client, at(this.id, "/fork"), count, options);
  }

  /** Deletes it. Sandboxes and snapshots made from it stay. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "DELETE", path: at(this.id), ...options });
  }

  /** Writes it to a file that another server can import. */
  async export(target: string, options: Cancel = {}): Promise<void> {
    const call = { method: "GET", path: at(this.id, "/export"), patience: null, ...options } as const;
    await replacing(target, (await this.#client._send(call)).pieces());
  }

  /** Imports a file that {@link export} wrote. */
  static async load(source: string, options: ClientChoice & { name?: string } = {}): Promise<Snapshot> {
    const { client = Client.default(), name, signal } = options;
    const content = () => streamed(createReadStream(source));
    const call = { method: "POST", path: "/v1/snapshots/import", query: { name }, content, patience: null, signal } as const;
    return new Snapshot(client, (await client._get<{ snapshot: SnapshotInfo }>(call)).snapshot);
  }
}

/** Copies of a sandbox, with a lease each. `await using` deletes them all. */
export class Forks implements Iterable<Sandbox>, AsyncDisposable {
  readonly #boxes: readonly Sandbox[];

  /** @internal */
  constructor(boxes: readonly Sandbox[]) {
    this.#boxes = boxes;
  }

  /** @internal */
  static async _make(client: Client, path: string, count: number, options: ForkOptions): Promise<Forks> {
    const { memory = false, name, labels, signal } = options;
    const json = { count, memory, name, labels, lease: client._leases.request(LEASE_DEFAULT_S) };
    const call = once({ method: "POST", path, json, patience: SNAPSHOT_PATIENCE_S });
    const answers = await undoing(
      signal,
      async () => (await client._json(call)) as { sandbox?: unknown; error?: unknown }[],
      (made) => new Forks(made.flatMap((one) => fork(client, one.sandbox))).delete(),
    );
    const forks = new Forks(answers.flatMap((one) => fork(client, one.sandbox)));
    const refused: ApiError[] = answers.filter((one) => !one.sandbox).map((one) => fromDetail(one.error));
    if (refused.length > 0) {
      await forks.delete();
      throw new ForkFailed(refused);
    }
    return forks;
  }

  get length(): number {
    return this.#boxes.length;
  }

  /** One of them; negative numbers count from the end. */
  at(index: number): Sandbox | undefined {
    return this.#boxes.at(index);
  }

  [Symbol.iterator](): IterableIterator<Sandbox> {
    return this.#boxes.values();
  }

  async [asyncDispose](): Promise<void> {
    await this.delete();
  }

  /** Deletes them all. A fork that no longer exists is not an error. */
  async delete(): Promise<void> {
    values(await each(this.#boxes, DELETE_AT_ONCE, (box) => box[asyncDispose]()));
  }
}

function fork(client: Client, info: unknown): Sandbox[] {
  return info ? [new Sandbox(client, camel<SandboxInfo>(info), false, LEASE_DEFAULT_S)] : [];
}
