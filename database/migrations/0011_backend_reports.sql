-- +goose Up

-- What each backend has reported about itself, for the requests that are judged before it is started again. source is a
-- hash of the configuration that determines which server answers: the report of another source is outdated. A context or
-- a version that the backend did not report is 0 or empty; special_tokens is NULL if it is not known.
CREATE TABLE backend_reports (
    model          TEXT NOT NULL,
    backend        TEXT NOT NULL,
    source         BLOB NOT NULL,
    max_model_len  BIGINT NOT NULL,
    version        TEXT NOT NULL,
    special_tokens BIGINT,
    PRIMARY KEY (model, backend)
);
