//! The limits of one request: the table of the page, error pages, the schema and the Python SDK against
//! the constants.

use std::fs;
use std::path::PathBuf;

use cove_limits as limits;
use serde_json::Value;

fn repository(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// 4096 as `4,096`.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

/// In the largest unit that leaves a whole number.
fn bytes(number: usize) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let whole = units.iter().find(|(_, size)| number.is_multiple_of(*size));
    match whole {
        Some((unit, size)) => format!("{} {unit}", count((number / size) as u64)),
        None => format!("{} bytes", count(number as u64)),
    }
}

fn seconds(number: u64) -> String {
    match number {
        day if day.is_multiple_of(86_400) => format!("{} days", count(day / 86_400)),
        hour if hour.is_multiple_of(3600) => format!("{} h", hour / 3600),
        minute if minute.is_multiple_of(60) => format!("{} min", minute / 60),
        other => format!("{} s", count(other)),
    }
}

fn between(least: u64, most: u64) -> String {
    format!("{} to {}", count(least), count(most))
}

/// The table as the page has to show it.
fn table() -> String {
    use limits::*;
    let each = |number: usize| count(number as u64);
    let rows = [
        ("JSON body", bytes(JSON_BODY_MAX), "413"),
        (
            "Body of an exec or a run of code",
            bytes(EXEC_BODY_MAX),
            "413",
        ),
        ("Body of `POST …/stdin`", bytes(STDIN_BODY_MAX), "413"),
        ("Upload", bytes(UPLOAD_BODY_MAX), "413"),
        (
            "Headers",
            format!("{HEADERS_MAX}, {} together", bytes(HEADERS_MAX_BYTES)),
            "431",
        ),
        ("Path and query", bytes(URI_MAX), "414"),
        (
            "WebSocket message",
            bytes(WS_MESSAGE_MAX),
            "the connection is closed",
        ),
        ("`Idempotency-Key`", bytes(IDEMPOTENCY_KEY_MAX), "422"),
        (
            "List page",
            format!(
                "{} items, default {PAGE_DEFAULT}; ends early after {}",
                count(PAGE_MAX.into()),
                bytes(PAGE_BYTES_MAX)
            ),
            "422",
        ),
        (
            "Directory listing",
            format!(
                "{} entries, {LIST_DEPTH_MAX} levels",
                count(LIST_ENTRIES_MAX.into())
            ),
            "422",
        ),
        (
            "Name of a sandbox, snapshot, image or organisation",
            bytes(NAME_MAX),
            "422",
        ),
        ("Name of a key", bytes(TITLE_MAX), "422"),
        ("Reference of an image", bytes(IMAGE_REF_MAX), "422"),
        ("Path inside a sandbox", bytes(PATH_MAX), "422"),
        ("User inside a sandbox", bytes(USER_MAX), "422"),
        (
            "Labels",
            format!("{LABELS_MAX}, {} each", bytes(LABEL_BYTES_MAX)),
            "422",
        ),
        (
            "Environment",
            format!(
                "{ENV_ENTRIES_MAX} entries, {} together",
                bytes(ENV_BYTES_MAX)
            ),
            "422",
        ),
        (
            "Command line",
            format!(
                "{} arguments, {} together",
                each(ARGV_MAX),
                bytes(COMMAND_BYTES_MAX)
            ),
            "422",
        ),
        (
            "One argument, or a shell `command`",
            bytes(ARGUMENT_BYTES_MAX),
            "422",
        ),
        ("`stdin` of an exec", bytes(EXEC_STDIN_MAX), "422"),
        (
            "Output in an answer of one piece",
            format!("{} of each stream", bytes(EXEC_OUTPUT_MAX)),
            "cut, and `truncated`",
        ),
        (
            "Output that is kept of a process",
            format!(
                "{} of each stream, default {}",
                bytes(RING_MAX as usize),
                bytes(RING_DEFAULT as usize)
            ),
            "the oldest is dropped",
        ),
        (
            "Times that are kept of a stream's output",
            each(OUTPUT_TIMES_MAX),
            "they are further apart",
        ),
        (
            "Timeout of a command",
            seconds(TIMEOUT_MAX_MS / 1000),
            "422",
        ),
        ("Tag of a process", bytes(TAG_MAX), "422"),
        (
            "Processes of a sandbox",
            format!(
                "{} running, {} finished",
                each(PROCESSES_RUNNING_MAX),
                each(PROCESSES_FINISHED_MAX)
            ),
            "429; the oldest finished one is forgotten",
        ),
        ("Services of a sandbox", each(SERVICES_MAX), "429"),
        (
            "Command and environment of a service",
            format!("{} together", bytes(SERVICE_BYTES_MAX)),
            "422",
        ),
        (
            "Pause before a service is started again",
            format!(
                "0.{} s, doubled up to {} s; after a run of {} s it begins again",
                SERVICE_PAUSE_MIN_MS / 100,
                SERVICE_PAUSE_MAX_MS / 1000,
                SERVICE_STEADY_MS / 1000
            ),
            "",
        ),
        (
            "Columns and rows of a terminal",
            count(TERMINAL_SIDE_MAX.into()),
            "422",
        ),
        ("Code of a run", bytes(CODE_BYTES_MAX), "422"),
        (
            "Results of a run",
            format!(
                "{}, {} each, {} together in one piece",
                each(CODE_RESULTS_MAX),
                bytes(CODE_RESULT_BYTES_MAX),
                bytes(CODE_RESULTS_BYTES_MAX)
            ),
            "cut, and `truncated`",
        ),
        (
            "Code contexts of a sandbox",
            count(CODE_CONTEXTS_MAX as u64),
            "429",
        ),
        (
            "CPUs",
            format!("{CPU_MIN} to {}", count(CPU_MAX as u64)),
            "422",
        ),
        (
            "Memory in MiB",
            between(MEMORY_MIN_MB, MEMORY_MAX_MB),
            "422",
        ),
        ("Disk in MiB", between(DISK_MIN_MB, DISK_MAX_MB), "422"),
        (
            "Processes and threads (`pids`)",
            between(PIDS_MIN, PIDS_MAX),
            "422",
        ),
        (
            "Open files of a process",
            between(OPEN_FILES_MIN, OPEN_FILES_MAX),
            "422",
        ),
        (
            "Reading and writing in MiB a second",
            between(IO_MIN_MB_S, IO_MAX_MB_S),
            "422",
        ),
        ("Idle times and lifetimes", seconds(SECONDS_MAX), "422"),
        (
            "Grace of a stop",
            format!(
                "{}, default {}",
                seconds(STOP_GRACE_MAX_MS / 1000),
                seconds(STOP_GRACE_DEFAULT_MS / 1000)
            ),
            "422",
        ),
        (
            "Renewal of a lease",
            format!("{} at once", count(LEASES_RENEWED_MAX as u64)),
            "422",
        ),
        ("Name of a holder of leases", bytes(LEASE_HOLDER_MAX), "422"),
        (
            "Allow list of a network policy",
            format!(
                "{} entries, {} each",
                each(ALLOW_ENTRIES_MAX),
                bytes(ALLOW_ENTRY_BYTES_MAX)
            ),
            "422",
        ),
        (
            "Bandwidth in Mbit a second",
            count(BANDWIDTH_MAX_MBIT.into()),
            "422",
        ),
        (
            "Automatic snapshots",
            format!(
                "{}, default {AUTO_SNAPSHOTS_DEFAULT}, every {} at most",
                count(AUTO_SNAPSHOTS_MAX.into()),
                seconds(AUTO_SNAPSHOT_EVERY_MIN_S)
            ),
            "422",
        ),
        ("Copies of one fork", count(FORKS_MAX.into()), "422"),
        ("Snapshots of an organisation", count(SNAPSHOTS_MAX), "429"),
        ("API keys of an organisation", count(KEYS_MAX), "429"),
        (
            "Ended API keys of an organisation that are remembered",
            count(KEYS_ENDED_KEPT),
            "the oldest is forgotten",
        ),
        (
            "Versions of an organisation's templates",
            count(TEMPLATES_MAX),
            "429",
        ),
        ("Tags of a template", count(TEMPLATE_TAGS_MAX as u64), "429"),
        ("Tag of a template", bytes(TEMPLATE_TAG_MAX), "422"),
        (
            "Dockerfile, and list of ignored files",
            format!("{} each", bytes(DOCKERFILE_MAX)),
            "422",
        ),
        (
            "Context of a build",
            format!(
                "{}, {} files",
                bytes(BUILD_CONTEXT_MAX),
                count(BUILD_CONTEXT_ENTRIES_MAX as u64)
            ),
            "413; the build fails",
        ),
        (
            "Files for later builds, of an organisation",
            bytes(BUILD_UPLOADS_MAX),
            "429, after those used longest ago are deleted",
        ),
        (
            "Files for later builds that nobody uses",
            seconds(BUILD_UPLOAD_KEPT_S),
            "they are deleted",
        ),
        (
            "Links to send such files",
            format!(
                "{BUILD_LINKS_MAX} of an organisation, {}",
                seconds(BUILD_LINK_S)
            ),
            "429; 401",
        ),
        (
            "Instructions of a build",
            count(BUILD_STEPS_MAX as u64),
            "422",
        ),
        ("Arguments of a build", count(BUILD_ARGS_MAX as u64), "422"),
        (
            "Time of a build",
            seconds(BUILD_TIME_MAX_S),
            "the build fails",
        ),
        (
            "Log of a build that is kept",
            bytes(BUILD_LOG_MAX),
            "the oldest is dropped",
        ),
        (
            "Builds of an organisation that are remembered",
            count(BUILDS_KEPT.into()),
            "the oldest is forgotten",
        ),
        (
            "Steps of an organisation's builds that are kept",
            count(BUILD_CACHE_STEPS_MAX.into()),
            "the one used longest ago is deleted",
        ),
        (
            "Size of a volume in MiB",
            format!(
                "{}, default {}",
                between(VOLUME_MIN_MB, VOLUME_MAX_MB),
                count(VOLUME_DEFAULT_MB)
            ),
            "422",
        ),
        ("Volumes of an organisation", count(VOLUMES_MAX), "429"),
        (
            "Volumes of a sandbox",
            format!(
                "{}, mount points of {} each",
                count(VOLUME_MOUNTS_MAX as u64),
                bytes(VOLUME_PATH_MAX)
            ),
            "422",
        ),
        (
            "Link to a preview",
            format!(
                "{}, default {}",
                seconds(LINK_MAX_S),
                seconds(LINK_DEFAULT_S)
            ),
            "422",
        ),
        (
            "Identity token",
            format!(
                "{}, default {}",
                seconds(IDENTITY_TOKEN_MAX_S),
                seconds(IDENTITY_TOKEN_DEFAULT_S)
            ),
            "422",
        ),
        ("Audience of an identity token", bytes(AUDIENCE_MAX), "422"),
        (
            "SSH token",
            format!(
                "{}, default {}",
                seconds(SSH_TOKEN_MAX_S),
                seconds(SSH_TOKEN_DEFAULT_S)
            ),
            "422",
        ),
        ("SSH public key", bytes(SSH_PUBLIC_KEY_MAX), "422"),
        ("Secrets of an organisation", SECRETS_MAX.to_string(), "429"),
        (
            "Value of a secret",
            format!("{SECRET_VALUE_MIN} bytes to {}", bytes(SECRET_VALUE_MAX)),
            "422",
        ),
        ("Hosts of a secret", SECRET_HOSTS_MAX.to_string(), "422"),
        ("Limits of a secret", SECRET_LIMITS_MAX.to_string(), "422"),
        ("One limit of a secret", count(SECRET_LIMIT_MAX), "422"),
        (
            "Approvals of a sandbox that wait for a decision",
            APPROVALS_PENDING_MAX.to_string(),
            "429 to the request inside",
        ),
        (
            "Requests of a sandbox that are held for approvals",
            APPROVALS_WAITING_MAX.to_string(),
            "403 to the request inside",
        ),
        (
            "Approvals of an organisation on a host",
            APPROVALS_MAX.to_string(),
            "429 to the request inside",
        ),
        (
            "Time that an approval and a decision about one request last",
            seconds(APPROVAL_KEPT_S),
            "asked again",
        ),
        (
            "Approval for a time",
            seconds(u64::from(APPROVAL_FOR_MAX_S)),
            "422",
        ),
        (
            "Body of a request that is approved once",
            bytes(APPROVAL_BODY_MAX),
            "approved for a time only",
        ),
        (
            "Path of a request that asks",
            bytes(APPROVAL_PATH_MAX),
            "400 to the request inside",
        ),
        ("Nodes of a fleet", count(NODES_MAX as u64), "429"),
        ("Name of a node", bytes(NODE_NAME_MAX), "422"),
        (
            "Zone, taint, key or value of a node's label",
            bytes(PLACEMENT_WORD_MAX),
            "422",
        ),
        ("Labels of a node", HOST_LABELS_MAX.to_string(), "429"),
        ("Taints of a node", HOST_TAINTS_MAX.to_string(), "429"),
        (
            "Labels that a sandbox asks for",
            HOST_LABELS_MAX.to_string(),
            "422",
        ),
        (
            "Taints that a sandbox tolerates",
            SANDBOX_TOLERATIONS_MAX.to_string(),
            "422",
        ),
        (
            "Taints that an organisation may tolerate",
            ORG_TOLERATIONS_MAX.to_string(),
            "429",
        ),
        (
            "Join tokens that were not used",
            count(JOIN_TOKENS_MAX as u64),
            "429",
        ),
        (
            "Join token",
            format!(
                "{}, default {}",
                seconds(JOIN_TOKEN_MAX_S),
                seconds(JOIN_TOKEN_S)
            ),
            "422",
        ),
    ];
    let mut table = String::from("| Limit | Value | Beyond |\n|---|---|---|\n");
    for (what, value, beyond) in rows {
        table.push_str(&format!("| {what} | {value} | {beyond} |\n"));
    }
    table
}

