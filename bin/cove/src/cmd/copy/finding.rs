//! Which paths inside a sandbox are meant: relative ones and those with wildcards.

use cove_api::ErrorCode;
use cove_api::file::ListFiles;
use cove_api::process::Exec;

use super::{Copy, pattern};
use crate::report::CliError;

impl Copy<'_> {
    /// A relative path begins in the directory that commands start in.
    pub(super) async fn absolute(&self, sandbox: &str, path: &str) -> Result<String, CliError> {
        if path.starts_with('/') {
            return Ok(path.to_owned());
        }
        let pwd = Exec {
            command: Some("pwd".into()),
            user: self.user.clone(),
            ..Exec::default()
        };
        let told = self.client.exec(sandbox, &pwd).await?;
        let directory = told.stdout.trim_end_matches('\n');
        if told.exit.exit_code != 0 || !directory.starts_with('/') {
            return Err(CliError::hinted(
                format!("cannot resolve the relative path {path} in {sandbox}"),
                "give an absolute path",
            ));
        }
        Ok(format!("{}/{path}", directory.trim_end_matches('/')))
    }

    /// The paths that a path with wildcards stands for. One that is there is meant as it is.
    pub(super) async fn found(&self, sandbox: &str, path: &str) -> Result<Vec<String>, CliError> {
        let path = self.absolute(sandbox, path).await?;
        if !pattern::is_pattern(&path) || self.stat(sandbox, &path).await?.is_some() {
            return Ok(vec![path]);
        }
        let mut found = vec![String::new()];
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !pattern::is_pattern(part) {
                found.iter_mut().for_each(|path| {
                    path.push('/');
                    path.push_str(part);
                });
                continue;
            }
            let mut below = Vec::new();
            for directory in found {
                below.extend(self.entries(sandbox, &directory, part).await?);
            }
            found = below;
        }
        let mut there = Vec::new();
        for path in found {
            if self.stat(sandbox, &path).await?.is_some() {
                there.push(path);
            }
        }
        match there.is_empty() {
            true => Err(CliError::usage(format!(
                "nothing in {sandbox} matches {path}"
            ))),
            false => Ok(there),
        }
    }

    /// What matches in one directory; nothing where it is none.
    async fn entries(
        &self,
        sandbox: &str,
        directory: &str,
        part: &str,
    ) -> Result<Vec<String>, CliError> {
        let list = ListFiles {
            path: if directory.is_empty() { "/" } else { directory }.to_owned(),
            user: self.user.clone(),
            depth: None,
            limit: Some(cove_limits::LIST_ENTRIES_MAX),
        };
        let listing = match self.client.list_files(sandbox, &list).await {
            Ok(listing) => listing,
            Err(error)
                if matches!(
                    error.code(),
                    Some(ErrorCode::PathNotFound | ErrorCode::NotADirectory)
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error.into()),
        };
        if listing.truncated {
            return Err(CliError::usage(format!(
                "{sandbox}:{} has too many entries to search",
                list.path
            )));
        }
        let names = listing.items.into_iter().map(|info| info.name);
        let mut names: Vec<String> = names.filter(|name| pattern::matches(part, name)).collect();
        names.sort();
        Ok(names
            .iter()
            .map(|name| format!("{directory}/{name}"))
            .collect())
    }
}
