//! Arguments about sandboxes themselves.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use cove_api::sandbox::{
    Accel, CreateSandbox, Grant, IdentitySpec, Network, NetworkMode, NetworkRequest, PatchSandbox,
    ResourcesChange, ResourcesRequest, SecretGrant, State,
};

use cove_model::Placement;
use cove_model::placement::Strategy;

use super::lifecycle::LifecycleArgs;
use crate::units::{EnvFile, env_file, key_value, megabytes, variables};

#[derive(Debug, Clone, Args)]
pub struct CreateArgs {
    /// Name or id of an image [default: debian]
    pub image: Option<String>,
    /// Image; pulled from its registry if the server does not have it
    #[arg(long = "image", value_name = "IMAGE", conflicts_with_all = ["image", "snapshot", "template"])]
    pub image_option: Option<String>,
    /// Start from this snapshot instead of an image
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub snapshot: Option<String>,
    /// Start from this template instead of an image: NAME, NAME:TAG or NAME:VERSION
    #[arg(long, value_name = "TEMPLATE", conflicts_with_all = ["image", "snapshot"])]
    pub template: Option<String>,
    /// Continue the snapshot's processes
    #[arg(long, requires = "snapshot")]
    pub with_memory: bool,
    #[command(flatten)]
    pub options: CreateOptions,
}

impl CreateArgs {
    pub fn request(&self) -> CreateSandbox {
        CreateSandbox {
            snapshot: self.snapshot.clone(),
            memory: self.with_memory,
            template: self.template.clone(),
            ..self
                .options
                .request(self.image_option.as_deref().or(self.image.as_deref()))
        }
    }
}

/// What `create` and `run` have in common.
#[derive(Debug, Clone, Args)]
pub struct CreateOptions {
    /// A name, unique in the organisation
    #[arg(long, short)]
    pub name: Option<String>,
    /// CPUs, in fractions
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Memory, like 512M or 2G
    #[arg(long, short, value_parser = megabytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Limit up to which memory may grow by itself
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub memory_max: Option<u64>,
    /// Disk, like 10G
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub disk: Option<u64>,
    /// Maximum number of processes and threads
    #[arg(long)]
    pub pids: Option<u64>,
    /// Maximum number of open files per process
    #[arg(long)]
    pub open_files: Option<u64>,
    /// Set an environment variable for all commands
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub env: Vec<(String, String)>,
    /// Read environment variables from a file, one KEY=VALUE per line
    #[arg(long, value_parser = env_file, value_name = "FILE")]
    pub env_file: Vec<EnvFile>,
    /// Add a label
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
    /// User that commands run as
    #[arg(long, short)]
    pub user: Option<String>,
    /// Working directory of commands
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Isolation tier: container, gvisor, vm, or auto for the strongest that the host has
    #[arg(long)]
    pub isolation: Option<String>,
    /// With --isolation vm: kvm (default), or software for slow emulation on hosts without KVM
    #[arg(long)]
    pub accel: Option<Accel>,
    #[command(flatten)]
    pub network: NetworkOptions,
    #[command(flatten)]
    pub lifecycle: LifecycleArgs,
    /// Forbid gaining privileges through setuid programs
    #[arg(long)]
    pub no_new_privs: bool,
    #[command(flatten)]
    pub identity: IdentityOptions,
    /// Allow the use of a secret; VARIABLE holds its placeholder
    #[arg(long, value_parser = secret, value_name = "SECRET=VARIABLE")]
    pub secret: Vec<SecretGrant>,
    /// Allow the use of a secret; the file at PATH holds its placeholder
    #[arg(long, value_parser = secret_file, value_name = "SECRET=PATH")]
    pub secret_file: Vec<SecretGrant>,
    /// Put the value of a secret into VARIABLE; everything inside can read it
    #[arg(long, value_parser = exposed, value_name = "SECRET=VARIABLE")]
    pub expose: Vec<SecretGrant>,
    /// Put the value of a secret into the file at PATH
    #[arg(long, value_parser = exposed_file, value_name = "SECRET=PATH")]
    pub expose_file: Vec<SecretGrant>,
    /// Mount a volume; :ro makes it read-only
    #[arg(long, short = 'v', value_parser = super::volume::mount, value_name = "VOLUME:PATH[:ro]")]
    pub volume: Vec<cove_api::volume::Mount>,
    #[command(flatten)]
    pub placement: PlacementOptions,
}

