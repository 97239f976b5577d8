//! `/audit`: who requested what, for partners.

use super::firm::Firm;
use axum::http::StatusCode;
use chancery_store::AUDIT_ROWS_PER_PAGE;
use serde_json::Value;
use std::time::Duration;

async fn rows(firm: &mut Firm, query: &str) -> Vec<Value> {
    firm.ruth.browser.accept = "application/json";
    let reply = firm.ruth.browser.get(&format!("/audit{query}")).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    json["rows"].as_array().unwrap().clone()
}

#[tokio::test]
async fn audit_log_describes_actions_and_results() {
    let mut firm = Firm::open().await;
    assert_eq!(firm.ann.browser.get("/team").await.status, StatusCode::FORBIDDEN);
    let page = firm.ruth.browser.get("/audit").await;
    assert_eq!(page.status, StatusCode::OK);
    for part in [
        "ann@<wbr>company.com</span> <span class=\"badge badge-role\">Consultant</span>",
        "only-phone\">View team</span>",
        "Denied</span>",
        "only-phone\">View audit log</span>",
        "Allowed</span>",
        "Times are in UTC",
        "datetime=\"2026-11-13T09:14:00.000Z\">2026-11-13 09:14:00 UTC</time>",
        "href=\"/audit.csv\"",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let json = rows(&mut firm, "").await;
    assert_eq!(
        (&json[0]["action"], &json[0]["decision"]),
        (&"readAudit".into(), &"allowed".into()),
        "this reading"
    );
    let rejected = json.iter().find(|row| row["decision"] == "refused").unwrap();
    assert_eq!(
        (&rejected["person"]["email"], &rejected["role"], &rejected["action"], &rejected["client"]),
        (&"ann@company.com".into(), &"consultant".into(), &"readTeam".into(), &Value::Null)
    );
    assert!(rejected["request_id"].as_str().unwrap().starts_with("req_"));
}

#[tokio::test]
async fn audit_log_has_sign_ins_and_team_changes() {
    let mut firm = Firm::open().await;
    let (ann, ruth) = (firm.ann.id, firm.ruth.id);
    let form = format!("person={ann}&role=partner");
    assert_eq!(firm.ruth.browser.post("/team/role", &form).await.status, StatusCode::SEE_OTHER);
    assert_eq!(firm.ann.browser.post("/auth/sign-out", "").await.status, StatusCode::SEE_OTHER);

    let page = firm.ruth.browser.get("/audit").await;
    for part in [
        "Change role of ann@company.com from consultant to partner",
        "First sign-in, as a consultant",
        "<td class=\"only-desk\">Sign-out<",
        "from 192.0.2.7",
        "<option value=\"signedIn\">Sign-in</option>",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let csv = firm.ruth.browser.get("/audit.csv?action=roleChanged").await;
    let line = csv.body.split("\r\n").nth(1).unwrap();
    assert!(
        line.contains(
            ",manageTeam,Change role of ann@company.com from consultant to partner: allowed,,allowed,"
        ),
        "{line}"
    );
    assert!(line.ends_with(",roleChanged,ann@company.com,consultant,partner,,,"), "{line}");

    // The command line appointed the firm's partners; only this change was made by a person.
    let changed = rows(&mut firm, &format!("?action=roleChanged&person={ruth}")).await;
    assert_eq!(changed.len(), 1);
    assert_eq!(
        (&changed[0]["person"]["id"], &changed[0]["subject"]["id"], &changed[0]["new_role"]),
        (&ruth.0.into(), &ann.0.into(), &"partner".into())
    );
    let left = rows(&mut firm, &format!("?action=signedOut&person={ann}")).await;
    assert_eq!(left.len(), 1);
    assert_eq!(
        (&left[0]["event"], &left[0]["action"], &left[0]["decision"], &left[0]["role"]),
        (&"signedOut".into(), &Value::Null, &Value::Null, &"partner".into())
    );
    assert_eq!(left[0]["ip_address"], "192.0.2.7");
}

#[tokio::test]
async fn audit_filters_by_person_client_action_result_and_date() {
    let mut firm = Firm::open().await;
    let created = firm.client(firm.ann.id, "One").await;
    let (ann, client) = (firm.ann.id, created.client);
    firm.ann.browser.get("/team").await;
    firm.portal.pass(Duration::from_secs(86_400));
    let mut ann_later = firm.ann.elsewhere(&firm.portal).await;
    ann_later.get("/audit").await;
    firm.ruth.browser = firm.ruth.elsewhere(&firm.portal).await;

    let rejected = rows(&mut firm, "?decision=refused").await;
    assert_eq!(rejected.len(), 2);
    assert_eq!((&rejected[0]["action"], &rejected[1]["action"]), (&"readAudit".into(), &"readTeam".into()));
    assert_eq!(rows(&mut firm, &format!("?person={ann}&decision=refused&action=readTeam")).await.len(), 1);
    assert_eq!(rows(&mut firm, "?decision=refused&from=2026-11-14").await.len(), 1);
    assert_eq!(rows(&mut firm, "?decision=refused&to=2026-11-13").await.len(), 1);
    assert_eq!(rows(&mut firm, "?decision=refused&from=2026-11-13&to=2026-11-14").await.len(), 2);
    let of_client = rows(&mut firm, &format!("?client={client}")).await;
    assert!(!of_client.is_empty() && of_client.iter().all(|row| row["client"] == client.0), "{of_client:?}");
    assert!(rows(&mut firm, "?client=987654").await.is_empty());

    firm.ruth.browser.accept = super::routes::HTML;
    let empty = firm.ruth.browser.get("/audit?client=987654").await;
    assert!(empty.body.contains("No entries match these filters") && empty.body.contains("value=\"987654\""));
    let chosen = firm.ruth.browser.get(&format!("/audit?person={ann}&decision=refused")).await;
    assert!(chosen.body.contains(&format!("<option value=\"{ann}\" selected>ann@company.com</option>")));
    assert!(chosen.body.contains("<option value=\"refused\" selected>"));
    assert!(
        chosen.body.contains(&format!("href=\"/audit.csv?person={ann}&#38;decision=refused\"")),
        "{}",
        chosen.body
    );
}

#[tokio::test]
async fn invalid_audit_filter_shows_a_field_error_and_no_rows() {
    let mut firm = Firm::open().await;
    let page = firm.ruth.browser.get("/audit?client=ten&from=13.11.2026").await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [
        "id=\"client-error\"",
        "id=\"from-error\"",
        "Enter a date like 2026-11-15",
        "value=\"ten\"",
        "role=\"alert\"",
        "<title>Error: audit log",
        "href=\"#client\"",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("<table"));
    firm.ruth.browser.accept = "application/json";
    for path in ["/audit?action=peek", "/audit.csv?action=peek"] {
        let reply = firm.ruth.browser.get(path).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(reply.body.contains("`action`: Choose an action from the list"), "{}", reply.body);
    }
}

#[tokio::test]
async fn audit_log_names_clients_and_says_what_changed() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    firm.portal.pass(Duration::from_secs(60));
    let form = "version=1&name=Harbour+Lane+Bakers&telephone=%2B1+617+555+0142";
    let reply = firm.ann.browser.post(&format!("/clients/{client}"), form).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    firm.portal.pass(Duration::from_secs(60));
    let form = "kind=meeting_note&title=Flour+prices&text=Up+again.";
    let reply = firm.ann.browser.post(&format!("/clients/{client}/entries"), form).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);

    let page = firm.ruth.browser.get(&format!("/audit?client={client}&action=editClient")).await;
    for part in [
        format!(
            "<a href=\"/clients/{client}\" dir=\"auto\">Harbour Lane Bakers</a><span class=\"sub\">{client}</span>"
        ),
        "<bdi>Name</bdi>: <del dir=\"auto\">Harbour Lane Bakery</del> → <ins dir=\"auto\">Harbour Lane Bakers</ins>"
            .to_owned(),
        "<bdi>Telephone</bdi>: <del dir=\"auto\">(empty)</del> → <ins dir=\"auto\">+1 617 555 0142</ins>".to_owned(),
        "Note “Flour prices” added".to_owned(),
        format!("href=\"/clients/{client}/versions\""),
    ] {
        assert!(page.body.contains(&part), "{part}: {}", page.body);
    }
    let csv = firm.ruth.browser.get(&format!("/audit.csv?client={client}&action=editClient")).await;
    let line = csv.body.split("\r\n").find(|line| line.contains("Name: ")).unwrap();
    assert!(
        line.contains(",Harbour Lane Bakers,")
            && line.contains("Name: Harbour Lane Bakery → Harbour Lane Bakers; "),
        "{line}"
    );
    let json = rows(&mut firm, &format!("?client={client}&action=editClient")).await;
    let edited = json.iter().find(|row| row["changes"][0]["entry"].is_null()).unwrap();
    assert_eq!(edited["client_name"], "Harbour Lane Bakers");
    assert_eq!(
        edited["changes"][0]["fields"][0],
        serde_json::json!({"field": "name", "old": "Harbour Lane Bakery", "new": "Harbour Lane Bakers"})
    );
    // A number without a client has no name.
    firm.ruth.browser.get("/clients/987654").await;
    let missing = rows(&mut firm, "?client=987654").await;
    assert_eq!((&missing[0]["client_name"], &missing[0]["changes"]), (&Value::Null, &serde_json::json!([])));
}

