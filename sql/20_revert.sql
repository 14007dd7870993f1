-- 20  Revert: attempts until one succeeds, and what is told of it
--
-- A revert locks its invocations first, by id: a second click waits here and finds the work done. Then it
-- makes attempts (19_act.sql), each in a subtransaction with a short lock_timeout: who gives way lets go of
-- everything and tries again, so that no writer becomes the revert's deadlock victim. Integrity errors come
-- out as UN001 with the constraint's name. At the end stands the record: what is covered now, one event.
-- The changes that the attempt wrote can be reverted like any others; that is what redo() does.

-- What an undo of these ids has to lock: themselves, and what they took back if they are reverts. Returns
-- all that it locked.
create or replace function agentundo._lock_invocations(ids text[]) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  wanted text[];
begin
  with recursive upward as (
    select u as id from unnest(ids) u
    union
    select unnest(v.invocations) from agentundo._revert v join upward u on u.id = v.id)
  select array_agg(distinct id order by id) into wanted from upward;
  insert into agentundo._invocation (id, run, step, scope, actor, on_behalf_of, role, tool, created_at)
    select distinct on (c.invocation) c.invocation, c.run, null::int, c.scope, c.actor, c.on_behalf_of, c.role, c.tool, c.at
    from agentundo._change c
    where c.invocation = any (wanted) and not exists (select from agentundo._invocation i where i.id = c.invocation)
    order by c.invocation, c.change
  on conflict (id) do nothing;
  perform from agentundo._invocation i where i.id = any (wanted) order by i.id for update;
  return wanted;
end
$body$;

-- What helps against conflicts of these kinds, beyond what was asked for; nothing is offered that does not.
-- Of a row that is not one any more (without a key, or with another) there is only one: `lost`.
create or replace function agentundo._ways_out(reasons text[], on_conflict text, merge boolean, lost boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'See agentundo.plan(). Then revert with '
    || case when not lost and not merge and reasons <@ '{row_changed}' then 'merge => true (puts back only the columns that nobody else changed), ' else '' end
    || 'on_conflict => ''skip'' (leaves these rows)'
    || case when lost or on_conflict = 'cascade' or reasons && '{schema_changed,constraint,erased,not_visible}' then ''
         when reasons && '{unique_taken,has_dependents,missing_parent}' then ' or ''cascade'' (takes later agent work along)'
         else ', ''cascade'' (takes later agent work along)' end
    || case when not lost and reasons <@ '{row_changed,row_rewritten,row_deleted,row_exists}' then ' or ''force''' else '' end
    || case when reasons && '{unique_taken,has_dependents,missing_parent,constraint}' then '; or change what stands in the way first.' else '.' end
$body$;

-- Conflicts as an error: what and where for people, the first 20 for programs. Keys and column names
-- only, no other value: DETAIL is written to the server log.
create or replace function agentundo._refuse(d agentundo._decision[], on_conflict text, merge boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  conflicts agentundo._decision[];
  total bigint := (select count(*) from unnest(d) x where x.status = 'conflict');
  listed jsonb;
  first_one jsonb;
begin
  conflicts := array(select x from unnest(d) x where x.status = 'conflict' order by x.place limit 20);
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('relation', s.relation, 'key', s.key, 'reason', s.reason, 'columns', s.columns,
      'invocation', s.invocation, 'constraint', s.detail -> 'constraint', 'in_the_way', s.detail -> 'relation')))
    into listed
    from agentundo._show(conflicts) s;
  -- Without a key the key is the whole row, and that is nobody's business in a log.
  select jsonb_agg(case when exists (select from agentundo._tracked t where t.relation::text = l ->> 'relation' and not exists (select from agentundo._key(t.id))) then l - 'key' else l end)
    into listed from jsonb_array_elements(listed) l;
  first_one := listed -> 0;
  perform agentundo._fail('UN001',
    format('agentundo: %s would overwrite later work or break a constraint: %s %s: %s%s%s',
      case when total = 1 then '1 row' else total || ' rows' end, first_one ->> 'relation',
      case when first_one ->> 'key' <> '{}' then first_one ->> 'key'
        when first_one ->> 'reason' = 'erased' then '(a row whose key was erased, too)'
        when exists (select from agentundo._tracked t cross join lateral agentundo._key(t.id) where t.relation::text = first_one ->> 'relation') then '(a row whose key is not shown)'
        else '(a row without a key)' end, first_one ->> 'reason',
      coalesce(' (' || (select string_agg(c, ', ') from jsonb_array_elements_text(first_one -> 'columns') c) || ')', coalesce(' (' || (first_one ->> 'constraint') || ')', '')),
      case when total > 1 then ', and more' else '' end),
    case when on_conflict = 'force'
      then 'Even force does not break constraints. See agentundo.plan(); revert or change what stands in the way first.'
      else agentundo._ways_out(array(select distinct x.reason from unnest(d) x where x.status = 'conflict'), on_conflict, merge, exists (
        select from unnest(agentundo._moved_on(d)) x
        where x.status = 'conflict' and (not exists (select from agentundo._key(x.tracked)) or x.detail ? 'moved_on'
          or x.reason in ('row_exists', 'row_deleted') and (x.unit is not null or x.detail ? 'moved')))) end,
    jsonb_build_object('total', total, 'conflicts', listed));
