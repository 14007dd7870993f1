-- 11  Guard: who may do what
--
-- What lives here: the judgement of the calling role; the two functions as which other people's code runs;
-- and the few things a team decides for itself: its policies, the owners of its scopes, what a revert does
-- with merges and with its triggers.
--
-- All functions of ours run with our rights and judge the caller: the role that SET ROLE put in force,
-- else the session's own (_caller()). Three kinds of people revert:
--   * operators, and whoever may act for the owner of the schema: anywhere;
--   * members of agentundo_app: within one scope, for a person who must be named. That person must be
--     the one for whom the invocation acted, or an owner of the scope, or let in by the policy
--     `may_revert`; and is never the agent itself;
--   * agents: never.
-- Where the marker roles do not exist, there are only the owner's members.
--
-- Limits, protected roles and approvals are to live in this file too.

-- Membership as it was granted: pg_has_role() calls a superuser a member of every role. A superuser
-- counts as whatever gives rights, and never as an agent, which takes them away.
create or replace function agentundo._in_role(role name, marker name) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  with recursive member as (
    select oid, rolsuper from pg_roles where rolname = role
    union
    select a.roleid, false from pg_auth_members a join member m on a.member = m.oid)
  select exists (select from member where oid = to_regrole(marker::text)::oid or rolsuper and marker <> 'agentundo_agent')
$body$;

-- May the caller plan, revert and decide anywhere? Nobody acts for the owner by accident: one is a
-- member of it by having installed us, or on purpose.
create or replace function agentundo._operator() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select agentundo._owner() or agentundo._in_role(agentundo._caller(), 'agentundo_operator')
$body$;

-- An agent by role; one who is an operator too is trusted as one.
create or replace function agentundo._agent() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select not agentundo._operator()
     and (agentundo._in_role(session_user, 'agentundo_agent') or agentundo._in_role(agentundo._caller(), 'agentundo_agent'))
$body$;

-- Sees one scope at a time: members of agentundo_app that are nothing more.
create or replace function agentundo._bound_to_scope() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select not agentundo._operator() and not agentundo._in_role(agentundo._caller(), 'agentundo_auditor')
$body$;

