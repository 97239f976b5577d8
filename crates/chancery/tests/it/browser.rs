//! Debian's headless Chromium, driven over the WebDriver protocol. The tests need few calls, which are plain JSON over HTTP.
//! WebDriver libraries turn on features of `serde_json` in the binary under test, or add thirty crates.
//!
//! The tests use the headless shell: Chromium without a browser's user interface. Starting it and opening five pages took a third
//! of the CPU time that `chromium --headless` took.

use crate::server::{Running, clean_command, client};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use chancery_domain::{Clock, SystemClock};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// How long a page may take to appear on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// WebDriver's code points for special keys.
pub const TAB: char = '\u{e004}';
pub const ENTER: char = '\u{e007}';
pub const ESCAPE: char = '\u{e00c}';

/// The key that identifies an element in WebDriver replies.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Starts Debian's headless shell.
const BROWSER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/headless-browser");

pub struct Browser {
    driver: Running,
    pid: rustix::process::Pid,
    session: String,
    /// Holds everything that the browser writes.
    folder: tempfile::TempDir,
    http: reqwest::Client,
}

/// A handle to an open tab.
pub struct Tab(Value);

/// A passkey device that the browser simulates (WebDriver's extension in the WebAuthn standard).
pub struct Authenticator(String);

#[derive(Clone, Copy, Debug)]
pub enum Screen {
    Desktop,
    Wide,
    Phone,
}

#[derive(Clone, Copy, Debug)]
pub enum Scheme {
    Light,
    Dark,
}

