//! The tables, as numbered steps that are applied once and never changed afterwards.
//!
//! Both databases run the same text. Beside its version a database has the version of the oldest program that may
//! use it: tables that were only expanded are used by the program before as well, and others are refused to it.

/// Each step's statements. Add to the end only.
pub const MIGRATIONS: &[&[&str]] = &[
    FIRST,
    IMAGE_JOBS,
    SNAPSHOTS,
    PORT_SHARES,
    SSH_KEYS,
    IMAGE_HOLDS,
    STOPPED,
    AUDIT_CHAINS,
    EVENT_HEADS,
    STEADY,
    HOSTS,
    SECRETS,
    VOLUMES,
    TEMPLATES,
    LEASES,
    BOUND_KEYS,
    BUILDS,
    FLEET,
    OBJECTS,
    BUDGETS,
    REPLICAS,
    REMOVED_ORGANISATIONS,
    PLACEMENT,
];

/// Specs in rows may have a lease, which earlier programs refuse to read: they are told by the version.
const LEASES: &[&str] = &[];

/// Keys that are good for one sandbox only.
const BOUND_KEYS: &[&str] = &["ALTER TABLE api_keys ADD COLUMN sandbox TEXT"];

/// Fetches of images, so that whoever follows one learns its end also from another process.
const IMAGE_JOBS: &[&str] = &[
    "CREATE TABLE image_jobs (
        id TEXT NOT NULL, org TEXT NOT NULL, name TEXT NOT NULL, shared BIGINT NOT NULL,
        created_at BIGINT NOT NULL, outcome TEXT, PRIMARY KEY (id, org))",
    "CREATE INDEX image_jobs_by_age ON image_jobs (created_at)",
];

/// States of sandboxes that are kept, and what each sandbox grew from.
const SNAPSHOTS: &[&str] = &[
    "CREATE TABLE snapshots (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), name TEXT,
        sandbox TEXT, parent TEXT, kind TEXT NOT NULL, state TEXT NOT NULL,
        memory BIGINT NOT NULL, spec TEXT NOT NULL, rolled_back_to TEXT, facts TEXT NOT NULL,
        held_disk_mb BIGINT NOT NULL, created_at BIGINT NOT NULL, deleted_at BIGINT)",
    "CREATE UNIQUE INDEX snapshots_by_name ON snapshots (org, name) WHERE deleted_at IS NULL",
    "CREATE INDEX snapshots_by_age ON snapshots (org, created_at, id)",
    "CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox, created_at, id)",
    "CREATE INDEX snapshots_alive ON snapshots (created_at, id) WHERE deleted_at IS NULL",
    "CREATE INDEX snapshots_deleted ON snapshots (deleted_at) WHERE deleted_at IS NOT NULL",
    "ALTER TABLE sandboxes ADD COLUMN origin TEXT",
    "ALTER TABLE sandboxes ADD COLUMN head TEXT",
    "CREATE INDEX sandboxes_by_origin ON sandboxes (origin) WHERE origin IS NOT NULL",
];

/// Ports that may be visited without a key.
const PORT_SHARES: &[&str] = &["CREATE TABLE port_shares (
        sandbox TEXT NOT NULL, port BIGINT NOT NULL, org TEXT NOT NULL, epoch BIGINT NOT NULL,
        public BIGINT NOT NULL, public_until BIGINT, PRIMARY KEY (sandbox, port))"];

/// Public keys that may log in over SSH.
const SSH_KEYS: &[&str] = &[
    "CREATE TABLE ssh_keys (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), name TEXT NOT NULL,
        public_key TEXT NOT NULL, fingerprint TEXT NOT NULL, created_at BIGINT NOT NULL,
        expires_at BIGINT)",
    "CREATE UNIQUE INDEX ssh_keys_by_fingerprint ON ssh_keys (fingerprint, org)",
    "CREATE INDEX ssh_keys_by_org ON ssh_keys (org, created_at, id)",
];

