//! `/usage`: what was settled, added up and drawn, for those who may know.

use super::firm::Firm;
use super::routes::{HTML, JSON};
use axum::http::StatusCode;
use chancery_domain::{
    AccountId, ApiKey, Day, HowEnded, KeyId, Nanos, OsRandomness, Prices, RateLimits, RequestId, TokenPrice,
    UnixMillis, UsageRow,
};
use chancery_store::{CapChange, LimitsChange, NewAccount, NewKey, PeakDay, RefusedDay};
use serde_json::{Value, json};

const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(1)>' </title><!--";

/// Where requests of the tests are billed.
struct Books {
    firm: Firm,
    settled: usize,
}

#[derive(Clone, Copy)]
struct Payer {
    account: AccountId,
    key: KeyId,
}

impl Books {
    async fn open() -> Self {
        Self { firm: Firm::open().await, settled: 0 }
    }

    async fn account(&self, name: &str) -> AccountId {
        let limits = RateLimits { requests_per_min: 600, tokens_per_min: 400_000 };
        let new = NewAccount { name: name.parse().unwrap(), limits, created_at: UnixMillis(0) };
        self.firm.desk.store.create_account(new).await.unwrap().id
    }

    async fn key(&self, account: AccountId, label: &str) -> Payer {
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: label.to_owned(),
            account: Some(account),
            created_at: UnixMillis(0),
        };
        Payer { account, key: self.firm.desk.store.create_key(new).await.unwrap().id }
    }

    async fn payer(&self, name: &str, label: &str) -> Payer {
        let account = self.account(name).await;
        self.key(account, label).await
    }

    /// At 0.10 and 0.40 per million.
    async fn settle(&mut self, payer: Payer, day: &str, model: &str, tokens: (u32, u32)) {
        let nanos = |price: i64| TokenPrice::from_nanos_per_token(price);
        let mut row = UsageRow {
            request_id: RequestId::from_stored(format!("req_{:06}", self.settled)),
            account: payer.account,
            key: payer.key,
            model: model.to_owned(),
            input_tokens: tokens.0,
            output_tokens: tokens.1,
            prices: Prices { input: nanos(100), output: nanos(400) },
            cost: Nanos(0),
            at: UnixMillis(day.parse::<Day>().unwrap().start().0 + 3_600_000),
            ended: HowEnded::Complete,
        };
        row.cost = row.recomputed_cost().unwrap();
        self.settled += 1;
        self.firm.desk.store.ledger.settle(row.into()).await.unwrap();
    }

    async fn page(&mut self, query: &str) -> String {
        self.firm.ruth.browser.accept = HTML;
        let reply = self.firm.ruth.browser.get(&format!("/usage{query}")).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        reply.body
    }

    async fn json(&mut self, query: &str) -> Value {
        self.firm.ruth.browser.accept = JSON;
        let reply = self.firm.ruth.browser.get(&format!("/usage{query}")).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        serde_json::from_str(&reply.body).unwrap()
    }
}

fn refused(payer: Payer, day: &str, code: &str, refusals: u64) -> RefusedDay {
    let day: Day = day.parse().unwrap();
    let last_at = UnixMillis(day.start().0 + 11 * 3_600_000 + 40 * 60_000);
    RefusedDay { account: Some(payer.account), day, key: payer.key, code: code.to_owned(), refusals, last_at }
}

