//! What the boundary adds to every page.

#![expect(clippy::unwrap_used, reason = "the whole binary is tests: what fails to unwrap fails the test")]

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use axum::response::{Html, Response};
use axum::routing::{get, post};
use chancery_domain::{ManualClock, SeededRandomness, UnixMillis};
use chancery_web::{
    ErrorPage, PageLayerConfig, PreservedField, STYLESHEET_PATH, TrustedProxies, with_page_layer,
};
use http_body_util::BodyExt;
use std::io::Read;
use std::sync::Arc;
use tower_service::Service;

fn surface(public_url: &str) -> Router {
    let routes = Router::new()
        .route("/", get(async || "a page"))
        .route("/long", get(async || Html("a page with a secret ".repeat(200))))
        .route("/events", get(async || ([("content-type", "text/event-stream")], "data: {}\n\n".repeat(200))))
        .route("/stream", get(async || Html(Body::from_stream(one_long_piece()))))
        .route("/deed", post(async || "done"))
        .route("/open", post(async || "done"))
        .route("/panic", get(async || -> &'static str { panic!("a defect") }))
        .route(
            "/refused",
            get(async || {
                ErrorPage::too_many_requests("Too many <tries>.", 7).with_log_detail("secret detail")
            }),
        );
    let config = PageLayerConfig {
        surface: "test",
        firm_name: "Marlow & Finch".to_owned(),
        public_url: public_url.to_owned(),
        hsts_include_subdomains: public_url == "https://with.subdomains",
        form_action_origins: vec!["http://localhost:8081".to_owned()],
        trusted_proxies: TrustedProxies::default(),
        max_body_bytes: 1_000,
        cross_origin_paths: &["/open"],
        max_cross_origin_body_bytes: 100,
        preserved_fields: &[PreservedField { name: "text", label: "Text" }],
        bar_renderer: None,
        clock: Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000))),
        randomness: Arc::new(SeededRandomness::new(1)),
    };
    with_page_layer(routes, config)
}

async fn ask(method: Method, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:8081");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    surface("http://localhost:8081").call(request.body(Body::empty()).unwrap()).await.unwrap()
}

fn one_long_piece() -> impl futures_core::Stream<Item = Result<String, std::io::Error>> + Send {
    futures_util::stream::iter([Ok("written while it is sent ".repeat(200))])
}

fn unzipped(bytes: &[u8]) -> String {
    let mut unzipped = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut unzipped).unwrap();
    unzipped
}

async fn text(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn every_response_has_security_headers_even_errors_and_panics() {
    for (path, status) in [("/", 200), ("/nowhere", 404), ("/refused", 429), ("/panic", 500), ("/deed", 405)]
    {
        let response = ask(Method::GET, path, &[]).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        let policy = header(&response, "content-security-policy");
        assert!(
            policy.starts_with("default-src 'none';") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("form-action 'self' http://localhost:8081;"), "{policy}");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        assert_eq!(header(&response, "referrer-policy"), "same-origin");
        assert_eq!(header(&response, "cache-control"), "no-store");
        assert_eq!(header(&response, "strict-transport-security"), "", "there is no TLS here");
        assert!(header(&response, "x-request-id").starts_with("req_"));
    }
    let request = Request::builder().uri("/").body(Body::empty()).unwrap();
    let response = surface("https://portal.example.com").call(request).await.unwrap();
    assert_eq!(header(&response, "strict-transport-security"), "max-age=31536000");
    let request = Request::builder().uri("/").body(Body::empty()).unwrap();
    let response = surface("https://with.subdomains").call(request).await.unwrap();
    assert_eq!(header(&response, "strict-transport-security"), "max-age=31536000; includeSubDomains");
}

#[tokio::test]
async fn cross_origin_requests_are_blocked_except_on_listed_paths() {
    let foreign = [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")];
    let response = ask(Method::POST, "/deed", &foreign).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(text(response).await.contains("Request from another site blocked"));
    assert_eq!(ask(Method::POST, "/open", &foreign).await.status(), StatusCode::OK);
    assert_eq!(
        ask(Method::POST, "/deed", &[("sec-fetch-site", "same-origin")]).await.status(),
        StatusCode::OK
    );
    assert_eq!(
        ask(Method::POST, "/deed", &[("origin", "http://localhost:8081")]).await.status(),
        StatusCode::OK
    );
}

#[tokio::test]
async fn errors_are_html_or_json_and_leak_nothing_internal() {
    let page = ask(Method::GET, "/refused", &[("accept", "text/html,application/json;q=0.5")]).await;
    assert_eq!(header(&page, "retry-after"), "7");
    let page = text(page).await;
    assert!(page.contains("Too many &#60;tries&#62;.") || page.contains("Too many &lt;tries&gt;."), "{page}");
    assert!(page.contains("Marlow &#38; Finch") || page.contains("Marlow &amp; Finch"), "{page}");
    assert!(!page.contains("secret detail"), "{page}");
    let json = text(ask(Method::GET, "/refused", &[("accept", "application/json")]).await).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"error": {"code": "too_many_requests", "reason": "Too many <tries>."}})
    );
}

