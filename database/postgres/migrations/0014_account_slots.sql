-- +goose Up

-- Accounts have slots, and a change of one key is read and synced without the other keys of its account.

-- What has changed with each revision of keys_revision, of the latest 10,000: a key, with its secrets, or an account.
CREATE TABLE key_changes (
    revision   BIGINT PRIMARY KEY,
    tag        TEXT NOT NULL DEFAULT gen_random_uuid(), -- tells apart databases that have had different changes
    key_id     TEXT,
    account_id TEXT
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION bump_keys_revision() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_row jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    v_revision bigint;
BEGIN
    UPDATE keys_revision SET revision = revision + 1 WHERE "only" = 1 RETURNING revision INTO v_revision;
    INSERT INTO key_changes (revision, key_id, account_id) VALUES (v_revision,
        CASE TG_TABLE_NAME WHEN 'keys' THEN v_row ->> 'id' WHEN 'replaced_secrets' THEN v_row ->> 'key_id' END,
        CASE TG_TABLE_NAME WHEN 'accounts' THEN v_row ->> 'id' END);
    DELETE FROM key_changes WHERE revision = v_revision - 10000;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- NULL, before a gateway of this release has set it: accounts are not limited.
ALTER TABLE ledger_setting ADD COLUMN concurrency_per_account integer CHECK (concurrency_per_account >= 1);

-- ledger_sync copies caps, slots, expiry and state to owner: of accounts, of all keys of some of them (p_all), and of single
-- keys of others (p_keys). It reads them after it has locked the accounts, so that the later of two changes stands.
--
-- The slots of an account are the configured ones, or the highest concurrency that the operator has given to it or one of its
-- active keys, if that is higher.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync(p_accounts text[], p_all text[], p_keys text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_owners json;
    v_key integer;
    v_account integer;
BEGIN
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT DISTINCT id, id, false, ledger_day(ledger_now()), ledger_month(ledger_day(ledger_now()))
        FROM unnest(p_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    SELECT concurrency_per_key, concurrency_per_account INTO v_key, v_account FROM ledger_setting;
    SELECT json_agg(o) INTO v_owners FROM (
        SELECT a.id, a.id AS account, a.state = 'active' AS enabled, a.month_total, a.day_total, a.month_input, a.month_output,
            CASE WHEN v_account IS NOT NULL THEN least(greatest(v_account, a.concurrency, (
                SELECT max(k.concurrency) FROM keys k
                WHERE k.account_id = a.id AND k.operator_concurrency IS NOT NULL AND k.state = 'active')), 2147483647) END AS slots,
            NULL::bigint AS expires_at
        FROM accounts a WHERE a.id = ANY (p_accounts)
        UNION ALL
        SELECT k.id, a.id, k.state = 'active', k.month_total, k.day_total, k.month_input, k.month_output,
            CASE WHEN k.operator_concurrency IS NOT NULL THEN coalesce(k.concurrency, v_key)
                ELSE least(coalesce(k.concurrency, v_key), coalesce(a.concurrency, v_key)) END, k.expires_at
        FROM (SELECT id FROM keys WHERE account_id = ANY (p_all) UNION SELECT unnest(p_keys)) n
            JOIN keys k ON k.id = n.id JOIN accounts a ON a.id = k.account_id
        ORDER BY id) o;
    IF v_owners IS NOT NULL THEN
        PERFORM ledger_owners(v_owners);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_note appends an id to a list in a setting of the transaction, unless it is the last one there.
-- +goose StatementBegin
CREATE FUNCTION ledger_note(p_setting text, p_id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_list text := coalesce(current_setting(p_setting, true), '');
BEGIN
    IF right(v_list, length(p_id) + 1) <> ',' || p_id THEN
        PERFORM set_config(p_setting, v_list || ',' || p_id, true);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_note_change remembers the account of a row that was changed, and the key, for the end of the transaction. A change of
-- an account's concurrency concerns all its keys; so do changes of very many keys, whose list would be long. A change that is
-- rolled back to a savepoint is forgotten with it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ledger_note_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_account text := to_jsonb(NEW) ->> TG_ARGV[0];
BEGIN
    PERFORM ledger_note('basegate.changed_accounts', v_account);
    IF TG_TABLE_NAME = 'keys' AND length(coalesce(current_setting('basegate.changed_keys', true), '')) < 65536 THEN
        PERFORM ledger_note('basegate.changed_keys', NEW.id);
    ELSIF TG_TABLE_NAME = 'keys' OR TG_OP = 'UPDATE' AND to_jsonb(OLD) -> 'concurrency' IS DISTINCT FROM to_jsonb(NEW) -> 'concurrency' THEN
        PERFORM ledger_note('basegate.changed_defaults', v_account);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- ledger_sync_changes runs at the commit of a transaction that has changed keys or accounts. The first of its calls locks all
-- accounts that the transaction has changed, in the order of their ids, so no locks of accounts are held while a client is
-- between two statements.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ledger_sync_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_accounts text := current_setting('basegate.changed_accounts', true);
    v_all text := current_setting('basegate.changed_defaults', true);
    v_keys text := current_setting('basegate.changed_keys', true);
BEGIN
    IF coalesce(v_accounts, '') <> '' THEN
        PERFORM set_config('basegate.changed_accounts', '', true), set_config('basegate.changed_defaults', '', true),
            set_config('basegate.changed_keys', '', true);
        PERFORM ledger_sync(string_to_array(ltrim(v_accounts, ','), ','), string_to_array(ltrim(v_all, ','), ','),
            string_to_array(ltrim(v_keys, ','), ','));
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- ledger_sync_v1 syncs the accounts after one, with all their keys, in the order of their ids, at most p_limit, and returns the
-- last of them; NULL after the last of all.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ledger_sync_v1(p_after text, p_limit integer) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_accounts text[];
BEGIN
    SELECT array_agg(id ORDER BY id) INTO v_accounts
        FROM (SELECT id FROM accounts WHERE id > p_after ORDER BY id LIMIT p_limit) a;
    IF v_accounts IS NULL THEN
        UPDATE ledger_setting SET synced = true WHERE NOT synced;
        RETURN NULL;
    END IF;
    PERFORM ledger_sync(v_accounts, v_accounts, NULL);
    RETURN v_accounts[cardinality(v_accounts)];
END
$$;
-- +goose StatementEnd

-- ledger_sync(text[]), which the one above replaces, is left for a later migration to remove.

-- ledger_configure_v2 records the slots of keys that have no number of their own, and those of accounts, and reports whether
-- ledger_sync_v1 must be called for all accounts: a number has changed, or an earlier change was not finished.
-- +goose StatementBegin
CREATE FUNCTION ledger_configure_v2(p_concurrency_per_key integer, p_concurrency_per_account integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE ledger_setting SET concurrency_per_key = p_concurrency_per_key, concurrency_per_account = p_concurrency_per_account,
        synced = false
        WHERE (concurrency_per_key, concurrency_per_account) IS DISTINCT FROM (p_concurrency_per_key, p_concurrency_per_account);
    RETURN (SELECT NOT synced FROM ledger_setting);
END
$$;
-- +goose StatementEnd

-- ledger_evaluate decides on one request by all caps at once, by the same rules as package budget. Used tokens refuse the
-- request or lower its max_tokens; reservations, taken slots, and earlier requests that they block make it wait. refusal is
-- the cap that refuses: scope, window, meter, limit, used, reserved and the end of the window; named is its number, from 1.
-- p_slot is false for a line of a batch, which needs no slot.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ledger_evaluate(k owner, a owner, p_prompt bigint, p_candidates bigint, p_max bigint, p_min bigint,
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
    blocked_slot := p_slot AND (k.running >= k.slots OR a.running >= a.slots) IS TRUE;
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

-- ledger_grant evaluates the waiters of an account: the head of each key's queue, in the order of their tickets, and the
-- next one of its key after each whose wait ends. A head that is blocked blocks its key; one that the account blocks ends the
-- evaluation: what follows could only be refused, which can wait. A key or account some of whose waiters are not evaluated for
-- lack of a slot stays as blocked as it was, or a line of a batch, which needs no slot, would take the tokens that they wait
-- for. With p_all, after a change of caps, it evaluates every waiter, so that all that the change refuses end at once. Decisions
-- on waiters of this gateway and lane are returned, others are left for their lanes to collect, and their gateways notified. The
-- caller has locked the account and rolled it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ledger_grant(p_account text, p_now bigint, p_gateway integer, p_lane integer, p_all boolean) RETURNS json[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_keys text[];
    v_heads bigint[]; -- their tickets
    v_tickets bigint[];
    v_blocked boolean[]; -- of keys, before their heads were evaluated
    v_account boolean; -- the same of the account
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
    SELECT array_agg(key), array_agg(ticket), array_agg(ticket) INTO v_keys, v_heads, v_tickets FROM head;
    UPDATE owner SET blocked = false WHERE id = p_account AND blocked;
    v_account := FOUND;
    PERFORM ledger_roll(v_keys, ledger_day(p_now));
    LOOP
        SELECT i INTO v_next FROM unnest(v_tickets) WITH ORDINALITY t(ticket, i) WHERE ticket IS NOT NULL ORDER BY ticket LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT * INTO w FROM waiter WHERE account = p_account AND key = v_keys[v_next] AND ticket = v_tickets[v_next];
        UPDATE owner SET blocked = false WHERE id = w.key AND w.ticket = v_heads[v_next] AND blocked;
        v_blocked[v_next] := FOUND OR v_blocked[v_next];
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
            IF NOT p_all THEN
                UPDATE owner SET blocked = true WHERE id = w.key AND v_blocked[v_next] AND EXISTS (
                    SELECT FROM waiter WHERE account = p_account AND key = w.key AND ticket > w.ticket);
                IF (a.running >= a.slots) IS TRUE THEN -- all that wait need a slot
                    UPDATE owner SET blocked = true WHERE id = p_account AND v_account;
                    EXIT;
                END IF;
                EXIT WHEN d.blocked_account;
            END IF;
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

SELECT ledger_grants();
