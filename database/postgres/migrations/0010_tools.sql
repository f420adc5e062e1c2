-- +goose Up

-- What commands check and mend of the ledger while gateways may be running. The counters of an owner are the sums of its
-- rows in requests and inflight; each transaction of the ledger changes both, so one snapshot of them must agree.

-- ledger_used sums up the requests of accounts, or of all if NULL, by owner and day.
-- +goose StatementBegin
CREATE FUNCTION ledger_used(p_accounts text[], p_from bigint, p_to bigint)
RETURNS TABLE (owner text, day date, input bigint, output bigint)
LANGUAGE sql STABLE AS $$
    SELECT v.owner, ledger_day(r.time), sum(r.prompt_tokens)::bigint, sum(r.completion_tokens)::bigint
    FROM requests r CROSS JOIN LATERAL (VALUES (r.key_id), (r.account_id)) v(owner)
    WHERE (p_accounts IS NULL OR r.account_id = ANY (p_accounts)) AND r.time >= p_from AND r.time < p_to
    GROUP BY 1, 2
$$;
-- +goose StatementEnd

-- ledger_leased sums up the requests in flight and the waiters by owner, in the windows of the owner's counters. Lines of batches
-- need no slot.
-- +goose StatementBegin
CREATE FUNCTION ledger_leased()
RETURNS TABLE (owner text, running bigint, waiting bigint, reserved_day bigint, reserved_in bigint, reserved_out bigint)
LANGUAGE sql STABLE AS $$
    WITH e AS (
        SELECT v.owner, (i.batch_id IS NULL)::integer AS running, 0 AS waiting, i.day, i.reserved_in, i.reserved_out
        FROM inflight i CROSS JOIN LATERAL (VALUES (i.key), (i.account)) v(owner)
        UNION ALL
        SELECT v.owner, 0, 1, NULL, 0, 0 FROM waiter w CROSS JOIN LATERAL (VALUES (w.key), (w.account)) v(owner))
    SELECT o.id, sum(e.running), sum(e.waiting),
        coalesce(sum(e.reserved_in + e.reserved_out) FILTER (WHERE e.day = o.day), 0)::bigint,
        coalesce(sum(e.reserved_in) FILTER (WHERE e.day >= o.month), 0)::bigint,
        coalesce(sum(e.reserved_out) FILTER (WHERE e.day >= o.month), 0)::bigint
    FROM e JOIN owner o ON o.id = e.owner GROUP BY o.id
$$;
-- +goose StatementEnd

