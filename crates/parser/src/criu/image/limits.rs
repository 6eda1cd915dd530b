//! Limits that are part of a captured process or namespace, and those of a copy in their place.

use super::wire::{self, Field, Value, parse};
use super::{COMMON_MAGIC, ImageError, body_of, edit, messages, number};

const CORE_MAGIC: u32 = 0x5505_3847;
const IPC_VAR_MAGIC: u32 = 0x5311_5007;
/// Of a task's image, of its limits in it, of one of these.
const TASK: u32 = 3;
const LIMITS: u32 = 8;
const LIMIT: u32 = 1;
const CURRENT: u32 = 1;
const MAXIMUM: u32 = 2;
/// The kernel's number of the limit of open files, which is its place in the list.
const OPEN_FILES: usize = 7;

/// The most files that a captured process may have open; nothing when its image does not tell, as that
/// of a thread.
pub fn open_files(image: &[u8]) -> Result<Option<u64>, ImageError> {
    let mut found = None;
    for message in messages(body_of(image, COMMON_MAGIC, CORE_MAGIC)?)? {
        let mut fields = parse(message)?;
        each_open_files(&mut fields, |limit| found = Some(number(limit, MAXIMUM)))?;
    }
    Ok(found)
}

/// An image of a process of a sandbox that allowed `before` open files, for one that allows `now`.
/// What the process gave up by itself stays given up. `None`: nothing changes.
pub fn with_open_files(image: &[u8], before: u64, now: u64) -> Result<Option<Vec<u8>>, ImageError> {
    let moved = |value: u64| match value >= before {
        true => now,
        false => value.min(now),
    };
    let mut changed = false;
    let edited = edit(image, CORE_MAGIC, |fields| {
        each_open_files(fields, |limit| {
            for field in limit {
                if let (CURRENT | MAXIMUM, Value::Varint(value)) = (field.tag, &mut field.value)
                    && *value != moved(*value)
                {
                    *value = moved(*value);
                    changed = true;
                }
            }
        })
    })?;
    Ok(changed.then_some(edited))
}

fn each_open_files(
    fields: &mut [Field],
    mut change: impl FnMut(&mut Vec<Field>),
) -> Result<(), ImageError> {
    inside(fields, TASK, |task| {
        inside(task, LIMITS, |limits| {
            let mut at = 0;
            inside(limits, LIMIT, |limit| {
                if at == OPEN_FILES {
                    change(limit);
                }
                at += 1;
                Ok(())
            })
        })
    })
}

/// Looks into every message of one kind in another.
fn inside(
    fields: &mut [Field],
    tag: u32,
    mut look: impl FnMut(&mut Vec<Field>) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    for field in fields.iter_mut().filter(|field| field.tag == tag) {
        let Value::Bytes(bytes) = &field.value else {
            return Err(ImageError("a limit has an odd shape"));
        };
        let mut message = parse(bytes)?;
        look(&mut message)?;
        field.value = Value::Bytes(wire::write(&message));
    }
    Ok(())
}

/// Settings of System V objects with another limit of shared segments, in pages. With segments in use
/// it is never lowered, since those could not be made again.
pub fn with_segment_pages(
    image: &[u8],
    pages: u64,
    in_use: bool,
) -> Result<Option<Vec<u8>>, ImageError> {
    const PAGES: u32 = 7;
    let mut changed = false;
    let edited = edit(image, IPC_VAR_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == PAGES) {
            if let Value::Varint(value) = &mut field.value {
                let wanted = match in_use {
                    true => pages.max(*value),
                    false => pages,
                };
                changed |= *value != wanted;
                *value = wanted;
            }
        }
        Ok(())
    })?;
    Ok(changed.then_some(edited))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(fields: &[(u32, u64)]) -> Vec<u8> {
        let fields = fields.iter().map(|&(tag, value)| Field {
            tag,
            value: Value::Varint(value),
        });
        wire::write(&fields.collect::<Vec<_>>())
    }

    fn image(magic: u32, message: &[u8]) -> Vec<u8> {
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend_from_slice(&magic.to_le_bytes());
        image.extend_from_slice(&(message.len() as u32).to_le_bytes());
        image.extend_from_slice(message);
        image
    }

    /// A process whose every limit is 500, but that of open files.
    fn process(current: u64, maximum: u64) -> Vec<u8> {
        let limits = (0..16).map(|at| Field {
            tag: LIMIT,
            value: Value::Bytes(match at == OPEN_FILES {
                true => numbers(&[(CURRENT, current), (MAXIMUM, maximum)]),
                false => numbers(&[(CURRENT, 500), (MAXIMUM, 500)]),
            }),
        });
        let nested = |tag, bytes| {
            let value = Value::Bytes(bytes);
            wire::write(&[Field { tag, value }])
        };
        let limits = wire::write(&limits.collect::<Vec<_>>());
        image(CORE_MAGIC, &nested(TASK, nested(LIMITS, limits)))
    }

    #[test]
    fn a_copy_has_the_limit_of_open_files_that_is_in_force() {
        let moved = |current, maximum, before, now| {
            with_open_files(&process(current, maximum), before, now).expect("a good image")
        };
        assert_eq!(moved(900, 900, 900, 400), Some(process(400, 400)));
        assert_eq!(moved(900, 900, 900, 2000), Some(process(2000, 2000)));
        assert_eq!(moved(100, 900, 900, 400), Some(process(100, 400)));
        assert_eq!(moved(50, 60, 900, 2000), None, "it gave more up itself");
        assert_eq!(moved(900, 900, 900, 900), None);
        // Root inside lowered the guest's own limit to hide what was before.
        assert_eq!(moved(900, 900, 10, 400), Some(process(400, 400)));
        assert_eq!(
            open_files(&process(1, 900)).expect("a good image"),
            Some(900)
        );
        assert!(with_open_files(b"nonsense", 1, 1).is_err());
    }

    #[test]
    fn shared_segments_have_the_limit_in_force_unless_some_are_there() {
        let settings = |pages| image(IPC_VAR_MAGIC, &numbers(&[(6, 1), (7, pages), (8, 4096)]));
        let moved =
            |pages, in_use| with_segment_pages(&settings(100), pages, in_use).expect("good");
        assert_eq!(moved(50, false), Some(settings(50)));
        assert_eq!(moved(500, true), Some(settings(500)));
        assert_eq!(moved(50, true), None);
    }
}
