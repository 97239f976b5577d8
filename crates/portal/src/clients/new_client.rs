//! `GET /clients/new` and `POST /clients`: a new client. Consultants make clients of their own; partners say whose it is.

use super::done::Done;
use super::facts_form::{FactsForm, FactsTyped};
use super::people::{self, Choice};
use super::record_query::done_href;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::PersonId;
use chancery_policy::{CreateClient, NewClientFor};
use chancery_store::{ClientError, NewClient};
use chancery_web::{ErrorPage, Posted, Problems, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "clients/new.html")]
struct NewClientPage<'a> {
    frame: Frame<'a>,
    form: FactsForm,
    /// Empty for those who make clients of their own alone.
    owners: Vec<Choice>,
}

pub(crate) async fn show(State(portal): State<Arc<Portal>>, who: SignedIn) -> Result<Response, PageError> {
    let form = FactsForm { is_unsaved: false, ..FactsForm::typed(FactsTyped::default()) };
    render(&portal, &who, form, StatusCode::OK).await
}

pub(crate) async fn create(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    Posted(typed): Posted<FactsTyped>,
) -> Result<Response, PageError> {
    let owner = match typed.owner.as_str() {
        "" => who.person.id,
        number => PersonId(
            number.parse().map_err(|_| ErrorPage::bad_form("`owner` is not the number of a person."))?,
        ),
    };
    let (name, facts) = match typed.read() {
        Ok(read) => read,
        Err(problems) => return put_right(&portal, &who, typed, problems).await,
    };
    let permit = portal.permit::<CreateClient>(&who, NewClientFor(owner)).await?;
    let new = NewClient { name, facts, entries: Vec::new(), is_archived: false };
    match portal.store.clients.create_client(permit, new).await {
        Ok(id) => Ok(Redirect::to(&done_href(id, Done::Created)).into_response()),
        Err(ClientError::NoSuchPerson(_)) => {
            let problems = Problems::one("owner", "This person is no longer in the portal; choose another");
            put_right(&portal, &who, typed, problems).await
        }
        Err(error) => Err(error.into()),
    }
}

async fn put_right(
    portal: &Portal,
    who: &SignedIn,
    typed: FactsTyped,
    problems: Problems,
) -> Result<Response, PageError> {
    let form = FactsForm { problems, ..FactsForm::typed(typed) };
    render(portal, who, form, StatusCode::UNPROCESSABLE_ENTITY).await
}

async fn render(
    portal: &Portal,
    who: &SignedIn,
    form: FactsForm,
    status: StatusCode,
) -> Result<Response, PageError> {
    let people = people::known_to(portal, who).await?;
    // Somebody who has left meanwhile is not among them, and nobody else must seem to have been chosen instead.
    let typed = form.typed.owner.parse().ok().map(PersonId);
    let chosen = typed.filter(|id| people.iter().any(|person| person.id == *id)).unwrap_or(who.person.id);
    let owners = people::choices(&people, Some(chosen));
    let frame = Frame::new(portal, who, Section::Clients);
    Ok(page(status, &NewClientPage { frame, form, owners })?)
}
