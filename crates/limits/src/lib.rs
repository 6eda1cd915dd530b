//! Every limit and default that a caller of Cove can meet, written once.
//!
//! The checks, the OpenAPI document, the table in `docs/limits.md` and the Python SDK read these
//! constants or are compared with them by a test. A crate of its own without dependencies, so that the
//! guest (PID 1 of a sandbox) reads the same ones. Limits that no caller meets (queues, buffers, waits)
//! are beside the code that uses them.
#![forbid(unsafe_code)]

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;
const DAY_S: u64 = 86_400;

// Requests.

/// A JSON body, unless its route has a limit of its own.
pub const JSON_BODY_MAX: usize = MIB;
/// An exec or process body. It may carry the command's whole standard input.
pub const EXEC_BODY_MAX: usize = 16 * MIB;
/// Bytes of one `POST …/stdin` call.
pub const STDIN_BODY_MAX: usize = 16 * MIB;
/// A file or archive upload. Streamed, so only the sandbox's disk limits it further.
pub const UPLOAD_BODY_MAX: usize = 64 * GIB;
/// All headers of a request together.
pub const HEADERS_MAX_BYTES: usize = 32 * KIB;
/// Headers of a request.
pub const HEADERS_MAX: usize = 64;
/// Path and query of a request.
pub const URI_MAX: usize = 8 * KIB;
/// An `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_MAX: usize = 128;
/// One WebSocket message from a client.
pub const WS_MESSAGE_MAX: usize = MIB;
/// Items of a list page.
pub const PAGE_DEFAULT: u32 = 100;
pub const PAGE_MAX: u32 = 1000;
/// A list page ends early once its rows have so many bytes; a sandbox's settings alone may have more than 100 KiB.
pub const PAGE_BYTES_MAX: usize = 4 * MIB;
pub const CURSOR_MAX: usize = 512;
/// An id or a name in a path or a body.
pub const ID_OR_NAME_MAX: usize = 64;

// Object storage.

/// MiB per second of all uploads together, unless the operator sets another number.
pub const OBJECTS_UPLOAD_MB_DEFAULT: u64 = 64;
/// MiB of each organisation in object storage, unless the operator sets another number.
pub const OBJECTS_QUOTA_MB_DEFAULT: u64 = 1024 * 1024;

// Names and texts.

/// A sandbox's, snapshot's or image's name, and the name of an organisation.
pub const NAME_MAX: usize = 63;
/// The name of an API key or an SSH key.
pub const TITLE_MAX: usize = 128;
/// A reference to a sandbox, snapshot or image that may be an id or a name.
pub const REFERENCE_MAX: usize = 128;
/// The reference of an image in a registry.
pub const IMAGE_REF_MAX: usize = 512;
/// A user's name and a password for a registry.
pub const REGISTRY_USER_MAX: usize = 256;
pub const REGISTRY_PASSWORD_MAX: usize = 4096;
/// A user inside a sandbox, with its group if one is given.
pub const USER_MAX: usize = 64;
/// An owner as a file call sets it, `user:group`.
pub const OWNER_MAX: usize = 2 * USER_MAX + 1;
/// A path inside a sandbox.
pub const PATH_MAX: usize = 4096;
/// The name of an isolation tier.
pub const ISOLATION_MAX: usize = 64;
/// A file's mode in octal.
pub const MODE_MAX: usize = 5;
/// The name or number of a signal.
pub const SIGNAL_MAX: usize = 16;
pub const LABELS_MAX: usize = 64;
pub const LABEL_BYTES_MAX: usize = 256;
/// The query that filters a list by labels.
pub const LABEL_QUERY_MAX: usize = 4096;
pub const ENV_ENTRIES_MAX: usize = 256;
pub const ENV_BYTES_MAX: usize = 128 * KIB;

// Commands.

