//! What an application asks for at `/authorize`, checked. Two kinds of fault are kept apart: where the application or its
//! address is not known, nobody may be sent anywhere, and the person is told; all else goes back to the application.

use super::parameters::{Flaw, Parameters, to_query, with_parameters};
use super::scope::Scope;
use crate::{Client, ProviderSettings};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{EmailAddress, LocalPath};
use chancery_web::ErrorPage;

/// A SHA-256 in Base64 without padding.
const CHALLENGE_CHARS: usize = 43;

/// Where the answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReturnAddress {
    pub(crate) redirect_uri: String,
    pub(crate) state: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthorizationRequest {
    pub(crate) client_id: String,
    pub(crate) return_address: ReturnAddress,
    pub(crate) scope: Scope,
    pub(crate) nonce: Option<String>,
    pub(crate) code_challenge: String,
    pub(crate) prompt: Prompt,
    pub(crate) max_age_s: Option<u32>,
    /// The address that the person will probably sign in with.
    pub(crate) login_hint: Option<String>,
    /// An ID token of the person whom the application expects.
    pub(crate) id_token_hint: Option<String>,
    /// Our own: the mark that we sent the person to sign in (`detour`).
    pub(crate) detour: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Nothing may be asked of the person.
    pub(crate) none: bool,
    pub(crate) login: bool,
    pub(crate) consent: bool,
}

/// The standard's codes for what goes back to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
    InvalidRequest,
    UnsupportedResponseType,
    InvalidScope,
    AccessDenied,
    LoginRequired,
    ConsentRequired,
    RequestNotSupported,
    RequestUriNotSupported,
    RegistrationNotSupported,
}

/// Why a request goes no further.
#[derive(Debug)]
pub(crate) enum Rejected {
    ToPerson(ErrorPage),
    ToClient { return_address: ReturnAddress, code: ErrorCode, why: String },
}

impl ErrorCode {
    fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedResponseType => "unsupported_response_type",
            Self::InvalidScope => "invalid_scope",
            Self::AccessDenied => "access_denied",
            Self::LoginRequired => "login_required",
            Self::ConsentRequired => "consent_required",
            Self::RequestNotSupported => "request_not_supported",
            Self::RequestUriNotSupported => "request_uri_not_supported",
            Self::RegistrationNotSupported => "registration_not_supported",
        }
    }
}

impl ReturnAddress {
    /// Back to the application, with `state` as it came and `iss` (RFC 9207), so that it knows whose answer this is.
    pub(crate) fn answer(&self, issuer: &str, answer: &[(&str, &str)]) -> Response {
        let state = self.state.as_deref().map(|state| ("state", state));
        let pairs = answer.iter().copied().chain(state).chain([("iss", issuer)]);
        see_other(&with_parameters(&self.redirect_uri, pairs))
    }

    pub(crate) fn error(&self, issuer: &str, code: ErrorCode, why: &str) -> Response {
        self.answer(issuer, &[("error", code.as_str()), ("error_description", why)])
    }
}

impl Rejected {
    pub(crate) fn into_reply(self, issuer: &str) -> Result<Response, ErrorPage> {
        match self {
            Self::ToPerson(refusal) => Err(refusal),
            Self::ToClient { return_address, code, why } => Ok(return_address.error(issuer, code, &why)),
        }
    }
}

/// The address that the application expects to be signed in with, where the way on from the sign-in page is such a request.
pub(crate) fn login_hint(return_to: &LocalPath) -> Option<EmailAddress> {
    let query = return_to.as_str().strip_prefix("/authorize?")?;
    Parameters::parse(query).ok()?.one("login_hint").ok()??.parse().ok()
}

/// A redirect that is always fetched with GET.
pub(super) fn see_other(address: &str) -> Response {
    match HeaderValue::from_str(address) {
        Ok(address) => (StatusCode::SEE_OTHER, [(header::LOCATION, address)]).into_response(),
        Err(_) => ErrorPage::internal("an address to return to is no header").into_response(),
    }
}

