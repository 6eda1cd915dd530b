//! Volumes, and their files without a sandbox.

use cove_api::file::{
    ChangeMode, FileInfo, ListFiles, Listing, MakeDirectory, MoveFile, ReadFile, RemoveFile,
    StatFile, WriteFile, Written,
};
use cove_api::route::BYTES;
use cove_api::volume::{CreateVolume, Volume};
use cove_api::{Page, PageQuery};
use http::{Method, header};

use crate::sandboxes::IDEMPOTENCY_KEY;
use crate::{ByteStream, Client, ClientError, JSON, Outgoing, segment, with_query};

fn volume_path(id: &str, rest: &str) -> String {
    format!("/v1/volumes/{}{rest}", segment(id))
}

impl Client {
    /// `idempotency_key` makes repeats safe: the same key and body get the first answer.
    pub async fn create_volume(
        &self,
        create: &CreateVolume,
        idempotency_key: Option<&str>,
    ) -> Result<Volume, ClientError> {
        let mut headers = JSON.to_vec();
        headers.extend(idempotency_key.map(|key| (IDEMPOTENCY_KEY, key)));
        self.json(
            Method::POST,
            "/v1/volumes",
            &headers,
            Outgoing::json(create)?,
        )
        .await
    }

    pub async fn volumes(&self, page: &PageQuery) -> Result<Page<Volume>, ClientError> {
        self.get(&with_query("/v1/volumes", page)?).await
    }

    pub async fn volume(&self, id: &str) -> Result<Volume, ClientError> {
        self.get(&volume_path(id, "")).await
    }

    pub async fn delete_volume(&self, id: &str) -> Result<(), ClientError> {
        self.nothing(Method::DELETE, &volume_path(id, ""), Outgoing::empty())
            .await
    }

    /// A file's contents; `range` as in HTTP, `bytes=0-99` say.
    pub async fn read_volume_file(
        &self,
        id: &str,
        read: &ReadFile,
        range: Option<&str>,
    ) -> Result<ByteStream, ClientError> {
        let path = with_query(&volume_path(id, "/files"), read)?;
        let range = range.map(|range| (header::RANGE, range));
        let headers: Vec<_> = range.into_iter().collect();
        Ok(ByteStream::new(
            self.call(Method::GET, &path, &headers, Outgoing::empty())
                .await?,
        ))
    }

    pub async fn write_volume_file(
        &self,
        id: &str,
        write: &WriteFile,
        contents: Outgoing,
    ) -> Result<Written, ClientError> {
        let path = with_query(&volume_path(id, "/files"), write)?;
        self.upload(&path, BYTES, contents).await
    }

    pub async fn remove_volume_file(
        &self,
        id: &str,
        remove: &RemoveFile,
    ) -> Result<(), ClientError> {
        let path = with_query(&volume_path(id, "/files"), remove)?;
        self.nothing(Method::DELETE, &path, Outgoing::empty()).await
    }

    pub async fn list_volume_files(
        &self,
        id: &str,
        list: &ListFiles,
    ) -> Result<Listing, ClientError> {
        self.get(&with_query(&volume_path(id, "/files/list"), list)?)
            .await
    }

    pub async fn stat_volume_file(
        &self,
        id: &str,
        stat: &StatFile,
    ) -> Result<FileInfo, ClientError> {
        self.get(&with_query(&volume_path(id, "/files/stat"), stat)?)
            .await
    }

    pub async fn make_volume_directory(
        &self,
        id: &str,
        make: &MakeDirectory,
    ) -> Result<(), ClientError> {
        let path = volume_path(id, "/files/mkdir");
        self.nothing(Method::POST, &path, Outgoing::json(make)?)
            .await
    }

    pub async fn move_volume_file(&self, id: &str, r#move: &MoveFile) -> Result<(), ClientError> {
        let path = volume_path(id, "/files/move");
        self.nothing(Method::POST, &path, Outgoing::json(r#move)?)
            .await
    }

    pub async fn change_volume_mode(
        &self,
        id: &str,
        change: &ChangeMode,
    ) -> Result<(), ClientError> {
        let path = volume_path(id, "/files/chmod");
        self.nothing(Method::POST, &path, Outgoing::json(change)?)
            .await
    }
}
