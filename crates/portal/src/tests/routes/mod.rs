//! Requests every route as every principal, allowed or denied. A route without cases fails the first of these tests. The last one
//! keeps docs/authorization.md in line with the cases.

pub(super) mod cases;
mod document;

use super::billing_fixture::TOKENS;
use super::browser::{Browser, Reply};
use super::database::Database;
use super::firm::{ClientWithEntry, Firm, add_provider_account, in_short, manage};
use super::invitations::invite;
use super::letters::{add_letter, add_template};
use crate::routes::table;
use cases::{CASES, Caller, Case, Guard};
use chancery_domain::{
    AccountId, ApiKey, ClientId, Decision, EmailAddress, InvoiceNumber, KeyLimits, KeyPrefix,
    LetterTemplateId, OsRandomness, PersonId, RateLimits, Role,
};
use chancery_store::{NewAccount, NewKey};
use std::collections::BTreeSet;

pub(super) const HTML: &str = "text/html,application/xhtml+xml,*/*;q=0.8";
pub(super) const JSON: &str = "application/json";
/// No client has this number.
pub(super) const UNUSED_ID: ClientId = ClientId(987_654);

#[test]
fn every_route_has_authorization_cases() {
    let routes: BTreeSet<_> = table().into_iter().collect();
    let cases: BTreeSet<_> = CASES.iter().map(|case| (case.method, case.path.to_owned())).collect();
    let without_cases: Vec<_> = routes.difference(&cases).collect();
    assert!(without_cases.is_empty(), "add to tests/routes/cases.rs who may do this: {without_cases:?}");
    let without_route: Vec<_> = cases.difference(&routes).collect();
    assert!(without_route.is_empty(), "there are no such routes: {without_route:?}");
    assert_eq!(cases.len(), CASES.len(), "a route has its cases twice");
}

/// The subject of requests up to the first that may change it, so that earlier requests cannot interfere.
pub(super) struct Fresh {
    owner: PersonId,
    created: ClientWithEntry,
    person: PersonId,
    removed: PersonId,
    account: AccountId,
    /// A key without an account.
    prefix: KeyPrefix,
    /// An invoice of the account, for routes that need one.
    number: Option<InvoiceNumber>,
    /// A pending invitation, for routes that need one.
    invited: Option<EmailAddress>,
    /// A letter template, for routes that need one.
    template: Option<LetterTemplateId>,
}

/// The first month is invoiced, for routes about invoices; the second can be.
const INVOICED: &str = "2026-09";
const TO_INVOICE: &str = "2026-10";

impl Fresh {
    /// Includes an invoice if the route needs one.
    async fn for_case(firm: &mut Firm, case: &Case) -> Self {
        let mut fresh = Self::make(firm).await;
        if case.path.starts_with("/invoices/") {
            let payer = firm.used(&format!("Account of {}", fresh.created.client), INVOICED).await;
            firm.settle(payer, &format!("{TO_INVOICE}-02"), "smollm2-135m", TOKENS).await;
            firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
            fresh.account = payer.account;
            fresh.number = Some(firm.issued(payer, INVOICED).await);
        }
        if case.path.starts_with("/team/invitations/") {
            let email: EmailAddress = format!("invited{}@company.com", fresh.person).parse().unwrap();
            invite(&firm.portal, &email, Role::Consultant).await;
            fresh.invited = Some(email);
        }
        if case.path.contains("/letters/{entry}") {
            fresh.created.entry = add_letter(firm, fresh.created.client).await;
        }
        if case.path.starts_with("/templates/") {
            fresh.template = Some(add_template(&firm.portal).await);
        }
        if case.path == "/team/reassign" {
            firm.client(fresh.person, "To reassign").await;
        }
        if case.path == "/team/reset-factors" {
            add_provider_account(&firm.portal, fresh.person).await;
        }
        fresh
    }

    /// The client belongs to Ann.
    pub(super) async fn make(firm: &mut Firm) -> Self {
        let (person, removed) = (firm.newcomer().await.id, firm.newcomer().await.id);
        let now = firm.portal.portal.clock.now();
        firm.portal
            .portal
            .store
            .people
            .remove_person(manage(&firm.portal.portal), removed, Box::new(|_| true))
            .await
            .unwrap();
        let created = firm.client(firm.ann.id, "Calder & Sons").await;
        let store = &firm.portal.store;
        let key = ApiKey::generate(&OsRandomness);
        let (prefix, hash) = (key.prefix(), key.hash());
        let limits = RateLimits { requests_per_min: 60, tokens_per_min: 60_000 };
        let name = format!("Account of {prefix}").parse().unwrap();
        let account = store.create_account(NewAccount { name, limits, created_at: now }).await.unwrap().id;
        let new = NewKey {
            prefix: prefix.clone(),
            hash,
            label: String::new(),
            account: None,
            created_at: now,
            limits: KeyLimits::default(),
        };
        store.create_key(new).await.unwrap();
        let (number, invited, template) = (None, None, None);
        Self { owner: firm.ann.id, created, person, removed, account, prefix, number, invited, template }
    }

