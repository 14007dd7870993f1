#!/usr/bin/env python3
"""Make docs/cli.md of the command line and docs/sql.md of an installed schema.

    python .ci/make_reference.py          write the pages
    python .ci/make_reference.py --check  say which are not current; exit code 1 if there are any

The schema is installed on an embedded server for the time of the run. What pages say comes from
where it is said first: the help of commands, COMMENT ON, grants, and the docstrings of
pyagentundo/results.py, whose classes have the columns of views and result types; only what stands
nowhere else is in reference.toml.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import psycopg

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # of this checkout, whatever is installed

from pyagentundo import installer, results  # noqa: E402
from pyagentundo.cli import main as command_line  # noqa: E402
from pyagentundo.embedded import EmbeddedServer  # noqa: E402

DOCS = ROOT / "docs"
WORDS: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("reference.toml").read_text(encoding="utf-8")
)

Connection = psycopg.Connection[Any]
#: Which class of results.py describes which view or result type.
CLASSES = {
    "invocations": results.Invocation,
    "runs": results.Run,
    "events": results.Event,
    "effects": results.Effect,
    "effect_row": results.Effect,
    "diff_row": results.DiffRow,
    "finding": results.Finding,
    "history_row": results.HistoryRow,
    "plan_count": results.PlanCount,
    "plan_row": results.PlanRow,
    "recorded": results.Recorded,
    "revert_result": results.RevertResult,
    "undoable_row": results.Undoable,
}
_MADE = "<!-- Made by .ci/make_reference.py: change what it is made of, not this page. -->\n"


# The command line ---------------------------------------------------------------------------------


def cli_page() -> str:
    """Return docs/cli.md."""
    root = click.Context(command_line, info_name="agentundo")
    names = command_line.list_commands(root)
    parts = [
        _MADE,
        "# Command line\n",
        "`agentundo COMMAND --help` says the same. Data goes to stdout, notices, progress and"
        " questions to stderr; without a terminal nothing is asked. `NO_COLOR` switches colours"
        " off, `TZ` is the zone in which times are shown.\n",
        *_prose(command_line.help),
        _options(command_line, root),
        " · ".join(f"[{name}](#{name.lower()})" for name in [*names, "JSON"]) + "\n",
    ]
    for name in names:
        command = command_line.commands[name]
        ctx = click.Context(command, info_name=name, parent=root)
        usage = " ".join(["agentundo", name, *command.collect_usage_pieces(ctx)])
        parts += [f"## {name}\n", f"`{usage}`\n", *_prose(command.help), _options(command, ctx)]
        parts += _example(command.epilog)
    printing = [
        x for x in names if any(p.name == "as_json" for p in command_line.commands[x].params)
    ]
    if sorted(printing) != sorted(WORDS["json"]):
        raise LookupError(f"reference.toml explains the JSON of other commands than {printing}")
    parts += [
        "## JSON\n",
        "What `--json` prints, one document unless said. Numbers have all of their digits, times"
        " are ISO 8601. Columns may be added.\n",
        _table(["command", "prints"], [[f"`{name}`", WORDS["json"][name]] for name in printing]),
    ]
    return "\n".join(parts)


def _prose(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text; what click is told not to wrap becomes a block."""
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines = paragraph.removeprefix("\b\n").split("\n")
            if not lines[0].startswith(" "):
                yield f"{lines.pop(0)}\n"
            yield "```text\n" + inspect.cleandoc("\n" + "\n".join(lines)) + "\n```\n"
        elif paragraph:
            yield _escaped(" ".join(paragraph.split())) + "\n"


def _example(epilog: str | None) -> Iterator[str]:
    lines = (epilog or "").removeprefix("\b\n").split("\n")[1:]
    if lines:
        yield "```sh\n" + inspect.cleandoc("\n" + "\n".join(lines)) + "\n```\n"