end
$body$;

-- Marks what has been taken back. Where a row of a table was skipped, all changes of that table stay
-- uncovered: rows that the set wrote more than once are chains of several changes, and of half a chain
-- nobody could tell what it had come to. The next revert finds what is left by looking at each row.
create or replace function agentundo._cover(ids text[], changes bigint[], d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  left_over bigint[] := array(
    select c.change from agentundo._change c
    where c.change = any (changes)
      and c.tracked in (select x.tracked from unnest(d) x where x.status = 'skip' or x.status in ('ok', 'done') and x.detail ? 'segments'));
  v record;
begin
  insert into agentundo._reverted (change, revert, invocation)
    select c.change, revert_id, c.invocation from agentundo._change c where c.change = any (changes) and c.change <> all (left_over)
  on conflict do nothing;
  update agentundo._revert r set partial = left_over <> '{}' or r.partial and agentundo._uncovered(r.invocations) <> '{}' where r.id = revert_id;

  -- A revert that has been taken back wholly stands no longer; one whose redo was taken back stands again.
  for v in
    with recursive kin as (
      select r.id, r.number from agentundo._revert r where r.id = any (ids)
      union
      select r.id, r.number from kin k join agentundo._revert q on q.id = k.id join agentundo._revert r on r.id = any (q.invocations))
    select k.id, k.number from kin k order by k.number desc
  loop
    update agentundo._revert r set
      standing = not exists (
        select from agentundo._revert w where w.invocations @> array[r.id] and w.standing and w.number > r.number
          and not exists (select from unnest(agentundo._uncovered(array[r.id])) u)),
      reopened = exists (
        select from agentundo._revert w where w.invocations @> array[r.id] and w.standing and w.number > r.number and (w.partial or w.reopened)
          and exists (select from agentundo._change c where c.invocation = w.id and c.xid = w.xid))
    where r.id = v.id;
  end loop;
end
$body$;

-- What is to be taken back: the invocations named, for a redo their newest standing revert, with cascade
-- also what stands in their way.
create or replace function agentundo._aim(ids text[], redo boolean, on_conflict text, merge boolean, scope text) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((
    select array_agg(distinct u order by u)
    from unnest(agentundo._extend(case when redo then array(
        select v.id from agentundo._revert v where v.invocations && ids and v.standing order by v.number desc limit 1) else ids end,
      on_conflict, merge, scope)) u), '{}')
$body$;

-- Locks what this is about and says what there is to do. Which invocations that is can change until they are
-- locked: so they are named (`wanted`), locked all together and named again; UNR01 asks for another round. An
-- answer with a status is final.
create or replace function agentundo._begin(
  ids text[], wanted text[], redo boolean, on_conflict text, merge boolean, scope text, reverted_by text, run text, from_step int) returns agentundo._task
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  task agentundo._task;
  answer agentundo.revert_result;
begin
  task.locked := agentundo._lock_invocations(wanted || ids);
  task.aim := agentundo._aim(ids, redo, on_conflict, merge, scope);
  if not task.aim <@ wanted then
    raise exception using errcode = 'UNR01', detail = task.aim::text;
  elsif run is not null and not agentundo._members(run, from_step, scope) <@ ids then
    raise exception using errcode = 'UNR01';
  end if;
  perform agentundo._unknown(ids[1]) from unnest(task.aim) u where redo and not agentundo._in_scope(u, agentundo._scope(scope));
  perform agentundo._require_known(ids || task.aim, scope);
  if not task.aim <@ ids then
    perform agentundo._require_revert(task.aim, scope, reverted_by);
  end if;
  task.changes := agentundo._uncovered(task.aim);
  answer := row(null, null, array(
      select u from unnest(task.aim) u where exists (select from agentundo._change c where c.change = any (task.changes) and c.invocation = u)),
    0, 0, 0, 0, 0);
  if task.changes = '{}' then
    select v.id into answer.revert_id from agentundo._revert v where v.invocations && task.aim and v.standing order by v.number desc limit 1;
    if redo and answer.revert_id is null and exists (select from agentundo._revert v where v.id = any (task.aim) and v.standing) then
      answer.invocations := task.aim;  -- a revert that had changed no row is taken back in the books alone
    else
      answer.status := case
        when answer.revert_id is not null then 'already_reverted'
        when exists (select from agentundo._invocation i where i.id = any (task.aim) and i.recorded and i.status = 'pending') then 'not_committed'
        else 'nothing_to_revert' end;
    end if;
  end if;
  task.answer := answer;
  return task;
end
$body$;

-- The books after an attempt that succeeded.
create or replace function agentundo._conclude(
  task agentundo._task, d agentundo._decision[], revert_id text, redo boolean, reverted_by text, reason text) returns agentundo.revert_result
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  result agentundo.revert_result := task.answer;
  originals constant text[] := agentundo._originals(result.invocations);
  earlier text;
begin
  select count(*) filter (where x.action = 'delete' and x.status in ('ok', 'merge')), count(*) filter (where x.action = 'insert' and x.status in ('ok', 'merge')),
         count(*) filter (where x.action = 'update' and x.status in ('ok', 'merge')), count(*) filter (where x.status = 'skip'),
         count(*) filter (where x.status = 'skip' and x.reason is not null and not coalesce(x.detail ? 'follows', false))
    into result.rows_deleted, result.rows_inserted, result.rows_updated, result.rows_skipped, result.conflicts
    from unnest(d) x;
  -- Nothing was left to do but what an earlier revert of these had done: no second one stands for it.
  if not redo and not exists (select from agentundo._change c where c.invocation = revert_id) then
    select v.id into earlier from agentundo._revert v where v.invocations && task.aim and v.standing and v.id <> revert_id order by v.number desc limit 1;
    if earlier is not null then
      delete from agentundo._invocation i where i.id = revert_id;
    end if;
  end if;
  result.revert_id := coalesce(earlier, revert_id);
  perform agentundo._cover(task.aim, task.changes, d, result.revert_id);
  update agentundo._invocation i set status = 'committed', committed_at = clock_timestamp()
   where i.id = any (result.invocations) and i.status = 'pending';
  select case when earlier is null and v.partial or earlier is not null and agentundo._uncovered(task.aim) <> '{}' then 'partially_reverted'
      when earlier is not null then 'already_reverted' else 'reverted' end
    into result.status from agentundo._revert v where v.id = result.revert_id;
  if earlier is null then
    -- Listeners know calls, not reverts: a redo is told of as of what it has done again.
    perform agentundo._emit(case when redo then 'invocation_redone' else 'invocation_reverted' end, originals[1],
      jsonb_build_object('revert_id', revert_id, 'status', result.status, 'by', reverted_by, 'reason', reason, 'invocations', originals,
        'reverts', nullif(array(select u from unnest(result.invocations) u where u <> all (originals)), '{}')));
  end if;
  return result;
end
$body$;

create or replace function agentundo._revert_now(
  ids text[], on_conflict text, merge boolean, reason text, reverted_by text, scope text, redo boolean, run text default null, from_step int default 1)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  revert_id constant text := gen_random_uuid()::text;
  tool constant text := case when redo then 'agentundo.redo' else 'agentundo.revert' end;
  wanted text[];
  task agentundo._task;
  d agentundo._decision[];
  saved text[];
  companions constant text[] := array['agent.invocation', 'agent.run', 'agent.step', 'agent.tool', 'agent.actor', 'agent.on_behalf_of', 'agent.scope', 'agentundo.baseline', 'lock_timeout'];
  patience interval := case when current_setting('lock_timeout') = '0' then interval '60 s' else current_setting('lock_timeout')::interval end;
  began timestamptz := clock_timestamp();
  replace int[] := array[]::int[];  -- the tables in which updates are deletes and inserts
  apart int[] := array[]::int[];    -- those that nobody else may write meanwhile
  since timestamptz;
  blocked boolean := false;         -- by whoever holds a lock
  stale int := 0;          -- how often something was altered while we looked
  misfortunes text[] := array[]::text[];  -- what constraints have said that the plan did not know
  old_snapshot constant boolean := current_setting('transaction_isolation') <> 'read committed';
  constraint_name text; table_name text; complaint text; about text; named text;
begin
  perform agentundo._check_mode(on_conflict);
  merge := coalesce(merge, false);
  ids := array(select distinct u from unnest(ids) u order by u);
  perform agentundo._require_known(ids, scope);
  perform agentundo._refuse_force(on_conflict, reverted_by, reason);
  perform agentundo._require_revert(ids, scope, reverted_by);
  if agentundo._is_copy() then
    perform agentundo._lift_sequences();
  end if;
  saved := array(select current_setting(c, true) from unnest(companions) with ordinality x (c, n) order by n);
  wanted := case when on_conflict = 'cascade' then ids else agentundo._aim(ids, redo, on_conflict, merge, scope) end;
  loop
    begin
      d := null;
      if blocked then
        blocked := false;
        perform agentundo._past_vacuum(array(
          select agentundo._with_triggers(array(select distinct c.tracked from agentundo._change c where c.change = any (task.changes)))
          union select agentundo._levels(x.relation, x.kind) from agentundo._tracked x where x.id = any (apart)));
      end if;
      since := clock_timestamp();
      if run is not null and not agentundo._members(run, from_step, scope) <@ ids then
        ids := agentundo._members(run, from_step, scope);  -- calls that were committed meanwhile
        perform agentundo._require_revert(ids, scope, reverted_by);
        wanted := wanted || ids;
      end if;
      -- All locks belong to the attempt: who gives way lets go of everything.
      perform set_config('lock_timeout', agentundo._short_wait(), true);
      task := agentundo._begin(ids, wanted, redo, on_conflict, merge, scope, reverted_by, run, from_step);
      exit when (task.answer).status is not null;
      insert into agentundo._invocation (id, scope, actor, role, tool, status, created_at, committed_at)
        values (revert_id, agentundo._common_scope(task.aim), reverted_by, agentundo._caller(), tool, 'committed', clock_timestamp(), clock_timestamp());
      insert into agentundo._revert (id, invocations, redo, on_conflict, merge, reverted_by, reason, role)
        values (revert_id, (task.answer).invocations, redo, on_conflict, merge, reverted_by, reason, agentundo._caller());
      perform agentundo.tag(revert_id, tool => tool, actor => reverted_by);
      d := agentundo._attempt(task.aim, task.changes, revert_id, on_conflict, merge, scope, replace, apart, run, from_step, since);
      update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (task.locked);
      exit;
    exception
      when sqlstate 'UNR01' then
        get stacked diagnostics named = pg_exception_detail;
        wanted := wanted || coalesce(nullif(named, ''), '{}')::text[];
        if clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = 'agentundo: these invocations go on writing',
            hint = 'Let them end first; what they write after the revert would stay.';
        end if;
        continue;
      when sqlstate 'UNR02' then
        get stacked diagnostics named = pg_exception_detail;
        apart := apart || named::int[];
        continue;
      when lock_not_available then
        -- The revert gives way and tries again: but what this transaction had before it keeps.
        if exists (
          select from pg_locks l
          where not l.granted and l.pid <> pg_backend_pid() and pg_backend_pid() = any (pg_blocking_pids(l.pid))
            and not exists (select from pg_class c where c.oid = l.relation and c.relnamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace))) then
          raise exception using errcode = '55P03', message = 'agentundo: others wait for what this transaction had locked before the undo, and the undo for others',
            hint = 'Give the undo a transaction of its own, and call it again.';
        elsif clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = format('agentundo: somebody holds rows or tables of this undo for longer than %s', patience),
            hint = 'End the transaction that holds them (see pg_stat_activity and pg_blocking_pids), then call revert again. A higher lock_timeout makes it wait longer.';
        end if;
        blocked := true;
      when deadlock_detected or serialization_failure then
        get stacked diagnostics complaint = message_text;
        if old_snapshot or clock_timestamp() > began + patience then
          raise;  -- only the caller can begin anew, with a new snapshot
        elsif complaint like 'agentundo: a row changed%' then
          if cardinality(array_positions(misfortunes, complaint)) >= 5 then
            perform agentundo._broke('constraint', 'rows did not become what was written; a trigger that is to fire may keep them from it', null, null);
          end if;
          misfortunes := misfortunes || complaint;
        end if;
      when unique_violation or exclusion_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text, about = pg_exception_detail;
        -- Values that change places among rows of the plan: all of them out, then all of them in. Not where
        -- a key of another table would act on the rows while they are gone.
        if concat(complaint, about) <> all (misfortunes) and not old_snapshot then
          misfortunes := misfortunes || concat(complaint, about);  -- somebody may have been faster than our look
        elsif replace = '{}' and agentundo._replaceable(task.changes) <> '{}' then
          replace := agentundo._replaceable(task.changes);
          apart := apart || replace;
        elsif old_snapshot then
          perform agentundo._outdated();
        else
          perform agentundo._broke('unique_taken', complaint, constraint_name, table_name);
        end if;
      when integrity_constraint_violation or foreign_key_violation or restrict_violation or check_violation or not_null_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text, about = pg_exception_detail;
        if old_snapshot then
          perform agentundo._outdated();
        elsif concat(complaint, about) = any (misfortunes) then
          perform agentundo._broke('constraint', complaint, constraint_name, table_name);
        end if;
        misfortunes := misfortunes || concat(complaint, about);  -- somebody was faster than our look: the next one sees it and says more
      when data_exception or string_data_right_truncation or numeric_value_out_of_range or invalid_text_representation then
        get stacked diagnostics table_name = table_name, complaint = message_text;
        perform agentundo._broke('schema_changed', 'a former value does not fit its column any more', null, table_name);
      when insufficient_privilege or undefined_table or undefined_column or undefined_function or internal_error or raise_exception then
        get stacked diagnostics complaint = message_text;
        if sqlstate = 'UN003' or complaint like 'agentundo:%' or sqlstate = 'XX000' and complaint not like 'cache lookup failed%' then
          raise;
        elsif sqlstate in ('42P01', '42703', '42883', 'XX000') and stale < 5 then
          stale := stale + 1;  -- a table was altered, or agentundo upgraded, between two looks: look again
          perform pg_sleep(0.01);
          continue;
        elsif sqlstate = '42703' and old_snapshot then
          perform agentundo._outdated();  -- it sees the columns of then
        end if;
        -- code of the user's that runs with our rights while rows are written: a constraint's, a trigger's
        raise exception using errcode = 'UN001', message = format('agentundo: the rows cannot be put back: %s',
            case when agentundo._reads_all(array(select distinct c.tracked from agentundo._change c where c.change = any (task.changes))) then complaint
              else 'a function of these tables failed with SQLSTATE ' || sqlstate end),
          detail = jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_build_object('reason', 'constraint')))::text,
          hint = format('A function in a constraint or a trigger of these tables failed. It runs as %s here: grant that role what the function needs.', agentundo._worker());
      when object_in_use then
        raise exception using errcode = '55006', message = 'agentundo: revert cannot run here: a query of this session or a deferred constraint is still busy with one of the tables',
          hint = 'Call it as a statement of its own, in a transaction of its own.';
    end;
    perform pg_sleep(0.05 + random() * 0.2);
  end loop;
  perform set_config(c, coalesce(saved[n], ''), true) from unnest(companions) with ordinality x (c, n) where c <> 'lock_timeout';
  perform set_config('lock_timeout', saved[cardinality(saved)], true);
  if d is null then
    return task.answer;
  end if;
  return agentundo._conclude(task, d, revert_id, redo, reverted_by, reason);
