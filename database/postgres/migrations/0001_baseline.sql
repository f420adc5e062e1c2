-- +goose Up

-- The schema of release 1.0.0 on PostgreSQL. Times are microseconds since the epoch, UTC, unless a column says otherwise.
-- database/migrations has the same tables for SQLite; what several gateways need beside them is only here. The ledger differs:
-- here it is the tables owner to settling and the functions ledger_*, which make all changes of these tables, so no gateway writes
-- them itself. docs/cluster-protocol.md describes the protocol.

-- ===== Accounts and keys: package identity =====

-- Caps are in tokens; NULL is unbounded.
CREATE TABLE accounts (
    id           TEXT PRIMARY KEY,
    email        TEXT NOT NULL,
    name         TEXT NOT NULL,
    admin        BOOLEAN NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('active', 'pending', 'disabled')),
    created_at   BIGINT NOT NULL,
    month_total  BIGINT CHECK (month_total >= 0),
    day_total    BIGINT CHECK (day_total >= 0),
    month_input  BIGINT CHECK (month_input >= 0),
    month_output BIGINT CHECK (month_output >= 0),
    concurrency  BIGINT CHECK (concurrency >= 1) -- the highest that a holder can give to a key; NULL is the configured one
);

-- Email addresses are compared without regard to case.
CREATE UNIQUE INDEX accounts_email ON accounts (lower(email));

-- Columns that begin with operator_ hold what the operator has set: the holder of a key cannot exceed it. NULL leaves it to the
-- holder.
CREATE TABLE keys (
    id                    TEXT PRIMARY KEY,
    account_id            TEXT NOT NULL REFERENCES accounts (id),
    name                  TEXT NOT NULL,
    prefix                TEXT NOT NULL,
    secret_hash           BYTEA NOT NULL UNIQUE,
    state                 TEXT NOT NULL CHECK (state IN ('active', 'paused', 'revoked')),
    paused_by_operator    BOOLEAN NOT NULL DEFAULT false, -- so the holder cannot resume it
    created_at            BIGINT NOT NULL,
    expires_at            BIGINT, -- NULL is never
    operator_expires_at   BIGINT,
    models                TEXT,   -- that it may use: short ids, sorted, separated by commas; NULL is every model
    operator_models       TEXT,
    concurrency           BIGINT CHECK (concurrency >= 1),
    operator_concurrency  BIGINT CHECK (operator_concurrency >= 1),
    month_total           BIGINT CHECK (month_total >= 0),
    day_total             BIGINT CHECK (day_total >= 0),
    month_input           BIGINT CHECK (month_input >= 0),
    month_output          BIGINT CHECK (month_output >= 0),
    operator_month_total  BIGINT CHECK (operator_month_total >= 0),
    operator_day_total    BIGINT CHECK (operator_day_total >= 0),
    operator_month_input  BIGINT CHECK (operator_month_input >= 0),
    operator_month_output BIGINT CHECK (operator_month_output >= 0)
);

CREATE INDEX keys_account ON keys (account_id);
CREATE INDEX keys_prefix ON keys (prefix);
-- The keys that count towards limits.keys_per_account, all keys in the order of lists, and those by which the operator has raised
-- an account's slots.
CREATE INDEX keys_live ON keys (account_id, expires_at) WHERE state <> 'revoked';
CREATE INDEX keys_listed ON keys (account_id, (state = 'revoked'), created_at, id);
CREATE INDEX keys_operator_concurrency ON keys (account_id, concurrency) WHERE operator_concurrency IS NOT NULL AND state = 'active';

-- The secrets that a key had before its rotations. Each works until its time.
CREATE TABLE replaced_secrets (
    secret_hash BYTEA PRIMARY KEY,
    key_id      TEXT NOT NULL REFERENCES keys (id),
    prefix      TEXT NOT NULL,
    valid_until BIGINT NOT NULL
);

CREATE INDEX replaced_secrets_key ON replaced_secrets (key_id, valid_until);
CREATE INDEX replaced_secrets_prefix ON replaced_secrets (prefix);

-- A counter that triggers increment with every change of the three tables, by any process, so that a cached snapshot of them can
-- be validated by polling one row.
CREATE TABLE keys_revision (
    "only"   BIGINT PRIMARY KEY CHECK ("only" = 1),
    revision BIGINT NOT NULL
);

INSERT INTO keys_revision ("only", revision) VALUES (1, 1);

