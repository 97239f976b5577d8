-- Times are milliseconds since 1970 UTC; money is in nano-units of the currency. Both are integers. Text is compared
-- byte by byte (COLLATE "C"), so that lists have the same order on every server and on SQLite.

CREATE TABLE accounts (
    id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             TEXT COLLATE "C" NOT NULL UNIQUE,
    requests_per_min BIGINT NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   BIGINT NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    BIGINT NOT NULL,
    closed_at_ms     BIGINT,
    -- Cap per calendar month (UTC); NULL means no cap.
    spend_per_month_nanos BIGINT CHECK (spend_per_month_nanos >= 0),
    -- The billing contact.
    billing_address  TEXT   NOT NULL DEFAULT '',
    billing_email    TEXT   NOT NULL DEFAULT ''
);

-- Pages of the list of accounts: by name, closed ones last.
CREATE INDEX accounts_open ON accounts (name) WHERE closed_at_ms IS NULL;
CREATE INDEX accounts_closed ON accounts (name) WHERE closed_at_ms IS NOT NULL;

CREATE TABLE api_keys (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    prefix        TEXT COLLATE "C" NOT NULL UNIQUE,
    hash          BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    label         TEXT   NOT NULL,
    account_id    BIGINT REFERENCES accounts (id),
    created_at_ms BIGINT NOT NULL,
    revoked_at_ms BIGINT,
    -- The key's own limits, next to its account's. None of them is set: only the account's hold.
    max_requests_per_min      BIGINT CHECK (max_requests_per_min > 0),
    max_tokens_per_min        BIGINT CHECK (max_tokens_per_min > 0),
    max_spend_per_month_nanos BIGINT CHECK (max_spend_per_month_nanos >= 0),
    -- Names separated by commas.
    allowed_models            TEXT CHECK (allowed_models <> ''),
    expires_at_ms             BIGINT,
    -- The secret before the last rotation.
    previous_hash             BYTEA CHECK (octet_length(previous_hash) = 32),
    previous_expires_at_ms    BIGINT,
    CHECK ((previous_hash IS NULL) = (previous_expires_at_ms IS NULL))
);

-- Each writer links its rows into a hash chain: a row has its position in the chain and a hash over itself and the row
-- before. The chain head is stored separately, so that rows missing at the end are detected too. Sums by day are
-- updated together with the rows.

CREATE TABLE ledger_writers (
    id        BIGINT PRIMARY KEY,
    row_count BIGINT NOT NULL CHECK (row_count >= 0),
    head      BYTEA  NOT NULL CHECK (octet_length(head) = 32)
);

-- One partition per month. A request id begins with its time, so ids are partitioned by month. Unlike times, ids can be
-- unique across all partitions.
CREATE TABLE ledger (
    request_id         TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (request_id <> ''),
    account_id         BIGINT NOT NULL REFERENCES accounts (id),
    key_id             BIGINT NOT NULL REFERENCES api_keys (id),
    model              TEXT COLLATE "C" NOT NULL,
    input_tokens       BIGINT NOT NULL CHECK (input_tokens >= 0),
    -- The part of the input that is billed at the price of cached input.
    cached_input_tokens BIGINT NOT NULL CHECK (cached_input_tokens >= 0 AND cached_input_tokens <= input_tokens),
    output_tokens      BIGINT NOT NULL CHECK (output_tokens >= 0),
    input_price_nanos  BIGINT NOT NULL CHECK (input_price_nanos >= 0),
    cached_price_nanos BIGINT NOT NULL CHECK (cached_price_nanos >= 0),
    output_price_nanos BIGINT NOT NULL CHECK (output_price_nanos >= 0),
    cost_nanos         BIGINT NOT NULL CHECK (cost_nanos >= 0),
    at_ms              BIGINT NOT NULL CHECK (at_ms >= 0),
    stop_reason              TEXT   NOT NULL
        CHECK (stop_reason IN ('complete', 'max_output_tokens', 'stop_sequence', 'context_length', 'cancelled', 'deadline', 'content_filter', 'repetition')),
    writer_id          BIGINT NOT NULL,
    position              BIGINT NOT NULL CHECK (position >= 0),
    hash               BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = (input_tokens - cached_input_tokens) * input_price_nanos
            + cached_input_tokens * cached_price_nanos + output_tokens * output_price_nanos)
) PARTITION BY RANGE (request_id);

CREATE INDEX ledger_chain_position ON ledger (writer_id, position);

-- For ids of months that have no partition, so that a row always has somewhere to go.
CREATE TABLE ledger_default PARTITION OF ledger DEFAULT;

CREATE FUNCTION reject_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only';
END;
$$;

CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION reject_ledger_change();

-- Unlike the row trigger above, a TRUNCATE trigger does not apply to partitions.
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION reject_ledger_change();
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger_default
    FOR EACH STATEMENT EXECUTE FUNCTION reject_ledger_change();

-- Creates the partition of a month unless it exists: ids from `first_id` (inclusive) to `end_id` (exclusive). The table is
-- created separately and then attached, which does not block readers and writers of the ledger's other partitions.
CREATE FUNCTION create_ledger_partition(partition_name TEXT, first_id TEXT, end_id TEXT) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass(partition_name) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(7163082334074663545);
    IF to_regclass(partition_name) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE ledger INCLUDING ALL)', partition_name);
    EXECUTE format('ALTER TABLE ledger ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', partition_name, first_id, end_id);
    EXECUTE format('CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION reject_ledger_change()', partition_name);
END;
$$;

-- A settlement is one statement. If one of its parts must not happen, this undoes the others.
CREATE FUNCTION abort_settlement(reason TEXT) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CH001', MESSAGE = reason;
END;
$$;

-- Amounts that running requests have reserved of their account's monthly cap.

-- `month` is the day number of its first day. A reservation is settled with the ledger row or released. When it
-- expires, or the process that created it is dead, any process may delete it.
CREATE TABLE spending_reservations (
    request_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    account_id    BIGINT NOT NULL REFERENCES accounts (id),
    key_id        BIGINT NOT NULL REFERENCES api_keys (id),
    month         BIGINT NOT NULL,
    amount_nanos  BIGINT NOT NULL CHECK (amount_nanos >= 0),
    writer_id     BIGINT NOT NULL
);

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);
CREATE INDEX spending_reservations_key ON spending_reservations (key_id, month);

-- Leases of processes that hold reservations or idempotency keys.
CREATE TABLE writer_leases (
    writer_id      BIGINT PRIMARY KEY,
    lease_expires_at_ms BIGINT NOT NULL
);

