//! Previews in a real browser: a page served inside a sandbox, with its scripts, events, WebSockets and
//! cookies, and what it may not do to its neighbours and to the API.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::harness::{Cove, DEADLINE, wait_for};

const BROWSERS: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromium-browser"];
const PYTHON: &str = "/usr/bin/python3";
/// What the server inside imports.
const MODULES: &str = "base64, hashlib, json, os, socket, ssl, sys, threading, encodings.idna, encodings.ascii, encodings.latin_1, encodings.utf_8, encodings.idna, site";

/// The browser of this host. `scripts/setup test` installs one wherever the distribution has it as a
/// package.
fn program() -> Option<&'static str> {
    static PROGRAM: LazyLock<Option<&'static str>> = LazyLock::new(|| {
        let found = choose(&BROWSERS);
        super::needs::has("browser", found.is_some());
        found
    });
    *PROGRAM
}

/// The first that runs: a distribution may have a file of that name that only says where to get one.
fn choose(browsers: &[&'static str]) -> Option<&'static str> {
    let runs = |path: &&&str| {
        let version = Command::new(path).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    browsers.iter().find(runs).copied()
}

#[test]
fn a_browser_counts_only_if_it_runs() {
    assert_eq!(choose(&["/nonexistent/chromium", "/bin/false"]), None);
    let second = choose(&["/nonexistent/chromium", "/bin/true"]);
    assert_eq!(second, Some("/bin/true"));
}

struct Browser {
    profile: PathBuf,
    running: Option<Child>,
}

impl Browser {
    fn new(cove: &Cove) -> Self {
        Self {
            profile: cove.scratch().join("profile"),
            running: None,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program().expect("looked for before"));
        command
            // Its own sandbox does not work for root; what it loads here is our own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
            .args([
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--no-proxy-server",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .env("HOME", &self.profile)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Opens a page and stays there until [`Browser::leave`].
    fn open(&mut self, address: &str) {
        let mut command = self.command();
        // Its helpers are in its group, and go with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.args(["--remote-debugging-port=0", address]);
        self.running = Some(command.spawn().unwrap());
    }

    fn leave(&mut self) {
        let Some(mut child) = self.running.take() else {
            return;
        };
        let group = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        // As a person would close it, so that it writes its cookies down.
        rustix::process::kill_process(group, rustix::process::Signal::TERM).ok();
        let started = Instant::now();
        while child.try_wait().is_ok_and(|ended| ended.is_none()) && started.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(20));
        }
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).ok();
        child.wait().ok();
    }

    /// What a page became after it was loaded.
    fn text_of(&self, address: &str) -> String {
        let mut command = self.command();
        command.args(["--dump-dom", "--timeout=60000", address]);
        let output = command.stdout(Stdio::piped()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.leave();
    }
}

fn copy(root: &Path, file: &str) {
    let to = root.join(file.trim_start_matches('/'));
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(std::fs::canonicalize(file).unwrap(), to).unwrap();
}

/// Files of this machine's Python that a server needs, and the libraries that those need.
fn give_python(root: &Path) {
    let listing = format!(
        "import {MODULES}\nfor m in list(sys.modules.values()):\n  f = getattr(m, '__file__', None)\n  if f: print(f)\nprint(sys.executable)"
    );
    let listed = Command::new(PYTHON)
        .args(["-I", "-c", &listing])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut files: Vec<String> = listed.lines().map(str::to_owned).collect();
    files.push(PYTHON.into());
    for file in files.clone() {
        if !(file.ends_with(".so") || file.contains("/bin/")) {
            continue;
        }
        let needed = Command::new("ldd").arg(&file).output().unwrap();
        let needed = String::from_utf8(needed.stdout).unwrap();
        let libraries = needed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        files.extend(libraries.map(|word| word.trim_end_matches(':').to_owned()));
    }
    files.sort();
    files.dedup();
    for file in files {
        copy(root, &file);
    }
}

/// A sandbox `web` with the server's program in it.
fn sandbox(cove: &Cove) {
    let root = cove.scratch().join("python");
    give_python(&root);
    std::fs::create_dir_all(root.join("srv")).unwrap();
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    std::fs::write(
        root.join("srv/server.py"),
        include_str!("browser/server.py"),
    )
    .unwrap();
    std::fs::write(
        root.join("srv/page.html"),
        include_str!("browser/page.html"),
    )
    .unwrap();
    copy(&root, "/bin/busybox");
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/cat")).unwrap();
    cove.ok(["image", "import", "python", root.to_str().unwrap()]);
    cove.ok([
        "create", "python", "--name", "web", "--memory", "512M", "--disk", "1G",
    ]);
}

fn serve(cove: &Cove, port: &str, more: &str) {
    let command =
        format!("{PYTHON} -I /srv/server.py {port} {more} < /dev/null > /dev/null 2>&1 &");
    cove.ok(["exec", "web", "-c", &command]);
    wait_for("the server inside listens", || {
        let ports = cove.json(["ports", "web"]);
        let listed = ports.as_array().unwrap().iter();
        let port: u64 = port.parse().unwrap();
        listed
            .into_iter()
            .any(|shown| shown["port"] == port)
            .then_some(())
    });
}

fn url(cove: &Cove, port: u64) -> String {
    let ports = cove.json(["ports", "web"]);
    let shown = ports
        .as_array()
        .unwrap()
        .iter()
        .find(|shown| shown["port"] == port);
    shown.unwrap()["url"].as_str().unwrap().to_owned()
}

#[test]
fn a_page_inside_works_in_a_browser_and_stays_in_its_place() {
    if program().is_none() {
        return;
    }
    let cove = Cove::start();
    sandbox(&cove);
    serve(&cove, "8000", "");
    serve(&cove, "8001", "");
    let (page, neighbour) = (url(&cove, 8000), url(&cove, 8001));
    let api = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
    // A name of the API's machine that shares as much with the previews as a name can.
    let api = api.trim().replace("127.0.0.1", "localhost");
    let link = cove.ok(["share", "web", "8000"]);
    let link = link.trim();
    let mut browser = Browser::new(&cove);
    assert!(
        browser.text_of(&page).contains("private"),
        "nobody gave it a link yet"
    );

    browser.open(&format!("{link}#neighbour={neighbour}&api={api}"));
    let report = wait_for("the page has reported", || {
        let output = cove.run(["exec", "web", "--", "cat", "/tmp/report"]);
        serde_json::from_slice::<Value>(&output.stdout).ok()
    });
    browser.leave();
    let place = report["place"].as_str().unwrap();
    assert!(
        place.starts_with(&page) && !place.contains("token"),
        "{place}"
    );
    assert_eq!(
        report["events"],
        serde_json::json!(["0", "1", "2"]),
        "{report}"
    );
    assert_eq!(
        report["socket"],
        serde_json::json!(["hello", "long"]),
        "{report}"
    );
    assert_eq!(report["size"], "3000000", "{report}");
    // The server inside never sees what let its visitor in, and neither do its scripts.
    let seen = report["seen"].to_string();
    assert!(
        seen.contains("theirs=1") && !seen.contains("cove"),
        "{seen}"
    );
    let cookies = report["cookies"].as_str().unwrap();
    assert!(
        cookies.contains("mine=2") && !cookies.contains("cove_preview=ey"),
        "{cookies}"
    );
    let token = cove.json(["share", "web", "8000"])["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let signature = token.rsplit('.').next().unwrap();
    assert!(!cookies.contains(signature), "{cookies}");
    // The cookie is this host's alone, and the API wants none.
    for (what, of) in [("neighbour", &report["neighbour"]), ("api", &report["api"])] {
        let outcome = of.to_string();
        assert!(
            outcome.contains("failed") || outcome == "401",
            "{what}: {report}"
        );
    }
    assert_eq!(report["neighbourSocket"], "failed: refused", "{report}");

    // The browser comes back without the link: this port is open to it, the one beside it is not.
    assert!(
        browser.text_of(&page).contains("<title>"),
        "the cookie was not kept"
    );
    let beside = browser.text_of(&neighbour);
    assert!(beside.contains("private"), "{beside}");
    let answered = browser.text_of(&format!("{api}/v1/sandboxes"));
    assert!(answered.contains("unauthenticated"), "{answered}");
    // Taken back, the cookie is worth nothing.
    cove.ok(["share", "web", "8000", "--revoke"]);
    assert!(browser.text_of(&page).contains("private"));
}

#[test]
fn a_server_inside_that_speaks_tls_is_told_apart() {
    if program().is_none() {
        return;
    }
    let cove = Cove::start();
    sandbox(&cove);
    let certificate = cove.scratch().join("tls.pem");
    let key = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let pem = format!("{}{}", key.cert.pem(), key.signing_key.serialize_pem());
    std::fs::write(&certificate, pem).unwrap();
    cove.ok(["cp", certificate.to_str().unwrap(), "web:/tmp/tls.pem"]);
    serve(&cove, "8443", "/tmp/tls.pem");
    let browser = Browser::new(&cove);
    let link = cove.ok(["share", "web", "8443"]);
    let shown = browser.text_of(link.trim());
    assert!(shown.contains("does not speak HTTP"), "{shown}");
    assert!(
        shown.contains("port-forward") && shown.contains("TLS"),
        "{shown}"
    );
}
