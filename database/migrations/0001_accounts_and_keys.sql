-- +goose Up

-- Times are microseconds since the epoch, UTC.

CREATE TABLE accounts (
    id         TEXT PRIMARY KEY,
    email      TEXT NOT NULL,
    name       TEXT NOT NULL,
    admin      BOOLEAN NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('active', 'pending', 'disabled')),
    created_at BIGINT NOT NULL
);

-- Email addresses are compared without regard to case.
CREATE UNIQUE INDEX accounts_email ON accounts (lower(email));

CREATE TABLE keys (
    id          TEXT PRIMARY KEY,
    account_id  TEXT NOT NULL REFERENCES accounts (id),
    name        TEXT NOT NULL,
    prefix      TEXT NOT NULL,
    secret_hash BLOB NOT NULL UNIQUE,
    state       TEXT NOT NULL CHECK (state IN ('active', 'paused', 'revoked')),
    concurrency BIGINT CHECK (concurrency >= 1),
    created_at  BIGINT NOT NULL
);

CREATE INDEX keys_account ON keys (account_id);
CREATE INDEX keys_prefix ON keys (prefix);

-- A counter that triggers increment with every change of the two tables, by any process, so that a cached snapshot of them
-- can be validated by polling one row.
CREATE TABLE keys_revision (
    only     BIGINT PRIMARY KEY CHECK (only = 1),
    revision BIGINT NOT NULL
);

INSERT INTO keys_revision (only, revision) VALUES (1, 1);

-- +goose StatementBegin
CREATE TRIGGER accounts_inserted AFTER INSERT ON accounts BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER accounts_updated AFTER UPDATE ON accounts BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER accounts_deleted AFTER DELETE ON accounts BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER keys_inserted AFTER INSERT ON keys BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER keys_updated AFTER UPDATE ON keys BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER keys_deleted AFTER DELETE ON keys BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd
