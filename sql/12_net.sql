-- 12  Net: what a set of changes did to each row, and what the row is now
--
-- For every key that the set touched: the image before the set, the image after it, the current row.
-- A set that is one change of a table, as nearly all are, takes a straight way: two images and the row. Of
-- any other, keys with a single change are simple and the rest are solved as chains:
--   * between transactions the change number is the order, because row locks serialised them;
--   * inside one transaction it is not (a user's AFTER ROW trigger on the same table is captured before
--     the statement that fired it), so images are linked instead: an N that equals another's O cancels,
--     absence is a state too, and what is left over is the transaction's before and after;
--   * where the after of one transaction is not the before of the next, somebody else wrote in between:
--     a segment boundary. Only the last segment can go back.
--
-- Images are compared as stored (the operator *=), over explicit column lists without generated
-- columns, never with =. Everything here is a pure SELECT over one snapshot, executed by agentundo_worker
-- (_look() in 11_guard.sql): $6 are the changes of the set, $7 those of its own reverts and redos; $9 are
-- numbers: changes up to the first are compared by image alone, rows of changes up to the second are gone by
-- TRUNCATE, the third is where places begin, the fourth the table, the fifth where journals begin (14_chains.sql).

-- Is a change somebody else's write? A change that a standing revert took back and that revert's own
-- change cancel each other, as if neither had been. A condition over the alias, as text.
create or replace function agentundo._stranger_sql(alias text) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format($sql$(not %1$I.void
    and not exists (select from agentundo._reverted u join agentundo._revert v on v.id = u.revert and v.standing and not v.reopened where u.change = %1$I.change)
    and not exists (select from agentundo._revert v where v.id = %1$I.invocation and v.xid = %1$I.xid and v.standing))$sql$, alias)
$body$;

-- Has a change c been undone in one row, wholly or there alone, by an undo that left others as they were? A condition
-- over the key columns of `row_alias`, as text.
create or replace function agentundo._undone_in_row_sql(t agentundo._tracked, row_alias text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$exists (
      select from agentundo._revert v
      where v.invocations @> array[c.invocation] and v.standing and v.number > c.change
        and (not v.reopened and exists (select from agentundo._reverted u where u.change = c.change and u.revert = v.id)
          or exists (
            select from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_row}}
            where f.invocation = v.id and f.xid = v.xid and f.tracked = c.tracked)
          and not exists (
            select from agentundo._revert w join agentundo._change f on f.invocation = w.id and f.xid = w.xid and f.tracked = c.tracked
            join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_row}}
            where w.invocations @> array[v.id] and w.standing and w.number > v.number)))$sql$,
    jsonb_build_object('history', agentundo._history(t), 'of_row', agentundo._same_key(t.id, 'h', row_alias)))
  where exists (select from agentundo._key(t.id))
$body$;

-- Is a change c somebody's own write that still stands in one row? Not what an undo put back, nor what was undone.
create or replace function agentundo._stands_in_row_sql(t agentundo._tracked, row_alias text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(format('(not c.void and not exists (select from agentundo._revert v where v.id = c.invocation and v.xid = c.xid) and not %s)',
    agentundo._undone_in_row_sql(t, row_alias)), agentundo._stranger_sql('c'))
$body$;

-- The versions that reverts and redos have left in a table, and those of changes that were undone and had
-- come to nothing. A row that one of them brought to the very image that our set had left is as our set left
-- it, if no stranger wrote it in between.
create or replace function agentundo._undo_versions_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select 'select c.xmin::text::bigint from agentundo._revert v join agentundo._change c on c.invocation = v.id and c.xid = v.xid and c.tracked = $9[4]::int
    union all select c.xmin::text::bigint from agentundo._reverted u join agentundo._revert v on v.id = u.revert and v.standing and not v.reopened
    join agentundo._change c on c.change = u.change and c.tracked = $9[4]::int'
$body$;

-- The part of the statement that both kinds of tables begin with: the changes of the set, those by others in
-- the same transactions, and the set's images.
create or replace function agentundo._net_head(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  with recursive change as materialized (
    select c.change, c.xid, c.xmin::text::bigint as version, coalesce(c.source, c.change) as source, c.inverted, c.operation, c.filenode, c.invocation, c.void
    from agentundo._change c where c.tracked = $9[4]::int and c.change = any ($6)),
  foreigner as materialized (
    select f.change, f.xid, coalesce(f.source, f.change) as source
    from agentundo._change f
    where f.tracked = $9[4]::int and f.xid in (select xid from change) and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}),
  image as materialized (
    select c.change, c.xid, (h._image = 'O') <> c.inverted as old, h.ctid as tid{{keys}}
    from change c join {{history}} h on h._change = c.source)$sql$,
    jsonb_build_object('history', agentundo._history(t), 'stranger', agentundo._stranger_sql('f'), 'keys', coalesce(', ' || agentundo._key_list(t.id, 'h'), '')))
