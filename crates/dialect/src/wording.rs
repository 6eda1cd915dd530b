//! What is wrong with a body or a query, in words for its author: the path of the field and what it must be. The
//! reader's own messages name types of this program, which callers do not know.

/// A message of serde, at the path of a field; the path is empty where it is not known.
pub fn plain(path: &str, error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let path = match path {
        "." | "?" => "",
        path => path,
    };
    let message = without_position(&text);
    words(path, message).unwrap_or_else(|| match path {
        "" => message.to_owned(),
        path => format!("{path}: {message}"),
    })
}

/// Where in the text it was is of no use when the field is named.
fn without_position(text: &str) -> &str {
    match text.rfind(" at line ") {
        Some(at) if text[at..].contains(" column ") => &text[..at],
        _ => text,
    }
}

fn words(path: &str, message: &str) -> Option<String> {
    if let Some(field) = quoted(message, "missing field ") {
        return Some(format!("{} is missing", below(path, field)));
    }
    if let Some(field) = quoted(message, "duplicate field ") {
        return Some(format!("{} is given twice", below(path, field)));
    }
    if let Some(field) = quoted(message, "unknown field ") {
        // The path may or may not end with the field itself.
        let parent = path
            .strip_suffix(field)
            .map_or(path, |parent| parent.trim_end_matches('.'));
        let field = below(parent, field);
        return Some(match known(message) {
            known if known.is_empty() => format!("unknown field {field}; no fields are known here"),
            known => format!("unknown field {field}; known fields: {}", known.join(", ")),
        });
    }
    let here = match path {
        "" => "it",
        path => path,
    };
    if let Some(given) = quoted(message, "unknown variant ") {
        let known = known(message);
        return Some(format!(
            "{here} must be one of {}, not {given:?}",
            known.join(", ")
        ));
    }
    if let Some(rest) = message.strip_prefix("invalid type: ") {
        let (given, expected) = rest.split_once(", expected ")?;
        return Some(format!(
            "{here} must be {}, not {}",
            wanted(expected),
            found(given)
        ));
    }
    if let Some(rest) = message.strip_prefix("invalid value: ") {
        let (given, expected) = rest.split_once(", expected ")?;
        let value = given.split('`').nth(1).unwrap_or(given);
        return Some(format!("{here} must be {}, not {value}", wanted(expected)));
    }
    if let Some(rest) = message.strip_prefix("invalid length ") {
        let (count, expected) = rest.split_once(", expected ")?;
        return Some(format!(
            "{here} has {count} elements and must be {}",
            wanted(expected)
        ));
    }
    let must = match message {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "a whole number"
        }
        "number too large to fit in target type" => "a smaller number",
        "number too small to fit in target type" => "a larger number",
        "invalid float literal" | "cannot parse float from empty string" => "a number",
        "provided string was not `true` or `false`" => "true or false",
        _ => return None,
    };
    Some(format!("{here} must be {must}"))
}

/// The first name in backquotes behind these words.
fn quoted<'a>(message: &'a str, begin: &str) -> Option<&'a str> {
    let rest = message.strip_prefix(begin)?.strip_prefix('`')?;
    rest.split('`').next()
}

/// The names that were expected.
fn known(message: &str) -> Vec<&str> {
    let expected = message.split_once("expected ").map_or("", |(_, rest)| rest);
    expected.split('`').skip(1).step_by(2).collect()
}

fn below(path: &str, field: &str) -> String {
    match path {
        "" => field.to_owned(),
        path => format!("{path}.{field}"),
    }
}

fn wanted(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "string" | "a borrowed string" => "a string",
        "a sequence" => "a list",
        "a map" => "an object",
        "a nonzero u16" => "a whole number of 1 or more",
        other if other.starts_with("struct ") || other.starts_with("internally tagged enum ") => {
            "an object"
        }
        other if other.starts_with("enum ") => "one of its values",
        other => other,
    }
}

fn found(given: &str) -> String {
    let kind = given.split([' ', '`']).next().unwrap_or_default();
    match kind {
        "string" => "a string".into(),
        "integer" | "floating" => given.split('`').nth(1).unwrap_or("a number").into(),
        "boolean" => given.split('`').nth(1).unwrap_or("a boolean").into(),
        "null" | "unit" => "null".into(),
        "sequence" => "a list".into(),
        "map" => "an object".into(),
        _ => given.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn messages_name_the_field_and_what_it_must_be() {
        for (path, said, told) in [
            (
                ".",
                "missing field `name` at line 1 column 5",
                "name is missing",
            ),
            ("quota", "missing field `cpu`", "quota.cpu is missing"),
            (
                "resources.memroy",
                "unknown field `memroy`, expected one of `cpu`, `memory_mb` at line 1 column 9",
                "unknown field resources.memroy; known fields: cpu, memory_mb",
            ),
            (
                ".",
                "unknown field `x`, there are no fields",
                "unknown field x; no fields are known here",
            ),
            ("a", "duplicate field `b`", "a.b is given twice"),
            (
                "network.mode",
                "unknown variant `all`, expected one of `none`, `allowlist`, `open` at line 2 column 3",
                "network.mode must be one of none, allowlist, open, not \"all\"",
            ),
            (
                "timeout_ms",
                "invalid type: string \"10\", expected u64 at line 1 column 20",
                "timeout_ms must be a whole number of 0 or more, not a string",
            ),
            (
                "timeout_ms",
                "invalid value: integer `-1`, expected u64",
                "timeout_ms must be a whole number of 0 or more, not -1",
            ),
            (
                "argv[0]",
                "invalid type: null, expected a string",
                "argv[0] must be a string, not null",
            ),
            (
                ".",
                "invalid type: sequence, expected an object",
                "it must be an object, not a list",
            ),
            (
                "",
                "invalid type: map, expected a sequence",
                "it must be a list, not an object",
            ),
            (
                "limit",
                "invalid digit found in string",
                "limit must be a whole number",
            ),
            (
                "follow",
                "provided string was not `true` or `false`",
                "follow must be true or false",
            ),
            (
                "at",
                "the time is before 1970",
                "at: the time is before 1970",
            ),
        ] {
            assert_eq!(plain(path, &said), told);
        }
    }
}
