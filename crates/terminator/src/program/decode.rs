//! Answers that a server compressed, decompressed so that values are found in them. The guest gets them plain.

use std::io::{self, Write};

use bytes::{Buf, Bytes};
use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;

use super::heads::tokens;
use super::refusal::Refusal;

/// What a decoder and one step of its output take in memory, at most.
pub const MEMORY: usize = 256 * 1024;

/// What an answer is decompressed with.
pub enum Decoder {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// With the wrapping of zlib or, from some servers, without; the first byte says which.
    Deflate(Option<Deflate>),
}

pub enum Deflate {
    Wrapped(ZlibDecoder<Vec<u8>>),
    Raw(DeflateDecoder<Vec<u8>>),
}

impl Decoder {
    /// How the answer's body is compressed; its headers say no more that it is. One that is compressed twice, or
    /// in another way, is refused.
    pub fn of(headers: &mut HeaderMap) -> Result<Option<Self>, Refusal> {
        let encodings = tokens(headers, &CONTENT_ENCODING);
        let mut used = encodings.filter(|it| !it.eq_ignore_ascii_case("identity"));
        let decoder = match (used.next().map(str::to_ascii_lowercase), used.next()) {
            (None, _) => return Ok(None),
            (Some(one), None) if one == "gzip" || one == "x-gzip" => {
                Self::Gzip(MultiGzDecoder::new(Vec::new()))
            }
            (Some(one), None) if one == "deflate" => Self::Deflate(None),
            _ => return Err(Refusal::Encoded),
        };
        drop(used);
        headers.remove(CONTENT_ENCODING);
        Ok(Some(decoder))
    }

    /// One step: takes some of these bytes away and returns what they become, less than [`MEMORY`] however well they
    /// are compressed. Once all of them are taken, nothing is held back.
    pub fn push(&mut self, piece: &mut Bytes) -> io::Result<Bytes> {
        let Some(first) = piece.first() else {
            return Ok(Bytes::new());
        };
        let out = match self {
            Self::Gzip(gzip) => {
                step(gzip, piece)?;
                gzip.get_mut()
            }
            Self::Deflate(deflate) => {
                // The method of zlib is 8; a raw stream that begins so is one that no compressor writes.
                let deflate = deflate.get_or_insert_with(|| match first & 0x0f == 8 {
                    true => Deflate::Wrapped(ZlibDecoder::new(Vec::new())),
                    false => Deflate::Raw(DeflateDecoder::new(Vec::new())),
                });
                match deflate {
                    Deflate::Wrapped(zlib) => {
                        step(zlib, piece)?;
                        zlib.get_mut()
                    }
                    Deflate::Raw(raw) => {
                        step(raw, piece)?;
                        raw.get_mut()
                    }
                }
            }
        };
        Ok(std::mem::take(out).into())
    }

    /// The rest. An answer that ends early is an error.
    pub fn finish(self) -> io::Result<Bytes> {
        let rest = match self {
            Self::Gzip(gzip) => gzip.finish()?,
            Self::Deflate(Some(Deflate::Wrapped(zlib))) => zlib.finish()?,
            Self::Deflate(Some(Deflate::Raw(raw))) => raw.finish()?,
            Self::Deflate(None) => Vec::new(),
        };
        Ok(rest.into())
    }
}

/// `write_all` would go on until every byte is taken, whatever becomes of them.
fn step(decoder: &mut impl Write, piece: &mut Bytes) -> io::Result<()> {
    let taken = decoder.write(piece)?;
    if taken == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "bytes after the end of a compressed answer",
        ));
    }
    piece.advance(taken);
    match piece.is_empty() {
        true => decoder.flush(),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    fn decoded(encoding: &str, bytes: &[u8], at: usize) -> io::Result<Vec<u8>> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, encoding.parse().unwrap());
        let mut decoder = Decoder::of(&mut headers).unwrap().unwrap();
        assert!(headers.is_empty());
        let mut out = Vec::new();
        for piece in bytes.chunks(at) {
            let mut piece = Bytes::copy_from_slice(piece);
            while !piece.is_empty() {
                out.extend(decoder.push(&mut piece)?);
            }
        }
        out.extend(decoder.finish()?);
        Ok(out)
    }

    #[test]
    fn what_was_compressed_comes_back_however_it_is_cut() {
        let text = "canary and some more text, ".repeat(500).into_bytes();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(&text).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(&text).unwrap();
        let (zlib, raw) = (zlib.finish().unwrap(), raw.finish().unwrap());
        for (encoding, bytes) in [
            ("gzip", &gzip),
            ("X-GZip", &gzip),
            ("deflate", &zlib),
            ("deflate", &raw),
        ] {
            for at in [1, 3, 1 << 20] {
                assert_eq!(
                    decoded(encoding, bytes, at).unwrap(),
                    text,
                    "{encoding} cut at {at}"
                );
            }
            assert!(decoded("gzip", &bytes[..bytes.len() / 2], 7).is_err());
        }
        assert!(decoded("gzip", b"not gzip at all", 4).is_err());
        let twice = [gzip.clone(), gzip].concat();
        assert_eq!(decoded("gzip", &twice, 100).unwrap().len(), 2 * text.len());
        for other in ["br", "zstd", "gzip, gzip", "gzip, br"] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, other.parse().unwrap());
            assert!(Decoder::of(&mut headers).is_err(), "{other}");
        }
    }

    #[test]
    fn a_bomb_is_taken_in_small_steps() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&[0; 4 << 20]).unwrap();
        let bomb = gzip.finish().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        let mut decoder = Decoder::of(&mut headers).unwrap().unwrap();
        let (mut all, mut bomb) = (0, Bytes::from(bomb));
        while !bomb.is_empty() {
            let step = decoder.push(&mut bomb).unwrap().len();
            assert!(step < MEMORY / 2, "{step}");
            all += step;
        }
        assert_eq!(all + decoder.finish().unwrap().len(), 4 << 20);
    }

    #[test]
    fn an_event_of_a_stream_comes_out_as_soon_as_it_went_in() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        let mut decoder = Decoder::of(&mut headers).unwrap().unwrap();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        for event in ["data: one\n\n", "data: two\n\n"] {
            gzip.write_all(event.as_bytes()).unwrap();
            gzip.flush().unwrap();
            let mut piece = Bytes::from(std::mem::take(gzip.get_mut()));
            let mut out = Vec::new();
            while !piece.is_empty() {
                out.extend(decoder.push(&mut piece).unwrap());
            }
            assert_eq!(out, event.as_bytes());
        }
    }
}
