//! PAX records (`length key=value\n`) and what they override in the header that follows.

use super::{Segment, Time};
use crate::limits::UnpackLimits;
use crate::report::{Failure, Limit};

#[derive(Debug, Clone, Default)]
pub(super) struct Extension {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub mtime: Option<Time>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub sparse: Sparse,
}

/// `GNU.sparse.*`, formats 0.0, 0.1 and 1.0.
#[derive(Debug, Clone, Default)]
pub(super) struct Sparse {
    pub major: Option<u64>,
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    pub map: Vec<Segment>,
    offset: Option<u64>,
}

impl Sparse {
    pub fn is_present(&self) -> bool {
        self.major.is_some() || self.real_size.is_some()
    }
}

impl Extension {
    /// This entry's records, with those that hold for the whole archive filling the gaps.
    pub fn over(self, global: &Self) -> Self {
        Self {
            path: self.path.or_else(|| global.path.clone()),
            link: self.link.or_else(|| global.link.clone()),
            size: self.size.or(global.size),
            uid: self.uid.or(global.uid),
            gid: self.gid.or(global.gid),
            mtime: self.mtime.or(global.mtime),
            xattrs: if self.xattrs.is_empty() {
                global.xattrs.clone()
            } else {
                self.xattrs
            },
            sparse: self.sparse,
        }
    }

    pub fn read_records(&mut self, mut body: &[u8], limits: &UnpackLimits) -> Result<(), Failure> {
        while !body.is_empty() {
            // Some writers pad the last record with NULs.
            if body[0] == 0 {
                return Ok(());
            }
            let (key, value, rest) = record(body)?;
            self.take(key, value, limits)?;
            body = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8], limits: &UnpackLimits) -> Result<(), Failure> {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            let name = unescape(name);
            self.xattrs.retain(|(known, _)| *known != name);
            self.xattrs.push((name, value.to_vec()));
            let total: usize = self
                .xattrs
                .iter()
                .map(|(name, value)| name.len() + value.len())
                .sum();
            if total > limits.xattr_bytes {
                return Err(Failure::limit(Limit::XattrBytes, limits.xattr_bytes as u64));
            }
            return Ok(());
        }
        // An empty value takes an override back.
        let given = !value.is_empty();
        let decimal = || {
            if given {
                number(value).map(Some)
            } else {
                Ok(None)
            }
        };
        match key {
            b"path" => self.path = given.then(|| value.to_vec()),
            b"linkpath" => self.link = given.then(|| value.to_vec()),
            b"size" => self.size = decimal()?,
            b"uid" => self.uid = decimal()?,
            b"gid" => self.gid = decimal()?,
            b"mtime" => self.mtime = if given { Some(time(value)?) } else { None },
            b"GNU.sparse.major" => self.sparse.major = Some(number(value)?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => {
                self.sparse.real_size = Some(number(value)?);
            }
            b"GNU.sparse.offset" => self.sparse.offset = Some(number(value)?),
            b"GNU.sparse.numbytes" => {
                let offset = self.sparse.offset.take().ok_or_else(bad)?;
                self.add_segment(offset, number(value)?, limits)?;
            }
            b"GNU.sparse.map" => {
                self.sparse.map.clear();
                let mut numbers = value.split(|byte| *byte == b',');
                while let Some(offset) = numbers.next().filter(|text| !text.is_empty()) {
                    let length = numbers.next().ok_or_else(bad)?;
                    self.add_segment(number(offset)?, number(length)?, limits)?;
                }
            }
            // Names, access times and comments have no place in an image.
            _ => {}
        }
        Ok(())
    }

    fn add_segment(
        &mut self,
        offset: u64,
        length: u64,
        limits: &UnpackLimits,
    ) -> Result<(), Failure> {
        if self.sparse.map.len() >= limits.sparse_segments {
            return Err(Failure::limit(
                Limit::SparseSegments,
                limits.sparse_segments as u64,
            ));
        }
        self.sparse.map.push(Segment { offset, length });
        Ok(())
    }
}

/// Key, value and what follows the record.
type Record<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn record(body: &[u8]) -> Result<Record<'_>, Failure> {
    let space = body
        .iter()
        .take(20)
        .position(|byte| *byte == b' ')
        .ok_or_else(bad)?;
    let length = usize::try_from(number(&body[..space])?).map_err(|_| bad())?;
    if length > body.len() || length < space + 3 || body[length - 1] != b'\n' {
        return Err(bad());
    }
    let pair = &body[space + 1..length - 1];
    let equals = pair.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
    Ok((&pair[..equals], &pair[equals + 1..], &body[length..]))
}

pub(super) fn number(text: &[u8]) -> Result<u64, Failure> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(bad)
}

/// Seconds with an optional fraction, possibly before 1970.
fn time(text: &[u8]) -> Result<Time, Failure> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = match text.iter().position(|byte| *byte == b'.') {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let seconds = i64::try_from(number(whole)?).map_err(|_| bad())?;
    let mut nanoseconds = 0;
    for index in 0..9 {
        let digit = match fraction.get(index) {
            None => b'0',
            Some(digit) if digit.is_ascii_digit() => *digit,
            Some(_) => return Err(bad()),
        };
        nanoseconds = nanoseconds * 10 + u32::from(digit - b'0');
    }
    if !negative {
        return Ok(Time {
            seconds,
            nanoseconds,
        });
    }
    if nanoseconds == 0 {
        return Ok(Time {
            seconds: -seconds,
            nanoseconds,
        });
    }
    Ok(Time {
        seconds: -seconds - 1,
        nanoseconds: 1_000_000_000 - nanoseconds,
    })
}

/// GNU tar writes `=` and `%` in attribute names as `%3D` and `%25`.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"%3D") {
            plain.push(b'=');
            rest = tail;
        } else if let Some(tail) = rest.strip_prefix(b"%25") {
            plain.push(b'%');
            rest = tail;
        } else {
            plain.push(*first);
            rest = tail;
        }
    }
    plain
}

fn bad() -> Failure {
    Failure::BadHeader {
        reason: "a PAX record is unreadable".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_their_fraction_also_before_1970() {
        assert_eq!(
            time(b"12.5").unwrap(),
            Time {
                seconds: 12,
                nanoseconds: 500_000_000
            }
        );
        assert_eq!(
            time(b"-1.25").unwrap(),
            Time {
                seconds: -2,
                nanoseconds: 750_000_000
            }
        );
        assert_eq!(
            time(b"7").unwrap(),
            Time {
                seconds: 7,
                nanoseconds: 0
            }
        );
        assert!(time(b"1.x").is_err());
        assert!(time(b"").is_err());
    }

    #[test]
    fn a_record_must_be_as_long_as_it_says() {
        let limits = UnpackLimits::default();
        let mut extension = Extension::default();
        extension.read_records(b"11 path=ab\n", &limits).unwrap();
        assert_eq!(extension.path.as_deref(), Some(&b"ab"[..]));
        for broken in [
            &b"12 path=ab\n"[..],
            b"10 path=ab\n",
            b"99999999999999999999 a=b\n",
            b"2 \n",
            b"x",
        ] {
            assert!(Extension::default().read_records(broken, &limits).is_err());
        }
    }

    #[test]
    fn escaped_attribute_names_are_restored() {
        assert_eq!(unescape(b"user.a%3Db%25c%"), b"user.a=b%c%");
    }
}