/// What images of its own cost an organisation, once for each, whatever it calls them.
const IMAGE_HOLDS: &[&str] = &["CREATE TABLE image_holds (
        org TEXT NOT NULL, image TEXT NOT NULL, held_disk_mb BIGINT NOT NULL,
        PRIMARY KEY (org, image))"];

/// When sandboxes stopped.
const STOPPED: &[&str] = &["ALTER TABLE sandboxes ADD COLUMN stopped_at BIGINT"];

/// Audit records with a sequence and a chain of hashes for each organisation, and how far the journals
/// of hosts were moved. Records from before keep their order and have no hash.
const AUDIT_CHAINS: &[&str] = &[
    "ALTER TABLE audit RENAME TO audit_before",
    "CREATE TABLE audit (
        org TEXT NOT NULL, sequence BIGINT NOT NULL, at BIGINT NOT NULL, key_id TEXT,
        action TEXT NOT NULL, target TEXT, source TEXT, request_id TEXT,
        result TEXT NOT NULL, detail TEXT, hash TEXT NOT NULL, PRIMARY KEY (org, sequence))",
    "INSERT INTO audit SELECT org, ROW_NUMBER() OVER (PARTITION BY org ORDER BY sequence), at, key_id,
        action, target, source, request_id, result, detail, '' FROM audit_before",
    "DROP TABLE audit_before",
    "CREATE TABLE audit_heads (
        org TEXT PRIMARY KEY, sequence BIGINT NOT NULL, hash TEXT NOT NULL,
        anchor_sequence BIGINT NOT NULL, anchor_hash TEXT NOT NULL, unchained BIGINT NOT NULL)",
    "INSERT INTO audit_heads SELECT org, COUNT(*),
        '0000000000000000000000000000000000000000000000000000000000000000', 0,
        '0000000000000000000000000000000000000000000000000000000000000000', COUNT(*)
        FROM audit GROUP BY org",
    "CREATE TABLE audit_journals (
        host TEXT NOT NULL, journal TEXT NOT NULL, position BIGINT NOT NULL, earlier BIGINT NOT NULL,
        moved_at BIGINT NOT NULL, PRIMARY KEY (host, journal))",
    "CREATE INDEX audit_journals_by_age ON audit_journals (moved_at)",
    "DELETE FROM counters WHERE name = 'audit'",
];

/// Events with a sequence for each organisation. Those from before keep their numbers, and everybody
/// goes on after the last number that anybody had: what a listener has seen stays behind it.
const EVENT_HEADS: &[&str] = &[
    "ALTER TABLE events RENAME TO events_before",
    "CREATE TABLE events (
        org TEXT NOT NULL, sequence BIGINT NOT NULL, sandbox TEXT NOT NULL,
        at BIGINT NOT NULL, kind TEXT NOT NULL, PRIMARY KEY (org, sequence))",
    "INSERT INTO events SELECT org, sequence, sandbox, at, kind FROM events_before",
    "DROP TABLE events_before",
    "CREATE INDEX events_by_sandbox ON events (sandbox, sequence)",
    "CREATE INDEX events_by_age ON events (at)",
    "CREATE TABLE event_heads (org TEXT PRIMARY KEY, sequence BIGINT NOT NULL)",
    "INSERT INTO event_heads SELECT organisations.id, counters.value FROM organisations, counters
        WHERE counters.name = 'events' AND counters.value > 0",
    "DELETE FROM counters WHERE name = 'events'",
];

/// Time that passed is kept apart from dates: `*_steady` are points on the axis of `ops/steady.rs`, which began
/// as the wall clock's. `usage_marks.at` and `idempotency.created_at` are such points from here on.
const STEADY: &[&str] = &[
    "ALTER TABLE sandboxes ADD COLUMN created_steady BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE sandboxes ADD COLUMN active_steady BIGINT NOT NULL DEFAULT 0",
    "UPDATE sandboxes SET created_steady = created_at, active_steady = last_active_at",
    "ALTER TABLE snapshots ADD COLUMN created_steady BIGINT NOT NULL DEFAULT 0",
    "UPDATE snapshots SET created_steady = created_at",
    "ALTER TABLE usage_hours ADD COLUMN estimated_ms BIGINT NOT NULL DEFAULT 0",
];

