//! Secrets against sandboxes and servers that try to get at them: an HTTPS server in the internet of the test that
//! gives away what it is asked, and a client that speaks TLS from inside a sandbox's network namespace.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cove_model::approval::{Approval, Decision};
use cove_model::egress::EgressEntry;
use cove_model::secret::{OrgKeys, OrgSecrets, SealedSecret, SecretBinding, SecretGrant};
use cove_model::{EventKind, OrgId, SandboxId, SandboxSpec, SecretId};
use cove_protocol::client::Guest;
use cove_runner_api::{
    BudgetGrant, CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError,
    SandboxOwner, SandboxView, SnapshotRequest,
};
use cove_tests::engine_host::{eventually, guest, output, small_spec};
use serde_json::{Value, json};

use crate::names::{DNS, RESOLVER, Resolver};
use crate::stage::*;
use crate::world::*;

pub const PORT: u16 = 8443;
pub const BOUND: &str = "good.example";
const UNBOUND: &str = "www.good.example";
pub const BEARER: &str = "sk-canary-bearer/0123456789";
pub const BASIC: &str = "canary-basic+0123456789";
pub const HEADER: &str = "canary-header=0123456789";
pub const QUERY: &str = "canary query&0123456789";

/// The stage, a server in its internet, and an organisation with secrets.
pub struct Scene {
    pub stage: Stage,
    _resolver: Resolver,
    server: Child,
    org: OrgId,
    keys: OrgKeys,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

pub fn script(name: &str) -> String {
    format!("{}/network/secrets/{name}", env!("CARGO_MANIFEST_DIR"))
}

impl Scene {
    pub async fn new() -> Self {
        let scene = Self::with("python3", "server.py").await;
        scene.set(&scene.secrets()).await;
        scene
    }

