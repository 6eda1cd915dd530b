//! What a Dockerfile says, before anything is evaluated.

use std::collections::BTreeMap;

use crate::lines::{self, HereDoc};
use crate::{Error, Result, parse};

/// Stages and instructions of one file.
pub const INSTRUCTIONS_MAX: usize = 1_000;

/// An instruction and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub line: u32,
    /// As logs show it.
    pub text: String,
    pub instruction: Instruction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Shell(String),
    Exec(Vec<String>),
    /// A here-document alone: the text is the script.
    Script(String),
}

/// Text where variables are not expanded yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    Arg(Vec<(String, Option<String>)>),
    Env(Vec<(String, String)>),
    Label(Vec<(String, String)>),
    Run {
        command: Command,
        no_network: bool,
    },
    Copy {
        /// Local archives are unpacked.
        add: bool,
        flags: CopyFlags,
        sources: Vec<CopySource>,
        dest: String,
    },
    Workdir(String),
    User(String),
    Shell(Vec<String>),
    Entrypoint(Command),
    Cmd(Command),
    Expose(Vec<String>),
    Healthcheck {
        command: Option<Command>,
        options: BTreeMap<String, String>,
    },
    StopSignal(String),
    Onbuild(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyFlags {
    pub from: Option<String>,
    pub chown: Option<String>,
    pub chmod: Option<String>,
    pub exclude: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySource {
    Path(String),
    Document(HereDoc),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub line: u32,
    pub text: String,
    pub base: String,
    pub name: Option<String>,
    pub platform: Option<String>,
    pub instructions: Vec<Placed>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    pub escape: char,
    /// Those before the first `FROM`.
    pub args: Vec<Placed>,
    /// At least one.
    pub stages: Vec<Stage>,
}

impl Dockerfile {
    pub fn parse(text: &str) -> Result<Self> {
        let read = lines::read(text)?;
        if read.lines.len() > INSTRUCTIONS_MAX {
            return Err(Error::new(
                1,
                format!("more than {INSTRUCTIONS_MAX} instructions"),
            ));
        }
        let mut args = Vec::new();
        let mut stages: Vec<Stage> = Vec::new();
        for line in &read.lines {
            if line.keyword == "FROM" {
                let stage = parse::from(line)?;
                if let Some(name) = &stage.name
                    && stages.iter().any(|other| other.name.as_ref() == Some(name))
                {
                    return Err(Error::new(
                        line.number,
                        format!("there are two stages '{name}'"),
                    ));
                }
                stages.push(stage);
                continue;
            }
            let placed = parse::instruction(line, read.escape)?;
            match (stages.last_mut(), &placed.instruction) {
                (Some(stage), _) => stage.instructions.push(placed),
                (None, Instruction::Arg(_)) => args.push(placed),
                (None, _) => {
                    return Err(Error::new(
                        line.number,
                        format!("{} stands before the first FROM", line.keyword),
                    ));
                }
            }
        }
        if stages.is_empty() {
            return Err(Error::new(1, "there is no FROM"));
        }
        Ok(Self {
            escape: read.escape,
            args,
            stages,
        })
    }

    /// A stage by name or number, among those before `before`.
    pub fn stage(&self, name: &str, before: usize) -> Option<usize> {
        let lower = name.to_ascii_lowercase();
        let named = self.stages[..before]
            .iter()
            .position(|stage| stage.name.as_deref() == Some(lower.as_str()));
        named.or_else(|| name.parse().ok().filter(|number| *number < before))
    }
}