impl AuthorizationRequest {
    pub(crate) fn read(settings: &ProviderSettings, parameters: &Parameters) -> Result<Self, Rejected> {
        let client = client(settings, parameters).map_err(Rejected::ToPerson)?;
        let redirect_uri = redirect_uri(client, parameters).map_err(Rejected::ToPerson)?;
        let state = parameters.one("state");
        let return_address = ReturnAddress { redirect_uri, state: state.ok().flatten().map(str::to_owned) };
        let request = Self::read_rest(&client.id, &return_address, parameters);
        let request = state.map_err(Fault::from).and(request);
        let request = request.map_err(|(code, why)| Rejected::ToClient { return_address, code, why })?;
        // It must survive the way to the sign-in page and back.
        match request.to_path() {
            Some(_) => Ok(request),
            None => Err(Rejected::ToPerson(too_long())),
        }
    }

    fn read_rest(
        client_id: &str,
        return_address: &ReturnAddress,
        parameters: &Parameters,
    ) -> Result<Self, Fault> {
        let one = |name| parameters.one(name).map_err(Fault::from);
        refuse_what_is_not_supported(parameters)?;
        match one("response_type")? {
            None => return Err(invalid("response_type is missing; it must be code")),
            Some("code") => {}
            Some(_) => {
                return Err((ErrorCode::UnsupportedResponseType, "response_type must be code".to_owned()));
            }
        }
        if one("response_mode")?.is_some_and(|mode| mode != "query") {
            return Err(invalid("response_mode must be query, or left out"));
        }
        let scope = one("scope")?.and_then(Scope::parse);
        let scope = scope.ok_or((ErrorCode::InvalidScope, "scope must have openid".to_owned()))?;
        let code_challenge = challenge(one("code_challenge")?, one("code_challenge_method")?)?;
        let max_age_s = one("max_age")?.map(str::parse).transpose();
        let max_age_s = max_age_s.map_err(|_| invalid("max_age must be a number of seconds"))?;
        Ok(Self {
            client_id: client_id.to_owned(),
            return_address: return_address.clone(),
            scope,
            nonce: one("nonce")?.map(str::to_owned),
            code_challenge,
            prompt: Prompt::parse(one("prompt")?.unwrap_or_default())?,
            max_age_s,
            login_hint: one("login_hint")?.map(str::to_owned),
            id_token_hint: one("id_token_hint")?.map(str::to_owned),
            detour: one("detour")?.map(str::to_owned),
        })
    }

    /// What `read` reads, and nothing that it ignores.
    pub(crate) fn to_query(&self) -> String {
        let max_age_s = self.max_age_s.map(|seconds| seconds.to_string());
        let prompt = self.prompt.to_text();
        let optional = [
            ("state", self.return_address.state.as_deref()),
            ("nonce", self.nonce.as_deref()),
            ("prompt", Some(prompt.as_str()).filter(|prompt| !prompt.is_empty())),
            ("max_age", max_age_s.as_deref()),
            ("login_hint", self.login_hint.as_deref()),
            ("id_token_hint", self.id_token_hint.as_deref()),
            ("detour", self.detour.as_deref()),
        ];
        let needed = [
            ("response_type", "code"),
            ("client_id", &self.client_id),
            ("redirect_uri", &self.return_address.redirect_uri),
            ("scope", self.scope.as_str()),
            ("code_challenge", &self.code_challenge),
            ("code_challenge_method", "S256"),
        ];
        let optional = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
        to_query(needed.into_iter().chain(optional))
    }

    /// The same request as an address of ours; None where it is too long for one.
    pub(crate) fn to_path(&self) -> Option<LocalPath> {
        LocalPath::parse(&format!("/authorize?{}", self.to_query()))
    }
}

impl Prompt {
    fn parse(text: &str) -> Result<Self, Fault> {
        let mut prompt = Self::default();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            match word {
                "none" => prompt.none = true,
                // Whoever signs in anew chooses the account by doing so.
                "login" | "select_account" => prompt.login = true,
                "consent" => prompt.consent = true,
                _ => return Err(invalid("prompt must be of none, login, consent and select_account")),
            }
        }
        match prompt {
            Self { none: true, login: false, consent: false } | Self { none: false, .. } => Ok(prompt),
            _ => Err(invalid("prompt=none stands alone")),
        }
    }

    fn to_text(self) -> String {
        let words = [(self.none, "none"), (self.login, "login"), (self.consent, "consent")];
        let words: Vec<&str> =
            words.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect();
        words.join(" ")
    }
}

