/**
 * The errors, one class per family of the server's error codes. All of them are a {@link CoveError}; what the
 * server refused is an {@link ApiError}.
 */

import type { CodeResult, Result } from "./results.js";

/** Characters of output in the message of a {@link CommandFailed}. */
const TAIL_MAX = 2000;
/** Characters of the command in that message. */
const COMMAND_MAX = 300;

/** The base of all errors of this package. */
export class CoveError extends Error {
  override name = "CoveError";
}

/** No server is configured, or its settings are wrong. */
export class ConfigurationError extends CoveError {
  override name = "ConfigurationError";
}

/** The server cannot be reached, or the connection was lost and could not be resumed. */
export class ConnectionError extends CoveError {
  override name = "ConnectionError";
}

/** The server sent an answer that this package cannot read. */
export class ProtocolError extends CoveError {
  override name = "ProtocolError";
}

/** A wait timed out. */
export class WaitTimeout extends CoveError {
  override name = "WaitTimeout";
}

function shortened(text: string, limit: number): string {
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}

/** A command failed, and `check` was set. {@link result} has its output and exit code. */
export class CommandFailed extends CoveError {
  override name = "CommandFailed";
  readonly result: Result;

  constructor(result: Result) {
    const command = result.command === undefined ? "the command" : `command \`${shortened(result.command, COMMAND_MAX)}\``;
    let how = `exited with ${result.exitCode}`;
    if (result.oom) how = "was killed because it ran out of memory";
    else if (result.timedOut) how = "was killed because its timeout passed";
    else if (result.signal !== undefined) how += ` (signal ${result.signal})`;
    const tail = (result.stderr.trim() || result.stdout.trim()).slice(-TAIL_MAX);
    const hint = result.hint === undefined ? "" : `\n(${result.hint})`;
    super(`${command} ${how}${tail ? `:\n${tail}` : ""}${hint}`);
    this.result = result;
  }
}

/** A command's `timeout` passed. Pass `check: false` to get the result instead. */
export class CommandTimedOut extends CommandFailed {
  override name = "CommandTimedOut";
}

/** Code raised an exception, or its `timeout` passed. {@link result} has its output and error. */
export class CodeFailed extends CoveError {
  override name = "CodeFailed";
  readonly result: CodeResult;

  constructor(result: CodeResult) {
    let how = `the code exited with ${result.exitCode}`;
    if (result.timedOut) how = "the code was interrupted because its timeout passed";
    else if (result.error) how = result.error.traceback.trim() || `${result.error.name}: ${result.error.value}`;
    super(how);
    this.result = result;
  }
}

/** The code's `timeout` passed. Pass `check: false` to get the result instead. */
export class CodeTimedOut extends CodeFailed {
  override name = "CodeTimedOut";
}

/** A build of a template failed or was cancelled. The message has the step and the end of its output. */
export class BuildFailed extends CoveError {
  override name = "BuildFailed";
}

/** Some of the requested forks could not be created. {@link errors} has the reasons; the other forks were deleted. */
export class ForkFailed extends CoveError {
  override name = "ForkFailed";
  readonly errors: readonly ApiError[];

  constructor(errors: readonly ApiError[]) {
    super(`${errors.length} forks could not be made; the first error: ${errors[0]?.message ?? "unknown"}`);
    this.errors = errors;
  }
}

/** The parts of an {@link ApiError}. */
export interface ApiErrorDetail {
  code: string;
  message: string;
  hint?: string | undefined;
  requestId?: string | undefined;
  status?: number | undefined;
  retryAfter?: number | undefined;
}

/** The server refused a request. */
export class ApiError extends CoveError {
  override name = "ApiError";
  /** Stable; `docs/errors` has a page for each. */
  readonly code: string;
  /** What to do next. */
  readonly hint: string | undefined;
  /** The request's id in the server's log. */
  readonly requestId: string | undefined;
  /** The HTTP status, 0 for an error inside a stream. */
  readonly status: number;
  /** Seconds after which to try again. */
  readonly retryAfter: number | undefined;

  constructor(detail: ApiErrorDetail) {
    super(detail.hint ? `${detail.message} (${detail.hint})` : detail.message);
    this.code = detail.code;
    this.hint = detail.hint;
    this.requestId = detail.requestId;
    this.status = detail.status ?? 0;
    this.retryAfter = detail.retryAfter;
  }
}

/** The key is missing, unknown or revoked. */
export class AuthenticationError extends ApiError {
  override name = "AuthenticationError";
}

/** The key's scopes do not allow this. */
export class ForbiddenError extends ApiError {
  override name = "ForbiddenError";
}

/** The request is invalid. */
export class InvalidRequestError extends ApiError {
  override name = "InvalidRequestError";
}

/** There is no sandbox, snapshot, image or process of that name. */
export class NotFoundError extends ApiError {
  override name = "NotFoundError";
}

