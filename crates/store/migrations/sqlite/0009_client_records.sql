-- Client records, who may look at them by whose they are, and what was decided each time somebody asked.

-- Numbers count up from 1001 and are never given twice. `sort_name` is the name without case and accents. Where there is no
-- entry, `last_entry_at_ms` is the smallest number there is, so that such clients come last. What lists show of the entries
-- is counted here with every change of one.
CREATE TABLE clients (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT    NOT NULL,
    sort_name        TEXT    NOT NULL,
    contact          TEXT    NOT NULL,
    email            TEXT    NOT NULL,
    telephone        TEXT    NOT NULL,
    address          TEXT    NOT NULL,
    since_day        INTEGER,
    owner_id         INTEGER NOT NULL REFERENCES people (id),
    version          INTEGER NOT NULL CHECK (version >= 1),
    created_at_ms    INTEGER NOT NULL,
    archived_at_ms   INTEGER,
    is_archived      INTEGER NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    last_entry_at_ms INTEGER NOT NULL,
    meeting_notes    INTEGER NOT NULL,
    billing_disputes INTEGER NOT NULL,
    draft_letters    INTEGER NOT NULL,
    open_disputes    INTEGER NOT NULL,
    open_letters     INTEGER NOT NULL,
    archived_entries INTEGER NOT NULL
) STRICT;

