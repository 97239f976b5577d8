//! What the configuration requires of a sign-in beyond an address of the firm, and the role that the firm's directory
//! gives.

use crate::settings::{DirectoryRoles, PortalSettings, SignInRequirements};
use crate::sign_in::identity::claims::IdentityClaims;
use crate::sign_in::links::{SIGN_IN_AGAIN, sign_in_url, someone_else_url};
use axum::http::StatusCode;
use chancery_domain::{EmailAddress, LocalPath, Role};
use chancery_web::ErrorPage;
use serde_json::Value;

/// Returns the role that the directory gives. `None` if roles are managed in the portal.
pub(crate) fn check(
    settings: &PortalSettings,
    claims: &IdentityClaims,
    return_to: &LocalPath,
) -> Result<Option<Role>, ErrorPage> {
    let SignInRequirements { claims: required, acr, amr } = &settings.identity.requirements;
    let host = settings.identity.host();
    let missing = required.iter().find(|(name, accepted)| !has_value(claims.get(name), accepted));
    if let Some((name, accepted)) = missing {
        return Err(claim_required(name, accepted, return_to));
    }
    if !acr.is_empty() && !claims.acr().is_some_and(|level| acr.iter().any(|accepted| accepted == level)) {
        return Err(level_required(&host, &format!("the level {}", acr.join(" or ")), return_to));
    }
    if let Some(method) = amr.iter().find(|method| !claims.has_method(method)) {
        return Err(level_required(&host, &format!("the method {method}"), return_to));
    }
    let Some(roles) = &settings.identity.roles else { return Ok(None) };
    match directory_role(roles, claims.get(&roles.claim)) {
        Some(role) => Ok(Some(role)),
        // The configuration makes them a partner, whatever the directory says, so that one person can always sign in.
        None if is_configured_partner(settings, claims) => Ok(Some(Role::Partner)),
        None => Err(role_missing(roles, return_to)),
    }
}

/// A list has every value of its elements.
fn has_value(claim: Option<&Value>, accepted: &[Value]) -> bool {
    match claim {
        None => false,
        Some(Value::Array(values)) => values.iter().any(|value| accepted.contains(value)),
        Some(value) => accepted.contains(value),
    }
}

/// The highest role of the claim's values.
fn directory_role(roles: &DirectoryRoles, claim: Option<&Value>) -> Option<Role> {
    let values: Vec<&str> = match claim {
        Some(Value::String(value)) => vec![value.as_str()],
        Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let given = values.into_iter().filter_map(|value| roles.by_value.get(value)).max().copied();
    let names_consultants = roles.by_value.values().any(|role| *role == Role::Consultant);
    given.or_else(|| (!names_consultants).then_some(Role::Consultant))
}

fn is_configured_partner(settings: &PortalSettings, claims: &IdentityClaims) -> bool {
    let email = claims.email.as_deref().and_then(|email| email.parse::<EmailAddress>().ok());
    claims.is_email_verified && email.is_some_and(|email| settings.partners.contains(&email))
}

fn claim_required(name: &str, accepted: &[Value], return_to: &LocalPath) -> ErrorPage {
    let values: Vec<String> = accepted
        .iter()
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .collect();
    let reason = format!(
        "This portal admits only accounts with “{name}” set to {}. Yours does not have it.",
        values.join(" or ")
    );
    ErrorPage::new(StatusCode::FORBIDDEN, "claim_required", "Account not allowed", reason)
        .advice("Sign in with another account, or ask your administrator to change yours.")
        .next_link(someone_else_url(return_to), "Sign in as someone else")
        .with_log_detail(format!("sign-in rejected: the claim `{name}` has no accepted value"))
}

fn level_required(host: &str, what: &str, return_to: &LocalPath) -> ErrorPage {
    let reason = format!("This portal requires a stronger sign-in. {host} did not report {what}.");
    ErrorPage::new(
        StatusCode::FORBIDDEN,
        "authentication_level_required",
        "Stronger sign-in required",
        reason,
    )
    .advice(format!(
        "Set up a second factor, such as a passkey or an authenticator app, at {host}. Then sign in again."
    ))
    .next_link(sign_in_url(return_to), SIGN_IN_AGAIN)
    .with_log_detail(format!("sign-in rejected: the ID token lacks {what}"))
}

fn role_missing(roles: &DirectoryRoles, return_to: &LocalPath) -> ErrorPage {
    let reason = "Your account is in none of the groups that may use this portal.";
    ErrorPage::new(StatusCode::FORBIDDEN, "role_missing", "No role in this portal", reason)
        .advice("Ask your administrator to add you to a group, and then sign in again.")
        .next_link(someone_else_url(return_to), "Sign in as someone else")
        .with_log_detail(format!("sign-in rejected: no value of the claim `{}` has a role", roles.claim))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn claim_values_are_compared_exactly() {
        let accepted = [json!("example.com"), json!(true), json!(3)];
        for value in [json!("example.com"), json!(true), json!(3), json!(["other", "example.com"])] {
            assert!(has_value(Some(&value), &accepted), "{value}");
        }
        for value in
            [json!("Example.com"), json!("true"), json!(1), json!(3.5), json!(null), json!([]), json!({})]
        {
            assert!(!has_value(Some(&value), &accepted), "{value}");
        }
        assert!(!has_value(None, &accepted));
    }

    #[test]
    fn highest_role_of_the_directory_counts() {
        let roles = |pairs: &[(&str, Role)]| DirectoryRoles {
            claim: "groups".to_owned(),
            by_value: pairs
                .iter()
                .map(|(name, role)| ((*name).to_owned(), *role))
                .collect::<BTreeMap<_, _>>(),
        };
        let both = roles(&[("leads", Role::Partner), ("staff", Role::Consultant)]);
        let role = |value: Value| directory_role(&both, Some(&value));
        assert_eq!(role(json!(["staff", "leads"])), Some(Role::Partner));
        assert_eq!(role(json!("staff")), Some(Role::Consultant));
        assert_eq!(role(json!(["Leads", 7])), None);
        assert_eq!(directory_role(&both, None), None);
        let partners_only = roles(&[("leads", Role::Partner)]);
        assert_eq!(directory_role(&partners_only, None), Some(Role::Consultant), "everyone else");
    }
}
