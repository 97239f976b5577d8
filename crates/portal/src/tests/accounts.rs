//! `/accounts`: what partners see of who pays and of their keys, and what they change. A new key is shown once and nowhere else.

use super::MORNING;
use super::browser::Reply;
use super::firm::{Firm, in_short};
use axum::http::StatusCode;
use chancery_domain::{
    Account, AccountName, AccountState, Action, ApiKey, Decision, HowEnded, KeyState, Nanos, Prices,
    RequestId, TokenPrice, UsageRow,
};
use chancery_store::NewAccount;
use serde_json::Value;

async fn named(firm: &Firm, name: &str) -> Account {
    firm.desk.portal.store.account_lookup.account_named(&name.parse().unwrap()).await.unwrap()
}

/// Made by Ruth, in the portal.
async fn account(firm: &mut Firm, name: &str) -> Account {
    let form = form(&[("name", name), ("rpm", "60"), ("tpm", "60000")]);
    let made = firm.ruth.browser.post("/accounts", &form).await;
    assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.body);
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

async fn make_key(firm: &mut Firm, path: &str, label: &str) -> (ApiKey, Reply) {
    let reply = firm.ruth.browser.post(path, &form(&[("label", label)])).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    (shown(&reply.body).unwrap(), reply)
}

/// Where a deed led, which must be a page.
async fn follow(firm: &mut Firm, deed: &Reply) -> String {
    assert_eq!(deed.status, StatusCode::SEE_OTHER, "{}", deed.body);
    let page = firm.ruth.browser.get(deed.location()).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    page.body
}

#[tokio::test]
async fn an_account_is_made_and_its_page_says_what_it_may_use() {
    let mut firm = Firm::open().await;
    let empty = firm.ruth.browser.get("/accounts").await;
    assert!(empty.body.contains("No accounts yet") && empty.body.contains("href=\"/accounts?open=account"));
    let open = firm.ruth.browser.get("/accounts?open=account").await;
    for part in ["action=\"/accounts\"", "value=\"60\"", "value=\"60000\"", "Make account"] {
        assert!(open.body.contains(part), "{part}: {}", open.body);
    }
    let made = firm.ruth.browser.post("/accounts", "name=Hale+%26+Ward&rpm=120&tpm=200000").await;
    let page = follow(&mut firm, &made).await;
    for part in [
        "Hale &#38; Ward <span class=\"badge badge-paid\">Open</span>",
        "Made the account, with 120 requests and 200,000 tokens per minute.",
        "November so far (UTC)",
        "no cap",
        "Nobody yet",
        "ruth@company.com made the account",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let id = named(&firm, "Hale & Ward").await.id;
    for part in [format!("href=\"/usage?account={id}\""), format!("href=\"/invoices?account={id}\"")] {
        assert!(page.contains(&part), "{part}");
    }
    let list = firm.ruth.browser.get("/accounts").await.body;
    assert!(list.contains(&format!("<a href=\"/accounts/{id}\" data-row>Hale &#38; Ward</a>")), "{list}");
    firm.ruth.browser.accept = "application/json";
    let json: Value = serde_json::from_str(&firm.ruth.browser.get("/accounts").await.body).unwrap();
    assert_eq!((&json["total"], &json["accounts"][0]["rpm"]), (&1.into(), &120.into()));
    let json = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["name"], &json["spent_this_month"]), (&"Hale & Ward".into(), &"0.00".into()));
}

#[tokio::test]
async fn a_refused_form_keeps_what_was_typed_and_names_what_is_wrong_at_its_field() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let refused = firm.ruth.browser.post("/accounts", "name=Hale&rpm=7&tpm=8").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [
        "id=\"name-error\"",
        "already an account of this name",
        "value=\"Hale\"",
        "value=\"7\"",
        "<title>Error: ",
    ] {
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
    }
    let refused = firm.ruth.browser.post("/accounts", "name=+&rpm=0&tpm=1.5").await;
    for part in ["Three things to put right", "Enter the account’s name", "href=\"#rpm\"", "value=\"1.5\""]
    {
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
    }
    let limits = format!("/accounts/{id}/limits");
    let refused = firm.ruth.browser.post(&limits, "rpm=60&tpm=60000&cap=1%2C000").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["id=\"cap-error\"", "value=\"1,000\"", "aria-invalid=\"true\"", "<details open>"] {
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
    }
    let billing = format!("/accounts/{id}/billing");
    let refused = firm.ruth.browser.post(&billing, "address=12+Harbour+Lane&email=nobody").await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["12 Harbour Lane</textarea>", "id=\"email-error\"", "value=\"nobody\""] {
        assert!(refused.body.contains(part), "{part}: {}", refused.body);
    }
    let label = form(&[("label", &"x".repeat(101))]);
    for path in [format!("/accounts/{id}/keys"), "/accounts/keys".to_owned()] {
        let refused = firm.ruth.browser.post(&path, &label).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{path}");
        assert!(
            refused.body.contains("id=\"label-error\"") && refused.body.contains(&"x".repeat(101)),
            "{path}"
        );
    }
    assert!(firm.desk.portal.store.account_lookup.list_keys().await.unwrap().is_empty());
    let kept = named(&firm, "Hale").await;
    assert_eq!((kept.limits.requests_per_min, kept.spend_per_month), (60, None));
}

