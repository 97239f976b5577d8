-- Times are milliseconds since 1970 UTC, money is nano-units of the currency; both are whole numbers.

CREATE TABLE accounts (
    id               INTEGER PRIMARY KEY,
    name             TEXT    NOT NULL UNIQUE,
    requests_per_min INTEGER NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   INTEGER NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    INTEGER NOT NULL,
    closed_at_ms     INTEGER,
    -- What it may spend in a calendar month (UTC); none is no cap.
    spend_per_month_nanos INTEGER CHECK (spend_per_month_nanos >= 0),
    -- Where its invoices go.
    billing_address  TEXT    NOT NULL DEFAULT '',
    billing_email    TEXT    NOT NULL DEFAULT ''
) STRICT;

CREATE TABLE api_keys (
    id            INTEGER PRIMARY KEY,
    prefix        TEXT    NOT NULL UNIQUE,
    hash          BLOB    NOT NULL CHECK (length(hash) = 32),
    label         TEXT    NOT NULL,
    account_id    INTEGER REFERENCES accounts (id),
    created_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER
) STRICT;

-- Each writer links its rows into a chain: a row has its place there and a hash over itself and the row before. The
-- chain's end is kept apart, so that rows missing at the end are missed too. Sums by day are kept with the rows.

CREATE TABLE ledger_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- In the order in which rows are written and verified.
CREATE TABLE ledger (
    request_id         TEXT    NOT NULL UNIQUE CHECK (request_id <> ''),
    account_id         INTEGER NOT NULL REFERENCES accounts (id),
    key_id             INTEGER NOT NULL REFERENCES api_keys (id),
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens      INTEGER NOT NULL CHECK (output_tokens >= 0),
    input_price_nanos  INTEGER NOT NULL CHECK (input_price_nanos >= 0),
    output_price_nanos INTEGER NOT NULL CHECK (output_price_nanos >= 0),
    cost_nanos         INTEGER NOT NULL CHECK (cost_nanos >= 0),
    at_ms              INTEGER NOT NULL CHECK (at_ms >= 0),
    ended              TEXT    NOT NULL
        CHECK (ended IN ('complete', 'max_output_tokens', 'stop_sequence', 'context_length', 'cancelled')),
    writer_id          INTEGER NOT NULL,
    place              INTEGER NOT NULL CHECK (place >= 0),
    hash               BLOB    NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (writer_id, place),
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = input_tokens * input_price_nanos + output_tokens * output_price_nanos)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER ledger_is_never_updated BEFORE UPDATE ON ledger
BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only: rows are never changed');
END;

CREATE TRIGGER ledger_is_never_deleted BEFORE DELETE ON ledger
BEGIN
    SELECT RAISE(ABORT, 'the ledger is append-only: rows are never removed');
END;

-- INSERT OR REPLACE removes the old row without firing the trigger above; here it finds the row and leaves it alone.
CREATE TRIGGER ledger_is_never_replaced BEFORE INSERT ON ledger
WHEN EXISTS (SELECT 1 FROM ledger WHERE request_id = NEW.request_id)
    OR EXISTS (SELECT 1 FROM ledger WHERE writer_id = NEW.writer_id AND place = NEW.place)
BEGIN
    SELECT RAISE(IGNORE);
END;

-- What requests under way have reserved of what their account may spend in a month.

-- A month is the number of its first day. What is set aside is either settled with the ledger's row or given back;
-- when the process that set it aside is dead, or the time is up, anybody may remove it.
CREATE TABLE spending_reservations (
    request_id    TEXT    NOT NULL PRIMARY KEY,
    account_id    INTEGER NOT NULL REFERENCES accounts (id),
    month         INTEGER NOT NULL,
    amount_nanos  INTEGER NOT NULL CHECK (amount_nanos >= 0),
    writer_id     INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);

-- A process that holds something for its requests says here that it lives.
CREATE TABLE writer_leases (
    writer_id      INTEGER PRIMARY KEY,
    alive_until_ms INTEGER NOT NULL
) STRICT;

