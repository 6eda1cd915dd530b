//! The SSH gateway with the clients people use: ssh, scp, sftp and rsync of OpenSSH and friends.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::termios::tcsetwinsize;

use super::harness::{Cove, program, wait_for};
use super::terminal::{TerminalUser, size};

mod editors;
mod leaving;

/// Everything a client needs for one sandbox: a configuration, the server's key, a token.
struct Door {
    config: PathBuf,
    token: String,
}

impl Door {
    /// By a fresh token.
    fn to(cove: &Cove, sandbox: &str) -> Self {
        let access = cove.json(["ssh", sandbox, "--token"]);
        let token = access["token"].as_str().unwrap().to_owned();
        let user = access["user"].as_str().unwrap().to_owned();
        Self::with(cove, &access, &user, token, "PubkeyAuthentication no")
    }

    fn with(
        cove: &Cove,
        access: &serde_json::Value,
        user: &str,
        token: String,
        more: &str,
    ) -> Self {
        let place = tempfile::Builder::new()
            .prefix("door-")
            .tempdir_in(cove.scratch())
            .unwrap()
            .keep();
        let hosts = place.join("known_hosts");
        std::fs::write(&hosts, format!("{}\n", text(&access["known_hosts"]))).unwrap();
        let config = place.join("config");
        let text = format!(
            "Host box\nHostName {}\nPort {}\nUser {user}\nUserKnownHostsFile {}\n\
             GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nUpdateHostKeys no\n\
             NumberOfPasswordPrompts 1\nIdentitiesOnly yes\nLogLevel ERROR\n{more}\n",
            text(&access["host"]),
            access["port"],
            hosts.display(),
        );
        std::fs::write(&config, text).unwrap();
        Self { config, token }
    }

    fn command(&self, program_name: &str) -> Command {
        let mut command = Command::new(program_name);
        command
            .arg("-F")
            .arg(&self.config)
            .env("SSH_ASKPASS", program())
            .env("SSH_ASKPASS_REQUIRE", "force")
            .env("COVE_SSH_TOKEN", &self.token)
            .env_remove("SSH_AUTH_SOCK")
            .stdin(Stdio::null());
        command
    }