type Fault = (ErrorCode, String);

fn invalid(why: &str) -> Fault {
    (ErrorCode::InvalidRequest, why.to_owned())
}

impl From<Flaw> for Fault {
    fn from(flaw: Flaw) -> Self {
        (ErrorCode::InvalidRequest, flaw.to_string())
    }
}

fn refuse_what_is_not_supported(parameters: &Parameters) -> Result<(), Fault> {
    let refused = [
        ("request", ErrorCode::RequestNotSupported, "request objects are not taken; use plain parameters"),
        (
            "request_uri",
            ErrorCode::RequestUriNotSupported,
            "request objects are not taken; use plain parameters",
        ),
        ("registration", ErrorCode::RegistrationNotSupported, "applications are registered by the firm"),
    ];
    for (name, code, why) in refused {
        if parameters.one(name)?.is_some() {
            return Err((code, why.to_owned()));
        }
    }
    Ok(())
}

fn challenge(challenge: Option<&str>, method: Option<&str>) -> Result<String, Fault> {
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
    let id = parameters.one("client_id").map_err(|flaw| bad_request(&flaw.to_string()))?;
    let id = id.ok_or_else(|| bad_request("client_id is missing"))?;
    settings.client(id).ok_or_else(|| bad_request("client_id names no application that is known here"))
}

/// Letter by letter one of those that are registered.
fn redirect_uri(client: &Client, parameters: &Parameters) -> Result<String, ErrorPage> {
    let uri = parameters.one("redirect_uri").map_err(|flaw| bad_request(&flaw.to_string()))?;
    let uri = uri.ok_or_else(|| bad_request("redirect_uri is missing"))?;
    match client.redirect_uris.iter().any(|own| own == uri) {
        true => Ok(uri.to_owned()),
        false => Err(bad_request("redirect_uri is not one that this application has registered here")),
    }
}

/// For the person: nobody else may be told.
fn bad_request(why: &str) -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "invalid_request",
        "This sign-in cannot go on",
        format!("The application that sent you here made a mistake: {why}."),
    )
    .advice(
        "Go back to the application and start again. If it stays, tell whoever runs it what this page says.",
    )
    .logged(format!("an authorization request was refused: {why}"))
}

