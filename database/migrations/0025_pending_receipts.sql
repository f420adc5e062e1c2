-- +goose Up

-- Receipts whose requests have been settled, until the receipt log has numbered them.
CREATE TABLE pending_receipts (
    seq        INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    receipt    BLOB NOT NULL -- leaf hash and nonce, of 32 bytes each, and the entry
);
