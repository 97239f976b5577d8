//! The portal's side of OpenID Connect: the code flow with PKCE, of the scopes `openid email` and nothing more.
//!
//! 1. `authorization_url`: the browser is sent to the provider with a `state`, a `nonce` and a PKCE challenge that belong to
//!    this one sign-in. Where the provider's endpoints are, `discovery` asks the provider, whose issuer must be exactly
//!    the configured one.
//! 2. The browser comes back with a code. Who called back in which browser, `callback` has checked by then; `check_issuer`
//!    holds the reply against RFC 9207.
//! 3. `prove`: the code and the PKCE verifier are exchanged for an ID token, which `id_token` checks. With keys that are not
//!    known, the provider's keys are fetched once more. If it has no address, `userinfo` is asked.

use super::discovery::{Discovery, Endpoints};
use super::fault::Fault;
use super::http::{self, HttpFault, ProviderHttp};
use super::id_token::{self, Claims, Expected, IdTokenFault};
use super::userinfo;
use crate::settings::PortalSettings;
use chancery_domain::Clock;
use oauth2::basic::{
    BasicErrorResponse, BasicErrorResponseType, BasicRevocationErrorResponse,
    BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::{
    AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet, EndpointSet, ExtraTokenFields,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope, StandardRevocableToken,
    StandardTokenResponse, TokenResponse,
};
use openidconnect::IssuerUrl;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why the provider cannot be used; the text names the key of the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(String);

/// The provider, as the portal knows it.
pub(crate) struct IdentityProvider {
    issuer: String,
    client_id: ClientId,
    client_secret: Option<ClientSecret>,
    redirect_url: RedirectUrl,
    after_sign_out: String,
    http: ProviderHttp,
    discovery: Discovery,
    clock: Arc<dyn Clock>,
}

/// What belongs to one sign-in alone.
pub(crate) struct Secrets<'a> {
    pub(crate) state: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) pkce_verifier: &'a str,
}

/// Whom the provider is to let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Whoever is signed in there already.
    Anybody,
    /// It asks, for it may be somebody else than it thinks.
    SomebodyElse,
}

/// What the provider says of who signed in.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) subject: String,
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
}

#[derive(Debug, Deserialize, Serialize)]
struct IdTokenField {
    id_token: Option<String>,
}

impl ExtraTokenFields for IdTokenField {}

type TokenReply = StandardTokenResponse<IdTokenField, BasicTokenType>;

type Client = oauth2::Client<
    BasicErrorResponse,
    TokenReply,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

impl IdentityProvider {
    pub(crate) fn new(settings: &PortalSettings, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        let identity = &settings.identity;
        let wrong = |key: &str, why: &str| IdentityError(format!("{key} cannot be used: {why}"));
        let issuer = IssuerUrl::new(identity.issuer.clone())
            .map_err(|error| wrong("identity.issuer", &error.to_string()))?;
        if !http::is_safe(issuer.url()) {
            return Err(wrong("identity.issuer", "it must be `https:`, or on this machine"));
        }
        let redirect_url = RedirectUrl::new(format!("{}/auth/callback", settings.public_url))
            .map_err(|error| wrong("portal.public_url", &error.to_string()))?;
        let http = ProviderHttp::new(issuer.url()).map_err(|why| wrong("identity.issuer", &why))?;
        Ok(Self {
            issuer: identity.issuer.clone(),
            client_id: ClientId::new(identity.client_id.clone()),
            client_secret: identity.client_secret.clone().map(ClientSecret::new),
            redirect_url,
            after_sign_out: format!("{}/", settings.public_url),
            http,
            discovery: Discovery::new(issuer, Arc::clone(&clock)),
            clock,
        })
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Where the browser is sent to sign in.
    pub(crate) async fn authorization_url(
        &self,
        secrets: &Secrets<'_>,
        wanted: Wanted,
    ) -> Result<String, Fault> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let verifier = PkceCodeVerifier::new(secrets.pkce_verifier.to_owned());
        let client = self.client(&endpoints);
        let asked = client
            .authorize_url(|| CsrfToken::new(secrets.state.to_owned()))
            .add_scope(Scope::new("openid".to_owned()))
            .add_scope(Scope::new("email".to_owned()))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .add_extra_param("nonce", secrets.nonce);
        let asked = match wanted {
            Wanted::Anybody => asked,
            Wanted::SomebodyElse => asked.add_extra_param("prompt", "login"),
        };
        Ok(asked.url().0.into())
    }

