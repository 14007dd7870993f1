-- 04  Shape: how we see a table
--
-- What stands here looks at the catalog and changes nothing: in which types history keeps columns, what
-- a table's key is, which of its columns history knows under which name, whether a table can be tracked
-- at all, and whether it still looks as it did when its capture function was made.
--
-- Between an ALTER and the sync() after it (at once where event triggers exist, else when somebody
-- calls it), each capture function notices at plan time that the shape has changed, through
-- _shape_ok(), and refuses tagged writes with UN008. It never stores a row short of a column.

-- Small functions like the next one have no SET clause of their own, so that they can be inlined or are
-- cheap to call a thousand times: whoever calls them has pinned the search_path.

-- The type in which history keeps a column: no modifier (it would round), a domain's base type (its
-- checks may have changed), an enum as text (its type may be dropped). Arrays of domains likewise; where
-- those stand for something composite, whose input would run checks of fields, as arrays of text.
create or replace function agentundo._history_type(type oid) returns text
language plpgsql stable as
$body$
declare
  t pg_type;
  element pg_type;
begin
  select * into t from pg_type where oid = type;
  if t.typtype = 'd' then
    return agentundo._history_type(t.typbasetype);
  elsif t.typtype = 'e' then
    return 'text';
  elsif t.typelem <> 0 and t.typsubscript = 'array_subscript_handler'::regproc then
    select * into element from pg_type where oid = t.typelem;
    if element.typtype = 'e' then
      return 'text[]';
    elsif element.typtype = 'd' then
      return case when (select b.typtype = 'b' and b.typelem = 0 from pg_type b where b.oid = agentundo._base(element.oid))
        then agentundo._history_type(element.oid) else 'text' end || '[]';
    end if;
  end if;
  return format_type(type, -1);
end
$body$;

