//! `GET /audit.csv`: all rows that fit the filters, newest first, as a file for spreadsheets. It is read page by page while it
//! is sent, so that its length costs no memory; rows that are written meanwhile are not in it.

use super::filters::Filters;
use super::words;
use crate::error::PageError;
use crate::file_reply::{Chunk, file_reply};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::response::Response;
use chancery_client_files::write_csv_line;
use chancery_domain::{Day, PersonRef, Role};
use chancery_policy::{Permit, ReadAudit, TheFirm};
use chancery_store::{AUDIT_ROWS_PER_PAGE, AuditLine, AuditQuery, AuditTurn};
use futures_util::stream;
use std::io;
use std::sync::Arc;

const COLUMNS: [&str; 13] = [
    "at",
    "person",
    "role",
    "action",
    "words",
    "client",
    "decision",
    "request_id",
    "event",
    "subject",
    "old_role",
    "new_role",
    "ip_address",
];

/// Where the file is: the page after this one is still to be read.
struct Rest {
    portal: Arc<Portal>,
    who: SignedIn,
    permit: Permit<ReadAudit>,
    query: AuditQuery,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAudit>(&signed_in, TheFirm).await?;
    let filters = Filters::read(&pairs);
    // A file is all of it, from the newest row on.
    let query = AuditQuery { turn: None, ..filters.query.clone() };
    let first = portal.store.audit.read_audit(&permit, &query).await?;
    if let Some(error) = filters.error() {
        return Err(error.into());
    }
    let name = format!("audit-{}.csv", Day::of(portal.clock.now()));
    let mut head = Vec::new();
    write_csv_line(&mut head, COLUMNS)?;
    write_lines(&mut head, &first)?;
    let rest = next_of(&first, &query).map(|query| Rest { portal, who: signed_in, permit, query });
    let pages = stream::try_unfold(rest, |rest| async {
        match rest {
            None => Ok(None),
            Some(rest) => rest.read().await.map(Some),
        }
    });
    Ok(file_reply("text/csv; charset=utf-8; header=present", &name, head, pages))
}

impl Rest {
    async fn read(self) -> Result<(Chunk, Option<Self>), io::Error> {
        let Self { portal, who, permit, query } = self;
        // A slow reader may take hours; whoever is no partner any more, or signed out, gets no more.
        let who = who.again(&portal).await.map_err(|error| io::Error::other(error.code))?;
        if portal.policy.decide::<ReadAudit>(&who.asking(&portal), TheFirm).is_err() {
            return Err(io::Error::other("forbidden"));
        }
        let lines = portal.store.audit.read_more_audit(&permit, &query).await.map_err(io::Error::other)?;
        let mut chunk = Vec::new();
        write_lines(&mut chunk, &lines)?;
        let rest = next_of(&lines, &query).map(|query| Self { portal, who, permit, query });
        Ok((chunk, rest))
    }
}

/// The query of the next page, unless this was the last.
fn next_of(lines: &[AuditLine], query: &AuditQuery) -> Option<AuditQuery> {
    let last = lines.last().filter(|_| lines.len() >= AUDIT_ROWS_PER_PAGE as usize)?;
    Some(AuditQuery { turn: Some(AuditTurn::Before(last.place)), ..query.clone() })
}

fn write_lines(out: &mut Chunk, lines: &[AuditLine]) -> io::Result<()> {
    for line in lines {
        let (row, email) = (&line.row, |person: &Option<PersonRef>| {
            person.as_ref().map(|person| person.email.to_string()).unwrap_or_default()
        });
        let (decided, event) = (row.as_decision(), row.event());
        let cells = [
            row.at().to_iso(),
            email(&line.person),
            row.principal().to_owned(),
            decided.map(|row| row.asked.action.to_string()).unwrap_or_default(),
            words::in_words(line),
            row.client().map(|client| client.to_string()).unwrap_or_default(),
            decided.map_or("", |row| row.decision.as_str()).to_owned(),
            row.request_id().to_string(),
            event.map(|event| event.kind.to_string()).unwrap_or_default(),
            email(&line.subject),
            event.and_then(|event| event.old_role).map_or("", Role::as_str).to_owned(),
            event.and_then(|event| event.new_role).map_or("", Role::as_str).to_owned(),
            row.ip().map(|ip| ip.to_string()).unwrap_or_default(),
        ];
        write_csv_line(out, cells.each_ref().map(String::as_str))?;
    }
    Ok(())
}
