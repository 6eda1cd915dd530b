//! Programs of several releases on one database: what the next one only expanded is used, what it contracted is refused.

use std::path::Path;
use std::sync::Arc;

use cove_store::{Store, StoreError};

use crate::cluster::Cluster;
use crate::rows::{open, open_sqlite, org, try_open};

/// What the next release may add to every table.
const COLUMN: &str = "of_the_next TEXT NOT NULL DEFAULT 'next'";
const TABLE: &str = "CREATE TABLE only_in_the_next (id TEXT PRIMARY KEY)";
const EXPANDED: &str = "UPDATE schema_version SET version = version + 1";
/// After it something is gone that this program uses.
const CONTRACTED: &str =
    "UPDATE schema_version SET version = version + 1, compatible_from = version";

pub fn expand_sqlite(path: &Path) {
    let raw = rusqlite::Connection::open(path).unwrap();
    let mut statement = raw
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        .unwrap();
    let names = statement
        .query_map([], |row| row.get::<_, String>(0))
        .unwrap();
    let names: Vec<_> = names.collect::<Result<_, _>>().unwrap();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        raw.execute(&format!("ALTER TABLE {name} ADD COLUMN {COLUMN}"), [])
            .unwrap();
    }
    raw.execute_batch(&format!("{TABLE}; {EXPANDED}")).unwrap();
}

pub async fn expand_postgres(address: &str) {
    let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let column = COLUMN.replace('\'', "''");
    let each = format!(
        "DO $$ DECLARE name TEXT; BEGIN FOR name IN SELECT tablename FROM pg_tables \
         WHERE schemaname = 'public' LOOP EXECUTE 'ALTER TABLE ' || name || ' ADD COLUMN {column}'; \
         END LOOP; END $$; {TABLE}; {EXPANDED}"
    );
    client.batch_execute(&each).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}

async fn is_refused(opened: Result<Arc<dyn Store>, StoreError>) {
    let refused = opened.err().unwrap();
    let text = refused.to_string();
    let StoreError::Newer {
        found,
        oldest,
        known,
    } = refused
    else {
        panic!("{text}");
    };
    assert_eq!((found, oldest), (known + 2, known + 1));
    // Both versions are in the message.
    assert!(
        text.contains(&format!("has schema {found}"))
            && text.contains(&format!("schema {oldest} or later"))
            && text.contains(&format!("has schema {known}")),
        "{text}"
    );
}

#[tokio::test]
async fn an_sqlite_file_that_a_newer_program_contracted_is_refused_and_kept() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("store.db");
    let store = open_sqlite(&path).await;
    store.put_setting("a", "b").await.unwrap();
    drop(store);
    expand_sqlite(&path);
    let store = open_sqlite(&path).await;
    assert_eq!(store.setting("a").await.unwrap().as_deref(), Some("b"));
    drop(store);
    let raw = rusqlite::Connection::open(&path).unwrap();
    raw.execute(CONTRACTED, []).unwrap();
    is_refused(cove_store::open_sqlite(&path).await).await;
    // The program that knows the version finds it as it was.
    let back = "UPDATE schema_version SET version = version - 2, compatible_from = version - 2";
    raw.execute(back, []).unwrap();
    let store = open_sqlite(&path).await;
    assert_eq!(store.setting("a").await.unwrap().as_deref(), Some("b"));
}

#[tokio::test]
async fn a_program_that_runs_goes_on_while_postgres_is_expanded_and_reports_a_contraction() {
    let cluster = Cluster::start();
    let address = cluster.database("expanded").await;
    let store = open(&address).await;
    let ours = org(&store, "before").await;
    // Statements are prepared by now, on connections that stay.
    store.put_setting("a", "b").await.unwrap();
    assert!(store.organisation(&ours).await.unwrap().is_some());
    expand_postgres(&address).await;
    store.check().await.unwrap();
    store.put_setting("a", "c").await.unwrap();
    assert_eq!(store.setting("a").await.unwrap().as_deref(), Some("c"));
    assert!(store.organisation(&ours).await.unwrap().is_some());
    org(&store, "after").await;
    // It starts again beside the newer one.
    let again = open(&address).await;
    assert_eq!(again.setting("a").await.unwrap().as_deref(), Some("c"));
    cluster.run_sql("expanded", CONTRACTED).await;
    is_refused(try_open(&address).await).await;
    // One that still runs is no longer ready.
    let told = store.check().await.unwrap_err();
    assert!(matches!(told, StoreError::Newer { .. }), "{told}");
}

#[tokio::test]
async fn migrations_of_postgres_do_not_race() {
    let cluster = Cluster::start();
    let address = cluster.database("versions").await;
    // On a busy machine one may give up while another migrates; a server tries again, too.
    let (one, two, three) = tokio::join!(open(&address), open(&address), open(&address));
    let stores: [Arc<dyn Store>; 3] = [one, two, three];
    stores[0].put_setting("a", "b").await.unwrap();
    assert_eq!(stores[2].setting("a").await.unwrap().as_deref(), Some("b"));
}
