-- +goose Up

-- A file is the list of its objects in the order of start, each of which is written once. Also the rows of objects that are being
-- written or are to be deleted name their file; '' stands for the errors of a validation, which batches.errors names, and 'storage'
-- for the object by which gateways recognize that they share their storage.
ALTER TABLE objects
    ADD COLUMN file     TEXT NOT NULL DEFAULT '',
    ADD COLUMN start    BIGINT NOT NULL DEFAULT 0,  -- the offset in the file of its first byte
    ADD COLUMN bytes    BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN gateway  BIGINT NOT NULL DEFAULT 0,  -- its writer; 0: a command
    ADD COLUMN epoch    BIGINT NOT NULL DEFAULT 0,  -- of the writer: once that has ended, 'writing' means left behind
    ADD COLUMN begun_at BIGINT NOT NULL DEFAULT 0;  -- microseconds

UPDATE objects SET file = f.id, bytes = f.bytes, state = CASE WHEN f.bytes = 0 THEN 'deleted' ELSE objects.state END
    FROM files f WHERE f.object = objects.name;
UPDATE objects SET file = p.file, start = p.start, bytes = p.bytes
    FROM (SELECT q.file, q.start, q.object, lead(q.start, 1, f.bytes) OVER (PARTITION BY q.file ORDER BY q.start) - q.start AS bytes
        FROM file_parts q JOIN files f ON f.id = q.file) p
    WHERE p.object = objects.name;
UPDATE objects SET file = 'storage', bytes = 1 FROM storage_marker m WHERE m.object = objects.name;

ALTER TABLE files DROP COLUMN object;
DROP TABLE file_parts;
DROP TABLE object_writers;
DROP TABLE storage_marker;

-- A lease that was given back has no row, and each gateway's share of the places at a backend follows from batch_runners.
DROP TABLE batch_places;
DELETE FROM batch_leases WHERE gateway = 0;
DROP INDEX batch_leases_held;
ALTER TABLE batch_leases DROP COLUMN fence, DROP COLUMN reason, DROP COLUMN resets_at;

UPDATE schema_compatibility SET oldest = 19;
