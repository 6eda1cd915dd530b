//! The program's answers as frames, and their decoders. A program that reads hostile bytes may have been
//! taken over, so a decoder takes exactly what its encoder writes and nothing else.

/// Characters of a log line that are kept for the operator.
pub const QUOTE_MAX: usize = 300;
/// All changed images together; what carries them on takes no more.
pub const REPLACEMENTS_MAX: usize = 64 << 20;
/// Images that may be changed: one for each thread, and a few.
const REPLACEMENT_COUNT_MAX: usize = 100_000;
const NAME_MAX: usize = 64;

/// An answer that no encoder of ours makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the parser sent an invalid answer")]
pub struct BadAnswer;

/// Why CRIU could not capture or restore a process. What callers see comes from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    Traced = 0,
    ControllingTerminal = 1,
    IoUring = 2,
    Userfaultfd = 3,
    PidNamespace = 4,
    UserNamespace = 5,
    OutsideSocket = 6,
    MessageQueue = 7,
    FileKind = 8,
    DeletedFile = 9,
    SocketKind = 10,
    MissingFile = 11,
    InFlight = 12,
    /// Something that is not on this list; the log has it.
    Other = 13,
}

impl Reason {
    pub const ALL: [Self; 14] = [
        Self::Traced,
        Self::ControllingTerminal,
        Self::IoUring,
        Self::Userfaultfd,
        Self::PidNamespace,
        Self::UserNamespace,
        Self::OutsideSocket,
        Self::MessageQueue,
        Self::FileKind,
        Self::DeletedFile,
        Self::SocketKind,
        Self::MissingFile,
        Self::InFlight,
        Self::Other,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::Traced => "another process traces it, as a debugger does",
            Self::ControllingTerminal => {
                "it holds /dev/tty open, and that leads to no terminal of the sandbox"
            }
            Self::IoUring => "it uses io_uring",
            Self::Userfaultfd => "it uses userfaultfd",
            Self::PidNamespace => "it made a pid namespace of its own",
            Self::UserNamespace => "it made a user namespace of its own",
            Self::OutsideSocket => "it is connected to something outside the sandbox",
            Self::MessageQueue => "it uses POSIX message queues",
            Self::FileKind => "it has a file open of a kind that cannot be saved",
            Self::DeletedFile => "a deleted file it has open is too large",
            Self::SocketKind => "it has a socket open of a kind that cannot be saved",
            Self::MissingFile => "a file it has open cannot be found or opened again",
            Self::InFlight => "it has in-flight connections or messages, which cannot be saved",
            Self::Other => "criu reported an unknown problem; the host's log has its message",
        }
    }
}

/// What a log of CRIU's says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub reason: Reason,
    /// The process it is about, as the host numbers it, when the log tells. A guest can write into the
    /// log, so this may name any process of the host.
    pub pid: Option<i32>,
    /// The line of the log, escaped. It may tell about the host, so it is for its operator alone.
    pub quote: String,
}

/// `u8 reason, i32 pid or 0, u16 length, quote`; nothing at all when the log names no error.
pub fn encode_finding(finding: Option<&Finding>) -> Vec<u8> {
    let Some(finding) = finding else {
        return Vec::new();
    };
    let mut quote = finding.quote.clone();
    quote.retain(|c| c.is_ascii_graphic() || c == ' ');
    quote.truncate(QUOTE_MAX);
    let mut frame = vec![finding.reason as u8];
    frame.extend_from_slice(&finding.pid.unwrap_or(0).to_le_bytes());
    frame.extend_from_slice(&(quote.len() as u16).to_le_bytes());
    frame.extend_from_slice(quote.as_bytes());
    frame
}

pub const FINDING_MAX: usize = 1 + 4 + 2 + QUOTE_MAX;