#[track_caller]
fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn the_figures_are_those_that_were_settled_by_day_model_key_and_account() {
    let mut books = Books::open().await;
    let hale = books.payer("Hale & Ward", "Claims intake").await;
    let other_key = books.key(hale.account, "Letter review").await;
    let brook = books.payer("Brook LLP", "Drafts").await;
    books.settle(hale, "2026-10-01", "smollm2-135m", (1_284_310, 96_204)).await;
    books.settle(other_key, "2026-10-01", "qwen2.5-7b", (10, 1)).await;
    books.settle(hale, "2026-10-31", "qwen2.5-7b", (2_000, 300)).await;
    books.settle(brook, "2026-10-31", "qwen2.5-7b", (5_000, 50)).await;
    books.settle(hale, "2026-09-30", "qwen2.5-7b", (1_000, 100)).await;
    books.settle(hale, "2026-11-01", "qwen2.5-7b", (7, 7)).await;

    let of_hale = format!("?account={}&month=2026-10", hale.account);
    let json = books.json(&of_hale).await;
    assert_eq!(json["account"], json!({"id": hale.account, "name": "Hale & Ward"}));
    assert_eq!((&json["month"], &json["currency"]), (&json!("2026-10"), &json!("USD")));
    let sum = |requests: u64, input: u64, output: u64| {
        let nanos = i64::try_from(input * 100 + output * 400).unwrap();
        json!({"requests": requests, "input_tokens": input, "output_tokens": output,
               "cost": Nanos(nanos).to_string(), "cost_nanos": nanos})
    };
    let named = |name: &str, what: &str, mut sum: Value| {
        sum[name] = json!(what);
        sum
    };
    assert_eq!(
        json["days"],
        json!([
            named("day", "2026-10-01", sum(2, 1_284_320, 96_205)),
            named("day", "2026-10-31", sum(1, 2_000, 300))
        ])
    );
    assert_eq!(
        json["models"],
        json!([
            named("model", "qwen2.5-7b", sum(2, 2_010, 301)),
            named("model", "smollm2-135m", sum(1, 1_284_310, 96_204))
        ])
    );
    assert_eq!((&json["total"], &json["previous"]), (&sum(3, 1_286_320, 96_505), &sum(1, 1_000, 100)));
    let mut labels: Vec<_> =
        json["keys"].as_array().unwrap().iter().map(|key| key["label"].clone()).collect();
    labels.sort_by_key(ToString::to_string);
    assert_eq!(labels, ["Claims intake", "Letter review"]);
    assert_eq!(json["accounts"], json!([]));
    assert_eq!(json["limits"]["rpm"], 600);

    let all = books.json("?month=2026-10").await;
    assert_eq!((&all["account"], &all["limits"]), (&Value::Null, &Value::Null));
    assert_eq!(all["total"], sum(4, 1_291_320, 96_555));
    assert_eq!(
        all["accounts"].as_array().unwrap().iter().map(|account| account["name"].clone()).collect::<Vec<_>>(),
        ["Brook LLP", "Hale & Ward"]
    );

    let page = books.page(&of_hale).await;
    has(
        &page,
        &[
            "<title>Usage, October 2026",
            "Hale &#38; Ward, 1 to 31 October 2026, days in UTC",
            "<dd class=\"figure\">$0.17</dd><dd class=\"meta\">0.167234 exactly</dd>",
            "<dd class=\"figure\">1,286,320</dd>",
            "about 1,286 times September",
            "<dd class=\"meta\">none was refused</dd>",
            "<title>Thu 1 Oct: 1,284,320 in, 96,205 out</title>",
            "The busiest day was Thursday 1 October with 1,380,525 tokens.",
            "<td class=\"right\">0.1669126</td>",
            "Claims intake <span class=\"sub\"><code>",
            "<option value=\"2026-10\" selected>October 2026</option>",
            "aria-current=\"page\">Usage</a>",
        ],
    );
    assert_eq!(page.matches("class=\"chart-day\"").count(), 2 * 31, "every day has its slot in both charts");
    assert_eq!(page.matches("role=\"img\"").count(), 2);
    assert!(!page.contains("By account") && !page.contains("still to come"));
    let page = books.page("?month=2026-10").await;
    has(
        &page,
        &[
            "By account",
            &format!("href=\"/usage?account={}&#38;month=2026-10\"", brook.account),
            "All accounts, 1 to",
        ],
    );
    assert!(!page.contains("Change limits"));
}