#[derive(Debug, Clone, Args)]
pub struct PlacementOptions {
    #[command(flatten)]
    host: HostOptions,
    /// Fill one host before the next; default: spread over zones and hosts
    #[arg(long)]
    pack: bool,
}

/// Which hosts a sandbox or volume may be on.
#[derive(Debug, Clone, Args)]
pub struct HostOptions {
    /// Only on a host with this label
    #[arg(long, value_parser = key_value, value_name = "KEY=VALUE")]
    pub on: Vec<(String, String)>,
    /// Only on a host in this zone
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Also on a host with this taint; needs the operator's permission
    #[arg(long, value_name = "TAINT")]
    pub tolerate: Vec<String>,
}

impl HostOptions {
    pub fn placement(&self) -> Placement {
        Placement {
            labels: self.on.iter().cloned().collect(),
            zone: self.zone.clone(),
            tolerate: self.tolerate.iter().cloned().collect(),
            strategy: Strategy::Spread,
        }
    }
}

impl PlacementOptions {
    /// Absent when nothing was said.
    fn request(&self) -> Option<Placement> {
        let asked = Placement {
            strategy: match self.pack {
                true => Strategy::Pack,
                false => Strategy::Spread,
            },
            ..self.host.placement()
        };
        Some(asked).filter(|asked| !asked.is_empty())
    }
}

fn secret(text: &str) -> Result<SecretGrant, String> {
    let (name, env) = text.split_once('=').ok_or("must be SECRET=VARIABLE")?;
    Ok(SecretGrant {
        name: name.into(),
        env: Some(env.into()),
        file: None,
        exposed: false,
    })
}

fn exposed(text: &str) -> Result<SecretGrant, String> {
    secret(text).map(|grant| SecretGrant {
        exposed: true,
        ..grant
    })
}

fn exposed_file(text: &str) -> Result<SecretGrant, String> {
    secret_file(text).map(|grant| SecretGrant {
        exposed: true,
        ..grant
    })
}

fn secret_file(text: &str) -> Result<SecretGrant, String> {
    let (name, file) = text.split_once('=').ok_or("must be SECRET=PATH")?;
    Ok(SecretGrant {
        name: name.into(),
        env: None,
        file: Some(file.into()),
        exposed: false,
    })
}

/// A secret may have a variable and a file.
fn grants(variables: &[SecretGrant], files: &[SecretGrant]) -> Vec<SecretGrant> {
    let mut grants = variables.to_vec();
    for file in files {
        match grants.iter_mut().find(|grant| {
            grant.name == file.name && grant.exposed == file.exposed && grant.file.is_none()
        }) {
            Some(grant) => grant.file.clone_from(&file.file),
            None => grants.push(file.clone()),
        }
    }
    grants
}

#[derive(Debug, Clone, Args)]
pub struct IdentityOptions {
    /// Give the sandbox an identity, with tokens from http://cove.internal:16910/
    #[arg(long)]
    pub identity: bool,
    /// Allow the sandbox to do this to itself: snapshot, fork, keep_awake, label or end
    #[arg(long, value_parser = grant, value_name = "GRANT", requires = "identity")]
    pub grant: Vec<Grant>,
    /// Task, written into its tokens
    #[arg(long, requires = "identity")]
    pub task: Option<String>,
    /// Person or service it acts for, written into its tokens; needs the scope admin
    #[arg(long, value_name = "WHOM", requires = "identity")]
    pub on_behalf_of: Option<String>,
}

fn grant(text: &str) -> Result<Grant, String> {
    let found = Grant::ALL.into_iter().find(|grant| grant.as_str() == text);
    found.ok_or_else(|| "must be snapshot, fork, keep_awake, label or end".into())
}

impl IdentityOptions {
    fn request(&self) -> Option<IdentitySpec> {
        self.identity.then(|| IdentitySpec {
            grants: self.grant.clone(),
            task: self.task.clone(),
            on_behalf_of: self.on_behalf_of.clone(),
        })
    }
}