def _options(command: click.Command, ctx: click.Context) -> str:
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(ctx)
        if record:
            rows.append([f"`{record[0]}`", _escaped(record[1])])
    return _table(["option", "meaning"], rows)


# The schema ---------------------------------------------------------------------------------------

_FUNCTIONS = """\
select p.oid, p.proname::text as name, pg_get_function_arguments(p.oid) as arguments,
  pg_get_function_result(p.oid) as result, obj_description(p.oid, 'pg_proc') as comment,
  array(select substr(a.grantee::regrole::text, 11)
        from aclexplode(p.proacl) a
        where a.privilege_type = 'EXECUTE' and a.grantee <> 0
          and a.grantee::regrole::text in ('agentundo_app', 'agentundo_agent', 'agentundo_operator',
            'agentundo_approver', 'agentundo_auditor')
        order by array_position(array['app', 'agent', 'operator', 'approver', 'auditor'],
          substr(a.grantee::regrole::text, 11))) as roles
from pg_proc p
where p.pronamespace = 'agentundo'::regnamespace and p.proname !~ '^_'
order by p.proname, arguments
"""

_RELATIONS = """\
select c.relname::text as name, c.relkind = 'v' as is_view,
  coalesce(obj_description(c.oid, 'pg_class'), '') as comment,
  array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0
        and not a.attisdropped order by a.attnum) as columns,
  array(select format_type(a.atttypid, a.atttypmod) from pg_attribute a where a.attrelid = c.oid
        and a.attnum > 0 and not a.attisdropped order by a.attnum) as types
from pg_class c
where c.relnamespace = 'agentundo'::regnamespace and c.relkind in ('v', 'c') and c.relname !~ '^_'
order by c.relname
"""


def sql_page(conn: Connection) -> str:
    """Return docs/sql.md, of a schema as a superuser installed it."""
    with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        functions = cursor.execute(_FUNCTIONS).fetchall()
        relations = cursor.execute(_RELATIONS).fetchall()
        settings = cursor.execute("select name, value from agentundo._setting").fetchall()
    views = [one for one in relations if one["is_view"]]
    types = [one for one in relations if not one["is_view"]]
    return "\n".join(
        [
            _MADE,
            "# SQL\n",
            "What is public in the schema `agentundo`; names that begin with an underscore are"
            " private. Name arguments (`run => 'run-42'`): later versions may add some. *For* says"
            " which of the roles `agentundo_…` may call a function; superusers and whoever acts for"
            " the schema's owner may call all. Errors are on [a page of their own](errors.md).\n",
            *_functions(functions),
            "## Views\n",
            "For operators and auditors.\n",
            *(part for view in views for part in _relation(view)),
            "## Result types\n",
            "A later version may add columns: select those that you need.\n",
            *(part for one in types for part in _relation(one)),
            "## Tags\n",
            "Settings of a transaction, or of a session that is the agent's alone; empty means"
            " unset. `agentundo.tag` sets all of them for the transaction. What was recorded for an"
            " invocation wins over them.\n",
            _table(["setting", "meaning"], [[f"`{k}`", v] for k, v in WORDS["tags"].items()]),
            "## Settings\n",
            "Rows of `agentundo._setting`, the same for all sessions. Whoever acts for the schema's"
            " owner changes them: `update agentundo._setting set value = '90 days' where name ="
            " 'retention'`. What a setting cannot be is refused (22023).\n",
            _table(
                ["name", "default", "meaning"],
                [
                    [f"`{name}`", one["value"], _word(meaning)]
                    for name, meaning in WORDS["settings"].items()
                    for one in settings
                    if one["name"] == name
                ],
            ),
            "## Kinds of events\n",
            _table(["kind", "means"], [[f"`{k}`", v] for k, v in WORDS["events"].items()]),
        ]
    )


