//! What to run for a request: program, arguments, environment and directory. Pure but for the
//! check whether a login shell exists.

use std::ffi::CString;

use cove_protocol::message::Start;

use crate::account::Account;
use crate::failure::{Failure, Result};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_LANG: &str = "C.UTF-8";
const DEFAULT_TERM: &str = "xterm-256color";
const FALLBACK_SHELL: &str = "/bin/sh";
/// Shells that understand `export NAME='value'; …`.
const POSIX_SHELLS: [&str; 7] = ["sh", "bash", "dash", "ash", "ksh", "zsh", "mksh"];
/// Directories of PATH that are searched.
const PATH_DIRECTORIES_MAX: usize = 64;

pub struct Program {
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub programs: Vec<CString>,
    pub directories: Vec<CString>,
}

pub fn plan(start: &Start, account: &Account) -> Result<Program> {
    let shell = login_shell(account);
    let (env, caller_path) = environment(start, account, &shell)?;
    let argv = match (start.argv.is_empty(), start.shell.is_empty()) {
        (false, true) => start.argv.clone(),
        (true, false) => vec![
            shell.clone(),
            "-l".to_owned(),
            "-c".to_owned(),
            with_path(&shell, caller_path.as_deref(), &start.shell),
        ],
        _ => return Err(Failure::invalid("give either argv or a shell command")),
    };
    let path = env.iter().find(|(name, _)| name == "PATH");
    let programs = candidates(&argv[0], path.map_or("", |(_, value)| value))?;
    Ok(Program {
        programs,
        argv: c_strings(argv)?,
        env: c_strings(
            env.into_iter()
                .map(|(name, value)| format!("{name}={value}")),
        )?,
        directories: c_strings(directories(start, account)?)?,
    })
}

/// The user's shell, unless it is missing or there to keep the user out.
fn login_shell(account: &Account) -> String {
    let shell = account.shell.as_str();
    let keeps_out = shell.ends_with("/nologin") || shell.ends_with("/false");
    if shell.is_empty() || keeps_out || !std::path::Path::new(shell).exists() {
        return FALLBACK_SHELL.to_owned();
    }
    shell.to_owned()
}

/// Login scripts of common distributions set PATH anew and lose what the image or the caller put
/// there, so it is put in front again once they have run.
fn with_path(shell: &str, path: Option<&str>, command: &str) -> String {
    let name = shell.rsplit('/').next().unwrap_or_default();
    match path {
        Some(path) if POSIX_SHELLS.contains(&name) => {
            let quoted = path.replace('\'', r"'\''");
            format!("export PATH='{quoted}':\"$PATH\"; {command}")
        }
        _ => command.to_owned(),
    }
}

type Variables = Vec<(String, String)>;

/// The variables, and PATH as the caller gave it.
fn environment(
    start: &Start,
    account: &Account,
    shell: &str,
) -> Result<(Variables, Option<String>)> {
    let mut variables: Variables = [
        ("PATH", DEFAULT_PATH),
        ("HOME", &account.home),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
        ("SHELL", shell),
        ("LANG", DEFAULT_LANG),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if start.pty.is_some() {
        variables.push(("TERM".to_owned(), DEFAULT_TERM.to_owned()));
    }
    let mut caller_path = None;
    for entry in &start.env {
        let Some((name, value)) = entry.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(Failure::invalid(format!(
                "the environment entry {entry:?} is not NAME=VALUE"
            )));
        };
        if name == "PATH" {
            caller_path = Some(value.to_owned());
        }
        match variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => value.clone_into(known),
            None => variables.push((name.to_owned(), value.to_owned())),
        }
    }
    Ok((variables, caller_path))
}

fn directories(start: &Start, account: &Account) -> Result<Vec<String>> {
    if start.cwd.is_empty() {
        return Ok(vec![account.home.clone(), "/".to_owned()]);
    }
    if !start.cwd.starts_with('/') {
        return Err(Failure::invalid(
            "the working directory must be an absolute path",
        ));
    }
    Ok(vec![start.cwd.clone()])
}

fn candidates(program: &str, path: &str) -> Result<Vec<CString>> {
    if program.is_empty() {
        return Err(Failure::invalid("the program has no name"));
    }
    if program.contains('/') {
        return c_strings([program.to_owned()]);
    }
    c_strings(
        path.split(':')
            .filter(|directory| !directory.is_empty())
            .take(PATH_DIRECTORIES_MAX)
            .map(|directory| format!("{directory}/{program}")),
    )
}

fn c_strings(strings: impl IntoIterator<Item = String>) -> Result<Vec<CString>> {
    strings
        .into_iter()
        .map(|string| {
            CString::new(string).map_err(|_| Failure::invalid("the command contains a NUL byte"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account {
            uid: 1,
            gid: 1,
            groups: Vec::new(),
            name: "ann".to_owned(),
            home: "/home/ann".to_owned(),
            shell: "/usr/sbin/nologin".to_owned(),
        }
    }

    fn texts(strings: &[CString]) -> Vec<&str> {
        strings
            .iter()
            .map(|string| string.to_str().unwrap())
            .collect()
    }

    #[test]
    fn a_shell_command_runs_in_a_login_shell_that_lets_people_in() {
        let start = Start {
            shell: "echo hi".to_owned(),
            ..Start::default()
        };
        let program = plan(&start, &account()).unwrap();
        assert_eq!(texts(&program.argv), ["/bin/sh", "-l", "-c", "echo hi"]);
        assert_eq!(texts(&program.directories), ["/home/ann", "/"]);
    }

    #[test]
    fn a_path_from_the_caller_survives_the_login_scripts() {
        let start = Start {
            shell: "go version".to_owned(),
            env: vec!["PATH=/it's/bin:/bin".to_owned()],
            ..Start::default()
        };
        let program = plan(&start, &account()).unwrap();
        assert_eq!(
            texts(&program.argv)[3],
            r#"export PATH='/it'\''s/bin:/bin':"$PATH"; go version"#
        );
    }

    #[test]
    fn the_caller_overrides_the_defaults_once() {
        let start = Start {
            argv: vec!["tool".to_owned()],
            env: vec!["PATH=/a::/b".to_owned(), "X=1".to_owned(), "X=2".to_owned()],
            ..Start::default()
        };
        let program = plan(&start, &account()).unwrap();
        assert_eq!(texts(&program.programs), ["/a/tool", "/b/tool"]);
        let env = texts(&program.env);
        assert_eq!(
            env.iter()
                .filter(|entry| entry.starts_with("PATH="))
                .count(),
            1
        );
        assert!(env.contains(&"X=2") && !env.contains(&"X=1"));
        assert!(!env.iter().any(|entry| entry.starts_with("TERM=")));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let nothing = Start::default();
        let both = Start {
            argv: vec!["a".to_owned()],
            shell: "b".to_owned(),
            ..Start::default()
        };
        let relative = Start {
            argv: vec!["a".to_owned()],
            cwd: "here".to_owned(),
            ..Start::default()
        };
        let nameless = Start {
            argv: vec!["a".to_owned()],
            env: vec!["=x".to_owned()],
            ..Start::default()
        };
        for start in [nothing, both, relative, nameless] {
            assert!(plan(&start, &account()).is_err(), "{start:?}");
        }
    }
}