/// Arguments of a command.
pub const ARGV_MAX: usize = 4096;
/// All bytes of a command line together, with the NUL after each argument.
pub const COMMAND_BYTES_MAX: usize = 256 * KIB;
/// One argument, or the text of a shell command, which is one argument of the shell. The kernel takes
/// 128 KiB with the NUL at its end.
pub const ARGUMENT_BYTES_MAX: usize = 128 * KIB - 1;
/// The whole standard input of an exec.
pub const EXEC_STDIN_MAX: usize = EXEC_BODY_MAX;
/// Output of each stream in an answer of one piece; live answers have no such limit.
pub const EXEC_OUTPUT_MAX: usize = 8 * MIB;
/// The longest timeout of a command: a week.
pub const TIMEOUT_MAX_MS: u64 = 7 * DAY_S * 1000;
/// A process's tag.
pub const TAG_MAX: usize = 256;
/// Bytes of output that the sandbox keeps of each stream of a process.
pub const RING_MIN: u64 = 4 * KIB as u64;
pub const RING_DEFAULT: u64 = 256 * KIB as u64;
pub const RING_MAX: u64 = 8 * MIB as u64;
/// Marks of time that are kept of a stream, and that come with one piece of it.
pub const OUTPUT_TIMES_MAX: usize = 4096;
/// Processes that run at once in a sandbox, and finished ones whose output can still be read.
pub const PROCESSES_RUNNING_MAX: usize = 1024;
pub const PROCESSES_FINISHED_MAX: usize = 1024;
/// Columns and rows of a terminal.
pub const TERMINAL_SIDE_MAX: u32 = 4096;
/// Services of a sandbox, bytes of one (its command and what its caller gave it), and of its name.
pub const SERVICES_MAX: usize = 32;
pub const SERVICE_BYTES_MAX: usize = 64 * KIB;
pub const SERVICE_NAME_MAX: usize = NAME_MAX;
/// The pause before a service is started again: it doubles from the first to the second. A run that lasted for so long
/// begins with the first again.
pub const SERVICE_PAUSE_MIN_MS: u64 = 100;
pub const SERVICE_PAUSE_MAX_MS: u64 = 60_000;
pub const SERVICE_STEADY_MS: u64 = 10_000;

// Code.

pub const CODE_BYTES_MAX: usize = 4 * MIB;
pub const CODE_CONTEXTS_MAX: usize = 64;
/// Results of one run, bytes of each, and bytes of all in an answer of one piece.
pub const CODE_RESULTS_MAX: usize = 1000;
pub const CODE_RESULT_BYTES_MAX: usize = 8 * MIB;
pub const CODE_RESULTS_BYTES_MAX: usize = 32 * MIB;

// Files.

/// Depth and entries of a directory listing.
pub const LIST_DEPTH_MAX: u32 = 32;
pub const LIST_ENTRIES_MAX: u32 = 10_000;

// Sandboxes.

pub const CPU_MIN: f64 = 0.05;
pub const CPU_MAX: f64 = 1024.0;
pub const MEMORY_MIN_MB: u64 = 16;
pub const MEMORY_MAX_MB: u64 = 16 * 1024 * 1024;
pub const DISK_MIN_MB: u64 = 16;
pub const DISK_MAX_MB: u64 = 64 * 1024 * 1024;
pub const PIDS_MIN: u64 = 8;
pub const PIDS_MAX: u64 = 4_000_000;
pub const OPEN_FILES_MIN: u64 = 64;
pub const OPEN_FILES_MAX: u64 = 1_048_576;
pub const IO_MIN_MB_S: u64 = 1;
pub const IO_MAX_MB_S: u64 = 1_000_000;
/// Any time in seconds that a caller gives: ten years.
pub const SECONDS_MAX: u64 = 10 * 366 * DAY_S;
/// Between SIGTERM and SIGKILL when a sandbox is stopped.
pub const STOP_GRACE_DEFAULT_MS: u64 = 10_000;
pub const STOP_GRACE_MAX_MS: u64 = 10 * 60 * 1000;

// Leases.

/// How long a lease holds without being renewed, and how long a sandbox whose lease ran out is kept.
pub const LEASE_DEFAULT_S: u64 = 300;
pub const LEASE_DELETE_AFTER_DEFAULT_S: u64 = DAY_S;
/// The name that a holder of leases gives itself.
pub const LEASE_HOLDER_MAX: usize = 64;
/// Leases that one request renews.
pub const LEASES_RENEWED_MAX: usize = 256;

// Network.

/// Entries of a policy's allow list.
pub const ALLOW_ENTRIES_MAX: usize = 1024;
/// One entry: the longest name there can be, with `*.` and a range of ports.
pub const ALLOW_ENTRY_BYTES_MAX: usize = 300;
pub const BANDWIDTH_MAX_MBIT: u32 = 1_000_000;
/// A domain name.
pub const DOMAIN_NAME_MAX: usize = 253;
/// Names that a sandbox without a network keeps of those it refused, until they are logged.
pub const REFUSED_NAMES_MAX: usize = 64;

// Volumes.

