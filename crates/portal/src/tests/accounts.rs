//! `/accounts`: how partners view and change accounts and keys. A new key is shown once and nowhere else.

use super::MORNING;
use super::browser::Reply;
use super::firm::{Firm, in_short};
use axum::http::StatusCode;
use chancery_domain::{
    Account, AccountName, AccountState, Action, ApiKey, Decision, KeyState, Nanos, Prices, RequestId,
    StopReason, TokenPrice, UsageRow,
};
use chancery_store::{ACCOUNTS_PER_PAGE, NewAccount};
use serde_json::Value;

async fn named(firm: &Firm, name: &str) -> Account {
    firm.portal.portal.store.account_lookup.account_by_name(&name.parse().unwrap()).await.unwrap()
}

/// Created by Ruth in the portal.
async fn account(firm: &mut Firm, name: &str) -> Account {
    let form = form(&[("name", name), ("rpm", "60"), ("tpm", "60000")]);
    let created = firm.ruth.browser.post("/accounts", &form).await;
    assert_eq!(created.status, StatusCode::SEE_OTHER, "{}", created.body);
    named(firm, name).await
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The key that a page shows.
fn shown(page: &str) -> Option<ApiKey> {
    let is_key_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    page.split(|c| !is_key_char(c)).find_map(|word| ApiKey::parse(word).ok())
}

async fn create_key(firm: &mut Firm, path: &str, label: &str) -> (ApiKey, Reply) {
    let reply = firm.ruth.browser.post(path, &form(&[("label", label)])).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    (shown(&reply.body).unwrap(), reply)
}

/// Follows the redirect after a change, which must lead to a page.
async fn follow(firm: &mut Firm, change: &Reply) -> String {
    assert_eq!(change.status, StatusCode::SEE_OTHER, "{}", change.body);
    let page = firm.ruth.browser.get(change.location()).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    page.body
}

#[tokio::test]
async fn created_account_shows_its_limits() {
    let mut firm = Firm::open().await;
    let empty = firm.ruth.browser.get("/accounts").await;
    assert!(empty.body.contains("No accounts yet") && empty.body.contains("href=\"/accounts?open=account"));
    let open = firm.ruth.browser.get("/accounts?open=account").await;
    for part in ["action=\"/accounts\"", "value=\"60\"", "value=\"60000\"", "Create account"] {
        assert!(open.body.contains(part), "{part}: {}", open.body);
    }
    let created = firm.ruth.browser.post("/accounts", "name=Hale+%26+Ward&rpm=120&tpm=200000").await;
    let page = follow(&mut firm, &created).await;
    for part in [
        "Hale &#38; Ward</span> <span class=\"badge badge-paid\">Open</span>",
        "Created the account with 120 requests and 200,000 tokens per minute.",
        "November so far (UTC)",
        "no cap",
        "Not set",
        "ruth@<wbr>company.com</span> created the account",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let id = named(&firm, "Hale & Ward").await.id;
    for part in [format!("href=\"/usage?account={id}\""), format!("href=\"/invoices?account={id}\"")] {
        assert!(page.contains(&part), "{part}");
    }
    let list = firm.ruth.browser.get("/accounts").await.body;
    assert!(
        list.contains(&format!("<a href=\"/accounts/{id}\" data-row dir=\"auto\">Hale &#38; Ward</a>")),
        "{list}"
    );
    firm.ruth.browser.accept = "application/json";
    let json: Value = serde_json::from_str(&firm.ruth.browser.get("/accounts").await.body).unwrap();
    assert_eq!((&json["total"], &json["accounts"][0]["rpm"]), (&1.into(), &120.into()));
    let json = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["name"], &json["spent_this_month"]), (&"Hale & Ward".into(), &"0.00".into()));
}

