-- +goose Up

-- How long each boot of a backend took, to estimate the next.
CREATE TABLE boots (
    model    TEXT NOT NULL,
    backend  TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    took_us  BIGINT NOT NULL CHECK (took_us >= 0)
);

CREATE INDEX boots_backend ON boots (model, backend, ended_at);

-- Warm windows of models, in addition to those in the configuration.
CREATE TABLE model_windows (
    id        INTEGER PRIMARY KEY,
    model     TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    ends_at   BIGINT NOT NULL,
    CHECK (ends_at > begins_at)
);

-- Commands for the running gateway, written by the CLI and deleted when executed.
CREATE TABLE model_orders (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    model      TEXT NOT NULL,
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop')),
    given_at   BIGINT NOT NULL
);