/// Size of a volume in MiB.
pub const VOLUME_MIN_MB: u64 = 16;
pub const VOLUME_MAX_MB: u64 = 64 * 1024 * 1024;
pub const VOLUME_DEFAULT_MB: u64 = 10 * 1024;
/// Volumes of one organisation.
pub const VOLUMES_MAX: u64 = 1000;
/// Volumes that one sandbox mounts, and the length of a mount point.
pub const VOLUME_MOUNTS_MAX: usize = 16;
pub const VOLUME_PATH_MAX: usize = 512;

// Templates.

/// Versions of all templates of one organisation.
pub const TEMPLATES_MAX: u64 = 1000;
/// Tags of one template, and the length of a tag.
pub const TEMPLATE_TAGS_MAX: usize = 64;
pub const TEMPLATE_TAG_MAX: usize = 63;
/// Names of an organisation that have no versions any more and whose last number is still known.
pub const TEMPLATE_NAMES_REMEMBERED: u64 = 1000;

// Snapshots.

/// Snapshots of one organisation, automatic ones and states before rollbacks included.
pub const SNAPSHOTS_MAX: u64 = 20_000;
/// Automatic snapshots that are kept of a sandbox, and the shortest time between two.
pub const AUTO_SNAPSHOTS_DEFAULT: u32 = 10;
pub const AUTO_SNAPSHOTS_MAX: u32 = 1000;
pub const AUTO_SNAPSHOT_EVERY_MIN_S: u64 = 5;
/// Copies that one fork makes.
pub const FORKS_MAX: u32 = 100;

// Access.

/// How long a link to a preview and an SSH token are valid.
pub const LINK_DEFAULT_S: u64 = 3600;
pub const LINK_MAX_S: u64 = 30 * DAY_S;
pub const SSH_TOKEN_DEFAULT_S: u64 = 3600;
pub const SSH_TOKEN_MAX_S: u64 = 30 * DAY_S;
/// How long an identity token of a sandbox is valid. Whoever checks one does not ask us, so that a copy of a
/// sandbox can use what it remembers for as long as this.
pub const IDENTITY_TOKEN_DEFAULT_S: u64 = 300;
pub const IDENTITY_TOKEN_MAX_S: u64 = 900;
/// Whom an identity token is for.
pub const AUDIENCE_MAX: usize = 512;
/// What a sandbox works on, and for whom, in its identity.
pub const IDENTITY_TEXT_MAX: usize = 256;
/// An SSH public key in the form of an `authorized_keys` line.
pub const SSH_PUBLIC_KEY_MAX: usize = 4096;
/// Secrets of one organisation, bytes of a value, and hosts that one is bound to. Answers are scrubbed of values, so
/// that one must not be so short that other text has it too.
pub const SECRETS_MAX: usize = 256;
pub const SECRET_NAME_MAX: usize = 64;
pub const SECRET_VALUE_MIN: usize = 8;
pub const SECRET_VALUE_MAX: usize = 8 * KIB;
pub const SECRET_HOSTS_MAX: usize = 16;
/// The name of a header, a query parameter or a variable that holds a secret.
pub const SECRET_PLACE_MAX: usize = 64;
/// How a secret is used, with the name of its place.
pub const SECRET_USE_MAX: usize = 80;
/// Limits of one secret, one for each unit and scope, and the largest of them, which every JSON number holds.
pub const SECRET_LIMITS_MAX: usize = 9;
pub const SECRET_LIMIT_MAX: u64 = 1_000_000_000_000_000;
/// Secrets that one sandbox holds.
pub const SECRETS_PER_SANDBOX_MAX: usize = 32;
/// How long a request with a secret that asks is held until it is refused, unless the operator says otherwise.
pub const APPROVAL_HOLD_DEFAULT_S: u64 = 60;
pub const APPROVAL_HOLD_MAX_S: u64 = 600;
/// How long an approval waits for a decision, and a decision about one request for that request.
pub const APPROVAL_KEPT_S: u64 = 3600;
/// How long a secret can be approved for at one host.
pub const APPROVAL_FOR_MAX_S: u32 = 7 * DAY_S as u32;
/// Approvals of one sandbox that wait for a decision, and requests that are held for them.
pub const APPROVALS_PENDING_MAX: usize = 8;
pub const APPROVALS_WAITING_MAX: u32 = 64;
/// Approvals of one organisation on one host, those that were decided included.
pub const APPROVALS_MAX: usize = 256;
/// A body that is held so that its request can be approved once.
pub const APPROVAL_BODY_MAX: usize = MIB;
/// What a person is shown of a request: it is never shortened.
pub const APPROVAL_PATH_MAX: usize = 4096;
pub const APPROVAL_METHOD_MAX: usize = 32;
/// API keys of one organisation that are good, and of those that ended how many are remembered.
pub const KEYS_MAX: u64 = 20_000;
pub const KEYS_ENDED_KEPT: u64 = 1_000;
/// Scopes of a key.
pub const SCOPES_MAX: usize = 4;
pub const QUOTA_CPU_MAX: f64 = 1e9;
pub const QUOTA_SANDBOXES_MAX: u64 = 1_000_000_000;
pub const QUOTA_MB_MAX: u64 = 1_000_000_000_000;

