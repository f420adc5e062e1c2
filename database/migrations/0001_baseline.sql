-- +goose Up
-- +goose StatementBegin
-- One block, which the driver splits: to find the end of each statement goose allocates megabytes, at each first start and in each test.

-- The schema of release 1.0.0 on SQLite. Times are microseconds since the epoch, UTC, unless a column says otherwise.
-- ../postgres/migrations has the same tables for PostgreSQL, whose ledger differs.

-- ===== Accounts and keys: package identity =====

-- Caps are JSON objects of tokens, such as {"month_total": 1000}, by package quota, which checks them; without any, they are NULL.
CREATE TABLE accounts (
    id           TEXT PRIMARY KEY,
    email        TEXT NOT NULL,
    name         TEXT NOT NULL,
    admin        BOOLEAN NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('active', 'pending', 'disabled')),
    created_at   BIGINT NOT NULL,
    caps         TEXT CHECK (json_type(caps) = 'object'),
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
    secret_hash           BLOB NOT NULL UNIQUE,
    state                 TEXT NOT NULL CHECK (state IN ('active', 'paused', 'revoked')),
    paused_by_operator    BOOLEAN NOT NULL DEFAULT false, -- so the holder cannot resume it
    created_at            BIGINT NOT NULL,
    expires_at            BIGINT, -- NULL is never
    operator_expires_at   BIGINT,
    models                TEXT,   -- that it may use: short ids, sorted, separated by commas; NULL is every model
    operator_models       TEXT,
    concurrency           BIGINT CHECK (concurrency >= 1),
    operator_concurrency  BIGINT CHECK (operator_concurrency >= 1),
    caps                  TEXT CHECK (json_type(caps) = 'object'),
    operator_caps         TEXT CHECK (json_type(operator_caps) = 'object'),
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
    secret_hash BLOB PRIMARY KEY,
    key_id      TEXT NOT NULL REFERENCES keys (id),
    prefix      TEXT NOT NULL,
    valid_until BIGINT NOT NULL
);

CREATE INDEX replaced_secrets_key ON replaced_secrets (key_id, valid_until);
CREATE INDEX replaced_secrets_prefix ON replaced_secrets (prefix);

-- A counter that triggers increment with every change of the three tables, by any process, so that a cached snapshot of them can
-- be validated by polling one row.
CREATE TABLE keys_revision (
    only     BIGINT PRIMARY KEY CHECK (only = 1),
    revision BIGINT NOT NULL
);

INSERT INTO keys_revision (only, revision) VALUES (1, 1);

-- What has changed with each revision, of the latest 10,000: a key, with its secrets, or an account. A cached snapshot reads only
-- what has changed.
CREATE TABLE key_changes (
    revision   INTEGER PRIMARY KEY,
    tag        TEXT NOT NULL DEFAULT (hex(randomblob(8))), -- tells apart databases that have had different changes
    key_id     TEXT,
    account_id TEXT
);

CREATE TRIGGER key_changes_inserted AFTER INSERT ON key_changes BEGIN
    UPDATE keys_revision SET revision = NEW.revision WHERE only = 1;
    DELETE FROM key_changes WHERE revision = NEW.revision - 10000;
END;

CREATE TRIGGER accounts_inserted AFTER INSERT ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
CREATE TRIGGER accounts_updated AFTER UPDATE ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
CREATE TRIGGER accounts_deleted AFTER DELETE ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, OLD.id FROM keys_revision;
END;

CREATE TRIGGER keys_inserted AFTER INSERT ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
CREATE TRIGGER keys_updated AFTER UPDATE ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
CREATE TRIGGER keys_deleted AFTER DELETE ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, OLD.id FROM keys_revision;
END;