#[derive(Debug, Clone, Args)]
pub struct NetworkOptions {
    /// Network mode [default: none; with --allow: allowlist]
    #[arg(long, value_enum)]
    pub network: Option<NetworkArg>,
    /// Allow a destination: NAME, *.NAME, address or network, with :PORT or :FIRST-LAST; or preset:NAME
    #[arg(long, value_name = "ENTRY")]
    pub allow: Vec<String>,
    /// Upload limit in megabits per second
    #[arg(long, value_name = "MBIT")]
    pub bandwidth_up: Option<u32>,
    /// Download limit in megabits per second
    #[arg(long, value_name = "MBIT")]
    pub bandwidth_down: Option<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum NetworkArg {
    None,
    Allowlist,
    Open,
}

impl NetworkOptions {
    /// Absent when nothing was said.
    pub fn request(&self) -> Option<Network> {
        let limited = self.bandwidth_up.is_some() || self.bandwidth_down.is_some();
        if self.network.is_none() && self.allow.is_empty() && !limited {
            return None;
        }
        let mode = match self.network {
            Some(NetworkArg::None) => NetworkMode::None,
            Some(NetworkArg::Allowlist) => NetworkMode::Allowlist,
            Some(NetworkArg::Open) => NetworkMode::Open,
            None if self.allow.is_empty() => NetworkMode::None,
            None => NetworkMode::Allowlist,
        };
        let listed = mode == NetworkMode::Allowlist || !self.allow.is_empty();
        Some(Network {
            mode,
            allow: listed.then(|| self.allow.clone()),
            bandwidth_up_mbit: self.bandwidth_up,
            bandwidth_down_mbit: self.bandwidth_down,
        })
    }

    /// For a new sandbox: bandwidths alone leave a template's reach alone. Absent when nothing was said.
    pub fn create_request(&self) -> Option<NetworkRequest> {
        let asked = self.request()?;
        let reach = self.network.is_some() || !self.allow.is_empty();
        Some(NetworkRequest {
            mode: reach.then_some(asked.mode),
            ..asked.into()
        })
    }

