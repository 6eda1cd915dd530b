//! A sandbox's tree of snapshots, forks and rollbacks, drawn.
//!
//! The line from its beginning to where it is now runs straight down; everything else branches off to
//! the right.

use std::collections::{HashMap, HashSet};

use cove_api::Timestamp;
use cove_api::snapshot::{Snapshot, SnapshotKind, Timeline};
use cove_client::Client;

use crate::output;
use crate::report::{CliError, printable};
use crate::units;

pub async fn run(client: &Client, sandbox: &str, json: bool) -> Result<(), CliError> {
    let tree = client.timeline(sandbox).await?;
    if json {
        return output::json(&tree);
    }
    output::write(draw(&tree).as_bytes())
}

/// A point of the tree: a snapshot, a fork, or where the sandbox is now.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    Snapshot(usize),
    Fork(usize),
    Now,
}

struct Drawing<'a> {
    tree: &'a Timeline,
    /// What grew from each snapshot, oldest first; under the empty name what grew from none.
    grown: HashMap<&'a str, Vec<Point>>,
    /// The line to where the sandbox is now.
    line: HashSet<&'a str>,
    out: String,
}

fn draw<'a>(tree: &'a Timeline) -> String {
    let known: HashMap<&str, usize> = tree
        .snapshots
        .iter()
        .enumerate()
        .map(|(index, one)| (one.id.as_str(), index))
        .collect();
    let below = |parent: Option<&'a String>| -> &'a str {
        let parent = parent.map_or("", String::as_str);
        if known.contains_key(parent) {
            parent
        } else {
            ""
        }
    };
    let mut grown: HashMap<&str, Vec<(Timestamp, Point)>> = HashMap::new();
    for (index, one) in tree.snapshots.iter().enumerate() {
        let point = (one.created_at, Point::Snapshot(index));
        grown
            .entry(below(one.parent.as_ref()))
            .or_default()
            .push(point);
    }
    for (index, fork) in tree.forks.iter().enumerate() {
        let point = (fork.created_at, Point::Fork(index));
        let from = below(Some(&fork.from_snapshot));
        grown.entry(from).or_default().push(point);
    }
    let mut line = HashSet::new();
    let mut at = below(tree.head.as_ref());
    // A parent is always another snapshot, but what a server says is not relied on to end.
    while let Some(index) = known.get(at)
        && line.insert(at)
    {
        at = below(tree.snapshots[*index].parent.as_ref());
    }
    let mut grown: HashMap<&str, Vec<Point>> = grown
        .into_iter()
        .map(|(parent, mut points)| {
            points.sort_by_key(|(at, _)| at.0);
            (parent, points.into_iter().map(|(_, point)| point).collect())
        })
        .collect();
    let head = below(tree.head.as_ref());
    grown.entry(head).or_default().push(Point::Now);
    let mut drawing = Drawing {
        tree,
        grown,
        line,
        out: String::new(),
    };
    drawing.begin();
    if tree.truncated {
        drawing.out.push_str("older snapshots are not shown\n");
    }
    drawing.out
}

impl<'a> Drawing<'a> {
    fn begin(&mut self) {
        let from = match &self.tree.from_snapshot {
            Some(_) => "forked",
            None => "created",
        };
        let text = format!("○ {from} {}", units::ago(self.tree.created_at));
        let roots = self.grown.remove("").unwrap_or_default();
        self.put("", &text);
        self.chain(roots, "", 0);
    }

    fn put(&mut self, prefix: &str, text: &str) {
        self.out.push_str(prefix);
        self.out.push_str(&printable(text).replace('\n', " "));
        self.out.push('\n');
    }

    /// Draws what grew from one point: branches first, then the line goes on below it.
    fn chain(&mut self, mut points: Vec<Point>, prefix: &str, depth: usize) {
        /// Beyond this many branches off branches everything is drawn at one level.
        const DEPTH_MAX: usize = 32;
        loop {
            let Some(main) = self.main(&points) else {
                return;
            };
            for point in points.into_iter().filter(|point| *point != main) {
                let (first, rest) = match depth < DEPTH_MAX {
                    true => (format!("{prefix}├─"), format!("{prefix}│ ")),
                    false => (prefix.to_owned(), prefix.to_owned()),
                };
                let text = self.text(point);
                self.put(&first, &text);
                let grown = self.take(point);
                self.chain(grown, &rest, depth + 1);
            }
            let text = self.text(main);
            self.put(prefix, &text);
            points = self.take(main);
        }
    }

