//! A server on another machine: logging in, contexts, and certificates that nobody else vouches for.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::harness::{Cove, free_port, program};

const PAGE: &str = include_str!("../../../../docs/remote.md");

/// What `openssl req -x509` makes: self-signed, and marked as an authority.
fn write_certificate(dir: &Path, name: &str, days_ago: Option<i64>) {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    if let Some(days) = days_ago {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1 + days as u8);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), certificate.pem()).unwrap();
}

/// A user with a home of its own and nothing else.
struct User<'a> {
    home: &'a Path,
}

impl User<'_> {
    fn cove(&self, args: &[&str], key: &str) -> Output {
        use std::io::Write;
        let mut child = Command::new(program())
            .args(args)
            .env_clear()
            .env("HOME", self.home)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Commands that read nothing may be gone already.
        writeln!(child.stdin.take().unwrap(), "{key}").ok();
        child.wait_with_output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.cove(args, "");
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail prints.
    fn fails(&self, args: &[&str], key: &str) -> String {
        let output = self.cove(args, key);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn a_user_logs_in_once_and_chooses_between_servers() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    write_certificate(dir.path(), "127.0.0.1", None);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (certificate, key_file) = (path("cert.pem"), path("key.pem"));
    let flags = ["--tls-certificate", &certificate, "--tls-key", &key_file];
    let cove = Cove::start_trusting(&flags, Some(dir.path().join("cert.pem")));
    let read = |name: &str| std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
    let (url, key) = (read("url"), read("root.key"));
    let (url, key) = (url.trim(), key.trim());
    cove.sandbox("box");
    // A server has one name on this command line.
    let user = User { home: dir.path() };
    for more in [["--url", "http://127.0.0.1:1"], ["--context", "work"]] {
        let told = user.fails(
            &["login", url, "--ca-file", &certificate, more[0], more[1]],
            key,
        );
        assert!(
            told.contains("cove login takes no") && told.contains(more[0]),
            "{told}"
        );
    }
    let home = cove.scratch().join("home");
    std::fs::create_dir(&home).unwrap();
    let user = User { home: &home };
    let file = home.join(".config/cove/contexts.json");

    let untrusted = user.fails(&["login", url], key);
    assert!(untrusted.contains("--ca-file"), "{untrusted}");
    let wrong = format!("cove_{}", "0".repeat(64));
    let refused = user.fails(&["login", url, "--ca-file", &certificate], &wrong);
    assert!(refused.contains("does not accept this key"), "{refused}");
    let bad = user.fails(
        &["login", url, "--ca-file", &certificate, "--name", "a b"],
        key,
    );
    assert!(bad.contains("name of a context"), "{bad}");
    assert!(!file.exists(), "a login that failed was kept");

    let login = user.cove(&["login", url, "--ca-file", &certificate], key);
    assert!(login.status.success(), "{login:?}");
    assert!(user.ok(&["ls", "-q"]).contains("sb-") || !user.ok(&["ls"]).is_empty());
    assert_eq!(user.ok(&["exec", "box", "--", "echo", "here"]), "here\n");
    let listed: serde_json::Value =
        serde_json::from_str(&user.ok(&["context", "ls", "--json"])).unwrap();
    assert_eq!(listed[0]["name"], "127.0.0.1");
    assert_eq!(listed[0]["current"], true);
    assert!(!listed.to_string().contains(key), "a key was shown");

    let again = user.cove(
        &["login", url, "--ca-file", &certificate, "--name", "work"],
        key,
    );
    assert!(again.status.success(), "{again:?}");
    user.ok(&["context", "use", "127.0.0.1"]);
    user.ok(&["--context", "work", "show", "box"]);
    user.ok(&["context", "rm", "127.0.0.1"]);
    let gone = user.fails(&["--context", "127.0.0.1", "ls"], "");
    assert!(
        gone.contains("there is no context") && gone.contains("work"),
        "{gone}"
    );
    let both = user.fails(&["--context", "work", "--url", url, "ls"], "");
    assert!(both.contains("both name a server"), "{both}");
    // None is current: the server of this machine, which is not there.
    user.fails(&["--url", "http://127.0.0.1:1", "ls"], "");
    user.ok(&["context", "rm", "work"]);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(key));
}

/// The page's blocks of this language, in order.
fn blocks(language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut lines = PAGE.lines();
    let mut blocks = Vec::new();
    while lines.any(|line| line == fence) {
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(block.join("\n"));
    }
    blocks
}

