//! Reading, writing, listing and changing files, and with whose rights.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use cove_protocol::client::{Guest, GuestError};
use cove_protocol::message::{
    Done, ErrorCode, FileType, ListDir, MakeDir, Move, PathRequest, ReadFile, Remove,
    SetAttributes, WriteFile,
};

use crate::harness::*;

async fn read(guest: &Guest, request: ReadFile) -> Result<Vec<u8>, GuestError> {
    let mut reader = guest.read_file(request).await?;
    let mut all = Vec::new();
    while let Some(part) = reader.next().await? {
        all.extend_from_slice(&part);
    }
    Ok(all)
}

fn whole(path: &str) -> ReadFile {
    ReadFile {
        path: path.to_owned(),
        ..ReadFile::default()
    }
}

fn to(path: &str) -> WriteFile {
    WriteFile {
        path: path.to_owned(),
        ..WriteFile::default()
    }
}

async fn write(guest: &Guest, request: WriteFile, text: &str) -> Result<Done, GuestError> {
    let mut upload = guest.write_file(request).await?;
    upload.write(bytes(text)).await?;
    upload.finish().await
}

fn leftovers(guest: &TestGuest) -> Vec<String> {
    std::fs::read_dir(guest.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".cove-"))
        .collect()
}

#[tokio::test]
async fn a_file_comes_back_as_it_was_written_in_whole_and_in_ranges() {
    let guest = TestGuest::start().await;
    let path = guest.text("data");
    let mut random = Random(11);
    let data: Vec<u8> = (0..3_000_000).map(|_| random.next() as u8).collect();
    let mut upload = guest.write_file(to(&path)).await.unwrap();
    for part in data.chunks(700_001) {
        upload.write(part.to_vec().into()).await.unwrap();
    }
    assert_eq!(upload.finish().await.unwrap().bytes, 3_000_000);
    assert!(read(&guest, whole(&path)).await.unwrap() == data);
    for (offset, length) in [
        (0, 1),
        (1_000_000, 300_000),
        (2_999_999, 10),
        (5_000_000, 1),
    ] {
        let range = ReadFile {
            offset,
            length,
            ..whole(&path)
        };
        let start = (offset as usize).min(data.len());
        let end = (start + length as usize).min(data.len());
        assert!(read(&guest, range).await.unwrap() == data[start..end]);
    }
    let reader = guest.read_file(whole(&path)).await.unwrap();
    assert_eq!((reader.info().size, reader.info().mode), (3_000_000, 0o644));
}

#[tokio::test]
async fn files_of_proc_are_read_although_they_have_no_size() {
    let guest = TestGuest::start().await;
    let text = read(&guest, whole("/proc/self/status")).await.unwrap();
    assert!(text.starts_with(b"Name:"));
}

#[tokio::test]
async fn a_write_is_seen_whole_or_not_at_all() {
    let guest = TestGuest::start().await;
    let path = guest.text("file");
    std::fs::write(&path, "old").unwrap();
    let mut upload = guest.write_file(to(&path)).await.unwrap();
    upload.write(bytes("new and ")).await.unwrap();
    eventually("it is under way", async || !leftovers(&guest).is_empty()).await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    upload.abort();
    eventually("nothing is left of it", async || {
        leftovers(&guest).is_empty()
    })
    .await;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
    write(&guest, to(&path), "new").await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    assert!(leftovers(&guest).is_empty());
}

#[tokio::test]
async fn replacing_keeps_mode_and_owner_unless_told_otherwise() {
    let guest = TestGuest::start().await;
    let path = guest.text("file");
    std::fs::write(&path, "old").unwrap();
    std::os::unix::fs::chown(&path, Some(1), Some(2)).unwrap();
    set_mode(path.as_ref(), 0o4750);
    write(&guest, to(&path), "new").await.unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (1, 2, 0o4750)
    );
    let explicit = WriteFile {
        mode: Some(0o600),
        owner: "daemon:3".to_owned(),
        sync: true,
        ..to(&path)
    };
    write(&guest, explicit, "newer").await.unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (1, 3, 0o600)
    );
}

