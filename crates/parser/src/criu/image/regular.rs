//! Files of volumes that captured processes have open. Others write to them meanwhile, so that a restore must not
//! insist on the sizes that they had.

use super::wire::{self, Value, parse};
use super::{FILES_MAGIC, ImageError, edit};

/// A regular file among the kinds of files.
const REGULAR: u32 = 3;
const NAME: u32 = 6;
const SIZE: u32 = 8;

/// A files image that says nothing of the sizes of files below these directories. `None`: there are none.
pub fn without_sizes_below(
    image: &[u8],
    directories: &[String],
) -> Result<Option<Vec<u8>>, ImageError> {
    if directories.is_empty() {
        return Ok(None);
    }
    let mut changed = false;
    let edited = edit(image, FILES_MAGIC, |fields| {
        for field in fields.iter_mut().filter(|field| field.tag == REGULAR) {
            let Value::Bytes(file) = &field.value else {
                return Err(ImageError("a file has an odd shape"));
            };
            let mut file = parse(file)?;
            let is_below = file.iter().any(|part| match &part.value {
                Value::Bytes(name) => part.tag == NAME && lies_below(name, directories),
                _ => false,
            });
            if is_below && file.iter().any(|part| part.tag == SIZE) {
                file.retain(|part| part.tag != SIZE);
                field.value = Value::Bytes(wire::write(&file));
                changed = true;
            }
        }
        Ok(())
    })?;
    Ok(changed.then_some(edited))
}

fn lies_below(name: &[u8], directories: &[String]) -> bool {
    // Written with or without the first slash.
    let name = name.strip_prefix(b"/").unwrap_or(name);
    directories.iter().any(|directory| {
        let directory = directory.as_bytes();
        let directory = directory.strip_prefix(b"/").unwrap_or(directory);
        let rest = name.strip_prefix(directory);
        rest.is_some_and(|rest| rest.starts_with(b"/"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::COMMON_MAGIC;
    use super::super::wire::Field;
    use super::*;

    fn image(name: &str) -> Vec<u8> {
        let file = wire::write(&[
            Field {
                tag: 1,
                value: Value::Varint(7),
            },
            Field {
                tag: NAME,
                value: Value::Bytes(name.as_bytes().to_vec()),
            },
            Field {
                tag: SIZE,
                value: Value::Varint(12),
            },
        ]);
        let message = wire::write(&[Field {
            tag: REGULAR,
            value: Value::Bytes(file),
        }]);
        let mut image = COMMON_MAGIC.to_le_bytes().to_vec();
        image.extend_from_slice(&FILES_MAGIC.to_le_bytes());
        image.extend_from_slice(&(message.len() as u32).to_le_bytes());
        image.extend_from_slice(&message);
        image
    }

    #[test]
    fn only_files_of_volumes_lose_their_sizes() {
        let volumes = ["/data".to_owned(), "/srv/deep".to_owned()];
        for inside in ["/data/log", "data/log", "/srv/deep/a/b"] {
            let before = image(inside);
            let after = without_sizes_below(&before, &volumes).expect("a good image");
            let after = after.expect("it changes");
            assert!(after.len() < before.len());
            let again = without_sizes_below(&after, &volumes).expect("a good image");
            assert_eq!(again, None);
        }
        for outside in ["/database/log", "/srv/log", "/root/data/log", "/data"] {
            let kept = without_sizes_below(&image(outside), &volumes).expect("a good image");
            assert_eq!(kept, None, "{outside}");
        }
        assert_eq!(
            without_sizes_below(&image("/data/x"), &[]).expect("good"),
            None
        );
        without_sizes_below(b"nonsense", &volumes).expect_err("no image");
    }
}
