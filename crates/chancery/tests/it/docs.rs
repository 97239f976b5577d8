//! `GET /docs`: the API reference for people.

use crate::browser::Browser;
use crate::server::{Firm, Server, client};

#[tokio::test]
async fn docs_page_needs_no_key_and_loads_nothing_external() {
    let server = Firm::new().start();
    for (path, media_type, part) in [
        ("/docs", "text/html; charset=utf-8", "<h1>"),
        ("/docs/style.css", "text/css; charset=utf-8", "prefers-color-scheme: dark"),
        ("/docs/script.js", "text/javascript; charset=utf-8", "navigator.clipboard"),
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
    examples_can_be_copied_and_no_stylesheet_is_listed(&server).await;
}

#[tokio::test]
async fn first_docs_examples_work_when_pasted() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let page = client().get(format!("{}/docs", server.api)).send().await.unwrap().text().await.unwrap();
    let after = |heading: &str| code(page.split(heading).nth(1).unwrap());
    let curl = format!("curl --silent {}", code(page.split_once("<code>curl ").unwrap().1));
    // Both print an object in their own notation.
    let python = after("<summary>Python</summary>")
        .replace("print(json.load(response))", "print(json.dumps(json.load(response)))");
    let javascript = after("<summary>JavaScript</summary>")
        .replace("console.log(await response.json())", "console.log(JSON.stringify(await response.json()))");
    let node = crate::openai_clients::clients().join("venv/bin/node");
    for (program, arguments, example) in [
        ("bash", vec!["-c"], curl),
        ("python3", vec!["-c"], python),
        (node.to_str().unwrap(), vec!["--input-type=module", "-e"], javascript),
    ] {
        let mut command = crate::server::clean_command(program);
        command.args(arguments).arg(&example);
        let output = command.env("CHANCERY_URL", &server.api).env("CHANCERY_API_KEY", &key).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{program}: {error}\n{example}\n{errors}"));
        assert_eq!(reply["model"], crate::server::MODEL, "{example}\n{reply}");
        assert!(!reply["output_text"].as_str().unwrap().is_empty(), "{reply}");
    }
}

async fn examples_can_be_copied_and_no_stylesheet_is_listed(server: &Server) {
    let (browser, page) = (Browser::start().await, format!("{}/docs", server.api));
    browser.open(&page).await;
    assert!(!browser.page_text().await.contains("/docs/style.css"));
    let buttons = "return document.querySelectorAll('.copy').length";
    assert_ne!(browser.script(buttons).await, 0);
    // Whether a headless browser may write to the clipboard differs between versions.
    browser.script("navigator.clipboard.writeText = async (text) => { window.copied = text; };").await;
    browser.press("#generate .copy").await;
    browser.until("window.copied").await;
    let copied = browser.script("return window.copied").await;
    assert!(copied.as_str().unwrap().starts_with("curl \"$CHANCERY_URL/v1/generate\""), "{copied}");
    browser.shows("Copied").await;
    browser.press("#generate details > summary").await;
    browser.shows("urllib.request.urlopen").await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());

    browser.switch_scripts_off().await;
    browser.open(&page).await;
    assert_eq!(browser.script(buttons).await, 0, "a button that does nothing");
    browser.press("#generate details > summary").await;
    browser.shows("urllib.request.urlopen").await;
}

/// The text up to the end of the code element, with or without its opening tag.
fn code(html: &str) -> String {
    let end = html.split("</code>").next().unwrap();
    let escaped = end.rsplit("<code>").next().unwrap();
    ["&#34; \"", "&#39; '", "&quot; \"", "&lt; <", "&gt; >", "&#60; <", "&#62; >", "&amp; &", "&#38; &"]
        .iter()
        .filter_map(|pair| pair.split_once(' '))
        .fold(escaped.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}
