//! `GET /invoices/drafts/{account}/{month}`: what the invoice of a month would say at this moment, and whether it can be issued.

use super::addressed::{Segments, month_in};
use super::sheet::{Sheet, not_issued_yet};
use crate::authz::capabilities::may_manage_invoices;
use crate::drafting::settings::is_drafting;
use crate::error::{PageError, no_such_buyer};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{Moment, in_utc, long_month};
use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Invoice, Month, UnixMillis};
use chancery_policy::{ReadInvoices, TheFirm};
use chancery_web::{page, wants_json};
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/draft.html")]
struct DraftPage<'a> {
    frame: Frame<'a>,
    account: i64,
    name: String,
    month: Month,
    month_words: String,
    /// None: nothing was used.
    sheet: Option<Sheet>,
    /// None: it can be issued now.
    from: Option<Moment>,
    is_running: bool,
    has_address: bool,
    has_email: bool,
    has_letterhead: bool,
    has_payment: bool,
    is_drafting: bool,
    may_manage: bool,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    headers: HeaderMap,
    segments: Segments<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&who, TheFirm).await?;
    let (account, month) = month_in(segments)?;
    let found = portal.store.invoices.month_to_bill(permit, account, month).await?;
    let found = found.ok_or_else(no_such_buyer)?;
    // What is issued is no draft any more.
    if let Some(number) = found.invoice {
        return Ok(Redirect::to(&format!("/invoices/{number}")).into_response());
    }
    let (terms, now) = (&portal.settings.invoice_terms, portal.clock.now());
    let draft = not_issued_yet(&found, terms, now)?;
    if wants_json(&headers) {
        return Ok(Json(as_json(&draft)).into_response());
    }
    let from = month.can_be_issued_from();
    let draft_page = DraftPage {
        frame: Frame::new(&portal, &who, Section::Invoices),
        account: account.0,
        name: found.buyer.name.to_string(),
        month,
        month_words: long_month(month),
        sheet: (!found.usage.is_empty()).then(|| Sheet::draft(&draft, terms)),
        from: (from > now).then(|| Moment { iso: from.to_iso(), words: in_utc(from) }),
        is_running: Month::of(now) <= month,
        has_address: !found.buyer.address.as_str().is_empty(),
        has_email: !found.buyer.email.as_str().is_empty(),
        has_letterhead: !terms.seller.letterhead.trim().is_empty(),
        has_payment: !terms.seller.payment.trim().is_empty(),
        is_drafting: is_drafting(&found.buyer.name),
        may_manage: may_manage_invoices(&portal.policy, who.principal()),
    };
    Ok(page(StatusCode::OK, &draft_page)?)
}

/// As an invoice is, without what only issuing gives it.
fn as_json(draft: &Invoice) -> Value {
    let mut value = chancery_invoicing::document_json(draft);
    for name in ["number", "issued_at", "due"] {
        value[name] = Value::Null;
    }
    value["state"] = json!("draft");
    value["can_be_issued_from"] = json!(UnixMillis::to_iso(draft.month.can_be_issued_from()));
    value
}
