-- 23  Grants: which role may call what; last of all what only the installing role can do
--
-- PUBLIC gets nothing, not even USAGE of our schemas: a writer of a tracked table needs no right of
-- ours, capture runs with the rights of its owner. The marker roles get the functions named here; most
-- of those judge the caller once more (11_guard.sql). Nobody but the owner gets at tables or at history
-- (but for `_home`, which tells clients the version).
--
-- track(), untrack() and sync() are for operators. They ask for more than this grant: only who may act
-- for the owner of a table can have it tracked, so an operator who is no member of the owner is refused.
--
-- Applied again by every upgrade: what stands here is what holds, grants made by hand on our functions
-- to the marker roles are taken back, those to other roles stay.

do $body$
declare
  -- What tag() and track() call with the caller's own rights.
  for_tag text[] := array['tag', 'version', '_check_id', '_step', '_note_baseline'];
  for_track text[] := array['track', 'track_schema', '_track', '_deputize', '_deputize_owner', '_deputy', '_deputy_of', '_lock_grants', '_create_deputy', '_admit', '_why_not_trackable', '_require_fresh_snapshots', '_tree',
                            '_remember_schema', '_kept_mode', '_fail', '_out_of_reach', '_relatives', '_digest', '_deputy_source', '_drop_impostor', '_worker'];
  for_record text[] := array['record_invocation', 'commit_invocation', 'fail_invocation', 'record_effect'];
  for_plan text[] := array['plan', 'plan_run', 'plan_summary', 'undoable', 'diff', 'row_history', 'row_version', 'row_writer', 'effects_of'];
  for_revert text[] := array['revert', 'revert_run', 'redo'];
  for_reader text[] := array['check', '_health', '_run_invocations', '_age'];  -- the latter stand in views
  granted record;
  function regprocedure;
begin
  execute 'revoke all on all functions in schema agentundo from public';
  for granted in
    select m.marker, m.functions, m.views from (values
      ('agentundo_app', for_tag || for_record || for_plan || for_revert, false),
      ('agentundo_agent', for_tag || for_record, false),
      ('agentundo_operator', for_tag || for_record || for_plan || for_revert || for_reader || for_track
        || array['untrack', 'sync', 'purge', 'erase', 'hold', 'set_merge', 'set_trigger', 'set_policy', 'set_scope_owner'], true),
      ('agentundo_approver', array['version'], false),
      ('agentundo_auditor', array['version'] || for_plan || for_reader, true)) m (marker, functions, views)
    where to_regrole(m.marker) is not null
  loop
    execute format('grant usage on schema agentundo to %I', granted.marker);
    execute format('grant select on agentundo._home to %I', granted.marker);  -- clients compare versions
    execute format('revoke all on all functions in schema agentundo from %I', granted.marker);
    for function in
      select p.oid from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname = any (granted.functions)
    loop
      execute format('grant execute on function %s to %I', function, granted.marker);
    end loop;
    if granted.views then
      execute format('grant select on agentundo.invocations, agentundo.runs, agentundo.changes, agentundo.events, agentundo.effects, agentundo.tracked to %I',
        granted.marker);
    end if;
  end loop;
  -- Whoever makes a partition makes the sentinel's copy on it (08_capture.sql). All that it can do is refuse tagged writes.
  grant execute on function agentundo._unknown_partition() to public;
  -- Functions of triggers are lent for the moment in which a trigger is made, no longer.
  for granted in
    select p.oid::regprocedure as function, a.grantee::regrole as guest
    from pg_proc p cross join lateral aclexplode(p.proacl) a
    where p.pronamespace = 'agentundo'::regnamespace and p.prorettype = 'trigger'::regtype and a.grantee not in (0, p.proowner)
  loop
    execute format('revoke all on function %s from %s', granted.function, granted.guest);
  end loop;
  -- What stands in the statements that it executes.
  if agentundo._worker() = 'agentundo_worker' then
    for function in
      select p.oid from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname in ('_label_now', '_array_as', '_replay', '_require_unaltered')
    loop
      execute format('grant execute on function %s to agentundo_worker', function);
    end loop;
  end if;
end
$body$;

-- The rest is done as the installing role again.
reset role;

do $body$
begin
  perform set_config('agentundo.internal', '', true);  -- set in 01_schema.sql
end
$body$;

do $body$
begin
  if not exists (select from pg_event_trigger where evtname = 'agentundo_ddl') then
    create event trigger agentundo_ddl on ddl_command_end execute function agentundo._on_ddl();
  end if;
  if not exists (select from pg_event_trigger where evtname = 'agentundo_drop') then
    create event trigger agentundo_drop on sql_drop execute function agentundo._on_drop();
  end if;
exception when insufficient_privilege then
  raise notice 'agentundo: % may not create event triggers; changed tables are followed only by agentundo.sync()', current_user
    using hint = 'A superuser can add them with "agentundo upgrade". Until then call agentundo.sync() after every migration; tagged writes to a changed table are refused before that.';
end
$body$;

-- What a deputy is may have changed. Whoever upgrades makes those anew for whose owners he may act.
do $body$
declare
  level regclass;
begin
  for level in
    select m.relation from agentundo._member m join pg_catalog.pg_class c on c.oid = m.relation
    where agentundo._deputy(m.relation) is null order by m.relation::oid
  loop
    begin
      perform agentundo._deputize(level);
    exception when others then
      raise notice 'agentundo: nothing acts for the owner of % any more: %', level, sqlerrm
        using hint = format('Run "select agentundo.track(%L)" as its owner.', level::text);
    end;
  end loop;
end
$body$;
