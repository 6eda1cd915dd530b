//! `cove shell` on a real terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::harness::{Cove, DEADLINE, program, wait_for};

/// A terminal with a program in it, as a person would sit at.
pub struct TerminalUser {
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    /// Kept open, so that the terminal outlives the program and can be looked at.
    pub terminal: OwnedFd,
    child: Child,
}

pub fn size(cols: u16, rows: u16) -> Winsize {
    Winsize {
        ws_col: cols,
        ws_row: rows,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl TerminalUser {
    pub fn new(cove: &Cove, args: &[&str]) -> Self {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&main).unwrap();
        unlockpt(&main).unwrap();
        let name = ptsname(&main, Vec::new()).unwrap().into_string().unwrap();
        let terminal: OwnedFd = File::options()
            .read(true)
            .write(true)
            .open(name)
            .unwrap()
            .into();
        tcsetwinsize(&terminal, size(90, 30)).unwrap();
        let end = || Stdio::from(terminal.try_clone().unwrap());
        // setsid gives the program this terminal as its own, so that signals come from it.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", program()])
            .args(args)
            .env("COVE_DATA_DIR", cove.data_dir())
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let (sender, screen) = channel();
        let mut reader = File::from(main.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keys: main.into(),
            screen,
            seen: String::new(),
            terminal,
            child,
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this, after everything waited for before.
    pub fn expect(&mut self, wanted: &str) {
        let started = Instant::now();
        loop {
            if let Some(at) = self.seen.find(wanted) {
                self.seen.drain(..at + wanted.len());
                return;
            }
            let left = DEADLINE.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("the screen never showed {wanted:?}, but {:?}", self.seen),
            }
        }
    }

    /// What the screen shows up to the end of the line.
    pub fn line(&mut self) -> String {
        let started = Instant::now();
        loop {
            if let Some(at) = self.seen.find('\n') {
                return self.seen.drain(..=at).collect();
            }
            let left = DEADLINE.saturating_sub(started.elapsed());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("the line never ended: {:?}", self.seen),
            }
        }
    }

    pub fn end(&mut self) -> Option<i32> {
        wait_for("the program at the terminal ends", || {
            self.child.try_wait().unwrap()
        })
        .code()
    }
}

impl Drop for TerminalUser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_shell_is_a_real_terminal_and_leaves_this_one_as_it_was() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut seat = TerminalUser::new(&cove, &["shell", "box"]);
    let before = {
        // Before the program had time to change anything there is nothing to compare with but a
        // fresh terminal's own settings.
        let fresh = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&fresh).unwrap();
        tcgetattr(&fresh).unwrap()
    };
    seat.press("echo $((6*7))\n");
    seat.expect("42");
    seat.press("stty size; tty\n");
    seat.expect("30 90");
    seat.expect("/dev/pts/");
    tcsetwinsize(&seat.terminal, size(120, 40)).unwrap();
    seat.press("while [ \"$(stty size)\" != '40 120' ]; do sleep 0.05; done; echo re''sized\n");
    seat.expect("resized");
    // Control-C is for the command inside, not for us.
    seat.press("sh -c 'echo star\"\"ted; exec sleep 1000'\n");
    seat.expect("started");
    seat.press("\x03");
    seat.press("echo still''here; exit 6\n");
    seat.expect("stillhere");
    assert_eq!(seat.end(), Some(6));
    let after = tcgetattr(&seat.terminal).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    assert_eq!(after.input_modes, before.input_modes);
    assert_eq!(after.output_modes, before.output_modes);
}

#[test]
fn a_shell_that_was_left_can_be_come_back_to() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut seat = TerminalUser::new(&cove, &["shell", "box"]);
    seat.press("marker=re''membered; echo go''ing\n");
    seat.expect("going");
    seat.press("\x1d");
    seat.expect("detached");
    assert_eq!(seat.end(), Some(0));
    let all = cove.json(["ps", "box"]);
    let process = all
        .as_array()
        .unwrap()
        .iter()
        .find(|process| process["exit"].is_null())
        .unwrap();
    let id = process["id"].as_str().unwrap();
    let mut seat = TerminalUser::new(&cove, &["shell", "--attach", id, "box"]);
    seat.press("echo $marker; exit\n");
    seat.expect("remembered");
    assert_eq!(seat.end(), Some(0));
}

#[test]
fn exec_with_a_terminal_runs_one_command_in_it() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut seat = TerminalUser::new(
        &cove,
        &[
            "exec",
            "--tty",
            "box",
            "--",
            "sh",
            "-c",
            "test -t 0 && echo terminal; exit 8",
        ],
    );
    seat.expect("terminal");
    assert_eq!(seat.end(), Some(8));
    let refused = cove.run(["shell", "box"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("must be a terminal"));
}

#[test]
fn a_run_without_a_command_is_a_shell_at_a_terminal() {
    let cove = Cove::start();
    for args in [&["run", "-it", "busybox"][..], &["run", "busybox"]] {
        let mut seat = TerminalUser::new(&cove, args);
        seat.press("test -t 0 && echo ter''minal; exit 7\n");
        seat.expect("terminal");
        assert_eq!(seat.end(), Some(7));
    }
    assert_eq!(cove.json(["ls"]), serde_json::json!([]));
}

#[test]
fn a_terminal_shows_colours_and_what_takes_long() {
    let cove = Cove::start();
    cove.sandbox("box");
    let mut seat = TerminalUser::new(&cove, &["ls"]);
    seat.expect("STATE    IMAGE");
    seat.expect("\x1b[32mrunning\x1b[0m  busybox");
    assert_eq!(seat.end(), Some(0));
    let mut seat = TerminalUser::new(&cove, &["show", "nothing"]);
    seat.expect("\x1b[31mcove:\x1b[0m ");
    assert_eq!(seat.end(), Some(1));
    assert!(!cove.ok(["ls"]).contains('\x1b'));

    // Ends with the time it is given and no earlier.
    cove.ok([
        "exec",
        "-d",
        "box",
        "-c",
        "trap '' TERM; while :; do sleep 1; done",
    ]);
    let mut seat = TerminalUser::new(&cove, &["stop", "--grace", "3s", "box"]);
    seat.expect("stopping box, 1 s");
    seat.expect("box\r\n");
    assert_eq!(seat.end(), Some(0));
}
