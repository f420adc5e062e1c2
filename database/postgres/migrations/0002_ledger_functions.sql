-- +goose Up

-- The functions of the ledger, version 1. A call of ledger_v1 is one transaction under READ COMMITTED: each statement of
-- these VOLATILE functions has a snapshot of its own, so what is read after a lock is what the lock protects.
--
-- Every lock is taken in one order: the gateway's advisory lock, the lane, the accounts by id. Functions without a version
-- in their names are internal: they run inside the others, with their settings and their owner's rights.

-- +goose StatementBegin
CREATE FUNCTION ledger_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_day(p_time bigint) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT date '1970-01-01' + floor(p_time / 86400000000.0)::integer
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_start(p_day date) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_day - date '1970-01-01') * 86400000000
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ledger_month(p_day date) RETURNS date LANGUAGE sql IMMUTABLE AS $$
    SELECT p_day - (extract(day FROM p_day)::integer - 1)
$$;
-- +goose StatementEnd

-- ledger_time returns the time of a request's row: when it arrived, if that lies in the day that is charged, or else the
-- closest to now that does.
-- +goose StatementBegin
CREATE FUNCTION ledger_time(p_arrived bigint, p_now bigint, p_day date) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN ledger_day(p_arrived) = p_day THEN p_arrived
        WHEN ledger_day(p_now) = p_day THEN p_now ELSE ledger_start(p_day) END
$$;
-- +goose StatementEnd

