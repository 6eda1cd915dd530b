/** Directories of this machine as tar, and back. What comes out of a sandbox is not trusted. */

import { constants, createReadStream } from "node:fs";
import { chmod, link, lstat, mkdir, open, readdir, readlink, realpath, rename, stat, symlink, unlink } from "node:fs/promises";
import { basename, dirname, join, resolve, sep } from "node:path";

import { CoveError } from "./errors.js";
import { joined } from "./results.js";

const BLOCK = 512;
/** Entries taken out of one archive. */
const ENTRIES_MAX = 1_000_000;
/** Bytes of an entry that only describes the next one. */
const EXTENSION_MAX = 1024 * 1024;
/** The largest size a plain header can say. */
const PLAIN_SIZE_MAX = 0o77777777777;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/**
 * A directory's content as an archive, if there is one, and files from elsewhere: path in the archive, path here.
 * Owners are left out.
 */
export async function* pack(
  directory: string | undefined,
  sources: readonly (readonly [string, string])[] = [],
): AsyncGenerator<Uint8Array, void, undefined> {
  if (directory !== undefined) yield* entries(directory, "");
  // A link is followed if it is the source itself.
  for (const [path, place] of sources) yield* entry(await realpath(place), path);
  yield new Uint8Array(2 * BLOCK);
}

async function* entries(directory: string, prefix: string): AsyncGenerator<Uint8Array, void, undefined> {
  for (const name of (await readdir(directory)).sort()) yield* entry(join(directory, name), prefix + name);
}

async function* entry(place: string, path: string): AsyncGenerator<Uint8Array, void, undefined> {
  const found = await lstat(place);
  const common = { mode: found.mode & 0o7777, mtime: Math.max(0, Math.floor(found.mtimeMs / 1000)) };
  if (found.isDirectory()) {
    yield* header({ ...common, name: `${path}/`, type: "5" });
    yield* entries(place, `${path}/`);
  } else if (found.isSymbolicLink()) {
    yield* header({ ...common, name: path, type: "2", target: await readlink(place) });
  } else if (found.isFile()) {
    yield* header({ ...common, name: path, type: "0", size: found.size });
    yield* contents(place, found.size);
  }
}

async function* contents(place: string, size: number): AsyncGenerator<Uint8Array, void, undefined> {
  if (size === 0) return;
  let left = size;
  for await (const piece of createReadStream(place, { end: size - 1, highWaterMark: 256 * 1024 })) {
    left -= (piece as Uint8Array).length;
    yield piece as Uint8Array;
  }
  if (left !== 0) throw new CoveError(`${place} became shorter while it was read`);
  if (size % BLOCK !== 0) yield new Uint8Array(BLOCK - (size % BLOCK));
}

interface Entry {
  name: string;
  type: string;
  mode: number;
  mtime: number;
  size?: number;
  target?: string;
}

function* header(entry: Entry): Generator<Uint8Array, void, undefined> {
  const size = entry.size ?? 0;
  const name = encoder.encode(entry.name);
  const target = encoder.encode(entry.target ?? "");
  // What does not fit into the plain fields goes before them, in an entry of its own.
  const records: Uint8Array[] = [];
  if (name.length > 100) records.push(record("path", entry.name));
  if (target.length > 100) records.push(record("linkpath", entry.target ?? ""));
  if (size > PLAIN_SIZE_MAX) records.push(record("size", String(size)));
  if (records.length > 0) {
    const data = joined(records);
    yield block(encoder.encode("PaxHeader"), new Uint8Array(), { ...entry, type: "x", mode: 0o644 }, data.length);
    yield padded(data);
  }
  yield block(name.subarray(0, 100), target.subarray(0, 100), entry, Math.min(size, PLAIN_SIZE_MAX));
}

function block(name: Uint8Array, target: Uint8Array, entry: Entry, size: number): Uint8Array {
  const bytes = new Uint8Array(BLOCK);
  const number = (at: number, width: number, value: number) =>
    bytes.set(encoder.encode(value.toString(8).padStart(width - 1, "0")), at);
  bytes.set(name, 0);
  number(100, 8, entry.mode);
  number(108, 8, 0);
  number(116, 8, 0);
  number(124, 12, size);
  number(136, 12, entry.mtime);
  bytes.set(encoder.encode(entry.type), 156);
  bytes.set(target, 157);
  bytes.set(encoder.encode("ustar\x0000"), 257);
  bytes.fill(0x20, 148, 156);
  number(148, 7, sum(bytes));
  bytes[154] = 0;
  return bytes;
}

