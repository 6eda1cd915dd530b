/** Images as a chain of steps: each is one instruction of a Dockerfile, and every argument is data in it. */

import { existsSync, lstatSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";

import { CoveError } from "./errors.js";
import type { Template } from "./template.js";
import type { Command } from "./wire.js";

/** Where the archive has what `copy` takes; the names in it are made here. */
const COPIES = ".cove-copy";
const REFERENCE = /^[A-Za-z0-9][A-Za-z0-9._/:@-]*$/;
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_.-]*$/;
const PLAIN = /^[A-Za-z0-9_./][A-Za-z0-9_./:@%+=,-]*$/;
/** At least what the server takes for a directive that changes the escape character. */
const ESCAPE = /^[^\w\n]*escape[^\w\n]*=[^\w\n]*`/im;
const COMMENT = /^[\s\u0085]*(#|$)/;
const SHELL = ["/bin/sh", "-c"];
const APT =
  "apt-get update && DEBIAN_FRONTEND=noninteractive" +
  ' apt-get install -y --no-install-recommends -- "$@" && rm -rf /var/lib/apt/lists/*';
/** Debian's pip refuses to add to the packages of the system; in an image of its own that is what is wanted. */
const PIP = ["env", "PIP_BREAK_SYSTEM_PACKAGES=1", "PIP_NO_CACHE_DIR=1", "python3", "-m", "pip", "install", "--"];

function wrong(what: string, value: unknown, problem: string): CoveError {
  return new CoveError(`${what}: ${JSON.stringify(value)} ${problem}`);
}

function text(what: string, value: unknown, { line = false, empty = false } = {}): string {
  if (typeof value !== "string") throw wrong(what, value, "is not a text");
  if (/\0|\p{Surrogate}/u.test(value)) throw wrong(what, value, "has a NUL or is not Unicode");
  if (line && /[\n\r]/.test(value)) {
    throw wrong(what, value, "has a line break, which this instruction of a Dockerfile cannot have");
  }
  if (!empty && value === "") throw new CoveError(`${what}: the text is empty`);
  return value;
}

/** For what reads words: quotes, backslashes and `$` stand for themselves. */
function escaped(value: string): string {
  return value.replace(/[\\"'$]/g, "\\$&");
}

function word(value: string): string {
  return PLAIN.test(value) ? value : `"${value.replace(/[\\"$]/g, "\\$&")}"`;
}

/** In ASCII. Two `<` would begin a here-document, wherever they stand. */
function array(words: readonly string[]): string {
  const code = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return `[${words.map((each) => JSON.stringify(each).replace(/[^ -;=-~]/g, code)).join(", ")}]`;
}

function command(what: string, given: Command): string {
  if (typeof given === "string") return array([...SHELL, text(what, given)]);
  const words = given.map((each) => text(what, each, { empty: true }));
  if (!words[0]) throw new CoveError(`${what}: the command has no program`);
  return array(words);
}

function all(what: string, names: readonly string[]): string[] {
  if (names.length === 0) throw new CoveError(`${what}: name at least one package`);
  return names.map((name) => text(what, name));
}

interface Parts {
  dockerfile: string;
  context?: string | undefined;
  ignore?: string | undefined;
  /** Path in the archive and path on this machine. */
  sources: readonly (readonly [string, string])[];
}

/**
 * The steps that a template is built from. It never changes: every method returns a new image. Arguments are
 * data: quotes, `$`, backslashes and leading dashes reach the tool unchanged. An argument that a Dockerfile
 * cannot express throws a {@link CoveError}. {@link Template.build} builds it.
 *
 * ```ts
 * const image = Image.debian().apt("ripgrep").copy("src", "/srv/app").run("make");
 * const template = await Template.build("tools", { image });
 * ```
 */
export class Image {
  readonly #parts: Parts;

  private constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Starts from the default image. */
  static debian(): Image {
    return Image.fromImage("debian");
  }

  /** Starts from an image of a registry or of the server, such as `python:3.12`. */
  static fromImage(reference: string): Image {
    if (!REFERENCE.test(text("fromImage", reference))) throw wrong("fromImage", reference, "is not the name of an image");
    return new Image({ dockerfile: `FROM ${reference}\n`, sources: [] });
  }

  /** Starts from a template: the object, `name`, `name:tag`, `name:version` or its id. */
  static fromTemplate(template: string | Template): Image {
    const name = typeof template === "string" ? template : template.id;
    if (!REFERENCE.test(text("fromTemplate", name))) throw wrong("fromTemplate", name, "is not the name of a template");
    return new Image({ dockerfile: `FROM template/${name}\n`, sources: [] });
  }

