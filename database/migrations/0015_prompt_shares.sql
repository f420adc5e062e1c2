-- +goose Up

-- The link by which other users of the console read a saved prompt; empty if there is none.
ALTER TABLE prompts ADD COLUMN share_id TEXT NOT NULL DEFAULT '';

CREATE UNIQUE INDEX prompts_share ON prompts (share_id) WHERE share_id <> '';
