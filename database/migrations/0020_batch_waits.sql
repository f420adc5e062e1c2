-- +goose Up

-- What a batch waits for. One that is parked is in the memory of no gateway.
ALTER TABLE batches ADD COLUMN waits_for TEXT NOT NULL DEFAULT '';        -- the API's word; '' if a line can start
ALTER TABLE batches ADD COLUMN resets_at INTEGER NOT NULL DEFAULT 0;      -- seconds; of the exhausted cap, 0 if there is none
ALTER TABLE batches ADD COLUMN parked_at INTEGER NOT NULL DEFAULT 0;      -- seconds; 0 if it is not parked
ALTER TABLE batches ADD COLUMN parked_caps INTEGER NOT NULL DEFAULT 0;    -- a hash of the caps that have refused its lines

CREATE INDEX batches_due ON batches (status, account_id, expires_at, seq)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') AND parked_at = 0;
CREATE INDEX batches_parked ON batches (account_id, key_id, expires_at, seq) WHERE parked_at > 0;
CREATE INDEX batches_unfinished_of ON batches (account_id)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
