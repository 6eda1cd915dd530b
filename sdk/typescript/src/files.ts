/** Files in a sandbox: content as text or bytes, directories as tar, metadata. */

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";

import type { Client } from "./client.js";
import { CoveError, fromDetail, PathNotADirectoryError, PathNotFoundError } from "./errors.js";
import { camel } from "./names.js";
import type { Result } from "./results.js";
import { pack, replacing, unpack } from "./trees.js";
import type { FileChange, FileInfo, FileMatch } from "./types.js";
import { type Body, type Call, type Cancel, octal, sandboxPath } from "./wire.js";

/** Content to write: text, bytes, or a stream of bytes. */
export type Content =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array>
  | Iterable<Uint8Array>
  | AsyncIterable<Uint8Array>;

/** An argument that every call about files takes. */
export interface FileOptions extends Cancel {
  /** User whose permissions apply. Default: the sandbox's user. */
  user?: string | undefined;
}

/** What {@link Files.readBytes} takes. */
export interface ReadOptions extends FileOptions {
  /** The first byte. Default: 0. */
  start?: number;
  /** How many bytes. Default: all. */
  length?: number;
}

/** What {@link Files.write} takes. */
export interface WriteOptions extends FileOptions {
  /** Like `0o644`. */
  mode?: number;
  /** Like `user:group`. */
  owner?: string;
  /** Whether to create missing directories. Default: true. */
  parents?: boolean;
  /** Whether to write at the end of the file. */
  append?: boolean;
}

/** @internal Runs a command in the sandbox. */
export type Runner = (
  command: readonly string[],
  options: {
    user?: string | undefined;
    signal?: AbortSignal | undefined;
    timeout?: number | undefined;
    env?: Record<string, string>;
    check?: boolean;
  },
) => Promise<Result>;

/** @internal What the server says about a file, with what follows from it. */
export function fileInfo(info: FileInfo): FileInfo {
  return { ...info, isFile: info.type === "file", isDir: info.type === "directory" };
}

/** @internal A stream of pieces, which are taken when they are needed. */
export function streamed(pieces: Iterable<Uint8Array> | AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> {
  const iterator = Symbol.asyncIterator in pieces ? pieces[Symbol.asyncIterator]() : pieces[Symbol.iterator]();
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const { done, value } = await iterator.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await iterator.return?.();
    },
  });
}

function body(content: Content): Body {
  if (typeof content === "string") return new TextEncoder().encode(content);
  if (content instanceof Uint8Array || content instanceof ReadableStream) return content;
  if (content instanceof ArrayBuffer) return new Uint8Array(content);
  if (content instanceof Blob) return () => content.stream() as ReadableStream<Uint8Array>;
  return Array.isArray(content) ? () => streamed(content as Uint8Array[]) : streamed(content);
}

/** `box.files`. Paths are absolute. */
export class Files {
  readonly #client: Client;
  readonly #sandbox: string;
  readonly #run: Runner;

  /** @internal */
  constructor(client: Client, sandbox: string, run: Runner) {
    this.#client = client;
    this.#sandbox = sandbox;
    this.#run = run;
  }