#[tokio::test]
async fn consecutive_views_of_a_client_are_one_line_of_the_page() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    for _ in 0..3 {
        firm.ann.browser.get(&format!("/clients/{client}")).await;
        firm.portal.pass(Duration::from_secs(60));
    }
    let filter = format!("?client={client}&action=readClient");
    let page = firm.ruth.browser.get(&format!("/audit{filter}")).await;
    for part in
        ["Viewed 3 times", "2026-11-13 09:14–09:16 UTC", "Show each view", ">2026-11-13 09:15:00 UTC</time>"]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert_eq!(rows(&mut firm, &filter).await.len(), 3, "JSON has every view");
}

#[tokio::test]
async fn audit_filters_are_remembered_until_they_are_cleared() {
    let mut firm = Firm::open().await;
    let filtered = "/audit?client=987654&decision=refused";
    assert_eq!(firm.ruth.browser.get(filtered).await.status, StatusCode::OK);
    firm.ruth.browser.get("/clients").await;
    let again = firm.ruth.browser.get("/audit").await;
    assert_eq!((again.status, again.location()), (StatusCode::SEE_OTHER, filtered));
    let page = firm.ruth.browser.get(filtered).await;
    assert!(page.body.contains("<a href=\"/audit?clear=1\">Clear filters</a>"), "{}", page.body);
    assert!(!rows(&mut firm, "").await.is_empty(), "programs say what they want");

    firm.ruth.browser.accept = super::routes::HTML;
    let cleared = firm.ruth.browser.get("/audit?clear=1").await;
    assert_eq!((cleared.status, cleared.location()), (StatusCode::SEE_OTHER, "/audit"));
    assert_eq!(firm.ruth.browser.get("/audit").await.status, StatusCode::OK);
    // The form without any filter forgets them too.
    firm.ruth.browser.get(filtered).await;
    firm.ruth.browser.get("/audit?person=&client=&action=&decision=&from=&to=").await;
    assert_eq!(firm.ruth.browser.get("/audit").await.status, StatusCode::OK);
}

