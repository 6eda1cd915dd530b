/** Templates: named, versioned starting points of sandboxes. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";

import { Client } from "./client.js";
import { BuildFailed, CoveError } from "./errors.js";
import { streamed } from "./files.js";
import type { Image } from "./image.js";
import { camel, type Camel, snake } from "./names.js";
import type { Network } from "./sandbox.js";
import { type ClientChoice, Snapshot } from "./snapshot.js";
import { pack } from "./trees.js";
import type { ResourcesRequest, TemplateInfo } from "./types.js";
import { type Mounted, mounts } from "./volume.js";
import {
  type Cancel,
  given,
  lifecycle,
  type LifecycleOptions,
  megabytes,
  networkBody,
  once,
  type Schemas,
  type Size,
  unlessEmpty,
} from "./wire.js";

/** What {@link Template.create} takes; all but the first two are defaults of sandboxes from it. */
export interface TemplateOptions extends ClientChoice, LifecycleOptions {
  /** Sandboxes continue the snapshot's processes. */
  memory?: boolean | undefined;
  /** Tags to move to the new version. Default: `latest`. */
  tags?: readonly string[] | undefined;
  env?: Readonly<Record<string, string>> | undefined;
  user?: string | undefined;
  workdir?: string | undefined;
  network?: Network | undefined;
  cpu?: number | undefined;
  memoryLimit?: Size | undefined;
  disk?: Size | undefined;
  /** Limits that have no option of their own here. */
  resources?: Partial<ResourcesRequest> | undefined;
  /**
   * Mounts of all sandboxes from it, in the form that a sandbox takes. Volumes of the snapshot's sandbox are
   * not included.
   */
  volumes?: Readonly<Record<string, Mounted>> | undefined;
}

/** Every option, so that one that is not known is not left out silently. */
const OPTIONS: Record<keyof TemplateOptions, true> = {
  client: true,
  signal: true,
  memory: true,
  tags: true,
  env: true,
  user: true,
  workdir: true,
  network: true,
  cpu: true,
  memoryLimit: true,
  disk: true,
  resources: true,
  volumes: true,
  freezeAfter: true,
  pauseAfter: true,
  stopAfter: true,
  deleteAfter: true,
  maxLifetime: true,
};

/** A line of a build's log. */
export type BuildLine = Camel<Schemas["BuildLogEvent"]>;

/**
 * What {@link Template.build} takes: an image, or a Dockerfile. The Dockerfile is a text, or the file
 * `Dockerfile` of the context.
 */
export interface BuildOptions extends ClientChoice {
  image?: Image | undefined;
  /** The text of the Dockerfile. */
  dockerfile?: string | undefined;
  /** A directory with the files for `COPY`, except those that its `.dockerignore` names. */
  context?: string | undefined;
  /** Tags to move to the new version. Default: `latest`. */
  tags?: readonly string[] | undefined;
  /** Build arguments. */
  args?: Readonly<Record<string, string>> | undefined;
  /** The stage to build. Default: the last one. */
  target?: string | undefined;
  /** Network policy of the steps. Default: `preset:packages`. */
  network?: Network | undefined;
  /** Runs every step again. */
  noCache?: boolean | undefined;
  /** Looks for a newer image of each `FROM`. */
  pull?: boolean | undefined;
  /** A command that succeeds once the server runs. The server is then captured running. */
  ready?: string | undefined;
  /** The server that `ready` waits for. Default: the `CMD`. */
  start?: string | undefined;
  /** Seconds until it must be ready. */
  readyTimeout?: number | undefined;
  /** Defaults of sandboxes from the template. */
  env?: Readonly<Record<string, string>> | undefined;
  cpu?: number | undefined;
  memoryLimit?: Size | undefined;
  disk?: Size | undefined;
  /** Receives each line of the log. */
  onLog?: ((line: BuildLine) => void) | undefined;
}

const BUILD_OPTIONS: Record<keyof BuildOptions, true> = {
  client: true,
  signal: true,
  image: true,
  dockerfile: true,
  context: true,
  tags: true,
  args: true,
  target: true,
  network: true,
  noCache: true,
  pull: true,
  ready: true,
  start: true,
  readyTimeout: true,
  env: true,
  cpu: true,
  memoryLimit: true,
  disk: true,
  onLog: true,
};

function known(options: object, table: object, what: string): void {
  const unknown = Object.keys(options).find((key) => !Object.hasOwn(table, key));
  if (unknown !== undefined) throw new CoveError(`${what} has no option ${JSON.stringify(unknown)}`);
}

/** A file of the context; `undefined`: there is none. */
async function fileOf(context: string | undefined, name: string): Promise<string | undefined> {
  if (context === undefined) return undefined;
  try {
    return await readFile(join(context, name), "utf8");
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return undefined;
    throw error;
  }
}

function at(template: string, rest = ""): string {
  return `/v1/templates/${encodeURIComponent(template)}${rest}`;
}

/** One version of a template: a snapshot that sandboxes start from, and defaults for their settings. */
export class Template {
  readonly #client: Client;
  #info: TemplateInfo;

  /** @internal */
  constructor(client: Client, info: TemplateInfo) {
    this.#client = client;
    this.#info = info;
  }

  /** Its name, version, tags, snapshot and defaults. */
  get info(): TemplateInfo {
    return this.#info;
  }

  get id(): string {
    return this.#info.id;
  }

  get name(): string {
    return this.#info.name;
  }

  get version(): number {
    return this.#info.version;
  }

