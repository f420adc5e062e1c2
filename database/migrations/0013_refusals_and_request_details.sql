-- +goose Up

-- Requests of known accounts that were refused before a reservation, so they have no row in requests and cost nothing.
-- They are sampled, and the oldest are deleted, so these rows never add up to a figure: refusal_hours has the numbers.
CREATE TABLE refusals (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL,
    time       BIGINT NOT NULL,
    key_id     TEXT NOT NULL,
    account_id TEXT NOT NULL,
    model      TEXT NOT NULL,
    backend    TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    workload   TEXT NOT NULL,
    user_tag   TEXT NOT NULL,
    stream     BOOLEAN NOT NULL,
    status     BIGINT NOT NULL,
    code       TEXT NOT NULL,
    queue_us   BIGINT NOT NULL,
    boot_us    BIGINT NOT NULL,
    total_us   BIGINT NOT NULL
);

CREATE INDEX refusals_time ON refusals (time);
CREATE INDEX refusals_account ON refusals (account_id, time);
CREATE INDEX refusals_id ON refusals (request_id);

-- How many requests were refused, whether they have a row in refusals or not. period counts hours from the epoch.
CREATE TABLE refusal_hours (
    account_id TEXT NOT NULL,
    period     BIGINT NOT NULL,
    code       TEXT NOT NULL,
    requests   BIGINT NOT NULL,
    PRIMARY KEY (account_id, period, code)
) WITHOUT ROWID;

CREATE INDEX refusal_hours_period ON refusal_hours (period);

-- What only few requests have: a wait for a boot, or attempts besides a single one that succeeded.
CREATE TABLE request_details (
    request_id TEXT PRIMARY KEY,
    boot_us    BIGINT NOT NULL,
    attempts   TEXT NOT NULL -- JSON, in the encoding of package usage; empty if there is nothing to tell
) WITHOUT ROWID;
