//! Organisations and what they hold of their quotas.

use std::collections::BTreeMap;

use cove_model::{OrgId, placement};
use time::OffsetDateTime;

use crate::cursor::{self, Position};
use crate::sql::{Op, Row, Tx, Value, json, micros, values};
use crate::{
    Holding, Organisation, OrganisationHolding, OrganisationRemoval, Page, PageRequest, Quota,
    StoreError,
};

const COLUMNS: &str = "id, COALESCE(removed_name, name), max_sandboxes, max_cpu_milli, max_memory_mb, max_disk_mb, \
     used_sandboxes, used_cpu_milli, used_memory_mb, used_disk_mb, created_at, tolerations";

fn organisation(row: &Row) -> Result<Organisation, StoreError> {
    Ok(Organisation {
        id: row.parse(0, "organisation id")?,
        name: row.text(1)?.to_owned(),
        quota: Quota {
            sandboxes: row.count(2)?,
            cpu_milli: row.count(3)?,
            memory_mb: row.count(4)?,
            disk_mb: row.count(5)?,
        },
        used: Holding {
            sandboxes: row.count(6)?,
            cpu_milli: row.count(7)?,
            memory_mb: row.count(8)?,
            disk_mb: row.count(9)?,
        },
        created_at: row.time(10)?,
        tolerations: row.json(11, "tolerations")?,
    })
}

pub struct Create(pub Organisation);

impl Op for Create {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let (org, quota) = (&self.0, &self.0.quota);
        let inserted = tx
            .execute(
                "INSERT INTO organisations (id, name, max_sandboxes, max_cpu_milli, max_memory_mb, max_disk_mb, \
                 used_sandboxes, used_cpu_milli, used_memory_mb, used_disk_mb, created_at, tolerations) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0, 0, ?7, ?8) \
                 ON CONFLICT DO NOTHING",
                values![
                    &org.id,
                    org.name.as_str(),
                    quota.sandboxes,
                    quota.cpu_milli,
                    quota.memory_mb,
                    quota.disk_mb,
                    org.created_at,
                    json(&org.tolerations)?,
                ],
            )
            .await?;
        if inserted == 0 {
            return Err(StoreError::Exists {
                what: "an organisation of this name",
            });
        }
        Ok(())
    }
}

pub enum Get {
    ById(OrgId),
    ByName(String),
}

impl Op for Get {
    type Out = Option<Organisation>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let (column, value) = match self {
            Self::ById(id) => ("id", Value::from(id)),
            Self::ByName(name) => ("name", Value::from(name.as_str())),
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM organisations WHERE {column} = ?1 AND removed_at IS NULL"
        );
        let rows = tx.query(&sql, &[value]).await?;
        rows.first().map(organisation).transpose()
    }
}

pub struct List {
    pub page: PageRequest,
    /// With those that were removed.
    pub removed: bool,
}

impl Op for List {
    type Out = Page<Organisation>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let from = cursor::place(&self.page)?.unwrap_or(Position::new(i64::MIN, ""));
        let living = if self.removed {
            ""
        } else {
            "AND removed_at IS NULL "
        };
        let sql = format!(
            "SELECT {COLUMNS} FROM organisations WHERE (created_at > ?1 OR (created_at = ?1 AND id > ?2)) \
             {living}ORDER BY created_at, id LIMIT ?3"
        );
        let wanted = cursor::rows_wanted(&self.page);
        let rows = tx
            .query(&sql, values![from.number, from.id, wanted])
            .await?;
        let found = rows.iter().map(organisation).collect::<Result<_, _>>()?;
        Ok(cursor::page(found, &self.page, |org: &Organisation| {
            Position::new(micros(org.created_at), org.id.as_str())
        }))
    }
}

pub struct SetQuota {
    pub id: OrgId,
    /// What it must be now; whatever it is when absent.
    pub from: Option<Quota>,
    pub to: Quota,
}

impl Op for SetQuota {
    type Out = Organisation;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Organisation, StoreError> {
        if let Some(from) = &self.from {
            // The update that changes nothing takes the row's lock.
            let sql = format!(
                "UPDATE organisations SET max_disk_mb = max_disk_mb WHERE id = ?1 \
                 AND removed_at IS NULL RETURNING {COLUMNS}"
            );
            let rows = tx.query(&sql, values![&self.id]).await?;
            if organisation(rows.first().ok_or(NO_ORGANISATION)?)?.quota != *from {
                return Err(StoreError::Stale);
            }
        }
        let quota = &self.to;
        let sql = format!(
            "UPDATE organisations SET max_sandboxes = ?2, max_cpu_milli = ?3, max_memory_mb = ?4, \
             max_disk_mb = ?5 WHERE id = ?1 AND removed_at IS NULL RETURNING {COLUMNS}"
        );
        let rows = tx
            .query(
                &sql,
                values![
                    &self.id,
                    quota.sandboxes,
                    quota.cpu_milli,
                    quota.memory_mb,
                    quota.disk_mb
                ],
            )
            .await?;
        organisation(rows.first().ok_or(NO_ORGANISATION)?)
    }
}

