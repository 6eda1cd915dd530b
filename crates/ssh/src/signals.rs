//! Signals by the names SSH gives them.

use russh::Sig;

/// Numbers as on every Linux this runs on.
const KNOWN: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("WINCH", 28),
    ("SYS", 31),
];
pub const HANGUP: i32 = 1;

pub fn number(signal: &Sig) -> Option<i32> {
    let name = match signal {
        Sig::ABRT => "ABRT",
        Sig::ALRM => "ALRM",
        Sig::FPE => "FPE",
        Sig::HUP => "HUP",
        Sig::ILL => "ILL",
        Sig::INT => "INT",
        Sig::KILL => "KILL",
        Sig::PIPE => "PIPE",
        Sig::QUIT => "QUIT",
        Sig::SEGV => "SEGV",
        Sig::TERM => "TERM",
        Sig::USR1 => "USR1",
        Sig::Custom(name) => name.as_str(),
    };
    let found = KNOWN.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number)
}

pub fn named(number: i32) -> Sig {
    match KNOWN.iter().find(|(_, known)| *known == number) {
        Some(("ABRT", _)) => Sig::ABRT,
        Some(("ALRM", _)) => Sig::ALRM,
        Some(("FPE", _)) => Sig::FPE,
        Some(("HUP", _)) => Sig::HUP,
        Some(("ILL", _)) => Sig::ILL,
        Some(("INT", _)) => Sig::INT,
        Some(("KILL", _)) => Sig::KILL,
        Some(("PIPE", _)) => Sig::PIPE,
        Some(("QUIT", _)) => Sig::QUIT,
        Some(("SEGV", _)) => Sig::SEGV,
        Some(("TERM", _)) => Sig::TERM,
        Some(("USR1", _)) => Sig::USR1,
        Some((name, _)) => Sig::Custom((*name).to_owned()),
        None => Sig::Custom(format!("SIG{number}@cove")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_comes_back_by_its_name() {
        for (name, known) in KNOWN {
            assert_eq!(number(&named(*known)), Some(*known), "{name}");
        }
        assert_eq!(number(&Sig::Custom("NONE".into())), None);
    }
}
