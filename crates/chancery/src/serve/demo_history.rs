//! The demo firm's past: an account of its own with usage in the last three closed months and in this one, and with
//! invoices that are overdue, credited, paid and open. The demo's printed key bills another account, which starts unused.
//! Everything is written as at run time: settled rows, and changes with a permit, dated back. `chancery verify` checks it.

use super::people::SharedDeps;
use crate::config::Config;
use anyhow::{anyhow, bail};
use chancery_domain::{
    Account, AccountId, AccountName, ApiKey, CreditAmount, Credited, Day, InvoiceNumber, InvoiceTerms, KeyId,
    KeyLimits, Month, Nanos, Prices, Principal, RateLimits, RequestId, StopReason, TokenPrice, UnixMillis,
    UsageRow,
};
use chancery_invoicing::{PdfFonts, pdf, printable_pdf};
use chancery_policy::{AuthzAction, AuthzRequest, FirmResource, ManageAccounts, ManageInvoices, Permit};
use chancery_store::{
    AccountChange, AccountSubject, ActivityBatch, BillingChange, CreditRequest, IssueOutcome, IssueRequest,
    KeyUse, NewAccount, NewKey, PaymentChange, RenderInvoice,
};
use tokio::task::JoinSet;

/// The name of the account with a past.
pub const ACCOUNT: &str = "Harbor Lane Legal";
const ADDRESS: &str = "Harbor Lane Legal LLP\n12 Harbor Lane\nBoston, MA 02110";
const EMAIL: &str = "accounts@harborlane.example";
const LIMITS: RateLimits = RateLimits { requests_per_min: 600, tokens_per_min: 2_000_000 };
/// A second model, so that usage by model shows more than one line. Prices per million tokens.
const LARGE_MODEL: (&str, &str, &str) = ("qwen3-32b", "1.20", "4.80");
const CLOSED_MONTHS: usize = 3;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

/// The regular requests of one key.
struct Workload<'a> {
    key: KeyId,
    model: &'a str,
    prices: Prices,
    requests_per_day: [u32; 2],
    input_tokens: [u32; 2],
    output_tokens: [u32; 2],
}

/// Does nothing if an earlier start has issued invoices. Completes a start that was interrupted before the first invoice.
pub async fn prepare(deps: &SharedDeps, config: &Config) -> anyhow::Result<()> {
    let store = deps.store.as_ref();
    if !store.issued_invoices.last_invoice_numbers().await?.is_empty() {
        return Ok(());
    }
    let now = deps.clock.now();
    let months = closed_months(now);
    let history = History { deps, terms: config.invoice_terms(), fonts: config.billing.pdf_fonts()? };
    let begin = months[0].first_day();
    let name: AccountName = ACCOUNT.parse()?;
    let accounts = store.account_lookup.list_accounts().await?;
    let account = match accounts.into_iter().find(|account| account.name == name) {
        Some(account) => account,
        None => history.create_account(name, begin.start()).await?,
    };
    let [input, output] = [LARGE_MODEL.1, LARGE_MODEL.2].map(str::parse::<TokenPrice>);
    let website = history.key(account.id, "Website chat", begin.start()).await?;
    let review = history.key(account.id, "Contract review", begin.start()).await?;
    let (model, large_prices) = (&config.models[0], Prices::new(input?, output?)?);
    let workloads = [
        Workload {
            key: website,
            model: &model.name,
            prices: model.prices,
            requests_per_day: [3, 8],
            input_tokens: [300, 1_900],
            output_tokens: [60, 420],
        },
        Workload {
            key: review,
            model: LARGE_MODEL.0,
            prices: large_prices,
            requests_per_day: [3, 9],
            input_tokens: [9_000, 30_000],
            output_tokens: [500, 2_400],
        },
    ];
    let today = Day::containing(now);
    let mut month = months[0];
    while month.first_day() < today {
        if store.issued_invoices.month_usage(account.id, month).await?.is_empty() {
            let until = month.next().first_day().min(today);
            history.settle(account.id, &workloads, month.first_day(), until).await?;
        }
        month = month.next();
    }
    let last_use = UnixMillis(today.start().0 - 3 * HOUR_MS);
    let key_uses = workloads.each_ref().map(|workload| KeyUse { key: workload.key, at: last_use });
    store.activity.record_activity(ActivityBatch { key_uses: &key_uses, ..ActivityBatch::default() }).await?;
    history.issue_invoices(account.id, months, now).await
}

