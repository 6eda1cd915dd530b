//! A snapshot's manifest: as a file of something else has it, which only the program reads, and as the program
//! answers with it.
//!
//! The answer is binary and takes exactly one form. The sandbox's settings in it are JSON that the program
//! wrote itself; the privileged side reads them by the decoder, and under the checks, that settings from
//! control meet.

use std::collections::BTreeMap;

use cove_model::{SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::answer::BadAnswer;

/// The largest manifest or end that is read.
pub const DESCRIPTION_MAX: usize = 1 << 20;
/// The largest answer about a manifest; no field grows by being written anew.
pub const MANIFEST_ANSWER_MAX: usize = DESCRIPTION_MAX + (64 << 10);

/// How the image wants its processes started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSettings {
    pub env: Vec<(String, String)>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
}

/// What a host must offer for the memory in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySettings {
    pub bytes: u64,
    pub tier: String,
    pub architecture: String,
    pub cpu_features: Vec<String>,
    pub kernel: String,
    pub components: BTreeMap<String, String>,
    pub grown_mb: Option<u64>,
}

/// What a manifest says.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub sandbox: SandboxId,
    pub spec: SandboxSpec,
    pub created_at: OffsetDateTime,
    pub architecture: String,
    pub image: ImageSettings,
    pub memory: Option<MemorySettings>,
}

/// The same as it is sent.
#[derive(Serialize, Deserialize)]
struct Sent {
    sandbox: String,
    spec: String,
    seconds: i64,
    nanoseconds: u32,
    architecture: String,
    image: ImageSettings,
    memory: Option<MemorySettings>,
}

pub fn encode(manifest: &Manifest) -> Result<Vec<u8>, BadAnswer> {
    let sent = Sent {
        sandbox: manifest.sandbox.as_str().to_owned(),
        spec: serde_json::to_string(&manifest.spec).map_err(|_| BadAnswer)?,
        seconds: manifest.created_at.unix_timestamp(),
        nanoseconds: manifest.created_at.nanosecond(),
        architecture: manifest.architecture.clone(),
        image: manifest.image.clone(),
        memory: manifest.memory.clone(),
    };
    postcard::to_stdvec(&sent).map_err(|_| BadAnswer)
}

pub fn decode(answer: &[u8]) -> Result<Manifest, BadAnswer> {
    if answer.len() > MANIFEST_ANSWER_MAX {
        return Err(BadAnswer);
    }
    let (sent, rest): (Sent, _) = postcard::take_from_bytes(answer).map_err(|_| BadAnswer)?;
    let created_at = OffsetDateTime::from_unix_timestamp(sent.seconds)
        .and_then(|time| time.replace_nanosecond(sent.nanoseconds))
        .map_err(|_| BadAnswer)?;
    let manifest = Manifest {
        sandbox: sent.sandbox.parse().map_err(|_| BadAnswer)?,
        spec: serde_json::from_str(&sent.spec).map_err(|_| BadAnswer)?,
        created_at,
        architecture: sent.architecture,
        image: sent.image,
        memory: sent.memory,
    };
    // One form only: what could be written otherwise was not written by the program.
    match rest.is_empty() && encode(&manifest)? == answer {
        true => Ok(manifest),
        false => Err(BadAnswer),
    }
}

#[cfg(feature = "program")]
pub use file::{read_manifest, read_signature};

/// The JSON of the file.
#[cfg(feature = "program")]
mod file {
    use super::*;
    use crate::Signature;
    use crate::order::Failed;

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Written {
        sandbox: SandboxId,
        spec: SandboxSpec,
        #[serde(with = "time::serde::rfc3339")]
        created_at: OffsetDateTime,
        architecture: String,
        image: ImageSettings,
        #[serde(rename = "image_names")]
        _image_names: Vec<String>,
        memory: Option<Memory>,
    }

    #[derive(Deserialize)]
    struct Memory {
        bytes: u64,
        needs: Needs,
        grown_mb: Option<u64>,
    }

    #[derive(Deserialize)]
    struct Needs {
        tier: String,
        architecture: String,
        cpu_features: Vec<String>,
        kernel: String,
        components: BTreeMap<String, String>,
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct End {
        key: String,
        signature: String,
    }