CREATE TRIGGER replaced_secrets_inserted AFTER INSERT ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.key_id FROM keys_revision;
END;
CREATE TRIGGER replaced_secrets_updated AFTER UPDATE ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.key_id FROM keys_revision;
END;
CREATE TRIGGER replaced_secrets_deleted AFTER DELETE ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, OLD.key_id FROM keys_revision;
END;

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
    token_hash BLOB PRIMARY KEY,
    account_id TEXT NOT NULL UNIQUE REFERENCES accounts (id), -- a new invitation replaces the previous one
    expires_at BIGINT NOT NULL
);

CREATE TABLE sessions (
    token_hash          BLOB PRIMARY KEY,
    account_id          TEXT NOT NULL REFERENCES accounts (id),
    created_at          BIGINT NOT NULL,
    expires_at          BIGINT NOT NULL,
    password_generation BIGINT NOT NULL DEFAULT 1
);

CREATE INDEX sessions_account ON sessions (account_id);

CREATE TABLE known_browsers (
    token_hash          BLOB PRIMARY KEY,
    account_id          TEXT NOT NULL REFERENCES accounts (id),
    password_generation BIGINT NOT NULL,
    used_at             BIGINT NOT NULL -- time of the latest sign-in
);

CREATE INDEX known_browsers_account ON known_browsers (account_id, used_at);

-- Failed sign-ins of an account, a browser or a network; package identity describes the columns.
CREATE TABLE sign_in_failures (
    kind     TEXT NOT NULL,
    subject  BLOB NOT NULL, -- a hash
    failures REAL NOT NULL,
    counted  BIGINT NOT NULL,
    next     BIGINT NOT NULL,
    PRIMARY KEY (kind, subject)
) WITHOUT ROWID;

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
    document       BLOB,                      -- JSON, in the workbench's format; NULL: the object has it
    words          BLOB NOT NULL DEFAULT x'', -- what a search finds: the different words, case-folded
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
    seq        INTEGER PRIMARY KEY,
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
    source         BLOB NOT NULL,
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
    id        INTEGER PRIMARY KEY,
    model     TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    ends_at   BIGINT NOT NULL,
    CHECK (ends_at > begins_at)
);

-- Commands for the running gateway, written by the CLI and deleted when executed.
CREATE TABLE model_orders (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    model      TEXT NOT NULL,
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop')),
    given_at   BIGINT NOT NULL
);

-- ===== The ledger: package budget =====

-- Requests in flight that are on disk: inserted when a request has run for a while, updated by checkpoints, and deleted by the
-- transaction that inserts its row into requests.
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
    completion_tokens BIGINT NOT NULL,
    batch_id          TEXT, -- of the batch of which the request is a line
    run               TEXT NOT NULL DEFAULT '' -- of the experiment that the request is part of; empty if it has none
) WITHOUT ROWID;

-- One row per request that has ended, inserted once; it outlives its key and its account. Rows are inserted in the order of seq,
-- whatever their times are, and no seq is used twice (AUTOINCREMENT), so the rows after a given seq are those inserted later.
-- Queries by key use the index on the account: an index of their own takes a sixth of the time to write a row.
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
    engine_between_us BIGINT  -- and the mean between two tokens
);

CREATE UNIQUE INDEX requests_id ON requests (request_id);
CREATE INDEX requests_time ON requests (time);
CREATE INDEX requests_account ON requests (account_id, time);
CREATE INDEX requests_failed ON requests (account_id, time) WHERE code <> '' OR state = 'interrupted';

-- When each key was last used, so that this is known without scanning the requests of earlier months, and from which address.
CREATE TABLE key_uses (
    key_id  TEXT PRIMARY KEY,
    time    BIGINT NOT NULL,
    address TEXT NOT NULL DEFAULT '' -- of the latest request that was not a line of a batch; empty if that is not known
);

-- Requests of known accounts that were refused before a reservation, so they have no row in requests and cost nothing. They are
-- sampled, and the oldest are deleted, so these rows never add up to a figure: refusal_hours has the numbers.
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
) WITHOUT ROWID;

CREATE INDEX refusal_hours_period ON refusal_hours (period);

-- ===== Usage: package usage =====

