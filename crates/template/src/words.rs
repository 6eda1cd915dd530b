//! Words of instructions: quotes, escapes and variables, as a shell reads them.

use std::cell::Cell;

use cove_limits::{BUILD_EXPANDED_ALL_MAX, BUILD_EXPANDED_MAX};

/// Looks a variable up.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Bytes that variables may still come to. A value that is looked up counts even where nothing is left of it.
pub(crate) struct Room(Cell<usize>);

impl Default for Room {
    fn default() -> Self {
        Self(Cell::new(BUILD_EXPANDED_ALL_MAX))
    }
}

fn too_long() -> String {
    format!("with its variables a text has more than {BUILD_EXPANDED_MAX} bytes")
}

/// What is left of the text after quotes, escapes and variables: one word, however many blanks it has.
pub(crate) fn expand(
    text: &str,
    escape: char,
    lookup: Lookup<'_>,
    room: &Room,
) -> Result<String, String> {
    let word = Reader::new(text, escape, lookup, room, false).word(None)?;
    match word.len() > BUILD_EXPANDED_MAX {
        true => Err(too_long()),
        false => Ok(word),
    }
}

/// Variables only: quotes stay, as in a here-document. Its own text may be as long as the file allows.
pub(crate) fn expand_document(
    text: &str,
    escape: char,
    lookup: Lookup<'_>,
    room: &Room,
) -> Result<String, String> {
    Reader::new(text, escape, lookup, room, true).word(None)
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    escape: char,
    lookup: Lookup<'a>,
    room: &'a Room,
    /// Bytes of values that were looked up for this text.
    looked_up: usize,
    keep_quotes: bool,
    depth: u32,
}

/// Nested `${a:-${b:-…}}`.
const DEPTH_MAX: u32 = 16;

impl<'a> Reader<'a> {
    fn new(
        text: &'a str,
        escape: char,
        lookup: Lookup<'a>,
        room: &'a Room,
        keep_quotes: bool,
    ) -> Self {
        Self {
            rest: text.chars().peekable(),
            escape,
            lookup,
            room,
            looked_up: 0,
            keep_quotes,
            depth: 0,
        }
    }

    fn value(&mut self, name: &str) -> Result<Option<String>, String> {
        let value = (self.lookup)(name);
        let bytes = value.as_ref().map_or(0, String::len);
        self.looked_up += bytes;
        if self.looked_up > BUILD_EXPANDED_MAX {
            return Err(too_long());
        }
        let left = self.room.0.get().checked_sub(bytes).ok_or_else(|| {
            format!("the variables of a stage come to more than {BUILD_EXPANDED_ALL_MAX} bytes")
        })?;
        self.room.0.set(left);
        Ok(value)
    }

    /// Up to `end`, which is taken, or to the end of the text.
    fn word(&mut self, end: Option<char>) -> Result<String, String> {
        let mut out = String::new();
        while let Some(c) = self.rest.next() {
            if Some(c) == end {
                return Ok(out);
            }
            match c {
                '\'' if !self.keep_quotes => loop {
                    match self.rest.next() {
                        Some('\'') => break,
                        Some(c) => out.push(c),
                        None => return Err("a single quote is not closed".into()),
                    }
                },
                '"' if !self.keep_quotes => self.quoted(&mut out)?,
                '$' => out.push_str(&self.variable()?),
                c if c == self.escape => match self.rest.next() {
                    Some(next) if self.keep_quotes && !(next == '$' || next == self.escape) => {
                        out.push(c);
                        out.push(next);
                    }
                    Some(next) => out.push(next),
                    None => out.push(c),
                },
                c => out.push(c),
            }
        }
        match end {
            Some(end) => Err(format!("'{end}' is missing")),
            None => Ok(out),
        }
    }

