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
    CHECK (kind = 'credit_note' OR (credited_subtotal <= subtotal_minor AND credited_total <= total_minor))
) STRICT, WITHOUT ROWID;

CREATE INDEX invoices_account ON invoices (account_id, year, serial);
CREATE INDEX invoices_state ON invoices (state, currency, due_day);
CREATE INDEX invoices_of ON invoices (of_year, of_serial) WHERE of_year IS NOT NULL;

-- Sums by day now have the prices that they were made at, so that a month can be invoiced from them: a price that changed in
-- between has sums of its own.

ALTER TABLE usage_days RENAME TO unpriced_usage_days;
DROP INDEX usage_days_day;

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

INSERT INTO usage_days
    SELECT account_id, MIN(at_ms / 86400000, 2147483647), key_id, model, input_price_nanos, output_price_nanos,
           COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(cost_nanos)
    FROM ledger
    GROUP BY account_id, MIN(at_ms / 86400000, 2147483647), key_id, model, input_price_nanos, output_price_nanos;
DROP TABLE unpriced_usage_days;

-- Where an account's invoices go.
ALTER TABLE accounts ADD COLUMN billing_address TEXT NOT NULL DEFAULT '';
ALTER TABLE accounts ADD COLUMN billing_email TEXT NOT NULL DEFAULT '';

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
BEGIN
    SELECT RAISE(ABORT, 'what was done with an invoice is never replaced');
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
