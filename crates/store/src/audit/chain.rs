//! Appends decisions to the hash chain of the connection that writes them, and reads them. The chain's end is written before
//! the commit (`db/chain_head.rs`).

use crate::audit::types::ChainedAuditRow;
use crate::db::{FromRow, QueryError, Row, Statement, Tx, corrupt};
use crate::ledger::batch::to_db_count;
use chancery_domain::{
    AccessRequest, AuditEvent, AuditRow, AuditedDecision, AuditedEvent, ChainHash, EmailAddress, EventOrigin,
    Principal, RequestId, Role,
};

/// Rows per INSERT, far below both databases' parameter limits.
const MAX_ROWS_PER_STATEMENT: usize = 500;

impl FromRow for AuditRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |what, why: &str| corrupt(what, format!("a row of request {request_id} has {why}"));
        let principal: String = row.get("principal_kind")?;
        let person = match (row.get("person_id")?, principal.parse::<Role>()) {
            (Some(id), Ok(role)) => Some((id, role)),
            (None, Err(_)) => None,
            _ => return Err(corrupt("an audit row's principal", &format!("{principal:?}"))),
        };
        let role = |column| match row.get::<Option<String>>(column)? {
            Some(role) => role.parse::<Role>().map(Some).map_err(|_| corrupt("a role", &role)),
            None => Ok(None),
        };
        let event = match row.get::<Option<String>>("event")? {
            Some(kind) => Some(AuditEvent {
                kind: kind.parse().map_err(|_| corrupt("an audit row's event", &kind))?,
                subject: row.get("subject_id")?,
                old_role: role("old_role")?,
                new_role: role("new_role")?,
            }),
            None => None,
        };
        let at = row.get("at_ms")?;
        let Some(action) = row.get::<Option<String>>("action")? else {
            let by = match person {
                None if principal != Self::VISITOR => {
                    return Err(corrupt("an audit row's principal", &principal));
                }
                person => person,
            };
            let event =
                event.ok_or_else(|| corrupt("an audit row's event", "neither an action nor an event"))?;
            let ip = match row.get::<Option<String>>("ip_address")? {
                Some(ip) => Some(ip.parse().map_err(|_| corrupt("an IP address", &ip))?),
                None => None,
            };
            let origin = EventOrigin { ip, at, request_id: RequestId::from_stored(request_id) };
            return Ok(Self::Event(AuditedEvent { by, event, origin }));
        };
        let by = match person {
            Some((id, role)) => Principal::Person { id, role },
            None if principal == Principal::Operator.kind_str() => Principal::Operator,
            None => return Err(corrupt("an audit row's principal", &format!("{principal:?}"))),
        };
        let decision: String = row.get("decision")?;
        let access_request = AccessRequest {
            by,
            action: action.parse().map_err(|_| corrupt("an audit row's action", &action))?,
            client: row.get("client_id")?,
            at,
            request_id: RequestId::from_stored(request_id.clone()),
        };
        let decision = decision.parse().map_err(|_| corrupt("a decision", &decision))?;
        let invited = match row.get::<Option<String>>("invited_address")? {
            Some(address) => Some(address.parse().map_err(|_| corrupt("an invited address", &address))?),
            None => None,
        };
        Ok(Self::Decision(AuditedDecision { access_request, decision, effect: event, invited }))
    }
}

impl FromRow for ChainedAuditRow {
    const ROW_LABEL_COLUMN: Option<&'static str> = AuditRow::ROW_LABEL_COLUMN;

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let hash = ChainHash(row.hash("hash", "a hash of the audit's chain")?);
        Ok(Self { row: AuditRow::from_row(row)?, position: row.get("position")?, hash })
    }
}

/// Appends the rows, in their order, to the chain of this connection.
pub(crate) fn append_to_chain(tx: &mut Tx<'_>, rows: &[AuditRow]) -> Result<(), QueryError> {
    let writer = tx.audit_writer();
    for rows in rows.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut end = tx.chain_head()?;
        let mut add = Statement::new(
            "INSERT INTO audit_rows (at_ms, principal_kind, person_id, action, client_id, request_id, decision, event, \
             subject_id, old_role, new_role, invited_address, ip_address, writer_id, position, hash) ",
        );
        add.push_values(rows, |row| {
            let position = end.rows;
            end = end.with_row(writer, row);
            let (decided, event) = (row.as_decision(), row.event());
            [
                row.at().0.into(),
                row.principal().into(),
                row.person().map(|person| person.0).into(),
                decided.map(|row| row.access_request.action.as_str()).into(),
                row.client().map(|client| client.0).into(),
                row.request_id().as_str().into(),
                decided.map(|row| row.decision.as_str()).into(),
                event.map(|event| event.kind.as_str()).into(),
                event.and_then(|event| event.subject).map(|person| person.0).into(),
                event.and_then(|event| event.old_role).map(Role::as_str).into(),
                event.and_then(|event| event.new_role).map(Role::as_str).into(),
                row.invited().map(EmailAddress::as_str).into(),
                row.ip().map_or(None::<&str>.into(), |ip| ip.to_string().into()),
                writer.0.into(),
                to_db_count(position).into(),
                end.hash.0.to_vec().into(),
            ]
        });
        add.build().persistent(rows.len() == 1).execute(tx)?;
        tx.set_chain_head(end);
    }
    Ok(())
}
