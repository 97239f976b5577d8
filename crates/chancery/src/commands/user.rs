//! `chancery user`: lists, invites, changes and removes portal users. They join by signing in. Changes are audited with the
//! operator as principal, and a running server applies them from the user's next request.

use super::{IfMissing, open};
use crate::cli::{GlobalArgs, User as Command, UserSelector};
use crate::operator::Operator;
use crate::output::{outln, print_json, print_table};
use crate::serve::people::Addresses;
use chancery_alerts::{PEOPLE_EMAIL_LIFETIME, factors_reset_email, invitation_email, new_email_message};
use chancery_domain::{Clock, OsRandomness, Person, Role, SystemClock, UnixMillis};
use chancery_policy::FirmResource;
use chancery_store::{AdminStore, INVITATION_LIFETIME, NewInvitation, RemovedPerson};

pub async fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(global_args, IfMissing::Fail).await?;
    let admin = store.admin();
    match command {
        Command::List { json } => {
            let (people, removed) =
                (admin.people.list_people().await?, admin.people.list_removed_people().await?);
            print_list(&people, &removed, json)?;
        }
        Command::Invite { email, role } => {
            let domain = &config.portal.company_domain;
            if !email.has_domain(domain) {
                anyhow::bail!(
                    "{email} is not at portal.company_domain ({domain}); such addresses cannot sign in"
                );
            }
            let now = SystemClock.now();
            let portal_url = Addresses::new(&config, String::new(), None, None).portal;
            let expires_at = now.after(INVITATION_LIFETIME);
            let text = invitation_email(&email, &config.portal.firm_name, &portal_url, None, expires_at);
            let message = new_email_message(text, now, now.after(PEOPLE_EMAIL_LIFETIME), &OsRandomness);
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            let new = NewInvitation { email, role, message };
            admin.invitations.invite_person(permit, &new).await?;
            outln!(
                "{} invited as a {}; a running server sends the email, valid until {}",
                new.email,
                new.role,
                expires_at.to_iso()
            );
        }
        Command::ResetFactors { selector } => {
            let person = find(&admin, &selector).await?;
            let is_other_issuer =
                config.identity.issuer.as_ref().is_some_and(|issuer| *issuer != person.identity.issuer);
            if !config.auth.is_enabled || is_other_issuer {
                anyhow::bail!(
                    "{} signs in at {}, not at the built-in identity provider; reset the factors there",
                    person.email,
                    person.identity.issuer
                );
            }
            let now = SystemClock.now();
            let text = factors_reset_email(&person.email, &config.portal.firm_name, None);
            let notice = new_email_message(text, now, now.after(PEOPLE_EMAIL_LIFETIME), &OsRandomness);
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            admin.factor_resets.reset_factors(permit, person.id, &notice, Box::new(|_| true)).await?;
            outln!(
                "second factors of {} reset, all sessions ended; a running server sends the notice",
                person.email
            );
        }
        Command::Role { selector, role } => {
            let person = find(&admin, &selector).await?;
            if role == Role::Consultant && config.portal.partners.contains(&person.email) {
                anyhow::bail!(
                    "{} is listed in portal.partners; remove the address there first, or the next sign-in restores the partner role",
                    person.email
                );
            }
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            let person = admin.people.set_role(permit, person.id, role).await?;
            outln!("{} is now a {}; takes effect on the next request", person.email, person.role);
        }
        Command::SignOut { selector } => {
            let person = find(&admin, &selector).await?;
            let at_provider = admin.session_revoker.end_provider_sessions(&person.identity.subject).await?;
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            match admin.people.sign_out_person(permit, person.id).await? {
                0 if at_provider == 0 => outln!("{} had no active sessions", person.email),
                1 => outln!("{} signed out: 1 session ended", person.email),
                ended => outln!("{} signed out: {ended} sessions ended", person.email),
            }
        }
        Command::Remove { selector } => {
            let person = find(&admin, &selector).await?;
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            for person in admin.people.remove_person(permit, person.id, Box::new(|_| true)).await? {
                admin.session_revoker.end_provider_sessions(&person.identity.subject).await?;
                outln!("{} removed: all sessions ended, sign-in blocked", person.email);
            }
        }
        Command::Restore { selector } => {
            let removed = admin.people.list_removed_people().await?;
            let with_address: Vec<Person> = removed
                .into_iter()
                .map(|removed| removed.person)
                .filter(|person| person.email == selector.email)
                .collect();
            if with_address.is_empty() {
                anyhow::bail!(
                    "no removed user with the address {}; run `chancery user list` to see removed users",
                    selector.email
                );
            }
            let person = select_user(&with_address, &selector)?;
            let permit = Operator::new()?.authorize(&admin, FirmResource).await?;
            let person = admin.people.restore_person(permit, person.id).await?;
            outln!("{} restored as a {}", person.email, person.role);
        }
    }
    store.close().await;
    Ok(())
}

