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
