//! Steps of E2B's template builder as the instructions of a build.
//!
//! The SDK sends a list of steps with their own rules for users, directories and variables. They become a Dockerfile of
//! one stage, as the parser would leave it; the number of a step is its line. Nothing is run here.

use std::time::Duration;

use cove_control::StartCommand;
use cove_model::SandboxSpec;
use cove_template::{Command, CopyFlags, CopySource, Dockerfile, Instruction, Placed, Stage};
use serde::Deserialize;

use crate::envd::paths::joined;
use crate::refusal::Refusal;

/// E2B's default user: made in every image, and what steps and sandboxes run as unless they say otherwise.
pub const USER: &str = "user";
pub const HOME: &str = "/home/user";
/// What derived templates inherit is kept in these labels.
pub const START_LABEL: &str = "e2b.start";
pub const READY_LABEL: &str = "e2b.ready";
/// E2B waits so long for a start command that has no check.
const BLIND_WAIT: &str = "sleep 20";
/// How long a start command may take to be ready.
const READY_S: u64 = 600;
/// How long one ready check may take: E2B lets it run until it ends.
pub const CHECK_MAX: Duration = Duration::from_secs(READY_S);
/// Characters of a step that logs show.
const SHOWN_MAX: usize = 200;
const STEPS_MAX: usize = 1_000;
/// Arguments of one step, and all arguments: each may become an instruction of its own.
const ARGUMENTS_MAX: usize = 512;
const ALL_ARGUMENTS_MAX: usize = 10_000;

/// Runs `$2` as E2B does: by a login shell, in the directory `$1` or else at home.
const RUN: &str = r#"cd "${1:-$HOME}" && exec /bin/bash -l -c "$2""#;
/// Makes the user `$1` where there is none.
const MAKE_USER: &str =
    r#"id -u "$1" >/dev/null 2>&1 || useradd -m -s /bin/bash "$1" 2>/dev/null || adduser -D "$1""#;
/// The same for the default user, whom other programs expect to have number 1000 and to be allowed everything.
const MAKE_DEFAULT_USER: &str = r#"set -e
if ! id -u user >/dev/null 2>&1; then
  if command -v useradd >/dev/null; then
    useradd -m -U -u 1000 -s /bin/bash user 2>/dev/null || useradd -m -U -s /bin/bash user
  else
    adduser -D -u 1000 user 2>/dev/null || adduser -D user
  fi
fi
mkdir -p /home/user && chown user: /home/user
if [ -d /etc/sudoers.d ]; then
  printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/user && chmod 0440 /etc/sudoers.d/user
fi"#;
/// Makes the directory `$1`; what was missing of it belongs to `$2`.
const MAKE_DIRECTORY: &str = r#"d=$1; made=
while [ ! -e "$d" ]; do made=$d; d=$(dirname "$d"); done
mkdir -p "$1" && { [ -z "$made" ] || chown -R "$2:" "$made"; }"#;

/// Whatever the SDKs add to a step for themselves is left out: it is about their side.
#[derive(Debug, Deserialize)]
pub struct Step {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub force: bool,
    #[serde(default, rename = "filesHash")]
    pub files: Option<String>,
}

/// What the first step finds.
#[derive(Debug, Clone, Default)]
pub struct Ground {
    /// As builds name it in `FROM`.
    pub base: String,
    /// As E2B's users name it.
    pub shown: String,
    /// The default user has to be made first.
    pub needs_user: bool,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// The commands that start a server, and say that it is ready.
    pub start: Option<(String, String)>,
}

#[derive(Debug)]
pub struct Translated {
    pub file: Dockerfile,
    pub uploads: Vec<String>,
    pub fresh_from: Option<u32>,
    pub start: Option<StartCommand>,
    user: Option<String>,
    workdir: Option<String>,
}

impl Translated {
    /// The settings of sandboxes from the template.
    pub fn settings(&self) -> impl Fn(SandboxSpec) -> SandboxSpec + Send + Sync + use<> {
        let (user, workdir) = (self.user.clone(), self.workdir.clone());
        move |spec| SandboxSpec {
            user: user.clone(),
            workdir: workdir.clone(),
            ..spec
        }
    }
}

struct Walk {
    user: Option<String>,
    workdir: Option<String>,
    /// The user that the instructions so far leave behind.
    said: Option<String>,
    instructions: Vec<Placed>,
    uploads: Vec<String>,
}

