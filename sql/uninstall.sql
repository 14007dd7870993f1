-- Uninstall: takes everything of ours out of this database
--
-- Run it as the role that installed, or as a superuser, in one transaction. With the setting
-- agentundo.keep_history = 'on' the tables of agentundo and agentundo_history stay, with all that was
-- captured, and a later install takes them up again; tables must then be tracked anew. Without it
-- everything goes, and nothing that an agent did can be undone any more.
--
-- Locks: ACCESS EXCLUSIVE on every tracked table, while its triggers go. Changes no row of yours.
-- Roles stay: other databases of the cluster may use them.
--
-- Our triggers and event triggers go with the functions that they call. What we were granted on tables
-- and schemas is revoked where it was granted to a role of ours; where everything belongs to the
-- installing role, nobody can tell our grants from its own, and they stay.

do $body$
declare
  keep boolean;
  shown text;
  ours oid[];
  granted record;
  deputy regproc;
  item text;
begin
  -- What others have put into the search_path of whoever runs this must not run with his rights.
  perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  keep := coalesce(current_setting('agentundo.keep_history', true), '') = 'on';
  shown := current_setting('client_min_messages');
  ours := array_remove(array[to_regrole('agentundo_worker')::oid, to_regrole('agentundo_owner')::oid], null);
  if to_regnamespace('agentundo') is null then
    raise notice 'agentundo: nothing to uninstall in database %', current_database();
    return;
  end if;
  -- What goes with what we drop is no news.
  perform set_config('client_min_messages', 'warning', true);
  -- First of all, so that our event triggers do not follow what comes.
  drop function if exists agentundo._on_ddl(), agentundo._on_drop() cascade;
  perform set_config('client_min_messages', shown, true);

  -- A grant is taken back by whoever gave it: on tables our deputy for the owner, else the running role.
  for granted in
    select distinct format('%I.%I', n.nspname, c.relname) as object, c.oid as relation, c.relowner as owner, a.grantee::regrole as grantee
    from pg_class c join pg_namespace n on n.oid = c.relnamespace cross join lateral aclexplode(c.relacl) a
    where n.nspname not in ('agentundo', 'agentundo_history') and c.relowner <> all (ours) and a.grantee = any (ours)
  loop
    deputy := null;
    if to_regprocedure('agentundo._deputy(regclass)') is not null then
      deputy := agentundo._deputy(granted.relation::regclass);
    end if;
    begin
      if deputy is not null then
        execute format('select %s(''revoke''::text, $1::regclass, null::text, null::text)', deputy) using granted.relation::regclass;
      else
        execute format('revoke all on %s from %s', granted.object, granted.grantee);
      end if;
    exception when insufficient_privilege then
      raise notice 'agentundo: % keeps its rights on %', granted.grantee, granted.object
        using hint = format('As its owner run "revoke all on %s from %s".', granted.object, granted.grantee);
    end;
  end loop;
  for granted in
    select distinct format('%I', n.nspname) as object, a.grantee::regrole as grantee
    from pg_namespace n cross join lateral aclexplode(n.nspacl) a
    where n.nspname not in ('agentundo', 'agentundo_history') and n.nspowner <> all (ours) and a.grantee = any (ours)
  loop
    begin
      execute format('revoke all on schema %s from %s', granted.object, granted.grantee);
    exception when insufficient_privilege then
      raise notice 'agentundo: % keeps its rights on schema %', granted.grantee, granted.object
        using hint = format('As its owner run "revoke all on schema %s from %s".', granted.object, granted.grantee);
    end;
  end loop;

  perform set_config('client_min_messages', 'warning', true);
  if not keep then
    drop schema agentundo cascade;
    drop schema agentundo_history cascade;
    perform set_config('client_min_messages', shown, true);
    return;
  end if;
  for item in
    select format('drop view if exists agentundo.%I cascade', c.relname) from pg_class c where c.relnamespace = 'agentundo'::regnamespace and c.relkind = 'v'
  loop
    execute item;
  end loop;
  for item in
    select format('drop function %s cascade', p.oid::regprocedure) from pg_proc p
    where p.pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace)
  loop
    execute item;
  end loop;
  perform set_config('client_min_messages', shown, true);
  update agentundo._tracked set active = false;
  delete from agentundo._member;
end
$body$;
