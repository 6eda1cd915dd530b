//! How the driver of each language is started. Its source travels over standard input, so that
//! nothing of it is on the sandbox's disk or in its process list.

use bytes::Bytes;
use cove_model::Language;

/// What runs code. Languages that share one share its contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Driver {
    Python,
    Node,
    Bash,
}

/// Each reads exactly its driver's source from its input and runs it; what follows is the driver's.
const START_PYTHON: &str = "import os, sys
wanted, source = int(sys.argv[1]), b''
while len(source) < wanted:
    piece = os.read(0, wanted - len(source))
    if not piece:
        sys.exit(1)
    source += piece
exec(compile(source, '<cove>', 'exec'))";

/// The input moves out of the way of programs that the code starts. An interrupt that comes before
/// Node is ready must not end it.
const START_NODE_SHELL: &str =
    "command -v node >/dev/null || exit 127; trap '' INT; exec node \"$@\" 9<&0 0</dev/null";
const START_NODE: &str = r"const wanted = Number(process.argv[1]), source = Buffer.alloc(wanted);
for (let at = 0; at < wanted;) {
  const more = require('fs').readSync(9, source, at, wanted - at);
  if (!more) process.exit(1);
  at += more;
}
const text = '(function (require, process, load, mark) {' + source + '\n})';
require('vm').runInThisContext(text, { filename: 'cove' })(require, process, (name) => import(name), '\x1e' + process.argv[2] + ' ');";

const START_BASH: &str = r#"LC_ALL=C IFS= read -r -N "$1" __cove_code; shift; eval "$__cove_code""#;

impl From<Language> for Driver {
    fn from(language: Language) -> Self {
        match language {
            Language::Python => Self::Python,
            Language::JavaScript | Language::TypeScript => Self::Node,
            Language::Bash => Self::Bash,
        }
    }
}

impl Driver {
    /// In owners of processes; never changes, because processes outlive servers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "javascript",
            Self::Bash => "bash",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Python, Self::Node, Self::Bash]
            .into_iter()
            .find(|driver| driver.name() == name)
    }

    pub fn language(self) -> Language {
        match self {
            Self::Python => Language::Python,
            Self::Node => Language::JavaScript,
            Self::Bash => Language::Bash,
        }
    }

    /// What has to be in the sandbox.
    pub fn program(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    pub fn source(self) -> &'static str {
        match self {
            Self::Python => include_str!("driver/python.py"),
            Self::Node => include_str!("driver/javascript.js"),
            Self::Bash => include_str!("driver/bash.sh"),
        }
    }

    /// The command of the context with this id.
    pub fn argv(self, id: &str) -> Vec<String> {
        let length = self.source().len().to_string();
        let words: &[&str] = match self {
            Self::Python => &["python3", "-c", START_PYTHON, &length, id],
            Self::Node => &[
                "/bin/sh",
                "-c",
                START_NODE_SHELL,
                "node",
                "-e",
                START_NODE,
                "--",
                &length,
                id,
            ],
            Self::Bash => &["bash", "-c", START_BASH, "bash", &length, id],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// What is written to a context's input to have it run code. `run` is of letters and digits, and no
    /// other run's of this context.
    pub fn run(run: &str, language: Language, code: &str) -> Bytes {
        let mut line = format!("run {run} {} {}\n", language.as_str(), code.len());
        line.push_str(code);
        line.into()
    }

    /// What is written to a context's input before it is sent SIGINT, where the signal alone does not
    /// interrupt it. Node's own thread takes the word; the signal is for what it started.
    pub fn interruption(self) -> Option<Bytes> {
        match self {
            Self::Node => Some(Bytes::from_static(b"interrupt\n")),
            Self::Python | Self::Bash => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_ascii_so_that_bytes_and_characters_are_the_same() {
        for driver in [Driver::Python, Driver::Node, Driver::Bash] {
            assert!(driver.source().is_ascii(), "{}", driver.name());
            assert_eq!(Driver::named(driver.name()), Some(driver));
            assert_eq!(Driver::from(driver.language()), driver);
        }
    }
}
