//! Attempts to get out by the kernel's own doors: mounts, namespaces, /proc, devices, sockets,
//! system calls, capabilities.

use std::sync::Arc;

use cove_model::{SandboxSpec, State};
use cove_protocol::message::Start;
use cove_runner_api::{ImageSource, RunnerApi};
use cove_tests::start_as;

use crate::world::{Case, World, attempts, cases};

/// Capabilities no program inside may ever get: what configures the kernel, the network or devices,
/// looks into other processes, or makes packets by hand.
const FORBIDDEN: [u32; 20] = [
    12, 13, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 27, 32, 33, 36, 38, 39, 40,
];

pub fn cases() -> Vec<Case> {
    let programs = [
        (
            "mounts_cannot_be_changed",
            include_str!("programs/mounts.py"),
        ),
        (
            "pid_1_and_the_pids_of_others_are_out_of_reach",
            include_str!("programs/proc.py"),
        ),
        (
            "the_kernels_files_cannot_be_written",
            include_str!("programs/kernel_files.py"),
        ),
        (
            "system_calls_that_reach_the_host_are_refused",
            include_str!("programs/calls.py"),
        ),
        (
            "namespaces_cannot_be_made_or_entered",
            include_str!("programs/namespaces.py"),
        ),
        (
            "only_ordinary_sockets_can_be_made",
            include_str!("programs/sockets.py"),
        ),
        (
            "devices_cannot_be_made",
            include_str!("programs/devices.py"),
        ),
    ];
    let mut all: Vec<Case> = programs
        .into_iter()
        .map(|(name, program)| {
            Case::new(
                format!("border::{name}"),
                move |world: Arc<World>| async move {
                    let sandbox = world.sandbox().await;
                    for user in ["", "user"] {
                        attempts(&sandbox, user, program).await;
                    }
                },
            )
        })
        .collect();
    all.extend(cases![
        chroot_tricks_end_at_the_sandboxs_own_root,
        a_32_bit_system_call_does_not_exist,
        setuid_programs_give_no_more_than_the_bounding_set,
        file_capabilities_give_no_more_than_the_bounding_set,
        commands_inherit_no_descriptor_and_no_variable_of_the_host,
        mount_tables_name_no_place_of_the_hosts_data,
        sandboxes_have_uid_ranges_of_their_own,
        no_new_privileges_stops_sudo,
        an_image_of_links_in_the_wrong_places_leads_nowhere,
        a_sandbox_that_wrecked_its_own_places_harms_nobody_when_started_again,
        the_pool_is_closed_to_the_hosts_users,
        every_file_of_the_kernel_that_can_be_read_is_on_the_list,
        what_tells_of_the_host_is_covered,
        a_boot_id_is_new_at_each_start,
        lowered_oom_scores_do_not_last,
    ]);
    all
}

async fn chroot_tricks_end_at_the_sandboxs_own_root(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    attempts(&sandbox, "", include_str!("programs/chroot.py")).await;
    let seen = sandbox
        .sh("user", "chroot /tmp true && echo entered || echo refused")
        .await
        .ok();
    assert_eq!(seen, "refused\n");
}

async fn a_32_bit_system_call_does_not_exist(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    // getpid by its 32-bit number through the old gate answers 38 (ENOSYS) or kills the caller.
    let program = r#"
        cat > /tmp/gate.c <<'END'
        #include <stdio.h>
        int main(void) {
            long answer;
            __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20) : "memory");
            printf("%ld\n", answer);
        }
END
        gcc -o /tmp/gate /tmp/gate.c && /tmp/gate || echo killed"#;
    let said = sandbox.sh("", program).await.ok();
    assert!(
        ["-38", "killed"].contains(&said.trim()),
        "the gate answered {said:?}"
    );
}

fn assert_bounded(status: &str, who: &str) {
    for field in ["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"] {
        let set = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"))
            .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or_else(|| panic!("{who} has no {field}: {status}"));
        for capability in FORBIDDEN {
            assert_eq!(set >> capability & 1, 0, "{who}: {field} has {capability}");
        }
    }
}

async fn setuid_programs_give_no_more_than_the_bounding_set(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let status = "cat /proc/self/status";
    assert_bounded(&sandbox.sh("", status).await.ok(), "root");
    assert_bounded(&sandbox.sh("user", status).await.ok(), "a user");
    assert_bounded(
        &sandbox.sh("user", "sudo cat /proc/self/status").await.ok(),
        "sudo",
    );
    sandbox
        .sh(
            "",
            "cp /bin/cat /usr/bin/rootcat && chmod 4755 /usr/bin/rootcat",
        )
        .await
        .ok();
    let seen = sandbox.sh("user", "rootcat /proc/self/status").await.ok();
    let uids = seen.lines().find(|line| line.starts_with("Uid:"));
    assert_eq!(
        uids,
        Some("Uid:\t1000\t0\t0\t0"),
        "the set-id bit was ignored"
    );
    assert_bounded(&seen, "a setuid program");
}

