//! The list: search, sort order, pagination.

use super::{Firm, assert_has, form, get_json, json, new_client, new_entry};
use axum::http::StatusCode;
use serde_json::{Value, json as value};

fn names(list: &Value) -> Vec<&str> {
    list["clients"].as_array().unwrap().iter().map(|client| client["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn list_shows_exactly_the_readable_clients() {
    let mut firm = Firm::open().await;
    let anns = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let bens = new_client(&mut firm.ben, "Ostrander Freight").await;
    assert!(anns >= 1001 && bens == anns + 1, "numbers follow each other: {anns}, {bens}");
    let list = json(&mut firm.ann, "/clients").await;
    let only = value!({"id": anns, "name": "Harbour Lane Bakery", "owner": "ann@company.com"});
    assert_eq!(list, value!({"clients": [only], "page": 1, "pages": 1, "total": 1}));
    assert_eq!(json(&mut firm.ruth, "/clients").await["total"], 2);
    let ben = firm.number_of("ben@company.com").await;
    assert_eq!(json(&mut firm.ann, &format!("/clients?owner={ben}")).await["total"], 0);
    assert_eq!(names(&json(&mut firm.ruth, &format!("/clients?owner={ben}")).await), ["Ostrander Freight"]);

    let page = firm.ann.get("/clients").await;
    assert_has(&page, &["href=\"/clients/new\"", "Harbour Lane Bakery", "1–1 of 1"]);
    assert!(!page.body.contains("name=\"owner\""), "there is nothing to choose");
    assert_has(&firm.ruth.get("/clients").await, &["name=\"owner\"", "<option", "Ostrander Freight"]);
}

#[tokio::test]
async fn empty_list_and_empty_search_say_what_to_do() {
    let mut firm = Firm::open().await;
    assert_has(
        &firm.ann.get("/clients").await,
        &["No clients yet", "assigns to you", "href=\"/clients/new\""],
    );
    assert_has(&firm.ann.get("/clients?archived=1").await, &["No archived clients"]);
    new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let page = firm.ann.get("/clients?q=harbor+%3Cb%3E").await;
    assert_has(
        &page,
        &["Nothing matches “harbor &#60;b&#62;”", "Show all clients", "value=\"harbor &#60;b&#62;\""],
    );
    let past = firm.ann.get("/clients?page=9").await;
    assert_eq!(past.status, StatusCode::OK);
    assert_has(&past, &["No page 9", "href=\"/clients\""]);
    let past = json(&mut firm.ann, "/clients?page=9").await;
    assert_eq!(past, value!({"clients": [], "page": 9, "pages": 1, "total": 1}));
}

#[tokio::test]
async fn search_matches_name_contact_and_number() {
    let mut firm = Firm::open().await;
    let number = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = form(&[("name", "Ostrander Freight"), ("contact", "Joel Ostrander-Smith")]);
    firm.ann.post("/clients", &fields).await;
    for (terms, found) in [
        ("lane", "Harbour Lane Bakery"),
        ("BAK har", "Harbour Lane Bakery"),
        (number.to_string().as_str(), "Harbour Lane Bakery"),
        ("joel", "Ostrander Freight"),
    ] {
        let list = json(&mut firm.ann, &format!("/clients?{}", form(&[("q", terms)]))).await;
        assert_eq!(names(&list), [found], "{terms}");
    }
}

#[tokio::test]
async fn sort_links_have_aria_sort() {
    let mut firm = Firm::open().await;
    for name in ["Calder", "abbots", "Brightwater"] {
        new_client(&mut firm.ann, name).await;
    }
    let by_name = json(&mut firm.ann, "/clients?sort=name").await;
    assert_eq!(names(&by_name), ["abbots", "Brightwater", "Calder"]);
    let back = json(&mut firm.ann, "/clients?sort=-name").await;
    assert_eq!(names(&back), ["Calder", "Brightwater", "abbots"]);
    let page = firm.ann.get("/clients?sort=name&q=a").await;
    assert_has(
        &page,
        &[
            "<th scope=\"col\" aria-sort=\"ascending\"><a id=\"sort-name\" href=\"/clients?q=a&#38;sort=-name\"",
            "<input type=\"hidden\" form=\"search\" name=\"sort\" value=\"name\">",
        ],
    );
    assert_eq!(page.body.matches("aria-sort=").count(), 1);
    assert_has(&firm.ann.get("/clients").await, &["aria-sort=\"descending\"><a id=\"sort-last\""]);
}

#[tokio::test]
async fn invalid_list_parameter_is_rejected_by_name() {
    let mut firm = Firm::open().await;
    for (query, name) in [("page=abc", "page"), ("page=0", "page"), ("sort=x", "sort"), ("owner=zz", "owner")]
    {
        let page = firm.ann.get(&format!("/clients?{query}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST);
        assert_has(&page, &[&format!("`{name}`")]);
        let json = get_json(&mut firm.ann, &format!("/clients?{query}")).await;
        assert_eq!(json.status, StatusCode::BAD_REQUEST);
        let body: Value = serde_json::from_str(&json.body).unwrap();
        assert_eq!(body["error"]["code"], "bad_request");
        assert!(body["error"]["reason"].as_str().unwrap().contains(&format!("`{name}`")));
    }
}

#[tokio::test]
async fn pagination_keeps_the_search() {
    let mut firm = Firm::open().await;
    for number in 0..27 {
        new_client(&mut firm.ann, &format!("Client {number:02}")).await;
    }
    let first = firm.ann.get("/clients?q=client&sort=name").await;
    assert_has(
        &first,
        &["1–25 of 27", "href=\"/clients?q=client&#38;sort=name&#38;page=2\"", "rel=\"next\""],
    );
    let second = firm.ann.get("/clients?q=client&sort=name&page=2").await;
    assert_has(&second, &["26–27 of 27", "Client 26", "aria-current=\"page\"", "rel=\"prev\""]);
    let list = json(&mut firm.ann, "/clients?sort=name&page=2").await;
    assert_eq!(names(&list), ["Client 25", "Client 26"]);
    assert_eq!((&list["page"], &list["pages"], &list["total"]), (&value!(2), &value!(2), &value!(27)));
}

#[tokio::test]
async fn open_disputes_and_drafts_are_badged() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let page = firm.ann.get("/clients").await;
    assert!(!page.body.contains("Dispute open") && !page.body.contains("Letter in draft"));
    new_entry(&mut firm.ann, client, "billing_dispute", "Invoice 7", "Too much.").await;
    new_entry(&mut firm.ann, client, "draft_letter", "Credit", "Dear Ms Raman").await;
    assert_has(&firm.ann.get("/clients").await, &["Dispute open", "Letter in draft", "today, 09:14 UTC"]);
}

#[tokio::test]
async fn archived_clients_have_their_own_list() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let reply = firm.ann.post(&format!("/clients/{client}/archive"), "").await;
    assert_eq!(reply.location(), format!("/clients/{client}?done=archived&undo=2"));
    let record = firm.ann.get(reply.location()).await;
    assert_has(
        &record,
        &["<strong>Client archived.</strong>", "role=\"status\"", &format!("/clients/{client}/restore")],
    );
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 0);
    assert_eq!(json(&mut firm.ann, "/clients?archived=1").await["total"], 1);
    assert_has(&firm.ann.get("/clients?archived=1").await, &["Archived clients", "Harbour Lane Bakery"]);
    firm.ann.post(&format!("/clients/{client}/restore"), "").await;
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 1);
}
