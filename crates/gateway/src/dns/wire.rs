//! Questions and answers as bytes. Everything is read with bounds; compression pointers only ever
//! lead backwards, so no message makes us run in circles.

use std::net::Ipv4Addr;

use cove_model::network::{Name, NameError};

pub const A: u16 = 1;
pub const NS: u16 = 2;
pub const CNAME: u16 = 5;
pub const SOA: u16 = 6;
pub const PTR: u16 = 12;
pub const MX: u16 = 15;
pub const TXT: u16 = 16;
pub const AAAA: u16 = 28;
pub const SRV: u16 = 33;
pub const OPT: u16 = 41;
pub const CAA: u16 = 257;
const CLASS_IN: u16 = 1;

pub const NO_ERROR: u8 = 0;
pub const FORMAT_ERROR: u8 = 1;
pub const SERVER_FAILURE: u8 = 2;
pub const NO_SUCH_NAME: u8 = 3;
pub const NOT_IMPLEMENTED: u8 = 4;
pub const REFUSED: u8 = 5;

/// Extended errors of RFC 8914 that we give.
pub const EDE_OTHER: u16 = 0;
pub const EDE_BLOCKED: u16 = 15;
pub const EDE_PROHIBITED: u16 = 18;
const OPTION_EDE: u16 = 15;

const HEADER_BYTES: usize = 12;
/// A question with an OPT record and its options.
pub const QUERY_BYTES_MAX: usize = 1024;
pub const WIRE_NAME_BYTES_MAX: usize = 255;
/// Records read of one answer.
const RECORDS_MAX: usize = 256;
/// What we tell the host's resolvers that we take over UDP.
pub const UDP_BYTES: u16 = 1232;
/// What fits without EDNS.
pub const UDP_BYTES_PLAIN: u16 = 512;

const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const OPCODE_MASK: u16 = 0x7800;

/// A name as labels with their lengths, lowercase.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WireName(Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    pub recursion_desired: bool,
    /// The question as it came, to be sent back.
    question: Vec<u8>,
    pub name: Result<Name, NameError>,
    /// For the log: the name with everything odd escaped.
    pub shown: String,
    pub kind: u16,
    /// Room for the answer over UDP; present when the question had an OPT record.
    pub edns: Option<u16>,
}

/// Why a question gets no real answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Malformed {
    /// Not even a question: nothing is sent.
    Silence,
    /// A header to answer to.
    Reply { id: u16, code: u8 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answer of the resolver is malformed")]
pub struct BadAnswer;

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.message.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)
            .map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A name, following pointers that lead strictly backwards.
    fn name(&mut self, pointers: bool) -> Option<WireName> {
        let mut name = Vec::new();
        let mut at = self.at;
        let mut after = None;
        let mut limit = self.at;
        loop {
            let length = *self.message.get(at)?;
            match length >> 6 {
                0 => {
                    let end = at + 1 + usize::from(length);
                    let label = self.message.get(at..end)?;
                    name.extend(label.iter().map(u8::to_ascii_lowercase));
                    if name.len() > WIRE_NAME_BYTES_MAX {
                        return None;
                    }
                    at = end;
                    if length == 0 {
                        self.at = after.unwrap_or(at);
                        return Some(WireName(name));
                    }
                }
                3 if pointers => {
                    let low = *self.message.get(at + 1)?;
                    let target = usize::from(length & 0x3f) << 8 | usize::from(low);
                    after.get_or_insert(at + 2);
                    if target >= limit {
                        return None;
                    }
                    limit = target;
                    at = target;
                }
                _ => return None,
            }
        }
    }
}

impl WireName {
    pub fn from_name(name: &Name) -> Self {
        let mut bytes = Vec::with_capacity(name.as_str().len() + 2);
        for label in name.as_str().split('.') {
            bytes.push(u8::try_from(label.len()).expect("a label has at most 63 bytes"));
            bytes.extend_from_slice(label.as_bytes());
        }
        bytes.push(0);
        Self(bytes)
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.0[..];
        std::iter::from_fn(move || {
            let (&length, after) = rest.split_first()?;
            if length == 0 {
                return None;
            }
            let (label, after) = after.split_at_checked(usize::from(length))?;
            rest = after;
            Some(label)
        })
    }

