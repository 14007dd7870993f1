-- 14  Chains: rows that the set wrote more than once, or of which others have undone something
--
-- The way for any number of changes, in any order, with reverts and other people's writes in between; what
-- 12_net.sql calls the straight way is the short cut past it. One statement, in three parts:
--   * the set by itself: each row's walk through the set's changes, from an image before to one after;
--   * rows in doubt, those that somebody else has undone or redone since: their whole journal is read, and played
--     again (13_replay.sql);
--   * the look at the row as it is now.
-- Tables without a key have a way of their own, at the end.

-- Images put together to steps (before, after) in their order: one for each transaction, or more exactly for each
-- {{unit}}, or one for each change where these do not come to a single walk. Images are numbered by what they
-- say; absence is a state too, number 0. From the CTE {{p}}state to {{p}}hop.
create or replace function agentundo._hops_sql(prefix text, unit text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select agentundo._fill($sql$,
  {{p}}whole as (
    select id, change, {{unit}}, old, tid, says from {{p}}state
    union all
    select id, change, {{unit}}, missing > 0, null, 0
    from (
      select id, change, {{unit}}, count(*) filter (where not old) - count(*) filter (where old) as missing
      from {{p}}state group by id, change, {{unit}}) c cross join lateral generate_series(1, abs(missing))),
  {{p}}balance as (
    select id, {{unit}}, says, count(*) filter (where old) - count(*) filter (where not old) as surplus,
      (array_agg(tid order by change) filter (where old))[1] as old_tid, (array_agg(tid order by change desc) filter (where not old))[1] as new_tid,
      min(change) filter (where old) as old_change, max(change) filter (where not old) as new_change
    from {{p}}whole group by id, {{unit}}, says),
  {{p}}linked as materialized (  -- one contiguous walk?
    select id, {{unit}}, coalesce(sum(surplus) filter (where surplus > 0), 0) as starts
    from {{p}}balance group by id, {{unit}}),
  {{p}}extent as (
    select id, {{unit}}, min(change) as first_change, max(change) as last_change from {{p}}whole group by id, {{unit}}),
  {{p}}hop as (
    select l.id, min(w.first_change) as first_change, max(w.last_change) as last_change,
      (array_agg(b.says) filter (where b.surplus > 0))[1] as says_before, (array_agg(b.old_tid) filter (where b.surplus > 0))[1] as before,
      (array_agg(b.old_change) filter (where b.surplus > 0))[1] as before_change,
      (array_agg(b.says) filter (where b.surplus < 0))[1] as says_after, (array_agg(b.new_tid) filter (where b.surplus < 0))[1] as after,
      (array_agg(b.new_change) filter (where b.surplus < 0))[1] as after_change
    from {{p}}linked l join {{p}}balance b using (id, {{unit}}) join {{p}}extent w using (id, {{unit}})
    where l.starts = 1 group by id, {{unit}}
    union all   -- there and back again is a step, too: somebody else may have written before it
    select id, first_change, last_change, says, old_tid, old_change, says, new_tid, new_change
    from (
      select distinct on (id, {{unit}}) id, w.first_change, w.last_change, says, b.old_tid, b.old_change, b.new_tid, b.new_change
      from {{p}}linked l join {{p}}extent w using (id, {{unit}}) join {{p}}whole f using (id, {{unit}}) join {{p}}balance b using (id, {{unit}}, says)
      where l.starts = 0 and f.old order by id, {{unit}}, f.change) round
    union all
    select id, w.change, w.change,
      min(w.says) filter (where w.old), min(w.tid) filter (where w.old), w.change,
      max(w.says) filter (where not w.old), max(w.tid) filter (where not w.old), w.change
    from {{p}}linked l join {{p}}whole w using (id, {{unit}}) where l.starts > 1 group by id, w.change)$sql$,
  jsonb_build_object('p', prefix, 'unit', unit)) $body$;

-- Rows of which a change has written several at once, and not all of them came or went within the {{unit}}, in the CTE
-- {{p}}whole: what is one key today was none then, or is one at COMMIT alone.
create or replace function agentundo._torn_sql(prefix text, unit text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select agentundo._fill($sql$,
  {{p}}torn as materialized (
    select distinct id
    from (
      select id, w.change, count(*) filter (where w.old) - count(*) filter (where not w.old) as surplus
      from {{p}}linked l join {{p}}whole w using (id, {{unit}}) where l.starts > 1 group by id, w.change, w.says) images
    group by id, change having sum(surplus) filter (where surplus > 0) > 1)$sql$,
  jsonb_build_object('p', prefix, 'unit', unit)) $body$;

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
  state as (   -- every image of a chained row
    select c.id, i.change, i.xid, i.old, i.tid,
      dense_rank() over (partition by c.id order by {{image}} using operator(pg_catalog.*<)) as says
    from chain c join image i on {{same_chain}} join {{history}} h on h.ctid = i.tid)$sql$
|| agentundo._hops_sql('', 'xid') || agentundo._torn_sql('', 'xid') || $sql$,
  intruder as materialized (   -- captured changes by others between two of ours
    select c.id, f.change
    from agentundo._change f
    join chain c on f.change > c.first_change and f.change < c.last_change
    join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_chain}}
    where f.tracked = $9[4]::int and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and f.change between (select min(first_change) from chain) and (select max(last_change) from chain)),
  step as materialized (
    select hop.*, lag(says_after) over w as came_from, lag(last_change) over w as came_at from hop window w as (partition by id order by first_change)),
  cut as (     -- where the after of one step is not the before of the next, or somebody wrote: there a new segment begins
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
  turnover as (   -- keys that a change has left, or taken
    select {{keys}} from image join change using (change) where operation = 'U'
    group by {{keys}}, change having count(*) filter (where old) <> count(*) filter (where not old)),
  net as (
    select {{keys}}, before, after, first_change as before_change, first_change as after_change, last_change as change, 1::bigint as segments,
      null::bigint[] as versions, false as nothing, null::tid as at, false as torn
    from touched where not (olds > 1 or news > 1 or first_change <> last_change)
    union all
    select {{image_keys}}, s.before, s.after, s.before_change, s.after_change, s.change, s.segments, v.versions,
      s.says_before is not distinct from s.says_after, (select min(st.tid) from state st where s.segments > 1 and st.id = s.id),
      s.id in (select id from torn)
    from solved s
    join chain i using (id)
    left join (
      select st.id, st.says, array_agg(distinct x.version) as versions
      from state st join change x using (change) where not st.old group by st.id, st.says) v on v.id = s.id and v.says = s.says_after
    where s.says_before is distinct from s.says_after or s.segments > 1 or s.id in (select id from torn))$sql$ $body$;

-- Where the journals of a table have to begin that an undo of these changes needs: null, if nobody else has undone
-- anything since, and the set is of writes or of one undo. Else with the first change that any of those undos is
-- about, or those in the set.
create or replace function agentundo._journal_begins(t agentundo._tracked, changes bigint[]) returns bigint
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  first bigint;
  doubtful boolean;
  undo record;
begin
  select min(c.change), bool_or(c.void) or count(*) > 1 and count(v.id) > 0 into first, doubtful
    from agentundo._change c left join agentundo._revert v on v.id = c.invocation and v.xid = c.xid
   where c.tracked = t.id and c.change = any (changes);
  if not doubtful and not exists (
      select from agentundo._revert v
      where v.number > first and not exists (select from agentundo._change c where c.invocation = v.id and c.xid = v.xid and c.change = any (changes))
        and (exists (select from agentundo._change c where c.invocation = v.id and c.xid = v.xid and c.tracked = t.id)
          or exists (select from agentundo._reverted u join agentundo._change c on c.change = u.change and c.tracked = t.id where u.revert = v.id))) then
    return null;
  end if;
  select least(first, min(v.number)) into first
    from agentundo._change c join agentundo._revert v on v.id = c.invocation and v.xid = c.xid
   where c.tracked = t.id and c.change = any (changes);
  for undo in
    select v.number, v.invocations from agentundo._revert v
    where v.xid is distinct from pg_current_xact_id_if_assigned()   -- not the one that asks
      or exists (select from agentundo._change c where c.invocation = v.id) or exists (select from agentundo._reverted u where u.revert = v.id)
    order by v.number desc
  loop
    exit when undo.number < first;
    first := least(first,
      (select min(c.change) from agentundo._change c where c.tracked = t.id and c.invocation = any (undo.invocations)),
      (select min(v.number) from agentundo._revert v where v.id = any (undo.invocations)));
  end loop;
  return first;
end
$body$;

-- The rows in doubt: whom others' undos have to do with, or undos in the set that had found nothing to do. Their
-- journals, played again; journals that are alike (and those of one bulk write are) only once.
create or replace function agentundo._journals_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
  doubt as materialized (
    select row_number() over () as id, {{keys}}
    from (
      select {{image_keys}} from image i join change c using (change) where c.void
      union
      select {{h_keys}}
      from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change)
      where f.tracked = $9[4]::int and f.change >= $9[5] and exists (select from image i where {{of_image}})
        and ((f.change <> all ($6) or (select count(*) from change) > 1) and exists (select from agentundo._revert v where v.id = f.invocation and v.xid = f.xid)
          or exists (
            select from agentundo._reverted u join agentundo._revert v on v.id = u.revert
            where u.change = f.change and v.number > $9[5] and not exists (select from change c where c.invocation = v.id)))) keys),
  logged as materialized (
    select d.id, f.change, f.xid, coalesce(f.invocation, '') as invocation, f.change = any ($6) as own, f.operation, f.void, (h._image = 'O') <> f.inverted as old, h.ctid as tid
    from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change) join doubt d on {{of_doubt}}
    where f.tracked = $9[4]::int and f.change >= $9[5]),
  said as materialized (
    select l.*, dense_rank() over (partition by l.id order by {{logged_image}} using operator(pg_catalog.*<)) as says,
      dense_rank() over (partition by l.id order by {{logged_start}} using operator(pg_catalog.*<)) as says_to_all   -- without the columns that came since
    from logged l join {{history}} h on h.ctid = l.tid where not l.void),
  one_step as materialized (
    select id, xid, invocation, min(change) as change, min(says) filter (where old) as says_before, min(says) filter (where not old) as says_after,
      min(says_to_all) filter (where old) as to_all_before, min(says_to_all) filter (where not old) as to_all_after,
      min(tid) filter (where old) as before, min(tid) filter (where not old) as after,
      min(change) = max(change) and count(*) filter (where old) <= 1 and count(*) filter (where not old) <= 1 as simple
    from said group by id, xid, invocation),
  log_state as (
    select s.* from said s join one_step o using (id, xid, invocation) where not o.simple)$sql$
