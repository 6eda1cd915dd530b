//! Why CRIU failed, read out of its log: which process, and what about it.
//!
//! A log names processes by their pid on the host. Part of its text comes from a guest, names of files
//! with line breaks included, so everything found here may be made up by one. What callers see is
//! therefore one of a fixed list of reasons, and a pid counts only for who checks whose it is.

use crate::answer::{Finding, QUOTE_MAX, Reason};

/// Lines looked at from the end; a log of a large sandbox has tens of thousands.
const LINES_MAX: usize = 2000;

/// What is known to be beyond CRIU, by what its log says then.
const SIGNS: [(&str, Reason); 19] = [
    ("Unseizable", Reason::Traced),
    ("is traced by", Reason::Traced),
    ("ctty inheritance", Reason::ControllingTerminal),
    ("io_uring", Reason::IoUring),
    ("userfaultfd", Reason::Userfaultfd),
    ("Nested pid namespaces", Reason::PidNamespace),
    ("nested user", Reason::UserNamespace),
    ("External socket is used", Reason::OutsideSocket),
    ("mqueue", Reason::MessageQueue),
    ("Unsupported file type", Reason::FileKind),
    ("of that type", Reason::FileKind),
    ("too big", Reason::DeletedFile),
    ("ghost file", Reason::DeletedFile),
    ("in-flight", Reason::InFlight),
    ("unsupported socket", Reason::SocketKind),
    ("Unsupported proto", Reason::SocketKind),
    ("BUG! Unknown socket", Reason::SocketKind),
    ("Can't lookup mount", Reason::MissingFile),
    ("Can't open file", Reason::MissingFile),
];

/// The first error of the run and the process CRIU was busy with then.
pub fn find(log: &[u8]) -> Option<Finding> {
    let log = String::from_utf8_lossy(log);
    let all: Vec<&str> = log.lines().collect();
    let lines = &all[all.len().saturating_sub(LINES_MAX)..];
    let at = lines.iter().position(|line| is_error(line))?;
    let text = message_of(lines[at]);
    let known = SIGNS.iter().find(|(sign, _)| text.contains(sign));
    Some(Finding {
        reason: known.map_or(Reason::Other, |(_, reason)| *reason),
        // The line itself, or the task CRIU was busy with, or what it complains about in the end.
        pid: pid_in(lines[at])
            .or_else(|| restored_in(lines[at]))
            .or_else(|| lines[..=at].iter().rev().find_map(|line| pid_of(line)))
            .or_else(|| lines[at..].iter().find_map(|line| pid_of(line)))
            .filter(|pid| *pid > 0),
        quote: clean(&text),
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

/// While it restores, each line says of which process inside: `(00.012)    57: Error (…`.
fn restored_in(line: &str) -> Option<i32> {
    let (_, rest) = line.split_once(')')?;
    let (number, rest) = rest.trim_start().split_once(':')?;
    rest.trim_start().starts_with("Error").then_some(())?;
    number.parse().ok()
}

/// Letters of ASCII alone, everything else escaped.
fn clean(text: &str) -> String {
    let mut quote: String = text.trim().escape_default().take(QUOTE_MAX).collect();
    quote.truncate(QUOTE_MAX);
    quote
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_and_its_process_are_found() {
        let log = "(00.01) Dumping task (pid: 4321 comm: python3)\n(00.02) ========\n\
                   (00.03) Error (criu/files-ext.c:98): Can't dump file 5 of that type [20000] (unknown /dev/fuse)\n\
                   (00.04) Error (criu/cr-dump.c:1691): Dump files (pid: 4321) failed with -1\n";
        let found = find(log.as_bytes()).expect("there is one");
        assert_eq!(found.pid, Some(4321));
        assert_eq!(found.reason, Reason::FileKind);
        assert!(found.quote.starts_with("Can\\'t dump file 5"), "{found:?}");
    }

    #[test]
    fn a_log_without_an_error_has_no_reason() {
        assert_eq!(find(b"(00.01) Dumping finished successfully\n"), None);
    }

    #[test]
    fn what_a_guest_wrote_into_a_name_is_cut_and_escaped() {
        let name = "\u{1b}[2J\u{202e}".repeat(500);
        let log = format!("Error (criu/x.c:1): Can't find {name}\n");
        let found = find(log.as_bytes()).expect("there is one");
        assert_eq!(found.reason, Reason::Other);
        let plain = |c: char| c.is_ascii_graphic() || c == ' ';
        assert!(found.quote.len() <= QUOTE_MAX && found.quote.chars().all(plain));
    }

    #[test]
    fn no_log_takes_the_search_down() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let words: [&[u8]; 9] = [
            b"Error (",
            b"Error:",
            b"): ",
            b"(pid: ",
            b"pid: -5",
            b"\n",
            b"\xff\xfe",
            b"(ctty pid_real ",
            b"99999999999999999999",
        ];
        for _ in 0..20_000 {
            let mut log = Vec::new();
            for _ in 0..random() % 12 {
                log.extend_from_slice(words[(random() % words.len() as u64) as usize]);
            }
            let found = find(&log);
            let frame = crate::answer::encode_finding(found.as_ref());
            assert_eq!(crate::answer::decode_finding(&frame), Ok(found));
        }
    }
}
