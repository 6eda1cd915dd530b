//! Node.js inside: an image made from the default one and two packages, and `npm install` in it.
//!
//! The image is built once per host, like the default one; the first run takes minutes.
#![forbid(unsafe_code)]

use cove_image::Recipe;
use cove_model::{Resources, SandboxSpec};
use cove_tests::Host;

/// Packs a package with a program and an install script, then installs it elsewhere and runs it.
const INSTALL: &str = r#"
set -e
mkdir -p ~/greet ~/app
cd ~/greet
cat > package.json <<'JSON'
{ "name": "greet", "version": "1.2.3", "bin": { "greet": "cli.js" },
  "scripts": { "postinstall": "node -e \"require('fs').writeFileSync('installed', process.version)\"" } }
JSON
printf '#!/usr/bin/env node\nconsole.log("hello from", require("./package.json").version)\n' > cli.js
npm pack --silent
cd ~/app
npm init --yes > /dev/null
npm install --offline --no-audit --no-fund ~/greet/greet-1.2.3.tgz
test -s node_modules/greet/installed
npx --offline greet
npm run --silent env > /dev/null
"#;

#[tokio::test(flavor = "multi_thread")]
async fn npm_installs_packages_and_runs_their_scripts_inside() {
    let host = Host::open(|_| {}).await;
    let recipe = Recipe::with("node", &["nodejs", "npm"]).expect("plain words");
    let images = host.engine.images().clone();
    images
        .bootstrap(&recipe, |_| {})
        .await
        .expect("the image is built from the host's mirror");
    let sandbox = host
        .sandbox(SandboxSpec {
            image: recipe.name().into(),
            resources: Resources {
                memory_mb: 512,
                disk_mb: 512,
                ..Resources::default()
            },
            ..SandboxSpec::default()
        })
        .await;
    let said = sandbox.sh("user", INSTALL).await.ok();
    assert!(said.contains("hello from 1.2.3"), "{said}");
    // A server with worker threads, as development servers are.
    let threads = "const { Worker } = require('worker_threads'); const http = require('http');
        const s = http.createServer((q, r) => r.end('served')).listen(0, '127.0.0.1', () =>
          new Worker(`require('http').get('http://127.0.0.1:${s.address().port}', r =>
            r.on('data', d => console.log(String(d))).on('end', () => process.exit()))`,
            { eval: true }).on('exit', () => process.exit()));";
    let said = sandbox
        .sh(
            "user",
            &format!("node -e \"$(cat <<'JS'\n{threads}\nJS\n)\""),
        )
        .await
        .ok();
    assert_eq!(said.trim(), "served");
    drop((sandbox, images));
    host.destroy().await;
}
