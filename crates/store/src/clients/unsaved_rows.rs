//! Rows of unsaved text: what a person typed into a form of a record and has not saved yet. It is stored like the text of
//! the record itself. Who may read and write it is decided in `unsaved_texts`.

use crate::db::{Query, QueryError, Tx, from_row, query};
use chancery_domain::{ClientId, EntryId, EntryKind, PersonId, TokenHash, UnixMillis};
use std::time::Duration;

/// Longest stored text, as JSON: the longest entry with its texts before earlier drafts.
pub const MAX_UNSAVED_TEXT_BYTES: usize = 512 * 1024;
/// Forms with unsaved text per person. The oldest is deleted for a new one.
pub const MAX_UNSAVED_TEXTS_PER_PERSON: u32 = 50;
/// Older text is deleted.
pub const UNSAVED_TEXT_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Forms that were opened and in which nothing was typed are deleted after this time.
pub const OPEN_FORM_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long after its session last saved or opened a form that session may still deliver text for it, once it has ended.
pub const ENDED_SESSION_WINDOW: Duration = OPEN_FORM_LIFETIME;

/// A form of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsavedForm {
    Details,
    NewEntry(EntryKind),
    Entry(EntryId),
}

/// Text to store.
#[derive(Clone, Copy, Debug)]
pub struct NewUnsavedText<'a> {
    pub form: UnsavedForm,
    /// The session of the browser in which the form is open.
    pub session: TokenHash,
    /// JSON, at most `MAX_UNSAVED_TEXT_BYTES`.
    pub fields: &'a str,
}

/// Stored text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsavedText {
    pub fields: String,
    pub saved_at: UnixMillis,
}

impl UnsavedForm {
    fn name(self) -> &'static str {
        match self {
            Self::Details => "details",
            Self::NewEntry(kind) => kind.as_str(),
            Self::Entry(_) => "entry",
        }
    }

    fn entry_id(self) -> i64 {
        match self {
            Self::Details | Self::NewEntry(_) => 0,
            Self::Entry(entry) => entry.0,
        }
    }
}

from_row!(UnsavedText { fields, saved_at: "saved_at_ms" });

/// A person's form of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormOfPerson {
    pub(crate) person: PersonId,
    pub(crate) client: ClientId,
    pub(crate) form: UnsavedForm,
}

const FIND: &str = "SELECT fields, saved_at_ms FROM unsaved_texts \
    WHERE person_id = $1 AND client_id = $2 AND form = $3 AND entry_id = $4";
const PUT: &str = "INSERT INTO unsaved_texts \
    (person_id, client_id, form, entry_id, session_hash, session_at_ms, fields, saved_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7, $6) \
    ON CONFLICT (person_id, client_id, form, entry_id) DO UPDATE SET session_hash = excluded.session_hash, \
    session_at_ms = excluded.session_at_ms, fields = excluded.fields, saved_at_ms = excluded.saved_at_ms";
const SET_SESSION: &str = "UPDATE unsaved_texts SET session_hash = $5, session_at_ms = $6 \
    WHERE person_id = $1 AND client_id = $2 AND form = $3 AND entry_id = $4";
const DELETE: &str =
    "DELETE FROM unsaved_texts WHERE person_id = $1 AND client_id = $2 AND form = $3 AND entry_id = $4";
const DELETE_OF_PERSON: &str = "DELETE FROM unsaved_texts WHERE person_id = $1";
/// Forms without text go first.
const TRIM: &str = "DELETE FROM unsaved_texts WHERE person_id = $1 AND (client_id, form, entry_id) NOT IN \
    (SELECT client_id, form, entry_id FROM unsaved_texts WHERE person_id = $1 \
    ORDER BY (fields <> '') DESC, saved_at_ms DESC, client_id, form, entry_id LIMIT $2)";

fn bind_form(query: Query, of: FormOfPerson) -> Query {
    query.bind(of.person.0).bind(of.client.0).bind(of.form.name()).bind(of.form.entry_id())
}

