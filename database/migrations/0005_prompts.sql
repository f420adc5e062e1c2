-- +goose Up

-- What people save in the workbench: the one place where text is kept.
CREATE TABLE prompts (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    model      TEXT NOT NULL,
    version    BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    words      TEXT NOT NULL, -- what a search finds: name and texts, case folded
    document   TEXT NOT NULL  -- JSON, the workbench's own
);

CREATE INDEX prompts_account ON prompts (account_id, updated_at);
