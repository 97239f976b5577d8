//! Letter templates: read by everyone who writes letters, changed with a permit. They contain nothing about any client.

use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::clients::types::SaveOutcome;
use crate::db::{Db, QueryError, Tx, from_row, query};
use chancery_domain::{
    EntryText, EntryTitle, LetterTemplateId, MAX_LETTER_TEMPLATES, PersonRef, UnixMillis, Version,
};
use chancery_policy::{ManageTemplates, Permit};

const LIST: &str = "SELECT t.id, t.title, t.text, t.version, t.changed_by, p.email AS changed_by_email, t.changed_at_ms \
    FROM letter_templates t LEFT JOIN people p ON p.id = t.changed_by ORDER BY t.id";
const FIND: &str = "SELECT t.id, t.title, t.text, t.version, t.changed_by, p.email AS changed_by_email, t.changed_at_ms \
    FROM letter_templates t LEFT JOIN people p ON p.id = t.changed_by WHERE t.id = $1";
const COUNT: &str = "SELECT COUNT(*) FROM letter_templates";
const CREATE: &str = "INSERT INTO letter_templates (title, text, version, changed_by, changed_at_ms) \
    VALUES ($1, $2, $3, $4, $5) RETURNING id";
const CHANGE: &str = "UPDATE letter_templates SET title = $3, text = $4, version = version + 1, changed_by = $5, \
    changed_at_ms = $6 WHERE id = $1 AND version = $2";
const DELETE: &str = "DELETE FROM letter_templates WHERE id = $1";

/// A letter to start from. Its title becomes the letter's title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterTemplate {
    pub id: LetterTemplateId,
    pub title: EntryTitle,
    pub text: EntryText,
    pub version: Version,
    /// `None` for the command line.
    pub changed_by: Option<PersonRef>,
    pub changed_at: UnixMillis,
}

/// Title and text, with checked placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterTemplateContent {
    pub title: EntryTitle,
    pub text: EntryText,
}

/// The texts are for logs; the portal writes its own.
#[derive(Debug, thiserror::Error)]
pub enum LetterTemplateError {
    #[error("there are {max} letter templates; delete one first", max = MAX_LETTER_TEMPLATES)]
    TooManyTemplates,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for LetterTemplateError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}

from_row!(LetterTemplate {
    id,
    title,
    text,
    version,
    changed_by: optional_person("changed_by", "changed_by_email"),
    changed_at: "changed_at_ms"
});

fn create(
    tx: &mut Tx<'_>,
    permit: &Permit<ManageTemplates>,
    content: &LetterTemplateContent,
) -> Result<LetterTemplateId, LetterTemplateError> {
    let existing: u64 = query(COUNT).fetch_one(tx)?;
    if existing >= MAX_LETTER_TEMPLATES {
        return Err(LetterTemplateError::TooManyTemplates);
    }
    let create = query(CREATE)
        .bind(content.title.as_str())
        .bind(content.text.as_str())
        .bind(Version::FIRST.0)
        .bind(permit.by().person().map(|person| person.0))
        .bind(permit.access_request().at.0);
    let id: i64 = create.fetch_one(tx)?;
    Ok(LetterTemplateId(id))
}

fn change(
    tx: &mut Tx<'_>,
    permit: &Permit<ManageTemplates>,
    (id, version): (LetterTemplateId, Version),
    content: &LetterTemplateContent,
) -> Result<SaveOutcome<LetterTemplate>, LetterTemplateError> {
    let change = query(CHANGE)
        .bind(id.0)
        .bind(version.0)
        .bind(content.title.as_str())
        .bind(content.text.as_str())
        .bind(permit.by().person().map(|person| person.0))
        .bind(permit.access_request().at.0);
    let is_changed = change.execute(tx)? > 0;
    let current: Option<LetterTemplate> = query(FIND).bind(id.0).fetch_optional(tx)?;
    Ok(match current {
        None => SaveOutcome::NotFound,
        Some(current) if is_changed => SaveOutcome::Saved(current),
        Some(current) => SaveOutcome::Conflict(current),
    })
}

#[derive(Clone)]
pub struct LetterTemplates {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl LetterTemplates {
    /// By title.
    pub async fn list_letter_templates(&self) -> Result<Vec<LetterTemplate>, LetterTemplateError> {
        let mut templates: Vec<LetterTemplate> = self.db.fetch_all(query(LIST)).await?;
        templates.sort_by_cached_key(|template| (template.title.as_str().to_lowercase(), template.id));
        Ok(templates)
    }

    pub async fn letter_template(
        &self,
        id: LetterTemplateId,
    ) -> Result<Option<LetterTemplate>, LetterTemplateError> {
        Ok(self.db.fetch_optional(query(FIND).bind(id.0)).await?)
    }

    /// Records that the person may see the page on which templates are changed.
    pub async fn record_template_decision(
        &self,
        permit: Permit<ManageTemplates>,
    ) -> Result<(), LetterTemplateError> {
        Ok(self.audited.record(vec![permit.to_audit_row()]).await?)
    }

    pub async fn create_letter_template(
        &self,
        permit: Permit<ManageTemplates>,
        content: &LetterTemplateContent,
    ) -> Result<LetterTemplateId, LetterTemplateError> {
        let content = content.clone();
        self.audited.run(vec![permit.to_audit_row()], move |tx| create(tx, &permit, &content)).await
    }

    /// Saves the template if its version is still the one that the editor saw.
    pub async fn change_letter_template(
        &self,
        permit: Permit<ManageTemplates>,
        seen: (LetterTemplateId, Version),
        content: &LetterTemplateContent,
    ) -> Result<SaveOutcome<LetterTemplate>, LetterTemplateError> {
        let content = content.clone();
        self.audited.run(vec![permit.to_audit_row()], move |tx| change(tx, &permit, seen, &content)).await
    }

    /// False if there is no such template. Letters that were started from it stay as they are.
    pub async fn delete_letter_template(
        &self,
        permit: Permit<ManageTemplates>,
        id: LetterTemplateId,
    ) -> Result<bool, LetterTemplateError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| Ok(query(DELETE).bind(id.0).execute(tx)? > 0))
            .await
    }
}