function sum(bytes: Uint8Array): number {
  return bytes.reduce((total, byte) => total + byte, 0);
}

/** `LENGTH KEY=VALUE\n`, where the length counts itself. */
function record(key: string, value: string): Uint8Array {
  const rest = encoder.encode(` ${key}=${value}\n`);
  let length = rest.length + String(rest.length).length;
  if (String(length).length !== String(rest.length).length) length++;
  return joined([encoder.encode(String(length)), rest]);
}

function padded(data: Uint8Array): Uint8Array {
  return joined([data, new Uint8Array((BLOCK - (data.length % BLOCK)) % BLOCK)]);
}

/** Writes the pieces to a new file, which takes its place only when it is whole. */
export async function replacing(path: string, pieces: AsyncIterable<Uint8Array>): Promise<void> {
  const target = resolve(path);
  if ((await stat(target).catch(() => undefined))?.isDirectory()) throw new CoveError(`${path} is a directory`);
  const suffix = Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16)).join("");
  const temporary = join(dirname(target), `.cove-${basename(target).slice(0, 100)}-${suffix}`);
  const file = await open(temporary, "wx");
  try {
    for await (const piece of pieces) await file.writeFile(piece);
    await file.close();
    await rename(temporary, target);
  } catch (error) {
    await file.close().catch(() => {});
    await unlink(temporary).catch(() => {});
    throw error;
  }
}

/** Bytes of an archive, taken in the amounts its reader needs. */
class Source {
  readonly #pieces: AsyncIterator<Uint8Array>;
  #rest: Uint8Array = new Uint8Array();

  constructor(pieces: AsyncIterable<Uint8Array>) {
    this.#pieces = pieces[Symbol.asyncIterator]();
  }

  /** So many bytes, as they come. */
  async *take(count: number): AsyncGenerator<Uint8Array, void, undefined> {
    let left = count;
    while (left > 0) {
      while (this.#rest.length === 0) {
        const next = await this.#pieces.next();
        if (next.done) throw new CoveError("the sandbox sent an archive that ends too early");
        this.#rest = next.value;
      }
      const piece = this.#rest.subarray(0, left);
      this.#rest = this.#rest.subarray(piece.length);
      left -= piece.length;
      yield piece;
    }
  }

