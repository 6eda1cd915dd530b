//! Images and the jobs that add them. A job outlives the call that started it; two calls of an
//! organisation for the same image with the same credentials share one job. Another organisation or
//! other credentials are another job: whoever asks gets what the registry gives to them, not to somebody
//! before them. No organisation can take all jobs there may be at once.

mod local;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_image::{Image, ImageError, ImageStore, Owner, Progress, Recipe, RegistryAuth, Source};
use cove_model::SnapshotId;
use cove_runner_api::{
    ImageConfig, ImageJob, ImageOwner, ImageSource, ImageView, JobState, RunnerError,
};

use futures_util::future::BoxFuture;

use crate::error::{chain, from_pool, from_write, internal, lacks_room};

/// Finished jobs kept so that a slow poller still learns the end.
const FINISHED_MAX: usize = 100;
/// Jobs under way at once.
const RUNNING_MAX: usize = 64;
/// Of one organisation besides the operator's.
const TENANT_RUNNING_MAX: usize = 8;
/// Of all organisations besides the operator's, who always finds room. One of them has at most half of what the
/// others left, so that the next one finds some.
const TENANTS_RUNNING_MAX: usize = 56;
/// Warnings kept of one job; an image can cause millions.
const WARNINGS_MAX: usize = 20;

pub struct Images {
    pub store: ImageStore,
    /// Part of every job's id, so that a job of an earlier process is never taken for one of ours.
    life: String,
    /// What may be imported lies beneath one of these.
    import_dirs: Vec<PathBuf>,
    jobs: Arc<Mutex<Jobs>>,
}

/// What a job was asked for: two that ask for the same share it.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Source(ImageSource),
    /// An image of this snapshot under this name.
    Snapshot(SnapshotId, String),
}

/// Takes the progress of a job.
pub type Tell = Box<dyn Fn(Progress) + Send + Sync>;

/// A job under way: what was asked for, credentials included, and by whom.
struct Running {
    asked: Asked,
    owner: ImageOwner,
    number: u64,
}

#[derive(Default)]
struct Jobs {
    next: u64,
    by_id: BTreeMap<u64, ImageJob>,
    running: Vec<Running>,
    /// Bytes done and in all of each layer of a running job.
    layers: BTreeMap<u64, BTreeMap<String, (u64, u64)>>,
}

impl Images {
    pub fn new(store: ImageStore, import_dirs: Vec<PathBuf>) -> Self {
        Self {
            store,
            import_dirs,
            life: format!("{:016x}", rand::random::<u64>()),
            jobs: Arc::default(),
        }
    }

    pub fn add(&self, source: ImageSource, owner: ImageOwner) -> Result<ImageJob, RunnerError> {
        let name = match &source {
            ImageSource::Registry { reference, .. } => reference.clone(),
            ImageSource::Debian => cove_model::spec::DEFAULT_IMAGE.to_owned(),
            ImageSource::CodeInterpreter => cove_model::spec::INTERPRETER_IMAGE.to_owned(),
            ImageSource::Scratch => cove_model::spec::SCRATCH_IMAGE.to_owned(),
            ImageSource::Local { name, .. } => name.clone(),
        };
        let (store, dirs) = (self.store.clone(), self.import_dirs.clone());
        let asked = Asked::Source(source.clone());
        let whose = match &owner {
            ImageOwner::Operator => Owner::Operator,
            ImageOwner::Tenant { org, room_bytes } => Owner::Tenant {
                org: org.clone(),
                room_bytes: *room_bytes,
            },
        };
        self.begin(&name, asked, owner, move |progress| {
            Box::pin(async move { run(&store, &whose, &dirs, source, progress).await })
        })
    }

    /// Starts a job unless the same is under way.
    pub fn begin(
        &self,
        name: &str,
        asked: Asked,
        owner: ImageOwner,
        work: impl FnOnce(Tell) -> BoxFuture<'static, Result<Image, RunnerError>>,
    ) -> Result<ImageJob, RunnerError> {
        let mut jobs = self.lock();
        let same = jobs
            .running
            .iter()
            .find(|job| job.asked == asked && (is_everybodys(&asked) || same(&job.owner, &owner)));
        if let Some(job) = same.and_then(|job| jobs.by_id.get(&job.number)) {
            return Ok(job.clone());
        }
        jobs.require_room(&owner)?;
        jobs.next += 1;
        let number = jobs.next;
        let job = ImageJob {
            id: self.id(number),
            name: name.to_owned(),
            state: JobState::Running,
            stage: "starting".into(),
            done_bytes: 0,
            total_bytes: None,
            warnings: Vec::new(),
            image: None,
            error: None,
        };
        jobs.by_id.insert(number, job.clone());
        jobs.running.push(Running {
            asked,
            owner,
            number,
        });
        while jobs.by_id.len() > FINISHED_MAX {
            let Some(oldest) = jobs
                .by_id
                .iter()
                .find(|(_, job)| job.state != JobState::Running)
                .map(|(id, _)| *id)
            else {
                break;
            };
            jobs.by_id.remove(&oldest);
        }
        drop(jobs);
        let jobs = Arc::clone(&self.jobs);
        let telling = Arc::clone(&self.jobs);
        let work = work(Box::new(move |progress| {
            on_progress(&telling, number, progress);
        }));
        tokio::spawn(async move {
            let result = work.await;
            finish(&jobs, number, result);
        });
        Ok(job)
    }

