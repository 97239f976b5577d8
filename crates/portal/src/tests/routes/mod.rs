//! Every route of the portal, asked by everybody who must not and by those who may. A route without its cases fails the first
//! of these tests; what the cases say is in docs/authorization.md, which the last one keeps true.

pub(super) mod cases;
mod document;

use super::books::TOKENS;
use super::browser::{Browser, Reply};
use super::database::Database;
use super::firm::{Firm, Made, in_short, manage};
use crate::routes::table;
use cases::{Asker, CASES, Case, Guard};
use chancery_domain::{
    AccountId, ApiKey, ClientId, Decision, InvoiceNumber, KeyPrefix, OsRandomness, PersonId, RateLimits,
};
use chancery_store::{NewAccount, NewKey};
use std::collections::BTreeSet;

pub(super) const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
pub(super) const JSON: &str = "application/json";
/// No client has it.
pub(super) const NOBODYS: ClientId = ClientId(987_654);

#[test]
fn every_route_has_its_cases_and_every_case_its_route() {
    let routes: BTreeSet<_> = table().into_iter().collect();
    let cases: BTreeSet<_> = CASES.iter().map(|case| (case.method, case.path.to_owned())).collect();
    let without_cases: Vec<_> = routes.difference(&cases).collect();
    assert!(without_cases.is_empty(), "add to tests/routes/cases.rs who may do this: {without_cases:?}");
    let without_route: Vec<_> = cases.difference(&routes).collect();
    assert!(without_route.is_empty(), "there are no such routes: {without_route:?}");
    assert_eq!(cases.len(), CASES.len(), "a route has its cases twice");
}

/// What a request is about, made for it alone: what was asked before cannot be in its way.
pub(super) struct Fresh {
    owner: PersonId,
    made: Made,
    person: PersonId,
    removed: PersonId,
    account: AccountId,
    /// Of a key that bills no account.
    prefix: KeyPrefix,
    /// Of an invoice of the account's, for routes that are about one.
    number: Option<InvoiceNumber>,
}

/// Months of which the first is invoiced, where the route is about invoices, and the second can be.
const INVOICED: &str = "2026-09";
const TO_INVOICE: &str = "2026-10";

impl Fresh {
    /// With what the route is about.
    async fn for_case(firm: &mut Firm, case: &Case) -> Self {
        let mut fresh = Self::make(firm).await;
        if case.path.starts_with("/invoices/") {
            let payer = firm.used(&format!("Account of {}", fresh.made.client), INVOICED).await;
            firm.settle(payer, &format!("{TO_INVOICE}-02"), "smollm2-135m", TOKENS).await;
            fresh.account = payer.account;
            fresh.number = Some(firm.issued(payer, INVOICED).await);
        }
        fresh
    }

    /// A client of Ann's.
    pub(super) async fn make(firm: &mut Firm) -> Self {
        let (person, removed) = (firm.newcomer().await.id, firm.newcomer().await.id);
        let now = firm.desk.portal.clock.now();
        firm.desk.portal.store.people.remove_person(manage(&firm.desk.portal), removed).await.unwrap();
        let made = firm.client(firm.ann.id, "Calder & Sons").await;
        let store = &firm.desk.store;
        let key = ApiKey::generate(&OsRandomness);
        let (prefix, hash) = (key.prefix(), key.hash());
        let limits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
        let name = format!("Account of {prefix}").parse().unwrap();
        let account = store.create_account(NewAccount { name, limits, created_at: now }).await.unwrap().id;
        let new =
            NewKey { prefix: prefix.clone(), hash, label: String::new(), account: None, created_at: now };
        store.create_key(new).await.unwrap();
        Self { owner: firm.ann.id, made, person, removed, account, prefix, number: None }
    }

    pub(super) fn client(&self) -> ClientId {
        self.made.client
    }

