-- 07  Tracking: which tables are captured
--
-- track() gives a table a history table and triggers, untrack() takes the triggers away, sync() lets the
-- history follow a table that has changed (06_following.sql).
--
-- DDL of ours waits 3 s for a lock, then gives way (55P03): whoever queues for a table stops all who come
-- after.

-- Null as the mode: what is tracked keeps the one it has.
create or replace function agentundo._check_capture(capture text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
begin
  if capture not in ('agent', 'all') then
    perform agentundo._fail('22023', format('agentundo: there is no capture mode %L', capture),
      'Use ''agent'' (tagged writes and agent roles) or ''all'' (every write).');
  end if;
end
$body$;

-- The mode that a table has, or had when it was tracked last.
create or replace function agentundo._kept_mode(relation regclass, otherwise text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((select x.capture from agentundo._tracked x where x.relation = _kept_mode.relation), otherwise)
$body$;

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
  perform agentundo._check_capture(capture);
  if reason is not null then
    perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s', coalesce(relation::text, 'NULL'), reason),
      'See "agentundo.check()" for what is tracked, and the limits in the documentation.',
      jsonb_build_object('relation', relation::text, 'reason', reason));
  end if;
  select * into c from pg_class where oid = relation;
  if not pg_has_role(agentundo._caller(), c.relowner, 'usage') then
    perform agentundo._fail('UN003', format('agentundo: only its owner can have table %s tracked', relation),
      format('Run it as %s, or as a superuser.', pg_get_userbyid(c.relowner)));
  end if;

  -- The table before what we know of it, as a migration locks them whose end we follow.
  perform agentundo._lock_tables(array[x.id], array(select agentundo._levels(x.relation, x.kind)))
    from agentundo._tracked x where x.relation = _track.relation and x.active and x.capture <> 'all' and _track.capture = 'all';
  select * into t from agentundo._tracked x where x.relation = _track.relation for update;
  if not found then
    insert into agentundo._tracked as x (relation, name, kind, capture, history, key_columns)
    values (_track.relation, agentundo._name(_track.relation), 'plain', coalesce(_track.capture, 'agent'), 'agentundo._change'::regclass, '{}')
    on conflict do nothing returning * into t;
  end if;
  if t.id is null then  -- somebody else has just begun to track it
    return query select agentundo._track(relation, capture);
    return;
  elsif t.history = 'agentundo._change'::regclass then
    history_table := format('agentundo_history.%I', left(regexp_replace(c.relname, '[^A-Za-z0-9_]', '_', 'g'), 40) || '_' || t.id);
    while to_regclass(history_table) is not null loop  -- left over from a dump without our own rows
      history_table := format('agentundo_history.%I', left(regexp_replace(c.relname, '[^A-Za-z0-9_]', '_', 'g'), 40) || '_' || t.id || '_' || left(gen_random_uuid()::text, 8));
    end loop;
    execute format('create table %s (_change bigint not null, _image "char" not null)', history_table);
    execute format('create index on %s (_change)', history_table);
    execute format('alter table %s replica identity full', history_table);
    execute format('comment on table %s is %L', history_table,
      'Images of rows of ' || t.name || ': O before, N after a change of agentundo._change. Columns are named by attribute number, see agentundo._column.');
    update agentundo._tracked x set history = to_regclass(history_table) where x.id = t.id;
  else
    update agentundo._tracked x set capture = coalesce(_track.capture, x.capture), active = true, part_of = null,
      all_since = case when x.active and x.capture = 'all' and coalesce(_track.capture, 'all') = 'all' then x.all_since end
     where x.id = t.id returning * into t;
  end if;
  perform agentundo._sync(t.id);
  if c.relpersistence = 'u' then
    raise warning 'agentundo: % is unlogged: a crash empties it, and its history will not match', relation;
  end if;
  return next relation;

  -- A tree by inheritance: a statement on the parent writes the children's rows too.
  for child in select inhrelid::regclass from pg_inherits where inhparent = relation and c.relkind = 'r' loop
    return query select agentundo._track(child, coalesce(capture, agentundo._kept_mode(child, t.capture)));
  end loop;
end
$body$;

create or replace function agentundo.track(relation regclass, capture text default null) returns setof regclass
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  level regclass;
begin
  perform agentundo._require_fresh_snapshots('track');
  -- As the caller: whoever may act for the owners of the table and of all its parts deputizes us.
  if agentundo._why_not_trackable(relation) is null then
    for level in
      select relation
      union
      select agentundo._tree(relation)
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
  'Begins to keep history for a table (and its partitions or inheriting tables): writes under a tag, or all writes with capture => ''all''. Creates triggers under a short SHARE ROW EXCLUSIVE lock; changes no row. Again on a tracked table: changes its capture mode if one is given, else keeps it; a new table gets ''agent''.';

create or replace function agentundo.track_schema(schema regnamespace, capture text default null) returns setof regclass
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  relation regclass;
  rule text := agentundo._remember_schema(schema, capture);
  owner name;
begin
  perform agentundo._require_fresh_snapshots('track');
  -- Tables made later are tracked with the rights of whoever makes them: the schema's owner, or the caller.
  for owner in
    select r.rolname from pg_catalog.pg_roles r
    where (r.oid = (select n.nspowner from pg_catalog.pg_namespace n where n.oid = schema) or r.rolname = current_user)
      and agentundo._deputy_of(r.oid) is null and pg_catalog.pg_has_role(current_user, r.oid, 'member')
  loop
    perform agentundo._deputize_owner(owner);
  end loop;
  for relation in
    select c.oid::regclass from pg_catalog.pg_class c
    where c.relnamespace = schema and c.relkind in ('r', 'p') and not c.relispartition
      and agentundo._why_not_trackable(c.oid) is null
    order by c.oid
  loop
    return query select agentundo.track(relation, coalesce(capture, agentundo._kept_mode(relation, rule)));
  end loop;
end
$body$;
comment on function agentundo.track_schema(regnamespace, text) is
  'Tracks every table of a schema, now and later: tables created afterwards are tracked by an event trigger, or reported as errors by check() where there is none. Without a capture mode all keep theirs, and what is new gets that of the schema, at first ''agent''. Locks each table shortly; changes no row.';

-- Tables that were made in such a schema where no event trigger saw it.
create or replace function agentundo._awaited() returns table (relation regclass, capture text)
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select c.oid::regclass, r.capture
  from agentundo._schema_rule r
  join pg_namespace n on n.nspname = r.schema_name
  join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relispartition
  where not exists (select from agentundo._tracked x where x.relation = c.oid)
    and agentundo._why_not_trackable(c.oid) is null
  order by c.oid
$body$;

-- Returns the mode of tables that are new there.
create or replace function agentundo._remember_schema(schema regnamespace, capture text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  rule text;
begin
  perform agentundo._check_capture(capture);
  if not has_schema_privilege(agentundo._caller(), schema, 'create') then
    perform agentundo._fail('UN003', format('agentundo: %s may not decide for schema %s', agentundo._caller(), schema), 'Run it as the owner of the schema.');
  end if;
  insert into agentundo._schema_rule as r values ((select nspname from pg_namespace where oid = schema), coalesce(_remember_schema.capture, 'agent'))
  on conflict (schema_name) do update set capture = coalesce(_remember_schema.capture, r.capture)
  returning r.capture into rule;
  return rule;
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
    delete from agentundo._turn x where x.tracked = t.id;
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
  fresh record;
begin
  perform agentundo._require_fresh_snapshots('sync');
  perform agentundo._lift_sequences();
  for t in
    select * from agentundo._tracked x
    where x.active and (sync.relation is null or x.relation = agentundo._root(sync.relation))
    order by x.relation::oid
  loop
    found_one := true;
    perform agentundo._sync(t.id);
    return next t.relation;
  end loop;
  if relation is not null and not found_one then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', relation), 'Call agentundo.track() first.');
  end if;
  for fresh in select w.relation, w.capture from agentundo._awaited() w where sync.relation is null loop
    perform agentundo._track_new(fresh.relation, fresh.capture);
    return query select x.relation from agentundo._tracked x where x.active and x.relation = fresh.relation;
  end loop;
  -- The first sync after a logical copy (all of it at once) makes versions worth something again.
  if relation is null and agentundo._is_copy() then
    delete from agentundo._stamp;
    insert into agentundo._stamp (trusted_after) values (agentundo._last_change());
    update agentundo._stamp set own_xmin = xmin::text::bigint, own_table = tableoid::bigint;
  end if;
end
$body$;
comment on function agentundo.sync(regclass) is
  'Follows changed tables: new, renamed, retyped or dropped columns, new and detached partitions, new tables of tracked schemas, a restored dump. Adds to history, rewrites nothing, changes no row of yours.';
