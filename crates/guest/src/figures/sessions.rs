//! What processes use, added up by session: every command leads one of its own.

use std::collections::HashMap;

use crate::failure::Result;
use crate::thread;

/// Processes looked at; a sandbox's own limit is usually far lower.
const SCAN_MAX: usize = 32 * 1024;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu_ms: u64,
    pub memory_bytes: u64,
    pub processes: u32,
    pub threads: u32,
}

pub struct Stat {
    pub session: i32,
    cpu_ticks: u64,
    threads: u32,
    resident_pages: u64,
}

/// By session leader's pid.
pub async fn measure() -> Result<HashMap<i32, Usage>> {
    thread::run(scan).await
}

pub fn scan() -> HashMap<i32, Usage> {
    let tick_ms = 1000 / rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    let mut sessions: HashMap<i32, Usage> = HashMap::new();
    for pid in pids() {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if let Some(stat) = parse(&text) {
            let usage = sessions.entry(stat.session).or_default();
            usage.cpu_ms += stat.cpu_ticks * tick_ms;
            usage.memory_bytes += stat.resident_pages * page;
            usage.processes += 1;
            usage.threads += stat.threads;
        }
    }
    sessions
}

/// Every process that /proc shows, as far as the limit.
pub fn pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .take(SCAN_MAX)
}

fn parse(stat: &str) -> Option<Stat> {
    // The name is in parentheses and may contain anything, parentheses included.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        session: fields.get(3)?.parse().ok()?,
        cpu_ticks: number(11)? + number(12)?,
        threads: number(17)?.try_into().ok()?,
        resident_pages: number(21)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_move_the_fields() {
        let line = "12 (a) R 1 (b) S 1 12 11 0 -1 4194560 1 0 0 0 7 5 0 0 20 0 3 0 99 1000 42 \
                    18446744073709551615 0 0\n";
        let stat = parse(line).unwrap();
        assert_eq!((stat.session, stat.cpu_ticks), (11, 12));
        assert_eq!((stat.threads, stat.resident_pages), (3, 42));
    }

    #[test]
    fn this_process_is_found() {
        let total: u32 = scan().values().map(|usage| usage.processes).sum();
        assert!(total >= 1);
        assert!(pids().any(|pid| pid as u32 == std::process::id()));
    }
}