#[tokio::test]
async fn writes_at_an_offset_and_at_the_end_keep_the_rest() {
    let guest = TestGuest::start().await;
    let path = guest.text("file");
    std::fs::write(&path, "0123456789").unwrap();
    let middle = WriteFile {
        at: Some(4),
        ..to(&path)
    };
    write(&guest, middle.clone(), "xx").await.unwrap();
    let end = WriteFile {
        append: true,
        ..to(&path)
    };
    write(&guest, end.clone(), "!").await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "0123xx6789!");
    let both = WriteFile {
        append: true,
        ..middle
    };
    assert_eq!(code(write(&guest, both, "").await), ErrorCode::Invalid);
}

#[tokio::test]
async fn a_link_is_written_through_and_parents_are_made() {
    let guest = TestGuest::start().await;
    let deep = guest.text("a/b/c");
    assert_eq!(
        code(write(&guest, to(&deep), "x").await),
        ErrorCode::NotFound
    );
    let with_parents = WriteFile {
        parents: true,
        ..to(&deep)
    };
    write(&guest, with_parents, "x").await.unwrap();
    std::os::unix::fs::symlink("a/b/c", guest.path("link")).unwrap();
    write(&guest, to(&guest.text("link")), "through")
        .await
        .unwrap();
    assert!(guest.path("link").is_symlink());
    assert_eq!(std::fs::read_to_string(&deep).unwrap(), "through");
}

#[tokio::test]
async fn pipes_sockets_devices_and_directories_are_refused_without_blocking() {
    let guest = TestGuest::start().await;
    guest.shell(&format!("mkfifo {}", guest.text("fifo"))).await;
    let cases = [
        (guest.text("fifo"), ErrorCode::Invalid),
        (guest.text("sock"), ErrorCode::Invalid),
        ("/dev/zero".to_owned(), ErrorCode::Invalid),
        (guest.text(""), ErrorCode::IsADirectory),
        ("relative".to_owned(), ErrorCode::Invalid),
    ];
    for (path, wanted) in cases {
        let got = within(&path, read(&guest, whole(&path))).await;
        assert_eq!(code(got), wanted, "reading {path}");
        let got = within(&path, write(&guest, to(&path), "x")).await;
        assert_eq!(code(got), wanted, "writing {path}");
    }
    assert_eq!(
        code(read(&guest, whole("/no/such")).await),
        ErrorCode::NotFound
    );
}

#[tokio::test]
async fn a_user_reads_and_writes_only_what_it_may() {
    let guest = TestGuest::start().await;
    let secret = guest.text("secret");
    std::fs::write(&secret, "hidden").unwrap();
    set_mode(secret.as_ref(), 0o600);
    let as_daemon = |path: &str| ReadFile {
        user: "daemon".to_owned(),
        ..whole(path)
    };
    assert_eq!(
        code(read(&guest, as_daemon(&secret)).await),
        ErrorCode::PermissionDenied
    );
    let write_as_daemon = |path: &str| WriteFile {
        user: "daemon".to_owned(),
        ..to(path)
    };
    let got = write(&guest, write_as_daemon(&secret), "x").await;
    assert_eq!(code(got), ErrorCode::PermissionDenied);
    let got = write(&guest, write_as_daemon(&guest.text("new")), "x").await;
    assert_eq!(code(got), ErrorCode::PermissionDenied);
    // The next call as root has root's rights again, and the guest itself never lost them.
    assert_eq!(read(&guest, whole(&secret)).await.unwrap(), b"hidden");
    std::os::unix::fs::chown(&secret, Some(1), None).unwrap();
    assert_eq!(read(&guest, as_daemon(&secret)).await.unwrap(), b"hidden");
    // Its own file in a directory that is not: written in place.
    write(&guest, write_as_daemon(&secret), "mine")
        .await
        .unwrap();
    let meta = std::fs::metadata(&secret).unwrap();
    assert_eq!((meta.uid(), meta.len()), (1, 4));
}

