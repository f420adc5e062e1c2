-- +goose Up

-- The ledger of several gateways. Times are microseconds since the epoch, UTC, of this server's clock; days are UTC.
-- All changes are made by the functions ledger_*: no gateway writes a table itself, and none opens a transaction.

-- A gateway proves that it is alive by incrementing beat. Its epoch rises whenever it starts, leaves or is reaped; calls
-- with an older epoch are refused (fenced).
CREATE TABLE gateway (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text NOT NULL UNIQUE,
    version text NOT NULL,
    epoch   bigint NOT NULL,
    alive   boolean NOT NULL,
    beat    bigint NOT NULL,
    beat_at bigint NOT NULL -- for people; whether a gateway is dead is decided by beat alone
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- A lane is one connection of a gateway on which ledger calls follow each other. It keeps the reply to its last call, so
-- that a call whose reply was lost can be sent again.
CREATE TABLE lane (
    gateway integer NOT NULL REFERENCES gateway (id),
    n       integer NOT NULL,
    epoch   bigint NOT NULL,
    seq     bigint NOT NULL,
    reply   text NOT NULL,
    PRIMARY KEY (gateway, n)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
ALTER TABLE lane ALTER COLUMN reply SET STORAGE MAIN;

-- A key or an account: its caps and counters. The row of an account is the lock of all its keys: their counters, their
-- waiters and their requests in flight change only while it is locked.
CREATE TABLE owner (
    id           text PRIMARY KEY,
    account      text NOT NULL, -- of a key; the id itself of an account
    enabled      boolean NOT NULL,
    -- Caps in tokens; NULL is unbounded.
    month_total  bigint CHECK (month_total >= 0),
    day_total    bigint CHECK (day_total >= 0),
    month_input  bigint CHECK (month_input >= 0),
    month_output bigint CHECK (month_output >= 0),
    slots        integer CHECK (slots >= 1), -- of a key: the requests that may run at once; NULL is unbounded
    expires_at   bigint, -- of a key: its requests are refused from then on; NULL is never
    last_use     bigint NOT NULL DEFAULT 0, -- when the latest request arrived; 0 is never
    raised       smallint NOT NULL DEFAULT 0, -- caps whose alarm of a refusal has been raised in the window: total 1, day 2, input 4, output 8
    running      integer NOT NULL DEFAULT 0, -- requests in flight, without lines of batches, which need no slot
    waiting      integer NOT NULL DEFAULT 0,
    ticket       bigint NOT NULL DEFAULT 0, -- of an account: the last one handed out
    blocked      boolean NOT NULL DEFAULT false, -- a waiter waits because of this owner's caps or slots
    -- The windows: day is the latest day on which the owner was charged or asked; it never goes back.
    day          date NOT NULL,
    month        date NOT NULL, -- the first day of day's month
    day_in       bigint NOT NULL DEFAULT 0, -- used tokens
    day_out      bigint NOT NULL DEFAULT 0,
    month_in     bigint NOT NULL DEFAULT 0,
    month_out    bigint NOT NULL DEFAULT 0,
    reserved_day bigint NOT NULL DEFAULT 0, -- by requests in flight that were admitted on this day
    reserved_in  bigint NOT NULL DEFAULT 0, -- by those that were admitted in this month
    reserved_out bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0);

-- What was used on days that have ended. The days of a month, with the owner's day_in and day_out, add up to its month.
CREATE TABLE spend (
    owner  text NOT NULL,
    day    date NOT NULL,
    input  bigint NOT NULL,
    output bigint NOT NULL,
    PRIMARY KEY (owner, day)
);

-- Requests in flight, with their reservation and their last checkpoint. It has no second index: the planner would choose
-- it and walk the entries of all requests that have ended since the last vacuum.
CREATE TABLE inflight (
    request_id        text PRIMARY KEY,
    gateway           integer NOT NULL,
    epoch             bigint NOT NULL,
    account           text NOT NULL,
    key               text NOT NULL,
    day               date NOT NULL, -- of admission
    time              bigint NOT NULL,
    reserved_in       bigint NOT NULL,
    reserved_out      bigint NOT NULL,
    prompt_tokens     bigint NOT NULL DEFAULT 0,
    completion_tokens bigint NOT NULL DEFAULT 0,
    backend           text NOT NULL DEFAULT '',
    model             text NOT NULL,
    endpoint          text NOT NULL,
    workload          text NOT NULL,
    user_tag          text NOT NULL,
    stream            boolean NOT NULL,
    batch_id          text,
    details           text NOT NULL -- attempts of the request's row if it is interrupted
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0);

-- Requests that wait for a slot or for reservations of others, in the order of their tickets.
CREATE TABLE waiter (
    account    text NOT NULL,
    key        text NOT NULL,
    ticket     bigint NOT NULL,
    request_id text NOT NULL,
    gateway    integer NOT NULL,
    epoch      bigint NOT NULL,
    lane       integer NOT NULL,
    arrived    bigint NOT NULL,
    prompt     bigint NOT NULL, -- the demand
    candidates bigint NOT NULL,
    max_tokens bigint NOT NULL,
    min_tokens bigint NOT NULL,
    prompts    bigint[], -- lengths of prompts that are truncated
    times      bigint[], -- how many prompts have each length
    context    bigint,
    model      text NOT NULL,
    endpoint   text NOT NULL,
    workload   text NOT NULL,
    user_tag   text NOT NULL,
    stream     boolean NOT NULL,
    batch_id   text,
    details    text NOT NULL,
    PRIMARY KEY (account, key, ticket)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

-- Waiters whose wait was ended by a call of another gateway or lane, until their lane collects them.
CREATE TABLE decided (
    gateway    integer NOT NULL,
    lane       integer NOT NULL,
    request_id text NOT NULL,
    reply      json NOT NULL,
    PRIMARY KEY (gateway, lane, request_id)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Caps that are nearly used or used up, until one gateway has taken the row and raised the alarm. cap is in the encoding of
-- ledger_evaluate.
CREATE TABLE alarm (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    percent integer NOT NULL,
    key     text NOT NULL, -- that was charged or refused
    account text NOT NULL,
    cap     json NOT NULL
);

-- Receipts whose requests have been settled, until the receipt log has numbered them.
CREATE TABLE pending_receipts (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id text NOT NULL,
    key_id     text NOT NULL,
    receipt    bytea NOT NULL -- in the encoding of package receipt
);

-- One row per request that has ended. xid is the transaction that inserted it: a reader that follows the table takes the
-- rows below pg_snapshot_xmin(pg_current_snapshot()), so that it misses none.
CREATE TABLE requests (
    request_id        text NOT NULL,
    time              bigint NOT NULL,
    key_id            text NOT NULL,
    account_id        text NOT NULL,
    model             text NOT NULL,
    backend           text NOT NULL,
    endpoint          text NOT NULL,
    workload          text NOT NULL,
    user_tag          text NOT NULL,
    stream            boolean NOT NULL,
    status            bigint NOT NULL,
    code              text NOT NULL,
    state             text NOT NULL CHECK (state IN ('settled', 'interrupted')),
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    queue_us          bigint NOT NULL,
    first_token_us    bigint NOT NULL,
    total_us          bigint NOT NULL,
    boot_us           bigint NOT NULL,
    attempts          text NOT NULL, -- JSON, in the encoding of package usage; empty if there is nothing to tell
    batch_id          text,
    xid               xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (time, request_id)
) PARTITION BY RANGE (time);
