//! Virtual machines, as people meet them: over the API, with QEMU emulating, because test hosts rarely have KVM.
//! A boot takes seconds, so one story goes through everything.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{Cove, signal, wait_for};

const EMULATED: [&str; 4] = ["--isolation", "vm", "--accel", "software"];
const SIZE: [&str; 4] = ["--memory", "320M", "--disk", "512M"];

/// Whether `scripts/provide-vm` has run; if not, the tests fail or were opted out of.
fn has_qemu() -> bool {
    let found = Path::new(cove_isolation_vm::DEFAULT_PROGRAMS).join("source");
    crate::needs::has("qemu", found.exists())
}

fn create(cove: &Cove, more: &[&str]) -> std::process::Output {
    let start = ["create"].iter().chain(more).chain(&SIZE).copied();
    cove.run(start)
}

/// What a command that must be refused says.
fn refused(output: &std::process::Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn inside(cove: &Cove, sandbox: &str, script: &str) -> String {
    let said = cove.ok(["exec", sandbox, "--", "sh", "-c", script]);
    said.trim().to_owned()
}

/// Processes of the host that run a machine of this name.
fn machines(hostname: &str) -> Vec<String> {
    // What the kernel of one that booted is told, and what the supervisor of one that was restored is.
    let booted = format!("cove.hostname={hostname} ");
    let restored = format!("\0{hostname}\0sbx_");
    let listed = std::fs::read_dir("/proc").unwrap().flatten();
    let runs = listed.filter(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(&booted) || line.contains(&restored)
    });
    let names = runs.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// A resolver that knows an address for every name.
fn resolver() -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((length, asker)) = socket.recv_from(&mut question) {
            // The header, and one question: a name, its type, its class.
            let name = question[12..length].iter().position(|byte| *byte == 0);
            let Some(end) = name.map(|name| 12 + name + 5) else {
                continue;
            };
            let is_v4 = question[end - 4..end] == [0, 1, 0, 1];
            let mut answer = question[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
            if is_v4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 93, 184, 215, 14]);
            }
            let _ = socket.send_to(&answer, asker);
        }
    });
    address
}

fn resolves_in(cove: &Cove, sandbox: &str, name: &str) -> bool {
    let script = format!("nslookup -type=a {name} 2>&1");
    let asked = cove.run(["exec", sandbox, "--", "sh", "-c", &script]);
    String::from_utf8_lossy(&asked.stdout).contains("93.184.215.14")
}