#[test]
fn the_page_has_the_table_of_the_constants() {
    let wanted = table();
    let page = read("docs/limits.md");
    assert!(
        page.contains(&wanted),
        "docs/limits.md does not have this table; put it there:\n{wanted}"
    );
}

#[test]
fn pages_that_name_a_limit_name_the_constant() {
    use limits::*;
    let grace = format!("`--stop-grace-ms` | `{STOP_GRACE_DEFAULT_MS}`");
    let body = format!(
        "{} for JSON, {} for commands with their input, {} for uploads",
        bytes(JSON_BODY_MAX),
        bytes(EXEC_BODY_MAX),
        bytes(UPLOAD_BODY_MAX)
    );
    let headers = format!(
        "more than {HEADERS_MAX} headers, or more than {}",
        bytes(HEADERS_MAX_BYTES)
    );
    let kept = format!(
        "{} of each stream unless `ring_bytes`",
        bytes(RING_DEFAULT as usize)
    );
    for (page, wanted) in [
        ("docs/configuration.md", grace),
        ("docs/errors/payload_too_large.md", body),
        ("docs/errors/headers_too_large.md", headers),
        (
            "docs/errors/uri_too_long.md",
            format!("more than {}", bytes(URI_MAX)),
        ),
        (
            "docs/api.md",
            format!("with at most {} of each stream", bytes(EXEC_OUTPUT_MAX)),
        ),
        (
            "docs/api.md",
            format!("`stdin` may have {}", bytes(EXEC_STDIN_MAX)),
        ),
        (
            "docs/api.md",
            format!("slower side, up to {}", bytes(UPLOAD_BODY_MAX)),
        ),
        ("docs/api.md", kept),
    ] {
        assert!(
            read(page).contains(&wanted),
            "{page} does not say '{wanted}'"
        );
    }
}

