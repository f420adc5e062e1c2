-- +goose Up

-- Latencies by series and day have a table of their own, because most pages do not show them. The sums of user tags over all
-- keys have the key 0, in place of tables and triggers of their own. The rollups are made again from the rows.

DROP TRIGGER usage_tag_days_inserted ON usage_tag_days;
DROP TRIGGER usage_tag_days_updated ON usage_tag_days;
DROP TRIGGER usage_tag_days_deleted ON usage_tag_days;
DROP TRIGGER usage_tag_months_inserted ON usage_tag_months;
DROP TRIGGER usage_tag_months_updated ON usage_tag_months;
DROP TRIGGER usage_tag_months_deleted ON usage_tag_months;
DROP FUNCTION usage_sum_tags();
DROP TABLE usage_tag_day_sums, usage_tag_month_sums;

TRUNCATE usage_hours, usage_days, usage_tag_days, usage_tag_months, usage_series, usage_keys, usage_tags;
UPDATE usage_watermark SET seq = 0;

ALTER TABLE usage_hours DROP COLUMN latency;
ALTER TABLE usage_days DROP COLUMN latency;
ALTER TABLE usage_watermark DROP COLUMN corrections;

-- period counts days from the epoch. counts is a list of integers, by package usage. A row of the current day is updated once a
-- second, so its page has room for that.
CREATE TABLE usage_latencies (
    series BIGINT NOT NULL,
    period BIGINT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (series, period)
) WITH (fillfactor = 80);
CREATE INDEX usage_latencies_period ON usage_latencies (period);

UPDATE schema_compatibility SET oldest = 17;

SELECT ledger_grants();
