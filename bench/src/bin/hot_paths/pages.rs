//! The portal without sockets: session, policy, audit, database and template.

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use chancery_bench::firm::Firm;
use chancery_domain::{
    Clock, Currency, InvoiceTerms, ManualClock, OsRandomness, RateLimits, Seller, SessionTimeouts,
    SystemClock,
};
use chancery_http_client::OwnCertificates;
use chancery_invoicing::PdfFonts;
use chancery_mail::{MailRoute, Mailer};
use chancery_policy::Policy;
use chancery_portal::{
    IdentitySettings, Portal, PortalSettings, PublicApi, SecondFactor, SignInRequirements,
};
use chancery_web::TrustedProxies;
use http_body_util::BodyExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tower_service::Service;

const CLIENTS: u64 = 100;

pub async fn read_record(accept: &str, iterations: usize) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("chancery.db").display());
    let mut firm = Firm::open(&url).await;
    firm.grow_to(CLIENTS).await;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(SystemClock.now()));
    let route = MailRoute::Outbox(folder.path().join("outbox"));
    let from = "portal@example.com".parse().unwrap();
    let mailer = Arc::new(Mailer::new(&route, &from, "Marlow & Finch", Arc::clone(&clock)).unwrap());
    let policy = Arc::new(Policy::load().unwrap());
    let store = Arc::new(firm.store().portal());
    let portal = Portal::new(settings(), store, mailer, policy, clock, Arc::new(OsRandomness)).unwrap();
    let mut router = chancery_portal::router(Arc::new(portal));
    let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
    for _ in 0..iterations {
        let request = Request::get(format!("/clients/{}", firm.record))
            .header(header::HOST, "localhost:8081")
            .header(header::ACCEPT, accept)
            .header(header::USER_AGENT, "Benchmark")
            .header(header::COOKIE, &firm.consultant.cookie)
            .extension(ConnectInfo(peer))
            .body(Body::empty())
            .unwrap();
        let response = router.call(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    }
    firm.close().await;
}

fn settings() -> PortalSettings {
    let seller = Seller {
        name: "Marlow & Finch".to_owned(),
        letterhead: "48 Commercial Wharf\nBoston, MA 02110".to_owned(),
        payment: "By bank transfer.".to_owned(),
    };
    PortalSettings {
        public_url: "http://localhost:8081".to_owned(),
        firm_name: "Marlow & Finch".to_owned(),
        time_zone: "UTC".parse().unwrap(),
        company_domain: "example.com".parse().unwrap(),
        second_factor: SecondFactor::None,
        partners: Vec::new(),
        session_times: SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) },
        person_requests_per_min: u32::MAX,
        bind_session: false,
        hsts_include_subdomains: false,
        identity: IdentitySettings {
            issuer: "http://127.0.0.1:8082".to_owned(),
            client_id: "chancery-portal".to_owned(),
            client_secret: None,
            requirements: SignInRequirements::default(),
            roles: None,
            recheck_after: None,
        },
        has_built_in_provider: true,
        trusted_proxies: TrustedProxies::default(),
        drafting: None,
        invoice_terms: InvoiceTerms { currency: Currency::USD, seller, tax: None, payment_days: 30 },
        pdf_fonts: PdfFonts::default(),
        api: PublicApi {
            url: "http://localhost:8080".to_owned(),
            model: None,
            default_limits: RateLimits { requests_per_min: 60, tokens_per_min: 60_000 },
        },
        own_certificates: OwnCertificates::default(),
    }
}
