"""Look-alikes of everything that our SQL could name without a schema; each tells if it runs.

A function or operator whose arguments match better than those of pg_catalog is preferred wherever
in the search_path it lies. So there are look-alikes with the very same arguments, and with those
that PostgreSQL would have to cast.
"""

from __future__ import annotations

from tests.support.undo import Connection

#: What a look-alike says, with the role as which it runs and its name.
MARK = "look-alike ran"

_WORDS = """
create table evil.word as
  select distinct w as word from pg_proc p,
    regexp_split_to_table(lower(coalesce(p.prosrc, '') ||
      coalesce(pg_get_function_sqlbody(p.oid), '')), '[^a-z0-9_]+') w
  where p.pronamespace in ('agentundo'::regnamespace, 'agentundo_history'::regnamespace);
grant select on evil.word to public
"""

_NOTE = f"""
create function evil.note(what pg_catalog.text) returns pg_catalog.bool language plpgsql as
$$ begin raise warning '{MARK}: % %', current_user, what; return true; end $$
"""

# Every function of pg_catalog that our sources name: as it is, and with arguments of related types.
_FUNCTIONS = """
do $do$
declare
  f record;
  given text;
  args text;
begin
  for f in
    select p.proname, array(select format_type(t, null) from unnest(p.proargtypes) t) as types,
      case when r.typtype = 'p' then 'text' else format_type(r.oid, null) end as result
    from pg_proc p join pg_type r on r.oid = p.prorettype
    where p.pronamespace = 'pg_catalog'::regnamespace and p.proname in (select word from evil.word)
  loop
    given := array_to_string(f.types, ', ');
    foreach args in array array[
      given, replace(given, 'text', 'name'), replace(given, 'text', 'character varying'),
      replace(given, 'oid', 'regclass'), replace(given, 'oid', 'regproc'),
      replace(given, 'oid', 'regprocedure'), replace(given, 'oid', 'regnamespace'),
      replace(given, 'oid', 'regrole'), replace(given, 'bigint', 'integer'),
      replace(given, '"any"', 'anyelement'), replace(given, '"any"', 'text'),
      replace(given, '"any"', 'text, text'), replace(given, '"any"', 'text, text, text')]
    loop
      begin
        execute format('create function evil.%I(%s) returns %s language plpgsql as %L',
          f.proname, args, f.result,
          format('begin perform evil.note(%L); return null; end', f.proname || '(' || args || ')'));
      exception when others then
        null;  -- there already, or no type of an argument
      end;
    end loop;
  end loop;
end $do$
"""

# An aggregate of no arguments can only be met by an aggregate.
_COUNT = """
create function evil.add_up(bigint) returns bigint language plpgsql as
$$ begin perform evil.note('count(*)'); return 1; end $$;
create aggregate evil.count(*) (sfunc = evil.add_up, stype = bigint, initcond = '0')
"""

#: Types that our SQL handles: each with each, as PostgreSQL has no operators for most pairs.
_TYPES = [
    "text", "name", '"char"', "smallint", "integer", "bigint", "oid", "regclass", "regnamespace",
    "regproc", "regprocedure", "regrole", "regtype", "xid", "xid8", "tid", "jsonb", "boolean",
    "timestamp with time zone", "interval", "pg_snapshot", "int2vector", "oidvector", "text[]",
    "bigint[]",
]  # fmt: skip

_OPERATORS = """
do $do$
declare
  types text[] := array[{types}];
  o record;
  name text;
begin
  for o in
    select oprname, l, r, result from (
      select oprname, case when oprleft <> 0 then format_type(oprleft, null) end as l,
        format_type(oprright, null) as r, format_type(oprresult, null) as result
      from pg_operator
      where oprnamespace = 'pg_catalog'::regnamespace and oprname ~ '^[-+*/<>=~!@#|%&?]+$'
        and format_type(oprright, null)
          = any (types || array['anyarray', 'anyelement', 'jsonpath', 'integer[]'])
      union
      select op, l, r, case when op = '||' then 'text' else 'boolean' end
      from unnest(types) l, unnest(types) r, unnest(array['=', '<>', '<', '>', '||']) op) every
  loop
    name := 'op_' || md5(concat_ws(' ', o.oprname, o.l, o.r));
    begin
      execute format('create function evil.%I(%s) returns %s language plpgsql as %L',
        name, concat_ws(', ', o.l, o.r), o.result,
        format('begin perform evil.note(%L); return null; end',
          concat_ws(' ', o.l, o.oprname, o.r)));
      execute format('create operator evil.%s (%srightarg = %s, function = evil.%I)', o.oprname,
        'leftarg = ' || o.l || ', ', o.r, name);
    exception when others then
      null;
    end;
  end loop;
end $do$
"""

# Types and relations are looked up in pg_temp before anything else, if nobody says otherwise.
_TYPES_AND_RELATIONS = """
do $do$
declare
  name text;
  target text := '{schema}';
begin
  for name in
    select t.typname from pg_type t
    where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typname !~ '^_'
      and t.typname in (select word from evil.word)
  loop
    execute format('create domain %s.%I as pg_catalog.%I check (evil.note(%L))',
      target, name, name, 'type ' || name);
  end loop;
  for name in
    select distinct c.relname from pg_class c
    where relkind in ('r', 'v') and c.relname in (select word from evil.word)
      and c.relnamespace in ('pg_catalog'::regnamespace, 'agentundo'::regnamespace)
  loop
    execute format('create view %s.%I as select evil.note(%L) as x',
      target, name, 'relation ' || name);
  end loop;
end $do$
"""


def make_shadows(conn: Connection) -> None:
    """Make the schema `evil` with all look-alikes that lie in a schema, for everybody to use."""
    conn.execute("set agentundo.internal = 'on'")  # or our event trigger looks at each
    conn.execute("create schema evil; grant usage on schema evil to public")
    conn.execute(_WORDS.encode())
    conn.execute(_NOTE.encode())
    conn.execute(_COUNT)
    conn.execute(_FUNCTIONS.encode())
    types = ", ".join(f"'{one}'" for one in _TYPES)
    conn.execute(_OPERATORS.replace("{types}", types).encode())
    conn.execute(_TYPES_AND_RELATIONS.replace("{schema}", "evil").encode())
    conn.execute("reset agentundo.internal")


def make_temporary_shadows(conn: Connection) -> None:
    """Make those of types and relations in the session's own pg_temp."""
    conn.execute("set agentundo.internal = 'on'")
    conn.execute(_TYPES_AND_RELATIONS.replace("{schema}", "pg_temp").encode())
    conn.execute("reset agentundo.internal")


def listen(conn: Connection) -> list[str]:
    """Return a list that fills with what look-alikes say in this session."""
    heard: list[str] = []

    def note(diag: object) -> None:
        message = str(getattr(diag, "message_primary", ""))
        if message.startswith(MARK):
            heard.append(message)

    conn.add_notice_handler(note)
    return heard
