//! Every setting of the server in one table: its name in the file, the environment and on the
//! command line, its default, and what it does. `docs/configuration.md` holds the same table.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_control::{Cidr, ControlConfig, Quota, RateLimit};
use cove_engine::{Addresses, BackendChoice, EngineConfig, OpenTier, Overcommit};
use cove_isolation_container::ContainerConfig;
use cove_server::ServerConfig;
use serde::{Deserialize, Serialize};

use super::ServeError;
use value::Value;

mod value;

const DEFAULT_FILE: &str = "/etc/cove/cove.toml";
/// How far after the API's port the others are.
const PREVIEW_AFTER: u16 = 1;
const SSH_AFTER: u16 = 2;
/// Where the operator's presets are by default.
const PRESETS_FILE: &str = "/etc/cove/presets";
const DNS_PORT: u16 = 53;
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
    pub stop_grace_ms: u64,
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
            stop_grace_ms: control.stop_grace_ms,
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
            default_registry: engine.default_registry.unwrap_or_default(),
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
    listen "ADDRESS" "Where the API listens; beyond loopback use TLS";
    preview_listen "ADDRESS" "Where previews listen; empty: the port after the API's; off: no previews";
    preview_url "URL" "Where previews are reached from outside; empty: localhost and that port";
    ssh_listen "ADDRESS" "Where the SSH gateway listens; empty: two ports after the API's; off: no gateway";
    ssh_host "HOST" "Where the SSH gateway is reached from outside, as host or host:port; empty: where it listens";
    identity_issuer "URL" "Where verifiers of identity tokens find this server, https for clouds: the iss claim; empty: where the API listens";
    data_dir "DIR" "Where everything is kept";
    database "URL" "postgres://… for the database; empty: SQLite in the data directory";
    tls_certificate "FILE" "PEM certificate chain; with it the API is https only";
    tls_key "FILE" "PEM private key of that certificate";
    log "FILTER" "What is logged: error, warn, info, debug, or a tracing filter";
    log_format "FORMAT" "text or json";
    connections_max "COUNT" "Connections served at once";
    header_timeout_s "SECONDS" "For a TLS handshake and the first bytes of a connection";
    keep_alive_s "SECONDS" "For a request's headers, and how long an unused connection is kept";
    body_timeout_s "SECONDS" "For the whole of a JSON body";
    upload_idle_s "SECONDS" "Between two pieces of an upload";
    write_stall_s "SECONDS" "How long a client may leave an answer unread";
    shutdown_grace_s "SECONDS" "What requests get to end when the server stops";
    rate_per_second "COUNT" "Requests per second of one key; 0: no limit";
    rate_burst "COUNT" "Requests of one key at once";
    quota_sandboxes "COUNT" "Of an organisation made without a quota: sandboxes";
    quota_cpu "CPUS" "The same: CPUs of running sandboxes";
    quota_memory_mb "MIB" "The same: memory of running sandboxes";
    quota_disk_mb "MIB" "The same: disk";
    stop_grace_ms "MS" "Between SIGTERM and SIGKILL when a stop does not say";
    idle_cpu "SHARE" "Below this share of one CPU a sandbox counts as idle";
    idle_network_bytes "BYTES" "Below this traffic in a lifecycle period a sandbox counts as idle";
    network_quiet_s "SECONDS" "How long traffic keeps a sandbox from being idle";
    meter_every_s "SECONDS" "How often usage is metered";
    lifecycle_every_s "SECONDS" "How often idle policies are looked at";
    snapshot_grace_s "SECONDS" "After this a snapshot in the database that the host has not heard of is given up";
    events_kept_days "DAYS" "How long events are kept";
    audit_kept_days "DAYS" "How long audit records are kept";
    warm "COUNT" "Sandboxes prepared ahead of need";
    overcommit_cpu "FACTOR" "CPUs promised for each CPU of the host";
    overcommit_memory "FACTOR" "Memory promised for each byte of the host";
    overcommit_disk "FACTOR" "Disk promised for each byte of the pool";
    pool "KIND" "Storage: auto, btrfs or directory (no disk limits)";
    pool_mb "MIB" "Size of a pool that is made as a file; 0: by what is free";
    pool_reserve_mb "MIB" "Kept free in the pool; 0: a share of its size";
    host_dir "DIR" "Shared by all servers of a machine; emptied by a reboot";
    cache_dir "DIR" "Shared by all servers of a machine; kept";
    default_registry "HOST" "Put before images that name no registry; empty: those are refused";
    plain_registries "HOSTS" "Registries spoken to without TLS, as host or host:port, besides those on loopback";
    import_dirs "DIRS" "Directories images may be imported from, besides import in the data directory; what lies elsewhere or behind links is refused";
    trusted_keys "KEYS" "Export keys of other hosts, as their `cove doctor` shows them, whose snapshots bring memory in";
    network_range "RANGE" "Addresses of sandboxes, a /15 the host has no other use for; the same for all servers of a machine";
    network_presets "FILE" "Named lists of what sandboxes may reach, besides those that come with Cove; may be missing";
    network_resolvers "ADDRESSES" "Whom sandboxes' names are asked of, as address or address:port; empty: those of /etc/resolv.conf";
    private_ranges "RANGES" "Private ranges that policies may list at all, those of the home organisation too; the runner refuses others whatever the control side says";
    tenant_private_ranges "RANGES" "Private ranges, like 10.1.0.0/16, that policies of all organisations may list and registries may be in; others are the home organisation's alone";
    sandboxes_max "COUNT" "Sandboxes of this host at most, of all organisations, stopped ones included";
    criu "FILE" "The CRIU program that captures memory; empty: it is looked for";
    secret_key_file "FILE" "The host key that wraps the keys of organisations' secrets, mode 0600; empty: engine/secret.key in the data directory, made when it is missing";
    secret_key_command "COMMAND" "A program and its arguments, run by root, that prints the host key instead, from a key management service for example";
    secret_roots "FILE" "Certificates, PEM, that servers of bound hosts may be signed by besides those that this host trusts";
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

    /// What single values cannot tell.
    pub fn check(&mut self) -> Result<(), ServeError> {
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(wrong("tls_certificate and tls_key belong together".into()));
        }
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
        ] {
            if let Some(path) = path {
                *path = std::path::absolute(&*path).map_err(|source| {
                    ServeError::io(format!("{key} cannot be made absolute"), source)
                })?;
            }
        }
        if let Some(path) = self.criu.as_ref().filter(|path| !path.is_file()) {
            return Err(wrong(format!("criu: there is no file {}", path.display())));
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

    pub fn server(&self) -> ServerConfig {
        ServerConfig {
            connections_max: usize::try_from(self.connections_max).unwrap_or(usize::MAX),
            header_timeout: Duration::from_secs(self.header_timeout_s),
            keep_alive: Duration::from_secs(self.keep_alive_s),
            body_timeout: Duration::from_secs(self.body_timeout_s),
            upload_idle: Duration::from_secs(self.upload_idle_s),
            write_stall: Duration::from_secs(self.write_stall_s),
            shutdown_grace: Duration::from_secs(self.shutdown_grace_s),
            tls: None,
            previews: None,
            ssh: None,
            log_losses: None,
        }
    }

    pub fn control(&self) -> ControlConfig {
        ControlConfig {
            default_quota: Quota {
                sandboxes: self.quota_sandboxes,
                cpu_milli: (self.quota_cpu * 1e3).round() as u64,
                memory_mb: self.quota_memory_mb,
                disk_mb: self.quota_disk_mb,
            },
            rate_limit: RateLimit {
                per_second: self.rate_per_second,
                burst: self.rate_burst,
            },
            meter_every: Duration::from_secs(self.meter_every_s),
            lifecycle_every: Duration::from_secs(self.lifecycle_every_s),
            idle_cpu: self.idle_cpu,
            idle_network_bytes: self.idle_network_bytes,
            network_quiet: Duration::from_secs(self.network_quiet_s),
            stop_grace_ms: self.stop_grace_ms,
            snapshot_grace: Duration::from_secs(self.snapshot_grace_s),
            events_kept: Duration::from_secs(self.events_kept_days.saturating_mul(86_400)),
            audit_kept: Duration::from_secs(self.audit_kept_days.saturating_mul(86_400)),
            audit_journal: Some(self.control_dir().join("audit")),
            tenant_private_ranges: self.open_ranges(),
            ..ControlConfig::default()
        }
    }

    pub fn engine(&self) -> EngineConfig {
        let some = |mb: u64| (mb > 0).then(|| mb.saturating_mul(1024 * 1024));
        EngineConfig {
            host_dir: self.host_dir.clone(),
            host_cache: self.cache_dir.clone(),
            backend: match self.pool.as_str() {
                "btrfs" => BackendChoice::Btrfs,
                "directory" => BackendChoice::Directory,
                _ => BackendChoice::Auto,
            },
            pool_bytes: some(self.pool_mb),
            reserve_bytes: some(self.pool_reserve_mb),
            overcommit: Overcommit {
                cpu: self.overcommit_cpu,
                memory: self.overcommit_memory,
                disk: self.overcommit_disk,
            },
            default_registry: Some(self.default_registry.clone()).filter(|name| !name.is_empty()),
            plain_registries: self.plain_registries.clone(),
            tenant_private_ranges: self.open_ranges(),
            import_dirs: self.import_dirs(),
            trusted_keys: self
                .trusted_keys
                .iter()
                .filter_map(|key| key_bytes(key))
                .collect(),
            network_range: self.network_range.parse().unwrap_or_default(),
            network_presets: self.network_presets.clone(),
            network_resolvers: self
                .network_resolvers
                .iter()
                .filter_map(|text| resolver(text))
                .collect(),
            // What is open to tenants is open to everybody.
            private_ranges: self
                .private_ranges
                .iter()
                .chain(&self.tenant_private_ranges)
                .filter_map(|text| text.parse().ok())
                .collect(),
            sandboxes_max: usize::try_from(self.sandboxes_max).unwrap_or(usize::MAX),
            secret_key_file: self.secret_key_file.clone(),
            secret_key_command: self.secret_key_command.clone(),
            secret_roots: self.secret_roots.clone(),
            ..EngineConfig::new(self.engine_dir())
        }
    }

    /// The isolation tiers that hold this host's sandboxes. The engine knows none but these.
    pub fn tiers(&self) -> Vec<Box<dyn OpenTier>> {
        vec![Box::new(self.container())]
    }

    fn container(&self) -> ContainerConfig {
        ContainerConfig {
            warm: usize::try_from(self.warm).unwrap_or(usize::MAX),
            criu: self.criu.clone(),
            ..ContainerConfig::default()
        }
    }

    /// Checked when the settings were read, so that none is left out.
    fn open_ranges(&self) -> Vec<Cidr> {
        let ranges = self.tenant_private_ranges.iter();
        ranges.filter_map(|text| text.parse().ok()).collect()
    }

    /// Where the runner takes images from; the first is where `cove image import` puts them.
    fn import_dirs(&self) -> Vec<PathBuf> {
        let own = crate::connect::import_dir(&self.data_dir);
        let others = self.import_dirs.iter().map(PathBuf::from);
        std::iter::once(own).chain(others).collect()
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

    pub fn runner_socket(&self) -> PathBuf {
        self.data_dir.join("runner.sock")
    }
}

#[cfg(test)]
mod tests;
