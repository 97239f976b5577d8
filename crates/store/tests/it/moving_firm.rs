//! A firm with something in every table, made by chance through the store's own methods.

use crate::billing::{credit, issue_new, noon_of, permit_at, used};
use crate::firm::{
    after_s, ask, asker, create_whole, firm_permit, new_client, note, origin, people, permit, read,
};
use crate::samples::{HOSTILE, NOON, name, new_account, new_key, prices};
use chancery_domain::{
    AccountId, Asker, ClientId, CreditAmount, Day, EntryKind, Fingerprint, HowEnded, Identity, KeyId,
    LocalPath, MinorUnits, Nanos, Person, Randomness, RequestId, SecretToken, SeededRandomness, ThrottleKey,
    TokenHash, UnixMillis, UsageRow, Version,
};
use chancery_policy::{
    ArchiveClient, ClientInQuestion, EditClient, ManageAccounts, ReadClient, ReassignClient,
};
use chancery_store::{
    AccountDeed, BillingChange, CapChange, Claim, ClientChange, Consent, ConsentQuestion, Grant, HalfSignIn,
    KeptReply, LimitsChange, MailboxProof, MailedCode, NewClient, NewCode, NewEntry, NewProviderAccount,
    NewProviderSession, NewSession, PasswordHash, PaymentDeed, PeakDay, ProofPurpose, RefusedDay, Settlement,
    SignIn, SigningKey, SpendingReservation, Store,
};

/// Chance with a seed, in the words that a test needs.
pub struct Chance(SeededRandomness);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(SeededRandomness::new(seed))
    }

    fn below(&self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn count(&self, least: u64, most: u64) -> usize {
        (least + self.below(most - least + 1)) as usize
    }

    fn one_of<'a, T>(&self, some: &'a [T]) -> &'a T {
        &some[self.below(some.len() as u64) as usize]
    }

    fn token(&self) -> TokenHash {
        SecretToken::generate(&self.0).hash()
    }

    /// Something that breaks what is glued together, and is another text each time.
    fn text(&self) -> String {
        format!("{} {}", self.one_of(&HOSTILE), self.below(1_000_000))
    }

    /// The same for names and titles, which take nothing that cannot be seen.
    fn title(&self) -> String {
        self.text().replace('\u{202e}', "")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count(0, 200)];
        self.0.fill(&mut bytes);
        bytes
    }
}

/// The months that have usage; the first two are long enough past to be invoiced.
const MONTHS: [&str; 4] = ["2025-12", "2026-02", "2026-09", "2026-10"];

/// What a test goes on with.
pub struct Made {
    pub payers: Vec<(AccountId, KeyId)>,
    pub maya: Person,
    pub clients: Vec<ClientId>,
}

/// Its last process is left as if it had died: what it had set aside, and its lease, are there.
pub async fn random_firm(store: &Store, chance: &Chance) -> Made {
    let payers = accounts(store, chance).await;
    usage(store, chance, &payers).await;
    under_way(store, chance, &payers).await;
    let (maya, ruth, clients) = records(store, chance).await;
    portal(store, chance, [&maya, &ruth]).await;
    provider(store, chance).await;
    billing(store, chance, &payers, &ruth).await;
    Made { payers, maya, clients }
}

async fn accounts(store: &Store, chance: &Chance) -> Vec<(AccountId, KeyId)> {
    let mut payers = Vec::new();
    for (number, hostile) in HOSTILE.iter().enumerate().take(chance.count(2, 5)) {
        let label = format!("{number} {hostile}");
        let account = store.create_account(new_account(&label)).await.unwrap().id;
        for _ in 0..chance.count(1, 3) {
            payers.push((account, store.create_key(new_key(Some(account))).await.unwrap().id));
        }
    }
    let spare = store.create_key(new_key(None)).await.unwrap().prefix;
    store.revoke_key(&spare, after_s(3)).await.unwrap();
    store.create_account(new_account("Closed")).await.unwrap();
    store.close_account(&name("Closed"), after_s(9)).await.unwrap();
    payers
}

