-- +goose Up

-- The batch of which a request was a line.
ALTER TABLE requests ADD COLUMN batch_id TEXT;
ALTER TABLE inflight ADD COLUMN batch_id TEXT;

-- Objects of the storage. One that is being written, or is to be deleted, belongs to no file; it is deleted soon after,
-- and at the next start at the latest.
CREATE TABLE objects (
    name  TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('writing', 'kept', 'deleted'))
) WITHOUT ROWID;

CREATE INDEX objects_left ON objects (state) WHERE state <> 'kept';

-- Times are seconds since 1970, as clients see them.
CREATE TABLE files (
    seq        INTEGER PRIMARY KEY,
    id         TEXT NOT NULL UNIQUE,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    purpose    TEXT NOT NULL,
    filename   TEXT NOT NULL,
    object     TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    sha256     BLOB,               -- NULL while the file grows
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);

CREATE INDEX files_account ON files (account_id, seq);
CREATE INDEX files_expiry ON files (expires_at);

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
    models            TEXT NOT NULL, -- JSON: short ids, in the order of lines.model
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
    reasoning_tokens  INTEGER NOT NULL
);

CREATE INDEX batches_account ON batches (account_id, seq);
CREATE INDEX batches_unfinished ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');

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