/// Which host has what. Rows from before have an empty host until [`crate::Store::register_hosts`] gives them
/// to the only host there was. Events of each host are read at a pace of its own; the one position from
/// before is `sequence life` in a setting.
const HOSTS: &[&str] = &[
    "CREATE TABLE hosts (id TEXT PRIMARY KEY, added_at BIGINT NOT NULL)",
    "ALTER TABLE sandboxes ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    "DROP INDEX sandboxes_alive",
    "CREATE INDEX sandboxes_by_host ON sandboxes (host, created_at, id) WHERE deleted_at IS NULL",
    "ALTER TABLE snapshots ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    "DROP INDEX snapshots_alive",
    "CREATE INDEX snapshots_by_host ON snapshots (host, created_at, id) WHERE deleted_at IS NULL",
    "ALTER TABLE image_jobs ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    "CREATE TABLE image_hosts (
        image TEXT NOT NULL, host TEXT NOT NULL, PRIMARY KEY (image, host))",
    "CREATE INDEX image_hosts_by_host ON image_hosts (host)",
    "INSERT INTO image_hosts SELECT image, '' FROM image_grants UNION SELECT image, '' FROM image_holds",
    "CREATE TABLE event_positions (
        host TEXT PRIMARY KEY, sequence BIGINT NOT NULL, life TEXT NOT NULL)",
    "INSERT INTO event_positions SELECT '',
        CAST(SUBSTR(value, 1, LENGTH(value) - LENGTH(LTRIM(value, '0123456789'))) AS BIGINT),
        LTRIM(LTRIM(value, '0123456789'), ' ')
        FROM settings WHERE name = 'host_event_position'",
    "DELETE FROM settings WHERE name = 'host_event_position'",
];

/// Secrets, sealed; the keys they are sealed to, wrapped by a key that is not in the database; who used them.
const SECRETS: &[&str] = &[
    "CREATE TABLE secret_keys (
        org TEXT PRIMARY KEY REFERENCES organisations(id), keys TEXT NOT NULL)",
    "CREATE TABLE secrets (
        org TEXT NOT NULL REFERENCES organisations(id), name TEXT NOT NULL, id TEXT NOT NULL,
        version BIGINT NOT NULL, binding TEXT NOT NULL, sealed TEXT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, last_used_at BIGINT,
        uses BIGINT NOT NULL, PRIMARY KEY (org, name))",
    "CREATE INDEX secrets_by_age ON secrets (org, created_at, id)",
    "CREATE TABLE secret_uses (
        org TEXT NOT NULL, secret TEXT NOT NULL, sandbox TEXT NOT NULL, uses BIGINT NOT NULL,
        last_used_at BIGINT NOT NULL, PRIMARY KEY (org, secret, sandbox))",
];

/// Directories that outlive sandboxes, and which sandboxes mount them.
const VOLUMES: &[&str] = &[
    "CREATE TABLE volumes (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), host TEXT NOT NULL,
        name TEXT NOT NULL, state TEXT NOT NULL, size_mb BIGINT NOT NULL, read_only BIGINT NOT NULL,
        origin TEXT, used_bytes BIGINT NOT NULL, created_at BIGINT NOT NULL, deleted_at BIGINT,
        created_steady BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX volumes_by_name ON volumes (org, name) WHERE deleted_at IS NULL",
    "CREATE INDEX volumes_by_age ON volumes (org, created_at, id) WHERE deleted_at IS NULL",
    "CREATE INDEX volumes_by_host ON volumes (host, created_at, id) WHERE deleted_at IS NULL",
    "CREATE INDEX volumes_deleted ON volumes (deleted_at) WHERE deleted_at IS NOT NULL",
    "CREATE TABLE sandbox_volumes (
        sandbox TEXT NOT NULL, volume TEXT NOT NULL, PRIMARY KEY (sandbox, volume))",
    "CREATE INDEX sandbox_volumes_by_volume ON sandbox_volumes (volume)",
];

