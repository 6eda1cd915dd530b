//! Wildcards in the name of a file, as shells have them: `*`, `?` and `[...]`.

pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// A leading dot is matched by a dot alone.
pub fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    all(&pattern, &name)
}

/// Goes back to the last `*` only, so that the work is the product of both lengths at most.
fn all(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, seen));
            at += 1;
            continue;
        }
        if let Some(length) = one(&pattern[at..], name[seen]) {
            at += length;
            seen += 1;
            continue;
        }
        match star {
            Some((back, from)) => {
                star = Some((back, from + 1));
                (at, seen) = (back + 1, from + 1);
            }
            None => return false,
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

/// How much of the pattern stands for this character; `None` when it does not match.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => match set(&pattern[1..], c) {
            Some((matched, length)) => matched.then_some(length + 1),
            // Without its end it is a bracket.
            None => (c == '[').then_some(1),
        },
        plain => (*plain == c).then_some(1),
    }
}

/// Whether a set holds the character, and how long it is with its closing bracket.
fn set(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.first(), Some('!' | '^'));
    let begin = usize::from(negated);
    // A bracket right at the beginning is one of the set.
    let end = begin + 1 + pattern.get(begin + 1..)?.iter().position(|c| *c == ']')?;
    let members = &pattern[begin..end];
    let mut found = false;
    let mut at = 0;
    while at < members.len() {
        match (members.get(at + 1), members.get(at + 2)) {
            (Some('-'), Some(last)) => {
                found |= (members[at]..=*last).contains(&c);
                at += 3;
            }
            _ => {
                found |= members[at] == c;
                at += 1;
            }
        }
    }
    Some((found != negated, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, matched) in [
            ("*", "a", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("*.log", "a.log", true),
            ("*.log", "a.logs", false),
            ("a*b*c", "axxbyybc", true),
            ("a*b*c", "axxbyyb", false),
            ("?.txt", "ü.txt", true),
            ("?.txt", ".txt", false),
            ("[a-c]1", "b1", true),
            ("[!a-c]1", "b1", false),
            ("[]]", "]", true),
            ("[x", "[x", true),
            ("file", "file", true),
            ("file", "files", false),
        ] {
            assert_eq!(matches(pattern, name), matched, "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(30), &"a".repeat(29)));
    }
}
