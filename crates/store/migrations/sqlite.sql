-- Times are milliseconds since 1970 UTC; money is in nano-units of the currency. Both are integers.

CREATE TABLE accounts (
    id               INTEGER PRIMARY KEY,
    name             TEXT    NOT NULL UNIQUE,
    requests_per_min INTEGER NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   INTEGER NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    INTEGER NOT NULL,
    closed_at_ms     INTEGER,
    -- Cap per calendar month (UTC); NULL means no cap.
    spend_per_month_nanos INTEGER CHECK (spend_per_month_nanos >= 0),
    -- The billing contact.
    billing_address  TEXT    NOT NULL DEFAULT '',
    billing_email    TEXT    NOT NULL DEFAULT ''
) STRICT;

-- Pages of the list of accounts: by name, closed ones last.
CREATE INDEX accounts_open ON accounts (name) WHERE closed_at_ms IS NULL;
CREATE INDEX accounts_closed ON accounts (name) WHERE closed_at_ms IS NOT NULL;

CREATE TABLE api_keys (
    id            INTEGER PRIMARY KEY,
    prefix        TEXT    NOT NULL UNIQUE,
    hash          BLOB    NOT NULL CHECK (length(hash) = 32),
    label         TEXT    NOT NULL,
    account_id    INTEGER REFERENCES accounts (id),
    created_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER,
    -- The key's own limits, next to its account's. None of them is set: only the account's hold.
    max_requests_per_min      INTEGER CHECK (max_requests_per_min > 0),
    max_tokens_per_min        INTEGER CHECK (max_tokens_per_min > 0),
    max_spend_per_month_nanos INTEGER CHECK (max_spend_per_month_nanos >= 0),
    -- Names separated by commas.
    allowed_models            TEXT CHECK (allowed_models <> ''),
    expires_at_ms             INTEGER,
    -- The secret before the last rotation.
    previous_hash             BLOB CHECK (length(previous_hash) = 32),
    previous_expires_at_ms    INTEGER,
    CHECK ((previous_hash IS NULL) = (previous_expires_at_ms IS NULL))
) STRICT;

-- Each writer links its rows into a hash chain: a row has its position in the chain and a hash over itself and the row
-- before. The chain head is stored separately, so that rows missing at the end are detected too. Sums by day are
-- updated together with the rows.

CREATE TABLE ledger_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- Clustered in the order in which rows are written and verified.
CREATE TABLE ledger (
    request_id         TEXT    NOT NULL UNIQUE CHECK (request_id <> ''),
    account_id         INTEGER NOT NULL REFERENCES accounts (id),
    key_id             INTEGER NOT NULL REFERENCES api_keys (id),
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL CHECK (input_tokens >= 0),
    -- The part of the input that is billed at the price of cached input.
    cached_input_tokens INTEGER NOT NULL CHECK (cached_input_tokens >= 0 AND cached_input_tokens <= input_tokens),
    output_tokens      INTEGER NOT NULL CHECK (output_tokens >= 0),
    input_price_nanos  INTEGER NOT NULL CHECK (input_price_nanos >= 0),
    cached_price_nanos INTEGER NOT NULL CHECK (cached_price_nanos >= 0),
    output_price_nanos INTEGER NOT NULL CHECK (output_price_nanos >= 0),
    cost_nanos         INTEGER NOT NULL CHECK (cost_nanos >= 0),
    at_ms              INTEGER NOT NULL CHECK (at_ms >= 0),
    stop_reason              TEXT    NOT NULL
        CHECK (stop_reason IN ('complete', 'max_output_tokens', 'stop_sequence', 'context_length', 'cancelled', 'deadline', 'content_filter', 'repetition')),
    writer_id          INTEGER NOT NULL,
    position              INTEGER NOT NULL CHECK (position >= 0),
    hash               BLOB    NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (writer_id, position),
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = (input_tokens - cached_input_tokens) * input_price_nanos
            + cached_input_tokens * cached_price_nanos + output_tokens * output_price_nanos)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger
BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only');
END;

CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger
BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only');
END;

-- INSERT OR REPLACE removes the old row without firing the trigger above, so this ignores the insert if the row exists.
CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger
WHEN EXISTS (SELECT 1 FROM ledger WHERE request_id = NEW.request_id)
    OR EXISTS (SELECT 1 FROM ledger WHERE writer_id = NEW.writer_id AND position = NEW.position)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- Amounts that running requests have reserved of their account's monthly cap.

-- `month` is the day number of its first day. A reservation is settled with the ledger row or released. When it
-- expires, or the process that created it is dead, any process may delete it.
CREATE TABLE spending_reservations (
    request_id    TEXT    NOT NULL PRIMARY KEY,
    account_id    INTEGER NOT NULL REFERENCES accounts (id),
    key_id        INTEGER NOT NULL REFERENCES api_keys (id),
    month         INTEGER NOT NULL,
    amount_nanos  INTEGER NOT NULL CHECK (amount_nanos >= 0),
    writer_id     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);
CREATE INDEX spending_reservations_key ON spending_reservations (key_id, month);

-- Leases of processes that hold reservations or idempotency keys.
CREATE TABLE writer_leases (
    writer_id      INTEGER PRIMARY KEY,
    lease_expires_at_ms INTEGER NOT NULL
) STRICT;

-- Idempotency keys: sending a request again does not run it again. While the request runs, its row has the process that
-- runs it. Afterwards it has the reasoning, the text and, if the request asked for them, the log probabilities of its
-- tokens, encoded; the rest of the reply is in the ledger row. Both texts are BLOB, because a model may generate a NUL
-- character, which not every database can store as text.
CREATE TABLE idempotency_keys (
    account_id      INTEGER NOT NULL REFERENCES accounts (id),
    idempotency_key TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    request_id      TEXT    NOT NULL,
    writer_id       INTEGER,
    reasoning_text  BLOB,
    output_text     BLOB,
    logprobs        BLOB,
    reasoning_tokens INTEGER CHECK (reasoning_tokens >= 0),
    expires_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (account_id, idempotency_key),
    CHECK ((writer_id IS NULL) = (output_text IS NOT NULL) AND (writer_id IS NULL) = (reasoning_text IS NOT NULL)
        AND (writer_id IS NULL) = (reasoning_tokens IS NOT NULL) AND (writer_id IS NULL OR logprobs IS NULL))
) STRICT;

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- People of the portal, their sessions, and sign-ins in progress.

