//! Patterns of paths: `*`, `?`, `[a-z]` and escapes inside one component, `**` for any number of components.

use cove_limits::{
    BUILD_PATTERN_PARTS_MAX, BUILD_PATTERNS_MAX, BUILD_PATTERNS_PARTS_MAX, PATH_MAX,
};

/// Whether a name matches a pattern without slashes. Takes time in proportion to the product of both lengths.
pub fn matches_name(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where the last `*` is, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => class(&pattern, p, name[n]),
            Some('\\') if p + 1 < pattern.len() => (pattern[p + 1] == name[n]).then_some(p + 2),
            Some(c) => (*c == name[n]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => {
                p = next;
                n += 1;
            }
            (None, Some((at, taken))) => {
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Where the pattern goes on behind a class that has the character.
fn class(pattern: &[char], open: usize, c: char) -> Option<usize> {
    let mut at = open + 1;
    let negated = matches!(pattern.get(at), Some('^' | '!'));
    if negated {
        at += 1;
    }
    let mut found = false;
    let mut first = true;
    loop {
        let mut low = *pattern.get(at)?;
        if low == ']' && !first {
            at += 1;
            break;
        }
        first = false;
        if low == '\\' {
            at += 1;
            low = *pattern.get(at)?;
        }
        at += 1;
        let mut high = low;
        if pattern.get(at) == Some(&'-') && pattern.get(at + 1).is_some_and(|c| *c != ']') {
            high = pattern[at + 1];
            at += 2;
        }
        found |= (low..=high).contains(&c);
    }
    (found != negated).then_some(at)
}

/// Which beginnings of a path match a whole pattern: `[n]` for its first `n` components. One pass, in time in
/// proportion to the product of both numbers of components.
fn reached(pattern: &str, path: &str) -> Vec<bool> {
    let path: Vec<&str> = path.split('/').collect();
    // reached[i]: the parts so far match the first i components.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    let mut any_number = false;
    for part in pattern.split('/') {
        if part == "**" {
            // Two in a row mean the same as one.
            if !any_number && let Some(first) = reached.iter().position(|here| *here) {
                reached[first..].fill(true);
            }
            any_number = true;
            continue;
        }
        any_number = false;
        let is_plain = !is_pattern(part);
        for (at, name) in path.iter().enumerate().rev() {
            reached[at + 1] = reached[at]
                && match is_plain {
                    true => part == *name,
                    false => matches_name(part, name),
                };
        }
        reached[0] = false;
        if !reached.contains(&true) {
            break;
        }
    }
    reached
}

/// Whether a relative path matches a pattern of components.
pub fn matches_path(pattern: &str, path: &str) -> bool {
    reached(pattern, path).last() == Some(&true)
}

/// Whether a relative path, or a directory above it, matches a pattern of components.
pub fn matches_above(pattern: &str, path: &str) -> bool {
    reached(pattern, path)[1..].contains(&true)
}

/// Refuses patterns that take too long to compare with all paths of a context.
pub fn check<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut all = 0;
    for (count, pattern) in patterns.into_iter().enumerate() {
        let parts = pattern.split('/').count();
        all += parts;
        if count == BUILD_PATTERNS_MAX {
            return Err(format!("at most {BUILD_PATTERNS_MAX} patterns"));
        }
        if pattern.len() > PATH_MAX {
            return Err(format!("a pattern has at most {PATH_MAX} bytes"));
        }
        if parts > BUILD_PATTERN_PARTS_MAX {
            return Err(format!(
                "a pattern has at most {BUILD_PATTERN_PARTS_MAX} components"
            ));
        }
        if all > BUILD_PATTERNS_PARTS_MAX {
            return Err(format!(
                "all patterns together have at most {BUILD_PATTERNS_PARTS_MAX} components"
            ));
        }
    }
    Ok(())
}

/// Whether the text has anything that is not itself.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// A path without `.`, empty components and what `..` takes back; it cannot go above its beginning.
pub fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_go() {
        for (pattern, name, expected) in [
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*c*", "abcd", true),
            ("?", "ab", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[", "[", false),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("", "", true),
            ("a*a*a*a*a*a*a*a*b", &"a".repeat(200), false),
        ] {
            assert_eq!(matches_name(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn two_stars_match_any_number_of_components() {
        for (pattern, path, expected) in [
            ("**/x", "x", true),
            ("**/x", "a/b/x", true),
            ("a/**", "a/b/c", true),
            ("a/*/c", "a/b/b/c", false),
            ("a/**/c", "a/c", true),
        ] {
            assert_eq!(matches_path(pattern, path), expected, "{pattern} {path}");
        }
        for (pattern, path, expected) in [
            ("**", "x", true),
            ("a/**/**", "a", true),
            ("a", "a/b/c", true),
            ("a/*", "a", false),
            ("*/b", "a/b/c", true),
            ("**/c", "a/b", false),
            ("b", "a/b", false),
        ] {
            assert_eq!(matches_above(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_take_long_are_refused() {
        assert_eq!(check(["a/**/b", "*.md"]), Ok(()));
        let deep = "**/*/".repeat(100);
        assert!(check([deep.as_str()]).is_err());
        assert!(check(vec!["a"; 1_001]).is_err());
        assert!(check(vec!["**/a/b/c/d/e"; 999]).is_err());
        assert!(check(["*a".repeat(4_000).as_str()]).is_err());
        // A pattern and a path at their limits.
        let pattern = ["**", "*a*"].repeat(64).join("/");
        let path = ["aaaaaaaaaaaaaab"; 256].join("/");
        assert!(matches_above(&pattern, &path));
    }

    #[test]
    fn a_clean_path_stays_below_its_beginning() {
        for (path, expected) in [("/a//b/./c/../d", "a/b/d"), ("../../x", "x"), ("/", "")] {
            assert_eq!(clean(path), expected, "{path}");
        }
    }
}
