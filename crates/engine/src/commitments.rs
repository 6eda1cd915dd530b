//! What the host has promised, and whether one more fits. Admission is atomic: a promise is made
//! under one lock, before anything is created, and is taken back when its holder is dropped.

use std::sync::Arc;

use parking_lot::Mutex;

use cove_model::Resources;
use cove_runner_api::RunnerError;

use crate::config::Overcommit;

/// Memory the host itself must have available for another sandbox to start, whatever was promised.
const HOST_MEMORY_FLOOR: u64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    pub cpus: u32,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Promised {
    /// In thousandths: sums of fractions drift, and these are added and taken back for months.
    cpu_milli: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

#[derive(Debug)]
pub struct Commitments {
    capacity: Capacity,
    overcommit: Overcommit,
    promised: Mutex<Promised>,
}

impl Promised {
    pub fn cpu_milli(&self) -> u64 {
        self.cpu_milli
    }

    pub fn cpu(&self) -> f64 {
        self.cpu_milli as f64 / 1000.0
    }
}

fn milli(cpu: f64) -> u64 {
    (cpu * 1000.0).round() as u64
}

/// CPU and memory of a running sandbox.
#[derive(Debug)]
pub struct RunPromise {
    commitments: Arc<Commitments>,
    cpu_milli: u64,
    memory_bytes: u64,
}

/// Disk of an existing sandbox.
#[derive(Debug)]
pub struct DiskPromise {
    commitments: Arc<Commitments>,
    bytes: u64,
}

impl Commitments {
    pub fn new(capacity: Capacity, overcommit: Overcommit) -> Arc<Self> {
        Arc::new(Self {
            capacity,
            overcommit,
            promised: Mutex::default(),
        })
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub fn promised(&self) -> Promised {
        *self.lock()
    }

    /// CPU in thousandths, memory and disk that may be promised in all.
    pub fn limits(&self) -> (u64, u64, u64) {
        let Capacity {
            cpus,
            memory_bytes,
            disk_bytes,
        } = self.capacity;
        let times = |bytes: u64, factor: f64| (bytes as f64 * factor) as u64;
        (
            milli(f64::from(cpus) * self.overcommit.cpu),
            times(memory_bytes, self.overcommit.memory),
            times(disk_bytes, self.overcommit.disk),
        )
    }

    /// Room to run: refused with what is short.
    pub fn promise_run(self: &Arc<Self>, limits: &Resources) -> Result<RunPromise, RunnerError> {
        let available = available_memory();
        if available < HOST_MEMORY_FLOOR {
            return Err(short(
                "memory",
                format!("only {} MiB are available on the host", available >> 20),
            ));
        }
        self.take_run(limits.cpu, limits.memory_mb << 20, true)
    }

    /// Books a machine that is running already, fit or not.
    pub fn adopt_run(self: &Arc<Self>, limits: &Resources, memory_mb: u64) -> RunPromise {
        self.take_run(limits.cpu, memory_mb << 20, false)
            .expect("nothing is checked")
    }

    fn take_run(
        self: &Arc<Self>,
        cpu: f64,
        memory_bytes: u64,
        check: bool,
    ) -> Result<RunPromise, RunnerError> {
        let mut promised = self.lock();
        if check {
            self.check_cpu(&promised, milli(cpu))?;
            self.check_memory(&promised, memory_bytes)?;
        }
        promised.cpu_milli += milli(cpu);
        promised.memory_bytes += memory_bytes;
        Ok(RunPromise {
            commitments: Arc::clone(self),
            cpu_milli: milli(cpu),
            memory_bytes,
        })
    }

    fn check_cpu(&self, promised: &Promised, more_milli: u64) -> Result<(), RunnerError> {
        let limit = f64::from(self.capacity.cpus) * self.overcommit.cpu;
        if promised.cpu_milli + more_milli > milli(limit) {
            return Err(short(
                "CPU",
                format!(
                    "{:.1} of {limit:.1} are promised and {:.2} more were asked for",
                    promised.cpu(),
                    more_milli as f64 / 1000.0
                ),
            ));
        }
        Ok(())
    }

    fn check_memory(&self, promised: &Promised, more: u64) -> Result<(), RunnerError> {
        let limit = (self.capacity.memory_bytes as f64 * self.overcommit.memory) as u64;
        if promised.memory_bytes + more > limit {
            return Err(short(
                "memory",
                format!(
                    "{} of {} MiB are promised and {} more were asked for",
                    promised.memory_bytes >> 20,
                    limit >> 20,
                    more >> 20
                ),
            ));
        }
        Ok(())
    }

    pub fn promise_disk(self: &Arc<Self>, bytes: u64) -> Result<DiskPromise, RunnerError> {
        let mut promised = self.lock();
        self.check_disk(&promised, bytes)?;
        promised.disk_bytes += bytes;
        Ok(DiskPromise {
            commitments: Arc::clone(self),
            bytes,
        })
    }

    fn check_disk(&self, promised: &Promised, more: u64) -> Result<(), RunnerError> {
        let limit = (self.capacity.disk_bytes as f64 * self.overcommit.disk) as u64;
        if promised.disk_bytes + more > limit {
            return Err(short(
                "disk",
                format!(
                    "{} of {} MiB are promised and {} more were asked for",
                    promised.disk_bytes >> 20,
                    limit >> 20,
                    more >> 20
                ),
            ));
        }
        Ok(())
    }

    /// Books a disk that exists already, fit or not.
    pub fn adopt_disk(self: &Arc<Self>, bytes: u64) -> DiskPromise {
        self.lock().disk_bytes += bytes;
        DiskPromise {
            commitments: Arc::clone(self),
            bytes,
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Promised> {
        self.promised.lock()
    }
}

impl RunPromise {
    /// Changes the promise in place; refused, and unchanged, when more does not fit.
    pub fn change(&mut self, cpu: f64, memory_mb: u64) -> Result<(), RunnerError> {
        let memory_bytes = memory_mb << 20;
        let mut promised = self.commitments.lock();
        if let Some(more) = memory_bytes
            .checked_sub(self.memory_bytes)
            .filter(|more| *more > 0)
        {
            self.commitments.check_memory(&promised, more)?;
        }
        let cpu_milli = milli(cpu);
        if cpu_milli > self.cpu_milli {
            self.commitments
                .check_cpu(&promised, cpu_milli - self.cpu_milli)?;
        }
        promised.cpu_milli = promised.cpu_milli - self.cpu_milli + cpu_milli;
        promised.memory_bytes = promised.memory_bytes - self.memory_bytes + memory_bytes;
        drop(promised);
        self.cpu_milli = cpu_milli;
        self.memory_bytes = memory_bytes;
        Ok(())
    }
}

impl DiskPromise {
    /// Changes the promise to what is there already, fit or not.
    pub fn correct(&mut self, bytes: u64) {
        let mut promised = self.commitments.lock();
        promised.disk_bytes = promised.disk_bytes - self.bytes + bytes;
        drop(promised);
        self.bytes = bytes;
    }

    /// Changes the promise in place; refused, and unchanged, when more does not fit.
    pub fn change(&mut self, bytes: u64) -> Result<(), RunnerError> {
        let mut promised = self.commitments.lock();
        if bytes > self.bytes {
            self.commitments.check_disk(&promised, bytes - self.bytes)?;
        }
        promised.disk_bytes = promised.disk_bytes - self.bytes + bytes;
        drop(promised);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for RunPromise {
    fn drop(&mut self) {
        let mut promised = self.commitments.lock();
        promised.cpu_milli -= self.cpu_milli;
        promised.memory_bytes -= self.memory_bytes;
    }
}

impl Drop for DiskPromise {
    fn drop(&mut self) {
        self.commitments.lock().disk_bytes -= self.bytes;
    }
}

fn short(resource: &str, message: String) -> RunnerError {
    RunnerError::NoCapacity {
        resource: resource.into(),
        message,
    }
}

fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            << 10,
    )
}

pub fn total_memory() -> u64 {
    meminfo("MemTotal").unwrap_or(0)
}

fn available_memory() -> u64 {
    // Unknown must not stop anything: the promised sum still bounds.
    meminfo("MemAvailable").unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commitments() -> Arc<Commitments> {
        let capacity = Capacity {
            cpus: 2,
            memory_bytes: 4 << 30,
            disk_bytes: 10 << 30,
        };
        Commitments::new(
            capacity,
            Overcommit {
                cpu: 2.0,
                memory: 1.0,
                disk: 1.0,
            },
        )
    }

    fn wants(cpu: f64, memory_mb: u64) -> Resources {
        Resources {
            cpu,
            memory_mb,
            ..Resources::default()
        }
    }

    #[test]
    fn promises_never_exceed_the_stated_overcommit_under_concurrency() {
        let commitments = commitments();
        let held: Vec<RunPromise> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        (0..50)
                            .filter_map(|_| commitments.promise_run(&wants(0.1, 100)).ok())
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        assert_eq!(held.len(), 40, "both CPU and memory fit 40");
        drop(held);
        let left = commitments.promised();
        assert_eq!(left, Promised::default());
    }

    #[test]
    fn a_refusal_names_what_is_short_and_changes_nothing() {
        let commitments = commitments();
        let mut promise = commitments.promise_run(&wants(1.0, 3000)).unwrap();
        let before = commitments.promised();
        let refused = commitments.promise_run(&wants(1.0, 2000)).unwrap_err();
        assert!(
            matches!(&refused, RunnerError::NoCapacity { resource, .. } if resource == "memory")
        );
        assert!(promise.change(1.0, 5000).is_err());
        assert_eq!(commitments.promised(), before);
        promise.change(1.0, 100).unwrap();
        commitments.promise_run(&wants(1.0, 2000)).unwrap();
    }
}
