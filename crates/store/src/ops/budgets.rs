//! What budgets of secrets have left. What a host was given counts as used, whatever becomes of the host.
//!
//! A row is what one host took of one budget; only that host can give it back. `sandbox` is empty for budgets that
//! sandboxes share, and `day` is 0 for those that never renew.

use cove_model::secret::{BudgetScope, BudgetUnit, SecretLimit, block};
use cove_model::{HostId, OrgId, SecretId};

use crate::sql::{Op, Row, Tx, values};
use crate::{BudgetGiven, BudgetReturned, BudgetSpent, BudgetTaken, StoreError};

/// Days of one secret that are kept. By number and not by age: a clock that jumps removes none of them.
const DAYS_KEPT: i64 = 40;
const SHARED: &str = "";
const FOR_EVER: i64 = 0;

/// Days since 1970, which begin at 1: 0 stands for no day.
fn of_day(day: u32) -> i64 {
    i64::from(day) + 1
}

/// The limits that a want is held to, with the rows that count it.
fn rows(taken: &BudgetTaken) -> Vec<(&str, i64, Option<u64>)> {
    let max = |per: BudgetScope| {
        let mut limits = taken.limits.iter();
        let found = limits.find(|it: &&SecretLimit| it.of == taken.of && it.per == per);
        found.map(|it| it.max)
    };
    match &taken.sandbox {
        Some(sandbox) => vec![(sandbox.as_str(), FOR_EVER, max(BudgetScope::Sandbox))],
        None => vec![
            (SHARED, of_day(taken.day), max(BudgetScope::Day)),
            (SHARED, FOR_EVER, max(BudgetScope::Organisation)),
        ],
    }
}

pub struct Take(pub BudgetTaken);

impl Op for Take {
    type Out = BudgetGiven;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<BudgetGiven, StoreError> {
        let want = &self.0;
        let of = want.of.as_str();
        // Two at once would both see what is left: they wait for each other at the secret's row.
        let locked = tx
            .execute(
                "UPDATE secrets SET uses = uses WHERE org = ?1 AND id = ?2",
                values![&want.org, &want.secret],
            )
            .await?;
        if locked == 0 {
            return Err(StoreError::NotFound { what: "the secret" });
        }
        let (mut left, mut renews) = (u64::MAX, false);
        for (sandbox, day, max) in rows(want) {
            let Some(max) = max else {
                continue;
            };
            let sum = tx
                .query(
                    "SELECT CAST(COALESCE(SUM(taken), 0) AS BIGINT) FROM secret_spend \
                     WHERE org = ?1 AND secret = ?2 AND unit = ?3 AND sandbox = ?4 AND day = ?5",
                    values![&want.org, &want.secret, of, sandbox, day],
                )
                .await?;
            let taken = sum.first().map_or(Ok(0), |row| row.count(0))?;
            let rest = max.saturating_sub(taken);
            if rest <= left {
                (left, renews) = (rest, day != FOR_EVER);
            }
        }
        let given = block(left, want.need, want.more);
        for (sandbox, day, _) in rows(want) {
            tx.execute(
                "INSERT INTO secret_spend (org, secret, unit, sandbox, day, host, taken) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (secret, unit, sandbox, day, host) \
                 DO UPDATE SET taken = secret_spend.taken + excluded.taken",
                values![&want.org, &want.secret, of, sandbox, day, &want.host, given],
            )
            .await?;
        }
        if want.sandbox.is_none() {
            tx.execute(
                "DELETE FROM secret_spend WHERE org = ?1 AND secret = ?2 AND day > 0 AND day <> ?3 \
                 AND day NOT IN (SELECT DISTINCT day FROM secret_spend WHERE org = ?1 \
                 AND secret = ?2 AND day > 0 ORDER BY day DESC LIMIT ?4)",
                values![&want.org, &want.secret, of_day(want.day), DAYS_KEPT],
            )
            .await?;
        }
        Ok(BudgetGiven {
            given,
            left: left - given,
            renews,
        })
    }
}

/// No more than the host took.
pub struct Return(pub HostId, pub Vec<BudgetReturned>);

impl Op for Return {
    type Out = ();
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<(), StoreError> {
        for back in &self.1 {
            let rows: &[(&str, i64)] = match &back.sandbox {
                Some(sandbox) => &[(sandbox.as_str(), FOR_EVER)],
                None => &[(SHARED, of_day(back.day)), (SHARED, FOR_EVER)],
            };
            for (sandbox, day) in rows {
                tx.execute(
                    "UPDATE secret_spend SET taken = CASE WHEN taken > ?7 THEN taken - ?7 ELSE 0 END \
                     WHERE org = ?1 AND unit = ?3 AND sandbox = ?4 AND day = ?5 AND host = ?6 \
                     AND secret IN (SELECT id FROM secrets WHERE org = ?1 AND name = ?2)",
                    values![
                        &back.org,
                        back.secret.as_str(),
                        back.of.as_str(),
                        *sandbox,
                        *day,
                        &self.0,
                        back.amount,
                    ],
                )
                .await?;
            }
        }
        Ok(())
    }
}

/// What was used of the organisation's budgets, those of single sandboxes left out: on this day and in all.
pub struct Spent(pub OrgId, pub u32);

impl Op for Spent {
    type Out = Vec<BudgetSpent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let found = tx
            .query(
                "SELECT secret, unit, sandbox, day, CAST(SUM(taken) AS BIGINT) FROM secret_spend \
                 WHERE org = ?1 AND sandbox = '' AND day IN (0, ?2) \
                 GROUP BY secret, unit, sandbox, day",
                values![&self.0, of_day(self.1)],
            )
            .await?;
        found.iter().map(spent).collect()
    }
}

/// What single sandboxes used of a secret's budgets.
pub struct SpentBySandbox(pub OrgId, pub SecretId);

impl Op for SpentBySandbox {
    type Out = Vec<BudgetSpent>;
    async fn run<T: Tx>(&self, tx: &mut T) -> Result<Self::Out, StoreError> {
        let found = tx
            .query(
                "SELECT secret, unit, sandbox, day, CAST(SUM(taken) AS BIGINT) FROM secret_spend \
                 WHERE org = ?1 AND secret = ?2 AND sandbox <> '' \
                 GROUP BY secret, unit, sandbox, day",
                values![&self.0, &self.1],
            )
            .await?;
        found.iter().map(spent).collect()
    }
}

fn spent(row: &Row) -> Result<BudgetSpent, StoreError> {
    let (unit, sandbox) = (row.text(1)?, row.text(2)?);
    let of = BudgetUnit::ALL.into_iter().find(|it| it.as_str() == unit);
    let per = match (sandbox, row.int(3)?) {
        (SHARED, FOR_EVER) => BudgetScope::Organisation,
        (SHARED, _) => BudgetScope::Day,
        _ => BudgetScope::Sandbox,
    };
    Ok(BudgetSpent {
        secret: row.parse(0, "secret id")?,
        of: of.ok_or(StoreError::Corrupt {
            what: "unit of a budget",
        })?,
        per,
        sandbox: match sandbox {
            SHARED => None,
            _ => Some(row.parse(2, "sandbox id")?),
        },
        used: row.count(4)?,
    })
}
