//! Unmodified clients in a sandbox's network: they trust the organisation's authority, hold placeholders, and work.

use std::path::Path;
use std::process::{Command, Output};

use crate::secrets::{BOUND, PORT, Scene, path};
use crate::signing::python;
use crate::world::*;

/// A program in the network of `pid`, which must do its work.
fn inside(pid: i32, ca: &str, program: &[&str], env: &[(&str, &str)]) -> String {
    let done: Output = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args(program)
        .env("SSL_CERT_FILE", ca)
        .env("CURL_CA_BUNDLE", ca)
        .env("REQUESTS_CA_BUNDLE", ca)
        .env("GIT_SSL_CAINFO", ca)
        .env("NODE_EXTRA_CA_CERTS", ca)
        .envs(env.iter().copied())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let failed = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program:?}: {said}\n{failed}");
    said
}

/// A repository with one file, as a web server that knows nothing of git offers it.
fn repository(dir: &Path) {
    let script = "git init -q work && cd work && echo hello > file && git add file &&
        git -c user.name=a -c user.email=a@b commit -qm first && cd .. &&
        git clone -q --bare work repo.git && git -C repo.git update-server-info";
    let made = Command::new("sh")
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .status();
    assert!(made.expect("sh is installed").success(), "git is installed");
}

const REQUESTS: &str = "
import os, socket, requests
found = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: found(os.environ['ADDRESS'] if host == os.environ['NAME'] else host, *rest, **more)
print(requests.get(os.environ['URL'], headers={'Authorization': 'Bearer ' + os.environ['TOKEN']}).text)
";
const NODE: &str = "
const dns = require('dns');
const found = dns.lookup;
dns.lookup = (host, options, done) => found(host === process.env.NAME ? process.env.ADDRESS : host, options, done);
fetch(process.env.URL, {headers: {'X-API-Key': process.env.KEY}}).then(r => r.text()).then(console.log);
";

#[tokio::test(flavor = "multi_thread")]
async fn curl_git_requests_and_node_work_with_placeholders() {
    let python = python("secrets-requests", &["requests==2.32.5"]);
    let scene = Scene::new().await;
    repository(scene.dir());
    let (made, pid) = scene.sandbox(None).await;
    let ca = path(scene.dir(), "authority.pem");
    let url = format!("https://{BOUND}:{PORT}");
    let echo = format!("{url}/echo");
    let address = PUBLIC.to_string();
    let resolve = format!("{BOUND}:{PORT}:{address}");
    let of = |name: &str| made.placeholders[name].as_str();
    let bearer = format!("Authorization: Bearer {}", of("bearer"));
    let env = [
        ("ADDRESS", address.as_str()),
        ("NAME", BOUND),
        ("URL", &echo),
        ("TOKEN", of("bearer")),
        ("KEY", of("header")),
    ];
    // Each got an answer about a request that had the value, in which the value is a placeholder again.
    let said = inside(
        pid,
        &ca,
        &[
            "curl",
            "-sS",
            "--compressed",
            "--resolve",
            &resolve,
            "-H",
            &bearer,
            &echo,
        ],
        &env,
    );
    assert!(
        said.contains(of("bearer")) && !said.contains("canary"),
        "{said}"
    );
    let said = inside(pid, &ca, &[&python, "-c", REQUESTS], &env);
    assert!(
        said.contains(of("bearer")) && !said.contains("canary"),
        "{said}"
    );
    let said = inside(pid, &ca, &["node", "-e", NODE], &env);
    assert!(
        said.contains(of("header")) && !said.contains("canary"),
        "{said}"
    );
    assert_eq!(
        scene.seen()["headers"]["x-api-key"],
        "canary-header=0123456789"
    );
    // A private repository, with the placeholder as the password.
    let repo = format!("https://git:{}@{BOUND}:{PORT}/repo.git", of("basic"));
    let copy = path(scene.dir(), "copy");
    let resolve = format!("http.curloptResolve={resolve}");
    inside(
        pid,
        &ca,
        &["git", "-c", &resolve, "clone", "-q", &repo, &copy],
        &env,
    );
    let file = std::fs::read_to_string(scene.dir().join("copy/file"));
    assert_eq!(file.expect("it was cloned"), "hello\n");
}
