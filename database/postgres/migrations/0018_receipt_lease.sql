-- +goose Up

-- Any gateway numbers pending receipts: transactions that write are serial.
ALTER TABLE receipt_log DROP COLUMN holder, DROP COLUMN lease_until;

UPDATE schema_compatibility SET oldest = 18;
