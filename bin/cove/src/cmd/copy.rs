//! `cove cp`: files and directories both ways. A file travels as itself, a directory as tar; what
//! comes out of a sandbox is unpacked below its target and nowhere else.

use std::io::Write;
use std::path::{Path, PathBuf};

use cove_api::ErrorCode;
use cove_api::file::{
    FileKind, MakeDirectory, ReadArchive, ReadFile, StatFile, WriteArchive, WriteFile,
};
use cove_client::{Client, Outgoing, Upload};

use crate::args::CpArgs;
use crate::output;
use crate::report::CliError;

pub mod meter;
mod tree;

use meter::Meter;

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    Here(PathBuf),
    /// Standard input or output.
    Stdio,
    There {
        sandbox: String,
        path: String,
    },
}

/// Standard input as something to upload.
pub fn stdin_reader() -> impl tokio::io::AsyncRead + Send + 'static {
    tree::ChunkReader::new(super::stdin::chunks())
}

pub fn parse(text: &str) -> End {
    if text == "-" {
        return End::Stdio;
    }
    match text.split_once(':') {
        // A colon behind a slash is part of a path here.
        Some((sandbox, path))
            if !sandbox.is_empty() && !sandbox.contains('/') && sandbox != "." =>
        {
            let path = if path.is_empty() { "/" } else { path };
            End::There {
                sandbox: sandbox.to_owned(),
                path: path.to_owned(),
            }
        }
        _ => End::Here(text.into()),
    }
}

pub async fn run(client: &Client, args: &CpArgs, json: bool) -> Result<(), CliError> {
    let copy = Copy {
        client,
        user: args.user.clone(),
        quiet: args.quiet || json,
    };
    let moved = match (parse(&args.source), parse(&args.target)) {
        (End::Here(from), End::There { sandbox, path }) => copy.up(&from, &sandbox, &path).await?,
        (End::Stdio, End::There { sandbox, path }) => {
            let input = tree::ChunkReader::new(super::stdin::chunks());
            copy.file_up(input, None, &sandbox, path, None).await?
        }
        (End::There { sandbox, path }, End::Here(to)) => copy.down(&sandbox, &path, &to).await?,
        (End::There { sandbox, path }, End::Stdio) => copy.to_stdout(&sandbox, &path).await?,
        _ => {
            return Err(CliError::hinted(
                "one end must be in a sandbox and the other here",
                "write the sandbox's as NAME:PATH",
            ));
        }
    };
    if json {
        output::json(&serde_json::json!({ "bytes": moved }))
    } else {
        Ok(())
    }
}

struct Copy<'a> {
    client: &'a Client,
    user: Option<String>,
    quiet: bool,
}