    /// With this server, and no secrets yet.
    pub async fn with(python: &str, server: &str) -> Self {
        let names = vec![BOUND.to_owned(), UNBOUND.to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let stage = Stage::with(|setup| {
            setup.resolver = Some((RESOLVER, DNS).into());
            std::fs::write(setup.dir.join("roots.pem"), made.cert.pem()).expect("written");
        })
        .await;
        let dir = &stage.engine.setup.dir;
        std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
        let resolver = Resolver::serve(&stage.world.internet);
        let mut server = Command::new("nsenter")
            .arg(format!("--net={}", stage.world.internet.path()))
            .args([python, &script(server), &PUBLIC.to_string()])
            .args([
                PORT.to_string(),
                path(dir, "roots.pem"),
                path(dir, "key.pem"),
            ])
            .arg(path(dir, "server.log"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let mut line = String::new();
        let said = server.stdout.take().expect("it is piped");
        BufReader::new(said).read_line(&mut line).expect("it says");
        assert_eq!(line.trim(), "ready");
        let org = OrgId::random();
        let made = stage.engine.client().make_secret_keys(&org).await;
        let keys = made.expect("keys");
        let authority = dir.join("authority.pem");
        std::fs::write(authority, &keys.authority).expect("written");
        Self {
            stage,
            _resolver: resolver,
            server,
            org,
            keys,
        }
    }

    pub fn dir(&self) -> &Path {
        &self.stage.engine.setup.dir
    }

    pub fn secret(&self, name: &str, value: &str, usage: &str) -> SealedSecret {
        self.secret_bound(name, value, usage, &[&format!("{BOUND}:{PORT}")])
    }

    fn secret_bound(&self, name: &str, value: &str, usage: &str, hosts: &[&str]) -> SealedSecret {
        let hosts = hosts.iter().map(|host| host.parse().expect("a host"));
        let binding = SecretBinding {
            hosts: hosts.collect(),
            usage: usage.parse().expect("a use"),
            ask: false,
            limits: Vec::new(),
        };
        let about = cove_vault::About {
            org: &self.org,
            name,
            version: 1,
            binding: &binding,
        };
        let sealed = cove_vault::seal(&self.keys.public, &about, value.as_bytes());
        SealedSecret {
            id: SecretId::random(),
            name: name.into(),
            version: 1,
            sealed: sealed.expect("sealed"),
            binding,
        }
    }

    /// Each use of it needs an approval.
    fn asking_secret(&self) -> SealedSecret {
        self.bearer_with(|binding| binding.ask = true)
    }

    fn bearer_with(&self, change: impl FnOnce(&mut SecretBinding)) -> SealedSecret {
        let mut secret = self.secret("bearer", BEARER, "bearer");
        change(&mut secret.binding);
        let about = cove_vault::About {
            org: &self.org,
            name: &secret.name,
            version: 1,
            binding: &secret.binding,
        };
        let sealed = cove_vault::seal(&self.keys.public, &about, BEARER.as_bytes());
        secret.sealed = sealed.expect("sealed");
        secret
    }

    fn secrets(&self) -> Vec<SealedSecret> {
        vec![
            self.secret("bearer", BEARER, "bearer"),
            self.secret("basic", BASIC, "basic"),
            self.secret("header", HEADER, "header:x-api-key"),
            self.secret("query", QUERY, "query:key"),
        ]
    }

    pub async fn set(&self, secrets: &[SealedSecret]) {
        let secrets = OrgSecrets {
            keys: self.keys.clone(),
            secrets: secrets.to_vec(),
        };
        let set = self.stage.engine.client().set_secrets(secrets).await;
        set.expect("they are taken");
    }

    fn request(&self, allow: &[&str], from: Option<FromSnapshot>) -> CreateRequest {
        self.request_for(&["bearer", "basic", "header", "query"], allow, from)
    }

    pub fn request_for(
        &self,
        secrets: &[&str],
        allow: &[&str],
        from: Option<FromSnapshot>,
    ) -> CreateRequest {
        let grant = |name: &str| SecretGrant {
            name: name.into(),
            env: Some(name.to_uppercase()),
            file: None,
            exposed: false,
        };
        CreateRequest {
            id: SandboxId::random(),
            owner: Some(SandboxOwner {
                org: self.org.to_string(),
                home: true,
            }),
            spec: SandboxSpec {
                network: listed(allow),
                secrets: secrets.iter().map(|name| grant(name)).collect(),
                ..small_spec()
            },
            from,
        }
    }

    /// A sandbox with all secrets, and a process in its network.
    pub async fn sandbox(&self, from: Option<FromSnapshot>) -> (SandboxView, i32) {
        let both = [BOUND, UNBOUND].map(|name| format!("{name}:{PORT}"));
        self.start(self.request(&[&both[0], &both[1]], from)).await
    }

    pub async fn start(&self, request: CreateRequest) -> (SandboxView, i32) {
        self.stage.start(request).await
    }

    /// The only terminator of this engine.
    fn terminator(&self) -> u32 {
        let found = self.all_terminators();
        assert_eq!(found.len(), 1, "one organisation has one terminator");
        found[0]
    }

    fn all_terminators(&self) -> Vec<u32> {
        let engine = self.stage.engine.engine_pid();
        let children = format!("/proc/{engine}/task");
        let mut found = Vec::new();
        for task in std::fs::read_dir(children)
            .expect("the engine runs")
            .flatten()
        {
            let children = std::fs::read_to_string(task.path().join("children"));
            for pid in children.unwrap_or_default().split_whitespace() {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                if name.is_ok_and(|name| name.trim() == "cove-terminator") {
                    found.push(pid.parse().expect("a pid"));
                }
            }
        }
        found
    }

    /// A connection from inside the namespace of `pid`.
    pub fn connect(&self, pid: i32, name: &str) -> Talk {
        let ca = match name {
            BOUND => "authority.pem",
            _ => "roots.pem",
        };
        self.connect_trusting(pid, name, ca)
    }

    fn connect_trusting(&self, pid: i32, name: &str, ca: &str) -> Talk {
        let mut child = Command::new("nsenter")
            .arg(format!("--net=/proc/{pid}/ns/net"))
            .args(["python3", &script("client.py"), &PUBLIC.to_string()])
            .args([&PORT.to_string(), name, &path(self.dir(), ca)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        Talk {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().expect("it is piped")),
            child,
        }
    }

    /// What the server was asked last.
    pub fn seen(&self) -> Value {
        let text = std::fs::read_to_string(self.dir().join("server.log")).unwrap_or_default();
        let last = text.lines().last().unwrap_or("null").to_owned();
        serde_json::from_str(&last).expect("a line of JSON")
    }

    pub fn count(&self) -> usize {
        let text = std::fs::read_to_string(self.dir().join("server.log")).unwrap_or_default();
        text.lines().count()
    }
}

pub fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

pub struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    fn say(&mut self, line: &Value) {
        let mut input = self.input.as_ref().expect("it is open");
        // A connection that failed has ended already, and says so.
        let _ = writeln!(input, "{line}");
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says");
        serde_json::from_str(&line).expect("a line of JSON")
    }

    pub fn ask(&mut self, line: &str, headers: &[(&str, &str)], body: &str) -> Value {
        let host = format!("{BOUND}:{PORT}");
        let mut head = format!("{line} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            head.push_str(&format!("Host: {host}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        self.say(&json!({"head": head, "body": body}));
        self.hear()
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.input.take();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn basic(text: &str) -> String {
    format!("Basic {}", STANDARD.encode(text))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_becomes_the_value_in_its_place_alone_and_answers_are_scrubbed() {
    let scene = Scene::new().await;
    let (made, pid) = scene.sandbox(None).await;
    let of = |name: &str| made.placeholders[name].clone();
    let bearer = format!("Bearer {}", of("bearer"));
    let real = format!("Bearer {BEARER}");
    let mut talk = scene.connect(pid, BOUND);

    let answer = talk.ask("GET /echo", &[("Authorization", &bearer)], "");
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(scene.seen()["headers"]["authorization"], real.as_str());
    let text = answer.to_string();
    assert!(
        !text.contains("canary") && text.contains(&of("bearer")),
        "{text}"
    );
    // In base64 neither.
    let told: Value = serde_json::from_str(answer["body"].as_str().expect("text")).expect("JSON");
    let encoded = told["base64"].as_str().expect("text");
    assert!(encoded.contains(&of("bearer")), "{encoded}");
    let plain: Vec<u8> = encoded
        .split(&of("bearer"))
        .flat_map(|part| STANDARD_NO_PAD.decode(&part[..part.len() / 4 * 4]))
        .flatten()
        .collect();
    assert!(!String::from_utf8_lossy(&plain).contains("canary"));

    // Elsewhere a placeholder is text, on the same connection.
    let token = of("bearer");
    let answer = talk.ask(
        "POST /echo",
        &[("X-Other", &token)],
        &format!("body {token}"),
    );
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(scene.seen()["headers"]["x-other"], token.as_str());
    assert_eq!(scene.seen()["body"], format!("body {token}"));

    // The other ways of use.
    let login = basic(&format!("user:{}", of("basic")));
    talk.ask("GET /echo", &[("Authorization", &login)], "");
    assert_eq!(
        scene.seen()["headers"]["authorization"],
        basic(&format!("user:{BASIC}")).as_str()
    );
    talk.ask("GET /echo", &[("X-API-Key", &of("header"))], "");
    assert_eq!(scene.seen()["headers"]["x-api-key"], HEADER);
    let answer = talk.ask(&format!("GET /echo?a=1&key={}&b=2", of("query")), &[], "");
    assert_eq!(
        scene.seen()["path"],
        "/echo?a=1&key=canary%20query%260123456789&b=2"
    );
    assert!(!answer.to_string().contains("canary"), "{answer}");

    // A secret in the place of another one is refused.
    let before = scene.count();
    let wrong = format!("Bearer {}", of("header"));
    let answer = talk.ask("GET /echo", &[("Authorization", &wrong)], "");
    assert_eq!(answer["status"], 403, "{answer}");
    // So are other hosts, methods that echo, and answers that cannot be looked into.
    for host in ["other.example", "www.good.example:8443", BOUND] {
        let answer = talk.ask(
            "GET /echo",
            &[("Host", host), ("Authorization", &bearer)],
            "",
        );
        assert_eq!(answer["status"], 421, "{host}: {answer}");
    }
    let answer = talk.ask("TRACE /echo", &[("Authorization", &bearer)], "");
    assert_eq!(answer["status"], 405, "{answer}");
    assert_eq!(scene.count(), before, "nothing of it reached the server");
    let answer = talk.ask("GET /split", &[("Authorization", &bearer)], "");
    assert_eq!(answer["body"], bearer.as_str());
    let answer = talk.ask("GET /redirect", &[("Authorization", &bearer)], "");
    assert_eq!(answer["status"], 302, "{answer}");
    assert!(!answer.to_string().contains("canary"), "{answer}");
    let answer = talk.ask("GET /gzip", &[("Authorization", &bearer)], "");
    assert_eq!(answer["status"], 200, "{answer}");
    let text = answer.to_string();
    assert!(
        !text.contains("canary") && text.contains(&of("bearer")),
        "{text}"
    );

    // Where nothing is bound the connection is the server's own, and a placeholder worthless text.
    let mut talk = scene.connect(pid, UNBOUND);
    let unbound = format!("{UNBOUND}:{PORT}");
    let answer = talk.ask(
        "GET /echo",
        &[("Host", &unbound), ("Authorization", &bearer)],
        "",
    );
    assert_eq!(answer["status"], 200, "{answer}");
    assert_eq!(scene.seen()["headers"]["authorization"], bearer.as_str());

    // What was used is told, and told once.
    let told = scene
        .stage
        .engine
        .client()
        .secret_uses()
        .await
        .expect("uses");
    let of_bearer = told.uses.iter().find(|used| used.secret == "bearer");
    let of_bearer = of_bearer.expect("it was used");
    assert_eq!((&of_bearer.sandbox, &of_bearer.org), (&made.id, &scene.org));
    assert!(of_bearer.count >= 4, "{told:?}");
    let again = scene
        .stage
        .engine
        .client()
        .secret_uses()
        .await
        .expect("uses");
    assert_eq!(again.uses, []);

    // No value is on the host's disk.
    let data = scene.stage.engine.setup.data_dir();
    let found = Command::new("grep")
        .args(["-rlF", "--exclude-dir=pool", "--exclude=*.img", "canary"])
        .arg(&data)
        .output()
        .expect("grep is installed");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_neighbours_cannot_use_what_they_learn() {
    let scene = Scene::new().await;
    let client = scene.stage.engine.client();
    let (first, _) = scene.sandbox(None).await;
    let (second, pid) = scene.sandbox(None).await;
    assert_ne!(first.placeholders, second.placeholders);
    let status = |pid: i32, view: &SandboxView| {
        let token = format!("Bearer {}", view.placeholders["bearer"]);
        let mut talk = scene.connect(pid, BOUND);
        talk.ask("GET /echo", &[("Authorization", &token)], "")["status"].clone()
    };
    assert_eq!(status(pid, &second), 200);
    assert_eq!(status(pid, &first), 403);
    // A copy has its own, and those of the original are worthless there.
    let snapshot = cove_model::SnapshotId::random();
    let take = SnapshotRequest {
        id: snapshot.clone(),
        sandbox: second.id.clone(),
        memory: false,
        unless_unchanged: false,
    };
    client.snapshot(take).await.expect("a snapshot");
    let from = FromSnapshot {
        snapshot: snapshot.clone(),
        memory: false,
    };
    let (copy, copy_pid) = scene.sandbox(Some(from)).await;
    assert_eq!(status(copy_pid, &second), 403);
    assert_eq!(status(copy_pid, &copy), 200);
    // So has the same sandbox after a rollback.
    let before = scene.stage.inside();
    let back = RollbackRequest {
        sandbox: second.id.clone(),
        to: snapshot,
        keep: cove_model::SnapshotId::random(),
        memory: false,
    };
    let rolled = client.rollback(back).await.expect("rolled back").sandbox;
    let new: Vec<i32> = scene.stage.inside().difference(&before).copied().collect();
    let pid = *new.first().expect("it runs again");
    assert_ne!(rolled.placeholders, second.placeholders);
    assert_eq!(status(pid, &second), 403);
    assert_eq!(status(pid, &rolled), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_a_secret_that_asks_wait_for_a_decision_and_copies_ask_for_themselves() {
    let scene = Scene::with("python3", "server.py").await;
    let secret = scene.asking_secret();
    scene.set(std::slice::from_ref(&secret)).await;
    let both = [BOUND, UNBOUND].map(|name| format!("{name}:{PORT}"));
    let request = |from| scene.request_for(&["bearer"], &[&both[0], &both[1]], from);
    let (made, pid) = scene.start(request(None)).await;
    let bearer = format!("Bearer {}", made.placeholders["bearer"]);
    let client = scene.stage.engine.client();
    let mut talk = scene.connect(pid, BOUND);
    let host = format!("{BOUND}:{PORT}");
    let head = format!(
        "POST /pay HTTP/1.1\r\nHost: {host}\r\nAuthorization: {bearer}\r\nContent-Length: 2\r\n\r\n"
    );
    talk.say(&json!({"head": head, "body": "10"}));
    let mut asked = Vec::new();
    while asked.is_empty() {
        asked = client.approvals(&scene.org).await.expect("approvals");
    }
    let [one] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((&one.sandbox, &*one.secret), (&made.id, "bearer"));
    assert_eq!((&*one.method, &*one.path), ("POST", "/pay"));
    assert_eq!(one.host.to_string(), host);
    assert_eq!(scene.count(), 0, "the request is held");
    let told = client.secret_uses().await.expect("uses");
    assert_eq!(told.waiting, std::slice::from_ref(&made.id));
    // Another organisation has no say, and sees nothing.
    let other = OrgId::random();
    assert_eq!(client.approvals(&other).await.expect("approvals"), []);
    let foreign = client
        .decide_approval(&other, &one.id, Decision::Once)
        .await;
    assert!(matches!(foreign, Err(RunnerError::NotFound { .. })));
    let decided = client
        .decide_approval(&scene.org, &one.id, Decision::Once)
        .await;
    decided.expect("decided");
    assert_eq!(talk.hear()["status"], 200);
    assert_eq!(
        scene.seen()["headers"]["authorization"],
        format!("Bearer {BEARER}").as_str()
    );
    let events = client.events(0, 0).await.expect("events").events;
    let of_it = |kind: &EventKind| match kind {
        EventKind::ApprovalRequested { approval, .. }
        | EventKind::ApprovalDecided { approval, .. } => *approval == one.id,
        _ => false,
    };
    assert_eq!(events.iter().filter(|it| of_it(&it.kind)).count(), 2);

    // The same again asks again; for a time it need not.
    talk.say(&json!({"head": head, "body": "10"}));
    let mut asked = Vec::new();
    while asked.is_empty() {
        asked = client.approvals(&scene.org).await.expect("approvals");
    }
    assert_ne!(asked[0].id, one.id);
    let decided = client
        .decide_approval(&scene.org, &asked[0].id, Decision::For(3600))
        .await;
    decided.expect("decided");
    assert_eq!(talk.hear()["status"], 200);
    let answer = talk.ask("GET /echo", &[("Authorization", &bearer)], "");
    assert_eq!(answer["status"], 200, "{answer}");

    // A copy has nothing of it, and with the sandbox it ends.
    let taken = client
        .snapshot(SnapshotRequest {
            id: cove_model::SnapshotId::random(),
            sandbox: made.id.clone(),
            memory: false,
            unless_unchanged: false,
        })
        .await;
    let from = FromSnapshot {
        snapshot: taken.expect("a snapshot").id,
        memory: false,
    };
    let (copy, copied) = scene.start(request(Some(from))).await;
    let own = format!("Bearer {}", copy.placeholders["bearer"]);
    let before = scene.count();
    let mut copied = scene.connect(copied, BOUND);
    let head = format!("GET /echo HTTP/1.1\r\nHost: {host}\r\nAuthorization: {own}\r\n\r\n");
    copied.say(&json!({"head": head, "body": ""}));
    let mut asked = Vec::new();
    while !asked.iter().any(|it: &Approval| it.sandbox == copy.id) {
        asked = client.approvals(&scene.org).await.expect("approvals");
    }
    assert_eq!(scene.count(), before);
    client.delete(&copy.id).await.expect("deleted");
    let asked = client.approvals(&scene.org).await.expect("approvals");
    assert!(asked.iter().all(|it| it.sandbox == made.id), "{asked:?}");
    // A terminator that is gone has taken all approvals along.
    let terminator = scene.terminator();
    cove_tests::engine_host::signal(terminator, rustix::process::Signal::KILL);
    eventually("the approvals are gone", || async {
        // Replaces it.
        client.secret_uses().await.ok()?;
        let asked = client.approvals(&scene.org).await.ok()?;
        asked.is_empty().then_some(())
    })
    .await;
}

/// A part of what is left, for each need; what is given back is there again.
async fn grant(scene: &Scene, left: &mut u64) {
    let client = scene.stage.engine.client();
    let wanted = client.budgets_wanted(100).await.expect("budgets");
    let mut grants = Vec::new();
    for need in wanted.needs {
        assert_eq!((&need.org, &*need.secret), (&scene.org, "bearer"));
        let amount = cove_model::secret::block(*left, need.need, need.more);
        *left -= amount;
        grants.push(BudgetGrant {
            org: need.org,
            secret: need.secret,
            of: need.of,
            sandbox: need.own.then_some(need.sandbox),
            amount,
            left: *left,
            day: 20_000,
            lasts_ms: 3_600_000,
            renews_ms: None,
        });
    }
    *left += wanted.back.iter().map(|it| it.amount).sum::<u64>();
    client.grant_budgets(grants).await.expect("granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_holds_over_sandboxes_and_when_the_terminator_is_killed() {
    let scene = Scene::with("python3", "server.py").await;
    let limit = "requests=10/organisation".parse().expect("a limit");
    let secret = scene.bearer_with(|binding| binding.limits = vec![limit]);
    scene.set(std::slice::from_ref(&secret)).await;
    let host = format!("{BOUND}:{PORT}");
    let request = || scene.request_for(&["bearer"], &[&host], None);
    let (first, second) = (scene.start(request()).await, scene.start(request()).await);
    let client = scene.stage.engine.client();
    let mut left = 10;
    // Statuses of so many requests of a sandbox, with the other side of the budget answered beside them.
    let ask = async |(made, pid): &(SandboxView, i32), count: usize, left: &mut u64| {
        let bearer = format!("Bearer {}", made.placeholders["bearer"]);
        let mut talk = scene.connect(*pid, BOUND);
        let asking = tokio::task::spawn_blocking(move || {
            let asked =
                (0..count).map(|_| talk.ask("GET /echo", &[("Authorization", &bearer)], ""));
            asked
                .map(|answer| answer["status"].clone())
                .collect::<Vec<_>>()
        });
        while !asking.is_finished() {
            grant(&scene, left).await;
        }
        asking.await.expect("answers")
    };
    assert_eq!(ask(&first, 4, &mut left).await, [200; 4]);
    assert_eq!(ask(&second, 3, &mut left).await, [200; 3]);
    assert_eq!(scene.count(), 7);
    // What it held ahead of use dies with it, and what was used is not forgotten.
    let terminator = scene.terminator();
    cove_tests::engine_host::signal(terminator, rustix::process::Signal::KILL);
    eventually("a terminator serves again", || async {
        client.secret_uses().await.expect("uses");
        let found = scene.all_terminators();
        (found.len() == 1 && found[0] != terminator).then_some(())
    })
    .await;
    let statuses = ask(&first, 10, &mut left).await;
    let passed = statuses.iter().filter(|it| **it == 200).count();
    assert!(
        statuses.iter().all(|it| *it == 200 || *it == 429),
        "{statuses:?}"
    );
    assert!(passed <= 3 && left == 0, "{passed} {left}");
    assert_eq!(scene.count(), 7 + passed);
    assert_eq!(ask(&second, 1, &mut left).await, [429]);
    for (made, _) in [first, second] {
        client.delete(&made.id).await.expect("deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_a_secret_cuts_what_used_it_and_a_dead_terminator_is_replaced() {
    let scene = Scene::new().await;
    let client = scene.stage.engine.client();
    let (made, pid) = scene.sandbox(None).await;
    let token = format!("Bearer {}", made.placeholders["bearer"]);
    let mut stream = scene.connect(pid, BOUND);
    let host = format!("{BOUND}:{PORT}");
    let head = format!("GET /slow HTTP/1.1\r\nHost: {host}\r\nAuthorization: {token}\r\n\r\n");
    stream.say(&json!({"head": head, "stream": true}));
    assert_eq!(stream.hear()["body"], "tick\n");
    let mut secrets = scene.secrets();
    secrets.remove(0);
    scene.set(&secrets).await;
    let ended = stream.hear();
    assert!(
        ended["ended"] == true || !ended["failed"].is_null(),
        "{ended}"
    );
    let mut talk = scene.connect(pid, BOUND);
    let answer = talk.ask("GET /echo", &[("Authorization", &token)], "");
    assert_eq!(answer["status"], 403, "{answer}");

    // Killed, it refuses; looked after, it serves again.
    let terminator = scene.terminator();
    cove_tests::engine_host::signal(terminator, rustix::process::Signal::KILL);
    eventually("a terminator serves again", || async {
        client.secret_uses().await.expect("uses");
        let mut talk = scene.connect(pid, BOUND);
        let answer = talk.ask(
            "GET /echo",
            &[("X-API-Key", &made.placeholders["header"])],
            "",
        );
        (answer["status"] == 200).then_some(())
    })
    .await;
    assert_eq!(scene.seen()["headers"]["x-api-key"], HEADER);
    client.delete(&made.id).await.expect("deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_pins_another_certificate_is_named_in_the_log() {
    let scene = Scene::new().await;
    let (made, pid) = scene.sandbox(None).await;
    // The server's own certificate, as a program that pins it would.
    let failed = scene.connect_trusting(pid, BOUND, "roots.pem").hear();
    let failed = failed["failed"].as_str().expect("it fails").to_owned();
    assert!(failed.contains("CERTIFICATE_VERIFY_FAILED"), "{failed}");
    let is_named = |entry: &EgressEntry| entry.rule.contains("refused the certificate");
    let entry = scene.stage.logged(&made.id, is_named).await;
    assert_eq!(entry.name.as_deref(), Some(BOUND));
    assert_eq!(entry.port, Some(PORT));
    // One that trusts the authority has an ordinary entry.
    let mut talk = scene.connect(pid, BOUND);
    assert_eq!(talk.ask("GET /echo", &[], "")["status"], 200);
    drop(talk);
    let is_ended = |entry: &EgressEntry| entry.received_bytes > 0 && !is_named(entry);
    scene.stage.logged(&made.id, is_ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_opens_nothing_and_an_unknown_secret_is_refused() {
    let scene = Scene::new().await;
    let client = scene.stage.engine.client();
    for allow in [&["good.example"][..], &["1.2.3.4"], &[]] {
        let refused = client.create(scene.request(allow, None)).await;
        let refused = refused.expect_err("nothing was opened").to_string();
        assert!(refused.contains("good.example:8443"), "{refused}");
    }
    let mut request = scene.request(&["good.example:8443"], None);
    request.spec.secrets[0].name = "unknown".into();
    let refused = client.create(request).await.expect_err("there is none");
    assert!(refused.to_string().contains("'unknown'"), "{refused}");
    // Keys of another organisation do not open these.
    let other = OrgId::random();
    let mut request = scene.request(&["good.example:8443"], None);
    request.owner = Some(SandboxOwner {
        org: other.to_string(),
        home: true,
    });
    let refused = client.create(request).await.expect_err("it has none");
    assert!(
        refused.to_string().contains("there is no secret"),
        "{refused}"
    );
    let left = client.list().await.expect("a list");
    assert_eq!(left, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_exposed_values_are_told_and_only_of_sandboxes_that_hold_them() {
    let scene = Scene::new().await;
    let client = scene.stage.engine.client();
    let mut plain = scene.secret_bound("plain", "canary-plain-0123", "exposed", &[]);
    let mut secrets = scene.secrets();
    secrets.push(plain.clone());
    scene.set(&secrets).await;
    let allow = format!("{BOUND}:{PORT}");
    let mut request = scene.request_for(&["bearer", "plain"], &[&allow], None);
    let refused = client
        .create(request.clone())
        .await
        .expect_err("not asked for");
    assert!(refused.to_string().contains("exposed: true"), "{refused}");
    request.spec.secrets[1].exposed = true;
    let (made, _) = scene.start(request.clone()).await;
    let told = client.exposed_secrets(&made.id).await.expect("values");
    assert_eq!(told.len(), 1, "never of another use");
    assert_eq!(told["plain"], "canary-plain-0123");
    // A row that says of another secret that it is exposed does not open: the use is sealed with the value.
    let mut forged = scene.secret("bearer", BEARER, "bearer");
    forged.binding = plain.binding.clone();
    forged.name = "bearer".into();
    request.spec.secrets[0].exposed = true;
    request.id = SandboxId::random();
    scene.set(&[forged, plain.clone()]).await;
    let (other, _) = scene.start(request).await;
    let told = client.exposed_secrets(&other.id).await.expect("values");
    assert_eq!(told.keys().collect::<Vec<_>>(), ["plain"]);
    // One that was removed, or is not for exposure any more, is not told.
    plain = scene.secret("plain", "canary-plain-0123", "bearer");
    scene.set(&[plain]).await;
    let told = client.exposed_secrets(&made.id).await.expect("values");
    assert!(told.is_empty(), "no value is told");
    let (without, _) = scene
        .start(CreateRequest {
            id: SandboxId::random(),
            spec: SandboxSpec {
                secrets: Vec::new(),
                ..scene.request(&[&allow], None).spec
            },
            ..scene.request(&[&allow], None)
        })
        .await;
    assert!(
        client
            .exposed_secrets(&without.id)
            .await
            .expect("values")
            .is_empty()
    );
}

/// What a client thinks of the certificate that answers `inside` for a name, when it trusts `ca` alone.
async fn handshake(scene: &Scene, inside: &Guest, name: &str, ca: &str) -> String {
    let mut child = Command::new("python3")
        .args([&script("handshake.py"), name, &path(scene.dir(), ca)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut said = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says");
    // The input stays open until the answer begins and some time after that: it may come in pieces.
    let sending = format!(
        "echo {} | base64 -d; n=0; while [ ! -s /tmp/answer ] && [ $n -lt 600 ]; do n=$((n+1)); sleep 0.2; done; sleep 3",
        line.trim()
    );
    let asking = format!(
        "rm -f /tmp/answer; ({sending}) | nc -w 120 {PUBLIC} {PORT} > /tmp/answer; base64 /tmp/answer | tr -d '\\n'"
    );
    let answer = output(inside, &asking).await;
    let mut input = child.stdin.take().expect("it is piped");
    writeln!(input, "{}", answer.trim()).expect("it reads");
    line.clear();
    said.read_line(&mut line).expect("it says");
    child.wait().expect("it ends");
    line.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_of_secrets_are_terminated_for_gvisor_sandboxes_too() {
    let scene = Scene::new().await;
    let both = [BOUND, UNBOUND].map(|name| format!("{name}:{PORT}"));
    let mut request = scene.request(&[&both[0], &both[1]], None);
    request.spec.isolation = "gvisor".into();
    let client = scene.stage.engine.client();
    let made = client.create(request).await.expect("a sandbox");
    assert_eq!(made.placeholders.len(), 4);
    let inside = guest(&client, &made.id);
    // The bound host is answered by the organisation's own authority, the other one by itself.
    for (name, ca) in [(BOUND, "authority.pem"), (UNBOUND, "roots.pem")] {
        let good = handshake(&scene, &inside, name, ca).await;
        assert_eq!(good, "verified", "{name}");
    }
    let other = handshake(&scene, &inside, BOUND, "roots.pem").await;
    assert!(other.starts_with("failed"), "{other}");
}