#[tokio::test]
async fn limits_cap_and_where_invoices_go_are_changed_and_told() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let limits = format!("/accounts/{id}/limits");
    let deed = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=250.000000001").await;
    let page = follow(&mut firm, &deed).await;
    let told = "Changed requests per minute from 60 to 120, the cap per month from none to 250.000000001.";
    for part in [told, "$250.000000001", "$0.00", "value=\"250.000000001\"", "role=\"status\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(named(&firm, "Hale").await.spend_per_month, Some(Nanos(250_000_000_001)));
    let again = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=250.000000001").await;
    assert!(follow(&mut firm, &again).await.contains("It was so already."));
    let none = firm.ruth.browser.post(&limits, "rpm=120&tpm=60000&cap=").await;
    assert!(follow(&mut firm, &none).await.contains("the cap per month from 250.000000001 to none."));
    let billing = form(&[("address", "12 Harbour Lane\r\nBoston"), ("email", "bills@hale.example")]);
    let deed = firm.ruth.browser.post(&format!("/accounts/{id}/billing"), &billing).await;
    let page = follow(&mut firm, &deed).await;
    for part in
        ["12 Harbour Lane<br>Boston", "bills@<wbr>hale.example", "Gave the address that invoices go to"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    // An address that is old or made up says nothing.
    let made_up = firm.ruth.browser.get(&format!("/accounts/{id}?done=987654")).await.body;
    assert!(!made_up.contains("notice-good"));
}

#[tokio::test]
async fn a_new_key_is_shown_once_and_in_no_later_page_header_or_record() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (key, reply) = make_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    assert_eq!(reply.headers["cache-control"], "no-store");
    for part in
        ["Copy it now.", "readonly", "$CHANCERY_API_KEY", "http://localhost:8080/v1/generate", "smollm2-135m"]
    {
        assert!(reply.body.contains(part), "{part}: {}", reply.body);
    }
    assert_eq!(reply.body.matches(key.reveal()).count(), 1, "once on its page");
    assert!(reply.headers.values().all(|value| !value.to_str().unwrap_or("").contains(key.reveal())));
    let kept = firm.desk.portal.store.keys.key_with_prefix(&key.prefix()).await.unwrap().unwrap();
    assert!(kept.key.hash.matches(&key.hash()));
    assert_eq!((kept.key.label.as_str(), kept.key.account), ("backend", Some(id)));

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
        [format!("<code>{prefix}</code>"), format!("made the key {prefix} “backend”"), "never".to_owned()]
    {
        assert!(page.contains(&part), "{part}: {page}");
    }
    let database = super::database::Database::of(&firm.desk).await;
    assert!(!format!("{:?}", database.contents().await).contains(secret));

    // Whoever sends the form again has another key, and both are listed.
    let (second, _) = make_key(&mut firm, &format!("/accounts/{id}/keys"), "backend").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    assert!(
        page.contains(prefix.as_str())
            && page.contains(second.prefix().as_str())
            && page.contains("2 active")
    );
}

