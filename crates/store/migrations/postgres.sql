-- Times are milliseconds since 1970 UTC, money is nano-units of the currency; both are whole numbers. Text is compared
-- byte by byte (COLLATE "C"), so that lists come in the same order on every server and on SQLite.

CREATE TABLE accounts (
    id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             TEXT COLLATE "C" NOT NULL UNIQUE,
    requests_per_min BIGINT NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   BIGINT NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    BIGINT NOT NULL,
    closed_at_ms     BIGINT,
    -- What it may spend in a calendar month (UTC); none is no cap.
    spend_per_month_nanos BIGINT CHECK (spend_per_month_nanos >= 0),
    -- Where its invoices go.
    billing_address  TEXT   NOT NULL DEFAULT '',
    billing_email    TEXT   NOT NULL DEFAULT ''
);

CREATE TABLE api_keys (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    prefix        TEXT COLLATE "C" NOT NULL UNIQUE,
    hash          BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    label         TEXT   NOT NULL,
    account_id    BIGINT REFERENCES accounts (id),
    created_at_ms BIGINT NOT NULL,
    revoked_at_ms BIGINT
);

-- Each writer links its rows into a chain: a row has its place there and a hash over itself and the row before. The
-- chain's end is kept apart, so that rows missing at the end are missed too. Sums by day are kept with the rows.

CREATE TABLE ledger_writers (
    id        BIGINT PRIMARY KEY,
    row_count BIGINT NOT NULL CHECK (row_count >= 0),
    head      BYTEA  NOT NULL CHECK (octet_length(head) = 32)
);

-- A partition for each month. A request id begins with its time, so ids part by months as times do, and unlike the
-- times they can be unique over all partitions.
CREATE TABLE ledger (
    request_id         TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (request_id <> ''),
    account_id         BIGINT NOT NULL REFERENCES accounts (id),
    key_id             BIGINT NOT NULL REFERENCES api_keys (id),
    model              TEXT COLLATE "C" NOT NULL,
    input_tokens       BIGINT NOT NULL CHECK (input_tokens >= 0),
    output_tokens      BIGINT NOT NULL CHECK (output_tokens >= 0),
    input_price_nanos  BIGINT NOT NULL CHECK (input_price_nanos >= 0),
    output_price_nanos BIGINT NOT NULL CHECK (output_price_nanos >= 0),
    cost_nanos         BIGINT NOT NULL CHECK (cost_nanos >= 0),
    at_ms              BIGINT NOT NULL CHECK (at_ms >= 0),
    ended              TEXT   NOT NULL
        CHECK (ended IN ('complete', 'max_output_tokens', 'stop_sequence', 'context_length', 'cancelled')),
    writer_id          BIGINT NOT NULL,
    place              BIGINT NOT NULL CHECK (place >= 0),
    hash               BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = input_tokens * input_price_nanos + output_tokens * output_price_nanos)
) PARTITION BY RANGE (request_id);

CREATE INDEX ledger_chain ON ledger (writer_id, place);

-- For ids of months that have no partition, so that a row always has somewhere to go.
CREATE TABLE ledger_of_no_month PARTITION OF ledger DEFAULT;

CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: rows are never changed or removed';
END;
$$;

CREATE TRIGGER ledger_is_never_changed BEFORE UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();

-- Unlike the one above, this one does not reach the partitions by itself.
CREATE TRIGGER ledger_is_never_emptied BEFORE TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();
CREATE TRIGGER ledger_is_never_emptied BEFORE TRUNCATE ON ledger_of_no_month
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();

-- Makes the partition of a month, unless it is there: ids from `first_id` up to, and without, `end_id`. It is made apart
-- and then attached, which does not stop anyone who reads or writes the ledger's other partitions.
CREATE FUNCTION add_ledger_month(partition_name TEXT, first_id TEXT, end_id TEXT) RETURNS void LANGUAGE plpgsql AS $$
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
    EXECUTE format('CREATE TRIGGER ledger_is_never_emptied BEFORE TRUNCATE ON %I '
        'FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()', partition_name);
END;
$$;

-- A settlement is one statement. Where one of its parts finds that it must not happen, this undoes the others.
CREATE FUNCTION undo_settlement(why TEXT) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CH001', MESSAGE = why;
END;
$$;

-- What requests under way have reserved of what their account may spend in a month.

