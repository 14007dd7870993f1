-- 13  Chains: rows that the set wrote more than once, or of which others have undone something
--
-- The way for any number of changes, in any order, with reverts and other people's writes in between; what
-- 12_net.sql calls the straight way is the short cut past it. One statement, in three parts:
--   * the set by itself: each row's walk through the set's changes, from an image before to one after;
--   * what others have undone: where a row goes back to is not always what the set found. If what had led
--     there has been undone since, the row is to be as it would be without it; if it was made by
--     somebody who is undone, it is not to come back at all. A row is what the last one who stands has left
--     of it, whatever the order in which the others are taken back and redone;
--   * the look at the row as it is now.
-- Tables without a key have a way of their own, at the end.

-- The set by itself. `net` is one row for each key on which its changes do not cancel out.
create or replace function agentundo._chains_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
  touched as materialized (
    select {{keys}}, count(*) filter (where old) as olds, count(*) filter (where not old) as news,
      min(change) as first_change, max(change) as last_change,
      min(tid) filter (where old) as before, min(tid) filter (where not old) as after
    from image group by {{keys}}),
  chain as materialized (
    select row_number() over () as id, {{keys}}, first_change, last_change from touched
    where olds > 1 or news > 1 or first_change <> last_change),
  state as (   -- every image of a chained row, numbered by what it says
    select c.id, i.change, i.xid, i.old, i.tid,
      dense_rank() over (partition by c.id order by {{image}} using operator(pg_catalog.*<)) as says
    from chain c join image i on {{same_chain}} join {{history}} h on h.ctid = i.tid),
  whole as (   -- absence is a state too: number 0
    select id, change, xid, old, tid, says from state
    union all
    select id, change, xid, true, null, 0 from state group by id, change, xid having count(*) filter (where old) < count(*) filter (where not old)
    union all
    select id, change, xid, false, null, 0 from state group by id, change, xid having count(*) filter (where old) > count(*) filter (where not old)),
  balance as (
    select id, xid, says, count(*) filter (where old) - count(*) filter (where not old) as surplus,
      min(tid) filter (where old) as old_tid, min(tid) filter (where not old) as new_tid,
      min(change) filter (where old) as old_change, max(change) filter (where not old) as new_change
    from whole group by id, xid, says),
  linked as materialized (  -- one contiguous walk per transaction
    select id, xid, coalesce(sum(surplus) filter (where surplus > 0), 0) as starts
    from balance group by id, xid),
  extent as (
    select id, xid, min(change) as first_change, max(change) as last_change from whole group by id, xid),
  hop as (     -- (before, after) steps in order: one per transaction, or one per change where it is not contiguous
    select l.id, min(w.first_change) as first_change, max(w.last_change) as last_change,
      (array_agg(b.says) filter (where b.surplus > 0))[1] as says_before, (array_agg(b.old_tid) filter (where b.surplus > 0))[1] as before,
      (array_agg(b.old_change) filter (where b.surplus > 0))[1] as before_change,
      (array_agg(b.says) filter (where b.surplus < 0))[1] as says_after, (array_agg(b.new_tid) filter (where b.surplus < 0))[1] as after,
      (array_agg(b.new_change) filter (where b.surplus < 0))[1] as after_change
    from linked l join balance b using (id, xid) join extent w using (id, xid)
    where l.starts = 1 group by l.id, l.xid
    union all   -- there and back again is a step, too: somebody else may have written before it
    select * from (
      select distinct on (l.id, l.xid) l.id, w.first_change, w.last_change, b.says, b.old_tid, b.old_change, b.says, b.new_tid, b.new_change
      from linked l join extent w using (id, xid) join whole f using (id, xid) join balance b using (id, xid, says)
      where l.starts = 0 and f.old order by l.id, l.xid, f.change) round
    union all
    select w.id, w.change, w.change,
      min(w.says) filter (where w.old), min(w.tid) filter (where w.old), w.change,
      max(w.says) filter (where not w.old), max(w.tid) filter (where not w.old), w.change
    from linked l join whole w using (id, xid) where l.starts > 1 group by w.id, w.change),
  intruder as materialized (   -- captured changes by others between two of ours
    select c.id, f.change
    from agentundo._change f
    join chain c on f.change > c.first_change and f.change < c.last_change
    join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_chain}}
    where f.tracked = $9[4]::int and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and f.change between (select min(first_change) from chain) and (select max(last_change) from chain)),
  step as materialized (
    select hop.*, lag(says_after) over w as came_from, lag(last_change) over w as came_at from hop window w as (partition by id order by first_change)),
  cut as (
    select s.*, (s.came_at is not null and s.came_from is distinct from s.says_before or x.id is not null)::int as boundary
    from step s
    left join (select distinct s.id, s.first_change from step s join intruder i on i.id = s.id and i.change > s.came_at and i.change < s.first_change) x
      on x.id = s.id and x.first_change = s.first_change),
  segment as (
    select cut.*, sum(boundary) over (partition by id order by first_change) as segment, sum(boundary) over (partition by id) as last_segment from cut),
  solved as (
    select s.id, max(last_segment) + 1 as segments, max(s.last_change) as change,
      (array_agg(says_before order by first_change))[1] as says_before, (array_agg(before order by first_change))[1] as before,
      (array_agg(before_change order by first_change))[1] as before_change,
      (array_agg(says_after order by first_change desc))[1] as says_after, (array_agg(after order by first_change desc))[1] as after,
      (array_agg(after_change order by first_change desc))[1] as after_change
    from segment s where segment = last_segment group by s.id),
  net as (
    select {{keys}}, before as image, after, first_change as image_change, first_change as after_change, last_change as change, 1::bigint as segments, null::bigint as chain,
      null::bigint[] as versions, false as nothing
    from touched where not (olds > 1 or news > 1 or first_change <> last_change)
    union all
    select {{image_keys}}, s.before, s.after, s.before_change, s.after_change, s.change, s.segments, i.id, v.versions, s.says_before is not distinct from s.says_after
    from solved s
    join chain i using (id)
    left join (
      select st.id, st.says, array_agg(distinct x.version) as versions
      from state st join change x using (change) where not st.old group by st.id, st.says) v on v.id = s.id and v.says = s.says_after
    where s.says_before is distinct from s.says_after or s.segments > 1)$sql$ $body$;

