//! An identity provider on its own port that follows every rule until a test tells it which one to break. It is
//! strict with the portal: it checks PKCE, redirect URI, client secret and single use of codes.

use crate::signing::SigningKey;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use chancery_domain::Clock;
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub const CLIENT_ID: &str = "chancery-portal";
/// Contains characters that Basic authentication must encode.
pub const CLIENT_SECRET: &str = "s3cret: with/odd+letters%";
pub const ACCESS_TOKEN: &str = "access-token-of-the-hostile-provider";
pub const SUBJECT: &str = "subject-7";
pub const EMAIL: &str = "ada@example.com";

type Edit<T = Value> = Box<dyn Fn(&mut T) + Send>;
type Change = Box<dyn FnOnce(&mut ProviderBehavior) + Send>;
/// Names and values of a query string.
pub type Parameters = Vec<(String, String)>;

pub struct HostileProvider {
    pub issuer: String,
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    behavior: Mutex<ProviderBehavior>,
}

/// Correct by default; a test changes the part that it is about.
pub struct ProviderBehavior {
    pub metadata: Value,
    pub discovery: ScriptedReply,
    pub key: SigningKey,
    /// The published key set.
    pub keys: Value,
    pub edit_claims: Edit,
    pub edit_header: Edit,
    /// Edits the token before it is sent.
    pub edit_id_token: Box<dyn Fn(&str) -> String + Send>,
    pub edit_token_reply: Edit,
    /// Replaces the token endpoint's response.
    pub token_reply: Option<ScriptedReply>,
    pub userinfo: ScriptedReply,
    /// Edits the parameters of the callback.
    pub edit_callback: Edit<Parameters>,
    pub before_signing: Option<Change>,
    /// The parameters of the last authorization request.
    pub authorization: HashMap<String, String>,
    /// Endpoints requested so far.
    pub requests: Vec<&'static str>,
    /// How the portal authenticated at the token endpoint.
    pub authentication: Vec<&'static str>,
    codes: HashMap<String, Grant>,
    codes_made: u32,
}

#[derive(Clone)]
pub enum ScriptedReply {
    /// The correct response.
    Valid,
    Json(Value),
    Status(u16, Value),
    Text(&'static str),
    Redirect(String),
    Hang,
    Huge,
}

#[derive(Clone)]
pub struct Grant {
    nonce: String,
    challenge: String,
    redirect_uri: String,
}

impl HostileProvider {
    pub async fn start(clock: Arc<dyn Clock>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { clock, behavior: Mutex::new(ProviderBehavior::right(&issuer)) });
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks.json", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .route("/userinfo", get(userinfo))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { issuer, shared }
    }

    pub fn behavior(&self) -> MutexGuard<'_, ProviderBehavior> {
        self.shared.behavior.lock().unwrap()
    }

    pub fn request_count(&self, path: &str) -> usize {
        self.behavior().requests.iter().filter(|request| **request == path).count()
    }
}

impl ProviderBehavior {
    fn right(issuer: &str) -> Self {
        let key = SigningKey::es256(1);
        Self {
            metadata: json!({
                "issuer": issuer,
                "authorization_endpoint": format!("{issuer}/authorize"),
                "token_endpoint": format!("{issuer}/token"),
                "userinfo_endpoint": format!("{issuer}/userinfo"),
                "jwks_uri": format!("{issuer}/jwks.json"),
                "end_session_endpoint": format!("{issuer}/end?kind=rp"),
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256", "RS256", "Ed25519", "none"],
                "authorization_response_iss_parameter_supported": true,
            }),
            discovery: ScriptedReply::Valid,
            keys: json!({"keys": [key.published()]}),
            key,
            edit_claims: Box::new(|_| {}),
            edit_header: Box::new(|_| {}),
            edit_id_token: Box::new(str::to_owned),
            edit_token_reply: Box::new(|_| {}),
            token_reply: None,
            userinfo: ScriptedReply::Valid,
            edit_callback: Box::new(|_| {}),
            before_signing: None,
            authorization: HashMap::new(),
            requests: Vec::new(),
            authentication: Vec::new(),
            codes: HashMap::new(),
            codes_made: 0,
        }
    }

