//! Snapshots that leave a host as one file and come in as one, and images made of them. What comes
//! in is untrusted: damaged, forged and hostile files are refused whole and leave nothing.

use std::time::Duration;

use cove_model::{SandboxId, SandboxSpec, SnapshotId};
use cove_runner_api::{
    CreateRequest, FromSnapshot, GuestStream, ImageOwner, Imported, JobState, RunnerApi,
    RunnerError, SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, output, small_spec, succeed};
use cove_tests::strace::Strace;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::PROGRAM;

/// Any one transfer of a test.
const PATIENCE: Duration = Duration::from_secs(300);
const HEAD: usize = 18;

async fn export(world: &World, id: &SnapshotId) -> Vec<u8> {
    let mut stream = world.client().export_snapshot(id, false).await.unwrap();
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("an export ends")
        .unwrap();
    bytes
}

async fn import(world: &World, bytes: &[u8]) -> Result<Imported, RunnerError> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let bytes = bytes.to_vec();
    let sending = tokio::spawn(async move {
        // A refusal ends the reading side early.
        let _ = ours.write_all(&bytes).await;
    });
    let answer = world
        .client()
        .import_snapshot(SnapshotId::random(), GuestStream::Unix(theirs))
        .await;
    sending.await.unwrap();
    answer
}

async fn start(world: &World, snapshot: &SnapshotId) -> SandboxId {
    let id = SandboxId::random();
    let request = CreateRequest {
        owner: None,
        id: id.clone(),
        spec: small_spec(),
        from: Some(FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        }),
    };
    world.client().create(request).await.unwrap();
    id
}

const SET_UP: &str = "rm /bin/true; mkdir -p /root/a/b; echo deep > /root/a/b/c; ln -s b /root/a/l; \
    ln /root/a/b/c /root/a/hard; chmod 4751 /root/a/b/c; chown 7:8 /root/a/b; mv /bin/busybox /bin/moved; \
    ln -s moved /bin/busybox; dd if=/dev/zero of=/root/sparse bs=1 count=1 seek=1M 2>/dev/null; sync";
const LOOK: &str = "cat /root/a/l/c; stat -c '%a %u:%g %h' /root/a/b/c; stat -c '%u:%g' /root/a/b; \
    ls /bin/true 2>/dev/null; readlink /bin/busybox; stat -c %s /root/sparse";

