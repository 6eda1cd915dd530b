//! `.dockerignore`: which files of a context are left out.

use crate::pattern::{check, clean, matches_above};

#[derive(Debug, Clone, Default)]
pub struct Ignore {
    patterns: Vec<(bool, String)>,
}

impl Ignore {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patterns = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for line in text.lines() {
            if line.starts_with('#') {
                continue;
            }
            let line = line.trim();
            let (kept, line) = match line.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line),
            };
            let pattern = clean(line);
            if pattern.is_empty() {
                continue;
            }
            patterns.push((kept, pattern));
        }
        check(patterns.iter().map(|(_, pattern)| pattern.as_str()))
            .map_err(|problem| format!("ignore: {problem}"))?;
        Ok(Self { patterns })
    }

    /// Whether a path relative to the context is left out. The last pattern that matches it, or a directory above
    /// it, decides.
    pub fn leaves_out(&self, path: &str) -> bool {
        let mut out = false;
        for (kept, pattern) in &self.patterns {
            if out == *kept && matches_above(pattern, path) {
                out = !kept;
            }
        }
        out
    }

    /// Whether something below a directory that is left out may be kept, so that it has to be looked into.
    pub fn may_keep_below(&self) -> bool {
        self.patterns.iter().any(|(kept, _)| *kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_match_decides() {
        let ignore =
            Ignore::parse("# all\n*.md\n!README.md\n/target/\n**/*.tmp\ndocs\n!docs/keep/**\n")
                .unwrap();
        for (path, out) in [
            ("notes.md", true),
            ("sub/notes.md", false),
            ("README.md", false),
            ("target", true),
            ("target/debug/x", true),
            ("sub/target", false),
            ("a/b/c.tmp", true),
            ("docs/x", true),
            ("docs/keep/x", false),
        ] {
            assert_eq!(ignore.leaves_out(path), out, "{path}");
        }
    }
}