#[tokio::test]
async fn accounts_are_paged_by_name_with_links_to_both_sides() {
    let mut firm = Firm::open().await;
    for number in 0..=ACCOUNTS_PER_PAGE {
        account(&mut firm, &format!("Firm & Co {number:02}")).await;
    }
    let first = firm.ruth.browser.get("/accounts").await.body;
    let next = "/accounts?after=Firm+%26+Co+49";
    for part in [">51</span>", &format!("href=\"{next}\" rel=\"next\""), "Firm &#38; Co 49"] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!first.contains("rel=\"prev\"") && !first.contains("Firm &#38; Co 50"), "{first}");
    let second = firm.ruth.browser.get(next).await.body;
    let previous = "/accounts?before=Firm+%26+Co+50";
    for part in ["Firm &#38; Co 50", &format!("href=\"{previous}\" rel=\"prev\""), "href=\"/accounts\">First"]
    {
        assert!(second.contains(part), "{part}: {second}");
    }
    assert!(!second.contains("rel=\"next\"") && !second.contains("Firm &#38; Co 49"), "{second}");
    let back = firm.ruth.browser.get(previous).await.body;
    assert!(back.contains("Firm &#38; Co 00") && !back.contains("Firm &#38; Co 50"), "{back}");
    let behind = firm.ruth.browser.get("/accounts?after=Z").await.body;
    assert!(behind.contains("No more accounts"), "{behind}");

    firm.ruth.browser.accept = "application/json";
    let invalid = firm.ruth.browser.get("/accounts?after=%00").await;
    assert_eq!(invalid.status, StatusCode::BAD_REQUEST, "{}", invalid.body);
    // Programs may count pages.
    let mut numbered = Vec::new();
    for number in 1..=3_u32 {
        let body = firm.ruth.browser.get(&format!("/accounts?page={number}")).await.body;
        let page: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(page["page"], number, "{page}");
        assert_eq!(page["pages"], 2, "{page}");
        numbered.extend(page["accounts"].as_array().unwrap().iter().map(|account| account["name"].clone()));
    }
    let (mut path, mut names) = ("/accounts".to_owned(), Vec::new());
    loop {
        let page: Value = serde_json::from_str(&firm.ruth.browser.get(&path).await.body).unwrap();
        assert_eq!(page["total"], ACCOUNTS_PER_PAGE + 1);
        names.extend(page["accounts"].as_array().unwrap().iter().map(|account| account["name"].clone()));
        match page["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names.len() as u32, ACCOUNTS_PER_PAGE + 1);
    assert_eq!(numbered, names);
}

#[tokio::test]
async fn invalid_form_keeps_input_and_shows_field_errors() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let rejected = firm.ruth.browser.post("/accounts", "name=Hale&rpm=7&tpm=8").await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [
        "id=\"name-error\"",
        "This name is taken, possibly by a closed account.",
        "value=\"Hale\"",
        "value=\"7\"",
        "<title>Error: ",
    ] {
        assert!(rejected.body.contains(part), "{part}: {}", rejected.body);
    }
    let rejected = firm.ruth.browser.post("/accounts", "name=+&rpm=0&tpm=1.5").await;
    for part in ["Fix 3 problems", "Enter a name", "href=\"#rpm\"", "value=\"1.5\""] {
        assert!(rejected.body.contains(part), "{part}: {}", rejected.body);
    }
    let limits = format!("/accounts/{id}/limits");
    let rejected = firm.ruth.browser.post(&limits, "rpm=60&tpm=60000&cap=1%2C000").await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["id=\"cap-error\"", "value=\"1,000\"", "aria-invalid=\"true\"", "<details open>"] {
        assert!(rejected.body.contains(part), "{part}: {}", rejected.body);
    }
    let billing = format!("/accounts/{id}/billing");
    let rejected = firm.ruth.browser.post(&billing, "address=12+Harbour+Lane&email=nobody").await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["12 Harbour Lane</textarea>", "id=\"email-error\"", "value=\"nobody\""] {
        assert!(rejected.body.contains(part), "{part}: {}", rejected.body);
    }
    let label = form(&[("label", &"x".repeat(101))]);
    for path in [format!("/accounts/{id}/keys"), "/accounts/keys".to_owned()] {
        let rejected = firm.ruth.browser.post(&path, &label).await;
        assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        assert!(
            rejected.body.contains("id=\"label-error\"") && rejected.body.contains(&"x".repeat(101)),
            "{path}"
        );
    }
    assert!(firm.portal.portal.store.account_lookup.list_keys().await.unwrap().is_empty());
    let stored = named(&firm, "Hale").await;
    assert_eq!((stored.limits.requests_per_min, stored.spend_per_month), (60, None));
}