#[tokio::test]
async fn keys_are_labelled_attached_moved_and_revoked_and_both_sides_tell() {
    let mut firm = Firm::open().await;
    let (hale, ward) = (account(&mut firm, "Hale").await.id, account(&mut firm, "Ward").await.id);
    let (key, reply) = make_key(&mut firm, "/accounts/keys", "").await;
    let prefix = key.prefix();
    assert!(reply.body.contains("It bills no account yet"), "{}", reply.body);
    let card = firm.ruth.browser.get(&format!("/accounts?key={prefix}")).await.body;
    for part in
        ["Attach it to an account", "Hale</option>", &format!("action=\"/accounts/keys/{prefix}/revoke\"")]
    {
        assert!(card.contains(part), "{part}: {card}");
    }
    let attach = format!("/accounts/keys/{prefix}/attach");
    let none = firm.ruth.browser.post(&attach, "account=").await;
    assert_eq!(none.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(none.body.contains("id=\"to-error\""), "{}", none.body);

    let deed = firm.ruth.browser.post(&format!("/accounts/{hale}/attach"), &format!("key={prefix}")).await;
    assert!(follow(&mut firm, &deed).await.contains(&format!("Attached the key {prefix}.")));
    let none = firm.ruth.browser.post(&format!("/accounts/{hale}/attach"), "key=").await;
    assert_eq!(none.status, StatusCode::UNPROCESSABLE_ENTITY);
    let deed = firm.ruth.browser.post(&attach, &format!("account={ward}")).await;
    assert_eq!(deed.location().split('?').next(), Some(format!("/accounts/{ward}").as_str()));
    assert!(follow(&mut firm, &deed).await.contains(&format!("Moved the key {prefix} here from Hale.")));
    assert!(
        firm.ruth
            .browser
            .get(&format!("/accounts/{hale}"))
            .await
            .body
            .contains(&format!("moved the key {prefix} to Ward"))
    );
    let deed = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/label"), "label=backend").await;
    assert!(follow(&mut firm, &deed).await.contains("from none to “backend”."));
    let bad = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/label"), "label=a%00b").await;
    assert_eq!(bad.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(bad.body.contains("id=\"key-label-error\""), "{}", bad.body);
    let deed = firm.ruth.browser.post(&format!("/accounts/keys/{prefix}/revoke"), "").await;
    let page = follow(&mut firm, &deed).await;
    assert!(
        page.contains(&format!("Revoked the key {prefix}.")) && page.contains("badge\">Revoked"),
        "{page}"
    );
    assert!(!page.contains(&format!("?key={prefix}")), "nothing is left to do with it");
    let kept = firm.desk.portal.store.keys.key_with_prefix(&prefix).await.unwrap().unwrap().key;
    assert_eq!(kept.state, KeyState::Revoked { at: MORNING });
    let refused = firm.ruth.browser.post(&attach, &format!("account={hale}")).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.body);
}

#[tokio::test]
async fn a_closed_account_keeps_its_page_and_takes_no_key() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    make_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    assert!(page.contains("Its one active key stops generating within one second (402)."), "{page}");
    let deed = firm.ruth.browser.post(&format!("/accounts/{id}/close"), "").await;
    let page = follow(&mut firm, &deed).await;
    for part in ["Closed the account.", "<span class=\"badge\">Closed</span>", "Change address and e-mail"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for part in ["Make key", "Change limits", "Close this account"] {
        assert!(!page.contains(part), "{part}: {page}");
    }
    assert_eq!(named(&firm, "Hale").await.state, AccountState::Closed { at: MORNING });
    let refused = firm.ruth.browser.post(&format!("/accounts/{id}/keys"), "label=x").await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(shown(&refused.body).is_none() && refused.body.contains("Hale is closed"), "{}", refused.body);
    let (key, _) = make_key(&mut firm, "/accounts/keys", "").await;
    let attach = format!("/accounts/keys/{}/attach", key.prefix());
    let refused = firm.ruth.browser.post(&attach, &format!("account={id}")).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.body.contains("closed meanwhile"), "{}", refused.body);
}

