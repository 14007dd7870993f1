-- 01  Schemas and roles
--
-- What lives here: the two schemas and the roles. Everything of ours is in `agentundo` (functions,
-- views, our own tables; private names begin with an underscore) or in `agentundo_history` (one
-- table of row images per tracked table). Outside of these two schemas we own triggers, where
-- possible two event triggers, and the roles below.
--
-- Ownership: all of it belongs to `agentundo_owner`, a role that cannot log in and is never a
-- superuser, so that a CHECK constraint or an index expression of somebody else's table, which runs
-- with our rights while a revert restores a row, finds nothing worth having. agentundo_owner is a
-- member of no other role either: on each tracked table it is granted SELECT, INSERT, UPDATE and
-- DELETE, and what only the table's owner may do (put our triggers on, switch a trigger off and on
-- again) is done by one small function per table owner (05_tracking.sql). Where the installing role
-- may not create roles, everything belongs to the installing role instead and a NOTICE says so.
--
-- The marker roles carry rights, nobody logs in as one of them: grant them to your roles.
--   agentundo_app       may record, tag, plan and revert for its users, within a scope
--   agentundo_agent     its members are captured in every transaction, tag or no tag
--   agentundo_operator  may plan, revert and redo anywhere
--   agentundo_approver  decides on approvals
--   agentundo_auditor   may read everything, change nothing

do $body$
declare
  marker text;
  missing text[] := '{}';
begin
  foreach marker in array array['agentundo_owner', 'agentundo_app', 'agentundo_agent',
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

  -- Row-level security must hide nothing from capture and revert. Only a superuser can give this;
  -- without it, tables with row-level security are refused by track().
  if to_regrole('agentundo_owner') is not null then
    begin
      if not (select rolbypassrls from pg_roles where rolname = 'agentundo_owner') then
        alter role agentundo_owner bypassrls;
      end if;
    exception when insufficient_privilege then
      raise notice 'agentundo: agentundo_owner could not be given BYPASSRLS; tables with row-level security cannot be tracked';
    end;
    -- On 16 and later the creator of a role is not a member of it by itself.
    if not pg_has_role(current_user, 'agentundo_owner', 'usage') then
      begin
        execute format('grant agentundo_owner to %I', current_user);
      exception when insufficient_privilege then null;
      end;
    end if;
  end if;
end
$body$;

do $body$
begin
  if to_regrole('agentundo_owner') is null or not pg_has_role(current_user, 'agentundo_owner', 'member') then
    create schema if not exists agentundo;
    create schema if not exists agentundo_history;
  else
    create schema if not exists agentundo authorization agentundo_owner;
    create schema if not exists agentundo_history authorization agentundo_owner;
  end if;
  -- From here to the last file, work as the owner of the schema: what is created belongs to it.
  execute format('set local role %I', (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo'));
end
$body$;

comment on schema agentundo is
  'pyagentundo: takes back what an agent wrote, never anybody''s later edits. Start with agentundo.tag(), agentundo.plan() and agentundo.revert().';
comment on schema agentundo_history is
  'pyagentundo: row images of tracked tables. They hold old personal data: guard them like the tables themselves.';
