-- +goose Up

-- Failed sign-ins of an account, a browser or a network; package identity describes the columns.
CREATE TABLE sign_in_failures (
    kind     TEXT NOT NULL,
    subject  BLOB NOT NULL, -- a hash
    failures REAL NOT NULL,
    counted  BIGINT NOT NULL,
    next     BIGINT NOT NULL,
    PRIMARY KEY (kind, subject)
) WITHOUT ROWID;

CREATE INDEX sign_in_failures_counted ON sign_in_failures (kind, counted);