-- Reserves the amount if the month's spending and reservations leave room for it. The row lock on the account
-- serializes callers. Each statement of the function takes a new snapshot, so the second caller sees the first one's
-- reservation.
CREATE FUNCTION reserve_spending(
    request TEXT, account BIGINT, first_day BIGINT, last_day BIGINT, amount BIGINT, writer BIGINT, api_key BIGINT
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM api_keys WHERE id = api_key AND max_spend_per_month_nanos IS NOT NULL FOR NO KEY UPDATE;
    PERFORM 1 FROM accounts WHERE id = account FOR NO KEY UPDATE;
    INSERT INTO spending_reservations (request_id, account_id, key_id, month, amount_nanos, writer_id)
        SELECT request, a.id, k.id, first_day, amount, writer FROM accounts a, api_keys k
        WHERE a.id = account AND k.id = api_key
        AND (a.spend_per_month_nanos IS NOT NULL OR k.max_spend_per_month_nanos IS NOT NULL)
        AND (a.spend_per_month_nanos IS NULL OR a.spend_per_month_nanos - amount >=
            COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u
                      WHERE u.account_id = account AND u.day BETWEEN first_day AND last_day), 0)
            + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r
                        WHERE r.account_id = account AND r.month = first_day), 0))
        AND (k.max_spend_per_month_nanos IS NULL OR k.max_spend_per_month_nanos - amount >=
            COALESCE((SELECT SUM(u.cost_nanos) FROM daily_usage u
                      WHERE u.key_id = api_key AND u.day BETWEEN first_day AND last_day), 0)
            + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r
                        WHERE r.key_id = api_key AND r.month = first_day), 0));
    RETURN FOUND;
END;
$$;