  /**
   * Starts from a Dockerfile. `context` is the directory with the files for `COPY` (default: the Dockerfile's
   * directory), except those that `.dockerignore` names. Later steps belong to its last stage.
   */
  static fromDockerfile(file: string, options: { context?: string | undefined } = {}): Image {
    const path = resolve(file);
    const context = options.context === undefined ? dirname(path) : resolve(options.context);
    const read = (name: string) => readFileSync(name, "utf8").replace(/^\uFEFF/, "");
    const dockerfile = read(path);
    if (ESCAPE.test(dockerfile)) {
      throw new CoveError(`${path}: a Dockerfile with another escape character cannot be continued`);
    }
    const last = dockerfile.split("\n").findLast((line) => !COMMENT.test(line));
    if (last?.trimEnd().endsWith("\\")) {
      throw new CoveError(`${path}: the last line ends with a backslash, so that the next step would go on with it`);
    }
    const ignore = [`${path}.dockerignore`, join(context, ".dockerignore")].find((name) => existsSync(name));
    return new Image({
      dockerfile: dockerfile.endsWith("\n") ? dockerfile : `${dockerfile}\n`,
      context,
      ignore: ignore && read(ignore),
      sources: [],
    });
  }

  /** The text of the Dockerfile. */
  get dockerfile(): string {
    return this.#parts.dockerfile;
  }

  /** What a build sends. @internal */
  get _parts(): Parts {
    const { context, ignore, sources } = this.#parts;
    if (context === undefined || sources.length === 0) return this.#parts;
    if (lstatSync(join(context, COPIES), { throwIfNoEntry: false })) {
      throw new CoveError(`the context has ${COPIES}, which is the name for what copy takes`);
    }
    // What copy takes is wanted, whatever the patterns say of the context.
    return { ...this.#parts, ignore: ignore && `${ignore}\n!${COPIES}\n` };
  }

  #then(instruction: string, source: readonly (readonly [string, string])[] = []): Image {
    const { dockerfile, sources } = this.#parts;
    return new Image({ ...this.#parts, dockerfile: `${dockerfile}${instruction}\n`, sources: [...sources, ...source] });
  }

  /** Installs Debian or Ubuntu packages. */
  apt(...packages: string[]): Image {
    return this.run([...SHELL, APT, "apt", ...all("apt", packages)]);
  }

  /** Installs Python packages for all users, with the `pip` of the image's `python3`. */
  pip(...packages: string[]): Image {
    return this.run([...PIP, ...all("pip", packages)]);
  }

  /**
   * Copies a file, or the content of a directory, of this machine. A file goes into `target` if that is a
   * directory or ends with `/`. Links below `source` are kept.
   */
  copy(source: string, target: string): Image {
    const place = resolve(text("copy", source));
    const name = text("copy", basename(place), { empty: true });
    text("copy", target);
    const found = statSync(place);
    if (name === "" || !(found.isDirectory() || found.isFile())) {
      throw wrong("copy", place, "is neither a file nor a directory below /");
    }
    const entry = `${COPIES}/${this.#parts.sources.length}/${name}`;
    // A source is a pattern, too.
    const pattern = entry.replace(/[\\*?[]/g, "\\$&");
    return this.#then(`COPY ${array([escaped(pattern), escaped(target)])}`, [[entry, place]]);
  }

  /** Runs a command in the build: a string for `/bin/sh`, or a program with its arguments. */
  run(given: Command): Image {
    return this.#then(`RUN ${command("run", given)}`);
  }

  /** Sets environment variables for later steps and for sandboxes. `$NAME` in a value is not replaced. */
  env(variables: Readonly<Record<string, string>>): Image {
    const words = Object.entries(variables).map(([name, value]) => {
      if (!VARIABLE.test(name)) throw wrong("env", name, "is not the name of a variable");
      return `${name}=${word(text(`env ${name}`, value, { line: true, empty: true }))}`;
    });
    return words.length > 0 ? this.#then(`ENV ${words.join(" ")}`) : this;
  }

  /** Sets the working directory of later steps and of commands in sandboxes, and creates it. */
  workdir(path: string): Image {
    return this.#then(`WORKDIR ${word(text("workdir", path, { line: true }))}`);
  }

  /** Sets the user of later steps and of commands in sandboxes: `app`, `1000` or `app:staff`. */
  user(user: string): Image {
    if (/\s/.test(text("user", user))) throw wrong("user", user, "has a blank");
    return this.#then(`USER ${word(user)}`);
  }

  /**
   * Sets the server that `ready` of {@link Template.build} waits for: a string for `/bin/sh`, or a program with
   * its arguments. Without `ready` it is only recorded.
   */
  cmd(given: Command): Image {
    return this.#then(`CMD ${command("cmd", given)}`);
  }
}
