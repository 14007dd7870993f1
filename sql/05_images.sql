-- 06  Images: how one row of history, or of a table, is read and compared
--
-- History keeps each column of a table in a history column of its own, named by attribute number, and
-- in a further one after the column has changed its type. What stands here turns a column of the table
-- into an SQL expression over a history row, whatever has happened to it since. These functions return
-- text: pieces of the statements that the following files put together.

-- The table as it stands in a FROM clause: its own rows, and those of its partitions, but not of tables
-- that inherit, which are tracked for themselves.
create or replace function agentundo._from(t agentundo._tracked) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select case when t.kind = 'inherited' then 'only ' else '' end || t.relation::text $body$;

-- The equality operator of a type's default btree class, qualified: `=` is looked up along the
-- search_path, and citext, ltree and others live in schemas that ours does not name.
create or replace function agentundo._equal(type oid) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  with base as (
    select coalesce(nullif(t.typbasetype, 0), t.oid) as oid from pg_type t where t.oid = type)
  select coalesce(
    (select format('operator(%I.%s)', n.nspname, o.oprname)
     from base
     join pg_opclass c on c.opcintype = base.oid and c.opcdefault
     join pg_am am on am.oid = c.opcmethod and am.amname = 'btree'
     join pg_amop p on p.amopfamily = c.opcfamily and p.amopstrategy = 3 and p.amoplefttype = c.opcintype and p.amoprighttype = c.opcintype
     join pg_operator o on o.oid = p.amopopr
     join pg_namespace n on n.oid = o.oprnamespace
     limit 1),
    'operator(pg_catalog.=)')
$body$;

-- May a value kept in history as `old` be given back as `new` without a loss? Then a retyped column
-- can still be restored.
create or replace function agentundo._widens(old text, new text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select old = new
    or exists (
      select from pg_cast c
      where c.castsource = to_regtype(old) and c.casttarget = to_regtype(new) and c.castcontext = 'i'
        and (c.castmethod = 'b' or (old, new) in (
          ('smallint', 'integer'), ('smallint', 'bigint'), ('smallint', 'numeric'), ('integer', 'bigint'), ('integer', 'numeric'),
          ('bigint', 'numeric'), ('real', 'double precision'), ('date', 'timestamp without time zone'), ('bpchar', 'text'), ('character varying', 'text'))))
$body$;

-- One column of an image as an SQL expression over the history alias, for the image of change number
-- `change` (an SQL expression too): picks the history column in which the table's column lived then.
-- null `known`: every image has it.
create or replace function agentundo._image_column(
  tracked_id int, attnum smallint, alias text, change text, out value text, out known text)
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  c record;
  newest record;
  pieces text := '';
  first_since bigint;
  n int := 0;
begin
  for c in select * from agentundo._columns(tracked_id) x where x.attnum = _image_column.attnum order by x.since_change desc loop
    if n = 0 then
      newest := c;
    end if;
    exit when not agentundo._widens(c.type, newest.type);
    n := n + 1;
    first_since := c.since_change;
    pieces := pieces || format(' when %s > %s then %I.%I%s', change, c.since_change, alias, c.history_column,
      case when c.type <> newest.type then '::' || newest.type else '' end);
  end loop;
  if n = 1 then
    value := format('%I.%I', alias, newest.history_column);
  else
    value := 'case' || pieces || ' end';
  end if;
  known := case when first_since > 0 then format('%s > %s', change, first_since) end;
end
$body$;

create or replace function agentundo._table_column(alias text, name name, type text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select format('%I.%I::%s', alias, name, type) $body$;

create or replace function agentundo._comparable(expression text, type text, by_value boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select case
    when not by_value then expression
    when type = 'numeric' then format('trim_scale(%s)', expression)
    when type = 'bpchar' then format('rtrim(%s)', expression)
    else expression end
$body$;

-- The row of an image, or of the table, as a record to be compared: all live columns in attribute
-- order. A column that the image does not know yet takes the table's own value, so that it differs
-- from nothing. `by_value`: for relations rewritten since, where ALTER TABLE may have padded or rescaled.
create or replace function agentundo._image_row(
  tracked_id int, alias text, change text, table_alias text default null, by_value boolean default false) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  c record;
  i record;
  list text[] := '{}';
  item text;
begin
  for c in select * from agentundo._columns(tracked_id) x where x.live order by x.attnum loop
    i := agentundo._image_column(tracked_id, c.attnum, alias, change);
    item := i.value;
    if i.known is not null then
      item := format('case when %s then %s else %s end', i.known, i.value,
        case when table_alias is null then format('null::%s', c.type) else agentundo._table_column(table_alias, c.name, c.type) end);
    end if;
    list := list || agentundo._comparable(item, c.type, by_value);
  end loop;
  return 'row(' || array_to_string(list, ', ') || ')::record';
end
$body$;

create or replace function agentundo._table_row(tracked_id int, alias text, by_value boolean default false) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select 'row(' || coalesce(string_agg(agentundo._comparable(agentundo._table_column(alias, c.name, c.type), c.type, by_value), ', ' order by c.attnum), '') || ')::record'
  from agentundo._columns(tracked_id) c where c.live
$body$;

-- The key of a tracked table as it is now: one row per column. No rows: the whole row is the key.
create or replace function agentundo._key(
  tracked_id int, out place int, out attnum smallint, out name name, out history_column name,
  out base_type text, out equal text)
returns setof record language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select k.n::int, c.attnum, c.name, c.history_column, format_type(a.atttypid, -1), agentundo._equal(a.atttypid)
  from agentundo._tracked t
  cross join lateral agentundo._best_key(t.relation) b
  cross join lateral unnest(b.columns) with ordinality k (attnum, n)
  join agentundo._columns(t.id) c on c.attnum = k.attnum and c.live
  join pg_attribute a on a.attrelid = t.relation and a.attnum = k.attnum
  where t.id = tracked_id
    -- A key column that was retyped since or came later cannot find old images again by join.
    and (select bool_and(x.since_change = 0) from agentundo._columns(t.id) x join unnest(b.columns) y (attnum) on y.attnum = x.attnum)
$body$;

