-- +goose Up

-- What the boots of backends took, for estimates.
CREATE TABLE boots (
    model    TEXT NOT NULL,
    backend  TEXT NOT NULL,
    ended_at BIGINT NOT NULL,
    took_us  BIGINT NOT NULL CHECK (took_us >= 0)
);

CREATE INDEX boots_backend ON boots (model, backend, ended_at);

-- Windows in which a model is kept warm, besides those of the configuration.
CREATE TABLE model_windows (
    id        INTEGER PRIMARY KEY,
    model     TEXT NOT NULL,
    begins_at BIGINT NOT NULL,
    ends_at   BIGINT NOT NULL,
    CHECK (ends_at > begins_at)
);

-- What commands have ordered of the running gateway, until it has obeyed.
CREATE TABLE model_orders (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    model      TEXT NOT NULL,
    order_name TEXT NOT NULL CHECK (order_name IN ('warm', 'stop')),
    given_at   BIGINT NOT NULL
);
