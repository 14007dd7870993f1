-- 18  Plan: what a revert would do, row by row, and what stands in its way
--
-- One place decides. plan() shows the decisions, revert() (20_revert.sql) makes them again under its
-- locks, by the same code, and acts. Deciding only reads: no lock, no temporary table, no sequence, so
-- a plan works in a READ ONLY transaction and on a hot standby. Decisions travel as an array of
-- `_decision`, in which images are named by where they lie, not copied.
--
-- The order of work: the net effect per row (12_net.sql), which row went where (16_moves.sql), the modes
-- (17_modes.sql), then what constraints say of the rest (15_obstacles.sql), again and again while skipping a
-- row takes the ground from under another. cascade makes the set larger until nothing tagged stands in its
-- way. Showing values comes last and can fail for no legal value.

create or replace function agentundo._check_mode(on_conflict text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if on_conflict is null or on_conflict not in ('abort', 'skip', 'cascade', 'force') then
    perform agentundo._fail('22023', format('agentundo: there is no mode %L for conflicts', on_conflict),
      'Use on_conflict => ''abort'' (default), ''skip'', ''cascade'' or ''force''.');
  end if;
end
$body$;

-- The scope in force: what was asked for, else the session's own.
create or replace function agentundo._scope(scope text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select coalesce(nullif(scope, ''), agentundo._setting('agent.scope')) $body$;

-- Does an invocation belong to what the caller may know of? An app lives within one scope, or within
-- none; others name one or see all.
create or replace function agentundo._in_scope(id text, wanted text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case
    -- a revert belongs where all that it took back belongs
    when exists (select from agentundo._revert v where v.id = _in_scope.id) then
      (select bool_and(agentundo._in_scope(u, wanted)) from agentundo._revert v cross join lateral unnest(v.invocations) u where v.id = _in_scope.id)
    when agentundo._bound_to_scope() or wanted is not null then
      -- what was recorded wins over what the writes were tagged with; nothing of another scope may be among them
      not exists (select from agentundo._change c where c.invocation = _in_scope.id and c.scope <> coalesce(wanted, ''))
      and coalesce(
        (select i.scope is not distinct from wanted from agentundo._invocation i where i.id = _in_scope.id and (i.recorded or i.scope is not null)),
        (select bool_and(c.scope is not distinct from wanted) from agentundo._change c where c.invocation = _in_scope.id), wanted is null)
    else true end
$body$;

-- Refuses ids that the caller cannot know of, in the same words whether they do not exist or belong to
-- another scope, and ids whose history is gone.
create or replace function agentundo._require_known(ids text[], scope text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  one text;
  purged timestamptz;
begin
  if ids is null or cardinality(ids) = 0 then
    perform agentundo._fail('22023', 'agentundo: no invocation was named', 'Give the id that the write was tagged with; agentundo.undoable() lists them.');
  end if;
  foreach one in array ids loop
    perform agentundo._check_id(one);
    if not (exists (select from agentundo._invocation i where i.id = one) or exists (select from agentundo._change c where c.invocation = one))
      or not agentundo._in_scope(one, agentundo._scope(scope)) then
      perform agentundo._unknown(one);
    end if;
    select i.purged_at into purged from agentundo._invocation i where i.id = one;
    -- What was written under the id again since is there.
    if purged is not null and not exists (select from agentundo._change c where c.invocation = one) then
      perform agentundo._fail('UN011', format('agentundo: invocation %L can no longer be undone: its history was purged on %s', one, to_char(purged, 'YYYY-MM-DD')),
        'Keep history longer (setting retention), or exempt an invocation with agentundo.hold().');
    end if;
  end loop;
end
$body$;

create or replace function agentundo._unknown(id text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._fail('UN002', format('agentundo: there is no invocation %L', left(id, 255)),
    'Check the id and the scope; agentundo.undoable() lists what there is. A write without a tag, or to an untracked table, is not kept.');
end
$body$;

-- What of these invocations is still to be taken back: changes that no standing revert covers.
create or replace function agentundo._uncovered(ids text[]) returns bigint[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(array_agg(c.change order by c.change), '{}')
  from agentundo._change c
  where c.invocation = any (ids)
    and not exists (select from agentundo._reverted r join agentundo._revert v on v.id = r.revert
                    where r.change = c.change and v.standing and not v.reopened)
$body$;

-- The changes of the reverts of these invocations, of the redos of those, and so on: they are not
-- somebody else's writes.
create or replace function agentundo._family(ids text[]) returns bigint[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive kin as (
    select v.id, v.xid from agentundo._revert v where v.invocations && ids
    union
    select v.id, v.xid from agentundo._revert v join kin k on v.invocations @> array[k.id])
  select coalesce(array_agg(c.change), '{}')
  from kin k join agentundo._change c on c.invocation = k.id and c.xid = k.xid
  where c.invocation <> all (ids)
$body$;

-- What it is about in the end: for reverts and redos the invocations that they took back or did again.
create or replace function agentundo._originals(ids text[]) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive origin as (
    select u as id from unnest(ids) u
    union
    select unnest(v.invocations) from agentundo._revert v join origin o on o.id = v.id)
  select array(select o.id from origin o where not exists (select from agentundo._revert v where v.id = o.id) order by o.id)
$body$;

-- Whoever took away the parents of rows that come back: of those that stand, the last who had them under the
-- values that the rows refer to, and has left none.
create or replace function agentundo._takers_of_parents(d agentundo._decision[]) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  found text[] := array[]::text[];
  more text[];
  way record;
  parent agentundo._tracked;
  equal text;
begin
  for way in
    select distinct t.id, t.history, c.oid as con, c.conname, c.conkey, c.confkey, agentundo._tracked_of(c.confrelid) as parent
    from unnest(d) x
    join agentundo._tracked t on t.id = x.tracked
    join pg_constraint c on c.contype = 'f' and c.conparentid = 0 and c.conname = x.detail ->> 'constraint' and c.conrelid in (select agentundo._levels(t.relation, t.kind))
    where x.status = 'conflict' and x.reason = 'missing_parent' and agentundo._tracked_of(c.confrelid) is not null
  loop
    select * into parent from agentundo._tracked t where t.id = way.parent;
    -- by what the values look like: the types need not be the same
    select string_agg(format('o.%I::text = k.%I::text', p.history_column, c.history_column), ' and ' order by n) into equal
      from generate_subscripts(way.conkey, 1) n
      left join agentundo._columns(way.parent) p on p.attnum = way.confkey[n] and p.live
      left join agentundo._columns(way.id) c on c.attnum = way.conkey[n] and c.live
     having bool_and(p.history_column is not null and c.history_column is not null);
    continue when equal is null;
    select * into more from agentundo._look(agentundo._fill($sql$
      select array_agg(distinct w.invocation)
      from (
        select distinct on (x.place) c.invocation
        from unnest($1) x
        join lateral (select * from {{child}} k where k.ctid = x.before offset 0) k on true
        join {{parent}} o on {{equal}}
        join agentundo._change c on coalesce(c.source, c.change) = o._change and c.tracked = {{parent_id}} and (o._image = 'O') <> c.inverted
        where x.tracked = {{id}} and x.status = 'conflict' and x.reason = 'missing_parent' and x.detail ->> 'constraint' = {{name}} and {{stands}}
          and not exists (select from {{parent}} n where n._change = o._change and n._image <> o._image and {{equal_after}})
        order by x.place, c.change desc) w$sql$, jsonb_build_object(
        'child', way.history, 'parent', agentundo._history(parent), 'equal', equal, 'equal_after', replace(equal, 'o.', 'n.'), 'id', way.id,
        'parent_id', way.parent, 'name', quote_literal(way.conname), 'stands', agentundo._stands_in_row_sql(parent, 'o'))), null, d) as found (invocations text[]);
    found := found || coalesce(more, '{}');
  end loop;
  return found;
end
$body$;

-- Who wrote what stands in the way, as far as it was tagged: the invocations that cascade takes along.
create or replace function agentundo._blockers(ids text[], d agentundo._decision[], scope text) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  found text[] := array[]::text[];
  uncovered constant bigint[] := agentundo._uncovered(ids);
  more text[];
  t agentundo._tracked;
  same_key text;
  loops constant text := current_setting('enable_nestloop');
begin
  -- As in _net(): the planner takes a list of decisions for a few rows, and would read all of history for each.
  if (select count(*) from unnest(d) x where x.status = 'conflict') > 200 then
    perform set_config('enable_nestloop', 'off', true);
  end if;
  for t in
    select x.* from agentundo._tracked x join pg_class c on c.oid = x.relation and c.relkind in ('r', 'p')
    where x.id in (select y.tracked from unnest(d) y where y.status = 'conflict')
  loop
    -- the last writer of the row itself
    same_key := agentundo._same_key(t.id, 'h', 'k');
    select * into more from agentundo._look(agentundo._fill($sql$
      select array_agg(distinct c.invocation)
      from unnest($1) x
      join lateral (select r.xmin::text::bigint as version from {{table}} r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
      join agentundo._change c on c.tracked = x.tracked and c.change > x.change and c.xmin::text::bigint = r.version
      where x.tracked = {{id}} and x.status = 'conflict' and x.reason in ('row_changed', 'row_rewritten', 'row_exists')$sql$
        || case when same_key is not null then $sql$ and x.basis <> 'value' and not exists (select from agentundo._revert v where v.id = c.invocation and v.xid = c.xid)
        and exists (
          select from {{history}} h join lateral (select * from {{history}} k where k.ctid = coalesce(x.after, x.before) offset 0) k on {{same_key}}
          where h._change = coalesce(c.source, c.change))$sql$ else '' end,
      jsonb_build_object('table', agentundo._from(t), 'history', agentundo._history(t), 'id', t.id, 'same_key', same_key)), null, d) as found (invocations text[]);
    found := found || coalesce(more, '{}');
    if same_key is not null then
      -- and where that was an undo, which has only put back what was there, or versions are lost: who of those that
      -- stand wrote last; who deleted it, or wrote in between two of ours
      select * into more from agentundo._look(agentundo._fill($sql$
        with way as materialized (
          select x.place, x.change, torn, torn or x.reason = 'row_deleted' as everybody, {{keys}}
          from unnest($1) x
          cross join lateral coalesce(x.detail ? 'segments', false) as torn
          join lateral (select * from {{history}} k where k.ctid = coalesce(x.after, x.before) offset 0) k on true
          left join lateral (select r.xmin::text::bigint as version from {{table}} r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
          where x.tracked = {{id}} and x.status = 'conflict' and (torn or x.reason = 'row_deleted'
            or x.reason in ('row_changed', 'row_rewritten', 'row_exists') and (x.basis = 'value' or r.version in (
              select c.xmin::text::bigint from agentundo._change c join agentundo._revert v on v.id = c.invocation and v.xid = c.xid where c.tracked = {{id}})))),
        begun as materialized (   -- where in turns: who came before the first of ours stands in nobody's way
          select k.place, min(c.change) as change
          from agentundo._change c
          join {{history}} h on h._change = coalesce(c.source, c.change)
          join way k on k.torn and {{same_key}}
          where c.tracked = {{id}} and c.change = any ($6)
          group by k.place),
        writer as materialized (
          select k.place, k.everybody, c.change, c.invocation
          from agentundo._change c
          join {{history}} h on h._change = coalesce(c.source, c.change)
          join way k on {{same_key}}
          left join begun b on b.place = k.place
          where c.change > coalesce(b.change, k.change) and c.tracked = {{id}} and c.change <> all ($6) and {{stands}})
        select array_agg(distinct l.invocation)
        from (
          select w.invocation from writer w where w.everybody
          union all
          select * from (select distinct on (w.place) w.invocation from writer w where not w.everybody order by w.place, w.change desc) w) l$sql$, jsonb_build_object(
          'table', agentundo._from(t), 'history', agentundo._history(t), 'id', t.id, 'keys', agentundo._key_list(t.id, 'k'),
          'same_key', same_key, 'stands', agentundo._stands_in_row_sql(t, 'k'))),
        null, d, e => uncovered) as found (invocations text[]);
      found := found || coalesce(more, '{}');
    end if;
  end loop;
  perform set_config('enable_nestloop', loops, true);
  -- whoever wrote the rows that depend on ours, or hold our unique values
  select array_agg(distinct c.invocation) into more
    from unnest(d) x
    cross join lateral jsonb_array_elements(coalesce(x.detail -> 'writers', '[]')) w
    join agentundo._change c on c.tracked = (w ->> 0)::int and c.xmin::text::bigint = (w ->> 1)::bigint
   where x.status = 'conflict' and x.reason in ('has_dependents', 'unique_taken');
  found := found || coalesce(more, '{}');
  found := found || agentundo._takers_of_parents(d);
  -- Of a redo it is what it has done again that stands in the way, of a revert nothing.
  found := agentundo._originals(found);
  return array(
    select distinct f from unnest(found) f
    where f is not null and f <> all (ids) and agentundo._in_scope(f, agentundo._scope(scope))
      -- a revert of ours is no stranger, and one that is taken back already holds nothing up
      and not exists (select from agentundo._revert v where v.id = f and v.invocations && ids)
      -- what a redo is to bring back must not be taken back by it
      and not exists (select from agentundo._revert v where v.id = any (ids) and f = any (v.invocations))
      and agentundo._uncovered(array[f]) <> '{}'
    order by f);
end
$body$;

-- One transaction back in the walk below: the values that it found, if it left those that stand; null if it did not.
-- All of its changes of the row are one step: a trigger's comes before that of the statement which fired it.
create or replace function agentundo._step_back(stands jsonb, traced text[], was jsonb[], became jsonb[]) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when bool_and(w.linked) then coalesce(jsonb_object_agg(w.name, w.value) filter (where w.value is not null), '{}') end
  from (
    select name, exists (select from unnest(became) j where (j -> name)::text is not distinct from (stands -> name)::text) as linked,
      case when surplus.n = 0 then stands -> name else surplus.value::jsonb end as value  -- there and back again: nothing is over
    from unnest(traced) name
    cross join lateral (
      select count(*) as n, min(s.value) as value
      from (
        select b.value from (
          select (j -> name)::text as value, 1 as n from unnest(was) j
          union all
          select (j -> name)::text, -1 from unnest(became) j) b
        group by b.value having sum(b.n) > 0) s) surplus) w
$body$;

-- Who stands in the way at one row: who wrote last what is there now. The changes of the row are read from their
-- newest end. What an undo wrote, and what was undone in this row, is passed over; and each change has to have left
-- what the next one found, else somebody has written in between without being captured. `traced` are the columns
-- that it is about; '' is the row as such, which is there or not.
create or replace function agentundo._writer(t agentundo._tracked, key jsonb, traced text[], ids text[]) returns agentundo.writer_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  family constant bigint[] := agentundo._family(ids);
  history_row text;
  table_row text;
  stands jsonb;                  -- what the changes still to be read have come to
  versions bigint[];
  undone text[] := array[]::text[];
  last_xid xid8;
  as_captured boolean := false;  -- is the row the work of somebody captured, by its version
  touched boolean;
  writer bigint;
  undo bigint;                   -- the newest undo that touched it: what remains, where no write of anybody's did
  others bigint;                 -- the newest write that touched none of it
  c agentundo._written;
  written agentundo._written[];
  result agentundo.writer_row;
begin
  select array_agg(h.name::text order by h.attnum), agentundo._object_sql(array_agg(h.name::text order by h.attnum), array_agg(h.value order by h.attnum)),
         agentundo._object_sql(array_agg(r.name::text order by h.attnum), array_agg(r.value order by h.attnum))
    into traced, history_row, table_row
    from agentundo._shown(t.id, 'h', 'history') h join agentundo._shown(t.id, 't', 'table') r on r.attnum = h.attnum
   where h.name::text = any (traced);
  if traced is null then
    traced := array[''];
    history_row := agentundo._object_sql(array[''], array['true']);
    table_row := history_row;
  end if;
  select * into stands, versions from agentundo._look(format(
      'select coalesce((array_agg(%s))[1], ''{}''), array_agg(t.xmin::text::bigint) from %s t where %s',
      table_row, agentundo._from(t), agentundo._match_sql(t.id, 't', 'table', quote_literal(key::text) || '::jsonb'))) as found (stands jsonb, versions bigint[]);
  execute format($sql$
    select array_agg(written order by change desc)
    from (
      select y.change, row(y.change, y.xid, y.xmin::text::bigint, y.void, y.operation, y.invocation, x.was, x.became, v.invocations,
        coalesce(y.invocation = any ($3), false), min(y.change) filter (where y.invocation = any ($3)) over (),
        exists (select from agentundo._reverted u join agentundo._revert w on w.id = u.revert where u.change = y.change and w.standing and not w.reopened),
        array_agg(x.was) filter (where not y.void) over same, array_agg(x.became) filter (where not y.void) over same)::agentundo._written as written
      from (
        select y.change, (array_agg(%1$s) filter (where (h._image = 'O') <> y.inverted))[1] as was,
          (array_agg(%1$s) filter (where (h._image = 'N') <> y.inverted))[1] as became
        from agentundo._change y join %2$s h on h._change = coalesce(y.source, y.change)
        where y.tracked = $2 and y.change >= $4 and %3$s
        group by y.change) x
      join agentundo._change y using (change)
      left join agentundo._revert v on v.id = y.invocation and v.xid = y.xid
      window same as (partition by y.xid)) w$sql$,
    history_row, agentundo._history(t), agentundo._match_sql(t.id, 'h', 'history', '$1'))
    into written
    using key, t.id, ids, coalesce((select min(y.change) from agentundo._change y where y.invocation = any (ids) and y.tracked = t.id), 0);
  foreach c in array coalesce(written, '{}') loop
    exit when c.change < c.first_own;
    result.captured := false;
    if not c.void and c.xid is distinct from last_xid then
      stands := agentundo._step_back(stands, traced, c.all_was, c.all_became);
      exit when stands is null;
      last_xid := c.xid;
    end if;
    as_captured := as_captured or c.version = any (versions);
    touched := not c.void and exists (select from unnest(traced) name where (c.was -> name)::text is distinct from (c.became -> name)::text);
    if c.own then
      if c.operation = 'U' and (c.was is null) <> (c.became is null) then
        return null;  -- it gave the row another key, under which nothing was looked for
      end if;
    elsif c.covered or c.invocation = any (undone) then
      null;
    elsif c.undid is not null then
      undone := undone || c.undid;
      if touched and c.change <> all (family) then
        undo := coalesce(undo, c.change);
      end if;
    elsif touched then
      writer := c.change;
      exit;
    elsif not c.void then
      others := coalesce(others, c.change);
    end if;
  end loop;
  if writer is null and stands is not null then
    if undo is null and others <= agentundo._trusted_after() then
      return null;  -- by what it says the row is as others left it, and versions mean nothing here
    end if;
    writer := coalesce(undo, case when as_captured then others end);
  end if;
  if writer is not null then
    select true, y.change, y.invocation, coalesce(i.run, y.run), coalesce(i.actor, y.actor), y.role, y.at into result
      from agentundo._change y left join agentundo._invocation i on i.id = y.invocation where y.change = writer;
  end if;
  return result;
end
$body$;

-- A plan that memory cannot hold must not begin to be made.
create or replace function agentundo._refuse_oversized(changes bigint[]) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  rows numeric := (select sum(c.rows) from agentundo._change c where c.change = any (changes));
  most text := coalesce(
    (select s.value from agentundo._setting s where s.name = 'largest_undo' and agentundo._setting_problem(s.name, s.value) is null), '5000000 rows');
begin
  if rows > split_part(most, ' ', 1)::numeric then
    perform agentundo._fail('54000', format('agentundo: this undo is of %s rows, more than are planned at once (%s)', rows, most),
      'Take its invocations back one by one, the newest first. If memory allows for some 500 bytes for each row, raise the setting largest_undo in agentundo._setting.',
      jsonb_build_object('rows', rows));
  end if;
end
$body$;

-- Everything decided, for one set of invocations.
create or replace function agentundo._decide(ids text[], changes bigint[], on_conflict text, merge boolean) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  family bigint[] := agentundo._family(ids);
  d agentundo._decision[] := array[]::agentundo._decision[];
  one int;
  found_more bigint;
  own int[];  -- rows that constraints would hold up even if all others went back
begin
  perform agentundo._require_workers(), agentundo._refuse_oversized(changes);
  for one in select distinct c.tracked from agentundo._change c where c.change = any (changes) order by 1 loop
    d := d || agentundo._net(one, changes, family, cardinality(d));
  end loop;
  if exists (select from agentundo._detached) then
    d := agentundo._in_detached(d);
  end if;
  if exists (select from unnest(d) x where x.detail ? 'steps') then
    d := agentundo._narrow(d);
  end if;
  if exists (select from unnest(d) x where x.unit = 'moved' or x.status <> 'ok') then
    d := agentundo._pair_moves(d, changes);
  end if;
  if on_conflict = 'skip' or merge then
    d := agentundo._bind(d, changes);
  end if;
  if exists (select from unnest(d) x where x.reason in ('row_changed', 'row_rewritten')) then
    d := agentundo._merge(d, changes, family, merge);
  end if;
  if merge and exists (select from unnest(d) x where x.reason = 'row_deleted') then
    d := agentundo._let_go(d);
  end if;
  d := agentundo._hide(d);
  if on_conflict = 'force' then
    d := agentundo._force(agentundo._moved_on(d));
  end if;
  d := agentundo._rebuild(d);
  if on_conflict = 'skip' then
    if exists (select from unnest(d) x where x.status = 'conflict') then
      own := array(select o.place from agentundo._obstacles(agentundo._wished(d)) o);
    end if;
    loop
      d := agentundo._skip(d);
      select o.d, o.hits into d, found_more from agentundo._obstruct(d, own) o;
      exit when found_more = 0;
      d := agentundo._bind(d, changes);
      own := coalesce(own, array(select x.place from unnest(d) x where x.status = 'conflict'));
    end loop;
  else
    select o.d into d from agentundo._obstruct(d) o;
  end if;
  return d;
end
$body$;

-- cascade: the set grows by the tagged invocations that stand in its way, until none is left.
create or replace function agentundo._extend(ids text[], on_conflict text, merge boolean, scope text) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  more text[];
begin
  if on_conflict = 'cascade' then
    loop
      more := agentundo._blockers(ids, agentundo._decide(ids, agentundo._uncovered(ids), on_conflict, merge), scope);
      exit when more = '{}';
      ids := ids || more;
    end loop;
  end if;
  return ids;
end
$body$;

create or replace function agentundo._foretold(ids text[], on_conflict text, merge boolean, scope text) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  ids := agentundo._extend(ids, on_conflict, merge, scope);
  return agentundo._decide(ids, agentundo._uncovered(ids), on_conflict, merge);
end
$body$;

-- Decisions as people and programs read them: newest first, with values.
create or replace function agentundo._show(d agentundo._decision[]) returns setof agentundo.plan_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
#variable_conflict use_column
declare
  t agentundo._tracked;
  sources text[] := array[]::text[];
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y) order by x.id loop
    if t.relation is null or not exists (select from pg_class where oid = t.relation and relkind in ('r', 'p')) then
      sources := sources || format($sql$
        select x.place, null::jsonb as key, null::jsonb as before, null::jsonb as after, null::jsonb as current
        from unnest($1) x where x.tracked = %s$sql$, t.id);
    elsif agentundo._rls_binds(t.relation, agentundo._caller()) then
      -- neither values nor keys: whoever may not see the row may not see that it is there
      sources := sources || format($sql$
        select x.place, '{}'::jsonb as key, null::jsonb as before, null::jsonb as after, null::jsonb as current
        from unnest($1) x where x.tracked = %s$sql$, t.id);
    else
      sources := sources || format($sql$
        select x.place,
          case when b.ctid is not null then %1$s when a.ctid is not null then %2$s when k.ctid is not null then %9$s end as key,
          case when b.ctid is not null then %3$s end as before,
          case when a.ctid is not null then %4$s end as after,
          case when r.ctid is not null then %5$s end as current
        from unnest($1) x
        left join lateral (select h.ctid, h.* from %6$s h where h.ctid = x.before offset 0) b on true
        left join lateral (select h.ctid, h.* from %6$s h where h.ctid = x.after offset 0) a on true
        left join lateral (select h.ctid, h.* from %6$s h where h.ctid = (x.detail ->> 'at')::tid and x.before is null and x.after is null offset 0) k on true
        left join lateral (select r.ctid, r.* from %7$s r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
        where x.tracked = %8$s$sql$,
        agentundo._key_sql(t.id, 'b', 'history'), agentundo._key_sql(t.id, 'a', 'history'),
        agentundo._json_sql(t.id, 'b', 'history', 'x.before_change'), agentundo._json_sql(t.id, 'a', 'history', 'x.after_change'), agentundo._json_sql(t.id, 'r', 'table'),
        t.history, agentundo._from(t), t.id, agentundo._key_sql(t.id, 'k', 'history'));
    end if;
  end loop;
  if sources = '{}' then
    return;
  end if;
  return query
    with shown as (
      select * from agentundo._look(array_to_string(sources, ' union all '), null, d) as s (place int, key jsonb, before jsonb, after jsonb, current jsonb))
    select coalesce(i.step, c.step), c.invocation, case when exists (select from pg_class p where p.oid = t.relation) then t.relation::text else t.name end, s.key,
      case when x.status in ('done', 'conflict') and x.action = 'none' then 'none' else x.action end, x.status, x.reason, x.columns,
      s.before, s.after, s.current,
      nullif(jsonb_strip_nulls(coalesce(x.detail, '{}') - 'writers' - 'at' - 'own' || jsonb_build_object('basis', coalesce(x.detail ->> 'basis', x.basis), 'delta', (
        select jsonb_object_agg(k, v) from jsonb_each(x.delta) e (k, v) where t.relation is not null and (has_column_privilege(agentundo._caller(), t.relation::oid, k, 'select') or agentundo._owner())), 'unit', x.unit)), '{}')
    from unnest(d) x
    join shown s on s.place = x.place
    join agentundo._tracked t on t.id = x.tracked
    join agentundo._change c on c.change = x.change
    left join agentundo._invocation i on i.id = c.invocation
    order by x.change desc, x.place;
end
$body$;

-- Public ------------------------------------------------------------------------------------------------

-- Nothing is locked before it is looked at: tables may be altered, and our functions replaced by an upgrade, between
-- two looks. Then it looks again, with a new snapshot: therefore these functions are volatile, although they only read.
create or replace function agentundo._look_again(tries int, code text, complaint text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if tries > 5 and code in ('42703', '42P01') and current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = '40001', message = 'agentundo: a table was altered while it was looked at', hint = 'Call it again, in a new transaction.';
  end if;
  return tries <= 5 and (code <> 'XX000' or complaint like 'cache lookup failed%');  -- else it is another error, of a constraint's function perhaps
end
$body$;

create or replace function agentundo.plan(
  invocations text[], on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  tries int := 0;
begin
  perform agentundo._may_read(), agentundo._check_mode(on_conflict), agentundo._require_known(invocations, scope);
  loop
    begin
      return query select * from agentundo._show(agentundo._foretold(invocations, on_conflict, coalesce(merge, false), scope));
      return;
    exception when undefined_column or undefined_table or undefined_function or internal_error or sqlstate 'UNR01' then
      tries := tries + 1;
      if not agentundo._look_again(tries, sqlstate, sqlerrm) then
        raise;
      end if;
    end;
  end loop;
end
$body$;
comment on function agentundo.plan(text[], text, boolean, text) is
  'What revert() with the same arguments would do to each row, and what stands in its way. Reads only; works in READ ONLY and on a hot standby.';

create or replace function agentundo.plan(
  invocation text, on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language sql as
$body$ select * from agentundo.plan(array[invocation], on_conflict, merge, scope) $body$;
comment on function agentundo.plan(text, text, boolean, text) is
  'What revert() with the same arguments would do to each row, and what stands in its way. Reads only; works in READ ONLY and on a hot standby.';

-- The members of a run from a step on, those without anything left to take back included.
create or replace function agentundo._members(run text, from_step int, scope text) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  ids text[];
begin
  perform agentundo._check_id(run, 'run');
  if from_step is null or from_step < 1 then
    perform agentundo._fail('22023', format('agentundo: from_step is %s, not a number from 1', coalesce(from_step::text, 'NULL')), 'Steps count from 1.');
  end if;
  with member (id, step, at) as (
    select i.id, coalesce(i.step, (select min(c.step) from agentundo._change c where c.invocation = i.id and c.run = i.run)), i.created_at as at
    from agentundo._invocation i where i.run = _members.run
    union all
    select c.invocation, min(c.step), min(c.at) from agentundo._change c
    where c.run = _members.run and c.invocation is not null
      and not exists (select from agentundo._invocation i where i.id = c.invocation and i.run is not null)
    group by c.invocation),
  placed as (   -- a call without a step has the place that its time gives it
    select m.id, coalesce(max(m.step), (row_number() over (order by min(m.at)))::int) as step, min(m.at) as at from member m group by m.id)
  select array_agg(p.id order by p.step, p.at) into ids from placed p where p.step >= from_step
    and not exists (select from agentundo._revert v where v.id = p.id)
    and agentundo._in_scope(p.id, agentundo._scope(scope));
  if ids is null then
    perform agentundo._fail('UN002', format('agentundo: there is no run %L%s', left(run, 255), case when from_step > 1 then ' from step ' || from_step else '' end),
      'Check the run and the scope; agentundo.undoable() lists what there is.');
  end if;
  return ids;
end
$body$;

create or replace function agentundo.plan_run(
  run text, from_step int default 1, on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_row language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return query select * from agentundo.plan(agentundo._members(run, from_step, scope), on_conflict, merge, scope);
end
$body$;
comment on function agentundo.plan_run(text, int, text, boolean, text) is
  'What revert_run() would do: all invocations of a run from a step on, as one unit. Reads only.';

create or replace function agentundo.plan_summary(
  invocations text[], on_conflict text default 'abort', merge boolean default false, scope text default null)
returns setof agentundo.plan_count language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  d agentundo._decision[];
  tries int := 0;
begin
  perform agentundo._may_read(), agentundo._check_mode(on_conflict), agentundo._require_known(invocations, scope);
  loop
    begin
      d := agentundo._foretold(invocations, on_conflict, coalesce(merge, false), scope);
      exit;
    exception when undefined_column or undefined_table or undefined_function or internal_error or sqlstate 'UNR01' then
      tries := tries + 1;
      if not agentundo._look_again(tries, sqlstate, sqlerrm) then
        raise;
      end if;
    end;
  end loop;
  return query
    with first_few as (
      select array_agg(x.x order by (x.x).place) as few
      from (select x, row_number() over (partition by x.tracked, x.action, x.status order by x.place) as n
            from unnest(d) x where x.status in ('conflict', 'skip')) x
      where x.n <= 20),
    shown as (
      select s.relation, s.action, s.status, jsonb_agg(jsonb_build_object('key', s.key, 'reason', s.reason, 'columns', s.columns, 'invocation', s.invocation)
          || jsonb_strip_nulls(jsonb_build_object('constraint', s.detail -> 'constraint', 'in_the_way', s.detail -> 'relation'))) as conflicts
      from first_few f cross join lateral agentundo._show(f.few) s group by s.relation, s.action, s.status)
    select coalesce(t.relation::text, t.name), x.action, x.status, count(*), s.conflicts
    from unnest(d) x
    join agentundo._tracked t on t.id = x.tracked
    left join shown s on s.relation = coalesce(t.relation::text, t.name) and s.action = x.action and s.status = x.status
    group by coalesce(t.relation::text, t.name), x.action, x.status, s.conflicts
    order by 1, 2, 3;
end
$body$;
comment on function agentundo.plan_summary(text[], text, boolean, text) is
  'A plan in numbers: rows per table, action and status, with the first 20 conflicts of each. Reads only, and is cheaper than plan() for large sets.';

create or replace function agentundo.row_writer(
  relation regclass, key jsonb, columns text[] default null, invocations text[] default null, scope text default null)
returns agentundo.writer_row language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
  w agentundo.writer_row;
begin
  perform agentundo._may_read(), agentundo._require_sight_of_key(t), agentundo._check_key(t, key);
  if invocations <> '{}' then
    perform agentundo._require_known(invocations, scope);
  end if;
  w := agentundo._writer(t, key, coalesce(columns, '{}'), coalesce(invocations, '{}'));
  if agentundo._bound_to_scope() and agentundo._foreign(w.change, agentundo._scope(scope)) then
    w := row(true, w.change, null, null, null, null, w.at);
  end if;
  return w;
end
$body$;
comment on function agentundo.row_writer(regclass, jsonb, text[], text[], text) is
  'Who stands in the way of an undo of these invocations at one row: whoever wrote last what stands in the columns that the plan names, or who made or deleted the row where it names none. captured is false for a write that was not captured, and null where history cannot tell. What a revert or redo only put back is not theirs. A write of another scope is shown to an application without names. Changes nothing.';

create or replace function agentundo.effects_of(invocations text[], scope text default null) returns setof agentundo.effect_row
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._may_read(), agentundo._require_known(invocations, scope);
  return query
    select e.id, e.invocation, e.name, e.kind, e.summary, e.undo_by, e.side_effect, e.cost, e.remedy, e.handler, e.at
    from agentundo._effect e where e.invocation = any (invocations) order by e.id;
end
$body$;
comment on function agentundo.effects_of(text[], text) is
  'What left the database under these invocations and stays when their rows go back: what the view effects says of them, for an application within its scope. Changes nothing.';