#[tokio::test]
async fn a_month_that_runs_says_so_and_is_not_held_against_a_whole_one() {
    let mut books = Books::open().await;
    let hale = books.payer("Hale & Ward", "Claims intake").await;
    books.settle(hale, "2026-10-05", "m", (280_326_703, 5)).await;
    books.settle(hale, "2026-11-13", "m", (1_000, 5)).await;
    // Today is 13 November.
    let page = books.page("").await;
    has(
        &page,
        &[
            "All accounts, 1 to 13 November 2026 so far, days in UTC",
            "<dt>Spend so far</dt>",
            "<dt>Input tokens so far</dt><dd class=\"figure\">1,000</dd><dd class=\"meta\">all of October: 280,326,703</dd>",
            "class=\"chart-to-come\"",
            "<title>14 to 30 Nov: still to come</title>",
            "14 to 30 Nov are still to come.",
            "<th scope=\"row\" class=\"nowrap\">14 to 30 Nov</th>",
            "November so far</th>",
        ],
    );
    assert_eq!(page.matches("class=\"chart-day\"").count(), 2 * 13);
    has(&books.page(&format!("?account={}", hale.account)).await, &["This account has no spending cap."]);
}

#[tokio::test]
async fn february_has_28_days_and_29_in_leap_years() {
    let mut books = Books::open().await;
    let hale = books.payer("Hale & Ward", "Claims intake").await;
    books.settle(hale, "2024-02-29", "m", (10, 5)).await;
    books.settle(hale, "2026-02-28", "m", (10, 5)).await;
    for (month, days, last) in [("2024-02", 29, "Thu 29 Feb"), ("2026-02", 28, "Sat 28 Feb")] {
        let page = books.page(&format!("?month={month}")).await;
        assert_eq!(page.matches("class=\"chart-day\"").count(), 2 * days);
        has(
            &page,
            &[
                &format!("<title>{last}: 10 in, 5 out</title>"),
                "<option value=\"2025-06\">June 2025</option>",
            ],
        );
    }
}

#[tokio::test]
async fn refusals_and_the_busiest_minute_stand_beside_the_limits() {
    let mut books = Books::open().await;
    let hale = books.payer("Hale & Ward", "Claims intake").await;
    let store = books.firm.desk.store.clone();
    let cap =
        LimitsChange { spend_per_month: CapChange::Set(Nanos(1_000_000_000)), ..LimitsChange::default() };
    store.set_limits(&"Hale & Ward".parse().unwrap(), cap).await.unwrap();
    books.settle(hale, "2026-11-12", "m", (9_600_000, 0)).await;
    let day: Day = "2026-11-12".parse().unwrap();
    let at = UnixMillis(day.start().0 + 847 * 60_000);
    let peak = PeakDay {
        account: hale.account,
        day,
        requests: 214,
        requests_at: at,
        tokens: 373_904,
        tokens_at: at,
    };
    let refusals = [
        refused(hale, "2026-11-12", "rate_limited", 388),
        refused(hale, "2026-11-02", "spending_cap_reached", 3),
        RefusedDay { account: None, ..refused(hale, "2026-11-02", "no_billing_account", 40) },
    ];
    store.activity.note_activity(&refusals, &[peak]).await.unwrap();

    let of_hale = format!("?account={}", hale.account);
    let page = books.page(&of_hale).await;
    has(
        &page,
        &[
            "391 more were refused",
            "$0.96 of $1.00",
            "meter-danger\" width=\"96.00%\"",
            "96\u{a0}% of the cap is spent.",
            "Requests under way are not counted yet.",
            "214 of 600",
            "373,904 of 400,000",
            "meter-warn\" width=\"93.47%\"",
            "12 November, 14:07 UTC. Close to the limit: raise it, or spread the work.",
            &format!("<a href=\"/accounts/{}\">Change limits</a>", hale.account),
            "Too many requests or tokens in a minute<span class=\"sub\"><code>429 rate_limited</code>",
            "yesterday, 11:40 UTC",
            "<code>402 spending_cap_reached</code>",
            "<title>Mon 2 Nov: 0 with 429, 3 with 402</title>",
            "<title>Thu 12 Nov: 388 with 429, 0 with 402</title>",
        ],
    );
    assert!(!page.contains("no_billing_account"));
    let json = books.json(&of_hale).await;
    assert_eq!(
        json["refusals"],
        json!([
            {"day": "2026-11-02", "code": "spending_cap_reached", "refusals": 3},
            {"day": "2026-11-12", "code": "rate_limited", "refusals": 388},
        ])
    );
    let limits = &json["limits"];
    assert_eq!(
        (
            &limits["spend_per_month"],
            &limits["rpm"],
            &limits["tpm"],
            &limits["peak_requests"],
            &limits["peak_tokens"]
        ),
        (&json!("1.00"), &json!(600), &json!(400_000), &json!(214), &json!(373_904))
    );
    has(&books.page("").await, &["402 no_billing_account", "431 more were refused"]);
}