/// Returns the driver and its port. The driver binds a free IPv6 port and then the same IPv4 port, which another test may be
/// using. In that case it exits and is started again.
fn start_driver(folder: &Path) -> (Running, u16) {
    for _ in 0..5 {
        let mut driver = clean_command("chromedriver");
        driver.args(["--port=0", "--log-level=WARNING"]).stdout(Stdio::piped());
        driver.env("TMPDIR", folder).env("XDG_CONFIG_HOME", folder); // otherwise it leaves files behind
        let mut driver = Running(driver.spawn().expect(
            "run `make test`, which installs Chromium and its driver, or install Debian's chromium-driver",
        ));
        let mut lines = BufReader::new(driver.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        if let Some(started) = lines.find(|line| line.contains("started successfully on port")) {
            return (driver, started.trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap());
        }
    }
    panic!("chromedriver ended five times without saying its port");
}

impl Browser {
    /// Starts a browser with a fresh profile and a desktop-sized window.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (driver, port) = start_driver(folder.path());

        let arguments = [
            "--no-sandbox", // required when running as root
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
            "--window-size=1280,900",
            "--hide-scrollbars",       // they differ between systems
            "--remote-debugging-pipe", // the browser exits when its driver does, however that happens
            // Requests to other hosts fail at once instead of waiting for a network that may not exist.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
            &format!("--user-data-dir={}/profile", folder.path().display()),
        ];
        let http = client();
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"implicit": TIMEOUT.as_millis(), "pageLoad": TIMEOUT.as_millis()},
        }}});
        let sessions = format!("http://127.0.0.1:{port}/session");
        let session = call(http.post(&sessions).json(&capabilities)).await.unwrap();
        let pid = session["capabilities"]["goog:processID"].as_i64().unwrap();
        let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
        let session = format!("{sessions}/{}", session["sessionId"].as_str().unwrap());
        Self { driver, pid, session, folder, http }
    }

    pub async fn open(&self, url: &str) {
        self.post("url", &json!({"url": url})).await;
    }

    pub async fn url(&self) -> reqwest::Url {
        self.get("url").await.as_str().unwrap().parse().unwrap()
    }

    /// Waits until the URL starts with `beginning`; returns the full URL.
    pub async fn wait_for_url(&self, beginning: &str) -> reqwest::Url {
        let deadline = SystemClock.monotonic() + TIMEOUT;
        loop {
            let url = self.url().await;
            if url.as_str().starts_with(beginning) {
                return url;
            }
            if SystemClock.monotonic() > deadline {
                panic!("not at {beginning} but at {url}, which shows:\n{}", self.page_text().await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for the element, clears it and types into it.
    pub async fn fill(&self, css: &str, text: &str) {
        let element = self.find(css).await;
        self.post(&format!("element/{element}/clear"), &json!({})).await;
        self.post(&format!("element/{element}/value"), &json!({"text": text})).await;
    }

    /// Selects the option with this text, by keyboard.
    pub async fn fill_choice(&self, css: &str, label: &str) {
        let element = self.find(css).await;
        self.post(&format!("element/{element}/value"), &json!({"text": label})).await;
        let chosen = format!("return document.querySelector(\"{css}\").selectedOptions[0].innerText");
        assert_eq!(self.script(&chosen).await, label);
    }

    /// Sends these keys to the focused element.
    pub async fn type_keys(&self, keys: &str) {
        let keys = keys.chars().flat_map(|key| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": keys.collect::<Vec<_>>()});
        self.post("actions", &json!({"actions": [keyboard]})).await;
    }

    /// Waits for the element and clicks it.
    pub async fn press(&self, css: &str) {
        let element = self.find(css).await;
        self.post(&format!("element/{element}/click"), &json!({})).await;
    }

    /// Clicks something that navigates, and waits for the new page. The driver's own wait starts too early on a busy machine: the
    /// next command may still see the old page.
    pub async fn follow(&self, css: &str) {
        self.script("document.documentElement.dataset.left = 'yes'").await;
        self.press(css).await;
        self.until("document.readyState === 'complete' && !document.documentElement.dataset.left").await;
    }

    /// Waits for the link with exactly this text and clicks it.
    pub async fn press_link(&self, text: &str) {
        let expected = json!({"using": "link text", "value": text});
        let element = self.post("element", &expected).await;
        let element = element[ELEMENT].as_str().unwrap();
        self.post(&format!("element/{element}/click"), &json!({})).await;
    }

    /// Waits for the element; returns its visible text.
    pub async fn text(&self, css: &str) -> String {
        let element = self.find(css).await;
        self.get(&format!("element/{element}/text")).await.as_str().unwrap().to_owned()
    }

    /// Waits until the page shows this text.
    pub async fn shows(&self, text: &str) {
        let deadline = SystemClock.monotonic() + TIMEOUT;
        loop {
            let page = self.page_text().await;
            if page.contains(text) {
                return;
            }
            if SystemClock.monotonic() > deadline {
                panic!("no {text:?} at {}, which shows:\n{page}", self.url().await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until a JavaScript expression is true on the page.
    pub async fn until(&self, is_so: &str) {
        let deadline = SystemClock.monotonic() + TIMEOUT;
        while self.script(&format!("return Boolean({is_so})")).await != true {
            if SystemClock.monotonic() > deadline {
                panic!("not so at {}: {is_so}; it shows:\n{}", self.url().await, self.page_text().await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns all visible text on the page.
    pub async fn page_text(&self) -> String {
        let text = self.script("return document.body ? document.body.innerText : ''").await;
        text.as_str().unwrap_or_default().to_owned()
    }

    pub async fn title(&self) -> String {
        self.get("title").await.as_str().unwrap().to_owned()
    }

    /// Returns the HTTP status of the page.
    pub async fn status(&self) -> u64 {
        let status = "return performance.getEntriesByType('navigation')[0].responseStatus";
        self.script(status).await.as_u64().unwrap()
    }

    /// Returns the cookie that the browser would send to this URL, with its attributes, or `Null`.
    pub async fn cookie(&self, url: &str, name: &str) -> Value {
        let cookies = self.cookies(url).await;
        cookies.into_iter().find(|cookie| cookie["name"] == name).unwrap_or_default()
    }

    /// Returns all cookies that the browser would send to this URL.
    pub async fn cookies(&self, url: &str) -> Vec<Value> {
        let mut reply = self.devtools("Network.getCookies", json!({"urls": [url]})).await;
        serde_json::from_value(reply["cookies"].take()).unwrap()
    }

    /// Sets a cookie with the portal's attributes.
    pub async fn set_cookie(&self, url: &str, name: &str, value: &str) {
        let cookie = json!({"url": url, "name": name, "value": value, "secure": true, "httpOnly": true, "sameSite": "Lax"});
        assert_eq!(self.devtools("Network.setCookie", cookie).await["success"], true);
    }

    /// Returns new console errors since the last call: script errors and violations of the page's content security policy.
    /// Excludes responses with status 400 or higher, because tests check the status itself.
    pub async fn console_errors(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "browser"})).await;
        let errors = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        let messages = errors.map(|error| error["message"].as_str().unwrap().to_owned());
        messages.filter(|message| !message.contains("the server responded with a status of 4")).collect()
    }

    /// Disables scripts from the next page on. The tests' own scripts still run.
    pub async fn switch_scripts_off(&self) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    }

    /// Opens an empty tab and switches to it; returns a handle to the previous tab.
    pub async fn new_tab(&self) -> Tab {
        let here = self.get("window").await;
        let tab = self.post("window/new", &json!({"type": "tab"})).await;
        self.post("window", &json!({"handle": tab["handle"]})).await;
        Tab(here)
    }

    /// Switches to another tab; returns a handle to the previous one.
    pub async fn go_to_tab(&self, Tab(tab): &Tab) -> Tab {
        let here = self.get("window").await;
        self.post("window", &json!({"handle": tab})).await;
        Tab(here)
    }

    /// Returns the value that the script returns.
    pub async fn script(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Returns the value that the script passes to its last argument, a callback.
    pub async fn script_with_reply(&self, script: &str) -> Value {
        self.post("execute/async", &json!({"script": script, "args": []})).await
    }

    /// Adds a passkey device to this tab, one in the computer that checks a fingerprint or a PIN. It holds until the tab is
    /// closed.
    pub async fn add_authenticator(&self) -> Authenticator {
        let options = json!({
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": true,
            "hasUserVerification": true,
            "isUserConsenting": true,
            "isUserVerified": true,
        });
        let id = self.post("webauthn/authenticator", &options).await;
        Authenticator(id.as_str().unwrap().to_owned())
    }

    /// Whether the device's checks of the fingerprint or PIN succeed from now on.
    pub async fn set_user_verified(&self, Authenticator(id): &Authenticator, is_verified: bool) {
        let verified = json!({"isUserVerified": is_verified});
        self.post(&format!("webauthn/authenticator/{id}/uv"), &verified).await;
    }

    /// Returns how many passkeys the device has.
    pub async fn passkeys(&self, Authenticator(id): &Authenticator) -> usize {
        let credentials = self.get(&format!("webauthn/authenticator/{id}/credentials")).await;
        credentials.as_array().unwrap().len()
    }

    /// Deletes all cookies.
    pub async fn clear_cookies(&self) {
        self.devtools("Network.clearBrowserCookies", json!({})).await;
    }

    pub async fn show_on(&self, screen: Screen, scheme: Scheme) {
        let (width, height, pixel_ratio, is_mobile) = match screen {
            Screen::Desktop => (1280, 800, 1.0, false),
            Screen::Wide => (1440, 800, 1.0, false),
            Screen::Phone => (390, 844, 1.5, true),
        };
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": pixel_ratio, "mobile": is_mobile});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = json!({"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// The time zone of the computer, for the pages from now on.
    pub async fn set_time_zone(&self, zone: &str) {
        self.devtools("Emulation.setTimezoneOverride", json!({"timezoneId": zone})).await;
    }

    /// Shows pages as on paper, until `show_on`.
    pub async fn show_in_print(&self) {
        self.devtools("Emulation.setEmulatedMedia", json!({"media": "print"})).await;
    }

    /// Returns a PNG of the screen.
    pub async fn screenshot(&self) -> Vec<u8> {
        let page = self.devtools("Page.captureScreenshot", json!({"optimizeForSpeed": false})).await;
        BASE64.decode(page["data"].as_str().unwrap()).unwrap()
    }

    async fn find(&self, css: &str) -> String {
        let request = self.http.post(format!("{}/element", self.session));
        let reply = call(request.json(&json!({"using": "css selector", "value": css}))).await;
        let Ok(element) = reply else {
            let page = self.script("return document.body.innerText").await;
            panic!("no {css} at {}, which shows:\n{}", self.url().await, page.as_str().unwrap_or_default());
        };
        element[ELEMENT].as_str().unwrap().to_owned()
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": parameters})).await
    }

    async fn get(&self, what: &str) -> Value {
        call(self.http.get(format!("{}/{what}", self.session))).await.unwrap()
    }

    async fn post(&self, what: &str, body: &Value) -> Value {
        call(self.http.post(format!("{}/{what}", self.session)).json(body)).await.unwrap()
    }
}

impl Drop for Browser {
    /// Kills both processes and waits for the browser's last writes, so that its directory can be removed.
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, rustix::process::Signal::KILL);
        let _ = self.driver.0.kill();
        for _ in 0..200 {
            if processes_that_name(self.folder.path()) == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Sends one command; returns the value of the reply, or the driver's error message.
async fn call(request: reqwest::RequestBuilder) -> Result<Value, String> {
    let response = request.send().await.unwrap();
    let is_done = response.status().is_success();
    let mut reply: Value = response.json().await.unwrap();
    let value = reply["value"].take();
    if is_done { Ok(value) } else { Err(value["message"].to_string()) }
}

#[tokio::test]
async fn browser_renders_a_page_with_screen_and_color_scheme() {
    let browser = Browser::start().await;
    browser
        .open("data:text/html,<meta name=viewport content=width=device-width><p>Good morning</p><input>")
        .await;
    assert_eq!(browser.text("p").await, "Good morning");
    let wide_and_light = "return [innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]";
    browser.show_on(Screen::Phone, Scheme::Dark).await;
    assert_eq!(browser.script(wide_and_light).await, json!([390, true]));
    assert!(browser.screenshot().await.starts_with(b"\x89PNG"), "not a picture");
    browser.show_on(Screen::Desktop, Scheme::Light).await;
    assert_eq!(browser.script(wide_and_light).await, json!([1280, false]));
}

#[tokio::test]
async fn browser_process_ends_with_its_test() {
    let browser = Browser::start().await;
    let folder = browser.folder.path().to_owned();
    assert!(processes_that_name(&folder) > 0, "it does not run");
    drop(browser);
    assert_eq!(processes_that_name(&folder), 0);
    assert!(!folder.exists(), "its folder stayed");
}

fn processes_that_name(path: &Path) -> usize {
    let name = path.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(name)).count()
}
