-- +goose Up

-- When a key stops working, and the models that it may use: short ids, sorted, separated by commas. NULL is never, and
-- every model. The holder of a key cannot exceed what the operator has set.
ALTER TABLE keys ADD COLUMN expires_at BIGINT;
ALTER TABLE keys ADD COLUMN operator_expires_at BIGINT;
ALTER TABLE keys ADD COLUMN models TEXT;
ALTER TABLE keys ADD COLUMN operator_models TEXT;

-- The secrets that a key had before its rotations. Each works until its time.
CREATE TABLE replaced_secrets (
    secret_hash BLOB PRIMARY KEY,
    key_id      TEXT NOT NULL REFERENCES keys (id),
    prefix      TEXT NOT NULL,
    valid_until BIGINT NOT NULL
);

CREATE INDEX replaced_secrets_key ON replaced_secrets (key_id, valid_until);
CREATE INDEX replaced_secrets_prefix ON replaced_secrets (prefix);

-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_inserted AFTER INSERT ON replaced_secrets BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_updated AFTER UPDATE ON replaced_secrets BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_deleted AFTER DELETE ON replaced_secrets BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE only = 1;
END;
-- +goose StatementEnd

-- When each model was first configured; clients see it as the model's time of creation.
CREATE TABLE known_models (
    id            TEXT PRIMARY KEY,
    first_seen_at BIGINT NOT NULL
);