impl Copy<'_> {
    async fn up(&self, from: &Path, sandbox: &str, to: &str) -> Result<u64, CliError> {
        let failed = |source| CliError::io(format!("cannot read {}", from.display()), source);
        let found = std::fs::metadata(from).map_err(failed)?;
        let target = self.inner_target(sandbox, to, from.file_name()).await?;
        if found.is_dir() {
            return self.tree_up(from, sandbox, target).await;
        }
        if !found.is_file() {
            return Err(CliError::usage(format!(
                "{} is neither a file nor a directory",
                from.display()
            )));
        }
        let mode = {
            use std::os::unix::fs::PermissionsExt;
            cove_api::file::format_mode(found.permissions().mode())
        };
        let file = tokio::fs::File::open(from).await.map_err(failed)?;
        self.file_up(file, Some(found.len()), sandbox, target, Some(mode))
            .await
    }

    async fn file_up(
        &self,
        source: impl tokio::io::AsyncRead + Send + 'static,
        length: Option<u64>,
        sandbox: &str,
        path: String,
        mode: Option<String>,
    ) -> Result<u64, CliError> {
        let meter = Meter::new(self.quiet, length);
        let write = WriteFile {
            path,
            user: self.user.clone(),
            mode,
            ..WriteFile::default()
        };
        let body = Outgoing::Upload(Upload::new(meter.reader(source), length));
        let written = meter
            .watch(self.client.write_file(sandbox, &write, body))
            .await?;
        Ok(written.bytes)
    }

    async fn tree_up(&self, from: &Path, sandbox: &str, path: String) -> Result<u64, CliError> {
        let make = MakeDirectory {
            path: path.clone(),
            user: self.user.clone(),
            mode: None,
            parents: true,
        };
        self.client.make_directory(sandbox, &make).await?;
        let total = tree::size(from)?;
        let meter = Meter::new(self.quiet, Some(total));
        let tar = tree::pack(from.to_owned());
        let write = WriteArchive {
            path,
            user: self.user.clone(),
            keep_owner: false,
        };
        let body = Outgoing::Upload(Upload::new(meter.reader(tar), None));
        let written = meter
            .watch(self.client.write_archive(sandbox, &write, body))
            .await?;
        Ok(written.bytes)
    }

    /// Into a directory that is there, else as the name given.
    async fn inner_target(
        &self,
        sandbox: &str,
        to: &str,
        name: Option<&std::ffi::OsStr>,
    ) -> Result<String, CliError> {
        let stat = StatFile {
            path: to.to_owned(),
            user: self.user.clone(),
            follow: true,
        };
        let into = match self.client.stat_file(sandbox, &stat).await {
            Ok(info) => info.kind == FileKind::Directory,
            Err(error) if error.code() == Some(ErrorCode::PathNotFound) => to.ends_with('/'),
            Err(error) => return Err(error.into()),
        };
        match name.and_then(|name| name.to_str()) {
            Some(name) if into => Ok(format!("{}/{name}", to.trim_end_matches('/'))),
            _ => Ok(to.to_owned()),
        }
    }

    async fn down(&self, sandbox: &str, path: &str, to: &Path) -> Result<u64, CliError> {
        let stat = StatFile {
            path: path.to_owned(),
            user: self.user.clone(),
            follow: true,
        };
        let info = self.client.stat_file(sandbox, &stat).await?;
        let name = path
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .filter(|name| !name.is_empty());
        let target = match name {
            Some(name) if to.is_dir() && name != ".." && name != "." => to.join(name),
            _ => to.to_owned(),
        };
        if info.kind == FileKind::Directory {
            return self.tree_down(sandbox, path, target).await;
        }
        let read = ReadFile {
            path: path.to_owned(),
            user: self.user.clone(),
        };
        let mut stream = self.client.read_file(sandbox, &read, None).await?;
        let meter = Meter::new(self.quiet, stream.length());
        let failed = |source| CliError::io(format!("cannot write {}", target.display()), source);
        let mut file = std::fs::File::create(&target).map_err(failed)?;
        let counting = meter.clone();
        meter
            .watch(async {
                while let Some(chunk) = stream.next().await? {
                    counting.add(chunk.len() as u64);
                    file.write_all(&chunk).map_err(failed)?;
                }
                Ok::<_, CliError>(())
            })
            .await?;
        if let Some(mode) = cove_api::file::parse_mode(&info.mode) {
            use std::os::unix::fs::PermissionsExt;
            // What came out of a sandbox gets no setuid here.
            let mode = std::fs::Permissions::from_mode(mode & 0o777);
            file.set_permissions(mode).map_err(failed)?;
        }
        Ok(meter.count())
    }

    async fn tree_down(&self, sandbox: &str, path: &str, target: PathBuf) -> Result<u64, CliError> {
        let read = ReadArchive {
            path: path.to_owned(),
            user: self.user.clone(),
        };
        let mut stream = self.client.read_archive(sandbox, &read).await?;
        let meter = Meter::new(self.quiet, None);
        let (chunks, unpacked) = tree::unpack(target);
        let counting = meter.clone();
        meter
            .watch(async {
                while let Some(chunk) = stream.next().await? {
                    counting.add(chunk.len() as u64);
                    // A closed channel means the other side failed and says why below.
                    if chunks.send(chunk).await.is_err() {
                        break;
                    }
                }
                drop(chunks);
                unpacked
                    .await
                    .unwrap_or_else(|_| Err(CliError::usage("unpacking broke off")))
            })
            .await?;
        Ok(meter.count())
    }

    async fn to_stdout(&self, sandbox: &str, path: &str) -> Result<u64, CliError> {
        let read = ReadFile {
            path: path.to_owned(),
            user: self.user.clone(),
        };
        let mut stream = self.client.read_file(sandbox, &read, None).await?;
        let mut count = 0;
        while let Some(chunk) = stream.next().await? {
            count += chunk.len() as u64;
            output::write(&chunk)?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart_by_their_colon() {
        let there = |sandbox: &str, path: &str| End::There {
            sandbox: sandbox.into(),
            path: path.into(),
        };
        assert_eq!(parse("box:/a:b"), there("box", "/a:b"));
        assert_eq!(parse("box:"), there("box", "/"));
        assert_eq!(parse("./a:b"), End::Here("./a:b".into()));
        assert_eq!(parse("/x"), End::Here("/x".into()));
        assert_eq!(parse(":/x"), End::Here(":/x".into()));
        assert_eq!(parse("-"), End::Stdio);
    }
}