end
$body$;

create or replace function agentundo._common_scope(ids text[]) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when count(distinct i.scope) = 1 and count(*) = count(i.scope) then min(i.scope) end from agentundo._invocation i where i.id = any (ids)
$body$;

-- The tables of these changes in which rows may be deleted and inserted again within the statement.
create or replace function agentundo._replaceable(changes bigint[]) returns int[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select array(
    select t.id from agentundo._tracked t
    where t.id in (select c.tracked from agentundo._change c where c.change = any (changes)) and not agentundo._held_in_place(t))
$body$;

-- A look with an older snapshot than the locks: right answers need a new one.
create or replace function agentundo._outdated() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  raise exception using errcode = '40001', message = 'agentundo: another transaction changed a related row since this one began',
    hint = 'Begin a new transaction and call revert again.';
end
$body$;

create or replace function agentundo._broke(reason text, complaint text, constraint_name text, table_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._fail('UN001', format('agentundo: the rows cannot be put back: %s', complaint),
    'See agentundo.plan(). Nothing was changed; remove what stands in the way, or use on_conflict => ''skip''.',
    jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
      'relation', nullif(table_name, ''), 'constraint', nullif(constraint_name, ''), 'reason', reason)))));
end
$body$;

-- Public --------------------------------------------------------------------------------------------------

