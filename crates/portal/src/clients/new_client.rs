//! `GET /clients/new` and `POST /clients`: creates a client. Consultants create their own clients; partners choose the owner.

use super::details_form::{DetailsForm, DetailsInput};
use super::done::CompletedChange;
use super::people::{self, OwnerChoice};
use super::record_query::done_href;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Client, ClientName, PersonId};
use chancery_policy::{CreateClient, FirmResource, ListClients, NewClientResource};
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
    /// Existing clients with the typed name. If there are any, the user has to confirm.
    same_name: Vec<SameName>,
}

struct SameName {
    id: i64,
    name: String,
    owner: DisplayPerson,
    is_archived: bool,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
) -> Result<Response, PageError> {
    let form = DetailsForm { is_unsaved: false, ..DetailsForm::typed(DetailsInput::default()) };
    render(&portal, &signed_in, form, Vec::new(), StatusCode::OK).await
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
    let (name, details) = match typed.read(&signed_in.local_time(&portal), None) {
        Ok(read) => read,
        Err(problems) => return render_with_errors(&portal, &signed_in, typed, problems).await,
    };
    let permit = portal.permit::<CreateClient>(&signed_in, NewClientResource(owner)).await?;
    if typed.create_anyway != name.as_str() {
        let same_name = clients_with_name(&portal, &signed_in, &name).await?;
        if !same_name.is_empty() {
            let typed = DetailsInput { name: name.to_string(), ..typed };
            let form = DetailsForm::typed(typed);
            return render(&portal, &signed_in, form, same_name, StatusCode::CONFLICT).await;
        }
    }
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

/// The user's own clients for a consultant, and all clients for a partner: no one learns of a client that they may not
/// read.
async fn clients_with_name(
    portal: &Portal,
    signed_in: &SignedIn,
    name: &ClientName,
) -> Result<Vec<SameName>, PageError> {
    let permit = portal.permit::<ListClients>(signed_in, FirmResource).await?;
    let found = portal.store.clients.clients_with_name(permit, name).await?;
    let names = PersonNames::read(portal).await?;
    let same_name = |client: Client| SameName {
        id: client.id.0,
        name: client.name.to_string(),
        owner: names.of_ref(&client.owner),
        is_archived: client.archived_at.is_some(),
    };
    Ok(found.into_iter().map(same_name).collect())
}

async fn render_with_errors(
    portal: &Portal,
    signed_in: &SignedIn,
    typed: DetailsInput,
    problems: Problems,
) -> Result<Response, PageError> {
    let form = DetailsForm { problems, ..DetailsForm::typed(typed) };
    render(portal, signed_in, form, Vec::new(), StatusCode::UNPROCESSABLE_ENTITY).await
}

async fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    form: DetailsForm,
    same_name: Vec<SameName>,
    status: StatusCode,
) -> Result<Response, PageError> {
    let people = people::visible_people(portal, signed_in).await?;
    // If the chosen owner was removed meanwhile, select the user rather than an arbitrary colleague.
    let typed = form.typed.owner.parse().ok().map(PersonId);
    let chosen =
        typed.filter(|id| people.iter().any(|person| person.id == *id)).unwrap_or(signed_in.person.id);
    let owners = people::choices(&people, &PersonNames::read(portal).await?, Some(chosen));
    let frame = Frame::new(portal, signed_in, Section::Clients);
    Ok(page(status, &NewClientPage { frame, form, owners, same_name })?)
}