#[tokio::test]
async fn limits_cap_and_billing_contact_can_be_edited() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let limits = format!("/accounts/{id}/limits");
    let change = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=250.000000001").await;
    let page = follow(&mut firm, &change).await;
    let message = "Changed requests per minute from 60 to 120, the monthly cap from none to 250.000000001.";
    for part in [message, "$250.000000001", "$0.00", "value=\"250.000000001\"", "role=\"status\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(named(&firm, "Hale").await.spend_per_month, Some(Nanos(250_000_000_001)));
    let again = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=250.000000001").await;
    assert!(follow(&mut firm, &again).await.contains("The saved values are the same."));
    let none = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=").await;
    assert!(follow(&mut firm, &none).await.contains("the monthly cap from 250.000000001 to none."));
    let billing = form(&[("address", "12 Harbour Lane\r\nBoston"), ("email", "bills@hale.example")]);
    let change = firm.ruth.browser.post(&format!("/accounts/{id}/billing"), &billing).await;
    let page = follow(&mut firm, &change).await;
    for part in ["12 Harbour Lane<br>Boston", "bills@<wbr>hale.example", "Added the billing address"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    // An old or made-up URL shows no confirmation.
    let made_up = firm.ruth.browser.get(&format!("/accounts/{id}?done=987654")).await.body;
    assert!(!made_up.contains("notice-good"));
}

#[tokio::test]
async fn billing_email_that_predates_the_rule_stays_until_it_is_changed() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let old = "Bills <bills@hale.example>";
    firm.store_billing_email(id, old).await;
    let path = format!("/accounts/{id}/billing");
    let saved = firm.ruth.browser.post(&path, &form(&[("address", "12 Harbour Lane"), ("email", old)])).await;
    let page = follow(&mut firm, &saved).await;
    for part in ["Added the billing address.", "value=\"Bills &#60;bills@hale.example&#62;\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for other in ["Bill <bills@hale.example>", "Bills <bills@hale.example>, x@hale.example"] {
        let rejected =
            firm.ruth.browser.post(&path, &form(&[("address", "Elsewhere"), ("email", other)])).await;
        assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY, "{other}");
    }
    let other_account = account(&mut firm, "Ward").await.id;
    let path = format!("/accounts/{other_account}/billing");
    let rejected = firm.ruth.browser.post(&path, &form(&[("address", ""), ("email", old)])).await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn new_key_is_shown_exactly_once() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (key, reply) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    assert_eq!(reply.headers["cache-control"], "no-store");
    for part in
        ["Copy it now.", "readonly", "$CHANCERY_API_KEY", "http://localhost:8080/v1/generate", "smollm2-135m"]
    {
        assert!(reply.body.contains(part), "{part}: {}", reply.body);
    }
    assert_eq!(reply.body.matches(key.reveal()).count(), 1, "once on its page");
    assert!(reply.headers.values().all(|value| !value.to_str().unwrap_or("").contains(key.reveal())));
    let stored = firm.portal.portal.store.keys.key_by_prefix(&key.prefix()).await.unwrap().unwrap();
    assert!(stored.key.hash.matches(&key.hash()));
    assert_eq!((stored.key.label.as_str(), stored.key.account), ("backend", Some(id)));

    let (_, secret) = key.reveal().rsplit_once('_').unwrap();
    let prefix = key.prefix();
    for path in [
        "/accounts".to_owned(),
        format!("/accounts/{id}"),
        format!("/accounts/{id}?key={prefix}"),
        "/audit".to_owned(),
        "/audit.csv".to_owned(),
    ] {
        let page = firm.ruth.browser.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        assert!(!page.body.contains(secret), "{path}");
    }
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    for part in
        [format!("<code>{prefix}</code>"), format!("created the key {prefix} “backend”"), "never".to_owned()]
    {
        assert!(page.contains(&part), "{part}: {page}");
    }
    let mut database = super::database::Database::of(&firm.portal).await;
    assert!(!format!("{:?}", database.contents().await).contains(secret));

    // Submitting the form again creates another key, and both are listed.
    let (second, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    assert!(
        page.contains(prefix.as_str())
            && page.contains(second.prefix().as_str())
            && page.contains("2 active")
    );
}

