//! Where the sources of a `COPY` or `ADD` go.

use std::collections::{BTreeMap, BTreeSet};

use cove_limits::BUILD_CONTEXT_ENTRIES_MAX;

use crate::pattern::{clean, is_pattern, matches_above, matches_path};

/// One file, directory or link. `C` is what the contents of a file are found by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<C> {
    /// Relative; empty for the root of a tree.
    pub path: String,
    pub kind: Kind<C>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind<C> {
    Directory,
    File(C),
    Symlink(String),
}

impl<C> Kind<C> {
    fn link_bytes(&self) -> usize {
        match self {
            Kind::Symlink(target) => target.len(),
            _ => 0,
        }
    }
}

/// Bytes of the names that one `COPY` takes, and of those that it makes.
pub const NAMES_MAX: usize = 128 * 1024 * 1024;

/// What one `COPY` may take, all of its sources together: no more than a context can have.
pub struct Budget<'a> {
    items: usize,
    bytes: usize,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Budget<'a> {
    /// `stop` is asked for each file.
    pub fn new(stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            // And a directory that all of them are in.
            items: BUILD_CONTEXT_ENTRIES_MAX + 1,
            bytes: NAMES_MAX,
            stop,
        }
    }

    fn go_on(&self) -> Result<(), String> {
        match (self.stop)() {
            true => Err("the build has ended".into()),
            false => Ok(()),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.go_on()?;
        let left = self.items.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        let Some((items, bytes)) = left else {
            return Err(format!(
                "the sources have more than {BUILD_CONTEXT_ENTRIES_MAX} files, or names of more than {NAMES_MAX} bytes"
            ));
        };
        (self.items, self.bytes) = (items, bytes);
        Ok(())
    }
}

/// A source: a file alone, or a directory with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree<C> {
    /// The last part of its path.
    pub name: String,
    /// A file has one item, with an empty path.
    pub items: Vec<Item<C>>,
}

impl<C> Tree<C> {
    pub fn is_directory(&self) -> bool {
        !matches!(self.items.first(), Some(item) if item.path.is_empty() && !matches!(item.kind, Kind::Directory))
    }
}

/// A file of its own, such as a here-document.
pub fn file<C>(name: &str, contents: C, mode: u32) -> Tree<C> {
    Tree {
        name: name.to_owned(),
        items: vec![Item {
            path: String::new(),
            kind: Kind::File(contents),
            mode,
            uid: 0,
            gid: 0,
            mtime: 0,
        }],
    }
}

/// Links followed on the way to one source.
const LINKS_MAX: u32 = 40;

/// Files by path, as a context has them.
#[derive(Debug, Clone)]
pub struct Files<C> {
    items: BTreeMap<String, Item<C>>,
    bytes: usize,
}

impl<C> Default for Files<C> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<C: Clone> Files<C> {
    /// Directories above it that are not there are made.
    pub fn insert(&mut self, item: Item<C>) {
        let ends: Vec<usize> = item.path.match_indices('/').map(|(at, _)| at).collect();
        for end in ends {
            let above = &item.path[..end];
            if !self.items.contains_key(above) {
                self.bytes += 2 * above.len();
                self.items.insert(above.to_owned(), directory(above));
            }
        }
        self.bytes += 2 * item.path.len() + item.kind.link_bytes();
        self.items.insert(item.path.clone(), item);
    }