pub fn decode_finding(frame: &[u8]) -> Result<Option<Finding>, BadAnswer> {
    if frame.is_empty() {
        return Ok(None);
    }
    let (&[reason], rest) = frame.split_first_chunk().ok_or(BadAnswer)?;
    let (pid, rest) = rest.split_first_chunk().ok_or(BadAnswer)?;
    let (length, quote) = rest.split_first_chunk().ok_or(BadAnswer)?;
    let reason = Reason::ALL.into_iter().find(|known| *known as u8 == reason);
    let plain = quote.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
    if usize::from(u16::from_le_bytes(*length)) != quote.len() || quote.len() > QUOTE_MAX || !plain
    {
        return Err(BadAnswer);
    }
    let pid = i32::from_le_bytes(*pid);
    if pid < 0 {
        return Err(BadAnswer);
    }
    Ok(Some(Finding {
        reason: reason.ok_or(BadAnswer)?,
        pid: (pid > 0).then_some(pid),
        quote: quote.iter().map(|b| char::from(*b)).collect(),
    }))
}

/// Who signed a snapshot's file, and with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub key: [u8; 32],
    pub signature: [u8; 64],
}

/// The length of an answer about a signature: whether there is one that could be any, key, signature.
pub const SIGNATURE_BYTES: usize = 1 + 32 + 64;

pub fn encode_signature(signature: Option<&Signature>) -> Vec<u8> {
    let mut frame = vec![u8::from(signature.is_some())];
    match signature {
        Some(signature) => {
            frame.extend_from_slice(&signature.key);
            frame.extend_from_slice(&signature.signature);
        }
        None => frame.resize(SIGNATURE_BYTES, 0),
    }
    frame
}

pub fn decode_signature(frame: &[u8]) -> Result<Option<Signature>, BadAnswer> {
    let frame: &[u8; SIGNATURE_BYTES] = frame.try_into().map_err(|_| BadAnswer)?;
    let (&[there], rest) = frame.split_first_chunk().ok_or(BadAnswer)?;
    let (key, signature) = rest.split_first_chunk().ok_or(BadAnswer)?;
    match there {
        0 if rest.iter().all(|byte| *byte == 0) => Ok(None),
        1 => Ok(Some(Signature {
            key: *key,
            signature: signature.try_into().map_err(|_| BadAnswer)?,
        })),
        _ => Err(BadAnswer),
    }
}

/// An image that takes the place of a captured one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub name: String,
    pub content: Vec<u8>,
}

/// `u8 length, name, u32 length, content` for each, then a 0.
pub fn put_replacement(name: &str, content: &[u8], frames: &mut Vec<u8>) {
    frames.push(name.len() as u8);
    frames.extend_from_slice(name.as_bytes());
    frames.extend_from_slice(&(content.len() as u32).to_le_bytes());
    frames.extend_from_slice(content);
}

pub fn end_replacements(frames: &mut Vec<u8>) {
    frames.push(0);
}

pub fn decode_replacements(mut frames: &[u8]) -> Result<Vec<Replacement>, BadAnswer> {
    if frames.len() > REPLACEMENTS_MAX {
        return Err(BadAnswer);
    }
    let mut all: Vec<Replacement> = Vec::new();
    let mut names = std::collections::HashSet::new();
    loop {
        let (&length, rest) = frames.split_first().ok_or(BadAnswer)?;
        if length == 0 {
            return if rest.is_empty() {
                Ok(all)
            } else {
                Err(BadAnswer)
            };
        }
        let (name, rest) = rest.split_at_checked(length.into()).ok_or(BadAnswer)?;
        let (size, rest) = rest.split_first_chunk().ok_or(BadAnswer)?;
        let size = u32::from_le_bytes(*size) as usize;
        let (content, rest) = rest.split_at_checked(size).ok_or(BadAnswer)?;
        let name = std::str::from_utf8(name).map_err(|_| BadAnswer)?;
        let harmless = name.len() <= NAME_MAX && crate::is_memory_name(name.as_bytes());
        let known = !editable(name).is_empty();
        if !harmless || !known || !names.insert(name) || all.len() >= REPLACEMENT_COUNT_MAX {
            return Err(BadAnswer);
        }
        all.push(Replacement {
            name: name.to_owned(),
            content: content.to_vec(),
        });
        frames = rest;
    }
}

