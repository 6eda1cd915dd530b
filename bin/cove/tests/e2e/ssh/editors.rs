//! What editors do over SSH (VS Code Remote, JetBrains Gateway), done with OpenSSH's own client: a script
//! on standard input beside a SOCKS port, many channels on one connection that is kept, files by every
//! protocol of scp, and a server whose key is looked up as `known_hosts` is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::super::harness::{Cove, DEADLINE, wait_for};
use super::{Door, Running, door_env, free_port, give_program, noise, stdout, text};

/// Channels used at once on one connection.
const CHANNELS: usize = 24;

fn serve_page(cove: &Cove) {
    cove.ok([
        "exec",
        "box",
        "-c",
        "mkdir /tmp/www && echo inside > /tmp/www/index.html && httpd -p 127.0.0.1:8000 -h /tmp/www",
    ]);
}

/// What the page of [`serve_page`] is at a forwarded port.
fn page_at(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

/// Connects through a SOCKS5 port; the code of its answer, and the connection when that is good.
fn socks(port: u16, host: &str, to: u16) -> Option<(u8, TcpStream)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    stream.write_all(&[5, 1, 0]).ok()?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).ok()?;
    assert_eq!(method, [5, 0], "no login is needed");
    let mut request = vec![5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    request.extend(host.bytes());
    request.extend(to.to_be_bytes());
    stream.write_all(&request).ok()?;
    let mut answer = [0; 4];
    match stream.read_exact(&mut answer) {
        Ok(()) => Some((answer[1], stream)),
        // ssh hangs up on what was refused.
        Err(_) => Some((u8::MAX, stream)),
    }
}

#[test]
fn a_script_on_standard_input_runs_beside_a_socks_port() {
    let cove = Cove::start();
    cove.sandbox("box");
    serve_page(&cove);
    let door = Door::to(&cove, "box");
    let port = free_port();
    // As editors install themselves: no terminal, a shell that reads a script, and stays.
    let mut child = Running(
        door.command("ssh")
            .args(["-T", "-D", &format!("127.0.0.1:{port}"), "box", "sh"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut stdin = child.0.stdin.take().unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap());
    let script = "set -e\nmkdir -p \"$HOME/.editor\"\ncat > \"$HOME/.editor/run\" <<'END'\n#!/bin/sh\n\
                  echo \"serving as $(id -u) from $1\"\nEND\nchmod +x \"$HOME/.editor/run\"\n\
                  [ -t 0 ] && echo a terminal || echo no terminal\n\"$HOME/.editor/run\" here\n";
    stdin.write_all(script.as_bytes()).unwrap();
    let mut line = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    assert_eq!(line(), "no terminal");
    assert_eq!(line(), "serving as 0 from here");

    let (code, mut stream) = wait_for("the SOCKS port listens", || socks(port, "localhost", 8000));
    assert_eq!(code, 0);
    // The rest of the answer: an address and a port of no meaning.
    stream.read_exact(&mut [0; 6]).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.ends_with("inside\n"), "{page}");
    for other in [
        "10.0.0.1",
        "169.254.169.254",
        "example.org",
        "::ffff:7f00:1x",
    ] {
        let (code, _) = socks(port, other, 8000).unwrap();
        assert_ne!(code, 0, "{other} was reached");
    }
    // ssh would wait for it before it ends.
    drop(stream);
    // The shell is still there, and says how it ends.
    stdin.write_all(b"echo still; exit 6\n").unwrap();
    assert_eq!(line(), "still");
    assert_eq!(child.0.wait().unwrap().code(), Some(6));
}

/// Ends a kept connection also when the test fails.
struct Master<'a> {
    door: &'a Door,
    socket: PathBuf,
}