$body$;

-- Changes up to this number are compared by image alone: their xmins come from before a logical copy.
create or replace function agentundo._trusted_after() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when agentundo._is_copy() then 9223372036854775807 else (select s.trusted_after from agentundo._stamp s) end
$body$;

-- The table as the current rows are looked up in it: by index for few, and read through once where the
-- set touched a good part of it, which the planner cannot know of a set that it does not see.
create or replace function agentundo._lookup_sql(t agentundo._tracked, changes bigint[]) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case
    when (select sum(c.rows) from agentundo._change c where c.change = any (changes) and c.tracked = t.id) * 20
         > (select sum(greatest(c.reltuples, 0)) from agentundo._levels(t.relation, t.kind) l join pg_class c on c.oid = l)
      then format('(select r.ctid, r.tableoid, r.xmin, r.* from %s r offset 0)', agentundo._from(t))
    else agentundo._from(t) end
$body$;

-- After an uninstall that kept history, or a careless REVOKE, tables have to be tracked anew.
create or replace function agentundo._require_rights(tables int[]) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := (
    select t.name from agentundo._tracked t join pg_class c on c.oid = t.relation and c.relkind in ('r', 'p')
    where t.id = any (tables) and not has_table_privilege(agentundo._worker(), t.relation, 'select') order by t.id limit 1);
begin
  if name is not null then
    perform agentundo._fail('UN003', format('agentundo: %s has lost its rights on %s', agentundo._worker(), name),
      format('Run "select agentundo.track(%L)" as the owner of the table.', name), jsonb_build_object('relation', name));
  end if;
end
$body$;

-- The statement for a table that is there: by whichever way, and beside it what history has lost of the set.
create or replace function agentundo._net_sql(t agentundo._tracked, changes bigint[], straight boolean, begins bigint) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return case
      when not exists (select from agentundo._key(t.id)) then agentundo._net_keyless_sql(t)
      when straight then agentundo._net_straight_sql(t, changes, agentundo._lookup_sql(t, changes))
      else agentundo._net_keyed_sql(t, agentundo._lookup_sql(t, changes), begins) end
    || case when exists (select from agentundo._erased e where e.tracked = t.id) then $sql$
        union all
        select $9[4]::int, c.change, null, null, null, null, c.change, c.change,
          'none', 'conflict', 'erased', null, null, null, min(case when c.operation = 'U' then 'moved' end), null
        from agentundo._change c
        join agentundo._erased e on e.tracked = $9[4]::int and e.change = coalesce(c.source, c.change)
        where c.change = any ($6) and c.tracked = $9[4]::int
        group by c.change$sql$ else '' end
    || format($sql$
        union all  -- images that were left out of a dump, or deleted by hand
        select $9[4]::int, c.change, null, null, null, null, c.change, c.change,
          'none', 'conflict', 'erased', null, null, null, null, '{"hint": "Its images are not in history: left out of a dump, or deleted there."}'
        from agentundo._change c
        where c.change = any ($6) and c.tracked = $9[4]::int and c.rows > 0
          and not exists (select from %s h where h._change = coalesce(c.source, c.change))
          and not exists (select from agentundo._erased e where e.tracked = c.tracked and e.change = coalesce(c.source, c.change))$sql$, t.history);
