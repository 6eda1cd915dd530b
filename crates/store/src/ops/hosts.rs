//! Hosts of the installation, and which images are on which of them.

use cove_model::{HostId, ImageId};
use time::OffsetDateTime;

use crate::StoreError;
use crate::sql::{Op, Tx, values};

/// Tables whose rows had no host before there were hosts.
const TABLES: [&str; 5] = [
    "sandboxes",
    "snapshots",
    "image_jobs",
    "image_hosts",
    "event_positions",
];

pub struct Register {
    pub hosts: Vec<HostId>,
    pub at: OffsetDateTime,
}

impl Op for Register {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        // The update that changes nothing takes the row's lock: one registers at a time.
        tx.execute("UPDATE schema_version SET version = version", &[])
            .await?;
        let known = known(tx).await?;
        // Nodes come and go by themselves; those that were removed may have left rows.
        let rows = tx.query("SELECT host FROM nodes", &[]).await?;
        let nodes: Vec<HostId> = rows
            .iter()
            .map(|row| row.parse(0, "host id"))
            .collect::<Result<_, _>>()?;
        let is_ours = |id: &HostId| self.hosts.contains(id) || nodes.contains(id);
        if let Some(other) = known.iter().find(|id| !is_ours(id)) {
            return Err(StoreError::OtherHost {
                known: other.clone(),
            });
        }
        if known.is_empty() {
            self.take_over(tx).await?;
        }
        for host in &self.hosts {
            tx.execute(
                "INSERT INTO hosts (id, added_at) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                values![host, self.at],
            )
            .await?;
        }
        Ok(())
    }
}

impl Register {
    /// Gives rows from before there were hosts to the only one there is.
    async fn take_over<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for table in TABLES {
            match self.hosts.as_slice() {
                [only] => {
                    let sql = format!("UPDATE {table} SET host = ?1 WHERE host = ''");
                    tx.execute(&sql, values![only]).await?;
                }
                _ => {
                    let sql = format!("SELECT host FROM {table} WHERE host = '' LIMIT 1");
                    if !tx.query(&sql, &[]).await?.is_empty() {
                        return Err(StoreError::NoHost);
                    }
                }
            }
        }
        Ok(())
    }
}

async fn known<T: Tx>(tx: &mut T) -> Result<Vec<HostId>, StoreError> {
    let rows = tx.query("SELECT id FROM hosts ORDER BY id", &[]).await?;
    rows.iter().map(|row| row.parse(0, "host id")).collect()
}

pub struct All;

impl Op for All {
    type Out = Vec<HostId>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        known(tx).await
    }
}

/// Adds an image to those a host has.
pub struct PutImage(pub HostId, pub ImageId);

impl Op for PutImage {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "INSERT INTO image_hosts (image, host) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
            values![&self.1, &self.0],
        )
        .await
        .map(drop)
    }
}

/// Takes an image off those a host has.
pub struct RemoveImage(pub HostId, pub ImageId);

impl Op for RemoveImage {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        tx.execute(
            "DELETE FROM image_hosts WHERE image = ?1 AND host = ?2",
            values![&self.1, &self.0],
        )
        .await
        .map(drop)
    }
}

/// The images a host has are these and no others.
pub struct SetImages(pub HostId, pub Vec<ImageId>);

impl Op for SetImages {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let rows = tx
            .query(
                "SELECT image FROM image_hosts WHERE host = ?1",
                values![&self.0],
            )
            .await?;
        let mut before = std::collections::HashSet::new();
        for row in &rows {
            before.insert(row.parse::<ImageId>(0, "image id")?);
        }
        for image in &self.1 {
            if !before.remove(image) {
                PutImage(self.0.clone(), image.clone()).run(tx).await?;
            }
        }
        for gone in before {
            RemoveImage(self.0.clone(), gone).run(tx).await?;
        }
        Ok(())
    }
}

/// The hosts that have an image.
pub struct WithImage(pub ImageId);

impl Op for WithImage {
    type Out = Vec<HostId>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let rows = tx
            .query(
                "SELECT host FROM image_hosts WHERE image = ?1 ORDER BY host",
                values![&self.0],
            )
            .await?;
        rows.iter().map(|row| row.parse(0, "host id")).collect()
    }
}