pub fn translate(
    ground: Ground,
    steps: &[Step],
    start: Option<&str>,
    ready: Option<&str>,
) -> Result<Translated, Refusal> {
    if steps.len() > STEPS_MAX {
        return Err(Refusal::invalid(format!("steps: at most {STEPS_MAX}")));
    }
    let arguments = steps.iter().map(|step| step.args.len());
    if arguments.clone().any(|count| count > ARGUMENTS_MAX)
        || arguments.sum::<usize>() > ALL_ARGUMENTS_MAX
    {
        return Err(Refusal::invalid(format!(
            "steps: at most {ARGUMENTS_MAX} arguments each, and {ALL_ARGUMENTS_MAX} together"
        )));
    }
    let mut walk = Walk {
        user: ground.user,
        workdir: ground.workdir,
        said: None,
        instructions: Vec::new(),
        uploads: Vec::new(),
    };
    if ground.needs_user {
        walk.script(0, "make the user 'user'", MAKE_DEFAULT_USER, &[]);
    }
    let mut fresh_from = None;
    for (line, step) in (1..).zip(steps) {
        if step.force && fresh_from.is_none() {
            fresh_from = Some(line);
        }
        let wrong = |problem: String| Refusal::invalid(format!("step {line}: {problem}"));
        if step.args.iter().any(|arg| arg.contains('\0')) {
            return Err(wrong("its arguments must not contain NUL".into()));
        }
        walk.step(line, step).map_err(wrong)?;
    }
    let given = |text: Option<&str>| {
        text.filter(|text| !text.trim().is_empty())
            .map(str::to_owned)
    };
    let commands = match (given(start), given(ready)) {
        (None, None) => ground.start,
        (start, ready) => Some((start.unwrap_or_default(), ready.unwrap_or_default())),
    };
    let label = |name: &str, text: &str| (name.to_owned(), literal(text));
    let (started, ready) = commands.clone().unwrap_or_default();
    let labels = vec![label(START_LABEL, &started), label(READY_LABEL, &ready)];
    walk.place(0, "labels", Instruction::Label(labels));
    let in_shell = |text: &str| format!("exec /bin/bash -l -c {}", quoted(text));
    let start = commands.map(|(start, ready)| StartCommand {
        command: Some(match start.as_str() {
            "" => "true".to_owned(),
            start => in_shell(start),
        }),
        ready: in_shell(match ready.as_str() {
            "" => BLIND_WAIT,
            ready => ready,
        }),
        timeout_s: READY_S,
    });
    Ok(Translated {
        file: Dockerfile {
            escape: '\\',
            args: Vec::new(),
            stages: vec![Stage {
                line: 0,
                text: format!("FROM {}", shortened(&ground.shown)),
                base: literal(&ground.base),
                name: None,
                platform: None,
                instructions: walk.instructions,
            }],
        },
        uploads: walk.uploads,
        fresh_from,
        start,
        user: walk.user,
        workdir: walk.workdir,
    })
}

impl Walk {
    fn place(&mut self, line: u32, text: &str, instruction: Instruction) {
        self.instructions.push(Placed {
            line,
            text: shortened(text),
            instruction,
        });
    }

    fn run_as(&mut self, line: u32, text: &str, user: Option<&str>, argv: Vec<String>) {
        let user = user.unwrap_or("root");
        if self.said.as_deref() != Some(user) {
            self.said = Some(user.to_owned());
            self.place(line, text, Instruction::User(literal(user)));
        }
        let run = Instruction::Run {
            command: Command::Exec(argv),
            no_network: false,
        };
        self.place(line, text, run);
    }

    /// As root.
    fn script(&mut self, line: u32, text: &str, script: &str, args: &[&str]) {
        let words = ["/bin/sh", "-c", script, "sh"].into_iter();
        let argv = words.chain(args.iter().copied()).map(str::to_owned);
        self.run_as(line, text, None, argv.collect());
    }

    fn owner(&self) -> &str {
        let user = self.user.as_deref().unwrap_or("root");
        user.split(':').next().unwrap_or("root")
    }

    fn here(&self) -> String {
        match (&self.workdir, self.owner()) {
            (Some(path), _) => path.clone(),
            (None, "root" | "0") => "/root".to_owned(),
            (None, user) => format!("/home/{user}"),
        }
    }

