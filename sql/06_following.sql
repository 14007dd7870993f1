-- 06  Following: how history keeps up with a table that changes
--
-- _sync() is the heart: it looks at the table as it is now (columns, key, partitions) and makes history
-- columns, capture functions, triggers and grants agree with it, by adding only: history is never
-- rewritten and nothing in it depends on the user's types, so no ALTER or DROP of his is refused
-- because of us. Event triggers call it where they exist; where not, sync() does (07_tracking.sql).

-- Notes what the labels of enum columns are called. A label of another name with the same number was renamed; after a
-- logical copy, which gives them new numbers, and when the column was given another type, they are matched by name.
create or replace function agentundo._sync_labels(tracked_id int, copied boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  number bigint := agentundo._last_change();
begin
  with moved as (
    select l.attnum, l.place as former, p.enum, coalesce((select e.oid::bigint from pg_enum e where e.enumtypid = p.enum and e.enumlabel = l.label), 0) as place
    from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    cross join lateral (select agentundo._enum(a.atttypid) as enum) p
    where t.id = tracked_id and l.until_change is null and (copied or l.enum <> p.enum::bigint))
  update agentundo._label l set enum = m.enum::bigint, place = m.place, until_change = case when m.place = 0 then coalesce(l.until_change, number) else l.until_change end
    from moved m where l.tracked = tracked_id and l.attnum = m.attnum and l.place = m.former;

  update agentundo._label l set until_change = number
    from agentundo._tracked t, pg_attribute a, pg_enum e
   where t.id = tracked_id and l.tracked = t.id and l.until_change is null and a.attrelid = t.relation and a.attnum = l.attnum
     and e.enumtypid = agentundo._enum(a.atttypid) and e.oid::bigint = l.place and e.enumlabel <> l.label;
  delete from agentundo._label l where l.tracked = tracked_id and l.until_change = l.since_change;  -- no image has it

  insert into agentundo._label (tracked, attnum, enum, label, place, since_change)
    select t.id, a.attnum, e.enumtypid::bigint, e.enumlabel::text, e.oid::bigint,
      case when exists (select from agentundo._label l where l.tracked = t.id and l.attnum = a.attnum and (l.label = e.enumlabel or l.place = e.oid::bigint)) then number else 0 end
    from agentundo._tracked t
    join pg_attribute a on a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped
    join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid)
    where t.id = tracked_id and not exists (
      select from agentundo._label l
      where l.tracked = t.id and l.attnum = a.attnum and l.place = e.oid::bigint and l.label = e.enumlabel and l.until_change is null)
  on conflict (tracked, attnum, label, since_change) do update set enum = excluded.enum, place = excluded.place, until_change = null;
end
$body$;

-- A table and all of its partitions, as pg_partition_tree() tells them, which would lock them, and not their root first.
create or replace function agentundo._tree(root regclass) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive tree as (
    select root::oid as relid
    union
    select i.inhrelid from pg_inherits i join tree t on t.relid = i.inhparent join pg_class c on c.oid = i.inhrelid and c.relispartition)
  select relid::regclass from tree
$body$;

-- Does a statement give a column another type, and other values, too? Whoever only casts has the same ones.
create or replace function agentundo._computes(statement text) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select statement ~* '\mtype\M' and exists (
    select from regexp_matches(regexp_replace(statement, '\(\s*\d+\s*,\s*\d+\s*\)', '', 'g'), '\musing\M\s*([^,;]*)', 'gi') found (parts)
    where parts[1] !~* '^\(?\s*("[^"]+"|\w+)\s*\)?\s*(::[\w\s".:()\[\]]*)?$' and parts[1] !~* '^cast\s*\(\s*("[^"]+"|\w+)\s+as\M[\w\s".()\[\]]*$')
$body$;

-- Has a schema or a type been altered under a table? Its name, then, a label of an enum, what a column is.
create or replace function agentundo._types_differ(t agentundo._tracked) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select t.name <> agentundo._name(t.relation)
    or exists (select from agentundo._member m where m.tracked = t.id and m.shape <> agentundo._shape(m.relation))
    or exists (
      select from agentundo._column c join pg_attribute a on a.attrelid = t.relation and a.attnum = c.attnum
      where c.tracked = t.id and c.until_change is null and c.type <> agentundo._history_type(a.atttypid))
    or exists (
      select from pg_attribute a join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid)
      where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and not exists (
        select from agentundo._label l
        where l.tracked = t.id and l.attnum = a.attnum and l.place = e.oid::bigint and l.label = e.enumlabel and l.until_change is null))
