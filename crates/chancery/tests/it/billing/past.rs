//! Three months and a bit of two accounts: three models, a price that changed, refusals, peaks, and what became of the invoices.
//! Months are told from today, so that the newest of them still runs whenever a test does.

use crate::office::{Office, Somebody};
use crate::server::Firm;
use chancery_domain::{
    AccountId, ApiKey, Asker, Clock, CreditAmount, Credited, Currency, Day, HowEnded, InvoiceNumber,
    InvoiceTerms, KeyId, MinorUnits, Month, Nanos, PersonId, Prices, RateLimits, RequestId, Role,
    SeededRandomness, Seller, SystemClock, TokenPrice, UnixMillis, UsageRow,
};
use chancery_policy::{Act, Asking, Permit, Policy, TheFirm};
use chancery_store::{
    AccountDeed, AccountSubject, BillingChange, CapChange, CreditOrder, IssueOrder, Issued, LimitsChange,
    NewAccount, NewKey, PaymentDeed, PeakDay, RefusedDay, Store,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LETTERHEAD: &str = "48 Commercial Wharf\nBoston, MA 02110\nbilling@marlowfinch.example";
const PAYMENT: &str = "By bank transfer to Marlow & Finch LLP, Harbor Savings Bank, account 4402 118 309.";
const TAX_NAME: &str = "Sales tax";
const TAX_PERCENT: &str = "6.25";
const PAYMENT_DAYS: u16 = 30;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

pub const BRIGHTWATER: &str = "Brightwater Claims";
pub const NORTHGATE: &str = "Northgate Housing";

/// A model, with what a token cost in and out, in nano-units.
type Model = (&'static str, i64, i64);
const SMALL: Model = ("smollm2-135m", 100, 400);
const MIDDLE: Model = ("qwen2.5-7b", 300, 900);
/// The same once it became cheaper, in the middle of the month before the running one.
const MIDDLE_CHEAPER: Model = ("qwen2.5-7b", 250, 800);
const LARGE: Model = ("mistral-small-24b", 800, 2_400);

/// The demonstration firm with what its invoices say of it.
pub fn office_that_bills() -> Office {
    let firm = Firm::new()
        .with("CHANCERY_PORTAL__FIRM_NAME", "Marlow & Finch")
        .with("CHANCERY_BILLING__LETTERHEAD", LETTERHEAD)
        .with("CHANCERY_BILLING__PAYMENT", PAYMENT)
        .with("CHANCERY_BILLING__TAX_NAME", TAX_NAME)
        .with("CHANCERY_BILLING__TAX_PERCENT", TAX_PERCENT);
    let server = firm.start_with(&["--demo"]);
    Office { firm, server }
}

#[derive(Clone, Copy)]
pub struct Payer {
    pub account: AccountId,
    keys: [KeyId; 2],
}

/// The past of the firm, as it was written into the running server's database.
pub struct Past {
    store: Arc<Store>,
    policy: Policy,
    partner: PersonId,
    seeds: AtomicU64,
    /// It cannot be invoiced yet.
    pub running: Month,
    /// The one before, which can.
    pub last: Month,
    pub brightwater: Payer,
    pub northgate: Payer,
}

/// What was issued in it.
pub struct Documents {
    pub paid: InvoiceNumber,
    pub overdue: InvoiceNumber,
    pub void: InvoiceNumber,
    pub credit_note: InvoiceNumber,
    /// Partly credited, and waiting.
    pub issued: InvoiceNumber,
}

impl Past {
    /// Accounts, keys and usage; nothing is invoiced.
    pub async fn of(office: &Office, ruth: &Somebody) -> Self {
        let people = ruth.json("/team").await.value();
        let people = people["people"].as_array().unwrap();
        let partner = people.iter().find(|person| person["email"] == ruth.email.as_str()).unwrap();
        let partner = PersonId(partner["id"].as_i64().unwrap());
        // In the first hour of a month the one before cannot be invoiced yet.
        let running = Month::of(UnixMillis(SystemClock.now().0 - HOUR_MS));
        let nobody = Payer { account: AccountId(0), keys: [KeyId(0); 2] };
        let mut past = Self {
            store: Arc::new(Store::open(&office.firm.database_url().parse().unwrap()).await.unwrap()),
            policy: Policy::load().unwrap(),
            partner,
            seeds: AtomicU64::new(1),
            running,
            last: running.previous(),
            brightwater: nobody,
            northgate: nobody,
        };
        past.brightwater = past
            .payer(BRIGHTWATER, "Accounts payable\n210 Summer Street, 4th floor\nBoston, MA 02110", 420)
            .await;
        past.northgate =
            past.payer(NORTHGATE, "Finance office\n7 Northgate Square\nProvidence, RI 02903", 150).await;
        past.use_models().await;
        past.note_activity().await;
        past
    }

    fn seed(&self) -> SeededRandomness {
        SeededRandomness::new(self.seeds.fetch_add(1, Ordering::Relaxed))
    }

    fn permit<A: Act<About = TheFirm>>(&self, at: UnixMillis) -> Permit<A> {
        let by = Asker::Person { id: self.partner, role: Role::Partner };
        let asking = Asking { by, at, request_id: RequestId::new(at, &self.seed()) };
        self.policy.decide(&asking, TheFirm).unwrap()
    }

    async fn deed(&self, at: UnixMillis, deed: AccountDeed) -> AccountSubject {
        self.store.accounts.do_with_account(self.permit(at), deed).await.unwrap().subject
    }

    /// An account as a partner made it, some months ago.
    async fn payer(&self, name: &str, address: &str, cap: i64) -> Payer {
        let made = UnixMillis(self.last.previous().previous().first_day().start().0 + 9 * HOUR_MS);
        let limits = RateLimits { requests_per_min: 240, tokens_per_min: 400_000 };
        let new = NewAccount { name: name.parse().unwrap(), limits, created_at: made };
        let AccountSubject::Account(account) = self.deed(made, AccountDeed::Make(new)).await else {
            panic!("no account");
        };
        let account = account.id;
        let mut keys = Vec::new();
        for label in ["claims intake, production", "staging"] {
            let key = ApiKey::generate(&self.seed());
            let new = NewKey {
                prefix: key.prefix(),
                hash: key.hash(),
                label: label.to_owned(),
                account: Some(account),
                created_at: made,
            };
            let AccountSubject::Key(key) = self.deed(made, AccountDeed::MakeKey(new)).await else {
                panic!("no key");
            };
            keys.push(key.id);
        }
        let email = format!("billing@{}.example", name.split(' ').next().unwrap().to_lowercase());
        let change =
            BillingChange { address: Some(address.parse().unwrap()), email: Some(email.parse().unwrap()) };
        let later = UnixMillis(made.0 + DAY_MS);
        self.deed(later, AccountDeed::SetBilling { account, change }).await;
        let change = LimitsChange {
            spend_per_month: CapChange::Set(Nanos(cap * 1_000_000_000)),
            ..LimitsChange::default()
        };
        self.deed(later, AccountDeed::SetLimits { account, change }).await;
        Payer { account, keys: [keys[0], keys[1]] }
    }

    async fn use_models(&self) {
        let first = self.last.previous().previous().first_day();
        let today = Day::of(SystemClock.now());
        let cheaper_from = self.last.first_day().0 + 15;
        for day in first.0..=today.0 {
            let middle = if day < cheaper_from { MIDDLE } else { MIDDLE_CHEAPER };
            // Offices rest on two days of seven, and no two days are alike.
            let busy: u32 = if day % 7 < 2 { 12 } else { 70 + u32::try_from(day * 37 % 41).unwrap() };
            for (payer, share) in [(self.brightwater, 3), (self.northgate, 1)] {
                for (key, model, input, output) in [
                    (payer.keys[0], middle, 51_307, 6_211),
                    (payer.keys[0], LARGE, 11_903, 2_017),
                    (payer.keys[1], SMALL, 20_011, 3_109),
                ] {
                    let tokens = (input * share * busy, output * share * busy);
                    self.settle((payer.account, key), Day(day), model, tokens).await;
                }
            }
        }
    }

    async fn settle(
        &self,
        (account, key): (AccountId, KeyId),
        day: Day,
        (model, input_price, output_price): Model,
        (input_tokens, output_tokens): (u32, u32),
    ) {
        let at = day.start();
        let price = TokenPrice::from_nanos_per_token;
        let prices = Prices { input: price(input_price), output: price(output_price) };
        let row = UsageRow {
            request_id: RequestId::new(at, &self.seed()),
            account,
            key,
            model: model.to_owned(),
            input_tokens,
            output_tokens,
            prices,
            cost: prices.cost(input_tokens, output_tokens).unwrap(),
            at,
            ended: HowEnded::Complete,
        };
        self.store.ledger.settle(row.into()).await.unwrap();
    }

    /// What was refused to Brightwater, and its busiest minutes.
    async fn note_activity(&self) {
        let Payer { account, keys: [key, _] } = self.brightwater;
        let today = Day::of(SystemClock.now());
        let (mut refused, mut peaks) = (Vec::new(), Vec::new());
        for (offset, code, refusals) in [
            (0, "rate_limited", 14),
            (4, "rate_limited", 61),
            (4, "spending_cap_reached", 3),
            (11, "rate_limited", 7),
        ] {
            for month in [self.last, self.running] {
                let day = Day(month.first_day().0 + offset);
                let at = UnixMillis(day.start().0 + 10 * HOUR_MS);
                if day <= today {
                    let (account, code) = (Some(account), code.to_owned());
                    refused.push(RefusedDay { account, day, key, code, refusals, last_at: at });
                    let (requests, tokens) = (170 + refusals, 312_400 - refusals * 1_007);
                    peaks.push(PeakDay {
                        account: self.brightwater.account,
                        day,
                        requests,
                        requests_at: at,
                        tokens,
                        tokens_at: at,
                    });
                }
            }
        }
        self.store.activity.note_activity(&refused, &peaks).await.unwrap();
    }

    /// Invoices of the two months before the last one, in every state.
    pub async fn invoice(&self) -> Documents {
        let oldest = self.last.previous().previous();
        let days_after =
            |month: Month, days: i64| UnixMillis(month.can_be_issued_from().0 + days * DAY_MS + 9 * HOUR_MS);
        let paid = self.issue(self.brightwater, oldest, days_after(oldest, 1)).await;
        let overdue = self.issue(self.northgate, oldest, days_after(oldest, 1)).await;
        self.pay(paid, days_after(oldest, 19)).await;
        let middle = oldest.next();
        let void = self.issue(self.brightwater, middle, days_after(middle, 1)).await;
        let reason = "The address of the account was wrong";
        let credit_note = self.credit(void, CreditAmount::Whole, reason, days_after(middle, 3)).await;
        let again = self.issue(self.brightwater, middle, days_after(middle, 3)).await;
        self.pay(again, days_after(middle, 20)).await;
        let issued = self.issue(self.northgate, middle, UnixMillis(SystemClock.now().0 - 5 * DAY_MS)).await;
        let part = CreditAmount::Part(MinorUnits(500));
        let reason = "Outage of the second week, as agreed by telephone";
        self.credit(issued, part, reason, UnixMillis(SystemClock.now().0 - 2 * DAY_MS)).await;
        Documents { paid, overdue, void, credit_note, issued }
    }

    fn terms(&self) -> InvoiceTerms {
        let seller = Seller {
            name: "Marlow & Finch".to_owned(),
            letterhead: LETTERHEAD.to_owned(),
            payment: PAYMENT.to_owned(),
        };
        let tax = Some((TAX_NAME.to_owned(), TAX_PERCENT.parse().unwrap()));
        InvoiceTerms { currency: Currency::USD, seller, tax, payment_days: PAYMENT_DAYS }
    }

    async fn issue(&self, payer: Payer, month: Month, at: UnixMillis) -> InvoiceNumber {
        let order = IssueOrder { account: payer.account, month, terms: self.terms() };
        match self
            .store
            .invoices
            .issue_invoice(self.permit(at), &order, &chancery_invoicing::pdf)
            .await
            .unwrap()
        {
            Issued::New(number) => number,
            Issued::Already(number) => panic!("{number} was there already"),
        }
    }

    async fn pay(&self, number: InvoiceNumber, at: UnixMillis) {
        self.store.invoices.note_payment(self.permit(at), number, PaymentDeed::Paid).await.unwrap();
    }

    async fn credit(
        &self,
        invoice: InvoiceNumber,
        amount: CreditAmount,
        reason: &str,
        at: UnixMillis,
    ) -> InvoiceNumber {
        let (reason, terms) = (reason.to_owned(), self.terms());
        // Each is credited once.
        let credited_before = Credited::default();
        let order = CreditOrder { invoice, amount, credited_before, reason, terms };
        self.store.invoices.credit_invoice(self.permit(at), &order, &chancery_invoicing::pdf).await.unwrap()
    }
}
