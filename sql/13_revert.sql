-- 13  Revert: acting on a plan
--
-- Lock, then look, then act, in one transaction:
--   1. the invocations, by id: a second click waits here and finds the work done;
--   2. the tables, by oid: ROW EXCLUSIVE keeps ALTER out; SHARE ROW EXCLUSIVE where triggers of the
--      user must be switched off, under a short lock_timeout: the revert gives way and tries again, so
--      that no writer becomes its deadlock victim;
--   3. the current rows of all keys that the set touched, in the order of their keys;
--   4. the plan, decided again, now that nothing of it can move;
--   5. one statement for all tables, so that foreign keys are checked when all is in place;
--   6. what capture saw of it is compared with the plan: anything more (a cascade) rolls back;
--   7. the record: changes of our own, which can be reverted like any others, what they cover, one event.
--
-- An attempt (2 to 7) runs in a subtransaction, so every error leaves nothing behind, and integrity
-- errors come out as UN001 with the constraint's name. The rows and our change rows are written in the
-- same subtransaction: the row version holds for them too.

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

-- The user's triggers that would fire for what the plan does: they did their work when the rows were
-- written first, and must not do it again for rows that go back. `fire` rules except single ones.
create or replace function agentundo._to_silence(d agentundo._decision[])
returns table (relation regclass, trigger name, state "char", tracked int)
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with work as (
    select x.tracked,
      bit_or(case x.action when 'insert' then 4 when 'delete' then 8 when 'update' then 16 else 0 end) as events
    from unnest(d) x where x.status in ('ok', 'merge') group by x.tracked)
  select m.relation, g.tgname, g.tgenabled, w.tracked
  from work w
  join agentundo._tracked t on t.id = w.tracked
  cross join lateral agentundo._levels(t.relation, t.kind) m (relation)
  join agentundo._users_triggers g on g.tgrelid = m.relation and g.tgenabled <> 'D'
  where g.tgtype & w.events <> 0
    and not exists (select from agentundo._trigger_rule r where r.tracked = w.tracked and r.trigger = g.tgname and r.rule = 'fire')
    and not (g.tgenabled = 'R' and current_setting('session_replication_role') <> 'replica')
  order by m.relation::oid, g.tgname
$body$;

