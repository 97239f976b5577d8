//! Groups consecutive views of one client by one person, so that an hour of work on a record is one line of the page. JSON and
//! CSV have every row.

use chancery_domain::{Action, ClientId, Decision, PersonId};
use chancery_store::AuditListRow;

/// What the views of one group share.
fn view(line: &AuditListRow) -> Option<(PersonId, ClientId, &str)> {
    let row = line.row.as_decision()?;
    let is_view = row.access_request.action == Action::ReadClient && row.decision == Decision::Allowed;
    match is_view && line.row.event().is_none() {
        true => Some((line.person.as_ref()?.id, line.row.client()?, line.row.principal())),
        false => None,
    }
}

/// Splits the lines into groups, in the same order. A line that is no view is a group of its own.
pub(super) fn groups(lines: &[AuditListRow]) -> impl Iterator<Item = &[AuditListRow]> {
    lines.chunk_by(|newer, older| view(newer).is_some_and(|newer| Some(newer) == view(older)))
}

/// `2026-11-13 10:02–10:40 CET`, from the times of the first and the last view.
pub(super) fn span(first: &str, last: &str) -> String {
    match (first.split_once(' '), last.split_once(' ')) {
        _ if first == last => last.to_owned(),
        (Some((day, from)), Some((last_day, to))) if day == last_day => {
            format!("{day} {}–{to}", from.split(' ').next().unwrap_or(from))
        }
        _ => format!("{first} – {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_repeats_neither_the_day_nor_the_zone() {
        assert_eq!(span("2026-11-13 10:02 CET", "2026-11-13 10:40 CET"), "2026-11-13 10:02–10:40 CET");
        assert_eq!(span("2026-11-13 10:02 CET", "2026-11-13 10:02 CET"), "2026-11-13 10:02 CET");
        assert_eq!(
            span("2026-11-13 23:58 CET", "2026-11-14 00:10 CET"),
            "2026-11-13 23:58 CET – 2026-11-14 00:10 CET"
        );
    }
}
