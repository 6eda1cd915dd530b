//! For once the real thing: package managers of all kinds inside a sandbox that may reach the registries
//! of this host and nothing else. Which those are is not written here; the host knows.

use std::time::Duration;

use cove_image::Recipe;
use cove_model::{NetworkMode, NetworkPolicy, Resources, SandboxSpec};
use cove_protocol::message::Start;
use cove_runner_api::{EgressEntry, EgressQuery, EgressVerdict, RunnerApi};
use cove_tests::{Host, Ran, Sandbox, start_as};

/// Registries are far away, and machines busy.
const STEP: Duration = Duration::from_secs(600);
/// Where certificates are that the host trusts; a network may have an authority of its own.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

async fn run(sandbox: &Sandbox, script: &str) -> Ran {
    let start = Start {
        shell: script.into(),
        ..start_as("root")
    };
    let guest = sandbox.guest.clone().within(STEP);
    let result = guest.exec(start).await.expect("the guest runs a command");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran {
        exit: result.exit,
        stdout: text(&result.stdout),
        stderr: text(&result.stderr),
    }
}

async fn egress(host: &Host, sandbox: &Sandbox) -> Vec<EgressEntry> {
    let query = EgressQuery {
        sandbox: sandbox.id.clone(),
        after: 0,
        limit: 1000,
        wait_ms: 0,
        verdict: None,
    };
    host.engine.egress(query).await.expect("a log").entries
}

#[tokio::test(flavor = "multi_thread")]
async fn package_managers_reach_their_registries_and_nothing_else_is_reached() {
    let host = Host::open(|_| {}).await;
    let recipe = Recipe::with("node", &["nodejs", "npm"]).expect("plain words");
    let images = host.engine.images().clone();
    images
        .bootstrap(&recipe, |_| {})
        .await
        .expect("the image is built from the host's mirror");
    let sandbox = host
        .sandbox(SandboxSpec {
            image: recipe.name().into(),
            network: NetworkPolicy {
                mode: NetworkMode::Allowlist,
                allow: Some(vec!["preset:packages".parse().expect("an entry")]),
                ..NetworkPolicy::default()
            },
            resources: Resources {
                memory_mb: 1024,
                disk_mb: 2048,
                ..Resources::default()
            },
            ..SandboxSpec::default()
        })
        .await;
    let trusted = std::fs::read(CERTIFICATES).expect("the host trusts somebody");
    let certificates = Start {
        shell: "mkdir -p /etc/ssl/certs && cat > /etc/ssl/certs/ca-certificates.crt".into(),
        input: Some(trusted.into()),
        ..start_as("root")
    };
    sandbox.exec(certificates).await.ok();

    run(
        &sandbox,
        "apt-get update && apt-get install -y --no-install-recommends python3-pip tree",
    )
    .await
    .ok();
    run(&sandbox, "tree --version").await.ok();
    run(
        &sandbox,
        "export PIP_CERT=/etc/ssl/certs/ca-certificates.crt; \
         pip install --no-cache-dir --break-system-packages six && python3 -c 'import six'",
    )
    .await
    .ok();
    run(
        &sandbox,
        "export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt; \
         mkdir -p /root/app && cd /root/app && npm init --yes > /dev/null && \
         npm install --no-audit --no-fund is-odd && \
         node -e 'if (!require(\"is-odd\")(3)) process.exit(1)'",
    )
    .await
    .ok();
    let seen = egress(&host, &sandbox).await;
    let denied: Vec<_> = seen
        .iter()
        .filter(|entry| entry.verdict == EgressVerdict::Denied)
        .collect();
    assert!(denied.is_empty(), "{denied:#?}");
    let by_preset = |entry: &&EgressEntry| entry.rule.starts_with("preset:packages ");
    assert!(seen.iter().filter(by_preset).count() > 3, "{seen:#?}");

    // The same programs, to anywhere else; the address is one that a registry itself has.
    let address = run(
        &sandbox,
        "apt-get update --print-uris | sed -n \"s|^'[a-z]*://\\([^/:]*\\).*|\\1|p\" | head -n 1 \
         | xargs getent ahostsv4 | head -n 1 | cut -d ' ' -f 1",
    )
    .await
    .ok();
    let address = address.trim();
    assert!(address.parse::<std::net::Ipv4Addr>().is_ok(), "{address}");
    for (attempt, said) in [
        (
            "pip download --index-url https://elsewhere.example/simple six",
            "",
        ),
        (
            "npm view --fetch-retries=0 --registry https://elsewhere.example is-odd",
            "",
        ),
        ("getent ahostsv4 elsewhere.example", ""),
        (
            &format!(
                "node -e \"require('net').connect(22, '{address}').on('error', e => {{ console.error(e.code); process.exit(1) }})\""
            ),
            "ECONNRESET",
        ),
        (
            &format!(
                "node -e \"require('tls').connect({{ host: '{address}', port: 443, servername: 'elsewhere.example', rejectUnauthorized: false }}).on('error', e => {{ console.error(e.code); process.exit(1) }})\""
            ),
            "ERR_SSL_TLSV1_ALERT_ACCESS_DENIED",
        ),
    ] {
        let ran = run(&sandbox, attempt).await;
        assert_ne!(ran.exit.code, 0, "'{attempt}' worked");
        assert!(ran.stderr.contains(said), "'{attempt}' said {}", ran.stderr);
    }
    drop((sandbox, images));
    host.destroy().await;
}
