-- CloudNativePG adopts a role that has a declared name, with whatever it owns and may do. So a role that this chart did
-- not make stops the upgrade before it is adopted. Its own have the marker from the superuser (the role 10); what
-- somebody with CREATEROLE granted, which PostgreSQL allows before 16, counts for nothing.
SELECT set_config('chart.declared', :'declared', false);
DO $hook$
DECLARE planted text;
BEGIN
  SELECT string_agg(r.rolname, ', ' ORDER BY r.rolname) INTO planted
  FROM pg_roles r
  WHERE current_setting('chart.declared')::jsonb ? r.rolname AND NOT EXISTS (
    SELECT FROM pg_auth_members m JOIN pg_roles marker ON marker.oid = m.roleid
    WHERE marker.rolname = 'cozystack:managed' AND m.member = r.oid AND m.grantor = 10);
  IF planted IS NOT NULL THEN
    RAISE EXCEPTION 'these roles were not made by this application: %. Rename them, or undeclare the users', planted;
  END IF;
END $hook$;
