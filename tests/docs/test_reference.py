"""Everything that can be named is described: the tests ask the database and the code for it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

import pyagentundo
from pyagentundo import errors, results
from pyagentundo.cli import _failures, _reasons, main
from tests.conftest import Connection
from tests.support import pages
from tests.support.undo import rows

SCRIPT = pages.ROOT / ".ci" / "make_reference.py"


def text_of(page: str) -> str:
    return (pages.DOCS / page).read_text(encoding="utf-8")


def rows_of(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    below = re.split(rf"^#+ {re.escape(heading)}$", text_of(page), flags=re.MULTILINE)[1]
    below = re.split(r"^#+ ", below, flags=re.MULTILINE)[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
    return [[cell.strip() for cell in line] for line in cells]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The pages that are made --------------------------------------------------------------------------


def test_command_line_is_current(generator: ModuleType) -> None:
    assert generator.cli_page() == text_of("cli.md"), "run .ci/make_reference.py"


@pytest.mark.core
def test_sql_is_current(generator: ModuleType, db: Connection) -> None:
    assert generator.sql_page(db) == text_of("sql.md"), "run .ci/make_reference.py"


def test_generator_refuses_what_nobody_explains(generator: ModuleType, db: Connection) -> None:
    db.execute("create function agentundo.fresh() returns int language sql as 'select 1'")
    with pytest.raises(LookupError, match="the public functions differ: fresh"):
        generator.sql_page(db)
    db.execute("drop function agentundo.fresh(); create view agentundo.fresh as select 1 as x")
    with pytest.raises(LookupError, match="fresh"):
        generator.sql_page(db)
    db.execute(
        "drop view agentundo.fresh; alter type agentundo.finding add attribute since timestamptz"
    )
    with pytest.raises(LookupError, match=r"the column since of agentundo\.finding"):
        generator.sql_page(db)


# Is everything there? Asked without the generator -------------------------------------------------


def test_every_command_and_option() -> None:
    text = text_of("cli.md")
    for name, command in main.commands.items():
        part = re.split(r"^## ", text, flags=re.MULTILINE)
        section = next(one for one in part if one.startswith(f"{name}\n"))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for spelling in parameter.opts:
                    assert re.search(rf"`[^`]*(?<![\w-]){re.escape(spelling)}\b", section), (
                        name,
                        spelling,
                    )


def test_every_exit_code() -> None:
    listed = re.findall(r"^(\d)  \w", text_of("cli.md"), re.MULTILINE)
    codes = [_failures.OK, _failures.ERROR, _failures.USAGE, _failures.CONFLICT]
    assert [int(code) for code in listed] == [*codes, _failures.VERSION, _failures.REFUSED]


def test_every_function_and_argument(db: Connection) -> None:
    text = text_of("sql.md")
    public = rows(
        db,
        "select proname, coalesce(proargnames[1:pronargs], '{}'), obj_description(oid, 'pg_proc')"
        " from pg_proc where pronamespace = 'agentundo'::regnamespace and proname !~ '^_'",
    )
    assert len(public) > 25
    for name, arguments, comment in public:
        signatures = re.findall(rf"^agentundo\.{name}\((.*)\) → ", text, re.MULTILINE)
        assert any(
            re.findall(r'(?:^|, )"?(\w+)"? ', signature) == list(arguments)
            for signature in signatures
        ), (name, arguments, signatures)
        assert comment, f"{name} has no comment"


def test_every_column_of_views_and_types(db: Connection) -> None:
    found = rows(
        db,
        "select c.relname, array_agg(a.attname::text order by a.attnum)"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0"
        " where c.relnamespace = 'agentundo'::regnamespace and c.relkind in ('v', 'c')"
        " and c.relname !~ '^_' group by c.relname",
    )
    assert {name for name, _ in found} >= {"invocations", "runs", "changes", "events", "effects"}
    for name, columns in found:
        described = rows_of("sql.md", name)
        assert [row[0].strip("`") for row in described] == columns
        assert all(row[2] for row in described)


def test_every_setting(db: Connection) -> None:
    described = {row[0].strip("`"): row[1] for row in rows_of("sql.md", "Settings")}
    assert described == dict(rows(db, "select name, value from agentundo._setting"))


def test_every_tag(db: Connection) -> None:
    source = " ".join(
        body
        for (body,) in rows(
            db, "select prosrc from pg_proc where pronamespace = 'agentundo'::regnamespace"
        )
    )
    used = set(re.findall(r"'(agent\.\w+)'", source))
    assert {row[0].strip("`") for row in rows_of("sql.md", "Tags")} == used


def test_every_kind_of_event(db: Connection) -> None:
    emitted = set()
    for (body,) in rows(
        db,
        "select prosrc from pg_proc where pronamespace = 'agentundo'::regnamespace"
        " and prosrc ~ '_emit\\('",
    ):
        for call in re.findall(r"_emit\((?:case .*? end|'\w+')", body, re.DOTALL):
            emitted |= set(re.findall(r"'([a-z]+_[a-z]+)'", call))
    assert {row[0].strip("`") for row in rows_of("sql.md", "Kinds of events")} == emitted


def test_every_sqlstate(db: Connection) -> None:
    raised: set[str] = set()
    for (body,) in rows(
        db, "select prosrc from pg_proc where pronamespace = 'agentundo'::regnamespace"
    ):
        raised |= set(re.findall(r"(?:_fail\(|errcode = )'(\w{5})'", body))
    raised -= {"UNR01", "UNR02"}  # never leave revert()
    text = text_of("errors.md")
    described = set(re.findall(r"^\| (\w{5}) \|", text, re.MULTILINE))
    own = {cls.sqlstate for cls in vars(errors).values() if isinstance(cls, type)
           and issubclass(cls, errors.AgentUndoError) and cls.sqlstate}  # fmt: skip
    assert described >= raised | own
    never = own - raised
    assert never == {"UN005", "UN006", "UN009"}
    assert "UN005 and UN006 are kept for limits and approvals" in text


def test_standard_sqlstates_have_the_class_that_is_said() -> None:
    for code, shown, _ in rows_of("errors.md", "SQLSTATEs of the standard"):
        cls = errors._OURS_ELSEWHERE.get(code)
        assert (f"`{cls.__name__}`" if cls else "psycopg's") == shown, code


def test_exit_codes_of_errors() -> None:
    said = " ".join(text_of("errors.md").split())
    assert (
        "3 for `UndoConflict`, 4 for `VersionMismatch` and `NotInstalled`, 5 for UN003 to UN007,"
        " `InvocationClosed`, `InvocationPending` and a missing right (42501), 2 for wrong options,"
        " 1 for the others."
    ) in said
    codes = {cls.sqlstate: code for cls, code in _failures._EXIT_CODES}
    assert codes == {"UN001": 3, "UN009": 4} | dict.fromkeys(
        ("UN003", "UN004", "UN005", "UN006", "UN007", "UN010"), 5
    )


def test_every_reason_action_and_status() -> None:
    found = [row[0].strip("`") for row in _tables("concepts.md", "What a plan says")]
    doc = results.PlanRow.__doc__ or ""
    actions = re.findall(r"``(\w+)``", doc.partition("action:")[2].partition("status:")[0])
    statuses = re.findall(r"``(\w+)``", doc.partition("status:")[2].partition("reason:")[0])
    assert found == [*actions, *statuses, *_reasons.REASONS]
    reasons = (results.Conflict.__doc__ or "").partition("reason:")[2].partition("columns:")[0]
    assert set(re.findall(r"``(\w+)``", reasons)) == set(_reasons.REASONS)


def _tables(page: str, heading: str) -> list[list[str]]:
    """Return the rows of all tables below a heading, without their heads."""
    below = text_of(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE):
        lines = table.splitlines()[2:]
        found += [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return found


def test_every_public_name_of_python() -> None:
    texts = "".join(text_of(page) for page in ("python.md", "errors.md"))
    missing = [name for name in pyagentundo.__all__ if not re.search(rf"\b{name}\b", texts)]
    assert missing == ["__version__"]


def test_every_role(db: Connection) -> None:
    readme = Path(pages.ROOT / "README.md").read_text(encoding="utf-8")
    roles = rows(db, "select rolname from pg_roles where rolname ~ '^agentundo_' order by 1")
    assert len(roles) == 7
    texts = readme + text_of("operations.md") + text_of("upgrading.md")
    assert [name for (name,) in roles if name not in texts] == []
