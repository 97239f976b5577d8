//! Accounts with usage in past months and in the current one. The clock is set to November 2026, so October can be
//! invoiced.

use super::firm::Firm;
use chancery_domain::{
    AccountId, ApiKey, Day, InvoiceNumber, KeyId, KeyLimits, Nanos, OsRandomness, Prices, Principal,
    RateLimits, RequestId, Role, StopReason, TokenPrice, UnixMillis, UsageRow,
};
use chancery_policy::{AuthzRequest, FirmResource, ManageAccounts, ManageInvoices};
use chancery_store::{AccountChange, BillingChange, IssueOutcome, IssueRequest, NewAccount, NewKey};

#[derive(Clone, Copy, Debug)]
pub(super) struct BilledAccount {
    pub(super) account: AccountId,
    key: KeyId,
}

/// Input and output tokens.
pub(super) const TOKENS: (u32, u32) = (1_284_310, 96_204);

impl Firm {
    pub(super) async fn payer(&self, name: &str) -> BilledAccount {
        let store = &self.portal.store;
        let limits = RateLimits { requests_per_min: 600, tokens_per_min: 400_000 };
        let new = NewAccount { name: name.parse().unwrap(), limits, created_at: UnixMillis(0) };
        let account = store.create_account(new).await.unwrap().id;
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: "first".to_owned(),
            account: Some(account),
            created_at: UnixMillis(0),
            limits: KeyLimits::default(),
        };
        BilledAccount { account, key: store.create_key(new).await.unwrap().id }
    }

    /// Settles a request at 0.10 and 0.40 per million tokens.
    pub(super) async fn settle(
        &self,
        payer: BilledAccount,
        day: &str,
        model: &str,
        (input, output): (u32, u32),
    ) {
        let portal = &self.portal.portal;
        let at = UnixMillis(day.parse::<Day>().unwrap().start().0 + 3_600_000);
        let nanos = TokenPrice::from_nanos_per_token;
        let mut row = UsageRow {
            request_id: RequestId::new(at, portal.randomness.as_ref()),
            account: payer.account,
            key: payer.key,
            model: model.to_owned(),
            input_tokens: input,
            cached_input_tokens: 0,
            output_tokens: output,
            prices: Prices { input: nanos(100), cached_input: nanos(100), output: nanos(400) },
            cost: Nanos(0),
            at,
            stop_reason: StopReason::Complete,
        };
        row.cost = row.recomputed_cost().unwrap();
        self.portal.store.ledger.settle(row.into()).await.unwrap();
    }

    /// An account with a request in the month.
    pub(super) async fn used(&self, name: &str, month: &str) -> BilledAccount {
        let payer = self.payer(name).await;
        self.settle(payer, &format!("{month}-14"), "smollm2-135m", TOKENS).await;
        payer
    }

    /// An invoice as Ruth issues it.
    pub(super) async fn issued(&self, payer: BilledAccount, month: &str) -> InvoiceNumber {
        let portal = &self.portal.portal;
        let permit = portal.policy.decide::<ManageInvoices>(&self.authz_request(), FirmResource).unwrap();
        let terms = portal.settings.invoice_terms.clone();
        let order = IssueRequest { account: payer.account, month: month.parse().unwrap(), terms };
        let render = Box::new(chancery_invoicing::pdf);
        match portal.store.invoices.issue_invoice(permit, &order, render).await.unwrap() {
            IssueOutcome::New(number) => number,
            IssueOutcome::AlreadyIssued(number) => panic!("{number} was there already"),
        }
    }

    pub(super) async fn bill_to(&self, payer: BilledAccount, address: &str, email: &str) {
        let portal = &self.portal.portal;
        let permit = portal.policy.decide::<ManageAccounts>(&self.authz_request(), FirmResource).unwrap();
        let change = BillingChange { address: address.parse().ok(), email: email.parse().ok() };
        let change = AccountChange::SetBilling { account: payer.account, change };
        portal.store.accounts.change_account(permit, change).await.unwrap();
    }

    fn authz_request(&self) -> AuthzRequest {
        let portal = &self.portal.portal;
        AuthzRequest {
            by: Principal::Person { id: self.ruth.id, role: Role::Partner },
            at: portal.clock.now(),
            request_id: RequestId::new(portal.clock.now(), portal.randomness.as_ref()),
        }
    }
}
