//! Commands of Docker and kubectl that Cove does not have, and what to type instead.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands elsewhere, and the tip for each.
const WORDS: &[(&str, &str)] = &[
    (
        "pull",
        "`cove image pull IMAGE` pulls an image; `cove create --image IMAGE` pulls a missing one by itself",
    ),
    ("rmi", "`cove image rm IMAGE` removes an image"),
    (
        "build",
        "`cove template build --tag NAME DIRECTORY` builds a template from a Dockerfile",
    ),
    (
        "commit",
        "`cove snapshot SANDBOX --name NAME` saves a sandbox; `cove image create NAME --from SNAPSHOT` makes an image of it",
    ),
    (
        "attach",
        "`cove shell --attach PROCESS SANDBOX` attaches to a terminal; `cove logs --follow SANDBOX PROCESS` follows output",
    ),
    (
        "wait",
        "`cove logs --follow SANDBOX PROCESS` returns when the command ends; `cove ps --all SANDBOX` shows its exit code",
    ),
    (
        "info",
        "`cove doctor` checks the host; `cove version` prints the versions",
    ),
    (
        "push",
        "`cove snapshot export SNAPSHOT FILE` writes a snapshot to a file; Cove does not push to registries",
    ),
    (
        "save",
        "`cove snapshot export SNAPSHOT FILE` writes a snapshot to a file",
    ),
    (
        "export",
        "`cove snapshot export SNAPSHOT FILE` writes a snapshot to a file",
    ),
    (
        "load",
        "`cove image import NAME PATH` imports a filesystem; `cove snapshot import FILE` reads an exported snapshot",
    ),
    (
        "import",
        "`cove image import NAME PATH` imports a filesystem; `cove snapshot import FILE` reads an exported snapshot",
    ),
    (
        "tag",
        "`cove template tag TEMPLATE TAG` points a tag at a template",
    ),
    (
        "history",
        "`cove timeline SANDBOX` shows snapshots, forks and rollbacks",
    ),
    (
        "port",
        "`cove ports SANDBOX` lists ports; `cove port-forward SANDBOX PORT` forwards one",
    ),
    (
        "network",
        "`cove update SANDBOX --allow ENTRY` changes what a sandbox may reach",
    ),
    (
        "container",
        "`cove ls` lists sandboxes, the containers of Cove",
    ),
    (
        "system",
        "`cove doctor` checks the host; `cove usage` shows usage",
    ),
    ("logout", "`cove context rm NAME` removes a login"),
    (
        "get",
        "`cove ls` lists sandboxes; `cove show SANDBOX` shows one; `cove node ls` lists nodes",
    ),
    (
        "describe",
        "`cove show SANDBOX` shows a sandbox; `cove inspect SANDBOX` prints everything as JSON",
    ),
    (
        "expose",
        "`cove share SANDBOX PORT` creates a link to a port",
    ),
    ("edit", "`cove update SANDBOX` changes a sandbox"),
    ("patch", "`cove update SANDBOX` changes a sandbox"),
    (
        "cordon",
        "`cove node cordon NODE` keeps new sandboxes away from a node",
    ),
    (
        "taint",
        "`cove node set NODE --taint TAINT` reserves a node for sandboxes that tolerate the taint",
    ),
    (
        "uncordon",
        "`cove node uncordon NODE` lets new sandboxes on a node again",
    ),
];

/// Commands that Cove has and that need more here than there.
const NEEDS_MORE: &[(&str, &str)] = &[
    (
        "ps",
        "`cove ls` lists sandboxes; `cove ps SANDBOX` lists the commands that run in one",
    ),
    (
        "kill",
        "`cove stop SANDBOX` ends a sandbox; `cove ps SANDBOX` lists its commands with their ids",
    ),
];

fn tip(table: &[(&str, &'static str)], word: &str) -> Option<&'static str> {
    let found = table.iter().find(|(known, _)| *known == word);
    found.map(|(_, tip)| *tip)
}

/// The error with a tip in the place of a similar word, where the command is one of these.
pub fn explained(
    mut error: clap::Error,
    command: &clap::Command,
    arguments: &[OsString],
) -> clap::Error {
    let typed = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let known = typed
        .clone()
        .find(|word| command.find_subcommand(word).is_some());
    let found = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        // Only as the first command: `cove volume attach` is about something else.
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => {
            let first = typed.clone().find(|one| known == Some(*one) || one == word);
            tip(WORDS, word).filter(|_| first == Some(word.as_str()))
        }
        (ErrorKind::MissingRequiredArgument, _) => known.and_then(|word| tip(NEEDS_MORE, word)),
        _ => None,
    };
    if let Some(tip) = found {
        error.remove(ContextKind::SuggestedSubcommand);
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn refused(words: &[&str]) -> String {
        let mut command = Cli::command();
        let arguments: Vec<OsString> = ["cove"].iter().chain(words).map(Into::into).collect();
        let error = command.try_get_matches_from_mut(&arguments).unwrap_err();
        explained(error, &command, &arguments).render().to_string()
    }

    #[test]
    fn words_of_others_get_a_tip_and_no_similar_word() {
        for (word, tip) in WORDS {
            let text = refused(&["--json", word, "thing"]);
            assert!(text.contains(tip), "{word}: {text}");
            assert!(!text.contains("similar"), "{word}: {text}");
        }
        for (word, tip) in NEEDS_MORE {
            let text = refused(&[word]);
            assert!(text.contains(tip), "{word}: {text}");
        }
        let stop = "`cove stop SANDBOX`";
        assert!(refused(&["kill", "box"]).contains(stop));
        // Below another command the word means something else; a typing error is none of them.
        assert!(!refused(&["volume", "attach"]).contains("cove shell"));
        assert!(refused(&["creat"]).contains("'create'"));
    }

    #[test]
    fn tips_name_commands_that_can_be_typed() {
        let tips = WORDS.iter().chain(NEEDS_MORE).map(|(_, tip)| *tip);
        for tip in tips {
            let commands: Vec<_> = tip.split('`').skip(1).step_by(2).collect();
            assert!(!commands.is_empty(), "{tip}");
            for typed in commands {
                let typed = typed.replace("PORT", "80");
                let parsed = Cli::command().try_get_matches_from(typed.split(' '));
                assert!(parsed.is_ok(), "{typed}: {parsed:?}");
            }
        }
    }
}
