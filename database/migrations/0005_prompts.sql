-- +goose Up

-- Prompts saved in the console's workbench. No other table holds text of prompts or completions.
CREATE TABLE prompts (
    id         TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name       TEXT NOT NULL,
    model      TEXT NOT NULL,
    version    BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    words      TEXT NOT NULL, -- the searchable text: name and messages, case-folded
    document   TEXT NOT NULL  -- JSON, in the workbench's format
);

CREATE INDEX prompts_account ON prompts (account_id, updated_at);