#[tokio::test]
async fn oversized_body_is_rejected_before_the_handler_runs() {
    for (bytes, status) in [(1_000, StatusCode::OK), (1_001, StatusCode::PAYLOAD_TOO_LARGE)] {
        let request =
            Request::builder().method(Method::POST).uri("/deed").body(Body::from(vec![b'x'; bytes]));
        let response = surface("http://localhost:8081").call(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{bytes}");
    }
    for (bytes, status) in [(100, StatusCode::OK), (101, StatusCode::PAYLOAD_TOO_LARGE)] {
        let request =
            Request::builder().method(Method::POST).uri("/open").body(Body::from(vec![b'x'; bytes]));
        let response = surface("http://localhost:8081").call(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{bytes} to a path that anyone may call");
    }
}

#[tokio::test(start_paused = true)]
async fn endless_body_times_out() {
    let request =
        Request::builder().method(Method::POST).uri("/deed").body(Body::from_stream(Never)).unwrap();
    let response = surface("http://localhost:8081").call(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}

struct Never;

impl futures_core::Stream for Never {
    type Item = Result<axum::body::Bytes, std::convert::Infallible>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn panic_fails_one_request_and_leaks_nothing() {
    let page = text(ask(Method::GET, "/panic", &[]).await).await;
    assert!(page.contains("Something went wrong") && !page.contains("a defect"), "{page}");
}

#[tokio::test]
async fn stylesheet_is_cached_as_immutable() {
    let response = ask(Method::GET, STYLESHEET_PATH, &[]).await;
    assert_eq!(header(&response, "content-type"), "text/css; charset=utf-8");
    assert_eq!(header(&response, "cache-control"), "public, max-age=31536000, immutable");
    let sheet = text(response).await;
    assert!(
        sheet.contains("prefers-color-scheme: dark") && !sheet.contains("http"),
        "nothing from elsewhere"
    );
}

#[tokio::test]
async fn pages_and_assets_are_compressed_for_our_own_pages_only() {
    const GZIP: (&str, &str) = ("accept-encoding", "gzip, deflate, br");
    let own = [GZIP, ("cookie", "session=x"), ("sec-fetch-site", "same-origin")];
    for path in ["/long", STYLESHEET_PATH] {
        let plain = text(ask(Method::GET, path, &[]).await).await;
        let response = ask(Method::GET, path, &own).await;
        assert_eq!(header(&response, "content-encoding"), "gzip", "{path}");
        assert_eq!(header(&response, "vary"), "accept-encoding");
        let sent = response.into_body().collect().await.unwrap().to_bytes();
        assert!(sent.len() < plain.len() / 2, "{path}: {} of {}", sent.len(), plain.len());
        assert_eq!(unzipped(&sent), plain);
    }
    let foreign = [GZIP, ("cookie", "session=x"), ("sec-fetch-site", "cross-site")];
    let response = ask(Method::GET, "/long", &foreign).await;
    assert_eq!(header(&response, "content-encoding"), "", "another site could probe the page by its length");
    assert_eq!(header(&response, "vary"), "accept-encoding");
    for path in ["/", "/events", "/stream"] {
        let response = ask(Method::GET, path, &own).await;
        assert_eq!(header(&response, "content-encoding"), "", "{path}: short, or a stream");
    }
}
