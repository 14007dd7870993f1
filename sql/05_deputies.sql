-- 05  Deputies: how we do DDL on a user's table without his rights
--
-- DDL on users' tables is done through a deputy: one function per table owner, belonging to that
-- owner, that can do a few narrow things and that only we may call. So we need no membership in the
-- owners' roles, and reverting with our rights never means reverting with a superuser's. Rights on the
-- tables go to agentundo_worker, in whose name rows are restored.

-- What a deputy is: this text and no other. It takes no SQL from anybody: names are looked up, what they
-- stand for is written here, and rights are granted to our worker alone.
create or replace function agentundo._deputy_source() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $deputy$
declare
  worker name := (select pg_get_userbyid(p.proowner) from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname = '_act');
  capture regproc;
begin
  -- For tables of the owner's alone, and never for the catalog, whoever he is.
  if not exists (select from pg_class c where c.oid = relation and pg_get_userbyid(c.relowner) = current_user and c.oid >= 16384) then
    raise exception using errcode = 'UN003', message = format('agentundo: %s acts for no such table: %s', current_user, relation), hint = 'Run "select agentundo.track(...)" as the owner of the table.';
  end if;
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
create or replace function agentundo._deputy_of(owner oid) returns regproc
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select p.oid::regproc
  from pg_proc p
  where p.proowner = owner and p.proname like '\_deputy\_%' and p.pronamespace = 'agentundo_history'::regnamespace
    and p.prosecdef and p.prosrc = agentundo._deputy_source() and oidvectortypes(p.proargtypes) = 'text, regclass, text, text'
    and p.prolang = (select l.oid from pg_language l where l.lanname = 'plpgsql')
    and p.proconfig = '{"search_path=pg_catalog, pg_temp",quote_all_identifiers=off}'::text[]
    and not exists (select from aclexplode(p.proacl) a where a.grantee not in (p.proowner, (select n.nspowner from pg_namespace n where n.nspname = 'agentundo')))
  order by p.oid limit 1
$body$;

create or replace function agentundo._deputy(relation regclass) returns regproc
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select agentundo._deputy_of((select c.relowner from pg_class c where c.oid = relation)) $body$;

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

-- Two at once would stumble over the catalog. A row of ours, for which no stranger can make us wait.
create or replace function agentundo._lock_grants() returns void
language sql security definer set search_path = pg_catalog, pg_temp as
$body$ select from agentundo._home for update $body$;

-- Runs with the caller's rights, on purpose: only who may act for the table's owner can deputize us.
create or replace function agentundo._deputize(relation regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  owner name := (select pg_get_userbyid(relowner) from pg_class where oid = relation);
  worker name := agentundo._worker();
  schema regnamespace;
  relative regclass;
begin
  -- Where the caller may not grant it, _sync() says what is missing.
  for schema in select agentundo._out_of_reach(relation, worker) loop
    begin
      perform agentundo._lock_grants();
      execute format('grant usage on schema %s to %I', schema, worker);
    exception when insufficient_privilege then
      null;
    end;
  end loop;
  for relative in
    select r from agentundo._relatives(relation) r where not has_table_privilege(worker, r, 'select')
  loop
    begin
      perform agentundo._lock_grants();
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
  perform agentundo._deputize_owner(owner);
end
$body$;

-- Lets one role have a deputy: for the tables that it owns, and for those that it will make.
create or replace function agentundo._deputize_owner(owner name) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  ours name := (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo');
  outsider boolean := not has_schema_privilege(owner, 'agentundo_history', 'create');
begin
  perform agentundo._lock_grants();
  if agentundo._deputy_of(to_regrole(quote_ident(owner))::oid) is not null then
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
