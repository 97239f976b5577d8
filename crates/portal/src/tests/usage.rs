//! `/usage`: settled usage as totals and charts, for partners.

use super::firm::Firm;
use super::routes::{HTML, JSON};
use axum::http::StatusCode;
use chancery_domain::{
    AccountId, ApiKey, Day, KeyId, KeyLimits, Nanos, OsRandomness, Prices, RateLimits, RequestId, StopReason,
    TokenPrice, UnixMillis, UsageRow,
};
use chancery_store::{
    ActivityBatch, CapChange, DailyPeak, DailyRejections, LimitsChange, NewAccount, NewKey,
};
use serde_json::{Value, json};

const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(1)>' </title><!--";

struct UsageFixture {
    firm: Firm,
    settled: usize,
}

#[derive(Clone, Copy)]
struct BilledAccount {
    account: AccountId,
    key: KeyId,
}

impl UsageFixture {
    async fn open() -> Self {
        Self { firm: Firm::open().await, settled: 0 }
    }

    async fn account(&self, name: &str) -> AccountId {
        let limits = RateLimits { requests_per_min: 600, tokens_per_min: 400_000 };
        let new = NewAccount { name: name.parse().unwrap(), limits, created_at: UnixMillis(0) };
        self.firm.portal.store.create_account(new).await.unwrap().id
    }

    async fn key(&self, account: AccountId, label: &str) -> BilledAccount {
        let key = ApiKey::generate(&OsRandomness);
        let new = NewKey {
            prefix: key.prefix(),
            hash: key.hash(),
            label: label.to_owned(),
            account: Some(account),
            created_at: UnixMillis(0),
            limits: KeyLimits::default(),
        };
        BilledAccount { account, key: self.firm.portal.store.create_key(new).await.unwrap().id }
    }

    async fn payer(&self, name: &str, label: &str) -> BilledAccount {
        let account = self.account(name).await;
        self.key(account, label).await
    }

