//! `GET /audit.csv`: all rows that match the filters, newest first. The file is read page by page while it is sent, so its length
//! costs no memory. Rows that are written during the download are not included.

use super::filters::Filters;
use super::{changes, descriptions};
use crate::error::PageError;
use crate::export_quota::count_export;
use crate::file_response::{Chunk, file_response};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{Query, State};
use axum::response::Response;
use chancery_client_files::write_csv_line;
use chancery_domain::{Currency, Day, PersonRef, Role};
use chancery_policy::{FirmResource, Permit, ReadAudit};
use chancery_store::{AUDIT_ROWS_PER_PAGE, AuditCursor, AuditListRow, AuditQuery, RecordChange};
use futures_util::stream;
use std::io;
use std::sync::Arc;

const COLUMNS: [&str; 15] = [
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
    "client_name",
    "changes",
];

/// Position in the download: the next page to read.
struct CsvCursor {
    portal: Arc<Portal>,
    signed_in: SignedIn,
    permit: Permit<ReadAudit>,
    query: AuditQuery,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadAudit>(&signed_in, FirmResource).await?;
    let filters = Filters::read(&pairs, &signed_in.local_time(&portal));
    // The file always starts at the newest row.
    let query = AuditQuery { cursor: None, ..filters.query.clone() };
    let first = portal.store.audit.read_audit(&permit, &query).await?;
    if let Some(error) = filters.error() {
        return Err(error.into());
    }
    count_export(&portal, &signed_in).await?;
    let changes = portal.store.audit.read_changes(&permit, &first).await?;
    let name = format!("audit-{}.csv", Day::containing(portal.clock.now()));
    let mut head = Vec::new();
    write_csv_line(&mut head, COLUMNS)?;
    let currency = portal.settings.invoice_terms.currency;
    write_lines(&mut head, (&first, &changes), currency)?;
    let rest = next_page_query(&first, &query).map(|query| CsvCursor { portal, signed_in, permit, query });
    let pages = stream::try_unfold(rest, |rest| async {
        match rest {
            None => Ok(None),
            Some(rest) => rest.read().await.map(Some),
        }
    });
    Ok(file_response("text/csv; charset=utf-8; header=present", &name, head, pages))
}

impl CsvCursor {
    async fn read(self) -> Result<(Chunk, Option<Self>), io::Error> {
        let Self { portal, signed_in, permit, query } = self;
        // A slow download may take hours. It ends if the person signs out or is no longer a partner.
        let signed_in = signed_in.refresh(&portal).await.map_err(|error| io::Error::other(error.code))?;
        if portal.policy.decide::<ReadAudit>(&signed_in.authz_request(&portal), FirmResource).is_err() {
            return Err(io::Error::other("forbidden"));
        }
        let lines = portal.store.audit.read_audit_page(&permit, &query).await.map_err(io::Error::other)?;
        let changes = portal.store.audit.read_changes(&permit, &lines).await.map_err(io::Error::other)?;
        let mut chunk = Vec::new();
        write_lines(&mut chunk, (&lines, &changes), portal.settings.invoice_terms.currency)?;
        let rest = next_page_query(&lines, &query).map(|query| Self { portal, signed_in, permit, query });
        Ok((chunk, rest))
    }
}

/// The query for the next page, or `None` after the last.
fn next_page_query(lines: &[AuditListRow], query: &AuditQuery) -> Option<AuditQuery> {
    let last = lines.last().filter(|_| lines.len() >= AUDIT_ROWS_PER_PAGE as usize)?;
    Some(AuditQuery { cursor: Some(AuditCursor::Before(last.position)), ..query.clone() })
}

fn write_lines(
    out: &mut Chunk,
    (lines, changes): (&[AuditListRow], &[RecordChange]),
    currency: Currency,
) -> io::Result<()> {
    for line in lines {
        let (row, email) = (&line.row, |person: &Option<PersonRef>| {
            person.as_ref().map(|person| person.email.to_string()).unwrap_or_default()
        });
        let (decided, event) = (row.as_decision(), row.event());
        let cells = [
            row.at().to_iso(),
            email(&line.person),
            row.principal().to_owned(),
            decided.map(|row| row.access_request.action.to_string()).unwrap_or_default(),
            descriptions::describe_with_result(line),
            row.client().map(|client| client.to_string()).unwrap_or_default(),
            decided.map_or("", |row| row.decision.as_str()).to_owned(),
            row.request_id().to_string(),
            event.map(|event| event.kind.to_string()).unwrap_or_default(),
            row.invited().map_or_else(|| email(&line.subject), |invited| invited.to_string()),
            event.and_then(|event| event.old_role).map_or("", Role::as_str).to_owned(),
            event.and_then(|event| event.new_role).map_or("", Role::as_str).to_owned(),
            row.ip().map(|ip| ip.to_string()).unwrap_or_default(),
            line.client_name.as_ref().map(ToString::to_string).unwrap_or_default(),
            changes::as_text(line, changes, currency),
        ];
        write_csv_line(out, cells.each_ref().map(String::as_str))?;
    }
    Ok(())
}
