-- 01  Schemas and roles
--
-- What lives here: the two schemas and the roles. Everything of ours is in `agentundo` (functions,
-- views, our own tables; private names begin with an underscore) or in `agentundo_history` (one
-- table of row images per tracked table). Outside of these two schemas we own triggers, where
-- possible two event triggers, and the roles below.
--
-- Ownership: all of it belongs to `agentundo_owner`, a role that cannot log in and is never a
-- superuser. What only a table's owner may do (put our triggers on, switch a trigger off and on
-- again) is done by one small function per table owner (05_deputies.sql).
--
-- Code of other people runs while a revert restores a row: CHECK constraints, index expressions,
-- defaults, generated columns, casts. It runs as `agentundo_worker`, a role without login that may
-- read and write tracked tables and read their history, and owns nothing but the two functions that
-- act for it (11_guard.sql). So whoever owns a tracked table gets at other tracked tables through it
-- at most, never at our own functions, guards and records. agentundo_owner is a member of it, not the
-- other way round.
--
-- Where the installing role may not create roles, everything belongs to the installing role instead
-- and a NOTICE says so.
--
-- The marker roles carry rights, nobody logs in as one of them: grant them to your roles.
--   agentundo_app       may record, tag, plan and revert for its users, within a scope
--   agentundo_agent     its members are captured in every transaction, tag or no tag
--   agentundo_operator  may plan, revert and redo anywhere
--   agentundo_approver  decides on approvals
--   agentundo_auditor   may read everything, change nothing

-- What others have put into the search_path of whoever installs must not run with his rights.
set local search_path = pg_catalog, pg_temp;

do $body$
declare
  marker text;
  missing text[] := '{}';
begin
  foreach marker in array array['agentundo_owner', 'agentundo_worker', 'agentundo_app', 'agentundo_agent',
                                'agentundo_operator', 'agentundo_approver', 'agentundo_auditor'] loop
    begin
      if to_regrole(marker) is null then
        execute format('create role %I nologin', marker);
      end if;
    exception
      when duplicate_object or unique_violation then null;  -- another database's installer was faster
      when insufficient_privilege then missing := missing || marker;
    end;
  end loop;
  if missing <> '{}' then
    raise notice 'agentundo: % may not create roles; left out: %', current_user, array_to_string(missing, ', ')
      using hint = 'A role with CREATEROLE can create them and run "agentundo upgrade" later.';
  end if;

  if to_regrole('agentundo_owner') is not null then
    -- On 16 and later the creator of a role is not a member of it by itself.
    if not pg_has_role(current_user, 'agentundo_owner', 'usage') then
      begin
        execute format('grant agentundo_owner to %I', current_user);
      exception when insufficient_privilege then null;
      end;
    end if;
    begin
      if to_regrole('agentundo_worker') is not null and not pg_has_role('agentundo_owner', 'agentundo_worker', 'usage') then
        grant agentundo_worker to agentundo_owner;
      end if;
    exception
      when unique_violation then null;  -- another database's installer was faster
      when insufficient_privilege then
      raise notice 'agentundo: % may not make agentundo_owner a member of agentundo_worker; other people''s constraints will run as agentundo_owner', current_user
        using hint = 'A superuser can run "grant agentundo_worker to agentundo_owner" and then "agentundo upgrade".';
    end;
    -- Row-level security must hide nothing from capture and revert. Only a superuser can give this;
    -- without it, tables with row-level security are refused by track().
    foreach marker in array array['agentundo_owner', 'agentundo_worker'] loop
      begin
        if exists (select from pg_roles where rolname = marker and not rolbypassrls) then
          execute format('alter role %I bypassrls', marker);
        end if;
      exception when insufficient_privilege then
        raise notice 'agentundo: % could not be given BYPASSRLS; tables with row-level security cannot be tracked', marker;
      end;
    end loop;
  end if;
end
$body$;

do $body$
begin
  if to_regrole('agentundo_owner') is null or not pg_has_role(current_user, 'agentundo_owner', 'member') then
    create schema if not exists agentundo;
    create schema if not exists agentundo_history;
    if to_regrole('agentundo_owner') is not null then
      raise notice 'agentundo: % is no member of agentundo_owner, so everything belongs to % itself', current_user, current_user
        using hint = 'Other people''s constraints will run with the rights of this role. Better let a superuser install.';
    end if;
  else
    create schema if not exists agentundo authorization agentundo_owner;
    create schema if not exists agentundo_history authorization agentundo_owner;
  end if;
  -- From here to the last file, work as the owner of the schema: what is created belongs to it.
  execute format('set local role %I', (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo'));
end
$body$;

-- An upgrade makes private functions anew, whatever they returned before and whatever their arguments were
-- called; those that no longer exist go. Not those that something hangs on (triggers, views), nor what
-- capture calls, whose sessions would look for it in vain: they are replaced. Public functions keep the
-- grants that were made on them.
do $body$
declare
  private regprocedure;
begin
  perform set_config('agentundo.internal', 'on', true);  -- our event triggers have nothing to follow here
  for private in
    select p.oid from pg_proc p
    where p.pronamespace = 'agentundo'::regnamespace and p.proname like '\_%'
      and not exists (select from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid)
      and not exists (select from pg_trigger g where g.tgfoid = p.oid)
      and not exists (select from pg_event_trigger e where e.evtfoid = p.oid)
      and not exists (
        select from pg_proc c
        where c.pronamespace = p.pronamespace and c.proname like '\_capture\_%' and position(p.proname in c.prosrc) > 0)
  loop
    execute format('drop function %s', private);
  end loop;
end
$body$;

comment on schema agentundo is
  'pyagentundo: takes back what an agent wrote, never anybody''s later edits. Start with agentundo.tag(), agentundo.plan() and agentundo.revert().';
comment on schema agentundo_history is
  'pyagentundo: row images of tracked tables. They hold old personal data: guard them like the tables themselves.';
