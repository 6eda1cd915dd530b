//! Other repositories, and git's own settings.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use cove_dialect::Front;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Git, Login, word};
use crate::asking::{Caller, Json, Names, Query};
use crate::files::At;
use crate::refusal::{Answer, Refusal};

fn done() -> Answer {
    Ok(StatusCode::OK.into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clone {
    url: String,
    path: String,
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    commit_id: Option<String>,
    #[serde(default)]
    depth: Option<u32>,
    #[serde(default)]
    insecure_skip_tls: Option<bool>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

pub async fn clone(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Clone>,
) -> Answer {
    let path = crate::exec::absolute(&front, &caller, &id, body.path).await?;
    let depth = body.depth.map(|depth| depth.max(1).to_string());
    let branch = body.branch.filter(|branch| !branch.is_empty());
    let mut words = Vec::new();
    if body.insecure_skip_tls == Some(true) {
        words.extend(["-c", "http.sslVerify=false"]);
    }
    words.extend(["clone", "--quiet"]);
    if let Some(branch) = &branch {
        words.extend(["--branch", word("branch", branch)?]);
    }
    if let Some(depth) = &depth {
        words.extend(["--depth", depth]);
    }
    words.extend(["--", word("url", &body.url)?, &path]);
    let login = Login {
        username: body.username,
        password: body.password,
    };
    let git = Git::nowhere(&front, &caller, &id);
    git.run(&words, login, None).await?;
    if let Some(commit) = body.commit_id.filter(|commit| !commit.is_empty()) {
        let git = Git::at(&front, &caller, &id, path).await?;
        let commit = word("commit_id", &commit)?;
        git.say(&["checkout", "--quiet", "--detach", commit])
            .await?;
    }
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    path: String,
    #[serde(default)]
    remote: Option<String>,
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    set_upstream: Option<bool>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

pub async fn push(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Push>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let remote = body.remote.filter(|remote| !remote.is_empty());
    let branch = body.branch.filter(|branch| !branch.is_empty());
    let mut words = vec!["push", "--quiet"];
    if body.set_upstream == Some(true) {
        words.push("--set-upstream");
    }
    words.push(word("remote", remote.as_deref().unwrap_or("origin"))?);
    words.push(word("branch", branch.as_deref().unwrap_or("HEAD"))?);
    let login = Login {
        username: body.username,
        password: body.password,
    };
    git.run(&words, login, None).await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pull {
    path: String,
    #[serde(default)]
    remote: Option<String>,
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
}

pub async fn pull(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Pull>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let remote = body.remote.filter(|remote| !remote.is_empty());
    let branch = body.branch.filter(|branch| !branch.is_empty());
    let mut words = vec!["pull", "--quiet", "--no-rebase", "--no-edit"];
    if remote.is_some() || branch.is_some() {
        words.push(word("remote", remote.as_deref().unwrap_or("origin"))?);
    }
    if let Some(branch) = &branch {
        words.push(word("branch", branch)?);
    }
    let login = Login {
        username: body.username,
        password: body.password,
    };
    git.run(&words, login, None).await?;
    done()
}

pub async fn remotes(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(at): Query<At>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, at.path).await?;
    git.say(&["rev-parse", "--git-dir"]).await?;
    let words = ["config", "-z", "--get-regexp", r"^remote\..*\.url$"];
    let ended = git.ask(&words, Login::default(), None).await?;
    let remotes = ended.stdout.split('\0').filter_map(|setting| {
        let (key, url) = setting.split_once('\n')?;
        let name = key.strip_prefix("remote.")?.strip_suffix(".url")?;
        Some(json!({ "name": name, "url": url }))
    });
    let remotes: Vec<Value> = remotes.collect();
    Ok(axum::Json(json!({ "remotes": remotes })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRemote {
    path: String,
    name: String,
    url: String,
    #[serde(default)]
    fetch: Option<bool>,
    #[serde(default)]
    overwrite: Option<bool>,
}

pub async fn add_remote(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<AddRemote>,
) -> Answer {
    let git = Git::at(&front, &caller, &id, body.path).await?;
    let (name, url) = (word("name", &body.name)?, word("url", &body.url)?);
    let exists = git
        .ask(&["remote", "get-url", name], Login::default(), None)
        .await?;
    match exists.exit.code == 0 && body.overwrite == Some(true) {
        true => git.say(&["remote", "set-url", name, url]).await?,
        false => git.say(&["remote", "add", name, url]).await?,
    };
    if body.fetch == Some(true) {
        git.say(&["fetch", "--quiet", name]).await?;
    }
    Ok(StatusCode::CREATED.into_response())
}

/// Whose settings: everybody's in the sandbox, the user's, or the repository's.
async fn scoped<'a>(
    front: &'a Front,
    caller: &'a cove_control::Principal,
    id: &'a str,
    scope: Option<&str>,
    path: Option<String>,
) -> Result<(Git<'a>, &'static str), Refusal> {
    let scope = match scope.unwrap_or("global") {
        "global" | "" => "--global",
        "system" => "--system",
        "local" => "--local",
        _ => return Err(Refusal::invalid("scope: one of global, local and system")),
    };
    let path = path.filter(|path| !path.is_empty());
    match (scope, path) {
        ("--local", None) => Err(Refusal::invalid("path: needed when scope is local")),
        ("--local", Some(path)) => Ok((Git::at(front, caller, id, path).await?, scope)),
        _ => Ok((Git::nowhere(front, caller, id), scope)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetConfig {
    key: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    path: Option<String>,
}

pub async fn get_config(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Query(query): Query<GetConfig>,
) -> Answer {
    let key = word("key", &query.key)?;
    let (git, scope) = scoped(&front, &caller, &id, query.scope.as_deref(), query.path).await?;
    let words = ["config", scope, "-z", "--get", key];
    let ended = git.ask(&words, Login::default(), None).await?;
    let value = match ended.exit.code {
        0 => Some(ended.stdout.trim_end_matches('\0')),
        // Not set.
        1 => None,
        _ => {
            git.say(&words).await?;
            None
        }
    };
    Ok(axum::Json(json!({ "value": value })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetConfig {
    key: String,
    value: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    path: Option<String>,
}

pub async fn set_config(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<SetConfig>,
) -> Answer {
    let key = word("key", &body.key)?;
    let (git, scope) = scoped(&front, &caller, &id, body.scope.as_deref(), body.path).await?;
    git.say(&["config", scope, "--", key, &body.value]).await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    name: String,
    email: String,
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    path: Option<String>,
}

pub async fn user(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<User>,
) -> Answer {
    let (git, scope) = scoped(&front, &caller, &id, body.scope.as_deref(), body.path).await?;
    git.say(&["config", scope, "--", "user.name", &body.name])
        .await?;
    git.say(&["config", scope, "--", "user.email", &body.email])
        .await?;
    done()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authenticate {
    username: String,
    password: String,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    protocol: Option<String>,
}

/// Leaves the password in a file inside, which is why the SDKs call it dangerous.
pub async fn authenticate(
    State(front): State<Front>,
    Caller(caller): Caller,
    Names(id): Names<String>,
    Json(body): Json<Authenticate>,
) -> Answer {
    let host = body.host.filter(|host| !host.is_empty());
    let protocol = body.protocol.filter(|protocol| !protocol.is_empty());
    let fields = [
        ("protocol", protocol.as_deref().unwrap_or("https")),
        ("host", host.as_deref().unwrap_or("github.com")),
        ("username", body.username.as_str()),
        ("password", body.password.as_str()),
    ];
    if fields
        .iter()
        .any(|(_, value)| value.chars().any(char::is_control))
    {
        return Err(Refusal::invalid(
            "credentials must not hold control characters",
        ));
    }
    let input: String = fields
        .iter()
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect();
    let git = Git::nowhere(&front, &caller, &id);
    git.say(&["config", "--global", "--", "credential.helper", "store"])
        .await?;
    let words = ["credential", "approve"];
    git.run(&words, Login::default(), Some(format!("{input}\n")))
        .await?;
    done()
}