/// Returns the only person with that address.
pub async fn find(store: &AdminStore, selector: &UserSelector) -> anyhow::Result<Person> {
    let email = &selector.email;
    let candidates = store.people.people_by_email(email).await?;
    if candidates.is_empty() {
        anyhow::bail!("no user with the address {email}; run `chancery user list` to see all users")
    }
    select_user(&candidates, selector)
}

/// Returns the person that the arguments identify. If several match, it fails rather than guess.
fn select_user(candidates: &[Person], selector: &UserSelector) -> anyhow::Result<Person> {
    let UserSelector { email, subject, issuer } = selector;
    let is_match = |person: &&Person| {
        subject.as_ref().is_none_or(|subject| *subject == person.identity.subject)
            && issuer.as_ref().is_none_or(|issuer| *issuer == person.identity.issuer)
    };
    let matches: Vec<&Person> = candidates.iter().filter(is_match).collect();
    match matches.as_slice() {
        [person] => Ok((*person).clone()),
        [] => anyhow::bail!(
            "no user with the address {email} has that subject or issuer; found: {}",
            identities(candidates.iter())
        ),
        several => anyhow::bail!(
            "{} users have the address {email}; select one with `--subject` (and `--issuer` if needed): {}",
            several.len(),
            identities(several.iter().copied())
        ),
    }
}

fn identities<'a>(people: impl Iterator<Item = &'a Person>) -> String {
    let describe = |person: &Person| format!("{} at {}", person.identity.subject, person.identity.issuer);
    people.map(describe).collect::<Vec<_>>().join(", ")
}

#[derive(serde::Serialize)]
struct Row {
    id: i64,
    email: String,
    name: Option<String>,
    role: &'static str,
    issuer: String,
    subject: String,
    joined_at: String,
    removed_at: Option<String>,
}

fn print_list(people: &[Person], removed: &[RemovedPerson], json: bool) -> anyhow::Result<()> {
    let row = |person: &Person, removed_at: Option<UnixMillis>| Row {
        id: person.id.0,
        email: person.email.to_string(),
        name: person.profile.name.as_ref().map(ToString::to_string),
        role: person.role.as_str(),
        issuer: person.identity.issuer.clone(),
        subject: person.identity.subject.clone(),
        joined_at: person.joined_at.to_iso(),
        removed_at: removed_at.map(UnixMillis::to_iso),
    };
    let active_rows = people.iter().map(|person| row(person, None));
    let removed_rows = removed.iter().map(|removed| row(&removed.person, Some(removed.removed_at)));
    let rows: Vec<Row> = active_rows.chain(removed_rows).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let role = if row.removed_at.is_some() { "removed" } else { row.role };
        let name = row.name.clone().unwrap_or_else(|| "-".to_owned());
        vec![row.email.clone(), role.to_owned(), name, row.joined_at.clone(), row.subject.clone()]
    };
    print_table(&["EMAIL", "ROLE", "NAME", "JOINED", "SUBJECT"], &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