end
$body$;

-- Per row: before, after, current, and whether anybody wrote since. Statuses are first ones: 'ok',
-- 'done' and 'conflict' with the reasons that one row alone gives. Rows on which the set's changes
-- cancel out are not reported. Places are counted from `first_place`.
create or replace function agentundo._net(tracked_id int, changes bigint[], family bigint[], first_place int)
returns agentundo._decision[] language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  statement text;
  decisions agentundo._decision[];
  straight boolean;
  gone boolean;
  begins bigint;
  loops constant text := current_setting('enable_nestloop');
begin
  select * into t from agentundo._tracked where id = tracked_id;
  straight := agentundo._is_straight(t, changes);
  gone := t.relation is null or not exists (select from pg_class where oid = t.relation and relkind in ('r', 'p'));
  if not gone then
    perform agentundo._require_rights(array[tracked_id]);
  end if;
  loop
    if gone then
      -- Dropped since, or made something else: nothing to compare with, and nothing can be put back.
      statement := format($sql$
        select $9[4]::int, c.change, null::oid, null::tid, null::tid, null::tid, c.change, c.change,
          'none', 'conflict', 'schema_changed', null, null::text[], null::jsonb, null,
          jsonb_build_object('hint', %L, 'rows', c.rows)
        from agentundo._change c where c.change = any ($6) and c.tracked = $9[4]::int$sql$, format('Table %s is gone.', t.name));
    else
      begins := case when not straight then agentundo._journal_begins(t, changes) end;
      statement := agentundo._net_sql(t, changes, straight, begins);
    end if;
    -- The planner takes the steps of a chain for a few rows each. Where they are many, one loop inside another
    -- would never end.
    if not straight and (select sum(c.rows) from agentundo._change c where c.change = any (changes) and c.tracked = tracked_id) > 200 then
      perform set_config('enable_nestloop', 'off', true);
    end if;
    -- The table is named before its history, as everybody locks them who changes either.
    select * into decisions from agentundo._look(format($sql$
      with agentundo_first as (select from %s where false)
      select coalesce(array_agg(decision), '{}')
      from (select row(($9[3] + row_number() over ())::int, net.*)::agentundo._decision as decision from (%s) net) numbered$sql$,
        case when gone then 'pg_class' else agentundo._from(t) end, statement),
      e => changes, f => family,
      h => array[agentundo._trusted_after(), (select coalesce(max(m.emptied), 0) from agentundo._member m where m.tracked = tracked_id), first_place, tracked_id, begins])
      as net (decisions agentundo._decision[]);
    perform set_config('enable_nestloop', loops, true);
    if decisions is null then
      perform agentundo._require_workers();
    end if;
    exit when not straight or gone or agentundo._stayed_straight(t, changes, decisions);
    straight := false;
  end loop;
  if not gone then
    perform agentundo._require_storage(t);
  end if;
  return decisions;
end
$body$;

-- TRUNCATE and what rewrites a table are seen at once by every snapshot, and to one that is older the table is empty. What
-- was decided by such a look is worth nothing: look again, or begin anew.
create or replace function agentundo._require_storage(t agentundo._tracked) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if exists (
    select from agentundo._levels(t.relation, t.kind) l join pg_class c on c.oid = l
    where c.relfilenode <> 0 and c.relfilenode is distinct from pg_relation_filenode(c.oid)) then
    if current_setting('transaction_isolation') = 'read committed' then
      raise exception using errcode = 'UNR01';
    end if;
    raise exception using errcode = '40001', message = format('agentundo: table %s was rewritten since this transaction began', t.name),
      hint = 'Begin a new transaction and call revert again.';
  end if;
