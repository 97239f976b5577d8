//! Throttling of attempts: by address, with or without an account, and by subnet.

use super::harness::{PASSWORD, TestProvider};
use axum::http::Method;
use chancery_domain::{Clock as _, SecretToken, Throttle, ThrottleKey};
use std::ops::Range;
use std::time::Duration;
use tokio::task::JoinSet;

const PASSKEY: &str = "/sign-in/passkey";

#[tokio::test]
async fn ten_wrong_passwords_lock_known_and_unknown_emails_alike() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        for email in ["maya@example.com", "omar@example.com"] {
            browser.sign_in(email, "a wrong guess").await.assert_form_again("Incorrect email or password");
        }
    }
    let right = browser.sign_in("maya@example.com", PASSWORD).await;
    let wrong = browser.sign_in("maya@example.com", "a wrong guess").await;
    let unknown = browser.sign_in("omar@example.com", "a wrong guess").await;
    let wait = right.assert_too_many();
    for other in [&wrong, &unknown] {
        assert_eq!((right.status, &right.body), (other.status, &other.body));
        assert_eq!(right.header("retry-after"), other.header("retry-after"));
    }
    served.browser_at("198.51.100.7").sign_in("maya@example.com", PASSWORD).await.redirect_to();
    served.clock.advance(wait - Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.clock.advance(Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn correct_password_resets_the_attempt_count() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..2 {
        for _ in 0..9 {
            browser
                .sign_in("maya@example.com", "a wrong guess")
                .await
                .assert_form_again("Incorrect email or password");
        }
        browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    }
}

#[tokio::test]
async fn concurrent_passwords_are_limited_to_ten() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let racing: Vec<_> = (0..25)
        .map(|number| {
            let mut browser = served.browser_at(&format!("2001:db8::{number}"));
            tokio::spawn(async move { browser.sign_in("maya@example.com", "a wrong guess").await.status })
        })
        .collect();
    let mut compared = 0;
    for status in racing {
        match status.await.unwrap() {
            422 => compared += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(compared, 10);
}

#[tokio::test]
async fn one_subnet_cannot_try_many_addresses() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser_at("2001:db8::1");
    for number in 0..100 {
        let status = browser.sign_in(&format!("person{number}@example.com"), "a wrong guess").await.status;
        assert_eq!(status, 422, "{number}");
    }
    let mut neighbour = served.browser_at("2001:db8::2");
    let wait = neighbour.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.browser_at("2001:db8:0:100::1").sign_in("maya@example.com", PASSWORD).await.redirect_to();
    served.clock.advance(wait);
    neighbour.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn emails_per_address_are_limited_across_browsers_and_flows() {
    let served = TestProvider::start().await;
    let mut one = served.browser_at("192.0.2.200");
    for number in 0..6 {
        let email = format!("maya+{number}@example.com");
        one.post("/forgotten-password", &[("email", &email)]).await.redirect_to();
    }
    one.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    // The first email of each network has a limit of its own: 24 in an hour, of which one is used.
    for number in 6..29_u8 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let reply = match number % 4 {
            0 => browser.post("/sign-up", &[("email", "maya@example.com"), ("password", PASSWORD)]).await,
            _ => browser.post("/forgotten-password", &[("email", "maya@example.com")]).await,
        };
        reply.redirect_to();
    }
    // Then it is one of the further emails: 12 in an hour, of which five are used.
    let mut browser = served.browser_at("192.0.2.77");
    for _ in 0..6 {
        browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.redirect_to();
    }
    let mut browser = served.browser_at("192.0.2.78");
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.redirect_to();
    let wait = browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    browser.post("/forgotten-password", &[("email", "omar@example.com")]).await.redirect_to();
    served.clock.advance(wait);
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.redirect_to();
}

#[tokio::test]
async fn emails_per_subnet_are_limited() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    for number in 0..30 {
        let email = format!("person{number}@example.com");
        browser.post("/forgotten-password", &[("email", &email)]).await.redirect_to();
    }
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    served
        .browser_at("192.0.2.2")
        .post("/forgotten-password", &[("email", "maya@example.com")])
        .await
        .redirect_to();
}

