-- 17  Modes: what abort, skip, merge and force make of rows that somebody else has touched
--
-- The net effect per row (12_net.sql) says what could go back and what has been written since. What stands
-- here turns one list of decisions into another, as 16_moves.sql does: columns that others changed are
-- named, and with merge some of ours go back beside them; force takes back what was written later; skip
-- leaves it, with all rows that belong to it; what constraints say is entered last (15_obstacles.sql).
-- cascade is no matter of rows: it makes the set larger (18_plan.sql).

-- Where a row goes back to an image that is not the set's own, because others have been undone since, only those of
-- its columns do that the set has changed: the rest of the image is the others'. Delta columns lose what the set has added,
-- whatever the image says: it was made when others stood than do now.
create or replace function agentundo._narrow(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  changed text;
  sums text;
  item record;
  x agentundo._decision;
begin
  for t in select * from agentundo._tracked g where g.id in (select y.tracked from unnest(d) y where y.detail ? 'steps') loop
    -- the columns in which the two images of any step differ
    select format($sql$array(
          select distinct name
          from jsonb_array_elements(%%1$s) s (s)
          cross join lateral unnest((
            select array_remove(array[%2$s]::text[], null) from %1$s b, %1$s a where b.ctid = (s ->> 0)::tid and a.ctid = (s ->> 2)::tid)) name
          order by name)$sql$, t.history, replace(string_agg(
          format('case when %s and row(%s)::record operator(pg_catalog.*<>) row(%s)::record then %L end',
            concat_ws(' and ', 'true', b.known, a.known), b.value, a.value, b.name), ', ' order by b.attnum), '%', '%%')),
      case when bool_or(m.rule = 'delta') then format($sql$(
          select jsonb_build_object(%2$s)
          from jsonb_array_elements(y.detail -> 'steps') s (s) join %1$s b on b.ctid = (s ->> 0)::tid join %1$s a on a.ctid = (s ->> 2)::tid)$sql$, t.history, string_agg(
          format('%L, %s', b.name, agentundo._delta_sql(b.type, format('r.%I', b.name),
            format('(%s)::%s', a.value, agentundo._wide(b.type)), format('(%s)::%s', b.value, agentundo._wide(b.type)),
            concat_ws(' and ', b.known, a.known, format('(%s) is not null and (%s) is not null', b.value, a.value)))), ', ') filter (where m.rule = 'delta')) else 'null::jsonb' end
      into changed, sums
      from agentundo._image_columns(t.id, 'b', '(s ->> 1)::bigint') b join agentundo._image_columns(t.id, 'a', '(s ->> 3)::bigint') a on a.attnum = b.attnum
      left join agentundo._merge_rule m on m.tracked = t.id and m.attnum = b.attnum;
    for item in
      select * from agentundo._look(format($sql$
          select y.place, %s, %s, %s
          from unnest($1) y left join lateral (select * from %s r where r.ctid = y.cur and r.tableoid = y.part offset 0) r on true
          where y.tracked = %s and y.detail ? 'steps'$sql$,
          format(changed, 'y.detail -> ''steps'''), format(changed, 'jsonb_build_array(jsonb_build_array(y.before, y.before_change, y.after, y.after_change))'),
          sums, agentundo._from(t), t.id), null, d)
        as found (place int, own text[], every text[], sums jsonb)
    loop
      x := d[item.place];
      x.detail := x.detail - 'steps' || jsonb_build_object('own', item.own);
      x.delta := (select jsonb_object_agg(k, item.sums -> k) from unnest(agentundo._subtractable(item.sums)) k where x.status = 'ok' and k = any (item.own));
      if x.status = 'ok' and (x.delta is not null or not item.every <@ item.own) then
        x.columns := array(select u from unnest(item.own) u where u = any (item.every) or x.delta ? u);
        x.status := case when x.columns = '{}' then 'done' else 'merge' end;
        x.action := case when x.columns = '{}' then 'none' else x.action end;
      end if;
      d[item.place] := x;
    end loop;
  end loop;
  return d;
end
$body$;

-- What stands between the rows of one table that were changed since and their former selves, as far as columns
-- tell: ours (the set changed them), theirs by value, theirs as captured, and the set's own differences in
-- delta columns. Two images are compared in a query of their own: no join has room for more of the widest tables.
create or replace function agentundo._differences(
  t agentundo._tracked, d agentundo._decision[], changes bigint[], family bigint[], merge boolean) returns agentundo._difference[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  items agentundo._difference[];
  ours text; theirs text; captured text; deltas text; every text;
  loops constant text := current_setting('enable_nestloop');
begin
  if (select count(*) from unnest(d) x where (merge or x.detail ? 'segments') and x.tracked = t.id and x.reason in ('row_changed', 'row_rewritten')) > 200 then
    perform set_config('enable_nestloop', 'off', true);  -- the planner takes them for a few
  end if;
  select string_agg(format('case when %s::record operator(pg_catalog.*<>) %s::record then %L end',
      'row(' || coalesce(case when b.known is not null then format('case when %s then %s end', b.known, b.value) end, b.value) || ')',
      'row(' || coalesce(case when b.known is not null then format('case when %s then %s end', b.known, a.value) end, a.value) || ')', c.name), ', ' order by c.attnum),
    string_agg(format('case when row(%s)::record operator(pg_catalog.*<>) row(%s)::record then %L end',
      case when a.known is not null then format('case when %s then %s else %s end', a.known, a.value, agentundo._stored('r', c.name, c.type_now)) else a.value end,
      agentundo._stored('r', c.name, c.type_now), c.name), ', ' order by c.attnum),
    string_agg(format('case when row(%s)::record operator(pg_catalog.*<>) row(%s)::record then %L end', o.value, n.value, c.name), ', ' order by c.attnum),
    string_agg(case when m.attnum is not null then format('%L, %s', c.name, agentundo._delta_sql(c.type, format('r.%I', c.name),
      format('case when (h._image = ''O'') <> c.inverted then %1$s - %1$s else %1$s end', w.value), format('case when (h._image = ''O'') <> c.inverted then %1$s else %1$s - %1$s end', w.value),
      w.value || ' is not null')) end, ', '),
    string_agg(quote_literal(c.name), ', ' order by c.attnum)
    into ours, theirs, captured, deltas, every
    from agentundo._columns(t.id) c
    join agentundo._image_columns(t.id, 'b', 'd.before_change') b on b.attnum = c.attnum
    join agentundo._image_columns(t.id, 'a', 'd.after_change') a on a.attnum = c.attnum
    join agentundo._image_columns(t.id, 'o', 'p.change') o on o.attnum = c.attnum
    join agentundo._image_columns(t.id, 'n', 'p.change') n on n.attnum = c.attnum
    left join agentundo._merge_rule m on m.tracked = t.id and m.attnum = c.attnum and m.rule = 'delta'
    cross join lateral (select format('h.%I::%s', c.history_column, agentundo._wide(c.type))) w (value)
   where c.live;
  select * into items from agentundo._look(format($sql$
    with item as materialized (
      select d.*, %7$s
      from unnest($1) d join lateral (select * from %4$s a where a.ctid = d.after offset 0) a on true
      where (%13$s or d.detail ? 'segments') and d.tracked = %12$s and d.status = 'conflict' and d.reason in ('row_changed', 'row_rewritten')),
    own as materialized (    -- what the set has written to a row in several turns, and what it found
      select p.place, array_agg(distinct y.name) filter (where y.name is not null) as names, (array_agg(p.old order by p.change))[1] as began, min(p.change) as began_at
      from (
        select a.place, c.change, min(h.ctid) filter (where (h._image = 'O') <> c.inverted) as old, min(h.ctid) filter (where (h._image = 'N') <> c.inverted) as new
        from item a join %4$s h on %6$s join agentundo._change c on coalesce(c.source, c.change) = h._change
        where a.detail ? 'segments' and c.tracked = %12$s and c.change = any ($6) and not %16$s
        group by a.place, c.change) p
      left join lateral unnest(coalesce(
        (select array_remove(array[%3$s]::text[], null) from %4$s o, %4$s n where o.ctid = p.old and n.ctid = p.new), array[%14$s]::text[])) y (name) on true
      group by p.place),
    pair as materialized (   -- what others, who stand, have written to it since
      select a.place, c.change, min(h.ctid) filter (where (h._image = 'O') <> c.inverted) as old, min(h.ctid) filter (where (h._image = 'N') <> c.inverted) as new
      from item a
      left join own on own.place = a.place
      join %4$s h on %6$s
      join agentundo._change c on coalesce(c.source, c.change) = h._change
      where c.tracked = %12$s and c.change > coalesce(own.began_at, a.after_change) and c.change <> all ($6) and c.change <> all ($7) and %11$s
      group by a.place, c.change),
    captured as materialized (
      select p.place, array_agg(distinct y.name) as names, bool_or(p.old is null or p.new is null) as replaced
      from pair p cross join lateral unnest(
        -- made or deleted, come from another key, or written as it was: all of it is theirs
        coalesce((select nullif(array_remove(array[%3$s]::text[], null), '{}') from %4$s o, %4$s n where o.ctid = p.old and n.ctid = p.new), array[%14$s]::text[])) y (name)
      group by p.place)
    select array_agg(row(d.place, d.reason, d.before is null, coalesce((d.detail ->> 'segments')::int, 1) > 1,
      coalesce(own.names, (select array_remove(array[%1$s]::text[], null) from %4$s a left join %4$s b on b.ctid = d.before where a.ctid = d.after)),
      (select array_remove(array[%2$s]::text[], null) from %4$s a, %5$s r where a.ctid = d.after and r.ctid = d.cur and r.tableoid = d.part),
      t.names,
      -- do these tell of everybody? Whoever wrote the row that stands was captured, and so were all others
      t.names is not null and d.after_change > %8$s and (d.basis = 'value' or exists (
        select from agentundo._change c join %4$s h on h._change = coalesce(c.source, c.change) and %9$s
        where c.tracked = d.tracked and c.change > d.after_change and c.xmin::text::bigint = r.agentundo_version)),
      coalesce(t.replaced, false),
      case when %13$s and %10$L <> '' then (
        select jsonb_build_object(%10$s)
        from agentundo._change c
        join %4$s h on h._change = coalesce(c.source, c.change) and (%15$s or %9$s)  -- of a row that moved at both keys
        where c.tracked = d.tracked and c.change = any ($6) and not %16$s) end, own.began, own.began_at)::agentundo._difference)
    from unnest($1) d
    join lateral (select r.xmin::text::bigint as agentundo_version, r.* from %5$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
    join lateral (select * from %4$s a where a.ctid = d.after offset 0) a on true
    left join lateral (select * from %4$s b where b.ctid = d.before offset 0) b on true
    left join captured t on t.place = d.place
    left join own on own.place = d.place
    where d.tracked = %12$s and d.status = 'conflict' and d.reason in ('row_changed', 'row_rewritten')$sql$,
    ours, theirs, captured, agentundo._history(t), agentundo._from(t),
    agentundo._same_key(t.id, 'h', 'a'), agentundo._key_list(t.id, 'a'), coalesce(case when not agentundo._is_copy() then t.all_since end, 9223372036854775807), agentundo._same_key(t.id, 'h', 'a'), coalesce(deltas, ''), agentundo._stands_in_row_sql(t, 'a'),
    t.id, merge::text, every, agentundo._same_key(t.id, 'h', 'b'), agentundo._undone_in_row_sql(t, 'a')),
    null, d, e => changes, f => family) as found (items agentundo._difference[]);
  perform set_config('enable_nestloop', loops, true);
  return coalesce(items, '{}');
end
$body$;

-- Which columns others changed, and with `merge` which of ours can go back beside them. Ours are the
-- columns that the set changed, theirs those in which the row differs from what the set left, and every column
-- that a captured later write changed, there and back again: with capture = 'all' that is everybody's. A
-- delta column takes both: what the set added to it is subtracted.
create or replace function agentundo._merge(d agentundo._decision[], changes bigint[], family bigint[], merge boolean) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  item agentundo._difference;
  whole_story boolean;   -- was everybody captured, and has nobody undone anything?
begin
  for t in
    select * from agentundo._tracked x
    where x.id in (select y.tracked from unnest(d) y where y.reason in ('row_changed', 'row_rewritten') and y.cur is not null and y.after is not null)
      and exists (select from agentundo._key(x.id))
  loop
    whole_story := merge and t.all_since is not null and not agentundo._is_copy() and agentundo._journal_begins(t, changes) is null;
    foreach item in array agentundo._differences(t, d, changes, family, merge) loop
      declare
        shared text[];
        their_columns text[] := array(select distinct u from unnest(item.by_value || coalesce(item.captured, '{}')) u order by u);
        added text[] := agentundo._subtractable(item.sums);
        our_columns text[] := item.ours;
        x agentundo._decision;
      begin
        x := d[item.place];
        if x.detail ? 'own' and not item.cut then  -- of several turns these are the last one's alone
          our_columns := array(select u from unnest(our_columns) u where x.detail -> 'own' ? u);
        end if;
        if item.cut and merge then
          our_columns := array(select distinct u from unnest(our_columns || array(select k from jsonb_each_text(item.sums) s (k, v) where v ~ '[1-9NI]')) u);  -- not zero, in whatever type
        end if;
        shared := array(select u from unnest(our_columns) u where u = any (their_columns));
        if merge and not item.inserted and not item.cut and our_columns = '{}' then
          x.status := 'done';  -- nothing of the set's is in it
          x.action := 'none';
          x.reason := null;
        elsif merge and not item.inserted and not item.replaced and x.unit is null and x.after_change > agentundo._key_since(t)
          and ((item.reason = 'row_changed' or item.complete) and not item.cut and shared <@ added  -- side by side
            or our_columns <@ added and our_columns <> '{}') then              -- or adding up
          x.status := 'merge';
          x.reason := null;
          x.columns := our_columns;
          x.delta := (select jsonb_object_agg(k, item.sums -> k) from unnest(added) k where k = any (our_columns));
          x.detail := coalesce(x.detail, '{}') || jsonb_build_object('basis', case when x.after_change > t.all_since and not agentundo._is_copy() then 'captured' else 'value' end, 'kept', their_columns);
        elsif merge and whole_story and item.cut and item.began is not null and item.began_at > greatest(t.all_since, agentundo._key_since(t))
          and not exists (select from agentundo._columns(t.id) c where c.live and c.since_change >= item.began_at)  -- that image does not know it
          and not item.replaced and x.unit is null and not coalesce(x.detail ? 'moved', false) and (item.complete or x.detail ->> 'last_segment' = 'ok') and shared <@ added then
          x.status := 'merge';  -- in turns with others, each in columns of his own: back to before the first
          x.reason := null;
          x.action := 'update';
          x.before := item.began;
          x.before_change := item.began_at;
          x.columns := our_columns;
          x.delta := (select jsonb_object_agg(k, item.sums -> k) from unnest(added) k where k = any (our_columns));
          x.detail := coalesce(x.detail, '{}') || jsonb_build_object('basis', 'captured', 'kept', their_columns);
        else
          x.columns := case when merge and not shared <@ added then array(select u from unnest(shared) u where u <> all (added)) when their_columns <> '{}' then their_columns else our_columns end;
        end if;
        d[item.place] := x;
      end;
    end loop;
  end loop;
  return d;
end
$body$;

-- merge: a row that others have deleted since, or given another key, and of which the set had changed nothing.
create or replace function agentundo._let_go(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  x agentundo._decision;
  i int;
  places int[];
begin
  for t in select * from agentundo._tracked g where g.id in (select y.tracked from unnest(d) y where y.reason = 'row_deleted' and y.before is not null and y.after is not null) loop
    select found.places into places from agentundo._look(format($sql$
      select array_agg(y.place)
      from unnest($1) y
      join lateral (select * from %1$s h where h.ctid = y.before offset 0) b on true
      join lateral (select * from %1$s h where h.ctid = y.after offset 0) a on true
      where y.tracked = %2$s and y.status = 'conflict' and y.reason = 'row_deleted' and y.unit is null and y.detail is null and %3$s operator(pg_catalog.*=) %4$s$sql$,
      t.history, t.id, agentundo._image_row(t.id, 'b', 'y.before_change'), agentundo._image_row(t.id, 'a', 'y.after_change')),
      null, d) as found (places int[]);
    foreach i in array coalesce(places, '{}') loop
      x := d[i];
      x.status := 'done';
      x.action := 'none';
      x.reason := null;
      d[i] := x;
    end loop;
  end loop;
  return d;
end
$body$;

-- force: the whole row as it was, whatever others made of it. What would break a constraint, or
-- what cannot be put back at all, stays a conflict; so does a row without a key that is gone, or one that has another key by now.
create or replace function agentundo._force(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  x agentundo._decision;
begin
  for x in
    select y.* from unnest(d) y
    where y.status = 'conflict' and y.reason in ('row_changed', 'row_rewritten', 'row_deleted', 'row_exists')
      and (y.cur is not null or y.before is not null or y.unit is not null or y.detail ->> 'last_segment' in ('ok', 'nothing'))
      and not coalesce(y.detail ? 'moved_on', false)
  loop
    x.detail := coalesce(x.detail, '{}') || jsonb_build_object('forced', x.reason);
    x.action := case when x.before is null and x.cur is null or x.detail ->> 'last_segment' = 'nothing' then 'none' when x.before is null then 'delete' when x.cur is null then 'insert' else 'update' end;
    x.status := case when x.action = 'none' then 'done' else 'ok' end;
    x.reason := null;
    d[x.place] := x;
  end loop;
  return d;
end
$body$;

-- skip: conflicts stay as they are, with all rows of their unit. Where an earlier segment cannot be
-- reached, the last one alone goes back, to what the other writer had left.
create or replace function agentundo._skip(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  x agentundo._decision;
begin
  for x in select y.* from unnest(d) y where y.status = 'conflict' loop
    if x.reason = 'row_changed' and x.detail ->> 'last_segment' = 'ok' and x.unit is null then
      x.status := case when x.action = 'none' then 'done' else 'ok' end;
      x.reason := null;
      x.columns := null;
    else
      x.status := 'skip';
    end if;
    d[x.place] := x;
  end loop;
  for x in
    select y.* from unnest(d) y
    where y.status in ('ok', 'merge')
      and y.unit in (select z.unit from unnest(d) z where z.status = 'skip' and z.unit is not null)
  loop
    x.status := 'skip';
    d[x.place] := x;
  end loop;
  return d;
end
$body$;

-- Rows that cannot be put back in place: an identity column GENERATED ALWAYS takes no UPDATE, so a row in
-- which it differs goes out and comes in again, where no other table's key would act on that; a table
-- that has been given rules takes nothing from us.
create or replace function agentundo._rebuild(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  x agentundo._decision;
  i int;
  places int[];
begin
  for t in
    select * from agentundo._tracked g
    where g.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge'))
      and (exists (select from pg_attribute a where a.attrelid = g.relation and a.attidentity = 'a' and not a.attisdropped)
        or exists (select from pg_rewrite w where w.ev_class = g.relation and w.ev_type <> '1'))
  loop
    if exists (select from pg_rewrite w where w.ev_class = t.relation and w.ev_type <> '1') then
      for x in select y.* from unnest(d) y where y.tracked = t.id and y.status in ('ok', 'merge') loop
        x.status := 'conflict';
        x.reason := 'schema_changed';
        x.detail := coalesce(x.detail, '{}') || jsonb_build_object('hint', format('Drop the rules of %s first.', t.name));
        d[x.place] := x;
      end loop;
      continue;
    end if;
    select found.places into places from agentundo._look(format($sql$
      select array_agg(d.place)
      from unnest($1) d
      join lateral (select * from %1$s h where h.ctid = d.before offset 0) b on true
      join lateral (select * from %2$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where d.tracked = %3$s and d.status in ('ok', 'merge') and d.action = 'update' and (%4$s)$sql$,
      t.history, agentundo._from(t), t.id,
      (select string_agg(format('%s is distinct from r.%I', c.value, c.name), ' or ') from agentundo._target_columns(t.id) c where c.identity = 'a')),
      null, d) as found (places int[]);
    foreach i in array coalesce(places, '{}') loop
      x := d[i];
      if exists (select from pg_constraint c where c.contype = 'f' and c.confrelid in (select agentundo._levels(t.relation, t.kind)) and c.confdeltype <> 'a') then
        x.status := 'conflict';
        x.reason := 'constraint';
        x.columns := array(select c.name::text from agentundo._target_columns(t.id) c where c.identity = 'a');
      else
        x.detail := coalesce(x.detail, '{}') || '{"replace": true}';
      end if;
      d[i] := x;
    end loop;
  end loop;
  return d;
end
$body$;

-- The plan if nobody had written since: to tell a row that a constraint holds up from one that only
-- follows another row's being skipped.
create or replace function agentundo._wished(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  x agentundo._decision;
begin
  for x in select y.* from unnest(d) y where y.status = 'conflict' and y.action <> 'none' and y.reason not in ('schema_changed', 'erased') loop
    x.status := 'ok';
    d[x.place] := x;
  end loop;
  return d;
end
$body$;

-- Marks the rows that constraints hold up. `hits` tells how many were still free before. Rows that are
-- not among `own` follow others.
create or replace function agentundo._obstruct(inout d agentundo._decision[], own int[] default null, out hits bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  o record;
  y agentundo._decision;
begin
  hits := 0;
  for o in
    select x.place, own is null or exists (select from unnest(own) u where u = x.place) as own, (array_agg(x.reason))[1] as reason,
      jsonb_build_object('constraint', (array_agg(x.obstacle))[1], 'relation', (array_agg(x.other))[1]) as detail,
      jsonb_agg(distinct jsonb_build_array(x.writer_tracked, x.writer)) filter (where x.writer_tracked is not null) as writers
    from agentundo._obstacles(d) x group by x.place
  loop
    y := d[o.place];
    y.status := 'conflict';
    y.reason := o.reason;
    y.detail := coalesce(y.detail, '{}') - 'last_segment' || o.detail || jsonb_strip_nulls(jsonb_build_object('writers', o.writers))
      || case when o.own then '{}' else '{"follows": true}' end::jsonb;
    d[o.place] := y;
    hits := hits + 1;
  end loop;
end
$body$;

-- Rows that row-level security may hide from the caller: he does not decide about what he may not see.
create or replace function agentundo._hide(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  hidden int[] := array(
    select t.id from agentundo._tracked t
    where t.id in (select x.tracked from unnest(d) x) and t.relation is not null and agentundo._rls_binds(t.relation, agentundo._caller()));
  x agentundo._decision;
begin
  if hidden <> '{}' then
    for x in select y.* from unnest(d) y where y.tracked = any (hidden) loop
      if x.status <> 'done' then
        x.status := 'conflict';
        x.reason := 'not_visible';
      end if;
      x.columns := null;
      x.delta := null;
      x.detail := null;
      d[x.place] := x;
    end loop;
  end if;
  return d;
end
$body$;
