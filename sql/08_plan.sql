-- 08  Plan: what a revert would do, row by row, and what stands in its way
--
-- One place decides. plan() shows the decisions, revert() (09_revert.sql) makes them again under its
-- locks, by the same code, and acts. Deciding only reads: no lock, no temporary table, no sequence, so
-- a plan works in a READ ONLY transaction and on a hot standby. Decisions travel as an array of
-- `_decision`, in which images are named by where they lie, not copied.
--
-- The order of work: the net effect per row (07_net.sql); rows whose key moved are paired; columns that
-- others changed are named; merge, cascade and force turn some conflicts into work; then what foreign
-- keys and unique constraints say of the rest, again and again while skipping a row takes the ground
-- from under another. Showing values comes last and can fail for no legal value.

create or replace function agentundo._check_mode(on_conflict text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
begin
  if on_conflict is null or on_conflict not in ('abort', 'skip', 'cascade', 'force') then
    perform agentundo._fail('22023', format('agentundo: there is no mode %L for conflicts', on_conflict),
      'Use on_conflict => ''abort'' (default), ''skip'', ''cascade'' or ''force''.');
  end if;
end
$body$;

-- The scope in force: what was asked for, else the session's own.
create or replace function agentundo._scope(scope text) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$ select coalesce(nullif(scope, ''), agentundo._setting('agent.scope')) $body$;

-- Refuses ids that the caller cannot know of, in the same words whether they do not exist or belong to
-- another scope, and ids whose history is gone.
create or replace function agentundo._require_known(ids text[], scope text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  wanted text := agentundo._scope(scope);
  bound boolean := not agentundo._operator();  -- an app lives within one scope, an operator names one or none
  one text;
  i agentundo._invocation;
  c agentundo._change;
begin
  if ids is null or cardinality(ids) = 0 then
    perform agentundo._fail('22023', 'agentundo: no invocation was named', 'Give the id that the write was tagged with; agentundo.undoable() lists them.');
  end if;
  foreach one in array ids loop
    perform agentundo._check_id(one);
    select * into i from agentundo._invocation x where x.id = one;
    if not found then
      select * into c from agentundo._change x where x.invocation = one order by x.change limit 1;
      if not found then
        perform agentundo._unknown(one);
      end if;
      i.scope := c.scope;
    elsif i.scope is null and not i.recorded then
      i.scope := (select x.scope from agentundo._change x where x.invocation = one order by x.change limit 1);
    end if;
    if (bound or wanted is not null) and i.scope is distinct from wanted then
      perform agentundo._unknown(one);
    elsif i.purged_at is not null then
      perform agentundo._fail('UN011', format('agentundo: invocation %L can no longer be undone: its history was purged on %s', one, to_char(i.purged_at, 'YYYY-MM-DD')),
        'Keep history longer (setting retention), or exempt an invocation with agentundo.hold().');
    end if;
  end loop;
end
$body$;

create or replace function agentundo._unknown(id text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
begin
  perform agentundo._fail('UN002', format('agentundo: there is no invocation %L', left(id, 255)),
    'Check the id and the scope; agentundo.undoable() lists what there is. A write without a tag, or to an untracked table, is not kept.');
end
$body$;

-- What of these invocations is still to be taken back: changes that no standing revert covers.
create or replace function agentundo._uncovered(ids text[]) returns bigint[]
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(array_agg(c.change order by c.change), '{}')
  from agentundo._change c
  where c.invocation = any (ids)
    and not exists (select from agentundo._reverted r join agentundo._revert v on v.id = r.revert
                    where r.change = c.change and v.standing)
$body$;

-- The changes of the reverts of these invocations, of the redos of those, and so on: they are not
-- somebody else's writes.
create or replace function agentundo._family(ids text[]) returns bigint[]
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  with recursive kin as (
    select v.id from agentundo._revert v where v.invocations && ids
    union
    select v.id from agentundo._revert v join kin k on v.invocations @> array[k.id])
  select coalesce(array_agg(c.change), '{}') from agentundo._change c
  where c.invocation in (select id from kin) and c.invocation <> all (ids)
$body$;

-- The set's rows as the revert would leave them, one SELECT per table: columns under the table's own
-- names (generated ones computed) behind ours, which begin with agentundo_. $1 is the decisions.
create or replace function agentundo._target_sql(tracked_id int) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked;
  columns_sql text;
  generated text;
begin
  select * into t from agentundo._tracked x where x.id = tracked_id;
  select string_agg(format('%s as %I', agentundo._target_column(tracked_id, c.attnum), c.name), ', ' order by c.attnum)
    into columns_sql from agentundo._columns(tracked_id) c where c.live;
  select string_agg(format(', (%s)::%s as %I', pg_get_expr(d.adbin, d.adrelid), format_type(a.atttypid, a.atttypmod), a.attname), '' order by a.attnum)
    into generated
    from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
   where a.attrelid = t.relation and a.attgenerated <> '' and not a.attisdropped;
  return format($sql$
    select *%1$s from (
      select d.ordinality as agentundo_ord, d.action as agentundo_action, d.part as agentundo_part, d.cur as agentundo_cur%2$s
      from unnest($1) with ordinality d
      left join lateral (select * from %3$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where d.tracked = %5$s and d.status in ('ok', 'merge') and d.action in ('insert', 'update')) agentundo_row$sql$,
    coalesce(generated, ''), coalesce(', ' || columns_sql, ''), t.history,
    agentundo._from(t), tracked_id);
end
$body$;

-- One column of a restored row, over the aliases d (decision), b (image), r (current row).
create or replace function agentundo._target_column(tracked_id int, attnum smallint) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  c record;
  i record;
  a record;
  value text;
begin
  select * into c from agentundo._columns(tracked_id) x where x.attnum = _target_column.attnum and x.live;
  select at.atttypid, pg_get_expr(d.adbin, d.adrelid) as default_value into a
    from agentundo._tracked t
    join pg_attribute at on at.attrelid = t.relation and at.attnum = _target_column.attnum
    left join pg_attrdef d on d.adrelid = at.attrelid and d.adnum = at.attnum
   where t.id = tracked_id;
  i := agentundo._image_column(tracked_id, attnum, 'b', 'd.before_change');
  value := i.value;
  if c.type = 'text' and a.atttypid <> 'text'::regtype and exists (select from pg_type where oid = agentundo._base(a.atttypid) and typtype = 'e') then
    value := format('agentundo._label_now(%s, %s::smallint, %s, %L)', tracked_id, attnum, value, agentundo._base(a.atttypid)::regtype);
  end if;
  value := format('(%s)::%s', value, format_type(agentundo._base(a.atttypid), -1));
  if i.known is not null then
    value := format('case when %s then %s when d.cur is not null then r.%I else (%s)::%s end', i.known, value, c.name,
      coalesce(a.default_value, 'null'), format_type(agentundo._base(a.atttypid), -1));
  end if;
  -- merge: only the columns named go back, and a delta column loses what the set had added
  value := format('case when d.status = ''merge'' and %L <> all (d.columns) then r.%I else %s end', c.name, c.name, value);
  if exists (select from agentundo._merge_rule m where m.tracked = tracked_id and m.attnum = _target_column.attnum and m.rule = 'delta') then
    value := format('case when d.status = ''merge'' and jsonb_exists(d.delta, %1$L) then r.%1$I - (d.delta ->> %1$L)::%2$s else %3$s end', c.name, c.type, value);
  end if;
  return value;
end
$body$;

create or replace function agentundo._base(type oid) returns oid
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  with recursive b as (
    select t.oid, t.typtype, t.typbasetype from pg_type t where t.oid = type
    union all select t.oid, t.typtype, t.typbasetype from pg_type t join b on b.typtype = 'd' and t.oid = b.typbasetype)
  select oid from b where typtype <> 'd'
$body$;

-- An enum label as it is called today: renamed labels keep their place in the order.
create or replace function agentundo._label_now(tracked_id int, attnum smallint, label text, type text) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(
    (select e.enumlabel::text from pg_enum e where e.enumtypid = to_regtype(type) and e.enumlabel = label),
    (select e.enumlabel::text from agentundo._label l join pg_enum e on e.enumtypid = to_regtype(type) and e.enumsortorder = l.sortorder
     where l.tracked = tracked_id and l.attnum = _label_now.attnum and l.label = _label_now.label),
    label)
$body$;

-- Rows whose key moved: the row at the new key and the absence at the old one are one thing. Where it is
-- plain which belongs to which (one row, or told apart by its other columns) they become one update in
-- place, which no cascade can tear apart; the others stay a unit that goes back together or not at all.
create or replace function agentundo._pair_moves(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t int;
  pair record;
  pairs int[] := '{}';
  sql text;
  other_columns text;
begin
  for t in select distinct x.tracked from unnest(d) x where x.unit = 'moved' loop
    continue when not exists (select from agentundo._key(t));
    if (select count(*) from unnest(d) x where x.tracked = t and x.unit = 'moved') = 2 then
      sql := 'select x.ordinality as there, y.ordinality as here from unnest($1) with ordinality x, unnest($1) with ordinality y
              where x.tracked = $2 and y.tracked = $2 and x.unit = ''moved'' and y.unit = ''moved'' and x.before is null and y.after is null';
    else
      -- by what the other columns say, where that is unambiguous
      select string_agg(format('h.%I', c.history_column), ', ' order by c.attnum) into other_columns
        from agentundo._columns(t) c
       where c.live and c.attnum not in (select k.attnum from agentundo._key(t) k);
      continue when other_columns is null;
      sql := format($sql$
        with m as (
          select x.ordinality, x.before is null as there, x.change,
            dense_rank() over (order by row(%1$s)::record using operator(pg_catalog.*<)) as says
          from unnest($1) with ordinality x
          join lateral (select * from %2$s h where h.ctid = coalesce(x.after, x.before) offset 0) h on true
          where x.tracked = $2 and x.unit = 'moved')
        select min(ordinality) filter (where there) as there, min(ordinality) filter (where not there) as here
        from m group by says, change
        having count(*) filter (where there) = 1 and count(*) filter (where not there) = 1$sql$,
        other_columns, (select history from agentundo._tracked where id = t));
    end if;
    for pair in execute sql using d, t loop
      d[pair.there].before := d[pair.here].before;
      d[pair.there].before_change := d[pair.here].before_change;
      d[pair.there].unit := null;
      if d[pair.here].status = 'conflict' then
        d[pair.there].status := 'conflict';
        d[pair.there].reason := d[pair.here].reason;
      elsif d[pair.there].cur is null then
        d[pair.there].status := 'conflict';
        d[pair.there].reason := 'row_deleted';
      end if;
      d[pair.there].action := 'update';
      d[pair.there].detail := coalesce(d[pair.there].detail, '{}') || '{"moved": true}';
      pairs := pairs || pair.here::int;
    end loop;
  end loop;
  return array(
    select row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change, x.action, x.status, x.reason, x.basis,
        x.columns, x.delta, case when x.unit = 'moved' then 'moved ' || x.tracked end, x.detail)::agentundo._decision
    from unnest(d) with ordinality x where x.ordinality <> all (pairs) order by x.ordinality);
end
$body$;

-- Which columns others changed, and with `merge` which of ours can go back beside them. Ours are the
-- columns that the set changed, theirs those in which the row differs from what the set left; with
-- capture = 'all' also every column that a captured later write changed, there and back again. A
-- delta column takes both: what the set added to it is subtracted.
create or replace function agentundo._merge(d agentundo._decision[], changes bigint[], family bigint[], merge boolean) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set row_security = off as
$body$
declare
  t agentundo._tracked;
  item record;
  same_key text;
  ours text; theirs text; captured text; deltas text;
begin
  for t in
    select * from agentundo._tracked x
    where x.id in (select y.tracked from unnest(d) y where y.reason in ('row_changed', 'row_rewritten') and y.cur is not null and y.after is not null)
      and exists (select from agentundo._key(x.id))
  loop
    select string_agg(format('case when %s::record operator(pg_catalog.*<>) %s::record then %L end',
        'row(' || coalesce(case when b.known is not null then format('case when %s then %s end', b.known, b.value) end, b.value) || ')',
        'row(' || coalesce(case when b.known is not null then format('case when %s then %s end', b.known, a.value) end, a.value) || ')', c.name), ', ' order by c.attnum),
      string_agg(format('case when row(%s)::record operator(pg_catalog.*<>) row(%s)::record then %L end',
        case when a.known is not null then format('case when %s then %s else %s end', a.known, a.value, agentundo._table_column('r', c.name, c.type)) else a.value end,
        agentundo._table_column('r', c.name, c.type), c.name), ', ' order by c.attnum),
      string_agg(format('case when row(o.%1$I)::record operator(pg_catalog.*<>) row(n.%1$I)::record then %2$L end', c.history_column, c.name), ', ' order by c.attnum),
      string_agg(case when m.attnum is not null then
        format('%1$L, (sum(case when (h._image = ''O'') <> x.inverted then -h.%2$I else h.%2$I end))::text', c.name, c.history_column) end, ', ')
      into ours, theirs, captured, deltas
      from agentundo._columns(t.id) c
      cross join lateral agentundo._image_column(t.id, c.attnum, 'b', 'd.before_change') b
      cross join lateral agentundo._image_column(t.id, c.attnum, 'a', 'd.after_change') a
      left join agentundo._merge_rule m on m.tracked = t.id and m.attnum = c.attnum and m.rule = 'delta'
     where c.live;
    select string_agg(format('%%1$s.%1$I %2$s a.%1$I', k.history_column, agentundo._equal(to_regtype(agentundo._history_type(to_regtype(k.base_type))))), ' and ' order by k.place)
      into same_key from agentundo._key(t.id) k;
    for item in execute format($sql$
      select d.ordinality as ord, d.reason, d.before is null as inserted, coalesce((d.detail ->> 'segments')::int, 1) > 1 as cut,
        array_remove(array[%1$s]::text[], null) as ours,
        array_remove(array[%2$s]::text[], null) as by_value,
        case when $5 and %8$L = 'all' then (
          select array_agg(distinct y.name)
          from agentundo._change f
          join %4$s n on n._change = coalesce(f.source, f.change) and (n._image = 'N') <> f.inverted and %6$s
          join %4$s o on o._change = n._change and o._image <> n._image and %7$s
          cross join lateral unnest(array_remove(array[%3$s]::text[], null)) y (name)
          where f.tracked = d.tracked and f.change > d.after_change and f.change <> all ($3) and f.change <> all ($4)) end as captured,
        case when $5 then (
          select jsonb_build_object(%10$s) from agentundo._change x join %4$s h on h._change = coalesce(x.source, x.change) and %9$s
          where x.tracked = d.tracked and x.change = any ($3)) end as sums
      from unnest($1) with ordinality d
      join lateral (select * from %5$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      join lateral (select * from %4$s a where a.ctid = d.after offset 0) a on true
      left join lateral (select * from %4$s b where b.ctid = d.before offset 0) b on true
      where d.tracked = $2 and d.status = 'conflict' and d.reason in ('row_changed', 'row_rewritten')$sql$,
      ours, theirs, captured, t.history, agentundo._from(t),
      format(same_key, 'n'), format(same_key, 'o'), t.capture, format(same_key, 'h'), coalesce(deltas, ''))
      using d, t.id, changes, family, merge
    loop
      declare
        shared text[];
        their_columns text[] := array(select distinct u from unnest(item.by_value || coalesce(item.captured, '{}')) u order by u);
        added text[] := array(select m.name::text from agentundo._merge_rule m where m.tracked = t.id);
        our_columns text[] := item.ours;
      begin
        if item.cut and merge then
          our_columns := array(select distinct u from unnest(item.ours || array(select k from jsonb_each_text(item.sums) s (k, v) where v::numeric <> 0)) u);
        end if;
        shared := array(select u from unnest(our_columns) u where u = any (their_columns));
        if merge and not item.inserted
          and (item.reason = 'row_changed' and not item.cut and shared <@ added  -- side by side
            or our_columns <@ added and our_columns <> '{}') then              -- or adding up
          d[item.ord].status := 'merge';
          d[item.ord].reason := null;
          d[item.ord].columns := our_columns;
          d[item.ord].delta := (select jsonb_object_agg(k, v) from jsonb_each_text(item.sums) s (k, v) where k = any (our_columns));
          d[item.ord].detail := coalesce(d[item.ord].detail, '{}') || jsonb_build_object('basis', case when t.capture = 'all' then 'captured' else 'value' end, 'kept', their_columns);
        else
          d[item.ord].columns := case when merge and shared <> '{}' then shared when their_columns <> '{}' then their_columns else our_columns end;
        end if;
      end;
    end loop;
  end loop;
  return d;
end
$body$;

-- What foreign keys and unique constraints say of the rows that would be written. One finding per row
-- and obstacle; `writer` is the xmin of the row in the way, by which cascade finds who wrote it.
create or replace function agentundo._obstacles(d agentundo._decision[])
returns table (ord bigint, reason text, obstacle text, other text, writer bigint, writer_tracked int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set row_security = off as
$body$
declare
  t agentundo._tracked;
  f record;
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge')) and x.relation is not null loop
    for f in
      select i.indexrelid::regclass as name from pg_index i
      where i.indrelid = t.relation and i.indisvalid and (i.indisunique or i.indisexclusion)
    loop
      return query execute agentundo._taken_sql(t, f.name) using d;
    end loop;
    return query execute agentundo._broken_sql(t) using d;
    for f in select c.oid from pg_constraint c where c.contype = 'f' and c.confrelid = t.relation and c.conparentid = 0
        and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true) and not coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false) loop
      return query execute agentundo._dependents_sql(t, f.oid) using d;
    end loop;
    for f in select c.oid from pg_constraint c where c.contype = 'f' and c.conrelid = t.relation and c.conparentid = 0
        and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true) and not coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false) loop
      return query execute agentundo._missing_sql(t, f.oid) using d;
    end loop;
  end loop;
end
$body$;

-- The tracked table that holds rows of a relation, if any.
create or replace function agentundo._tracked_of(relation regclass) returns int
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(
    (select m.tracked from agentundo._member m where m.relation = $1),
    (select x.id from agentundo._tracked x where x.relation = $1))
$body$;

-- Restored rows that break a CHECK, a NOT NULL or a domain that came or was tightened since.
create or replace function agentundo._broken_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  with rule as (
    select c.conname::text as name, format('(%s) is false', pg_get_expr(c.conbin, c.conrelid)) as broken
    from pg_constraint c where c.conrelid = t.relation and c.contype = 'c' and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
    union all
    select a.attname, format('agentundo_row.%I is null', a.attname)
    from pg_attribute a where a.attrelid = t.relation and a.attnum > 0 and a.attnotnull and not a.attisdropped and a.attgenerated = ''
    union all
    select coalesce(c.conname, y.typname), case when c.oid is null then format('agentundo_row.%I is null', a.attname)
        else format('(select (%s) is false from (select agentundo_row.%I as value) value)', substring(pg_get_constraintdef(c.oid) from '^CHECK \((.*)\)(?: NOT VALID)?$'), a.attname) end
    from pg_attribute a
    cross join lateral (
      with recursive b as (
        select ty.* from pg_type ty where ty.oid = a.atttypid and ty.typtype = 'd'
        union all select ty.* from pg_type ty join b on ty.oid = b.typbasetype and ty.typtype = 'd')
      select * from b) y
    left join pg_constraint c on c.contypid = y.oid and c.contype = 'c'
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and (c.oid is not null or y.typnotnull))
  select format('with target as materialized (%s) ', agentundo._target_sql(t.id))
    || coalesce(string_agg(format('select agentundo_ord, ''constraint'', %L, %L, null::bigint, null::int from target agentundo_row where %s', name, t.relation::text, broken), ' union all '),
         'select agentundo_ord, null::text, null::text, null::text, null::bigint, null::int from target where false')
  from rule
$body$;

-- Restored values of a unique index or exclusion constraint that a row outside of the plan holds now.
create or replace function agentundo._taken_sql(t agentundo._tracked, index regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  i pg_index;
  picked text;
  equal text;
  predicate text;
  same_key boolean;
begin
  select * into i from pg_index where indexrelid = index;
  predicate := coalesce(' where ' || pg_get_expr(i.indpred, i.indrelid), '');
  select string_agg(format('(%s) as agentundo_e%s', pg_get_indexdef(index, n, true), n), ', ' order by n),
         string_agg(format(case when coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
             then '(k.agentundo_e%1$s %2$s r.agentundo_e%1$s or k.agentundo_e%1$s is null and r.agentundo_e%1$s is null)'
             else 'k.agentundo_e%1$s %2$s r.agentundo_e%1$s' end, n,
           coalesce((select format('operator(%I.%s)', o.oprnamespace::regnamespace, o.oprname) from pg_constraint c join pg_operator o on o.oid = c.conexclop[n]
                     where c.conindid = index and c.conexclop is not null limit 1),
             (select format('operator(%I.%s)', o.oprnamespace::regnamespace, o.oprname)
              from pg_opclass oc join pg_amop p on p.amopfamily = oc.opcfamily and p.amopstrategy = 3 and p.amoplefttype = oc.opcintype and p.amoprighttype = oc.opcintype
              join pg_operator o on o.oid = p.amopopr where oc.oid = i.indclass[n - 1]),
             'operator(pg_catalog.=)')), ' and ' order by n)
    into picked, equal
    from generate_series(1, i.indnkeyatts) n;
  -- The key itself: a row under the same key was found as `row_exists`; only moved rows can collide.
  same_key := index = (agentundo._best_key(t.relation)).index;
  return format($sql$
    with target as materialized (%1$s),
    k as (select agentundo_ord, agentundo_action, agentundo_part, agentundo_cur, %2$s from target agentundo_row%3$s),
    r as (select ctid as agentundo_ctid, tableoid as agentundo_table, xmin::text::bigint as agentundo_xmin, %2$s from %4$s agentundo_row%3$s)
    select k.agentundo_ord, 'unique_taken', %5$L, %6$L, r.agentundo_xmin, %7$s
    from k join r on %8$s
    where not exists (
        select from unnest($1) a where a.status in ('ok', 'merge') and a.action in ('update', 'delete')
          and a.cur = r.agentundo_ctid and a.part = r.agentundo_table)
      %9$s$sql$,
    agentundo._target_sql(t.id), picked, predicate, agentundo._from(t),
    index::text, t.relation::text, t.id, equal,
    case when same_key then 'and exists (select from unnest($1) with ordinality a where a.ordinality = k.agentundo_ord and a.detail ? ''moved'')' else '' end);
end
$body$;

-- Rows that point at a row which would be deleted or lose the value they point at.
create or replace function agentundo._dependents_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  c pg_constraint;
  parent_cols text; target_cols text; child_equal text; target_equal text; child_target_equal text; child_target text;
  child int;
begin
  select * into c from pg_constraint where oid = con;
  child := agentundo._tracked_of(c.conrelid);
  select string_agg(format('r.%I as agentundo_v%s', p.attname, n), ', ' order by n),
         string_agg(format('x.%I', p.attname), ', ' order by n),
         string_agg(format('gone.agentundo_v%s %s ch.%I', n, o, f.attname), ' and ' order by n),
         string_agg(format('x.%I operator(pg_catalog.=) gone.agentundo_v%s', p.attname, n), ' and ' order by n),
         string_agg(format('gone.agentundo_v%s %s x.%I', n, o, f.attname), ' and ' order by n)
    into parent_cols, target_cols, child_equal, target_equal, child_target_equal
    from (
      select n, c.confkey[n] as pk, c.conkey[n] as fk,
        (select format('operator(%I.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o,
        c.confrelid as prel, c.conrelid as frel
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = k.prel and p.attnum = k.pk
    join pg_attribute f on f.attrelid = k.frel and f.attnum = k.fk;
  child_target := case when child is not null then format($sql$
        and not exists (select from child_target x where x.agentundo_cur = ch.ctid and x.agentundo_part = ch.tableoid and not (%s))$sql$, child_target_equal) else '' end;
  return format($sql$
    with target as materialized (%1$s),
    child_target as materialized (%2$s),
    gone as materialized (
      select d.ordinality as agentundo_ord, d.action as agentundo_action, %3$s
      from unnest($1) with ordinality d
      join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where d.tracked = %5$s and d.status in ('ok', 'merge') and d.action in ('delete', 'update')),
    lost as (   -- the value goes, and no other restored row has it, unless the key would act on that too
      select gone.* from gone
      where not exists (select from target x where x.agentundo_ord = gone.agentundo_ord and %6$s)),
    held as (
      select lost.*, exists (select from target x where %7$s) as passed_on from lost)
    select gone.agentundo_ord, case when gone.passed_on then 'constraint' else 'has_dependents' end, %8$L, %9$L, ch.xmin::text::bigint, %10$s
    from held gone join %11$s ch on %12$s
    where not (gone.passed_on and %13$s)
      and not exists (select from unnest($1) a where a.status in ('ok', 'merge') and a.action = 'delete' and a.cur = ch.ctid and a.part = ch.tableoid)%14$s
      -- the row itself may point at itself and go with itself
    $sql$,
    agentundo._target_sql(t.id), case when child is not null then agentundo._target_sql(child) else 'select' end,
    parent_cols, agentundo._from(t), t.id,
    replace(target_equal, 'operator(pg_catalog.=)', 'is not distinct from'), replace(target_equal, 'operator(pg_catalog.=)', 'is not distinct from'),
    c.conname, c.conrelid::regclass::text, coalesce(child::text, 'null::int'), c.conrelid::regclass::text, child_equal,
    (c.confdeltype = 'a' and c.confupdtype = 'a')::text, child_target);
end
$body$;

-- Restored rows whose parent would not be there.
create or replace function agentundo._missing_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  c pg_constraint;
  parent int;
  filled text; equal text; equal_target text;
begin
  select * into c from pg_constraint where oid = con;
  parent := agentundo._tracked_of(c.confrelid);
  select string_agg(format('k.%I is not null', f.attname), ' and ' order by n),
         string_agg(format('p.%I %s k.%I', p.attname, o, f.attname), ' and ' order by n),
         string_agg(format('x.%I %s k.%I', p.attname, o, f.attname), ' and ' order by n)
    into filled, equal, equal_target
    from (
      select n, c.confkey[n] as pk, c.conkey[n] as fk,
        (select format('operator(%I.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = c.confrelid and p.attnum = k.pk
    join pg_attribute f on f.attrelid = c.conrelid and f.attnum = k.fk;
  return format($sql$
    with target as materialized (%1$s),
    parent_target as materialized (%2$s)
    select k.agentundo_ord, 'missing_parent', %3$L, %4$L, null::bigint, %5$s
    from target k
    where %6$s
      and not exists (select from %7$s p where %8$s
        and not exists (select from unnest($1) a where a.status in ('ok', 'merge') and a.action in ('delete', 'update') and a.cur = p.ctid and a.part = p.tableoid))
      and not exists (select from parent_target x where %9$s)$sql$,
    agentundo._target_sql(t.id), case when parent is not null then agentundo._target_sql(parent) else 'select' end,
    c.conname, c.confrelid::regclass::text, coalesce(parent::text, 'null::int'), filled, c.confrelid::regclass::text, equal,
    case when parent is null then 'false' else equal_target end);
end
$body$;

-- force: the whole row as it was, whatever others made of it. What would break a constraint, or
-- what cannot be put back at all, stays a conflict.
create or replace function agentundo._force(d agentundo._decision[]) returns agentundo._decision[]
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select array_agg(
    case when x.status = 'conflict' and x.reason in ('row_changed', 'row_rewritten', 'row_deleted', 'row_exists') and (x.cur is not null or x.before is not null)
        -- without a key, what became of the row cannot be told
        and not (x.cur is null and x.before is null)
      then row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change,
        case when x.before is null then 'delete' when x.cur is null then 'insert' else 'update' end,
        'ok', null, x.basis, x.columns, null, x.unit, coalesce(x.detail, '{}') || jsonb_build_object('forced', x.reason))::agentundo._decision
      else row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change,
        x.action, x.status, x.reason, x.basis, x.columns, x.delta, x.unit, x.detail)::agentundo._decision
    end order by x.ordinality)
  from unnest(d) with ordinality x
$body$;

-- skip: conflicts stay as they are, with all rows of their unit. Where an earlier segment cannot be
-- reached, the last one alone goes back, to what the other writer had left.
create or replace function agentundo._skip(d agentundo._decision[]) returns agentundo._decision[]
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select array_agg(
    row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change, x.action,
      case when x.status = 'conflict' and x.reason = 'row_changed' and x.detail ->> 'last_segment' = 'ok' then 'ok'
        when x.status = 'conflict' or x.status in ('ok', 'merge') and x.unit in (
          select y.unit from unnest(d) y where y.status in ('conflict', 'skip') and y.unit is not null)
        then 'skip' else x.status end,
      case when x.status = 'conflict' and x.reason = 'row_changed' and x.detail ->> 'last_segment' = 'ok' then null else x.reason end, x.basis, x.columns, x.delta, x.unit, x.detail)::agentundo._decision order by x.ordinality)
  from unnest(d) with ordinality x
$body$;

-- Marks the rows that constraints hold up. `hits` tells how many were still free before.
create or replace function agentundo._obstruct(inout d agentundo._decision[], out hits bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  o record;
begin
  hits := 0;
  for o in
    select x.ord, (array_agg(x.reason))[1] as reason,
      jsonb_build_object('constraint', (array_agg(x.obstacle))[1], 'relation', (array_agg(x.other))[1]) as detail,
      jsonb_agg(distinct jsonb_build_array(x.writer_tracked, x.writer)) filter (where x.writer_tracked is not null) as writers
    from agentundo._obstacles(d) x group by x.ord
  loop
    d[o.ord].status := 'conflict';
    d[o.ord].reason := o.reason;
    d[o.ord].detail := coalesce(d[o.ord].detail, '{}') || o.detail || coalesce(jsonb_build_object('writers', o.writers), '{}');
    hits := hits + 1;
  end loop;
end
$body$;

-- Rows that row-level security hides from the caller: he may not decide about what he may not see.
create or replace function agentundo._hide(d agentundo._decision[]) returns agentundo._decision[]
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select case when not exists (
      select from agentundo._tracked t
      where t.id in (select x.tracked from unnest(d) x) and t.relation is not null and agentundo._rls_binds(t.relation, agentundo._caller()))
    then d
    else (
      select array_agg(
        case when x.status <> 'done' and t.relation is not null and agentundo._rls_binds(t.relation, agentundo._caller())
          then row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change,
            x.action, 'conflict', 'not_visible', x.basis, null, null, x.unit, null)::agentundo._decision
          else row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change,
            x.action, x.status, x.reason, x.basis, x.columns, x.delta, x.unit, x.detail)::agentundo._decision
        end order by x.ordinality)
      from unnest(d) with ordinality x join agentundo._tracked t on t.id = x.tracked)
  end
$body$;

-- Who wrote what stands in the way, as far as it was tagged: the invocations that cascade takes along.
create or replace function agentundo._blockers(ids text[], d agentundo._decision[]) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set row_security = off as
$body$
declare
  found text[] := '{}';
  more text[];
  t agentundo._tracked;
  same_key text;
begin
  for t in select * from agentundo._tracked x where x.relation is not null and x.id in (select y.tracked from unnest(d) y where y.status = 'conflict') loop
    -- the last writer of the row itself
    execute format($sql$
      select array_agg(distinct c.invocation)
      from unnest($1) x
      join lateral (select r.xmin::text::bigint as version from %s r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
      join agentundo._change c on c.tracked = x.tracked and c.change > x.change and c.xmin::text::bigint = r.version
      where x.tracked = $2 and x.status = 'conflict' and x.reason in ('row_changed', 'row_rewritten', 'row_exists')$sql$,
      agentundo._from(t)) into more using d, t.id;
    found := found || coalesce(more, '{}');
    -- who deleted it, or wrote in between two of ours
    select string_agg(format('h.%1$I %2$s k.%1$I', k.history_column, agentundo._equal(to_regtype(agentundo._history_type(to_regtype(k.base_type))))), ' and ' order by k.place)
      into same_key from agentundo._key(t.id) k;
    if same_key is not null then
      execute format($sql$
        select array_agg(distinct c.invocation)
        from unnest($1) x
        join lateral (select * from %1$s k where k.ctid = coalesce(x.after, x.before) offset 0) k on true
        join agentundo._change c on c.tracked = x.tracked and c.change <> all (agentundo._uncovered($3)) and c.invocation <> all ($3)
         and (c.change > x.change or x.detail ? 'segments')
        join %1$s h on h._change = coalesce(c.source, c.change) and %2$s
        where x.tracked = $2 and x.status = 'conflict' and (x.reason = 'row_deleted' or x.detail ? 'segments')$sql$, t.history, same_key)
        into more using d, t.id, ids;
      found := found || coalesce(more, '{}');
    end if;
  end loop;
  -- whoever wrote the rows that depend on ours, or hold our unique values
  select array_agg(distinct c.invocation) into more
    from unnest(d) x
    cross join lateral jsonb_array_elements(coalesce(x.detail -> 'writers', '[]')) w
    join agentundo._change c on c.tracked = (w ->> 0)::int and c.xmin::text::bigint = (w ->> 1)::bigint
   where x.status = 'conflict' and x.reason in ('has_dependents', 'unique_taken');
  found := found || coalesce(more, '{}');
  -- whoever took away the parents of rows that come back
  select array_agg(distinct c.invocation) into more
    from unnest(d) x
    cross join lateral jsonb_array_elements(coalesce(x.detail -> 'writers', '[]')) w
    join agentundo._change c on c.tracked = (w ->> 0)::int and c.change > x.change and c.operation in ('D', 'T', 'U')
   where x.status = 'conflict' and x.reason = 'missing_parent';
  found := found || coalesce(more, '{}');
  return array(
    select distinct f from unnest(found) f
    where f is not null and f <> all (ids)
      -- a revert of ours is no stranger, and one that is taken back already holds nothing up
      and not exists (select from agentundo._revert v where v.id = f and v.invocations && ids)
      and agentundo._uncovered(array[f]) <> '{}'
    order by f);
end
$body$;

-- Everything decided, for one set of invocations.
create or replace function agentundo._decide(ids text[], on_conflict text, merge boolean) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  changes bigint[] := agentundo._uncovered(ids);
  family bigint[] := agentundo._family(ids);
  d agentundo._decision[];
  found_more bigint;
begin
  select array_agg(n order by t.id) into d
    from agentundo._tracked t cross join lateral agentundo._net(t.id, changes, family) n
   where t.id in (select c.tracked from agentundo._change c where c.change = any (changes));
  d := coalesce(d, '{}');
  if exists (select from unnest(d) x where x.unit = 'moved') then
    d := agentundo._pair_moves(d);
  end if;
  if exists (select from unnest(d) x where x.reason in ('row_changed', 'row_rewritten')) then
    d := agentundo._merge(d, changes, family, merge);
  end if;
  d := agentundo._hide(d);
  if on_conflict = 'force' then
    d := coalesce(agentundo._force(d), '{}');
  end if;
  loop
    if on_conflict = 'skip' then
      d := coalesce(agentundo._skip(d), '{}');
    end if;
    select o.d, o.hits into d, found_more from agentundo._obstruct(d) o;
    exit when found_more = 0 or on_conflict <> 'skip';
  end loop;
  return d;
end
$body$;

-- cascade: the set grows by the tagged invocations that stand in its way, until none is left.
create or replace function agentundo._extend(ids text[], on_conflict text, merge boolean) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  more text[];
begin
  if on_conflict = 'cascade' then
    loop
      more := agentundo._blockers(ids, agentundo._decide(ids, on_conflict, merge));
      exit when more = '{}';
      ids := ids || more;
    end loop;
  end if;
  return ids;
end
$body$;

-- Decisions as people and programs read them: newest first, with values.
create or replace function agentundo._show(d agentundo._decision[]) returns setof agentundo.plan_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set row_security = off as
$body$
declare
  t agentundo._tracked;
  sources text[] := '{}';
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y) order by x.id loop
    if t.relation is null or not exists (select from pg_class where oid = t.relation) then
      sources := sources || format($sql$
        select x.ordinality as ord, x.tracked, null::jsonb as key, null::jsonb as before, null::jsonb as after, null::jsonb as current
        from unnest($1) with ordinality x where x.tracked = %s$sql$, t.id);
    else
      sources := sources || format($sql$
        select x.ordinality as ord, x.tracked,
          case when b.ctid is not null then %1$s when a.ctid is not null then %2$s end as key,
          case when b.ctid is not null then %3$s end as before,
          case when a.ctid is not null then %4$s end as after,
          case when r.ctid is not null then %5$s end as current
        from unnest($1) with ordinality x
        left join lateral (select h.ctid, h.* from %6$s h where h.ctid = x.before offset 0) b on true
        left join lateral (select h.ctid, h.* from %6$s h where h.ctid = x.after offset 0) a on true
        left join lateral (select r.ctid, r.* from %7$s r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
        where x.tracked = %8$s$sql$,
        agentundo._key_sql(t.id, 'b', 'history'), agentundo._key_sql(t.id, 'a', 'history'),
        agentundo._json_sql(t.id, 'b', 'history'), agentundo._json_sql(t.id, 'a', 'history'), agentundo._json_sql(t.id, 'r', 'table'),
        t.history, agentundo._from(t), t.id);
    end if;
  end loop;
  if sources = '{}' then
    return;
  end if;
  return query execute format($sql$
    with shown as (%s)
    select coalesce(i.step, c.step), c.invocation, coalesce(t.relation::text, t.name), s.key,
      case when x.status in ('done', 'conflict') and x.action = 'none' then 'none' else x.action end, x.status, x.reason, x.columns,
      case when x.reason = 'not_visible' then null else s.before end, case when x.reason = 'not_visible' then null else s.after end,
      case when x.reason = 'not_visible' then null else s.current end,
      nullif(jsonb_strip_nulls(coalesce(x.detail, '{}') - 'writers' || jsonb_build_object('basis', coalesce(x.detail ->> 'basis', x.basis), 'delta', x.delta, 'unit', x.unit)), '{}')
    from unnest($1) with ordinality x
    join shown s on s.ord = x.ordinality
    join agentundo._tracked t on t.id = x.tracked
    join agentundo._change c on c.change = x.change
    left join agentundo._invocation i on i.id = c.invocation
    order by x.change desc, x.ordinality$sql$, array_to_string(sources, ' union all ')) using d;
end
$body$;

-- Public ------------------------------------------------------------------------------------------------

create or replace function agentundo.plan(
  invocations text[], on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  perform agentundo._check_mode(on_conflict);
  perform agentundo._require_known(invocations, scope);
  return query select * from agentundo._show(agentundo._decide(agentundo._extend(invocations, on_conflict, coalesce(merge, false)), on_conflict, coalesce(merge, false)));
end
$body$;
comment on function agentundo.plan(text[], text, boolean, text) is
  'What revert() with the same arguments would do to each row, and what stands in its way. Reads only; works in READ ONLY and on a hot standby.';

create or replace function agentundo.plan(
  invocation text, on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language sql stable as
$body$ select * from agentundo.plan(array[invocation], on_conflict, merge, scope) $body$;
comment on function agentundo.plan(text, text, boolean, text) is
  'What revert() with the same arguments would do to each row, and what stands in its way. Reads only; works in READ ONLY and on a hot standby.';

-- The members of a run from a step on, those without anything left to take back included.
create or replace function agentundo._members(run text, from_step int, scope text) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  ids text[];
begin
  perform agentundo._check_id(run, 'run');
  if from_step is null or from_step < 1 then
    perform agentundo._fail('22023', format('agentundo: from_step is %s, not a number from 1', coalesce(from_step::text, 'NULL')), 'Steps count from 1.');
  end if;
  with member as (
    select i.id, i.step, i.created_at as at from agentundo._invocation i where i.run = _members.run
    union all
    select c.invocation, min(c.step), min(c.at) from agentundo._change c
    where c.run = _members.run and c.invocation is not null
      and not exists (select from agentundo._invocation i where i.id = c.invocation and i.run is not null)
    group by c.invocation),
  placed as (   -- a call without a step has the place that its time gives it
    select m.id, coalesce(max(m.step), (row_number() over (order by min(m.at)))::int) as step, min(m.at) as at from member m group by m.id)
  select array_agg(p.id order by p.step, p.at) into ids from placed p where p.step >= from_step
    and not exists (select from agentundo._revert v where v.id = p.id);
  if ids is null then
    perform agentundo._fail('UN002', format('agentundo: there is no run %L%s', left(run, 255), case when from_step > 1 then ' from step ' || from_step else '' end),
      'Check the run and the scope; agentundo.undoable() lists what there is.');
  end if;
  return ids;
end
$body$;

create or replace function agentundo.plan_run(
  run text, from_step int default 1, on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  return query select * from agentundo.plan(agentundo._members(run, from_step, scope), on_conflict, merge, scope);
end
$body$;
comment on function agentundo.plan_run(text, int, text, boolean, text) is
  'What revert_run() would do: all invocations of a run from a step on, as one unit. Reads only.';

create or replace function agentundo.plan_summary(
  invocations text[], on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_count language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  d agentundo._decision[];
begin
  perform agentundo._check_mode(on_conflict);
  perform agentundo._require_known(invocations, scope);
  d := agentundo._decide(agentundo._extend(invocations, on_conflict, coalesce(merge, false)), on_conflict, coalesce(merge, false));
  return query
    with first_few as (
      select array_agg(x.x order by x.n) as few
      from (select row(x.tracked, x.change, x.part, x.cur, x.before, x.after, x.before_change, x.after_change, x.action, x.status, x.reason,
              x.basis, x.columns, x.delta, x.unit, x.detail)::agentundo._decision as x, x.ordinality as n,
              row_number() over (partition by x.tracked, x.action, x.status order by x.ordinality) as place
            from unnest(d) with ordinality x where x.status in ('conflict', 'skip')) x
      where x.place <= 20),
    shown as (
      select s.relation, s.action, s.status, jsonb_agg(jsonb_build_object('key', s.key, 'reason', s.reason, 'columns', s.columns, 'invocation', s.invocation)) as conflicts
      from first_few f cross join lateral agentundo._show(f.few) s group by s.relation, s.action, s.status)
    select coalesce(t.relation::text, t.name), x.action, x.status, count(*), s.conflicts
    from unnest(d) x
    join agentundo._tracked t on t.id = x.tracked
    left join shown s on s.relation = coalesce(t.relation::text, t.name) and s.action = x.action and s.status = x.status
    group by coalesce(t.relation::text, t.name), x.action, x.status, s.conflicts
    order by 1, 2, 3;
end
$body$;
comment on function agentundo.plan_summary(text[], text, boolean, text) is
  'A plan in numbers: rows per table, action and status, with the first 20 conflicts of each. Reads only, and is cheaper than plan() for large sets.';
