//! `/team`: what partners see and change.

use super::TestPortal;
use super::browser::claims;
use super::database::Database;
use super::firm::{Firm, add_provider_account, in_short, manage};
use axum::http::StatusCode;
use chancery_domain::{Action, Decision, PersonId, Role};
use chancery_domain::{OsRandomness, SecretToken};
use chancery_store::{NewProviderAccount, NewProviderSession, NewTotpSecret, PasswordHash};
use serde_json::Value;
use std::time::Duration;

async fn role_of(portal: &TestPortal, person: PersonId) -> Role {
    let people = portal.portal.store.people.list_people().await.unwrap();
    people.into_iter().find(|found| found.id == person).unwrap().role
}

#[tokio::test]
async fn team_lists_role_clients_sessions_and_last_activity() {
    let mut firm = Firm::open().await;
    firm.client(firm.ann.id, "One").await;
    firm.client(firm.ann.id, "Two").await;
    let _second = firm.ann.elsewhere(&firm.portal).await;
    let gone = firm.newcomer().await.id;
    firm.client(gone, "Left behind").await;
    firm.portal
        .portal
        .store
        .people
        .remove_person(manage(&firm.portal.portal), gone, Box::new(|_| true))
        .await
        .unwrap();

    let page = firm.ruth.browser.get("/team").await;
    assert_eq!(page.status, StatusCode::OK);
    for part in [
        "ann@<wbr>company.com",
        "ruth@<wbr>company.com</span></a> <span class=\"badge badge-issued\">You</span>",
        "Partner</span>",
        "today, 09:14 UTC",
        "Removed",
        "Owns clients",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    firm.ruth.browser.accept = "application/json";
    let json: Value = serde_json::from_str(&firm.ruth.browser.get("/team").await.body).unwrap();
    let people = json["people"].as_array().unwrap();
    let of = |email: &str| people.iter().find(|person| person["email"] == email).unwrap();
    let ann = of("ann@company.com");
    assert_eq!(
        (&ann["role"], &ann["clients"], &ann["archived_clients"], &ann["sessions"]),
        (&"consultant".into(), &2.into(), &0.into(), &2.into())
    );
    assert_eq!(ann["id"], firm.ann.id.0);
    assert_eq!((&ann["joined_at"], &ann["removed_at"]), (&"2026-11-13T09:14:00.000Z".into(), &Value::Null));
    assert_eq!(of("rob@company.com")["role"], "partner");
    let last = people.last().unwrap();
    assert_eq!((&last["id"], &last["removed_at"]), (&gone.0.into(), &"2026-11-13T09:14:00.000Z".into()));
}

#[tokio::test]
async fn team_changes_are_audited_and_partner_only() {
    let mut firm = Firm::open().await;
    let (ann, ben) = (firm.ann.id, firm.ben.id);
    for (path, form) in [
        ("/team/role", format!("person={ben}&role=partner")),
        ("/team/sign-out", format!("person={ben}")),
        ("/team/remove", format!("person={ben}")),
        ("/team/restore", format!("person={ben}")),
        ("/team/reassign", format!("from={ben}&to={ann}")),
        // The form is irrelevant for people who may not submit it.
        ("/team/role", "nonsense".to_owned()),
    ] {
        let decided = firm.decisions().await.len();
        let reply = firm.ann.browser.post(path, &form).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
        let rows = firm.decisions().await.split_off(decided);
        let rows: Vec<_> = rows.iter().map(in_short).collect();
        assert_eq!(rows, [(Action::ManageTeam, Decision::Denied, None, Some(ann))], "{path}");
    }
    assert_eq!(role_of(&firm.portal, ben).await, Role::Consultant);
    assert_eq!(firm.ben.browser.get("/sessions").await.status, StatusCode::OK);
}

#[tokio::test]
async fn role_change_applies_on_the_next_request() {
    let mut firm = Firm::open().await;
    let ben = firm.ben.id;
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::FORBIDDEN);
    let reply = firm.ruth.browser.post("/team/role", &format!("person={ben}&role=partner")).await;
    assert_eq!(reply.location(), format!("/team?person={ben}&done=partner"));
    let page = firm.ruth.browser.get(reply.location()).await;
    assert!(page.body.contains("ben@company.com is now a partner."), "{}", page.body);
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::OK);
    firm.ruth.browser.post("/team/role", &format!("person={ben}&role=consultant")).await;
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn invalid_team_forms_are_rejected_without_effect() {
    let mut firm = Firm::open().await;
    let ben = firm.ben.id;
    for (path, form, status, text) in [
        ("/team/role", "", 400, "`person`"),
        ("/team/role", &format!("person={ben}&role=owner"), 400, "`consultant` or `partner`"),
        ("/team/role", "person=ben&role=partner", 400, "`person`"),
        ("/team/role", "person=9999&role=partner", 404, "This person is not on the team."),
        ("/team/sign-out", "", 400, "`person`"),
        ("/team/sign-out", "person=9999", 404, "This person is not on the team."),
        ("/team/remove", "person=9999", 404, "This person is not on the team."),
        ("/team/restore", &format!("person={ben}"), 404, "This person is not on the team."),
        ("/team/reassign", "from=1", 400, "`to`"),
        ("/team/reassign", &format!("from={ben}&to={ben}"), 400, "the same person"),
        ("/team/reassign", &format!("from={ben}&to=9999"), 404, "This person is not on the team."),
    ] {
        let decided = firm.decisions().await.len();
        let reply = firm.ruth.browser.post(path, form).await;
        assert_eq!(reply.status, status, "{path} {form}");
        assert!(reply.body.contains(text), "{path} {form}: {}", reply.body);
        let rows: Vec<_> = firm.decisions().await.split_off(decided).iter().map(in_short).collect();
        let expected = (Action::ManageTeam, Decision::Allowed, None, Some(firm.ruth.id));
        assert_eq!(rows, [expected], "{path} {form}: that it was allowed is on record all the same");
    }
    assert_eq!(firm.ruth.browser.get("/team?person=9999").await.status, StatusCode::NOT_FOUND);
    assert_eq!(firm.ruth.browser.get("/team?person=x").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn last_partner_cannot_be_removed_or_demoted() {
    let mut firm = Firm::open().await;
    let (ruth, rob) = (firm.ruth.id, firm.rob.id);
    firm.ruth.browser.post("/team/remove", &format!("person={ruth}&confirmed=1")).await;
    // Ruth removed herself, so Rob is the last partner.
    let page = firm.rob.browser.get(&format!("/team?person={rob}")).await;
    assert!(page.body.contains("only partner") && page.body.contains("make someone else a partner first"));
    assert!(!page.body.contains("action=\"/team/remove\""), "{}", page.body);
    for (path, form) in
        [("/team/remove", format!("person={rob}")), ("/team/role", format!("person={rob}&role=consultant"))]
    {
        let reply = firm.rob.browser.post(path, &form).await;
        assert_eq!(reply.status, StatusCode::CONFLICT, "{path}");
        assert!(reply.body.contains("Make someone else a partner first"), "{}", reply.body);
    }
    assert_eq!(firm.rob.browser.get("/team").await.status, StatusCode::OK);
}

#[tokio::test]
async fn self_demotion_is_explained_first() {
    let mut firm = Firm::open().await;
    let rob = firm.rob.id;
    let page = firm.rob.browser.get(&format!("/team?person={rob}&open=role")).await;
    for part in
        ["This changes your own access.", "Only another partner can undo this.", "Make consultant</button>"]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let reply = firm.rob.browser.post("/team/role", &format!("person={rob}&role=consultant")).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/clients"));
    assert_eq!(firm.rob.browser.get("/team").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn configured_partner_cannot_be_demoted() {
    let mut firm = Firm::open().await;
    let ruth = firm.ruth.id;
    let page = firm.rob.browser.get(&format!("/team?person={ruth}")).await;
    assert!(page.body.contains("<code>portal.partners</code>"), "{}", page.body);
    let reply = firm.rob.browser.post("/team/role", &format!("person={ruth}&role=consultant")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert!(reply.body.contains("portal.partners"), "{}", reply.body);
    assert_eq!(role_of(&firm.portal, ruth).await, Role::Partner);
}

#[tokio::test]
async fn ending_sessions_includes_provider_sessions() {
    let mut firm = Firm::open().await;
    let store = firm.portal.store.clone();
    let new = NewProviderAccount {
        subject: "ann".to_owned(),
        email: "ann@company.com".parse().unwrap(),
        password_hash: PasswordHash("x".to_owned()),
        at: super::MORNING,
    };
    let account = store.provider_accounts.create_provider_account(new).await.unwrap();
    let token = SecretToken::generate(&OsRandomness).hash();
    let password_version = account.password_version;
    let new = NewProviderSession {
        token,
        subject: account.subject,
        password_version,
        sid: "session".to_owned(),
        amr: "pwd".to_owned(),
        at: super::MORNING,
    };
    store.provider_sessions.start_provider_session(new).await.unwrap();

    let mut elsewhere = firm.ann.elsewhere(&firm.portal).await;
    let ann = firm.ann.id;
    let reply = firm.ruth.browser.post("/team/sign-out", &format!("person={ann}")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=signed-out"));
    for browser in [&mut firm.ann.browser, &mut elsewhere] {
        assert!(browser.get("/sessions").await.location().starts_with("/auth/sign-in"));
    }
    let times = firm.portal.portal.settings.session_times;
    assert!(store.provider_sessions.provider_session(token, times, super::MORNING).await.unwrap().is_none());
    assert_eq!(firm.ben.browser.get("/sessions").await.status, StatusCode::OK, "nobody else's");
    let ruth = firm.ruth.id;
    let reply = firm.ruth.browser.post("/team/sign-out", &format!("person={ruth}")).await;
    assert_eq!(reply.location(), "/signed-out", "one's own end too");
    assert!(firm.ruth.browser.cookies.get("session").is_none());
}

#[tokio::test]
async fn removed_person_is_out_until_restored() {
    let mut firm = Firm::open().await;
    let ann = firm.ann.id;
    firm.client(ann, "Harbour Lane Bakery").await;
    let page = firm.ruth.browser.get(&format!("/team?person={ann}")).await;
    assert!(
        page.body.contains("<strong>Owns 1 client.</strong> After removal")
            && page.body.contains("Reassign them</a>"),
        "{}",
        page.body
    );
    let reply = firm.ruth.browser.post("/team/remove", &format!("person={ann}&confirmed=1")).await;
    let page = firm.ruth.browser.get(reply.location()).await;
    for part in [
        "<strong>Owns 1 client.</strong> Only partners can open them",
        "action=\"/team/reassign\"",
        "action=\"/team/restore\"",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("action=\"/team/remove\"") && !page.body.contains("action=\"/team/role\""));
    assert!(firm.ann.browser.get("/sessions").await.location().starts_with("/auth/sign-in"));
    let again = firm.ann.browser.follow_callback(claims("ann", "ann@company.com")).await;
    assert_eq!(again.status, StatusCode::FORBIDDEN);
    let reply = firm.ruth.browser.post("/team/restore", &format!("person={ann}")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=restored"));
    assert!(firm.ann.browser.follow_callback(claims("ann", "ann@company.com")).await.has_session());
}

#[tokio::test]
async fn bulk_reassign_audits_each_client() {
    let mut firm = Firm::open().await;
    let (ann, ben) = (firm.ann.id, firm.ben.id);
    let mut clients = Vec::new();
    for name in ["One", "Two", "Three"] {
        clients.push(firm.client(ann, name).await.client);
    }
    let bens = firm.client(ben, "Ben's own").await.client;
    let decided = firm.decisions().await.len();
    let reply = firm.ruth.browser.post("/team/reassign", &format!("from={ann}&to={ben}&confirmed=3")).await;
    let at = super::MORNING.0;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=moved&to={ben}&count=3&undo={at}"));
    let page = firm.ruth.browser.get(reply.location()).await;
    assert!(
        page.body.contains("3 clients of ann@company.com reassigned to ben@company.com."),
        "{}",
        page.body
    );
    let rows = firm.decisions().await.split_off(decided);
    let moved: Vec<_> =
        rows.iter().filter(|row| row.access_request.action == Action::ReassignClient).map(in_short).collect();
    let expected: Vec<_> = clients
        .iter()
        .map(|client| (Action::ReassignClient, Decision::Allowed, Some(*client), Some(firm.ruth.id)))
        .collect();
    assert_eq!(moved, expected);
    for client in clients.iter().chain([&bens]) {
        assert_eq!(firm.portal.portal.store.clients.owner_of(*client).await.unwrap(), Some(ben));
    }
    let nothing = firm.ruth.browser.post("/team/reassign", &format!("from={ann}&to={ben}")).await;
    assert!(nothing.location().contains("count=0"));
    assert!(!firm.ruth.browser.get(nothing.location()).await.body.contains(">Undo<"));
}

#[tokio::test]
async fn team_changes_wait_until_their_count_is_confirmed() {
    let mut firm = Firm::open().await;
    let (ann, ben, rob) = (firm.ann.id, firm.ben.id, firm.rob.id);
    for name in ["One", "Two"] {
        firm.client(ann, name).await;
    }
    let mut twin = firm.portal.browser();
    assert!(twin.follow_callback(claims("twin", "ben+twin@company.com")).await.has_session());
    add_provider_account(&firm.portal, rob).await;
    let secret = NewTotpSecret {
        subject: "rob".to_owned(),
        secret: vec![0; 20],
        step: 0,
        recovery_codes: (0..10).map(|_| SecretToken::generate(&OsRandomness).hash()).collect(),
        at: super::MORNING,
    };
    firm.portal.store.second_factors.add_totp(&secret).await.unwrap();
    let mut database = Database::of(&firm.portal).await;
    for (path, form, count, parts) in [
        (
            "/team/reassign",
            format!("from={ann}&to={ben}"),
            2,
            ["2 clients of ann@company.com to ben@company.com", ">Move 2 clients</button>"],
        ),
        (
            "/team/remove",
            format!("person={ben}"),
            2,
            ["ben+twin@company.com</strong>", ">Remove 2 people</button>"],
        ),
        (
            "/team/reset-factors",
            format!("person={rob}"),
            11,
            ["10 recovery codes", ">Reset second factors of rob@company.com</button>"],
        ),
    ] {
        let before = database.contents().await;
        let decided = firm.decisions().await.len();
        let asked = firm.ruth.browser.post(path, &form).await;
        assert_eq!(asked.status, StatusCode::CONFLICT, "{path}");
        let confirmed = format!("name=\"confirmed\" value=\"{count}\"");
        let action = format!("action=\"{path}\"");
        for part in parts.iter().chain([&action.as_str(), &confirmed.as_str(), &"href=\"/team?person="]) {
            assert!(asked.body.contains(part), "{part}: {}", asked.body);
        }
        assert!(!asked.body.contains("has changed"), "{}", asked.body);
        for wrong in ["0", "12", "-1", "all", ""] {
            let again = firm.ruth.browser.post(path, &format!("{form}&confirmed={wrong}")).await;
            assert_eq!(again.status, StatusCode::CONFLICT, "{path} {wrong}");
            assert!(again.body.contains("This has changed since") && again.body.contains(&confirmed));
        }
        firm.ruth.browser.accept = "application/json";
        let json: Value = serde_json::from_str(&firm.ruth.browser.post(path, &form).await.body).unwrap();
        firm.ruth.browser.accept = "text/html";
        let error = &json["error"];
        assert_eq!((&error["code"], &error["count"]), (&"confirmation_required".into(), &count.into()));
        assert!(error["reason"].as_str().unwrap().contains("@company.com"), "{json}");
        let after = database.contents().await;
        assert!(before == after, "{path} changed {:?}", before.differing(&after));
        let rows = firm.decisions().await.split_off(decided);
        assert!(rows.iter().all(|row| row.effect.is_none()), "{path}: {rows:?}");
        assert!(rows.iter().all(|row| row.access_request.action != Action::ReassignClient), "{rows:?}");
        let done = firm.ruth.browser.post(path, &format!("{form}&confirmed={count}")).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{path}: {}", done.body);
        assert!(before != database.contents().await, "{path}");
    }
}

#[tokio::test]
async fn undo_gives_each_client_back_to_its_former_owner() {
    let mut firm = Firm::open().await;
    let (ann, ben, rob) = (firm.ann.id, firm.ben.id, firm.rob.id);
    let mut owned = Vec::new();
    for (owner, name) in [(ann, "One"), (ben, "Two"), (ann, "Three"), (rob, "Four")] {
        owned.push((firm.client(owner, name).await.client, owner));
    }
    // Both at the same time, which one undo names.
    for (from, count) in [(ann, 2), (ben, 1)] {
        let form = format!("from={from}&to={rob}&confirmed={count}");
        assert_eq!(firm.ruth.browser.post("/team/reassign", &form).await.status, StatusCode::SEE_OTHER);
    }
    let at = super::MORNING.0;
    let page =
        firm.ruth.browser.get(&format!("/team?person={ann}&done=moved&count=2&to={rob}&undo={at}")).await;
    assert!(page.body.contains(&format!("name=\"undo\" value=\"{at}\"")) && page.body.contains(">Undo<"));
    firm.portal.pass(Duration::from_secs(5));
    let denied = firm.ann.browser.post("/team/reassign", &format!("undo={at}")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    let decided = firm.decisions().await.len();
    let undone = firm.ruth.browser.post("/team/reassign", &format!("undo={at}")).await;
    let later = at + 5000;
    let expected = format!("/team?person={ann}&done=returned&skipped=0&count=3&undo={later}");
    assert_eq!(undone.location(), expected, "{}", undone.body);
    let rows = firm.decisions().await.split_off(decided);
    let moves = rows.iter().filter(|row| row.access_request.action == Action::ReassignClient);
    assert_eq!(moves.count(), 3);
    let page = firm.ruth.browser.get(&expected).await;
    assert!(page.body.contains("3 clients given back to the former owner."), "{}", page.body);
    for (client, owner) in owned {
        assert_eq!(firm.portal.portal.store.clients.owner_of(client).await.unwrap(), Some(owner));
    }
    let never = firm.ruth.browser.post("/team/reassign", "undo=1").await;
    assert_eq!(never.status, StatusCode::NOT_FOUND, "{}", never.body);
}

#[tokio::test]
async fn undo_skips_clients_reassigned_since_and_those_of_removed_people() {
    let mut firm = Firm::open().await;
    let (ann, ben, rob) = (firm.ann.id, firm.ben.id, firm.rob.id);
    let again = firm.client(ann, "Reassigned again").await.client;
    let left = firm.client(ann, "Left").await.client;
    let bens = firm.client(ben, "Of a removed person").await.client;
    for (from, count) in [(ann, 2), (ben, 1)] {
        firm.ruth
            .browser
            .post("/team/reassign", &format!("from={from}&to={rob}&confirmed={count}"))
            .await
            .location();
    }
    firm.portal.pass(Duration::from_secs(5));
    for owner in [ann, rob] {
        let path = format!("/clients/{again}/reassign");
        let moved = firm.ruth.browser.post(&path, &format!("owner={owner}")).await;
        assert_eq!(moved.status, StatusCode::SEE_OTHER);
    }
    firm.ruth.browser.post("/team/remove", &format!("person={ben}&confirmed=1")).await.location();
    let undone = firm.ruth.browser.post("/team/reassign", &format!("undo={}", super::MORNING.0)).await;
    assert!(undone.location().contains("&skipped=2&count=1&"), "{undone:?}");
    let page = firm.ruth.browser.get(undone.location()).await;
    assert!(page.body.contains("2 clients skipped"), "{}", page.body);
    for (client, owner) in [(again, rob), (left, ann), (bens, rob)] {
        assert_eq!(firm.portal.portal.store.clients.owner_of(client).await.unwrap(), Some(owner));
    }
}
