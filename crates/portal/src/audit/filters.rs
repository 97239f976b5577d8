//! The filters of the audit, as an address has them: `person`, `client`, `action`, `decision`, `from`, `to`, and `before` or
//! `after` for the pages. An empty one is none; one that cannot be read is named, and nothing is shown for it.

use chancery_domain::{Action, ClientId, Day, Decision, EventKind, PersonId};
use chancery_store::{AuditPlace, AuditQuery, AuditTurn};
use chancery_web::{ErrorPage, Problems};
use openidconnect::url::form_urlencoded;
use std::fmt::Display;
use std::str::FromStr;

/// What was typed, to be shown again.
#[derive(Clone, Debug, Default)]
pub(super) struct Typed {
    pub(super) person: String,
    pub(super) client: String,
    pub(super) action: String,
    pub(super) decision: String,
    pub(super) from: String,
    pub(super) to: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Filters {
    pub(super) typed: Typed,
    /// Of what could be read.
    pub(super) query: AuditQuery,
    pub(super) problems: Problems,
}

impl Filters {
    /// Of several values of one name the last counts, as with a form that was filled in twice.
    pub(super) fn read(pairs: &[(String, String)]) -> Self {
        let value = |name: &str| {
            let last = pairs.iter().rfind(|(key, _)| key == name);
            last.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let typed = Typed {
            person: value("person"),
            client: value("client"),
            action: value("action"),
            decision: value("decision"),
            from: value("from"),
            to: value("to"),
        };
        let mut problems = Problems::default();
        let mut reader = Reader { problems: &mut problems };
        let person = reader.parse("person", &typed.person, "Choose a person from the list.");
        let client =
            reader.parse("client", &typed.client, "A client’s number is a whole number, for example 1042.");
        // An event where it is no action: no event has the name of one.
        let event = typed.action.parse::<EventKind>().ok();
        let action = match event {
            Some(_) => None,
            None => reader.parse::<Action>("action", &typed.action, "Choose what was asked from the list."),
        };
        let decision =
            reader.parse::<Decision>("decision", &typed.decision, "Choose `allowed` or `refused`.");
        let from = reader.day("from", &typed.from);
        let to = reader.day("to", &typed.to);
        let before = reader.parse("before", &value("before"), "Begin again without it.");
        let after = reader.parse("after", &value("after"), "Begin again without it.");
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            problems.add("to", "The last day is before the first. Exchange them.");
        }
        let query = AuditQuery {
            person: person.map(PersonId),
            client: client.map(ClientId),
            action,
            event,
            decision,
            from: from.map(Day::start),
            until: to.map(Day::end),
            turn: match (before, after) {
                (Some(place), _) => Some(AuditTurn::Before(AuditPlace(place))),
                (None, Some(place)) => Some(AuditTurn::After(AuditPlace(place))),
                (None, None) => None,
            },
        };
        Self { typed, query, problems }
    }

    pub(super) fn is_any(&self) -> bool {
        self.pairs().next().is_some()
    }

    /// The same filters in another place: `path?person=3&…&before=17`.
    pub(super) fn address(&self, path: &str, turn: Option<(&str, AuditPlace)>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs());
        if let Some((name, AuditPlace(place))) = turn {
            query.append_pair(name, &place.to_string());
        }
        match query.finish() {
            query if query.is_empty() => path.to_owned(),
            query => format!("{path}?{query}"),
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let Typed { person, client, action, decision, from, to } = &self.typed;
        let all = [
            ("person", person),
            ("client", client),
            ("action", action),
            ("decision", decision),
            ("from", from),
            ("to", to),
        ];
        all.into_iter().map(|(name, value)| (name, value.as_str())).filter(|(_, value)| !value.is_empty())
    }

    /// For programs and files, where no form can be shown again.
    pub(super) fn error(&self) -> Option<ErrorPage> {
        let error = ErrorPage::invalid_values("A filter cannot be read", &self.problems)?;
        Some(error.next_link("/audit", "Go to the audit"))
    }
}

struct Reader<'a> {
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn parse<T: FromStr>(&mut self, field: &'static str, text: &str, what: impl Display) -> Option<T> {
        if text.is_empty() {
            return None;
        }
        let read = text.parse().ok();
        if read.is_none() {
            self.problems.add(field, what.to_string());
        }
        read
    }

    fn day(&mut self, field: &'static str, text: &str) -> Option<Day> {
        self.parse(field, text, "Write a day as YYYY-MM-DD, for example 2026-11-15.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::UnixMillis;

    fn read(query: &str) -> Filters {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Filters::read(&pairs)
    }

    #[test]
    fn every_filter_is_read_and_the_last_day_is_a_whole_one() {
        let filters = read(
            "person=3&client=+1042+&action=readClient&decision=refused&from=2026-11-13&to=2026-11-13&before=17",
        );
        assert_eq!(filters.problems, Problems::default());
        let day = UnixMillis(1_794_528_000_000);
        assert_eq!(
            filters.query,
            AuditQuery {
                person: Some(PersonId(3)),
                client: Some(ClientId(1042)),
                action: Some(Action::ReadClient),
                event: None,
                decision: Some(Decision::Refused),
                from: Some(day),
                until: Some(UnixMillis(day.0 + 86_400_000)),
                turn: Some(AuditTurn::Before(AuditPlace(17))),
            }
        );
        assert_eq!(
            filters.address("/audit", Some(("after", AuditPlace(40)))),
            "/audit?person=3&client=1042&action=readClient&decision=refused&from=2026-11-13&to=2026-11-13&after=40"
        );
    }

    #[test]
    fn an_event_is_a_choice_like_an_action() {
        let filters = read("action=signedIn");
        assert_eq!(filters.problems, Problems::default());
        assert_eq!(filters.query, AuditQuery { event: Some(EventKind::SignedIn), ..AuditQuery::default() });
        assert_eq!(filters.address("/audit", None), "/audit?action=signedIn");
    }

    #[test]
    fn no_filter_and_empty_ones_are_all_rows() {
        for query in ["", "person=&client=&action=&decision=&from=&to=", "client=++"] {
            let filters = read(query);
            assert_eq!((filters.query.clone(), filters.is_any()), (AuditQuery::default(), false));
            assert_eq!(filters.address("/audit.csv", None), "/audit.csv");
            assert!(filters.error().is_none());
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_to_write() {
        for (query, field, word) in [
            ("person=ruth", "person", "list"),
            ("client=10x", "client", "1042"),
            ("client=99999999999999999999", "client", "whole number"),
            ("action=peek", "action", "list"),
            ("decision=maybe", "decision", "refused"),
            ("from=13.11.2026", "from", "YYYY-MM-DD"),
            ("to=yesterday", "to", "YYYY-MM-DD"),
            ("from=2026-11-14&to=2026-11-13", "to", "before the first"),
            ("before=x", "before", "Begin again"),
        ] {
            let filters = read(query);
            assert!(
                filters.problems.of(field).is_some_and(|what| what.contains(word)),
                "{query}: {filters:?}"
            );
            let error = filters.error().unwrap();
            assert!(error.reason.starts_with(&format!("`{field}`: ")), "{}", error.reason);
        }
    }
}
