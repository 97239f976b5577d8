//! `POST /clients/<id>/letters/draft` and `/letters/rewrite` in a browser, with and without scripts, against a fake API.

use super::TestPortal;
use super::browser::{Browser, Reply, claims};
use crate::drafting::tests::faulty_api::{API_KEY, FaultyApi, ScriptedReply, rejection, stream};
use axum::http::StatusCode;
use serde_json::{Value, json};

const EVENTS: &str = "text/event-stream, application/json";

/// Ann and Ben are consultants; Ann owns the client and its entries.
struct DraftFixture {
    api: FaultyApi,
    portal: TestPortal,
    ann: Browser,
    ben: Browser,
    client: i64,
    note: i64,
    other_note: i64,
}

impl DraftFixture {
    async fn open(draft: ScriptedReply) -> Self {
        Self::open_at(FaultyApi::drafting(draft).await).await
    }

    async fn open_at(api: FaultyApi) -> Self {
        let portal = TestPortal::open_drafting(api.settings()).await;
        let [mut ann, mut ben] = [portal.browser(), portal.browser()];
        ann.follow_callback(claims("ann", "ann@company.com")).await;
        ben.follow_callback(claims("ben", "ben@company.com")).await;
        let client = new_client(&mut ann, "Harbour Lane Bakery").await;
        let note = new_note(&mut ann, client, "Call about the invoice", "She would take a credit.").await;
        let other_note = new_note(&mut ann, client, "Stock count", "Packaging is off by 14 %.").await;
        Self { api, portal, ann, ben, client, note, other_note }
    }

    fn path(&self) -> String {
        format!("/clients/{}/letters/draft", self.client)
    }

    /// The events that Ann's script receives.
    async fn events(&mut self, form: &[(&str, &str)]) -> Vec<(String, Value)> {
        self.events_at(&self.path(), form).await
    }

    async fn events_at(&mut self, path: &str, form: &[(&str, &str)]) -> Vec<(String, Value)> {
        self.ann.accept = EVENTS;
        let reply = self.ann.post(path, &encoded(form)).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
        assert!(!reply.body.contains(API_KEY) && !reply.body.contains(&self.api.url), "{}", reply.body);
        let event = |text: &str| {
            let (name, data) = text.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name.to_owned(), serde_json::from_str(data).unwrap()))
        };
        reply.body.split("\n\n").filter_map(event).collect()
    }

    /// The page that Ann gets without scripts.
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

/// A reply that streams these pieces and ends with `response.completed`.
fn written(pieces: &[&str]) -> ScriptedReply {
    ended(pieces, "complete")
}

/// A reply that streams these pieces and ends with this stop reason.
fn ended(pieces: &[&str], stop_reason: &str) -> ScriptedReply {
    let mut events: Vec<(&str, Value)> =
        pieces.iter().map(|piece| ("response.output_text.delta", json!({ "delta": piece }))).collect();
    let usage = json!({"input_tokens": 1846, "output_tokens": 412});
    events.push(("response.completed", json!({"response": {"stop_reason": stop_reason, "usage": usage}})));
    ScriptedReply::Bytes(stream(&events))
}

#[tokio::test]
async fn letter_editor_shows_max_cost_and_context() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let page = fixture.ann.get(&format!("/clients/{}?open=letter", fixture.client)).await;
    for part in [
        "Draft with AI",
        " for 600 tokens of output and up to ",
        " tokens of input.",
        "Note, 13 Nov: Call about the invoice",
        &format!("formaction=\"{}\"", fixture.path()),
        "draft.js",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains(API_KEY) && !page.body.contains(&fixture.api.url));
    let letters = fixture.ann.get(&format!("/clients/{}?open=letter&tab=letters", fixture.client)).await;
    assert!(letters.body.contains("Note, 13 Nov: Stock count"), "whichever tab is open: {}", letters.body);
}