-- Keys by which callers name their requests, so that sending one again does not run it again. While its request is under
-- way a key has the process that runs it; afterwards it has the text, and the rest of the reply is in the ledger's row.
-- The text is bytes, for a model may generate a NUL, which not every database takes for a character.
CREATE TABLE idempotency_keys (
    account_id      INTEGER NOT NULL REFERENCES accounts (id),
    idempotency_key TEXT    NOT NULL,
    fingerprint     BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    request_id      TEXT    NOT NULL,
    writer_id       INTEGER,
    output_text     BLOB,
    cached_tokens   INTEGER CHECK (cached_tokens >= 0),
    expires_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (account_id, idempotency_key),
    CHECK ((writer_id IS NULL) = (output_text IS NOT NULL) AND (writer_id IS NULL) = (cached_tokens IS NOT NULL))
) STRICT;

CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at_ms);

-- The people of the portal, their sessions, and sign-ins under way.

-- Who somebody is, issuer and subject say together; two people may have one address.
CREATE TABLE people (
    id            INTEGER PRIMARY KEY,
    issuer        TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    email         TEXT    NOT NULL,
    role          TEXT    NOT NULL CHECK (role IN ('consultant', 'partner')),
    joined_at_ms  INTEGER NOT NULL,
    removed_at_ms INTEGER,
    UNIQUE (issuer, subject)
) STRICT;

CREATE INDEX people_email ON people (email);

-- Of a session's token only a hash is kept.
CREATE TABLE sessions (
    id              INTEGER PRIMARY KEY,
    token_hash      BLOB    NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    person_id       INTEGER NOT NULL REFERENCES people (id),
    started_at_ms   INTEGER NOT NULL,
    last_used_at_ms INTEGER NOT NULL,
    place           TEXT    NOT NULL,
    browser         TEXT    NOT NULL
) STRICT;

CREATE INDEX sessions_person ON sessions (person_id);

