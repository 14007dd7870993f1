"""The whole state of a database, for comparing before with after bit for bit.

Every column is read through its type's output function under fixed settings, so ``1.0`` and
``1.00``, ``-0`` and ``0``, json with other white space and arrays with other bounds all differ.
A cast to text would not do: it trims ``char(n)``.

What is to be asked stands here once, as generators that yield queries and are sent the rows; who
drives them brings the connection, of either kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from psycopg import sql

from pyagentundo.errors import UsageError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
#: How many rows of each kind a message shows of a table.
SHOWN = 10
_LONGEST = 100
#: What stands for them among the tables.
LARGE_OBJECTS = "large objects"


class Query(NamedTuple):
    """What to ask the database, and with which parameters."""

    text: sql.SQL | sql.Composed
    parameters: Sequence[Any] | None = None


Asking = Generator[Query, Rows, T]


@dataclass(frozen=True)
class TableState:
    """A table's rows, sorted; each is the relation that stores it and its columns as text.

    Values are as `quote_literal` writes them, so that NULL and ``'NULL'`` differ.

    Attributes:
        columns: ``stored in`` and the names of the columns.
        rows: their values.
        key: the columns of the primary key, for messages.

    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    key: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class DatabaseState:
    """What a database holds besides what is ours.

    Attributes:
        tables: every table's rows, by its name, and ``large objects``.
        definitions: how tables, columns, constraints, indexes, policies and triggers are defined,
            and whether they are switched on, by kind and name.
        sequences: how far each has counted, by name. No undo rewinds them.

    """

    tables: Mapping[str, TableState]
    definitions: Mapping[str, str]
    sequences: Mapping[str, str]


_SETTINGS = {
    "extra_float_digits": "3",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "xmloption": "content",
    "row_security": "off",
    "search_path": "pg_catalog",
}
_SETTLE = sql.SQL("select {}").format(
    sql.SQL(", ").join(
        sql.SQL("pg_catalog.set_config({}, {}, true)").format(name, value)
        for name, value in _SETTINGS.items()
    )
)
_OID = sql.SQL("select pg_catalog.to_regclass(%s)::oid")
_DESCRIBED = sql.SQL(
    "select c.oid, n.nspname::text, c.relname::text, array(select attname::text from pg_attribute"
    "   where attrelid = c.oid and attnum > 0 and not attisdropped order by attnum),"
    " array(select a.attname::text from pg_index i"
    "   join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any (i.indkey)"
    "   where i.indrelid = c.oid and i.indisprimary order by array_position(i.indkey, a.attnum)),"
    " c.oid::regclass::text"
    " from pg_class c join pg_namespace n on n.oid = relnamespace where "
)
_NAMED = _DESCRIBED + sql.SQL("c.oid = any (%s::oid[])")
#: Partitions are read with their parents. Other sessions' temporary tables cannot be read at all.
_OURS = sql.SQL("'agentundo', 'agentundo_history'")
_ALL = _DESCRIBED + sql.SQL(
    "(relkind in ('r', 'p') or relkind = 'm' and relispopulated) and not relispartition"
    " and relpersistence <> 't' and nspname <> 'information_schema' and nspname not like 'pg\\_%'"
    " and nspname not in ({}) order by 2, 3"
).format(_OURS)
_LARGE_OBJECTS = sql.SQL(
    "select l.oid::text, md5(lo_get(l.oid)) from pg_largeobject_metadata l"
    " where pg_has_role(l.lomowner, 'usage') order by 1"
)
_SEQUENCES = sql.SQL(
    "select format('%I.%I', schemaname, sequencename), coalesce(last_value::text, 'unused')"
    " from pg_sequences where schemaname not in ({})"
).format(_OURS)
_DEFINITIONS = sql.SQL(
    """
with rel as (
  select c.*, c.oid::regclass::text as name
  from pg_class c join pg_namespace n on n.oid = relnamespace
  where relkind in ('r', 'p', 'm', 'f', 'v') and relpersistence <> 't'
    and nspname <> 'information_schema' and nspname not like 'pg\\_%' and nspname not in ({}))
select 'table ' || name, concat_ws(', ', case relkind when 'p' then 'partitioned'
    when 'm' then 'materialized view' when 'f' then 'foreign' when 'v' then 'view' end,
  case relpersistence when 'u' then 'unlogged' end, 'owned by ' || relowner::regrole,
  case when relrowsecurity then 'row-level security' end,
  case when relforcerowsecurity then 'forced row-level security' end,
  case relreplident when 'n' then 'replica identity nothing' when 'f' then 'replica identity full'
    when 'i' then 'replica identity by index' end,
  'with ' || reloptions::text, 'granted ' || relacl::text)
from rel
union all
select format('column %s.%I', name, attname), concat_ws(', ', format_type(atttypid, atttypmod),
  case when attnotnull then 'not null' end,
  case attidentity when 'a' then 'identity always' when 'd' then 'identity by default' end,
  case attgenerated when '' then 'default ' when 'v' then 'generated ' else 'stored ' end
    || pg_get_expr(adbin, adrelid), 'granted ' || attacl::text)
from rel join pg_attribute on attrelid = rel.oid and attnum > 0 and not attisdropped
left join pg_attrdef on adrelid = attrelid and adnum = attnum
union all
select format('constraint %I of %s', conname, name),
  pg_get_constraintdef(k.oid)
from rel join pg_constraint k on conrelid = rel.oid
union all
select format('index %s', indexrelid::regclass),
  concat_ws(', ', pg_get_indexdef(indexrelid), case when not indisvalid then 'invalid' end,
    case when not indisready then 'not ready' end)
from rel join pg_index on indrelid = rel.oid
union all
select format('policy %I of %s', polname, name), concat_ws(', ',
  'for ' || case polcmd when 'r' then 'select' when 'a' then 'insert' when 'w' then 'update'
    when 'd' then 'delete' else 'all' end,
  case when not polpermissive then 'restrictive' end,
  'to ' || array(select case r when 0 then 'public' else r::regrole::text end
    from unnest(polroles) r)::text,
  'using ' || pg_get_expr(polqual, polrelid), 'check ' || pg_get_expr(polwithcheck, polrelid))
from rel join pg_policy on polrelid = rel.oid
union all
select format('trigger %I of %s', tgname, name), case tgenabled when 'O' then 'enabled'
  when 'D' then 'disabled' when 'R' then 'enabled for replicas' else 'enabled always' end
  || case when tgisinternal then '' else ': ' || pg_get_triggerdef(g.oid) end
from rel join pg_trigger g on tgrelid = rel.oid
union all
select 'view ' || name, pg_get_viewdef(oid) from rel where relkind in ('v', 'm')
"""
).format(_OURS)


