//! The baseline handler: it reads a client and its entries and returns them to any caller. No session, no policy, no audit.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio_postgres::{Client, NoTls, Statement};

/// The variable with the address to listen on.
pub const LISTEN: &str = "CHANCERY_BARE_LISTEN";

const CLIENT: &str =
    "SELECT c.id, c.name, p.email FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = $1";
const ENTRIES: &str = "SELECT e.id, e.kind, e.at_ms, p.email, e.title, e.text FROM entries e \
    JOIN people p ON p.id = e.author_id WHERE e.client_id = $1 ORDER BY e.at_ms DESC, e.id DESC LIMIT 200";

type ClientRow = (i64, String, String);
type EntryRow = (i64, String, i64, String, String, String);

#[derive(Clone)]
enum Database {
    Sqlite(Arc<Mutex<Connection>>),
    /// With the prepared statements for a client and for its entries.
    Postgres(Arc<Client>, Statement, Statement),
}

pub async fn serve(url: &str) {
    let database = match url.strip_prefix("sqlite:") {
        Some(path) => {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
            Database::Sqlite(Arc::new(Mutex::new(connection)))
        }
        None => {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let [client_row, entry_rows] = [CLIENT, ENTRIES].map(|query| client.prepare(query));
            let (client_row, entry_rows) = (client_row.await.unwrap(), entry_rows.await.unwrap());
            Database::Postgres(Arc::new(client), client_row, entry_rows)
        }
    };
    let listener = tokio::net::TcpListener::bind(std::env::var(LISTEN).unwrap()).await.unwrap();
    let routes = Router::new().route("/clients/{id}", get(read)).with_state(database);
    axum::serve(listener, routes).await.unwrap();
}

fn read_sqlite(connection: &Connection, id: i64) -> rusqlite::Result<(Option<ClientRow>, Vec<EntryRow>)> {
    let client = |row: &Row<'_>| ClientRow::try_from(row);
    let entry = |row: &Row<'_>| EntryRow::try_from(row);
    let client = connection.prepare_cached(CLIENT)?.query_row([id], client).optional()?;
    let entries = connection.prepare_cached(ENTRIES)?.query_map([id], entry)?.collect::<Result<_, _>>()?;
    Ok((client, entries))
}

async fn read(State(database): State<Database>, Path(id): Path<i64>) -> Result<Json<Value>, StatusCode> {
    let (client, entries) = match database {
        Database::Sqlite(connection) => {
            let read = move || read_sqlite(&connection.lock().unwrap(), id).unwrap();
            tokio::task::spawn_blocking(read).await.unwrap()
        }
        Database::Postgres(session, client, entries) => {
            let client = session.query_opt(&client, &[&id]).await.unwrap();
            let entries = session.query(&entries, &[&id]).await.unwrap();
            let entry = |row: tokio_postgres::Row| {
                (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5))
            };
            let client = client.map(|row| (row.get(0), row.get(1), row.get(2)));
            (client, entries.into_iter().map(entry).collect::<Vec<EntryRow>>())
        }
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