/// Named starting points of sandboxes: versions, the tags that point at them, and the last number of each name.
const TEMPLATES: &[&str] = &[
    "CREATE TABLE templates (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), name TEXT NOT NULL,
        version BIGINT NOT NULL, snapshot TEXT NOT NULL, memory BIGINT NOT NULL, spec TEXT NOT NULL,
        created_at BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX templates_by_version ON templates (org, name, version)",
    "CREATE INDEX templates_by_age ON templates (org, created_at, id)",
    "CREATE INDEX templates_by_snapshot ON templates (snapshot)",
    "CREATE TABLE template_names (
        org TEXT NOT NULL, name TEXT NOT NULL, last_version BIGINT NOT NULL, PRIMARY KEY (org, name))",
    "CREATE TABLE template_tags (
        org TEXT NOT NULL, name TEXT NOT NULL, tag TEXT NOT NULL, version BIGINT NOT NULL,
        PRIMARY KEY (org, name, tag))",
];

/// Builds of templates, the states after their steps, and what an image that was built says of itself.
const BUILDS: &[&str] = &[
    "CREATE TABLE builds (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), name TEXT NOT NULL,
        state TEXT NOT NULL, error TEXT, template TEXT, steps BIGINT NOT NULL, cached BIGINT NOT NULL,
        created_at BIGINT NOT NULL, finished_at BIGINT)",
    "CREATE INDEX builds_by_age ON builds (org, created_at, id)",
    "CREATE INDEX builds_under_way ON builds (created_at) WHERE finished_at IS NULL",
    "CREATE TABLE build_cache (
        org TEXT NOT NULL, key TEXT NOT NULL, snapshot TEXT NOT NULL, used_at BIGINT NOT NULL,
        PRIMARY KEY (org, key))",
    "CREATE INDEX build_cache_by_snapshot ON build_cache (snapshot)",
    "CREATE INDEX build_cache_by_use ON build_cache (org, used_at)",
    "ALTER TABLE templates ADD COLUMN config TEXT",
];

/// The fleet: its certificate authority, whose key is wrapped by a key that is not in the database; the hosts that
/// joined; tokens by which others may join.
const FLEET: &[&str] = &[
    "CREATE TABLE fleet (
        one BIGINT PRIMARY KEY, id TEXT NOT NULL, authority TEXT NOT NULL, wrapped TEXT NOT NULL)",
    "CREATE TABLE nodes (
        host TEXT PRIMARY KEY, name TEXT NOT NULL, address TEXT NOT NULL, public_key TEXT NOT NULL,
        cordoned BIGINT NOT NULL, joined_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,
        removed_at BIGINT)",
    "CREATE UNIQUE INDEX nodes_by_name ON nodes (name) WHERE removed_at IS NULL",
    "CREATE TABLE join_tokens (
        id TEXT PRIMARY KEY, wrapped TEXT NOT NULL, created_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL, host TEXT, public_key TEXT)",
];

/// What object storage has: snapshots, the chunks they are made of, who uses which, and what is to be deleted there.
const OBJECTS: &[&str] = &[
    "ALTER TABLE snapshots ADD COLUMN object_copy TEXT NOT NULL DEFAULT 'none'",
    "ALTER TABLE snapshots ADD COLUMN on_host BIGINT NOT NULL DEFAULT 1",
    "CREATE INDEX snapshots_uploading ON snapshots (created_at, id)
        WHERE object_copy = 'uploading' AND deleted_at IS NULL",
    "CREATE INDEX snapshots_evictable ON snapshots (created_at, id)
        WHERE object_copy = 'stored' AND on_host = 1 AND deleted_at IS NULL",
    "CREATE TABLE object_orgs (
        org TEXT PRIMARY KEY REFERENCES organisations(id), wrapped_key TEXT NOT NULL,
        stored_bytes BIGINT NOT NULL)",
    "CREATE TABLE objects (
        snapshot TEXT PRIMARY KEY, org TEXT NOT NULL, token TEXT NOT NULL, manifest TEXT,
        manifest_bytes BIGINT NOT NULL DEFAULT 0, bytes BIGINT NOT NULL, sent_bytes BIGINT NOT NULL,
        stored_at BIGINT)",
    "CREATE TABLE object_chunks (
        org TEXT NOT NULL, digest TEXT NOT NULL, suffix TEXT NOT NULL, stored BIGINT NOT NULL,
        bytes BIGINT NOT NULL, PRIMARY KEY (org, digest))",
    "CREATE TABLE object_uses (
        snapshot TEXT NOT NULL, digest TEXT NOT NULL, org TEXT NOT NULL,
        PRIMARY KEY (snapshot, digest))",
    "CREATE INDEX object_uses_by_chunk ON object_uses (org, digest)",
    "CREATE TABLE object_condemned (name TEXT PRIMARY KEY, at BIGINT NOT NULL)",
    "CREATE INDEX object_condemned_by_age ON object_condemned (at, name)",
];

