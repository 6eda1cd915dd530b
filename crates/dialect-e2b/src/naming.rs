//! How sandboxes and templates are called here.
//!
//! Host names have no `_`, and E2B's clients put a sandbox's id into host names as it is. So ids are
//! written with `-` here, as they are in Cove's own preview addresses; both spellings are understood.

use cove_model::spec::{DEFAULT_IMAGE, INTERPRETER_IMAGE};
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

#[cfg(test)]
mod tests {
    use super::*;

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
