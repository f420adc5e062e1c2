-- +goose Up

-- The document of a saved prompt is an object of the storage. What was saved before stays in its row until it is saved again.
ALTER TABLE prompts ADD COLUMN object TEXT NOT NULL DEFAULT ''; -- with the document; empty: the row has it
ALTER TABLE prompts ADD COLUMN words BLOB NOT NULL DEFAULT x''; -- what a search finds: the different words, case-folded
ALTER TABLE prompts ADD COLUMN document BLOB;                   -- JSON, in the workbench's format; NULL: the object has it

UPDATE prompts SET document = CAST(coalesce((
    SELECT group_concat(data, '') FROM (SELECT data FROM prompt_chunks c WHERE c.content_id = prompts.content_id ORDER BY n)
), '') AS BLOB);
UPDATE prompts SET words = substr(document, document_bytes + 1, 65536), document = substr(document, 1, document_bytes);
UPDATE prompts SET bytes = document_bytes + length(words);

ALTER TABLE prompts DROP COLUMN content_id;
DROP TABLE prompt_chunks;
DROP TABLE prompt_leftovers;

-- What happened to backends and budgets in the last day. Figures are in the memory of a gateway, or sums of the ledger's.
DROP TABLE history_hours;
CREATE TABLE history_events (
    seq        INTEGER PRIMARY KEY,
    time       BIGINT NOT NULL, -- microseconds since the epoch
    gateway    TEXT NOT NULL,   -- that has recorded it; empty if there is only one
    kind       TEXT NOT NULL,
    model      TEXT NOT NULL,
    backend    TEXT NOT NULL,
    account_id TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    detail     TEXT NOT NULL
);

CREATE INDEX history_events_time ON history_events (time);
