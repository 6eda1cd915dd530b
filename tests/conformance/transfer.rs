//! Files moved in and out while somebody inside plays with the paths.

use std::sync::Arc;

use cove_protocol::message::{
    ArchiveIn, ArchiveOut, ListDir, PathRequest, ReadFile, Remove, WriteFile,
};
use cove_tests::{Sandbox, eventually, start_as};

use crate::world::{Case, World, cases};

const ROUNDS: u32 = 60;

pub fn cases() -> Vec<Case> {
    cases![
        swapping_a_directory_for_a_link_never_leads_a_transfer_out,
        links_to_the_guests_own_files_give_a_user_nothing,
        a_users_transfer_has_the_users_rights,
        special_files_do_not_hang_a_transfer,
    ]
}

/// Starts a loop inside that swaps `at` between a directory and a link to `target`.
async fn swap(sandbox: &Sandbox, at: &str, target: &str) {
    let program = format!(
        r#"
import os
at, target = "{at}", "{target}"
os.makedirs(at + ".dir", exist_ok=True)
os.path.lexists(at + ".link") or os.symlink(target, at + ".link")
print("on", flush=True)
while True:
    for kind in (".dir", ".link"):
        try:
            os.rename(at + kind, at)
            os.rename(at, at + kind)
        except OSError:
            pass
"#
    );
    let start = cove_protocol::message::Start {
        argv: vec!["python3".into(), "-".into()],
        input: Some(program.into()),
        ..start_as("")
    };
    let id = sandbox.spawn(start).await;
    eventually("the swapping began", || async {
        let process = sandbox.guest.process(id.clone()).await.ok()?;
        assert!(process.exit.is_none(), "{process:?}");
        (process.stdout_bytes > 0).then_some(())
    })
    .await;
}

