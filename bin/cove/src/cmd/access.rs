//! Keys and organisations.

use std::time::{Duration, Instant};

use cove_api::PageQuery;
use cove_api::tenancy::{CreateKey, CreateOrg, Key, Org, PatchOrg, QuotaRequest};
use cove_client::Client;

use crate::args::access::QuotaArgs;
use crate::args::{Global, KeyCommand, OrgCommand};
use crate::output::{self, Table};
use crate::report::CliError;
use crate::{connect, serve, units};

pub async fn key(client: &Client, command: KeyCommand, json: bool) -> Result<(), CliError> {
    match command {
        KeyCommand::Ls => list_keys(client, json).await,
        KeyCommand::Create {
            name,
            scope,
            expires,
            org,
            sandbox,
        } => {
            let org = match org {
                Some(org) => Some(org_id(client, &org).await?),
                None => None,
            };
            let create = CreateKey {
                name,
                scopes: vec![scope.into()],
                expires_in_s: expires,
                org,
                sandbox,
            };
            let new = client.create_key(&create).await?;
            if json {
                return output::json(&new);
            }
            eprintln!("this is shown once; the server keeps only a hash of it");
            output::line(&new.token)
        }
        KeyCommand::Rm { keys } => {
            let known = all_keys(client).await?;
            for key in keys {
                let of_name = known
                    .iter()
                    .filter(|one| one.name == key && one.revoked_at.is_none());
                let key = chosen("key", &key, of_name.map(|one| one.id.as_str()))?;
                client.revoke_key(&key).await?;
                output::done("revoked", &key, json)?;
            }
            Ok(())
        }
        KeyCommand::ResetRoot => Err(CliError::usage("this needs no server")),
    }
}

/// Between two looks whether the server has the new key, and for how long.
const RESET_PAUSE: Duration = Duration::from_millis(50);
const RESET_WAIT: Duration = Duration::from_secs(60);

/// Needs root on the machine, not a key: this is the way back in.
pub async fn reset_root(global: &Global, json: bool) -> Result<(), CliError> {
    let data_dir = connect::data_dir(global);
    let (_, told) = serve::reset_root_key(&data_dir)?;
    let file = data_dir.join(connect::ROOT_KEY_FILE);
    if told {
        let own = Global {
            api_key: None,
            url: None,
            // The server of this machine, whatever other server the user is logged in to.
            context: None,
            data_dir: Some(data_dir.clone()),
            ..global.clone()
        };
        let started = Instant::now();
        while connect::client(&own)?
            .keys(&PageQuery::default())
            .await
            .is_err()
        {
            if started.elapsed() > RESET_WAIT {
                return Err(CliError::hinted(
                    format!(
                        "{} holds a new key, but the server has not loaded it",
                        file.display()
                    ),
                    "see its log, or restart it",
                ));
            }
            tokio::time::sleep(RESET_PAUSE).await;
        }
    } else if !json {
        eprintln!("no server runs here; the next start loads the new key");
    }
    if json {
        return output::json(&serde_json::json!({ "file": file, "taken": told }));
    }
    output::line(&file.display().to_string())
}

/// The id behind what was typed: an id, or a name that only one has.
pub fn chosen<'a>(
    what: &str,
    typed: &str,
    of_name: impl Iterator<Item = &'a str>,
) -> Result<String, CliError> {
    let ids: Vec<&str> = of_name.collect();
    match ids.as_slice() {
        // The server knows ids.
        [] => Ok(typed.to_owned()),
        [id] => Ok((*id).to_owned()),
        several => Err(CliError::hinted(
            format!("{} {what}s have the name {typed:?}", several.len()),
            format!("give the id of one: {}", several.join(", ")),
        )),
    }
}