/// What hosts took of budgets of secrets. Budgets of a sandbox have its id, those of a day its number.
const BUDGETS: &[&str] = &[
    "CREATE TABLE secret_spend (
        org TEXT NOT NULL, secret TEXT NOT NULL, unit TEXT NOT NULL, sandbox TEXT NOT NULL,
        day BIGINT NOT NULL, host TEXT NOT NULL, taken BIGINT NOT NULL,
        PRIMARY KEY (secret, unit, sandbox, day, host))",
    "CREATE INDEX secret_spend_by_org ON secret_spend (org, sandbox, day)",
    "CREATE INDEX secret_spend_by_sandbox ON secret_spend (sandbox) WHERE sandbox <> ''",
];

/// Several programs on one database: which of them may use it, which does what, and where the boots of each machine
/// lie on the axis of time that passed.
const REPLICAS: &[&str] = &[
    "ALTER TABLE schema_version ADD COLUMN compatible_from BIGINT NOT NULL DEFAULT 0",
    "CREATE TABLE steady_axes (
        machine TEXT PRIMARY KEY, boot TEXT NOT NULL, offset_us BIGINT NOT NULL,
        began BIGINT NOT NULL, last_steady BIGINT NOT NULL, last_wall BIGINT NOT NULL)",
    "CREATE TABLE work (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, token TEXT NOT NULL, beats BIGINT NOT NULL)",
];

/// What the operator says of hosts, and which taints organisations may tolerate. Specs in rows may have a placement.
/// Earlier programs refuse to read those, and would send sandboxes to hosts that are kept for others.
const PLACEMENT: &[&str] = &[
    "ALTER TABLE nodes ADD COLUMN traits TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE organisations ADD COLUMN tolerations TEXT NOT NULL DEFAULT '[]'",
];

/// Organisations that were removed: audit records, usage and tombstones of what they had go on naming them. The column
/// `name` of such a row has its id, so that the name is free again.
const REMOVED_ORGANISATIONS: &[&str] = &[
    "ALTER TABLE organisations ADD COLUMN removed_at BIGINT",
    "ALTER TABLE organisations ADD COLUMN removed_name TEXT",
];

