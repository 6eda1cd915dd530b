//! A stage over what it begins from: variables in their scopes, and the steps that change files.

use std::collections::{BTreeMap, BTreeSet};

use cove_limits::{ENV_BYTES_MAX, PATH_MAX};
use parking_lot::Mutex;

use crate::config::{Config, Healthcheck};
use crate::dockerfile::{Command, CopySource, Dockerfile, Instruction, Placed};
use crate::key::{Hasher, Key};
use crate::pattern::{self, clean, is_pattern};
use crate::words::{Room, expand, expand_document};
use crate::{Error, Result, parse};

/// The only platform there is: that of the host.
pub const OS: &str = "linux";

/// What a build may pass without an `ARG` for it; it is no part of any key.
const PREDEFINED: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Values from outside, and which of them were asked for.
#[derive(Debug, Default)]
pub struct Variables {
    given: BTreeMap<String, String>,
    platform: BTreeMap<&'static str, String>,
    used: Mutex<BTreeSet<String>>,
}

impl Variables {
    /// `arch` as Go spells it.
    pub fn new(given: BTreeMap<String, String>, arch: &str) -> Self {
        let mut platform = BTreeMap::new();
        for (platform_name, os, architecture) in [
            ("TARGETPLATFORM", "TARGETOS", "TARGETARCH"),
            ("BUILDPLATFORM", "BUILDOS", "BUILDARCH"),
        ] {
            platform.insert(platform_name, format!("{OS}/{arch}"));
            platform.insert(os, OS.to_owned());
            platform.insert(architecture, arch.to_owned());
        }
        Self {
            given,
            platform,
            used: Mutex::default(),
        }
    }

    fn given(&self, name: &str) -> Option<String> {
        let value = self.given.get(name).cloned()?;
        self.used.lock().insert(name.to_owned());
        Some(value)
    }

    fn proxies(&self) -> impl Iterator<Item = (String, String)> {
        PREDEFINED
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.given(name)?)))
    }

    /// Values that no `ARG` asked for.
    pub fn unused(&self) -> Vec<String> {
        let used = self.used.lock();
        let names = self.given.keys().filter(|name| !used.contains(*name));
        names.cloned().collect()
    }
}

/// What a stage, or a `COPY --from`, begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Stage(usize),
    Scratch,
    /// An image, a template or a snapshot.
    Named(String),
}

/// One change of files, with all it depends on but the files themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub line: u32,
    pub text: String,
    pub action: Action,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Run {
        argv: Vec<String>,
        /// A script that begins with `#!`: written to a file, whose path is the last argument.
        script: Option<String>,
        env: BTreeMap<String, String>,
        /// Of `env`, those that are no part of the key.
        proxies: BTreeMap<String, String>,
        user: Option<String>,
        workdir: String,
        no_network: bool,
    },
    Copy {
        add: bool,
        /// `None`: the context.
        from: Option<Origin>,
        sources: Vec<CopySource>,
        /// Absolute; a `/` at its end means a directory.
        dest: String,
        chown: Option<String>,
        chmod: Option<u32>,
        exclude: Vec<String>,
    },
    Workdir(String),
}

#[derive(Debug, Clone, Default)]
pub struct Evaluated {
    pub steps: Vec<Step>,
    pub config: Config,
    /// Those in force at the end: stages that begin from this one inherit them.
    pub args: BTreeMap<String, Option<String>>,
}