-- A month is the number of its first day. What is set aside is either settled with the ledger's row or given back;
-- when the process that set it aside is dead, or the time is up, anybody may remove it.
CREATE TABLE spending_reservations (
    request_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    account_id    BIGINT NOT NULL REFERENCES accounts (id),
    month         BIGINT NOT NULL,
    amount_nanos  BIGINT NOT NULL CHECK (amount_nanos >= 0),
    writer_id     BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);

-- A process that holds something for its requests says here that it lives.
CREATE TABLE writer_leases (
    writer_id      BIGINT PRIMARY KEY,
    alive_until_ms BIGINT NOT NULL
);

-- Sets the amount aside if what was spent and set aside in the month leaves room for it. Whoever comes second waits for
-- the account's row, and then sees what the first has set aside: each statement of a function looks anew.
CREATE FUNCTION reserve_spending(
    request TEXT, account BIGINT, first_day BIGINT, last_day BIGINT, amount BIGINT, writer BIGINT, expires_ms BIGINT
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM accounts WHERE id = account FOR NO KEY UPDATE;
    INSERT INTO spending_reservations (request_id, account_id, month, amount_nanos, writer_id, expires_at_ms)
        SELECT request, a.id, first_day, amount, writer, expires_ms FROM accounts a
        WHERE a.id = account AND a.spend_per_month_nanos - amount >=
            COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u
                      WHERE u.account_id = account AND u.day BETWEEN first_day AND last_day), 0)
            + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r
                        WHERE r.account_id = account AND r.month = first_day), 0);
    RETURN FOUND;
END;
$$;

-- Keys by which callers name their requests, so that sending one again does not run it again. While its request is under
-- way a key has the process that runs it; afterwards it has the text, and the rest of the reply is in the ledger's row.
-- The text is bytes, for a model may generate a NUL, which PostgreSQL does not take for a character.
CREATE TABLE idempotency_keys (
    account_id      BIGINT NOT NULL REFERENCES accounts (id),
    idempotency_key TEXT COLLATE "C" NOT NULL,
    fingerprint     BYTEA  NOT NULL CHECK (octet_length(fingerprint) = 32),
    request_id      TEXT COLLATE "C" NOT NULL,
    writer_id       BIGINT,
    output_text     BYTEA,
    cached_tokens   BIGINT CHECK (cached_tokens >= 0),
    expires_at_ms   BIGINT NOT NULL,
    PRIMARY KEY (account_id, idempotency_key),
    CHECK ((writer_id IS NULL) = (output_text IS NOT NULL) AND (writer_id IS NULL) = (cached_tokens IS NOT NULL))
);

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- The people of the portal, their sessions, and sign-ins under way.

-- Who somebody is, issuer and subject say together; two people may have one address.
CREATE TABLE people (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    issuer        TEXT   NOT NULL,
    subject       TEXT   NOT NULL,
    email         TEXT   NOT NULL,
    role          TEXT   NOT NULL CHECK (role IN ('consultant', 'partner')),
    joined_at_ms  BIGINT NOT NULL,
    removed_at_ms BIGINT,
    UNIQUE (issuer, subject)
);

CREATE INDEX people_email ON people (email);

-- Of a session's token only a hash is kept.
CREATE TABLE sessions (
    id              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token_hash      BYTEA  NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    person_id       BIGINT NOT NULL REFERENCES people (id),
    started_at_ms   BIGINT NOT NULL,
    last_used_at_ms BIGINT NOT NULL,
    place           TEXT   NOT NULL,
    browser         TEXT   NOT NULL
);

CREATE INDEX sessions_person ON sessions (person_id);