    pub fn job(&self, id: &str) -> Result<ImageJob, RunnerError> {
        id.strip_prefix(&format!("job_{}_", self.life))
            .and_then(|number| number.parse::<u64>().ok())
            .and_then(|number| self.lock().by_id.get(&number).cloned())
            .ok_or_else(|| RunnerError::NotFound {
                what: "image job".into(),
                id: id.to_owned(),
            })
    }

    fn id(&self, number: u64) -> String {
        format!("job_{}_{number}", self.life)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Jobs> {
        self.jobs.lock()
    }
}

impl Jobs {
    /// Refuses a job of somebody who has their share under way.
    fn require_room(&self, owner: &ImageOwner) -> Result<(), RunnerError> {
        let full = |message: String| {
            Err(RunnerError::NoCapacity {
                resource: "room for image jobs".into(),
                message,
            })
        };
        if *owner != ImageOwner::Operator {
            let tenants = self.running.iter().map(|job| &job.owner);
            let tenants = tenants.filter(|other| **other != ImageOwner::Operator);
            let all = tenants.clone().count();
            let own = tenants.filter(|other| same(other, owner)).count();
            if own >= tenant_share(all - own) {
                return full(format!(
                    "{own} of your organisation's are under way; wait for one to end"
                ));
            }
            if all >= TENANTS_RUNNING_MAX {
                return full(format!("{TENANTS_RUNNING_MAX} are under way"));
            }
        }
        if self.running.len() >= RUNNING_MAX {
            return full(format!("{RUNNING_MAX} are under way"));
        }
        Ok(())
    }
}

/// What one organisation may have under way when others have so many.
fn tenant_share(others: usize) -> usize {
    let left = TENANTS_RUNNING_MAX.saturating_sub(others);
    (left / 2).clamp(1, TENANT_RUNNING_MAX)
}

/// Whether two owners are the same organisation, whatever room each had when it asked.
fn same(one: &ImageOwner, other: &ImageOwner) -> bool {
    match (one, other) {
        (ImageOwner::Operator, ImageOwner::Operator) => true,
        (ImageOwner::Tenant { org: one, .. }, ImageOwner::Tenant { org: other, .. }) => {
            one == other
        }
        _ => false,
    }
}

/// The images the host builds itself are the same for everybody, and so is the job.
fn is_everybodys(asked: &Asked) -> bool {
    matches!(
        asked,
        Asked::Source(ImageSource::Debian | ImageSource::CodeInterpreter | ImageSource::Scratch)
    )
}

/// Two blocks of zeros end a tar archive; this one begins with them.
const EMPTY_TAR: &[u8] = &[0; 1024];

async fn run(
    store: &ImageStore,
    owner: &Owner,
    import_dirs: &[PathBuf],
    source: ImageSource,
    progress: impl Fn(Progress) + Send + Sync + 'static,
) -> Result<Image, RunnerError> {
    let result = match source {
        ImageSource::Registry {
            reference,
            username,
            password,
        } => {
            let auth = match (username, password) {
                (Some(username), Some(password)) => Some(RegistryAuth { username, password }),
                (None, None) => None,
                _ => {
                    return Err(RunnerError::Invalid {
                        message: "a registry login needs both username and password".into(),
                    });
                }
            };
            store.pull_for(owner, &reference, auth, progress).await
        }
        ImageSource::Debian => store.bootstrap_debian(progress).await,
        ImageSource::CodeInterpreter => {
            store.bootstrap(&Recipe::code_interpreter(), progress).await
        }
        ImageSource::Scratch => {
            let name = cove_model::spec::SCRATCH_IMAGE;
            store.import_tar(name, EMPTY_TAR, progress).await
        }
        ImageSource::Local { name, path } => {
            if *owner != Owner::Operator {
                return Err(RunnerError::Invalid {
                    message: "only the operator imports files of the host".into(),
                });
            }
            let found = local::open(import_dirs, PathBuf::from(&path)).await?;
            match found {
                local::Found::Directory(directory) => {
                    store
                        .import_open_dir(&name, directory, PathBuf::from(&path), progress)
                        .await
                }
                local::Found::File(file) => {
                    let file = tokio::fs::File::from_std(file);
                    store.import_tar(&name, file, progress).await
                }
            }
        }
    };
    result.map_err(failure)
}

/// Who is to blame decides the kind: the host, a fault of ours, or what was asked for.
pub fn failure(error: ImageError) -> RunnerError {
    match error {
        ImageError::Pool(error) => from_pool(error),
        error @ (ImageError::BeyondQuota { .. } | ImageError::QuotaFull { .. }) => {
            RunnerError::NoCapacity {
                resource: "disk".into(),
                message: chain(&error),
            }
        }
        ImageError::File { source, .. } if lacks_room(&source) => {
            from_write("the image's files", &source)
        }
        error @ (ImageError::File { .. } | ImageError::Task(_)) => internal(chain(&error)),
        error => RunnerError::Invalid {
            message: chain(&error),
        },
    }
}

fn on_progress(jobs: &Mutex<Jobs>, number: u64, progress: Progress) {
    let mut jobs = jobs.lock();
    let Some(job) = jobs.by_id.get_mut(&number) else {
        return;
    };
    if let Progress::Warning(text) = progress {
        if job.warnings.len() < WARNINGS_MAX {
            job.warnings.push(text);
        }
        return;
    }
    match progress {
        Progress::Resolving => job.stage = "asking the registry".into(),
        Progress::Layer {
            digest,
            done_bytes,
            total_bytes,
        } => {
            let layers = jobs.layers.entry(number).or_default();
            layers.insert(digest, (done_bytes, total_bytes));
            let sum = |part: fn(&(u64, u64)) -> u64| layers.values().map(part).sum::<u64>();
            let (done, total) = (sum(|layer| layer.0), sum(|layer| layer.1));
            let Some(job) = jobs.by_id.get_mut(&number) else {
                return;
            };
            job.stage = "downloading layers".into();
            job.done_bytes = done;
            job.total_bytes = Some(total);
        }
        Progress::Unpacking {
            done_bytes,
            entries,
            ..
        } => {
            job.stage = format!("unpacking, {entries} files");
            job.done_bytes = done_bytes;
            job.total_bytes = None;
        }
        Progress::Bootstrapping { stage, percent } => job.stage = format!("{stage} ({percent} %)"),
        // The end is known by the result; what later versions add is shown by their own stage.
        _ => {}
    }
}

fn finish(jobs: &Mutex<Jobs>, number: u64, result: Result<Image, RunnerError>) {
    let mut jobs = jobs.lock();
    jobs.running.retain(|job| job.number != number);
    jobs.layers.remove(&number);
    let Some(job) = jobs.by_id.get_mut(&number) else {
        return;
    };
    match result {
        Ok(image) => {
            job.state = JobState::Done;
            job.stage = "done".into();
            job.image = Some(view(&image, 0));
        }
        Err(error) => {
            job.state = JobState::Failed;
            job.stage = "failed".into();
            job.error = Some(error);
        }
    }
}

pub fn view(image: &Image, in_use_by: u64) -> ImageView {
    ImageView {
        id: image.id.clone(),
        names: image.names.clone(),
        digest: image.digest.clone(),
        size_bytes: image.size_bytes,
        created_at: image.created,
        source: match image.source {
            Source::Registry => "registry",
            Source::Bootstrap => "bootstrap",
            Source::Import => "import",
            Source::Snapshot => "snapshot",
        }
        .into(),
        in_use_by,
        config: ImageConfig {
            env: image.config.env.clone(),
            user: image.config.user.clone(),
            workdir: image.config.workdir.clone(),
            entrypoint: image.config.entrypoint.clone(),
            cmd: image.config.cmd.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn organisations_that_pull_all_they_can_leave_room_for_the_next() {
        let mut held = 0;
        let shares: Vec<usize> = (0..9)
            .map(|_| {
                let share = tenant_share(held);
                held += share;
                share
            })
            .collect();
        assert_eq!(shares, [8, 8, 8, 8, 8, 8, 4, 2, 1]);
        assert!(held < TENANTS_RUNNING_MAX);
    }

    #[test]
    fn the_page_of_limits_has_the_numbers_of_the_code() {
        let page = include_str!("../../../docs/limits.md");
        let jobs =
            format!("| Image jobs of one host | {RUNNING_MAX} | {TENANT_RUNNING_MAX} | 1 | 503 |");
        assert!(page.contains(&jobs), "{jobs}");
        assert!(page.contains(&format!(
            "have {TENANTS_RUNNING_MAX} of the {RUNNING_MAX} together"
        )));
    }
}
