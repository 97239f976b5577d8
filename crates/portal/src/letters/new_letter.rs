//! `GET /clients/{id}/letters/new`: chooses a template for a new letter. With `?template=`, shows the form of a new letter
//! with the template's text and the client's details filled in. Nothing is saved until the form is.

use crate::authz::capabilities::can_manage_templates;
use crate::clients::entry_form::EntryForm;
use crate::clients::record::{self, OpenForm, RecordPageState};
use crate::clients::record_query::TimelineView;
use crate::clients::unsaved::record_form::form_session;
use crate::clients::unsaved::restore::FormReader;
use crate::error::{PageError, client_not_found, template_not_found};
use crate::frame::{Frame, Section};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{LocalTime, long_local_day};
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{Client, ClientId, EntryKind, LetterTemplateId, Placeholder, fill_template};
use chancery_policy::EditClient;
use chancery_store::LetterTemplate;
use chancery_web::page;
use std::collections::HashMap;
use std::sync::Arc;

/// How much of a template's text the list shows, in characters.
const EXCERPT_CHARS: usize = 160;

#[derive(Template)]
#[template(path = "letters/new.html")]
struct NewLetterPage<'a> {
    frame: Frame<'a>,
    client: ClientId,
    client_name: String,
    templates: Vec<TemplateChoice>,
    can_manage: bool,
}

struct TemplateChoice {
    id: LetterTemplateId,
    title: String,
    excerpt: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let read = |permit| portal.store.clients.read_for_draft(permit, &[]);
    let found = portal.with_client_permit::<EditClient, _, _>(&signed_in, id, read).await?;
    let (client, _) = found.ok_or_else(client_not_found)?;
    let Some(template) = query.get("template") else { return choose(&portal, &signed_in, &client).await };
    let template = match template.parse() {
        Ok(id) => portal.store.letter_templates.letter_template(LetterTemplateId(id)).await?,
        Err(_) => None,
    };
    let template = template.ok_or_else(|| template_not_found(format!("/clients/{id}/letters/new")))?;
    let local = signed_in.local_time(&portal);
    let value = |placeholder| value(placeholder, &portal, &signed_in, &client, &local);
    let form = EntryForm {
        title: fill_title(&template, value),
        text: fill_template(template.text.as_str(), value),
        ..EntryForm::new(EntryKind::DraftLetter, &local)
    };
    let session = form_session(&portal, &headers);
    let reader = FormReader { portal: &portal, signed_in: &signed_in, client: id, session };
    let form = reader.template(form).await?;
    let (view, status) = (TimelineView::default(), StatusCode::OK);
    let state = RecordPageState { view, open: OpenForm::Entry(form), notice: None, status };
    record::show(&portal, &signed_in, id, state).await
}

async fn choose(portal: &Portal, signed_in: &SignedIn, client: &Client) -> Result<Response, PageError> {
    let templates = portal.store.letter_templates.list_letter_templates().await?;
    let local = signed_in.local_time(portal);
    let value = |placeholder| value(placeholder, portal, signed_in, client, &local);
    let shown = NewLetterPage {
        frame: Frame::new(portal, signed_in, Section::Clients),
        client: client.id,
        client_name: client.name.to_string(),
        templates: templates.iter().map(|template| TemplateChoice::new(template, value)).collect(),
        can_manage: can_manage_templates(&portal.policy, signed_in.principal()),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

impl TemplateChoice {
    /// With the client's details filled in, as in the letter.
    fn new(template: &LetterTemplate, value: impl Fn(Placeholder) -> String) -> Self {
        let text = fill_template(template.text.as_str(), &value);
        let mut excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
        if excerpt.len() < text.len() {
            excerpt.push('…');
        }
        Self { id: template.id, title: fill_title(template, value), excerpt }
    }
}

/// A title is one line.
fn fill_title(template: &LetterTemplate, value: impl Fn(Placeholder) -> String) -> String {
    fill_template(template.title.as_str(), |placeholder| value(placeholder).replace('\n', ", "))
}

fn value(
    placeholder: Placeholder,
    portal: &Portal,
    signed_in: &SignedIn,
    client: &Client,
    local: &LocalTime,
) -> String {
    let (details, me) = (&client.details, &signed_in.person);
    match placeholder {
        Placeholder::ClientName => client.name.to_string(),
        Placeholder::ClientContact => match contact_name(details.contact.as_str()) {
            "" => client.name.to_string(),
            name => name.to_owned(),
        },
        Placeholder::ClientEmail => details.email.to_string(),
        Placeholder::ClientAddress => details.address.to_string(),
        Placeholder::ClientNumber => client.id.to_string(),
        Placeholder::Today => long_local_day(local.now, local),
        Placeholder::MyName => {
            me.profile.name.as_ref().map_or_else(|| me.email.to_string(), ToString::to_string)
        }
        Placeholder::MyEmail => me.email.to_string(),
        Placeholder::FirmName => portal.settings.firm_name.clone(),
    }
}

/// Of `Priya Raman, owner`, the name: a letter begins with it.
fn contact_name(contact: &str) -> &str {
    contact.split(',').next().unwrap_or_default().trim()
}
