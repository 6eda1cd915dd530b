//! Who may do what among the server's own processes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::harness::{Cove, wait_for};

fn status(pid: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with(field))
        .unwrap_or_default();
    line.split_once(':')
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

#[test]
fn what_parses_strangers_bytes_has_no_privilege_left() {
    let cove = Cove::start();
    let control = cove.role_pid("control");
    let uids = status(control, "Uid");
    assert!(uids.split_whitespace().all(|uid| uid != "0"), "{uids}");
    assert!(
        status(control, "Gid")
            .split_whitespace()
            .all(|gid| gid != "0")
    );
    assert_eq!(status(control, "Groups"), "");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(
            u64::from_str_radix(&status(control, set), 16),
            Ok(0),
            "{set}"
        );
    }
    assert_eq!(status(control, "NoNewPrivs"), "1");
    assert_eq!(
        status(cove.role_pid("runner"), "Uid")
            .split_whitespace()
            .next(),
        Some("0")
    );
}

#[test]
fn what_parses_strangers_bytes_is_confined() {
    let mut cove = Cove::prepare(&[], None);
    cove.launch(&[
        ("COVE_TEST_SECRET", "s3cret"),
        ("AWS_SECRET_ACCESS_KEY", "s3cret"),
    ]);
    cove.wait_until_ready();
    let control = cove.role_pid("control");
    // A filter of system calls is in force.
    assert_eq!(status(control, "Seccomp"), "2");
    let limits = std::fs::read_to_string(format!("/proc/{control}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core: Vec<_> = core.unwrap().split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
    // A process that may be dumped has its directory for itself; this one's is root's.
    assert_eq!(
        std::fs::metadata(format!("/proc/{control}/environ"))
            .unwrap()
            .uid(),
        0
    );
    const KEPT: [&str; 11] = [
        "MALLOC_ARENA_MAX",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TRIM_THRESHOLD_",
        "PATH",
        "TMPDIR",
        "TZ",
        "LANG",
        "LC_ALL",
        "RUST_BACKTRACE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    for pid in [control, cove.role_pid("runner")] {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        for variable in environment.split('\0').filter(|text| !text.is_empty()) {
            let name = variable.split('=').next().unwrap();
            assert!(KEPT.contains(&name), "{name} of process {pid}");
        }
    }
}

#[test]
fn servers_of_one_machine_share_no_account() {
    let (mut one, other) = (Cove::start(), Cove::start());
    let user = |pid: i32| {
        status(pid, "Uid")
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    let open = |cove: &Cove| {
        cove.ok([
            "create",
            "busybox",
            "--name",
            "open",
            "--memory",
            "256M",
            "--disk",
            "1G",
            "--network",
            "open",
        ]);
        // The gateway, which is nobody's child.
        let process = cove.data_dir().join("engine/gateway/process");
        let note = wait_for("the gateway runs", || {
            std::fs::read_to_string(&process).ok()
        });
        note.split_whitespace()
            .next()
            .unwrap()
            .parse::<i32>()
            .unwrap()
    };
    let mut users: Vec<_> = [&one, &other]
        .into_iter()
        .flat_map(|cove| [user(cove.role_pid("control")), user(open(cove))])
        .collect();
    users.sort();
    users.dedup();
    assert_eq!(users.len(), 4, "{users:?}");
    // The same in its next life, and everything it owns goes along when it changes.
    let before = user(one.role_pid("control"));
    one.stop();
    one.serve();
    assert_eq!(user(one.role_pid("control")), before);
    one.stop();
    std::fs::remove_file(one.data_dir().join("control.uid")).unwrap();
    for entry in std::fs::read_dir(one.data_dir().join("control")).unwrap() {
        std::os::unix::fs::chown(entry.unwrap().path(), Some(61_100), Some(61_100)).unwrap();
    }
    std::os::unix::fs::chown(one.data_dir().join("control"), Some(61_100), Some(61_100)).unwrap();
    one.serve();
    let shown = one.json(["show", "open"]);
    assert_eq!(shown["state"], "running");
    assert_ne!(user(one.role_pid("control")), "61100");
}

#[test]
fn a_login_shells_limit_of_open_files_is_raised_for_everybody() {
    let cove = Cove::start();
    for pid in [
        cove.server_pid(),
        cove.role_pid("runner"),
        cove.role_pid("control"),
    ] {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"))
            .unwrap();
        let mut fields = line.split_whitespace();
        let (soft, hard) = (fields.next().unwrap(), fields.next().unwrap());
        assert_eq!(soft, hard, "of process {pid}");
    }
}

#[test]
fn the_first_key_and_the_engine_are_root_s_alone() {
    let cove = Cove::start();
    let data = cove.data_dir();
    let of = |name: &str| std::fs::metadata(data.join(name)).unwrap();
    let mode = |name: &str| of(name).permissions().mode() & 0o777;
    assert_eq!((of("root.key").uid(), mode("root.key")), (0, 0o600));
    assert_eq!((of("engine").uid(), mode("engine")), (0, 0o700));
    assert_eq!(mode("runner.sock"), 0o600);
    assert_eq!(mode("control"), 0o700);
    assert_ne!(of("control").uid(), 0);
    assert_eq!(of("control").uid(), of("runner.sock").uid());
    // Only what is in its own directory is the control side's to write.
    for entry in std::fs::read_dir(&data).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let owned = entry.metadata().unwrap().uid() == of("control").uid();
        assert_eq!(
            owned,
            name == "control" || name == "runner.sock",
            "{name:?}"
        );
    }
    // The environment that carries the configuration does not carry the key.
    let environment = std::fs::read(format!("/proc/{}/environ", cove.role_pid("control"))).unwrap();
    let key = std::fs::read_to_string(data.join("root.key")).unwrap();
    let found = environment
        .windows(key.trim().len())
        .any(|part| part == key.trim().as_bytes());
    assert!(!found);
}

#[test]
fn a_data_directory_that_shuts_the_control_side_out_is_refused_with_words() {
    let private = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::set_permissions(private.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let data = private.path().join("data");
    let output = std::process::Command::new(super::harness::program())
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            data.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("cannot enter") && said.contains("chmod o+x"),
        "{said}"
    );
}
