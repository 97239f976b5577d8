//! `GET` and `POST /templates/{template}`: edits a letter template, for partners. `POST …/delete` deletes it.

use super::template_form::{PlaceholderRow, TemplateInput, audited_form, placeholders};
use crate::error::{PageError, template_not_found};
use crate::frame::{Frame, Section};
use crate::path::TemplateNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::LetterTemplateId;
use chancery_policy::{FirmResource, ManageTemplates};
use chancery_store::{LetterTemplate, SaveOutcome};
use chancery_web::{ErrorPage, Form, PostedForm, Problems, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "letters/template.html")]
struct TemplatePage<'a> {
    frame: Frame<'a>,
    id: LetterTemplateId,
    form: Form<TemplateInput>,
    placeholders: Vec<PlaceholderRow>,
    /// What someone else has saved since the editor opened the template.
    saved: Option<LetterTemplate>,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<TemplateNumber, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageTemplates>(&signed_in, FirmResource).await?;
    portal.store.letter_templates.record_template_decision(permit).await?;
    let TemplateNumber(id) = number.map_err(|_| not_found())?;
    let found = portal.store.letter_templates.letter_template(id).await?.ok_or_else(not_found)?;
    let form = Form::of(TemplateInput::of(&found));
    render(&portal, &signed_in, id, (form, None), StatusCode::OK)
}

pub(crate) async fn save(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<TemplateNumber, ErrorPage>,
    form: Result<PostedForm<TemplateInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageTemplates>(&signed_in, FirmResource).await?;
    let (permit, typed) = audited_form(&portal, permit, form).await?;
    let read = match (number, typed.read_version(), typed.read()) {
        (Ok(TemplateNumber(id)), Some(version), Ok(content)) => (id, version, content),
        (number, version, read) => {
            portal.store.letter_templates.record_template_decision(permit).await?;
            let TemplateNumber(id) = number.map_err(|_| not_found())?;
            if version.is_none() {
                return Err(ErrorPage::invalid_form("`version` is missing or not a number.").into());
            }
            let form = Form { typed, problems: read.err().unwrap_or_default() };
            return render(&portal, &signed_in, id, (form, None), StatusCode::UNPROCESSABLE_ENTITY);
        }
    };
    let (id, version, content) = read;
    let templates = &portal.store.letter_templates;
    match templates.change_letter_template(permit, (id, version), &content).await? {
        SaveOutcome::Saved(_) => Ok(Redirect::to("/templates?done=saved").into_response()),
        SaveOutcome::Conflict(current) => {
            let typed = TemplateInput { version: current.version.to_string(), ..typed };
            let form = Form { typed, problems: Problems::default() };
            render(&portal, &signed_in, id, (form, Some(current)), StatusCode::CONFLICT)
        }
        SaveOutcome::NotFound => Err(not_found().into()),
    }
}

pub(crate) async fn delete(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: Result<TemplateNumber, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageTemplates>(&signed_in, FirmResource).await?;
    let id = match number {
        Ok(TemplateNumber(id)) => id,
        Err(_) => {
            portal.store.letter_templates.record_template_decision(permit).await?;
            return Err(not_found().into());
        }
    };
    match portal.store.letter_templates.delete_letter_template(permit, id).await? {
        true => Ok(Redirect::to("/templates?done=deleted").into_response()),
        false => Err(not_found().into()),
    }
}

fn not_found() -> ErrorPage {
    template_not_found("/templates".to_owned())
}

fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    id: LetterTemplateId,
    (form, saved): (Form<TemplateInput>, Option<LetterTemplate>),
    status: StatusCode,
) -> Result<Response, PageError> {
    let shown = TemplatePage {
        frame: Frame::new(portal, signed_in, Section::Team),
        id,
        form,
        placeholders: placeholders(),
        saved,
    };
    Ok(page(status, &shown)?)
}
