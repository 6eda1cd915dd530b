//! Standard output: tables for people, JSON for programs, and silence when nobody reads.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;

use crate::colour;
use crate::report::{CliError, printable};

const SECOND: Duration = Duration::from_secs(1);

/// Writes all of it, now.
pub fn write(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(closed)
}

pub fn line(text: &str) -> Result<(), CliError> {
    let mut text = text.to_owned();
    text.push('\n');
    write(text.as_bytes())
}

/// A remark for people at a terminal; programs see nothing of it.
pub fn note(text: &str) {
    if io::stderr().is_terminal() {
        eprintln!("{text}");
    }
}

pub fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).expect("wire types are always JSON");
    line(&text)
}

/// One value of a stream.
pub fn json_line(value: &impl Serialize) -> Result<(), CliError> {
    line(&serde_json::to_string(value).expect("wire types are always JSON"))
}

/// What was done to the thing of this name, where the server answers without content.
pub fn done(what: &str, name: &str, as_json: bool) -> Result<(), CliError> {
    match as_json {
        true => json_line(&serde_json::json!({ what: name })),
        false => line(name),
    }
}

/// A step of something that takes several.
pub fn message(text: &str, as_json: bool) -> Result<(), CliError> {
    match as_json {
        true => json_line(&serde_json::json!({ "message": text })),
        false => line(text),
    }
}

/// Ids alone, one a line; as JSON a list of them.
pub fn ids<'a>(ids: impl Iterator<Item = &'a str>, as_json: bool) -> Result<(), CliError> {
    match as_json {
        true => json(&ids.collect::<Vec<_>>()),
        false => write(
            ids.map(|id| format!("{id}\n"))
                .collect::<String>()
                .as_bytes(),
        ),
    }
}

pub fn closed(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::OutputClosed,
        _ => CliError::io("cannot write the output", error),
    }
}

/// Columns as wide as they need to be. States are coloured at a terminal.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![
                headings
                    .iter()
                    .map(|heading| (*heading).to_owned())
                    .collect(),
            ],
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| printable(&cell).replace('\n', " "))
                .collect(),
        );
    }

    pub fn print(&self) -> Result<(), CliError> {
        write(self.render(colour::is_wanted(&io::stdout())).as_bytes())
    }

    pub fn render(&self, coloured: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|at| {
                let cells = self.rows.iter().filter_map(|row| row.get(at));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match colour::of_state(cell).filter(|_| coloured && self.holds_states(at)) {
                    Some(colour) => line.push_str(&colour.paint(cell)),
                    None => line.push_str(cell),
                }
                // Of the cell: what colours it has no width.
                line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }

    fn holds_states(&self, column: usize) -> bool {
        let heading = self.rows.first().and_then(|row| row.get(column));
        heading.is_some_and(|heading| heading == "STATE")
    }
}

/// Name and value, one a line.
pub struct Facts {
    facts: Vec<(&'static str, String)>,
}

impl Facts {
    pub fn new() -> Self {
        Self { facts: Vec::new() }
    }

    pub fn add(&mut self, name: &'static str, value: impl Into<String>) -> &mut Self {
        self.facts.push((name, value.into()));
        self
    }

    pub fn maybe(&mut self, name: &'static str, value: Option<impl Into<String>>) -> &mut Self {
        if let Some(value) = value {
            self.add(name, value);
        }
        self
    }

    pub fn print(&self) -> Result<(), CliError> {
        let width = self
            .facts
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        let mut out = String::new();
        let coloured = colour::is_wanted(&io::stdout());
        for (name, value) in &self.facts {
            let value = printable(value).replace('\n', " ");
            let value = match colour::of_state(&value).filter(|_| coloured && *name == "state") {
                Some(colour) => colour.paint(&value),
                None => value,
            };
            out.push_str(&format!("{name:width$}  {value}\n"));
        }
        write(out.as_bytes())
    }
}

/// One line on standard error that is written over, for work that takes a while; only where a
/// person watches.
pub struct Progress {
    shown: bool,
    on: bool,
}

impl Progress {
    pub fn new(quiet: bool) -> Self {
        Self {
            shown: false,
            on: !quiet && io::stderr().is_terminal(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn show(&mut self, text: &str) {
        if self.on {
            eprint!("\r\x1b[K{}", printable(text));
            io::stderr().flush().ok();
            self.shown = true;
        }
    }

    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
            io::stderr().flush().ok();
            self.shown = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Does what may take a while, and after a second shows what that is and for how long.
pub async fn waiting<T>(quiet: bool, what: &str, work: impl Future<Output = T>) -> T {
    let mut progress = Progress::new(quiet);
    tokio::pin!(work);
    for second in 0_u64.. {
        if second > 0 {
            progress.show(&format!("{what}, {second} s"));
        }
        if let Ok(done) = tokio::time::timeout(SECOND, &mut work).await {
            return done;
        }
    }
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_trailing_blanks() {
        let mut table = Table::new(&["ID", "NAME"]);
        table.row(["long-id".into(), "a".into()]);
        table.row(["x".into(), String::new()]);
        assert_eq!(table.render(true), "ID       NAME\nlong-id  a\nx\n");
        let mut table = Table::new(&["STATE", "ID"]);
        table.row(["running".into(), "running".into()]);
        table.row(["failed".into(), "x".into()]);
        assert_eq!(
            table.render(true),
            "STATE    ID\n\x1b[32mrunning\x1b[0m  running\n\x1b[31mfailed\x1b[0m   x\n"
        );
        assert!(!table.render(false).contains('\x1b'));
    }
}