impl Step {
    /// The name of the state after this step. `contents` is a hash of the files that a `COPY` takes.
    pub fn key(&self, parent: &str, contents: Option<&str>) -> Key {
        let mut hasher = Hasher::new("step");
        hasher.text(parent).optional(contents);
        match &self.action {
            Action::Run {
                argv,
                script,
                env,
                proxies: _,
                user,
                workdir,
                no_network,
            } => {
                hasher.text("run").texts(argv).optional(script.as_deref());
                hasher.map(env).optional(user.as_deref()).text(workdir);
                hasher.number(u64::from(*no_network));
            }
            Action::Copy {
                add,
                from: _,
                sources,
                dest,
                chown,
                chmod,
                exclude,
            } => {
                hasher.text("copy").number(u64::from(*add)).text(dest);
                hasher.optional(chown.as_deref());
                hasher
                    .number(chmod.map_or(u64::MAX, u64::from))
                    .texts(exclude);
                hasher.number(sources.len() as u64);
                for source in sources {
                    match source {
                        CopySource::Path(path) => hasher.text("path").text(path),
                        CopySource::Document(document) => hasher
                            .text("document")
                            .text(&document.name)
                            .text(&document.content),
                    };
                }
            }
            Action::Workdir(path) => {
                hasher.text("workdir").text(path);
            }
        }
        hasher.finish()
    }
}

/// A path that may be relative to the working directory, as an absolute one. A `/` at its end stays.
fn absolute(workdir: &str, path: &str) -> String {
    let joined = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{workdir}/{path}"),
    };
    let cleaned = clean(&joined);
    let is_directory = path.ends_with('/') || path == "." || path.ends_with("/.") || path == "..";
    match (cleaned.is_empty(), is_directory) {
        (true, _) => "/".to_owned(),
        (false, true) => format!("/{cleaned}/"),
        (false, false) => format!("/{cleaned}"),
    }
}

impl Dockerfile {
    /// The values of the `ARG`s before the first `FROM`.
    fn global(&self, variables: &Variables) -> Result<BTreeMap<String, Option<String>>> {
        let mut values: BTreeMap<String, Option<String>> = BTreeMap::new();
        let room = Room::default();
        for placed in &self.args {
            let Instruction::Arg(args) = &placed.instruction else {
                continue;
            };
            for (name, default) in args {
                let lookup = |name: &str| global_value(&values, variables, name);
                let default = match default {
                    Some(text) => Some(
                        expand(text, self.escape, &lookup, &room)
                            .map_err(|problem| Error::new(placed.line, problem))?,
                    ),
                    None => None,
                };
                let value = variables.given(name).or(default);
                values.insert(name.clone(), value);
            }
            fits(placed, args_bytes(&values))?;
        }
        Ok(values)
    }

    /// What a stage begins from.
    pub fn base_of(&self, stage: usize, variables: &Variables, arch: &str) -> Result<Origin> {
        self.base_in(stage, &self.global(variables)?, variables, arch)
    }

    fn base_in(
        &self,
        stage: usize,
        globals: &BTreeMap<String, Option<String>>,
        variables: &Variables,
        arch: &str,
    ) -> Result<Origin> {
        let room = Room::default();
        let at = &self.stages[stage];
        let lookup = |name: &str| global_value(globals, variables, name);
        let wrong = |problem: String| Error::new(at.line, problem);
        if let Some(platform) = &at.platform {
            let platform = expand(platform, self.escape, &lookup, &room).map_err(wrong)?;
            if platform != format!("{OS}/{arch}") {
                return Err(wrong(format!(
                    "--platform={platform} is not supported: this host is {OS}/{arch}"
                )));
            }
        }
        let base = expand(&at.base, self.escape, &lookup, &room).map_err(wrong)?;
        if base.is_empty() {
            return Err(wrong(format!(
                "'{}' is empty: an ARG has no value",
                at.base
            )));
        }
        Ok(match self.stage_by_name(&base, stage) {
            Some(number) => Origin::Stage(number),
            None if base == "scratch" => Origin::Scratch,
            None => Origin::Named(base),
        })
    }

    /// `FROM` knows stages by name only.
    fn stage_by_name(&self, name: &str, before: usize) -> Option<usize> {
        let lower = name.to_ascii_lowercase();
        let mut stages = self.stages[..before].iter();
        stages.position(|stage| stage.name.as_deref() == Some(lower.as_str()))
    }

