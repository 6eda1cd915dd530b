//! How sandboxes and templates are called here.
//!
//! Host names have no `_`, and E2B's clients put a sandbox's id into host names as it is. So ids are
//! written with `-` here, as they are in Cove's own preview addresses; both spellings are understood.

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE, check_name};
use cove_model::{SandboxId, SandboxSpec, SnapshotId};

const OURS: &str = "sbx_";
const THEIRS: &str = "sbx-";

pub fn shown(id: &SandboxId) -> String {
    id.as_str().replacen(OURS, THEIRS, 1)
}

pub fn meant(text: &str) -> Option<SandboxId> {
    text.replacen(THEIRS, OURS, 1).parse().ok()
}

/// Names of E2B's own templates, and the images that are nearest to them.
const TEMPLATES: [(&str, &str); 2] = [
    ("base", DEFAULT_IMAGE),
    ("code-interpreter-v1", INTERPRETER_IMAGE),
];

pub fn image_of(template: &str) -> &str {
    let known = TEMPLATES.iter().find(|(name, _)| *name == template);
    known.map_or(template, |(_, image)| image)
}

/// What a sandbox was made from, in the words its maker would use.
pub fn template_of(spec: &SandboxSpec, origin: Option<&SnapshotId>) -> String {
    if let Some(snapshot) = origin {
        return snapshot.to_string();
    }
    let known = TEMPLATES.iter().find(|(_, image)| *image == spec.image);
    known.map_or_else(|| spec.image.clone(), |(name, _)| (*name).to_owned())
}

/// What begins and ends a name that Cove's own rules do not allow as it is.
const ESCAPED: (&str, &str) = ("e2b-", "-e");
/// What such a name may have besides letters and digits, each behind a dash.
const ESCAPES: [(char, char); 5] = [('-', '-'), ('_', 'u'), (':', 't'), ('.', 'd'), ('/', 's')];
/// Before a letter that is a capital.
const CAPITAL: char = 'c';
const DEFAULT_TAG: &str = ":default";

/// A snapshot's name as Cove keeps it. Upper and lower case are one, and the tag that is meant by none is none.
/// A name with characters of no escape stays as it is, and is refused for them.
pub fn snapshot_kept(name: &str) -> String {
    let name = name.to_lowercase();
    volume_kept(name.strip_suffix(DEFAULT_TAG).unwrap_or(&name))
}

/// A volume's name as Cove keeps it.
pub fn volume_kept(name: &str) -> String {
    if name.is_empty() || check_name(name).is_ok() {
        return name.to_owned();
    }
    let mut kept = ESCAPED.0.to_owned();
    for letter in name.chars() {
        match ESCAPES.iter().find(|(special, _)| *special == letter) {
            Some((_, code)) => kept.extend(['-', *code]),
            None if letter.is_ascii_uppercase() => {
                kept.extend(['-', CAPITAL, letter.to_ascii_lowercase()]);
            }
            None => kept.push(letter),
        }
    }
    kept + ESCAPED.1
}

/// The opposite.
pub fn snapshot_shown(kept: &str) -> String {
    unescaped(kept)
        .filter(|name| snapshot_kept(name) == kept)
        .unwrap_or_else(|| kept.to_owned())
}

pub fn volume_shown(kept: &str) -> String {
    unescaped(kept)
        .filter(|name| volume_kept(name) == kept)
        .unwrap_or_else(|| kept.to_owned())
}

fn unescaped(kept: &str) -> Option<String> {
    let inner = kept.strip_prefix(ESCAPED.0)?.strip_suffix(ESCAPED.1)?;
    let mut letters = inner.chars();
    let mut name = String::new();
    while let Some(letter) = letters.next() {
        let plain = match letter {
            '-' => {
                let code = letters.next()?;
                if code == CAPITAL {
                    name.push(letters.next()?.to_ascii_uppercase());
                    continue;
                }
                ESCAPES.iter().find(|(_, known)| *known == code)?.0
            }
            letter => letter,
        };
        name.push(plain);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_names_come_back_as_they_were_given() {
        for name in [
            "plain-name",
            "with_underscore",
            "a/b_c:v2",
            "-x-",
            "v1.2",
            "a__b",
        ] {
            let kept = snapshot_kept(name);
            assert!(check_name(&kept).is_ok(), "{kept}");
            assert_eq!(snapshot_shown(&kept), name);
        }
        assert_eq!(snapshot_kept("Mixed:default"), "mixed");
        for name in ["plain", "My_Volume", "UPPER", "a-B_c"] {
            let kept = volume_kept(name);
            assert!(check_name(&kept).is_ok(), "{kept}");
            assert_eq!(volume_shown(&kept), name);
        }
        // Cove's own names are no escapes of anything.
        for own in ["e2b-foo-e", "e2b-a-", "e2b-x-q-e", "e2b--e", "e2b-e"] {
            assert_eq!(snapshot_shown(own), own);
        }
        for bad in ["", "a b", "ü", "a\0"] {
            assert!(check_name(&snapshot_kept(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_are_understood_in_both_spellings_and_shown_in_one() {
        let id = SandboxId::random();
        let text = shown(&id);
        assert!(!text.contains('_'), "{text}");
        assert_eq!(meant(&text), Some(id.clone()));
        assert_eq!(meant(id.as_str()), Some(id));
        for bad in ["", "sbx-", "sbx-../x", "x", "sbx--sbx-"] {
            assert_eq!(meant(bad), None, "{bad}");
        }
    }
}
