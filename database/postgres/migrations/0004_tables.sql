-- +goose Up

-- The tables of the SQLite schema, as its migrations have made them, without those of the ledger. Times are microseconds
-- since the epoch, UTC, unless a column says otherwise.

CREATE TABLE accounts (
    id           TEXT PRIMARY KEY,
    email        TEXT NOT NULL,
    name         TEXT NOT NULL,
    admin        BOOLEAN NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('active', 'pending', 'disabled')),
    created_at   BIGINT NOT NULL,
    month_total  BIGINT CHECK (month_total >= 0), -- caps in tokens; NULL is unbounded
    day_total    BIGINT CHECK (day_total >= 0),
    month_input  BIGINT CHECK (month_input >= 0),
    month_output BIGINT CHECK (month_output >= 0),
    concurrency  BIGINT CHECK (concurrency >= 1) -- the highest that a holder can give to a key; NULL is the configured one
);

-- Email addresses are compared without regard to case.
CREATE UNIQUE INDEX accounts_email ON accounts (lower(email));

-- Columns that begin with operator_ hold what the operator has set: the holder of a key cannot exceed it. NULL leaves it
-- to the holder.
CREATE TABLE keys (
    id                    TEXT PRIMARY KEY,
    account_id            TEXT NOT NULL REFERENCES accounts (id),
    name                  TEXT NOT NULL,
    prefix                TEXT NOT NULL,
    secret_hash           BYTEA NOT NULL UNIQUE,
    state                 TEXT NOT NULL CHECK (state IN ('active', 'paused', 'revoked')),
    concurrency           BIGINT CHECK (concurrency >= 1),
    created_at            BIGINT NOT NULL,
    month_total           BIGINT CHECK (month_total >= 0),
    day_total             BIGINT CHECK (day_total >= 0),
    month_input           BIGINT CHECK (month_input >= 0),
    month_output          BIGINT CHECK (month_output >= 0),
    paused_by_operator    BOOLEAN NOT NULL DEFAULT false,
    operator_concurrency  BIGINT CHECK (operator_concurrency >= 1),
    operator_month_total  BIGINT CHECK (operator_month_total >= 0),
    operator_day_total    BIGINT CHECK (operator_day_total >= 0),
    operator_month_input  BIGINT CHECK (operator_month_input >= 0),
    operator_month_output BIGINT CHECK (operator_month_output >= 0),
    expires_at            BIGINT,
    operator_expires_at   BIGINT,
    models                TEXT, -- short ids, sorted, separated by commas; NULL is every model
    operator_models       TEXT
);

CREATE INDEX keys_account ON keys (account_id);
CREATE INDEX keys_prefix ON keys (prefix);

-- The secrets that a key had before its rotations. Each works until its time.
CREATE TABLE replaced_secrets (
    secret_hash BYTEA PRIMARY KEY,
    key_id      TEXT NOT NULL REFERENCES keys (id),
    prefix      TEXT NOT NULL,
    valid_until BIGINT NOT NULL
);

CREATE INDEX replaced_secrets_key ON replaced_secrets (key_id, valid_until);
CREATE INDEX replaced_secrets_prefix ON replaced_secrets (prefix);

-- A counter that triggers increment with every change of the three tables, by any process, so that a cached snapshot of
-- them can be validated by polling one row.
CREATE TABLE keys_revision (
    "only"   BIGINT PRIMARY KEY CHECK ("only" = 1),
    revision BIGINT NOT NULL
);

INSERT INTO keys_revision ("only", revision) VALUES (1, 1);

-- +goose StatementBegin
CREATE FUNCTION bump_keys_revision() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE "only" = 1;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER accounts_changed AFTER INSERT OR UPDATE OR DELETE ON accounts
    FOR EACH ROW EXECUTE FUNCTION bump_keys_revision();
CREATE TRIGGER keys_changed AFTER INSERT OR UPDATE OR DELETE ON keys
    FOR EACH ROW EXECUTE FUNCTION bump_keys_revision();
CREATE TRIGGER replaced_secrets_changed AFTER INSERT OR UPDATE OR DELETE ON replaced_secrets
    FOR EACH ROW EXECUTE FUNCTION bump_keys_revision();

-- When each key was last used, so that this is known without scanning the requests of earlier months.
CREATE TABLE key_uses (
    key_id TEXT PRIMARY KEY,
    time   BIGINT NOT NULL
);

-- Logins and records of the console. Passwords, invitations and sessions are stored as hashes only. Every change of a
-- password increments its generation: a session, and a browser that an account is known by, are valid only with theirs.
CREATE TABLE passwords (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    hash       TEXT NOT NULL, -- argon2id, in the PHC string format
    changed_at BIGINT NOT NULL,
    generation BIGINT NOT NULL DEFAULT 1
);

