//! From a line to an instruction.

use std::collections::BTreeMap;

use cove_limits::BUILD_SOURCES_MAX;

use crate::dockerfile::{Command, CopyFlags, CopySource, Instruction, Placed, Stage};
use crate::lines::{self, Line};
use crate::words::split;
use crate::{Error, Result};

/// Characters of an instruction that logs show.
const SHOWN_MAX: usize = 200;

fn shown(line: &Line) -> String {
    let mut text = line.keyword.clone();
    for (name, value) in &line.flags {
        text.push_str(&format!(" --{name}={value}"));
    }
    text.push(' ');
    text.push_str(&line.rest);
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(crate) fn from(line: &Line) -> Result<Stage> {
    let mut platform = None;
    for (name, value) in &line.flags {
        match name.as_str() {
            "platform" => platform = Some(value.clone()),
            _ => return Err(no_flag(line, name)),
        }
    }
    let words: Vec<&str> = line.rest.split_whitespace().collect();
    let (base, name) = match words.as_slice() {
        [base] => (*base, None),
        [base, word, name] if word.eq_ignore_ascii_case("as") => (*base, Some(*name)),
        _ => {
            return Err(Error::new(
                line.number,
                "expected FROM image, or FROM image AS name",
            ));
        }
    };
    let name = name.map(str::to_ascii_lowercase);
    if let Some(name) = &name {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(plain) {
            return Err(Error::new(
                line.number,
                format!(
                    "'{name}' is not a stage name: a letter first, then letters, digits, '_', '-' or '.'"
                ),
            ));
        }
    }
    Ok(Stage {
        line: line.number,
        text: shown(line),
        base: base.to_owned(),
        name,
        platform,
        instructions: Vec::new(),
    })
}

fn no_flag(line: &Line, name: &str) -> Error {
    Error::new(
        line.number,
        format!("{} --{name} is not supported", line.keyword),
    )
}

fn needs(line: &Line) -> Result<()> {
    match line.rest.is_empty() {
        true => Err(Error::new(
            line.number,
            format!("{} needs an argument", line.keyword),
        )),
        false => Ok(()),
    }
}

fn json(text: &str) -> Option<Vec<String>> {
    text.starts_with('[')
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

fn command(line: &Line) -> Command {
    match json(&line.rest) {
        Some(argv) => Command::Exec(argv),
        None => Command::Shell(line.rest.clone()),
    }
}

/// `name=value …`, or `name value`, with the quotes still on.
fn pairs(line: &Line, escape: char) -> Result<Vec<(String, String)>> {
    needs(line)?;
    let words = split(&line.rest, escape);
    let first = words.first().map(String::as_str).unwrap_or_default();
    if !first.contains('=') {
        let (name, value) = line
            .rest
            .split_once(char::is_whitespace)
            .ok_or_else(|| Error::new(line.number, format!("{} needs name=value", line.keyword)))?;
        return Ok(vec![(name.to_owned(), value.trim_start().to_owned())]);
    }
    let pairs = words.iter().map(|word| match word.split_once('=') {
        Some(("", _)) | None => Err(Error::new(
            line.number,
            format!("'{word}' is not name=value"),
        )),
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
    });
    pairs.collect()
}

fn run(line: &Line) -> Result<Instruction> {
    needs(line)?;
    let mut no_network = false;
    for (name, value) in &line.flags {
        match (name.as_str(), value.as_str()) {
            ("network", "default") | ("security", "sandbox") => {}
            ("network", "none") => no_network = true,
            ("network", "host") => {
                return Err(Error::new(
                    line.number,
                    "RUN --network=host is not supported: a build reaches what its network policy allows",
                ));
            }
            ("mount", value) => {
                let kind = value
                    .split(',')
                    .find_map(|field| field.strip_prefix("type="));
                return Err(Error::new(
                    line.number,
                    format!(
                        "RUN --mount=type={} is not supported",
                        kind.unwrap_or("bind")
                    ),
                ));
            }
            _ => return Err(no_flag(line, name)),
        }
    }
    let command = match line.documents.as_slice() {
        [] => command(line),
        [only] if only.token == line.rest => Command::Script(only.content.clone()),
        documents => {
            // The shell reads here-documents itself.
            let mut text = line.rest.clone();
            text.push('\n');
            for document in documents {
                text.push_str(&document.content);
                text.push_str(&document.name);
                text.push('\n');
            }
            Command::Shell(text)
        }
    };
    if matches!(&command, Command::Exec(argv) if argv.is_empty()) {
        return Err(Error::new(line.number, "RUN [] runs nothing"));
    }
    Ok(Instruction::Run {
        command,
        no_network,
    })
}

fn copy(line: &Line) -> Result<Instruction> {
    let add = line.keyword == "ADD";
    let mut flags = CopyFlags::default();
    for (name, value) in &line.flags {
        match name.as_str() {
            "from" if !add => flags.from = Some(value.clone()),
            "chown" => flags.chown = Some(value.clone()),
            "chmod" => flags.chmod = Some(value.clone()),
            "exclude" => flags.exclude.push(value.clone()),
            _ => return Err(no_flag(line, name)),
        }
    }
    let mut words = match json(&line.rest) {
        Some(words) => words,
        None => line.rest.split_whitespace().map(str::to_owned).collect(),
    };
    let dest = words.pop().filter(|_| !words.is_empty()).ok_or_else(|| {
        Error::new(
            line.number,
            format!(
                "{} needs at least one source and a destination",
                line.keyword
            ),
        )
    })?;
    if words.len() > BUILD_SOURCES_MAX {
        return Err(Error::new(
            line.number,
            format!("{} has more than {BUILD_SOURCES_MAX} sources", line.keyword),
        ));
    }
    let mut sources = Vec::new();
    // They stand in the order of their words, and each is one source.
    let mut documents = line.documents.iter().peekable();
    for word in words {
        if let Some(document) = documents.next_if(|document| document.token == word) {
            if flags.from.is_some() {
                return Err(Error::new(
                    line.number,
                    "COPY --from takes no here-document",
                ));
            }
            sources.push(CopySource::Document(document.clone()));
            continue;
        }
        let remote = ["http://", "https://", "git://", "ssh://", "git@"];
        if add && remote.iter().any(|scheme| word.starts_with(scheme)) {
            return Err(Error::new(
                line.number,
                "ADD from a URL is not supported; fetch it in a RUN step, under the build's network policy",
            ));
        }
        sources.push(CopySource::Path(word));
    }
    if sources.len() > 1 && !dest.ends_with('/') && dest != "." && !dest.ends_with("/.") {
        return Err(Error::new(
            line.number,
            "with more than one source the destination must be a directory and end with /",
        ));
    }
    Ok(Instruction::Copy {
        add,
        flags,
        sources,
        dest,
    })
}

fn healthcheck(line: &Line) -> Result<Instruction> {
    let mut options = BTreeMap::new();
    for (name, value) in &line.flags {
        match name.as_str() {
            "interval" | "timeout" | "start-period" | "start-interval" | "retries" => {
                options.insert(name.clone(), value.clone());
            }
            _ => return Err(no_flag(line, name)),
        }
    }
    let (word, rest) = match line.rest.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (line.rest.as_str(), ""),
    };
    let command = match word.to_ascii_uppercase().as_str() {
        "NONE" if rest.is_empty() => None,
        "CMD" if !rest.is_empty() => Some(match json(rest) {
            Some(argv) => Command::Exec(argv),
            None => Command::Shell(rest.to_owned()),
        }),
        _ => {
            return Err(Error::new(
                line.number,
                "expected HEALTHCHECK NONE or HEALTHCHECK CMD command",
            ));
        }
    };
    Ok(Instruction::Healthcheck { command, options })
}

fn onbuild(line: &Line, escape: char) -> Result<Instruction> {
    needs(line)?;
    if !line.documents.is_empty() {
        return Err(Error::new(
            line.number,
            "ONBUILD with a here-document is not supported",
        ));
    }
    let trigger = trigger(&line.rest, line.number, escape)?;
    match trigger.instruction {
        Instruction::Onbuild(_) => Err(Error::new(line.number, "ONBUILD ONBUILD is not allowed")),
        _ => Ok(Instruction::Onbuild(line.rest.clone())),
    }
}

/// One instruction of a base, as if it stood at `number`.
pub(crate) fn trigger(text: &str, number: u32, escape: char) -> Result<Placed> {
    let at = |error: Error| Error::new(number, format!("ONBUILD: {}", error.problem));
    let read = lines::read(text).map_err(at)?;
    match read.lines.as_slice() {
        [line] if !matches!(line.keyword.as_str(), "FROM" | "MAINTAINER") => {
            let line = Line {
                number,
                ..line.clone()
            };
            instruction(&line, escape)
        }
        [line] => Err(Error::new(
            number,
            format!("ONBUILD {} is not allowed", line.keyword),
        )),
        _ => Err(Error::new(number, "ONBUILD needs one instruction")),
    }
}

pub(crate) fn instruction(line: &Line, escape: char) -> Result<Placed> {
    if !line.flags.is_empty()
        && !matches!(
            line.keyword.as_str(),
            "RUN" | "COPY" | "ADD" | "HEALTHCHECK"
        )
    {
        return Err(no_flag(line, &line.flags[0].0));
    }
    let one = || needs(line).map(|()| line.rest.clone());
    let parsed = match line.keyword.as_str() {
        "ARG" => {
            needs(line)?;
            let words = split(&line.rest, escape);
            let args = words.iter().map(|word| match word.split_once('=') {
                Some(("", _)) => Err(Error::new(line.number, "ARG needs a name")),
                Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
                None => Ok((word.clone(), None)),
            });
            Instruction::Arg(args.collect::<Result<_>>()?)
        }
        "ENV" => Instruction::Env(pairs(line, escape)?),
        "LABEL" => Instruction::Label(pairs(line, escape)?),
        "MAINTAINER" => Instruction::Label(vec![("maintainer".into(), one()?)]),
        "RUN" => run(line)?,
        "COPY" | "ADD" => copy(line)?,
        "WORKDIR" => Instruction::Workdir(one()?),
        "USER" => Instruction::User(one()?),
        "SHELL" => match json(&line.rest) {
            Some(argv) if !argv.is_empty() => Instruction::Shell(argv),
            _ => {
                return Err(Error::new(
                    line.number,
                    "SHELL needs a JSON array, like [\"/bin/bash\", \"-c\"]",
                ));
            }
        },
        "ENTRYPOINT" => Instruction::Entrypoint(command(line)),
        "CMD" => Instruction::Cmd(command(line)),
        "EXPOSE" => {
            needs(line)?;
            Instruction::Expose(line.rest.split_whitespace().map(str::to_owned).collect())
        }
        "HEALTHCHECK" => healthcheck(line)?,
        "STOPSIGNAL" => Instruction::StopSignal(one()?),
        "ONBUILD" => onbuild(line, escape)?,
        "VOLUME" => {
            return Err(Error::new(
                line.number,
                "VOLUME is not supported; mount a volume when a sandbox is created, or as a default of the template",
            ));
        }
        other => {
            let other: String = other.chars().take(40).collect();
            return Err(Error::new(
                line.number,
                format!("'{}' is not an instruction", other.escape_debug()),
            ));
        }
    };
    Ok(Placed {
        line: line.number,
        text: shown(line),
        instruction: parsed,
    })
}
