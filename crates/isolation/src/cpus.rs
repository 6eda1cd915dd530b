//! Which CPUs a sandbox runs on. `nproc` inside must show its own count, and the only way to make
//! it so is to pin; sandboxes are spread so that no CPU is promised much more than another.

use std::collections::BTreeMap;

use parking_lot::Mutex;

#[derive(Debug)]
pub struct CpuBook {
    promised: Mutex<BTreeMap<u32, f64>>,
}

impl CpuBook {
    pub fn new(cpus: impl IntoIterator<Item = u32>) -> Self {
        Self {
            promised: Mutex::new(cpus.into_iter().map(|cpu| (cpu, 0.0)).collect()),
        }
    }

    pub fn count(&self) -> u32 {
        self.lock().len() as u32
    }

    /// The `count` least promised CPUs, `cpu` of work spread over them.
    pub fn take(&self, count: u32, cpu: f64) -> Vec<u32> {
        let mut promised = self.lock();
        let mut order: Vec<(f64, u32)> = promised.iter().map(|(&id, &load)| (load, id)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut chosen: Vec<u32> = order
            .into_iter()
            .take(count as usize)
            .map(|(_, id)| id)
            .collect();
        chosen.sort_unstable();
        Self::add(&mut promised, &chosen, cpu);
        chosen
    }

    /// Books CPUs chosen earlier, for a machine found running.
    pub fn retake(&self, cpus: &[u32], cpu: f64) {
        Self::add(&mut self.lock(), cpus, cpu);
    }

    pub fn give_back(&self, cpus: &[u32], cpu: f64) {
        Self::add(&mut self.lock(), cpus, -cpu);
    }

    fn add(promised: &mut BTreeMap<u32, f64>, cpus: &[u32], cpu: f64) {
        let share = cpu / cpus.len().max(1) as f64;
        for id in cpus {
            if let Some(load) = promised.get_mut(id) {
                *load += share;
            }
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, BTreeMap<u32, f64>> {
        self.promised.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_are_spread_and_give_their_share_back() {
        let book = CpuBook::new(0..4);
        let first = book.take(1, 1.0);
        let second = book.take(1, 1.0);
        assert_ne!(first, second);
        let wide = book.take(2, 1.5);
        assert!(!wide.contains(&first[0]) && !wide.contains(&second[0]));
        book.give_back(&first, 1.0);
        assert_eq!(book.take(1, 1.0), first);
    }
}