#[tokio::test]
async fn distributed_guessing_is_limited_and_emailed_at_most_three_times() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    // Three attempts of each network are its first ones, and all others together have 50 further ones.
    for host in 0..8 {
        let mut browser = served.browser_at(&format!("192.0.2.{host}"));
        for attempt in 0..10 {
            for email in ["maya@example.com", "omar@example.com"] {
                let status = browser.sign_in(email, "a wrong guess").await.status;
                let expected = if host < 7 || attempt < 4 { 422 } else { 429 };
                assert_eq!(status, expected, "{host} {attempt}");
            }
        }
    }
    let mut involved = served.browser_at("192.0.2.7");
    let (known, unknown) = (
        involved.sign_in("maya@example.com", PASSWORD).await,
        involved.sign_in("omar@example.com", "a wrong guess").await,
    );
    let wait = known.assert_too_many();
    assert_eq!((known.status, &known.body), (unknown.status, &unknown.body));
    assert_eq!(known.header("retry-after"), unknown.header("retry-after"));
    served.browser_at("198.51.100.7").sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let emails = served.emails_when(3).await;
    assert!(emails.iter().all(|email| email.to == "maya@example.com"), "{emails:?}");
    assert!(emails.iter().all(|email| email.subject == "Too many sign-in attempts"), "{emails:?}");
    served.clock.advance(wait);
    involved.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

/// Guesses a password and codes from each network, a few networks at a time. Returns how many guesses were compared:
/// passwords and codes, and how many emails with codes were sent.
async fn attack(served: &TestProvider, networks: Range<u8>, blocks: Range<u8>) -> (u32, u32, usize) {
    let mut racing = JoinSet::new();
    let (mut passwords, mut codes, mut emails) = (0, 0, 0);
    let mut add = |(compared, guessed, sent): (u32, u32, usize)| {
        passwords += compared;
        codes += guessed;
        emails += sent;
    };
    for (block, host) in blocks.flat_map(|block| networks.clone().map(move |host| (block, host))) {
        let mut browser = served.browser_at(&format!("203.0.{block}.{host}"));
        racing.spawn(async move {
            let status = browser.sign_in("maya@example.com", "a wrong guess").await.status;
            // Counted too, though the machine had no time to hash it.
            let compared = status == 422 || status == 503;
            let is_sent =
                browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.status == 303;
            let mut guessed = 0;
            for number in 0..6 {
                let code = format!("00000{number}");
                let fields = [("code", code.as_str()), ("password", "what a stranger wants")];
                let status = browser.post("/forgotten-password/code", &fields).await.status;
                // A last wrong code is compared too. Its reply is that of the limit which it reaches.
                guessed += u32::from(is_sent && status == 422);
            }
            (u32::from(compared), guessed, usize::from(is_sent))
        });
        if racing.len() >= 4 {
            add(racing.join_next().await.unwrap().unwrap());
        }
    }
    while let Some(done) = racing.join_next().await {
        add(done.unwrap());
    }
    (passwords, codes, emails)
}

#[tokio::test]
async fn attack_on_passwords_and_codes_from_hundreds_of_networks_does_not_lock_out_a_known_device() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut owner = served.browser_at("198.51.100.7");
    owner.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    owner.post("/sign-out", &[]).await.redirect_to();

    // Two hundred networks have made their first guesses already. Hashing all of them takes long.
    let (email, earlier) = ("maya@example.com".parse().unwrap(), 200);
    for _ in 0..earlier {
        let key = ThrottleKey::FirstPasswordPerDay(&email);
        served.store.throttles.count_throttle(key, served.clock.now()).await.unwrap();
    }
    let (passwords, codes, emails) = attack(&served, 0..100, 0..2).await;
    assert_eq!(
        earlier + passwords,
        Throttle::FIRST_PASSWORD_PER_DAY.limit + Throttle::PASSWORD_PER_ADDRESS.limit,
        "the first attempts of a day, and the further ones of a quarter of an hour"
    );
    assert!(codes <= Throttle::MAX_CODES_PER_DAY, "{codes}");
    let max_emails = Throttle::FIRST_EMAIL_PER_ADDRESS.limit + Throttle::EMAIL_PER_ADDRESS.limit;
    assert!(emails <= max_emails as usize, "{emails}");
    let mut stranger = served.browser_at("198.51.100.8");
    stranger.sign_in("maya@example.com", PASSWORD).await.assert_too_many();

    owner
        .sign_in("maya@example.com", "a typo of hers")
        .await
        .assert_form_again("Incorrect email or password");
    owner.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    assert!(owner.is_signed_in().await);
    // A new password by an emailed code works too, from any network.
    let reset_emails = || {
        let emails = served.emails().into_iter();
        emails.filter(|email| email.subject == "Your password reset code").collect::<Vec<_>>()
    };
    while reset_emails().len() < emails {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.clock.advance(Duration::from_secs(1));
    owner.post("/forgotten-password", &[("email", "maya@example.com")]).await.redirect_to();
    while reset_emails().len() < emails + 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let code = reset_emails().last().unwrap().code().unwrap();
    let fields = [("code", code.as_str()), ("password", "one more quiet phrase")];
    owner.post("/forgotten-password/code", &fields).await.redirect_to();
    owner.sign_in("maya@example.com", "one more quiet phrase").await.redirect_to();
}

