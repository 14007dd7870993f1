-- 21  Record: invocations as the application tells of them, effects, events
--
-- An invocation needs no record: a tag is enough to capture and to revert. A record adds what the
-- database cannot see (input, result, failure, tier, model) and makes a retried call idempotent.
--
-- Life cycle of a record: record_invocation() writes it as `pending`, before the data and committed on
-- its own, so that a call that dies leaves a trace; commit_invocation() marks it inside the data's own
-- transaction, so that the mark and the data share one fate; fail_invocation() closes one that wrote
-- nothing. Whether it can be undone hangs on its changes alone, never on this status.
--
-- Locks: the row of the invocation, for the rest of the transaction. Steps of a run are given out
-- under advisory locks that nobody waits for.

-- One row in `_event`, with the role of whoever did it in the payload, and a wake-up for listeners, who are to
-- read `agentundo.events`: anybody can send a notification. Off where NOTIFY is not possible (PREPARE TRANSACTION) or not wanted.
create or replace function agentundo._emit(kind text, invocation text, payload jsonb default '{}', source text default 'system') returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  number bigint;
  i agentundo._invocation;
  c agentundo._change;
begin
  select * into i from agentundo._invocation x where x.id = _emit.invocation;
  select * into c from agentundo._change x where x.change = (select min(y.change) from agentundo._change y where y.invocation = _emit.invocation);
  insert into agentundo._event (kind, source, scope, invocation, run, step, tool, actor, payload)
  values (_emit.kind, _emit.source, coalesce(i.scope, c.scope), _emit.invocation, coalesce(i.run, c.run), coalesce(i.step, c.step),
          coalesce(i.tool, c.tool), coalesce(i.actor, c.actor), coalesce(_emit.payload, '{}') || jsonb_build_object('role', agentundo._caller()))
  returning event into number;
  if coalesce(agentundo._setting('agentundo.notify'), (select s.value from agentundo._setting s where s.name = 'notify'), 'on') <> 'off' then
    perform pg_notify('agentundo', jsonb_build_object('event', number, 'kind', kind, 'invocation', invocation)::text);
  end if;
  return number;
end
$body$;

-- A free step of a run. Who gets the lock of a number may use it; who does not takes the next one
-- instead of waiting, so two transactions can never wait for each other here. A number whose
-- transaction rolls back stays free.
create or replace function agentundo._next_step(run text) returns int
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  step int := coalesce((select max(i.step) from agentundo._invocation i where i.run = _next_step.run), 0) + 1;
begin
  while not pg_try_advisory_xact_lock(hashtext('agentundo ' || run), step) loop
    step := step + 1;
  end loop;
  return step;
end
$body$;

