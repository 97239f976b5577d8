//! Validates requests to `/authorize`. There are two kinds of error. If the client or its redirect URI is unknown,
//! nothing may be redirected, so the user sees the error. All other errors go back to the client.

use super::parameters::{ParameterError, Parameters, to_query, with_parameters};
use super::scope::Scope;
use crate::{Client, ProviderSettings};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{EmailAddress, LocalPath};
use chancery_web::ErrorPage;

/// A SHA-256 in unpadded Base64.
const CHALLENGE_CHARS: usize = 43;

/// Where the response is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedirectTarget {
    pub(crate) redirect_uri: String,
    pub(crate) state: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizationRequest {
    pub(crate) client_id: String,
    pub(crate) redirect_target: RedirectTarget,
    pub(crate) scope: Scope,
    pub(crate) nonce: Option<String>,
    pub(crate) code_challenge: String,
    pub(crate) prompt: Prompt,
    pub(crate) max_age_s: Option<u32>,
    /// The authentication levels that the client would like. They are voluntary: the ID token's `acr` says which one was
    /// reached.
    pub(crate) acr_values: Option<String>,
    /// The email address the user will probably sign in with.
    pub(crate) login_hint: Option<String>,
    /// An ID token of the user that the client expects.
    pub(crate) id_token_hint: Option<String>,
    /// Our own parameter: proof that we sent the user to sign in (`sign_in_detour`).
    pub(crate) sign_in_detour: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// No interaction with the user is allowed.
    pub(crate) none: bool,
    pub(crate) login: bool,
    pub(crate) consent: bool,
}

chancery_domain::closed_enum! {
    /// OAuth and OpenID Connect error codes that are returned to the client.
    pub(crate) enum ErrorCode {
        InvalidRequest = "invalid_request",
        UnsupportedResponseType = "unsupported_response_type",
        InvalidScope = "invalid_scope",
        AccessDenied = "access_denied",
        LoginRequired = "login_required",
        ConsentRequired = "consent_required",
        RequestNotSupported = "request_not_supported",
        RequestUriNotSupported = "request_uri_not_supported",
        RegistrationNotSupported = "registration_not_supported",
    }
}

/// Why a request was rejected, and who is told.
#[derive(Debug)]
pub(crate) enum AuthorizeError {
    Page(ErrorPage),
    Redirect { redirect_target: RedirectTarget, code: ErrorCode, description: String },
}

impl RedirectTarget {
    /// Redirects to the client with `state` unchanged and `iss` (RFC 9207), so that it knows which issuer responded.
    pub(crate) fn respond(&self, issuer: &str, params: &[(&str, &str)]) -> Response {
        let state = self.state.as_deref().map(|state| ("state", state));
        let pairs = params.iter().copied().chain(state).chain([("iss", issuer)]);
        see_other(&with_parameters(&self.redirect_uri, pairs))
    }

    pub(crate) fn error(&self, issuer: &str, code: ErrorCode, description: &str) -> Response {
        self.respond(issuer, &[("error", code.as_str()), ("error_description", description)])
    }
}

impl AuthorizeError {
    pub(crate) fn into_response_for(self, issuer: &str) -> Result<Response, ErrorPage> {
        match self {
            Self::Page(rejection) => Err(rejection),
            Self::Redirect { redirect_target, code, description } => {
                Ok(redirect_target.error(issuer, code, &description))
            }
        }
    }
}

/// The client's `login_hint`, if the sign-in page returns to an authorization request.
pub(crate) fn login_hint(return_to: &LocalPath) -> Option<EmailAddress> {
    let query = return_to.as_str().strip_prefix("/authorize?")?;
    Parameters::parse(query).ok()?.one("login_hint").ok()??.parse().ok()
}

/// Redirects so that the browser always follows with GET.
pub(super) fn see_other(address: &str) -> Response {
    match HeaderValue::from_str(address) {
        Ok(address) => (StatusCode::SEE_OTHER, [(header::LOCATION, address)]).into_response(),
        Err(_) => ErrorPage::internal("the return address does not fit in a header").into_response(),
    }
}

