//! Builds the static programs (fetcher, gateway, guest, parser, spawner, supervisor, terminator, unpack) with a nested cargo and hands their paths to
//! `lib.rs`. A nested build is needed because they want another profile and `crt-static`, which one
//! cargo invocation cannot give to some packages only.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: [&str; 8] = [
    "fetcher",
    "gateway",
    "guest",
    "parser",
    "spawner",
    "supervisor",
    "terminator",
    "unpack",
];

fn main() {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let crates = manifest.parent().expect("crates/ is above");
    let workspace = crates.parent().expect("the workspace is above crates/");
    for name in PROGRAMS.iter().chain(&[
        "protocol",
        "limits",
        "model",
        "mux",
        "runner-api",
        "confine",
        "vault",
        "wire",
    ]) {
        watch(&crates.join(name));
    }
    println!(
        "cargo:rerun-if-changed={}",
        workspace.join("Cargo.lock").display()
    );

    let triple = env::var("TARGET").expect("set by cargo");
    // Beside the outer target directory, so that `cargo clean` takes it along and profiles share it.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let target = out
        .ancestors()
        .find(|dir| dir.join("CACHEDIR.TAG").exists())
        .unwrap_or(&out)
        .join("embedded");

    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    cargo
        .current_dir(workspace)
        .args([
            "build",
            "--profile",
            "embedded",
            "--locked",
            "--target",
            &triple,
        ])
        .arg("--target-dir")
        .arg(&target)
        // What cargo sets for build scripts must not leak into the nested build.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        .env(
            "RUSTFLAGS",
            "-C target-feature=+crt-static -C relocation-model=static",
        );
    for name in PROGRAMS {
        cargo.args(["-p", &format!("cove-{name}")]);
    }
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "building the static programs failed");
    for name in PROGRAMS {
        let path = target
            .join(&triple)
            .join("embedded")
            .join(format!("cove-{name}"));
        println!(
            "cargo:rustc-env=COVE_{}={}",
            name.to_uppercase(),
            path.display()
        );
    }
}

fn watch(krate: &Path) {
    println!(
        "cargo:rerun-if-changed={}",
        krate.join("Cargo.toml").display()
    );
    println!("cargo:rerun-if-changed={}", krate.join("src").display());
}
