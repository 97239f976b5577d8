//! The expected response of every route, by principal.

use crate::{demo_mail, scripts};
use chancery_domain::Action;

pub(in crate::tests) struct Case {
    pub(in crate::tests) method: &'static str,
    pub(in crate::tests) path: &'static str,
    pub(in crate::tests) guard: Guard,
    /// The action that the policy decides. `None` if the route concerns only the caller.
    pub(in crate::tests) asks: Option<Action>,
    /// Names in braces stand for values created for each request; see `Fresh`.
    pub(in crate::tests) form: &'static str,
    /// The status if allowed.
    pub(in crate::tests) done: u16,
}

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tests) enum Guard {
    /// Open to everyone. `signed_in` is the status for signed-in users.
    Open {
        signed_in: u16,
    },
    /// For signed-in users, about themselves or what they may see.
    SignedIn,
    /// For the future owner of the client, and for partners.
    NewClient,
    /// About a client: for its owner and for partners.
    OwnerOrPartner,
    /// About a client: for partners.
    PartnerOfClient,
    Partner,
}

/// The principals of the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tests) enum Caller {
    SignedOutBrowser,
    SignedOutProgram,
    ForgedSession,
    EndedSession,
    /// A consultant who neither owns the client nor is a partner: wrong owner and wrong role.
    Consultant,
    ConsultantNoSuchClient,
    Owner,
    Partner,
    PartnerNoSuchClient,
}

impl Caller {
    pub(in crate::tests) const ALL: [Self; 9] = [
        Self::SignedOutBrowser,
        Self::SignedOutProgram,
        Self::ForgedSession,
        Self::EndedSession,
        Self::Consultant,
        Self::ConsultantNoSuchClient,
        Self::Owner,
        Self::Partner,
        Self::PartnerNoSuchClient,
    ];

    pub(in crate::tests) fn is_signed_in(self) -> bool {
        !matches!(
            self,
            Self::SignedOutBrowser | Self::SignedOutProgram | Self::ForgedSession | Self::EndedSession
        )
    }

    pub(in crate::tests) fn requests_missing_client(self) -> bool {
        matches!(self, Self::ConsultantNoSuchClient | Self::PartnerNoSuchClient)
    }
}

/// The column header in docs/authorization.md.
impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SignedOutBrowser => "signed out, browser",
            Self::SignedOutProgram => "signed out, program",
            Self::ForgedSession => "forged session",
            Self::EndedSession => "ended session",
            Self::Consultant => "consultant, not theirs",
            Self::ConsultantNoSuchClient => "consultant, no such client",
            Self::Owner => "owner",
            Self::Partner => "partner",
            Self::PartnerNoSuchClient => "partner, no such client",
        })
    }
}

impl Case {
    /// The status that the principal must get. `None` if the route has no such case.
    pub(in crate::tests) fn expected(&self, principal: Caller) -> Option<u16> {
        use Guard::*;
        let done = Some(self.done);
        match (principal, self.guard) {
            (principal, Open { .. }) if !principal.is_signed_in() => done,
            (Caller::Consultant | Caller::Partner, Open { signed_in }) => Some(signed_in),
            (_, Open { .. }) => None,
            (Caller::SignedOutProgram, _) => Some(401),
            (principal, _) if !principal.is_signed_in() && self.method == "POST" => Some(401),
            (principal, _) if !principal.is_signed_in() => Some(303),
            (Caller::Consultant, SignedIn) => done,
            (Caller::Consultant, _) => Some(403),
            (Caller::ConsultantNoSuchClient, OwnerOrPartner | PartnerOfClient) => Some(403),
            (Caller::Owner, NewClient | OwnerOrPartner) => done,
            (Caller::Owner, PartnerOfClient) => Some(403),
            (Caller::Partner, _) => done,
            (Caller::PartnerNoSuchClient, OwnerOrPartner | PartnerOfClient) => Some(404),
            _ => None,
        }
    }
}

const fn open(
    method: &'static str,
    path: &'static str,
    form: &'static str,
    done: u16,
    signed_in: u16,
) -> Case {
    Case { method, path, guard: Guard::Open { signed_in }, asks: None, form, done }
}

const fn read(path: &'static str, guard: Guard, asks: Option<Action>) -> Case {
    Case { method: "GET", path, guard, asks, form: "", done: 200 }
}

const fn post(path: &'static str, guard: Guard, asks: Option<Action>, form: &'static str) -> Case {
    Case { method: "POST", path, guard, asks, form, done: 303 }
}

