//! Every setting of the server in one table: its name in the file, the environment and on the
//! command line, its default, and what it does. `docs/configuration.md` holds the same table.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use cove_control::{Cidr, ControlConfig};
use cove_engine::{Addresses, EngineConfig};
use cove_isolation_container::ContainerConfig;
use cove_limits::SECONDS_MAX;
use cove_model::{DEFAULT_ISOLATION, VM_ISOLATION};
use cove_server::ServerConfig;
use serde::{Deserialize, Serialize};

use super::ServeError;
use value::Value;

mod configs;
mod value;

const DEFAULT_FILE: &str = "/etc/cove/cove.toml";
/// How far after the API's port the others are.
const PREVIEW_AFTER: u16 = 1;
const SSH_AFTER: u16 = 2;
/// Where the operator's presets are by default.
const PRESETS_FILE: &str = "/etc/cove/presets";
const DNS_PORT: u16 = 53;
/// Docker Hub, so that names like `python:3.12` mean what they do elsewhere.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The port of SSH anywhere else.
const SSH_PORT: u16 = 22;
/// What a home or an office uses. The cloud's metadata (169.254.0.0/16) is not among it.
const PRIVATE_RANGES: [&str; 4] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.168.0.0/16",
];
/// A configuration file beyond this is not one.
const FILE_MAX: u64 = 1024 * 1024;
/// A century: what is kept for longer is kept elsewhere.
const KEPT_DAYS_MAX: u64 = 36_500;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub listen: SocketAddr,
    pub preview_listen: String,
    pub preview_url: String,
    pub ssh_listen: String,
    pub ssh_host: String,
    pub identity_issuer: String,
    pub data_dir: PathBuf,
    pub database: String,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub log: String,
    pub log_format: String,
    pub connections_max: u64,
    pub header_timeout_s: u64,
    pub keep_alive_s: u64,
    pub body_timeout_s: u64,
    pub upload_idle_s: u64,
    pub write_stall_s: u64,
    pub shutdown_grace_s: u64,
    pub rate_per_second: f64,
    pub rate_burst: f64,
    pub quota_sandboxes: u64,
    pub quota_cpu: f64,
    pub quota_memory_mb: u64,
    pub quota_disk_mb: u64,
    pub quota_share: f64,
    pub stop_grace_ms: u64,
    pub lease_renew_s: u64,
    pub lease_delete_after_s: u64,
    pub idle_cpu: f64,
    pub idle_network_bytes: u64,
    pub network_quiet_s: u64,
    pub meter_every_s: u64,
    pub lifecycle_every_s: u64,
    pub snapshot_grace_s: u64,
    pub events_kept_days: u64,
    pub audit_kept_days: u64,
    pub warm: u64,
    pub overcommit_cpu: f64,
    pub overcommit_memory: f64,
    pub overcommit_disk: f64,
    pub pool: String,
    pub pool_mb: u64,
    pub pool_reserve_mb: u64,
    pub host_dir: PathBuf,
    pub cache_dir: PathBuf,
    pub default_registry: String,
    pub pull_on_create: bool,
    pub plain_registries: Vec<String>,
    pub import_dirs: Vec<String>,
    pub trusted_keys: Vec<String>,
    pub network_range: String,
    pub network_presets: Option<PathBuf>,
    pub network_resolvers: Vec<String>,
    pub private_ranges: Vec<String>,
    pub tenant_private_ranges: Vec<String>,
    pub sandboxes_max: u64,
    pub criu: Option<PathBuf>,
    pub secret_key_file: Option<PathBuf>,
    pub secret_key_command: Vec<String>,
    pub secret_roots: Option<PathBuf>,
    pub approval_hold_s: u64,
    pub sandbox_ca_file: Option<PathBuf>,
    pub sandbox_ca_orgs: Vec<String>,
    pub runsc: Option<PathBuf>,
    pub vm_programs: Option<PathBuf>,
    pub isolation: Vec<String>,
    pub isolation_of: Vec<String>,
    pub objects: String,
    pub objects_endpoint: String,
    pub objects_region: String,
    pub objects_credentials: Option<PathBuf>,
    pub objects_roots: Option<PathBuf>,
    pub objects_upload_mb: u64,
    pub objects_quota_mb: u64,
    pub objects_local_mb: u64,
    pub fleet_key_file: Option<PathBuf>,
    pub fleet_key_command: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let server = ServerConfig::default();
        let control = ControlConfig::default();
        let engine = EngineConfig::new(crate::connect::DEFAULT_DATA_DIR);
        let container = ContainerConfig::default();
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            preview_listen: String::new(),
            preview_url: String::new(),
            ssh_listen: String::new(),
            ssh_host: String::new(),
            identity_issuer: String::new(),
            data_dir: crate::connect::DEFAULT_DATA_DIR.into(),
            database: String::new(),
            tls_certificate: None,
            tls_key: None,
            log: "info".into(),
            log_format: "text".into(),
            connections_max: server.connections_max as u64,
            header_timeout_s: server.header_timeout.as_secs(),
            keep_alive_s: server.keep_alive.as_secs(),
            body_timeout_s: server.body_timeout.as_secs(),
            upload_idle_s: server.upload_idle.as_secs(),
            write_stall_s: server.write_stall.as_secs(),
            shutdown_grace_s: server.shutdown_grace.as_secs(),
            rate_per_second: control.rate_limit.per_second,
            rate_burst: control.rate_limit.burst,
            quota_sandboxes: control.default_quota.sandboxes,
            quota_cpu: control.default_quota.cpu_milli as f64 / 1e3,
            quota_memory_mb: control.default_quota.memory_mb,
            quota_disk_mb: control.default_quota.disk_mb,
            quota_share: control.quota_share,
            stop_grace_ms: control.stop_grace_ms,
            lease_renew_s: control.lease_times.renew_within_s,
            lease_delete_after_s: control.lease_times.delete_after_s,
            idle_cpu: control.idle_cpu,
            idle_network_bytes: control.idle_network_bytes,
            network_quiet_s: control.network_quiet.as_secs(),
            meter_every_s: control.meter_every.as_secs(),
            lifecycle_every_s: control.lifecycle_every.as_secs(),
            snapshot_grace_s: control.snapshot_grace.as_secs(),
            events_kept_days: control.events_kept.as_secs() / 86_400,
            audit_kept_days: control.audit_kept.as_secs() / 86_400,
            warm: container.warm as u64,
            overcommit_cpu: engine.overcommit.cpu,
            overcommit_memory: engine.overcommit.memory,
            overcommit_disk: engine.overcommit.disk,
            pool: "auto".into(),
            pool_mb: 0,
            pool_reserve_mb: 0,
            host_dir: engine.host_dir,
            cache_dir: engine.host_cache,
            default_registry: DEFAULT_REGISTRY.into(),
            pull_on_create: control.pull_on_create,
            plain_registries: engine.plain_registries,
            import_dirs: Vec::new(),
            trusted_keys: Vec::new(),
            network_range: engine.network_range.to_string(),
            network_presets: Some(PRESETS_FILE.into()),
            network_resolvers: Vec::new(),
            private_ranges: PRIVATE_RANGES.map(str::to_owned).to_vec(),
            tenant_private_ranges: Vec::new(),
            sandboxes_max: engine.sandboxes_max as u64,
            criu: None,
            secret_key_file: None,
            secret_key_command: Vec::new(),
            secret_roots: None,
            approval_hold_s: engine.approval_hold.as_secs(),
            sandbox_ca_file: None,
            sandbox_ca_orgs: vec![super::authorities::HOME.to_owned()],
            runsc: None,
            vm_programs: None,
            isolation: [DEFAULT_ISOLATION, "gvisor", VM_ISOLATION]
                .map(str::to_owned)
                .to_vec(),
            isolation_of: Vec::new(),
            objects: String::new(),
            objects_endpoint: String::new(),
            objects_region: String::new(),
            objects_credentials: None,
            objects_roots: None,
            objects_upload_mb: cove_limits::OBJECTS_UPLOAD_MB_DEFAULT,
            objects_quota_mb: cove_limits::OBJECTS_QUOTA_MB_DEFAULT,
            objects_local_mb: 0,
            fleet_key_file: None,
            fleet_key_command: Vec::new(),
        }
    }
}

