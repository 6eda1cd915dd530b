//! Creates that pull their image, with a real registry on loopback as the default one.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{Cove, free_port, wait_for};

struct Registry {
    process: Child,
    address: String,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn sh(script: &str, dir: &Path) {
    let done = Command::new("sh")
        .args(["-ec", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(done.status.success(), "{script}: {done:?}");
}

impl Registry {
    /// With the image `library/tool:1`, which has a file that says so.
    fn start(dir: &Path) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}/blobs\n\
             http:\n  addr: {address}\n",
            dir.display()
        );
        std::fs::write(dir.join("registry.yml"), config).unwrap();
        let process = Command::new("docker-registry")
            .args(["serve", "registry.yml"])
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed");
        wait_for("the registry", || {
            std::net::TcpStream::connect(&address).ok()
        });
        let registry = Self { process, address };
        sh(
            "mkdir -p tree/bin tree/etc tree/tmp; cp /bin/busybox tree/bin/; ln -s busybox tree/bin/sh
             ln -s busybox tree/bin/cat; echo pulled > tree/etc/origin
             tar -cf layer.tar -C tree . && umoci init --layout layout && umoci new --image layout:1
             umoci raw add-layer --image layout:1 layer.tar",
            dir,
        );
        registry.push(dir, "tool:1");
        registry
    }

    fn push(&self, dir: &Path, name: &str) {
        let to = format!("docker://{}/{name}", self.address);
        let options = "--quiet --insecure-policy --dest-tls-verify=false";
        sh(&format!("skopeo copy {options} oci:layout:1 {to}"), dir);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_create_pulls_a_missing_image_from_the_default_registry() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let registry = Registry::start(dir.path());
    let mut cove = Cove::prepare(&["--default-registry", &registry.address], None);
    cove.serve();
    cove.ok(["create", "--image", "tool:1", "--name", "box"]);
    assert_eq!(
        cove.ok(["exec", "box", "--", "cat", "/etc/origin"]),
        "pulled\n"
    );
    // Its stages are events of the sandbox.
    let events = cove.ok(["events", "box"]);
    assert!(events.contains("pulling the image tool:1"), "{events}");
    // By the full name it is the same image, and nothing is pulled again.
    let whole = format!("{}/tool:1", registry.address);
    cove.ok(["create", &whole, "--name", "same"]);
    assert_eq!(cove.json(["images"]).as_array().unwrap().len(), 1);

    // A tenant pulls for itself, from the operator's default registry but from nowhere else of its network.
    cove.ok(["org", "create", "acme"]);
    let made = cove.json(["key", "create", "theirs", "--org", "acme"]);
    let token = made["token"].as_str().unwrap().to_owned();
    let tenant = |args: &[&str]| {
        let mut command = cove.command(args.iter().copied());
        command.env("COVE_API_KEY", &token).output().unwrap()
    };
    let made = tenant(&["create", "tool:1", "--name", "theirs"]);
    assert!(made.status.success(), "{made:?}");
    let elsewhere = format!("{}/elsewhere:1", registry.address);
    let refused = tenant(&["create", &elsewhere]);
    assert!(
        text(&refused.stderr).contains("a private network of the operator"),
        "{refused:?}"
    );

    // What the registry does not have.
    let missing = cove.run(["create", "tool:2"]);
    let told = text(&missing.stderr);
    assert!(told.contains("could not be pulled"), "{told}");
    assert!(told.contains("cove image pull"), "{told}");
    let missing = cove.run(["create", "mybox"]);
    let told = text(&missing.stderr);
    assert!(told.contains("cove create --name mybox"), "{told}");
    assert!(told.contains("cove image pull mybox"), "{told}");
    assert_eq!(cove.json(["ls", "--all"]).as_array().unwrap().len(), 2);

    // The operator can turn it off.
    registry.push(dir.path(), "other:1");
    cove.stop();
    cove.add_flags(&["--pull-on-create", "false"]);
    cove.serve();
    let missing = cove.run(["create", "other:1"]);
    let told = text(&missing.stderr);
    assert!(told.contains("cove image pull other:1"), "{told}");
    cove.ok(["image", "pull", "other:1"]);
    cove.ok(["create", "other:1"]);
}
