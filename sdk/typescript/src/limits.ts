/**
 * Limits and defaults of the server that this client relies on, by the names of the crate `cove-limits`. A test
 * of the server compares every line with that crate.
 */

/** Items of a list page. */
export const PAGE_MAX = 1000;
/** Bytes of standard input that travel with a command. */
export const EXEC_STDIN_MAX = 16777216;
/** Milliseconds between SIGTERM and SIGKILL when a stop does not say. */
export const STOP_GRACE_DEFAULT_MS = 10000;
/** Seconds that a lease holds without being renewed. */
export const LEASE_DEFAULT_S = 300;
/** Leases that one request renews. */
export const LEASES_RENEWED_MAX = 256;