def _functions(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the functions, group by group.

    Raises:
        LookupError: a function is in no group, or a group names one that does not exist.

    """
    grouped = [name for group in WORDS["groups"] for name in group["functions"]]
    public = {one["name"] for one in found}
    if sorted(grouped) != sorted(public):
        wrong = ", ".join(sorted(public.symmetric_difference(grouped)))
        raise LookupError(f"the groups of reference.toml and the public functions differ: {wrong}")
    for group in WORDS["groups"]:
        yield f"## {group['title']}\n"
        if "text" in group:
            yield f"{group['text']}\n"
        for name in group["functions"]:
            yield f"### {name}\n"
            for one in found:
                if one["name"] == name:
                    yield f"```text\n{_signature(one)}\n```\n"
                    roles = ", ".join(one["roles"]) or "the owner"
                    yield f"{_escaped(one['comment'] or '')} *For: {roles}.*\n"


def _signature(function: Mapping[str, Any]) -> str:
    # Arguments as people write them: no casts of defaults, types by their short names.
    arguments = re.sub(r"::[a-z]+( with time zone)?(\[\])?", "", function["arguments"])
    arguments = _short(arguments).replace("DEFAULT", "default").replace("NULL", "null")
    return f"agentundo.{function['name']}({arguments}) → {_short(function['result'])}"


def _relation(relation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a view or type with its columns.

    Raises:
        LookupError: a column is described nowhere.

    """
    name = relation["name"]
    if name in CLASSES:
        summary, meanings = described(CLASSES[name])
    else:
        summary, meanings = "", {}
    meanings |= WORDS["columns"].get(name, {})
    rows = []
    for column, type_ in zip(relation["columns"], relation["types"], strict=True):
        if column not in meanings:
            raise LookupError(f"nobody says what the column {column} of agentundo.{name} means")
        rows.append([f"`{column}`", _short(type_), _word(meanings[column])])
    yield f"### {name}\n"
    comment = relation["comment"] or summary
    if comment:
        yield f"{_escaped(comment)}\n"
    yield _table(["column", "type", "meaning"], rows)


def described(cls: type) -> tuple[str, dict[str, str]]:
    """Return the first sentence of a class's docstring, and what it says of its attributes."""
    text = inspect.getdoc(cls) or ""
    summary, _, rest = text.partition("\n\n")
    attributes = rest.partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE)
    named = re.sub(r"`(\w+)\.(\w+)`", r"`\2`", " ".join(summary.split()))
    return named.replace("``", "`"), {name: " ".join(meaning.split()) for name, meaning in found}


def _word(text: str) -> str:
    """Return what a docstring or reference.toml says in the words of SQL."""
    text = re.sub(r"`(PlanRow|Conflict)\.(\w+)`", r"`\2` of [plan_row](#plan_row)", text)
    text = text.replace("``", "`").replace("False", "false").replace("None", "null")
    return _escaped(text.removesuffix("."))


def _short(types: str) -> str:
    for long, short in (
        ("timestamp with time zone", "timestamptz"),
        ("integer", "int"),
        ("SETOF ", "setof "),
        ("SESSION_USER", "session_user"),
    ):
        types = types.replace(long, short)
    return types


# Markdown -----------------------------------------------------------------------------------------


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _escaped(text: str) -> str:
    """Return text in which nothing outside of code is taken for HTML or emphasis."""
    code = re.compile(r"(`[^`]*`|\[[^]]*\]\([^)]*\))")
    parts = code.split(text)
    return "".join(
        one if n % 2 else one.replace("<", "&lt;").replace("*", "\\*")
        for n, one in enumerate(parts)
    )


# Files --------------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Return every page that is made, with its text."""
    server = EmbeddedServer()
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            installer.install(conn)
            return {DOCS / "cli.md": cli_page(), DOCS / "sql.md": sql_page(conn)}
    finally:
        server.stop()


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them."""
    stale = 0
    for path, text in pages().items():
        if arguments == ["--check"]:
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                print(f"{path.relative_to(ROOT)} is not current: run .ci/make_reference.py")
                stale = 1
        else:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
