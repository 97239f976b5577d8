//! Accounts as JSON. Amounts are decimal strings; only the public prefix of a key is included.

use super::list_query::PageLinks;
use axum::Json;
use axum::response::{IntoResponse, Response};
use chancery_domain::{Account, AccountState, AllowedModels, Currency, KeyState, UnixMillis};
use chancery_store::{
    ACCOUNTS_PER_PAGE, AccountEvent, AccountPage, AccountRecord, KeyWithLastUse, UsageTotals,
};
use chancery_web::page_count;
use serde_json::{Value, json};

pub(super) fn list(
    found: &AccountPage,
    page: Option<u32>,
    links: &PageLinks,
    currency: Currency,
) -> Response {
    let account = |overview: &chancery_store::AccountOverview| {
        let mut account = details(&overview.account, &overview.month);
        account["active_keys"] = json!(overview.active_keys);
        account
    };
    Json(json!({
        "accounts": found.accounts.iter().map(account).collect::<Vec<_>>(),
        "unattached_keys": found.unassigned_keys.iter().map(key).collect::<Vec<_>>(),
        "currency": currency.as_str(),
        "page": page,
        "pages": page_count(found.total.known(), ACCOUNTS_PER_PAGE),
        "previous": links.previous,
        "next": links.next,
        "total": found.total.known(),
    }))
    .into_response()
}

pub(super) fn account(record: &AccountRecord, currency: Currency) -> Response {
    let mut account = details(&record.account, &record.month);
    account["billing"] =
        json!({"address": record.billing.address.as_str(), "email": record.billing.email.as_str()});
    account["keys"] = record.keys.iter().map(key).collect();
    account["history"] = record.events.iter().map(event).collect();
    account["currency"] = json!(currency.as_str());
    Json(account).into_response()
}

fn details(account: &Account, month: &UsageTotals) -> Value {
    json!({
        "id": account.id.0,
        "name": account.name.as_str(),
        "rpm": account.limits.requests_per_min,
        "tpm": account.limits.tokens_per_min,
        "spend_per_month": account.spend_per_month.map(|cap| cap.to_string()),
        "spent_this_month": month.cost.to_string(),
        "created_at": account.created_at.to_iso(),
        "closed_at": match account.state {
            AccountState::Open => None,
            AccountState::Closed { at } => Some(at.to_iso()),
        },
    })
}

fn key(used: &KeyWithLastUse) -> Value {
    json!({
        "prefix": used.key.prefix.as_str(),
        "label": used.key.label,
        "created_at": used.key.created_at.to_iso(),
        "revoked_at": match used.key.state {
            KeyState::Active => None,
            KeyState::Revoked { at } => Some(at.to_iso()),
        },
        "last_used": used.last_used.map(|day| day.to_string()),
        "last_used_at": used.last_used_at.map(UnixMillis::to_iso),
        "expires_at": used.key.limits.expires_at.map(UnixMillis::to_iso),
        "rpm": used.key.limits.requests_per_min,
        "tpm": used.key.limits.tokens_per_min,
        "spend_per_month": used.key.limits.spend_per_month.map(|cap| cap.to_string()),
        "models": used.key.limits.models.as_ref().map(AllowedModels::names),
    })
}

fn event(event: &AccountEvent) -> Value {
    json!({
        "deed": event.description,
        "by": event.by.as_ref().map(|by| by.email.as_str()),
        "at": event.at.to_iso(),
    })
}