    fn step(&mut self, line: u32, step: &Step) -> Result<(), String> {
        let args: Vec<&str> = step.args.iter().map(String::as_str).collect();
        let text = format!("{} {}", step.kind, args.join(" "));
        match (step.kind.as_str(), args.as_slice()) {
            ("RUN", [command]) => self.run(line, &text, command, None),
            ("RUN", [command, user]) => {
                let text = format!("RUN {command}");
                let user = Some(*user).filter(|user| !user.is_empty());
                self.run(line, &text, command, user)
            }
            ("COPY" | "ADD", [source, dest, rest @ ..]) if rest.len() <= 2 => {
                let [owner, mode] = [0, 1].map(|at| rest.get(at).copied().unwrap_or_default());
                let text = format!("COPY {source} {dest}");
                self.copy(
                    line,
                    &text,
                    step.files.as_deref(),
                    [source, dest, owner, mode],
                )
            }
            ("ENV" | "ARG", pairs) if pairs.len() % 2 == 0 => {
                for pair in pairs.chunks(2) {
                    let (name, value) = (pair[0], pair[1]);
                    if name.is_empty() || name.contains('=') {
                        return Err(format!("'{}' cannot be a variable", name.escape_debug()));
                    }
                    let pair = (literal(name), expanding(value));
                    self.place(line, &text, Instruction::Env(vec![pair]));
                }
                Ok(())
            }
            ("WORKDIR", [path]) if !path.is_empty() => {
                let path = joined(self.workdir.as_deref().unwrap_or("/"), path);
                let owner = self.owner().to_owned();
                self.script(line, &text, MAKE_DIRECTORY, &[&path, &owner]);
                self.workdir = Some(path);
                Ok(())
            }
            ("USER", [name]) => {
                check_user(name)?;
                if !matches!(*name, "root" | USER) {
                    self.script(line, &text, MAKE_USER, &[name]);
                }
                self.user = Some((*name).to_owned());
                Ok(())
            }
            (kind @ ("RUN" | "COPY" | "ADD" | "ENV" | "ARG" | "WORKDIR" | "USER"), args) => Err(
                format!("{kind} does not take these {} arguments", args.len()),
            ),
            (kind, _) => {
                let kind: String = kind.chars().take(40).collect();
                Err(format!("there is no step '{}'", kind.escape_debug()))
            }
        }
    }

    fn run(
        &mut self,
        line: u32,
        text: &str,
        command: &str,
        user: Option<&str>,
    ) -> Result<(), String> {
        if let Some(user) = user {
            check_user(user)?;
        }
        let workdir = self.workdir.clone().unwrap_or_default();
        let words = ["/bin/sh", "-c", RUN, "sh", &workdir, command];
        let argv = words.into_iter().map(str::to_owned).collect();
        let user = user.map(str::to_owned).or_else(|| self.user.clone());
        self.run_as(line, text, user.as_deref(), argv);
        Ok(())
    }

    fn copy(
        &mut self,
        line: u32,
        text: &str,
        files: Option<&str>,
        [source, dest, owner, mode]: [&str; 4],
    ) -> Result<(), String> {
        let files = files.ok_or("it has no filesHash")?;
        if source.split('/').any(|part| part == "..") || source.starts_with('/') {
            return Err("its source must be below the context directory".into());
        }
        if dest.is_empty() {
            return Err("it has no destination".into());
        }
        // An archive has what the pattern matched and nothing else.
        let fixed = source.split('/').take_while(|part| !is_pattern(part));
        let fixed: Vec<&str> = fixed.filter(|part| !matches!(*part, "" | ".")).collect();
        let path = [&[files], fixed.as_slice()].concat().join("/");
        let chown = match owner {
            "" => self.owner(),
            owner => owner,
        };
        let chown = match chown.contains(':') {
            true => chown.to_owned(),
            false => format!("{chown}:{chown}"),
        };
        let flags = CopyFlags {
            chown: Some(literal(&chown)),
            chmod: Some(mode).filter(|mode| !mode.is_empty()).map(literal),
            ..CopyFlags::default()
        };
        let mut dest_path = joined(&self.here(), dest);
        if dest.ends_with('/') && !dest_path.ends_with('/') {
            dest_path.push('/');
        }
        let copy = Instruction::Copy {
            add: false,
            flags,
            sources: vec![CopySource::Path(literal(&path))],
            dest: literal(&dest_path),
        };
        self.place(line, text, copy);
        if !self.uploads.iter().any(|other| other == files) {
            self.uploads.push(files.to_owned());
        }
        Ok(())
    }
}

fn check_user(name: &str) -> Result<(), String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let fits = (1..=32).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-');
    match fits {
        true => Ok(()),
        false => Err(format!("'{}' cannot be a user", name.escape_debug())),
    }
}

fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '[', ']', '{', '}'])
}

fn shortened(text: &str) -> String {
    // Enough for what is shown; a step may have a megabyte.
    let text = &text[..text.floor_char_boundary(SHOWN_MAX * 16)];
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// One word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn escaped(out: &mut String, c: char) {
    if matches!(c, '\\' | '\'' | '"' | '$') {
        out.push('\\');
    }
    out.push(c);
}

/// A text of a Dockerfile that stands for itself.
fn literal(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|c| escaped(&mut out, c));
    out
}

