//! What a tier can do on this host: with each limit of a sandbox, and besides.

use cove_model::Resources;

use crate::IsolationError;

/// What a tier does with one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Limit {
    /// In force from the first instruction on.
    Enforced {
        /// The most that one sandbox of this host can have, where that is less than may be asked for.
        most: Option<u64>,
        /// Whether it can be changed while a machine runs.
        live: bool,
    },
    /// Refused when it is asked for; says why and what would help.
    Refused(String),
}

impl Limit {
    /// Enforced, whatever is asked for, and changed while machines run.
    pub const LIVE: Self = Self::Enforced {
        most: None,
        live: true,
    };

    pub fn is_enforced(&self) -> bool {
        matches!(self, Self::Enforced { .. })
    }

    fn is_live(&self) -> bool {
        matches!(self, Self::Enforced { live: true, .. })
    }
}

/// What a tier does with each limit in [`Resources`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub cpu: Limit,
    pub memory: Limit,
    /// Memory that grows.
    pub memory_max: Limit,
    pub disk: Limit,
    pub pids: Limit,
    pub open_files: Limit,
    pub io_read: Limit,
    pub io_write: Limit,
}

/// One limit as it was asked for.
struct Asked<'a> {
    field: &'static str,
    limit: &'a Limit,
    /// `None` when it was not asked for.
    amount: Option<u64>,
}

impl Limits {
    /// Each limit with what `wanted` says about it.
    fn of(&self, wanted: &Resources) -> [Asked<'_>; 8] {
        // Every field is named, so that a limit that is added to one of the two is not forgotten here.
        let Resources {
            cpu: _,
            memory_mb,
            memory_max_mb,
            disk_mb,
            pids,
            open_files,
            io_read_mb_s,
            io_write_mb_s,
        } = *wanted;
        let Self {
            cpu,
            memory,
            memory_max,
            disk,
            pids: pids_limit,
            open_files: open_files_limit,
            io_read,
            io_write,
        } = self;
        let asked = |field, limit, amount| Asked {
            field,
            limit,
            amount,
        };
        [
            asked("cpu", cpu, Some(u64::from(wanted.visible_cpus()))),
            asked("memory_mb", memory, Some(memory_mb)),
            asked("memory_max_mb", memory_max, memory_max_mb),
            asked("disk_mb", disk, Some(disk_mb)),
            asked("pids", pids_limit, Some(pids)),
            asked("open_files", open_files_limit, Some(open_files)),
            asked("io_read_mb_s", io_read, io_read_mb_s),
            asked("io_write_mb_s", io_write, io_write_mb_s),
        ]
    }
}

/// What a tier can do; a request beyond it is refused by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    pub limits: Limits,
    pub no_new_privs: bool,
    /// Processes and their memory can be captured and brought back.
    pub memory: bool,
    /// Volumes can be mounted in machines.
    pub volumes: bool,
    /// The host can listen on a machine's loopback, which the metadata endpoint of an identity needs.
    pub identity: bool,
    /// The least memory that a machine can have: what its own kernel needs is counted too.
    pub memory_least_mb: u64,
    /// What processes inside cost in tasks of the host.
    pub task_cost: TaskCost,
    /// How many CPUs a machine sees and uses is fixed when it boots; its share of them changes while it runs.
    pub cpus_fixed: bool,
}

/// How many tasks of the host processes inside cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskCost {
    pub per_process: u64,
    /// Of a machine without any.
    pub fixed: u64,
}

impl TaskCost {
    /// A process is a task.
    pub const PLAIN: Self = Self {
        per_process: 1,
        fixed: 0,
    };

    pub fn of(&self, processes: u64) -> u64 {
        self.fixed
            .saturating_add(processes.saturating_mul(self.per_process))
    }
}

impl Capabilities {
    /// Refuses limits that cannot be put in force.
    pub fn check(&self, wanted: &Resources) -> Result<(), IsolationError> {
        for Asked {
            field,
            limit,
            amount,
        } in self.limits.of(wanted)
        {
            let refused = match (limit, amount) {
                (Limit::Refused(reason), Some(_)) => reason.clone(),
                (
                    Limit::Enforced {
                        most: Some(most), ..
                    },
                    Some(amount),
                ) if amount > *most => too_much(field, amount, *most),
                _ => continue,
            };
            return Err(IsolationError::Unsupported(refused));
        }
        match wanted.memory_mb < self.memory_least_mb {
            true => Err(IsolationError::Unsupported(format!(
                "memory_mb is {}, and this tier needs {} or more, because its own kernel is counted too",
                wanted.memory_mb, self.memory_least_mb
            ))),
            false => Ok(()),
        }
    }

    /// Refuses a change of a running machine's limits that cannot be put in force, or not while it runs.
    pub fn check_change(&self, old: &Resources, new: &Resources) -> Result<(), IsolationError> {
        let (before, after) = (self.limits.of(old), self.limits.of(new));
        // Fractions of a CPU change without the number that is seen.
        let is_changed = |before: &Asked<'_>, after: &Asked<'_>| match after.field {
            "cpu" => old.cpu != new.cpu,
            _ => before.amount != after.amount,
        };
        let changed = before
            .iter()
            .zip(&after)
            .find(|(before, after)| is_changed(before, after) && !after.limit.is_live());
        let (seen, wanted) = (old.visible_cpus(), new.visible_cpus());
        if self.cpus_fixed && seen != wanted {
            return Err(IsolationError::Unsupported(format!(
                "cpu {} needs {wanted} CPUs, the sandbox started with {seen}, and this tier cannot change their number while it runs or is paused; stop it first",
                new.cpu
            )));
        }
        match changed {
            Some((_, asked)) => Err(IsolationError::Unsupported(format!(
                "{} cannot be changed while the sandbox runs or is paused; stop it first",
                asked.field
            ))),
            None => self.check(new),
        }
    }

