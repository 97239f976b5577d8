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