def tables(names: Collection[str]) -> Asking[dict[str, TableState]]:
    """Read tables whole, partitions and inheritance children included.

    Args:
        names: as ``regclass`` reads them under the caller's search_path.

    """
    oids = {}
    for name in names:
        oids[name] = yield from _oid(name)
    yield Query(_SETTLE)
    described = {row[0]: row for row in (yield Query(_NAMED, [list(oids.values())]))}
    found = {}
    for name, oid in oids.items():
        found[name] = yield from _read(*described[oid][1:5])
    return found


def all_tables(ignore: Collection[str] = ()) -> Asking[dict[str, TableState]]:
    """Read every table that is not ours, tracked or not, by its name with its schema.

    Args:
        ignore: tables to leave out, as ``regclass`` reads them.

    """
    left_out = set()
    for name in ignore:
        left_out.add((yield from _oid(name)))
    yield Query(_SETTLE)
    found = {}
    for oid, schema, relation, columns, key, shown in (yield Query(_ALL)):
        if oid not in left_out:
            found[shown] = yield from _read(schema, relation, columns, key)
    return found


def database(ignore: Collection[str] = ()) -> Asking[DatabaseState]:
    """Read all that is compared.

    Args:
        ignore: tables whose rows to leave out, as ``regclass`` reads them.

    """
    found = yield from all_tables(ignore)
    objects = yield Query(_LARGE_OBJECTS)
    found[LARGE_OBJECTS] = TableState(("oid", "md5"), tuple(objects), ("oid",))
    definitions = yield Query(_DEFINITIONS)
    sequences = yield Query(_SEQUENCES)
    return DatabaseState(found, dict(definitions), dict(sequences))