/// Which taints its sandboxes may tolerate from now on, and which not any more. The names are good.
pub struct Tolerate(pub OrgId, pub BTreeMap<String, bool>);

impl Op for Tolerate {
    type Out = Organisation;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Organisation, StoreError> {
        let sql = format!(
            "UPDATE organisations SET max_disk_mb = max_disk_mb \
             WHERE id = ?1 AND removed_at IS NULL RETURNING {COLUMNS}"
        );
        let rows = tx.query(&sql, values![&self.0]).await?;
        let mut changed = organisation(rows.first().ok_or(NO_ORGANISATION)?)?;
        placement::set(&mut changed.tolerations, &self.1);
        if changed.tolerations.len() > cove_limits::ORG_TOLERATIONS_MAX {
            return Err(StoreError::TooMany {
                what: "tolerations of an organisation",
            });
        }
        tx.execute(
            "UPDATE organisations SET tolerations = ?2 WHERE id = ?1",
            values![&self.0, json(&changed.tolerations)?],
        )
        .await?;
        Ok(changed)
    }
}

/// What holds it off, and the statement that counts it. Automatic snapshots go by themselves, and what is held for images
/// without a name too.
const HOLDINGS: [(OrganisationHolding, &str); 8] = [
    (
        OrganisationHolding::Sandboxes,
        "FROM sandboxes WHERE org = ?1 AND deleted_at IS NULL",
    ),
    (
        OrganisationHolding::Snapshots,
        "FROM snapshots WHERE org = ?1 AND deleted_at IS NULL \
         AND kind IN ('manual', 'import')",
    ),
    (
        OrganisationHolding::Templates,
        "FROM templates WHERE org = ?1",
    ),
    (
        OrganisationHolding::Volumes,
        "FROM volumes WHERE org = ?1 AND deleted_at IS NULL",
    ),
    (OrganisationHolding::Secrets, "FROM secrets WHERE org = ?1"),
    (
        OrganisationHolding::Images,
        "FROM image_grants WHERE org = ?1",
    ),
    (
        OrganisationHolding::Builds,
        "FROM builds WHERE org = ?1 AND finished_at IS NULL",
    ),
    (
        OrganisationHolding::Pulls,
        "FROM image_jobs WHERE org = ?1 AND outcome IS NULL",
    ),
];

/// What goes with it. The rest of its rows is either a tombstone or bound to one, and goes as tombstones do.
const GO_ALONG: [&str; 4] = ["ssh_keys", "secret_keys", "build_cache", "template_names"];

pub struct Remove {
    pub id: OrgId,
    pub at: OffsetDateTime,
}

impl Op for Remove {
    type Out = OrganisationRemoval;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        // Whoever makes something in it has the row's lock: they come before this, or find it removed.
        lock(tx, &self.id).await?;
        let mut holds = Vec::new();
        for (what, from) in HOLDINGS {
            let count = format!("SELECT COUNT(*) {from}");
            let rows = tx.query(&count, values![&self.id]).await?;
            let count = rows.first().map_or(Ok(0), |row| row.count(0))?;
            if count > 0 {
                holds.push((what, count));
            }
        }
        if !holds.is_empty() {
            return Ok(OrganisationRemoval::Holds(holds));
        }
        tx.execute(
            "UPDATE api_keys SET revoked_at = ?2 WHERE org = ?1 AND revoked_at IS NULL",
            values![&self.id, self.at],
        )
        .await?;
        for table in GO_ALONG {
            let sql = format!("DELETE FROM {table} WHERE org = ?1");
            tx.execute(&sql, values![&self.id]).await?;
        }
        // With a quota of nothing, [`hold`] gives nothing out either.
        let rows = tx
            .query(
                "UPDATE organisations SET removed_at = ?2, removed_name = name, name = id, \
                 max_sandboxes = 0, max_cpu_milli = 0, max_memory_mb = 0, max_disk_mb = 0 \
                 WHERE id = ?1 RETURNING removed_name",
                values![&self.id, self.at],
            )
            .await?;
        let name = rows.first().ok_or(NO_ORGANISATION)?.text(0)?.to_owned();
        Ok(OrganisationRemoval::Removed { name })
    }
}