-- What others have undone. `aimed` is `net` with the image to go back to, `before`.
create or replace function agentundo._undone_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
  ours as materialized (          -- the reverts that the set takes back: what they took back will stand again
    select distinct v.id, v.invocations from agentundo._revert v join change c on c.invocation = v.id
    join agentundo._change f on f.change = c.change and f.xid = v.xid),
  returned as materialized (      -- what others had taken back when a change of the set was made, and is done again since
    select c.change, v.invocations
    from change c
    join agentundo._revert v on v.number < c.change and not v.redo and (not v.standing or v.reopened) and v.id not in (select id from ours)
    join agentundo._revert w on w.invocations @> array[v.id] and w.standing and w.number > c.change),
  span as (                       -- the first change that is of interest, and the set's last
    select least(min(c.change), (
        select min(f.change)
        from (select o.invocations from ours o union all select v.invocations from returned v) o
        cross join lateral unnest(o.invocations) u (id) join agentundo._change f on f.invocation = u.id and f.tracked = $9[4]::int)) as first_change,
      max(c.change) as last_change
    from change c),
  taken_back as materialized (    -- changes by others that standing reverts have taken back since: wholly, or some of their rows
    select x.*
    from (
      select f.change, coalesce(f.source, f.change) as source, f.inverted, v.id as revert, v.xid as revert_xid, v.number,
        not v.reopened and exists (select from agentundo._reverted u where u.change = f.change and u.revert = v.id) as wholly
      from span
      join agentundo._revert v on v.standing and v.number > span.first_change and v.id not in (select id from ours)
      cross join lateral unnest(v.invocations) u (id)
      join agentundo._change f on f.invocation = u.id and f.tracked = $9[4]::int and f.change < v.number and f.change <> all ($6) and not f.void
      where not exists (select from agentundo._revert w where w.id = f.invocation and w.xid = f.xid)) x
    where not x.wholly or x.change < (select last_change from span)),
  undone as materialized (        -- the same row by row: all rows of what was taken back wholly, else those that the revert has written
    select x.change, x.number, (h._image = 'N') <> x.inverted as new, h.ctid as tid, {{h_keys}}, {{taken_image}} as says
    from taken_back x join {{history}} h on h._change = x.source
    where x.wholly and exists (select from image i where {{of_image}})
    union all
    select x.change, x.number, (h._image = 'N') <> x.inverted, h.ctid, {{h_keys}}, {{taken_image}}
    from taken_back x join {{history}} h on h._change = x.source
    where not x.wholly and exists (select from image i where {{of_image}})
      and exists (
        select from agentundo._change r join {{history}} s on s._change = coalesce(r.source, r.change)
        where r.invocation = x.revert and r.xid = x.revert_xid and r.tracked = $9[4]::int and {{taken_row}})
      and not exists (            -- and no redo has done again
        select from agentundo._revert w join agentundo._change r on r.invocation = w.id and r.xid = w.xid and r.tracked = $9[4]::int
        join {{history}} s on s._change = coalesce(r.source, r.change)
        where w.standing and w.number > x.number and x.revert = any (w.invocations) and w.id not in (select id from ours) and {{taken_row}})),
  upset as (                      -- changes that met the rows otherwise than they are to be now, or had nothing to do
    select c.change from change c where c.void
    union
    select change from returned),
  doubtful as (                   -- the rows of which all the rest is
    select {{keys}} from undone
    union
    select {{image_keys}} from image i join upset using (change)),
  standing as materialized (      -- what others have done to these rows, and nobody has taken back
    select f.change, f.xid, f.invocation, f.undone_at, (h._image = 'N') <> f.inverted as new, {{h_keys}}
    from (
      select f.*, (select min(v.number) from agentundo._revert v where v.invocations @> array[f.invocation]) as undone_at
      from span
      join agentundo._change f on f.tracked = $9[4]::int and f.change < span.last_change and f.change <> all ($6) and not f.void
        and f.change >= least(span.first_change, (select min(change) from taken_back))
      where ({{stranger}} or exists (select from ours o where f.invocation = any (o.invocations)))
        and not exists (select from agentundo._revert w where w.id = f.invocation and w.xid = f.xid)
        and exists (select from doubtful)
      offset 0) f
    join {{history}} h on h._change = coalesce(f.source, f.change)
    join doubtful k on {{of_doubtful}}
    where not exists (select from undone u where u.change = f.change and {{of_undone}})),
  stood as (                      -- for each image that would come back: who stands and wrote the row last before
    select i.tid, i.change, {{image_keys}}, max(l.change) as stood
    from image i join change c using (change) join doubtful k on {{doubtful_image}}
    left join standing l on {{image_standing}} and l.change < i.change
    where i.old and not c.void
    group by i.tid, i.change, {{image_keys}}),
  undone_since as (               -- and what had led to it after that, and is undone now
    select i.tid as image, i.change as image_change, u.new, u.tid, u.change, dense_rank() over (partition by i.tid order by u.says using operator(pg_catalog.*<)) as says
    from stood i join undone u on {{image_undone}} and u.change > coalesce(i.stood, 0) and u.change < i.change and u.number > i.change),
  ends as (                       -- what that began with, and what it came to
    select image, image_change, says, min(tid) filter (where not new) as old, min(change) filter (where not new) as old_change,
      min(tid) filter (where new) as new, min(change) filter (where new) as new_change,
      count(*) filter (where not new) - count(*) filter (where new) as surplus
    from undone_since group by image, image_change, says having count(*) filter (where not new) <> count(*) filter (where new)),
  led as (                        -- if it is one chain: nobody has written without being seen
    select image, image_change, max(new) filter (where surplus < 0) as new, max(new_change) filter (where surplus < 0) as new_change,
      max(old) filter (where surplus > 0) as before, max(old_change) filter (where surplus > 0) as before_change
    from ends group by image, image_change having count(*) filter (where surplus < 0) = 1 and count(*) filter (where surplus > 0) <= 1),
  last_stood as materialized (    -- for each image of an upset change: what was done to the row last, of all that stands once ours stands again
    select image, old, void, own, {{keys}}, count(*) filter (where not new) > count(*) filter (where new) as gone, min(undone_at) < change as was_undone
    from (
      select i.tid as image, i.change, i.old, c.void, coalesce(l.invocation = any (o.invocations), false) as own, l.new, l.undone_at, {{image_keys}},
        (l.xid, l.invocation) is not distinct from (first_value(l.xid) over w, first_value(l.invocation) over w) as last
      from image i join upset using (change) join change c using (change) left join ours o on o.id = c.invocation
      join standing l on {{image_standing}} and l.change < i.change
      window w as (partition by i.tid order by l.change desc)) l
    where last group by image, change, old, void, own, {{keys}}),
  instead as (                    -- not this image comes back but what was before that chain, if it led there
    select c.image, c.before, c.before_change
    from led c join {{history}} h on h.ctid = c.image join {{history}} n on n.ctid = c.new
    where {{came_to}} operator(pg_catalog.*=) {{came_back}}
    union all
    select l.image, null, null    -- or nothing: somebody has deleted the row, which was undone when ours was, and is not now
    from last_stood l
    where l.old and l.gone and (l.void or l.was_undone and l.image not in (select image from undone_since))
    union
    select i.tid, null, null      -- or it had been gone already, and whoever had deleted it stands, or was not seen
    from image i join change c using (change)
    where i.old and c.void
      and not exists (
        select from undone u
        where {{image_undone}} and not u.new and u.change < i.change and u.number > i.change
          and not exists (select from standing l where {{standing_undone}} and l.change > u.change))),
  overtaken as (                  -- nothing was done to the row when ours was undone, and others have written it since it was ours
    select distinct {{keys}} from last_stood where void and not own and not gone),
  aimed as (
    select net.*, case when i.image is null then net.image else i.before end as before, case when i.image is null then net.image_change else i.before_change end as before_change
    from net left join instead i on i.image = net.image)$sql$ $body$;

