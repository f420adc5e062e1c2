-- +goose Up

-- Requests in flight that are on disk: inserted when a request has run for a while, updated by checkpoints, and deleted
-- by the transaction that inserts its row into requests.
CREATE TABLE inflight (
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
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL
) WITHOUT ROWID;

INSERT INTO inflight
    SELECT request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
        prompt_tokens, completion_tokens
    FROM requests WHERE state = 'in_flight';

-- One row per request that has ended, inserted once. Rows are inserted in the order of seq, whatever their times are,
-- and no seq is used twice (AUTOINCREMENT), so the rows after a given seq are those inserted later. The table is copied
-- because rows have no number of their own that a VACUUM keeps. The indexes are made afterwards, because sorting is
-- faster than inserting.
ALTER TABLE requests RENAME TO requests_before;
DROP INDEX requests_time;
DROP INDEX requests_account;
DROP INDEX requests_open;

CREATE TABLE requests (
    seq               INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id        TEXT NOT NULL,
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
    state             TEXT NOT NULL CHECK (state IN ('settled', 'interrupted')),
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    queue_us          BIGINT NOT NULL,
    first_token_us    BIGINT NOT NULL,
    total_us          BIGINT NOT NULL
);

INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
        status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us)
    SELECT request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
        status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us
    FROM requests_before WHERE state <> 'in_flight' ORDER BY rowid;

DROP TABLE requests_before;

CREATE UNIQUE INDEX requests_id ON requests (request_id);
CREATE INDEX requests_time ON requests (time);
CREATE INDEX requests_account ON requests (account_id, time);
CREATE INDEX requests_failed ON requests (account_id, time) WHERE code <> '' OR state = 'interrupted';

-- Rollups: sums of the rows of requests up to the watermark, by hour, day or month, UTC. They can be made again from the
-- rows at any time.

-- corrections counts the changes of rows that were made after their insertion.
CREATE TABLE usage_watermark (
    only        BIGINT PRIMARY KEY CHECK (only = 1),
    seq         BIGINT NOT NULL, -- the last row of requests that the rollups include
    corrections BIGINT NOT NULL
);

INSERT INTO usage_watermark (only, seq, corrections) VALUES (1, 0, 0);

-- What the requests of one rollup have in common, but for the period and the user tag.
CREATE TABLE usage_series (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    model      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    workload   TEXT NOT NULL,
    UNIQUE (account_id, key_id, model, endpoint, workload)
);

-- period counts hours from the epoch. latency holds histograms, in the encoding of package usage.
CREATE TABLE usage_hours (
    series            BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    latency           BLOB NOT NULL,
    PRIMARY KEY (series, period)
) WITHOUT ROWID;

-- period counts days from the epoch.
CREATE TABLE usage_days (
    series            BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    latency           BLOB NOT NULL,
    PRIMARY KEY (series, period)
) WITHOUT ROWID;

-- User tags have rollups of their own, by key alone: clients choose them, so there may be as many as requests.
CREATE TABLE usage_keys (
    id         INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    UNIQUE (account_id, key_id)
);

CREATE TABLE usage_tags (
    id  INTEGER PRIMARY KEY,
    tag TEXT NOT NULL UNIQUE
);

-- period counts days from the epoch; tag is 0 for the tags beyond the limit of those that have rows of their own.
CREATE TABLE usage_tag_days (
    key               BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    tag               BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (key, period, tag)
) WITHOUT ROWID;

-- period counts months from January of the year 0.
CREATE TABLE usage_tag_months (
    key               BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    tag               BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (key, period, tag)
) WITHOUT ROWID;
