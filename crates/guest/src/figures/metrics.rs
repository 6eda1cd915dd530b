//! The metrics call.

use std::path::Path;
use std::rc::Rc;

use cove_protocol::message::{Metrics, ReplyKind};

use super::{cpu, read_text, sessions};
use crate::call::{Call, Ended};
use crate::state::State;

pub async fn serve(state: &Rc<State>, call: &mut Call) -> Result<(), Ended> {
    let usage = sessions::measure().await?;
    let memory = state.figures.memory();
    let (received, sent) = network();
    let metrics = Metrics {
        cpu_usec: state.figures.cpu_usec(),
        memory_bytes: memory.current,
        memory_peak_bytes: memory.peak,
        memory_limit_bytes: memory.limit,
        memory_cache_bytes: memory.file,
        oom_kills: memory.oom_kills,
        processes: usage.values().map(|usage| usage.processes).sum(),
        threads: usage.values().map(|usage| usage.threads).sum(),
        disk_used_bytes: disk_used(),
        network_received_bytes: received,
        network_sent_bytes: sent,
        running_commands: state.table.running_count() as u32,
        open_calls: state.calls.get().saturating_sub(1),
        cpus: cpu::usable(),
    };
    call.reply(ReplyKind::Metrics(metrics)).await?;
    Ok(())
}

fn disk_used() -> u64 {
    rustix::fs::statvfs("/").map_or(0, |disk| {
        disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize
    })
}

/// Bytes received and sent on every interface but loopback.
fn network() -> (u64, u64) {
    let text = read_text(Path::new("/proc/net/dev")).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (name, counters) = line.split_once(':')?;
            if name.trim() == "lo" {
                return None;
            }
            let mut counters = counters.split_ascii_whitespace();
            let received: u64 = counters.next()?.parse().ok()?;
            let sent: u64 = counters.nth(7)?.parse().ok()?;
            Some((received, sent))
        })
        .fold((0, 0), |(received, sent), line| {
            (received + line.0, sent + line.1)
        })
}