-- The row as it is now, and whether anybody who stands has written it since. For the verdict: `judged`.
create or replace function agentundo._look_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
{{deleted_since}}
      and not exists (select from undone u where u.change = f.change and {{of_undone}})),
  later as (   -- written again by another invocation of the same transaction, which xmin cannot tell
    select {{image_keys}} from foreigner f join {{history}} h on h._change = f.source join image i on i.xid = f.xid and {{of_image}}
    group by {{image_keys}} having max(f.change) > max(i.change)),
  compared as (
    select n.*, r.tableoid as part, r.ctid as cur, r.xmin::text::bigint as version, ac.filenode as filenode, ac.version as own_version,
      n.image is null and n.after is not null and ic.operation = 'U' or n.after is null and n.image is not null and ac.operation = 'U' as moved,
      a.matches, b.matches as back,
      (n.change <= $9[1] or n.change > $9[2] and r.ctid is not null and coalesce({{rewritten}}, false)) as by_value,
      l.{{first_key}} is not null as written_again,
      coalesce(x.change > n.change, false) as gone_since, o.{{first_key}} is not null as overtaken
    from aimed n
    left join {{lookup}} r on {{in_table}}
    left join later l on {{later_net}}
    left join (select max(change) as change, {{keys}} from deleted_since group by {{keys}}) x on {{deleted_net}}
    left join overtaken o on {{overtaken_net}}
    left join change ac on ac.change = n.after_change
    left join change ic on ic.change = n.image_change
    left join lateral (select case when n.change <= $9[1] or n.change > $9[2] and {{rewritten}}
        then {{after_by_value}} operator(pg_catalog.*=) {{row_by_value}} else {{after}} operator(pg_catalog.*=) {{row}} end as matches
      from {{history}} h where h.ctid = n.after and r.ctid is not null offset 0) a on true
    left join lateral (select {{before}} operator(pg_catalog.*=) {{row}} as matches
      from {{history}} h where h.ctid = n.before and r.ctid is not null and a.matches is not true offset 0) b on true),
  suspect as materialized (   -- last written by an undo or redo, or versions are lost: who wrote before that?
    select {{keys}} from compared where by_value and matches or version <> own_version and version in ({{undo_versions}})),
  stranger as materialized (
    select max(f.change) as change, {{h_keys}}
    from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change)
    where f.tracked = $9[4]::int and f.change > (select min(change) from change) and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and exists (select from suspect) and not exists (select from undone u where u.change = f.change and {{of_undone}})
    group by {{h_keys}}),
  judged as materialized (
    select compared.*, matches and not written_again and (version = own_version or version = any (versions)
        or (by_value or version in ({{undo_versions}})) and s.change is null) as untouched,
      back and version in (select f.xmin::text::bigint from agentundo._change f where f.tracked = $9[4]::int and f.change = any ($7)) as taken_back,
      case when segments > 1 then st.at end as at
    from compared
    left join (select id, min(tid)::text as at from state group by id) st on st.id = compared.chain
    left join stranger s on {{stranger_compared}} and s.change > compared.change)$sql$ $body$;

