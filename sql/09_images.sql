-- 09  Images: how one row of history, or of a table, is read and compared
--
-- History keeps each column of a table in a history column of its own, named by attribute number, and
-- in a further one after the column has changed its type. What stands here turns a column of the table
-- into an SQL expression over a history row, whatever has happened to it since. These functions return
-- text: pieces of the statements that the following files put together.

-- A template with its {{placeholders}} filled in, in one pass: what is filled in is not looked at again. One
-- that has no value stays, and the statement says so by failing.
create or replace function agentundo._fill(template text, pieces jsonb) returns text
language sql immutable as
$body$
  select string_agg(piece || coalesce(pieces ->> name, '{{' || name || '}}', ''), '' order by n)
  from rows from (
    regexp_split_to_table(template, '[{][{][a-z_]+[}][}]'),
    regexp_matches(template, '[{][{]([a-z_]+)[}][}]', 'g')) with ordinality x (piece, names, n)
  cross join lateral (select names[1]) y (name)
$body$;

-- The table as it stands in a FROM clause: its own rows, and those of its partitions, but not of tables
-- that inherit, which are tracked for themselves.
create or replace function agentundo._from(t agentundo._tracked) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select case when t.kind = 'inherited' then 'only ' else '' end || t.relation::text $body$;

-- The equality operator of a type's default btree class, qualified: `=` is looked up along the
-- search_path, and citext, ltree and others live in schemas that ours does not name.
create or replace function agentundo._equal(type oid) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
language sql stable as
$body$
  select old = new
    or exists (
      select from pg_cast c
      where c.castsource = to_regtype(old) and c.casttarget = to_regtype(new) and c.castcontext = 'i'
        and (c.castmethod = 'b' or (old, new) in (
          ('smallint', 'integer'), ('smallint', 'bigint'), ('smallint', 'numeric'), ('integer', 'bigint'), ('integer', 'numeric'),
          ('bigint', 'numeric'), ('real', 'double precision'), ('date', 'timestamp without time zone'), ('bpchar', 'text'), ('character varying', 'text'))))
$body$;

-- Has a label of this enum column been renamed since it was tracked? Nearly never, and then its images
-- are read as they are.
create or replace function agentundo._renamed_labels(tracked_id int, attnum smallint) returns boolean
language sql stable as
$body$
  select exists (
    select from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    where l.tracked = tracked_id and l.attnum = _renamed_labels.attnum
      and not exists (select from pg_enum e where e.enumtypid = agentundo._enum(a.atttypid) and e.enumlabel = l.label and e.oid::bigint = l.place))
$body$;

-- An enum label of change number `change` as it is called today: it kept its place in the order.
create or replace function agentundo._label_now(tracked_id int, attnum smallint, label text, change bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((
    select e.enumlabel::text
    from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid) and e.oid::bigint = l.place
    where l.tracked = tracked_id and l.attnum = _label_now.attnum and l.label = _label_now.label
    order by change > l.since_change and change <= coalesce(l.until_change, change) desc, l.since_change desc
    limit 1), label)
$body$;

-- The same for arrays of labels, keeping their dimensions and bounds.
create or replace function agentundo._label_now(tracked_id int, attnum smallint, labels text[], change bigint) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  old record;
begin
  for old in select distinct l, row_number() over () as n from unnest(labels) l where l is not null group by l loop
    labels := array_replace(labels, old.l, e'\x01' || old.n);
    labels := array_replace(labels, e'\x01' || old.n, e'\x02' || agentundo._label_now(tracked_id, attnum, old.l, change));
  end loop;
  for old in select distinct l from unnest(labels) l where l like e'\x02%' loop
    labels := array_replace(labels, old.l, substr(old.l, 2));
  end loop;
  return labels;
end
$body$;

