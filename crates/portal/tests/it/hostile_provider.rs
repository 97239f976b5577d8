//! An identity provider on a port of its own that keeps every rule until a test tells it which one to break. It is itself
//! strict with the portal: PKCE, redirect address, client secret and single use of codes are checked.

use crate::signing::SigningKey;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use chancery_domain::Clock;
use openidconnect::url::form_urlencoded;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub const CLIENT_ID: &str = "chancery-portal";
/// With letters that Basic authentication must encode.
pub const CLIENT_SECRET: &str = "s3cret: with/odd+letters%";
pub const ACCESS_TOKEN: &str = "access-token-of-the-hostile-provider";
pub const SUBJECT: &str = "subject-7";
pub const EMAIL: &str = "ada@example.com";

type Edit<T = Value> = Box<dyn Fn(&mut T) + Send>;
type Change = Box<dyn FnOnce(&mut Ways) + Send>;
/// Names and values, as a query has them.
pub type Parameters = Vec<(String, String)>;

pub struct HostileProvider {
    pub issuer: String,
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    ways: Mutex<Ways>,
}

/// What it does; a test changes what it is about.
pub struct Ways {
    pub metadata: Value,
    pub discovery: Answer,
    pub key: SigningKey,
    /// The key set.
    pub keys: Value,
    pub edit_claims: Edit,
    pub edit_header: Edit,
    /// Takes the token as it would be sent.
    pub edit_id_token: Box<dyn Fn(String) -> String + Send>,
    pub edit_token_reply: Edit,
    /// In place of what the token endpoint would say.
    pub token_answer: Option<Answer>,
    pub userinfo: Answer,
    /// Parameters of the callback.
    pub edit_callback: Edit<Parameters>,
    pub before_signing: Option<Change>,
    /// Paths, as they were asked for.
    pub asked: Vec<&'static str>,
    /// How the portal authenticated at the token endpoint.
    pub authentication: Vec<&'static str>,
    codes: HashMap<String, Grant>,
    codes_made: u32,
}

#[derive(Clone)]
pub enum Answer {
    /// What the rules say.
    Right,
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
        let shared = Arc::new(Shared { clock, ways: Mutex::new(Ways::right(&issuer)) });
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

    pub fn ways(&self) -> MutexGuard<'_, Ways> {
        self.shared.ways.lock().unwrap()
    }

    pub fn times_asked(&self, path: &str) -> usize {
        self.ways().asked.iter().filter(|asked| **asked == path).count()
    }
}

impl Ways {
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
            discovery: Answer::Right,
            keys: json!({"keys": [key.published()]}),
            key,
            edit_claims: Box::new(|_| {}),
            edit_header: Box::new(|_| {}),
            edit_id_token: Box::new(|token| token),
            edit_token_reply: Box::new(|_| {}),
            token_answer: None,
            userinfo: Answer::Right,
            edit_callback: Box::new(|_| {}),
            before_signing: None,
            asked: Vec::new(),
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

    /// Signs with this key and publishes these.
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
        (self.edit_id_token)(format!("{signed}.{signature}"))
    }
}

pub fn without(claims: &mut Value, name: &str) {
    claims.as_object_mut().unwrap().remove(name);
}

/// What goes into `at_hash` with an algorithm of SHA-256.
pub fn half_hash(text: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(text)[..16])
}

async fn answer(answer: Answer, right: Value) -> Response {
    match answer {
        Answer::Right => Json(right).into_response(),
        Answer::Json(value) => Json(value).into_response(),
        Answer::Status(status, value) => (StatusCode::from_u16(status).unwrap(), Json(value)).into_response(),
        Answer::Text(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Answer::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Answer::Hang => std::future::pending().await,
        Answer::Huge => {
            let mut value = right;
            value["padding"] = json!("x".repeat(2_000_000));
            Json(value).into_response()
        }
    }
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Response {
    let (way, metadata) = {
        let mut ways = shared.ways.lock().unwrap();
        ways.asked.push("discovery");
        (ways.discovery.clone(), ways.metadata.clone())
    };
    answer(way, metadata).await
}

async fn keys(State(shared): State<Arc<Shared>>) -> Response {
    let mut ways = shared.ways.lock().unwrap();
    ways.asked.push("keys");
    Json(ways.keys.clone()).into_response()
}

/// Whoever comes is signed in.
async fn authorize(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let mut ways = shared.ways.lock().unwrap();
    ways.asked.push("authorize");
    assert_eq!(query["client_id"], CLIENT_ID);
    assert_eq!(query["response_type"], "code");
    assert_eq!(query["scope"], "openid email");
    assert_eq!(query["code_challenge_method"], "S256");
    ways.codes_made += 1;
    let code = format!("code-{}", ways.codes_made);
    let grant = Grant {
        nonce: query["nonce"].clone(),
        challenge: query["code_challenge"].clone(),
        redirect_uri: query["redirect_uri"].clone(),
    };
    ways.codes.insert(code.clone(), grant.clone());
    let mut parameters = vec![
        ("code".to_owned(), code),
        ("state".to_owned(), query["state"].clone()),
        ("iss".to_owned(), ways.metadata["issuer"].as_str().unwrap().to_owned()),
    ];
    (ways.edit_callback)(&mut parameters);
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
    let (way, reply) = {
        let mut ways = shared.ways.lock().unwrap();
        ways.asked.push("token");
        let authentication = authentication(&headers, &form);
        ways.authentication.push(authentication);
        let refused = |error: &str| (Answer::Status(400, json!({"error": error})), Value::Null);
        match ways.codes.remove(&form["code"]) {
            _ if authentication == "wrong" => refused("invalid_client"),
            None => refused("invalid_grant"),
            Some(grant) if form.get("redirect_uri") != Some(&grant.redirect_uri) => refused("invalid_grant"),
            Some(grant)
                if BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]))
                    != grant.challenge =>
            {
                refused("invalid_grant")
            }
            Some(grant) => {
                let issuer = ways.metadata["issuer"].as_str().unwrap().to_owned();
                let now_s = shared.clock.now().0 / 1000;
                let id_token = ways.id_token(&issuer, &grant.nonce, now_s);
                let mut reply = json!({
                    "access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 300, "id_token": id_token,
                });
                (ways.edit_token_reply)(&mut reply);
                (ways.token_answer.clone().unwrap_or(Answer::Right), reply)
            }
        }
    };
    answer(way, reply).await
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
    let way = {
        let mut ways = shared.ways.lock().unwrap();
        ways.asked.push("userinfo");
        assert_eq!(headers[header::AUTHORIZATION], format!("Bearer {ACCESS_TOKEN}"));
        ways.userinfo.clone()
    };
    answer(way, json!({"sub": SUBJECT, "email": EMAIL, "email_verified": true})).await
}