def difference(name: str, former: TableState, latter: TableState) -> list[str]:
    """Say in lines what differs in a table; nothing if it is the same.

    A row that is told by its key is named by it, with the columns that differ; others are shown
    whole, with ``-`` what is missing and with ``+`` what is new.
    """
    if former.columns != latter.columns:
        return [name, f"  columns were {former.columns}", f"  and are {latter.columns}"]
    old, new = Counter(former.rows), Counter(latter.rows)
    missing, extra = sorted((old - new).elements()), sorted((new - old).elements())
    lines: list[str] = []
    if former.key:
        at = [former.columns.index(column) for column in former.key]
        places = {tuple(row[i] for i in at): row for row in extra}
        for row in list(missing):
            other = places.pop(tuple(row[i] for i in at), None)
            if other is not None:
                missing.remove(row)
                extra.remove(other)
                lines += _changed(former, at, row, other)
    shown = lines[:SHOWN]
    if len(lines) > SHOWN:
        shown.append(f"  … and {len(lines) - SHOWN} more that differ")
    for sign, rows in (("-", missing), ("+", extra)):
        shown += [f"  {sign} {_row(name, former.columns, row)}" for row in rows[:SHOWN]]
        if len(rows) > SHOWN:
            shown.append(f"  {sign} … and {len(rows) - SHOWN} more")
    return [name, *shown] if shown else []


def differences(
    before: Mapping[str, TableState], after: Mapping[str, TableState]
) -> dict[str, list[str]]:
    """Say what differs, in lines, by table; empty if nothing does."""
    found = {}
    for name in sorted(before.keys() | after.keys()):
        former, latter = before.get(name), after.get(name)
        if former is None or latter is None:
            found[name] = [name, f"  was {'there' if former else 'not there'} before"]
        elif former != latter:
            found[name] = difference(name, former, latter)
    return found


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Say in lines what differs between two sets of definitions or sequences."""
    lines = []
    for name in sorted(before.keys() | after.keys(), key=_tables_first):
        former, latter = before.get(name), after.get(name)
        if former is None:
            lines.append(f"{name}: new, {latter}")
        elif latter is None:
            lines.append(f"{name}: gone, was {former}")
        elif former != latter:
            lines.append(f"{name}: was {former}, is {latter}")
    return lines


def _tables_first(name: str) -> tuple[bool, str]:
    return not name.startswith(("table ", "view ")), name


def _oid(name: str) -> Asking[int]:
    ((oid,),) = yield Query(_OID, [name])
    if oid is None:
        raise UsageError(
            f"There is no table {name!r}.", hint="Name it as SQL writes it, with its schema."
        )
    return int(oid)


def _read(schema: str, relation: str, columns: list[str], key: list[str]) -> Asking[TableState]:
    values: list[sql.Composable] = [sql.SQL("tableoid::regclass::text")]
    values += [sql.SQL("format('%L', t.{})").format(sql.Identifier(name)) for name in columns]
    query = sql.SQL("select {} from {} as t").format(
        sql.SQL(", ").join(values), sql.Identifier(schema, relation)
    )
    rows = yield Query(query)
    return TableState(("stored in", *columns), tuple(sorted(rows)), tuple(key))


def _changed(
    table: TableState, at: list[int], row: tuple[str, ...], other: tuple[str, ...]
) -> list[str]:
    key = ", ".join(f"{table.columns[i]}={_short(row[i])}" for i in at)
    columns = [
        f"{name} was {_short(was, other=now)}, is {_short(now, other=was)}"
        for name, was, now in zip(table.columns, row, other, strict=True)
        if was != now
    ]
    return [f"  ({key}): {'; '.join(columns)}"]


def _row(table: str, columns: tuple[str, ...], row: tuple[str, ...]) -> str:
    """Show a row; where it is stored only if that is a partition or a child."""
    values = zip(columns, row, strict=True)
    return ", ".join(f"{name}={_short(value)}" for name, value in values if value != table)


def _short(value: str, *, other: str = "") -> str:
    """Return a value for a message: of a long one the part where it differs from the other."""
    if len(value) <= _LONGEST:
        return value
    same = next(
        (i for i, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), len(other)
    )
    start = max(0, min(same, len(value)) - _LONGEST // 2)
    part = value[start : start + _LONGEST]
    before, after = ("…" if start else ""), ("…" if start + _LONGEST < len(value) else "")
    return f"{before}{part}{after} ({len(value)} characters)"
