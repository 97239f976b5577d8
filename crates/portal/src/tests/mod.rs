//! Tests the portal's pages through a simulated browser, with a real store, a real outbox and a manual clock.

mod accounts;
mod audit;
mod billing_fixture;
mod browser;
mod capabilities;
mod clients;
mod database;
mod drafts;
mod email_codes;
mod exports;
mod firm;
mod first_sign_in;
mod fuzz;
mod invitations;
mod invoices;
mod letters;
mod mail_server;
mod navigation;
mod no_enumeration;
mod pages;
mod profile;
mod request_limits;
mod routes;
mod session_binding;
mod sessions;
mod step_up;
mod team;
mod usage;

use crate::error::PageError;
use crate::sign_in::finish::{AuthenticatedIdentity, sign_in};
use crate::sign_in::visitor::Visitor;
use crate::{
    DEFAULT_PERSON_REQUESTS_PER_MIN, IdentitySettings, Portal, PortalSettings, PublicApi, SecondFactor,
    SignInRequirements, router,
};
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Router};
use browser::Browser;
use chancery_alerts::{AllowedNetworks, OutboxWorker, WebhookClient};
use chancery_domain::{
    Currency, InvoiceTerms, ManualClock, OsRandomness, RateLimits, Seller, SessionTimeouts, UnixMillis,
};
use chancery_http_client::OwnCertificates;
use chancery_mail::{MailRoute, Mailer};
use chancery_policy::Policy;
use chancery_store::{DatabaseUrl, PortalStore, Store};
use chancery_test_support::{PostgresDatabase, emails_in};
use chancery_web::{PageLayerConfig, TrustedProxies, with_page_layer};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// 13 November 2026, 09:14 UTC.
const MORNING: UnixMillis = UnixMillis(1_794_561_240_000);
/// Refuses connections at once.
const ISSUER: &str = "http://127.0.0.1:9/firm";

/// A portal of a firm at `company.com`, whose partner is `ruth@company.com`.
struct TestPortal {
    portal: Arc<Portal>,
    clock: Arc<ManualClock>,
    routes: Router,
    arrivals: Router,
    folder: TempDir,
    /// `None` if the database is a file in the folder.
    postgres: Option<PostgresDatabase>,
    /// Gives access to what the portal cannot reach: the ledger, and the audit chains.
    store: Arc<Store>,
}

/// Which services the tests use. With `postgres-and-redis`, each portal gets its own PostgreSQL database; it does not need
/// Redis.
const ON: &str = "CHANCERY_TEST_ON";

impl TestPortal {
    async fn open() -> Self {
        Self::open_with(SecondFactor::None).await
    }

