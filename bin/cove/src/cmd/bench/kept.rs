//! Leaves nothing behind: whatever was made and not deleted, because a step failed in between, is
//! deleted at the end.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use cove_client::ClientError;

use super::Subject;

#[derive(Clone)]
pub struct Kept<S> {
    subject: S,
    made: Arc<Mutex<HashSet<String>>>,
}

impl<S: Subject> Kept<S> {
    pub fn new(subject: S) -> Self {
        Self {
            subject,
            made: Arc::default(),
        }
    }

    fn made(&self) -> parking_lot::MutexGuard<'_, HashSet<String>> {
        self.made.lock()
    }

    /// Deletes what is left; answers how many would not go.
    pub async fn clear(&self) -> usize {
        let left: Vec<_> = self.made().iter().cloned().collect();
        let mut stayed = 0;
        for id in left {
            if self.delete(&id).await.is_err() {
                stayed += 1;
            }
        }
        stayed
    }
}

impl<S: Subject> Subject for Kept<S> {
    async fn create(&self) -> Result<String, ClientError> {
        let id = self.subject.create().await?;
        self.made().insert(id.clone());
        Ok(id)
    }

    async fn echo(&self, id: &str) -> Result<(), ClientError> {
        self.subject.echo(id).await
    }

    async fn delete(&self, id: &str) -> Result<(), ClientError> {
        self.subject.delete(id).await?;
        self.made().remove(id);
        Ok(())
    }
}