pub(super) fn too_long() -> ErrorPage {
    bad_request("its request is too long; state, nonce and hints must fit into an address of 2000 characters")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

    fn settings() -> ProviderSettings {
        ProviderSettings {
            trusted_proxies: chancery_web::TrustedProxies::default(),
            issuer: "https://id.example.com".to_owned(),
            firm_name: "Hale & Ward".to_owned(),
            company_domain: "example.com".parse().unwrap(),
            clients: vec![Client {
                id: "portal".to_owned(),
                name: "Client portal".to_owned(),
                secret: None,
                redirect_uris: vec!["https://portal.example.com/auth/callback".to_owned()],
                post_logout_redirect_uris: vec![],
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

    fn read(pairs: &[(&str, &str)]) -> Result<AuthorizationRequest, Rejected> {
        AuthorizationRequest::read(&settings(), &Parameters::parse(&to_query(pairs.iter().copied())).unwrap())
    }

    /// The good request with one parameter set to another value, or left out.
    fn changed(name: &'static str, value: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
        let rest = good().into_iter().filter(|(own, _)| *own != name);
        rest.chain(value.map(|value| (name, value))).collect()
    }

    #[test]
    fn a_good_request_is_read_and_reads_the_same_from_its_own_address() {
        let request = read(&good()).unwrap();
        assert_eq!(request.scope, Scope { has_email: true });
        assert_eq!(request.return_address.state.as_deref(), Some("af0ifjsldkj"));
        let again = AuthorizationRequest::read(&settings(), &Parameters::parse(&request.to_query()).unwrap());
        assert_eq!(again.unwrap(), request);
        let with_unknown: Vec<_> =
            good().into_iter().chain([("x", "1"), ("x", "2"), ("claims", "{}")]).collect();
        assert_eq!(read(&with_unknown).unwrap(), request, "what we do not know is ignored");
    }

    #[test]
    fn a_wrong_application_or_address_is_told_to_the_person_and_never_redirected() {
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
            assert!(matches!(outcome, Err(Rejected::ToPerson(_))), "{name}={value:?}: {outcome:?}");
        }
        for twice in ["client_id", "redirect_uri"] {
            let value = good().into_iter().find(|(own, _)| *own == twice).unwrap();
            let outcome = read(&good().into_iter().chain([value]).collect::<Vec<_>>());
            assert!(matches!(outcome, Err(Rejected::ToPerson(_))), "{twice} twice");
        }
    }

    #[test]
    fn all_other_faults_go_back_to_the_application_with_its_state() {
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
                Err(Rejected::ToClient { code, return_address, why }) => {
                    assert_eq!(code, expected, "{name}={value:?}");
                    assert_eq!(return_address.state.as_deref(), Some("af0ifjsldkj"));
                    assert!(!why.is_empty() && why.is_ascii() && !why.contains(['"', '\\']), "{why}");
                }
                other => panic!("{name}={value:?}: {other:?}"),
            }
        }
        for twice in ["state", "nonce", "scope", "response_type", "code_challenge", "prompt"] {
            let doubled: Vec<_> = good().into_iter().chain([(twice, "a"), (twice, "b")]).collect();
            match read(&doubled) {
                Err(Rejected::ToClient { code: InvalidRequest, return_address, .. }) => {
                    assert_eq!(return_address.state.is_some(), twice != "state");
                }
                other => panic!("{twice} twice: {other:?}"),
            }
        }
    }

    #[test]
    fn a_request_that_would_not_survive_the_way_to_sign_in_is_refused_plainly() {
        let long: String = "x".repeat(2_000);
        let pairs: Vec<(&str, &str)> =
            changed("state", None).into_iter().chain([("state", &*long)]).collect();
        assert!(matches!(read(&pairs), Err(Rejected::ToPerson(_))));
    }

    #[test]
    fn a_hint_of_who_signs_in_survives_the_way_to_the_sign_in_page() {
        let hinted = |hint: &'static str| {
            let request = read(&changed("login_hint", Some(hint))).unwrap();
            login_hint(&request.to_path().unwrap()).map(|email| email.to_string())
        };
        assert_eq!(hinted("Ann+x@Example.com").as_deref(), Some("ann+x@example.com"));
        assert_eq!(hinted("<b>not an address</b>"), None);
        assert_eq!(login_hint(&LocalPath::parse("/?login_hint=a@example.com").unwrap()), None);
    }

    #[test]
    fn an_answer_carries_state_and_issuer_and_keeps_the_addresss_own_query() {
        let address = ReturnAddress {
            redirect_uri: "https://a.example/b?c=d".to_owned(),
            state: Some("x&y".to_owned()),
        };
        let reply = address.answer("https://id.example.com", &[("code", "z")]);
        assert_eq!(reply.status(), StatusCode::SEE_OTHER);
        assert_eq!(
            reply.headers()[header::LOCATION],
            "https://a.example/b?c=d&code=z&state=x%26y&iss=https%3A%2F%2Fid.example.com"
        );
    }

    proptest! {
        #[test]
        fn whatever_is_read_reads_the_same_from_its_own_address(
            state in "\\PC{0,40}", nonce in "\\PC{0,40}", hint in "\\PC{0,40}", max_age in any::<u32>(),
        ) {
            let max_age = max_age.to_string();
            let mut pairs = changed("state", None);
            pairs.retain(|(name, _)| *name != "nonce");
            let pairs: Vec<(&str, &str)> = pairs.into_iter().chain([
                ("state", &*state), ("nonce", &*nonce), ("login_hint", &*hint), ("max_age", &*max_age), ("prompt", "consent login"),
            ]).collect();
            if let Ok(request) = read(&pairs) {
                let again = Parameters::parse(&request.to_query()).unwrap();
                prop_assert_eq!(AuthorizationRequest::read(&settings(), &again).unwrap(), request);
            }
        }
    }
}