-- Issuer and subject together identify a person; two people may have the same email address.
CREATE TABLE people (
    id            INTEGER PRIMARY KEY,
    issuer        TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    email         TEXT    NOT NULL,
    -- The address without what follows a plus sign: a removal holds for the mailbox.
    mailbox       TEXT    NOT NULL,
    role          TEXT    NOT NULL CHECK (role IN ('consultant', 'partner')),
    joined_at_ms  INTEGER NOT NULL,
    removed_at_ms INTEGER,
    name          TEXT,
    time_zone     TEXT,
    UNIQUE (issuer, subject)
) STRICT;

CREATE INDEX people_email ON people (email);
CREATE INDEX people_removed_mailbox ON people (mailbox) WHERE removed_at_ms IS NOT NULL;

-- People who were invited by email and have not signed in yet.
CREATE TABLE invitations (
    email           TEXT    NOT NULL PRIMARY KEY,
    role            TEXT    NOT NULL CHECK (role IN ('consultant', 'partner')),
    -- NULL for the command line.
    invited_by      INTEGER REFERENCES people (id),
    created_at_ms   INTEGER NOT NULL,
    last_sent_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Only a hash of the session's token is stored. `authenticated_at_ms` is when the person last authenticated at the identity
-- provider, `confirmed_at_ms` when it last confirmed that they are signed in there, and `sid` its own session. The ID token is
-- encrypted with a key derived from the session's token, and once more like every other secret. `binding_hash` is the hash
-- of a second cookie, with `portal.bind_session`.
CREATE TABLE sessions (
    id              INTEGER PRIMARY KEY,
    token_hash      BLOB    NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    person_id       INTEGER NOT NULL REFERENCES people (id),
    started_at_ms   INTEGER NOT NULL,
    last_used_at_ms INTEGER NOT NULL,
    ip_address      TEXT    NOT NULL,
    browser         TEXT    NOT NULL,
    authenticated_at_ms INTEGER NOT NULL,
    confirmed_at_ms     INTEGER NOT NULL,
    sid             TEXT,
    id_token        BLOB,
    binding_hash    BLOB CHECK (length(binding_hash) = 32)
) STRICT;

CREATE INDEX sessions_person ON sessions (person_id);
CREATE INDEX sessions_sid ON sessions (sid);

-- Sign-ins from the button until the browser returns from the identity provider. Each can be used once.
CREATE TABLE pending_sign_ins (
    token_hash    BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    state         TEXT    NOT NULL,
    nonce         TEXT    NOT NULL,
    pkce_verifier TEXT    NOT NULL,
    return_to     TEXT    NOT NULL,
    purpose       TEXT    NOT NULL CHECK (purpose IN ('sign-in', 'step-up', 'recheck')),
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_sign_ins_expiry ON pending_sign_ins (expires_at_ms);

-- Sign-ins from the return from the identity provider until the emailed code is entered. `last_sent_at_ms` is when the mail
-- server last accepted an email, or NULL. `next_email_at_ms` is when the next email may be sent.
CREATE TABLE pending_email_codes (
    token_hash         BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    issuer             TEXT    NOT NULL,
    subject            TEXT    NOT NULL,
    email              TEXT    NOT NULL,
    return_to          TEXT    NOT NULL,
    code_hash          BLOB    NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms INTEGER NOT NULL,
    wrong_attempts        INTEGER NOT NULL,
    emails_sent         INTEGER NOT NULL,
    last_sent_at_ms    INTEGER,
    next_email_at_ms  INTEGER NOT NULL,
    is_email_verified  INTEGER NOT NULL,
    directory_role     TEXT CHECK (directory_role IN ('consultant', 'partner')),
    authenticated_at_ms INTEGER NOT NULL,
    sid                TEXT,
    id_token           BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_email_codes_identity ON pending_email_codes (issuer, subject);
CREATE INDEX pending_email_codes_expiry ON pending_email_codes (code_expires_at_ms);
CREATE INDEX pending_email_codes_sid ON pending_email_codes (sid);

-- Logout tokens of the identity provider that were used. Each works once.
CREATE TABLE logout_token_ids (
    id_hash       BLOB NOT NULL PRIMARY KEY CHECK (length(id_hash) = 32),
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX logout_token_ids_expiry ON logout_token_ids (expires_at_ms);

-- The built-in identity provider: passwords, sessions, mailboxes being verified, and attempt counts. The portal reads
-- none of this, except throttles.

-- An account is created only after its mailbox is verified. The subject is random and never changes.
CREATE TABLE provider_accounts (
    subject          TEXT    NOT NULL PRIMARY KEY,
    email            TEXT    NOT NULL UNIQUE,
    password_hash    TEXT    NOT NULL,
    password_version INTEGER NOT NULL DEFAULT 1,
    created_at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A session is valid while its account has the password version that it was started with.
CREATE TABLE provider_sessions (
    token_hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT    NOT NULL REFERENCES provider_accounts (subject),
    password_version INTEGER NOT NULL,
    -- The `sid` and `amr` claims of ID tokens.
    sid              TEXT    NOT NULL UNIQUE,
    amr              TEXT    NOT NULL,
    started_at_ms    INTEGER NOT NULL,
    last_used_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX provider_sessions_subject ON provider_sessions (subject);
CREATE INDEX provider_sessions_start ON provider_sessions (started_at_ms);
CREATE INDEX provider_sessions_use ON provider_sessions (last_used_at_ms);

-- The applications that were signed in to in a session. A session that ends is announced to them (back-channel logout).
CREATE TABLE provider_session_clients (
    sid       TEXT NOT NULL REFERENCES provider_sessions (sid) ON DELETE CASCADE,
    client_id TEXT NOT NULL,
    PRIMARY KEY (sid, client_id)
) STRICT, WITHOUT ROWID;

-- Logout tokens that have to be sent, one for each ended session and application. While a process sends one, the row has its
-- claim, and `next_attempt_at_ms` is when the claim ends: from then on, any process may send it again.
CREATE TABLE backchannel_logouts (
    sid                 TEXT    NOT NULL,
    client_id           TEXT    NOT NULL,
    subject             TEXT    NOT NULL,
    attempts            INTEGER NOT NULL CHECK (attempts >= 0),
    claim               TEXT,
    first_attempt_at_ms INTEGER,
    next_attempt_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (sid, client_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX backchannel_logouts_due ON backchannel_logouts (next_attempt_at_ms);

-- Browsers in which a person has signed in before. Their attempts have limits of their own, so that strangers cannot lock the
-- person out.
CREATE TABLE known_devices (
    subject       TEXT    NOT NULL REFERENCES provider_accounts (subject) ON DELETE CASCADE,
    token_hash    BLOB    NOT NULL CHECK (length(token_hash) = 32),
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subject, token_hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX known_devices_token ON known_devices (token_hash);
CREATE INDEX known_devices_expiry ON known_devices (expires_at_ms);

-- Proofs from the form until the emailed code is entered. There is a row whether or not the address has an account.
CREATE TABLE mailbox_proofs (
    token_hash         BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    purpose            TEXT    NOT NULL CHECK (purpose IN ('sign_up', 'new_password', 'first_factor')),
    email              TEXT    NOT NULL,
    password_hash      TEXT    CHECK ((password_hash IS NOT NULL) = (purpose = 'sign_up')),
    return_to          TEXT    NOT NULL,
    code_hash          BLOB    NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms INTEGER NOT NULL,
    emails_sent         INTEGER NOT NULL,
    last_sent_at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX mailbox_proofs_email ON mailbox_proofs (email);
CREATE INDEX mailbox_proofs_expiry ON mailbox_proofs (code_expires_at_ms);

-- Second factors of accounts at the identity provider.

-- The credential is webauthn-rs's JSON: public key, sign counter and backup state.
CREATE TABLE passkeys (
    credential_id   BLOB    NOT NULL PRIMARY KEY,
    subject         TEXT    NOT NULL REFERENCES provider_accounts (subject),
    name            TEXT    NOT NULL,
    credential      TEXT    NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    last_used_at_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX passkeys_subject ON passkeys (subject);

-- The secret is encrypted. A time step is accepted only if it is after `last_step`.
CREATE TABLE totp_secrets (
    subject       TEXT    NOT NULL PRIMARY KEY REFERENCES provider_accounts (subject),
    secret        BLOB    NOT NULL,
    last_step     INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Each code works once; its row is deleted then.
CREATE TABLE recovery_codes (
    code_hash BLOB NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    subject   TEXT NOT NULL REFERENCES provider_accounts (subject)
) STRICT, WITHOUT ROWID;

CREATE INDEX recovery_codes_subject ON recovery_codes (subject);

-- Challenges and secrets of a browser that is adding or using a factor. Each can be used once. The key is derived from
-- a secret in the browser's cookie, and the state is encrypted. Without a subject, the passkey itself says who signs in.
CREATE TABLE factor_ceremonies (
    key_hash      BLOB    NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    kind          TEXT    NOT NULL CHECK (kind IN ('passkey_registration', 'passkey_authentication', 'totp_enrolment',
        'mailbox_proof')),
    subject       TEXT,
    state         BLOB    NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX factor_ceremonies_expiry ON factor_ceremonies (expires_at_ms);

-- Sign-ins with a correct password that wait for the second factor. They are valid while the account has the same
-- password version.
CREATE TABLE pending_second_factors (
    token_hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT    NOT NULL,
    password_version INTEGER NOT NULL,
    return_to        TEXT    NOT NULL,
    expires_at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_second_factors_expiry ON pending_second_factors (expires_at_ms);

-- Attempt counts of the portal and the identity provider, and when they expire. The key (action, person or address) is
-- stored only as a hash.
CREATE TABLE throttles (
    key_hash      BLOB    NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    count         INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX throttles_expiry ON throttles (expires_at_ms);

-- The identity provider's signing keys, consents, authorization codes and access tokens.

-- Each key replaces the previous generation. The primary key ensures that a generation is created once, even if several
-- nodes try at the same time. The private key is PKCS#8, encrypted.
CREATE TABLE signing_keys (
    generation         INTEGER NOT NULL PRIMARY KEY,
    key_id             TEXT    NOT NULL UNIQUE,
    private_key        BLOB    NOT NULL,
    signs_from_ms      INTEGER NOT NULL,
    signs_until_ms     INTEGER NOT NULL CHECK (signs_until_ms > signs_from_ms),
    published_until_ms INTEGER NOT NULL CHECK (published_until_ms >= signs_until_ms)
) STRICT;

-- Permanent consents: what a person allows an application to read.
CREATE TABLE consents (
    subject       TEXT    NOT NULL,
    client_id     TEXT    NOT NULL,
    scope         TEXT    NOT NULL,
    granted_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subject, client_id, scope)
) STRICT, WITHOUT ROWID;

-- Consent pages that wait for an answer. Each can be used once. The page's secret and the token of the session it was shown
-- in are stored only as hashes.
CREATE TABLE consent_requests (
    token_hash    BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject       TEXT    NOT NULL,
    session_hash  BLOB    NOT NULL CHECK (length(session_hash) = 32),
    request       TEXT    NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX consent_requests_expiry ON consent_requests (expires_at_ms);

-- An authorization code and the access token that it was exchanged for. Presenting a code again revokes its token in
-- the same statement.
CREATE TABLE grants (
    code_hash               BLOB    NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    client_id               TEXT    NOT NULL,
    redirect_uri            TEXT    NOT NULL,
    code_challenge          TEXT    NOT NULL,
    subject                 TEXT    NOT NULL,
    password_version        INTEGER NOT NULL,
    scope                   TEXT    NOT NULL,
    nonce                   TEXT,
    sid                     TEXT    NOT NULL,
    amr                     TEXT    NOT NULL,
    authenticated_at_ms     INTEGER NOT NULL,
    code_expires_at_ms      INTEGER NOT NULL,
    redemption_count           INTEGER NOT NULL DEFAULT 0,
    access_token_hash       BLOB    UNIQUE CHECK (length(access_token_hash) = 32),
    access_expires_at_ms    INTEGER,
    delete_after_ms         INTEGER NOT NULL,
    CHECK ((access_token_hash IS NULL) = (access_expires_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX grants_expiry ON grants (delete_after_ms);

-- Secrets that all nodes on this database share, each generated once by the first node that needs it, and encrypted.
CREATE TABLE shared_secrets (
    name   TEXT NOT NULL PRIMARY KEY,
    secret BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- The key with which new secrets are encrypted: one row with the key's ID. The keys themselves are never in this database.
CREATE TABLE current_encryption_key (
    id     INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    key_id BLOB    NOT NULL CHECK (length(key_id) = 8)
) STRICT;

-- Client records, their owners, and the policy's decisions.

-- Ids start at 1001 and are never reused. `sort_name` is the name without case and accents. Without entries,
-- `last_entry_at_ms` is the time of creation, so that a new client comes first. Every change of an entry updates the
-- counts and `next_due_day` here, which lists show.
CREATE TABLE clients (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT    NOT NULL,
    sort_name        TEXT    NOT NULL,
    contact          TEXT    NOT NULL,
    email            TEXT    NOT NULL,
    telephone        TEXT    NOT NULL,
    address          TEXT    NOT NULL,
    since_day        INTEGER,
    owner_id         INTEGER NOT NULL REFERENCES people (id),
    version          INTEGER NOT NULL CHECK (version >= 1),
    created_at_ms    INTEGER NOT NULL,
    archived_at_ms   INTEGER,
    is_archived      INTEGER NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    last_entry_at_ms INTEGER NOT NULL,
    meeting_notes    INTEGER NOT NULL,
    billing_disputes INTEGER NOT NULL,
    draft_letters    INTEGER NOT NULL,
    open_disputes    INTEGER NOT NULL,
    open_letters     INTEGER NOT NULL,
    archived_entries INTEGER NOT NULL,
    next_due_day     INTEGER
) STRICT;

-- Each order of the list, for all clients and for those of one owner.
CREATE INDEX clients_by_id ON clients (is_archived, id);
CREATE INDEX clients_by_id_of_owner ON clients (owner_id, is_archived, id);
CREATE INDEX clients_recent ON clients (is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_recent_of_owner ON clients (owner_id, is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_name ON clients (is_archived, sort_name, id);
CREATE INDEX clients_name_of_owner ON clients (owner_id, is_archived, sort_name, id);
-- Clients with open disputes, and when the next of them is due. `next_due_day` counts from 1970.
CREATE INDEX clients_disputed ON clients (is_archived, id) WHERE open_disputes > 0;
CREATE INDEX clients_disputed_of_owner ON clients (owner_id, is_archived, id) WHERE open_disputes > 0;
CREATE INDEX clients_due ON clients (is_archived, next_due_day, id) WHERE next_due_day IS NOT NULL;
CREATE INDEX clients_due_of_owner ON clients (owner_id, is_archived, next_due_day, id) WHERE next_due_day IS NOT NULL;
-- Clients with unsent letters.
CREATE INDEX clients_drafts_of_owner ON clients (owner_id, is_archived, id) WHERE open_letters > 0;

-- Clients per owner, so that a page need not count them.
CREATE TABLE client_counts (
    owner_id    INTEGER NOT NULL REFERENCES people (id),
    is_archived INTEGER NOT NULL,
    clients     INTEGER NOT NULL,
    PRIMARY KEY (owner_id, is_archived)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER clients_count_insert AFTER INSERT ON clients
BEGIN
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

CREATE TRIGGER clients_count_update AFTER UPDATE ON clients
WHEN OLD.owner_id <> NEW.owner_id OR OLD.is_archived <> NEW.is_archived
BEGIN
    UPDATE client_counts SET clients = clients - 1
        WHERE owner_id = OLD.owner_id AND is_archived = OLD.is_archived;
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

-- Every version of a client's details, including the current one. A NULL `actor_id` is the command line.
CREATE TABLE client_versions (
    client_id   INTEGER NOT NULL REFERENCES clients (id),
    version     INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    contact     TEXT    NOT NULL,
    email       TEXT    NOT NULL,
    telephone   TEXT    NOT NULL,
    address     TEXT    NOT NULL,
    since_day   INTEGER,
    owner_id    INTEGER NOT NULL REFERENCES people (id),
    is_archived INTEGER NOT NULL,
    actor_id       INTEGER REFERENCES people (id),
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (client_id, version)
) STRICT, WITHOUT ROWID;

-- Search terms of clients: words without case and accents, those of the details (`entries` is 0) apart from those of
-- `entries` entries that are not archived. `owner_id` and `is_archived` are copied from the client, so that a search reads
-- only what it may show. A search over all clients reads the terms of each owner.
CREATE TABLE client_search_terms (
    client_id   INTEGER NOT NULL REFERENCES clients (id),
    in_entries  INTEGER NOT NULL CHECK (in_entries = (entries > 0)),
    term        TEXT    NOT NULL,
    owner_id    INTEGER NOT NULL,
    is_archived INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    PRIMARY KEY (client_id, in_entries, term)
) STRICT, WITHOUT ROWID;

CREATE INDEX client_search_terms_owner ON client_search_terms (owner_id, is_archived, in_entries, term, client_id);

CREATE TABLE entries (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id      INTEGER NOT NULL REFERENCES clients (id),
    kind           TEXT    NOT NULL CHECK (kind IN ('meeting_note', 'billing_dispute', 'draft_letter')),
    at_ms          INTEGER NOT NULL,
    author_id      INTEGER NOT NULL REFERENCES people (id),
    is_open        INTEGER NOT NULL CHECK (NOT is_open OR kind <> 'meeting_note'),
    version        INTEGER NOT NULL CHECK (version >= 1),
    archived_at_ms INTEGER,
    is_archived    INTEGER NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    amount_minor   INTEGER CHECK (amount_minor IS NULL OR (amount_minor >= 0 AND kind = 'billing_dispute')),
    due_day        INTEGER CHECK (due_day IS NULL OR kind = 'billing_dispute'),
    title          TEXT    NOT NULL,
    text           TEXT    NOT NULL
) STRICT;

CREATE INDEX entries_timeline ON entries (client_id, is_archived, at_ms DESC, id DESC);
CREATE INDEX entries_timeline_of_kind ON entries (client_id, is_archived, kind, at_ms DESC, id DESC, is_open);
-- Unsent letters of the whole firm.
CREATE INDEX entries_drafts ON entries (at_ms DESC, id DESC)
    WHERE kind = 'draft_letter' AND is_open AND NOT is_archived;

-- The search terms of each entry that is not archived, with a space before each. They are read only for a client that may
-- be read. A row per term would be most of the database.
CREATE TABLE entry_search_terms (
    entry_id INTEGER PRIMARY KEY REFERENCES entries (id),
    terms    TEXT    NOT NULL
) STRICT;

-- Every version of an entry, including the current one.
CREATE TABLE entry_versions (
    entry_id      INTEGER NOT NULL REFERENCES entries (id),
    version       INTEGER NOT NULL,
    at_ms         INTEGER NOT NULL,
    is_open       INTEGER NOT NULL,
    is_archived   INTEGER NOT NULL,
    actor_id         INTEGER REFERENCES people (id),
    changed_at_ms INTEGER NOT NULL,
    amount_minor  INTEGER,
    due_day       INTEGER,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    PRIMARY KEY (entry_id, version)
) STRICT;

-- AUTOINCREMENT continues from here.
INSERT INTO sqlite_sequence (name, seq) VALUES ('clients', 1000), ('entries', 0);

-- Letters that were sent by email. The letter itself cannot be changed afterwards. `event_id` is its message in the outbox.
CREATE TABLE sent_letters (
    entry_id     INTEGER NOT NULL PRIMARY KEY REFERENCES entries (id),
    sent_at_ms   INTEGER NOT NULL,
    sent_by      INTEGER NOT NULL REFERENCES people (id),
    sent_to      TEXT    NOT NULL CHECK (sent_to <> ''),
    subject      TEXT    NOT NULL,
    -- As it was printed: client and firm can move, and readers have other time zones.
    firm_name    TEXT    NOT NULL,
    letterhead   TEXT    NOT NULL,
    recipient    TEXT    NOT NULL,
    printed_date TEXT    NOT NULL,
    event_id     TEXT    NOT NULL
) STRICT;

CREATE TRIGGER sent_letters_no_update BEFORE UPDATE ON sent_letters
BEGIN
    SELECT RAISE(ABORT, 'a sent letter cannot be changed');
END;

CREATE TRIGGER sent_letters_no_delete BEFORE DELETE ON sent_letters
BEGIN
    SELECT RAISE(ABORT, 'a sent letter cannot be changed');
END;

-- It can still be archived.
CREATE TRIGGER entries_sent_no_update BEFORE UPDATE ON entries
WHEN (OLD.title, OLD.text, OLD.at_ms, OLD.is_open) IS NOT (NEW.title, NEW.text, NEW.at_ms, NEW.is_open)
    AND EXISTS (SELECT 1 FROM sent_letters WHERE entry_id = OLD.id)
BEGIN
    SELECT RAISE(ABORT, 'a sent letter cannot be changed');
END;

-- Letters that a new letter can start from, with placeholders for the client's details.
CREATE TABLE letter_templates (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version >= 1),
    changed_by    INTEGER REFERENCES people (id),
    changed_at_ms INTEGER NOT NULL
) STRICT;

-- Views of records, so that the page need not search the audit log.
CREATE TABLE record_views (
    client_id  INTEGER NOT NULL REFERENCES clients (id),
    person_id  INTEGER NOT NULL REFERENCES people (id),
    last_viewed_at_ms INTEGER NOT NULL,
    view_count      INTEGER NOT NULL,
    PRIMARY KEY (client_id, person_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX record_views_of_person ON record_views (person_id, last_viewed_at_ms DESC, client_id);

-- Text that a person typed into a form of a record and has not saved yet. A row without fields says only that the form is
-- open: with the session's hash, it is how text that arrives after the session ended finds its person.
CREATE TABLE unsaved_texts (
    person_id    INTEGER NOT NULL REFERENCES people (id),
    client_id    INTEGER NOT NULL REFERENCES clients (id),
    form         TEXT    NOT NULL
        CHECK (form IN ('details', 'meeting_note', 'billing_dispute', 'draft_letter', 'entry')),
    -- Of the form 'entry', 0 otherwise.
    entry_id     INTEGER NOT NULL CHECK ((form = 'entry') = (entry_id <> 0)),
    session_hash BLOB    NOT NULL CHECK (length(session_hash) = 32),
    -- When that session last opened or saved the form.
    session_at_ms INTEGER NOT NULL,
    -- JSON, or empty.
    fields       TEXT    NOT NULL,
    saved_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (person_id, client_id, form, entry_id)
) STRICT;

CREATE INDEX unsaved_texts_saved_at ON unsaved_texts (saved_at_ms);

-- Each process links its decisions into a hash chain, like the ledger.
CREATE TABLE audit_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- A decision (`action`, `decision`) with its effect on a person's access, or an event of its own such as a sign-in.
-- `client_id` is no foreign key, because requested ids need not exist.
CREATE TABLE audit_rows (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms      INTEGER NOT NULL,
    principal_kind      TEXT    NOT NULL CHECK (principal_kind IN ('consultant', 'partner', 'operator', 'visitor')),
    person_id  INTEGER REFERENCES people (id),
    action     TEXT,
    client_id  INTEGER,
    request_id TEXT    NOT NULL,
    decision   TEXT    CHECK (decision IN ('allowed', 'refused')),
    event      TEXT,
    subject_id INTEGER REFERENCES people (id),
    old_role   TEXT    CHECK (old_role IN ('consultant', 'partner')),
    new_role   TEXT    CHECK (new_role IN ('consultant', 'partner')),
    -- Of an invitation, whose person is not known yet.
    invited_address TEXT,
    ip_address TEXT,
    writer_id  INTEGER NOT NULL,
    position      INTEGER NOT NULL CHECK (position >= 0),
    hash       BLOB    NOT NULL CHECK (length(hash) = 32),
    UNIQUE (writer_id, position),
    CONSTRAINT audit_person_matches_principal
        CHECK ((principal_kind IN ('operator', 'visitor')) = (person_id IS NULL)),
    CONSTRAINT audit_row_is_decision_or_event
        CHECK ((action IS NULL) = (decision IS NULL) AND (action IS NOT NULL OR event IS NOT NULL)),
    -- Columns that the hash of this kind of row does not cover are NULL.
    CONSTRAINT audit_columns_match_row_kind
        CHECK ((action IS NULL OR ip_address IS NULL) AND (action IS NOT NULL OR client_id IS NULL)
            AND (event IS NOT NULL OR (subject_id IS NULL AND old_role IS NULL AND new_role IS NULL))
            AND (invited_address IS NULL OR (action IS NOT NULL AND event IS NOT NULL)))
) STRICT;

CREATE INDEX audit_rows_at ON audit_rows (at_ms, id);
CREATE INDEX audit_rows_client ON audit_rows (client_id, at_ms, id);
CREATE INDEX audit_rows_person ON audit_rows (person_id, at_ms, id);

CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit_rows
WHEN EXISTS (SELECT 1 FROM audit_rows WHERE id = NEW.id)
    OR EXISTS (SELECT 1 FROM audit_rows WHERE writer_id = NEW.writer_id AND position = NEW.position)
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;

-- The last assigned serial of each year. It is raised in the transaction that issues the document, so there are no
-- gaps.
CREATE TABLE invoice_serials (
    year   INTEGER PRIMARY KEY,
    serial INTEGER NOT NULL CHECK (serial >= 0)
) STRICT;

-- Issued invoices and credit notes. Amounts are in minor units of the currency, negative for credit notes. Only the
-- state and the credited amounts change.
CREATE TABLE invoices (
    year              INTEGER NOT NULL,
    serial            INTEGER NOT NULL CHECK (serial >= 1),
    kind              TEXT    NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    credited_year           INTEGER,
    credited_serial         INTEGER,
    reason            TEXT    NOT NULL,
    account_id        INTEGER NOT NULL REFERENCES accounts (id),
    month             INTEGER NOT NULL,
    issued_at_ms      INTEGER NOT NULL,
    due_day           INTEGER NOT NULL,
    currency          TEXT    NOT NULL,
    seller_name       TEXT    NOT NULL,
    letterhead        TEXT    NOT NULL,
    payment           TEXT    NOT NULL,
    buyer_name        TEXT    NOT NULL,
    buyer_address     TEXT    NOT NULL,
    buyer_email       TEXT    NOT NULL,
    tax_name          TEXT,
    tax_rate_ppm      INTEGER,
    subtotal_minor    INTEGER NOT NULL,
    tax_minor         INTEGER NOT NULL,
    total_minor       INTEGER NOT NULL,
    exact_nanos       INTEGER NOT NULL,
    document_hash     BLOB    NOT NULL CHECK (length(document_hash) = 32),
    state             TEXT    NOT NULL CHECK (state IN ('issued', 'paid', 'void')),
    credited_subtotal INTEGER NOT NULL DEFAULT 0,
    credited_total    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (credited_year, credited_serial) REFERENCES invoices (year, serial),
    CHECK ((kind = 'credit_note') = (credited_year IS NOT NULL)),
    CHECK ((credited_year IS NULL) = (credited_serial IS NULL)),
    CHECK ((tax_name IS NULL) = (tax_rate_ppm IS NULL)),
    CHECK (total_minor = subtotal_minor + tax_minor),
    CHECK (credited_subtotal >= 0 AND credited_total >= 0),
    CHECK (state <> 'void' OR (credited_subtotal = subtotal_minor AND credited_total = total_minor)),
    CHECK (kind = 'credit_note' OR (credited_subtotal <= subtotal_minor AND credited_total <= total_minor))
) STRICT, WITHOUT ROWID;

CREATE INDEX invoices_account ON invoices (account_id, year, serial);
CREATE INDEX invoices_state ON invoices (state, currency, due_day);
CREATE INDEX invoices_credited ON invoices (credited_year, credited_serial) WHERE credited_year IS NOT NULL;

-- Sums by day and price, from which months are invoiced. A day is days since 1970 UTC.
CREATE TABLE daily_usage (
    account_id         INTEGER NOT NULL REFERENCES accounts (id),
    day                INTEGER NOT NULL,
    key_id             INTEGER NOT NULL REFERENCES api_keys (id),
    model              TEXT    NOT NULL,
    input_price_nanos  INTEGER NOT NULL CHECK (input_price_nanos >= 0),
    cached_price_nanos INTEGER NOT NULL CHECK (cached_price_nanos >= 0),
    output_price_nanos INTEGER NOT NULL CHECK (output_price_nanos >= 0),
    requests           INTEGER NOT NULL CHECK (requests >= 0),
    input_tokens       INTEGER NOT NULL CHECK (input_tokens >= 0),
    cached_input_tokens INTEGER NOT NULL CHECK (cached_input_tokens >= 0 AND cached_input_tokens <= input_tokens),
    output_tokens      INTEGER NOT NULL CHECK (output_tokens >= 0),
    cost_nanos         INTEGER NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos)
) STRICT, WITHOUT ROWID;

CREATE INDEX daily_usage_day ON daily_usage (day);
-- The last day on which a key was used.
CREATE INDEX daily_usage_key ON daily_usage (key_id, day);

-- Every month in which an account has usage, and the invoice that bills it: none, or the one that is not void. Months are
-- counted from January of the year 0.
CREATE TABLE billing_months (
    account_id     INTEGER NOT NULL REFERENCES accounts (id),
    month          INTEGER NOT NULL,
    invoice_year   INTEGER,
    invoice_serial INTEGER,
    PRIMARY KEY (account_id, month),
    CHECK ((invoice_year IS NULL) = (invoice_serial IS NULL)),
    FOREIGN KEY (invoice_year, invoice_serial) REFERENCES invoices (year, serial)
) STRICT, WITHOUT ROWID;

CREATE INDEX billing_months_unbilled ON billing_months (month DESC, account_id) WHERE invoice_year IS NULL;

-- Days after the year 9999 count as its last day, as in `Month::containing`.
CREATE TRIGGER usage_records_month AFTER INSERT ON daily_usage
BEGIN
    INSERT INTO billing_months (account_id, month)
        SELECT NEW.account_id, used.month
        FROM (SELECT CAST(strftime('%Y', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) * 12
            + CAST(strftime('%m', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) - 1 AS month) AS used
        WHERE NOT EXISTS (SELECT 1 FROM billing_months m WHERE m.account_id = NEW.account_id AND m.month = used.month);
END;

-- Rejects usage in an invoiced month, because the invoice would no longer match the ledger. It fires for existing sums too.
CREATE TRIGGER usage_month_not_invoiced BEFORE INSERT ON daily_usage
WHEN EXISTS (
    SELECT 1 FROM billing_months m
    WHERE m.account_id = NEW.account_id AND m.invoice_year IS NOT NULL
        AND m.month = CAST(strftime('%Y', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) * 12
            + CAST(strftime('%m', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) - 1
)
BEGIN
    SELECT RAISE(ABORT, 'the month is already invoiced for this account');
END;

-- An invoiced month stays invoiced until its invoice is void.
CREATE TRIGGER billing_months_no_unbill BEFORE UPDATE ON billing_months
WHEN EXISTS (
    SELECT 1 FROM invoices i WHERE i.year = OLD.invoice_year AND i.serial = OLD.invoice_serial AND i.state <> 'void'
)
BEGIN
    SELECT RAISE(ABORT, 'the month is already invoiced for this account; issue a credit note');
END;
CREATE TRIGGER billing_months_no_delete BEFORE DELETE ON billing_months
BEGIN
    SELECT RAISE(ABORT, 'billing months with usage cannot be deleted');
END;
-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER billing_months_no_replace BEFORE INSERT ON billing_months
WHEN EXISTS (SELECT 1 FROM billing_months m WHERE m.account_id = NEW.account_id AND m.month = NEW.month)
BEGIN
    SELECT RAISE(ABORT, 'billing months with usage cannot be deleted');
END;

CREATE TABLE invoice_lines (
    year         INTEGER NOT NULL,
    serial       INTEGER NOT NULL,
    position        INTEGER NOT NULL CHECK (position >= 0),
    item         TEXT    NOT NULL CHECK (item IN ('tokens', 'part')),
    model        TEXT    NOT NULL,
    direction    TEXT    NOT NULL CHECK (direction IN ('input', 'cached_input', 'output', '')),
    tokens       INTEGER NOT NULL CHECK (tokens >= 0),
    price_nanos  INTEGER NOT NULL CHECK (price_nanos >= 0),
    exact_nanos  INTEGER NOT NULL,
    amount_minor INTEGER NOT NULL,
    PRIMARY KEY (year, serial, position),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
) STRICT, WITHOUT ROWID;

-- The PDF, byte for byte as issued.
CREATE TABLE invoice_documents (
    year   INTEGER NOT NULL,
    serial INTEGER NOT NULL,
    pdf    BLOB    NOT NULL,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
) STRICT;

-- History of invoices. A NULL `actor_id` is the command line. The note is the credit note of a `credited` or `voided`
-- event.
CREATE TABLE invoice_events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    year        INTEGER NOT NULL,
    serial      INTEGER NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('issued', 'paid', 'payment_taken_back', 'credited', 'voided')),
    credit_note_year   INTEGER,
    credit_note_serial INTEGER,
    actor_id       INTEGER REFERENCES people (id),
    at_ms       INTEGER NOT NULL,
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial),
    FOREIGN KEY (credit_note_year, credit_note_serial) REFERENCES invoices (year, serial)
) STRICT;

CREATE INDEX invoice_events_invoice ON invoice_events (year, serial, id);
CREATE UNIQUE INDEX invoice_events_once ON invoice_events (year, serial, kind) WHERE kind IN ('issued', 'voided');

CREATE TRIGGER invoices_no_update BEFORE UPDATE OF year, serial, kind, credited_year, credited_serial, reason, account_id, month,
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, tax_name,
    tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash ON invoices
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoices_no_delete BEFORE DELETE ON invoices
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_lines_no_update BEFORE UPDATE ON invoice_lines
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_lines_no_delete BEFORE DELETE ON invoice_lines
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_documents_no_update BEFORE UPDATE ON invoice_documents
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_documents_no_delete BEFORE DELETE ON invoice_documents
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_events_no_update BEFORE UPDATE ON invoice_events
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_events_no_delete BEFORE DELETE ON invoice_events
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
-- INSERT OR REPLACE removes the old row without firing the triggers above.
CREATE TRIGGER invoices_no_replace BEFORE INSERT ON invoices
WHEN EXISTS (SELECT 1 FROM invoices WHERE year = NEW.year AND serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_lines_no_replace BEFORE INSERT ON invoice_lines
WHEN EXISTS (SELECT 1 FROM invoice_lines WHERE year = NEW.year AND serial = NEW.serial AND position = NEW.position)
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_documents_no_replace BEFORE INSERT ON invoice_documents
WHEN EXISTS (SELECT 1 FROM invoice_documents WHERE year = NEW.year AND serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;
CREATE TRIGGER invoice_events_no_replace BEFORE INSERT ON invoice_events
WHEN EXISTS (SELECT 1 FROM invoice_events WHERE id = NEW.id)
    OR (NEW.kind IN ('issued', 'voided') AND EXISTS (SELECT 1 FROM invoice_events e
        WHERE e.year = NEW.year AND e.serial = NEW.serial AND e.kind = NEW.kind))
BEGIN
    SELECT RAISE(ABORT, 'issued invoices cannot be changed; issue a credit note');
END;

-- Lines are written before the document, and none after it.
CREATE TRIGGER invoice_lines_before_document BEFORE INSERT ON invoice_lines
WHEN EXISTS (SELECT 1 FROM invoice_documents d WHERE d.year = NEW.year AND d.serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'lines cannot be added to an issued invoice; issue a credit note');
END;

-- A void invoice stays void, and credited amounts never decrease.
CREATE TRIGGER invoices_no_credit_reversal BEFORE UPDATE OF state, credited_subtotal, credited_total ON invoices
WHEN OLD.state = 'void' OR NEW.credited_subtotal < OLD.credited_subtotal OR NEW.credited_total < OLD.credited_total
BEGIN
    SELECT RAISE(ABORT, 'credit notes cannot be reversed; issue a new invoice for the month');
END;

-- Numbers are assigned consecutively.
CREATE TRIGGER invoice_serials_start_at_one BEFORE INSERT ON invoice_serials
WHEN NEW.serial <> 1 OR EXISTS (SELECT 1 FROM invoice_serials s WHERE s.year = NEW.year)
BEGIN
    SELECT RAISE(ABORT, 'invoice numbers must be consecutive');
END;
CREATE TRIGGER invoice_serials_no_gap BEFORE UPDATE ON invoice_serials
WHEN NEW.year <> OLD.year OR NEW.serial <> OLD.serial + 1
BEGIN
    SELECT RAISE(ABORT, 'invoice numbers must be consecutive');
END;
CREATE TRIGGER invoice_serials_no_delete BEFORE DELETE ON invoice_serials
BEGIN
    SELECT RAISE(ABORT, 'invoice numbers must be consecutive');
END;

-- Requests rejected for lack of a billing account, by the spending cap or by a rate limit. Only pages show these counts;
-- nothing is billed by them. A key without an account has account 0.
CREATE TABLE daily_rejections (
    account_id INTEGER NOT NULL,
    day        INTEGER NOT NULL,
    key_id     INTEGER NOT NULL REFERENCES api_keys (id),
    code       TEXT    NOT NULL,
    rejections   INTEGER NOT NULL CHECK (rejections >= 0),
    last_at_ms INTEGER NOT NULL,
    PRIMARY KEY (account_id, day, key_id, code)
) STRICT, WITHOUT ROWID;

CREATE INDEX daily_rejections_day ON daily_rejections (day);

-- When each key was last used by an admitted request, a few seconds old at most.
CREATE TABLE key_uses (
    key_id     INTEGER PRIMARY KEY REFERENCES api_keys (id),
    last_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The busiest 60 seconds of each day, as seen by the rate limiter.
CREATE TABLE daily_peaks (
    account_id     INTEGER NOT NULL REFERENCES accounts (id),
    day            INTEGER NOT NULL,
    requests       INTEGER NOT NULL,
    requests_at_ms INTEGER NOT NULL,
    tokens         INTEGER NOT NULL,
    tokens_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (account_id, day)
) STRICT, WITHOUT ROWID;

-- History of billing accounts and keys.
CREATE TABLE account_events (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER REFERENCES accounts (id),
    key_id     INTEGER REFERENCES api_keys (id),
    kind       TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    actor_id      INTEGER REFERENCES people (id),
    at_ms      INTEGER NOT NULL
) STRICT;

CREATE INDEX account_events_account ON account_events (account_id, id);
CREATE INDEX account_events_key ON account_events (key_id, id);

-- For the keys of an account, and those without one.
CREATE INDEX api_keys_account ON api_keys (account_id);

CREATE TRIGGER account_events_no_update BEFORE UPDATE ON account_events
BEGIN
    SELECT RAISE(ABORT, 'the account history is append-only');
END;
CREATE TRIGGER account_events_no_delete BEFORE DELETE ON account_events
BEGIN
    SELECT RAISE(ABORT, 'the account history is append-only');
END;
-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER account_events_no_replace BEFORE INSERT ON account_events
WHEN EXISTS (SELECT 1 FROM account_events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'the account history is append-only');
END;

-- Webhooks, alerts, and messages that wait to be sent.

-- A secret signs every event. It is encrypted.
CREATE TABLE webhooks (
    id             TEXT    NOT NULL PRIMARY KEY,
    url            TEXT    NOT NULL,
    secret         BLOB    NOT NULL,
    created_at_ms  INTEGER NOT NULL,
    -- Set when the receiver says that it is gone for good.
    disabled_at_ms INTEGER
) STRICT, WITHOUT ROWID;

-- The destination is an email address or a webhook's id. While a process sends a message, the message has its claim, and
-- `next_attempt_at_ms` is when the claim ends: from then on, any process may send it again.
CREATE TABLE outbox_messages (
    event_id           TEXT    NOT NULL,
    destination        TEXT    NOT NULL,
    kind               TEXT    NOT NULL CHECK (kind IN ('email', 'webhook')),
    payload            TEXT    NOT NULL,
    state              TEXT    NOT NULL CHECK (state IN ('pending', 'sent', 'failed')),
    attempts           INTEGER NOT NULL CHECK (attempts >= 0),
    last_error         TEXT,
    claim              TEXT,
    created_at_ms      INTEGER NOT NULL,
    next_attempt_at_ms INTEGER NOT NULL,
    expires_at_ms      INTEGER NOT NULL,
    finished_at_ms     INTEGER,
    PRIMARY KEY (event_id, destination),
    CHECK ((state = 'pending') = (finished_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_messages_due ON outbox_messages (next_attempt_at_ms) WHERE state = 'pending';
CREATE INDEX outbox_messages_finished ON outbox_messages (finished_at_ms) WHERE state <> 'pending';

-- Alerts that were sent, each once. `period` is the day number of the month's first day, or when the key expires.
CREATE TABLE alerts_sent (
    scope      TEXT    NOT NULL CHECK (scope IN ('account', 'key')),
    subject_id INTEGER NOT NULL,
    alert      TEXT    NOT NULL,
    period     INTEGER NOT NULL,
    cap_nanos  INTEGER NOT NULL,
    sent_at_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, subject_id, alert, period, cap_nanos)
) STRICT, WITHOUT ROWID;

CREATE INDEX alerts_sent_time ON alerts_sent (sent_at_ms);
CREATE INDEX alerts_sent_period ON alerts_sent (period);

-- Spending caps that rejected a request, and when they first did. `month` is the day number of its first day.
CREATE TABLE cap_rejections (
    scope       TEXT    NOT NULL CHECK (scope IN ('account', 'key')),
    subject_id  INTEGER NOT NULL,
    month       INTEGER NOT NULL,
    cap_nanos   INTEGER NOT NULL,
    first_at_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, subject_id, month, cap_nanos)
) STRICT, WITHOUT ROWID;

-- Until when a process has a periodic task, so that one node at a time runs it.
CREATE TABLE periodic_tasks (
    name             TEXT    NOT NULL PRIMARY KEY,
    claimed_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Merkle logs over the ledger and the audit log. A segment says which rows of a writer's chain follow each other in a log, from
-- the leaf `first_index` on. Leaf hashes are computed from the rows. A node is the hash of 256 nodes of the level below it, or of
-- 256 leaves at level 1. The checkpointer adds to all of them after the rows were committed.
CREATE TABLE log_segments (
    log            TEXT    NOT NULL CHECK (log IN ('ledger', 'audit')),
    first_index    INTEGER NOT NULL CHECK (first_index >= 0),
    writer_id      INTEGER NOT NULL,
    first_position INTEGER NOT NULL CHECK (first_position >= 0),
    row_count      INTEGER NOT NULL CHECK (row_count > 0),
    PRIMARY KEY (log, first_index)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX log_segments_writer ON log_segments (log, writer_id, first_position);

CREATE TABLE log_nodes (
    log        TEXT    NOT NULL CHECK (log IN ('ledger', 'audit')),
    level      INTEGER NOT NULL CHECK (level >= 1),
    node_index INTEGER NOT NULL CHECK (node_index >= 0),
    hash       BLOB    NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (log, level, node_index)
) STRICT, WITHOUT ROWID;

-- Signed checkpoints (C2SP tlog-checkpoint). The signing key is not in this database.
CREATE TABLE log_checkpoints (
    log   TEXT    NOT NULL CHECK (log IN ('ledger', 'audit')),
    size  INTEGER NOT NULL CHECK (size > 0),
    note  TEXT    NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (log, size)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER log_segments_no_update BEFORE UPDATE ON log_segments
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;

CREATE TRIGGER log_segments_no_delete BEFORE DELETE ON log_segments
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;

CREATE TRIGGER log_nodes_no_update BEFORE UPDATE ON log_nodes
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;

CREATE TRIGGER log_nodes_no_delete BEFORE DELETE ON log_nodes
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;

CREATE TRIGGER log_checkpoints_no_update BEFORE UPDATE ON log_checkpoints
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;

CREATE TRIGGER log_checkpoints_no_delete BEFORE DELETE ON log_checkpoints
BEGIN
    SELECT RAISE(ABORT, 'Merkle logs are append-only');
END;
