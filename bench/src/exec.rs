//! Running a command in a live sandbox against running it on the host.

use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use crate::host::{Host, ms, run as run_command};
use crate::report::{Bar, Report, Sample};

pub async fn run(host: &Host, report: &mut Report, quick: bool) -> Result<()> {
    let rounds = if quick { 100 } else { 1000 };
    let id = host.create().await?;
    let guest = host.guest(&id)?;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    // Taken in turns, so that both see the same noise.
    for _ in 0..rounds {
        let begun = Instant::now();
        run_command(&guest, &["/bin/true"]).await?;
        inside.push(ms(begun.elapsed()));
        let begun = Instant::now();
        anyhow::ensure!(Command::new("/bin/true").status()?.success());
        outside.push(ms(begun.elapsed()));
    }
    host.delete(&id).await?;
    let (inside, outside) = (Sample::new(inside), Sample::new(outside));
    report.figure("exec of true in a sandbox, median", inside.median(), "ms");
    report.figure(
        "fork + exec of true on the host, median",
        outside.median(),
        "ms",
    );
    report.bar(
        "ratio",
        inside.median() / outside.median(),
        "×",
        Bar::AtMost(2.0),
    );
    Ok(())
}
