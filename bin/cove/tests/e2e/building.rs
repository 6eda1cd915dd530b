//! Templates built from Dockerfiles.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::harness::{Cove, signal, wait_for};

/// A context: paths and contents. `->` in front of contents makes a link, a path with `/` at its end a directory.
fn context(cove: &Cove, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let root = cove.scratch().join(name);
    std::fs::create_dir_all(&root).unwrap();
    for (path, content) in files {
        let at = root.join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        if path.ends_with('/') {
            std::fs::create_dir_all(&at).unwrap();
        } else if let Some(target) = content.strip_prefix("->") {
            symlink(target, &at).unwrap();
        } else {
            std::fs::write(&at, content).unwrap();
            std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o644)).unwrap();
        }
    }
    root
}

fn build(cove: &Cove, root: &Path, name: &str, more: &[&str]) -> Output {
    let mut args = vec!["template", "build", root.to_str().unwrap(), "-t", name];
    args.extend(["--network", "none", "--memory", "256M", "--disk", "1G"]);
    args.extend(more);
    cove.run(args)
}

fn built(cove: &Cove, root: &Path, name: &str, more: &[&str]) -> String {
    let output = build(cove, root, name, more);
    assert!(
        output.status.success(),
        "{name}: {output:?}\n{}",
        cove.log()
    );
    String::from_utf8(output.stderr).unwrap()
}

/// What a command prints in a new sandbox of the template.
fn says(cove: &Cove, template: &str, command: &str) -> String {
    let name = format!("of-{template}");
    cove.ok(["create", "--template", template, "--name", &name]);
    let said = cove.ok(["exec", &name, "-c", command]);
    cove.ok(["rm", &name]);
    said.trim().to_owned()
}

struct Case {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
    command: &'static str,
    expected: &'static str,
}

const PASSWD: (&str, &str) = (
    "passwd",
    "root:x:0:0::/:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n",
);
const GROUP: (&str, &str) = ("group", "root:x:0:\nstaff:x:50:\n");