#[tokio::test]
async fn known_device_has_its_own_limit_and_counts_for_its_account_alone() {
    let served = TestProvider::start().await;
    for email in ["maya@example.com", "omar@example.com"] {
        served.account(email).await;
    }
    let mut browser = served.browser();
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    for _ in 0..10 {
        browser
            .sign_in("maya@example.com", "a wrong guess")
            .await
            .assert_form_again("Incorrect email or password");
    }
    let wait = browser.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    assert!(wait <= Duration::from_secs(15 * 60), "{wait:?}");
    // Nothing of it counts against other browsers in the same network.
    served.browser().sign_in("maya@example.com", PASSWORD).await.redirect_to();
    // Two people share a browser. It is known for both then.
    let token = browser.cookies["__Host-known_device"].clone();
    browser.sign_in("omar@example.com", PASSWORD).await.redirect_to();
    assert_eq!(browser.cookies["__Host-known_device"], token);
    let is_known = async |email: &str| {
        let token = SecretToken::parse(&token).unwrap().hash();
        let devices = &served.store.known_devices;
        devices.is_known_device(token, &email.parse().unwrap(), served.clock.now()).await.unwrap()
    };
    assert!(is_known("maya@example.com").await && is_known("omar@example.com").await);
    served.clock.advance(Duration::from_secs(180 * 24 * 3_600));
    assert!(!is_known("maya@example.com").await && !is_known("omar@example.com").await);
}

#[tokio::test]
async fn images_of_another_site_use_up_no_passkey_sign_ins() {
    let served = TestProvider::at_host_name().await;
    let mut browser = served.browser();
    for _ in 0..300 {
        let headers = [("sec-fetch-dest", "image"), ("sec-fetch-site", "cross-site")];
        assert_eq!(browser.send(Method::GET, PASSKEY, &[], &headers).await.status, 403);
    }
    let headers = [("sec-fetch-dest", "document"), ("sec-fetch-site", "cross-site")];
    assert_eq!(browser.send(Method::GET, PASSKEY, &[], &headers).await.status, 200);
}

#[tokio::test]
async fn known_device_has_passkey_sign_ins_of_its_own_and_a_forged_one_has_not() {
    let served = TestProvider::at_host_name().await;
    served.account("maya@example.com").await;
    let mut known = served.browser();
    known.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let mut stranger = served.browser();
    for _ in 0..300 {
        assert_eq!(stranger.get(PASSKEY).await.status, 200);
    }
    stranger.get(PASSKEY).await.assert_too_many();
    stranger.cookies.insert("__Host-known_device".to_owned(), "a".repeat(43));
    stranger.get(PASSKEY).await.assert_too_many();
    for number in 0..60 {
        assert_eq!(known.get(PASSKEY).await.status, 200, "{number}");
    }
    known.get(PASSKEY).await.assert_too_many();
}

#[tokio::test]
async fn known_device_uses_its_networks_passkey_sign_ins_after_its_own() {
    let served = TestProvider::at_host_name().await;
    served.account("maya@example.com").await;
    let mut known = served.browser();
    known.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    for number in 0..60 + 300 {
        assert_eq!(known.get(PASSKEY).await.status, 200, "{number}");
    }
    let rejected = known.get(PASSKEY).await;
    assert_eq!(rejected.assert_too_many(), Duration::from_secs(900));
    assert!(rejected.body.contains("from your network"), "{rejected:?}");
    served.browser().get(PASSKEY).await.assert_too_many();
}

#[tokio::test]
async fn planted_device_token_is_replaced() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let planted = "a".repeat(43);
    let mut browser = served.browser();
    browser.cookies.insert("__Host-known_device", planted.clone());
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    assert_ne!(browser.cookies["__Host-known_device"], planted);
}

#[tokio::test]
async fn throttled_attempts_do_not_extend_the_wait() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        browser
            .sign_in("maya@example.com", "a wrong guess")
            .await
            .assert_form_again("Incorrect email or password");
    }
    for _ in 0..200 {
        browser.sign_in("maya@example.com", "a wrong guess").await.assert_too_many();
    }
    browser
        .sign_in("omar@example.com", "a wrong guess")
        .await
        .assert_form_again("Incorrect email or password");
    served.clock.advance(Duration::from_secs(15 * 60));
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn failing_mail_server_does_not_reveal_accounts() {
    let tarpit = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = TestProvider::with_mail_server(tarpit.local_addr().unwrap()).await;
    for number in 0..40 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let known = format!("person{number}@example.com");
        served.account_without_password(&known).await;
        for email in [known, format!("nobody{number}@example.com")] {
            let reply = browser.post("/forgotten-password", &[("email", &email)]).await;
            assert_eq!(reply.redirect_to(), "/forgotten-password/code", "{email}");
        }
    }
}
