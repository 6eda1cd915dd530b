//! This side of a terminal: raw while a sandbox has it, itself again however that ends.

use std::io::{self, IsTerminal, Write};

use cove_api::process::TerminalSize;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::report::CliError;

/// What a terminal is taken for that does not say.
const DEFAULT_SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// Whether a person sits at both ends.
pub fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

pub fn size() -> TerminalSize {
    match tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => TerminalSize {
            cols: size.ws_col.into(),
            rows: size.ws_row.into(),
        },
        _ => DEFAULT_SIZE,
    }
}

/// A line that is typed after the question and not shown.
pub fn hidden_line(question: &str) -> Result<String, CliError> {
    let failed = |error: io::Error| CliError::io("cannot read from the terminal", error);
    let stdin = io::stdin();
    let before = tcgetattr(&stdin).map_err(|error| failed(error.into()))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    eprint!("{question}");
    io::stderr().flush().map_err(failed)?;
    tcsetattr(&stdin, OptionalActions::Flush, &silent).map_err(|error| failed(error.into()))?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    let restored = tcsetattr(&stdin, OptionalActions::Flush, &before);
    eprintln!();
    restored.map_err(|error| failed(error.into()))?;
    read.map_err(failed)?;
    Ok(line)
}

/// Raw mode for as long as it lives.
pub struct Raw {
    before: Termios,
}

impl Raw {
    pub fn enter() -> std::io::Result<Self> {
        let before = tcgetattr(rustix::stdio::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nothing better can be done for a terminal that is gone.
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.before).ok();
    }
}