/// The last months that can be invoiced, oldest first.
fn closed_months(now: UnixMillis) -> [Month; CLOSED_MONTHS] {
    let mut last = Month::containing(now).previous();
    if last.invoiceable_from() > now {
        last = last.previous();
    }
    [last.previous().previous(), last.previous(), last]
}

struct History<'a> {
    deps: &'a SharedDeps,
    terms: InvoiceTerms,
    fonts: PdfFonts,
}

impl History<'_> {
    /// A permit of the command line, dated back.
    fn permit<A: AuthzAction<Resource = FirmResource>>(&self, at: UnixMillis) -> anyhow::Result<Permit<A>> {
        let request_id = RequestId::new(at, self.deps.randomness.as_ref());
        let request = AuthzRequest { by: Principal::Operator, at, request_id };
        let denied = |_| anyhow!("denied by policies/portal.cedar: command line, history of the demo");
        self.deps.policy.decide::<A>(&request, FirmResource).map_err(denied)
    }

    async fn create_account(&self, name: AccountName, at: UnixMillis) -> anyhow::Result<Account> {
        let new = NewAccount { name, limits: LIMITS, created_at: at };
        let account = match self.change(AccountChange::CreateAccount(new), at).await? {
            AccountSubject::Account(account) => account,
            AccountSubject::Key(key) => bail!("internal: key {} instead of an account", key.prefix),
        };
        let change = BillingChange { address: Some(ADDRESS.parse()?), email: Some(EMAIL.parse()?) };
        self.change(AccountChange::SetBilling { account: account.id, change }, at).await?;
        Ok(account)
    }

    /// Finds or creates the key with this label. Nobody needs the key itself, so only its hash survives.
    async fn key(&self, account: AccountId, label: &str, at: UnixMillis) -> anyhow::Result<KeyId> {
        let keys = self.deps.store.account_lookup.list_keys().await?;
        let mut keys = keys.iter().map(|entry| &entry.key);
        if let Some(found) = keys.find(|key| key.account == Some(account) && key.label == label) {
            return Ok(found.id);
        }
        let key = ApiKey::generate(self.deps.randomness.as_ref());
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: label.to_owned(),
            account: Some(account),
            created_at: at,
            limits: KeyLimits::default(),
        };
        match self.change(AccountChange::CreateKey(new), at).await? {
            AccountSubject::Key(key) => Ok(key.id),
            AccountSubject::Account(account) => bail!("internal: account {} instead of a key", account.name),
        }
    }

    async fn change(&self, change: AccountChange, at: UnixMillis) -> anyhow::Result<AccountSubject> {
        let permit = self.permit::<ManageAccounts>(at)?;
        Ok(self.deps.store.accounts.change_account(permit, change).await?.subject)
    }

    /// Settles the requests of these days at once, so that they share few commits.
    async fn settle(
        &self,
        account: AccountId,
        workloads: &[Workload<'_>],
        from: Day,
        until: Day,
    ) -> anyhow::Result<()> {
        let mut settling = JoinSet::new();
        for day in (from.0..until.0).map(Day) {
            for workload in workloads {
                for row in self.rows(account, workload, day)? {
                    let ledger = self.deps.store.ledger.clone();
                    settling.spawn(async move { ledger.settle(row.into()).await });
                }
            }
        }
        while let Some(settled) = settling.join_next().await {
            settled??;
        }
        Ok(())
    }

    fn rows(&self, account: AccountId, workload: &Workload<'_>, day: Day) -> anyhow::Result<Vec<UsageRow>> {
        let day_and_key = (u64::from(day.0.unsigned_abs()) << 32) ^ (workload.key.0.unsigned_abs() << 16);
        let seed = |number: u32| day_and_key ^ u64::from(number);
        let requests = match is_weekend(day) {
            true => 1,
            false => between(seed(0), workload.requests_per_day),
        };
        let row = |number: u32| -> anyhow::Result<UsageRow> {
            // Office hours in New York.
            let second = between(seed(100 * number + 1), [13 * 3_600, 22 * 3_600]);
            let at = UnixMillis(day.start().0 + i64::from(second) * 1_000);
            let row = UsageRow {
                request_id: RequestId::new(at, self.deps.randomness.as_ref()),
                account,
                key: workload.key,
                model: workload.model.to_owned(),
                input_tokens: between(seed(100 * number + 2), workload.input_tokens),
                cached_input_tokens: 0,
                output_tokens: between(seed(100 * number + 3), workload.output_tokens),
                prices: workload.prices,
                cost: Nanos(0),
                at,
                stop_reason: StopReason::Complete,
            };
            Ok(UsageRow { cost: row.recomputed_cost()?, ..row })
        };
        (1..=requests).map(row).collect()
    }

    /// The first invoice is overdue; the second was credited in full, issued again and paid; the third is open.
    async fn issue_invoices(
        &self,
        account: AccountId,
        [first, second, third]: [Month; CLOSED_MONTHS],
        now: UnixMillis,
    ) -> anyhow::Result<()> {
        let morning = |month: Month| UnixMillis((month.invoiceable_from().0 + 12 * HOUR_MS).min(now.0));
        let days_later = |at: UnixMillis, days: i64| UnixMillis(at.0 + days * DAY_MS);
        self.issue(account, first, morning(first)).await?;
        let wrong = self.issue(account, second, morning(second)).await?;
        let corrected_at = days_later(morning(second), 2);
        let credit = CreditRequest {
            invoice: wrong,
            amount: CreditAmount::Full,
            expected_credited: Credited::default(),
            reason: "Issued without the purchase order number".to_owned(),
            terms: self.terms.clone(),
        };
        let permit = self.permit::<ManageInvoices>(corrected_at)?;
        let invoices = &self.deps.store.invoices;
        invoices.credit_invoice(permit, &credit, self.render()).await?;
        let corrected = self.issue(account, second, UnixMillis(corrected_at.0 + 60_000)).await?;
        let permit = self.permit::<ManageInvoices>(days_later(corrected_at, 16))?;
        invoices.record_payment(permit, corrected, PaymentChange::Paid).await?;
        self.issue(account, third, morning(third)).await?;
        Ok(())
    }

    async fn issue(&self, account: AccountId, month: Month, at: UnixMillis) -> anyhow::Result<InvoiceNumber> {
        let permit = self.permit::<ManageInvoices>(at)?;
        let request = IssueRequest { account, month, terms: self.terms.clone() };
        let issued = self.deps.store.invoices.issue_invoice(permit, &request, self.render()).await?;
        Ok(match issued {
            IssueOutcome::New(number) | IssueOutcome::AlreadyIssued(number) => number,
        })
    }

    /// A firm's name that no font can print must not prevent the start of a demo, so then replacement characters are printed.
    fn render(&self) -> RenderInvoice {
        let fonts = self.fonts.clone();
        Box::new(move |invoice| printable_pdf(invoice, &fonts).or_else(|_| pdf(invoice)))
    }
}