#[tokio::test]
async fn audit_pages_have_every_row_once() {
    let mut firm = Firm::open().await;
    let (per_page, ann) = (AUDIT_ROWS_PER_PAGE as usize, firm.ann.id);
    for _ in 0..2 * per_page + 30 {
        firm.ann.browser.get("/team").await;
    }
    firm.ruth.browser.accept = "application/json";
    let page = async |firm: &mut Firm, path: &str| -> Value {
        serde_json::from_str(&firm.ruth.browser.get(path).await.body).unwrap()
    };
    let ids = |page: &Value| -> Vec<String> {
        page["rows"].as_array().unwrap().iter().map(|row| row["request_id"].to_string()).collect()
    };
    let first = page(&mut firm, &format!("/audit?person={ann}&action=readTeam")).await;
    assert_eq!(first["newer"], Value::Null);
    let second = page(&mut firm, first["older"].as_str().unwrap()).await;
    let third = page(&mut firm, second["older"].as_str().unwrap()).await;
    assert_eq!(third["older"], Value::Null);
    let all: Vec<_> = [&first, &second, &third].into_iter().flat_map(ids).collect();
    assert_eq!(all.len(), 2 * per_page + 30);
    assert!(all.is_sorted_by(|a, b| a != b), "each row once");
    let back = page(&mut firm, third["newer"].as_str().unwrap()).await;
    assert_eq!(ids(&back), ids(&second), "newer leads back to the very page");
    let back = page(&mut firm, back["newer"].as_str().unwrap()).await;
    assert_eq!(ids(&back), ids(&first));
}

#[tokio::test]
async fn audit_csv_has_all_matching_rows_and_no_formulas() {
    let mut firm = Firm::open().await;
    let ann = firm.ann.id;
    let requests = AUDIT_ROWS_PER_PAGE as usize * 2 + 5;
    for _ in 0..requests {
        firm.ann.browser.get("/team").await;
    }
    firm.ruth.browser.get("/clients/-5").await;
    let reply = firm.ruth.browser.get(&format!("/audit.csv?person={ann}&action=readTeam")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers["content-type"], "text/csv; charset=utf-8; header=present");
    assert_eq!(reply.headers["content-disposition"], "attachment; filename=\"audit-2026-11-13.csv\"");
    let lines: Vec<_> = reply.body.split("\r\n").collect();
    let columns = "at,person,role,action,words,client,decision,request_id,event,subject,old_role,new_role,ip_address,\
        client_name,changes";
    assert_eq!(lines[0], columns);
    assert_eq!(lines.len(), requests + 2, "a head, the rows, and the end of the last");
    assert!(lines[1].starts_with(
        "2026-11-13T09:14:00.000Z,ann@company.com,consultant,readTeam,View team: denied,,refused,req_"
    ));
    let negative = firm.ruth.browser.get("/audit.csv?client=-5").await;
    assert!(!negative.body.contains(",-5,"), "{}", negative.body);
    assert_eq!(firm.ann.browser.get("/audit.csv").await.status, StatusCode::FORBIDDEN);
}
