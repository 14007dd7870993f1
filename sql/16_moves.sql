-- 16  Moves: which row went where, when a call gave rows other keys
--
-- The net effect (12_net.sql) knows keys, not rows: what it calls a row gone from one key and a row new at
-- another may be one row that went from here to there. Whoever took them for two would bring one back beside
-- the other, and tear its children off. Where it is certain who went where, two decisions become one
-- (_pair_moves()); else all that such a change has touched is bound together and goes back as one or not at
-- all (_bind()). Last, rows to which others have given another key since (_moved_on()).

-- An element of a large array is taken out, changed and put back: assigned to in place, its fields would each
-- copy the array.

create or replace function agentundo._renumber(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  x agentundo._decision;
begin
  for i in 1 .. coalesce(cardinality(d), 0) loop
    x := d[i];
    x.place := i;
    d[i] := x;
  end loop;
  return coalesce(d, '{}');
end
$body$;

-- The images of the set's updates, and the keys that each of them has left, or taken: CTEs.
create or replace function agentundo._key_images_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$image as materialized (
    select c.change, (h._image = 'O') <> c.inverted as old, h.ctid as tid, {{h_keys}}
    from agentundo._change c join {{history}} h on h._change = coalesce(c.source, c.change)
    where c.tracked = {{tracked}} and c.change = any ($6) and c.operation = 'U' and not c.void),
  turnover as materialized (
    select change, {{keys}} from image group by change, {{keys}} having count(*) filter (where old) <> count(*) filter (where not old))$sql$,
    jsonb_build_object('history', agentundo._history(t), 'tracked', t.id, 'h_keys', agentundo._key_list(t.id, 'h'),
      'keys', (select string_agg(quote_ident(k.history_column), ', ' order by k.place) from agentundo._key(t.id) k)))
$body$;

-- The updates that undos among these changes have taken back.
create or replace function agentundo._taken_back(changes bigint[], tracked_id int) returns setof bigint
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select distinct c.change
  from agentundo._revert v join agentundo._reverted u on u.revert = v.id join agentundo._change c on c.change = u.change
  where c.tracked = tracked_id and c.operation = 'U' and not c.void
    and exists (select from agentundo._change own where own.invocation = v.id and own.xid = v.xid and own.change = any (changes))
$body$;

