//! Text that looks like an API key of a well-known kind.

/// How long the rest must be, so that examples and names are not taken for keys.
const REST_MIN: usize = 16;

/// Starts of keys and whose they are. A longer start comes before a shorter one.
const KINDS: [(&str, &str); 24] = [
    ("sk-ant-", "an Anthropic API key"),
    ("sk-proj-", "an OpenAI API key"),
    ("sk_live_", "a Stripe secret key"),
    ("rk_live_", "a Stripe restricted key"),
    ("sk-", "an OpenAI API key"),
    ("github_pat_", "a GitHub token"),
    ("ghp_", "a GitHub token"),
    ("gho_", "a GitHub token"),
    ("ghu_", "a GitHub token"),
    ("ghs_", "a GitHub token"),
    ("ghr_", "a GitHub token"),
    ("glpat-", "a GitLab token"),
    ("xoxb-", "a Slack token"),
    ("xoxp-", "a Slack token"),
    ("xapp-", "a Slack token"),
    ("AKIA", "an AWS access key id"),
    ("ASIA", "an AWS access key id"),
    ("AIza", "a Google API key"),
    ("hf_", "a Hugging Face token"),
    ("npm_", "an npm token"),
    ("pypi-", "a PyPI token"),
    ("dop_v1_", "a DigitalOcean token"),
    ("SG.", "a SendGrid API key"),
    ("gsk_", "a Groq API key"),
];

/// What a value looks like, if it looks like a key that is worth keeping out of sandboxes.
pub fn known_key(value: &str) -> Option<&'static str> {
    let value = value.trim();
    if value.starts_with("-----BEGIN ") && value.contains("PRIVATE KEY-----") {
        return Some("a private key");
    }
    let key = |rest: &str| {
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        rest.len() >= REST_MIN && rest.bytes().all(word)
    };
    let kind = KINDS
        .iter()
        .find(|(start, _)| value.strip_prefix(start).is_some_and(key));
    kind.map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::known_key;

    #[test]
    fn keys_are_known_and_other_text_is_not() {
        for (text, kind) in [
            ("sk-ant-api03-0123456789abcdef", "an Anthropic API key"),
            ("sk-0123456789abcdefghij", "an OpenAI API key"),
            ("ghp_0123456789abcdefghijklmnopqrstuvwxyz", "a GitHub token"),
            ("AKIAIOSFODNN7EXAMPLE", "an AWS access key id"),
            ("-----BEGIN RSA PRIVATE KEY-----\nAAAA", "a private key"),
        ] {
            assert_eq!(known_key(text), Some(kind), "{text}");
        }
        for text in [
            "",
            "production",
            "sk-short",
            "AKIA",
            "sk-learn is a library for machine learning",
            "cove-secret-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "https://example.com/?token=ghp_0123456789abcdefghijkl",
        ] {
            assert_eq!(known_key(text), None, "{text}");
        }
    }
}