/// One row of the table.
pub struct Setting {
    pub key: &'static str,
    pub value_name: &'static str,
    pub help: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
    get: fn(&Settings) -> String,
}

macro_rules! settings {
    ($($key:ident $value:literal $help:literal;)*) => {
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: stringify!($key),
            value_name: $value,
            help: $help,
            set: |settings, text| { settings.$key = Value::read(text)?; Ok(()) },
            get: |settings| Value::show(&settings.$key),
        },)*];
    };
}

settings! {
    listen "ADDRESS" "Address of the API; beyond loopback use TLS";
    preview_listen "ADDRESS" "Address of previews; empty: the port after the API's; off: no previews";
    preview_url "URL" "Public URL of previews; empty: localhost and the port of preview_listen";
    ssh_listen "ADDRESS" "Address of the SSH gateway; empty: two ports after the API's; off: no gateway";
    ssh_host "HOST" "Public name of the SSH gateway, as host or host:port; empty: its address";
    identity_issuer "URL" "Public URL of this server for verifiers of identity tokens (the iss claim), https for clouds; empty: the address of the API";
    data_dir "DIR" "Data directory";
    database "URL" "postgres://… for a PostgreSQL database; empty: SQLite in the data directory";
    tls_certificate "FILE" "PEM certificate chain; with it the API is https only";
    tls_key "FILE" "PEM private key of the certificate";
    log "FILTER" "Log level: error, warn, info, debug, or a tracing filter";
    log_format "FORMAT" "Log format: text or json";
    connections_max "COUNT" "Maximum number of connections";
    header_timeout_s "SECONDS" "Timeout of the TLS handshake and the first bytes of a connection";
    keep_alive_s "SECONDS" "Timeout of a request's headers and of unused connections";
    body_timeout_s "SECONDS" "Timeout of a whole JSON body";
    upload_idle_s "SECONDS" "Timeout between two pieces of an upload";
    write_stall_s "SECONDS" "Timeout of a client that does not read the answer";
    shutdown_grace_s "SECONDS" "Time for requests to end when the server stops";
    rate_per_second "COUNT" "Requests per second of one key; 0: no limit";
    rate_burst "COUNT" "Requests of one key in a burst";
    quota_sandboxes "COUNT" "Default quota of an organisation: sandboxes";
    quota_cpu "CPUS" "Default quota of an organisation: CPUs of running sandboxes";
    quota_memory_mb "MIB" "Default quota of an organisation: memory of running sandboxes";
    quota_disk_mb "MIB" "Default quota of an organisation: disk";
    quota_share "SHARE" "Share of what the hosts can promise that an organisation other than the home one has at most by default, up to 1";
    stop_grace_ms "MS" "Time between SIGTERM and SIGKILL when a stop request gives none";
    lease_renew_s "SECONDS" "Time without a renewal after which a sandbox with a lease is paused, when the request gives none";
    lease_delete_after_s "SECONDS" "Time after that at which it is deleted, when the request gives none";
    idle_cpu "SHARE" "A sandbox below this share of one CPU is idle";
    idle_network_bytes "BYTES" "A sandbox below this traffic in a lifecycle period is idle";
    network_quiet_s "SECONDS" "Time after traffic during which a sandbox is not idle";
    meter_every_s "SECONDS" "Interval of usage metering";
    lifecycle_every_s "SECONDS" "Interval of lifecycle checks";
    snapshot_grace_s "SECONDS" "Time after which a snapshot in the database that the host does not have is removed";
    events_kept_days "DAYS" "Retention of events";
    audit_kept_days "DAYS" "Retention of audit records";
    warm "COUNT" "Number of sandboxes prepared in advance";
    overcommit_cpu "FACTOR" "CPUs promised to sandboxes per CPU of the host";
    overcommit_memory "FACTOR" "Memory promised to sandboxes per byte of the host";
    overcommit_disk "FACTOR" "Disk promised to sandboxes per byte of the pool";
    pool "KIND" "Storage pool: auto, btrfs or directory (without disk limits)";
    pool_mb "MIB" "Size of a storage pool in a file; 0: by free space";
    pool_reserve_mb "MIB" "Free space to keep in the storage pool; 0: a share of its size";
    host_dir "DIR" "Directory shared by all servers of a machine; emptied by a reboot";
    cache_dir "DIR" "Cache directory shared by all servers of a machine";
    default_registry "HOST" "Registry of images that name none; empty: such images are refused";
    pull_on_create "BOOL" "A create pulls a missing image that is named with a tag, a digest or a path; false: only `cove image pull` does";
    plain_registries "HOSTS" "Registries to use without TLS, as host or host:port, in addition to those on loopback";
    import_dirs "DIRS" "Directories that images may be imported from, in addition to import in the data directory; links are not followed";
    trusted_keys "KEYS" "Export keys of other hosts (from their `cove doctor`); snapshots signed by them keep their memory";
    network_range "RANGE" "Address range of sandboxes, an unused /15; the same for all servers of a machine";
    network_presets "FILE" "File with additional presets for network policies; may be missing";
    network_resolvers "ADDRESSES" "Upstream DNS resolvers, as address or address:port; empty: those of /etc/resolv.conf";
    private_ranges "RANGES" "Private ranges that network policies may list, also those of the home organisation; enforced by the runner";
    tenant_private_ranges "RANGES" "Private ranges, like 10.1.0.0/16, that policies of all organisations may list and registries may be in; others only for the home organisation";
    sandboxes_max "COUNT" "Maximum number of sandboxes on this host, of all organisations, stopped ones included";
    criu "FILE" "CRIU program that captures memory; empty: search for it";
    secret_key_file "FILE" "Host key that encrypts the keys of organisations' secrets, mode 0600; empty: engine/secret.key in the data directory, created if missing";
    secret_key_command "COMMAND" "Program with arguments, run by root, that prints the host key instead, for example from a key management service";
    secret_roots "FILE" "Additional certificate authorities, PEM, for the servers of bound hosts";
    approval_hold_s "SECONDS" "Time for which a request waits for the approval of its secret before it is refused, at most 600";
    sandbox_ca_file "FILE" "Certificate authorities, PEM, that sandboxes trust in addition to those of their images";
    sandbox_ca_orgs "ORGS" "Organisations whose sandboxes trust sandbox_ca_file: home and ids of others";
    runsc "FILE" "The runsc program, for sandboxes with isolation gvisor; empty: the one that scripts/setup installs, or the host's";
    vm_programs "DIR" "Directory of QEMU and its kernel, as scripts/provide-vm makes it, for sandboxes with isolation vm; empty: the one that scripts/setup makes";
    isolation "TIERS" "Isolation tiers that organisations may use, the default first; auto first: the strongest of the others that the host has";
    isolation_of "RULES" "Isolation tiers of single organisations, in place of isolation, as ORG=TIER+TIER, like org_…=auto+gvisor+container";
    objects "URL" "Object storage of durable snapshots, s3://BUCKET/PREFIX or file:///DIRECTORY; empty: none";
    objects_endpoint "URL" "Address of an S3-compatible server, with path-style requests; empty: AWS";
    objects_region "REGION" "Region of the bucket; empty: AWS_REGION of the credentials, or us-east-1";
    objects_credentials "FILE" "File with lines like AWS_ACCESS_KEY_ID=…, read by root; empty: these variables of the server's environment";
    objects_roots "FILE" "Additional certificate authorities, PEM, for the object storage";
    objects_upload_mb "MIB" "MiB per second of all uploads to object storage together; 0: no limit";
    objects_quota_mb "MIB" "Maximum object storage of each organisation";
    objects_local_mb "MIB" "Disk of the host for snapshots that object storage has too; beyond it the oldest are evicted and fetched back when used; 0: no limit";
    fleet_key_file "FILE" "Fleet key, mode 0600, that encrypts the keys of organisations for object storage and the key of the fleet's certificate authority; empty: fleet.key in the data directory, created if missing";
    fleet_key_command "COMMAND" "Program with arguments, run by root, that prints the fleet key instead, for example from a key management service";
}

