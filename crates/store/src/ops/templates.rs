//! Templates: versions that never change, the tags that point at them, and the snapshots that they keep.

use cove_model::{OrgId, SnapshotId, TemplateId};

use crate::cursor::Position;
use crate::newest::Newest;
use crate::ops::idempotency::claim;
use crate::ops::organisations::lock;
use crate::sql::{Op, Row, Tx, json, micros, values};
use crate::{
    IdempotencyKey, Inserted, NewTemplate, Page, PageRequest, SnapshotState, StoreError,
    TemplateCreated, TemplateHint, TemplateKey, TemplateRecord, TemplatesDoomed,
};

const COLUMNS: &str = "id, org, name, version, snapshot, memory, spec, created_at, config";

/// What other tables say of a version, read after its columns: whether its snapshot is there, and its tags. One statement
/// reads it all, so that rows and tags are of one moment, however many rows there are.
const BESIDE: &str = "(SELECT COUNT(*) FROM snapshots WHERE snapshots.id = templates.snapshot \
     AND snapshots.deleted_at IS NULL), \
     (SELECT string_agg(template_tags.tag, ',') FROM template_tags WHERE template_tags.org = templates.org \
     AND template_tags.name = templates.name AND template_tags.version = templates.version)";

/// Names whose versions are all deleted.
const DELETED_NAMES: &str = "org = ?1 AND name <> '' AND NOT EXISTS (SELECT 1 FROM templates \
     WHERE templates.org = template_names.org AND templates.name = template_names.name)";

const NO_TEMPLATE: StoreError = StoreError::NotFound {
    what: "the template",
};

const TAGS_MAX: u64 = cove_limits::TEMPLATE_TAGS_MAX as u64;

const TOO_MANY_TAGS: StoreError = StoreError::TooMany {
    what: "tags of this template",
};

fn record(row: &Row) -> Result<TemplateRecord, StoreError> {
    let beside = row.0.len().saturating_sub(2);
    let tags = row.optional_text(beside + 1)?.unwrap_or_default();
    let tags = tags.split(',').filter(|tag| !tag.is_empty());
    let mut tags: Vec<String> = tags.map(str::to_owned).collect();
    tags.sort_unstable();
    Ok(TemplateRecord {
        id: row.parse(0, "template id")?,
        org: row.parse(1, "organisation id")?,
        name: row.text(2)?.to_owned(),
        version: row.count(3)?,
        snapshot: row.parse(4, "snapshot id")?,
        memory: row.int(5)? != 0,
        spec: row.json(6, "sandbox spec")?,
        tags,
        created_at: row.time(7)?,
        lost: row.int(beside)? == 0,
        config: row.optional_text(8)?,
    })
}

async fn point<'a, T: Tx>(
    tx: &mut T,
    org: &OrgId,
    name: &str,
    tags: impl Iterator<Item = &'a str> + Send,
    version: u64,
) -> Result<(), StoreError> {
    for tag in tags {
        tx.execute(
            "INSERT INTO template_tags (org, name, tag, version) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (org, name, tag) DO UPDATE SET version = excluded.version",
            values![org, name, tag, version],
        )
        .await?;
    }
    let count = "SELECT COUNT(*) FROM template_tags WHERE org = ?1 AND name = ?2";
    let rows = tx.query(count, values![org, name]).await?;
    match rows.first().map_or(Ok(0), |row| row.count(0))? > TAGS_MAX {
        true => Err(TOO_MANY_TAGS),
        false => Ok(()),
    }
}

pub struct Create {
    pub new: NewTemplate,
    pub idempotency: Option<IdempotencyKey>,
}

