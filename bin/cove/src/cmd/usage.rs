//! `cove usage`: what was used, by sandbox and by day.

use std::collections::HashMap;

use cove_api::sandbox::ListSandboxes;
use cove_api::secret::{BudgetScope, SecretBudget};
use cove_api::tenancy::{Usage, UsageFigures, UsageQuery};
use cove_api::{ErrorCode, PageQuery, Timestamp};
use cove_client::{Client, ClientError};
use serde_json::json;
use time::{Date, OffsetDateTime};

use super::secret;
use crate::args::UsageArgs;
use crate::output::{self, Table};
use crate::report::CliError;
use crate::units;

/// What a sandbox is called that is not there any more.
const DELETED: &str = "(deleted)";

pub async fn run(client: &Client, args: &UsageArgs, json: bool) -> Result<(), CliError> {
    let today = OffsetDateTime::now_utc().date();
    let days = args.days.map_or_else(Vec::new, |days| last(today, days));
    let mut usage = period(client, args, days.first().copied()).await?;
    usage
        .items
        .sort_by(|a, b| b.figures.cpu_seconds.total_cmp(&a.figures.cpu_seconds));
    let hidden = args
        .top
        .map_or(0, |top| usage.items.len().saturating_sub(top));
    usage.items.truncate(args.top.unwrap_or(usize::MAX));
    let mut by_day = Vec::new();
    for day in days {
        let query = UsageQuery {
            limit: Some(1),
            from: Some(midnight(day)),
            to: day.next_day().map(midnight),
            ..UsageQuery::default()
        };
        by_day.push((day, client.usage(&query).await?.total));
    }
    let names = names(client).await?;
    let budgets = match args.sandbox {
        Some(_) => Vec::new(),
        None => budgets(client).await?,
    };
    if json {
        return output::json(&as_json(&usage, &by_day, &names, &budgets));
    }
    if !by_day.is_empty() {
        let mut table = headed("DAY", None);
        for (day, figures) in &by_day {
            table.row([vec![day.to_string()], cells(figures)].concat());
        }
        table.print()?;
        output::line("")?;
    }
    let mut table = headed("SANDBOX", Some("NAME"));
    for item in &usage.items {
        let name = names.get(&item.sandbox).map_or(DELETED, String::as_str);
        table.row(
            [
                vec![item.sandbox.clone(), name.to_owned()],
                cells(&item.figures),
            ]
            .concat(),
        );
    }
    if hidden > 0 {
        table.row([format!("{hidden} more")]);
    }
    table.row([vec!["total".to_owned(), String::new()], cells(&usage.total)].concat());
    table.print()?;
    if budgets.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let mut table = Table::new(&["SECRET", "UNIT", "PER", "USED", "LEFT", "RENEWS"]);
    for (secret, budget) in &budgets {
        let used = budget.used.unwrap_or(0);
        table.row([
            secret.clone(),
            budget.of.as_str().to_owned(),
            budget.per.as_str().to_owned(),
            used.to_string(),
            budget.max.saturating_sub(used).to_string(),
            budget
                .renews_at
                .map_or_else(|| "never".to_owned(), |at| at.to_string()),
        ]);
    }
    table.print()
}

/// What sandboxes used of the budgets that they share. A key that may not list secrets sees none.
async fn budgets(client: &Client) -> Result<Vec<(String, SecretBudget)>, CliError> {
    let secrets = match client.secrets(&PageQuery::default()).await {
        Err(ClientError::Refused { detail, .. }) if detail.code == ErrorCode::Forbidden => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
        Ok(_) => secret::all(client).await?,
    };
    let each = secrets.into_iter().flat_map(|secret| {
        let name = secret.name;
        let shared = secret.budgets.into_iter();
        shared
            .filter(|it| it.per != BudgetScope::Sandbox)
            .map(move |it| (name.clone(), it))
    });
    Ok(each.collect())
}

/// The last days up to today, oldest first.
fn last(today: Date, days: u32) -> Vec<Date> {
    let mut all: Vec<Date> = std::iter::successors(Some(today), |day| day.previous_day())
        .take(days as usize)
        .collect();
    all.reverse();
    all
}

fn midnight(day: Date) -> Timestamp {
    Timestamp(day.midnight().assume_utc())
}

/// All pages of a period.
async fn period(client: &Client, args: &UsageArgs, from: Option<Date>) -> Result<Usage, CliError> {
    let mut query = UsageQuery {
        sandbox: args.sandbox.clone(),
        from: from.map(midnight),
        ..UsageQuery::default()
    };
    let mut usage = client.usage(&query).await?;
    while let Some(cursor) = usage.next_cursor.take() {
        query.cursor = Some(cursor);
        let more = client.usage(&query).await?;
        usage.items.extend(more.items);
        usage.next_cursor = more.next_cursor;
    }
    Ok(usage)
}

/// Names of the sandboxes that exist, by id; empty for one without a name.
async fn names(client: &Client) -> Result<HashMap<String, String>, CliError> {
    let mut query = ListSandboxes {
        limit: Some(cove_limits::PAGE_MAX),
        ..ListSandboxes::default()
    };
    let mut names = HashMap::new();
    loop {
        let page = client.list_sandboxes(&query).await?;
        let found = page.items.into_iter();
        names.extend(found.map(|sandbox| (sandbox.id, sandbox.name.unwrap_or_default())));
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(names),
        }
    }
}

fn headed(first: &str, second: Option<&str>) -> Table {
    let figures = ["CPU s", "MEMORY GB·s", "DISK GB·h", "EGRESS"];
    let headings: Vec<&str> = [first].into_iter().chain(second).chain(figures).collect();
    Table::new(&headings)
}

fn cells(figures: &UsageFigures) -> Vec<String> {
    vec![
        format!("{:.2}", figures.cpu_seconds),
        format!("{:.2}", figures.memory_gb_seconds),
        format!("{:.4}", figures.disk_gb_hours),
        units::bytes(figures.egress_bytes),
    ]
}

fn as_json(
    usage: &Usage,
    days: &[(Date, UsageFigures)],
    names: &HashMap<String, String>,
    budgets: &[(String, SecretBudget)],
) -> serde_json::Value {
    let items: Vec<_> = usage
        .items
        .iter()
        .map(|item| {
            let mut value = json!(item);
            value["name"] = json!(names.get(&item.sandbox).filter(|name| !name.is_empty()));
            value["deleted"] = json!(!names.contains_key(&item.sandbox));
            value
        })
        .collect();
    let mut all = json!({ "total": usage.total, "items": items });
    if !days.is_empty() {
        let days: Vec<_> = days
            .iter()
            .map(|(day, figures)| json!({ "day": day.to_string(), "total": figures }))
            .collect();
        all["days"] = json!(days);
    }
    if !budgets.is_empty() {
        let budgets = budgets.iter().map(|(secret, budget)| {
            let mut value = json!(budget);
            value["secret"] = json!(secret);
            value
        });
        all["budgets"] = budgets.collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Month;

    #[test]
    fn the_last_days_end_today() {
        let today = Date::from_calendar_date(2026, Month::March, 1).expect("a date");
        let days: Vec<String> = last(today, 2).iter().map(ToString::to_string).collect();
        assert_eq!(days, ["2026-02-28", "2026-03-01"]);
    }
}