    /// What a sandbox with the policy `now` should have, keeping what was not said: new bandwidths
    /// leave its reach alone, a new reach leaves its bandwidths alone.
    pub fn over(&self, now: &Network) -> Option<Network> {
        let mut asked = self.request()?;
        if self.network.is_none() && self.allow.is_empty() {
            asked.mode = now.mode;
            asked.allow.clone_from(&now.allow);
        }
        asked.bandwidth_up_mbit = asked.bandwidth_up_mbit.or(now.bandwidth_up_mbit);
        asked.bandwidth_down_mbit = asked.bandwidth_down_mbit.or(now.bandwidth_down_mbit);
        Some(asked)
    }
}

impl CreateOptions {
    pub fn request(&self, image: Option<&str>) -> CreateSandbox {
        let resources = ResourcesRequest {
            cpu: self.cpu,
            memory_mb: self.memory,
            memory_max_mb: self.memory_max,
            disk_mb: self.disk,
            pids: self.pids,
            open_files: self.open_files,
            io_read_mb_s: None,
            io_write_mb_s: None,
        };
        CreateSandbox {
            image: image.map(Into::into),
            snapshot: None,
            memory: false,
            template: None,
            name: self.name.clone(),
            isolation: self.isolation.clone(),
            accel: self.accel,
            resources: Some(resources).filter(|asked| *asked != ResourcesRequest::default()),
            env: variables(&self.env_file, &self.env),
            network: self.network.create_request(),
            lifecycle: self.lifecycle.request().map(Into::into),
            labels: self.label.iter().cloned().collect(),
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            no_new_privs: self.no_new_privs,
            identity: self.identity.request(),
            secrets: grants(
                &[&self.secret[..], &self.expose[..]].concat(),
                &[&self.secret_file[..], &self.expose_file[..]].concat(),
            ),
            volumes: (!self.volume.is_empty()).then(|| self.volume.clone()),
            placement: self.placement.request(),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// Only those in this state
    #[arg(long, value_parser = state)]
    pub state: Option<State>,
    /// Those in any state; the default
    #[arg(long, short, conflicts_with = "state")]
    pub all: bool,
    /// Only those with this label
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
    /// Print ids only
    #[arg(long, short)]
    pub quiet: bool,
}

fn state(text: &str) -> Result<State, String> {
    serde_json::from_value(text.into()).map_err(|_| {
        "one of creating, running, frozen, pausing, paused, resuming, restoring, stopping, stopped, failed, deleting".to_owned()
    })
}

#[derive(Debug, Clone, Args)]
pub struct UpdateArgs {
    pub sandbox: String,
    /// New name; an empty one removes the name
    #[arg(long, short)]
    pub name: Option<String>,
    /// Replace all labels by these
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub label: Vec<(String, String)>,
    /// Remove all labels
    #[arg(long, conflicts_with = "label")]
    pub no_labels: bool,
    /// CPUs, in fractions
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Memory, like 512M or 2G
    #[arg(long, short, value_parser = megabytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Limit up to which memory may grow by itself
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub memory_max: Option<u64>,
    /// Disk, like 10G
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub disk: Option<u64>,
    /// Maximum number of processes and threads
    #[arg(long)]
    pub pids: Option<u64>,
    /// The given rules replace all lifecycle rules
    #[command(flatten)]
    pub lifecycle: LifecycleArgs,
    /// Remove all lifecycle rules: no automatic freeze, pause, stop, deletion or snapshot
    #[arg(long, conflicts_with = "lifecycle")]
    pub keep: bool,
    #[command(flatten)]
    pub network: NetworkOptions,
}

impl UpdateArgs {
    pub fn request(&self) -> PatchSandbox {
        let resources = ResourcesChange {
            cpu: self.cpu,
            memory_mb: self.memory,
            memory_max_mb: self.memory_max,
            disk_mb: self.disk,
            pids: self.pids,
        };
        let lifecycle = self.lifecycle.request();
        let labels: BTreeMap<_, _> = self.label.iter().cloned().collect();
        PatchSandbox {
            name: self
                .name
                .clone()
                .map(|name| Some(name).filter(|name| !name.is_empty())),
            labels: (self.no_labels || !labels.is_empty()).then_some(labels),
            lifecycle: match self.keep {
                true => Some(Default::default()),
                false => lifecycle,
            },
            resources: Some(resources).filter(|asked| *asked != ResourcesChange::default()),
            // Needs the policy in force; see `NetworkOptions::over`.
            network: None,
            expected_generation: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        placement: PlacementOptions,
    }

    #[test]
    fn a_placement_is_sent_only_where_it_was_asked_for() {
        let asked = |args: &[&str]| {
            let line = [&["cove"], args].concat();
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.placement.request())
        };
        assert_eq!(asked(&[]).unwrap(), None);
        let placement = asked(&[
            "--on",
            "gpu=h100",
            "--on",
            "disk=ssd",
            "--zone",
            "a",
            "--tolerate",
            "lab",
            "--pack",
        ]);
        let wanted = r#"{"labels":{"disk":"ssd","gpu":"h100"},"zone":"a","tolerate":["lab"],"strategy":"pack"}"#;
        let sent = serde_json::to_string(&placement.unwrap()).unwrap();
        assert_eq!(sent, wanted);
        assert!(asked(&["--on", "gpu"]).is_err());
    }

    #[test]
    fn a_new_bandwidth_leaves_the_reach_alone_and_the_other_way_round() {
        let now = Network {
            mode: NetworkMode::Allowlist,
            allow: Some(vec!["example.org".into()]),
            bandwidth_up_mbit: Some(5),
            bandwidth_down_mbit: None,
        };
        let mut options = NetworkOptions {
            network: None,
            allow: vec![],
            bandwidth_up: None,
            bandwidth_down: Some(7),
        };
        let limited = options.over(&now).unwrap();
        assert_eq!(limited.mode, NetworkMode::Allowlist);
        assert_eq!(limited.allow, now.allow);
        assert_eq!(limited.bandwidth_up_mbit, Some(5));
        assert_eq!(limited.bandwidth_down_mbit, Some(7));

        let created = options.create_request().unwrap();
        assert_eq!(
            (created.mode, created.bandwidth_down_mbit),
            (None, Some(Some(7)))
        );

        options.bandwidth_down = None;
        assert!(options.over(&now).is_none());
        assert!(options.create_request().is_none());
        options.network = Some(NetworkArg::Open);
        let opened = options.over(&now).unwrap();
        assert_eq!((opened.mode, opened.allow), (NetworkMode::Open, None));
        assert_eq!(opened.bandwidth_up_mbit, Some(5));
    }
}
