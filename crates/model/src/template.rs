//! How callers name templates: `name`, `name:tag`, `name:version` or an id.

use std::fmt;
use std::str::FromStr;

use crate::TemplateId;
use crate::spec::{SpecError, check_name, field_error};

pub use cove_limits::{TEMPLATE_TAG_MAX, TEMPLATE_TAGS_MAX, TEMPLATES_MAX};

/// The tag that a name alone stands for.
pub const LATEST: &str = "latest";

const FIELD: &str = "template";

/// One version of a template, as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateRef {
    Id(TemplateId),
    Named {
        name: String,
        /// Absent: the name alone was given.
        at: Option<TemplateAt>,
    },
}

/// Which version of a name is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateAt {
    Version(u64),
    Tag(String),
}

impl TemplateRef {
    /// The version or tag of a name; a name alone means [`LATEST`].
    pub fn at(&self) -> Option<TemplateAt> {
        match self {
            Self::Id(_) => None,
            Self::Named { at, .. } => at
                .clone()
                .or_else(|| Some(TemplateAt::Tag(LATEST.to_owned()))),
        }
    }
}

impl FromStr for TemplateRef {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<Self, SpecError> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let (name, at) = match text.split_once(':') {
            None => (text, None),
            // One version has one spelling.
            Some((_, at)) if is_number(at) && at.starts_with('0') => {
                return Err(field_error(
                    FIELD,
                    "versions count from 1, without zeros before".into(),
                ));
            }
            Some((name, at)) if is_number(at) => {
                let version = at.parse().map_err(|_| {
                    field_error(
                        FIELD,
                        "the version must be a number that fits 64 bits".into(),
                    )
                })?;
                (name, Some(TemplateAt::Version(version)))
            }
            Some((name, tag)) => {
                check_tag(tag)?;
                (name, Some(TemplateAt::Tag(tag.to_owned())))
            }
        };
        check_name(name).map_err(|_| {
            field_error(
                FIELD,
                "must be NAME, NAME:TAG, NAME:VERSION or the id of a template".into(),
            )
        })?;
        Ok(Self::Named {
            name: name.to_owned(),
            at,
        })
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Named { name, at: None } => write!(f, "{name}"),
            Self::Named {
                name,
                at: Some(TemplateAt::Version(version)),
            } => write!(f, "{name}:{version}"),
            Self::Named {
                name,
                at: Some(TemplateAt::Tag(tag)),
            } => write!(f, "{name}:{tag}"),
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A tag cannot be a number: numbers are versions.
pub fn check_tag(tag: &str) -> Result<(), SpecError> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let ok = (1..=TEMPLATE_TAG_MAX).contains(&tag.len())
        && tag.bytes().all(inner)
        && !tag.starts_with(['.', '-'])
        && !is_number(tag);
    match ok {
        true => Ok(()),
        false => Err(field_error(
            "tag",
            format!(
                "must be 1 to {TEMPLATE_TAG_MAX} letters, digits, dots, dashes or underscores, begin with a \
                 letter, a digit or an underscore, and not be a number"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_names_tags_versions_and_ids() {
        let id = TemplateId::random();
        for good in ["web", "web:latest", "web:3", "web:v1.2_x", id.as_str()] {
            let read: TemplateRef = good.parse().unwrap();
            assert_eq!(read.to_string(), good);
        }
        let alone: TemplateRef = "web".parse().unwrap();
        assert_eq!(alone.at(), Some(TemplateAt::Tag(LATEST.into())));
        let long = format!("web:{}", "x".repeat(TEMPLATE_TAG_MAX + 1));
        for bad in [
            "",
            ":",
            "web:",
            ":x",
            "Web",
            "web:.x",
            "web:-x",
            "web:a b",
            "web:a:b",
            "web:a/b",
            "../x",
            "web:99999999999999999999999",
            "web:0",
            "web:007",
            "we\0b",
            &long,
        ] {
            assert!(bad.parse::<TemplateRef>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn tags_are_no_numbers() {
        check_tag("v1").unwrap();
        assert!(check_tag("1").is_err());
    }
}