const CASES: &[Case] = &[
    Case {
        name: "run-env",
        files: &[(
            "Dockerfile",
            "FROM busybox\nENV A=1 B=\"two words\"\nARG C=3\nWORKDIR /srv/app\nRUN chmod 777 /tmp && echo \"$A $B $C $PWD\" > out\nUSER 7:8\nRUN id -u > /tmp/id; id -g >> /tmp/id\n",
        )],
        args: &["--build-arg", "C=4"],
        command: "cat /srv/app/out /tmp/id; echo $B $PWD; id -u; echo \"[$C]\"",
        expected: "1 two words 4 /srv/app\n7\n8\ntwo words /srv/app\n7\n[]",
    },
    Case {
        name: "heredoc",
        files: &[(
            "Dockerfile",
            "FROM busybox\nARG W=hi\nRUN <<EOF\necho one > /a\necho $((1+1)) >> /a\nEOF\nRUN cat <<X >> /a\nthree\nX\nCOPY <<one <<'two' /d/\n$W\none\n$W\ntwo\nRUN <<EOF\n#!/bin/awk -f\nBEGIN { print \"awk\" > \"/b\" }\nEOF\n",
        )],
        args: &[],
        command: "cat /a /d/one /d/two /b; stat -c %a /d/one",
        expected: "one\n2\nthree\nhi\n$W\nawk\n644",
    },
    Case {
        name: "copy",
        files: &[
            (
                "Dockerfile",
                "FROM busybox\nCOPY passwd group /etc/\nCOPY a.txt /new/dir/name\nCOPY *.txt /all/\nCOPY tree /tree\nCOPY --chown=app:staff --chmod=640 tree/x /owned/\nCOPY --chown=app a.txt /mine\nCOPY --chown=9 a.txt /nine\nCOPY link /followed\nCOPY --exclude=sub tree /less/\nADD a.txt /added\n",
            ),
            PASSWD,
            GROUP,
            ("a.txt", "A"),
            ("b.txt", "B"),
            ("c.md", "C"),
            ("tree/x", "X"),
            ("tree/sub/y", "Y"),
            ("tree/l", "->x"),
            ("link", "->tree/x"),
            ("tree/empty/", ""),
        ],
        args: &[],
        command: "cat /new/dir/name; ls /all; cat /tree/sub/y; readlink /tree/l; stat -c '%a %u %g' /owned /owned/x /mine /nine; cat /followed; ls /less; cat /added; ls -d /tree/empty",
        expected: "Aa.txt\nb.txt\nYx\n755 1000 50\n640 1000 50\n644 1000 1001\n644 9 9\nXempty\nl\nx\nA/tree/empty",
    },
    Case {
        name: "stages",
        files: &[(
            "Dockerfile",
            "ARG BASE=busybox\nFROM $BASE AS one\nARG V=1\nRUN mkdir -p /out/sub && echo $V > /out/sub/v && chown 5:6 /out/sub/v && ln -s sub /out/l && echo lib > /out/a.so && echo lib > /out/b.so\nFROM $BASE AS unused\nRUN exit 1\nFROM one AS two\nRUN echo \"again $V\" > /again\nFROM $BASE\nCOPY --from=one /out /out\nCOPY --from=0 /out/*.so /lib/\nCOPY --from=two /again /x/y/again\nCOPY --from=one --chown=3 /out/l /followed/\nCOPY --from=busybox /bin/busybox /other\n",
        )],
        args: &["--build-arg", "V=2"],
        command: "cat /out/sub/v /x/y/again /followed/v; stat -c '%u %g' /out/sub/v /followed/v; ls /lib; readlink /out/l; ls -l /other | cut -c1-10",
        expected: "2\nagain 2\n2\n5 6\n3 3\na.so\nb.so\nsub\n-rwxr-xr-x",
    },
    Case {
        name: "scratch",
        files: &[
            (
                "Dockerfile",
                "FROM busybox AS b\nFROM scratch\nCOPY --from=b /bin/busybox /bin/sh\nCOPY hello /etc/hello\nWORKDIR /w\nENV X=y\nSHELL [\"/bin/sh\", \"-ec\"]\nRUN echo $X > made\n",
            ),
            ("hello", "hello"),
        ],
        args: &[],
        command: "read a < /w/made; read b < /etc/hello || true; echo $a $b $PWD",
        expected: "y hello /w",
    },
    Case {
        name: "ignored",
        files: &[
            ("Dockerfile", "FROM busybox\nCOPY . /c/\n"),
            (".dockerignore", "*.log\n!keep.log\nsecret\n**/tmp\n"),
            ("a.log", ""),
            ("keep.log", ""),
            ("secret/key", "k"),
            ("x/tmp/f", ""),
            ("x/f", ""),
        ],
        args: &[],
        command: "cd /c && find . | sort",
        expected: ".\n./.dockerignore\n./Dockerfile\n./keep.log\n./x\n./x/f",
    },
    Case {
        name: "background",
        files: &[(
            "Dockerfile",
            "FROM busybox\nRUN (sleep 300 >/dev/null 2>&1 &) ; echo $$ > /pid\nRUN ps | grep -c '[s]leep' > /count || true\nRUN --network=none ls /proc/net > /dev/null\n",
        )],
        args: &[],
        command: "cat /count",
        expected: "0",
    },
];