/// Takes the row's lock until the transaction ends: of two requests the second counts what the first made, and nothing
/// is made in an organisation that was removed.
pub async fn lock<T: Tx>(tx: &mut T, org: &OrgId) -> Result<(), StoreError> {
    let sql =
        "UPDATE organisations SET used_disk_mb = used_disk_mb WHERE id = ?1 AND removed_at IS NULL";
    match tx.execute(sql, values![org]).await? {
        0 => Err(NO_ORGANISATION),
        _ => Ok(()),
    }
}

const NO_ORGANISATION: StoreError = StoreError::NotFound {
    what: "the organisation",
};

fn difference(new: u64, old: u64) -> i64 {
    i64::try_from(i128::from(new) - i128::from(old)).unwrap_or(i64::MAX)
}

/// Moves what the organisation holds from `old` to `new` whatever its quota says: for what is there
/// already.
pub async fn hold_whatever<T: Tx>(
    tx: &mut T,
    org: &OrgId,
    old: &Holding,
    new: &Holding,
) -> Result<(), StoreError> {
    if old == new {
        return Ok(());
    }
    let changed = tx
        .execute(
            "UPDATE organisations SET used_sandboxes = used_sandboxes + ?2, \
             used_cpu_milli = used_cpu_milli + ?3, used_memory_mb = used_memory_mb + ?4, \
             used_disk_mb = used_disk_mb + ?5 WHERE id = ?1",
            values![
                org,
                difference(new.sandboxes, old.sandboxes),
                difference(new.cpu_milli, old.cpu_milli),
                difference(new.memory_mb, old.memory_mb),
                difference(new.disk_mb, old.disk_mb),
            ],
        )
        .await?;
    match changed {
        1 => Ok(()),
        _ => Err(NO_ORGANISATION),
    }
}

/// Moves what the organisation holds from `old` to `new`. Check and change are one statement, so two
/// callers cannot both take the last of a quota. Giving back is always allowed.
pub async fn hold<T: Tx>(
    tx: &mut T,
    org: &OrgId,
    old: &Holding,
    new: &Holding,
) -> Result<(), StoreError> {
    if old == new {
        return Ok(());
    }
    let sandboxes = difference(new.sandboxes, old.sandboxes);
    let cpu = difference(new.cpu_milli, old.cpu_milli);
    let memory = difference(new.memory_mb, old.memory_mb);
    let disk = difference(new.disk_mb, old.disk_mb);
    let changed = tx
        .execute(
            "UPDATE organisations SET used_sandboxes = used_sandboxes + ?2, \
             used_cpu_milli = used_cpu_milli + ?3, used_memory_mb = used_memory_mb + ?4, \
             used_disk_mb = used_disk_mb + ?5 WHERE id = ?1 \
             AND (used_sandboxes + ?2 <= used_sandboxes OR used_sandboxes + ?2 <= max_sandboxes) \
             AND (used_cpu_milli + ?3 <= used_cpu_milli OR used_cpu_milli + ?3 <= max_cpu_milli) \
             AND (used_memory_mb + ?4 <= used_memory_mb OR used_memory_mb + ?4 <= max_memory_mb) \
             AND (used_disk_mb + ?5 <= used_disk_mb OR used_disk_mb + ?5 <= max_disk_mb)",
            values![org, sandboxes, cpu, memory, disk],
        )
        .await?;
    if changed == 1 {
        return Ok(());
    }
    let now = Get::ById(org.clone())
        .run(tx)
        .await?
        .ok_or(NO_ORGANISATION)?;
    for (resource, limit, used, asked) in [
        (
            "sandboxes",
            now.quota.sandboxes,
            now.used.sandboxes,
            sandboxes,
        ),
        (
            "cpu (thousandths)",
            now.quota.cpu_milli,
            now.used.cpu_milli,
            cpu,
        ),
        (
            "memory (MiB)",
            now.quota.memory_mb,
            now.used.memory_mb,
            memory,
        ),
        ("disk (MiB)", now.quota.disk_mb, now.used.disk_mb, disk),
    ] {
        let asked = u64::try_from(asked).unwrap_or(0);
        if asked > 0 && used.saturating_add(asked) > limit {
            return Err(StoreError::Quota {
                resource,
                limit,
                used,
                asked,
            });
        }
    }
    // What was short was given back between the two statements.
    Err(StoreError::Stale)
}
