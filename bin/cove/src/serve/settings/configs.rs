//! What the settings mean to each part of the server: the configurations they are started with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cove_control::{Cidr, ControlConfig, Quota, RateLimit};
use cove_engine::{BackendChoice, EngineConfig, OpenTier, Overcommit};
use cove_isolation_container::ContainerConfig;
use cove_isolation_gvisor::GvisorConfig;
use cove_isolation_vm::VmConfig;
use cove_model::{IsolationPolicy, LeaseTimes, OrgId, TierRule};
use cove_server::ServerConfig;

use super::{Settings, key_bytes, resolver};

impl Settings {
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
            ..ServerConfig::default()
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
            quota_share: self.quota_share,
            sandboxes_max: self.sandboxes_max,
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
            lease_times: LeaseTimes {
                renew_within_s: self.lease_renew_s,
                delete_after_s: self.lease_delete_after_s,
            },
            snapshot_grace: Duration::from_secs(self.snapshot_grace_s),
            events_kept: Duration::from_secs(self.events_kept_days.saturating_mul(86_400)),
            audit_kept: Duration::from_secs(self.audit_kept_days.saturating_mul(86_400)),
            audit_journal: Some(self.control_dir().join("audit")),
            build_dir: Some(self.control_dir()),
            tenant_private_ranges: self.open_ranges(),
            pull_on_create: self.pull_on_create,
            has_default_registry: !self.default_registry.is_empty(),
            // Checked when the settings were read.
            isolation: self.isolation_policy().unwrap_or_default(),
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
            // The runner applies it again, whatever control says.
            isolation: self.isolation_policy().unwrap_or_default(),
            sandboxes_max: usize::try_from(self.sandboxes_max).unwrap_or(usize::MAX),
            secret_key_file: self.secret_key_file.clone(),
            secret_key_command: self.secret_key_command.clone(),
            secret_roots: self.secret_roots.clone(),
            approval_hold: Duration::from_secs(self.approval_hold_s),
            ..EngineConfig::new(self.engine_dir())
        }
    }

    /// What the two settings say about tiers, or what is wrong with them.
    pub(super) fn isolation_policy(&self) -> Result<IsolationPolicy, String> {
        let all = TierRule::of(&self.isolation).map_err(|error| format!("isolation {error}"))?;
        let mut of = BTreeMap::new();
        for text in &self.isolation_of {
            let wrong = |error: String| format!("isolation_of: '{text}': {error}");
            let (org, tiers) = text
                .split_once('=')
                .ok_or_else(|| wrong("must be like org_…=gvisor+container".into()))?;
            let org: OrgId = org
                .parse()
                .map_err(|_| wrong(format!("'{org}' is no id of an organisation")))?;
            let tiers: Vec<&str> = tiers.split('+').collect();
            let rule = TierRule::of(&tiers).map_err(wrong)?;
            if of.insert(org, rule).is_some() {
                return Err(wrong("the organisation has a rule already".into()));
            }
        }
        Ok(IsolationPolicy { all, of })
    }

    /// The isolation tiers that hold this host's sandboxes. The engine knows none but these.
    pub fn tiers(&self) -> Vec<Box<dyn OpenTier>> {
        vec![
            Box::new(self.container()),
            Box::new(self.gvisor()),
            Box::new(self.vm()),
        ]
    }

    pub(super) fn vm(&self) -> VmConfig {
        VmConfig {
            programs: self.vm_programs.clone(),
            ..VmConfig::default()
        }
    }

    pub(super) fn gvisor(&self) -> GvisorConfig {
        GvisorConfig {
            runsc: self.runsc.clone(),
            ..GvisorConfig::default()
        }
    }

    pub(super) fn container(&self) -> ContainerConfig {
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
}
