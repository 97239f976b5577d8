//! A randomly generated firm with rows in every table, created through the store's own methods.

use crate::billing::{credit, issue_new, noon_of, permit_at, used};
use crate::firm::{
    after_s, ask, create_whole, firm_permit, new_client, note, origin, people, permit, principal, read,
};
use crate::invitations;
use crate::letters;
use crate::outbox;
use crate::samples::{HOSTILE_TEXTS, NOON, discounted, name, new_account, new_key, prices, with_cached};
use chancery_domain::{
    AccountId, ApiKey, ClientId, CreditAmount, Day, DisputeDetails, EntryKind, Fingerprint, Identity, KeyId,
    KeyLimits, LocalPath, LogName, MinorUnits, Month, Nanos, Person, Principal, Profile, Randomness,
    RequestId, Role, SecretToken, SeededRandomness, StopReason, ThrottleKey, TokenHash, TreeHash, UnixMillis,
    UsageRow, Version,
};
use chancery_policy::{
    ArchiveClient, ClientResource, EditClient, ManageAccounts, ReadClient, ReassignClient,
};
use chancery_store::{
    AccountChange, ActivityBatch, AlertKind, ArchiveChange, BillingChange, CapChange, CapRejection,
    CeremonyKind, ClientChange, Consent, ConsentRequest, DailyPeak, DailyRejections, FactorCeremony, Grant,
    KeyClaim, KeyRotation, KeyUse, LimitsChange, LogAppend, LogNode, LogSegment, LogoutTarget, MailboxProof,
    NewAuthorizationCode, NewClient, NewEntry, NewKey, NewKnownDevice, NewPasskey, NewProviderAccount,
    NewProviderSession, NewSession, NewTotpSecret, NewUnsavedText, PasswordHash, PaymentChange,
    PendingEmailCode, PendingSecondFactor, PendingSignIn, ProofPurpose, ProviderAccount, ProviderLogout,
    RemoveFactorOutcome, SentEmailCode, SessionAuthentication, Settlement, SignInPurpose, SigningKey,
    SpendingReservation, Store, StoredReply, UnsavedForm,
};
use std::time::Duration;

/// A seeded random generator with the helpers that a test needs.
pub struct SeededRng(SeededRandomness);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(SeededRandomness::new(seed))
    }

    fn less_than(&self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn count(&self, min: u64, max: u64) -> usize {
        (min + self.less_than(max - min + 1)) as usize
    }

    fn pick<'a, T>(&self, some: &'a [T]) -> &'a T {
        &some[self.less_than(some.len() as u64) as usize]
    }

    fn token(&self) -> TokenHash {
        SecretToken::generate(&self.0).hash()
    }

    /// Text that breaks SQL built by concatenation, different each time.
    fn text(&self) -> String {
        format!("{} {}", self.pick(&HOSTILE_TEXTS), self.less_than(1_000_000))
    }

    /// The same for names and titles, which reject invisible characters.
    fn title(&self) -> String {
        self.text().replace('\u{202e}', "")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count(0, 200)];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// Months with usage; the first two are old enough to be invoiced.
const MONTHS: [&str; 4] = ["2025-12", "2026-02", "2026-09", "2026-10"];

/// What a test needs of the firm afterwards.
pub struct SampleFirm {
    pub payers: Vec<(AccountId, KeyId)>,
    pub maya: Person,
    pub clients: Vec<ClientId>,
}

/// Its last process is left as if it had died: its reservations and its lease still exist.
pub async fn random_firm(store: &Store, rng: &SeededRng) -> SampleFirm {
    let payers = accounts(store, rng).await;
    usage(store, rng, &payers).await;
    in_progress(store, rng, &payers).await;
    let (maya, ruth, clients) = records(store, rng).await;
    portal(store, rng, [&maya, &ruth]).await;
    provider(store, rng).await;
    billing(store, rng, &payers, &ruth).await;
    alerts(store, rng, &payers).await;
    logs(store).await;
    SampleFirm { payers, maya, clients }
}

