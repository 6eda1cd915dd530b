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
        let tag = u32::try_from(key >> 3).map_err(|_| ImageError("a field has an odd number"))?;
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
