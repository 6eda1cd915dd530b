/** Volumes: directories that outlive sandboxes. */

import { Client } from "./client.js";
import { CoveError } from "./errors.js";
import type { ClientChoice } from "./snapshot.js";
import type { FileInfo, VolumeInfo } from "./types.js";
import { type Call, type Cancel, megabytes, octal, once, type Size } from "./wire.js";

/** What {@link Volume.create} takes. */
export interface VolumeOptions extends ClientChoice {
  /** What it can hold. Default: 10 GiB, or the size of `from`. */
  size?: Size | undefined;
  /** Begin as a copy of this volume, as it is now. */
  from?: string | Volume | undefined;
  /** With `from`: nobody can write to the copy. */
  readOnly?: boolean | undefined;
}

/** A volume in a sandbox: by id or name, itself, or with how it is mounted. */
export type Mounted = string | Volume | { volume: string | Volume; readOnly?: boolean };

function at(volume: string, rest = ""): string {
  return `/v1/volumes/${encodeURIComponent(volume)}${rest}`;
}

/** A directory that outlives sandboxes, mounted in one or in several at once. No sandbox's snapshot has it. */
export class Volume {
  /** What is known about it: name, size, what it holds. */
  readonly info: VolumeInfo;
  readonly #client: Client;

  /** @internal */
  constructor(client: Client, info: VolumeInfo) {
    this.#client = client;
    this.info = info;
  }

  get id(): string {
    return this.info.id;
  }

  get name(): string {
    return this.info.name;
  }

  /** Makes one. */
  static async create(name: string, options: VolumeOptions = {}): Promise<Volume> {
    const { client = Client.default(), from, readOnly, signal } = options;
    const json = {
      name,
      size_mb: megabytes("size", options.size),
      from: from instanceof Volume ? from.id : from,
      read_only: readOnly || undefined,
    };
    const call = once({ method: "POST", path: "/v1/volumes", json, signal });
    return new Volume(client, await client._get<VolumeInfo>(call));
  }

  /** One that exists, by id or name. */
  static async get(volume: string, options: ClientChoice = {}): Promise<Volume> {
    const { client = Client.default(), signal } = options;
    return new Volume(client, await client._get<VolumeInfo>({ method: "GET", path: at(volume), signal }));
  }

  /** Those of the organisation. */
  static async list(options: ClientChoice = {}): Promise<Volume[]> {
    const { client = Client.default(), signal } = options;
    const found: Volume[] = [];
    for await (const info of client._pages<VolumeInfo>({ method: "GET", path: "/v1/volumes", signal })) {
      found.push(new Volume(client, info));
    }
    return found;
  }

  /** Deletes it and all that is in it. Refused with {@link InUseError} while a sandbox mounts it. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "DELETE", path: at(this.id), signal: options.signal });
  }

  /** A text file of the volume, in UTF-8. No sandbox is needed for this and the calls below. */
  async read(path: string, options: Cancel = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path, options));
  }

  /** A file of the volume. */
  async readBytes(path: string, options: Cancel = {}): Promise<Uint8Array> {
    const call = { method: "GET", path: at(this.id, "/files"), query: { path }, signal: options.signal } as const;
    return (await this.#client._send(call)).bytes();
  }

  /** Writes a file in one step, and makes missing directories. Its size. */
  async write(
    path: string,
    text: string | Uint8Array,
    options: Cancel & { mode?: number; owner?: string } = {},
  ): Promise<number> {
    const { mode, owner, signal } = options;
    const content = typeof text === "string" ? new TextEncoder().encode(text) : text;
    const query = { path, mode: octal(mode), owner, parents: true };
    const call: Call = { method: "PUT", path: at(this.id, "/files"), query, content, repeatable: true, signal };
    return (await this.#client._get<{ bytes: number }>(call)).bytes;
  }

  /** What is in a directory; with `depth` in those below it too. */
  async files(path = "/", options: Cancel & { depth?: number } = {}): Promise<FileInfo[]> {
    const { depth = 1, signal } = options;
    const call = { method: "GET", path: at(this.id, "/files/list"), query: { path, depth }, signal } as const;
    const listing = await this.#client._get<{ items: FileInfo[]; truncated: boolean }>(call);
    if (listing.truncated) {
      throw new CoveError(`${path} has more entries than a listing can have; list what is below it`);
    }
    return listing.items.map((info) => ({ ...info, isFile: info.type === "file", isDir: info.type === "directory" }));
  }

  /** Makes a directory, and those above it. */
  async mkdir(path: string, options: Cancel & { mode?: number } = {}): Promise<void> {
    const json = { path, mode: octal(options.mode), parents: true };
    await this.#client._done({ method: "POST", path: at(this.id, "/files/mkdir"), json, signal: options.signal });
  }

  /** Renames a file or directory. */
  async move(from: string, to: string, options: Cancel = {}): Promise<void> {
    const json = { from, to };
    await this.#client._done({ method: "POST", path: at(this.id, "/files/move"), json, signal: options.signal });
  }

  /** Removes a file, or with `recursive` a directory with what is in it. */
  async remove(path: string, options: Cancel & { recursive?: boolean } = {}): Promise<void> {
    const { recursive = false, signal } = options;
    await this.#client._done({ method: "DELETE", path: at(this.id, "/files"), query: { path, recursive }, signal });
  }
}

/** @internal The mounts of a create, from where to what. */
export function mounts(volumes: Readonly<Record<string, Mounted>> | undefined): unknown {
  if (volumes === undefined) return undefined;
  return Object.entries(volumes).map(([path, what]) => {
    const given = typeof what === "string" || what instanceof Volume ? { volume: what } : what;
    // A name that is not known, such as read_only, must not mount it for writing.
    const unknown = Object.keys(given).find((key) => key !== "volume" && key !== "readOnly");
    if (unknown !== undefined) {
      throw new CoveError(`volumes: a mount has no ${JSON.stringify(unknown)}, only volume and readOnly`);
    }
    const volume = given.volume instanceof Volume ? given.volume.id : given.volume;
    return { volume, path, read_only: given.readOnly || undefined };
  });
}
