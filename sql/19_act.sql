-- 19  Act: one attempt to do what a plan says
--
-- Lock, then look, then act:
--   1. the tables, by oid: ROW EXCLUSIVE keeps ALTER out; SHARE ROW EXCLUSIVE where triggers of the
--      user must be switched off;
--   2. the turn in each table, then the current rows of all keys that the set touched, in their order;
--   3. the plan, decided again, now that nothing of it can move;
--   4. our own changes are written down, in the same subtransaction as the rows: the row version holds
--      for them too;
--   5. one statement for all tables (as agentundo_worker, see 11_guard.sql);
--   6. what capture saw of it is compared with the plan: anything more (a cascade) rolls back.
--
-- It runs in a subtransaction of its caller (20_revert.sql), so every error leaves nothing behind.

-- What the plan does, in numbers: for each table (by its id) the rows that it deletes, updates and inserts. In
-- the tables `replace` an update is a delete and an insert.
create or replace function agentundo._tally(d agentundo._decision[], replace int[]) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(jsonb_object_agg(t.tracked, t.operations), '{}')
  from (
    select o.tracked, jsonb_object_agg(o.operation, o.n) as operations
    from (
      select x.tracked, o.operation, count(*) as n
      from unnest(d) x
      cross join lateral unnest(case
        when x.action = 'update' and (x.tracked = any (replace) or coalesce(x.detail ? 'replace', false)) then array['D', 'I']
        else array[upper(left(x.action, 1))] end) o (operation)
      where x.status in ('ok', 'merge') and x.action <> 'none'
      group by x.tracked, o.operation) o
    group by o.tracked) t
$body$;

-- The user's triggers that would fire for that: they did their work when the rows were written first, and
-- must not do it again for rows that go back. `fire` rules except single ones. A foreign key that acts runs
-- a statement on the tables that point here, although it finds no row there: their statement triggers.
create or replace function agentundo._to_silence(tally jsonb)
returns table (relation regclass, trigger name, state "char")
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with work as (
    select t.id, t.relation, t.kind, (w.operations ? 'I')::int * 4 + (w.operations ? 'D')::int * 8 + (w.operations ? 'U')::int * 16 as events, false as acted_upon
    from jsonb_each(tally) w (tracked, operations) join agentundo._tracked t on t.id = w.tracked::int),
  acted_upon as (
    select c.id, c.relation, c.kind, 8 + 16, true
    from work w
    join pg_constraint k on k.contype = 'f' and k.confrelid in (select agentundo._levels(w.relation, w.kind))
     and (w.events & 8 <> 0 and k.confdeltype in ('c', 'n', 'd') or w.events & 16 <> 0 and k.confupdtype in ('c', 'n', 'd'))
    join agentundo._tracked c on c.id = agentundo._tracked_of(k.conrelid) and c.active)
  select distinct m.relation, g.tgname, g.tgenabled
  from (select * from work union select * from acted_upon) w
  cross join lateral agentundo._levels(w.relation, w.kind) m (relation)
  join agentundo._users_triggers g on g.tgrelid = m.relation and g.tgenabled <> 'D'
  where g.tgtype & w.events <> 0 and not (w.acted_upon and g.tgtype & 1 <> 0)
    and not exists (select from agentundo._trigger_rule r where r.tracked = w.id and r.trigger = g.tgname and r.rule = 'fire')
    and not (g.tgenabled = 'R' and current_setting('session_replication_role') <> 'replica')
  order by m.relation, g.tgname
$body$;

-- The relations on which there may be any: of these tables, and those that point at them.
create or replace function agentundo._with_triggers(tables int[]) returns setof regclass
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select distinct g.tgrelid::regclass
  from agentundo._tracked x
  cross join lateral agentundo._levels(x.relation, x.kind) m
  join agentundo._users_triggers g on g.tgrelid = m or g.tgrelid in (select k.conrelid from pg_constraint k where k.contype = 'f' and k.confrelid = m)
  where x.id = any (tables)
$body$;

-- Switches them off and says what there was. Only on tables that are locked for it (`strong`).
create or replace function agentundo._silence(tally jsonb, strong regclass[]) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  silent record;
  silenced jsonb := jsonb_build_array();
