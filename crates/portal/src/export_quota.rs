//! How often a person may export: clients, invoices and the audit log together. The counts are in the database, so they hold
//! over all nodes and sessions.

use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{day_and_time, seconds_until};
use chancery_domain::{EventOrigin, Throttle, ThrottleDecision, ThrottleKey, UnixMillis};
use chancery_web::ErrorPage;

/// Counts one export, which the policy has allowed, or rejects it. A rejection is audited.
pub(crate) async fn count_export(portal: &Portal, signed_in: &SignedIn) -> Result<(), PageError> {
    let (now, person, throttles) = (portal.clock.now(), signed_in.person.id, &portal.store.throttles);
    let (per_hour, per_day) =
        (ThrottleKey::ExportPerPerson(person), ThrottleKey::ExportPerPersonAndDay(person));
    if let ThrottleDecision::Denied(count) = throttles.count_throttle(per_hour, now).await? {
        return Err(rejected(portal, signed_in, count.expires_at).await);
    }
    if let ThrottleDecision::Denied(count) = throttles.count_throttle(per_day, now).await? {
        throttles.refund_throttle(per_hour).await?;
        return Err(rejected(portal, signed_in, count.expires_at).await);
    }
    Ok(())
}

async fn rejected(portal: &Portal, signed_in: &SignedIn, until: UnixMillis) -> PageError {
    let now = portal.clock.now();
    let ip = signed_in.session.ip_address.parse().ok();
    let origin = EventOrigin { ip, at: now, request_id: signed_in.request_id.clone() };
    if let Err(error) = portal.store.audit.record_export_quota_exceeded(&signed_in.person, &origin).await {
        return error.into();
    }
    let (hour, day) = (Throttle::EXPORT_PER_PERSON.limit, Throttle::EXPORT_PER_PERSON_AND_DAY.limit);
    let reason = format!("You can export {hour} files in an hour and {day} in a day.");
    ErrorPage::too_many_requests(reason, seconds_until(until, now))
        .advice(format!("You can export again from {}.", day_and_time(until, &signed_in.local_time(portal))))
        .next_link("/clients", "Go to your clients")
        .into()
}