impl<'a> Master<'a> {
    fn open(door: &'a Door, cove: &Cove) -> Self {
        // Names of sockets are short.
        let socket = cove.scratch().join("m");
        let master = Self { door, socket };
        let output = door
            .command("ssh")
            .arg("-S")
            .arg(&master.socket)
            // Its log goes with the caller's pipes, which would never end.
            .args(["-M", "-o", "ControlPersist=yes", "-N", "-f", "box"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(output.success());
        master
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.door.command("ssh");
        command.arg("-S").arg(&self.socket).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

impl Drop for Master<'_> {
    fn drop(&mut self) {
        self.run(&["-O", "exit", "box"]);
    }
}

fn logins(cove: &Cove) -> usize {
    let trail = cove.json(["audit", "--limit", "200"]);
    let records = trail.as_array().unwrap().iter();
    records
        .filter(|record| record["action"] == "ssh.login")
        .count()
}

#[test]
fn one_kept_connection_carries_many_channels_of_every_kind() {
    let cove = Cove::start();
    cove.sandbox("box");
    serve_page(&cove);
    let door = Door::to(&cove, "box");
    let master = Master::open(&door, &cove);
    let mut running: Vec<_> = (0..CHANNELS)
        .map(|number| {
            let child = master
                .command(&[
                    "box",
                    &format!("read line; echo {number} $line; exit {number}"),
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            (number, child)
        })
        .collect();
    // All of them are there at once, and each has its own streams and its own end.
    for (number, child) in running.iter_mut().rev() {
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "to {number}").unwrap();
    }
    for (number, child) in running {
        let output = child.wait_with_output().unwrap();
        assert_eq!(stdout(&output), format!("{number} to {number}\n"));
        assert_eq!(output.status.code(), i32::try_from(number).ok());
    }
    // Ports are added to a connection that stands, and taken away again. Another program may take a free port
    // before ssh does, and after it.
    let (local, forward) = wait_for("a port is forwarded", || {
        let local = free_port();
        let forward = format!("127.0.0.1:{local}:127.0.0.1:8000");
        let forwarded = master.run(&["-O", "forward", "-L", &forward, "box"]);
        forwarded.status.success().then_some((local, forward))
    });
    let page = page_at(local).unwrap();
    assert!(page.ends_with("inside\n"), "{page}");
    assert!(
        master
            .run(&["-O", "cancel", "-L", &forward, "box"])
            .status
            .success()
    );
    wait_for("the port is given up", || {
        let page = page_at(local).unwrap_or_default();
        (!page.ends_with("inside\n")).then_some(())
    });
    // Files go over the same connection.
    let content = noise(3 << 20);
    let file = cove.scratch().join("file");
    std::fs::write(&file, &content).unwrap();
    let control = format!("ControlPath={}", master.socket.display());
    let copied = door
        .command("scp")
        .args(["-o", &control])
        .arg(&file)
        .arg("box:/tmp/file")
        .status()
        .unwrap();
    assert!(copied.success());
    let output = master.run(&["box", "cat /tmp/file"]);
    assert!(output.stdout == content, "the same bytes");
    // What is refused is reported, and costs the others nothing.
    let output = master.run(&[
        "-O",
        "forward",
        "-R",
        &format!("{}:localhost:1", free_port()),
        "box",
    ]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(stdout(&master.run(&["box", "echo alive"])), "alive\n");
    assert_eq!(logins(&cove), 1, "all of it on one login");
}

#[test]
fn clients_that_ask_whether_the_server_is_there_are_answered() {
    let cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    // Without an answer to two questions a second apart ssh would give up.
    let output = door
        .command("ssh")
        .args(["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"])
        .args(["box", "sleep 6; echo alive"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "alive\n", "{output:?}");
    // One port inside on standard input and output, which is what a jump to a server inside is.
    serve_page(&cove);
    let mut child = Running(
        door.command("ssh")
            .args(["-W", "localhost:8000", "box"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut stdin = child.0.stdin.take().unwrap();
    stdin.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    child
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut page)
        .unwrap();
    assert!(page.ends_with("inside\n"), "{page}");
}

#[test]
fn files_travel_by_the_older_protocol_too_where_the_image_has_it() {
    let cove = Cove::start();
    cove.sandbox("box");
    let door = Door::to(&cove, "box");
    let content = noise(2 << 20);
    let file = cove.scratch().join("file");
    std::fs::write(&file, &content).unwrap();
    let copy = |protocol: &str, from: &str, to: &str| {
        door.command("scp")
            .args([protocol, from, to])
            .output()
            .unwrap()
    };
    let here = file.to_str().unwrap();
    let output = copy("-O", here, "box:/tmp/old");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("scp"), "{said}");
    give_program(&cove, "/usr/bin/scp");
    // It wants to know its user's name.
    let passwd = "mkdir -p /etc /root && echo root:x:0:0:root:/root:/bin/sh > /etc/passwd";
    cove.ok(["exec", "box", "-c", passwd]);
    for protocol in ["-O", "-s"] {
        let output = copy(protocol, here, "box:/tmp/copied");
        assert!(output.status.success(), "{protocol}: {output:?}");
        let back = cove.scratch().join(format!("back{protocol}"));
        let output = copy(protocol, "box:/tmp/copied", back.to_str().unwrap());
        assert!(output.status.success(), "{protocol}: {output:?}");
        assert!(std::fs::read(&back).unwrap() == content, "{protocol}");
    }
}

#[test]
fn the_server_is_known_by_the_key_that_the_api_tells() {
    let cove = Cove::start();
    cove.sandbox("box");
    let access = cove.json(["ssh", "box", "--token"]);
    let door = Door::with(&cove, &access, "box", text(&access["token"]), "");
    let hosts = door.config.with_file_name("known_hosts");
    let port = access["port"].to_string();
    let host = text(&access["host"]);
    let found = Command::new("ssh-keygen")
        .args(["-l", "-F", &format!("[{host}]:{port}"), "-f"])
        .arg(&hosts)
        .output()
        .unwrap();
    assert!(found.status.success(), "{found:?}");
    assert!(
        stdout(&found).contains(&text(&access["fingerprint"])),
        "{found:?}"
    );
    // And that is the key the server really has.
    let scanned = Command::new("ssh-keyscan")
        .args(["-p", &port, "-t", "ed25519", &host])
        .output()
        .unwrap();
    let told = std::fs::read_to_string(&hosts).unwrap();
    let key = told.split_whitespace().nth(2).unwrap();
    assert!(stdout(&scanned).contains(key), "{scanned:?}");
    let output = door.ssh(["echo in"]);
    assert_eq!(stdout(&output), "in\n");

    // An RSA key is refused in words when it is registered, and gets nobody in.
    let file = cove.scratch().join("rsa");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "rsa", "-b", "3072", "-N", "", "-f"])
        .arg(&file)
        .status()
        .unwrap();
    assert!(made.success());
    let refused = cove.run(["ssh-key", "add", "old", &format!("{}.pub", file.display())]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("RSA") && said.contains("ssh-keygen -t ed25519"),
        "{said}"
    );
    let more = format!(
        "IdentityFile {}\nPreferredAuthentications publickey",
        file.display()
    );
    let door = Door::with(&cove, &access, "box", String::new(), &more);
    assert!(!door.ssh(["true"]).status.success());
    let output = door_env(&door, Command::new("ssh"))
        .arg("-F")
        .arg(&door.config)
        .args([
            "-o",
            "PubkeyAcceptedAlgorithms=rsa-sha2-512,rsa-sha2-256",
            "box",
            "true",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(255));
}
