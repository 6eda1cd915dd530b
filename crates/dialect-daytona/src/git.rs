//! Git, by the program that is in the sandbox's image. Nothing of a repository is looked at outside.
//!
//! [`Git`] is how it is asked and what its complaints mean to Daytona's SDKs; the routes are in
//! [`work`] (what changes a working tree) and [`remote`] (what speaks to others, and settings).

use std::collections::BTreeMap;

use cove_control::{CommandLine, CommandRequest, GuestAction, Principal};
use cove_dialect::Front;
use cove_protocol::identity::owner;

use crate::exec;
use crate::refusal::Refusal;

pub mod remote;
pub mod status;
pub mod work;

/// An hour: what takes longer is stuck.
const TIME_MAX_MS: u64 = 3_600_000;
/// Arguments that name files in one request.
const FILES_MAX: usize = 1000;
const WORD_MAX: usize = 4096;

/// Asked for a name and a password, git gets those of the request, which are nowhere but in its
/// environment.
const HELPER: &str = r#"credential.helper=!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$COVE_GIT_USER" "$COVE_GIT_PASSWORD"; }; f"#;

/// Who to be at the other end.
#[derive(Debug, Default)]
pub struct Login {
    pub username: Option<String>,
    pub password: Option<String>,
}

/// Git in one repository of one sandbox, for one caller.
pub struct Git<'a> {
    pub front: &'a Front,
    pub caller: &'a Principal,
    pub id: &'a str,
    /// Where the repository is; absent for what is about none.
    pub path: Option<String>,
}

impl<'a> Git<'a> {
    pub async fn at(
        front: &'a Front,
        caller: &'a Principal,
        id: &'a str,
        path: String,
    ) -> Result<Self, Refusal> {
        let path = exec::absolute(front, caller, id, path).await?;
        Ok(Self {
            front,
            caller,
            id,
            path: Some(path),
        })
    }

    pub fn nowhere(front: &'a Front, caller: &'a Principal, id: &'a str) -> Self {
        Self {
            front,
            caller,
            id,
            path: None,
        }
    }

    /// What it says on standard output, when it succeeds.
    pub async fn say(&self, words: &[&str]) -> Result<String, Refusal> {
        self.run(words, Login::default(), None).await
    }

    pub async fn run(
        &self,
        words: &[&str],
        login: Login,
        input: Option<String>,
    ) -> Result<String, Refusal> {
        let ended = self.ask(words, login, input).await?;
        match ended.exit.code {
            0 => Ok(ended.stdout),
            _ => Err(meaning(&ended)),
        }
    }

    pub async fn ask(
        &self,
        words: &[&str],
        login: Login,
        input: Option<String>,
    ) -> Result<exec::Both, Refusal> {
        let mut argv = vec!["git".to_owned()];
        let mut env = BTreeMap::from([
            ("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned()),
            ("LC_ALL".to_owned(), "C".to_owned()),
        ]);
        if login.username.is_some() || login.password.is_some() {
            // The empty one takes away whatever helpers were set before.
            for setting in ["credential.helper=", HELPER] {
                argv.extend(["-c".to_owned(), setting.to_owned()]);
            }
            env.insert("COVE_GIT_USER".into(), login.username.unwrap_or_default());
            env.insert(
                "COVE_GIT_PASSWORD".into(),
                login.password.unwrap_or_default(),
            );
        }
        if let Some(path) = &self.path {
            argv.extend(["-C".to_owned(), path.clone()]);
        }
        argv.extend(words.iter().map(|word| (*word).to_owned()));
        let request = CommandRequest {
            env,
            stdin: input.map(Into::into),
            timeout_ms: Some(TIME_MAX_MS),
            ..CommandRequest::new(owner::DAYTONA, CommandLine::Argv(argv))
        };
        let access = self
            .front
            .control
            .guest(self.caller, self.id, GuestAction::Exec)
            .await?;
        match exec::run_apart(self.front, access, request).await {
            Err(refusal) if refusal.is_missing_program() => Err(Refusal::unsupported(
                "there is no git in this sandbox's image; use one that has it, or install it",
            )),
            outcome => outcome,
        }
    }
}

/// A word git must not take for an option.
pub fn word<'a>(what: &str, text: &'a str) -> Result<&'a str, Refusal> {
    let bad = text.is_empty()
        || text.starts_with('-')
        || text.len() > WORD_MAX
        || text.chars().any(char::is_control);
    match bad {
        false => Ok(text),
        true => Err(Refusal::invalid(format!(
            "{what}: must not be empty, begin with a dash or hold control characters"
        ))),
    }
}

pub fn files(given: &[String]) -> Result<Vec<&str>, Refusal> {
    let bad = |file: &&String| file.is_empty() || file.len() > WORD_MAX || file.contains('\0');
    if given.len() > FILES_MAX || given.iter().any(|file| bad(&file)) {
        let message = format!("files: at most {FILES_MAX} names, none of them empty");
        return Err(Refusal::invalid(message));
    }
    Ok(given.iter().map(String::as_str).collect())
}

