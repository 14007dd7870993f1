-- 05  Tracking: which tables are captured, and how their history follows them
--
-- track() gives a table a history table and triggers. _sync() is the heart: it looks at the table
-- as it is now (columns, key, partitions) and makes history columns, capture functions, triggers
-- and grants agree with it, by adding only: history is never rewritten and nothing in it depends on
-- the user's types, so no ALTER or DROP of his is refused because of us.
--
-- DDL of ours waits 3 s for a lock, then gives way (55P03): whoever queues for a table stops all who come
-- after.
--
-- DDL on users' tables is done through a deputy: one function per table owner, belonging to that
-- owner, that can do a few narrow things and that only we may call. So we need no membership in the
-- owners' roles, and reverting with our rights never means reverting with a superuser's. Rights on the
-- tables go to agentundo_worker, in whose name rows are restored.

-- Deputies -------------------------------------------------------------------------------------------

-- What a deputy is: this text and no other. It takes no SQL from anybody: names are looked up, what they
-- stand for is written here, and rights are granted to our worker alone.
create or replace function agentundo._deputy_source() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $deputy$
declare
  worker name := (select pg_get_userbyid(p.proowner) from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname = '_act');
  capture regproc;
begin
  case task
    when 'trigger' then
      capture := format('agentundo.%I', state)::regproc;
      execute format(case argument
        when 'agentundo_insert' then 'create trigger agentundo_insert after insert on %s referencing new table as agentundo_new for each statement execute function %s()'
        when 'agentundo_update' then 'create trigger agentundo_update after update on %s referencing old table as agentundo_old new table as agentundo_new for each statement execute function %s()'
        when 'agentundo_delete' then 'create trigger agentundo_delete after delete on %s referencing old table as agentundo_old for each statement execute function %s()'
        when 'agentundo_tree' then 'create trigger agentundo_tree after insert or update or delete on %s for each statement execute function %s()'
        when 'agentundo_truncate' then 'create trigger agentundo_truncate before truncate on %s for each statement execute function %s()'
        when 'agentundo_row' then 'create trigger agentundo_row after insert or update or delete on %s for each row execute function %s()'
        when 'agentundo_unknown' then 'create trigger agentundo_unknown after insert or update or delete on %s for each row execute function %s()'
        end, relation, capture);
      execute format('alter table only %s enable always trigger %I', relation, argument);
    when 'drop trigger' then
      if argument like 'agentundo\_%' then
        execute format('drop trigger if exists %I on %s', argument, relation);
      end if;
    when 'switch' then
      execute format('alter table only %s %s trigger %I', relation,
        case state when 'D' then 'disable' when 'O' then 'enable' when 'A' then 'enable always' when 'R' then 'enable replica' end,
        argument);
    when 'grant' then
      execute format('grant select, insert, update, delete on %s to %I', relation, worker);
    when 'grant select' then
      execute format('grant select on %s to %I', relation, worker);
    when 'usage' then
      execute format('grant usage on schema %s to %I', argument::regnamespace, worker);
    when 'revoke' then
      execute format('revoke select, insert, update, delete on %s from %I', relation, worker);
  end case;
end
$deputy$::text $body$;

-- Whoever could make a function in our schema of deputies could pretend to be one: the text decides.
create or replace function agentundo._deputy(relation regclass) returns regproc
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select p.oid::regproc
  from pg_class c
  join pg_proc p on p.proowner = c.relowner and p.proname like '\_deputy\_%'
  where c.oid = relation and p.pronamespace = 'agentundo_history'::regnamespace
    and p.prosecdef and p.prosrc = agentundo._deputy_source() and oidvectortypes(p.proargtypes) = 'text, regclass, text, text'
    and p.prolang = (select l.oid from pg_language l where l.lanname = 'plpgsql')
    and p.proconfig = '{"search_path=pg_catalog, pg_temp",quote_all_identifiers=off}'::text[]
    and not exists (select from aclexplode(p.proacl) a where a.grantee not in (p.proowner, (select n.nspowner from pg_namespace n where n.nspname = 'agentundo')))
  order by p.oid limit 1
