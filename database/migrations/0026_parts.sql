-- +goose Up

-- A file is the list of its objects in the order of start, each of which is written once. Also the rows of objects that are being
-- written or are to be deleted name their file; '' stands for the errors of a validation, which batches.errors names.
ALTER TABLE objects ADD COLUMN file TEXT NOT NULL DEFAULT '';
ALTER TABLE objects ADD COLUMN start INTEGER NOT NULL DEFAULT 0;    -- the offset in the file of its first byte
ALTER TABLE objects ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE objects ADD COLUMN gateway INTEGER NOT NULL DEFAULT 0;  -- its writer; 0: a command
ALTER TABLE objects ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;    -- of the writer: once that has ended, 'writing' means left behind
ALTER TABLE objects ADD COLUMN begun_at INTEGER NOT NULL DEFAULT 0; -- microseconds

UPDATE objects SET file = f.id, bytes = f.bytes, state = CASE WHEN f.bytes = 0 THEN 'deleted' ELSE state END
    FROM files f WHERE f.object = objects.name;

CREATE INDEX objects_file ON objects (file, start);
ALTER TABLE files DROP COLUMN object;