    /// Settles a request at 0.10 and 0.40 per million tokens.
    async fn settle(&mut self, payer: BilledAccount, day: &str, model: &str, tokens: (u32, u32)) {
        let nanos = |price: i64| TokenPrice::from_nanos_per_token(price);
        let mut row = UsageRow {
            request_id: RequestId::from_stored(format!("req_{:06}", self.settled)),
            account: payer.account,
            key: payer.key,
            model: model.to_owned(),
            input_tokens: tokens.0,
            cached_input_tokens: 0,
            output_tokens: tokens.1,
            prices: Prices { input: nanos(100), cached_input: nanos(100), output: nanos(400) },
            cost: Nanos(0),
            at: UnixMillis(day.parse::<Day>().unwrap().start().0 + 3_600_000),
            stop_reason: StopReason::Complete,
        };
        row.cost = row.recomputed_cost().unwrap();
        self.settled += 1;
        self.firm.portal.store.ledger.settle(row.into()).await.unwrap();
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

fn rejected(payer: BilledAccount, day: &str, code: &str, rejections: u64) -> DailyRejections {
    let day: Day = day.parse().unwrap();
    let last_at = UnixMillis(day.start().0 + 11 * 3_600_000 + 40 * 60_000);
    DailyRejections {
        account: Some(payer.account),
        day,
        key: payer.key,
        code: code.to_owned(),
        rejections,
        last_at,
    }
}

#[track_caller]
fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test]
async fn usage_matches_the_settled_ledger() {
    let mut fixture = UsageFixture::open().await;
    let hale = fixture.payer("Hale & Ward", "Claims intake").await;
    let other_key = fixture.key(hale.account, "Letter review").await;
    let brook = fixture.payer("Brook LLP", "Drafts").await;
    fixture.settle(hale, "2026-10-01", "smollm2-135m", (1_284_310, 96_204)).await;
    fixture.settle(other_key, "2026-10-01", "qwen2.5-7b", (10, 1)).await;
    fixture.settle(hale, "2026-10-31", "qwen2.5-7b", (2_000, 300)).await;
    fixture.settle(brook, "2026-10-31", "qwen2.5-7b", (5_000, 50)).await;
    fixture.settle(hale, "2026-09-30", "qwen2.5-7b", (1_000, 100)).await;
    fixture.settle(hale, "2026-11-01", "qwen2.5-7b", (7, 7)).await;

    let of_hale = format!("?account={}&month=2026-10", hale.account);
    let json = fixture.json(&of_hale).await;
    assert_eq!(json["account"], json!({"id": hale.account, "name": "Hale & Ward"}));
    assert_eq!((&json["month"], &json["currency"]), (&json!("2026-10"), &json!("USD")));
    let sum = |requests: u64, input: u64, output: u64| {
        let nanos = i64::try_from(input * 100 + output * 400).unwrap();
        json!({"requests": requests, "input_tokens": input, "cached_input_tokens": 0, "output_tokens": output,
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

    let all = fixture.json("?month=2026-10").await;
    assert_eq!((&all["account"], &all["limits"]), (&Value::Null, &Value::Null));
    assert_eq!(all["total"], sum(4, 1_291_320, 96_555));
    assert_eq!(
        all["accounts"].as_array().unwrap().iter().map(|account| account["name"].clone()).collect::<Vec<_>>(),
        ["Brook LLP", "Hale & Ward"]
    );

    let page = fixture.page(&of_hale).await;
    has(
        &page,
        &[
            "<title>Usage, October 2026",
            "Hale &#38; Ward, 1 to 31 October 2026, days in UTC",
            "<dd class=\"figure\">$0.17</dd><dd class=\"meta\">exactly 0.167234</dd>",
            "<dd class=\"figure\">1,286,320</dd>",
            "about 1,286 times September",
            "<dd class=\"meta\">none rejected</dd>",
            "<title>Thu 1 Oct: 1,284,320 in, 96,205 out</title>",
            "The busiest day was Thursday 1 October with 1,380,525 tokens.",
            "<td class=\"right\">0.1669126</td>",
            "<span dir=\"auto\">Claims intake</span> <span class=\"sub\"><code>",
            "<option value=\"2026-10\" selected>October 2026</option>",
            "aria-current=\"page\">Usage</a>",
        ],
    );
    assert_eq!(page.matches("class=\"chart-day\"").count(), 2 * 31, "every day has its slot in both charts");
    assert_eq!(page.matches("role=\"img\"").count(), 2);
    assert!(!page.contains("By account") && !page.contains("upcoming"));
    let page = fixture.page("?month=2026-10").await;
    has(
        &page,
        &[
            "By account",
            &format!("href=\"/usage?account={}&#38;month=2026-10\"", brook.account),
            "All accounts, 1 to",
        ],
    );
    assert!(!page.contains("Edit limits"));
}

#[tokio::test]
async fn current_month_is_labelled_so_far() {
    let mut fixture = UsageFixture::open().await;
    let hale = fixture.payer("Hale & Ward", "Claims intake").await;
    fixture.settle(hale, "2026-10-05", "m", (280_326_703, 5)).await;
    fixture.settle(hale, "2026-11-13", "m", (1_000, 5)).await;
    // Today is 13 November.
    let page = fixture.page("").await;
    has(
        &page,
        &[
            "All accounts, 1 to 13 November 2026 so far, days in UTC",
            "<dt>Spend so far</dt>",
            "<dt>Input tokens so far</dt><dd class=\"figure\">1,000</dd><dd class=\"meta\">October total: 280,326,703</dd>",
            "class=\"chart-to-come\"",
            "<title>14 to 30 Nov: upcoming</title>",
            "Upcoming: 14 to 30 Nov.",
            "<th scope=\"row\" class=\"nowrap\">14 to 30 Nov</th>",
            "November so far</th>",
        ],
    );
    assert_eq!(page.matches("class=\"chart-day\"").count(), 2 * 13);
    has(&fixture.page(&format!("?account={}", hale.account)).await, &["No monthly cap."]);
}

#[tokio::test]
async fn february_has_28_or_29_days() {
    let mut fixture = UsageFixture::open().await;
    let hale = fixture.payer("Hale & Ward", "Claims intake").await;
    fixture.settle(hale, "2024-02-29", "m", (10, 5)).await;
    fixture.settle(hale, "2026-02-28", "m", (10, 5)).await;
    for (month, days, last) in [("2024-02", 29, "Thu 29 Feb"), ("2026-02", 28, "Sat 28 Feb")] {
        let page = fixture.page(&format!("?month={month}")).await;
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
async fn rejections_and_peak_minute_are_shown_with_limits() {
    let mut fixture = UsageFixture::open().await;
    let hale = fixture.payer("Hale & Ward", "Claims intake").await;
    let store = fixture.firm.portal.store.clone();
    let cap =
        LimitsChange { spend_per_month: CapChange::Set(Nanos(1_000_000_000)), ..LimitsChange::default() };
    store.set_limits(&"Hale & Ward".parse().unwrap(), cap).await.unwrap();
    fixture.settle(hale, "2026-11-12", "m", (9_600_000, 0)).await;
    let day: Day = "2026-11-12".parse().unwrap();
    let at = UnixMillis(day.start().0 + 847 * 60_000);
    let peak = DailyPeak {
        account: hale.account,
        day,
        requests: 214,
        requests_at: at,
        tokens: 373_904,
        tokens_at: at,
    };
    let rejections = [
        rejected(hale, "2026-11-12", "rate_limited", 388),
        rejected(hale, "2026-11-02", "spending_cap_reached", 3),
        DailyRejections { account: None, ..rejected(hale, "2026-11-02", "no_billing_account", 40) },
    ];
    store
        .activity
        .record_activity(ActivityBatch {
            rejections: &rejections,
            peaks: &[peak],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();

    let of_hale = format!("?account={}", hale.account);
    let page = fixture.page(&of_hale).await;
    has(
        &page,
        &[
            "plus 391 rejected",
            "$0.96 of $1.00",
            "meter-danger\" width=\"96.00%\"",
            "96% of the cap used.",
            "Running requests are not included.",
            "214 of 600",
            "373,904 of 400,000",
            "meter-warn\" width=\"93.47%\"",
            "12 November, 14:07 UTC. Close to the limit: raise it, or spread requests over time.",
            &format!("<a href=\"/accounts/{}\">Edit limits</a>", hale.account),
            "Rate limit exceeded<span class=\"sub\"><code>429 rate_limited</code>",
            "yesterday, 11:40 UTC",
            "<code>402 spending_cap_reached</code>",
            "<title>Mon 2 Nov: 0 with 429, 3 with 402</title>",
            "<title>Thu 12 Nov: 388 with 429, 0 with 402</title>",
        ],
    );
    assert!(!page.contains("no_billing_account"));
    let json = fixture.json(&of_hale).await;
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
    has(&fixture.page("").await, &["402 no_billing_account", "plus 431 rejected"]);
}

#[tokio::test]
async fn usage_labels_are_escaped() {
    let mut fixture = UsageFixture::open().await;
    let payer = fixture.payer(HOSTILE, HOSTILE).await;
    fixture.settle(payer, "2026-11-12", HOSTILE, (10, 5)).await;
    let store = fixture.firm.portal.store.clone();
    store
        .activity
        .record_activity(ActivityBatch {
            rejections: &[rejected(payer, "2026-11-12", HOSTILE, 2)],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();
    for query in [String::new(), format!("?account={}", payer.account)] {
        let page = fixture.page(&query).await;
        for part in ["<script>", "<img", "onerror=alert(1)>", "<!--", " style=", "<style"] {
            assert!(!page.contains(part), "{part}: {page}");
        }
        // The account's name, the label, the model and the code.
        assert!(page.matches("&#60;script&#62;alert(1)").count() >= 4, "{page}");
        assert_eq!(page.matches("<title").count(), page.matches("</title>").count());
        assert_eq!(page.matches("<h1").count(), 1);
    }
    assert_eq!(fixture.json("").await["models"][0]["model"], HOSTILE);
}

#[tokio::test]
async fn empty_usage_says_what_to_do() {
    let mut fixture = UsageFixture::open().await;
    has(&fixture.page("").await, &["No accounts yet", "href=\"/accounts\""]);
    let json = fixture.json("").await;
    assert_eq!((&json["days"], &json["total"]["cost"]), (&json!([]), &json!("0.00")));
    let hale = fixture.payer("Hale & Ward", "Claims intake").await;
    fixture.settle(hale, "2026-10-05", "m", (10, 5)).await;
    let page = fixture.page(&format!("?account={}", hale.account)).await;
    has(
        &page,
        &[
            "No usage in November 2026",
            &format!("href=\"/usage?account={}&#38;month=2026-10\">Show October 2026</a>", hale.account),
        ],
    );
    assert!(!page.contains("<svg"));
    let page = fixture.page("?month=2019-05").await;
    has(
        &page,
        &[
            "No usage in May 2019",
            "No account sent requests in May 2019.",
            "href=\"/usage\">Show this month</a>",
            "<option value=\"2019-05\" selected>May 2019</option>",
        ],
    );
    let store = fixture.firm.portal.store.clone();
    store
        .activity
        .record_activity(ActivityBatch {
            rejections: &[rejected(hale, "2026-11-02", "rate_limited", 3)],
            ..ActivityBatch::default()
        })
        .await
        .unwrap();
    let page = fixture.page("").await;
    has(&page, &["plus 3 rejected", "Rejected requests per day", "429 rate_limited"]);
    assert!(!page.contains("Tokens per day"), "nothing was used, but something was refused");
}

#[tokio::test]
async fn invalid_usage_query_shows_a_field_error_and_consultants_get_403() {
    let mut fixture = UsageFixture::open().await;
    fixture.payer("Hale & Ward", "Claims intake").await;
    let browser = &mut fixture.firm.ruth.browser;
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
        let rejected = browser.get(&format!("/usage{query}")).await;
        assert_eq!(rejected.status, StatusCode::UNPROCESSABLE_ENTITY);
        has(&rejected.body, &["\"invalid_value\"", &format!("`{field}`: ")]);
    }
    for path in ["/usage", "/usage?account=1", "/usage?month=x"] {
        let rejected = fixture.firm.ann.browser.get(path).await;
        assert_eq!(rejected.status, StatusCode::FORBIDDEN);
        assert!(!rejected.body.contains("Hale"));
    }
    assert!(!fixture.firm.ann.browser.get("/clients").await.body.contains("href=\"/usage\""));
}