#[tokio::test]
async fn what_is_not_there_is_told_to_partners_and_hidden_from_consultants_in_the_same_bytes() {
    let mut firm = Firm::open().await;
    let id = account(&mut firm, "Hale").await.id;
    let (key, _) = make_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    for path in ["/accounts/987654", "/accounts/99999999999999999999999", "/accounts/-1"] {
        let missing = firm.ruth.browser.get(path).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}");
        assert!(missing.body.contains("There is no such account"), "{}", missing.body);
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
        for deed in ["revoke", "label", "attach"] {
            let refused = firm.ben.browser.post(&format!("/accounts/keys/{prefix}/{deed}"), "").await;
            assert_eq!((refused.status, &refused.body), (StatusCode::FORBIDDEN, &one.body), "{deed}");
        }
    }
    // What cannot even be read as an address tells no more.
    for path in ["/accounts/new", "/accounts/%FF"] {
        let refused = firm.ben.browser.get(path).await;
        assert_eq!((refused.status, &refused.body), (StatusCode::FORBIDDEN, &one.body), "{path}");
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
        let refused = firm.ben.browser.post(path, "").await;
        assert_eq!((refused.status, &refused.body), (StatusCode::FORBIDDEN, &one.body), "{path}");
    }
    let decisions = firm.decisions().await.split_off(decided);
    let ben = Some(firm.ben.id);
    let reads = decisions
        .iter()
        .map(in_short)
        .filter(|row| *row == (Action::ReadAccounts, Decision::Refused, None, ben));
    assert_eq!((decisions.len(), reads.count()), (19, 5), "each is on record");
    let kept = firm.desk.portal.store.keys.key_with_prefix(&key.prefix()).await.unwrap().unwrap().key;
    assert_eq!(kept.state, KeyState::Active);
}

#[tokio::test]
async fn hostile_names_and_labels_are_shown_as_they_were_written() {
    let mut firm = Firm::open().await;
    let name = "<script>alert(1)</script>\" onload='x' & Co";
    let id = account(&mut firm, name).await.id;
    let label = "\"><img src=x onerror=alert(2)> {{ 7*7 }}";
    let (key, made) = make_key(&mut firm, &format!("/accounts/{id}/keys"), label).await;
    let relabelled = format!("/accounts/keys/{}/label", key.prefix());
    let deed = firm.ruth.browser.post(&relabelled, &form(&[("label", "<b>x</b>")])).await;
    let done = follow(&mut firm, &deed).await;
    let card = firm.ruth.browser.get(&format!("/accounts/{id}?key={}", key.prefix())).await.body;
    let list = firm.ruth.browser.get("/accounts").await.body;
    for page in [&made.body, &done, &card, &list] {
        for part in ["<script>alert", "<img", "<b>x", "onload='x'"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
    }
    assert!(list.contains("&#60;script&#62;alert(1)&#60;/script&#62;"), "{list}");
    assert!(done.contains("&#60;b&#62;x&#60;/b&#62;"), "{done}");
}

#[tokio::test]
async fn spending_and_last_use_are_told_and_the_portals_own_account_is_marked() {
    let mut firm = Firm::open().await;
    let store = firm.desk.store.clone();
    let id = account(&mut firm, "Hale").await.id;
    let (key, _) = make_key(&mut firm, &format!("/accounts/{id}/keys"), "").await;
    let kept = store.keys.key_with_prefix(&key.prefix()).await.unwrap().unwrap().key;
    let price = TokenPrice::from_nanos_per_token;
    let mut row = UsageRow {
        request_id: RequestId::from_stored("req_1".to_owned()),
        account: id,
        key: kept.id,
        model: "m".to_owned(),
        input_tokens: 1_000_000,
        output_tokens: 1_000_000,
        prices: Prices { input: price(100), output: price(400) },
        cost: Nanos(0),
        at: MORNING,
        ended: HowEnded::Complete,
    };
    row.cost = row.recomputed_cost().unwrap();
    store.ledger.settle(row.into()).await.unwrap();
    firm.ruth.browser.post(&format!("/accounts/{id}/limits"), "rpm=60&tpm=60000&cap=1").await;
    let page = firm.ruth.browser.get(&format!("/accounts/{id}")).await.body;
    for part in ["$0.50", "of $1.00, 50\u{a0}%", "<time datetime=\"2026-11-13\">today</time>"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    firm.ruth.browser.post(&format!("/accounts/{id}/limits"), "rpm=60&tpm=60000&cap=0.5").await;
    let list = firm.ruth.browser.get("/accounts").await.body;
    assert!(list.contains("of $0.50: the cap is reached"), "{list}");

    let name: AccountName = crate::DRAFTING_ACCOUNT.parse().unwrap();
    let limits = firm.desk.portal.settings.api.default_limits;
    let drafting = store.create_account(NewAccount { name, limits, created_at: MORNING }).await.unwrap();
    let page = firm.ruth.browser.get(&format!("/accounts/{}", drafting.id)).await.body;
    for part in ["The portal’s own", "pays for the letters", "switches drafting off for good"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(firm.ruth.browser.get("/accounts").await.body.contains("The portal’s own"));
}

#[tokio::test]
async fn every_deed_and_every_read_is_on_record_before_it_is_told() {
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
