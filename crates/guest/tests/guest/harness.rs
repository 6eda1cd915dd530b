//! One guest per test, and what tests say to it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cove_protocol::client::{ExecResult, Follow, FollowEvent, Guest, GuestError, UnixConnect};
use cove_protocol::message::{Channel, ErrorCode, Exit, OutputFrom, Start};

/// How long a state that must come may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

const PROGRAM: &str = env!("CARGO_BIN_EXE_cove-guest");

/// A running guest; it and all it started are gone when this is dropped.
pub struct TestGuest {
    pub directory: tempfile::TempDir,
    pub guest: Guest,
    child: Child,
}

impl std::ops::Deref for TestGuest {
    type Target = Guest;
    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl TestGuest {
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// `prepare` may put files into the guest's directory or change how it is started.
    pub async fn start_with(prepare: impl FnOnce(&Path, &mut Command)) -> Self {
        let directory = temporary_directory();
        Self::start_as(directory, Command::new(PROGRAM), prepare).await
    }

    /// As PID 1 of a namespace of its own.
    pub async fn start_as_pid_1() -> Self {
        let directory = temporary_directory();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", PROGRAM]);
        Self::start_as(directory, command, |_, _| {}).await
    }

    /// Started by another program, which becomes it.
    pub async fn start_by(command: Command, prepare: impl FnOnce(&Path, &mut Command)) -> Self {
        Self::start_as(temporary_directory(), command, prepare).await
    }

    async fn start_as(
        directory: tempfile::TempDir,
        mut command: Command,
        prepare: impl FnOnce(&Path, &mut Command),
    ) -> Self {
        command
            .args(["--listen", "--root-files"])
            .arg(directory.path())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        prepare(directory.path(), &mut command);
        let child = command.spawn().unwrap();
        let path = directory.path().join("sock");
        let guest = Guest::new(Arc::new(UnixConnect { path })).within(PATIENCE);
        let this = Self {
            directory,
            guest,
            child,
        };
        eventually("the guest answers", async || this.info().await.is_ok()).await;
        this
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The same as text, for requests.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pid outside of a guest that is PID 1: it is the only child of the program that made its namespace.
    pub fn pid_outside(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let text = std::fs::read_to_string(children).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }

    pub fn exited(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Anonymous memory of the guest process now.
    pub fn anonymous_kb(&self) -> u64 {
        anonymous_kb(self.pid())
    }

    pub fn anonymous_kb_of_pid_1(&self) -> u64 {
        anonymous_kb(self.pid_outside())
    }

    pub async fn shell(&self, command: &str) -> ExecResult {
        self.exec(shell(command)).await.unwrap()
    }
}

fn anonymous_kb(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with("RssAnon:"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        // Sessions of commands first, then the guest: its orphans would outlive it.
        for pid in descendants(self.child.id()) {
            // SAFETY: these are descendants of the guest this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where cgroups are mounted: version 1 has a directory for each controller in it, version 2 is it.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A cgroup of one test alone, gone with it.
pub struct Cgroup {
    pub path: PathBuf,
    unified: bool,
}

impl Cgroup {
    pub fn with_memory(bytes: u64) -> Option<Self> {
        let files = ["memory.limit_in_bytes", "memory.max"];
        Self::new("memory", files, &bytes.to_string())
    }

    pub fn with_pids(count: u64) -> Option<Self> {
        Self::new("pids", ["pids.max"; 2], &count.to_string())
    }

    /// With one limit, in the file it has in each version. `None` where there is no such controller and the
    /// tests opted out of it.
    fn new(controller: &str, [split, unified]: [&str; 2], value: &str) -> Option<Self> {
        let root = Path::new(CGROUPS);
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers"));
        let is_unified =
            controllers.is_ok_and(|list| list.split_whitespace().any(|name| name == controller));
        let base = match is_unified {
            true => root.to_owned(),
            false => root.join(controller),
        };
        if !crate::needs::has("cgroup", base.join("cgroup.procs").exists()) {
            return None;
        }
        if is_unified {
            std::fs::write(
                base.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )
            .unwrap();
        }
        let name = format!("cove-guest-test-{}-{}", std::process::id(), new_id());
        let group = Self {
            path: base.join(name),
            unified: is_unified,
        };
        std::fs::create_dir(&group.path).unwrap();
        let limit = if is_unified { unified } else { split };
        std::fs::write(group.path.join(limit), value).unwrap();
        Some(group)
    }

    /// Shows it to a guest where the guest of a sandbox finds its own: version 1 among the files of `root`,
    /// version 2 as the root of all cgroups.
    pub fn show(&self, root: &Path, command: &mut Command) {
        self.join_on_start(command);
        if self.unified {
            own_root_on_start(command);
        } else {
            std::fs::create_dir(root.join("cgroup")).unwrap();
            std::os::unix::fs::symlink(&self.path, root.join("cgroup/memory")).unwrap();
        }
    }

    pub fn join_on_start(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        let members = self.path.join("cgroup.procs");
        let members = std::ffi::CString::new(members.to_str().unwrap()).unwrap();
        // SAFETY: plain system calls in the child, on a string made before.
        unsafe {
            command.pre_exec(move || {
                let file = libc::open(members.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                if file < 0 || libc::write(file, b"0".as_ptr().cast(), 1) != 1 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(file);
                Ok(())
            });
        }
    }
}

/// In namespaces of its own the child's cgroup is the root of those it sees, as in a sandbox.
fn own_root_on_start(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: plain system calls in the child, on constants.
    unsafe {
        command.pre_exec(|| {
            let none = c"none".as_ptr();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let mounted = libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()) == 0
                // The kernel refuses the same filesystem twice at one place.
                && libc::umount2(c"/sys/fs/cgroup".as_ptr(), libc::MNT_DETACH) == 0
                && libc::mount(
                    none,
                    c"/sys/fs/cgroup".as_ptr(),
                    c"cgroup2".as_ptr(),
                    0,
                    std::ptr::null(),
                ) == 0;
            match mounted {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes were killed just before and may take a moment to leave.
        let deadline = Instant::now() + PATIENCE;
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Every process below `root`, read once.
pub fn descendants(root: u32) -> Vec<i32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let parent: i32 = rest.split(' ').nth(1).unwrap().parse().unwrap();
        parents.push((pid, parent));
    }
    let mut found = vec![i32::try_from(root).unwrap()];
    let mut index = 0;
    while index < found.len() {
        let parent = found[index];
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        index += 1;
    }
    found.split_off(1)
}

pub fn temporary_directory() -> tempfile::TempDir {
    let directory = tempfile::Builder::new()
        .prefix("cove-guest-")
        .tempdir_in("/var/tmp")
        .unwrap();
    // Other users inside must be able to reach what tests put here.
    set_mode(directory.path(), 0o755);
    directory
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Writes a program, in another process: a child that another test forks has what this one has open until it runs its
/// own program, and the kernel runs no program that somebody may still write to.
pub fn write_program(path: &Path, text: &str) {
    let script = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let mut command = Command::new("sh");
    let written = command.args(["-c", script]).arg(path).arg(text).status();
    assert!(written.unwrap().success());
}

pub fn new_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("prc_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn shell(command: &str) -> Start {
    Start {
        id: new_id(),
        shell: command.to_owned(),
        cwd: "/".to_owned(),
        // Not the login files of whoever owns this machine.
        env: vec!["HOME=/nonexistent".to_owned()],
        ..Start::default()
    }
}

pub fn argv(words: &[&str]) -> Start {
    Start {
        id: new_id(),
        argv: words.iter().map(|word| (*word).to_owned()).collect(),
        cwd: "/".to_owned(),
        ..Start::default()
    }
}

pub fn from_start(id: &str) -> OutputFrom {
    OutputFrom {
        id: id.to_owned(),
        follow: true,
        ..OutputFrom::default()
    }
}

/// Waits for a state with a deadline.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("did not end: {what}"),
    }
}

pub fn code<T>(result: Result<T, GuestError>) -> ErrorCode {
    match result {
        Err(GuestError::Refused { code, .. }) => code,
        Err(other) => panic!("not a refusal: {other:?}"),
        Ok(_) => panic!("was not refused"),
    }
}

/// Reads until `wanted` is in the output of stdout; everything read so far.
pub async fn read_until(follow: &mut Follow, wanted: &str) -> String {
    within(wanted, async {
        let mut text = String::new();
        while !text.contains(wanted) {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output {
                    channel: Channel::Stdout,
                    data,
                    ..
                }) => text.push_str(&String::from_utf8_lossy(&data)),
                Some(FollowEvent::Exit(exit)) => {
                    panic!("exit before {wanted:?}: {text:?} {exit:?}")
                }
                Some(_) => {}
                None => panic!("end before {wanted:?}: {text:?}"),
            }
        }
        text
    })
    .await
}

pub async fn read_exit(follow: &mut Follow) -> Exit {
    within("the exit", async {
        loop {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Exit(exit)) => return exit,
                Some(_) => {}
                None => panic!("the output ended without an exit"),
            }
        }
    })
    .await
}

pub fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A small deterministic generator: tests that draw from it fail the same way again.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

/// The offsets and times of the next output.
pub async fn marked(follow: &mut Follow) -> Vec<(u64, i64)> {
    within("output", async {
        loop {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output { times, .. }) => {
                    let marks = times.into_iter();
                    return marks.map(|time| (time.offset, time.unix_ms)).collect();
                }
                Some(FollowEvent::Started(_)) => {}
                other => panic!("no output came: {other:?}"),
            }
        }
    })
    .await
}
