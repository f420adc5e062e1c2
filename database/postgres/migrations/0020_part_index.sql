-- +goose NO TRANSACTION
-- +goose Up

SET lock_timeout = 0; -- it waits for transactions that run, and blocks none
SET statement_timeout = 0;
DROP INDEX CONCURRENTLY IF EXISTS objects_file; -- an attempt that failed leaves an invalid one
CREATE INDEX CONCURRENTLY objects_file ON objects (file, start);
RESET lock_timeout;
RESET statement_timeout;