    async fn open_with(second_factor: SecondFactor) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let route = MailRoute::Outbox(folder.path().join("outbox"));
        Self::open_in(folder, second_factor, &route).await
    }

    async fn open_at(second_factor: SecondFactor, route: &MailRoute) -> Self {
        Self::open_in(tempfile::tempdir().unwrap(), second_factor, route).await
    }

    /// A portal that drafts letters with this API.
    async fn open_drafting(drafting: crate::DraftingSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let route = MailRoute::Outbox(folder.path().join("outbox"));
        let settings = PortalSettings { drafting: Some(drafting), ..settings(SecondFactor::None) };
        Self::open_set(folder, settings, &route).await
    }

    /// A portal with these invoice terms.
    async fn open_billing(invoice_terms: InvoiceTerms) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let route = MailRoute::Outbox(folder.path().join("outbox"));
        let settings = PortalSettings { invoice_terms, ..settings(SecondFactor::None) };
        Self::open_set(folder, settings, &route).await
    }

    /// A portal with these changes to its settings.
    async fn open_changed(change: impl FnOnce(&mut PortalSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let route = MailRoute::Outbox(folder.path().join("outbox"));
        let mut settings = settings(SecondFactor::None);
        change(&mut settings);
        Self::open_set(folder, settings, &route).await
    }

    async fn open_in(folder: TempDir, second_factor: SecondFactor, route: &MailRoute) -> Self {
        Self::open_set(folder, settings(second_factor), route).await
    }

    async fn open_set(folder: TempDir, settings: PortalSettings, route: &MailRoute) -> Self {
        let clock = Arc::new(ManualClock::at(MORNING));
        let is_on_postgres = std::env::var(ON).is_ok_and(|on| on == "postgres-and-redis");
        let postgres = is_on_postgres.then(|| PostgresDatabase::create("desk"));
        let url = match &postgres {
            Some(database) => database.url().parse().unwrap(),
            None => DatabaseUrl::sqlite_file(&folder.path().join("chancery.db")),
        };
        let store = Arc::new(Store::open_for_test(&url).await.unwrap());
        let from = "portal@company.com".parse().unwrap();
        let mailer = Mailer::new(route, &from, "Marlow & Finch", clock.clone()).unwrap();
        let mailer = Arc::new(mailer);
        // As in every server, a worker sends what is in the outbox.
        let worker = OutboxWorker::new(
            store.alerting(),
            Arc::clone(&mailer),
            WebhookClient::new(AllowedNetworks::default()),
            clock.clone(),
            Arc::new(OsRandomness),
        );
        tokio::spawn(Arc::new(worker).run(CancellationToken::new()));
        let portal = Arc::new(portal(settings, Arc::new(store.portal()), mailer, clock.clone()));
        let (routes, arrivals) = (router(Arc::clone(&portal)), arrivals_route(&portal));
        Self { portal, clock, routes, arrivals, folder, postgres, store }
    }

    fn browser(&self) -> Browser {
        Browser::new(self.routes.clone(), self.arrivals.clone())
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    fn outbox(&self) -> PathBuf {
        self.folder.path().join("outbox")
    }

    /// The sent emails, oldest first.
    fn emails(&self) -> Vec<String> {
        emails_in(&self.outbox())
    }

    /// Waits until this many emails are sent, because some are sent in the background.
    async fn emails_when(&self, count: usize) -> Vec<String> {
        for _ in 0..1_000 {
            if self.emails().len() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.emails()
    }

    /// The code in the newest email that has one.
    fn latest_code(&self) -> String {
        let is_code = |line: &&str| line.len() == 6 && line.bytes().all(|byte| byte.is_ascii_digit());
        let codes = self.emails().into_iter().rev();
        codes
            .filter_map(|email| email.lines().map(str::trim).find(is_code).map(str::to_owned))
            .next()
            .unwrap()
    }

    /// A code that differs from the one in the newest email.
    fn wrong_code(&self) -> String {
        let right: u32 = self.latest_code().parse().unwrap();
        format!("{:06}", (right + 1) % 1_000_000)
    }

    async fn people(&self) -> Vec<(String, String)> {
        let people = self.portal.store.people.list_people().await.unwrap();
        people.into_iter().map(|person| (person.email.to_string(), person.role.to_string())).collect()
    }
}

fn settings(second_factor: SecondFactor) -> PortalSettings {
    PortalSettings {
        has_built_in_provider: true,
        trusted_proxies: TrustedProxies::default(),
        drafting: None,
        invoice_terms: invoice_terms(),
        pdf_fonts: chancery_invoicing::PdfFonts::default(),
        api: PublicApi {
            url: "http://localhost:8080".to_owned(),
            model: Some("smollm2-135m".to_owned()),
            default_limits: RateLimits { requests_per_min: 60, tokens_per_min: 60_000 },
        },
        own_certificates: OwnCertificates::default(),
        public_url: "http://localhost:8081".to_owned(),
        firm_name: "Marlow & Finch".to_owned(),
        time_zone: "UTC".parse().unwrap(),
        company_domain: "company.com".parse().unwrap(),
        second_factor,
        partners: vec!["ruth@company.com".parse().unwrap()],
        session_times: SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) },
        person_requests_per_min: DEFAULT_PERSON_REQUESTS_PER_MIN,
        bind_session: false,
        hsts_include_subdomains: false,
        identity: IdentitySettings {
            issuer: ISSUER.to_owned(),
            client_id: "chancery-portal".to_owned(),
            client_secret: None,
            requirements: SignInRequirements::default(),
            roles: None,
            recheck_after: None,
        },
    }
}

fn invoice_terms() -> InvoiceTerms {
    let seller = Seller {
        name: "Marlow & Finch".to_owned(),
        letterhead: "48 Commercial Wharf\nBoston, MA 02110".to_owned(),
        payment: "By bank transfer to Marlow & Finch LLP, First Harbor Bank, account 000 123 456.".to_owned(),
    };
    let tax = Some(("Sales tax".to_owned(), "6.25".parse().unwrap()));
    InvoiceTerms { currency: Currency::USD, seller, tax, payment_days: 30 }
}

fn portal(
    settings: PortalSettings,
    store: Arc<PortalStore>,
    mailer: Arc<Mailer>,
    clock: Arc<ManualClock>,
) -> Portal {
    let policy = Arc::new(Policy::load().unwrap());
    Portal::new(settings, store, mailer, policy, clock, Arc::new(OsRandomness)).unwrap()
}

/// Stands in for the identity provider's reply: takes the request's claims as proven.
fn arrivals_route(portal: &Arc<Portal>) -> Router {
    async fn follow_callback(
        State(portal): State<Arc<Portal>>,
        visitor: Visitor,
        Extension(mut proven): Extension<AuthenticatedIdentity>,
    ) -> Result<Response, PageError> {
        // People authenticate when they arrive, unless the test says otherwise.
        proven.authentication.at.get_or_insert_with(|| portal.clock.now());
        sign_in(&portal, proven, &visitor).await
    }
    let config = PageLayerConfig {
        surface: "portal",
        firm_name: portal.settings.firm_name.clone(),
        public_url: portal.settings.public_url.clone(),
        hsts_include_subdomains: false,
        form_action_origins: Vec::new(),
        trusted_proxies: TrustedProxies::default(),
        max_body_bytes: 1_024,
        cross_origin_paths: &[],
        max_cross_origin_body_bytes: 1_024,
        preserved_fields: &[],
        bar_renderer: None,
        clock: portal.clock.clone(),
        randomness: portal.randomness.clone(),
    };
    let routes =
        Router::new().route("/auth/test/come-back", get(follow_callback)).with_state(Arc::clone(portal));
    with_page_layer(routes, config)
}
