-- 13  Replay: one row's journal, played again as it was and without the set
--
-- Where somebody else has undone or redone something in a row, its images in the order of writing do not tell any
-- more what an undo has to leave. So all that was written to the row, undos among it, is its journal
-- (14_chains.sql), and here it is played: who stands after all undos, and what would the row be if the set had
-- never been? The rule: a row is what the last one who stands has left of it. Where an undo has left something
-- that no writer's image has (by merge, by force), the rule holds for each column by itself.
--
-- All functions here are pure: they know numbers for what images and columns say, and look at no table.

-- Which image counts where these stand: the after of the last of them up to an entry or, negative, the before of an entry
-- that followed on somebody who was not captured; the very first before, if nobody stands. Where nobody who stands
-- has made the row, what others have changed in it is nothing; whoever changed it after it was deleted has it.
create or replace function agentundo._last_standing(pattern bigint[], stands boolean[], gaps boolean[], first int, upto int) returns int
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
declare
  last int;
begin
  for i in reverse upto..1 loop
    if stands[i] and pattern[i][2] >= 0 then
      last := coalesce(last, i);
      if pattern[i][4] = 0 or pattern[i][5] = 0 then
        return last;
      end if;
    end if;
    if gaps[i] then
      return case when pattern[i][4] = 0 then -i else coalesce(last, -i) end;
    end if;
  end loop;
  return case when pattern[first][4] = 0 then -first else coalesce(last, -first) end;
end
$body$;

create or replace function agentundo._said(pattern bigint[], image int) returns bigint
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select case when image > 0 then pattern[image][5] else pattern[-image][4] end $body$;

-- What one image says, column by column.
create or replace function agentundo._cells_of(cells bigint[], says bigint) returns bigint[]
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select case when says > 0 then array(select c from unnest(cells[says:says]) c) end $body$;

-- The row that those who stand have left up to an entry: in each column what the last of them has set it to, and what
-- was there before where none has. Null: no row.
create or replace function agentundo._composed(pattern bigint[], cells bigint[], stands boolean[], gaps boolean[], first int, upto int) returns bigint[]
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
declare
  composed bigint[] := array_fill(null::bigint, array[array_length(cells, 2)]);
  base bigint := pattern[first][4];
  changed boolean := false;
begin
  for i in reverse upto..1 loop
    if stands[i] and pattern[i][2] >= 0 then
      if pattern[i][5] = 0 then  -- deleted
        base := case when changed then base else 0 end;
        exit;
      end if;
      changed := true;
      for c in 1..array_length(cells, 2) loop
        if composed[c] is null and (pattern[i][4] = 0 or cells[pattern[i][4]][c] <> cells[pattern[i][5]][c]) then
          composed[c] := cells[pattern[i][5]][c];
        end if;
      end loop;
      base := pattern[i][4];
      if base = 0 then  -- made
        return composed;
      end if;
    end if;
    if gaps[i] or i = first then
      base := pattern[i][4];
      exit;
    end if;
  end loop;
  return case when base > 0 then array(select coalesce(composed[c], cells[base][c]) from generate_series(1, array_length(cells, 2)) c order by c) end;
end
$body$;

-- An image of these that says so in the columns of interest: its entry, the last one; negative for its before.
create or replace function agentundo._image_saying(pattern bigint[], cells bigint[], wanted bigint[], columns boolean[]) returns int
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
declare
  said bigint[];
begin
  for i in reverse array_length(pattern, 1)..1 loop
    for side in reverse 5..4 loop
      said := agentundo._cells_of(cells, pattern[i][side]);
      if pattern[i][2] >= 0 and (wanted is null) = (said is null)
        and not exists (select from generate_series(1, array_length(cells, 2)) c where (columns is null or columns[c]) and wanted[c] <> said[c]) then
        return case side when 5 then i else -i end;
      end if;
    end loop;
  end loop;
  return null;
end
$body$;

-- Lets an entry stand or not. What an undo had left of its own, when it made that otherwise, falls with it.
create or replace function agentundo._flip(this int, entry int, up boolean, inout stands boolean[], inout flips int[])
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
declare
  undo int;
begin
  for k in 1..coalesce(array_length(flips, 1), 0) loop
    undo := flips[k][1];
    if flips[k][2] = entry and flips[k][3] = (not up)::int and undo <> entry and stands[undo] then
      stands[undo] := false;
      flips := flips || array[[this, undo, 0]];
    end if;
  end loop;
  stands[entry] := up;
  flips := flips || array[[this, entry, up::int]];
end
$body$;

-- Takes back, among the entries before number `this`, what an undo is about: `flips` gets (undo, entry, does it stand then).
create or replace function agentundo._take_back(
  this int, undoes jsonb[], invocation text[], inout stands boolean[], inout flips int[])
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
declare
  known constant int := coalesce(array_length(flips, 1), 0);
  f record;
