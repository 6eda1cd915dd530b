//! Whoever is logged in leaves when what let them in is taken back or expires.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::harness::{Cove, DEADLINE, wait_for};
use super::{Door, Running, free_port, text};

/// A client with a command that does not end, and a port it forwards.
struct Guest {
    client: Running,
    local: u16,
}

impl Guest {
    fn enter(door: &Door, seconds: u32) -> Self {
        Self::admitted(door, seconds).expect("it is let in and its command runs")
    }

    /// `None` when it was not let in.
    fn admitted(door: &Door, seconds: u32) -> Option<Self> {
        let local = free_port();
        let mut client = Running(
            door.command("ssh")
                .args(["-L", &format!("127.0.0.1:{local}:localhost:8000")])
                .args(["box", &format!("echo ready; sleep {seconds}")])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let mut line = String::new();
        BufReader::new(client.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (line == "ready\n").then_some(Self { client, local })
    }

    /// A connection through the forwarded port that stays open.
    fn connection(&self) -> TcpStream {
        wait_for("the forwarded port carries bytes", || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.local)).ok()?;
            stream.set_read_timeout(Some(DEADLINE)).ok()?;
            stream.write_all(b"x\n").ok()?;
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            Some(stream)
        })
    }

    fn is_in(&mut self) -> bool {
        self.client.0.try_wait().unwrap().is_none()
    }

    fn leaves(&mut self, why: &str) {
        wait_for(why, || (!self.is_in()).then_some(()));
    }
}

fn runs(cove: &Cove, seconds: u32) -> bool {
    let shown = cove.ok(["exec", "box", "--", "ps"]);
    shown.contains(&format!("sleep {seconds}"))
}

#[test]
fn sessions_and_forwarded_ports_end_with_what_opened_them_and_no_others_do() {
    let cove = Cove::start();
    cove.sandbox("box");
    // An echo that keeps its connections.
    cove.ok([
        "exec",
        "box",
        "-c",
        "nc -ll -p 8000 -e cat > /dev/null 2>&1 &",
    ]);
    let access = cove.json(["ssh", "box", "--token"]);
    let key = cove.scratch().join("id");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    let added = cove.json([
        "ssh-key",
        "add",
        "laptop",
        &format!("{}.pub", key.display()),
    ]);
    let more = format!(
        "IdentityFile {}\nPreferredAuthentications publickey",
        key.display()
    );
    let by_key = Door::with(&cove, &access, "box", String::new(), &more);
    let mut by_key = Guest::enter(&by_key, 4001);

    let by_token = Door::to(&cove, "box");
    let mut by_token = Guest::enter(&by_token, 4002);
    let mut forwarded = by_token.connection();
    let other = cove.json(["key", "create", "other", "--scope", "use"]);
    let secret = text(&other["token"]);
    let lent = cove.json(["--api-key", &secret, "ssh", "box", "--token"]);
    let more = "PubkeyAuthentication no";
    let lent = Door::with(&cove, &lent, "box", text(&lent["token"]), more);
    let mut by_lent = Guest::enter(&lent, 4003);

    // The key that made a token.
    let id = other["key"]["id"]
        .as_str()
        .or(other["id"].as_str())
        .unwrap();
    cove.ok(["key", "rm", id]);
    by_lent.leaves("the session of a revoked key's token ends");
    wait_for("and so does its command", || {
        (!runs(&cove, 4003)).then_some(())
    });
    assert!(
        !lent.ssh(["true"]).status.success(),
        "the token is worthless"
    );
    assert!(by_key.is_in() && by_token.is_in());

    // The tokens of the sandbox.
    forwarded.write_all(b"y\n").unwrap();
    cove.ok(["ssh", "box", "--revoke"]);
    by_token.leaves("the session of a token that was taken back ends");
    let mut rest = Vec::new();
    forwarded.read_to_end(&mut rest).ok();
    wait_for("and so does its command", || {
        (!runs(&cove, 4002)).then_some(())
    });
    assert!(by_key.is_in() && runs(&cove, 4001));

    // The public key.
    cove.ok(["ssh-key", "rm", added["id"].as_str().unwrap()]);
    by_key.leaves("the session of a removed key ends");
    wait_for("and so does its command", || {
        (!runs(&cove, 4001)).then_some(())
    });
}

#[test]
fn a_session_ends_when_its_token_expires() {
    let cove = Cove::start();
    cove.sandbox("box");
    // A busy machine may take longer to log in than a token lasts; the next one lasts longer.
    let guest = [20, 40, 80].into_iter().find_map(|lasts| {
        let asked = Instant::now();
        let access = cove.json(["ssh", "box", "--token", "--expires", &format!("{lasts}s")]);
        let more = "PubkeyAuthentication no";
        let door = Door::with(&cove, &access, "box", text(&access["token"]), more);
        let guest = Guest::admitted(&door, 4004);
        assert!(
            guest.is_some() || asked.elapsed() >= Duration::from_secs(lasts),
            "a token that had not expired did not let in"
        );
        guest
    });
    let mut guest = guest.expect("some token lasts long enough to log in");
    guest.leaves("the session of an expired token ends");
    wait_for("and so does its command", || {
        (!runs(&cove, 4004)).then_some(())
    });
}
