//! Builds the little library that CRIU loads into itself. It is no crate of its own, because it has no
//! standard library and would need a profile of its own.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=preload/owner.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("owner.so");
    let status = Command::new(env::var_os("RUSTC").expect("set by cargo"))
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "--crate-name",
            "owner",
        ])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "opt-level=s",
            "-C",
            "strip=symbols",
        ])
        .args(["--target", &env::var("TARGET").expect("set by cargo")])
        .arg("-o")
        .arg(&out)
        .arg("preload/owner.rs")
        .status()
        .expect("the compiler can be run");
    assert!(status.success(), "building the library for criu failed");
    println!("cargo:rustc-env=COVE_CRIU_OWNER={}", out.display());
}
