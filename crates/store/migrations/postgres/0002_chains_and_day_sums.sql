-- Each writer links its rows into a chain: a row has its place there and a hash over itself and the row before. The
-- chain's end is kept apart, so that rows missing at the end are missed too. Sums by day are kept with the rows.

CREATE TABLE ledger_writers (
    id        BIGINT PRIMARY KEY,
    row_count BIGINT NOT NULL CHECK (row_count >= 0),
    head      BYTEA  NOT NULL CHECK (octet_length(head) = 32)
);

ALTER TABLE ledger RENAME TO unchained_ledger;
ALTER TABLE unchained_ledger RENAME CONSTRAINT ledger_pkey TO unchained_ledger_pkey;

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

-- Rows from before the chains belong to writer 0 and have no hash to speak of: only their number, costs and sums are
-- verified.
INSERT INTO ledger
    SELECT unchained_ledger.*, 0, ROW_NUMBER() OVER (ORDER BY request_id) - 1, decode(repeat('00', 32), 'hex')
    FROM unchained_ledger;
INSERT INTO ledger_writers
    SELECT 0, COUNT(*), decode(repeat('00', 32), 'hex') FROM unchained_ledger HAVING COUNT(*) > 0;
DROP TABLE unchained_ledger;

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

-- A day is days since 1970 UTC. Pages are left with room, so that a sum can change in place.
CREATE TABLE usage_days (
    account_id    BIGINT NOT NULL REFERENCES accounts (id),
    day           BIGINT NOT NULL,
    key_id        BIGINT NOT NULL REFERENCES api_keys (id),
    model         TEXT COLLATE "C" NOT NULL,
    requests      BIGINT NOT NULL CHECK (requests >= 0),
    input_tokens  BIGINT NOT NULL CHECK (input_tokens >= 0),
    output_tokens BIGINT NOT NULL CHECK (output_tokens >= 0),
    cost_nanos    BIGINT NOT NULL CHECK (cost_nanos >= 0),
    PRIMARY KEY (account_id, day, key_id, model)
) WITH (fillfactor = 80);

CREATE INDEX usage_days_day ON usage_days (day);

INSERT INTO usage_days
    SELECT account_id, at_ms / 86400000, key_id, model,
           COUNT(*), SUM(input_tokens), SUM(output_tokens), SUM(cost_nanos)
    FROM ledger GROUP BY account_id, at_ms / 86400000, key_id, model;

-- A settlement is one statement. Where one of its parts finds that it must not happen, this undoes the others.
CREATE FUNCTION undo_settlement(why TEXT) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'CH001', MESSAGE = why;
END;
$$;
