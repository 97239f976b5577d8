-- What an account may spend in a calendar month (UTC), and what requests under way have set aside of it.

ALTER TABLE accounts ADD COLUMN spend_per_month_nanos INTEGER CHECK (spend_per_month_nanos >= 0);

-- A month is the number of its first day. What is set aside is either settled with the ledger's row or given back;
-- when the process that set it aside is dead, or the time is up, anybody may remove it.
CREATE TABLE spending_reservations (
    request_id    TEXT    NOT NULL PRIMARY KEY,
    account_id    INTEGER NOT NULL REFERENCES accounts (id),
    month         INTEGER NOT NULL,
    amount_nanos  INTEGER NOT NULL CHECK (amount_nanos >= 0),
    writer_id     INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);

-- A process that holds something for its requests says here that it lives.
CREATE TABLE writer_leases (
    writer_id      INTEGER PRIMARY KEY,
    alive_until_ms INTEGER NOT NULL
) STRICT;
