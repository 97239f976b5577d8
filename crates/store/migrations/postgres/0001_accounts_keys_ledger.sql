-- Times are milliseconds since 1970 UTC, money is nano-units of the currency; both are whole numbers. Text is compared
-- byte by byte (COLLATE "C"), so that lists come in the same order on every server and on SQLite.

CREATE TABLE accounts (
    id               BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name             TEXT COLLATE "C" NOT NULL UNIQUE,
    requests_per_min BIGINT NOT NULL CHECK (requests_per_min >= 0),
    tokens_per_min   BIGINT NOT NULL CHECK (tokens_per_min >= 0),
    created_at_ms    BIGINT NOT NULL,
    closed_at_ms     BIGINT
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
    CONSTRAINT ledger_cost_is_tokens_times_prices
        CHECK (cost_nanos = input_tokens * input_price_nanos + output_tokens * output_price_nanos)
);

CREATE INDEX ledger_account_at ON ledger (account_id, at_ms);

CREATE FUNCTION refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: rows are never changed or removed';
END;
$$;

CREATE TRIGGER ledger_is_never_changed BEFORE UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION refuse_ledger_change();

CREATE TRIGGER ledger_is_never_emptied BEFORE TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change();