    fn ssh<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        self.command("ssh").arg("box").args(args).output().unwrap()
    }

    fn fed(&self, command: &str, input: Vec<u8>) -> Output {
        let mut child = self
            .command("ssh")
            .args(["box", command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeding = std::thread::spawn(move || stdin.write_all(&input).ok());
        let output = child.wait_with_output().unwrap();
        feeding.join().unwrap();
        output
    }

    fn sftp(&self, batch: &str) -> Output {
        let mut child = self
            .command("sftp")
            .args(["-o", "BatchMode=no", "-b", "-", "box"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(batch.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Bytes without a pattern that a broken transfer could hide in.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

fn sleeps(cove: &Cove) -> bool {
    let shown = cove.ok(["exec", "box", "--", "ps"]);
    shown.contains("sleep 4321")
}

/// Killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn commands_have_their_streams_their_end_and_their_user() {
    let mut cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    let output = door.ssh(["echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"out\n"[..], &b"err\n"[..])
    );
    // More than all windows and buffers between hold: input must not keep output from flowing.
    let sent = noise(96 << 20);
    let output = door.fed("cat", sent.clone());
    assert!(output.status.success() && output.stdout == sent, "echoed");
    // A command that ends without reading takes the rest of its input with it.
    let output = door.fed("head -c 3", noise(24 << 20));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 3));
    let output = door.ssh(["kill -9 $$"]);
    assert_eq!(output.status.code(), Some(255), "a signal is no exit code");
    let output = door.ssh([
        "-o",
        "SetEnv=LC_ALL=C GREETING=hello",
        "echo $LC_ALL $GREETING",
    ]);
    assert_eq!(stdout(&output), "C hello\n", "{output:?}");
    let user = format!("1000+{}", text(&cove.json(["show", "box"])["id"]));
    let output = door.ssh(["-l", &user, "id -u"]);
    assert_eq!(stdout(&output), "1000\n", "{output:?}");
    let output = door.ssh(["-l", &user.replace("1000", "nobody-here"), "id -u"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no user"),
        "{output:?}"
    );

    // The program of the command line does all of it by itself.
    let output = cove.run(["ssh", "box", "--", "echo hi; exit 3"]);
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(3), "hi\n"),
        "{output:?}"
    );
    let output = cove.fed(["ssh", "box", "--", "tr a-z A-Z"], b"abc");
    assert_eq!(stdout(&output), "ABC", "{output:?}");

    // A client that is gone takes its command with it.
    let running = Running(
        door.command("ssh")
            .args(["box", "sleep 4321"])
            .spawn()
            .unwrap(),
    );
    wait_for("the command runs", || sleeps(&cove).then_some(()));
    drop(running);
    wait_for("the command is gone with its client", || {
        (!sleeps(&cove)).then_some(())
    });

    // The server is known by the same key after a restart, and the token is still good.
    cove.stop();
    cove.serve();
    let before = std::fs::read_to_string(door.config.with_file_name("known_hosts")).unwrap();
    let door = Door::to(&cove, "box");
    let after = std::fs::read_to_string(door.config.with_file_name("known_hosts")).unwrap();
    assert_eq!(
        before.split(' ').nth(2),
        after.split(' ').nth(2),
        "the host key"
    );
    let other = format!(
        "{} ssh-ed25519 {}\n",
        after.split(' ').next().unwrap(),
        "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    );
    std::fs::write(door.config.with_file_name("known_hosts"), other).unwrap();
    let output = door.ssh(["true"]);
    assert_eq!(
        output.status.code(),
        Some(255),
        "an impostor is not talked to"
    );
}

#[test]
fn a_terminal_has_a_size_a_job_control_and_an_end() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut seat = TerminalUser::new(&cove, &["ssh", "box"]);
    seat.press("echo rea''dy; stty size\n");
    seat.expect("ready");
    seat.expect("30 90");
    tcsetwinsize(&seat.terminal, size(120, 40)).unwrap();
    wait_for("the terminal inside has the new size", || {
        seat.press("echo si''ze $(stty size)\n");
        seat.expect("size ");
        let sized = seat.line();
        (sized.trim() == "40 120").then_some(())
    });
    seat.press("sleep 4321\n");
    wait_for("the command at the terminal runs", || {
        sleeps(&cove).then_some(())
    });
    seat.press("\u{3}");
    seat.press("echo still he''re; exit 9\n");
    seat.expect("still here");
    assert_eq!(seat.end(), Some(9));
}

#[test]
fn sandboxes_at_rest_wake_and_those_that_do_not_run_say_so() {
    let cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    cove.ok(["freeze", "box"]);
    assert_eq!(stdout(&door.ssh(["echo awake"])), "awake\n");
    assert_eq!(cove.json(["show", "box"])["state"], "running");
    if super::travel::captures_memory(&cove) {
        cove.ok(["pause", "box"]);
        assert_eq!(stdout(&door.ssh(["echo again"])), "again\n");
    }
    cove.ok(["stop", "box"]);
    let output = door.ssh(["true"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(255), "{said}");
    assert!(
        said.contains("stopped") && said.contains("cove start"),
        "{said}"
    );
    cove.ok(["rm", "box"]);
    assert_eq!(door.ssh(["true"]).status.code(), Some(255));
}

#[test]
fn files_travel_by_scp_sftp_and_rsync_and_stay_inside() {
    let cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    let scratch = cove.scratch().to_path_buf();
    let big = scratch.join("big");
    let content = noise(20 << 20);
    std::fs::write(&big, &content).unwrap();
    let back = scratch.join("back");
    let copy = |from: &Path, to: &str| {
        let output = door
            .command("scp")
            .args(["-p", "-r"])
            .arg(from)
            .arg(to)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    copy(&big, "box:/tmp/big");
    copy(Path::new("box:/tmp/big"), back.to_str().unwrap());
    assert!(
        std::fs::read(&back).unwrap() == content,
        "the same bytes came back"
    );
    let times = [&big, &back].map(|path| {
        let modified = std::fs::metadata(path).unwrap().modified().unwrap();
        modified
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    });
    assert_eq!(times[0], times[1], "times are kept when asked for");

    let tree = scratch.join("tree");
    std::fs::create_dir_all(tree.join("a/b c")).unwrap();
    std::fs::write(tree.join("a/b c/\u{e9}"), "deep").unwrap();
    copy(&tree, "box:/tmp/");
    let batch = format!(
        "cd /tmp\nls -la tree\nmkdir new\nput {0} new/one\nrename new/one new/two\n\
         ln -s new/two link\nchmod 600 new/two\nget link {0}.got\nls -l new\nrm link\nrm new/two\n\
         rmdir new\ndf -h /tmp\n",
        big.display()
    );
    let output = door.sftp(&batch);
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains("-rw-------"), "{output:?}");
    assert!(std::fs::read(scratch.join("big.got")).unwrap() == content);
    assert_eq!(
        cove.ok(["exec", "box", "--", "cat", "/tmp/tree/a/b c/\u{e9}"]),
        "deep"
    );

    // Nothing of this machine is reached, whatever the path says.
    let secret = scratch.join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let shown = secret.display();
    cove.ok([
        "exec",
        "box",
        "-c",
        &format!("ln -s {shown} /tmp/out; ln -s / /tmp/top"),
    ]);
    let user = format!("1000+{}", text(&cove.json(["show", "box"])["id"]));
    for path in [
        format!("{shown}"),
        format!("/tmp/../../../../../..{shown}"),
        "/tmp/out".to_owned(),
        format!("/tmp/top{shown}"),
        format!("/proc/1/root{shown}"),
        format!("/proc/self/root/..{shown}"),
    ] {
        let output = door.sftp(&format!("get \"{path}\" {}/stolen\n", scratch.display()));
        assert!(!output.status.success(), "{path}: {output:?}");
    }
    assert!(!scratch.join("stolen").exists());
    let output = door
        .command("scp")
        .args(["-o", &format!("User={user}")])
        .arg(&secret)
        .arg("box:/etc/mine")
        .output()
        .unwrap();
    assert!(
        !output.status.success(),
        "a user without the right: {output:?}"
    );

    if !super::needs::has("rsync", Path::new("/usr/bin/rsync").exists()) {
        return;
    }
    give_program(&cove, "/usr/bin/rsync");
    let config = format!("ssh -F {}", door.config.display());
    let rsync = |from: &str, to: &str| {
        let output = door_env(&door, Command::new("rsync"))
            .args(["-a", "-e", &config, from, to])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    rsync(&format!("{}/", tree.display()), "box:/tmp/synced/");
    let back = scratch.join("synced");
    rsync("box:/tmp/synced/", &format!("{}/", back.display()));
    assert_eq!(std::fs::read(back.join("a/b c/\u{e9}")).unwrap(), b"deep");
}

fn door_env(door: &Door, mut command: Command) -> Command {
    command
        .env("SSH_ASKPASS", program())
        .env("SSH_ASKPASS_REQUIRE", "force")
        .env("COVE_SSH_TOKEN", &door.token)
        .stdin(Stdio::null());
    command
}

/// A program of this machine with its libraries, for an image that has none.
fn give_program(cove: &Cove, path: &str) {
    let needed = Command::new("ldd").arg(path).output().unwrap();
    let needed = String::from_utf8(needed.stdout).unwrap();
    let libraries = needed
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for file in libraries.chain([path]) {
        let folder = Path::new(file).parent().unwrap().to_str().unwrap();
        cove.ok(["exec", "box", "--", "mkdir", "-p", folder]);
        let real = std::fs::canonicalize(file).unwrap();
        cove.ok(["cp", real.to_str().unwrap(), &format!("box:{file}")]);
    }
}

#[test]
fn ports_inside_are_forwarded_and_nothing_else_is() {
    let cove = Cove::start();
    cove.sandbox("box");
    cove.ok([
        "exec",
        "box",
        "-c",
        "mkdir /tmp/www && echo inside > /tmp/www/index.html",
    ]);
    cove.ok(["exec", "box", "-c", "httpd -p 127.0.0.1:8000 -h /tmp/www"]);
    let door = Door::to(&cove, "box");
    let local = free_port();
    let _forward = Running(
        door.command("ssh")
            .args([
                "-N",
                "-L",
                &format!("127.0.0.1:{local}:localhost:8000"),
                "box",
            ])
            .spawn()
            .unwrap(),
    );
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", local)).ok()?;
        stream
            .set_read_timeout(Some(super::harness::DEADLINE))
            .ok()?;
        Some(stream)
    };
    wait_for("the forwarded port listens", || connect().map(drop));
    for _ in 0..3 {
        let mut stream = connect().unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("inside\n"), "{answer}");
    }
    // Only so many channels at once; the others go on, and places come back.
    let mut streams: Vec<_> = (0..72).map(|_| connect().unwrap()).collect();
    let refused = wait_for("the channels beyond the limit are refused", || {
        let closed = streams.iter_mut().filter(|stream| {
            stream
                .set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
            matches!(stream.peek(&mut [0]), Ok(0))
        });
        let count = closed.count();
        (count > 0).then_some(count)
    });
    assert!(refused <= 72 - 60, "{refused} were refused");
    drop(streams);
    wait_for("a channel is free again", || {
        let mut stream = connect()?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.ends_with("inside\n").then_some(())
    });

    for (option, what) in [
        ("-W", "10.0.0.1:80"),
        ("-W", "169.254.169.254:80"),
        ("-W", "localhost:9"),
    ] {
        let output = door
            .command("ssh")
            .args([option, what, "box"])
            .output()
            .unwrap();
        assert!(!output.status.success(), "{what}: {output:?}");
    }
    let back = format!("{}:localhost:22", free_port());
    let socket = format!("{}/sock:localhost:22", cove.scratch().display());
    for remote in [back.as_str(), socket.as_str()] {
        let output = door
            .command("ssh")
            .args([
                "-o",
                "ExitOnForwardFailure=yes",
                "-R",
                remote,
                "box",
                "true",
            ])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(255), "{remote}: {output:?}");
    }
    let output = door.ssh(["-A", "-X", "echo ${SSH_AUTH_SOCK:-none} ${DISPLAY:-none}"]);
    assert_eq!(stdout(&output), "none none\n", "{output:?}");
}

#[test]
fn no_socket_is_reached_by_its_path() {
    let cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    // One of the host that answers whoever reaches it, and a path that may be the sandbox's own.
    let trap = cove.scratch().join("trap");
    let listener = UnixListener::bind(&trap).unwrap();
    listener.set_nonblocking(true).unwrap();
    for path in [trap.to_str().unwrap(), "/proc/1/fd/0"] {
        let local = free_port();
        let said = tempfile::NamedTempFile::new_in(cove.scratch()).unwrap();
        let forward = format!("127.0.0.1:{local}:{path}");
        let mut command = door.command("ssh");
        command.args(["-o", "LogLevel=INFO", "-N", "-L", &forward, "box"]);
        let _forward = Running(command.stderr(said.reopen().unwrap()).spawn().unwrap());
        let mut stream = wait_for("the forwarded port listens", || {
            TcpStream::connect(("127.0.0.1", local)).ok()
        });
        let patience = Some(super::harness::DEADLINE);
        stream.set_read_timeout(patience).unwrap();
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => assert_eq!(answer, b"", "{path}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{path}"),
        }
        wait_for("the client says that it was refused", || {
            let said = std::fs::read_to_string(said.path()).unwrap();
            said.contains("open failed").then_some(())
        });
    }
    let reached = listener.accept();
    assert_eq!(reached.unwrap_err().kind(), ErrorKind::WouldBlock);
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn only_whoever_may_gets_in() {
    let cove = Cove::start();
    cove.sandbox("box");
    cove.sandbox("other");
    let access = cove.json(["ssh", "box", "--token"]);
    let token = text(&access["token"]);
    let open = |user: &str, token: &str| {
        let more = "PubkeyAuthentication no\nPreferredAuthentications keyboard-interactive";
        let door = Door::with(&cove, &access, user, token.to_owned(), more);
        door.ssh(["true"]).status.success()
    };
    let id = text(&access["user"]);
    let other = text(&cove.json(["show", "other"])["id"]);
    assert!(open(&id, &token) && open("box", &token));
    let cut = &token[..token.len() - 1];
    let foreign = token.replace(&id, &other);
    for (user, token) in [
        ("other", token.as_str()),
        (other.as_str(), token.as_str()),
        ("other", foreign.as_str()),
        ("box", cut),
        ("box", "nonsense"),
        ("nobody", token.as_str()),
    ] {
        assert!(!open(user, token), "{user} {token}");
    }
    // A password does what the prompt does.
    let more = "PubkeyAuthentication no\nPreferredAuthentications password";
    let door = Door::with(&cove, &access, "box", token.clone(), more);
    assert!(door.ssh(["true"]).status.success());
    let brief = cove.json(["ssh", "box", "--token", "--expires", "1s"]);
    let brief = text(&brief["token"]);
    wait_for("a token ends by itself", || {
        (!open("box", &brief)).then_some(())
    });
    cove.ok(["ssh", "box", "--revoke"]);
    assert!(!open("box", &token), "taken back");
    let fresh = text(&cove.json(["ssh", "box", "--token"])["token"]);
    assert!(open("box", &fresh));

    // A registered key opens its organisation's sandboxes and no other's.
    let key = cove.scratch().join("id");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    let by_key = |user: &str| {
        let more = format!(
            "IdentityFile {}\nPreferredAuthentications publickey",
            key.display()
        );
        let door = Door::with(&cove, &access, user, String::new(), &more);
        door.ssh(["true"]).status.success()
    };
    assert!(!by_key("box"));
    let public = format!("{}.pub", key.display());
    assert!(
        !cove
            .run(["ssh-key", "add", "laptop", key.to_str().unwrap()])
            .status
            .success()
    );
    let added = cove.json(["ssh-key", "add", "laptop", &public]);
    assert!(by_key("box") && by_key("other") && by_key(&id));
    let org = text(&cove.json(["org", "create", "strangers"])["id"]);
    let theirs = cove.ok(["key", "create", "theirs", "--scope", "admin", "--org", &org]);
    let stranger = |args: &[&str]| {
        let mut all = vec!["--api-key", theirs.trim(), "--json"];
        all.extend(args);
        cove.run(all)
    };
    let made = stranger(&[
        "create", "busybox", "--name", "hidden", "--memory", "256M", "--disk", "1G",
    ]);
    let hidden: serde_json::Value =
        serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{made:?}"));
    assert!(!by_key("hidden") && !by_key(&text(&hidden["id"])));
    assert!(!stranger(&["ssh", "box", "--token"]).status.success());
    // The same key for two organisations: names could mean either's, ids cannot.
    assert!(
        stranger(&["ssh-key", "add", "same", &public])
            .status
            .success()
    );
    assert!(!by_key("hidden") && !by_key("box"));
    assert!(by_key(&text(&hidden["id"])) && by_key(&id));
    cove.ok(["ssh-key", "rm", added["id"].as_str().unwrap()]);
    assert!(!by_key(&id));

    let trail = cove.json(["audit", "--limit", "200"]);
    let logins: Vec<_> = trail
        .as_array()
        .unwrap()
        .iter()
        .filter(|record| record["action"] == "ssh.login")
        .collect();
    let seen = |result: &str| {
        logins.iter().any(|login| {
            login["result"] == result
                && login["source"] == "127.0.0.1"
                && login["target"] == id.as_str()
        })
    };
    assert!(seen("ok") && seen("unauthenticated"), "{logins:?}");

    // Guessing is answered slower and then not at all, a good token or not.
    let guessing = || {
        let more = "PubkeyAuthentication no\nPreferredAuthentications keyboard-interactive";
        let door = Door::with(&cove, &access, "box", "guess".into(), more);
        door.command("ssh")
            .args(["-o", "NumberOfPasswordPrompts=6", "box", "true"])
            .output()
            .unwrap()
    };
    wait_for("an address that guesses is not listened to", || {
        guessing();
        (!open("box", &fresh)).then_some(())
    });
}
