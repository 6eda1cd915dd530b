//! The metadata endpoint, asked from inside real sandboxes.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Cove, signal, wait_for};

const MARK: &str = "cove-metadata: true";

/// The whole answer to a request that a program inside sends, or nothing.
fn send(cove: &Cove, name: &str, first: &str, headers: &[&str], body: &str) -> String {
    let mut request = format!("{first} HTTP/1.1\\r\\n");
    for header in headers {
        request.push_str(&format!("{header}\\r\\n"));
    }
    request.push_str(&format!("content-length: {}\\r\\n\\r\\n{body}", body.len()));
    let script = format!("printf '%b' '{request}' | nc -w 20 169.254.100.100 16910");
    let output = cove.run(["exec", name, "--", "sh", "-c", &script]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Status and JSON of a request as it should be.
fn ask(cove: &Cove, name: &str, first: &str, body: &str) -> (u16, Value) {
    let answer = send(cove, name, first, &["host: cove.internal", MARK], body);
    let status = status(&answer);
    let content = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let content = content.trim();
    let content = content.find('{').map_or("{}", |at| &content[at..]);
    let end = content.rfind('}').map_or(content.len(), |at| at + 1);
    (status, serde_json::from_str(&content[..end]).unwrap())
}

fn status(answer: &str) -> u16 {
    let word = answer.split(' ').nth(1).unwrap_or_default();
    word.parse().unwrap_or(0)
}

fn create(cove: &Cove, name: &str, more: &[&str]) -> String {
    let fixed = [
        "create", "busybox", "--name", name, "--memory", "128M", "--disk", "1G",
    ];
    let args: Vec<&str> = fixed.iter().chain(more).copied().collect();
    cove.json(args)["id"].as_str().unwrap().to_owned()
}

fn whoami(cove: &Cove, name: &str) -> String {
    let (status, me) = ask(cove, name, "GET /v1/whoami", "");
    assert_eq!(status, 200, "{me}");
    me["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_sandbox_learns_who_it_is_and_does_what_it_was_granted() {
    let mut cove = Cove::start();
    let id = create(
        &cove,
        "box",
        &[
            "--identity",
            "--grant",
            "label",
            "--grant",
            "fork",
            "--task",
            "tests",
        ],
    );

    // Who it is, by name as well.
    assert_eq!(whoami(&cove, "box"), id);
    let by_name = cove.ok([
        "exec",
        "box",
        "--",
        "wget",
        "-q",
        "-O",
        "-",
        "--header",
        MARK,
        "http://cove.internal:16910/v1/whoami",
    ]);
    assert!(by_name.contains(&id), "{by_name}");

    // A token for an audience.
    let (got, token) = ask(&cove, "box", "GET /v1/token?audience=vault", "");
    assert_eq!(got, 200, "{token}");
    let text = token["token"].as_str().unwrap();
    let claims = URL_SAFE_NO_PAD
        .decode(text.split('.').nth(1).unwrap())
        .unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["aud"], "vault");
    assert!(claims["sub"].as_str().unwrap().ends_with(&id), "{claims}");
    assert_eq!(claims["cove"]["task"], "tests");
    let (got, quota) = ask(&cove, "box", "GET /v1/quota", "");
    assert_eq!(got, 200);
    // Its own limits; what its organisation has is not for guests.
    assert_eq!(quota["memory_mb"], 128);
    assert!(quota["lifetime_left_s"].is_null(), "{quota}");
    assert!(quota["sandboxes"].is_null(), "{quota}");

    // What it was granted, and what it was not.
    let labels = r#"{"labels":{"phase":"two"}}"#;
    assert_eq!(ask(&cove, "box", "PUT /v1/labels", labels).0, 200);
    let found = cove.json(["show", "box"]);
    assert_eq!(found["labels"]["phase"], "two");
    for path in ["/v1/end", "/v1/snapshot", "/v1/keep-awake"] {
        assert_eq!(
            ask(&cove, "box", &format!("POST {path}"), "").0,
            403,
            "{path}"
        );
    }

    // Requests that a program was lured into, or passed on for somebody.
    let host = "host: cove.internal";
    for (why, headers) in [
        ("no header", vec![host]),
        ("another host", vec!["host: evil.example", MARK]),
        ("two hosts", vec![host, "host: evil.example", MARK]),
        ("forwarded", vec![host, MARK, "x-forwarded-for: 10.0.0.1"]),
        ("by a proxy", vec![host, MARK, "via: 1.1 proxy"]),
    ] {
        let answer = send(&cove, "box", "GET /v1/whoami", &headers, "");
        assert!(matches!(status(&answer), 400 | 403), "{why}: {answer}");
        assert!(!answer.contains(&id), "{why}: {answer}");
    }
    for first in [
        "GET http://cove.internal/v1/whoami",
        "GET /v1/token",
        "GET /v1/token?audience=a&audience=b",
        "GET /v1/token?audience=a&sub=b",
        "GET /v1/token?audience=a%20b",
        "GET /v1/token?audience=a&expires_s=901",
        "GET /v1/whoami?id=sbx_a",
        "GET /v1/sandboxes",
        "DELETE /v1/whoami",
    ] {
        let got = ask(&cove, "box", first, "").0;
        assert!((400..500).contains(&got), "{first}: {got}");
    }

    // A copy is another: the request is the same, the connection is not.
    let (got, forked) = ask(&cove, "box", "POST /v1/fork", "");
    assert_eq!(got, 201, "{forked}");
    let copy = forked["id"].as_str().unwrap().to_owned();
    assert_ne!(copy, id);
    assert_eq!(whoami(&cove, &copy), copy);
    assert_eq!(whoami(&cove, "box"), id);
    // It was made by a guest: it may make no more.
    assert_eq!(ask(&cove, &copy, "POST /v1/fork", "").0, 403);

    // Without an identity there is no endpoint, and the others' is out of reach.
    create(&cove, "plain", &[]);
    assert_eq!(
        send(&cove, "plain", "GET /v1/whoami", &[host, MARK], ""),
        ""
    );

    // With an interface it is the same one, on loopback.
    let networked = create(&cove, "networked", &["--identity", "--network", "open"]);
    assert_eq!(whoami(&cove, "networked"), networked);
    create(&cove, "curious", &["--network", "open"]);
    assert_eq!(
        send(&cove, "curious", "GET /v1/whoami", &[host, MARK], ""),
        ""
    );

    // After a stop and a start, and after either side of the server was killed.
    cove.ok(["stop", "box"]);
    cove.ok(["start", "box"]);
    assert_eq!(whoami(&cove, "box"), id);
    for role in ["runner", "control"] {
        let pid = cove.role_pid(role);
        signal(pid, Signal::KILL);
        wait_for("another process", || {
            (cove.role_pid(role) != pid).then_some(())
        });
        cove.wait_until_ready();
        wait_for("the endpoint", || {
            let (got, me) = ask(&cove, "box", "GET /v1/whoami", "");
            (got == 200 && me["id"] == id.as_str()).then_some(())
        });
    }
}

#[test]
fn a_sandbox_ends_itself_when_it_may() {
    let cove = Cove::start();
    create(&cove, "brief", &["--identity", "--grant", "end"]);
    // The answer may be cut off: whoever asks goes too.
    let _ = send(
        &cove,
        "brief",
        "POST /v1/end",
        &["host: cove.internal", MARK],
        "",
    );
    wait_for("the end", || {
        let listed = cove.ok(["ls"]);
        (!listed.contains("brief")).then_some(())
    });
}

#[test]
fn a_copy_of_memory_cannot_go_on_with_a_connection_of_the_original() {
    let Some(cove) = super::memory::quick() else {
        return;
    };
    let id = create(&cove, "box", &["--identity"]);
    // A request whose end is still to come when it is copied; who asks keeps what it is told.
    let held = "(printf '%b' 'GET /v1/whoami HTTP/1.1\\r\\nhost: cove.internal\\r\\ncove-metadata: true\\r\\n'; \
        : > /tmp/begun; while [ ! -e /tmp/go ]; do sleep 0.1; done; printf '%b' '\\r\\n'; sleep 20) \
        | nc 169.254.100.100 16910 > /tmp/told; : > /tmp/ended";
    cove.ok(["exec", "box", "--detach", "--", "sh", "-c", held]);
    let has = |name: &str, file: &str| {
        let found = cove.run(["exec", name, "--", "test", "-e", file]);
        found.status.success().then_some(())
    };
    wait_for("the request", || has("box", "/tmp/begun"));
    cove.ok(["fork", "box", "--memory", "--name", "copy"]);
    // In the copy the rest of the request goes nowhere; asked anew, it learns its own name.
    cove.ok(["exec", "copy", "--", "touch", "/tmp/go"]);
    wait_for("the end of the connection", || has("copy", "/tmp/ended"));
    let told = cove.ok(["exec", "copy", "--", "cat", "/tmp/told"]);
    assert!(!told.contains("sbx_"), "the copy was told {told}");
    let copy = whoami(&cove, "copy");
    assert_ne!(copy, id);
    assert_eq!(whoami(&cove, "box"), id);
}

#[test]
fn memory_that_runs_out_does_not_end_the_endpoint() {
    let cove = Cove::start();
    let id = create(&cove, "box", &["--identity"]);
    assert_eq!(whoami(&cove, "box"), id);
    let hungry = "dd if=/dev/zero of=/dev/null bs=512M count=1";
    let killed = cove.run(["exec", "box", "--", "sh", "-c", hungry]);
    assert!(!killed.status.success(), "{killed:?}");
    wait_for("the kernel's word about it", || {
        let events = cove.ok(["--json", "events", "box"]);
        events.contains("\"oom\"").then_some(())
    });
    assert_eq!(whoami(&cove, "box"), id);
}

#[test]
fn the_endpoint_leaves_port_80_to_programs_inside() {
    let cove = Cove::start();
    let id = create(&cove, "box", &["--identity"]);
    for (address, file) in [("0.0.0.0:80", "four"), ("80", "any")] {
        let script = format!(
            "mkdir -p /web/{file} && echo {file} > /web/{file}/index.html && httpd -p {address} -h /web/{file} \\
            && wget -q -O - http://127.0.0.1/ && kill $(pidof httpd)"
        );
        let told = cove.ok(["exec", "box", "--", "sh", "-c", &script]);
        assert_eq!(told.trim(), file);
        wait_for("the web server's end", || {
            let found = cove.run(["exec", "box", "--", "pidof", "httpd"]);
            (!found.status.success()).then_some(())
        });
    }
    assert_eq!(whoami(&cove, "box"), id);
}

#[test]
fn what_was_not_granted_is_refused_before_the_body_and_a_slow_body_ends() {
    let cove = Cove::start();
    create(&cove, "box", &["--identity", "--grant", "label"]);
    // Says that a body follows and sends none, with its half of the connection open.
    let hold = |first: &str| {
        let script = format!(
            "(printf '%b' '{first} HTTP/1.1\\r\\nhost: cove.internal\\r\\n{MARK}\\r\\ncontent-length: 9\\r\\n\\r\\n'; \
            sleep 20) | timeout 20 nc 169.254.100.100 16910"
        );
        let output = cove.run(["exec", "box", "--", "sh", "-c", &script]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let answer = hold("POST /v1/end");
    assert_eq!(status(&answer), 403, "{answer}");
    let answer = hold("PUT /v1/labels");
    assert!(matches!(status(&answer), 408 | 504), "{answer}");
}

#[test]
fn a_program_that_holds_the_port_costs_a_restored_sandbox_nothing() {
    let Some(cove) = super::memory::quick() else {
        return;
    };
    create(&cove, "plain", &[]);
    cove.ok([
        "exec",
        "plain",
        "--",
        "httpd",
        "-p",
        "0.0.0.0:16910",
        "-h",
        "/",
    ]);
    cove.ok(["snapshot", "plain", "--memory", "--name", "hot"]);
    let args = [
        "create",
        "--snapshot",
        "hot",
        "--with-memory",
        "--name",
        "box",
        "--identity",
    ];
    let made = cove.json(args);
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["state"], "running", "{made}");
    // Once the port is free the endpoint is there.
    cove.ok(["exec", "box", "--", "killall", "httpd"]);
    wait_for("the endpoint", || {
        let (got, me) = ask(&cove, "box", "GET /v1/whoami", "");
        (got == 200 && me["id"] == id).then_some(())
    });
}