impl AuthorizationRequest {
    pub(crate) fn read(settings: &ProviderSettings, parameters: &Parameters) -> Result<Self, AuthorizeError> {
        let client = client(settings, parameters).map_err(AuthorizeError::Page)?;
        let redirect_uri = redirect_uri(client, parameters).map_err(AuthorizeError::Page)?;
        let state = parameters.one("state");
        let redirect_target = RedirectTarget { redirect_uri, state: state.ok().flatten().map(str::to_owned) };
        let request = Self::read_rest(&client.id, &redirect_target, parameters);
        let request = state.map_err(RequestError::from).and(request);
        let request = request.map_err(|(code, description)| AuthorizeError::Redirect {
            redirect_target,
            code,
            description,
        })?;
        // The request must fit into a URL to survive the redirect to the sign-in page and back.
        match request.to_path() {
            Some(_) => Ok(request),
            None => Err(AuthorizeError::Page(too_long())),
        }
    }

    fn read_rest(
        client_id: &str,
        redirect_target: &RedirectTarget,
        parameters: &Parameters,
    ) -> Result<Self, RequestError> {
        let one = |name| parameters.one(name).map_err(RequestError::from);
        reject_unsupported_parameters(parameters)?;
        match one("response_type")? {
            None => return Err(invalid("response_type is missing: use code")),
            Some("code") => {}
            Some(_) => {
                return Err((ErrorCode::UnsupportedResponseType, "response_type must be code".to_owned()));
            }
        }
        if one("response_mode")?.is_some_and(|mode| mode != "query") {
            return Err(invalid("response_mode must be query or omitted"));
        }
        let scope = one("scope")?.and_then(Scope::parse);
        let scope = scope.ok_or((ErrorCode::InvalidScope, "scope must include openid".to_owned()))?;
        let code_challenge = challenge(one("code_challenge")?, one("code_challenge_method")?)?;
        let max_age_s = one("max_age")?.map(str::parse).transpose();
        let max_age_s = max_age_s.map_err(|_| invalid("max_age must be a number of seconds"))?;
        Ok(Self {
            client_id: client_id.to_owned(),
            redirect_target: redirect_target.clone(),
            scope,
            nonce: one("nonce")?.map(str::to_owned),
            code_challenge,
            prompt: Prompt::parse(one("prompt")?.unwrap_or_default())?,
            max_age_s,
            acr_values: one("acr_values")?.map(str::to_owned),
            login_hint: one("login_hint")?.map(str::to_owned),
            id_token_hint: one("id_token_hint")?.map(str::to_owned),
            sign_in_detour: one("detour")?.map(str::to_owned),
        })
    }

    /// Serializes exactly the parameters that `read` reads.
    pub(crate) fn to_query(&self) -> String {
        let max_age_s = self.max_age_s.map(|seconds| seconds.to_string());
        let prompt = self.prompt.to_text();
        let optional = [
            ("state", self.redirect_target.state.as_deref()),
            ("nonce", self.nonce.as_deref()),
            ("prompt", Some(prompt.as_str()).filter(|prompt| !prompt.is_empty())),
            ("max_age", max_age_s.as_deref()),
            ("acr_values", self.acr_values.as_deref()),
            ("login_hint", self.login_hint.as_deref()),
            ("id_token_hint", self.id_token_hint.as_deref()),
            ("detour", self.sign_in_detour.as_deref()),
        ];
        let needed = [
            ("response_type", "code"),
            ("client_id", &self.client_id),
            ("redirect_uri", &self.redirect_target.redirect_uri),
            ("scope", self.scope.as_str()),
            ("code_challenge", &self.code_challenge),
            ("code_challenge_method", "S256"),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
        to_query(needed.into_iter().chain(optional))
    }

    /// The request as a local path, or `None` if it is too long.
    pub(crate) fn to_path(&self) -> Option<LocalPath> {
        LocalPath::parse(&format!("/authorize?{}", self.to_query()))
    }
}

impl Prompt {
    fn parse(text: &str) -> Result<Self, RequestError> {
        let mut prompt = Self::default();
        for value in text.split(' ').filter(|value| !value.is_empty()) {
            match value {
                "none" => prompt.none = true,
                // Signing in again lets the user choose the account.
                "login" | "select_account" => prompt.login = true,
                "consent" => prompt.consent = true,
                _ => return Err(invalid("prompt must be none, login, consent or select_account")),
            }
        }
        match prompt {
            Self { none: true, login: false, consent: false } | Self { none: false, .. } => Ok(prompt),
            _ => Err(invalid("prompt=none cannot be combined with other values")),
        }
    }

