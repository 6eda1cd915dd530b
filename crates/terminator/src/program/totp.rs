//! One-time codes of RFC 6238, computed at the moment of use: a seed never leaves this process.

use cove_model::secret::{TotpAlgorithm, TotpSeed};
use ring::hmac;

/// The code at so many seconds after 1970.
pub fn code(seed: &TotpSeed, now_s: u64) -> String {
    let algorithm = match seed.algorithm {
        TotpAlgorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
        TotpAlgorithm::Sha256 => hmac::HMAC_SHA256,
        TotpAlgorithm::Sha512 => hmac::HMAC_SHA512,
    };
    let step = now_s / seed.period_s.max(1);
    let tag = hmac::sign(&hmac::Key::new(algorithm, &seed.seed), &step.to_be_bytes());
    let tag = tag.as_ref();
    let at = usize::from(tag[tag.len() - 1] & 0xf);
    let word = tag[at..at + 4].iter();
    let word = word.fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) & 0x7fff_ffff;
    let digits = seed.digits as usize;
    format!("{:0digits$}", word % 10_u32.pow(seed.digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_rfc() {
        let seed = |algorithm, length: usize| TotpSeed {
            seed: b"1234567890".iter().cycle().take(length).copied().collect(),
            digits: 8,
            period_s: 30,
            algorithm,
        };
        // RFC 6238, appendix B.
        for (now, sha1, sha256, sha512) in [
            (59, "94287082", "46119246", "90693936"),
            (1_111_111_109, "07081804", "68084774", "25091201"),
            (20_000_000_000, "65353130", "77737706", "47863826"),
        ] {
            assert_eq!(code(&seed(TotpAlgorithm::Sha1, 20), now), sha1);
            assert_eq!(code(&seed(TotpAlgorithm::Sha256, 32), now), sha256);
            assert_eq!(code(&seed(TotpAlgorithm::Sha512, 64), now), sha512);
        }
    }
}