  async whole(count: number): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this.take(count)) pieces.push(piece);
    return joined(pieces);
  }

  async skip(count: number): Promise<void> {
    for await (const _ of this.take(count));
  }

  async drain(): Promise<void> {
    while (!(await this.#pieces.next()).done);
  }

  async close(): Promise<void> {
    await this.#pieces.return?.();
  }
}

/** Writes an archive's entries below `target` and nowhere else. */
export async function unpack(pieces: AsyncIterable<Uint8Array>, target: string): Promise<void> {
  await mkdir(target, { recursive: true });
  const root = await realpath(target);
  const source = new Source(pieces);
  try {
    let next: Partial<Entry> = {};
    for (let count = 0; ; ) {
      const bytes = await source.whole(BLOCK);
      if (bytes.every((byte) => byte === 0)) {
        await source.drain();
        return;
      }
      const entry = parsed(bytes);
      if (entry.type === "x" || entry.type === "L" || entry.type === "K" || entry.type === "g") {
        if (entry.size > EXTENSION_MAX) throw new CoveError("the sandbox sent an archive with a header that is too long");
        const data = await source.whole(entry.size);
        await source.skip(filler(entry.size));
        if (entry.type === "x") next = { ...next, ...extended(data) };
        if (entry.type === "L") next.name = text(data, 0, data.length);
        if (entry.type === "K") next.target = text(data, 0, data.length);
        continue;
      }
      if (++count > ENTRIES_MAX) throw new CoveError(`the archive has more than ${ENTRIES_MAX} entries`);
      Object.assign(entry, next);
      next = {};
      await write(source, root, entry);
    }
  } finally {
    await source.close();
  }
}

type Parsed = Required<Entry>;

function parsed(bytes: Uint8Array): Parsed {
  const wanted = octal(bytes, 148, 8);
  const without = bytes.slice().fill(0x20, 148, 156);
  if (sum(without) !== wanted) throw new CoveError("the sandbox sent a damaged archive");
  const prefix = text(bytes, 257, 6) === "ustar" && bytes[262] === 0 ? text(bytes, 345, 155) : "";
  const name = text(bytes, 0, 100);
  return {
    name: prefix ? `${prefix}/${name}` : name,
    mode: octal(bytes, 100, 8),
    size: octal(bytes, 124, 12),
    mtime: octal(bytes, 136, 12),
    type: String.fromCharCode(bytes[156] || 0x30),
    target: text(bytes, 157, 100),
  };
}

function text(bytes: Uint8Array, at: number, length: number): string {
  const field = bytes.subarray(at, at + length);
  const end = field.indexOf(0);
  return decoder.decode(end < 0 ? field : field.subarray(0, end));
}

/** A number in octal digits, or in binary when the first bit says so. */
function octal(bytes: Uint8Array, at: number, length: number): number {
  let value: number;
  if ((bytes[at] ?? 0) & 0x80) {
    value = bytes.subarray(at + 1, at + length).reduce((total, byte) => total * 256 + byte, 0);
  } else {
    value = Number.parseInt(text(bytes, at, length).trim() || "0", 8);
  }
  if (!Number.isSafeInteger(value)) throw new CoveError("the sandbox sent a damaged archive");
  return value;
}

function extended(data: Uint8Array): Partial<Entry> {
  const found: Partial<Entry> = {};
  let at = 0;
  while (at < data.length) {
    const space = data.indexOf(0x20, at);
    const length = Number.parseInt(decoder.decode(data.subarray(at, space)), 10);
    if (space < 0 || !(length > 0) || at + length > data.length) throw new CoveError("the sandbox sent a damaged archive");
    const line = decoder.decode(data.subarray(space + 1, at + length - 1));
    const [key, value] = [line.slice(0, line.indexOf("=")), line.slice(line.indexOf("=") + 1)];
    if (key === "path") found.name = value;
    else if (key === "linkpath") found.target = value;
    else if (key === "size") {
      found.size = Number(value);
      if (!Number.isSafeInteger(found.size) || found.size < 0) throw new CoveError("the sandbox sent a damaged archive");
    }
    at += length;
  }
  return found;
}

function filler(size: number): number {
  return (BLOCK - (size % BLOCK)) % BLOCK;
}

async function write(source: Source, root: string, entry: Parsed): Promise<void> {
  const place = await placed(root, entry.name);
  const regular = entry.type === "0" || entry.type === "7";
  if (regular && place !== root) {
    await clear(place);
    const file = await open(place, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW);
    try {
      for await (const piece of source.take(entry.size)) await file.writeFile(piece);
    } finally {
      await file.close();
    }
    await chmod(place, entry.mode & 0o777);
  } else {
    await source.skip(entry.size);
  }
  await source.skip(filler(entry.size));
  if (place === root) return;
  if (entry.type === "5") {
    await mkdir(place).catch(async (error: unknown) => {
      if (!(await lstat(place)).isDirectory()) throw error;
    });
  } else if (entry.type === "2") {
    const aim = resolve(dirname(place), entry.target);
    if (!entry.target.startsWith("/") && inside(root, aim)) {
      await clear(place);
      await symlink(entry.target, place);
    }
  } else if (entry.type === "1") {
    const origin = await placed(root, entry.target);
    if ((await lstat(origin).catch(() => undefined))?.isFile()) {
      await clear(place);
      await link(origin, place);
    }
  }
}

function inside(root: string, path: string): boolean {
  return path === root || path.startsWith(root.endsWith(sep) ? root : root + sep);
}

/** Where an entry goes. Its directory is really below the root, whatever links came before; it is made if missing. */
async function placed(root: string, name: string): Promise<string> {
  const outside = () => new CoveError(`the sandbox sent an archive that reaches outside its directory: ${JSON.stringify(name)}`);
  const path = resolve(root, name);
  if (name.startsWith("/") || name.includes("\0") || !inside(root, path)) throw outside();
  if (path === root) return root;
  let directory = root;
  for (const part of path.slice(root.length).split(sep).filter(Boolean).slice(0, -1)) {
    const below = join(directory, part);
    await mkdir(below).catch(() => {});
    directory = await realpath(below);
    if (!inside(root, directory)) throw outside();
  }
  return join(directory, basename(path));
}

async function clear(place: string): Promise<void> {
  const found = await lstat(place).catch(() => undefined);
  if (found !== undefined && !found.isDirectory()) await unlink(place);
}