async fn all_keys(client: &Client) -> Result<Vec<Key>, CliError> {
    let mut query = PageQuery::default();
    let mut all = Vec::new();
    loop {
        let page = client.keys(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

async fn list_keys(client: &Client, json: bool) -> Result<(), CliError> {
    let all = all_keys(client).await?;
    if json {
        return output::json(&all);
    }
    let mut table = Table::new(&[
        "ID", "NAME", "SCOPES", "SANDBOX", "CREATED", "USED", "EXPIRES",
    ]);
    for key in all {
        let scopes: Vec<_> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let ends = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked".into(),
            (None, Some(at)) => at.to_string(),
            (None, None) => "never".into(),
        };
        table.row([
            key.id,
            key.name,
            scopes.join(","),
            key.sandbox.unwrap_or_else(|| "all".into()),
            units::ago(key.created_at),
            key.last_used_at.map_or_else(|| "never".into(), units::ago),
            ends,
        ]);
    }
    table.print()
}

pub async fn org(client: &Client, command: OrgCommand, json: bool) -> Result<(), CliError> {
    match command {
        OrgCommand::Ls => {
            let orgs = all_orgs(client).await?;
            if json {
                output::json(&orgs)
            } else {
                table(&orgs)
            }
        }
        OrgCommand::Show { org } => {
            let mut known = all_orgs(client).await?;
            known.retain(|one| one.id == org || one.name == org);
            match known.as_slice() {
                [] => Err(CliError::hinted(
                    format!("there is no organisation {org:?}"),
                    "`cove org ls` lists them",
                )),
                [one, ..] if json => output::json(one),
                found => table(found),
            }
        }
        OrgCommand::Create { name, quota } => {
            let quota = Some(request(&quota)).filter(|asked| *asked != QuotaRequest::default());
            let org = client.create_org(&CreateOrg { name, quota }).await?;
            if json {
                output::json(&org)
            } else {
                output::line(&org.id)
            }
        }
        OrgCommand::Quota { org, quota } => {
            let org = org_id(client, &org).await?;
            let patch = PatchOrg {
                quota: Some(request(&quota)),
                ..PatchOrg::default()
            };
            changed(client.patch_org(&org, &patch).await?, json)
        }
        OrgCommand::Tolerate { org, add, remove } => {
            let org = org_id(client, &org).await?;
            let added = add.into_iter().map(|taint| (taint, true));
            let removed = remove.into_iter().map(|taint| (taint, false));
            let patch = PatchOrg {
                tolerations: units::each_once("taint", added.chain(removed))?,
                ..PatchOrg::default()
            };
            changed(client.patch_org(&org, &patch).await?, json)
        }
        OrgCommand::Rm { orgs } => {
            for org in orgs {
                let org = org_id(client, &org).await?;
                client.delete_org(&org).await?;
                output::done("deleted", &org, json)?;
            }
            Ok(())
        }
    }
}

fn changed(org: Org, json: bool) -> Result<(), CliError> {
    if json {
        output::json(&org)
    } else {
        table(&[org])
    }
}

async fn all_orgs(client: &Client) -> Result<Vec<Org>, CliError> {
    let mut query = PageQuery {
        limit: Some(cove_limits::PAGE_MAX),
        cursor: None,
    };
    let mut all = Vec::new();
    loop {
        let page = client.orgs(&query).await?;
        all.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

async fn org_id(client: &Client, typed: &str) -> Result<String, CliError> {
    let known = all_orgs(client).await?;
    let of_name = known.iter().filter(|one| one.name == typed);
    chosen("organisation", typed, of_name.map(|one| one.id.as_str()))
}

fn request(quota: &QuotaArgs) -> QuotaRequest {
    QuotaRequest {
        sandboxes: quota.sandboxes,
        cpu: quota.cpu,
        memory_mb: quota.memory,
        disk_mb: quota.disk,
    }
}

fn table(orgs: &[Org]) -> Result<(), CliError> {
    let mut table = Table::new(&[
        "ID",
        "NAME",
        "SANDBOXES",
        "CPU",
        "MEMORY MiB",
        "DISK MiB",
        "TOLERATES",
    ]);
    for org in orgs {
        let (used, quota) = (&org.used, &org.quota);
        let tolerations: Vec<&str> = org.tolerations.iter().map(String::as_str).collect();
        table.row([
            org.id.clone(),
            org.name.clone(),
            format!("{}/{}", used.sandboxes, quota.sandboxes),
            format!("{}/{}", used.cpu, quota.cpu),
            format!("{}/{}", used.memory_mb, quota.memory_mb),
            format!("{}/{}", used.disk_mb, quota.disk_mb),
            match tolerations.is_empty() {
                true => "-".into(),
                false => tolerations.join(", "),
            },
        ]);
    }
    table.print()
}
