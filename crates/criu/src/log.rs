//! Why CRIU failed, read out of its log: which process, and what about it.
//!
//! A log names processes by their pid on the host. The text partly comes from a guest (names of
//! files), so it is cut and freed of anything that is not printable.

/// Characters kept of a reason.
const REASON_MAX: usize = 300;
/// Lines looked at from the end; a log of a large sandbox has tens of thousands.
const LINES_MAX: usize = 2000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The process it is about, as the host numbers it, when the log tells.
    pub pid: Option<i32>,
    pub text: String,
}

/// What is known to be beyond CRIU, by what its log says then.
const KNOWN: [(&str, &str); 11] = [
    (
        "Unseizable",
        "another process traces it, as a debugger does",
    ),
    (
        "ctty inheritance",
        "it holds /dev/tty open, and that leads to no terminal of the sandbox",
    ),
    ("io_uring", "it uses io_uring"),
    ("userfaultfd", "it uses userfaultfd"),
    ("is traced by", "it is being traced by another process"),
    (
        "Nested pid namespaces",
        "it made a pid namespace of its own",
    ),
    ("nested user", "it made a user namespace of its own"),
    (
        "External socket is used",
        "it is connected to something outside the sandbox",
    ),
    ("mqueue", "it uses POSIX message queues"),
    (
        "Unsupported file type",
        "it has a file open of a kind that cannot be saved",
    ),
    ("too big", "a deleted file it has open is too large"),
];

/// The first error of the run and the process CRIU was busy with then.
pub fn reason(log: &str) -> Option<Reason> {
    let all: Vec<&str> = log.lines().collect();
    let lines = &all[all.len().saturating_sub(LINES_MAX)..];
    let at = lines.iter().position(|line| is_error(line))?;
    let text = message_of(lines[at]);
    let known = KNOWN
        .iter()
        .find(|(sign, _)| text.contains(sign))
        .map(|(_, reason)| (*reason).to_owned());
    Some(Reason {
        // The line itself, or the task CRIU was busy with, or what it complains about in the end.
        pid: pid_in(lines[at])
            .or_else(|| lines[..=at].iter().rev().find_map(|line| pid_of(line)))
            .or_else(|| lines[at..].iter().find_map(|line| pid_of(line))),
        text: known.unwrap_or_else(|| clean(&text)),
    })
}

/// Said also by runs that succeed.
const HARMLESS: [&str; 2] = ["RLIMIT_NOFILE for self", "net module preload"];

fn is_error(line: &str) -> bool {
    (line.contains("Error (") || line.contains("Error:"))
        && !HARMLESS.iter().any(|sign| line.contains(sign))
}

/// `(00.012345) Error (criu/files.c:123): what happened` without what comes before.
fn message_of(line: &str) -> String {
    let from = line.find("Error").unwrap_or(0);
    let rest = &line[from..];
    match rest.split_once("): ") {
        Some((_, message)) => message.to_owned(),
        None => rest
            .trim_start_matches("Error")
            .trim_start_matches([':', ' '])
            .to_owned(),
    }
}

fn pid_of(line: &str) -> Option<i32> {
    let number = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    [
        "(pid: ",
        "Dumping task (pid: ",
        "pid: ",
        "Collecting mappings (pid: ",
    ]
    .iter()
    .find_map(|sign| {
        line.find(sign)
            .and_then(|at| number(&line[at + sign.len()..]))
    })
}

/// Where the complaint itself names the process.
fn pid_in(line: &str) -> Option<i32> {
    ["(ctty pid_real ", "non-zombie "].iter().find_map(|sign| {
        let (_, rest) = line.split_once(sign)?;
        rest.split(' ').next()?.parse().ok()
    })
}

fn clean(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(REASON_MAX)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_and_its_process_are_found() {
        let log = "(00.01) Dumping task (pid: 4321 comm: python3)\n(00.02) ========\n\
                   (00.03) Error (criu/files-ext.c:98): Can't dump file 5 of that type [20000] (unknown /dev/fuse)\n\
                   (00.04) Error (criu/cr-dump.c:1691): Dump files (pid: 4321) failed with -1\n";
        let reason = reason(log).expect("there is one");
        assert_eq!(reason.pid, Some(4321));
        assert!(reason.text.starts_with("Can't dump file 5"), "{reason:?}");
    }

    #[test]
    fn a_log_without_an_error_has_no_reason() {
        assert_eq!(reason("(00.01) Dumping finished successfully\n"), None);
    }

    #[test]
    fn what_a_guest_wrote_into_a_name_is_cut_and_cleaned() {
        let name = "\u{1b}[2J".repeat(500);
        let log = format!("Error (criu/x.c:1): Can't open {name}\n");
        let text = reason(&log).expect("there is one").text;
        assert!(text.len() <= REASON_MAX && !text.contains('\u{1b}'));
    }
}