/// Git has words for people only; these are the ones its complaints are distinguished by, in this order.
const COMPLAINTS: &[(&[&str], u16, &str)] = &[
    (
        &[
            "Authentication failed",
            "could not read Username",
            "could not read Password",
            "Invalid username or password",
            "The requested URL returned error: 401",
            "The requested URL returned error: 403",
        ],
        401,
        "GIT_AUTH_FAILED",
    ),
    (
        &["[remote rejected]", "pre-receive hook declined"],
        422,
        "GIT_REMOTE_REJECTED",
    ),
    (
        &[
            "[rejected]",
            "non-fast-forward",
            "(fetch first)",
            "stale info",
        ],
        409,
        "GIT_PUSH_REJECTED",
    ),
    (
        &[
            "CONFLICT",
            "Automatic merge failed",
            "unmerged files",
            "have unmerged",
        ],
        409,
        "GIT_MERGE_CONFLICT",
    ),
    (
        &[
            "would be overwritten",
            "commit your changes or stash",
            "uncommitted changes",
        ],
        409,
        "GIT_DIRTY_WORKTREE",
    ),
    (&["a branch named"], 409, "GIT_BRANCH_EXISTS"),
    (
        &[
            "did not match any file(s) known to git",
            "Remote branch",
            "couldn't find remote ref",
            "not found in upstream",
            "src refspec",
            "error: branch '",
            "invalid reference",
        ],
        404,
        "GIT_BRANCH_NOT_FOUND",
    ),
    (
        &[
            "not a git repository",
            "does not appear to be a git repository",
            "cannot change to",
            "The requested URL returned error: 404",
            "' not found",
            "does not exist",
        ],
        404,
        "GIT_REPO_NOT_FOUND",
    ),
    (
        &[
            "Could not resolve host",
            "Failed to connect",
            "Connection refused",
            "timed out",
            "unable to access",
            "Could not read from remote repository",
        ],
        502,
        "GIT_TRANSPORT_FAILED",
    ),
    (&["already exists"], 409, "CONFLICT"),
];

fn meaning(ended: &exec::Both) -> Refusal {
    let said = format!("{}\n{}", ended.stderr.trim(), ended.stdout.trim());
    let said = said.trim();
    let known = COMPLAINTS
        .iter()
        .find(|(words, ..)| words.iter().any(|word| said.contains(word)));
    let message = match said.is_empty() {
        true => format!("git ended with {}", ended.exit.code),
        false => said.to_owned(),
    };
    match known {
        Some((_, status, code)) => Refusal::new(*status, code, message),
        None => Refusal::invalid(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(stderr: &str) -> (u16, String) {
        let ended = exec::Both {
            stdout: String::new(),
            stderr: stderr.to_owned(),
            exit: cove_protocol::message::Exit {
                code: 128,
                ..Default::default()
            },
        };
        let json: serde_json::Value = serde_json::from_str(&meaning(&ended).json("x")).unwrap();
        let status = u16::try_from(json["statusCode"].as_u64().unwrap()).unwrap();
        (status, json["code"].as_str().unwrap().to_owned())
    }

    #[test]
    fn complaints_are_told_apart() {
        for (said, status, expected) in [
            (
                "fatal: Authentication failed for 'http://x/'",
                401,
                "GIT_AUTH_FAILED",
            ),
            (
                "fatal: not a git repository (or any of the parent directories): .git",
                404,
                "GIT_REPO_NOT_FOUND",
            ),
            (
                "error: pathspec 'x' did not match any file(s) known to git",
                404,
                "GIT_BRANCH_NOT_FOUND",
            ),
            (
                "fatal: a branch named 'x' already exists",
                409,
                "GIT_BRANCH_EXISTS",
            ),
            (
                " ! [rejected]        main -> main (fetch first)",
                409,
                "GIT_PUSH_REJECTED",
            ),
            (
                " ! [remote rejected] main -> main (pre-receive hook declined)",
                422,
                "GIT_REMOTE_REJECTED",
            ),
            (
                "error: Your local changes to the following files would be overwritten by checkout:",
                409,
                "GIT_DIRTY_WORKTREE",
            ),
            (
                "fatal: unable to access 'http://x/': Could not resolve host: x",
                502,
                "GIT_TRANSPORT_FAILED",
            ),
            ("fatal: something else", 400, "BAD_REQUEST"),
        ] {
            assert_eq!(code(said), (status, expected.to_owned()), "{said}");
        }
    }

    #[test]
    fn options_are_not_words() {
        assert!(word("branch", "main").is_ok());
        for bad in ["", "-f", "--upload-pack=x", "a\nb"] {
            assert!(word("branch", bad).is_err(), "{bad:?} was taken");
        }
    }
}