    /// A dot inside a label is a character like any other, and no name of ours has one.
    pub fn to_name(&self) -> Result<Name, NameError> {
        let labels: Vec<&[u8]> = self.labels().collect();
        if labels.iter().any(|label| label.contains(&b'.')) {
            return Err(NameError::Character);
        }
        Name::from_ascii(&labels.join(&b'.'))
    }

    fn shown(&self) -> String {
        let labels: Vec<String> = self
            .labels()
            .map(|label| label.escape_ascii().to_string().replace('.', "\\."))
            .collect();
        if labels.is_empty() {
            ".".to_owned()
        } else {
            labels.join(".")
        }
    }
}

pub fn parse_query(message: &[u8]) -> Result<Query, Malformed> {
    let mut reader = Reader { message, at: 0 };
    let header = (reader.u16(), reader.u16());
    let (Some(id), Some(flags)) = header else {
        return Err(Malformed::Silence);
    };
    if message.len() < HEADER_BYTES || flags & FLAG_RESPONSE != 0 {
        return Err(Malformed::Silence);
    }
    let reply = |code| Malformed::Reply { id, code };
    if message.len() > QUERY_BYTES_MAX {
        return Err(reply(FORMAT_ERROR));
    }
    if flags & OPCODE_MASK != 0 {
        return Err(reply(NOT_IMPLEMENTED));
    }
    rest_of_query(&mut reader, id, flags).ok_or(reply(FORMAT_ERROR))
}

fn rest_of_query(reader: &mut Reader<'_>, id: u16, flags: u16) -> Option<Query> {
    let counts = [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
    let [1, 0, 0, additional @ (0 | 1)] = counts else {
        return None;
    };
    let start = reader.at;
    let name = reader.name(false)?;
    let kind = reader.u16()?;
    if reader.u16()? != CLASS_IN {
        return None;
    }
    let question = reader.message[start..reader.at].to_vec();
    let mut edns = None;
    if additional == 1 {
        let owner = reader.name(false)?;
        if owner.0 != [0] || reader.u16()? != OPT {
            return None;
        }
        let room = reader.u16()?;
        let _flags = reader.u32()?;
        let length = reader.u16()?;
        reader.bytes(usize::from(length))?;
        edns = Some(room.clamp(UDP_BYTES_PLAIN, UDP_BYTES));
    }
    Some(Query {
        id,
        recursion_desired: flags & FLAG_RECURSION_DESIRED != 0,
        question,
        shown: name.shown(),
        name: name.to_name(),
        kind,
        edns,
    })
}

/// What is sent back to a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    pub code: u8,
    pub records: Vec<Record>,
    /// Why, for those who can read it.
    pub because: Option<(u16, String)>,
}

/// A record for the name that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub kind: u16,
    pub ttl: u32,
    pub data: Vec<u8>,
}

impl Record {
    pub fn address(address: Ipv4Addr, ttl: u32) -> Self {
        Self {
            kind: A,
            ttl,
            data: address.octets().to_vec(),
        }
    }
}