create or replace function agentundo.revert(
  invocations text[], on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(invocations, on_conflict, merge, reason, reverted_by, scope, false);
end
$body$;
comment on function agentundo.revert(text[], text, boolean, text, text, text) is
  'Puts back every row that these invocations wrote, as one unit, and leaves everybody else''s later work alone: a row that somebody changed since is a conflict (UN001), or is skipped, merged, cascaded or forced as asked. All or nothing, in your transaction. The revert is an invocation too: redo() takes it back.';

create or replace function agentundo.revert(
  invocation text, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(array[invocation], on_conflict, merge, reason, reverted_by, scope, false);
end
$body$;
comment on function agentundo.revert(text, text, boolean, text, text, text) is
  'Puts back every row that this invocation wrote, and leaves everybody else''s later work alone: a row that somebody changed since is a conflict (UN001), or is skipped, merged, cascaded or forced as asked. All or nothing, in your transaction. Twice is once: the second call answers already_reverted.';

create or replace function agentundo.revert_run(
  run text, from_step int default 1, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(agentundo._members(run, from_step, scope), on_conflict, merge, reason, reverted_by, scope, false, run, from_step);
end
$body$;
comment on function agentundo.revert_run(text, int, text, boolean, text, text, text) is
  'Puts back what a run wrote from a step on, as one unit: its invocations never conflict with each other. Otherwise like revert().';

create or replace function agentundo.redo(
  invocation text, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(array[invocation], on_conflict, merge, reason, reverted_by, scope, true);
end
$body$;
comment on function agentundo.redo(text, text, boolean, text, text, text) is
  'Takes back the newest standing revert of an invocation: its rows are again what it wrote, with the same respect for what others wrote since.';
