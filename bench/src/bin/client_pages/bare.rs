//! The baseline handler: it reads a client and its entries and returns them to any caller. No session, no policy, no audit.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};

/// The variable with the address to listen on.
pub const LISTEN: &str = "CHANCERY_BARE_LISTEN";

/// The size of the store's read pool.
const CONNECTIONS: u32 = 4;

const CLIENT: &str =
    "SELECT c.id, c.name, p.email FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = $1";
const ENTRIES: &str = "SELECT e.id, e.kind, e.at_ms, p.email, e.title, e.text FROM entries e \
    JOIN people p ON p.id = e.author_id WHERE e.client_id = $1 ORDER BY e.at_ms DESC, e.id DESC LIMIT 200";

type ClientRow = (i64, String, String);
type EntryRow = (i64, String, i64, String, String, String);

#[derive(Clone)]
enum Database {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

pub async fn serve(url: &str) {
    let database = match url.strip_prefix("sqlite:") {
        Some(path) => {
            let options = SqliteConnectOptions::new().filename(path).read_only(true);
            let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(options).await;
            Database::Sqlite(pool.unwrap())
        }
        None => {
            Database::Postgres(PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await.unwrap())
        }
    };
    let listener = tokio::net::TcpListener::bind(std::env::var(LISTEN).unwrap()).await.unwrap();
    let routes = Router::new().route("/clients/{id}", get(read)).with_state(database);
    axum::serve(listener, routes).await.unwrap();
}

async fn read(State(database): State<Database>, Path(id): Path<i64>) -> Result<Json<Value>, StatusCode> {
    let (client, entries): (Option<ClientRow>, Vec<EntryRow>) = match &database {
        Database::Sqlite(pool) => (
            sqlx::query_as(CLIENT).bind(id).fetch_optional(pool).await.unwrap(),
            sqlx::query_as(ENTRIES).bind(id).fetch_all(pool).await.unwrap(),
        ),
        Database::Postgres(pool) => (
            sqlx::query_as(CLIENT).bind(id).fetch_optional(pool).await.unwrap(),
            sqlx::query_as(ENTRIES).bind(id).fetch_all(pool).await.unwrap(),
        ),
    };
    let (id, name, owner) = client.ok_or(StatusCode::NOT_FOUND)?;
    let of_kind = |expected: &str| -> Vec<Value> {
        let matching = entries.iter().filter(|(_, kind, ..)| kind == expected);
        matching.map(|(id, _, at, author, title, text)| {
            json!({ "id": id, "at": at, "author": author, "title": title, "text": text })
        })
        .collect()
    };
    Ok(Json(json!({
        "id": id,
        "name": name,
        "owner": owner,
        "meeting_notes": of_kind("meeting_note"),
        "billing_disputes": of_kind("billing_dispute"),
        "draft_letters": of_kind("draft_letter"),
    })))
}
