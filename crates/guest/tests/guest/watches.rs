//! Changes reported as they happen.

use std::path::Path;

use cove_protocol::client::Watcher;
use cove_protocol::message::{Change, ChangeKind, ErrorCode, Watch};

use crate::harness::*;

async fn watch(guest: &TestGuest, name: &str, recursive: bool) -> Watcher {
    let request = Watch {
        path: guest.text(name),
        recursive,
        ..Watch::default()
    };
    guest.watch(request).await.unwrap()
}

/// The next change of that kind at that path; others may come before.
async fn wait_for(watcher: &mut Watcher, kind: ChangeKind, path: &Path) -> Change {
    let what = format!("{kind:?} {}", path.display());
    within(&what, async {
        loop {
            let change = watcher.next().await.unwrap().expect("the watch stands");
            if change.kind == kind as i32 && Path::new(&change.path) == path {
                return change;
            }
        }
    })
    .await
}

#[tokio::test]
async fn files_are_seen_to_come_change_move_and_go() {
    let guest = TestGuest::start().await;
    std::fs::create_dir(guest.path("w")).unwrap();
    let mut watcher = watch(&guest, "w", false).await;
    let (one, two) = (guest.path("w/one"), guest.path("w/two"));
    std::fs::write(&one, "x").unwrap();
    wait_for(&mut watcher, ChangeKind::Created, &one).await;
    wait_for(&mut watcher, ChangeKind::Written, &one).await;
    set_mode(&one, 0o600);
    wait_for(&mut watcher, ChangeKind::Attributes, &one).await;
    std::fs::rename(&one, &two).unwrap();
    let renamed = wait_for(&mut watcher, ChangeKind::Renamed, &two).await;
    assert_eq!(Path::new(&renamed.from), one);
    std::fs::rename(&two, guest.path("elsewhere")).unwrap();
    wait_for(&mut watcher, ChangeKind::Removed, &two).await;
    std::fs::rename(guest.path("elsewhere"), &one).unwrap();
    wait_for(&mut watcher, ChangeKind::Created, &one).await;
    std::fs::remove_file(&one).unwrap();
    wait_for(&mut watcher, ChangeKind::Removed, &one).await;
}

#[tokio::test]
async fn a_deep_watch_follows_new_and_renamed_directories() {
    let guest = TestGuest::start().await;
    std::fs::create_dir_all(guest.path("w/old/sub")).unwrap();
    let mut watcher = watch(&guest, "w", true).await;
    std::fs::write(guest.path("w/old/sub/f"), "x").unwrap();
    wait_for(
        &mut watcher,
        ChangeKind::Created,
        &guest.path("w/old/sub/f"),
    )
    .await;
    // Made at once: what was inside before its watch stood is reported too.
    std::fs::create_dir_all(guest.path("w/a/b/c")).unwrap();
    std::fs::write(guest.path("w/a/b/c/f"), "x").unwrap();
    wait_for(&mut watcher, ChangeKind::Created, &guest.path("w/a/b/c/f")).await;
    std::fs::rename(guest.path("w/old"), guest.path("w/new")).unwrap();
    let renamed = wait_for(&mut watcher, ChangeKind::Renamed, &guest.path("w/new")).await;
    assert!(renamed.directory);
    std::fs::write(guest.path("w/new/sub/g"), "x").unwrap();
    wait_for(
        &mut watcher,
        ChangeKind::Created,
        &guest.path("w/new/sub/g"),
    )
    .await;
}

#[tokio::test]
async fn a_watch_ends_with_what_it_watches() {
    let guest = TestGuest::start().await;
    std::fs::create_dir(guest.path("w")).unwrap();
    let mut watcher = watch(&guest, "w", false).await;
    std::fs::remove_dir(guest.path("w")).unwrap();
    wait_for(&mut watcher, ChangeKind::Removed, &guest.path("w")).await;
    let end = within("the end", async {
        loop {
            if watcher.next().await.unwrap().is_none() {
                return true;
            }
        }
    });
    assert!(end.await);
}

#[tokio::test]
async fn a_file_alone_is_watched_and_a_missing_one_refused() {
    let guest = TestGuest::start().await;
    std::fs::write(guest.path("file"), "x").unwrap();
    let mut watcher = watch(&guest, "file", false).await;
    std::fs::write(guest.path("file"), "yy").unwrap();
    wait_for(&mut watcher, ChangeKind::Written, &guest.path("file")).await;
    let missing = Watch {
        path: guest.text("missing"),
        ..Watch::default()
    };
    assert_eq!(
        code(guest.watch(missing).await.map(drop)),
        ErrorCode::NotFound
    );
}

#[tokio::test]
async fn a_user_watches_only_what_it_may_read() {
    let guest = TestGuest::start().await;
    std::fs::create_dir(guest.path("w")).unwrap();
    set_mode(&guest.path("w"), 0o700);
    let request = Watch {
        path: guest.text("w"),
        user: "daemon".to_owned(),
        recursive: true,
    };
    assert_eq!(
        code(guest.watch(request).await.map(drop)),
        ErrorCode::PermissionDenied
    );
}

#[tokio::test]
async fn a_watch_that_nobody_reads_ends_with_its_caller() {
    let guest = TestGuest::start().await;
    std::fs::create_dir(guest.path("w")).unwrap();
    let watcher = watch(&guest, "w", false).await;
    assert_eq!(guest.metrics().await.unwrap().open_calls, 1);
    drop(watcher);
    eventually("the call is over", async || {
        guest.metrics().await.unwrap().open_calls == 0
    })
    .await;
}
