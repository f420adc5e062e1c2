-- +goose Up

-- The content of saved prompts, in rows of at most 64 KiB: a transaction that writes one delays other writes by a
-- millisecond, one that writes 4 MiB by a quarter of a second. A content is the document followed by its searchable text.
CREATE TABLE prompt_chunks (
    content_id TEXT NOT NULL,
    n          BIGINT NOT NULL, -- from 0
    data       BLOB NOT NULL,
    PRIMARY KEY (content_id, n)
);

-- Contents that no prompt refers to: they are being written, or have been replaced or deleted. What is left of them after
-- the time is deleted.
CREATE TABLE prompt_leftovers (
    content_id   TEXT PRIMARY KEY,
    delete_after BIGINT NOT NULL
);

ALTER TABLE prompts ADD COLUMN content_id TEXT NOT NULL DEFAULT '';
ALTER TABLE prompts ADD COLUMN document_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE prompts ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0; -- of the document and the searchable text

UPDATE prompts SET content_id = id, document_bytes = octet_length(document),
                   bytes = octet_length(document) + octet_length(words);

INSERT INTO prompt_chunks (content_id, n, data)
WITH RECURSIVE pieces (id, n, bytes) AS (
    SELECT id, 0, bytes FROM prompts
    UNION ALL
    SELECT id, n + 1, bytes FROM pieces WHERE (n + 1) * 65536 < bytes
)
SELECT pieces.id, pieces.n, substr(CAST(p.document || p.words AS BLOB), pieces.n * 65536 + 1, 65536)
FROM pieces JOIN prompts p ON p.id = pieces.id;

ALTER TABLE prompts DROP COLUMN document;
ALTER TABLE prompts DROP COLUMN words;