    /// The most CPUs one sandbox can see; `None` where any number can be asked for.
    pub fn cpus(&self) -> Option<u64> {
        match self.limits.cpu {
            Limit::Enforced { most, .. } => most,
            Limit::Refused(_) => Some(0),
        }
    }

    /// Their names, for reports.
    pub fn names(&self) -> Vec<String> {
        let limits = &self.limits;
        let changeable = [&limits.cpu, &limits.memory, &limits.disk, &limits.pids];
        [
            ("live_resize", changeable.into_iter().all(Limit::is_live)),
            ("elastic_memory", limits.memory_max.is_enforced()),
            ("io_read_limit", limits.io_read.is_enforced()),
            ("io_write_limit", limits.io_write.is_enforced()),
            ("no_new_privs", self.no_new_privs),
            ("memory", self.memory),
            ("volumes", self.volumes),
            ("identity", self.identity),
        ]
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name.to_owned())
        .collect()
    }
}

fn too_much(field: &str, amount: u64, most: u64) -> String {
    match field {
        "cpu" => format!("{amount} CPUs were asked for and this host has {most}"),
        "open_files" => format!(
            "open_files is {amount}, and this host allows its processes {most}; ask for less, or raise LimitNOFILE of the service"
        ),
        field => {
            format!("{field} is {amount}, and a sandbox of this host can have {most}; ask for less")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities() -> Capabilities {
        Capabilities {
            limits: Limits {
                cpu: Limit::Enforced {
                    most: Some(4),
                    live: true,
                },
                memory: Limit::LIVE,
                memory_max: Limit::Refused("memory cannot grow here".into()),
                disk: Limit::Enforced {
                    most: None,
                    live: false,
                },
                pids: Limit::LIVE,
                open_files: Limit::LIVE,
                io_read: Limit::LIVE,
                io_write: Limit::Refused("writing cannot be limited here".into()),
            },
            no_new_privs: true,
            memory: false,
            volumes: false,
            identity: false,
            memory_least_mb: 32,
            task_cost: TaskCost::PLAIN,
            cpus_fixed: false,
        }
    }

    fn refusal(checked: Result<(), IsolationError>) -> String {
        match checked {
            Err(IsolationError::Unsupported(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_enforced_is_refused_when_it_is_asked_for() {
        let able = capabilities();
        let plain = Resources::default();
        able.check(&plain).expect("nothing beyond it");
        let writing = Resources {
            io_write_mb_s: Some(5),
            ..plain.clone()
        };
        assert!(refusal(able.check(&writing)).contains("writing"));
        let growing = Resources {
            memory_max_mb: Some(4096),
            ..plain.clone()
        };
        assert!(refusal(able.check(&growing)).contains("grow"));
        let many = Resources {
            cpu: 4.5,
            ..plain.clone()
        };
        assert!(refusal(able.check(&many)).contains("5 CPUs"));
        let small = Resources {
            memory_mb: 31,
            ..plain.clone()
        };
        assert!(refusal(able.check(&small)).contains("memory_mb is 31"));
        assert!(able.check(&Resources { cpu: 4.0, ..plain }).is_ok());
    }

    #[test]
    fn only_what_is_live_changes_while_a_machine_runs() {
        let (able, old) = (capabilities(), Resources::default());
        let more = Resources {
            memory_mb: old.memory_mb * 2,
            ..old.clone()
        };
        able.check_change(&old, &more).expect("memory is live");
        let disk = Resources {
            disk_mb: old.disk_mb * 2,
            ..old.clone()
        };
        let said = refusal(able.check_change(&old, &disk));
        assert!(said.contains("disk_mb") && said.contains("stop"), "{said}");
        able.check(&disk).expect("it can be had from the start");
        let mut still = able;
        still.limits.cpu = Limit::Enforced {
            most: Some(4),
            live: false,
        };
        let half = Resources {
            cpu: old.cpu / 2.0,
            ..old.clone()
        };
        assert!(refusal(still.check_change(&old, &half)).contains("cpu"));
    }

    #[test]
    fn where_the_number_of_cpus_is_fixed_only_the_share_changes_while_a_machine_runs() {
        let mut able = capabilities();
        let with = |cpu| Resources {
            cpu,
            ..Resources::default()
        };
        able.check_change(&with(1.5), &with(3.0))
            .expect("it is not fixed");
        able.cpus_fixed = true;
        able.check_change(&with(1.5), &with(2.0))
            .expect("two CPUs before and after");
        for cpu in [1.0, 3.0] {
            let said = refusal(able.check_change(&with(1.5), &with(cpu)));
            assert!(
                said.contains("this tier cannot change") && said.contains("stop"),
                "{said}"
            );
        }
        able.check(&with(3.0))
            .expect("it can be had from the start");
    }

    #[test]
    fn reports_name_what_is_there() {
        let mut able = capabilities();
        assert_eq!(able.names(), ["io_read_limit", "no_new_privs"]);
        able.limits.disk = Limit::LIVE;
        able.limits.memory_max = Limit::LIVE;
        let names = able.names();
        assert!(names.contains(&"live_resize".to_owned()), "{names:?}");
        assert!(names.contains(&"elastic_memory".to_owned()), "{names:?}");
        assert_eq!(able.cpus(), Some(4));
    }
}
