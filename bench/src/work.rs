//! Work inside a sandbox against the same work on the host, as ratios. Both run the same programs:
//! the host's side runs them from the image's own tree in a chroot, on the pool.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use cove_model::Resources;

use crate::host::{Host, run as run_command};
use crate::report::{Report, Sample};

/// Each prepares once and is then timed; `work` is run in an empty directory of its own.
struct Job {
    name: &'static str,
    prepare: &'static str,
    work: &'static str,
}

const JOBS: [Job; 5] = [
    Job {
        name: "untar 6,000 small files",
        prepare: "mkdir t && cd t && for d in $(seq 60); do mkdir d$d; for f in $(seq 100); do echo $d $f > d$d/f$f; done; done; cd .. && tar cf t.tar t && rm -r t",
        work: "rm -rf out && mkdir out && tar xf t.tar -C out",
    },
    Job {
        name: "compile 40 C files",
        prepare: "for i in $(seq 40); do printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\nint f%d(int x){char b[64];snprintf(b,64,\"%%d\",x);return strlen(b)+atoi(b);}\\n' $i > f$i.c; done",
        work: "rm -f *.o && for i in $(seq 40); do gcc -O1 -c f$i.c; done",
    },
    Job {
        name: "pip install from a local wheel",
        prepare: "python3 -m venv v && mkdir -p w/bench_pkg && for i in $(seq 200); do echo \"x=$i\" > w/bench_pkg/m$i.py; done && printf 'from setuptools import setup\\nsetup(name=\"bench-pkg\",version=\"1\",packages=[\"bench_pkg\"])\\n' > w/setup.py && touch w/bench_pkg/__init__.py && python3 - <<'PY'\nimport zipfile, glob, hashlib, base64, os\nz = zipfile.ZipFile('bench_pkg-1-py3-none-any.whl', 'w')\nrecord = []\ndef add(name, data):\n    z.writestr(name, data)\n    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()\n    record.append(f'{name},sha256={digest},{len(data)}')\nfor f in sorted(glob.glob('w/bench_pkg/*.py')):\n    add('bench_pkg/' + os.path.basename(f), open(f, 'rb').read())\nadd('bench_pkg-1.dist-info/METADATA', b'Metadata-Version: 2.1\\nName: bench-pkg\\nVersion: 1\\n')\nadd('bench_pkg-1.dist-info/WHEEL', b'Wheel-Version: 1.0\\nGenerator: bench\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\nz.writestr('bench_pkg-1.dist-info/RECORD', '\\n'.join(record + ['bench_pkg-1.dist-info/RECORD,,']) + '\\n')\nz.close()\nPY",
        work: "v/bin/pip install -q --no-index --force-reinstall --disable-pip-version-check bench_pkg-1-py3-none-any.whl",
    },
    Job {
        name: "1,000 SQLite commits",
        prepare: "true",
        work: "rm -f d.db && python3 -c \"import sqlite3\nc=sqlite3.connect('d.db')\nc.execute('create table t(x)')\nfor i in range(1000):\n    c.execute('insert into t values(?)',(i,)); c.commit()\"",
    },
    Job {
        name: "a CPU loop",
        prepare: "true",
        work: "python3 -c \"s=0\nfor i in range(6000000): s+=i*i\"",
    },
];

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 1 } else { 5 };
    let outside = Outside::make(host)?;
    let resources = Resources {
        cpu: 2.0,
        memory_mb: 2048,
        ..Resources::default()
    };
    let id = host.create_with(resources).await?;
    let guest = host.guest(&id)?.within(std::time::Duration::from_secs(300));
    for job in &JOBS {
        let script = |body: &str| format!("set -e; mkdir -p /root/job; cd /root/job; {body}");
        run_command(
            &guest,
            &[
                "/bin/bash",
                "-c",
                &format!("rm -rf /root/job; {}", script(job.prepare)),
            ],
        )
        .await?;
        outside.bash(&format!("rm -rf /root/job; {}", script(job.prepare)))?;
        let (mut inside_times, mut outside_times) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let begun = Instant::now();
            run_command(&guest, &["/bin/bash", "-c", &script(job.work)]).await?;
            inside_times.push(begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            outside.bash(&script(job.work))?;
            outside_times.push(begun.elapsed().as_secs_f64());
        }
        let ratio = Sample::new(inside_times).median() / Sample::new(outside_times).median();
        report.figure(&format!("{}, inside against host", job.name), ratio, "×");
    }
    host.delete(&id).await?;
    Ok(())
}

/// A writable copy of the image on the pool, entered by chroot: the host's speed on the same files.
struct Outside<'a> {
    host: &'a Host,
    volume: cove_pool::VolumeId,
}

impl<'a> Outside<'a> {
    fn make(host: &'a Host) -> Result<Self> {
        let image = host
            .engine
            .images()
            .resolve("debian")
            .context("the default image is there")?;
        let pool = host.engine.pool();
        let from = host.engine.images().root(&image);
        let name = from
            .file_name()
            .and_then(|name| name.to_str())
            .context("volumes have names")?;
        let from = cove_pool::VolumeId::new(cove_pool::Kind::Image, name)?;
        let volume = cove_pool::VolumeId::new(cove_pool::Kind::Staging, "bench-outside")?;
        pool.snapshot(&from, &volume, cove_pool::Access::Writable)?;
        let outside = Self { host, volume };
        // The pool is mounted noexec; a bind mount of the tree for this process alone is not.
        Ok(outside)
    }

    fn bash(&self, script: &str) -> Result<()> {
        let root = self.host.engine.pool().path(&self.volume);
        let inner = format!(
            "mount --bind {root} {root} && mount -o remount,bind,exec,dev,suid {root} && mount -t proc proc {root}/proc && mount --bind /dev {root}/dev && exec chroot {root} /bin/bash -c \"$0\"",
            root = quoted(&root)
        );
        let done = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "private",
                "/bin/bash",
                "-c",
                &inner,
                script,
            ])
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .output()?;
        anyhow::ensure!(
            done.status.success(),
            "on the host: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(())
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        let _ = self.host.engine.pool().delete(&self.volume);
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
