-- Each writer links its rows into a chain: a row has its place there and a hash over itself and the row before. The
-- chain's end is kept apart, so that rows missing at the end are missed too. Sums by day are kept with the rows.

CREATE TABLE ledger_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- In the order in which rows are written and verified.
CREATE TABLE chained_ledger (
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

-- Rows from before the chains belong to writer 0 and have no hash to speak of: only their number, costs and sums are
-- verified.
INSERT INTO chained_ledger
    SELECT ledger.*, 0, ROW_NUMBER() OVER (ORDER BY request_id) - 1, zeroblob(32) FROM ledger;
INSERT INTO ledger_writers SELECT 0, COUNT(*), zeroblob(32) FROM chained_ledger HAVING COUNT(*) > 0;

DROP TABLE ledger;
ALTER TABLE chained_ledger RENAME TO ledger;

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

-- A day is days since 1970 UTC.
CREATE TABLE usage_days (
    account_id    INTEGER NOT NULL REFERENCES accounts (id),
    day           INTEGER NOT NULL,
    key_id        INTEGER NOT NULL REFERENCES api_keys (id),
    model         TEXT    NOT NULL,
    requests      INTEGER NOT NULL CHECK (requests >= 0),
    input_tokens  INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens INTEGER NOT NULL CHECK (output_tokens >= 0),
    cost_nanos    INTEGER NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model)
) STRICT, WITHOUT ROWID;

CREATE INDEX usage_days_day ON usage_days (day);

INSERT INTO usage_days
    SELECT account_id, at_ms / 86400000, key_id, model,
           COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(cost_nanos)
    FROM ledger GROUP BY account_id, at_ms / 86400000, key_id, model;