    /// RFC 9207: a reply that names an issuer must name ours, and a provider that says it names itself must do so. Without
    /// this, a code of one provider could be carried to another.
    pub(crate) async fn check_issuer(&self, named: Option<&str>) -> Result<(), Fault> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        match named {
            Some(issuer) if issuer == self.issuer => Ok(()),
            Some(_) => Err(Fault::Lying("the callback's `iss` names another issuer".to_owned())),
            None if endpoints.names_itself => Err(Fault::Lying(
                "the callback has no `iss`, though the provider says that it sends it".to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Who signed in.
    pub(crate) async fn prove(&self, code: String, secrets: &Secrets<'_>) -> Result<Evidence, Fault> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let code = AuthorizationCode::new(code);
        let reply = self.exchange(&endpoints, &code, secrets).await?;
        let access_token = reply.access_token();
        let Some(id_token) = &reply.extra_fields().id_token else {
            return Err(Fault::Lying("the token endpoint's reply has no `id_token`".to_owned()));
        };
        let expected = Expected {
            issuer: &self.issuer,
            client_id: self.client_id.as_str(),
            nonce: secrets.nonce,
            code: &code,
            access_token,
            now_s: self.clock.now().0.div_euclid(1000),
        };
        let claims = self.check(&endpoints, id_token, &expected).await?;
        let Claims { sub, email, .. } = claims;
        let email = match &endpoints.userinfo {
            Some(url) if !email.is_there() => {
                userinfo::email_claims(url, &self.http, access_token, &sub).await?
            }
            _ => email,
        };
        let (email, is_email_verified) = email.into_address();
        Ok(Evidence { subject: sub, email, is_email_verified })
    }

    /// Where the browser signs out at the provider too, as far as is known without asking.
    pub(crate) fn end_session_url(&self) -> Option<String> {
        let mut url = self.discovery.last_known()?.end_session.clone()?;
        url.query_pairs_mut()
            .append_pair("client_id", self.client_id.as_str())
            .append_pair("post_logout_redirect_uri", &self.after_sign_out);
        Some(url.into())
    }

    fn client(&self, endpoints: &Endpoints) -> Client {
        let client = oauth2::Client::new(self.client_id.clone())
            .set_auth_type(endpoints.client_authentication.clone())
            .set_auth_uri(endpoints.authorization.clone())
            .set_token_uri(endpoints.token.clone())
            .set_redirect_uri(self.redirect_url.clone());
        match &self.client_secret {
            Some(secret) => client.set_client_secret(secret.clone()),
            None => client,
        }
    }

    async fn exchange(
        &self,
        endpoints: &Endpoints,
        code: &AuthorizationCode,
        secrets: &Secrets<'_>,
    ) -> Result<TokenReply, Fault> {
        let client = self.client(endpoints);
        let asked = client
            .exchange_code(code.clone())
            .set_pkce_verifier(PkceCodeVerifier::new(secrets.pkce_verifier.to_owned()))
            .request_async(&self.http)
            .await;
        let reply = asked.map_err(|error| explain(&error))?;
        match reply.token_type() {
            BasicTokenType::Bearer => Ok(reply),
            _ => Err(Fault::Lying("the token endpoint's `token_type` is not `Bearer`".to_owned())),
        }
    }

    async fn check(
        &self,
        endpoints: &Endpoints,
        id_token: &str,
        expected: &Expected<'_>,
    ) -> Result<Claims, Fault> {
        let keys = self.discovery.keys(&self.http, endpoints).await?;
        let unknown = match id_token::check(id_token, keys.keys(), expected) {
            Ok(claims) => return Ok(claims),
            Err(IdTokenFault::Refused(why)) => return Err(Fault::Lying(why)),
            Err(IdTokenFault::UnknownKey(why)) => why,
        };
        let Some(newer) = self.discovery.newer_keys(&keys, &self.http, endpoints).await? else {
            return Err(Fault::Lying(format!("{unknown}, which were asked for just now")));
        };
        id_token::check(id_token, newer.keys(), expected).map_err(|fault| match fault {
            IdTokenFault::Refused(why) | IdTokenFault::UnknownKey(why) => Fault::Lying(why),
        })
    }
}

/// Without what the reply's body says, for tokens are in it.
fn explain(error: &RequestTokenError<HttpFault, BasicErrorResponse>) -> Fault {
    match error {
        RequestTokenError::Request(fault) => fault.fault("the token endpoint"),
        RequestTokenError::ServerResponse(said) => {
            let error = said.error();
            let code: String = error.as_ref().chars().filter(char::is_ascii_graphic).take(40).collect();
            let text = format!("the token endpoint answered `{code}`");
            match error {
                BasicErrorResponseType::InvalidGrant => Fault::CodeIsOver(text),
                _ => Fault::RefusesPortal(text),
            }
        }
        RequestTokenError::Parse(error, _) => {
            Fault::Lying(format!("the token endpoint's reply cannot be read at `{}`", error.path()))
        }
        RequestTokenError::Other(why) => Fault::Lying(format!("the token endpoint: {why}")),
    }
}
