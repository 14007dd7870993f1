-- 10  History: reading what was captured
--
-- What lives here: how a row image is shown, the six views, and the functions that answer "what can
-- be undone", "what did this call change", "what happened to this row". All of it is pure SELECT: it
-- works in a READ ONLY transaction and on a hot standby, takes no lock and writes nothing.
--
-- Showing is separate from deciding. A plan decides on images as they are stored; what people see is
-- jsonb made by _value_sql(), which gives something for every legal value: where jsonb has no place
-- for it (\u0000, 1e400000, a gigabyte of bytea) it is shown as text, cut, with a digest, so that two
-- values that differ never look the same. Nothing that is shown is ever used to restore.
--
-- Who sees what: the functions run with our rights and show each column only to a caller who may
-- SELECT it from the table itself. History carries no row-level security, so a caller whom a policy
-- of the table binds is refused. The views show our own bookkeeping, never a user's values; operators
-- and auditors read them.

-- Rendering ------------------------------------------------------------------------------------------

-- Is the role bound by row-level security on this table? The rule of PostgreSQL itself: not where
-- it is off, not for BYPASSRLS and superusers, not for the owner unless it is forced upon him.
create or replace function agentundo._rls_binds(relation regclass, role name) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select c.relrowsecurity and not r.rolsuper and not r.rolbypassrls
     and (c.relforcerowsecurity or not pg_has_role(role, c.relowner, 'usage'))
  from pg_class c, pg_roles r
  where c.oid = relation and r.rolname = role
$body$;

-- A text expression as jsonb, cut after `cap` characters.
create or replace function agentundo._cut_sql(expr text, cap int) returns text
language sql stable as
$body$
  select format($sql$to_jsonb(case when octet_length(%1$s) <= %2$s or length(%1$s) <= %2$s then %1$s
    else left(%1$s, %2$s) || %3$L || length(%1$s) || ' characters, ' || to_hex(hashtextextended((%1$s) collate "C", 0)) || ')' end)$sql$,
    expr, cap, case when getdatabaseencoding() = 'UTF8' then chr(8230) else '...' end || ' (')
$body$;

-- Values whose text may be far longer than they are: beyond a megabyte only their size is shown.
create or replace function agentundo._bulky_sql(expr text, cap int) returns text
language sql stable as
$body$
  select format($sql$case when pg_column_size(%1$s) > 1000000 then to_jsonb('(' || pg_column_size(%1$s) || ' bytes)') else %2$s end$sql$,
    expr, agentundo._cut_sql(format('case when %1$s is distinct from null then format(''%%s'', %1$s) end', expr), cap))
$body$;