async fn file_capabilities_give_no_more_than_the_bounding_set(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    // Version 2 of the attribute, effective, with CAP_SYS_ADMIN or with CAP_NET_BIND_SERVICE.
    let program = r#"
import os, shutil, struct, subprocess
for name, bit in (("admin", 21), ("bind", 10)):
    path = "/usr/local/bin/cat-" + name
    shutil.copy("/bin/cat", path)
    os.chmod(path, 0o755)
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << bit, 0, 0, 0))
"#;
    sandbox.python("", program).await.ok();
    let admin = sandbox.sh("user", "cat-admin /proc/self/status").await;
    assert_ne!(
        admin.exit.code, 0,
        "a program ran with CAP_SYS_ADMIN: {}",
        admin.stdout
    );
    let bind = sandbox.sh("user", "cat-bind /proc/self/status").await.ok();
    assert!(bind.contains("CapEff:\t0000000000000400"), "{bind}");
}

async fn commands_inherit_no_descriptor_and_no_variable_of_the_host(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let list = "import os; fd = os.listdir('/proc/self/fd'); print(sorted(fd))";
    for start in [
        start_as("user"),
        start_as(""),
        Start {
            stdin_open: true,
            ..start_as("")
        },
    ] {
        let argv = ["python3", "-c", list].map(String::from).to_vec();
        let stdin_open = start.stdin_open;
        let seen = sandbox.exec(Start { argv, ..start }).await.ok();
        // The fourth is the listing's own.
        assert_eq!(
            seen, "['0', '1', '2', '3']\n",
            "with open input: {stdin_open}"
        );
    }
    let argv = vec!["/usr/bin/env".into()];
    let seen = sandbox
        .exec(Start {
            argv,
            ..start_as("")
        })
        .await
        .ok();
    let mut names: Vec<&str> = seen
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
    if world.tier == "container" {
        let pid = crate::guest::host_pid(&sandbox).await;
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("PID 1 runs") {
            let path = entry.expect("a descriptor").path();
            let Ok(target) = std::fs::read_link(&path) else {
                continue;
            };
            let target = target.to_string_lossy().into_owned();
            let expected = [
                "socket:",
                "pipe:",
                "anon_inode:[event",
                "anon_inode:[signalfd",
            ]
            .iter()
            .any(|kind| target.starts_with(kind))
                || target == "/dev/null"
                || target.starts_with("/.cove/")
                || target.starts_with("/proc/")
                || target.starts_with("/sys/fs/cgroup");
            assert!(expected, "PID 1 holds {target}");
        }
    }
}

async fn mount_tables_name_no_place_of_the_hosts_data(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let seen = sandbox.sh("", "cat /proc/self/mountinfo").await.ok();
    let scratch = world.host.dir().to_string_lossy().into_owned();
    // Where the guest's program lies is shown by the kernel for the one mount that shows it.
    let told: Vec<&str> = seen
        .lines()
        .filter(|line| line.contains(&scratch) && line.split(' ').nth(4) != Some("/.cove/bin"))
        .collect();
    assert!(told.is_empty(), "{told:#?}");
}

async fn sandboxes_have_uid_ranges_of_their_own(world: Arc<World>) {
    let (one, other) = (world.sandbox().await, world.sandbox().await);
    let mut bases = Vec::new();
    for sandbox in [&one, &other, &world.neighbour] {
        for map in ["uid_map", "gid_map"] {
            let seen = sandbox.sh("", &format!("cat /proc/self/{map}")).await.ok();
            let fields: Vec<u64> = seen
                .split_whitespace()
                .filter_map(|f| f.parse().ok())
                .collect();
            assert_eq!((fields[0], fields[2]), (0, 65536), "{map}: {seen}");
            assert!(
                fields[1] >= 0x7000_0000,
                "{map} begins among the host's users: {seen}"
            );
            if map == "uid_map" {
                bases.push(fields[1]);
            }
        }
    }
    bases.sort_unstable();
    assert!(
        bases.windows(2).all(|pair| pair[1] - pair[0] >= 65536),
        "{bases:?}"
    );
    // The same user inside both: what one writes, the other does not have.
    one.sh("user", "umask 077; echo private > ~/note")
        .await
        .ok();
    let seen = other
        .sh(
            "user",
            "cat ~/note 2>&1; ls /proc/*/root/home/user/note 2>/dev/null",
        )
        .await;
    assert!(!seen.stdout.contains("private"), "{seen:?}");
    // A process of one has no number in the other.
    one.spawn(Start {
        argv: vec!["sleep".into(), "1000".into()],
        tag: "mark".into(),
        ..start_as("user")
    })
    .await;
    let seen = other
        .sh("", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        .await
        .ok();
    assert!(!seen.contains("sleep 1000"), "{seen}");
}

/// Whether a path is one that a line of the list describes: `*` stands for anything within a name, and
/// `**` as the last name for everything below.
fn described(path: &str, line: &str) -> bool {
    let (mut names, mut wanted) = (path.split('/'), line.split('/'));
    loop {
        match (names.next(), wanted.next()) {
            (None, None) => return true,
            (Some(_), Some("**")) => return true,
            (Some(name), Some(pattern)) if name_matches(name, pattern) => {}
            _ => return false,
        }
    }
}

fn name_matches(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && name_matches(&rest[at..], after))
        }),
    }
}

