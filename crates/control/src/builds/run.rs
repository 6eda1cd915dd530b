//! Runs a build: stage after stage, step after step, each from the cache or in a sandbox.
//!
//! A `RUN` ends with its sandbox: what a later step sees is what the snapshot has, as it will be when the step comes
//! from the cache. Steps that only write files share one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BytesMut};
use cove_model::{IdlePolicy, NetworkPolicy, SandboxId, SandboxSpec, SnapshotId, TemplateId};
use cove_protocol::client::FollowEvent;
use cove_protocol::identity::owner;
use cove_protocol::message::{Channel, MakeDir, WriteFile};
use cove_runner_api::FromSnapshot;
use cove_template::copy::{self, Budget, Files, Item, Kind, Rules, Tree};
use cove_template::key::{Hasher, Key};
use cove_template::{Action, CopySource, Evaluated, Instruction, Origin, Step};

use super::context::{Content, Context};
use super::copying::{self, Payload};
use super::log::{BuildEvent, StepState};
use super::sources::Begin;
use super::{Live, Plan, cancelled, is_cancelled, sandbox_names};
use crate::error::ControlError;
use crate::following::Following;
use crate::guards::Guard;
use crate::guest::{CommandLine, CommandRequest, GuestAccess, GuestAction};
use crate::principal::Principal;
use crate::templates::CreateTemplate;
use crate::{Control, CreateSandbox};

/// Lines of a failed command's output that the error repeats.
const TAIL_LINES: usize = 20;
/// Longer than any build: what is still there then was left behind.
const SANDBOX_LIFE_S: u64 = cove_limits::BUILD_TIME_MAX_S + 600;
/// On a tmpfs, so that no snapshot has it.
const SCRIPT: &str = "/dev/shm/cove-build-script";
const ROOT: &str = "0";

/// What `work` comes to, unless the build is cancelled before.
pub(super) async fn or_cancelled<T>(
    live: &Live,
    work: impl Future<Output = T>,
) -> Result<T, ControlError> {
    tokio::select! {
        done = work => Ok(done),
        () = live.cancel.cancelled() => Err(cancelled()),
    }
}

/// A state that sandboxes can begin from.
#[derive(Clone)]
struct At {
    key: Key,
    spec: SandboxSpec,
    from: Option<FromSnapshot>,
}

struct Stage {
    at: At,
    evaluated: Evaluated,
}

/// A sandbox, and the state that it is in.
struct Machine {
    id: SandboxId,
    key: Key,
}

struct Build<'a> {
    control: &'a Control,
    principal: &'a Principal,
    live: &'a Live,
    plan: Plan,
    archive: Arc<std::fs::File>,
    files: Arc<Files<Content>>,
    stages: HashMap<usize, Stage>,
    /// Images, templates and snapshots by the names that the file has for them: each is looked up once.
    named: HashMap<String, Begin>,
    work: Option<Machine>,
    source: Option<Machine>,
    number: u64,
    total: u64,
    used: Vec<Key>,
    /// Nobody collects these snapshots until the build is over.
    held: Vec<Guard>,
}

fn at_step(step: &Step, error: ControlError) -> ControlError {
    if is_cancelled(&error) {
        return error;
    }
    ControlError {
        message: format!("line {}: {}: {}", step.line, step.text, error.message),
        ..error
    }
}