    pub fn read_manifest(json: &[u8]) -> Result<Manifest, Failed> {
        let written: Written =
            serde_json::from_slice(json).map_err(|error| Failed::damaged(error.to_string()))?;
        Ok(Manifest {
            sandbox: written.sandbox,
            spec: written.spec,
            created_at: written.created_at.to_offset(time::UtcOffset::UTC),
            architecture: written.architecture,
            image: written.image,
            memory: written.memory.map(|memory| MemorySettings {
                bytes: memory.bytes,
                tier: memory.needs.tier,
                architecture: memory.needs.architecture,
                cpu_features: memory.needs.cpu_features,
                kernel: memory.needs.kernel,
                components: memory.needs.components,
                grown_mb: memory.grown_mb,
            }),
        })
    }

    /// `None`: what stands there can be no signature.
    pub fn read_signature(json: &[u8]) -> Result<Option<Signature>, Failed> {
        let end: End =
            serde_json::from_slice(json).map_err(|error| Failed::damaged(error.to_string()))?;
        let (key, signature) = (bytes(&end.key), bytes(&end.signature));
        Ok(key
            .zip(signature)
            .map(|(key, signature)| Signature { key, signature }))
    }

    fn bytes<const N: usize>(digits: &str) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        hex::decode_to_slice(digits, &mut bytes).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(memory: bool) -> Manifest {
        Manifest {
            sandbox: "sbx_aaaaaaaaaaaaaaaaaaaa".parse().expect("an id"),
            spec: SandboxSpec {
                env: BTreeMap::from([("A".to_owned(), "b\u{0}\"\\ü".to_owned())]),
                ..SandboxSpec::default()
            },
            created_at: OffsetDateTime::UNIX_EPOCH + time::Duration::nanoseconds(1_700_000_000_123),
            architecture: "amd64".to_owned(),
            image: ImageSettings {
                env: vec![("PATH".to_owned(), "/bin".to_owned())],
                user: Some("7:8".to_owned()),
                ..ImageSettings::default()
            },
            memory: memory.then(|| MemorySettings {
                bytes: u64::MAX,
                tier: "container".to_owned(),
                architecture: "x86_64".to_owned(),
                cpu_features: vec!["sse2".to_owned()],
                kernel: "6.1".to_owned(),
                components: BTreeMap::from([("criu".to_owned(), "4.1".to_owned())]),
                grown_mb: Some(3),
            }),
        }
    }

    #[test]
    fn an_answer_comes_back_as_it_was_and_nothing_else_is_taken() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for memory in [false, true] {
            let manifest = manifest(memory);
            let good = encode(&manifest).expect("plain data");
            assert_eq!(decode(&good), Ok(manifest));
            for length in 0..good.len() {
                assert_eq!(decode(&good[..length]), Err(BadAnswer), "cut at {length}");
            }
            for _ in 0..20_000 {
                let mut bad = good.clone();
                let at = (random() % bad.len() as u64) as usize;
                match random() % 3 {
                    0 => bad[at] ^= 1 << (random() % 8),
                    1 => bad.insert(at, random() as u8),
                    _ => bad.extend((0..random() % 20).map(|_| random() as u8)),
                }
                if let Ok(other) = decode(&bad) {
                    assert_eq!(encode(&other).as_ref(), Ok(&bad));
                }
            }
        }
        for _ in 0..20_000 {
            let noise: Vec<u8> = (0..random() % 300).map(|_| random() as u8).collect();
            assert!(decode(&noise).is_err());
        }
        assert!(decode(&vec![0; MANIFEST_ANSWER_MAX + 1]).is_err());
    }

    #[cfg(feature = "program")]
    #[test]
    fn signatures_are_read_from_hexadecimal_of_the_right_length() {
        let end = |key: &str, signature: &str| {
            read_signature(format!(r#"{{"key":"{key}","signature":"{signature}"}}"#).as_bytes())
                .expect("it is JSON")
        };
        let read = end(&"0a".repeat(32), &"F1".repeat(64)).expect("a signature");
        assert_eq!((read.key, read.signature), ([10; 32], [0xf1; 64]));
        for (key, signature) in [
            (String::new(), String::new()),
            ("0a".repeat(31), "f1".repeat(64)),
            ("0g".repeat(32), "f1".repeat(64)),
            ("+a".repeat(32), "f1".repeat(64)),
            ("0a".repeat(32), "f1".repeat(65)),
        ] {
            assert_eq!(end(&key, &signature), None);
        }
        for bad in ["", "{}", "[1,2]", r#"{"key":"","signature":"","x":1}"#] {
            assert!(read_signature(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(read_manifest(&[b'['; 100_000]).is_err(), "deep nesting");
    }
}