impl Op for Create {
    type Out = TemplateCreated;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<TemplateCreated, StoreError> {
        let new = &self.new;
        // Repeats count too: what a transaction does has a bound.
        if new.tags.len() as u64 > TAGS_MAX {
            return Err(TOO_MANY_TAGS);
        }
        let key = self.idempotency.as_ref();
        if let Some(earlier) = claim(tx, &new.org, key, &new.id, new.created_steady).await? {
            return Ok(earlier);
        }
        // Writing takes the row's lock, as deleting the snapshot does. The snapshot's comes before the organisation's, as
        // in every change of a snapshot: in another order two of them would wait for each other.
        let pinned = tx
            .execute(
                "UPDATE snapshots SET state = state WHERE id = ?1 AND org = ?2 AND state = ?3 \
                 AND deleted_at IS NULL",
                values![&new.snapshot, &new.org, SnapshotState::Ready.as_str()],
            )
            .await?;
        if pinned == 0 {
            return Err(StoreError::NotFound {
                what: "the snapshot",
            });
        }
        lock(tx, &new.org).await?;
        let count = "SELECT COUNT(*) FROM templates WHERE org = ?1";
        let rows = tx.query(count, values![&new.org]).await?;
        if rows.first().map_or(Ok(0), |row| row.count(0))? >= cove_limits::TEMPLATES_MAX {
            return Err(StoreError::TooMany { what: "templates" });
        }
        let numbered = tx
            .query(
                "INSERT INTO template_names (org, name, last_version) VALUES (?1, ?2, COALESCE(\
                 (SELECT last_version FROM template_names WHERE org = ?1 AND name = ''), 0) + 1) \
                 ON CONFLICT (org, name) DO UPDATE SET last_version = template_names.last_version + 1 \
                 RETURNING last_version",
                values![&new.org, new.name.as_str()],
            )
            .await?;
        let version = numbered.first().map_or(Ok(1), |row| row.count(0))?;
        let sql = format!(
            "INSERT INTO templates ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        );
        tx.execute(
            &sql,
            values![
                &new.id,
                &new.org,
                new.name.as_str(),
                version,
                &new.snapshot,
                new.memory,
                json(&new.spec)?,
                new.created_at,
                new.config.clone(),
            ],
        )
        .await?;
        let tags = new.tags.iter().map(String::as_str);
        point(tx, &new.org, &new.name, tags, version).await?;
        Ok(Inserted::New)
    }
}

pub struct Get(pub OrgId, pub TemplateKey);

impl Op for Get {
    type Out = Option<TemplateRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let select = format!("SELECT {COLUMNS}, {BESIDE} FROM templates WHERE org = ?1 AND");
        let rows = match &self.1 {
            TemplateKey::Id(id) => {
                let sql = format!("{select} id = ?2");
                tx.query(&sql, values![&self.0, id]).await?
            }
            TemplateKey::Version(name, version) => {
                let sql = format!("{select} name = ?2 AND version = ?3");
                // A number beyond the column's names no version.
                let version = i64::try_from(*version).unwrap_or(-1);
                tx.query(&sql, values![&self.0, name.as_str(), version])
                    .await?
            }
            TemplateKey::Tag(name, tag) => {
                let sql = format!(
                    "{select} name = ?2 AND version = (SELECT version FROM template_tags \
                     WHERE org = ?1 AND name = ?2 AND tag = ?3)"
                );
                tx.query(&sql, values![&self.0, name.as_str(), tag.as_str()])
                    .await?
            }
        };
        rows.first().map(record).transpose()
    }
}

pub struct List {
    pub org: OrgId,
    pub name: Option<String>,
    pub page: PageRequest,
}

impl Op for List {
    type Out = Page<TemplateRecord>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let columns = format!("{COLUMNS}, {BESIDE}");
        let mut list = Newest::of(&columns, "templates", &self.page)?;
        list.equal("org", &self.org);
        if let Some(name) = &self.name {
            list.equal("name", name.as_str());
        }
        list.read(tx, record, |record| {
            Position::new(micros(record.created_at), record.id.as_str())
        })
        .await
    }
}

/// What to name where a version of a name was not found: its newest version, and some of its tags.
pub struct Hint(pub OrgId, pub String, pub i64);

impl Op for Hint {
    type Out = Option<TemplateHint>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let name = self.1.as_str();
        let sql = "SELECT COALESCE(MAX(version), 0) FROM templates WHERE org = ?1 AND name = ?2";
        let rows = tx.query(sql, values![&self.0, name]).await?;
        let newest = rows.first().map_or(Ok(0), |row| row.count(0))?;
        if newest == 0 {
            return Ok(None);
        }
        let sql =
            "SELECT tag FROM template_tags WHERE org = ?1 AND name = ?2 ORDER BY tag LIMIT ?3";
        let rows = tx.query(sql, values![&self.0, name, self.2]).await?;
        let tags = rows.iter().map(|row| Ok(row.text(0)?.to_owned()));
        let tags = tags.collect::<Result<_, StoreError>>()?;
        Ok(Some(TemplateHint { newest, tags }))
    }
}

/// Points a tag at a version, wherever it pointed before.
pub struct Tag {
    pub org: OrgId,
    pub id: TemplateId,
    pub tag: String,
}

impl Op for Tag {
    type Out = TemplateRecord;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<TemplateRecord, StoreError> {
        lock(tx, &self.org).await?;
        let get = Get(self.org.clone(), TemplateKey::Id(self.id.clone()));
        let found = get.run(tx).await?.ok_or(NO_TEMPLATE)?;
        let tags = std::iter::once(self.tag.as_str());
        point(tx, &self.org, &found.name, tags, found.version).await?;
        get.run(tx).await?.ok_or(NO_TEMPLATE)
    }
}

