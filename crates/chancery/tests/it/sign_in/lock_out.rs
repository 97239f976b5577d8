//! A stranger who guesses passwords and codes cannot keep the owner out, not even from the owner's own network. The
//! tests of `chancery-auth` attack from hundreds of networks; here are the real binary and a real browser's cookies.

use super::Scene;
use chancery_test_support::CookieJar;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, COOKIE, SET_COOKIE};

/// A program that sends the provider's forms.
struct Stranger<'a> {
    scene: &'a Scene,
    http: reqwest::Client,
    cookies: CookieJar,
    /// As the proxy reports it.
    ip_address: &'static str,
}

impl<'a> Stranger<'a> {
    fn at(scene: &'a Scene, ip_address: &'static str) -> Self {
        let builder = chancery_http_client::client_builder().tls_certs_only([]).no_proxy();
        Self { scene, http: builder.build().unwrap(), cookies: CookieJar::default(), ip_address }
    }

    async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> StatusCode {
        let form = reqwest::Url::parse_with_params("http://form.invalid/", fields).unwrap();
        let request = self.http.post(self.scene.auth(path)).body(form.query().unwrap().to_owned());
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = request.header(COOKIE, self.cookies.header(path).unwrap_or_default());
        let response = request.header("x-forwarded-for", self.ip_address).send().await.unwrap();
        for cookie in response.headers().get_all(SET_COOKIE) {
            self.cookies.keep(cookie.to_str().unwrap());
        }
        response.status()
    }

    async fn guess_password(&mut self, email: &str, password: &str) -> StatusCode {
        self.post("/sign-in", &[("email", email), ("password", password), ("return_to", "/")]).await
    }
}

#[tokio::test]
async fn stranger_who_guesses_passwords_and_codes_does_not_lock_out_a_known_browser() {
    // The browser and the strangers come through a proxy on this machine. The browser names no other address.
    const OWN: &str = "127.0.0.1";
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__TRUSTED_PROXIES", "127.0.0.1")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    scene.sign_out().await;

    for ip_address in [OWN, "203.0.113.7", "2001:db8::1"] {
        let mut stranger = Stranger::at(&scene, ip_address);
        assert_eq!(
            stranger.post("/forgotten-password", &[("email", &maya.email)]).await,
            303,
            "{ip_address}"
        );
        let mut rejected = 0;
        for guess in 0..6 {
            let code = format!("00000{guess}");
            let fields = [("code", code.as_str()), ("password", "what a stranger wants")];
            rejected += usize::from(stranger.post("/forgotten-password/code", &fields).await != 422);
        }
        assert!(rejected > 0, "{ip_address}: guessing codes ends");
        let mut statuses = Vec::new();
        for _ in 0..11 {
            statuses.push(stranger.guess_password(&maya.email, "what a stranger guesses").await.as_u16());
        }
        assert_eq!(statuses.last(), Some(&429), "{ip_address}: guessing passwords ends: {statuses:?}");
    }
    let mut stranger = Stranger::at(&scene, OWN);
    assert_eq!(stranger.guess_password(&maya.email, &maya.password).await, 429, "not a known browser");

    scene.open_clients_with_password(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, maya.email);
    assert!(scene.has_session().await);
}

#[tokio::test]
async fn right_and_wrong_passwords_are_logged_without_the_address() {
    let scene = Scene::start_with(&[]).await;
    let maya = scene.person("maya");
    let mut visitor = Stranger::at(&scene, "203.0.113.7");
    assert_eq!(visitor.guess_password(&maya.email, "a wrong guess").await, 422);
    assert_eq!(visitor.guess_password(&maya.email, &maya.password).await, 303);
    scene.server.wait_for_log("attempt rejected");
    scene.server.wait_for_log("attempt accepted");
    assert!(!scene.server.log().contains(&maya.email));
}