async fn prepared(world: &World) -> SnapshotId {
    let sandbox = world.create().await.id;
    succeed(&world.guest(&sandbox), SET_UP).await;
    let id = SnapshotId::random();
    let request = SnapshotRequest {
        id: id.clone(),
        sandbox: sandbox.clone(),
        memory: false,
        unless_unchanged: false,
    };
    world.client().snapshot(request).await.unwrap();
    world.client().delete(&sandbox).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_snapshot_starts_on_another_host_with_its_image() {
    let (here, there) = (World::start(PROGRAM).await, World::start(PROGRAM).await);
    let snapshot = prepared(&here).await;
    let at_home = start(&here, &snapshot).await;
    let expected = output(&here.guest(&at_home), LOOK).await;
    let file = export(&here, &snapshot).await;
    let images = there.client().images().await.unwrap().len();

    let imported = import(&there, &file).await.unwrap();
    assert_eq!(imported.memory_refused, None);
    let view = &imported.snapshot;
    assert!(!view.memory && view.parent.is_none(), "{view:?}");
    let abroad = start(&there, &view.id).await;
    assert_eq!(output(&there.guest(&abroad), LOOK).await, expected);
    let again = import(&there, &file).await.unwrap();
    assert_eq!(
        again.snapshot.image, view.image,
        "the same bytes are one image"
    );

    // What came in is charged once, however often it came.
    let client = there.client();
    let known = client.images().await.unwrap();
    let size = known.iter().find(|image| image.id == view.image).unwrap();
    assert!(size.size_bytes > 0, "{size:?}");
    eventually("what came in is charged once", || async {
        let mut charged = 0;
        for id in [&view.id, &again.snapshot.id] {
            charged += client.get_snapshot(id).await.unwrap().exclusive_bytes;
        }
        (size.size_bytes..2 * size.size_bytes)
            .contains(&charged)
            .then_some(())
    })
    .await;

    // The image came with the snapshot and goes with its last user.
    assert_eq!(client.images().await.unwrap().len(), images + 1);
    client.delete_snapshot(&view.id).await.unwrap();
    client.delete_snapshot(&again.snapshot.id).await.unwrap();
    assert_eq!(client.images().await.unwrap().len(), images + 1);
    client.delete(&abroad).await.unwrap();
    assert_eq!(client.images().await.unwrap().len(), images);
    here.finish();
    there.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_becomes_an_image_that_needs_nothing_of_it() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let snapshot = prepared(&world).await;
    let at_home = start(&world, &snapshot).await;
    let expected = output(&world.guest(&at_home), LOOK).await;
    let job = client
        .image_from_snapshot(&snapshot, "set-up", ImageOwner::Operator)
        .await
        .unwrap();
    let job = world.job_end(&job.id).await;
    assert_eq!(job.state, JobState::Done, "{job:?}");
    client.delete(&at_home).await.unwrap();
    client.delete_snapshot(&snapshot).await.unwrap();
    client.remove_image("busybox").await.unwrap();
    let made = world
        .create_with(|spec| spec.image = "set-up".into())
        .await
        .id;
    assert_eq!(output(&world.guest(&made), LOOK).await, expected);
    let job = client
        .image_from_snapshot(&snapshot, "again", ImageOwner::Operator)
        .await;
    assert!(matches!(job, Err(RunnerError::NotFound { .. })), "{job:?}");
    client.delete(&made).await.unwrap();
    client.remove_image("set-up").await.unwrap();
    world.finish();
}

/// What an import that came to nothing must not change.
async fn footprint(world: &World) -> (usize, usize, Vec<String>) {
    let client = world.client();
    let traces = world.traces();
    let left = traces
        .snapshots
        .iter()
        .chain(&traces.snapshot_records)
        .chain(&traces.unfinished)
        .cloned()
        .collect();
    (
        client.snapshots().await.unwrap().len(),
        client.images().await.unwrap().len(),
        left,
    )
}

async fn is_refused(world: &World, bytes: &[u8], what: &str) -> String {
    let before = footprint(world).await;
    let answer = import(world, bytes).await;
    let Err(RunnerError::Invalid { message }) = answer else {
        panic!("{what}: {answer:?}");
    };
    assert_eq!(footprint(world).await, before, "{what}: {message}");
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_refused_and_leave_nothing() {
    let world = World::start(PROGRAM).await;
    let snapshot = prepared(&world).await;
    let whole = export(&world, &snapshot).await;
    for length in [0, 5, HEAD, HEAD + 30, whole.len() / 2, whole.len() - 1] {
        is_refused(&world, &whole[..length], &format!("cut at {length}")).await;
    }
    // In the manifest, in the root, in a checksum.
    for at in [HEAD + 40, whole.len() / 3, whole.len() / 2] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        is_refused(&world, &flipped, &format!("flipped at {at}")).await;
    }
    let mut longer = whole.clone();
    longer.extend_from_slice(b"more");
    is_refused(&world, &longer, "data after its end").await;
    let mut newer = whole.clone();
    newer[HEAD - 4] = 2;
    let message = is_refused(&world, &newer, "a newer version").await;
    assert!(message.contains("version 2"), "{message}");
    let message = is_refused(&world, b"PK\x03\x04 something else", "a zip").await;
    assert!(message.contains("not an exported snapshot"), "{message}");
    world.finish();
}

/// A file made by hand, as a forger would.
struct Forged {
    bytes: Vec<u8>,
    seal: Sha256,
}

impl Forged {
    fn new() -> Self {
        let mut bytes = b"cove-snapshot\n".to_vec();
        bytes.extend_from_slice(&1_u32.to_le_bytes());
        let mut seal = Sha256::new();
        seal.update(&bytes);
        Self { bytes, seal }
    }

    fn section(mut self, kind: u8, content: &[u8]) -> Self {
        self.bytes.push(kind);
        for chunk in content.chunks(100_000) {
            let length = u32::try_from(chunk.len()).unwrap();
            self.bytes.extend_from_slice(&length.to_le_bytes());
            self.bytes.extend_from_slice(chunk);
        }
        self.bytes.extend_from_slice(&[0; 4]);
        let mut hash = Sha256::new();
        hash.update([kind]);
        hash.update(content);
        let digest = hash.finalize();
        self.bytes.extend_from_slice(&digest);
        self.seal.update(digest);
        self
    }

    fn manifest(self, memory: bool) -> Self {
        self.manifest_of("2026-01-02T03:04:05Z", memory)
    }

    /// Always the same for the same arguments, so that only what a test changes changes the seal.
    fn manifest_of(self, created_at: &str, memory: bool) -> Self {
        let memory = memory.then(|| {
            json!({
                "bytes": 1000,
                "grown_mb": null,
                "needs": {
                    "tier": "container",
                    "architecture": "x86_64",
                    "cpu_features": [],
                    "kernel": "6.18",
                    "components": {},
                },
            })
        });
        let manifest = json!({
            "sandbox": "sbx_aaaaaaaaaaaaaaaaaaaa",
            "spec": SandboxSpec::default(),
            "created_at": created_at,
            "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
            "image": { "env": [], "user": null, "workdir": null, "entrypoint": [], "cmd": [] },
            "image_names": [],
            "memory": memory,
        });
        let bytes = serde_json::to_vec(&manifest).unwrap();
        self.section(1, &bytes)
    }

    fn root(self, tar: &[u8]) -> Self {
        self.section(2, tar)
    }

    /// Files of a memory image, packed as they are exported.
    fn memory(self, files: &[(&str, &[u8])]) -> Self {
        let mut packed = Vec::new();
        for (name, content) in files {
            packed.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
            packed.extend_from_slice(name.as_bytes());
            packed.extend_from_slice(&(content.len() as u64).to_le_bytes());
            packed.extend_from_slice(content);
        }
        self.section(3, &gzip(&packed))
    }

    fn signed(self, pair: &Ed25519KeyPair) -> Vec<u8> {
        let seal = self.seal.clone().finalize();
        let signature = pair.sign(&seal);
        self.ended(pair.public_key().as_ref(), signature.as_ref())
    }

    fn ended(self, key: &[u8], signature: &[u8]) -> Vec<u8> {
        let hex = |bytes: &[u8]| hex::encode(bytes);
        let end = json!({ "key": hex(key), "signature": hex(signature) });
        let bytes = serde_json::to_vec(&end).unwrap();
        self.section(255, &bytes).bytes
    }
}

/// gzip with stored blocks only.
fn gzip(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("gzip")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    child.wait_with_output().unwrap().stdout
}

fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        // Set by hand: the library refuses names that leave the tree.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

fn stranger() -> Ed25519KeyPair {
    let random = ring::rand::SystemRandom::new();
    let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_comes_in_only_under_a_trusted_signature_of_the_whole_file() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let own = std::fs::read(world.setup.data_dir().join("signing.key")).unwrap();
    let own = Ed25519KeyPair::from_pkcs8(&own).unwrap();
    let root = tar_of(&[("etc/x", b"x")]);
    let images: &[(&str, &[u8])] = &[("pages-1.img", b"pages"), ("core-1.img", b"core")];
    let good = || Forged::new().manifest(true).root(&root).memory(images);

    let taken = import(&world, &good().signed(&own)).await.unwrap();
    assert_eq!(taken.memory_refused, None);
    assert!(taken.snapshot.memory);
    let memory = world
        .setup
        .data_dir()
        .join("pool/snapshots")
        .join(taken.snapshot.id.as_str())
        .join("mem");
    assert_eq!(std::fs::read(memory.join("pages-1.img")).unwrap(), b"pages");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&memory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "nobody else looks into memory");

    let strangers = stranger();
    let other_root = tar_of(&[("etc/x", b"y")]);
    let signature_of_good = {
        let seal = good().seal.finalize();
        own.sign(&seal)
    };
    let swapped =
        |forged: Forged| forged.ended(own.public_key().as_ref(), signature_of_good.as_ref());
    let evil: &[(&str, &[u8])] = &[("pages-1.img", b"evil!"), ("core-1.img", b"core")];
    let sound = import(&world, &swapped(good())).await.unwrap();
    assert_eq!(sound.memory_refused, None, "the signature itself is good");
    let cases = [
        (
            "a stranger's key",
            good().signed(&strangers),
            "does not trust",
        ),
        (
            "a stranger's signature under our name",
            {
                let seal = good().seal.finalize();
                good().ended(own.public_key().as_ref(), strangers.sign(&seal).as_ref())
            },
            "does not match",
        ),
        (
            "other memory under a good signature",
            swapped(Forged::new().manifest(true).root(&root).memory(evil)),
            "does not match",
        ),
        (
            "another disk under a good signature",
            swapped(
                Forged::new()
                    .manifest(true)
                    .root(&other_root)
                    .memory(images),
            ),
            "does not match",
        ),
        (
            "another manifest under a good signature",
            swapped(
                Forged::new()
                    .manifest_of("2027-01-02T03:04:05Z", true)
                    .root(&root)
                    .memory(images),
            ),
            "does not match",
        ),
        ("no signature", good().ended(b"", b""), "does not"),
    ];
    for (what, file, reason) in cases {
        let answer = import(&world, &file).await.unwrap();
        let refused = answer.memory_refused.unwrap_or_default();
        assert!(refused.contains(reason), "{what}: {refused:?}");
        assert!(!answer.snapshot.memory, "{what}");
        client.delete_snapshot(&answer.snapshot.id).await.unwrap();
    }
    // Trust is no proof: signed or not, names and lengths are checked.
    for name in ["../escape", "a/b", ".hidden", ""] {
        let file = Forged::new()
            .manifest(true)
            .root(&root)
            .memory(&[(name, b"x")])
            .signed(&own);
        is_refused(&world, &file, name).await;
    }
    let bomb = vec![0; 80 << 20];
    let file = Forged::new()
        .manifest(true)
        .root(&root)
        .memory(&[("pages-1.img", &bomb)])
        .signed(&own);
    is_refused(&world, &file, "more memory than it declares").await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_trees_and_sections_are_refused_and_leave_nothing() {
    let world = World::start(PROGRAM).await;
    let key = stranger();
    let root = tar_of(&[("etc/x", b"x")]);
    let escape = format!("/var/tmp/cove-escape-{}", std::process::id());
    for name in [
        format!("../../../../../../..{escape}"),
        escape.clone(),
        "a/../../b".to_owned(),
    ] {
        let tar = tar_of(&[(name.as_str(), b"x")]);
        let file = Forged::new().manifest(false).root(&tar).signed(&key);
        // Refused, or kept inside the tree: never outside.
        match import(&world, &file).await {
            Err(RunnerError::Invalid { .. }) => {}
            Ok(taken) => {
                let client = world.client();
                client.delete_snapshot(&taken.snapshot.id).await.unwrap();
            }
            Err(other) => panic!("{name}: {other:?}"),
        }
        assert!(!std::path::Path::new(&escape).exists(), "{name}");
    }
    let refused = [
        (
            "no tar",
            Forged::new().manifest(false).root(b"garbage!").signed(&key),
        ),
        ("no manifest", Forged::new().root(&root).signed(&key)),
        ("no root", Forged::new().manifest(false).signed(&key)),
        (
            "two roots",
            Forged::new()
                .manifest(false)
                .root(&root)
                .root(&root)
                .signed(&key),
        ),
        (
            "memory that was not announced",
            Forged::new()
                .manifest(false)
                .root(&root)
                .memory(&[("a", b"b")])
                .signed(&key),
        ),
        (
            "an unknown section",
            Forged::new()
                .manifest(false)
                .root(&root)
                .section(9, b"x")
                .signed(&key),
        ),
        (
            "a manifest of nonsense",
            Forged::new()
                .section(1, b"{\"sandbox\": 3}")
                .root(&root)
                .signed(&key),
        ),
        (
            "an endless manifest",
            Forged::new()
                .section(1, &vec![b' '; 3 << 20])
                .root(&root)
                .signed(&key),
        ),
    ];
    for (what, file) in refused {
        is_refused(&world, &file, what).await;
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_neither_dials_nor_runs_tar_while_snapshots_travel() {
    let world = World::start(PROGRAM).await;
    let snapshot = prepared(&world).await;
    let strace = Strace::attach(world.engine_pid());
    let file = export(&world, &snapshot).await;
    let imported = import(&world, &file).await.unwrap();
    let job = world
        .client()
        .image_from_snapshot(&snapshot, "packed", ImageOwner::Operator)
        .await
        .unwrap();
    assert_eq!(world.job_end(&job.id).await.state, JobState::Done);
    is_refused(&world, &file[..file.len() - 1], "a file that was cut off").await;
    let seen = strace.finish();
    // Only programs that travel inside the engine are run, by descriptor.
    let programs = seen.programs();
    assert!(
        programs.len() >= 5,
        "packing and parsing were seen: {seen:?}"
    );
    for program in programs {
        assert!(program.starts_with("/proc/self/fd/"), "it ran {program}");
    }
    assert_eq!(seen.dials_of_root(), Vec::<&str>::new());
    assert_eq!(seen.dials_of_others(), Vec::<&str>::new());
    let client = world.client();
    client.delete_snapshot(&imported.snapshot.id).await.unwrap();
    client.delete_snapshot(&snapshot).await.unwrap();
    client.remove_image("packed").await.unwrap();
    world.finish();
}