impl Control {
    pub(super) async fn run_build(
        &self,
        principal: &Principal,
        live: &Live,
        plan: Plan,
        context: Context,
    ) -> Result<TemplateId, ControlError> {
        self.keep_build(live).await?;
        let archive = Arc::clone(&context.file);
        let ignore = plan.ignore.clone();
        let stop = live.cancel.clone();
        // Waited for even when the build is cancelled: it ends soon, and nothing goes on behind the build.
        let indexed = tokio::task::spawn_blocking(move || context.index(&ignore, &stop)).await;
        if live.cancel.is_cancelled() {
            return Err(cancelled());
        }
        let files = indexed
            .map_err(|error| ControlError::internal("cannot read the context").because(error))?
            .map_err(|problem| ControlError::invalid(format!("the context: {problem}")))?;
        let stages = plan.stages.iter().map(|stage| &plan.file.stages[*stage]);
        let instructions = stages.flat_map(|stage| &stage.instructions);
        let changing = instructions.filter(|placed| {
            matches!(
                placed.instruction,
                Instruction::Run { .. } | Instruction::Copy { .. } | Instruction::Workdir(_)
            )
        });
        let total = changing.count() as u64;
        let mut build = Build {
            control: self,
            principal,
            live,
            plan,
            archive,
            files: Arc::new(files),
            stages: HashMap::new(),
            named: HashMap::new(),
            work: None,
            source: None,
            number: 0,
            total,
            used: Vec::new(),
            held: Vec::new(),
        };
        build.run().await
    }

    async fn keep_build(&self, live: &Live) -> Result<(), ControlError> {
        let record = live.record.lock().clone();
        Ok(self
            .store()
            .put_build(&record, cove_limits::BUILDS_KEPT)
            .await?)
    }
}

