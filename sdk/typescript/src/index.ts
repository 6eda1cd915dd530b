/**
 * Cove: every agent gets its own computer. Start with {@link Sandbox}. On the server's own machine no
 * configuration is needed; elsewhere set `COVE_URL` and `COVE_API_KEY`. All times are in seconds.
 */

export { Client, type PullOptions } from "./client.js";
export { Code, CodeContext, type CodeOptions, type ContextOptions } from "./code.js";
export {
  AlreadyExistsError,
  ApiError,
  type ApiErrorDetail,
  AuthenticationError,
  BuildFailed,
  CodeFailed,
  CodeTimedOut,
  CommandFailed,
  CommandTimedOut,
  ConfigurationError,
  ConflictError,
  ConnectionError,
  CoveError,
  DiskFullError,
  FileError,
  ForbiddenError,
  ForkFailed,
  GuestError,
  InUseError,
  InvalidRequestError,
  LimitError,
  NotFoundError,
  PathExistsError,
  PathIsADirectoryError,
  PathNotADirectoryError,
  PathNotFoundError,
  PathPermissionError,
  ProcessGoneError,
  ProtocolError,
  RateLimitError,
  ServerError,
  TimedOutError,
  UnavailableError,
  UnsupportedError,
  WaitTimeout,
} from "./errors.js";
export {
  type Content,
  type FileOptions,
  Files,
  type ReadOptions,
  type WriteOptions,
} from "./files.js";
export { Git, type GitOptions, type RemoteOptions } from "./git.js";
export { Image } from "./image.js";
export { Process, type ScreenOptions, Stream, Terminal, type WaitOptions } from "./process.js";
export { type Check, CodeOutput, CodeResult, type Output, Result } from "./results.js";
export {
  type EgressOptions,
  type Network,
  type RunOptions,
  Sandbox,
  type SandboxOptions,
  type ServiceOptions,
  type StartOptions,
  type TerminalOptions,
  type UpdateOptions,
} from "./sandbox.js";
export type { ClientOptions } from "./settings.js";
export type { LeaseOptions } from "./leases.js";
export { type ClientChoice, type ForkOptions, Forks, Snapshot } from "./snapshot.js";
export { type BuildLine, type BuildOptions, Template, type TemplateOptions } from "./template.js";
export type * from "./types.js";
export { type Mounted, Volume, type VolumeOptions } from "./volume.js";
export type { Cancel, Command, CommandOptions, LifecycleOptions, Size } from "./wire.js";
