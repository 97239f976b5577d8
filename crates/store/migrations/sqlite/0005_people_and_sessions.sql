-- The people of the portal, their sessions, and sign-ins under way.

-- Who somebody is, issuer and subject say together; two people may have one address.
CREATE TABLE people (
    id            INTEGER PRIMARY KEY,
    issuer        TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    email         TEXT    NOT NULL,
    role          TEXT    NOT NULL CHECK (role IN ('consultant', 'partner')),
    joined_at_ms  INTEGER NOT NULL,
    removed_at_ms INTEGER,
    UNIQUE (issuer, subject)
) STRICT;

CREATE INDEX people_email ON people (email);

-- Of a session's token only a hash is kept.
CREATE TABLE sessions (
    id              INTEGER PRIMARY KEY,
    token_hash      BLOB    NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    person_id       INTEGER NOT NULL REFERENCES people (id),
    started_at_ms   INTEGER NOT NULL,
    last_used_at_ms INTEGER NOT NULL,
    place           TEXT    NOT NULL,
    browser         TEXT    NOT NULL
) STRICT;

CREATE INDEX sessions_person ON sessions (person_id);

-- From the button until the browser comes back from the identity provider. Taken once.
CREATE TABLE sign_ins (
    token_hash    BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    state         TEXT    NOT NULL,
    nonce         TEXT    NOT NULL,
    pkce_verifier TEXT    NOT NULL,
    return_to     TEXT    NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_ins_expiry ON sign_ins (expires_at_ms);

-- Back from the identity provider, until the code from the mail is typed. The last time is that of a letter that the mail
-- server took; without one there was none. The next letter may go out when its time has come.
CREATE TABLE half_sign_ins (
    token_hash         BLOB    NOT NULL PRIMARY KEY CHECK (length(token_hash) = 32),
    issuer             TEXT    NOT NULL,
    subject            TEXT    NOT NULL,
    email              TEXT    NOT NULL,
    return_to          TEXT    NOT NULL,
    code_hash          BLOB    NOT NULL CHECK (length(code_hash) = 32),
    code_expires_at_ms INTEGER NOT NULL,
    wrong_tries        INTEGER NOT NULL,
    codes_sent         INTEGER NOT NULL,
    last_sent_at_ms    INTEGER,
    next_letter_at_ms  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX half_sign_ins_identity ON half_sign_ins (issuer, subject);
CREATE INDEX half_sign_ins_expiry ON half_sign_ins (code_expires_at_ms);
