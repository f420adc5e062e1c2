-- +goose Up

-- The rollups of user tags, summed up over all keys, for pages that show the tags of all accounts: a ledger may have many
-- times as many pairs of a key and a tag. Triggers keep them equal to the sums of the rollups.

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
) WITHOUT ROWID;

-- +goose StatementBegin
CREATE TRIGGER usage_tag_days_inserted AFTER INSERT ON usage_tag_days BEGIN
    INSERT INTO usage_tag_day_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    VALUES (NEW.period, NEW.tag, NEW.requests, NEW.errors, NEW.streams, NEW.prompt_tokens, NEW.completion_tokens)
    ON CONFLICT (period, tag) DO UPDATE SET requests = requests + excluded.requests, errors = errors + excluded.errors,
        streams = streams + excluded.streams, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER usage_tag_days_updated AFTER UPDATE ON usage_tag_days BEGIN
    UPDATE usage_tag_day_sums SET requests = requests - OLD.requests, errors = errors - OLD.errors, streams = streams - OLD.streams,
        prompt_tokens = prompt_tokens - OLD.prompt_tokens, completion_tokens = completion_tokens - OLD.completion_tokens
    WHERE period = OLD.period AND tag = OLD.tag;
    INSERT INTO usage_tag_day_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    VALUES (NEW.period, NEW.tag, NEW.requests, NEW.errors, NEW.streams, NEW.prompt_tokens, NEW.completion_tokens)
    ON CONFLICT (period, tag) DO UPDATE SET requests = requests + excluded.requests, errors = errors + excluded.errors,
        streams = streams + excluded.streams, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER usage_tag_days_deleted AFTER DELETE ON usage_tag_days BEGIN
    UPDATE usage_tag_day_sums SET requests = requests - OLD.requests, errors = errors - OLD.errors, streams = streams - OLD.streams,
        prompt_tokens = prompt_tokens - OLD.prompt_tokens, completion_tokens = completion_tokens - OLD.completion_tokens
    WHERE period = OLD.period AND tag = OLD.tag;
END;
-- +goose StatementEnd

INSERT INTO usage_tag_day_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    SELECT period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
    FROM usage_tag_days GROUP BY period, tag;

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
) WITHOUT ROWID;

-- +goose StatementBegin
CREATE TRIGGER usage_tag_months_inserted AFTER INSERT ON usage_tag_months BEGIN
    INSERT INTO usage_tag_month_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    VALUES (NEW.period, NEW.tag, NEW.requests, NEW.errors, NEW.streams, NEW.prompt_tokens, NEW.completion_tokens)
    ON CONFLICT (period, tag) DO UPDATE SET requests = requests + excluded.requests, errors = errors + excluded.errors,
        streams = streams + excluded.streams, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER usage_tag_months_updated AFTER UPDATE ON usage_tag_months BEGIN
    UPDATE usage_tag_month_sums SET requests = requests - OLD.requests, errors = errors - OLD.errors, streams = streams - OLD.streams,
        prompt_tokens = prompt_tokens - OLD.prompt_tokens, completion_tokens = completion_tokens - OLD.completion_tokens
    WHERE period = OLD.period AND tag = OLD.tag;
    INSERT INTO usage_tag_month_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    VALUES (NEW.period, NEW.tag, NEW.requests, NEW.errors, NEW.streams, NEW.prompt_tokens, NEW.completion_tokens)
    ON CONFLICT (period, tag) DO UPDATE SET requests = requests + excluded.requests, errors = errors + excluded.errors,
        streams = streams + excluded.streams, prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER usage_tag_months_deleted AFTER DELETE ON usage_tag_months BEGIN
    UPDATE usage_tag_month_sums SET requests = requests - OLD.requests, errors = errors - OLD.errors, streams = streams - OLD.streams,
        prompt_tokens = prompt_tokens - OLD.prompt_tokens, completion_tokens = completion_tokens - OLD.completion_tokens
    WHERE period = OLD.period AND tag = OLD.tag;
END;
-- +goose StatementEnd

INSERT INTO usage_tag_month_sums (period, tag, requests, errors, streams, prompt_tokens, completion_tokens)
    SELECT period, tag, sum(requests), sum(errors), sum(streams), sum(prompt_tokens), sum(completion_tokens)
    FROM usage_tag_months GROUP BY period, tag;
