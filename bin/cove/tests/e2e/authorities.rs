//! Certificate authorities of the host in sandboxes: a real TLS server that clients inside trust because of them alone.

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;

use super::harness::{Cove, program, signal, wait_for};

/// curl: the server's certificate is not trusted.
const UNTRUSTED: i32 = 60;

/// An authority, and the certificate and key of a server that it vouches for.
fn write_authority(dir: &Path) {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let name = (rcgen::DnType::CommonName, "the host's authority");
    params.distinguished_name.push(name.0, name.1);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server.signed_by(&key, &issuer).unwrap();
    let both = server.pem() + &key.serialize_pem();
    std::fs::write(dir.join("server.pem"), both).unwrap();
}

/// Runs a client inside against a TLS server inside, which has a certificate of the authority.
fn connect(cove: &Cove, key: &str, sandbox: &str, client: &str) -> Output {
    let script = format!(
        "openssl s_server -accept 8443 -www -cert /srv/server.pem >/dev/null 2>&1 & server=$!
        for try in $(seq 200); do (exec 3<>/dev/tcp/localhost/8443) 2>/dev/null && break; sleep 0.05; done
        {client}; code=$?; kill $server; wait; exit $code"
    );
    let exec = ["exec", sandbox, "--", "bash", "-c", &script];
    cove.command(exec)
        .env("COVE_API_KEY", key)
        .output()
        .unwrap()
}

const CURL: &str = "curl -sS -o /dev/null https://localhost:8443/";
/// Without the variables, so that only the bundle counts.
const BARE_CURL: &str = "env -i curl -sS -o /dev/null https://localhost:8443/";
const PYTHON: &str =
    "python3 -c 'import urllib.request as u; u.urlopen(\"https://localhost:8443/\")'";

struct Place {
    cove: Cove,
    certificate: String,
    home: String,
    other: String,
    other_org: String,
}

impl Place {
    fn new(dir: &Path) -> Self {
        write_authority(dir);
        let file = dir.join("ca.pem").display().to_string();
        let cove = Cove::start_with(&["--sandbox-ca-file", &file]);
        cove.ok(["image", "build-debian"]);
        let home = std::fs::read_to_string(cove.data_dir().join("root.key")).unwrap();
        let other_org = cove.ok(["org", "create", "other"]).trim().to_owned();
        let made = cove.json(["key", "create", "--org", &other_org, "other"]);
        let other = made["token"].as_str().unwrap();
        Self {
            certificate: dir.join("server.pem").display().to_string(),
            home: home.trim().to_owned(),
            other: other.to_owned(),
            other_org,
            cove,
        }
    }

    fn make(&self, key: &str, name: &str) {
        let into = format!("{name}:/srv/server.pem");
        for args in [
            &["create", "debian", "--name", name][..],
            &["cp", &self.certificate, &into],
        ] {
            let done = self
                .cove
                .command(args.iter().copied())
                .env("COVE_API_KEY", key)
                .output()
                .unwrap();
            assert!(done.status.success(), "{args:?}: {done:?}");
        }
    }

    fn trusts(&self, key: &str, sandbox: &str, client: &str) {
        let told = connect(&self.cove, key, sandbox, client);
        assert!(told.status.success(), "{client}: {told:?}");
    }

    fn does_not_trust(&self, key: &str, sandbox: &str) {
        let told = connect(&self.cove, key, sandbox, CURL);
        assert_eq!(told.status.code(), Some(UNTRUSTED), "{told:?}");
    }
}

#[test]
fn clients_inside_trust_the_hosts_authorities_where_the_operator_says_so() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut place = Place::new(dir.path());
    place.make(&place.home, "box");
    for client in [CURL, BARE_CURL, PYTHON] {
        place.trusts(&place.home, "box", client);
    }
    let inside = |place: &Place, command: &str| {
        let said = place.cove.ok(["exec", "box", "--", "sh", "-c", command]);
        said.trim().to_owned()
    };
    // The image's own roots are still there, each is there once, and they survive an update of the bundle.
    let count = "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt";
    let roots = inside(&place, count);
    assert!(roots.parse::<u32>().unwrap() > 100, "{roots}");
    inside(&place, "update-ca-certificates --fresh");
    place.trusts(&place.home, "box", BARE_CURL);
    let authority = std::fs::read_to_string(dir.path().join("ca.pem")).unwrap();
    let node = inside(&place, "cat $NODE_EXTRA_CA_CERTS");
    assert_eq!(node.replace('\r', ""), authority.replace('\r', "").trim());
    // What the caller says wins.
    let own = [
        "exec",
        "box",
        "-e",
        "SSL_CERT_FILE=/mine",
        "--",
        "printenv",
        "SSL_CERT_FILE",
    ];
    assert_eq!(place.cove.ok(own), "/mine\n");

    // A disk from before the first command has them after a rollback too.
    place.make(&place.home, "fresh");
    inside(
        &place,
        "rm /etc/ssl/certs/ca-certificates.crt /etc/cove/host-ca.pem",
    );
    place.cove.ok(["snapshot", "box", "--name", "without"]);
    place.trusts(&place.home, "box", BARE_CURL);
    place.cove.ok(["rollback", "box", "without"]);
    place.trusts(&place.home, "box", BARE_CURL);

    // Others have nothing of it.
    place.make(&place.other, "theirs");
    place.does_not_trust(&place.other, "theirs");
    let look =
        "ls /etc/cove/host-ca.pem /usr/local/share/ca-certificates/*; printenv SSL_CERT_FILE";
    let looked = place
        .cove
        .command(["exec", "theirs", "--", "sh", "-c", look])
        .env("COVE_API_KEY", &place.other)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&looked.stdout), "");

    // A sandbox that cannot take them can be used.
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    inside(&place, &format!("rm -f {bundle}; mkdir -p {bundle}/full"));
    place.cove.stop();
    let orgs = format!("home,{}", place.other_org);
    place.cove.add_flags(&["--sandbox-ca-orgs", &orgs]);
    place.cove.serve();
    assert_eq!(inside(&place, "echo here"), "here");
    inside(&place, &format!("rm -r {bundle}"));
    place.trusts(&place.home, "box", CURL);
    place.trusts(&place.other, "theirs", CURL);

    // A reload takes further ones, and keeps what it has when the file is damaged.
    write_authority(dir.path());
    signal(place.cove.server_pid(), Signal::HUP);
    place.make(&place.home, "later");
    wait_for("the new authority is trusted", || {
        let told = connect(&place.cove, &place.home, "later", CURL);
        told.status.success().then_some(())
    });
    std::fs::write(dir.path().join("ca.pem"), "damaged").unwrap();
    signal(place.cove.server_pid(), Signal::HUP);
    wait_for("the log says why", || {
        place.cove.log().contains("no certificates").then_some(())
    });
    place.trusts(&place.home, "later", CURL);
}

#[test]
fn a_file_without_certificates_is_refused_at_start() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    write_authority(dir.path());
    std::fs::write(dir.path().join("text"), "no certificate").unwrap();
    let data = dir.path().join("data");
    for (name, why) in [
        ("none", "No such file"),
        ("text", "no certificates"),
        ("server.pem", "private key"),
    ] {
        let file = dir.path().join(name);
        let told = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .args([&data, Path::new("--sandbox-ca-file"), &file])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(!told.status.success(), "{told:?}");
        let named = text.contains("sandbox_ca_file") && text.contains(file.to_str().unwrap());
        assert!(named && text.contains(why), "{text}");
        assert!(!data.exists(), "something was made");
    }
}