/// `None` if nothing was typed.
pub(crate) fn find_unsaved_text(
    tx: &mut Tx<'_>,
    of: FormOfPerson,
) -> Result<Option<UnsavedText>, QueryError> {
    let found: Option<UnsavedText> = bind_form(query(FIND), of).fetch_optional(tx)?;
    Ok(found.filter(|text| !text.fields.is_empty()))
}

/// Adds or replaces the text, and deletes the person's oldest if there are too many.
pub(crate) fn put_unsaved_text(
    tx: &mut Tx<'_>,
    of: FormOfPerson,
    session: TokenHash,
    fields: &str,
    at: UnixMillis,
) -> Result<(), QueryError> {
    let put = bind_form(query(PUT), of).bind(session.0.to_vec()).bind(at.0).bind(fields);
    put.execute(tx)?;
    query(TRIM).bind(of.person.0).bind(i64::from(MAX_UNSAVED_TEXTS_PER_PERSON)).execute(tx)?;
    Ok(())
}

/// Says that the form is open in the browser with this session now.
pub(crate) fn set_form_session(
    tx: &mut Tx<'_>,
    of: FormOfPerson,
    session: TokenHash,
    at: UnixMillis,
) -> Result<(), QueryError> {
    bind_form(query(SET_SESSION), of).bind(session.0.to_vec()).bind(at.0).execute(tx)?;
    Ok(())
}

pub(crate) fn delete_unsaved_text(tx: &mut Tx<'_>, of: FormOfPerson) -> Result<(), QueryError> {
    bind_form(query(DELETE), of).execute(tx)?;
    Ok(())
}

pub(crate) fn delete_unsaved_texts_of(tx: &mut Tx<'_>, person: PersonId) -> Result<(), QueryError> {
    query(DELETE_OF_PERSON).bind(person.0).execute(tx)?;
    Ok(())
}

/// A form that this session opened lately, unless it is of a letter that was sent meanwhile. Text that arrives after the
/// session ended does not renew the time.
macro_rules! opened_by_session {
    () => {
        "WHERE person_id = $1 AND client_id = $2 AND form = $3 AND entry_id = $4 \
        AND session_hash = $5 AND session_at_ms >= $6 \
        AND person_id IN (SELECT id FROM people WHERE removed_at_ms IS NULL) \
        AND entry_id NOT IN (SELECT s.entry_id FROM sent_letters s WHERE s.entry_id = $4)"
    };
}

const FIND_OPENED: &str = concat!("SELECT person_id FROM unsaved_texts ", opened_by_session!());
const SAVE_AFTER_SESSION: &str =
    concat!("UPDATE unsaved_texts SET fields = $7, saved_at_ms = $8 ", opened_by_session!());
const DELETE_EXPIRED: &str = "DELETE FROM unsaved_texts WHERE (person_id, client_id, form, entry_id) IN \
    (SELECT person_id, client_id, form, entry_id FROM unsaved_texts \
    WHERE saved_at_ms < $1 OR (saved_at_ms < $2 AND fields = '') ORDER BY saved_at_ms LIMIT $3)";

/// The person, if this session opened the form lately.
pub(crate) fn find_opened_by_session(of: FormOfPerson, session: TokenHash, now: UnixMillis) -> Query {
    bind_opened(query(FIND_OPENED), of, session, now)
}

/// Replaces the text of a form that this session opened lately.
pub(crate) fn save_after_session(
    of: FormOfPerson,
    session: TokenHash,
    fields: &str,
    now: UnixMillis,
) -> Query {
    bind_opened(query(SAVE_AFTER_SESSION), of, session, now).bind(fields).bind(now.0)
}

fn bind_opened(query: Query, of: FormOfPerson, session: TokenHash, now: UnixMillis) -> Query {
    bind_form(query, of).bind(session.0.to_vec()).bind(before(now, ENDED_SESSION_WINDOW))
}

/// Deletes up to `limit` rows.
pub(crate) fn delete_expired(now: UnixMillis, limit: u32) -> Query {
    let delete = query(DELETE_EXPIRED).bind(before(now, UNSAVED_TEXT_LIFETIME));
    delete.bind(before(now, OPEN_FORM_LIFETIME)).bind(i64::from(limit))
}

fn before(now: UnixMillis, time: Duration) -> i64 {
    now.0.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}
