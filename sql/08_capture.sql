-- 08  Capture: a write under a tag leaves its row images, in the same transaction
--
-- Each relation of a tracked table has one capture function, generated with static SQL over explicit
-- columns, called by statement triggers that see the rows before and after as transition tables.
-- What it does for a tagged statement: one row into `_change`, the rows before (O) and after (N) into
-- the table's history. For anybody else it returns on its first lines.
--
-- Rules for the generated text, each for a reason:
--   * no EXCEPTION block: a subtransaction would give the history another xmin than the rows, and the
--     row version (see `_change`) would be worthless;
--   * every name is qualified, operators too, instead of a SET search_path clause: the clause costs as
--     much as the early exit, and without qualification a hostile search_path would run in our name;
--   * user columns never meet our names: variables begin with agentundo_, history columns are c1, c2, c3,
--     and #variable_conflict says whose is meant;
--   * the branch "where false" of the UNION compares the number of columns at parse time, _shape_ok()
--     everything else at plan time: both are gone from the executed plan.
--
-- Tables that inherit (INHERITS) use row triggers instead: a statement on the parent fires only the
-- parent's statement trigger, whose transition table lacks the children's columns.

-- Is the session one of an agent's, by role? Exact, for the rare case that the quick test in the
-- trigger cannot decide: pg_has_role() calls a superuser a member of everything.
create or replace function agentundo._is_agent() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive member as (
    select oid from pg_roles where rolname in (session_user, agentundo._caller())
    union
    select a.roleid from pg_auth_members a join member m on a.member = m.oid)
  select exists (select from member where oid = to_regrole('agentundo_agent')::oid)
$body$;

-- Agents that set nothing: each of their transactions is an invocation, each of their sessions a run.
create or replace function agentundo._implicit_invocation() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('%s-tx-%s', node, pg_current_xact_id()) from agentundo._stamp
$body$;

-- The session's name is made once and kept in the session: when it began is hidden from us.
create or replace function agentundo._implicit_run() returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(agentundo._setting('agentundo.session'),
    set_config('agentundo.session', format('%s-session-%s', s.node, gen_random_uuid()), false))
  from agentundo._stamp s
$body$;