    pub fn edit_claims(&mut self, edit: impl Fn(&mut Value) + Send + 'static) {
        self.edit_claims = Box::new(edit);
    }

    pub fn edit_header(&mut self, edit: impl Fn(&mut Value) + Send + 'static) {
        self.edit_header = Box::new(edit);
    }

    pub fn edit_callback(&mut self, edit: impl Fn(&mut Parameters) + Send + 'static) {
        self.edit_callback = Box::new(edit);
    }

    /// Signs with `key` and publishes only the keys in `published`.
    pub fn sign_with(&mut self, key: &SigningKey, published: &[&SigningKey]) {
        self.key = key.clone();
        self.keys = json!({"keys": published.iter().map(|key| key.published()).collect::<Vec<_>>()});
    }

    fn id_token(&mut self, issuer: &str, nonce: &str, now_s: i64) -> String {
        if let Some(change) = self.before_signing.take() {
            change(self);
        }
        let mut header = json!({"alg": self.key.alg(), "kid": self.key.kid, "typ": "JWT"});
        let mut claims = json!({
            "iss": issuer, "sub": SUBJECT, "aud": CLIENT_ID, "nonce": nonce,
            "iat": now_s, "exp": now_s + 300, "auth_time": now_s as f64 - 0.5,
            "email": EMAIL, "email_verified": true,
        });
        (self.edit_header)(&mut header);
        (self.edit_claims)(&mut claims);
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.key.sign(&signed));
        (self.edit_id_token)(&format!("{signed}.{signature}"))
    }
}

impl HostileProvider {
    /// A correct logout token for our subject, after these changes.
    pub fn logout_token(&self, edit: impl FnOnce(&mut Value, &mut Value)) -> String {
        let behavior = self.behavior();
        let now_s = self.shared.clock.now().0 / 1000;
        let mut header = json!({"alg": behavior.key.alg(), "kid": behavior.key.kid, "typ": "logout+jwt"});
        let mut claims = json!({
            "iss": self.issuer, "aud": CLIENT_ID, "sub": SUBJECT, "iat": now_s, "exp": now_s + 120, "jti": "logout-1",
            "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
        });
        edit(&mut header, &mut claims);
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&header), part(&claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(behavior.key.sign(&signed));
        format!("{signed}.{signature}")
    }
}

pub fn without(claims: &mut Value, name: &str) {
    claims.as_object_mut().unwrap().remove(name);
}

/// `at_hash` for algorithms with SHA-256.
pub fn half_hash(text: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..16])
}

/// `at_hash` for algorithms with SHA-512.
pub fn half_sha512(text: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&Sha512::digest(text)[..32])
}