-- From the button until the browser comes back from the identity provider. Taken once.
CREATE TABLE sign_ins (
    token_hash    BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    state         TEXT    NOT NULL,
    nonce         TEXT    NOT NULL,
    pkce_verifier TEXT    NOT NULL,
    return_to     TEXT    NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_ins_expiry ON sign_ins (expires_at_ms);

-- Back from the identity provider, until the code from the mail is typed. The last time is that of a letter that the mail
-- server took; without one there was none. The next letter may go out when its time has come.
CREATE TABLE half_sign_ins (
    token_hash         BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    issuer             TEXT    NOT NULL,
    subject            TEXT    NOT NULL,
    email              TEXT    NOT NULL,
    return_to          TEXT    NOT NULL,
    code_hash          BLOB    NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms INTEGER NOT NULL,
    wrong_tries        INTEGER NOT NULL,
    codes_sent         INTEGER NOT NULL,
    last_sent_at_ms    INTEGER,
    next_letter_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX half_sign_ins_identity ON half_sign_ins (issuer, subject);
CREATE INDEX half_sign_ins_expiry ON half_sign_ins (code_expires_at_ms);

-- The people of the built-in identity provider: their passwords, their sessions there, mailboxes that are being proved,
-- and what was tried how often. The portal reads none of this.

-- An account is made only when its mailbox is proved. The subject is drawn, and never changes.
CREATE TABLE provider_accounts (
    subject          TEXT    NOT NULL PRIMARY KEY,
    email            TEXT    NOT NULL UNIQUE,
    password_hash    TEXT    NOT NULL,
    password_version INTEGER NOT NULL DEFAULT 1,
    created_at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A session is worth something while its account has the password that it was started with.
CREATE TABLE provider_sessions (
    token_hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject          TEXT    NOT NULL REFERENCES provider_accounts (subject),
    password_version INTEGER NOT NULL,
    started_at_ms    INTEGER NOT NULL,
    last_used_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX provider_sessions_subject ON provider_sessions (subject);
CREATE INDEX provider_sessions_start ON provider_sessions (started_at_ms);
CREATE INDEX provider_sessions_use ON provider_sessions (last_used_at_ms);

-- From the form until the code from the mail is typed. There is a row whether or not the address has an account.
CREATE TABLE mailbox_proofs (
    token_hash         BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    purpose            TEXT    NOT NULL CHECK (purpose IN ('sign_up', 'new_password')),
    email              TEXT    NOT NULL,
    password_hash      TEXT    CHECK ((password_hash IS NULL) = (purpose = 'new_password')),
    return_to          TEXT    NOT NULL,
    code_hash          BLOB    NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms INTEGER NOT NULL,
    codes_sent         INTEGER NOT NULL,
    last_sent_at_ms    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX mailbox_proofs_email ON mailbox_proofs (email);
CREATE INDEX mailbox_proofs_expiry ON mailbox_proofs (code_expires_at_ms);

-- How often something was tried at the portal and at the identity provider, and until when that counts; what, by whom or with
-- which address, only a hash says.
CREATE TABLE throttles (
    key_hash      BLOB    NOT NULL PRIMARY KEY CHECK (length(key_hash) = 32),
    count         INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX throttles_expiry ON throttles (expires_at_ms);

-- What the built-in identity provider gives out: its signing keys, consents, authorization codes and access tokens.

-- Each key takes over from the one before it, so a generation is made once, however many nodes make it at the same time.
-- The private key is PKCS#8; it is as safe as this database is.
CREATE TABLE signing_keys (
    generation         INTEGER NOT NULL PRIMARY KEY,
    key_id             TEXT    NOT NULL UNIQUE,
    private_key        BLOB    NOT NULL,
    signs_from_ms      INTEGER NOT NULL,
    signs_until_ms     INTEGER NOT NULL CHECK (signs_until_ms > signs_from_ms),
    published_until_ms INTEGER NOT NULL CHECK (published_until_ms >= signs_until_ms)
) STRICT;

-- What somebody has allowed an application to learn, for good.
CREATE TABLE consents (
    subject       TEXT    NOT NULL,
    client_id     TEXT    NOT NULL,
    scope         TEXT    NOT NULL,
    allowed_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subject, client_id, scope)
) STRICT, WITHOUT ROWID;

-- Consent pages that wait for an answer. Taken once; of the page's secret and of the session it was shown in, only
-- hashes are kept.
CREATE TABLE consent_questions (
    token_hash    BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    subject       TEXT    NOT NULL,
    session_hash  BLOB    NOT NULL CHECK (length(session_hash) = 32),
    request       TEXT    NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX consent_questions_expiry ON consent_questions (expires_at_ms);

-- An authorization code and the access token that it was exchanged for. A code that is presented again takes its token
-- along, in the same step.
CREATE TABLE grants (
    code_hash               BLOB    NOT NULL PRIMARY KEY CHECK (length(code_hash) = 32),
    client_id               TEXT    NOT NULL,
    redirect_uri            TEXT    NOT NULL,
    code_challenge          TEXT    NOT NULL,
    subject                 TEXT    NOT NULL,
    password_version        INTEGER NOT NULL,
    scope                   TEXT    NOT NULL,
    nonce                   TEXT,
    authenticated_at_ms     INTEGER NOT NULL,
    code_expires_at_ms      INTEGER NOT NULL,
    presentations           INTEGER NOT NULL DEFAULT 0,
    access_token_hash       BLOB    UNIQUE CHECK (length(access_token_hash) = 32),
    access_expires_at_ms    INTEGER,
    forgotten_at_ms         INTEGER NOT NULL,
    CHECK ((access_token_hash IS NULL) = (access_expires_at_ms IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX grants_forgetting ON grants (forgotten_at_ms);

-- Secrets that all nodes on this database share, each drawn once by whichever node is first.
CREATE TABLE shared_secrets (
    name   TEXT NOT NULL PRIMARY KEY,
    secret TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Client records, who may look at them by whose they are, and what was decided each time somebody asked.

-- Numbers count up from 1001 and are never given twice. `sort_name` is the name without case and accents. Where there is no
-- entry, `last_entry_at_ms` is the smallest number there is, so that such clients come last. What lists show of the entries
-- is counted here with every change of one.
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
    archived_entries INTEGER NOT NULL
) STRICT;

-- Each order of the list, for all clients and for those of one owner.
CREATE INDEX clients_number ON clients (is_archived, id);
CREATE INDEX clients_number_of_owner ON clients (owner_id, is_archived, id);
CREATE INDEX clients_recent ON clients (is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_recent_of_owner ON clients (owner_id, is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_name ON clients (is_archived, sort_name, id);
CREATE INDEX clients_name_of_owner ON clients (owner_id, is_archived, sort_name, id);

-- How many clients each person has, so that a page need not count them.
CREATE TABLE client_counts (
    owner_id    INTEGER NOT NULL REFERENCES people (id),
    is_archived INTEGER NOT NULL,
    clients     INTEGER NOT NULL,
    PRIMARY KEY (owner_id, is_archived)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER client_is_counted AFTER INSERT ON clients
BEGIN
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

CREATE TRIGGER client_is_counted_elsewhere AFTER UPDATE ON clients
WHEN OLD.owner_id <> NEW.owner_id OR OLD.is_archived <> NEW.is_archived
BEGIN
    UPDATE client_counts SET clients = clients - 1
        WHERE owner_id = OLD.owner_id AND is_archived = OLD.is_archived;
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

-- Every version of a client's facts, the present one included. Without a person: the command line.
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
    by_id       INTEGER REFERENCES people (id),
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (client_id, version)
) STRICT, WITHOUT ROWID;

-- What a client is found by: words without case and accents. The owner and whether it is archived are those of the client,
-- so that a search reads no more than what it may show.
CREATE TABLE client_words (
    client_id   INTEGER NOT NULL REFERENCES clients (id),
    word        TEXT    NOT NULL,
    owner_id    INTEGER NOT NULL,
    is_archived INTEGER NOT NULL,
    PRIMARY KEY (client_id, word)
) STRICT, WITHOUT ROWID;

CREATE INDEX client_words_of_all ON client_words (is_archived, word, client_id);
CREATE INDEX client_words_of_owner ON client_words (owner_id, is_archived, word, client_id);

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
    title          TEXT    NOT NULL,
    text           TEXT    NOT NULL
) STRICT;

CREATE INDEX entries_timeline ON entries (client_id, is_archived, at_ms DESC, id DESC);
CREATE INDEX entries_timeline_of_kind ON entries (client_id, is_archived, kind, at_ms DESC, id DESC, is_open);

-- Every version of an entry, the present one included.
CREATE TABLE entry_versions (
    entry_id      INTEGER NOT NULL REFERENCES entries (id),
    version       INTEGER NOT NULL,
    at_ms         INTEGER NOT NULL,
    is_open       INTEGER NOT NULL,
    is_archived   INTEGER NOT NULL,
    by_id         INTEGER REFERENCES people (id),
    changed_at_ms INTEGER NOT NULL,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    PRIMARY KEY (entry_id, version)
) STRICT;

-- AUTOINCREMENT goes on from here.
INSERT INTO sqlite_sequence (name, seq) VALUES ('clients', 1000), ('entries', 0);

-- Who has opened a record, so that its page need not look through the audit.
CREATE TABLE client_looks (
    client_id  INTEGER NOT NULL REFERENCES clients (id),
    person_id  INTEGER NOT NULL REFERENCES people (id),
    last_at_ms INTEGER NOT NULL,
    times      INTEGER NOT NULL,
    PRIMARY KEY (client_id, person_id)
) STRICT, WITHOUT ROWID;

-- Each process links its decisions into a chain, like the rows of the ledger.
CREATE TABLE audit_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- A decision (`action`, `decision`), with what it changed about somebody's access, or an event by itself: a sign-in, say.
-- Numbers that are no client's are asked for too, so `client_id` refers to nothing.
CREATE TABLE audit_rows (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms      INTEGER NOT NULL,
    asker      TEXT    NOT NULL CHECK (asker IN ('consultant', 'partner', 'operator', 'visitor')),
    person_id  INTEGER REFERENCES people (id),
    action     TEXT,
    client_id  INTEGER,
    request_id TEXT    NOT NULL,
    decision   TEXT    CHECK (decision IN ('allowed', 'refused')),
    event      TEXT,
    subject_id INTEGER REFERENCES people (id),
    old_role   TEXT    CHECK (old_role IN ('consultant', 'partner')),
    new_role   TEXT    CHECK (new_role IN ('consultant', 'partner')),
    ip_address TEXT,
    writer_id  INTEGER NOT NULL,
    place      INTEGER NOT NULL CHECK (place >= 0),
    hash       BLOB    NOT NULL CHECK (length(hash) = 32),
    UNIQUE (writer_id, place),
    CONSTRAINT only_the_command_line_and_visitors_are_nobody
        CHECK ((asker IN ('operator', 'visitor')) = (person_id IS NULL)),
    CONSTRAINT a_row_is_a_decision_or_an_event
        CHECK ((action IS NULL) = (decision IS NULL) AND (action IS NOT NULL OR event IS NOT NULL)),
    -- What the hash of a row of its kind does not cover cannot be there.
    CONSTRAINT a_row_has_no_other_kinds_columns
        CHECK ((action IS NULL OR ip_address IS NULL) AND (action IS NOT NULL OR client_id IS NULL)
            AND (event IS NOT NULL OR (subject_id IS NULL AND old_role IS NULL AND new_role IS NULL)))
) STRICT;

CREATE INDEX audit_rows_at ON audit_rows (at_ms, id);
CREATE INDEX audit_rows_client ON audit_rows (client_id, at_ms, id);
CREATE INDEX audit_rows_person ON audit_rows (person_id, at_ms, id);

CREATE TRIGGER audit_is_never_updated BEFORE UPDATE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never changed');
END;

CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never removed');
END;

-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit_rows
WHEN EXISTS (SELECT 1 FROM audit_rows WHERE id = NEW.id)
    OR EXISTS (SELECT 1 FROM audit_rows WHERE writer_id = NEW.writer_id AND place = NEW.place)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never replaced');
END;

-- The last place that was given in each year. It is raised in the transaction that issues the document, so there are no gaps.
CREATE TABLE invoice_serials (
    year   INTEGER PRIMARY KEY,
    serial INTEGER NOT NULL CHECK (serial >= 0)
) STRICT;

-- Invoices and credit notes as they were issued. Amounts are in minor units of their currency; those of credit notes are
-- negative. What changes is the state, and how much was credited.
CREATE TABLE invoices (
    year              INTEGER NOT NULL,
    serial            INTEGER NOT NULL CHECK (serial >= 1),
    kind              TEXT    NOT NULL CHECK (kind IN ('invoice', 'credit_note')),
    of_year           INTEGER,
    of_serial         INTEGER,
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
    FOREIGN KEY (of_year, of_serial) REFERENCES invoices (year, serial),
    CHECK ((kind = 'credit_note') = (of_year IS NOT NULL)),
    CHECK ((of_year IS NULL) = (of_serial IS NULL)),
    CHECK ((tax_name IS NULL) = (tax_rate_ppm IS NULL)),
    CHECK (total_minor = subtotal_minor + tax_minor),
    CHECK (credited_subtotal >= 0 AND credited_total >= 0),
    CHECK (state <> 'void' OR (credited_subtotal = subtotal_minor AND credited_total = total_minor)),
    CHECK (kind = 'credit_note' OR (credited_subtotal <= subtotal_minor AND credited_total <= total_minor))
) STRICT, WITHOUT ROWID;

CREATE INDEX invoices_account ON invoices (account_id, year, serial);
CREATE INDEX invoices_state ON invoices (state, currency, due_day);
CREATE INDEX invoices_of ON invoices (of_year, of_serial) WHERE of_year IS NOT NULL;

-- Sums by day and price, so that a month can be invoiced from them. A day is days since 1970 UTC.
CREATE TABLE usage_days (
    account_id         INTEGER NOT NULL REFERENCES accounts (id),
    day                INTEGER NOT NULL,
    key_id             INTEGER NOT NULL REFERENCES api_keys (id),
    model              TEXT    NOT NULL,
    input_price_nanos  INTEGER NOT NULL CHECK (input_price_nanos >= 0),
    output_price_nanos INTEGER NOT NULL CHECK (output_price_nanos >= 0),
    requests           INTEGER NOT NULL CHECK (requests >= 0),
    input_tokens       INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens      INTEGER NOT NULL CHECK (output_tokens >= 0),
    cost_nanos         INTEGER NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model, input_price_nanos, output_price_nanos)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_days_day ON usage_days (day);
-- The last day on which a key was used.
CREATE INDEX usage_days_key ON usage_days (key_id, day);

-- Every month in which an account has used something, and the invoice that bills it: none, or the one that is not void. A month
-- counts from January of the year 0.
CREATE TABLE account_months (
    account_id     INTEGER NOT NULL REFERENCES accounts (id),
    month          INTEGER NOT NULL,
    invoice_year   INTEGER,
    invoice_serial INTEGER,
    PRIMARY KEY (account_id, month),
    CHECK ((invoice_year IS NULL) = (invoice_serial IS NULL)),
    FOREIGN KEY (invoice_year, invoice_serial) REFERENCES invoices (year, serial)
) STRICT, WITHOUT ROWID;

CREATE INDEX account_months_open ON account_months (month DESC, account_id) WHERE invoice_year IS NULL;

-- The last day of the year 9999 stands for all that come after it, as in `Month::of`.
CREATE TRIGGER usage_has_its_month AFTER INSERT ON usage_days
BEGIN
    INSERT INTO account_months (account_id, month)
        SELECT NEW.account_id, used.month
        FROM (SELECT CAST(strftime('%Y', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) * 12
            + CAST(strftime('%m', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) - 1 AS month) AS used
        WHERE NOT EXISTS (SELECT 1 FROM account_months m WHERE m.account_id = NEW.account_id AND m.month = used.month);
END;

-- Nothing is added to a month that is invoiced, or the invoice would no longer be what the ledger says. It fires for sums that are
-- there already too.
CREATE TRIGGER invoiced_usage_is_closed BEFORE INSERT ON usage_days
WHEN EXISTS (
    SELECT 1 FROM account_months m
    WHERE m.account_id = NEW.account_id AND m.invoice_year IS NOT NULL
        AND m.month = CAST(strftime('%Y', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) * 12
            + CAST(strftime('%m', MIN(NEW.day, 2932896) * 86400, 'unixepoch') AS INTEGER) - 1
)
BEGIN
    SELECT RAISE(ABORT, 'this account''s month is invoiced: nothing is added to it any more');
END;

-- A month that is invoiced stays so until its invoice is void.
CREATE TRIGGER invoiced_months_stay_invoiced BEFORE UPDATE ON account_months
WHEN EXISTS (
    SELECT 1 FROM invoices i WHERE i.year = OLD.invoice_year AND i.serial = OLD.invoice_serial AND i.state <> 'void'
)
BEGIN
    SELECT RAISE(ABORT, 'this account''s month is invoiced; make a credit note');
END;
CREATE TRIGGER used_months_never_go BEFORE DELETE ON account_months
BEGIN
    SELECT RAISE(ABORT, 'a month in which an account has used something is never removed');
END;
-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER used_months_are_never_replaced BEFORE INSERT ON account_months
WHEN EXISTS (SELECT 1 FROM account_months m WHERE m.account_id = NEW.account_id AND m.month = NEW.month)
BEGIN
    SELECT RAISE(ABORT, 'a month in which an account has used something is never replaced');
END;

CREATE TABLE invoice_lines (
    year         INTEGER NOT NULL,
    serial       INTEGER NOT NULL,
    place        INTEGER NOT NULL CHECK (place >= 0),
    item         TEXT    NOT NULL CHECK (item IN ('tokens', 'part')),
    model        TEXT    NOT NULL,
    direction    TEXT    NOT NULL CHECK (direction IN ('input', 'output', '')),
    tokens       INTEGER NOT NULL CHECK (tokens >= 0),
    price_nanos  INTEGER NOT NULL CHECK (price_nanos >= 0),
    exact_nanos  INTEGER NOT NULL,
    amount_minor INTEGER NOT NULL,
    PRIMARY KEY (year, serial, place),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
) STRICT, WITHOUT ROWID;

-- The PDF, byte for byte as it was issued.
CREATE TABLE invoice_documents (
    year   INTEGER NOT NULL,
    serial INTEGER NOT NULL,
    pdf    BLOB    NOT NULL,
    PRIMARY KEY (year, serial),
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial)
) STRICT;

-- What was done with an invoice, by whom. Without a person: the command line. A note is that which credited it.
CREATE TABLE invoice_events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    year        INTEGER NOT NULL,
    serial      INTEGER NOT NULL,
    deed        TEXT    NOT NULL CHECK (deed IN ('issued', 'paid', 'payment_taken_back', 'credited', 'voided')),
    note_year   INTEGER,
    note_serial INTEGER,
    by_id       INTEGER REFERENCES people (id),
    at_ms       INTEGER NOT NULL,
    FOREIGN KEY (year, serial) REFERENCES invoices (year, serial),
    FOREIGN KEY (note_year, note_serial) REFERENCES invoices (year, serial)
) STRICT;

CREATE INDEX invoice_events_invoice ON invoice_events (year, serial, id);
CREATE UNIQUE INDEX invoice_events_once ON invoice_events (year, serial, deed) WHERE deed IN ('issued', 'voided');

CREATE TRIGGER issued_invoices_never_change BEFORE UPDATE OF year, serial, kind, of_year, of_serial, reason, account_id, month,
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, tax_name,
    tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash ON invoices
BEGIN
    SELECT RAISE(ABORT, 'an issued invoice is never changed; make a credit note');
END;
CREATE TRIGGER issued_invoices_never_go BEFORE DELETE ON invoices
BEGIN
    SELECT RAISE(ABORT, 'an issued invoice is never removed; make a credit note');
END;
CREATE TRIGGER issued_lines_never_change BEFORE UPDATE ON invoice_lines
BEGIN
    SELECT RAISE(ABORT, 'a line of an issued invoice is never changed');
END;
CREATE TRIGGER issued_lines_never_go BEFORE DELETE ON invoice_lines
BEGIN
    SELECT RAISE(ABORT, 'a line of an issued invoice is never removed');
END;
CREATE TRIGGER issued_documents_never_change BEFORE UPDATE ON invoice_documents
BEGIN
    SELECT RAISE(ABORT, 'an issued document is never changed');
END;
CREATE TRIGGER issued_documents_never_go BEFORE DELETE ON invoice_documents
BEGIN
    SELECT RAISE(ABORT, 'an issued document is never removed');
END;
CREATE TRIGGER invoice_events_never_change BEFORE UPDATE ON invoice_events
BEGIN
    SELECT RAISE(ABORT, 'what was done with an invoice is never changed');
END;
CREATE TRIGGER invoice_events_never_go BEFORE DELETE ON invoice_events
BEGIN
    SELECT RAISE(ABORT, 'what was done with an invoice is never removed');
END;
-- INSERT OR REPLACE removes the old row without firing the triggers above.
CREATE TRIGGER issued_invoices_are_never_replaced BEFORE INSERT ON invoices
WHEN EXISTS (SELECT 1 FROM invoices WHERE year = NEW.year AND serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'an issued invoice is never replaced');
END;
CREATE TRIGGER issued_lines_are_never_replaced BEFORE INSERT ON invoice_lines
WHEN EXISTS (SELECT 1 FROM invoice_lines WHERE year = NEW.year AND serial = NEW.serial AND place = NEW.place)
BEGIN
    SELECT RAISE(ABORT, 'a line of an issued invoice is never replaced');
END;
CREATE TRIGGER issued_documents_are_never_replaced BEFORE INSERT ON invoice_documents
WHEN EXISTS (SELECT 1 FROM invoice_documents WHERE year = NEW.year AND serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'an issued document is never replaced');
END;
CREATE TRIGGER invoice_events_are_never_replaced BEFORE INSERT ON invoice_events
WHEN EXISTS (SELECT 1 FROM invoice_events WHERE id = NEW.id)
    OR (NEW.deed IN ('issued', 'voided') AND EXISTS (SELECT 1 FROM invoice_events e
        WHERE e.year = NEW.year AND e.serial = NEW.serial AND e.deed = NEW.deed))
BEGIN
    SELECT RAISE(ABORT, 'what was done with an invoice is never replaced');
END;

-- Lines are written before the document, and none after it.
CREATE TRIGGER issued_invoices_get_no_lines BEFORE INSERT ON invoice_lines
WHEN EXISTS (SELECT 1 FROM invoice_documents d WHERE d.year = NEW.year AND d.serial = NEW.serial)
BEGIN
    SELECT RAISE(ABORT, 'an issued invoice is never given another line; make a credit note');
END;

-- What is void stays so, and what was credited is never taken back.
CREATE TRIGGER credits_are_never_taken_back BEFORE UPDATE OF state, credited_subtotal, credited_total ON invoices
WHEN OLD.state = 'void' OR NEW.credited_subtotal < OLD.credited_subtotal OR NEW.credited_total < OLD.credited_total
BEGIN
    SELECT RAISE(ABORT, 'a credit note is never taken back; issue the month anew');
END;

-- Numbers are given one after the other.
CREATE TRIGGER numbers_begin_at_one_and_are_never_replaced BEFORE INSERT ON invoice_serials
WHEN NEW.serial <> 1 OR EXISTS (SELECT 1 FROM invoice_serials s WHERE s.year = NEW.year)
BEGIN
    SELECT RAISE(ABORT, 'a number is never skipped, given back or given again');
END;
CREATE TRIGGER numbers_have_no_gaps BEFORE UPDATE ON invoice_serials
WHEN NEW.year <> OLD.year OR NEW.serial <> OLD.serial + 1
BEGIN
    SELECT RAISE(ABORT, 'a number is never skipped, given back or given again');
END;
CREATE TRIGGER numbers_never_go BEFORE DELETE ON invoice_serials
BEGIN
    SELECT RAISE(ABORT, 'a number is never skipped, given back or given again');
END;

-- Requests that were refused for want of money or because of a limit, for the pages that show them. A key without an account has
-- account 0. These are counts for people to read; nothing is billed by them.
CREATE TABLE refusal_days (
    account_id INTEGER NOT NULL,
    day        INTEGER NOT NULL,
    key_id     INTEGER NOT NULL REFERENCES api_keys (id),
    code       TEXT    NOT NULL,
    refusals   INTEGER NOT NULL CHECK (refusals >= 0),
    last_at_ms INTEGER NOT NULL,
    PRIMARY KEY (account_id, day, key_id, code)
) STRICT, WITHOUT ROWID;

CREATE INDEX refusal_days_day ON refusal_days (day);

-- The busiest sixty seconds of each day, as the limits saw them.
CREATE TABLE peak_days (
    account_id     INTEGER NOT NULL REFERENCES accounts (id),
    day            INTEGER NOT NULL,
    requests       INTEGER NOT NULL,
    requests_at_ms INTEGER NOT NULL,
    tokens         INTEGER NOT NULL,
    tokens_at_ms   INTEGER NOT NULL,
    PRIMARY KEY (account_id, day)
) STRICT, WITHOUT ROWID;

-- What was done with billing accounts and keys in the portal, by whom.
CREATE TABLE account_events (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    account_id INTEGER REFERENCES accounts (id),
    key_id     INTEGER REFERENCES api_keys (id),
    deed       TEXT    NOT NULL,
    detail     TEXT    NOT NULL,
    by_id      INTEGER REFERENCES people (id),
    at_ms      INTEGER NOT NULL
) STRICT;

CREATE INDEX account_events_account ON account_events (account_id, id);
CREATE INDEX account_events_key ON account_events (key_id, id);

-- The keys of an account, and those that bill none.
CREATE INDEX api_keys_account ON api_keys (account_id);

CREATE TRIGGER account_events_never_change BEFORE UPDATE ON account_events
BEGIN
    SELECT RAISE(ABORT, 'the history of accounts is never changed');
END;
CREATE TRIGGER account_events_never_go BEFORE DELETE ON account_events
BEGIN
    SELECT RAISE(ABORT, 'the history of accounts is never changed');
END;
-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER account_events_are_never_replaced BEFORE INSERT ON account_events
WHEN EXISTS (SELECT 1 FROM account_events WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'the history of accounts is never changed');
END;