-- An SQL expression that shows one value as jsonb and raises for no legal value. `type` is a type of
-- a history column. Numbers and booleans stay what they are (NaN and Infinity become strings), dates
-- and times are ISO 8601 whatever DateStyle says, the rest is what its output function says (a cast to
-- text could be a function of the user's, and would run with our rights).
create or replace function agentundo._value_sql(expr text, type text, cap int default 1000) returns text
language sql stable as
$body$
  select case
    when type in ('boolean', 'smallint', 'integer', 'bigint', 'real', 'double precision', 'date',
                  'timestamp without time zone', 'timestamp with time zone') then
      format('to_jsonb(%s)', expr)
    when type = 'numeric' then
      -- as a number only where every client can read it as one
      format('case when %1$s between -1e300 and 1e300 and scale(%1$s) <= 300 then to_jsonb(%1$s) else %2$s end', expr, agentundo._cut_sql(expr || '::text', cap))
    when type in ('text', 'character varying', 'bpchar') then
      agentundo._cut_sql(expr || '::text', cap)
    when type = 'bytea' then
      format($sql$to_jsonb(%4$L || encode(substr(%1$s, 1, %2$s), 'hex') || case when length(%1$s) <= %2$s then ''
        else %3$L || length(%1$s) || ' bytes, ' || left(encode(sha256(%1$s), 'hex'), 16) || ')' end)$sql$,
        expr, cap / 2, case when getdatabaseencoding() = 'UTF8' then chr(8230) else '...' end || ' (', '\x')
    when type = 'jsonb' then
      format('case when pg_column_size(%1$s) <= %2$s then %1$s else %3$s end', expr, cap, agentundo._bulky_sql(expr, cap))
    when type = 'json' then
      -- What jsonb may refuse: escapes (no \u0000, no lone surrogates) and numbers with huge exponents.
      format('case when octet_length(%1$s::text) <= %2$s and %1$s::text !~ %3$L then %1$s::jsonb else %4$s end', expr, cap,
        '\\u|(^|[:,[])\s*-?[0-9.]+[eE][+-]?[0-9]{4}', agentundo._bulky_sql(expr, cap))
    when (select typlen > 0 from pg_type where oid = to_regtype(type)) then
      format('to_jsonb(case when %1$s is distinct from null then format(''%%s'', %1$s) end)', expr)
    else
      agentundo._bulky_sql(expr, cap)
  end
$body$;

-- May the caller do what the owner of the schema may? Superusers, the owner, its members.
create or replace function agentundo._owner() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select pg_has_role(agentundo._caller(), nspowner, 'usage') from pg_namespace where nspname = 'agentundo'
$body$;

-- The columns of a tracked table as SQL expressions, one row for each that history knows. A column
-- that was retyped lies in several history columns of which each image fills one at most; a dropped
-- one is still shown from history. `is_key`: of the key as it is now, the whole row where there is
-- none. `readable`: the caller may SELECT it; what no longer exists is left to those with all rights.
create or replace function agentundo._shown(
  tracked_id int, alias text, side text, out attnum smallint, out name name, out is_key boolean,
  out readable boolean, out value text)
returns setof record language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with tracked as materialized (
    select t.history, t.relation, c.oid is not null as present,
      coalesce(case when c.oid is null then t.key_columns else (select b.columns from agentundo._best_key(t.relation) b) end, '{}') as key,
      agentundo._caller() as caller, agentundo._owner() as sees_all
    from agentundo._tracked t left join pg_class c on c.oid = t.relation
    where t.id = tracked_id),
  col as (
    select c.*, t.*, c.attnum = any (t.key) or t.key = '{}' and (c.live or not t.present) as of_key
    from tracked t
    cross join agentundo._columns(tracked_id) c
    join pg_attribute h on h.attrelid = t.history and h.attname = c.history_column and not h.attisdropped
    where side = 'history' or c.live)
  select c.attnum, (array_agg(c.name order by c.since_change desc))[1], bool_or(c.of_key),
    bool_or(coalesce(has_column_privilege(c.caller, c.relation::oid, c.attnum, 'select'), false) or c.sees_all),
    case when count(*) = 1 then '' else 'coalesce' end || '('
    || string_agg(agentundo._value_sql(
         case side when 'history' then format('%I.%I', alias, c.history_column) else agentundo._stored(alias, c.name, c.type_now) end,
         c.type, case when c.of_key then 3000 else 1000 end), ', ' order by c.since_change desc)
    || ')'
  from col c
  group by c.attnum
$body$;

-- jsonb_build_object() takes a hundred arguments: wide tables are put together from pieces.
create or replace function agentundo._object_sql(names text[], expressions text[]) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce('(' || string_agg(piece, ' || ' order by n) || ')', '''{}''::jsonb')
  from (
    select (i - 1) / 45 as n, 'jsonb_build_object(' || string_agg(quote_literal(name) || ', ' || expression, ', ' order by i) || ')' as piece
    from unnest(names, expressions) with ordinality u (name, expression, i)
    group by 1) p
$body$;

-- A row as jsonb, in the columns that the caller may read. `side` is 'history' (alias.c1 ...) or
-- 'table' (alias."name"). `change`: of an image, without the columns that came after it.
create or replace function agentundo._json_sql(tracked_id int, alias text, side text, change text default null) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._object_sql(array_agg(s.name::text order by s.attnum), array_agg(s.value order by s.attnum))
    || coalesce((
      select format(' - array_remove(array[%s]::text[], null)', string_agg(format('case when not (%s) then %L end', i.known, i.name), ', ' order by i.attnum))
      from agentundo._image_columns(tracked_id, alias, change) i where i.known is not null
      having change is not null and count(*) > 0), '')
  from agentundo._shown(tracked_id, alias, side) s where s.readable
$body$;

-- The key of a row as jsonb, in the columns that the caller may read.
create or replace function agentundo._key_sql(tracked_id int, alias text, side text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._object_sql(array_agg(s.name::text order by s.attnum), array_agg(s.value order by s.attnum))
  from agentundo._shown(tracked_id, alias, side) s where s.readable and s.is_key
$body$;

-- The same whatever the caller may read: to tell rows apart, never to be shown.
create or replace function agentundo._identity_sql(tracked_id int, alias text, side text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._object_sql(array_agg(s.name::text order by s.attnum), array_agg(s.value order by s.attnum))
  from agentundo._shown(tracked_id, alias, side) s where s.is_key
$body$;

-- Views ----------------------------------------------------------------------------------------------

-- What each tracked table is called now; its last name once it is gone.
create or replace view agentundo._names as
select t.id as tracked, coalesce(
  (select format('%I.%I', n.nspname, k.relname) from pg_catalog.pg_class k
   join pg_catalog.pg_namespace n on n.oid = k.relnamespace where k.oid = t.relation), t.name) as relation
from agentundo._tracked t;

-- One row per change, with the newest standing revert that has taken it back.
create or replace view agentundo.changes as
select c.change, c.invocation, coalesce(i.run, c.run) as run, coalesce(i.step, c.step) as step, t.relation,
  case c.operation when 'I' then 'insert' when 'U' then 'update' when 'D' then 'delete' else 'truncate' end as operation,
  c.rows, c.role, c.application as application_name, c.xid, c.at,
  (select v.id from agentundo._reverted r join agentundo._revert v on v.id = r.revert
   where r.change = c.change and v.standing and not v.reopened order by v.number desc limit 1) as covered_by
from agentundo._change c
left join agentundo._names t on t.tracked = c.tracked
left join agentundo._invocation i on i.id = c.invocation
where not c.void;
comment on view agentundo.changes is
  'Every captured statement per table: which invocation made it, how many rows, and which revert has taken it back. Without values of rows.';

-- A setting that is an interval; null where it is none, so that nothing else stops at it. In one reading, whatever
-- the session's IntervalStyle.
create or replace function agentundo._age(setting text) returns interval
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set intervalstyle = 'postgres' as
$body$
declare
  written text := (select s.value from agentundo._setting s where s.name = setting);
begin
  return case when agentundo._setting_problem(setting, written) is null then written::interval end;
end
$body$;

-- Recorded invocations and those known by their changes alone; what was recorded wins over what the
-- first change says. Conditions on `id` reach the indexes.
create or replace view agentundo.invocations as
select x.id, coalesce(i.run, f.run) as run, coalesce(i.step, f.step) as step, coalesce(i.scope, f.scope) as scope,
  coalesce(i.actor, f.actor) as actor, coalesce(i.on_behalf_of, f.on_behalf_of) as on_behalf_of,
  coalesce(i.role, f.role) as role, coalesce(i.tool, f.tool) as tool, i.tier, i.model,
  case
    when c.open = 0 and (c.changes > 0 or i.purged_at is not null and not v.partial) then 'reverted'
    when c.open < c.changes or v.partial or v.reopened then 'partially_reverted'
    else coalesce(i.status, 'committed')
  end as status,
  coalesce(i.recorded, false) as recorded, i.input, i.result, i.error, i.meta,
  coalesce(c.rows, 0) as rows,
  array(select n.relation from agentundo._names n where n.tracked = any (c.tracked) order by n.relation) as relations,
  i.uncovered, coalesce(i.created_at, c.first_at) as created_at, i.committed_at, c.first_at as first_write_at, c.last_at as last_write_at,
  v.at as reverted_at, v.reverted_by, v.reason as revert_reason, v.id as revert_id,
  c.open > 0 as undoable,
  case when c.open > 0 then least(
    (select min(e.undo_by) from agentundo._effect e where e.invocation = x.id),
    case when i.held is null then c.last_at + (select agentundo._age('retention')) end) end as undo_by
from (
  select id from agentundo._invocation
  union
  select invocation from agentundo._change where invocation is not null) x
left join agentundo._invocation i on i.id = x.id
cross join lateral (
  select count(*) as changes, min(o.change) as first_change, min(o.at) as first_at, max(o.at) as last_at, sum(o.rows) filter (where not o.void)::bigint as rows,
    count(*) filter (where not exists (
      select from agentundo._reverted r join agentundo._revert w on w.id = r.revert where r.change = o.change and w.standing and not w.reopened)) as open,
    array_agg(distinct o.tracked) as tracked
  from agentundo._change o where o.invocation = x.id) c
left join agentundo._change f on f.change = c.first_change
left join lateral (
  select r.* from agentundo._revert r
  where r.invocations operator(pg_catalog.@>) array[x.id] and r.standing order by r.number desc limit 1) v on true;
comment on view agentundo.invocations is
  'One row per tool call: recorded ones, and those that were only tagged. "undoable" says whether anything is left that revert() would take back, "undo_by" until when it is kept. Reading it changes nothing.';

-- Every invocation of a run. A recorded run wins over the setting under which it wrote.
create or replace function agentundo._run_invocations(run text) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select array(
    select i.id from agentundo._invocation i where i.run = _run_invocations.run
    union
    select c.invocation from agentundo._change c
    where c.run = _run_invocations.run and c.invocation is not null
      and not exists (select from agentundo._invocation i where i.id = c.invocation and i.run <> c.run))
$body$;

create or replace view agentundo.runs as
select x.run, r.*
from (
  select run from agentundo._invocation where run is not null
  union
  select run from agentundo._change where run is not null and invocation is not null) x
cross join lateral (
  select min(i.scope) as scope, min(i.actor) as actor, min(i.on_behalf_of) as on_behalf_of, count(*) as invocations,
    sum(i.rows)::bigint as rows, min(coalesce(i.first_write_at, i.created_at)) as first_at,
    max(greatest(i.last_write_at, i.created_at)) as last_at,
    case
      when bool_or(i.status in ('reverted', 'partially_reverted')) then
        case when bool_or(i.undoable) then 'partially_reverted' else 'reverted' end
      when bool_or(i.status = 'pending') then 'pending'
      when bool_and(i.status = 'failed') then 'failed'
      else 'committed'
    end as status,
    bool_or(i.undoable) as undoable
  from agentundo.invocations i
  where i.id = any (agentundo._run_invocations(x.run))) r
where r.invocations > 0;
comment on view agentundo.runs is
  'One row per run, the chain of tool calls of an agent turn or job: its size, its time, and whether revert_run() would take anything back. Reading it changes nothing.';

create or replace view agentundo.events as
select event, at, kind, source, scope, invocation, run, step, tool, actor, payload from agentundo._event;
comment on view agentundo.events is
  'What happened to invocations: reverts, redos, purges, erasures. NOTIFY agentundo is only a wake-up, anybody can send one; this is the record.';

create or replace view agentundo.effects as
select id, invocation, name, kind, summary, undo_by, side_effect, cost, remedy, handler, at from agentundo._effect;
comment on view agentundo.effects is
  'What left the database under an invocation, as record_effect() was told: mails, payments, calls. Shown in plans; a revert of rows does not take it back.';

-- Invocations and runs ---------------------------------------------------------------------------------

-- The newest invocations of a scope, each once, reverts left out. Walks the changes and the records
-- from their newest end and stops when there are enough: a long history costs nothing. The scopes that
-- changes carry decide here; the caller looks again at those that were recorded.
create or replace function agentundo._newest(scope text, anywhere boolean, number int) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  wanted text := case when anywhere then 'true' when scope is null then 'x.scope is null' else 'x.scope = $1' end;
  found_ids text[] := array[]::text[];
  recorded_ids text[];
  newest_id text;
begin
  for newest_id in
    execute format('select x.invocation from agentundo._change x where x.invocation is not null and %s order by x.change desc', wanted) using scope
  loop
    exit when cardinality(found_ids) >= number;
    if newest_id <> all (found_ids) and not exists (select from agentundo._revert r where r.id = newest_id) then
      found_ids := found_ids || newest_id;
    end if;
  end loop;
  execute format('select array(select x.id from agentundo._invocation x where x.recorded and x.id <> all ($2) and %s order by x.created_at desc limit $3)', wanted)
    into recorded_ids using scope, found_ids, number;
  return found_ids || recorded_ids;
end
$body$;

create or replace function agentundo._undoable(scope text, run text, number int) returns setof agentundo.undoable_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  wanted text := agentundo._scope(scope);
  anywhere boolean;
  ids text[];
begin
  perform agentundo._may_read();
  anywhere := wanted is null and not agentundo._bound_to_scope();
  ids := case when run is null then agentundo._newest(wanted, anywhere, number) else agentundo._run_invocations(run) end;
  return query
    with newest as materialized (
      select i.id, i.run, i.step, i.scope, i.actor, i.on_behalf_of, i.tool, i.rows, greatest(i.last_write_at, i.created_at) as last_at, i.undoable,
        case
          when i.undoable then null
          when (select n.purged_at is not null from agentundo._invocation n where n.id = i.id) then 'expired'
          when i.status in ('reverted', 'partially_reverted') then 'already_reverted'
          when i.status = 'pending' then 'not_committed'
          else 'nothing_to_revert'
        end as why_not
      from agentundo.invocations i
      where i.id = any (ids)
        and (anywhere or agentundo._in_scope(i.id, wanted))
      order by 9 desc, i.id desc
      limit number),
    item as (
      select 1 as place, 'invocation' as kind, n.id, n.run, n.step, n.scope, n.actor, n.on_behalf_of,
        case when n.tool is null then '{}' else array[n.tool] end as tools, n.rows, n.last_at, n.undoable, n.why_not
      from newest n
      union all
      -- A run as a whole, not only those of its invocations that are listed.
      select 0, 'run', r.run, r.run, null, r.scope, r.actor, r.on_behalf_of, w.tools, w.rows, r.last_at, w.undoable,
        case when not w.undoable then (select min(n.why_not) from newest n where n.run = r.run) end
      from (select n.run, min(n.scope) as scope, min(n.actor) as actor, min(n.on_behalf_of) as on_behalf_of, max(n.last_at) as last_at
            from newest n where n.run is not null group by n.run) r
      cross join lateral (
        select coalesce(array_agg(distinct coalesce(i.tool, c.tool)) filter (where coalesce(i.tool, c.tool) is not null), '{}') as tools,
          coalesce(sum(c.rows) filter (where not c.void), 0)::bigint as rows,
          coalesce(bool_or(not exists (
            select from agentundo._reverted x join agentundo._revert v on v.id = x.revert where x.change = c.change and v.standing and not v.reopened)), false) as undoable
        from unnest(agentundo._run_invocations(r.run)) m
        join agentundo._change c on c.invocation = m
        left join agentundo._invocation i on i.id = m
        where anywhere or agentundo._in_scope(m, wanted)) w)
    select i.kind, i.id, i.run, i.step, i.scope, i.actor, i.on_behalf_of, i.tools, i.rows, i.last_at, i.undoable, i.why_not
    from item i
    order by max(i.last_at) over (partition by coalesce('r' || i.run, 'i' || i.id)) desc, coalesce('r' || i.run, 'i' || i.id), i.place, i.last_at desc, i.id desc;
end
$body$;
create or replace function agentundo.undoable(scope text default null, run text default null, "limit" int default 20)
returns setof agentundo.undoable_row
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select * from agentundo._undoable(scope, run, "limit") $body$;
comment on function agentundo.undoable(text, text, int) is
  'What an undo button asks: the newest invocations of a scope (or of one run), each run before its invocations, whether revert() would take anything back, and if not why. Changes nothing.';

-- Rows -------------------------------------------------------------------------------------------------

-- The tracked table behind a name that a caller gave; a partition stands for its root.
create or replace function agentundo._tracked_table(relation regclass) returns agentundo._tracked
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  select x.* into t from agentundo._tracked x
  where x.relation in (_tracked_table.relation, agentundo._root(_tracked_table.relation))
  order by x.relation = _tracked_table.relation desc limit 1;
  if not found then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', coalesce(relation::text, 'NULL')),
      'The view agentundo.tracked lists what is.', jsonb_build_object('relation', relation::text));
  end if;
  return t;
end
$body$;

-- History of a table is for those who see all of its rows, and at least one of its columns.
create or replace function agentundo._require_sight(t agentundo._tracked) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if coalesce(agentundo._rls_binds(t.relation, agentundo._caller()), false) then
    perform agentundo._fail('UN003', format('agentundo: row-level security of %s binds %s, and history does not carry it', t.name, agentundo._caller()),
      'Ask as the owner of the table or as a role with BYPASSRLS.', jsonb_build_object('relation', t.name));
  elsif not exists (select from agentundo._shown(t.id, 'x', 'history') s where s.readable) then
    perform agentundo._fail('UN003', format('agentundo: %s may not read %s', agentundo._caller(), t.name),
      format('Grant SELECT on %s, or on some of its columns, to %s.', t.name, agentundo._caller()), jsonb_build_object('relation', t.name));
  end if;
end
$body$;

-- May the caller see all values of these tables? What a function of theirs complains of is told to nobody else.
create or replace function agentundo._reads_all(tables int[]) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select not exists (
      select from agentundo._tracked t
      where t.id = any (tables) and t.relation is not null and agentundo._rls_binds(t.relation, agentundo._caller()))
    and not exists (select from unnest(tables) u (id) cross join lateral agentundo._shown(u.id, 'x', 'history') s where not s.readable)
$body$;

-- Whoever asks after one row has to see its key: or keys could be guessed.
create or replace function agentundo._require_sight_of_key(t agentundo._tracked) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  hidden text;
begin
  perform agentundo._require_sight(t);
  select min(s.name::text) into hidden from agentundo._shown(t.id, 'x', 'history') s where s.is_key and not s.readable;
  if hidden is not null then
    perform agentundo._fail('UN003', format('agentundo: %s may not read the key of %s', agentundo._caller(), t.name),
      format('Grant SELECT on its column %I to %s.', hidden, agentundo._caller()), jsonb_build_object('relation', t.name));
  end if;
end
$body$;

-- A condition on the alias: this is the row with the key in the jsonb expression `param`. Keys are
-- compared by the equality of their own type; where there is no key to compare, or only a cast of the
-- user's could read it, by what is shown.
create or replace function agentundo._match_sql(tracked_id int, alias text, side text, param text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(
    (select case when bool_and(y.typtype = 'b') then string_agg(case side
         when 'history' then format('%s.%I %s %s', alias, k.history_column, agentundo._equal(h.oid), v.value)
         else format('%s.%I %s %s', alias, k.name, agentundo._equal(k.type), agentundo._given_back(v.value, k.type)) end, ' and ' order by k.place) end
     from agentundo._key(tracked_id) k
     join pg_type h on h.oid = to_regtype(k.history_type)
     join pg_type y on y.oid = case when h.typcategory = 'A' then h.typelem else h.oid end
     cross join lateral format('(%s ->> %L)::%s', param, k.name, k.history_type) v (value)),
    agentundo._identity_sql(tracked_id, alias, side) || ' = ' || param)
$body$;

create or replace function agentundo._check_key(t agentundo._tracked, key jsonb) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  wanted text[];
begin
  select array_agg(s.name::text order by s.name::text collate "C") into wanted from agentundo._shown(t.id, 'x', 'history') s where s.is_key;
  if jsonb_typeof(key) is distinct from 'object'
    or array(select k collate "C" from jsonb_object_keys(key) k order by 1) <> coalesce(wanted, '{}') then
    perform agentundo._fail('22023', format('agentundo: this is not a key of %s', t.name),
      format('Give a JSON object with the key columns: %s.', array_to_string(wanted, ', ')),
      jsonb_build_object('relation', t.name, 'columns', wanted));
  end if;
end
$body$;

-- A statement that pairs the images of changes by key: change, key, item, before, after, as they are shown.
-- `changes` is a query for (change, source, inverted), `matching` a condition on history alias h.
-- Rows without a key pair with their equals, as often as they occur.
create or replace function agentundo._pairs_sql(t agentundo._tracked, changes text, matching text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format($sql$
    select g.change, g.key, p.item, p.before, p.after
    from (
      select x.change, x.identity, min(x.key::text)::jsonb as key,
        array_agg(x.shown) filter (where x.old) as before, array_agg(x.shown) filter (where not x.old) as after
      from (
        select c.change, (h._image = 'O') <> c.inverted as old, %1$s as identity, %2$s as key, %3$s as shown
        from (%4$s) c join %5$s h on h._change = c.source where %6$s) x
      group by x.change, x.identity) g
    cross join lateral unnest(g.before, g.after) with ordinality p (before, after, item)$sql$,
    agentundo._identity_sql(t.id, 'h', 'history'), agentundo._key_sql(t.id, 'h', 'history'), agentundo._json_sql(t.id, 'h', 'history'),
    changes, agentundo._history(t), matching)
$body$;

-- The columns that a caller may read, in the order of the table.
create or replace function agentundo._shown_names(tracked_id int) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(array_agg(s.name::text order by s.attnum), '{}') from agentundo._shown(tracked_id, 'x', 'history') s where s.readable
$body$;

create or replace function agentundo.diff(invocation text, scope text default null) returns setof agentundo.diff_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  parts text[] := array[]::text[];
begin
  perform agentundo._may_read(), agentundo._require_known(array[invocation], scope);
  for t in
    select * from agentundo._tracked x where x.id in (select c.tracked from agentundo._change c where c.invocation = diff.invocation)
  loop
    perform agentundo._require_sight(t);
    parts := parts || format($sql$
      select p.change, %s, p.key, p.item, case when p.before is null then 'insert' when p.after is null then 'delete' else 'update' end, n.position, n.name,
        p.before -> n.name, p.after -> n.name
      from (%s) p
      cross join lateral unnest(%L::text[]) with ordinality n (name, position)
      where p.before is null or p.after is null or (p.before -> n.name)::text is distinct from (p.after -> n.name)::text$sql$,
      quote_literal(t.name),
      agentundo._pairs_sql(t, format('select change, coalesce(source, change) as source, inverted from agentundo._change where invocation = $1 and tracked = %s and not void', t.id), 'true'),
      agentundo._shown_names(t.id));
  end loop;
  if parts <> '{}' then
    return query execute format($sql$
      select $2, $1, d.relation, d.key, d.action, d.column_name, d.before, d.after
      from (%s) d (change, relation, key, item, action, position, column_name, before, after)
      order by d.change, d.relation, d.key, d.item, d.action, d.position$sql$, array_to_string(parts, ' union all '))
      using invocation, (select i.step from agentundo.invocations i where i.id = diff.invocation);
  end if;
end
$body$;
comment on function agentundo.diff(text, text) is
  'What an invocation did, column by column, statement by statement: for updates only the columns that changed, for inserted and deleted rows all. Shows what the caller may SELECT, changes nothing.';

-- Is a change of a scope that an application which lives in `wanted` knows nothing of? A write without a tag
-- belongs to nobody's.
create or replace function agentundo._foreign(change bigint, wanted text) returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c agentundo._change;
begin
  select * into c from agentundo._change x where x.change = _foreign.change;
  return case when c.invocation is null then c.scope is not null and c.scope is distinct from wanted
    else not agentundo._in_scope(c.invocation, wanted) end;
end
$body$;

create or replace function agentundo.row_history(relation regclass, key jsonb, scope text default null) returns setof agentundo.history_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
begin
  perform agentundo._may_read(), agentundo._require_sight_of_key(t), agentundo._check_key(t, key);
  return query execute format($sql$
    select c.change, case when c.change > agentundo._trusted_after() then agentundo._version(c.xmin::text) end, named.invocation,
      coalesce(i.run, named.run), coalesce(i.actor, named.actor), named.role::text,
      case when p.before is null then 'insert' when p.after is null then 'delete' else 'update' end, c.at,
      array(select n.name from unnest($2) with ordinality n (name, position)
            where p.before is null or p.after is null or (p.before -> n.name)::text is distinct from (p.after -> n.name)::text order by n.position),
      p.before, p.after
    from (%s) p
    join agentundo._change c using (change)
    left join agentundo._change named on named.change = c.change and ($3 is not true or not agentundo._foreign(c.change, $4))
    left join agentundo._invocation i on i.id = named.invocation
    order by c.change, p.item$sql$,
    agentundo._pairs_sql(t, format(
      'select change, change as source, inverted from agentundo._change where tracked = %1$s and source is null and not void
       union all select change, source, inverted from agentundo._change where tracked = %1$s and source is not null', t.id),
      agentundo._match_sql(t.id, 'h', 'history', '$1')))
    using key, agentundo._shown_names(t.id), agentundo._bound_to_scope(), agentundo._scope(scope);
end
$body$;
comment on function agentundo.row_history(regclass, jsonb, text) is
  'Every captured version of one row, oldest first: who wrote it, when, under which invocation, which columns. The key is a JSON object of the key columns. Writes of another scope are shown to an application without id, run, actor and role. Reads the whole history of the table; shows what the caller may SELECT, changes nothing.';

-- An opaque version string: which write, in this copy of the database. A restored dump is another copy.
create or replace function agentundo._version(writes text) returns text
language sql stable strict security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select left(encode(sha256(convert_to(format('%s %s %s', s.node, s.xmin, writes), 'UTF8')), 'hex'), 20) from agentundo._stamp s
$body$;

create or replace function agentundo.row_version(relation regclass, key jsonb) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
  writes text;
begin
  perform agentundo._may_read(), agentundo._require_sight_of_key(t), agentundo._check_key(t, key);
  select * into writes from agentundo._look(format('select string_agg(t.xmin::text, '' '' order by t.xmin::text) from %s t where %s',
    agentundo._from(t), agentundo._match_sql(t.id, 't', 'table', quote_literal(key::text) || '::jsonb'))) as found (writes text);
  return agentundo._version(writes);
end
$body$;
comment on function agentundo.row_version(regclass, jsonb) is
  'An opaque string that changes whenever another transaction writes the row, whatever it writes; null when there is no such row. Equal to the version that row_history() shows for the write that made the row. Changes nothing.';
