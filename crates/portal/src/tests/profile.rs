//! `/profile`: names and time zones, and where they are shown.

use super::firm::Firm;
use axum::http::StatusCode;
use serde_json::Value;

#[tokio::test]
async fn saved_name_and_time_zone_are_used_on_pages() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let page = firm.ann.browser.get("/profile").await;
    for part in
        ["Your profile", "ann@<wbr>company.com", "<option value=\"Europe/Berlin\">", "href=\"/sessions\""]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let reply = firm.ann.browser.post("/profile", "name=+Ann++Lee+&time_zone=Europe%2FBerlin").await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/profile?done=saved"));
    let page = firm.ann.browser.get(reply.location()).await;
    for part in
        ["Profile saved.", "value=\"Ann Lee\"", "value=\"Europe/Berlin\" selected", "today, 10:14 CET"]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let bar = "href=\"/profile\" title=\"ann@company.com\" aria-label=\"Your profile, Ann Lee\"";
    assert!(page.body.contains(bar), "{}", page.body);

    let record = format!("/clients/{client}");
    let own = firm.ann.browser.get(&record).await;
    for part in ["data-initials=\"AL\" title=\"ann@company.com\">Ann Lee</span></dd>", "today, 10:14 CET"] {
        assert!(own.body.contains(part), "{part}: {}", own.body);
    }
    // A colleague sees the name, and times in their own zone.
    let colleagues = firm.ruth.browser.get(&record).await;
    for part in ["data-initials=\"AL\" title=\"ann@company.com\">Ann Lee</span>", "today, 09:14 UTC"] {
        assert!(colleagues.body.contains(part), "{part}: {}", colleagues.body);
    }
    let choice = "Ann Lee (ann@company.com)</option>";
    for path in ["/clients", "/clients/new", "/audit", record.as_str()] {
        let page = firm.ruth.browser.get(path).await;
        assert!(page.body.contains(choice), "{path}: {}", page.body);
    }
    let versions = firm.ruth.browser.get(&format!("{record}/versions")).await;
    assert!(versions.body.contains("Ann Lee"), "{}", versions.body);
    let team = firm.ruth.browser.get("/team").await;
    for part in ["Ann Lee</span></a>", "<span class=\"sub\">ann@<wbr>company.com</span>"] {
        assert!(team.body.contains(part), "{part}: {}", team.body);
    }
}

#[tokio::test]
async fn people_without_a_time_zone_get_the_firms() {
    let berlin = |settings: &mut crate::PortalSettings| settings.time_zone = "Europe/Berlin".parse().unwrap();
    let mut firm = Firm::at(super::TestPortal::open_changed(berlin).await).await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    let page = firm.ann.browser.get(&format!("/clients/{client}?open=note")).await;
    for part in ["today, 10:14 CET", "Time in Europe/Berlin.", "value=\"2026-11-13T10:14\""] {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let profile = firm.ann.browser.get("/profile").await;
    assert!(profile.body.contains("The firm’s time zone (Europe/Berlin)"), "{}", profile.body);
    firm.ann.browser.post("/profile", "name=&time_zone=UTC").await;
    let page = firm.ann.browser.get(&format!("/clients/{client}")).await;
    assert!(page.body.contains("today, 09:14 UTC"), "{}", page.body);
}

#[tokio::test]
async fn json_and_files_keep_addresses() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    firm.ann.browser.post("/profile", "name=Ann+Lee&time_zone=Asia%2FTokyo").await;
    let csv = firm.ruth.browser.get("/audit.csv").await;
    assert!(csv.body.contains("ann@company.com") && !csv.body.contains("Ann Lee"), "{}", csv.body);
    firm.ruth.browser.accept = "application/json";
    let record: Value =
        serde_json::from_str(&firm.ruth.browser.get(&format!("/clients/{client}")).await.body).unwrap();
    assert_eq!(record["owner"], "ann@company.com");
    let list: Value = serde_json::from_str(&firm.ruth.browser.get("/clients").await.body).unwrap();
    assert_eq!(list["clients"][0]["owner"], "ann@company.com");
    let team: Value = serde_json::from_str(&firm.ruth.browser.get("/team").await.body).unwrap();
    let people = team["people"].as_array().unwrap();
    let ann = people.iter().find(|person| person["email"] == "ann@company.com").unwrap();
    assert_eq!((&ann["name"], &ann["joined_at"]), (&"Ann Lee".into(), &"2026-11-13T09:14:00.000Z".into()));
}

