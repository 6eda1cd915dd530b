//! Servers inside real sandboxes, reached from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use super::harness::{Cove, wait_for};

/// Ended with the test.
struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What was answered before the connection ended, however it did: a server may be killed under it.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut answer = Vec::new();
    if stream.write_all(request.as_bytes()).is_ok() {
        stream.read_to_end(&mut answer).ok();
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn servers_on_loopback_are_reached_by_preview_and_by_forwarded_port() {
    let mut cove = Cove::start();
    cove.sandbox("web");
    cove.ok([
        "exec",
        "web",
        "-c",
        "mkdir /tmp/www && echo inside > /tmp/www/index.html",
    ]);
    cove.ok(["exec", "web", "-c", "httpd -p 127.0.0.1:8000 -h /tmp/www"]);
    let ports = cove.json(["ports", "web"]);
    let shown = ports
        .as_array()
        .unwrap()
        .iter()
        .find(|port| port["port"] == 8000);
    let url = shown.expect("the port is listed")["url"]
        .as_str()
        .unwrap()
        .to_owned();
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let (_, preview_port) = host.rsplit_once(':').unwrap();
    let preview = format!("127.0.0.1:{preview_port}");
    let plain = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    let answer = ask(&preview, &format!("{plain}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let share = cove.json(["share", "web", "8000"]);
    let token = share["token"].as_str().unwrap();
    let signed = format!("{plain}X-Cove-Token: {token}\r\n\r\n");
    let answer = ask(&preview, &signed);
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("inside\n"),
        "{answer}"
    );

    let child = cove
        .command(["port-forward", "web", "0:8000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut forward = Forward(child);
    let mut line = String::new();
    let stdout = forward.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let local = line.split(' ').next().unwrap();
    let get = "GET / HTTP/1.0\r\n\r\n";
    for _ in 0..3 {
        let answer = ask(local, get);
        assert!(answer.ends_with("inside\n"), "{answer}");
    }

    // The listening socket and the key that signed links outlive the process that used them.
    let control = cove.role_pid("control");
    super::harness::signal(control, rustix::process::Signal::KILL);
    wait_for("previews are back at the same place", || {
        let answer = ask(&preview, &signed);
        answer.ends_with("inside\n").then_some(())
    });
    cove.ok(["share", "web", "8000", "--revoke"]);
    let answer = ask(&preview, &signed);
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    cove.stop();
}

#[test]
fn a_run_forwards_its_ports_as_long_as_it_runs() {
    let cove = Cove::start();
    let serve = "mkdir /tmp/www; echo inside > /tmp/www/index.html; httpd -f -p 8000 -h /tmp/www";
    let child = cove
        .command(["run", "-p", "0:8000", "busybox", "--", "sh", "-c", serve])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Forward(child);
    let mut line = String::new();
    let mut stderr = BufReader::new(run.0.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    let local = line.split(' ').next().unwrap().to_owned();
    assert!(line.ends_with("leads to port 8000\n"), "{line}");
    // Until it serves, connections are closed and the reason reported.
    std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    wait_for("the command serves", || {
        let answer = ask(&local, "GET / HTTP/1.0\r\n\r\n");
        answer.ends_with("inside\n").then_some(())
    });
    let pid = run.0.id().cast_signed();
    super::harness::signal(pid, rustix::process::Signal::TERM);
    wait_for("the run ends", || run.0.try_wait().unwrap());
    assert!(
        TcpStream::connect(&local).is_err(),
        "the port is still open"
    );
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));

    // A port that is taken is found before anything is made.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = format!("{}:80", taken.local_addr().unwrap().port());
    let refused = cove.run(["run", "-p", &pair, "busybox", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot listen at"));
    assert!(!cove.ok(["events"]).contains("sandbox.created"));
}

#[test]
fn a_visit_wakes_a_sandbox_that_rests() {
    let cove = Cove::start();
    cove.sandbox("web");
    cove.ok([
        "exec",
        "web",
        "-c",
        "mkdir /tmp/www && echo inside > /tmp/www/index.html",
    ]);
    cove.ok(["exec", "web", "-c", "httpd -p 127.0.0.1:8000 -h /tmp/www"]);
    let share = cove.json(["share", "web", "8000"]);
    let url = share["url"].as_str().unwrap();
    let host = url.trim_start_matches("http://").split('/').next().unwrap();
    let (_, port) = host.rsplit_once(':').unwrap();
    let preview = format!("127.0.0.1:{port}");
    let token = share["token"].as_str().unwrap();
    let signed = format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nX-Cove-Token: {token}\r\n\r\n"
    );
    let mut rests = vec!["freeze"];
    if super::travel::captures_memory(&cove) {
        rests.push("pause");
    }
    for rest in rests {
        cove.ok([rest, "web"]);
        assert_ne!(cove.json(["show", "web"])["state"], "running", "{rest}");
        let answer = ask(&preview, &signed);
        assert!(answer.ends_with("inside\n"), "{rest}: {answer}");
        assert_eq!(cove.json(["show", "web"])["state"], "running", "{rest}");
    }
    // One that may not be woken by itself stays as it is.
    cove.ok(["stop", "web"]);
    let answer = ask(&preview, &signed);
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
}