// Builds of templates.

/// The text of a Dockerfile, and of what its context leaves out.
pub const DOCKERFILE_MAX: usize = 256 * KIB;
/// A build's context, as a tar archive.
pub const BUILD_CONTEXT_MAX: usize = 512 * MIB;
/// Archives that one organisation sent for later builds, all together.
pub const BUILD_UPLOADS_MAX: usize = 2048 * MIB;
/// Such archives of all organisations.
pub const BUILD_UPLOADS_ALL_MAX: usize = 8192 * MIB;
/// Links of one organisation to send such archives by.
pub const BUILD_LINKS_MAX: usize = 256;
/// How long such a link is good.
pub const BUILD_LINK_S: u64 = 900;
/// How long an archive is kept after it was last used.
pub const BUILD_UPLOAD_KEPT_S: u64 = 3_600;
/// Files, directories and links of a context.
pub const BUILD_CONTEXT_ENTRIES_MAX: usize = 100_000;
/// Steps of a build that change files.
pub const BUILD_STEPS_MAX: usize = 200;
/// How long a build may take, its context and images that it fetches included.
pub const BUILD_TIME_MAX_S: u64 = 3_600;
/// Builds of one organisation under way at once.
pub const BUILDS_RUNNING_MAX: usize = 2;
/// Builds of all organisations under way at once.
pub const BUILDS_RUNNING_ALL_MAX: usize = 8;
/// Bytes of a build's log that are kept; the oldest go first.
pub const BUILD_LOG_MAX: usize = MIB;
/// Builds of one organisation that are remembered; the oldest that are over go first.
pub const BUILDS_KEPT: u32 = 100;
/// Steps of builds that are kept for later builds of one organisation; those used longest ago go first.
pub const BUILD_CACHE_STEPS_MAX: u32 = 500;
/// Build arguments of one build.
pub const BUILD_ARGS_MAX: usize = 100;
/// A text of a Dockerfile after its variables are replaced.
pub const BUILD_EXPANDED_MAX: usize = 128 * KIB;
/// What the variables of one stage come to, each time they are used.
pub const BUILD_EXPANDED_ALL_MAX: usize = 4 * MIB;
/// Sources of one `COPY` or `ADD`.
pub const BUILD_SOURCES_MAX: usize = 1_000;
/// Patterns of one `.dockerignore`, and of the `--exclude` flags of one `COPY`.
pub const BUILD_PATTERNS_MAX: usize = 1_000;
/// Components of one pattern.
pub const BUILD_PATTERN_PARTS_MAX: usize = 128;
/// Components of all those patterns.
pub const BUILD_PATTERNS_PARTS_MAX: usize = 4_096;
/// Components of a path in a context.
pub const BUILD_CONTEXT_DEPTH_MAX: usize = 256;

// Nodes of a fleet.

/// The name of a node.
pub const NODE_NAME_MAX: usize = 63;
/// Where control reaches a node: a host name or address, and a port.
pub const NODE_ADDRESS_MAX: usize = 262;
/// Nodes of a fleet, and join tokens that were not used yet.
pub const NODES_MAX: usize = 1000;
pub const JOIN_TOKENS_MAX: usize = 100;
/// A zone, a taint, the key or the value of a host's label.
pub const PLACEMENT_WORD_MAX: usize = 63;
/// Labels and taints of a host. A sandbox can ask for as many.
pub const HOST_LABELS_MAX: usize = 32;
pub const HOST_TAINTS_MAX: usize = 8;
pub const SANDBOX_TOLERATIONS_MAX: usize = HOST_TAINTS_MAX;
/// Taints that an organisation may tolerate.
pub const ORG_TOLERATIONS_MAX: usize = 32;
/// How long a join token is valid: by default, and at most.
pub const JOIN_TOKEN_S: u64 = 3600;
pub const JOIN_TOKEN_MAX_S: u64 = 7 * 24 * 3600;
