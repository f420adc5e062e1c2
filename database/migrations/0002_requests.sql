-- +goose Up

-- Caps in tokens; NULL is unbounded. The triggers on these tables do not name columns, so a changed cap increments the
-- revision.

ALTER TABLE accounts ADD COLUMN month_total BIGINT CHECK (month_total >= 0);
ALTER TABLE accounts ADD COLUMN day_total BIGINT CHECK (day_total >= 0);
ALTER TABLE accounts ADD COLUMN month_input BIGINT CHECK (month_input >= 0);
ALTER TABLE accounts ADD COLUMN month_output BIGINT CHECK (month_output >= 0);

ALTER TABLE keys ADD COLUMN month_total BIGINT CHECK (month_total >= 0);
ALTER TABLE keys ADD COLUMN day_total BIGINT CHECK (day_total >= 0);
ALTER TABLE keys ADD COLUMN month_input BIGINT CHECK (month_input >= 0);
ALTER TABLE keys ADD COLUMN month_output BIGINT CHECK (month_output >= 0);

-- One row per request: inserted after it is admitted, or when it ends if that is soon, and completed when it ends. A row
-- outlives its key and its account.
CREATE TABLE requests (
    request_id        TEXT PRIMARY KEY,
    time              BIGINT NOT NULL,
    key_id            TEXT NOT NULL,
    account_id        TEXT NOT NULL,
    model             TEXT NOT NULL,
    backend           TEXT NOT NULL,
    endpoint          TEXT NOT NULL,
    workload          TEXT NOT NULL,
    user_tag          TEXT NOT NULL,
    stream            BOOLEAN NOT NULL,
    status            BIGINT NOT NULL,
    code              TEXT NOT NULL,
    state             TEXT NOT NULL CHECK (state IN ('in_flight', 'settled', 'interrupted')),
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    queue_us          BIGINT NOT NULL,
    first_token_us    BIGINT NOT NULL,
    total_us          BIGINT NOT NULL
);

CREATE INDEX requests_time ON requests (time);
CREATE INDEX requests_key ON requests (key_id, time);
CREATE INDEX requests_account ON requests (account_id, time);

-- Requests in flight, so that recovery after a crash finds them without a scan.
CREATE INDEX requests_open ON requests (request_id) WHERE state = 'in_flight';
