-- 03  Tags: who is writing, on whose behalf, as part of what
--
-- A tag is a handful of settings that live in the session or, better, in one transaction:
-- agent.invocation and its companions agent.run, agent.step, agent.actor, agent.on_behalf_of,
-- agent.tool, agent.scope. Empty means unset. The capture trigger reads them at the end of each
-- statement. They are plain custom settings, so any client in any language can set them, and
-- agentundo.tag() sets all of them for the current transaction only.
--
-- Also here, because everything below leans on them: how we read a setting, whom we take the caller
-- to be, and how we complain.

create or replace function agentundo.version() returns text
language sql immutable parallel safe as
$body$ select '0.1.0' $body$;
comment on function agentundo.version() is 'The version of the installed schema. Reads nothing, changes nothing.';

-- A setting, or null when it is unset, was reset, or has been left empty by a finished SET LOCAL. Called
-- from capture under the writer's search_path: hence the qualified operators, here and in _caller().
create or replace function agentundo._setting(name text) returns text
language sql stable parallel safe as
$body$
  select case when pg_catalog.length(pg_catalog.current_setting($1, true)) operator(pg_catalog.>) 0
    then pg_catalog.current_setting($1, true) end
$body$;

-- sha256 as hexadecimal digits; md5() is not to be had everywhere.
create or replace function agentundo._digest(content text) returns text
language sql immutable parallel safe as
$body$ select pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to($1, 'UTF8')), 'hex') $body$;

-- Whose rights count. Inside a SECURITY DEFINER function current_user is us, so we go by the role in
-- force outside: what SET ROLE says, else the session's own.
create or replace function agentundo._caller() returns name
language sql stable parallel safe as
$body$
  select case when pg_catalog.current_setting('role') operator(pg_catalog.=) 'none' then session_user
    else pg_catalog.current_setting('role')::pg_catalog.name
  end
$body$;

-- Who runs the statements in which code of other people runs (11_guard.sql): agentundo_worker, or where
-- there is no such role the owner of everything. Rights on users' tables are granted to this role.
create or replace function agentundo._worker() returns name
language sql stable parallel safe as
$body$
  select pg_catalog.pg_get_userbyid(p.proowner) from pg_catalog.pg_proc p
  where p.pronamespace operator(pg_catalog.=) 'agentundo'::pg_catalog.regnamespace and p.proname operator(pg_catalog.=) '_act'
$body$;

-- Every refusal goes through here: what happened, what to do about it, and facts for programs.
-- `detail` never holds values of users' rows: DETAIL is written to the server log.
create or replace function agentundo._fail(code text, message text, hint text, detail jsonb default null)
returns void language plpgsql set search_path = pg_catalog, pg_temp as
$body$
begin
  if detail is null then
    raise exception using errcode = code, message = message, hint = hint;
  end if;
  raise exception using errcode = code, message = message, hint = hint, detail = detail::text;
end
$body$;

create or replace function agentundo._check_id(id text, what text default 'invocation id') returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
begin
  if id is null or id = '' then
    raise exception using errcode = '22023', message = format('agentundo: the %s is empty', what),
      hint = 'Give any text of 1 to 255 bytes, for example a UUID.';
  elsif octet_length(id) > 255 then
    raise exception using errcode = '22023',
      message = format('agentundo: the %s has %s bytes, more than the 255 allowed', what, octet_length(id)),
      hint = 'Use a shorter id, for example a UUID or a hash of the long one.';
  end if;
end
$body$;

-- agent.step as a number; anything else refuses the write that it would have labelled.
create or replace function agentundo._step(setting text) returns int
language plpgsql immutable strict set search_path = pg_catalog, pg_temp as
$body$
begin
  if setting !~ '^\s*[0-9]{1,9}\s*$' or setting::int < 1 then
    raise exception using errcode = '22023',
      message = format('agentundo: agent.step is %L, not a whole number from 1 to 999999999', left(setting, 40)),
      hint = 'Set agent.step to the place of this call in its run, or leave it empty.';
  end if;
  return setting::int;
end
$body$;

create or replace function agentundo.tag(
  id text, run text default null, step int default null, tool text default null, actor text default null,
  on_behalf_of text default null, scope text default null)
returns void language plpgsql set search_path = pg_catalog, pg_temp as
$body$
begin
  perform agentundo._check_id(id);
  perform agentundo._step(step::text) where step is not null;
  -- All of them, also the absent ones: a companion of an outer or an earlier tag must not cling.
  perform set_config('agent.invocation', id, true),
          set_config('agent.run', coalesce(run, ''), true),
          set_config('agent.step', coalesce(step::text, ''), true),
          set_config('agent.tool', coalesce(tool, ''), true),
          set_config('agent.actor', coalesce(actor, ''), true),
          set_config('agent.on_behalf_of', coalesce(on_behalf_of, ''), true),
          set_config('agent.scope', coalesce(scope, ''), true);
  perform agentundo._note_baseline();
end
$body$;
comment on function agentundo.tag(text, text, int, text, text, text, text) is
  'Tags what the current transaction writes from here on: every change to a tracked table is kept with its former rows and can be taken back under this id. Ends with the transaction; in autocommit it has no effect on the next statement.';

-- What the transaction had written before it was tagged, so that commit_invocation() can tell which
-- tables were written under the tag without being tracked. A transaction without an id wrote nothing.
create or replace function agentundo._note_baseline() returns void
language plpgsql as
$body$
begin
  if pg_catalog.pg_current_xact_id_if_assigned() is null then
    perform pg_catalog.set_config('agentundo.baseline', '', true);  -- the usual case, and the plan below is dear to start
    return;
  end if;
  perform pg_catalog.set_config('agentundo.baseline', (
      select coalesce(pg_catalog.jsonb_object_agg(s.relid, s.n_tup_ins operator(pg_catalog.+) s.n_tup_upd operator(pg_catalog.+) s.n_tup_del), '{}')::pg_catalog.text
      from pg_catalog.pg_stat_xact_user_tables s
      where s.n_tup_ins operator(pg_catalog.+) s.n_tup_upd operator(pg_catalog.+) s.n_tup_del operator(pg_catalog.>) 0), true);
end
$body$;