#[tokio::test]
async fn draft_uses_selected_entries_and_streams_a_receipt() {
    let mut fixture = DraftFixture::open(written(&["Dear ", "Ms Raman"])).await;
    let note = fixture.note.to_string();
    let events =
        fixture.events(&[("purpose", "Offer a credit."), ("entries", &note), ("text", "mine")]).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["delta", "finished"], "text is withheld until its line or sentence ends");
    assert_eq!(events[0].1["text"], "Dear Ms Raman");
    let finished = &events[1].1;
    assert_eq!((&finished["text"], &finished["is_unfinished"]), (&json!("Dear Ms Raman"), &json!(false)));
    assert_eq!(finished["title"], "Call about the invoice");
    assert_eq!((&finished["input_tokens"], &finished["output_tokens"]), (&json!(1846), &json!(412)));
    assert_eq!((&finished["cost"], &finished["words"]["cost"]), (&json!("0.0003494"), &json!("$0.0003494")));

    let drafts = fixture.api.drafts.lock().unwrap().clone();
    let [request] = drafts.as_slice() else { panic!("{drafts:?}") };
    let (instructions, input) =
        (request["instructions"].as_str().unwrap(), request["input"].as_str().unwrap());
    assert!(instructions.contains("from ann@company.com of Marlow & Finch to the contact of the client"));
    assert!(instructions.contains("Offer a credit.") && input.contains("She would take a credit."));
    assert!(!input.contains("Packaging") && !input.contains("mine"), "{input}");
    assert_eq!((&request["max_output_tokens"], &request["stream"]), (&json!(600), &json!(true)));
    assert_eq!(request["stop_on_repetition"], true);
}

/// Parameters of a model that gets a skeleton.
const SMALL: u64 = 494_032_768;

#[tokio::test]
async fn small_model_writes_between_salutation_and_closing_from_the_record() {
    let pieces = [
        "Sure! Here is",
        " the letter:\n\nDear Ms Ra",
        "man,\n\nWe cre",
        "dit the hours.\n\nKind reg",
        "ards,\n[Your Name]",
    ];
    let api = FaultyApi::drafting_with_parameters(SMALL, written(&pieces)).await;
    let mut fixture = DraftFixture::open_at(api).await;
    let note = fixture.note.to_string();
    let events = fixture.events(&[("purpose", "Offer a credit."), ("entries", &note)]).await;
    let letter =
        "Dear Harbour Lane Bakery,\n\nWe credit the hours.\n\nKind regards,\nann@company.com\nMarlow & Finch";
    let texts = events.iter().filter(|(name, _)| name == "delta");
    let shown: String = texts.map(|(_, data)| data["text"].as_str().unwrap()).collect();
    let (name, finished) = events.last().unwrap();
    assert_eq!((name.as_str(), shown.as_str()), ("finished", letter));
    assert_eq!((&finished["text"], &finished["is_unfinished"]), (&json!(letter), &json!(false)));
    let drafts = fixture.api.drafts.lock().unwrap().clone();
    let [request] = drafts.as_slice() else { panic!("{drafts:?}") };
    assert_eq!((&request["temperature"], &request["stop"][0]), (&json!(0.0), &json!("\nSincerely")));
    for penalty in ["repetition_penalty", "frequency_penalty", "dry_multiplier"] {
        assert_eq!(request[penalty], Value::Null, "a penalty changes figures: {penalty}");
    }
    assert!(request["instructions"].as_str().unwrap().contains("without salutation and closing"));
    assert_eq!(
        request["input"],
        "Notes: She would take a credit.\nPurpose: Offer a credit.\nLetter to Harbour Lane Bakery:"
    );
}

#[tokio::test]
async fn cut_off_or_looping_draft_is_never_shown_as_done() {
    for (stop_reason, reason) in [
        ("max_output_tokens", "cut off at the maximum length"),
        ("repetition", "began to repeat itself"),
        ("context_length", "cut off at the model’s limit"),
        ("deadline", "the server’s time limit"),
        ("content_filter", "filter cut the text off"),
    ] {
        let api = FaultyApi::drafting_with_parameters(SMALL, ended(&["We credit the"], stop_reason)).await;
        let mut fixture = DraftFixture::open_at(api).await;
        let form = [("purpose", "Offer a credit."), ("text", "mine")];
        let events = fixture.events(&form).await;
        let (name, finished) = events.last().unwrap();
        assert_eq!((name.as_str(), &finished["is_unfinished"]), ("finished", &json!(true)), "{stop_reason}");
        assert!(finished["unfinished"].as_str().unwrap().contains(reason), "{finished}");
        assert_eq!(finished["text"], "Dear Harbour Lane Bakery,\n\nWe credit the", "no closing");
        fixture.ann.accept = "text/html";
        let page = fixture.page(&form).await;
        for part in ["Draft unfinished.", "notice-warn", reason, "We credit the", "mine"] {
            assert!(page.body.contains(part), "{part}: {}", page.body);
        }
        assert!(!page.body.contains("Draft ready.") && !page.body.contains("notice-good"), "{}", page.body);
    }
}

