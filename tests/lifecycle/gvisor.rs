//! Sandboxes with isolation gvisor on a real engine: their life, their disk in both tiers, their border, and
//! what an engine finds of them after it was killed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cove_model::{
    Resources, ResourcesPatch, SandboxId, SandboxSpec, SnapshotId, State, VolumeId, VolumeMount,
};
use cove_protocol::client::GuestError;
use cove_protocol::message::{ErrorCode, Start};
use cove_runner_api::{
    CreateRequest, FromSnapshot, RollbackRequest, RunnerApi, RunnerError, SandboxView,
    SnapshotRequest,
};
use cove_tests::engine_host::{World, eventually, exec, output, process_id, small_spec, succeed};

use crate::PROGRAM;

const GVISOR: &str = "gvisor";

fn spec() -> SandboxSpec {
    SandboxSpec {
        isolation: GVISOR.into(),
        ..small_spec()
    }
}

async fn create(world: &World, spec: SandboxSpec, from: Option<&SnapshotId>) -> SandboxView {
    let request = CreateRequest {
        owner: None,
        id: SandboxId::random(),
        spec,
        from: from.map(|snapshot| FromSnapshot {
            snapshot: snapshot.clone(),
            memory: false,
        }),
    };
    world.client().create(request).await.unwrap()
}

async fn snapshot(
    world: &World,
    sandbox: &SandboxId,
    memory: bool,
) -> Result<SnapshotId, RunnerError> {
    let request = SnapshotRequest {
        id: SnapshotId::random(),
        sandbox: sandbox.clone(),
        memory,
        unless_unchanged: false,
    };
    world.client().snapshot(request).await.map(|view| view.id)
}

async fn says(world: &World, id: &SandboxId, command: &str) -> String {
    output(&world.guest(id), command).await.trim().to_owned()
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, RunnerError>) -> String {
    match outcome {
        Err(RunnerError::Unsupported { message }) => message,
        other => panic!("{other:?}"),
    }
}

/// Processes on the host in groups of this world's engine, with their command lines.
fn processes(world: &World) -> Vec<(i32, String)> {
    let group = format!("cove-{}", world.instance());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if String::from_utf8_lossy(&read("cgroup")).contains(&group) {
            let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push((pid, line));
        }
    }
    found
}

fn status(pid: i32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap_or_default().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gvisor_sandbox_lives_as_any_other() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = create(&world, spec(), None).await.id;
    let kernel = says(&world, &id, "cat /proc/version").await;
    assert!(
        kernel.contains("4.4.0"),
        "{kernel} is the kernel of the host"
    );
    assert_eq!(says(&world, &id, "nproc").await, "1");
    succeed(
        &world.guest(&id),
        "echo kept > /root/file; echo tmp > /tmp/file",
    )
    .await;
    client.freeze(&id).await.unwrap();
    assert_eq!(client.get(&id).await.unwrap().state, State::Frozen);
    client.resume(&id).await.unwrap();
    assert_eq!(says(&world, &id, "cat /root/file").await, "kept");
    let sample = client.sample(&id).await.unwrap();
    assert!(
        sample.memory_bytes > 8 << 20 && sample.cpu_usec > 0,
        "{sample:?}"
    );
    client.stop(&id, 1000).await.unwrap();
    client.start(&id).await.unwrap();
    // What lay in /tmp was on the disk too.
    assert_eq!(
        says(&world, &id, "cat /root/file /tmp/file").await,
        "kept\ntmp"
    );
    client.delete(&id).await.unwrap();
    eventually("its processes are gone", || async {
        processes(&world).is_empty().then_some(())
    })
    .await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_go_from_gvisor_to_containers_and_back() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let id = create(&world, spec(), None).await.id;
    let write = "echo one > /root/file; rm /bin/cat; mkdir /root/d; chown 1000:1000 /root/d";
    succeed(&world.guest(&id), write).await;
    let first = snapshot(&world, &id, false).await.unwrap();
    succeed(&world.guest(&id), "echo two > /root/file").await;
    for isolation in ["container", GVISOR] {
        let spec = SandboxSpec {
            isolation: isolation.into(),
            ..small_spec()
        };
        let copy = create(&world, spec, Some(&first)).await.id;
        let seen = "read text < /root/file; echo $text; test ! -e /bin/cat && test -d /root/d";
        assert_eq!(says(&world, &copy, seen).await, "one", "{isolation}");
        succeed(&world.guest(&copy), "echo more >> /root/file").await;
        let again = snapshot(&world, &copy, false).await.unwrap();
        let back = create(&world, spec_of(GVISOR), Some(&again)).await.id;
        let seen = "while read text; do echo $text; done < /root/file";
        assert_eq!(says(&world, &back, seen).await, "one\nmore", "{isolation}");
        client.delete(&copy).await.unwrap();
        client.delete(&back).await.unwrap();
    }
    let undo = RollbackRequest {
        sandbox: id.clone(),
        to: first,
        keep: SnapshotId::random(),
        memory: false,
    };
    let rolled = client.rollback(undo).await.unwrap();
    assert_eq!(rolled.sandbox.state, State::Running);
    let seen = "read text < /root/file; echo $text";
    assert_eq!(says(&world, &id, seen).await, "one");
    world.finish();
}

