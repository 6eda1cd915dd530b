/** Git in a sandbox, through the `git` of its image. */

import type { Result } from "./results.js";
import type { Runner } from "./files.js";
import type { GitFile, GitStatus } from "./types.js";
import type { Cancel } from "./wire.js";

/** Takes the credentials from the environment, so that they are in no command line and in no file. */
const HELPER =
  '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$COVE_GIT_USER" "$COVE_GIT_PASSWORD"; }; f';

/** An argument that every call about git takes. */
export interface GitOptions extends Cancel {
  /** Who runs git. Default: the sandbox's user. */
  user?: string | undefined;
}

/** What calls to a remote take. The credentials are for HTTPS; the sandbox does not store them. */
export interface RemoteOptions extends GitOptions {
  username?: string | undefined;
  password?: string | undefined;
  /** Seconds. */
  timeout?: number | undefined;
}

/** `box.git`. `path` is a working tree. A failed git command throws {@link CommandFailed}. */
export class Git {
  readonly #run: Runner;

  /** @internal */
  constructor(run: Runner) {
    this.#run = run;
  }

  async #git(
    path: string | undefined,
    args: readonly string[],
    options: RemoteOptions,
    env: Record<string, string> = {},
  ): Promise<Result> {
    const { user, signal, timeout, username, password } = options;
    const command = ["git", ...(path === undefined ? [] : ["-C", path])];
    const variables: Record<string, string> = { GIT_TERMINAL_PROMPT: "0", ...env };
    if (username !== undefined || password !== undefined) {
      command.push("-c", "credential.helper=", "-c", `credential.helper=${HELPER}`);
      variables["COVE_GIT_USER"] = username ?? "git";
      variables["COVE_GIT_PASSWORD"] = password ?? "";
    }
    return this.#run([...command, ...args], { user, signal, timeout, env: variables, check: true });
  }

  /** Creates an empty repository. */
  async init(path: string, options: GitOptions & { branch?: string } = {}): Promise<void> {
    await this.#git(undefined, ["init", "--quiet", `--initial-branch=${options.branch ?? "main"}`, "--", path], options);
  }

  /** Clones a repository; the sandbox's network policy must allow its host. */
  async clone(url: string, path: string, options: RemoteOptions & { branch?: string; depth?: number } = {}): Promise<void> {
    const { branch, depth } = options;
    const limits = [...(branch ? [`--branch=${branch}`] : []), ...(depth ? [`--depth=${depth}`] : [])];
    await this.#git(undefined, ["clone", "--quiet", ...limits, "--", url, path], options);
  }

  /** Returns the branch and the changed files. */
  async status(path: string, options: GitOptions = {}): Promise<GitStatus> {
    const args = ["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"];
    return status((await this.#git(path, args, options)).stdout);
  }

  /** Returns the unstaged changes; with `staged`, the staged ones. */
  async diff(path: string, options: GitOptions & { staged?: boolean } = {}): Promise<string> {
    return (await this.#git(path, ["diff", ...(options.staged ? ["--staged"] : [])], options)).stdout;
  }

  /** Stages all changes, or those of the given files. */
  async add(path: string, files: string | readonly string[] = ".", options: GitOptions = {}): Promise<void> {
    await this.#git(path, ["add", "--all", "--", ...[files].flat()], options);
  }

  /** Commits the staged changes and returns the commit's id. `author` is `Name <address>`. */
  async commit(
    path: string,
    message: string,
    options: GitOptions & { author?: string; allowEmpty?: boolean } = {},
  ): Promise<string> {
    const { author, allowEmpty, ...rest } = options;
    const env: Record<string, string> = {};
    if (author !== undefined) {
      const [, name, address] = /^\s*([^<]*[^<\s])\s*<([^<>]*)>\s*$/.exec(author) ?? [];
      if (name === undefined || address === undefined) {
        throw new TypeError(`author must look like 'Name <address>', not ${JSON.stringify(author)}`);
      }
      for (const role of ["AUTHOR", "COMMITTER"]) {
        env[`GIT_${role}_NAME`] = name;
        env[`GIT_${role}_EMAIL`] = address;
      }
    }
    await this.#git(path, ["commit", "--quiet", "-m", message, ...(allowEmpty ? ["--allow-empty"] : [])], rest, env);
    return (await this.#git(path, ["rev-parse", "HEAD"], rest)).stdout.trim();
  }

  /** Returns the names of the branches. */
  async branches(path: string, options: GitOptions = {}): Promise<string[]> {
    const { stdout } = await this.#git(path, ["branch", "--format=%(refname:short)"], options);
    return stdout.split("\n").filter(Boolean);
  }

  /** Checks out a branch or a commit; with `create`, a new branch. */
  async checkout(path: string, branch: string, options: GitOptions & { create?: boolean } = {}): Promise<void> {
    const how = options.create ? ["-b", branch] : [branch, "--"];
    await this.#git(path, ["checkout", "--quiet", ...how], options);
  }

  /** Pulls from upstream; fails if that needs a merge. */
  async pull(path: string, options: RemoteOptions = {}): Promise<void> {
    await this.#git(path, ["pull", "--quiet", "--ff-only"], options);
  }

  /** Pushes the current branch, or another one, to a remote. */
  async push(path: string, options: RemoteOptions & { remote?: string; branch?: string } = {}): Promise<void> {
    const { remote = "origin", branch = "HEAD" } = options;
    await this.#git(path, ["push", "--quiet", "--set-upstream", "--", remote, branch], options);
  }
}

/** What `git status --porcelain=v2 --branch -z` wrote. */
function status(output: string): GitStatus {
  const heads = new Map<string, string>();
  const files: GitFile[] = [];
  const entries = output.split("\0").values();
  for (const entry of entries) {
    const rest = (fields: number) => entry.split(" ").slice(fields).join(" ");
    const [index = "", worktree = ""] = entry.slice(2, 4);
    const kind = entry.slice(0, 2);
    if (kind === "# ") heads.set(entry.split(" ")[1] ?? "", rest(2));
    else if (kind === "1 ") files.push({ path: rest(8), index, worktree });
    else if (kind === "2 ") {
      files.push({ path: rest(9), index, worktree });
      entries.next(); // where it was before
    } else if (kind === "u ") files.push({ path: rest(10), index: "U", worktree: "U" });
    else if (kind === "? ") files.push({ path: rest(1), index: "?", worktree: "?" });
  }
  const [branch, commit] = [heads.get("branch.head"), heads.get("branch.oid")];
  const [ahead, behind] = (heads.get("branch.ab") ?? "+0 -0").split(" ").map((number) => Math.abs(Number(number)));
  return {
    branch: branch === "(detached)" ? undefined : branch,
    commit: commit === "(initial)" ? undefined : commit,
    upstream: heads.get("branch.upstream"),
    ahead: ahead ?? 0,
    behind: behind ?? 0,
    files,
    clean: files.length === 0,
  };
}