/** The present state does not allow it; the hint says what to do first. */
export class ConflictError extends ApiError {
  override name = "ConflictError";
}

/** The name is taken. */
export class AlreadyExistsError extends ConflictError {
  override name = "AlreadyExistsError";
}

/** Something still uses it. */
export class InUseError extends ConflictError {
  override name = "InUseError";
}

/** The process has ended, or its record is no longer kept. */
export class ProcessGoneError extends ApiError {
  override name = "ProcessGoneError";
}

/** An error about a path in the sandbox. */
export class FileError extends ApiError {
  override name = "FileError";
}

/** The path does not exist. */
export class PathNotFoundError extends FileError {
  override name = "PathNotFoundError";
}

/** The path exists already. */
export class PathExistsError extends FileError {
  override name = "PathExistsError";
}

/** The path is a directory, and the operation needs a file. */
export class PathIsADirectoryError extends FileError {
  override name = "PathIsADirectoryError";
}

/** The path is not a directory, and the operation needs one. */
export class PathNotADirectoryError extends FileError {
  override name = "PathNotADirectoryError";
}

/** The user in the sandbox lacks the permission for the path. */
export class PathPermissionError extends FileError {
  override name = "PathPermissionError";
}

/** The sandbox's disk is full. */
export class DiskFullError extends FileError {
  override name = "DiskFullError";
}

/** A quota of the organisation or a limit of the sandbox would be exceeded. */
export class LimitError extends ApiError {
  override name = "LimitError";
}

/** Too many requests; `retryAfter` says when to try again. */
export class RateLimitError extends ApiError {
  override name = "RateLimitError";
}

/** The server or its host lacks a resource now; `retryAfter` says when to try again. */
export class UnavailableError extends ApiError {
  override name = "UnavailableError";
}

/** This server cannot do it. */
export class UnsupportedError extends ApiError {
  override name = "UnsupportedError";
}

/** The sandbox runs, but the guest program in it does not answer. */
export class GuestError extends ApiError {
  override name = "GuestError";
}

/** The server did not finish in time. */
export class TimedOutError extends ApiError {
  override name = "TimedOutError";
}

/** The server failed. Its log has more under `requestId`. */
export class ServerError extends ApiError {
  override name = "ServerError";
}

/** @internal The class for each code. */
export const BY_CODE: Readonly<Record<string, typeof ApiError>> = {
  malformed_request: InvalidRequestError,
  invalid_request: InvalidRequestError,
  command_not_found: InvalidRequestError,
  no_such_user: InvalidRequestError,
  method_not_allowed: InvalidRequestError,
  payload_too_large: InvalidRequestError,
  uri_too_long: InvalidRequestError,
  unsupported_media_type: InvalidRequestError,
  range_not_satisfiable: InvalidRequestError,
  headers_too_large: InvalidRequestError,
  unauthenticated: AuthenticationError,
  forbidden: ForbiddenError,
  not_found: NotFoundError,
  conflict: ConflictError,
  stale: ConflictError,
  not_capturable: ConflictError,
  unfit_host: ConflictError,
  unchanged: ConflictError,
  idempotency_key_reused: ConflictError,
  already_exists: AlreadyExistsError,
  in_use: InUseError,
  process_gone: ProcessGoneError,
  path_not_found: PathNotFoundError,
  path_exists: PathExistsError,
  not_a_directory: PathNotADirectoryError,
  is_a_directory: PathIsADirectoryError,
  directory_not_empty: FileError,
  permission_denied: PathPermissionError,
  disk_full: DiskFullError,
  quota_exceeded: LimitError,
  limit_reached: LimitError,
  too_many_processes: LimitError,
  rate_limited: RateLimitError,
  no_capacity: UnavailableError,
  runner_unreachable: UnavailableError,
  unavailable: UnavailableError,
  unsupported: UnsupportedError,
  guest_unreachable: GuestError,
  port_closed: GuestError,
  request_timeout: TimedOutError,
  timed_out: TimedOutError,
  internal: ServerError,
};

/** @internal The error for the `error` object of an answer, whatever is in it. */
export function fromDetail(detail: unknown, status = 0, retryAfter?: number): ApiError {
  const told = (typeof detail === "object" && detail !== null ? detail : {}) as Record<string, unknown>;
  const text = (value: unknown) => (value === undefined || value === null ? undefined : String(value));
  const code = text(told["code"]) ?? (status >= 500 ? "internal" : "unknown");
  const kind = (Object.hasOwn(BY_CODE, code) ? BY_CODE[code] : undefined) ?? (status >= 500 ? ServerError : ApiError);
  return new kind({
    code,
    message: text(told["message"]) ?? `the server answered with status ${status}`,
    hint: text(told["hint"]),
    requestId: text(told["request_id"]),
    status,
    retryAfter,
  });
}
