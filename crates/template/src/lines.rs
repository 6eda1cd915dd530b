//! From text to logical lines: parser directives, comments, continuation lines and here-documents.

use crate::{Error, Result};

/// Lines of one Dockerfile.
const LINES_MAX: usize = 20_000;

/// The text between `<<NAME` and a line `NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HereDoc {
    /// As it stands in the instruction, with its `<<`.
    pub token: String,
    pub name: String,
    /// Variables in it are expanded: the name was not quoted.
    pub expand: bool,
    pub content: String,
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub number: u32,
    /// In capitals.
    pub keyword: String,
    /// `--name=value` before the arguments.
    pub flags: Vec<(String, String)>,
    /// What is left, without the line ends of continuations.
    pub rest: String,
    pub documents: Vec<HereDoc>,
}

#[derive(Debug)]
pub(crate) struct Lines {
    pub escape: char,
    pub lines: Vec<Line>,
}

fn directive(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.trim_start().strip_prefix('#')?.split_once('=')?;
    let name = name.trim().to_ascii_lowercase();
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then_some((name, value.trim()))
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// The line without the escape at its end, if it goes on in the next one.
fn continued(line: &str, escape: char) -> Option<&str> {
    line.trim_end_matches([' ', '\t']).strip_suffix(escape)
}

pub(crate) fn read(text: &str) -> Result<Lines> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let all: Vec<&str> = text.lines().collect();
    if all.len() > LINES_MAX {
        return Err(Error::new(1, format!("more than {LINES_MAX} lines")));
    }
    let number = |at: usize| u32::try_from(at + 1).unwrap_or(u32::MAX);
    let mut escape = '\\';
    let mut seen = Vec::new();
    for (at, line) in all.iter().enumerate() {
        let Some((name, value)) = directive(line) else {
            break;
        };
        if !matches!(name.as_str(), "syntax" | "escape" | "check") {
            break;
        }
        if seen.contains(&name) {
            return Err(Error::new(
                number(at),
                format!("the directive {name} appears twice"),
            ));
        }
        match (name.as_str(), value) {
            ("escape", "\\") => {}
            ("escape", "`") => escape = '`',
            ("escape", _) => {
                return Err(Error::new(number(at), "escape must be \\ or `"));
            }
            // The syntax of this reader is the only one; checks are a linter's.
            _ => {}
        }
        seen.push(name);
    }
    let mut lines = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let first = at;
        let start = all[at].trim_start();
        at += 1;
        if start.is_empty() || start.starts_with('#') {
            continue;
        }
        let mut whole = String::new();
        let mut piece = start;
        loop {
            let Some(front) = continued(piece, escape) else {
                whole.push_str(piece);
                break;
            };
            whole.push_str(front);
            // Comments and empty lines inside an instruction are left out.
            while at < all.len() && (is_comment(all[at]) || all[at].trim().is_empty()) {
                at += 1;
            }
            if at == all.len() {
                break;
            }
            piece = all[at];
            at += 1;
        }
        let mut line = split(number(first), &whole)?;
        let holder = match line.keyword.as_str() {
            "ONBUILD" => line
                .rest
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .to_ascii_uppercase(),
            other => other.to_owned(),
        };
        if matches!(holder.as_str(), "RUN" | "COPY" | "ADD") {
            for mut document in documents(&whole) {
                let strip = document.token.contains("<<-");
                loop {
                    let Some(text) = all.get(at) else {
                        return Err(Error::new(
                            number(first),
                            format!("the here-document {} has no end", document.name),
                        ));
                    };
                    at += 1;
                    let text = match strip {
                        true => text.trim_start_matches('\t'),
                        false => text,
                    };
                    if text == document.name {
                        break;
                    }
                    document.content.push_str(text);
                    document.content.push('\n');
                }
                line.documents.push(document);
            }
        }
        lines.push(line);
    }
    Ok(Lines { escape, lines })
}

fn split(number: u32, whole: &str) -> Result<Line> {
    let (keyword, rest) = match whole.split_once(char::is_whitespace) {
        Some((keyword, rest)) => (keyword, rest.trim()),
        None => (whole, ""),
    };
    let keyword = keyword.to_ascii_uppercase();
    let mut line = Line {
        number,
        keyword,
        flags: Vec::new(),
        rest: String::new(),
        documents: Vec::new(),
    };
    let mut rest = rest;
    if matches!(
        line.keyword.as_str(),
        "RUN" | "COPY" | "ADD" | "FROM" | "HEALTHCHECK"
    ) {
        while let Some(after) = rest.strip_prefix("--") {
            let end = after.find(char::is_whitespace).unwrap_or(after.len());
            let flag = &after[..end];
            if flag.is_empty() {
                rest = after.trim_start();
                break;
            }
            let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
            line.flags.push((name.to_owned(), value.to_owned()));
            rest = after[end..].trim_start();
        }
    }
    line.rest = rest.to_owned();
    Ok(line)
}

/// The here-documents that an instruction announces, still without their text.
fn documents(line: &str) -> Vec<HereDoc> {
    let mut found = Vec::new();
    let mut quote = None;
    let mut start_of_word = 0;
    let mut words = Vec::new();
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c.is_whitespace() => {
                words.push(&line[start_of_word..at]);
                start_of_word = at + c.len_utf8();
            }
            _ => {}
        }
    }
    words.push(&line[start_of_word..]);
    for word in words {
        let digits = word.trim_start_matches(|c: char| c.is_ascii_digit());
        let Some(rest) = digits.strip_prefix("<<") else {
            continue;
        };
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        let (name, expand) = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => {
                let inner = rest[1..].strip_suffix(quote);
                let Some(inner) = inner else { continue };
                (inner, false)
            }
            _ => (rest, true),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            continue;
        }
        found.push(HereDoc {
            token: word.to_owned(),
            name: name.to_owned(),
            expand,
            content: String::new(),
        });
    }
    found
}
