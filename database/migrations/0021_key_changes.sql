-- +goose Up

-- What has changed with each revision of keys_revision, of the latest 10,000: a key, with its secrets, or an account. A cached
-- snapshot of them reads only what has changed.
CREATE TABLE key_changes (
    revision   INTEGER PRIMARY KEY,
    tag        TEXT NOT NULL DEFAULT (hex(randomblob(8))), -- tells apart databases that have had different changes
    key_id     TEXT,
    account_id TEXT
);

-- +goose StatementBegin
CREATE TRIGGER key_changes_inserted AFTER INSERT ON key_changes BEGIN
    UPDATE keys_revision SET revision = NEW.revision WHERE only = 1;
    DELETE FROM key_changes WHERE revision = NEW.revision - 10000;
END;
-- +goose StatementEnd

DROP TRIGGER accounts_inserted;
-- +goose StatementBegin
CREATE TRIGGER accounts_inserted AFTER INSERT ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER accounts_updated;
-- +goose StatementBegin
CREATE TRIGGER accounts_updated AFTER UPDATE ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER accounts_deleted;
-- +goose StatementBegin
CREATE TRIGGER accounts_deleted AFTER DELETE ON accounts BEGIN
    INSERT INTO key_changes (revision, account_id) SELECT revision + 1, OLD.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER keys_inserted;
-- +goose StatementBegin
CREATE TRIGGER keys_inserted AFTER INSERT ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER keys_updated;
-- +goose StatementBegin
CREATE TRIGGER keys_updated AFTER UPDATE ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER keys_deleted;
-- +goose StatementBegin
CREATE TRIGGER keys_deleted AFTER DELETE ON keys BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, OLD.id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER replaced_secrets_inserted;
-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_inserted AFTER INSERT ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.key_id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER replaced_secrets_updated;
-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_updated AFTER UPDATE ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, NEW.key_id FROM keys_revision;
END;
-- +goose StatementEnd

DROP TRIGGER replaced_secrets_deleted;
-- +goose StatementBegin
CREATE TRIGGER replaced_secrets_deleted AFTER DELETE ON replaced_secrets BEGIN
    INSERT INTO key_changes (revision, key_id) SELECT revision + 1, OLD.key_id FROM keys_revision;
END;
-- +goose StatementEnd

-- The keys that count towards limits.keys_per_account, all keys in the order of lists, and those by which the operator has raised
-- an account's slots.
CREATE INDEX keys_live ON keys (account_id, expires_at) WHERE state <> 'revoked';
CREATE INDEX keys_listed ON keys (account_id, (state = 'revoked'), created_at, id);
CREATE INDEX keys_operator_concurrency ON keys (account_id, concurrency) WHERE operator_concurrency IS NOT NULL AND state = 'active';