    pub(super) fn client(&self) -> ClientId {
        self.created.client
    }

    pub(super) fn fill(&self, template: &str, client: ClientId) -> String {
        let number = self.number.map_or_else(String::new, |number| number.to_string());
        let values = [
            ("{invited}", self.invited.as_ref().map_or_else(String::new, ToString::to_string)),
            ("{template}", self.template.map_or_else(|| "0".to_owned(), |template| template.to_string())),
            ("{month}", TO_INVOICE.to_owned()),
            ("{document}", number.clone()),
            ("{number}", number),
            ("{id}", client.to_string()),
            ("{entry}", self.created.entry.to_string()),
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

/// A browser in the principal's state.
async fn browser_of(firm: &Firm, principal: Caller) -> Browser {
    let portal = &firm.portal;
    match principal {
        Caller::SignedOutBrowser | Caller::SignedOutProgram => portal.browser(),
        Caller::ForgedSession => {
            let mut browser = portal.browser();
            browser.cookies.insert("session".to_owned(), "f".repeat(43));
            browser
        }
        Caller::EndedSession => {
            let browser = firm.ruth.elsewhere(portal).await;
            let mut same = portal.browser();
            same.cookies = browser.cookies.clone();
            same.post("/auth/sign-out", "").await;
            browser
        }
        Caller::Consultant | Caller::ConsultantNoSuchClient => firm.ben.elsewhere(portal).await,
        Caller::Owner => firm.ann.elsewhere(portal).await,
        Caller::Partner | Caller::PartnerNoSuchClient => firm.ruth.elsewhere(portal).await,
    }
}

fn person_of(firm: &Firm, principal: Caller) -> Option<PersonId> {
    match principal {
        principal if !principal.is_signed_in() => None,
        Caller::Owner => Some(firm.ann.id),
        Caller::Partner | Caller::PartnerNoSuchClient => Some(firm.ruth.id),
        _ => Some(firm.ben.id),
    }
}

/// Routes that share one firm: few, because each denial compares the whole database.
const ROUTES_PER_FIRM: usize = 6;

#[tokio::test]
async fn routes_follow_their_cases_and_denials_are_audited_no_ops() {
    let mut wrong = Vec::new();
    for cases in CASES.chunks(ROUTES_PER_FIRM) {
        let mut firm = Firm::open().await;
        firm.client(firm.ben.id, "Ben's own").await;
        let mut database = Database::of(&firm.portal).await;
        for case in cases {
            follow(&mut firm, &mut database, case, &mut wrong).await;
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

async fn follow(firm: &mut Firm, database: &mut Database, case: &Case, wrong: &mut Vec<String>) {
    let mut unchanged = None;
    for principal in Caller::ALL {
        let Some(expected) = case.expected(principal) else { continue };
        for accept in [HTML, JSON] {
            if !fits(principal, accept) {
                continue;
            }
            let fresh = match unchanged.take() {
                Some(fresh) => fresh,
                None => Fresh::for_case(firm, case).await,
            };
            let client = if principal.requests_missing_client() { UNUSED_ID } else { fresh.created.client };
            let mut browser = browser_of(firm, principal).await;
            browser.accept = accept;
            let is_refused = matches!(expected, 401 | 403) || !principal.is_signed_in();
            // Open routes, such as signing in, write rows without a policy decision.
            let must_change_nothing = is_refused && !matches!(case.guard, Guard::Open { .. });
            let before = if must_change_nothing { Some(database.contents().await) } else { None };
            let decided = firm.decisions().await.len();
            let reply = ask(&mut browser, case, &fresh, client).await;
            let what = format!("{} {} by: {principal}, for {accept}", case.method, case.path);
            if reply.status.as_u16() != expected {
                wrong.push(format!("{what}: {} and not {expected}: {}", reply.status, reply.body));
                continue;
            }
            if let Some(before) = before {
                let after = database.contents().await;
                if before != after {
                    wrong.push(format!("{what}: changed {:?}", before.differing(&after)));
                }
            }
            let decisions = firm.decisions().await.split_off(decided);
            let decisions: Vec<_> = decisions.iter().map(in_short).collect();
            let about = case.path.contains("{id}").then_some(client);
            let decision = if is_refused { Decision::Denied } else { Decision::Allowed };
            match (person_of(firm, principal), case.asks) {
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
            if must_change_nothing || case.method == "GET" {
                unchanged = Some(fresh);
            }
        }
    }
}

/// Whether the principal sends this `Accept` header: browsers ask for pages, programs for JSON, signed-in users for either.
fn fits(principal: Caller, accept: &str) -> bool {
    match principal {
        Caller::SignedOutBrowser | Caller::ForgedSession | Caller::EndedSession => accept == HTML,
        Caller::SignedOutProgram => accept == JSON,
        _ => true,
    }
}

#[test]
fn authorization_doc_matches_the_cases() {
    document::keep("docs/authorization.md", &document::written(CASES));
}