#[tokio::test]
async fn a_user_belongs_to_its_groups_in_file_calls() {
    let guest = TestGuest::start().await;
    let shared = guest.text("shared");
    std::fs::write(&shared, "for the group").unwrap();
    std::os::unix::fs::chown(&shared, Some(0), Some(4321)).unwrap();
    set_mode(shared.as_ref(), 0o640);
    let as_user = |user: &str| ReadFile {
        user: user.to_owned(),
        ..whole(&shared)
    };
    assert_eq!(
        read(&guest, as_user("daemon:4321")).await.unwrap(),
        b"for the group"
    );
    assert_eq!(
        code(read(&guest, as_user("daemon")).await),
        ErrorCode::PermissionDenied
    );
}

#[tokio::test]
async fn the_guests_own_memory_and_descriptors_are_no_files_to_others() {
    let guest = TestGuest::start().await;
    let pid = guest.pid();
    for path in [
        "/proc/self/mem".to_owned(),
        format!("/proc/{pid}/environ"),
        "/proc/self/fd/3".to_owned(),
    ] {
        let request = ReadFile {
            user: "daemon".to_owned(),
            ..whole(&path)
        };
        read(&guest, request).await.unwrap_err();
    }
    let request = WriteFile {
        user: "daemon".to_owned(),
        at: Some(4096),
        ..to("/proc/self/mem")
    };
    let got = write(&guest, request, "x").await;
    assert_eq!(code(got), ErrorCode::PermissionDenied);
}

