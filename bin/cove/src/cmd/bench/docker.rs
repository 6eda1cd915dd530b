//! Docker, measured by the same code over its own HTTP API.

use cove_client::{Client, ClientError, Outgoing};
use serde_json::{Value, json};

use super::Subject;

#[derive(Clone)]
pub struct Docker {
    pub client: Client,
    pub image: String,
}

impl Docker {
    async fn post(&self, path: &str, body: Value) -> Result<Value, ClientError> {
        let bytes = self.exchange("POST", path, Some(body)).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Vec<u8>, ClientError> {
        let method = method
            .parse()
            .map_err(|_| ClientError::Protocol("an odd method"))?;
        let body = match &body {
            Some(body) => Outgoing::json(body)?,
            None => Outgoing::empty(),
        };
        self.client.exchange(method, path, body).await
    }
}

impl Subject for Docker {
    async fn create(&self) -> Result<String, ClientError> {
        let body = json!({"Image": self.image, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}});
        let created = self.post("/containers/create", body).await?;
        let id = created["Id"]
            .as_str()
            .ok_or(ClientError::Protocol("no container id"))?
            .to_owned();
        self.post(&format!("/containers/{id}/start"), json!({}))
            .await?;
        Ok(id)
    }

    async fn echo(&self, id: &str) -> Result<(), ClientError> {
        let body = json!({"Cmd": ["echo", "hello"], "AttachStdout": true});
        let exec = self.post(&format!("/containers/{id}/exec"), body).await?;
        let exec = exec["Id"]
            .as_str()
            .ok_or(ClientError::Protocol("no exec id"))?
            .to_owned();
        let body = json!({"Detach": false, "Tty": false});
        let output = self
            .exchange("POST", &format!("/exec/{exec}/start"), Some(body))
            .await?;
        if output.windows(6).any(|part| part == b"hello\n") {
            Ok(())
        } else {
            Err(ClientError::Protocol("echo did not say hello"))
        }
    }

    async fn delete(&self, id: &str) -> Result<(), ClientError> {
        self.exchange("DELETE", &format!("/containers/{id}?force=true"), None)
            .await
            .map(drop)
    }
}