-- How we name a table to people: always with its schema, quoted where needed.
create or replace function agentundo._name(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('%s.%I', relnamespace::regnamespace, relname) from pg_class where oid = relation
$body$;

-- The enum behind a type: itself, its base if it is a domain, its elements' if it is an array.
create or replace function agentundo._enum(type oid) returns oid
language sql stable as
$body$
  with recursive t as (
    select y.oid, y.typtype, y.typbasetype, y.typelem, y.typcategory from pg_type y where y.oid = type
    union all
    select y.oid, y.typtype, y.typbasetype, y.typelem, y.typcategory from pg_type y
    join t on y.oid = case when t.typtype = 'd' then t.typbasetype when t.typcategory = 'A' then t.typelem end)
  select oid from t where typtype = 'e'
$body$;

-- A type without its domains.
create or replace function agentundo._base(type oid) returns oid
language sql stable as
$body$
  with recursive b as (
    select t.oid, t.typtype, t.typbasetype from pg_type t where t.oid = type
    union all select t.oid, t.typtype, t.typbasetype from pg_type t join b on b.typtype = 'd' and t.oid = b.typbasetype)
  select oid from b where typtype <> 'd'
$body$;

-- An array as another kind of array, by way of text that means the same in every session: through output
-- and input functions, never through a cast. `kind` is a null of the type wanted.
create or replace function agentundo._array_as(value anyarray, kind anycompatiblearray) returns anycompatiblearray
language plpgsql stable set search_path = pg_catalog, pg_temp set extra_float_digits = 3 set datestyle = 'ISO'
set intervalstyle = 'postgres' set array_nulls = on as
$body$
declare
  result alias for $0;
begin
  if value is not null then
    execute format('select %L::%s', format('%s', value), pg_typeof(kind)) into result;  -- a literal meets the input function only
  end if;
  return result;
end
$body$;

-- A column as history stores it. Where that is another type (enums, arrays of enums or of domains), it
-- goes through its output function: a cast could be a function of the user's, and would run with our
-- rights.
create or replace function agentundo._stored(alias text, name name, type oid) returns text
language sql stable as
$body$
  select case
    when y.typtype = 'b' and y.typelem = 0 then format('%I.%I', alias, name)
    else (
      select case
        when h.type = y.oid then format('%I.%I', alias, name)
        when h.type = agentundo._base(y.oid) then format('%I.%I::%s', alias, name, h.qualified)  -- takes the domain's name off
        when h.type = 'text'::regtype then format('case when %1$I.%2$I is not null then pg_catalog.format(''%%s'', %1$I.%2$I) end', alias, name)
        else format('agentundo._array_as(%I.%I, null::%s)', alias, name, h.qualified) end
      from (
        select k.oid as type, format('%s.%I', k.typnamespace::regnamespace, k.typname) as qualified
        from pg_type k where k.oid = to_regtype(agentundo._history_type(y.oid))) h) end
  from pg_type y where y.oid = type
$body$;

-- A fingerprint of what capture relies on: the columns in order, their types, what is generated, and
-- which tables inherit.
create or replace function agentundo._shape(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive heir as (
    select i.inhrelid from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = relation and not c.relispartition
    union
    select i.inhrelid from pg_inherits i join heir h on i.inhparent = h.inhrelid)
  select agentundo._digest(
      coalesce((select string_agg(format('%s %L %s %L', attnum, attname, agentundo._history_type(atttypid), attgenerated), ',' order by attnum)
                from pg_attribute where attrelid = relation and attnum > 0 and not attisdropped), '')
      || coalesce((select string_agg(agentundo._name(h.inhrelid), ',' order by agentundo._name(h.inhrelid)) from heir h), '')
      || exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhrelid = relation and not c.relispartition))
$body$;

-- The best key: the primary key, else the narrowest unique index over columns that are all NOT NULL.
-- In PL/pgSQL, as what is called many times for one statement below, because its plan is kept.
create or replace function agentundo._best_key(relation regclass, out columns smallint[], out index regclass)
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  select i.indkey::smallint[], i.indexrelid::regclass into columns, index
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
   where i.indrelid = relation and i.indisunique and i.indisvalid
     and i.indpred is null and i.indexprs is null and i.indnkeyatts = i.indnatts
     and (select am.amname from pg_am am where am.oid = c.relam) = 'btree'
     and not coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
     and not exists (
       select from pg_attribute a
       where a.attrelid = relation and a.attnum = any (i.indkey)
         -- history has no generated columns, nor a way back from text to arrays of enums but by a cast of the user's
         and (not a.attnotnull or a.attgenerated <> '' or (
           select element.typtype in ('e', 'd')
           from pg_type y join pg_type base on base.oid = coalesce(nullif(y.typbasetype, 0), y.oid) join pg_type element on element.oid = base.typelem
           where y.oid = a.atttypid)))
   order by i.indisprimary desc, i.indimmediate desc, i.indnkeyatts, i.indexrelid
   limit 1;
end
$body$;

create or replace function agentundo._last_change() returns bigint
language sql stable as
$body$ select case when is_called then last_value else 0 end from agentundo._change_number $body$;

-- Is this database a logical copy to which sync() has not been yet? While it is being restored, too.
create or replace function agentundo._is_copy() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select not exists (select from agentundo._stamp s where s.own_xmin = s.xmin::text::bigint and s.own_table = s.tableoid::bigint) $body$;

-- The sequences of ours that are behind what is there: logical replication copies rows, not sequences.
create or replace function agentundo._late_sequences() returns table (sequence regclass, reached bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  s record;
  last bigint;
begin
  for s in
    select 'agentundo._change_number'::regclass as sequence, 'select max(n) from (select max(change) as n from agentundo._change union all select max(number) from agentundo._revert union all select max(greatest(all_since, nullif(key_since, 9223372036854775807))) from agentundo._tracked union all select max(greatest(since_change, nullif(until_change, 9223372036854775807))) from agentundo._column union all select max(greatest(since_change, until_change)) from agentundo._label union all select max(change) from agentundo._erased union all select max(greatest(emptied, rewritten)) from agentundo._member union all select max(trusted_after) from agentundo._stamp) n' as query
    union all
    select pg_get_serial_sequence(c.oid::regclass::text, a.attname)::regclass, format('select max(%I) from %s', a.attname, c.oid::regclass)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> '' and not a.attisdropped
    where c.relnamespace = 'agentundo'::regnamespace and c.relkind = 'r'
  loop
    execute s.query into reached;
    execute format('select case when is_called then last_value else 0 end from %s', s.sequence) into last;
    if reached > last then
      sequence := s.sequence;
      return next;
    end if;
  end loop;
end
$body$;

-- One after the other: whoever lifts a sequence again that others use already, would set it back.
create or replace function agentundo._lift_sequences() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if exists (select from agentundo._late_sequences()) then
    perform from agentundo._home for update;
    perform setval(s.sequence, s.reached) from agentundo._late_sequences() s;
  end if;
end
$body$;

-- The columns of a tracked table that history knows, with their present names. Columns are followed
-- by attribute number; after a logical copy, which renumbers them, by name until the next sync().
-- `live`: the table has the column now, with this type. A column that history does not know yet, because
-- it was added or retyped and no sync() has followed, stands here without a history column, as if it
-- came after all changes. `type` is history's, `type_now` the table's own.
create or replace function agentundo._columns(
  tracked_id int, out history_column name, out attnum smallint, out name name, out type text,
  out since_change bigint, out until_change bigint, out live boolean, out type_now oid)
returns setof record language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
#variable_conflict use_column
begin
  return query
  with present as materialized (
    select a.attnum, a.attname, a.atttypid,
      case when y.typtype = 'b' and y.typelem = 0 then format_type(y.oid, -1) else agentundo._history_type(y.oid) end as type
    from agentundo._tracked t
    join pg_attribute a on a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    join pg_type y on y.oid = a.atttypid
    where t.id = tracked_id),
  located as (
    select c.*, case when c.attnum < 0 then null when s.copied then p.attnum else c.attnum end as place
    from agentundo._column c
    cross join (select agentundo._is_copy() as copied offset 0) s
    left join present p on p.attname = c.name
    where c.tracked = tracked_id),
  stored as materialized (
    select c.history_column, coalesce(a.attnum, -abs(c.attnum)) as attnum, coalesce(a.attname, c.name) as name, c.type, c.since_change,
      case when a.type = c.type or a.attnum is null then c.until_change else coalesce(c.until_change, 9223372036854775807) end as until_change,
      c.until_change is null and a.type is not distinct from c.type as live, a.atttypid as type_now
    from located c
    left join present a on a.attnum = c.place)
  select x.history_column, x.attnum, x.name, x.type, x.since_change, x.until_change, x.live, x.type_now
  from (
    select * from stored
    union all
    select null, p.attnum, p.attname, p.type, 9223372036854775807, null, true, p.atttypid
    from present p where not exists (select from stored s where s.attnum = p.attnum and s.live)) x
  order by abs(x.attnum), x.since_change;
end
$body$;

-- The root above a partition, or the table itself. pg_partition_root() stops where a partition is being detached
-- concurrently, although its rows still belong to the root.
create or replace function agentundo._root(relation regclass) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  above oid := relation;
begin
  loop
    select i.inhparent into above from pg_class c join pg_inherits i on i.inhrelid = c.oid where c.oid = relation and c.relispartition;
    exit when not found;
    relation := above;
  end loop;
  return relation;
end
$body$;

-- Called from capture functions as a condition on constants, and declared immutable although it
-- reads the catalog: so the planner folds it away, once for each plan, and plans are thrown away by
-- every ALTER of the table. In the hot path it costs nothing.
create or replace function agentundo._shape_ok(member int) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  m record;
  root regclass;
begin
  select mb.relation, mb.shape, t.relation as tracked_root, t.kind, t.name, t.history, c.relfilenode
    into m
    from agentundo._member mb
    join agentundo._tracked t on t.id = mb.tracked
    join pg_class c on c.oid = mb.relation
   where mb.id = member;
  if m.relation is null and current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = '40001', message = 'agentundo: a table is tracked since this transaction began',
      hint = 'Begin a new transaction, then repeat the write.';
  end if;
  root := case when m.kind = 'partitioned' then agentundo._root(m.relation) else m.relation end;
  if m.relation is not null and not exists (select from pg_class c where c.oid = m.history) then
    perform agentundo._fail('UN008', format('agentundo: the history of %s is gone; the write is refused', m.name),
      format('Somebody dropped its history table. Run "select agentundo.untrack(%1$L, keep_history => false)" and "select agentundo.track(%1$L)": what was captured before is lost.', m.name),
      jsonb_build_object('relation', m.relation::text));
  end if;
  -- Under REPEATABLE READ our look at the catalog may be older than the table: the filenode is not.
  if m.relfilenode <> 0 and m.relfilenode is distinct from pg_relation_filenode(m.relation) then
    raise exception using errcode = '40001', message = format('agentundo: table %s was rewritten since this transaction began', m.relation),
      hint = 'Begin a new transaction, then repeat the write.';
  elsif m.relation is null or m.shape is distinct from agentundo._shape(m.relation) or root is distinct from m.tracked_root then
    perform agentundo._fail('UN008',
      format('agentundo: table %s has changed since it was tracked; the write is refused', coalesce(m.relation::text, m.name, '?')),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat the write.', coalesce(m.name, m.relation::text)),
      jsonb_build_object('relation', m.relation::text));
  end if;
  return true;
end
$body$;

-- Why a relation cannot be tracked; null: it can.
create or replace function agentundo._why_not_trackable(relation regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_class;
  r text;
begin
  select * into c from pg_class where oid = relation;
  if not found then
    return 'it does not exist';
  end if;
  r := case c.relkind
    when 'v' then 'it is a view; track the tables below it'
    when 'm' then 'it is a materialized view; track the tables below it'
    when 'f' then 'it is a foreign table; its rows live in another server'
    when 'S' then 'it is a sequence'
    when 'i' then 'it is an index' when 'I' then 'it is an index'
    when 'c' then 'it is a composite type'
    when 't' then 'it is a TOAST table'
    when 'r' then null when 'p' then null
    else 'it is not a table' end;
  if r is not null then
    return r;
  elsif c.relpersistence = 't' then
    return 'it is a temporary table; it ends with its session';
  elsif c.relnamespace::regnamespace::text in ('pg_catalog', 'information_schema', 'pg_toast') or relation::oid < 16384 then
    return 'it is a system catalog';
  elsif c.relnamespace::regnamespace::text in ('agentundo', 'agentundo_history') then
    return 'it is one of our own tables';
  elsif not exists (select from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') then
    return 'it has no columns of its own to restore';
  elsif (select count(*) from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') > 1598 then
    return 'it has more than 1598 columns; history needs room for two of ours beside them';
  elsif exists (select from pg_attribute a where a.attrelid = relation and a.attnum > 0 and a.attname like 'agentundo.%') then
    return 'it has a column named "agentundo.*", as we name columns in our queries; rename it';
  elsif c.relispartition then
    return format('it is a partition; track its root %s', agentundo._root(relation));
  elsif exists (select from pg_rewrite where ev_class = relation and ev_type <> '1') then
    return 'it has rules on INSERT, UPDATE or DELETE, under which rows cannot be put back';
  elsif c.relkind = 'r' and (select amname from pg_am where oid = c.relam) <> 'heap' then
    return format('its access method is %s, which has no row versions of the kind of heap', (select amname from pg_am where oid = c.relam));
  elsif c.relrowsecurity then
    select format('it has row-level security, and %s would not see all of its rows; a superuser can run "alter role %I bypassrls"', o.rolname, o.rolname)
      into r
      from pg_roles o
     where o.rolname in (current_user, agentundo._worker()) and not (o.rolbypassrls or o.rolsuper)
       and (c.relforcerowsecurity or not pg_has_role(o.rolname, c.relowner, 'usage'))
     order by o.rolname limit 1;
  end if;
  return r;
end
$body$;

-- Triggers that are neither ours nor made by PostgreSQL for a constraint. Before version 15 the copies that
-- partitions have of a row trigger counted as internal.
create or replace view agentundo._users_triggers as
select g.* from pg_catalog.pg_trigger g
where (not g.tgisinternal or g.tgparentid <> 0 and g.tgfoid not in (
    select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace and p.proname like 'RI\_FKey\_%'))
  and g.tgfoid not in (select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'agentundo'::pg_catalog.regnamespace);
