-- +goose Up

-- Latencies by series and day have a table of their own, because most pages do not show them. The sums of user tags over all
-- keys have the key 0, in place of tables and triggers of their own. The rollups are made again from the rows.

DROP TABLE usage_tag_day_sums;
DROP TABLE usage_tag_month_sums;
DROP TRIGGER usage_tag_days_inserted;
DROP TRIGGER usage_tag_days_updated;
DROP TRIGGER usage_tag_days_deleted;
DROP TRIGGER usage_tag_months_inserted;
DROP TRIGGER usage_tag_months_updated;
DROP TRIGGER usage_tag_months_deleted;

DELETE FROM usage_hours;
DELETE FROM usage_days;
DELETE FROM usage_tag_days;
DELETE FROM usage_tag_months;
DELETE FROM usage_series;
DELETE FROM usage_keys;
DELETE FROM usage_tags;
UPDATE usage_watermark SET seq = 0;

ALTER TABLE usage_hours DROP COLUMN latency;
ALTER TABLE usage_days DROP COLUMN latency;
ALTER TABLE usage_watermark DROP COLUMN corrections;

-- period counts days from the epoch. counts is a list of integers, by package usage.
CREATE TABLE usage_latencies (
    series BIGINT NOT NULL,
    period BIGINT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (series, period)
) WITHOUT ROWID;
