//! Accounts of a firm that have used something, in months that have ended and in the one that runs. The desk's clock stands in
//! November 2026, so October can be invoiced.

use super::firm::Firm;
use chancery_domain::{
    AccountId, ApiKey, Asker, Day, HowEnded, InvoiceNumber, KeyId, Nanos, OsRandomness, Prices, RateLimits,
    RequestId, Role, TokenPrice, UnixMillis, UsageRow,
};
use chancery_policy::{Asking, ManageAccounts, ManageInvoices, TheFirm};
use chancery_store::{AccountDeed, BillingChange, IssueOrder, Issued, NewAccount, NewKey};

#[derive(Clone, Copy, Debug)]
pub(super) struct Payer {
    pub(super) account: AccountId,
    key: KeyId,
}

/// So many tokens in and out.
pub(super) const TOKENS: (u32, u32) = (1_284_310, 96_204);

impl Firm {
    pub(super) async fn payer(&self, name: &str) -> Payer {
        let store = &self.desk.store;
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
        };
        Payer { account, key: store.create_key(new).await.unwrap().id }
    }

    /// One request, at 0.10 and 0.40 per million.
    pub(super) async fn settle(&self, payer: Payer, day: &str, model: &str, (input, output): (u32, u32)) {
        let portal = &self.desk.portal;
        let at = UnixMillis(day.parse::<Day>().unwrap().start().0 + 3_600_000);
        let nanos = TokenPrice::from_nanos_per_token;
        let mut row = UsageRow {
            request_id: RequestId::new(at, portal.randomness.as_ref()),
            account: payer.account,
            key: payer.key,
            model: model.to_owned(),
            input_tokens: input,
            output_tokens: output,
            prices: Prices { input: nanos(100), output: nanos(400) },
            cost: Nanos(0),
            at,
            ended: HowEnded::Complete,
        };
        row.cost = row.recomputed_cost().unwrap();
        self.desk.store.ledger.settle(row.into()).await.unwrap();
    }

    /// An account with a request in the month.
    pub(super) async fn used(&self, name: &str, month: &str) -> Payer {
        let payer = self.payer(name).await;
        self.settle(payer, &format!("{month}-14"), "smollm2-135m", TOKENS).await;
        payer
    }

    /// An invoice as Ruth issues it.
    pub(super) async fn issued(&self, payer: Payer, month: &str) -> InvoiceNumber {
        let portal = &self.desk.portal;
        let permit = portal.policy.decide::<ManageInvoices>(&self.asking(), TheFirm).unwrap();
        let terms = portal.settings.invoice_terms.clone();
        let order = IssueOrder { account: payer.account, month: month.parse().unwrap(), terms };
        match portal.store.invoices.issue_invoice(permit, &order, &chancery_invoicing::pdf).await.unwrap() {
            Issued::New(number) => number,
            Issued::Already(number) => panic!("{number} was there already"),
        }
    }

    pub(super) async fn bill_to(&self, payer: Payer, address: &str, email: &str) {
        let portal = &self.desk.portal;
        let permit = portal.policy.decide::<ManageAccounts>(&self.asking(), TheFirm).unwrap();
        let change = BillingChange { address: address.parse().ok(), email: email.parse().ok() };
        let deed = AccountDeed::SetBilling { account: payer.account, change };
        portal.store.accounts.do_with_account(permit, deed).await.unwrap();
    }

    fn asking(&self) -> Asking {
        let portal = &self.desk.portal;
        Asking {
            by: Asker::Person { id: self.ruth.id, role: Role::Partner },
            at: portal.clock.now(),
            request_id: RequestId::new(portal.clock.now(), portal.randomness.as_ref()),
        }
    }
}