-- Where each row went from key to key: pairs of the key at which the set found it, and where it left it. A change takes a
-- row from one key to another for certain if it wrote no other, or if each of its rows says the same before and after in
-- the other columns, and nothing else of the change says that: so one knows rows that changed places, too. A walk that
-- meets any other change of keys at one of its keys, or a row that the set made or deleted there, tells nothing. Then all
-- rows that such a change has given other keys are bound to each other.
create or replace function agentundo._walks_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  with recursive {{key_images}},
  said as materialized (
    select i.change, i.old, i.tid, {{i_keys}},
      dense_rank() over (order by i.change, case when not c.single then row({{said}})::record end using operator(pg_catalog.*<)) as says
    from (select change, count(*) = 2 as single from image group by change having count(*) > 2 or change in (select change from turnover)) c
    join image i using (change) join lateral (select * from {{history}} h where h.ctid = i.tid offset 0) h on true),
  balance as materialized (
    select change, says, count(*) filter (where old) as olds, count(*) filter (where not old) as news from said group by change, says),
  link as materialized (
    select row_number() over (order by o.change, o.tid) as n, o.change, o.tid as old, n.tid as new, {{stayed}} as stayed
    from said o join said n on n.says = o.says and not n.old
    join balance b on b.says = o.says and b.olds = 1 and b.news = 1
    where o.old and o.change not in (select u.change from balance u where u.olds <> u.news)),
  moving as materialized (select change from turnover union select change from link where not stayed),
  item as materialized (
    select x.place, x.unit = 'moved' and x.before is not null and x.after is null as here, x.unit = 'moved' and x.before is null and x.after is not null as there,
      coalesce(x.detail ? 'segments', false) as torn, {{h_keys}}
    from unnest($1) x cross join lateral (select x.before as tid union select x.after union select (x.detail ->> 'at')::tid) i
    join lateral (select * from {{history}} h where h.ctid = i.tid offset 0) h on true
    where x.tracked = {{tracked}} and coalesce(x.unit, 'moved') = 'moved'),
  loose as materialized (   -- keys of which it is not known which row came to have them, or where it went
    select {{keys}} from said where change in (select change from moving) and tid not in (select old from link union all select new from link)
    union
    select {{h_keys}} from agentundo._change c join {{history}} h on h._change = coalesce(c.source, c.change)
    where c.tracked = {{tracked}} and c.change = any ($6) and c.operation <> 'U' and not c.void
    union
    select {{keys}} from item where torn),       -- somebody has written between two turns
  event as (
    select l.n, true as leaves, l.change, {{i_keys}} from link l join said i on i.tid = l.old where not l.stayed
    union all
    select l.n, false, l.change, {{i_keys}} from link l join said i on i.tid = l.new where not l.stayed
    union all
    select -i.place, false, 0, {{i_keys}} from item i where i.here),
  stop as materialized (      -- a row that has come to a key, and by which link it leaves it again
    select n, leaves, {{keys}}, case when lead(leaves) over life then lead(n) over life end as next, not lead(leaves) over life as lost
    from event window life as (partition by {{keys}} order by change, leaves desc)),
  walk as (
    select -n as place, 0 as steps, n, next, lost from stop where n < 0
    union all
    select w.place, w.steps + 1, s.n, s.next, s.lost from walk w join stop s on s.n = w.next and not s.leaves),
  passed as materialized (select w.place, w.steps, w.next, w.lost, {{s_keys}} from walk w join stop s on s.n = w.n and not s.leaves),
  pair as materialized (
    select i.place as there, w.place as here
    from passed w join item i on i.there and {{at_item}}
    where w.next is null and w.lost is null and w.steps > 0 and w.place not in (select v.place from passed v join loose on {{on_the_way}})),
  taken as materialized (
    select c.change, (h._image = 'O') <> c.inverted as old, {{h_keys}}
    from agentundo._change c join {{history}} h on h._change = coalesce(c.source, c.change) where c.change = any ($7)),
  retaken as materialized (   -- keys of rows whose moves an undo of the set has taken back: its own images tell of contents alone
    select {{keys}} from taken
    where change in (select change from taken group by change, {{keys}} having count(*) filter (where old) <> count(*) filter (where not old))),
  open as materialized (      -- changes in which a row went where no pair tells, or nobody knows which
    select change from link where not stayed and n not in (select w.n from walk w where w.steps > 0 and w.place in (select here from pair))
    union
    select change from said where change in (select change from moving) and tid not in (select old from link union all select new from link))
  select (select array_agg(row(there, here)::agentundo._pair) from pair),
    (select array_agg(distinct i.place) from item i
     where i.place not in (select there from pair union all select here from pair)
       and (exists (select from retaken g where {{of_image}}) or exists (
         select from image g
         where g.change in (select change from open) and g.tid not in (select old from link where stayed union all select new from link where stayed) and {{of_image}})))$sql$,
    jsonb_build_object('key_images', agentundo._key_images_sql(t), 'history', agentundo._history(t), 'tracked', t.id, 'h_keys', agentundo._key_list(t.id, 'h'),
      'keys', (select string_agg(quote_ident(k.history_column), ', ' order by k.place) from agentundo._key(t.id) k),
      'i_keys', agentundo._key_list(t.id, 'i'), 's_keys', agentundo._key_list(t.id, 's'), 'stayed', agentundo._same_key(t.id, 'o', 'n'),
      'at_item', agentundo._same_key(t.id, 'i', 'w'), 'on_the_way', agentundo._same_key(t.id, 'loose', 'v'),
      'of_image', agentundo._same_key(t.id, 'g', 'i'),
      'said', coalesce((select string_agg(c.value, ', ' order by c.attnum) from agentundo._image_columns(t.id, 'h', 'i.change') c
        where c.attnum not in (select k.attnum from agentundo._key(t.id) k)), 'null')))
$body$;