$body$;

-- The tables at the other ends of a table's foreign keys: a revert looks there for parents and dependents.
create or replace function agentundo._relatives(relation regclass) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with level as (
    select p::oid as oid from agentundo._tree(relation) p)
  select distinct case when c.conrelid in (select oid from level) then c.confrelid else c.conrelid end::regclass
  from pg_constraint c
  where c.contype = 'f' and c.conparentid = 0
    and (c.conrelid in (select oid from level) or c.confrelid in (select oid from level))
$body$;

-- The schemas of a table, and of the types of its columns, that we cannot look into yet.
create or replace function agentundo._out_of_reach(relation regclass, worker name) returns setof regnamespace
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select distinct n::regnamespace
  from (
    select c.relnamespace from pg_class c where c.oid = relation
    union all
    select b.typnamespace
    from pg_attribute a
    join pg_type y on y.oid = a.atttypid
    join pg_type b on b.oid in (y.oid, y.typelem, y.typbasetype)
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped) s (n)
  where not has_schema_privilege(worker, n, 'usage')
$body$;

-- Makes everything of ours agree with the table as it is now. Idempotent, adds only.
-- Takes SHARE ROW EXCLUSIVE on the relations whose triggers it has to create.
create or replace function agentundo._sync(tracked_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  worker name := agentundo._worker();
  copied boolean := agentundo._is_copy();
  col record;
  has agentundo._column;
  level record;
  m agentundo._member;
  key record;
  capture_function text;
  history_name text;
  added text;
  schema regnamespace;
  now_at bigint;
  former int;
  known boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id for update;
  -- Columns end and begin after this change: 0, so that there is no image of what ended, while history is empty. Its
  -- size does not depend on how old our snapshot is.
  now_at := case when pg_relation_size(t.history) > 0 then agentundo._last_change() else 0 end;
  if not exists (select from pg_class where oid = t.relation) then
    update agentundo._tracked set active = false, relation = null where id = tracked_id;
    update agentundo._column set until_change = agentundo._last_change() where tracked = tracked_id and until_change is null;
    delete from agentundo._member where tracked = tracked_id;
    return;
  elsif not t.active then
    return;  -- untracked, or it became part of another table a moment ago
  end if;

  -- After a logical copy attribute numbers are new: match by the name of the column that lives, follow by
  -- number again. Columns that had been dropped keep a number that no column can have.
  if copied then
    -- Rules and labels go with their columns; first out of the way, for the numbers overlap.
    with place as (
      select lives.attnum as former, -coalesce(a.attnum, lives.attnum) as place, a.attnum is not null as found
      from agentundo._column lives
      left join pg_attribute a on a.attrelid = t.relation and a.attname = lives.name and not a.attisdropped
      where lives.tracked = tracked_id and lives.until_change is null),
    labels as (update agentundo._label l set attnum = p.place from place p where l.tracked = tracked_id and l.attnum = p.former and p.found)
    update agentundo._merge_rule r set attnum = p.place from place p where r.tracked = tracked_id and r.attnum = p.former and p.found;
    delete from agentundo._merge_rule r where r.tracked = tracked_id and r.attnum > 0;
    delete from agentundo._label l where l.tracked = tracked_id and l.attnum > 0;
    update agentundo._merge_rule r set attnum = -r.attnum where r.tracked = tracked_id;
    update agentundo._label l set attnum = -l.attnum where l.tracked = tracked_id;
    update agentundo._column c set attnum = coalesce((
      select a.attnum
      from agentundo._column lives
      join pg_attribute a on a.attrelid = t.relation and a.attname = lives.name and not a.attisdropped
      where lives.tracked = tracked_id and lives.attnum = c.attnum and lives.until_change is null), -abs(c.attnum))
    where c.tracked = tracked_id;
  end if;

  for schema in select agentundo._out_of_reach(t.relation, worker) loop
    begin
      perform agentundo._by_deputy('usage', t.relation, schema::text);
    exception when insufficient_privilege then
      null;
    end;
    continue when has_schema_privilege(worker, schema, 'usage');
    perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s may not look into schema %s', t.relation, worker, schema),
      format('Run "grant usage on schema %s to %I" as the owner of the schema.', schema, worker),
      jsonb_build_object('relation', t.relation::text, 'reason', format('schema %s', schema)));
  end loop;

  if not has_table_privilege(worker, t.history, 'select') then
    execute format('grant select on %s to %I', t.history, worker);
  end if;

  -- Types that are called something else by now, or lie in another schema, are the same.
  update agentundo._column c set type = agentundo._history_type(h.atttypid)
    from pg_attribute h
   where c.tracked = tracked_id and h.attrelid = t.history and h.attname = c.history_column and h.atttypid >= 16384
     and c.type <> agentundo._history_type(h.atttypid);
  -- Columns. One that went or changed its type ends; one that is new or changed its type begins.
  update agentundo._column c set until_change = now_at
   where c.tracked = tracked_id and c.until_change is null
     and not exists (
       select from pg_attribute a
       where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped and a.attgenerated = ''
         and agentundo._history_type(a.atttypid) = c.type);
  update agentundo._column c set attnum = -c.attnum
   where c.tracked = tracked_id and c.attnum > 0
     and not exists (select from pg_attribute a where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped);
  -- What was of a type of the user's must not keep him from dropping it. The values of a dropped column can go nowhere any
  -- more; those of one that has another type now are kept as text, by which nobody takes them for what they were.
  for has in
    select c.* from agentundo._column c join pg_attribute a on a.attrelid = t.history and a.attname = c.history_column
    where c.tracked = tracked_id and c.until_change is not null and a.atttypid >= 16384
  loop
    if has.attnum < 0 then
      execute format('alter table %s drop column %I', t.history, has.history_column);
      delete from agentundo._column c where c.tracked = tracked_id and c.history_column = has.history_column;
    else
      execute format('alter table %1$s alter column %2$I type text using case when %2$I is distinct from null then pg_catalog.format(''%%s'', %2$I) end',
        t.history, has.history_column);
      update agentundo._column c set type = 'pg_catalog.text' where c.tracked = tracked_id and c.history_column = has.history_column;
    end if;
  end loop;
  for col in
    select a.attnum, a.attname, agentundo._history_type(a.atttypid) as type, a.atttypid
    from pg_attribute a
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    order by a.attnum
  loop
    select * into has from agentundo._column c where c.tracked = tracked_id and c.attnum = col.attnum and c.until_change is null;
    if not found then
      history_name := 'c' || col.attnum || coalesce(
        (select '_' || (count(*) + 1) from pg_attribute h where h.attrelid = t.history and h.attname ~ ('^c' || col.attnum || '(_|$)') having count(*) > 0), '');
      added := concat_ws(', ', added, format('add column %I %s', history_name, col.type));
      if to_regtype(col.type)::oid >= 16384 then
        -- ANALYZE would call functions of the type, which may be the user's, as the owner of history
        added := added || format(', alter column %I set statistics 0', history_name);
      end if;
      insert into agentundo._column (tracked, history_column, attnum, name, type, since_change, computed)
      values (tracked_id, history_name, col.attnum, col.attname, col.type, now_at, not copied and (col.attnum = any (t.generated)
        or agentundo._computes(current_query()) and exists (
          select from agentundo._column c where c.tracked = tracked_id and c.attnum = col.attnum and c.until_change = now_at)));
    elsif has.name <> col.attname then
      update agentundo._column c set name = col.attname where c.tracked = tracked_id and c.attnum = col.attnum;
    end if;
  end loop;
  if added is not null then
    execute format('alter table %s %s', t.history, added);
  end if;
  perform agentundo._sync_labels(tracked_id, copied);

  select * into key from agentundo._best_key(t.relation);
  update agentundo._tracked set
    name = agentundo._name(t.relation),
    key_columns = coalesce(key.columns, '{}'),
    generated = array(select a.attnum from pg_attribute a where a.attrelid = t.relation and a.attgenerated <> '' and not a.attisdropped),
    key_since = case when key_columns <> '{}' and key_columns <@ coalesce(key.columns, '{}') then key_since else now_at end,
    kind = case
      when (select relkind from pg_class where oid = t.relation) = 'p' then 'partitioned'
      when exists (select from pg_inherits where inhparent = t.relation or inhrelid = t.relation) then 'inherited'
      else 'plain' end
  where id = tracked_id returning * into t;

  -- Relations that left the tree (a detached partition) lose our triggers.
  for level in
    select mb.relation from agentundo._member mb
    where mb.tracked = tracked_id and mb.relation not in (select r from agentundo._levels(t.relation, t.kind) r)
  loop
    if exists (select from pg_class where oid = level.relation) then
      perform agentundo._drop_triggers(level.relation);
      insert into agentundo._detached values (level.relation, tracked_id) on conflict (relation) do update set tracked = excluded.tracked;
    end if;
    delete from agentundo._member mb where mb.relation = level.relation;
    for former in update agentundo._tracked x set active = true, part_of = null, all_since = null where x.relation = level.relation and x.part_of = tracked_id returning x.id loop
      perform agentundo._sync(former);  -- it is what it was before it became a part
    end loop;
    perform agentundo._track_new(c.oid, r.capture)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace join agentundo._schema_rule r on r.schema_name = n.nspname
    where c.oid = level.relation and not exists (select from agentundo._tracked x where x.active and x.relation = c.oid);
  end loop;

  -- Tables that a foreign key ties to it, as far as we have a deputy there.
  for level in
    select r as relation from agentundo._relatives(t.relation) r
    where not has_table_privilege(worker, r, 'select') and agentundo._deputy(r) is not null
  loop
    perform agentundo._by_deputy('grant select', level.relation);
  end loop;

  -- A table that has become part of this one is followed as such from now on; its own history stays.
  update agentundo._tracked x set active = false, part_of = tracked_id
   where x.id <> tracked_id and x.active and x.relation in (select agentundo._levels(t.relation, t.kind));

  -- Every level of the tree.
  for level in select r as relation, c.relkind from agentundo._levels(t.relation, t.kind) r join pg_class c on c.oid = r loop
    known := exists (select from agentundo._member mb where mb.relation = level.relation and mb.tracked = tracked_id);
    delete from agentundo._detached x where x.relation = level.relation;
    insert into agentundo._member as mb (relation, tracked, shape, filenode)
      values (level.relation, tracked_id, agentundo._shape(level.relation), pg_relation_filenode(level.relation))
      on conflict (relation) do update set tracked = excluded.tracked, shape = excluded.shape, filenode = excluded.filenode,
        rewritten = case when mb.filenode <> excluded.filenode then agentundo._last_change() else mb.rewritten end
      returning * into m;
    if level.relkind = 'r' and not (has_table_privilege(worker, level.relation, 'insert') and has_table_privilege(worker, level.relation, 'select')
        and has_table_privilege(worker, level.relation, 'update') and has_table_privilege(worker, level.relation, 'delete'))
      or level.relkind = 'p' and not has_table_privilege(worker, level.relation, 'delete') then
      perform agentundo._by_deputy('grant', level.relation);
    end if;
    capture_function := agentundo._make_capture(t, m);
    if not agentundo._make_triggers(t, m, capture_function) and (known or level.relkind = 'r' and pg_relation_size(level.relation) > 0) then
      t.all_since := null;  -- there may have been writes without them
    end if;
  end loop;

  -- From here on nobody writes without being captured: who wrote before has committed, who comes waits for us.
  if t.capture = 'all' and (t.all_since is null or copied) then
    perform agentundo._lock_tables(array[tracked_id], array(select agentundo._levels(t.relation, t.kind)));
    update agentundo._tracked set all_since = nextval('agentundo._change_number') where id = tracked_id;
  end if;
