//! Sizes and times as people write and read them.

use std::collections::BTreeMap;

use cove_api::Timestamp;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime, UtcOffset};

use crate::report::CliError;

/// `512`, `512M`, `2G`, `1T`: in MiB.
pub fn megabytes(text: &str) -> Result<u64, String> {
    let wrong = || "must be like 512M, 2G or 1T".to_owned();
    let (digits, unit) = split(text);
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" | "M" | "m" => 1,
        "G" | "g" => 1024,
        "T" | "t" => 1024 * 1024,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

/// `90`, `90s`, `10m`, `2h`, `7d`: in seconds.
pub fn duration_s(text: &str) -> Result<u64, String> {
    let wrong = || "must be like 90s, 10m, 2h or 7d".to_owned();
    let (digits, unit) = split(text);
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

/// `10m`: so long ago; or a moment as in RFC 3339.
pub fn since(text: &str) -> Result<Timestamp, String> {
    let wrong = || "must be like 90s, 10m, 2h, 7d or 2026-01-31T12:00:00Z".to_owned();
    if let Ok(moment) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(Timestamp(moment));
    }
    let ago = duration_s(text).map_err(|_| wrong())?;
    let ago = i64::try_from(ago).map_err(|_| wrong())?;
    let moment = OffsetDateTime::now_utc().checked_sub(Duration::seconds(ago));
    moment.map(Timestamp).ok_or_else(wrong)
}

fn split(text: &str) -> (&str, &str) {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(at)
}

pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be KEY=VALUE".into()),
    }
}

/// Variables from a file: KEY=VALUE a line, KEY alone for this program's own, `#` for remarks.
#[derive(Debug, Clone, Default)]
pub struct EnvFile(pub Vec<(String, String)>);

pub fn env_file(path: &str) -> Result<EnvFile, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut variables = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.contains('=') {
            let pair = key_value(line).map_err(|error| format!("line {}: {error}", number + 1))?;
            variables.push(pair);
        } else if let Ok(value) = std::env::var(line) {
            variables.push((line.to_owned(), value));
        }
    }
    Ok(EnvFile(variables))
}

/// What `--env-file` and `--env` set together; the latter wins.
pub fn variables(
    files: &[EnvFile],
    given: &[(String, String)],
) -> std::collections::BTreeMap<String, String> {
    let filed = files.iter().flat_map(|file| file.0.iter());
    filed.chain(given).cloned().collect()
}

/// What was given for each name. A name that is given twice is refused: which value was meant is not known.
pub fn each_once<V>(
    what: &str,
    given: impl Iterator<Item = (String, V)>,
) -> Result<BTreeMap<String, V>, CliError> {
    let mut all = BTreeMap::new();
    for (name, value) in given {
        if all.contains_key(&name) {
            return Err(CliError::usage(format!("{what} {name:?} is given twice")));
        }
        all.insert(name, value);
    }
    Ok(all)
}

/// `1.5 GB`, for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit < UNITS.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// To the millisecond, always as wide; `-` for an unknown one.
pub fn millis(at: Option<Timestamp>) -> String {
    let Some(Timestamp(at)) = at else {
        return format!("{:<24}", "-");
    };
    let at = at.to_offset(UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

/// `3 min ago`, for people.
pub fn ago(at: Timestamp) -> String {
    let seconds = at.millis_until(OffsetDateTime::now_utc()) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// `1h 5m`, for people.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once() {
        let given = |names: &[&str]| {
            let given = names.iter().map(|name| ((*name).to_owned(), true));
            each_once("taint", given).map(|all| all.len())
        };
        assert_eq!(given(&["lab", "spot"]).unwrap(), 2);
        let twice = given(&["lab", "spot", "lab"]).unwrap_err();
        assert_eq!(twice.to_string(), "taint \"lab\" is given twice");
    }

    #[test]
    fn sizes_and_times_are_read_with_their_units() {
        assert_eq!(megabytes("512"), Ok(512));
        assert_eq!(megabytes("2G"), Ok(2048));
        assert_eq!(megabytes("1GiB"), Ok(1024));
        assert_eq!(duration_s("10m"), Ok(600));
        assert_eq!(duration_s("7d"), Ok(604_800));
        for bad in ["", "G", "1.5G", "-1", "2X", "99999999999999999999"] {
            assert!(megabytes(bad).is_err(), "{bad} was accepted");
        }
        assert!(duration_s("18446744073709551615d").is_err());
    }

    #[test]
    fn a_beginning_is_so_long_ago_or_a_moment() {
        let moment = since("2026-01-31T12:00:00+01:00").unwrap();
        assert_eq!(moment.0.unix_timestamp(), 1_769_857_200);
        let before = OffsetDateTime::now_utc() - Duration::minutes(10);
        let ago = since("10m").unwrap();
        assert!(ago.0 >= before && ago.0 <= OffsetDateTime::now_utc() - Duration::minutes(10));
        for bad in ["", "yesterday", "-5m", "2026-01-31", "99999999999999d"] {
            assert!(since(bad).is_err(), "{bad} was accepted");
        }
    }

    #[test]
    fn times_of_lines_have_one_width() {
        let at = Timestamp::from_unix_ms(1_769_857_200_070);
        assert_eq!(millis(Some(at)), "2026-01-31T11:00:00.070Z");
        assert_eq!(millis(None).len(), millis(Some(at)).len());
    }

    #[test]
    fn byte_counts_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1500), "1.5 kB");
        assert_eq!(bytes(200_000_000), "200 MB");
    }
}
