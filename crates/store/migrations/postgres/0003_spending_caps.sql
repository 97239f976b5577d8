-- What an account may spend in a calendar month (UTC), and what requests under way have set aside of it.

ALTER TABLE accounts ADD COLUMN spend_per_month_nanos BIGINT CHECK (spend_per_month_nanos >= 0);

-- A month is the number of its first day. What is set aside is either settled with the ledger's row or given back;
-- when the process that set it aside is dead, or the time is up, anybody may remove it.
CREATE TABLE spending_reservations (
    request_id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    account_id    BIGINT NOT NULL REFERENCES accounts (id),
    month         BIGINT NOT NULL,
    amount_nanos  BIGINT NOT NULL CHECK (amount_nanos >= 0),
    writer_id     BIGINT NOT NULL,
    expires_at_ms BIGINT NOT NULL
);

CREATE INDEX spending_reservations_account ON spending_reservations (account_id, month);

-- A process that holds something for its requests says here that it lives.
CREATE TABLE writer_leases (
    writer_id      BIGINT PRIMARY KEY,
    alive_until_ms BIGINT NOT NULL
);

-- Sets the amount aside if what was spent and set aside in the month leaves room for it. Whoever comes second waits for
-- the account's row, and then sees what the first has set aside: each statement of a function looks anew.
CREATE FUNCTION reserve_spending(
    request TEXT, account BIGINT, first_day BIGINT, last_day BIGINT, amount BIGINT, writer BIGINT, expires_ms BIGINT
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM accounts WHERE id = account FOR NO KEY UPDATE;
    INSERT INTO spending_reservations (request_id, account_id, month, amount_nanos, writer_id, expires_at_ms)
        SELECT request, a.id, first_day, amount, writer, expires_ms FROM accounts a
        WHERE a.id = account AND a.spend_per_month_nanos - amount >=
            COALESCE((SELECT SUM(u.cost_nanos) FROM usage_days u
                      WHERE u.account_id = account AND u.day BETWEEN first_day AND last_day), 0)
            + COALESCE((SELECT SUM(r.amount_nanos) FROM spending_reservations r
                        WHERE r.account_id = account AND r.month = first_day), 0);
    RETURN FOUND;
END;
$$;
