//! Files inside sandboxes.

use async_recursion::async_recursion as boxed;
use cove_api::file::{
    ChangeMode, FileChange, FileInfo, ListFiles, Listing, MakeDirectory, MoveFile, ReadArchive,
    ReadFile, RemoveFile, StatFile, WatchFiles, WriteArchive, WriteFile, Written,
};
use cove_api::route::{BYTES, TAR};
use http::{Method, header};

use crate::sandboxes::sandbox_path;
use crate::{ByteStream, Client, ClientError, Lines, Outgoing, document, with_query};

impl Client {
    /// A file's contents; `range` as in HTTP, `bytes=0-99` say.
    #[boxed]
    pub async fn read_file(
        &self,
        id: &str,
        read: &ReadFile,
        range: Option<&str>,
    ) -> Result<ByteStream, ClientError> {
        let path = with_query(&sandbox_path(id, "/files"), read)?;
        let headers: Vec<_> = range
            .map(|range| (header::RANGE, range))
            .into_iter()
            .collect();
        Ok(ByteStream::new(
            self.call(Method::GET, &path, &headers, Outgoing::empty())
                .await?,
        ))
    }

    #[boxed]
    pub async fn write_file(
        &self,
        id: &str,
        write: &WriteFile,
        contents: Outgoing,
    ) -> Result<Written, ClientError> {
        self.upload(
            &with_query(&sandbox_path(id, "/files"), write)?,
            BYTES,
            contents,
        )
        .await
    }

    #[boxed]
    pub async fn remove_file(&self, id: &str, remove: &RemoveFile) -> Result<(), ClientError> {
        let path = with_query(&sandbox_path(id, "/files"), remove)?;
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    #[boxed]
    pub async fn list_files(&self, id: &str, list: &ListFiles) -> Result<Listing, ClientError> {
        self.get(&with_query(&sandbox_path(id, "/files/list"), list)?)
            .await
    }

    #[boxed]
    pub async fn stat_file(&self, id: &str, stat: &StatFile) -> Result<FileInfo, ClientError> {
        self.get(&with_query(&sandbox_path(id, "/files/stat"), stat)?)
            .await
    }

    #[boxed]
    pub async fn watch_files(
        &self,
        id: &str,
        watch: &WatchFiles,
    ) -> Result<Lines<FileChange>, ClientError> {
        let path = with_query(&sandbox_path(id, "/files/watch"), watch)?;
        Ok(Lines::new(
            self.call(Method::GET, &path, &[], Outgoing::empty())
                .await?,
        ))
    }

    #[boxed]
    pub async fn make_directory(&self, id: &str, make: &MakeDirectory) -> Result<(), ClientError> {
        let path = sandbox_path(id, "/files/mkdir");
        self.nothing(Method::POST, &path, Outgoing::json(make)?)
            .await
    }

    #[boxed]
    pub async fn move_file(&self, id: &str, r#move: &MoveFile) -> Result<(), ClientError> {
        let path = sandbox_path(id, "/files/move");
        self.nothing(Method::POST, &path, Outgoing::json(r#move)?)
            .await
    }

    #[boxed]
    pub async fn change_mode(&self, id: &str, change: &ChangeMode) -> Result<(), ClientError> {
        let path = sandbox_path(id, "/files/chmod");
        self.nothing(Method::POST, &path, Outgoing::json(change)?)
            .await
    }

    /// The tree under a path, as tar.
    #[boxed]
    pub async fn read_archive(
        &self,
        id: &str,
        read: &ReadArchive,
    ) -> Result<ByteStream, ClientError> {
        let path = with_query(&sandbox_path(id, "/files/archive"), read)?;
        Ok(ByteStream::new(
            self.call(Method::GET, &path, &[], Outgoing::empty())
                .await?,
        ))
    }

    /// Unpacks a tar below a path.
    #[boxed]
    pub async fn write_archive(
        &self,
        id: &str,
        write: &WriteArchive,
        tar: Outgoing,
    ) -> Result<Written, ClientError> {
        self.upload(
            &with_query(&sandbox_path(id, "/files/archive"), write)?,
            TAR,
            tar,
        )
        .await
    }

    /// Uploads take as long as they take; only the answer is one document.
    pub(crate) async fn upload(
        &self,
        path: &str,
        kind: &str,
        body: Outgoing,
    ) -> Result<Written, ClientError> {
        let headers = [(header::CONTENT_TYPE, kind)];
        let response = self.call(Method::PUT, path, &headers, body).await?;
        serde_json::from_slice(&document(response).await?).map_err(ClientError::Answer)
    }
}