#[tokio::test]
async fn key_changes_appear_in_both_accounts_histories() {
    let mut firm = Firm::open().await;
    let (hale, ward) = (account(&mut firm, "Hale").await.id, account(&mut firm, "Ward").await.id);
    let (key, reply) = create_key(&mut firm, "/accounts/keys", "").await;
    let prefix = key.prefix();
    assert!(reply.body.contains("Attach it to an account before you use it."), "{}", reply.body);
    let card = firm.ruth.browser.get(&format!("/accounts?key={prefix}")).await.body;
    for part in
        ["Attach to an account", "Hale</option>", &format!("action=\"/accounts/keys/{prefix}/revoke\"")]
    {
        assert!(card.contains(part), "{part}: {card}");
    }
    let attach = format!("/accounts/keys/{prefix}/attach");
    let none = firm.ruth.browser.post(&attach, "account=").await;
    assert_eq!(none.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(none.body.contains("id=\"to-error\""), "{}", none.body);

    let change = firm.ruth.browser.post(&format!("/accounts/{hale}/attach"), &format!("key={prefix}")).await;
    assert!(follow(&mut firm, &change).await.contains(&format!("Attached the key {prefix}.")));
    let none = firm.ruth.browser.post(&format!("/accounts/{hale}/attach"), "key=").await;
    assert_eq!(none.status, StatusCode::UNPROCESSABLE_ENTITY);
    let change = firm.ruth.browser.post(&attach, &format!("account={ward}")).await;
    assert_eq!(change.location().split('?').next(), Some(format!("/accounts/{ward}").as_str()));
    assert!(follow(&mut firm, &change).await.contains(&format!("Moved the key {prefix} from Hale.")));
    assert!(
        firm.ruth
            .browser
            .get(&format!("/accounts/{hale}"))
            .await
            .body
            .contains(&format!("moved the key {prefix} to Ward"))
    );
    let change = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/label"), "label=backend").await;
    assert!(follow(&mut firm, &change).await.contains("from none to “backend”."));
    let bad = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/label"), "label=a%00b").await;
    assert_eq!(bad.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.body.contains("id=\"key-label-error\""), "{}", bad.body);
    let change = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/revoke"), "").await;
    let page = follow(&mut firm, &change).await;
    assert!(
        page.contains(&format!("Revoked the key {prefix}.")) && page.contains("badge\">Revoked"),
        "{page}"
    );
    assert!(!page.contains(&format!("?key={prefix}")), "nothing is left to do with it");
    let stored = firm.portal.portal.store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key;
    assert_eq!(stored.state, KeyState::Revoked { at: MORNING });
    let rejected = firm.ruth.browser.post(&attach, &format!("account={hale}")).await;
    assert_eq!(rejected.status, StatusCode::CONFLICT, "{}", rejected.body);
}

#[tokio::test]
async fn closed_account_keeps_its_page_and_accepts_no_keys() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    create_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}?open=close")).await.body;
    assert!(page.contains("Its active key stops working within one second (error 402)."), "{page}");
    let change = firm.ruth.browser.post(&format!("/accounts/{id}/close"), "").await;
    let page = follow(&mut firm, &change).await;
    for part in ["Closed the account.", "<span class=\"badge\">Closed</span>", "Edit billing contact"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for part in ["Create key", "Edit limits", "Account closure"] {
        assert!(!page.contains(part), "{part}: {page}");
    }
    assert_eq!(named(&firm, "Hale").await.state, AccountState::Closed { at: MORNING });
    let rejected = firm.ruth.browser.post(&format!("/accounts/{id}/keys"), "label=x").await;
    assert_eq!(rejected.status, StatusCode::CONFLICT);
    assert!(shown(&rejected.body).is_none() && rejected.body.contains("Hale is closed"), "{}", rejected.body);
    let (key, _) = create_key(&mut firm, "/accounts/keys", "").await;
    let attach = format!("/accounts/keys/{}/attach", key.prefix());
    let rejected = firm.ruth.browser.post(&attach, &format!("account={id}")).await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(rejected.body.contains("This account was closed. Choose another."), "{}", rejected.body);
}

