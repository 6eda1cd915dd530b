/** Volumes: directories that outlive sandboxes. */

import { Client } from "./client.js";
import { CoveError } from "./errors.js";
import { fileInfo } from "./files.js";
import type { ClientChoice } from "./snapshot.js";
import type { FileInfo, Placement, VolumeInfo } from "./types.js";
import { type Call, type Cancel, megabytes, octal, once, type Size } from "./wire.js";

/** What {@link Volume.create} takes. */
export interface VolumeOptions extends ClientChoice {
  /** Size limit. Default: 10 GiB, or the size of `from`. */
  size?: Size | undefined;
  /** Copy this volume. */
  from?: string | Volume | undefined;
  /** With `from`: make the copy read-only. */
  readOnly?: boolean | undefined;
  /** Which host it may be on, and so the sandboxes that mount it. */
  placement?: Placement | undefined;
}

/** A volume in a sandbox: by id or name, itself, or with how it is mounted. */
export type Mounted = string | Volume | { volume: string | Volume; readOnly?: boolean };

function at(volume: string, rest = ""): string {
  return `/v1/volumes/${encodeURIComponent(volume)}${rest}`;
}

/**
 * A directory that outlives sandboxes, mounted in one or in several at once. It is not part of any sandbox's
 * snapshot.
 */
export class Volume {
  /** Its name, size and usage. */
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

  /** Creates a volume. */
  static async create(name: string, options: VolumeOptions = {}): Promise<Volume> {
    const { client = Client.default(), from, readOnly, signal } = options;
    const json = {
      name,
      size_mb: megabytes("size", options.size),
      from: from instanceof Volume ? from.id : from,
      read_only: readOnly || undefined,
      placement: options.placement,
    };
    const call = once({ method: "POST", path: "/v1/volumes", json, signal });
    return new Volume(client, await client._get<VolumeInfo>(call));
  }

  /** Returns an existing volume, by id or name. */
  static async get(volume: string, options: ClientChoice = {}): Promise<Volume> {
    const { client = Client.default(), signal } = options;
    return new Volume(client, await client._get<VolumeInfo>({ method: "GET", path: at(volume), signal }));
  }

  /** Lists the volumes of the organisation. */
  static async list(options: ClientChoice = {}): Promise<Volume[]> {
    const { client = Client.default(), signal } = options;
    const found: Volume[] = [];
    for await (const info of client._pages<VolumeInfo>({ method: "GET", path: "/v1/volumes", signal })) {
      found.push(new Volume(client, info));
    }
    return found;
  }

  /** Deletes it and everything in it. Refused with {@link InUseError} while a sandbox mounts it. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "DELETE", path: at(this.id), signal: options.signal });
  }

  /** Reads a text file in UTF-8. This and the calls below need no sandbox. */
  async read(path: string, options: Cancel = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path, options));
  }

  /** Reads a file as bytes. */
  async readBytes(path: string, options: Cancel = {}): Promise<Uint8Array> {
    const call = { method: "GET", path: at(this.id, "/files"), query: { path }, signal: options.signal } as const;
    return (await this.#client._send(call)).bytes();
  }

  /** Writes a file atomically and returns its size. Missing directories are created. */
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

  /** Lists a directory; with `depth`, also the directories below it. */
  async files(path = "/", options: Cancel & { depth?: number } = {}): Promise<FileInfo[]> {
    const { depth = 1, signal } = options;
    const call = { method: "GET", path: at(this.id, "/files/list"), query: { path, depth }, signal } as const;
    const listing = await this.#client._get<{ items: FileInfo[]; truncated: boolean }>(call);
    if (listing.truncated) {
      throw new CoveError(`${path} has more entries than a listing can have; list what is below it`);
    }
    return listing.items.map(fileInfo);
  }

  /** Returns the metadata of a path. */
  async stat(path: string, options: Cancel = {}): Promise<FileInfo> {
    const call = { method: "GET", path: at(this.id, "/files/stat"), query: { path }, signal: options.signal } as const;
    return fileInfo(await this.#client._get(call));
  }

  /** Creates a directory and its parents. */
  async mkdir(path: string, options: Cancel & { mode?: number } = {}): Promise<void> {
    const json = { path, mode: octal(options.mode), parents: true };
    await this.#client._done({ method: "POST", path: at(this.id, "/files/mkdir"), json, signal: options.signal });
  }

  /** Renames a file or directory. */
  async move(from: string, to: string, options: Cancel = {}): Promise<void> {
    const json = { from, to };
    await this.#client._done({ method: "POST", path: at(this.id, "/files/move"), json, signal: options.signal });
  }

  /** Removes a file or an empty directory; with `recursive`, any directory. */
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
