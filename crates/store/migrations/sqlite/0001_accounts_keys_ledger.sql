-- Times are milliseconds since 1970 UTC, money is nano-units of the currency; both are whole numbers.

CREATE TABLE accounts (
    id               INTEGER PRIMARY KEY,
    name             TEXT    NOT NULL UNIQUE,
    requests_per_min INTEGER NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   INTEGER NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    INTEGER NOT NULL,
    closed_at_ms     INTEGER
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

-- Request ids begin with the time, so rows are appended in the order of their only copy.
CREATE TABLE ledger (
    request_id         TEXT    NOT NULL PRIMARY KEY CHECK (request_id <> ''),
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
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = input_tokens * input_price_nanos + output_tokens * output_price_nanos)
) STRICT, WITHOUT ROWID;

CREATE INDEX ledger_account_at ON ledger (account_id, at_ms);

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
BEGIN
    SELECT RAISE(IGNORE);
END;
