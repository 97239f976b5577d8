//! `GET /clients/{id}/letters/{entry}/send`: shows what would be sent. `POST` sends it by email: to the client's recorded
//! address only, with the letter as text and as PDF, and with the sender's address for replies. Submitting twice sends once.

use super::document::{file_name, heading, render_pdf};
use super::page::{href, unsaved_changes};
use super::send_form::{SendInput, SendPageState, read_for_change, recipient, show};
use crate::error::{PageError, letter_not_found};
use crate::path::EntryNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{day_and_time, seconds_until};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_alerts::new_letter_message;
use chancery_domain::{Client, EmailSubject, Entry, Throttle, UnixMillis};
use chancery_mail::{Email, EmailExtras, PdfAttachment, Recipient};
use chancery_policy::EditClient;
use chancery_store::{LetterEmail, LetterOutcome, NewMessage, OpenedLetter};
use chancery_web::{ErrorPage, Notice, PostedForm, Problems};
use std::sync::Arc;

pub(crate) async fn preview(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
) -> Result<Response, PageError> {
    let opened = read_for_change(&portal, &signed_in, client, entry).await?;
    let OpenedLetter { client, letter, has_unsaved_text } = opened;
    if letter.sent.is_some() {
        return Ok(Redirect::to(&href(client.id, letter.id)).into_response());
    }
    ensure_not_archived(&client, &letter)?;
    // Text that cannot be printed cannot be sent, so say so before the sender confirms.
    render_pdf(&portal, &client, &letter, &signed_in.local_time(&portal)).await?;
    let subject = letter.title.to_string();
    let notice = has_unsaved_text.then(|| unsaved_changes(client.id, letter.id));
    let state = SendPageState { subject, problems: Problems::default(), notice, status: StatusCode::OK };
    show(&portal, &signed_in, (&client, &letter), state)
}

pub(crate) async fn send(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    PostedForm(typed): PostedForm<SendInput>,
) -> Result<Response, PageError> {
    let OpenedLetter { client, letter, .. } = read_for_change(&portal, &signed_in, client, entry).await?;
    if letter.sent.is_some() {
        return Ok(already_sent(&client, &letter));
    }
    ensure_not_archived(&client, &letter)?;
    let version = typed.read_version();
    let version = version.ok_or_else(|| ErrorPage::invalid_form("`version` is missing or not a number."))?;
    let again = |problems: Problems, notice: Option<Notice>, status: StatusCode| {
        let state = SendPageState { subject: typed.subject.clone(), problems, notice, status };
        show(&portal, &signed_in, (&client, &letter), state)
    };
    let Ok(to) = recipient(&client) else {
        return again(Problems::default(), None, StatusCode::UNPROCESSABLE_ENTITY);
    };
    let subject = match typed.read_subject() {
        Ok(subject) => subject,
        Err(problems) => return again(problems, None, StatusCode::UNPROCESSABLE_ENTITY),
    };
    if typed.to != client.details.email.as_str() {
        return again(Problems::default(), Some(recipient_changed()), StatusCode::CONFLICT);
    }
    if version != letter.version {
        return again(Problems::default(), Some(letter_changed()), StatusCode::CONFLICT);
    }
    let message = message(&portal, &signed_in, (&client, &letter), to, &subject).await?;
    let email = LetterEmail {
        letter: letter.id,
        version,
        to: client.details.email.clone(),
        subject,
        heading: heading(&portal, &client, &letter, &signed_in.local_time(&portal)),
        message,
    };
    let send = |permit| portal.store.clients.send_letter(permit, &email);
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, client.id, send).await? {
        LetterOutcome::Sent => {
            portal.store.outbox.wake_worker();
            let href = format!("{}?done=sent", href(client.id, letter.id));
            Ok(Redirect::to(&href).into_response())
        }
        LetterOutcome::AlreadySent => Ok(already_sent(&client, &letter)),
        changed @ (LetterOutcome::LetterChanged | LetterOutcome::RecipientChanged) => {
            let current = read_for_change(&portal, &signed_in, client.id, entry).await?;
            let notice = match changed {
                LetterOutcome::RecipientChanged => recipient_changed(),
                _ => letter_changed(),
            };
            let (problems, status) = (Problems::default(), StatusCode::CONFLICT);
            let state =
                SendPageState { subject: typed.subject.clone(), problems, notice: Some(notice), status };
            show(&portal, &signed_in, (&current.client, &current.letter), state)
        }
        LetterOutcome::QuotaExceeded { until } => {
            Err(quota_exceeded(&portal, &signed_in, until, href(client.id, letter.id)).into())
        }
        LetterOutcome::NotFound => Err(letter_not_found(client.id).into()),
    }
}

async fn message(
    portal: &Portal,
    signed_in: &SignedIn,
    (client, letter): (&Client, &Entry),
    to: Recipient,
    subject: &EmailSubject,
) -> Result<NewMessage, PageError> {
    let pdf = render_pdf(portal, client, letter, &signed_in.local_time(portal)).await?;
    let email = Email { to, subject: subject.to_string(), text: format!("{}\n", letter.text) };
    let extras = EmailExtras {
        reply_to: Some(signed_in.person.email.clone().into()),
        attachment: Some(PdfAttachment { file_name: file_name(client.id, letter.id), pdf }),
    };
    Ok(new_letter_message(email, extras, portal.clock.now(), portal.randomness.as_ref()))
}

fn already_sent(client: &Client, letter: &Entry) -> Response {
    Redirect::to(&format!("{}?done=already-sent", href(client.id, letter.id))).into_response()
}

fn letter_changed() -> Notice {
    Notice::warning(
        "Someone else edited this letter.",
        "Nothing was sent. Read it again below, then send it.",
    )
}

fn recipient_changed() -> Notice {
    Notice::warning(
        "The client’s email address changed.",
        "Nothing was sent. Check the address below, then send the letter.",
    )
}

fn ensure_not_archived(client: &Client, letter: &Entry) -> Result<(), ErrorPage> {
    match letter.archived_at {
        None => Ok(()),
        Some(_) => Err(ErrorPage::conflict("letter_archived", "Letter archived", "Nothing was sent.")
            .advice("Restore the letter first, then send it.")
            .next_link(format!("/clients/{}?tab=archived", client.id), "Show archived entries")),
    }
}

fn quota_exceeded(portal: &Portal, signed_in: &SignedIn, until: UnixMillis, letter: String) -> ErrorPage {
    let local = signed_in.local_time(portal);
    let limit = Throttle::LETTER_PER_PERSON_AND_DAY.limit;
    let reason =
        format!("You can send {limit} letters in a day. Nothing was sent; the letter is still a draft.");
    ErrorPage::too_many_requests(reason, seconds_until(until, local.now))
        .advice(format!("You can send letters again from {}.", day_and_time(until, &local)))
        .next_link(letter, "Go to letter")
}
