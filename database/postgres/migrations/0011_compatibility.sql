-- +goose Up

-- The oldest program that may work on this schema, by the last migration that it knows. A migration that removes something
-- which the release before it still uses raises the number; a program that knows less does not start.
CREATE TABLE schema_compatibility (
    id     boolean PRIMARY KEY CHECK (id),
    oldest bigint NOT NULL
);

INSERT INTO schema_compatibility (id, oldest) VALUES (true, 11);

SELECT ledger_grants();
