//! Files of volumes that captured processes have open: others may have put links in their places meanwhile, which a
//! restore would follow. Nothing is captured with such a file; what has one all the same is not restored.

use super::wire::{Value, parse};
use super::{FILES_MAGIC, ImageError, edit};

/// A regular file, or a directory, among the kinds of files.
const REGULAR: u32 = 3;
const NAME: u32 = 6;

/// Refuses a files image that names a file at or below these directories.
pub fn refuse_files_below(image: &[u8], directories: &[String]) -> Result<(), ImageError> {
    if directories.is_empty() {
        return Ok(());
    }
    edit(image, FILES_MAGIC, |fields| {
        for field in fields.iter().filter(|field| field.tag == REGULAR) {
            let Value::Bytes(file) = &field.value else {
                return Err(ImageError("a file has an odd shape"));
            };
            let file = parse(file)?;
            let is_below = file.iter().any(|part| match &part.value {
                Value::Bytes(name) => part.tag == NAME && lies_below(name, directories),
                _ => false,
            });
            if is_below {
                return Err(ImageError("a file of a volume is open"));
            }
        }
        Ok(())
    })
    .map(drop)
}

fn lies_below(name: &[u8], directories: &[String]) -> bool {
    // Written with or without the first slash.
    let name = name.strip_prefix(b"/").unwrap_or(name);
    directories.iter().any(|directory| {
        let directory = directory.as_bytes();
        let directory = directory.strip_prefix(b"/").unwrap_or(directory);
        let rest = name.strip_prefix(directory);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::COMMON_MAGIC;
    use super::super::wire::{self, Field};
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
    fn no_file_of_a_volume_is_opened_by_a_restore() {
        let volumes = ["/data".to_owned(), "/srv/deep".to_owned()];
        for inside in ["/data/log", "data/log", "/data", "/srv/deep/a/b"] {
            refuse_files_below(&image(inside), &volumes).expect_err(inside);
        }
        for outside in ["/database/log", "/srv/log", "/root/data/log", "/srv"] {
            refuse_files_below(&image(outside), &volumes).expect(outside);
        }
        refuse_files_below(&image("/data/x"), &[]).expect("no volumes");
        refuse_files_below(b"nonsense", &volumes).expect_err("no image");
    }
}