-- ledger_roll moves the counters of owners to the day of their account, which is today, unless that lies in its past, and
-- returns the accounts among them that have waiters. What was used on the days that have ended goes to spend. The caller
-- has locked the accounts.
-- +goose StatementBegin
CREATE FUNCTION ledger_roll(p_owners text[], p_today date) RETURNS text[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_rolled text[];
BEGIN
    INSERT INTO spend (owner, day, input, output)
        SELECT o.id, o.day, o.day_in, o.day_out FROM owner o JOIN owner a ON a.id = o.account
        WHERE o.id = ANY (p_owners) AND o.day < greatest(a.day, p_today) AND (o.day_in > 0 OR o.day_out > 0)
        ON CONFLICT (owner, day) DO UPDATE SET input = spend.input + excluded.input, output = spend.output + excluded.output;
    WITH rolled AS (
        UPDATE owner o SET day = n.day, month = n.month, day_in = 0, day_out = 0, reserved_day = 0,
            raised = CASE WHEN n.month = o.month THEN o.raised & ~2 ELSE 0 END,
            month_in = CASE WHEN n.month = o.month THEN o.month_in ELSE 0 END,
            month_out = CASE WHEN n.month = o.month THEN o.month_out ELSE 0 END,
            reserved_in = CASE WHEN n.month = o.month THEN o.reserved_in ELSE 0 END,
            reserved_out = CASE WHEN n.month = o.month THEN o.reserved_out ELSE 0 END
        FROM (SELECT a.id, greatest(a.day, p_today) AS day, ledger_month(greatest(a.day, p_today)) AS month FROM owner a) n
        WHERE o.id = ANY (p_owners) AND n.id = o.account AND o.day < n.day
        RETURNING o.id, o.account, o.waiting)
    SELECT array_agg(id) INTO v_rolled FROM rolled WHERE id = account AND waiting > 0;
    RETURN v_rolled;
END
$$;
-- +goose StatementEnd

-- ledger_prompt returns the tokens of all prompts beside a max_tokens: prompts that are truncated to what max_tokens leaves
-- of the context are longer if it is lowered. p_times are the numbers of prompts of the lengths in p_prompts.
-- +goose StatementBegin
CREATE FUNCTION ledger_prompt(p_at bigint, p_prompt bigint, p_max bigint, p_prompts bigint[], p_times bigint[],
    p_context bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_prompts IS NULL OR p_at >= p_max THEN p_prompt ELSE
        (SELECT least(coalesce(sum(times * least(n, greatest(p_context - p_at, 0))::numeric), 0), 1125899906842624)::bigint
            FROM unnest(p_prompts, p_times) u(n, times))
        END
$$;
-- +goose StatementEnd

-- ledger_evaluate decides on one request by all caps at once, by the same rules as package budget. Used tokens refuse the
-- request or lower its max_tokens; reservations, taken slots, and earlier requests that they block make it wait. refusal is
-- the cap that refuses: scope, window, meter, limit, used, reserved and the end of the window; named is its number, from 1.
-- p_slot is false for a line of a batch, which needs no slot.
-- +goose StatementBegin
CREATE FUNCTION ledger_evaluate(k owner, a owner, p_prompt bigint, p_candidates bigint, p_max bigint, p_min bigint,
    p_prompts bigint[], p_times bigint[], p_context bigint, p_slot boolean,
    OUT max_tokens bigint, OUT prompt bigint, OUT output bigint, OUT refusal text, OUT named integer, OUT blocked_slot boolean,
    OUT blocked_key boolean, OUT blocked_account boolean)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- Of each owner: the month's total, the day's total, the month's input, the month's output.
    v_caps bigint[] := ARRAY[k.month_total, k.day_total, k.month_input, k.month_output,
        a.month_total, a.day_total, a.month_input, a.month_output];
    v_used bigint[] := ARRAY[k.month_in + k.month_out, k.day_in + k.day_out, k.month_in, k.month_out,
        a.month_in + a.month_out, a.day_in + a.day_out, a.month_in, a.month_out];
    v_reserved bigint[] := ARRAY[k.reserved_in + k.reserved_out, k.reserved_day, k.reserved_in, k.reserved_out,
        a.reserved_in + a.reserved_out, a.reserved_day, a.reserved_in, a.reserved_out];
    v_least bigint := greatest(1, least(p_min, p_max));
    v_left bigint;
    v_allowed bigint;
    v_high bigint;
    v_middle bigint;
    v_named integer; -- the cap that a refusal names
    v_need bigint;
BEGIN
    max_tokens := p_max;
    FOR i IN 1..8 LOOP
        CONTINUE WHEN v_caps[i] IS NULL;
        v_left := v_caps[i] - v_used[i];
        IF i IN (3, 7) THEN
            v_allowed := CASE WHEN v_left <= 0 OR p_prompt > v_left THEN 0 ELSE p_max END;
        ELSIF i IN (4, 8) THEN
            v_allowed := greatest(v_left, 0) / p_candidates;
        ELSIF p_prompts IS NULL THEN
            v_allowed := CASE WHEN v_left <= p_prompt THEN 0 ELSE (v_left - p_prompt) / p_candidates END;
        ELSE -- the most that fits, by bisection: the cost of one more token of max_tokens is never negative
            v_allowed := 0;
            v_high := p_max;
            WHILE v_allowed < v_high LOOP
                v_middle := (v_allowed + v_high + 1) / 2;
                IF ledger_prompt(v_middle, p_prompt, p_max, p_prompts, p_times, p_context)
                    + least(p_candidates::numeric * v_middle, 1125899906842624) <= v_left THEN
                    v_allowed := v_middle;
                ELSE
                    v_high := v_middle - 1;
                END IF;
            END LOOP;
        END IF;
        IF v_allowed < v_least AND (v_named IS NULL OR CASE WHEN (i IN (2, 6)) = (v_named IN (2, 6))
            THEN v_left < v_caps[v_named] - v_used[v_named] ELSE v_named IN (2, 6) END) THEN
            v_named := i;
        END IF;
        max_tokens := least(max_tokens, v_allowed);
    END LOOP;
    prompt := ledger_prompt(max_tokens, p_prompt, p_max, p_prompts, p_times, p_context);
    FOREACH v_need IN ARRAY ARRAY[3, 7] LOOP -- a truncated prompt is longer at a lower max_tokens
        v_left := v_caps[v_need] - v_used[v_need];
        IF prompt > v_left AND (v_named IS NULL OR v_named IN (2, 6) OR v_left < v_caps[v_named] - v_used[v_named]) THEN
            v_named := v_need;
        END IF;
    END LOOP;
    IF v_named IS NOT NULL THEN
        refusal := json_build_array(CASE WHEN v_named <= 4 THEN 'key' ELSE 'account' END,
            CASE WHEN v_named IN (2, 6) THEN 'day' ELSE 'month' END,
            CASE v_named % 4 WHEN 3 THEN 'input' WHEN 0 THEN 'output' ELSE 'total' END,
            v_caps[v_named], v_used[v_named], v_reserved[v_named],
            ledger_start(CASE WHEN v_named IN (2, 6) THEN a.day + 1 ELSE (a.month + interval '1 month')::date END));
        named := v_named;
        RETURN;
    END IF;
    output := least(p_candidates::numeric * max_tokens, 1125899906842624);
    blocked_slot := p_slot AND coalesce(k.running >= k.slots, false);
    blocked_key := k.blocked AND coalesce(k.month_total, k.day_total, k.month_input, k.month_output) IS NOT NULL;
    blocked_account := a.blocked AND coalesce(a.month_total, a.day_total, a.month_input, a.month_output) IS NOT NULL;
    FOR i IN 1..8 LOOP
        v_need := CASE WHEN i IN (3, 7) THEN prompt WHEN i IN (4, 8) THEN output ELSE prompt + output END;
        IF v_need > v_caps[i] - v_used[i] - v_reserved[i] THEN
            IF i <= 4 THEN blocked_key := true; ELSE blocked_account := true; END IF;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_crosses reports whether a charge has taken used tokens over 80 % or 100 % of a cap. The cap less a fifth, rounded down,
-- is 80 %, rounded up.
-- +goose StatementBegin
CREATE FUNCTION ledger_crosses(p_used bigint, p_charge bigint, p_cap bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_used >= p_cap AND p_used - p_charge < p_cap
        OR p_used >= p_cap - p_cap / 5 AND p_used - p_charge < p_cap - p_cap / 5
$$;
-- +goose StatementEnd

-- ledger_raise leaves alarms about the caps of owners that a charge takes over 80 % or 100 %. charged has the owners that
-- were charged, with what was added to their windows.
-- +goose StatementBegin
CREATE FUNCTION ledger_raise(p_charged json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT o.id, o.account, o.day, o.month, n.key, v.bit, v.meter, v.cap, v.used, v.reserved,
            CASE WHEN v.used >= v.cap AND v.used - v.charge < v.cap THEN 100 ELSE 80 END AS percent
        FROM json_to_recordset(p_charged) AS n(owner text, key text, day_in bigint, day_out bigint, month_in bigint, month_out bigint)
        JOIN owner o ON o.id = n.owner
        CROSS JOIN LATERAL (VALUES
            (1, 'total', o.month_total, o.month_in + o.month_out, n.month_in + n.month_out, o.reserved_in + o.reserved_out),
            (2, 'total', o.day_total, o.day_in + o.day_out, n.day_in + n.day_out, o.reserved_day),
            (4, 'input', o.month_input, o.month_in, n.month_in, o.reserved_in),
            (8, 'output', o.month_output, o.month_out, n.month_out, o.reserved_out)) v(bit, meter, cap, used, charge, reserved)
        WHERE ledger_crosses(v.used, v.charge, v.cap)
        ORDER BY o.id, v.bit
    LOOP
        INSERT INTO alarm (percent, key, account, cap) VALUES (c.percent, c.key, c.account,
            json_build_array(CASE WHEN c.id = c.account THEN 'account' ELSE 'key' END, CASE c.bit WHEN 2 THEN 'day' ELSE 'month' END,
                c.meter, c.cap, c.used, c.reserved,
                ledger_start(CASE c.bit WHEN 2 THEN c.day + 1 ELSE (c.month + interval '1 month')::date END)));
        UPDATE owner SET raised = CASE c.percent WHEN 100 THEN raised | c.bit ELSE raised & ~c.bit END WHERE id = c.id;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_raise_refusal leaves an alarm about a cap that has refused a request because it is used up, or nearly so: what is
-- left of a cap may be too little for any request. It does that once in the cap's window, unless the cap is changed.
-- p_named is the cap's number in ledger_evaluate.
-- +goose StatementBegin
CREATE FUNCTION ledger_raise_refusal(p_key text, p_account text, p_named integer, p_refusal text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_cap json := p_refusal::json;
    v_bit integer := 1 << ((p_named - 1) % 4);
BEGIN
    IF (v_cap ->> 3)::bigint = 0 OR (v_cap ->> 4)::numeric * 100 < (v_cap ->> 3)::numeric * 95 THEN
        RETURN;
    END IF;
    UPDATE owner SET raised = raised | v_bit
        WHERE id = CASE WHEN p_named <= 4 THEN p_key ELSE p_account END AND raised & v_bit = 0;
    IF FOUND THEN
        INSERT INTO alarm (percent, key, account, cap) VALUES (100, p_key, p_account, v_cap);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_settle ends requests of one gateway: it deletes their rows in flight, replaces their reservations by what they
-- used, in the windows in which they were admitted, and inserts their rows into requests, unless they are dropped. It
-- returns the ids of those that were in flight, and their accounts. The caller has locked the accounts and rolled the owners.
-- +goose StatementBegin
CREATE FUNCTION ledger_settle(p_gateway integer, p_epoch bigint, p_settle json, OUT settled text[], OUT accounts text[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_charged json;
    v_keys text[];
BEGIN
    WITH s AS (
        SELECT * FROM json_to_recordset(p_settle) AS s(id text, state text, prompt bigint, completion bigint, status bigint,
            code text, backend text, queue bigint, first bigint, total bigint, boot bigint, attempts text)
    ), d AS (
        DELETE FROM inflight i USING s WHERE i.request_id = s.id AND i.gateway = p_gateway AND i.epoch = p_epoch
        RETURNING i.*, s.state, s.prompt, s.completion, s.status, s.code, s.backend AS final_backend, s.queue, s.first,
            s.total, s.boot, s.attempts
    ), r AS (
        INSERT INTO requests (request_id, time, key_id, account_id, model, backend, endpoint, workload, user_tag, stream,
            status, code, state, prompt_tokens, completion_tokens, queue_us, first_token_us, total_us, boot_us, attempts, batch_id)
        SELECT request_id, time, key, account, model, coalesce(final_backend, backend), endpoint, workload, user_tag, stream,
            coalesce(status, 0), coalesce(code, ''), state, prompt, completion, coalesce(queue, 0), coalesce(first, 0),
            coalesce(total, 0), coalesce(boot, 0), coalesce(attempts, details), batch_id
        FROM d WHERE state <> 'dropped'
    ), e AS ( -- each ended request twice: for its key, and for its account
        SELECT v.owner, d.*, d.day = a.day AS today, d.day >= a.month AS this_month
        FROM d JOIN owner a ON a.id = d.account CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner)
    ), late AS (
        INSERT INTO spend AS x (owner, day, input, output)
        SELECT e.owner, e.day, sum(prompt), sum(completion) FROM e WHERE NOT today GROUP BY e.owner, e.day
        ON CONFLICT (owner, day) DO UPDATE SET input = x.input + excluded.input, output = x.output + excluded.output
    ), u AS (
        UPDATE owner o SET running = o.running - n.n,
            day_in = o.day_in + n.day_in, day_out = o.day_out + n.day_out, reserved_day = o.reserved_day - n.reserved_day,
            month_in = o.month_in + n.month_in, month_out = o.month_out + n.month_out,
            reserved_in = o.reserved_in - n.reserved_in, reserved_out = o.reserved_out - n.reserved_out
        FROM (
            SELECT e.owner, count(*) FILTER (WHERE batch_id IS NULL) AS n, min(e.key) AS key,
                coalesce(sum(prompt) FILTER (WHERE today), 0) AS day_in,
                coalesce(sum(completion) FILTER (WHERE today), 0) AS day_out,
                coalesce(sum(reserved_in + reserved_out) FILTER (WHERE today), 0) AS reserved_day,
                coalesce(sum(prompt) FILTER (WHERE this_month), 0) AS month_in,
                coalesce(sum(completion) FILTER (WHERE this_month), 0) AS month_out,
                coalesce(sum(reserved_in) FILTER (WHERE this_month), 0) AS reserved_in,
                coalesce(sum(reserved_out) FILTER (WHERE this_month), 0) AS reserved_out
            FROM e GROUP BY e.owner) n
        WHERE o.id = n.owner
        RETURNING n.owner, n.key, n.day_in, n.day_out, n.month_in, n.month_out,
            (ledger_crosses(o.month_in + o.month_out, (n.month_in + n.month_out)::bigint, o.month_total)
                OR ledger_crosses(o.day_in + o.day_out, (n.day_in + n.day_out)::bigint, o.day_total)
                OR ledger_crosses(o.month_in, n.month_in::bigint, o.month_input)
                OR ledger_crosses(o.month_out, n.month_out::bigint, o.month_output)) IS TRUE AS crosses)
    SELECT array_agg(d.request_id), array_agg(d.key), array_agg(DISTINCT d.account), (SELECT json_agg(u) FROM u WHERE crosses)
        INTO settled, v_keys, accounts, v_charged FROM d;
    IF strpos(p_settle::text, '"receipt":') > 0 THEN
        INSERT INTO pending_receipts (request_id, key_id, receipt)
            SELECT d.id, d.key, decode(s.receipt, 'base64') FROM unnest(settled, v_keys) WITH ORDINALITY d(id, key, i)
            JOIN json_to_recordset(p_settle) AS s(id text, receipt text) ON s.id = d.id
            WHERE s.receipt IS NOT NULL ORDER BY d.i;
    END IF;
    IF v_charged IS NOT NULL THEN
        PERFORM ledger_raise(v_charged);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_dequeue takes a waiter out of the counters of its owners. If it was the last one of its key, nothing blocks the
-- key's later requests.
-- +goose StatementBegin
CREATE FUNCTION ledger_dequeue(p_key text, p_account text) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE owner SET waiting = waiting - 1, blocked = blocked AND waiting > 1 WHERE id IN (p_key, p_account)
$$;
-- +goose StatementEnd

-- ledger_open inserts the row in flight of a request that is admitted and counts its reservation. It returns false if
-- another request in flight has the same id.
-- +goose StatementBegin
CREATE FUNCTION ledger_open(w waiter, p_day date, p_now bigint, p_prompt bigint, p_output bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_time bigint := ledger_time(w.arrived, p_now, p_day);
BEGIN
    INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
        workload, user_tag, stream, batch_id, details)
    VALUES (w.request_id, w.gateway, w.epoch, w.account, w.key, p_day, v_time, p_prompt, p_output,
        w.model, w.endpoint, w.workload, w.user_tag, w.stream, w.batch_id, w.details)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE owner SET running = running + (w.batch_id IS NULL)::integer, last_use = greatest(last_use, v_time),
        reserved_day = reserved_day + p_prompt + p_output, reserved_in = reserved_in + p_prompt, reserved_out = reserved_out + p_output
    WHERE id IN (w.key, w.account);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- ledger_grant evaluates the waiters of an account: the head of each key's queue, in the order of their tickets, and the
-- next one of its key after each whose wait ends. A head that is blocked blocks its key; one that the account blocks ends the
-- evaluation: what follows could only be refused, which can wait. With p_all, after a change of caps, it evaluates every
-- waiter, so that all that the change refuses end at once. Decisions on waiters of this gateway and lane are returned, others
-- are left for their lanes to collect, and their gateways notified. The caller has locked the account and rolled it.
-- +goose StatementBegin
CREATE FUNCTION ledger_grant(p_account text, p_now bigint, p_gateway integer, p_lane integer, p_all boolean) RETURNS json[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_keys text[];
    v_tickets bigint[];
    v_next integer;
    v_ended boolean;
    v_reply json;
    v_replies json[];
    k owner;
    a owner;
    w waiter;
    d record;
BEGIN
    WITH RECURSIVE head AS (
        (SELECT key, ticket FROM waiter WHERE account = p_account ORDER BY key, ticket LIMIT 1)
        UNION ALL
        SELECT n.key, n.ticket FROM head, LATERAL (
            SELECT key, ticket FROM waiter WHERE account = p_account AND key > head.key ORDER BY key, ticket LIMIT 1) n)
    SELECT array_agg(key), array_agg(ticket) INTO v_keys, v_tickets FROM head;
    UPDATE owner SET blocked = false WHERE id = ANY (v_keys || p_account) AND blocked;
    PERFORM ledger_roll(v_keys, ledger_day(p_now));
    LOOP
        SELECT i INTO v_next FROM unnest(v_tickets) WITH ORDINALITY t(ticket, i) WHERE ticket IS NOT NULL ORDER BY ticket LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT * INTO w FROM waiter WHERE account = p_account AND key = v_keys[v_next] AND ticket = v_tickets[v_next];
        SELECT * INTO k FROM owner WHERE id = w.key;
        SELECT * INTO a FROM owner WHERE id = p_account;
        SELECT * INTO d FROM ledger_evaluate(k, a, w.prompt, w.candidates, w.max_tokens, w.min_tokens, w.prompts, w.times,
            w.context, w.batch_id IS NULL);
        v_ended := true;
        IF NOT (k.enabled AND a.enabled) OR k.expires_at <= p_now THEN
            v_reply := json_build_object('id', w.request_id, 'kind', 'disabled');
        ELSIF d.refusal IS NOT NULL THEN
            PERFORM ledger_raise_refusal(w.key, p_account, d.named, d.refusal);
            v_reply := json_build_object('id', w.request_id, 'kind', 'refused', 'cap', d.refusal::json);
        ELSIF d.blocked_slot OR d.blocked_key OR d.blocked_account THEN
            v_ended := false;
            UPDATE owner SET blocked = true WHERE id = w.key AND d.blocked_key OR id = p_account AND d.blocked_account;
            EXIT WHEN d.blocked_account AND NOT p_all;
        ELSIF ledger_open(w, a.day, p_now, d.prompt, d.output) THEN
            v_reply := json_build_object('id', w.request_id, 'kind', 'granted', 'max', d.max_tokens, 'prompt', d.prompt,
                'time', ledger_time(w.arrived, p_now, a.day));
        ELSE
            v_reply := json_build_object('id', w.request_id, 'kind', 'duplicate');
        END IF;
        IF NOT v_ended THEN
            v_tickets[v_next] := CASE WHEN p_all THEN (
                SELECT min(ticket) FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket) END;
            CONTINUE;
        END IF;
        DELETE FROM waiter WHERE account = p_account AND key = w.key AND ticket = w.ticket;
        PERFORM ledger_dequeue(w.key, p_account);
        IF w.gateway = p_gateway AND w.lane = p_lane THEN
            v_replies := v_replies || v_reply;
        ELSE
            INSERT INTO decided (gateway, lane, request_id, reply) VALUES (w.gateway, w.lane, w.request_id, v_reply);
            IF w.gateway IS DISTINCT FROM p_gateway THEN
                PERFORM pg_notify('basegate_gateway_' || w.gateway, '');
            END IF;
        END IF;
        v_tickets[v_next] := (
            SELECT min(ticket) FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket);
    END LOOP;
    RETURN v_replies;
END
$$;
-- +goose StatementEnd

-- ledger_cancel ends what is left of requests whose clients have disconnected while they waited: the waiter, or the
-- reservation that another call has granted it meanwhile. It returns the accounts.
-- +goose StatementBegin
CREATE FUNCTION ledger_cancel(p_gateway integer, p_epoch bigint, p_lane integer, p_cancel json) RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    c record;
    v_accounts text[];
BEGIN
    FOR c IN SELECT * FROM json_to_recordset(p_cancel) AS c(id text, account text, key text, ticket bigint) LOOP
        v_accounts := v_accounts || c.account;
        DELETE FROM waiter WHERE account = c.account AND key = c.key AND ticket = c.ticket AND gateway = p_gateway
            AND epoch = p_epoch AND request_id = c.id;
        IF FOUND THEN
            PERFORM ledger_dequeue(c.key, c.account);
        ELSE
            DELETE FROM decided WHERE gateway = p_gateway AND lane = p_lane AND request_id = c.id;
            PERFORM ledger_settle(p_gateway, p_epoch,
                json_build_array(json_build_object('id', c.id, 'state', 'dropped', 'prompt', 0, 'completion', 0)));
        END IF;
    END LOOP;
    RETURN v_accounts;
END
$$;
-- +goose StatementEnd

-- ledger_admit_each decides on requests one by one, in their order, and returns the decisions but full grants.
-- +goose StatementBegin
CREATE FUNCTION ledger_admit_each(p_gateway integer, p_epoch bigint, p_lane integer, p_admit json, p_done text[], p_now bigint)
RETURNS json[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    n record;
    k owner;
    a owner;
    w waiter;
    d record;
    v_ticket bigint;
    v_reply json;
    v_replies json[];
BEGIN
    FOR n IN
        SELECT * FROM json_to_recordset(p_admit) AS n(id text, key text, account text, prompt bigint, candidates bigint,
            max bigint, min bigint, exact boolean, impatient boolean, prompts bigint[], times bigint[], context bigint,
            age bigint, model text, endpoint text, workload text, tag text, stream boolean, batch text, details text)
        WHERE NOT id = ANY (p_done)
    LOOP
        SELECT * INTO k FROM owner WHERE id = n.key AND account = n.account;
        SELECT * INTO a FROM owner WHERE id = n.account AND account = n.account;
        IF k.id IS NULL OR a.id IS NULL THEN
            v_replies := v_replies || json_build_object('id', n.id, 'kind', 'unknown');
            CONTINUE;
        ELSIF NOT (k.enabled AND a.enabled) OR k.expires_at <= p_now THEN
            v_replies := v_replies || json_build_object('id', n.id, 'kind', 'disabled');
            CONTINUE;
        END IF;
        SELECT * INTO d FROM ledger_evaluate(k, a, n.prompt, n.candidates, n.max, coalesce(n.min, 0), n.prompts, n.times,
            n.context, n.batch IS NULL);
        w := ROW(n.account, n.key, 0, n.id, p_gateway, p_epoch, p_lane, p_now - n.age, n.prompt, n.candidates, n.max,
            coalesce(n.min, 0), n.prompts, n.times, n.context, n.model, n.endpoint, n.workload, coalesce(n.tag, ''),
            coalesce(n.stream, false), n.batch, coalesce(n.details, ''));
        IF NOT coalesce(n.exact, false)
            AND (d.refusal IS NOT NULL OR d.blocked_slot OR d.blocked_key OR d.blocked_account OR d.max_tokens < n.max) THEN
            v_reply := json_build_object('id', n.id, 'kind', 'count');
        ELSIF d.refusal IS NOT NULL THEN
            PERFORM ledger_raise_refusal(n.key, n.account, d.named, d.refusal);
            v_reply := json_build_object('id', n.id, 'kind', 'refused', 'cap', d.refusal::json);
        ELSIF NOT (d.blocked_slot OR d.blocked_key OR d.blocked_account) THEN
            IF ledger_open(w, a.day, p_now, d.prompt, d.output) THEN
                v_reply := json_build_object('id', n.id, 'kind', 'granted', 'max', d.max_tokens, 'prompt', d.prompt,
                    'time', ledger_time(w.arrived, p_now, a.day));
            ELSE
                v_reply := json_build_object('id', n.id, 'kind', 'duplicate');
            END IF;
        ELSIF n.impatient THEN
            v_reply := json_build_object('id', n.id, 'kind', 'reserved');
        ELSE
            UPDATE owner SET ticket = ticket + 1, waiting = waiting + 1, blocked = blocked OR d.blocked_account
                WHERE id = n.account RETURNING ticket INTO v_ticket;
            UPDATE owner SET waiting = waiting + 1, blocked = blocked OR d.blocked_key WHERE id = n.key;
            w.ticket := v_ticket;
            INSERT INTO waiter (account, key, ticket, request_id, gateway, epoch, lane, arrived, prompt, candidates, max_tokens, min_tokens,
                    prompts, times, context, model, endpoint, workload, user_tag, stream, batch_id, details)
                VALUES (w.account, w.key, w.ticket, w.request_id, w.gateway, w.epoch, w.lane, w.arrived, w.prompt, w.candidates,
                    w.max_tokens, w.min_tokens, w.prompts, w.times, w.context, w.model, w.endpoint, w.workload, w.user_tag, w.stream,
                    w.batch_id, w.details);
            v_reply := json_build_object('id', n.id, 'kind', 'wait', 'ticket', v_ticket);
        END IF;
        v_replies := v_replies || v_reply;
    END LOOP;
    RETURN v_replies;
END
$$;
-- +goose StatementEnd

-- ledger_admit decides on new requests and returns the decisions but full grants. The requests of an account that fit all
-- its caps and slots together, with no waiters before them, are admitted by one statement; others one by one. The
-- caller has locked the accounts and rolled the owners.
-- +goose StatementBegin
CREATE FUNCTION ledger_admit(p_gateway integer, p_epoch bigint, p_lane integer, p_admit json, p_now bigint) RETURNS json[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_done text[];
BEGIN
    WITH n AS MATERIALIZED (
        SELECT * FROM json_to_recordset(p_admit) AS n(id text, key text, account text, prompt bigint, output bigint, age bigint,
            model text, endpoint text, workload text, tag text, stream boolean, batch text, details text)
    ), need AS (
        SELECT v.owner, n.account, count(*) FILTER (WHERE n.batch IS NULL) AS n, sum(n.prompt) AS input, sum(n.output) AS output
        FROM n CROSS JOIN LATERAL (VALUES (n.key), (n.account)) v(owner) GROUP BY v.owner, n.account
    ), fits AS (
        SELECT need.account, min(o.day) AS day
        FROM need LEFT JOIN owner o ON o.id = need.owner AND o.account = need.account
        GROUP BY need.account
        HAVING bool_and(coalesce(o.enabled, false) AND o.waiting = 0 AND (o.expires_at IS NULL OR o.expires_at > p_now)
            AND (o.slots IS NULL OR need.n = 0 OR o.running + need.n <= o.slots)
            AND (o.month_total IS NULL OR
                o.month_in + o.month_out + o.reserved_in + o.reserved_out + need.input + need.output <= o.month_total)
            AND (o.day_total IS NULL OR o.day_in + o.day_out + o.reserved_day + need.input + need.output <= o.day_total)
            AND (o.month_input IS NULL OR
                o.month_in < o.month_input AND o.month_in + o.reserved_in + need.input <= o.month_input)
            AND (o.month_output IS NULL OR o.month_out + o.reserved_out + need.output <= o.month_output))
    ), opened AS (
        INSERT INTO inflight (request_id, gateway, epoch, account, key, day, time, reserved_in, reserved_out, model, endpoint,
            workload, user_tag, stream, batch_id, details)
        SELECT n.id, p_gateway, p_epoch, n.account, n.key, f.day, ledger_time(p_now - n.age, p_now, f.day), n.prompt, n.output,
            n.model, n.endpoint, n.workload, coalesce(n.tag, ''), coalesce(n.stream, false), n.batch, coalesce(n.details, '')
        FROM n JOIN fits f ON f.account = n.account
        ON CONFLICT DO NOTHING
        RETURNING request_id, key, account, reserved_in, reserved_out, time, batch_id
    ), u AS (
        UPDATE owner o SET running = o.running + s.n, last_use = greatest(o.last_use, s.time), reserved_day = o.reserved_day + s.input + s.output,
            reserved_in = o.reserved_in + s.input, reserved_out = o.reserved_out + s.output
        FROM (
            SELECT v.owner, count(*) FILTER (WHERE batch_id IS NULL) AS n, sum(reserved_in) AS input, sum(reserved_out) AS output,
                max(time) AS time
            FROM opened CROSS JOIN LATERAL (VALUES (opened.key), (opened.account)) v(owner) GROUP BY v.owner) s
        WHERE o.id = s.owner)
    SELECT array_agg(request_id) INTO v_done FROM opened;
    IF cardinality(v_done) = json_array_length(p_admit) THEN
        RETURN NULL;
    END IF;
    RETURN ledger_admit_each(p_gateway, p_epoch, p_lane, p_admit, coalesce(v_done, '{}'), p_now);
END
$$;
-- +goose StatementEnd

-- ledger_v1 executes the operations of one lane of a gateway and returns the reply. accounts and keys are those of all
-- operations; collect fetches decisions on waiters that other calls have left; wake are accounts with waiters, which are
-- evaluated again if a new day has begun. status is:
--
--   ok      the reply is that of this call, or of the same call if it has been executed before (seq is the lane's last)
--   fenced  the epoch has ended: nothing was done
--   lost    the lane has not executed the calls before seq: commits that were acknowledged are lost
--
-- counters are, of each owner: used input and output of the month, used tokens of the day, reserved input and output of
-- the month, reserved tokens of the day, requests that run, requests that wait, the day as its number since 1970.
--
-- now in the reply is the time by which requests that were granted in full got theirs; ahead has the starts of the days of
-- accounts whose day is later, since the clock went back.
-- +goose StatementBegin
CREATE FUNCTION ledger_v1(p_gateway integer, p_epoch bigint, p_lane integer, p_seq bigint, p_accounts text[], p_keys text[],
    p_settle json, p_checkpoint json, p_cancel json, p_admit json, p_collect boolean, p_wake text[],
    OUT status text, OUT reply text, OUT owners text[], OUT counters bigint[])
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = basegate, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_lane lane;
    v_accounts text[] := p_accounts;
    v_now bigint;
    v_today date;
    v_stale text[];
    v_freed text[]; -- accounts whose waiters may have become free
    v_more text[];
    v_settled text[];
    v_decided json[];
    v_replies json[];
    v_account text;
    v_ahead json;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(25191, p_gateway);
    SELECT * INTO v_lane FROM lane WHERE gateway = p_gateway AND n = p_lane FOR UPDATE;
    IF v_lane.epoch IS DISTINCT FROM p_epoch THEN
        status := 'fenced';
        RETURN;
    ELSIF v_lane.seq = p_seq THEN
        status := 'ok';
        reply := v_lane.reply;
        RETURN;
    ELSIF v_lane.seq <> p_seq - 1 THEN
        status := 'lost';
        RETURN;
    END IF;
    IF p_wake IS NOT NULL THEN
        SELECT v_accounts || array_agg(id) INTO v_accounts FROM owner WHERE id = ANY (p_wake) AND day < ledger_day(ledger_now());
    END IF;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    v_today := ledger_day(v_now);
    SELECT array_agg(o.id) INTO v_stale FROM owner o JOIN owner a ON a.id = o.account
        WHERE o.id = ANY (v_accounts || p_keys) AND o.day < greatest(a.day, v_today);
    IF v_stale IS NOT NULL THEN
        v_freed := ledger_roll(v_stale, v_today);
    END IF;
    IF p_checkpoint IS NOT NULL THEN
        UPDATE inflight i SET prompt_tokens = c.prompt, completion_tokens = c.completion, backend = c.backend
            FROM json_to_recordset(p_checkpoint) AS c(id text, prompt bigint, completion bigint, backend text)
            WHERE i.request_id = c.id AND i.gateway = p_gateway AND i.epoch = p_epoch;
    END IF;
    IF p_settle IS NOT NULL THEN
        SELECT s.settled, s.accounts INTO v_settled, v_more FROM ledger_settle(p_gateway, p_epoch, p_settle) s;
        v_freed := v_freed || v_more;
    END IF;
    IF p_cancel IS NOT NULL THEN
        v_freed := v_freed || ledger_cancel(p_gateway, p_epoch, p_lane, p_cancel);
    END IF;
    IF v_freed IS NOT NULL THEN
        FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_freed) AND waiting > 0 ORDER BY id LOOP
            v_decided := v_decided || ledger_grant(v_account, v_now, p_gateway, p_lane, false);
        END LOOP;
    END IF;
    IF p_admit IS NOT NULL THEN
        v_replies := ledger_admit(p_gateway, p_epoch, p_lane, p_admit, v_now);
    END IF;
    IF p_collect THEN
        WITH c AS (DELETE FROM decided WHERE gateway = p_gateway AND lane = p_lane RETURNING decided.reply)
        SELECT v_decided || array_agg(c.reply) INTO v_decided FROM c;
    END IF;
    SELECT array_agg(o.id), array_agg(ARRAY[month_in, month_out, day_in + day_out, reserved_in, reserved_out, reserved_day,
            running, waiting, day - date '1970-01-01']),
            json_object_agg(o.id, ledger_start(o.day)) FILTER (WHERE o.day > v_today AND o.id = o.account)
        INTO owners, counters, v_ahead FROM owner o WHERE o.id = ANY (v_accounts || p_keys);
    reply := json_build_object('empty', p_settle IS NULL AND p_checkpoint IS NULL AND p_cancel IS NULL AND p_admit IS NULL
            AND NOT p_collect, 'settled', coalesce(cardinality(v_settled), 0),
        'absent', CASE WHEN cardinality(v_settled) IS DISTINCT FROM json_array_length(p_settle) THEN
            (SELECT json_agg(s.id) FROM json_to_recordset(p_settle) AS s(id text) WHERE NOT s.id = ANY (coalesce(v_settled, '{}'))) END,
        'admit', v_replies, 'decided', v_decided, 'now', v_now, 'ahead', v_ahead);
    UPDATE lane SET seq = p_seq, reply = ledger_v1.reply WHERE gateway = p_gateway AND n = p_lane;
    status := 'ok';
END
$$;
-- +goose StatementEnd

-- ledger_end ends an epoch of a gateway: its requests in flight end as interrupted, with the tokens of their last
-- checkpoint, its waiters are dropped, and waiters of others that this lets run are granted. The caller holds the gateway's
-- advisory lock exclusively, so none of its calls is running.
-- +goose StatementBegin
CREATE FUNCTION ledger_end(p_gateway integer) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_accounts text[];
    v_keys text[];
    v_epoch bigint;
    v_now bigint;
    v_rows json;
    v_account text;
    v_ended bigint := 0;
BEGIN
    UPDATE gateway SET epoch = epoch + 1, alive = false WHERE id = p_gateway RETURNING epoch - 1 INTO v_epoch;
    UPDATE lane SET epoch = v_epoch + 1, seq = 0, reply = '' WHERE gateway = p_gateway;
    SELECT array_agg(DISTINCT account), array_agg(DISTINCT key) INTO v_accounts, v_keys FROM (
        SELECT account, key FROM inflight WHERE gateway = p_gateway
        UNION SELECT account, key FROM waiter WHERE gateway = p_gateway) o;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    WITH d AS (
        DELETE FROM waiter WHERE gateway = p_gateway RETURNING key, account
    ), n AS (
        SELECT v.owner, count(*) AS n FROM d CROSS JOIN LATERAL (VALUES (d.key), (d.account)) v(owner) GROUP BY v.owner)
    UPDATE owner o SET waiting = o.waiting - n.n, blocked = o.blocked AND o.waiting > n.n FROM n WHERE o.id = n.owner;
    DELETE FROM decided WHERE gateway = p_gateway;
    SELECT json_agg(json_build_object('id', request_id, 'state', 'interrupted', 'prompt', prompt_tokens,
        'completion', completion_tokens)), count(*) INTO v_rows, v_ended FROM inflight WHERE gateway = p_gateway;
    IF v_rows IS NOT NULL THEN
        PERFORM ledger_settle(p_gateway, v_epoch, v_rows);
    END IF;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN v_ended;
END
$$;
-- +goose StatementEnd

-- ledger_join_v1 begins an epoch of the gateway of this name, with this many lanes, and ends the one before, if there was
-- one. It returns the gateway's number, the epoch, and how many requests of the epoch before were interrupted.
-- +goose StatementBegin
CREATE FUNCTION ledger_join_v1(p_name text, p_version text, p_lanes integer, OUT gateway integer, OUT epoch bigint,
    OUT interrupted bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    INSERT INTO gateway AS g (name, version, epoch, alive, beat, beat_at) VALUES (p_name, p_version, 0, false, 0, 0)
        ON CONFLICT (name) DO NOTHING;
    SELECT g.id INTO gateway FROM gateway g WHERE g.name = p_name;
    PERFORM pg_advisory_xact_lock(25191, gateway);
    interrupted := ledger_end(gateway);
    UPDATE gateway g SET version = p_version, alive = true, beat = g.beat + 1, beat_at = ledger_now()
        WHERE g.id = ledger_join_v1.gateway RETURNING g.epoch INTO epoch;
    DELETE FROM lane l WHERE l.gateway = ledger_join_v1.gateway;
    INSERT INTO lane (gateway, n, epoch, seq, reply)
        SELECT ledger_join_v1.gateway, i, ledger_join_v1.epoch, 0, '' FROM generate_series(0, p_lanes - 1) i;
END
$$;
-- +goose StatementEnd

-- ledger_beat_v1 records that a gateway is alive, and returns the beats of all that have an epoch, its own among them. It
-- returns none if the gateway's own epoch has ended.
-- +goose StatementBegin
CREATE FUNCTION ledger_beat_v1(p_gateway integer, p_epoch bigint)
RETURNS TABLE (gateway integer, epoch bigint, beat bigint, "time" bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE gateway g SET beat = g.beat + 1, beat_at = ledger_now() WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF FOUND THEN
        RETURN QUERY SELECT g.id, g.epoch, g.beat, ledger_now() FROM gateway g WHERE g.alive;
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_reap_v1 ends the epoch of a gateway that has been seen with this beat for too long, unless it has beaten since,
-- and returns how many of its requests were interrupted, or NULL if it was not ended. The caller must be alive itself.
-- +goose StatementBegin
CREATE FUNCTION ledger_reap_v1(p_gateway integer, p_epoch bigint, p_dead integer, p_dead_epoch bigint, p_dead_beat bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_dead);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM gateway g WHERE g.id = p_dead AND g.epoch = p_dead_epoch AND g.beat = p_dead_beat AND g.alive FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN ledger_end(p_dead);
END
$$;
-- +goose StatementEnd

-- ledger_leave_v1 ends a gateway's own epoch, and returns how many of its requests were interrupted.
-- +goose StatementBegin
CREATE FUNCTION ledger_leave_v1(p_gateway integer, p_epoch bigint)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    PERFORM 1 FROM gateway g WHERE g.id = p_gateway AND g.epoch = p_epoch AND g.alive FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    RETURN ledger_end(p_gateway);
END
$$;
-- +goose StatementEnd

-- ledger_owners inserts keys and accounts or changes their caps, slots and state, and evaluates the waiters of their accounts
-- again. It leaves the counters as they are.
-- +goose StatementBegin
CREATE FUNCTION ledger_owners(p_owners json) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_accounts text[];
    v_account text;
    v_now bigint;
BEGIN
    SELECT array_agg(DISTINCT account) INTO v_accounts FROM json_to_recordset(p_owners) AS n(account text);
    -- The row of an account that is new is inserted before it is locked, so that its keys never exist without it.
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT id, id, false, ledger_day(ledger_now()), ledger_month(ledger_day(ledger_now()))
        FROM unnest(v_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    INSERT INTO owner AS o (id, account, enabled, month_total, day_total, month_input, month_output, slots, expires_at, day, month)
        SELECT n.id, n.account, n.enabled, n.month_total, n.day_total, n.month_input, n.month_output, n.slots, n.expires_at,
            a.day, a.month
        FROM json_to_recordset(p_owners) AS n(id text, account text, enabled boolean, month_total bigint, day_total bigint,
            month_input bigint, month_output bigint, slots integer, expires_at bigint) JOIN owner a ON a.id = n.account
        ON CONFLICT (id) DO UPDATE SET enabled = excluded.enabled, month_total = excluded.month_total,
            day_total = excluded.day_total, month_input = excluded.month_input, month_output = excluded.month_output,
            slots = excluded.slots, expires_at = excluded.expires_at,
            raised = o.raised & ((o.month_total IS NOT DISTINCT FROM excluded.month_total)::integer
                + (o.day_total IS NOT DISTINCT FROM excluded.day_total)::integer * 2
                + (o.month_input IS NOT DISTINCT FROM excluded.month_input)::integer * 4
                + (o.month_output IS NOT DISTINCT FROM excluded.month_output)::integer * 8)
        WHERE o.account = excluded.account AND (o.enabled, o.month_total, o.day_total, o.month_input, o.month_output, o.slots,
            o.expires_at) IS DISTINCT FROM (excluded.enabled, excluded.month_total, excluded.day_total, excluded.month_input,
            excluded.month_output, excluded.slots, excluded.expires_at);
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, true);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- ledger_time_v1 returns the time by which the ledger works.
-- +goose StatementBegin
CREATE FUNCTION ledger_time_v1() RETURNS bigint LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    SELECT ledger_now()
$$;
-- +goose StatementEnd

-- ledger_alarms_v1 takes the alarms that no gateway has raised yet.
-- +goose StatementBegin
CREATE FUNCTION ledger_alarms_v1() RETURNS TABLE (percent integer, key text, account text, cap json)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
    DELETE FROM alarm a WHERE a.id IN (SELECT id FROM alarm ORDER BY id FOR UPDATE SKIP LOCKED)
    RETURNING a.percent, a.key, a.account, a.cap
$$;
-- +goose StatementEnd

-- ledger_partitions_v1 creates the partitions of requests for the current month and this many after it, and returns how many
-- it created.
-- +goose StatementBegin
CREATE FUNCTION ledger_partitions_v1(p_ahead integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_month date := ledger_month(ledger_day(ledger_now()));
    v_name text;
    v_next date;
    v_created integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(25192, 0);
    FOR i IN 0..p_ahead LOOP
        v_name := 'requests_' || to_char(v_month, 'YYYY_MM');
        v_next := (v_month + interval '1 month')::date;
        IF to_regclass('basegate.' || v_name) IS NULL THEN
            -- Attaching a table takes a weaker lock on requests than creating it as a partition.
            EXECUTE format('CREATE TABLE %I (LIKE requests INCLUDING ALL) WITH (autovacuum_vacuum_insert_scale_factor = 0.05)', v_name);
            EXECUTE format('ALTER TABLE requests ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', v_name,
                ledger_start(v_month), ledger_start(v_next));
            v_created := v_created + 1;
        END IF;
        v_month := v_next;
    END LOOP;
    RETURN v_created;
END
$$;
-- +goose StatementEnd

SELECT ledger_partitions_v1(3);
