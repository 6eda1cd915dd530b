//! Watches what a process and everything it starts ask of the kernel, with strace: which programs they run
//! and whom they dial. For tests that show what privileged processes do not do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Calls that run a program, reach another address, or give up root.
const WATCHED: &str = "trace=connect,sendto,sendmsg,sendmmsg,execve,execveat,setuid,setresuid";

/// strace at work.
pub struct Strace {
    child: Child,
    dir: TempDir,
}

/// What was seen, each call as strace writes it.
#[derive(Debug)]
pub struct Seen(Vec<Call>);

#[derive(Debug)]
struct Call {
    by_root: bool,
    text: String,
}

impl Strace {
    /// Attaches to a process and to all it has started; returns once every one of them is watched.
    pub fn attach(pid: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let pids = with_descendants(pid);
        let mut command = Command::new("strace");
        command
            .args(["-f", "-ff", "-s", "200", "-e", WATCHED])
            .args(["-e", "signal=none", "-o"])
            .arg(dir.path().join("of"));
        for pid in &pids {
            command.args(["-p", &pid.to_string()]);
        }
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("strace is installed by scripts/setup test");
        let errors = child.stderr.take().expect("it is piped");
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        let mut left = pids;
        while !left.is_empty() {
            let line = lines.next().expect("strace attaches before it ends");
            // One may have ended since it was listed.
            let ended = |pid: &u32| line.contains(&format!(", {pid})")) && !is_alive(*pid);
            assert!(
                !line.contains("attach:") || left.iter().any(ended),
                "strace cannot attach: {line}"
            );
            left.retain(|pid| !line.contains(&format!("Process {pid} attached")) && !ended(pid));
        }
        // It goes on to tell of every new thread, and must not wait for somebody to read that.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, dir }
    }

    /// Lets go of the processes and tells what they did.
    pub fn finish(mut self) -> Seen {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT).expect("strace runs");
        self.child.wait().expect("strace ends");
        let mut seen = Seen(Vec::new());
        for file in fs::read_dir(self.dir.path()).expect("our own directory") {
            let calls = fs::read(file.expect("our own file").path()).expect("strace wrote it");
            seen.add_thread(&String::from_utf8_lossy(&calls));
        }
        seen
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Seen {
    /// A thread is root's until it becomes another user. Threads of other users count as root's from their
    /// start, which errs on the strict side.
    fn add_thread(&mut self, calls: &str) {
        let mut by_root = true;
        for line in calls.lines() {
            let text = line.to_owned();
            self.0.push(Call { by_root, text });
            let changes = line.starts_with("setresuid(") || line.starts_with("setuid(");
            if changes && line.ends_with(" = 0") && !line.contains("(0") {
                by_root = false;
            }
        }
    }

    /// Every program that was run, as it was named.
    pub fn programs(&self) -> Vec<&str> {
        let calls = self.0.iter().filter(|call| call.text.contains("execve"));
        calls
            .filter_map(|call| call.text.split('"').nth(1))
            .collect()
    }

    /// Root's calls with an address of a network.
    pub fn dials_of_root(&self) -> Vec<&str> {
        self.dials(true)
    }

    /// Other users' calls with an address of a network.
    pub fn dials_of_others(&self) -> Vec<&str> {
        self.dials(false)
    }

    fn dials(&self, by_root: bool) -> Vec<&str> {
        let dials = |call: &&Call| call.by_root == by_root && call.text.contains("AF_INET");
        let calls = self.0.iter().filter(dials);
        calls.map(|call| call.text.as_str()).collect()
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

fn with_descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        at += 1;
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn programs_and_dials_of_children_are_seen() {
        let mut shell = Command::new("bash")
            .args([
                "-c",
                "read go; (tar --version; exec 3<>/dev/tcp/127.0.0.1/9); read end",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash runs");
        let strace = Strace::attach(shell.id());
        let mut input = shell.stdin.take().expect("it is piped");
        input.write_all(b"go\n").expect("bash reads");
        drop(input);
        shell.wait().expect("bash ends");
        let seen = strace.finish();
        let tar = |program: &&str| program.ends_with("/tar");
        assert!(seen.programs().iter().any(tar), "{seen:?}");
        assert!(
            seen.dials_of_root()
                .iter()
                .any(|call| call.contains("127.0.0.1")),
            "{seen:?}"
        );
    }

    #[test]
    fn root_is_root_until_it_becomes_another_user() {
        let mut seen = Seen(Vec::new());
        seen.add_thread(
            "connect(3, {sa_family=AF_UNIX, sun_path=\"/x\"}, 110) = 0\n\
             connect(3, {sa_family=AF_INET, sin_port=htons(443)}, 16) = 0\n\
             setresuid(0, 0, 0) = 0\n\
             connect(3, {sa_family=AF_INET6, sin6_port=htons(443)}, 28) = 0\n\
             setresuid(1900000001, 1900000001, 1900000001) = 0\n\
             connect(3, {sa_family=AF_INET, sin_port=htons(80)}, 16) = 0\n",
        );
        assert_eq!(seen.dials_of_root().len(), 2);
        assert_eq!(seen.dials_of_others().len(), 1);
    }
}