-- Nobody makes another's writes his own by recording them: what has been written or recorded under an id
-- already keeps its scope, its actor and the person it was for. Operators may correct them.
create or replace function agentundo._refuse_claim(id text, scope text, actor text, on_behalf_of text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if not agentundo._operator() and exists (
      select from (
        select i.scope, i.actor, i.on_behalf_of from agentundo._invocation i where i.id = _refuse_claim.id
        union all
        (select c.scope, c.actor, c.on_behalf_of from agentundo._change c where c.invocation = _refuse_claim.id order by c.change limit 1)) was
      where was.scope is distinct from nullif(_refuse_claim.scope, '')
         or was.actor is distinct from coalesce(nullif(_refuse_claim.actor, ''), was.actor)
         or was.on_behalf_of is distinct from coalesce(nullif(_refuse_claim.on_behalf_of, ''), was.on_behalf_of)) then
    perform agentundo._fail('UN010', format('agentundo: invocation %L is somebody else''s', id),
      'Something was written or recorded under this id for another scope, actor or person. Give every call an id of its own.',
      jsonb_build_object('invocation', id));
  end if;
end
$body$;

create or replace function agentundo.record_invocation(
  id text default null, run text default null, step int default null, tool text default null, tier text default null,
  input jsonb default null, actor text default null, scope text default null, on_behalf_of text default null,
  model text default null, meta jsonb default null, role name default session_user, again boolean default false)
returns agentundo.recorded
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  new_id text := coalesce(id, gen_random_uuid()::text);
  new_step int;
  known agentundo._invocation;
  shown text;
begin
  perform agentundo._check_id(new_id), agentundo._step(step::text);
  if run is not null then
    perform agentundo._check_id(run, 'run');
  end if;
  if tier is not null and tier not in ('critical', 'high', 'medium', 'low') then
    perform agentundo._fail('22023', format('agentundo: there is no tier %L', left(tier, 40)), 'Use critical, high, medium or low.');
  end if;
  perform agentundo._refuse_claim(new_id, scope, actor, on_behalf_of);
  if agentundo._agent() and role not in (session_user, agentundo._caller()) then
    perform agentundo._fail('UN003', format('agentundo: an agent records its own calls, not those of %s', role), 'Leave role out.');
  end if;
  loop
    new_step := case when step is null and run is not null then agentundo._next_step(run) else step end;
    insert into agentundo._invocation as i (id, run, step, scope, actor, on_behalf_of, role, tool, tier, model, status, recorded, input, meta)
    values (new_id, record_invocation.run, new_step, nullif(record_invocation.scope, ''), nullif(record_invocation.actor, ''),
            nullif(record_invocation.on_behalf_of, ''), record_invocation.role, nullif(record_invocation.tool, ''), record_invocation.tier,
            record_invocation.model, 'pending', true, record_invocation.input, record_invocation.meta)
    on conflict do nothing;
    if found then
      return row(new_id, 'pending', true, null)::agentundo.recorded;
    end if;
    select * into known from agentundo._invocation i where i.id = new_id for update;
    exit when found;
    if step is not null then
      perform agentundo._fail('22023', format('agentundo: run %L has a step %s already', run, step), 'Leave the step out; it is given automatically.');
    end if;
  end loop;

  select v.status into shown from agentundo.invocations v where v.id = new_id;
  if exists (select from agentundo._revert r where r.id = new_id) then
    perform agentundo._fail('UN010', format('agentundo: %L is the id of a revert', new_id), 'Give every call an id of its own.');
  elsif known.recorded and (known.tool is distinct from nullif(tool, '') or known.input is distinct from input) then
    perform agentundo._fail('UN010', format('agentundo: invocation %L was recorded with another %s', new_id,
        case when known.tool is distinct from nullif(tool, '') then 'tool' else 'input' end),
      'The same id means the same call. Give a new call an id of its own.', jsonb_build_object('invocation', new_id));
  elsif shown in ('reverted', 'partially_reverted') and again is not true then
    perform agentundo._fail('UN010', format('agentundo: invocation %L has been reverted', new_id),
      'Do not simply repeat what somebody took back. If it is meant, record it with again => true, or under a new id.',
      jsonb_build_object('invocation', new_id, 'status', shown));
  elsif not known.recorded then
    -- Tagged only, and given a row by a revert or a hold before it was recorded.
    update agentundo._invocation i set
      run = record_invocation.run, step = new_step, scope = nullif(record_invocation.scope, ''), actor = nullif(record_invocation.actor, ''),
      on_behalf_of = nullif(record_invocation.on_behalf_of, ''), role = record_invocation.role, tool = nullif(record_invocation.tool, ''),
      tier = record_invocation.tier, model = record_invocation.model, status = 'pending', recorded = true,
      input = record_invocation.input, meta = record_invocation.meta
    where i.id = new_id;
    return row(new_id, 'pending', true, null)::agentundo.recorded;
  elsif shown in ('failed', 'reverted', 'partially_reverted') then
    update agentundo._invocation i set status = 'pending', error = null, result = null, committed_at = null where i.id = new_id;
    return row(new_id, 'pending', true, null)::agentundo.recorded;
  end if;
  return row(new_id, shown, false, known.result)::agentundo.recorded;
end
$body$;
comment on function agentundo.record_invocation(text, text, int, text, text, jsonb, text, text, text, text, jsonb, name, boolean) is
  'Records a tool call as pending, before it writes. The same id with the same tool and input again gives created = false and the first result: do not write again. Commit it before the data, or in the same transaction; changes none of your rows.';

-- The record, locked; unknown ids are an error.
create or replace function agentundo._lock_record(id text) returns agentundo._invocation
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation;
begin
  perform agentundo._check_id(id);
  select * into i from agentundo._invocation x where x.id = _lock_record.id and x.recorded for update;
  if not found then
    perform agentundo._fail('UN002', format('agentundo: there is no record of invocation %L', id),
      'Call agentundo.record_invocation() first.', jsonb_build_object('invocation', id));
  end if;
  return i;
end
$body$;

-- The tables that this transaction has written since it was tagged and that are not tracked: what a
-- revert will not take back. The statistics also count what a savepoint has rolled back, and what earlier transactions
-- of the session wrote and have not reported yet; the locks of either are gone. They are dear to ask for, so only
-- for tables that are left.
create or replace function agentundo._uncovered_tables() returns text[]
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(array_agg(format('%I.%I', s.schemaname, s.relname) order by s.schemaname, s.relname), '{}')
  from pg_stat_xact_user_tables s
  where s.n_tup_ins + s.n_tup_upd + s.n_tup_del
          > coalesce((agentundo._setting('agentundo.baseline')::jsonb ->> s.relid::text)::bigint, 0)
    and s.schemaname not in ('agentundo', 'agentundo_history') and s.schemaname not like 'pg\_temp\_%'
    and not exists (select from agentundo._tracked t
                    where t.active and t.relation in (s.relid, agentundo._root(s.relid)))
    and exists (select from pg_locks l
                where l.pid = pg_backend_pid() and l.locktype = 'relation' and l.relation = s.relid and l.mode = 'RowExclusiveLock'
                offset 0)
$body$;

create or replace function agentundo.commit_invocation(id text, result jsonb default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation := agentundo._lock_record(id);
begin
  if i.status = 'failed' then
    perform agentundo._fail('UN010', format('agentundo: invocation %L is marked as failed', id),
      'Record it again, then write, then commit it.', jsonb_build_object('invocation', id));
  end if;
  -- Again, or from another transaction of the same call: the first result and time stay, tables add up.
  update agentundo._invocation x set
    status = 'committed',
    committed_at = coalesce(x.committed_at, clock_timestamp()),
    result = coalesce(x.result, commit_invocation.result),
    uncovered = (select coalesce(array_agg(distinct u order by u), '{}') from unnest(x.uncovered || agentundo._uncovered_tables()) u)
  where x.id = commit_invocation.id;
end
$body$;
comment on function agentundo.commit_invocation(text, jsonb) is
  'Marks a recorded call as committed, with its result. Call it last, inside the transaction that wrote the data: mark and data then stand or fall together. Notes which tables were written that are not tracked.';

create or replace function agentundo.fail_invocation(id text, error text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation := agentundo._lock_record(id);
begin
  update agentundo._invocation x set status = 'failed', error = fail_invocation.error where x.id = i.id and i.status = 'pending';
end
$body$;
comment on function agentundo.fail_invocation(text, text) is
  'Marks a pending call as failed, after its transaction was rolled back. One that is committed or failed already stays as it is. Takes nothing back.';

create or replace function agentundo.record_effect(
  invocation text, name text, kind text default 'unknown', summary text default null, undo_by timestamptz default null,
  side_effect text default null, cost text default null, remedy text default null, handler text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  number bigint;
begin
  perform agentundo._check_id(invocation), agentundo._check_id(name, 'name of the effect');
  if kind is null or kind not in ('compensate', 'none', 'unknown') then
    perform agentundo._fail('22023', format('agentundo: there is no kind of effect %L', left(kind, 40)),
      'Use compensate (something can make up for it), none (it cannot be undone) or unknown.');
  end if;
  insert into agentundo._effect (invocation, name, kind, summary, undo_by, side_effect, cost, remedy, handler)
  values (record_effect.invocation, record_effect.name, record_effect.kind, record_effect.summary, record_effect.undo_by,
          record_effect.side_effect, record_effect.cost, record_effect.remedy, record_effect.handler)
  returning _effect.id into number;
  return number;
end
$body$;
comment on function agentundo.record_effect(text, text, text, text, timestamptz, text, text, text, text) is
  'Records what an invocation did outside of the database (a mail, a payment, a booking), whether anything can make up for it and until when. Shown in plans; a revert of rows does not take it back.';
