//! `POST /clients/{id}`: changes a client's name and facts. What they were before is kept as a version.

use super::conflict::{Conflict, FieldInConflict};
use super::done::Done;
use super::facts_form::{FactsForm, FactsTyped};
use super::record::{self, Open, Showing};
use super::record_query::{View, done_href};
use crate::error::{PageError, no_such_client};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::Moment;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Client, ClientId, ClientName, ContactFacts};
use chancery_policy::{EditClient, ReadClient};
use chancery_store::{Changed, ClientChange, ClientVersion, VersionsWanted};
use chancery_web::{ErrorPage, Notice, Posted};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    Posted(typed): Posted<FactsTyped>,
) -> Result<Response, PageError> {
    let unclear =
        || ErrorPage::bad_form("`version` does not say which version of the facts was on the page.");
    let version = typed.version().ok_or_else(unclear)?;
    let (name, facts) = match typed.read() {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&who, id).await?;
            let form = FactsForm { problems, ..FactsForm::typed(typed) };
            let (view, status) = (View::default(), StatusCode::UNPROCESSABLE_ENTITY);
            let showing = Showing { view, open: Open::Facts(form), notice: None, status };
            return record::show(&portal, &who, id, showing).await;
        }
    };
    let change = ClientChange { version, name, facts };
    let edit = |permit| portal.store.clients.edit_client(permit, change.clone());
    match portal.with_client_permit::<EditClient, _, _>(&who, id, edit).await? {
        Changed::Saved(_) => Ok(Redirect::to(&done_href(id, Done::FactsSaved)).into_response()),
        Changed::Conflict(_) => in_conflict(&portal, &who, id, typed).await,
        Changed::Gone => Err(no_such_client().into()),
    }
}

/// The fields as pages call them, with what they hold.
pub(super) fn labelled(name: &ClientName, facts: &ContactFacts) -> [(&'static str, String); 6] {
    let ContactFacts { contact, email, telephone, address, since } = facts;
    [
        ("Name", name.to_string()),
        ("Contact", contact.to_string()),
        ("E-mail", email.to_string()),
        ("Telephone", telephone.to_string()),
        ("Address", address.to_string()),
        ("Client since", since.map_or_else(String::new, |day| day.to_string())),
    ]
}

/// What was done to a client since somebody opened it: a version is not only made by whoever edits the facts.
fn deeds_between(base: Option<&ClientVersion>, now: &Client) -> Vec<String> {
    let mut deeds = Vec::new();
    if let Some(base) = base {
        if (&base.name, &base.facts) != (&now.name, &now.facts) {
            deeds.push("saved these facts".to_owned());
        }
        if base.owner.id != now.owner.id {
            deeds.push(format!("gave this client to {}", now.owner.email));
        }
        match (base.is_archived, now.archived_at.is_some()) {
            (false, true) => deeds.push("archived this client".to_owned()),
            (true, false) => deeds.push("restored this client".to_owned()),
            _ => {}
        }
    }
    if deeds.is_empty() {
        deeds.push("saved this client".to_owned());
    }
    deeds
}

async fn in_conflict(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    typed: FactsTyped,
) -> Result<Response, PageError> {
    let wanted = typed.version().map_or(VersionsWanted::None, VersionsWanted::NowAnd);
    let read = |permit| portal.store.clients.client_versions(permit, wanted);
    let found = portal.with_client_permit::<ReadClient, _, _>(who, id, read).await?;
    let (theirs, versions) = found.ok_or_else(no_such_client)?;
    let base = versions.iter().find(|version| Some(version.version) == typed.version());
    let deeds = deeds_between(base, &theirs);
    let base = base.map(|base| labelled(&base.name, &base.facts));
    let newest = versions.iter().find(|version| version.version == theirs.version);

    let yours = [&typed.name, &typed.contact, &typed.email, &typed.telephone, &typed.address, &typed.since];
    let now = labelled(&theirs.name, &theirs.facts);
    let fields = now.iter().zip(yours).enumerate().map(|(place, ((label, theirs), yours))| {
        let base = base.as_ref().and_then(|base| base.get(place)).map(|(_, base)| base.as_str());
        FieldInConflict::new(label, yours, theirs, base)
    });
    let conflict = Conflict {
        by: newest.and_then(|newest| newest.by.as_ref()).map(|person| person.email.to_string()),
        at: newest.map(|newest| Moment::new(newest.at, portal.clock.now())),
        version: theirs.version.0,
        fields: fields.collect(),
    };
    let mut words = conflict.meanwhile(typed.version().unwrap_or(theirs.version), &deeds);
    words.push_str(" Yours are kept below; compare before you save.");
    if theirs.archived_at.is_some() {
        words.push_str(" The client is archived: what you save is kept, and it stays out of the list until it is restored.");
    }
    let typed = FactsTyped { version: theirs.version.to_string(), ..typed };
    let form = FactsForm { conflict: Some(conflict), ..FactsForm::typed(typed) };
    let notice = Some(Notice::warning("Changed meanwhile.", words));
    let (view, status) = (View::default(), StatusCode::CONFLICT);
    record::show(portal, who, id, Showing { view, open: Open::Facts(form), notice, status }).await
}
