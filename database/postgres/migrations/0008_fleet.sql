-- +goose Up

-- The lifecycle of backends over several gateways. A gateway launches, wakes, stops or puts to sleep a backend only while it
-- holds the backend's lease: the row's operation, which names the gateway and its epoch. After the end of that epoch the
-- operation waits for another gateway to take it over.
CREATE TABLE backend_leases (
    model      text NOT NULL,
    backend    text NOT NULL,
    fence      bigint NOT NULL,                    -- rises whenever a gateway gets or loses the lease; BASEGATE_FENCE of the programs
    gateway    integer NOT NULL DEFAULT 0,
    epoch      bigint NOT NULL DEFAULT 0,
    operation  text NOT NULL DEFAULT '' CHECK (operation IN ('', 'launch', 'wake', 'stop', 'sleep')), -- '' after its end
    committed  boolean NOT NULL DEFAULT false,     -- of a stop or sleep: every gateway has drained, so it cannot be cancelled
    idle_us    bigint NOT NULL DEFAULT 0,          -- a stop or sleep that only a backend idle for so long may have; 0: an operator's
    reason     text NOT NULL DEFAULT '',           -- of the operation, or of its failure
    began_at   bigint NOT NULL DEFAULT 0,
    deadline   bigint NOT NULL DEFAULT 0,          -- until then, what a gateway that has died has begun may still succeed
    outcome    text NOT NULL DEFAULT '',           -- of the last operation: ready, failed, abandoned, stopped, slept or cancelled
    ended_at   bigint NOT NULL DEFAULT 0,
    held       boolean NOT NULL DEFAULT false,     -- an operator has stopped it: no warm window starts it
    PRIMARY KEY (model, backend)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- What each gateway has last reported of its requests at each backend.
CREATE TABLE backend_uses (
    gateway   integer NOT NULL,
    model     text NOT NULL,
    backend   text NOT NULL,
    epoch     bigint NOT NULL,
    used_at   bigint NOT NULL,  -- when a request last began or ended; 0: never
    in_flight bigint NOT NULL,
    seen      bigint NOT NULL,  -- the fence of the lease that the gateway acts on
    PRIMARY KEY (model, backend, gateway)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- An order to one backend is for the gateway that holds its lease.
ALTER TABLE model_orders ADD COLUMN backend text NOT NULL DEFAULT '';
ALTER TABLE model_orders DROP CONSTRAINT model_orders_order_name_check;
ALTER TABLE model_orders ADD CONSTRAINT model_orders_order_name_check CHECK (order_name IN ('warm', 'stop', 'sleep'));

SELECT ledger_grants();