#[test]
fn dockerfiles_become_templates_as_the_reference_says() {
    let cove = Cove::start();
    for case in CASES {
        let root = context(&cove, case.name, case.files);
        built(&cove, &root, case.name, case.args);
        assert_eq!(
            says(&cove, case.name, case.command),
            case.expected,
            "{}",
            case.name
        );
    }
    // Archives are unpacked by ADD and by nothing else.
    let root = context(
        &cove,
        "archives",
        &[
            ("in/f", "F"),
            ("in/sub/g", "G"),
            (
                "Dockerfile",
                "FROM busybox\nADD a.tar b.tar.gz /d/\nCOPY a.tar /raw\nADD --chown=4:5 a.tar /o\n",
            ),
        ],
    );
    for (file, flags) in [("a.tar", "-cf"), ("b.tar.gz", "-czf")] {
        let member = if file == "a.tar" { "f" } else { "sub" };
        let packed = Command::new("tar")
            .arg("-C")
            .arg(root.join("in"))
            .arg(flags)
            .arg(root.join(file))
            .arg("--owner=11")
            .arg("--group=12")
            .arg(member)
            .status();
        assert!(packed.unwrap().success());
    }
    built(&cove, &root, "archives", &[]);
    assert_eq!(
        says(
            &cove,
            "archives",
            "cat /d/f /d/sub/g; stat -c '%u %g' /d/f /o/f; tar -tf /raw"
        ),
        "FG11 12\n4 5\nf"
    );
    // A template and a snapshot to begin from, and triggers.
    let root = context(
        &cove,
        "base",
        &[(
            "Dockerfile",
            "FROM busybox\nENV FROM_BASE=1\nWORKDIR /base\nRUN echo b > b\nONBUILD COPY f /base/f\nCMD [\"sh\"]\nLABEL k=v\nEXPOSE 80\n",
        )],
    );
    built(&cove, &root, "base:first", &[]);
    let shown = cove.json(["template", "show", "base:first"]);
    assert_eq!(shown["image"]["labels"]["k"], "v");
    assert_eq!(shown["image"]["expose"][0], "80/tcp");
    assert_eq!(shown["workdir"], "/base");
    let root = context(
        &cove,
        "child",
        &[
            ("f", "f"),
            (
                "Dockerfile",
                "FROM template/base:first\nRUN cat f b > /both; echo $FROM_BASE >> /both\n",
            ),
        ],
    );
    built(&cove, &root, "child", &[]);
    assert_eq!(says(&cove, "child", "cat /both; pwd"), "fb\n1\n/base");
    cove.ok(["create", "--template", "child", "--name", "kept"]);
    cove.ok(["snapshot", "kept", "--name", "kept-1"]);
    let root = context(
        &cove,
        "grandchild",
        &[(
            "Dockerfile",
            "FROM snapshot/kept-1\nRUN echo more >> /both\n",
        )],
    );
    built(&cove, &root, "grandchild", &[]);
    assert_eq!(says(&cove, "grandchild", "tail -n 1 /both"), "more");
    cove.ok(["rm", "kept"]);
    // What is wrong is said with its line, and leaves nothing.
    for (name, file, expected) in [
        ("bad-line", "FROM busybox\nVOLUME /d\n", "line 2: VOLUME"),
        (
            "bad-exit",
            "FROM busybox\nRUN echo the-cause >&2; exit 3\n",
            "exit code 3\n",
        ),
        (
            "bad-copy",
            "FROM busybox\n\nCOPY nothing /x\n",
            "line 3: COPY nothing /x: 'nothing' does not exist",
        ),
        (
            "bad-user",
            "FROM busybox\nCOPY --chown=nobody Dockerfile /x\n",
            "there is no user 'nobody'",
        ),
        ("bad-base", "FROM template/none\n", "there is no template"),
        (
            "bad-program",
            "FROM busybox\nRUN [\"/none\"]\n",
            "line 2: RUN [\"/none\"]",
        ),
    ] {
        let root = context(&cove, name, &[("Dockerfile", file)]);
        let output = build(&cove, &root, name, &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && text.contains(expected),
            "{name}: {text}"
        );
        if name == "bad-exit" {
            assert!(text.contains("the-cause"), "{text}");
        }
    }
    assert_eq!(cove.json(["ls", "--all"]).as_array().unwrap().len(), 0);
}

#[test]
fn later_builds_take_steps_from_earlier_ones_of_their_organisation() {
    let cove = Cove::start();
    let mut file = "FROM busybox\nCOPY . /context/\n".to_owned();
    for step in 1..=18 {
        file.push_str(&format!("RUN echo {step} > /step-{step}\n"));
    }
    let last = format!("{file}RUN date +%s%N > /last\n");
    let root = context(&cove, "cached", &[("Dockerfile", &last), ("f", "1")]);
    for number in 0..1000 {
        let directory = root.join(format!("files/{}", number % 20));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("{number}")), vec![b'x'; 20_000]).unwrap();
    }
    built(&cove, &root, "cached", &[]);
    let first = says(&cove, "cached", "cat /last");
    let started = Instant::now();
    let log = built(&cove, &root, "cached", &[]);
    eprintln!(
        "a rebuild of 20 steps without a change took {:?}",
        started.elapsed()
    );
    assert_eq!(log.matches(": cached").count(), 20, "{log}");
    assert_eq!(says(&cove, "cached", "cat /last"), first);
    assert_eq!(cove.json(["template", "show", "cached"])["version"], 2);
    let builds = cove.json(["template", "builds"]);
    assert_eq!(
        (&builds[0]["steps"], &builds[0]["cached"]),
        (&20.into(), &20.into())
    );
    // Times of files mean nothing, contents and modes do.
    Command::new("touch").arg(root.join("f")).status().unwrap();
    assert_eq!(
        built(&cove, &root, "cached", &[])
            .matches(": cached")
            .count(),
        20
    );
    std::fs::write(root.join("Dockerfile"), format!("{last}# more\n")).unwrap();
    std::fs::write(root.join(".dockerignore"), "Dockerfile\n.dockerignore\n").unwrap();
    built(&cove, &root, "cached", &[]);
    std::fs::write(
        root.join("Dockerfile"),
        format!("{file}RUN echo other > /last\n"),
    )
    .unwrap();
    let started = Instant::now();
    let log = built(&cove, &root, "cached", &[]);
    eprintln!(
        "a rebuild with another last step took {:?}",
        started.elapsed()
    );
    assert_eq!(log.matches(": cached").count(), 19, "{log}");
    std::fs::set_permissions(root.join("f"), std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(
        built(&cove, &root, "cached", &[])
            .matches(": cached")
            .count(),
        0
    );
    // Not those of another organisation, which the image is open to.
    let small = context(
        &cove,
        "small",
        &[("Dockerfile", "FROM busybox\nRUN echo 1 > /one\n")],
    );
    built(&cove, &small, "small", &[]);
    let org = cove.ok(["org", "create", "other"]);
    let key = cove.json(["key", "create", "--org", org.trim(), "builder"]);
    let key = key["token"].as_str().unwrap().to_owned();
    let url = std::fs::read_to_string(cove.data_dir().join("url")).unwrap();
    let output = cove
        .command([
            "template",
            "build",
            small.to_str().unwrap(),
            "-t",
            "small",
            "--network",
            "none",
        ])
        .env("COVE_URL", url.trim())
        .env("COVE_API_KEY", key)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && !log.contains(": cached"),
        "{log}"
    );
    // Asked for, every step runs again.
    assert_eq!(
        built(&cove, &small, "small", &["--no-cache"])
            .matches(": cached")
            .count(),
        0
    );
    assert_ne!(cove.json(["template", "prune"])["steps"], 0);
    assert_eq!(
        built(&cove, &small, "small", &[])
            .matches(": cached")
            .count(),
        0
    );
}