    fn to_text(self) -> String {
        let values = [(self.none, "none"), (self.login, "login"), (self.consent, "consent")];
        let values: Vec<&str> =
            values.into_iter().filter_map(|(is_set, value)| is_set.then_some(value)).collect();
        values.join(" ")
    }
}

type RequestError = (ErrorCode, String);

fn invalid(description: &str) -> RequestError {
    (ErrorCode::InvalidRequest, description.to_owned())
}

impl From<ParameterError> for RequestError {
    fn from(error: ParameterError) -> Self {
        (ErrorCode::InvalidRequest, error.to_string())
    }
}

fn reject_unsupported_parameters(parameters: &Parameters) -> Result<(), RequestError> {
    let unsupported = [
        (
            "request",
            ErrorCode::RequestNotSupported,
            "request objects are not supported; use query parameters",
        ),
        (
            "request_uri",
            ErrorCode::RequestUriNotSupported,
            "request objects are not supported; use query parameters",
        ),
        ("registration", ErrorCode::RegistrationNotSupported, "dynamic registration is not supported"),
    ];
    for (name, code, description) in unsupported {
        if parameters.one(name)?.is_some() {
            return Err((code, description.to_owned()));
        }
    }
    Ok(())
}

fn challenge(challenge: Option<&str>, method: Option<&str>) -> Result<String, RequestError> {
    let challenge =
        challenge.ok_or_else(|| invalid("code_challenge is missing; PKCE with S256 is required"))?;
    if method != Some("S256") {
        return Err(invalid("code_challenge_method must be S256"));
    }
    let is_hash = challenge.len() == CHALLENGE_CHARS
        && challenge.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    match is_hash {
        true => Ok(challenge.to_owned()),
        false => Err(invalid("code_challenge must be a SHA-256 in base64url without padding")),
    }
}

fn client<'a>(settings: &'a ProviderSettings, parameters: &Parameters) -> Result<&'a Client, ErrorPage> {
    let id = parameters.one("client_id").map_err(|error| bad_request(&error.to_string()))?;
    let id = id.ok_or_else(|| bad_request("client_id is missing"))?;
    settings.client(id).ok_or_else(|| bad_request("unknown client_id"))
}

/// Must exactly equal a registered URI.
fn redirect_uri(client: &Client, parameters: &Parameters) -> Result<String, ErrorPage> {
    let uri = parameters.one("redirect_uri").map_err(|error| bad_request(&error.to_string()))?;
    let uri = uri.ok_or_else(|| bad_request("redirect_uri is missing"))?;
    match client.redirect_uris.iter().any(|own| own == uri) {
        true => Ok(uri.to_owned()),
        false => Err(bad_request("redirect_uri is not registered for this client")),
    }
}

/// Shown to the user, because no redirect URI can be trusted.
fn bad_request(description: &str) -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "invalid_request",
        "Invalid sign-in request",
        format!("The application sent an invalid request: {description}."),
    )
    .advice(
        "Go back to the application and try again. If it fails again, send this message to its administrator.",
    )
    .with_log_detail(format!("authorization request rejected: {description}"))
}

