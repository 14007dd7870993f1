-- 22  Upkeep: is all well, and how long is history kept
--
-- check() looks for everything that would make a promise of ours untrue: a write that is not captured,
-- a revert that cannot act, history that cannot be trusted. It reads catalogs, changes nothing and never
-- raises. purge() deletes what is older than the retention, hold() exempts an invocation from that,
-- erase() removes one row's images for good.
--
-- Life cycle of history: written by capture, kept until purge(), which takes an invocation together
-- with its reverts and redos, because their changes have no images of their own. The record of the
-- invocation stays, marked as purged, so that it answers UN011 and not "unknown".
--
-- Locks: rows of `_invocation` by id, as everywhere; a revert of the same invocations waits.

-- Settings -----------------------------------------------------------------------------------------------

-- What is wrong with the value of a setting; null: nothing. Asked when one is written, and again by whatever reads
-- it: a dump may bring others.
create or replace function agentundo._setting_problem(name text, value text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set intervalstyle = 'postgres' as
$body$
declare
  now constant timestamptz := clock_timestamp();
begin
  if name in ('retention', 'detection_time', 'cancel_window') then
    if value::interval < '0' or now + value::interval < now - value::interval then
      return 'it must not be negative';
    end if;
  elsif name = 'radius' and value !~ '^[1-9][0-9]{0,8}$' then
    return 'it is a whole number from 1 to 999999999';
  elsif name = 'largest_undo' and value !~ '^[1-9][0-9]{0,17}( rows)?$' then
    return 'it is a number of rows such as ''5000000 rows''';
  elsif name = 'notify' and value not in ('on', 'off') then
    return 'it is on or off';
  end if;
  return case when value is null then 'it is missing' end;
exception when data_exception then
  return 'it is an interval such as ''30 days''';
end
$body$;

create or replace function agentundo._check_setting() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  problem constant text := agentundo._setting_problem(new.name, new.value);
begin
  if new.name not in ('retention', 'detection_time', 'radius', 'cancel_window', 'notify', 'largest_undo') then
    perform agentundo._fail('22023', format('agentundo: there is no setting %L', left(new.name, 40)),
      'There are retention, detection_time, radius, cancel_window, notify and largest_undo.');
  elsif problem is not null then
    perform agentundo._fail('22023', format('agentundo: the setting %s cannot be %L: %s', new.name, left(new.value, 40), problem),
      'The page sql.md of the documentation says what each setting means.');
  end if;
  return new;
end
$body$;
create or replace trigger check_value before insert or update on agentundo._setting
  for each row execute function agentundo._check_setting();

-- Health -------------------------------------------------------------------------------------------------

-- What is wrong with one tracked table.
create or replace function agentundo._problems(tracked_id int) returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  worker name := agentundo._worker();
  sync_hint text;
  reason text;
  emptied boolean;
begin
  select * into t from agentundo._tracked x where x.id = tracked_id;
  sync_hint := format('Run "select agentundo.sync(%L)".', t.name);
  if t.relation is null or not exists (select from pg_class c where c.oid = t.relation) then
    return query select 'error', t.name, 'the tracked table is gone', 'Run "select agentundo.sync()"; its history stays until purge().';
    return;
  end if;

  if not exists (select from pg_class c where c.oid = t.history) then
    return query select 'error', t.name, 'its history table is gone; captured writes fail',
      format('Run "select agentundo.untrack(%1$L, false)" and "select agentundo.track(%1$L)". What was captured is lost.', t.name);
  else
    return query
      select 'error', t.name, format('history column %s for %I is gone; captured writes fail', c.history_column, c.name),
        format('Run "select agentundo.untrack(%1$L, false)" and "select agentundo.track(%1$L)". What was captured is lost.', t.name)
      from agentundo._column c
      where c.tracked = t.id and c.until_change is null
        and not exists (select from pg_attribute a where a.attrelid = t.history and a.attname = c.history_column and not a.attisdropped);
    execute format('select not exists (select from %s) and exists (select from agentundo._change c where c.tracked = $1 and c.rows > 0
          and not exists (select from agentundo._erased e where e.tracked = $1 and e.change = coalesce(c.source, c.change)))', t.history) into emptied using t.id;
    return query
      select 'error', t.name, 'its history is empty, though changes of it are known: none of them can be undone',
        'A dump without the data of agentundo_history leaves it so. Restore a whole one, or begin anew with untrack(..., false) and track().' where emptied;
  end if;

  return query
    select 'warning', t.name, format('its history is published by %s, and subscribers cannot find its rows: column %s has no equality', string_agg(distinct p.pubname::text, ', '), min(c.name::text)),
      'A purge would stop the subscription. Publish your tables by name, without the schema agentundo_history.'
    from pg_publication_tables p
    join agentundo._column c on c.tracked = t.id
    join pg_type y on y.oid = to_regtype(c.type) and y.typcategory <> 'A' and y.typtype = 'b' and not exists (
      select from pg_opclass o join pg_am m on m.oid = o.opcmethod and m.amname in ('btree', 'hash')
      where o.opcdefault and (o.opcintype = y.oid or exists (select from pg_cast k where k.castsource = y.oid and k.casttarget = o.opcintype and k.castmethod = 'b' and k.castcontext = 'i')))
    where p.schemaname = 'agentundo_history' and to_regclass(format('agentundo_history.%I', p.tablename)) = t.history
    having count(*) > 0;

  reason := agentundo._why_not_trackable(t.relation);
  if reason is not null then
    return query select 'error', t.name, 'it could not be tracked any more: ' || reason, 'Undo that, or untrack the table.';
  end if;

  -- Every level of the tree and the triggers that it must carry.
  return query
    with level as (
      select l.relation, c.relkind, c.relowner, m.id as member, m.shape
      from (select t.relation union select agentundo._levels(t.relation, t.kind)) l (relation)
      join pg_class c on c.oid = l.relation
      left join agentundo._member m on m.relation = l.relation and m.tracked = t.id),
    wanted as (
      select l.*, w.name, case w.function when '' then '_capture_' || l.member else w.function end as function
      from level l
      join (values ('agentundo_insert', '', 'statement'), ('agentundo_update', '', 'statement'), ('agentundo_delete', '', 'statement'),
                   ('agentundo_row', '', 'row'), ('agentundo_truncate', '_capture_truncate', 'any'),
                   ('agentundo_unknown', '_unknown_partition', 'root')) w (name, function, where_wanted)
        on w.where_wanted = 'any' or w.where_wanted = case when t.kind = 'inherited' then 'row' else 'statement' end
        or w.where_wanted = 'root' and l.relkind = 'p' and l.relation = t.relation
      where l.member is not null)
    select 'error', agentundo._name(l.relation), 'it is part of a tracked table but is not captured itself', sync_hint
    from level l where l.member is null
    union all
    select 'error', agentundo._name(l.relation), 'its columns changed since; captured writes are refused', sync_hint
    from level l where l.shape <> agentundo._shape(l.relation)
    union all
    select 'error', agentundo._name(l.relation), 'nothing of ours acts for its owner, who may have changed',
      format('As the owner or a superuser run "select agentundo.track(%L)" again.', t.name)
    from level l where agentundo._deputy(l.relation) is null
    union all
    select 'error', agentundo._name(l.relation), format('%s lacks rights on it; captured writes cannot be taken back', worker), sync_hint
    from level l
    where not (has_table_privilege(worker, l.relation, 'select') and has_table_privilege(worker, l.relation, 'insert')
      and has_table_privilege(worker, l.relation, 'update') and has_table_privilege(worker, l.relation, 'delete')
      and has_schema_privilege(worker, (select c.relnamespace from pg_class c where c.oid = l.relation), 'usage'))
    union all
    select 'error', agentundo._name(w.relation),
      case when g.oid is null then format('trigger %s is missing; writes are not captured', w.name)
           when p.proname is distinct from w.function then format('trigger %s calls another function than %s', w.name, w.function)
           when g.tgenabled = 'D' then format('trigger %s is disabled; writes are not captured', w.name)
           else format('trigger %s is not ENABLE ALWAYS; writes under session_replication_role = replica are not captured', w.name) end,
      sync_hint
    from wanted w
    left join pg_trigger g on g.tgrelid = w.relation and g.tgname = w.name
    left join pg_proc p on p.oid = g.tgfoid and p.pronamespace = 'agentundo'::regnamespace
    where g.oid is null or g.tgenabled <> 'A' or p.proname is distinct from w.function
    union all
    select 'error', agentundo._name(m.relation), 'it left its tracked table but still carries our triggers', sync_hint
    from agentundo._member m
    where m.tracked = t.id and m.relation not in (select l.relation from level l) and exists (select from pg_class c where c.oid = m.relation)
    union all
    -- What foreign keys do to rows of tables that nobody can bring back.
    select 'warning', agentundo._name(f.conrelid),
      format('it is not tracked, but rows of it are deleted or changed together with rows of %s (foreign key %I); that cannot be undone', t.name, f.conname),
      format('Run "select agentundo.track(%L)".', agentundo._name(f.conrelid))
    from pg_constraint f
    where f.contype = 'f' and f.conparentid = 0 and f.confrelid in (select l.relation from level l)
      and (f.confdeltype in ('c', 'n', 'd') or f.confupdtype in ('c', 'n', 'd'))
      and not exists (select from agentundo._tracked x where x.active and x.relation in (f.conrelid, agentundo._root(f.conrelid)))
    union all
    select case when p.prosrc ~* '\m(insert\s+into|update|delete\s+from|merge\s+into|truncate|notify|pg_notify|dblink\w*|http\w*)\M' then 'warning' else 'info' end,
      agentundo._name(g.tgrelid),
      format('trigger %I does not fire for rows that a revert restores', g.tgname)
        || case when p.prosrc ~* '\m(insert\s+into|update|delete\s+from|merge\s+into|truncate|notify|pg_notify|dblink\w*|http\w*)\M'
                then format('; %s seems to write elsewhere: what it wrote goes back only if that table is tracked', p.oid::regprocedure) else '' end,
      format('If it must fire: "select agentundo.set_trigger(%L, %L, ''fire'')"; ''silence'' says that it is meant.', agentundo._name(g.tgrelid), g.tgname)
    from level l
    join agentundo._users_triggers g on g.tgrelid = l.relation and g.tgparentid = 0 and g.tgenabled <> 'D'
    join pg_proc p on p.oid = g.tgfoid
    where not exists (select from agentundo._trigger_rule r where r.tracked = t.id and r.trigger = g.tgname)
    union all
    select 'warning', agentundo._name(l.relation), 'it is unlogged: a crash empties it, and its history will not match', 'Use "alter table ... set logged".'
    from level l join pg_class c on c.oid = l.relation where c.relpersistence = 'u'
    union all
    select 'warning', agentundo._name(l.relation), 'it is fed by logical replication, whose changes are not captured', 'Only writes made in this database can be taken back.'
    from level l where exists (select from pg_subscription_rel s where s.srrelid = l.relation);

  if (select b.columns from agentundo._best_key(t.relation) b) is null then
    return query select 'warning', t.name, 'it has no primary key and no unique key over NOT NULL columns: rows are told apart by all their values',
      'Add a primary key: undo gets faster, and columns can be merged.';
  end if;
end
$body$;

-- One word on a tracked table for the view: 'ok', or the worst that check() says.
create or replace function agentundo._health(tracked_id int) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return coalesce(
    (select case when p.object = t.name then '' else p.object || ': ' end || p.problem
     from agentundo._problems(tracked_id) p join agentundo._tracked t on t.id = tracked_id
     where p.severity <> 'info' order by p.severity limit 1), 'ok');
exception when others then
  return 'could not be checked: ' || sqlerrm;
end
$body$;

create or replace view agentundo.tracked as
select n.relation, t.capture, t.history::text as history,
  array(select coalesce(a.attname, c.name)::text
        from unnest(t.key_columns) with ordinality k (attnum, place)
        left join pg_catalog.pg_attribute a on a.attrelid = t.relation and a.attnum = k.attnum
        left join agentundo._column c on c.tracked = t.id and c.attnum = k.attnum and c.until_change is null
        order by k.place) as key,
  t.since,
  (select case when h.reltuples >= 0 then h.reltuples::bigint end from pg_catalog.pg_class h where h.oid = t.history) as rows,
  pg_catalog.pg_total_relation_size(t.history) as bytes,
  agentundo._health(t.id) as health
from agentundo._tracked t
join agentundo._names n on n.tracked = t.id
where t.active;
comment on view agentundo.tracked is
  'The tracked tables: how they are captured, where their history lies, how many row images it holds (an estimate, null before the first ANALYZE) and how large it is, and whether check() has complaints. Reading it changes nothing.';

-- What is wrong with the installation as a whole.
create or replace function agentundo._general_problems() returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  ours oid := (select nspowner from pg_namespace where nspname = 'agentundo');
begin
  return query
    select 'error', 'agentundo', 'this database is a logical copy: row versions mean nothing here, images are compared instead', 'Run "select agentundo.sync()".'
    where agentundo._is_copy()
    union all
    select 'error', s.sequence::text, format('the sequence is behind %s, which is in use', s.reached), 'Run "select agentundo.sync()": logical replication copies no sequences.'
    from agentundo._late_sequences() s
    union all
    select 'error', 'agentundo', format('history is kept for %s, not longer than it takes to find a mistake (%s)', r.value, d.value),
      'Raise the setting retention, or lower detection_time, in agentundo._setting.'
    from agentundo._setting r join agentundo._setting d on d.name = 'detection_time'
    where r.name = 'retention' and agentundo._age('retention') <= agentundo._age('detection_time')
    union all
    select 'error', 'agentundo', format('the setting %s is %s: %s', w.name, coalesce(quote_literal(left(s.value, 40)), 'gone'), agentundo._setting_problem(w.name, s.value)),
      format('Write another value into agentundo._setting; at first it was %L.', w.value)
    from (values ('retention', '30 days'), ('detection_time', '7 days'), ('radius', '50'), ('cancel_window', '900 s'),
                 ('notify', 'on'), ('largest_undo', '5000000 rows')) w (name, value)
    left join agentundo._setting s on s.name = w.name
    where agentundo._setting_problem(w.name, s.value) is not null
    union all
    select 'warning', 'agentundo', format('its objects belong to the superuser %s: a revert runs other people''s constraints as superuser', rolname),
      'Create the role agentundo_owner and install again, or own them by a role without SUPERUSER.'
    from pg_roles where oid = ours and rolsuper
    union all
    select distinct 'error', agentundo._name(g.tgrelid), 'it carries triggers of ours but is not tracked here: a dump has brought them; captured writes are refused',
      format('As its owner run "select agentundo.track(%L)", or drop its triggers agentundo_*.', g.tgrelid::regclass)
    from pg_trigger g join pg_proc p on p.oid = g.tgfoid and p.pronamespace = 'agentundo'::regnamespace
    where g.tgname like 'agentundo\_%' and g.tgparentid = 0 and not exists (select from agentundo._member m where m.relation = g.tgrelid)
    union all
    select 'error', format('agentundo.%I', a), 'somebody has altered it or let others call it; undos are refused',
      'Code in a constraint of a tracked table may have done it: find out whose. "agentundo upgrade" makes the function anew.'
    from agentundo._altered() a
    union all
    select 'error', 'agentundo_history', format('%s may create objects in it, and could pretend that they are ours', a.grantee::regrole),
      format('Run "revoke create on schema agentundo_history from %s".', a.grantee::regrole)
    from pg_namespace n cross join lateral aclexplode(n.nspacl) a
    where n.nspname in ('agentundo', 'agentundo_history') and a.privilege_type = 'CREATE' and a.grantee not in (n.nspowner, 0)
    union all
    select 'warning', m.rolname::text, 'it is a superuser and a member of agentundo_agent: it can switch capture off', 'Let the agent use a role without SUPERUSER.'
    from pg_roles m where m.rolsuper and agentundo._in_role(m.rolname, 'agentundo_agent')
    union all
    select 'info', e.name, 'there is no such event trigger: ALTER, new partitions and new tables are followed only by sync()',
      'A superuser can add it with "agentundo upgrade"; without it run "select agentundo.sync()" after every migration.'
    from (values ('agentundo_ddl'), ('agentundo_drop')) e (name)
    where not exists (select from pg_event_trigger g where g.evtname = e.name and g.evtenabled <> 'D')
    union all
    select 'error', format('%I.%I', n.nspname, c.relname), format('it lies in schema %I, which is to be tracked, but is not', n.nspname),
      format('Run "select agentundo.track(%L)".', format('%I.%I', n.nspname, c.relname))
    from agentundo._awaited() w join pg_class c on c.oid = w.relation join pg_namespace n on n.oid = c.relnamespace;
end
$body$;

create or replace function agentundo.check() returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  begin
    return query select * from agentundo._general_problems() p order by p.severity, p.object, p.problem;
  exception when others then
    return query select 'error', 'agentundo', 'could not be checked: ' || sqlerrm, 'This should not happen; please report it.';
  end;
  for t in select * from agentundo._tracked x where x.active order by x.name loop
    begin
      return query select * from agentundo._problems(t.id) p order by p.severity, p.object, p.problem;
    exception when others then
      return query select 'error', t.name, 'could not be checked: ' || sqlerrm, 'Run "select agentundo.sync()", then check again.';
    end;
  end loop;
end
$body$;
comment on function agentundo.check() is
  'Everything that makes a promise untrue, with what to do about it: writes that would not be captured, reverts that could not act. No row of severity error means that tagged writes to tracked tables can be taken back. Changes nothing, never fails.';

-- Retention ----------------------------------------------------------------------------------------------

-- Which invocations may go: all they wrote is older than the limit, and nobody holds them. An
-- invocation goes together with what took it back and what that took back: so of two that belong
-- together, none goes alone. `among`: of no others.
create or replace function agentundo._purgeable(older_than timestamptz, among text[] default null) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  doomed text[];
  spared text[];
begin
  select coalesce(array_agg(c.invocation), '{}') into doomed
    from (select x.invocation from agentundo._change x where x.invocation is not null group by x.invocation having max(x.at) < older_than) c
    left join agentundo._invocation i on i.id = c.invocation
   where i.held is null and (among is null or c.invocation = any (among));
  loop
    with doomed_one as materialized (select d as id from unnest(doomed) d),
    pair as (
      select v.id as one, u as other from agentundo._revert v cross join lateral unnest(v.invocations) u
      union
      select c.invocation, s.invocation from agentundo._change c join agentundo._change s on s.change = c.source),
    mutual as (select one, other from pair union select other, one from pair)
    select coalesce(array_agg(distinct m.one), '{}') into spared
      from mutual m
     where m.one in (select d.id from doomed_one d) and m.other not in (select d.id from doomed_one d)
       and exists (select from agentundo._change c where c.invocation = m.other);
    exit when spared = '{}';
    doomed := array(select d from unnest(doomed) d left join unnest(spared) s on s = d where s is null);
  end loop;
  return doomed;
end
$body$;

-- An interval as people write it: 1 minute 30 seconds, not 00:01:30.
create or replace function agentundo._in_words(age interval) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(string_agg(format('%s %s%s', p.n, p.unit, case when abs(p.n) <> 1 then 's' end), ' ' order by p.place), '0 seconds')
  from (values
    (1, extract(year from age), 'year'), (2, extract(month from age), 'month'), (3, extract(day from age), 'day'),
    (4, extract(hour from age), 'hour'), (5, extract(minute from age), 'minute'), (6, trim_scale(extract(second from age)), 'second')) p (place, n, unit)
  where p.n <> 0
$body$;

create or replace function agentundo.purge(older_than interval default null) returns agentundo.purge_count
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  age interval := coalesce(older_than, agentundo._age('retention'));
  before timestamptz := clock_timestamp() - age;
  locked text[];
  doomed text[];
  old bigint[];
  t agentundo._tracked;
  gone agentundo.purge_count;
  number bigint;
begin
  perform agentundo._require_operator('purge');
  perform agentundo._require_fresh_snapshots('purge');
  if age is null or age < interval '0' then
    perform agentundo._fail('22023', case when age is null then 'agentundo: the setting retention is not an age' else format('agentundo: %s is not an age', agentundo._in_words(age)) end,
      'Give an interval such as ''30 days''.');
  end if;
  -- Locked first, then looked at again: a revert or a hold may have come in between. What is written under one of
  -- these ids from now on stays.
  locked := agentundo._lock_invocations(agentundo._purgeable(before));
  select p.doomed, array(select c.change from agentundo._change c where c.invocation = any (p.doomed) or c.invocation is null and c.at < before)
    into doomed, old from (select agentundo._purgeable(before, coalesce(locked, '{}')) as doomed offset 0) p;

  gone := row(cardinality(doomed), 0, 0);
  for t in select * from agentundo._tracked x order by x.id loop
    continue when not exists (select from pg_class where oid = t.history);
    execute format('delete from %s h using unnest($1) o (change) where o.change = h._change', t.history) using old;
    get diagnostics number = row_count;
    gone.images := gone.images + number;
  end loop;
  delete from agentundo._erased e using unnest(old) o (change) where o.change = e.change;
  delete from agentundo._reverted r using unnest(old) o (change) where o.change = r.change;
  delete from agentundo._change c using unnest(old) o (change) where o.change = c.change;
  get diagnostics gone.changes = row_count;
  update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (doomed);  -- who has an older snapshot fails (40001)
  doomed := array(select d from unnest(doomed) d where not exists (select from agentundo._change c where c.invocation = d));
  gone.invocations := cardinality(doomed);
  delete from agentundo._effect e where e.invocation = any (doomed);
  update agentundo._invocation i set purged_at = clock_timestamp() where i.id = any (doomed);
  if gone.changes > 0 then
    perform agentundo._emit('history_purged', null, to_jsonb(gone) || jsonb_build_object('before', before));
  end if;
  return gone;
end
$body$;
comment on function agentundo.purge(interval) is
  'Deletes history older than an age (default: the setting retention) for good: those invocations can no longer be undone and answer UN011. Spares what is held. Touches no table of yours.';

-- What these decide must be what is: an old snapshot would not show a revert made meanwhile, nor what the table is now.
create or replace function agentundo._require_fresh_snapshots(what text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform agentundo._fail('25001', format('agentundo: %s does not run under %s', what, upper(current_setting('transaction_isolation'))),
      'Run it in a READ COMMITTED transaction.');
  end if;
end
$body$;

create or replace function agentundo.hold(invocation text, reason text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  release constant boolean := coalesce(reason, '') = '';
begin
  perform agentundo._require_operator('hold invocations');
  perform agentundo._require_known(array[invocation], null);
  perform agentundo._lock_invocations(array[invocation]);
  if release and exists (select from agentundo._invocation i where i.id = hold.invocation and i.purged_at is null and i.held is null) then
    return 0;  -- nothing held it: nothing has happened
  end if;
  update agentundo._invocation i set held = nullif(hold.reason, '') where i.id = hold.invocation and i.purged_at is null;
  if not found then  -- purged while we waited
    perform agentundo._require_known(array[invocation], null);
  end if;
  perform agentundo._emit(case when release then 'hold_released' else 'invocation_held' end, invocation, jsonb_build_object('reason', reason));
  return (select count(*) from agentundo._change c where c.invocation = hold.invocation);
end
$body$;
comment on function agentundo.hold(text, text) is
  'Exempts an invocation, with its reverts, from purge(), for a reason that is kept; null as the reason releases it. Returns how many changes that concerns, 0 when what is released was not held. Changes none of your rows.';

-- Under which ids these changes were made, or restored.
create or replace function agentundo._made_under(changes bigint[]) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select array(
    select distinct c.invocation from agentundo._change c where (c.change = any (changes) or c.source = any (changes)) and c.invocation is not null)
$body$;

create or replace function agentundo.erase(relation regclass, key jsonb, reason text) returns agentundo.erase_count
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
  waits constant text := current_setting('lock_timeout');
  patience constant interval := case when waits = '0' then interval '60 s' else waits::interval end;
  began constant timestamptz := clock_timestamp();
  look text;
  changes bigint[];
  images tid[];
  ids text[];
  gone agentundo.erase_count := row(0, 0);
begin
  perform agentundo._require_operator('erase');
  perform agentundo._require_fresh_snapshots('erase');
  perform agentundo._check_key(t, key);
  if coalesce(reason, '') = '' then
    perform agentundo._fail('22023', 'agentundo: an erasure needs a reason', 'Say why, for example the number of the request.');
  end if;
  look := format('select array_agg(distinct h._change), array_agg(h.ctid) from %s h where %s', agentundo._history(t), agentundo._match_sql(t.id, 'h', 'history', '$1'));
  -- Invocations first, as everybody locks them: no revert may be acting on an image that goes. Then no capture may
  -- write to this history. Who has to wait for long lets go of everything and tries again.
  loop
    begin
      perform set_config('lock_timeout', agentundo._short_wait(), true);
      execute look into changes, images using key;
      ids := agentundo._made_under(changes);
      perform agentundo._lock_invocations(ids);
      execute format('lock table %s in share row exclusive mode', t.history);
      execute look into changes, images using key;
      exit when agentundo._made_under(changes) <@ ids;
      raise exception using errcode = 'UNR01';  -- somebody has written the row meanwhile
    exception when lock_not_available or deadlock_detected or sqlstate 'UNR01' then
      if clock_timestamp() > began + patience then
        raise exception using errcode = '55P03', message = format('agentundo: somebody writes to %s, or undoes it, for longer than %s', t.name, patience),
          hint = 'End the transaction that does (see pg_stat_activity and pg_blocking_pids), then call erase again. A higher lock_timeout makes it wait longer.';
      end if;
      perform agentundo._past_vacuum(array[t.history]);
    end;
    perform pg_sleep(0.05 + random() * 0.2);
  end loop;
  perform set_config('lock_timeout', waits, true);

  execute format('delete from %s where ctid = any ($1)', t.history) using images;
  get diagnostics gone.images = row_count;
  insert into agentundo._erased (tracked, change, key, reason)
    select t.id, c, encode(sha256(convert_to(erase.key::text, 'UTF8')), 'hex'), erase.reason from unnest(changes) c
  on conflict do nothing;
  update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (ids);  -- who has an older snapshot fails (40001)
  update agentundo._invocation i set input = null, result = null, error = null
   where i.id = any (ids) and (i.input is not null or i.result is not null or i.error is not null);
  get diagnostics gone.inputs = row_count;
  perform agentundo._emit('row_erased', null, jsonb_build_object('relation', t.name, 'reason', reason) || to_jsonb(gone));
  return gone;
end
$body$;
comment on function agentundo.erase(regclass, jsonb, text) is
  'Deletes every captured image of one row for good, and input, result and error of the invocations that touched it; those invocations can no longer take this row back. Erase each key that the row ever had. The row itself in your table stays: delete that yourself.';