    fn quoted(&mut self, out: &mut String) -> Result<(), String> {
        loop {
            match self.rest.next() {
                None => return Err("a double quote is not closed".into()),
                Some('"') => return Ok(()),
                Some('$') => out.push_str(&self.variable()?),
                Some(c) if c == self.escape => match self.rest.next() {
                    Some(next) if next == '"' || next == '$' || next == self.escape => {
                        out.push(next);
                    }
                    Some(next) => {
                        out.push(c);
                        out.push(next);
                    }
                    None => out.push(c),
                },
                Some(c) => out.push(c),
            }
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(&c) = self.rest.peek() {
            if !(c.is_ascii_alphanumeric() || c == '_') {
                break;
            }
            name.push(c);
            self.rest.next();
        }
        name
    }

    fn variable(&mut self) -> Result<String, String> {
        if self.rest.peek() != Some(&'{') {
            let name = self.name();
            return Ok(match name.is_empty() {
                true => "$".to_owned(),
                false => self.value(&name)?.unwrap_or_default(),
            });
        }
        self.rest.next();
        let name = self.name();
        if name.is_empty() {
            return Err("${ needs the name of a variable".into());
        }
        let mut operator = String::new();
        loop {
            match self.rest.next() {
                None => return Err(format!("${{{name} is not closed")),
                Some('}') if operator.is_empty() => {
                    return Ok(self.value(&name)?.unwrap_or_default());
                }
                Some(':') if operator.is_empty() => operator.push(':'),
                Some(c @ ('-' | '+' | '?')) => {
                    operator.push(c);
                    break;
                }
                Some(c) => {
                    return Err(format!(
                        "${{{name}{operator}{c}…}} is not supported; there are :- :+ :? and the same without the colon"
                    ));
                }
            }
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("variables are nested more than {DEPTH_MAX} times"));
        }
        let other = self.word(Some('}'))?;
        self.depth -= 1;
        let value = self.value(&name)?;
        let is_set = match operator.starts_with(':') {
            true => value.as_ref().is_some_and(|value| !value.is_empty()),
            false => value.is_some(),
        };
        match (operator.chars().last(), is_set) {
            (Some('-'), false) => Ok(other),
            (Some('+'), true) => Ok(other),
            (Some('+'), false) => Ok(String::new()),
            (Some('?'), false) => Err(format!(
                "{name}: {}",
                match other.is_empty() {
                    true => "is not set",
                    false => &other,
                }
            )),
            _ => Ok(value.unwrap_or_default()),
        }
    }
}

/// Splits at blanks outside quotes; quotes and escapes stay.
pub(crate) fn split(text: &str, escape: char) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match quote {
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if c == '\'' || c == '"' => quote = Some(c),
            Some(open) if c == open => quote = None,
            _ if c == escape && quote != Some('\'') => {
                word.push(c);
                word.extend(chars.next());
                continue;
            }
            _ => {}
        }
        word.push(c);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let lookup = |name: &str| match name {
            "a" => Some("one".to_owned()),
            "empty" => Some(String::new()),
            _ => None,
        };
        assert_eq!(
            expand(text, '\\', &lookup, &Room::default()).as_deref(),
            Ok(expected),
            "{text}"
        );
    }

    #[test]
    fn words_are_expanded_as_the_reference_says() {
        for (text, expected) in [
            ("$a/${a}x", "one/onex"),
            (r"\$a", "$a"),
            (r"'$a'", "$a"),
            (r#""$a b""#, "one b"),
            (r#""\$a \" \x""#, r#"$a " \x"#),
            ("${none:-x}", "x"),
            ("${empty:-x}", "x"),
            ("${empty-x}", ""),
            ("${a:+y}", "y"),
            ("${none:+y}", ""),
            ("${none:-${a}}", "one"),
            ("$none", ""),
            ("$", "$"),
            (r"a\ b", "a b"),
        ] {
            check(text, expected);
        }
        let none = |_: &str| None;
        for bad in ["'a", "\"a", "${a", "${a#x}", "${none:?no value}"] {
            let expanded = expand(bad, '\\', &none, &Room::default());
            assert!(expanded.is_err(), "{bad}");
        }
    }

    #[test]
    fn blanks_in_quotes_split_nothing() {
        assert_eq!(
            split(r#"a="b c" d\ e 'f g'"#, '\\'),
            [r#"a="b c""#, r"d\ e", "'f g'"]
        );
    }
}