async fn respond(scripted: ScriptedReply, valid: Value) -> Response {
    match scripted {
        ScriptedReply::Valid => Json(valid).into_response(),
        ScriptedReply::Json(value) => Json(value).into_response(),
        ScriptedReply::Status(status, value) => {
            (StatusCode::from_u16(status).unwrap(), Json(value)).into_response()
        }
        ScriptedReply::Text(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        ScriptedReply::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        ScriptedReply::Hang => std::future::pending().await,
        ScriptedReply::Huge => {
            let mut value = valid;
            value["padding"] = json!("x".repeat(2_000_000));
            Json(value).into_response()
        }
    }
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Response {
    let (scripted, metadata) = {
        let mut behavior = shared.behavior.lock().unwrap();
        behavior.requests.push("discovery");
        (behavior.discovery.clone(), behavior.metadata.clone())
    };
    respond(scripted, metadata).await
}

async fn keys(State(shared): State<Arc<Shared>>) -> Response {
    let mut behavior = shared.behavior.lock().unwrap();
    behavior.requests.push("keys");
    Json(behavior.keys.clone()).into_response()
}

/// Signs in every user.
async fn authorize(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let mut behavior = shared.behavior.lock().unwrap();
    behavior.requests.push("authorize");
    behavior.authorization = query.clone();
    assert_eq!(query["client_id"], CLIENT_ID);
    assert_eq!(query["response_type"], "code");
    assert_eq!(query["scope"], "openid email");
    assert_eq!(query["code_challenge_method"], "S256");
    behavior.codes_made += 1;
    let code = format!("code-{}", behavior.codes_made);
    let grant = Grant {
        nonce: query["nonce"].clone(),
        challenge: query["code_challenge"].clone(),
        redirect_uri: query["redirect_uri"].clone(),
    };
    behavior.codes.insert(code.clone(), grant.clone());
    let mut parameters = vec![
        ("code".to_owned(), code),
        ("state".to_owned(), query["state"].clone()),
        ("iss".to_owned(), behavior.metadata["issuer"].as_str().unwrap().to_owned()),
    ];
    (behavior.edit_callback)(&mut parameters);
    let back = form_urlencoded::Serializer::new(format!("{}?", grant.redirect_uri))
        .extend_pairs(parameters)
        .finish();
    (StatusCode::SEE_OTHER, [(header::LOCATION, back.replacen("?&", "?", 1))]).into_response()
}

async fn token(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    Form(form): Form<HashMap<String, String>>,
) -> Response {
    let (scripted, reply) = {
        let mut behavior = shared.behavior.lock().unwrap();
        behavior.requests.push("token");
        let authentication = authentication(&headers, &form);
        behavior.authentication.push(authentication);
        let rejected = |error: &str| (ScriptedReply::Status(400, json!({"error": error})), Value::Null);
        match behavior.codes.remove(&form["code"]) {
            _ if authentication == "wrong" => rejected("invalid_client"),
            None => rejected("invalid_grant"),
            Some(grant) if form.get("redirect_uri") != Some(&grant.redirect_uri) => rejected("invalid_grant"),
            Some(grant)
                if BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]))
                    != grant.challenge =>
            {
                rejected("invalid_grant")
            }
            Some(grant) => {
                let issuer = behavior.metadata["issuer"].as_str().unwrap().to_owned();
                let now_s = shared.clock.now().0 / 1000;
                let id_token = behavior.id_token(&issuer, &grant.nonce, now_s);
                let mut reply = json!({
                    "access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 300, "id_token": id_token,
                });
                (behavior.edit_token_reply)(&mut reply);
                (behavior.token_reply.clone().unwrap_or(ScriptedReply::Valid), reply)
            }
        }
    };
    respond(scripted, reply).await
}

fn authentication(headers: &HeaderMap, form: &HashMap<String, String>) -> &'static str {
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let basic = BASE64_STANDARD.encode(format!("{}:{}", encode(CLIENT_ID), encode(CLIENT_SECRET)));
    let sent = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
    let id = form.get("client_id").map(String::as_str);
    match (sent, id, form.get("client_secret").map(String::as_str)) {
        (Some(sent), None, None) if sent == format!("Basic {basic}") => "client_secret_basic",
        (None, Some(CLIENT_ID), Some(CLIENT_SECRET)) => "client_secret_post",
        (None, Some(CLIENT_ID), None) => "none",
        _ => "wrong",
    }
}

async fn userinfo(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let scripted = {
        let mut behavior = shared.behavior.lock().unwrap();
        behavior.requests.push("userinfo");
        assert_eq!(headers[header::AUTHORIZATION], format!("Bearer {ACCESS_TOKEN}"));
        behavior.userinfo.clone()
    };
    respond(scripted, json!({"sub": SUBJECT, "email": EMAIL, "email_verified": true})).await
}