-- From the button until the browser comes back from the identity provider. Taken once.
CREATE TABLE sign_ins (
    token_hash    BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    state         TEXT   NOT NULL,
    nonce         TEXT   NOT NULL,
    pkce_verifier TEXT   NOT NULL,
    return_to     TEXT   NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX sign_ins_expiry ON sign_ins (expires_at_ms);

-- Back from the identity provider, until the code from the mail is typed. The last time is that of a letter that the mail
-- server took; without one there was none. The next letter may go out when its time has come.
CREATE TABLE half_sign_ins (
    token_hash         BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    issuer             TEXT   NOT NULL,
    subject            TEXT   NOT NULL,
    email              TEXT   NOT NULL,
    return_to          TEXT   NOT NULL,
    code_hash          BYTEA  NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms BIGINT NOT NULL,
    wrong_tries        BIGINT NOT NULL,
    codes_sent         BIGINT NOT NULL,
    last_sent_at_ms    BIGINT,
    next_letter_at_ms  BIGINT NOT NULL
);

CREATE INDEX half_sign_ins_identity ON half_sign_ins (issuer, subject);
CREATE INDEX half_sign_ins_expiry ON half_sign_ins (code_expires_at_ms);

-- Takes a partner's role, or the partner, away unless nobody would be left who is one. Whoever comes second waits for the
-- first, and then sees what the first has left.
CREATE FUNCTION may_lose_partner(person BIGINT) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(4849208117);
    RETURN EXISTS (SELECT 1 FROM people
                   WHERE id <> person AND role = 'partner' AND removed_at_ms IS NULL);
END;
$$;

-- The people of the built-in identity provider: their passwords, their sessions there, mailboxes that are being proved,
-- and what was tried how often. The portal reads none of this.

-- An account is made only when its mailbox is proved. The subject is drawn, and never changes.
CREATE TABLE provider_accounts (
    subject          TEXT   NOT NULL PRIMARY KEY,
    email            TEXT   NOT NULL UNIQUE,
    password_hash    TEXT   NOT NULL,
    password_version BIGINT NOT NULL DEFAULT 1,
    created_at_ms    BIGINT NOT NULL
);

-- A session is worth something while its account has the password that it was started with.
CREATE TABLE provider_sessions (
    token_hash       BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT   NOT NULL REFERENCES provider_accounts (subject),
    password_version BIGINT NOT NULL,
    started_at_ms    BIGINT NOT NULL,
    last_used_at_ms  BIGINT NOT NULL
);

CREATE INDEX provider_sessions_subject ON provider_sessions (subject);
CREATE INDEX provider_sessions_start ON provider_sessions (started_at_ms);
CREATE INDEX provider_sessions_use ON provider_sessions (last_used_at_ms);

-- From the form until the code from the mail is typed. There is a row whether or not the address has an account.
CREATE TABLE mailbox_proofs (
    token_hash         BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    purpose            TEXT   NOT NULL CHECK (purpose IN ('sign_up', 'new_password')),
    email              TEXT   NOT NULL,
    password_hash      TEXT   CHECK ((password_hash IS NULL) = (purpose = 'new_password')),
    return_to          TEXT   NOT NULL,
    code_hash          BYTEA  NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms BIGINT NOT NULL,
    codes_sent         BIGINT NOT NULL,
    last_sent_at_ms    BIGINT NOT NULL
);

CREATE INDEX mailbox_proofs_email ON mailbox_proofs (email);
CREATE INDEX mailbox_proofs_expiry ON mailbox_proofs (code_expires_at_ms);

-- How often something was tried at the portal and at the identity provider, and until when that counts; what, by whom or with
-- which address, only a hash says.
CREATE TABLE throttles (
    key_hash      BYTEA  NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    count         BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX throttles_expiry ON throttles (expires_at_ms);

-- What the built-in identity provider gives out: its signing keys, consents, authorization codes and access tokens.

-- Each key takes over from the one before it, so a generation is made once, however many nodes make it at the same time.
-- The private key is PKCS#8; it is as safe as this database is.
CREATE TABLE signing_keys (
    generation         BIGINT NOT NULL PRIMARY KEY,
    key_id             TEXT   NOT NULL UNIQUE,
    private_key        BYTEA  NOT NULL,
    signs_from_ms      BIGINT NOT NULL,
    signs_until_ms     BIGINT NOT NULL CHECK (signs_until_ms > signs_from_ms),
    published_until_ms BIGINT NOT NULL CHECK (published_until_ms >= signs_until_ms)
);

-- What somebody has allowed an application to learn, for good.
CREATE TABLE consents (
    subject       TEXT   NOT NULL,
    client_id     TEXT   NOT NULL,
    scope         TEXT   NOT NULL,
    allowed_at_ms BIGINT NOT NULL,
    PRIMARY KEY (subject, client_id, scope)
);

-- Consent pages that wait for an answer. Taken once; of the page's secret and of the session it was shown in, only
-- hashes are kept.
CREATE TABLE consent_questions (
    token_hash    BYTEA  NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject       TEXT   NOT NULL,
    session_hash  BYTEA  NOT NULL CHECK (length(session_hash) = 32),
    request       TEXT   NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX consent_questions_expiry ON consent_questions (expires_at_ms);

-- An authorization code and the access token that it was exchanged for. A code that is presented again takes its token
-- along, in the same step.
CREATE TABLE grants (
    code_hash               BYTEA  NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    client_id               TEXT   NOT NULL,
    redirect_uri            TEXT   NOT NULL,
    code_challenge          TEXT   NOT NULL,
    subject                 TEXT   NOT NULL,
    password_version        BIGINT NOT NULL,
    scope                   TEXT   NOT NULL,
    nonce                   TEXT,
    authenticated_at_ms     BIGINT NOT NULL,
    code_expires_at_ms      BIGINT NOT NULL,
    presentations           BIGINT NOT NULL DEFAULT 0,
    access_token_hash       BYTEA  UNIQUE CHECK (length(access_token_hash) = 32),
    access_expires_at_ms    BIGINT,
    forgotten_at_ms         BIGINT NOT NULL,
    CHECK ((access_token_hash IS NULL) = (access_expires_at_ms IS NULL))
);

CREATE INDEX grants_forgetting ON grants (forgotten_at_ms);

-- Secrets that all nodes on this database share, each drawn once by whichever node is first.
CREATE TABLE shared_secrets (
    name   TEXT NOT NULL PRIMARY KEY,
    secret TEXT NOT NULL
);

-- Client records, who may look at them by whose they are, and what was decided each time somebody asked.

-- Numbers count up from 1001 and are never given twice. `sort_name` is the name without case and accents. Where there is no
-- entry, `last_entry_at_ms` is the smallest number there is, so that such clients come last. What lists show of the entries
-- is counted here with every change of one.
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
    archived_entries BIGINT  NOT NULL
);

-- Each order of the list, for all clients and for those of one owner.
CREATE INDEX clients_number ON clients (is_archived, id);
CREATE INDEX clients_number_of_owner ON clients (owner_id, is_archived, id);
CREATE INDEX clients_recent ON clients (is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_recent_of_owner ON clients (owner_id, is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_name ON clients (is_archived, sort_name, id);
CREATE INDEX clients_name_of_owner ON clients (owner_id, is_archived, sort_name, id);

-- How many clients each person has, so that a page need not count them.
CREATE TABLE client_counts (
    owner_id    BIGINT  NOT NULL REFERENCES people (id),
    is_archived BOOLEAN NOT NULL,
    clients     BIGINT  NOT NULL,
    PRIMARY KEY (owner_id, is_archived)
);

-- Once for each statement: a count that changes thousands of times in one transaction would leave as many dead rows. In the
-- order of the key, so that two of these do not wait for each other.
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

CREATE TRIGGER clients_are_counted AFTER INSERT ON clients REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION count_new_clients();
CREATE TRIGGER clients_are_counted_elsewhere AFTER UPDATE ON clients
    REFERENCING OLD TABLE AS old_clients NEW TABLE AS new_clients
    FOR EACH STATEMENT EXECUTE FUNCTION count_changed_clients();

-- Every version of a client's facts, the present one included. Without a person: the command line.
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
    by_id       BIGINT  REFERENCES people (id),
    at_ms       BIGINT  NOT NULL,
    PRIMARY KEY (client_id, version)
);

-- What a client is found by: words without case and accents. The owner and whether it is archived are those of the client,
-- so that a search reads no more than what it may show.
CREATE TABLE client_words (
    client_id   BIGINT  NOT NULL REFERENCES clients (id),
    word        TEXT COLLATE "C" NOT NULL,
    owner_id    BIGINT  NOT NULL,
    is_archived BOOLEAN NOT NULL,
    PRIMARY KEY (client_id, word)
);

CREATE INDEX client_words_of_all ON client_words (is_archived, word, client_id);
CREATE INDEX client_words_of_owner ON client_words (owner_id, is_archived, word, client_id);

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
    title          TEXT    NOT NULL,
    text           TEXT    NOT NULL
);

CREATE INDEX entries_timeline ON entries (client_id, is_archived, at_ms DESC, id DESC);
CREATE INDEX entries_timeline_of_kind ON entries (client_id, is_archived, kind, at_ms DESC, id DESC, is_open);

-- Every version of an entry, the present one included.
CREATE TABLE entry_versions (
    entry_id      BIGINT  NOT NULL REFERENCES entries (id),
    version       BIGINT  NOT NULL,
    at_ms         BIGINT  NOT NULL,
    is_open       BOOLEAN NOT NULL,
    is_archived   BOOLEAN NOT NULL,
    by_id         BIGINT  REFERENCES people (id),
    changed_at_ms BIGINT  NOT NULL,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    PRIMARY KEY (entry_id, version)
);

-- Who has opened a record, so that its page need not look through the audit.
CREATE TABLE client_looks (
    client_id  BIGINT NOT NULL REFERENCES clients (id),
    person_id  BIGINT NOT NULL REFERENCES people (id),
    last_at_ms BIGINT NOT NULL,
    times      BIGINT NOT NULL,
    PRIMARY KEY (client_id, person_id)
);

-- Each process links its decisions into a chain, like the rows of the ledger.
CREATE TABLE audit_writers (
    id        BIGINT PRIMARY KEY,
    row_count BIGINT NOT NULL CHECK (row_count >= 0),
    head      BYTEA  NOT NULL CHECK (octet_length(head) = 32)
) WITH (fillfactor = 50);

-- A decision (`action`, `decision`), with what it changed about somebody's access, or an event by itself: a sign-in, say.
-- Numbers that are no client's are asked for too, so `client_id` refers to nothing.
CREATE TABLE audit_rows (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms      BIGINT NOT NULL,
    asker      TEXT   NOT NULL CHECK (asker IN ('consultant', 'partner', 'operator', 'visitor')),
    person_id  BIGINT REFERENCES people (id),
    action     TEXT,
    client_id  BIGINT,
    request_id TEXT   NOT NULL,
    decision   TEXT   CHECK (decision IN ('allowed', 'refused')),
    event      TEXT,
    subject_id BIGINT REFERENCES people (id),
    old_role   TEXT   CHECK (old_role IN ('consultant', 'partner')),
    new_role   TEXT   CHECK (new_role IN ('consultant', 'partner')),
    ip_address TEXT,
    writer_id  BIGINT NOT NULL,
    place      BIGINT NOT NULL CHECK (place >= 0),
    hash       BYTEA  NOT NULL CHECK (octet_length(hash) = 32),
    UNIQUE (writer_id, place),
    CONSTRAINT only_the_command_line_and_visitors_are_nobody
        CHECK ((asker IN ('operator', 'visitor')) = (person_id IS NULL)),
    CONSTRAINT a_row_is_a_decision_or_an_event
        CHECK ((action IS NULL) = (decision IS NULL) AND (action IS NOT NULL OR event IS NOT NULL)),
    -- What the hash of a row of its kind does not cover cannot be there.
    CONSTRAINT a_row_has_no_other_kinds_columns
        CHECK ((action IS NULL OR ip_address IS NULL) AND (action IS NOT NULL OR client_id IS NULL)
            AND (event IS NOT NULL OR (subject_id IS NULL AND old_role IS NULL AND new_role IS NULL)))
);

CREATE INDEX audit_rows_at ON audit_rows (at_ms, id);
CREATE INDEX audit_rows_client ON audit_rows (client_id, at_ms, id);
CREATE INDEX audit_rows_person ON audit_rows (person_id, at_ms, id);

CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only: rows are never changed or removed';
END;
$$;

CREATE TRIGGER audit_is_never_changed BEFORE UPDATE OR DELETE ON audit_rows
    FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();

CREATE TRIGGER audit_is_never_emptied BEFORE TRUNCATE ON audit_rows
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- Sums by day and price, so that a month can be invoiced from them. A day is days since 1970 UTC. Pages are left with room, so
-- that a sum can change in place.
CREATE TABLE usage_days (
    account_id         BIGINT NOT NULL REFERENCES accounts (id),
    day                BIGINT NOT NULL,
    key_id             BIGINT NOT NULL REFERENCES api_keys (id),
    model              TEXT COLLATE "C" NOT NULL,
    input_price_nanos  BIGINT NOT NULL CHECK (input_price_nanos >= 0),
    output_price_nanos BIGINT NOT NULL CHECK (output_price_nanos >= 0),
    requests           BIGINT NOT NULL CHECK (requests >= 0),
    input_tokens       BIGINT NOT NULL CHECK (input_tokens >= 0),
    output_tokens      BIGINT NOT NULL CHECK (output_tokens >= 0),
    cost_nanos         BIGINT NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model, input_price_nanos, output_price_nanos)
) WITH (fillfactor = 80);

-- With the account, for a planner that takes this index for a month of one account too: it then reads that account's lines alone.
CREATE INDEX usage_days_day ON usage_days (day, account_id);
-- The last day on which a key was used.
CREATE INDEX usage_days_key ON usage_days (key_id, day);

-- Every month in which an account has used something, and the invoice that bills it: none, or the one that is not void. A month
-- counts from January of the year 0.
CREATE TABLE account_months (
    account_id     BIGINT NOT NULL REFERENCES accounts (id),
    month          BIGINT NOT NULL,
    invoice_year   BIGINT,
    invoice_serial BIGINT,
    PRIMARY KEY (account_id, month),
    CHECK ((invoice_year IS NULL) = (invoice_serial IS NULL))
);

CREATE INDEX account_months_open ON account_months (month DESC, account_id) WHERE invoice_year IS NULL;

-- The last day of the year 9999 stands for all that come after it, as in `Month::of`.
CREATE FUNCTION month_of_day(day BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
    SELECT (EXTRACT(YEAR FROM DATE '1970-01-01' + LEAST(day, 2932896)::integer) * 12
        + EXTRACT(MONTH FROM DATE '1970-01-01' + LEAST(day, 2932896)::integer) - 1)::bigint
$$;

-- Under which number an account's usage is locked; together with the month it is the lock's name. There are few, so that a batch of
-- very many accounts takes few locks, and accounts that have one in common wait for each other's invoice at most.
CREATE FUNCTION usage_lock(account_id BIGINT) RETURNS INTEGER LANGUAGE sql IMMUTABLE AS $$
    SELECT (account_id & 63)::integer
$$;

CREATE FUNCTION note_month_of_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO account_months (account_id, month) VALUES (NEW.account_id, month_of_day(NEW.day))
        ON CONFLICT (account_id, month) DO NOTHING;
    RETURN NULL;
END;
$$;

CREATE TRIGGER usage_has_its_month AFTER INSERT ON usage_days
    FOR EACH ROW EXECUTE FUNCTION note_month_of_usage();

-- Nothing is added to a month that is invoiced, or the invoice would no longer be what the ledger says. It fires for sums that are
-- there already too. Whoever adds something first shares the lock of the account's month, and whoever invoices the month holds it
-- alone: what is added is either there when the sums are read, or comes to look when the invoice is there.
CREATE FUNCTION refuse_invoiced_usage() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(month_of_day(NEW.day)::integer, usage_lock(NEW.account_id));
    IF EXISTS (SELECT 1 FROM account_months m WHERE m.account_id = NEW.account_id
               AND m.month = month_of_day(NEW.day) AND m.invoice_year IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'CH002',
            MESSAGE = 'this account''s month is invoiced: nothing is added to it any more';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER invoiced_usage_is_closed BEFORE INSERT ON usage_days
    FOR EACH ROW EXECUTE FUNCTION refuse_invoiced_usage();

-- The last place that was given in each year. It is raised in the transaction that issues the document, so there are no gaps.
CREATE TABLE invoice_serials (
    year   BIGINT PRIMARY KEY,
    serial BIGINT NOT NULL CHECK (serial >= 0)
);

-- Invoices and credit notes as they were issued. Amounts are in minor units of their currency; those of credit notes are
-- negative. What changes is the state, and how much was credited.
CREATE TABLE invoices (
    year              BIGINT NOT NULL,
    serial            BIGINT NOT NULL CHECK (serial >= 1),
    kind              TEXT    NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    of_year           BIGINT,
    of_serial         BIGINT,
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
    FOREIGN KEY (of_year, of_serial) REFERENCES invoices (year, serial),
    CHECK ((kind = 'credit_note') = (of_year IS NOT NULL)),
    CHECK ((of_year IS NULL) = (of_serial IS NULL)),
    CHECK ((tax_name IS NULL) = (tax_rate_ppm IS NULL)),
    CHECK (total_minor = subtotal_minor + tax_minor),
    CHECK (credited_subtotal >= 0 AND credited_total >= 0),
    CHECK (state <> 'void' OR (credited_subtotal = subtotal_minor AND credited_total = total_minor)),
    CHECK (kind = 'credit_note' OR (credited_subtotal <= subtotal_minor AND credited_total <= total_minor))
);

CREATE INDEX invoices_account ON invoices (account_id, year, serial);
CREATE INDEX invoices_state ON invoices (state, currency, due_day);
CREATE INDEX invoices_of ON invoices (of_year, of_serial) WHERE of_year IS NOT NULL;

CREATE TABLE invoice_lines (
    year         BIGINT NOT NULL,
    serial       BIGINT NOT NULL,
    place        BIGINT NOT NULL CHECK (place >= 0),
    item         TEXT    NOT NULL CHECK (item IN ('tokens', 'part')),
    model        TEXT COLLATE "C" NOT NULL,
    direction    TEXT    NOT NULL CHECK (direction IN ('input', 'output', '')),
    tokens       BIGINT NOT NULL CHECK (tokens >= 0),
    price_nanos  BIGINT NOT NULL CHECK (price_nanos >= 0),
    exact_nanos  BIGINT NOT NULL,
    amount_minor BIGINT NOT NULL,
    PRIMARY KEY (year, serial, place),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
);

-- The PDF, byte for byte as it was issued.
CREATE TABLE invoice_documents (
    year   BIGINT NOT NULL,
    serial BIGINT NOT NULL,
    pdf    BYTEA   NOT NULL,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
);

-- What was done with an invoice, by whom. Without a person: the command line. A note is that which credited it.
CREATE TABLE invoice_events (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    year        BIGINT NOT NULL,
    serial      BIGINT NOT NULL,
    deed        TEXT    NOT NULL CHECK (deed IN ('issued', 'paid', 'payment_taken_back', 'credited', 'voided')),
    note_year   BIGINT,
    note_serial BIGINT,
    by_id       BIGINT REFERENCES people (id),
    at_ms       BIGINT NOT NULL,
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial),
    FOREIGN KEY (note_year, note_serial) REFERENCES invoices (year, serial)
);

CREATE INDEX invoice_events_invoice ON invoice_events (year, serial, id);
CREATE UNIQUE INDEX invoice_events_once ON invoice_events (year, serial, deed) WHERE deed IN ('issued', 'voided');

ALTER TABLE account_months ADD FOREIGN KEY (invoice_year, invoice_serial) REFERENCES invoices (year, serial);

CREATE FUNCTION refuse_invoice_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'an issued invoice is never changed or removed; make a credit note';
END;
$$;

CREATE TRIGGER issued_invoices_never_change BEFORE UPDATE OF year, serial, kind, of_year, of_serial, reason, account_id, month,
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, tax_name,
    tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash ON invoices
    FOR EACH ROW EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER issued_invoices_never_go BEFORE DELETE ON invoices
    FOR EACH ROW EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER issued_lines_never_change BEFORE UPDATE OR DELETE ON invoice_lines
    FOR EACH ROW EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER issued_documents_never_change BEFORE UPDATE OR DELETE ON invoice_documents
    FOR EACH ROW EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER invoice_events_never_change BEFORE UPDATE OR DELETE ON invoice_events
    FOR EACH ROW EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER invoices_are_never_emptied BEFORE TRUNCATE ON invoices
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER invoice_lines_are_never_emptied BEFORE TRUNCATE ON invoice_lines
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER invoice_documents_are_never_emptied BEFORE TRUNCATE ON invoice_documents
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_invoice_change();
CREATE TRIGGER invoice_events_are_never_emptied BEFORE TRUNCATE ON invoice_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_invoice_change();

-- Lines are written before the document, and none after it.
CREATE FUNCTION refuse_line_of_issued_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM invoice_documents d WHERE d.year = NEW.year AND d.serial = NEW.serial) THEN
        RAISE EXCEPTION 'an issued invoice is never given another line; make a credit note';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER issued_invoices_get_no_lines BEFORE INSERT ON invoice_lines
    FOR EACH ROW EXECUTE FUNCTION refuse_line_of_issued_invoice();

-- What is void stays so, and what was credited is never taken back.
CREATE FUNCTION refuse_uncrediting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'void' OR NEW.credited_subtotal < OLD.credited_subtotal
        OR NEW.credited_total < OLD.credited_total THEN
        RAISE EXCEPTION 'a credit note is never taken back; issue the month anew';
    END IF;
    RETURN NEW;
END;
$$;

CREATE TRIGGER credits_are_never_taken_back BEFORE UPDATE OF state, credited_subtotal, credited_total ON invoices
    FOR EACH ROW EXECUTE FUNCTION refuse_uncrediting();

-- Numbers are given one after the other.
CREATE FUNCTION refuse_gap_in_numbers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' AND NEW.serial = 1 THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.year = OLD.year AND NEW.serial = OLD.serial + 1 THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a number is never skipped, given back or given again';
END;
$$;

CREATE TRIGGER numbers_have_no_gaps BEFORE INSERT OR UPDATE OR DELETE ON invoice_serials
    FOR EACH ROW EXECUTE FUNCTION refuse_gap_in_numbers();
CREATE TRIGGER numbers_are_never_emptied BEFORE TRUNCATE ON invoice_serials
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_gap_in_numbers();

-- A month that is invoiced stays so until its invoice is void.
CREATE FUNCTION refuse_change_of_invoiced_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM invoices i WHERE i.year = OLD.invoice_year AND i.serial = OLD.invoice_serial
               AND i.state <> 'void') THEN
        RAISE EXCEPTION 'this account''s month is invoiced; make a credit note';
    END IF;
    RETURN NEW;
