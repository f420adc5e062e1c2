-- +goose Up

-- Three roles, which an administrator creates: the owner, which migrates; basegate_runtime, with which gateways serve: it
-- may read, write all tables but those of the ledger, and call the ledger's functions; basegate_reader, which may read. Where
-- the last two do not exist, the owner does all. Each migration calls ledger_grants(); an administrator who creates the roles
-- later calls it as the owner.
-- +goose StatementBegin
CREATE FUNCTION ledger_grants() RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = basegate, pg_temp AS $$
DECLARE
    v_role text;
    v_function regprocedure;
    v_table regclass;
BEGIN
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA basegate FROM PUBLIC;
    FOREACH v_role IN ARRAY ARRAY['basegate_runtime', 'basegate_reader'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = v_role);
        EXECUTE format('GRANT USAGE ON SCHEMA basegate TO %I', v_role);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA basegate TO %I', v_role);
        EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA basegate GRANT SELECT ON TABLES TO %I', v_role);
        CONTINUE WHEN v_role = 'basegate_reader';
        FOR v_function IN SELECT oid FROM pg_proc WHERE pronamespace = 'basegate'::regnamespace AND proname ~ '^ledger_.*v\d+$' LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, v_role);
        END LOOP;
        FOR v_table IN SELECT oid FROM pg_class WHERE relnamespace = 'basegate'::regnamespace AND relkind IN ('r', 'p')
            AND relname NOT IN ('gateway', 'lane', 'owner', 'spend', 'inflight', 'waiter', 'decided', 'alarm', 'settling', 'ledger_setting',
                'goose_db_version', 'schema_compatibility')
            AND relname !~ '^requests($|_\d)' LOOP
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON %s TO %I', v_table, v_role);
        END LOOP;
        EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA basegate TO %I', v_role);
    END LOOP;
END
$$;
-- +goose StatementEnd

SELECT ledger_grants();