/// What a new kernel adds fails here until somebody has decided whether guests may read it.
async fn every_file_of_the_kernel_that_can_be_read_is_on_the_list(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let allowed: Vec<&str> = include_str!("readable.txt")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut unknown = std::collections::BTreeSet::new();
    for user in ["", "user"] {
        let found = sandbox
            .python(user, include_str!("programs/readable.py"))
            .await
            .ok();
        let found: Vec<&str> = found.lines().collect();
        assert!(
            found.contains(&"/proc/self/status"),
            "nothing was looked at: {found:?}"
        );
        let listed = |path: &&&str| allowed.iter().any(|line| described(path, line));
        unknown.extend(
            found
                .iter()
                .filter(|path| !listed(path))
                .map(|path| (*path).to_owned()),
        );
    }
    let unknown: Vec<String> = unknown.into_iter().collect();
    assert!(
        unknown.is_empty(),
        "not in tests/conformance/readable.txt; cover them in crates/spawner/src/kernel_files.rs or list them:\n{}",
        unknown.join("\n")
    );
}

async fn what_tells_of_the_host_is_covered(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    for user in ["", "user"] {
        // The pool of this very host is a loop file; its path is nobody's business inside.
        let tells = "cat /sys/block/*/loop/backing_file /sys/devices/virtual/block/*/loop/backing_file \
            /proc/cmdline /proc/diskstats /proc/partitions /proc/swaps /proc/modules /proc/interrupts \
            /proc/config.gz /proc/kallsyms /proc/fs/*/*/* /proc/pressure/* /proc/sys/kernel/core_pattern \
            /sys/kernel/vmcoreinfo /sys/kernel/boot_params/* /sys/fs/ext4/*/* /sys/fs/btrfs/*/* \
            /sys/firmware/*/* /sys/class/dmi/id/* /sys/class/block/* /sys/module/*/* 2>/dev/null | head -c 200";
        let seen = sandbox.sh(user, tells).await;
        assert_eq!(seen.stdout, "", "as {user:?}");
    }
    // The number of the host's groups would tell how many others there are.
    let groups = "awk '!/^#/ && $3 != 1' /proc/cgroups";
    assert_eq!(sandbox.sh("", groups).await.ok(), "");
    // What ordinary programs look for is there.
    let there = "cat /sys/class/net/lo/address /sys/devices/system/cpu/online >/dev/null && \
        test -d /sys/fs/cgroup && grep -q ^cpu /proc/stat && grep -q Linux /proc/version && nproc >/dev/null && echo there";
    assert_eq!(sandbox.sh("user", there).await.ok(), "there\n");
}

async fn a_boot_id_is_new_at_each_start(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    let look = "cat /proc/sys/kernel/random/boot_id";
    let before = sandbox.sh("user", look).await.ok();
    assert_eq!(before.trim().len(), 36, "{before:?}");
    let hosts = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    assert_ne!(hosts.expect("the host has one"), before);
    assert_ne!(world.neighbour.sh("user", look).await.ok(), before);
    assert_eq!(sandbox.sh("", look).await.ok(), before);
    let engine = &world.host.engine;
    engine
        .stop(&sandbox.id, 500)
        .await
        .expect("it can be stopped");
    engine.start(&sandbox.id).await.expect("it can be started");
    assert_ne!(
        sandbox.sh("user", look).await.ok(),
        before,
        "after a cold start"
    );
}

async fn lowered_oom_scores_do_not_last(world: Arc<World>) {
    let sandbox = world.sandbox().await;
    // In a loop, by root and by a user, in processes that fork: whichever way this host keeps the order,
    // none stays below PID 1.
    let lower = "import os, sys, time
deadline = time.monotonic() + 240
def score():
    return int(open('/proc/self/oom_score_adj').read())
try:
    open('/proc/self/oom_score_adj', 'w').write('-500' if os.getuid() == 0 else '0')
except PermissionError:
    pass
try:
    open('/proc/self/oom_score_adj', 'w').write('0')
except PermissionError:
    pass
pid = os.fork()
while score() < 300:
    if time.monotonic() > deadline:
        sys.exit(f'still {score()}')
    time.sleep(0.01)
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    for user in ["", "user"] {
        sandbox.python(user, lower).await.ok();
    }
    assert_eq!(
        sandbox.sh("", "cat /proc/1/oom_score_adj").await.ok(),
        "300\n"
    );
}