impl Setting {
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    pub fn variable(&self) -> String {
        format!("COVE_{}", self.key.to_ascii_uppercase())
    }

    pub fn default_text(&self) -> String {
        (self.get)(&Settings::default())
    }

    /// A line of the configuration file that sets the default.
    pub fn toml(&self) -> String {
        let text = self.default_text();
        let is_number = text.parse::<f64>().is_ok_and(f64::is_finite);
        match is_number || text == "true" || text == "false" {
            true => format!("{} = {text}", self.key),
            false => format!("{} = {text:?}", self.key),
        }
    }
}

/// Settings that may be written as a list in the file.
const LISTS: &[&str] = &[
    "plain_registries",
    "import_dirs",
    "trusted_keys",
    "network_resolvers",
    "private_ranges",
    "tenant_private_ranges",
    "secret_key_command",
    "fleet_key_command",
    "sandbox_ca_orgs",
    "isolation",
    "isolation_of",
];

/// `192.0.2.1`, `192.0.2.1:5353`, `[2001:db8::1]:53`.
fn resolver(text: &str) -> Option<SocketAddr> {
    let address = text.parse::<IpAddr>().map(|ip| (ip, DNS_PORT).into());
    address.or_else(|_| text.parse()).ok()
}

/// An Ed25519 key written in hexadecimal digits.
fn key_bytes(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

fn list(items: &[toml::Value]) -> Option<String> {
    let name = |item: &toml::Value| {
        let text = item.as_str()?;
        (!text.is_empty() && !text.contains(',')).then(|| text.to_owned())
    };
    let names: Option<Vec<_>> = items.iter().map(name).collect();
    Some(names?.join(","))
}

/// A registry as references name it: no scheme, no path.
fn is_registry(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

/// `host` or `host:port`; a name or an address that a shell and ssh both take for one word.
fn ssh_address(text: &str, usual: u16) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)?),
        None => (text, usual),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let fits = !host.is_empty() && !host.starts_with('-') && host.bytes().all(plain);
    fits.then(|| (host.to_owned(), port))
}