#[test]
fn an_emulated_machine_lives_a_whole_life() {
    if !has_qemu() {
        return;
    }
    let resolver = resolver();
    let mut cove = Cove::start_with(&["--network-resolvers", &resolver]);
    let hostname = format!("vm{}", std::process::id());
    // Its disk begins as a container's.
    cove.sandbox("origin");
    inside(&cove, "origin", "echo a container > /from");
    cove.ok(["snapshot", "origin", "--name", "begun"]);
    cove.ok(["rm", "origin"]);
    let begin = [
        "--snapshot",
        "begun",
        "--name",
        &hostname,
        "--allow",
        "allowed.example",
    ];
    let made = create(&cove, &[&begin[..], &EMULATED].concat());
    assert!(made.status.success(), "{made:?}\n{}", cove.log());

    // Every view tells that it is emulated.
    let shown = cove.json(["show", &hostname]);
    assert_eq!(
        (&shown["isolation"], &shown["accel"]),
        (&"vm".into(), &"software".into())
    );
    for view in [cove.ok(["show", &hostname]), cove.ok(["ls"])] {
        assert!(view.contains("vm (emulated in software)"), "{view}");
    }
    let host = std::fs::read_to_string("/proc/version").unwrap();
    assert_ne!(inside(&cove, &hostname, "cat /proc/version"), host.trim());
    assert_eq!(
        inside(&cove, &hostname, "cat /from; hostname"),
        format!("a container\n{hostname}")
    );

    let (file, back) = (cove.scratch().join("file"), cove.scratch().join("back"));
    std::fs::write(&file, "bytes").unwrap();
    let there = format!("{hostname}:/file");
    cove.ok(["cp", file.to_str().unwrap(), &there]);
    cove.ok(["cp", &there, back.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "bytes");

    // The policy decides, also when it changes.
    let resolves = |name: &str| resolves_in(&cove, &hostname, name);
    assert!(resolves("allowed.example"));
    assert!(!resolves("denied.example"));
    cove.ok(["update", &hostname, "--allow", "denied.example"]);
    assert!(resolves("denied.example"));

    // What the tier cannot do is refused by name, and changes nothing.
    let larger = ["update", &hostname, "--memory", "512M"];
    let said = refused(&cove.run(larger));
    assert!(said.contains("stop it first"), "{said}");

    // Paused it is gone from the host, its limits stay, and the next request brings it back with its processes.
    let waiting = inside(
        &cove,
        &hostname,
        "echo in memory > /dev/shm/kept; sleep 4321 > /dev/null 2>&1 & echo $!",
    );
    let waits = format!("cat /dev/shm/kept /proc/{waiting}/comm");
    cove.ok(["pause", &hostname]);
    assert_eq!(cove.json(["show", &hostname])["state"], "paused");
    assert!(machines(&hostname).is_empty());
    let said = refused(&cove.run(larger));
    assert!(said.contains("stop it first"), "{said}");
    assert_eq!(inside(&cove, &hostname, &waits), "in memory\nsleep");
    // A copy with the processes is another machine.
    let twin = format!("{hostname}-twin");
    let id = "cat /proc/sys/kernel/random/boot_id";
    cove.ok(["fork", &hostname, "--memory", "--name", &twin]);
    assert_eq!(
        inside(&cove, &twin, &format!("hostname; {waits}")),
        format!("{twin}\nin memory\nsleep")
    );
    assert_ne!(inside(&cove, &twin, id), inside(&cove, &hostname, id));
    assert!(!resolves_in(&cove, &twin, "allowed.example"));
    assert!(resolves_in(&cove, &twin, "denied.example"));
    cove.ok(["rm", &twin]);
    cove.ok(["freeze", &hostname]);
    assert_eq!(inside(&cove, &hostname, "echo awake"), "awake");

    // The runner dies, the machine does not.
    let sleeping = inside(&cove, &hostname, "sleep 4321 > /dev/null 2>&1 & echo $!");
    let before = machines(&hostname);
    assert!(!before.is_empty());
    let runner = cove.role_pid("runner");
    signal(runner, Signal::KILL);
    wait_for("another runner serves", || {
        let served = cove.run(["exec", &hostname, "--", "true"]).status.success();
        (served && cove.role_pid("runner") != runner).then_some(())
    });
    assert_eq!(machines(&hostname), before);
    let found = inside(&cove, &hostname, &format!("cat /proc/{sleeping}/comm"));
    assert_eq!(found, "sleep");

    cove.ok(["stop", &hostname]);
    wait_for("the machine ends", || {
        machines(&hostname).is_empty().then_some(())
    });
    cove.ok(["start", &hostname]);
    assert_eq!(
        inside(&cove, &hostname, "cat /from /file"),
        "a container\nbytes"
    );

    // A snapshot starts in this tier, with the acceleration that was asked for, and in no other.
    inside(&cove, &hostname, "echo first > /state");
    cove.ok(["snapshot", &hostname, "--name", "first"]);
    inside(&cove, &hostname, "echo second > /state");
    let said = refused(&cove.run(["snapshot", "export", "first", "-"]));
    assert!(said.contains("cannot be exported"), "{said}");
    let elsewhere = ["--snapshot", "first", "--isolation", "container"];
    let said = refused(&create(&cove, &elsewhere));
    assert!(said.contains("use isolation vm"), "{said}");
    let copy = format!("{hostname}-copy");
    cove.ok(["fork", &hostname, "--name", &copy]);
    assert_eq!(inside(&cove, &copy, "cat /state"), "second");
    assert_eq!(cove.json(["show", &copy])["accel"], "software");
    cove.ok(["rollback", &hostname, "first"]);
    assert_eq!(inside(&cove, &hostname, "cat /state"), "first");

    cove.ok(["rm", &hostname, &copy]);
    for name in [&hostname, &copy] {
        wait_for("nothing runs", || machines(name).is_empty().then_some(()));
    }
    let listed = cove.ok(["ls", "--quiet"]);
    assert!(listed.trim().is_empty(), "{listed}");
    cove.stop();
}

#[test]
fn kills_while_a_machine_is_paused_or_wakes_lose_nothing() {
    if !has_qemu() {
        return;
    }
    let cove = Cove::start();
    let hostname = format!("vmkill{}", std::process::id());
    let begin = ["busybox", "--name", &hostname];
    let made = create(&cove, &[&begin[..], &EMULATED].concat());
    assert!(made.status.success(), "{made:?}\n{}", cove.log());
    let waiting = inside(
        &cove,
        &hostname,
        "echo in memory > /dev/shm/kept; sleep 4321 > /dev/null 2>&1 & echo $!",
    );
    let waits = format!("cat /dev/shm/kept /proc/{waiting}/comm");
    for round in 0..8 {
        let is_wake = round % 2 == 1;
        if is_wake {
            cove.ok(["pause", &hostname]);
        }
        let request = if is_wake { "resume" } else { "pause" };
        let mut asking = cove.command([request, &hostname]).spawn().unwrap();
        // Each pair a little later on its way.
        std::thread::sleep(Duration::from_millis(round / 2 * 250));
        signal(cove.role_pid("runner"), Signal::KILL);
        asking.wait().unwrap();
        let found = wait_for("it answers", || {
            let asked = cove.run(["exec", &hostname, "--", "sh", "-c", &waits]);
            asked.status.success().then_some(asked.stdout)
        });
        let found = String::from_utf8_lossy(&found);
        assert_eq!(found, "in memory\nsleep\n", "round {round}");
    }
    cove.ok(["rm", &hostname]);
    wait_for("nothing runs", || {
        machines(&hostname).is_empty().then_some(())
    });
}

#[test]
fn emulation_is_had_by_name_alone() {
    if !has_qemu() {
        return;
    }
    let cove = Cove::start();
    // Where KVM boots nothing, or nobody knows it yet, the refusal says what can be had.
    let doctor = cove.ok(["doctor"]);
    if !doctor.contains("accel kvm: ") {
        assert!(doctor.contains("accel software"), "{doctor}");
        for accel in [&[][..], &["--accel", "kvm"]] {
            let asked = [&["busybox", "--isolation", "vm"], accel].concat();
            let said = refused(&create(&cove, &asked));
            assert!(said.contains("accel 'software'"), "{said}");
            assert!(!said.contains("isolation container"), "{said}");
        }
        let auto = ["create", "busybox", "--isolation", "auto", "--json"];
        let made = cove.json(auto.iter().copied());
        assert_ne!(made["isolation"], "vm");
        assert!(made["accel"].is_null(), "{made}");
        cove.ok(["rm", made["id"].as_str().unwrap()]);
    }
    for (asked, says) in [
        (&["--accel", "software"][..], "isolation 'container'"),
        (
            &["--accel", "kvm", "--isolation", "gvisor"],
            "isolation 'gvisor'",
        ),
        (
            &["--accel", "software", "--isolation", "auto"],
            "isolation 'auto'",
        ),
        (&["--accel", "fast", "--isolation", "vm"], "software"),
    ] {
        let said = refused(&create(&cove, &[&["busybox"], asked].concat()));
        assert!(said.contains(says), "{asked:?}: {said}");
    }
    // What the tier cannot do, with the one that can.
    cove.ok(["volume", "create", "data", "--size", "64M"]);
    for (asked, says) in [
        (&["--volume", "data:/data"][..], "mount volumes"),
        (&["--identity"], "identity"),
        (&["--memory-max", "1G"], "memory_max_mb"),
    ] {
        let said = refused(&create(
            &cove,
            &[&["busybox"], &EMULATED[..], asked].concat(),
        ));
        assert!(
            said.contains(says) && said.contains("container"),
            "{asked:?}: {said}"
        );
    }
    let little = ["create", "busybox", "--memory", "64M"];
    let said = refused(&cove.run(little.iter().chain(&EMULATED).copied()));
    assert!(said.contains("needs 256"), "{said}");
    let listed = cove.ok(["ls", "--quiet"]);
    assert!(listed.trim().is_empty(), "{listed}");
}

#[test]
fn a_host_without_qemu_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let programs = empty.path().to_str().unwrap();
    let cove = Cove::start_with(&["--vm-programs", programs]);
    let said = refused(&create(&cove, &[&["busybox"], &EMULATED[..]].concat()));
    assert!(said.contains("scripts/provide-vm"), "{said}");
    let doctor = cove.ok(["doctor"]);
    assert!(
        doctor.contains("sandboxes cannot have isolation vm"),
        "{doctor}"
    );
}
