//! Which process of a guest is a context, and what it is like.

use cove_model::Language;
use cove_protocol::identity::{Identity, owner};
use cove_protocol::message::Process;

use crate::Driver;

const DEFAULT: &str = "default";
const NAMED: &str = "context";

/// A context that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeContext {
    /// Of its process, too.
    pub id: String,
    pub language: Language,
    /// The one that runs use which name none.
    pub default: bool,
    pub cwd: String,
    pub user: String,
    pub started_unix_ms: i64,
}

impl Driver {
    /// The owner of a context's process.
    pub fn owner(self, default: bool) -> String {
        let kind = if default { DEFAULT } else { NAMED };
        owner::named(owner::CODE, &format!("{}:{kind}", self.name()))
    }
}

impl CodeContext {
    /// What a process's record says about a context, if it is one that runs.
    pub fn of(process: &Process) -> Option<Self> {
        if process.exit.is_some() {
            return None;
        }
        let identity = Identity::of(process);
        let (name, kind) = identity.name_of(owner::CODE)?.split_once(':')?;
        Some(Self {
            id: process.id.clone(),
            language: Driver::named(name)?.language(),
            default: kind == DEFAULT,
            cwd: process.cwd.clone(),
            user: process.user.clone(),
            started_unix_ms: process.started_unix_ms,
        })
    }

    pub fn driver(&self) -> Driver {
        self.language.into()
    }
}

#[cfg(test)]
mod tests {
    use cove_protocol::message::{Exit, ProcessKind};

    use super::*;

    #[test]
    fn a_process_that_a_driver_owns_is_a_context_until_it_ends() {
        for language in Language::ALL {
            let driver = Driver::from(language);
            for default in [true, false] {
                let mut process = Process {
                    id: "prc_1".into(),
                    owner: driver.owner(default),
                    kind: ProcessKind::CodeContext.into(),
                    ..Process::default()
                };
                let context = CodeContext::of(&process).unwrap();
                assert_eq!((context.driver(), context.default), (driver, default));
                process.exit = Some(Exit::default());
                assert_eq!(CodeContext::of(&process), None);
            }
        }
    }

    #[test]
    fn what_no_driver_owns_is_no_context() {
        for owned_by in ["", "api", "code", "code:perl:context", "code:python"] {
            let process = Process {
                owner: owned_by.into(),
                ..Process::default()
            };
            assert_eq!(CodeContext::of(&process), None, "{owned_by:?}");
        }
    }
}
