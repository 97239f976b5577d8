//! `chancery user`: the people of the portal. They are made by signing in; here they are seen, changed and removed, and a
//! server that runs minds it from their next request on.

use super::{Missing, open};
use crate::cli::{Place, User as Command, Who};
use crate::output::{print_json, print_table, say};
use chancery_domain::{Clock, Person, SystemClock};
use chancery_store::Store;

pub async fn run(place: &Place, command: Command) -> anyhow::Result<()> {
    let (_, store) = open(place, Missing::Refuse).await?;
    match command {
        Command::List { json } => print_list(&store.list_people().await?, json)?,
        Command::Role { who, role } => {
            let person = find(&*store, &who).await?;
            let person = store.set_role(person.id, role).await?;
            say!("{} is a {} from the next request on", person.email, person.role);
        }
        Command::SignOut { who } => {
            let person = find(&*store, &who).await?;
            match store.end_all_sessions(person.id, None).await? {
                0 => say!("{} was not signed in", person.email),
                1 => say!("{} is signed out: 1 session ended", person.email),
                ended => say!("{} is signed out: {ended} sessions ended", person.email),
            }
        }
        Command::Remove { who } => {
            let person = find(&*store, &who).await?;
            store.remove_person(person.id, SystemClock.now()).await?;
            say!("{} is removed: every session has ended, and signing in is refused", person.email);
        }
    }
    store.close().await;
    Ok(())
}

/// The one person that is meant. Where several have the address, none is guessed at.
async fn find(store: &dyn Store, who: &Who) -> anyhow::Result<Person> {
    let Who { email, subject, issuer } = who;
    let has_address = store.people_with_email(email).await?;
    let is_meant = |person: &&Person| {
        subject.as_ref().is_none_or(|subject| *subject == person.identity.subject)
            && issuer.as_ref().is_none_or(|issuer| *issuer == person.identity.issuer)
    };
    let meant: Vec<&Person> = has_address.iter().filter(is_meant).collect();
    match meant.as_slice() {
        [person] => Ok((*person).clone()),
        [] if has_address.is_empty() => {
            anyhow::bail!("nobody with the address {email} has signed in; `chancery user list` shows who has")
        }
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
}

fn print_list(people: &[Person], json: bool) -> anyhow::Result<()> {
    let row = |person: &Person| Row {
        id: person.id.0,
        email: person.email.to_string(),
        role: person.role.as_str(),
        issuer: person.identity.issuer.clone(),
        subject: person.identity.subject.clone(),
        joined_at: person.joined_at.to_iso(),
    };
    let rows: Vec<Row> = people.iter().map(row).collect();
    if json {
        return print_json(&rows);
    }
    let cells =
        |row: &Row| vec![row.email.clone(), row.role.to_owned(), row.joined_at.clone(), row.subject.clone()];
    print_table(&["EMAIL", "ROLE", "JOINED", "SUBJECT"], &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}