#[tokio::test]
async fn listings_go_as_deep_as_asked_and_say_when_cut() {
    let guest = TestGuest::start().await;
    let root = guest.text("tree");
    for directory in 0..5 {
        std::fs::create_dir_all(format!("{root}/d{directory}/sub")).unwrap();
        for file in 0..60 {
            std::fs::write(format!("{root}/d{directory}/f{file:02}"), "x").unwrap();
        }
    }
    std::os::unix::fs::symlink("/nowhere", format!("{root}/link")).unwrap();
    let list = |depth, limit| ListDir {
        path: root.clone(),
        depth,
        limit,
        ..ListDir::default()
    };
    let flat = guest.list(list(1, 0)).await.unwrap();
    let names: Vec<&str> = flat
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(names, ["d0", "d1", "d2", "d3", "d4", "link"]);
    let link = &flat.entries[5];
    assert_eq!(link.r#type, FileType::Symlink as i32);
    assert_eq!(link.symlink_target, "/nowhere");
    assert_eq!((link.owner.as_str(), link.uid), ("root", 0));
    let deep = guest.list(list(9, 0)).await.unwrap();
    assert_eq!((deep.entries.len(), deep.truncated), (6 + 5 * 61, false));
    let cut = guest.list(list(9, 200)).await.unwrap();
    assert_eq!((cut.entries.len(), cut.truncated), (200, true));
    let missing = ListDir {
        path: "/no/such".to_owned(),
        ..list(1, 0)
    };
    assert_eq!(code(guest.list(missing).await), ErrorCode::NotFound);
}

#[tokio::test]
async fn stat_tells_of_the_link_or_of_what_it_points_to() {
    let guest = TestGuest::start().await;
    std::fs::write(guest.path("file"), "12345").unwrap();
    std::os::unix::fs::symlink("file", guest.path("link")).unwrap();
    let stat = |follow| PathRequest {
        path: guest.text("link"),
        follow,
        ..PathRequest::default()
    };
    let link = guest.stat(stat(false)).await.unwrap();
    assert_eq!(
        (link.r#type, link.symlink_target.as_str()),
        (FileType::Symlink as i32, "file")
    );
    let file = guest.stat(stat(true)).await.unwrap();
    assert_eq!((file.r#type, file.size), (FileType::File as i32, 5));
}

#[tokio::test]
async fn directories_are_made_with_parents_and_modes() {
    let guest = TestGuest::start().await;
    let make = |name: &str, parents, mode| MakeDir {
        path: guest.text(name),
        parents,
        mode,
        ..MakeDir::default()
    };
    assert_eq!(
        code(guest.mkdir(make("x/y", false, None)).await),
        ErrorCode::NotFound
    );
    guest.mkdir(make("x/y", true, Some(0o1777))).await.unwrap();
    let mode = std::fs::metadata(guest.path("x/y"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o1777);
    guest.mkdir(make("x/y", true, None)).await.unwrap();
    assert_eq!(
        code(guest.mkdir(make("x/y", false, None)).await),
        ErrorCode::AlreadyExists
    );
}

#[tokio::test]
async fn moves_replace_only_when_asked_to() {
    let guest = TestGuest::start().await;
    std::fs::write(guest.path("a"), "a").unwrap();
    std::fs::write(guest.path("b"), "b").unwrap();
    let rename = |replace| Move {
        from: guest.text("a"),
        to: guest.text("b"),
        replace,
        ..Move::default()
    };
    assert_eq!(
        code(guest.rename(rename(false)).await),
        ErrorCode::AlreadyExists
    );
    guest.rename(rename(true)).await.unwrap();
    assert_eq!(std::fs::read_to_string(guest.path("b")).unwrap(), "a");
    assert_eq!(code(guest.rename(rename(true)).await), ErrorCode::NotFound);
}

#[tokio::test]
async fn a_tree_moves_to_another_file_system_by_copy() {
    let guest = TestGuest::start().await;
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = guest.path("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    std::fs::write(tree.join("sub/file"), "text").unwrap();
    std::os::unix::fs::chown(tree.join("sub/file"), Some(7), Some(8)).unwrap();
    set_mode(&tree.join("sub"), 0o500);
    std::os::unix::fs::symlink("sub/file", tree.join("link")).unwrap();
    let target = elsewhere.path().join("moved");
    let request = Move {
        from: guest.text("tree"),
        to: target.to_str().unwrap().to_owned(),
        ..Move::default()
    };
    guest.rename(request).await.unwrap();
    assert!(!tree.exists());
    let meta = std::fs::metadata(target.join("sub/file")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.len()), (7, 8, 4));
    assert_eq!(
        std::fs::metadata(target.join("sub")).unwrap().mode() & 0o777,
        0o500
    );
    assert_eq!(
        std::fs::read_link(target.join("link")).unwrap().to_str(),
        Some("sub/file")
    );
}

#[tokio::test]
async fn removing_never_follows_links() {
    let guest = TestGuest::start().await;
    std::fs::create_dir_all(guest.path("keep")).unwrap();
    std::fs::write(guest.path("keep/file"), "x").unwrap();
    std::fs::create_dir_all(guest.path("gone/sub")).unwrap();
    std::os::unix::fs::symlink("../keep", guest.path("gone/link")).unwrap();
    let remove = |name: &str, recursive| Remove {
        path: guest.text(name),
        recursive,
        ..Remove::default()
    };
    assert_eq!(
        code(guest.remove(remove("gone", false)).await),
        ErrorCode::NotEmpty
    );
    guest.remove(remove("gone", true)).await.unwrap();
    assert!(!guest.path("gone").exists());
    assert!(guest.path("keep/file").exists());
    guest.remove(remove("keep/file", false)).await.unwrap();
    assert_eq!(
        code(guest.remove(remove("keep/file", false)).await),
        ErrorCode::NotFound
    );
    let root = Remove {
        path: "/".to_owned(),
        recursive: true,
        ..Remove::default()
    };
    assert_eq!(code(guest.remove(root).await), ErrorCode::Invalid);
}

#[tokio::test]
async fn attributes_are_changed_by_those_who_may() {
    let guest = TestGuest::start().await;
    std::fs::write(guest.path("file"), "x").unwrap();
    let set = |user: &str, mode, owner: &str| SetAttributes {
        path: guest.text("file"),
        user: user.to_owned(),
        mode,
        owner: owner.to_owned(),
    };
    guest
        .set_attributes(set("", Some(0o751), "daemon:5"))
        .await
        .unwrap();
    let meta = std::fs::metadata(guest.path("file")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777),
        (1, 5, 0o751)
    );
    guest
        .set_attributes(set("daemon", Some(0o700), ""))
        .await
        .unwrap();
    let denied = guest.set_attributes(set("daemon", None, "root")).await;
    assert_eq!(code(denied), ErrorCode::PermissionDenied);
    let denied = guest.set_attributes(set("2", Some(0o777), "")).await;
    assert_eq!(code(denied), ErrorCode::PermissionDenied);
    assert_eq!(
        code(guest.set_attributes(set("", None, "")).await),
        ErrorCode::Invalid
    );
    let unknown = guest.set_attributes(set("", None, "no-such-user")).await;
    assert_eq!(code(unknown), ErrorCode::NoSuchUser);
}

/// Root writes for a caller into a directory of another user, who has put something in the way.
#[tokio::test]
async fn root_is_not_led_astray_below_directories_of_other_users() {
    let guest = TestGuest::start().await;
    // Not below /tmp, where nothing counts as root's.
    let base = tempfile::tempdir_in("/var/lib").unwrap();
    set_mode(base.path(), 0o755);
    let at = |name: &str| base.path().join(name);
    let shadow = at("shadow");
    let untouched = || {
        let meta = std::fs::metadata(&shadow).unwrap();
        assert_eq!(std::fs::read_to_string(&shadow).unwrap(), "root:x");
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600));
    };
    std::fs::write(&shadow, "root:x").unwrap();
    set_mode(&shadow, 0o600);
    std::fs::create_dir(at("etc")).unwrap();
    std::fs::create_dir(at("home")).unwrap();
    std::os::unix::fs::chown(at("home"), Some(1000), Some(1000)).unwrap();
    std::fs::create_dir(at("home/backup")).unwrap();
    for (link, target) in [
        ("home/key", "../shadow"),
        ("home/dir", "../etc"),
        ("home/dangling", "../etc/new"),
        ("home/backup/key", "../../shadow"),
        ("links", "etc"),
        ("etc/bundle", "real"),
    ] {
        std::os::unix::fs::symlink(target, at(link)).unwrap();
    }
    std::fs::hard_link(&shadow, at("home/second")).unwrap();
    let secret = |name: &str| WriteFile {
        mode: Some(0o600),
        owner: "1000".to_owned(),
        parents: true,
        root_links_only: true,
        ..to(at(name).to_str().unwrap())
    };
    let careful = |name: &str| ReadFile {
        root_links_only: true,
        ..whole(at(name).to_str().unwrap())
    };
    for name in [
        "home/key",
        "home/dir/new",
        "home/dir/deep/new",
        "home/dangling",
        // Root's own link and directory, but the other user may have moved them here.
        "home/backup/key",
        "home/second",
        "home/backup/../key2",
    ] {
        let refused = write(&guest, secret(name), "taken").await;
        assert_eq!(code(refused), ErrorCode::PermissionDenied, "{name}");
        let refused = read(&guest, careful(name)).await;
        assert_eq!(code(refused), ErrorCode::PermissionDenied, "{name}");
        untouched();
    }
    assert_eq!(std::fs::read_dir(at("etc")).unwrap().count(), 1);
    // Plain files and new directories there, and links of root elsewhere, work.
    for name in ["home/plain", "home/new/deep/key", "links/bundle"] {
        for text in ["one", "two"] {
            write(&guest, secret(name), text).await.unwrap();
            assert_eq!(read(&guest, careful(name)).await.unwrap(), text.as_bytes());
        }
        let meta = std::fs::metadata(at(name)).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (1000, 0o600));
    }
    assert!(at("etc/bundle").is_symlink() && at("etc/real").is_file());
    let missing = read(&guest, careful("home/none")).await;
    assert_eq!(code(missing), ErrorCode::NotFound);
    let directory = write(&guest, secret("etc"), "x").await;
    assert_eq!(code(directory), ErrorCode::IsADirectory);
    let appended = WriteFile {
        append: true,
        ..secret("home/plain")
    };
    assert_eq!(code(write(&guest, appended, "x").await), ErrorCode::Invalid);
    untouched();
}