-- What has changed with each revision, of the latest 10,000: a key, with its secrets, or an account. A cached snapshot reads only
-- what has changed.
CREATE TABLE key_changes (
    revision   BIGINT PRIMARY KEY,
    tag        TEXT NOT NULL DEFAULT gen_random_uuid(), -- tells apart databases that have had different changes
    key_id     TEXT,
    account_id TEXT
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- +goose StatementBegin
CREATE FUNCTION bump_keys_revision() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_row jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    v_revision bigint;
BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE "only" = 1 RETURNING revision INTO v_revision;
    INSERT INTO key_changes (revision, key_id, account_id) VALUES (v_revision,
        CASE TG_TABLE_NAME WHEN 'keys' THEN v_row ->> 'id' WHEN 'replaced_secrets' THEN v_row ->> 'key_id' END,
        CASE TG_TABLE_NAME WHEN 'accounts' THEN v_row ->> 'id' END);
    DELETE FROM key_changes WHERE revision = v_revision - 10000;
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

-- ===== Signing in to the console: package identity =====

-- Passwords, invitations and sessions are stored as hashes only. Every change of a password increments its generation: a session,
-- and a browser that an account is known by, are valid only with theirs.
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

-- Failed sign-ins of an account, a browser or a network; package identity describes the columns. A crash may forget them.
CREATE UNLOGGED TABLE sign_in_failures (
    kind     TEXT NOT NULL,
    subject  BYTEA NOT NULL, -- a hash
    failures DOUBLE PRECISION NOT NULL,
    counted  BIGINT NOT NULL,
    next     BIGINT NOT NULL,
    PRIMARY KEY (kind, subject)
) WITH (fillfactor = 50);

CREATE INDEX sign_in_failures_counted ON sign_in_failures (kind, counted);

-- The purpose that an applicant for access has given. The account is pending until an administrator decides.
CREATE TABLE access_requests (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    purpose    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    network    TEXT NOT NULL DEFAULT '' -- that the request came from, to limit the open ones of each; empty if unknown
);

-- ===== Records of the console: package console =====

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

-- A reply is shown to the account that sent the feedback.
CREATE TABLE feedback (
    id         TEXT PRIMARY KEY,
    time       BIGINT NOT NULL,
    account_id TEXT NOT NULL, -- empty if the user was not signed in
    page       TEXT NOT NULL,
    request_id TEXT NOT NULL,
    message    TEXT NOT NULL,
    status     TEXT NOT NULL DEFAULT 'open', -- open, in progress, done or declined
    reply      TEXT NOT NULL DEFAULT '',
    replied_by TEXT NOT NULL DEFAULT '',      -- the administrator's address
    replied_at BIGINT NOT NULL DEFAULT 0,     -- 0 if there is no reply
    reply_read BOOLEAN NOT NULL DEFAULT false -- the account has opened its feedback since
);

CREATE INDEX feedback_time ON feedback (time);
CREATE INDEX feedback_account ON feedback (account_id, time);

-- Prompts saved in the workbench. No other table holds text of prompts or completions.
CREATE TABLE prompts (
    id             TEXT PRIMARY KEY,
    account_id     TEXT NOT NULL REFERENCES accounts (id),
    name           TEXT NOT NULL,
    model          TEXT NOT NULL,
    version        BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    share_id       TEXT NOT NULL DEFAULT '',  -- of the link by which other users read the prompt; empty if there is none
    object         TEXT NOT NULL DEFAULT '',  -- of the storage, with the document; empty: the row has it
    document       BYTEA,                     -- JSON, in the workbench's format; NULL: the object has it
    words          BYTEA NOT NULL DEFAULT '', -- what a search finds: the different words, case-folded
    document_bytes BIGINT NOT NULL DEFAULT 0,
    bytes          BIGINT NOT NULL DEFAULT 0  -- of the document and the words
);

CREATE INDEX prompts_account ON prompts (account_id, updated_at);
CREATE UNIQUE INDEX prompts_share ON prompts (share_id) WHERE share_id <> '';

-- What happened to backends and budgets in the last day. Figures are in the memory of a gateway, or sums of the ledger's.
CREATE TABLE history_events (
    seq        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    time       BIGINT NOT NULL,
    gateway    TEXT NOT NULL, -- that has recorded it; empty if there is only one
    kind       TEXT NOT NULL,
    model      TEXT NOT NULL,
    backend    TEXT NOT NULL,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    detail     TEXT NOT NULL
);

CREATE INDEX history_events_time ON history_events (time);

-- ===== Models and backends: package fleet =====

-- When each model was first configured; clients see it as the model's time of creation.
CREATE TABLE known_models (
    id            TEXT PRIMARY KEY,
    first_seen_at BIGINT NOT NULL
);

-- What each backend has reported about itself, for the requests that are judged before it is started again. source is a hash of the
-- configuration that determines which server answers: the report of another source is outdated. A context or a version that the
-- backend did not report is 0 or empty; special_tokens is NULL if it is not known.
CREATE TABLE backend_reports (
    model          TEXT NOT NULL,
    backend        TEXT NOT NULL,
    source         BYTEA NOT NULL,
    max_model_len  BIGINT NOT NULL,
    version        TEXT NOT NULL,
    special_tokens BIGINT,
    PRIMARY KEY (model, backend)
);

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

-- Commands for the running gateways, written by the CLI and deleted when executed. One to a single backend is for the gateway that
-- holds its lease.
CREATE TABLE model_orders (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    model      TEXT NOT NULL,
    backend    TEXT NOT NULL DEFAULT '', -- '' for all of the model
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop', 'sleep')),
    given_at   BIGINT NOT NULL
);

-- The lifecycle of backends over several gateways. A gateway launches, wakes, stops or puts to sleep a backend only while it holds
-- the backend's lease: the row's operation, which names the gateway and its epoch. After the end of that epoch the operation waits
-- for another gateway to take it over.
CREATE TABLE backend_leases (
    model     TEXT NOT NULL,
    backend   TEXT NOT NULL,
    fence     BIGINT NOT NULL,                -- rises whenever a gateway gets or loses the lease; BASEGATE_FENCE of the programs
    gateway   INTEGER NOT NULL DEFAULT 0,
    epoch     BIGINT NOT NULL DEFAULT 0,
    operation TEXT NOT NULL DEFAULT '' CHECK (operation IN ('', 'launch', 'wake', 'stop', 'sleep')), -- '' after its end
    committed BOOLEAN NOT NULL DEFAULT false, -- of a stop or sleep: every gateway has drained, so it cannot be cancelled
    idle_us   BIGINT NOT NULL DEFAULT 0,      -- a stop or sleep that only a backend idle for so long may have; 0: an operator's
    reason    TEXT NOT NULL DEFAULT '',       -- of the operation, or of its failure
    began_at  BIGINT NOT NULL DEFAULT 0,
    deadline  BIGINT NOT NULL DEFAULT 0,      -- until then, what a gateway that has died has begun may still succeed
    outcome   TEXT NOT NULL DEFAULT '',       -- of the last operation: ready, failed, abandoned, stopped, slept or cancelled
    ended_at  BIGINT NOT NULL DEFAULT 0,
    held      BOOLEAN NOT NULL DEFAULT false, -- an operator has stopped it: no warm window starts it
    PRIMARY KEY (model, backend)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- What each gateway has last reported of its requests at each backend.
CREATE TABLE backend_uses (
    gateway   INTEGER NOT NULL,
    model     TEXT NOT NULL,
    backend   TEXT NOT NULL,
    epoch     BIGINT NOT NULL,
    used_at   BIGINT NOT NULL, -- when a request last began or ended; 0: never
    in_flight BIGINT NOT NULL,
    seen      BIGINT NOT NULL, -- the fence of the lease that the gateway acts on
    PRIMARY KEY (model, backend, gateway)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- ===== The ledger: package budget and budget/cluster =====

-- A gateway proves that it is alive by incrementing beat. Its epoch rises whenever it starts, leaves or is reaped; calls with an
-- older epoch are refused (fenced).
CREATE TABLE gateway (
    id      INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    version TEXT NOT NULL,
    epoch   BIGINT NOT NULL,
    alive   BOOLEAN NOT NULL,
    beat    BIGINT NOT NULL,
    beat_at BIGINT NOT NULL -- for people; whether a gateway is dead is decided by beat alone
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- A lane is one connection of a gateway on which ledger calls follow each other. It keeps the reply to its last call, so that a
-- call whose reply was lost can be sent again.
CREATE TABLE lane (
    gateway INTEGER NOT NULL REFERENCES gateway (id),
    n       INTEGER NOT NULL,
    epoch   BIGINT NOT NULL,
    seq     BIGINT NOT NULL,
    reply   TEXT NOT NULL,
    PRIMARY KEY (gateway, n)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE lane ALTER COLUMN reply SET STORAGE MAIN;

-- A key or an account: its caps and counters. The row of an account is the lock of all its keys: their counters, their waiters and
-- their requests in flight change only while it is locked. Days are UTC.
CREATE TABLE owner (
    id           TEXT PRIMARY KEY,
    account      TEXT NOT NULL, -- of a key; the id itself of an account
    enabled      BOOLEAN NOT NULL,
    -- Caps in tokens; NULL is unbounded.
    month_total  BIGINT CHECK (month_total >= 0),
    day_total    BIGINT CHECK (day_total >= 0),
    month_input  BIGINT CHECK (month_input >= 0),
    month_output BIGINT CHECK (month_output >= 0),
    slots        INTEGER CHECK (slots >= 1), -- requests that may run at once; NULL is unbounded
    expires_at   BIGINT, -- of a key: its requests are refused from then on; NULL is never
    last_use     BIGINT NOT NULL DEFAULT 0, -- when the latest request arrived; 0 is never
    raised       SMALLINT NOT NULL DEFAULT 0, -- caps whose alarm of a refusal has been raised in the window: total 1, day 2, input 4, output 8
    running      INTEGER NOT NULL DEFAULT 0, -- requests in flight, without lines of batches, which need no slot
    waiting      INTEGER NOT NULL DEFAULT 0,
    ticket       BIGINT NOT NULL DEFAULT 0, -- of an account: the last one handed out
    blocked      BOOLEAN NOT NULL DEFAULT false, -- a waiter waits because of this owner's caps or slots
    -- The windows: day is the latest day on which the owner was charged or asked; it never goes back.
    day          DATE NOT NULL,
    month        DATE NOT NULL, -- the first day of day's month
    day_in       BIGINT NOT NULL DEFAULT 0, -- used tokens
    day_out      BIGINT NOT NULL DEFAULT 0,
    month_in     BIGINT NOT NULL DEFAULT 0,
    month_out    BIGINT NOT NULL DEFAULT 0,
    reserved_day BIGINT NOT NULL DEFAULT 0, -- by requests in flight that were admitted on this day
    reserved_in  BIGINT NOT NULL DEFAULT 0, -- by those that were admitted in this month
    reserved_out BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0);

-- What was used on days that have ended. The days of a month, with the owner's day_in and day_out, add up to its month.
CREATE TABLE spend (
    owner  TEXT NOT NULL,
    day    DATE NOT NULL,
    input  BIGINT NOT NULL,
    output BIGINT NOT NULL,
    PRIMARY KEY (owner, day)
);

-- Requests in flight, with their reservation and their last checkpoint. It has no second index: the planner would choose it and
-- walk the entries of all requests that have ended since the last vacuum.
CREATE TABLE inflight (
    request_id        TEXT PRIMARY KEY,
    gateway           INTEGER NOT NULL,
    epoch             BIGINT NOT NULL,
    account           TEXT NOT NULL,
    key               TEXT NOT NULL,
    day               DATE NOT NULL, -- of admission
    time              BIGINT NOT NULL,
    reserved_in       BIGINT NOT NULL,
    reserved_out      BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL DEFAULT 0,
    completion_tokens BIGINT NOT NULL DEFAULT 0,
    backend           TEXT NOT NULL DEFAULT '',
    model             TEXT NOT NULL,
    endpoint          TEXT NOT NULL,
    workload          TEXT NOT NULL,
    user_tag          TEXT NOT NULL,
    stream            BOOLEAN NOT NULL,
    batch_id          TEXT, -- of the batch of which the request is a line
    details           TEXT NOT NULL -- attempts of the request's row if it is interrupted
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0);

-- Requests that wait for a slot or for reservations of others, in the order of their tickets.
CREATE TABLE waiter (
    account    TEXT NOT NULL,
    key        TEXT NOT NULL,
    ticket     BIGINT NOT NULL,
    request_id TEXT NOT NULL,
    gateway    INTEGER NOT NULL,
    epoch      BIGINT NOT NULL,
    lane       INTEGER NOT NULL,
    arrived    BIGINT NOT NULL,
    prompt     BIGINT NOT NULL, -- the demand
    candidates BIGINT NOT NULL,
    max_tokens BIGINT NOT NULL,
    min_tokens BIGINT NOT NULL,
    prompts    BIGINT[], -- lengths of prompts that are truncated
    times      BIGINT[], -- how many prompts have each length
    context    BIGINT,
    model      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    workload   TEXT NOT NULL,
    user_tag   TEXT NOT NULL,
    stream     BOOLEAN NOT NULL,
    batch_id   TEXT,
    details    TEXT NOT NULL,
    PRIMARY KEY (account, key, ticket)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Waiters whose wait was ended by a call of another gateway or lane, until their lane collects them.
CREATE TABLE decided (
    gateway    INTEGER NOT NULL,
    lane       INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    reply      JSON NOT NULL,
    PRIMARY KEY (gateway, lane, request_id)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Settlements that a client writes in a transaction of its own, together with the results of a batch. They are executed at its
-- commit, by a trigger: the accounts are locked in order, and only while the server commits. Rows never outlive their transaction.
CREATE UNLOGGED TABLE settling (
    xid     XID8 NOT NULL DEFAULT pg_current_xact_id(),
    gateway INTEGER NOT NULL,
    epoch   BIGINT NOT NULL,
    account TEXT NOT NULL,
    key     TEXT NOT NULL,
    settle  JSON NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX settling_xid ON settling (xid);

-- Caps that are nearly used or used up, until one gateway has taken the row and raised the alarm. cap is in the encoding of
-- ledger_evaluate.
CREATE TABLE alarm (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    percent INTEGER NOT NULL,
    key     TEXT NOT NULL, -- that was charged or refused
    account TEXT NOT NULL,
    cap     JSON NOT NULL
);

-- What the configuration of the gateways says about all keys and accounts. synced is false until owner follows a changed value.
CREATE TABLE ledger_setting (
    id                      BOOLEAN PRIMARY KEY CHECK (id),
    concurrency_per_key     INTEGER NOT NULL CHECK (concurrency_per_key >= 1),
    synced                  BOOLEAN NOT NULL,
    concurrency_per_account INTEGER CHECK (concurrency_per_account >= 1) -- NULL, before a gateway has set it: accounts are not limited
);

INSERT INTO ledger_setting (id, concurrency_per_key, synced) VALUES (true, 8, true);

-- One row per request that has ended; it outlives its key and its account. xid is the transaction that inserted it, and equal in
-- its rows: a reader that follows the table takes the rows below pg_snapshot_xmin(pg_current_snapshot()), so that it misses none.
-- Each month has a partition, which ledger_partition_v1 creates.
CREATE TABLE requests (
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
    total_us          BIGINT NOT NULL,
    boot_us           BIGINT NOT NULL DEFAULT 0,
    attempts          TEXT NOT NULL DEFAULT '', -- JSON, in the encoding of package usage; empty if there is nothing to tell
    batch_id          TEXT,
    xid               XID8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (time, request_id)
) PARTITION BY RANGE (time);

CREATE INDEX requests_xid ON requests (xid);
CREATE INDEX requests_account ON requests (account_id, time);
CREATE INDEX requests_failed ON requests (account_id, time) WHERE code <> '' OR state = 'interrupted';
CREATE INDEX requests_id ON requests USING hash (request_id);

-- When each key was last used, if that was before its first request here, as owner.last_use tells.
CREATE TABLE key_uses (
    key_id TEXT PRIMARY KEY,
    time   BIGINT NOT NULL
);

-- Requests of known accounts that were refused before a reservation, so they have no row in requests and cost nothing. They are
-- sampled, and the oldest are deleted, so these rows never add up to a figure: refusal_hours has the numbers.
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

-- ===== Usage: package usage =====

-- Rollups: sums of the rows of requests up to the watermark, by hour, day or month, UTC. They can be made again from the rows, as
-- long as these are kept. A rollup of the current period is updated once a second, so its page has room for that.
CREATE TABLE usage_watermark (
    "only"     BIGINT PRIMARY KEY CHECK ("only" = 1),
    seq        BIGINT NOT NULL,          -- the last transaction, as requests.xid, whose rows the rollups include
    kept_since BIGINT NOT NULL DEFAULT 0 -- the rows of requests that are older have been deleted; the rollups have them
) WITH (fillfactor = 10);

INSERT INTO usage_watermark ("only", seq) VALUES (1, 0);

-- What the requests of one rollup have in common, but for the period and the user tag.
CREATE TABLE usage_series (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    model      TEXT NOT NULL,
    endpoint   TEXT NOT NULL,
    workload   TEXT NOT NULL,
    UNIQUE (account_id, key_id, model, endpoint, workload)
);

-- period counts hours from the epoch.
CREATE TABLE usage_hours (
    series            BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (series, period)
) WITH (fillfactor = 80);
CREATE INDEX usage_hours_period ON usage_hours (period);

-- period counts days from the epoch.
CREATE TABLE usage_days (
    series            BIGINT NOT NULL,
    period            BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (series, period)
) WITH (fillfactor = 80);
CREATE INDEX usage_days_period ON usage_days (period);

-- Latencies by series and day have a table of their own, because most pages do not show them. period counts days from the epoch.
-- counts is a list of integers, by package usage.
CREATE TABLE usage_latencies (
    series BIGINT NOT NULL,
    period BIGINT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (series, period)
) WITH (fillfactor = 80);
CREATE INDEX usage_latencies_period ON usage_latencies (period);

-- User tags have rollups of their own, by key alone: clients choose them, so there may be as many as requests. The key 0 has the
-- sums over all keys.
CREATE TABLE usage_keys (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    UNIQUE (account_id, key_id)
);

CREATE TABLE usage_tags (
    id  BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
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
) WITH (fillfactor = 80);

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
) WITH (fillfactor = 80);

-- ===== The receipt log: package receipt =====

-- The entries of the log. Rows are never changed, but for their number, or deleted: pruning the ledger leaves them.
CREATE TABLE receipts (
    id        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    seq       BIGINT UNIQUE,         -- the place in the log, from 1 and without gaps; NULL: it has none yet
    leaf_hash BYTEA NOT NULL UNIQUE, -- SHA-256 of a zero byte and the entry (RFC 6962)
    entry     BYTEA NOT NULL,        -- canonical JSON, without texts
    nonce     BYTEA NOT NULL,        -- salt of the CIDs of the entry
    key_id    TEXT NOT NULL          -- that may read entry and nonce
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02, vacuum_index_cleanup = on);

CREATE INDEX receipts_pending ON receipts (id) WHERE seq IS NULL;

-- +goose StatementBegin
CREATE FUNCTION receipts_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the receipt log is append-only';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER receipts_changed BEFORE UPDATE OF id, leaf_hash, entry, nonce, key_id OR DELETE OR TRUNCATE ON receipts
    FOR EACH STATEMENT EXECUTE FUNCTION receipts_append_only();
CREATE TRIGGER receipts_numbered BEFORE UPDATE OF seq ON receipts
    FOR EACH ROW WHEN (OLD.seq IS NOT NULL) EXECUTE FUNCTION receipts_append_only();

-- The hash tiles of the log, 256 hashes of 32 bytes each; the rightmost tile of a level has fewer.
CREATE TABLE receipt_tiles (
    level  BIGINT NOT NULL,
    number BIGINT NOT NULL,
    hashes BYTEA NOT NULL,
    PRIMARY KEY (level, number)
);

-- The log's latest signed tree head, which covers the rows of receipts that have a number.
CREATE TABLE receipt_log (
    "only"       BIGINT PRIMARY KEY CHECK ("only" = 1),
    verifier_key TEXT NOT NULL,
    size         BIGINT NOT NULL,
    checkpoint   TEXT NOT NULL
);

-- ===== Files and batches: package batch =====

-- Objects of the storage. A file is the list of its objects in the order of start, each of which is written once. Also the rows of
-- objects that are being written or are to be deleted name their file; '' stands for the errors of a validation, which
-- batches.errors names, and 'storage' for the object by which gateways recognize that they share their storage.
CREATE TABLE objects (
    name     TEXT PRIMARY KEY,
    state    TEXT NOT NULL CHECK (state IN ('writing', 'kept', 'deleted')),
    file     TEXT NOT NULL DEFAULT '',
    start    BIGINT NOT NULL DEFAULT 0, -- the offset in the file of its first byte
    bytes    BIGINT NOT NULL DEFAULT 0,
    gateway  BIGINT NOT NULL DEFAULT 0, -- its writer; 0: a command
    epoch    BIGINT NOT NULL DEFAULT 0, -- of the writer: once that has ended, 'writing' means left behind
    begun_at BIGINT NOT NULL DEFAULT 0
);

CREATE INDEX objects_left ON objects (state) WHERE state <> 'kept';
CREATE INDEX objects_file ON objects (file, start);

-- In the tables files to idempotency, times are seconds since 1970, as clients see them.
CREATE TABLE files (
    seq        BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    purpose    TEXT NOT NULL,
    filename   TEXT NOT NULL,
    bytes      BIGINT NOT NULL,
    sha256     BYTEA,  -- NULL while the file grows
    lines      BIGINT, -- of an uploaded file; NULL for the results of a batch, whose lines the batch counts
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX files_account ON files (account_id, seq);
CREATE INDEX files_expiry ON files (expires_at);

-- A batch that is parked is in the memory of no gateway, and leased to none.
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
    models            TEXT NOT NULL, -- JSON: short ids, in the order of batch_lines.model
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
    reasoning_tokens  BIGINT NOT NULL,
    waits_for         TEXT NOT NULL DEFAULT '',  -- the API's word; '' if a line can start
    resets_at         BIGINT NOT NULL DEFAULT 0, -- of the exhausted cap; 0 if there is none
    parked_at         BIGINT NOT NULL DEFAULT 0, -- 0 if it is not parked
    parked_caps       BIGINT NOT NULL DEFAULT 0  -- a hash of the caps that have refused its lines
);

CREATE INDEX batches_account ON batches (account_id, seq);
CREATE INDEX batches_unfinished ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batches_unfinished_of ON batches (account_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE INDEX batches_due ON batches (status, account_id, expires_at, seq)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') AND parked_at = 0;
CREATE INDEX batches_parked ON batches (account_id, key_id, expires_at, seq) WHERE parked_at > 0;

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

-- Which gateway runs a batch. A row counts only while the epoch is that of a gateway that is alive; a lease that was given back has
-- no row. Batch 0 is no batch: its lease is the permission to delete what has expired.
CREATE TABLE batch_leases (
    batch   BIGINT PRIMARY KEY,
    gateway INTEGER NOT NULL,
    epoch   BIGINT NOT NULL
);

-- The gateways that take batches, between which these and the places at each backend are divided. One that drains has no row.
CREATE TABLE batch_runners (
    gateway INTEGER PRIMARY KEY,
    epoch   BIGINT NOT NULL
);

-- ===== The functions of the ledger, version 1 =====

-- A call of ledger_v1 is one transaction under READ COMMITTED: each statement of these VOLATILE functions has a snapshot of its own,
-- so what is read after a lock is what the lock protects. Every lock is taken in one order: the gateway's advisory lock, the lane,
-- the accounts by id. Functions without a version in their names are internal: they run inside the others, with their settings and
-- their owner's rights.

-- ----- Times, by this server's clock; days are UTC -----

-- +goose StatementBegin
CREATE FUNCTION ledger_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_day(p_time bigint) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + floor(p_time / 86400000000.0)::integer
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_start(p_day date) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_day - date '1970-01-01') * 86400000000
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_month(p_day date) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT p_day - (extract(day FROM p_day)::integer - 1)
$$;
-- +goose StatementEnd

-- ledger_time returns the time of a request's row: when it arrived, if that lies in the day that is charged, or else the
-- closest to now that does.
-- +goose StatementBegin
CREATE FUNCTION ledger_time(p_arrived bigint, p_now bigint, p_day date) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ledger_day(p_arrived) = p_day THEN p_arrived
        WHEN ledger_day(p_now) = p_day THEN p_now ELSE ledger_start(p_day) END
$$;
-- +goose StatementEnd

-- ledger_time_v1 returns the time by which the ledger works.
-- +goose StatementBegin
CREATE FUNCTION ledger_time_v1() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT ledger_now()
$$;
-- +goose StatementEnd

-- ----- What a call consists of -----

-- ledger_roll moves the counters of owners to the day of their account, which is today, unless that lies in its past, and
-- returns the accounts among them that have waiters. What was used on the days that have ended goes to spend. The caller
-- has locked the accounts.
-- +goose StatementBegin
CREATE FUNCTION ledger_roll(p_owners text[], p_today date) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_rolled text[];
BEGIN
    INSERT INTO spend (owner, day, input, output)
        SELECT o.id, o.day, o.day_in, o.day_out FROM owner o JOIN owner a ON a.id = o.account
        WHERE o.id = ANY (p_owners) AND o.day < greatest(a.day, p_today) AND (o.day_in > 0 OR o.day_out > 0)
        ON CONFLICT (owner, day) DO UPDATE SET input = spend.input + excluded.input, output = spend.output + excluded.output;
    WITH rolled AS (
        UPDATE owner o SET day = n.day, month = n.month, day_in = 0, day_out = 0, reserved_day = 0,
            raised = CASE WHEN n.month = o.month THEN o.raised & ~2 ELSE 0 END,
            month_in = CASE WHEN n.month = o.month THEN o.month_in ELSE 0 END,
            month_out = CASE WHEN n.month = o.month THEN o.month_out ELSE 0 END,
            reserved_in = CASE WHEN n.month = o.month THEN o.reserved_in ELSE 0 END,
            reserved_out = CASE WHEN n.month = o.month THEN o.reserved_out ELSE 0 END
        FROM (SELECT a.id, greatest(a.day, p_today) AS day, ledger_month(greatest(a.day, p_today)) AS month FROM owner a) n
        WHERE o.id = ANY (p_owners) AND n.id = o.account AND o.day < n.day
        RETURNING o.id, o.account, o.waiting)
    SELECT array_agg(id) INTO v_rolled FROM rolled WHERE id = account AND waiting > 0;
    RETURN v_rolled;
END
$$;
-- +goose StatementEnd

-- ledger_prompt returns the tokens of all prompts beside a max_tokens: prompts that are truncated to what max_tokens leaves
-- of the context are longer if it is lowered. p_times are the numbers of prompts of the lengths in p_prompts.
-- +goose StatementBegin
CREATE FUNCTION ledger_prompt(p_at bigint, p_prompt bigint, p_max bigint, p_prompts bigint[], p_times bigint[],
    p_context bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_prompts IS NULL OR p_at >= p_max THEN p_prompt ELSE
        (SELECT least(coalesce(sum(times * least(n, greatest(p_context - p_at, 0))::numeric), 0), 1125899906842624)::bigint
            FROM unnest(p_prompts, p_times) u(n, times))
        END
$$;
-- +goose StatementEnd

-- ledger_evaluate decides on one request by all caps at once, by the same rules as package budget. Used tokens refuse the
-- request or lower its max_tokens; reservations, taken slots, and earlier requests that they block make it wait. refusal is
-- the cap that refuses: scope, window, meter, limit, used, reserved and the end of the window; named is its number, from 1.
-- p_slot is false for a line of a batch, which needs no slot.
-- +goose StatementBegin
CREATE FUNCTION ledger_evaluate(k owner, a owner, p_prompt bigint, p_candidates bigint, p_max bigint, p_min bigint,
    p_prompts bigint[], p_times bigint[], p_context bigint, p_slot boolean,
    OUT max_tokens bigint, OUT prompt bigint, OUT output bigint, OUT refusal text, OUT named integer, OUT blocked_slot boolean,
    OUT blocked_key boolean, OUT blocked_account boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- Of each owner: the month's total, the day's total, the month's input, the month's output.
    v_caps bigint[] := ARRAY[k.month_total, k.day_total, k.month_input, k.month_output,
        a.month_total, a.day_total, a.month_input, a.month_output];
    v_used bigint[] := ARRAY[k.month_in + k.month_out, k.day_in + k.day_out, k.month_in, k.month_out,
        a.month_in + a.month_out, a.day_in + a.day_out, a.month_in, a.month_out];
    v_reserved bigint[] := ARRAY[k.reserved_in + k.reserved_out, k.reserved_day, k.reserved_in, k.reserved_out,
        a.reserved_in + a.reserved_out, a.reserved_day, a.reserved_in, a.reserved_out];
    v_least bigint := greatest(1, least(p_min, p_max));
    v_left bigint;
    v_allowed bigint;
    v_high bigint;
    v_middle bigint;
    v_named integer; -- the cap that a refusal names
    v_need bigint;
BEGIN
    max_tokens := p_max;
    FOR i IN 1..8 LOOP
        CONTINUE WHEN v_caps[i] IS NULL;
        v_left := v_caps[i] - v_used[i];
        IF i IN (3, 7) THEN
            v_allowed := CASE WHEN v_left <= 0 OR p_prompt > v_left THEN 0 ELSE p_max END;
        ELSIF i IN (4, 8) THEN
            v_allowed := greatest(v_left, 0) / p_candidates;
        ELSIF p_prompts IS NULL THEN
            v_allowed := CASE WHEN v_left <= p_prompt THEN 0 ELSE (v_left - p_prompt) / p_candidates END;
        ELSE -- the most that fits, by bisection: the cost of one more token of max_tokens is never negative
            v_allowed := 0;
            v_high := p_max;
            WHILE v_allowed < v_high LOOP
                v_middle := (v_allowed + v_high + 1) / 2;
                IF ledger_prompt(v_middle, p_prompt, p_max, p_prompts, p_times, p_context)
                    + least(p_candidates::numeric * v_middle, 1125899906842624) <= v_left THEN
                    v_allowed := v_middle;
                ELSE
                    v_high := v_middle - 1;
                END IF;
            END LOOP;
        END IF;
        IF v_allowed < v_least AND (v_named IS NULL OR CASE WHEN (i IN (2, 6)) = (v_named IN (2, 6))
            THEN v_left < v_caps[v_named] - v_used[v_named] ELSE v_named IN (2, 6) END) THEN
            v_named := i;
        END IF;
        max_tokens := least(max_tokens, v_allowed);
    END LOOP;
    prompt := ledger_prompt(max_tokens, p_prompt, p_max, p_prompts, p_times, p_context);
    FOREACH v_need IN ARRAY ARRAY[3, 7] LOOP -- a truncated prompt is longer at a lower max_tokens
        v_left := v_caps[v_need] - v_used[v_need];
        IF prompt > v_left AND (v_named IS NULL OR v_named IN (2, 6) OR v_left < v_caps[v_named] - v_used[v_named]) THEN
            v_named := v_need;
        END IF;
    END LOOP;
    IF v_named IS NOT NULL THEN
        refusal := json_build_array(CASE WHEN v_named <= 4 THEN 'key' ELSE 'account' END,
            CASE WHEN v_named IN (2, 6) THEN 'day' ELSE 'month' END,
            CASE v_named % 4 WHEN 3 THEN 'input' WHEN 0 THEN 'output' ELSE 'total' END,
            v_caps[v_named], v_used[v_named], v_reserved[v_named],
            ledger_start(CASE WHEN v_named IN (2, 6) THEN a.day + 1 ELSE (a.month + interval '1 month')::date END));
        named := v_named;
        RETURN;
    END IF;
    output := least(p_candidates::numeric * max_tokens, 1125899906842624);
    blocked_slot := p_slot AND (k.running >= k.slots OR a.running >= a.slots) IS TRUE;
    blocked_key := k.blocked AND coalesce(k.month_total, k.day_total, k.month_input, k.month_output) IS NOT NULL;
    blocked_account := a.blocked AND coalesce(a.month_total, a.day_total, a.month_input, a.month_output) IS NOT NULL;
    FOR i IN 1..8 LOOP
        v_need := CASE WHEN i IN (3, 7) THEN prompt WHEN i IN (4, 8) THEN output ELSE prompt + output END;
        IF v_need > v_caps[i] - v_used[i] - v_reserved[i] THEN
            IF i <= 4 THEN blocked_key := true; ELSE blocked_account := true; END IF;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_crosses reports whether a charge has taken used tokens over 80 % or 100 % of a cap. The cap less a fifth, rounded down,
-- is 80 %, rounded up.
-- +goose StatementBegin
CREATE FUNCTION ledger_crosses(p_used bigint, p_charge bigint, p_cap bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_used >= p_cap AND p_used - p_charge < p_cap
        OR p_used >= p_cap - p_cap / 5 AND p_used - p_charge < p_cap - p_cap / 5
$$;
-- +goose StatementEnd

-- ledger_raise leaves alarms about the caps of owners that a charge takes over 80 % or 100 %. charged has the owners that
-- were charged, with what was added to their windows.
-- +goose StatementBegin
CREATE FUNCTION ledger_raise(p_charged json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT o.id, o.account, o.day, o.month, n.key, v.bit, v.meter, v.cap, v.used, v.reserved,
            CASE WHEN v.used >= v.cap AND v.used - v.charge < v.cap THEN 100 ELSE 80 END AS percent
        FROM json_to_recordset(p_charged) AS n(owner text, key text, day_in bigint, day_out bigint, month_in bigint, month_out bigint)
        JOIN owner o ON o.id = n.owner
        CROSS JOIN LATERAL (VALUES
            (1, 'total', o.month_total, o.month_in + o.month_out, n.month_in + n.month_out, o.reserved_in + o.reserved_out),
            (2, 'total', o.day_total, o.day_in + o.day_out, n.day_in + n.day_out, o.reserved_day),
            (4, 'input', o.month_input, o.month_in, n.month_in, o.reserved_in),
            (8, 'output', o.month_output, o.month_out, n.month_out, o.reserved_out)) v(bit, meter, cap, used, charge, reserved)
        WHERE ledger_crosses(v.used, v.charge, v.cap)
        ORDER BY o.id, v.bit
    LOOP
        INSERT INTO alarm (percent, key, account, cap) VALUES (c.percent, c.key, c.account,
            json_build_array(CASE WHEN c.id = c.account THEN 'account' ELSE 'key' END, CASE c.bit WHEN 2 THEN 'day' ELSE 'month' END,
                c.meter, c.cap, c.used, c.reserved,
                ledger_start(CASE c.bit WHEN 2 THEN c.day + 1 ELSE (c.month + interval '1 month')::date END)));
        UPDATE owner SET raised = CASE c.percent WHEN 100 THEN raised | c.bit ELSE raised & ~c.bit END WHERE id = c.id;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_raise_refusal leaves an alarm about a cap that has refused a request because it is used up, or nearly so: what is
-- left of a cap may be too little for any request. It does that once in the cap's window, unless the cap is changed.
-- p_named is the cap's number in ledger_evaluate.
-- +goose StatementBegin
CREATE FUNCTION ledger_raise_refusal(p_key text, p_account text, p_named integer, p_refusal text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cap json := p_refusal::json;
    v_bit integer := 1 << ((p_named - 1) % 4);
BEGIN
    IF (v_cap ->> 3)::bigint = 0 OR (v_cap ->> 4)::numeric * 100 < (v_cap ->> 3)::numeric * 95 THEN
        RETURN;
    END IF;
    UPDATE owner SET raised = raised | v_bit
        WHERE id = CASE WHEN p_named <= 4 THEN p_key ELSE p_account END AND raised & v_bit = 0;
    IF FOUND THEN
        INSERT INTO alarm (percent, key, account, cap) VALUES (100, p_key, p_account, v_cap);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_settle ends requests of one gateway: it deletes their rows in flight, replaces their reservations by what they
-- used, in the windows in which they were admitted, and inserts their rows into requests, unless they are dropped. It
-- returns the ids of those that were in flight, and their accounts. The caller has locked the accounts and rolled the owners.
-- +goose StatementBegin
CREATE FUNCTION ledger_settle(p_gateway integer, p_epoch bigint, p_settle json, OUT settled text[], OUT accounts text[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_charged json;
    v_keys text[];
BEGIN
    WITH s AS (
        SELECT * FROM json_to_recordset(p_settle) AS s(id text, state text, prompt bigint, completion bigint, status bigint,
            code text, backend text, queue bigint, first bigint, total bigint, boot bigint, attempts text)
    ), d AS (
        DELETE FROM inflight i USING s WHERE i.request_id = s.id AND i.gateway = p_gateway AND i.epoch = p_epoch
        RETURNING i.*, s.state, s.prompt, s.completion, s.status, s.code, s.backend AS final_backend, s.queue, s.first,
            s.total, s.boot, s.attempts
    ), r AS (
        INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
            status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts, batch_id)
        SELECT request_id, time, key, account, model, coalesce(final_backend, backend), endpoint, workload, user_tag, stream,
            coalesce(status, 0), coalesce(code, ''), state, prompt, completion, coalesce(queue, 0), coalesce(first, 0),
            coalesce(total, 0), coalesce(boot, 0), coalesce(attempts, details), batch_id
        FROM d WHERE state <> 'dropped'
    ), e AS ( -- each ended request twice: for its key, and for its account
        SELECT v.owner, d.*, d.day = a.day AS today, d.day >= a.month AS this_month
        FROM d JOIN owner a ON a.id = d.account CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner)
    ), late AS (
        INSERT INTO spend AS x (owner, day, input, output)
        SELECT e.owner, e.day, sum(prompt), sum(completion) FROM e WHERE NOT today GROUP BY e.owner, e.day
        ON CONFLICT (owner, day) DO UPDATE SET input = x.input + excluded.input, output = x.output + excluded.output
    ), u AS (
        UPDATE owner o SET running = o.running - n.n,
            day_in = o.day_in + n.day_in, day_out = o.day_out + n.day_out, reserved_day = o.reserved_day - n.reserved_day,
            month_in = o.month_in + n.month_in, month_out = o.month_out + n.month_out,
            reserved_in = o.reserved_in - n.reserved_in, reserved_out = o.reserved_out - n.reserved_out
        FROM (
            SELECT e.owner, count(*) FILTER (WHERE batch_id IS NULL) AS n, min(e.key) AS key,
                coalesce(sum(prompt) FILTER (WHERE today), 0) AS day_in,
                coalesce(sum(completion) FILTER (WHERE today), 0) AS day_out,
                coalesce(sum(reserved_in + reserved_out) FILTER (WHERE today), 0) AS reserved_day,
                coalesce(sum(prompt) FILTER (WHERE this_month), 0) AS month_in,
                coalesce(sum(completion) FILTER (WHERE this_month), 0) AS month_out,
                coalesce(sum(reserved_in) FILTER (WHERE this_month), 0) AS reserved_in,
                coalesce(sum(reserved_out) FILTER (WHERE this_month), 0) AS reserved_out
            FROM e GROUP BY e.owner) n
        WHERE o.id = n.owner
        RETURNING n.owner, n.key, n.day_in, n.day_out, n.month_in, n.month_out,
            (ledger_crosses(o.month_in + o.month_out, (n.month_in + n.month_out)::bigint, o.month_total)
                OR ledger_crosses(o.day_in + o.day_out, (n.day_in + n.day_out)::bigint, o.day_total)
                OR ledger_crosses(o.month_in, n.month_in::bigint, o.month_input)
                OR ledger_crosses(o.month_out, n.month_out::bigint, o.month_output)) IS TRUE AS crosses)
    SELECT array_agg(d.request_id), array_agg(d.key), array_agg(DISTINCT d.account), (SELECT json_agg(u) FROM u WHERE crosses)
        INTO settled, v_keys, accounts, v_charged FROM d;
    IF strpos(p_settle::text, '"receipt":') > 0 THEN
        INSERT INTO receipts (leaf_hash, nonce, entry, key_id)
            SELECT substr(r.receipt, 1, 32), substr(r.receipt, 33, 32), substr(r.receipt, 65), r.key FROM (
                SELECT d.i, d.key, decode(s.receipt, 'base64') AS receipt
                FROM unnest(settled, v_keys) WITH ORDINALITY d(id, key, i)
                JOIN json_to_recordset(p_settle) AS s(id text, receipt text) ON s.id = d.id
                WHERE s.receipt IS NOT NULL) AS r
            ORDER BY r.i
            ON CONFLICT (leaf_hash) DO NOTHING; -- it is settled again after a failover
    END IF;
    IF v_charged IS NOT NULL THEN
        PERFORM ledger_raise(v_charged);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_dequeue takes a waiter out of the counters of its owners. If it was the last one of its key, nothing blocks the
-- key's later requests.
-- +goose StatementBegin
CREATE FUNCTION ledger_dequeue(p_key text, p_account text) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE owner SET waiting = waiting - 1, blocked = blocked AND waiting > 1 WHERE id IN (p_key, p_account)
$$;
-- +goose StatementEnd

-- ledger_open inserts the row in flight of a request that is admitted and counts its reservation. It returns false if
-- another request in flight has the same id.
-- +goose StatementBegin
CREATE FUNCTION ledger_open(w waiter, p_day date, p_now bigint, p_prompt bigint, p_output bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_time bigint := ledger_time(w.arrived, p_now, p_day);
BEGIN
    INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
        workload, user_tag, stream, batch_id, details)
    VALUES (w.request_id, w.gateway, w.epoch, w.account, w.key, p_day, v_time, p_prompt, p_output,
        w.model, w.endpoint, w.workload, w.user_tag, w.stream, w.batch_id, w.details)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE owner SET running = running + (w.batch_id IS NULL)::integer, last_use = greatest(last_use, v_time),
        reserved_day = reserved_day + p_prompt + p_output, reserved_in = reserved_in + p_prompt, reserved_out = reserved_out + p_output
    WHERE id IN (w.key, w.account);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- ledger_grant evaluates the waiters of an account: the head of each key's queue, in the order of their tickets, and the
-- next one of its key after each whose wait ends. A head that is blocked blocks its key; one that the account blocks ends the
-- evaluation: what follows could only be refused, which can wait. A key or account some of whose waiters are not evaluated for
-- lack of a slot stays as blocked as it was, or a line of a batch, which needs no slot, would take the tokens that they wait
-- for. With p_all, after a change of caps, it evaluates every waiter, so that all that the change refuses end at once. Decisions
-- on waiters of this gateway and lane are returned, others are left for their lanes to collect, and their gateways notified. The
-- caller has locked the account and rolled it.
-- +goose StatementBegin
CREATE FUNCTION ledger_grant(p_account text, p_now bigint, p_gateway integer, p_lane integer, p_all boolean) RETURNS json[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_keys text[];
    v_heads bigint[]; -- their tickets
    v_tickets bigint[];
    v_blocked boolean[]; -- of keys, before their heads were evaluated
    v_account boolean; -- the same of the account
    v_next integer;
    v_ended boolean;
    v_reply json;
    v_replies json[];
    k owner;
    a owner;
    w waiter;
    d record;
BEGIN
    WITH RECURSIVE head AS (
        (SELECT key, ticket FROM waiter WHERE account = p_account ORDER BY key, ticket LIMIT 1)
        UNION ALL
        SELECT n.key, n.ticket FROM head, LATERAL (
            SELECT key, ticket FROM waiter WHERE account = p_account AND key > head.key ORDER BY key, ticket LIMIT 1) n)
    SELECT array_agg(key), array_agg(ticket), array_agg(ticket) INTO v_keys, v_heads, v_tickets FROM head;
    UPDATE owner SET blocked = false WHERE id = p_account AND blocked;
    v_account := FOUND;
    PERFORM ledger_roll(v_keys, ledger_day(p_now));
    LOOP
        SELECT i INTO v_next FROM unnest(v_tickets) WITH ORDINALITY t(ticket, i) WHERE ticket IS NOT NULL ORDER BY ticket LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT * INTO w FROM waiter WHERE account = p_account AND key = v_keys[v_next] AND ticket = v_tickets[v_next];
        UPDATE owner SET blocked = false WHERE id = w.key AND w.ticket = v_heads[v_next] AND blocked;
        v_blocked[v_next] := FOUND OR v_blocked[v_next];
        SELECT * INTO k FROM owner WHERE id = w.key;
        SELECT * INTO a FROM owner WHERE id = p_account;
        SELECT * INTO d FROM ledger_evaluate(k, a, w.prompt, w.candidates, w.max_tokens, w.min_tokens, w.prompts, w.times,
            w.context, w.batch_id IS NULL);
        v_ended := true;
        IF NOT (k.enabled AND a.enabled) OR k.expires_at <= p_now THEN
            v_reply := json_build_object('id', w.request_id, 'kind', 'disabled');
        ELSIF d.refusal IS NOT NULL THEN
            PERFORM ledger_raise_refusal(w.key, p_account, d.named, d.refusal);
            v_reply := json_build_object('id', w.request_id, 'kind', 'refused', 'cap', d.refusal::json);
        ELSIF d.blocked_slot OR d.blocked_key OR d.blocked_account THEN
            v_ended := false;
            UPDATE owner SET blocked = true WHERE id = w.key AND d.blocked_key OR id = p_account AND d.blocked_account;
            IF NOT p_all THEN
                UPDATE owner SET blocked = true WHERE id = w.key AND v_blocked[v_next] AND EXISTS (
                    SELECT FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket);
                IF (a.running >= a.slots) IS TRUE THEN -- all that wait need a slot
                    UPDATE owner SET blocked = true WHERE id = p_account AND v_account;
                    EXIT;
                END IF;
                EXIT WHEN d.blocked_account;
            END IF;
        ELSIF ledger_open(w, a.day, p_now, d.prompt, d.output) THEN
            v_reply := json_build_object('id', w.request_id, 'kind', 'granted', 'max', d.max_tokens, 'prompt', d.prompt,
                'time', ledger_time(w.arrived, p_now, a.day));
        ELSE
            v_reply := json_build_object('id', w.request_id, 'kind', 'duplicate');
        END IF;
        IF NOT v_ended THEN
            v_tickets[v_next] := CASE WHEN p_all THEN (
                SELECT min(ticket) FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket) END;
            CONTINUE;
        END IF;
        DELETE FROM waiter WHERE account = p_account AND key = w.key AND ticket = w.ticket;
        PERFORM ledger_dequeue(w.key, p_account);
        IF w.gateway = p_gateway AND w.lane = p_lane THEN
            v_replies := v_replies || v_reply;
        ELSE
            INSERT INTO decided (gateway, lane, request_id, reply) VALUES (w.gateway, w.lane, w.request_id, v_reply);
            IF w.gateway IS DISTINCT FROM p_gateway THEN
                PERFORM pg_notify('basegate_gateway_' || w.gateway, '');
            END IF;
        END IF;
        v_tickets[v_next] := (
            SELECT min(ticket) FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket);
    END LOOP;
    RETURN v_replies;
END
$$;
-- +goose StatementEnd

-- ledger_cancel ends what is left of requests whose clients have disconnected while they waited: the waiter, or the
-- reservation that another call has granted it meanwhile. It returns the accounts.
-- +goose StatementBegin
CREATE FUNCTION ledger_cancel(p_gateway integer, p_epoch bigint, p_lane integer, p_cancel json) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c record;
    v_accounts text[];
BEGIN
    FOR c IN SELECT * FROM json_to_recordset(p_cancel) AS c(id text, account text, key text, ticket bigint) LOOP
        v_accounts := v_accounts || c.account;
        DELETE FROM waiter WHERE account = c.account AND key = c.key AND ticket = c.ticket AND gateway = p_gateway
            AND epoch = p_epoch AND request_id = c.id;
        IF FOUND THEN
            PERFORM ledger_dequeue(c.key, c.account);
        ELSE
            DELETE FROM decided WHERE gateway = p_gateway AND lane = p_lane AND request_id = c.id;
            PERFORM ledger_settle(p_gateway, p_epoch,
                json_build_array(json_build_object('id', c.id, 'state', 'dropped', 'prompt', 0, 'completion', 0)));
        END IF;
    END LOOP;
    RETURN v_accounts;
END
$$;
-- +goose StatementEnd

-- ledger_admit_each decides on requests one by one, in their order, and returns the decisions but full grants.
-- +goose StatementBegin
CREATE FUNCTION ledger_admit_each(p_gateway integer, p_epoch bigint, p_lane integer, p_admit json, p_done text[], p_now bigint)
RETURNS json[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n record;
    k owner;
    a owner;
    w waiter;
    d record;
    v_ticket bigint;
    v_reply json;
    v_replies json[];
BEGIN
    FOR n IN
        SELECT * FROM json_to_recordset(p_admit) AS n(id text, key text, account text, prompt bigint, candidates bigint,
            max bigint, min bigint, exact boolean, no_wait boolean, prompts bigint[], times bigint[], context bigint,
            age bigint, model text, endpoint text, workload text, tag text, stream boolean, batch text, details text)
        WHERE NOT id = ANY (p_done)
    LOOP
        SELECT * INTO k FROM owner WHERE id = n.key AND account = n.account;
        SELECT * INTO a FROM owner WHERE id = n.account AND account = n.account;
        IF k.id IS NULL OR a.id IS NULL THEN
            v_replies := v_replies || json_build_object('id', n.id, 'kind', 'unknown');
            CONTINUE;
        ELSIF NOT (k.enabled AND a.enabled) OR k.expires_at <= p_now THEN
            v_replies := v_replies || json_build_object('id', n.id, 'kind', 'disabled');
            CONTINUE;
        END IF;
        SELECT * INTO d FROM ledger_evaluate(k, a, n.prompt, n.candidates, n.max, coalesce(n.min, 0), n.prompts, n.times,
            n.context, n.batch IS NULL);
        w := ROW(n.account, n.key, 0, n.id, p_gateway, p_epoch, p_lane, p_now - n.age, n.prompt, n.candidates, n.max,
            coalesce(n.min, 0), n.prompts, n.times, n.context, n.model, n.endpoint, n.workload, coalesce(n.tag, ''),
            coalesce(n.stream, false), n.batch, coalesce(n.details, ''));
        IF NOT coalesce(n.exact, false)
            AND (d.refusal IS NOT NULL OR d.blocked_slot OR d.blocked_key OR d.blocked_account OR d.max_tokens < n.max) THEN
            v_reply := json_build_object('id', n.id, 'kind', 'count');
        ELSIF d.refusal IS NOT NULL THEN
            PERFORM ledger_raise_refusal(n.key, n.account, d.named, d.refusal);
            v_reply := json_build_object('id', n.id, 'kind', 'refused', 'cap', d.refusal::json);
        ELSIF NOT (d.blocked_slot OR d.blocked_key OR d.blocked_account) THEN
            IF ledger_open(w, a.day, p_now, d.prompt, d.output) THEN
                v_reply := json_build_object('id', n.id, 'kind', 'granted', 'max', d.max_tokens, 'prompt', d.prompt,
                    'time', ledger_time(w.arrived, p_now, a.day));
            ELSE
                v_reply := json_build_object('id', n.id, 'kind', 'duplicate');
            END IF;
        ELSIF n.no_wait THEN
            v_reply := json_build_object('id', n.id, 'kind', 'reserved');
        ELSE
            UPDATE owner SET ticket = ticket + 1, waiting = waiting + 1, blocked = blocked OR d.blocked_account
                WHERE id = n.account RETURNING ticket INTO v_ticket;
            UPDATE owner SET waiting = waiting + 1, blocked = blocked OR d.blocked_key WHERE id = n.key;
            w.ticket := v_ticket;
            INSERT INTO waiter (account, key, ticket, request_id, gateway, epoch, lane, arrived, prompt, candidates, max_tokens, min_tokens,
                    prompts, times, context, model, endpoint, workload, user_tag, stream, batch_id, details)
                VALUES (w.account, w.key, w.ticket, w.request_id, w.gateway, w.epoch, w.lane, w.arrived, w.prompt, w.candidates,
                    w.max_tokens, w.min_tokens, w.prompts, w.times, w.context, w.model, w.endpoint, w.workload, w.user_tag, w.stream,
                    w.batch_id, w.details);
            v_reply := json_build_object('id', n.id, 'kind', 'wait', 'ticket', v_ticket);
        END IF;
        v_replies := v_replies || v_reply;
    END LOOP;
    RETURN v_replies;
END
$$;
-- +goose StatementEnd

-- ledger_admit decides on new requests and returns the decisions but full grants. The requests of an account that fit all
-- its caps and slots together, with no waiters before them, are admitted by one statement; others one by one. The
-- caller has locked the accounts and rolled the owners.
-- +goose StatementBegin
CREATE FUNCTION ledger_admit(p_gateway integer, p_epoch bigint, p_lane integer, p_admit json, p_now bigint) RETURNS json[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_done text[];
BEGIN
    WITH n AS MATERIALIZED (
        SELECT * FROM json_to_recordset(p_admit) AS n(id text, key text, account text, prompt bigint, output bigint, age bigint,
            model text, endpoint text, workload text, tag text, stream boolean, batch text, details text)
    ), need AS (
        SELECT v.owner, n.account, count(*) FILTER (WHERE n.batch IS NULL) AS n, sum(n.prompt) AS input, sum(n.output) AS output
        FROM n CROSS JOIN LATERAL (VALUES (n.key), (n.account)) v(owner) GROUP BY v.owner, n.account
    ), fits AS (
        SELECT need.account, min(o.day) AS day
        FROM need LEFT JOIN owner o ON o.id = need.owner AND o.account = need.account
        GROUP BY need.account
        HAVING bool_and(coalesce(o.enabled, false) AND o.waiting = 0 AND (o.expires_at IS NULL OR o.expires_at > p_now)
            AND (o.slots IS NULL OR need.n = 0 OR o.running + need.n <= o.slots)
            AND (o.month_total IS NULL OR
                o.month_in + o.month_out + o.reserved_in + o.reserved_out + need.input + need.output <= o.month_total)
            AND (o.day_total IS NULL OR o.day_in + o.day_out + o.reserved_day + need.input + need.output <= o.day_total)
            AND (o.month_input IS NULL OR
                o.month_in < o.month_input AND o.month_in + o.reserved_in + need.input <= o.month_input)
            AND (o.month_output IS NULL OR o.month_out + o.reserved_out + need.output <= o.month_output))
    ), opened AS (
        INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
            workload, user_tag, stream, batch_id, details)
        SELECT n.id, p_gateway, p_epoch, n.account, n.key, f.day, ledger_time(p_now - n.age, p_now, f.day), n.prompt, n.output,
            n.model, n.endpoint, n.workload, coalesce(n.tag, ''), coalesce(n.stream, false), n.batch, coalesce(n.details, '')
        FROM n JOIN fits f ON f.account = n.account
        ON CONFLICT DO NOTHING
        RETURNING request_id, key, account, reserved_in, reserved_out, time, batch_id
    ), u AS (
        UPDATE owner o SET running = o.running + s.n, last_use = greatest(o.last_use, s.time), reserved_day = o.reserved_day + s.input + s.output,
            reserved_in = o.reserved_in + s.input, reserved_out = o.reserved_out + s.output
        FROM (
            SELECT v.owner, count(*) FILTER (WHERE batch_id IS NULL) AS n, sum(reserved_in) AS input, sum(reserved_out) AS output,
                max(time) AS time
            FROM opened CROSS JOIN LATERAL (VALUES (opened.key), (opened.account)) v(owner) GROUP BY v.owner) s
        WHERE o.id = s.owner)
    SELECT array_agg(request_id) INTO v_done FROM opened;
    IF cardinality(v_done) = json_array_length(p_admit) THEN
        RETURN NULL;
    END IF;
    RETURN ledger_admit_each(p_gateway, p_epoch, p_lane, p_admit, coalesce(v_done, '{}'), p_now);
END
$$;
-- +goose StatementEnd

-- ledger_v1 executes the operations of one lane of a gateway and returns the reply. accounts and keys are those of all
-- operations; collect fetches decisions on waiters that other calls have left; wake are accounts with waiters, which are
-- evaluated again if a new day has begun. status is:
--
--   ok      the reply is that of this call, or of the same call if it has been executed before (seq is the lane's last)
--   fenced  the epoch has ended: nothing was done
--   lost    the lane has not executed the calls before seq: commits that were acknowledged are lost
--
-- counters are, of each owner: used input and output of the month, used tokens of the day, reserved input and output of
-- the month, reserved tokens of the day, requests that run, requests that wait, the day as its number since 1970.
--
-- now in the reply is the time by which requests that were granted in full got theirs; ahead has the starts of the days of
-- accounts whose day is later, since the clock went back.
-- +goose StatementBegin
CREATE FUNCTION ledger_v1(p_gateway integer, p_epoch bigint, p_lane integer, p_seq bigint, p_accounts text[], p_keys text[],
    p_settle json, p_checkpoint json, p_cancel json, p_admit json, p_collect boolean, p_wake text[],
    OUT status text, OUT reply text, OUT owners text[], OUT counters bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = basegate, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_lane lane;
    v_accounts text[] := p_accounts;
    v_now bigint;
    v_today date;
    v_stale text[];
    v_freed text[]; -- accounts whose waiters may have become free
    v_more text[];
    v_settled text[];
    v_decided json[];
    v_replies json[];
    v_account text;
    v_ahead json;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(25191, p_gateway);
    SELECT * INTO v_lane FROM lane WHERE gateway = p_gateway AND n = p_lane FOR UPDATE;
    IF v_lane.epoch IS DISTINCT FROM p_epoch THEN
        status := 'fenced';
        RETURN;
    ELSIF v_lane.seq = p_seq THEN
        status := 'ok';
        reply := v_lane.reply;
        RETURN;
    ELSIF v_lane.seq <> p_seq - 1 THEN
        status := 'lost';
        RETURN;
    END IF;
    IF p_wake IS NOT NULL THEN
        SELECT v_accounts || array_agg(id) INTO v_accounts FROM owner WHERE id = ANY (p_wake) AND day < ledger_day(ledger_now());
    END IF;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    v_today := ledger_day(v_now);
    SELECT array_agg(o.id) INTO v_stale FROM owner o JOIN owner a ON a.id = o.account
        WHERE o.id = ANY (v_accounts || p_keys) AND o.day < greatest(a.day, v_today);
    IF v_stale IS NOT NULL THEN
        v_freed := ledger_roll(v_stale, v_today);
    END IF;
    IF p_checkpoint IS NOT NULL THEN
        UPDATE inflight i SET prompt_tokens = c.prompt, completion_tokens = c.completion, backend = c.backend
            FROM json_to_recordset(p_checkpoint) AS c(id text, prompt bigint, completion bigint, backend text)
            WHERE i.request_id = c.id AND i.gateway = p_gateway AND i.epoch = p_epoch;
    END IF;
    IF p_settle IS NOT NULL THEN
        SELECT s.settled, s.accounts INTO v_settled, v_more FROM ledger_settle(p_gateway, p_epoch, p_settle) s;
        v_freed := v_freed || v_more;
    END IF;
    IF p_cancel IS NOT NULL THEN
        v_freed := v_freed || ledger_cancel(p_gateway, p_epoch, p_lane, p_cancel);
    END IF;
    IF v_freed IS NOT NULL THEN
        FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_freed) AND waiting > 0 ORDER BY id LOOP
            v_decided := v_decided || ledger_grant(v_account, v_now, p_gateway, p_lane, false);
        END LOOP;
    END IF;
    IF p_admit IS NOT NULL THEN
        v_replies := ledger_admit(p_gateway, p_epoch, p_lane, p_admit, v_now);
    END IF;
    IF p_collect THEN
        WITH c AS (DELETE FROM decided WHERE gateway = p_gateway AND lane = p_lane RETURNING decided.reply)
        SELECT v_decided || array_agg(c.reply) INTO v_decided FROM c;
    END IF;
    SELECT array_agg(o.id), array_agg(ARRAY[month_in, month_out, day_in + day_out, reserved_in, reserved_out, reserved_day,
            running, waiting, day - date '1970-01-01']),
            json_object_agg(o.id, ledger_start(o.day)) FILTER (WHERE o.day > v_today AND o.id = o.account)
        INTO owners, counters, v_ahead FROM owner o WHERE o.id = ANY (v_accounts || p_keys);
    reply := json_build_object('empty', p_settle IS NULL AND p_checkpoint IS NULL AND p_cancel IS NULL AND p_admit IS NULL
            AND NOT p_collect, 'settled', coalesce(cardinality(v_settled), 0),
        'absent', CASE WHEN cardinality(v_settled) IS DISTINCT FROM json_array_length(p_settle) THEN
            (SELECT json_agg(s.id) FROM json_to_recordset(p_settle) AS s(id text) WHERE NOT s.id = ANY (coalesce(v_settled, '{}'))) END,
        'admit', v_replies, 'decided', v_decided, 'now', v_now, 'ahead', v_ahead);
    UPDATE lane SET seq = p_seq, reply = ledger_v1.reply WHERE gateway = p_gateway AND n = p_lane;
    status := 'ok';
END
$$;
-- +goose StatementEnd

-- ----- The epochs of gateways -----

-- ledger_end ends an epoch of a gateway: its requests in flight end as interrupted, with the tokens of their last
-- checkpoint, its waiters are dropped, and waiters of others that this lets run are granted. The caller holds the gateway's
-- advisory lock exclusively, so none of its calls is running.
-- +goose StatementBegin
CREATE FUNCTION ledger_end(p_gateway integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_accounts text[];
    v_keys text[];
    v_epoch bigint;
    v_now bigint;
    v_rows json;
    v_account text;
    v_ended bigint := 0;
BEGIN
    UPDATE gateway SET epoch = epoch + 1, alive = false WHERE id = p_gateway RETURNING epoch - 1 INTO v_epoch;
    UPDATE lane SET epoch = v_epoch + 1, seq = 0, reply = '' WHERE gateway = p_gateway;
    SELECT array_agg(DISTINCT account), array_agg(DISTINCT key) INTO v_accounts, v_keys FROM (
        SELECT account, key FROM inflight WHERE gateway = p_gateway
        UNION SELECT account, key FROM waiter WHERE gateway = p_gateway) o;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    WITH d AS (
        DELETE FROM waiter WHERE gateway = p_gateway RETURNING key, account
    ), n AS (
        SELECT v.owner, count(*) AS n FROM d CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner) GROUP BY v.owner)
    UPDATE owner o SET waiting = o.waiting - n.n, blocked = o.blocked AND o.waiting > n.n FROM n WHERE o.id = n.owner;
    DELETE FROM decided WHERE gateway = p_gateway;
    SELECT json_agg(json_build_object('id', request_id, 'state', 'interrupted', 'prompt', prompt_tokens,
        'completion', completion_tokens)), count(*) INTO v_rows, v_ended FROM inflight WHERE gateway = p_gateway;
    IF v_rows IS NOT NULL THEN
        PERFORM ledger_settle(p_gateway, v_epoch, v_rows);
    END IF;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN v_ended;
END
$$;
-- +goose StatementEnd

-- ledger_join_v1 begins an epoch of the gateway of this name, with this many lanes, and ends the one before, if there was
-- one. It returns the gateway's number, the epoch, and how many requests of the epoch before were interrupted.
-- +goose StatementBegin
CREATE FUNCTION ledger_join_v1(p_name text, p_version text, p_lanes integer, OUT gateway integer, OUT epoch bigint,
    OUT interrupted bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    INSERT INTO gateway AS g (name, version, epoch, alive, beat, beat_at) VALUES (p_name, p_version, 0, false, 0, 0)
        ON CONFLICT (name) DO NOTHING;
    SELECT g.id INTO gateway FROM gateway g WHERE g.name = p_name;
    PERFORM pg_advisory_xact_lock(25191, gateway);
    interrupted := ledger_end(gateway);
    UPDATE gateway g SET version = p_version, alive = true, beat = g.beat + 1, beat_at = ledger_now()
        WHERE g.id = ledger_join_v1.gateway RETURNING g.epoch INTO epoch;
    DELETE FROM lane l WHERE l.gateway = ledger_join_v1.gateway;
    INSERT INTO lane (gateway, n, epoch, seq, reply)
        SELECT ledger_join_v1.gateway, i, ledger_join_v1.epoch, 0, '' FROM generate_series(0, p_lanes - 1) i;
END
$$;
-- +goose StatementEnd

-- ledger_beat_v1 records that a gateway is alive, and returns the beats of all that have an epoch, its own among them. It
-- returns none if the gateway's own epoch has ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_beat_v1(p_gateway integer, p_epoch bigint)
RETURNS TABLE (gateway integer, epoch bigint, beat bigint, "time" bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE gateway g SET beat = g.beat + 1, beat_at = ledger_now() WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF FOUND THEN
        RETURN QUERY SELECT g.id, g.epoch, g.beat, ledger_now() FROM gateway g WHERE g.alive;
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_reap_v1 ends the epoch of a gateway that has been seen with this beat for too long, unless it has beaten since,
-- and returns how many of its requests were interrupted, or NULL if it was not ended. The caller must be alive itself.
-- +goose StatementBegin
CREATE FUNCTION ledger_reap_v1(p_gateway integer, p_epoch bigint, p_dead integer, p_dead_epoch bigint, p_dead_beat bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_dead);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM gateway g WHERE g.id = p_dead AND g.epoch = p_dead_epoch AND g.beat = p_dead_beat AND g.alive FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN ledger_end(p_dead);
END
$$;
-- +goose StatementEnd

-- ledger_leave_v1 ends a gateway's own epoch, and returns how many of its requests were interrupted.
-- +goose StatementBegin
CREATE FUNCTION ledger_leave_v1(p_gateway integer, p_epoch bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    RETURN ledger_end(p_gateway);
END
$$;
-- +goose StatementEnd

-- ----- Settlements in a transaction of the client's, and those that a failover has lost -----

-- +goose StatementBegin
CREATE FUNCTION ledger_settle_prepared() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = basegate, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_accounts text[];
    v_keys text[];
    v_settle json;
    v_settled text[];
    v_now bigint;
    v_account text;
BEGIN
    WITH d AS (DELETE FROM settling WHERE xid = NEW.xid RETURNING account, key, settle)
        SELECT array_agg(DISTINCT account), array_agg(DISTINCT key), json_agg(settle) INTO v_accounts, v_keys, v_settle FROM d;
    IF v_settle IS NULL THEN -- an earlier call has executed all
        RETURN NULL;
    END IF;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    SELECT s.settled INTO v_settled FROM ledger_settle(NEW.gateway, NEW.epoch, v_settle) s;
    IF cardinality(v_settled) IS DISTINCT FROM json_array_length(v_settle) THEN
        RAISE EXCEPTION 'a request that is settled is not in flight';
    END IF;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE CONSTRAINT TRIGGER settling_settle AFTER INSERT ON settling DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_settle_prepared();

-- ledger_prepare_v1 makes the commit of the caller's transaction settle requests of one gateway. It returns ok, or fenced, or
-- absent if one is not in flight and was not settled by an earlier try of the transaction; then it has prepared nothing. From
-- its call to the end of the transaction, the gateway's epoch cannot end, so the commit finds the requests in flight.
-- +goose StatementBegin
CREATE FUNCTION ledger_prepare_v1(p_gateway integer, p_epoch bigint, p_settle json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_absent integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(25191, p_gateway);
    PERFORM 1 FROM gateway WHERE id = p_gateway AND epoch = p_epoch AND alive;
    IF NOT FOUND THEN
        RETURN 'fenced';
    END IF;
    SELECT count(*) INTO v_absent FROM json_to_recordset(p_settle) AS s(id text, time bigint)
        WHERE NOT EXISTS (SELECT FROM inflight i WHERE i.request_id = s.id AND i.gateway = p_gateway AND i.epoch = p_epoch)
            AND NOT EXISTS (SELECT FROM requests r WHERE r.time = s.time AND r.request_id = s.id AND r.state = 'settled');
    IF v_absent > 0 THEN
        RETURN 'absent';
    END IF;
    INSERT INTO settling (gateway, epoch, account, key, settle)
        SELECT p_gateway, p_epoch, i.account, i.key, s.value
        FROM json_array_elements(p_settle) s JOIN inflight i ON i.request_id = s.value ->> 'id'
        WHERE i.gateway = p_gateway AND i.epoch = p_epoch;
    RETURN 'ok';
END
$$;
-- +goose StatementEnd

-- ledger_replay_v1 writes settlements of an epoch again that the database has acknowledged and lost, as after a failover to
-- a standby that was behind, and returns their number. A lease that is left of the request is settled; a request without a
-- lease and without a row is charged in the windows of its row's time; one with a row is left as it is.
-- +goose StatementBegin
CREATE FUNCTION ledger_replay_v1(p_gateway integer, p_epoch bigint, p_settle json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    s record;
    w waiter;
    v_accounts text[];
    v_keys text[];
    v_settled text[];
    v_now bigint;
    v_account text;
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    SELECT array_agg(DISTINCT n.account), array_agg(DISTINCT n.key) INTO v_accounts, v_keys
        FROM json_to_recordset(p_settle) AS n(account text, key text);
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    FOR s IN
        SELECT n.* FROM json_to_recordset(p_settle) AS n(id text, account text, key text, time bigint, model text, endpoint text,
            workload text, tag text, stream boolean, batch text)
        WHERE NOT EXISTS (SELECT FROM inflight i WHERE i.request_id = n.id)
            AND NOT EXISTS (SELECT FROM requests r WHERE r.time = n.time AND r.request_id = n.id)
    LOOP
        w := ROW(s.account, s.key, 0, s.id, p_gateway, p_epoch, 0, s.time, 0, 0, 0, 0, NULL, NULL, NULL, s.model, s.endpoint,
            s.workload, coalesce(s.tag, ''), coalesce(s.stream, false), s.batch, '');
        PERFORM ledger_open(w, ledger_day(s.time), s.time, 0, 0);
    END LOOP;
    SELECT r.settled INTO v_settled FROM ledger_settle(p_gateway, p_epoch, p_settle) r;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN coalesce(cardinality(v_settled), 0);
END
$$;
-- +goose StatementEnd

-- ledger_alarms_v1 takes the alarms that no gateway has raised yet.
-- +goose StatementBegin
CREATE FUNCTION ledger_alarms_v1() RETURNS TABLE (percent integer, key text, account text, cap json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    DELETE FROM alarm a WHERE a.id IN (SELECT id FROM alarm ORDER BY id FOR UPDATE SKIP LOCKED)
    RETURNING a.percent, a.key, a.account, a.cap
$$;
-- +goose StatementEnd

-- ----- Rows of keys and accounts -----

-- The rows of keys and accounts in owner, which the ledger evaluates, follow the tables keys and accounts: every transaction that
-- changes those changes owner too, at its commit. Only accounts that were never active are deleted; their rows in owner stay
-- disabled.

-- ledger_owners inserts keys and accounts or changes their caps, slots and state, and evaluates the waiters of their accounts
-- again. It leaves the counters as they are.
-- +goose StatementBegin
CREATE FUNCTION ledger_owners(p_owners json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_accounts text[];
    v_account text;
    v_now bigint;
BEGIN
    SELECT array_agg(DISTINCT account) INTO v_accounts FROM json_to_recordset(p_owners) AS n(account text);
    -- The row of an account that is new is inserted before it is locked, so that its keys never exist without it.
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT id, id, false, ledger_day(ledger_now()), ledger_month(ledger_day(ledger_now()))
        FROM unnest(v_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    INSERT INTO owner AS o (id, account, enabled, month_total, day_total, month_input, month_output, slots, expires_at, day, month)
        SELECT n.id, n.account, n.enabled, n.month_total, n.day_total, n.month_input, n.month_output, n.slots, n.expires_at,
            a.day, a.month
        FROM json_to_recordset(p_owners) AS n(id text, account text, enabled boolean, month_total bigint, day_total bigint,
            month_input bigint, month_output bigint, slots integer, expires_at bigint) JOIN owner a ON a.id = n.account
        ON CONFLICT (id) DO UPDATE SET enabled = excluded.enabled, month_total = excluded.month_total,
            day_total = excluded.day_total, month_input = excluded.month_input, month_output = excluded.month_output,
            slots = excluded.slots, expires_at = excluded.expires_at,
            raised = o.raised & ((o.month_total IS NOT DISTINCT FROM excluded.month_total)::integer
                + (o.day_total IS NOT DISTINCT FROM excluded.day_total)::integer * 2
                + (o.month_input IS NOT DISTINCT FROM excluded.month_input)::integer * 4
                + (o.month_output IS NOT DISTINCT FROM excluded.month_output)::integer * 8)
        WHERE o.account = excluded.account AND (o.enabled, o.month_total, o.day_total, o.month_input, o.month_output, o.slots,
            o.expires_at) IS DISTINCT FROM (excluded.enabled, excluded.month_total, excluded.day_total, excluded.month_input,
            excluded.month_output, excluded.slots, excluded.expires_at);
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, true);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_sync copies caps, slots, expiry and state to owner: of accounts, of all keys of some of them (p_all), and of single
-- keys of others (p_keys). It reads them after it has locked the accounts, so that the later of two changes stands.
--
-- The slots of an account are the configured ones, or the highest concurrency that the operator has given to it or one of its
-- active keys, if that is higher.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync(p_accounts text[], p_all text[], p_keys text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_owners json;
    v_key integer;
    v_account integer;
BEGIN
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT DISTINCT id, id, false, ledger_day(ledger_now()), ledger_month(ledger_day(ledger_now()))
        FROM unnest(p_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    SELECT concurrency_per_key, concurrency_per_account INTO v_key, v_account FROM ledger_setting;
    SELECT json_agg(o) INTO v_owners FROM (
        SELECT a.id, a.id AS account, a.state = 'active' AS enabled, a.month_total, a.day_total, a.month_input, a.month_output,
            CASE WHEN v_account IS NOT NULL THEN least(greatest(v_account, a.concurrency, (
                SELECT max(k.concurrency) FROM keys k
                WHERE k.account_id = a.id AND k.operator_concurrency IS NOT NULL AND k.state = 'active')), 2147483647) END AS slots,
            NULL::bigint AS expires_at
        FROM accounts a WHERE a.id = ANY (p_accounts)
        UNION ALL
        SELECT k.id, a.id, k.state = 'active', k.month_total, k.day_total, k.month_input, k.month_output,
            CASE WHEN k.operator_concurrency IS NOT NULL THEN coalesce(k.concurrency, v_key)
                ELSE least(coalesce(k.concurrency, v_key), coalesce(a.concurrency, v_key)) END, k.expires_at
        FROM (SELECT id FROM keys WHERE account_id = ANY (p_all) UNION SELECT unnest(p_keys)) n
            JOIN keys k ON k.id = n.id JOIN accounts a ON a.id = k.account_id
        ORDER BY id) o;
    IF v_owners IS NOT NULL THEN
        PERFORM ledger_owners(v_owners);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_note appends an id to a list in a setting of the transaction, unless it is the last one there.
-- +goose StatementBegin
CREATE FUNCTION ledger_note(p_setting text, p_id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_list text := coalesce(current_setting(p_setting, true), '');
BEGIN
    IF right(v_list, length(p_id) + 1) <> ',' || p_id THEN
        PERFORM set_config(p_setting, v_list || ',' || p_id, true);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_note_change remembers the account of a row that was changed, and the key, for the end of the transaction. A change of
-- an account's concurrency concerns all its keys; so do changes of very many keys, whose list would be long. A change that is
-- rolled back to a savepoint is forgotten with it.
-- +goose StatementBegin
CREATE FUNCTION ledger_note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_account text := to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
    PERFORM ledger_note('basegate.changed_accounts', v_account);
    IF TG_TABLE_NAME = 'keys' AND length(coalesce(current_setting('basegate.changed_keys', true), '')) < 65536 THEN
        PERFORM ledger_note('basegate.changed_keys', NEW.id);
    ELSIF TG_TABLE_NAME = 'keys' OR TG_OP = 'UPDATE' AND to_jsonb(OLD) -> 'concurrency' IS DISTINCT FROM to_jsonb(NEW) -> 'concurrency' THEN
        PERFORM ledger_note('basegate.changed_defaults', v_account);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- ledger_sync_changes runs at the commit of a transaction that has changed keys or accounts. The first of its calls locks all
-- accounts that the transaction has changed, in the order of their ids, so no locks of accounts are held while a client is
-- between two statements.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_accounts text := current_setting('basegate.changed_accounts', true);
    v_all text := current_setting('basegate.changed_defaults', true);
    v_keys text := current_setting('basegate.changed_keys', true);
BEGIN
    IF coalesce(v_accounts, '') <> '' THEN
        PERFORM set_config('basegate.changed_accounts', '', true), set_config('basegate.changed_defaults', '', true),
            set_config('basegate.changed_keys', '', true);
        PERFORM ledger_sync(string_to_array(ltrim(v_accounts, ','), ','), string_to_array(ltrim(v_all, ','), ','),
            string_to_array(ltrim(v_keys, ','), ','));
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER accounts_note_change AFTER INSERT OR UPDATE ON accounts
    FOR EACH ROW EXECUTE FUNCTION ledger_note_change('id');
CREATE TRIGGER keys_note_change AFTER INSERT OR UPDATE ON keys
    FOR EACH ROW EXECUTE FUNCTION ledger_note_change('account_id');
CREATE CONSTRAINT TRIGGER accounts_sync_owners AFTER INSERT OR UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_sync_changes();
CREATE CONSTRAINT TRIGGER keys_sync_owners AFTER INSERT OR UPDATE ON keys DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_sync_changes();

-- ledger_sync_v1 syncs the accounts after one, with all their keys, in the order of their ids, at most p_limit, and returns the
-- last of them; NULL after the last of all.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync_v1(p_after text, p_limit integer) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_accounts text[];
BEGIN
    SELECT array_agg(id ORDER BY id) INTO v_accounts
        FROM (SELECT id FROM accounts WHERE id > p_after ORDER BY id LIMIT p_limit) a;
    IF v_accounts IS NULL THEN
        UPDATE ledger_setting SET synced = true WHERE NOT synced;
        RETURN NULL;
    END IF;
    PERFORM ledger_sync(v_accounts, v_accounts, NULL);
    RETURN v_accounts[cardinality(v_accounts)];
END
$$;
-- +goose StatementEnd

-- ledger_configure_v1 records the slots of keys that have no number of their own, and those of accounts, and reports whether
-- ledger_sync_v1 must be called for all accounts: a number has changed, or an earlier change was not finished.
-- +goose StatementBegin
CREATE FUNCTION ledger_configure_v1(p_concurrency_per_key integer, p_concurrency_per_account integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE ledger_setting SET concurrency_per_key = p_concurrency_per_key, concurrency_per_account = p_concurrency_per_account,
        synced = false
        WHERE (concurrency_per_key, concurrency_per_account) IS DISTINCT FROM (p_concurrency_per_key, p_concurrency_per_account);
    RETURN (SELECT NOT synced FROM ledger_setting);
END
$$;
-- +goose StatementEnd

-- ----- Partitions of requests -----

-- ledger_partition_v1 creates the partition of requests for the month of a time, in microseconds, and reports whether it
-- did not exist.
-- +goose StatementBegin
CREATE FUNCTION ledger_partition_v1(p_time bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_month date := ledger_month(ledger_day(p_time));
    v_name text := 'requests_' || to_char(v_month, 'YYYY_MM');
BEGIN
    PERFORM pg_advisory_xact_lock(25192, 0);
    IF to_regclass('basegate.' || v_name) IS NOT NULL THEN
        RETURN false;
    END IF;
    -- Attaching a table takes a weaker lock on requests than creating it as a partition.
    EXECUTE format('CREATE TABLE %I (LIKE requests INCLUDING ALL) WITH (autovacuum_vacuum_insert_scale_factor = 0.05)', v_name);
    EXECUTE format('ALTER TABLE requests ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', v_name,
        ledger_start(v_month), ledger_start((v_month + interval '1 month')::date));
    RETURN true;
END
$$;
-- +goose StatementEnd

-- ledger_partitions_v1 creates the partitions of requests for the current month and this many after it, and returns how many
-- it created.
-- +goose StatementBegin
CREATE FUNCTION ledger_partitions_v1(p_ahead integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_month date := ledger_month(ledger_day(ledger_now()));
    v_created integer := 0;
BEGIN
    FOR i IN 0..p_ahead LOOP
        v_created := v_created + ledger_partition_v1(ledger_start(v_month))::integer;
        v_month := (v_month + interval '1 month')::date;
    END LOOP;
    RETURN v_created;
END
$$;
-- +goose StatementEnd

-- ----- What commands check and mend while gateways may be running -----

-- The counters of an owner are the sums of its rows in requests and inflight; each transaction of the ledger changes both, so one
-- snapshot of them must agree.

-- ledger_used sums up the requests of accounts, or of all if NULL, by owner and day.
-- +goose StatementBegin
CREATE FUNCTION ledger_used(p_accounts text[], p_from bigint, p_to bigint)
RETURNS TABLE (owner text, day date, input bigint, output bigint)
LANGUAGE sql STABLE AS $$
    SELECT v.owner, ledger_day(r.time), sum(r.prompt_tokens)::bigint, sum(r.completion_tokens)::bigint
    FROM requests r CROSS JOIN LATERAL (VALUES (r.key_id), (r.account_id)) v(owner)
    WHERE (p_accounts IS NULL OR r.account_id = ANY (p_accounts)) AND r.time >= p_from AND r.time < p_to
    GROUP BY 1, 2
$$;
-- +goose StatementEnd

-- ledger_leased sums up the requests in flight and the waiters by owner, in the windows of the owner's counters. Lines of batches
-- need no slot.
-- +goose StatementBegin
CREATE FUNCTION ledger_leased()
RETURNS TABLE (owner text, running bigint, waiting bigint, reserved_day bigint, reserved_in bigint, reserved_out bigint)
LANGUAGE sql STABLE AS $$
    WITH e AS (
        SELECT v.owner, (i.batch_id IS NULL)::integer AS running, 0 AS waiting, i.day, i.reserved_in, i.reserved_out
        FROM inflight i CROSS JOIN LATERAL (VALUES (i.key), (i.account)) v(owner)
        UNION ALL
        SELECT v.owner, 0, 1, NULL, 0, 0 FROM waiter w CROSS JOIN LATERAL (VALUES (w.key), (w.account)) v(owner))
    SELECT o.id, sum(e.running), sum(e.waiting),
        coalesce(sum(e.reserved_in + e.reserved_out) FILTER (WHERE e.day = o.day), 0)::bigint,
        coalesce(sum(e.reserved_in) FILTER (WHERE e.day >= o.month), 0)::bigint,
        coalesce(sum(e.reserved_out) FILTER (WHERE e.day >= o.month), 0)::bigint
    FROM e JOIN owner o ON o.id = e.owner GROUP BY o.id
$$;
-- +goose StatementEnd

-- ledger_differences_v1 returns the counters of owners in a month that are not the sums of their rows: those of the day and
-- the month that the owner is in, and those of the days of the month that have ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_differences_v1(p_month date)
RETURNS TABLE (account text, owner text, counter text, stored bigint, counted bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    WITH used AS MATERIALIZED (
        SELECT u.*, o.account, o.day AS today FROM ledger_used(NULL, ledger_start(p_month), ledger_start((p_month + interval '1 month')::date)) u
            JOIN owner o ON o.id = u.owner
    ), month AS (
        SELECT u.owner, sum(u.input) AS input, sum(u.output) AS output FROM used u GROUP BY u.owner
    ), ended AS (
        SELECT s.owner, s.day, o.account, s.input, s.output FROM spend s JOIN owner o ON o.id = s.owner
        WHERE s.day >= p_month AND s.day < (p_month + interval '1 month')::date
    )
    SELECT o.account, o.id, c.counter, c.stored, c.counted
    FROM owner o
        LEFT JOIN used d ON d.owner = o.id AND d.day = o.day
        LEFT JOIN month m ON m.owner = o.id
        LEFT JOIN ledger_leased() l ON l.owner = o.id
        CROSS JOIN LATERAL (VALUES
            ('day_in', o.day_in, coalesce(d.input, 0)), ('day_out', o.day_out, coalesce(d.output, 0)),
            ('month_in', o.month_in, coalesce(m.input, 0)::bigint), ('month_out', o.month_out, coalesce(m.output, 0)::bigint),
            ('running', o.running, coalesce(l.running, 0)), ('waiting', o.waiting, coalesce(l.waiting, 0)),
            ('reserved_day', o.reserved_day, coalesce(l.reserved_day, 0)),
            ('reserved_in', o.reserved_in, coalesce(l.reserved_in, 0)),
            ('reserved_out', o.reserved_out, coalesce(l.reserved_out, 0))) c(counter, stored, counted)
    WHERE o.month = p_month AND c.stored <> c.counted
    UNION ALL
    SELECT coalesce(e.account, u.account), coalesce(e.owner, u.owner), c.counter || ' of ' || coalesce(e.day, u.day), c.stored, c.counted
    FROM ended e FULL JOIN (SELECT * FROM used WHERE day <> today) u ON u.owner = e.owner AND u.day = e.day
        CROSS JOIN LATERAL (VALUES ('input', coalesce(e.input, 0), coalesce(u.input, 0)),
            ('output', coalesce(e.output, 0), coalesce(u.output, 0))) c(counter, stored, counted)
    WHERE c.stored <> c.counted
    ORDER BY 1, 2, 3
$$;
-- +goose StatementEnd

-- ledger_recount_v1 makes the counters of accounts, or of all if NULL, and of their keys the sums of their rows. Rows are kept
-- since p_since; the days before it stay. Requests of the accounts wait meanwhile.
-- +goose StatementBegin
CREATE FUNCTION ledger_recount_v1(p_accounts text[], p_since date) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_now bigint;
BEGIN
    PERFORM 1 FROM owner WHERE p_accounts IS NULL OR id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    CREATE TEMPORARY TABLE recount ON COMMIT DROP AS
        SELECT u.* FROM ledger_used(p_accounts, ledger_start(p_since), 9223372036854775807) u JOIN owner o ON o.id = u.owner;
    -- The day of an owner never goes back, and no row lies behind it.
    UPDATE owner o SET day = n.day, month = ledger_month(n.day)
    FROM (SELECT a.account, greatest(max(a.day), ledger_day(v_now), max(r.day)) AS day
        FROM owner a LEFT JOIN pg_temp.recount r ON r.owner = a.id GROUP BY a.account) n
    WHERE n.account = o.account AND (p_accounts IS NULL OR o.account = ANY (p_accounts));
    DELETE FROM spend s USING owner o
        WHERE o.id = s.owner AND (p_accounts IS NULL OR o.account = ANY (p_accounts)) AND s.day >= p_since;
    INSERT INTO spend (owner, day, input, output)
        SELECT r.owner, r.day, r.input, r.output FROM pg_temp.recount r JOIN owner o ON o.id = r.owner
        WHERE r.day < o.day AND (r.input > 0 OR r.output > 0);
    UPDATE owner o SET day_in = n.day_in, day_out = n.day_out, month_in = n.month_in, month_out = n.month_out,
        running = n.running, waiting = n.waiting, blocked = o.blocked AND n.waiting > 0,
        reserved_day = n.reserved_day, reserved_in = n.reserved_in, reserved_out = n.reserved_out
    FROM (
        SELECT a.id, coalesce(sum(r.input) FILTER (WHERE r.day = a.day), 0) AS day_in,
            coalesce(sum(r.output) FILTER (WHERE r.day = a.day), 0) AS day_out,
            coalesce(sum(r.input) FILTER (WHERE r.day >= a.month), 0) AS month_in,
            coalesce(sum(r.output) FILTER (WHERE r.day >= a.month), 0) AS month_out,
            coalesce(max(l.running), 0) AS running, coalesce(max(l.waiting), 0) AS waiting,
            coalesce(max(l.reserved_day), 0) AS reserved_day, coalesce(max(l.reserved_in), 0) AS reserved_in,
            coalesce(max(l.reserved_out), 0) AS reserved_out
        FROM owner a LEFT JOIN pg_temp.recount r ON r.owner = a.id LEFT JOIN ledger_leased() l ON l.owner = a.id
        WHERE p_accounts IS NULL OR a.account = ANY (p_accounts)
        GROUP BY a.id) n
    WHERE n.id = o.id;
    DROP TABLE pg_temp.recount;
END
$$;
-- +goose StatementEnd

-- ledger_fill_v1 puts all accounts and keys on the ledger, with counters that are the sums of their requests. The gateways set
-- their caps.
-- +goose StatementBegin
CREATE FUNCTION ledger_fill_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_today date := ledger_day(ledger_now());
BEGIN
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT o.id, o.account, false, v_today, ledger_month(v_today)
        FROM (SELECT id, id AS account FROM accounts UNION ALL SELECT id, account_id FROM keys) o
        ON CONFLICT (id) DO NOTHING;
    PERFORM ledger_recount_v1(NULL, '1970-01-01');
END
$$;
-- +goose StatementEnd

-- ledger_orphans_v1 returns the gateways that hold requests in flight or waiters although their epoch has ended, or whose
-- heartbeats are older than p_silent microseconds.
-- +goose StatementBegin
CREATE FUNCTION ledger_orphans_v1(p_silent bigint)
RETURNS TABLE (gateway integer, name text, alive boolean, epoch bigint, beat bigint, leases bigint, waiters bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT h.gateway, coalesce(max(g.name), ''), coalesce(bool_or(g.alive), false), coalesce(max(g.epoch), 0),
        coalesce(max(g.beat), 0), sum(h.lease), sum(1 - h.lease)
    FROM (SELECT i.gateway, i.epoch, 1 AS lease FROM inflight i UNION ALL SELECT w.gateway, w.epoch, 0 FROM waiter w) h
        LEFT JOIN gateway g ON g.id = h.gateway
    WHERE g.id IS NULL OR NOT g.alive OR g.epoch <> h.epoch OR g.beat_at < ledger_now() - p_silent
    GROUP BY h.gateway ORDER BY h.gateway
$$;
-- +goose StatementEnd

-- ledger_release_v1 ends the requests in flight of a gateway as interrupted, with the tokens of their last checkpoint, and
-- drops its waiters: those of epochs that have ended, and those of the current one if its beat is still p_beat. It returns
-- the requests that it ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_release_v1(p_gateway integer, p_epoch bigint, p_beat bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_current bigint;
    v_accounts text[];
    v_keys text[];
    v_account text;
    v_epoch bigint;
    v_now bigint;
    v_rows json;
    v_n bigint;
    v_ended bigint := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.alive AND g.epoch = p_epoch AND g.beat = p_beat FOR UPDATE;
    IF FOUND THEN
        RETURN ledger_end(p_gateway);
    END IF;
    SELECT g.epoch INTO v_current FROM gateway g WHERE g.id = p_gateway AND g.alive;
    SELECT array_agg(DISTINCT account), array_agg(DISTINCT key) INTO v_accounts, v_keys FROM (
        SELECT account, key FROM inflight WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current
        UNION SELECT account, key FROM waiter WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current) o;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    WITH d AS (
        DELETE FROM waiter WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current RETURNING key, account
    ), n AS (
        SELECT v.owner, count(*) AS n FROM d CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner) GROUP BY v.owner)
    UPDATE owner o SET waiting = o.waiting - n.n, blocked = o.blocked AND o.waiting > n.n FROM n WHERE o.id = n.owner;
    IF v_current IS NULL THEN
        DELETE FROM decided WHERE gateway = p_gateway;
    END IF;
    FOR v_epoch IN SELECT DISTINCT epoch FROM inflight WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current LOOP
        SELECT json_agg(json_build_object('id', request_id, 'state', 'interrupted', 'prompt', prompt_tokens,
            'completion', completion_tokens)), count(*) INTO v_rows, v_n FROM inflight WHERE gateway = p_gateway AND epoch = v_epoch;
        PERFORM ledger_settle(p_gateway, v_epoch, v_rows);
        v_ended := v_ended + v_n;
    END LOOP;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN v_ended;
END
$$;
-- +goose StatementEnd

-- ledger_foreign_v1 reports whether rows of requests, or the rollups' watermark, have numbers of transactions that this server has
-- not begun yet, as after pg_restore to another server: the rollups would not include what follows.
-- +goose StatementBegin
CREATE FUNCTION ledger_foreign_v1() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT w.seq::text::xid8 >= pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM requests WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
    FROM usage_watermark w
$$;
-- +goose StatementEnd

-- ledger_renumber_v1 gives such rows numbers of this server, so that the rollups include the same of them as before. Which of the
-- rows that were inserted since the restore they include is not known: rebuild the rollups afterwards.
-- +goose StatementBegin
CREATE FUNCTION ledger_renumber_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_own xid8 := pg_current_xact_id();
    v_seq xid8;
BEGIN
    PERFORM pg_advisory_xact_lock(1650553701, 1919904876); -- of the rollups
    SELECT seq::text::xid8 INTO v_seq FROM usage_watermark;
    UPDATE requests SET xid = CASE WHEN xid <= v_seq THEN '3'::xid8 ELSE v_own END -- 3 is the first number of a server
        WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE usage_watermark SET seq = v_own::text::bigint - 1 WHERE seq >= v_own::text::bigint;
END
$$;
-- +goose StatementEnd

-- ===== Later migrations =====

-- The oldest program that may work on this schema, by the last migration that it knows. A migration that removes something
-- which the release before it still uses raises the number; a program that knows less does not start.
CREATE TABLE schema_compatibility (
    id     BOOLEAN PRIMARY KEY CHECK (id),
    oldest BIGINT NOT NULL
);

INSERT INTO schema_compatibility (id, oldest) VALUES (true, 1);

-- Three roles, which an administrator creates: the owner, which migrates; basegate_runtime, with which gateways serve: it
-- may read, write all tables but those of the ledger, and call the ledger's functions; basegate_reader, which may read. Where
-- the last two do not exist, the owner does all. Each migration calls ledger_grants(); an administrator who creates the roles
-- later calls it as the owner.
-- +goose StatementBegin
CREATE FUNCTION ledger_grants() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = basegate, pg_temp AS $$
DECLARE
    v_role text;
    v_function regprocedure;
    v_table regclass;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA basegate FROM PUBLIC;
    FOREACH v_role IN ARRAY ARRAY['basegate_runtime', 'basegate_reader'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role);
        EXECUTE format('GRANT USAGE ON SCHEMA basegate TO %I', v_role);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA basegate TO %I', v_role);
        EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA basegate GRANT SELECT ON TABLES TO %I', v_role);
        CONTINUE WHEN v_role = 'basegate_reader';
        FOR v_function IN SELECT oid FROM pg_proc WHERE pronamespace = 'basegate'::regnamespace AND proname ~ '^ledger_.*v\d+$' LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, v_role);
        END LOOP;
        FOR v_table IN SELECT oid FROM pg_class WHERE relnamespace = 'basegate'::regnamespace AND relkind IN ('r', 'p')
            AND relname NOT IN ('gateway', 'lane', 'owner', 'spend', 'inflight', 'waiter', 'decided', 'alarm', 'settling', 'ledger_setting',
                'schema_migrations', 'schema_compatibility')
            AND relname !~ '^requests($|_\d)' LOOP
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %s TO %I', v_table, v_role);
        END LOOP;
        EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA basegate TO %I', v_role);
    END LOOP;
END
$$;
-- +goose StatementEnd

SELECT ledger_partitions_v1(3);
SELECT ledger_grants();
