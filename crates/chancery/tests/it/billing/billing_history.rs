//! Slightly more than three months of two accounts: three models, a price change, rejections, peaks, and invoices in every
//! state. Months are relative to today, so that the newest is always the current one.

use crate::office::{Office, SignedInUser};
use crate::server::Firm;
use chancery_domain::{
    AccountId, ApiKey, Clock, CreditAmount, Credited, Currency, Day, InvoiceNumber, InvoiceTerms, KeyId,
    KeyLimits, MinorUnits, Month, Nanos, PersonId, Prices, Principal, RateLimits, RequestId, Role,
    SeededRandomness, Seller, StopReason, SystemClock, TokenPrice, UnixMillis, UsageRow,
};
use chancery_policy::{AuthzAction, AuthzRequest, FirmResource, Permit, Policy};
use chancery_store::{
    AccountChange, AccountSubject, ActivityBatch, BillingChange, CapChange, CreditRequest, DailyPeak,
    DailyRejections, IssueOutcome, IssueRequest, LimitsChange, NewAccount, NewKey, PaymentChange, Store,
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

/// A model, with its input and output price per token in nano-units.
type Model = (&'static str, i64, i64);
const SMALL: Model = ("smollm2-135m", 100, 400);
const MIDDLE: Model = ("qwen2.5-7b", 300, 900);
/// The same after its price dropped, in the middle of last month.
const MIDDLE_CHEAPER: Model = ("qwen2.5-7b", 250, 800);
const LARGE: Model = ("mistral-small-24b", 800, 2_400);

/// The demo firm with its billing details.
pub fn office_that_bills() -> Office {
    let firm = Firm::new()
        .with("CHANCERY_PORTAL__FIRM_NAME", "Marlow & Finch")
        .with("CHANCERY_BILLING__LETTERHEAD", LETTERHEAD)
        .with("CHANCERY_BILLING__PAYMENT", PAYMENT)
        .with("CHANCERY_BILLING__TAX_NAME", TAX_NAME)
        .with("CHANCERY_BILLING__TAX_PERCENT", TAX_PERCENT);
    let server = firm.start_with(&["--demo", "--minimal"]);
    Office { firm, server }
}

#[derive(Clone, Copy)]
pub struct Payer {
    pub account: AccountId,
    keys: [KeyId; 2],
}

/// The firm's history, written directly into the running server's database.
pub struct Past {
    store: Arc<Store>,
    policy: Policy,
    partner: PersonId,
    seeds: AtomicU64,
    /// The current month, which cannot be invoiced yet.
    pub running: Month,
    /// Last month, which can be invoiced.
    pub last: Month,
    pub brightwater: Payer,
    pub northgate: Payer,
}

/// The documents issued in it.
pub struct Documents {
    pub paid: InvoiceNumber,
    pub overdue: InvoiceNumber,
    pub void: InvoiceNumber,
    pub credit_note: InvoiceNumber,
    /// Partly credited and not paid yet.
    pub issued: InvoiceNumber,
}

impl Past {
    /// Creates accounts, keys and usage, but no invoices.
    pub async fn of(office: &Office, ruth: &SignedInUser) -> Self {
        let people = ruth.json("/team").await.value();
        let people = people["people"].as_array().unwrap();
        let partner = people.iter().find(|person| person["email"] == ruth.email.as_str()).unwrap();
        let partner = PersonId(partner["id"].as_i64().unwrap());
        // In the first hour of a month, the month before cannot be invoiced yet.
        let running = Month::containing(UnixMillis(SystemClock.now().0 - HOUR_MS));
        let unset = Payer { account: AccountId(0), keys: [KeyId(0); 2] };
        let mut past = Self {
            store: Arc::new(Store::open(&office.firm.database_url().parse().unwrap()).await.unwrap()),
            policy: Policy::load().unwrap(),
            partner,
            seeds: AtomicU64::new(1),
            running,
            last: running.previous(),
            brightwater: unset,
            northgate: unset,
        };
        past.brightwater = past
            .payer(BRIGHTWATER, "Accounts payable\n210 Summer Street, 4th floor\nBoston, MA 02110", 420)
            .await;
        past.northgate =
            past.payer(NORTHGATE, "Finance office\n7 Northgate Square\nProvidence, RI 02903", 150).await;
        past.use_models().await;
        past.record_activity().await;
        past
    }

    fn seed(&self) -> SeededRandomness {
        SeededRandomness::new(self.seeds.fetch_add(1, Ordering::Relaxed))
    }

    fn permit<A: AuthzAction<Resource = FirmResource>>(&self, at: UnixMillis) -> Permit<A> {
        let by = Principal::Person { id: self.partner, role: Role::Partner };
        let authz_request = AuthzRequest { by, at, request_id: RequestId::new(at, &self.seed()) };
        self.policy.decide(&authz_request, FirmResource).unwrap()
    }

    async fn change(&self, at: UnixMillis, change: AccountChange) -> AccountSubject {
        self.store.accounts.change_account(self.permit(at), change).await.unwrap().subject
    }

    /// Creates an account as of some months ago, as a partner.
    async fn payer(&self, name: &str, address: &str, cap: i64) -> Payer {
        let created_at = UnixMillis(self.last.previous().previous().first_day().start().0 + 9 * HOUR_MS);
        let limits = RateLimits { requests_per_min: 240, tokens_per_min: 400_000 };
        let new = NewAccount { name: name.parse().unwrap(), limits, created_at };
        let AccountSubject::Account(account) =
            self.change(created_at, AccountChange::CreateAccount(new)).await
        else {
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
                created_at,
                limits: KeyLimits::default(),
            };
            let AccountSubject::Key(key) = self.change(created_at, AccountChange::CreateKey(new)).await
            else {
                panic!("no key");
            };
            keys.push(key.id);
        }
        let email = format!("billing@{}.example", name.split(' ').next().unwrap().to_lowercase());
        let change =
            BillingChange { address: Some(address.parse().unwrap()), email: Some(email.parse().unwrap()) };
        let later = UnixMillis(created_at.0 + DAY_MS);
        self.change(later, AccountChange::SetBilling { account, change }).await;
        let change = LimitsChange {
            spend_per_month: CapChange::Set(Nanos(cap * 1_000_000_000)),
            ..LimitsChange::default()
        };
        self.change(later, AccountChange::SetLimits { account, change }).await;
        Payer { account, keys: [keys[0], keys[1]] }
    }

    async fn use_models(&self) {
        let first = self.last.previous().previous().first_day();
        let today = Day::containing(SystemClock.now());
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
        let prices = Prices {
            input: price(input_price),
            cached_input: price(input_price),
            output: price(output_price),
        };
        let row = UsageRow {
            request_id: RequestId::new(at, &self.seed()),
            account,
            key,
            model: model.to_owned(),
            input_tokens,
            cached_input_tokens: 0,
            output_tokens,
            prices,
            cost: prices.max_cost(input_tokens, output_tokens).unwrap(),
            at,
            stop_reason: StopReason::Complete,
        };
        self.store.ledger.settle(row.into()).await.unwrap();
    }

    /// Records Brightwater's rejections and its busiest minutes.
    async fn record_activity(&self) {
        let Payer { account, keys: [key, _] } = self.brightwater;
        let today = Day::containing(SystemClock.now());
        let (mut rejected, mut peaks) = (Vec::new(), Vec::new());
        for (offset, code, rejections) in [
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
                    rejected.push(DailyRejections { account, day, key, code, rejections, last_at: at });
                    let (requests, tokens) = (170 + rejections, 312_400 - rejections * 1_007);
                    peaks.push(DailyPeak {
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
        self.store
            .activity
            .record_activity(ActivityBatch {
                rejections: &rejected,
                peaks: &peaks,
                ..ActivityBatch::default()
            })
            .await
            .unwrap();
    }

    /// Invoices the two months before the last one, in every state.
    pub async fn invoice(&self) -> Documents {
        let oldest = self.last.previous().previous();
        let days_after =
            |month: Month, days: i64| UnixMillis(month.invoiceable_from().0 + days * DAY_MS + 9 * HOUR_MS);
        let paid = self.issue(self.brightwater, oldest, days_after(oldest, 1)).await;
        let overdue = self.issue(self.northgate, oldest, days_after(oldest, 1)).await;
        self.pay(paid, days_after(oldest, 19)).await;
        let middle = oldest.next();
        let void = self.issue(self.brightwater, middle, days_after(middle, 1)).await;
        let reason = "The address of the account was wrong";
        let credit_note = self.credit(void, CreditAmount::Full, reason, days_after(middle, 3)).await;
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
        let order = IssueRequest { account: payer.account, month, terms: self.terms() };
        match self
            .store
            .invoices
            .issue_invoice(self.permit(at), &order, Box::new(chancery_invoicing::pdf))
            .await
            .unwrap()
        {
            IssueOutcome::New(number) => number,
            IssueOutcome::AlreadyIssued(number) => panic!("{number} was there already"),
        }
    }

    async fn pay(&self, number: InvoiceNumber, at: UnixMillis) {
        self.store.invoices.record_payment(self.permit(at), number, PaymentChange::Paid).await.unwrap();
    }

    async fn credit(
        &self,
        invoice: InvoiceNumber,
        amount: CreditAmount,
        reason: &str,
        at: UnixMillis,
    ) -> InvoiceNumber {
        let (reason, terms) = (reason.to_owned(), self.terms());
        // Each invoice is credited once.
        let expected_credited = Credited::default();
        let order = CreditRequest { invoice, amount, expected_credited, reason, terms };
        self.store
            .invoices
            .credit_invoice(self.permit(at), &order, Box::new(chancery_invoicing::pdf))
            .await
            .unwrap()
    }
}