#[tokio::test]
async fn equal_names_stay_distinguishable() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    firm.ann.browser.post("/profile", "name=Ann+Lee&time_zone=").await;
    firm.ben.browser.post("/profile", "name=ANN+lee&time_zone=").await;
    let page = firm.ruth.browser.get(&format!("/clients/{client}")).await;
    assert!(page.body.contains(">Ann Lee (ann@company.com)</span>"), "{}", page.body);
    // A name that looks like an address would be one person passing for another.
    let reply = firm.ben.browser.post("/profile", "name=ann%40company.com&time_zone=").await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn hostile_names_are_rejected_or_escaped() {
    let mut firm = Firm::open().await;
    let long = "x".repeat(81);
    for name in ["%E2%80%AEnnA", "Ann%00", "Ann%0ALee", "%E2%80%8B", long.as_str()] {
        let reply = firm.ann.browser.post("/profile", &format!("name={name}&time_zone=UTC")).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{name}");
        assert!(reply.body.contains("id=\"name-error\""), "{name}: {}", reply.body);
    }
    for zone in ["Mars%2FOlympus", "..%2F..%2Fetc%2Fpasswd", "CET%00", "Etc%2FUnknown"] {
        let reply = firm.ann.browser.post("/profile", &format!("name=Ann&time_zone={zone}")).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{zone}");
        assert!(
            reply.body.contains("id=\"time_zone-error\"") && reply.body.contains("value=\"Ann\""),
            "{zone}"
        );
    }
    let page = firm.ann.browser.get("/profile").await;
    assert!(page.body.contains("aria-label=\"Your profile, ann@company.com\""), "nothing was saved");
    firm.ann.browser.post("/profile", "name=%3Cscript%3Ealert(1)%3C%2Fscript%3E%22&time_zone=").await;
    for path in ["/profile", "/team", "/audit"] {
        let page = firm.ruth.browser.get(path).await;
        assert!(!page.body.contains("<script>alert"), "{path}: {}", page.body);
    }
    let own = firm.ann.browser.get("/profile").await;
    assert!(!own.body.contains("<script>alert") && own.body.contains("&#60;script&#62;"), "{}", own.body);
}

#[tokio::test]
async fn entry_times_are_typed_and_shown_in_the_persons_zone() {
    let mut firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Harbour Lane Bakery").await.client;
    firm.ann.browser.post("/profile", "name=&time_zone=America%2FNew_York").await;
    let form = firm.ann.browser.get(&format!("/clients/{client}?open=note")).await;
    for part in ["Time in America/New_York.", "value=\"2026-11-13T04:14\""] {
        assert!(form.body.contains(part), "{part}: {}", form.body);
    }
    let note = "kind=meeting_note&title=Call&text=They+called.&at=2026-11-12T20%3A30";
    let reply = firm.ann.browser.post(&format!("/clients/{client}/entries"), note).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    let page = firm.ann.browser.get(&format!("/clients/{client}")).await;
    assert!(
        page.body.contains("datetime=\"2026-11-13T01:30:00.000Z\">yesterday, 20:30 EST<"),
        "{}",
        page.body
    );
    let ruths = firm.ruth.browser.get(&format!("/clients/{client}")).await;
    assert!(ruths.body.contains(">today, 01:30 UTC<"), "{}", ruths.body);
}