begin
  for i in reverse this - 1..1 loop
    continue when not undoes[this] ? invocation[i];
    if undoes[i] is null and stands[i] then
      select * into f from agentundo._flip(this, i, false, stands, flips);
      stands := f.stands;
      flips := f.flips;
    elsif undoes[i] is not null then
      for k in 1..known loop
        if flips[k][1] = i and stands[flips[k][2]] = (flips[k][3] = 1) then
          select * into f from agentundo._flip(this, flips[k][2], flips[k][3] = 0, stands, flips);
          stands := f.stands;
          flips := f.flips;
        end if;
      end loop;
    end if;
  end loop;
end
$body$;

-- A row's journal, played again. `pattern` has (number, what the row said before, what after, and both again
-- without columns that came since the journal begins) for each step of each invocation, in order. 0 is absence; an
-- undo that stands for the row without having written it has -1. Where somebody wrote without being captured there
-- is a gap: an entry begins with something else than the one before it has left.
--
-- An undo takes back those entries of its invocations that stand; to undo an undo lets them stand again. Where an
-- undo has left something else than whoever stands last (by merge, by force), that is an entry of its own.
--
-- Images are answered as the number of an entry: its after or, negative, its before.
create or replace function agentundo._replay(
  pattern bigint[],
  invocation text[],       -- whose each entry is,
  undoes jsonb[],          -- of undos: what they take back,
  mine boolean[],          -- whether it is of the set,
  kin boolean[],           -- or of an undo or redo of members of the set
  sums boolean,            -- are there columns that add up? What an undo has left in these is no single writer's
  late bigint,             -- the last change before a column came
  cells bigint[],          -- what each image says in each column; null to replay whole rows
  out concerned boolean,   -- has the set a part in what the row is now?
  out before int,          -- the image that the row goes back to
  out after int,           -- the image that it is now, unless somebody has written since who was not captured
  out steps int[],         -- the set's own entries in its last turn
  out segments bigint,     -- in how many turns, between others' writes, the set wrote
  out nothing boolean,     -- do the two images say the same?
  out stranger boolean,    -- has somebody else written since, who stands? Then they are those of the set's own last turn
  out entangled boolean,   -- has an undo left something that no image of a writer has? Then columns tell more
  out inexact boolean,     -- does the image that the row goes back to tell the truth of the set's own columns alone?
  out whole boolean)       -- or of the whole row, whoever has been undone since: it is as its maker has made it
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  n constant int := array_length(pattern, 1);
  own constant boolean[] := mine;
  stands boolean[] := array_fill(false, array[n]);   -- for writes: not undone
  gaps boolean[] := array_fill(false, array[n]);
  flips int[] := array[]::int[];
  state bigint;
  first int;                                         -- the first entry that tells what the row was,
  last int;                                          -- and the last
  latest int;                                        -- the image of whoever stands last without the set
  known int;                                         -- how many flips there are
  begins int;                                        -- the first entry of the set
  turn int;                                          -- where its last turn begins,
  ends int;                                          -- and ends
  others boolean := false;                           -- has somebody else written after the turn that is looked at?
  row_left bigint[];                                 -- what the row says without the set
  changed boolean[];                                 -- the set's own columns
