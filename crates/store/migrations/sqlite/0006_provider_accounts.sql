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