-- Each order of the list, for all clients and for those of one owner.
CREATE INDEX clients_number ON clients (is_archived, id);
CREATE INDEX clients_number_of_owner ON clients (owner_id, is_archived, id);
CREATE INDEX clients_recent ON clients (is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_recent_of_owner ON clients (owner_id, is_archived, last_entry_at_ms DESC, id);
CREATE INDEX clients_name ON clients (is_archived, sort_name, id);
CREATE INDEX clients_name_of_owner ON clients (owner_id, is_archived, sort_name, id);

-- How many clients each person has, so that a page need not count them.
CREATE TABLE client_counts (
    owner_id    INTEGER NOT NULL REFERENCES people (id),
    is_archived INTEGER NOT NULL,
    clients     INTEGER NOT NULL,
    PRIMARY KEY (owner_id, is_archived)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER client_is_counted AFTER INSERT ON clients
BEGIN
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

CREATE TRIGGER client_is_counted_elsewhere AFTER UPDATE ON clients
WHEN OLD.owner_id <> NEW.owner_id OR OLD.is_archived <> NEW.is_archived
BEGIN
    UPDATE client_counts SET clients = clients - 1
        WHERE owner_id = OLD.owner_id AND is_archived = OLD.is_archived;
    INSERT INTO client_counts VALUES (NEW.owner_id, NEW.is_archived, 1)
        ON CONFLICT (owner_id, is_archived) DO UPDATE SET clients = clients + 1;
END;

-- Every version of a client's facts, the present one included. Without a person: the command line.
CREATE TABLE client_versions (
    client_id   INTEGER NOT NULL REFERENCES clients (id),
    version     INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    contact     TEXT    NOT NULL,
    email       TEXT    NOT NULL,
    telephone   TEXT    NOT NULL,
    address     TEXT    NOT NULL,
    since_day   INTEGER,
    owner_id    INTEGER NOT NULL REFERENCES people (id),
    is_archived INTEGER NOT NULL,
    by_id       INTEGER REFERENCES people (id),
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (client_id, version)
) STRICT, WITHOUT ROWID;

-- What a client is found by: words without case and accents. The owner and whether it is archived are those of the client,
-- so that a search reads no more than what it may show.
CREATE TABLE client_words (
    client_id   INTEGER NOT NULL REFERENCES clients (id),
    word        TEXT    NOT NULL,
    owner_id    INTEGER NOT NULL,
    is_archived INTEGER NOT NULL,
    PRIMARY KEY (client_id, word)
) STRICT, WITHOUT ROWID;

CREATE INDEX client_words_of_all ON client_words (is_archived, word, client_id);
CREATE INDEX client_words_of_owner ON client_words (owner_id, is_archived, word, client_id);

CREATE TABLE entries (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    client_id      INTEGER NOT NULL REFERENCES clients (id),
    kind           TEXT    NOT NULL CHECK (kind IN ('meeting_note', 'billing_dispute', 'draft_letter')),
    at_ms          INTEGER NOT NULL,
    author_id      INTEGER NOT NULL REFERENCES people (id),
    is_open        INTEGER NOT NULL CHECK (NOT is_open OR kind <> 'meeting_note'),
    version        INTEGER NOT NULL CHECK (version >= 1),
    archived_at_ms INTEGER,
    is_archived    INTEGER NOT NULL CHECK (is_archived = (archived_at_ms IS NOT NULL)),
    title          TEXT    NOT NULL,
    text           TEXT    NOT NULL
) STRICT;

CREATE INDEX entries_timeline ON entries (client_id, is_archived, at_ms DESC, id DESC);
CREATE INDEX entries_timeline_of_kind ON entries (client_id, is_archived, kind, at_ms DESC, id DESC, is_open);

-- Every version of an entry, the present one included.
CREATE TABLE entry_versions (
    entry_id      INTEGER NOT NULL REFERENCES entries (id),
    version       INTEGER NOT NULL,
    at_ms         INTEGER NOT NULL,
    is_open       INTEGER NOT NULL,
    is_archived   INTEGER NOT NULL,
    by_id         INTEGER REFERENCES people (id),
    changed_at_ms INTEGER NOT NULL,
    title         TEXT    NOT NULL,
    text          TEXT    NOT NULL,
    PRIMARY KEY (entry_id, version)
) STRICT;

-- AUTOINCREMENT goes on from here.
INSERT INTO sqlite_sequence (name, seq) VALUES ('clients', 1000), ('entries', 0);

-- Who has opened a record, so that its page need not look through the audit.
CREATE TABLE client_looks (
    client_id  INTEGER NOT NULL REFERENCES clients (id),
    person_id  INTEGER NOT NULL REFERENCES people (id),
    last_at_ms INTEGER NOT NULL,
    times      INTEGER NOT NULL,
    PRIMARY KEY (client_id, person_id)
) STRICT, WITHOUT ROWID;

-- Each process links its decisions into a chain, like the rows of the ledger.
CREATE TABLE audit_writers (
    id        INTEGER PRIMARY KEY,
    row_count INTEGER NOT NULL CHECK (row_count >= 0),
    head      BLOB    NOT NULL CHECK (length(head) = 32)
) STRICT;

-- A decision (`action`, `decision`), with what it changed about somebody's access, or an event by itself: a sign-in, say.
-- Numbers that are no client's are asked for too, so `client_id` refers to nothing.
CREATE TABLE audit_rows (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms      INTEGER NOT NULL,
    asker      TEXT    NOT NULL CHECK (asker IN ('consultant', 'partner', 'operator', 'visitor')),
    person_id  INTEGER REFERENCES people (id),
    action     TEXT,
    client_id  INTEGER,
    request_id TEXT    NOT NULL,
    decision   TEXT    CHECK (decision IN ('allowed', 'refused')),
    event      TEXT,
    subject_id INTEGER REFERENCES people (id),
    old_role   TEXT    CHECK (old_role IN ('consultant', 'partner')),
    new_role   TEXT    CHECK (new_role IN ('consultant', 'partner')),
    ip_address TEXT,
    writer_id  INTEGER NOT NULL,
    place      INTEGER NOT NULL CHECK (place >= 0),
    hash       BLOB    NOT NULL CHECK (length(hash) = 32),
    UNIQUE (writer_id, place),
    CONSTRAINT only_the_command_line_and_visitors_are_nobody
        CHECK ((asker IN ('operator', 'visitor')) = (person_id IS NULL)),
    CONSTRAINT a_row_is_a_decision_or_an_event
        CHECK ((action IS NULL) = (decision IS NULL) AND (action IS NOT NULL OR event IS NOT NULL)),
    -- What the hash of a row of its kind does not cover cannot be there.
    CONSTRAINT a_row_has_no_other_kinds_columns
        CHECK ((action IS NULL OR ip_address IS NULL) AND (action IS NOT NULL OR client_id IS NULL)
            AND (event IS NOT NULL OR (subject_id IS NULL AND old_role IS NULL AND new_role IS NULL)))
) STRICT;

CREATE INDEX audit_rows_at ON audit_rows (at_ms, id);
CREATE INDEX audit_rows_client ON audit_rows (client_id, at_ms, id);
CREATE INDEX audit_rows_person ON audit_rows (person_id, at_ms, id);

CREATE TRIGGER audit_is_never_updated BEFORE UPDATE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never changed');
END;

CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit_rows
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never removed');
END;

-- INSERT OR REPLACE removes the old row without firing the trigger above.
CREATE TRIGGER audit_is_never_replaced BEFORE INSERT ON audit_rows
WHEN EXISTS (SELECT 1 FROM audit_rows WHERE id = NEW.id)
    OR EXISTS (SELECT 1 FROM audit_rows WHERE writer_id = NEW.writer_id AND place = NEW.place)
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only: rows are never replaced');
END;