begin
  for i in 1..n loop
    if pattern[i][2] >= 0 then
      gaps[i] := coalesce(state <> pattern[i][4], false);
      first := coalesce(first, i);
      last := i;
      state := pattern[i][5];
    end if;
    if undoes[i] is null then
      stands[i] := true;
      continue;
    end if;
    select t.stands, t.flips into stands, flips from agentundo._take_back(i, undoes, invocation, stands, flips) t;
    if pattern[i][2] >= 0 then
      stands[i] := case when cells is null then agentundo._said(pattern, agentundo._last_standing(pattern, stands, gaps, first, i)) <> state
        else agentundo._composed(pattern, cells, stands, gaps, first, i) is distinct from agentundo._cells_of(cells, state) end;
      entangled := coalesce(entangled, false) or stands[i];
      flips := case when stands[i] then flips || array[[i, i, 1]] else flips end;
    end if;
  end loop;

  -- What of the set still counts: writes that stand, undos of which anything holds. What redos of them have left of
  -- their own belongs to it, in place of what they did again; what undos have, if they took back nothing that is
  -- older than the set.
  known := coalesce(array_length(flips, 1), 0);
  for i in 1..n loop
    mine[i] := mine[i] and case when undoes[i] is null then stands[i]
      else exists (select from generate_series(1, known) k where flips[k][1] = i and stands[flips[k][2]] = (flips[k][3] = 1)) end;
    concerned := coalesce(concerned, false) or mine[i];
    begins := case when mine[i] then coalesce(begins, i) else begins end;
  end loop;
  for i in 1..n loop
    continue when sums or not (kin[i] and stands[i] and undoes[i] is not null)
      or exists (select from generate_series(1, known) k where flips[k][1] = i and flips[k][2] < begins and flips[k][3] = 0);
    mine[i] := true;
    for k in 1..known loop
      if flips[k][1] = i and flips[k][3] = 1 and flips[k][2] <> i then
        mine[flips[k][2]] := false;
      end if;
    end loop;
  end loop;
  select max(i) into ends from generate_series(1, n) i where mine[i];
  if not concerned then
    return;
  end if;
  segments := 1;
  for i in reverse ends..1 loop
    if mine[i] then
      segments := segments + others::int;
      others := false;
      turn := case when segments = 1 then i else turn end;
    else
      others := others or stands[i];
    end if;
    others := others or gaps[i];
  end loop;
  stranger := exists (select from generate_series(ends + 1, n) k where stands[k] or gaps[k]);
  for i in reverse ends..turn loop
    continue when not mine[i];
    if kin[i] and not own[i] then
      for k in 1..known loop
        if flips[k][1] = i and flips[k][3] = 1 and own[flips[k][2]] and stands[flips[k][2]] then
          select f.stands, f.flips into stands, flips from agentundo._flip(n + 1, flips[k][2], false, stands, flips) f;
        end if;
      end loop;
      stands[i] := false;
    elsif undoes[i] is null then
      select f.stands, f.flips into stands, flips from agentundo._flip(n + 1, i, false, stands, flips) f;
    else
      for k in 1..known loop
        if flips[k][1] = i and stands[flips[k][2]] = (flips[k][3] = 1) then
          select f.stands, f.flips into stands, flips from agentundo._flip(n + 1, flips[k][2], flips[k][3] = 0, stands, flips) f;
        end if;
      end loop;
    end if;
  end loop;
  -- Whoever has made a row of this key, where by now another one stands that nobody who stands has removed, cannot have it.
  for i in reverse n..1 loop
    exit when stands[i] and pattern[i][5] = 0 or gaps[i];
    if stands[i] and pattern[i][4] = 0 then
      stranger := stranger or agentundo._said(pattern, agentundo._last_standing(pattern, stands, gaps, first, i - 1)) > 0;
      exit;
    end if;
  end loop;
  latest := agentundo._last_standing(pattern, stands, gaps, first, n);
  whole := latest > 0 and pattern[greatest(latest, 1)][4] = 0;
  if cells is not null then
    select array_agg((
        select bool_or(pattern[k][4] = 0 or pattern[k][5] = 0 or cells[pattern[k][4]][c] <> cells[pattern[k][5]][c])
        from generate_series(turn, ends) k where mine[k] and pattern[k][2] >= 0) order by c)
      into changed from generate_series(1, array_length(cells, 2)) c;
  end if;
  if not stranger and cells is not null then
    row_left := agentundo._composed(pattern, cells, stands, gaps, first, n);
    before := agentundo._image_saying(pattern, cells, row_left, null);
    if before is null then
      before := agentundo._image_saying(pattern, cells, row_left, changed);
      inexact := true;
      whole := false;
    end if;
    after := last;
    nothing := row_left is not distinct from agentundo._cells_of(cells, pattern[last][5]);
    stranger := before is null;  -- put together from several images: nothing can be put back but column by column
  elsif not stranger then
    before := latest;
    -- The same, but it knows more columns; or that image was made when others stood than do now, and is not the whole
    -- row any more: of the columns that the set has changed this tells what had been there. Not if it is of somebody
    -- who wrote after what is to stand again.
    if agentundo._said(pattern, before) = agentundo._said(pattern, -turn)
      or agentundo._said(pattern, before) > 0 and agentundo._said(pattern, -turn) > 0
        and exists (
          select from generate_series(1, abs(before) - 1) e
          where pattern[e][4] <> pattern[e][5] and stands[e] is distinct from coalesce(
            (select flips[k][3] = 1 from generate_series(1, known) k where flips[k][2] = e and flips[k][1] <= abs(before) order by k desc limit 1),
            undoes[e] is null))
        and not coalesce((
          select min(flips[k][2]) < abs(before) and not bool_or(flips[k][2] = before)
          from generate_series(known + 1, array_length(flips, 1)) k where flips[k][3] = 1), false) then
      before := -turn;
    end if;
    after := last;
    nothing := agentundo._said(pattern, before) = agentundo._said(pattern, after)
      and (case when before > 0 then pattern[before][3] else pattern[-before][2] end = pattern[after][3]
        or least(pattern[abs(before)][1], pattern[after][1]) <= late);
  end if;
  steps := array(select k from generate_series(turn, ends) k where mine[k] and pattern[k][2] >= 0 order by k);
  if stranger or nothing and segments = 1 then
    before := -turn;
    if stranger and cells is null then
      if agentundo._said(pattern, agentundo._last_standing(pattern, stands, gaps, first, turn - 1)) = 0 then
        before := null;  -- whoever had made the row is undone: it is not to come back
      end if;
    elsif stranger then
      row_left := agentundo._composed(pattern, cells, stands, gaps, first, turn - 1);  -- what the turn had found may be of others who are undone
      before := case
        when row_left is null then null
        when exists (select from generate_series(1, array_length(cells, 2)) c where changed[c] and row_left[c] <> cells[pattern[turn][4]][c])
          then coalesce(agentundo._image_saying(pattern, cells, row_left, changed), -turn)
        else -turn end;
    end if;
    after := coalesce(steps[cardinality(steps)], ends);
  end if;
end
$body$;
