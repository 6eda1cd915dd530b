//! Names in a directory, as programs and as people read them.

use std::fs::{self, Metadata, ReadDir};
use std::io;
use std::iter::Peekable;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::attributes::Attributes;
use crate::account::Databases;

/// Names sent at once, and their bytes together: both well below what fits a packet.
const AT_ONCE: usize = 128;
const BYTES_AT_ONCE: usize = 64 * 1024;
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAY_S: i64 = 86_400;

pub struct Entry {
    pub name: Vec<u8>,
    /// The line `ls -l` would show.
    pub long: Vec<u8>,
    pub attributes: Attributes,
}

/// Names of users and groups, as they were when the session began.
pub struct Owners(Databases);

impl Owners {
    pub fn read() -> Self {
        Self(Databases::read())
    }
}

/// The next few; none at the end. What is gone before it could be looked at is left out.
pub fn next_entries(
    directory: &Path,
    entries: &mut Peekable<ReadDir>,
    owners: &Owners,
) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut bytes = 0;
    while found.len() < AT_ONCE && bytes < BYTES_AT_ONCE {
        let Some(entry) = entries.next() else {
            break;
        };
        let name = entry?.file_name();
        let Ok(metadata) = fs::symlink_metadata(directory.join(&name)) else {
            continue;
        };
        let name = name.into_vec();
        let long = long_line(&name, &metadata, owners);
        bytes += name.len() + long.len();
        found.push(Entry {
            name,
            long,
            attributes: (&metadata).into(),
        });
    }
    Ok(found)
}

fn long_line(name: &[u8], metadata: &Metadata, owners: &Owners) -> Vec<u8> {
    let named =
        |known: Option<&str>, number: u32| known.map_or_else(|| number.to_string(), str::to_owned);
    let mut line = format!(
        "{} {:3} {:8} {:8} {:8} {} ",
        letters(metadata.mode()),
        metadata.nlink(),
        named(owners.0.user_name(metadata.uid()), metadata.uid()),
        named(owners.0.group_name(metadata.gid()), metadata.gid()),
        metadata.size(),
        date(metadata.mtime()),
    )
    .into_bytes();
    line.extend_from_slice(name);
    line
}

fn letters(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Day and year, in universal time: a session that lasts must not change its mind about a file.
fn date(seconds: i64) -> String {
    let (year, month, day) = civil(seconds.div_euclid(DAY_S));
    let month = MONTHS[month - 1];
    format!("{month} {day:2}  {year:4}")
}

/// Days since 1970 as a date of the Gregorian calendar, counted in eras of 400 years from a 1 March.
fn civil(days: i64) -> (i64, usize, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_modes_read_as_people_expect() {
        assert_eq!(date(0), "Jan  1  1970");
        assert_eq!(date(951_782_400), "Feb 29  2000");
        assert_eq!(date(-1), "Dec 31  1969");
        assert_eq!(letters(0o100_644), "-rw-r--r--");
        assert_eq!(letters(0o041_777), "drwxrwxrwt");
        assert_eq!(letters(0o104_751), "-rwsr-x--x");
    }
}