-- Refuses, with a hint that looks at what the caller is already: to one who is both an agent and an app, or an
-- app that wants more, "be an app" says nothing.
create or replace function agentundo._refuse_role(what text, hint text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  agent name;
  is_already text;
begin
  if agentundo._agent() then
    agent := case when agentundo._in_role(agentundo._caller(), 'agentundo_agent') then agentundo._caller() else session_user end;
    hint := format('%s is a member of agentundo_agent, and an agent may not, whatever else it is. Use another role, or run "revoke agentundo_agent from %I".',
      agent, agent);
  else
    select string_agg(m.marker, ' and ') into is_already
      from unnest(array['agentundo_app', 'agentundo_approver', 'agentundo_auditor']) m (marker) where agentundo._in_role(agentundo._caller(), m.marker::name);
    hint := case when is_already is not null then format('%s is a member of %s, which is not enough. ', agentundo._caller(), is_already) else '' end || hint;
  end if;
  perform agentundo._fail('UN003', format('agentundo: %s may not %s', agentundo._caller(), what), hint);
end
$body$;

create or replace function agentundo._may_read() returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if agentundo._agent()
    or not (agentundo._operator() or agentundo._in_role(agentundo._caller(), 'agentundo_app')
      or agentundo._in_role(agentundo._caller(), 'agentundo_auditor')) then
    perform agentundo._refuse_role('read what was captured', 'Grant agentundo_app, agentundo_operator or agentundo_auditor to the role; agents may not.');
  end if;
end
$body$;

create or replace function agentundo._require_operator(what text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if not agentundo._operator() then
    perform agentundo._refuse_role(what, 'This is for members of agentundo_operator and for those who may act for the owner of schema agentundo.');
  end if;
end
$body$;

-- May the caller take these invocations back for `reverted_by`? Those of another scope are unknown to
-- an application, in the very words that an unknown id gets.
create or replace function agentundo._require_revert(invocations text[], scope text, reverted_by text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  i record;
  judged text[];
  policy text := (select p.function from agentundo._policy p where p.name = 'may_revert');
  let_in boolean;
begin
  if agentundo._operator() then
    return;
  elsif agentundo._agent() or not agentundo._in_role(agentundo._caller(), 'agentundo_app') then
    perform agentundo._refuse_role('revert', 'Let the application do it: a role that is a member of agentundo_app, or of agentundo_operator.');
  elsif coalesce(reverted_by, '') = '' then
    perform agentundo._fail('UN003', 'agentundo: the application must say who reverts',
      'Give reverted_by => the person whose decision this is.');
  end if;
  -- A redo is judged by what was reverted: the revert itself was a person's, not an agent's.
  judged := agentundo._originals(invocations);
  for i in select v.id, v.scope, v.actor, v.on_behalf_of from agentundo.invocations v where v.id = any (judged) order by v.id loop
    if i.scope is distinct from agentundo._scope(scope) then
      perform agentundo._unknown(i.id);
    end if;
    let_in := reverted_by is distinct from i.actor and (
      reverted_by = i.on_behalf_of
      or exists (select from agentundo._scope_owner o where o.scope = i.scope and o.person = reverted_by));
    if let_in is not true and reverted_by is distinct from i.actor and policy is not null then
      if to_regprocedure(policy) is null then
        perform agentundo._fail('UN003', format('agentundo: the policy may_revert, %s, is gone', policy),
          'Create the function again, or let an operator run "select agentundo.set_policy(''may_revert'', null)".');
      elsif not (select p.prosecdef from pg_proc p where p.oid = to_regprocedure(policy)) then  -- its owner has altered it
        perform agentundo._fail('UN003', format('agentundo: the policy %s would run with the rights of %s', policy, agentundo._worker()),
          format('Run "alter function %s security definer".', policy));
      end if;
      select * into let_in from agentundo._look(format('select %s(%L::text, %L::text, %L::text)', to_regprocedure(policy)::oid::regproc, i.id, reverted_by, i.scope)) as p (let_in boolean);
    end if;
    if let_in is not true then
      perform agentundo._fail('UN003', format('agentundo: %L may not revert invocation %L', left(reverted_by, 255), i.id),
        'The person it acted for may, an owner of its scope (agentundo.set_scope_owner), and whom the policy may_revert lets in; never its own agent.',
        jsonb_build_object('invocation', i.id));
    end if;
  end loop;
end
$body$;

-- `force` destroys later work of others: only with a name and a reason, and never on an agent's word.
create or replace function agentundo._refuse_force(on_conflict text, reverted_by text, reason text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if on_conflict is distinct from 'force' then
    return;
  elsif coalesce(reverted_by, '') = '' or coalesce(reason, '') = '' then
    perform agentundo._fail('UN003', 'agentundo: force needs a person and a reason',
      'Give reverted_by and reason: force overwrites what others wrote later.');
  elsif agentundo._is_agent() then
    perform agentundo._fail('UN003', format('agentundo: %s is an agent''s role and may not force', agentundo._caller()),
      'Let a person force the revert from a session of their own.');
  elsif agentundo._setting('agent.invocation') is not null then
    perform agentundo._fail('UN003', 'agentundo: a session tagged with agent.invocation may not force',
      'Let a person force the revert from an untagged session.');
  end if;
end
$body$;

-- Other people's code ----------------------------------------------------------------------------------

-- CHECK constraints, index expressions, defaults, generated columns, casts and triggers run with the rights
-- of whoever restores the row or only reads the table: planning a statement is enough to call a function
-- in an index expression. So every statement that names a table of the user's is executed by these two,
-- which belong to agentundo_worker. The statements are ours; $1 to $4 are decisions, $5 is the search_path
-- that the owner's functions count on, $6 to $9 are numbers. _look() reads, with the snapshot of its caller.
--
-- What runs as agentundo_worker may alter what belongs to it, though not replace these bodies (for that it
-- would have to create in our schema). So each begins by making sure that it is what it was made: a
-- definer's function that nobody else may call.
create or replace function agentundo._require_unaltered(name name) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as
$body$
begin
  if not exists (
    select from pg_proc p
    where p.pronamespace = 'agentundo'::regnamespace and p.proname = name and p.prosecdef and pg_get_userbyid(p.proowner) = current_user
      and p.proacl is not null and not exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner)) then
    raise exception using errcode = 'UN012', message = format('agentundo: somebody has altered the function agentundo.%I', name),
      hint = 'Code in a constraint of a tracked table may have done it: find out whose. "agentundo upgrade" makes the function anew.';
  end if;
end
$body$;

create or replace function agentundo._look(
  statement text, path text default null, a agentundo._decision[] default null, b agentundo._decision[] default null,
  c agentundo._decision[] default null, d agentundo._decision[] default null,
  e bigint[] default null, f bigint[] default null, g bigint[] default null, h bigint[] default null)
returns setof record language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set jit = off set work_mem = '64MB' set extra_float_digits = 1 set intervalstyle = 'postgres' as
$body$
begin
  perform agentundo._require_unaltered('_look');
  return query execute statement using a, b, c, d, path, e, f, g, h;
end
$body$;

create or replace function agentundo._act(statement text, a agentundo._decision[] default null, path text default null) returns setof bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set jit = off set work_mem = '64MB' as
$body$
begin
  perform agentundo._require_unaltered('_act');
  if path is not null then
    perform set_config('search_path', path, true);
    execute statement;
  else
    return query execute statement using a;
  end if;
end
$body$;

-- Those of the two that are not what they were made. What is STRICT, for one, is not even entered.
create or replace function agentundo._altered() returns setof name
language sql stable security definer set search_path = pg_catalog, pg_temp as
$body$
  select w.name::name
  from (values ('_look', 's', '{extra_float_digits=1,IntervalStyle=postgres}'::text[]), ('_act', 'v', '{}')) w (name, volatility, settings)
  left join pg_proc p on p.pronamespace = 'agentundo'::regnamespace and p.proname = w.name
  where p.oid is null or not p.prosecdef or p.proisstrict or p.provolatile <> w.volatility::"char" or p.proacl is null
    or exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner)
    or p.proconfig is distinct from '{"search_path=pg_catalog, pg_temp",quote_all_identifiers=off,row_security=off,jit=off,work_mem=64MB}'::text[] || w.settings
$body$;

create or replace function agentundo._require_workers() returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  perform agentundo._fail('UN012', format('agentundo: somebody has altered the function agentundo.%I', a),
    'Code in a constraint of a tracked table may have done it: find out whose. "agentundo upgrade" makes the function anew.')
  from agentundo._altered() a;
end
$body$;

-- Ours they are, the worker's they become, whoever was let in goes.
do $body$
declare
  guest record;
begin
  for guest in
    select p.oid::regprocedure as function, case when a.grantee = 0 then 'public' else a.grantee::regrole::text end as role
    from pg_proc p cross join lateral aclexplode(p.proacl) a
    where p.pronamespace = 'agentundo'::regnamespace and p.proname in ('_look', '_act') and a.grantee <> p.proowner
  loop
    execute format('revoke all on function %s from %s', guest.function, guest.role);
  end loop;
  execute 'revoke all on function agentundo._look, agentundo._act from public';
  if current_user = 'agentundo_owner' and to_regrole('agentundo_worker') is not null and pg_has_role('agentundo_worker', 'member') then
    grant usage, create on schema agentundo to agentundo_worker;
    alter function agentundo._look owner to agentundo_worker;
    alter function agentundo._act owner to agentundo_worker;
    revoke create on schema agentundo from agentundo_worker;
    grant usage on schema agentundo_history to agentundo_worker;
    grant select on agentundo._change, agentundo._revert, agentundo._reverted, agentundo._erased, agentundo._member to agentundo_worker;
  end if;
end
$body$;

-- Decisions of the team --------------------------------------------------------------------------------

create or replace function agentundo.set_policy(name text, function regprocedure) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  p pg_proc;
begin
  perform agentundo._require_operator('set policies');
  if name is distinct from 'may_revert' then
    perform agentundo._fail('22023', format('agentundo: there is no policy %L', name),
      'There is may_revert: a function (invocation text, person text, scope text) that returns boolean.');
  end if;
  if function is null then
    delete from agentundo._policy x where x.name = set_policy.name;
    return;
  end if;
  select * into p from pg_proc where oid = function;
  if p.prokind <> 'f' or p.proretset or p.prorettype <> 'boolean'::regtype or oidvectortypes(p.proargtypes) <> 'text, text, text' then
    perform agentundo._fail('22023', format('agentundo: %s cannot be the policy %s', function, name),
      'It must be a function (invocation text, person text, scope text) that returns boolean.');
  elsif not p.prosecdef then
    perform agentundo._fail('22023', format('agentundo: %s cannot be the policy %s: it would run with the rights of %s', function, name, agentundo._worker()),
      format('Run "alter function %s security definer": then it runs with the rights of its owner.', function));
  elsif not has_function_privilege(agentundo._worker(), function, 'execute') or not has_schema_privilege(agentundo._worker(), p.pronamespace, 'usage') then
    perform agentundo._fail('UN003', format('agentundo: %s may not call %s', agentundo._worker(), function),
      format('Run "grant usage on schema %s to %I" and "grant execute on function %s to %I".', p.pronamespace::regnamespace, agentundo._worker(), function, agentundo._worker()));
  end if;
  insert into agentundo._policy values (set_policy.name, set_policy.function::text)
  on conflict on constraint _policy_pkey do update set function = excluded.function;
end
$body$;
comment on function agentundo.set_policy(text, regprocedure) is
  'Registers your own function (invocation text, person text, scope text) returns boolean that decides who else may revert through the application; null takes it away. An upgrade never touches it. It must be SECURITY DEFINER, and runs with the rights of its owner and an empty search_path: qualify what it reads.';

create or replace function agentundo.set_scope_owner(scope text, person text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  perform agentundo._require_operator('name owners of scopes');
  if coalesce(scope, '') = '' or person = '' then
    perform agentundo._fail('22023', 'agentundo: the scope or the person is empty',
      'Give both, or null as the person to leave the scope without owners.');
  elsif person is null then
    delete from agentundo._scope_owner o where o.scope = set_scope_owner.scope;
  else
    insert into agentundo._scope_owner values (set_scope_owner.scope, set_scope_owner.person) on conflict do nothing;
  end if;
end
$body$;
comment on function agentundo.set_scope_owner(text, text) is
  'Lets one more person revert every invocation of a scope through the application. null as the person takes all owners of the scope away. Changes none of your rows.';

-- The tracked table, for a caller who decides for it: its owner, or an operator.
create or replace function agentundo._table_to_decide(relation regclass) returns agentundo._tracked
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
begin
  if not agentundo._operator() and not coalesce((select pg_has_role(agentundo._caller(), c.relowner, 'usage') from pg_class c where c.oid = t.relation), false) then
    perform agentundo._fail('UN003', format('agentundo: %s may not decide for %s', agentundo._caller(), t.name),
      'Run it as the owner of the table, or as a member of agentundo_operator.');
  end if;
  return t;
end
$body$;

create or replace function agentundo._set_merge(relation regclass, column_name name, rule text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked := agentundo._table_to_decide(relation);
  c record;
begin
  perform agentundo._take_turn(array[t.id]);  -- an undo that is under way has decided by the rule of now
  select * into c from agentundo._columns(t.id) x where x.name = column_name and x.live;
  if not found then
    perform agentundo._fail('22023', format('agentundo: %s has no captured column %L', t.name, column_name),
      'Name a column as the table calls it now; generated columns are not captured.');
  elsif rule is not null and rule <> 'delta' then
    perform agentundo._fail('22023', format('agentundo: there is no merge rule %L', rule),
      'Use ''delta'' (subtract what the agent added), or null to remove the rule.');
  elsif rule is not null and c.type not in ('smallint', 'integer', 'bigint', 'numeric', 'real', 'double precision', 'money', 'interval') then
    perform agentundo._fail('22023', format('agentundo: column %I of %s is of type %s, which has no differences to subtract', column_name, t.name, c.type),
      '''delta'' is for counters and balances: numbers, money, interval.');
  end if;
  if rule is null then
    delete from agentundo._merge_rule m where m.tracked = t.id and m.attnum = c.attnum;
  else
    insert into agentundo._merge_rule values (t.id, c.attnum, c.name, _set_merge.rule)
    on conflict on constraint _merge_rule_pkey do update set name = excluded.name, rule = excluded.rule;
  end if;
end
$body$;
create or replace function agentundo.set_merge(relation regclass, "column" name, rule text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as
$body$ select agentundo._set_merge(relation, "column", rule) $body$;
comment on function agentundo.set_merge(regclass, name, text) is
  'Declares a column to be a counter or balance: with merge => true a revert subtracts what the agent itself added and keeps everybody else''s additions. null removes the rule. Changes no row now.';

create or replace function agentundo.set_trigger(relation regclass, trigger name, rule text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  t agentundo._tracked := agentundo._table_to_decide(relation);
begin
  if rule is not null and rule not in ('fire', 'silence') then
    perform agentundo._fail('22023', format('agentundo: there is no trigger rule %L', rule),
      'Use ''fire'' or ''silence'' (the default), or null to remove the rule.');
  elsif not exists (
    select from agentundo._users_triggers g where g.tgname = set_trigger.trigger
      and g.tgrelid in (select mb.relation from agentundo._member mb where mb.tracked = t.id)) then
    perform agentundo._fail('22023', format('agentundo: %s has no trigger %L of yours', t.name, trigger),
      'Name one that "\d" shows for the table or one of its partitions.');
  elsif rule is null then
    delete from agentundo._trigger_rule r where r.tracked = t.id and r.trigger = set_trigger.trigger;
  else
    insert into agentundo._trigger_rule values (t.id, set_trigger.trigger, set_trigger.rule)
    on conflict on constraint _trigger_rule_pkey do update set rule = excluded.rule;
  end if;
end
$body$;
comment on function agentundo.set_trigger(regclass, name, text) is
  'Says whether a trigger of yours fires for rows that a revert restores: ''silence'' (the default) or ''fire''. Takes effect at the next revert; changes neither the trigger nor a row now.';
