//! `GET /clients/new` and `POST /clients`: creates a client. Consultants create their own clients; partners choose the owner.

use super::details_form::{DetailsForm, DetailsInput};
use super::done::CompletedChange;
use super::people::{self, OwnerChoice};
use super::record_query::done_href;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::{CreateClient, NewClientResource};
use chancery_store::{ClientError, NewClient};
use chancery_web::{ErrorPage, PostedForm, Problems, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "clients/new.html")]
struct NewClientPage<'a> {
    frame: Frame<'a>,
    form: DetailsForm,
    /// Empty for users who can only create their own clients.
    owners: Vec<OwnerChoice>,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
) -> Result<Response, PageError> {
    let form = DetailsForm { is_unsaved: false, ..DetailsForm::typed(DetailsInput::default()) };
    render(&portal, &signed_in, form, StatusCode::OK).await
}

pub(crate) async fn create(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    PostedForm(typed): PostedForm<DetailsInput>,
) -> Result<Response, PageError> {
    let owner = match typed.owner.as_str() {
        "" => signed_in.person.id,
        number => PersonId(
            number.parse().map_err(|_| ErrorPage::invalid_form("`owner` must be a person’s number."))?,
        ),
    };
    let (name, details) = match typed.read() {
        Ok(read) => read,
        Err(problems) => return render_with_errors(&portal, &signed_in, typed, problems).await,
    };
    let permit = portal.permit::<CreateClient>(&signed_in, NewClientResource(owner)).await?;
    let new = NewClient { name, details, entries: Vec::new(), is_archived: false };
    match portal.store.clients.create_client(permit, new).await {
        Ok(id) => Ok(Redirect::to(&done_href(id, CompletedChange::Created)).into_response()),
        Err(ClientError::NoSuchPerson(_)) => {
            let problems = Problems::one("owner", "This person was removed. Choose another.");
            render_with_errors(&portal, &signed_in, typed, problems).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    typed: DetailsInput,
    problems: Problems,
) -> Result<Response, PageError> {
    let form = DetailsForm { problems, ..DetailsForm::typed(typed) };
    render(portal, signed_in, form, StatusCode::UNPROCESSABLE_ENTITY).await
}

async fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    form: DetailsForm,
    status: StatusCode,
) -> Result<Response, PageError> {
    let people = people::visible_people(portal, signed_in).await?;
    // If the chosen owner was removed meanwhile, select the user rather than an arbitrary colleague.
    let typed = form.typed.owner.parse().ok().map(PersonId);
    let chosen =
        typed.filter(|id| people.iter().any(|person| person.id == *id)).unwrap_or(signed_in.person.id);
    let owners = people::choices(&people, &PersonNames::read(portal).await?, Some(chosen));
    let frame = Frame::new(portal, signed_in, Section::Clients);
    Ok(page(status, &NewClientPage { frame, form, owners })?)
}
