//! Terminals that a process opened as `/dev/tty`.
//!
//! Such a descriptor is one of the terminal itself; only its name is another, and that name cannot be
//! opened while a session is being put together again. The dump takes it for what it is (see
//! `preload/owner.rs`), so all that is left to do is to open it by the terminal's own name.

use std::collections::HashMap;

use super::wire::{self, Field, Value, parse};
use super::{COMMON_MAGIC, FILES_MAGIC, ImageError, body_of, edit, messages, number};

const REGULAR: u32 = 3;
const TERMINAL: u32 = 19;
const NAME: &[u8] = b"/dev/tty";
/// Terminals have lower numbers; from here on CRIU numbers consoles and the like.
const PTY_INDEX_END: u64 = 1000;

mod file {
    pub const ID: u32 = 1;
    pub const NAME: u32 = 6;
    pub const SIZE: u32 = 8;
    pub const MODE: u32 = 10;
}

mod entry {
    pub const INFO: u32 = 2;
    pub const FILE: u32 = 6;
}

/// A files image in which no terminal is opened as `/dev/tty`. `None`: none was.
pub fn with_terminals_by_name(image: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
    let mut terminals = HashMap::new();
    for message in messages(body_of(image, COMMON_MAGIC, FILES_MAGIC)?)? {
        for held in entries(&parse(message)?, TERMINAL)? {
            let info = number(&held, entry::INFO);
            // An odd number is a terminal's other end.
            let (index, is_master) = (info >> 1, info & 1 == 1);
            if !is_master && index < PTY_INDEX_END {
                terminals.insert(number(&held, entry::FILE), index);
            }
        }
    }
    let mut changed = false;
    let edited = edit(image, FILES_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == REGULAR) {
            let Value::Bytes(entry) = &field.value else {
                return Err(ImageError("a file has an odd shape"));
            };
            let mut entry = parse(entry)?;
            if let Some(index) = terminals.get(&number(&entry, file::ID))
                && rename(&mut entry, *index)
            {
                field.value = Value::Bytes(wire::write(&entry));
                changed = true;
            }
        }
        Ok(())
    })?;
    Ok(changed.then_some(edited))
}

fn entries(fields: &[Field], tag: u32) -> Result<Vec<Vec<Field>>, ImageError> {
    fields
        .iter()
        .filter(|field| field.tag == tag)
        .map(|field| match &field.value {
            Value::Bytes(entry) => parse(entry),
            _ => Err(ImageError("a file has an odd shape")),
        })
        .collect()
}

fn rename(entry: &mut Vec<Field>, index: u64) -> bool {
    let name = entry
        .iter_mut()
        .find(|field| field.tag == file::NAME && field.value == Value::Bytes(NAME.to_vec()));
    let Some(name) = name else {
        return false;
    };
    name.value = Value::Bytes(format!("/dev/pts/{index}").into_bytes());
    // Those of the other name; CRIU would compare them.
    entry.retain(|field| field.tag != file::SIZE && field.tag != file::MODE);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_field(tag: u32, value: u64) -> Field {
        let value = Value::Varint(value);
        Field { tag, value }
    }

    fn bytes_field(tag: u32, value: &[u8]) -> Field {
        let value = Value::Bytes(value.to_vec());
        Field { tag, value }
    }

    fn opened(name: &[u8], info: u64) -> Vec<u8> {
        let regular = [
            number_field(file::ID, 7),
            bytes_field(file::NAME, name),
            number_field(file::SIZE, 0),
            number_field(file::MODE, 0o20666),
        ];
        let terminal = [
            number_field(1, 8),
            number_field(entry::INFO, info),
            number_field(entry::FILE, 7),
        ];
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend_from_slice(&FILES_MAGIC.to_le_bytes());
        for (tag, entry) in [
            (REGULAR, regular.as_slice()),
            (TERMINAL, terminal.as_slice()),
        ] {
            let message = wire::write(&[bytes_field(tag, &wire::write(entry))]);
            image.extend_from_slice(&(message.len() as u32).to_le_bytes());
            image.extend_from_slice(&message);
        }
        image
    }

    #[test]
    fn a_terminal_opened_as_dev_tty_is_opened_by_its_own_name() {
        let changed = with_terminals_by_name(&opened(b"/dev/tty", 12 << 1))
            .expect("a good image")
            .expect("it changes");
        let text = String::from_utf8_lossy(&changed).into_owned();
        assert!(text.contains("/dev/pts/12") && !text.contains("/dev/tty"));
        let same = with_terminals_by_name(&changed).expect("a good image");
        assert!(same.is_none());
    }

    #[test]
    fn other_files_and_other_ends_stay_as_they_are() {
        for kept in [
            opened(b"/dev/pts/12", 12 << 1),
            opened(b"/dev/ptmx", (12 << 1) + 1),
            opened(b"/dev/tty", (12 << 1) + 1),
            opened(b"/dev/tty", 1006 << 1),
        ] {
            let same = with_terminals_by_name(&kept).expect("a good image");
            assert!(same.is_none());
        }
        assert!(with_terminals_by_name(b"nonsense").is_err());
    }
}
