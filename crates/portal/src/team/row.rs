//! A person as the team pages show them.

use crate::person_names::{DisplayPerson, PersonNames};
use crate::time_format::{DisplayTime, LocalTime};
use chancery_domain::{PersonId, Role, UnixMillis, group_thousands};
use chancery_store::TeamMember;

pub(super) struct Row {
    pub(super) id: i64,
    pub(super) person: DisplayPerson,
    /// Name and address, for choices.
    pub(super) label: String,
    pub(super) is_you: bool,
    pub(super) is_partner: bool,
    pub(super) clients: u64,
    pub(super) archived_clients: u64,
    pub(super) sessions: u64,
    pub(super) last_used: Option<DisplayTime>,
    pub(super) joined: DisplayTime,
    pub(super) removed: Option<DisplayTime>,
}

impl Row {
    pub(super) fn new(member: &TeamMember, you: PersonId, names: &PersonNames, local: &LocalTime) -> Self {
        let TeamMember { person, removed_at, clients, archived_clients, sessions, last_used_at } = member;
        let display_time = |at: UnixMillis| DisplayTime::new(at, local);
        Self {
            id: person.id.0,
            person: names.of_person(person),
            label: names.full_text(person.id, &person.email),
            is_you: person.id == you,
            is_partner: person.role == Role::Partner,
            clients: *clients,
            archived_clients: *archived_clients,
            sessions: *sessions,
            last_used: last_used_at.map(display_time),
            joined: display_time(person.joined_at),
            removed: removed_at.map(display_time),
        }
    }

    /// The name, or the address of a person without one.
    pub(super) fn name(&self) -> &str {
        &self.person.text
    }

    pub(super) fn role(&self) -> &'static str {
        role_label(if self.is_partner { Role::Partner } else { Role::Consultant })
    }

    pub(super) fn total_clients(&self) -> u64 {
        self.clients + self.archived_clients
    }

    /// `12 clients`, `1 client and 3 archived ones`.
    pub(super) fn owned_text(&self) -> String {
        match (self.clients, self.archived_clients) {
            (clients, 0) => pluralize(clients, "client"),
            (0, archived) => pluralize(archived, "archived client"),
            (clients, archived) => {
                format!("{} and {}", pluralize(clients, "client"), pluralize(archived, "archived one"))
            }
        }
    }
}

pub(super) fn role_label(role: Role) -> &'static str {
    match role {
        Role::Consultant => "Consultant",
        Role::Partner => "Partner",
    }
}

pub(super) fn pluralize(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", group_thousands(number), if number == 1 { "" } else { "s" })
}