    pub(super) fn fill(&self, template: &str, client: ClientId) -> String {
        let number = self.number.map_or_else(String::new, |number| number.to_string());
        let values = [
            ("{month}", TO_INVOICE.to_owned()),
            ("{document}", number.clone()),
            ("{number}", number),
            ("{id}", client.to_string()),
            ("{entry}", self.made.entry.to_string()),
            ("{owner}", self.owner.to_string()),
            ("{person}", self.person.to_string()),
            ("{removed}", self.removed.to_string()),
            ("{account}", self.account.to_string()),
            ("{prefix}", self.prefix.to_string()),
        ];
        values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

pub(super) async fn ask(browser: &mut Browser, case: &Case, fresh: &Fresh, client: ClientId) -> Reply {
    let path = fresh.fill(case.path, client);
    match case.method {
        "GET" => browser.get(&path).await,
        "POST" => browser.post(&path, &fresh.fill(case.form, client)).await,
        method => panic!("teach this test {method}"),
    }
}

/// The browser of whoever asks.
async fn browser_of(firm: &Firm, asker: Asker) -> Browser {
    let desk = &firm.desk;
    match asker {
        Asker::SignedOutBrowser | Asker::SignedOutProgram => desk.browser(),
        Asker::ForgedSession => {
            let mut browser = desk.browser();
            browser.cookies.insert("session".to_owned(), "f".repeat(43));
            browser
        }
        Asker::EndedSession => {
            let browser = firm.ruth.elsewhere(desk).await;
            let mut same = desk.browser();
            same.cookies = browser.cookies.clone();
            same.post("/auth/sign-out", "").await;
            browser
        }
        Asker::Consultant | Asker::ConsultantNoSuchClient => firm.ben.elsewhere(desk).await,
        Asker::Owner => firm.ann.elsewhere(desk).await,
        Asker::Partner | Asker::PartnerNoSuchClient => firm.ruth.elsewhere(desk).await,
    }
}

fn person_of(firm: &Firm, asker: Asker) -> Option<PersonId> {
    match asker {
        asker if !asker.is_signed_in() => None,
        Asker::Owner => Some(firm.ann.id),
        Asker::Partner | Asker::PartnerNoSuchClient => Some(firm.ruth.id),
        _ => Some(firm.ben.id),
    }
}

#[tokio::test]
async fn every_route_answers_everybody_as_its_cases_say_and_a_refusal_changes_nothing_and_is_on_record() {
    let mut firm = Firm::open().await;
    firm.client(firm.ben.id, "Ben's own").await;
    let database = Database::of(&firm.desk).await;
    let mut wrong = Vec::new();
    for case in CASES {
        for asker in Asker::ALL {
            let Some(expected) = case.expected(asker) else { continue };
            for accept in [HTML, JSON] {
                if !fits(asker, accept) {
                    continue;
                }
                let fresh = Fresh::for_case(&mut firm, case).await;
                let client = if asker.asks_for_nothing_there() { NOBODYS } else { fresh.made.client };
                let mut browser = browser_of(&firm, asker).await;
                browser.accept = accept;
                let (before, decided) = (database.contents().await, firm.decisions().await.len());
                let reply = ask(&mut browser, case, &fresh, client).await;
                let after = database.contents().await;
                let what = format!("{} {} by: {asker}, for {accept}", case.method, case.path);
                if reply.status.as_u16() != expected {
                    wrong.push(format!("{what}: {} and not {expected}: {}", reply.status, reply.body));
                    continue;
                }
                let decisions = firm.decisions().await.split_off(decided);
                let decisions: Vec<_> = decisions.iter().map(in_short).collect();
                let is_refused = matches!(expected, 401 | 403) || !asker.is_signed_in();
                // Signing in and out is no question of the policy, and leaves other marks.
                if is_refused && !matches!(case.guard, Guard::Open { .. }) && before != after {
                    wrong.push(format!("{what}: changed {:?}", before.differing(&after)));
                }
                let about = case.path.contains("{id}").then_some(client);
                let decision = if is_refused { Decision::Refused } else { Decision::Allowed };
                match (person_of(&firm, asker), case.asks) {
                    (Some(person), Some(action))
                        if is_refused && decisions == [(action, decision, about, Some(person))] => {}
                    (Some(person), Some(action)) if !is_refused => {
                        let is_it = |row: &(_, _, Option<ClientId>, _)| {
                            (row.0, row.1, row.3) == (action, decision, Some(person))
                                && about.is_none_or(|about| row.2 == Some(about))
                        };
                        if !decisions.iter().any(is_it) {
                            wrong.push(format!("{what}: on record is {decisions:?}"));
                        }
                    }
                    (Some(_), Some(_)) => wrong.push(format!("{what}: on record is {decisions:?}")),
                    _ if !decisions.is_empty() => wrong.push(format!("{what}: on record is {decisions:?}")),
                    _ => {}
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// Whether this asker asks like this: a browser for pages, a program for JSON, and the signed-in for either.
fn fits(asker: Asker, accept: &str) -> bool {
    match asker {
        Asker::SignedOutBrowser | Asker::ForgedSession | Asker::EndedSession => accept == HTML,
        Asker::SignedOutProgram => accept == JSON,
        _ => true,
    }
}

#[test]
fn the_document_of_who_may_do_what_is_what_the_cases_say() {
    document::keep("docs/authorization.md", &document::written(CASES));
}
