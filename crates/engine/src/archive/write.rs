//! Writing the sections of an exported snapshot. Blocking.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use super::key::Keys;
use super::{CHUNK_MAX, End, Kind, MAGIC, Seal, VERSION, section_hash};

pub struct Writer<W: Write> {
    output: W,
    seal: Seal,
}

impl<W: Write> Writer<W> {
    pub fn begin(mut output: W) -> io::Result<Self> {
        output.write_all(MAGIC)?;
        output.write_all(&VERSION.to_le_bytes())?;
        Ok(Self {
            output,
            seal: Seal::new(),
        })
    }

    pub fn section(&mut self, kind: Kind) -> io::Result<Section<'_, W>> {
        self.output.write_all(&[kind as u8])?;
        Ok(Section {
            hash: section_hash(kind),
            buffer: Vec::with_capacity(CHUNK_MAX),
            writer: self,
        })
    }

    pub fn json(&mut self, kind: Kind, content: &impl serde::Serialize) -> io::Result<()> {
        let mut section = self.section(kind)?;
        serde_json::to_writer(&mut section, content)?;
        section.finish()
    }

    /// Signs everything that was written and ends the file.
    pub fn finish(self, keys: &Keys) -> io::Result<W> {
        let Self { output, seal } = self;
        let end = End {
            key: keys.public(),
            signature: keys.sign(&seal.finish()),
        };
        let mut last = Writer {
            output,
            seal: Seal::new(),
        };
        last.json(Kind::End, &end)?;
        last.output.flush()?;
        Ok(last.output)
    }
}

pub struct Section<'a, W: Write> {
    writer: &'a mut Writer<W>,
    hash: Sha256,
    buffer: Vec<u8>,
}

impl<W: Write> Section<'_, W> {
    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.hash.update(&self.buffer);
        let length = u32::try_from(self.buffer.len()).expect("a chunk is far smaller");
        self.writer.output.write_all(&length.to_le_bytes())?;
        self.writer.output.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.send()?;
        let digest: [u8; 32] = self.hash.finalize().into();
        self.writer.output.write_all(&0_u32.to_le_bytes())?;
        self.writer.output.write_all(&digest)?;
        self.writer.seal.section(&digest);
        Ok(())
    }
}

impl<W: Write> Write for Section<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_MAX - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_MAX {
            self.send()?;
        }
        Ok(count)
    }

    /// Chunks are filled first; what is left goes with the end of the section.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
