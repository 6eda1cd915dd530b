//! Reads the name out of the first thing a TLS client says.
//!
//! Only the hello is parsed, with limits, and nothing of it is changed. An encrypted hello looks the
//! same as the noise that clients send to keep servers used to it, so the outer name decides: it is
//! the one the connection is dialled by.

use cove_model::network::{Name, NameError};

/// A hello with keys for tomorrow's cryptography has under 4 KiB.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;
/// What the hello may take with the headers of the records it is cut into.
pub const BUFFER_BYTES_MAX: usize = 2 * HELLO_BYTES_MAX;

const RECORD_HANDSHAKE: u8 = 22;
const RECORD_BYTES_MAX: usize = 16 * 1024;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ENCRYPTED_HELLO: u16 = 0xfe0d;
const NAME_TYPE_HOST: u8 = 0;
/// More extensions than any client has.
const EXTENSIONS_MAX: usize = 128;

/// The fatal alert `access_denied`, in a record of its own.
pub const ALERT_DENIED: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

#[derive(Debug, PartialEq, Eq)]
pub struct Hello {
    pub name: Name,
    /// It carries an encrypted hello, or noise that looks like one.
    pub encrypted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("not TLS")]
    NotTls,
    #[error("the TLS hello is too long")]
    Long,
    #[error("the TLS hello is malformed")]
    Malformed,
    #[error("the TLS hello names no host")]
    NoName,
    #[error("the TLS hello names no valid host: {0}")]
    BadName(NameError),
}

/// `Ok(None)`: more bytes are needed.
pub fn hello(buffer: &[u8]) -> Result<Option<Hello>, Refused> {
    let Some(message) = handshake(buffer)? else {
        return Ok(None);
    };
    parse(&message).map(Some)
}

/// The hello's body, put together from as many records as it was cut into.
fn handshake(buffer: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    let mut message = Vec::new();
    let mut rest = buffer;
    loop {
        if let Some(&kind) = rest.first()
            && kind != RECORD_HANDSHAKE
        {
            return Err(if message.is_empty() {
                Refused::NotTls
            } else {
                Refused::Malformed
            });
        }
        if rest.get(1).is_some_and(|&major| major != 3) {
            return Err(Refused::NotTls);
        }
        let Some((header, after)) = rest.split_first_chunk::<5>() else {
            return short(buffer);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        let have = after.len().min(length);
        message.extend_from_slice(&after[..have]);
        if message.first().is_some_and(|&kind| kind != CLIENT_HELLO) {
            return Err(Refused::NotTls);
        }
        if let Some(header) = message.first_chunk::<4>() {
            let wanted =
                usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
            if wanted > HELLO_BYTES_MAX {
                return Err(Refused::Long);
            }
            if message.len() >= 4 + wanted {
                return Ok(Some(message[4..4 + wanted].to_vec()));
            }
        }
        if have < length {
            return short(buffer);
        }
        rest = &after[length..];
    }
}

fn short(buffer: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
    if buffer.len() >= BUFFER_BYTES_MAX {
        Err(Refused::Long)
    } else {
        Ok(None)
    }
}

/// A reader over the hello's nested lists.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Refused> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Refused::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, bytes: usize) -> Result<usize, Refused> {
        let taken = self.take(bytes)?;
        Ok(taken.iter().fold(0, |sum, &b| sum << 8 | usize::from(b)))
    }

    /// What follows a length of that many bytes.
    fn list(&mut self, length_bytes: usize) -> Result<Fields<'a>, Refused> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Fields)
    }

    fn end(&self) -> Result<(), Refused> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Refused::Malformed)
        }
    }
}

fn parse(message: &[u8]) -> Result<Hello, Refused> {
    let mut fields = Fields(message);
    // Version and random.
    fields.take(2 + 32)?;
    // Session, cipher suites, compression methods.
    fields.list(1)?;
    fields.list(2)?;
    fields.list(1)?;
    if fields.0.is_empty() {
        return Err(Refused::NoName);
    }
    let mut extensions = fields.list(2)?;
    fields.end()?;
    let mut name = None;
    let mut encrypted = false;
    for count in 0.. {
        if extensions.0.is_empty() {
            break;
        }
        if count == EXTENSIONS_MAX {
            return Err(Refused::Malformed);
        }
        let kind = extensions.number(2)?;
        let body = extensions.list(2)?;
        if kind == usize::from(EXTENSION_SERVER_NAME) {
            if name.is_some() {
                return Err(Refused::Malformed);
            }
            name = Some(server_name(body)?);
        } else if kind == usize::from(EXTENSION_ENCRYPTED_HELLO) {
            encrypted = true;
        }
    }
    let name = name.ok_or(Refused::NoName)?;
    Ok(Hello { name, encrypted })
}