async fn accounts(store: &Store, rng: &SeededRng) -> Vec<(AccountId, KeyId)> {
    let mut payers = Vec::new();
    for (number, hostile) in HOSTILE_TEXTS.iter().enumerate().take(rng.count(2, 5)) {
        let label = format!("{number} {hostile}");
        let account = store.create_account(new_account(&label)).await.unwrap().id;
        for _ in 0..rng.count(1, 3) {
            payers.push((account, store.create_key(new_key(Some(account))).await.unwrap().id));
        }
    }
    let limited = store.create_key(limited_key(payers[0].0)).await.unwrap();
    let hash = ApiKey::with_new_secret(&limited.prefix, &rng.0).hash();
    let rotation = KeyRotation {
        key: limited.prefix.clone(),
        replaces: limited.hash,
        hash,
        overlap_ends_at: after_s(86_400),
        ends_running_overlap: false,
    };
    store.rotate_key(rotation).await.unwrap();
    payers.push((payers[0].0, limited.id));
    let spare = store.create_key(new_key(None)).await.unwrap().prefix;
    store.revoke_key(&spare, after_s(3)).await.unwrap();
    store.create_account(new_account("Closed")).await.unwrap();
    store.close_account(&name("Closed"), after_s(9)).await.unwrap();
    payers
}

fn limited_key(account: AccountId) -> NewKey {
    let limits = KeyLimits {
        requests_per_min: Some(7),
        tokens_per_min: Some(u32::MAX),
        spend_per_month: Some(Nanos(i64::MAX)),
        models: Some(format!("words,{}", HOSTILE_TEXTS[0]).parse().unwrap()),
        expires_at: Some(after_s(86_400)),
    };
    NewKey { limits, ..new_key(Some(account)) }
}

async fn usage(store: &Store, rng: &SeededRng, payers: &[(AccountId, KeyId)]) {
    let endings = [StopReason::Complete, StopReason::MaxOutputTokens, StopReason::Cancelled];
    for number in 0..rng.count(60, 200) {
        // The first rows have one month each, so that the first payer has usage in every month.
        let (billed_key, month) = match MONTHS.get(number) {
            Some(month) => (payers[0], month),
            None => (*rng.pick(payers), rng.pick(&MONTHS)),
        };
        let day = rng.less_than(27) + 1;
        let at = UnixMillis(noon_of(&format!("{month}-{day:02}")).0 + rng.less_than(86_400_000 / 2) as i64);
        let tokens = [rng.less_than(100_000) as u32 + 1, rng.less_than(10_000) as u32];
        let input_price = rng.less_than(4) as i64 * 1000;
        let prices = discounted(prices(input_price, 9000), input_price / 4);
        let row = UsageRow {
            // An id is created before its row, and occasionally in the month before.
            request_id: RequestId::new(UnixMillis(at.0 - rng.less_than(100_000) as i64), &rng.0),
            model: format!("model {}", rng.pick(&HOSTILE_TEXTS)),
            stop_reason: *rng.pick(&endings),
            ..used(number, billed_key, at, prices, tokens)
        };
        let row = with_cached(row, tokens[0] / 2);
        store.ledger.settle(row.into()).await.unwrap();
    }
}

