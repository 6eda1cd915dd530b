//! Arguments about builds of templates.

use std::path::PathBuf;

use clap::Args;
use cove_api::build::{BuildStart, CreateBuild};
use cove_api::sandbox::ResourcesRequest;
use cove_api::template::TemplateDefaults;

use super::sandbox::NetworkOptions;
use super::template::named;
use crate::units::{key_value, megabytes};

#[derive(Debug, Clone, Args)]
pub struct BuildArgs {
    /// Directory with the files that COPY and ADD may use
    #[arg(value_name = "CONTEXT", default_value = ".")]
    pub directory: PathBuf,
    /// Name of the template, with a tag [default tag: latest]
    #[arg(long, short, value_name = "NAME[:TAG]")]
    pub tag: String,
    /// Path of the Dockerfile [default: CONTEXT/Dockerfile]
    #[arg(long, short, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Set the value of an ARG
    #[arg(long, value_parser = key_value, value_name = "KEY=VALUE")]
    pub build_arg: Vec<(String, String)>,
    /// Build this stage [default: the last]
    #[arg(long, value_name = "STAGE")]
    pub target: Option<String>,
    /// Run every step again
    #[arg(long)]
    pub no_cache: bool,
    /// Ask registries for images that are on the host already
    #[arg(long)]
    pub pull: bool,
    /// CPUs of the build and of sandboxes from the template, in fractions
    #[arg(long)]
    pub cpu: Option<f64>,
    /// Memory of the build and of sandboxes from the template, like 512M or 2G
    #[arg(long, short, value_parser = megabytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Disk of the build and of sandboxes from the template, like 10G
    #[arg(long, value_parser = megabytes, value_name = "SIZE")]
    pub disk: Option<u64>,
    /// Run this shell command and capture it running [default with --ready: ENTRYPOINT and CMD]
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    pub start: Option<String>,
    /// Capture memory once this shell command succeeds
    #[arg(long, value_name = "COMMAND")]
    pub ready: Option<String>,
    /// Seconds to wait for --ready [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "ready")]
    pub ready_timeout: Option<u64>,
    /// Print the template only
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub network: NetworkOptions,
}

impl BuildArgs {
    pub fn request(&self, dockerfile: String, ignore: String) -> CreateBuild {
        let (name, tag) = named(&self.tag);
        let resources = ResourcesRequest {
            cpu: self.cpu,
            memory_mb: self.memory,
            disk_mb: self.disk,
            ..ResourcesRequest::default()
        };
        CreateBuild {
            name,
            tags: tag.into_iter().collect(),
            dockerfile,
            ignore,
            args: self.build_arg.iter().cloned().collect(),
            target: self.target.clone(),
            network: self.network.request(),
            no_cache: self.no_cache,
            pull: self.pull,
            start: self.ready.clone().map(|ready| BuildStart {
                command: self.start.clone(),
                ready,
                timeout_s: self.ready_timeout,
            }),
            defaults: TemplateDefaults {
                resources: Some(resources).filter(|asked| *asked != ResourcesRequest::default()),
                ..TemplateDefaults::default()
            },
        }
    }
}
