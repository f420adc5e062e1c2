-- +goose Up

-- What several gateways need to run batches and keep files together; the tables of both engines are in 0004_tables.sql.
-- A row that names a gateway and an epoch counts only while the epoch is that of a gateway that is alive.

-- Which gateway runs a batch. fence rises with each lease of the batch: what is written under an earlier one does not
-- count. Batch 0 is no batch: its lease is the permission to delete what has expired.
CREATE TABLE batch_leases (
    batch     BIGINT PRIMARY KEY,
    gateway   INTEGER NOT NULL, -- 0 if it was released
    epoch     BIGINT NOT NULL,
    fence     BIGINT NOT NULL,
    reason    TEXT NOT NULL DEFAULT '',  -- what the batch waits for, so that every gateway can tell
    resets_at BIGINT NOT NULL DEFAULT 0  -- seconds; when the exhausted cap resets
);

-- The gateways that take batches, between which these are divided. One that drains has no row.
CREATE TABLE batch_runners (
    gateway INTEGER PRIMARY KEY,
    epoch   BIGINT NOT NULL
);

-- How many batch lines each gateway may run at a backend. Together they never exceed batches.per_backend.
CREATE TABLE batch_places (
    model   TEXT NOT NULL,
    backend TEXT NOT NULL,
    gateway INTEGER NOT NULL,
    epoch   BIGINT NOT NULL,
    places  BIGINT NOT NULL CHECK (places >= 0),
    wants   BOOLEAN NOT NULL, -- it has lines to run there
    PRIMARY KEY (model, backend, gateway)
);

-- The objects of a file that a batch still writes, whose files.object is empty. Each lease of the batch writes an object of
-- its own, and none changes one of another lease: bytes behind the start of the next part do not count.
CREATE TABLE file_parts (
    file   TEXT NOT NULL,
    start  BIGINT NOT NULL, -- the offset in the file of the object's first byte
    object TEXT NOT NULL,
    fence  BIGINT NOT NULL,
    PRIMARY KEY (file, start)
);

-- Who writes an object whose state is 'writing'. Without a writer it is deleted.
CREATE TABLE object_writers (
    object   TEXT PRIMARY KEY,
    gateway  INTEGER, -- NULL: a command
    epoch    BIGINT,
    begun_at BIGINT NOT NULL -- microseconds
);

-- The object by which a gateway recognizes that its storage is that of the other gateways.
CREATE TABLE storage_marker (
    "only" BIGINT PRIMARY KEY CHECK ("only" = 1),
    object TEXT NOT NULL
);

SELECT ledger_grants();
