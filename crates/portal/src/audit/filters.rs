//! The audit filters in a query string: `person`, `client`, `action`, `decision`, `from`, `to`, and `before` or `after` for
//! pagination. An empty filter is ignored. An invalid one is reported, and no rows are shown.

use crate::time_format::LocalTime;
use chancery_domain::{Action, ClientId, Day, Decision, EventKind, PersonId};
use chancery_store::{AuditCursor, AuditQuery, AuditRowId};
use chancery_web::{ErrorPage, Problems};
use std::fmt::Display;
use std::str::FromStr;

/// The typed values, for showing the form again.
#[derive(Clone, Debug, Default)]
pub(super) struct FilterInput {
    pub(super) person: String,
    pub(super) client: String,
    pub(super) action: String,
    pub(super) decision: String,
    pub(super) from: String,
    pub(super) to: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Filters {
    pub(super) typed: FilterInput,
    /// Contains only the valid filters.
    pub(super) query: AuditQuery,
    pub(super) problems: Problems,
}

impl Filters {
    /// If a name occurs several times, the last value counts.
    /// Days are in the zone of `local`.
    pub(super) fn read(pairs: &[(String, String)], local: &LocalTime) -> Self {
        let value = |name: &str| {
            let last = pairs.iter().rfind(|(key, _)| key == name);
            last.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let typed = FilterInput {
            person: value("person"),
            client: value("client"),
            action: value("action"),
            decision: value("decision"),
            from: value("from"),
            to: value("to"),
        };
        let mut problems = Problems::default();
        let mut reader = Reader { problems: &mut problems };
        let person = reader.parse("person", &typed.person, "Choose a person from the list");
        let client = reader.parse("client", &typed.client, "Enter a client number like 1042");
        // Try an event first: no event shares its name with an action.
        let event = typed.action.parse::<EventKind>().ok();
        let action = match event {
            Some(_) => None,
            None => reader.parse::<Action>("action", &typed.action, "Choose an action from the list"),
        };
        let decision = reader.parse::<Decision>("decision", &typed.decision, "Use allowed or refused");
        let from = reader.day("from", &typed.from);
        let to = reader.day("to", &typed.to);
        let before = reader.parse("before", &value("before"), "Remove it from the link");
        let after = reader.parse("after", &value("after"), "Remove it from the link");
        if let (Some(from), Some(to)) = (from, to)
            && from > to
        {
            problems.add("to", "The end date must be on or after the start date");
        }
        let query = AuditQuery {
            person: person.map(PersonId),
            client: client.map(ClientId),
            action,
            event,
            decision,
            from: from.map(|day| local.start_of(day)),
            until: to.map(|day| local.end_of(day)),
            cursor: match (before, after) {
                (Some(id), _) => Some(AuditCursor::Before(AuditRowId(id))),
                (None, Some(id)) => Some(AuditCursor::After(AuditRowId(id))),
                (None, None) => None,
            },
        };
        Self { typed, query, problems }
    }

    pub(super) fn has_any(&self) -> bool {
        self.pairs().next().is_some()
    }

    /// The same filters on another page or path: `path?person=3&…&before=17`.
    pub(super) fn href(&self, path: &str, cursor: Option<(&str, AuditRowId)>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs());
        if let Some((name, AuditRowId(id))) = cursor {
            query.append_pair(name, &id.to_string());
        }
        match query.finish() {
            query if query.is_empty() => path.to_owned(),
            query => format!("{path}?{query}"),
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let FilterInput { person, client, action, decision, from, to } = &self.typed;
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

    /// For JSON and CSV, which cannot show the form again.
    pub(super) fn error(&self) -> Option<ErrorPage> {
        let error = ErrorPage::invalid_input("Invalid filter", &self.problems)?;
        Some(error.next_link("/audit", "Go to audit log"))
    }
}

struct Reader<'a> {
    problems: &'a mut Problems,
}

impl Reader<'_> {
    fn parse<T: FromStr>(&mut self, field: &'static str, text: &str, message: impl Display) -> Option<T> {
        if text.is_empty() {
            return None;
        }
        let read = text.parse().ok();
        if read.is_none() {
            self.problems.add(field, message.to_string());
        }
        read
    }

    fn day(&mut self, field: &'static str, text: &str) -> Option<Day> {
        self.parse(field, text, "Enter a date like 2026-11-15")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::UnixMillis;

    fn read(query: &str) -> Filters {
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        Filters::read(&pairs, &LocalTime::utc(UnixMillis(1_794_561_240_000)))
    }

    #[test]
    fn filters_parse_and_include_the_whole_end_date() {
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
                decision: Some(Decision::Denied),
                from: Some(day),
                until: Some(UnixMillis(day.0 + 86_400_000)),
                cursor: Some(AuditCursor::Before(AuditRowId(17))),
            }
        );
        assert_eq!(
            filters.href("/audit", Some(("after", AuditRowId(40)))),
            "/audit?person=3&client=1042&action=readClient&decision=refused&from=2026-11-13&to=2026-11-13&after=40"
        );
    }

    #[test]
    fn action_filter_accepts_events() {
        let filters = read("action=signedIn");
        assert_eq!(filters.problems, Problems::default());
        assert_eq!(filters.query, AuditQuery { event: Some(EventKind::SignedIn), ..AuditQuery::default() });
        assert_eq!(filters.href("/audit", None), "/audit?action=signedIn");
    }

    #[test]
    fn empty_filters_match_all_rows() {
        for query in ["", "person=&client=&action=&decision=&from=&to=", "client=++"] {
            let filters = read(query);
            assert_eq!((filters.query.clone(), filters.has_any()), (AuditQuery::default(), false));
            assert_eq!(filters.href("/audit.csv", None), "/audit.csv");
            assert!(filters.error().is_none());
        }
    }

    #[test]
    fn invalid_filters_say_what_to_enter() {
        for (query, field, word) in [
            ("person=ruth", "person", "list"),
            ("client=10x", "client", "1042"),
            ("client=99999999999999999999", "client", "client number"),
            ("action=peek", "action", "list"),
            ("decision=maybe", "decision", "refused"),
            ("from=13.11.2026", "from", "2026-11-15"),
            ("to=yesterday", "to", "2026-11-15"),
            ("from=2026-11-14&to=2026-11-13", "to", "after the start date"),
            ("before=x", "before", "Remove it from the link"),
        ] {
            let filters = read(query);
            assert!(
                filters.problems.of(field).is_some_and(|message| message.contains(word)),
                "{query}: {filters:?}"
            );
            let error = filters.error().unwrap();
            assert!(error.reason.starts_with(&format!("`{field}`: ")), "{}", error.reason);
        }
    }
}