fn spec_of(isolation: &str) -> SandboxSpec {
    SandboxSpec {
        isolation: isolation.into(),
        ..small_spec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_tier_cannot_do_is_refused_with_the_tier_that_can() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    // Each of these before anything is made.
    let pids = (fs::read_to_string("/proc/sys/kernel/pid_max").unwrap())
        .trim()
        .parse::<u64>()
        .unwrap();
    type Change = Box<dyn Fn(&mut SandboxSpec)>;
    let beyond: [(&str, Change); 5] = [
        ("memory_mb", Box::new(|spec| spec.resources.memory_mb = 64)),
        (
            "lifecycle.pause_after_s",
            Box::new(|spec| spec.lifecycle.pause_after_s = Some(60)),
        ),
        (
            "mount volumes",
            Box::new(|spec| {
                spec.volumes = vec![VolumeMount {
                    volume: VolumeId::random(),
                    path: "/data".into(),
                    read_only: false,
                }];
            }),
        ),
        (
            "an identity",
            Box::new(|spec| spec.identity = Some(Default::default())),
        ),
        // Few enough for a container; under gVisor each costs several of the host's.
        (
            "processes",
            Box::new(move |spec| spec.resources.pids = pids / 8 - 1),
        ),
    ];
    for (named, change) in beyond {
        let mut wanted = spec();
        change(&mut wanted);
        let request = CreateRequest {
            owner: None,
            id: SandboxId::random(),
            spec: wanted,
            from: None,
        };
        let refused = refusal(client.create(request).await);
        assert!(refused.contains(named), "{refused}");
        assert!(refused.ends_with("isolation container"), "{refused}");
        assert_eq!(client.list().await.unwrap(), [], "{named}");
        assert_eq!(processes(&world), [], "{named}");
    }
    let id = create(&world, spec(), None).await.id;
    let refused = refusal(snapshot(&world, &id, true).await);
    assert!(
        refused.contains("'gvisor' cannot capture memory"),
        "{refused}"
    );
    let refused = refusal(client.pause(&id).await);
    assert!(refused.contains("isolation container"), "{refused}");
    let more = ResourcesPatch {
        pids: Some(128),
        ..ResourcesPatch::default()
    };
    let refused = refusal(client.resize(&id, more).await);
    assert!(refused.contains("pids"), "{refused}");
    let less = ResourcesPatch {
        memory_mb: Some(64),
        ..ResourcesPatch::default()
    };
    let refused = refusal(client.resize(&id, less).await);
    assert!(refused.contains("memory_mb"), "{refused}");
    // Nothing of what was refused changed the sandbox.
    assert_eq!(says(&world, &id, "echo here").await, "here");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_cpus_of_a_gvisor_sandbox_changes_only_while_it_is_stopped() {
    let world = World::start(PROGRAM).await;
    let client = world.client();
    let mut half = spec();
    half.resources.cpu = 0.5;
    let id = create(&world, half, None).await.id;
    let cpu = |cpu| ResourcesPatch {
        cpu: Some(cpu),
        ..ResourcesPatch::default()
    };
    assert_eq!(
        client.resize(&id, cpu(1.0)).await.unwrap().limits.cpu,
        1.0,
        "one CPU before and after"
    );
    let refused = refusal(client.resize(&id, cpu(2.0)).await);
    assert!(
        refused.contains("2 CPUs") && refused.contains("stop"),
        "{refused}"
    );
    assert_eq!(client.get(&id).await.unwrap().limits.cpu, 1.0);
    let memory = ResourcesPatch {
        memory_mb: Some(400),
        ..ResourcesPatch::default()
    };
    client.resize(&id, memory).await.unwrap();
    // More than it had before.
    let fill =
        "awk 'BEGIN{s=sprintf(\"%1000000s\",\"\"); for(i=0;i<200;i++) a[i]=s i; print \"fits\"}'";
    assert_eq!(says(&world, &id, fill).await, "fits");
    client.stop(&id, 0).await.unwrap();
    client.resize(&id, cpu(2.0)).await.unwrap();
    client.start(&id).await.unwrap();
    assert_eq!(says(&world, &id, "nproc").await, "2");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_nobody_waits_for_leaves_nothing_behind() {
    let mut world = World::start(PROGRAM).await;
    // Whoever looks too late finds the probe over, and its answer is kept: the next engine makes one of its own.
    let asking = loop {
        let client = world.client();
        let asking = tokio::spawn(async move { client.host().await });
        let booted = eventually("the probe has booted something, or is over", || async {
            let all = processes(&world);
            let sentry = all.iter().any(|(_, line)| line.starts_with("runsc"));
            (sentry || asking.is_finished()).then_some(sentry)
        })
        .await;
        if booted {
            break asking;
        }
        world.restart();
    };
    asking.abort();
    eventually("the probe has ended what it booted", || async {
        processes(&world).is_empty().then_some(())
    })
    .await;
    // Its slot was given back once, so that sandboxes of both tiers get ids of their own.
    let one = create(&world, spec(), None).await.id;
    let two = create(&world, spec_of("container"), None).await.id;
    for id in [&one, &two] {
        assert_eq!(says(&world, id, "echo here").await, "here");
    }
    let report = world.client().host().await.unwrap();
    let tier = report.tiers.iter().find(|tier| tier.name == GVISOR);
    assert!(tier.unwrap().usable, "{report:?}");
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_tiers_share_the_cpus() {
    let world = World::start(PROGRAM).await;
    let cpus = std::thread::available_parallelism().unwrap().get();
    let one_cpu = |isolation: &str| SandboxSpec {
        resources: Resources {
            cpu: 1.0,
            ..small_spec().resources
        },
        ..spec_of(isolation)
    };
    let mut used = Vec::new();
    for isolation in ["container", GVISOR] {
        create(&world, one_cpu(isolation), None).await;
        for (pid, _) in processes(&world) {
            let list = status(pid, "Cpus_allowed_list:");
            if !list.is_empty() && !used.contains(&list) {
                used.push(list);
            }
        }
    }
    // Each tier with a list of its own would put both on the first.
    assert_eq!(used.len(), cpus.min(2), "{used:?}");
    world.finish();
}

/// Of a directory and everything below it.
fn inodes(path: &Path) -> BTreeSet<u64> {
    let mut found = BTreeSet::from([fs::metadata(path).unwrap().ino()]);
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap().flatten() {
            found.extend(inodes(&entry.path()));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_gvisor_sandbox_has_rights_on_the_host() {
    let world = World::start(PROGRAM).await;
    let id = create(&world, spec(), None).await.id;
    let sleeper = Start {
        id: process_id(),
        argv: vec!["/bin/sleep".into(), "1000".into()],
        ..Start::default()
    };
    world.guest(&id).start(sleeper).await.unwrap();
    let all = processes(&world);
    let named = |name: &str| all.iter().any(|(_, line)| line.starts_with(name));
    assert!(named("runsc-sandbox") && named("runsc-gofer"), "{all:?}");
    let mut ranges = BTreeSet::new();
    let on_host: Vec<u64> = [Path::new("/"), &world.setup.dir]
        .map(|path| fs::metadata(path).unwrap().dev())
        .to_vec();
    let programs = inodes(&world.setup.data_dir().join("runtime"));
    for (pid, line) in &all {
        let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}"));
        // One may have ended meanwhile.
        if link("ns/user").is_err() {
            continue;
        }
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts"] {
            let own = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            let theirs = link(&format!("ns/{kind}"));
            assert_ne!(theirs.ok(), Some(own), "{pid} {line} {kind}");
        }
        // Real, effective, saved and file ids are of one range, which is no user's of the host.
        for ids in [status(*pid, "Uid:"), status(*pid, "Gid:")] {
            for id in ids.split_whitespace() {
                let id: u32 = id.parse().unwrap();
                assert!(id >= 0x7000_0000, "{pid} {line} has the ids {ids}");
                ranges.insert(id >> 16);
            }
        }
        // The system calls of all are filtered. The keeper is ours and has no rights at all, not even in its own
        // namespace.
        let filtered = status(*pid, "Seccomp:");
        if link("ns/user").is_err() {
            continue;
        }
        assert_eq!(filtered, "2", "{pid} {line}");
        if !line.starts_with("runsc") && !line.is_empty() {
            for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:", "CapAmb:"] {
                let rights = status(*pid, set);
                if link("ns/user").is_err() {
                    break;
                }
                assert_eq!(rights, "0000000000000000", "{pid} {line} {set}");
            }
        }
        // Its tree holds nothing of the host's, not even the directory that the sandbox's own disk is in.
        let inside = format!("/proc/{pid}/root{}", world.setup.dir.display());
        assert!(!fs::exists(&inside).unwrap_or(false), "{pid} {line}");
        // Nor is anything open of the host's file systems, but for the programs that it was started from.
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        for entry in open.into_iter().flatten().flatten() {
            let Ok(found) = fs::metadata(entry.path()) else {
                continue;
            };
            let hosts = on_host.contains(&found.dev()) && !programs.contains(&found.ino());
            let target = fs::read_link(entry.path());
            assert!(!hosts, "{pid} {line} has {target:?} open");
        }
    }
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    // Root inside tries to change what its own sandbox runs on, and to see past it. What the attacks need is there.
    let needs = "cd /.cove/bin && ls guest runner && mkdir -p /mnt && ls /proc/self/root/../bin && ls /proc/sys/kernel";
    succeed(&world.guest(&id), needs).await;
    let attacks = [
        "chmod 777 /.cove/bin/guest",
        "echo x > /.cove/bin/guest",
        "rm /.cove/bin/runner",
        "mv /.cove/bin /.cove/other",
        "busybox mount -t proc proc /mnt",
        "busybox mount -o remount,rw /.cove/bin",
        "busybox mknod /root/disk b 8 0 && dd if=/root/disk of=/dev/null bs=1 count=1",
        "ls /proc/1/root/bin",
        "ls /proc/self/root/../bundle || ls /proc/self/root/../state",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
    ];
    for attack in attacks {
        let tried = exec(&world.guest(&id), attack).await;
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert_ne!(tried.exit.code, 0, "{attack}");
        assert!(!said.contains("applet not found"), "{attack}: {said}");
    }
    assert_eq!(says(&world, &id, "echo here").await, "here");
    world.finish();
}

/// How long a call into the sandbox may take where its processes fill the machine, and all of them together.
const SLOW_CALL: Duration = Duration::from_secs(120);
const SLOW: Duration = Duration::from_secs(400);

async fn slowly<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let asked = tokio::time::timeout(SLOW, asking).await;
    asked.unwrap_or_else(|_| panic!("did not happen within {SLOW:?}: {what}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_gvisor_sandbox_end_at_the_limit() {
    let world = World::start(PROGRAM).await;
    let roomy = SandboxSpec {
        resources: Resources {
            memory_mb: 1024,
            ..small_spec().resources
        },
        ..spec()
    };
    let id = create(&world, roomy, None).await.id;
    let idle = world.client().sample(&id).await.unwrap().pids;
    let many = Start {
        id: process_id(),
        // What keeps an end of the shell's output keeps its exit from being reported.
        argv: [
            "/bin/sh",
            "-c",
            "while sleep 1000 >/dev/null 2>&1 & do :; done; wait",
        ]
        .map(String::from)
        .to_vec(),
        ..Start::default()
    };
    // A loaded machine may take a minute for what takes a moment here.
    let guest = world.guest(&id).within(SLOW_CALL);
    let forks = many.id.clone();
    guest.start(many).await.unwrap();
    // The shell ends when it cannot fork, which leaves room for one process: commands that stay take it.
    let exit = slowly("the shell ends at the limit", || async {
        match guest.process(&forks).await {
            Ok(process) => process.exit,
            // Until the shell has ended there is no room for a thread that answers either.
            Err(error) if error.code() == Some(ErrorCode::Limit) => None,
            Err(error @ GuestError::Refused { .. }) => panic!("{error}"),
            Err(_) => None,
        }
    })
    .await;
    let refused = slowly("a command is refused", || async {
        let start = Start {
            id: process_id(),
            argv: vec!["/bin/sleep".into(), "1000".into()],
            ..Start::default()
        };
        match guest.start(start).await {
            Err(error @ GuestError::Refused { .. }) => Some(error),
            // Started, or nobody knows: the machine is slow.
            Ok(_) | Err(_) => None,
        }
    })
    .await;
    let tasks = world.client().sample(&id).await.unwrap().pids;
    println!("{refused}; {idle} tasks at first, {tasks} at the limit; the shell: {exit:?}");
    // For want of a process, or of a thread of the guest before that.
    assert!(
        matches!(
            refused.code(),
            Some(ErrorCode::TooManyProcesses | ErrorCode::Limit)
        ),
        "{refused}"
    );
    // The host's own limit was not reached, so that the sandbox goes on. It is the sum of both parts of the tier's
    // `TASK_COST`: how many threads the sentry has besides those of processes depends on how busy the machine is.
    const FIXED: u64 = 128;
    assert!(
        idle < FIXED,
        "{idle} tasks of the host without a process inside"
    );
    let most = FIXED + 3 * small_spec().resources.pids;
    assert!(tasks < most, "{tasks} tasks, {idle} of them at first");
    assert_eq!(world.client().get(&id).await.unwrap().state, State::Running);
    world.client().delete(&id).await.unwrap();
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gvisor_sandbox_reads_from_the_disk_within_its_limit() {
    const LIMIT_MB_S: u64 = 8;
    const FILE_MB: u64 = 32;
    let world = World::start(PROGRAM).await;
    let limited = SandboxSpec {
        resources: Resources {
            io_read_mb_s: Some(LIMIT_MB_S),
            ..small_spec().resources
        },
        ..spec()
    };
    let id = create(&world, limited, None).await.id;
    let write = format!("dd if=/dev/urandom of=/root/big bs=1M count={FILE_MB} && sync");
    succeed(&world.guest(&id), &write).await;
    // It must come from the disk, so the host forgets what it has of it.
    let find = format!(
        "find {} -name big -size +{}k 2>/dev/null",
        world.setup.data_dir().join("pool").display(),
        FILE_MB * 1024 - 1
    );
    let script = format!(
        "file=$({find}); test -n \"$file\"; dd of=\"$file\" oflag=nocache conv=notrunc,fdatasync count=0"
    );
    cove_tests::sh(&script, Path::new("/"));
    let begun = std::time::Instant::now();
    succeed(&world.guest(&id), "dd if=/root/big of=/dev/null bs=1M").await;
    let seconds = begun.elapsed().as_secs_f64();
    let least = FILE_MB as f64 / LIMIT_MB_S as f64;
    assert!(seconds > least * 0.8, "{seconds}");
    world.client().delete(&id).await.unwrap();
    world.finish();
}

/// Of the processes that hold a sandbox up, the one whose command line begins so; the keeper is the only one that
/// is neither runsc's nor without a command line.
fn part(world: &World, name: &str) -> u32 {
    let all = processes(world);
    let found = all.iter().find(|(_, line)| match name {
        "keeper" => !line.is_empty() && !line.starts_with("runsc"),
        name => line.starts_with(name),
    });
    let (pid, _) = found.unwrap_or_else(|| panic!("no {name} in {all:?}"));
    u32::try_from(*pid).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gvisor_sandbox_that_loses_a_part_ends_whole_and_starts_again() {
    let mut world = World::start(PROGRAM).await;
    let id = create(&world, spec(), None).await.id;
    succeed(&world.guest(&id), "echo kept > /root/file; sync").await;
    for (name, watched) in [
        ("keeper", true),
        ("runsc-sandbox", true),
        ("keeper", false),
        ("runsc-sandbox", false),
    ] {
        let pid = part(&world, name);
        if !watched {
            world.kill();
        }
        cove_tests::engine_host::signal(pid, rustix::process::Signal::KILL);
        if !watched {
            world.launch();
        }
        eventually("the sandbox has ended", || async {
            let view = world.client().get(&id).await.unwrap();
            let ended = matches!(view.state, State::Stopped | State::Failed);
            (ended && view.reason.is_some()).then_some(())
        })
        .await;
        eventually("its processes are gone", || async {
            processes(&world).is_empty().then_some(())
        })
        .await;
        world.client().start(&id).await.unwrap();
        assert_eq!(
            says(&world, &id, "cat /root/file").await,
            "kept",
            "{name} {watched}"
        );
    }
    // Without its gofer the sandbox goes on, or ends whole; it leaves nothing in either case.
    cove_tests::engine_host::signal(part(&world, "runsc-gofer"), rustix::process::Signal::KILL);
    world.client().delete(&id).await.unwrap();
    eventually("its processes are gone", || async {
        processes(&world).is_empty().then_some(())
    })
    .await;
    world.finish();
}

#[tokio::test(flavor = "multi_thread")]
async fn gvisor_sandboxes_outlive_a_killed_engine_and_are_swept_when_theirs_is_gone() {
    let mut world = World::start(PROGRAM).await;
    let id = create(&world, spec(), None).await.id;
    let loop_command = Start {
        id: process_id(),
        argv: ["/bin/sh", "-c", "while :; do echo tick; sleep 0.05; done"]
            .map(String::from)
            .to_vec(),
        ..Start::default()
    };
    let ticking = world.guest(&id).start(loop_command).await.unwrap().id;
    world.restart();
    assert_eq!(world.client().get(&id).await.unwrap().state, State::Running);
    let process = world.guest(&id).process(ticking).await.unwrap();
    assert!(process.exit.is_none(), "{process:?}");
    assert_eq!(says(&world, &id, "echo adopted").await, "adopted");
    // The sentry is killed while nobody watches: the next engine finds out and clears it away.
    let sentry = processes(&world)
        .into_iter()
        .find(|(_, line)| line.starts_with("runsc-sandbox"))
        .expect("it runs");
    world.kill();
    cove_tests::engine_host::signal(sentry.0 as u32, rustix::process::Signal::KILL);
    world.launch();
    let view = world.until(&id, State::Stopped).await;
    assert!(view.reason.is_some(), "{view:?}");
    eventually("its processes are gone", || async {
        processes(&world).is_empty().then_some(())
    })
    .await;
    world.client().start(&id).await.unwrap();
    assert_eq!(says(&world, &id, "echo again").await, "again");
    world.client().delete(&id).await.unwrap();
    world.finish();
}