-- Rows whose key moved: the row at the new key and the absence at the old one are one thing. Where it is
-- plain which belongs to which they become one update in place, which no cascade can tear apart; the others stay a
-- unit that goes back together or not at all, with all rows that such a change of keys has touched (_walks_sql() above).
create or replace function agentundo._pair_moves(d agentundo._decision[], changes bigint[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  pair agentundo._pair;
  pairs agentundo._pair[];
  bound int[];
  gone int[] := array[]::int[];
  here agentundo._decision;
  there agentundo._decision;
  loops constant text := current_setting('enable_nestloop');
begin
  if cardinality(d) > 200 then
    perform set_config('enable_nestloop', 'off', true);  -- the planner takes them for a few
  end if;
  for t in
    select * from agentundo._tracked g
    where g.relation is not null and (g.id in (select x.tracked from unnest(d) x where x.unit = 'moved')
      -- rows may have changed places, and not all of them are as they were left
      or g.id in (select x.tracked from unnest(d) x where x.status <> 'ok')
        and ((select count(*) > 1 and bool_or(c.operation = 'U' and c.rows > 1) from agentundo._change c where c.change = any (changes) and c.tracked = g.id)
          or exists (select from agentundo._taken_back(changes, g.id))))
  loop
    pairs := null;
    bound := null;
    if exists (select from agentundo._key(t.id)) then
      select * into pairs, bound from agentundo._look(agentundo._walks_sql(t), null, d, e => changes, f => array(select agentundo._taken_back(changes, t.id))) as found (pairs agentundo._pair[], bound int[]);
    end if;
    foreach pair in array coalesce(pairs, '{}') loop
      here := d[pair.here];
      there := d[pair.there];
      if there.status = 'done' and there.cur is not null then
        there.unit := null;  -- the row at the new key is that of somebody who wrote later: the old one comes back beside it
        here.unit := null;
        d[pair.here] := here;
        d[pair.there] := there;
        continue;
      elsif here.action = 'none' and (there.status <> 'done' or here.status = 'done') then
        there.unit := null;  -- nothing is to come back at the old key: the row at the new one goes, or has gone
        here.unit := null;
        d[pair.here] := here;
        d[pair.there] := there;
        continue;
      elsif not coalesce(here.detail ? 'segments' or there.detail ? 'segments', false) then
        there.unit := null;  -- else somebody wrote it between two of its keys, and the key before that is a row of its own
      end if;
      there.before := here.before;
      there.before_change := here.before_change;
      if here.status = 'conflict' then
        there.status := 'conflict';
        there.reason := here.reason;
      elsif there.cur is null then
        there.status := 'conflict';
        there.reason := 'row_deleted';
      end if;
      there.action := 'update';
      there.detail := coalesce(there.detail, '{}') - 'last_segment' || '{"moved": true}' || jsonb_strip_nulls(jsonb_build_object('segments', here.detail -> 'segments'));
      d[pair.there] := there;
      gone := gone || pair.here;
    end loop;
    for there in select x.* from unnest(d) x where x.place = any (bound) or x.tracked = t.id and x.unit = 'moved' and x.place <> all (gone) loop
      there.unit := 'moved ' || t.id;
      -- Of a row that nobody can tell apart and that is gone from its new key, the old one must not come back.
      if there.status = 'done' and there.cur is null and there.before is null and there.after is not null
        and exists (select from unnest(d) x where x.tracked = t.id and x.before is not null and (x.place = any (bound) or x.unit like 'moved%') and x.place <> all (gone)) then
        there.status := 'conflict';
        there.reason := 'row_deleted';
      end if;
      d[there.place] := there;
    end loop;
  end loop;
  perform set_config('enable_nestloop', loops, true);
  return agentundo._renumber(array(select x from unnest(d) x where not exists (select from unnest(gone) g where g = x.place) order by x.place));
end
$body$;

-- The same where no key is left over, or a conflict shows only later: rows that passed keys on to each other, of which
-- one is in conflict, go back together or not at all, or a row would stand twice and another be lost. A change of keys is known from the keys that it has left or taken; that rows
-- have changed places in one statement only from what they say, all the way round.
create or replace function agentundo._bind(d agentundo._decision[], changes bigint[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  link agentundo._pair;
  links agentundo._pair[];
  x agentundo._decision;
  loops constant text := current_setting('enable_nestloop');
begin
  if cardinality(d) > 200 then
    perform set_config('enable_nestloop', 'off', true);  -- the planner takes them for a few
  end if;
  for t in
    select * from agentundo._tracked g
    where g.id in (select y.tracked from unnest(d) y where y.status in ('conflict', 'skip'))
      and g.relation is not null and exists (select from agentundo._key(g.id))
      and exists (select from agentundo._change c where c.change = any (changes) and c.tracked = g.id and c.operation = 'U')
  loop
    select * into links from agentundo._look(agentundo._bind_sql(t), null, d, e => changes) as found (links agentundo._pair[]);
    foreach link in array coalesce(links, '{}') loop
      x := d[link.there];
      x.unit := case when link.here = 0 then 'moved ' || t.id else 'swapped ' || link.here end;
      d[link.there] := x;
    end loop;
  end loop;
  perform set_config('enable_nestloop', loops, true);
  return d;
end
$body$;

-- Decisions in $1 and what they are bound to: 0, all that moved, or the first of those that have changed places.
create or replace function agentundo._bind_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  with recursive {{key_images}},
  item as materialized (
    select x.place, x.status = 'conflict' as conflict, x.unit is null and coalesce(x.detail ? 'moved', false) as certain,
      x.unit is null as free, x.unit is null and x.before is not null and x.after is not null as swappable, i.now, {{h_keys}}, row({{said}})::record as row
    from unnest($1) x
    cross join lateral (values (x.before, x.before_change, false), (x.after, x.after_change, true)) i (tid, change, now)
    join lateral (select * from {{history}} h where h.ctid = i.tid offset 0) h on true
    where x.tracked = {{tracked}}),
  unclear as materialized (    -- changes of keys of which nobody can tell which row became which
    select distinct o.change from turnover o where not exists (select from item i where i.certain and {{of_turnover}})),
  passed as (
    select distinct i.place from item i where i.free and not i.certain
      and exists (select from image g where g.change in (select change from unclear) and {{of_image}})),
  said as (
    select place, conflict, now, dense_rank() over (order by row using operator(pg_catalog.*<)) as says
    from item where swappable and not certain and place not in (select place from passed)),
  swap as materialized (       -- the row that stood in one place stands in another
    select min(place) filter (where not now) as source, min(place) filter (where now) as target, bool_or(conflict and not now) as conflict
    from said group by says having count(*) = 2 and count(*) filter (where now) = 1 and count(distinct place) = 2),
  walk as (
    select source as root, target as place from swap where conflict
    union
    select w.root, s.target from walk w join swap s on s.source = w.place)
  select array_agg(row(b.place, b.root)::agentundo._pair)
  from (
    select place, 0 as root from passed
    union all
    select w.place, min(w.root) from walk w where exists (select from walk c where c.root = w.root and c.place = c.root) group by w.place) b$sql$,
    jsonb_build_object('key_images', agentundo._key_images_sql(t), 'history', agentundo._history(t), 'tracked', t.id, 'h_keys', agentundo._key_list(t.id, 'h'),
      'of_turnover', agentundo._same_key(t.id, 'i', 'o'), 'of_image', agentundo._same_key(t.id, 'g', 'i'),
      'said', coalesce((select string_agg(c.value, ', ' order by c.attnum) from agentundo._image_columns(t.id, 'h', 'i.change') c
        where c.attnum not in (select k.attnum from agentundo._key(t.id) k)), 'i.tid')))
$body$;

-- Rows that are gone from where the set left them because others have given them another key: whoever brought the old one
-- back would have two.
create or replace function agentundo._moved_on(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  x agentundo._decision;
  i int;
  places int[];
begin
  for t in
    select * from agentundo._tracked g
    where g.id in (select y.tracked from unnest(d) y where y.status = 'conflict' and y.reason = 'row_deleted' and y.after is not null)
      and exists (select from agentundo._key(g.id))
  loop
    select found.places into places from agentundo._look(format($sql$
      select array_agg(y.place)
      from unnest($1) y join lateral (select * from %1$s h where h.ctid = y.after offset 0) a on true
      where y.tracked = %2$s and y.status = 'conflict' and y.reason = 'row_deleted' and exists (
        select from %1$s h join agentundo._change c on coalesce(c.source, c.change) = h._change
        where %3$s and c.tracked = y.tracked and c.change > y.after_change and c.operation = 'U' and not c.void
        group by c.change having count(*) filter (where (h._image = 'O') <> c.inverted) > count(*) filter (where (h._image = 'N') <> c.inverted))$sql$,
      agentundo._history(t), t.id, agentundo._same_key(t.id, 'h', 'a')), null, d) as found (places int[]);
    foreach i in array coalesce(places, '{}') loop
      x := d[i];
      x.detail := coalesce(x.detail, '{}') || '{"moved_on": true}';
      d[i] := x;
    end loop;
  end loop;
  return d;
end
$body$;
