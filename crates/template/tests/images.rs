//! The Dockerfiles that the SDKs' `Image` writes mean what its steps say, whatever their arguments have in them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use cove_template::copy::{Budget, Files, Item, Kind};
use cove_template::{Action, CopySource, Dockerfile, Evaluated, Origin, Variables};
use serde::Deserialize;
use serde_json::{Value, json};

const VECTORS: &str = include_str!("../../../sdk/vectors/images.json");
const ARCH: &str = "amd64";

#[derive(Deserialize)]
struct Vector {
    name: String,
    dockerfile: Option<String>,
    #[serde(default)]
    archive: BTreeMap<String, String>,
    #[serde(default)]
    means: Means,
    #[serde(default)]
    fails: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Means {
    base: Option<String>,
    steps: Vec<Value>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    workdir: Option<String>,
    cmd: Vec<String>,
}

fn file(path: &str) -> Item<()> {
    Item {
        path: path.to_owned(),
        kind: Kind::File(()),
        mode: 0o644,
        uid: 0,
        gid: 0,
        mtime: 0,
    }
}

/// The archive, and beside each file those that its name would match as a pattern.
fn context(archive: &BTreeMap<String, String>) -> Files<()> {
    let mut files = Files::default();
    for path in archive.keys() {
        files.insert(file(path));
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        files.insert(file(&format!("{directory}/other")));
        if name.contains(['*', '?', '[']) {
            let matched = name.replace(['*', '?'], "X").replace("[b]", "b");
            files.insert(file(&format!("{directory}/{matched}")));
        }
    }
    files
}

fn taken(files: &Files<()>, source: &str) -> Vec<String> {
    let trees = files.sources(source, &[], &mut Budget::new(&|| false));
    let trees = trees.unwrap();
    assert_eq!(trees.len(), 1, "{source}");
    // Where it was, by the beginning of the only path that ends with its name.
    let begin = source.rsplit_once('/').map_or("", |(above, _)| above);
    let join = |front: &str, path: &str| match front.is_empty() {
        true => path.to_owned(),
        false => format!("{front}/{path}"),
    };
    let root = join(begin, &trees[0].name);
    let items = trees[0].items.iter().filter(|item| item.path != "other");
    let paths = items.map(|item| match item.path.is_empty() {
        true => root.clone(),
        false => join(&root, &item.path),
    });
    paths.filter(|path| !path.ends_with("/other")).collect()
}

fn told(action: &Action, files: &Files<()>) -> Value {
    match action {
        Action::Run {
            argv,
            script: None,
            no_network: false,
            ..
        } => json!({ "run": argv }),
        Action::Copy {
            add: false,
            from: None,
            sources,
            dest,
            chown: None,
            chmod: None,
            exclude,
        } if exclude.is_empty() => {
            let paths = sources.iter().flat_map(|source| match source {
                CopySource::Path(path) => taken(files, path),
                CopySource::Document(document) => panic!("{document:?}"),
            });
            json!({ "copy": paths.collect::<Vec<_>>(), "to": dest })
        }
        Action::Workdir(path) => json!({ "workdir": path }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_sdks_write_means_what_its_steps_say() {
    let vectors: Vec<Vector> = serde_json::from_str(VECTORS).unwrap();
    let mut read = 0;
    for vector in &vectors {
        let Some(text) = &vector.dockerfile else {
            assert!(!vector.fails.is_empty(), "{}", vector.name);
            continue;
        };
        read += 1;
        let name = &vector.name;
        let means = &vector.means;
        let parsed = Dockerfile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(parsed.stages.len(), 1, "{name}");
        let variables = Variables::new(BTreeMap::new(), ARCH);
        let base = means.base.clone().unwrap_or_else(|| "debian".to_owned());
        assert_eq!(
            parsed.base_of(0, &variables, ARCH).unwrap(),
            Origin::Named(base),
            "{name}"
        );
        let evaluated = parsed.evaluate(0, Evaluated::default(), &variables);
        let evaluated = evaluated.unwrap_or_else(|error| panic!("{name}: {error}"));
        let files = context(&vector.archive);
        let steps = evaluated
            .steps
            .iter()
            .map(|step| told(&step.action, &files));
        assert_eq!(steps.collect::<Vec<_>>(), means.steps, "{name}");
        let config = evaluated.config;
        assert_eq!(config.env, means.env, "{name}");
        assert_eq!(config.user, means.user, "{name}");
        assert_eq!(config.workdir, means.workdir, "{name}");
        assert_eq!(config.cmd, means.cmd, "{name}");
        assert!(
            config.entrypoint.is_empty() && config.shell.is_none(),
            "{name}"
        );
    }
    assert!(read > 8, "{read} of {}", vectors.len());
}
