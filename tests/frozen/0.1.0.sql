-- pyagentundo 0.1.0: undo for what AI agents write to a PostgreSQL database (14 or later).
-- Run it in one database, once:  psql -X -v ON_ERROR_STOP=1 -d DATABASE -f agentundo.sql
-- It is one transaction: everything below is there afterwards, or nothing.
-- Locks:   an advisory lock against a second installer; no table of yours is locked or changed
--          before you call agentundo.track(); lock_timeout is 3 s.
-- Creates: schemas agentundo and agentundo_history, event triggers, NOLOGIN roles agentundo_* (two
--          with BYPASSRLS); what you may not create is left out, and a NOTICE says so.
-- Grants:  none on your tables now; track() lets agentundo_worker read and write a table and makes
--          a SECURITY DEFINER function in its owner's name. The rest belongs to agentundo_owner.
-- Undo:    agentundo uninstall, or sql/uninstall.sql. Roles stay: other databases may use them.

begin isolation level read committed read write;
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = notice;
set local standard_conforming_strings = on;
set local statement_timeout = 0;
set local lock_timeout = 0;
select pg_catalog.pg_advisory_xact_lock(7018699990745637999);
set local lock_timeout = '3s';
do $agentundo$
begin
  if current_setting('server_version_num')::int < 140000 then
    raise exception 'agentundo needs PostgreSQL 14 or later, this is %',
      current_setting('server_version');
  end if;
  if to_regclass('agentundo._home') is not null then
    raise exception 'agentundo is installed in this database already'
      using hint = 'agentundo upgrade brings it up to date.';
  end if;
end
$agentundo$;

-- ==== 01_schema.sql ====

-- 01  Schemas and roles
--
-- What lives here: the two schemas and the roles. Everything of ours is in `agentundo` (functions,
-- views, our own tables; private names begin with an underscore) or in `agentundo_history` (one
-- table of row images per tracked table). Outside of these two schemas we own triggers, where
-- possible two event triggers, and the roles below.
--
-- Ownership: all of it belongs to `agentundo_owner`, a role that cannot log in and is never a
-- superuser. What only a table's owner may do (put our triggers on, switch a trigger off and on
-- again) is done by one small function per table owner (05_deputies.sql).
--
-- Code of other people runs while a revert restores a row: CHECK constraints, index expressions,
-- defaults, generated columns, casts. It runs as `agentundo_worker`, a role without login that may
-- read and write tracked tables and read their history, and owns nothing but the two functions that
-- act for it (11_guard.sql). So whoever owns a tracked table gets at other tracked tables through it
-- at most, never at our own functions, guards and records. agentundo_owner is a member of it, not the
-- other way round.
--
-- Where the installing role may not create roles, everything belongs to the installing role instead
-- and a NOTICE says so.
--
-- The marker roles carry rights, nobody logs in as one of them: grant them to your roles.
--   agentundo_app       may record, tag, plan and revert for its users, within a scope
--   agentundo_agent     its members are captured in every transaction, tag or no tag
--   agentundo_operator  may plan, revert and redo anywhere
--   agentundo_approver  decides on approvals
--   agentundo_auditor   may read everything, change nothing

-- What others have put into the search_path of whoever installs must not run with his rights.
set local search_path = pg_catalog, pg_temp;

do $body$
declare
  marker text;
  missing text[] := '{}';
begin
  foreach marker in array array['agentundo_owner', 'agentundo_worker', 'agentundo_app', 'agentundo_agent',
                                'agentundo_operator', 'agentundo_approver', 'agentundo_auditor'] loop
    begin
      if to_regrole(marker) is null then
        execute format('create role %I nologin', marker);
      end if;
    exception
      when duplicate_object or unique_violation then null;  -- another database's installer was faster
      when insufficient_privilege then missing := missing || marker;
    end;
  end loop;
  if missing <> '{}' then
    raise notice 'agentundo: % may not create roles; left out: %', current_user, array_to_string(missing, ', ')
      using hint = 'A role with CREATEROLE can create them and run "agentundo upgrade" later.';
  end if;

  if to_regrole('agentundo_owner') is not null then
    -- On 16 and later the creator of a role is not a member of it by itself.
    if not pg_has_role(current_user, 'agentundo_owner', 'usage') then
      begin
        execute format('grant agentundo_owner to %I', current_user);
      exception when insufficient_privilege then null;
      end;
    end if;
    begin
      if to_regrole('agentundo_worker') is not null and not pg_has_role('agentundo_owner', 'agentundo_worker', 'usage') then
        grant agentundo_worker to agentundo_owner;
      end if;
    exception
      when unique_violation then null;  -- another database's installer was faster
      when insufficient_privilege then
      raise notice 'agentundo: % may not make agentundo_owner a member of agentundo_worker; other people''s constraints will run as agentundo_owner', current_user
        using hint = 'A superuser can run "grant agentundo_worker to agentundo_owner" and then "agentundo upgrade".';
    end;
    -- Row-level security must hide nothing from capture and revert. Only a superuser can give this;
    -- without it, tables with row-level security are refused by track().
    foreach marker in array array['agentundo_owner', 'agentundo_worker'] loop
      begin
        if exists (select from pg_roles where rolname = marker and not rolbypassrls) then
          execute format('alter role %I bypassrls', marker);
        end if;
      exception when insufficient_privilege then
        raise notice 'agentundo: % could not be given BYPASSRLS; tables with row-level security cannot be tracked', marker;
      end;
    end loop;
  end if;
end
$body$;

do $body$
begin
  if to_regrole('agentundo_owner') is null or not pg_has_role(current_user, 'agentundo_owner', 'member') then
    create schema if not exists agentundo;
    create schema if not exists agentundo_history;
    if to_regrole('agentundo_owner') is not null then
      raise notice 'agentundo: % is no member of agentundo_owner, so everything belongs to % itself', current_user, current_user
        using hint = 'Other people''s constraints will run with the rights of this role. Better let a superuser install.';
    end if;
  else
    create schema if not exists agentundo authorization agentundo_owner;
    create schema if not exists agentundo_history authorization agentundo_owner;
  end if;
  -- From here to the last file, work as the owner of the schema: what is created belongs to it.
  execute format('set local role %I', (select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'agentundo'));
end
$body$;

-- An upgrade makes private functions anew, whatever they returned before and whatever their arguments were
-- called; those that no longer exist go. Not those that something hangs on (triggers, views), nor what
-- capture calls, whose sessions would look for it in vain: they are replaced. Public functions keep the
-- grants that were made on them.
do $body$
declare
  private regprocedure;
begin
  perform set_config('agentundo.internal', 'on', true);  -- our event triggers have nothing to follow here
  for private in
    select p.oid from pg_proc p
    where p.pronamespace = 'agentundo'::regnamespace and p.proname like '\_%'
      and not exists (select from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid)
      and not exists (select from pg_trigger g where g.tgfoid = p.oid)
      and not exists (select from pg_event_trigger e where e.evtfoid = p.oid)
      and not exists (
        select from pg_proc c
        where c.pronamespace = p.pronamespace and c.proname like '\_capture\_%' and position(p.proname in c.prosrc) > 0)
  loop
    execute format('drop function %s', private);
  end loop;
end
$body$;

comment on schema agentundo is
  'pyagentundo: takes back what an agent wrote, never anybody''s later edits. Start with agentundo.tag(), agentundo.plan() and agentundo.revert().';
comment on schema agentundo_history is
  'pyagentundo: row images of tracked tables. They hold old personal data: guard them like the tables themselves.';

-- ==== 02_tables.sql ====

-- 02  Our own tables and types (created once; later changes to them are migrations)
--
-- The way of the data, top to bottom: a session tags itself (03); a statement on a tracked table (04 to 07)
-- is captured (08) as one row in `_change` and its row images in a table of `agentundo_history`, read
-- through 09 and 10; a plan (12 to 16) reads both, a revert (17, 18) acts on the plan and writes changes of
-- its own. Who may do what stands in 11, what is told of invocations in 19, upkeep in 20.
--
-- Life cycle: `_change` and the images are only ever inserted and, after the retention, deleted by
-- purge(); nothing updates a change row, because its xmin is the version of the rows it tells of
-- (see `_change`). Whether a change has been taken back stands beside it, in `_reverted`.
--
-- Lock order, everywhere: rows of `_invocation` by id, then tables by oid, each before its history,
-- then their rows by key.

create table agentundo._home (
  only_row       boolean primary key default true check (only_row),
  schema_version int not null,
  min_client     text not null,
  installed_at   timestamptz not null default now()
);
comment on table agentundo._home is 'One row: the version of this schema, and the oldest client that works with it.';

-- A logical copy (pg_dump and pg_restore) gives all rows new xmins, tables and history alike the
-- same one, and would make every row look untouched. A physical one (base backup, failover,
-- pg_upgrade) keeps them. The row below stores its own xmin as data: while the two agree, xmins in
-- this database mean what they meant when they were written. When they differ, images are compared
-- instead (basis `value`) for all changes up to `trusted_after`, which sync() sets when it stamps anew.
-- Young servers count from nearly the same number: so the table's own number has to agree as well, which
-- only a physical copy keeps.
create table agentundo._stamp (
  only_row      boolean primary key default true check (only_row),
  own_xmin      bigint not null default 0,
  own_table     bigint not null default 0,
  node          text not null default pg_catalog.right(pg_catalog.gen_random_uuid()::text, 12),
  trusted_after bigint not null default 0
);

insert into agentundo._home (schema_version, min_client) values (1, '0.1.0');
insert into agentundo._stamp default values;
update agentundo._stamp set own_xmin = xmin::text::bigint, own_table = tableoid::bigint;

-- Tracking ---------------------------------------------------------------------------------------

create table agentundo._tracked (
  id           int generated by default as identity primary key,
  relation     regclass unique,                   -- the table, or the root of its partitions; null once dropped
  name         text not null,                     -- as of the last sync: what we call it once it is gone
  kind         text not null check (kind in ('plain', 'partitioned', 'inherited')),
  capture      text not null check (capture in ('agent', 'all')),
  history      regclass not null,
  key_columns  smallint[] not null,               -- attribute numbers; empty: the whole row is the key
  key_since    bigint not null default 0,         -- changes up to this number were made under another key, or none
  generated    smallint[] not null default '{}',  -- attribute numbers of columns that are computed, and so not captured
  all_since    bigint,                            -- every change after this number is captured; null with capture = 'agent'
  active       boolean not null default true,     -- false: untracked, history kept
  part_of      int,                               -- or part of this other tracked table, as long as it is one
  since        timestamptz not null default now()
);
comment on table agentundo._tracked is 'Tracked tables, one row each; a partition tree is one tracked table.';

-- Counted up by undos, which go one after the other in each table. A table of its own: nobody else waits for it.
create table agentundo._turn (
  tracked int primary key,
  turn    bigint not null default 1
);

-- Every relation that carries our triggers: the table itself and every level below it. A statement
-- fires only the triggers of the relation that it names, so every level needs its own.
create table agentundo._member (
  id       int generated by default as identity primary key,
  relation regclass not null unique,
  tracked  int not null references agentundo._tracked on delete cascade,
  shape    text not null,                         -- fingerprint of its columns when its function was made
  emptied  bigint not null default 0,             -- the last change number when it was truncated: older rows are gone
  filenode oid,                                   -- its storage when last seen (changes of partitions do not know it); null: emptied since
  rewritten bigint not null default 0             -- the last change number when it was seen to be another
);
create index on agentundo._member (tracked);

-- Which history column holds which column of the table. Append-only: a column that changes its type
-- continues in a new history column and nothing is rewritten. Followed by attribute number; the name
-- is what it was called last, and what a restored dump (other attribute numbers) is matched by.
create table agentundo._column (
  tracked        int not null references agentundo._tracked on delete cascade,
  history_column name not null,
  attnum         smallint not null,
  name           name not null,
  type           text not null,                   -- as stored in history: no modifier, no domain, no enum
  since_change   bigint not null default 0,       -- images of earlier changes do not have it
  until_change   bigint,                          -- set when the column was dropped or retyped
  computed       boolean not null default false,  -- images of before say nothing of it: it was generated, or each value made anew
  primary key (tracked, history_column)
);

-- What the labels of enum columns were called, and when, so that a renamed label finds its way back.
-- A label keeps its number when it is renamed; history keeps the text.
create table agentundo._label (
  tracked      int not null references agentundo._tracked on delete cascade,
  attnum       smallint not null,
  enum         bigint not null,                   -- the type's number: another one has labels of its own
  label        text not null,
  place        bigint not null,                   -- its number in pg_enum; 0: the type that came since has no such label
  since_change bigint not null default 0,
  until_change bigint,                            -- set when it was renamed
  primary key (tracked, attnum, label, since_change)
);

-- Former partitions that stand on their own: rows of theirs are not gone, although the tracked table has them no more.
create table agentundo._detached (
  relation regclass primary key,
  tracked  int not null references agentundo._tracked on delete cascade
);

create table agentundo._schema_rule (
  schema_name name primary key,                   -- tables created here later are tracked too
  capture     text not null check (capture in ('agent', 'all'))
);

create table agentundo._merge_rule (
  tracked int not null references agentundo._tracked on delete cascade,
  attnum  smallint not null,
  name    name not null,
  rule    text not null check (rule in ('delta')),
  primary key (tracked, attnum)
);

create table agentundo._trigger_rule (
  tracked int not null references agentundo._tracked on delete cascade,
  trigger name not null,
  rule    text not null check (rule in ('fire', 'silence')),
  primary key (tracked, trigger)
);

-- Invocations --------------------------------------------------------------------------------------

-- Recorded invocations, and those that a revert had to lock. An invocation that was only tagged has
-- no row here: it is known by its changes.
create table agentundo._invocation (
  id           text primary key check (id <> '' and octet_length(id) <= 255),
  run          text,
  step         int check (step >= 1),
  scope        text,
  actor        text,
  on_behalf_of text,
  role         name,
  tool         text,
  tier         text check (tier in ('critical', 'high', 'medium', 'low')),
  model        text,
  status       text not null default 'committed' check (status in ('pending', 'failed', 'committed')),
  recorded     boolean not null default false,
  input        jsonb,
  result       jsonb,
  error        text,
  meta         jsonb,
  uncovered    text[],                            -- tables written under it that are not tracked
  created_at   timestamptz not null default now(),
  committed_at timestamptz,
  purged_at    timestamptz,                       -- its images are gone: UN011
  held         text,                              -- why purge() must leave it alone
  reverts      int not null default 0             -- counted up so that an older snapshot cannot miss one
);
create unique index on agentundo._invocation (run, step);
create index on agentundo._invocation (created_at);
create index on agentundo._invocation (scope, created_at);

create sequence agentundo._change_number cache 1;   -- row locks order the changes of a key; a cache would not

-- One statement's effect on one table. Written by the capture trigger after the images, in the same
-- (sub)transaction as the rows themselves, so xmin of this row = xmin of the rows the statement left:
-- that equality, free of charge, is the row version. Therefore nothing may update a change row, and
-- no capture function may contain an EXCEPTION block.
--
-- A revert's own changes do not store images again: `source` names the change that holds them, and
-- `inverted` says that before and after are exchanged.
--
-- A revert that has to take away a row which is gone already, or may not bring one back, writes no row; but
-- that it stands for this row, too, has to be known to whoever undoes the other half. That is a change which
-- is `void`: images of rows that nobody wrote under it.
create table agentundo._change (
  change       bigint primary key default pg_catalog.nextval('agentundo._change_number'),
  xid          xid8 not null default pg_catalog.pg_current_xact_id(),
  source       bigint,
  at           timestamptz not null default pg_catalog.clock_timestamp(),
  tracked      int not null,
  relation     regclass not null,                 -- the relation that the statement named
  filenode     oid,                               -- its storage then: another one now means rewritten since
  rows         bigint not null,
  step         int,
  depth        smallint not null,                 -- trigger nesting
  operation    "char" not null,                   -- I, U, D, T
  inverted     boolean not null default false,
  void         boolean not null default false,
  role         name not null default session_user,
  invocation   text,                              -- null: untagged, captured because of capture = 'all'
  application  text,
  run          text,
  tool         text,
  actor        text,
  on_behalf_of text,
  scope        text
);
create index on agentundo._change (invocation);
create index on agentundo._change (xid);
create index on agentundo._change (run) where run is not null;
create index on agentundo._change (scope, change) where scope is not null;
create index on agentundo._change (source) where source is not null;

-- Reverts ------------------------------------------------------------------------------------------

create table agentundo._revert (
  id          text primary key references agentundo._invocation on delete cascade,
  xid         xid8 not null default pg_catalog.pg_current_xact_id(),  -- what is written under its id later is not its own
  number      bigint not null default pg_catalog.nextval('agentundo._change_number'),
  invocations text[] not null,                    -- what it took back
  redo        boolean not null default false,
  standing    boolean not null default true,      -- false once it has been taken back itself
  partial     boolean not null default false,
  reopened    boolean not null default false,     -- some of its rows have been done again: it covers nothing wholly
  on_conflict text not null,
  merge       boolean not null,
  reverted_by text,
  reason      text,
  role        name not null default session_user,
  at          timestamptz not null default pg_catalog.clock_timestamp()
);
create index on agentundo._revert using gin (invocations);

-- The changes that a revert has taken back wholly. A change is covered while such a revert stands.
create table agentundo._reverted (
  change     bigint not null,
  revert     text not null references agentundo._revert on delete cascade,
  invocation text not null,
  primary key (change, revert)
);
create index on agentundo._reverted (invocation);
create index on agentundo._reverted (revert);

-- While a revert restores rows, capture counts what it sees here instead of storing images that
-- exist already. Only our own functions can write it, so no agent can use it to hide a write.
create table agentundo._restoring (
  xid      xid8 not null,
  tracked  int not null,
  operation "char" not null,
  planned  bigint not null,
  seen     bigint not null default 0,
  primary key (xid, tracked, operation)
);

-- What left the database, what happened, who may ----------------------------------------------------

create table agentundo._effect (
  id          bigint generated always as identity primary key,
  invocation  text not null,
  name        text not null,
  kind        text not null check (kind in ('compensate', 'none', 'unknown')),
  summary     text,
  undo_by     timestamptz,
  side_effect text,
  cost        text,
  remedy      text,
  handler     text,
  at          timestamptz not null default pg_catalog.clock_timestamp()
);
create index on agentundo._effect (invocation);

create table agentundo._event (
  event      bigint generated always as identity primary key,
  at         timestamptz not null default pg_catalog.clock_timestamp(),
  kind       text not null,
  source     text not null default 'system',
  scope      text,
  invocation text,
  run        text,
  step       int,
  tool       text,
  actor      text,
  payload    jsonb not null default '{}'
);

create table agentundo._scope_owner (
  scope  text not null,
  person text not null,
  primary key (scope, person)
);

create table agentundo._policy (
  name     text primary key,
  function text not null                          -- the user's own, so that no upgrade overwrites it; as text: pg_upgrade takes no regprocedure
);

create table agentundo._setting (
  name  text primary key,
  value text not null
);
insert into agentundo._setting values
  ('retention', '30 days'), ('detection_time', '7 days'), ('radius', '50'), ('cancel_window', '900 s'),
  ('notify', 'on'), ('largest_undo', '5000000 rows');  -- a plan is made in memory, some 150 bytes for each row

create table agentundo._erased (
  tracked int not null,
  change  bigint not null,                        -- images of this change have been emptied for one key
  key     text not null,                          -- digest of the key, never the key
  at      timestamptz not null default pg_catalog.clock_timestamp(),
  reason  text not null,
  primary key (tracked, change, key)
);

-- Result types. Named, so that they can grow by ALTER TYPE ... ADD ATTRIBUTE. ---------------------------

create type agentundo.recorded as (id text, status text, created boolean, result jsonb);

create type agentundo.plan_row as (
  step int, invocation text, relation text, key jsonb, action text, status text, reason text,
  columns text[], before jsonb, after jsonb, current jsonb, detail jsonb);

create type agentundo.plan_count as (relation text, action text, status text, rows bigint, conflicts jsonb);

create type agentundo.revert_result as (
  status text, revert_id text, invocations text[], rows_deleted bigint, rows_inserted bigint,
  rows_updated bigint, rows_skipped bigint, conflicts bigint);

create type agentundo.undoable_row as (
  kind text, id text, run text, step int, scope text, actor text, on_behalf_of text, tools text[],
  rows bigint, last_at timestamptz, undoable boolean, why_not text);

create type agentundo.diff_row as (
  step int, invocation text, relation text, key jsonb, action text, column_name text, before jsonb, after jsonb);

create type agentundo.history_row as (
  change bigint, version text, invocation text, run text, actor text, role text, operation text,
  at timestamptz, columns text[], before jsonb, after jsonb);

create type agentundo.effect_row as (
  id bigint, invocation text, name text, kind text, summary text, undo_by timestamptz, side_effect text, cost text, remedy text,
  handler text, at timestamptz);

create type agentundo.writer_row as (
  captured boolean, change bigint, invocation text, run text, actor text, role text, at timestamptz);

create type agentundo.finding as (severity text, object text, problem text, hint text);

create type agentundo.purge_count as (invocations bigint, changes bigint, images bigint);

create type agentundo.erase_count as (images bigint, inputs bigint);

-- One row of a plan while it is being worked on. Images are named by where they lie (the ctid of a
-- history row, of the current row): values are fetched only to be compared, restored or shown.
create type agentundo._decision as (
  place   int,             -- its index in the plan
  tracked int,
  change  bigint,          -- the last change of the set that touched the row
  part    oid,             -- the relation in which the current row lies
  cur     tid,             -- the current row; null: there is none
  before  tid,             -- the image to go back to; null: there was no row
  after   tid,             -- the image that the set left; null: there is no row
  before_change bigint,    -- the change of which `before` is an image (columns may have come later)
  after_change  bigint,
  action  text,
  status  text,
  reason  text,
  basis   text,            -- 'version', or 'value' where versions cannot be trusted
  columns text[],          -- columns in conflict, or those that a merge puts back
  delta   jsonb,           -- own differences to subtract, as text
  unit    text,            -- rows that go back together or not at all
  detail  jsonb
);

-- What a revert is about, once it has locked it: the invocations, what of them is to be taken back, all that
-- is locked, and the answer as far as it is known.
create type agentundo._task as (aim text[], changes bigint[], locked text[], answer agentundo.revert_result);

-- Rows that generated statements of the plan hand back.
create type agentundo._pair as (there int, here int);
create type agentundo._difference as (place int, reason text, inserted boolean, cut boolean, ours text[], by_value text[], captured text[], complete boolean, replaced boolean, sums jsonb, began tid, began_at bigint);
create type agentundo._written as (
  change bigint, xid xid8, version bigint, void boolean, operation "char", invocation text, was jsonb, became jsonb, undid text[],
  own boolean, first_own bigint, covered boolean, all_was jsonb[], all_became jsonb[]);

-- ==== 03_tagging.sql ====

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

-- ==== 04_shape.sql ====

-- 04  Shape: how we see a table
--
-- What stands here looks at the catalog and changes nothing: in which types history keeps columns, what
-- a table's key is, which of its columns history knows under which name, whether a table can be tracked
-- at all, and whether it still looks as it did when its capture function was made.
--
-- Between an ALTER and the sync() after it (at once where event triggers exist, else when somebody
-- calls it), each capture function notices at plan time that the shape has changed, through
-- _shape_ok(), and refuses tagged writes with UN008. It never stores a row short of a column.

-- Small functions like the next one have no SET clause of their own, so that they can be inlined or are
-- cheap to call a thousand times: whoever calls them has pinned the search_path.

-- The type in which history keeps a column: no modifier (it would round), a domain's base type (its
-- checks may have changed), an enum as text (its type may be dropped). Arrays of domains likewise; where
-- those stand for something composite, whose input would run checks of fields, as arrays of text.
create or replace function agentundo._history_type(type oid) returns text
language plpgsql stable as
$body$
declare
  t pg_type;
  element pg_type;
begin
  select * into t from pg_type where oid = type;
  if t.typtype = 'd' then
    return agentundo._history_type(t.typbasetype);
  elsif t.typtype = 'e' then
    return 'text';
  elsif t.typelem <> 0 and t.typsubscript = 'array_subscript_handler'::regproc then
    select * into element from pg_type where oid = t.typelem;
    if element.typtype = 'e' then
      return 'text[]';
    elsif element.typtype = 'd' then
      return case when (select b.typtype = 'b' and b.typelem = 0 from pg_type b where b.oid = agentundo._base(element.oid))
        then agentundo._history_type(element.oid) else 'text' end || '[]';
    end if;
  end if;
  return format_type(type, -1);
end
$body$;

