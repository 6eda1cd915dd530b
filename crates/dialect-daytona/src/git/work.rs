//! Working trees: making, adding, committing, branches, undoing.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_dialect::Front;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Git, files, word};
use crate::asking::{Caller, Json, Names, Query};
use crate::files::At;
use crate::refusal::{Answer, Refusal};

/// Commits returned of a history.
const COMMITS: &str = "--max-count=1000";

fn done() -> Answer {
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Init {
    path: String,
    #[serde(default)]
    bare: Option<bool>,
    #[serde(default)]
    initial_branch: Option<String>,
}

pub async fn init(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Init>,
) -> Answer {
    let path = crate::exec::absolute(&front, &caller, &id, body.path).await?;
    let branch = body.initial_branch.filter(|branch| !branch.is_empty());
    let mut words = vec!["init", "--quiet"];
    if body.bare == Some(true) {
        words.push("--bare");
    }
    if let Some(branch) = &branch {
        words.extend(["--initial-branch", word("initial_branch", branch)?]);
    }
    words.extend(["--", &path]);
    Git::nowhere(&front, &caller, &id).say(&words).await?;
    Ok(StatusCode::CREATED.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Add {
    path: String,
    files: Vec<String>,
}

pub async fn add(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Add>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let mut words = vec!["add", "--"];
    words.extend(files(&body.files)?);
    git.say(&words).await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    path: String,
    message: String,
    author: String,
    email: String,
    #[serde(default)]
    allow_empty: Option<bool>,
}

pub async fn commit(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Commit>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let name = format!("user.name={}", word("author", &body.author)?);
    let email = format!("user.email={}", word("email", &body.email)?);
    let mut words = vec!["-c", &name, "-c", &email, "commit", "--quiet", "--file=-"];
    if body.allow_empty == Some(true) {
        words.push("--allow-empty");
    }
    git.run(&words, super::Login::default(), Some(body.message))
        .await?;
    let hash = git.say(&["rev-parse", "HEAD"]).await?;
    Ok(axum::Json(json!({ "hash": hash.trim() })).into_response())
}

pub async fn branches(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(at): Query<At>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, at.path).await?;
    let all = git
        .say(&["for-each-ref", "--format=%(refname:short)", "refs/heads"])
        .await?;
    let current = git.say(&["branch", "--show-current"]).await?;
    let branches: Vec<&str> = all.lines().collect();
    let answer = json!({ "branches": branches, "current": current.trim() });
    Ok(axum::Json(answer).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    path: String,
    name: String,
}

pub async fn create_branch(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Branch>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    git.say(&["branch", word("name", &body.name)?]).await?;
    Ok(StatusCode::CREATED.into_response())
}

pub async fn delete_branch(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Branch>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    git.say(&["branch", "-D", word("name", &body.name)?])
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkout {
    path: String,
    branch: String,
}

pub async fn checkout(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Checkout>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    git.say(&["checkout", "--quiet", word("branch", &body.branch)?, "--"])
        .await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset {
    path: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    files: Option<Vec<String>>,
}

pub async fn reset(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Reset>,
) -> Answer {
    let mode = match body.mode.as_deref() {
        None | Some("") => None,
        Some("soft") => Some("--soft"),
        Some("mixed") => Some("--mixed"),
        Some("hard") => Some("--hard"),
        Some("merge") => Some("--merge"),
        Some("keep") => Some("--keep"),
        Some(_) => {
            return Err(Refusal::invalid(
                "mode: one of soft, mixed, hard, merge and keep",
            ));
        }
    };
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let mut words = vec!["reset", "--quiet"];
    words.extend(mode);
    if let Some(target) = body.target.as_deref().filter(|target| !target.is_empty()) {
        words.push(word("target", target)?);
    }
    let named = body.files.unwrap_or_default();
    if !named.is_empty() {
        words.push("--");
        words.extend(files(&named)?);
    }
    git.say(&words).await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    path: String,
    files: Vec<String>,
    #[serde(default)]
    staged: Option<bool>,
    #[serde(default)]
    worktree: Option<bool>,
    #[serde(default)]
    source: Option<String>,
}

pub async fn restore(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Restore>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let source = match body.source.as_deref().filter(|source| !source.is_empty()) {
        Some(source) => Some(format!("--source={}", word("source", source)?)),
        None => None,
    };
    let mut words = vec!["restore"];
    words.extend(source.as_deref());
    if body.staged == Some(true) {
        words.push("--staged");
    }
    if body.worktree == Some(true) {
        words.push("--worktree");
    }
    words.push("--");
    words.extend(files(&body.files)?);
    git.say(&words).await?;
    done()
}

pub async fn history(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(at): Query<At>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, at.path).await?;
    let format = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B";
    let text = git.say(&["log", "-z", COMMITS, format]).await?;
    let commits = text.split('\0').filter_map(|commit| {
        let mut fields = commit.splitn(5, '\x1f');
        let mut next = || fields.next().map(str::trim_end);
        let (hash, author, email, timestamp) = (next()?, next()?, next()?, next()?);
        Some(json!({
            "hash": hash.trim(),
            "author": author,
            "email": email,
            "timestamp": timestamp,
            "message": next()?,
        }))
    });
    Ok(axum::Json(commits.collect::<Vec<Value>>()).into_response())
}