    /// What the line goes on with: towards now, else the newest.
    fn main(&self, points: &[Point]) -> Option<Point> {
        let is_line = |point: &&Point| match point {
            Point::Now => true,
            Point::Fork(_) => false,
            Point::Snapshot(index) => {
                let id = self.tree.snapshots[*index].id.as_str();
                self.line.contains(id)
            }
        };
        points.iter().find(is_line).or(points.last()).copied()
    }

    fn take(&mut self, point: Point) -> Vec<Point> {
        match point {
            Point::Snapshot(index) => {
                let id = self.tree.snapshots[index].id.as_str();
                self.grown.remove(id).unwrap_or_default()
            }
            Point::Fork(_) | Point::Now => Vec::new(),
        }
    }

    fn text(&self, point: Point) -> String {
        match point {
            Point::Snapshot(index) => snapshot(&self.tree.snapshots[index], &self.tree.sandbox),
            Point::Fork(index) => {
                let fork = &self.tree.forks[index];
                let name = title(fork.name.as_deref(), &fork.sandbox);
                let (state, ago) = (fork.state.as_str(), units::ago(fork.created_at));
                format!("◇ fork {name}  {state}, {ago}")
            }
            Point::Now => {
                let name = title(self.tree.name.as_deref(), &self.tree.sandbox);
                format!("◉ now: {name}  {}", self.tree.state.as_str())
            }
        }
    }
}

fn title(name: Option<&str>, id: &str) -> String {
    match name {
        Some(name) => format!("{name} ({id})"),
        None => id.to_owned(),
    }
}

fn snapshot(one: &Snapshot, of: &str) -> String {
    let mark = if one.deleted_at.is_some() {
        "○"
    } else {
        "●"
    };
    let mut words = vec![match (one.kind, &one.rolled_back_to) {
        (SnapshotKind::Rollback, Some(to)) => format!("before the rollback to {to}"),
        (SnapshotKind::Manual, _) => "snapshot".into(),
        (kind, _) => kind.as_str().into(),
    }];
    if one.memory {
        words.push("with memory".into());
    }
    if one.sandbox.as_deref().is_some_and(|sandbox| sandbox != of) {
        words.push(format!("of {}", one.sandbox.as_deref().unwrap_or_default()));
    }
    match one.deleted_at {
        Some(_) => words.push("gone".into()),
        None => words.push(units::bytes(one.exclusive_bytes)),
    }
    words.push(units::ago(one.created_at));
    let name = title(one.name.as_deref(), &one.id);
    format!("{mark} {name}  {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(id: &str, parent: Option<&str>, second: u32) -> serde_json::Value {
        json!({"id": id, "name": null, "sandbox": "sbx", "parent": parent, "kind": "manual",
            "memory": false, "created_at": format!("2026-01-01T00:00:{second:02}Z"),
            "exclusive_bytes": 0, "shared_bytes": 0, "memory_bytes": 0, "stopped_us": 0})
    }

    fn tree(head: Option<&str>, snapshots: Vec<serde_json::Value>) -> Timeline {
        serde_json::from_value(
            json!({"sandbox": "sbx", "name": "agent", "state": "running",
            "created_at": "2026-01-01T00:00:00Z", "head": head, "snapshots": snapshots,
            "forks": [{"sandbox": "kid", "state": "paused", "from_snapshot": "a",
                "created_at": "2026-01-01T00:00:09Z"}], "truncated": false}),
        )
        .unwrap()
    }

    /// The drawing without what changes with time.
    fn shape(tree: &Timeline) -> Vec<String> {
        let words = |line: &str| line.split("  ").next().unwrap_or("").to_owned();
        draw(tree).lines().skip(1).map(words).collect()
    }

    #[test]
    fn the_line_to_now_runs_straight_and_the_rest_branches_off() {
        let snapshots = vec![
            one("a", None, 1),
            one("b", Some("a"), 2),
            one("c", Some("b"), 3),
            one("d", Some("a"), 4),
        ];
        let drawn = shape(&tree(Some("d"), snapshots));
        assert_eq!(
            drawn,
            [
                "● a",
                "├─● b",
                "│ ● c",
                "├─◇ fork kid",
                "● d",
                "◉ now: agent (sbx)"
            ]
        );
    }

    #[test]
    fn without_snapshots_there_is_only_now() {
        let mut tree = tree(None, Vec::new());
        tree.forks.clear();
        assert_eq!(shape(&tree), ["◉ now: agent (sbx)"]);
    }

    #[test]
    fn unknown_parents_and_circles_end_the_drawing_too() {
        let snapshots = vec![
            one("a", Some("gone"), 1),
            one("x", Some("y"), 2),
            one("y", Some("x"), 3),
        ];
        let drawn = shape(&tree(Some("x"), snapshots));
        assert_eq!(drawn[0], "● a");
    }
}
