//! Colour, for people at a terminal.

use std::io::IsTerminal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Red,
    Green,
    Yellow,
}

impl Colour {
    fn code(self) -> u8 {
        match self {
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
        }
    }

    pub fn paint(self, text: &str) -> String {
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}

/// Whether what is written there should have colours: see no-color.org.
pub fn is_wanted(out: &impl IsTerminal) -> bool {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    out.is_terminal() && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb"
}

/// Of a state, a verdict or the end of a command, as tables show it.
pub fn of_state(text: &str) -> Option<Colour> {
    match text.split_whitespace().next()? {
        "running" | "ready" | "done" | "ok" => Some(Colour::Green),
        "failed" | "ERROR" | "signal" | "out" | "timed" | "unreachable" => Some(Colour::Red),
        "exit" if text != "exit 0" => Some(Colour::Red),
        "creating" | "pausing" | "resuming" | "restoring" | "stopping" | "deleting" | "warning" => {
            Some(Colour::Yellow)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_colour_of_what_they_mean() {
        for (text, colour) in [
            ("running", Some(Colour::Green)),
            ("stopped", None),
            ("exit 0", None),
            ("exit 3", Some(Colour::Red)),
            ("out of memory", Some(Colour::Red)),
            ("pausing", Some(Colour::Yellow)),
            ("", None),
        ] {
            assert_eq!(of_state(text), colour, "{text}");
        }
    }
}
