//! AWS signatures: unmodified boto3 with a placeholder for its keys, against a server that checks with botocore.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::secrets::{BOUND, PORT, Scene, path, script};
use crate::world::*;

const KEYS: &str = "AKIDCANARYCANARY0001:canary/aws+secret0123456789:canary-session-token==";

/// A Python with boto3, made where there is none yet.
pub fn python(name: &str, packages: &[&str]) -> String {
    let made = Command::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../scripts/python-env"
    ))
    .arg(name)
    .args(packages)
    .stderr(Stdio::inherit())
    .output()
    .expect("bash is installed");
    assert!(made.status.success(), "a Python environment is made");
    let venv = String::from_utf8(made.stdout).expect("a path");
    format!("{}/bin/python", venv.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn boto3_works_with_a_placeholder_for_its_keys() {
    let python = python("secrets-boto3", &["boto3==1.40.61"]);
    let scene = Scene::with(&python, "s3.py").await;
    scene
        .set(&[
            scene.secret("aws", KEYS, "sigv4:eu-central-1/s3"),
            scene.secret("db", KEYS, "sigv4:eu-central-1/dynamodb"),
        ])
        .await;
    let allow = format!("{BOUND}:{PORT}");
    let request = scene.request_for(&["aws", "db"], &[&allow], None);
    let (made, pid) = scene.start(request).await;
    let told = Command::new("nsenter")
        .arg(format!("--net=/proc/{pid}/ns/net"))
        .args([&python, &script("boto.py"), &PUBLIC.to_string()])
        .args([&PORT.to_string(), BOUND])
        .arg(path(scene.dir(), "authority.pem"))
        .args([&made.placeholders["aws"], &made.placeholders["db"]])
        .stderr(Stdio::inherit())
        .output()
        .expect("it runs");
    let log = std::fs::read_to_string(scene.dir().join("server.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{log}"));
    let wanted = json!({
        "default": "hello",
        "hashed": 6,
        "unsigned": "sig",
        "transferred": true,
        "presigned": "hello",
        "signed chunks": 200,
        "signed trailers": 200,
        "dynamodb": ["one"],
        "other region": 403,
        "other service": 403,
        "sigv4a": told["sigv4a"],
    });
    assert_eq!(told, wanted, "{log}");
    assert_eq!(told["sigv4a"][0], 403, "{told}");
    let reason = told["sigv4a"][1].as_str().unwrap_or_default();
    assert!(reason.contains("SigV4a"), "{reason}");
    // Every way of hashing a body was there, and nothing came with the client's own signature or session.
    for payload in [
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "UNSIGNED-PAYLOAD",
        "presigned",
        "hashed",
    ] {
        let said = format!("\"payload\": \"{payload}\"");
        assert!(log.contains(&said), "{payload}: {log}");
    }
    assert!(
        !log.contains("stale") && !log.contains("cove-secret"),
        "{log}"
    );
}