/// `room`: bytes the transport takes; what does not fit is left out and the answer marked.
pub fn encode_answer(query: &Query, answer: &Answer, room: usize) -> Vec<u8> {
    let mut extra = Vec::new();
    if query.edns.is_some() {
        extra = opt(answer.because.as_ref());
    }
    let mut flags = FLAG_RESPONSE | FLAG_RECURSION_AVAILABLE | u16::from(answer.code);
    if query.recursion_desired {
        flags |= FLAG_RECURSION_DESIRED;
    }
    let mut records = Vec::new();
    let mut count: u16 = 0;
    for record in &answer.records {
        let Ok(length) = u16::try_from(record.data.len()) else {
            continue;
        };
        let before = HEADER_BYTES + query.question.len() + extra.len() + records.len();
        if before + 12 + record.data.len() > room || count == u16::MAX {
            flags |= FLAG_TRUNCATED;
            break;
        }
        // The owner is the name of the question, right after the header.
        records.extend_from_slice(&[0xc0, HEADER_BYTES as u8]);
        records.extend_from_slice(&record.kind.to_be_bytes());
        records.extend_from_slice(&CLASS_IN.to_be_bytes());
        records.extend_from_slice(&record.ttl.to_be_bytes());
        records.extend_from_slice(&length.to_be_bytes());
        records.extend_from_slice(&record.data);
        count += 1;
    }
    let additional = u16::from(!extra.is_empty());
    let header = [query.id, flags, 1, count, 0, additional];
    let mut message: Vec<u8> = header.iter().flat_map(|n| n.to_be_bytes()).collect();
    message.extend_from_slice(&query.question);
    message.extend_from_slice(&records);
    message.extend_from_slice(&extra);
    message
}

fn opt(because: Option<&(u16, String)>) -> Vec<u8> {
    let mut data = Vec::new();
    if let Some((code, text)) = because {
        let length = u16::try_from(text.len() + 2).unwrap_or(u16::MAX);
        data.extend_from_slice(&OPTION_EDE.to_be_bytes());
        data.extend_from_slice(&length.to_be_bytes());
        data.extend_from_slice(&code.to_be_bytes());
        data.extend_from_slice(text.as_bytes());
    }
    let mut record = vec![0];
    record.extend_from_slice(&OPT.to_be_bytes());
    record.extend_from_slice(&UDP_BYTES.to_be_bytes());
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    record.extend_from_slice(&data);
    record
}

/// A header alone, for what could not be read.
pub fn encode_error(id: u16, code: u8) -> Vec<u8> {
    let header = [id, FLAG_RESPONSE | u16::from(code), 0, 0, 0, 0];
    header.iter().flat_map(|n| n.to_be_bytes()).collect()
}

/// A question of ours to the host's resolvers.
pub fn encode_query(id: u16, name: &WireName, kind: u16) -> Vec<u8> {
    let header = [id, FLAG_RECURSION_DESIRED, 1, 0, 0, 1];
    let mut message: Vec<u8> = header.iter().flat_map(|n| n.to_be_bytes()).collect();
    message.extend_from_slice(&name.0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&CLASS_IN.to_be_bytes());
    message.extend_from_slice(&opt(None));
    message
}

/// What a resolver of the host said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    pub code: u8,
    pub truncated: bool,
    /// Records of the kind that was asked for, at the end of the chain of aliases.
    pub records: Vec<Record>,
    /// Where the chain ended when it ended without a record.
    pub alias: Option<WireName>,
    /// How long "there is none" holds.
    pub negative_ttl: Option<u32>,
}

/// `Ok(None)`: not the answer to this question.
pub fn parse_upstream(
    message: &[u8],
    id: u16,
    name: &WireName,
    kind: u16,
) -> Result<Option<Upstream>, BadAnswer> {
    let mut reader = Reader { message, at: 0 };
    let header = (reader.u16(), reader.u16());
    let (Some(their_id), Some(flags)) = header else {
        return Err(BadAnswer);
    };
    if their_id != id || flags & FLAG_RESPONSE == 0 || flags & OPCODE_MASK != 0 {
        return Ok(None);
    }
    rest_of_answer(&mut reader, flags, name, kind).ok_or(BadAnswer)
}

struct Found {
    owner: WireName,
    kind: u16,
    ttl: u32,
    data: Vec<u8>,
}