-- Rollups: sums of the rows of requests up to the watermark, by hour, day or month, UTC. They can be made again from the rows at
-- any time.
CREATE TABLE usage_watermark (
    only BIGINT PRIMARY KEY CHECK (only = 1),
    seq  BIGINT NOT NULL -- the last row of requests that the rollups include
);

INSERT INTO usage_watermark (only, seq) VALUES (1, 0);

-- What the requests of one rollup have in common, but for the period and the user tag.
CREATE TABLE usage_series (
    id         INTEGER PRIMARY KEY,
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
    PRIMARY KEY (series, period)
) WITHOUT ROWID;

-- Latencies by series and day have a table of their own, because most pages do not show them. period counts days from the epoch.
-- counts is a list of integers, by package usage.
CREATE TABLE usage_latencies (
    series BIGINT NOT NULL,
    period BIGINT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (series, period)
) WITHOUT ROWID;

-- User tags have rollups of their own, by key alone: clients choose them, so there may be as many as requests. The key 0 has the
-- sums over all keys.
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
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
    saved_tokens      BIGINT NOT NULL DEFAULT 0,
    cached_tokens     BIGINT NOT NULL DEFAULT 0,
    known_tokens      BIGINT NOT NULL DEFAULT 0, -- prompt tokens of the requests whose backend reported the cached ones
    PRIMARY KEY (key, period, tag)
) WITHOUT ROWID;

-- ===== The receipt log: package receipt =====

-- The entries of the log. Rows are never changed, but for their number, or deleted: pruning the ledger leaves them.
CREATE TABLE receipts (
    id        INTEGER PRIMARY KEY, -- in the order of the settlements
    seq       INTEGER,       -- the place in the log, from 1 and without gaps; NULL: it has none yet
    leaf_hash BLOB NOT NULL, -- SHA-256 of a zero byte and the entry (RFC 6962)
    entry     BLOB NOT NULL, -- canonical JSON, without texts
    nonce     BLOB NOT NULL, -- salt of the CIDs of the entry
    key_id    TEXT NOT NULL  -- that may read entry and nonce
);

CREATE UNIQUE INDEX receipts_seq ON receipts (seq);
CREATE UNIQUE INDEX receipts_leaf_hash ON receipts (leaf_hash);

CREATE TRIGGER receipts_updated BEFORE UPDATE OF id, leaf_hash, entry, nonce, key_id ON receipts BEGIN
    SELECT RAISE(ABORT, 'the receipt log is append-only');
END;
CREATE TRIGGER receipts_numbered BEFORE UPDATE OF seq ON receipts WHEN OLD.seq IS NOT NULL BEGIN
    SELECT RAISE(ABORT, 'the receipt log is append-only');
END;
CREATE TRIGGER receipts_deleted BEFORE DELETE ON receipts BEGIN
    SELECT RAISE(ABORT, 'the receipt log is append-only');
END;

-- The hash tiles of the log, 256 hashes of 32 bytes each; the rightmost tile of a level has fewer.
CREATE TABLE receipt_tiles (
    level  BIGINT NOT NULL,
    number BIGINT NOT NULL,
    hashes BLOB NOT NULL,
    PRIMARY KEY (level, number)
);

-- The log's latest signed tree head, which covers the rows of receipts that have a number.
CREATE TABLE receipt_log (
    only         BIGINT PRIMARY KEY CHECK (only = 1),
    verifier_key TEXT NOT NULL,
    size         BIGINT NOT NULL,
    checkpoint   TEXT NOT NULL
);

-- ===== Responses that can be repeated: package replay =====

-- Each is an object of the storage. name is a keyed hash of the request; nothing here tells what was asked.
CREATE TABLE replays (
    name       BLOB PRIMARY KEY,
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
    only   BIGINT PRIMARY KEY CHECK (only = 1),
    secret BLOB NOT NULL
);

-- ===== Files and batches: package batch =====