    /// The stages that a target needs, in order; it is the last.
    pub fn needed(
        &self,
        target: Option<&str>,
        variables: &Variables,
        arch: &str,
    ) -> Result<Vec<usize>> {
        let last = self.stages.len() - 1;
        let target = match target {
            None => last,
            Some(name) => self
                .stage(name, self.stages.len())
                .ok_or_else(|| Error::new(1, format!("there is no stage '{name}'")))?,
        };
        let globals = self.global(variables)?;
        let mut needed = BTreeSet::new();
        let mut pending = vec![target];
        while let Some(stage) = pending.pop() {
            if !needed.insert(stage) {
                continue;
            }
            if let Origin::Stage(other) = self.base_in(stage, &globals, variables, arch)? {
                pending.push(other);
            }
            for placed in &self.stages[stage].instructions {
                if let Instruction::Copy { flags, .. } = &placed.instruction
                    && let Some(from) = &flags.from
                    && let Some(other) = self.stage(from, stage)
                {
                    pending.push(other);
                }
            }
        }
        Ok(needed.into_iter().collect())
    }

    /// The steps of a stage, over the configuration and arguments of what it begins from.
    pub fn evaluate(
        &self,
        stage: usize,
        base: Evaluated,
        variables: &Variables,
    ) -> Result<Evaluated> {
        let at = &self.stages[stage];
        let mut scope = Scope {
            file: self,
            stage,
            globals: self.global(variables)?,
            variables,
            config: base.config,
            args: base.args,
            steps: Vec::new(),
            has_cmd: false,
            room: Room::default(),
        };
        for trigger in std::mem::take(&mut scope.config.onbuild) {
            let placed = parse::trigger(&trigger, at.line, self.escape)?;
            scope.run(&placed)?;
        }
        for placed in &at.instructions {
            scope.run(placed)?;
        }
        Ok(Evaluated {
            steps: scope.steps,
            config: scope.config,
            args: scope.args,
        })
    }
}

fn global_value(
    globals: &BTreeMap<String, Option<String>>,
    variables: &Variables,
    name: &str,
) -> Option<String> {
    match globals.get(name) {
        Some(value) => value.clone(),
        None => variables.platform.get(name).cloned(),
    }
}

struct Scope<'a> {
    file: &'a Dockerfile,
    stage: usize,
    globals: BTreeMap<String, Option<String>>,
    variables: &'a Variables,
    config: Config,
    args: BTreeMap<String, Option<String>>,
    steps: Vec<Step>,
    has_cmd: bool,
    room: Room,
}

fn bytes_of<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> usize {
    let bytes = pairs
        .into_iter()
        .map(|(name, value)| name.len() + value.len());
    bytes.sum()
}

fn args_bytes(args: &BTreeMap<String, Option<String>>) -> usize {
    let bytes = args
        .iter()
        .map(|(name, value)| name.len() + value.as_ref().map_or(0, String::len));
    bytes.sum()
}

/// Refuses an instruction after which variables, or labels, are more than a sandbox may have.
fn fits(placed: &Placed, bytes: usize) -> Result<()> {
    match bytes > ENV_BYTES_MAX {
        true => Err(Error::new(
            placed.line,
            format!("the values up to here have more than {ENV_BYTES_MAX} bytes"),
        )),
        false => Ok(()),
    }
}

