-- CloudNativePG forgets a role that is no longer declared, and leaves it as it is: its password would go on working.
-- What it owns stays. Declared again, it is this application's role as before, with a new account's password.
SELECT set_config('chart.declared', :'declared', false);
DO $hook$
DECLARE undeclared name;
BEGIN
  FOR undeclared IN
    SELECT r.rolname FROM pg_roles r
    WHERE NOT current_setting('chart.declared')::jsonb ? r.rolname AND EXISTS (
      SELECT FROM pg_auth_members m JOIN pg_roles marker ON marker.oid = m.roleid
      WHERE marker.rolname = 'cozystack:managed' AND m.member = r.oid AND m.grantor = 10)
  LOOP
    EXECUTE format('ALTER ROLE %I NOLOGIN PASSWORD NULL', undeclared);
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = undeclared;
  END LOOP;
END $hook$;