    /// What the names of all of them take in memory.
    pub fn name_bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, path: &str) -> Option<&Item<C>> {
        self.items.get(path)
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The sources that a path or a pattern stands for. None for a pattern that matches nothing.
    pub fn sources(
        &self,
        source: &str,
        exclude: &[String],
        budget: &mut Budget<'_>,
    ) -> Result<Vec<Tree<C>>, String> {
        let wanted = clean(source);
        if !is_pattern(&wanted) {
            return Ok(vec![self.source(&wanted, exclude, budget)?]);
        }
        let parts: Vec<&str> = wanted.split('/').collect();
        let fixed = parts.iter().take_while(|part| !is_pattern(part)).count();
        let prefix: String = parts[..fixed]
            .iter()
            .map(|part| format!("{part}/"))
            .collect();
        let below = self.items.range(prefix.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(&prefix));
        let mut trees = Vec::new();
        for (path, _) in below {
            budget.go_on()?;
            if (wanted.contains("**") || path.split('/').count() == parts.len())
                && matches_path(&wanted, path)
            {
                trees.push(self.source(path, exclude, budget)?);
            }
        }
        Ok(trees)
    }

    fn source(
        &self,
        path: &str,
        exclude: &[String],
        budget: &mut Budget<'_>,
    ) -> Result<Tree<C>, String> {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let found = self.resolve(path)?;
        budget.take(name.len())?;
        if let Some(item) = self.items.get(&found)
            && !matches!(item.kind, Kind::Directory)
        {
            let mut item = item.clone();
            item.path = String::new();
            return Ok(Tree {
                name,
                items: vec![item],
            });
        }
        let prefix = match found.is_empty() {
            true => String::new(),
            false => format!("{found}/"),
        };
        let below = self.items.range(prefix.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(&prefix));
        let mut items = Vec::new();
        for (path, item) in below.filter(|(path, _)| path.len() > prefix.len()) {
            let path = &path[prefix.len()..];
            // Looked at is counted too: leaving a file out takes as long.
            budget.take(path.len() + item.kind.link_bytes())?;
            if !is_excluded(path, exclude) {
                items.push(Item {
                    path: path.to_owned(),
                    ..item.clone()
                });
            }
        }
        Ok(Tree { name, items })
    }

    /// Follows links, which cannot lead out.
    fn resolve(&self, path: &str) -> Result<String, String> {
        let mut links = 0;
        let mut done: Vec<String> = Vec::new();
        let mut pending: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        while let Some(part) = pending.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    done.pop();
                    continue;
                }
                _ => {}
            }
            done.push(part);
            let here = done.join("/");
            match self.items.get(&here).map(|item| &item.kind) {
                None => return Err(format!("'{path}' does not exist")),
                Some(Kind::Symlink(target)) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(format!("'{path}' has too many links on its way"));
                    }
                    done.pop();
                    if target.starts_with('/') {
                        done.clear();
                    }
                    pending.extend(target.split('/').rev().map(str::to_owned));
                }
                Some(_) => {}
            }
        }
        Ok(done.join("/"))
    }
}

/// Whether a `COPY --exclude` names a path or a directory above it. The patterns are clean.
pub fn is_excluded(path: &str, exclude: &[String]) -> bool {
    exclude.iter().any(|pattern| matches_above(pattern, path))
}

fn directory<C>(path: &str) -> Item<C> {
    Item {
        path: path.to_owned(),
        kind: Kind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: 0,
    }
}

/// How sources become files of the image.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    pub chown: Option<(u32, u32)>,
    pub chmod: Option<u32>,
}

/// The files to write, by path relative to `/`, parents before what is below them. `is_directory` says whether the
/// destination is one already, `exists` whether a directory of the image is there. Directories that are missing on
/// the way are made with the owner that was asked for.
pub fn place<C>(
    trees: Vec<Tree<C>>,
    dest: &str,
    is_directory: bool,
    rules: Rules,
    exists: impl Fn(&str) -> bool,
) -> Result<Vec<Item<C>>, String> {
    let into = dest.ends_with('/') || is_directory;
    let dest = clean(dest);
    let files = trees.iter().filter(|tree| !tree.is_directory()).count();
    if !into && (files > 1 || (files == 1 && trees.len() > 1)) {
        return Err(
            "several sources match, and the destination is not a directory: end it with /".into(),
        );
    }
    let mut placed: Vec<Item<C>> = Vec::new();
    let mut made = BTreeSet::new();
    let mut bytes = 0;
    let mut make_parents = |placed: &mut Vec<Item<C>>, path: &str, itself: bool| {
        let mut ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).collect();
        if itself && !path.is_empty() {
            ends.push(path.len());
        }
        for end in ends {
            let above = &path[..end];
            if made.insert(above.to_owned()) && !exists(above) {
                let mut item = self::directory(above);
                if let Some((uid, gid)) = rules.chown {
                    (item.uid, item.gid) = (uid, gid);
                }
                placed.push(item);
            }
        }
    };
    for tree in trees {
        let is_tree = tree.is_directory();
        let root = match (is_tree, into) {
            (true, _) | (false, false) => dest.clone(),
            (false, true) if dest.is_empty() => tree.name.clone(),
            (false, true) => format!("{dest}/{}", tree.name),
        };
        make_parents(&mut placed, &root, is_tree);
        for mut item in tree.items {
            if is_tree && item.path.is_empty() {
                continue;
            }
            item.path = match (root.is_empty(), item.path.is_empty()) {
                (_, true) => root.clone(),
                (true, false) => item.path,
                (false, false) => format!("{root}/{}", item.path),
            };
            bytes += item.path.len();
            if bytes > NAMES_MAX {
                return Err(format!("the names have more than {NAMES_MAX} bytes"));
            }
            if let Some((uid, gid)) = rules.chown {
                (item.uid, item.gid) = (uid, gid);
            }
            if let (Some(mode), false) = (rules.chmod, matches!(item.kind, Kind::Symlink(_))) {
                item.mode = mode;
            }
            placed.push(item);
        }
    }
    if placed.iter().any(|item| item.path.is_empty()) {
        return Err("a file cannot take the place of /".into());
    }
    Ok(placed)
}
