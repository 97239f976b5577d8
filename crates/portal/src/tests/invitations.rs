//! Invitations by email, removals that hold for a mailbox, and resets of second factors.

use super::TestPortal;
use super::browser::claims;
use super::firm::{Firm, add_provider_account, in_short, manage};
use crate::sign_in::finish::AuthenticatedIdentity;
use crate::{DirectoryRoles, SecondFactor};
use axum::http::StatusCode;
use chancery_domain::{
    Action, Decision, EmailAddress, EventKind, OsRandomness, Principal, RequestId, Role, SecretToken,
};
use chancery_policy::{AuthzRequest, FirmResource};
use chancery_store::{INVITATION_LIFETIME, MessageKind, NewInvitation, NewMessage};
use std::collections::BTreeMap;
use std::time::Duration;

/// Invites the address as the command line does.
pub(super) async fn invite(portal: &TestPortal, email: &EmailAddress, role: Role) {
    let now = portal.portal.clock.now();
    let request_id = RequestId::from_stored("req_operator".to_owned());
    let authz_request = AuthzRequest { by: Principal::Operator, at: now, request_id };
    let permit = portal.portal.policy.decide(&authz_request, FirmResource).unwrap();
    let message = NewMessage {
        kind: MessageKind::Email,
        destination: email.to_string(),
        event_id: format!("eml_{}", SecretToken::generate(&OsRandomness).reveal()),
        payload: "{\"subject\":\"x\",\"text\":\"y\"}".to_owned(),
        created_at: now,
        expires_at: now,
    };
    let new = NewInvitation { email: email.clone(), role, message };
    portal.store.invitations.invite_person(permit, &new).await.unwrap();
}

/// Whether no email was sent, and none waits.
async fn has_no_emails(portal: &TestPortal) -> bool {
    portal.store.outbox.next_attempt_at().await.unwrap().is_none() && portal.emails().is_empty()
}

async fn role_of(portal: &TestPortal, email: &str) -> Option<Role> {
    let people = portal.store.people.people_by_email(&email.parse().unwrap()).await.unwrap();
    people.first().map(|person| person.role)
}

