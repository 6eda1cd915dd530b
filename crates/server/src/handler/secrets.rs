//! Secrets: what goes in and what is known of them, never what they are.

use axum::extract::State;
use axum::http::StatusCode;
use cove_api::secret::{
    BudgetScope, RemovedSecret, RotatedSecretKeys, Secret, SecretBudget, SecretLimit, SecretUser,
    SetSecret,
};
use cove_api::{NoQuery, Page, PageQuery, Timestamp};
use cove_control::Zeroizing;
use cove_model::secret::{SecretBinding, SecretHost};

use super::{Answer, ok, page_request, with_status};
use crate::convert;
use crate::extract::{Caller, Json, Names, Query};
use crate::failure::Failure;
use crate::state::App;

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<PageQuery>,
) -> Answer {
    let page = page_request(query)?;
    let secrets = app.control.list_secrets(&caller.principal, &page).await?;
    let org = &caller.principal.org;
    let budgets = app.control.secret_budgets(org, &secrets.items).await?;
    let mut budgets = budgets.into_iter();
    ok(convert::page(secrets, |secret| {
        shown(secret, budgets.next().unwrap_or_default())
    }))
}

pub async fn set(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Json(body): Json<SetSecret>,
) -> Answer {
    let value = Zeroizing::new(body.value);
    let invalid = |error: cove_model::SpecError| Failure::invalid(error.to_string());
    let hosts = body.hosts.iter().map(|text| text.parse::<SecretHost>());
    let binding = SecretBinding {
        hosts: hosts.collect::<Result<_, _>>().map_err(invalid)?,
        usage: body.usage.parse().map_err(invalid)?,
        ask: body.ask,
        limits: body.limits,
    };
    let request = cove_control::SetSecret {
        name: body.name,
        value,
        binding,
    };
    let changed = app.control.set_secret(&caller.principal, request).await?;
    let secrets = [changed.done];
    let org = &caller.principal.org;
    let budgets = app.control.secret_budgets(org, &secrets).await?;
    let [secret] = secrets;
    let budgets = budgets.into_iter().next().unwrap_or_default();
    let shown = Secret {
        hosts_pending: changed.not_told.iter().map(ToString::to_string).collect(),
        ..shown(secret, budgets)
    };
    with_status(StatusCode::CREATED, shown)
}

pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(name): Names<String>,
) -> Answer {
    let removed = app.control.remove_secret(&caller.principal, &name).await?;
    ok(RemovedSecret {
        name,
        hosts_pending: removed.not_told.iter().map(ToString::to_string).collect(),
    })
}

pub async fn uses(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
    Names(name): Names<String>,
) -> Answer {
    let uses = app.control.secret_uses(&caller.principal, &name).await?;
    let mut budgets = app
        .control
        .sandbox_budgets(&caller.principal, &name)
        .await?;
    let mut user = |used: cove_control::SecretUsage| SecretUser {
        sandbox: used.sandbox.to_string(),
        uses: used.count,
        budgets: budgets
            .remove(&used.sandbox)
            .unwrap_or_default()
            .into_iter()
            .map(budget)
            .collect(),
        last_used_at: used.last_used_at.into(),
    };
    ok(Page {
        items: uses.into_iter().map(&mut user).collect(),
        next_cursor: None,
    })
}

pub async fn rotate(
    State(app): State<App>,
    caller: Caller,
    Query(NoQuery {}): Query<NoQuery>,
) -> Answer {
    let organisations = app.control.rotate_secret_keys(&caller.principal).await?;
    ok(RotatedSecretKeys { organisations })
}

fn budget(budget: cove_control::SecretBudget) -> SecretBudget {
    let SecretLimit { of, per, max } = budget.limit;
    SecretBudget {
        of,
        per,
        max,
        used: Some(budget.used),
        renews_at: budget.renews_at.map(Timestamp),
    }
}

fn shown(secret: cove_control::SecretRecord, budgets: Vec<cove_control::SecretBudget>) -> Secret {
    let budgets = budgets.into_iter().map(|it| SecretBudget {
        // Each sandbox has its own: `uses` shows them.
        used: (it.limit.per != BudgetScope::Sandbox).then_some(it.used),
        ..budget(it)
    });
    Secret {
        id: secret.id.to_string(),
        name: secret.name,
        version: secret.version,
        hosts: secret
            .binding
            .hosts
            .iter()
            .map(ToString::to_string)
            .collect(),
        usage: secret.binding.usage.to_string(),
        ask: secret.binding.ask,
        budgets: budgets.collect(),
        created_at: secret.created_at.into(),
        updated_at: secret.updated_at.into(),
        last_used_at: secret.last_used_at.map(Timestamp),
        uses: secret.uses,
        hosts_pending: Vec::new(),
    }
}