/// A text of a Dockerfile where `$NAME` and `${NAME}` are replaced, and nothing else is special.
fn expanding(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match variable(rest) {
            Some((name, end)) => {
                out.push_str(&format!("${{{name}}}"));
                rest = &rest[end..];
            }
            None => {
                escaped(&mut out, c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

/// The variable that a text begins with, and where it ends.
fn variable(text: &str) -> Option<(&str, usize)> {
    let after = text.strip_prefix('$')?;
    let (inner, braces) = match after.strip_prefix('{') {
        Some(inner) => (inner, 1),
        None => (after, 0),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = inner.find(|c| !is_name(c)).unwrap_or(inner.len());
    let name = &inner[..length];
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let closed = braces == 0 || inner[length..].starts_with('}');
    (begins && closed).then_some((name, 1 + 2 * braces + length))
}

#[cfg(test)]
mod tests {
    use cove_template::{Action, Evaluated, Variables};

    use super::*;

    fn step(kind: &str, args: &[&str]) -> Step {
        Step {
            kind: kind.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            force: false,
            files: (kind == "COPY").then(|| "f".repeat(64)),
        }
    }

    fn ground() -> Ground {
        Ground {
            base: "debian".into(),
            user: Some(USER.into()),
            ..Ground::default()
        }
    }

    fn evaluated(steps: &[Step]) -> Evaluated {
        let done = translate(ground(), steps, None, None).unwrap();
        let variables = Variables::new(Default::default(), "amd64");
        let base = Evaluated::default();
        done.file.evaluate(0, base, &variables).unwrap()
    }

    #[test]
    fn variables_are_expanded_once_and_the_rest_stands_for_itself() {
        let steps = [
            step(
                "ENV",
                &["A", "one", "B", "$A-${A}", "C", "$(id) `id` $1 ${A:-x} $"],
            ),
            step("ENV", &["PEM", "-\n\"k\"\\ 'q'\n", "D", "$B$NONE"]),
        ];
        let env = evaluated(&steps).config.env;
        assert_eq!(env["B"], "one-one");
        assert_eq!(env["C"], "$(id) `id` $1 ${A:-x} $");
        assert_eq!(env["PEM"], "-\n\"k\"\\ 'q'\n");
        assert_eq!(env["D"], "one-one");
    }

    #[test]
    fn steps_run_as_their_user_where_the_steps_before_them_led() {
        let steps = [
            step("RUN", &["ls"]),
            step("RUN", &["ls", "root"]),
            step("WORKDIR", &["app"]),
            step("USER", &["ada"]),
            step("COPY", &["./src/**/*.py", "lib/", "", "0644"]),
            step("RUN", &["ls"]),
        ];
        let mut seen = Vec::new();
        for step in evaluated(&steps).steps {
            match step.action {
                Action::Run { argv, user, .. } => {
                    seen.push(format!(
                        "{} {}: {}",
                        step.line,
                        user.unwrap(),
                        argv[4..].join(" ")
                    ));
                }
                Action::Copy {
                    sources,
                    dest,
                    chown,
                    chmod,
                    ..
                } => {
                    assert_eq!(
                        sources,
                        [CopySource::Path(format!("{}/src", "f".repeat(64)))]
                    );
                    assert_eq!(
                        (dest.as_str(), chown.as_deref()),
                        ("/app/lib/", Some("ada:ada"))
                    );
                    assert_eq!(chmod, Some(0o644));
                }
                Action::Workdir(_) => panic!("directories are made by scripts"),
            }
        }
        let expected = [
            "1 user:  ls",
            "2 root:  ls",
            "3 root: /app user",
            "4 root: ada",
            "6 ada: /app ls",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_leads_out_or_means_nothing_is_refused() {
        for bad in [
            step("COPY", &["../x", "y"]),
            step("COPY", &["a/../../x", "y"]),
            step("COPY", &["/etc/passwd", "y"]),
            step("COPY", &["x"]),
            step("RUN", &[]),
            step("RUN", &["a", "b", "c"]),
            step("RUN", &["a", "-x"]),
            step("RUN", &["a\0b"]),
            step("ENV", &["A"]),
            step("ENV", &["A=B", "x"]),
            step("USER", &["a b"]),
            step("FROM", &["x"]),
        ] {
            assert!(translate(ground(), &[bad], None, None).is_err());
        }
        let mut no_files = step("COPY", &["x", "y"]);
        no_files.files = None;
        assert!(translate(ground(), &[no_files], None, None).is_err());
    }

    #[test]
    fn the_first_forced_step_is_where_the_cache_ends() {
        let mut steps = [
            step("RUN", &["a"]),
            step("RUN", &["b"]),
            step("RUN", &["c"]),
        ];
        (steps[1].force, steps[2].force) = (true, true);
        let done = translate(ground(), &steps, Some("serve"), None).unwrap();
        assert_eq!(done.fresh_from, Some(2));
        let start = done.start.unwrap();
        assert_eq!(
            start.command.as_deref(),
            Some("exec /bin/bash -l -c 'serve'")
        );
        assert!(start.ready.contains(BLIND_WAIT));
    }
}