fn rest_of_answer(
    reader: &mut Reader<'_>,
    flags: u16,
    name: &WireName,
    kind: u16,
) -> Option<Option<Upstream>> {
    let [questions, answers, authority, _additional] =
        [reader.u16()?, reader.u16()?, reader.u16()?, reader.u16()?];
    let code = (flags & 0xf) as u8;
    let truncated = flags & FLAG_TRUNCATED != 0;
    if questions != 1 {
        // Some resolvers send an error without the question; nothing in it is believed but that.
        let error = questions == 0 && code != NO_ERROR && code != NO_SUCH_NAME;
        return error.then(|| Some(nothing(code)));
    }
    let asked = (reader.name(false)?, reader.u16()?, reader.u16()?);
    if asked != (name.clone(), kind, CLASS_IN) {
        return Some(None);
    }
    if truncated {
        return Some(Some(Upstream {
            truncated,
            ..nothing(code)
        }));
    }
    let answers = records(reader, answers)?;
    let authority = records(reader, authority)?;
    Some(Some(follow(code, name, kind, &answers, &authority)))
}

fn nothing(code: u8) -> Upstream {
    Upstream {
        code,
        truncated: false,
        records: Vec::new(),
        alias: None,
        negative_ttl: None,
    }
}

fn records(reader: &mut Reader<'_>, count: u16) -> Option<Vec<Found>> {
    let mut found = Vec::new();
    for _ in 0..usize::from(count).min(RECORDS_MAX) {
        let owner = reader.name(true)?;
        let kind = reader.u16()?;
        let class = reader.u16()?;
        let ttl = reader.u32()?;
        let length = usize::from(reader.u16()?);
        let end = reader.at.checked_add(length)?;
        if end > reader.message.len() {
            return None;
        }
        let data = data(reader, kind, length);
        reader.at = end;
        if class == CLASS_IN {
            found.push(Found {
                owner,
                kind,
                // The highest bit makes it a negative number to some; they mean none.
                ttl: if ttl >> 31 == 1 { 0 } else { ttl },
                data: data?,
            });
        }
    }
    Some(found)
}

/// The record's data with the names in it written out, so that it can be sent on.
fn data(reader: &mut Reader<'_>, kind: u16, length: usize) -> Option<Vec<u8>> {
    let end = reader.at + length;
    let before = match kind {
        CNAME | NS | PTR | SOA => 0,
        MX => 2,
        SRV => 6,
        _ => return reader.bytes(length).map(<[u8]>::to_vec),
    };
    let mut data = reader.bytes(before)?.to_vec();
    data.extend_from_slice(&reader.name(true)?.0);
    if kind == SOA {
        data.extend_from_slice(&reader.name(true)?.0);
        data.extend_from_slice(reader.bytes(20)?);
    }
    (reader.at == end).then_some(data)
}

/// Aliases followed within one answer.
const ALIASES_MAX: usize = 16;

fn follow(
    code: u8,
    name: &WireName,
    kind: u16,
    answers: &[Found],
    authority: &[Found],
) -> Upstream {
    let mut at = name.clone();
    let mut ttl = u32::MAX;
    let mut moved = false;
    if kind != CNAME {
        for _ in 0..ALIASES_MAX {
            let Some(alias) = answers
                .iter()
                .find(|record| record.kind == CNAME && record.owner == at)
            else {
                break;
            };
            ttl = ttl.min(alias.ttl);
            at = WireName(alias.data.clone());
            moved = true;
        }
    }
    let records: Vec<Record> = answers
        .iter()
        .filter(|record| record.kind == kind && record.owner == at)
        .filter(|record| kind != A || record.data.len() == 4)
        .map(|record| Record {
            kind,
            ttl: record.ttl.min(ttl),
            data: record.data.clone(),
        })
        .collect();
    let negative_ttl = authority
        .iter()
        .find(|record| record.kind == SOA)
        .and_then(|record| {
            let minimum = record.data.last_chunk::<4>()?;
            Some(record.ttl.min(u32::from_be_bytes(*minimum)))
        });
    Upstream {
        code,
        truncated: false,
        alias: (records.is_empty() && moved && code == NO_ERROR).then_some(at),
        records,
        negative_ttl,
    }
}

#[cfg(test)]
#[path = "wire/tests.rs"]
mod tests;
