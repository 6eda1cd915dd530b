//! `cove cp`: files and directories both ways. A file travels as itself, a directory as tar; what
//! comes out of a sandbox is unpacked below its target and nowhere else.

use std::io::Write;
use std::path::{Path, PathBuf};

use cove_api::ErrorCode;
use cove_api::file::{
    FileInfo, FileKind, MakeDirectory, ReadArchive, ReadFile, StatFile, WriteArchive, WriteFile,
};
use cove_client::{Client, Outgoing, Upload};

use crate::args::CpArgs;
use crate::output;
use crate::report::CliError;

mod finding;
pub mod meter;
mod pattern;
mod tree;

use meter::Meter;
pub use tree::packed;

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
        archive: args.archive,
    };
    let target = parse(&args.target);
    if target == End::Stdio && json {
        return Err(CliError::no_json("cove cp to standard output"));
    }
    let mut sources = Vec::new();
    for source in &args.sources {
        match parse(source) {
            End::There { sandbox, path } => {
                let paths = copy.found(&sandbox, &path).await?;
                let there = |path| End::There {
                    sandbox: sandbox.clone(),
                    path,
                };
                sources.extend(paths.into_iter().map(there));
            }
            here => sources.push(here),
        }
    }
    let target = match target {
        End::There { sandbox, path } => {
            let path = copy.absolute(&sandbox, &path).await?;
            End::There { sandbox, path }
        }
        here => here,
    };
    if sources.len() > 1 {
        copy.must_be_directory(&target).await?;
    }
    let mut moved = 0;
    for source in &sources {
        moved += copy.one(source, &target).await?;
    }
    if json {
        output::json(&serde_json::json!({ "bytes": moved, "sources": sources.len() }))
    } else {
        Ok(())
    }
}

struct Copy<'a> {
    client: &'a Client,
    user: Option<String>,
    quiet: bool,
    /// Keep times of single files, and owners.
    archive: bool,
}

impl Copy<'_> {
    async fn one(&self, source: &End, target: &End) -> Result<u64, CliError> {
        match (source, target) {
            (End::Here(from), End::There { sandbox, path }) => self.up(from, sandbox, path).await,
            (End::Stdio, End::There { sandbox, path }) => {
                self.file_up(stdin_reader(), None, sandbox, path.clone(), None)
                    .await
            }
            (End::There { sandbox, path }, End::Here(to)) => self.down(sandbox, path, to).await,
            (End::There { sandbox, path }, End::Stdio) => self.to_stdout(sandbox, path).await,
            _ => Err(CliError::hinted(
                "one end must be in a sandbox and the other here",
                "write the sandbox's as NAME:PATH",
            )),
        }
    }

    /// Several sources go into a directory that is there.
    async fn must_be_directory(&self, target: &End) -> Result<(), CliError> {
        let (shown, directory) = match target {
            // All files one after the other.
            End::Stdio => return Ok(()),
            End::Here(path) => (path.display().to_string(), path.is_dir()),
            End::There { sandbox, path } => {
                let info = self.stat(sandbox, path).await?;
                let directory = info.is_some_and(|info| info.kind == FileKind::Directory);
                (format!("{sandbox}:{path}"), directory)
            }
        };
        match directory {
            true => Ok(()),
            false => Err(CliError::hinted(
                format!("{shown} is not a directory"),
                "several sources can only be copied into an existing directory",
            )),
        }
    }

    /// `None` when nothing is there.
    async fn stat(&self, sandbox: &str, path: &str) -> Result<Option<FileInfo>, CliError> {
        let stat = StatFile {
            path: path.to_owned(),
            user: self.user.clone(),
            follow: true,
        };
        match self.client.stat_file(sandbox, &stat).await {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.code() == Some(ErrorCode::PathNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn up(&self, from: &Path, sandbox: &str, to: &str) -> Result<u64, CliError> {
        let failed = |source| CliError::io(format!("cannot read {}", from.display()), source);
        let found = std::fs::metadata(from).map_err(failed)?;
        if found.is_dir() && is_content(from) {
            return self.tree_up(from, sandbox, to.to_owned()).await;
        }
        let target = self
            .inner_target(sandbox, to, name_of(from).as_deref())
            .await?;
        if found.is_dir() {
            return self.tree_up(from, sandbox, target).await;
        }
        if !found.is_file() {
            return Err(CliError::usage(format!(
                "{} is neither a file nor a directory",
                from.display()
            )));
        }
        if self.archive {
            return self.dated_up(from, &found, sandbox, &target).await;
        }
        let mode = {
            use std::os::unix::fs::PermissionsExt;
            cove_api::file::format_mode(found.permissions().mode())
        };
        let file = tokio::fs::File::open(from).await.map_err(failed)?;
        self.file_up(file, Some(found.len()), sandbox, target, Some(mode))
            .await
    }

    /// One file as an archive, which keeps its time and owner.
    async fn dated_up(
        &self,
        from: &Path,
        found: &std::fs::Metadata,
        sandbox: &str,
        target: &str,
    ) -> Result<u64, CliError> {
        let (directory, name) = target.rsplit_once('/').unwrap_or(("", target));
        let meter = Meter::new(self.quiet, Some(found.len()));
        let tar = tree::pack_file(from.to_owned(), name.to_owned());
        let write = WriteArchive {
            path: if directory.is_empty() { "/" } else { directory }.to_owned(),
            user: self.user.clone(),
            keep_owner: true,
        };
        let body = Outgoing::Upload(Upload::new(meter.reader(tar), None));
        let written = meter
            .watch(self.client.write_archive(sandbox, &write, body))
            .await?;
        Ok(written.bytes)
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
            keep_owner: self.archive,
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
        name: Option<&str>,
    ) -> Result<String, CliError> {
        let into = match self.stat(sandbox, to).await? {
            Some(info) => info.kind == FileKind::Directory,
            None => to.ends_with('/'),
        };
        match name {
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
        if self.archive {
            file.set_modified(info.modified_at.0.into())
                .map_err(failed)?;
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
                    .unwrap_or_else(|_| Err(CliError::usage("unpacking was interrupted")))
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

/// `DIRECTORY/.` is what is in the directory, not the directory itself.
fn is_content(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    text == b"." || text.ends_with(b"/.") || text.ends_with(b"/./")
}

/// The last name of a path; of `..` the name of the directory that it is.
fn name_of(path: &Path) -> Option<String> {
    let name = match path.file_name() {
        Some(name) => name.to_owned(),
        None => path.canonicalize().ok()?.file_name()?.to_owned(),
    };
    name.to_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_at_the_end_stands_for_the_content() {
        for (path, content) in [
            ("dir/.", true),
            (".", true),
            ("dir", false),
            ("dir/", false),
            ("a.", false),
        ] {
            assert_eq!(is_content(Path::new(path)), content, "{path}");
        }
    }

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