/// Exactly one name: a list of several would let client and server pick different ones.
fn server_name(mut body: Fields<'_>) -> Result<Name, Refused> {
    let mut list = body.list(2)?;
    body.end()?;
    if list.number(1)? != usize::from(NAME_TYPE_HOST) {
        return Err(Refused::Malformed);
    }
    let name = list.list(2)?;
    list.end()?;
    Name::from_ascii(name.0).map_err(Refused::BadName)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(length_bytes: usize, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&length[4 - length_bytes..], body].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &list(2, body)].concat()
    }

    pub fn names(names: &[&[u8]]) -> Vec<u8> {
        let entries: Vec<u8> = names
            .iter()
            .flat_map(|name| [&[NAME_TYPE_HOST][..], &list(2, name)].concat())
            .collect();
        extension(EXTENSION_SERVER_NAME, &list(2, &entries))
    }

    /// A hello with these extensions, cut into records of that many bytes.
    pub fn client_hello(extensions: &[Vec<u8>], record_bytes: usize) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[7; 32],
            &list(1, &[]),
            &list(2, &[0x13, 0x01]),
            &list(1, &[0]),
            &list(2, &extensions.concat()),
        ]
        .concat();
        let message = [&[CLIENT_HELLO][..], &list(3, &body)].concat();
        message
            .chunks(record_bytes)
            .flat_map(|part| [&[RECORD_HANDSHAKE, 3, 1][..], &list(2, part)].concat())
            .collect()
    }

    #[test]
    fn the_name_is_found_however_the_hello_is_cut() {
        for record_bytes in [1, 2, 7, 50, 16_000] {
            let bytes = client_hello(&[names(&[b"Example.com"])], record_bytes);
            for cut in 0..bytes.len() {
                assert_eq!(hello(&bytes[..cut]), Ok(None), "{record_bytes} {cut}");
            }
            let found = hello(&bytes).unwrap().unwrap();
            assert_eq!(found.name.as_str(), "example.com");
            assert!(!found.encrypted);
        }
    }

    #[test]
    fn an_encrypted_hello_is_noticed_and_its_outer_name_counts() {
        let noise = extension(EXTENSION_ENCRYPTED_HELLO, &[0; 200]);
        let bytes = client_hello(&[noise, names(&[b"outer.example"])], 16_000);
        let found = hello(&bytes).unwrap().unwrap();
        assert_eq!(found.name.as_str(), "outer.example");
        assert!(found.encrypted);
    }

    #[test]
    fn hellos_that_could_be_read_in_two_ways_are_refused() {
        let one = names(&[b"a.example"]);
        for (extensions, expected) in [
            (vec![], Refused::NoName),
            (vec![one.clone(), one.clone()], Refused::Malformed),
            (
                vec![names(&[b"a.example", b"b.example"])],
                Refused::Malformed,
            ),
            (vec![names(&[])], Refused::Malformed),
        ] {
            assert_eq!(hello(&client_hello(&extensions, 16_000)), Err(expected));
        }
        for name in [
            &b"a\0.example"[..],
            b"",
            b"1.2.3.4",
            b"a..example",
            b"[::1]",
            b"0x7f.1",
            b"b\xfccher.example",
        ] {
            let bytes = client_hello(&[names(&[name])], 16_000);
            assert!(
                matches!(hello(&bytes), Err(Refused::BadName(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn what_is_not_tls_is_told_at_once() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            b"\x80\x2e\x01",
            &[22, 2],
            &[22, 3, 1, 0, 5, 2],
        ] {
            assert_eq!(hello(bytes), Err(Refused::NotTls), "{bytes:?}");
        }
        let endless = [22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
        assert_eq!(hello(&endless), Err(Refused::Long));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = hello(&bytes);
            let mut record = vec![RECORD_HANDSHAKE, 3, 1, 8, 0, CLIENT_HELLO, 0, 4, 0];
            record.extend(&bytes);
            let _ = hello(&record);
        }

        #[test]
        fn a_damaged_hello_never_names_what_it_did_not(at in 0usize..400, to in any::<u8>()) {
            let mut bytes = client_hello(&[names(&[b"allowed.example"]), extension(43, &[0; 100])], 40);
            let at = at % bytes.len();
            bytes[at] = to;
            if let Ok(Some(found)) = hello(&bytes) {
                prop_assert!(found.name.as_str().len() <= 253);
            }
        }

        #[test]
        fn no_buffer_waits_for_ever(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut buffer = client_hello(&[names(&[b"a.example"])], 1);
            buffer.truncate(20);
            while buffer.len() < BUFFER_BYTES_MAX {
                buffer.extend([RECORD_HANDSHAKE, 3, 1, 0, 1, 0]);
                buffer.extend(&bytes);
            }
            prop_assert!(hello(&buffer) != Ok(None));
        }
    }
}
