//! Templates: named, versioned starting points of sandboxes.

use cove_api::lifecycle::Lifecycle;
use cove_api::sandbox::NetworkMode;
use cove_api::template::{ListTemplates, Template};
use cove_client::Client;

use crate::args::TemplateCommand;
use crate::output::{self, Facts, Table};
use crate::report::{self, CliError};
use crate::units;

pub async fn run(client: &Client, command: TemplateCommand, json: bool) -> Result<(), CliError> {
    match command {
        TemplateCommand::Create(args) => {
            let made = client.create_template(&args.request(), None).await?;
            match json {
                true => output::json(&made),
                false => output::line(&reference(&made)),
            }
        }
        TemplateCommand::Build(args) => super::builds::run(client, &args, json).await,
        TemplateCommand::Builds => super::builds::list(client, json).await,
        TemplateCommand::Cancel { build } => super::builds::cancel(client, &build, json).await,
        TemplateCommand::Prune => super::builds::prune(client, json).await,
        TemplateCommand::Ls { name, quiet } => list(client, name, quiet, json).await,
        TemplateCommand::Show { template } => show(&client.template(&template).await?, json),
        TemplateCommand::Rm { templates, all } => remove(client, &templates, all, json).await,
        TemplateCommand::Tag {
            template,
            tag,
            remove: true,
        } => {
            client.untag_template(&template, &tag).await?;
            output::done("untagged", &format!("{template}:{tag}"), json)
        }
        TemplateCommand::Tag { template, tag, .. } => {
            let tagged = client.tag_template(&template, &tag).await?;
            match json {
                true => output::json(&tagged),
                false => output::line(&reference(&tagged)),
            }
        }
    }
}

fn reference(one: &Template) -> String {
    format!("{}:{}", one.name, one.version)
}

fn lifecycle(rules: &Lifecycle) -> Option<String> {
    let times = [
        ("freeze after", rules.freeze_after_s),
        ("pause after", rules.pause_after_s),
        ("stop after", rules.stop_after_s),
        ("delete after", rules.delete_after_s),
        ("delete in any case after", rules.max_lifetime_s),
        (
            "snapshot every",
            rules.auto_snapshot.as_ref().and_then(|auto| auto.every_s),
        ),
    ];
    let times = times.into_iter();
    let mut said: Vec<String> = times
        .filter_map(|(what, seconds)| Some(format!("{what} {}s", seconds?)))
        .collect();
    if rules
        .auto_snapshot
        .as_ref()
        .is_some_and(|auto| auto.before_exec)
    {
        said.push("snapshot before each command".into());
    }
    if rules.auto_resume == Some(false) {
        said.push("no automatic resume".into());
    }
    (!said.is_empty()).then(|| said.join(", "))
}

async fn list(
    client: &Client,
    name: Option<String>,
    quiet: bool,
    json: bool,
) -> Result<(), CliError> {
    let mut all = Vec::new();
    let mut query = ListTemplates {
        name,
        ..ListTemplates::default()
    };
    loop {
        let page = client.templates(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    if quiet {
        return output::ids(all.iter().map(|one| one.id.as_str()), json);
    }
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&["TEMPLATE", "TAGS", "SNAPSHOT", "STATE", "CREATED"]);
    for one in &all {
        table.row([
            reference(one),
            one.tags.join(","),
            one.snapshot.clone(),
            state(one).to_owned(),
            units::ago(one.created_at),
        ]);
    }
    table.print()
}

fn state(one: &Template) -> &'static str {
    match (one.lost, one.memory) {
        (true, _) => "lost: no sandbox can start from it",
        (false, true) => "disk and memory",
        (false, false) => "disk",
    }
}

fn show(one: &Template, json: bool) -> Result<(), CliError> {
    if json {
        return output::json(one);
    }
    let limits = &one.resources;
    let memory = units::bytes(limits.memory_mb << 20);
    let disk = units::bytes(limits.disk_mb << 20);
    let mut facts = Facts::new();
    facts
        .add("id", &one.id)
        .add("template", reference(one))
        .maybe("tags", (!one.tags.is_empty()).then(|| one.tags.join(", ")))
        .add("snapshot", &one.snapshot)
        .add("begins from", state(one))
        .add(
            "limits",
            format!(
                "{} CPU, {memory} memory, {disk} disk, {} processes",
                limits.cpu, limits.pids
            ),
        )
        .add(
            "isolation",
            super::sandboxes::isolation(&one.isolation, one.accel),
        )
        .maybe("placement", super::sandboxes::placement(&one.placement))
        .maybe("user", one.user.clone())
        .maybe("directory", one.workdir.clone())
        .maybe(
            "privileges",
            one.no_new_privs.then_some("setuid programs gain none"),
        )
        .add(
            "network",
            match one.network.mode {
                NetworkMode::None => "off".to_owned(),
                _ => super::sandboxes::policy(&one.network),
            },
        )
        .maybe("lifecycle", lifecycle(&one.lifecycle))
        .add(
            "created",
            format!("{} ({})", one.created_at, units::ago(one.created_at)),
        );
    for mount in &one.volumes {
        let access = if mount.read_only { " (read-only)" } else { "" };
        facts.add(
            "volume",
            format!("{} at {}{access}", mount.volume, mount.path),
        );
    }
    for (key, value) in &one.env {
        facts.add("env", report::printable(&format!("{key}={value}")));
    }
    facts.print()
}

async fn remove(
    client: &Client,
    templates: &[String],
    all: bool,
    json: bool,
) -> Result<(), CliError> {
    let mut failed = None;
    for template in templates {
        match client.delete_template(template, all).await {
            Ok(()) => output::done("deleted", template, json)?,
            // The others are removed all the same; the last failure is reported.
            Err(error) => {
                if let Some(earlier) = failed.replace(CliError::from(error)) {
                    report::print(&earlier, json);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}
