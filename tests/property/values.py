"""Types and values of columns, each as the text of SQL literals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """A type that columns can have.

    Attributes:
        name: as in CREATE TABLE.
        literals: SQL literals of values, few, so that they meet again.
        counts: whether one can add to it.

    """

    name: str
    literals: tuple[str, ...]
    counts: bool = False


def _quoted(*values: str) -> tuple[str, ...]:
    return tuple("'" + value.replace("'", "''") + "'" for value in values)


#: Made in each history's schema, for the types below that are not built in.
TYPES_SQL = (
    "create type mood as enum ('calm', 'wild', 'sad')",
    "create domain small as int check (value < 1000)",
    "create type pair as (a int, b text)",
)

INT = Type("int", ("0", "1", "2", "3", "-7"), counts=True)
NUMERIC = Type("numeric", ("0", "1.0", "1.00", "'NaN'", "12345678901234567890.123"), counts=True)
BIGINT = Type("bigint", ("0", "9007199254740993", "-1"), counts=True)
TEXT = Type("text", _quoted("", "a", "b", "it's", 'NULL,{"x"}\\'))

TYPES = (
    INT,
    INT,
    NUMERIC,
    TEXT,
    BIGINT,
    Type("varchar(12)", _quoted("", "a", "a ", "ab")),
    Type("char(4)", _quoted("", "a", "ab  ")),
    Type("bool", ("true", "false")),
    Type("numeric(8, 2)", ("1", "2.50", "-0.01"), counts=True),
    Type("float8", _quoted("0", "-0", "NaN", "Infinity", "0.1", "1e300")),
    Type("real", _quoted("-0", "0.1", "NaN")),
    Type("date", _quoted("2026-01-01", "infinity", "0044-03-15 BC")),
    Type("timestamptz", _quoted("2026-01-01 00:00:00.000001+00", "-infinity")),
    Type("timetz", _quoted("12:00+00", "12:00-12")),
    Type("interval", _quoted("1 mon", "30 days", "-1 day +01:00")),
    Type("money", _quoted("1.00", "-2.50")),
    Type("bytea", _quoted("\\x", "\\x00ff")),
    Type("bit varying(8)", ("B''", "B'101'")),
    Type("uuid", _quoted("00000000-0000-0000-0000-000000000000", "c" * 32)),
    Type("inet", _quoted("10.0.0.1", "10.0.0.1/8", "::1")),
    Type("json", _quoted('{"a":1, "a":2}', " null", "1.0", "1.00")),
    Type("jsonb", _quoted("null", '{"a": 1}', "1.0", "1.00")),
    Type("point", _quoted("(1,2)", "(-0,0)")),
    Type("int[]", _quoted("{}", "{1,NULL}", "[0:1]={1,2}", "{{1},{2}}")),
    Type("text[]", _quoted("{}", '{"a,b","{}"}', '{NULL,"NULL"}')),
    Type("int4range", _quoted("empty", "[1,3)", "(,)")),
    Type("int4multirange", _quoted("{}", "{[1,3),[5,7)}")),
    Type("tsvector", _quoted("", "a:1 b:2A")),
    Type("mood", _quoted("calm", "wild", "sad")),
    Type("small", ("0", "1", "999"), counts=True),
    Type("pair", _quoted("(1,x)", "(,)", '(2,"a,b")')),
)
