//! Who asks: no one, a name with a password, or a token fetched with either.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::error::RegistryError;
use crate::wire::Login;

pub(crate) fn basic(login: &Login) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{}:{}", login.username, login.password))
    )
}

/// What a registry asks for with its 401.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first of several offers that can be taken up; without any, the oldest way is tried.
    pub fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Result<Self, RegistryError> {
        let mut refused = None;
        for header in headers {
            match Self::parse(header) {
                Ok(challenge) => return Ok(challenge),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(Self::Basic), Err)
    }

    /// Reads a `WWW-Authenticate` header.
    fn parse(header: &str) -> Result<Self, RegistryError> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            let scheme = scheme.chars().take(40).collect();
            return Err(RegistryError::UnknownAuthentication { scheme });
        }
        let mut parameters = parameters(rest);
        let mut take = |key: &str| {
            let at = parameters
                .iter()
                .position(|(name, _)| name.eq_ignore_ascii_case(key))?;
            Some(parameters.swap_remove(at).1)
        };
        let realm = take("realm").ok_or_else(|| RegistryError::Malformed {
            reason: "the registry requires a token and does not name its source".to_owned(),
        })?;
        Ok(Self::Bearer {
            realm,
            service: take("service"),
            scope: take("scope"),
        })
    }
}

/// `key="value", key=value`: a quoted value may hold commas.
fn parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((key, rest)) = text.split_once('=') {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        found.push((
            key.trim_matches([' ', ',']).to_owned(),
            value.trim().to_owned(),
        ));
        text = after;
    }
    found
}

#[derive(Deserialize)]
pub(crate) struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl TokenAnswer {
    pub fn bearer(self) -> Option<String> {
        let given = |token: Option<String>| token.filter(|token| !token.is_empty());
        let token = given(self.token).or(given(self.access_token))?;
        // Anything else could end the header and begin another.
        token
            .bytes()
            .all(|b| b.is_ascii_graphic())
            .then(|| format!("Bearer {token}"))
    }
}

/// One value of a query string.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_understood() {
        let text = r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push""#;
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".to_owned(),
            service: Some("r.example".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        assert_eq!(Challenge::parse(text).unwrap(), expected);
        assert_eq!(
            Challenge::parse("basic realm=\"x\"").unwrap(),
            Challenge::Basic
        );
        assert!(Challenge::parse("Bearer service=x").is_err());
        assert!(matches!(
            Challenge::parse("Negotiate"),
            Err(RegistryError::UnknownAuthentication { .. })
        ));
    }

    #[test]
    fn of_several_challenges_one_that_can_be_met_is_taken() {
        let choose = |headers: &[&'static str]| Challenge::choose(headers.iter().copied());
        let offers = ["Negotiate", "Basic realm=\"x\"", "Bearer realm=\"y\""];
        assert_eq!(choose(&offers).unwrap(), Challenge::Basic);
        assert_eq!(choose(&[]).unwrap(), Challenge::Basic);
        assert!(matches!(
            choose(&["Negotiate", "NTLM"]),
            Err(RegistryError::UnknownAuthentication { scheme }) if scheme == "Negotiate"
        ));
    }

    #[test]
    fn an_empty_token_does_not_hide_the_other_field() {
        let answer = TokenAnswer {
            token: Some(String::new()),
            access_token: Some("abc".to_owned()),
        };
        assert_eq!(answer.bearer().as_deref(), Some("Bearer abc"));
    }

    #[test]
    fn a_token_that_could_break_the_header_is_not_used() {
        let answer = |token: &str| TokenAnswer {
            token: Some(token.to_owned()),
            access_token: None,
        };
        assert_eq!(answer("abc").bearer().as_deref(), Some("Bearer abc"));
        assert_eq!(answer("abc\r\nX: y").bearer(), None);
    }
}