/// A tar with one file.
fn archive(name: &str, text: &str) -> Vec<u8> {
    let mut header = [0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", text.len()).as_bytes());
    header[136..147].copy_from_slice(b"00000000000");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    header[154] = 0;
    let mut tar = header.to_vec();
    tar.extend(text.as_bytes());
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    tar
}

async fn swapping_a_directory_for_a_link_never_leads_a_transfer_out(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let name = format!("cove-planted-{}", std::process::id());
    let scratch = world.host.dir().join(&name);
    let guest = &sandbox.guest;
    sandbox.sh("", "mkdir -p /srv/in /srv/victim").await.ok();
    // One link to where the host keeps its own, one to a place inside that the archive must not touch.
    swap(&sandbox, "/srv/out", &world.host.dir().to_string_lossy()).await;
    swap(&sandbox, "/srv/in/d", "/srv/victim").await;
    let mut unpacked = 0;
    for round in 0..ROUNDS {
        let path = format!("/srv/out/{name}");
        // Each of these may fail for want of the path; none may act elsewhere.
        if let Ok(mut upload) = guest
            .write_file(WriteFile {
                path: path.clone(),
                parents: true,
                ..WriteFile::default()
            })
            .await
        {
            let _ = upload.write("planted".into()).await;
            let _ = upload.finish().await;
        }
        if let Ok(listing) = guest
            .list(ListDir {
                path: "/srv/out".into(),
                ..ListDir::default()
            })
            .await
        {
            assert!(
                listing
                    .entries
                    .iter()
                    .all(|entry| entry.name == name || entry.name.starts_with('.')),
                "the host's directory was listed: {listing:?}"
            );
        }
        if let Ok(mut reader) = guest
            .read_file(ReadFile {
                path: "/srv/out/data/instance".into(),
                ..ReadFile::default()
            })
            .await
        {
            panic!("a file of the host was read: {:?}", reader.next().await);
        }
        let _ = guest
            .remove(Remove {
                path: "/srv/out/data".into(),
                recursive: true,
                ..Remove::default()
            })
            .await;
        let mut upload = guest
            .archive_in(ArchiveIn {
                path: "/srv/in".into(),
                ..ArchiveIn::default()
            })
            .await
            .expect("an archive call opens");
        let _ = upload
            .write(archive(&format!("d/evil-{round}"), "evil").into())
            .await;
        unpacked += u32::from(upload.finish().await.is_ok());
        if let Ok(mut reader) = guest
            .archive_out(ArchiveOut {
                path: "/srv/in".into(),
                ..ArchiveOut::default()
            })
            .await
        {
            while let Ok(Some(_)) = reader.next().await {}
        }
    }
    assert!(!scratch.exists(), "a file was planted on the host");
    assert!(world.host.data_dir().join("instance").exists());
    assert!(unpacked > 0, "no archive ever got through");
    let victim = sandbox.sh("", "ls -A /srv/victim").await.ok();
    assert_eq!(victim, "", "the archive went through the link");
}

async fn links_to_the_guests_own_files_give_a_user_nothing(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    for target in [
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/self/maps",
        "/proc/1/mem",
        "/proc/self/fd/3",
        "/proc/thread-self/mem",
        "/proc/self/root/etc/shadow",
        "/proc/self/exe",
        "/etc/shadow",
    ] {
        sandbox
            .sh("user", &format!("ln -sfn {target} ~/link"))
            .await
            .ok();
        let read = ReadFile {
            root_links_only: false,
            path: "/home/user/link".into(),
            user: "user".into(),
            offset: 0,
            length: 64,
        };
        match sandbox.guest.read_file(read).await {
            Err(_) => {}
            Ok(mut reader) => {
                let got = reader.next().await;
                assert!(
                    !matches!(got, Ok(Some(ref data)) if !data.is_empty())
                        || target.ends_with("exe"),
                    "{target} gave {got:?}"
                );
            }
        }
        let write = WriteFile {
            path: "/home/user/link".into(),
            user: "user".into(),
            at: Some(0),
            ..WriteFile::default()
        };
        if let Ok(mut upload) = sandbox.guest.write_file(write).await {
            let _ = upload.write("x".into()).await;
            let done = upload.finish().await;
            assert!(done.is_err(), "{target} was written: {done:?}");
        }
    }
    sandbox.sh("", "echo alive").await.ok();
}

async fn a_users_transfer_has_the_users_rights(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    sandbox
        .sh("", "umask 077; echo secret > /root/secret; mkdir /root/dir")
        .await
        .ok();
    let path = "/root/secret".to_owned();
    let user = "user".to_owned();
    let guest = &sandbox.guest;
    assert!(
        guest
            .read_file(ReadFile {
                path: path.clone(),
                user: user.clone(),
                ..ReadFile::default()
            })
            .await
            .is_err()
    );
    assert!(
        guest
            .stat(PathRequest {
                path: path.clone(),
                user: user.clone(),
                follow: true
            })
            .await
            .is_err()
    );
    assert!(
        guest
            .list(ListDir {
                path: "/root/dir".into(),
                user: user.clone(),
                ..ListDir::default()
            })
            .await
            .is_err()
    );
    let mut upload = guest
        .write_file(WriteFile {
            path,
            user,
            ..WriteFile::default()
        })
        .await
        .expect("a write call opens");
    let _ = upload.write("changed".into()).await;
    assert!(upload.finish().await.is_err());
    assert_eq!(sandbox.sh("", "cat /root/secret").await.ok(), "secret\n");
}

async fn special_files_do_not_hang_a_transfer(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    sandbox
        .sh("", "mkfifo /srv/fifo; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/srv/sock')\"; ln -s loop /srv/loop; ln -s /dev/zero /srv/zero; ln -s /dev/tty /srv/tty")
        .await
        .ok();
    for name in ["fifo", "sock", "loop", "zero", "tty"] {
        let path = format!("/srv/{name}");
        let read = sandbox
            .guest
            .read_file(ReadFile {
                path,
                ..ReadFile::default()
            })
            .await;
        assert!(read.is_err(), "{name} was read as a file");
    }
    let mut reader = sandbox
        .guest
        .archive_out(ArchiveOut {
            path: "/srv".into(),
            ..ArchiveOut::default()
        })
        .await
        .expect("an archive call opens");
    let mut bytes = 0;
    while let Some(data) = reader.next().await.expect("the archive goes on") {
        bytes += data.len();
    }
    assert!(bytes > 0 && bytes < 1 << 20, "{bytes} bytes");
}
