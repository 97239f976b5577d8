//! `GET /invoices/drafts/{account}/{month}`: a preview of a month's invoice, and whether it can be issued.

use super::issue_check::{address_form, unprintable};
use super::path_params::{PathParams, parse_month};
use super::sheet::{Sheet, draft_invoice};
use crate::authz::capabilities::can_manage_invoices;
use crate::drafting::settings::is_drafting;
use crate::error::{PageError, invoice_account_not_found};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, long_month, utc_text};
use crate::unprintable::{UNPRINTABLE_ADVICE, unprintable_sentence};
use askama::Template;
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Invoice, Month, UnixMillis};
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_web::{page, wants_json};
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/draft.html")]
struct DraftPage<'a> {
    frame: Frame<'a>,
    account: i64,
    address_form: String,
    name: String,
    month: Month,
    month_text: String,
    /// `None` if there was no usage.
    sheet: Option<Sheet>,
    /// `None` if it can be issued now.
    from: Option<DisplayTime>,
    is_running: bool,
    has_address: bool,
    has_email: bool,
    /// Text that the PDF could not show.
    unprintable: Option<String>,
    unprintable_advice: &'static str,
    has_letterhead: bool,
    has_payment: bool,
    is_drafting: bool,
    can_manage: bool,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    segments: PathParams<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&signed_in, FirmResource).await?;
    let (account, month) = parse_month(segments)?;
    let found = portal.store.invoices.billable_month(permit, account, month).await?;
    let found = found.ok_or_else(invoice_account_not_found)?;
    // The month is invoiced, so there is no draft.
    if let Some(number) = found.invoice {
        return Ok(Redirect::to(&format!("/invoices/{number}")).into_response());
    }
    let (terms, now) = (&portal.settings.invoice_terms, portal.clock.now());
    let draft = draft_invoice(&found, terms, now)?;
    if wants_json(&headers) {
        return Ok(Json(as_json(&draft)).into_response());
    }
    let from = month.invoiceable_from();
    let unprintable = unprintable(&portal, &draft)?;
    let draft_page = DraftPage {
        frame: Frame::new(&portal, &signed_in, Section::Invoices),
        account: account.0,
        address_form: address_form(account, month),
        name: found.buyer.name.to_string(),
        month,
        month_text: long_month(month),
        sheet: (!found.usage.is_empty()).then(|| Sheet::draft(&draft, terms)),
        from: (from > now).then(|| DisplayTime { iso: from.to_iso(), text: utc_text(from) }),
        is_running: Month::containing(now) <= month,
        has_address: !found.buyer.address.as_str().is_empty(),
        has_email: !found.buyer.email.as_str().is_empty(),
        unprintable: (!unprintable.is_empty()).then(|| unprintable_sentence(&unprintable)),
        unprintable_advice: UNPRINTABLE_ADVICE,
        has_letterhead: !terms.seller.letterhead.trim().is_empty(),
        has_payment: !terms.seller.payment.trim().is_empty(),
        is_drafting: is_drafting(&found.buyer.name),
        can_manage: can_manage_invoices(&portal.policy, signed_in.principal()),
    };
    Ok(page(StatusCode::OK, &draft_page)?)
}

/// Like an invoice, without the fields that are set on issue.
fn as_json(draft: &Invoice) -> Value {
    let mut value = chancery_invoicing::document_json(draft);
    for name in ["number", "issued_at", "due"] {
        value[name] = Value::Null;
    }
    value["state"] = json!("draft");
    value["can_be_issued_from"] = json!(UnixMillis::to_iso(draft.month.invoiceable_from()));
    value
}