pub(super) fn too_long() -> ErrorPage {
    bad_request("the request is too long; with state, nonce and hints it must fit into 2000 characters")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    fn settings() -> ProviderSettings {
        ProviderSettings {
            trusted_proxies: chancery_web::TrustedProxies::default(),
            second_factor: crate::SecondFactorPolicy::default(),
            hsts_include_subdomains: false,
            issuer: "https://id.example.com".to_owned(),
            firm_name: "Hale & Ward".to_owned(),
            company_domain: "example.com".parse().unwrap(),
            clients: vec![Client {
                id: "portal".to_owned(),
                name: "Client portal".to_owned(),
                secret: None,
                redirect_uris: vec!["https://portal.example.com/auth/callback".to_owned()],
                post_logout_redirect_uris: vec![],
                backchannel_logout_uri: None,
            }],
        }
    }

    fn good() -> Vec<(&'static str, &'static str)> {
        vec![
            ("client_id", "portal"),
            ("redirect_uri", "https://portal.example.com/auth/callback"),
            ("response_type", "code"),
            ("scope", "openid email"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("state", "af0ifjsldkj"),
            ("nonce", "n-0S6_WzA2Mj"),
        ]
    }

    fn read(pairs: &[(&str, &str)]) -> Result<AuthorizationRequest, AuthorizeError> {
        AuthorizationRequest::read(&settings(), &Parameters::parse(&to_query(pairs.iter().copied())).unwrap())
    }

    /// The valid request with one parameter changed or removed.
    fn changed(name: &'static str, value: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
        let rest = good().into_iter().filter(|(own, _)| *own != name);
        rest.chain(value.map(|value| (name, value))).collect()
    }

    #[test]
    fn valid_authorization_request_round_trips() {
        let request = read(&good()).unwrap();
        assert_eq!(request.scope, Scope { has_email: true });
        assert_eq!(request.redirect_target.state.as_deref(), Some("af0ifjsldkj"));
        let again = AuthorizationRequest::read(&settings(), &Parameters::parse(&request.to_query()).unwrap());
        assert_eq!(again.unwrap(), request);
        let with_unknown: Vec<_> =
            good().into_iter().chain([("x", "1"), ("x", "2"), ("claims", "{}")]).collect();
        assert_eq!(read(&with_unknown).unwrap(), request, "what we do not know is ignored");
    }

    #[test]
    fn bad_client_or_redirect_uri_shows_a_page_without_redirect() {
        for (name, value) in [
            ("client_id", None),
            ("client_id", Some("other")),
            ("client_id", Some("Portal")),
            ("redirect_uri", None),
            ("redirect_uri", Some("https://evil.example")),
            ("redirect_uri", Some("https://portal.example.com/auth/callback/")),
            ("redirect_uri", Some("https://portal.example.com/auth/callback?x=1")),
            ("redirect_uri", Some("https://portal.example.com/auth/callbacK")),
            ("redirect_uri", Some("https://portal.example.com/auth/callback#")),
        ] {
            let outcome = read(&changed(name, value));
            assert!(matches!(outcome, Err(AuthorizeError::Page(_))), "{name}={value:?}: {outcome:?}");
        }
        for twice in ["client_id", "redirect_uri"] {
            let value = good().into_iter().find(|(own, _)| *own == twice).unwrap();
            let outcome = read(&good().into_iter().chain([value]).collect::<Vec<_>>());
            assert!(matches!(outcome, Err(AuthorizeError::Page(_))), "{twice} twice");
        }
    }

    #[test]
    fn other_errors_redirect_to_the_client_with_state() {
        use ErrorCode::*;
        for (name, value, expected) in [
            ("response_type", None, InvalidRequest),
            ("response_type", Some("token"), UnsupportedResponseType),
            ("response_type", Some("code id_token"), UnsupportedResponseType),
            ("response_mode", Some("form_post"), InvalidRequest),
            ("response_mode", Some("fragment"), InvalidRequest),
            ("scope", None, InvalidScope),
            ("scope", Some("email"), InvalidScope),
            ("code_challenge", None, InvalidRequest),
            ("code_challenge", Some("short"), InvalidRequest),
            ("code_challenge", Some("E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM"), InvalidRequest),
            ("code_challenge_method", None, InvalidRequest),
            ("code_challenge_method", Some("plain"), InvalidRequest),
            ("max_age", Some("-1"), InvalidRequest),
            ("max_age", Some("soon"), InvalidRequest),
            ("prompt", Some("none login"), InvalidRequest),
            ("prompt", Some("dance"), InvalidRequest),
            ("nonce", Some("a\0b"), InvalidRequest),
            ("request", Some("e30."), RequestNotSupported),
            ("request_uri", Some("https://a.example/b"), RequestUriNotSupported),
            ("registration", Some("{}"), RegistrationNotSupported),
        ] {
            match read(&changed(name, value)) {
                Err(AuthorizeError::Redirect { code, redirect_target, description }) => {
                    assert_eq!(code, expected, "{name}={value:?}");
                    assert_eq!(redirect_target.state.as_deref(), Some("af0ifjsldkj"));
                    assert!(
                        !description.is_empty()
                            && description.is_ascii()
                            && !description.contains(['"', '\\']),
                        "{description}"
                    );
                }
                other => panic!("{name}={value:?}: {other:?}"),
            }
        }
        for twice in ["state", "nonce", "scope", "response_type", "code_challenge", "prompt"] {
            let doubled: Vec<_> = good().into_iter().chain([(twice, "a"), (twice, "b")]).collect();
            match read(&doubled) {
                Err(AuthorizeError::Redirect { code: InvalidRequest, redirect_target, .. }) => {
                    assert_eq!(redirect_target.state.is_some(), twice != "state");
                }
                other => panic!("{twice} twice: {other:?}"),
            }
        }
    }

    #[test]
    fn too_long_authorization_request_is_rejected() {
        let long: String = "x".repeat(2_000);
        let pairs: Vec<(&str, &str)> =
            changed("state", None).into_iter().chain([("state", &*long)]).collect();
        assert!(matches!(read(&pairs), Err(AuthorizeError::Page(_))));
    }

    #[test]
    fn login_hint_survives_the_sign_in_redirect() {
        let hinted = |hint: &'static str| {
            let request = read(&changed("login_hint", Some(hint))).unwrap();
            login_hint(&request.to_path().unwrap()).map(|email| email.to_string())
        };
        assert_eq!(hinted("Ann+x@Example.com").as_deref(), Some("ann+x@example.com"));
        assert_eq!(hinted("<b>not an address</b>"), None);
        assert_eq!(login_hint(&LocalPath::parse("/?login_hint=a@example.com").unwrap()), None);
    }

    #[test]
    fn redirect_carries_state_and_iss_and_keeps_the_query() {
        let address = RedirectTarget {
            redirect_uri: "https://a.example/b?c=d".to_owned(),
            state: Some("x&y".to_owned()),
        };
        let reply = address.respond("https://id.example.com", &[("code", "z")]);
        assert_eq!(reply.status(), StatusCode::SEE_OTHER);
        assert_eq!(
            reply.headers()[header::LOCATION],
            "https://a.example/b?c=d&code=z&state=x%26y&iss=https%3A%2F%2Fid.example.com"
        );
    }

    proptest! {
        #[test]
        fn any_parsed_authorization_request_round_trips(
            state in "\\PC{0,40}", nonce in "\\PC{0,40}", hint in "\\PC{0,40}", max_age in any::<u32>(),
        ) {
            let max_age = max_age.to_string();
            let mut pairs = changed("state", None);
            pairs.retain(|(name, _)| *name != "nonce");
            let pairs: Vec<(&str, &str)> = pairs.into_iter().chain([
                ("state", &*state), ("nonce", &*nonce), ("login_hint", &*hint), ("max_age", &*max_age), ("prompt", "consent login"),
                ("acr_values", "aal2 aal1"),
            ]).collect();
            if let Ok(request) = read(&pairs) {
                let again = Parameters::parse(&request.to_query()).unwrap();
                prop_assert_eq!(AuthorizationRequest::read(&settings(), &again).unwrap(), request);
            }
        }
    }
}
