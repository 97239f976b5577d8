//! A simulated browser: it stores cookies and sends its origin.

use crate::sign_in::authentication::Authentication;
use crate::sign_in::finish::AuthenticatedIdentity;
use crate::tests::ISSUER;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use chancery_domain::{Identity, LocalPath};
use chancery_test_support::CookieJar;
use std::net::SocketAddr;

pub(super) struct Browser {
    routes: Router,
    arrivals: Router,
    pub(super) cookies: CookieJar,
    pub(super) accept: &'static str,
    pub(super) user_agent: &'static str,
    /// Content type of its requests.
    pub(super) content_type: &'static str,
    /// The value of `Sec-Fetch-Site`.
    pub(super) site: &'static str,
    pub(super) address: SocketAddr,
    /// Whether a script on the page requests part of it.
    pub(super) is_script: bool,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn location(&self) -> &str {
        self.headers.get(header::LOCATION).map_or("", |location| location.to_str().unwrap())
    }

    pub(super) fn set_cookies(&self) -> Vec<&str> {
        self.headers.get_all(header::SET_COOKIE).iter().map(|cookie| cookie.to_str().unwrap()).collect()
    }

    pub(super) fn has_session(&self) -> bool {
        self.set_cookies()
            .iter()
            .any(|cookie| cookie.starts_with("session=") && !cookie.starts_with("session=;"))
    }
}

/// Claims with a verified address, as from an identity provider.
pub(super) fn claims(subject: &str, email: &str) -> AuthenticatedIdentity {
    AuthenticatedIdentity {
        identity: Identity { issuer: ISSUER.to_owned(), subject: subject.to_owned() },
        email: Some(email.to_owned()),
        is_email_verified: true,
        has_multiple_factors: false,
        directory_role: None,
        authentication: Authentication::default(),
        return_to: LocalPath::parse("/clients").unwrap(),
    }
}

impl Browser {
    pub(super) fn new(routes: Router, arrivals: Router) -> Self {
        Self {
            routes,
            arrivals,
            cookies: CookieJar::default(),
            accept: "text/html,application/xhtml+xml,*/*;q=0.8",
            user_agent: "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            content_type: "application/x-www-form-urlencoded",
            site: "same-origin",
            address: "192.0.2.7:50000".parse().unwrap(),
            is_script: false,
        }
    }

    pub(super) async fn get(&mut self, path: &str) -> Reply {
        let routes = self.routes.clone();
        self.send(routes, Method::GET, path, "", None).await
    }

    pub(super) async fn post(&mut self, path: &str, form: &str) -> Reply {
        let routes = self.routes.clone();
        self.send(routes, Method::POST, path, form, None).await
    }

    /// Returns from the identity provider with these claims.
    pub(super) async fn follow_callback(&mut self, proven: AuthenticatedIdentity) -> Reply {
        let arrivals = self.arrivals.clone();
        self.send(arrivals, Method::GET, "/auth/test/come-back", "", Some(proven)).await
    }

    /// Downloads a binary file.
    pub(super) async fn download(&mut self, path: &str) -> (HeaderMap, Vec<u8>) {
        let routes = self.routes.clone();
        let (status, headers, body) = self.send_for_bytes(routes, Method::GET, path, "", None).await;
        assert_eq!(status, StatusCode::OK, "{path}");
        (headers, body)
    }

    async fn send(
        &mut self,
        routes: Router,
        method: Method,
        path: &str,
        form: &str,
        proven: Option<AuthenticatedIdentity>,
    ) -> Reply {
        let (status, headers, body) = self.send_for_bytes(routes, method, path, form, proven).await;
        Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() }
    }

    async fn send_for_bytes(
        &mut self,
        routes: Router,
        method: Method,
        path: &str,
        form: &str,
        proven: Option<AuthenticatedIdentity>,
    ) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, self.accept);
        request = request.header(header::USER_AGENT, self.user_agent);
        request = request.header("sec-fetch-site", self.site).header(header::HOST, "localhost:8081");
        if self.is_script {
            request = request.header("hx-request", "true");
        }
        request = request.header(header::CONTENT_TYPE, self.content_type);
        let mut request = request.body(Body::from(form.to_owned())).unwrap();
        request.extensions_mut().insert(ConnectInfo(self.address));
        if let Some(proven) = proven {
            request.extensions_mut().insert(proven);
        }
        let (parts, body) = self.cookies.send(&routes, request).await.into_parts();
        (parts.status, parts.headers, body)
    }
}
