//! `POST /clients/<id>/letters/draft` as browsers meet it, with and without scripts, at an API that answers as a test wants.

use super::Desk;
use super::browser::{Browser, Reply, claims};
use crate::drafting::tests::faulty_api::{API_KEY, Answer, FaultyApi, refusal, stream};
use axum::http::StatusCode;
use serde_json::{Value, json};

const EVENTS: &str = "text/event-stream, application/json";

/// Ann and Ben are consultants; the client and its entries are Ann's.
struct Scene {
    api: FaultyApi,
    desk: Desk,
    ann: Browser,
    ben: Browser,
    client: i64,
    note: i64,
    other_note: i64,
}

impl Scene {
    async fn open(draft: Answer) -> Self {
        let api = FaultyApi::drafting(draft).await;
        let desk = Desk::open_drafting(api.settings()).await;
        let [mut ann, mut ben] = [desk.browser(), desk.browser()];
        ann.come_back(claims("ann", "ann@company.com")).await;
        ben.come_back(claims("ben", "ben@company.com")).await;
        let client = new_client(&mut ann, "Harbour Lane Bakery").await;
        let note = new_note(&mut ann, client, "Call about the invoice", "She would take a credit.").await;
        let other_note = new_note(&mut ann, client, "Stock count", "Packaging is off by 14 %.").await;
        Self { api, desk, ann, ben, client, note, other_note }
    }

    fn path(&self) -> String {
        format!("/clients/{}/letters/draft", self.client)
    }

    /// What Ann's script gets: the events.
    async fn events(&mut self, form: &[(&str, &str)]) -> Vec<(String, Value)> {
        self.ann.accept = EVENTS;
        let reply = self.ann.post(&self.path(), &encoded(form)).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
        assert!(!reply.body.contains(API_KEY) && !reply.body.contains(&self.api.url), "{}", reply.body);
        let event = |text: &str| {
            let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).unwrap()))
        };
        reply.body.split("\n\n").filter_map(event).collect()
    }

    /// What Ann gets without scripts.
    async fn page(&mut self, form: &[(&str, &str)]) -> Reply {
        let reply = self.ann.post(&self.path(), &encoded(form)).await;
        assert!(!reply.body.contains(API_KEY) && !reply.body.contains(&self.api.url), "{}", reply.body);
        reply
    }
}

fn encoded(form: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish()
}

async fn new_client(browser: &mut Browser, name: &str) -> i64 {
    let reply = browser.post("/clients", &encoded(&[("name", name)])).await;
    let rest = reply.location().strip_prefix("/clients/").unwrap();
    rest.split('?').next().unwrap().parse().unwrap()
}

async fn new_note(browser: &mut Browser, client: i64, title: &str, text: &str) -> i64 {
    let form = encoded(&[("kind", "meeting_note"), ("title", title), ("text", text)]);
    let reply = browser.post(&format!("/clients/{client}/entries"), &form).await;
    reply.location().rsplit("#entry-").next().unwrap().parse().unwrap()
}

/// A draft that is written in these pieces and ends by itself.
fn written(pieces: &[&str]) -> Answer {
    let mut events: Vec<(&str, Value)> =
        pieces.iter().map(|piece| ("response.output_text.delta", json!({ "delta": piece }))).collect();
    let usage = json!({"input_tokens": 1846, "output_tokens": 412});
    events.push(("response.completed", json!({"response": {"stop_reason": "complete", "usage": usage}})));
    Answer::Bytes(stream(&events))
}

#[tokio::test]
async fn the_editor_of_a_letter_says_what_a_draft_costs_and_what_it_may_read() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    let page = scene.ann.get(&format!("/clients/{}?open=letter", scene.client)).await;
    for part in [
        "Draft with the model",
        "600 tokens cost at most $0.00024.",
        "Note, 13 Nov: Call about the invoice",
        &format!("formaction=\"{}\"", scene.path()),
        "draft.js",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains(API_KEY) && !page.body.contains(&scene.api.url));
    let letters = scene.ann.get(&format!("/clients/{}?open=letter&tab=letters", scene.client)).await;
    assert!(letters.body.contains("Note, 13 Nov: Stock count"), "whichever tab is open: {}", letters.body);
}

#[tokio::test]
async fn a_draft_is_made_of_the_chosen_notes_alone_and_comes_as_events_with_its_receipt() {
    let mut scene = Scene::open(written(&["Dear ", "Ms Raman"])).await;
    let note = scene.note.to_string();
    let events = scene.events(&[("purpose", "Offer a credit."), ("entries", &note), ("text", "mine")]).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["delta", "delta", "finished"]);
    assert_eq!((&events[0].1["text"], &events[1].1["text"]), (&json!("Dear "), &json!("Ms Raman")));
    let finished = &events[2].1;
    assert_eq!((&finished["input_tokens"], &finished["output_tokens"]), (&json!(1846), &json!(412)));
    assert_eq!((&finished["cost"], &finished["words"]["cost"]), (&json!("0.0003494"), &json!("$0.0003494")));

    let drafts = scene.api.drafts.lock().unwrap().clone();
    let [asked] = drafts.as_slice() else { panic!("{drafts:?}") };
    let (instructions, input) = (asked["instructions"].as_str().unwrap(), asked["input"].as_str().unwrap());
    assert!(instructions.contains("from ann@company.com of Marlow & Finch to the contact of the client"));
    assert!(instructions.contains("Offer a credit.") && input.contains("She would take a credit."));
    assert!(!input.contains("Packaging") && !input.contains("mine"), "{input}");
    assert_eq!((&asked["max_output_tokens"], &asked["stream"]), (&json!(600), &json!(true)));
}