CREATE TABLE invitations (
    token_hash BYTEA PRIMARY KEY,
    account_id TEXT NOT NULL UNIQUE REFERENCES accounts (id), -- a new invitation replaces the previous one
    expires_at BIGINT NOT NULL
);

CREATE TABLE sessions (
    token_hash          BYTEA PRIMARY KEY,
    account_id          TEXT NOT NULL REFERENCES accounts (id),
    created_at          BIGINT NOT NULL,
    expires_at          BIGINT NOT NULL,
    password_generation BIGINT NOT NULL DEFAULT 1
);

CREATE INDEX sessions_account ON sessions (account_id);

CREATE TABLE known_browsers (
    token_hash          BYTEA PRIMARY KEY,
    account_id          TEXT NOT NULL REFERENCES accounts (id),
    password_generation BIGINT NOT NULL,
    used_at             BIGINT NOT NULL -- time of the latest sign-in
);

CREATE INDEX known_browsers_account ON known_browsers (account_id, used_at);

-- The purpose that an applicant for access has given. The account is pending until an administrator decides.
CREATE TABLE access_requests (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    purpose    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    network    TEXT NOT NULL DEFAULT '' -- that the request came from, to limit the open ones of each; empty if unknown
);

-- Audit log. A row outlives the accounts and keys it refers to, so it stores their names as text.
CREATE TABLE audit (
    id      TEXT PRIMARY KEY,
    time    BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);

CREATE INDEX audit_time ON audit (time);
CREATE INDEX audit_actor ON audit (actor, time);
CREATE INDEX audit_action ON audit (action, time);
CREATE INDEX audit_subject ON audit (subject, time);

CREATE TABLE feedback (
    id         TEXT PRIMARY KEY,
    time       BIGINT NOT NULL,
    account_id TEXT NOT NULL, -- empty if the user was not signed in
    page       TEXT NOT NULL,
    request_id TEXT NOT NULL,
    message    TEXT NOT NULL,
    status     TEXT NOT NULL DEFAULT 'open', -- open, in progress, done or declined
    reply      TEXT NOT NULL DEFAULT '',
    replied_by TEXT NOT NULL DEFAULT '', -- the administrator's address
    replied_at BIGINT NOT NULL DEFAULT 0, -- 0 if there is no reply
    reply_read BOOLEAN NOT NULL DEFAULT false -- the account has opened its feedback since
);

CREATE INDEX feedback_time ON feedback (time);
CREATE INDEX feedback_account ON feedback (account_id, time);

-- How long each boot of a backend took, to estimate the next.
CREATE TABLE boots (
    model    TEXT NOT NULL,
    backend  TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    took_us  BIGINT NOT NULL CHECK (took_us >= 0)
);

CREATE INDEX boots_backend ON boots (model, backend, ended_at);

-- Warm windows of models, in addition to those in the configuration.
CREATE TABLE model_windows (
    id        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    model     TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    ends_at   BIGINT NOT NULL,
    CHECK (ends_at > begins_at)
);

-- Commands for the running gateway, written by the CLI and deleted when executed.
CREATE TABLE model_orders (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    model      TEXT NOT NULL,
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop')),
    given_at   BIGINT NOT NULL
);

-- When each model was first configured; clients see it as the model's time of creation.
CREATE TABLE known_models (
    id            TEXT PRIMARY KEY,
    first_seen_at BIGINT NOT NULL
);

-- What each backend has reported about itself, for the requests that are judged before it is started again. source is a
-- hash of the configuration that determines which server answers: the report of another source is outdated. A context or
-- a version that the backend did not report is 0 or empty; special_tokens is NULL if it is not known.
CREATE TABLE backend_reports (
    model          TEXT NOT NULL,
    backend        TEXT NOT NULL,
    source         BYTEA NOT NULL,
    max_model_len  BIGINT NOT NULL,
    version        TEXT NOT NULL,
    special_tokens BIGINT,
    PRIMARY KEY (model, backend)
);

-- Prompts saved in the console's workbench. No other table holds text of prompts or completions.
CREATE TABLE prompts (
    id             TEXT PRIMARY KEY,
    account_id     TEXT NOT NULL REFERENCES accounts (id),
    name           TEXT NOT NULL,
    model          TEXT NOT NULL,
    version        BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    content_id     TEXT NOT NULL DEFAULT '',
    document_bytes BIGINT NOT NULL DEFAULT 0,
    bytes          BIGINT NOT NULL DEFAULT 0, -- of the document and the searchable text
    share_id       TEXT NOT NULL DEFAULT ''   -- of the link by which other users read the prompt; empty if there is none
);