$body$;

-- Made with the rights of whoever calls track(), given to the table's owner.
create or replace function agentundo._create_deputy(owner name, ours name) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := '_deputy_' || left(agentundo._digest(owner), 12);
  signature text := format('agentundo_history.%I(text, regclass, text, text)', name);
begin
  perform agentundo._drop_impostor(owner, name);
  execute format('create or replace function agentundo_history.%I(task text, relation regclass, argument text, state text) returns void
    language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as %L', name, agentundo._deputy_source());
  execute format('revoke all on function %s from public', signature);
  execute format('grant execute on function %s to %I', signature, ours);
  execute format('comment on function %s is %L', signature, 'agentundo: acts for the owner of tracked tables, on request of agentundo alone');
  if owner <> current_user then
    execute format('alter function %s owner to %I', signature, owner);
  end if;
end
$body$;

-- Takes away what goes by the name of a deputy of this owner and is none, or has guests.
create or replace function agentundo._drop_impostor(owner name, deputy name) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  impostor regprocedure;
begin
  if not pg_has_role(agentundo._caller(), owner, 'member') then
    perform agentundo._fail('UN003', format('agentundo: %s does not act for %s', agentundo._caller(), owner), 'Call track() as the owner of the table.');
  end if;
  for impostor in
    select p.oid from pg_proc p
    where p.pronamespace = 'agentundo_history'::regnamespace and p.proname = deputy
      and (pg_get_userbyid(p.proowner) <> owner or not p.prosecdef or p.prosrc <> agentundo._deputy_source()
        or oidvectortypes(p.proargtypes) <> 'text, regclass, text, text'
        or exists (select from aclexplode(p.proacl) a where a.grantee not in (p.proowner, (select n.nspowner from pg_namespace n where n.nspname = 'agentundo'))))
  loop
    execute format('drop function %s', impostor);
  end loop;
end
$body$;

-- Lets the caller and the table's owner make the deputy, and shuts the door again.
create or replace function agentundo._admit(role name, admit boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  owner name := (select pg_get_userbyid(relowner) from pg_class where oid = relation);
  ours name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo');
  worker name := agentundo._worker();
  outsider boolean := not has_schema_privilege(owner, 'agentundo_history', 'create');
  schema regnamespace;
  relative regclass;
begin
  -- Where the caller may not grant it, _sync() says what is missing.
  for schema in select agentundo._out_of_reach(relation, worker) loop
    begin
      execute format('grant usage on schema %s to %I', schema, worker);
    exception when insufficient_privilege then
      null;
    end;
  end loop;
  for relative in
    select r from agentundo._relatives(relation) r where not has_table_privilege(worker, r, 'select')
  loop
    begin
      execute format('grant usage on schema %s to %I', (select c.relnamespace::regnamespace from pg_class c where c.oid = relative), worker);
      execute format('grant select on %s to %I', relative, worker);
    exception when insufficient_privilege then
      null;
    end;
  end loop;
  if agentundo._deputy(relation) is not null or owner is null then
    return;
  end if;
  if not pg_has_role(current_user, owner, 'member') then
    perform agentundo._fail('UN003', format('agentundo: only its owner %s can have table %s tracked', owner, relation),
      format('Run it as %s, or as a superuser.', owner));
  end if;
  perform pg_advisory_xact_lock(hashtext('agentundo grants'));
  if agentundo._deputy(relation) is not null then
    return;  -- somebody was faster
  end if;
  if outsider then perform agentundo._admit(owner, true); end if;
  if outsider and owner <> current_user and not has_schema_privilege(current_user, 'agentundo_history', 'create') then
    perform agentundo._admit(current_user, true);
  end if;
  perform agentundo._create_deputy(owner, ours);
  if outsider then perform agentundo._admit(owner, false); end if;
  if outsider and owner <> current_user and not (select rolsuper from pg_roles where rolname = current_user) then
    perform agentundo._admit(current_user, false);
  end if;
end
$body$;

create or replace function agentundo._by_deputy(task text, relation regclass, argument text default null, state text default null) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
  -- with these very types, or another function of the name could be meant
  execute format('select %s($1::text, $2::regclass, $3::text, $4::text)', deputy) using task, relation, argument, state;
  perform set_config('agentundo.internal', '', true);
end
$body$;

-- Following a table -----------------------------------------------------------------------------------

-- Notes what the labels of enum columns are called. A label with another name at the same place in the
-- order was renamed; after a logical copy, which numbers the places anew, they are matched by name once.
create or replace function agentundo._sync_labels(tracked_id int, copied boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  number bigint := agentundo._last_change();
begin
  if copied then
    update agentundo._label l set sortorder = e.enumsortorder
      from agentundo._tracked t, pg_attribute a, pg_enum e
     where t.id = tracked_id and l.tracked = t.id and l.until_change is null
       and a.attrelid = t.relation and a.attnum = l.attnum and e.enumtypid = agentundo._enum(a.atttypid) and e.enumlabel = l.label;
  end if;
  with present as (
    select a.attnum, e.enumlabel::text as label, e.enumsortorder as sortorder
    from agentundo._tracked t
    join pg_attribute a on a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped
    join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid)
    where t.id = tracked_id),
  closed as (
    update agentundo._label l set until_change = number
     where l.tracked = tracked_id and l.until_change is null
       and exists (select from present p where p.attnum = l.attnum and p.sortorder = l.sortorder and p.label <> l.label)
    returning l.attnum, l.sortorder)
  insert into agentundo._label (tracked, attnum, label, sortorder, since_change)
    select tracked_id, p.attnum, p.label, p.sortorder,
      case when exists (select from closed c where c.attnum = p.attnum and c.sortorder = p.sortorder) then number else 0 end
    from present p
    where not exists (
      select from agentundo._label l
      where l.tracked = tracked_id and l.attnum = p.attnum and l.sortorder = p.sortorder and l.label = p.label and l.until_change is null);
end
$body$;

-- The tables at the other ends of a table's foreign keys: a revert looks there for parents and dependents.
create or replace function agentundo._relatives(relation regclass) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with level as (
    select relation as oid union select p.relid from pg_partition_tree(relation) p)
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
  copied boolean := (select s.own_xmin <> s.xmin::text::bigint from agentundo._stamp s);
  col record;
  has agentundo._column;
  level record;
  m agentundo._member;
  key record;
  capture_function text;
  history_name text;
  schema regnamespace;
begin
  select * into t from agentundo._tracked where id = tracked_id for update;
  if not exists (select from pg_class where oid = t.relation) then
    update agentundo._tracked set active = false, relation = null where id = tracked_id;
    update agentundo._column set until_change = agentundo._last_change() where tracked = tracked_id and until_change is null;
    delete from agentundo._member where tracked = tracked_id;
    return;
  end if;

  -- After a logical copy attribute numbers are new: match by the name of the column that lives, follow by
  -- number again. Columns that had been dropped keep a number that no column can have.
  if copied then
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

  -- Columns. One that went or changed its type ends; one that is new or changed its type begins.
  update agentundo._column c set until_change = agentundo._last_change()
   where c.tracked = tracked_id and c.until_change is null
     and not exists (
       select from pg_attribute a
       where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped and a.attgenerated = ''
         and agentundo._history_type(a.atttypid) = c.type);
  update agentundo._column c set attnum = -c.attnum
   where c.tracked = tracked_id and c.attnum > 0
     and not exists (select from pg_attribute a where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped);
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
      if to_regtype(col.type)::oid >= 16384 then
        -- ANALYZE would call functions of the type, which may be the user's, as the owner of history
        execute format('alter table %s alter column %I set statistics 0', t.history, history_name);
      end if;
      insert into agentundo._column (tracked, history_column, attnum, name, type, since_change)
      values (tracked_id, history_name, col.attnum, col.attname, col.type,
              case when exists (select from agentundo._change c where c.tracked = tracked_id) then agentundo._last_change() else 0 end);
    elsif has.name <> col.attname then
      update agentundo._column c set name = col.attname where c.tracked = tracked_id and c.attnum = col.attnum;
    end if;
  end loop;
  perform agentundo._sync_labels(tracked_id, copied);

  select * into key from agentundo._best_key(t.relation);
  update agentundo._tracked set
    name = agentundo._name(t.relation),
    key_columns = coalesce(key.columns, '{}'),
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

  -- Tables that a foreign key ties to it, as far as we have a deputy there.
  for level in
    select r as relation from agentundo._relatives(t.relation) r
    where not has_table_privilege(worker, r, 'select') and agentundo._deputy(r) is not null
  loop
    perform agentundo._by_deputy('grant select', level.relation);
  end loop;

  -- Every level of the tree.
  for level in select r as relation, c.relkind from agentundo._levels(t.relation, t.kind) r join pg_class c on c.oid = r loop
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
    perform agentundo._make_triggers(t, m, capture_function);
  end loop;
end
$body$;

create or replace function agentundo._levels(root regclass, kind text) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select root where kind <> 'partitioned'
  union all
  select p.relid::regclass from pg_partition_tree(root) p join pg_class c on c.oid = p.relid
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

-- Public ----------------------------------------------------------------------------------------------

create or replace function agentundo._track(relation regclass, capture text) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
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
language plpgsql set search_path = pg_catalog, pg_temp as
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
language plpgsql set search_path = pg_catalog, pg_temp as
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
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  t agentundo._tracked;
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
    if not keep_history then  -- else it can still be reverted
      perform agentundo._by_deputy('revoke', level.relation);
    end if;
    execute format('drop function if exists agentundo.%I()', '_capture_' || level.id);
  end loop;
  delete from agentundo._member mb where mb.tracked = t.id;
  if keep_history then
    update agentundo._tracked x set active = false where x.id = t.id;
  else
    if exists (select from pg_class where oid = t.history) then
      execute format('drop table %s', t.history);
    end if;
    delete from agentundo._reverted r using agentundo._change c where c.tracked = t.id and r.change = c.change;
    delete from agentundo._change c where c.tracked = t.id;
    delete from agentundo._tracked x where x.id = t.id;
  end if;
end
$body$;
comment on function agentundo.untrack(regclass, boolean) is
  'Takes our triggers off a table; later writes are not captured. History stays and can still be reverted, unless keep_history is false: then it is destroyed and nothing of this table can be undone any more.';

create or replace function agentundo.sync(relation regclass default null) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
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

-- Event triggers call these where they exist (18_grants.sql); DDL of yours never fails because of us.
create or replace function agentundo._on_ddl() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
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
      and (x.relation = d.objid or x.relation = pg_partition_root(d.objid) or x.relation in (select agentundo._ancestors(d.objid))
        or x.relation in (select agentundo._relatives(d.objid)) or d.objid in (select agentundo._ancestors(x.relation))
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
  -- New tables: in a schema that is tracked as a whole, or inheriting from a tracked table.
  perform agentundo._track_new(d.objid, coalesce(r.capture, (
      select x.capture from agentundo._tracked x where x.active and x.relation in (select agentundo._ancestors(d.objid)) limit 1)))
  from pg_event_trigger_ddl_commands() d
  join pg_class c on c.oid = d.objid and c.relkind in ('r', 'p') and not c.relispartition
  join pg_namespace n on n.oid = c.relnamespace
  left join agentundo._schema_rule r on r.schema_name = n.nspname
  where d.classid = 'pg_class'::regclass and d.command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
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
  raise warning 'agentundo: table % is not tracked: %', relation, sqlerrm
    using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::text);
end
$body$;

create or replace function agentundo._on_drop() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
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