|| agentundo._hops_sql('log_', 'xid, invocation') || agentundo._torn_sql('log_', 'xid, invocation') || $sql$,
  unwritten as (   -- undos that took back whole changes without having to write the row, and undos of those
    select l.id, v.id as undo, v.number, to_jsonb(v.invocations) as undoes, exists (select from change c where c.invocation = v.id) as own
    from logged l join agentundo._reverted u on u.change = l.change join agentundo._revert v on v.id = u.revert
    where not exists (select from logged o where o.id = l.id and o.invocation = v.id and o.xid = v.xid)
    union
    select u.id, v.id, v.number, to_jsonb(v.invocations), exists (select from change c where c.invocation = v.id)
    from unwritten u join agentundo._revert v on v.invocations @> array[u.undo] and not v.partial
    where not exists (select from logged o where o.id = u.id and o.invocation = v.id and o.xid = v.xid)),
  entry as (
    select id, change as at, coalesce(says_before, 0) as says_before, coalesce(says_after, 0) as says_after,
      coalesce(to_all_before, 0) as to_all_before, coalesce(to_all_after, 0) as to_all_after, before, change as before_change, after, change as after_change,
      null::text as undo, null::jsonb as undoes, null::boolean as own
    from one_step where simple
    union all
    select l.id, l.last_change, coalesce(l.says_before, 0), coalesce(l.says_after, 0), coalesce(b.says_to_all, 0), coalesce(a.says_to_all, 0),
      l.before, l.before_change, l.after, l.after_change, null, null, null
    from log_hop l left join said b on b.id = l.id and b.tid = l.before and b.change = l.before_change
    left join said a on a.id = l.id and a.tid = l.after and a.change = l.after_change
    union all
    select distinct id, change, -1, -1, -1, -1, null::tid, null::bigint, null::tid, null::bigint, null, null::jsonb, null::boolean from logged where void
    union all
    select id, number, -1, -1, -1, -1, null, null, null, null, undo, undoes, own from unwritten),
  author as materialized (
    select c.change, coalesce(c.invocation, '') as invocation, c.change = any ($6) as own, c.change = any ($7) as kin, to_jsonb(v.invocations) as undoes
    from (select distinct change from logged) l join agentundo._change c using (change) left join agentundo._revert v on v.id = c.invocation and v.xid = c.xid),
  journal as materialized (
    select id, array_agg(coalesce(e.undo, a.invocation) order by at) as invocations, array_agg(coalesce(e.undoes, a.undoes) order by at) as undoes,
      array_agg(coalesce(e.own, a.own) order by at) as own, array_agg(coalesce(a.kin, false) order by at) as kin, array_agg(array[at, says_before, says_after, to_all_before, to_all_after] order by at) as pattern,
      array_agg(before order by at) as befores, array_agg(before_change order by at) as before_changes,
      array_agg(after order by at) as afters, array_agg(after_change order by at) as after_changes
    from entry e left join author a on a.change = e.at group by id),
  alike as materialized (
    select p.pattern, r.*
    from (select distinct on (pattern) pattern, invocations, undoes, own, kin from journal) p
    cross join lateral agentundo._replay(p.pattern, p.invocations, p.undoes, p.own, p.kin, {{sums}}, {{late}}, null) r),
  spread as materialized (   -- the images of rows where an undo has left something of its own, or so it seems,
    select distinct on (id, says) id, says, tid, change from said
    where id in (select j.id from journal j join alike a using (pattern) where a.entangled and a.concerned and j.pattern[1][1] > coalesce({{late}}, 0))),
  cells as (                 -- and what each says in each column
    select id, array_agg({{cells}} order by says) as cells from spread m {{ranked}} group by id),
  by_column as materialized (
    select j.pattern, j.cells, r.*
    from (select distinct on (j.pattern, c.cells) j.pattern, j.invocations, j.undoes, j.own, j.kin, c.cells from journal j join cells c using (id)) j
    cross join lateral agentundo._replay(j.pattern, j.invocations, j.undoes, j.own, j.kin, {{sums}}, {{late}}, j.cells) r),
  replayed as materialized (
    select j.id, a.concerned, a.before, a.after, a.steps, a.segments, a.nothing, a.stranger, a.inexact, a.whole
    from journal j join alike a using (pattern) where j.id not in (select id from cells)
    union all
    select j.id, a.concerned, a.before, a.after, a.steps, a.segments, a.nothing, a.stranger, a.inexact, a.whole
    from journal j join cells c using (id) join by_column a on a.pattern = j.pattern and a.cells = c.cells),
  own_part as (
    select id, max(change) as change, min(at) as at, bool_or(re_keyed) as re_keyed   -- did the set give the row another key?
    from (select id, change, min(tid) as at, operation = 'U' and count(*) = 1 as re_keyed from logged where own group by id, change, operation) l group by id),
  cleared as (
    select d.*, case when r.before > 0 then j.afters[r.before] else j.befores[-r.before] end as before, j.afters[r.after] as after,
      case when r.before > 0 then j.after_changes[r.before] else j.before_changes[-r.before] end as before_change,
      j.after_changes[case when j.afters[r.after] = j.afters[r.steps[cardinality(r.steps)]] then r.steps[cardinality(r.steps)] else r.after end] as after_change,
      j.after_changes[r.after] as written_by,  -- an undo of an undo leaves the very image that there was
      o.change, r.segments, r.nothing,
      -- A row that is to have another key again takes along what it says by now: not what it said then.
      r.stranger or o.re_keyed and j.pattern[r.after][5] <> j.pattern[r.steps[cardinality(r.steps)]][5] as stranger,
      case when not r.stranger and (r.inexact or (-r.before, r.after) is distinct from (r.steps[1], r.steps[cardinality(r.steps)])
          and not r.whole) then (
        select jsonb_agg(jsonb_build_array(j.befores[k], j.before_changes[k], j.afters[k], j.after_changes[k]))
        from unnest(r.steps) k having bool_and(j.befores[k] is not null and j.afters[k] is not null)) end as steps,
      o.re_keyed, o.at, d.id in (select id from log_torn) as torn
    from doubt d join journal j using (id) join replayed r using (id) join own_part o using (id)
    where r.concerned or d.id in (select id from log_torn)),
  aimed as (
    select {{keys}}, before, after, before_change, after_change, after_change as written_by, change, segments, versions, nothing, at, null::jsonb as steps, torn, false as in_doubt, false as stranger, false as overtaken,
      (before is null) <> (after is null) and exists (select from turnover where {{turnover_net}}) as moved
    from net where not exists (select from doubt where {{doubt_net}})
    union all
    select {{keys}}, before, after, before_change, after_change, written_by, change, segments, null, coalesce(nothing, false), at,
      case when before is not null and after is not null then steps end, torn, true, coalesce(stranger, false), not stranger and nothing and segments = 1,
      re_keyed and (before is null) <> (after is null)
    from cleared where before is not null or after is not null or segments > 1 or torn),
  known as (
    select change, version, filenode from change
    union
    select f.change, f.xmin::text::bigint, f.filenode from agentundo._change f where f.change in (select written_by from cleared) and f.tracked = $9[4]::int)$sql$ $body$;

