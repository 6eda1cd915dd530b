//! Writes tar archives byte by byte, also those no tar program would write.

use std::io::Write;

#[derive(Default, Clone)]
pub struct Tar {
    pub bytes: Vec<u8>,
}

#[derive(Clone)]
pub struct Header<'a> {
    pub path: &'a [u8],
    pub link: &'a [u8],
    pub kind: u8,
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub mtime: u64,
}

impl Default for Header<'_> {
    fn default() -> Self {
        Self {
            path: b"x",
            link: b"",
            kind: b'0',
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: 1_000_000_000,
        }
    }
}

impl Header<'_> {
    pub fn block(&self) -> [u8; 512] {
        let mut block = [0; 512];
        block[..self.path.len().min(100)].copy_from_slice(&self.path[..self.path.len().min(100)]);
        octal(&mut block[100..108], self.mode.into());
        octal(&mut block[108..116], self.uid);
        octal(&mut block[116..124], self.gid);
        octal(&mut block[124..136], self.size);
        octal(&mut block[136..148], self.mtime);
        block[156] = self.kind;
        block[157..157 + self.link.len().min(100)]
            .copy_from_slice(&self.link[..self.link.len().min(100)]);
        block[257..265].copy_from_slice(b"ustar\x0000");
        seal(&mut block);
        block
    }
}

/// Writes the checksum.
pub fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
}

fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    write!(&mut field[..digits], "{value:0digits$o}").expect("the value fits");
}

impl Tar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn entry(mut self, header: Header<'_>, body: &[u8]) -> Self {
        self.bytes.extend_from_slice(&header.block());
        self.bytes.extend_from_slice(body);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: &str, body: &[u8]) -> Self {
        self.entry(
            Header {
                path: path.as_bytes(),
                size: body.len() as u64,
                ..Header::default()
            },
            body,
        )
    }

    pub fn dir(self, path: &str) -> Self {
        self.entry(
            Header {
                path: path.as_bytes(),
                kind: b'5',
                mode: 0o755,
                ..Header::default()
            },
            b"",
        )
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(
            Header {
                path: path.as_bytes(),
                link: target.as_bytes(),
                kind: b'2',
                mode: 0o777,
                ..Header::default()
            },
            b"",
        )
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(
            Header {
                path: path.as_bytes(),
                link: target.as_bytes(),
                kind: b'1',
                ..Header::default()
            },
            b"",
        )
    }

    /// A PAX header for the entry that follows.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            write!(body, "{length} {key}=").unwrap();
            body.extend_from_slice(value);
            body.push(b'\n');
        }
        self.entry(
            Header {
                path: b"pax",
                kind: b'x',
                size: body.len() as u64,
                ..Header::default()
            },
            &body,
        )
    }

    pub fn end(self) -> Vec<u8> {
        self.raw(&[0; 1024]).bytes
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
