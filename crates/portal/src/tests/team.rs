//! `/team`: what partners see of each other and of the consultants, and what they change.

use super::Desk;
use super::firm::{Firm, in_short, manage};
use axum::http::StatusCode;
use chancery_domain::{Action, Decision, PersonId, Role};
use chancery_domain::{OsRandomness, SecretToken};
use chancery_store::{NewProviderAccount, NewProviderSession, PasswordHash};
use serde_json::Value;

async fn role_of(desk: &Desk, person: PersonId) -> Role {
    let people = desk.portal.store.people.list_people().await.unwrap();
    people.into_iter().find(|somebody| somebody.id == person).unwrap().role
}

#[tokio::test]
async fn the_team_is_everybody_with_role_clients_sessions_and_last_use() {
    let mut firm = Firm::open().await;
    firm.client(firm.ann.id, "One").await;
    firm.client(firm.ann.id, "Two").await;
    let _second = firm.ann.elsewhere(&firm.desk).await;
    let gone = firm.newcomer().await.id;
    firm.client(gone, "Left behind").await;
    firm.desk.portal.store.people.remove_person(manage(&firm.desk.portal), gone).await.unwrap();

    let page = firm.ruth.browser.get("/team").await;
    assert_eq!(page.status, StatusCode::OK);
    for part in [
        "ann@<wbr>company.com",
        "ruth@<wbr>company.com</a> <span class=\"badge badge-issued\">You</span>",
        "Partner</span>",
        "today, 09:14 UTC",
        "Removed",
        "Still owns clients",
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
async fn every_deed_is_decided_and_on_record_and_a_consultant_does_none_of_them() {
    let mut firm = Firm::open().await;
    let (ann, ben) = (firm.ann.id, firm.ben.id);
    for (path, form) in [
        ("/team/role", format!("person={ben}&role=partner")),
        ("/team/sign-out", format!("person={ben}")),
        ("/team/remove", format!("person={ben}")),
        ("/team/restore", format!("person={ben}")),
        ("/team/reassign", format!("from={ben}&to={ann}")),
        // What the form says does not matter to those who may not send one.
        ("/team/role", "nonsense".to_owned()),
    ] {
        let decided = firm.decisions().await.len();
        let reply = firm.ann.browser.post(path, &form).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}");
        let rows = firm.decisions().await.split_off(decided);
        let rows: Vec<_> = rows.iter().map(in_short).collect();
        assert_eq!(rows, [(Action::ManageTeam, Decision::Refused, None, Some(ann))], "{path}");
    }
    assert_eq!(role_of(&firm.desk, ben).await, Role::Consultant);
    assert_eq!(firm.ben.browser.get("/sessions").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_role_is_changed_from_the_next_request_on() {
    let mut firm = Firm::open().await;
    let ben = firm.ben.id;
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::FORBIDDEN);
    let reply = firm.ruth.browser.post("/team/role", &format!("person={ben}&role=partner")).await;
    assert_eq!(reply.location(), format!("/team?person={ben}&done=partner"));
    let page = firm.ruth.browser.get(reply.location()).await;
    assert!(page.body.contains("ben@company.com is a partner from the next request on."), "{}", page.body);
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::OK);
    firm.ruth.browser.post("/team/role", &format!("person={ben}&role=consultant")).await;
    assert_eq!(firm.ben.browser.get("/team").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn forms_that_say_nothing_or_nonsense_change_nothing_and_are_told_what_is_missing() {
    let mut firm = Firm::open().await;
    let ben = firm.ben.id;
    for (path, form, status, words) in [
        ("/team/role", "", 400, "`person`"),
        ("/team/role", &format!("person={ben}&role=owner"), 400, "`consultant` or `partner`"),
        ("/team/role", "person=ben&role=partner", 400, "`person`"),
        ("/team/role", "person=9999&role=partner", 404, "Nobody in the team"),
        ("/team/sign-out", "", 400, "`person`"),
        ("/team/sign-out", "person=9999", 404, "Nobody in the team"),
        ("/team/remove", "person=9999", 404, "Nobody in the team"),
        ("/team/restore", &format!("person={ben}"), 404, "Nobody in the team"),
        ("/team/reassign", "from=1", 400, "`to`"),
        ("/team/reassign", &format!("from={ben}&to={ben}"), 400, "the same person"),
        ("/team/reassign", &format!("from={ben}&to=9999"), 404, "Nobody in the team"),
    ] {
        let decided = firm.decisions().await.len();
        let reply = firm.ruth.browser.post(path, form).await;
        assert_eq!(reply.status, status, "{path} {form}");
        assert!(reply.body.contains(words), "{path} {form}: {}", reply.body);
        let rows: Vec<_> = firm.decisions().await.split_off(decided).iter().map(in_short).collect();
        let asked = (Action::ManageTeam, Decision::Allowed, None, Some(firm.ruth.id));
        assert_eq!(rows, [asked], "{path} {form}: that it was allowed is on record all the same");
    }
    assert_eq!(firm.ruth.browser.get("/team?person=9999").await.status, StatusCode::NOT_FOUND);
    assert_eq!(firm.ruth.browser.get("/team?person=x").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_last_partner_is_neither_removed_nor_made_a_consultant_and_the_page_says_what_to_do() {
    let mut firm = Firm::open().await;
    let (ruth, rob) = (firm.ruth.id, firm.rob.id);
    firm.ruth.browser.post("/team/remove", &format!("person={ruth}")).await;
    // Ruth took herself out; Rob is the last.
    let page = firm.rob.browser.get(&format!("/team?person={rob}")).await;
    assert!(page.body.contains("only partner") && page.body.contains("make somebody else a partner first"));
    assert!(!page.body.contains("action=\"/team/remove\""), "{}", page.body);
    for (path, form) in
        [("/team/remove", format!("person={rob}")), ("/team/role", format!("person={rob}&role=consultant"))]
    {
        let reply = firm.rob.browser.post(path, &form).await;
        assert_eq!(reply.status, StatusCode::CONFLICT, "{path}");
        assert!(reply.body.contains("Make somebody else a partner first"), "{}", reply.body);
    }
    assert_eq!(firm.rob.browser.get("/team").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_partner_is_told_what_becoming_a_consultant_means_before_doing_it_to_themselves() {
    let mut firm = Firm::open().await;
    let rob = firm.rob.id;
    let page = firm.rob.browser.get(&format!("/team?person={rob}")).await;
    for part in ["This is about you", "You cannot undo it; another partner can.", "Make me a consultant"] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let reply = firm.rob.browser.post("/team/role", &format!("person={rob}&role=consultant")).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/clients"));
    assert_eq!(firm.rob.browser.get("/team").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn whom_the_configuration_makes_a_partner_stays_one() {
    let mut firm = Firm::open().await;
    let ruth = firm.ruth.id;
    let page = firm.rob.browser.get(&format!("/team?person={ruth}")).await;
    assert!(page.body.contains("<code>portal.partners</code>"), "{}", page.body);
    let reply = firm.rob.browser.post("/team/role", &format!("person={ruth}&role=consultant")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert!(reply.body.contains("portal.partners"), "{}", reply.body);
    assert_eq!(role_of(&firm.desk, ruth).await, Role::Partner);
}

#[tokio::test]
async fn ending_somebodys_sessions_ends_all_of_them_those_at_the_built_in_provider_too() {
    let mut firm = Firm::open().await;
    let store = firm.desk.store.clone();
    let new = NewProviderAccount {
        subject: "ann".to_owned(),
        email: "ann@company.com".parse().unwrap(),
        password_hash: PasswordHash("x".to_owned()),
        at: super::MORNING,
    };
    let account = store.provider_accounts.create_provider_account(new).await.unwrap();
    let token = SecretToken::generate(&OsRandomness).hash();
    let password_version = account.password_version;
    let new = NewProviderSession { token, subject: account.subject, password_version, at: super::MORNING };
    store.provider_sessions.start_provider_session(new).await.unwrap();

    let mut elsewhere = firm.ann.elsewhere(&firm.desk).await;
    let ann = firm.ann.id;
    let reply = firm.ruth.browser.post("/team/sign-out", &format!("person={ann}")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=signed-out"));
    for browser in [&mut firm.ann.browser, &mut elsewhere] {
        assert!(browser.get("/sessions").await.location().starts_with("/auth/sign-in"));
    }
    let times = firm.desk.portal.settings.session_times;
    assert!(store.provider_sessions.provider_session(token, times, super::MORNING).await.unwrap().is_none());
    assert_eq!(firm.ben.browser.get("/sessions").await.status, StatusCode::OK, "nobody else's");
    let ruth = firm.ruth.id;
    let reply = firm.ruth.browser.post("/team/sign-out", &format!("person={ruth}")).await;
    assert_eq!(reply.location(), "/signed-out", "one's own end too");
    assert!(firm.ruth.browser.cookies.is_empty());
}

#[tokio::test]
async fn somebody_who_is_removed_is_out_at_once_and_comes_back_only_when_let_in_again() {
    let mut firm = Firm::open().await;
    let ann = firm.ann.id;
    firm.client(ann, "Harbour Lane Bakery").await;
    let page = firm.ruth.browser.get(&format!("/team?person={ann}")).await;
    assert!(
        page.body.contains("Owner of 1 client") && page.body.contains("Move them first"),
        "{}",
        page.body
    );
    let reply = firm.ruth.browser.post("/team/remove", &format!("person={ann}")).await;
    let page = firm.ruth.browser.get(reply.location()).await;
    for part in ["Still the owner of 1 client", "action=\"/team/reassign\"", "action=\"/team/restore\""] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("action=\"/team/remove\"") && !page.body.contains("action=\"/team/role\""));
    assert!(firm.ann.browser.get("/sessions").await.location().starts_with("/auth/sign-in"));
    let again = firm.ann.browser.come_back(super::browser::claims("ann", "ann@company.com")).await;
    assert_eq!(again.status, StatusCode::FORBIDDEN);
    let reply = firm.ruth.browser.post("/team/restore", &format!("person={ann}")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=restored"));
    assert!(firm.ann.browser.come_back(super::browser::claims("ann", "ann@company.com")).await.has_session());
}

#[tokio::test]
async fn all_clients_of_one_person_move_to_another_each_decided_and_on_record_by_itself() {
    let mut firm = Firm::open().await;
    let (ann, ben) = (firm.ann.id, firm.ben.id);
    let mut clients = Vec::new();
    for name in ["One", "Two", "Three"] {
        clients.push(firm.client(ann, name).await.client);
    }
    let bens = firm.client(ben, "Ben's own").await.client;
    let decided = firm.decisions().await.len();
    let reply = firm.ruth.browser.post("/team/reassign", &format!("from={ann}&to={ben}")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=moved&count=3&to={ben}"));
    let page = firm.ruth.browser.get(reply.location()).await;
    assert!(
        page.body.contains("3 clients of ann@company.com now belong to ben@company.com."),
        "{}",
        page.body
    );
    let rows = firm.decisions().await.split_off(decided);
    let moved: Vec<_> =
        rows.iter().filter(|row| row.asked.action == Action::ReassignClient).map(in_short).collect();
    let expected: Vec<_> = clients
        .iter()
        .map(|client| (Action::ReassignClient, Decision::Allowed, Some(*client), Some(firm.ruth.id)))
        .collect();
    assert_eq!(moved, expected);
    for client in clients.iter().chain([&bens]) {
        assert_eq!(firm.desk.portal.store.clients.owner_of(*client).await.unwrap(), Some(ben));
    }
    let nothing = firm.ruth.browser.post("/team/reassign", &format!("from={ann}&to={ben}")).await;
    assert!(nothing.location().contains("count=0"));
}