-- Without a doubt.
create or replace function agentundo._no_journals_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
  aimed as (
    select *, after_change as written_by, null::jsonb as steps, false as in_doubt, false as stranger, false as overtaken,
      (before is null) <> (after is null) and exists (select from turnover where {{turnover_net}}) as moved
    from net),
  known as (select change, version, filenode from change)$sql$ $body$;

-- The row as it is now, and whether anybody who stands has written it since. For the verdict: `judged`.
create or replace function agentundo._look_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select $sql$,
{{deleted_since}}),
  later as (   -- written again by another invocation of the same transaction, which xmin cannot tell
    select {{image_keys}} from foreigner f join {{history}} h on h._change = f.source join image i on i.xid = f.xid and {{of_image}}
    group by {{image_keys}} having max(f.change) > max(i.change)),
  compared as (
    select n.*, r.tableoid as part, r.ctid as cur, r.xmin::text::bigint as version, ac.version as own_version, a.matches,
      coalesce(n.written_by, n.change) <= $9[1] or n.change > $9[2] and r.ctid is not null and coalesce({{rewritten}}, false) as by_value,
      not n.in_doubt and l.{{first_key}} is not null as written_again,
      case when n.in_doubt then n.stranger else coalesce(x.change > n.change, false) end as gone_since
    from aimed n
    left join {{lookup}} r on {{in_table}}
    left join later l on {{later_net}}
    left join (select max(change) as change, {{keys}} from deleted_since group by {{keys}}) x on {{deleted_net}}
    left join known ac on ac.change = n.written_by
    left join lateral (select case when coalesce(n.written_by, n.change) <= $9[1] or n.change > $9[2] and {{rewritten}}
        then {{after_by_value}} operator(pg_catalog.*=) {{row_by_value}} else {{after}} operator(pg_catalog.*=) {{row}} end as matches
      from {{history}} h where h.ctid = n.after and r.ctid is not null offset 0) a on true),
  suspect as materialized (   -- versions are lost: who wrote since?
    select {{keys}} from compared where by_value and matches and not in_doubt),
  stranger as materialized (
    select max(f.change) as change, {{h_keys}}
    from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change)
    where f.tracked = $9[4]::int and f.change > (select min(change) from change) and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and exists (select from suspect)
    group by {{h_keys}}),
  judged as materialized (
    select c.*, matches and not written_again and not c.stranger and case when by_value then s.change is null else version = own_version or version = any (versions) end as untouched
    from compared c
    left join stranger s on {{stranger_compared}} and s.change > c.change)$sql$ $body$;