-- Objects of the storage. A file is the list of its objects in the order of start, each of which is written once. Also the rows of
-- objects that are being written or are to be deleted name their file; '' stands for the errors of a validation, which
-- batches.errors names.
CREATE TABLE objects (
    name     TEXT PRIMARY KEY,
    state    TEXT NOT NULL CHECK (state IN ('writing', 'kept', 'deleted')),
    file     TEXT NOT NULL DEFAULT '',
    start    INTEGER NOT NULL DEFAULT 0, -- the offset in the file of its first byte
    bytes    INTEGER NOT NULL DEFAULT 0,
    gateway  INTEGER NOT NULL DEFAULT 0, -- its writer; 0: a command
    epoch    INTEGER NOT NULL DEFAULT 0, -- of the writer: once that has ended, 'writing' means left behind
    begun_at INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE INDEX objects_left ON objects (state) WHERE state <> 'kept';
CREATE INDEX objects_file ON objects (file, start);

-- In this table and the following, times are seconds since 1970, as clients see them.
CREATE TABLE files (
    seq        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    purpose    TEXT NOT NULL,
    filename   TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    sha256     BLOB,    -- NULL while the file grows
    lines      INTEGER, -- of an uploaded file; NULL for the results of a batch, whose lines the batch counts
    tokens     INTEGER NOT NULL DEFAULT 0, -- an estimate of the most that a batch of it costs; 0: not known
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);

CREATE INDEX files_account ON files (account_id, seq);
CREATE INDEX files_expiry ON files (expires_at);

-- A batch that is parked is in the memory of no gateway.
CREATE TABLE batches (
    seq               INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE,
    account_id        TEXT NOT NULL,
    key_id            TEXT NOT NULL,
    endpoint          TEXT NOT NULL,
    completion_window TEXT NOT NULL,
    input_file_id     TEXT NOT NULL,
    output_file_id    TEXT,
    error_file_id     TEXT,
    output_keep       INTEGER,       -- seconds; NULL: the configured time
    status            TEXT NOT NULL,
    errors            TEXT,          -- the object with those of a failed validation; they may quote the file
    metadata          TEXT,          -- JSON
    models            TEXT NOT NULL, -- JSON: short ids, in the order of batch_lines.model
    created_at        INTEGER NOT NULL,
    expires_at        INTEGER NOT NULL,
    in_progress_at    INTEGER,
    finalizing_at     INTEGER,
    completed_at      INTEGER,
    failed_at         INTEGER,
    expired_at        INTEGER,
    cancelling_at     INTEGER,
    cancelled_at      INTEGER,
    total             INTEGER NOT NULL,
    completed         INTEGER NOT NULL,
    failed            INTEGER NOT NULL,
    input_tokens      INTEGER NOT NULL,
    cached_tokens     INTEGER NOT NULL,
    output_tokens     INTEGER NOT NULL,
    reasoning_tokens  INTEGER NOT NULL,
    waits_for         TEXT NOT NULL DEFAULT '',   -- the API's word; '' if a line can start
    resets_at         INTEGER NOT NULL DEFAULT 0, -- of the exhausted cap; 0 if there is none
    parked_at         INTEGER NOT NULL DEFAULT 0, -- 0 if it is not parked
    parked_caps       INTEGER NOT NULL DEFAULT 0, -- a hash of the caps that have refused its lines
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
    batch    INTEGER NOT NULL,
    model    INTEGER NOT NULL, -- index in batches.models
    position INTEGER NOT NULL,
    offset   INTEGER NOT NULL, -- in the input file, in bytes
    length   INTEGER NOT NULL, -- in bytes
    attempts INTEGER NOT NULL,
    PRIMARY KEY (batch, model, position)
) WITHOUT ROWID;

-- What a client created with an idempotency key, or may create again without one. digest is the SHA-256 of the body.
CREATE TABLE idempotency (
    key_id     TEXT NOT NULL,
    token      TEXT NOT NULL,
    digest     BLOB NOT NULL,
    object_id  TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (key_id, token)
) WITHOUT ROWID;

CREATE INDEX idempotency_expiry ON idempotency (expires_at);
-- +goose StatementEnd