pub(in crate::tests) const CASES: &[Case] = &[
    open("GET", "/", "", 200, 303),
    // The identity provider of these tests is unreachable.
    open("GET", "/auth/sign-in", "", 503, 503),
    open("GET", "/auth/callback", "", 400, 400),
    open("GET", "/auth/code", "", 410, 410),
    open("POST", "/auth/code", "code=000000", 410, 410),
    open("POST", "/auth/code/resend", "", 410, 410),
    open("POST", "/auth/sign-out", "", 303, 303),
    // No logout token is sent.
    open("POST", "/auth/backchannel-logout", "", 400, 400),
    open("GET", "/signed-out", "", 200, 303),
    read("/profile", Guard::SignedIn, None),
    post("/profile", Guard::SignedIn, None, "name=Somebody&time_zone=Europe%2FBerlin"),
    read("/sessions", Guard::SignedIn, None),
    post("/sessions/end", Guard::SignedIn, None, "end=0"),
    read("/home", Guard::SignedIn, Some(Action::ListClients)),
    read("/clients", Guard::SignedIn, Some(Action::ListClients)),
    read("/clients/export", Guard::SignedIn, None),
    read("/clients/export.jsonl", Guard::SignedIn, Some(Action::ExportClient)),
    read("/clients/export.csv", Guard::SignedIn, Some(Action::ExportClient)),
    post("/clients", Guard::NewClient, Some(Action::CreateClient), "name=Fresh+{prefix}&owner={owner}"),
    read("/clients/new", Guard::SignedIn, None),
    read("/clients/{id}", Guard::OwnerOrPartner, Some(Action::ReadClient)),
    post("/clients/{id}", Guard::OwnerOrPartner, Some(Action::EditClient), "name=Renamed&version=1"),
    post("/clients/{id}/archive", Guard::OwnerOrPartner, Some(Action::ArchiveClient), "version=1"),
    post("/clients/{id}/restore", Guard::OwnerOrPartner, Some(Action::ArchiveClient), "version=1"),
    post("/clients/{id}/reassign", Guard::PartnerOfClient, Some(Action::ReassignClient), "owner={person}"),
    read("/clients/{id}/versions", Guard::OwnerOrPartner, Some(Action::ReadClient)),
    post(
        "/clients/{id}/versions/restore",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "version=1&current=1",
    ),
    post(
        "/clients/{id}/entries",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "kind=meeting_note&title=A+call&text=We+spoke.",
    ),
    post(
        "/clients/{id}/entries/{entry}",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "kind=meeting_note&version=1&title=A+call&text=We+spoke.&at=2026-11-13T09:00",
    ),
    post(
        "/clients/{id}/entries/{entry}/archive",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "version=1",
    ),
    post(
        "/clients/{id}/entries/{entry}/restore",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "version=1",
    ),
    read("/clients/{id}/entries/{entry}/versions", Guard::OwnerOrPartner, Some(Action::ReadClient)),
    post(
        "/clients/{id}/entries/{entry}/versions/restore",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "version=1&current=1",
    ),
    Case {
        done: 204,
        ..post(
            "/clients/{id}/unsaved",
            Guard::OwnerOrPartner,
            Some(Action::EditClient),
            "kind=meeting_note&title=A+call&text=We+spo",
        )
    },
    post(
        "/clients/{id}/unsaved/discard",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "kind=meeting_note&entry={entry}",
    ),
    // Drafting is off in these tests.
    Case {
        method: "POST",
        path: "/clients/{id}/letters/draft",
        guard: Guard::OwnerOrPartner,
        asks: Some(Action::EditClient),
        form: "purpose=Say+thank+you.&entries={entry}&text=Dear",
        done: 503,
    },
    Case {
        method: "POST",
        path: "/clients/{id}/letters/rewrite",
        guard: Guard::OwnerOrPartner,
        asks: Some(Action::EditClient),
        form: "change=shorten&text=Dear+Ms+Raman",
        done: 503,
    },
    read("/clients/{id}/letters/new", Guard::OwnerOrPartner, Some(Action::EditClient)),
    read("/clients/{id}/letters/{entry}", Guard::OwnerOrPartner, Some(Action::ReadClient)),
    read("/clients/{id}/letters/{entry}/pdf", Guard::OwnerOrPartner, Some(Action::ReadClient)),
    read("/clients/{id}/letters/{entry}/send", Guard::OwnerOrPartner, Some(Action::EditClient)),
    post(
        "/clients/{id}/letters/{entry}/send",
        Guard::OwnerOrPartner,
        Some(Action::EditClient),
        "version=1&to=priya%40harbourlane.example&subject=Your+lease",
    ),
    post("/clients/{id}/letters/{entry}/copy", Guard::OwnerOrPartner, Some(Action::EditClient), ""),
    read("/templates", Guard::Partner, Some(Action::ManageTemplates)),
    post(
        "/templates",
        Guard::Partner,
        Some(Action::ManageTemplates),
        "title=Thank+you&text=Dear+%7B%7Bclient.contact%7D%7D",
    ),
    read("/templates/{template}", Guard::Partner, Some(Action::ManageTemplates)),
    post(
        "/templates/{template}",
        Guard::Partner,
        Some(Action::ManageTemplates),
        "version=1&title=Thank+you&text=Dear+client",
    ),
    post("/templates/{template}/delete", Guard::Partner, Some(Action::ManageTemplates), ""),
    read("/usage", Guard::Partner, Some(Action::ReadUsage)),
    read("/invoices", Guard::Partner, Some(Action::ReadInvoices)),
    read("/invoices.csv", Guard::Partner, Some(Action::ReadInvoices)),
    read("/invoices/drafts/{account}/{month}", Guard::Partner, Some(Action::ReadInvoices)),
    read("/invoices/drafts/{account}/{month}/issue", Guard::Partner, Some(Action::ReadInvoices)),
    post("/invoices/drafts/{account}/{month}/issue", Guard::Partner, Some(Action::ManageInvoices), ""),
    read("/invoices/{document}", Guard::Partner, Some(Action::ReadInvoices)),
    post("/invoices/{number}/paid", Guard::Partner, Some(Action::ManageInvoices), ""),
    post("/invoices/{number}/not-paid", Guard::Partner, Some(Action::ManageInvoices), ""),
    read("/invoices/{number}/credit", Guard::Partner, Some(Action::ReadInvoices)),
    post(
        "/invoices/{number}/credit",
        Guard::Partner,
        Some(Action::ManageInvoices),
        "credit=part&amount=0.05&reason=Too+much",
    ),
    read("/accounts", Guard::Partner, Some(Action::ReadAccounts)),
    post("/accounts", Guard::Partner, Some(Action::ManageAccounts), "name=Fresh+{prefix}&rpm=60&tpm=60000"),
    // The reply itself shows the key.
    Case { done: 200, ..post("/accounts/keys", Guard::Partner, Some(Action::ManageAccounts), "label=Fresh") },
    post("/accounts/keys/{prefix}/label", Guard::Partner, Some(Action::ManageAccounts), "label=Renamed"),
    post(
        "/accounts/keys/{prefix}/limits",
        Guard::Partner,
        Some(Action::ManageAccounts),
        "rpm=7&tpm=8&cap=9&models=a&expires=2099-12-31",
    ),
    Case {
        done: 200,
        ..post(
            "/accounts/keys/{prefix}/rotate",
            Guard::Partner,
            Some(Action::ManageAccounts),
            // Without an overlap, the key can be rotated again.
            "overlap_hours=0",
        )
    },
    post("/accounts/keys/{prefix}/attach", Guard::Partner, Some(Action::ManageAccounts), "account={account}"),
    post("/accounts/keys/{prefix}/revoke", Guard::Partner, Some(Action::ManageAccounts), ""),
    read("/accounts/{account}", Guard::Partner, Some(Action::ReadAccounts)),
    post("/accounts/{account}/limits", Guard::Partner, Some(Action::ManageAccounts), "rpm=7&tpm=8&cap=9"),
    post(
        "/accounts/{account}/billing",
        Guard::Partner,
        Some(Action::ManageAccounts),
        "address=Boston&email=",
    ),
    post("/accounts/{account}/close", Guard::Partner, Some(Action::ManageAccounts), ""),
    Case {
        done: 200,
        ..post("/accounts/{account}/keys", Guard::Partner, Some(Action::ManageAccounts), "label=Fresh")
    },
    post("/accounts/{account}/attach", Guard::Partner, Some(Action::ManageAccounts), "key={prefix}"),
    read("/team", Guard::Partner, Some(Action::ReadTeam)),
    post("/team/role", Guard::Partner, Some(Action::ManageTeam), "person={person}&role=partner"),
    post("/team/reassign", Guard::Partner, Some(Action::ManageTeam), "from={person}&to={owner}&confirmed=1"),
    post("/team/sign-out", Guard::Partner, Some(Action::ManageTeam), "person={person}"),
    post("/team/remove", Guard::Partner, Some(Action::ManageTeam), "person={person}&confirmed=1"),
    post("/team/restore", Guard::Partner, Some(Action::ManageTeam), "person={removed}"),
    post("/team/reset-factors", Guard::Partner, Some(Action::ResetFactors), "person={person}&confirmed=0"),
    post(
        "/team/invitations",
        Guard::Partner,
        Some(Action::InvitePerson),
        "email=invited{person}%40company.com&role=consultant",
    ),
    post("/team/invitations/resend", Guard::Partner, Some(Action::InvitePerson), "email={invited}"),
    post("/team/invitations/cancel", Guard::Partner, Some(Action::InvitePerson), "email={invited}"),
    read("/audit", Guard::Partner, Some(Action::ReadAudit)),
    read("/audit.csv", Guard::Partner, Some(Action::ReadAudit)),
    // Only a demo has this page.
    open("GET", demo_mail::MAIL_PATH, "", 404, 404),
    open("GET", scripts::HTMX_PATH, "", 200, 200),
    open("GET", scripts::DRAFT_PATH, "", 200, 200),
    open("GET", scripts::PORTAL_PATH, "", 200, 200),
];
