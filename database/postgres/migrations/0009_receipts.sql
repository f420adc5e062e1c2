-- +goose Up

-- The receipt log. Settlements insert pending_receipts; one gateway at a time, which holds the lease in receipt_log, numbers
-- them here from 1 and without gaps. Rows are never changed or deleted.
CREATE TABLE receipts (
    seq       bigint PRIMARY KEY,
    leaf_hash bytea NOT NULL UNIQUE, -- SHA-256 of a zero byte and the entry (RFC 6962)
    entry     bytea NOT NULL,        -- canonical JSON, without texts
    nonce     bytea NOT NULL,        -- what the CIDs of the entry are salted with
    key_id    text  NOT NULL         -- who may read entry and nonce
);

-- +goose StatementBegin
CREATE FUNCTION receipts_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the receipt log is append-only';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER receipts_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON receipts
FOR EACH STATEMENT EXECUTE FUNCTION receipts_append_only();

-- The hash tiles of the log, 256 hashes of 32 bytes each; the rightmost tile of a level has fewer.
CREATE TABLE receipt_tiles (
    level  bigint NOT NULL,
    number bigint NOT NULL,
    hashes bytea  NOT NULL,
    PRIMARY KEY (level, number)
);

-- The log's latest signed tree head, which covers all rows of receipts, and the lease of the gateway that numbers them.
CREATE TABLE receipt_log (
    "only"       bigint PRIMARY KEY CHECK ("only" = 1),
    verifier_key text   NOT NULL,
    size         bigint NOT NULL,
    checkpoint   text   NOT NULL,
    holder       text   NOT NULL DEFAULT '',
    lease_until  timestamptz NOT NULL DEFAULT '-infinity'
);

SELECT ledger_grants();