async fn usage(store: &Store, chance: &Chance, payers: &[(AccountId, KeyId)]) {
    let endings = [HowEnded::Complete, HowEnded::MaxOutputTokens, HowEnded::Cancelled];
    for number in 0..chance.count(60, 200) {
        // Each of the first few has a month of its own, so that every month has something of the first payer's.
        let (payer, month) = match MONTHS.get(number) {
            Some(month) => (payers[0], month),
            None => (*chance.one_of(payers), chance.one_of(&MONTHS)),
        };
        let day = chance.below(27) + 1;
        let at = UnixMillis(noon_of(&format!("{month}-{day:02}")).0 + chance.below(86_400_000 / 2) as i64);
        let tokens = [chance.below(100_000) as u32 + 1, chance.below(10_000) as u32];
        let row = UsageRow {
            // An id is made before its row, and now and then in the month before.
            request_id: RequestId::new(UnixMillis(at.0 - chance.below(100_000) as i64), &chance.0),
            model: format!("model {}", chance.one_of(&HOSTILE)),
            ended: *chance.one_of(&endings),
            ..used(number, payer, at, prices(chance.below(4) as i64 * 1000, 9000), tokens)
        };
        store.ledger.settle(row.into()).await.unwrap();
    }
}

/// What the limits saw, what is kept under keys, and what a process that has just died was about.
async fn under_way(store: &Store, chance: &Chance, payers: &[(AccountId, KeyId)]) {
    let today = Day::of(NOON);
    for (account, key) in payers {
        let code = "rate_limited".to_owned();
        let refused =
            RefusedDay { account: Some(*account), day: today, key: *key, code, refusals: 7, last_at: NOON };
        let unpaid = RefusedDay { account: None, code: "no_billing_account".to_owned(), ..refused.clone() };
        let requests = chance.below(100) + 1;
        let peak = PeakDay {
            account: *account,
            day: today,
            requests,
            requests_at: NOON,
            tokens: 9,
            tokens_at: NOON,
        };
        store.activity.note_activity(&[refused, unpaid], &[peak]).await.unwrap();
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
    for number in 0..chance.count(1, 4) {
        let request_id = RequestId::new(NOON, &chance.0);
        let expires_at = after_s(900);
        let amount = Nanos(chance.below(1_000_000) as i64);
        let reservation = SpendingReservation {
            request_id: request_id.clone(),
            account,
            amount,
            at: NOON,
            now: NOON,
            expires_at,
        };
        store.spending.reserve_spending(reservation).await.unwrap();
        let claim = Claim {
            account,
            key: format!("order-{number}").parse().unwrap(),
            fingerprint: Fingerprint([number as u8; 32]),
            request_id: request_id.clone(),
            now: NOON,
            expires_at,
        };
        store.idempotency.claim_key(&claim).await.unwrap();
        if number % 2 == 0 {
            let kept = KeptReply {
                key: claim.key,
                // A model may well generate this.
                output_text: format!("{}\0", chance.text()),
                cached_tokens: 3,
                expires_at: after_s(86_400),
            };
            let row = UsageRow { request_id, ..used(number, (account, key), NOON, prices(1, 2), [5, 6]) };
            store.ledger.settle(Settlement { row, is_reserved: false, kept: Some(kept) }).await.unwrap();
        }
    }
    // One more that is only claimed, whatever the number above.
    let claim = Claim {
        account,
        key: "still-running".parse().unwrap(),
        fingerprint: Fingerprint([255; 32]),
        request_id: RequestId::new(NOON, &chance.0),
        now: NOON,
        expires_at: after_s(900),
    };
    store.idempotency.claim_key(&claim).await.unwrap();
}

async fn records(store: &Store, chance: &Chance) -> (Person, Person, Vec<ClientId>) {
    let people = people(store).await;
    let mut clients = Vec::new();
    for number in 0..chance.count(3, 12) {
        let (owner, kinds) = (if number % 3 == 0 { &people.tom } else { &people.maya }, EntryKind::ALL);
        let entries = (0..chance.count(0, 4)).map(|entry| {
            let kind = kinds[entry % kinds.len()];
            let entry = note(owner.id, after_s(entry as i64), &chance.title());
            let is_open = kind != EntryKind::MeetingNote && chance.below(2) == 0;
            NewEntry { kind, is_open, is_archived: chance.below(4) == 0, ..entry }
        });
        let entries: Vec<NewEntry> = entries.collect();
        let new = NewClient { entries, is_archived: number % 5 == 4, ..new_client(&chance.title()) };
        let client = create_whole(store, owner, new).await;
        clients.push(client);
        read(store, &people.ruth, client).await.unwrap().unwrap();
        let about = ClientInQuestion { id: client, owner: Some(owner.id) };
        let stranger = if owner.id == people.tom.id { &people.maya } else { &people.tom };
        store.audit.note_denial(ask::<ReadClient>(asker(stranger), about).unwrap_err()).await.unwrap();
        if number % 2 == 0 {
            let change = ClientChange {
                version: Version(1),
                name: chance.title().parse().unwrap(),
                facts: chancery_domain::ContactFacts::default(),
            };
            store.clients.edit_client(permit::<EditClient>(owner, client, owner.id), change).await.unwrap();
        }
    }
    // Maya's second client is given away; her first has an entry in any case, and is put away and taken back.
    let (first, second) = (clients[1], clients[2]);
    let entry = note(people.maya.id, NOON, "Telephone");
    store.clients.add_entry(permit(&people.maya, first, people.maya.id), entry).await.unwrap();
    for is_archived in [true, false] {
        let away = permit::<ArchiveClient>(&people.maya, first, people.maya.id);
        store.clients.set_client_archived(away, is_archived).await.unwrap();
    }
    let gift = permit::<ReassignClient>(&people.ruth, second, people.maya.id);
    store.clients.reassign_client(gift, people.tom.id).await.unwrap();
    (people.maya, people.ruth, clients)
}

async fn portal(store: &Store, chance: &Chance, people: [&Person; 2]) {
    for person in people {
        for _ in 0..chance.count(1, 3) {
            let new = NewSession {
                token: chance.token(),
                person: person.id,
                origin: origin(NOON),
                place: "192.0.2.1".to_owned(),
                browser: chance.text(),
                replaces: None,
            };
            store.sessions.start_session(new).await.unwrap();
        }
    }
    let sign_in = SignIn {
        state: chance.text(),
        nonce: chance.text(),
        pkce_verifier: chance.text(),
        return_to: LocalPath::parse("/clients?page=2").unwrap(),
        expires_at: after_s(600),
    };
    store.sign_ins.begin_sign_in(chance.token(), sign_in).await.unwrap();
    let half = HalfSignIn {
        identity: Identity { issuer: "https://id.example".to_owned(), subject: chance.text() },
        email: "new@example.com".parse().unwrap(),
        return_to: LocalPath::parse("/").unwrap(),
        code: MailedCode { hash: chance.token(), expires_at: after_s(600), sent: 1, sent_at: NOON },
        is_code_sent: false,
    };
    let token = chance.token();
    store.sign_ins.begin_half_sign_in(token, half, NOON).await.unwrap();
    store.sign_ins.try_code(token, chance.token(), &origin(after_s(1))).await.unwrap();
    store.secrets.shared_secret("portal", &SecretToken::generate(&chance.0)).await.unwrap();
}

async fn provider(store: &Store, chance: &Chance) {
    for number in 0..chance.count(1, 4) {
        let subject = format!("subject {number} {}", chance.text());
        let new = NewProviderAccount {
            subject: subject.clone(),
            email: format!("person{number}@example.com").parse().unwrap(),
            password_hash: PasswordHash(chance.text()),
            at: NOON,
        };
        let account = store.provider_accounts.create_provider_account(new).await.unwrap();
        let password_version = account.password_version;
        let new = NewProviderSession {
            token: chance.token(),
            subject: subject.clone(),
            password_version,
            at: NOON,
        };
        store.provider_sessions.start_provider_session(new).await.unwrap();
        let consent = Consent {
            subject: subject.clone(),
            client_id: "portal".to_owned(),
            scope: "openid".to_owned(),
            at: NOON,
        };
        store.grants.remember_consent(consent).await.unwrap();
        let question = ConsentQuestion {
            subject: subject.clone(),
            session: chance.token(),
            request: chance.text(),
            expires_at: after_s(600),
        };
        store.grants.ask_for_consent(chance.token(), question).await.unwrap();
        let grant = Grant {
            client_id: "portal".to_owned(),
            redirect_uri: "https://portal.example/auth/callback".to_owned(),
            code_challenge: chance.text(),
            subject,
            password_version,
            scope: "openid email".to_owned(),
            nonce: (number % 2 == 0).then(|| chance.text()),
            authenticated_at: NOON,
        };
        let new =
            NewCode { code: chance.token(), grant, expires_at: after_s(60), forgotten_at: after_s(700) };
        store.grants.issue_code(new).await.unwrap();
        store.throttles.count_throttle(ThrottleKey::CodePerProof(chance.token()), NOON).await.unwrap();
    }
    for purpose in [ProofPurpose::SignUp(PasswordHash("hash".to_owned())), ProofPurpose::NewPassword] {
        let code = MailedCode { hash: chance.token(), expires_at: after_s(600), sent: 1, sent_at: NOON };
        let return_to = LocalPath::parse("/").unwrap();
        let proof = MailboxProof { purpose, email: "ann@example.com".parse().unwrap(), return_to, code };
        store.proofs.begin_proof(chance.token(), proof).await.unwrap();
    }
    for generation in 1..=2 {
        let key = SigningKey {
            generation,
            key_id: format!("key-{generation}"),
            private_key: [chance.bytes(), vec![0, 255]].concat(),
            signs_from: NOON,
            signs_until: after_s(100),
            published_until: after_s(200),
        };
        assert!(store.signing_keys.add_signing_key(key).await.unwrap());
    }
}

async fn billing(store: &Store, chance: &Chance, payers: &[(AccountId, KeyId)], ruth: &Person) {
    let account = payers[0].0;
    let first = issue_new(store, account, MONTHS[0], "2026-01-05").await;
    let second = issue_new(store, account, MONTHS[1], "2026-03-05").await;
    // Taken back as a whole, so that its month is open again and is invoiced once more.
    credit(store, second, CreditAmount::Whole, "2026-03-06").await.unwrap();
    let third = issue_new(store, account, MONTHS[1], "2026-03-07").await;
    credit(store, third, CreditAmount::Part(MinorUnits(1)), "2026-03-08").await.unwrap();
    for deed in [PaymentDeed::Paid, PaymentDeed::TakenBack, PaymentDeed::Paid] {
        store
            .invoices
            .note_payment(permit_at(Asker::Operator, noon_of("2026-03-09")), first, deed)
            .await
            .unwrap();
    }
    let change = BillingChange {
        address: Some("12 Harbour Lane\nBoston".parse().unwrap()),
        email: Some("bills@hale.example".parse().unwrap()),
    };
    let deed = AccountDeed::SetBilling { account, change };
    store.accounts.do_with_account(firm_permit::<ManageAccounts>(ruth), deed).await.unwrap();
    let deed = AccountDeed::Make(new_account(&format!("Made by Ruth {}", chance.below(1000))));
    store.accounts.do_with_account(firm_permit::<ManageAccounts>(ruth), deed).await.unwrap();
}
