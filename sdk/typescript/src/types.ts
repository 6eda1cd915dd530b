/** Plain values from the server, typed from its OpenAPI document. */

import type { Camel } from "./names.js";
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

/** The state of a sandbox. */
export type State = Schemas["SandboxState"];
/** Languages of the code interpreter. TypeScript runs in JavaScript's contexts. */
export type Language = Schemas["CodeLanguage"];
/** `none`: no network. `allowlist`: the listed destinations. `open`: the internet without private ranges. */
export type NetworkMode = Schemas["Reach"];

/** Limits in force. */
export interface Resources extends Camel<Schemas["ResourcesView"]> {}
/** Requested limits. */
export interface ResourcesRequest extends Camel<Schemas["ResourcesRequest"]> {}
/** A network policy. */
export interface NetworkPolicy extends Camel<Schemas["Network"]> {}
/** Lifecycle rules of a sandbox. */
export interface Lifecycle extends Camel<Schemas["Lifecycle"]> {}
/** The state of a sandbox when the server last reported it. */
export interface SandboxInfo extends Camel<Schemas["Sandbox"]> {}
/** A TCP port that a program in the sandbox listens on. */
export interface Port extends Camel<Schemas["Port"]> {
  public: boolean;
}
/** The address of a shared port. */
/**
 * `url` is for programs and browsers, and has the token of the link unless the port is public. On the server's own
 * machine it needs no names under `localhost`, which Node does not resolve.
 */
export interface Share extends Camel<Schemas["PortShare"]> {
  /** For browsers: a host of its own, so that pages of several ports share nothing. */
  browserUrl: string;
}
/** One decision of a sandbox's network policy. A connection has a second entry when it has ended, with its bytes. */
export interface Egress extends Camel<Schemas["EgressEntry"]> {}
/** The resource usage of a sandbox. */
export interface Metrics extends Camel<Schemas["Metrics"]> {}
/** An event of a sandbox; its fields depend on the `type`. */
export type Event = Camel<Schemas["Event"]>;
/** An image that sandboxes can start from. */
export interface ImageInfo extends Camel<Schemas["Image"]> {}
/** The usage of an organisation or of a sandbox. */
export interface Usage extends Camel<Schemas["UsageFigures"]> {}
/** A running code context. */
export interface CodeContextInfo extends Camel<Schemas["CodeContext"]> {}
/** The exception that code raised. */
export interface CodeError extends Camel<Schemas["CodeError"]> {}
/** One state of a sandbox, with memory or without. It never changes. */
export interface SnapshotInfo extends Camel<Schemas["Snapshot"]> {}
/** One version of a template. Only its tags can change. */
export interface TemplateInfo extends Camel<Schemas["Template"]> {}
/** The state of a volume when the server last reported it. */
export interface VolumeInfo extends Camel<Schemas["Volume"]> {}
/** The tree a sandbox is part of. */
export interface Timeline extends Camel<Schemas["Timeline"]> {}
/** A change below a watched path. */
export interface FileChange extends Camel<Schemas["FileChange"]> {}
/** What a sandbox asks of its host: labels, a zone, taints that it tolerates, and how hosts are filled. */
export interface Placement extends Camel<Schemas["Placement"]> {}
/** The identity of a sandbox, and what it may do to itself. */
export interface Identity extends Camel<Schemas["Identity"]> {}
/** A signed token that identifies a sandbox: a JWT of OpenID Connect, signed with RS256. */
export interface IdentityToken extends Camel<Schemas["IdentityToken"]> {}
/** Access to a sandbox over SSH. `command` is the command line. */
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
/** A request with a secret that needs an approval. */
export interface Approval extends Camel<Schemas["Approval"]> {}
/** A secret of the organisation, without its value. */
export interface Secret extends Camel<Schemas["Secret"]> {}
/** The permissions of a key. */
export type Scope = Schemas["Scope"];

/** An API key. `token` is known only when the key was just created. */
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
 * A changed file. `index` and `worktree` are git's letters: `M` modified, `A` added, `D` deleted, `R` renamed,
 * `U` in conflict, `?` not tracked, `.` unchanged.
 */
export interface GitFile {
  path: string;
  index: string;
  worktree: string;
}

/** The state of a working tree. */
export interface GitStatus {
  /** Undefined when no branch is checked out. */
  branch: string | undefined;
  /** Undefined when nothing was committed yet. */
  commit: string | undefined;
  upstream: string | undefined;
  ahead: number;
  behind: number;
  files: GitFile[];
  /** Whether no file is changed. */
  clean: boolean;
}

/** A command's record in the sandbox. */
export interface ProcessInfo extends Camel<Schemas["Process"]> {
  running: boolean;
}

/** A command that comes back when its sandbox is started. */
export interface Service extends Camel<Schemas["Service"]> {}

/** The metadata of a path. */
export interface FileInfo extends Camel<Schemas["FileInfo"]> {
  isFile: boolean;
  isDir: boolean;
}
