-- +goose NO TRANSACTION
-- +goose Up

-- What a batch waits for. One that is parked is in the memory of no gateway, and leased to none.
ALTER TABLE batches
    ADD COLUMN IF NOT EXISTS waits_for   TEXT NOT NULL DEFAULT '',  -- the API's word; '' if a line can start
    ADD COLUMN IF NOT EXISTS resets_at   BIGINT NOT NULL DEFAULT 0, -- seconds; of the exhausted cap, 0 if there is none
    ADD COLUMN IF NOT EXISTS parked_at   BIGINT NOT NULL DEFAULT 0, -- seconds; 0 if it is not parked
    ADD COLUMN IF NOT EXISTS parked_caps BIGINT NOT NULL DEFAULT 0; -- a hash of the caps that have refused its lines

SET lock_timeout = 0; -- it waits for transactions that run, and blocks none
SET statement_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS batches_due; -- an attempt that failed leaves an invalid one
CREATE INDEX CONCURRENTLY batches_due ON batches (status, account_id, expires_at, seq)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') AND parked_at = 0;
DROP INDEX CONCURRENTLY IF EXISTS batches_parked;
CREATE INDEX CONCURRENTLY batches_parked ON batches (account_id, key_id, expires_at, seq) WHERE parked_at > 0;
DROP INDEX CONCURRENTLY IF EXISTS batches_unfinished_of;
CREATE INDEX CONCURRENTLY batches_unfinished_of ON batches (account_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
DROP INDEX CONCURRENTLY IF EXISTS batch_leases_held;
CREATE INDEX CONCURRENTLY batch_leases_held ON batch_leases (gateway) WHERE gateway <> 0;
RESET lock_timeout;
RESET statement_timeout;
