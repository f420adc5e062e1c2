-- +goose Up

-- The rollups of user tags, summed up over all keys, for pages that show the tags of all accounts: a ledger may have many
-- times as many pairs of a key and a tag. Triggers keep them equal to the sums of the rollups, whatever the release of the
-- gateway that changes these.

-- period counts days from the epoch; tag is 0 for the tags beyond the limit of those that have rows of their own.
CREATE TABLE usage_tag_day_sums (
    period            BIGINT NOT NULL,
    tag               BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (period, tag)
) WITH (fillfactor = 80);

-- period counts months from January of the year 0.
CREATE TABLE usage_tag_month_sums (
    period            BIGINT NOT NULL,
    tag               BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    errors            BIGINT NOT NULL,
    streams           BIGINT NOT NULL,
    prompt_tokens     BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    PRIMARY KEY (period, tag)
) WITH (fillfactor = 80);

-- usage_sum_tags adds the changes of a statement to the table that is its argument.
-- +goose StatementBegin
CREATE FUNCTION usage_sum_tags() RETURNS trigger LANGUAGE plpgsql SET search_path = basegate, pg_temp AS $$
DECLARE
    v_added text := 'SELECT period, tag, requests, errors, streams, prompt_tokens, completion_tokens FROM added';
    v_removed text := 'SELECT period, tag, -requests, -errors, -streams, -prompt_tokens, -completion_tokens FROM removed';
BEGIN
    EXECUTE format(
        'INSERT INTO %I AS s (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
        SELECT period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
        FROM (%s) c (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
        GROUP BY period, tag
        ON CONFLICT (period, tag) DO UPDATE SET requests = s.requests + excluded.requests, errors = s.errors + excluded.errors,
            streams = s.streams + excluded.streams, prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
            completion_tokens = s.completion_tokens + excluded.completion_tokens',
        TG_ARGV[0],
        CASE TG_OP WHEN 'INSERT' THEN v_added WHEN 'DELETE' THEN v_removed ELSE v_added || ' UNION ALL ' || v_removed END);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER usage_tag_days_inserted AFTER INSERT ON usage_tag_days REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_day_sums');
CREATE TRIGGER usage_tag_days_updated AFTER UPDATE ON usage_tag_days REFERENCING OLD TABLE AS removed NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_day_sums');
CREATE TRIGGER usage_tag_days_deleted AFTER DELETE ON usage_tag_days REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_day_sums');

INSERT INTO usage_tag_day_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    SELECT period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
    FROM usage_tag_days GROUP BY period, tag;

CREATE TRIGGER usage_tag_months_inserted AFTER INSERT ON usage_tag_months REFERENCING NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_month_sums');
CREATE TRIGGER usage_tag_months_updated AFTER UPDATE ON usage_tag_months REFERENCING OLD TABLE AS removed NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_month_sums');
CREATE TRIGGER usage_tag_months_deleted AFTER DELETE ON usage_tag_months REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION usage_sum_tags('usage_tag_month_sums');

INSERT INTO usage_tag_month_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    SELECT period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
    FROM usage_tag_months GROUP BY period, tag;

SELECT ledger_grants();