END;
$$;

CREATE FUNCTION refuse_removal_of_used_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a month in which an account has used something is never removed';
END;
$$;

CREATE TRIGGER invoiced_months_stay_invoiced BEFORE UPDATE ON account_months
    FOR EACH ROW EXECUTE FUNCTION refuse_change_of_invoiced_month();
CREATE TRIGGER used_months_never_go BEFORE DELETE ON account_months
    FOR EACH ROW EXECUTE FUNCTION refuse_removal_of_used_month();
CREATE TRIGGER used_months_are_never_emptied BEFORE TRUNCATE ON account_months
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_removal_of_used_month();

-- Requests that were refused for want of money or because of a limit, for the pages that show them. A key without an account has
-- account 0. These are counts for people to read; nothing is billed by them.
CREATE TABLE refusal_days (
    account_id BIGINT NOT NULL,
    day        BIGINT NOT NULL,
    key_id     BIGINT NOT NULL REFERENCES api_keys (id),
    code       TEXT COLLATE "C" NOT NULL,
    refusals   BIGINT NOT NULL CHECK (refusals >= 0),
    last_at_ms BIGINT NOT NULL,
    PRIMARY KEY (account_id, day, key_id, code)
);

CREATE INDEX refusal_days_day ON refusal_days (day);

-- The busiest sixty seconds of each day, as the limits saw them.
CREATE TABLE peak_days (
    account_id     BIGINT NOT NULL REFERENCES accounts (id),
    day            BIGINT NOT NULL,
    requests       BIGINT NOT NULL,
    requests_at_ms BIGINT NOT NULL,
    tokens         BIGINT NOT NULL,
    tokens_at_ms   BIGINT NOT NULL,
    PRIMARY KEY (account_id, day)
);

-- What was done with billing accounts and keys in the portal, by whom.
CREATE TABLE account_events (
    id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id BIGINT REFERENCES accounts (id),
    key_id     BIGINT REFERENCES api_keys (id),
    deed       TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    by_id      BIGINT REFERENCES people (id),
    at_ms      BIGINT NOT NULL
);

CREATE INDEX account_events_account ON account_events (account_id, id);
CREATE INDEX account_events_key ON account_events (key_id, id);

-- The keys of an account, and those that bill none.
CREATE INDEX api_keys_account ON api_keys (account_id);

CREATE FUNCTION refuse_account_event_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the history of accounts is never changed';
END;
$$;

CREATE TRIGGER account_events_never_change BEFORE UPDATE OR DELETE ON account_events
    FOR EACH ROW EXECUTE FUNCTION refuse_account_event_change();
CREATE TRIGGER account_events_are_never_emptied BEFORE TRUNCATE ON account_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_account_event_change();
