//! What a process is, which part of Cove started it, and its caller's own tag.
//!
//! A guest that was captured in a snapshot before there were such fields keeps one text of a process, the
//! *mark*. Every start sends a mark beside the fields, so that such a guest can still tell them. A mark is
//! read only when the guest reports no kind, so no caller's tag can stand for a kind or an owner.

use crate::message::{Process, ProcessKind, Start};

/// Owners: the part of Cove that started a process, with a name after a colon where it finds the process
/// again by one.
pub mod owner {
    /// The HTTP API.
    pub const API: &str = "api";
    /// The control plane itself.
    pub const CONTROL: &str = "control";
    pub const SSH: &str = "ssh";
    pub const E2B: &str = "e2b";
    pub const DAYTONA: &str = "daytona";
    /// With the language and whether it is the default context.
    pub const CODE: &str = "code";
    pub const DAYTONA_SESSION: &str = "daytona-session";
    /// A command of a session, with the session's name.
    pub const DAYTONA_COMMAND: &str = "daytona-command";
    pub const DAYTONA_PTY: &str = "daytona-pty";
    /// With the name of the service.
    pub const SERVICE: &str = "service";

    pub fn named(owner: &str, name: &str) -> String {
        format!("{owner}:{name}")
    }
}

const FOREGROUND: &str = "foreground";
const BACKGROUND: &str = "background";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub kind: ProcessKind,
    pub owner: String,
    /// The caller's own; empty: none.
    pub tag: String,
}

impl Identity {
    /// What the guest says about a process.
    pub fn of(process: &Process) -> Self {
        match process.kind() {
            ProcessKind::Unknown => Self::of_mark(&process.mark, process.pty.is_some()),
            kind => Self {
                kind,
                owner: process.owner.clone(),
                tag: process.tag.clone(),
            },
        }
    }

    /// The name after the owner, if that is the owner.
    pub fn name_of(&self, owner: &str) -> Option<&str> {
        self.owner.strip_prefix(owner)?.strip_prefix(':')
    }

    /// Puts it into a request. `mark` is for a guest that knows nothing else.
    pub fn put_into(self, start: &mut Start) {
        start.mark = self.mark();
        start.set_kind(self.kind);
        start.owner = self.owner;
        start.tag = self.tag;
    }

    fn mark(&self) -> String {
        if self.owner.contains(':') {
            return self.owner.clone();
        }
        let mark = match self.kind {
            _ if self.owner == owner::E2B && !self.tag.is_empty() => owner::E2B,
            ProcessKind::Command => FOREGROUND,
            _ => BACKGROUND,
        };
        match self.tag.as_str() {
            "" => mark.to_owned(),
            tag => owner::named(mark, tag),
        }
    }

    fn of_mark(mark: &str, has_terminal: bool) -> Self {
        let (front, name) = mark.split_once(':').unwrap_or((mark, ""));
        let (kind, owner, tag) = match front {
            owner::CODE => (ProcessKind::CodeContext, mark, ""),
            owner::DAYTONA_SESSION => (ProcessKind::DialectSession, mark, ""),
            owner::DAYTONA_COMMAND => (ProcessKind::Command, mark, ""),
            owner::DAYTONA_PTY => (ProcessKind::Terminal, mark, ""),
            owner::E2B => (ProcessKind::Command, owner::E2B, name),
            FOREGROUND => (ProcessKind::Command, "", name),
            BACKGROUND => (ProcessKind::Service, "", name),
            // A tag that took the place of the mark: nothing says that the command is waited for.
            _ => (ProcessKind::Service, "", mark),
        };
        let kind = match kind {
            ProcessKind::Command | ProcessKind::Service if has_terminal => ProcessKind::Terminal,
            kind => kind,
        };
        Self {
            kind,
            owner: owner.to_owned(),
            tag: tag.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::message::PtySize;

    /// A start as a guest without kinds reads it, and a process as it tells it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct OldStart {
        #[prost(string, tag = "14")]
        tag: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct OldProcess {
        #[prost(message, optional, tag = "6")]
        pty: Option<PtySize>,
        #[prost(string, tag = "11")]
        tag: String,
    }

    fn identity(kind: ProcessKind, owner: &str, tag: &str) -> Identity {
        Identity {
            kind,
            owner: owner.into(),
            tag: tag.into(),
        }
    }

    fn through_an_old_guest(identity: Identity) -> Identity {
        let terminal = identity.kind == ProcessKind::Terminal;
        let mut start = Start::default();
        identity.put_into(&mut start);
        let old = OldStart::decode(start.encode_to_vec().as_slice()).unwrap();
        let told = OldProcess {
            pty: terminal.then_some(PtySize { cols: 1, rows: 1 }),
            tag: old.tag,
        };
        Identity::of(&Process::decode(told.encode_to_vec().as_slice()).unwrap())
    }

    #[test]
    fn an_older_guest_tells_the_kind_and_the_tag_by_the_mark() {
        use ProcessKind::{CodeContext, Command, DialectSession, Service, Terminal};
        for kept in [
            identity(CodeContext, "code:python:default", ""),
            identity(DialectSession, "daytona-session:one", ""),
            identity(Command, "daytona-command:one", ""),
            identity(Terminal, "daytona-pty:one", ""),
            identity(Command, "e2b", "mine"),
            identity(Terminal, "e2b", "mine"),
        ] {
            assert_eq!(through_an_old_guest(kept.clone()), kept);
        }
        // Which front it was is lost.
        for kind in [Command, Terminal, Service] {
            for tag in ["", "mine", "foreground", "code:python:default", "e2b:x"] {
                let told = through_an_old_guest(identity(kind, "api", tag));
                assert_eq!(told, identity(kind, "", tag));
            }
        }
    }

    #[test]
    fn marks_of_older_hosts_are_read_as_they_were_meant() {
        for (mark, kind) in [
            ("foreground", ProcessKind::Command),
            ("background", ProcessKind::Service),
            ("code:bash:context", ProcessKind::CodeContext),
            ("", ProcessKind::Service),
            ("anything", ProcessKind::Service),
        ] {
            let process = Process {
                mark: mark.into(),
                ..Process::default()
            };
            assert_eq!(Identity::of(&process).kind, kind, "{mark}");
        }
    }

    #[test]
    fn a_tag_never_stands_for_a_kind_where_the_guest_knows_kinds() {
        for tag in ["code:python:default", "daytona-session:x", "foreground"] {
            let mut start = Start::default();
            identity(ProcessKind::Service, owner::API, tag).put_into(&mut start);
            let process = Process {
                kind: start.kind,
                owner: start.owner,
                tag: start.tag,
                mark: start.mark,
                ..Process::default()
            };
            assert_eq!(
                Identity::of(&process),
                identity(ProcessKind::Service, owner::API, tag)
            );
        }
    }
}