async fn no_new_privileges_stops_sudo(world: Arc<World>) {
    let spec = SandboxSpec {
        no_new_privs: true,
        ..world.spec()
    };
    let sandbox = world.host.sandbox(spec).await;
    let ran = sandbox.sh("user", "sudo id -u").await;
    assert_ne!(ran.exit.code, 0, "{ran:?}");
    assert!(!ran.stdout.contains('0'), "{ran:?}");
    assert_eq!(sandbox.sh("user", "id -u").await.ok(), "1000\n");
}

async fn the_pool_is_closed_to_the_hosts_users(world: Arc<World>) {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = world.sandbox().await;
    sandbox
        .sh(
            "",
            "cp /bin/sh /root/rootsh && chmod 4755 /root/rootsh && sync",
        )
        .await
        .ok();
    let data = world.host.data_dir();
    let mode = std::fs::metadata(&data)
        .expect("the data directory is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    // On disk the file belongs to the host's root with its set-id bit, so the mount must disarm it.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the host has mounts");
    let pool = data.join("pool").to_string_lossy().into_owned();
    let line = mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(&pool));
    let options = line
        .and_then(|line| line.split(' ').nth(5))
        .expect("the pool is mounted");
    for option in ["nosuid", "nodev", "noexec"] {
        assert!(
            options.split(',').any(|found| found == option),
            "{option} is not in {options}"
        );
    }
}

async fn an_image_of_links_in_the_wrong_places_leads_nowhere(world: Arc<World>) {
    use std::os::unix::fs::symlink;
    let image = world.host.dir().join("links");
    std::fs::create_dir_all(image.join("bin")).expect("a directory can be made");
    std::fs::copy("/bin/busybox", image.join("bin/busybox")).expect("the host has busybox");
    for applet in ["sh", "ls", "test", "readlink"] {
        symlink("busybox", image.join("bin").join(applet)).expect("a link can be made");
    }
    let outside = world.host.dir().to_string_lossy().into_owned();
    for (name, target) in [
        ("proc", "/etc"),
        ("sys", "../../../.."),
        ("dev", outside.as_str()),
        (".cove", "/"),
        ("etc", outside.as_str()),
        ("tmp", "/proc/1/root"),
    ] {
        symlink(target, image.join(name)).expect("a link can be made");
    }
    world
        .host
        .add_image(ImageSource::Local {
            name: "links".into(),
            path: image.to_string_lossy().into_owned(),
        })
        .await;
    let before = std::fs::read_dir(world.host.dir())
        .expect("the directory is there")
        .count();
    let spec = SandboxSpec {
        image: "links".into(),
        ..world.spec()
    };
    let sandbox = world.host.sandbox(spec).await;
    let look = "test -d /proc/1 && test -d /sys/class && test -c /dev/null && test ! -L /.cove && echo placed";
    assert_eq!(sandbox.sh("", look).await.ok(), "placed\n");
    let after = std::fs::read_dir(world.host.dir())
        .expect("the directory is there")
        .count();
    assert_eq!(before, after, "something was made on the host");
}

async fn a_sandbox_that_wrecked_its_own_places_harms_nobody_when_started_again(world: Arc<World>) {
    for wreck in [
        "mv /dev /dev.old; ln -s /etc /dev",
        "rm /dev/null; mkfifo /dev/null",
        "rm /dev/null; ln -s /proc/1/mem /dev/null",
        "rm -rf /etc; ln -s /proc/1/root/etc /etc",
        "rm -f /dev/ptmx; ln -s /.cove/sock /dev/ptmx; chmod 0 /dev /tmp / /root",
    ] {
        let sandbox = world.sandbox().await;
        let _ = sandbox.sh("", wreck).await;
        let engine = &world.host.engine;
        engine
            .stop(&sandbox.id, 500)
            .await
            .expect("it can be stopped");
        // Whether it starts is its own affair; the failure must be reported and leave nothing half made.
        match engine.start(&sandbox.id).await {
            Ok(_) => {
                let _ = sandbox.guest.info().await;
            }
            Err(error) => {
                let view = engine.get(&sandbox.id).await.expect("it is still known");
                assert!(
                    matches!(view.state, State::Stopped | State::Failed),
                    "{wreck}: {error}: {view:?}"
                );
            }
        }
        engine
            .delete(&sandbox.id)
            .await
            .unwrap_or_else(|error| panic!("after {wreck:?}: {error}"));
    }
}
