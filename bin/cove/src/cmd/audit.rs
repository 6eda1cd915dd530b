//! `cove audit export` and `cove audit verify`: audit records taken elsewhere, and whether they are still
//! what was recorded.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use cove_api::PageQuery;
use cove_api::tenancy::{AuditChain, AuditLine, AuditRecord};
use cove_client::Client;
use cove_store::{AuditHead, ChainCheck};

use crate::output::{self, Table};
use crate::report::CliError;

/// Organisations checked in one request.
const PAGE: u32 = 10;

#[derive(Debug, Clone, Subcommand)]
pub enum AuditCommand {
    /// Export all records of the organisation, oldest first, one JSON value per line
    Export {
        /// File to write [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Verify that no record was changed, removed or added
    Verify {
        /// Exported file [default: the records of the server]
        file: Option<PathBuf>,
        /// Earlier head that must still be part of the chain
        #[arg(long, value_name = "SEQUENCE:HASH", requires = "file")]
        head: Option<String>,
    },
}

pub async fn run(client: &Client, command: AuditCommand, json: bool) -> Result<u8, CliError> {
    match command {
        AuditCommand::Export { output } => {
            export(client, output.as_deref(), json).await.map(|()| 0)
        }
        AuditCommand::Verify { file: None, .. } => {
            let chains = chains(client).await?;
            tell(&chains, json)
        }
        AuditCommand::Verify {
            file: Some(file),
            head,
        } => {
            let chain = read(&file, head.as_deref())?;
            tell(&[chain], json)
        }
    }
}

/// Every chain the caller may look at, checked by the server.
pub async fn chains(client: &Client) -> Result<Vec<AuditChain>, CliError> {
    let mut query = PageQuery {
        limit: Some(PAGE),
        cursor: None,
    };
    let mut chains = Vec::new();
    loop {
        let page = client.audit_chain(&query).await?;
        chains.extend(page.items);
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(chains),
        }
    }
}

fn tell(chains: &[AuditChain], json: bool) -> Result<u8, CliError> {
    if json {
        output::json(&chains)?;
    } else {
        let mut table = Table::new(&["ORGANISATION", "RECORDS", "HEAD", "FOUND"]);
        for chain in chains {
            table.row([
                chain.org.clone(),
                chain.verified.unwrap_or(0).to_string(),
                format!("{}:{}", chain.sequence, chain.hash),
                chain.broken.clone().unwrap_or_else(|| "unbroken".into()),
            ]);
        }
        table.print()?;
    }
    Ok(u8::from(chains.iter().any(|chain| chain.broken.is_some())))
}

async fn export(client: &Client, to: Option<&Path>, json: bool) -> Result<(), CliError> {
    let mut lines = client.export_audit().await?;
    let mut file = to
        .map(|path| {
            let failed = |source| CliError::io(format!("cannot write {}", path.display()), source);
            File::create(path).map_err(failed)
        })
        .transpose()?;
    let (mut wanted, mut last) = (0, 0);
    while let Some(line) = lines.next().await? {
        match &line {
            AuditLine::Chain(chain) => wanted = chain.sequence,
            AuditLine::Record(record) => last = record.id,
        }
        match &mut file {
            None => output::json_line(&line)?,
            Some(file) => {
                let mut text = serde_json::to_vec(&line).expect("wire types are always JSON");
                text.push(b'\n');
                file.write_all(&text)
                    .map_err(|source| CliError::io("cannot write the export", source))?;
            }
        }
    }
    if last < wanted {
        return Err(CliError::hinted(
            format!("the export ends at record {last} of {wanted}"),
            "run it again; if it ends there again, see `cove audit verify`",
        ));
    }
    match to {
        Some(path) if json => {
            output::json(&serde_json::json!({ "file": path, "last_record": last }))
        }
        _ => Ok(()),
    }
}

/// Checks an exported file in constant memory.
fn read(path: &Path, head: Option<&str>) -> Result<AuditChain, CliError> {
    let broken = |what: &str| CliError::usage(format!("{}: {what}", path.display()));
    let wanted = match head {
        None => None,
        Some(text) => Some(
            text.split_once(':')
                .and_then(|(sequence, hash)| Some((sequence.parse::<u64>().ok()?, hash)))
                .ok_or_else(|| CliError::usage("--head is SEQUENCE:HASH".to_owned()))?,
        ),
    };
    let file = File::open(path)
        .map_err(|source| CliError::io(format!("cannot read {}", path.display()), source))?;
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().ok_or_else(|| broken("it is empty"))?;
    let parse = |line: std::io::Result<String>| {
        let line = line.map_err(|source| CliError::io("cannot read the export", source))?;
        serde_json::from_str::<AuditLine>(&line).map_err(|_| broken("it is not an export"))
    };
    let AuditLine::Chain(mut chain) = parse(first)? else {
        return Err(broken("it does not begin with its chain"));
    };
    let ends = AuditHead {
        sequence: chain.sequence,
        hash: chain.hash.clone(),
        anchor_sequence: chain.anchor_sequence,
        anchor_hash: chain.anchor_hash.clone(),
        unchained: chain.unchained,
    };
    let mut check = ChainCheck::after(&ends);
    let mut head_seen = wanted.is_none();
    let mut found = None;
    for line in lines {
        let AuditLine::Record(line) = parse(line)? else {
            return Err(broken("it names its chain twice"));
        };
        let record = kept(&chain.org, line).ok_or_else(|| broken("it is not an export"))?;
        if let Err(error) = check.take(&record) {
            found = Some(error);
            break;
        }
        if wanted.is_some_and(|(sequence, hash)| sequence == record.sequence && hash == record.hash)
        {
            head_seen = true;
        }
    }
    let found = found.or_else(|| check.ends_at(&ends).err());
    chain.verified = Some(check.sequence() - ends.anchor_sequence);
    chain.broken_at = found.as_ref().map(|error| error.sequence());
    chain.broken = found.map(|error| error.to_string());
    if chain.broken.is_none()
        && !head_seen
        && let Some((sequence, _)) = wanted
    {
        chain.broken_at = Some(sequence);
        chain.broken = Some(format!(
            "record {sequence} is not there with the hash that was kept"
        ));
    }
    Ok(chain)
}

fn kept(org: &str, line: AuditRecord) -> Option<cove_store::AuditRecord> {
    Some(cove_store::AuditRecord {
        sequence: line.id,
        at: line.at.0,
        org: org.parse().ok()?,
        key: line.key.map(|key| key.parse()).transpose().ok()?,
        action: line.action,
        target: line.target,
        source: line.source,
        request_id: line.request_id,
        result: line.result,
        detail: line.detail,
        hash: line.hash,
    })
}
