//! Watches what a process and everything it starts ask of the kernel, with strace: which programs they run
//! and whom they dial. For tests that show what privileged processes do not do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Calls that run a program or reach another address.
const WATCHED: &str = "trace=connect,sendto,sendmsg,sendmmsg,execve,execveat";

/// strace at work.
pub struct Strace {
    child: Child,
    dir: TempDir,
}

/// What was seen, one line a call.
#[derive(Debug)]
pub struct Seen(Vec<String>);

impl Strace {
    /// Attaches to a process and to all it has started; returns once every one of them is watched.
    pub fn attach(pid: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let pids = with_descendants(pid);
        let mut command = Command::new("strace");
        command
            .args(["-f", "-s", "200", "-e", WATCHED, "-e", "signal=none", "-o"])
            .arg(dir.path().join("calls"));
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
            assert!(!line.contains("attach:"), "strace cannot attach: {line}");
            left.retain(|pid| !line.contains(&format!("Process {pid} attached")));
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
        let calls = fs::read_to_string(self.dir.path().join("calls")).expect("strace wrote a file");
        Seen(calls.lines().map(str::to_owned).collect())
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Seen {
    /// Every program that was run, as it was named.
    pub fn programs(&self) -> Vec<&str> {
        let calls = self.0.iter().filter(|line| line.contains("execve"));
        calls.filter_map(|line| line.split('"').nth(1)).collect()
    }

    /// Every call with an address of a network.
    pub fn dials(&self) -> Vec<&str> {
        let network = |line: &&String| line.contains("AF_INET");
        self.0.iter().filter(network).map(String::as_str).collect()
    }
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
            seen.dials().iter().any(|call| call.contains("127.0.0.1")),
            "{seen:?}"
        );
    }
}
