-- +goose Up

-- The rows of keys and accounts in owner, which the ledger evaluates, follow the tables keys and accounts: every transaction
-- that changes those changes owner too, at its commit. Only accounts that were never active are deleted; their rows in owner
-- stay disabled.

-- What the configuration of the gateways says about all keys. synced is false until owner follows a changed value.
CREATE TABLE ledger_setting (
    id                  boolean PRIMARY KEY CHECK (id),
    concurrency_per_key integer NOT NULL CHECK (concurrency_per_key >= 1),
    synced              boolean NOT NULL
);

INSERT INTO ledger_setting (id, concurrency_per_key, synced) VALUES (true, 8, true);

-- ledger_sync copies caps, slots, expiry and state of accounts and their keys to owner. It reads them after it has locked the
-- accounts, so that the later of two changes stands.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync(p_accounts text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_owners json;
    v_default integer;
BEGIN
    INSERT INTO owner (id, account, enabled, day, month)
        SELECT DISTINCT id, id, false, ledger_day(ledger_now()), ledger_month(ledger_day(ledger_now()))
        FROM unnest(p_accounts) id ORDER BY id ON CONFLICT DO NOTHING;
    PERFORM 1 FROM owner WHERE id = ANY (p_accounts) ORDER BY id FOR NO KEY UPDATE;
    SELECT concurrency_per_key INTO v_default FROM ledger_setting;
    SELECT json_agg(o) INTO v_owners FROM (
        SELECT id, id AS account, state = 'active' AS enabled, month_total, day_total, month_input, month_output,
            NULL::bigint AS slots, NULL::bigint AS expires_at
        FROM accounts WHERE id = ANY (p_accounts)
        UNION ALL
        SELECT k.id, a.id, k.state = 'active', k.month_total, k.day_total, k.month_input, k.month_output,
            CASE WHEN k.operator_concurrency IS NOT NULL THEN coalesce(k.concurrency, v_default)
                ELSE least(coalesce(k.concurrency, v_default), coalesce(a.concurrency, v_default)) END, k.expires_at
        FROM keys k JOIN accounts a ON a.id = k.account_id WHERE a.id = ANY (p_accounts)
        ORDER BY id) o;
    IF v_owners IS NOT NULL THEN
        PERFORM ledger_owners(v_owners);
    END IF;
END
$$;
-- +goose StatementEnd

-- ledger_note_change remembers the account of a row that was changed, for the end of the transaction. A change that is rolled
-- back to a savepoint is forgotten with it.
-- +goose StatementBegin
CREATE FUNCTION ledger_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('basegate.changed_accounts', concat(current_setting('basegate.changed_accounts', true), ',',
        to_jsonb(NEW) ->> TG_ARGV[0]), true);
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- ledger_sync_changes runs at the commit of a transaction that has changed keys or accounts. The first of its calls locks all
-- accounts that the transaction has changed, in the order of their ids, so no locks of accounts are held while a client is
-- between two statements.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_changed text := current_setting('basegate.changed_accounts', true);
BEGIN
    IF coalesce(v_changed, '') <> '' THEN
        PERFORM set_config('basegate.changed_accounts', '', true);
        PERFORM ledger_sync(string_to_array(ltrim(v_changed, ','), ','));
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER accounts_note_change AFTER INSERT OR UPDATE ON accounts
    FOR EACH ROW EXECUTE FUNCTION ledger_note_change('id');
CREATE TRIGGER keys_note_change AFTER INSERT OR UPDATE ON keys
    FOR EACH ROW EXECUTE FUNCTION ledger_note_change('account_id');
CREATE CONSTRAINT TRIGGER accounts_sync_owners AFTER INSERT OR UPDATE ON accounts DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_sync_changes();
CREATE CONSTRAINT TRIGGER keys_sync_owners AFTER INSERT OR UPDATE ON keys DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_sync_changes();

-- ledger_configure_v1 records the slots of keys that have no number of their own, and reports whether ledger_sync_v1 must be
-- called for all accounts: the number has changed, or an earlier change was not finished.
-- +goose StatementBegin
CREATE FUNCTION ledger_configure_v1(p_concurrency_per_key integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
BEGIN
    UPDATE ledger_setting SET concurrency_per_key = p_concurrency_per_key, synced = false
        WHERE concurrency_per_key <> p_concurrency_per_key;
    RETURN (SELECT NOT synced FROM ledger_setting);
END
$$;
-- +goose StatementEnd

-- ledger_sync_v1 syncs the accounts after one, in the order of their ids, at most p_limit, and returns the last of them; NULL
-- after the last of all.
-- +goose StatementBegin
CREATE FUNCTION ledger_sync_v1(p_after text, p_limit integer) RETURNS text
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
    PERFORM ledger_sync(v_accounts);
    RETURN v_accounts[cardinality(v_accounts)];
END
$$;
-- +goose StatementEnd

-- Settlements that a client writes in a transaction of its own, together with the results of a batch. They are executed at
-- its commit, by a trigger: the accounts are locked in order, and only while the server commits. Rows never outlive their
-- transaction.
CREATE UNLOGGED TABLE settling (
    xid     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    gateway integer NOT NULL,
    epoch   bigint NOT NULL,
    account text NOT NULL,
    key     text NOT NULL,
    settle  json NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX settling_xid ON settling (xid);

-- +goose StatementBegin
CREATE FUNCTION ledger_settle_prepared() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = basegate, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_accounts text[];
    v_keys text[];
    v_settle json;
    v_settled text[];
    v_now bigint;
    v_account text;
BEGIN
    WITH d AS (DELETE FROM settling WHERE xid = NEW.xid RETURNING account, key, settle)
        SELECT array_agg(DISTINCT account), array_agg(DISTINCT key), json_agg(settle) INTO v_accounts, v_keys, v_settle FROM d;
    IF v_settle IS NULL THEN -- an earlier call has executed all
        RETURN NULL;
    END IF;
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    SELECT s.settled INTO v_settled FROM ledger_settle(NEW.gateway, NEW.epoch, v_settle) s;
    IF cardinality(v_settled) IS DISTINCT FROM json_array_length(v_settle) THEN
        RAISE EXCEPTION 'a request that is settled is not in flight';
    END IF;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE CONSTRAINT TRIGGER settling_settle AFTER INSERT ON settling DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ledger_settle_prepared();

-- ledger_prepare_v1 makes the commit of the caller's transaction settle requests of one gateway. It returns ok, or fenced, or
-- absent if one is not in flight and was not settled by an earlier try of the transaction; then it has prepared nothing. From
-- its call to the end of the transaction, the gateway's epoch cannot end, so the commit finds the requests in flight.
-- +goose StatementBegin
CREATE FUNCTION ledger_prepare_v1(p_gateway integer, p_epoch bigint, p_settle json) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    v_absent integer;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(25191, p_gateway);
    PERFORM 1 FROM gateway WHERE id = p_gateway AND epoch = p_epoch AND alive;
    IF NOT FOUND THEN
        RETURN 'fenced';
    END IF;
    SELECT count(*) INTO v_absent FROM json_to_recordset(p_settle) AS s(id text, time bigint)
        WHERE NOT EXISTS (SELECT FROM inflight i WHERE i.request_id = s.id AND i.gateway = p_gateway AND i.epoch = p_epoch)
            AND NOT EXISTS (SELECT FROM requests r WHERE r.time = s.time AND r.request_id = s.id AND r.state = 'settled');
    IF v_absent > 0 THEN
        RETURN 'absent';
    END IF;
    INSERT INTO settling (gateway, epoch, account, key, settle)
        SELECT p_gateway, p_epoch, i.account, i.key, s.value
        FROM json_array_elements(p_settle) s JOIN inflight i ON i.request_id = s.value ->> 'id'
        WHERE i.gateway = p_gateway AND i.epoch = p_epoch;
    RETURN 'ok';
END
$$;
-- +goose StatementEnd

-- ledger_replay_v1 writes settlements of an epoch again that the database has acknowledged and lost, as after a failover to
-- a standby that was behind, and returns their number. A lease that is left of the request is settled; a request without a
-- lease and without a row is charged in the windows of its row's time; one with a row is left as it is.
-- +goose StatementBegin
CREATE FUNCTION ledger_replay_v1(p_gateway integer, p_epoch bigint, p_settle json) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = basegate, pg_temp AS $$
DECLARE
    s record;
    w waiter;
    v_accounts text[];
    v_keys text[];
    v_settled text[];
    v_now bigint;
    v_account text;
BEGIN
    PERFORM pg_advisory_xact_lock(25191, p_gateway);
    SELECT array_agg(DISTINCT n.account), array_agg(DISTINCT n.key) INTO v_accounts, v_keys
        FROM json_to_recordset(p_settle) AS n(account text, key text);
    PERFORM 1 FROM owner WHERE id = ANY (v_accounts) ORDER BY id FOR NO KEY UPDATE;
    v_now := ledger_now();
    PERFORM ledger_roll(v_accounts, ledger_day(v_now));
    PERFORM ledger_roll(v_keys, ledger_day(v_now));
    FOR s IN
        SELECT n.* FROM json_to_recordset(p_settle) AS n(id text, account text, key text, time bigint, model text, endpoint text,
            workload text, tag text, stream boolean, batch text)
        WHERE NOT EXISTS (SELECT FROM inflight i WHERE i.request_id = n.id)
            AND NOT EXISTS (SELECT FROM requests r WHERE r.time = n.time AND r.request_id = n.id)
    LOOP
        w := ROW(s.account, s.key, 0, s.id, p_gateway, p_epoch, 0, s.time, 0, 0, 0, 0, NULL, NULL, NULL, s.model, s.endpoint,
            s.workload, coalesce(s.tag, ''), coalesce(s.stream, false), s.batch, '');
        PERFORM ledger_open(w, ledger_day(s.time), s.time, 0, 0);
    END LOOP;
    SELECT r.settled INTO v_settled FROM ledger_settle(p_gateway, p_epoch, p_settle) r;
    FOR v_account IN SELECT id FROM owner WHERE id = ANY (v_accounts) AND waiting > 0 ORDER BY id LOOP
        PERFORM ledger_grant(v_account, v_now, NULL, NULL, false);
    END LOOP;
    RETURN coalesce(cardinality(v_settled), 0);
END
$$;
-- +goose StatementEnd

SELECT ledger_grants();