#[tokio::test]
async fn missing_accounts_are_404_for_partners_and_403_for_consultants() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (key, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    for path in ["/accounts/987654", "/accounts/99999999999999999999999", "/accounts/-1"] {
        let missing = firm.ruth.browser.get(path).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}");
        assert!(missing.body.contains("Account not found"), "{}", missing.body);
    }
    assert_eq!(firm.ruth.browser.get("/accounts/new").await.status, StatusCode::NOT_FOUND);
    for (path, fields) in [
        ("/accounts/987654/limits", "rpm=1&tpm=1"),
        ("/accounts/987654/billing", ""),
        ("/accounts/987654/close", ""),
        ("/accounts/987654/keys", "label="),
        ("/accounts/keys/ck_nobody00/revoke", ""),
        ("/accounts/keys/ck_nobody00/label", "label=x"),
        ("/accounts/keys/ck_%00/label", "label=x"),
        ("/accounts/keys/ck_nobody00/label", "label=a%00"),
    ] {
        let missing = firm.ruth.browser.post(path, fields).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}: {}", missing.body);
    }
    let decided = firm.decisions().await.len();
    let one = firm.ben.browser.get(&format!("/accounts/{id}")).await;
    assert_eq!(one.status, StatusCode::FORBIDDEN);
    assert_eq!(one.body, firm.ben.browser.get("/accounts/987654").await.body);
    assert_eq!(one.body, firm.ben.browser.get("/accounts").await.body);
    for prefix in [key.prefix().to_string(), "ck_nobody00".to_owned()] {
        for change in ["revoke", "label", "attach"] {
            let rejected = firm.ben.browser.post(&format!("/accounts/keys/{prefix}/{change}"), "").await;
            assert_eq!((rejected.status, &rejected.body), (StatusCode::FORBIDDEN, &one.body), "{change}");
        }
    }
    // A malformed path reveals no more.
    for path in ["/accounts/new", "/accounts/%FF"] {
        let rejected = firm.ben.browser.get(path).await;
        assert_eq!((rejected.status, &rejected.body), (StatusCode::FORBIDDEN, &one.body), "{path}");
    }
    for path in [
        "/accounts/x/limits",
        "/accounts/x/billing",
        "/accounts/x/close",
        "/accounts/x/keys",
        "/accounts/x/attach",
        "/accounts/keys/%FF/label",
        "/accounts/keys/%FF/attach",
        "/accounts/keys/%FF/revoke",
    ] {
        let rejected = firm.ben.browser.post(path, "").await;
        assert_eq!((rejected.status, &rejected.body), (StatusCode::FORBIDDEN, &one.body), "{path}");
    }
    let decisions = firm.decisions().await.split_off(decided);
    let ben = Some(firm.ben.id);
    let reads = decisions
        .iter()
        .map(in_short)
        .filter(|row| *row == (Action::ReadAccounts, Decision::Denied, None, ben));
    assert_eq!((decisions.len(), reads.count()), (19, 5), "each is on record");
    let stored = firm.portal.portal.store.keys.key_by_prefix(&key.prefix()).await.unwrap().unwrap().key;
    assert_eq!(stored.state, KeyState::Active);
}