#[tokio::test]
async fn hostile_labels_and_model_names_are_text() {
    let mut books = Books::open().await;
    let payer = books.payer(HOSTILE, HOSTILE).await;
    books.settle(payer, "2026-11-12", HOSTILE, (10, 5)).await;
    let store = books.firm.desk.store.clone();
    store.activity.note_activity(&[refused(payer, "2026-11-12", HOSTILE, 2)], &[]).await.unwrap();
    for query in [String::new(), format!("?account={}", payer.account)] {
        let page = books.page(&query).await;
        for part in ["<script>", "<img", "onerror=alert(1)>", "<!--", " style=", "<style"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
        // The account's name, the label, the model and the code.
        assert!(page.matches("&#60;script&#62;alert(1)").count() >= 4, "{page}");
        assert_eq!(page.matches("<title").count(), page.matches("</title>").count());
        assert_eq!(page.matches("<h1").count(), 1);
    }
    assert_eq!(books.json("").await["models"][0]["model"], HOSTILE);
}

#[tokio::test]
async fn an_empty_month_and_an_empty_firm_say_what_will_be_there() {
    let mut books = Books::open().await;
    has(&books.page("").await, &["No accounts yet", "href=\"/accounts\""]);
    let json = books.json("").await;
    assert_eq!((&json["days"], &json["total"]["cost"]), (&json!([]), &json!("0.00")));
    let hale = books.payer("Hale & Ward", "Claims intake").await;
    books.settle(hale, "2026-10-05", "m", (10, 5)).await;
    let page = books.page(&format!("?account={}", hale.account)).await;
    has(
        &page,
        &[
            "Nothing was used in November 2026",
            &format!("href=\"/usage?account={}&#38;month=2026-10\">Show October 2026</a>", hale.account),
        ],
    );
    assert!(!page.contains("<svg"));
    let page = books.page("?month=2019-05").await;
    has(
        &page,
        &[
            "Nothing was used in May 2019",
            "No account sent a request that",
            "href=\"/usage\">Show this month</a>",
            "<option value=\"2019-05\" selected>May 2019</option>",
        ],
    );
    let store = books.firm.desk.store.clone();
    store.activity.note_activity(&[refused(hale, "2026-11-02", "rate_limited", 3)], &[]).await.unwrap();
    let page = books.page("").await;
    has(&page, &["3 more were refused", "Refused requests per day", "429 rate_limited"]);
    assert!(!page.contains("Tokens per day"), "nothing was used, but something was refused");
}

#[tokio::test]
async fn what_cannot_be_shown_is_named_at_its_field_and_consultants_get_nothing() {
    let mut books = Books::open().await;
    books.payer("Hale & Ward", "Claims intake").await;
    let browser = &mut books.firm.ruth.browser;
    for (query, field) in [
        ("?account=987654", "account"),
        ("?account=hale", "account"),
        ("?month=october", "month"),
        ("?month=2026-12", "month"),
        ("?month=9999-99", "month"),
        ("?account=987654&month=x", "month"),
    ] {
        browser.accept = HTML;
        let page = browser.get(&format!("/usage{query}")).await;
        assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {}", page.body);
        has(
            &page.body,
            &[
                "<title>Error: usage",
                &format!("id=\"{field}-error\""),
                &format!("aria-describedby=\"{field}-error\""),
                ">Hale &#38; Ward</option>",
            ],
        );
        assert!(!page.body.contains("class=\"stats\""));
        browser.accept = JSON;
        let refused = browser.get(&format!("/usage{query}")).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        has(&refused.body, &["\"invalid_value\"", &format!("`{field}`: ")]);
    }
    for path in ["/usage", "/usage?account=1", "/usage?month=x"] {
        let refused = books.firm.ann.browser.get(path).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert!(!refused.body.contains("Hale"));
    }
    assert!(!books.firm.ann.browser.get("/clients").await.body.contains("href=\"/usage\""));
}