#[tokio::test]
async fn figures_that_are_not_in_the_record_are_named() {
    let mut fixture = DraftFixture::open(written(&["We credit 450 on 3 May for 14 %."])).await;
    let note = fixture.other_note.to_string();
    let form = [("purpose", "Offer a credit."), ("entries", note.as_str())];
    let events = fixture.events(&form).await;
    let check = "Not in the record: 450, 3 May. Check them.";
    assert_eq!(events.last().unwrap().1["checks"], json!([check]));
    fixture.ann.accept = "text/html";
    let page = fixture.page(&form).await;
    assert!(page.body.contains(check) && page.body.contains("Draft ready."), "{}", page.body);
}

#[tokio::test]
async fn same_request_has_the_same_seed_until_it_is_drafted_again() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    for attempt in ["0", "0", "1"] {
        fixture.events(&[("purpose", "Offer a credit."), ("attempt", attempt)]).await;
    }
    let seeds: Vec<Value> =
        fixture.api.drafts.lock().unwrap().iter().map(|request| request["seed"].clone()).collect();
    assert!(seeds[0] == seeds[1] && seeds[1] != seeds[2] && seeds[0].is_u64(), "{seeds:?}");
    fixture.ann.accept = "text/html";
    let page = fixture.page(&[("purpose", "Offer a credit."), ("attempt", "1")]).await;
    assert!(page.body.contains("name=\"attempt\" value=\"2\""), "{}", page.body);
}