CREATE INDEX prompts_account ON prompts (account_id, updated_at);
CREATE UNIQUE INDEX prompts_share ON prompts (share_id) WHERE share_id <> '';

-- The content of saved prompts, in rows of at most 64 KiB: the document followed by its searchable text.
CREATE TABLE prompt_chunks (
    content_id TEXT NOT NULL,
    n          BIGINT NOT NULL, -- from 0
    data       BYTEA NOT NULL,
    PRIMARY KEY (content_id, n)
);

-- Contents that no prompt refers to: they are being written, or have been replaced or deleted. What is left of them after
-- the time is deleted.
CREATE TABLE prompt_leftovers (
    content_id   TEXT PRIMARY KEY,
    delete_after BIGINT NOT NULL
);

-- What the operator's overview shows of the last day: figures and events, one row for each hour, by the Unix time at which
-- the hour begins. The data is compressed; package history describes it.
CREATE TABLE history_hours (
    hour BIGINT PRIMARY KEY,
    data BYTEA NOT NULL
);

-- Requests of known accounts that were refused before a reservation, so they have no row in requests and cost nothing.
-- They are sampled, and the oldest are deleted, so these rows never add up to a figure: refusal_hours has the numbers.
CREATE TABLE refusals (
    seq        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
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
);

CREATE INDEX refusal_hours_period ON refusal_hours (period);

-- What only few requests have: a wait for a boot, or attempts besides a single one that succeeded.
CREATE TABLE request_details (
    request_id TEXT PRIMARY KEY,
    boot_us    BIGINT NOT NULL,
    attempts   TEXT NOT NULL -- JSON, in the encoding of package usage; empty if there is nothing to tell
);

-- Objects of the storage. One that is being written, or is to be deleted, belongs to no file; it is deleted soon after,
-- and at the next start at the latest.
CREATE TABLE objects (
    name  TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('writing', 'kept', 'deleted'))
);

CREATE INDEX objects_left ON objects (state) WHERE state <> 'kept';

-- Times are seconds since 1970, as clients see them, in this table and the following.
CREATE TABLE files (
    seq        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    purpose    TEXT NOT NULL,
    filename   TEXT NOT NULL,
    object     TEXT NOT NULL,
    bytes      BIGINT NOT NULL,
    sha256     BYTEA, -- NULL while the file grows
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    lines      BIGINT -- of an uploaded file; NULL for the results of a batch, whose lines the batch counts
);

CREATE INDEX files_account ON files (account_id, seq);
CREATE INDEX files_expiry ON files (expires_at);

CREATE TABLE batches (
    seq               BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    account_id        TEXT NOT NULL,
    key_id            TEXT NOT NULL,
    endpoint          TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    input_file_id     TEXT NOT NULL,
    output_file_id    TEXT,
    error_file_id     TEXT,
    output_keep       BIGINT,        -- seconds; NULL: the configured time
    status            TEXT NOT NULL,
    errors            TEXT,          -- the object with those of a failed validation; they may quote the file
    metadata          TEXT,          -- JSON
    models            TEXT NOT NULL, -- JSON: short ids, in the order of lines.model
    created_at        BIGINT NOT NULL,
    expires_at        BIGINT NOT NULL,
    in_progress_at    BIGINT,
    finalizing_at     BIGINT,
    completed_at      BIGINT,
    failed_at         BIGINT,
    expired_at        BIGINT,
    cancelling_at     BIGINT,
    cancelled_at      BIGINT,
    total             BIGINT NOT NULL,
    completed         BIGINT NOT NULL,
    failed            BIGINT NOT NULL,
    input_tokens      BIGINT NOT NULL,
    cached_tokens     BIGINT NOT NULL,
    output_tokens     BIGINT NOT NULL,
    reasoning_tokens  BIGINT NOT NULL
);

CREATE INDEX batches_account ON batches (account_id, seq);
CREATE INDEX batches_unfinished ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');

-- The lines of a batch that are not in one of its files yet, in the order in which they run.
CREATE TABLE batch_lines (
    batch    BIGINT NOT NULL,
    model    BIGINT NOT NULL, -- index in batches.models
    position BIGINT NOT NULL,
    "offset" BIGINT NOT NULL, -- in the input file, in bytes
    length   BIGINT NOT NULL, -- in bytes
    attempts BIGINT NOT NULL,
    PRIMARY KEY (batch, model, position)
);

-- What a client created with an idempotency key, or may create again without one. digest is the SHA-256 of the body.
CREATE TABLE idempotency (
    key_id     TEXT NOT NULL,
    token      TEXT NOT NULL,
    digest     BYTEA NOT NULL,
    object_id  TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (key_id, token)
);

CREATE INDEX idempotency_expiry ON idempotency (expires_at);
