//! `GET /docs`: the API reference for people.

use crate::server::{Firm, client};

#[tokio::test]
async fn docs_page_needs_no_key_and_loads_nothing_external() {
    let server = Firm::new().start();
    for (path, media_type, part) in [
        ("/docs", "text/html; charset=utf-8", "<h1>"),
        ("/docs/style.css", "text/css; charset=utf-8", "prefers-color-scheme: dark"),
    ] {
        let request = client().get(format!("{}{path}", server.api)).header("sec-fetch-mode", "navigate");
        let response = request.header("sec-fetch-site", "none").send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        let header = |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap());
        assert_eq!(header("content-type"), media_type);
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert!(header("x-request-id").starts_with("req_"));
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
        let cors = response.headers().keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(cors, None);
        assert!(response.text().await.unwrap().contains(part), "{path}");

        let head = client().head(format!("{}{path}", server.api)).send().await.unwrap();
        assert_eq!(
            (head.status().as_u16(), head.headers()["content-type"].to_str().unwrap()),
            (200, media_type)
        );
        assert_eq!(head.text().await.unwrap(), "");
    }
}

#[tokio::test]
async fn first_docs_example_works_when_pasted() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let page = client().get(format!("{}/docs", server.api)).send().await.unwrap().text().await.unwrap();
    let escaped = page.split("<code>curl ").nth(1).unwrap().split("</code>").next().unwrap();
    let line = ["&#34; \"", "&#39; '", "&quot; \"", "&lt; <", "&gt; >", "&amp; &"]
        .iter()
        .filter_map(|pair| pair.split_once(' '))
        .fold(format!("curl --silent {escaped}"), |text, (escape, plain)| text.replace(escape, plain));
    let mut shell = crate::server::clean_command("bash");
    shell.args(["-c", &line]).env("CHANCERY_URL", &server.api).env("CHANCERY_API_KEY", key);
    let output = shell.output().unwrap();
    let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["model"], crate::server::MODEL, "{line}\n{reply}");
    assert!(!reply["output_text"].as_str().unwrap().is_empty(), "{reply}");
}
