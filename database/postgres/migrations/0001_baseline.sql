-- +goose Up

-- The schema of release 1.0.0 on PostgreSQL. Times are microseconds since the epoch, UTC, unless a column says otherwise.
-- database/migrations has the same tables for SQLite; what several gateways need beside them is only here. The ledger differs:
-- here it is the tables owner to decided and the functions ledger_*, which make all changes of these tables, so no gateway writes
-- them itself. docs/cluster-protocol.md describes the protocol.

-- ===== Accounts and keys: package identity =====

-- Caps are JSON objects of tokens, such as {"month_total": 1000}, by package quota, which checks them; without any, they are NULL.
CREATE TABLE accounts (
    id           TEXT PRIMARY KEY,
    email        TEXT NOT NULL,
    name         TEXT NOT NULL,
    admin        BOOLEAN NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('active', 'pending', 'disabled')),
    created_at   BIGINT NOT NULL,
    caps         JSONB CHECK (jsonb_typeof(caps) = 'object'),
    concurrency  BIGINT CHECK (concurrency >= 1) -- the highest that a holder can give to a key; NULL is the configured one
);

-- Email addresses are compared without regard to case.
CREATE UNIQUE INDEX accounts_email ON accounts (lower(email));

-- Columns that begin with operator_ hold what the operator has set: the holder of a key cannot exceed it. NULL leaves it to the
-- holder.
CREATE TABLE keys (
    id                    TEXT PRIMARY KEY,
    account_id            TEXT NOT NULL REFERENCES accounts (id),
    parent                TEXT REFERENCES keys (id), -- the key of the account that has made this one; NULL if none has. It never changes
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
    caps                  JSONB CHECK (jsonb_typeof(caps) = 'object'),
    operator_caps         JSONB CHECK (jsonb_typeof(operator_caps) = 'object'),
    run                   TEXT CHECK (run <> ''), -- of a key with a parent: the name of its run on the ledger; NULL if it has none
    children              BOOLEAN, -- whether the key may make keys; NULL is limits.children
    adapters              BOOLEAN NOT NULL DEFAULT false, -- it may add LoRA adapters
    stops                 BIGINT NOT NULL DEFAULT 0 -- how often its running requests were ended: those that began before the last time
);

CREATE INDEX keys_account ON keys (account_id);
CREATE INDEX keys_parent ON keys (parent, expires_at) WHERE parent IS NOT NULL;
CREATE INDEX keys_run ON keys (account_id, run) WHERE run IS NOT NULL;
CREATE INDEX keys_prefix ON keys (prefix);
-- The keys that count towards limits.keys_per_account, the keys in the order of lists, and those by which the operator has raised
-- an account's slots.
CREATE INDEX keys_live ON keys (account_id, expires_at) WHERE state <> 'revoked' AND parent IS NULL;
CREATE INDEX keys_listed ON keys (account_id, (state = 'revoked'), created_at, id) WHERE parent IS NULL;
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

-- Versions of the prompts saved in the workbench. No other table holds text of prompts or completions.
CREATE TABLE prompts (
    id             TEXT NOT NULL,
    account_id     TEXT NOT NULL REFERENCES accounts (id),
    name           TEXT NOT NULL,
    model          TEXT NOT NULL,
    version        BIGINT NOT NULL,
    latest         BOOLEAN NOT NULL DEFAULT true, -- the others have no link, origin and words
    updated_at     BIGINT NOT NULL,
    share_id       TEXT NOT NULL DEFAULT '',  -- of the link by which other users read the prompt; empty if there is none
    everyone       BOOLEAN NOT NULL DEFAULT false, -- all users find the link in their lists
    origin         TEXT NOT NULL DEFAULT '',  -- JSON: what the prompt is a copy of; empty if it is none
    object         TEXT NOT NULL DEFAULT '',  -- of the storage, with the document; empty: the row has it
    document       BYTEA,                     -- JSON, in the workbench's format; NULL: the object has it
    words          BYTEA NOT NULL DEFAULT '', -- what a search finds: the different words, case-folded
    document_bytes BIGINT NOT NULL DEFAULT 0,
    bytes          BIGINT NOT NULL DEFAULT 0, -- of the document and the words
    PRIMARY KEY (id, version)
);

CREATE INDEX prompts_account ON prompts (account_id, latest, updated_at);
CREATE UNIQUE INDEX prompts_latest ON prompts (id) WHERE latest;
CREATE UNIQUE INDEX prompts_share ON prompts (share_id) WHERE share_id <> '';
CREATE INDEX prompts_everyone ON prompts (updated_at) WHERE everyone;

-- Presets of parameters that users save in the workbench. They can have texts, such as stop sequences.
CREATE TABLE presets (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    mode       TEXT NOT NULL, -- completion or chat
    name       TEXT NOT NULL,
    settings   TEXT NOT NULL, -- JSON
    PRIMARY KEY (account_id, mode, name)
);

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