/// Rejections and peaks, stored replies, and the reservations and claims of a process that has just died.
async fn in_progress(store: &Store, rng: &SeededRng, payers: &[(AccountId, KeyId)]) {
    let today = Day::containing(NOON);
    for (account, key) in payers {
        let code = "rate_limited".to_owned();
        let rejected = DailyRejections {
            account: Some(*account),
            day: today,
            key: *key,
            code,
            rejections: 7,
            last_at: NOON,
        };
        let unpaid =
            DailyRejections { account: None, code: "no_billing_account".to_owned(), ..rejected.clone() };
        let requests = rng.less_than(100) + 1;
        let peak = DailyPeak {
            account: *account,
            day: today,
            requests,
            requests_at: NOON,
            tokens: 9,
            tokens_at: NOON,
        };
        let key_use = KeyUse { key: *key, at: NOON };
        store
            .activity
            .record_activity(ActivityBatch {
                rejections: &[rejected, unpaid],
                peaks: &[peak],
                key_uses: &[key_use],
                cap_rejections: &[],
            })
            .await
            .unwrap();
    }
    store.leases.renew_lease(NOON).await.unwrap();
    let (account, key) = payers[0];
    let cap = CapChange::Set(Nanos(i64::MAX));
    let limits = LimitsChange { spend_per_month: cap, ..LimitsChange::default() };
    let capped = store
        .account_lookup
        .list_accounts()
        .await
        .unwrap()
        .into_iter()
        .find(|found| found.id == account)
        .unwrap();
    store.set_limits(&capped.name, limits).await.unwrap();
    for number in 0..rng.count(1, 4) {
        let request_id = RequestId::new(NOON, &rng.0);
        let expires_at = after_s(900);
        let amount = Nanos(rng.less_than(1_000_000) as i64);
        let reservation =
            SpendingReservation { request_id: request_id.clone(), account, key, amount, at: NOON, now: NOON };
        store.spending.reserve_spending(reservation).await.unwrap();
        let claim = KeyClaim {
            account,
            key: format!("order-{number}").parse().unwrap(),
            fingerprint: Fingerprint([number as u8; 32]),
            request_id: request_id.clone(),
            now: NOON,
            expires_at,
        };
        store.idempotency.claim_key(&claim).await.unwrap();
        if number % 2 == 0 {
            let stored_reply = StoredReply {
                key: claim.key,
                // A model may generate a NUL character.
                reasoning_text: format!("{}\0", rng.text()),
                output_text: format!("{}\0", rng.text()),
                logprobs: (number % 4 == 0).then(|| vec![1, 0, number as u8]),
                reasoning_tokens: 2,
                expires_at: after_s(86_400),
            };
            let row = UsageRow { request_id, ..used(number, (account, key), NOON, prices(1, 2), [5, 6]) };
            store
                .ledger
                .settle(Settlement { row, is_reserved: false, stored_reply: Some(stored_reply) })
                .await
                .unwrap();
        }
    }
    // One more key that is only claimed, however many there are above.
    let claim = KeyClaim {
        account,
        key: "still-running".parse().unwrap(),
        fingerprint: Fingerprint([255; 32]),
        request_id: RequestId::new(NOON, &rng.0),
        now: NOON,
        expires_at: after_s(900),
    };
    store.idempotency.claim_key(&claim).await.unwrap();
}

/// A webhook, an alert that waits for it, and the rejection that it is about.
async fn alerts(store: &Store, rng: &SeededRng, payers: &[(AccountId, KeyId)]) {
    let number = rng.count(1, 900);
    store.webhooks.add_webhook(outbox::permit(), &outbox::webhook(number)).await.unwrap();
    let alert = outbox::alert(payers[0].0, AlertKind::CapRejection);
    store.alerts.send_alert(&alert, &[], &[outbox::message(number)], NOON).await.unwrap();
    let rejected = CapRejection { subject: alert.subject, month: Month::containing(NOON), cap: alert.cap };
    let batch = ActivityBatch { cap_rejections: &[(rejected, NOON)], ..ActivityBatch::default() };
    store.activity.record_activity(batch).await.unwrap();
    store.alerts.claim_periodic_task("alerts", NOON, Duration::from_secs(60)).await.unwrap();
}

/// One leaf of the ledger's log, a node and a checkpoint. Only their transfer matters here.
async fn logs(store: &Store) {
    let unlogged = store.log_writer.unlogged_rows(LogName::Ledger, 1).await.unwrap()[0];
    let segment = LogSegment { first_index: 0, writer: unlogged.writer, first_position: 0, rows: 1 };
    let node = LogNode { level: 1, index: 0, hash: TreeHash([7; 32]) };
    let append = LogAppend { log: LogName::Ledger, size: 0, segments: vec![segment], nodes: vec![node] };
    assert!(store.log_writer.append_to_log(&append).await.unwrap());
    store.log_writer.record_checkpoint(LogName::Ledger, 1, "a note\n", NOON).await.unwrap();
}