  #call(method: Call["method"], rest: string, more: Partial<Call>): Call {
    return { method, path: sandboxPath(this.#sandbox, `/files${rest}`), ...more };
  }

  /** Reads a text file in UTF-8. */
  async read(path: string, options: FileOptions = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path, options));
  }

  /** Reads a file as bytes, or a part of it. */
  async readBytes(path: string, options: ReadOptions = {}): Promise<Uint8Array> {
    const { start = 0, length, user, signal } = options;
    if (length === 0) return new Uint8Array();
    const headers: Record<string, string> = {};
    if (start > 0 || length !== undefined) {
      headers["range"] = `bytes=${start}-${length === undefined ? "" : start + length - 1}`;
    }
    const answer = await this.#client._send(this.#call("GET", "", { query: { path, user }, headers, signal }));
    return answer.bytes();
  }

  /** Reads a file of any size in chunks. */
  async *stream(path: string, options: FileOptions = {}): AsyncGenerator<Uint8Array, void, undefined> {
    const { user, signal } = options;
    yield* (await this.#client._send(this.#call("GET", "", { query: { path, user }, signal }))).pieces();
  }

  /** Writes a file atomically: readers see the old or the new content. Returns its size. */
  async write(path: string, content: Content, options: WriteOptions = {}): Promise<number> {
    return this.#write(path, body(content), options);
  }

  async #write(path: string, content: Body, options: WriteOptions): Promise<number> {
    const { mode, owner, user, parents = true, append, signal } = options;
    const query = { path, user, owner, parents, append, mode: octal(mode) };
    const call = this.#call("PUT", "", { query, content, repeatable: !append, patience: null, signal });
    return (await this.#client._get<{ bytes: number }>(call)).bytes;
  }

  /** Appends to a file. */
  async append(path: string, content: string | Uint8Array, options: FileOptions = {}): Promise<number> {
    return this.write(path, content, { ...options, append: true });
  }

  /** Lists a directory; with `depth`, also the directories below it. */
  async list(path = "/", options: FileOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    const { depth = 1, user, signal } = options;
    const call = this.#call("GET", "/list", { query: { path, depth, user }, signal });
    const listing = await this.#client._get<{ items: FileInfo[]; truncated?: boolean }>(call);
    if (listing.truncated) {
      throw new CoveError(`${path} has more entries than a listing can have; list the directories below it`);
    }
    return listing.items.map(fileInfo);
  }

  /** Returns the metadata of a path; with `follow`, of the target of a symlink. */
  async stat(path: string, options: FileOptions & { follow?: boolean } = {}): Promise<FileInfo> {
    const { follow, user, signal } = options;
    return fileInfo(await this.#client._get(this.#call("GET", "/stat", { query: { path, follow, user }, signal })));
  }

  /** Whether a path exists. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof PathNotFoundError || error instanceof PathNotADirectoryError) return false;
      throw error;
    }
  }

  /** Creates a directory, and by default its parents. */
  async mkdir(path: string, options: FileOptions & { parents?: boolean; mode?: number } = {}): Promise<void> {
    const { parents = true, mode, user, signal } = options;
    const json = { path, user, parents, mode: octal(mode) };
    await this.#client._done(this.#call("POST", "/mkdir", { json, signal }));
  }

  /** Removes a file or an empty directory; with `recursive`, any directory. */
  async remove(path: string, options: FileOptions & { recursive?: boolean } = {}): Promise<void> {
    const { recursive, user, signal } = options;
    // A second try could not tell its own work from a path that was never there.
    const call = this.#call("DELETE", "", { query: { path, recursive, user }, repeatable: false, signal });
    await this.#client._done(call);
  }

  /** Moves or renames a path; with `replace`, replaces an existing target. */
  async move(source: string, target: string, options: FileOptions & { replace?: boolean } = {}): Promise<void> {
    const { replace = false, user, signal } = options;
    await this.#client._done(this.#call("POST", "/move", { json: { from: source, to: target, replace, user }, signal }));
  }

  /** Changes mode (`0o755`), owner (`"user:group"`) or both. */
  async chmod(path: string, mode?: number, options: FileOptions & { owner?: string } = {}): Promise<void> {
    const { owner, user, signal } = options;
    await this.#client._done(this.#call("POST", "/chmod", { json: { path, mode: octal(mode), owner, user }, signal }));
  }

  /** Copies a file or directory of this machine to the path `target` in the sandbox. */
  async upload(source: string, target: string, options: FileOptions = {}): Promise<void> {
    const { user, signal } = options;
    const found = await stat(source);
    if (!found.isDirectory()) {
      const content = () => streamed(createReadStream(source));
      await this.#write(target, content, { ...options, mode: found.mode & 0o777 });
      return;
    }
    await this.mkdir(target, options);
    const headers = { "content-type": "application/x-tar" };
    const content = () => streamed(pack(source));
    await this.#client._json(
      this.#call("PUT", "/archive", { query: { path: target, user }, content, headers, patience: null, signal }),
    );
  }

  /**
   * Copies a file or directory from the sandbox to the path `target` on this machine. The sandbox is not
   * trusted: nothing is written outside `target`. Links that point out of it, devices and setuid bits are left
   * out.
   */
  async download(source: string, target: string, options: FileOptions = {}): Promise<void> {
    const { user, signal } = options;
    const found = await this.stat(source, { ...options, follow: true });
    if (!found.isDir) {
      await replacing(target, this.stream(source, options));
      return;
    }
    const answer = await this.#client._send(this.#call("GET", "/archive", { query: { path: source, user }, signal }));
    await unpack(answer.pieces(), target);
  }

  /** Returns the paths below a directory whose name matches a shell pattern, sorted. */
  async find(path: string, pattern = "*", options: FileOptions = {}): Promise<string[]> {
    await this.stat(path, options);
    const command = ["find", path, "-mindepth", "1", "-name", pattern, "-print0"];
    const { stdout } = await this.#run(command, { ...options, check: true });
    return stdout.split("\0").filter(Boolean).sort();
  }

  /**
   * Returns the matching lines of a file, or of all text files below a directory. The pattern is an extended
   * regular expression, or plain text with `literal`. `name` limits the search to files whose name matches a
   * shell pattern.
   */
  async grep(
    path: string,
    pattern: string,
    options: FileOptions & { name?: string; ignoreCase?: boolean; literal?: boolean } = {},
  ): Promise<FileMatch[]> {
    const { name, ignoreCase, literal, ...rest } = options;
    await this.stat(path, rest);
    const command = ["grep", "-rHnIZ", literal ? "-F" : "-E", ...(ignoreCase ? ["-i"] : [])];
    if (name !== undefined) command.push(`--include=${name}`);
    const result = await this.#run([...command, "-e", pattern, "--", path], rest);
    // 1 says that nothing matched.
    if (result.exitCode !== 1) result.check();
    return result.stdout.split("\n").flatMap((line) => {
      const [, file, number, text] = /^([^\0]*)\0(\d+):(.*)$/s.exec(line) ?? [];
      return file === undefined ? [] : [{ path: file, line: Number(number), text: text ?? "" }];
    });
  }

  /** Replaces all occurrences of a text in a file and returns their number. Keeps the file's mode and owner. */
  async replace(path: string, old: string, text: string, options: FileOptions = {}): Promise<number> {
    if (old === "") throw new TypeError("the text to replace must not be empty");
    const parts = (await this.read(path, options)).split(old);
    if (parts.length > 1) {
      const info = await this.stat(path, { ...options, follow: true });
      const owner = options.user === undefined ? { owner: `${info.uid}:${info.gid}` } : {};
      await this.write(path, parts.join(text), { ...options, ...owner, mode: Number.parseInt(info.mode, 8) });
    }
    return parts.length - 1;
  }

  /** Yields changes below a path without end; the first value says that the watch is ready. */
  async *watch(
    path: string,
    options: FileOptions & { recursive?: boolean } = {},
  ): AsyncGenerator<FileChange, void, undefined> {
    const { recursive, user, signal } = options;
    const call = this.#call("GET", "/watch", { query: { path, recursive, user }, patience: null, signal });
    for await (const line of this.#client._lines(call)) {
      const { type, error } = line as { type?: string; error?: unknown };
      if (type === "error") throw fromDetail(error);
      yield camel<FileChange>(line);
    }
  }
}
