-- +goose Up

-- What the operator's overview shows of the last day: figures and events, one row for each hour, by the Unix time at which
-- the hour begins. The data is compressed; package history describes it.
CREATE TABLE history_hours (
    hour BIGINT PRIMARY KEY,
    data BLOB NOT NULL
);