async fn records(store: &Store, rng: &SeededRng) -> (Person, Person, Vec<ClientId>) {
    let people = people(store).await;
    let mut clients = Vec::new();
    for number in 0..rng.count(3, 12) {
        let (owner, kinds) = (if number % 3 == 0 { &people.tom } else { &people.maya }, EntryKind::ALL);
        let entries = (0..rng.count(0, 4)).map(|entry| {
            let kind = kinds[entry % kinds.len()];
            let entry = note(owner.id, after_s(entry as i64), &rng.title());
            let is_open = kind != EntryKind::MeetingNote && rng.less_than(2) == 0;
            let dispute = DisputeDetails {
                amount: (rng.less_than(2) == 0).then_some(MinorUnits(12_050)),
                due: (rng.less_than(2) == 0).then(|| Day::containing(NOON)),
            };
            NewEntry { kind, is_open, dispute, is_archived: rng.less_than(4) == 0, ..entry }
        });
        let entries: Vec<NewEntry> = entries.collect();
        let new = NewClient { entries, is_archived: number % 5 == 4, ..new_client(&rng.title()) };
        let client = create_whole(store, owner, new).await;
        clients.push(client);
        read(store, &people.ruth, client).await.unwrap().unwrap();
        let resource = ClientResource { id: client, owner: Some(owner.id) };
        let stranger = if owner.id == people.tom.id { &people.maya } else { &people.tom };
        store
            .audit
            .record_denial(ask::<ReadClient>(principal(stranger), resource).unwrap_err())
            .await
            .unwrap();
        if number % 2 == 0 {
            let change = ClientChange {
                version: Version(1),
                name: rng.title().parse().unwrap(),
                details: chancery_domain::ContactDetails::default(),
            };
            store.clients.edit_client(permit::<EditClient>(owner, client, owner.id), change).await.unwrap();
        }
    }
    // Maya's second client is reassigned. Her first has an entry in any case, and is archived and restored.
    let (first, second) = (clients[1], clients[2]);
    let entry = note(people.maya.id, NOON, "Telephone");
    store.clients.add_entry(permit(&people.maya, first, people.maya.id), entry).await.unwrap();
    let letter = letters::add_letter(store, &people.maya, first).await;
    let sending = permit::<EditClient>(&people.maya, first, people.maya.id);
    store.clients.send_letter(sending, &letters::email_of(letter, 100)).await.unwrap();
    let template = letters::template(&rng.title());
    store.letter_templates.create_letter_template(firm_permit(&people.ruth), &template).await.unwrap();
    for is_archived in [true, false] {
        let away = permit::<ArchiveClient>(&people.maya, first, people.maya.id);
        store.clients.set_client_archived(away, ArchiveChange { is_archived, version: None }).await.unwrap();
    }
    let form = UnsavedForm::NewEntry(EntryKind::DraftLetter);
    let typed = NewUnsavedText { form, session: TokenHash([7; 32]), fields: r#"{"text":"Dear Ms Raman"}"# };
    let permit_to_edit = permit(&people.maya, first, people.maya.id);
    assert!(store.clients.save_unsaved_text(permit_to_edit, typed).await.unwrap());
    let gift = permit::<ReassignClient>(&people.ruth, second, people.maya.id);
    store.clients.reassign_client(gift, people.tom.id, None).await.unwrap();
    (people.maya, people.ruth, clients)
}

async fn portal(store: &Store, rng: &SeededRng, people: [&Person; 2]) {
    let invited = invitations::invitation("invited@example.com", Role::Partner);
    store.invitations.invite_person(invitations::permit(principal(people[1]), NOON), &invited).await.unwrap();
    for person in people {
        let profile = Profile {
            name: Some("Åsa O'Neil".parse().unwrap()),
            time_zone: Some("Europe/Berlin".parse().unwrap()),
        };
        store.people.set_profile(person.id, &profile).await.unwrap();
        for _ in 0..rng.count(1, 3) {
            let new = NewSession {
                token: rng.token(),
                binding: Some(rng.token()),
                person: person.id,
                authentication: SessionAuthentication {
                    authenticated_at: NOON,
                    sid: Some(rng.text()),
                    id_token: Some(rng.token().0.to_vec()),
                },
                origin: origin(NOON),
                ip_address: "192.0.2.1".to_owned(),
                user_agent: rng.text(),
                replaces: None,
            };
            store.sessions.start_session(new).await.unwrap();
        }
    }
    let sign_in = PendingSignIn {
        state: rng.text(),
        nonce: rng.text(),
        pkce_verifier: rng.text(),
        return_to: LocalPath::parse("/clients?page=2").unwrap(),
        purpose: SignInPurpose::StepUp,
        expires_at: after_s(600),
    };
    store.sign_ins.begin_sign_in(rng.token(), sign_in).await.unwrap();
    let pending = PendingEmailCode {
        identity: Identity { issuer: "https://id.example".to_owned(), subject: rng.text() },
        email: "new@example.com".parse().unwrap(),
        is_email_verified: true,
        directory_role: Some(Role::Partner),
        authentication: SessionAuthentication::at(NOON),
        return_to: LocalPath::parse("/").unwrap(),
        code: SentEmailCode { hash: rng.token(), expires_at: after_s(600), sent: 1, sent_at: NOON },
        is_email_sent: false,
    };
    let token = rng.token();
    store.sign_ins.begin_pending_email_code(token, pending, NOON).await.unwrap();
    store.sign_ins.verify_code(token, rng.token(), &origin(after_s(1))).await.unwrap();
    let logout = ProviderLogout {
        token_id: rng.token(),
        token_expires_at: after_s(600),
        issuer: "https://id.example".to_owned(),
        target: LogoutTarget::Subject(rng.text()),
    };
    store.sessions.end_sessions_by_provider(&logout, &origin(after_s(1))).await.unwrap();
    store.secrets.shared_secret("portal", &SecretToken::generate(&rng.0)).await.unwrap();
}

async fn factors(store: &Store, rng: &SeededRng, account: &ProviderAccount) {
    let subject = &account.subject;
    let app = NewTotpSecret {
        subject: subject.clone(),
        secret: [rng.bytes(), vec![0, 255]].concat(),
        step: 59_000_000,
        recovery_codes: (0..rng.count(0, 10)).map(|_| rng.token()).collect(),
        at: NOON,
    };
    store.second_factors.add_totp(&app).await.unwrap();
    let passkey = NewPasskey {
        credential_id: [subject.as_bytes(), &[0, 255]].concat(),
        subject: subject.clone(),
        name: rng.title(),
        credential: rng.text(),
        recovery_codes: Vec::new(),
        at: NOON,
    };
    store.second_factors.add_passkey(&passkey).await.unwrap();
    let used = store.second_factors.passkey(&passkey.credential_id).await.unwrap().unwrap();
    if rng.less_than(2) == 0 {
        store.second_factors.record_passkey_use(&used, &rng.text(), after_s(5)).await.unwrap();
    }
    let replaced = [rng.token(), rng.token()];
    let replaced =
        store.second_factors.replace_recovery_codes(subject, &replaced, Box::new(|_| true)).await.unwrap();
    assert_eq!(replaced, RemoveFactorOutcome::Removed);
    for (kind, subject) in
        [(CeremonyKind::TotpEnrolment, Some(subject.clone())), (CeremonyKind::PasskeyAuthentication, None)]
    {
        let ceremony = FactorCeremony { kind, subject, state: rng.text(), expires_at: after_s(600) };
        store.ceremonies.begin_ceremony(rng.token(), &ceremony).await.unwrap();
    }
    let pending = PendingSecondFactor {
        subject: subject.clone(),
        password_version: account.password_version,
        return_to: LocalPath::parse("/authorize?x=1").unwrap(),
        expires_at: after_s(600),
    };
    store.ceremonies.begin_second_factor(rng.token(), &pending).await.unwrap();
}

async fn provider(store: &Store, rng: &SeededRng) {
    for number in 0..rng.count(1, 4) {
        let subject = format!("subject {number} {}", rng.text());
        let new = NewProviderAccount {
            subject: subject.clone(),
            email: format!("person{number}@example.com").parse().unwrap(),
            password_hash: PasswordHash(rng.text()),
            at: NOON,
        };
        let account = store.provider_accounts.create_provider_account(new).await.unwrap();
        let password_version = account.password_version;
        let new = NewProviderSession {
            token: rng.token(),
            subject: subject.clone(),
            password_version,
            sid: format!("session {number}"),
            amr: "pwd".to_owned(),
            at: NOON,
        };
        store.provider_sessions.start_provider_session(new).await.unwrap();
        factors(store, rng, &account).await;
        let consent = Consent {
            subject: subject.clone(),
            client_id: "portal".to_owned(),
            scope: "openid".to_owned(),
            at: NOON,
        };
        store.grants.save_consent(consent).await.unwrap();
        let question = ConsentRequest {
            subject: subject.clone(),
            session: rng.token(),
            request: rng.text(),
            expires_at: after_s(600),
        };
        store.grants.create_consent_request(rng.token(), question).await.unwrap();
        let grant = Grant {
            client_id: "portal".to_owned(),
            redirect_uri: "https://portal.example/auth/callback".to_owned(),
            code_challenge: rng.text(),
            subject,
            password_version,
            scope: "openid email".to_owned(),
            nonce: (number % 2 == 0).then(|| rng.text()),
            sid: format!("session {number}"),
            amr: "pwd".to_owned(),
            authenticated_at: NOON,
        };
        let new = NewAuthorizationCode {
            code: rng.token(),
            grant: grant.clone(),
            expires_at: after_s(60),
            delete_after: after_s(700),
        };
        store.grants.issue_code(new).await.unwrap();
        // Another session with a grant has ended, and is not announced yet.
        let ended = NewProviderSession {
            token: rng.token(),
            subject: account.subject.clone(),
            password_version,
            sid: format!("ended {number}"),
            amr: "pwd".to_owned(),
            at: NOON,
        };
        let ended_token = ended.token;
        store.provider_sessions.start_provider_session(ended).await.unwrap();
        let new = NewAuthorizationCode {
            code: rng.token(),
            grant: Grant { sid: format!("ended {number}"), ..grant },
            expires_at: after_s(60),
            delete_after: after_s(700),
        };
        store.grants.issue_code(new).await.unwrap();
        assert!(store.provider_sessions.end_provider_session(ended_token).await.unwrap());
        let device = NewKnownDevice {
            subject: account.subject.clone(),
            browser_token: None,
            new_token: rng.token(),
            now: NOON,
            expires_at: after_s(600),
        };
        store.known_devices.remember_device(device).await.unwrap();
        store.throttles.count_throttle(ThrottleKey::CodePerProof(rng.token()), NOON).await.unwrap();
    }
    for purpose in [
        ProofPurpose::SignUp(PasswordHash("hash".to_owned())),
        ProofPurpose::NewPassword,
        ProofPurpose::FirstFactor,
    ] {
        let code = SentEmailCode { hash: rng.token(), expires_at: after_s(600), sent: 1, sent_at: NOON };
        let return_to = LocalPath::parse("/").unwrap();
        let proof = MailboxProof { purpose, email: "ann@example.com".parse().unwrap(), return_to, code };
        store.proofs.begin_proof(rng.token(), proof).await.unwrap();
    }
    for generation in 1..=2 {
        let key = SigningKey {
            generation,
            key_id: format!("key-{generation}"),
            private_key: [rng.bytes(), vec![0, 255]].concat(),
            signs_from: NOON,
            signs_until: after_s(100),
            published_until: after_s(200),
        };
        assert!(store.signing_keys.add_signing_key(key).await.unwrap());
    }
}

async fn billing(store: &Store, rng: &SeededRng, payers: &[(AccountId, KeyId)], ruth: &Person) {
    let account = payers[0].0;
    let first = issue_new(store, account, MONTHS[0], "2026-01-05").await;
    let second = issue_new(store, account, MONTHS[1], "2026-03-05").await;
    // Credited in full, so that its month is reopened and invoiced again.
    credit(store, second, CreditAmount::Full, "2026-03-06").await.unwrap();
    let third = issue_new(store, account, MONTHS[1], "2026-03-07").await;
    credit(store, third, CreditAmount::Part(MinorUnits(1)), "2026-03-08").await.unwrap();
    for change in [PaymentChange::Paid, PaymentChange::Unpaid, PaymentChange::Paid] {
        store
            .invoices
            .record_payment(permit_at(Principal::Operator, noon_of("2026-03-09")), first, change)
            .await
            .unwrap();
    }
    let change = BillingChange {
        address: Some("12 Harbour Lane\nBoston".parse().unwrap()),
        email: Some("bills@hale.example".parse().unwrap()),
    };
    let change = AccountChange::SetBilling { account, change };
    store.accounts.change_account(firm_permit::<ManageAccounts>(ruth), change).await.unwrap();
    let change = AccountChange::CreateAccount(new_account(&format!("Made by Ruth {}", rng.less_than(1000))));
    store.accounts.change_account(firm_permit::<ManageAccounts>(ruth), change).await.unwrap();
}
