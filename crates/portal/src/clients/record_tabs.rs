//! The tabs of a record, and the filter of its disputes by status, each with its number of entries.

use super::record_query::{RecordQuery, Tab, TimelineView};
use chancery_domain::{ClientId, DisputeStatus, EntryKind};
use chancery_store::EntryCounts;

pub(super) struct TabLink {
    pub(super) id: &'static str,
    pub(super) label: &'static str,
    pub(super) count: u64,
    pub(super) href: String,
    pub(super) is_current: bool,
}

pub(super) struct StateLink {
    pub(super) label: &'static str,
    pub(super) count: u64,
    pub(super) href: String,
    pub(super) is_current: bool,
}

pub(super) fn tabs(client: ClientId, shown: Tab, counts: &EntryCounts) -> Vec<TabLink> {
    let tab = |tab: Tab, id, label| TabLink {
        id,
        label,
        count: count(tab, None, counts),
        href: view_href(client, TimelineView { tab, ..TimelineView::default() }),
        is_current: tab == shown,
    };
    let mut tabs = vec![
        tab(Tab::All, "tab-everything", "Everything"),
        tab(Tab::Of(EntryKind::MeetingNote), "tab-notes", "Meeting notes"),
        tab(Tab::Of(EntryKind::BillingDispute), "tab-disputes", "Disputes"),
        tab(Tab::Of(EntryKind::DraftLetter), "tab-letters", "Letters"),
    ];
    if counts.archived > 0 || shown == Tab::Archived {
        tabs.push(tab(Tab::Archived, "tab-archived", "Archived"));
    }
    tabs
}

fn view_href(client: ClientId, view: TimelineView) -> String {
    RecordQuery { view, ..RecordQuery::default() }.href(client)
}

/// Empty unless disputes are shown.
pub(super) fn states(client: ClientId, shown: TimelineView, counts: &EntryCounts) -> Vec<StateLink> {
    let tab = Tab::Of(EntryKind::BillingDispute);
    if shown.tab != tab {
        return Vec::new();
    }
    let link = |state: Option<DisputeStatus>, label| StateLink {
        label,
        count: count(tab, state, counts),
        href: view_href(client, TimelineView { tab, state, older: None }),
        is_current: state == shown.state,
    };
    vec![
        link(None, "All"),
        link(Some(DisputeStatus::Open), "Open"),
        link(Some(DisputeStatus::Resolved), "Resolved"),
    ]
}

/// `state` is for disputes.
pub(super) fn count(tab: Tab, state: Option<DisputeStatus>, counts: &EntryCounts) -> u64 {
    match (tab, state) {
        (Tab::Of(EntryKind::BillingDispute), Some(DisputeStatus::Open)) => return counts.open_disputes,
        (Tab::Of(EntryKind::BillingDispute), Some(DisputeStatus::Resolved)) => {
            return counts.billing_disputes.saturating_sub(counts.open_disputes);
        }
        _ => {}
    }
    match tab {
        Tab::All => counts.meeting_notes + counts.billing_disputes + counts.draft_letters,
        Tab::Of(EntryKind::MeetingNote) => counts.meeting_notes,
        Tab::Of(EntryKind::BillingDispute) => counts.billing_disputes,
        Tab::Of(EntryKind::DraftLetter) => counts.draft_letters,
        Tab::Archived => counts.archived,
    }
}