-- ledger_differences_v1 returns the counters of owners in a month that are not the sums of their rows: those of the day and
-- the month that the owner is in, and those of the days of the month that have ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_differences_v1(p_month date)
RETURNS TABLE (account text, owner text, counter text, stored bigint, counted bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    WITH used AS MATERIALIZED (
        SELECT u.*, o.account, o.day AS today FROM ledger_used(NULL, ledger_start(p_month), ledger_start((p_month + interval '1 month')::date)) u
            JOIN owner o ON o.id = u.owner
    ), month AS (
        SELECT u.owner, sum(u.input) AS input, sum(u.output) AS output FROM used u GROUP BY u.owner
    ), ended AS (
        SELECT s.owner, s.day, o.account, s.input, s.output FROM spend s JOIN owner o ON o.id = s.owner
        WHERE s.day >= p_month AND s.day < (p_month + interval '1 month')::date
    )
    SELECT o.account, o.id, c.counter, c.stored, c.counted
    FROM owner o
        LEFT JOIN used d ON d.owner = o.id AND d.day = o.day
        LEFT JOIN month m ON m.owner = o.id
        LEFT JOIN ledger_leased() l ON l.owner = o.id
        CROSS JOIN LATERAL (VALUES
            ('day_in', o.day_in, coalesce(d.input, 0)), ('day_out', o.day_out, coalesce(d.output, 0)),
            ('month_in', o.month_in, coalesce(m.input, 0)::bigint), ('month_out', o.month_out, coalesce(m.output, 0)::bigint),
            ('running', o.running, coalesce(l.running, 0)), ('waiting', o.waiting, coalesce(l.waiting, 0)),
            ('reserved_day', o.reserved_day, coalesce(l.reserved_day, 0)),
            ('reserved_in', o.reserved_in, coalesce(l.reserved_in, 0)),
            ('reserved_out', o.reserved_out, coalesce(l.reserved_out, 0))) c(counter, stored, counted)
    WHERE o.month = p_month AND c.stored <> c.counted
    UNION ALL
    SELECT coalesce(e.account, u.account), coalesce(e.owner, u.owner), c.counter || ' of ' || coalesce(e.day, u.day), c.stored, c.counted
    FROM ended e FULL JOIN (SELECT * FROM used WHERE day <> today) u ON u.owner = e.owner AND u.day = e.day
        CROSS JOIN LATERAL (VALUES ('input', coalesce(e.input, 0), coalesce(u.input, 0)),
            ('output', coalesce(e.output, 0), coalesce(u.output, 0))) c(counter, stored, counted)
    WHERE c.stored <> c.counted
    ORDER BY 1, 2, 3
$$;
-- +goose StatementEnd

-- ledger_recount_v1 makes the counters of accounts, or of all if NULL, and of their keys the sums of their rows. Rows are kept
-- since p_since; the days before it stay. Requests of the accounts wait meanwhile.
-- +goose StatementBegin
CREATE FUNCTION ledger_recount_v1(p_accounts text[], p_since date) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_now bigint;
BEGIN
    PERFORM 1 FROM owner WHERE p_accounts IS NULL OR id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    CREATE TEMPORARY TABLE recount ON COMMIT DROP AS
        SELECT u.* FROM ledger_used(p_accounts, ledger_start(p_since), 9223372036854775807) u JOIN owner o ON o.id = u.owner;
    -- The day of an owner never goes back, and no row lies behind it.
    UPDATE owner o SET day = n.day, month = ledger_month(n.day)
    FROM (SELECT a.account, greatest(max(a.day), ledger_day(v_now), max(r.day)) AS day
        FROM owner a LEFT JOIN pg_temp.recount r ON r.owner = a.id GROUP BY a.account) n
    WHERE n.account = o.account AND (p_accounts IS NULL OR o.account = ANY (p_accounts));
    DELETE FROM spend s USING owner o
        WHERE o.id = s.owner AND (p_accounts IS NULL OR o.account = ANY (p_accounts)) AND s.day >= p_since;
    INSERT INTO spend (owner, day, input, output)
        SELECT r.owner, r.day, r.input, r.output FROM pg_temp.recount r JOIN owner o ON o.id = r.owner
        WHERE r.day < o.day AND (r.input > 0 OR r.output > 0);
    UPDATE owner o SET day_in = n.day_in, day_out = n.day_out, month_in = n.month_in, month_out = n.month_out,
        running = n.running, waiting = n.waiting, blocked = o.blocked AND n.waiting > 0,
        reserved_day = n.reserved_day, reserved_in = n.reserved_in, reserved_out = n.reserved_out
    FROM (
        SELECT a.id, coalesce(sum(r.input) FILTER (WHERE r.day = a.day), 0) AS day_in,
            coalesce(sum(r.output) FILTER (WHERE r.day = a.day), 0) AS day_out,
            coalesce(sum(r.input) FILTER (WHERE r.day >= a.month), 0) AS month_in,
            coalesce(sum(r.output) FILTER (WHERE r.day >= a.month), 0) AS month_out,
            coalesce(max(l.running), 0) AS running, coalesce(max(l.waiting), 0) AS waiting,
            coalesce(max(l.reserved_day), 0) AS reserved_day, coalesce(max(l.reserved_in), 0) AS reserved_in,
            coalesce(max(l.reserved_out), 0) AS reserved_out
        FROM owner a LEFT JOIN pg_temp.recount r ON r.owner = a.id LEFT JOIN ledger_leased() l ON l.owner = a.id
        WHERE p_accounts IS NULL OR a.account = ANY (p_accounts)
        GROUP BY a.id) n
    WHERE n.id = o.id;
    DROP TABLE pg_temp.recount;
END
$$;
-- +goose StatementEnd

-- ledger_fill_v1 puts all accounts and keys on the ledger, with counters that are the sums of their requests. The gateways set
-- their caps.
-- +goose StatementBegin
CREATE FUNCTION ledger_fill_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_today date := ledger_day(ledger_now());
BEGIN
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT o.id, o.account, false, v_today, ledger_month(v_today)
        FROM (SELECT id, id AS account FROM accounts UNION ALL SELECT id, account_id FROM keys) o
        ON CONFLICT (id) DO NOTHING;
    PERFORM ledger_recount_v1(NULL, '1970-01-01');
END
$$;
-- +goose StatementEnd

-- ledger_orphans_v1 returns the gateways that hold requests in flight or waiters although their epoch has ended, or whose
-- heartbeats are older than p_silent microseconds.
-- +goose StatementBegin
CREATE FUNCTION ledger_orphans_v1(p_silent bigint)
RETURNS TABLE (gateway integer, name text, alive boolean, epoch bigint, beat bigint, leases bigint, waiters bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT h.gateway, coalesce(max(g.name), ''), coalesce(bool_or(g.alive), false), coalesce(max(g.epoch), 0),
        coalesce(max(g.beat), 0), sum(h.lease), sum(1 - h.lease)
    FROM (SELECT i.gateway, i.epoch, 1 AS lease FROM inflight i UNION ALL SELECT w.gateway, w.epoch, 0 FROM waiter w) h
        LEFT JOIN gateway g ON g.id = h.gateway
    WHERE g.id IS NULL OR NOT g.alive OR g.epoch <> h.epoch OR g.beat_at < ledger_now() - p_silent
    GROUP BY h.gateway ORDER BY h.gateway
$$;
-- +goose StatementEnd

-- ledger_release_v1 ends the requests in flight of a gateway as interrupted, with the tokens of their last checkpoint, and
-- drops its waiters: those of epochs that have ended, and those of the current one if its beat is still p_beat. It returns
-- the requests that it ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_release_v1(p_gateway integer, p_epoch bigint, p_beat bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_current bigint;
    v_accounts text[];
    v_keys text[];
    v_account text;
    v_epoch bigint;
    v_now bigint;
    v_rows json;
    v_n bigint;
    v_ended bigint := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.alive AND g.epoch = p_epoch AND g.beat = p_beat FOR UPDATE;
    IF FOUND THEN
        RETURN ledger_end(p_gateway);
    END IF;
    SELECT g.epoch INTO v_current FROM gateway g WHERE g.id = p_gateway AND g.alive;
    SELECT array_agg(DISTINCT account), array_agg(DISTINCT key) INTO v_accounts, v_keys FROM (
        SELECT account, key FROM inflight WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current
        UNION SELECT account, key FROM waiter WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current) o;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    WITH d AS (
        DELETE FROM waiter WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current RETURNING key, account
    ), n AS (
        SELECT v.owner, count(*) AS n FROM d CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner) GROUP BY v.owner)
    UPDATE owner o SET waiting = o.waiting - n.n, blocked = o.blocked AND o.waiting > n.n FROM n WHERE o.id = n.owner;
    IF v_current IS NULL THEN
        DELETE FROM decided WHERE gateway = p_gateway;
    END IF;
    FOR v_epoch IN SELECT DISTINCT epoch FROM inflight WHERE gateway = p_gateway AND epoch IS DISTINCT FROM v_current LOOP
        SELECT json_agg(json_build_object('id', request_id, 'state', 'interrupted', 'prompt', prompt_tokens,
            'completion', completion_tokens)), count(*) INTO v_rows, v_n FROM inflight WHERE gateway = p_gateway AND epoch = v_epoch;
        PERFORM ledger_settle(p_gateway, v_epoch, v_rows);
        v_ended := v_ended + v_n;
    END LOOP;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN v_ended;
END
$$;
-- +goose StatementEnd

-- ledger_foreign_v1 reports whether rows of requests, or the rollups' watermark, have numbers of transactions that this server has
-- not begun yet, as after pg_restore to another server: the rollups would not include what follows.
-- +goose StatementBegin
CREATE FUNCTION ledger_foreign_v1() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT w.seq::text::xid8 >= pg_snapshot_xmax(pg_current_snapshot())
        OR EXISTS (SELECT FROM requests WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()))
    FROM usage_watermark w
$$;
-- +goose StatementEnd

-- ledger_renumber_v1 gives such rows numbers of this server, so that the rollups include the same of them as before. Which of the
-- rows that were inserted since the restore they include is not known: rebuild the rollups afterwards.
-- +goose StatementBegin
CREATE FUNCTION ledger_renumber_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_own xid8 := pg_current_xact_id();
    v_seq xid8;
BEGIN
    PERFORM pg_advisory_xact_lock(1650553701, 1919904876); -- of the rollups
    SELECT seq::text::xid8 INTO v_seq FROM usage_watermark;
    UPDATE requests SET xid = CASE WHEN xid <= v_seq THEN '3'::xid8 ELSE v_own END -- 3 is the first number of a server
        WHERE xid >= pg_snapshot_xmax(pg_current_snapshot());
    UPDATE usage_watermark SET seq = v_own::text::bigint - 1 WHERE seq >= v_own::text::bigint;
END
$$;
-- +goose StatementEnd

SELECT ledger_grants();
