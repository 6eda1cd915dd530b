//! A real registry on loopback, and images in it, made with the usual tools.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::world::sh;

const START_DEADLINE: Duration = Duration::from_secs(120);
const START_LOOK: Duration = Duration::from_millis(10);
const PORT_ATTEMPTS: usize = 5;

pub struct Registry {
    process: Child,
    pub port: u16,
    pub dir: tempfile::TempDir,
    /// What curl and skopeo must say to get in.
    login: Option<(String, String)>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    pub fn start() -> Self {
        Self::start_with(None, "")
    }

    pub fn with_password(username: &str, password: &str) -> Self {
        Self::start_with(Some((username.to_owned(), password.to_owned())), "")
    }

    /// Speaks TLS only, with the certificate and the key in these files.
    pub fn with_tls(certificate: &Path, key: &Path) -> Self {
        let tls = format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            certificate.display(),
            key.display()
        );
        Self::start_with(None, &tls)
    }

    fn start_with(login: Option<(String, String)>, tls: &str) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut auth = String::new();
        if let Some((username, password)) = &login {
            sh(
                &format!("htpasswd -Bbc passwords {username} {password}"),
                dir.path(),
            );
            auth = format!(
                "auth:\n  htpasswd:\n    realm: test\n    path: {}/passwords\n",
                dir.path().display()
            );
        }
        for _ in 0..PORT_ATTEMPTS {
            // Another process may take the port in between; then the next one is tried.
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let config = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}/data\n\
                 http:\n  addr: 127.0.0.1:{port}\n{tls}{auth}",
                dir.path().display()
            );
            std::fs::write(dir.path().join("config.yml"), config).unwrap();
            let mut process = Command::new("docker-registry")
                .args(["serve", "config.yml"])
                .current_dir(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("docker-registry is installed");
            if listens(&mut process, port) {
                return Self {
                    process,
                    port,
                    dir,
                    login,
                };
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("the registry did not start");
    }

    pub fn reference(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    fn url(&self, path: &str) -> String {
        let login = self
            .login
            .as_ref()
            .map(|(name, password)| format!("{name}:{password}@"))
            .unwrap_or_default();
        format!("http://{login}127.0.0.1:{}/v2/{path}", self.port)
    }

    /// Pushes an image of a layout; `options` go to skopeo.
    pub fn push(&self, layout: &Layout, tag: &str, image: &str, options: &str) {
        let login = self
            .login
            .as_ref()
            .map(|(name, password)| format!("--dest-creds {name}:{password}"));
        let script = format!(
            "skopeo copy --quiet --insecure-policy --dest-tls-verify=false {} {options} oci:layout:{tag} docker://{}",
            login.unwrap_or_default(),
            self.reference(image)
        );
        sh(&script, layout.dir.path());
    }

    /// Uploads bytes as a blob and returns its digest.
    pub fn put_blob(&self, repository: &str, bytes: &[u8]) -> String {
        std::fs::write(self.dir.path().join("upload"), bytes).unwrap();
        let script = format!(
            "digest=sha256:$(sha256sum upload | cut -d' ' -f1)
             place=$(curl -fsS -X POST -D - -o /dev/null {} | tr -d '\\r' | sed -n 's/^Location: //p')
             curl -fsS -X PUT --data-binary @upload -H 'Content-Type: application/octet-stream' \"$place&digest=$digest\"
             echo $digest",
            self.url(&format!("{repository}/blobs/uploads/"))
        );
        sh(&script, self.dir.path())
    }

    /// Uploads a manifest or an index and returns its digest.
    pub fn put_manifest(
        &self,
        repository: &str,
        tag: &str,
        media_type: &str,
        json: &str,
    ) -> String {
        std::fs::write(self.dir.path().join("upload"), json).unwrap();
        let script = format!(
            "curl -fsS -X PUT --data-binary @upload -H 'Content-Type: {media_type}' {}
             echo sha256:$(sha256sum upload | cut -d' ' -f1)",
            self.url(&format!("{repository}/manifests/{tag}"))
        );
        sh(&script, self.dir.path())
    }

    pub fn manifest(&self, repository: &str, tag: &str) -> String {
        let accept = "-H 'Accept: application/vnd.oci.image.manifest.v1+json' \
                      -H 'Accept: application/vnd.docker.distribution.manifest.v2+json'";
        sh(
            &format!(
                "curl -fsS {accept} {}",
                self.url(&format!("{repository}/manifests/{tag}"))
            ),
            self.dir.path(),
        )
    }

    /// The file in which the registry keeps a blob.
    pub fn blob_file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let blobs = self.dir.path().join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }
}

fn listens(process: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + START_DEADLINE;
    while Instant::now() < deadline {
        if process.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(START_LOOK);
    }
    false
}

/// An OCI layout on disk, filled by umoci layer by layer.
pub struct Layout {
    pub dir: tempfile::TempDir,
}

impl Layout {
    pub fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        sh("umoci init --layout layout", dir.path());
        Self { dir }
    }

    /// An image with one layer per script; a script fills the directory it runs in.
    pub fn image(&self, tag: &str, scripts: &[&str]) {
        sh(&format!("umoci new --image layout:{tag}"), self.dir.path());
        for script in scripts {
            self.add_layer(tag, script);
        }
    }

    pub fn add_layer(&self, tag: &str, script: &str) {
        let tree = tempfile::tempdir_in(self.dir.path()).unwrap();
        sh(script, tree.path());
        let pack = format!(
            "tar --create --numeric-owner --owner=0 --group=0 --sort=name --mtime=@1000000000 \
             --file ../layer.tar -C {} . && umoci raw add-layer --image ../layout:{tag} ../layer.tar",
            tree.path().display()
        );
        sh(&pack, tree.path());
    }

    pub fn tag(&self, from: &str, to: &str) {
        sh(
            &format!("umoci tag --image layout:{from} {to}"),
            self.dir.path(),
        );
    }

    pub fn configure(&self, tag: &str, options: &str) {
        sh(
            &format!("umoci config --image layout:{tag} {options}"),
            self.dir.path(),
        );
    }
}

/// A small root file system with a working shell.
pub const BUSYBOX: &str =
    "mkdir -p bin etc tmp; cp /bin/busybox bin/busybox; ln -s busybox bin/sh; echo base > etc/base";

pub fn exists(root: &Path, name: &str) -> bool {
    std::fs::symlink_metadata(root.join(name)).is_ok()
}