create or replace function agentundo._lock_tables(tracked_ids int[], strong regclass[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  r regclass;
begin
  for r in
    select m from agentundo._tracked t join pg_class c on c.oid = t.relation
    cross join lateral agentundo._levels(t.relation, t.kind) m
    where t.id = any (tracked_ids) order by m::oid
  loop
    execute format('lock table only %s in %s mode', r, case when r = any (strong) then 'share row exclusive' else 'row exclusive' end);
  end loop;
end
$body$;

-- History must know the tables as they are now, or our own changes would lack a column.
create or replace function agentundo._follow(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  for t in select x.* from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = any (tables) and x.active loop
    if exists (select from agentundo._columns(t.id) c where c.history_column is null)
      or exists (select from agentundo._out_of_reach(t.relation, agentundo._worker())) then
      perform agentundo._sync(t.id);
    end if;
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
  execute format($sql$
    select count(*) from (
      select from (
        select distinct %1$s from agentundo._change c join %2$s h on h._change = coalesce(c.source, c.change)
        where c.change = any ($1) and c.tracked = $2) k
      join %3$s r on %4$s
      order by %5$s for %6$s of r) locked$sql$,
    agentundo._key_list(tracked_id, 'h'), t.history, agentundo._from(t), equal, agentundo._key_list(tracked_id, 'k'), case when weak then 'no key update' else 'update' end)
  using changes, tracked_id;
end
$body$;

-- The statement that restores one table, as CTEs that start with `name`: first what goes, then what
-- changes, then what comes, each waiting for the one before, so that a unique value is free when it is
-- needed. With `replace` updates become delete and insert, for values that go round in a circle.
create or replace function agentundo._restore_sql(t agentundo._tracked, name text, replace boolean) returns text
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
  return format($sql$
    %1$s_gone as (
      delete from %2$s r using work d
      where d.tracked = %3$s and (d.action = 'delete' or d.action = 'update' and %4$s) and r.ctid = d.cur and r.tableoid = d.part returning 1),
    %1$s_back as (%5$s),
    %1$s_here as (
      insert into %7$s (%8$s) overriding system value
      select %9$s
      from work d
      join lateral (select * from %6$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %2$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where d.tracked = %3$s and (d.action = 'insert' or d.action = 'update' and %4$s)
        and (select count(*) from %1$s_back) >= 0 returning 1)$sql$,
    name, agentundo._from(t), t.id, out_and_in,
    case when set_list is null then 'select 1 where false' else format($sql$
      update %2$s r set %3$s
      from work d join lateral (select * from %4$s h where h.ctid = d.before offset 0) b on true
      where d.tracked = %5$s and d.action = 'update' and not %6$s and r.ctid = d.cur and r.tableoid = d.part
        and (select count(*) from %1$s_gone) >= 0 returning 1$sql$, name, agentundo._from(t), set_list, t.history, t.id, out_and_in) end,
    t.history, t.relation, column_list, value_list);
end
$body$;

-- Waits while we hold something are kept well below deadlock_timeout: it is the revert that lets go and
-- tries again, before any writer who waits for it looks for a deadlock.
create or replace function agentundo._short_wait() returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$ select (extract(epoch from current_setting('deadlock_timeout')::interval) * 125)::int || 'ms' $body$;

-- One attempt. Returns the decisions it acted on; raises on anything that is not as planned.
create or replace function agentundo._attempt(
  ids text[], changes bigint[], revert_id text, on_conflict text, merge boolean, replace boolean)
returns agentundo._decision[] language plpgsql security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set work_mem = '64MB' set jit = off as
$body$
declare
  tables int[] := array(select distinct c.tracked from agentundo._change c where c.change = any (changes) order by 1);
  d agentundo._decision[];
  silent record;
  silenced jsonb := jsonb_build_array();
  strong regclass[] := array[]::regclass[];
  fire boolean;
  t agentundo._tracked;
  one int;
  ctes text := '';
  counts text := '';
  done bigint[];
  planned bigint[];
  seen record;
  began timestamptz := clock_timestamp();
begin
  perform agentundo._follow(tables);
  -- Who must be silenced is asked before any row is locked, and asked again when all is decided.
  if exists (select from agentundo._tracked x cross join lateral agentundo._levels(x.relation, x.kind) m
             join agentundo._users_triggers g on g.tgrelid = m
             where x.id = any (tables)) then
    strong := array(select s.relation from agentundo._to_silence(agentundo._decide(ids, changes, on_conflict, merge)) s);
  end if;
  perform agentundo._lock_tables(tables, strong);
  foreach one in array tables loop
    if exists (select from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = one) then
      perform agentundo._lock_rows(one, changes);
      if clock_timestamp() > began + current_setting('deadlock_timeout')::interval * 0.6 and one <> tables[cardinality(tables)] then
        raise exception using errcode = '55P03', message = 'agentundo: locking the rows took too long';
      end if;
    end if;
  end loop;
  if agentundo._uncovered(ids) <> changes then
    raise exception using errcode = 'UNR01';  -- more was committed under these ids while we waited
  end if;

  d := agentundo._decide(ids, changes, on_conflict, merge);
  if exists (select from unnest(d) x where x.status = 'conflict') then
    perform agentundo._refuse(d, on_conflict);
  end if;

  fire := exists (select from agentundo._trigger_rule r where r.rule = 'fire' and r.tracked = any (tables));
  if not fire then
    perform agentundo._record_changes(d, revert_id);
    insert into agentundo._restoring (xid, tracked, operation, planned)
      select pg_current_xact_id(), x.tracked, o.operation, count(*)
      from unnest(d) x
      join agentundo._tracked tr on tr.id = x.tracked and tr.active  -- an untracked table has no triggers to count
      cross join lateral unnest(case
        when x.action = 'update' and (replace or coalesce(x.detail ? 'replace', false)) then array['D', 'I']::"char"[]
        else array[upper(left(x.action, 1))]::"char"[] end) o (operation)
      where x.status in ('ok', 'merge') and x.action <> 'none'
      group by x.tracked, o.operation;
    -- A row that moves to another partition is a delete and an insert for some statements' triggers.
    perform set_config('agentundo.restoring', 'on', true);
  end if;

  for silent in select * from agentundo._to_silence(d) loop
    if silent.relation <> all (strong) then
      raise exception using errcode = '55P03', message = 'agentundo: the work changed while it was being locked';
    end if;
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger::text, 'D');
    silenced := silenced || jsonb_build_array(to_jsonb(silent));
  end loop;

  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') order by x.relation::oid loop
    ctes := ctes || ',' || agentundo._restore_sql(t, 't' || t.id, replace);
    counts := counts || format(' || array[(select count(*) from t%1$s_gone), (select count(*) from t%1$s_back), (select count(*) from t%1$s_here)]', t.id);
  end loop;
  if ctes <> '' then
    select * into done from agentundo._act(format($sql$
      with path as materialized (select set_config('search_path', $5, true)),
      work as materialized (select x.* from path, unnest($1) x where x.status in ('ok', 'merge') and x.action <> 'none')%s
      select '{}'::bigint[]%s$sql$, ctes, counts),
      agentundo._users_path((select x.relation from agentundo._tracked x where x.id = any (tables) and x.relation is not null order by x.id limit 1)), d);
    select array_agg(n order by tracked_oid, place) into planned
      from (
        select tr.relation::oid as tracked_oid, p.place, count(*) filter (where p.place = any (x.places)) as n
        from (select y.tracked, case y.action when 'delete' then '{1}'::int[] when 'insert' then '{3}'
                when 'update' then case when replace or coalesce(y.detail ? 'replace', false) then '{1,3}'::int[] else '{2}' end end as places
              from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') x
        join agentundo._tracked tr on tr.id = x.tracked
        cross join (values (1), (2), (3)) p (place)
        group by tr.relation::oid, p.place) q;
    if done <> planned then
      raise exception using errcode = '40001', message = 'agentundo: a row changed while it was being put back',
        hint = 'Call revert again.';
    end if;
    perform agentundo._settle(tables);
  end if;

  -- Exactly the state that each had: O, A or R.
  for silent in select * from jsonb_to_recordset(silenced) x (relation regclass, trigger text, state text) loop
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger, silent.state);
  end loop;
  if not fire then
    select * into seen from agentundo._restoring r
     where r.xid = pg_current_xact_id() and r.planned <> r.seen
       and not (r.operation = 'U' and r.seen > r.planned and agentundo._only_planned(r.tracked, d, revert_id))
     limit 1;
    if found then
      perform agentundo._fail('UN001',
        format('agentundo: putting the rows back would reach further than planned: %s rows of %s instead of %s',
          seen.seen, (select x.name from agentundo._tracked x where x.id = seen.tracked), seen.planned),
        'A foreign key of these tables acts on other rows (CASCADE, SET NULL). Revert the invocations that moved the referenced values one by one, or change the rows by hand.',
        jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_build_object('relation', (select x.name from agentundo._tracked x where x.id = seen.tracked), 'reason', 'constraint'))));
    end if;
    delete from agentundo._restoring r where r.xid = pg_current_xact_id();
    perform set_config('agentundo.restoring', '', true);
  end if;
  return d;
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
  execute format($sql$
    with written as materialized (
      select r.* from %1$s r where r.xmin = (select c.xmin from agentundo._change c where c.invocation = $3 limit 1)),
    planned as (
      select d.place, d.status, exists (
          select from %2$s h join written r on %3$s operator(pg_catalog.*=) %4$s where h.ctid = d.before) as arrived
      from unnest($1) d
      where d.tracked = $2 and d.status in ('ok', 'merge') and d.action in ('insert', 'update'))
    select (select count(*) from written) = (select count(*) from planned) and (select coalesce(bool_and(arrived and status = 'ok'), true) from planned)$sql$,
    agentundo._from(t), t.history, agentundo._image_row(t.id, 'h', 'd.before_change', 'r'), agentundo._table_row(t.id, 'r'))
    into as_planned using d, tracked_id, revert_id;
  return as_planned;
end
$body$;

-- Deferrable constraints of the tables, and of those that point at them, are checked now, not at COMMIT
-- when nobody could tell any more which revert broke them. Those deferred by nature are deferred again.
create or replace function agentundo._settle(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  names text;
  deferred text;
begin
  select string_agg(distinct format('%s.%I', c.connamespace::regnamespace, c.conname), ', '),
         string_agg(distinct format('%s.%I', c.connamespace::regnamespace, c.conname), ', ') filter (where c.condeferred)
    into names, deferred
    from pg_constraint c
   where c.condeferrable
     and exists (select from agentundo._tracked t cross join lateral agentundo._levels(t.relation, t.kind) m
                 where t.id = any (tables) and m in (c.conrelid, c.confrelid));
  if names is not null then
    perform agentundo._act('set constraints ' || names || ' immediate', null, null);  -- deferred triggers of the user's run now
  end if;
  if deferred is not null then
    execute 'set constraints ' || deferred || ' deferred';
  end if;
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
      from agentundo._change c where c.change = any (whole);

    select string_agg(format(', %I', c.history_column), '' order by c.attnum),
           string_agg(format(', %I %s', c.history_column, c.type), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('r', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('back', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format('(%s)::%s as %I', k.value, k.declared, c.name), ', ' order by c.attnum)
      into columns_sql, types_sql, current_sql, target_sql, back_sql
      from agentundo._columns(t.id) c join agentundo._target_columns(t.id) k on k.attnum = c.attnum
     where c.live and c.history_column is not null;
    for kind in
      select x.action, count(*) as n from unnest(d) x
      where x.tracked = t.id and x.status in ('ok', 'merge') and x.action <> 'none' and not coalesce(x.before_change, x.after_change) = any (whole)
      group by x.action
    loop
      number := nextval('agentundo._change_number');
      work := array(
        select x from unnest(d) x
        where x.tracked = t.id and x.status in ('ok', 'merge') and x.action = kind.action and not coalesce(x.before_change, x.after_change) = any (whole));
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

-- Conflicts as an error: what and where for people, the first 20 for programs. Keys and column names
-- only, no other value: DETAIL is written to the server log.
create or replace function agentundo._refuse(d agentundo._decision[], on_conflict text) returns void
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
      'invocation', s.invocation, 'constraint', s.detail -> 'constraint')))
    into listed
    from agentundo._show(conflicts) s;
  -- Without a key the key is the whole row, and that is nobody's business in a log.
  select jsonb_agg(case when exists (select from agentundo._tracked t where t.relation::text = l ->> 'relation' and not exists (select from agentundo._key(t.id))) then l - 'key' else l end)
    into listed from jsonb_array_elements(listed) l;
  first_one := listed -> 0;
  perform agentundo._fail('UN001',
    format('agentundo: %s would overwrite later work or break a constraint: %s %s: %s%s%s',
      case when total = 1 then '1 row' else total || ' rows' end, first_one ->> 'relation', coalesce(first_one ->> 'key', '(a row without a key)'), first_one ->> 'reason',
      coalesce(' (' || (select string_agg(c, ', ') from jsonb_array_elements_text(first_one -> 'columns') c) || ')', coalesce(' (' || (first_one ->> 'constraint') || ')', '')),
      case when total > 1 then ', and more' else '' end),
    case when on_conflict = 'force'
      then 'Even force does not break constraints. See agentundo.plan(); revert or change what stands in the way first.'
      else 'See agentundo.plan(). Then revert with merge => true (puts back only the columns that nobody else changed), on_conflict => ''skip'' (leaves these rows), ''cascade'' (takes later agent work along) or ''force''.' end,
    jsonb_build_object('total', total, 'conflicts', listed));
end
$body$;

-- Marks what has been taken back. A change counts as covered only when all of its rows are; what was
-- skipped stays uncovered, so that the next revert finds it.
create or replace function agentundo._cover(ids text[], changes bigint[], d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  left_over bigint[] := array[]::bigint[];
  more bigint[];
  same_key text;
  v record;
begin
  for t in
    select * from agentundo._tracked x
    where x.id in (select y.tracked from unnest(d) y where y.status = 'skip' or y.status in ('ok', 'done') and y.detail ? 'segments')
  loop
    same_key := agentundo._same_key(t.id, 'h', 'k');
    if same_key is null or t.relation is null then
      more := array(select c.change from agentundo._change c where c.change = any (changes) and c.tracked = t.id);
    else
      execute format($sql$
        select array_agg(distinct c.change)
        from unnest($1) x
        cross join lateral unnest(array[x.before, x.after]) e (tid)
        join lateral (select * from %1$s k where k.ctid = e.tid offset 0) k on true
        join agentundo._change c on c.change = any ($2) and c.tracked = x.tracked
        join %1$s h on h._change = coalesce(c.source, c.change) and %2$s
        where x.tracked = $3 and (x.status = 'skip' or x.status in ('ok', 'done') and x.detail ? 'segments')$sql$, t.history, same_key)
        into more using d, changes, t.id;
    end if;
    left_over := left_over || coalesce(more, '{}') || array(
      select x.change from unnest(d) x where x.tracked = t.id and x.status = 'skip' and x.before is null and x.after is null);
  end loop;
  insert into agentundo._reverted (change, revert, invocation)
    select c.change, revert_id, c.invocation from agentundo._change c where c.change = any (changes) and c.change <> all (left_over);
  update agentundo._revert r set partial = left_over <> '{}' where r.id = revert_id;

  -- A revert that has been taken back wholly stands no longer; one whose redo was taken back stands again.
  for v in
    with recursive kin as (
      select r.id, r.number from agentundo._revert r where r.id = any (ids)
      union
      select r.id, r.number from kin k join agentundo._revert q on q.id = k.id join agentundo._revert r on r.id = any (q.invocations))
    select k.id, k.number from kin k order by k.number desc
  loop
    update agentundo._revert r set standing = not exists (
      select from agentundo._revert w where w.invocations @> array[r.id] and w.standing and w.number > r.number
        and not exists (select from unnest(agentundo._uncovered(array[r.id])) u))
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

create or replace function agentundo._revert_now(
  ids text[], on_conflict text, merge boolean, reason text, reverted_by text, scope text, redo boolean)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  result agentundo.revert_result;
  revert_id text := gen_random_uuid()::text;
  wanted text[];
  aim text[];
  changes bigint[];
  d agentundo._decision[];
  locked text[];
  saved text[];
  companions constant text[] := array['agent.invocation', 'agent.run', 'agent.step', 'agent.tool', 'agent.actor', 'agent.on_behalf_of', 'agent.scope', 'agentundo.baseline', 'lock_timeout'];
  patience interval := case when current_setting('lock_timeout') = '0' then interval '60 s' else current_setting('lock_timeout')::interval end;
  began timestamptz := clock_timestamp();
  replace boolean := false;
  broken boolean := false;
  old_snapshot constant boolean := current_setting('transaction_isolation') <> 'read committed';
  constraint_name text; table_name text; complaint text;
  earlier text;
begin
  perform agentundo._check_mode(on_conflict);
  merge := coalesce(merge, false);
  ids := array(select distinct u from unnest(ids) u order by u);
  perform agentundo._require_known(ids, scope);
  perform agentundo._refuse_force(on_conflict, reverted_by, reason);
  perform agentundo._require_revert(ids, scope, reverted_by);
  saved := array(select current_setting(c, true) from unnest(companions) with ordinality x (c, n) order by n);
  wanted := agentundo._aim(ids, redo, on_conflict, merge, scope);
  loop
    begin
      -- All locks belong to the attempt: who gives way lets go of everything. Which invocations this is
      -- about can change until they are locked, so they are named, locked all together and named again.
      perform set_config('lock_timeout', agentundo._short_wait(), true);
      locked := agentundo._lock_invocations(wanted || ids);
      aim := agentundo._aim(ids, redo, on_conflict, merge, scope);
      if not aim <@ wanted then
        raise exception using errcode = 'UNR01';
      end if;
      perform agentundo._require_known(ids || aim, scope);
      if not aim <@ ids then
        perform agentundo._require_revert(aim, scope, reverted_by);
      end if;
      changes := agentundo._uncovered(aim);
      result := row(null, null, array(
          select u from unnest(aim) u where exists (select from agentundo._change c where c.change = any (changes) and c.invocation = u)),
        0, 0, 0, 0, 0);
      if changes = '{}' then
        select v.id into result.revert_id from agentundo._revert v where v.invocations && aim and v.standing order by v.number desc limit 1;
        result.status := case
          when result.revert_id is not null then 'already_reverted'
          when exists (select from agentundo._invocation i where i.id = any (aim) and i.recorded and i.status = 'pending') then 'not_committed'
          else 'nothing_to_revert' end;
        -- A revert that had changed no row is taken back in the books alone.
        exit when not (redo and result.revert_id is null and exists (select from agentundo._revert v where v.id = any (aim) and v.standing));
        result.invocations := aim;
      end if;
      insert into agentundo._invocation (id, scope, actor, role, tool, status, created_at, committed_at)
        values (revert_id, agentundo._common_scope(aim), reverted_by, agentundo._caller(), case when redo then 'agentundo.redo' else 'agentundo.revert' end, 'committed', clock_timestamp(), clock_timestamp());
      insert into agentundo._revert (id, invocations, redo, on_conflict, merge, reverted_by, reason, role)
        values (revert_id, result.invocations, redo, on_conflict, merge, reverted_by, reason, agentundo._caller());
      perform agentundo.tag(revert_id, tool => case when redo then 'agentundo.redo' else 'agentundo.revert' end, actor => reverted_by);
      d := agentundo._attempt(aim, changes, revert_id, on_conflict, merge, replace);
      update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (locked);
      result.status := 'reverted';
      exit;
    exception
      when sqlstate 'UNR01' then
        wanted := wanted || aim;
        if clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = 'agentundo: these invocations go on writing',
            hint = 'Let them end first; what they write after the revert would stay.';
        end if;
      when lock_not_available then
        -- The revert gives way and tries again.
        if clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = format('agentundo: somebody holds rows or tables of this undo for longer than %s', patience),
            hint = 'End the transaction that holds them (see pg_stat_activity and pg_blocking_pids), then call revert again. A higher lock_timeout makes it wait longer.';
        end if;
      when deadlock_detected or serialization_failure then
        if old_snapshot or clock_timestamp() > began + patience then
          raise;  -- only the caller can begin anew, with a new snapshot
        end if;
      when unique_violation or exclusion_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text;
        -- Values that change places among rows of the plan: all of them out, then all of them in. Not where
        -- a key of another table would act on the rows while they are gone.
        if not replace and agentundo._may_replace(changes) then
          replace := true;
        elsif old_snapshot then
          perform agentundo._outdated();
        elsif broken then
          perform agentundo._broke('unique_taken', complaint, constraint_name, table_name);
        end if;
        broken := broken or replace or not agentundo._may_replace(changes);
      when integrity_constraint_violation or foreign_key_violation or restrict_violation or check_violation or not_null_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text;
        if old_snapshot then
          perform agentundo._outdated();
        elsif broken then
          perform agentundo._broke('constraint', complaint, constraint_name, table_name);
        end if;
        broken := true;  -- somebody was faster than our look: the next one sees it and says more
      when data_exception or string_data_right_truncation or numeric_value_out_of_range or invalid_text_representation then
        get stacked diagnostics table_name = table_name, complaint = message_text;
        perform agentundo._broke('schema_changed', 'a former value does not fit its column any more', null, table_name);
      when insufficient_privilege or undefined_table or undefined_function or raise_exception then
        get stacked diagnostics complaint = message_text;
        if sqlstate = 'UN003' or complaint like 'agentundo:%' then
          raise;
        end if;
        -- code of the user's that runs with our rights while rows are written: a constraint's, a trigger's
        raise exception using errcode = 'UN001', message = format('agentundo: the rows cannot be put back: %s', complaint),
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
  if result.status <> 'reverted' then
    return result;
  end if;
  ids := aim;

  -- Nothing was left to do but what an earlier revert of these had done: no second one stands for it.
  if not redo and not exists (select from unnest(d) x where x.status in ('ok', 'merge') and x.action <> 'none') then
    select v.id into earlier from agentundo._revert v where v.invocations && ids and v.standing and v.id <> revert_id order by v.number desc limit 1;
    if earlier is not null then
      delete from agentundo._invocation i where i.id = revert_id;
      revert_id := earlier;
    end if;
  end if;
  perform agentundo._cover(ids, changes, d, revert_id);
  update agentundo._invocation i set status = 'committed', committed_at = clock_timestamp()
   where i.id = any (result.invocations) and i.status = 'pending';
  select count(*) filter (where x.action = 'delete' and x.status in ('ok', 'merge')), count(*) filter (where x.action = 'insert' and x.status in ('ok', 'merge')),
         count(*) filter (where x.action = 'update' and x.status in ('ok', 'merge')), count(*) filter (where x.status = 'skip'),
         count(*) filter (where x.status = 'skip' and x.reason is not null and not coalesce(x.detail ? 'follows', false))
    into result.rows_deleted, result.rows_inserted, result.rows_updated, result.rows_skipped, result.conflicts
    from unnest(d) x;
  select case when v.partial then 'partially_reverted' when earlier is not null then 'already_reverted' else 'reverted' end
    into result.status from agentundo._revert v where v.id = revert_id;
  result.revert_id := revert_id;
  if earlier is not null then
    return result;
  end if;
  perform agentundo._emit(case when redo then 'invocation_redone' else 'invocation_reverted' end, u,
      jsonb_build_object('revert_id', revert_id, 'status', result.status, 'reverted_by', reverted_by, 'reason', reason, 'invocations', result.invocations))
    from (select result.invocations[1] as u) x;
  return result;
end
$body$;

create or replace function agentundo._common_scope(ids text[]) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when count(distinct i.scope) = 1 and count(*) = count(i.scope) then min(i.scope) end from agentundo._invocation i where i.id = any (ids)
$body$;

-- May rows of these tables be deleted and inserted again within the statement?
create or replace function agentundo._may_replace(changes bigint[]) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select not exists (
    select from agentundo._tracked t
    where t.id in (select c.tracked from agentundo._change c where c.change = any (changes)) and agentundo._held_in_place(t))
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
  return agentundo._revert_now(agentundo._members(run, from_step, scope), on_conflict, merge, reason, reverted_by, scope, false);
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