#[tokio::test]
async fn account_names_and_labels_are_escaped() {
    let mut firm = Firm::open().await;
    let name = "<script>alert(1)</script>\" onload='x' & Co";
    let id = account(&mut firm, name).await.id;
    let label = "\"><img src=x onerror=alert(2)> {{ 7*7 }}";
    let (key, created) = create_key(&mut firm, &format!("/accounts/{id}/keys"), label).await;
    let relabelled = format!("/accounts/keys/{}/label", key.prefix());
    let change = firm.ruth.browser.post(&relabelled, &form(&[("label", "<b>x</b>")])).await;
    let done = follow(&mut firm, &change).await;
    let card = firm.ruth.browser.get(&format!("/accounts/{id}?key={}", key.prefix())).await.body;
    let list = firm.ruth.browser.get("/accounts").await.body;
    for page in [&created.body, &done, &card, &list] {
        for part in ["<script>alert", "<img", "<b>x", "onload='x'"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
    }
    assert!(list.contains("&#60;script&#62;alert(1)&#60;/script&#62;"), "{list}");
    assert!(done.contains("&#60;b&#62;x&#60;/b&#62;"), "{done}");
}

#[tokio::test]
async fn accounts_show_spend_last_use_and_drafting_badge() {
    let mut firm = Firm::open().await;
    let store = firm.portal.store.clone();
    let id = account(&mut firm, "Hale").await.id;
    let (key, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    let stored = store.keys.key_by_prefix(&key.prefix()).await.unwrap().unwrap().key;
    let price = TokenPrice::from_nanos_per_token;
    let mut row = UsageRow {
        request_id: RequestId::from_stored("req_1".to_owned()),
        account: id,
        key: stored.id,
        model: "m".to_owned(),
        input_tokens: 1_000_000,
        cached_input_tokens: 0,
        output_tokens: 1_000_000,
        prices: Prices { input: price(100), cached_input: price(100), output: price(400) },
        cost: Nanos(0),
        at: MORNING,
        stop_reason: StopReason::Complete,
    };
    row.cost = row.recomputed_cost().unwrap();
    store.ledger.settle(row.into()).await.unwrap();
    firm.ruth.browser.post(&format!("/accounts/{id}/limits"), "rpm=60&tpm=60000&cap=1").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    for part in ["$0.50", "of $1.00, 50%", "<time datetime=\"2026-11-13\">today</time>"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    firm.ruth.browser.post(&format!("/accounts/{id}/limits"), "rpm=60&tpm=60000&cap=0.5").await;
    let list = firm.ruth.browser.get("/accounts").await.body;
    assert!(list.contains("of $0.50, cap reached"), "{list}");

    let name: AccountName = crate::DRAFTING_ACCOUNT.parse().unwrap();
    let limits = firm.portal.portal.settings.api.default_limits;
    let drafting = store.create_account(NewAccount { name, limits, created_at: MORNING }).await.unwrap();
    let page = firm.ruth.browser.get(&format!("/accounts/{}?open=close", drafting.id)).await.body;
    for part in ["AI drafting", "pays for letters drafted with AI", "Closing it turns drafting off."] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(firm.ruth.browser.get("/accounts").await.body.contains("AI drafting"));
}

#[tokio::test]
async fn account_reads_and_changes_are_audited_first() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let ruth = Some(firm.ruth.id);
    let (read, managed) = (
        (Action::ReadAccounts, Decision::Allowed, None, ruth),
        (Action::ManageAccounts, Decision::Allowed, None, ruth),
    );
    let mut decided = firm.decisions().await.len();
    for (path, fields, expected) in [
        ("/accounts".to_owned(), None, vec![read]),
        (format!("/accounts/{id}"), None, vec![read]),
        (format!("/accounts/{id}/limits"), Some("rpm=1&tpm=1"), vec![managed]),
        (format!("/accounts/{id}/limits"), Some("rpm=&tpm=1"), vec![read]),
        (format!("/accounts/{id}/keys"), Some("label="), vec![managed]),
        ("/accounts".to_owned(), Some("name=Hale&rpm=1&tpm=1"), vec![read]),
        (format!("/accounts/{id}/close"), Some(""), vec![managed]),
    ] {
        match fields {
            None => drop(firm.ruth.browser.get(&path).await),
            Some(fields) => drop(firm.ruth.browser.post(&path, fields).await),
        }
        let decisions = firm.decisions().await;
        let new: Vec<_> = decisions[decided..].iter().map(in_short).collect();
        assert_eq!(new, expected, "{path}");
        decided = decisions.len();
    }
}

#[tokio::test]
async fn key_limits_are_set_when_it_is_created_and_changed_later() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let fields = [
        ("label", "backend"),
        ("rpm", "5"),
        ("tpm", ""),
        ("cap", "12.50"),
        ("models", "smollm2-135m"),
        ("expires", "2099-06-30"),
    ];
    let created = firm.ruth.browser.post(&format!("/accounts/{id}/keys"), &form(&fields)).await;
    assert_eq!(created.status, StatusCode::OK, "{}", created.body);
    let prefix = shown(&created.body).unwrap().prefix();
    let stored = firm.portal.portal.store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key.limits;
    assert_eq!((stored.requests_per_min, stored.tokens_per_min), (Some(5), None));
    assert_eq!(stored.spend_per_month, Some(Nanos(12_500_000_000)));
    assert_eq!(stored.expires_at.unwrap().to_iso(), "2099-07-01T00:00:00.000Z");
    let page = firm.ruth.browser.get(&format!("/accounts/{id}?key={prefix}")).await.body;
    for part in ["5 requests per minute; $12.50 per month; only smollm2-135m", "value=\"2099-06-30\""] {
        assert!(page.contains(part), "{part}: {page}");
    }

    let path = format!("/accounts/keys/{prefix}/limits");
    let change = firm.ruth.browser.post(&path, &form(&[("rpm", "7"), ("cap", "12.50")])).await;
    let page = follow(&mut firm, &change).await;
    assert!(page.contains("requests per minute from 5 to 7"), "{page}");
    let stored = firm.portal.portal.store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key.limits;
    assert_eq!(stored.requests_per_min, Some(7));
    assert!(stored.models.is_some() && stored.expires_at.is_some(), "absent fields change nothing");
    let change = firm.ruth.browser.post(&path, &form(&[("models", ""), ("expires", "")])).await;
    assert_eq!(change.status, StatusCode::SEE_OTHER, "{}", change.body);
    let stored = firm.portal.portal.store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key.limits;
    assert_eq!((stored.requests_per_min, stored.models, stored.expires_at), (Some(7), None, None));
    assert_eq!(stored.spend_per_month, Some(Nanos(12_500_000_000)));

    let bad = firm.ruth.browser.post(&path, &form(&[("rpm", "none"), ("expires", "soon")])).await;
    assert_eq!(bad.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["key-rpm-error", "key-expires-error", "value=\"soon\""] {
        assert!(bad.body.contains(part), "{part}: {}", bad.body);
    }
    let bad = firm.ruth.browser.post(&format!("/accounts/{id}/keys"), &form(&[("tpm", "0")])).await;
    assert_eq!(bad.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.body.contains("new-tpm-error"), "{}", bad.body);
}

#[tokio::test]
async fn rotated_key_is_shown_once_and_the_old_one_works_until_the_overlap_ends() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (old, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    let path = format!("/accounts/keys/{}/rotate", old.prefix());
    let reply = firm.ruth.browser.post(&path, "overlap_hours=1").await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(reply.headers["cache-control"], "no-store");
    let new = shown(&reply.body).unwrap();
    assert_eq!((new.prefix(), reply.body.matches(new.reveal()).count()), (old.prefix(), 1));
    assert!(reply.body.contains("The old key works until") && reply.body.contains("data-copies"));
    let stored = firm.portal.portal.store.keys.key_by_prefix(&old.prefix()).await.unwrap().unwrap().key;
    let now = firm.portal.portal.clock.now();
    let after = now.after(std::time::Duration::from_secs(3_600));
    assert!(stored.accepts(&old.hash(), now) && stored.accepts(&new.hash(), now));
    assert!(!stored.accepts(&old.hash(), after) && stored.accepts(&new.hash(), after));
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    assert!(page.contains(&format!("rotated the key {}", old.prefix())), "{page}");
    assert!(!page.contains(new.reveal()));

    let revoked = firm.ruth.browser.post(&format!("/accounts/keys/{}/revoke", old.prefix()), "").await;
    assert_eq!(revoked.status, StatusCode::SEE_OTHER);
    let rejected = firm.ruth.browser.post(&path, "overlap_hours=1").await;
    assert!(rejected.status.is_client_error() && shown(&rejected.body).is_none(), "{}", rejected.status);
}

/// The value of the hidden field with this name.
fn hidden_field(page: &str, name: &str) -> String {
    let start = format!("<input type=\"hidden\" name=\"{name}\" value=\"");
    let (_, rest) = page.split_once(&start).unwrap_or_else(|| panic!("no {name} in {page}"));
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn form_that_is_sent_again_creates_no_second_key() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    for (page, path) in [
        (format!("/accounts/{id}?open=key"), format!("/accounts/{id}/keys")),
        ("/accounts?open=key".to_owned(), "/accounts/keys".to_owned()),
    ] {
        let prefix = hidden_field(&firm.ruth.browser.get(&page).await.body, "prefix");
        let other = hidden_field(&firm.ruth.browser.get(&page).await.body, "prefix");
        assert_ne!(prefix, other, "each form creates a key of its own");
        let fields = form(&[("prefix", prefix.as_str()), ("label", "backend")]);
        let created = firm.ruth.browser.post(&path, &fields).await;
        assert_eq!(created.status, StatusCode::OK, "{}", created.body);
        let key = shown(&created.body).unwrap();
        assert_eq!(key.prefix().as_str(), prefix);

        let again = firm.ruth.browser.post(&path, &fields).await;
        assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
        assert!(again.body.contains("No second key was created."), "{}", again.body);
        assert!(!again.body.contains("Your unsaved text"), "the label is saved: {}", again.body);
        assert!(shown(&again.body).is_none(), "the secret is not shown again");
        let stored = firm.portal.portal.store.keys.key_by_prefix(&key.prefix()).await.unwrap().unwrap().key;
        assert!(stored.has_secret(&key.hash()), "the first key still works");
    }
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    assert_eq!(page.matches("<span class=\"sub\" dir=\"auto\">backend</span>").count(), 1, "{page}");
}

#[tokio::test]
async fn rotation_form_that_is_sent_again_rotates_once() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (old, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    let page = format!("/accounts/{id}?key={}&open=rotate", old.prefix());
    let secret = hidden_field(&firm.ruth.browser.get(&page).await.body, "secret");
    let path = format!("/accounts/keys/{}/rotate", old.prefix());
    let fields = form(&[("secret", secret.as_str()), ("overlap_hours", "0")]);
    let rotated = firm.ruth.browser.post(&path, &fields).await;
    assert_eq!(rotated.status, StatusCode::OK, "{}", rotated.body);
    let new = shown(&rotated.body).unwrap();
    let again = firm.ruth.browser.post(&path, &fields).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.body);
    assert!(again.body.contains("Key already rotated") && shown(&again.body).is_none(), "{}", again.body);
    let stored = firm.portal.portal.store.keys.key_by_prefix(&old.prefix()).await.unwrap().unwrap().key;
    assert!(stored.accepts(&new.hash(), firm.portal.portal.clock.now()), "the new key still works");
}

/// Servers may still use the secret before the last rotation.
#[tokio::test]
async fn rotation_ends_a_running_overlap_only_if_selected() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (old, _) = create_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    let path = format!("/accounts/keys/{}/rotate", old.prefix());
    firm.ruth.browser.post(&path, "overlap_hours=24").await;
    let rejected = firm.ruth.browser.post(&path, "overlap_hours=168").await;
    assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["end-overlap-error", "name=\"end_overlap\"", "<option value=\"168\" selected>"] {
        assert!(rejected.body.contains(part), "{part}: {}", rejected.body);
    }
    let now = firm.portal.portal.clock.now();
    let stored = firm.portal.portal.store.keys.key_by_prefix(&old.prefix()).await.unwrap().unwrap().key;
    assert!(stored.accepts(&old.hash(), now), "nothing was changed");

    let reply = firm.ruth.browser.post(&path, "overlap_hours=0&end_overlap=1").await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert!(reply.body.contains("The old key no longer works."), "{}", reply.body);
    let stored = firm.portal.portal.store.keys.key_by_prefix(&old.prefix()).await.unwrap().unwrap().key;
    assert!(!stored.accepts(&old.hash(), now) && stored.overlap_ends_at(now).is_none());
}

#[tokio::test]
async fn unassigned_key_can_be_created_with_limits_and_an_expired_one_is_reported() {
    let mut firm = Firm::open().await;
    let page = firm.ruth.browser.get("/accounts?open=key").await.body;
    for id in ["new-rpm", "new-tpm", "new-cap", "new-models", "new-expires"] {
        assert!(page.contains(&format!("id=\"{id}\"")), "{id}: {page}");
    }
    let fields = [("label", "spare"), ("rpm", "5"), ("expires", "1970-01-01")];
    let created = firm.ruth.browser.post("/accounts/keys", &form(&fields)).await;
    assert_eq!(created.status, StatusCode::OK, "{}", created.body);
    assert!(created.body.contains("This key has expired."), "{}", created.body);
    let prefix = shown(&created.body).unwrap().prefix();
    let stored = firm.portal.portal.store.keys.key_by_prefix(&prefix).await.unwrap().unwrap().key.limits;
    assert_eq!(stored.requests_per_min, Some(5));
    let bad = firm.ruth.browser.post("/accounts/keys", &form(&[("expires", "9999-12-31")])).await;
    assert_eq!(bad.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.body.contains("1970-01-01 to 9999-12-29"), "{}", bad.body);
}
