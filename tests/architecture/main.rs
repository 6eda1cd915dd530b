//! Which crate may depend on which, read from the manifests themselves. ARCHITECTURE.md says the same
//! in words.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod dependencies;
mod isolation;
mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What each crate may reach, directly or through others. A new crate takes its place here.
const MAY_REACH: &[(&str, &[&str])] = &[
    ("limits", &[]),
    ("wire", &[]),
    ("model", &[]),
    ("protocol", &["model", "wire"]),
    // Programs that run among untrusted programs carry as little as they can.
    ("mux", &[]),
    ("guest", &["mux", "protocol", "model", "wire"]),
    ("confine", &[]),
    ("spawner", &["confine", "wire"]),
    (
        "supervisor",
        &["confine", "mux", "protocol", "spawner", "wire"],
    ),
    ("unpack", &["confine"]),
    ("parser", &["confine", "model"]),
    ("embedded", &[]),
    ("pool", &["model"]),
    ("criu", &["model"]),
    ("network", &["model"]),
    // The interface of a tier, with what a host gives to all of its tiers.
    (
        "isolation",
        &[
            "confine",
            "model",
            "network",
            "parser",
            "pool",
            "runner-api",
            "wire",
        ],
    ),
    ("gateway", &["confine", "model", "terminator", "wire"]),
    (
        "fetcher",
        &["confine", "gateway", "model", "terminator", "wire"],
    ),
    (
        "image",
        &[
            "fetcher", "model", "parser", "pool", "confine", "unpack", "wire",
        ],
    ),
    // What tiers share that hold their machines in namespaces.
    (
        "seats",
        &[
            "embedded",
            "isolation",
            "model",
            "network",
            "parser",
            "pool",
            "protocol",
            "runner-api",
            "confine",
            "spawner",
            "wire",
        ],
    ),
    (
        "isolation-gvisor",
        &[
            "embedded",
            "isolation",
            "model",
            "network",
            "parser",
            "pool",
            "protocol",
            "runner-api",
            "confine",
            "seats",
            "spawner",
            "wire",
        ],
    ),
    (
        "isolation-vm",
        &[
            "embedded",
            "isolation",
            "model",
            "network",
            "parser",
            "pool",
            "protocol",
            "runner-api",
            "confine",
            "seats",
            "spawner",
            "wire",
        ],
    ),
    (
        "isolation-container",
        &[
            "seats",
            "criu",
            "embedded",
            "isolation",
            "model",
            "network",
            "parser",
            "pool",
            "protocol",
            "runner-api",
            "confine",
            "spawner",
            "unpack",
            "wire",
        ],
    ),
    ("runner-api", &["model", "wire"]),
    ("node", &["model", "runner-api", "wire"]),
    // One host's sandboxes, whatever holds them: tiers are joined to it by the programs on top.
    (
        "engine",
        &[
            "embedded",
            "fetcher",
            "gateway",
            "image",
            "isolation",
            "model",
            "network",
            "parser",
            "pool",
            "protocol",
            "runner-api",
            "confine",
            "unpack",
            "terminator",
            "vault",
            "wire",
        ],
    ),
    ("store", &["model"]),
    // Pure: what it knows of hosts is what it is given.
    ("scheduler", &["model"]),
    ("api", &["model"]),
    ("client", &["api", "model"]),
    // Tools are requests through the client, whether the server is in the same program or not.
    ("mcp", &["api", "client", "model"]),
    // What code contexts say and hear; pure, so that the control plane alone starts processes.
    ("identity", &[]),
    // Who can open what; control seals with it, the runner wraps keys, and neither opens a secret.
    // Object storage is control's: its TLS and its decoders never enter a root process.
    ("objects", &["model"]),
    ("vault", &["model"]),
    ("terminator", &["confine", "model", "vault", "wire"]),
    // Pure: what a Dockerfile says. The command line reads lists of ignored files with it.
    ("template", &[]),
    ("code", &["model", "protocol", "wire"]),
    // Nothing here reaches the engine: what joins them is the trait in `runner-api`.
    (
        "control",
        &[
            "code",
            "identity",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
    // Dialects stand on the control plane, and the server on them; none knows the native contract.
    (
        "dialect",
        &[
            "code",
            "control",
            "identity",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
    (
        "dialect-daytona",
        &[
            "code",
            "control",
            "identity",
            "dialect",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
    (
        "dialect-e2b",
        &[
            "code",
            "control",
            "identity",
            "dialect",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
    (
        "ssh",
        &[
            "code",
            "control",
            "identity",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
    (
        "server",
        &[
            "api",
            "client",
            "code",
            "control",
            "identity",
            "dialect",
            "dialect-daytona",
            "dialect-e2b",
            "mcp",
            "model",
            "node",
            "objects",
            "protocol",
            "runner-api",
            "scheduler",
            "store",
            "template",
            "vault",
            "wire",
        ],
    ),
];

/// Programs on top of everything; nothing depends on them.
const TOPS: &[&str] = &["cove", "cove-bench", "cove-tests"];

/// Which crates of the workspace each one names, tests of its own left out. What a crate names as an
/// option is its program's: those who depend on it do without.
fn workspace(optional: bool) -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    let dependencies = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(|dependency| dependency["kind"] != "dev")
            .filter(|dependency| optional || dependency["optional"] == false)
            .map(|dependency| dependency["name"].as_str().unwrap())
            .filter(|name| ours.contains(name))
            .map(str::to_owned)
            .collect()
    };
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().unwrap().to_owned();
            (name, dependencies(package))
        })
        .collect()
}

fn reached(from: &str) -> BTreeSet<String> {
    let (whole, graph) = (workspace(true), workspace(false));
    let mut found = whole[from].clone();
    let mut next: Vec<String> = found.iter().cloned().collect();
    while let Some(name) = next.pop() {
        for dependency in &graph[&name] {
            if found.insert(dependency.clone()) {
                next.push(dependency.clone());
            }
        }
    }
    found
}

#[test]
fn dependencies_point_down_only() {
    let graph = workspace(true);
    let mut wrong = Vec::new();
    for name in graph.keys().filter(|name| !TOPS.contains(&name.as_str())) {
        let row = MAY_REACH
            .iter()
            .find(|(row, _)| format!("cove-{row}") == *name);
        let Some((_, allowed)) = row else {
            wrong.push(format!("{name} has no row in MAY_REACH"));
            continue;
        };
        for dependency in reached(name) {
            let short = dependency.strip_prefix("cove-").unwrap_or(&dependency);
            // Constants only.
            if short == "limits" {
                continue;
            }
            if !allowed.contains(&short) {
                wrong.push(format!("{name} must not depend on {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Crates that hold one isolation tier each begin with this.
const TIER: &str = "cove-isolation-";

#[test]
fn nothing_but_the_programs_on_top_depends_on_a_tier() {
    let graph = workspace(true);
    assert!(graph.keys().any(|name| name.starts_with(TIER)));
    let mut wrong = Vec::new();
    for name in graph.keys().filter(|name| !TOPS.contains(&name.as_str())) {
        let tiers = reached(name)
            .into_iter()
            .filter(|reached| reached.starts_with(TIER));
        wrong.extend(tiers.map(|tier| format!("{name} depends on the tier {tier}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_crate_that_a_row_names_exists() {
    let graph = workspace(true);
    for (row, allowed) in MAY_REACH {
        for name in std::iter::once(row).chain(allowed.iter()) {
            let whole = format!("cove-{name}");
            assert!(graph.contains_key(&whole), "there is no crate {whole}");
        }
    }
}

#[test]
fn the_graph_that_is_checked_is_the_real_one() {
    let graph = workspace(true);
    assert!(graph.len() > 15, "{graph:?}");
    assert!(reached("cove").contains("cove-engine"));
    assert!(reached("cove-server").contains("cove-model"));
    assert!(reached("cove-fetcher").contains("cove-gateway"));
}