#[tokio::test]
async fn panel_names_the_model_and_what_to_expect() {
    let api = FaultyApi::drafting_with_parameters(134_515_008, written(&["Dear"])).await;
    let mut fixture = DraftFixture::open_at(api).await;
    let page = fixture.ann.get(&format!("/clients/{}?open=letter", fixture.client)).await;
    for part in [
        "Model: small, a very small model (135 million parameters).",
        "Check every sentence.",
        " for 300 tokens of output and up to ",
        "More formal",
        &format!("formaction=\"/clients/{}/letters/rewrite\"", fixture.client),
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn rewrite_replaces_the_selection_and_names_lost_figures() {
    let mut fixture =
        DraftFixture::open(written(&["Sure! Here is the shorter text:\n\nWe owe ", "you."])).await;
    let path = format!("/clients/{}/letters/rewrite", fixture.client);
    let text = "Dear Ms Raman,\n\nWe owe you 3 hours.\n\nThank you.";
    let form = [("change", "shorten"), ("text", text), ("selection_start", "16"), ("selection_end", "35")];
    let events = fixture.events_at(&path, &form).await;
    let (name, finished) = events.last().unwrap();
    assert_eq!((name.as_str(), &finished["text"]), ("finished", &json!("We owe you.")));
    assert_eq!(finished["checks"], json!(["Missing now: 3 hours. Check whether the text needs them."]));
    assert_eq!((&finished["title"], &finished["cost"]), (&Value::Null, &json!("0.0003494")));
    let drafts = fixture.api.drafts.lock().unwrap().clone();
    let [request] = drafts.as_slice() else { panic!("{drafts:?}") };
    assert_eq!(request["input"], "We owe you 3 hours.");
    assert!(request["instructions"].as_str().unwrap().contains("Shorten the passage"));
    assert!(!request.to_string().contains("She would take a credit."), "no entry is read: {request}");
    // An entry that was archived meanwhile does not matter.
    let with_entry: Vec<_> = form.into_iter().chain([("entries", "987654")]).collect();
    assert_eq!(fixture.events_at(&path, &with_entry).await.last().unwrap().0, "finished");

    // Without scripts, the salutation and the rest stay.
    fixture.ann.accept = "text/html";
    let whole =
        [("change", "formal"), ("text", "Dear Ms Raman,\n\nWe owe you 3 hours.\n\nKind regards,\nAnn")];
    let page = fixture.ann.post(&path, &encoded(&whole)).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    let editor = page.body.split("id=\"text\"").nth(1).unwrap().split("</textarea>").next().unwrap();
    assert!(editor.contains("Dear Ms Raman,\n\nWe owe you.\n\nKind regards,\nAnn"), "{editor}");
    for part in ["Text edited.", "Restore this text", "Missing now: 3 hours.", "$0.0003494"] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn rewrite_is_denied_for_anothers_record_and_audited_as_an_edit() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let path = format!("/clients/{}/letters/rewrite", fixture.client);
    let form = [("change", "formal"), ("text", "Thank you.")];
    for accept in [EVENTS, "text/html"] {
        fixture.ben.accept = accept;
        let foreign = fixture.ben.post(&path, &encoded(&form)).await;
        let missing = fixture.ben.post("/clients/987654/letters/rewrite", &encoded(&form)).await;
        assert_eq!((foreign.status, &foreign.body), (StatusCode::FORBIDDEN, &missing.body));
    }
    assert!(fixture.api.drafts.lock().unwrap().is_empty(), "the model was never asked");
    fixture.events_at(&path, &form).await;
    let mut ruth = fixture.portal.browser();
    ruth.follow_callback(claims("ruth", "ruth@company.com")).await;
    let audit = ruth.get("/audit.csv?action=editClient").await;
    let is_recorded = |email: &str| {
        audit.body.lines().any(|line| line.contains(email) && line.contains(&fixture.client.to_string()))
    };
    assert!(is_recorded("ann@company.com") && is_recorded("ben@company.com"), "{}", audit.body);
}

#[tokio::test]
async fn rewrite_without_text_or_with_a_wrong_selection_asks_nothing() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let path = format!("/clients/{}/letters/rewrite", fixture.client);
    for (form, message) in [
        (vec![("change", "formal"), ("text", " ")], "There is no text to edit."),
        (vec![("change", "poem"), ("text", "Dear")], "Choose what to do with the text"),
        (
            vec![("change", "formal"), ("text", "Dear"), ("selection_start", "2"), ("selection_end", "99")],
            "The selection does not fit the text.",
        ),
    ] {
        let events = fixture.events_at(&path, &form).await;
        assert_eq!(events[0].0, "failed");
        assert!(events[0].1["words"].as_str().unwrap().starts_with(message), "{events:?}");
        fixture.ann.accept = "text/html";
        let page = fixture.ann.post(&path, &encoded(&form)).await;
        assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(page.body.contains(message), "{}", page.body);
    }
    assert!(fixture.api.drafts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn failed_rewrite_keeps_the_text() {
    let busy = rejection("429 Too Many Requests", "retry-after: 20\r\n", "rate_limited");
    let mut fixture = DraftFixture::open(ScriptedReply::Bytes(busy)).await;
    let path = format!("/clients/{}/letters/rewrite", fixture.client);
    let page = fixture.ann.post(&path, &encoded(&[("change", "formal"), ("text", "mine & only")])).await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    for part in ["Text not edited.", "try again in 20 seconds.", "mine &#38; only"] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn drafting_from_anothers_record_is_denied() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let form = encoded(&[("purpose", "Tell me."), ("entries", &fixture.note.to_string())]);
    for accept in [EVENTS, "text/html"] {
        fixture.ben.accept = accept;
        let foreign = fixture.ben.post(&fixture.path(), &form).await;
        let missing = fixture.ben.post("/clients/987654/letters/draft", &form).await;
        assert_eq!((foreign.status, &foreign.body), (StatusCode::FORBIDDEN, &missing.body));
    }
    let own = new_client(&mut fixture.ben, "Ben's own").await;
    fixture.ben.accept = EVENTS;
    let reply = fixture.ben.post(&format!("/clients/{own}/letters/draft"), &form).await;
    assert!(
        reply.body.contains("event: failed")
            && reply.body.contains("A selected entry is no longer in this record."),
        "{}",
        reply.body
    );
    assert!(fixture.api.drafts.lock().unwrap().is_empty(), "the model was never asked");
}

#[tokio::test]
async fn draft_without_scripts_keeps_the_previous_text() {
    let mut fixture =
        DraftFixture::open(written(&["Dear <b>Ms</b> Raman</textarea><script>x</script>"])).await;
    let note = fixture.note.to_string();
    let form = [
        ("purpose", "Offer a credit."),
        ("entries", note.as_str()),
        ("title", "Credit"),
        ("text", "mine & only"),
    ];
    let page = fixture.page(&form).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    for part in [
        "Dear &#60;b&#62;Ms",
        "mine &#38; only",
        "Restore this text",
        "value=\"Credit\"",
        "$0.0003494",
        "Output: 412 tokens",
    ] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert!(!page.body.contains("<script>x"), "{}", page.body);
    let form = [("text", "Dear Ms Raman"), ("former_text", "mine & only"), ("put_back", "0")];
    let page = fixture.page(&form).await;
    let editor = page.body.split("id=\"text\"").nth(1).unwrap().split("</textarea>").next().unwrap();
    assert!(editor.contains("mine &#38; only"), "{editor}");
    assert!(page.body.contains("Dear Ms Raman"), "and the draft is not lost either");
    assert_eq!(fixture.api.drafts.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn failed_draft_keeps_the_text() {
    let busy = rejection("429 Too Many Requests", "retry-after: 20\r\n", "rate_limited");
    let mut fixture = DraftFixture::open(ScriptedReply::Bytes(busy)).await;
    let message =
        "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.";
    let form = [("purpose", "Offer a credit."), ("title", "Credit"), ("text", "mine")];
    let page = fixture.page(&form).await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(page.headers["retry-after"], "20");
    for part in [message, "mine", "value=\"Credit\"", "Offer a credit."] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let events = fixture.events(&form).await;
    assert_eq!(
        events,
        [("failed".to_owned(), json!({"words": message, "field": null, "retry_after_s": 20}))]
    );
}

#[tokio::test]
async fn draft_form_errors_are_shown_at_their_fields() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let page = fixture.page(&[("purpose", " "), ("text", "mine")]).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(page.body.contains("draft-purpose-error") && page.body.contains("mine"), "{}", page.body);
    let events = fixture.events(&[("purpose", "x"), ("max_output_tokens", "2048")]).await;
    assert_eq!((&events[0].0[..], &events[0].1["field"]), ("failed", &json!("max_output_tokens")));
    assert!(fixture.api.drafts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn invalid_letter_keeps_the_draft_panel_input() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let form = [
        ("kind", "draft_letter"),
        ("title", ""),
        ("text", "mine"),
        ("purpose", "Offer a credit."),
        ("max_output_tokens", "321"),
    ];
    let page = fixture.ann.post(&format!("/clients/{}/entries", fixture.client), &encoded(&form)).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in ["Offer a credit.", "value=\"321\"", "for 321 tokens of output and", "mine"] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn entries_that_exceed_the_context_are_named() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    let long = new_note(&mut fixture.ann, fixture.client, "The whole history", &"word ".repeat(1_500)).await;
    let (note, other, long) = (fixture.note.to_string(), fixture.other_note.to_string(), long.to_string());
    let form = [("purpose", "Say thank you."), ("entries", &note), ("entries", &other), ("entries", &long)];
    let events = fixture.events(&form).await;
    let message = events[0].1["words"].as_str().unwrap();
    assert!(message.contains("The whole history") && message.contains("Nothing was billed."), "{message}");
    assert!(fixture.api.drafts.lock().unwrap().is_empty());
    let events = fixture.events(&form[..3]).await;
    assert_eq!(events.last().unwrap().0, "finished");
}

#[tokio::test]
async fn portal_without_drafting_says_so() {
    let portal = TestPortal::open().await;
    let mut ann = portal.browser();
    ann.follow_callback(claims("ann", "ann@company.com")).await;
    let client = new_client(&mut ann, "Harbour Lane Bakery").await;
    let page = ann.get(&format!("/clients/{client}?open=letter")).await;
    assert!(page.body.contains("AI drafting is not set up."), "{}", page.body);
    assert!(!page.body.contains("letters/draft"));
}

#[tokio::test]
async fn draft_is_audited_as_an_edit() {
    let mut fixture = DraftFixture::open(written(&["Dear"])).await;
    fixture.events(&[("purpose", "Say thank you.")]).await;
    let mut ruth = fixture.portal.browser();
    ruth.follow_callback(claims("ruth", "ruth@company.com")).await;
    let audit = ruth.get("/audit.csv?action=editClient").await;
    assert!(
        audit.body.contains("ann@company.com") && audit.body.contains(&fixture.client.to_string()),
        "{}",
        audit.body
    );
}