-- The live columns of a table as SQL expressions over an image: `value` over the history alias, for the
-- image of change number `change` (an SQL expression too), from the history column in which the column
-- lived then; `known` is a condition that the image has it at all, null where every image does.
create or replace function agentundo._image_columns(tracked_id int, alias text, change text)
returns table (attnum smallint, name name, type text, type_now oid, value text, known text, since_change bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with piece as (
    select c.*, first_value(c.type) over w as newest_type, bool_or(c.live) over w as lives
    from agentundo._columns(tracked_id) c
    where c.until_change is null or c.until_change > c.since_change  -- else it came and went without an image
    window w as (partition by c.attnum order by c.since_change desc)),
  usable as (
    select p.*, bool_and(agentundo._widens(p.type, p.newest_type)) over (partition by p.attnum order by p.since_change desc) as usable
    from piece p where p.lives),
  merged as (
    select u.attnum, (array_agg(u.name order by u.since_change desc))[1] as name, min(u.newest_type) as type, min(u.type_now) as type_now,
      count(u.history_column) as pieces, count(*) as every, min(u.history_column) as only_one,
      (array_agg(u.history_column order by u.since_change desc) filter (where u.history_column is not null))[1] as newest,
      string_agg(format(' when %s > %s then %I.%I%s', change, u.since_change, alias, u.history_column,
        case when u.type <> u.newest_type then '::' || u.newest_type else '' end), '' order by u.since_change desc) filter (where u.history_column is not null) as branches,
      min(u.since_change) as since_change
    from usable u where u.usable
    group by u.attnum)
  select m.attnum, m.name, m.type, m.type_now,
    case when m.pieces = 0 then 'null::' || m.type
      when m.type in ('text', 'text[]') and agentundo._renamed_labels(tracked_id, m.attnum) then
        format('agentundo._label_now(%s, %s::smallint, %I.%I, %s)', tracked_id, m.attnum, alias, m.newest, change)
      when m.every = 1 then format('%I.%I', alias, m.only_one)
      else 'case' || m.branches || ' end' end,
    case when m.pieces = 0 then 'false' when m.since_change > 0 then format('%s > %s', change, m.since_change) end, m.since_change
  from merged m
$body$;

create or replace function agentundo._comparable(expression text, type text, by_value boolean) returns text
language sql immutable as
$body$
  select case
    when not by_value then expression
    when type = 'numeric' then format('trim_scale(%s)', expression)
    when type = 'bpchar' then format('rtrim(%s)', expression)
    else expression end
$body$;

-- The row of an image, or of the table, as a record to be compared: all live columns in attribute
-- order. A column that the image does not know yet takes the table's own value, so that it differs
-- from nothing. Without a table, images are compared with one another: then also by what a column held before it
-- was retyped beyond recognition. `by_value`: for relations rewritten since, where ALTER TABLE may have padded or rescaled.
-- `up_to`: without the columns that the images of that change do not know yet.
create or replace function agentundo._image_row(
  tracked_id int, alias text, change text, table_alias text default null, by_value boolean default false, up_to bigint default null) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'row(' || concat_ws(', ', string_agg(agentundo._comparable(
      case when i.known is null then i.value
        else format('case when %s then %s else %s end', i.known, i.value,
          case when table_alias is null then 'null::' || i.type else agentundo._stored(table_alias, i.name, i.type_now) end) end,
      i.type, by_value), ', ' order by i.attnum),
    (select string_agg(format('%I.%I', alias, c.history_column), ', ' order by c.history_column)
     from agentundo._columns(tracked_id) c
     where table_alias is null and c.until_change is not null and c.history_column is not null
       and exists (select from agentundo._columns(tracked_id) n where n.attnum = c.attnum and n.live and not agentundo._widens(c.type, n.type)))) || ')::record'
  from agentundo._image_columns(tracked_id, alias, change) i where coalesce(i.since_change < up_to, true)
$body$;

create or replace function agentundo._table_row(tracked_id int, alias text, by_value boolean default false) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'row(' || coalesce(string_agg(agentundo._comparable(agentundo._stored(alias, c.name, c.type_now), c.type, by_value), ', ' order by c.attnum), '') || ')::record'
  from agentundo._columns(tracked_id) c where c.live
$body$;

-- A value of history in the column's own type but for its domains, whose checks are the user's code, and
-- as the type's input function reads it: a cast could be a function of the user's, which may say something
-- else and must not run with our rights. `by_worker`: it runs as agentundo_worker, so that it is enough
-- that there is no such cast now.
create or replace function agentundo._given_back(expression text, type oid, by_worker boolean default false) returns text
language sql stable as
$body$
  select case
    when y.typtype = 'b' and y.typelem = 0 then format('(%s)::%s', expression, format_type(y.oid, -1))
    else (
      select case
        when base.typtype = 'e' and (not by_worker or exists (select from pg_cast c where c.castsource = 'text'::regtype and c.casttarget = base.oid)) then
          format('(select label.label from unnest(enum_range(null::%1$s)) label where format(''%%s'', label.label) = %2$s)', base.name, expression)
        when base.name like '%[]' and base.name <> agentundo._history_type(y.oid) then format('agentundo._array_as(%s, null::%s)', expression, base.name)
        else format('(%s)::%s', expression, base.name) end
      from (select b.oid, b.typtype, format_type(b.oid, -1) as name from pg_type b where b.oid = agentundo._base(y.oid)) base) end
  from pg_type y where y.oid = type
$body$;

-- The key of a tracked table as it is now: one row per column. No rows: the whole row is the key. A column that
-- was retyped without a loss has its values in several history columns; `history_column` is the newest, which
-- _history() fills from the others.
create or replace function agentundo._key(
  tracked_id int, out place int, out attnum smallint, out name name, out history_column name, out history_type text,
  out type oid)
returns setof record language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
#variable_conflict use_column
begin
  return query
  with part as (
    select k.n::int as place, k.attnum, now.name, now.type_now, old.history_column, old.type, old.since_change,
      agentundo._widens(old.type, now.type) and not (old.type = 'text' and agentundo._renamed_labels(tracked_id, k.attnum))
        and not exists (select from agentundo._column c where c.tracked = tracked_id and c.attnum = k.attnum and c.computed and c.since_change >= old.until_change) as usable
    from agentundo._tracked t
    cross join lateral agentundo._best_key(t.relation) b
    cross join lateral unnest(b.columns) with ordinality k (attnum, n)
    left join agentundo._columns(t.id) now on now.attnum = k.attnum and now.live
    left join agentundo._columns(t.id) old on old.attnum = k.attnum and old.history_column is not null
      and coalesce(old.until_change > old.since_change, true)
    where t.id = tracked_id)
  select p.place, p.attnum, p.name, (array_agg(p.history_column order by p.since_change desc))[1], (array_agg(p.type order by p.since_change desc))[1], p.type_now
  from part p
  -- A key column that came later, or whose values would not be the same ones now, cannot find old images by a
  -- join; then whole rows are compared.
  where not exists (
    select from part x group by x.attnum having not coalesce(bool_and(x.usable) and min(x.since_change) = 0, false))
  group by p.place, p.attnum, p.name, p.type_now;
end
$body$;

-- History as it stands in a FROM clause: the newest history column of each key column has the key of all images.
create or replace function agentundo._history(t agentundo._tracked) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with filled as (
    select k.history_column, string_agg(format('%I%s', c.history_column, case when c.type <> k.history_type then '::' || k.history_type else '' end), ', ' order by c.since_change desc) as sources
    from agentundo._key(t.id) k
    join agentundo._columns(t.id) c on c.attnum = k.attnum and c.history_column is not null and coalesce(c.until_change > c.since_change, true)
    group by k.history_column having count(*) > 1)
  select case when not exists (select from filled) then t.history::text
    else '(select ctid, ' || string_agg(case when f.sources is null then quote_ident(a.attname) else format('coalesce(%s) as %I', f.sources, f.history_column) end, ', ' order by a.attnum) || format(' from %s)', t.history) end
  from pg_attribute a left join filled f on f.history_column = a.attname
  where a.attrelid = t.history and a.attnum > 0 and not a.attisdropped
$body$;

-- The columns of history that hold the key, with an alias before each; null: there is no key.
create or replace function agentundo._key_list(tracked_id int, alias text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I', alias, k.history_column), ', ' order by k.place) from agentundo._key(tracked_id) k
$body$;

-- The condition that two rows with the key columns of history are about the same key.
create or replace function agentundo._same_key(tracked_id int, alias text, other text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I %s %I.%I', alias, k.history_column, agentundo._equal(to_regtype(k.history_type)), other, k.history_column), ' and ' order by k.place)
  from agentundo._key(tracked_id) k
$body$;

-- The condition that a row of the table has the key of a row with the key columns of history.
create or replace function agentundo._has_key(tracked_id int, alias text, history text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I %s %s', alias, k.name, agentundo._equal(k.type), agentundo._given_back(format('%I.%I', history, k.history_column), k.type)), ' and ' order by k.place)
  from agentundo._key(tracked_id) k
$body$;

-- What a delta column has gained by the images in `added`, and lost by those in `taken`, as text that any session reads the
-- same: an aggregate. Null where there is nothing to subtract it from, or the rest would not fit the type.
create or replace function agentundo._delta_sql(type text, current text, added text, taken text, known text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select format('case when %1$s is not null and bool_and(%2$s)%3$s then (sum(%4$s) - sum(%5$s))::text end', current, known,
    case when w.lowest is not null then format(' and %s - (sum(%s) - sum(%s)) between %s and %s', current, added, taken, w.lowest, -(w.lowest + 1)) else '' end, added, taken)
  from (select case type when 'smallint' then -32768::numeric when 'integer' then -2147483648 when 'bigint' then -9223372036854775808 end) w (lowest)
$body$;

-- Numbers of which no difference is lost on the way.
create or replace function agentundo._wide(type text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select case when type in ('smallint', 'integer', 'bigint') then 'numeric' else type end $body$;

-- The delta columns from which something can be subtracted: not what is infinite, or no number.
create or replace function agentundo._subtractable(sums jsonb) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select coalesce(array_agg(k), '{}') from jsonb_each_text(sums) s (k, v) where v !~* 'inf|nan' $body$;
