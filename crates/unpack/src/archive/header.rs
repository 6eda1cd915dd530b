//! One 512-byte tar header block.

use super::BLOCK;
use crate::report::Failure;

pub(super) struct Header {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub mtime: i64,
    pub type_flag: u8,
}

impl Header {
    pub fn parse(block: &[u8; BLOCK]) -> Result<Self, Failure> {
        check_sum(block)?;
        let type_flag = block[156];
        let mut path = text(&block[..100]);
        // The prefix exists in the POSIX format only; GNU keeps other things there.
        if &block[257..263] == b"ustar\0" && block[345] != 0 {
            let mut joined = text(&block[345..500]);
            joined.push(b'/');
            joined.append(&mut path);
            path = joined;
        }
        Ok(Self {
            path,
            link: text(&block[157..257]),
            mode: (unsigned(&block[100..108], "mode")? & 0o7777) as u32,
            uid: unsigned(&block[108..116], "uid")?,
            gid: unsigned(&block[116..124], "gid")?,
            size: unsigned(&block[124..136], "size")?,
            mtime: number(&block[136..148], "mtime")?,
            type_flag,
        })
    }

    /// Link, directory and device entries have no body whatever their size says: some writers
    /// put the linked file's size there.
    pub fn has_body(&self) -> bool {
        !(b'1'..=b'6').contains(&self.type_flag)
    }
}

fn text(field: &[u8]) -> Vec<u8> {
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    field[..end].to_vec()
}

pub(super) fn unsigned(field: &[u8], name: &str) -> Result<u64, Failure> {
    u64::try_from(number(field, name)?).map_err(|_| bad(name))
}

/// Octal digits, or, with the first bit set, a big-endian two's complement number.
fn number(field: &[u8], name: &str) -> Result<i64, Failure> {
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (index, byte) in field.iter().enumerate() {
            let byte = if index == 0 && !negative {
                byte & 0x7f
            } else {
                *byte
            };
            value = value << 8 | i128::from(byte);
        }
        return i64::try_from(value).map_err(|_| bad(name));
    }
    let digits = field.trim_ascii_start();
    let end = digits
        .iter()
        .position(|byte| !(b'0'..=b'7').contains(byte))
        .unwrap_or(digits.len());
    let rest = &digits[end..];
    if !rest.iter().all(|byte| *byte == 0 || *byte == b' ') {
        return Err(bad(name));
    }
    // Twelve octal digits at most, so 36 bits.
    Ok(digits[..end]
        .iter()
        .fold(0, |value, digit| value << 3 | i64::from(digit - b'0')))
}

fn check_sum(block: &[u8; BLOCK]) -> Result<(), Failure> {
    let stored = number(&block[148..156], "checksum")?;
    let mut plain = 0i64;
    let mut signed = 0i64;
    for (index, byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&index) {
            b' '
        } else {
            *byte
        };
        plain += i64::from(byte);
        signed += i64::from(byte as i8);
    }
    // Some old writers summed the bytes as signed numbers.
    if stored == plain || stored == signed {
        Ok(())
    } else {
        Err(bad("checksum"))
    }
}

fn bad(name: &str) -> Failure {
    Failure::BadHeader {
        reason: format!("the field {name} is unreadable"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0", "x").unwrap(), 0o644);
        assert_eq!(number(b"    644 ", "x").unwrap(), 0o644);
        assert_eq!(number(b"\0\0\0\0\0\0\0\0", "x").unwrap(), 0);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 1, 0, 0], "x").unwrap(), 65536);
        assert_eq!(number(&[0xff; 12], "x").unwrap(), -1);
        assert!(number(b"12z\0\0\0\0\0", "x").is_err());
        let mut huge = [0xff; 12];
        huge[0] = 0x80;
        assert!(number(&huge, "x").is_err());
    }
}