create or replace function agentundo._net_keyed_sql(t agentundo._tracked, lookup text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with key as (
    select agentundo._same_key(t.id, 'one', 'other') as same, agentundo._key_list(t.id, 'one') as list,
      (select string_agg(quote_ident(k.history_column), ', ' order by k.place) from agentundo._key(t.id) k) as names,
      (select quote_ident(k.history_column) from agentundo._key(t.id) k where k.place = 1) as first_name),
  same_key as (   -- the same condition for many pairs of names
    select jsonb_object_agg(p.piece, replace(replace(key.same, 'one.', p.one || '.'), 'other.', p.other || '.')) as pieces
    from key cross join (values
      ('same_chain', 'i', 'c'), ('of_chain', 'h', 'c'), ('of_image', 'h', 'i'), ('taken_row', 's', 'h'), ('of_doubtful', 'h', 'k'),
      ('of_undone', 'u', 'h'), ('doubtful_image', 'i', 'k'), ('image_undone', 'u', 'i'), ('image_standing', 'l', 'i'), ('standing_undone', 'l', 'u'),
      ('later_net', 'l', 'n'), ('deleted_net', 'x', 'n'), ('overtaken_net', 'o', 'n'), ('stranger_compared', 's', 'compared')) p (piece, one, other))
  select agentundo._net_head(t)
    || agentundo._fill(agentundo._chains_sql() || agentundo._undone_sql() || agentundo._look_sql(), same_key.pieces || jsonb_build_object(
      'history', agentundo._history(t), 'lookup', lookup, 'keys', key.names, 'first_key', key.first_name,
      'h_keys', replace(key.list, 'one.', 'h.'), 'image_keys', replace(key.list, 'one.', 'i.'), 'in_table', agentundo._has_key(t.id, 'r', 'n'),
      'image', agentundo._image_row(t.id, 'h', 'i.change'), 'taken_image', agentundo._image_row(t.id, 'h', 'x.change'),
      'came_to', agentundo._image_row(t.id, 'n', 'c.new_change'), 'came_back', agentundo._image_row(t.id, 'h', 'c.image_change'),
      'before', agentundo._image_row(t.id, 'h', 'n.before_change', 'r'), 'after', agentundo._image_row(t.id, 'h', 'n.after_change', 'r'),
      'after_by_value', agentundo._image_row(t.id, 'h', 'n.after_change', 'r', true),
      'row', agentundo._table_row(t.id, 'r'), 'row_by_value', agentundo._table_row(t.id, 'r', true), 'rewritten', agentundo._rewritten_sql(t, 'ac'),
      'deleted_since', agentundo._deleted_since_sql(t), 'undo_versions', agentundo._undo_versions_sql(), 'stranger', agentundo._stranger_sql('f')))
    || agentundo._verdict_sql(t)
  from key, same_key
$body$;

-- Tables without a key: rows are told apart by what they say, and equal ones are counted.
create or replace function agentundo._net_keyless_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._net_head(t) || format($sql$,
  every as (
    select i.change, i.old, i.tid, false as family from image i
    union all   -- what reverts and redos of the set have done to such rows already
    select f.change, (h._image = 'O') <> f.inverted, h.ctid, true
    from agentundo._change f join %1$s h on h._change = coalesce(f.source, f.change)
    where f.tracked = $9[4]::int and f.change = any ($7)
      and not exists (   -- but for those that took back what is no longer in the set
        select from agentundo._revert v join agentundo._reverted x on x.revert = v.id join agentundo._change c on c.change = x.change
        where v.id = f.invocation and v.xid = f.xid and v.standing and not v.reopened and c.tracked = f.tracked and c.change <> all ($7))),
  said as (
    select e.*, dense_rank() over (order by %2$s using operator(pg_catalog.*<)) as says from every e join %1$s h on h.ctid = e.tid),
  tally as (
    select says,
      count(*) filter (where not family and not old) - count(*) filter (where not family and old) as surplus,
      count(*) filter (where family and old) - count(*) filter (where family and not old) as gone,
      min(tid) filter (where not family and not old) as after, max(change) filter (where not family and not old) as after_change,
      min(tid) filter (where not family and old) as before, max(change) filter (where not family and old) as before_change,
      max(change) filter (where not family) as change,
      array_agg(distinct change) filter (where not old) as written_by,
      bool_or(not family and change in (select change from change where operation = 'U')) as moved
    from said group by says),
  candidate as (
    select y.says, r.tableoid as part, r.ctid as cur,
      r.xmin::text::bigint in (select c.xmin::text::bigint from agentundo._change c where c.change = any (y.written_by)) or y.after_change <= $9[1]
        or r.xmin::text::bigint in (%6$s)
        or y.after_change > $9[2] and exists (select from agentundo._change c where c.change = y.after_change and %7$s) as untouched
    from tally y join %1$s h on h.ctid = y.after join %3$s r on %4$s operator(pg_catalog.*=) %5$s
    where y.surplus > 0),
  placed as (
    select *, row_number() over (partition by says order by untouched desc, part, cur) as place from candidate)
  select $9[4]::int, y.change, p.part, p.cur, null::tid, y.after, null::bigint, y.after_change,
    case when p.cur is null then 'none' else 'delete' end,
    case when p.cur is null and n.place > y.surplus - y.gone then 'done' when p.cur is null or not p.untouched or %8$s then 'conflict' else 'ok' end,
    case when p.cur is null then case when n.place <= y.surplus - y.gone then case when %8$s then 'schema_changed' else 'row_changed' end end
      when %8$s then 'schema_changed' when not p.untouched then 'row_rewritten' end,
    case when y.after_change <= $9[1] then 'value' else 'version' end, null::text[], null::jsonb, case when y.moved then 'moved' end, null::jsonb
  from tally y cross join lateral generate_series(1, y.surplus) n (place)
  left join placed p on p.says = y.says and p.place = n.place
  where y.surplus > 0
  union all
  select $9[4]::int, y.change, null, null, y.before, null, y.before_change, null, 'insert',
    case when %9$s then 'conflict' else 'ok' end, case when %9$s then 'schema_changed' end, 'version', null, null, case when y.moved then 'moved' end, null
  from tally y cross join lateral generate_series(1, -y.surplus + y.gone) n (place)
  where y.surplus < 0$sql$,
    t.history, agentundo._image_row(t.id, 'h', 'e.change'),
    agentundo._from(t),
    agentundo._table_row(t.id, 'r'), agentundo._image_row(t.id, 'h', 'y.after_change', 'r'), agentundo._undo_versions_sql(),
    agentundo._rewritten_sql(t, 'c'), agentundo._retyped(t.id, 'y.after_change', 'y.after_change'), agentundo._retyped(t.id, 'y.before_change', 'y.before_change'))
$body$;