const FIRST: &[&str] = &[
    "CREATE TABLE organisations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        max_sandboxes BIGINT NOT NULL, max_cpu_milli BIGINT NOT NULL,
        max_memory_mb BIGINT NOT NULL, max_disk_mb BIGINT NOT NULL,
        used_sandboxes BIGINT NOT NULL, used_cpu_milli BIGINT NOT NULL,
        used_memory_mb BIGINT NOT NULL, used_disk_mb BIGINT NOT NULL,
        created_at BIGINT NOT NULL)",
    "CREATE TABLE api_keys (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id),
        hash TEXT NOT NULL UNIQUE, name TEXT NOT NULL, scopes TEXT NOT NULL,
        created_at BIGINT NOT NULL, expires_at BIGINT, revoked_at BIGINT, last_used_at BIGINT,
        root BIGINT NOT NULL)",
    "CREATE INDEX api_keys_by_org ON api_keys (org, created_at, id)",
    "CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY, org TEXT NOT NULL REFERENCES organisations(id), name TEXT,
        spec TEXT NOT NULL, desired TEXT NOT NULL, state TEXT NOT NULL, reason TEXT,
        generation BIGINT NOT NULL, facts TEXT NOT NULL,
        held_sandboxes BIGINT NOT NULL, held_cpu_milli BIGINT NOT NULL,
        held_memory_mb BIGINT NOT NULL, held_disk_mb BIGINT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, started_at BIGINT,
        last_active_at BIGINT NOT NULL, deleted_at BIGINT)",
    "CREATE UNIQUE INDEX sandboxes_by_name ON sandboxes (org, name) WHERE deleted_at IS NULL",
    "CREATE INDEX sandboxes_by_age ON sandboxes (org, created_at, id) WHERE deleted_at IS NULL",
    "CREATE INDEX sandboxes_alive ON sandboxes (created_at, id) WHERE deleted_at IS NULL",
    "CREATE INDEX sandboxes_deleted ON sandboxes (deleted_at) WHERE deleted_at IS NOT NULL",
    "CREATE TABLE sandbox_labels (
        sandbox TEXT NOT NULL, label TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (sandbox, label))",
    "CREATE INDEX sandbox_labels_by_value ON sandbox_labels (label, value)",
    "CREATE TABLE idempotency (
        org TEXT NOT NULL, key TEXT NOT NULL, request_hash TEXT NOT NULL,
        sandbox TEXT NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (org, key))",
    "CREATE INDEX idempotency_by_age ON idempotency (created_at)",
    "CREATE INDEX idempotency_by_sandbox ON idempotency (sandbox)",
    "CREATE TABLE usage_marks (
        sandbox TEXT PRIMARY KEY, at BIGINT NOT NULL, running BIGINT NOT NULL,
        cpu_usec BIGINT NOT NULL, memory_bytes BIGINT NOT NULL, disk_bytes BIGINT NOT NULL,
        egress_bytes BIGINT NOT NULL, memory_rest BIGINT NOT NULL, disk_rest BIGINT NOT NULL)",
    "CREATE TABLE usage_hours (
        sandbox TEXT NOT NULL, hour BIGINT NOT NULL, org TEXT NOT NULL,
        cpu_usec BIGINT NOT NULL, memory_mib_ms BIGINT NOT NULL, disk_mib_ms BIGINT NOT NULL,
        egress_bytes BIGINT NOT NULL, PRIMARY KEY (sandbox, hour))",
    "CREATE INDEX usage_hours_by_org ON usage_hours (org, hour)",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
    "INSERT INTO counters (name, value) VALUES ('events', 0)",
    "INSERT INTO counters (name, value) VALUES ('audit', 0)",
    "CREATE TABLE events (
        sequence BIGINT PRIMARY KEY, org TEXT NOT NULL, sandbox TEXT NOT NULL,
        at BIGINT NOT NULL, kind TEXT NOT NULL)",
    "CREATE INDEX events_by_org ON events (org, sequence)",
    "CREATE INDEX events_by_sandbox ON events (sandbox, sequence)",
    "CREATE TABLE audit (
        sequence BIGINT PRIMARY KEY, at BIGINT NOT NULL, org TEXT NOT NULL, key_id TEXT,
        action TEXT NOT NULL, target TEXT, source TEXT, request_id TEXT,
        result TEXT NOT NULL, detail TEXT)",
    "CREATE INDEX audit_by_org ON audit (org, sequence)",
    "CREATE TABLE image_grants (
        org TEXT NOT NULL, name TEXT NOT NULL, image TEXT NOT NULL, PRIMARY KEY (org, name))",
    "CREATE INDEX image_grants_by_image ON image_grants (image)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
];

/// The version a database has when every step was applied.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// The version of the oldest program that works on these tables. A step that only adds (tables, indexes, columns with
/// a default) leaves it. A step that removes or changes something, or after which rows have what an earlier program
/// refuses to read, raises it to the first version that does without.
pub const COMPATIBLE_FROM: i64 = 23;

const _: () = assert!(COMPATIBLE_FROM <= VERSION);

/// Holds one row: the number of steps applied; and, from the step `REPLICAS` on, [`COMPATIBLE_FROM`].
pub const VERSION_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)";