-- Idempotency keys: sending a request again does not run it again. While the request runs, its row has the process that
-- runs it. Afterwards it has the reasoning, the text and, if the request asked for them, the log probabilities of its
-- tokens, encoded; the rest of the reply is in the ledger row. Both texts are BYTEA, because a model may generate a NUL
-- character, which PostgreSQL cannot store as text.
CREATE TABLE idempotency_keys (
    account_id      BIGINT NOT NULL REFERENCES accounts (id),
    idempotency_key TEXT COLLATE "C" NOT NULL,
    fingerprint     BYTEA  NOT NULL CHECK (octet_length(fingerprint) = 32),
    request_id      TEXT COLLATE "C" NOT NULL,
    writer_id       BIGINT,
    reasoning_text  BYTEA,
    output_text     BYTEA,
    logprobs        BYTEA,
    reasoning_tokens BIGINT CHECK (reasoning_tokens >= 0),
    expires_at_ms   BIGINT NOT NULL,
    PRIMARY KEY (account_id, idempotency_key),
    CHECK ((writer_id IS NULL) = (output_text IS NOT NULL) AND (writer_id IS NULL) = (reasoning_text IS NOT NULL)
        AND (writer_id IS NULL) = (reasoning_tokens IS NOT NULL) AND (writer_id IS NULL OR logprobs IS NULL))
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- People of the portal, their sessions, and sign-ins in progress.

-- Issuer and subject together identify a person; two people may have the same email address.
CREATE TABLE people (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    issuer        TEXT   NOT NULL,
    subject       TEXT   NOT NULL,
    email         TEXT   NOT NULL,
    -- The address without what follows a plus sign: a removal holds for the mailbox.
    mailbox       TEXT   NOT NULL,
    role          TEXT   NOT NULL CHECK (role IN ('consultant', 'partner')),
    joined_at_ms  BIGINT NOT NULL,
    removed_at_ms BIGINT,
    name          TEXT,
    time_zone     TEXT,
    UNIQUE (issuer, subject)
);

CREATE INDEX people_email ON people (email);
CREATE INDEX people_removed_mailbox ON people (mailbox) WHERE removed_at_ms IS NOT NULL;

-- People who were invited by email and have not signed in yet.
CREATE TABLE invitations (
    email           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    role            TEXT   NOT NULL CHECK (role IN ('consultant', 'partner')),
    -- NULL for the command line.
    invited_by      BIGINT REFERENCES people (id),
    created_at_ms   BIGINT NOT NULL,
    last_sent_at_ms BIGINT NOT NULL
);

-- Only a hash of the session's token is stored. `authenticated_at_ms` is when the person last authenticated at the identity
-- provider, `confirmed_at_ms` when it last confirmed that they are signed in there, and `sid` its own session. The ID token is
-- encrypted with a key derived from the session's token, and once more like every other secret. `binding_hash` is the hash
-- of a second cookie, with `portal.bind_session`.
CREATE TABLE sessions (
    id              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token_hash      BYTEA  NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    person_id       BIGINT NOT NULL REFERENCES people (id),
    started_at_ms   BIGINT NOT NULL,
    last_used_at_ms BIGINT NOT NULL,
    ip_address      TEXT   NOT NULL,
    browser         TEXT   NOT NULL,
    authenticated_at_ms BIGINT NOT NULL,
    confirmed_at_ms     BIGINT NOT NULL,
    sid             TEXT,
    id_token        BYTEA,
    binding_hash    BYTEA CHECK (length(binding_hash) = 32)
);

CREATE INDEX sessions_person ON sessions (person_id);
CREATE INDEX sessions_sid ON sessions (sid);

-- Sign-ins from the button until the browser returns from the identity provider. Each can be used once.
CREATE TABLE pending_sign_ins (
    token_hash    BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    state         TEXT   NOT NULL,
    nonce         TEXT   NOT NULL,
    pkce_verifier TEXT   NOT NULL,
    return_to     TEXT   NOT NULL,
    purpose       TEXT   NOT NULL CHECK (purpose IN ('sign-in', 'step-up', 'recheck')),
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX pending_sign_ins_expiry ON pending_sign_ins (expires_at_ms);

-- Sign-ins from the return from the identity provider until the emailed code is entered. `last_sent_at_ms` is when the mail
-- server last accepted an email, or NULL. `next_email_at_ms` is when the next email may be sent.
CREATE TABLE pending_email_codes (
    token_hash         BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    issuer             TEXT   NOT NULL,
    subject            TEXT   NOT NULL,
    email              TEXT   NOT NULL,
    return_to          TEXT   NOT NULL,
    code_hash          BYTEA  NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms BIGINT NOT NULL,
    wrong_attempts        BIGINT NOT NULL,
    emails_sent         BIGINT NOT NULL,
    last_sent_at_ms    BIGINT,
    next_email_at_ms  BIGINT NOT NULL,
    is_email_verified  BOOLEAN NOT NULL,
    directory_role     TEXT CHECK (directory_role IN ('consultant', 'partner')),
    authenticated_at_ms BIGINT NOT NULL,
    sid                TEXT,
    id_token           BYTEA
);

CREATE INDEX pending_email_codes_identity ON pending_email_codes (issuer, subject);
CREATE INDEX pending_email_codes_expiry ON pending_email_codes (code_expires_at_ms);
CREATE INDEX pending_email_codes_sid ON pending_email_codes (sid);

-- Logout tokens of the identity provider that were used. Each works once.
CREATE TABLE logout_token_ids (
    id_hash       BYTEA NOT NULL PRIMARY KEY CHECK (length(id_hash) = 32),
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX logout_token_ids_expiry ON logout_token_ids (expires_at_ms);

-- Whether a partner would remain without this person, who can then be demoted or removed. The lock serializes callers, so
-- the second one sees what the first one changed.
CREATE FUNCTION other_partner_exists(person BIGINT) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(4849208117);
    RETURN EXISTS (SELECT 1 FROM people
                   WHERE id <> person AND role = 'partner' AND removed_at_ms IS NULL);
END;
$$;

-- The same for everyone with a mailbox, who are removed together: how many partners would remain.
CREATE FUNCTION partners_outside_mailbox(removed TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(4849208117);
    RETURN (SELECT COUNT(*) FROM people
            WHERE mailbox <> removed AND role = 'partner' AND removed_at_ms IS NULL);
END;
$$;

-- The built-in identity provider: passwords, sessions, mailboxes being verified, and attempt counts. The portal reads
-- none of this, except throttles.

-- An account is created only after its mailbox is verified. The subject is random and never changes.
CREATE TABLE provider_accounts (
    subject          TEXT   NOT NULL PRIMARY KEY,
    email            TEXT   NOT NULL UNIQUE,
    password_hash    TEXT   NOT NULL,
    password_version BIGINT NOT NULL DEFAULT 1,
    created_at_ms    BIGINT NOT NULL
);

-- A session is valid while its account has the password version that it was started with.
CREATE TABLE provider_sessions (
    token_hash       BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT   NOT NULL REFERENCES provider_accounts (subject),
    password_version BIGINT NOT NULL,
    -- The `sid` and `amr` claims of ID tokens.
    sid              TEXT    NOT NULL UNIQUE,
    amr              TEXT    NOT NULL,
    started_at_ms    BIGINT NOT NULL,
    last_used_at_ms  BIGINT NOT NULL
);

CREATE INDEX provider_sessions_subject ON provider_sessions (subject);
CREATE INDEX provider_sessions_start ON provider_sessions (started_at_ms);
CREATE INDEX provider_sessions_use ON provider_sessions (last_used_at_ms);

-- The applications that were signed in to in a session. A session that ends is announced to them (back-channel logout).
CREATE TABLE provider_session_clients (
    sid       TEXT NOT NULL REFERENCES provider_sessions (sid) ON DELETE CASCADE,
    client_id TEXT NOT NULL,
    PRIMARY KEY (sid, client_id)
);

-- Logout tokens that have to be sent, one for each ended session and application. While a process sends one, the row has its
-- claim, and `next_attempt_at_ms` is when the claim ends: from then on, any process may send it again.
CREATE TABLE backchannel_logouts (
    sid                 TEXT    NOT NULL,
    client_id           TEXT    NOT NULL,
    subject             TEXT    NOT NULL,
    attempts            BIGINT  NOT NULL CHECK (attempts >= 0),
    claim               TEXT,
    first_attempt_at_ms BIGINT ,
    next_attempt_at_ms  BIGINT  NOT NULL,
    PRIMARY KEY (sid, client_id)
);

CREATE INDEX backchannel_logouts_due ON backchannel_logouts (next_attempt_at_ms);

-- Browsers in which a person has signed in before. Their attempts have limits of their own, so that strangers cannot lock the
-- person out.
CREATE TABLE known_devices (
    subject       TEXT    NOT NULL REFERENCES provider_accounts (subject) ON DELETE CASCADE,
    token_hash    BYTEA   NOT NULL CHECK (length(token_hash) = 32),
    expires_at_ms BIGINT  NOT NULL,
    PRIMARY KEY (subject, token_hash)
);

CREATE INDEX known_devices_token ON known_devices (token_hash);
CREATE INDEX known_devices_expiry ON known_devices (expires_at_ms);

-- Proofs from the form until the emailed code is entered. There is a row whether or not the address has an account.
CREATE TABLE mailbox_proofs (
    token_hash         BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    purpose            TEXT   NOT NULL CHECK (purpose IN ('sign_up', 'new_password', 'first_factor')),
    email              TEXT   NOT NULL,
    password_hash      TEXT   CHECK ((password_hash IS NOT NULL) = (purpose = 'sign_up')),
    return_to          TEXT   NOT NULL,
    code_hash          BYTEA  NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms BIGINT NOT NULL,
    emails_sent         BIGINT NOT NULL,
    last_sent_at_ms    BIGINT NOT NULL
);

CREATE INDEX mailbox_proofs_email ON mailbox_proofs (email);
CREATE INDEX mailbox_proofs_expiry ON mailbox_proofs (code_expires_at_ms);

-- Second factors of accounts at the identity provider.

-- The credential is webauthn-rs's JSON: public key, sign counter and backup state.
CREATE TABLE passkeys (
    credential_id   BYTEA  NOT NULL PRIMARY KEY,
    subject         TEXT   NOT NULL REFERENCES provider_accounts (subject),
    name            TEXT   NOT NULL,
    credential      TEXT   NOT NULL,
    created_at_ms   BIGINT NOT NULL,
    last_used_at_ms BIGINT
);

CREATE INDEX passkeys_subject ON passkeys (subject);

-- The secret is encrypted. A time step is accepted only if it is after `last_step`.
CREATE TABLE totp_secrets (
    subject       TEXT   NOT NULL PRIMARY KEY REFERENCES provider_accounts (subject),
    secret        BYTEA  NOT NULL,
    last_step     BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL
);

-- Each code works once; its row is deleted then.
CREATE TABLE recovery_codes (
    code_hash BYTEA NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    subject   TEXT  NOT NULL REFERENCES provider_accounts (subject)
);

CREATE INDEX recovery_codes_subject ON recovery_codes (subject);

-- Challenges and secrets of a browser that is adding or using a factor. Each can be used once. The key is derived from
-- a secret in the browser's cookie, and the state is encrypted. Without a subject, the passkey itself says who signs in.
CREATE TABLE factor_ceremonies (
    key_hash      BYTEA  NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    kind          TEXT   NOT NULL CHECK (kind IN ('passkey_registration', 'passkey_authentication', 'totp_enrolment',
        'mailbox_proof')),
    subject       TEXT,
    state         BYTEA  NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX factor_ceremonies_expiry ON factor_ceremonies (expires_at_ms);

-- Sign-ins with a correct password that wait for the second factor. They are valid while the account has the same
-- password version.
CREATE TABLE pending_second_factors (
    token_hash       BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT   NOT NULL,
    password_version BIGINT NOT NULL,
    return_to        TEXT   NOT NULL,
    expires_at_ms    BIGINT NOT NULL
);

CREATE INDEX pending_second_factors_expiry ON pending_second_factors (expires_at_ms);

-- Attempt counts of the portal and the identity provider, and when they expire. The key (action, person or address) is
-- stored only as a hash.
CREATE TABLE throttles (
    key_hash      BYTEA  NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    count         BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX throttles_expiry ON throttles (expires_at_ms);

-- The identity provider's signing keys, consents, authorization codes and access tokens.

-- Each key replaces the previous generation. The primary key ensures that a generation is created once, even if several
-- nodes try at the same time. The private key is PKCS#8, encrypted.
CREATE TABLE signing_keys (
    generation         BIGINT NOT NULL PRIMARY KEY,
    key_id             TEXT   NOT NULL UNIQUE,
    private_key        BYTEA  NOT NULL,
    signs_from_ms      BIGINT NOT NULL,
    signs_until_ms     BIGINT NOT NULL CHECK (signs_until_ms > signs_from_ms),
    published_until_ms BIGINT NOT NULL CHECK (published_until_ms >= signs_until_ms)
);

-- Permanent consents: what a person allows an application to read.
CREATE TABLE consents (
    subject       TEXT   NOT NULL,
    client_id     TEXT   NOT NULL,
    scope         TEXT   NOT NULL,
    granted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (subject, client_id, scope)
);

-- Consent pages that wait for an answer. Each can be used once. The page's secret and the token of the session it was shown
-- in are stored only as hashes.
CREATE TABLE consent_requests (
    token_hash    BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject       TEXT   NOT NULL,
    session_hash  BYTEA  NOT NULL CHECK (length(session_hash) = 32),
    request       TEXT   NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX consent_requests_expiry ON consent_requests (expires_at_ms);

-- An authorization code and the access token that it was exchanged for. Presenting a code again revokes its token in
-- the same statement.
CREATE TABLE grants (
    code_hash               BYTEA  NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    client_id               TEXT   NOT NULL,
    redirect_uri            TEXT   NOT NULL,
    code_challenge          TEXT   NOT NULL,
    subject                 TEXT   NOT NULL,
    password_version        BIGINT NOT NULL,
    scope                   TEXT   NOT NULL,
    nonce                   TEXT,
    sid                     TEXT    NOT NULL,
    amr                     TEXT    NOT NULL,
    authenticated_at_ms     BIGINT NOT NULL,
    code_expires_at_ms      BIGINT NOT NULL,
    redemption_count           BIGINT NOT NULL DEFAULT 0,
    access_token_hash       BYTEA  UNIQUE CHECK (length(access_token_hash) = 32),
    access_expires_at_ms    BIGINT,
    delete_after_ms         BIGINT NOT NULL,
    CHECK ((access_token_hash IS NULL) = (access_expires_at_ms IS NULL))
);

CREATE INDEX grants_expiry ON grants (delete_after_ms);

-- Secrets that all nodes on this database share, each generated once by the first node that needs it, and encrypted.
CREATE TABLE shared_secrets (
    name   TEXT  NOT NULL PRIMARY KEY,
    secret BYTEA NOT NULL
);

-- The key with which new secrets are encrypted: one row with the key's ID. The keys themselves are never in this database.
CREATE TABLE current_encryption_key (
    id     BIGINT NOT NULL PRIMARY KEY CHECK (id = 1),
    key_id BYTEA  NOT NULL CHECK (length(key_id) = 8)
);

-- Client records, their owners, and the policy's decisions.

-- Ids start at 1001 and are never reused. `sort_name` is the name without case and accents. Without entries,
-- `last_entry_at_ms` is the time of creation, so that a new client comes first. Every change of an entry updates the
-- counts and `next_due_day` here, which lists show.
CREATE TABLE clients (
    id               BIGINT GENERATED BY DEFAULT AS IDENTITY (START WITH 1001) PRIMARY KEY,
    name             TEXT    NOT NULL,
    sort_name        TEXT COLLATE "C" NOT NULL,
    contact          TEXT    NOT NULL,
    email            TEXT    NOT NULL,
    telephone        TEXT    NOT NULL,
    address          TEXT    NOT NULL,
    since_day        BIGINT,
    owner_id         BIGINT  NOT NULL REFERENCES people (id),
    version          BIGINT  NOT NULL CHECK (version >= 1),
    created_at_ms    BIGINT  NOT NULL,
    archived_at_ms   BIGINT,
    is_archived      BOOLEAN NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    last_entry_at_ms BIGINT  NOT NULL,
    meeting_notes    BIGINT  NOT NULL,
    billing_disputes BIGINT  NOT NULL,
    draft_letters    BIGINT  NOT NULL,
    open_disputes    BIGINT  NOT NULL,
    open_letters     BIGINT  NOT NULL,
    archived_entries BIGINT  NOT NULL,
    next_due_day     BIGINT
);

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
    owner_id    BIGINT  NOT NULL REFERENCES people (id),
    is_archived BOOLEAN NOT NULL,
    clients     BIGINT  NOT NULL,
    PRIMARY KEY (owner_id, is_archived)
);

-- Per statement: a count that changes thousands of times in one transaction would leave as many dead rows. Ordered by
-- key to avoid deadlocks.
CREATE FUNCTION count_new_clients() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO client_counts AS kept (owner_id, is_archived, clients)
        SELECT owner_id, is_archived, COUNT(*) FROM added GROUP BY owner_id, is_archived ORDER BY owner_id, is_archived
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = kept.clients + excluded.clients;
    RETURN NULL;
END;
$$;

CREATE FUNCTION count_changed_clients() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO client_counts AS kept (owner_id, is_archived, clients)
        SELECT owner_id, is_archived, SUM(change) FROM (
            SELECT owner_id, is_archived, 1 AS change FROM new_clients
            UNION ALL SELECT owner_id, is_archived, -1 FROM old_clients
        ) AS changes GROUP BY owner_id, is_archived HAVING SUM(change) <> 0 ORDER BY owner_id, is_archived
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = kept.clients + excluded.clients;
    RETURN NULL;
END;
$$;

CREATE TRIGGER clients_count_insert AFTER INSERT ON clients REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_new_clients();
CREATE TRIGGER clients_count_update AFTER UPDATE ON clients
    REFERENCING OLD TABLE AS old_clients NEW TABLE AS new_clients
    FOR EACH STATEMENT EXECUTE FUNCTION count_changed_clients();

-- Every version of a client's details, including the current one. A NULL `actor_id` is the command line.
CREATE TABLE client_versions (
    client_id   BIGINT  NOT NULL REFERENCES clients (id),
    version     BIGINT  NOT NULL,
    name        TEXT    NOT NULL,
    contact     TEXT    NOT NULL,
    email       TEXT    NOT NULL,
    telephone   TEXT    NOT NULL,
    address     TEXT    NOT NULL,
    since_day   BIGINT,
    owner_id    BIGINT  NOT NULL REFERENCES people (id),
    is_archived BOOLEAN NOT NULL,
    actor_id       BIGINT  REFERENCES people (id),
    at_ms       BIGINT  NOT NULL,
    PRIMARY KEY (client_id, version)
);

-- Search terms of clients: words without case and accents, those of the details (`entries` is 0) apart from those of
-- `entries` entries that are not archived. `owner_id` and `is_archived` are copied from the client, so that a search reads
-- only what it may show. A search over all clients reads the terms of each owner.
CREATE TABLE client_search_terms (
    client_id   BIGINT  NOT NULL REFERENCES clients (id),
    in_entries  BOOLEAN NOT NULL CHECK (in_entries = (entries > 0)),
    term        TEXT COLLATE "C" NOT NULL,
    owner_id    BIGINT  NOT NULL,
    is_archived BOOLEAN NOT NULL,
    entries     BIGINT  NOT NULL,
    PRIMARY KEY (client_id, in_entries, term)
);

CREATE INDEX client_search_terms_owner ON client_search_terms (owner_id, is_archived, in_entries, term, client_id);

CREATE TABLE entries (
    id             BIGINT  GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    client_id      BIGINT  NOT NULL REFERENCES clients (id),
    kind           TEXT    NOT NULL CHECK (kind IN ('meeting_note', 'billing_dispute', 'draft_letter')),
    at_ms          BIGINT  NOT NULL,
    author_id      BIGINT  NOT NULL REFERENCES people (id),
    is_open        BOOLEAN NOT NULL CHECK (NOT is_open OR kind <> 'meeting_note'),
    version        BIGINT  NOT NULL CHECK (version >= 1),
    archived_at_ms BIGINT,
    is_archived    BOOLEAN NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    amount_minor   BIGINT CHECK (amount_minor IS NULL OR (amount_minor >= 0 AND kind = 'billing_dispute')),
    due_day        BIGINT CHECK (due_day IS NULL OR kind = 'billing_dispute'),
    title          TEXT    NOT NULL,
    text           TEXT    NOT NULL
);

CREATE INDEX entries_timeline ON entries (client_id, is_archived, at_ms DESC, id DESC);
CREATE INDEX entries_timeline_of_kind ON entries (client_id, is_archived, kind, at_ms DESC, id DESC, is_open);
-- Unsent letters of the whole firm.
CREATE INDEX entries_drafts ON entries (at_ms DESC, id DESC)
    WHERE kind = 'draft_letter' AND is_open AND NOT is_archived;

-- The search terms of each entry that is not archived, with a space before each. They are read only for a client that may
-- be read. A row per term would be most of the database.
CREATE TABLE entry_search_terms (
    entry_id BIGINT PRIMARY KEY REFERENCES entries (id),
    terms    TEXT   NOT NULL
);

-- Every version of an entry, including the current one.
CREATE TABLE entry_versions (
    entry_id      BIGINT  NOT NULL REFERENCES entries (id),
    version       BIGINT  NOT NULL,
    at_ms         BIGINT  NOT NULL,
    is_open       BOOLEAN NOT NULL,
    is_archived   BOOLEAN NOT NULL,
    actor_id         BIGINT  REFERENCES people (id),
    changed_at_ms BIGINT  NOT NULL,
    amount_minor  BIGINT,
    due_day       BIGINT,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    PRIMARY KEY (entry_id, version)
);

-- Letters that were sent by email. The letter itself cannot be changed afterwards. `event_id` is its message in the outbox.
CREATE TABLE sent_letters (
    entry_id     BIGINT NOT NULL PRIMARY KEY REFERENCES entries (id),
    sent_at_ms   BIGINT NOT NULL,
    sent_by      BIGINT NOT NULL REFERENCES people (id),
    sent_to      TEXT   NOT NULL CHECK (sent_to <> ''),
    subject      TEXT   NOT NULL,
    -- As it was printed: client and firm can move, and readers have other time zones.
    firm_name    TEXT   NOT NULL,
    letterhead   TEXT   NOT NULL,
    recipient    TEXT   NOT NULL,
    printed_date TEXT   NOT NULL,
    event_id     TEXT   NOT NULL
);

CREATE FUNCTION reject_sent_letter_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a sent letter cannot be changed';
END;
$$;

CREATE TRIGGER sent_letters_append_only BEFORE UPDATE OR DELETE ON sent_letters
    FOR EACH ROW EXECUTE FUNCTION reject_sent_letter_change();

-- It can still be archived.
CREATE FUNCTION reject_change_of_sent_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM sent_letters WHERE entry_id = OLD.id) THEN
        RAISE EXCEPTION 'a sent letter cannot be changed';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER entries_sent_no_update BEFORE UPDATE ON entries
    FOR EACH ROW WHEN ((OLD.title, OLD.text, OLD.at_ms, OLD.is_open) IS DISTINCT FROM (NEW.title, NEW.text, NEW.at_ms, NEW.is_open))
    EXECUTE FUNCTION reject_change_of_sent_entry();

-- Letters that a new letter can start from, with placeholders for the client's details.
CREATE TABLE letter_templates (
    id            BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    title         TEXT   NOT NULL,
    text          TEXT   NOT NULL,
    version       BIGINT NOT NULL CHECK (version >= 1),
    changed_by    BIGINT REFERENCES people (id),
    changed_at_ms BIGINT NOT NULL
);

-- Views of records, so that the page need not search the audit log.
CREATE TABLE record_views (
    client_id  BIGINT NOT NULL REFERENCES clients (id),
    person_id  BIGINT NOT NULL REFERENCES people (id),
    last_viewed_at_ms BIGINT NOT NULL,
    view_count      BIGINT NOT NULL,
    PRIMARY KEY (client_id, person_id)
);

CREATE INDEX record_views_of_person ON record_views (person_id, last_viewed_at_ms DESC, client_id);

-- Text that a person typed into a form of a record and has not saved yet. A row without fields says only that the form is
-- open: with the session's hash, it is how text that arrives after the session ended finds its person.
CREATE TABLE unsaved_texts (
    person_id    BIGINT NOT NULL REFERENCES people (id),
    client_id    BIGINT NOT NULL REFERENCES clients (id),
    form         TEXT   NOT NULL
        CHECK (form IN ('details', 'meeting_note', 'billing_dispute', 'draft_letter', 'entry')),
    -- Of the form 'entry', 0 otherwise.
    entry_id     BIGINT NOT NULL CHECK ((form = 'entry') = (entry_id <> 0)),
    session_hash BYTEA  NOT NULL CHECK (octet_length(session_hash) = 32),
    -- When that session last opened or saved the form.
    session_at_ms BIGINT NOT NULL,
    -- JSON, or empty.
    fields       TEXT   NOT NULL,
    saved_at_ms  BIGINT NOT NULL,
    PRIMARY KEY (person_id, client_id, form, entry_id)
);

CREATE INDEX unsaved_texts_saved_at ON unsaved_texts (saved_at_ms);

-- Each process links its decisions into a hash chain, like the ledger.
CREATE TABLE audit_writers (
    id        BIGINT PRIMARY KEY,
    row_count BIGINT NOT NULL CHECK (row_count >= 0),
    head      BYTEA  NOT NULL CHECK (octet_length(head) = 32)
) WITH (fillfactor = 50);

-- A decision (`action`, `decision`) with its effect on a person's access, or an event of its own such as a sign-in.
-- `client_id` is no foreign key, because requested ids need not exist.
CREATE TABLE audit_rows (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms      BIGINT NOT NULL,
    principal_kind      TEXT   NOT NULL CHECK (principal_kind IN ('consultant', 'partner', 'operator', 'visitor')),
    person_id  BIGINT REFERENCES people (id),
    action     TEXT,
    client_id  BIGINT,
    request_id TEXT   NOT NULL,
    decision   TEXT   CHECK (decision IN ('allowed', 'refused')),
    event      TEXT,
    subject_id BIGINT REFERENCES people (id),
    old_role   TEXT   CHECK (old_role IN ('consultant', 'partner')),
    new_role   TEXT   CHECK (new_role IN ('consultant', 'partner')),
    -- Of an invitation, whose person is not known yet.
    invited_address TEXT,
    ip_address TEXT,
    writer_id  BIGINT NOT NULL,
    position      BIGINT NOT NULL CHECK (position >= 0),
    hash       BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
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
);

CREATE INDEX audit_rows_at ON audit_rows (at_ms, id);
CREATE INDEX audit_rows_client ON audit_rows (client_id, at_ms, id);
CREATE INDEX audit_rows_person ON audit_rows (person_id, at_ms, id);

CREATE FUNCTION reject_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is append-only';
END;
$$;

CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_rows
    FOR EACH ROW EXECUTE FUNCTION reject_audit_change();

CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit_rows
    FOR EACH STATEMENT EXECUTE FUNCTION reject_audit_change();

-- Sums by day and price, from which months are invoiced. A day is days since 1970 UTC. The fill factor leaves room in pages,
-- so that a sum can be updated in place.
CREATE TABLE daily_usage (
    account_id         BIGINT NOT NULL REFERENCES accounts (id),
    day                BIGINT NOT NULL,
    key_id             BIGINT NOT NULL REFERENCES api_keys (id),
    model              TEXT COLLATE "C" NOT NULL,
    input_price_nanos  BIGINT NOT NULL CHECK (input_price_nanos >= 0),
    cached_price_nanos BIGINT NOT NULL CHECK (cached_price_nanos >= 0),
    output_price_nanos BIGINT NOT NULL CHECK (output_price_nanos >= 0),
    requests           BIGINT NOT NULL CHECK (requests >= 0),
    input_tokens       BIGINT NOT NULL CHECK (input_tokens >= 0),
    cached_input_tokens BIGINT NOT NULL CHECK (cached_input_tokens >= 0 AND cached_input_tokens <= input_tokens),
    output_tokens      BIGINT NOT NULL CHECK (output_tokens >= 0),
    cost_nanos         BIGINT NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos)
) WITH (fillfactor = 80);

-- Includes the account, because the planner may use this index for one account's month too. It then reads only that account's
-- rows.
CREATE INDEX daily_usage_day ON daily_usage (day, account_id);
-- The last day on which a key was used.
CREATE INDEX daily_usage_key ON daily_usage (key_id, day);

-- Every month in which an account has usage, and the invoice that bills it: none, or the one that is not void. Months are
-- counted from January of the year 0.
CREATE TABLE billing_months (
    account_id     BIGINT NOT NULL REFERENCES accounts (id),
    month          BIGINT NOT NULL,
    invoice_year   BIGINT,
    invoice_serial BIGINT,
    PRIMARY KEY (account_id, month),
    CHECK ((invoice_year IS NULL) = (invoice_serial IS NULL))
);

CREATE INDEX billing_months_unbilled ON billing_months (month DESC, account_id) WHERE invoice_year IS NULL;

-- Days after the year 9999 count as its last day, as in `Month::containing`.
CREATE FUNCTION month_of_day(day BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
    SELECT (EXTRACT(YEAR FROM DATE '1970-01-01' + LEAST(day, 2932896)::integer) * 12
        + EXTRACT(MONTH FROM DATE '1970-01-01' + LEAST(day, 2932896)::integer) - 1)::bigint
$$;

-- The account's part of the advisory lock key for usage; the month is the other part. There are only 64 values, so that a
-- batch of very many accounts takes few locks. Accounts that share a key wait for each other's invoice at most.
CREATE FUNCTION usage_lock_key(account_id BIGINT) RETURNS INTEGER LANGUAGE sql IMMUTABLE AS $$
    SELECT (account_id & 63)::integer
$$;

CREATE FUNCTION record_usage_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_months (account_id, month) VALUES (NEW.account_id, month_of_day(NEW.day))
        ON CONFLICT (account_id, month) DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE TRIGGER usage_records_month AFTER INSERT ON daily_usage
    FOR EACH ROW EXECUTE FUNCTION record_usage_month();

-- Rejects usage in an invoiced month, because the invoice would no longer match the ledger. It fires for existing sums too.
-- A settlement takes the lock of the account's month shared, and invoicing takes it exclusively. So usage is either in the
-- sums that are invoiced, or its settlement sees the invoice.
CREATE FUNCTION reject_usage_in_invoiced_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(month_of_day(NEW.day)::integer, usage_lock_key(NEW.account_id));
    IF EXISTS (SELECT 1 FROM billing_months m WHERE m.account_id = NEW.account_id
               AND m.month = month_of_day(NEW.day) AND m.invoice_year IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CH002',
            MESSAGE = 'the month is already invoiced for this account';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER usage_month_not_invoiced BEFORE INSERT ON daily_usage
    FOR EACH ROW EXECUTE FUNCTION reject_usage_in_invoiced_month();

-- The last assigned serial of each year. It is raised in the transaction that issues the document, so there are no
-- gaps.
CREATE TABLE invoice_serials (
    year   BIGINT PRIMARY KEY,
    serial BIGINT NOT NULL CHECK (serial >= 0)
);

-- Issued invoices and credit notes. Amounts are in minor units of the currency, negative for credit notes. Only the
-- state and the credited amounts change.
CREATE TABLE invoices (
    year              BIGINT NOT NULL,
    serial            BIGINT NOT NULL CHECK (serial >= 1),
    kind              TEXT    NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    credited_year           BIGINT,
    credited_serial         BIGINT,
    reason            TEXT    NOT NULL,
    account_id        BIGINT NOT NULL REFERENCES accounts (id),
    month             BIGINT NOT NULL,
    issued_at_ms      BIGINT NOT NULL,
    due_day           BIGINT NOT NULL,
    currency          TEXT    NOT NULL,
    seller_name       TEXT    NOT NULL,
    letterhead        TEXT    NOT NULL,
    payment           TEXT    NOT NULL,
    buyer_name        TEXT    NOT NULL,
    buyer_address     TEXT    NOT NULL,
    buyer_email       TEXT    NOT NULL,
    tax_name          TEXT,
    tax_rate_ppm      BIGINT,
    subtotal_minor    BIGINT NOT NULL,
    tax_minor         BIGINT NOT NULL,
    total_minor       BIGINT NOT NULL,
    exact_nanos       BIGINT NOT NULL,
    document_hash     BYTEA   NOT NULL CHECK (octet_length(document_hash) = 32),
    state             TEXT    NOT NULL CHECK (state IN ('issued', 'paid', 'void')),
    credited_subtotal BIGINT NOT NULL DEFAULT 0,
    credited_total    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (credited_year, credited_serial) REFERENCES invoices (year, serial),
    CHECK ((kind = 'credit_note') = (credited_year IS NOT NULL)),
    CHECK ((credited_year IS NULL) = (credited_serial IS NULL)),
    CHECK ((tax_name IS NULL) = (tax_rate_ppm IS NULL)),
    CHECK (total_minor = subtotal_minor + tax_minor),
    CHECK (credited_subtotal >= 0 AND credited_total >= 0),
    CHECK (state <> 'void' OR (credited_subtotal = subtotal_minor AND credited_total = total_minor)),
    CHECK (kind = 'credit_note' OR (credited_subtotal <= subtotal_minor AND credited_total <= total_minor))
);

CREATE INDEX invoices_account ON invoices (account_id, year, serial);
CREATE INDEX invoices_state ON invoices (state, currency, due_day);
CREATE INDEX invoices_credited ON invoices (credited_year, credited_serial) WHERE credited_year IS NOT NULL;

CREATE TABLE invoice_lines (
    year         BIGINT NOT NULL,
    serial       BIGINT NOT NULL,
    position        BIGINT NOT NULL CHECK (position >= 0),
    item         TEXT    NOT NULL CHECK (item IN ('tokens', 'part')),
    model        TEXT COLLATE "C" NOT NULL,
    direction    TEXT    NOT NULL CHECK (direction IN ('input', 'cached_input', 'output', '')),
    tokens       BIGINT NOT NULL CHECK (tokens >= 0),
    price_nanos  BIGINT NOT NULL CHECK (price_nanos >= 0),
    exact_nanos  BIGINT NOT NULL,
    amount_minor BIGINT NOT NULL,
    PRIMARY KEY (year, serial, position),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
);

-- The PDF, byte for byte as issued.
CREATE TABLE invoice_documents (
    year   BIGINT NOT NULL,
    serial BIGINT NOT NULL,
    pdf    BYTEA   NOT NULL,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
);

-- History of invoices. A NULL `actor_id` is the command line. The note is the credit note of a `credited` or `voided`
-- event.
CREATE TABLE invoice_events (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    year        BIGINT NOT NULL,
    serial      BIGINT NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('issued', 'paid', 'payment_taken_back', 'credited', 'voided')),
    credit_note_year   BIGINT,
    credit_note_serial BIGINT,
    actor_id       BIGINT REFERENCES people (id),
    at_ms       BIGINT NOT NULL,
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial),
    FOREIGN KEY (credit_note_year, credit_note_serial) REFERENCES invoices (year, serial)
);

CREATE INDEX invoice_events_invoice ON invoice_events (year, serial, id);
CREATE UNIQUE INDEX invoice_events_once ON invoice_events (year, serial, kind) WHERE kind IN ('issued', 'voided');

ALTER TABLE billing_months ADD FOREIGN KEY (invoice_year, invoice_serial) REFERENCES invoices (year, serial);

CREATE FUNCTION reject_invoice_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'issued invoices cannot be changed; issue a credit note';
END;
$$;

CREATE TRIGGER invoices_no_update BEFORE UPDATE OF year, serial, kind, credited_year, credited_serial, reason, account_id, month,
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, tax_name,
    tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash ON invoices
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoices_no_delete BEFORE DELETE ON invoices
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_lines_no_update BEFORE UPDATE OR DELETE ON invoice_lines
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_documents_no_update BEFORE UPDATE OR DELETE ON invoice_documents
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_events_no_update BEFORE UPDATE OR DELETE ON invoice_events
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoices_no_truncate BEFORE TRUNCATE ON invoices
    FOR EACH STATEMENT EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_lines_no_truncate BEFORE TRUNCATE ON invoice_lines
    FOR EACH STATEMENT EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_documents_no_truncate BEFORE TRUNCATE ON invoice_documents
    FOR EACH STATEMENT EXECUTE FUNCTION reject_invoice_change();
CREATE TRIGGER invoice_events_no_truncate BEFORE TRUNCATE ON invoice_events
    FOR EACH STATEMENT EXECUTE FUNCTION reject_invoice_change();

-- Lines are written before the document, and none after it.
CREATE FUNCTION reject_line_of_issued_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM invoice_documents d WHERE d.year = NEW.year AND d.serial = NEW.serial) THEN
        RAISE EXCEPTION 'lines cannot be added to an issued invoice; issue a credit note';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER invoice_lines_before_document BEFORE INSERT ON invoice_lines
    FOR EACH ROW EXECUTE FUNCTION reject_line_of_issued_invoice();

-- A void invoice stays void, and credited amounts never decrease.
CREATE FUNCTION reject_credit_reversal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'void' OR NEW.credited_subtotal < OLD.credited_subtotal
        OR NEW.credited_total < OLD.credited_total THEN
        RAISE EXCEPTION 'credit notes cannot be reversed; issue a new invoice for the month';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER invoices_no_credit_reversal BEFORE UPDATE OF state, credited_subtotal, credited_total ON invoices
    FOR EACH ROW EXECUTE FUNCTION reject_credit_reversal();

-- Numbers are assigned consecutively.
CREATE FUNCTION reject_invoice_number_gap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.serial = 1 THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.year = OLD.year AND NEW.serial = OLD.serial + 1 THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'invoice numbers must be consecutive';
END;
$$;

CREATE TRIGGER invoice_serials_no_gap BEFORE INSERT OR UPDATE OR DELETE ON invoice_serials
    FOR EACH ROW EXECUTE FUNCTION reject_invoice_number_gap();
CREATE TRIGGER invoice_serials_no_truncate BEFORE TRUNCATE ON invoice_serials
    FOR EACH STATEMENT EXECUTE FUNCTION reject_invoice_number_gap();

-- An invoiced month stays invoiced until its invoice is void.
CREATE FUNCTION reject_invoiced_month_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM invoices i WHERE i.year = OLD.invoice_year AND i.serial = OLD.invoice_serial
               AND i.state <> 'void') THEN
        RAISE EXCEPTION 'the month is already invoiced for this account; issue a credit note';
    END IF;
    RETURN NEW;
END;
$$;

CREATE FUNCTION reject_used_month_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'billing months with usage cannot be deleted';
END;
$$;

CREATE TRIGGER billing_months_no_unbill BEFORE UPDATE ON billing_months
    FOR EACH ROW EXECUTE FUNCTION reject_invoiced_month_change();
CREATE TRIGGER billing_months_no_delete BEFORE DELETE ON billing_months
    FOR EACH ROW EXECUTE FUNCTION reject_used_month_delete();
CREATE TRIGGER billing_months_no_truncate BEFORE TRUNCATE ON billing_months
    FOR EACH STATEMENT EXECUTE FUNCTION reject_used_month_delete();

-- Requests rejected for lack of a billing account, by the spending cap or by a rate limit. Only pages show these counts;
-- nothing is billed by them. A key without an account has account 0.
CREATE TABLE daily_rejections (
    account_id BIGINT NOT NULL,
    day        BIGINT NOT NULL,
    key_id     BIGINT NOT NULL REFERENCES api_keys (id),
    code       TEXT COLLATE "C" NOT NULL,
    rejections   BIGINT NOT NULL CHECK (rejections >= 0),
    last_at_ms BIGINT NOT NULL,
    PRIMARY KEY (account_id, day, key_id, code)
);

CREATE INDEX daily_rejections_day ON daily_rejections (day);

-- When each key was last used by an admitted request, a few seconds old at most.
CREATE TABLE key_uses (
    key_id     BIGINT PRIMARY KEY REFERENCES api_keys (id),
    last_at_ms BIGINT NOT NULL
);

-- The busiest 60 seconds of each day, as seen by the rate limiter.
CREATE TABLE daily_peaks (
    account_id     BIGINT NOT NULL REFERENCES accounts (id),
    day            BIGINT NOT NULL,
    requests       BIGINT NOT NULL,
    requests_at_ms BIGINT NOT NULL,
    tokens         BIGINT NOT NULL,
    tokens_at_ms   BIGINT NOT NULL,
    PRIMARY KEY (account_id, day)
);

-- History of billing accounts and keys.
CREATE TABLE account_events (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id BIGINT REFERENCES accounts (id),
    key_id     BIGINT REFERENCES api_keys (id),
    kind       TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    actor_id      BIGINT REFERENCES people (id),
    at_ms      BIGINT NOT NULL
);

CREATE INDEX account_events_account ON account_events (account_id, id);
CREATE INDEX account_events_key ON account_events (key_id, id);

-- For the keys of an account, and those without one.
CREATE INDEX api_keys_account ON api_keys (account_id);

CREATE FUNCTION reject_account_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the account history is append-only';
END;
$$;

CREATE TRIGGER account_events_no_update BEFORE UPDATE OR DELETE ON account_events
    FOR EACH ROW EXECUTE FUNCTION reject_account_event_change();
CREATE TRIGGER account_events_no_truncate BEFORE TRUNCATE ON account_events
    FOR EACH STATEMENT EXECUTE FUNCTION reject_account_event_change();

-- Webhooks, alerts, and messages that wait to be sent.

-- A secret signs every event. It is encrypted.
CREATE TABLE webhooks (
    id             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    url            TEXT    NOT NULL,
    secret         BYTEA   NOT NULL,
    created_at_ms  BIGINT NOT NULL,
    -- Set when the receiver says that it is gone for good.
    disabled_at_ms BIGINT
);

-- The destination is an email address or a webhook's id. While a process sends a message, the message has its claim, and
-- `next_attempt_at_ms` is when the claim ends: from then on, any process may send it again.
CREATE TABLE outbox_messages (
    event_id           TEXT COLLATE "C" NOT NULL,
    destination        TEXT COLLATE "C" NOT NULL,
    kind               TEXT    NOT NULL CHECK (kind IN ('email', 'webhook')),
    payload            TEXT    NOT NULL,
    state              TEXT    NOT NULL CHECK (state IN ('pending', 'sent', 'failed')),
    attempts           BIGINT NOT NULL CHECK (attempts >= 0),
    last_error         TEXT,
    claim              TEXT,
    created_at_ms      BIGINT NOT NULL,
    next_attempt_at_ms BIGINT NOT NULL,
    expires_at_ms      BIGINT NOT NULL,
    finished_at_ms     BIGINT,
    PRIMARY KEY (event_id, destination),
    CHECK ((state = 'pending') = (finished_at_ms IS NULL))
);

CREATE INDEX outbox_messages_due ON outbox_messages (next_attempt_at_ms) WHERE state = 'pending';
CREATE INDEX outbox_messages_finished ON outbox_messages (finished_at_ms) WHERE state <> 'pending';

-- Alerts that were sent, each once. `period` is the day number of the month's first day, or when the key expires.
CREATE TABLE alerts_sent (
    scope      TEXT COLLATE "C" NOT NULL CHECK (scope IN ('account', 'key')),
    subject_id BIGINT NOT NULL,
    alert      TEXT COLLATE "C" NOT NULL,
    period     BIGINT NOT NULL,
    cap_nanos  BIGINT NOT NULL,
    sent_at_ms BIGINT NOT NULL,
    PRIMARY KEY (scope, subject_id, alert, period, cap_nanos)
);

CREATE INDEX alerts_sent_time ON alerts_sent (sent_at_ms);
CREATE INDEX alerts_sent_period ON alerts_sent (period);

-- Spending caps that rejected a request, and when they first did. `month` is the day number of its first day.
CREATE TABLE cap_rejections (
    scope       TEXT COLLATE "C" NOT NULL CHECK (scope IN ('account', 'key')),
    subject_id  BIGINT NOT NULL,
    month       BIGINT NOT NULL,
    cap_nanos   BIGINT NOT NULL,
    first_at_ms BIGINT NOT NULL,
    PRIMARY KEY (scope, subject_id, month, cap_nanos)
);

-- Until when a process has a periodic task, so that one node at a time runs it.
CREATE TABLE periodic_tasks (
    name             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    claimed_until_ms BIGINT NOT NULL
);

-- Merkle logs over the ledger and the audit log. A segment says which rows of a writer's chain follow each other in a log, from
-- the leaf `first_index` on. Leaf hashes are computed from the rows. A node is the hash of 256 nodes of the level below it, or of
-- 256 leaves at level 1. The checkpointer adds to all of them after the rows were committed.
CREATE TABLE log_segments (
    log            TEXT COLLATE "C" NOT NULL CHECK (log IN ('ledger', 'audit')),
    first_index    BIGINT NOT NULL CHECK (first_index >= 0),
    writer_id      BIGINT NOT NULL,
    first_position BIGINT NOT NULL CHECK (first_position >= 0),
    row_count      BIGINT NOT NULL CHECK (row_count > 0),
    PRIMARY KEY (log, first_index)
);

CREATE UNIQUE INDEX log_segments_writer ON log_segments (log, writer_id, first_position);

CREATE TABLE log_nodes (
    log        TEXT COLLATE "C" NOT NULL CHECK (log IN ('ledger', 'audit')),
    level      BIGINT NOT NULL CHECK (level >= 1),
    node_index BIGINT NOT NULL CHECK (node_index >= 0),
    hash       BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (log, level, node_index)
);

-- Signed checkpoints (C2SP tlog-checkpoint). The signing key is not in this database.
CREATE TABLE log_checkpoints (
    log   TEXT COLLATE "C" NOT NULL CHECK (log IN ('ledger', 'audit')),
    size  BIGINT NOT NULL CHECK (size > 0),
    note  TEXT   NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (log, size)
);

CREATE FUNCTION reject_log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'Merkle logs are append-only';
END;
$$;

CREATE TRIGGER log_segments_append_only BEFORE UPDATE OR DELETE ON log_segments
    FOR EACH ROW EXECUTE FUNCTION reject_log_change();
CREATE TRIGGER log_segments_no_truncate BEFORE TRUNCATE ON log_segments
    FOR EACH STATEMENT EXECUTE FUNCTION reject_log_change();

CREATE TRIGGER log_nodes_append_only BEFORE UPDATE OR DELETE ON log_nodes
    FOR EACH ROW EXECUTE FUNCTION reject_log_change();
CREATE TRIGGER log_nodes_no_truncate BEFORE TRUNCATE ON log_nodes
    FOR EACH STATEMENT EXECUTE FUNCTION reject_log_change();

CREATE TRIGGER log_checkpoints_append_only BEFORE UPDATE OR DELETE ON log_checkpoints
    FOR EACH ROW EXECUTE FUNCTION reject_log_change();
CREATE TRIGGER log_checkpoints_no_truncate BEFORE TRUNCATE ON log_checkpoints
    FOR EACH STATEMENT EXECUTE FUNCTION reject_log_change();
