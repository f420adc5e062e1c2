-- +goose NO TRANSACTION
-- +goose Up

-- The keys that count towards limits.keys_per_account, all keys in the order of lists, and those by which the operator has raised
-- an account's slots.
SET lock_timeout = 0; -- it waits for transactions that run, and blocks none
SET statement_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS keys_live; -- an attempt that failed leaves an invalid one
CREATE INDEX CONCURRENTLY keys_live ON keys (account_id, expires_at) WHERE state <> 'revoked';
DROP INDEX CONCURRENTLY IF EXISTS keys_listed;
CREATE INDEX CONCURRENTLY keys_listed ON keys (account_id, (state = 'revoked'), created_at, id);
DROP INDEX CONCURRENTLY IF EXISTS keys_operator_concurrency;
CREATE INDEX CONCURRENTLY keys_operator_concurrency ON keys (account_id, concurrency)
    WHERE operator_concurrency IS NOT NULL AND state = 'active';
RESET lock_timeout;
RESET statement_timeout;