end
$body$;

-- Rows that the set made, and that are in the table no more because their partition was detached: nothing has been done
-- about them.
create or replace function agentundo._in_detached(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  former regclass;
  x agentundo._decision;
  i int;
  places int[];
begin
  for former in
    select p.relation from agentundo._detached p join pg_class c on c.oid = p.relation
    where p.tracked in (select y.tracked from unnest(d) y where y.status = 'done' and y.cur is null and y.after is not null)
  loop
    select g.* into t from agentundo._tracked g join agentundo._detached p on p.tracked = g.id where p.relation = former;
    continue when not exists (select from agentundo._key(t.id));
    if has_table_privilege(agentundo._worker(), former, 'select') then
      select found.places into places from agentundo._look(format($sql$
        select array_agg(y.place)
        from unnest($1) y join lateral (select * from %s h where h.ctid = y.after offset 0) n on true
        where y.tracked = %s and y.status = 'done' and y.cur is null and exists (select from only %s r where %s)$sql$,
        agentundo._history(t), t.id, former, agentundo._has_key(t.id, 'r', 'n')), null, d) as found (places int[]);
    else
      places := array(select y.place from unnest(d) y where y.tracked = t.id and y.status = 'done' and y.cur is null and y.after is not null);
    end if;
    foreach i in array coalesce(places, '{}') loop
      x := d[i];
      x.status := 'conflict';
      x.reason := 'schema_changed';
      x.detail := coalesce(x.detail, '{}') || jsonb_build_object('hint', format('It lies in %s, which was detached: attach it again.', former));
      d[i] := x;
    end loop;
  end loop;
  return d;
end
$body$;

-- Was anything in this table taken back after these changes? Not each revert wrote a change of its own.
create or replace function agentundo._undone_since(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with ours as (select max(c.change) as last from agentundo._change c where c.tracked = t.id and c.change = any (changes))
  select exists (
      select from ours join agentundo._revert v on v.number > ours.last join agentundo._reverted x on x.revert = v.id
      join agentundo._change c on c.change = x.change and c.tracked = t.id)
    or exists (
      select from ours join agentundo._change c on c.tracked = t.id and c.change > ours.last
      join agentundo._revert v on v.id = c.invocation and v.xid = c.xid)
$body$;

-- Is there an undo after these changes that stands for more rows of the table than it has written?
create or replace function agentundo._undone_unwritten(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from agentundo._revert v
    where v.number > (select max(c.change) from agentundo._change c where c.tracked = t.id and c.change = any (changes))
      and (select sum(c.rows) from agentundo._reverted u join agentundo._change c on c.change = u.change and c.tracked = t.id where u.revert = v.id)
        > (select coalesce(sum(c.rows), 0) from agentundo._change c where c.invocation = v.id and c.xid = v.xid and c.tracked = t.id and not c.void))
$body$;

-- Was the straight way right? Each image and each row may stand in one decision only (two foreign keys that
-- act can write a row twice in one change). If anything was undone since, only rows that are as the change left
-- them have nothing to do with it, unless an undo took something back without having to write it; and where
-- versions are lost, whoever has written since may have left the same.
create or replace function agentundo._stayed_straight(t agentundo._tracked, changes bigint[], d agentundo._decision[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select (select count(x.before) = case when c.operation = 'I' then 0 else c.rows end
              and count(x.after) = case when c.operation in ('D', 'T') then 0 else c.rows end
              and count(x.cur) = count(distinct (x.cur, x.part))
          from unnest(d) x)
    and (not agentundo._undone_since(t, changes)
      or not agentundo._undone_unwritten(t, changes) and not exists (select from unnest(d) x where x.status <> 'ok' or x.cur is null or x.basis <> 'version'))
    and (not exists (select from unnest(d) x where x.basis = 'value' and x.cur is not null)
      or not exists (select from agentundo._change f where f.tracked = t.id and f.change > (select max(o.change) from agentundo._change o where o.change = any (changes) and o.tracked = t.id)))
  from agentundo._change c where c.tracked = t.id and c.change = any (changes)
$body$;

-- Up to which change several rows may have had what is one key today: another key held then, or none.
create or replace function agentundo._key_since(t agentundo._tracked) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when t.key_columns <> '{}' and t.key_columns <@ b.columns then t.key_since else 9223372036854775807 end
  from agentundo._best_key(t.relation) b
$body$;

-- Is all that the set did to this table one change, beside which nobody else wrote in its transaction? Nearly
-- always. Then each key has one image before, one after, and the version of the row is that of the change.
create or replace function agentundo._is_straight(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select count(*) = 1 and not bool_or(s.void)
    and not exists (
      select from agentundo._change f
      where f.tracked = t.id and f.xid = any (array_agg(s.xid)) and f.change <> all (changes))
    and min(s.change) > agentundo._key_since(t)
    -- a key that is checked at COMMIT only can stand twice in one change
    and coalesce((select i.indimmediate from agentundo._key(t.id) k, agentundo._best_key(t.relation) b join pg_index i on i.indexrelid = b.index limit 1), false)
    and not exists (select from agentundo._erased e where e.tracked = t.id)
  from agentundo._change s where s.tracked = t.id and s.change = any (changes)
$body$;

-- A condition that is true for images older than a change of type that cannot be undone for values, or than values that
-- were computed anew, and for rows of which the set wrote some images before a column was added and some after.
create or replace function agentundo._retyped(tracked_id int, change text, before_change text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select concat_ws(' or ', 'false',
    (select format('least(%s, %s) <= %s', change, before_change, max(old.until_change))
     from agentundo._columns(tracked_id) old
     join agentundo._columns(tracked_id) new on new.attnum = old.attnum and new.live
     where old.until_change is not null and not agentundo._widens(old.type, new.type)
     having max(old.until_change) is not null),
    (select format('least(%s, %s) <= %s', change, before_change, max(c.since_change)) from agentundo._column c
     where c.tracked = tracked_id and c.attnum > 0 and c.computed having max(c.since_change) > 0),
    (select string_agg(format('%1$s <= %2$s and %3$s > %2$s', before_change, c.since_change, change), ' or ')
     from (
       select min(c.since_change) as since_change from agentundo._columns(tracked_id) c
       where c.history_column is not null and coalesce(c.until_change > c.since_change, true)
       group by c.attnum having bool_or(c.live)) c
     where c.since_change > 0))
$body$;

-- The names of the columns that are to blame, as text of an expression.
create or replace function agentundo._retyped_columns(tracked_id int, change text, before_change text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('array_remove(array[%s]::text[], null)', string_agg(format('case when least(%s, %s) <= %s then %L end', change, before_change, c.until_change, c.name), ', ' order by c.attnum))
  from (
    select y.attnum, min(y.name) as name, max(y.at) as until_change
    from (
      select new.attnum, new.name, old.until_change as at
      from agentundo._columns(tracked_id) old
      join agentundo._columns(tracked_id) new on new.attnum = old.attnum and new.live
      where old.until_change is not null and not agentundo._widens(old.type, new.type)
      union all
      select c.attnum, c.name, c.since_change from agentundo._column c where c.tracked = tracked_id and c.attnum > 0 and c.computed) y
    group by y.attnum) c
$body$;

-- Has the storage of the row r been rewritten since a change? All of its rows have another xmin then. A change
-- knows the storage of its table; that of partitions is noted by sync().
create or replace function agentundo._rewritten_sql(t agentundo._tracked, change text) returns text
language sql immutable as
$body$
  select case when t.kind = 'partitioned'
    then format('exists (select from agentundo._member m where m.relation = r.tableoid and (m.rewritten >= %I.change or m.filenode <> pg_relation_filenode(m.relation)))', change)
    else format('%I.filenode <> pg_relation_filenode(r.tableoid)', change) end
$body$;

-- A condition that is true for rows whose image `before` has labels that the enum of their column lacks today.
create or replace function agentundo._unlabelled(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(format('exists (select from %s h where h.ctid = before and (', t.history) || string_agg(format(
      'exists (select from unnest(array[]::text[] || %s) label where label is not null and not exists (select from pg_enum e where e.enumtypid = %s::oid and e.enumlabel = label))',
      i.value, agentundo._enum(i.type_now)::oid), ' or ') || '))', 'false')
  from agentundo._image_columns(t.id, 'h', 'before_change') i
  where agentundo._enum(i.type_now) is not null
    and exists (select from agentundo._label l where l.tracked = t.id and l.attnum = i.attnum and l.place = 0)
$body$;

-- What the looks at each row come to. They stand in `judged`, whichever way they were taken.
create or replace function agentundo._verdict_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format($sql$
  select $9[4]::int, change, part, cur, before, after,
    case when before is not null then before_change end, case when after is not null then after_change end,
    case when overtaken or nothing or before is null and (after is null or cur is null) then 'none' when before is null then 'delete' when cur is null then 'insert' else 'update' end,
    case when torn or %1$s or %3$s then 'conflict'
      when segments > 1 and (first_status = 'ok' or nothing) then 'conflict' else first_status end,
    case when torn or %1$s or %3$s then 'schema_changed'
      when segments > 1 and (first_status = 'ok' or nothing) then 'row_changed' else first_reason end,
    case when by_value then 'value' else 'version' end,
    case when %1$s then %2$s end, null::jsonb,
    case when moved then 'moved' end,
    nullif(coalesce(case when segments > 1 then jsonb_build_object('segments', segments, 'last_segment', case when nothing then 'nothing' else first_status end, 'at', at) end, '{}')
      || case when steps is null then '{}' else jsonb_build_object('steps', steps) end
      || case when torn then '{"hint": "Several rows had this key then: another key held, or none."}'::jsonb else '{}' end, '{}')
  from (
    select *,
      case when overtaken then 'done'
        when after is not null and cur is null then case when before is null then 'done' else 'conflict' end
        when after is not null then case when untouched then 'ok' else 'conflict' end
        when before is null then 'done'
        when cur is null then case when gone_since then 'conflict' else 'ok' end
        else 'conflict' end as first_status,
      case when overtaken then null
        when after is not null and cur is null then case when before is not null then 'row_deleted' end
        when after is not null then case when untouched then null when matches then 'row_rewritten' else 'row_changed' end
        when before is null then null
        when cur is null then case when gone_since then 'row_deleted' end
        else 'row_exists' end as first_reason
    from judged
  ) judged$sql$, agentundo._retyped(t.id, 'change', 'before_change'), agentundo._retyped_columns(t.id, 'change', 'before_change'), agentundo._unlabelled(t))
$body$;

-- The keys that others, who stand, have deleted since: if such a row is absent now they have meant it to be, and
-- it is not ours to bring back. Where people are not captured, any write of others to an absent row tells of such a
-- deletion. A CTE that is left open for more conditions.
create or replace function agentundo._deleted_since_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  deleted_since as materialized (
    select f.change, {{h_keys}}
    from agentundo._change f
    join {{history}} h on h._change = coalesce(f.source, f.change)
    where f.tracked = $9[4]::int and f.change > (select min(change) from change)
      {{deleting}} and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and exists (select from net where after is null and {{of_net}})$sql$,
    jsonb_build_object('history', agentundo._history(t), 'h_keys', agentundo._key_list(t.id, 'h'), 'of_net', agentundo._same_key(t.id, 'h', 'net'), 'stranger', agentundo._stranger_sql('f'),
      'deleting', case when t.all_since is not null then format('and (f.operation in (''D'', ''T'') or f.change <= %s)', t.all_since) else '' end))
$body$;

-- The straight way, see _is_straight(): one image before, one after, the row now.
create or replace function agentundo._net_straight_sql(t agentundo._tracked, changes bigint[], lookup text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c agentundo._change;
  others constant boolean := exists (
    select from agentundo._change s join agentundo._change f on f.tracked = t.id and f.change > s.change and (f.operation in ('D', 'T') or f.change <= coalesce(t.all_since, f.change)) and not f.void
    where s.tracked = t.id and s.change = any (changes) and s.operation <> 'I');
begin
  select * into c from agentundo._change x where x.tracked = t.id and x.change = any (changes);
  return agentundo._fill($sql$
  with change as materialized (
    select c.change, c.xmin::text::bigint as version, c.filenode from agentundo._change c where c.tracked = $9[4]::int and c.change = any ($6)),
  net as (
    select {{keys}}, o.tid as before, n.tid as after
    from (select h.ctid as tid, {{h_keys}} from {{history}} h where h._change = {{source}} and h._image = '{{old}}' and {{has_old}}) o
    full join (select h.ctid as tid, {{h_keys}} from {{history}} h where h._change = {{source}} and h._image = '{{new}}' and {{has_new}}) n on {{same_key}}),
{{deleted_since}}  compared as (
    select c.change, c.change as before_change, c.change as after_change, n.before, n.after, r.tableoid as part, r.ctid as cur,
      r.xmin::text::bigint as version, c.version as own_version, v.by_value, a.matches, {{gone_since}} as gone_since, false as overtaken, false as nothing, false as torn
    from change c
    cross join net n
    left join {{lookup}} r on {{in_table}}
    {{with_others}}
    cross join lateral (select c.change <= $9[1]
      or c.change > $9[2] and n.after is not null and r.ctid is not null and {{rewritten}}) v (by_value)
    left join lateral (
      select case when v.by_value then {{after_by_value}} operator(pg_catalog.*=) {{row_by_value}} else {{after}} operator(pg_catalog.*=) {{row}} end as matches
      from {{history}} h where h.ctid = n.after and r.ctid is not null offset 0) a on true),
  judged as (
    select *, 1 as segments, null::tid as at, null::jsonb as steps, matches and (by_value or version = own_version) as untouched,
      {{moved}} and (before is null or after is null) as moved
    from compared)$sql$, jsonb_build_object(
    'history', agentundo._history(t), 'lookup', lookup, 'source', coalesce(c.source, c.change),
    'keys', (select string_agg(format('coalesce(o.%1$I, n.%1$I) as %1$I', k.history_column), ', ' order by k.place) from agentundo._key(t.id) k),
    'h_keys', agentundo._key_list(t.id, 'h'), 'same_key', agentundo._same_key(t.id, 'o', 'n'), 'in_table', agentundo._has_key(t.id, 'r', 'n'),
    'old', case when c.inverted then 'N' else 'O' end, 'new', case when c.inverted then 'O' else 'N' end,
    'gone_since', case when others then 'x.n is not null' else 'false' end,
    'with_others', case when others then agentundo._fill('left join (select count(*) as n, {{keys}} from deleted_since x group by {{keys}}) x on {{same}}',
      jsonb_build_object('keys', agentundo._key_list(t.id, 'x'), 'same', agentundo._same_key(t.id, 'x', 'n'))) else '' end,
    'deleted_since', case when others then agentundo._deleted_since_sql(t) || e'),\n' else '' end,
    'has_old', c.operation <> 'I', 'has_new', c.operation not in ('D', 'T'), 'moved', c.operation = 'U',
    'after', agentundo._image_row(t.id, 'h', 'c.change', 'r'), 'row', agentundo._table_row(t.id, 'r'),
    'rewritten', agentundo._rewritten_sql(t, 'c'), 'after_by_value', agentundo._image_row(t.id, 'h', 'c.change', 'r', true), 'row_by_value', agentundo._table_row(t.id, 'r', true)))
    || agentundo._verdict_sql(t);
end
$body$;
