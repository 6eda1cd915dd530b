//! What a stage begins from: an image, a template, a snapshot or nothing, found once for each build.

use std::time::Duration;

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE, SCRATCH_IMAGE};
use cove_model::{SandboxSpec, SnapshotId, TemplateId};
use cove_runner_api::{FromSnapshot, ImageSource, ImageView, JobState};
use cove_template::Config;
use cove_template::key::{Hasher, Key};

use super::Live;
use super::run::or_cancelled;
use crate::Control;
use crate::error::{ControlError, ErrorCode};
use crate::principal::Principal;
use crate::snapshots::Source;

const JOB_POLL: Duration = Duration::from_millis(250);
/// Names of templates and snapshots begin with these, so that no image is taken for one.
const TEMPLATE: &str = "template/";
const SNAPSHOT: &str = "snapshot/";

/// Where a stage begins.
#[derive(Clone)]
pub(super) struct Begin {
    pub spec: SandboxSpec,
    pub from: Option<FromSnapshot>,
    pub key: Key,
    pub config: Config,
}

/// The configuration of settings that a snapshot or a template has.
fn over(spec: &SandboxSpec, mut config: Config) -> Config {
    config.env.extend(spec.env.clone());
    config.user = spec.user.clone().or(config.user);
    config.workdir = spec.workdir.clone().or(config.workdir);
    config
}

fn key_of(kind: &str, id: &str) -> Key {
    let mut hasher = Hasher::new("base");
    hasher.text(kind).text(id).text(super::arch());
    hasher.finish()
}

impl Control {
    pub(super) async fn begin_from(
        &self,
        principal: &Principal,
        live: &Live,
        name: &str,
        pull: bool,
    ) -> Result<Begin, ControlError> {
        if let Some(template) = name
            .strip_prefix(TEMPLATE)
            .or(TemplateId::matches(name).then_some(name))
        {
            let found = self.find_template(principal, template).await?;
            let config = match &found.config {
                Some(text) => serde_json::from_str(text).map_err(|error| {
                    ControlError::internal("cannot read the template's configuration")
                        .because(error)
                })?,
                None => Config::default(),
            };
            let base = self.template_base(principal, found.id.as_str()).await?;
            return self
                .begin_from_snapshot(principal, &found.snapshot, base.spec, config)
                .await;
        }
        if let Some(snapshot) = name
            .strip_prefix(SNAPSHOT)
            .or(SnapshotId::matches(name).then_some(name))
        {
            let found = self.find_snapshot(principal, snapshot).await?;
            let source = Source::Snapshot {
                snapshot: found.id.to_string(),
                memory: false,
            };
            let spec = self.base(principal, source).await?.spec;
            return self
                .begin_from_snapshot(principal, &found.id, spec, Config::default())
                .await;
        }
        let view = self.image_for(principal, live, name, pull).await?;
        let source = Source::Image(Some(view.id.to_string()));
        let base = self.base(principal, source).await?;
        Ok(Begin {
            key: key_of("image", view.digest.as_deref().unwrap_or(view.id.as_str())),
            config: Config {
                env: view.config.env.into_iter().collect(),
                user: view.config.user,
                workdir: view.config.workdir,
                entrypoint: view.config.entrypoint,
                cmd: view.config.cmd,
                ..Config::default()
            },
            spec: base.spec,
            from: base.from,
        })
    }

    async fn begin_from_snapshot(
        &self,
        principal: &Principal,
        snapshot: &SnapshotId,
        mut spec: SandboxSpec,
        config: Config,
    ) -> Result<Begin, ControlError> {
        // Variables of the image below it are its too.
        let images = self.list_images(principal).await?;
        let row = self.find_snapshot(principal, snapshot.as_str()).await?;
        let below = images
            .into_iter()
            .find(|view| row.facts.image.as_ref() == Some(&view.id));
        let mut whole = Config::default();
        if let Some(view) = below {
            whole.env.extend(view.config.env);
            whole.user = view.config.user;
            whole.workdir = view.config.workdir;
        }
        let user = config.user.clone().or(whole.user.clone());
        let workdir = config.workdir.clone().or(whole.workdir.clone());
        whole.env.extend(config.env.clone());
        let whole = over(
            &spec,
            Config {
                env: whole.env,
                user,
                workdir,
                ..config
            },
        );
        spec.env.clear();
        spec.user = None;
        spec.workdir = None;
        Ok(Begin {
            key: key_of("snapshot", snapshot.as_str()),
            config: whole,
            spec,
            from: Some(FromSnapshot {
                snapshot: snapshot.clone(),
                memory: false,
            }),
        })
    }

    /// The image, fetched if it is not here or if `pull` asks for it.
    async fn image_for(
        &self,
        principal: &Principal,
        live: &Live,
        name: &str,
        pull: bool,
    ) -> Result<ImageView, ControlError> {
        let source = match name {
            DEFAULT_IMAGE => ImageSource::Debian,
            INTERPRETER_IMAGE => ImageSource::CodeInterpreter,
            SCRATCH_IMAGE => ImageSource::Scratch,
            reference => ImageSource::Registry {
                reference: reference.to_owned(),
                username: None,
                password: None,
            },
        };
        let from_registry = matches!(source, ImageSource::Registry { .. });
        let found = self.get_image(principal, name).await;
        match found {
            Ok(view) if !(pull && from_registry) => return Ok(view),
            Err(error) if error.code != ErrorCode::NotFound => return Err(error),
            _ => {}
        }
        live.log.note(format!("fetching the image {name}"));
        let mut job = self.add_image(principal, source).await?;
        while job.state == JobState::Running {
            or_cancelled(live, tokio::time::sleep(JOB_POLL)).await?;
            job = self.image_job(principal, &job.id).await?;
        }
        match (job.image, job.error) {
            (Some(image), None) => Ok(image),
            (_, Some(error)) => Err(ControlError::new(
                error.code(),
                format!("cannot fetch the image {name}: {error}"),
            )
            .hint("pull images of private registries with `cove image pull` first")),
            (None, None) => Err(ControlError::internal(
                "an image job ended without an image",
            )),
        }
    }
}