#[tokio::test]
async fn nobody_drafts_from_anothers_record_by_its_number_or_by_its_entries() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    let form = encoded(&[("purpose", "Tell me."), ("entries", &scene.note.to_string())]);
    for accept in [EVENTS, "text/html"] {
        scene.ben.accept = accept;
        let theirs = scene.ben.post(&scene.path(), &form).await;
        let nobodys = scene.ben.post("/clients/987654/letters/draft", &form).await;
        assert_eq!((theirs.status, &theirs.body), (StatusCode::FORBIDDEN, &nobodys.body));
    }
    let own = new_client(&mut scene.ben, "Ben's own").await;
    scene.ben.accept = EVENTS;
    let reply = scene.ben.post(&format!("/clients/{own}/letters/draft"), &form).await;
    assert!(
        reply.body.contains("event: failed") && reply.body.contains("not in this record"),
        "{}",
        reply.body
    );
    assert!(scene.api.drafts.lock().unwrap().is_empty(), "the model was never asked");
}

#[tokio::test]
async fn without_scripts_the_draft_comes_in_the_editor_and_the_text_before_it_comes_back() {
    let mut scene = Scene::open(written(&["Dear <b>Ms</b> Raman</textarea><script>x</script>"])).await;
    let note = scene.note.to_string();
    let form = [
        ("purpose", "Offer a credit."),
        ("entries", note.as_str()),
        ("title", "Credit"),
        ("text", "mine & only"),
    ];
    let page = scene.page(&form).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    for part in [
        "Dear &#60;b&#62;Ms",
        "mine &#38; only",
        "Put this text back",
        "value=\"Credit\"",
        "$0.0003494",
        "Wrote 412 tokens",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("<script>x"), "{}", page.body);
    let form = [("text", "Dear Ms Raman"), ("former_text", "mine & only"), ("put_back", "0")];
    let page = scene.page(&form).await;
    let editor = page.body.split("id=\"text\"").nth(1).unwrap().split("</textarea>").next().unwrap();
    assert!(editor.contains("mine &#38; only"), "{editor}");
    assert!(page.body.contains("Dear Ms Raman"), "and the draft is not lost either");
    assert_eq!(scene.api.drafts.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_refusal_is_told_plainly_and_loses_no_text() {
    let busy = refusal("429 Too Many Requests", "retry-after: 20\r\n", "rate_limited");
    let mut scene = Scene::open(Answer::Bytes(busy)).await;
    let words = "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.";
    let form = [("purpose", "Offer a credit."), ("title", "Credit"), ("text", "mine")];
    let page = scene.page(&form).await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(page.headers["retry-after"], "20");
    for part in [words, "mine", "value=\"Credit\"", "Offer a credit."] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let events = scene.events(&form).await;
    assert_eq!(events, [("failed".to_owned(), json!({"words": words, "field": null, "retry_after_s": 20}))]);
}

#[tokio::test]
async fn what_is_wrong_with_the_form_is_told_at_its_field() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    let page = scene.page(&[("purpose", " "), ("text", "mine")]).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.body.contains("draft-purpose-error") && page.body.contains("mine"), "{}", page.body);
    let events = scene.events(&[("purpose", "x"), ("max_output_tokens", "2048")]).await;
    assert_eq!((&events[0].0[..], &events[0].1["field"]), ("failed", &json!("max_output_tokens")));
    assert!(scene.api.drafts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_letter_that_cannot_be_saved_yet_keeps_what_was_typed_beside_it() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    let form = [
        ("kind", "draft_letter"),
        ("title", ""),
        ("text", "mine"),
        ("purpose", "Offer a credit."),
        ("max_output_tokens", "321"),
    ];
    let page = scene.ann.post(&format!("/clients/{}/entries", scene.client), &encoded(&form)).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["Offer a credit.", "value=\"321\"", "321 tokens cost at most", "mine"] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn notes_that_do_not_fit_are_named_and_nothing_is_cut() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    let long = new_note(&mut scene.ann, scene.client, "The whole history", &"word ".repeat(1_500)).await;
    let (note, other, long) = (scene.note.to_string(), scene.other_note.to_string(), long.to_string());
    let form = [("purpose", "Say thank you."), ("entries", &note), ("entries", &other), ("entries", &long)];
    let events = scene.events(&form).await;
    let words = events[0].1["words"].as_str().unwrap();
    assert!(words.contains("The whole history") && words.contains("nothing was billed"), "{words}");
    assert!(scene.api.drafts.lock().unwrap().is_empty());
    let events = scene.events(&form[..3]).await;
    assert_eq!(events.last().unwrap().0, "finished");
}

#[tokio::test]
async fn a_portal_that_drafts_nothing_says_so() {
    let desk = Desk::open().await;
    let mut ann = desk.browser();
    ann.come_back(claims("ann", "ann@company.com")).await;
    let client = new_client(&mut ann, "Harbour Lane Bakery").await;
    let page = ann.get(&format!("/clients/{client}?open=letter")).await;
    assert!(page.body.contains("Drafting with the model is not set up here."), "{}", page.body);
    assert!(!page.body.contains("letters/draft"));
}

#[tokio::test]
async fn a_draft_is_on_record_as_an_edit_by_whoever_asked() {
    let mut scene = Scene::open(written(&["Dear"])).await;
    scene.events(&[("purpose", "Say thank you.")]).await;
    let mut ruth = scene.desk.browser();
    ruth.come_back(claims("ruth", "ruth@company.com")).await;
    let audit = ruth.get("/audit.csv?action=editClient").await;
    assert!(
        audit.body.contains("ann@company.com") && audit.body.contains(&scene.client.to_string()),
        "{}",
        audit.body
    );
}
