/** Plain values the server tells, typed from its OpenAPI document. */

import type { Camel } from "./names.js";
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

/** Where a sandbox is in its life. */
export type State = Schemas["SandboxState"];
/** What the code interpreter speaks. TypeScript runs in JavaScript's contexts. */
export type Language = Schemas["CodeLanguage"];
/** `none`: nothing but itself. `allowlist`: what is listed. `open`: the internet, but no private ranges. */
export type NetworkMode = Schemas["Reach"];

/** Limits in force. */
export interface Resources extends Camel<Schemas["ResourcesView"]> {}
/** Limits to ask for. */
export interface ResourcesRequest extends Camel<Schemas["ResourcesRequest"]> {}
/** A network policy. */
export interface NetworkPolicy extends Camel<Schemas["Network"]> {}
/** What happens to a sandbox by itself. */
export interface Lifecycle extends Camel<Schemas["Lifecycle"]> {}
/** A sandbox as it was when the server last told. */
export interface SandboxInfo extends Camel<Schemas["Sandbox"]> {}
/** A TCP port somebody inside listens on. */
export interface Port extends Camel<Schemas["Port"]> {
  public: boolean;
}
/** Where a shared port is visited. */
/**
 * `url` is for programs and browsers, and has the token of the link unless the port is public. On the server's own
 * machine it needs no names under `localhost`, which Node does not resolve.
 */
export interface Share extends Camel<Schemas["PortShare"]> {
  /** For browsers: a host of its own, so that pages of several ports share nothing. */
  browserUrl: string;
}
/** One decision of a sandbox's network policy. A connection comes again when it has ended, with its bytes. */
export interface Egress extends Camel<Schemas["EgressEntry"]> {}
/** What a sandbox uses. */
export interface Metrics extends Camel<Schemas["Metrics"]> {}
/** Something that happened to a sandbox; its fields depend on the `type`. */
export type Event = Camel<Schemas["Event"]>;
/** An image sandboxes can start from. */
export interface ImageInfo extends Camel<Schemas["Image"]> {}
/** What an organisation or a sandbox used. */
export interface Usage extends Camel<Schemas["UsageFigures"]> {}
/** A code context that runs. */
export interface CodeContextInfo extends Camel<Schemas["CodeContext"]> {}
/** What code threw. */
export interface CodeError extends Camel<Schemas["CodeError"]> {}
/** One state of a sandbox, with memory or without. It never changes. */
export interface SnapshotInfo extends Camel<Schemas["Snapshot"]> {}
/** One version of a template. Nothing of it changes but its tags. */
export interface TemplateInfo extends Camel<Schemas["Template"]> {}
/** A volume as it was when the server last told. */
export interface VolumeInfo extends Camel<Schemas["Volume"]> {}
/** The tree a sandbox is part of. */
export interface Timeline extends Camel<Schemas["Timeline"]> {}
/** Something happened below a watched path. */
export interface FileChange extends Camel<Schemas["FileChange"]> {}
/** What a sandbox may know and do about itself. */
export interface Identity extends Camel<Schemas["Identity"]> {}
/** A signed statement of which sandbox its holder is: a JWT of OpenID Connect, signed with RS256. */
export interface IdentityToken extends Camel<Schemas["IdentityToken"]> {}
/** How to log in to a sandbox by SSH. `command` is what to type. */
export interface SshAccess extends Camel<Schemas["SshAccess"]> {}
/** A public key that can log in to all sandboxes of the organisation. */
export interface SshKey extends Camel<Schemas["SshKey"]> {}
/** A secret in a sandbox: the variable or the file that stands for it. */
export interface SecretGrant extends Camel<Schemas["SecretGrant"]> {}
/** The most that requests with a secret may use. */
export interface SecretLimit extends Camel<Schemas["SecretLimit"]> {}
/** A limit of a secret, and what was used of it. */
export interface SecretBudget extends Camel<Schemas["SecretBudget"]> {}
/** A sandbox that used a secret. */
export interface SecretUser extends Camel<Schemas["SecretUser"]> {}
/** A request that a sandbox asks to send with a secret. */
export interface Approval extends Camel<Schemas["Approval"]> {}
/** A secret of the organisation, without its value. */
export interface Secret extends Camel<Schemas["Secret"]> {}
/** What a key allows. */
export type Scope = Schemas["Scope"];

/** A key of the API. `token` is the secret, and known only when the key was just made. */
export interface Key extends Camel<Schemas["Key"]> {
  token?: string;
}

/** A line that matched a search. */
export interface FileMatch {
  path: string;
  /** Its number, from 1. */
  line: number;
  text: string;
}

/**
 * A file that is not as it was committed. `index` and `worktree` are git's letters: `M` modified, `A` added, `D`
 * deleted, `R` renamed, `U` in conflict, `?` not tracked, `.` unchanged.
 */
export interface GitFile {
  path: string;
  index: string;
  worktree: string;
}

/** Where a working tree is. */
export interface GitStatus {
  /** Undefined when no branch is checked out. */
  branch: string | undefined;
  /** Undefined when nothing was committed yet. */
  commit: string | undefined;
  upstream: string | undefined;
  ahead: number;
  behind: number;
  files: GitFile[];
  /** Whether all files are as they were committed. */
  clean: boolean;
}

/** A command's record in the sandbox. */
export interface ProcessInfo extends Camel<Schemas["Process"]> {
  running: boolean;
}

/** What is at a path. */
export interface FileInfo extends Camel<Schemas["FileInfo"]> {
  isFile: boolean;
  isDir: boolean;
}
