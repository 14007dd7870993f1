-- 04  Tracking: which tables are captured, and how their history follows them
--
-- track() gives a table a history table and triggers. _sync() is the heart: it looks at the table
-- as it is now (columns, key, partitions) and makes history columns, capture functions, triggers
-- and grants agree with it, by adding only: history is never rewritten and nothing in it depends on
-- the user's types, so no ALTER or DROP of his is ever refused because of us.
--
-- Between an ALTER and the sync() after it (at once where event triggers exist, else when somebody
-- calls it), each capture function notices at plan time that the shape has changed, through
-- _shape_ok(), and refuses tagged writes with UN008. It never stores a row short of a column.
--
-- DDL on users' tables is done through a deputy: one function per table owner, belonging to that
-- owner, that can do four narrow things and that only we may call. So we need no membership in the
-- owners' roles, and reverting with our rights never means reverting with a superuser's.

-- The type in which history keeps a column: no modifier (it would round), a domain's base type (its
-- checks may have changed), an enum as text (its type may be dropped).
create or replace function agentundo._history_type(type oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
declare
  t pg_type;
  element text;
begin
  select * into t from pg_type where oid = type;
  if t.typtype = 'd' then
    return agentundo._history_type(t.typbasetype);
  elsif t.typtype = 'e' then
    return 'text';
  elsif t.typelem <> 0 and t.typsubscript = 'array_subscript_handler'::regproc then
    element := agentundo._history_type(t.typelem);
    if element <> format_type(t.typelem, -1) then
      return element || '[]';
    end if;
  end if;
  return format_type(type, -1);
end
$body$;

-- A fingerprint of what capture relies on: the columns in order, their types, what is generated, and
-- whether the table is part of an inheritance tree.
create or replace function agentundo._shape(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select md5(
      coalesce(string_agg(format('%s %L %s %L', attnum, attname, agentundo._history_type(atttypid), attgenerated), ',' order by attnum), '')
      || exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid
                 where (i.inhparent = relation or i.inhrelid = relation) and not c.relispartition))
  from pg_attribute
  where attrelid = relation and attnum > 0 and not attisdropped
$body$;

-- Called from capture functions as a condition on constants, and declared immutable although it
-- reads the catalog: so the planner folds it away, once for each plan, and plans are thrown away by
-- every ALTER of the table. In the hot path it costs nothing.
create or replace function agentundo._shape_ok(member int) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  m record;
  root regclass;
begin
  select mb.relation, mb.shape, t.relation as tracked_root, t.kind, t.name, c.relfilenode
    into m
    from agentundo._member mb
    join agentundo._tracked t on t.id = mb.tracked
    join pg_class c on c.oid = mb.relation
   where mb.id = member;
  root := case when m.kind = 'partitioned' then coalesce(pg_partition_root(m.relation), m.relation) else m.relation end;
  if m.relation is null or m.shape is distinct from agentundo._shape(m.relation)
    or root is distinct from m.tracked_root
    -- Under REPEATABLE READ our look at the catalog may be older than the table: the filenode is not.
    or (m.relfilenode <> 0 and m.relfilenode is distinct from pg_relation_filenode(m.relation)) then
    perform agentundo._fail('UN008',
      format('agentundo: table %s has changed since it was tracked; the tagged write is refused', coalesce(m.relation::text, m.name, '?')),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat the write.', coalesce(m.name, m.relation::text)),
      jsonb_build_object('relation', m.relation::text));
  end if;
  return true;
end
$body$;

-- Why a relation cannot be tracked; null: it can.
create or replace function agentundo._why_not_trackable(relation regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as
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
  elsif c.relispartition then
    return format('it is a partition; track its root %s', pg_partition_root(relation));
  elsif exists (select from pg_rewrite where ev_class = relation and ev_type <> '1') then
    return 'it has rules on INSERT, UPDATE or DELETE, under which rows cannot be put back';
  elsif c.relkind = 'r' and (select amname from pg_am where oid = c.relam) <> 'heap' then
    return format('its access method is %s, which has no row versions of the kind of heap', (select amname from pg_am where oid = c.relam));
  elsif c.relrowsecurity and not (select rolbypassrls or rolsuper from pg_roles where rolname = current_user)
    and (c.relforcerowsecurity or not pg_has_role(current_user, c.relowner, 'usage')) then
    return format('it has row-level security, and %s would not see all of its rows; a superuser can run "alter role %I bypassrls"', current_user, current_user);
  end if;
  return null;
end
$body$;

-- Deputies -------------------------------------------------------------------------------------------

create or replace function agentundo._deputy(relation regclass) returns regproc
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select p.oid::regproc
  from pg_class c
  join pg_proc p on p.proowner = c.relowner and p.proname like '\_deputy\_%'
  where c.oid = relation and p.pronamespace = 'agentundo_history'::regnamespace
  order by p.oid limit 1
$body$;

-- What a deputy can do. Its text is fixed here, it is created with the rights of whoever calls
-- track(), and it belongs to the table's owner.
create or replace function agentundo._create_deputy(owner name, ours name) returns void
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  name text := '_deputy_' || substr(md5(owner), 1, 12);
  signature text := format('agentundo_history.%I(text, regclass, text, text)', name);
begin
  execute format($create$
    create or replace function agentundo_history.%I(task text, relation regclass, argument text, state text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp as
    $deputy$
    -- Belongs to the owner of tracked tables; only agentundo may call it. It puts our triggers on,
    -- takes them off, grants us row access, and switches a trigger off and on around a revert.
    begin
      case task
        when 'trigger' then
          execute format('create or replace trigger %%I %%s', argument, format(state, relation));
          execute format('alter table only %%s enable always trigger %%I', relation, argument);
        when 'row trigger' then
          execute format('create trigger %%I %%s', argument, format(state, relation));
          execute format('alter table only %%s enable always trigger %%I', relation, argument);
        when 'drop trigger' then
          execute format('drop trigger if exists %%I on %%s', argument, relation);
        when 'switch' then
          execute format('alter table only %%s %%s trigger %%I', relation,
            case state when 'D' then 'disable' when 'O' then 'enable' when 'A' then 'enable always' when 'R' then 'enable replica' end,
            argument);
        when 'grant' then
          execute format('grant select, insert, update, delete on %%s to %%I', relation, argument);
        when 'usage' then  -- of the schemas where the table and the types of its columns live
          execute format('grant usage on schema %%s to %%I', state, argument);
        when 'revoke' then
          execute format('revoke select, insert, update, delete on %%s from %%I', relation, argument);
      end case;
    end
    $deputy$ $create$, name);
  execute format('revoke all on function %s from public', signature);
  execute format('grant execute on function %s to %I', signature, ours);
  execute format('comment on function %s is %L', signature, 'agentundo: acts for the owner of tracked tables, on request of agentundo alone');
  if owner <> current_user then
    execute format('alter function %s owner to %I', signature, owner);
  end if;
end
$body$;

create or replace function agentundo._admit(role name, admit boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if not pg_has_role(agentundo._caller(), role, 'member') then
    perform agentundo._fail('UN003', format('agentundo: %s does not act for %s', agentundo._caller(), role), 'Call track() as the owner of the table.');
  end if;
  execute format(case when admit then 'grant usage, create on schema agentundo_history to %I' else 'revoke all on schema agentundo_history from %I' end, role);
end
$body$;

-- Runs with the caller's rights, on purpose: only who may act for the table's owner can deputize us.
create or replace function agentundo._deputize(relation regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  owner name := (select pg_get_userbyid(relowner) from pg_class where oid = relation);
  ours name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo');
  outsider boolean := not has_schema_privilege(owner, 'agentundo_history', 'create');
begin
  if agentundo._deputy(relation) is not null or owner is null then
    return;
  end if;
  if not pg_has_role(current_user, owner, 'member') then
    perform agentundo._fail('UN003', format('agentundo: only its owner %s can have table %s tracked', owner, relation),
      format('Run it as %s, or as a superuser.', owner));
  end if;
  if outsider then perform agentundo._admit(owner, true); end if;
  if outsider and owner <> current_user and not has_schema_privilege(current_user, 'agentundo_history', 'create') then
    perform agentundo._admit(current_user, true);
  end if;
  perform agentundo._create_deputy(owner, ours);
  if outsider then perform agentundo._admit(owner, false); end if;
end
$body$;

create or replace function agentundo._by_deputy(task text, relation regclass, argument text, state text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  deputy regproc := agentundo._deputy(relation);
begin
  if deputy is null then
    perform agentundo._fail('UN003', format('agentundo: nothing of ours acts for the owner of %s', relation),
      format('Its owner may have changed. As the owner or a superuser run "select agentundo.track(%L)" again.', relation::text));
  end if;
  -- Our own event trigger need not look at what we do ourselves.
  perform set_config('agentundo.internal', 'on', true);
  execute format('select %s($1, $2, $3, $4)', deputy) using task, relation, argument, state;
  perform set_config('agentundo.internal', '', true);
end
$body$;

-- Following a table -----------------------------------------------------------------------------------

-- The best key: the primary key, else the narrowest unique index over columns that are all NOT NULL.
create or replace function agentundo._best_key(relation regclass, out columns smallint[], out index regclass)
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select i.indkey::smallint[], i.indexrelid::regclass
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_am am on am.oid = c.relam and am.amname = 'btree'
  where i.indrelid = relation and i.indisunique and i.indisvalid
    and i.indpred is null and i.indexprs is null and i.indnkeyatts = i.indnatts
    and not coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
    and not exists (
      select from unnest(i.indkey) k(attnum)
      join pg_attribute a on a.attrelid = relation and a.attnum = k.attnum
      where not a.attnotnull or a.attgenerated <> '')   -- history has no generated columns
  order by i.indisprimary desc, i.indimmediate desc, i.indnkeyatts, i.indexrelid
  limit 1
$body$;

-- The columns of a tracked table that history knows, with their present names. Columns are followed
-- by attribute number; after a logical copy, which renumbers them, by name until the next sync().
-- `live`: the table still has the column with a type that history can give back.
create or replace function agentundo._columns(
  tracked_id int, out history_column name, out attnum smallint, out name name, out type text,
  out since_change bigint, out until_change bigint, out live boolean)
returns setof record language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select c.history_column, coalesce(a.attnum, c.attnum), coalesce(a.attname, c.name), c.type, c.since_change, c.until_change,
         c.until_change is null and a.attnum is not null and agentundo._history_type(a.atttypid) = c.type
  from agentundo._column c
  join agentundo._tracked t on t.id = c.tracked
  cross join agentundo._stamp s
  left join pg_attribute a on a.attrelid = t.relation and not a.attisdropped and a.attgenerated = ''
   and case when s.own_xmin = s.xmin::text::bigint then a.attnum = c.attnum else a.attname = c.name end
  where c.tracked = tracked_id
  order by c.attnum, c.since_change
$body$;

-- Gets us USAGE of the schemas where the table and the types of its columns live.
create or replace function agentundo._reach(relation regclass, ours name) returns void
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  schema regnamespace;
begin
  for schema in
    select distinct n::regnamespace
    from (
      select c.relnamespace from pg_class c where c.oid = relation
      union all
      select b.typnamespace from pg_attribute a join pg_type y on y.oid = a.atttypid
      join pg_type b on b.oid in (y.oid, y.typelem, y.typbasetype)
      where a.attrelid = relation and a.attnum > 0 and not a.attisdropped) s (n)
    where not has_schema_privilege(ours, n, 'usage')
  loop
    begin
      perform agentundo._by_deputy('usage', relation, ours, schema::text);
    exception when insufficient_privilege then
      perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s may not look into schema %s', relation, ours, schema),
        format('Run "grant usage on schema %s to %I" as the owner of the schema.', schema, ours),
        jsonb_build_object('relation', relation::text, 'reason', 'schema'));
    end;
  end loop;
end
$body$;

-- Makes everything of ours agree with the table as it is now. Idempotent, adds only.
-- Takes SHARE ROW EXCLUSIVE on the relations whose triggers it has to create.
create or replace function agentundo._sync(tracked_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked;
  ours name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo');
  copied boolean := (select s.own_xmin <> s.xmin::text::bigint from agentundo._stamp s);
  col record;
  has agentundo._column;
  level record;
  m agentundo._member;
  key record;
  capture_function text;
  history_name text;
begin
  select * into t from agentundo._tracked where id = tracked_id for update;
  if not exists (select from pg_class where oid = t.relation) then
    update agentundo._tracked set active = false, relation = null where id = tracked_id;
    update agentundo._column set until_change = agentundo._last_change() where tracked = tracked_id and until_change is null;
    delete from agentundo._member where tracked = tracked_id;
    return;
  end if;

  -- After a logical copy attribute numbers are new: match by name once, follow by number again.
  if copied then
    update agentundo._column c set attnum = a.attnum
      from pg_attribute a
     where c.tracked = tracked_id and c.until_change is null
       and a.attrelid = t.relation and a.attname = c.name and not a.attisdropped;
  end if;

  perform agentundo._reach(t.relation, ours);

  -- Columns. One that went or changed its type ends; one that is new or changed its type begins.
  update agentundo._column c set until_change = agentundo._last_change()
   where c.tracked = tracked_id and c.until_change is null
     and not exists (
       select from pg_attribute a
       where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped and a.attgenerated = ''
         and agentundo._history_type(a.atttypid) = c.type);
  -- A dropped column of a composite type: its values can go nowhere any more, and must not keep the user
  -- from dropping the type.
  for has in
    select c.* from agentundo._column c
    where c.tracked = tracked_id and c.until_change is not null and (
      select y.typtype from pg_attribute a join pg_type z on z.oid = a.atttypid join pg_type y on y.oid = coalesce(nullif(z.typelem, 0), z.oid)
      where a.attrelid = t.history and a.attname = c.history_column) = 'c'
  loop
    execute format('alter table %s drop column %I', t.history, has.history_column);
    delete from agentundo._column c where c.tracked = tracked_id and c.history_column = has.history_column;
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
      execute format('alter table %s add column %I %s', t.history, history_name, col.type);
      insert into agentundo._column (tracked, history_column, attnum, name, type, since_change)
      values (tracked_id, history_name, col.attnum, col.attname, col.type,
              case when exists (select from agentundo._change c where c.tracked = tracked_id) then agentundo._last_change() else 0 end);
    elsif has.name <> col.attname then
      update agentundo._column c set name = col.attname where c.tracked = tracked_id and c.history_column = has.history_column;
    end if;
  end loop;
  insert into agentundo._label (tracked, attnum, label, sortorder)
    select tracked_id, a.attnum, e.enumlabel, e.enumsortorder
    from pg_attribute a
    join pg_type ty on ty.oid = a.atttypid
    join pg_enum e on e.enumtypid in (ty.oid, ty.typelem)
    where a.attrelid = t.relation and not a.attisdropped
  on conflict (tracked, attnum, label) do nothing;

  select * into key from agentundo._best_key(t.relation);
  update agentundo._tracked set
    name = agentundo._name(t.relation),
    key_columns = coalesce(key.columns, '{}'),
    key_index = key.index,
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
    end if;
    delete from agentundo._member mb where mb.relation = level.relation;
  end loop;

  -- Every level of the tree.
  for level in select r as relation, c.relkind from agentundo._levels(t.relation, t.kind) r join pg_class c on c.oid = r loop
    insert into agentundo._member as mb (relation, tracked, shape) values (level.relation, tracked_id, agentundo._shape(level.relation))
      on conflict (relation) do update set tracked = excluded.tracked, shape = excluded.shape
      returning * into m;
    if level.relkind = 'r' and not (has_table_privilege(ours, level.relation, 'insert') and has_table_privilege(ours, level.relation, 'select')
        and has_table_privilege(ours, level.relation, 'update') and has_table_privilege(ours, level.relation, 'delete'))
      or level.relkind = 'p' and not has_table_privilege(ours, level.relation, 'delete') then
      perform agentundo._by_deputy('grant', level.relation, ours);
    end if;
    capture_function := agentundo._make_capture(t, m);
    perform agentundo._make_triggers(t, m, capture_function);
  end loop;
end
$body$;

-- How we name a table to people: always with its schema, quoted where needed.
create or replace function agentundo._name(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select format('%s.%I', relnamespace::regnamespace, relname) from pg_class where oid = relation
$body$;

create or replace function agentundo._last_change() returns bigint
language sql stable as
$body$ select case when is_called then last_value else 0 end from agentundo._change_number $body$;

create or replace function agentundo._levels(root regclass, kind text) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select root where kind <> 'partitioned'
  union all
  select p.relid::regclass from pg_partition_tree(root) p join pg_class c on c.oid = p.relid
  where kind = 'partitioned' and c.relkind in ('r', 'p')
$body$;

create or replace function agentundo._drop_triggers(relation regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp as
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

-- Public ----------------------------------------------------------------------------------------------

create or replace function agentundo._track(relation regclass, capture text) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  reason text := agentundo._why_not_trackable(relation);
  t agentundo._tracked;
  c pg_class;
  history_table text;
  child regclass;
begin
  if capture is null or capture not in ('agent', 'all') then
    perform agentundo._fail('22023', format('agentundo: there is no capture mode %L', capture),
      'Use ''agent'' (tagged writes and agent roles) or ''all'' (every write).');
  elsif reason is not null then
    perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s', coalesce(relation::text, 'NULL'), reason),
      'See "agentundo.check()" for what is tracked, and the limits in the documentation.',
      jsonb_build_object('relation', relation::text, 'reason', reason));
  end if;
  select * into c from pg_class where oid = relation;
  if not pg_has_role(agentundo._caller(), c.relowner, 'usage') then
    perform agentundo._fail('UN003', format('agentundo: only its owner can have table %s tracked', relation),
      format('Run it as %s, or as a superuser.', pg_get_userbyid(c.relowner)));
  end if;

  select * into t from agentundo._tracked x where x.relation = _track.relation for update;
  if not found then
    insert into agentundo._tracked as x (relation, name, kind, capture, history, key_columns)
    values (_track.relation, agentundo._name(_track.relation), 'plain', _track.capture, 'agentundo._change'::regclass, '{}')
    returning * into t;
    history_table := format('agentundo_history.%I', left(regexp_replace(c.relname, '[^A-Za-z0-9_]', '_', 'g'), 40) || '_' || t.id);
    execute format('create table %s (_change bigint not null, _image "char" not null)', history_table);
    execute format('create index on %s (_change)', history_table);
    execute format('alter table %s replica identity full', history_table);
    execute format('comment on table %s is %L', history_table,
      'Images of rows of ' || t.name || ': O before, N after a change of agentundo._change. Columns are named by attribute number, see agentundo._column.');
    update agentundo._tracked x set history = to_regclass(history_table) where x.id = t.id;
  else
    update agentundo._tracked x set capture = _track.capture, active = true where x.id = t.id;
  end if;
  perform agentundo._sync(t.id);
  if c.relpersistence = 'u' then
    raise warning 'agentundo: % is unlogged: a crash empties it, and its history will not match', relation;
  end if;
  return next relation;

  -- A tree by inheritance: a statement on the parent writes the children's rows too.
  for child in select inhrelid::regclass from pg_inherits where inhparent = relation and c.relkind = 'r' loop
    return query select agentundo._track(child, capture);
  end loop;
end
$body$;

create or replace function agentundo.track(relation regclass, capture text default 'agent') returns setof regclass
language plpgsql as
$body$
declare
  level regclass;
begin
  -- As the caller: whoever may act for the owners of the table and of all its parts deputizes us.
  if agentundo._why_not_trackable(relation) is null then
    for level in
      select relation
      union
      select relid::regclass from pg_catalog.pg_partition_tree(relation) where relid is not null
      union
      (with recursive heir as (
         select inhrelid from pg_catalog.pg_inherits where inhparent = relation
         union select i.inhrelid from pg_catalog.pg_inherits i join heir h on i.inhparent = h.inhrelid)
       select inhrelid::regclass from heir)
    loop
      perform agentundo._deputize(level);
    end loop;
  end if;
  return query select agentundo._track(relation, capture);
end
$body$;
comment on function agentundo.track(regclass, text) is
  'Begins to keep history for a table (and its partitions or inheriting tables): writes under a tag, or all writes with capture => ''all''. Creates triggers under a short SHARE ROW EXCLUSIVE lock; changes no row. Again on a tracked table: changes its capture mode.';

create or replace function agentundo.track_schema(schema regnamespace, capture text default 'agent') returns setof regclass
language plpgsql as
$body$
declare
  relation regclass;
begin
  for relation in
    select c.oid::regclass from pg_catalog.pg_class c
    where c.relnamespace = schema and c.relkind in ('r', 'p') and not c.relispartition
      and agentundo._why_not_trackable(c.oid) is null
    order by c.oid
  loop
    return query select agentundo.track(relation, capture);
  end loop;
  perform agentundo._remember_schema(schema, capture);
end
$body$;
comment on function agentundo.track_schema(regnamespace, text) is
  'Tracks every table of a schema, now and later: tables created afterwards are tracked by an event trigger, or reported as errors by check() where there is none. Locks each table shortly; changes no row.';

create or replace function agentundo._remember_schema(schema regnamespace, capture text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if not has_schema_privilege(agentundo._caller(), schema, 'create') then
    perform agentundo._fail('UN003', format('agentundo: %s may not decide for schema %s', agentundo._caller(), schema), 'Run it as the owner of the schema.');
  end if;
  insert into agentundo._schema_rule values ((select nspname from pg_namespace where oid = schema), capture)
  on conflict (schema_name) do update set capture = excluded.capture;
end
$body$;

create or replace function agentundo.untrack(relation regclass, keep_history boolean default true) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked;
  ours name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo');
  level record;
begin
  select * into t from agentundo._tracked x where x.relation = untrack.relation for update;
  if not found then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', coalesce(relation::text, 'NULL')),
      'The view agentundo.tracked lists what is.');
  elsif not pg_has_role(agentundo._caller(), (select relowner from pg_class where oid = relation), 'usage') then
    perform agentundo._fail('UN003', format('agentundo: only its owner can untrack %s', relation), 'Run it as the owner, or as a superuser.');
  end if;
  for level in select mb.relation, mb.id from agentundo._member mb where mb.tracked = t.id loop
    perform agentundo._drop_triggers(level.relation);
    perform agentundo._by_deputy('revoke', level.relation, ours);
    execute format('drop function if exists agentundo.%I()', '_capture_' || level.id);
  end loop;
  delete from agentundo._member mb where mb.tracked = t.id;
  if keep_history then
    update agentundo._tracked x set active = false where x.id = t.id;
  else
    execute format('drop table %s', t.history);
    delete from agentundo._reverted r using agentundo._change c where c.tracked = t.id and r.change = c.change;
    delete from agentundo._change c where c.tracked = t.id;
    delete from agentundo._tracked x where x.id = t.id;
  end if;
end
$body$;
comment on function agentundo.untrack(regclass, boolean) is
  'Takes our triggers off a table; later writes are not captured. History stays and can still be reverted, unless keep_history is false: then it is destroyed and nothing of this table can be undone any more.';

create or replace function agentundo.sync(relation regclass default null) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked;
  found_one boolean := false;
begin
  for t in
    select * from agentundo._tracked x
    where x.active and (sync.relation is null or x.relation = sync.relation or x.relation = pg_partition_root(sync.relation))
    order by x.relation::oid
  loop
    found_one := true;
    perform agentundo._sync(t.id);
    return next t.relation;
  end loop;
  if relation is not null and not found_one then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', relation), 'Call agentundo.track() first.');
  end if;
  -- The first sync after a logical copy (all of it at once) makes versions worth something again.
  if relation is null and exists (select from agentundo._stamp s where s.own_xmin <> s.xmin::text::bigint) then
    delete from agentundo._stamp;
    insert into agentundo._stamp (trusted_after) values (agentundo._last_change());
    update agentundo._stamp set own_xmin = xmin::text::bigint;
  end if;
end
$body$;
comment on function agentundo.sync(regclass) is
  'Follows changed tables: new, renamed, retyped or dropped columns, new and detached partitions, a restored dump. Adds to history, rewrites nothing, changes no row of yours.';

-- Event triggers call these where they exist (11_grants.sql); DDL of yours never fails because of us.
create or replace function agentundo._on_ddl() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  id int;
begin
  if agentundo._setting('agentundo.internal') is not null then
    return;
  end if;
  for id in
    select distinct x.id
    from pg_event_trigger_ddl_commands() d
    join agentundo._tracked x on x.active
    where d.classid = 'pg_class'::regclass
      and (x.relation = d.objid or x.relation = pg_partition_root(d.objid)
        or exists (select from agentundo._member mb where mb.tracked = x.id and mb.relation = d.objid))
    union
    select x.id from agentundo._tracked x
    join agentundo._member mb on mb.tracked = x.id
    where x.active and exists (select from pg_event_trigger_ddl_commands() d where d.object_type in ('type', 'schema'))
  loop
    begin
      perform agentundo._sync(id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm
        using hint = 'Tagged writes to the table are refused until "select agentundo.sync()" succeeds.';
    end;
  end loop;
  perform agentundo._track_new(d.objid)
  from pg_event_trigger_ddl_commands() d
  join pg_class c on c.oid = d.objid and c.relkind in ('r', 'p') and not c.relispartition
  join pg_namespace n on n.oid = c.relnamespace
  join agentundo._schema_rule r on r.schema_name = n.nspname
  where d.classid = 'pg_class'::regclass and d.command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
    and not exists (select from agentundo._tracked x where x.relation = d.objid);
end
$body$;

create or replace function agentundo._track_new(relation regclass) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if agentundo._why_not_trackable(relation) is null then
    perform agentundo._track(relation, (
      select r.capture from agentundo._schema_rule r join pg_namespace n on n.nspname = r.schema_name join pg_class c on c.relnamespace = n.oid where c.oid = relation));
  end if;
exception when others then
  raise warning 'agentundo: table % is not tracked: %', relation, sqlerrm
    using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::text);
end
$body$;

create or replace function agentundo._on_drop() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t record;
begin
  for t in
    select x.id from agentundo._tracked x join pg_event_trigger_dropped_objects() d
      on d.classid = 'pg_class'::regclass and d.objid = x.relation and d.objsubid = 0
  loop
    perform agentundo._sync(t.id);
  end loop;
end
$body$;