#[tokio::test]
async fn invited_person_joins_with_the_offered_role() {
    let mut firm = Firm::open().await;
    firm.ruth.browser.post("/profile", "name=Ruth+Hale&time_zone=").await;
    let form = "email=Nora%40company.com&role=partner";
    let reply = firm.ruth.browser.post("/team/invitations", form).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/team?done=invited#invitations"));
    let emails = firm.portal.emails_when(1).await;
    let [text] = &emails[..] else { panic!("{emails:?}") };
    assert!(text.contains("To: nora@company.com"), "{text}");
    for part in
        ["Ruth Hale (ruth@company.com)", "http://localhost:8081/", "Marlow & Finch", "2026-11-27 09:14 UTC"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let page = firm.ruth.browser.get("/team?done=invited").await;
    for part in
        ["Invitation sent.", "nora@<wbr>company.com", "Send again", "27 Nov, 09:14 UTC", "Ruth Hale</span>"]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    assert_eq!(role_of(&firm.portal, "nora@company.com").await, None, "an invitation alone adds no member");

    let arrived = firm.portal.browser().follow_callback(claims("nora", "nora@company.com")).await;
    assert!(arrived.has_session());
    assert_eq!(role_of(&firm.portal, "nora@company.com").await, Some(Role::Partner));
    let page = firm.ruth.browser.get("/team").await;
    assert!(!page.body.contains("Send again"), "it is used: {}", page.body);

    let decided = firm.decisions().await;
    let invited = decided.iter().find(|row| row.access_request.action == Action::InvitePerson).unwrap();
    assert_eq!(in_short(invited), (Action::InvitePerson, Decision::Allowed, None, Some(firm.ruth.id)));
    let effect = invited.effect.unwrap();
    assert_eq!(
        (effect.kind, effect.subject, effect.new_role),
        (EventKind::PersonInvited, None, Some(Role::Partner))
    );
    let audit = firm.ruth.browser.get("/audit").await;
    assert!(audit.body.contains("Invite nora@company.com as a partner"), "{}", audit.body);
}

#[tokio::test]
async fn unverified_address_uses_its_invitation_only_after_our_code() {
    let portal = TestPortal::open_with(SecondFactor::None).await;
    invite(&portal, &"nora@company.com".parse().unwrap(), Role::Partner).await;
    let unproved = AuthenticatedIdentity { is_email_verified: false, ..claims("nora", "nora@company.com") };
    let mut browser = portal.browser();
    assert!(!browser.follow_callback(unproved).await.has_session());
    let now = portal.portal.clock.now();
    assert_eq!(portal.store.invitations.list_invitations(now).await.unwrap().len(), 1);
    let reply = browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
    assert!(reply.has_session());
    assert_eq!(role_of(&portal, "nora@company.com").await, Some(Role::Partner));
}

#[tokio::test]
async fn expired_or_canceled_invitation_gives_no_role() {
    let mut firm = Firm::open().await;
    for name in ["late", "gone"] {
        invite(&firm.portal, &format!("{name}@company.com").parse().unwrap(), Role::Partner).await;
    }
    let reply = firm.ruth.browser.post("/team/invitations/cancel", "email=gone%40company.com").await;
    assert_eq!(reply.location(), "/team?done=canceled#invitations");
    let again = firm.ruth.browser.post("/team/invitations/cancel", "email=gone%40company.com").await;
    assert_eq!(again.status, StatusCode::NOT_FOUND);
    assert!(again.body.contains("Invitation not found"), "{}", again.body);
    firm.portal.pass(INVITATION_LIFETIME);
    let mut ruth = firm.ruth.elsewhere(&firm.portal).await;
    let resent = ruth.post("/team/invitations/resend", "email=late%40company.com").await;
    assert_eq!(resent.status, StatusCode::NOT_FOUND);
    for name in ["late", "gone"] {
        let email = format!("{name}@company.com");
        assert!(firm.portal.browser().follow_callback(claims(name, &email)).await.has_session());
        assert_eq!(role_of(&firm.portal, &email).await, Some(Role::Consultant), "{name}");
    }
}

#[tokio::test]
async fn invitations_are_for_new_people_at_the_company_domain() {
    let mut firm = Firm::open().await;
    let ben = firm.ben.id;
    firm.ruth.browser.post("/team/remove", &format!("person={ben}&confirmed=1")).await;
    for (form, problem) in [
        ("email=&role=consultant", "Enter an email address"),
        ("email=x&role=consultant", "exactly one"),
        ("email=x%40evil.com&role=consultant", "Only @company.com addresses can sign in here"),
        ("email=x%40company.com.evil.com&role=consultant", "Only @company.com addresses can sign in here"),
        ("email=x%40company.com&role=boss", "Choose a role"),
        ("email=ann%40company.com&role=partner", "ann@company.com is already on the team"),
        ("email=ann%2Bx%40company.com&role=partner", "ann+x@company.com is already on the team"),
        ("email=ben%2Bx%40company.com&role=partner", "Restore that person below"),
    ] {
        let reply = firm.ruth.browser.post("/team/invitations", form).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{form}");
        assert!(reply.body.contains(problem), "{form}: {}", reply.body);
    }
    assert!(has_no_emails(&firm.portal).await);
    let reply = firm.ann.browser.post("/team/invitations", "email=x%40company.com&role=partner").await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "consultants may not invite");
}

