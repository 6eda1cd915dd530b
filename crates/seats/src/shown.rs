//! What a sandbox is shown of its machine: its own CPUs and memory, not the host's.

use std::fs;
use std::io;

/// The host's cpuinfo, one text per CPU, read once.
#[derive(Debug)]
pub struct Cpuinfo {
    blocks: Vec<String>,
}

impl Cpuinfo {
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/cpuinfo")?;
        let blocks = text
            .split("\n\n")
            .filter(|block| block.contains("processor"))
            .map(str::to_owned)
            .collect();
        Ok(Self { blocks })
    }

    /// As a machine with `count` such CPUs would show it.
    pub fn for_cpus(&self, count: u32) -> String {
        let mut text = String::new();
        for index in 0..count as usize {
            let Some(block) = self.blocks.get(index).or(self.blocks.first()) else {
                break;
            };
            for line in block.lines() {
                let key = line.split(':').next().unwrap_or_default().trim();
                match key {
                    "processor" | "core id" | "apicid" | "initial apicid" => {
                        text.push_str(&format!("{key}\t: {index}\n"))
                    }
                    "siblings" | "cpu cores" => text.push_str(&format!("{key}\t: {count}\n")),
                    _ => {
                        text.push_str(line);
                        text.push('\n');
                    }
                }
            }
            text.push('\n');
        }
        text
    }
}

pub fn cpu_online(count: u32) -> String {
    match count {
        0 | 1 => "0\n".into(),
        count => format!("0-{}\n", count - 1),
    }
}

/// Memory as it is before the first process runs; the guest keeps it true afterwards.
pub fn meminfo(limit_bytes: u64) -> String {
    let total = limit_bytes / 1024;
    format!(
        "MemTotal:       {total:>8} kB\nMemFree:        {total:>8} kB\nMemAvailable:   {total:>8} kB\n\
         Buffers:               0 kB\nCached:                0 kB\nSwapCached:            0 kB\n\
         Active:                0 kB\nInactive:              0 kB\nSwapTotal:             0 kB\nSwapFree:              0 kB\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_renumbered_and_repeated() {
        let info = Cpuinfo {
            blocks: vec!["processor\t: 7\nmodel name\t: X\ncpu cores\t: 64".into()],
        };
        let text = info.for_cpus(2);
        assert_eq!(text.matches("model name\t: X").count(), 2);
        assert!(text.contains("processor\t: 0\n") && text.contains("processor\t: 1\n"));
        assert!(text.contains("cpu cores\t: 2\n"));
    }

    #[test]
    fn one_cpu_is_not_a_range() {
        assert_eq!(cpu_online(1), "0\n");
        assert_eq!(cpu_online(4), "0-3\n");
    }
}
