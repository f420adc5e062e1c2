-- +goose Up

-- What the operator has set for a key. The holder of the key cannot resume a key that the operator has paused, and cannot
-- exceed a limit of the operator; NULL leaves the limit to the holder.
ALTER TABLE keys ADD COLUMN paused_by_operator BOOLEAN NOT NULL DEFAULT false;
ALTER TABLE keys ADD COLUMN operator_concurrency BIGINT CHECK (operator_concurrency >= 1);
ALTER TABLE keys ADD COLUMN operator_month_total BIGINT CHECK (operator_month_total >= 0);
ALTER TABLE keys ADD COLUMN operator_day_total BIGINT CHECK (operator_day_total >= 0);
ALTER TABLE keys ADD COLUMN operator_month_input BIGINT CHECK (operator_month_input >= 0);
ALTER TABLE keys ADD COLUMN operator_month_output BIGINT CHECK (operator_month_output >= 0);

-- The highest concurrency that a holder can give to a key of the account; NULL is the configured concurrency of a key.
ALTER TABLE accounts ADD COLUMN concurrency BIGINT CHECK (concurrency >= 1);

-- Existing keys: the audit log knows who has paused a key or changed its limits last. Unless that is the holder of the
-- key, or nobody is recorded, it counts as the operator.
UPDATE keys SET paused_by_operator = true
WHERE state = 'paused' AND (
    SELECT e.actor FROM audit e WHERE e.subject = keys.id AND e.action = 'pause key' ORDER BY e.time DESC, e.id DESC LIMIT 1
) IS DISTINCT FROM (
    SELECT a.email FROM accounts a WHERE a.id = keys.account_id AND NOT a.admin
);

UPDATE keys SET operator_concurrency = concurrency, operator_month_total = month_total, operator_day_total = day_total,
                operator_month_input = month_input, operator_month_output = month_output
WHERE (
    SELECT e.actor FROM audit e WHERE e.subject = keys.id AND e.action IN ('create key', 'change key')
    ORDER BY e.time DESC, e.id DESC LIMIT 1
) IS DISTINCT FROM (
    SELECT a.email FROM accounts a WHERE a.id = keys.account_id AND NOT a.admin
);

-- Every change of a password increments its generation. A session, and a browser that an account is known by, are valid
-- only with the generation that they were created with.
ALTER TABLE passwords ADD COLUMN generation BIGINT NOT NULL DEFAULT 1;
ALTER TABLE sessions ADD COLUMN password_generation BIGINT NOT NULL DEFAULT 1;

CREATE TABLE known_browsers (
    token_hash          BLOB PRIMARY KEY,
    account_id          TEXT NOT NULL REFERENCES accounts (id),
    password_generation BIGINT NOT NULL,
    used_at             BIGINT NOT NULL -- time of the latest sign-in
);

CREATE INDEX known_browsers_account ON known_browsers (account_id, used_at);

-- The network that a request for access came from, to limit the open requests of each network; empty if unknown.
ALTER TABLE access_requests ADD COLUMN network TEXT NOT NULL DEFAULT '';
