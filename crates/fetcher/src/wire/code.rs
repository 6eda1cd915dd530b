//! Numbers, texts and lists as bytes.

use std::str::FromStr;

/// A frame that does not have exactly the form it must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame is malformed")]
pub struct BadFrame;

#[derive(Default)]
pub struct Put(pub Vec<u8>);

impl Put {
    pub fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.array(&number.to_le_bytes())
    }

    pub fn array(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len()).array(bytes)
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub fn list<T>(
        &mut self,
        list: &[T],
        put: impl for<'a> Fn(&'a mut Self, &T) -> &'a mut Self,
    ) -> &mut Self {
        self.length(list.len());
        for one in list {
            put(self, one);
        }
        self
    }

    fn length(&mut self, length: usize) -> &mut Self {
        let length = u32::try_from(length).expect("what is sent is far smaller");
        self.array(&length.to_le_bytes())
    }
}

/// What is left to read.
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    /// The value, when all has been read.
    pub fn end<T>(self, value: T) -> Result<T, BadFrame> {
        match self.0 {
            [] => Ok(value),
            _ => Err(BadFrame),
        }
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let (first, rest) = self.0.split_first_chunk().ok_or(BadFrame)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u8(&mut self) -> Result<u8, BadFrame> {
        Ok(self.array::<1>()?[0])
    }

    pub fn flag(&mut self) -> Result<bool, BadFrame> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadFrame),
        }
    }

    pub fn u64(&mut self) -> Result<u64, BadFrame> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn length(&mut self, most: usize) -> Result<usize, BadFrame> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        if length <= most {
            Ok(length)
        } else {
            Err(BadFrame)
        }
    }

    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], BadFrame> {
        let length = self.length(most)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BadFrame)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn text(&mut self, most: usize) -> Result<String, BadFrame> {
        let bytes = self.bytes(most)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| BadFrame)
    }

    /// Of a text that becomes an argument or a variable of a process: no zero byte.
    pub fn plain_text(&mut self, most: usize) -> Result<String, BadFrame> {
        let text = self.text(most)?;
        if text.contains('\0') {
            return Err(BadFrame);
        }
        Ok(text)
    }

    pub fn parsed<T: FromStr>(&mut self) -> Result<T, BadFrame> {
        self.text(64)?.parse().map_err(|_| BadFrame)
    }

    /// A list never makes room for more than has arrived: each element takes at least a byte.
    pub fn list<T>(
        &mut self,
        most: usize,
        take: impl Fn(&mut Self) -> Result<T, BadFrame>,
    ) -> Result<Vec<T>, BadFrame> {
        let count = self.length(most)?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(take(self)?);
        }
        Ok(list)
    }
}