  /** Creates a new version of `name`. */
  static async create(name: string, snapshot: string | Snapshot, options: TemplateOptions = {}): Promise<Template> {
    known(options, OPTIONS, "a template");
    const { client = Client.default(), memory, tags, env, user, workdir, signal } = options;
    if (typeof tags === "string") throw new CoveError("tags: a list of tags, not one text");
    const limits = {
      cpu: options.cpu,
      memory_mb: megabytes("memoryLimit", options.memoryLimit),
      disk_mb: megabytes("disk", options.disk),
    };
    const defaults = {
      resources: unlessEmpty({ ...(snake(options.resources ?? {}) as object), ...given(limits) }),
      env,
      user,
      workdir,
      network: networkBody(options.network),
      lifecycle: unlessEmpty(given(lifecycle(options))),
      volumes: mounts(options.volumes),
    };
    const json = {
      name,
      snapshot: snapshot instanceof Snapshot ? snapshot.id : snapshot,
      memory: memory || undefined,
      tags,
      defaults: unlessEmpty(given(defaults)),
    };
    const call = once({ method: "POST", path: "/v1/templates", json, signal });
    return new Template(client, await client._get<TemplateInfo>(call));
  }

  /**
   * Builds a new version of `name` from an {@link Image} or a Dockerfile. A failed build throws {@link
   * BuildFailed}.
   */
  static async build(name: string, options: BuildOptions): Promise<Template> {
    known(options, BUILD_OPTIONS, "a build");
    const { client = Client.default(), image, tags, args, target, ready, start, readyTimeout, env, signal } = options;
    if (typeof tags === "string") throw new CoveError("tags: a list of tags, not one text");
    if (ready === undefined && (start !== undefined || readyTimeout !== undefined)) {
      throw new CoveError("start and readyTimeout go with ready");
    }
    if (image !== undefined && (options.context !== undefined || options.dockerfile !== undefined)) {
      throw new CoveError("an image has its own dockerfile and context");
    }
    const parts = image?._parts;
    const context = parts ? parts.context : options.context;
    const dockerfile = parts?.dockerfile ?? options.dockerfile ?? (await fileOf(context, "Dockerfile"));
    if (dockerfile === undefined) {
      throw new CoveError("give an image, a dockerfile, or a context that has a file Dockerfile");
    }
    const limits = {
      cpu: options.cpu,
      memory_mb: megabytes("memoryLimit", options.memoryLimit),
      disk_mb: megabytes("disk", options.disk),
    };
    const json = {
      name,
      tags,
      dockerfile,
      ignore: parts ? parts.ignore : await fileOf(context, ".dockerignore"),
      args,
      target,
      network: networkBody(options.network),
      no_cache: options.noCache || undefined,
      pull: options.pull || undefined,
      start: ready === undefined ? undefined : { command: start, ready, timeout_s: readyTimeout },
      defaults: unlessEmpty(given({ resources: unlessEmpty(given(limits)), env })),
    };
    const build = await client._get<{ id: string }>({ method: "POST", path: "/v1/builds", json, signal });
    const path = `/v1/builds/${encodeURIComponent(build.id)}`;
    let ended: Camel<Schemas["Build"]> | undefined;
    try {
      const content = () => streamed(pack(context, parts?.sources));
      const headers = { "content-type": "application/x-tar" };
      await client._done({ method: "PUT", path: `${path}/context`, content, headers, patience: null, signal });
      for await (const value of client._lines({ method: "GET", path: `${path}/log`, patience: null, signal })) {
        const line = camel<BuildLine>(value);
        if (line.type === "end") ended = line.build;
        else options.onLog?.(line);
      }
    } catch (error) {
      await client._done({ method: "DELETE", path });
      throw error;
    }
    ended ??= await client._get<Camel<Schemas["Build"]>>({ method: "GET", path, signal });
    if (ended.state !== "done" || ended.template === undefined) {
      throw new BuildFailed(ended.error ?? `the build is ${ended.state}`);
    }
    return await Template.get(ended.template, { client, signal });
  }

  /** Returns an existing version: `name`, `name:tag`, `name:version` or its id. */
  static async get(template: string, options: ClientChoice = {}): Promise<Template> {
    const { client = Client.default(), signal } = options;
    return new Template(client, await client._get<TemplateInfo>({ method: "GET", path: at(template), signal }));
  }

  /** Lists the versions of all templates of the organisation, or of one name, newest first. */
  static async list(options: ClientChoice & { name?: string } = {}): Promise<Template[]> {
    const { client = Client.default(), name, signal } = options;
    const found: Template[] = [];
    const call = { method: "GET", path: "/v1/templates", query: { name }, signal } as const;
    for await (const info of client._pages<TemplateInfo>(call)) {
      found.push(new Template(client, info));
    }
    return found;
  }

  /** Points a tag at this version. */
  async tag(tag: string, options: Cancel = {}): Promise<void> {
    const path = at(this.id, `/tags/${encodeURIComponent(tag)}`);
    this.#info = await this.#client._get<TemplateInfo>({ method: "PUT", path, signal: options.signal });
  }

  /** Removes a tag of the template from any version. */
  async untag(tag: string, options: Cancel = {}): Promise<void> {
    const path = at(this.name, `/tags/${encodeURIComponent(tag)}`);
    await this.#client._done({ method: "DELETE", path, signal: options.signal });
    this.#info = { ...this.#info, tags: this.#info.tags.filter((each) => each !== tag) };
  }

  /** Deletes this version. Sandboxes from it and its snapshot stay. */
  async delete(options: Cancel = {}): Promise<void> {
    await this.#client._done({ method: "DELETE", path: at(this.id), signal: options.signal });
  }
}
