//! The boot id of a sandbox: its own, new at each cold start, the same after a resume, another in a
//! copy. It lies in the sandbox's own tmpfs and so is captured with its memory; beside it lies the id
//! of the sandbox it was made for, by which a restore tells a resume from a copy.

use std::fmt::Write as _;

/// In the sandbox's own tmpfs; shown as /proc/sys/kernel/random/boot_id.
pub const FILE: &str = "proc/boot_id";
pub const OWNER_FILE: &str = "proc/boot_of";

/// A random UUID in the form the kernel writes it.
pub fn random() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(text(bytes))
}

fn text(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(37);
    for (index, byte) in bytes.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_a_random_uuid() {
        assert_eq!(text([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff\n");
        assert_eq!(text([0; 16]), "00000000-0000-4000-8000-000000000000\n");
    }
}