create or replace function agentundo._net_keyed_sql(t agentundo._tracked, lookup text, begins bigint) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with key as (
    select agentundo._same_key(t.id, 'agentundo_one', 'agentundo_other') as same, agentundo._key_list(t.id, 'agentundo_one') as list,
      (select string_agg(quote_ident(k.history_column), ', ' order by k.place) from agentundo._key(t.id) k) as names,
      (select quote_ident(k.history_column) from agentundo._key(t.id) k where k.place = 1) as first_name),
  same_key as (   -- the same condition for many pairs of names
    select jsonb_object_agg(p.piece, replace(replace(key.same, 'agentundo_one.', p.one || '.'), 'agentundo_other.', p.other || '.')) as pieces
    from key cross join (values
      ('same_chain', 'i', 'c'), ('of_chain', 'h', 'c'), ('of_image', 'h', 'i'), ('of_doubt', 'h', 'd'), ('doubt_net', 'doubt', 'net'), ('turnover_net', 'turnover', 'net'),
      ('later_net', 'l', 'n'), ('deleted_net', 'x', 'n'), ('stranger_compared', 's', 'c')) p (piece, one, other))
  select agentundo._net_head(t)
    || agentundo._fill(
      agentundo._chains_sql() || case when begins is not null then agentundo._journals_sql() else agentundo._no_journals_sql() end || agentundo._look_sql(),
      same_key.pieces || jsonb_build_object(
      'history', agentundo._history(t), 'lookup', lookup, 'keys', key.names, 'first_key', key.first_name,
      'h_keys', replace(key.list, 'agentundo_one.', 'h.'), 'image_keys', replace(key.list, 'agentundo_one.', 'i.'), 'in_table', agentundo._has_key(t.id, 'r', 'n'),
      'image', agentundo._image_row(t.id, 'h', 'i.change'), 'logged_image', agentundo._image_row(t.id, 'h', 'l.change'), 'logged_start', agentundo._image_row(t.id, 'h', 'l.change', up_to => begins),
      'sums', (exists (select from agentundo._merge_rule m where m.tracked = t.id and m.rule = 'delta'))::text,
      'cells', ranked.cells, 'ranked', ranked.joins,
      'late', (select max(c.since_change) from agentundo._columns(t.id) c where c.live)::text,
      'after', agentundo._image_row(t.id, 'h', 'n.after_change', 'r'), 'after_by_value', agentundo._image_row(t.id, 'h', 'n.after_change', 'r', true),
      'row', agentundo._table_row(t.id, 'r'), 'row_by_value', agentundo._table_row(t.id, 'r', true), 'rewritten', agentundo._rewritten_sql(t, 'ac'),
      'deleted_since', agentundo._deleted_since_sql(t), 'stranger', agentundo._stranger_sql('f')))
    || agentundo._verdict_sql(t)
  from key, same_key, (   -- no query has room for the ranks of all columns of the widest tables
    select string_agg(format('r%s.cells', part), ' || ' order by part) as cells,
      string_agg(format('join (select m.id, m.says, array[%2$s] as cells from spread m join %3$s h on h.ctid = m.tid) r%1$s using (id, says)', part, ranks, agentundo._history(t)), ' ' order by part) as joins
    from (
      select i.attnum / 400 as part, string_agg(format('dense_rank() over (partition by m.id order by row(%s)::record using operator(pg_catalog.*<))', i.value), ', ' order by i.attnum) as ranks
      from agentundo._image_columns(t.id, 'h', 'm.change') i group by i.attnum / 400) part) ranked
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
      v.by_value,
      case when v.by_value
        then not exists (   -- versions are lost: has anybody captured left such a row since?
          select from agentundo._change f join %1$s g on g._change = coalesce(f.source, f.change) and (g._image = 'N') <> f.inverted
          where f.tracked = $9[4]::int and f.change > y.after_change and f.change <> all ($6) and f.change <> all ($7) and %10$s
            and %11$s operator(pg_catalog.*=) %5$s)
        else r.xmin::text::bigint in (select c.xmin::text::bigint from agentundo._change c where c.change = any (y.written_by))
          or r.xmin::text::bigint in (%6$s) end as untouched
    from tally y join %1$s h on h.ctid = y.after join %3$s r on %4$s operator(pg_catalog.*=) %5$s
    cross join lateral (select y.after_change <= $9[1]
      or y.after_change > $9[2] and exists (select from agentundo._change c where c.change = y.after_change and %7$s)) v (by_value)
    where y.surplus > 0),
  placed as (
    select says, part, cur, by_value, untouched, row_number() over (partition by says order by untouched desc, part, cur) as place from candidate)
  select $9[4]::int, y.change, p.part, p.cur, null::tid, y.after, null::bigint, y.after_change,
    case when p.cur is null then 'none' else 'delete' end,
    case when p.cur is null and n.place > y.surplus - y.gone then 'done' when p.cur is null or not p.untouched or %8$s then 'conflict' else 'ok' end,
    case when p.cur is null then case when n.place <= y.surplus - y.gone then case when %8$s then 'schema_changed' else 'row_changed' end end
      when %8$s then 'schema_changed' when not p.untouched then 'row_rewritten' end,
    case when coalesce(p.by_value, y.after_change <= $9[1]) then 'value' else 'version' end, null::text[], null::jsonb, case when y.moved then 'moved' end, null::jsonb
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
    agentundo._rewritten_sql(t, 'c'), agentundo._retyped(t.id, 'y.after_change', 'y.after_change'), concat_ws(' or ', agentundo._retyped(t.id, 'y.before_change', 'y.before_change'), agentundo._unlabelled(t)),
    agentundo._stranger_sql('f'), agentundo._image_row(t.id, 'g', 'f.change', 'r'))
$body$;
