-- 15  Obstacles: what constraints say of the rows that a revert would write
--
-- The plan asks before anything is written: would a restored row break a CHECK, NOT NULL or domain, take
-- a unique value that somebody else holds, lack its parent; would a row that goes leave dependents. The
-- answers name the constraint and, for cascade, the version of the row in the way.
--
-- Each question is one SELECT, generated from the catalog. Its parameters are the decisions that would
-- be acted on, split so that the planner sees how many there are: $1 the restored rows of the table (to
-- insert or update), $2 those that go or change (to delete or update), $3 and $4 the same of the other
-- table of a foreign key. They are asked by agentundo_worker (_look()): code of the user's runs in them.

-- The columns of a restored row as SQL expressions over the aliases d (decision), b (image), r (current
-- row): what the image says, in the column's own type; where the image does not know the column, what
-- the row has, or the default for a row that comes back. In a merge only the columns named go back, and
-- a delta column loses what the set had added to it.
create or replace function agentundo._target_columns(tracked_id int)
returns table (attnum smallint, name name, value text, declared text, identity "char")
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with col as (
    select i.*, agentundo._base(a.atttypid) as base, format_type(agentundo._base(a.atttypid), -1) as base_type, format_type(a.atttypid, a.atttypmod) as declared,
      a.attidentity as identity, pg_get_expr(d.adbin, d.adrelid) as default_value,
      m.rule
    from agentundo._image_columns(tracked_id, 'b', 'd.before_change') i
    join agentundo._tracked t on t.id = tracked_id
    join pg_attribute a on a.attrelid = t.relation and a.attnum = i.attnum
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    left join agentundo._merge_rule m on m.tracked = t.id and m.attnum = i.attnum),
  restored as (
    select c.*, agentundo._given_back(c.value, c.base, true) as back from col c),
  filled as (
    select c.*, case when c.known is null then c.back
      else format('case when %s then %s when d.cur is not null then r.%I else (%s)::%s end', c.known, c.back, c.name, coalesce(c.default_value, 'null'), c.base_type) end as full_value
    from restored c)
  select c.attnum, c.name,
    case when c.rule = 'delta' then
      format('case when d.status = ''merge'' and jsonb_exists(d.delta, %1$L) then (r.%1$I - (d.delta ->> %1$L)::%2$s)::%4$s when d.status = ''merge'' and %1$L <> all (d.columns) then r.%1$I else %3$s end', c.name, agentundo._wide(c.type), c.full_value, c.base_type)
    else format('case when d.status = ''merge'' and %1$L <> all (d.columns) then r.%1$I else %2$s end', c.name, c.full_value) end,
    c.declared, c.identity
  from filled c
$body$;