/// Which of the images that may have to be changed this is; nothing for all others.
pub fn editable(name: &str) -> &str {
    const KINDS: [&str; 5] = ["userns", "utsns", "core", "ipcns-var", "files.img"];
    KINDS
        .into_iter()
        .find(|kind| {
            let rest = name.strip_prefix(kind);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of the same numbers each time.
    fn numbers() -> impl FnMut() -> u64 {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        }
    }

    /// Feeds random bytes and damaged copies of good frames; what is accepted must be what the encoder
    /// makes of it.
    fn only_canonical<T>(
        good: &[Vec<u8>],
        decode: impl Fn(&[u8]) -> Result<T, BadAnswer>,
        encode: impl Fn(&T) -> Vec<u8>,
    ) {
        let mut random = numbers();
        for frame in good {
            let decoded = decode(frame).expect("a good frame");
            assert_eq!(encode(&decoded), *frame);
            for length in 0..frame.len() {
                if let Ok(decoded) = decode(&frame[..length]) {
                    assert_eq!(encode(&decoded), frame[..length], "cut at {length}");
                }
            }
        }
        for round in 0..50_000_usize {
            let mut frame: Vec<u8> = match round % 3 {
                0 => (0..random() % 120).map(|_| random() as u8).collect(),
                _ => good[round % good.len()].clone(),
            };
            for _ in 0..random() % 4 {
                if frame.is_empty() {
                    break;
                }
                let at = (random() % frame.len() as u64) as usize;
                match random() % 3 {
                    0 => frame.truncate(at),
                    1 => frame[at] = random() as u8,
                    _ => frame.insert(at, random() as u8),
                }
            }
            if let Ok(decoded) = decode(&frame) {
                assert_eq!(encode(&decoded), frame, "round {round}");
            }
        }
    }

    #[test]
    fn findings_are_accepted_only_as_they_are_written() {
        let finding = |reason, pid, quote: &str| {
            encode_finding(Some(&Finding {
                reason,
                pid,
                quote: quote.to_owned(),
            }))
        };
        let good = [
            encode_finding(None),
            finding(Reason::Traced, Some(42), "Error (x.c:1): traced"),
            finding(Reason::Other, None, ""),
            finding(Reason::FileKind, Some(i32::MAX), &"x".repeat(QUOTE_MAX)),
        ];
        only_canonical(&good, decode_finding, |finding| {
            encode_finding(finding.as_ref())
        });
        assert!(good.iter().all(|frame| frame.len() <= FINDING_MAX));
        let mut control = finding(Reason::Other, None, "a line");
        *control.last_mut().expect("it has a quote") = 0x1b;
        assert_eq!(decode_finding(&control), Err(BadAnswer));
    }

    #[test]
    fn signatures_are_accepted_only_as_they_are_written() {
        let signature = Signature {
            key: [7; 32],
            signature: [9; 64],
        };
        let good = [encode_signature(Some(&signature)), encode_signature(None)];
        only_canonical(&good, decode_signature, |signature| {
            encode_signature(signature.as_ref())
        });
    }

    #[test]
    fn replacements_have_known_names_once_each() {
        let frames = |list: &[(&str, &[u8])]| {
            let mut frames = Vec::new();
            for (name, content) in list {
                put_replacement(name, content, &mut frames);
            }
            end_replacements(&mut frames);
            frames
        };
        let good = [
            frames(&[]),
            frames(&[("core-1.img", b"one"), ("files.img", b"")]),
            frames(&[("userns-13.img", &[1; 300])]),
        ];
        only_canonical(&good, decode_replacements, |list| {
            let list: Vec<(&str, &[u8])> = list
                .iter()
                .map(|one| (one.name.as_str(), one.content.as_slice()))
                .collect();
            frames(&list)
        });
        for bad in [
            frames(&[("pages-1.img", b"x")]),
            frames(&[("core-../../x", b"x")]),
            frames(&[("core-1.img", b"x"), ("core-1.img", b"y")]),
            frames(&[(&format!("core-{}", "1".repeat(NAME_MAX)), b"x")]),
        ] {
            assert_eq!(decode_replacements(&bad), Err(BadAnswer));
        }
    }

    #[test]
    fn images_that_may_change_are_known_by_their_names() {
        for (name, wanted) in [
            ("userns-13.img", "userns"),
            ("core-1.img", "core"),
            ("files.img", "files.img"),
            ("ipcns-var-11.img", "ipcns-var"),
            ("ipcns-shm-11.img", ""),
            ("corex-1.img", ""),
            ("pages-1.img", ""),
        ] {
            assert_eq!(editable(name), wanted, "{name}");
        }
    }
}