#[tokio::test]
async fn invitations_offer_no_role_where_the_directory_decides() {
    let portal = TestPortal::open_changed(|settings| {
        let by_value = BTreeMap::from([("partners".to_owned(), Role::Partner)]);
        settings.identity.roles = Some(DirectoryRoles { claim: "groups".to_owned(), by_value });
    })
    .await;
    let mut ruth = portal.browser();
    let partner = Some(Role::Partner);
    let proven = AuthenticatedIdentity { directory_role: partner, ..claims("ruth", "ruth@company.com") };
    assert!(ruth.follow_callback(proven).await.has_session());
    let page = ruth.get("/team").await;
    assert!(page.body.contains("The role comes from your firm\u{2019}s directory"), "{}", page.body);
    assert!(!page.body.contains("<option value=\"partner\""), "{}", page.body);
    let reply = ruth.post("/team/invitations", "email=nora%40company.com&role=partner").await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert!(reply.body.contains("Role managed elsewhere"), "{}", reply.body);
    let reply = ruth.post("/team/invitations", "email=nora%40company.com&role=consultant").await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
}

#[tokio::test]
async fn sending_an_invitation_again_is_throttled() {
    let mut firm = Firm::open().await;
    firm.ruth.browser.post("/team/invitations", "email=nora%40company.com&role=consultant").await;
    let mut sent = 1;
    let rejected = loop {
        let reply = firm.ruth.browser.post("/team/invitations/resend", "email=nora%40company.com").await;
        if reply.status != StatusCode::SEE_OTHER {
            break reply;
        }
        assert_eq!(reply.location(), "/team?done=resent#invitations");
        sent += 1;
        assert!(sent < 50, "never throttled");
    };
    assert_eq!((rejected.status, sent), (StatusCode::TOO_MANY_REQUESTS, 5));
    assert!(rejected.headers.contains_key("retry-after"));
    // Canceling and inviting again is no way around it, and neither is another address of the mailbox.
    firm.ruth.browser.post("/team/invitations/cancel", "email=nora%40company.com").await;
    for email in ["nora%40company.com", "nora%2Bx%40company.com"] {
        let form = format!("email={email}&role=consultant");
        let reply = firm.ruth.browser.post("/team/invitations", &form).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{email}");
    }
    assert_eq!(firm.portal.emails_when(5).await.len(), 5);
    firm.portal.pass(Duration::from_secs(24 * 60 * 60));
    let mut ruth = firm.ruth.elsewhere(&firm.portal).await;
    let reply = ruth.post("/team/invitations", "email=nora%40company.com&role=consultant").await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
}

#[tokio::test]
async fn removal_holds_for_the_mailbox_until_restored() {
    for second_factor in [SecondFactor::None, SecondFactor::EmailCode] {
        let portal = TestPortal::open_with(second_factor).await;
        let come_in = async |subject: &str, email: &str| {
            let mut browser = portal.browser();
            let mut reply = browser.follow_callback(claims(subject, email)).await;
            if second_factor == SecondFactor::EmailCode {
                reply = browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
            }
            reply
        };
        assert!(come_in("1", "ann@company.com").await.has_session());
        assert!(come_in("9", "annabel@company.com").await.has_session());
        let ann =
            portal.store.people.people_by_email(&"ann@company.com".parse().unwrap()).await.unwrap()[0].id;
        portal.store.people.remove_person(manage(&portal.portal), ann, Box::new(|_| true)).await.unwrap();
        let as_before = come_in("1", "ann@company.com").await;
        for (subject, email) in [
            ("2", "ann@company.com"),
            ("3", "ann+x@company.com"),
            ("4", "ANN+a+b@Company.com"),
            ("1", "ann+y@company.com"),
        ] {
            let reply = come_in(subject, email).await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{email}");
            assert!(!reply.has_session() && reply.body.contains("Access removed"), "{email}: {}", reply.body);
            assert_eq!(reply.body, as_before.body, "the page does not tell why");
        }
        assert!(come_in("5", "ann.lee@company.com").await.has_session(), "another mailbox");
        assert!(come_in("9", "annabel@company.com").await.has_session());
        portal.store.people.restore_person(manage(&portal.portal), ann).await.unwrap();
        assert!(come_in("3", "ann+x@company.com").await.has_session());
        assert!(come_in("1", "ann@company.com").await.has_session());
    }
}