-- LoRA adapters of models, those of the configuration included once a gateway has seen them there. version is a new number each
-- time that one is added; account_id is that of the key that has added it, or empty. modified_at is the latest change of its files,
-- 0 if the gateway cannot see them.
CREATE TABLE adapters (
    id          TEXT PRIMARY KEY,
    model       TEXT NOT NULL,
    path        TEXT NOT NULL,
    version     BIGINT NOT NULL,
    configured  BOOLEAN NOT NULL,
    account_id  TEXT NOT NULL,
    modified_at BIGINT NOT NULL,
    created_at  BIGINT NOT NULL
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
    launched       TEXT NOT NULL DEFAULT '', -- the address that launch.start has printed
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

-- Commands for the running gateways, written by the CLI and by gateways that do not lead the fleet, and deleted when executed.
CREATE TABLE model_orders (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    model      TEXT NOT NULL,
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop', 'sleep')),
    given_at   BIGINT NOT NULL
);

-- The gateway that starts and stops the backends for all, and the state of these. After the end of its epoch another one leads.
CREATE TABLE fleet_leader (
    one      BOOLEAN PRIMARY KEY DEFAULT true CHECK (one), -- there is one row
    gateway  INTEGER NOT NULL DEFAULT 0,                   -- 0: none
    epoch    BIGINT NOT NULL DEFAULT 0,
    version  BIGINT NOT NULL DEFAULT 0,                    -- rises with each change of backends; BASEGATE_FENCE of the programs
    backends TEXT NOT NULL DEFAULT '{}'                    -- JSON, by MODEL/BACKEND
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
INSERT INTO fleet_leader DEFAULT VALUES;

-- What each gateway has last reported to the one that leads.
CREATE TABLE fleet_reports (
    gateway     INTEGER PRIMARY KEY,
    epoch       BIGINT NOT NULL,
    seen        BIGINT NOT NULL, -- the version of fleet_leader that the gateway acts on
    uses        TEXT NOT NULL,   -- JSON, by MODEL/BACKEND: its last request, whether requests are in flight, whether it wants a start
    reported_at BIGINT NOT NULL
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
    beat_at BIGINT NOT NULL, -- for people; whether a gateway is dead is decided by beat alone
    "left"  BOOLEAN NOT NULL DEFAULT false -- requests of its ended epochs may still be in flight, or wait
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
-- their requests in flight change only while it is locked. Whoever has read a row knows by xmin whether it has been changed since.
-- Days are UTC.
CREATE TABLE owner (
    id           TEXT PRIMARY KEY,
    account      TEXT NOT NULL, -- of a key; the id itself of an account
    parent       TEXT, -- of a key: the key that has made it, whose counters have its requests too
    enabled      BOOLEAN NOT NULL,
    caps         JSONB,
    slots        INTEGER CHECK (slots >= 1), -- requests that may run at once; NULL is unbounded
    expires_at   BIGINT, -- of a key: its requests are refused from then on; NULL is never
    last_use     BIGINT NOT NULL DEFAULT 0, -- when the latest request arrived; 0 is never
    last_address TEXT NOT NULL DEFAULT '', -- of a key: from which the latest request came that was not a line of a batch
    raised       BIGINT NOT NULL DEFAULT 0, -- caps whose alarm of a refusal has been raised in the window: a bit for each, by package quota
    running      INTEGER NOT NULL DEFAULT 0, -- requests in flight, without lines of batches, which need no slot
    waiting      INTEGER NOT NULL DEFAULT 0, -- requests that wait
    queued       INTEGER NOT NULL DEFAULT 0, -- of a key: those of them that are its own, and not of a key that it has made
    ticket       BIGINT NOT NULL DEFAULT 0, -- of an account: the last one handed out
    blocked      BOOLEAN NOT NULL DEFAULT false, -- a waiter waits because of this owner's caps or slots
    -- The windows: day is the latest day on which the owner was charged or asked; it never goes back.
    day          DATE NOT NULL,
    life_in      BIGINT NOT NULL DEFAULT 0, -- used tokens of all time
    life_out     BIGINT NOT NULL DEFAULT 0,
    month_in     BIGINT NOT NULL DEFAULT 0, -- used tokens of the day's month
    month_out    BIGINT NOT NULL DEFAULT 0,
    day_in       BIGINT NOT NULL DEFAULT 0, -- used tokens of the day
    day_out      BIGINT NOT NULL DEFAULT 0,
    reserved_life_in   BIGINT NOT NULL DEFAULT 0, -- by requests in flight
    reserved_life_out  BIGINT NOT NULL DEFAULT 0,
    reserved_month_in  BIGINT NOT NULL DEFAULT 0, -- by those that were admitted in this month
    reserved_month_out BIGINT NOT NULL DEFAULT 0,
    reserved_day_in    BIGINT NOT NULL DEFAULT 0, -- by those that were admitted on this day
    reserved_day_out   BIGINT NOT NULL DEFAULT 0,
    regrant      BOOLEAN NOT NULL DEFAULT false -- of an account: caps, slots or state have changed since its waiters were last evaluated
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0);

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
    run               TEXT NOT NULL DEFAULT '', -- of the experiment that the request is part of; empty if it has none
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
    max_tokens BIGINT NOT NULL, -- 0: it needs a slot and no tokens
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
    run        TEXT NOT NULL DEFAULT '',
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
    state             TEXT NOT NULL CHECK (state IN ('settled', 'interrupted', 'replayed')),
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    queue_us          BIGINT NOT NULL,
    first_token_us    BIGINT NOT NULL,
    total_us          BIGINT NOT NULL,
    boot_us           BIGINT NOT NULL DEFAULT 0,
    attempts          TEXT NOT NULL DEFAULT '', -- JSON, in the encoding of package usage; empty if there is nothing to tell
    batch_id          TEXT,
    run               TEXT NOT NULL DEFAULT '',
    saved_tokens      BIGINT NOT NULL DEFAULT 0, -- of the response that a replayed request has repeated
    cached_tokens     BIGINT, -- prompt tokens that the backend had cached; this and the next four are NULL if it did not report them
    created_tokens    BIGINT, -- prompt tokens that it cached for the next requests
    engine_queue_us   BIGINT, -- the engine's own times: waiting to be scheduled,
    engine_prefill_us BIGINT, -- from then to the first token,
    engine_between_us BIGINT, -- and the mean between two tokens
    xid               XID8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (time, request_id)
) PARTITION BY RANGE (time);

CREATE INDEX requests_xid ON requests (xid);
CREATE INDEX requests_account ON requests (account_id, time);
CREATE INDEX requests_failed ON requests (account_id, time) WHERE code <> '' OR state = 'interrupted';
CREATE INDEX requests_id ON requests USING hash (request_id);

-- When each key was last used, and from which address, if that was before its first request here, as owner.last_use tells.
CREATE TABLE key_uses (
    key_id  TEXT PRIMARY KEY,
    time    BIGINT NOT NULL,
    address TEXT NOT NULL DEFAULT ''
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
    total_us   BIGINT NOT NULL,
    run        TEXT NOT NULL DEFAULT '',
    param      TEXT NOT NULL DEFAULT '', -- the API's name of the field in error
    expected   TEXT NOT NULL DEFAULT ''  -- in the gateway's words, without what was sent
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
    run        TEXT NOT NULL DEFAULT '',
    UNIQUE (account_id, key_id, model, endpoint, workload, run)
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
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

-- ===== Responses that can be repeated: package replay =====

-- Each is an object of the storage. name is a keyed hash of the request; nothing here tells what was asked.
CREATE TABLE replays (
    name       BYTEA PRIMARY KEY,
    account_id TEXT NOT NULL,
    object     TEXT NOT NULL,
    bytes      BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL
);

CREATE INDEX replays_account ON replays (account_id, used_at, bytes);
CREATE INDEX replays_used ON replays (used_at, bytes);
CREATE INDEX replays_created ON replays (created_at);

-- The secret of which names and keys of responses are derived, made by the first gateway that needs it.
CREATE TABLE replay_secret (
    "only" BIGINT PRIMARY KEY CHECK ("only" = 1),
    secret BYTEA NOT NULL
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
    tokens     BIGINT NOT NULL DEFAULT 0, -- an estimate of the most that a batch of it costs; 0: not known
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
    parked_caps       BIGINT NOT NULL DEFAULT 0, -- a hash of the caps that have refused its lines
    replay            BOOLEAN NOT NULL DEFAULT false, -- lines may be answered by kept responses
    run               TEXT NOT NULL DEFAULT '' -- that its lines are part of; '' if there is none
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

-- The rules of the ledger are Go's: budget.Account. These functions read and write its rows, and guard what a gateway does by its
-- epoch, the sequence of its lane and the versions of the rows. Each is one transaction under READ COMMITTED, or part of one: each
-- statement of a VOLATILE function has a snapshot of its own, so what is read after a lock is what the lock protects. Every lock is
-- taken in one order: the gateway's advisory lock, the lane, the accounts by id. Functions without a version in their names are
-- internal: they run inside the others, with their settings and their owner's rights.

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

-- ledger_time_v1 returns the time by which the ledger works.
-- +goose StatementBegin
CREATE FUNCTION ledger_time_v1() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT ledger_now()
$$;
-- +goose StatementEnd

-- ----- Reading and writing -----

-- ledger_fence guards a transaction of a lane. status is:
--
--   ok      it is the next one
--   done    it has been executed; reply is what it returned
--   fenced  the epoch has ended: nothing was done
--   lost    the lane has not executed the calls before seq: commits that were acknowledged are lost
--
-- Without a lane, it is one that a caller makes beside its lanes; the epoch cannot end before the transaction does. Without an epoch,
-- it concerns what ended epochs have left.
-- +goose StatementBegin
CREATE FUNCTION ledger_fence(p_gateway integer, p_epoch bigint, p_lane integer, p_seq bigint, OUT status text, OUT reply text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_lane lane;
BEGIN
    status := 'ok';
    IF p_epoch IS NULL THEN
        PERFORM pg_advisory_xact_lock(25191, p_gateway);
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(25191, p_gateway);
    IF p_lane IS NULL THEN
        PERFORM 1 FROM gateway WHERE id = p_gateway AND epoch = p_epoch AND alive;
        IF NOT FOUND THEN
            status := 'fenced';
        END IF;
        RETURN;
    END IF;
    SELECT * INTO v_lane FROM lane WHERE gateway = p_gateway AND n = p_lane FOR UPDATE;
    IF v_lane.epoch IS DISTINCT FROM p_epoch THEN
        status := 'fenced';
    ELSIF v_lane.seq = p_seq THEN
        status := 'done';
        reply := v_lane.reply;
    ELSIF v_lane.seq <> p_seq - 1 THEN
        status := 'lost';
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_read_v1 locks accounts and returns their rows, the rows of keys of theirs and of their parents, what waits there, and requests in flight, for a
-- transaction in which ledger_write_v1 follows. It leaves out accounts that others hold, unless p_wait is set. Of each key it returns the
-- first p_heads requests that wait, and those with p_tickets; requests in flight are those with p_ids, and with p_ended all of the
-- accounts whose gateways' epochs have ended. p_rows has the times of requests of p_ids that may have ended: those that have are returned as ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_read_v1(p_gateway integer, p_epoch bigint, p_lane integer, p_seq bigint, p_accounts text[], p_keys text[],
    p_ids text[], p_tickets bigint[], p_heads integer, p_wait boolean, p_ended boolean, p_rows bigint[], OUT status text, OUT reply text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = basegate, pg_temp
SET lock_timeout = '100ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_locked text[];
    v_keys text[] := p_keys;
    v_waiters json;
    v_waiting text[];
BEGIN
    SELECT f.status, f.reply INTO status, reply FROM ledger_fence(p_gateway, p_epoch, p_lane, p_seq) f;
    IF status <> 'ok' THEN
        RETURN;
    END IF;
    IF p_wait THEN
        PERFORM set_config('lock_timeout', '1s', true);
        SELECT array_agg(id) INTO v_locked
            FROM (SELECT id FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE) o;
    ELSE
        SELECT array_agg(id) INTO v_locked
            FROM (SELECT id FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) o;
    END IF;
    SELECT array_agg(id) INTO v_waiting FROM owner WHERE id = ANY (v_locked) AND waiting > 0;
    IF v_waiting IS NOT NULL THEN
        WITH RECURSIVE head AS (
            SELECT a.account, (SELECT min(key) FROM waiter w WHERE w.account = a.account) AS key FROM unnest(v_waiting) a(account)
            UNION ALL
            SELECT h.account, (SELECT min(key) FROM waiter w WHERE w.account = h.account AND w.key > h.key) FROM head h
            WHERE h.key IS NOT NULL
        ), found AS (
            SELECT w.* FROM head h CROSS JOIN LATERAL (
                SELECT * FROM waiter w WHERE w.account = h.account AND w.key = h.key ORDER BY ticket LIMIT p_heads) w
            UNION
            SELECT w.* FROM waiter w WHERE w.account = ANY (v_waiting) AND w.key = ANY (p_keys) AND w.ticket = ANY (p_tickets)
        )
        SELECT json_agg(json_build_object('account', f.account, 'key', f.key, 'ticket', f.ticket, 'id', f.request_id,
                'gateway', f.gateway, 'lane', f.lane, 'ended', g.epoch IS DISTINCT FROM f.epoch OR NOT g.alive, 'arrived', f.arrived,
                'prompt', f.prompt, 'candidates', f.candidates, 'max', f.max_tokens, 'min', f.min_tokens, 'prompts', f.prompts,
                'times', f.times, 'context', f.context, 'batch', f.batch_id,
                'duplicate', EXISTS (SELECT FROM inflight i WHERE i.request_id = f.request_id)) ORDER BY f.account, f.key, f.ticket),
                v_keys || array_agg(DISTINCT f.key)
            INTO v_waiters, v_keys FROM found f LEFT JOIN gateway g ON g.id = f.gateway;
    END IF;
    v_keys := v_keys || ARRAY(SELECT DISTINCT parent FROM owner WHERE id = ANY (v_keys) AND parent IS NOT NULL);
    reply := json_build_object('now', ledger_now(), 'locked', v_locked, 'waiters', v_waiters,
        'owners', (SELECT json_agg(json_build_object('id', o.id, 'account', o.account, 'parent', o.parent, 'version', o.xmin::text::bigint,
                'enabled', o.enabled, 'caps', o.caps, 'slots', o.slots, 'expires', o.expires_at, 'regrant', o.regrant, 'address', o.last_address,
                'numbers', ARRAY[o.life_in, o.life_out, o.reserved_life_in, o.reserved_life_out,
                    o.month_in, o.month_out, o.reserved_month_in, o.reserved_month_out,
                    o.day_in, o.day_out, o.reserved_day_in, o.reserved_day_out,
                    o.day - date '1970-01-01', o.running, o.waiting, o.queued, o.blocked::integer, o.raised, o.ticket, o.last_use]))
            FROM owner o WHERE o.id = ANY (v_locked || v_keys)),
        'leases', (SELECT json_agg(json_build_object('id', i.request_id, 'gateway', i.gateway, 'epoch', i.epoch, 'account', i.account,
                'key', i.key, 'day', i.day - date '1970-01-01', 'in', i.reserved_in, 'out', i.reserved_out, 'line', i.batch_id IS NOT NULL))
            FROM inflight i WHERE i.request_id = ANY (p_ids)),
        'ended', CASE WHEN p_ended THEN (SELECT json_agg(json_build_object('id', i.request_id, 'gateway', i.gateway, 'epoch', i.epoch,
                'account', i.account, 'key', i.key, 'day', i.day - date '1970-01-01', 'in', i.reserved_in, 'out', i.reserved_out,
                'line', i.batch_id IS NOT NULL, 'prompt', i.prompt_tokens, 'completion', i.completion_tokens))
            FROM inflight i LEFT JOIN gateway g ON g.id = i.gateway
            WHERE i.account = ANY (v_locked) AND (g.epoch IS DISTINCT FROM i.epoch OR NOT g.alive)) END,
        'missing', (SELECT json_agg(a.id) FROM unnest(p_accounts) a(id) WHERE NOT EXISTS (SELECT FROM owner o WHERE o.id = a.id)),
        'rows', (SELECT json_agg(r.request_id) FROM unnest(p_ids, p_rows) n(id, "time")
            JOIN requests r ON r.time = n.time AND r.request_id = n.id AND r.state = 'settled'));
END
$$;
-- +goose StatementEnd

-- ledger_write_v1 writes what operations on accounts have changed. p_ids and p_versions are the rows of accounts and keys that were
-- evaluated; p_numbers has the new numbers of each of the first of them, and p_addresses the last address. In a transaction of its own it locks p_accounts, and writes
-- nothing and returns 'conflict' if another transaction has changed a row. The other arguments are lists of objects:
--
--   p_open        requests that are in flight now
--   p_settle      requests that end; state 'dropped' leaves no row
--   p_checkpoint  progress of requests in flight
--   p_wait        requests that wait
--   p_gone        requests that wait no longer; those with a day are in flight now
--   p_decided     decisions for other gateways and lanes; their gateways are notified
--
-- collect returns the decisions that others have left for the lane, and which of p_due have a change of caps or a new day to evaluate. An
-- error with the SQLSTATE BG001 says that a request is in flight already, or not any longer; nothing is written then.
-- +goose StatementBegin
CREATE FUNCTION ledger_write_v1(p_gateway integer, p_epoch bigint, p_lane integer, p_seq bigint, p_attempt bigint, p_day integer,
    p_accounts text[], p_ids text[], p_versions xid[], p_numbers bigint[], p_open json, p_settle json, p_checkpoint json, p_wait json,
    p_gone json, p_decided json, p_collect boolean, p_due text[], p_addresses text[], OUT status text, OUT reply text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = basegate, pg_temp
SET lock_timeout = '100ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_n bigint;
    v_gateway integer;
    v_decided json;
    v_due json;
BEGIN
    status := 'ok';
    IF p_seq IS NOT NULL THEN
        SELECT f.status, f.reply INTO status, reply FROM ledger_fence(p_gateway, p_epoch, p_lane, p_seq) f;
        IF status <> 'ok' THEN
            RETURN;
        END IF;
    END IF;
    IF p_accounts IS NOT NULL THEN
        PERFORM 1 FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
        SELECT count(*) INTO v_n FROM unnest(p_ids, p_versions) n(id, version) JOIN owner o ON o.id = n.id AND o.xmin = n.version;
        IF v_n <> cardinality(p_ids) OR ledger_day(ledger_now()) <> date '1970-01-01' + p_day THEN
            status := 'conflict';
            RETURN;
        END IF;
    END IF;
    UPDATE owner o SET life_in = p_numbers[n.at + 1], life_out = p_numbers[n.at + 2],
        reserved_life_in = p_numbers[n.at + 3], reserved_life_out = p_numbers[n.at + 4],
        month_in = p_numbers[n.at + 5], month_out = p_numbers[n.at + 6],
        reserved_month_in = p_numbers[n.at + 7], reserved_month_out = p_numbers[n.at + 8],
        day_in = p_numbers[n.at + 9], day_out = p_numbers[n.at + 10],
        reserved_day_in = p_numbers[n.at + 11], reserved_day_out = p_numbers[n.at + 12],
        day = date '1970-01-01' + p_numbers[n.at + 13]::integer, running = p_numbers[n.at + 14],
        waiting = p_numbers[n.at + 15], queued = p_numbers[n.at + 16], blocked = p_numbers[n.at + 17] = 1,
        raised = p_numbers[n.at + 18], ticket = p_numbers[n.at + 19], last_use = p_numbers[n.at + 20],
        last_address = p_addresses[n.i], regrant = false
    FROM (SELECT u.id, u.i, (u.i - 1) * 20 AS at FROM unnest(p_ids) WITH ORDINALITY u(id, i)
        WHERE u.i <= cardinality(p_numbers) / 20) n
    WHERE o.id = n.id;
    IF p_open IS NOT NULL THEN
        INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
            workload, user_tag, stream, batch_id, run, details)
        SELECT n.id, p_gateway, coalesce(n.epoch, p_epoch), n.account, n.key, date '1970-01-01' + n.day, n.time, coalesce(n."in", 0), coalesce(n.out, 0), n.model, n.endpoint,
            n.workload, coalesce(n.tag, ''), coalesce(n.stream, false), n.batch, coalesce(n.run, ''), coalesce(n.details, '')
        FROM json_to_recordset(p_open) AS n(id text, epoch bigint, account text, key text, day integer, "time" bigint, "in" bigint, out bigint, model text,
            endpoint text, workload text, tag text, stream boolean, batch text, run text, details text)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n <> json_array_length(p_open) THEN
            RAISE EXCEPTION 'a request with this id is in flight already' USING ERRCODE = 'BG001';
        END IF;
    END IF;
    IF p_gone IS NOT NULL THEN
        WITH n AS (
            SELECT * FROM json_to_recordset(p_gone) AS n(account text, key text, ticket bigint, day integer, "time" bigint, "in" bigint, out bigint)
        ), gone AS (
            DELETE FROM waiter w USING n WHERE w.account = n.account AND w.key = n.key AND w.ticket = n.ticket
            RETURNING w.*, n.day, n.time, n."in", n.out
        )
        INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
            workload, user_tag, stream, batch_id, run, details)
        SELECT request_id, gateway, epoch, account, key, date '1970-01-01' + day, time, coalesce("in", 0), coalesce(out, 0), model, endpoint, workload, user_tag,
            stream, batch_id, run, details
        FROM gone WHERE day IS NOT NULL;
    END IF;
    IF p_settle IS NOT NULL THEN
        PERFORM ledger_settle(p_gateway, p_epoch, p_settle);
    END IF;
    IF p_checkpoint IS NOT NULL THEN
        UPDATE inflight i SET prompt_tokens = c.prompt, completion_tokens = c.completion, backend = c.backend
            FROM json_to_recordset(p_checkpoint) AS c(id text, prompt bigint, completion bigint, backend text)
            WHERE i.request_id = c.id AND i.gateway = p_gateway AND i.epoch = p_epoch;
    END IF;
    IF p_wait IS NOT NULL THEN
        INSERT INTO waiter (account, key, ticket, request_id, gateway, epoch, lane, arrived, prompt, candidates, max_tokens, min_tokens,
            prompts, times, context, model, endpoint, workload, user_tag, stream, batch_id, run, details)
        SELECT n.account, n.key, n.ticket, n.id, p_gateway, p_epoch, p_lane, n.arrived, coalesce(n.prompt, 0), n.candidates, coalesce(n.max, 0), coalesce(n.min, 0),
            n.prompts, n.times, n.context, n.model, n.endpoint, n.workload, coalesce(n.tag, ''), coalesce(n.stream, false), n.batch,
            coalesce(n.run, ''), coalesce(n.details, '')
        FROM json_to_recordset(p_wait) AS n(account text, key text, ticket bigint, id text, arrived bigint, prompt bigint, candidates bigint,
            max bigint, min bigint, prompts bigint[], times bigint[], context bigint, model text, endpoint text, workload text, tag text,
            stream boolean, batch text, run text, details text);
    END IF;
    IF p_decided IS NOT NULL THEN
        INSERT INTO decided (gateway, lane, request_id, reply)
            SELECT (n ->> 'gateway')::integer, coalesce((n ->> 'lane')::integer, 0), n ->> 'id', n FROM json_array_elements(p_decided) n;
        FOR v_gateway IN SELECT DISTINCT (n ->> 'gateway')::integer FROM json_array_elements(p_decided) n LOOP
            PERFORM pg_notify('basegate_gateway_' || v_gateway, '');
        END LOOP;
    END IF;
    IF p_collect THEN
        WITH c AS (DELETE FROM decided d WHERE d.gateway = p_gateway AND d.lane = p_lane RETURNING d.reply)
        SELECT json_agg(c.reply) INTO v_decided FROM c;
        SELECT json_agg(id) INTO v_due FROM owner WHERE id = ANY (p_due) AND (regrant OR day < ledger_day(ledger_now()));
    END IF;
    reply := json_build_object('attempt', p_attempt, 'version', pg_current_xact_id()::xid::text::bigint, 'decided', v_decided, 'due', v_due);
    IF p_seq IS NOT NULL THEN
        UPDATE lane SET seq = p_seq, reply = ledger_write_v1.reply WHERE gateway = p_gateway AND n = p_lane;
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_settle ends requests: it deletes their rows in flight and inserts their rows into requests, unless they are dropped.
-- +goose StatementBegin
CREATE FUNCTION ledger_settle(p_gateway integer, p_epoch bigint, p_settle json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_settled text[];
    v_keys text[];
BEGIN
    WITH s AS (
        SELECT * FROM json_to_recordset(p_settle) AS s(id text, gateway integer, epoch bigint, state text, prompt bigint,
            completion bigint, status bigint, code text, backend text, queue bigint, first bigint, total bigint, boot bigint, attempts text,
            cached bigint, created bigint, engine_queue bigint, engine_prefill bigint, engine_between bigint)
    ), d AS (
        DELETE FROM inflight i USING s WHERE i.request_id = s.id AND i.gateway = coalesce(s.gateway, p_gateway)
            AND i.epoch = coalesce(s.epoch, p_epoch)
        RETURNING i.*, s.state, s.prompt, s.completion, s.status, s.code, s.backend AS final_backend, s.queue, s.first,
            s.total, s.boot, s.attempts, s.cached, s.created, s.engine_queue, s.engine_prefill, s.engine_between
    ), r AS (
        INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
            status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts, batch_id, run,
            cached_tokens, created_tokens, engine_queue_us, engine_prefill_us, engine_between_us)
        SELECT request_id, time, key, account, model, coalesce(final_backend, backend), endpoint, workload, user_tag, stream,
            coalesce(status, 0), coalesce(code, ''), state, prompt, completion, coalesce(queue, 0), coalesce(first, 0),
            coalesce(total, 0), coalesce(boot, 0), coalesce(attempts, details), batch_id, run,
            cached, created, engine_queue, engine_prefill, engine_between
        FROM d WHERE state <> 'dropped'
    )
    SELECT array_agg(d.request_id), array_agg(d.key) INTO v_settled, v_keys FROM d;
    IF coalesce(cardinality(v_settled), 0) <> json_array_length(p_settle) THEN
        RAISE EXCEPTION 'a request is not in flight any longer' USING ERRCODE = 'BG001';
    END IF;
    IF strpos(p_settle::text, '"receipt":') > 0 THEN
        INSERT INTO receipts (leaf_hash, nonce, entry, key_id)
            SELECT substr(r.receipt, 1, 32), substr(r.receipt, 33, 32), substr(r.receipt, 65), r.key FROM (
                SELECT d.i, d.key, decode(s.receipt, 'base64') AS receipt
                FROM unnest(v_settled, v_keys) WITH ORDINALITY d(id, key, i)
                JOIN json_to_recordset(p_settle) AS s(id text, receipt text) ON s.id = d.id
                WHERE s.receipt IS NOT NULL) AS r
            ORDER BY r.i
            ON CONFLICT (leaf_hash) DO NOTHING; -- it is settled again after a failover
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_replay_v1 inserts the row of a request whose response was repeated, once. It has cost nothing, so no counter changes.
-- +goose StatementBegin
CREATE FUNCTION ledger_replay_v1(p_id text, p_time bigint, p_key text, p_account text, p_model text, p_endpoint text, p_workload text,
    p_tag text, p_stream boolean, p_total bigint, p_batch text, p_saved bigint, p_run text)
RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream, status, code,
        state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, batch_id, saved_tokens, run)
    VALUES (p_id, p_time, p_key, p_account, p_model, '', p_endpoint, p_workload, p_tag, p_stream, 200, '',
        'replayed', 0, 0, 0, 0, p_total, nullif(p_batch, ''), p_saved, p_run)
    ON CONFLICT DO NOTHING
$$;
-- +goose StatementEnd

-- ----- The epochs of gateways -----

-- ledger_end ends an epoch of a gateway. What it has left, requests in flight and those that wait, is ended afterwards, account by
-- account, by any gateway: until then left is set. The caller holds the gateway's advisory lock exclusively, so none of its calls is running.
-- +goose StatementBegin
CREATE FUNCTION ledger_end(p_gateway integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE gateway SET epoch = epoch + 1, alive = false, "left" = "left" OR EXISTS (SELECT FROM inflight WHERE gateway = p_gateway)
        OR EXISTS (SELECT FROM waiter WHERE gateway = p_gateway) WHERE id = p_gateway;
    UPDATE lane SET epoch = epoch + 1, seq = 0, reply = '' WHERE gateway = p_gateway;
    DELETE FROM decided WHERE gateway = p_gateway;
END
$$;
-- +goose StatementEnd

-- ledger_join_v1 begins an epoch of the gateway of this name, with this many lanes, and ends the one before, if there was
-- one. It returns the gateway's number, the epoch, and whether an earlier epoch has left something.
-- +goose StatementBegin
CREATE FUNCTION ledger_join_v1(p_name text, p_version text, p_lanes integer, OUT gateway integer, OUT epoch bigint, OUT "left" boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    INSERT INTO gateway AS g (name, version, epoch, alive, beat, beat_at) VALUES (p_name, p_version, 0, false, 0, 0)
        ON CONFLICT (name) DO NOTHING;
    SELECT g.id INTO gateway FROM gateway g WHERE g.name = p_name;
    PERFORM pg_advisory_xact_lock(25191, gateway);
    PERFORM ledger_end(gateway);
    UPDATE gateway g SET version = p_version, alive = true, beat = g.beat + 1, beat_at = ledger_now()
        WHERE g.id = ledger_join_v1.gateway RETURNING g.epoch, g.left INTO epoch, "left";
    DELETE FROM lane l WHERE l.gateway = ledger_join_v1.gateway;
    INSERT INTO lane (gateway, n, epoch, seq, reply)
        SELECT ledger_join_v1.gateway, i, ledger_join_v1.epoch, 0, '' FROM generate_series(0, p_lanes - 1) i;
END
$$;
-- +goose StatementEnd

-- ledger_beat_v1 records that a gateway is alive, and returns the beats of all that have an epoch or have left something, its own among
-- them. It returns none if the gateway's own epoch has ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_beat_v1(p_gateway integer, p_epoch bigint)
RETURNS TABLE (gateway integer, epoch bigint, beat bigint, alive boolean, "left" boolean, "time" bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE gateway g SET beat = g.beat + 1, beat_at = ledger_now() WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF FOUND THEN
        RETURN QUERY SELECT g.id, g.epoch, g.beat, g.alive, g.left, ledger_now() FROM gateway g WHERE g.alive OR g.left;
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_reap_v1 ends the epoch of a gateway that has been seen with this beat for too long, unless it has beaten since,
-- and reports whether it did. The caller must be alive itself, or be a command (no gateway).
-- +goose StatementBegin
CREATE FUNCTION ledger_reap_v1(p_gateway integer, p_epoch bigint, p_dead integer, p_dead_epoch bigint, p_dead_beat bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_dead);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF NOT FOUND AND p_gateway IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM 1 FROM gateway g WHERE g.id = p_dead AND g.epoch = p_dead_epoch AND g.beat = p_dead_beat AND g.alive FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM ledger_end(p_dead);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- ledger_leave_v1 ends a gateway's own epoch.
-- +goose StatementBegin
CREATE FUNCTION ledger_leave_v1(p_gateway integer, p_epoch bigint)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive FOR UPDATE;
    IF FOUND THEN
        PERFORM ledger_end(p_gateway);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_left_v1 returns the accounts with requests in flight, or waiting, of epochs that have ended, and records of gateways
-- without any that they have left nothing.
-- +goose StatementBegin
CREATE FUNCTION ledger_left_v1() RETURNS TABLE (account text) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE gateway g SET "left" = false WHERE g.left
        AND NOT EXISTS (SELECT FROM inflight i WHERE i.gateway = g.id AND (i.epoch <> g.epoch OR NOT g.alive))
        AND NOT EXISTS (SELECT FROM waiter w WHERE w.gateway = g.id AND (w.epoch <> g.epoch OR NOT g.alive));
    -- A transaction that had read a waiter before the end of its epoch may have left a decision on it afterwards.
    DELETE FROM decided d USING gateway g WHERE g.id = d.gateway AND NOT g.alive;
    RETURN QUERY
        SELECT i.account FROM inflight i LEFT JOIN gateway g ON g.id = i.gateway WHERE g.epoch IS DISTINCT FROM i.epoch OR NOT g.alive
        UNION
        SELECT w.account FROM waiter w LEFT JOIN gateway g ON g.id = w.gateway WHERE g.epoch IS DISTINCT FROM w.epoch OR NOT g.alive
        ORDER BY 1;
END
$$;
-- +goose StatementEnd

-- ----- Rows of keys and accounts -----

-- The rows of keys and accounts in owner, which the ledger evaluates, follow the tables keys and accounts: every transaction that
-- changes those changes owner too, at its commit. Only accounts that were never active are deleted; their rows in owner stay
-- disabled.

-- ledger_owners inserts keys and accounts or changes their caps, slots and state, and has a gateway evaluate the waiters of their
-- accounts again. It leaves the counters as they are.
-- +goose StatementBegin
CREATE FUNCTION ledger_owners(p_owners json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_accounts text[];
    w record;
BEGIN
    SELECT array_agg(DISTINCT account) INTO v_accounts FROM json_to_recordset(p_owners) AS n(account text);
    -- The row of an account that is new is inserted before it is locked, so that its keys never exist without it.
    INSERT INTO owner (id, account, enabled, day)
        SELECT id, id, false, ledger_day(ledger_now()) FROM unnest(v_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    INSERT INTO owner AS o (id, account, parent, enabled, caps, slots, expires_at, day)
        SELECT n.id, n.account, n.parent, n.enabled, n.caps, n.slots, n.expires_at, a.day
        FROM json_to_recordset(p_owners) AS n(id text, account text, parent text, enabled boolean, caps jsonb, slots integer,
            expires_at bigint) JOIN owner a ON a.id = n.account
        ON CONFLICT (id) DO UPDATE SET parent = excluded.parent, enabled = excluded.enabled, caps = excluded.caps, slots = excluded.slots,
            expires_at = excluded.expires_at, raised = CASE WHEN o.caps IS NOT DISTINCT FROM excluded.caps THEN o.raised ELSE 0 END
        WHERE o.account = excluded.account AND (o.parent, o.enabled, o.caps, o.slots, o.expires_at)
            IS DISTINCT FROM (excluded.parent, excluded.enabled, excluded.caps, excluded.slots, excluded.expires_at);
    UPDATE owner SET regrant = true WHERE id = ANY (v_accounts) AND waiting > 0;
    FOR w IN SELECT DISTINCT account, gateway FROM waiter WHERE account = ANY (v_accounts) LOOP
        PERFORM pg_notify('basegate_gateway_' || w.gateway, w.account);
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
    INSERT INTO owner (id, account, enabled, day)
        SELECT DISTINCT id, id, false, ledger_day(ledger_now()) FROM unnest(p_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    SELECT concurrency_per_key, concurrency_per_account INTO v_key, v_account FROM ledger_setting;
    SELECT json_agg(o) INTO v_owners FROM (
        SELECT a.id, a.id AS account, NULL::text AS parent, a.state = 'active' AS enabled, a.caps,
            CASE WHEN v_account IS NOT NULL THEN least(greatest(v_account, a.concurrency, (
                SELECT max(k.concurrency) FROM keys k
                WHERE k.account_id = a.id AND k.operator_concurrency IS NOT NULL AND k.state = 'active')), 2147483647) END AS slots,
            NULL::bigint AS expires_at
        FROM accounts a WHERE a.id = ANY (p_accounts)
        UNION ALL
        SELECT k.id, a.id, k.parent, k.state = 'active', k.caps,
            CASE WHEN k.parent IS NOT NULL THEN k.concurrency -- its parent's slots limit it too
                WHEN k.operator_concurrency IS NOT NULL THEN coalesce(k.concurrency, v_key)
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
    FROM requests r LEFT JOIN owner k ON k.id = r.key_id CROSS JOIN LATERAL (VALUES (r.key_id), (k.parent), (r.account_id)) v(owner)
    WHERE v.owner IS NOT NULL AND (p_accounts IS NULL OR r.account_id = ANY (p_accounts)) AND r.time >= p_from AND r.time < p_to
    GROUP BY 1, 2
$$;
-- +goose StatementEnd

-- ledger_life sums up all requests of accounts, or of all if NULL, by owner: the rows, and the rollups of those that are not kept.
-- +goose StatementBegin
CREATE FUNCTION ledger_life(p_accounts text[]) RETURNS TABLE (owner text, input bigint, output bigint)
LANGUAGE sql STABLE AS $$
    SELECT v.owner, sum(t.input)::bigint, sum(t.output)::bigint
    FROM (
        SELECT s.key_id, s.account_id, sum(u.prompt_tokens) AS input, sum(u.completion_tokens) AS output
        FROM usage_series s JOIN usage_days u ON u.series = s.id
        WHERE (p_accounts IS NULL OR s.account_id = ANY (p_accounts))
            AND u.period < (SELECT kept_since / 86400000000 FROM usage_watermark) GROUP BY 1, 2
        UNION ALL
        SELECT r.key_id, r.account_id, sum(r.prompt_tokens), sum(r.completion_tokens)
        FROM requests r
        WHERE (p_accounts IS NULL OR r.account_id = ANY (p_accounts)) AND r.time >= (SELECT kept_since FROM usage_watermark)
        GROUP BY 1, 2
    ) t LEFT JOIN owner k ON k.id = t.key_id CROSS JOIN LATERAL (VALUES (t.key_id), (k.parent), (t.account_id)) v(owner)
    WHERE v.owner IS NOT NULL GROUP BY 1
$$;
-- +goose StatementEnd

-- ledger_leased sums up the requests in flight and the waiters by owner, in the windows of the owner's counters. Lines of batches
-- need no slot.
-- +goose StatementBegin
CREATE FUNCTION ledger_leased()
RETURNS TABLE (owner text, running bigint, waiting bigint, queued bigint, reserved_life_in bigint, reserved_life_out bigint,
    reserved_month_in bigint, reserved_month_out bigint, reserved_day_in bigint, reserved_day_out bigint)
LANGUAGE sql STABLE AS $$
    WITH e AS (
        SELECT i.key, i.account, (i.batch_id IS NULL)::integer AS running, 0 AS waiting, i.day, i.reserved_in, i.reserved_out FROM inflight i
        UNION ALL
        SELECT w.key, w.account, 0, 1, NULL, 0, 0 FROM waiter w)
    SELECT o.id, sum(e.running), sum(e.waiting), sum(e.waiting) FILTER (WHERE o.id = e.key), sum(e.reserved_in)::bigint, sum(e.reserved_out)::bigint,
        coalesce(sum(e.reserved_in) FILTER (WHERE e.day >= ledger_month(o.day)), 0)::bigint,
        coalesce(sum(e.reserved_out) FILTER (WHERE e.day >= ledger_month(o.day)), 0)::bigint,
        coalesce(sum(e.reserved_in) FILTER (WHERE e.day = o.day), 0)::bigint,
        coalesce(sum(e.reserved_out) FILTER (WHERE e.day = o.day), 0)::bigint
    FROM e LEFT JOIN owner k ON k.id = e.key CROSS JOIN LATERAL (VALUES (e.key), (k.parent), (e.account)) v(owner)
        JOIN owner o ON o.id = v.owner
    GROUP BY o.id
$$;
-- +goose StatementEnd

-- ledger_differences_v1 returns the counters of the owners whose day is in a month that are not the sums of their rows.
-- +goose StatementBegin
CREATE FUNCTION ledger_differences_v1(p_month date)
RETURNS TABLE (account text, owner text, counter text, stored bigint, counted bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    WITH used AS MATERIALIZED (
        SELECT * FROM ledger_used(NULL, ledger_start(p_month), ledger_start((p_month + interval '1 month')::date))
    ), sums AS (
        SELECT o.id, sum(u.input) AS month_in, sum(u.output) AS month_out,
            sum(u.input) FILTER (WHERE u.day = o.day) AS day_in, sum(u.output) FILTER (WHERE u.day = o.day) AS day_out
        FROM owner o JOIN used u ON u.owner = o.id GROUP BY o.id
    )
    SELECT o.account, o.id, c.counter, c.stored, c.counted
    FROM owner o
        LEFT JOIN sums s ON s.id = o.id
        LEFT JOIN ledger_leased() l ON l.owner = o.id
        CROSS JOIN LATERAL (VALUES
            ('month_in', o.month_in, coalesce(s.month_in, 0)::bigint), ('month_out', o.month_out, coalesce(s.month_out, 0)::bigint),
            ('day_in', o.day_in, coalesce(s.day_in, 0)::bigint), ('day_out', o.day_out, coalesce(s.day_out, 0)::bigint),
            ('running', o.running, coalesce(l.running, 0)), ('waiting', o.waiting, coalesce(l.waiting, 0)),
            ('queued', o.queued, coalesce(l.queued, 0)),
            ('reserved_life_in', o.reserved_life_in, coalesce(l.reserved_life_in, 0)),
            ('reserved_life_out', o.reserved_life_out, coalesce(l.reserved_life_out, 0)),
            ('reserved_month_in', o.reserved_month_in, coalesce(l.reserved_month_in, 0)),
            ('reserved_month_out', o.reserved_month_out, coalesce(l.reserved_month_out, 0)),
            ('reserved_day_in', o.reserved_day_in, coalesce(l.reserved_day_in, 0)),
            ('reserved_day_out', o.reserved_day_out, coalesce(l.reserved_day_out, 0))) c(counter, stored, counted)
    WHERE ledger_month(o.day) = p_month AND c.stored <> c.counted
    ORDER BY 1, 2, 3
$$;
-- +goose StatementEnd

-- ledger_life_differences_v1 is ledger_differences_v1 for the tokens of all time, of all owners.
-- +goose StatementBegin
CREATE FUNCTION ledger_life_differences_v1()
RETURNS TABLE (account text, owner text, counter text, stored bigint, counted bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT o.account, o.id, c.counter, c.stored, c.counted
    FROM owner o LEFT JOIN ledger_life(NULL) s ON s.owner = o.id
        CROSS JOIN LATERAL (VALUES
            ('life_in', o.life_in, coalesce(s.input, 0)), ('life_out', o.life_out, coalesce(s.output, 0))) c(counter, stored, counted)
    WHERE c.stored <> c.counted
    ORDER BY 1, 2, 3
$$;
-- +goose StatementEnd

-- ledger_recount_v1 makes the counters of accounts, or of all if NULL, and of their keys the sums of their rows. Requests of the accounts
-- wait meanwhile. The day of an owner never goes back, and no row lies behind it.
-- +goose StatementBegin
CREATE FUNCTION ledger_recount_v1(p_accounts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_today date;
BEGIN
    PERFORM 1 FROM owner WHERE p_accounts IS NULL OR id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_today := ledger_day(ledger_now());
    WITH used AS MATERIALIZED (
        SELECT u.*, o.account FROM ledger_used(p_accounts,
            (SELECT ledger_start(ledger_month(least(v_today, min(day)))) FROM owner WHERE p_accounts IS NULL OR account = ANY (p_accounts)),
            9223372036854775807) u JOIN owner o ON o.id = u.owner
    ), today AS (
        SELECT a.account, greatest(max(a.day), v_today, max(u.day)) AS day
        FROM owner a LEFT JOIN used u ON u.owner = a.id
        WHERE p_accounts IS NULL OR a.account = ANY (p_accounts) GROUP BY a.account
    ), sums AS (
        SELECT o.id, t.day, coalesce(sum(u.input), 0) AS month_in, coalesce(sum(u.output), 0) AS month_out,
            coalesce(sum(u.input) FILTER (WHERE u.day = t.day), 0) AS day_in,
            coalesce(sum(u.output) FILTER (WHERE u.day = t.day), 0) AS day_out
        FROM owner o JOIN today t ON t.account = o.account
            LEFT JOIN used u ON u.owner = o.id AND ledger_month(u.day) = ledger_month(t.day)
        GROUP BY o.id, t.day
    )
    UPDATE owner o SET day = s.day, month_in = s.month_in, month_out = s.month_out, day_in = s.day_in, day_out = s.day_out
    FROM sums s WHERE s.id = o.id;
    UPDATE owner o SET life_in = coalesce(s.input, 0), life_out = coalesce(s.output, 0)
    FROM owner a LEFT JOIN ledger_life(p_accounts) s ON s.owner = a.id
    WHERE a.id = o.id AND (p_accounts IS NULL OR a.account = ANY (p_accounts));
    UPDATE owner o SET running = n.running, waiting = n.waiting, queued = n.queued, blocked = o.blocked AND n.waiting > 0,
        reserved_life_in = n.reserved_life_in, reserved_life_out = n.reserved_life_out,
        reserved_month_in = n.reserved_month_in, reserved_month_out = n.reserved_month_out,
        reserved_day_in = n.reserved_day_in, reserved_day_out = n.reserved_day_out
    FROM (
        SELECT a.id, coalesce(l.running, 0) AS running, coalesce(l.waiting, 0) AS waiting, coalesce(l.queued, 0) AS queued,
            coalesce(l.reserved_life_in, 0) AS reserved_life_in, coalesce(l.reserved_life_out, 0) AS reserved_life_out,
            coalesce(l.reserved_month_in, 0) AS reserved_month_in, coalesce(l.reserved_month_out, 0) AS reserved_month_out,
            coalesce(l.reserved_day_in, 0) AS reserved_day_in, coalesce(l.reserved_day_out, 0) AS reserved_day_out
        FROM owner a LEFT JOIN ledger_leased() l ON l.owner = a.id
        WHERE p_accounts IS NULL OR a.account = ANY (p_accounts)) n
    WHERE n.id = o.id;
END
$$;
-- +goose StatementEnd

-- ledger_fill_v1 puts all accounts and keys on the ledger, with counters that are the sums of their requests. The gateways set
-- their caps.
-- +goose StatementBegin
CREATE FUNCTION ledger_fill_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    INSERT INTO owner (id, account, parent, enabled, day)
        SELECT o.id, o.account, o.parent, false, ledger_day(ledger_now())
        FROM (SELECT id, id AS account, NULL AS parent FROM accounts UNION ALL SELECT id, account_id, parent FROM keys) o
        ON CONFLICT (id) DO NOTHING;
    PERFORM ledger_recount_v1(NULL);
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
            AND relname NOT IN ('gateway', 'lane', 'owner', 'inflight', 'waiter', 'decided', 'ledger_setting',
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