/// The page's commands and settings, with ports that are free, a directory of the test's own, and no terminal.
#[test]
fn the_page_about_laptops_is_true() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let ports = [7070, 7071, 7072].map(|port| (format!(":{port}"), format!(":{}", free_port())));
    let here = |text: &str| {
        let mut text = text
            .replace("/etc/cove", &path(""))
            .replace("0.0.0.0", "127.0.0.1");
        for (written, free) in &ports {
            text = text.replace(written, free);
        }
        text
    };
    // Lines that are not run as they stand, and what is run in their place.
    let replaced = |block: &str, lines: &[(&str, &str)]| {
        let mut block = format!("\n{block}\n");
        for (written, run) in lines {
            let written = format!("\n{written}\n");
            assert!(
                block.contains(&written),
                "the page lacks {written}: {block}"
            );
            block = block.replace(&written, &format!("\n{run}\n"));
        }
        block
    };
    let [certificate, server, laptop, contexts] = &blocks("sh")[..] else {
        panic!("other commands than this test knows");
    };
    let [settings] = &blocks("toml")[..] else {
        panic!("other settings than this test knows");
    };
    for name in ["bin", "home"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    std::os::unix::fs::symlink(program(), path("bin/cove")).unwrap();
    // The page's names lead to this machine, for these commands only.
    let hosts = "127.0.0.1 localhost cove.example.com\n";
    std::fs::write(path("hosts"), hosts).unwrap();
    let data = dir.path().join("data");
    let sh = |script: &str, home: bool| {
        let script = format!(
            "set -eu\nmount --bind {} /etc/hosts\ncd {}\n{}",
            path("hosts"),
            path(""),
            here(script)
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).env_clear();
        let search = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{search}", path("bin")));
        command.env("HOME", path("home")).stdin(Stdio::null());
        if !home {
            command.env("COVE_DATA_DIR", &data);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{script}\n{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    sh(certificate, true);
    std::fs::write(path("cove.toml"), here(settings)).unwrap();
    let file = path("cove.toml");
    let mut cove = Cove::prepare(&["--config", &file], Some(dir.path().join("cert.pem")));
    cove.listen_at(ports[0].1[1..].parse().unwrap());
    cove.serve();
    cove.import_busybox();
    std::os::unix::fs::symlink(cove.data_dir(), &data).unwrap();
    let made = replaced(
        server,
        &[
            ("systemctl restart cove", ""),
            (
                "cove key create laptop --scope manage",
                "cove key create laptop --scope manage > key",
            ),
        ],
    );
    sh(&made, false);
    let shown = sh(
        &replaced(
            laptop,
            &[
                (
                    "cove login https://cove.example.com:7070 --ca-file cert.pem",
                    "cove login https://cove.example.com:7070 --ca-file cert.pem < key",
                ),
                (
                    "cove run -it debian",
                    "cove run busybox -- echo from a laptop",
                ),
                (
                    "cove create debian --name web",
                    "cove create busybox --name web",
                ),
                ("cove ssh web", "cove ssh web -- echo over ssh"),
            ],
        ),
        true,
    );
    for part in [
        "as context cove.example.com\n",
        "from a laptop\n",
        "over ssh\n",
        &here(".preview.cove.example.com:7071/"),
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let shown = sh(contexts, true);
    assert!(
        shown.contains(&here("https://cove.example.com:7070")),
        "{shown}"
    );
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn a_given_certificate_counts_for_its_name_and_in_its_time_only() {
    for (name, days_ago, reason) in [
        ("other.example", None, "certificate"),
        ("127.0.0.1", Some(2), "xpired"),
    ] {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        write_certificate(dir.path(), name, days_ago);
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (certificate, key_file) = (path("cert.pem"), path("key.pem"));
        let flags = ["--tls-certificate", &certificate, "--tls-key", &key_file];
        let mut cove = Cove::prepare(&flags, None);
        cove.launch(&[]);
        let url = super::harness::wait_for("the server listens", || {
            std::fs::read_to_string(cove.data_dir().join("url")).ok()
        });
        let home = tempfile::tempdir_in("/var/tmp").unwrap();
        let user = User { home: home.path() };
        let key = format!("cove_{}", "0".repeat(64));
        let refused = super::harness::wait_for("the server answers", || {
            let text = user.fails(&["login", url.trim(), "--ca-file", &certificate], &key);
            (!text.contains("refused")).then_some(text)
        });
        assert!(refused.contains(reason), "{refused}");
        assert!(!refused.contains("does not accept this key"), "{refused}");
    }
}

#[test]
fn a_certificate_that_cannot_be_used_stops_the_server_before_it_makes_anything() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    write_certificate(dir.path(), "127.0.0.1", None);
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("broken.pem"), "no certificate").unwrap();
    let data = path("data");
    for (certificate, told) in [
        (path("missing.pem"), "missing.pem"),
        (path("broken.pem"), "TLS certificate"),
    ] {
        let key = path("key.pem");
        let flags = ["--tls-certificate", &certificate, "--tls-key", &key];
        let output = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", &data])
            .args(flags)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(told), "{said}");
        assert!(!Path::new(&data).exists(), "a data directory was made");
    }
}

#[test]
fn commands_without_a_server_refuse_the_options_of_a_connection() {
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(program());
        command.args(args).env("HOME", home.path());
        command.env("COVE_URL", "http://127.0.0.1:1");
        command.output().unwrap()
    };
    for command in [&["config"][..], &["context", "ls"], &["man"]] {
        let given = run(command);
        assert!(
            given.status.success(),
            "the environment is for others: {given:?}"
        );
        for option in ["--url", "--api-key", "--ca-file", "--context"] {
            let refused = run(&[command, &[option, "x"]].concat());
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("takes no {option}")), "{said}");
            let refused = run(&[&[option, "x"], command].concat());
            assert_eq!(
                refused.status.code(),
                Some(1),
                "{option} before {command:?}"
            );
        }
    }
}