-- How we name a table to people: always with its schema, quoted where needed.
create or replace function agentundo._name(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('%s.%I', relnamespace::regnamespace, relname) from pg_class where oid = relation
$body$;

-- The enum behind a type: itself, its base if it is a domain, its elements' if it is an array.
create or replace function agentundo._enum(type oid) returns oid
language sql stable as
$body$
  with recursive t as (
    select y.oid, y.typtype, y.typbasetype, y.typelem, y.typcategory from pg_type y where y.oid = type
    union all
    select y.oid, y.typtype, y.typbasetype, y.typelem, y.typcategory from pg_type y
    join t on y.oid = case when t.typtype = 'd' then t.typbasetype when t.typcategory = 'A' then t.typelem end)
  select oid from t where typtype = 'e'
$body$;

-- A type without its domains.
create or replace function agentundo._base(type oid) returns oid
language sql stable as
$body$
  with recursive b as (
    select t.oid, t.typtype, t.typbasetype from pg_type t where t.oid = type
    union all select t.oid, t.typtype, t.typbasetype from pg_type t join b on b.typtype = 'd' and t.oid = b.typbasetype)
  select oid from b where typtype <> 'd'
$body$;

-- An array as another kind of array, by way of text that means the same in every session: through output
-- and input functions, never through a cast. `kind` is a null of the type wanted.
create or replace function agentundo._array_as(value anyarray, kind anycompatiblearray) returns anycompatiblearray
language plpgsql stable set search_path = pg_catalog, pg_temp set extra_float_digits = 3 set datestyle = 'ISO'
set intervalstyle = 'postgres' set array_nulls = on as
$body$
declare
  result alias for $0;
begin
  if value is not null then
    execute format('select %L::%s', format('%s', value), pg_typeof(kind)) into result;  -- a literal meets the input function only
  end if;
  return result;
end
$body$;

-- A column as history stores it. Where that is another type (enums, arrays of enums or of domains), it
-- goes through its output function: a cast could be a function of the user's, and would run with our
-- rights.
create or replace function agentundo._stored(alias text, name name, type oid) returns text
language sql stable as
$body$
  select case
    when y.typtype = 'b' and y.typelem = 0 then format('%I.%I', alias, name)
    else (
      select case
        when h.type = y.oid then format('%I.%I', alias, name)
        when h.type = agentundo._base(y.oid) then format('%I.%I::%s', alias, name, h.qualified)  -- takes the domain's name off
        when h.type = 'text'::regtype then format('case when %1$I.%2$I is not null then pg_catalog.format(''%%s'', %1$I.%2$I) end', alias, name)
        else format('agentundo._array_as(%I.%I, null::%s)', alias, name, h.qualified) end
      from (
        select k.oid as type, format('%s.%I', k.typnamespace::regnamespace, k.typname) as qualified
        from pg_type k where k.oid = to_regtype(agentundo._history_type(y.oid))) h) end
  from pg_type y where y.oid = type
$body$;

-- A fingerprint of what capture relies on: the columns in order, their types, what is generated, and
-- which tables inherit.
create or replace function agentundo._shape(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive heir as (
    select i.inhrelid from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = relation and not c.relispartition
    union
    select i.inhrelid from pg_inherits i join heir h on i.inhparent = h.inhrelid)
  select agentundo._digest(
      coalesce((select string_agg(format('%s %L %s %L', attnum, attname, agentundo._history_type(atttypid), attgenerated), ',' order by attnum)
                from pg_attribute where attrelid = relation and attnum > 0 and not attisdropped), '')
      || coalesce((select string_agg(agentundo._name(h.inhrelid), ',' order by agentundo._name(h.inhrelid)) from heir h), '')
      || exists (select from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhrelid = relation and not c.relispartition))
$body$;

-- The best key: the primary key, else the narrowest unique index over columns that are all NOT NULL.
-- In PL/pgSQL, as what is called many times for one statement below, because its plan is kept.
create or replace function agentundo._best_key(relation regclass, out columns smallint[], out index regclass)
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  select i.indkey::smallint[], i.indexrelid::regclass into columns, index
    from pg_index i
    join pg_class c on c.oid = i.indexrelid
   where i.indrelid = relation and i.indisunique and i.indisvalid
     and i.indpred is null and i.indexprs is null and i.indnkeyatts = i.indnatts
     and (select am.amname from pg_am am where am.oid = c.relam) = 'btree'
     and not coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
     and not exists (
       select from pg_attribute a
       where a.attrelid = relation and a.attnum = any (i.indkey)
         -- history has no generated columns, nor a way back from text to arrays of enums but by a cast of the user's
         and (not a.attnotnull or a.attgenerated <> '' or (
           select element.typtype in ('e', 'd')
           from pg_type y join pg_type base on base.oid = coalesce(nullif(y.typbasetype, 0), y.oid) join pg_type element on element.oid = base.typelem
           where y.oid = a.atttypid)))
   order by i.indisprimary desc, i.indimmediate desc, i.indnkeyatts, i.indexrelid
   limit 1;
end
$body$;

create or replace function agentundo._last_change() returns bigint
language sql stable as
$body$ select case when is_called then last_value else 0 end from agentundo._change_number $body$;

-- Is this database a logical copy to which sync() has not been yet? While it is being restored, too.
create or replace function agentundo._is_copy() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select not exists (select from agentundo._stamp s where s.own_xmin = s.xmin::text::bigint and s.own_table = s.tableoid::bigint) $body$;

-- The sequences of ours that are behind what is there: logical replication copies rows, not sequences.
create or replace function agentundo._late_sequences() returns table (sequence regclass, reached bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  s record;
  last bigint;
begin
  for s in
    select 'agentundo._change_number'::regclass as sequence, 'select max(n) from (select max(change) as n from agentundo._change union all select max(number) from agentundo._revert union all select max(greatest(all_since, nullif(key_since, 9223372036854775807))) from agentundo._tracked union all select max(greatest(since_change, nullif(until_change, 9223372036854775807))) from agentundo._column union all select max(greatest(since_change, until_change)) from agentundo._label union all select max(change) from agentundo._erased union all select max(greatest(emptied, rewritten)) from agentundo._member union all select max(trusted_after) from agentundo._stamp) n' as query
    union all
    select pg_get_serial_sequence(c.oid::regclass::text, a.attname)::regclass, format('select max(%I) from %s', a.attname, c.oid::regclass)
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> '' and not a.attisdropped
    where c.relnamespace = 'agentundo'::regnamespace and c.relkind = 'r'
  loop
    execute s.query into reached;
    execute format('select case when is_called then last_value else 0 end from %s', s.sequence) into last;
    if reached > last then
      sequence := s.sequence;
      return next;
    end if;
  end loop;
end
$body$;

-- One after the other: whoever lifts a sequence again that others use already, would set it back.
create or replace function agentundo._lift_sequences() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if exists (select from agentundo._late_sequences()) then
    perform from agentundo._home for update;
    perform setval(s.sequence, s.reached) from agentundo._late_sequences() s;
  end if;
end
$body$;

-- The columns of a tracked table that history knows, with their present names. Columns are followed
-- by attribute number; after a logical copy, which renumbers them, by name until the next sync().
-- `live`: the table has the column now, with this type. A column that history does not know yet, because
-- it was added or retyped and no sync() has followed, stands here without a history column, as if it
-- came after all changes. `type` is history's, `type_now` the table's own.
create or replace function agentundo._columns(
  tracked_id int, out history_column name, out attnum smallint, out name name, out type text,
  out since_change bigint, out until_change bigint, out live boolean, out type_now oid)
returns setof record language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
#variable_conflict use_column
begin
  return query
  with present as materialized (
    select a.attnum, a.attname, a.atttypid,
      case when y.typtype = 'b' and y.typelem = 0 then format_type(y.oid, -1) else agentundo._history_type(y.oid) end as type
    from agentundo._tracked t
    join pg_attribute a on a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    join pg_type y on y.oid = a.atttypid
    where t.id = tracked_id),
  located as (
    select c.*, case when c.attnum < 0 then null when s.copied then p.attnum else c.attnum end as place
    from agentundo._column c
    cross join (select agentundo._is_copy() as copied offset 0) s
    left join present p on p.attname = c.name
    where c.tracked = tracked_id),
  stored as materialized (
    select c.history_column, coalesce(a.attnum, -abs(c.attnum)) as attnum, coalesce(a.attname, c.name) as name, c.type, c.since_change,
      case when a.type = c.type or a.attnum is null then c.until_change else coalesce(c.until_change, 9223372036854775807) end as until_change,
      c.until_change is null and a.type is not distinct from c.type as live, a.atttypid as type_now
    from located c
    left join present a on a.attnum = c.place)
  select x.history_column, x.attnum, x.name, x.type, x.since_change, x.until_change, x.live, x.type_now
  from (
    select * from stored
    union all
    select null, p.attnum, p.attname, p.type, 9223372036854775807, null, true, p.atttypid
    from present p where not exists (select from stored s where s.attnum = p.attnum and s.live)) x
  order by abs(x.attnum), x.since_change;
end
$body$;

-- The root above a partition, or the table itself. pg_partition_root() stops where a partition is being detached
-- concurrently, although its rows still belong to the root.
create or replace function agentundo._root(relation regclass) returns regclass
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  above oid := relation;
begin
  loop
    select i.inhparent into above from pg_class c join pg_inherits i on i.inhrelid = c.oid where c.oid = relation and c.relispartition;
    exit when not found;
    relation := above;
  end loop;
  return relation;
end
$body$;

-- Called from capture functions as a condition on constants, and declared immutable although it
-- reads the catalog: so the planner folds it away, once for each plan, and plans are thrown away by
-- every ALTER of the table. In the hot path it costs nothing.
create or replace function agentundo._shape_ok(member int) returns boolean
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  m record;
  root regclass;
begin
  select mb.relation, mb.shape, t.relation as tracked_root, t.kind, t.name, t.history, c.relfilenode
    into m
    from agentundo._member mb
    join agentundo._tracked t on t.id = mb.tracked
    join pg_class c on c.oid = mb.relation
   where mb.id = member;
  if m.relation is null and current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = '40001', message = 'agentundo: a table is tracked since this transaction began',
      hint = 'Begin a new transaction, then repeat the write.';
  end if;
  root := case when m.kind = 'partitioned' then agentundo._root(m.relation) else m.relation end;
  if m.relation is not null and not exists (select from pg_class c where c.oid = m.history) then
    perform agentundo._fail('UN008', format('agentundo: the history of %s is gone; the write is refused', m.name),
      format('Somebody dropped its history table. Run "select agentundo.untrack(%1$L, keep_history => false)" and "select agentundo.track(%1$L)": what was captured before is lost.', m.name),
      jsonb_build_object('relation', m.relation::text));
  end if;
  -- Under REPEATABLE READ our look at the catalog may be older than the table: the filenode is not.
  if m.relfilenode <> 0 and m.relfilenode is distinct from pg_relation_filenode(m.relation) then
    raise exception using errcode = '40001', message = format('agentundo: table %s was rewritten since this transaction began', m.relation),
      hint = 'Begin a new transaction, then repeat the write.';
  elsif m.relation is null or m.shape is distinct from agentundo._shape(m.relation) or root is distinct from m.tracked_root then
    perform agentundo._fail('UN008',
      format('agentundo: table %s has changed since it was tracked; the write is refused', coalesce(m.relation::text, m.name, '?')),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat the write.', coalesce(m.name, m.relation::text)),
      jsonb_build_object('relation', m.relation::text));
  end if;
  return true;
end
$body$;

-- Why a relation cannot be tracked; null: it can.
create or replace function agentundo._why_not_trackable(relation regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_class;
  r text;
begin
  select * into c from pg_class where oid = relation;
  if not found then
    return 'it does not exist';
  end if;
  r := case c.relkind
    when 'v' then 'it is a view; track the tables below it'
    when 'm' then 'it is a materialized view; track the tables below it'
    when 'f' then 'it is a foreign table; its rows live in another server'
    when 'S' then 'it is a sequence'
    when 'i' then 'it is an index' when 'I' then 'it is an index'
    when 'c' then 'it is a composite type'
    when 't' then 'it is a TOAST table'
    when 'r' then null when 'p' then null
    else 'it is not a table' end;
  if r is not null then
    return r;
  elsif c.relpersistence = 't' then
    return 'it is a temporary table; it ends with its session';
  elsif c.relnamespace::regnamespace::text in ('pg_catalog', 'information_schema', 'pg_toast') or relation::oid < 16384 then
    return 'it is a system catalog';
  elsif c.relnamespace::regnamespace::text in ('agentundo', 'agentundo_history') then
    return 'it is one of our own tables';
  elsif not exists (select from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') then
    return 'it has no columns of its own to restore';
  elsif (select count(*) from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '') > 1598 then
    return 'it has more than 1598 columns; history needs room for two of ours beside them';
  elsif exists (select from pg_attribute a where a.attrelid = relation and a.attnum > 0 and a.attname like 'agentundo.%') then
    return 'it has a column named "agentundo.*", as we name columns in our queries; rename it';
  elsif c.relispartition then
    return format('it is a partition; track its root %s', agentundo._root(relation));
  elsif exists (select from pg_rewrite where ev_class = relation and ev_type <> '1') then
    return 'it has rules on INSERT, UPDATE or DELETE, under which rows cannot be put back';
  elsif c.relkind = 'r' and (select amname from pg_am where oid = c.relam) <> 'heap' then
    return format('its access method is %s, which has no row versions of the kind of heap', (select amname from pg_am where oid = c.relam));
  elsif c.relrowsecurity then
    select format('it has row-level security, and %s would not see all of its rows; a superuser can run "alter role %I bypassrls"', o.rolname, o.rolname)
      into r
      from pg_roles o
     where o.rolname in (current_user, agentundo._worker()) and not (o.rolbypassrls or o.rolsuper)
       and (c.relforcerowsecurity or not pg_has_role(o.rolname, c.relowner, 'usage'))
     order by o.rolname limit 1;
  end if;
  return r;
end
$body$;

-- Triggers that are neither ours nor made by PostgreSQL for a constraint. Before version 15 the copies that
-- partitions have of a row trigger counted as internal.
create or replace view agentundo._users_triggers as
select g.* from pg_catalog.pg_trigger g
where (not g.tgisinternal or g.tgparentid <> 0 and g.tgfoid not in (
    select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace and p.proname like 'RI\_FKey\_%'))
  and g.tgfoid not in (select p.oid from pg_catalog.pg_proc p where p.pronamespace = 'agentundo'::pg_catalog.regnamespace);

-- ==== 05_deputies.sql ====

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

-- ==== 06_following.sql ====

-- 06  Following: how history keeps up with a table that changes
--
-- _sync() is the heart: it looks at the table as it is now (columns, key, partitions) and makes history
-- columns, capture functions, triggers and grants agree with it, by adding only: history is never
-- rewritten and nothing in it depends on the user's types, so no ALTER or DROP of his is refused
-- because of us. Event triggers call it where they exist; where not, sync() does (07_tracking.sql).

-- Notes what the labels of enum columns are called. A label of another name with the same number was renamed; after a
-- logical copy, which gives them new numbers, and when the column was given another type, they are matched by name.
create or replace function agentundo._sync_labels(tracked_id int, copied boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  number bigint := agentundo._last_change();
begin
  with moved as (
    select l.attnum, l.place as former, p.enum, coalesce((select e.oid::bigint from pg_enum e where e.enumtypid = p.enum and e.enumlabel = l.label), 0) as place
    from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    cross join lateral (select agentundo._enum(a.atttypid) as enum) p
    where t.id = tracked_id and l.until_change is null and (copied or l.enum <> p.enum::bigint))
  update agentundo._label l set enum = m.enum::bigint, place = m.place, until_change = case when m.place = 0 then coalesce(l.until_change, number) else l.until_change end
    from moved m where l.tracked = tracked_id and l.attnum = m.attnum and l.place = m.former;

  update agentundo._label l set until_change = number
    from agentundo._tracked t, pg_attribute a, pg_enum e
   where t.id = tracked_id and l.tracked = t.id and l.until_change is null and a.attrelid = t.relation and a.attnum = l.attnum
     and e.enumtypid = agentundo._enum(a.atttypid) and e.oid::bigint = l.place and e.enumlabel <> l.label;
  delete from agentundo._label l where l.tracked = tracked_id and l.until_change = l.since_change;  -- no image has it

  insert into agentundo._label (tracked, attnum, enum, label, place, since_change)
    select t.id, a.attnum, e.enumtypid::bigint, e.enumlabel::text, e.oid::bigint,
      case when exists (select from agentundo._label l where l.tracked = t.id and l.attnum = a.attnum and (l.label = e.enumlabel or l.place = e.oid::bigint)) then number else 0 end
    from agentundo._tracked t
    join pg_attribute a on a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped
    join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid)
    where t.id = tracked_id and not exists (
      select from agentundo._label l
      where l.tracked = t.id and l.attnum = a.attnum and l.place = e.oid::bigint and l.label = e.enumlabel and l.until_change is null)
  on conflict (tracked, attnum, label, since_change) do update set enum = excluded.enum, place = excluded.place, until_change = null;
end
$body$;

-- A table and all of its partitions, as pg_partition_tree() tells them, which would lock them, and not their root first.
create or replace function agentundo._tree(root regclass) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive tree as (
    select root::oid as relid
    union
    select i.inhrelid from pg_inherits i join tree t on t.relid = i.inhparent join pg_class c on c.oid = i.inhrelid and c.relispartition)
  select relid::regclass from tree
$body$;

-- Does a statement give a column another type, and other values, too? Whoever only casts has the same ones.
create or replace function agentundo._computes(statement text) returns boolean
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select statement ~* '\mtype\M' and exists (
    select from regexp_matches(regexp_replace(statement, '\(\s*\d+\s*,\s*\d+\s*\)', '', 'g'), '\musing\M\s*([^,;]*)', 'gi') found (parts)
    where parts[1] !~* '^\(?\s*("[^"]+"|\w+)\s*\)?\s*(::[\w\s".:()\[\]]*)?$' and parts[1] !~* '^cast\s*\(\s*("[^"]+"|\w+)\s+as\M[\w\s".()\[\]]*$')
$body$;

-- Has a schema or a type been altered under a table? Its name, then, a label of an enum, what a column is.
create or replace function agentundo._types_differ(t agentundo._tracked) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select t.name <> agentundo._name(t.relation)
    or exists (select from agentundo._member m where m.tracked = t.id and m.shape <> agentundo._shape(m.relation))
    or exists (
      select from agentundo._column c join pg_attribute a on a.attrelid = t.relation and a.attnum = c.attnum
      where c.tracked = t.id and c.until_change is null and c.type <> agentundo._history_type(a.atttypid))
    or exists (
      select from pg_attribute a join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid)
      where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and not exists (
        select from agentundo._label l
        where l.tracked = t.id and l.attnum = a.attnum and l.place = e.oid::bigint and l.label = e.enumlabel and l.until_change is null))
$body$;

-- The tables at the other ends of a table's foreign keys: a revert looks there for parents and dependents.
create or replace function agentundo._relatives(relation regclass) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with level as (
    select p::oid as oid from agentundo._tree(relation) p)
  select distinct case when c.conrelid in (select oid from level) then c.confrelid else c.conrelid end::regclass
  from pg_constraint c
  where c.contype = 'f' and c.conparentid = 0
    and (c.conrelid in (select oid from level) or c.confrelid in (select oid from level))
$body$;

-- The schemas of a table, and of the types of its columns, that we cannot look into yet.
create or replace function agentundo._out_of_reach(relation regclass, worker name) returns setof regnamespace
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select distinct n::regnamespace
  from (
    select c.relnamespace from pg_class c where c.oid = relation
    union all
    select b.typnamespace
    from pg_attribute a
    join pg_type y on y.oid = a.atttypid
    join pg_type b on b.oid in (y.oid, y.typelem, y.typbasetype)
    where a.attrelid = relation and a.attnum > 0 and not a.attisdropped) s (n)
  where not has_schema_privilege(worker, n, 'usage')
$body$;

-- Makes everything of ours agree with the table as it is now. Idempotent, adds only.
-- Takes SHARE ROW EXCLUSIVE on the relations whose triggers it has to create.
create or replace function agentundo._sync(tracked_id int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  worker name := agentundo._worker();
  copied boolean := agentundo._is_copy();
  col record;
  has agentundo._column;
  level record;
  m agentundo._member;
  key record;
  capture_function text;
  history_name text;
  added text;
  schema regnamespace;
  now_at bigint;
  former int;
  known boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id for update;
  -- Columns end and begin after this change: 0, so that there is no image of what ended, while history is empty. Its
  -- size does not depend on how old our snapshot is.
  now_at := case when pg_relation_size(t.history) > 0 then agentundo._last_change() else 0 end;
  if not exists (select from pg_class where oid = t.relation) then
    update agentundo._tracked set active = false, relation = null where id = tracked_id;
    update agentundo._column set until_change = agentundo._last_change() where tracked = tracked_id and until_change is null;
    delete from agentundo._member where tracked = tracked_id;
    return;
  elsif not t.active then
    return;  -- untracked, or it became part of another table a moment ago
  end if;

  -- After a logical copy attribute numbers are new: match by the name of the column that lives, follow by
  -- number again. Columns that had been dropped keep a number that no column can have.
  if copied then
    -- Rules and labels go with their columns; first out of the way, for the numbers overlap.
    with place as (
      select lives.attnum as former, -coalesce(a.attnum, lives.attnum) as place, a.attnum is not null as found
      from agentundo._column lives
      left join pg_attribute a on a.attrelid = t.relation and a.attname = lives.name and not a.attisdropped
      where lives.tracked = tracked_id and lives.until_change is null),
    labels as (update agentundo._label l set attnum = p.place from place p where l.tracked = tracked_id and l.attnum = p.former and p.found)
    update agentundo._merge_rule r set attnum = p.place from place p where r.tracked = tracked_id and r.attnum = p.former and p.found;
    delete from agentundo._merge_rule r where r.tracked = tracked_id and r.attnum > 0;
    delete from agentundo._label l where l.tracked = tracked_id and l.attnum > 0;
    update agentundo._merge_rule r set attnum = -r.attnum where r.tracked = tracked_id;
    update agentundo._label l set attnum = -l.attnum where l.tracked = tracked_id;
    update agentundo._column c set attnum = coalesce((
      select a.attnum
      from agentundo._column lives
      join pg_attribute a on a.attrelid = t.relation and a.attname = lives.name and not a.attisdropped
      where lives.tracked = tracked_id and lives.attnum = c.attnum and lives.until_change is null), -abs(c.attnum))
    where c.tracked = tracked_id;
  end if;

  for schema in select agentundo._out_of_reach(t.relation, worker) loop
    begin
      perform agentundo._by_deputy('usage', t.relation, schema::text);
    exception when insufficient_privilege then
      null;
    end;
    continue when has_schema_privilege(worker, schema, 'usage');
    perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s may not look into schema %s', t.relation, worker, schema),
      format('Run "grant usage on schema %s to %I" as the owner of the schema.', schema, worker),
      jsonb_build_object('relation', t.relation::text, 'reason', format('schema %s', schema)));
  end loop;

  if not has_table_privilege(worker, t.history, 'select') then
    execute format('grant select on %s to %I', t.history, worker);
  end if;

  -- Types that are called something else by now, or lie in another schema, are the same.
  update agentundo._column c set type = agentundo._history_type(h.atttypid)
    from pg_attribute h
   where c.tracked = tracked_id and h.attrelid = t.history and h.attname = c.history_column and h.atttypid >= 16384
     and c.type <> agentundo._history_type(h.atttypid);
  -- Columns. One that went or changed its type ends; one that is new or changed its type begins.
  update agentundo._column c set until_change = now_at
   where c.tracked = tracked_id and c.until_change is null
     and not exists (
       select from pg_attribute a
       where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped and a.attgenerated = ''
         and agentundo._history_type(a.atttypid) = c.type);
  update agentundo._column c set attnum = -c.attnum
   where c.tracked = tracked_id and c.attnum > 0
     and not exists (select from pg_attribute a where a.attrelid = t.relation and a.attnum = c.attnum and not a.attisdropped);
  -- What was of a type of the user's must not keep him from dropping it. The values of a dropped column can go nowhere any
  -- more; those of one that has another type now are kept as text, by which nobody takes them for what they were.
  for has in
    select c.* from agentundo._column c join pg_attribute a on a.attrelid = t.history and a.attname = c.history_column
    where c.tracked = tracked_id and c.until_change is not null and a.atttypid >= 16384
  loop
    if has.attnum < 0 then
      execute format('alter table %s drop column %I', t.history, has.history_column);
      delete from agentundo._column c where c.tracked = tracked_id and c.history_column = has.history_column;
    else
      execute format('alter table %1$s alter column %2$I type text using case when %2$I is distinct from null then pg_catalog.format(''%%s'', %2$I) end',
        t.history, has.history_column);
      update agentundo._column c set type = 'pg_catalog.text' where c.tracked = tracked_id and c.history_column = has.history_column;
    end if;
  end loop;
  for col in
    select a.attnum, a.attname, agentundo._history_type(a.atttypid) as type, a.atttypid
    from pg_attribute a
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    order by a.attnum
  loop
    select * into has from agentundo._column c where c.tracked = tracked_id and c.attnum = col.attnum and c.until_change is null;
    if not found then
      history_name := 'c' || col.attnum || coalesce(
        (select '_' || (count(*) + 1) from pg_attribute h where h.attrelid = t.history and h.attname ~ ('^c' || col.attnum || '(_|$)') having count(*) > 0), '');
      added := concat_ws(', ', added, format('add column %I %s', history_name, col.type));
      if to_regtype(col.type)::oid >= 16384 then
        -- ANALYZE would call functions of the type, which may be the user's, as the owner of history
        added := added || format(', alter column %I set statistics 0', history_name);
      end if;
      insert into agentundo._column (tracked, history_column, attnum, name, type, since_change, computed)
      values (tracked_id, history_name, col.attnum, col.attname, col.type, now_at, not copied and (col.attnum = any (t.generated)
        or agentundo._computes(current_query()) and exists (
          select from agentundo._column c where c.tracked = tracked_id and c.attnum = col.attnum and c.until_change = now_at)));
    elsif has.name <> col.attname then
      update agentundo._column c set name = col.attname where c.tracked = tracked_id and c.attnum = col.attnum;
    end if;
  end loop;
  if added is not null then
    execute format('alter table %s %s', t.history, added);
  end if;
  perform agentundo._sync_labels(tracked_id, copied);

  select * into key from agentundo._best_key(t.relation);
  update agentundo._tracked set
    name = agentundo._name(t.relation),
    key_columns = coalesce(key.columns, '{}'),
    generated = array(select a.attnum from pg_attribute a where a.attrelid = t.relation and a.attgenerated <> '' and not a.attisdropped),
    key_since = case when key_columns <> '{}' and key_columns <@ coalesce(key.columns, '{}') then key_since else now_at end,
    kind = case
      when (select relkind from pg_class where oid = t.relation) = 'p' then 'partitioned'
      when exists (select from pg_inherits where inhparent = t.relation or inhrelid = t.relation) then 'inherited'
      else 'plain' end
  where id = tracked_id returning * into t;

  -- Relations that left the tree (a detached partition) lose our triggers.
  for level in
    select mb.relation from agentundo._member mb
    where mb.tracked = tracked_id and mb.relation not in (select r from agentundo._levels(t.relation, t.kind) r)
  loop
    if exists (select from pg_class where oid = level.relation) then
      perform agentundo._drop_triggers(level.relation);
      insert into agentundo._detached values (level.relation, tracked_id) on conflict (relation) do update set tracked = excluded.tracked;
    end if;
    delete from agentundo._member mb where mb.relation = level.relation;
    for former in update agentundo._tracked x set active = true, part_of = null, all_since = null where x.relation = level.relation and x.part_of = tracked_id returning x.id loop
      perform agentundo._sync(former);  -- it is what it was before it became a part
    end loop;
    perform agentundo._track_new(c.oid, r.capture)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace join agentundo._schema_rule r on r.schema_name = n.nspname
    where c.oid = level.relation and not exists (select from agentundo._tracked x where x.active and x.relation = c.oid);
  end loop;

  -- Tables that a foreign key ties to it, as far as we have a deputy there.
  for level in
    select r as relation from agentundo._relatives(t.relation) r
    where not has_table_privilege(worker, r, 'select') and agentundo._deputy(r) is not null
  loop
    perform agentundo._by_deputy('grant select', level.relation);
  end loop;

  -- A table that has become part of this one is followed as such from now on; its own history stays.
  update agentundo._tracked x set active = false, part_of = tracked_id
   where x.id <> tracked_id and x.active and x.relation in (select agentundo._levels(t.relation, t.kind));

  -- Every level of the tree.
  for level in select r as relation, c.relkind from agentundo._levels(t.relation, t.kind) r join pg_class c on c.oid = r loop
    known := exists (select from agentundo._member mb where mb.relation = level.relation and mb.tracked = tracked_id);
    delete from agentundo._detached x where x.relation = level.relation;
    insert into agentundo._member as mb (relation, tracked, shape, filenode)
      values (level.relation, tracked_id, agentundo._shape(level.relation), pg_relation_filenode(level.relation))
      on conflict (relation) do update set tracked = excluded.tracked, shape = excluded.shape, filenode = excluded.filenode,
        rewritten = case when mb.filenode <> excluded.filenode then agentundo._last_change() else mb.rewritten end
      returning * into m;
    if level.relkind = 'r' and not (has_table_privilege(worker, level.relation, 'insert') and has_table_privilege(worker, level.relation, 'select')
        and has_table_privilege(worker, level.relation, 'update') and has_table_privilege(worker, level.relation, 'delete'))
      or level.relkind = 'p' and not has_table_privilege(worker, level.relation, 'delete') then
      perform agentundo._by_deputy('grant', level.relation);
    end if;
    capture_function := agentundo._make_capture(t, m);
    if not agentundo._make_triggers(t, m, capture_function) and (known or level.relkind = 'r' and pg_relation_size(level.relation) > 0) then
      t.all_since := null;  -- there may have been writes without them
    end if;
  end loop;

  -- From here on nobody writes without being captured: who wrote before has committed, who comes waits for us.
  if t.capture = 'all' and (t.all_since is null or copied) then
    perform agentundo._lock_tables(array[tracked_id], array(select agentundo._levels(t.relation, t.kind)));
    update agentundo._tracked set all_since = nextval('agentundo._change_number') where id = tracked_id;
  end if;
end
$body$;

create or replace function agentundo._levels(root regclass, kind text) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select root where kind <> 'partitioned'
  union all
  select p from agentundo._tree(root) p join pg_class c on c.oid = p
  where kind = 'partitioned' and c.relkind in ('r', 'p')
$body$;

create or replace function agentundo._drop_triggers(relation regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text;
begin
  for name in
    select tgname from pg_trigger
    where tgrelid = relation and tgname like 'agentundo\_%' and not tgisinternal and tgparentid = 0
      and tgfoid in (select oid from pg_proc where pronamespace = 'agentundo'::regnamespace)
  loop
    perform agentundo._by_deputy('drop trigger', relation, name);
  end loop;
end
$body$;

-- After DDL ----------------------------------------------------------------------------------------------

-- Event triggers call these where they exist (23_grants.sql); DDL of yours never fails because of us.
create or replace function agentundo._on_ddl() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  id int;
begin
  if agentundo._setting('agentundo.internal') is not null then
    return;
  end if;
  -- A copy that is still being restored is followed by the first sync(): before, restored rows would be captured.
  if agentundo._is_copy() then
    return;
  end if;
  for id in
    select distinct x.id
    from pg_event_trigger_ddl_commands() d
    join agentundo._tracked x on x.active
    where d.classid = 'pg_class'::regclass and not d.in_extension
      and (x.relation = agentundo._root(d.objid) or x.relation in (select agentundo._ancestors(d.objid))
        or x.relation in (select agentundo._relatives(d.objid)) or d.objid in (select agentundo._ancestors(x.relation))
        or exists (select from agentundo._member mb where mb.tracked = x.id and mb.relation = d.objid)
        or agentundo._heirs_differ(x))
    union
    select x.id from agentundo._tracked x
    where x.active and agentundo._types_differ(x) and exists (
      select from pg_event_trigger_ddl_commands() d
      where d.object_type in ('type', 'schema', 'domain', 'composite type', 'extension') and d.command_tag like 'ALTER %' and not d.in_extension)
  loop
    begin
      perform agentundo._sync(id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm
        using hint = 'Tagged writes to the table are refused until "select agentundo.sync()" succeeds.';
    end;
  end loop;
  -- New tables: in a schema that is tracked as a whole, or inheriting from a tracked table.
  perform agentundo._track_new(d.objid, coalesce(r.capture, (
      select x.capture from agentundo._tracked x where x.active and x.relation in (select agentundo._ancestors(d.objid)) limit 1)))
  from pg_event_trigger_ddl_commands() d
  join pg_class c on c.oid = d.objid and c.relkind in ('r', 'p') and not c.relispartition
  join pg_namespace n on n.oid = c.relnamespace
  left join agentundo._schema_rule r on r.schema_name = n.nspname
  where d.classid = 'pg_class'::regclass and not d.in_extension  -- what we made would belong to the extension
    and d.command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
    and not exists (select from agentundo._tracked x where x.relation = d.objid and x.active)
    and (r.capture is not null or exists (select from agentundo._tracked x where x.active and x.relation in (select agentundo._ancestors(d.objid))));
end
$body$;

-- The tables from which a table inherits, over all generations; not those of which it is a partition.
create or replace function agentundo._ancestors(relation oid) returns setof regclass
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive up as (
    select i.inhparent from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhrelid = relation and not c.relispartition
    union
    select i.inhparent from pg_inherits i join up u on i.inhrelid = u.inhparent)
  select inhparent::regclass from up
$body$;

create or replace function agentundo._track_new(relation regclass, capture text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if agentundo._why_not_trackable(relation) is null then
    perform agentundo._track(relation, capture);
  end if;
exception when others then
  raise warning 'agentundo: table % is not tracked: %', relation, regexp_replace(sqlerrm, '^agentundo: ', '')
    using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::text);
end
$body$;

-- Has a table that inherited from this one gone?
create or replace function agentundo._heirs_differ(t agentundo._tracked) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select t.active and t.kind = 'inherited' and exists (select from agentundo._member m where m.tracked = t.id and m.shape <> agentundo._shape(m.relation))
$body$;

create or replace function agentundo._on_drop() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  t record;
begin
  if agentundo._setting('agentundo.internal') is not null then
    return;  -- an upgrade makes our functions anew
  end if;
  for t in
    select x.id from agentundo._tracked x join pg_event_trigger_dropped_objects() d
      on d.classid = 'pg_class'::regclass and d.objid = x.relation and d.objsubid = 0
  loop
    begin
      perform agentundo._sync(t.id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm using hint = 'Run "select agentundo.sync()".';
    end;
  end loop;
  -- Columns that went along with something else, and tables that others inherit from: ALTER TABLE is followed above.
  for t in
    select distinct x.id
    from agentundo._tracked x cross join pg_event_trigger_dropped_objects() d
    where tg_tag <> 'ALTER TABLE' and x.active and d.classid = 'pg_class'::regclass and not agentundo._is_copy()
      and (d.objsubid > 0 and exists (select from agentundo._member m where m.tracked = x.id and m.relation = d.objid)
        or d.object_type = 'table' and agentundo._heirs_differ(x))
  loop
    begin
      perform agentundo._sync(t.id);
    exception when others then
      raise warning 'agentundo: could not follow this change: %', sqlerrm
        using hint = 'Tagged writes to the table are refused until "select agentundo.sync()" succeeds.';
    end;
  end loop;
  -- A history table dropped by hand: sessions that have captured before must look again.
  for t in
    select mb.id from agentundo._member mb join agentundo._tracked x on x.id = mb.tracked
    join pg_event_trigger_dropped_objects() d on d.classid = 'pg_class'::regclass and d.objid = x.history and d.objsubid = 0
    where to_regproc('agentundo._capture_' || mb.id) is not null
  loop
    execute format('alter function agentundo.%I() cost 100', '_capture_' || t.id);
  end loop;
end
$body$;

-- ==== 07_tracking.sql ====

-- 07  Tracking: which tables are captured
--
-- track() gives a table a history table and triggers, untrack() takes the triggers away, sync() lets the
-- history follow a table that has changed (06_following.sql).
--
-- DDL of ours waits 3 s for a lock, then gives way (55P03): whoever queues for a table stops all who come
-- after.

-- Null as the mode: what is tracked keeps the one it has.
create or replace function agentundo._check_capture(capture text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp as
$body$
begin
  if capture not in ('agent', 'all') then
    perform agentundo._fail('22023', format('agentundo: there is no capture mode %L', capture),
      'Use ''agent'' (tagged writes and agent roles) or ''all'' (every write).');
  end if;
end
$body$;

-- The mode that a table has, or had when it was tracked last.
create or replace function agentundo._kept_mode(relation regclass, otherwise text) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((select x.capture from agentundo._tracked x where x.relation = _kept_mode.relation), otherwise)
$body$;

create or replace function agentundo._track(relation regclass, capture text) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  reason text := agentundo._why_not_trackable(relation);
  t agentundo._tracked;
  c pg_class;
  history_table text;
  child regclass;
begin
  perform agentundo._check_capture(capture);
  if reason is not null then
    perform agentundo._fail('UN004', format('agentundo: cannot track %s: %s', coalesce(relation::text, 'NULL'), reason),
      'See "agentundo.check()" for what is tracked, and the limits in the documentation.',
      jsonb_build_object('relation', relation::text, 'reason', reason));
  end if;
  select * into c from pg_class where oid = relation;
  if not pg_has_role(agentundo._caller(), c.relowner, 'usage') then
    perform agentundo._fail('UN003', format('agentundo: only its owner can have table %s tracked', relation),
      format('Run it as %s, or as a superuser.', pg_get_userbyid(c.relowner)));
  end if;

  -- The table before what we know of it, as a migration locks them whose end we follow.
  perform agentundo._lock_tables(array[x.id], array(select agentundo._levels(x.relation, x.kind)))
    from agentundo._tracked x where x.relation = _track.relation and x.active and x.capture <> 'all' and _track.capture = 'all';
  select * into t from agentundo._tracked x where x.relation = _track.relation for update;
  if not found then
    insert into agentundo._tracked as x (relation, name, kind, capture, history, key_columns)
    values (_track.relation, agentundo._name(_track.relation), 'plain', coalesce(_track.capture, 'agent'), 'agentundo._change'::regclass, '{}')
    on conflict do nothing returning * into t;
  end if;
  if t.id is null then  -- somebody else has just begun to track it
    return query select agentundo._track(relation, capture);
    return;
  elsif t.history = 'agentundo._change'::regclass then
    history_table := format('agentundo_history.%I', left(regexp_replace(c.relname, '[^A-Za-z0-9_]', '_', 'g'), 40) || '_' || t.id);
    while to_regclass(history_table) is not null loop  -- left over from a dump without our own rows
      history_table := format('agentundo_history.%I', left(regexp_replace(c.relname, '[^A-Za-z0-9_]', '_', 'g'), 40) || '_' || t.id || '_' || left(gen_random_uuid()::text, 8));
    end loop;
    execute format('create table %s (_change bigint not null, _image "char" not null)', history_table);
    execute format('create index on %s (_change)', history_table);
    execute format('alter table %s replica identity full', history_table);
    execute format('comment on table %s is %L', history_table,
      'Images of rows of ' || t.name || ': O before, N after a change of agentundo._change. Columns are named by attribute number, see agentundo._column.');
    update agentundo._tracked x set history = to_regclass(history_table) where x.id = t.id;
  else
    update agentundo._tracked x set capture = coalesce(_track.capture, x.capture), active = true, part_of = null,
      all_since = case when x.active and x.capture = 'all' and coalesce(_track.capture, 'all') = 'all' then x.all_since end
     where x.id = t.id returning * into t;
  end if;
  perform agentundo._sync(t.id);
  if c.relpersistence = 'u' then
    raise warning 'agentundo: % is unlogged: a crash empties it, and its history will not match', relation;
  end if;
  return next relation;

  -- A tree by inheritance: a statement on the parent writes the children's rows too.
  for child in select inhrelid::regclass from pg_inherits where inhparent = relation and c.relkind = 'r' loop
    return query select agentundo._track(child, coalesce(capture, agentundo._kept_mode(child, t.capture)));
  end loop;
end
$body$;

create or replace function agentundo.track(relation regclass, capture text default null) returns setof regclass
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  level regclass;
begin
  perform agentundo._require_fresh_snapshots('track');
  -- As the caller: whoever may act for the owners of the table and of all its parts deputizes us.
  if agentundo._why_not_trackable(relation) is null then
    for level in
      select relation
      union
      select agentundo._tree(relation)
      union
      (with recursive heir as (
         select inhrelid from pg_catalog.pg_inherits where inhparent = relation
         union select i.inhrelid from pg_catalog.pg_inherits i join heir h on i.inhparent = h.inhrelid)
       select inhrelid::regclass from heir)
    loop
      perform agentundo._deputize(level);
    end loop;
  end if;
  return query select agentundo._track(relation, capture);
end
$body$;
comment on function agentundo.track(regclass, text) is
  'Begins to keep history for a table (and its partitions or inheriting tables): writes under a tag, or all writes with capture => ''all''. Creates triggers under a short SHARE ROW EXCLUSIVE lock; changes no row. Again on a tracked table: changes its capture mode if one is given, else keeps it; a new table gets ''agent''.';

create or replace function agentundo.track_schema(schema regnamespace, capture text default null) returns setof regclass
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  relation regclass;
  rule text := agentundo._remember_schema(schema, capture);
  owner name;
begin
  perform agentundo._require_fresh_snapshots('track');
  -- Tables made later are tracked with the rights of whoever makes them: the schema's owner, or the caller.
  for owner in
    select r.rolname from pg_catalog.pg_roles r
    where (r.oid = (select n.nspowner from pg_catalog.pg_namespace n where n.oid = schema) or r.rolname = current_user)
      and agentundo._deputy_of(r.oid) is null and pg_catalog.pg_has_role(current_user, r.oid, 'member')
  loop
    perform agentundo._deputize_owner(owner);
  end loop;
  for relation in
    select c.oid::regclass from pg_catalog.pg_class c
    where c.relnamespace = schema and c.relkind in ('r', 'p') and not c.relispartition
      and agentundo._why_not_trackable(c.oid) is null
    order by c.oid
  loop
    return query select agentundo.track(relation, coalesce(capture, agentundo._kept_mode(relation, rule)));
  end loop;
end
$body$;
comment on function agentundo.track_schema(regnamespace, text) is
  'Tracks every table of a schema, now and later: tables created afterwards are tracked by an event trigger, or reported as errors by check() where there is none. Without a capture mode all keep theirs, and what is new gets that of the schema, at first ''agent''. Locks each table shortly; changes no row.';

-- Tables that were made in such a schema where no event trigger saw it.
create or replace function agentundo._awaited() returns table (relation regclass, capture text)
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select c.oid::regclass, r.capture
  from agentundo._schema_rule r
  join pg_namespace n on n.nspname = r.schema_name
  join pg_class c on c.relnamespace = n.oid and c.relkind in ('r', 'p') and not c.relispartition
  where not exists (select from agentundo._tracked x where x.relation = c.oid)
    and agentundo._why_not_trackable(c.oid) is null
  order by c.oid
$body$;

-- Returns the mode of tables that are new there.
create or replace function agentundo._remember_schema(schema regnamespace, capture text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  rule text;
begin
  perform agentundo._check_capture(capture);
  if not has_schema_privilege(agentundo._caller(), schema, 'create') then
    perform agentundo._fail('UN003', format('agentundo: %s may not decide for schema %s', agentundo._caller(), schema), 'Run it as the owner of the schema.');
  end if;
  insert into agentundo._schema_rule as r values ((select nspname from pg_namespace where oid = schema), coalesce(_remember_schema.capture, 'agent'))
  on conflict (schema_name) do update set capture = coalesce(_remember_schema.capture, r.capture)
  returning r.capture into rule;
  return rule;
end
$body$;

create or replace function agentundo.untrack(relation regclass, keep_history boolean default true) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  t agentundo._tracked;
  level record;
begin
  select * into t from agentundo._tracked x where x.relation = untrack.relation for update;
  if not found then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', coalesce(relation::text, 'NULL')),
      'The view agentundo.tracked lists what is.');
  elsif not pg_has_role(agentundo._caller(), (select relowner from pg_class where oid = relation), 'usage') then
    perform agentundo._fail('UN003', format('agentundo: only its owner can untrack %s', relation), 'Run it as the owner, or as a superuser.');
  end if;
  for level in select mb.relation, mb.id from agentundo._member mb where mb.tracked = t.id loop
    perform agentundo._drop_triggers(level.relation);
    if not keep_history then  -- else it can still be reverted
      perform agentundo._by_deputy('revoke', level.relation);
    end if;
    execute format('drop function if exists agentundo.%I()', '_capture_' || level.id);
  end loop;
  delete from agentundo._member mb where mb.tracked = t.id;
  if keep_history then
    update agentundo._tracked x set active = false where x.id = t.id;
  else
    if exists (select from pg_class where oid = t.history) then
      execute format('drop table %s', t.history);
    end if;
    delete from agentundo._reverted r using agentundo._change c where c.tracked = t.id and r.change = c.change;
    delete from agentundo._change c where c.tracked = t.id;
    delete from agentundo._turn x where x.tracked = t.id;
    delete from agentundo._tracked x where x.id = t.id;
  end if;
end
$body$;
comment on function agentundo.untrack(regclass, boolean) is
  'Takes our triggers off a table; later writes are not captured. History stays and can still be reverted, unless keep_history is false: then it is destroyed and nothing of this table can be undone any more.';

create or replace function agentundo.sync(relation regclass default null) returns setof regclass
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set lock_timeout = '3s' as
$body$
declare
  t agentundo._tracked;
  found_one boolean := false;
  fresh record;
begin
  perform agentundo._require_fresh_snapshots('sync');
  perform agentundo._lift_sequences();
  for t in
    select * from agentundo._tracked x
    where x.active and (sync.relation is null or x.relation = agentundo._root(sync.relation))
    order by x.relation::oid
  loop
    found_one := true;
    perform agentundo._sync(t.id);
    return next t.relation;
  end loop;
  if relation is not null and not found_one then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked', relation), 'Call agentundo.track() first.');
  end if;
  for fresh in select w.relation, w.capture from agentundo._awaited() w where sync.relation is null loop
    perform agentundo._track_new(fresh.relation, fresh.capture);
    return query select x.relation from agentundo._tracked x where x.active and x.relation = fresh.relation;
  end loop;
  -- The first sync after a logical copy (all of it at once) makes versions worth something again.
  if relation is null and agentundo._is_copy() then
    delete from agentundo._stamp;
    insert into agentundo._stamp (trusted_after) values (agentundo._last_change());
    update agentundo._stamp set own_xmin = xmin::text::bigint, own_table = tableoid::bigint;
  end if;
end
$body$;
comment on function agentundo.sync(regclass) is
  'Follows changed tables: new, renamed, retyped or dropped columns, new and detached partitions, new tables of tracked schemas, a restored dump. Adds to history, rewrites nothing, changes no row of yours.';

-- ==== 08_capture.sql ====

-- 08  Capture: a write under a tag leaves its row images, in the same transaction
--
-- Each relation of a tracked table has one capture function, generated with static SQL over explicit
-- columns, called by statement triggers that see the rows before and after as transition tables.
-- What it does for a tagged statement: one row into `_change`, the rows before (O) and after (N) into
-- the table's history. For anybody else it returns on its first lines.
--
-- Rules for the generated text, each for a reason:
--   * no EXCEPTION block: a subtransaction would give the history another xmin than the rows, and the
--     row version (see `_change`) would be worthless;
--   * every name is qualified, operators too, instead of a SET search_path clause: the clause costs as
--     much as the early exit, and without qualification a hostile search_path would run in our name;
--   * user columns never meet our names: variables begin with agentundo_, history columns are c1, c2, c3,
--     and #variable_conflict says whose is meant;
--   * the branch "where false" of the UNION compares the number of columns at parse time, _shape_ok()
--     everything else at plan time: both are gone from the executed plan.
--
-- Tables that inherit (INHERITS) use row triggers instead: a statement on the parent fires only the
-- parent's statement trigger, whose transition table lacks the children's columns.

-- Is the session one of an agent's, by role? Exact, for the rare case that the quick test in the
-- trigger cannot decide: pg_has_role() calls a superuser a member of everything.
create or replace function agentundo._is_agent() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with recursive member as (
    select oid from pg_roles where rolname in (session_user, agentundo._caller())
    union
    select a.roleid from pg_auth_members a join member m on a.member = m.oid)
  select exists (select from member where oid = to_regrole('agentundo_agent')::oid)
$body$;

-- Agents that set nothing: each of their transactions is an invocation, each of their sessions a run.
create or replace function agentundo._implicit_invocation() returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('%s-tx-%s', node, pg_current_xact_id()) from agentundo._stamp
$body$;

-- The session's name is made once and kept in the session: when it began is hidden from us.
create or replace function agentundo._implicit_run() returns text
language sql volatile security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(agentundo._setting('agentundo.session'),
    set_config('agentundo.session', format('%s-session-%s', s.node, gen_random_uuid()), false))
  from agentundo._stamp s
$body$;

-- While a revert restores rows, their images exist already: count instead of storing. The setting is
-- only a hint, the row in `_restoring`, which nobody but us can write, decides. `true`: counted.
create or replace function agentundo._counted(tracked_id int, op "char", n bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if not exists (select from agentundo._restoring r where r.xid = pg_current_xact_id()) then
    return false;
  end if;
  if n > 0 then
    insert into agentundo._restoring as r (xid, tracked, operation, planned, seen)
    values (pg_current_xact_id(), tracked_id, op, 0, n)
    on conflict (xid, tracked, operation) do update set seen = r.seen + excluded.seen;
  end if;
  return true;
end
$body$;

-- For row triggers: the columns as one text, and the thorough look where it differs.
create or replace function agentundo._columns_seen(relation oid) returns text
language sql stable as
$body$
  select pg_catalog.string_agg(pg_catalog.format('%s %L %s %s', a.attnum, a.attname, a.atttypid, a.attgenerated), ',' order by a.attnum)
  from pg_catalog.pg_attribute a
  where a.attrelid operator(pg_catalog.=) $1 and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
$body$;

create or replace function agentundo._check_shape(member int) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._shape_ok(member);
end
$body$;

create or replace function agentundo._refuse_id(id text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._check_id(id, 'value of agent.invocation');
end
$body$;

-- Is this the relation for which a capture function was made? Its number is another one in a restored copy of the
-- database; but a dump of one schema brings our triggers along, too, into databases in which the function of that
-- name belongs to another table.
create or replace function agentundo._belongs(relation oid, member int, tag text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if exists (select from agentundo._member m where m.relation = _belongs.relation and m.id = member) then
    if agentundo._is_copy() then
      if tag is null then
        return false;  -- perhaps it is only being restored; check() says that sync() is due
      end if;
      perform agentundo._lift_sequences();
    end if;
    return true;
  elsif tag is null then
    raise warning 'agentundo: % is not captured: its trigger was made for another table', relation::regclass
      using hint = format('Run "select agentundo.track(%L)" as its owner.', relation::regclass);
    return false;
  end if;
  perform agentundo._fail('UN008', format('agentundo: table %s carries triggers that were made for another one; the write is refused', relation::regclass),
    format('A dump has brought them. Run "select agentundo.track(%L)" as the owner of the table, or drop its triggers agentundo_*.', relation::regclass),
    jsonb_build_object('relation', relation::regclass::text));
  return false;
end
$body$;

-- Generates the capture function of one relation and returns its name.
create or replace function agentundo._make_capture(t agentundo._tracked, m agentundo._member) returns text
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := '_capture_' || m.id;
  history_list text;   -- c1, c2
  picked text;         -- agentundo_row."a", agentundo_row."b"
  shaped text;         -- every column in order, generated ones as a typed null
  old_values text;
  new_values text;
  exit_early text;
  tail text;
  images text;
  images_old text;
  images_new text;
  change text;
  body text;
begin
  select string_agg(quote_ident(c.history_column), ', ' order by a.attnum),
         string_agg(agentundo._stored('agentundo_row', a.attname, a.atttypid), ', ' order by a.attnum),
         string_agg(agentundo._stored('old', a.attname, a.atttypid), ', ' order by a.attnum),
         string_agg(agentundo._stored('new', a.attname, a.atttypid), ', ' order by a.attnum)
    into history_list, picked, old_values, new_values
    from pg_attribute a
    join agentundo._column c on c.tracked = t.id and c.until_change is null
     and c.name = a.attname  -- a level of the tree may have other attribute numbers than its root
   where a.attrelid = m.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '';
  select string_agg(case when a.attgenerated = '' then format('agentundo_row.%I', a.attname)
                         else format('null::%I.%I as %I', n.nspname, y.typname, a.attname) end, ', ' order by a.attnum)
    into shaped
    from pg_attribute a join pg_type y on y.oid = agentundo._base(a.atttypid) join pg_namespace n on n.oid = y.typnamespace
   where a.attrelid = m.relation and a.attnum > 0 and not a.attisdropped;
  history_list := coalesce(', ' || history_list, '');
  picked := coalesce(', ' || picked, '');

  exit_early := case t.capture when 'agent' then $exit$
    if (pg_catalog.current_setting('role') operator(pg_catalog.=) 'none'
        and (pg_catalog.current_setting('is_superuser') operator(pg_catalog.=) 'on'
             or not coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)))
      or not coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member')
           or pg_catalog.pg_has_role(pg_catalog.current_setting('role')::pg_catalog.name, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)
    then
      return null;
    end if;
    if not agentundo._is_agent() then
      return null;
    end if;
    agentundo_tag := agentundo._implicit_invocation();
    agentundo_run := agentundo._implicit_run();$exit$
  else $exit$
    agentundo_tag := null;
    if coalesce(pg_catalog.pg_has_role(session_user, pg_catalog.to_regrole('agentundo_agent')::pg_catalog.oid, 'member'), false)
      or pg_catalog.current_setting('role') operator(pg_catalog.<>) 'none' then
      if agentundo._is_agent() then
        agentundo_tag := agentundo._implicit_invocation();
        agentundo_run := agentundo._implicit_run();
      end if;
    end if;$exit$ end;

  change := format($sql$
    insert into agentundo._change (tracked, relation, filenode, rows, depth, operation, invocation, application, run, step, tool, actor, on_behalf_of, scope)
    select %s, tg_relid, pg_catalog.pg_relation_filenode(tg_relid), agentundo_counted.n, pg_catalog.pg_trigger_depth(),
      %%s, agentundo_tag, pg_catalog.current_setting('application_name'),
      case when agentundo_run is null then agentundo._setting('agent.run') else agentundo_run end,
      case when agentundo_tag is null then null else agentundo._step(agentundo._setting('agent.step')) end,
      agentundo._setting('agent.tool'), agentundo._setting('agent.actor'), agentundo._setting('agent.on_behalf_of'), agentundo._setting('agent.scope')
    from %%s
    returning change into agentundo_change;$sql$, t.id);

  if t.kind <> 'inherited' then
    change := format(change, 'agentundo_op',
      format('(select pg_catalog.count(*) from %%s agentundo_row where agentundo._shape_ok(%s)) agentundo_counted (n) where agentundo_counted.n operator(pg_catalog.>) 0', m.id));
    images := $sql$
      insert into %s (_change, _image%s)
      select agentundo_block.agentundo_change, %L%s from (
        select %s from %s agentundo_row union all select agentundo_row.* from %6$s agentundo_row where false) agentundo_row;$sql$;
    images_new := format(images, t.history, history_list, 'N', picked, shaped, 'agentundo_new');
    images_old := format(images, t.history, history_list, 'O', picked, shaped, 'agentundo_old');
    body := format($sql$
    if agentundo_op operator(pg_catalog.=) 'I' then%s
      if agentundo_change is null then return null; end if;%s
    elsif agentundo_op operator(pg_catalog.=) 'D' then%s
      if agentundo_change is null then return null; end if;%s
    else%s
      if agentundo_change is null then return null; end if;%s%s
    end if;$sql$,
      format(change, 'agentundo_new'), images_new,
      format(change, 'agentundo_old'), images_old,
      format(change, 'agentundo_new'), images_old, images_new);
    tail := format($sql$
    if pg_catalog.current_setting('agentundo.restoring', true) operator(pg_catalog.=) 'on' then
      if agentundo_op operator(pg_catalog.=) 'D' then
        if agentundo._counted(%1$s, agentundo_op, (select pg_catalog.count(*) from agentundo_old)) then return null; end if;
      elsif agentundo._counted(%1$s, agentundo_op, (select pg_catalog.count(*) from agentundo_new)) then return null;
      end if;
    end if;$sql$, t.id);
  else
    -- Row triggers. Their plans do not follow the table's shape, so they look themselves.
    change := format(change, 'agentundo_op', '(select 1) agentundo_counted (n)');
    images_old := format('
      insert into %s (_change, _image%s) values (agentundo_block.agentundo_change, ''O''%s);', t.history, history_list, coalesce(', ' || old_values, ''));
    images_new := format('
      insert into %s (_change, _image%s) values (agentundo_block.agentundo_change, ''N''%s);', t.history, history_list, coalesce(', ' || new_values, ''));
    body := format($sql$
    if agentundo._columns_seen(tg_relid) operator(pg_catalog.<>) %L::pg_catalog.text then
      perform agentundo._check_shape(%s);
    end if;%s
    if agentundo_op operator(pg_catalog.<>) 'I' then%s
    end if;
    if agentundo_op operator(pg_catalog.<>) 'D' then%s
    end if;$sql$, agentundo._columns_seen(m.relation), m.id, change, images_old, images_new);
    -- The statement trigger beside them only looks whether a table that inherits is unknown to us.
    tail := format($sql$
    if pg_catalog.current_setting('agentundo.restoring', true) operator(pg_catalog.=) 'on' then
      if agentundo._counted(%1$s, agentundo_op, case when tg_level operator(pg_catalog.=) 'ROW' then 1 else 0 end) then return null; end if;
    end if;
    if tg_level operator(pg_catalog.=) 'STATEMENT' then
      perform agentundo._check_shape(%2$s);
      return null;
    end if;$sql$, t.id, m.id);
  end if;

  body := format($plpgsql$
#variable_conflict use_column
-- Generated by agentundo._make_capture(), rebuilt by agentundo.sync().
<<agentundo_block>>
declare
  agentundo_tag pg_catalog.text := pg_catalog.current_setting('agent.invocation', true);
  agentundo_run pg_catalog.text;
  agentundo_op pg_catalog."char";
  agentundo_change pg_catalog.int8;
begin
  if agentundo_tag is null or agentundo_tag operator(pg_catalog.=) '' then%s
  elsif pg_catalog.octet_length(agentundo_tag) operator(pg_catalog.>) 255 then
    perform agentundo._refuse_id(agentundo_tag);
  end if;
  if tg_relid operator(pg_catalog.<>) %s::pg_catalog.oid and not agentundo._belongs(tg_relid, %s, agentundo_tag) then
    return null;
  end if;
  agentundo_op := pg_catalog.left(tg_op, 1)::pg_catalog."char";%s%s
  return null;
end
$plpgsql$, exit_early, m.relation::oid, m.id, tail, body);
  -- As a literal: no name of the user's can end it.
  execute format('create or replace function agentundo.%I() returns trigger language plpgsql security definer as %L', name, body);
  execute format('comment on function agentundo.%I() is %L', name, 'Captures ' || t.name);
  execute format('revoke all on function agentundo.%I() from public', name);
  return name;
end
$body$;

-- TRUNCATE destroys rows without naming them: they are copied before. Only relations that hold rows
-- themselves copy, each its own; under READ COMMITTED alone does our look see all that goes.
create or replace function agentundo._capture_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  tag text := agentundo._setting('agent.invocation');
  run text := agentundo._setting('agent.run');
  t agentundo._tracked;
  m agentundo._member;
  number bigint;
  copied bigint;
  history_list text;
  picked text;
  typed text;
begin
  select * into m from agentundo._member where relation = tg_relid;
  select * into t from agentundo._tracked where id = m.tracked;
  if tag is null and agentundo._is_agent() then
    tag := agentundo._implicit_invocation();
    run := agentundo._implicit_run();
  end if;
  if not found then
    perform agentundo._belongs(tg_relid, null, tag) where tag is not null;
    return null;
  end if;
  if agentundo._is_copy() then
    if tag is null then
      return null;
    end if;
    perform agentundo._lift_sequences();
  end if;
  -- Whoever truncates, and captured or not: rows that are there afterwards are not those of before, however
  -- equal they look.
  update agentundo._member x set emptied = agentundo._last_change(), filenode = null where x.relation = tg_relid;
  if tag is null and t.capture = 'agent' then
    return null;
  end if;
  if tag is not null then
    perform agentundo._check_id(tag, 'value of agent.invocation');
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    if tag is null then
      raise warning 'agentundo: TRUNCATE of % under % is not captured', tg_relid::regclass, upper(current_setting('transaction_isolation'));
      update agentundo._tracked x set all_since = agentundo._last_change() where x.id = t.id and x.all_since is not null;  -- not everybody was
      return null;
    end if;
    perform agentundo._fail('UN007', format('agentundo: a tagged TRUNCATE of %s is refused under %s', tg_relid::regclass, upper(current_setting('transaction_isolation'))),
      'Its snapshot may lack rows that TRUNCATE destroys. Use READ COMMITTED, or DELETE.');
  end if;
  perform agentundo._shape_ok(m.id);
  perform agentundo._fail('UN008', format('agentundo: partition %s is not tracked yet; the tagged TRUNCATE is refused', p.relid::regclass),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat it.', t.name), jsonb_build_object('relation', p.relid::regclass::text))
    from pg_partition_tree(tg_relid) p
   where tag is not null and not exists (select from agentundo._member x where x.relation = p.relid);
  if pg_relation_filenode(tg_relid) is null then
    return null;
  end if;
  select string_agg(quote_ident(c.history_column), ', '), string_agg(agentundo._stored('t', c.name, a.atttypid), ', '),
         string_agg(format('%I %s', c.history_column, c.type), ', ')
    into history_list, picked, typed
    from agentundo._column c
    join pg_attribute a on a.attrelid = tg_relid and a.attname = c.name and not a.attisdropped
   where c.tracked = t.id and c.until_change is null;
  number := nextval('agentundo._change_number');
  execute format('insert into %s (_change, _image, %s) select $1, ''O'', image.* from agentundo._look(%L) as image (%s)',
      t.history, history_list, format('select %s from only %s t', picked, tg_relid::regclass), typed) using number;
  get diagnostics copied = row_count;
  if copied > 0 then
    insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, invocation, application, run, step, tool, actor, on_behalf_of, scope)
    values (number, t.id, tg_relid, pg_relation_filenode(tg_relid), copied, pg_trigger_depth(), 'T', tag, current_setting('application_name'),
      run, agentundo._step(agentundo._setting('agent.step')), agentundo._setting('agent.tool'), agentundo._setting('agent.actor'),
      agentundo._setting('agent.on_behalf_of'), agentundo._setting('agent.scope'));
  end if;
  return null;
end
$body$;

-- PostgreSQL copies a row trigger of a partitioned table to partitions that come later. This one
-- stands on the root and is switched off on all partitions that we know, so that it speaks only in
-- one that we have not seen: there a tagged write would have been missed.
create or replace function agentundo._unknown_partition() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if agentundo._setting('agent.invocation') is not null or agentundo._is_agent() then
    perform agentundo._fail('UN008', format('agentundo: partition %s is not tracked yet; the write is refused', tg_relid::regclass),
      format('Run "select agentundo.sync(%L)" as a role that may, then repeat the write.', agentundo._root(tg_relid)::text),
      jsonb_build_object('relation', tg_relid::regclass::text));
  end if;
  return null;
end
$body$;

-- Makes and arms the triggers of one relation. False: they were not all there and armed before.
create or replace function agentundo._make_triggers(t agentundo._tracked, m agentundo._member, capture_function text) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  w record;
  present pg_trigger;
  relkind "char" := (select c.relkind from pg_class c where c.oid = m.relation);
  owner name := (select pg_get_userbyid(c.relowner) from pg_class c where c.oid = m.relation);
  guest constant boolean := owner <> current_user and not has_schema_privilege(owner, 'agentundo', 'usage');
  lent text[] := array[capture_function, '_capture_truncate'];
  one text;
  missing text[] := array[]::text[];
  wanted text[] := array[]::text[];
  armed boolean := true;
begin
  for w in
    select * from (values
      ('agentundo_insert', capture_function, t.kind <> 'inherited'),
      ('agentundo_update', capture_function, t.kind <> 'inherited'),
      ('agentundo_delete', capture_function, t.kind <> 'inherited'),
      ('agentundo_row', capture_function, t.kind = 'inherited'),
      ('agentundo_tree', capture_function, t.kind = 'inherited'),
      ('agentundo_truncate', '_capture_truncate', true),
      ('agentundo_unknown', '_unknown_partition', relkind = 'p' and m.relation = t.relation)
    ) v (name, function, wanted)
    where v.wanted
  loop
    wanted := wanted || w.name;
    select * into present from pg_trigger where tgrelid = m.relation and tgname = w.name;
    if found and present.tgparentid = 0 and present.tgfoid is distinct from to_regproc(format('agentundo.%I', w.function)) then
      perform agentundo._by_deputy('drop trigger', m.relation, w.name);  -- made for another table, see _belongs()
      missing := missing || array[[w.name, w.function]];
    elsif present.tgname is null then
      missing := missing || array[[w.name, w.function]];
    elsif present.tgenabled <> 'A' then
      perform agentundo._by_deputy('switch', m.relation, w.name, 'A');
      armed := false;
    end if;
  end loop;
  -- The owner's deputy names the functions when it creates the triggers: lent for as long as that takes, or the
  -- owner could hang them on tables of any shape. Two migrations at once would stumble over the catalog.
  if missing <> array[]::text[] then
    perform agentundo._lock_grants();
    if owner <> current_user then
      foreach one in array lent loop
        execute format('grant execute on function agentundo.%I() to %I', one, owner);
      end loop;
      execute format('grant usage on schema agentundo to %I', owner);
    end if;
    for i in 1 .. array_length(missing, 1) loop
      perform agentundo._by_deputy('trigger', m.relation, missing[i][1], missing[i][2]);
    end loop;
    if owner <> current_user then
      foreach one in array lent loop
        execute format('revoke execute on function agentundo.%I() from %I', one, owner);
      end loop;
      if guest then
        execute format('revoke usage on schema agentundo from %I', owner);
      end if;
    end if;
  end if;
  -- A plain table that has become part of an inheritance tree, or the other way round.
  for present in
    select * from pg_trigger
    where tgrelid = m.relation and tgname like 'agentundo\_%' and tgname <> all (wanted) and tgparentid = 0
      and tgfoid in (select oid from pg_proc where pronamespace = 'agentundo'::regnamespace)
  loop
    perform agentundo._by_deputy('drop trigger', m.relation, present.tgname::text);
  end loop;
  -- The copy of the sentinel on a partition that we know now.
  for present in
    select * from pg_trigger where tgrelid = m.relation and tgname = 'agentundo_unknown' and tgparentid <> 0 and tgenabled <> 'D'
  loop
    perform agentundo._by_deputy('switch', m.relation, 'agentundo_unknown', 'D');
  end loop;
  return armed and missing = array[]::text[];
end
$body$;

-- ==== 09_images.sql ====

-- 09  Images: how one row of history, or of a table, is read and compared
--
-- History keeps each column of a table in a history column of its own, named by attribute number, and
-- in a further one after the column has changed its type. What stands here turns a column of the table
-- into an SQL expression over a history row, whatever has happened to it since. These functions return
-- text: pieces of the statements that the following files put together.

-- A template with its {{placeholders}} filled in, in one pass: what is filled in is not looked at again. One
-- that has no value stays, and the statement says so by failing.
create or replace function agentundo._fill(template text, pieces jsonb) returns text
language sql immutable as
$body$
  select string_agg(piece || coalesce(pieces ->> name, '{{' || name || '}}', ''), '' order by n)
  from rows from (
    regexp_split_to_table(template, '[{][{][a-z_]+[}][}]'),
    regexp_matches(template, '[{][{]([a-z_]+)[}][}]', 'g')) with ordinality x (piece, names, n)
  cross join lateral (select names[1]) y (name)
$body$;

-- The table as it stands in a FROM clause: its own rows, and those of its partitions, but not of tables
-- that inherit, which are tracked for themselves.
create or replace function agentundo._from(t agentundo._tracked) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$ select case when t.kind = 'inherited' then 'only ' else '' end || t.relation::text $body$;

-- The equality operator of a type's default btree class, qualified: `=` is looked up along the
-- search_path, and citext, ltree and others live in schemas that ours does not name.
create or replace function agentundo._equal(type oid) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with base as (
    select coalesce(nullif(t.typbasetype, 0), t.oid) as oid from pg_type t where t.oid = type)
  select coalesce(
    (select format('operator(%I.%s)', n.nspname, o.oprname)
     from base
     join pg_opclass c on c.opcintype = base.oid and c.opcdefault
     join pg_am am on am.oid = c.opcmethod and am.amname = 'btree'
     join pg_amop p on p.amopfamily = c.opcfamily and p.amopstrategy = 3 and p.amoplefttype = c.opcintype and p.amoprighttype = c.opcintype
     join pg_operator o on o.oid = p.amopopr
     join pg_namespace n on n.oid = o.oprnamespace
     limit 1),
    'operator(pg_catalog.=)')
$body$;

-- May a value kept in history as `old` be given back as `new` without a loss? Then a retyped column
-- can still be restored.
create or replace function agentundo._widens(old text, new text) returns boolean
language sql stable as
$body$
  select old = new
    or exists (
      select from pg_cast c
      where c.castsource = to_regtype(old) and c.casttarget = to_regtype(new) and c.castcontext = 'i'
        and (c.castmethod = 'b' or (old, new) in (
          ('smallint', 'integer'), ('smallint', 'bigint'), ('smallint', 'numeric'), ('integer', 'bigint'), ('integer', 'numeric'),
          ('bigint', 'numeric'), ('real', 'double precision'), ('date', 'timestamp without time zone'), ('bpchar', 'text'), ('character varying', 'text'))))
$body$;

-- Has a label of this enum column been renamed since it was tracked? Nearly never, and then its images
-- are read as they are.
create or replace function agentundo._renamed_labels(tracked_id int, attnum smallint) returns boolean
language sql stable as
$body$
  select exists (
    select from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    where l.tracked = tracked_id and l.attnum = _renamed_labels.attnum
      and not exists (select from pg_enum e where e.enumtypid = agentundo._enum(a.atttypid) and e.enumlabel = l.label and e.oid::bigint = l.place))
$body$;

-- An enum label of change number `change` as it is called today: it kept its place in the order.
create or replace function agentundo._label_now(tracked_id int, attnum smallint, label text, change bigint) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((
    select e.enumlabel::text
    from agentundo._label l
    join agentundo._tracked t on t.id = l.tracked
    join pg_attribute a on a.attrelid = t.relation and a.attnum = l.attnum
    join pg_enum e on e.enumtypid = agentundo._enum(a.atttypid) and e.oid::bigint = l.place
    where l.tracked = tracked_id and l.attnum = _label_now.attnum and l.label = _label_now.label
    order by change > l.since_change and change <= coalesce(l.until_change, change) desc, l.since_change desc
    limit 1), label)
$body$;

-- The same for arrays of labels, keeping their dimensions and bounds.
create or replace function agentundo._label_now(tracked_id int, attnum smallint, labels text[], change bigint) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  old record;
begin
  for old in select distinct l, row_number() over () as n from unnest(labels) l where l is not null group by l loop
    labels := array_replace(labels, old.l, e'\x01' || old.n);
    labels := array_replace(labels, e'\x01' || old.n, e'\x02' || agentundo._label_now(tracked_id, attnum, old.l, change));
  end loop;
  for old in select distinct l from unnest(labels) l where l like e'\x02%' loop
    labels := array_replace(labels, old.l, substr(old.l, 2));
  end loop;
  return labels;
end
$body$;

-- The live columns of a table as SQL expressions over an image: `value` over the history alias, for the
-- image of change number `change` (an SQL expression too), from the history column in which the column
-- lived then; `known` is a condition that the image has it at all, null where every image does.
create or replace function agentundo._image_columns(tracked_id int, alias text, change text)
returns table (attnum smallint, name name, type text, type_now oid, value text, known text, since_change bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with piece as (
    select c.*, first_value(c.type) over w as newest_type, bool_or(c.live) over w as lives
    from agentundo._columns(tracked_id) c
    where c.until_change is null or c.until_change > c.since_change  -- else it came and went without an image
    window w as (partition by c.attnum order by c.since_change desc)),
  usable as (
    select p.*, bool_and(agentundo._widens(p.type, p.newest_type)) over (partition by p.attnum order by p.since_change desc) as usable
    from piece p where p.lives),
  merged as (
    select u.attnum, (array_agg(u.name order by u.since_change desc))[1] as name, min(u.newest_type) as type, min(u.type_now) as type_now,
      count(u.history_column) as pieces, count(*) as every, min(u.history_column) as only_one,
      (array_agg(u.history_column order by u.since_change desc) filter (where u.history_column is not null))[1] as newest,
      string_agg(format(' when %s > %s then %I.%I%s', change, u.since_change, alias, u.history_column,
        case when u.type <> u.newest_type then '::' || u.newest_type else '' end), '' order by u.since_change desc) filter (where u.history_column is not null) as branches,
      min(u.since_change) as since_change
    from usable u where u.usable
    group by u.attnum)
  select m.attnum, m.name, m.type, m.type_now,
    case when m.pieces = 0 then 'null::' || m.type
      when m.type in ('text', 'text[]') and agentundo._renamed_labels(tracked_id, m.attnum) then
        format('agentundo._label_now(%s, %s::smallint, %I.%I, %s)', tracked_id, m.attnum, alias, m.newest, change)
      when m.every = 1 then format('%I.%I', alias, m.only_one)
      else 'case' || m.branches || ' end' end,
    case when m.pieces = 0 then 'false' when m.since_change > 0 then format('%s > %s', change, m.since_change) end, m.since_change
  from merged m
$body$;

create or replace function agentundo._comparable(expression text, type text, by_value boolean) returns text
language sql immutable as
$body$
  select case
    when not by_value then expression
    when type = 'numeric' then format('trim_scale(%s)', expression)
    when type = 'bpchar' then format('rtrim(%s)', expression)
    else expression end
$body$;

-- The row of an image, or of the table, as a record to be compared: all live columns in attribute
-- order. A column that the image does not know yet takes the table's own value, so that it differs
-- from nothing. Without a table, images are compared with one another: then also by what a column held before it
-- was retyped beyond recognition. `by_value`: for relations rewritten since, where ALTER TABLE may have padded or rescaled.
-- `up_to`: without the columns that the images of that change do not know yet.
create or replace function agentundo._image_row(
  tracked_id int, alias text, change text, table_alias text default null, by_value boolean default false, up_to bigint default null) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'row(' || concat_ws(', ', string_agg(agentundo._comparable(
      case when i.known is null then i.value
        else format('case when %s then %s else %s end', i.known, i.value,
          case when table_alias is null then 'null::' || i.type else agentundo._stored(table_alias, i.name, i.type_now) end) end,
      i.type, by_value), ', ' order by i.attnum),
    (select string_agg(format('%I.%I', alias, c.history_column), ', ' order by c.history_column)
     from agentundo._columns(tracked_id) c
     where table_alias is null and c.until_change is not null and c.history_column is not null
       and exists (select from agentundo._columns(tracked_id) n where n.attnum = c.attnum and n.live and not agentundo._widens(c.type, n.type)))) || ')::record'
  from agentundo._image_columns(tracked_id, alias, change) i where coalesce(i.since_change < up_to, true)
$body$;

create or replace function agentundo._table_row(tracked_id int, alias text, by_value boolean default false) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'row(' || coalesce(string_agg(agentundo._comparable(agentundo._stored(alias, c.name, c.type_now), c.type, by_value), ', ' order by c.attnum), '') || ')::record'
  from agentundo._columns(tracked_id) c where c.live
$body$;

-- A value of history in the column's own type but for its domains, whose checks are the user's code, and
-- as the type's input function reads it: a cast could be a function of the user's, which may say something
-- else and must not run with our rights. `by_worker`: it runs as agentundo_worker, so that it is enough
-- that there is no such cast now.
create or replace function agentundo._given_back(expression text, type oid, by_worker boolean default false) returns text
language sql stable as
$body$
  select case
    when y.typtype = 'b' and y.typelem = 0 then format('(%s)::%s', expression, format_type(y.oid, -1))
    else (
      select case
        when base.typtype = 'e' and (not by_worker or exists (select from pg_cast c where c.castsource = 'text'::regtype and c.casttarget = base.oid)) then
          format('(select label.label from unnest(enum_range(null::%1$s)) label where format(''%%s'', label.label) = %2$s)', base.name, expression)
        when base.name like '%[]' and base.name <> agentundo._history_type(y.oid) then format('agentundo._array_as(%s, null::%s)', expression, base.name)
        else format('(%s)::%s', expression, base.name) end
      from (select b.oid, b.typtype, format_type(b.oid, -1) as name from pg_type b where b.oid = agentundo._base(y.oid)) base) end
  from pg_type y where y.oid = type
$body$;

-- The key of a tracked table as it is now: one row per column. No rows: the whole row is the key. A column that
-- was retyped without a loss has its values in several history columns; `history_column` is the newest, which
-- _history() fills from the others.
create or replace function agentundo._key(
  tracked_id int, out place int, out attnum smallint, out name name, out history_column name, out history_type text,
  out type oid)
returns setof record language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
#variable_conflict use_column
begin
  return query
  with part as (
    select k.n::int as place, k.attnum, now.name, now.type_now, old.history_column, old.type, old.since_change,
      agentundo._widens(old.type, now.type) and not (old.type = 'text' and agentundo._renamed_labels(tracked_id, k.attnum))
        and not exists (select from agentundo._column c where c.tracked = tracked_id and c.attnum = k.attnum and c.computed and c.since_change >= old.until_change) as usable
    from agentundo._tracked t
    cross join lateral agentundo._best_key(t.relation) b
    cross join lateral unnest(b.columns) with ordinality k (attnum, n)
    left join agentundo._columns(t.id) now on now.attnum = k.attnum and now.live
    left join agentundo._columns(t.id) old on old.attnum = k.attnum and old.history_column is not null
      and coalesce(old.until_change > old.since_change, true)
    where t.id = tracked_id)
  select p.place, p.attnum, p.name, (array_agg(p.history_column order by p.since_change desc))[1], (array_agg(p.type order by p.since_change desc))[1], p.type_now
  from part p
  -- A key column that came later, or whose values would not be the same ones now, cannot find old images by a
  -- join; then whole rows are compared.
  where not exists (
    select from part x group by x.attnum having not coalesce(bool_and(x.usable) and min(x.since_change) = 0, false))
  group by p.place, p.attnum, p.name, p.type_now;
end
$body$;

-- History as it stands in a FROM clause: the newest history column of each key column has the key of all images.
create or replace function agentundo._history(t agentundo._tracked) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with filled as (
    select k.history_column, string_agg(format('%I%s', c.history_column, case when c.type <> k.history_type then '::' || k.history_type else '' end), ', ' order by c.since_change desc) as sources
    from agentundo._key(t.id) k
    join agentundo._columns(t.id) c on c.attnum = k.attnum and c.history_column is not null and coalesce(c.until_change > c.since_change, true)
    group by k.history_column having count(*) > 1)
  select case when not exists (select from filled) then t.history::text
    else '(select ctid, ' || string_agg(case when f.sources is null then quote_ident(a.attname) else format('coalesce(%s) as %I', f.sources, f.history_column) end, ', ' order by a.attnum) || format(' from %s)', t.history) end
  from pg_attribute a left join filled f on f.history_column = a.attname
  where a.attrelid = t.history and a.attnum > 0 and not a.attisdropped
$body$;

-- The columns of history that hold the key, with an alias before each; null: there is no key.
create or replace function agentundo._key_list(tracked_id int, alias text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I', alias, k.history_column), ', ' order by k.place) from agentundo._key(tracked_id) k
$body$;

-- The condition that two rows with the key columns of history are about the same key.
create or replace function agentundo._same_key(tracked_id int, alias text, other text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I %s %I.%I', alias, k.history_column, agentundo._equal(to_regtype(k.history_type)), other, k.history_column), ' and ' order by k.place)
  from agentundo._key(tracked_id) k
$body$;

-- The condition that a row of the table has the key of a row with the key columns of history.
create or replace function agentundo._has_key(tracked_id int, alias text, history text) returns text
language sql stable as
$body$
  select string_agg(format('%I.%I %s %s', alias, k.name, agentundo._equal(k.type), agentundo._given_back(format('%I.%I', history, k.history_column), k.type)), ' and ' order by k.place)
  from agentundo._key(tracked_id) k
$body$;

-- What a delta column has gained by the images in `added`, and lost by those in `taken`, as text that any session reads the
-- same: an aggregate. Null where there is nothing to subtract it from, or the rest would not fit the type.
create or replace function agentundo._delta_sql(type text, current text, added text, taken text, known text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select format('case when %1$s is not null and bool_and(%2$s)%3$s then (sum(%4$s) - sum(%5$s))::text end', current, known,
    case when w.lowest is not null then format(' and %s - (sum(%s) - sum(%s)) between %s and %s', current, added, taken, w.lowest, -(w.lowest + 1)) else '' end, added, taken)
  from (select case type when 'smallint' then -32768::numeric when 'integer' then -2147483648 when 'bigint' then -9223372036854775808 end) w (lowest)
$body$;

-- Numbers of which no difference is lost on the way.
create or replace function agentundo._wide(type text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select case when type in ('smallint', 'integer', 'bigint') then 'numeric' else type end $body$;

-- The delta columns from which something can be subtracted: not what is infinite, or no number.
create or replace function agentundo._subtractable(sums jsonb) returns text[]
language sql immutable set search_path = pg_catalog, pg_temp as
$body$ select coalesce(array_agg(k), '{}') from jsonb_each_text(sums) s (k, v) where v !~* 'inf|nan' $body$;

-- ==== 10_history.sql ====

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

-- ==== 11_guard.sql ====

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

-- ==== 12_net.sql ====

-- 12  Net: what a set of changes did to each row, and what the row is now
--
-- For every key that the set touched: the image before the set, the image after it, the current row.
-- A set that is one change of a table, as nearly all are, takes a straight way: two images and the row. Of
-- any other, keys with a single change are simple and the rest are solved as chains:
--   * between transactions the change number is the order, because row locks serialised them;
--   * inside one transaction it is not (a user's AFTER ROW trigger on the same table is captured before
--     the statement that fired it), so images are linked instead: an N that equals another's O cancels,
--     absence is a state too, and what is left over is the transaction's before and after;
--   * where the after of one transaction is not the before of the next, somebody else wrote in between:
--     a segment boundary. Only the last segment can go back.
--
-- Images are compared as stored (the operator *=), over explicit column lists without generated
-- columns, never with =. Everything here is a pure SELECT over one snapshot, executed by agentundo_worker
-- (_look() in 11_guard.sql): $6 are the changes of the set, $7 those of its own reverts and redos; $9 are
-- numbers: changes up to the first are compared by image alone, rows of changes up to the second are gone by
-- TRUNCATE, the third is where places begin, the fourth the table, the fifth where journals begin (14_chains.sql).

-- Is a change somebody else's write? A change that a standing revert took back and that revert's own
-- change cancel each other, as if neither had been. A condition over the alias, as text.
create or replace function agentundo._stranger_sql(alias text) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format($sql$(not %1$I.void
    and not exists (select from agentundo._reverted u join agentundo._revert v on v.id = u.revert and v.standing and not v.reopened where u.change = %1$I.change)
    and not exists (select from agentundo._revert v where v.id = %1$I.invocation and v.xid = %1$I.xid and v.standing))$sql$, alias)
$body$;

-- Has a change c been undone in one row, wholly or there alone, by an undo that left others as they were? A condition
-- over the key columns of `row_alias`, as text.
create or replace function agentundo._undone_in_row_sql(t agentundo._tracked, row_alias text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$exists (
      select from agentundo._revert v
      where v.invocations @> array[c.invocation] and v.standing and v.number > c.change
        and (not v.reopened and exists (select from agentundo._reverted u where u.change = c.change and u.revert = v.id)
          or exists (
            select from agentundo._change f join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_row}}
            where f.invocation = v.id and f.xid = v.xid and f.tracked = c.tracked)
          and not exists (
            select from agentundo._revert w join agentundo._change f on f.invocation = w.id and f.xid = w.xid and f.tracked = c.tracked
            join {{history}} h on h._change = coalesce(f.source, f.change) and {{of_row}}
            where w.invocations @> array[v.id] and w.standing and w.number > v.number)))$sql$,
    jsonb_build_object('history', agentundo._history(t), 'of_row', agentundo._same_key(t.id, 'h', row_alias)))
  where exists (select from agentundo._key(t.id))
$body$;

-- Is a change c somebody's own write that still stands in one row? Not what an undo put back, nor what was undone.
create or replace function agentundo._stands_in_row_sql(t agentundo._tracked, row_alias text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(format('(not c.void and not exists (select from agentundo._revert v where v.id = c.invocation and v.xid = c.xid) and not %s)',
    agentundo._undone_in_row_sql(t, row_alias)), agentundo._stranger_sql('c'))
$body$;

-- The versions that reverts and redos have left in a table, and those of changes that were undone and had
-- come to nothing. A row that one of them brought to the very image that our set had left is as our set left
-- it, if no stranger wrote it in between.
create or replace function agentundo._undo_versions_sql() returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select 'select c.xmin::text::bigint from agentundo._revert v join agentundo._change c on c.invocation = v.id and c.xid = v.xid and c.tracked = $9[4]::int
    union all select c.xmin::text::bigint from agentundo._reverted u join agentundo._revert v on v.id = u.revert and v.standing and not v.reopened
    join agentundo._change c on c.change = u.change and c.tracked = $9[4]::int'
$body$;

-- The part of the statement that both kinds of tables begin with: the changes of the set, those by others in
-- the same transactions, and the set's images.
create or replace function agentundo._net_head(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  with recursive change as materialized (
    select c.change, c.xid, c.xmin::text::bigint as version, coalesce(c.source, c.change) as source, c.inverted, c.operation, c.filenode, c.invocation, c.void
    from agentundo._change c where c.tracked = $9[4]::int and c.change = any ($6)),
  foreigner as materialized (
    select f.change, f.xid, coalesce(f.source, f.change) as source
    from agentundo._change f
    where f.tracked = $9[4]::int and f.xid in (select xid from change) and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}),
  image as materialized (
    select c.change, c.xid, (h._image = 'O') <> c.inverted as old, h.ctid as tid{{keys}}
    from change c join {{history}} h on h._change = c.source)$sql$,
    jsonb_build_object('history', agentundo._history(t), 'stranger', agentundo._stranger_sql('f'), 'keys', coalesce(', ' || agentundo._key_list(t.id, 'h'), '')))
$body$;

-- Changes up to this number are compared by image alone: their xmins come from before a logical copy.
create or replace function agentundo._trusted_after() returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when agentundo._is_copy() then 9223372036854775807 else (select s.trusted_after from agentundo._stamp s) end
$body$;

-- The table as the current rows are looked up in it: by index for few, and read through once where the
-- set touched a good part of it, which the planner cannot know of a set that it does not see.
create or replace function agentundo._lookup_sql(t agentundo._tracked, changes bigint[]) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case
    when (select sum(c.rows) from agentundo._change c where c.change = any (changes) and c.tracked = t.id) * 20
         > (select sum(greatest(c.reltuples, 0)) from agentundo._levels(t.relation, t.kind) l join pg_class c on c.oid = l)
      then format('(select r.ctid, r.tableoid, r.xmin, r.* from %s r offset 0)', agentundo._from(t))
    else agentundo._from(t) end
$body$;

-- After an uninstall that kept history, or a careless REVOKE, tables have to be tracked anew.
create or replace function agentundo._require_rights(tables int[]) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := (
    select t.name from agentundo._tracked t join pg_class c on c.oid = t.relation and c.relkind in ('r', 'p')
    where t.id = any (tables) and not has_table_privilege(agentundo._worker(), t.relation, 'select') order by t.id limit 1);
begin
  if name is not null then
    perform agentundo._fail('UN003', format('agentundo: %s has lost its rights on %s', agentundo._worker(), name),
      format('Run "select agentundo.track(%L)" as the owner of the table.', name), jsonb_build_object('relation', name));
  end if;
end
$body$;

-- The statement for a table that is there: by whichever way, and beside it what history has lost of the set.
create or replace function agentundo._net_sql(t agentundo._tracked, changes bigint[], straight boolean, begins bigint) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return case
      when not exists (select from agentundo._key(t.id)) then agentundo._net_keyless_sql(t)
      when straight then agentundo._net_straight_sql(t, changes, agentundo._lookup_sql(t, changes))
      else agentundo._net_keyed_sql(t, agentundo._lookup_sql(t, changes), begins) end
    || case when exists (select from agentundo._erased e where e.tracked = t.id) then $sql$
        union all
        select $9[4]::int, c.change, null, null, null, null, c.change, c.change,
          'none', 'conflict', 'erased', null, null, null, min(case when c.operation = 'U' then 'moved' end), null
        from agentundo._change c
        join agentundo._erased e on e.tracked = $9[4]::int and e.change = coalesce(c.source, c.change)
        where c.change = any ($6) and c.tracked = $9[4]::int
        group by c.change$sql$ else '' end
    || format($sql$
        union all  -- images that were left out of a dump, or deleted by hand
        select $9[4]::int, c.change, null, null, null, null, c.change, c.change,
          'none', 'conflict', 'erased', null, null, null, null, '{"hint": "Its images are not in history: left out of a dump, or deleted there."}'
        from agentundo._change c
        where c.change = any ($6) and c.tracked = $9[4]::int and c.rows > 0
          and not exists (select from %s h where h._change = coalesce(c.source, c.change))
          and not exists (select from agentundo._erased e where e.tracked = c.tracked and e.change = coalesce(c.source, c.change))$sql$, t.history);
end
$body$;

-- Per row: before, after, current, and whether anybody wrote since. Statuses are first ones: 'ok',
-- 'done' and 'conflict' with the reasons that one row alone gives. Rows on which the set's changes
-- cancel out are not reported. Places are counted from `first_place`.
create or replace function agentundo._net(tracked_id int, changes bigint[], family bigint[], first_place int)
returns agentundo._decision[] language plpgsql stable security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  statement text;
  decisions agentundo._decision[];
  straight boolean;
  gone boolean;
  begins bigint;
  loops constant text := current_setting('enable_nestloop');
begin
  select * into t from agentundo._tracked where id = tracked_id;
  straight := agentundo._is_straight(t, changes);
  gone := t.relation is null or not exists (select from pg_class where oid = t.relation and relkind in ('r', 'p'));
  if not gone then
    perform agentundo._require_rights(array[tracked_id]);
  end if;
  loop
    if gone then
      -- Dropped since, or made something else: nothing to compare with, and nothing can be put back.
      statement := format($sql$
        select $9[4]::int, c.change, null::oid, null::tid, null::tid, null::tid, c.change, c.change,
          'none', 'conflict', 'schema_changed', null, null::text[], null::jsonb, null,
          jsonb_build_object('hint', %L, 'rows', c.rows)
        from agentundo._change c where c.change = any ($6) and c.tracked = $9[4]::int$sql$, format('Table %s is gone.', t.name));
    else
      begins := case when not straight then agentundo._journal_begins(t, changes) end;
      statement := agentundo._net_sql(t, changes, straight, begins);
    end if;
    -- The planner takes the steps of a chain for a few rows each. Where they are many, one loop inside another
    -- would never end.
    if not straight and (select sum(c.rows) from agentundo._change c where c.change = any (changes) and c.tracked = tracked_id) > 200 then
      perform set_config('enable_nestloop', 'off', true);
    end if;
    -- The table is named before its history, as everybody locks them who changes either.
    select * into decisions from agentundo._look(format($sql$
      with agentundo_first as (select from %s where false)
      select coalesce(array_agg(decision), '{}')
      from (select row(($9[3] + row_number() over ())::int, net.*)::agentundo._decision as decision from (%s) net) numbered$sql$,
        case when gone then 'pg_class' else agentundo._from(t) end, statement),
      e => changes, f => family,
      h => array[agentundo._trusted_after(), (select coalesce(max(m.emptied), 0) from agentundo._member m where m.tracked = tracked_id), first_place, tracked_id, begins])
      as net (decisions agentundo._decision[]);
    perform set_config('enable_nestloop', loops, true);
    if decisions is null then
      perform agentundo._require_workers();
    end if;
    exit when not straight or gone or agentundo._stayed_straight(t, changes, decisions);
    straight := false;
  end loop;
  if not gone then
    perform agentundo._require_storage(t);
  end if;
  return decisions;
end
$body$;

-- TRUNCATE and what rewrites a table are seen at once by every snapshot, and to one that is older the table is empty. What
-- was decided by such a look is worth nothing: look again, or begin anew.
create or replace function agentundo._require_storage(t agentundo._tracked) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if exists (
    select from agentundo._levels(t.relation, t.kind) l join pg_class c on c.oid = l
    where c.relfilenode <> 0 and c.relfilenode is distinct from pg_relation_filenode(c.oid)) then
    if current_setting('transaction_isolation') = 'read committed' then
      raise exception using errcode = 'UNR01';
    end if;
    raise exception using errcode = '40001', message = format('agentundo: table %s was rewritten since this transaction began', t.name),
      hint = 'Begin a new transaction and call revert again.';
  end if;
end
$body$;

-- Rows that the set made, and that are in the table no more because their partition was detached: nothing has been done
-- about them.
create or replace function agentundo._in_detached(d agentundo._decision[]) returns agentundo._decision[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  former regclass;
  x agentundo._decision;
  i int;
  places int[];
begin
  for former in
    select p.relation from agentundo._detached p join pg_class c on c.oid = p.relation
    where p.tracked in (select y.tracked from unnest(d) y where y.status = 'done' and y.cur is null and y.after is not null)
  loop
    select g.* into t from agentundo._tracked g join agentundo._detached p on p.tracked = g.id where p.relation = former;
    continue when not exists (select from agentundo._key(t.id));
    if has_table_privilege(agentundo._worker(), former, 'select') then
      select found.places into places from agentundo._look(format($sql$
        select array_agg(y.place)
        from unnest($1) y join lateral (select * from %s h where h.ctid = y.after offset 0) n on true
        where y.tracked = %s and y.status = 'done' and y.cur is null and exists (select from only %s r where %s)$sql$,
        agentundo._history(t), t.id, former, agentundo._has_key(t.id, 'r', 'n')), null, d) as found (places int[]);
    else
      places := array(select y.place from unnest(d) y where y.tracked = t.id and y.status = 'done' and y.cur is null and y.after is not null);
    end if;
    foreach i in array coalesce(places, '{}') loop
      x := d[i];
      x.status := 'conflict';
      x.reason := 'schema_changed';
      x.detail := coalesce(x.detail, '{}') || jsonb_build_object('hint', format('It lies in %s, which was detached: attach it again.', former));
      d[i] := x;
    end loop;
  end loop;
  return d;
end
$body$;

-- Was anything in this table taken back after these changes? Not each revert wrote a change of its own.
create or replace function agentundo._undone_since(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with ours as (select max(c.change) as last from agentundo._change c where c.tracked = t.id and c.change = any (changes))
  select exists (
      select from ours join agentundo._revert v on v.number > ours.last join agentundo._reverted x on x.revert = v.id
      join agentundo._change c on c.change = x.change and c.tracked = t.id)
    or exists (
      select from ours join agentundo._change c on c.tracked = t.id and c.change > ours.last
      join agentundo._revert v on v.id = c.invocation and v.xid = c.xid)
$body$;

-- Is there an undo after these changes that stands for more rows of the table than it has written?
create or replace function agentundo._undone_unwritten(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from agentundo._revert v
    where v.number > (select max(c.change) from agentundo._change c where c.tracked = t.id and c.change = any (changes))
      and (select sum(c.rows) from agentundo._reverted u join agentundo._change c on c.change = u.change and c.tracked = t.id where u.revert = v.id)
        > (select coalesce(sum(c.rows), 0) from agentundo._change c where c.invocation = v.id and c.xid = v.xid and c.tracked = t.id and not c.void))
$body$;

-- Was the straight way right? Each image and each row may stand in one decision only (two foreign keys that
-- act can write a row twice in one change). If anything was undone since, only rows that are as the change left
-- them have nothing to do with it, unless an undo took something back without having to write it; and where
-- versions are lost, whoever has written since may have left the same.
create or replace function agentundo._stayed_straight(t agentundo._tracked, changes bigint[], d agentundo._decision[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select (select count(x.before) = case when c.operation = 'I' then 0 else c.rows end
              and count(x.after) = case when c.operation in ('D', 'T') then 0 else c.rows end
              and count(x.cur) = count(distinct (x.cur, x.part))
          from unnest(d) x)
    and (not agentundo._undone_since(t, changes)
      or not agentundo._undone_unwritten(t, changes) and not exists (select from unnest(d) x where x.status <> 'ok' or x.cur is null or x.basis <> 'version'))
    and (not exists (select from unnest(d) x where x.basis = 'value' and x.cur is not null)
      or not exists (select from agentundo._change f where f.tracked = t.id and f.change > (select max(o.change) from agentundo._change o where o.change = any (changes) and o.tracked = t.id)))
  from agentundo._change c where c.tracked = t.id and c.change = any (changes)
$body$;

-- Up to which change several rows may have had what is one key today: another key held then, or none.
create or replace function agentundo._key_since(t agentundo._tracked) returns bigint
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when t.key_columns <> '{}' and t.key_columns <@ b.columns then t.key_since else 9223372036854775807 end
  from agentundo._best_key(t.relation) b
$body$;

-- Is all that the set did to this table one change, beside which nobody else wrote in its transaction? Nearly
-- always. Then each key has one image before, one after, and the version of the row is that of the change.
create or replace function agentundo._is_straight(t agentundo._tracked, changes bigint[]) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select count(*) = 1 and not bool_or(s.void)
    and not exists (
      select from agentundo._change f
      where f.tracked = t.id and f.xid = any (array_agg(s.xid)) and f.change <> all (changes))
    and min(s.change) > agentundo._key_since(t)
    -- a key that is checked at COMMIT only can stand twice in one change
    and coalesce((select i.indimmediate from agentundo._key(t.id) k, agentundo._best_key(t.relation) b join pg_index i on i.indexrelid = b.index limit 1), false)
    and not exists (select from agentundo._erased e where e.tracked = t.id)
  from agentundo._change s where s.tracked = t.id and s.change = any (changes)
$body$;

-- A condition that is true for images older than a change of type that cannot be undone for values, or than values that
-- were computed anew, and for rows of which the set wrote some images before a column was added and some after.
create or replace function agentundo._retyped(tracked_id int, change text, before_change text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select concat_ws(' or ', 'false',
    (select format('least(%s, %s) <= %s', change, before_change, max(old.until_change))
     from agentundo._columns(tracked_id) old
     join agentundo._columns(tracked_id) new on new.attnum = old.attnum and new.live
     where old.until_change is not null and not agentundo._widens(old.type, new.type)
     having max(old.until_change) is not null),
    (select format('least(%s, %s) <= %s', change, before_change, max(c.since_change)) from agentundo._column c
     where c.tracked = tracked_id and c.attnum > 0 and c.computed having max(c.since_change) > 0),
    (select string_agg(format('%1$s <= %2$s and %3$s > %2$s', before_change, c.since_change, change), ' or ')
     from (
       select min(c.since_change) as since_change from agentundo._columns(tracked_id) c
       where c.history_column is not null and coalesce(c.until_change > c.since_change, true)
       group by c.attnum having bool_or(c.live)) c
     where c.since_change > 0))
$body$;

-- The names of the columns that are to blame, as text of an expression.
create or replace function agentundo._retyped_columns(tracked_id int, change text, before_change text) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format('array_remove(array[%s]::text[], null)', string_agg(format('case when least(%s, %s) <= %s then %L end', change, before_change, c.until_change, c.name), ', ' order by c.attnum))
  from (
    select y.attnum, min(y.name) as name, max(y.at) as until_change
    from (
      select new.attnum, new.name, old.until_change as at
      from agentundo._columns(tracked_id) old
      join agentundo._columns(tracked_id) new on new.attnum = old.attnum and new.live
      where old.until_change is not null and not agentundo._widens(old.type, new.type)
      union all
      select c.attnum, c.name, c.since_change from agentundo._column c where c.tracked = tracked_id and c.attnum > 0 and c.computed) y
    group by y.attnum) c
$body$;

-- Has the storage of the row r been rewritten since a change? All of its rows have another xmin then. A change
-- knows the storage of its table; that of partitions is noted by sync().
create or replace function agentundo._rewritten_sql(t agentundo._tracked, change text) returns text
language sql immutable as
$body$
  select case when t.kind = 'partitioned'
    then format('exists (select from agentundo._member m where m.relation = r.tableoid and (m.rewritten >= %I.change or m.filenode <> pg_relation_filenode(m.relation)))', change)
    else format('%I.filenode <> pg_relation_filenode(r.tableoid)', change) end
$body$;

-- A condition that is true for rows whose image `before` has labels that the enum of their column lacks today.
create or replace function agentundo._unlabelled(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(format('exists (select from %s h where h.ctid = before and (', t.history) || string_agg(format(
      'exists (select from unnest(array[]::text[] || %s) label where label is not null and not exists (select from pg_enum e where e.enumtypid = %s::oid and e.enumlabel = label))',
      i.value, agentundo._enum(i.type_now)::oid), ' or ') || '))', 'false')
  from agentundo._image_columns(t.id, 'h', 'before_change') i
  where agentundo._enum(i.type_now) is not null
    and exists (select from agentundo._label l where l.tracked = t.id and l.attnum = i.attnum and l.place = 0)
$body$;

-- What the looks at each row come to. They stand in `judged`, whichever way they were taken.
create or replace function agentundo._verdict_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select format($sql$
  select $9[4]::int, change, part, cur, before, after,
    case when before is not null then before_change end, case when after is not null then after_change end,
    case when overtaken or nothing or before is null and (after is null or cur is null) then 'none' when before is null then 'delete' when cur is null then 'insert' else 'update' end,
    case when torn or %1$s or %3$s then 'conflict'
      when segments > 1 and (first_status = 'ok' or nothing) then 'conflict' else first_status end,
    case when torn or %1$s or %3$s then 'schema_changed'
      when segments > 1 and (first_status = 'ok' or nothing) then 'row_changed' else first_reason end,
    case when by_value then 'value' else 'version' end,
    case when %1$s then %2$s end, null::jsonb,
    case when moved then 'moved' end,
    nullif(coalesce(case when segments > 1 then jsonb_build_object('segments', segments, 'last_segment', case when nothing then 'nothing' else first_status end, 'at', at) end, '{}')
      || case when steps is null then '{}' else jsonb_build_object('steps', steps) end
      || case when torn then '{"hint": "Several rows had this key then: another key held, or none."}'::jsonb else '{}' end, '{}')
  from (
    select *,
      case when overtaken then 'done'
        when after is not null and cur is null then case when before is null then 'done' else 'conflict' end
        when after is not null then case when untouched then 'ok' else 'conflict' end
        when before is null then 'done'
        when cur is null then case when gone_since then 'conflict' else 'ok' end
        else 'conflict' end as first_status,
      case when overtaken then null
        when after is not null and cur is null then case when before is not null then 'row_deleted' end
        when after is not null then case when untouched then null when matches then 'row_rewritten' else 'row_changed' end
        when before is null then null
        when cur is null then case when gone_since then 'row_deleted' end
        else 'row_exists' end as first_reason
    from judged
  ) judged$sql$, agentundo._retyped(t.id, 'change', 'before_change'), agentundo._retyped_columns(t.id, 'change', 'before_change'), agentundo._unlabelled(t))
$body$;

-- The keys that others, who stand, have deleted since: if such a row is absent now they have meant it to be, and
-- it is not ours to bring back. Where people are not captured, any write of others to an absent row tells of such a
-- deletion. A CTE that is left open for more conditions.
create or replace function agentundo._deleted_since_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select agentundo._fill($sql$
  deleted_since as materialized (
    select f.change, {{h_keys}}
    from agentundo._change f
    join {{history}} h on h._change = coalesce(f.source, f.change)
    where f.tracked = $9[4]::int and f.change > (select min(change) from change)
      {{deleting}} and f.change <> all ($6) and f.change <> all ($7) and {{stranger}}
      and exists (select from net where after is null and {{of_net}})$sql$,
    jsonb_build_object('history', agentundo._history(t), 'h_keys', agentundo._key_list(t.id, 'h'), 'of_net', agentundo._same_key(t.id, 'h', 'net'), 'stranger', agentundo._stranger_sql('f'),
      'deleting', case when t.all_since is not null then format('and (f.operation in (''D'', ''T'') or f.change <= %s)', t.all_since) else '' end))
$body$;

-- The straight way, see _is_straight(): one image before, one after, the row now.
create or replace function agentundo._net_straight_sql(t agentundo._tracked, changes bigint[], lookup text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c agentundo._change;
  others constant boolean := exists (
    select from agentundo._change s join agentundo._change f on f.tracked = t.id and f.change > s.change and (f.operation in ('D', 'T') or f.change <= coalesce(t.all_since, f.change)) and not f.void
    where s.tracked = t.id and s.change = any (changes) and s.operation <> 'I');
begin
  select * into c from agentundo._change x where x.tracked = t.id and x.change = any (changes);
  return agentundo._fill($sql$
  with change as materialized (
    select c.change, c.xmin::text::bigint as version, c.filenode from agentundo._change c where c.tracked = $9[4]::int and c.change = any ($6)),
  net as (
    select {{keys}}, o.tid as before, n.tid as after
    from (select h.ctid as tid, {{h_keys}} from {{history}} h where h._change = {{source}} and h._image = '{{old}}' and {{has_old}}) o
    full join (select h.ctid as tid, {{h_keys}} from {{history}} h where h._change = {{source}} and h._image = '{{new}}' and {{has_new}}) n on {{same_key}}),
{{deleted_since}}  compared as (
    select c.change, c.change as before_change, c.change as after_change, n.before, n.after, r.tableoid as part, r.ctid as cur,
      r.xmin::text::bigint as version, c.version as own_version, v.by_value, a.matches, {{gone_since}} as gone_since, false as overtaken, false as nothing, false as torn
    from change c
    cross join net n
    left join {{lookup}} r on {{in_table}}
    {{with_others}}
    cross join lateral (select c.change <= $9[1]
      or c.change > $9[2] and n.after is not null and r.ctid is not null and {{rewritten}}) v (by_value)
    left join lateral (
      select case when v.by_value then {{after_by_value}} operator(pg_catalog.*=) {{row_by_value}} else {{after}} operator(pg_catalog.*=) {{row}} end as matches
      from {{history}} h where h.ctid = n.after and r.ctid is not null offset 0) a on true),
  judged as (
    select *, 1 as segments, null::tid as at, null::jsonb as steps, matches and (by_value or version = own_version) as untouched,
      {{moved}} and (before is null or after is null) as moved
    from compared)$sql$, jsonb_build_object(
    'history', agentundo._history(t), 'lookup', lookup, 'source', coalesce(c.source, c.change),
    'keys', (select string_agg(format('coalesce(o.%1$I, n.%1$I) as %1$I', k.history_column), ', ' order by k.place) from agentundo._key(t.id) k),
    'h_keys', agentundo._key_list(t.id, 'h'), 'same_key', agentundo._same_key(t.id, 'o', 'n'), 'in_table', agentundo._has_key(t.id, 'r', 'n'),
    'old', case when c.inverted then 'N' else 'O' end, 'new', case when c.inverted then 'O' else 'N' end,
    'gone_since', case when others then 'x.n is not null' else 'false' end,
    'with_others', case when others then agentundo._fill('left join (select count(*) as n, {{keys}} from deleted_since x group by {{keys}}) x on {{same}}',
      jsonb_build_object('keys', agentundo._key_list(t.id, 'x'), 'same', agentundo._same_key(t.id, 'x', 'n'))) else '' end,
    'deleted_since', case when others then agentundo._deleted_since_sql(t) || e'),\n' else '' end,
    'has_old', c.operation <> 'I', 'has_new', c.operation not in ('D', 'T'), 'moved', c.operation = 'U',
    'after', agentundo._image_row(t.id, 'h', 'c.change', 'r'), 'row', agentundo._table_row(t.id, 'r'),
    'rewritten', agentundo._rewritten_sql(t, 'c'), 'after_by_value', agentundo._image_row(t.id, 'h', 'c.change', 'r', true), 'row_by_value', agentundo._table_row(t.id, 'r', true)))
    || agentundo._verdict_sql(t);
end
$body$;

-- ==== 13_replay.sql ====

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

-- ==== 14_chains.sql ====

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

-- ==== 15_obstacles.sql ====

-- 15  Obstacles: what constraints say of the rows that a revert would write
--
-- The plan asks before anything is written: would a restored row break a CHECK, NOT NULL or domain, take
-- a unique value that somebody else holds, lack its parent; would a row that goes leave dependents. The
-- answers name the constraint and, for cascade, the version of the row in the way.
--
-- Each question is one SELECT, generated from the catalog. Its parameters are the decisions that would
-- be acted on, split so that the planner sees how many there are: $1 the restored rows of the table (to
-- insert or update), $2 those that go or change (to delete or update), $3 and $4 the same of the other
-- table of a foreign key. They are asked by agentundo_worker (_look()): code of the user's runs in them.

-- The columns of a restored row as SQL expressions over the aliases d (decision), b (image), r (current
-- row): what the image says, in the column's own type; where the image does not know the column, what
-- the row has, or the default for a row that comes back. In a merge only the columns named go back, and
-- a delta column loses what the set had added to it.
create or replace function agentundo._target_columns(tracked_id int)
returns table (attnum smallint, name name, value text, declared text, identity "char")
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with col as (
    select i.*, agentundo._base(a.atttypid) as base, format_type(agentundo._base(a.atttypid), -1) as base_type, format_type(a.atttypid, a.atttypmod) as declared,
      a.attidentity as identity, pg_get_expr(d.adbin, d.adrelid) as default_value,
      m.rule
    from agentundo._image_columns(tracked_id, 'b', 'd.before_change') i
    join agentundo._tracked t on t.id = tracked_id
    join pg_attribute a on a.attrelid = t.relation and a.attnum = i.attnum
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
    left join agentundo._merge_rule m on m.tracked = t.id and m.attnum = i.attnum),
  restored as (
    select c.*, agentundo._given_back(c.value, c.base, true) as back from col c),
  filled as (
    select c.*, case when c.known is null then c.back
      else format('case when %s then %s when d.cur is not null then r.%I else (%s)::%s end', c.known, c.back, c.name, coalesce(c.default_value, 'null'), c.base_type) end as full_value
    from restored c)
  select c.attnum, c.name,
    case when c.rule = 'delta' then
      format('case when d.status = ''merge'' and jsonb_exists(d.delta, %1$L) then (r.%1$I - (d.delta ->> %1$L)::%2$s)::%4$s when d.status = ''merge'' and %1$L <> all (d.columns) then r.%1$I else %3$s end', c.name, agentundo._wide(c.type), c.full_value, c.base_type)
    else format('case when d.status = ''merge'' and %1$L <> all (d.columns) then r.%1$I else %2$s end', c.name, c.full_value) end,
    c.declared, c.identity
  from filled c
$body$;

-- The set's rows as the revert would leave them, one SELECT per table: columns under the table's own
-- names (generated ones computed) behind ours, which begin with agentundo_. `decisions` is the parameter that holds them.
create or replace function agentundo._target_sql(tracked_id int, decisions text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  columns_sql text;
  generated text;
begin
  select * into t from agentundo._tracked x where x.id = tracked_id;
  select string_agg(format('%s as %I', c.value, c.name), ', ' order by c.attnum)
    into columns_sql from agentundo._target_columns(tracked_id) c;
  select string_agg(format(', (%s)::%s as %I', pg_get_expr(d.adbin, d.adrelid), format_type(a.atttypid, a.atttypmod), a.attname), '' order by a.attnum)
    into generated
    from pg_attribute a join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
   where a.attrelid = t.relation and a.attgenerated <> '' and not a.attisdropped;
  return format($sql$
    select *%1$s from (
      select d.place as "agentundo.place", d.detail as "agentundo.detail", d.part as "agentundo.part", d.cur as "agentundo.cur"%2$s
      from unnest(%5$s) d
      left join lateral (select * from %3$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part%6$s offset 0) r on true) agentundo_row$sql$,
    coalesce(generated, ''), coalesce(', ' || columns_sql, ''), t.history,
    agentundo._from(t), decisions,
    -- the current row matters only where part of it stays
    case when exists (select from agentundo._columns(tracked_id) c where c.live and c.since_change > 0) then '' else ' and d.status = ''merge''' end);
end
$body$;

-- The tracked table that holds rows of a relation, if any.
create or replace function agentundo._tracked_of(relation regclass) returns int
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(
    (select m.tracked from agentundo._member m where m.relation = $1),
    (select x.id from agentundo._tracked x where x.relation = $1))
$body$;

-- The search_path that functions of a table's owner count on when they run in constraints and triggers:
-- the one that is set for him or for the database, never the caller's, since they run with our rights.
create or replace function agentundo._users_path(relation regclass) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when path ~ '\mpg_temp\M' then path else path || ', pg_temp' end
  from replace(coalesce((
    select substr(setting, length('search_path=') + 1)
    from pg_db_role_setting s
    cross join lateral unnest(s.setconfig) setting
    where setting like 'search\_path=%' and s.setrole in (0, (select c.relowner from pg_class c where c.oid = relation))
      and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
    order by s.setrole <> 0 desc, s.setdatabase <> 0 desc
    limit 1), '"$user", public'), '"$user"', (select quote_ident(pg_get_userbyid(c.relowner)) from pg_class c where c.oid = relation)) path
$body$;

-- Restored rows that break a CHECK, a NOT NULL or a domain that came or was tightened since, or of which a
-- column would keep less than it had (numeric(10,4) that has become numeric(10,2)).
create or replace function agentundo._broken_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with rule as (
    select a.attname::text as name, 'schema_changed' as reason,
      format('agentundo_row.%1$I is distinct from agentundo_row.%1$I::%2$s', a.attname, format_type(a.atttypid, a.atttypmod)) as broken
    from pg_attribute a where a.attrelid = t.relation and a.attnum > 0 and a.atttypmod >= 0 and not a.attisdropped and a.attgenerated = ''
      and a.atttypid in (select y.oid from pg_type y where y.typmodin <> 0 and y.typnamespace = 'pg_catalog'::regnamespace and y.typtype = 'b')
    union all
    select c.conname, 'constraint', format('(%s) is false', pg_get_expr(c.conbin, c.conrelid))
    from pg_constraint c where c.conrelid = t.relation and c.contype = 'c' and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
    union all
    select a.attname, 'constraint', format('agentundo_row.%I is null', a.attname)
    from pg_attribute a where a.attrelid = t.relation and a.attnum > 0 and a.attnotnull and not a.attisdropped and a.attgenerated = ''
    union all
    select coalesce(c.conname, y.typname), 'constraint', case when c.oid is null then format('agentundo_row.%I is null', a.attname)
        else format('(select (%s) is false from (select agentundo_row.%I as value) value)', substring(pg_get_constraintdef(c.oid) from '^CHECK \((.*)\)(?: NOT VALID)?$'), a.attname) end
    from pg_attribute a
    cross join lateral (
      with recursive b as (
        select ty.* from pg_type ty where ty.oid = a.atttypid and ty.typtype = 'd'
        union all select ty.* from pg_type ty join b on ty.oid = b.typbasetype and ty.typtype = 'd')
      select * from b) y
    left join pg_constraint c on c.contypid = y.oid and c.contype = 'c'
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and (c.oid is not null or y.typnotnull))
  select format($sql$
    with path as materialized (select set_config('search_path', $5, true))
    select "agentundo.place", broken[1], broken[2], %L, null::bigint, null::int
    from path, lateral (select agentundo_row."agentundo.place", case%s end as broken from (%s) agentundo_row offset 0) agentundo_judged
    where broken is not null$sql$,
    t.relation::text, coalesce(string_agg(format(' when %s then array[%L, %L]', broken, reason, name), ''), ' when false then ''{}''::text[]' ), agentundo._target_sql(t.id, '$1'))
  from rule
$body$;

-- Restored rows for which something else raises that is computed when they are written: a generated column, what an
-- index is over, a domain's own type. Null where nothing is.
create or replace function agentundo._unwritable_sql(t agentundo._tracked) returns text
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with computed as (
    select format('agentundo_row.%I', a.attname) as value from pg_attribute a where a.attrelid = t.relation and a.attgenerated = 's' and not a.attisdropped
    union all
    select format('agentundo_row.%I::%s', a.attname, format_type(a.atttypid, a.atttypmod))
    from pg_attribute a join pg_type y on y.oid = a.atttypid
    where a.attrelid = t.relation and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and y.typtype = 'd'
    union all
    select format('(%s)', coalesce(pg_get_indexdef(i.indexrelid, n, true), pg_get_expr(i.indpred, i.indrelid)))
    from pg_index i cross join lateral (
      select n from generate_series(1, i.indnatts) n where i.indkey[n - 1] = 0 union all select null where i.indpred is not null) n (n)
    where i.indrelid = t.relation and i.indislive)
  select format($sql$
    with path as materialized (select set_config('search_path', $5, true))
    select "agentundo.place", 'constraint', null::text, %1$L, null::bigint, null::int
    from path, lateral (
      select agentundo_row."agentundo.place", row(%2$s)::record operator(pg_catalog.*<>) row(%2$s)::record as never from (%3$s) agentundo_row offset 0) agentundo_judged
    where never$sql$, t.relation::text, string_agg(value, ', '), agentundo._target_sql(t.id, '$1'))
  from computed having count(*) > 0
$body$;

-- A constraint may also raise for a value, or call what we cannot: then the rows are looked at in ever smaller
-- parts until it is known which ones it is about.
create or replace function agentundo._broken(t agentundo._tracked, statement text, restored agentundo._decision[])
returns table (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  half constant int := cardinality(restored) / 2;
begin
  return query select * from agentundo._look(statement, agentundo._users_path(t.relation), restored)
    as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
exception
  when insufficient_privilege or undefined_table or undefined_function then
    return;  -- a function of the user's cannot be run here: the revert itself will tell
  when data_exception or raise_exception then
    if half = 0 then
      -- what the function says of the row may be a value
      return query select restored[1].place, 'constraint', case when agentundo._reads_all(array[t.id]) then left(sqlerrm, 200) else 'SQLSTATE ' || sqlstate end,
        t.relation::text, null::bigint, null::int;
    else
      return query select * from agentundo._broken(t, statement, restored[:half]);
      return query select * from agentundo._broken(t, statement, restored[half + 1:]);
    end if;
end
$body$;

-- Does a foreign key of another table do something when a row of this one is deleted? Then rows cannot go
-- out and come in again, not even within one statement.
create or replace function agentundo._held_in_place(t agentundo._tracked) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from pg_constraint c
    where c.contype = 'f' and c.confdeltype <> 'a' and c.confrelid in (select agentundo._levels(t.relation, t.kind)))
$body$;

-- Restored values of a unique index or exclusion constraint that a row outside of the plan holds now; where
-- rows have to stay in place also those that another row of the plan holds until it is changed itself. What
-- goes makes room first, what comes comes last.
create or replace function agentundo._taken_sql(t agentundo._tracked, index regclass) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  i pg_index;
  picked text;
  equal text;
  predicate text;
begin
  select * into i from pg_index where indexrelid = index;
  predicate := coalesce(' where ' || pg_get_expr(i.indpred, i.indrelid), '');
  select string_agg(format('(%s) as "agentundo.e%s"', pg_get_indexdef(index, n, true), n), ', ' order by n),
         string_agg(format(case when coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
             then '(k."agentundo.e%1$s" %2$s r."agentundo.e%1$s" or k."agentundo.e%1$s" is null and r."agentundo.e%1$s" is null)'
             else 'k."agentundo.e%1$s" %2$s r."agentundo.e%1$s"' end, n,
           coalesce((select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname) from pg_constraint c join pg_operator o on o.oid = c.conexclop[n]
                     where c.conindid = index and c.conexclop is not null limit 1),
             (select format('operator(%s.%s)', o.oprnamespace::regnamespace, o.oprname)
              from pg_opclass oc join pg_amop p on p.amopfamily = oc.opcfamily and p.amopstrategy = 3 and p.amoplefttype = oc.opcintype and p.amoprighttype = oc.opcintype
              join pg_operator o on o.oid = p.amopopr where oc.oid = i.indclass[n - 1]),
             'operator(pg_catalog.=)')), ' and ' order by n)
    into picked, equal
    from generate_series(1, i.indnkeyatts) n;
  return format($sql$
    with target as materialized (%1$s),
    k as (select "agentundo.place", "agentundo.detail", "agentundo.part", "agentundo.cur", %2$s from target agentundo_row%3$s),
    r as (select ctid as "agentundo.ctid", tableoid as "agentundo.table", xmin::text::bigint as "agentundo.xmin", %2$s from %4$s agentundo_row%3$s)
    select k."agentundo.place", 'unique_taken', %5$L, %6$L, r."agentundo.xmin", %7$s
    from k join r on %8$s
    where not exists (
      select from unnest($2) a
      where a.cur = r."agentundo.ctid" and a.part = r."agentundo.table" and (
        a.action = 'delete' or a.place = k."agentundo.place"
        or (k."agentundo.cur" is null or %9$s) and not exists (select from k x where x."agentundo.place" = a.place and %10$s)))
    union all   -- two rows of the plan had it one after the other: the older gives way
    select k."agentundo.place", 'unique_taken', %5$L, %6$L, null::bigint, null::int
    from k join k x on %10$s and x."agentundo.place" <> k."agentundo.place"
    join unnest($1) d on d.place = k."agentundo.place" join unnest($1) newer on newer.place = x."agentundo.place"
    where (newer.change, newer.place) > (d.change, d.place)$sql$,
    agentundo._target_sql(t.id, '$1'), picked, predicate, agentundo._from(t),
    (select c.relname from pg_class c where c.oid = index), t.relation::text, t.id, equal,
    (not (i.indimmediate and agentundo._held_in_place(t)))::text, replace(equal, 'r."agentundo.e', 'x."agentundo.e'));
end
$body$;

-- The rows that a foreign key of this table binds: not those of tables that inherit from it.
create or replace function agentundo._bound(relation regclass) returns text
language sql stable as
$body$ select case when c.relkind = 'p' then '' else 'only ' end || relation::text from pg_class c where c.oid = relation $body$;

-- Rows that point at a row which would be deleted or lose the value they point at.
create or replace function agentundo._dependents_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_constraint;
  parent_cols text; child_equal text; target_equal text; child_target_equal text; child_target text;
  child int;
begin
  select * into c from pg_constraint where oid = con;
  child := agentundo._tracked_of(c.conrelid);
  select string_agg(format('r.%I::%s as "agentundo.v%s"', p.attname, format_type(agentundo._base(p.atttypid), -1), n), ', ' order by n),
         string_agg(format('gone."agentundo.v%s" %s ch.%I', n, o, f.attname), ' and ' order by n),
         -- bytewise, as the key itself tells whether it has to act
         format('row(%s)::record operator(pg_catalog.*=) row(%s)::record', string_agg(format('x.%I', p.attname), ', ' order by n), string_agg(format('gone."agentundo.v%s"', n), ', ' order by n)),
         string_agg(format('gone."agentundo.v%s" %s x.%I', n, o, f.attname), ' and ' order by n)
    into parent_cols, child_equal, target_equal, child_target_equal
    from (
      select n, c.confkey[n] as pk, c.conkey[n] as fk,
        (select format('operator(%s.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o,
        c.confrelid as prel, c.conrelid as frel
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = k.prel and p.attnum = k.pk
    join pg_attribute f on f.attrelid = k.frel and f.attnum = k.fk;
  child_target := case when child is not null then format($sql$
        and not exists (select from child_target x where x."agentundo.cur" = ch.ctid and x."agentundo.part" = ch.tableoid and (%s) is not true)$sql$, child_target_equal) else '' end;
  return format($sql$
    with target as materialized (%1$s),
    child_target as materialized (%2$s),
    gone as materialized (
      select d.place as "agentundo.place", %3$s
      from unnest($2) d
      join lateral (select * from %4$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true),
    lost as (   -- the value goes, and no other restored row has it, unless the key would act on that too
      select gone.* from gone
      where not exists (select from target x where x."agentundo.place" = gone."agentundo.place" and %6$s)),
    held as (
      select gone.*, exists (select from target x where %7$s) as passed_on from lost gone)
    select gone."agentundo.place", case when gone.passed_on then 'constraint' else 'has_dependents' end, %8$L, %9$L, ch.xmin::text::bigint, %10$s
    from held gone join %11$s ch on %12$s
    where not (gone.passed_on and %13$s)
      and not exists (select from unnest(%5$s) a where a.action = 'delete' and a.cur = ch.ctid and a.part = ch.tableoid)%14$s$sql$,
    agentundo._target_sql(t.id, '$1'), case when child is not null then agentundo._target_sql(child, '$3') else 'select' end,
    parent_cols, agentundo._from(t), '$4',
    target_equal, target_equal,
    c.conname, c.conrelid::regclass::text, coalesce(child::text, 'null::int'), agentundo._bound(c.conrelid), child_equal,
    (c.confdeltype = 'a' and c.confupdtype = 'a')::text, child_target);
end
$body$;

-- Restored rows whose parent would not be there.
create or replace function agentundo._missing_sql(t agentundo._tracked, con oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_constraint;
  parent int;
  filled text; equal text; equal_target text;
begin
  select * into c from pg_constraint where oid = con;
  parent := agentundo._tracked_of(c.confrelid);
  select string_agg(format('k.%I is not null', f.attname), ' and ' order by n),
         string_agg(format('p.%I %s k.%I', p.attname, o, f.attname), ' and ' order by n),
         string_agg(format('x.%I %s k.%I', p.attname, o, f.attname), ' and ' order by n)
    into filled, equal, equal_target
    from (
      select n, c.confkey[n] as pk, c.conkey[n] as fk,
        (select format('operator(%s.%s)', op.oprnamespace::regnamespace, op.oprname) from pg_operator op where op.oid = c.conpfeqop[n]) as o
      from generate_subscripts(c.confkey, 1) n) k
    join pg_attribute p on p.attrelid = c.confrelid and p.attnum = k.pk
    join pg_attribute f on f.attrelid = c.conrelid and f.attnum = k.fk;
  return format($sql$
    with target as materialized (%1$s),
    parent_target as materialized (%2$s)
    select k."agentundo.place", 'missing_parent', %3$L, %4$L, null::bigint, %5$s
    from target k
    where %6$s
      and not exists (select from %7$s p where %8$s
        and not exists (select from unnest($4) a where a.cur = p.ctid and a.part = p.tableoid))
      and not exists (select from parent_target x where %9$s)$sql$,
    agentundo._target_sql(t.id, '$1'), case when parent is not null then agentundo._target_sql(parent, '$3') else 'select' end,
    c.conname, c.confrelid::regclass::text, coalesce(parent::text, 'null::int'), filled, agentundo._bound(c.confrelid), equal,
    case when parent is null then 'false' else equal_target end);
end
$body$;

-- The same two for a key over a period (18): what a child says has to be covered by all its parents together. A child that
-- goes back itself is asked as such.
create or replace function agentundo._uncovered_sql(t agentundo._tracked, con oid, dependents boolean) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  c pg_constraint;
  other int;
  child_period text; parent_period text; filled text; meets text; going_columns text;
begin
  select * into c from pg_constraint where oid = con;
  other := agentundo._tracked_of(case when dependents then c.conrelid else c.confrelid end);
  select string_agg(format('ch.%I is not null', f.attname), ' and ' order by n),
         string_agg(format('p.%I operator(%s.%s) ch.%I', p.attname, o.oprnamespace::regnamespace, o.oprname, f.attname), ' and ' order by n),
         string_agg(format('r.%I', p.attname), ', ' order by n),
         (array_agg(format('ch.%I', f.attname) order by n desc))[1], (array_agg(quote_ident(p.attname) order by n desc))[1]
    into filled, meets, going_columns, child_period, parent_period
    from generate_subscripts(c.confkey, 1) n
    join pg_attribute p on p.attrelid = c.confrelid and p.attnum = c.confkey[n]
    join pg_attribute f on f.attrelid = c.conrelid and f.attnum = c.conkey[n]
    join pg_operator o on o.oid = c.conpfeqop[n];
  return replace(format(case when dependents then $sql$
    with parent_target as materialized (%1$s),
    gone as materialized (
      select d.place, %2$s from unnest($2) d join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true)
    select p.place, 'has_dependents', %4$L, %5$L, ch.xmin::text::bigint, %6$s
    from gone p join %7$s ch on %8$s
    where not exists (select from unnest($4) a where a.cur = ch.ctid and a.part = ch.tableoid)
      and {{uncovered}}$sql$
    else $sql$
    with child_target as materialized (%1$s), parent_target as materialized (%2$s)
    select ch."agentundo.place", 'missing_parent', %4$L, %5$L, null::bigint, %6$s
    from child_target ch
    where %9$s and {{uncovered}}$sql$ end,
    agentundo._target_sql(t.id, '$1'),
    case when dependents then going_columns when other is not null then agentundo._target_sql(other, '$3') else 'select' end,
    agentundo._from(t), c.conname, case when dependents then c.conrelid else c.confrelid end::regclass::text, coalesce(other::text, 'null::int'),
    agentundo._bound(c.conrelid), meets, filled),
    '{{uncovered}}', format($sql$(%1$s operator(pg_catalog.<@) (
        select range_agg(found.period)
        from (
          select p.%2$s as period from %3$s p where %4$s and not exists (select from unnest(%5$s) a where a.cur = p.ctid and a.part = p.tableoid)
          %6$s) found)) is not true$sql$,
      child_period, parent_period, agentundo._bound(c.confrelid), meets, case when dependents then '$2' else '$4' end,
      case when dependents or other is not null then format('union all select p.%s from parent_target p where %s', parent_period, meets) end));
end
$body$;

create or replace function agentundo._readable(relation regclass) returns boolean
language sql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select has_table_privilege(relation, 'select') and not row_security_active(relation)
    and has_schema_privilege((select c.relnamespace from pg_class c where c.oid = relation), 'usage')
$body$;

-- Those of the rows that lie in one level of a partitioned table. Where a row comes to lie that is not
-- there yet, PostgreSQL decides; a constraint of that level then speaks for itself.
create or replace function agentundo._within(d agentundo._decision[], root regclass, level regclass) returns agentundo._decision[]
language sql stable set search_path = pg_catalog, pg_temp as
$body$
  select case when level = root then d
    else array(select x from unnest(d) x where x.part in (select agentundo._tree(level))) end
$body$;

-- All of them. One finding per row and obstacle; `writer` is the xmin of the row in the way, by which
-- cascade finds who wrote it.
create or replace function agentundo._obstacles(d agentundo._decision[])
returns table (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set jit = off as
$body$
declare
  t agentundo._tracked;
  restored agentundo._decision[];
  going agentundo._decision[];
  moved boolean;
  key smallint[];
  statement text;
  broken int[] := array[]::int[];
  here regclass;
  f record;
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') order by x.id loop
    restored := array(select x from unnest(d) x where x.tracked = t.id and x.status in ('ok', 'merge') and x.action in ('insert', 'update'));
    going := array(select x from unnest(d) x where x.tracked = t.id and x.status in ('ok', 'merge') and x.action in ('delete', 'update'));
    moved := exists (select from unnest(restored) x where x.detail ? 'moved');
    key := coalesce((agentundo._best_key(t.relation)).columns, '{}');
    if restored <> '{}' then
      -- Rows that cannot be written at all hold nothing that others would want.
      foreach statement in array array_remove(array[agentundo._broken_sql(t), agentundo._unwritable_sql(t)], null) loop
        for place, reason, obstacle, other, writer, writer_tracked in select * from agentundo._broken(t, statement, restored) loop
          return next;
          broken := broken || place;
        end loop;
        if broken <> '{}' then
          restored := array(select x from unnest(restored) x where x.place <> all (broken));
        end if;
      end loop;
      for f in
        select i.indexrelid::regclass as name from pg_index i
        where i.indrelid = t.relation and i.indisvalid and (i.indisunique or i.indisexclusion)
          -- under the key itself another row would be the same row; only moved ones can collide
          and (moved or i.indkey::smallint[] <> key or i.indisexclusion or i.indpred is not null)
      loop
        return query select * from agentundo._look(agentundo._taken_sql(t, f.name), agentundo._users_path(t.relation), restored, going)
          as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
      end loop;
    end if;
    for f in
      select c.oid, coalesce((to_jsonb(c) ->> 'conperiod')::boolean, false) as over_period, c.conname::text as name, c.confkey, c.confrelid, c.conrelid, way.up, c.confdeltype not in ('a', 'r') or c.confupdtype not in ('a', 'r') as acts,
        case when way.up then c.conrelid else c.confrelid end::regclass as relation,
        coalesce(agentundo._tracked_of(case when way.up then c.conrelid else c.confrelid end), 0) as other
      from pg_constraint c cross join (values (true), (false)) way (up)
      where c.contype = 'f' and c.conparentid = 0
        and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
        -- keys of the table or, for a partitioned one, of one of its levels
        and case when way.up then c.confrelid in (select agentundo._levels(t.relation, t.kind)) and going <> '{}'
              -- a referenced key stays with its row unless the row goes or moves
              and (moved or c.confrelid <> t.relation or not c.confkey <@ key or exists (select from unnest(going) x where x.action = 'delete'))
            else c.conrelid in (select agentundo._levels(t.relation, t.kind)) and restored <> '{}' end
    loop
      here := case when f.up then f.confrelid else f.conrelid end;
      -- A table that we may not read: the key itself will refuse what would break it. Only where it would
      -- act (CASCADE, SET NULL) nobody would be asked, so the rows stay.
      if not agentundo._readable(f.relation) then
        return query
          select x.place, 'has_dependents', f.name, f.relation::text || ' (grant us SELECT to look into it)', null::bigint, null::int
          from unnest(agentundo._within(going, t.relation, here)) x where f.up and f.acts and (x.action = 'delete' or x.detail ? 'moved' or not f.confkey <@ key);
        continue;
      end if;
      return query
        select * from agentundo._look(case when f.over_period then agentundo._uncovered_sql(t, f.oid, f.up) when f.up then agentundo._dependents_sql(t, f.oid) else agentundo._missing_sql(t, f.oid) end,
          agentundo._users_path(t.relation), agentundo._within(restored, t.relation, here), agentundo._within(going, t.relation, here),
          array(select x from unnest(d) x where x.tracked = f.other and x.status in ('ok', 'merge') and x.action in ('insert', 'update')),
          array(select x from unnest(d) x where x.tracked = f.other and x.status in ('ok', 'merge') and x.action in ('delete', 'update')))
          as found (place int, reason text, obstacle text, other text, writer bigint, writer_tracked int);
    end loop;
  end loop;
end
$body$;

-- ==== 16_moves.sql ====

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

-- ==== 17_modes.sql ====

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

-- ==== 18_plan.sql ====

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

-- ==== 19_act.sql ====

-- 19  Act: one attempt to do what a plan says
--
-- Lock, then look, then act:
--   1. the tables, by oid: ROW EXCLUSIVE keeps ALTER out; SHARE ROW EXCLUSIVE where triggers of the
--      user must be switched off;
--   2. the turn in each table, then the current rows of all keys that the set touched, in their order;
--   3. the plan, decided again, now that nothing of it can move;
--   4. our own changes are written down, in the same subtransaction as the rows: the row version holds
--      for them too;
--   5. one statement for all tables (as agentundo_worker, see 11_guard.sql);
--   6. what capture saw of it is compared with the plan: anything more (a cascade) rolls back.
--
-- It runs in a subtransaction of its caller (20_revert.sql), so every error leaves nothing behind.

-- What the plan does, in numbers: for each table (by its id) the rows that it deletes, updates and inserts. In
-- the tables `replace` an update is a delete and an insert.
create or replace function agentundo._tally(d agentundo._decision[], replace int[]) returns jsonb
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce(jsonb_object_agg(t.tracked, t.operations), '{}')
  from (
    select o.tracked, jsonb_object_agg(o.operation, o.n) as operations
    from (
      select x.tracked, o.operation, count(*) as n
      from unnest(d) x
      cross join lateral unnest(case
        when x.action = 'update' and (x.tracked = any (replace) or coalesce(x.detail ? 'replace', false)) then array['D', 'I']
        else array[upper(left(x.action, 1))] end) o (operation)
      where x.status in ('ok', 'merge') and x.action <> 'none'
      group by x.tracked, o.operation) o
    group by o.tracked) t
$body$;

-- The user's triggers that would fire for that: they did their work when the rows were written first, and
-- must not do it again for rows that go back. `fire` rules except single ones. A foreign key that acts runs
-- a statement on the tables that point here, although it finds no row there: their statement triggers.
create or replace function agentundo._to_silence(tally jsonb)
returns table (relation regclass, trigger name, state "char")
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with work as (
    select t.id, t.relation, t.kind, (w.operations ? 'I')::int * 4 + (w.operations ? 'D')::int * 8 + (w.operations ? 'U')::int * 16 as events, false as acted_upon
    from jsonb_each(tally) w (tracked, operations) join agentundo._tracked t on t.id = w.tracked::int),
  acted_upon as (
    select c.id, c.relation, c.kind, 8 + 16, true
    from work w
    join pg_constraint k on k.contype = 'f' and k.confrelid in (select agentundo._levels(w.relation, w.kind))
     and (w.events & 8 <> 0 and k.confdeltype in ('c', 'n', 'd') or w.events & 16 <> 0 and k.confupdtype in ('c', 'n', 'd'))
    join agentundo._tracked c on c.id = agentundo._tracked_of(k.conrelid) and c.active)
  select distinct m.relation, g.tgname, g.tgenabled
  from (select * from work union select * from acted_upon) w
  cross join lateral agentundo._levels(w.relation, w.kind) m (relation)
  join agentundo._users_triggers g on g.tgrelid = m.relation and g.tgenabled <> 'D'
  where g.tgtype & w.events <> 0 and not (w.acted_upon and g.tgtype & 1 <> 0)
    and not exists (select from agentundo._trigger_rule r where r.tracked = w.id and r.trigger = g.tgname and r.rule = 'fire')
    and not (g.tgenabled = 'R' and current_setting('session_replication_role') <> 'replica')
  order by m.relation, g.tgname
$body$;

-- The relations on which there may be any: of these tables, and those that point at them.
create or replace function agentundo._with_triggers(tables int[]) returns setof regclass
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select distinct g.tgrelid::regclass
  from agentundo._tracked x
  cross join lateral agentundo._levels(x.relation, x.kind) m
  join agentundo._users_triggers g on g.tgrelid = m or g.tgrelid in (select k.conrelid from pg_constraint k where k.contype = 'f' and k.confrelid = m)
  where x.id = any (tables)
$body$;

-- Switches them off and says what there was. Only on tables that are locked for it (`strong`).
create or replace function agentundo._silence(tally jsonb, strong regclass[]) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  silent record;
  silenced jsonb := jsonb_build_array();
begin
  for silent in select * from agentundo._to_silence(tally) loop
    if silent.relation <> all (strong) then
      raise exception using errcode = '55P03', message = 'agentundo: the work changed while it was being locked';
    end if;
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger::text, 'D');
    silenced := silenced || jsonb_build_array(to_jsonb(silent));
  end loop;
  return silenced;
end
$body$;

-- Gives each trigger exactly the state that it had: O, A or R.
create or replace function agentundo._rearm(silenced jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  silent record;
begin
  for silent in select * from jsonb_to_recordset(silenced) x (relation regclass, trigger text, state text) loop
    perform agentundo._by_deputy('switch', silent.relation, silent.trigger, silent.state);
  end loop;
end
$body$;

-- SHARE ROW EXCLUSIVE on the relations `strong`, EXCLUSIVE on those `apart`, else ROW EXCLUSIVE. The root before its
-- partitions, as everybody locks them who alters either; and which those are is asked under its lock.
create or replace function agentundo._lock_tables(tracked_ids int[], strong regclass[], apart int[] default '{}') returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t record;
  level regclass;
  within regclass[];
begin
  for t in
    select x.root, bool_or(x.whole) as whole, bool_or(x.apart) as apart
    from (
      select g.relation, true, g.id = any (_lock_tables.apart) from agentundo._tracked g where g.id = any (tracked_ids)
      union all
      select agentundo._root(u), false, false from unnest(strong) u) x (root, whole, apart)
    join pg_class c on c.oid = x.root
    group by x.root order by x.root
  loop
    within := array[t.root];
    loop
      foreach level in array within loop
        execute format('lock table only %s in %s mode', level,
          case when t.apart then 'exclusive' when level = any (strong) then 'share row exclusive' else 'row exclusive' end);
      end loop;
      exit when within <> array[t.root];
      within := array(
        select m from agentundo._tree(t.root) m join pg_class c on c.oid = m
        where c.relkind in ('r', 'p') and m <> t.root and (t.whole or m = any (strong)) order by m);
      exit when within = '{}';
    end loop;
  end loop;
end
$body$;

-- Is there a column that history does not know yet?
create or replace function agentundo._is_behind(tables int[]) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select exists (
    select from agentundo._tracked t join pg_class r on r.oid = t.relation cross join lateral agentundo._columns(t.id) c
    where t.id = any (tables) and t.active and c.history_column is null)
$body$;

-- History must know the tables as they are now, or our own changes would lack a column.
create or replace function agentundo._follow(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  for t in select x.* from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = any (tables) and x.active loop
    if agentundo._is_behind(array[t.id])
      or exists (select from agentundo._out_of_reach(t.relation, agentundo._worker())) then
      perform agentundo._sync(t.id);
    end if;
  end loop;
end
$body$;

-- An absent row cannot be locked: two undos side by side could each believe what the other is about to change.
-- So undos go one after the other in each table; one that began with an older snapshot is told to begin anew
-- (40001). A row that is made and deleted meanwhile by somebody else is looked for by _require_absent().
create or replace function agentundo._take_turn(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  one int;
begin
  foreach one in array tables loop
    insert into agentundo._turn as x (tracked) values (one) on conflict (tracked) do update set turn = x.turn + 1;
  end loop;
end
$body$;

-- The current rows of every key that these changes touched. FOR UPDATE where the row may go, lose a key
-- or is pointed at, so that nobody adds a dependent in between; else the weaker lock of a plain update.
create or replace function agentundo._lock_rows(tracked_id int, changes bigint[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  equal text;
  weak boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id;
  equal := agentundo._has_key(tracked_id, 'r', 'k');
  if equal is null then
    return;  -- without a key rows are found by what they say, and locked when they are acted on
  end if;
  weak := not exists (select from pg_constraint c where c.contype = 'f' and c.confrelid in (select agentundo._levels(t.relation, t.kind)))
    and not exists (select from agentundo._change c where c.change = any (changes) and c.tracked = tracked_id and c.operation <> 'U');
  perform agentundo._act(format($sql$
    select array[count(*)] from (
      select from (
        select distinct %1$s from %2$s h where h._change = any (%7$L::bigint[])) k
      join %3$s r on %4$s
      order by %5$s for %6$s of r) locked$sql$,
    agentundo._key_list(tracked_id, 'h'), agentundo._history(t), agentundo._from(t), equal, agentundo._key_list(tracked_id, 'k'), case when weak then 'no key update' else 'update' end,
    array(select distinct coalesce(c.source, c.change) from agentundo._change c where c.change = any (changes) and c.tracked = t.id)));
end
$body$;

-- Rows that are to be written and that we have not locked: without a key they are found only by what they say; at a key
-- somebody may have made one since we locked what was there. `lock_of` is the transaction of our locks. Tells whether
-- others may refer to any: what depends on them has to be looked for again.
create or replace function agentundo._lock_found(d agentundo._decision[], lock_of bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t record;
  referred boolean := false;
  unlocked bigint;
  locked bigint[];
begin
  for t in
    select g.*, exists (select from agentundo._key(g.id)) as keyed, agentundo._from(g) as source,
      exists (select from pg_constraint c where c.contype = 'f' and c.confrelid in (select agentundo._levels(g.relation, g.kind))) as referred
    from agentundo._tracked g
    where g.id in (select x.tracked from unnest(d) x where x.cur is not null and x.status in ('ok', 'merge') and x.action <> 'none')
    order by g.relation::oid
  loop
    continue when t.keyed and not t.referred;  -- whoever changes the row still, we shall not find it as it was
    if t.keyed then
      select found.n into unlocked from agentundo._look(format($sql$
        select count(*)
        from unnest($1) x join lateral (select r.xmax from %s r where r.ctid = x.cur and r.tableoid = x.part offset 0) r on true
        where x.tracked = %s and x.status in ('ok', 'merge') and x.action <> 'none' and r.xmax::text::bigint <> %s$sql$, t.source, t.id, lock_of), null, d) as found (n bigint);
      continue when unlocked = 0;
    end if;
    locked := agentundo._act(format($sql$
      select array[count(*)] from (
        select from %s r join unnest($1) x on r.ctid = x.cur and r.tableoid = x.part
        where x.tracked = %s and x.status in ('ok', 'merge') and x.action <> 'none'
        order by x.part, x.cur for update of r) locked$sql$, t.source, t.id), d);
    if locked <> array(select count(*) from unnest(d) x where x.tracked = t.id and x.cur is not null and x.status in ('ok', 'merge') and x.action <> 'none') then
      raise exception using errcode = '55P03', message = 'agentundo: a row changed before it was locked';
    end if;
    referred := referred or t.referred;
  end loop;
  return referred;
end
$body$;

-- Whoever waits for us may look for a deadlock after deadlock_timeout. From shortly before on we wait for nobody.
create or replace function agentundo._hurry(since timestamptz) returns void
language sql set search_path = pg_catalog, pg_temp as
$body$
  select set_config('lock_timeout', '1ms', true) where clock_timestamp() > since + current_setting('deadlock_timeout')::interval * 0.6
$body$;

-- The statement that restores one table, as CTEs that start with `name`: under the search_path of its owner, as
-- its constraints expect, first what goes, then what changes, then what comes, each waiting for the one before, so
-- that a unique value is free when it is needed; all of it after the table `earlier`, also where there is nothing
-- to do in one of the three. With `replace` updates become delete and insert, for values that go round in a circle. Only what
-- there is to do stands in it: a statement that finds no row fires statement triggers all the same.
create or replace function agentundo._restore_sql(t agentundo._tracked, name text, earlier text, operations jsonb, replace boolean) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  set_list text; column_list text; value_list text;
  out_and_in text := case when replace then 'true' else 'coalesce(d.detail ? ''replace'', false)' end;
begin
  select string_agg(format('%I = %s', c.name, c.value), ', ' order by c.attnum) filter (where c.identity <> 'a'),
         string_agg(quote_ident(c.name), ', ' order by c.attnum),
         string_agg(c.value, ', ' order by c.attnum)
    into set_list, column_list, value_list
    from agentundo._target_columns(t.id) c;
  return agentundo._fill($sql$
    {{name}}_path as materialized (select set_config('search_path', {{path}}, true) where {{turn}}),
    {{name}}_work as materialized (select x.* from {{name}}_path, unnest($1) x where x.tracked = {{id}} and x.status in ('ok', 'merge') and x.action <> 'none'),
    {{name}}_gone as ({{gone}}),
    {{name}}_back as ({{back}}),
    {{name}}_here as ({{here}})$sql$, jsonb_build_object('name', name, 'id', t.id,
    'path', quote_literal(agentundo._users_path(t.relation)), 'turn', coalesce('(select count(*) from ' || earlier || '_here) >= 0', 'true'),
    'gone', case when not operations ? 'D' then format('select 1 where (select count(*) from %s_work) < 0', name) else format($sql$
      delete from %1$s r using %2$s_work d
      where (d.action = 'delete' or d.action = 'update' and %3$s) and r.ctid = d.cur and r.tableoid = d.part returning 1$sql$,
      agentundo._from(t), name, out_and_in) end,
    'back', case when not operations ? 'U' or set_list is null then format('select 1 where (select count(*) from %s_gone) < 0', name) else format($sql$
      update %1$s r set %2$s
      from %5$s_work d join lateral (select * from %3$s h where h.ctid = d.before offset 0) b on true
      where d.action = 'update' and not %4$s and r.ctid = d.cur and r.tableoid = d.part
        and (select count(*) from %5$s_gone) >= 0 returning 1$sql$, agentundo._from(t), set_list, t.history, out_and_in, name) end,
    'here', case when not operations ? 'I' then format('select 1 where (select count(*) from %s_back) < 0', name) else format($sql$
      insert into %1$s (%2$s) overriding system value
      select %3$s
      from %7$s_work d
      join lateral (select * from %4$s h where h.ctid = d.before offset 0) b on true
      left join lateral (select * from %5$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
      where (d.action = 'insert' or d.action = 'update' and %6$s)
        and (select count(*) from %7$s_back) >= 0 returning 1$sql$,
      t.relation, column_list, value_list, t.history, agentundo._from(t), out_and_in, name) end));
end
$body$;

-- A key that cascades on UPDATE sets again what the plan has set already, where a referenced value was
-- only written differently (1.0, 1.00). Harmless if no other row was touched and each is as planned.
create or replace function agentundo._only_planned(tracked_id int, d agentundo._decision[], revert_id text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  as_planned boolean;
begin
  select * into t from agentundo._tracked where id = tracked_id;
  select * into as_planned from agentundo._look(format($sql$
    with written as materialized (
      select r.* from %1$s r where r.xmin = (select c.xmin from agentundo._change c where c.invocation = %5$L limit 1)),
    planned as (
      select d.place, d.status, exists (
          select from %2$s h join written r on %3$s operator(pg_catalog.*=) %4$s where h.ctid = d.before) as arrived
      from unnest($1) d
      where d.tracked = %6$s and d.status in ('ok', 'merge') and d.action in ('insert', 'update'))
    select (select count(*) from written) = (select count(*) from planned) and (select coalesce(bool_and(arrived and status = 'ok'), true) from planned)$sql$,
    agentundo._from(t), t.history, agentundo._image_row(t.id, 'h', 'd.before_change', 'r'), agentundo._table_row(t.id, 'r'), revert_id, t.id),
    null, d) as found (as_planned boolean);
  return as_planned;
end
$body$;

-- Deferrable constraints of the tables, and of those that point at them, are checked now, not at COMMIT
-- when nobody could tell any more which revert broke them; those of each table under the search_path of its
-- owner, as deferred triggers of the user's run now. Those deferred by nature are deferred again.
create or replace function agentundo._settle(tables int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  one record;
begin
  for one in
    select c.conrelid::regclass as relation, string_agg(format('%s.%I', c.connamespace::regnamespace, c.conname), ', ') as names,
      string_agg(format('%s.%I', c.connamespace::regnamespace, c.conname), ', ') filter (where c.condeferred) as deferred
    from pg_constraint c
    where c.condeferrable
      and exists (select from agentundo._tracked t cross join lateral agentundo._levels(t.relation, t.kind) m
                  where t.id = any (tables) and m in (c.conrelid, c.confrelid))
    group by c.conrelid order by c.conrelid
  loop
    perform agentundo._act('set constraints ' || one.names || ' immediate', path => agentundo._users_path(one.relation));
    if one.deferred is not null then
      execute 'set constraints ' || one.deferred || ' deferred';
    end if;
  end loop;
end
$body$;

-- The changes that a revert makes. Where a whole change goes back as it came, its images are there
-- already: one row that refers to them, inverted. What is left (chains, merges, forced rows) is stored.
create or replace function agentundo._record_changes(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  whole bigint[];
  kind record;
  number bigint;
  columns_sql text; types_sql text; current_sql text; target_sql text; back_sql text;
  work agentundo._decision[];
begin
  for t in select * from agentundo._tracked x where x.id in (select y.tracked from unnest(d) y where y.status in ('ok', 'merge') and y.action <> 'none') loop
    whole := array(
      select c.change
      from agentundo._change c
      join lateral (
        select count(x.before_change) filter (where x.before_change = c.change) as olds,
               count(x.after_change) filter (where x.after_change = c.change) as news,
               bool_and(x.status = 'ok' and x.basis = 'version' and not coalesce(x.detail ?| array['forced', 'segments'], false)
                 and coalesce(x.before_change, c.change) = c.change and coalesce(x.after_change, c.change) = c.change) as straight
        from unnest(d) x where x.tracked = t.id and c.change in (x.before_change, x.after_change)) x on x.straight
      where c.tracked = t.id
        and c.change in (select y.before_change from unnest(d) y where y.tracked = t.id union select y.after_change from unnest(d) y where y.tracked = t.id)
        and x.olds = case when c.operation = 'I' then 0 else c.rows end
        and x.news = case when c.operation in ('D', 'T') then 0 else c.rows end
        and not exists (select from agentundo._columns(t.id) k where k.since_change > 0 and (k.live or k.until_change is not null))
        and not exists (select from agentundo._columns(t.id) k where agentundo._renamed_labels(t.id, k.attnum)));
    insert into agentundo._change (source, inverted, tracked, relation, filenode, rows, depth, operation, invocation, application, tool)
      select coalesce(c.source, c.change), not c.inverted, c.tracked, c.relation, pg_relation_filenode(c.relation), c.rows, 0,
        case c.operation when 'I' then 'D' when 'U' then 'U' else 'I' end::"char", revert_id, current_setting('application_name'), agentundo._setting('agent.tool')
      from agentundo._change c where c.change = any (whole) order by c.change desc;

    select string_agg(format(', %I', c.history_column), '' order by c.attnum),
           string_agg(format(', %I %s', c.history_column, c.type), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('r', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format(', %s', agentundo._stored('back', c.name, c.type_now)), '' order by c.attnum),
           string_agg(format('(%s)::%s as %I', k.value, k.declared, c.name), ', ' order by c.attnum)
      into columns_sql, types_sql, current_sql, target_sql, back_sql
      from agentundo._columns(t.id) c join agentundo._target_columns(t.id) k on k.attnum = c.attnum
     where c.live and c.history_column is not null;
    for kind in
      -- keys are left before they are taken; what moves is told apart from what stays, or nobody would know which row it was
      select x.action, coalesce(x.detail ? 'moved', false) as moves, count(*) as n from unnest(d) x
      where x.tracked = t.id and x.status in ('ok', 'merge') and x.action <> 'none' and not coalesce(x.before_change, x.after_change) = any (whole)
      group by 1, 2 order by x.action = 'insert', x.action = 'update', moves
    loop
      number := nextval('agentundo._change_number');
      work := array(
        select x from unnest(d) x
        where x.tracked = t.id and x.status in ('ok', 'merge') and x.action = kind.action and coalesce(x.detail ? 'moved', false) = kind.moves
          and not coalesce(x.before_change, x.after_change) = any (whole));
      execute format('insert into %1$s (_change, _image%2$s) select $1, image.* from agentundo._look(%4$L, $3, $2) as image (_image "char"%3$s)',
        t.history, columns_sql, types_sql, format($sql$
        select 'O'::"char"%1$s from unnest($1) d join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
        union all
        select 'N'::"char"%2$s from unnest($1) d join lateral (select * from %4$s h where h.ctid = d.before offset 0) b on true
        left join lateral (select * from %3$s r where r.ctid = d.cur and r.tableoid = d.part offset 0) r on true
        cross join lateral (select %5$s) back
        where d.action <> 'delete'$sql$, current_sql, target_sql, agentundo._from(t), t.history, back_sql))
        using number, work, agentundo._users_path(t.relation);
      insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, invocation, application, tool)
      values (number, t.id, t.relation, pg_relation_filenode(t.relation), kind.n, 0, upper(left(kind.action, 1))::"char", revert_id,
        current_setting('application_name'), agentundo._setting('agent.tool'));
    end loop;
  end loop;
end
$body$;

-- The rows for which this revert stands although it writes none: gone already, or not to come back. Of their images
-- only the key will be read.
create or replace function agentundo._record_void(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  kind record;
  number bigint;
  rows bigint;
  columns_sql text; values_sql text;
begin
  for kind in
    select x.id, k.operation, k.rows
    from agentundo._tracked x
    cross join lateral (
      select case when y.before is null then 'D' else 'I' end::"char" as operation, array_agg(y) as rows
      from unnest(d) y
      where y.tracked = x.id and y.status = 'done' and y.cur is null and coalesce(y.before, y.after) is not null
        and not coalesce(y.detail ? 'segments', false)
      group by 1) k
    where exists (select from agentundo._key(x.id))
    order by x.id, k.operation
  loop
    select * into t from agentundo._tracked x where x.id = kind.id;
    select string_agg(format(', %I', c.history_column), '' order by c.attnum), string_agg(', ' || i.value, '' order by c.attnum)
      into columns_sql, values_sql
      from agentundo._columns(t.id) c
      join agentundo._image_columns(t.id, 'h', 'coalesce(d.before_change, d.after_change)') i on i.attnum = c.attnum
     where c.live and c.history_column is not null;
    number := nextval('agentundo._change_number');
    execute format('insert into %1$s (_change, _image%2$s) select $1, $2%3$s from unnest($3) d
        join lateral (select * from %1$s h where h.ctid = coalesce(d.before, d.after) offset 0) h on true',
      t.history, columns_sql, values_sql) using number, case kind.operation when 'D' then 'O' else 'N' end::"char", kind.rows;
    get diagnostics rows = row_count;
    if rows > 0 then
      insert into agentundo._change (change, tracked, relation, filenode, rows, depth, operation, void, invocation, application, tool)
      values (number, t.id, t.relation, pg_relation_filenode(t.relation), rows, 0, kind.operation, true, revert_id, current_setting('application_name'), agentundo._setting('agent.tool'));
    end if;
  end loop;
end
$body$;

-- All tables in one statement, so that foreign keys are checked when everything is in place.
create or replace function agentundo._restore(d agentundo._decision[], tally jsonb, replace int[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  ctes text;
  counts text := '';
  earlier text;
  planned bigint[] := array[]::bigint[];
  done bigint[];
begin
  for t in select * from agentundo._tracked x where tally ? x.id::text order by x.relation::oid loop
    ctes := concat_ws(',', ctes, agentundo._restore_sql(t, 't' || t.id, earlier, tally -> t.id::text, t.id = any (replace)));
    earlier := 't' || t.id;
    counts := counts || format(' || array[(select count(*) from t%1$s_gone), (select count(*) from t%1$s_back), (select count(*) from t%1$s_here)]', t.id);
    planned := planned || array(
      select coalesce((tally -> t.id::text ->> o.operation)::bigint, 0) from unnest(array['D', 'U', 'I']) with ordinality o (operation, n) order by o.n);
  end loop;
  if ctes is null then
    return;
  end if;
  select * into done from agentundo._act(format('with %s select ''{}''::bigint[]%s', ctes, counts), d);
  if done is distinct from planned then
    raise exception using errcode = '40001', message = 'agentundo: a row changed while it was being put back',
      hint = 'Call revert again.';
  end if;
end
$body$;

-- Capture is told to count what it sees from now on. A table that is untracked has no triggers to count.
create or replace function agentundo._expect(tally jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  insert into agentundo._restoring (xid, tracked, operation, planned)
    select pg_current_xact_id(), t.id, o.operation::"char", o.n::bigint
    from jsonb_each(tally) w (tracked, operations)
    join agentundo._tracked t on t.id = w.tracked::int and t.active
    cross join lateral jsonb_each_text(w.operations) o (operation, n);
  perform set_config('agentundo.restoring', 'on', true);
end
$body$;

-- What capture has counted against what was planned: anything more was done by a foreign key that acts.
create or replace function agentundo._compare(d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  seen record;
begin
  select r.*, t.name into seen from agentundo._restoring r join agentundo._tracked t on t.id = r.tracked
   where r.xid = pg_current_xact_id() and r.planned <> r.seen
     and not (r.operation = 'U' and r.seen > r.planned and agentundo._only_planned(r.tracked, d, revert_id))
   limit 1;
  if found then
    perform agentundo._fail('UN001',
      format('agentundo: putting the rows back would reach further than planned: %s rows of %s instead of %s', seen.seen, seen.name, seen.planned),
      'A foreign key of these tables acts on other rows (CASCADE, SET NULL). Revert the invocations that moved the referenced values one by one, or change the rows by hand.',
      jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_build_object('relation', seen.name, 'reason', 'constraint'))));
  end if;
  delete from agentundo._restoring r where r.xid = pg_current_xact_id();
  perform set_config('agentundo.restoring', '', true);
end
$body$;

-- Rows that come back were absent when that was decided. Whoever was just then making and deleting one of them,
-- and whom the insert had to wait for, was not seen: the plan is to be made again.
create or replace function agentundo._require_absent(d agentundo._decision[], tally jsonb, decided pg_snapshot, revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off as
$body$
declare
  t agentundo._tracked;
  unseen boolean;
begin
  for t in
    select x.* from agentundo._tracked x
    where tally -> x.id::text ? 'I' and exists (select from agentundo._key(x.id))
      and exists (
        select from agentundo._change c
        where c.xid >= pg_snapshot_xmin(decided) and not pg_visible_in_snapshot(c.xid, decided) and c.tracked = x.id and c.invocation is distinct from revert_id)
  loop
    execute format($sql$
      select exists (
        select from agentundo._change c
        join %1$s h on h._change = coalesce(c.source, c.change)
        join unnest($1) d on d.tracked = $2 and d.status in ('ok', 'merge') and d.action = 'insert'
        join lateral (select * from %1$s b where b.ctid = d.before offset 0) b on %2$s
        where c.xid >= pg_snapshot_xmin($3) and not pg_visible_in_snapshot(c.xid, $3) and c.tracked = $2 and c.invocation is distinct from $4)$sql$,
      agentundo._history(t), agentundo._same_key(t.id, 'h', 'b')) into unseen using d, t.id, decided, revert_id;
    if unseen then
      raise exception using errcode = '40001', message = 'agentundo: a row came and went while it was being put back', hint = 'Call revert again.';
    end if;
  end loop;
end
$body$;

-- Waits while we hold something are kept well below deadlock_timeout: it is the revert that lets go and
-- tries again, before any writer who waits for it looks for a deadlock.
create or replace function agentundo._short_wait() returns text
language sql stable set search_path = pg_catalog, pg_temp as
$body$ select greatest(1, least(1000, extract(epoch from current_setting('deadlock_timeout')::interval) * 125))::int || 'ms' $body$;

-- A vacuum keeps strong locks out. PostgreSQL ends an autovacuum for whoever has waited for it for deadlock_timeout, and
-- so long we do not wait while we hold anything: so we do it once without.
create or replace function agentundo._past_vacuum(relations regclass[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  r regclass;
begin
  for r in
    select distinct l.relation from pg_locks l
    where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
      and l.relation = any (relations) and l.mode = 'ShareUpdateExclusiveLock' and l.granted and l.pid <> pg_backend_pid()
  loop
    begin
      perform set_config('lock_timeout', (extract(epoch from current_setting('deadlock_timeout')::interval) * 1200)::int || 'ms', true);
      execute format('lock table only %s in share row exclusive mode', r);
      raise exception using errcode = 'UNR01';
    exception when lock_not_available or deadlock_detected or sqlstate 'UNR01' then
      null;
    end;
  end loop;
end
$body$;

-- What is to be captured while it is put back needs the triggers of a table that is tracked.
create or replace function agentundo._require_tracked(tally jsonb) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  name text := (select t.name from agentundo._tracked t where t.id in (select k::int from jsonb_object_keys(tally) k) and not t.active order by t.id limit 1);
begin
  if name is not null then
    perform agentundo._fail('UN004', format('agentundo: %s is not tracked any more', name),
      format('Call agentundo.track(%L) first: only then is captured what triggers and defaults add to the rows that go back.', name),
      jsonb_build_object('relation', name));
  end if;
end
$body$;

-- Tables of which a row is deleted at one place and comes in again at another: by plan, because nobody knows which row
-- became which, or into another partition.
create or replace function agentundo._going_out_and_in(d agentundo._decision[], changes bigint[], apart int[]) returns int[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  with acting as (select x.tracked, x.action, x.unit, x.detail from unnest(d) x where x.status in ('ok', 'merge') and x.tracked <> all (apart))
  select coalesce(array_agg(distinct t.id), '{}')
  from acting x join agentundo._tracked t on t.id = x.tracked
  where x.detail ? 'replace'
    or t.kind = 'partitioned' and x.detail ? 'moved'
    or x.action = 'delete' and exists (select from acting y where y.tracked = x.tracked and y.action = 'insert')
      and (x.unit like 'moved%' or not exists (select from agentundo._key(t.id))
        and exists (select from agentundo._change c where c.change = any (changes) and c.tracked = t.id and c.operation = 'U'))
$body$;

-- One attempt. Returns the decisions it acted on; raises on anything that is not as planned.
create or replace function agentundo._attempt(
  ids text[], changes bigint[], revert_id text, on_conflict text, merge boolean, scope text, replace int[], apart int[], run text, from_step int, since timestamptz)
returns agentundo._decision[] language plpgsql security definer
set search_path = pg_catalog, pg_temp set quote_all_identifiers = off set row_security = off set work_mem = '64MB' set jit = off as
$body$
declare
  tables constant int[] := array(select distinct c.tracked from agentundo._change c where c.change = any (changes) order by 1);
  d agentundo._decision[];
  tally jsonb;
  captured boolean;  -- what is written is captured like anything else
  silenced jsonb;
  decided pg_snapshot;
  strong regclass[] := array[]::regclass[];
  one int;
  moving int[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform from agentundo._tracked t where t.id = any (tables) for key share;  -- 40001 where it was untracked, or altered, since
  end if;
  perform agentundo._require_workers(), agentundo._require_rights(tables);
  perform agentundo._follow(tables);
  -- Who must be silenced is asked before any row is locked, and asked again when all is decided.
  if exists (select from agentundo._with_triggers(tables)) then
    strong := array(select s.relation from agentundo._to_silence(agentundo._tally(agentundo._decide(ids, changes, on_conflict, merge), replace)) s);
  end if;
  perform agentundo._hurry(since);
  perform agentundo._lock_tables(tables, strong, apart);
  perform agentundo._hurry(since);
  perform agentundo._take_turn(tables);
  if agentundo._is_behind(tables) then
    raise exception using errcode = 'UNR01';  -- a table was altered while we waited: its history has to follow
  end if;
  foreach one in array tables loop
    perform agentundo._hurry(since);
    perform agentundo._lock_rows(one, changes) from agentundo._tracked x join pg_class c on c.oid = x.relation where x.id = one;
  end loop;
  if agentundo._uncovered(ids) <> changes or run is not null and not agentundo._members(run, from_step, scope) <@ ids then
    raise exception using errcode = 'UNR01';  -- more was committed under these ids, or in this run, while we waited
  end if;

  -- Everybody whom we waited for came before us.
  update agentundo._revert r set number = nextval('agentundo._change_number') where r.id = revert_id;
  decided := pg_current_snapshot();
  d := agentundo._decide(ids, changes, on_conflict, merge);
  perform agentundo._hurry(since);
  if agentundo._lock_found(d, (select max(x.xmin::text::bigint) from agentundo._turn x where x.tracked = tables[1])) then
    d := agentundo._decide(ids, changes, on_conflict, merge);  -- nobody adds a dependent any more
  end if;
  if exists (select from unnest(d) x where x.status = 'conflict') then
    if on_conflict = 'cascade' and agentundo._blockers(ids, d, scope) <> '{}' then
      raise exception using errcode = 'UNR01';  -- somebody tagged wrote while we waited: he comes along
    end if;
    perform agentundo._refuse(d, on_conflict, merge);
  end if;
  -- Rows that go out and come in again: whoever waited for one of them would find it gone, and be told nothing. So he
  -- waits for the table.
  moving := agentundo._going_out_and_in(d, changes, apart);
  if moving <> '{}' then
    raise exception using errcode = 'UNR02', detail = moving::text;
  end if;
  tally := agentundo._tally(d, replace);

  -- Where a trigger is to fire, what it writes has to be captured; where the default of a later column is made
  -- up for a row that comes back, only the row itself tells what came of it.
  captured := exists (select from agentundo._trigger_rule r where r.rule = 'fire' and r.tracked = any (tables))
    or exists (
      select from jsonb_each(tally) w (tracked, operations)
      join agentundo._tracked x on x.id = w.tracked::int and w.operations ? 'I'
      cross join lateral agentundo._columns(x.id) c
      join pg_attrdef f on f.adrelid = x.relation and f.adnum = c.attnum
      where c.live and c.since_change > 0);
  if captured then
    perform agentundo._require_tracked(tally);
  end if;
  perform agentundo._record_void(d, revert_id);
  if not captured then
    perform agentundo._record_changes(d, revert_id);
    perform agentundo._expect(tally);
  end if;
  -- All is locked: who makes us wait now has a unique value, or a parent, and may wait for us. Nobody knows how long it takes.
  perform set_config('lock_timeout', '1ms', true);
  silenced := agentundo._silence(tally, strong);
  perform agentundo._restore(d, tally, replace);
  perform agentundo._require_absent(d, tally, decided, revert_id);
  perform agentundo._settle(tables) where tally <> '{}';
  perform agentundo._rearm(silenced);
  if not captured then
    perform agentundo._compare(d, revert_id);
  end if;
  return d;
end
$body$;

-- ==== 20_revert.sql ====

-- 20  Revert: attempts until one succeeds, and what is told of it
--
-- A revert locks its invocations first, by id: a second click waits here and finds the work done. Then it
-- makes attempts (19_act.sql), each in a subtransaction with a short lock_timeout: who gives way lets go of
-- everything and tries again, so that no writer becomes the revert's deadlock victim. Integrity errors come
-- out as UN001 with the constraint's name. At the end stands the record: what is covered now, one event.
-- The changes that the attempt wrote can be reverted like any others; that is what redo() does.

-- What an undo of these ids has to lock: themselves, and what they took back if they are reverts. Returns
-- all that it locked.
create or replace function agentundo._lock_invocations(ids text[]) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  wanted text[];
begin
  with recursive upward as (
    select u as id from unnest(ids) u
    union
    select unnest(v.invocations) from agentundo._revert v join upward u on u.id = v.id)
  select array_agg(distinct id order by id) into wanted from upward;
  insert into agentundo._invocation (id, run, step, scope, actor, on_behalf_of, role, tool, created_at)
    select distinct on (c.invocation) c.invocation, c.run, null::int, c.scope, c.actor, c.on_behalf_of, c.role, c.tool, c.at
    from agentundo._change c
    where c.invocation = any (wanted) and not exists (select from agentundo._invocation i where i.id = c.invocation)
    order by c.invocation, c.change
  on conflict (id) do nothing;
  perform from agentundo._invocation i where i.id = any (wanted) order by i.id for update;
  return wanted;
end
$body$;

-- What helps against conflicts of these kinds, beyond what was asked for; nothing is offered that does not.
-- Of a row that is not one any more (without a key, or with another) there is only one: `lost`.
create or replace function agentundo._ways_out(reasons text[], on_conflict text, merge boolean, lost boolean) returns text
language sql immutable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select 'See agentundo.plan(). Then revert with '
    || case when not lost and not merge and reasons <@ '{row_changed}' then 'merge => true (puts back only the columns that nobody else changed), ' else '' end
    || 'on_conflict => ''skip'' (leaves these rows)'
    || case when lost or on_conflict = 'cascade' or reasons && '{schema_changed,constraint,erased,not_visible}' then ''
         when reasons && '{unique_taken,has_dependents,missing_parent}' then ' or ''cascade'' (takes later agent work along)'
         else ', ''cascade'' (takes later agent work along)' end
    || case when not lost and reasons <@ '{row_changed,row_rewritten,row_deleted,row_exists}' then ' or ''force''' else '' end
    || case when reasons && '{unique_taken,has_dependents,missing_parent,constraint}' then '; or change what stands in the way first.' else '.' end
$body$;

-- Conflicts as an error: what and where for people, the first 20 for programs. Keys and column names
-- only, no other value: DETAIL is written to the server log.
create or replace function agentundo._refuse(d agentundo._decision[], on_conflict text, merge boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  conflicts agentundo._decision[];
  total bigint := (select count(*) from unnest(d) x where x.status = 'conflict');
  listed jsonb;
  first_one jsonb;
begin
  conflicts := array(select x from unnest(d) x where x.status = 'conflict' order by x.place limit 20);
  select jsonb_agg(jsonb_strip_nulls(jsonb_build_object('relation', s.relation, 'key', s.key, 'reason', s.reason, 'columns', s.columns,
      'invocation', s.invocation, 'constraint', s.detail -> 'constraint', 'in_the_way', s.detail -> 'relation')))
    into listed
    from agentundo._show(conflicts) s;
  -- Without a key the key is the whole row, and that is nobody's business in a log.
  select jsonb_agg(case when exists (select from agentundo._tracked t where t.relation::text = l ->> 'relation' and not exists (select from agentundo._key(t.id))) then l - 'key' else l end)
    into listed from jsonb_array_elements(listed) l;
  first_one := listed -> 0;
  perform agentundo._fail('UN001',
    format('agentundo: %s would overwrite later work or break a constraint: %s %s: %s%s%s',
      case when total = 1 then '1 row' else total || ' rows' end, first_one ->> 'relation',
      case when first_one ->> 'key' <> '{}' then first_one ->> 'key'
        when first_one ->> 'reason' = 'erased' then '(a row whose key was erased, too)'
        when exists (select from agentundo._tracked t cross join lateral agentundo._key(t.id) where t.relation::text = first_one ->> 'relation') then '(a row whose key is not shown)'
        else '(a row without a key)' end, first_one ->> 'reason',
      coalesce(' (' || (select string_agg(c, ', ') from jsonb_array_elements_text(first_one -> 'columns') c) || ')', coalesce(' (' || (first_one ->> 'constraint') || ')', '')),
      case when total > 1 then ', and more' else '' end),
    case when on_conflict = 'force'
      then 'Even force does not break constraints. See agentundo.plan(); revert or change what stands in the way first.'
      else agentundo._ways_out(array(select distinct x.reason from unnest(d) x where x.status = 'conflict'), on_conflict, merge, exists (
        select from unnest(agentundo._moved_on(d)) x
        where x.status = 'conflict' and (not exists (select from agentundo._key(x.tracked)) or x.detail ? 'moved_on'
          or x.reason in ('row_exists', 'row_deleted') and (x.unit is not null or x.detail ? 'moved')))) end,
    jsonb_build_object('total', total, 'conflicts', listed));
end
$body$;

-- Marks what has been taken back. Where a row of a table was skipped, all changes of that table stay
-- uncovered: rows that the set wrote more than once are chains of several changes, and of half a chain
-- nobody could tell what it had come to. The next revert finds what is left by looking at each row.
create or replace function agentundo._cover(ids text[], changes bigint[], d agentundo._decision[], revert_id text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  left_over bigint[] := array(
    select c.change from agentundo._change c
    where c.change = any (changes)
      and c.tracked in (select x.tracked from unnest(d) x where x.status = 'skip' or x.status in ('ok', 'done') and x.detail ? 'segments'));
  v record;
begin
  insert into agentundo._reverted (change, revert, invocation)
    select c.change, revert_id, c.invocation from agentundo._change c where c.change = any (changes) and c.change <> all (left_over)
  on conflict do nothing;
  update agentundo._revert r set partial = left_over <> '{}' or r.partial and agentundo._uncovered(r.invocations) <> '{}' where r.id = revert_id;

  -- A revert that has been taken back wholly stands no longer; one whose redo was taken back stands again.
  for v in
    with recursive kin as (
      select r.id, r.number from agentundo._revert r where r.id = any (ids)
      union
      select r.id, r.number from kin k join agentundo._revert q on q.id = k.id join agentundo._revert r on r.id = any (q.invocations))
    select k.id, k.number from kin k order by k.number desc
  loop
    update agentundo._revert r set
      standing = not exists (
        select from agentundo._revert w where w.invocations @> array[r.id] and w.standing and w.number > r.number
          and not exists (select from unnest(agentundo._uncovered(array[r.id])) u)),
      reopened = exists (
        select from agentundo._revert w where w.invocations @> array[r.id] and w.standing and w.number > r.number and (w.partial or w.reopened)
          and exists (select from agentundo._change c where c.invocation = w.id and c.xid = w.xid))
    where r.id = v.id;
  end loop;
end
$body$;

-- What is to be taken back: the invocations named, for a redo their newest standing revert, with cascade
-- also what stands in their way.
create or replace function agentundo._aim(ids text[], redo boolean, on_conflict text, merge boolean, scope text) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select coalesce((
    select array_agg(distinct u order by u)
    from unnest(agentundo._extend(case when redo then array(
        select v.id from agentundo._revert v where v.invocations && ids and v.standing order by v.number desc limit 1) else ids end,
      on_conflict, merge, scope)) u), '{}')
$body$;

-- Locks what this is about and says what there is to do. Which invocations that is can change until they are
-- locked: so they are named (`wanted`), locked all together and named again; UNR01 asks for another round. An
-- answer with a status is final.
create or replace function agentundo._begin(
  ids text[], wanted text[], redo boolean, on_conflict text, merge boolean, scope text, reverted_by text, run text, from_step int) returns agentundo._task
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  task agentundo._task;
  answer agentundo.revert_result;
begin
  task.locked := agentundo._lock_invocations(wanted || ids);
  task.aim := agentundo._aim(ids, redo, on_conflict, merge, scope);
  if not task.aim <@ wanted then
    raise exception using errcode = 'UNR01', detail = task.aim::text;
  elsif run is not null and not agentundo._members(run, from_step, scope) <@ ids then
    raise exception using errcode = 'UNR01';
  end if;
  perform agentundo._unknown(ids[1]) from unnest(task.aim) u where redo and not agentundo._in_scope(u, agentundo._scope(scope));
  perform agentundo._require_known(ids || task.aim, scope);
  if not task.aim <@ ids then
    perform agentundo._require_revert(task.aim, scope, reverted_by);
  end if;
  task.changes := agentundo._uncovered(task.aim);
  answer := row(null, null, array(
      select u from unnest(task.aim) u where exists (select from agentundo._change c where c.change = any (task.changes) and c.invocation = u)),
    0, 0, 0, 0, 0);
  if task.changes = '{}' then
    select v.id into answer.revert_id from agentundo._revert v where v.invocations && task.aim and v.standing order by v.number desc limit 1;
    if redo and answer.revert_id is null and exists (select from agentundo._revert v where v.id = any (task.aim) and v.standing) then
      answer.invocations := task.aim;  -- a revert that had changed no row is taken back in the books alone
    else
      answer.status := case
        when answer.revert_id is not null then 'already_reverted'
        when exists (select from agentundo._invocation i where i.id = any (task.aim) and i.recorded and i.status = 'pending') then 'not_committed'
        else 'nothing_to_revert' end;
    end if;
  end if;
  task.answer := answer;
  return task;
end
$body$;

-- The books after an attempt that succeeded.
create or replace function agentundo._conclude(
  task agentundo._task, d agentundo._decision[], revert_id text, redo boolean, reverted_by text, reason text) returns agentundo.revert_result
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  result agentundo.revert_result := task.answer;
  originals constant text[] := agentundo._originals(result.invocations);
  earlier text;
begin
  select count(*) filter (where x.action = 'delete' and x.status in ('ok', 'merge')), count(*) filter (where x.action = 'insert' and x.status in ('ok', 'merge')),
         count(*) filter (where x.action = 'update' and x.status in ('ok', 'merge')), count(*) filter (where x.status = 'skip'),
         count(*) filter (where x.status = 'skip' and x.reason is not null and not coalesce(x.detail ? 'follows', false))
    into result.rows_deleted, result.rows_inserted, result.rows_updated, result.rows_skipped, result.conflicts
    from unnest(d) x;
  -- Nothing was left to do but what an earlier revert of these had done: no second one stands for it.
  if not redo and not exists (select from agentundo._change c where c.invocation = revert_id) then
    select v.id into earlier from agentundo._revert v where v.invocations && task.aim and v.standing and v.id <> revert_id order by v.number desc limit 1;
    if earlier is not null then
      delete from agentundo._invocation i where i.id = revert_id;
    end if;
  end if;
  result.revert_id := coalesce(earlier, revert_id);
  perform agentundo._cover(task.aim, task.changes, d, result.revert_id);
  update agentundo._invocation i set status = 'committed', committed_at = clock_timestamp()
   where i.id = any (result.invocations) and i.status = 'pending';
  select case when earlier is null and v.partial or earlier is not null and agentundo._uncovered(task.aim) <> '{}' then 'partially_reverted'
      when earlier is not null then 'already_reverted' else 'reverted' end
    into result.status from agentundo._revert v where v.id = result.revert_id;
  if earlier is null then
    -- Listeners know calls, not reverts: a redo is told of as of what it has done again.
    perform agentundo._emit(case when redo then 'invocation_redone' else 'invocation_reverted' end, originals[1],
      jsonb_build_object('revert_id', revert_id, 'status', result.status, 'by', reverted_by, 'reason', reason, 'invocations', originals,
        'reverts', nullif(array(select u from unnest(result.invocations) u where u <> all (originals)), '{}')));
  end if;
  return result;
end
$body$;

create or replace function agentundo._revert_now(
  ids text[], on_conflict text, merge boolean, reason text, reverted_by text, scope text, redo boolean, run text default null, from_step int default 1)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  revert_id constant text := gen_random_uuid()::text;
  tool constant text := case when redo then 'agentundo.redo' else 'agentundo.revert' end;
  wanted text[];
  task agentundo._task;
  d agentundo._decision[];
  saved text[];
  companions constant text[] := array['agent.invocation', 'agent.run', 'agent.step', 'agent.tool', 'agent.actor', 'agent.on_behalf_of', 'agent.scope', 'agentundo.baseline', 'lock_timeout'];
  patience interval := case when current_setting('lock_timeout') = '0' then interval '60 s' else current_setting('lock_timeout')::interval end;
  began timestamptz := clock_timestamp();
  replace int[] := array[]::int[];  -- the tables in which updates are deletes and inserts
  apart int[] := array[]::int[];    -- those that nobody else may write meanwhile
  since timestamptz;
  blocked boolean := false;         -- by whoever holds a lock
  stale int := 0;          -- how often something was altered while we looked
  misfortunes text[] := array[]::text[];  -- what constraints have said that the plan did not know
  old_snapshot constant boolean := current_setting('transaction_isolation') <> 'read committed';
  constraint_name text; table_name text; complaint text; about text; named text;
begin
  perform agentundo._check_mode(on_conflict);
  merge := coalesce(merge, false);
  ids := array(select distinct u from unnest(ids) u order by u);
  perform agentundo._require_known(ids, scope);
  perform agentundo._refuse_force(on_conflict, reverted_by, reason);
  perform agentundo._require_revert(ids, scope, reverted_by);
  if agentundo._is_copy() then
    perform agentundo._lift_sequences();
  end if;
  saved := array(select current_setting(c, true) from unnest(companions) with ordinality x (c, n) order by n);
  wanted := case when on_conflict = 'cascade' then ids else agentundo._aim(ids, redo, on_conflict, merge, scope) end;
  loop
    begin
      d := null;
      if blocked then
        blocked := false;
        perform agentundo._past_vacuum(array(
          select agentundo._with_triggers(array(select distinct c.tracked from agentundo._change c where c.change = any (task.changes)))
          union select agentundo._levels(x.relation, x.kind) from agentundo._tracked x where x.id = any (apart)));
      end if;
      since := clock_timestamp();
      if run is not null and not agentundo._members(run, from_step, scope) <@ ids then
        ids := agentundo._members(run, from_step, scope);  -- calls that were committed meanwhile
        perform agentundo._require_revert(ids, scope, reverted_by);
        wanted := wanted || ids;
      end if;
      -- All locks belong to the attempt: who gives way lets go of everything.
      perform set_config('lock_timeout', agentundo._short_wait(), true);
      task := agentundo._begin(ids, wanted, redo, on_conflict, merge, scope, reverted_by, run, from_step);
      exit when (task.answer).status is not null;
      insert into agentundo._invocation (id, scope, actor, role, tool, status, created_at, committed_at)
        values (revert_id, agentundo._common_scope(task.aim), reverted_by, agentundo._caller(), tool, 'committed', clock_timestamp(), clock_timestamp());
      insert into agentundo._revert (id, invocations, redo, on_conflict, merge, reverted_by, reason, role)
        values (revert_id, (task.answer).invocations, redo, on_conflict, merge, reverted_by, reason, agentundo._caller());
      perform agentundo.tag(revert_id, tool => tool, actor => reverted_by);
      d := agentundo._attempt(task.aim, task.changes, revert_id, on_conflict, merge, scope, replace, apart, run, from_step, since);
      update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (task.locked);
      exit;
    exception
      when sqlstate 'UNR01' then
        get stacked diagnostics named = pg_exception_detail;
        wanted := wanted || coalesce(nullif(named, ''), '{}')::text[];
        if clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = 'agentundo: these invocations go on writing',
            hint = 'Let them end first; what they write after the revert would stay.';
        end if;
        continue;
      when sqlstate 'UNR02' then
        get stacked diagnostics named = pg_exception_detail;
        apart := apart || named::int[];
        continue;
      when lock_not_available then
        -- The revert gives way and tries again: but what this transaction had before it keeps.
        if exists (
          select from pg_locks l
          where not l.granted and l.pid <> pg_backend_pid() and pg_backend_pid() = any (pg_blocking_pids(l.pid))
            and not exists (select from pg_class c where c.oid = l.relation and c.relnamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace))) then
          raise exception using errcode = '55P03', message = 'agentundo: others wait for what this transaction had locked before the undo, and the undo for others',
            hint = 'Give the undo a transaction of its own, and call it again.';
        elsif clock_timestamp() > began + patience then
          raise exception using errcode = '55P03', message = format('agentundo: somebody holds rows or tables of this undo for longer than %s', patience),
            hint = 'End the transaction that holds them (see pg_stat_activity and pg_blocking_pids), then call revert again. A higher lock_timeout makes it wait longer.';
        end if;
        blocked := true;
      when deadlock_detected or serialization_failure then
        get stacked diagnostics complaint = message_text;
        if old_snapshot or clock_timestamp() > began + patience then
          raise;  -- only the caller can begin anew, with a new snapshot
        elsif complaint like 'agentundo: a row changed%' then
          if cardinality(array_positions(misfortunes, complaint)) >= 5 then
            perform agentundo._broke('constraint', 'rows did not become what was written; a trigger that is to fire may keep them from it', null, null);
          end if;
          misfortunes := misfortunes || complaint;
        end if;
      when unique_violation or exclusion_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text, about = pg_exception_detail;
        -- Values that change places among rows of the plan: all of them out, then all of them in. Not where
        -- a key of another table would act on the rows while they are gone.
        if concat(complaint, about) <> all (misfortunes) and not old_snapshot then
          misfortunes := misfortunes || concat(complaint, about);  -- somebody may have been faster than our look
        elsif replace = '{}' and agentundo._replaceable(task.changes) <> '{}' then
          replace := agentundo._replaceable(task.changes);
          apart := apart || replace;
        elsif old_snapshot then
          perform agentundo._outdated();
        else
          perform agentundo._broke('unique_taken', complaint, constraint_name, table_name);
        end if;
      when integrity_constraint_violation or foreign_key_violation or restrict_violation or check_violation or not_null_violation then
        get stacked diagnostics constraint_name = constraint_name, table_name = table_name, complaint = message_text, about = pg_exception_detail;
        if old_snapshot then
          perform agentundo._outdated();
        elsif concat(complaint, about) = any (misfortunes) then
          perform agentundo._broke('constraint', complaint, constraint_name, table_name);
        end if;
        misfortunes := misfortunes || concat(complaint, about);  -- somebody was faster than our look: the next one sees it and says more
      when data_exception or string_data_right_truncation or numeric_value_out_of_range or invalid_text_representation then
        get stacked diagnostics table_name = table_name, complaint = message_text;
        perform agentundo._broke('schema_changed', 'a former value does not fit its column any more', null, table_name);
      when insufficient_privilege or undefined_table or undefined_column or undefined_function or internal_error or raise_exception then
        get stacked diagnostics complaint = message_text;
        if sqlstate = 'UN003' or complaint like 'agentundo:%' or sqlstate = 'XX000' and complaint not like 'cache lookup failed%' then
          raise;
        elsif sqlstate in ('42P01', '42703', '42883', 'XX000') and stale < 5 then
          stale := stale + 1;  -- a table was altered, or agentundo upgraded, between two looks: look again
          perform pg_sleep(0.01);
          continue;
        elsif sqlstate = '42703' and old_snapshot then
          perform agentundo._outdated();  -- it sees the columns of then
        end if;
        -- code of the user's that runs with our rights while rows are written: a constraint's, a trigger's
        raise exception using errcode = 'UN001', message = format('agentundo: the rows cannot be put back: %s',
            case when agentundo._reads_all(array(select distinct c.tracked from agentundo._change c where c.change = any (task.changes))) then complaint
              else 'a function of these tables failed with SQLSTATE ' || sqlstate end),
          detail = jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_build_object('reason', 'constraint')))::text,
          hint = format('A function in a constraint or a trigger of these tables failed. It runs as %s here: grant that role what the function needs.', agentundo._worker());
      when object_in_use then
        raise exception using errcode = '55006', message = 'agentundo: revert cannot run here: a query of this session or a deferred constraint is still busy with one of the tables',
          hint = 'Call it as a statement of its own, in a transaction of its own.';
    end;
    perform pg_sleep(0.05 + random() * 0.2);
  end loop;
  perform set_config(c, coalesce(saved[n], ''), true) from unnest(companions) with ordinality x (c, n) where c <> 'lock_timeout';
  perform set_config('lock_timeout', saved[cardinality(saved)], true);
  if d is null then
    return task.answer;
  end if;
  return agentundo._conclude(task, d, revert_id, redo, reverted_by, reason);
end
$body$;

create or replace function agentundo._common_scope(ids text[]) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select case when count(distinct i.scope) = 1 and count(*) = count(i.scope) then min(i.scope) end from agentundo._invocation i where i.id = any (ids)
$body$;

-- The tables of these changes in which rows may be deleted and inserted again within the statement.
create or replace function agentundo._replaceable(changes bigint[]) returns int[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select array(
    select t.id from agentundo._tracked t
    where t.id in (select c.tracked from agentundo._change c where c.change = any (changes)) and not agentundo._held_in_place(t))
$body$;

-- A look with an older snapshot than the locks: right answers need a new one.
create or replace function agentundo._outdated() returns void
language plpgsql set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  raise exception using errcode = '40001', message = 'agentundo: another transaction changed a related row since this one began',
    hint = 'Begin a new transaction and call revert again.';
end
$body$;

create or replace function agentundo._broke(reason text, complaint text, constraint_name text, table_name text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  perform agentundo._fail('UN001', format('agentundo: the rows cannot be put back: %s', complaint),
    'See agentundo.plan(). Nothing was changed; remove what stands in the way, or use on_conflict => ''skip''.',
    jsonb_build_object('total', 1, 'conflicts', jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
      'relation', nullif(table_name, ''), 'constraint', nullif(constraint_name, ''), 'reason', reason)))));
end
$body$;

-- Public --------------------------------------------------------------------------------------------------

create or replace function agentundo.revert(
  invocations text[], on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(invocations, on_conflict, merge, reason, reverted_by, scope, false);
end
$body$;
comment on function agentundo.revert(text[], text, boolean, text, text, text) is
  'Puts back every row that these invocations wrote, as one unit, and leaves everybody else''s later work alone: a row that somebody changed since is a conflict (UN001), or is skipped, merged, cascaded or forced as asked. All or nothing, in your transaction. The revert is an invocation too: redo() takes it back.';

create or replace function agentundo.revert(
  invocation text, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(array[invocation], on_conflict, merge, reason, reverted_by, scope, false);
end
$body$;
comment on function agentundo.revert(text, text, boolean, text, text, text) is
  'Puts back every row that this invocation wrote, and leaves everybody else''s later work alone: a row that somebody changed since is a conflict (UN001), or is skipped, merged, cascaded or forced as asked. All or nothing, in your transaction. Twice is once: the second call answers already_reverted.';

create or replace function agentundo.revert_run(
  run text, from_step int default 1, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(agentundo._members(run, from_step, scope), on_conflict, merge, reason, reverted_by, scope, false, run, from_step);
end
$body$;
comment on function agentundo.revert_run(text, int, text, boolean, text, text, text) is
  'Puts back what a run wrote from a step on, as one unit: its invocations never conflict with each other. Otherwise like revert().';

create or replace function agentundo.redo(
  invocation text, on_conflict text default 'abort', merge boolean default false, reason text default null,
  reverted_by text default null, scope text default null)
returns agentundo.revert_result language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return agentundo._revert_now(array[invocation], on_conflict, merge, reason, reverted_by, scope, true);
end
$body$;
comment on function agentundo.redo(text, text, boolean, text, text, text) is
  'Takes back the newest standing revert of an invocation: its rows are again what it wrote, with the same respect for what others wrote since.';

-- ==== 21_record.sql ====

-- 21  Record: invocations as the application tells of them, effects, events
--
-- An invocation needs no record: a tag is enough to capture and to revert. A record adds what the
-- database cannot see (input, result, failure, tier, model) and makes a retried call idempotent.
--
-- Life cycle of a record: record_invocation() writes it as `pending`, before the data and committed on
-- its own, so that a call that dies leaves a trace; commit_invocation() marks it inside the data's own
-- transaction, so that the mark and the data share one fate; fail_invocation() closes one that wrote
-- nothing. Whether it can be undone hangs on its changes alone, never on this status.
--
-- Locks: the row of the invocation, for the rest of the transaction. Steps of a run are given out
-- under advisory locks that nobody waits for.

-- One row in `_event`, with the role of whoever did it in the payload, and a wake-up for listeners, who are to
-- read `agentundo.events`: anybody can send a notification. Off where NOTIFY is not possible (PREPARE TRANSACTION) or not wanted.
create or replace function agentundo._emit(kind text, invocation text, payload jsonb default '{}', source text default 'system') returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  number bigint;
  i agentundo._invocation;
  c agentundo._change;
begin
  select * into i from agentundo._invocation x where x.id = _emit.invocation;
  select * into c from agentundo._change x where x.change = (select min(y.change) from agentundo._change y where y.invocation = _emit.invocation);
  insert into agentundo._event (kind, source, scope, invocation, run, step, tool, actor, payload)
  values (_emit.kind, _emit.source, coalesce(i.scope, c.scope), _emit.invocation, coalesce(i.run, c.run), coalesce(i.step, c.step),
          coalesce(i.tool, c.tool), coalesce(i.actor, c.actor), coalesce(_emit.payload, '{}') || jsonb_build_object('role', agentundo._caller()))
  returning event into number;
  if coalesce(agentundo._setting('agentundo.notify'), (select s.value from agentundo._setting s where s.name = 'notify'), 'on') <> 'off' then
    perform pg_notify('agentundo', jsonb_build_object('event', number, 'kind', kind, 'invocation', invocation)::text);
  end if;
  return number;
end
$body$;

-- A free step of a run. Who gets the lock of a number may use it; who does not takes the next one
-- instead of waiting, so two transactions can never wait for each other here. A number whose
-- transaction rolls back stays free.
create or replace function agentundo._next_step(run text) returns int
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  step int := coalesce((select max(i.step) from agentundo._invocation i where i.run = _next_step.run), 0) + 1;
begin
  while not pg_try_advisory_xact_lock(hashtext('agentundo ' || run), step) loop
    step := step + 1;
  end loop;
  return step;
end
$body$;

-- Nobody makes another's writes his own by recording them: what has been written or recorded under an id
-- already keeps its scope, its actor and the person it was for. Operators may correct them.
create or replace function agentundo._refuse_claim(id text, scope text, actor text, on_behalf_of text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as
$body$
begin
  if not agentundo._operator() and exists (
      select from (
        select i.scope, i.actor, i.on_behalf_of from agentundo._invocation i where i.id = _refuse_claim.id
        union all
        (select c.scope, c.actor, c.on_behalf_of from agentundo._change c where c.invocation = _refuse_claim.id order by c.change limit 1)) was
      where was.scope is distinct from nullif(_refuse_claim.scope, '')
         or was.actor is distinct from coalesce(nullif(_refuse_claim.actor, ''), was.actor)
         or was.on_behalf_of is distinct from coalesce(nullif(_refuse_claim.on_behalf_of, ''), was.on_behalf_of)) then
    perform agentundo._fail('UN010', format('agentundo: invocation %L is somebody else''s', id),
      'Something was written or recorded under this id for another scope, actor or person. Give every call an id of its own.',
      jsonb_build_object('invocation', id));
  end if;
end
$body$;

create or replace function agentundo.record_invocation(
  id text default null, run text default null, step int default null, tool text default null, tier text default null,
  input jsonb default null, actor text default null, scope text default null, on_behalf_of text default null,
  model text default null, meta jsonb default null, role name default session_user, again boolean default false)
returns agentundo.recorded
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  new_id text := coalesce(id, gen_random_uuid()::text);
  new_step int;
  known agentundo._invocation;
  shown text;
begin
  perform agentundo._check_id(new_id), agentundo._step(step::text);
  if run is not null then
    perform agentundo._check_id(run, 'run');
  end if;
  if tier is not null and tier not in ('critical', 'high', 'medium', 'low') then
    perform agentundo._fail('22023', format('agentundo: there is no tier %L', left(tier, 40)), 'Use critical, high, medium or low.');
  end if;
  perform agentundo._refuse_claim(new_id, scope, actor, on_behalf_of);
  if agentundo._agent() and role not in (session_user, agentundo._caller()) then
    perform agentundo._fail('UN003', format('agentundo: an agent records its own calls, not those of %s', role), 'Leave role out.');
  end if;
  loop
    new_step := case when step is null and run is not null then agentundo._next_step(run) else step end;
    insert into agentundo._invocation as i (id, run, step, scope, actor, on_behalf_of, role, tool, tier, model, status, recorded, input, meta)
    values (new_id, record_invocation.run, new_step, nullif(record_invocation.scope, ''), nullif(record_invocation.actor, ''),
            nullif(record_invocation.on_behalf_of, ''), record_invocation.role, nullif(record_invocation.tool, ''), record_invocation.tier,
            record_invocation.model, 'pending', true, record_invocation.input, record_invocation.meta)
    on conflict do nothing;
    if found then
      return row(new_id, 'pending', true, null)::agentundo.recorded;
    end if;
    select * into known from agentundo._invocation i where i.id = new_id for update;
    exit when found;
    if step is not null then
      perform agentundo._fail('22023', format('agentundo: run %L has a step %s already', run, step), 'Leave the step out; it is given automatically.');
    end if;
  end loop;

  select v.status into shown from agentundo.invocations v where v.id = new_id;
  if exists (select from agentundo._revert r where r.id = new_id) then
    perform agentundo._fail('UN010', format('agentundo: %L is the id of a revert', new_id), 'Give every call an id of its own.');
  elsif known.recorded and (known.tool is distinct from nullif(tool, '') or known.input is distinct from input) then
    perform agentundo._fail('UN010', format('agentundo: invocation %L was recorded with another %s', new_id,
        case when known.tool is distinct from nullif(tool, '') then 'tool' else 'input' end),
      'The same id means the same call. Give a new call an id of its own.', jsonb_build_object('invocation', new_id));
  elsif shown in ('reverted', 'partially_reverted') and again is not true then
    perform agentundo._fail('UN010', format('agentundo: invocation %L has been reverted', new_id),
      'Do not simply repeat what somebody took back. If it is meant, record it with again => true, or under a new id.',
      jsonb_build_object('invocation', new_id, 'status', shown));
  elsif not known.recorded then
    -- Tagged only, and given a row by a revert or a hold before it was recorded.
    update agentundo._invocation i set
      run = record_invocation.run, step = new_step, scope = nullif(record_invocation.scope, ''), actor = nullif(record_invocation.actor, ''),
      on_behalf_of = nullif(record_invocation.on_behalf_of, ''), role = record_invocation.role, tool = nullif(record_invocation.tool, ''),
      tier = record_invocation.tier, model = record_invocation.model, status = 'pending', recorded = true,
      input = record_invocation.input, meta = record_invocation.meta
    where i.id = new_id;
    return row(new_id, 'pending', true, null)::agentundo.recorded;
  elsif shown in ('failed', 'reverted', 'partially_reverted') then
    update agentundo._invocation i set status = 'pending', error = null, result = null, committed_at = null where i.id = new_id;
    return row(new_id, 'pending', true, null)::agentundo.recorded;
  end if;
  return row(new_id, shown, false, known.result)::agentundo.recorded;
end
$body$;
comment on function agentundo.record_invocation(text, text, int, text, text, jsonb, text, text, text, text, jsonb, name, boolean) is
  'Records a tool call as pending, before it writes. The same id with the same tool and input again gives created = false and the first result: do not write again. Commit it before the data, or in the same transaction; changes none of your rows.';

-- The record, locked; unknown ids are an error.
create or replace function agentundo._lock_record(id text) returns agentundo._invocation
language plpgsql set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation;
begin
  perform agentundo._check_id(id);
  select * into i from agentundo._invocation x where x.id = _lock_record.id and x.recorded for update;
  if not found then
    perform agentundo._fail('UN002', format('agentundo: there is no record of invocation %L', id),
      'Call agentundo.record_invocation() first.', jsonb_build_object('invocation', id));
  end if;
  return i;
end
$body$;

-- The tables that this transaction has written since it was tagged and that are not tracked: what a
-- revert will not take back. The statistics also count what a savepoint has rolled back, and what earlier transactions
-- of the session wrote and have not reported yet; the locks of either are gone. They are dear to ask for, so only
-- for tables that are left.
create or replace function agentundo._uncovered_tables() returns text[]
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(array_agg(format('%I.%I', s.schemaname, s.relname) order by s.schemaname, s.relname), '{}')
  from pg_stat_xact_user_tables s
  where s.n_tup_ins + s.n_tup_upd + s.n_tup_del
          > coalesce((agentundo._setting('agentundo.baseline')::jsonb ->> s.relid::text)::bigint, 0)
    and s.schemaname not in ('agentundo', 'agentundo_history') and s.schemaname not like 'pg\_temp\_%'
    and not exists (select from agentundo._tracked t
                    where t.active and t.relation in (s.relid, agentundo._root(s.relid)))
    and exists (select from pg_locks l
                where l.pid = pg_backend_pid() and l.locktype = 'relation' and l.relation = s.relid and l.mode = 'RowExclusiveLock'
                offset 0)
$body$;

create or replace function agentundo.commit_invocation(id text, result jsonb default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation := agentundo._lock_record(id);
begin
  if i.status = 'failed' then
    perform agentundo._fail('UN010', format('agentundo: invocation %L is marked as failed', id),
      'Record it again, then write, then commit it.', jsonb_build_object('invocation', id));
  end if;
  -- Again, or from another transaction of the same call: the first result and time stay, tables add up.
  update agentundo._invocation x set
    status = 'committed',
    committed_at = coalesce(x.committed_at, clock_timestamp()),
    result = coalesce(x.result, commit_invocation.result),
    uncovered = (select coalesce(array_agg(distinct u order by u), '{}') from unnest(x.uncovered || agentundo._uncovered_tables()) u)
  where x.id = commit_invocation.id;
end
$body$;
comment on function agentundo.commit_invocation(text, jsonb) is
  'Marks a recorded call as committed, with its result. Call it last, inside the transaction that wrote the data: mark and data then stand or fall together. Notes which tables were written that are not tracked.';

create or replace function agentundo.fail_invocation(id text, error text default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  i agentundo._invocation := agentundo._lock_record(id);
begin
  update agentundo._invocation x set status = 'failed', error = fail_invocation.error where x.id = i.id and i.status = 'pending';
end
$body$;
comment on function agentundo.fail_invocation(text, text) is
  'Marks a pending call as failed, after its transaction was rolled back. One that is committed or failed already stays as it is. Takes nothing back.';

create or replace function agentundo.record_effect(
  invocation text, name text, kind text default 'unknown', summary text default null, undo_by timestamptz default null,
  side_effect text default null, cost text default null, remedy text default null, handler text default null)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  number bigint;
begin
  perform agentundo._check_id(invocation), agentundo._check_id(name, 'name of the effect');
  if kind is null or kind not in ('compensate', 'none', 'unknown') then
    perform agentundo._fail('22023', format('agentundo: there is no kind of effect %L', left(kind, 40)),
      'Use compensate (something can make up for it), none (it cannot be undone) or unknown.');
  end if;
  insert into agentundo._effect (invocation, name, kind, summary, undo_by, side_effect, cost, remedy, handler)
  values (record_effect.invocation, record_effect.name, record_effect.kind, record_effect.summary, record_effect.undo_by,
          record_effect.side_effect, record_effect.cost, record_effect.remedy, record_effect.handler)
  returning _effect.id into number;
  return number;
end
$body$;
comment on function agentundo.record_effect(text, text, text, text, timestamptz, text, text, text, text) is
  'Records what an invocation did outside of the database (a mail, a payment, a booking), whether anything can make up for it and until when. Shown in plans; a revert of rows does not take it back.';

-- ==== 22_upkeep.sql ====

-- 22  Upkeep: is all well, and how long is history kept
--
-- check() looks for everything that would make a promise of ours untrue: a write that is not captured,
-- a revert that cannot act, history that cannot be trusted. It reads catalogs, changes nothing and never
-- raises. purge() deletes what is older than the retention, hold() exempts an invocation from that,
-- erase() removes one row's images for good.
--
-- Life cycle of history: written by capture, kept until purge(), which takes an invocation together
-- with its reverts and redos, because their changes have no images of their own. The record of the
-- invocation stays, marked as purged, so that it answers UN011 and not "unknown".
--
-- Locks: rows of `_invocation` by id, as everywhere; a revert of the same invocations waits.

-- Settings -----------------------------------------------------------------------------------------------

-- What is wrong with the value of a setting; null: nothing. Asked when one is written, and again by whatever reads
-- it: a dump may bring others.
create or replace function agentundo._setting_problem(name text, value text) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set intervalstyle = 'postgres' as
$body$
declare
  now constant timestamptz := clock_timestamp();
begin
  if name in ('retention', 'detection_time', 'cancel_window') then
    if value::interval < '0' or now + value::interval < now - value::interval then
      return 'it must not be negative';
    end if;
  elsif name = 'radius' and value !~ '^[1-9][0-9]{0,8}$' then
    return 'it is a whole number from 1 to 999999999';
  elsif name = 'largest_undo' and value !~ '^[1-9][0-9]{0,17}( rows)?$' then
    return 'it is a number of rows such as ''5000000 rows''';
  elsif name = 'notify' and value not in ('on', 'off') then
    return 'it is on or off';
  end if;
  return case when value is null then 'it is missing' end;
exception when data_exception then
  return 'it is an interval such as ''30 days''';
end
$body$;

create or replace function agentundo._check_setting() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as
$body$
declare
  problem constant text := agentundo._setting_problem(new.name, new.value);
begin
  if new.name not in ('retention', 'detection_time', 'radius', 'cancel_window', 'notify', 'largest_undo') then
    perform agentundo._fail('22023', format('agentundo: there is no setting %L', left(new.name, 40)),
      'There are retention, detection_time, radius, cancel_window, notify and largest_undo.');
  elsif problem is not null then
    perform agentundo._fail('22023', format('agentundo: the setting %s cannot be %L: %s', new.name, left(new.value, 40), problem),
      'The page sql.md of the documentation says what each setting means.');
  end if;
  return new;
end
$body$;
create or replace trigger check_value before insert or update on agentundo._setting
  for each row execute function agentundo._check_setting();

-- Health -------------------------------------------------------------------------------------------------

-- What is wrong with one tracked table.
create or replace function agentundo._problems(tracked_id int) returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
  worker name := agentundo._worker();
  sync_hint text;
  reason text;
  emptied boolean;
begin
  select * into t from agentundo._tracked x where x.id = tracked_id;
  sync_hint := format('Run "select agentundo.sync(%L)".', t.name);
  if t.relation is null or not exists (select from pg_class c where c.oid = t.relation) then
    return query select 'error', t.name, 'the tracked table is gone', 'Run "select agentundo.sync()"; its history stays until purge().';
    return;
  end if;

  if not exists (select from pg_class c where c.oid = t.history) then
    return query select 'error', t.name, 'its history table is gone; captured writes fail',
      format('Run "select agentundo.untrack(%1$L, false)" and "select agentundo.track(%1$L)". What was captured is lost.', t.name);
  else
    return query
      select 'error', t.name, format('history column %s for %I is gone; captured writes fail', c.history_column, c.name),
        format('Run "select agentundo.untrack(%1$L, false)" and "select agentundo.track(%1$L)". What was captured is lost.', t.name)
      from agentundo._column c
      where c.tracked = t.id and c.until_change is null
        and not exists (select from pg_attribute a where a.attrelid = t.history and a.attname = c.history_column and not a.attisdropped);
    execute format('select not exists (select from %s) and exists (select from agentundo._change c where c.tracked = $1 and c.rows > 0
          and not exists (select from agentundo._erased e where e.tracked = $1 and e.change = coalesce(c.source, c.change)))', t.history) into emptied using t.id;
    return query
      select 'error', t.name, 'its history is empty, though changes of it are known: none of them can be undone',
        'A dump without the data of agentundo_history leaves it so. Restore a whole one, or begin anew with untrack(..., false) and track().' where emptied;
  end if;

  return query
    select 'warning', t.name, format('its history is published by %s, and subscribers cannot find its rows: column %s has no equality', string_agg(distinct p.pubname::text, ', '), min(c.name::text)),
      'A purge would stop the subscription. Publish your tables by name, without the schema agentundo_history.'
    from pg_publication_tables p
    join agentundo._column c on c.tracked = t.id
    join pg_type y on y.oid = to_regtype(c.type) and y.typcategory <> 'A' and y.typtype = 'b' and not exists (
      select from pg_opclass o join pg_am m on m.oid = o.opcmethod and m.amname in ('btree', 'hash')
      where o.opcdefault and (o.opcintype = y.oid or exists (select from pg_cast k where k.castsource = y.oid and k.casttarget = o.opcintype and k.castmethod = 'b' and k.castcontext = 'i')))
    where p.schemaname = 'agentundo_history' and to_regclass(format('agentundo_history.%I', p.tablename)) = t.history
    having count(*) > 0;

  reason := agentundo._why_not_trackable(t.relation);
  if reason is not null then
    return query select 'error', t.name, 'it could not be tracked any more: ' || reason, 'Undo that, or untrack the table.';
  end if;

  -- Every level of the tree and the triggers that it must carry.
  return query
    with level as (
      select l.relation, c.relkind, c.relowner, m.id as member, m.shape
      from (select t.relation union select agentundo._levels(t.relation, t.kind)) l (relation)
      join pg_class c on c.oid = l.relation
      left join agentundo._member m on m.relation = l.relation and m.tracked = t.id),
    wanted as (
      select l.*, w.name, case w.function when '' then '_capture_' || l.member else w.function end as function
      from level l
      join (values ('agentundo_insert', '', 'statement'), ('agentundo_update', '', 'statement'), ('agentundo_delete', '', 'statement'),
                   ('agentundo_row', '', 'row'), ('agentundo_truncate', '_capture_truncate', 'any'),
                   ('agentundo_unknown', '_unknown_partition', 'root')) w (name, function, where_wanted)
        on w.where_wanted = 'any' or w.where_wanted = case when t.kind = 'inherited' then 'row' else 'statement' end
        or w.where_wanted = 'root' and l.relkind = 'p' and l.relation = t.relation
      where l.member is not null)
    select 'error', agentundo._name(l.relation), 'it is part of a tracked table but is not captured itself', sync_hint
    from level l where l.member is null
    union all
    select 'error', agentundo._name(l.relation), 'its columns changed since; captured writes are refused', sync_hint
    from level l where l.shape <> agentundo._shape(l.relation)
    union all
    select 'error', agentundo._name(l.relation), 'nothing of ours acts for its owner, who may have changed',
      format('As the owner or a superuser run "select agentundo.track(%L)" again.', t.name)
    from level l where agentundo._deputy(l.relation) is null
    union all
    select 'error', agentundo._name(l.relation), format('%s lacks rights on it; captured writes cannot be taken back', worker), sync_hint
    from level l
    where not (has_table_privilege(worker, l.relation, 'select') and has_table_privilege(worker, l.relation, 'insert')
      and has_table_privilege(worker, l.relation, 'update') and has_table_privilege(worker, l.relation, 'delete')
      and has_schema_privilege(worker, (select c.relnamespace from pg_class c where c.oid = l.relation), 'usage'))
    union all
    select 'error', agentundo._name(w.relation),
      case when g.oid is null then format('trigger %s is missing; writes are not captured', w.name)
           when p.proname is distinct from w.function then format('trigger %s calls another function than %s', w.name, w.function)
           when g.tgenabled = 'D' then format('trigger %s is disabled; writes are not captured', w.name)
           else format('trigger %s is not ENABLE ALWAYS; writes under session_replication_role = replica are not captured', w.name) end,
      sync_hint
    from wanted w
    left join pg_trigger g on g.tgrelid = w.relation and g.tgname = w.name
    left join pg_proc p on p.oid = g.tgfoid and p.pronamespace = 'agentundo'::regnamespace
    where g.oid is null or g.tgenabled <> 'A' or p.proname is distinct from w.function
    union all
    select 'error', agentundo._name(m.relation), 'it left its tracked table but still carries our triggers', sync_hint
    from agentundo._member m
    where m.tracked = t.id and m.relation not in (select l.relation from level l) and exists (select from pg_class c where c.oid = m.relation)
    union all
    -- What foreign keys do to rows of tables that nobody can bring back.
    select 'warning', agentundo._name(f.conrelid),
      format('it is not tracked, but rows of it are deleted or changed together with rows of %s (foreign key %I); that cannot be undone', t.name, f.conname),
      format('Run "select agentundo.track(%L)".', agentundo._name(f.conrelid))
    from pg_constraint f
    where f.contype = 'f' and f.conparentid = 0 and f.confrelid in (select l.relation from level l)
      and (f.confdeltype in ('c', 'n', 'd') or f.confupdtype in ('c', 'n', 'd'))
      and not exists (select from agentundo._tracked x where x.active and x.relation in (f.conrelid, agentundo._root(f.conrelid)))
    union all
    select case when p.prosrc ~* '\m(insert\s+into|update|delete\s+from|merge\s+into|truncate|notify|pg_notify|dblink\w*|http\w*)\M' then 'warning' else 'info' end,
      agentundo._name(g.tgrelid),
      format('trigger %I does not fire for rows that a revert restores', g.tgname)
        || case when p.prosrc ~* '\m(insert\s+into|update|delete\s+from|merge\s+into|truncate|notify|pg_notify|dblink\w*|http\w*)\M'
                then format('; %s seems to write elsewhere: what it wrote goes back only if that table is tracked', p.oid::regprocedure) else '' end,
      format('If it must fire: "select agentundo.set_trigger(%L, %L, ''fire'')"; ''silence'' says that it is meant.', agentundo._name(g.tgrelid), g.tgname)
    from level l
    join agentundo._users_triggers g on g.tgrelid = l.relation and g.tgparentid = 0 and g.tgenabled <> 'D'
    join pg_proc p on p.oid = g.tgfoid
    where not exists (select from agentundo._trigger_rule r where r.tracked = t.id and r.trigger = g.tgname)
    union all
    select 'warning', agentundo._name(l.relation), 'it is unlogged: a crash empties it, and its history will not match', 'Use "alter table ... set logged".'
    from level l join pg_class c on c.oid = l.relation where c.relpersistence = 'u'
    union all
    select 'warning', agentundo._name(l.relation), 'it is fed by logical replication, whose changes are not captured', 'Only writes made in this database can be taken back.'
    from level l where exists (select from pg_subscription_rel s where s.srrelid = l.relation);

  if (select b.columns from agentundo._best_key(t.relation) b) is null then
    return query select 'warning', t.name, 'it has no primary key and no unique key over NOT NULL columns: rows are told apart by all their values',
      'Add a primary key: undo gets faster, and columns can be merged.';
  end if;
end
$body$;

-- One word on a tracked table for the view: 'ok', or the worst that check() says.
create or replace function agentundo._health(tracked_id int) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  return coalesce(
    (select case when p.object = t.name then '' else p.object || ': ' end || p.problem
     from agentundo._problems(tracked_id) p join agentundo._tracked t on t.id = tracked_id
     where p.severity <> 'info' order by p.severity limit 1), 'ok');
exception when others then
  return 'could not be checked: ' || sqlerrm;
end
$body$;

create or replace view agentundo.tracked as
select n.relation, t.capture, t.history::text as history,
  array(select coalesce(a.attname, c.name)::text
        from unnest(t.key_columns) with ordinality k (attnum, place)
        left join pg_catalog.pg_attribute a on a.attrelid = t.relation and a.attnum = k.attnum
        left join agentundo._column c on c.tracked = t.id and c.attnum = k.attnum and c.until_change is null
        order by k.place) as key,
  t.since,
  (select case when h.reltuples >= 0 then h.reltuples::bigint end from pg_catalog.pg_class h where h.oid = t.history) as rows,
  pg_catalog.pg_total_relation_size(t.history) as bytes,
  agentundo._health(t.id) as health
from agentundo._tracked t
join agentundo._names n on n.tracked = t.id
where t.active;
comment on view agentundo.tracked is
  'The tracked tables: how they are captured, where their history lies, how many row images it holds (an estimate, null before the first ANALYZE) and how large it is, and whether check() has complaints. Reading it changes nothing.';

-- What is wrong with the installation as a whole.
create or replace function agentundo._general_problems() returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  ours oid := (select nspowner from pg_namespace where nspname = 'agentundo');
begin
  return query
    select 'error', 'agentundo', 'this database is a logical copy: row versions mean nothing here, images are compared instead', 'Run "select agentundo.sync()".'
    where agentundo._is_copy()
    union all
    select 'error', s.sequence::text, format('the sequence is behind %s, which is in use', s.reached), 'Run "select agentundo.sync()": logical replication copies no sequences.'
    from agentundo._late_sequences() s
    union all
    select 'error', 'agentundo', format('history is kept for %s, not longer than it takes to find a mistake (%s)', r.value, d.value),
      'Raise the setting retention, or lower detection_time, in agentundo._setting.'
    from agentundo._setting r join agentundo._setting d on d.name = 'detection_time'
    where r.name = 'retention' and agentundo._age('retention') <= agentundo._age('detection_time')
    union all
    select 'error', 'agentundo', format('the setting %s is %s: %s', w.name, coalesce(quote_literal(left(s.value, 40)), 'gone'), agentundo._setting_problem(w.name, s.value)),
      format('Write another value into agentundo._setting; at first it was %L.', w.value)
    from (values ('retention', '30 days'), ('detection_time', '7 days'), ('radius', '50'), ('cancel_window', '900 s'),
                 ('notify', 'on'), ('largest_undo', '5000000 rows')) w (name, value)
    left join agentundo._setting s on s.name = w.name
    where agentundo._setting_problem(w.name, s.value) is not null
    union all
    select 'warning', 'agentundo', format('its objects belong to the superuser %s: a revert runs other people''s constraints as superuser', rolname),
      'Create the role agentundo_owner and install again, or own them by a role without SUPERUSER.'
    from pg_roles where oid = ours and rolsuper
    union all
    select distinct 'error', agentundo._name(g.tgrelid), 'it carries triggers of ours but is not tracked here: a dump has brought them; captured writes are refused',
      format('As its owner run "select agentundo.track(%L)", or drop its triggers agentundo_*.', g.tgrelid::regclass)
    from pg_trigger g join pg_proc p on p.oid = g.tgfoid and p.pronamespace = 'agentundo'::regnamespace
    where g.tgname like 'agentundo\_%' and g.tgparentid = 0 and not exists (select from agentundo._member m where m.relation = g.tgrelid)
    union all
    select 'error', format('agentundo.%I', a), 'somebody has altered it or let others call it; undos are refused',
      'Code in a constraint of a tracked table may have done it: find out whose. "agentundo upgrade" makes the function anew.'
    from agentundo._altered() a
    union all
    select 'error', 'agentundo_history', format('%s may create objects in it, and could pretend that they are ours', a.grantee::regrole),
      format('Run "revoke create on schema agentundo_history from %s".', a.grantee::regrole)
    from pg_namespace n cross join lateral aclexplode(n.nspacl) a
    where n.nspname in ('agentundo', 'agentundo_history') and a.privilege_type = 'CREATE' and a.grantee not in (n.nspowner, 0)
    union all
    select 'warning', m.rolname::text, 'it is a superuser and a member of agentundo_agent: it can switch capture off', 'Let the agent use a role without SUPERUSER.'
    from pg_roles m where m.rolsuper and agentundo._in_role(m.rolname, 'agentundo_agent')
    union all
    select 'info', e.name, 'there is no such event trigger: ALTER, new partitions and new tables are followed only by sync()',
      'A superuser can add it with "agentundo upgrade"; without it run "select agentundo.sync()" after every migration.'
    from (values ('agentundo_ddl'), ('agentundo_drop')) e (name)
    where not exists (select from pg_event_trigger g where g.evtname = e.name and g.evtenabled <> 'D')
    union all
    select 'error', format('%I.%I', n.nspname, c.relname), format('it lies in schema %I, which is to be tracked, but is not', n.nspname),
      format('Run "select agentundo.track(%L)".', format('%I.%I', n.nspname, c.relname))
    from agentundo._awaited() w join pg_class c on c.oid = w.relation join pg_namespace n on n.oid = c.relnamespace;
end
$body$;

create or replace function agentundo.check() returns setof agentundo.finding
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked;
begin
  begin
    return query select * from agentundo._general_problems() p order by p.severity, p.object, p.problem;
  exception when others then
    return query select 'error', 'agentundo', 'could not be checked: ' || sqlerrm, 'This should not happen; please report it.';
  end;
  for t in select * from agentundo._tracked x where x.active order by x.name loop
    begin
      return query select * from agentundo._problems(t.id) p order by p.severity, p.object, p.problem;
    exception when others then
      return query select 'error', t.name, 'could not be checked: ' || sqlerrm, 'Run "select agentundo.sync()", then check again.';
    end;
  end loop;
end
$body$;
comment on function agentundo.check() is
  'Everything that makes a promise untrue, with what to do about it: writes that would not be captured, reverts that could not act. No row of severity error means that tagged writes to tracked tables can be taken back. Changes nothing, never fails.';

-- Retention ----------------------------------------------------------------------------------------------

-- Which invocations may go: all they wrote is older than the limit, and nobody holds them. An
-- invocation goes together with what took it back and what that took back: so of two that belong
-- together, none goes alone. `among`: of no others.
create or replace function agentundo._purgeable(older_than timestamptz, among text[] default null) returns text[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  doomed text[];
  spared text[];
begin
  select coalesce(array_agg(c.invocation), '{}') into doomed
    from (select x.invocation from agentundo._change x where x.invocation is not null group by x.invocation having max(x.at) < older_than) c
    left join agentundo._invocation i on i.id = c.invocation
   where i.held is null and (among is null or c.invocation = any (among));
  loop
    with doomed_one as materialized (select d as id from unnest(doomed) d),
    pair as (
      select v.id as one, u as other from agentundo._revert v cross join lateral unnest(v.invocations) u
      union
      select c.invocation, s.invocation from agentundo._change c join agentundo._change s on s.change = c.source),
    mutual as (select one, other from pair union select other, one from pair)
    select coalesce(array_agg(distinct m.one), '{}') into spared
      from mutual m
     where m.one in (select d.id from doomed_one d) and m.other not in (select d.id from doomed_one d)
       and exists (select from agentundo._change c where c.invocation = m.other);
    exit when spared = '{}';
    doomed := array(select d from unnest(doomed) d left join unnest(spared) s on s = d where s is null);
  end loop;
  return doomed;
end
$body$;

-- An interval as people write it: 1 minute 30 seconds, not 00:01:30.
create or replace function agentundo._in_words(age interval) returns text
language sql immutable set search_path = pg_catalog, pg_temp as
$body$
  select coalesce(string_agg(format('%s %s%s', p.n, p.unit, case when abs(p.n) <> 1 then 's' end), ' ' order by p.place), '0 seconds')
  from (values
    (1, extract(year from age), 'year'), (2, extract(month from age), 'month'), (3, extract(day from age), 'day'),
    (4, extract(hour from age), 'hour'), (5, extract(minute from age), 'minute'), (6, trim_scale(extract(second from age)), 'second')) p (place, n, unit)
  where p.n <> 0
$body$;

create or replace function agentundo.purge(older_than interval default null) returns agentundo.purge_count
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  age interval := coalesce(older_than, agentundo._age('retention'));
  before timestamptz := clock_timestamp() - age;
  locked text[];
  doomed text[];
  old bigint[];
  t agentundo._tracked;
  gone agentundo.purge_count;
  number bigint;
begin
  perform agentundo._require_operator('purge');
  perform agentundo._require_fresh_snapshots('purge');
  if age is null or age < interval '0' then
    perform agentundo._fail('22023', case when age is null then 'agentundo: the setting retention is not an age' else format('agentundo: %s is not an age', agentundo._in_words(age)) end,
      'Give an interval such as ''30 days''.');
  end if;
  -- Locked first, then looked at again: a revert or a hold may have come in between. What is written under one of
  -- these ids from now on stays.
  locked := agentundo._lock_invocations(agentundo._purgeable(before));
  select p.doomed, array(select c.change from agentundo._change c where c.invocation = any (p.doomed) or c.invocation is null and c.at < before)
    into doomed, old from (select agentundo._purgeable(before, coalesce(locked, '{}')) as doomed offset 0) p;

  gone := row(cardinality(doomed), 0, 0);
  for t in select * from agentundo._tracked x order by x.id loop
    continue when not exists (select from pg_class where oid = t.history);
    execute format('delete from %s h using unnest($1) o (change) where o.change = h._change', t.history) using old;
    get diagnostics number = row_count;
    gone.images := gone.images + number;
  end loop;
  delete from agentundo._erased e using unnest(old) o (change) where o.change = e.change;
  delete from agentundo._reverted r using unnest(old) o (change) where o.change = r.change;
  delete from agentundo._change c using unnest(old) o (change) where o.change = c.change;
  get diagnostics gone.changes = row_count;
  update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (doomed);  -- who has an older snapshot fails (40001)
  doomed := array(select d from unnest(doomed) d where not exists (select from agentundo._change c where c.invocation = d));
  gone.invocations := cardinality(doomed);
  delete from agentundo._effect e where e.invocation = any (doomed);
  update agentundo._invocation i set purged_at = clock_timestamp() where i.id = any (doomed);
  if gone.changes > 0 then
    perform agentundo._emit('history_purged', null, to_jsonb(gone) || jsonb_build_object('before', before));
  end if;
  return gone;
end
$body$;
comment on function agentundo.purge(interval) is
  'Deletes history older than an age (default: the setting retention) for good: those invocations can no longer be undone and answer UN011. Spares what is held. Touches no table of yours.';

-- What these decide must be what is: an old snapshot would not show a revert made meanwhile, nor what the table is now.
create or replace function agentundo._require_fresh_snapshots(what text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform agentundo._fail('25001', format('agentundo: %s does not run under %s', what, upper(current_setting('transaction_isolation'))),
      'Run it in a READ COMMITTED transaction.');
  end if;
end
$body$;

create or replace function agentundo.hold(invocation text, reason text) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  release constant boolean := coalesce(reason, '') = '';
begin
  perform agentundo._require_operator('hold invocations');
  perform agentundo._require_known(array[invocation], null);
  perform agentundo._lock_invocations(array[invocation]);
  if release and exists (select from agentundo._invocation i where i.id = hold.invocation and i.purged_at is null and i.held is null) then
    return 0;  -- nothing held it: nothing has happened
  end if;
  update agentundo._invocation i set held = nullif(hold.reason, '') where i.id = hold.invocation and i.purged_at is null;
  if not found then  -- purged while we waited
    perform agentundo._require_known(array[invocation], null);
  end if;
  perform agentundo._emit(case when release then 'hold_released' else 'invocation_held' end, invocation, jsonb_build_object('reason', reason));
  return (select count(*) from agentundo._change c where c.invocation = hold.invocation);
end
$body$;
comment on function agentundo.hold(text, text) is
  'Exempts an invocation, with its reverts, from purge(), for a reason that is kept; null as the reason releases it. Returns how many changes that concerns, 0 when what is released was not held. Changes none of your rows.';

-- Under which ids these changes were made, or restored.
create or replace function agentundo._made_under(changes bigint[]) returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
  select array(
    select distinct c.invocation from agentundo._change c where (c.change = any (changes) or c.source = any (changes)) and c.invocation is not null)
$body$;

create or replace function agentundo.erase(relation regclass, key jsonb, reason text) returns agentundo.erase_count
language plpgsql security definer set search_path = pg_catalog, pg_temp set quote_all_identifiers = off as
$body$
declare
  t agentundo._tracked := agentundo._tracked_table(relation);
  waits constant text := current_setting('lock_timeout');
  patience constant interval := case when waits = '0' then interval '60 s' else waits::interval end;
  began constant timestamptz := clock_timestamp();
  look text;
  changes bigint[];
  images tid[];
  ids text[];
  gone agentundo.erase_count := row(0, 0);
begin
  perform agentundo._require_operator('erase');
  perform agentundo._require_fresh_snapshots('erase');
  perform agentundo._check_key(t, key);
  if coalesce(reason, '') = '' then
    perform agentundo._fail('22023', 'agentundo: an erasure needs a reason', 'Say why, for example the number of the request.');
  end if;
  look := format('select array_agg(distinct h._change), array_agg(h.ctid) from %s h where %s', agentundo._history(t), agentundo._match_sql(t.id, 'h', 'history', '$1'));
  -- Invocations first, as everybody locks them: no revert may be acting on an image that goes. Then no capture may
  -- write to this history. Who has to wait for long lets go of everything and tries again.
  loop
    begin
      perform set_config('lock_timeout', agentundo._short_wait(), true);
      execute look into changes, images using key;
      ids := agentundo._made_under(changes);
      perform agentundo._lock_invocations(ids);
      execute format('lock table %s in share row exclusive mode', t.history);
      execute look into changes, images using key;
      exit when agentundo._made_under(changes) <@ ids;
      raise exception using errcode = 'UNR01';  -- somebody has written the row meanwhile
    exception when lock_not_available or deadlock_detected or sqlstate 'UNR01' then
      if clock_timestamp() > began + patience then
        raise exception using errcode = '55P03', message = format('agentundo: somebody writes to %s, or undoes it, for longer than %s', t.name, patience),
          hint = 'End the transaction that does (see pg_stat_activity and pg_blocking_pids), then call erase again. A higher lock_timeout makes it wait longer.';
      end if;
      perform agentundo._past_vacuum(array[t.history]);
    end;
    perform pg_sleep(0.05 + random() * 0.2);
  end loop;
  perform set_config('lock_timeout', waits, true);

  execute format('delete from %s where ctid = any ($1)', t.history) using images;
  get diagnostics gone.images = row_count;
  insert into agentundo._erased (tracked, change, key, reason)
    select t.id, c, encode(sha256(convert_to(erase.key::text, 'UTF8')), 'hex'), erase.reason from unnest(changes) c
  on conflict do nothing;
  update agentundo._invocation i set reverts = i.reverts + 1 where i.id = any (ids);  -- who has an older snapshot fails (40001)
  update agentundo._invocation i set input = null, result = null, error = null
   where i.id = any (ids) and (i.input is not null or i.result is not null or i.error is not null);
  get diagnostics gone.inputs = row_count;
  perform agentundo._emit('row_erased', null, jsonb_build_object('relation', t.name, 'reason', reason) || to_jsonb(gone));
  return gone;
end
$body$;
comment on function agentundo.erase(regclass, jsonb, text) is
  'Deletes every captured image of one row for good, and input, result and error of the invocations that touched it; those invocations can no longer take this row back. Erase each key that the row ever had. The row itself in your table stays: delete that yourself.';

-- ==== 23_grants.sql ====

-- 23  Grants: which role may call what; last of all what only the installing role can do
--
-- PUBLIC gets nothing, not even USAGE of our schemas: a writer of a tracked table needs no right of
-- ours, capture runs with the rights of its owner. The marker roles get the functions named here; most
-- of those judge the caller once more (11_guard.sql). Nobody but the owner gets at tables or at history
-- (but for `_home`, which tells clients the version).
--
-- track(), untrack() and sync() are for operators. They ask for more than this grant: only who may act
-- for the owner of a table can have it tracked, so an operator who is no member of the owner is refused.
--
-- Applied again by every upgrade: what stands here is what holds, grants made by hand on our functions
-- to the marker roles are taken back, those to other roles stay.

do $body$
declare
  -- What tag() and track() call with the caller's own rights.
  for_tag text[] := array['tag', 'version', '_check_id', '_step', '_note_baseline'];
  for_track text[] := array['track', 'track_schema', '_track', '_deputize', '_deputize_owner', '_deputy', '_deputy_of', '_lock_grants', '_create_deputy', '_admit', '_why_not_trackable', '_require_fresh_snapshots', '_tree',
                            '_remember_schema', '_kept_mode', '_fail', '_out_of_reach', '_relatives', '_digest', '_deputy_source', '_drop_impostor', '_worker'];
  for_record text[] := array['record_invocation', 'commit_invocation', 'fail_invocation', 'record_effect'];
  for_plan text[] := array['plan', 'plan_run', 'plan_summary', 'undoable', 'diff', 'row_history', 'row_version', 'row_writer', 'effects_of'];
  for_revert text[] := array['revert', 'revert_run', 'redo'];
  for_reader text[] := array['check', '_health', '_run_invocations', '_age'];  -- the latter stand in views
  granted record;
  function regprocedure;
begin
  execute 'revoke all on all functions in schema agentundo from public';
  for granted in
    select m.marker, m.functions, m.views from (values
      ('agentundo_app', for_tag || for_record || for_plan || for_revert, false),
      ('agentundo_agent', for_tag || for_record, false),
      ('agentundo_operator', for_tag || for_record || for_plan || for_revert || for_reader || for_track
        || array['untrack', 'sync', 'purge', 'erase', 'hold', 'set_merge', 'set_trigger', 'set_policy', 'set_scope_owner'], true),
      ('agentundo_approver', array['version'], false),
      ('agentundo_auditor', array['version'] || for_plan || for_reader, true)) m (marker, functions, views)
    where to_regrole(m.marker) is not null
  loop
    execute format('grant usage on schema agentundo to %I', granted.marker);
    execute format('grant select on agentundo._home to %I', granted.marker);  -- clients compare versions
    execute format('revoke all on all functions in schema agentundo from %I', granted.marker);
    for function in
      select p.oid from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname = any (granted.functions)
    loop
      execute format('grant execute on function %s to %I', function, granted.marker);
    end loop;
    if granted.views then
      execute format('grant select on agentundo.invocations, agentundo.runs, agentundo.changes, agentundo.events, agentundo.effects, agentundo.tracked to %I',
        granted.marker);
    end if;
  end loop;
  -- Whoever makes a partition makes the sentinel's copy on it (08_capture.sql). All that it can do is refuse tagged writes.
  grant execute on function agentundo._unknown_partition() to public;
  -- Functions of triggers are lent for the moment in which a trigger is made, no longer.
  for granted in
    select p.oid::regprocedure as function, a.grantee::regrole as guest
    from pg_proc p cross join lateral aclexplode(p.proacl) a
    where p.pronamespace = 'agentundo'::regnamespace and p.prorettype = 'trigger'::regtype and a.grantee not in (0, p.proowner)
  loop
    execute format('revoke all on function %s from %s', granted.function, granted.guest);
  end loop;
  -- What stands in the statements that it executes.
  if agentundo._worker() = 'agentundo_worker' then
    for function in
      select p.oid from pg_proc p where p.pronamespace = 'agentundo'::regnamespace and p.proname in ('_label_now', '_array_as', '_replay', '_require_unaltered')
    loop
      execute format('grant execute on function %s to agentundo_worker', function);
    end loop;
  end if;
end
$body$;

-- The rest is done as the installing role again.
reset role;

do $body$
begin
  perform set_config('agentundo.internal', '', true);  -- set in 01_schema.sql
end
$body$;

do $body$
begin
  if not exists (select from pg_event_trigger where evtname = 'agentundo_ddl') then
    create event trigger agentundo_ddl on ddl_command_end execute function agentundo._on_ddl();
  end if;
  if not exists (select from pg_event_trigger where evtname = 'agentundo_drop') then
    create event trigger agentundo_drop on sql_drop execute function agentundo._on_drop();
  end if;
exception when insufficient_privilege then
  raise notice 'agentundo: % may not create event triggers; changed tables are followed only by agentundo.sync()', current_user
    using hint = 'A superuser can add them with "agentundo upgrade". Until then call agentundo.sync() after every migration; tagged writes to a changed table are refused before that.';
end
$body$;

-- What a deputy is may have changed. Whoever upgrades makes those anew for whose owners he may act.
do $body$
declare
  level regclass;
begin
  for level in
    select m.relation from agentundo._member m join pg_catalog.pg_class c on c.oid = m.relation
    where agentundo._deputy(m.relation) is null order by m.relation::oid
  loop
    begin
      perform agentundo._deputize(level);
    exception when others then
      raise notice 'agentundo: nothing acts for the owner of % any more: %', level, sqlerrm
        using hint = format('Run "select agentundo.track(%L)" as its owner.', level::text);
    end;
  end loop;
end
$body$;

commit;