fn running_build(cove: &Cove, name: &str) -> (std::process::Child, String) {
    let root = context(
        cove,
        name,
        &[(
            "Dockerfile",
            "FROM busybox\nRUN echo 1 > /one\nRUN sleep 1000\n",
        )],
    );
    let child = cove
        .command([
            "template",
            "build",
            root.to_str().unwrap(),
            "-t",
            name,
            "--network",
            "none",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = wait_for("the build sleeps", || {
        let builds = cove.json(["template", "builds"]);
        let found = builds
            .as_array()
            .unwrap()
            .iter()
            .find(|build| build["name"] == name)?;
        (found["steps"] == 2).then(|| found["id"].as_str().unwrap().to_owned())
    });
    (child, id)
}

fn ended(cove: &Cove, id: &str) -> serde_json::Value {
    wait_for("the build is over", || {
        let output = cove.run(["--json", "template", "builds"]);
        let builds: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let found = builds
            .as_array()?
            .iter()
            .find(|build| build["id"] == id)?
            .clone();
        found["finished_at"].is_string().then_some(found)
    })
}

#[test]
fn a_build_that_is_cancelled_or_interrupted_leaves_nothing() {
    let mut cove = Cove::start();
    let (mut child, id) = running_build(&cove, "cancelled");
    assert_eq!(cove.json(["ls", "--all"]).as_array().unwrap().len(), 1);
    cove.ok(["template", "cancel", &id]);
    assert_eq!(ended(&cove, &id)["state"], "cancelled");
    assert!(!child.wait().unwrap().success());
    assert_eq!(cove.json(["ls", "--all"]).as_array().unwrap().len(), 0);
    // One more than an organisation may have at once.
    let (mut one, first) = running_build(&cove, "one");
    let (mut two, second) = running_build(&cove, "two");
    let root = context(&cove, "three", &[("Dockerfile", "FROM busybox\n")]);
    let refused = build(&cove, &root, "three", &[]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("under way"),
        "{refused:?}"
    );
    cove.ok(["template", "cancel", &second]);
    assert_eq!(ended(&cove, &second)["state"], "cancelled");
    // kill -9 of the control plane in the middle of a step.
    signal(cove.role_pid("control"), rustix::process::Signal::KILL);
    let found = ended(&cove, &first);
    assert_eq!(found["state"], "failed");
    assert!(
        found["error"].as_str().unwrap().contains("restarted"),
        "{found}"
    );
    wait_for("its sandbox is removed", || {
        let output = cove.run(["--json", "ls", "--all"]);
        (output.stdout.trim_ascii() == b"[]").then_some(())
    });
    one.wait().unwrap();
    two.wait().unwrap();
    // The step that was done is there for the next one.
    let root = context(
        &cove,
        "next",
        &[("Dockerfile", "FROM busybox\nRUN echo 1 > /one\n")],
    );
    assert_eq!(
        built(&cove, &root, "next", &[]).matches(": cached").count(),
        1
    );
    // And of all.
    let (mut child, id) = running_build(&cove, "killed");
    cove.kill_server();
    child.kill().ok();
    child.wait().unwrap();
    cove.serve();
    assert_eq!(ended(&cove, &id)["state"], "failed");
    wait_for("its sandbox is removed", || {
        let output = cove.run(["--json", "ls", "--all"]);
        (output.stdout.trim_ascii() == b"[]").then_some(())
    });
}

#[test]
fn a_hostile_context_reaches_nothing_outside_its_build() {
    let cove = Cove::start();
    let read = |name: &str| std::fs::read_to_string(cove.data_dir().join(name)).unwrap();
    let (url, key) = (
        read("url").trim().to_owned(),
        read("root.key").trim().to_owned(),
    );
    let script = r#"
import io, sys, tarfile, json, urllib.request
url, key = sys.argv[1:3]
def call(method, path, data, kind):
    request = urllib.request.Request(url + path, data, {"Authorization": "Bearer " + key, "Content-Type": kind}, method=method)
    try:
        return urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        return error.read()
def entry(name, **fields):
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info
cases = {
    "parent": [entry("../../../../tmp/cove-escape")],
    "device": [entry("d", type=tarfile.CHRTYPE, devmajor=1, devminor=1)],
    "link": [entry("h", type=tarfile.LNKTYPE, linkname="/etc/shadow")],
    "garbage": None,
    "good": [entry("s", type=tarfile.SYMTYPE, linkname="/etc/passwd"), entry("/abs")],
}
for name, entries in cases.items():
    body = io.BytesIO()
    if entries is None:
        body.write(b"x" * 4096)
    else:
        with tarfile.open(fileobj=body, mode="w") as tar:
            for one in entries:
                tar.addfile(one)
    create = {"name": name, "dockerfile": "FROM busybox\nCOPY . /c/\n", "network": {"mode": "none"}}
    build = json.loads(call("POST", "/v1/builds", json.dumps(create).encode(), "application/json"))
    call("PUT", f"/v1/builds/{build['id']}/context", body.getvalue(), "application/x-tar")
    lines = call("GET", f"/v1/builds/{build['id']}/log", None, "application/json").decode().splitlines()
    end = json.loads(lines[-1])["build"]
    print(name, end["state"], end.get("error", "")[:60])
    again = json.loads(call("PUT", f"/v1/builds/{build['id']}/context", body.getvalue(), "application/x-tar"))
    assert again["error"]["code"] == "conflict", again
"#;
    let output = Command::new("python3")
        .args(["-c", script, &url, &key])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}\n{}", cove.log());
    for (line, expected) in text.lines().zip([
        "parent failed the context: ",
        "device failed the context: ",
        "link failed the context: ",
        "garbage failed the context: ",
        "good done ",
    ]) {
        assert!(line.starts_with(expected), "{text}");
    }
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(!Path::new("/tmp/cove-escape").exists());
    assert_eq!(
        says(&cove, "good", "readlink /c/s; ls /c"),
        "/etc/passwd\nabs\ns"
    );
}

#[test]
fn a_template_begins_with_its_server_running() {
    let cove = Cove::start();
    let server = "FROM busybox\nWORKDIR /www\nRUN echo ready > index.html\nCMD [\"httpd\", \"-f\", \"-p\", \"8080\"]\n";
    let root = context(&cove, "server", &[("Dockerfile", server)]);
    if !crate::travel::captures_memory(&cove) {
        return;
    }
    built(
        &cove,
        &root,
        "server",
        &["--ready", "wget -q -O - http://127.0.0.1:8080/"],
    );
    assert_eq!(cove.json(["template", "show", "server"])["memory"], true);
    assert_eq!(
        says(&cove, "server", "wget -q -O - http://127.0.0.1:8080/"),
        "ready"
    );
    let output = build(
        &cove,
        &root,
        "server",
        &["--start", "exit 4", "--ready", "false"],
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("exit code 4"),
        "{output:?}"
    );
    let output = build(
        &cove,
        &root,
        "server",
        &["--ready", "false", "--ready-timeout", "1"],
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("within 1 seconds"),
        "{output:?}"
    );
    assert_eq!(cove.json(["ls", "--all"]).as_array().unwrap().len(), 0);
}