/// Day 0 is a Thursday.
fn is_weekend(day: Day) -> bool {
    matches!(day.0.rem_euclid(7), 2 | 3)
}

/// A number within the range, both ends included, that looks random and is the same for the same seed (SplitMix64).
fn between(seed: u64, [low, high]: [u32; 2]) -> u32 {
    let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let width = u64::from(high - low) + 1;
    low + u32::try_from((mixed ^ (mixed >> 31)) % width).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_invoices_only_months_that_can_be_invoiced() {
        for (now, expected) in [
            ("2026-11-17", "2026-08 2026-09 2026-10"),
            ("2026-03-01", "2025-11 2025-12 2026-01"),
            ("2026-03-02", "2025-12 2026-01 2026-02"),
        ] {
            let now = now.parse::<Day>().unwrap().start();
            let months = closed_months(now).map(|month| month.to_string()).join(" ");
            assert_eq!(months, expected);
            assert!(closed_months(now).iter().all(|month| month.invoiceable_from() <= now));
        }
    }

    #[test]
    fn spread_numbers_stay_within_their_range() {
        let numbers: Vec<u32> = (0..1_000).map(|seed| between(seed, [3, 8])).collect();
        assert!((3..=8).all(|number| numbers.contains(&number)));
        assert!(numbers.iter().all(|number| (3..=8).contains(number)));
    }

    #[test]
    fn saturday_and_sunday_are_the_weekend() {
        let day = |text: &str| text.parse::<Day>().unwrap();
        assert!(is_weekend(day("2026-11-14")) && is_weekend(day("2026-11-15")));
        assert!(!is_weekend(day("2026-11-13")) && !is_weekend(day("2026-11-16")));
    }
}
