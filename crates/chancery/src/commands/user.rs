//! `chancery user`: the people of the portal. They join by signing in; here they are listed, changed and removed, which is
//! audited as the operator's, and a server that runs minds it from their next request on.

use super::{Missing, open};
use crate::cli::{Place, User as Command, Who};
use crate::operator::Operator;
use crate::output::{print_json, print_table, say};
use chancery_domain::{Person, Role, UnixMillis};
use chancery_policy::TheFirm;
use chancery_store::{AdminStore, RemovedPerson};

pub async fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    let (config, store) = open(place, Missing::Refuse).await?;
    let admin = store.admin();
    match command {
        Command::List { json } => {
            let (people, removed) =
                (admin.people.list_people().await?, admin.people.list_removed_people().await?);
            print_list(&people, &removed, json)?;
        }
        Command::Role { who, role } => {
            let person = find(&admin, &who).await?;
            if role == Role::Consultant && config.portal.partners.contains(&person.email) {
                anyhow::bail!(
                    "{} is listed in portal.partners; take the address out there first, or the next sign-in makes a partner again",
                    person.email
                );
            }
            let permit = Operator::new()?.ask(&admin, TheFirm).await?;
            let person = admin.people.set_role(permit, person.id, role).await?;
            say!("{} is a {} from the next request on", person.email, person.role);
        }
        Command::SignOut { who } => {
            let person = find(&admin, &who).await?;
            let at_provider =
                admin.session_revoker.end_provider_sessions_of(&person.identity.subject).await?;
            let permit = Operator::new()?.ask(&admin, TheFirm).await?;
            match admin.people.sign_out_person(permit, person.id).await? {
                0 if at_provider == 0 => say!("{} was not signed in", person.email),
                1 => say!("{} is signed out: 1 session ended", person.email),
                ended => say!("{} is signed out: {ended} sessions ended", person.email),
            }
        }
        Command::Remove { who } => {
            let person = find(&admin, &who).await?;
            let permit = Operator::new()?.ask(&admin, TheFirm).await?;
            admin.people.remove_person(permit, person.id).await?;
            admin.session_revoker.end_provider_sessions_of(&person.identity.subject).await?;
            say!("{} is removed: every session has ended, and signing in is refused", person.email);
        }
        Command::Restore { who } => {
            let removed = admin.people.list_removed_people().await?;
            let with_address: Vec<Person> = removed
                .into_iter()
                .map(|removed| removed.person)
                .filter(|person| person.email == who.email)
                .collect();
            if with_address.is_empty() {
                anyhow::bail!(
                    "nobody with the address {} was removed; `chancery user list` shows who was",
                    who.email
                );
            }
            let person = one_of(&with_address, &who)?;
            let permit = Operator::new()?.ask(&admin, TheFirm).await?;
            let person = admin.people.restore_person(permit, person.id).await?;
            say!("{} may sign in again, as a {}", person.email, person.role);
        }
    }
    store.close().await;
    Ok(())
}

/// The one person with that address.
pub async fn find(store: &AdminStore, who: &Who) -> anyhow::Result<Person> {
    let email = &who.email;
    let has_address = store.people.people_with_email(email).await?;
    if has_address.is_empty() {
        anyhow::bail!(
            "nobody with the address {email} has signed in, or they were removed; `chancery user list` shows who has"
        )
    }
    one_of(&has_address, who)
}

/// The one person that is meant. Where several have the address, none is guessed at.
fn one_of(has_address: &[Person], who: &Who) -> anyhow::Result<Person> {
    let Who { email, subject, issuer } = who;
    let is_meant = |person: &&Person| {
        subject.as_ref().is_none_or(|subject| *subject == person.identity.subject)
            && issuer.as_ref().is_none_or(|issuer| *issuer == person.identity.issuer)
    };
    let meant: Vec<&Person> = has_address.iter().filter(is_meant).collect();
    match meant.as_slice() {
        [person] => Ok((*person).clone()),
        [] => anyhow::bail!(
            "nobody with the address {email} has that subject or issuer; there are: {}",
            identities(has_address.iter())
        ),
        several => anyhow::bail!(
            "{} people have the address {email}; say which with `--subject`, and `--issuer` where that is not enough: {}",
            several.len(),
            identities(several.iter().copied())
        ),
    }
}

fn identities<'a>(people: impl Iterator<Item = &'a Person>) -> String {
    let words = |person: &Person| format!("{} at {}", person.identity.subject, person.identity.issuer);
    people.map(words).collect::<Vec<_>>().join(", ")
}

#[derive(serde::Serialize)]
struct Row {
    id: i64,
    email: String,
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
        role: person.role.as_str(),
        issuer: person.identity.issuer.clone(),
        subject: person.identity.subject.clone(),
        joined_at: person.joined_at.to_iso(),
        removed_at: removed_at.map(UnixMillis::to_iso),
    };
    let present = people.iter().map(|person| row(person, None));
    let gone = removed.iter().map(|removed| row(&removed.person, Some(removed.removed_at)));
    let rows: Vec<Row> = present.chain(gone).collect();
    if json {
        return print_json(&rows);
    }
    let cells = |row: &Row| {
        let role = if row.removed_at.is_some() { "removed" } else { row.role };
        vec![row.email.clone(), role.to_owned(), row.joined_at.clone(), row.subject.clone()]
    };
    print_table(&["EMAIL", "ROLE", "JOINED", "SUBJECT"], &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
