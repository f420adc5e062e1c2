-- +goose Up

-- The entries of the receipt log. Each is inserted in the transaction that settles its request, so seq is its place in the
-- log, from 1 and without gaps: one process inserts, and rows are never changed or deleted. Pruning the ledger must leave
-- them alone.
CREATE TABLE receipts (
    seq       INTEGER PRIMARY KEY,
    leaf_hash BLOB    NOT NULL, -- SHA-256 of a zero byte and the entry (RFC 6962)
    entry     BLOB    NOT NULL, -- canonical JSON, without texts
    nonce     BLOB    NOT NULL, -- what the CIDs of the entry are salted with
    key_id    TEXT    NOT NULL  -- who may read entry and nonce
);

CREATE UNIQUE INDEX receipts_leaf_hash ON receipts (leaf_hash);

-- +goose StatementBegin
CREATE TRIGGER receipts_updated BEFORE UPDATE ON receipts BEGIN
    SELECT RAISE(ABORT, 'the receipt log is append-only');
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER receipts_deleted BEFORE DELETE ON receipts BEGIN
    SELECT RAISE(ABORT, 'the receipt log is append-only');
END;
-- +goose StatementEnd

-- The hash tiles of the log, 256 hashes of 32 bytes each; the rightmost tile of a level has fewer.
CREATE TABLE receipt_tiles (
    level  BIGINT NOT NULL,
    number BIGINT NOT NULL,
    hashes BLOB   NOT NULL,
    PRIMARY KEY (level, number)
);

-- The log's latest signed tree head, which covers the rows of receipts up to size.
CREATE TABLE receipt_log (
    only         BIGINT PRIMARY KEY CHECK (only = 1),
    verifier_key TEXT   NOT NULL,
    size         BIGINT NOT NULL,
    checkpoint   TEXT   NOT NULL
);