/// A number that a caller meets must not be written a second time.
#[test]
fn no_limit_of_the_schema_is_a_literal() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(repository("crates/api/src")).expect("the sources are there") {
        let path = entry.expect("a file").path();
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (line, text) in text.lines().enumerate() {
            let literal = |name: &str| {
                let after = text.split(name).nth(1).map(str::trim_start);
                after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
            };
            let bounded = text.contains("length(") || text.contains("range(");
            if bounded && literal("max =") {
                wrong.push(format!("{}:{}: {text}", path.display(), line + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_schema_has_the_constants() {
    let document = cove_api::openapi::document("0");
    let schema = |name: &str, field: &str| -> Value {
        document["components"]["schemas"][name]["properties"][field].clone()
    };
    for (name, field, key, wanted) in [
        (
            "Exec",
            "command",
            "maxLength",
            limits::ARGUMENT_BYTES_MAX as u64,
        ),
        ("Exec", "argv", "maxItems", limits::ARGV_MAX as u64),
        ("Exec", "stdin", "maxLength", limits::EXEC_STDIN_MAX as u64),
        ("Exec", "timeout_ms", "maximum", limits::TIMEOUT_MAX_MS),
        ("Exec", "tag", "maxLength", limits::TAG_MAX as u64),
        (
            "Exec",
            "env",
            "maxProperties",
            limits::ENV_ENTRIES_MAX as u64,
        ),
        (
            "StartService",
            "name",
            "maxLength",
            limits::SERVICE_NAME_MAX as u64,
        ),
        ("StartProcess", "ring_bytes", "minimum", limits::RING_MIN),
        ("StartProcess", "ring_bytes", "maximum", limits::RING_MAX),
        (
            "Network",
            "allow",
            "maxItems",
            limits::ALLOW_ENTRIES_MAX as u64,
        ),
        (
            "StopSandbox",
            "grace_ms",
            "maximum",
            limits::STOP_GRACE_MAX_MS,
        ),
        (
            "CreateSandbox",
            "labels",
            "maxProperties",
            limits::LABELS_MAX as u64,
        ),
        (
            "RunCode",
            "code",
            "maxLength",
            limits::CODE_BYTES_MAX as u64,
        ),
    ] {
        let found = schema(name, field);
        assert_eq!(found[key], wanted, "{name}.{field}: {found}");
    }
    let entry = schema("Network", "allow");
    assert_eq!(
        entry["items"]["maxLength"],
        limits::ALLOW_ENTRY_BYTES_MAX as u64
    );
}

#[test]
fn the_sdks_have_the_constants() {
    macro_rules! named {
        ($($name:ident),* $(,)?) => { [$((stringify!($name), limits::$name as u64)),*] };
    }
    let known = named![
        PAGE_MAX,
        EXEC_STDIN_MAX,
        STOP_GRACE_DEFAULT_MS,
        LEASE_DEFAULT_S,
        LEASES_RENEWED_MAX,
    ];
    for (path, before, after) in [
        ("sdk/python/src/cove/_limits.py", "", ""),
        ("sdk/typescript/src/limits.ts", "export const ", ";"),
    ] {
        let mut lines = 0;
        for line in read(path).lines() {
            let Some((name, value)) = line.split_once(" = ") else {
                continue;
            };
            let name = name.strip_prefix(before).expect("a constant");
            let value = value.strip_suffix(after).expect("a whole line");
            let found = known.iter().find(|(known, _)| *known == name);
            let (_, wanted) = found.unwrap_or_else(|| panic!("{path}: {name} is not compared"));
            assert_eq!(value.parse(), Ok(*wanted), "{path}: {name}");
            lines += 1;
        }
        assert_eq!(lines, known.len(), "{path}");
    }
}