impl Build<'_> {
    async fn run(&mut self) -> Result<TemplateId, ControlError> {
        for stage in self.plan.stages.clone() {
            let done = self.stage(stage).await?;
            self.stages.insert(stage, done);
        }
        let last = self
            .plan
            .stages
            .last()
            .and_then(|last| self.stages.remove(last));
        let Some(Stage { at, evaluated }) = last else {
            return Err(ControlError::internal("a build without a stage"));
        };
        for name in self.plan.variables.unused() {
            self.live
                .log
                .note(format!("warning: no ARG uses the build argument {name}"));
        }
        let mut snapshot = self.snapshot_of(&at).await?;
        let config = evaluated.config;
        let over = Arc::clone(&self.plan.request.over);
        let settings = {
            let config = config.clone();
            move |mut spec: SandboxSpec| {
                spec.env = config.env.clone();
                spec.user.clone_from(&config.user);
                spec.workdir.clone_from(&config.workdir);
                over(spec)
            }
        };
        let memory = self.plan.request.start.is_some();
        if let Some(start) = self.plan.request.start.clone() {
            self.drop_machines().await?;
            let spec = settings(at.spec.clone())?;
            let at = At {
                spec,
                from: Some(FromSnapshot {
                    snapshot,
                    memory: false,
                }),
                ..at
            };
            let name = sandbox_names(&self.live.id)[0].clone();
            let id = self
                .create(&at, name, self.plan.request.network.clone(), true)
                .await?;
            let access = self.guest(&id, GuestAction::ProcessStart).await?;
            let check_max = self.plan.check_max;
            super::start::start(self.live, &access, &start, &config, check_max).await?;
            drop(access);
            let taken = self.control.take_step(self.principal, &id, true).await?;
            self.held.push(self.control.0.guards.hold(&taken.id).await?);
            snapshot = taken.id;
        }
        let request = CreateTemplate {
            name: self.plan.request.name.clone(),
            snapshot: snapshot.to_string(),
            memory,
            tags: self.plan.request.tags.clone(),
            idempotency_key: None,
            config: Some(config),
        };
        let made = self
            .control
            .make_template(self.principal, request, settings)
            .await?;
        let now = self.control.now();
        let store = self.control.store();
        store.touch_steps(&self.live.org, &self.used, now).await?;
        let made = made.template;
        self.live
            .log
            .note(format!("made the template {}:{}", made.name, made.version));
        Ok(made.id)
    }

    async fn begin(&mut self, name: &str) -> Result<Begin, ControlError> {
        if let Some(known) = self.named.get(name) {
            return Ok(known.clone());
        }
        let pull = self.plan.request.pull;
        let begin = self
            .control
            .begin_from(self.principal, self.live, name, pull)
            .await?;
        if let Some(from) = &begin.from {
            self.held
                .push(self.control.0.guards.hold(&from.snapshot).await?);
        }
        self.named.insert(name.to_owned(), begin.clone());
        Ok(begin)
    }

    async fn stage(&mut self, number: usize) -> Result<Stage, ControlError> {
        let origin = self
            .plan
            .file
            .base_of(number, &self.plan.variables, super::arch())?;
        let (line, text) = {
            let stage = &self.plan.file.stages[number];
            (stage.line, stage.text.clone())
        };
        self.live.log.note(text.clone());
        let (mut at, base) = match origin {
            Origin::Stage(other) => {
                let done = self.stages.get(&other);
                let done = done
                    .ok_or_else(|| ControlError::internal("a stage is used before it is built"))?;
                let base = Evaluated {
                    steps: Vec::new(),
                    ..done.evaluated.clone()
                };
                (done.at.clone(), base)
            }
            origin => {
                let name = match origin {
                    Origin::Named(name) => name,
                    _ => cove_model::spec::SCRATCH_IMAGE.to_owned(),
                };
                let begun = self.begin(&name).await;
                let begin = begun.map_err(|error| ControlError {
                    message: format!("line {line}: {text}: {}", error.message),
                    ..error
                })?;
                let base = Evaluated {
                    config: begin.config,
                    ..Evaluated::default()
                };
                let at = At {
                    key: begin.key,
                    spec: begin.spec,
                    from: begin.from,
                };
                (at, base)
            }
        };
        let evaluated = self
            .plan
            .file
            .evaluate(number, base, &self.plan.variables)?;
        for step in &evaluated.steps {
            self.step(&mut at, step).await?;
        }
        Ok(Stage { at, evaluated })
    }

    fn tell(&self, step: &Step, state: StepState, since: Instant) {
        self.live.log.add(BuildEvent::Step {
            number: self.number,
            total: self.total.max(self.number),
            line: step.line,
            text: step.text.clone(),
            state,
            ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }

    async fn step(&mut self, at: &mut At, step: &Step) -> Result<(), ControlError> {
        if self.live.cancel.is_cancelled() {
            return Err(cancelled());
        }
        let begun = Instant::now();
        self.number += 1;
        {
            let mut record = self.live.record.lock();
            record.steps = self.number;
        }
        let sources = self
            .sources(step)
            .await
            .map_err(|error| at_step(step, error))?;
        let key = step.key(&at.key, sources.hash.as_deref());
        let store = self.control.store();
        let fresh = self.plan.request.no_cache
            || self.plan.fresh_from.is_some_and(|line| step.line >= line);
        if !fresh && let Some(snapshot) = store.cached_step(&self.live.org, &key).await? {
            self.held.push(self.control.0.guards.hold(&snapshot).await?);
            // It may have gone just before it was held.
            if store.cached_step(&self.live.org, &key).await?.as_ref() == Some(&snapshot) {
                self.reach(at, key, snapshot);
                self.live.record.lock().cached += 1;
                self.tell(step, StepState::Cached, begun);
                return Ok(());
            }
        }
        self.tell(step, StepState::Started, begun);
        let done = self.carry_out(at, step, sources).await;
        if let Err(error) = done {
            self.tell(step, StepState::Failed, begun);
            return Err(at_step(step, error));
        }
        let taken = self
            .keep(&key)
            .await
            .map_err(|error| at_step(step, error))?;
        self.reach(at, key, taken);
        if matches!(step.action, Action::Run { .. }) {
            self.drop_work().await?;
        }
        self.tell(step, StepState::Done, begun);
        Ok(())
    }

    fn reach(&mut self, at: &mut At, key: Key, snapshot: SnapshotId) {
        self.used.push(key.clone());
        at.key = key;
        at.from = Some(FromSnapshot {
            snapshot,
            memory: false,
        });
    }

    /// Takes a snapshot of the sandbox that steps change, and keeps it for later builds.
    async fn keep(&mut self, key: &Key) -> Result<SnapshotId, ControlError> {
        let Some(work) = &mut self.work else {
            return Err(ControlError::internal("a step without a sandbox"));
        };
        let taken = self
            .control
            .take_step(self.principal, &work.id, false)
            .await?;
        work.key.clone_from(key);
        self.held.push(self.control.0.guards.hold(&taken.id).await?);
        let most = cove_limits::BUILD_CACHE_STEPS_MAX;
        let now = self.control.now();
        let store = self.control.store();
        store
            .keep_step(&self.live.org, key, &taken.id, now, most)
            .await?;
        Ok(taken.id)
    }

    /// The snapshot of a state. A stage without a step has none yet.
    async fn snapshot_of(&mut self, at: &At) -> Result<SnapshotId, ControlError> {
        if let Some(from) = &at.from {
            return Ok(from.snapshot.clone());
        }
        let store = self.control.store();
        if let Some(snapshot) = store.cached_step(&self.live.org, &at.key).await? {
            self.held.push(self.control.0.guards.hold(&snapshot).await?);
            if store.cached_step(&self.live.org, &at.key).await?.as_ref() == Some(&snapshot) {
                return Ok(snapshot);
            }
        }
        self.work_at(at, false, GuestAction::FileRead).await?;
        self.keep(&at.key.clone()).await
    }

    async fn create(
        &self,
        at: &At,
        name: String,
        network: NetworkPolicy,
        as_template: bool,
    ) -> Result<SandboxId, ControlError> {
        let asked = (self.plan.request.over)(at.spec.clone())?;
        let plain = SandboxSpec::default();
        let mut spec = SandboxSpec {
            name: Some(name),
            resources: asked.resources,
            network,
            lifecycle: IdlePolicy {
                max_lifetime_s: Some(SANDBOX_LIFE_S),
                ..IdlePolicy::default()
            },
            labels: plain.labels,
            identity: None,
            secrets: Vec::new(),
            volumes: Vec::new(),
            ..at.spec.clone()
        };
        if !as_template {
            spec.env = plain.env;
            spec.user = None;
            spec.workdir = None;
        }
        let request = CreateSandbox {
            spec,
            from: at.from.clone(),
            ..CreateSandbox::default()
        };
        let created = self.control.create_sandbox(self.principal, request).await?;
        Ok(created.sandbox.id)
    }

    async fn guest(
        &self,
        id: &SandboxId,
        action: GuestAction,
    ) -> Result<GuestAccess, ControlError> {
        self.control
            .guest(self.principal, id.as_str(), action)
            .await
    }

    async fn drop_work(&mut self) -> Result<(), ControlError> {
        match self.work.take() {
            Some(machine) => {
                let id = machine.id.as_str();
                self.control.delete_sandbox(self.principal, id).await
            }
            None => Ok(()),
        }
    }

    async fn drop_machines(&mut self) -> Result<(), ControlError> {
        self.drop_work().await?;
        match self.source.take() {
            Some(machine) => {
                let id = machine.id.as_str();
                self.control.delete_sandbox(self.principal, id).await
            }
            None => Ok(()),
        }
    }

    /// The sandbox that steps change, in this state.
    async fn work_at(
        &mut self,
        at: &At,
        no_network: bool,
        action: GuestAction,
    ) -> Result<GuestAccess, ControlError> {
        let fits = self.work.as_ref().is_some_and(|work| work.key == at.key);
        if !fits || no_network {
            self.drop_work().await?;
            let network = match no_network {
                true => NetworkPolicy::default(),
                false => self.plan.request.network.clone(),
            };
            let [name, _] = sandbox_names(&self.live.id);
            let id = self.create(at, name, network, false).await?;
            self.work = Some(Machine {
                id,
                key: at.key.clone(),
            });
        }
        match &self.work {
            Some(work) => self.guest(&work.id, action).await,
            None => Err(ControlError::internal("a build without a sandbox")),
        }
    }

    /// A sandbox to copy from, in this state. Nothing runs in it.
    async fn source_at(&mut self, at: &At) -> Result<GuestAccess, ControlError> {
        let fits = self
            .source
            .as_ref()
            .is_some_and(|source| source.key == at.key);
        if !fits {
            if let Some(old) = self.source.take() {
                let id = old.id.as_str();
                self.control.delete_sandbox(self.principal, id).await?;
            }
            let [_, name] = sandbox_names(&self.live.id);
            let id = self
                .create(at, name, NetworkPolicy::default(), false)
                .await?;
            self.source = Some(Machine {
                id,
                key: at.key.clone(),
            });
        }
        match &self.source {
            Some(source) => self.guest(&source.id, GuestAction::FileRead).await,
            None => Err(ControlError::internal("a build without a source")),
        }
    }

    /// What a `COPY` takes, as far as it is known without a sandbox.
    async fn sources(&mut self, step: &Step) -> Result<Sources, ControlError> {
        let Action::Copy {
            from,
            sources,
            exclude,
            ..
        } = &step.action
        else {
            return Ok(Sources::default());
        };
        if let Some(origin) = from {
            let at = match origin {
                Origin::Stage(number) => {
                    let done = self.stages.get(number);
                    let done = done.ok_or_else(|| {
                        ControlError::internal("a stage is used before it is built")
                    })?;
                    done.at.clone()
                }
                Origin::Named(name) => {
                    let begin = self.begin(name).await?;
                    At {
                        key: begin.key,
                        spec: begin.spec,
                        from: begin.from,
                    }
                }
                Origin::Scratch => {
                    return Err(ControlError::invalid(
                        "the image scratch has no files to copy",
                    ));
                }
            };
            return Ok(Sources {
                hash: Some(at.key.clone()),
                trees: Vec::new(),
                from: Some(at),
            });
        }
        let (files, sources) = (Arc::clone(&self.files), sources.clone());
        let (exclude, cancel) = (exclude.clone(), self.live.cancel.clone());
        // A thread of its own: there may be many files, and patterns to compare each with.
        let found = tokio::task::spawn_blocking(move || {
            let stop = || cancel.is_cancelled();
            in_context(&files, &sources, &exclude, &stop)
        });
        let found = found.await;
        if self.live.cancel.is_cancelled() {
            return Err(cancelled());
        }
        found.map_err(|error| ControlError::internal("cannot read the context").because(error))?
    }

    async fn carry_out(
        &mut self,
        at: &At,
        step: &Step,
        sources: Sources,
    ) -> Result<(), ControlError> {
        match &step.action {
            Action::Workdir(path) => {
                let access = self.work_at(at, false, GuestAction::FileMkdir).await?;
                let request = MakeDir {
                    path: path.clone(),
                    parents: true,
                    ..MakeDir::default()
                };
                Ok(access.guest().mkdir(request).await?)
            }
            Action::Run { .. } => self.command(at, &step.action).await,
            Action::Copy { .. } => self.copy(at, &step.action, sources).await,
        }
    }

    async fn command(&mut self, at: &At, action: &Action) -> Result<(), ControlError> {
        let Action::Run {
            argv,
            script,
            env,
            proxies,
            user,
            workdir,
            no_network,
        } = action
        else {
            return Ok(());
        };
        let access = self.work_at(at, *no_network, GuestAction::Exec).await?;
        let mut argv = argv.clone();
        if let Some(script) = script {
            let request = WriteFile {
                path: SCRIPT.into(),
                mode: Some(0o755),
                ..WriteFile::default()
            };
            let mut upload = access.guest().write_file(request).await?;
            upload.write(script.clone().into()).await?;
            upload.finish().await?;
            argv.push(SCRIPT.to_owned());
        }
        let mut request = CommandRequest::new(owner::CONTROL, CommandLine::Argv(argv));
        request.cwd = Some(workdir.clone());
        request.env.extend(proxies.clone());
        request.env.extend(env.clone());
        request.user = Some(user.clone().unwrap_or_else(|| ROOT.to_owned()));
        let mut start = access.command(request)?;
        // As images may name one that they do not have.
        start.make_cwd = true;
        let mut following = Following::start(access, start).await?;
        let mut text = [Text::default(), Text::default()];
        let exit = loop {
            let next = or_cancelled(self.live, following.next()).await??;
            match next {
                Some(FollowEvent::Started(_) | FollowEvent::Refused(_)) => {}
                Some(FollowEvent::Output {
                    channel,
                    data,
                    dropped,
                    ..
                }) => {
                    if dropped > 0 {
                        self.live
                            .log
                            .note(format!("{dropped} bytes of output were lost"));
                    }
                    let stderr = channel == Channel::Stderr;
                    let text = text[usize::from(stderr)].take(&data);
                    if !text.is_empty() {
                        self.live.log.add(BuildEvent::Output { stderr, text });
                    }
                }
                Some(FollowEvent::Exit(exit)) => break exit,
                None => {
                    return Err(ControlError::internal(
                        "a command ended without an exit code",
                    ));
                }
            }
        };
        if exit.code == 0 {
            return Ok(());
        }
        let why = match exit.oom {
            true => "out of memory; give the build more with `--memory`".to_owned(),
            false => format!("exit code {}", exit.code),
        };
        let tail = self.live.log.tail(TAIL_LINES);
        Err(ControlError::invalid(match tail.is_empty() {
            true => why,
            false => format!("{why}\n{tail}"),
        }))
    }

    async fn copy(&mut self, at: &At, action: &Action, given: Sources) -> Result<(), ControlError> {
        let Action::Copy {
            add,
            sources,
            dest,
            chown,
            chmod,
            exclude,
            ..
        } = action
        else {
            return Ok(());
        };
        let access = self.work_at(at, false, GuestAction::ArchiveWrite).await?;
        let chown = match chown {
            Some(text) => Some(copying::owner(&access, text).await?),
            None => None,
        };
        let rules = Rules {
            chown,
            chmod: *chmod,
        };
        if let Some(from) = given.from {
            let source = self.source_at(&from).await?;
            let mut all = Vec::new();
            for path in sources {
                if let CopySource::Path(path) = path {
                    let found = or_cancelled(self.live, copying::find(&source, path)).await??;
                    if found.is_empty() {
                        return Err(ControlError::invalid(format!("no file matches {path}")));
                    }
                    all.extend(found);
                    if all.len() > cove_limits::BUILD_CONTEXT_ENTRIES_MAX {
                        return Err(ControlError::invalid("the sources have too many files"));
                    }
                }
            }
            let several = all.len() > 1 && all.iter().any(|found| !found.is_directory());
            for found in &all {
                let (is_directory, there) = copying::look(&access, dest).await?;
                if several && !is_directory && !dest.ends_with('/') {
                    return Err(ControlError::invalid(
                        "several sources match, and the destination is not a directory: end it with /",
                    ));
                }
                let to = (dest.as_str(), is_directory);
                let moved = copying::moved(
                    &found.name,
                    found.is_directory(),
                    to,
                    rules,
                    exclude,
                    &there,
                )?;
                copying::send_from(self.live, &source, &access, found, moved).await?;
            }
            return Ok(());
        }
        let (is_directory, there) = copying::look(&access, dest).await?;
        let mut trees = given.trees;
        if *add {
            trees = self
                .unpack(at, &access, trees, (dest, is_directory), rules)
                .await?;
            if trees.is_empty() {
                return Ok(());
            }
        }
        let dest = dest.clone();
        let placed = tokio::task::spawn_blocking(move || {
            copy::place(trees, &dest, is_directory, rules, |path| {
                there.contains(path)
            })
        });
        let placed = placed
            .await
            .map_err(|error| ControlError::internal("cannot copy files").because(error))?;
        let items = placed.map_err(ControlError::invalid)?;
        let archive = Arc::clone(&self.archive);
        copying::send_items(self.live, &access, archive, items).await
    }

    /// Unpacks the sources of an `ADD` that are archives; answers with the others.
    async fn unpack(
        &self,
        at: &At,
        access: &GuestAccess,
        trees: Vec<Tree<Payload>>,
        dest: (&str, bool),
        rules: Rules,
    ) -> Result<Vec<Tree<Payload>>, ControlError> {
        let mut others = Vec::new();
        let disk_mb = (self.plan.request.over)(at.spec.clone())?.resources.disk_mb;
        let most = disk_mb.saturating_mul(1024 * 1024);
        for tree in trees {
            if self.live.cancel.is_cancelled() {
                return Err(cancelled());
            }
            let content = match tree.items.as_slice() {
                [
                    Item {
                        path,
                        kind: Kind::File(Payload::Context(content)),
                        ..
                    },
                ] if path.is_empty() => content.clone(),
                _ => {
                    others.push(tree);
                    continue;
                }
            };
            let archive = Arc::clone(&self.archive);
            let looked = {
                let content = content.clone();
                tokio::task::spawn_blocking(move || copying::packed(&archive, &content)).await
            };
            let packed = looked
                .map_err(|error| ControlError::internal("cannot read the context").because(error))?
                .map_err(ControlError::invalid)?;
            let Some(packed) = packed else {
                others.push(tree);
                continue;
            };
            // It is a directory's contents, whatever the destination looks like.
            let (_, there) = copying::look(access, dest.0).await?;
            let moved = copying::moved(&tree.name, true, dest, rules, &[], &there)?;
            let archive = Arc::clone(&self.archive);
            copying::send_unpacked(self.live, access, archive, content, packed, moved, most)
                .await?;
        }
        Ok(others)
    }
}

/// Blocks: what a `COPY` takes of the context.
fn in_context(
    files: &Files<Content>,
    sources: &[CopySource],
    exclude: &[String],
    stop: &dyn Fn() -> bool,
) -> Result<Sources, ControlError> {
    let mut budget = Budget::new(stop);
    let mut trees = Vec::new();
    for source in sources {
        match source {
            CopySource::Document(document) => {
                let content = Payload::Document(document.content.clone());
                trees.push(copy::file(&document.name, content, 0o644));
            }
            CopySource::Path(path) => {
                let found = files.sources(path, exclude, &mut budget);
                let found = found.map_err(|problem| {
                    ControlError::invalid(format!("{problem} in the context"))
                        .hint("paths are relative to the context; .dockerignore may leave it out")
                })?;
                if found.is_empty() {
                    return Err(ControlError::invalid(format!(
                        "no file of the context matches {path}"
                    )));
                }
                trees.extend(found.into_iter().map(from_context));
            }
        }
    }
    let mut hasher = Hasher::new("files");
    hasher.number(trees.len() as u64);
    for tree in &trees {
        hasher
            .text(&tree.name)
            .number(u64::from(tree.is_directory()));
        hasher.number(tree.items.len() as u64);
        for item in &tree.items {
            hasher.text(&item.path).number(item.mode.into());
            match &item.kind {
                Kind::Directory => hasher.text("directory"),
                Kind::Symlink(target) => hasher.text("link").text(target),
                Kind::File(Payload::Document(text)) => hasher.text("text").text(text),
                Kind::File(Payload::Context(content)) => hasher
                    .text("file")
                    .number(content.size)
                    .bytes(&content.hash),
            };
        }
    }
    Ok(Sources {
        hash: Some(hasher.finish()),
        trees,
        from: None,
    })
}

fn from_context(tree: Tree<Content>) -> Tree<Payload> {
    let items = tree.items.into_iter().map(|item| Item {
        path: item.path,
        kind: match item.kind {
            Kind::Directory => Kind::Directory,
            Kind::Symlink(target) => Kind::Symlink(target),
            Kind::File(content) => Kind::File(Payload::Context(content)),
        },
        mode: item.mode,
        uid: item.uid,
        gid: item.gid,
        mtime: item.mtime,
    });
    Tree {
        name: tree.name,
        items: items.collect(),
    }
}

#[derive(Default)]
struct Sources {
    hash: Option<String>,
    trees: Vec<Tree<Payload>>,
    /// They are in another sandbox.
    from: Option<At>,
}

/// Text from bytes that may end inside a character.
#[derive(Default)]
struct Text(BytesMut);

impl Text {
    fn take(&mut self, data: &[u8]) -> String {
        self.0.extend_from_slice(data);
        let end = match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.0.len(),
        };
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0.advance(end);
        text
    }
}