impl Scope<'_> {
    /// `ENV` comes before `ARG`.
    fn value(&self, name: &str) -> Option<String> {
        let env = self.config.env.get(name).cloned();
        env.or_else(|| self.args.get(name).cloned().flatten())
    }

    fn expand(&self, placed: &Placed, text: &str) -> Result<String> {
        let lookup = |name: &str| self.value(name);
        expand(text, self.file.escape, &lookup, &self.room)
            .map_err(|problem| Error::new(placed.line, problem))
    }

    fn workdir(&self) -> String {
        self.config.workdir.clone().unwrap_or_else(|| "/".into())
    }

    fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(argv) => argv.clone(),
            Command::Shell(text) | Command::Script(text) => {
                let mut argv = self.config.shell();
                argv.push(text.clone());
                argv
            }
        }
    }

    fn step(&mut self, placed: &Placed, action: Action) {
        self.steps.push(Step {
            line: placed.line,
            text: placed.text.clone(),
            action,
        });
    }

    fn pairs(&self, placed: &Placed, pairs: &[(String, String)]) -> Result<Vec<(String, String)>> {
        let expanded = pairs
            .iter()
            .map(|(name, value)| Ok((self.expand(placed, name)?, self.expand(placed, value)?)));
        expanded.collect()
    }

    fn run(&mut self, placed: &Placed) -> Result<()> {
        match &placed.instruction {
            Instruction::Arg(args) => {
                for (name, default) in args {
                    let given = self.variables.given(name);
                    let value = match (given, default) {
                        (Some(given), _) => Some(given),
                        (None, Some(text)) => Some(self.expand(placed, text)?),
                        (None, None) => global_value(&self.globals, self.variables, name),
                    };
                    self.args.insert(name.clone(), value);
                }
                fits(placed, args_bytes(&self.args))?;
            }
            Instruction::Env(pairs) => {
                // All of one instruction see the values from before it.
                let pairs = self.pairs(placed, pairs)?;
                self.config.env.extend(pairs);
                fits(placed, bytes_of(&self.config.env))?;
            }
            Instruction::Label(pairs) => {
                let pairs = self.pairs(placed, pairs)?;
                self.config.labels.extend(pairs);
                fits(placed, bytes_of(&self.config.labels))?;
            }
            Instruction::Run {
                command,
                no_network,
            } => {
                let proxies: BTreeMap<String, String> = self.variables.proxies().collect();
                let mut env: BTreeMap<String, String> = BTreeMap::new();
                let args = self.args.iter();
                env.extend(args.filter_map(|(name, value)| Some((name.clone(), value.clone()?))));
                env.extend(self.config.env.clone());
                let (argv, script) = match command {
                    Command::Script(text) if text.starts_with("#!") => {
                        (interpreter(text), Some(text.clone()))
                    }
                    command => (self.argv(command), None),
                };
                let action = Action::Run {
                    argv,
                    script,
                    env,
                    proxies,
                    user: self.config.user.clone(),
                    workdir: self.workdir(),
                    no_network: *no_network,
                };
                self.step(placed, action);
            }
            Instruction::Copy { .. } => self.copy(placed)?,
            Instruction::Workdir(path) => {
                let path = self.expand(placed, path)?;
                let path = absolute(&self.workdir(), &path);
                let path = match path.strip_suffix('/') {
                    Some(front) if !front.is_empty() => front.to_owned(),
                    _ => path,
                };
                self.config.workdir = Some(path.clone());
                if path != "/" {
                    self.step(placed, Action::Workdir(path));
                }
            }
            Instruction::User(user) => {
                let user = self.expand(placed, user)?;
                if user.is_empty() || user.contains(char::is_whitespace) {
                    return Err(Error::new(
                        placed.line,
                        "USER needs one user, or user:group",
                    ));
                }
                self.config.user = Some(user);
            }
            Instruction::Shell(argv) => self.config.shell = Some(argv.clone()),
            Instruction::Entrypoint(command) => {
                self.config.entrypoint = self.argv(command);
                // The base's arguments are for the base's program.
                if !self.has_cmd {
                    self.config.cmd.clear();
                }
            }
            Instruction::Cmd(command) => {
                self.config.cmd = self.argv(command);
                self.has_cmd = true;
            }
            Instruction::Expose(ports) => {
                for port in ports {
                    let port = exposed(&self.expand(placed, port)?)
                        .map_err(|problem| Error::new(placed.line, problem))?;
                    if !self.config.expose.contains(&port) {
                        self.config.expose.push(port);
                    }
                }
                self.config.expose.sort();
            }
            Instruction::Healthcheck { command, options } => {
                self.config.healthcheck = Some(Healthcheck {
                    command: command.as_ref().map(|c| self.argv(c)).unwrap_or_default(),
                    options: options.clone(),
                });
            }
            Instruction::StopSignal(signal) => {
                self.config.stop_signal = Some(self.expand(placed, signal)?);
            }
            Instruction::Onbuild(text) => self.config.onbuild.push(text.clone()),
        }
        Ok(())
    }

    fn copy(&mut self, placed: &Placed) -> Result<()> {
        let Instruction::Copy {
            add,
            flags,
            sources,
            dest,
        } = &placed.instruction
        else {
            return Ok(());
        };
        let lookup = |name: &str| self.value(name);
        let from = match &flags.from {
            None => None,
            Some(name) => {
                let name = self.expand(placed, name)?;
                Some(match self.file.stage(&name, self.stage) {
                    Some(number) => Origin::Stage(number),
                    None if self.file.stages[self.stage].name.as_deref() == Some(name.as_str()) => {
                        return Err(Error::new(placed.line, "a stage cannot copy from itself"));
                    }
                    None => Origin::Named(name),
                })
            }
        };
        let expanded = sources.iter().map(|source| {
            Ok(match source {
                CopySource::Path(path) => CopySource::Path(self.expand(placed, path)?),
                CopySource::Document(document) if document.expand => {
                    let mut document = document.clone();
                    document.content =
                        expand_document(&document.content, self.file.escape, &lookup, &self.room)
                            .map_err(|problem| Error::new(placed.line, problem))?;
                    CopySource::Document(document)
                }
                document => document.clone(),
            })
        });
        let sources: Vec<CopySource> = expanded.collect::<Result<_>>()?;
        let chmod = match &flags.chmod {
            None => None,
            Some(text) => {
                let text = self.expand(placed, text)?;
                let mode = u32::from_str_radix(&text, 8)
                    .ok()
                    .filter(|mode| *mode <= 0o7777);
                Some(mode.ok_or_else(|| {
                    Error::new(
                        placed.line,
                        format!("--chmod={text} is not supported; give an octal mode"),
                    )
                })?)
            }
        };
        let chown = match &flags.chown {
            None => None,
            Some(text) => Some(self.expand(placed, text)?).filter(|text| !text.is_empty()),
        };
        let exclude = flags.exclude.iter().map(|text| self.expand(placed, text));
        let exclude = exclude.map(|text| Ok(clean(&text?)));
        let exclude: Vec<String> = exclude.collect::<Result<_>>()?;
        let wrong = |problem| Error::new(placed.line, problem);
        pattern::check(exclude.iter().map(String::as_str)).map_err(wrong)?;
        for source in &sources {
            if let CopySource::Path(path) = source
                && is_pattern(path)
            {
                pattern::check([path.as_str()]).map_err(wrong)?;
            }
        }
        let dest = self.expand(placed, dest)?;
        if dest.is_empty() {
            return Err(Error::new(placed.line, "the destination is empty"));
        }
        if dest.len() > PATH_MAX {
            return Err(Error::new(
                placed.line,
                format!("the destination has more than {PATH_MAX} bytes"),
            ));
        }
        let action = Action::Copy {
            add: *add,
            from,
            sources,
            dest: absolute(&self.workdir(), &dest),
            chown,
            chmod,
            exclude,
        };
        self.step(placed, action);
        Ok(())
    }
}

/// The program of a `#!` line, with its one argument.
fn interpreter(script: &str) -> Vec<String> {
    let line = script.lines().next().unwrap_or_default();
    let line = line.trim_start_matches("#!").trim();
    match line.split_once(char::is_whitespace) {
        Some((program, argument)) => vec![program.to_owned(), argument.trim().to_owned()],
        None => vec![line.to_owned()],
    }
}

fn exposed(text: &str) -> std::result::Result<String, String> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = protocol.to_ascii_lowercase();
    let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    match (number(low), number(high), protocol.as_str()) {
        (Some(low), Some(high), "tcp" | "udp" | "sctp") if low <= high => {
            Ok(format!("{ports}/{protocol}"))
        }
        _ => Err(format!(
            "'{text}' is not a port, like 80, 53/udp or 8000-8010"
        )),
    }
}
