//! Protobuf fields without a schema: read, changed, written again in the same order.

use super::ImageError;

#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    pub tag: u32,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Bytes(Vec<u8>),
    Fixed32([u8; 4]),
}

const CUT: ImageError = ImageError("a message is truncated");

fn varint(from: &mut &[u8]) -> Result<u64, ImageError> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or(CUT)?;
        *from = rest;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(ImageError("a number is too long"))
}

fn put_varint(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], ImageError> {
    let (chunk, rest) = from.split_first_chunk::<N>().ok_or(CUT)?;
    *from = rest;
    Ok(*chunk)
}

pub fn parse(mut message: &[u8]) -> Result<Vec<Field>, ImageError> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut message)?),
            1 => Value::Fixed64(take(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?).map_err(|_| CUT)?;
                let (bytes, rest) = message.split_at_checked(length).ok_or(CUT)?;
                message = rest;
                Value::Bytes(bytes.to_vec())
            }
            5 => Value::Fixed32(take(&mut message)?),
            _ => return Err(ImageError("a field has an unknown shape")),
        };
        let tag = u32::try_from(key).map_or(0, |key| key >> 3);
        if tag == 0 {
            return Err(ImageError("a field has an odd number"));
        }
        fields.push(Field { tag, value });
    }
    Ok(fields)
}

pub fn write(fields: &[Field]) -> Vec<u8> {
    let mut message = Vec::new();
    for field in fields {
        let tag = u64::from(field.tag) << 3;
        match &field.value {
            Value::Varint(value) => {
                put_varint(tag, &mut message);
                put_varint(*value, &mut message);
            }
            Value::Fixed64(bytes) => {
                put_varint(tag | 1, &mut message);
                message.extend_from_slice(bytes);
            }
            Value::Bytes(bytes) => {
                put_varint(tag | 2, &mut message);
                put_varint(bytes.len() as u64, &mut message);
                message.extend_from_slice(bytes);
            }
            Value::Fixed32(bytes) => {
                put_varint(tag | 5, &mut message);
                message.extend_from_slice(bytes);
            }
        }
    }
    message
}

/// Numbers in a row.
pub fn packed(mut bytes: &[u8]) -> Result<Vec<u32>, ImageError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        all.push(varint(&mut bytes)? as u32);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use prost::encoding::{self, DecodeContext, WireType, decode_key, decode_varint};

    use super::*;

    /// What the library reads. It knows groups too, which no image has and we refuse.
    fn by_the_library(mut message: &[u8]) -> Option<Vec<Field>> {
        let from = &mut message;
        let mut fields = Vec::new();
        while !from.is_empty() {
            let (tag, shape) = decode_key(from).ok()?;
            let context = DecodeContext::default();
            let value = match shape {
                WireType::Varint => Value::Varint(decode_varint(from).ok()?),
                WireType::SixtyFourBit => {
                    let mut value = 0;
                    encoding::fixed64::merge(shape, &mut value, from, context).ok()?;
                    Value::Fixed64(value.to_le_bytes())
                }
                WireType::LengthDelimited => {
                    let mut value: Vec<u8> = Vec::new();
                    encoding::bytes::merge(shape, &mut value, from, context).ok()?;
                    Value::Bytes(value)
                }
                WireType::ThirtyTwoBit => {
                    let mut value = 0;
                    encoding::fixed32::merge(shape, &mut value, from, context).ok()?;
                    Value::Fixed32(value.to_le_bytes())
                }
                WireType::StartGroup | WireType::EndGroup => return None,
            };
            fields.push(Field { tag, value });
        }
        Some(fields)
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }

        fn bytes(&mut self, most: u64) -> Vec<u8> {
            (0..self.below(most))
                .map(|_| self.below(256) as u8)
                .collect()
        }

        fn field(&mut self) -> Field {
            let value = match self.below(4) {
                0 => Value::Varint(self.below(u64::MAX) >> self.below(64)),
                1 => Value::Fixed64(self.below(u64::MAX).to_le_bytes()),
                2 => Value::Bytes(self.bytes(20)),
                _ => Value::Fixed32((self.below(1 << 32) as u32).to_le_bytes()),
            };
            let tag = 1 + self.below(40) as u32;
            Field { tag, value }
        }
    }

    #[test]
    fn damaged_messages_mean_the_same_to_the_library() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let fields: Vec<Field> = (0..random.below(6)).map(|_| random.field()).collect();
            let mut message = write(&fields);
            assert_eq!(by_the_library(&message).unwrap(), fields);
            for _ in 0..random.below(4) {
                let at = random.below(message.len() as u64 + 1) as usize;
                match random.below(3) {
                    0 => message.insert(at, random.below(256) as u8),
                    1 if at < message.len() => drop(message.remove(at)),
                    _ => message.truncate(at),
                }
            }
            let ours = parse(&message).ok();
            assert_eq!(ours, by_the_library(&message), "{message:?}");
            match ours {
                Some(fields) => {
                    read += 1;
                    assert_eq!(parse(&write(&fields)).unwrap(), fields);
                }
                None => refused += 1,
            }
        }
        assert!(
            read > 1000 && refused > 1000,
            "{read} read, {refused} refused"
        );
    }

    #[test]
    fn random_bytes_mean_the_same_to_the_library() {
        let mut random = Random(1);
        for _ in 0..200_000 {
            let bytes = random.bytes(24);
            assert_eq!(parse(&bytes).ok(), by_the_library(&bytes), "{bytes:?}");
        }
    }
}
