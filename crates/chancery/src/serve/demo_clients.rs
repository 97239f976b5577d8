//! The demo firm's clients: `demo/clients.jsonl`, an ordinary import file, shifted in time so that its newest entry falls
//! within the last day. Does nothing if the firm already has clients.

use super::demo_templates;
use super::people::SharedDeps;
use crate::operator::Operator;
use anyhow::bail;
use chancery_client_files::{CheckedClient, FileContext, Format, UsersByEmail, read_clients};
use chancery_domain::{Currency, Day, EmailAddress, PersonId, UnixMillis};
use chancery_policy::NewClientResource;

const CLIENTS: &str = include_str!("../../demo/clients.jsonl");
/// The email domain in the file; it is replaced by the firm's own domain.
const DOMAIN: &str = "example.com";
const DAY_MS: i64 = 86_400_000;
/// 1 December 2026, after all dates in the file: on a clock that is behind, they are not in the future.
const FILE_WRITTEN_AT: UnixMillis = UnixMillis(1_796_083_200_000);

/// `people` maps the names of owners and authors in the file to person ids.
pub async fn prepare(deps: &SharedDeps, people: &[(&str, PersonId)]) -> anyhow::Result<()> {
    let store = deps.store.as_ref();
    if store.client_imports.has_clients().await? {
        return Ok(());
    }
    let (operator, admin) = (Operator::new()?, store.admin());
    let mut permitted = Vec::new();
    for CheckedClient { owner, new } in clients(people, deps.clock.now())? {
        permitted.push((operator.authorize(&admin, NewClientResource(owner)).await?, new));
    }
    store.client_imports.import_clients(permitted, &|_| {}).await?;
    demo_templates::prepare(&admin).await
}

fn clients(people: &[(&str, PersonId)], now: UnixMillis) -> anyhow::Result<Vec<CheckedClient>> {
    // The file's amounts have two decimals, whatever the firm's currency.
    let context = FileContext { now: now.max(FILE_WRITTEN_AT), currency: Currency::USD };
    let mut by_address = UsersByEmail::default();
    for (name, id) in people {
        by_address.add(format!("{name}@{DOMAIN}").parse::<EmailAddress>()?, *id);
    }
    let mut clients = match read_clients(CLIENTS, Format::Jsonl, &by_address, context) {
        Ok(clients) => clients,
        Err(problems) => bail!("invalid demo clients:\n{problems}"),
    };
    shift_dates(now, &mut clients);
    Ok(clients)
}

/// Shifts by whole days, so that times of day stay within office hours.
fn shift_dates(now: UnixMillis, clients: &mut [CheckedClient]) {
    let entries = || clients.iter().flat_map(|client| &client.new.entries);
    let Some(newest) = entries().map(|entry| entry.at).max() else { return };
    let days = (now.0 - newest.0).div_euclid(DAY_MS);
    for client in clients {
        let since = &mut client.new.details.since;
        *since = since.map(|day| Day::containing(UnixMillis(day.start().0 + days * DAY_MS)));
        for entry in &mut client.new.entries {
            entry.at.0 += days * DAY_MS;
            let due = &mut entry.dispute.due;
            *due = due.map(|day| Day::containing(UnixMillis(day.start().0 + days * DAY_MS)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::EntryKind;

    const NOW: UnixMillis = UnixMillis(1_830_000_000_000);

    fn demo() -> Vec<CheckedClient> {
        let people = [("maya", PersonId(1)), ("omar", PersonId(2)), ("ruth", PersonId(3))];
        clients(&people, NOW).unwrap()
    }

    #[test]
    fn newest_demo_entry_is_within_the_last_day() {
        let clients = demo();
        let newest = clients.iter().flat_map(|client| &client.new.entries).map(|entry| entry.at).max();
        assert!((NOW.0 - DAY_MS..=NOW.0).contains(&newest.unwrap().0), "{newest:?}");
    }

    #[test]
    fn demo_has_overdue_disputes_and_some_due_this_week() {
        let (clients, today) = (demo(), Day::containing(NOW));
        let entries = clients.iter().flat_map(|client| &client.new.entries);
        let due: Vec<i32> = entries
            .filter(|entry| entry.is_open)
            .filter_map(|entry| entry.dispute.due)
            .map(|day| day.0 - today.0)
            .collect();
        assert!(due.iter().any(|days| *days < 0), "{due:?}");
        assert!(due.iter().any(|days| (0..7).contains(days)), "{due:?}");
    }

    #[test]
    fn demo_clients_cover_every_case_without_duplicates() {
        let clients = demo();
        assert_eq!(clients.len(), 38);
        let counts: Vec<usize> = clients.iter().map(|client| client.new.entries.len()).collect();
        assert!(counts.contains(&0) && counts.iter().any(|count| *count >= 15), "{counts:?}");
        let entries: Vec<_> = clients.iter().flat_map(|client| &client.new.entries).collect();
        for kind in [EntryKind::BillingDispute, EntryKind::DraftLetter] {
            for is_open in [true, false] {
                let matching = entries.iter().filter(|entry| entry.kind == kind && entry.is_open == is_open);
                assert!(matching.count() >= 3, "{kind}, open: {is_open}");
            }
        }
        let mut paragraphs: Vec<&str> = entries
            .iter()
            .flat_map(|entry| entry.text.as_str().split("\n\n"))
            .filter(|paragraph| paragraph.len() > 60)
            .collect();
        let all = paragraphs.len();
        paragraphs.sort_unstable();
        paragraphs.dedup();
        assert_eq!(paragraphs.len(), all, "a paragraph is there twice");
    }
}
