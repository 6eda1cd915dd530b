//! Identity tokens of sandboxes and the keys that sign them.

use cove_api::identity::{CreateIdentityToken, IdentityKeys, RotateIdentityKeys};
use cove_client::Client;

use crate::args::IdentityCommand;
use crate::output::{self, Table};
use crate::report::CliError;

pub async fn run(client: &Client, command: IdentityCommand, json: bool) -> Result<(), CliError> {
    match command {
        IdentityCommand::Token {
            sandbox,
            audience,
            expires,
        } => {
            let create = CreateIdentityToken {
                audience,
                expires_s: expires,
            };
            let made = client.identity_token(&sandbox, &create).await?;
            match json {
                true => output::json(&made),
                false => output::line(&made.token),
            }
        }
        IdentityCommand::Issuer => {
            let issuer = client.identity_issuer().await?;
            let keys = client.identity_keys().await?;
            if json {
                return output::json(&serde_json::json!({
                    "issuer": issuer.issuer, "jwks_uri": issuer.jwks_uri, "keys": keys.keys,
                }));
            }
            output::line(&issuer.issuer)?;
            table(&keys)
        }
        IdentityCommand::Rotate { at_once } => {
            let keys = client
                .rotate_identity_keys(&RotateIdentityKeys { at_once })
                .await?;
            match json {
                true => output::json(&keys),
                false => table(&keys),
            }
        }
    }
}

fn table(keys: &IdentityKeys) -> Result<(), CliError> {
    let mut table = Table::new(&["KEY", "ALGORITHM"]);
    for key in &keys.keys {
        table.row(vec![key.kid.clone(), key.alg.clone()]);
    }
    table.print()
}