#[tokio::test]
async fn removal_ends_the_sessions_of_everyone_with_the_mailbox() {
    let mut firm = Firm::open().await;
    let mut twin = firm.portal.browser();
    assert!(twin.follow_callback(claims("twin", "ann+twin@company.com")).await.has_session());
    let people = firm.portal.portal.store.people.list_people().await.unwrap();
    let twin_id = people.iter().find(|person| person.identity.subject == "twin").unwrap().id;
    let token = add_provider_account(&firm.portal, twin_id).await;
    let ann = firm.ann.id;
    let reply = firm.ruth.browser.post("/team/remove", &format!("person={ann}&confirmed=2")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=removed"));
    assert!(twin.get("/sessions").await.location().starts_with("/auth/sign-in"));
    let times = firm.portal.portal.settings.session_times;
    let session =
        firm.portal.store.provider_sessions.provider_session(token, times, super::MORNING).await.unwrap();
    assert!(session.is_none(), "at the provider too");
}

#[tokio::test]
async fn partner_resets_second_factors_of_others_only() {
    let mut firm = Firm::open().await;
    let (ann, ben, ruth) = (firm.ann.id, firm.ben.id, firm.ruth.id);
    let token = add_provider_account(&firm.portal, ann).await;
    add_provider_account(&firm.portal, ruth).await;
    let page = firm.ruth.browser.get(&format!("/team?person={ann}")).await;
    assert!(page.body.contains("Reset second factors</a>"), "{}", page.body);
    let page = firm.ruth.browser.get(&format!("/team?person={ann}&open=factors")).await;
    assert!(page.body.contains("action=\"/team/reset-factors\""), "{}", page.body);
    let own = firm.ruth.browser.get(&format!("/team?person={ruth}&open=factors")).await;
    assert!(!own.body.contains("action=\"/team/reset-factors\""), "{}", own.body);

    let reply = firm.ruth.browser.post("/team/reset-factors", &format!("person={ann}&confirmed=0")).await;
    assert_eq!(reply.location(), format!("/team?person={ann}&done=factors-reset"), "{}", reply.body);
    let page = firm.ruth.browser.get(reply.location()).await;
    assert!(page.body.contains("The second factors of ann@company.com were reset."), "{}", page.body);
    let times = firm.portal.portal.settings.session_times;
    let session =
        firm.portal.store.provider_sessions.provider_session(token, times, super::MORNING).await.unwrap();
    assert!(session.is_none(), "a session may have been started with a lost factor");
    assert!(firm.ann.browser.get("/sessions").await.location().starts_with("/auth/sign-in"), "here too");
    let emails = firm.portal.emails_when(1).await;
    let [text] = &emails[..] else { panic!("{emails:?}") };
    assert!(text.contains("To: ann@company.com") && text.contains("The partner ruth@company.com"), "{text}");
    let decided = firm.decisions().await;
    let reset = decided.iter().find(|row| row.access_request.action == Action::ResetFactors).unwrap();
    assert_eq!(
        reset.effect.map(|effect| (effect.kind, effect.subject)),
        Some((EventKind::FactorsReset, Some(ann)))
    );
    let audit = firm.ruth.browser.get("/audit").await;
    assert!(audit.body.contains("Reset second factors of ann@company.com"), "{}", audit.body);

    let own = firm.ruth.browser.post("/team/reset-factors", &format!("person={ruth}")).await;
    assert_eq!(own.status, StatusCode::CONFLICT);
    assert!(own.body.contains("You cannot reset your own second factors here."), "{}", own.body);
    let elsewhere = firm.ruth.browser.post("/team/reset-factors", &format!("person={ben}")).await;
    assert_eq!(elsewhere.status, StatusCode::CONFLICT, "no account at the provider");
    let denied = firm.ben.browser.post("/team/reset-factors", &format!("person={ann}")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
}
