-- Sums by day now have the prices that they were made at, so that a month can be invoiced from them: a price that changed in
-- between has sums of its own.

DROP TABLE usage_days;

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

INSERT INTO usage_days
    SELECT account_id, LEAST(at_ms / 86400000, 2147483647), key_id, model, input_price_nanos, output_price_nanos,
           COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(cost_nanos)
    FROM ledger
    GROUP BY account_id, LEAST(at_ms / 86400000, 2147483647), key_id, model, input_price_nanos, output_price_nanos;

-- Where an account's invoices go.
ALTER TABLE accounts ADD COLUMN billing_address TEXT NOT NULL DEFAULT '';
ALTER TABLE accounts ADD COLUMN billing_email TEXT NOT NULL DEFAULT '';

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