fn wrong(message: String) -> ServeError {
    ServeError::Settings { message }
}

impl Settings {
    pub fn set(&mut self, key: &str, value: &str, source: &str) -> Result<(), ServeError> {
        let setting = SETTINGS
            .iter()
            .find(|setting| setting.key == key)
            .ok_or_else(|| wrong(format!("{source}: there is no setting '{key}'")))?;
        (setting.set)(self, value).map_err(|problem| wrong(format!("{source}: {key} {problem}")))
    }

    /// The named file must be there; the usual one may be missing.
    pub fn read_file(&mut self, path: Option<&str>) -> Result<(), ServeError> {
        let (path, named) = match path {
            Some(path) => (Path::new(path), true),
            None => (Path::new(DEFAULT_FILE), false),
        };
        let failed = |source| ServeError::io(format!("cannot read {}", path.display()), source);
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => return Ok(()),
            Err(error) => return Err(failed(error)),
            Ok(found) if found.len() > FILE_MAX => {
                return Err(wrong(format!(
                    "{} is too large for a configuration",
                    path.display()
                )));
            }
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        self.read_toml(&text, &path.display().to_string())
    }

    fn read_toml(&mut self, text: &str, source: &str) -> Result<(), ServeError> {
        let table: toml::Table = text
            .parse()
            .map_err(|error| wrong(format!("{source} is not TOML: {error}")))?;
        for (key, value) in table {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(truth) => truth.to_string(),
                // Only a setting that holds names may be a list; one name would read like text.
                toml::Value::Array(items) if LISTS.contains(&key.as_str()) => list(&items)
                    .ok_or_else(|| wrong(format!("{source}: {key} must be a list of names")))?,
                _ => {
                    return Err(wrong(format!(
                        "{source}: {key} must be text, a number or true or false"
                    )));
                }
            };
            self.set(&key, &value, source)?;
        }
        Ok(())
    }

    pub fn read_environment(
        &mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(), ServeError> {
        for setting in SETTINGS {
            let name = setting.variable();
            if let Some(value) = variable(&name) {
                self.set(setting.key, &value, &name)?;
            }
        }
        Ok(())
    }

    /// Checks that need more than one value.
    pub fn check(&mut self) -> Result<(), ServeError> {
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(wrong("tls_certificate and tls_key belong together".into()));
        }
        super::objects::check(self)?;
        self.beside("preview_listen", &self.preview_listen, PREVIEW_AFTER)?;
        self.beside("ssh_listen", &self.ssh_listen, SSH_AFTER)?;
        if !self.ssh_host.is_empty() && ssh_address(&self.ssh_host, SSH_PORT).is_none() {
            return Err(wrong(
                "ssh_host must be like ssh.example or ssh.example:2222".into(),
            ));
        }
        if !self.preview_url.is_empty() {
            cove_server::PreviewUrl::parse(&self.preview_url)
                .map_err(|error| wrong(format!("preview_url: {error}")))?;
        }
        if !self.identity_issuer.is_empty() {
            cove_control::Issuer::parse(&self.identity_issuer)
                .map_err(|error| wrong(format!("identity_issuer {error}")))?;
        }
        if !matches!(self.log_format.as_str(), "text" | "json") {
            return Err(wrong("log_format must be text or json".into()));
        }
        if !matches!(self.pool.as_str(), "auto" | "btrfs" | "directory") {
            return Err(wrong("pool must be auto, btrfs or directory".into()));
        }
        for (key, value) in [
            ("connections_max", self.connections_max),
            ("sandboxes_max", self.sandboxes_max),
            ("header_timeout_s", self.header_timeout_s),
            ("keep_alive_s", self.keep_alive_s),
            ("body_timeout_s", self.body_timeout_s),
            ("upload_idle_s", self.upload_idle_s),
            ("write_stall_s", self.write_stall_s),
            ("meter_every_s", self.meter_every_s),
            ("lifecycle_every_s", self.lifecycle_every_s),
            ("snapshot_grace_s", self.snapshot_grace_s),
        ] {
            if value == 0 || value > u64::from(u32::MAX) {
                return Err(wrong(format!("{key} must be between 1 and {}", u32::MAX)));
            }
        }
        for (key, days) in [
            ("events_kept_days", self.events_kept_days),
            ("audit_kept_days", self.audit_kept_days),
        ] {
            if !(1..=KEPT_DAYS_MAX).contains(&days) {
                return Err(wrong(format!(
                    "{key} must be between 1 and {KEPT_DAYS_MAX}"
                )));
            }
        }
        if !(self.quota_share > 0.0 && self.quota_share <= 1.0) {
            return Err(wrong("quota_share must be above 0 and at most 1".into()));
        }
        if self.approval_hold_s > cove_limits::APPROVAL_HOLD_MAX_S {
            return Err(wrong(format!(
                "approval_hold_s must be at most {}",
                cove_limits::APPROVAL_HOLD_MAX_S
            )));
        }
        let given = Some(&self.default_registry).filter(|name| !name.is_empty());
        for (key, name) in given
            .map(|name| ("default_registry", name))
            .into_iter()
            .chain(
                self.plain_registries
                    .iter()
                    .map(|name| ("plain_registries", name)),
            )
        {
            if !is_registry(name) {
                return Err(wrong(format!(
                    "{key}: '{name}' must be a registry like registry.example or registry.example:5000"
                )));
            }
        }
        for key in &self.trusted_keys {
            if key_bytes(key).is_none() {
                return Err(wrong(format!(
                    "trusted_keys: '{key}' must be 64 hexadecimal digits"
                )));
            }
        }
        if let Err(error) = self.network_range.parse::<Addresses>() {
            return Err(wrong(format!("network_range: {error}")));
        }
        for text in &self.network_resolvers {
            if resolver(text).is_none() {
                return Err(wrong(format!(
                    "network_resolvers: '{text}' must be like 192.0.2.1 or 192.0.2.1:53"
                )));
            }
        }
        for text in &self.import_dirs {
            if !text.starts_with('/') {
                return Err(wrong(format!(
                    "import_dirs: '{text}' must be an absolute path"
                )));
            }
        }
        for (key, ranges) in [
            ("private_ranges", &self.private_ranges),
            ("tenant_private_ranges", &self.tenant_private_ranges),
        ] {
            for text in ranges {
                if let Err(error) = text.parse::<Cidr>() {
                    return Err(wrong(format!("{key}: '{text}': {error}")));
                }
            }
        }
        for (key, path) in [
            ("network_presets", &mut self.network_presets),
            ("criu", &mut self.criu),
            ("runsc", &mut self.runsc),
            ("vm_programs", &mut self.vm_programs),
        ] {
            if let Some(path) = path {
                *path = std::path::absolute(&*path).map_err(|source| {
                    ServeError::io(format!("{key} cannot be made absolute"), source)
                })?;
            }
        }
        for (key, seconds) in [
            ("lease_renew_s", self.lease_renew_s),
            ("lease_delete_after_s", self.lease_delete_after_s),
        ] {
            if !(1..=SECONDS_MAX).contains(&seconds) {
                return Err(wrong(format!("{key} must be between 1 and {SECONDS_MAX}")));
            }
        }
        self.isolation_policy().map_err(wrong)?;
        for (key, path) in [("criu", &self.criu), ("runsc", &self.runsc)] {
            if let Some(path) = path.as_ref().filter(|path| !path.is_file()) {
                return Err(wrong(format!("{key}: there is no file {}", path.display())));
            }
        }
        if let Some(path) = self.vm_programs.as_ref().filter(|path| !path.is_dir()) {
            return Err(wrong(format!(
                "vm_programs: there is no directory {}",
                path.display()
            )));
        }
        self.data_dir = std::path::absolute(&self.data_dir)
            .map_err(|source| ServeError::io("data_dir cannot be made absolute", source))?;
        Ok(())
    }

    /// A listener besides the API's: where it is set to be, or so many ports after it.
    fn beside(&self, key: &str, told: &str, after: u16) -> Result<Option<SocketAddr>, ServeError> {
        match told {
            "off" => Ok(None),
            "" => {
                let mut address = self.listen;
                // With any port for the API, any will do here.
                if address.port() != 0 {
                    let port = address.port().checked_add(after).ok_or_else(|| {
                        wrong(format!(
                            "{key} must be set: there is no port after listen's"
                        ))
                    })?;
                    address.set_port(port);
                }
                Ok(Some(address))
            }
            told => told
                .parse()
                .map(Some)
                .map_err(|_| wrong(format!("{key} must be like 127.0.0.1:7071, off, or empty"))),
        }
    }

    pub fn ssh_address(&self) -> Result<Option<SocketAddr>, ServeError> {
        self.beside("ssh_listen", &self.ssh_listen, SSH_AFTER)
    }

    /// Host and port by which a gateway that listens there is reached.
    pub fn ssh_place(&self, listening: SocketAddr) -> (String, u16) {
        let here = match listening.ip() {
            ip if ip.is_unspecified() => "localhost".to_owned(),
            ip => ip.to_string(),
        };
        ssh_address(&self.ssh_host, listening.port()).unwrap_or((here, listening.port()))
    }

    pub fn preview_address(&self) -> Result<Option<SocketAddr>, ServeError> {
        self.beside("preview_listen", &self.preview_listen, PREVIEW_AFTER)
    }

    /// Where previews are reached that listen there.
    pub fn preview_place(&self, listening: SocketAddr) -> String {
        let scheme = if self.tls_certificate.is_some() {
            "https"
        } else {
            "http"
        };
        match self.preview_url.as_str() {
            "" => format!("{scheme}://localhost:{}", listening.port()),
            url => url.to_owned(),
        }
    }

    /// Who issues identity tokens of a server that listens there.
    pub fn issuer(&self, url: &str) -> String {
        match self.identity_issuer.as_str() {
            "" => url.to_owned(),
            issuer => issuer.to_owned(),
        }
    }

    /// Root's own part of the data directory.
    pub fn engine_dir(&self) -> PathBuf {
        self.data_dir.join("engine")
    }

    /// Where clients of this machine reach it.
    pub fn url(&self, listening: SocketAddr) -> String {
        let scheme = if self.tls_certificate.is_some() {
            "https"
        } else {
            "http"
        };
        let mut address = listening;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        format!("{scheme}://{address}")
    }

    /// The control side's own directory, the only one it may write.
    pub fn control_dir(&self) -> PathBuf {
        self.data_dir.join("control")
    }

    /// Where a node keeps who it is.
    pub fn relay_dir(&self) -> PathBuf {
        self.data_dir.join("relay")
    }

    pub fn runner_socket(&self) -> PathBuf {
        self.data_dir.join("runner.sock")
    }
}

#[cfg(test)]
mod tests;
