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