-- The set's rows as the revert would leave them, one SELECT per table: columns under the table's own
-- names (generated ones computed) behind ours, which begin with agentundo_. `decisions` is the parameter that holds them.
create or replace function agentundo._target_sql(tracked_id int, decisions text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  columns_sql text;
  generated text;
begin
  select * into t from agentundo._tracked x where x.id = tracked_id;
  select string_agg(format('%s as %I', c.value, c.name), ', ' order by c.attnum)
    into columns_sql from agentundo._target_columns(tracked_id) c;
  select string_agg(format(', (%s)::%s as %I', pg_get_expr(d.adbin, d.adrelid), format_type(a.atttypid, a.atttypmod), a.attname), '' order by a.attnum)
    into generated
    from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
   where a.attrelid = t.relation and a.attgenerated <> '' and not a.attisdropped;
  return format($sql$
    select *%1$s from (
      select d.place as "agentundo.place", d.detail as "agentundo.detail", d.part as "agentundo.part", d.cur as "agentundo.cur"%2$s
      from unnest(%5$s) d
      left join lateral (select * from %3$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part%6$s offset 0) r on true) agentundo_row$sql$,
    coalesce(generated, ''), coalesce(', ' || columns_sql, ''), t.history,
    agentundo._from(t), decisions,
    -- the current row matters only where part of it stays
    case when exists (select from agentundo._columns(tracked_id) c where c.live and c.since_change > 0) then '' else ' and d.status = ''merge''' end);
end
$body$;

-- The tracked table that holds rows of a relation, if any.
create or replace function agentundo._tracked_of(relation regclass) returns int
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(
    (select m.tracked from agentundo._member m where m.relation = $1),
    (select x.id from agentundo._tracked x where x.relation = $1))
$body$;

-- The search_path that functions of a table's owner count on when they run in constraints and triggers:
-- the one that is set for him or for the database, never the caller's, since they run with our rights.
create or replace function agentundo._users_path(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when path ~ '\mpg_temp\M' then path else path || ', pg_temp' end
  from replace(coalesce((
    select substr(setting, length('search_path=') + 1)
    from pg_db_role_setting s
    cross join lateral unnest(s.setconfig) setting
    where setting like 'search\_path=%' and s.setrole in (0, (select c.relowner from pg_class c where c.oid = relation))
      and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
    order by s.setrole <> 0 desc, s.setdatabase <> 0 desc
    limit 1), '"$user", public'), '"$user"', (select quote_ident(pg_get_userbyid(c.relowner)) from pg_class c where c.oid = relation)) path
$body$;

-- Restored rows that break a CHECK, a NOT NULL or a domain that came or was tightened since, or of which a
-- column would keep less than it had (numeric(10,4) that has become numeric(10,2)).
create or replace function agentundo._broken_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with rule as (
    select a.attname::text as name, 'schema_changed' as reason,
      format('agentundo_row.%1$I is distinct from agentundo_row.%1$I::%2$s', a.attname, format_type(a.atttypid, a.atttypmod)) as broken
    from pg_attribute a where a.attrelid = t.relation and a.attnum > 0 and a.atttypmod >= 0 and not a.attisdropped and a.attgenerated = ''
      and a.atttypid in (select y.oid from pg_type y where y.typmodin <> 0 and y.typnamespace = 'pg_catalog'::regnamespace and y.typtype = 'b')
    union all
    select c.conname, 'constraint', format('(%s) is false', pg_get_expr(c.conbin, c.conrelid))
    from pg_constraint c where c.conrelid = t.relation and c.contype = 'c' and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
    union all
    select a.attname, 'constraint', format('agentundo_row.%I is null', a.attname)
    from pg_attribute a where a.attrelid = t.relation and a.attnum > 0 and a.attnotnull and not a.attisdropped and a.attgenerated = ''
    union all
    select coalesce(c.conname, y.typname), 'constraint', case when c.oid is null then format('agentundo_row.%I is null', a.attname)
        else format('(select (%s) is false from (select agentundo_row.%I as value) value)', substring(pg_get_constraintdef(c.oid) from '^CHECK \((.*)\)(?: NOT VALID)?$'), a.attname) end
    from pg_attribute a
    cross join lateral (
      with recursive b as (
        select ty.* from pg_type ty where ty.oid = a.atttypid and ty.typtype = 'd'
        union all select ty.* from pg_type ty join b on ty.oid = b.typbasetype and ty.typtype = 'd')
      select * from b) y
    left join pg_constraint c on c.contypid = y.oid and c.contype = 'c'
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and (c.oid is not null or y.typnotnull))
  select format($sql$
    with path as materialized (select set_config('search_path', $5, true))
    select "agentundo.place", broken[1], broken[2], %L, null::bigint, null::int
    from path, lateral (select agentundo_row."agentundo.place", case%s end as broken from (%s) agentundo_row offset 0) agentundo_judged
    where broken is not null$sql$,
    t.relation::text, coalesce(string_agg(format(' when %s then array[%L, %L]', broken, reason, name), ''), ' when false then ''{}''::text[]' ), agentundo._target_sql(t.id, '$1'))
  from rule
$body$;

-- Restored rows for which something else raises that is computed when they are written: a generated column, what an
-- index is over, a domain's own type. Null where nothing is.
create or replace function agentundo._unwritable_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with computed as (
    select format('agentundo_row.%I', a.attname) as value from pg_attribute a where a.attrelid = t.relation and a.attgenerated = 's' and not a.attisdropped
    union all
    select format('agentundo_row.%I::%s', a.attname, format_type(a.atttypid, a.atttypmod))
    from pg_attribute a join pg_type y on y.oid = a.atttypid
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and y.typtype = 'd'
    union all
    select format('(%s)', coalesce(pg_get_indexdef(i.indexrelid, n, true), pg_get_expr(i.indpred, i.indrelid)))
    from pg_index i cross join lateral (
      select n from generate_series(1, i.indnatts) n where i.indkey[n - 1] = 0 union all select null where i.indpred is not null) n (n)
    where i.indrelid = t.relation and i.indislive)
  select format($sql$
    with path as materialized (select set_config('search_path', $5, true))
    select "agentundo.place", 'constraint', null::text, %1$L, null::bigint, null::int
    from path, lateral (
      select agentundo_row."agentundo.place", row(%2$s)::record operator(pg_catalog.*<>) row(%2$s)::record as never from (%3$s) agentundo_row offset 0) agentundo_judged
    where never$sql$, t.relation::text, string_agg(value, ', '), agentundo._target_sql(t.id, '$1'))
  from computed having count(*) > 0
$body$;

-- A constraint may also raise for a value, or call what we cannot: then the rows are looked at in ever smaller
-- parts until it is known which ones it is about.
create or replace function agentundo._broken(t agentundo._tracked, statement text, restored agentundo._decision[])
returns table (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  half constant int := cardinality(restored) / 2;
begin
  return query select * from agentundo._look(statement, agentundo._users_path(t.relation), restored)
    as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
exception
  when insufficient_privilege or undefined_table or undefined_function then
    return;  -- a function of the user's cannot be run here: the revert itself will tell
  when data_exception or raise_exception then
    if half = 0 then
      -- what the function says of the row may be a value
      return query select restored[1].place, 'constraint', case when agentundo._reads_all(array[t.id]) then left(sqlerrm, 200) else 'SQLSTATE ' || sqlstate end,
        t.relation::text, null::bigint, null::int;
    else
      return query select * from agentundo._broken(t, statement, restored[:half]);
      return query select * from agentundo._broken(t, statement, restored[half + 1:]);
    end if;
end
$body$;

-- Does a foreign key of another table do something when a row of this one is deleted? Then rows cannot go
-- out and come in again, not even within one statement.
create or replace function agentundo._held_in_place(t agentundo._tracked) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from pg_constraint c
    where c.contype = 'f' and c.confdeltype <> 'a' and c.confrelid in (select agentundo._levels(t.relation, t.kind)))
$body$;

-- Restored values of a unique index or exclusion constraint that a row outside of the plan holds now; where
-- rows have to stay in place also those that another row of the plan holds until it is changed itself. What
-- goes makes room first, what comes comes last.
create or replace function agentundo._taken_sql(t agentundo._tracked, index regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  i pg_index;
  picked text;
  equal text;
  predicate text;
begin
  select * into i from pg_index where indexrelid = index;
  predicate := coalesce(' where ' || pg_get_expr(i.indpred, i.indrelid), '');
  select string_agg(format('(%s) as "agentundo.e%s"', pg_get_indexdef(index, n, true), n), ', ' order by n),
         string_agg(format(case when coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
             then '(k."agentundo.e%1$s" %2$s r."agentundo.e%1$s" or k."agentundo.e%1$s" is null and r."agentundo.e%1$s" is null)'
             else 'k."agentundo.e%1$s" %2$s r."agentundo.e%1$s"' end, n,
           coalesce((select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname) from pg_constraint c join pg_operator o on o.oid = c.conexclop[n]
                     where c.conindid = index and c.conexclop is not null limit 1),
             (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
              from pg_opclass oc join pg_amop p on p.amopfamily = oc.opcfamily and p.amopstrategy = 3 and p.amoplefttype = oc.opcintype and p.amoprighttype = oc.opcintype
              join pg_operator o on o.oid = p.amopopr where oc.oid = i.indclass[n - 1]),
             'operator(pg_catalog.=)')), ' and ' order by n)
    into picked, equal
    from generate_series(1, i.indnkeyatts) n;
  return format($sql$
    with target as materialized (%1$s),
    k as (select "agentundo.place", "agentundo.detail", "agentundo.part", "agentundo.cur", %2$s from target agentundo_row%3$s),
    r as (select ctid as "agentundo.ctid", tableoid as "agentundo.table", xmin::text::bigint as "agentundo.xmin", %2$s from %4$s agentundo_row%3$s)
    select k."agentundo.place", 'unique_taken', %5$L, %6$L, r."agentundo.xmin", %7$s
    from k join r on %8$s
    where not exists (
      select from unnest($2) a
      where a.cur = r."agentundo.ctid" and a.part = r."agentundo.table" and (
        a.action = 'delete' or a.place = k."agentundo.place"
        or (k."agentundo.cur" is null or %9$s) and not exists (select from k x where x."agentundo.place" = a.place and %10$s)))
    union all   -- two rows of the plan had it one after the other: the older gives way
    select k."agentundo.place", 'unique_taken', %5$L, %6$L, null::bigint, null::int
    from k join k x on %10$s and x."agentundo.place" <> k."agentundo.place"
    join unnest($1) d on d.place = k."agentundo.place" join unnest($1) newer on newer.place = x."agentundo.place"
    where (newer.change, newer.place) > (d.change, d.place)$sql$,
    agentundo._target_sql(t.id, '$1'), picked, predicate, agentundo._from(t),
    (select c.relname from pg_class c where c.oid = index), t.relation::text, t.id, equal,
    (not (i.indimmediate and agentundo._held_in_place(t)))::text, replace(equal, 'r."agentundo.e', 'x."agentundo.e'));
end
$body$;

-- The rows that a foreign key of this table binds: not those of tables that inherit from it.
create or replace function agentundo._bound(relation regclass) returns text
language sql stable as
$body$ select case when c.relkind = 'p' then '' else 'only ' end || relation::text from pg_class c where c.oid = relation $body$;

-- Rows that point at a row which would be deleted or lose the value they point at.
create or replace function agentundo._dependents_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_constraint;
  parent_cols text; child_equal text; target_equal text; child_target_equal text; child_target text;
  child int;
begin
  select * into c from pg_constraint where oid = con;
  child := agentundo._tracked_of(c.conrelid);
  select string_agg(format('r.%I::%s as "agentundo.v%s"', p.attname, format_type(agentundo._base(p.atttypid), -1), n), ', ' order by n),
         string_agg(format('gone."agentundo.v%s" %s ch.%I', n, o, f.attname), ' and ' order by n),
         -- bytewise, as the key itself tells whether it has to act
         format('row(%s)::record operator(pg_catalog.*=) row(%s)::record', string_agg(format('x.%I', p.attname), ', ' order by n), string_agg(format('gone."agentundo.v%s"', n), ', ' order by n)),
         string_agg(format('gone."agentundo.v%s" %s x.%I', n, o, f.attname), ' and ' order by n)
    into parent_cols, child_equal, target_equal, child_target_equal
    from (
      select n, c.confkey[n] as pk, c.conkey[n] as fk,
        (select format('operator(%s.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o,
        c.confrelid as prel, c.conrelid as frel
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = k.prel and p.attnum = k.pk
    join pg_attribute f on f.attrelid = k.frel and f.attnum = k.fk;
  child_target := case when child is not null then format($sql$
        and not exists (select from child_target x where x."agentundo.cur" = ch.ctid and x."agentundo.part" = ch.tableoid and (%s) is not true)$sql$, child_target_equal) else '' end;
  return format($sql$
    with target as materialized (%1$s),
    child_target as materialized (%2$s),
    gone as materialized (
      select d.place as "agentundo.place", %3$s
      from unnest($2) d
      join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true),
    lost as (   -- the value goes, and no other restored row has it, unless the key would act on that too
      select gone.* from gone
      where not exists (select from target x where x."agentundo.place" = gone."agentundo.place" and %6$s)),
    held as (
      select gone.*, exists (select from target x where %7$s) as passed_on from lost gone)
    select gone."agentundo.place", case when gone.passed_on then 'constraint' else 'has_dependents' end, %8$L, %9$L, ch.xmin::text::bigint, %10$s
    from held gone join %11$s ch on %12$s
    where not (gone.passed_on and %13$s)
      and not exists (select from unnest(%5$s) a where a.action = 'delete' and a.cur = ch.ctid and a.part = ch.tableoid)%14$s$sql$,
    agentundo._target_sql(t.id, '$1'), case when child is not null then agentundo._target_sql(child, '$3') else 'select' end,
    parent_cols, agentundo._from(t), '$4',
    target_equal, target_equal,
    c.conname, c.conrelid::regclass::text, coalesce(child::text, 'null::int'), agentundo._bound(c.conrelid), child_equal,
    (c.confdeltype = 'a' and c.confupdtype = 'a')::text, child_target);
end
$body$;

-- Restored rows whose parent would not be there.
create or replace function agentundo._missing_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
        (select format('operator(%s.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = c.confrelid and p.attnum = k.pk
    join pg_attribute f on f.attrelid = c.conrelid and f.attnum = k.fk;
  return format($sql$
    with target as materialized (%1$s),
    parent_target as materialized (%2$s)
    select k."agentundo.place", 'missing_parent', %3$L, %4$L, null::bigint, %5$s
    from target k
    where %6$s
      and not exists (select from %7$s p where %8$s
        and not exists (select from unnest($4) a where a.cur = p.ctid and a.part = p.tableoid))
      and not exists (select from parent_target x where %9$s)$sql$,
    agentundo._target_sql(t.id, '$1'), case when parent is not null then agentundo._target_sql(parent, '$3') else 'select' end,
    c.conname, c.confrelid::regclass::text, coalesce(parent::text, 'null::int'), filled, agentundo._bound(c.confrelid), equal,
    case when parent is null then 'false' else equal_target end);
end
$body$;

-- The same two for a key over a period (18): what a child says has to be covered by all its parents together. A child that
-- goes back itself is asked as such.
create or replace function agentundo._uncovered_sql(t agentundo._tracked, con oid, dependents boolean) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_constraint;
  other int;
  child_period text; parent_period text; filled text; meets text; going_columns text;
begin
  select * into c from pg_constraint where oid = con;
  other := agentundo._tracked_of(case when dependents then c.conrelid else c.confrelid end);
  select string_agg(format('ch.%I is not null', f.attname), ' and ' order by n),
         string_agg(format('p.%I operator(%s.%s) ch.%I', p.attname, o.oprnamespace::regnamespace, o.oprname, f.attname), ' and ' order by n),
         string_agg(format('r.%I', p.attname), ', ' order by n),
         (array_agg(format('ch.%I', f.attname) order by n desc))[1], (array_agg(quote_ident(p.attname) order by n desc))[1]
    into filled, meets, going_columns, child_period, parent_period
    from generate_subscripts(c.confkey, 1) n
    join pg_attribute p on p.attrelid = c.confrelid and p.attnum = c.confkey[n]
    join pg_attribute f on f.attrelid = c.conrelid and f.attnum = c.conkey[n]
    join pg_operator o on o.oid = c.conpfeqop[n];
  return replace(format(case when dependents then $sql$
    with parent_target as materialized (%1$s),
    gone as materialized (
      select d.place, %2$s from unnest($2) d join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true)
    select p.place, 'has_dependents', %4$L, %5$L, ch.xmin::text::bigint, %6$s
    from gone p join %7$s ch on %8$s
    where not exists (select from unnest($4) a where a.cur = ch.ctid and a.part = ch.tableoid)
      and {{uncovered}}$sql$
    else $sql$
    with child_target as materialized (%1$s), parent_target as materialized (%2$s)
    select ch."agentundo.place", 'missing_parent', %4$L, %5$L, null::bigint, %6$s
    from child_target ch
    where %9$s and {{uncovered}}$sql$ end,
    agentundo._target_sql(t.id, '$1'),
    case when dependents then going_columns when other is not null then agentundo._target_sql(other, '$3') else 'select' end,
    agentundo._from(t), c.conname, case when dependents then c.conrelid else c.confrelid end::regclass::text, coalesce(other::text, 'null::int'),
    agentundo._bound(c.conrelid), meets, filled),
    '{{uncovered}}', format($sql$(%1$s operator(pg_catalog.<@) (
        select range_agg(found.period)
        from (
          select p.%2$s as period from %3$s p where %4$s and not exists (select from unnest(%5$s) a where a.cur = p.ctid and a.part = p.tableoid)
          %6$s) found)) is not true$sql$,
      child_period, parent_period, agentundo._bound(c.confrelid), meets, case when dependents then '$2' else '$4' end,
      case when dependents or other is not null then format('union all select p.%s from parent_target p where %s', parent_period, meets) end));
end
$body$;

create or replace function agentundo._readable(relation regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select has_table_privilege(relation, 'select') and not row_security_active(relation)
    and has_schema_privilege((select c.relnamespace from pg_class c where c.oid = relation), 'usage')
$body$;

-- Those of the rows that lie in one level of a partitioned table. Where a row comes to lie that is not
-- there yet, PostgreSQL decides; a constraint of that level then speaks for itself.
create or replace function agentundo._within(d agentundo._decision[], root regclass, level regclass) returns agentundo._decision[]
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select case when level = root then d
    else array(select x from unnest(d) x where x.part in (select agentundo._tree(level))) end
$body$;

-- All of them. One finding per row and obstacle; `writer` is the xmin of the row in the way, by which
-- cascade finds who wrote it.
create or replace function agentundo._obstacles(d agentundo._decision[])
returns table (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set jit = off as
$body$
declare
  t agentundo._tracked;
  restored agentundo._decision[];
  going agentundo._decision[];
  moved boolean;
  key smallint[];
  statement text;
  broken int[] := array[]::int[];
  here regclass;
  f record;
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') order by x.id loop
    restored := array(select x from unnest(d) x where x.tracked = t.id and x.status in ('ok', 'merge') and x.action in ('insert', 'update'));
    going := array(select x from unnest(d) x where x.tracked = t.id and x.status in ('ok', 'merge') and x.action in ('delete', 'update'));
    moved := exists (select from unnest(restored) x where x.detail ? 'moved');
    key := coalesce((agentundo._best_key(t.relation)).columns, '{}');
    if restored <> '{}' then
      -- Rows that cannot be written at all hold nothing that others would want.
      foreach statement in array array_remove(array[agentundo._broken_sql(t), agentundo._unwritable_sql(t)], null) loop
        for place, reason, obstacle, other, writer, writer_tracked in select * from agentundo._broken(t, statement, restored) loop
          return next;
          broken := broken || place;
        end loop;
        if broken <> '{}' then
          restored := array(select x from unnest(restored) x where x.place <> all (broken));
        end if;
      end loop;
      for f in
        select i.indexrelid::regclass as name from pg_index i
        where i.indrelid = t.relation and i.indisvalid and (i.indisunique or i.indisexclusion)
          -- under the key itself another row would be the same row; only moved ones can collide
          and (moved or i.indkey::smallint[] <> key or i.indisexclusion or i.indpred is not null)
      loop
        return query select * from agentundo._look(agentundo._taken_sql(t, f.name), agentundo._users_path(t.relation), restored, going)
          as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
      end loop;
    end if;
    for f in
      select c.oid, coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false) as over_period, c.conname::text as name, c.confkey, c.confrelid, c.conrelid, way.up, c.confdeltype not in ('a', 'r') or c.confupdtype not in ('a', 'r') as acts,
        case when way.up then c.conrelid else c.confrelid end::regclass as relation,
        coalesce(agentundo._tracked_of(case when way.up then c.conrelid else c.confrelid end), 0) as other
      from pg_constraint c cross join (values (true), (false)) way (up)
      where c.contype = 'f' and c.conparentid = 0
        and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
        -- keys of the table or, for a partitioned one, of one of its levels
        and case when way.up then c.confrelid in (select agentundo._levels(t.relation, t.kind)) and going <> '{}'
              -- a referenced key stays with its row unless the row goes or moves
              and (moved or c.confrelid <> t.relation or not c.confkey <@ key or exists (select from unnest(going) x where x.action = 'delete'))
            else c.conrelid in (select agentundo._levels(t.relation, t.kind)) and restored <> '{}' end
    loop
      here := case when f.up then f.confrelid else f.conrelid end;
      -- A table that we may not read: the key itself will refuse what would break it. Only where it would
      -- act (CASCADE, SET NULL) nobody would be asked, so the rows stay.
      if not agentundo._readable(f.relation) then
        return query
          select x.place, 'has_dependents', f.name, f.relation::text || ' (grant us SELECT to look into it)', null::bigint, null::int
          from unnest(agentundo._within(going, t.relation, here)) x where f.up and f.acts and (x.action = 'delete' or x.detail ? 'moved' or not f.confkey <@ key);
        continue;
      end if;
      return query
        select * from agentundo._look(case when f.over_period then agentundo._uncovered_sql(t, f.oid, f.up) when f.up then agentundo._dependents_sql(t, f.oid) else agentundo._missing_sql(t, f.oid) end,
          agentundo._users_path(t.relation), agentundo._within(restored, t.relation, here), agentundo._within(going, t.relation, here),
          array(select x from unnest(d) x where x.tracked = f.other and x.status in ('ok', 'merge') and x.action in ('insert', 'update')),
          array(select x from unnest(d) x where x.tracked = f.other and x.status in ('ok', 'merge') and x.action in ('delete', 'update')))
          as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
    end loop;
  end loop;
end
$body$;
