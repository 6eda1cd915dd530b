//! Periodic timers held by descriptors (`timerfd`) whose time had come when they were captured.
//!
//! The kernel tells of such a timer that nothing is left of its time, and starts it anew only once
//! somebody asks how often it fired. CRIU sets it to that nothing, which turns it off for good. Everything
//! that stood still for a while before its capture has timers in this state.

use super::wire::{self, Field, Value, parse};
use super::{FILES_MAGIC, ImageError, edit, number};

const TIMER: u32 = 12;

mod part {
    pub const VALUE_SECONDS: u32 = 7;
    pub const VALUE_NANOSECONDS: u32 = 8;
    pub const INTERVAL_SECONDS: u32 = 9;
    pub const INTERVAL_NANOSECONDS: u32 = 10;
    pub const TICKS: u32 = 5;
}

/// A files image whose periodic timers go on. `None`: all of them do.
pub fn with_running_timers(image: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    let mut changed = false;
    let edited = edit(image, FILES_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == TIMER) {
            let Value::Bytes(entry) = &field.value else {
                return Err(ImageError("a timer has an odd shape"));
            };
            let mut entry = parse(entry)?;
            if is_overdue(&entry) {
                // The shortest time there is: it fires at once, and then as often as it did.
                for field in &mut entry {
                    if field.tag == part::VALUE_NANOSECONDS {
                        field.value = Value::Varint(1);
                    }
                }
                field.value = Value::Bytes(wire::write(&entry));
                changed = true;
            }
        }
        Ok(())
    })?;
    Ok(changed.then_some(edited))
}

fn is_overdue(entry: &[Field]) -> bool {
    let is_set = |tags: [u32; 2]| tags.iter().any(|&tag| number(entry, tag) > 0);
    // One that was never started, or was stopped, has not fired either.
    number(entry, part::TICKS) > 0
        && is_set([part::INTERVAL_SECONDS, part::INTERVAL_NANOSECONDS])
        && !is_set([part::VALUE_SECONDS, part::VALUE_NANOSECONDS])
}

#[cfg(test)]
mod tests {
    use super::super::COMMON_MAGIC;
    use super::*;

    fn image(ticks: u64, left: u64, interval: u64) -> Vec<u8> {
        let numbers = [
            (1, 9),
            (part::TICKS, ticks),
            (part::VALUE_SECONDS, 0),
            (part::VALUE_NANOSECONDS, left),
            (part::INTERVAL_SECONDS, interval),
            (part::INTERVAL_NANOSECONDS, 0),
        ];
        let fields = numbers.map(|(tag, value)| Field {
            tag,
            value: Value::Varint(value),
        });
        let value = Value::Bytes(wire::write(&fields));
        let message = wire::write(&[Field { tag: TIMER, value }]);
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend_from_slice(&FILES_MAGIC.to_le_bytes());
        image.extend_from_slice(&(message.len() as u32).to_le_bytes());
        image.extend_from_slice(&message);
        image
    }

    #[test]
    fn only_periodic_timers_whose_time_has_come_are_started_anew() {
        let changed = |ticks, left, interval| {
            with_running_timers(&image(ticks, left, interval)).expect("a good image")
        };
        assert_eq!(changed(1, 0, 60), Some(image(1, 1, 60)));
        assert_eq!(changed(1, 500, 60), None, "it runs");
        assert_eq!(changed(1, 0, 0), None, "it fires once");
        assert_eq!(changed(0, 0, 60), None, "it was stopped");
    }
}