/// Takes a tag away; what it pointed at stays.
pub struct Untag {
    pub org: OrgId,
    pub name: String,
    pub tag: String,
    /// Only if it points there.
    pub version: Option<u64>,
}

impl Op for Untag {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        let (only, version) = match self.version {
            Some(_) => (" AND version = ?4", self.version),
            None => ("", None),
        };
        let mut bound = values![&self.org, self.name.as_str(), self.tag.as_str()].to_vec();
        bound.extend(version.map(Into::into));
        let sql =
            format!("DELETE FROM template_tags WHERE org = ?1 AND name = ?2 AND tag = ?3{only}");
        match tx.execute(&sql, &bound).await? {
            0 => Err(StoreError::NotFound { what: "the tag" }),
            _ => Ok(()),
        }
    }
}

/// Takes versions away, with the tags that pointed there. Answers what is gone.
pub struct Delete {
    pub org: OrgId,
    pub which: TemplatesDoomed,
}

impl Op for Delete {
    type Out = Vec<(TemplateId, SnapshotId)>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        lock(tx, &self.org).await?;
        let (column, which) = match &self.which {
            TemplatesDoomed::Version(id) => ("id", id.as_str()),
            TemplatesDoomed::Only(name) | TemplatesDoomed::All(name) => ("name", name.as_str()),
        };
        let bound = values![&self.org, which];
        if matches!(self.which, TemplatesDoomed::Only(_)) {
            let count = "SELECT COUNT(*) FROM templates WHERE org = ?1 AND name = ?2";
            let rows = tx.query(count, bound).await?;
            let versions = rows.first().map_or(Ok(0), |row| row.count(0))?;
            if versions > 1 {
                return Err(StoreError::SeveralVersions { versions });
            }
        }
        let sql = format!(
            "DELETE FROM template_tags WHERE org = ?1 AND EXISTS (SELECT 1 FROM templates WHERE \
             templates.org = ?1 AND templates.{column} = ?2 AND templates.name = template_tags.name \
             AND templates.version = template_tags.version)"
        );
        tx.execute(&sql, bound).await?;
        let sql = format!(
            "DELETE FROM templates WHERE org = ?1 AND {column} = ?2 RETURNING id, snapshot"
        );
        let gone = tx.query(&sql, bound).await?;
        if gone.is_empty() {
            return Err(NO_TEMPLATE);
        }
        forget_names(tx, &self.org).await?;
        gone.iter()
            .map(|row| Ok((row.parse(0, "template id")?, row.parse(1, "snapshot id")?)))
            .collect()
    }
}

/// Numbers are never used again, so the last one of a name outlives its versions. When too many such names have gathered,
/// they are forgotten together, and from then on names begin above the highest number that any of them had. That
/// number is in the row of the empty name.
async fn forget_names<T: Tx>(tx: &mut T, org: &OrgId) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT COUNT(*), COALESCE(MAX(last_version), 0) FROM template_names WHERE {DELETED_NAMES}"
    );
    let rows = tx.query(&sql, values![org]).await?;
    let Some(found) = rows.first() else {
        return Ok(());
    };
    if found.count(0)? <= cove_limits::TEMPLATE_NAMES_REMEMBERED {
        return Ok(());
    }
    tx.execute(
        "INSERT INTO template_names (org, name, last_version) VALUES (?1, '', ?2) \
         ON CONFLICT (org, name) DO UPDATE SET last_version = excluded.last_version \
         WHERE excluded.last_version > template_names.last_version",
        values![org, found.int(1)?],
    )
    .await?;
    let sql = format!("DELETE FROM template_names WHERE {DELETED_NAMES}");
    tx.execute(&sql, values![org]).await.map(drop)
}

/// A template that keeps a snapshot, as people name it, and how many others there are.
pub async fn keeper<T: Tx>(
    tx: &mut T,
    snapshot: &SnapshotId,
) -> Result<Option<(String, u64)>, StoreError> {
    let rows = tx
        .query(
            "SELECT name, version, (SELECT COUNT(*) FROM templates WHERE snapshot = ?1) FROM templates \
             WHERE snapshot = ?1 ORDER BY created_at, name, version LIMIT 1",
            values![snapshot],
        )
        .await?;
    rows.first()
        .map(|row| {
            let one = format!("{}:{}", row.text(0)?, row.count(1)?);
            Ok((one, row.count(2)?.saturating_sub(1)))
        })
        .transpose()
}
