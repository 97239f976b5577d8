//! `GET /templates`: the firm's letter templates, for partners, with the form of a new one, which `POST /templates`
//! creates.

use super::template_form::{PlaceholderRow, TemplateInput, audited_form, placeholders};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime};
use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::LetterTemplateId;
use chancery_policy::{FirmResource, ManageTemplates};
use chancery_store::LetterTemplate;
use chancery_web::{ErrorPage, Form, PostedForm, page};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "letters/templates.html")]
struct TemplatesPage<'a> {
    frame: Frame<'a>,
    templates: Vec<TemplateRow>,
    form: Form<TemplateInput>,
    placeholders: Vec<PlaceholderRow>,
    done: Option<&'static str>,
}

struct TemplateRow {
    id: LetterTemplateId,
    title: String,
    /// `None` for the command line.
    changed_by: Option<DisplayPerson>,
    changed_at: DisplayTime,
}

impl TemplateRow {
    fn new(template: &LetterTemplate, names: &PersonNames, local: &LocalTime) -> Self {
        Self {
            id: template.id,
            title: template.title.to_string(),
            changed_by: template.changed_by.as_ref().map(|person| names.of_ref(person)),
            changed_at: DisplayTime::new(template.changed_at, local),
        }
    }
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageTemplates>(&signed_in, FirmResource).await?;
    portal.store.letter_templates.record_template_decision(permit).await?;
    let done = query.get("done").and_then(|done| notice_text(done));
    render(&portal, &signed_in, Form::default(), done, StatusCode::OK).await
}

pub(crate) async fn create(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    form: Result<PostedForm<TemplateInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageTemplates>(&signed_in, FirmResource).await?;
    let (permit, typed) = audited_form(&portal, permit, form).await?;
    match typed.read() {
        Ok(content) => {
            portal.store.letter_templates.create_letter_template(permit, &content).await?;
            Ok(Redirect::to("/templates?done=created").into_response())
        }
        Err(problems) => {
            portal.store.letter_templates.record_template_decision(permit).await?;
            let form = Form { typed, problems };
            render(&portal, &signed_in, form, None, StatusCode::UNPROCESSABLE_ENTITY).await
        }
    }
}

async fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    form: Form<TemplateInput>,
    done: Option<&'static str>,
    status: StatusCode,
) -> Result<Response, PageError> {
    let templates = portal.store.letter_templates.list_letter_templates().await?;
    let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
    let shown = TemplatesPage {
        frame: Frame::new(portal, signed_in, Section::Team),
        templates: templates.iter().map(|template| TemplateRow::new(template, &names, &local)).collect(),
        form,
        placeholders: placeholders(),
        done,
    };
    Ok(page(status, &shown)?)
}

/// Confirms the change that redirected here.
fn notice_text(done: &str) -> Option<&'static str> {
    match done {
        "created" => Some("Template created."),
        "saved" => Some("Template saved."),
        "deleted" => Some("Template deleted. Letters that were started from it stay as they are."),
        _ => None,
    }
}