-- While a revert restores rows, their images exist already: count instead of storing. The setting is
-- only a hint, the row in `_restoring`, which nobody but us can write, decides. `true`: counted.
create or replace function agentundo._counted(tracked_id int, op "char", n bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if not exists (select from agentundo._restoring r where r.xid = pg_current_xact_id()) then
    return false;
  end if;
  if n > 0 then
    insert into agentundo._restoring as r (xid, tracked, operation, planned, seen)
    values (pg_current_xact_id(), tracked_id, op, 0, n)
    on conflict (xid, tracked, operation) do update set seen = r.seen + excluded.seen;
  end if;
  return true;
end
$body$;

-- For row triggers: the columns as one text, and the thorough look where it differs.
create or replace function agentundo._columns_seen(relation oid) returns text
language sql stable as
$body$
  select pg_catalog.string_agg(pg_catalog.format('%s %L %s %s', a.attnum, a.attname, a.atttypid, a.attgenerated), ',' order by a.attnum)
  from pg_catalog.pg_attribute a
  where a.attrelid operator(pg_catalog.=) $1 and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
$body$;

create or replace function agentundo._check_shape(member int) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._shape_ok(member);
end
$body$;

create or replace function agentundo._refuse_id(id text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._check_id(id, 'value of agent.invocation');
end
$body$;

-- Is this the relation for which a capture function was made? Its number is another one in a restored copy of the
-- database; but a dump of one schema brings our triggers along, too, into databases in which the function of that
-- name belongs to another table.
create or replace function agentundo._belongs(relation oid, member int, tag text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if exists (select from agentundo._member m where m.relation = _belongs.relation and m.id = member) then
    if agentundo._is_copy() then
      if tag is null then
        return false;  -- perhaps it is only being restored; check() says that sync() is due
      end if;
      perform agentundo._lift_sequences();
    end if;
    return true;
  elsif tag is null then
    raise warning 'agentundo: % is not captured: its trigger was made for another table', relation::regclass
      using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::regclass);
    return false;
  end if;
  perform agentundo._fail('UN008', format('agentundo: table %s carries triggers that were made for another one; the write is refused', relation::regclass),
    format('A dump has brought them. Run "select agentundo.track(%L)" as the owner of the table, or drop its triggers agentundo_*.', relation::regclass),
    jsonb_build_object('relation', relation::regclass::text));
  return false;
end
$body$;

-- Generates the capture function of one relation and returns its name.
create or replace function agentundo._make_capture(t agentundo._tracked, m agentundo._member) returns text
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := '_capture_' || m.id;
  history_list text;   -- c1, c2
  picked text;         -- agentundo_row."a", agentundo_row."b"
  shaped text;         -- every column in order, generated ones as a typed null
  old_values text;
  new_values text;
  exit_early text;
  tail text;
  images text;
  images_old text;
  images_new text;
  change text;
  body text;
begin
  select string_agg(quote_ident(c.history_column), ', ' order by a.attnum),
         string_agg(agentundo._stored('agentundo_row', a.attname, a.atttypid), ', ' order by a.attnum),
         string_agg(agentundo._stored('old', a.attname, a.atttypid), ', ' order by a.attnum),
         string_agg(agentundo._stored('new', a.attname, a.atttypid), ', ' order by a.attnum)
    into history_list, picked, old_values, new_values
    from pg_attribute a
    join agentundo._column c on c.tracked = t.id and c.until_change is null
     and c.name = a.attname  -- a level of the tree may have other attribute numbers than its root
   where a.attrelid = m.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '';
  select string_agg(case when a.attgenerated = '' then format('agentundo_row.%I', a.attname)
                         else format('null::%I.%I as %I', n.nspname, y.typname, a.attname) end, ', ' order by a.attnum)
    into shaped
    from pg_attribute a join pg_type y on y.oid = agentundo._base(a.atttypid) join pg_namespace n on n.oid = y.typnamespace
   where a.attrelid = m.relation and a.attnum > 0 and not a.attisdropped;
  history_list := coalesce(', ' || history_list, '');
  picked := coalesce(', ' || picked, '');

  exit_early := case t.capture when 'agent' then $exit$
    if (pg_catalog.current_setting('role') operator(pg_catalog.=) 'none'
        and (pg_catalog.current_setting('is_superuser') operator(pg_catalog.=) 'on'
             or not coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)))
      or not coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member')
           or pg_catalog.pg_has_role(pg_catalog.current_setting('role')::pg_catalog.name, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)
    then
      return null;
    end if;
    if not agentundo._is_agent() then
      return null;
    end if;
    agentundo_tag := agentundo._implicit_invocation();
    agentundo_run := agentundo._implicit_run();$exit$
  else $exit$
    agentundo_tag := null;
    if coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)
      or pg_catalog.current_setting('role') operator(pg_catalog.<>) 'none' then
      if agentundo._is_agent() then
        agentundo_tag := agentundo._implicit_invocation();
        agentundo_run := agentundo._implicit_run();
      end if;
    end if;$exit$ end;

  change := format($sql$
    insert into agentundo._change (tracked, relation, filenode, rows, depth, operation, invocation, application, run, step, tool, actor, on_behalf_of, scope)
    select %s, tg_relid, pg_catalog.pg_relation_filenode(tg_relid), agentundo_counted.n, pg_catalog.pg_trigger_depth(),
      %%s, agentundo_tag, pg_catalog.current_setting('application_name'),
      case when agentundo_run is null then agentundo._setting('agent.run') else agentundo_run end,
      case when agentundo_tag is null then null else agentundo._step(agentundo._setting('agent.step')) end,
      agentundo._setting('agent.tool'), agentundo._setting('agent.actor'), agentundo._setting('agent.on_behalf_of'), agentundo._setting('agent.scope')
    from %%s
    returning change into agentundo_change;$sql$, t.id);

  if t.kind <> 'inherited' then
    change := format(change, 'agentundo_op',
      format('(select pg_catalog.count(*) from %%s agentundo_row where agentundo._shape_ok(%s)) agentundo_counted (n) where agentundo_counted.n operator(pg_catalog.>) 0', m.id));
    images := $sql$
      insert into %s (_change, _image%s)
      select agentundo_block.agentundo_change, %L%s from (
        select %s from %s agentundo_row union all select agentundo_row.* from %6$s agentundo_row where false) agentundo_row;$sql$;
    images_new := format(images, t.history, history_list, 'N', picked, shaped, 'agentundo_new');
    images_old := format(images, t.history, history_list, 'O', picked, shaped, 'agentundo_old');
    body := format($sql$
    if agentundo_op operator(pg_catalog.=) 'I' then%s
      if agentundo_change is null then return null; end if;%s
    elsif agentundo_op operator(pg_catalog.=) 'D' then%s
      if agentundo_change is null then return null; end if;%s
    else%s
      if agentundo_change is null then return null; end if;%s%s
    end if;$sql$,
      format(change, 'agentundo_new'), images_new,
      format(change, 'agentundo_old'), images_old,
      format(change, 'agentundo_new'), images_old, images_new);
    tail := format($sql$
    if pg_catalog.current_setting('agentundo.restoring', true) operator(pg_catalog.=) 'on' then
      if agentundo_op operator(pg_catalog.=) 'D' then
        if agentundo._counted(%1$s, agentundo_op, (select pg_catalog.count(*) from agentundo_old)) then return null; end if;
      elsif agentundo._counted(%1$s, agentundo_op, (select pg_catalog.count(*) from agentundo_new)) then return null;
      end if;
    end if;$sql$, t.id);
  else
    -- Row triggers. Their plans do not follow the table's shape, so they look themselves.
    change := format(change, 'agentundo_op', '(select 1) agentundo_counted (n)');
    images_old := format('
      insert into %s (_change, _image%s) values (agentundo_block.agentundo_change, ''O''%s);', t.history, history_list, coalesce(', ' || old_values, ''));
    images_new := format('
      insert into %s (_change, _image%s) values (agentundo_block.agentundo_change, ''N''%s);', t.history, history_list, coalesce(', ' || new_values, ''));
    body := format($sql$
    if agentundo._columns_seen(tg_relid) operator(pg_catalog.<>) %L::pg_catalog.text then
      perform agentundo._check_shape(%s);
    end if;%s
    if agentundo_op operator(pg_catalog.<>) 'I' then%s
    end if;
    if agentundo_op operator(pg_catalog.<>) 'D' then%s
    end if;$sql$, agentundo._columns_seen(m.relation), m.id, change, images_old, images_new);
    -- The statement trigger beside them only looks whether a table that inherits is unknown to us.
    tail := format($sql$
    if pg_catalog.current_setting('agentundo.restoring', true) operator(pg_catalog.=) 'on' then
      if agentundo._counted(%1$s, agentundo_op, case when tg_level operator(pg_catalog.=) 'ROW' then 1 else 0 end) then return null; end if;
    end if;
    if tg_level operator(pg_catalog.=) 'STATEMENT' then
      perform agentundo._check_shape(%2$s);
      return null;
    end if;$sql$, t.id, m.id);
  end if;

  body := format($plpgsql$
#variable_conflict use_column
-- Generated by agentundo._make_capture(), rebuilt by agentundo.sync().
<<agentundo_block>>
declare
  agentundo_tag pg_catalog.text := pg_catalog.current_setting('agent.invocation', true);
  agentundo_run pg_catalog.text;
  agentundo_op pg_catalog."char";
  agentundo_change pg_catalog.int8;
begin
  if agentundo_tag is null or agentundo_tag operator(pg_catalog.=) '' then%s
  elsif pg_catalog.octet_length(agentundo_tag) operator(pg_catalog.>) 255 then
    perform agentundo._refuse_id(agentundo_tag);
  end if;
  if tg_relid operator(pg_catalog.<>) %s::pg_catalog.oid and not agentundo._belongs(tg_relid, %s, agentundo_tag) then
    return null;
  end if;
  agentundo_op := pg_catalog.left(tg_op, 1)::pg_catalog."char";%s%s
  return null;
end
$plpgsql$, exit_early, m.relation::oid, m.id, tail, body);
  -- As a literal: no name of the user's can end it.
  execute format('create or replace function agentundo.%I() returns trigger language plpgsql security definer as %L', name, body);
  execute format('comment on function agentundo.%I() is %L', name, 'Captures ' || t.name);
  execute format('revoke all on function agentundo.%I() from public', name);
  return name;
end
$body$;

-- TRUNCATE destroys rows without naming them: they are copied before. Only relations that hold rows
-- themselves copy, each its own; under READ COMMITTED alone does our look see all that goes.
create or replace function agentundo._capture_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  tag text := agentundo._setting('agent.invocation');
  run text := agentundo._setting('agent.run');
  t agentundo._tracked;
  m agentundo._member;
  number bigint;
  copied bigint;
  history_list text;
  picked text;
  typed text;
begin
  select * into m from agentundo._member where relation = tg_relid;
  select * into t from agentundo._tracked where id = m.tracked;
  if tag is null and agentundo._is_agent() then
    tag := agentundo._implicit_invocation();
    run := agentundo._implicit_run();
  end if;
  if not found then
    perform agentundo._belongs(tg_relid, null, tag) where tag is not null;
    return null;
  end if;
  if agentundo._is_copy() then
    if tag is null then
      return null;
    end if;
    perform agentundo._lift_sequences();
  end if;
  -- Whoever truncates, and captured or not: rows that are there afterwards are not those of before, however
  -- equal they look.
  update agentundo._member x set emptied = agentundo._last_change(), filenode = null where x.relation = tg_relid;
  if tag is null and t.capture = 'agent' then
    return null;
  end if;
  if tag is not null then
    perform agentundo._check_id(tag, 'value of agent.invocation');
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    if tag is null then
      raise warning 'agentundo: TRUNCATE of % under % is not captured', tg_relid::regclass, upper(current_setting('transaction_isolation'));
      update agentundo._tracked x set all_since = agentundo._last_change() where x.id = t.id and x.all_since is not null;  -- not everybody was
      return null;
    end if;
    perform agentundo._fail('UN007', format('agentundo: a tagged TRUNCATE of %s is refused under %s', tg_relid::regclass, upper(current_setting('transaction_isolation'))),
      'Its snapshot may lack rows that TRUNCATE destroys. Use READ COMMITTED, or DELETE.');
  end if;
  perform agentundo._shape_ok(m.id);
  perform agentundo._fail('UN008', format('agentundo: partition %s is not tracked yet; the tagged TRUNCATE is refused', p.relid::regclass),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat it.', t.name), jsonb_build_object('relation', p.relid::regclass::text))
    from pg_partition_tree(tg_relid) p
   where tag is not null and not exists (select from agentundo._member x where x.relation = p.relid);
  if pg_relation_filenode(tg_relid) is null then
    return null;
  end if;
  select string_agg(quote_ident(c.history_column), ', '), string_agg(agentundo._stored('t', c.name, a.atttypid), ', '),
         string_agg(format('%I %s', c.history_column, c.type), ', ')
    into history_list, picked, typed
    from agentundo._column c
    join pg_attribute a on a.attrelid = tg_relid and a.attname = c.name and not a.attisdropped
   where c.tracked = t.id and c.until_change is null;
  number := nextval('agentundo._change_number');
  execute format('insert into %s (_change, _image, %s) select $1, ''O'', image.* from agentundo._look(%L) as image (%s)',
      t.history, history_list, format('select %s from only %s t', picked, tg_relid::regclass), typed) using number;
  get diagnostics copied = row_count;
  if copied > 0 then
    insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, invocation, application, run, step, tool, actor, on_behalf_of, scope)
    values (number, t.id, tg_relid, pg_relation_filenode(tg_relid), copied, pg_trigger_depth(), 'T', tag, current_setting('application_name'),
      run, agentundo._step(agentundo._setting('agent.step')), agentundo._setting('agent.tool'), agentundo._setting('agent.actor'),
      agentundo._setting('agent.on_behalf_of'), agentundo._setting('agent.scope'));
  end if;
  return null;
end
$body$;

-- PostgreSQL copies a row trigger of a partitioned table to partitions that come later. This one
-- stands on the root and is switched off on all partitions that we know, so that it speaks only in
-- one that we have not seen: there a tagged write would have been missed.
create or replace function agentundo._unknown_partition() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if agentundo._setting('agent.invocation') is not null or agentundo._is_agent() then
    perform agentundo._fail('UN008', format('agentundo: partition %s is not tracked yet; the write is refused', tg_relid::regclass),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat the write.', agentundo._root(tg_relid)::text),
      jsonb_build_object('relation', tg_relid::regclass::text));
  end if;
  return null;
end
$body$;

-- Makes and arms the triggers of one relation. False: they were not all there and armed before.
create or replace function agentundo._make_triggers(t agentundo._tracked, m agentundo._member, capture_function text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  w record;
  present pg_trigger;
  relkind "char" := (select c.relkind from pg_class c where c.oid = m.relation);
  owner name := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = m.relation);
  guest constant boolean := owner <> current_user and not has_schema_privilege(owner, 'agentundo', 'usage');
  lent text[] := array[capture_function, '_capture_truncate'];
  one text;
  missing text[] := array[]::text[];
  wanted text[] := array[]::text[];
  armed boolean := true;
begin
  for w in
    select * from (values
      ('agentundo_insert', capture_function, t.kind <> 'inherited'),
      ('agentundo_update', capture_function, t.kind <> 'inherited'),
      ('agentundo_delete', capture_function, t.kind <> 'inherited'),
      ('agentundo_row', capture_function, t.kind = 'inherited'),
      ('agentundo_tree', capture_function, t.kind = 'inherited'),
      ('agentundo_truncate', '_capture_truncate', true),
      ('agentundo_unknown', '_unknown_partition', relkind = 'p' and m.relation = t.relation)
    ) v (name, function, wanted)
    where v.wanted
  loop
    wanted := wanted || w.name;
    select * into present from pg_trigger where tgrelid = m.relation and tgname = w.name;
    if found and present.tgparentid = 0 and present.tgfoid is distinct from to_regproc(format('agentundo.%I', w.function)) then
      perform agentundo._by_deputy('drop trigger', m.relation, w.name);  -- made for another table, see _belongs()
      missing := missing || array[[w.name, w.function]];
    elsif present.tgname is null then
      missing := missing || array[[w.name, w.function]];
    elsif present.tgenabled <> 'A' then
      perform agentundo._by_deputy('switch', m.relation, w.name, 'A');
      armed := false;
    end if;
  end loop;
  -- The owner's deputy names the functions when it creates the triggers: lent for as long as that takes, or the
  -- owner could hang them on tables of any shape. Two migrations at once would stumble over the catalog.
  if missing <> array[]::text[] then
    perform agentundo._lock_grants();
    if owner <> current_user then
      foreach one in array lent loop
        execute format('grant execute on function agentundo.%I() to %I', one, owner);
      end loop;
      execute format('grant usage on schema agentundo to %I', owner);
    end if;
    for i in 1 .. array_length(missing, 1) loop
      perform agentundo._by_deputy('trigger', m.relation, missing[i][1], missing[i][2]);
    end loop;
    if owner <> current_user then
      foreach one in array lent loop
        execute format('revoke execute on function agentundo.%I() from %I', one, owner);
      end loop;
      if guest then
        execute format('revoke usage on schema agentundo from %I', owner);
      end if;
    end if;
  end if;
  -- A plain table that has become part of an inheritance tree, or the other way round.
  for present in
    select * from pg_trigger
    where tgrelid = m.relation and tgname like 'agentundo\_%' and tgname <> all (wanted) and tgparentid = 0
      and tgfoid in (select oid from pg_proc where pronamespace = 'agentundo'::regnamespace)
  loop
    perform agentundo._by_deputy('drop trigger', m.relation, present.tgname::text);
  end loop;
  -- The copy of the sentinel on a partition that we know now.
  for present in
    select * from pg_trigger where tgrelid = m.relation and tgname = 'agentundo_unknown' and tgparentid <> 0 and tgenabled <> 'D'
  loop
    perform agentundo._by_deputy('switch', m.relation, 'agentundo_unknown', 'D');
  end loop;
  return armed and missing = array[]::text[];
end
$body$;
