//! Arguments about templates.

use clap::{Args, Subcommand};
use cove_api::sandbox::ResourcesRequest;
use cove_api::template::{CreateTemplate, TemplateDefaults};

use super::build::BuildArgs;
use super::lifecycle::LifecycleArgs;
use super::sandbox::NetworkOptions;
use crate::units::{EnvFile, env_file, key_value, megabytes, variables};

#[derive(Debug, Clone, Subcommand)]
pub enum TemplateCommand {
    /// Create a new version of a template from a snapshot
    Create(Box<CreateTemplateArgs>),
    /// Build a new version of a template from a Dockerfile
    Build(Box<BuildArgs>),
    /// List builds, newest first
    Builds,
    /// Cancel a build
    Cancel { build: String },
    /// Delete the cached steps of builds
    Prune,
    /// List versions of templates
    #[command(visible_alias = "list")]
    Ls {
        /// Only versions of this name
        name: Option<String>,
        /// Print ids only
        #[arg(long, short)]
        quiet: bool,
    },
    /// Show a version: NAME, NAME:TAG, NAME:VERSION or an id
    Show { template: String },
    /// Delete versions: NAME:VERSION, NAME:TAG, an id, or NAME if it has only one. Sandboxes and snapshots stay
    #[command(visible_alias = "delete")]
    Rm {
        #[arg(required = true)]
        templates: Vec<String>,
        /// Delete all versions of each NAME
        #[arg(long)]
        all: bool,
    },
    /// Point a tag at a version
    Tag {
        /// NAME, NAME:TAG, NAME:VERSION or an id
        template: String,
        tag: String,
        /// Remove the tag instead: from NAME wherever it points, from NAME:VERSION only if it points there
        #[arg(long)]
        remove: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub struct CreateTemplateArgs {
    /// NAME, or NAME:TAG [default tag: latest]
    #[arg(value_name = "NAME[:TAG]")]
    pub name: String,
    /// Snapshot that sandboxes start from
    #[arg(long, value_name = "SNAPSHOT")]
    pub snapshot: String,
    /// Sandboxes continue the snapshot's processes
    #[arg(long)]
    pub with_memory: bool,
    /// Point this tag at the new version too
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    #[command(flatten)]
    pub defaults: DefaultsArgs,
}

/// What sandboxes from a template are like where their makers do not say.
#[derive(Debug, Clone, Args)]
pub struct DefaultsArgs {
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
    /// Processes and threads
    #[arg(long)]
    pub pids: Option<u64>,
    /// Open files per process
    #[arg(long)]
    pub open_files: Option<u64>,
    /// Set an environment variable
    #[arg(long, short, value_parser = key_value, value_name = "KEY=VALUE")]
    pub env: Vec<(String, String)>,
    /// Read environment variables from a file, one KEY=VALUE per line
    #[arg(long, value_parser = env_file, value_name = "FILE")]
    pub env_file: Vec<EnvFile>,
    /// User that commands run as
    #[arg(long, short)]
    pub user: Option<String>,
    /// Working directory of commands
    #[arg(long, short, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Mount a volume in every sandbox; :ro makes it read-only
    #[arg(long, short = 'v', value_parser = super::volume::mount, value_name = "VOLUME:PATH[:ro]")]
    pub volume: Vec<cove_api::volume::Mount>,
    #[command(flatten)]
    pub network: NetworkOptions,
    #[command(flatten)]
    pub lifecycle: LifecycleArgs,
}

impl DefaultsArgs {
    pub fn request(&self) -> TemplateDefaults {
        let resources = ResourcesRequest {
            cpu: self.cpu,
            memory_mb: self.memory,
            memory_max_mb: self.memory_max,
            disk_mb: self.disk,
            pids: self.pids,
            open_files: self.open_files,
            ..ResourcesRequest::default()
        };
        TemplateDefaults {
            resources: Some(resources).filter(|asked| *asked != ResourcesRequest::default()),
            env: variables(&self.env_file, &self.env),
            network: self.network.request(),
            lifecycle: self.lifecycle.request(),
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            volumes: self.volume.clone(),
        }
    }
}

/// `NAME[:TAG]`.
pub fn named(text: &str) -> (String, Option<String>) {
    match text.split_once(':') {
        Some((name, tag)) => (name.to_owned(), Some(tag.to_owned())),
        None => (text.to_owned(), None),
    }
}

impl CreateTemplateArgs {
    pub fn request(&self) -> CreateTemplate {
        let (name, tag) = named(&self.name);
        CreateTemplate {
            name,
            snapshot: self.snapshot.clone(),
            memory: self.with_memory,
            tags: tag.into_iter().chain(self.tag.iter().cloned()).collect(),
            defaults: self.defaults.request(),
        }
    }
}