end
$body$;

create or replace function agentundo._levels(root regclass, kind text) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select root where kind <> 'partitioned'
  union all
  select p from agentundo._tree(root) p join pg_class c on c.oid = p
  where kind = 'partitioned' and c.relkind in ('r', 'p')
$body$;

create or replace function agentundo._drop_triggers(relation regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text;
begin
  for name in
    select tgname from pg_trigger
    where tgrelid = relation and tgname like 'agentundo\_%' and not tgisinternal and tgparentid = 0
      and tgfoid in (select oid from pg_proc where pronamespace = 'agentundo'::regnamespace)
  loop
    perform agentundo._by_deputy('drop trigger', relation, name);
  end loop;
end
$body$;

-- After DDL ----------------------------------------------------------------------------------------------

-- Event triggers call these where they exist (23_grants.sql); DDL of yours never fails because of us.
create or replace function agentundo._on_ddl() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  id int;
begin
  if agentundo._setting('agentundo.internal') is not null then
    return;
  end if;
  -- A copy that is still being restored is followed by the first sync(): before, restored rows would be captured.
  if agentundo._is_copy() then
    return;
  end if;
  for id in
    select distinct x.id
    from pg_event_trigger_ddl_commands() d
    join agentundo._tracked x on x.active
    where d.classid = 'pg_class'::regclass and not d.in_extension
      and (x.relation = agentundo._root(d.objid) or x.relation in (select agentundo._ancestors(d.objid))
        or x.relation in (select agentundo._relatives(d.objid)) or d.objid in (select agentundo._ancestors(x.relation))
        or exists (select from agentundo._member mb where mb.tracked = x.id and mb.relation = d.objid)
        or agentundo._heirs_differ(x))
    union
    select x.id from agentundo._tracked x
    where x.active and agentundo._types_differ(x) and exists (
      select from pg_event_trigger_ddl_commands() d
      where d.object_type in ('type', 'schema', 'domain', 'composite type', 'extension') and d.command_tag like 'ALTER %' and not d.in_extension)
  loop
    begin
      perform agentundo._sync(id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm
        using hint = 'Tagged writes to the table are refused until "select agentundo.sync()" succeeds.';
    end;
  end loop;
  -- New tables: in a schema that is tracked as a whole, or inheriting from a tracked table.
  perform agentundo._track_new(d.objid, coalesce(r.capture, (
      select x.capture from agentundo._tracked x where x.active and x.relation in (select agentundo._ancestors(d.objid)) limit 1)))
  from pg_event_trigger_ddl_commands() d
  join pg_class c on c.oid = d.objid and c.relkind in ('r', 'p') and not c.relispartition
  join pg_namespace n on n.oid = c.relnamespace
  left join agentundo._schema_rule r on r.schema_name = n.nspname
  where d.classid = 'pg_class'::regclass and not d.in_extension  -- what we made would belong to the extension
    and d.command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
    and not exists (select from agentundo._tracked x where x.relation = d.objid and x.active)
    and (r.capture is not null or exists (select from agentundo._tracked x where x.active and x.relation in (select agentundo._ancestors(d.objid))));
end
$body$;

-- The tables from which a table inherits, over all generations; not those of which it is a partition.
create or replace function agentundo._ancestors(relation oid) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive up as (
    select i.inhparent from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhrelid = relation and not c.relispartition
    union
    select i.inhparent from pg_inherits i join up u on i.inhrelid = u.inhparent)
  select inhparent::regclass from up
$body$;

create or replace function agentundo._track_new(relation regclass, capture text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if agentundo._why_not_trackable(relation) is null then
    perform agentundo._track(relation, capture);
  end if;
exception when others then
  raise warning 'agentundo: table % is not tracked: %', relation, regexp_replace(sqlerrm, '^agentundo: ', '')
    using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::text);
end
$body$;

-- Has a table that inherited from this one gone?
create or replace function agentundo._heirs_differ(t agentundo._tracked) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select t.active and t.kind = 'inherited' and exists (select from agentundo._member m where m.tracked = t.id and m.shape <> agentundo._shape(m.relation))
$body$;

create or replace function agentundo._on_drop() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  t record;
begin
  if agentundo._setting('agentundo.internal') is not null then
    return;  -- an upgrade makes our functions anew
  end if;
  for t in
    select x.id from agentundo._tracked x join pg_event_trigger_dropped_objects() d
      on d.classid = 'pg_class'::regclass and d.objid = x.relation and d.objsubid = 0
  loop
    begin
      perform agentundo._sync(t.id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm using hint = 'Run "select agentundo.sync()".';
    end;
  end loop;
  -- Columns that went along with something else, and tables that others inherit from: ALTER TABLE is followed above.
  for t in
    select distinct x.id
    from agentundo._tracked x cross join pg_event_trigger_dropped_objects() d
    where tg_tag <> 'ALTER TABLE' and x.active and d.classid = 'pg_class'::regclass and not agentundo._is_copy()
      and (d.objsubid > 0 and exists (select from agentundo._member m where m.tracked = x.id and m.relation = d.objid)
        or d.object_type = 'table' and agentundo._heirs_differ(x))
  loop
    begin
      perform agentundo._sync(t.id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm
        using hint = 'Tagged writes to the table are refused until "select agentundo.sync()" succeeds.';
    end;
  end loop;
  -- A history table dropped by hand: sessions that have captured before must look again.
  for t in
    select mb.id from agentundo._member mb join agentundo._tracked x on x.id = mb.tracked
    join pg_event_trigger_dropped_objects() d on d.classid = 'pg_class'::regclass and d.objid = x.history and d.objsubid = 0
    where to_regproc('agentundo._capture_' || mb.id) is not null
  loop
    execute format('alter function agentundo.%I() cost 100', '_capture_' || t.id);
  end loop;
end
$body$;
