-- +goose Up

-- The lines of an uploaded file; NULL for the results of a batch, whose lines the batch counts, and for older files.
ALTER TABLE files ADD COLUMN lines INTEGER;
