//! A snapshot is the same tree: everything a root filesystem is made of survives.

use std::ffi::CString;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink,
};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use cove_pool::Access;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, makedev, mknodat};

use crate::fixture::{MIB, TestPool, sandbox, snapshot, wait_until};
use crate::on_every_backend;

on_every_backend!(
    owners_modes_times_and_attributes_survive,
    hard_links_stay_linked_to_each_other_only,
    devices_pipes_sockets_and_links_survive,
    holes_stay_holes,
    a_tree_deeper_than_any_path_can_be_copied_measured_and_deleted,
    links_out_of_the_volume_are_not_followed,
);

/// A capability set (cap_net_bind_service+ep) as the kernel stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn xattr(path: &Path, name: &str) -> Vec<u8> {
    let mut value = vec![0; 256];
    let size = lgetxattr(path, name, &mut value[..]).unwrap();
    value.truncate(size);
    value
}

fn owners_modes_times_and_attributes_survive(pool: &mut TestPool) {
    let (from, to) = (sandbox("from"), snapshot("to"));
    pool.create(&from).unwrap();
    let (a, b) = (pool.path(&from), pool.path(&to));
    fs::create_dir(a.join("dir")).unwrap();
    let then = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for (name, mode) in [
        ("dir/setuid", 0o4755),
        ("dir/secret", 0o600),
        ("dir/none", 0o000),
    ] {
        let path = a.join(name);
        fs::write(&path, name).unwrap();
        chown(&path, Some(1000), Some(65_534)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        fs::File::open(&path).unwrap().set_modified(then).unwrap();
    }
    let attributes: [(&str, &str, &[u8]); 4] = [
        ("dir/setuid", "security.capability", &CAPABILITY),
        ("dir/secret", "user.note", b"text"),
        ("dir", "trusted.overlay.opaque", b"y"),
        ("", "trusted.overlay.origin", b"top"),
    ];
    for (name, key, value) in attributes {
        lsetxattr(a.join(name), key, value, XattrFlags::empty()).unwrap();
    }
    fs::set_permissions(&a, fs::Permissions::from_mode(0o1711)).unwrap();
    chown(&a, Some(7), Some(8)).unwrap();
    fs::File::open(a.join("dir"))
        .unwrap()
        .set_modified(then)
        .unwrap();

    pool.snapshot(&from, &to, Access::ReadOnly).unwrap();
    for name in ["", "dir", "dir/setuid", "dir/secret", "dir/none"] {
        let (x, y) = (
            fs::metadata(a.join(name)).unwrap(),
            fs::metadata(b.join(name)).unwrap(),
        );
        assert_eq!(
            (x.mode(), x.uid(), x.gid()),
            (y.mode(), y.uid(), y.gid()),
            "{name:?}"
        );
        assert_eq!(
            (x.mtime(), x.mtime_nsec()),
            (y.mtime(), y.mtime_nsec()),
            "{name:?}"
        );
    }
    for (name, key, value) in attributes {
        assert_eq!(xattr(&b.join(name), key), value, "{name:?}");
    }
    assert_eq!(pool.read(&to, "dir/secret"), "dir/secret");
}

fn hard_links_stay_linked_to_each_other_only(pool: &mut TestPool) {
    let (from, to) = (sandbox("from"), sandbox("to"));
    pool.create(&from).unwrap();
    let (a, b) = (pool.path(&from), pool.path(&to));
    fs::create_dir(a.join("dir")).unwrap();
    fs::write(a.join("one"), "x").unwrap();
    fs::hard_link(a.join("one"), a.join("dir/two")).unwrap();
    fs::hard_link(a.join("one"), a.join("dir/three")).unwrap();
    symlink("one", a.join("link")).unwrap();
    fs::hard_link(a.join("link"), a.join("dir/link")).unwrap();
    pool.snapshot(&from, &to, Access::Writable).unwrap();
    let meta = |name: &str| fs::symlink_metadata(b.join(name)).unwrap();
    assert_eq!(meta("one").nlink(), 3);
    assert_eq!(meta("one").ino(), meta("dir/two").ino());
    assert_eq!(meta("one").ino(), meta("dir/three").ino());
    assert_eq!(
        (meta("link").nlink(), meta("link").ino()),
        (2, meta("dir/link").ino())
    );
    fs::write(b.join("one"), "changed").unwrap();
    assert_eq!(pool.read(&from, "dir/two"), "x");
    assert_eq!(pool.read(&to, "dir/two"), "changed");
}

fn devices_pipes_sockets_and_links_survive(pool: &mut TestPool) {
    let (from, to) = (sandbox("from"), snapshot("to"));
    pool.create(&from).unwrap();
    let (a, b) = (pool.path(&from), pool.path(&to));
    let nodes = [
        ("whiteout", FileType::CharacterDevice, makedev(0, 0)),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("disk", FileType::BlockDevice, makedev(7, 200)),
        ("pipe", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
    ];
    for (name, kind, device) in nodes {
        mknodat(CWD, a.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
        lchown(a.join(name), Some(5), Some(6)).unwrap();
    }
    symlink("/etc/shadow", a.join("link")).unwrap();
    lchown(a.join("link"), Some(5), Some(6)).unwrap();
    lsetxattr(
        a.join("link"),
        "trusted.note",
        b"on the link",
        XattrFlags::empty(),
    )
    .unwrap();

    pool.snapshot(&from, &to, Access::ReadOnly).unwrap();
    for (name, ..) in nodes {
        let (x, y) = (
            fs::metadata(a.join(name)).unwrap(),
            fs::metadata(b.join(name)).unwrap(),
        );
        assert_eq!((x.mode(), x.rdev()), (y.mode(), y.rdev()), "{name}");
        assert_eq!((y.uid(), y.gid()), (5, 6), "{name}");
    }
    assert!(fs::metadata(b.join("pipe")).unwrap().file_type().is_fifo());
    assert_eq!(
        fs::read_link(b.join("link")).unwrap(),
        Path::new("/etc/shadow")
    );
    assert_eq!(fs::symlink_metadata(b.join("link")).unwrap().uid(), 5);
    assert_eq!(xattr(&b.join("link"), "trusted.note"), b"on the link");
}

fn holes_stay_holes(pool: &mut TestPool) {
    let (from, to) = (sandbox("from"), sandbox("to"));
    pool.create(&from).unwrap();
    let mut file = fs::File::create(pool.path(&from).join("sparse")).unwrap();
    file.write_all(b"start").unwrap();
    file.seek(SeekFrom::Start(300 * MIB)).unwrap();
    file.write_all(b"middle").unwrap();
    file.set_len(500 * MIB).unwrap();
    file.sync_all().unwrap();
    pool.snapshot(&from, &to, Access::Writable).unwrap();
    let copy = fs::File::open(pool.path(&to).join("sparse")).unwrap();
    let meta = copy.metadata().unwrap();
    assert_eq!(meta.len(), 500 * MIB);
    assert!(meta.blocks() * 512 < MIB, "{} blocks", meta.blocks());
    let mut text = [0; 6];
    copy.read_exact_at(&mut text, 300 * MIB).unwrap();
    assert_eq!(&text, b"middle");
    copy.read_exact_at(&mut text, 400 * MIB).unwrap();
    assert_eq!(text, [0; 6]);
}

fn a_tree_deeper_than_any_path_can_be_copied_measured_and_deleted(pool: &mut TestPool) {
    const DEPTH: usize = 3000;
    let (from, to) = (sandbox("from"), sandbox("to"));
    pool.create(&from).unwrap();
    let mut dir: OwnedFd = fs::File::open(pool.path(&from)).unwrap().into();
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&dir, "down", Mode::RWXU).unwrap();
        dir = open_dir(&dir, "down");
    }
    rustix::fs::mkdirat(&dir, "bottom", Mode::RWXU).unwrap();
    drop(dir);
    pool.snapshot(&from, &to, Access::Writable).unwrap();
    let mut dir: OwnedFd = fs::File::open(pool.path(&to)).unwrap().into();
    for _ in 0..DEPTH {
        dir = open_dir(&dir, "down");
    }
    open_dir(&dir, "bottom");
    drop(dir);
    pool.measure(&to).unwrap();
    pool.delete(&from).unwrap();
    pool.delete(&to).unwrap();
    wait_until("the trash is empty", || {
        fs::read_dir(pool.root().join("trash")).unwrap().count() == 0
    });
}

fn open_dir(parent: &OwnedFd, name: &str) -> OwnedFd {
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(parent.as_fd(), name, flags, Mode::empty()).unwrap()
}

fn links_out_of_the_volume_are_not_followed(pool: &mut TestPool) {
    let outside = pool.data_dir().parent().unwrap().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), vec![1; 4 << 20]).unwrap();
    let (from, to) = (sandbox("from"), sandbox("to"));
    pool.create(&from).unwrap();
    symlink(&outside, pool.path(&from).join("escape")).unwrap();
    pool.snapshot(&from, &to, Access::Writable).unwrap();
    let link = fs::symlink_metadata(pool.path(&to).join("escape")).unwrap();
    assert!(link.file_type().is_symlink());
    assert!(pool.measure(&to).unwrap() < MIB);
    pool.delete(&from).unwrap();
    pool.delete(&to).unwrap();
    assert!(pool.sweep(&|_| true).errors.is_empty());
    assert!(outside.join("file").exists());
    // A link in the place of a volume is removed itself, not what it points to.
    let name = CString::new(outside.as_os_str().as_bytes()).unwrap();
    rustix::fs::symlinkat(&name, CWD, pool.path(&sandbox("planted"))).unwrap();
    pool.delete(&sandbox("planted")).unwrap();
    assert!(pool.sweep(&|_| true).errors.is_empty());
    assert!(outside.join("file").exists());
}