begin
  for silent in select * from agentundo._to_silence(tally) loop
    if silent.relation <> all (strong) then
      raise exception using errcode = '55P03', message = 'agentundo: the work changed while it was being locked';
    end if;
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger::text, 'D');
    silenced := silenced || jsonb_build_array(to_jsonb(silent));
  end loop;
  return silenced;
end
$body$;

-- Gives each trigger exactly the state that it had: O, A or R.
create or replace function agentundo._rearm(silenced jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  silent record;
begin
  for silent in select * from jsonb_to_recordset(silenced) x (relation regclass, trigger text, state text) loop
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger, silent.state);
  end loop;
end
$body$;

-- SHARE ROW EXCLUSIVE on the relations `strong`, EXCLUSIVE on those `apart`, else ROW EXCLUSIVE. The root before its
-- partitions, as everybody locks them who alters either; and which those are is asked under its lock.
create or replace function agentundo._lock_tables(tracked_ids int[], strong regclass[], apart int[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t record;
  level regclass;
  within regclass[];
begin
  for t in
    select x.root, bool_or(x.whole) as whole, bool_or(x.apart) as apart
    from (
      select g.relation, true, g.id = any (_lock_tables.apart) from agentundo._tracked g where g.id = any (tracked_ids)
      union all
      select agentundo._root(u), false, false from unnest(strong) u) x (root, whole, apart)
    join pg_class c on c.oid = x.root
    group by x.root order by x.root
  loop
    within := array[t.root];
    loop
      foreach level in array within loop
        execute format('lock table only %s in %s mode', level,
          case when t.apart then 'exclusive' when level = any (strong) then 'share row exclusive' else 'row exclusive' end);
      end loop;
      exit when within <> array[t.root];
      within := array(
        select m from agentundo._tree(t.root) m join pg_class c on c.oid = m
        where c.relkind in ('r', 'p') and m <> t.root and (t.whole or m = any (strong)) order by m);
      exit when within = '{}';
    end loop;
  end loop;
end
$body$;

-- Is there a column that history does not know yet?
create or replace function agentundo._is_behind(tables int[]) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from agentundo._tracked t join pg_class r on r.oid = t.relation cross join lateral agentundo._columns(t.id) c
    where t.id = any (tables) and t.active and c.history_column is null)
$body$;

-- History must know the tables as they are now, or our own changes would lack a column.
create or replace function agentundo._follow(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  for t in select x.* from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = any (tables) and x.active loop
    if agentundo._is_behind(array[t.id])
      or exists (select from agentundo._out_of_reach(t.relation, agentundo._worker())) then
      perform agentundo._sync(t.id);
    end if;
  end loop;
end
$body$;

-- An absent row cannot be locked: two undos side by side could each believe what the other is about to change.
-- So undos go one after the other in each table; one that began with an older snapshot is told to begin anew
-- (40001). A row that is made and deleted meanwhile by somebody else is looked for by _require_absent().
create or replace function agentundo._take_turn(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  one int;
begin
  foreach one in array tables loop
    insert into agentundo._turn as x (tracked) values (one) on conflict (tracked) do update set turn = x.turn + 1;
  end loop;
end
$body$;

-- The current rows of every key that these changes touched. FOR UPDATE where the row may go, lose a key
-- or is pointed at, so that nobody adds a dependent in between; else the weaker lock of a plain update.
create or replace function agentundo._lock_rows(tracked_id int, changes bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  equal text;
  weak boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id;
  equal := agentundo._has_key(tracked_id, 'r', 'k');
  if equal is null then
    return;  -- without a key rows are found by what they say, and locked when they are acted on
  end if;
  weak := not exists (select from pg_constraint c where c.contype = 'f' and c.confrelid in (select agentundo._levels(t.relation, t.kind)))
    and not exists (select from agentundo._change c where c.change = any (changes) and c.tracked = tracked_id and c.operation <> 'U');
  perform agentundo._act(format($sql$
    select array[count(*)] from (
      select from (
        select distinct %1$s from %2$s h where h._change = any (%7$L::bigint[])) k
      join %3$s r on %4$s
      order by %5$s for %6$s of r) locked$sql$,
    agentundo._key_list(tracked_id, 'h'), agentundo._history(t), agentundo._from(t), equal, agentundo._key_list(tracked_id, 'k'), case when weak then 'no key update' else 'update' end,
    array(select distinct coalesce(c.source, c.change) from agentundo._change c where c.change = any (changes) and c.tracked = t.id)));
end
$body$;

-- Rows that are to be written and that we have not locked: without a key they are found only by what they say; at a key
-- somebody may have made one since we locked what was there. `lock_of` is the transaction of our locks. Tells whether
-- others may refer to any: what depends on them has to be looked for again.
create or replace function agentundo._lock_found(d agentundo._decision[], lock_of bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t record;
  referred boolean := false;
  unlocked bigint;
  locked bigint[];
begin
  for t in
    select g.*, exists (select from agentundo._key(g.id)) as keyed, agentundo._from(g) as source,
      exists (select from pg_constraint c where c.contype = 'f' and c.confrelid in (select agentundo._levels(g.relation, g.kind))) as referred
    from agentundo._tracked g
    where g.id in (select x.tracked from unnest(d) x where x.cur is not null and x.status in ('ok', 'merge') and x.action <> 'none')
    order by g.relation::oid
  loop
    continue when t.keyed and not t.referred;  -- whoever changes the row still, we shall not find it as it was
    if t.keyed then
      select found.n into unlocked from agentundo._look(format($sql$
        select count(*)
        from unnest($1) x join lateral (select r.xmax from %s r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
        where x.tracked = %s and x.status in ('ok', 'merge') and x.action <> 'none' and r.xmax::text::bigint <> %s$sql$, t.source, t.id, lock_of), null, d) as found (n bigint);
      continue when unlocked = 0;
    end if;
    locked := agentundo._act(format($sql$
      select array[count(*)] from (
        select from %s r join unnest($1) x on r.ctid = x.cur and r.tableoid = x.part
        where x.tracked = %s and x.status in ('ok', 'merge') and x.action <> 'none'
        order by x.part, x.cur for update of r) locked$sql$, t.source, t.id), d);
    if locked <> array(select count(*) from unnest(d) x where x.tracked = t.id and x.cur is not null and x.status in ('ok', 'merge') and x.action <> 'none') then
      raise exception using errcode = '55P03', message = 'agentundo: a row changed before it was locked';
    end if;
    referred := referred or t.referred;
  end loop;
  return referred;
end
$body$;

-- Whoever waits for us may look for a deadlock after deadlock_timeout. From shortly before on we wait for nobody.
create or replace function agentundo._hurry(since timestamptz) returns void
language sql set search_path = pg_catalog, pg_temp as
$body$
  select set_config('lock_timeout', '1ms', true) where clock_timestamp() > since + current_setting('deadlock_timeout')::interval * 0.6
$body$;

-- The statement that restores one table, as CTEs that start with `name`: under the search_path of its owner, as
-- its constraints expect, first what goes, then what changes, then what comes, each waiting for the one before, so
-- that a unique value is free when it is needed; all of it after the table `earlier`, also where there is nothing
-- to do in one of the three. With `replace` updates become delete and insert, for values that go round in a circle. Only what
-- there is to do stands in it: a statement that finds no row fires statement triggers all the same.
create or replace function agentundo._restore_sql(t agentundo._tracked, name text, earlier text, operations jsonb, replace boolean) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  set_list text; column_list text; value_list text;
  out_and_in text := case when replace then 'true' else 'coalesce(d.detail ? ''replace'', false)' end;
begin
  select string_agg(format('%I = %s', c.name, c.value), ', ' order by c.attnum) filter (where c.identity <> 'a'),
         string_agg(quote_ident(c.name), ', ' order by c.attnum),
         string_agg(c.value, ', ' order by c.attnum)
    into set_list, column_list, value_list
    from agentundo._target_columns(t.id) c;
  return agentundo._fill($sql$
    {{name}}_path as materialized (select set_config('search_path', {{path}}, true) where {{turn}}),
    {{name}}_work as materialized (select x.* from {{name}}_path, unnest($1) x where x.tracked = {{id}} and x.status in ('ok', 'merge') and x.action <> 'none'),
    {{name}}_gone as ({{gone}}),
    {{name}}_back as ({{back}}),
    {{name}}_here as ({{here}})$sql$, jsonb_build_object('name', name, 'id', t.id,
    'path', quote_literal(agentundo._users_path(t.relation)), 'turn', coalesce('(select count(*) from ' || earlier || '_here) >= 0', 'true'),
    'gone', case when not operations ? 'D' then format('select 1 where (select count(*) from %s_work) < 0', name) else format($sql$
      delete from %1$s r using %2$s_work d
      where (d.action = 'delete' or d.action = 'update' and %3$s) and r.ctid = d.cur and r.tableoid = d.part returning 1$sql$,
      agentundo._from(t), name, out_and_in) end,
    'back', case when not operations ? 'U' or set_list is null then format('select 1 where (select count(*) from %s_gone) < 0', name) else format($sql$
      update %1$s r set %2$s
      from %5$s_work d join lateral (select * from %3$s h where h.ctid = d.before offset 0) b on true
      where d.action = 'update' and not %4$s and r.ctid = d.cur and r.tableoid = d.part
        and (select count(*) from %5$s_gone) >= 0 returning 1$sql$, agentundo._from(t), set_list, t.history, out_and_in, name) end,
    'here', case when not operations ? 'I' then format('select 1 where (select count(*) from %s_back) < 0', name) else format($sql$
      insert into %1$s (%2$s) overriding system value
      select %3$s
      from %7$s_work d
      join lateral (select * from %4$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %5$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where (d.action = 'insert' or d.action = 'update' and %6$s)
        and (select count(*) from %7$s_back) >= 0 returning 1$sql$,
      t.relation, column_list, value_list, t.history, agentundo._from(t), out_and_in, name) end));
end
$body$;

-- A key that cascades on UPDATE sets again what the plan has set already, where a referenced value was
-- only written differently (1.0, 1.00). Harmless if no other row was touched and each is as planned.
create or replace function agentundo._only_planned(tracked_id int, d agentundo._decision[], revert_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  as_planned boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id;
  select * into as_planned from agentundo._look(format($sql$
    with written as materialized (
      select r.* from %1$s r where r.xmin = (select c.xmin from agentundo._change c where c.invocation = %5$L limit 1)),
    planned as (
      select d.place, d.status, exists (
          select from %2$s h join written r on %3$s operator(pg_catalog.*=) %4$s where h.ctid = d.before) as arrived
      from unnest($1) d
      where d.tracked = %6$s and d.status in ('ok', 'merge') and d.action in ('insert', 'update'))
    select (select count(*) from written) = (select count(*) from planned) and (select coalesce(bool_and(arrived and status = 'ok'), true) from planned)$sql$,
    agentundo._from(t), t.history, agentundo._image_row(t.id, 'h', 'd.before_change', 'r'), agentundo._table_row(t.id, 'r'), revert_id, t.id),
    null, d) as found (as_planned boolean);
  return as_planned;
end
$body$;

-- Deferrable constraints of the tables, and of those that point at them, are checked now, not at COMMIT
-- when nobody could tell any more which revert broke them; those of each table under the search_path of its
-- owner, as deferred triggers of the user's run now. Those deferred by nature are deferred again.
create or replace function agentundo._settle(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  one record;
begin
  for one in
    select c.conrelid::regclass as relation, string_agg(format('%s.%I', c.connamespace::regnamespace, c.conname), ', ') as names,
      string_agg(format('%s.%I', c.connamespace::regnamespace, c.conname), ', ') filter (where c.condeferred) as deferred
    from pg_constraint c
    where c.condeferrable
      and exists (select from agentundo._tracked t cross join lateral agentundo._levels(t.relation, t.kind) m
                  where t.id = any (tables) and m in (c.conrelid, c.confrelid))
    group by c.conrelid order by c.conrelid
  loop
    perform agentundo._act('set constraints ' || one.names || ' immediate', path => agentundo._users_path(one.relation));
    if one.deferred is not null then
      execute 'set constraints ' || one.deferred || ' deferred';
    end if;
  end loop;
end
$body$;

-- The changes that a revert makes. Where a whole change goes back as it came, its images are there
-- already: one row that refers to them, inverted. What is left (chains, merges, forced rows) is stored.
create or replace function agentundo._record_changes(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  whole bigint[];
  kind record;
  number bigint;
  columns_sql text; types_sql text; current_sql text; target_sql text; back_sql text;
  work agentundo._decision[];
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') loop
    whole := array(
      select c.change
      from agentundo._change c
      join lateral (
        select count(x.before_change) filter (where x.before_change = c.change) as olds,
               count(x.after_change) filter (where x.after_change = c.change) as news,
               bool_and(x.status = 'ok' and x.basis = 'version' and not coalesce(x.detail ?| array['forced', 'segments'], false)
                 and coalesce(x.before_change, c.change) = c.change and coalesce(x.after_change, c.change) = c.change) as straight
        from unnest(d) x where x.tracked = t.id and c.change in (x.before_change, x.after_change)) x on x.straight
      where c.tracked = t.id
        and c.change in (select y.before_change from unnest(d) y where y.tracked = t.id union select y.after_change from unnest(d) y where y.tracked = t.id)
        and x.olds = case when c.operation = 'I' then 0 else c.rows end
        and x.news = case when c.operation in ('D', 'T') then 0 else c.rows end
        and not exists (select from agentundo._columns(t.id) k where k.since_change > 0 and (k.live or k.until_change is not null))
        and not exists (select from agentundo._columns(t.id) k where agentundo._renamed_labels(t.id, k.attnum)));
    insert into agentundo._change (source, inverted, tracked, relation, filenode, rows, depth, operation, invocation, application, tool)
      select coalesce(c.source, c.change), not c.inverted, c.tracked, c.relation, pg_relation_filenode(c.relation), c.rows, 0,
        case c.operation when 'I' then 'D' when 'U' then 'U' else 'I' end::"char", revert_id, current_setting('application_name'), agentundo._setting('agent.tool')
      from agentundo._change c where c.change = any (whole) order by c.change desc;

    select string_agg(format(', %I', c.history_column), '' order by c.attnum),
           string_agg(format(', %I %s', c.history_column, c.type), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('r', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('back', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format('(%s)::%s as %I', k.value, k.declared, c.name), ', ' order by c.attnum)
      into columns_sql, types_sql, current_sql, target_sql, back_sql
      from agentundo._columns(t.id) c join agentundo._target_columns(t.id) k on k.attnum = c.attnum
     where c.live and c.history_column is not null;
    for kind in
      -- keys are left before they are taken; what moves is told apart from what stays, or nobody would know which row it was
      select x.action, coalesce(x.detail ? 'moved', false) as moves, count(*) as n from unnest(d) x
      where x.tracked = t.id and x.status in ('ok', 'merge') and x.action <> 'none' and not coalesce(x.before_change, x.after_change) = any (whole)
      group by 1, 2 order by x.action = 'insert', x.action = 'update', moves
    loop
      number := nextval('agentundo._change_number');
      work := array(
        select x from unnest(d) x
        where x.tracked = t.id and x.status in ('ok', 'merge') and x.action = kind.action and coalesce(x.detail ? 'moved', false) = kind.moves
          and not coalesce(x.before_change, x.after_change) = any (whole));
      execute format('insert into %1$s (_change, _image%2$s) select $1, image.* from agentundo._look(%4$L, $3, $2) as image (_image "char"%3$s)',
        t.history, columns_sql, types_sql, format($sql$
        select 'O'::"char"%1$s from unnest($1) d join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
        union all
        select 'N'::"char"%2$s from unnest($1) d join lateral (select * from %4$s h where h.ctid = d.before offset 0) b on true
        left join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
        cross join lateral (select %5$s) back
        where d.action <> 'delete'$sql$, current_sql, target_sql, agentundo._from(t), t.history, back_sql))
        using number, work, agentundo._users_path(t.relation);
      insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, invocation, application, tool)
      values (number, t.id, t.relation, pg_relation_filenode(t.relation), kind.n, 0, upper(left(kind.action, 1))::"char", revert_id,
        current_setting('application_name'), agentundo._setting('agent.tool'));
    end loop;
  end loop;
end
$body$;

-- The rows for which this revert stands although it writes none: gone already, or not to come back. Of their images
-- only the key will be read.
create or replace function agentundo._record_void(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  kind record;
  number bigint;
  rows bigint;
  columns_sql text; values_sql text;
begin
  for kind in
    select x.id, k.operation, k.rows
    from agentundo._tracked x
    cross join lateral (
      select case when y.before is null then 'D' else 'I' end::"char" as operation, array_agg(y) as rows
      from unnest(d) y
      where y.tracked = x.id and y.status = 'done' and y.cur is null and coalesce(y.before, y.after) is not null
        and not coalesce(y.detail ? 'segments', false)
      group by 1) k
    where exists (select from agentundo._key(x.id))
    order by x.id, k.operation
  loop
    select * into t from agentundo._tracked x where x.id = kind.id;
    select string_agg(format(', %I', c.history_column), '' order by c.attnum), string_agg(', ' || i.value, '' order by c.attnum)
      into columns_sql, values_sql
      from agentundo._columns(t.id) c
      join agentundo._image_columns(t.id, 'h', 'coalesce(d.before_change, d.after_change)') i on i.attnum = c.attnum
     where c.live and c.history_column is not null;
    number := nextval('agentundo._change_number');
    execute format('insert into %1$s (_change, _image%2$s) select $1, $2%3$s from unnest($3) d
        join lateral (select * from %1$s h where h.ctid = coalesce(d.before, d.after) offset 0) h on true',
      t.history, columns_sql, values_sql) using number, case kind.operation when 'D' then 'O' else 'N' end::"char", kind.rows;
    get diagnostics rows = row_count;
    if rows > 0 then
      insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, void, invocation, application, tool)
      values (number, t.id, t.relation, pg_relation_filenode(t.relation), rows, 0, kind.operation, true, revert_id, current_setting('application_name'), agentundo._setting('agent.tool'));
    end if;
  end loop;
end
$body$;

-- All tables in one statement, so that foreign keys are checked when everything is in place.
create or replace function agentundo._restore(d agentundo._decision[], tally jsonb, replace int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  ctes text;
  counts text := '';
  earlier text;
  planned bigint[] := array[]::bigint[];
  done bigint[];
begin
  for t in select * from agentundo._tracked x where tally ? x.id::text order by x.relation::oid loop
    ctes := concat_ws(',', ctes, agentundo._restore_sql(t, 't' || t.id, earlier, tally -> t.id::text, t.id = any (replace)));
    earlier := 't' || t.id;
    counts := counts || format(' || array[(select count(*) from t%1$s_gone), (select count(*) from t%1$s_back), (select count(*) from t%1$s_here)]', t.id);
    planned := planned || array(
      select coalesce((tally -> t.id::text ->> o.operation)::bigint, 0) from unnest(array['D', 'U', 'I']) with ordinality o (operation, n) order by o.n);
  end loop;
  if ctes is null then
    return;
  end if;
  select * into done from agentundo._act(format('with %s select ''{}''::bigint[]%s', ctes, counts), d);
  if done is distinct from planned then
    raise exception using errcode = '40001', message = 'agentundo: a row changed while it was being put back',
      hint = 'Call revert again.';
  end if;
end
$body$;

-- Capture is told to count what it sees from now on. A table that is untracked has no triggers to count.
create or replace function agentundo._expect(tally jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  insert into agentundo._restoring (xid, tracked, operation, planned)
    select pg_current_xact_id(), t.id, o.operation::"char", o.n::bigint
    from jsonb_each(tally) w (tracked, operations)
    join agentundo._tracked t on t.id = w.tracked::int and t.active
    cross join lateral jsonb_each_text(w.operations) o (operation, n);
  perform set_config('agentundo.restoring', 'on', true);
end
$body$;

-- What capture has counted against what was planned: anything more was done by a foreign key that acts.
create or replace function agentundo._compare(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  seen record;
begin
  select r.*, t.name into seen from agentundo._restoring r join agentundo._tracked t on t.id = r.tracked
   where r.xid = pg_current_xact_id() and r.planned <> r.seen
     and not (r.operation = 'U' and r.seen > r.planned and agentundo._only_planned(r.tracked, d, revert_id))
   limit 1;
  if found then
    perform agentundo._fail('UN001',
      format('agentundo: putting the rows back would reach further than planned: %s rows of %s instead of %s', seen.seen, seen.name, seen.planned),
      'A foreign key of these tables acts on other rows (CASCADE, SET NULL). Revert the invocations that moved the referenced values one by one, or change the rows by hand.',
      jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_build_object('relation', seen.name, 'reason', 'constraint'))));
  end if;
  delete from agentundo._restoring r where r.xid = pg_current_xact_id();
  perform set_config('agentundo.restoring', '', true);
end
$body$;

-- Rows that come back were absent when that was decided. Whoever was just then making and deleting one of them,
-- and whom the insert had to wait for, was not seen: the plan is to be made again.
create or replace function agentundo._require_absent(d agentundo._decision[], tally jsonb, decided pg_snapshot, revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  unseen boolean;
begin
  for t in
    select x.* from agentundo._tracked x
    where tally -> x.id::text ? 'I' and exists (select from agentundo._key(x.id))
      and exists (
        select from agentundo._change c
        where c.xid >= pg_snapshot_xmin(decided) and not pg_visible_in_snapshot(c.xid, decided) and c.tracked = x.id and c.invocation is distinct from revert_id)
  loop
    execute format($sql$
      select exists (
        select from agentundo._change c
        join %1$s h on h._change = coalesce(c.source, c.change)
        join unnest($1) d on d.tracked = $2 and d.status in ('ok', 'merge') and d.action = 'insert'
        join lateral (select * from %1$s b where b.ctid = d.before offset 0) b on %2$s
        where c.xid >= pg_snapshot_xmin($3) and not pg_visible_in_snapshot(c.xid, $3) and c.tracked = $2 and c.invocation is distinct from $4)$sql$,
      agentundo._history(t), agentundo._same_key(t.id, 'h', 'b')) into unseen using d, t.id, decided, revert_id;
    if unseen then
      raise exception using errcode = '40001', message = 'agentundo: a row came and went while it was being put back', hint = 'Call revert again.';
    end if;
  end loop;
end
$body$;

-- Waits while we hold something are kept well below deadlock_timeout: it is the revert that lets go and
-- tries again, before any writer who waits for it looks for a deadlock.
create or replace function agentundo._short_wait() returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$ select greatest(1, least(1000, extract(epoch from current_setting('deadlock_timeout')::interval) * 125))::int || 'ms' $body$;

-- A vacuum keeps strong locks out. PostgreSQL ends an autovacuum for whoever has waited for it for deadlock_timeout, and
-- so long we do not wait while we hold anything: so we do it once without.
create or replace function agentundo._past_vacuum(relations regclass[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  r regclass;
begin
  for r in
    select distinct l.relation from pg_locks l
    where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = any (relations) and l.mode = 'ShareUpdateExclusiveLock' and l.granted and l.pid <> pg_backend_pid()
  loop
    begin
      perform set_config('lock_timeout', (extract(epoch from current_setting('deadlock_timeout')::interval) * 1200)::int || 'ms', true);
      execute format('lock table only %s in share row exclusive mode', r);
      raise exception using errcode = 'UNR01';
    exception when lock_not_available or deadlock_detected or sqlstate 'UNR01' then
      null;
    end;
  end loop;
end
$body$;

-- What is to be captured while it is put back needs the triggers of a table that is tracked.
create or replace function agentundo._require_tracked(tally jsonb) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := (select t.name from agentundo._tracked t where t.id in (select k::int from jsonb_object_keys(tally) k) and not t.active order by t.id limit 1);
begin
  if name is not null then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked any more', name),
      format('Call agentundo.track(%L) first: only then is captured what triggers and defaults add to the rows that go back.', name),
      jsonb_build_object('relation', name));
  end if;
end
$body$;

-- Tables of which a row is deleted at one place and comes in again at another: by plan, because nobody knows which row
-- became which, or into another partition.
create or replace function agentundo._going_out_and_in(d agentundo._decision[], changes bigint[], apart int[]) returns int[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with acting as (select x.tracked, x.action, x.unit, x.detail from unnest(d) x where x.status in ('ok', 'merge') and x.tracked <> all (apart))
  select coalesce(array_agg(distinct t.id), '{}')
  from acting x join agentundo._tracked t on t.id = x.tracked
  where x.detail ? 'replace'
    or t.kind = 'partitioned' and x.detail ? 'moved'
    or x.action = 'delete' and exists (select from acting y where y.tracked = x.tracked and y.action = 'insert')
      and (x.unit like 'moved%' or not exists (select from agentundo._key(t.id))
        and exists (select from agentundo._change c where c.change = any (changes) and c.tracked = t.id and c.operation = 'U'))
$body$;

-- One attempt. Returns the decisions it acted on; raises on anything that is not as planned.
create or replace function agentundo._attempt(
  ids text[], changes bigint[], revert_id text, on_conflict text, merge boolean, scope text, replace int[], apart int[], run text, from_step int, since timestamptz)
returns agentundo._decision[] language plpgsql security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set work_mem = '64MB' set jit = off as
$body$
declare
  tables constant int[] := array(select distinct c.tracked from agentundo._change c where c.change = any (changes) order by 1);
  d agentundo._decision[];
  tally jsonb;
  captured boolean;  -- what is written is captured like anything else
  silenced jsonb;
  decided pg_snapshot;
  strong regclass[] := array[]::regclass[];
  one int;
  moving int[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform from agentundo._tracked t where t.id = any (tables) for key share;  -- 40001 where it was untracked, or altered, since
  end if;
  perform agentundo._require_workers(), agentundo._require_rights(tables);
  perform agentundo._follow(tables);
  -- Who must be silenced is asked before any row is locked, and asked again when all is decided.
  if exists (select from agentundo._with_triggers(tables)) then
    strong := array(select s.relation from agentundo._to_silence(agentundo._tally(agentundo._decide(ids, changes, on_conflict, merge), replace)) s);
  end if;
  perform agentundo._hurry(since);
  perform agentundo._lock_tables(tables, strong, apart);
  perform agentundo._hurry(since);
  perform agentundo._take_turn(tables);
  if agentundo._is_behind(tables) then
    raise exception using errcode = 'UNR01';  -- a table was altered while we waited: its history has to follow
  end if;
  foreach one in array tables loop
    perform agentundo._hurry(since);
    perform agentundo._lock_rows(one, changes) from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = one;
  end loop;
  if agentundo._uncovered(ids) <> changes or run is not null and not agentundo._members(run, from_step, scope) <@ ids then
    raise exception using errcode = 'UNR01';  -- more was committed under these ids, or in this run, while we waited
  end if;

  -- Everybody whom we waited for came before us.
  update agentundo._revert r set number = nextval('agentundo._change_number') where r.id = revert_id;
  decided := pg_current_snapshot();
  d := agentundo._decide(ids, changes, on_conflict, merge);
  perform agentundo._hurry(since);
  if agentundo._lock_found(d, (select max(x.xmin::text::bigint) from agentundo._turn x where x.tracked = tables[1])) then
    d := agentundo._decide(ids, changes, on_conflict, merge);  -- nobody adds a dependent any more
  end if;
  if exists (select from unnest(d) x where x.status = 'conflict') then
    if on_conflict = 'cascade' and agentundo._blockers(ids, d, scope) <> '{}' then
      raise exception using errcode = 'UNR01';  -- somebody tagged wrote while we waited: he comes along
    end if;
    perform agentundo._refuse(d, on_conflict, merge);
  end if;
  -- Rows that go out and come in again: whoever waited for one of them would find it gone, and be told nothing. So he
  -- waits for the table.
  moving := agentundo._going_out_and_in(d, changes, apart);
  if moving <> '{}' then
    raise exception using errcode = 'UNR02', detail = moving::text;
  end if;
  tally := agentundo._tally(d, replace);

  -- Where a trigger is to fire, what it writes has to be captured; where the default of a later column is made
  -- up for a row that comes back, only the row itself tells what came of it.
  captured := exists (select from agentundo._trigger_rule r where r.rule = 'fire' and r.tracked = any (tables))
    or exists (
      select from jsonb_each(tally) w (tracked, operations)
      join agentundo._tracked x on x.id = w.tracked::int and w.operations ? 'I'
      cross join lateral agentundo._columns(x.id) c
      join pg_attrdef f on f.adrelid = x.relation and f.adnum = c.attnum
      where c.live and c.since_change > 0);
  if captured then
    perform agentundo._require_tracked(tally);
  end if;
  perform agentundo._record_void(d, revert_id);
  if not captured then
    perform agentundo._record_changes(d, revert_id);
    perform agentundo._expect(tally);
  end if;
  -- All is locked: who makes us wait now has a unique value, or a parent, and may wait for us. Nobody knows how long it takes.
  perform set_config('lock_timeout', '1ms', true);
  silenced := agentundo._silence(tally, strong);
  perform agentundo._restore(d, tally, replace);
  perform agentundo._require_absent(d, tally, decided, revert_id);
  perform agentundo._settle(tables) where tally <> '{}';
  perform agentundo._rearm(silenced);
  if not captured then
    perform agentundo._compare(d, revert_id);
  end if;
  return d;
end
$body$;
