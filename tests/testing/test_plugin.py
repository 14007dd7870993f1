"""The plugin in real runs of pytest, on suites as users write them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.testing.conftest import TABLES, WIN

pytest_plugins = ["pytester"]

CONFTEST = f"""
import psycopg
import pytest
from pyagentundo.testing import install

pytest_plugins = ["pyagentundo.testing"]

@pytest.fixture
def agentundo_db():
    with psycopg.connect({{dsn!r}}) as conn:
        conn.execute({TABLES!r})
        conn.commit()
        yield conn
"""
#: As strict as suites get: importing the plugin before pytest does must not warn.
INI = "[pytest]\nfilterwarnings = error\nagentundo_track = public\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, bare_dsn: str) -> pytest.Pytester:
    """Prepare a suite on a database that has nothing yet."""
    pytester.makeconftest(CONFTEST.format(dsn=bare_dsn))
    pytester.makeini(INI)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def test_a_suite(suite: pytest.Pytester, bare_dsn: str) -> None:
    suite.makepyfile(f"""
        import psycopg

        def test_sql(assert_reversible):
            assert_reversible({WIN!r}, redo=True)

        def test_function(assert_reversible, agentundo_db):
            done = assert_reversible(lambda conn: conn.execute("delete from deals"))
            assert done.revert.rows_inserted == 2
            assert agentundo_db.execute("select count(*) from deals").fetchone() == (2,)

        def test_sequence(assert_reversible):
            assert_reversible("insert into audit (note) values ('x')")
    """)
    # Each test makes the tables anew, in the same database.
    end = "        conn.execute('drop table deals, audit')\n"
    suite.makeconftest(CONFTEST.format(dsn=bare_dsn) + end)
    result = run(suite, "-rP")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*sequences, which are not rewound*", "public.audit_n_seq: was unused, is 1"]
    )


def test_in_a_transaction_of_the_fixture_nothing_stays(
    suite: pytest.Pytester, bare_dsn: str
) -> None:
    """As docs/testing.md says of a fixture that begins one."""
    with psycopg.connect(bare_dsn) as conn:
        conn.execute(TABLES.encode())
    suite.makeconftest(f"""
        import psycopg, pytest
        pytest_plugins = ["pyagentundo.testing"]

        @pytest.fixture
        def agentundo_db():
            with psycopg.connect({bare_dsn!r}) as conn:
                conn.execute("select 1")
                yield conn
                conn.rollback()
    """)
    suite.makepyfile(f"""
        import psycopg

        def test_ddl(assert_reversible):
            assert_reversible([{WIN!r}, "drop table audit"])

        def test_row(assert_reversible):
            assert_reversible([{WIN!r}, "insert into audit (note) values ('x')"])

        def test_dsn(assert_reversible):
            assert_reversible(lambda url: psycopg.connect(url).close(), via="dsn")
    """)
    result = run(suite)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["E   *table public.audit: gone, was*"])
    result.stdout.fnmatch_lines(["E   *A transaction is open on the connection of the test*"])
    with psycopg.connect(bare_dsn) as conn:
        assert conn.execute("select stage from deals where id = 1").fetchone() == ("Open",)
        assert conn.execute("select count(*) from audit").fetchone() == (0,)


def test_a_failure_is_readable(suite: pytest.Pytester) -> None:
    suite.makeini(INI.replace("agentundo_track = public\n", ""))
    suite.makepyfile(f"""
        from pyagentundo.testing import install

        def test_fails(assert_reversible, agentundo_db):
            install(agentundo_db)
            agentundo_db.execute("select agentundo.track('deals')")
            agentundo_db.commit()
            assert_reversible([{WIN!r}, "insert into audit values (1, 'won')"])
    """)
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*NotReversible: the action cannot be taken back",
            "E   *Written and not tracked, so no undo reaches it:",
            "E   *public.audit",
            "E   *+ n='1', note='won'",
            "E   *Track it with agentundo.track, or leave it out: ignore=?'public.audit'?.",
        ]
    )
    # No line of ours stands between the test and what is said.
    assert "_running.py" not in result.stdout.str()


def test_tasks(suite: pytest.Pytester, bare_dsn: str) -> None:
    suite.makeconftest(f"""
        import psycopg, pytest
        pytest_plugins = ["pyagentundo.testing"]

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.fixture
        async def agentundo_db():
            async with await psycopg.AsyncConnection.connect({bare_dsn!r}) as conn:
                await conn.execute({TABLES!r})
                await conn.commit()
                yield conn
                await conn.execute("drop table deals, audit")
    """)
    suite.makepyfile(f"""
        import pytest

        pytestmark = pytest.mark.anyio

        async def win(conn):
            await conn.execute({WIN!r})

        async def test_passes(assert_reversible):
            assert (await assert_reversible(win, redo=True)).revert.rows_updated == 1

        async def test_fails(assert_reversible, agentundo_db):
            await agentundo_db.execute("create view audited as select 1 as one")
            await assert_reversible(["drop view audited", {WIN!r}])

        async def test_forgets(assert_reversible):
            assert_reversible(win)
    """)
    result = run(suite)
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_forgets*", "*was not awaited, so nothing was tested"]
    )
    result.stdout.fnmatch_lines(["E   *view public.audited: gone, was*"])


def test_the_fixture_of_pytest_postgresql_is_found(
    pytester: pytest.Pytester, bare_dsn: str
) -> None:
    address = conninfo_to_dict(bare_dsn)
    pytester.makeini(INI)
    pytester.makeconftest(f"""
        from pytest_postgresql import factories

        pytest_plugins = ["pyagentundo.testing"]
        server = factories.postgresql_noproc(
            host={address["host"]!r}, port={address["port"]!r}, user={address["user"]!r},
            password={address.get("password")!r}, dbname="for_{address["dbname"]}",
        )
        postgresql = factories.postgresql("server")
    """)
    pytester.makepyfile(f"""
        def test_passes(postgresql, assert_reversible):
            postgresql.execute({TABLES!r})
            postgresql.commit()
            assert_reversible({WIN!r})
    """)
    run(pytester).assert_outcomes(passed=1)


def test_without_a_database_it_says_what_to_write(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["pyagentundo.testing"]')
    pytester.makepyfile("def test_it(assert_reversible): ...")
    result = run(pytester, "-p", "no:pytest_postgresql")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["E   *UsageError: There is no database to test on: nothing overrides*"]
    )


def test_it_needs_nothing_but_pytest_and_psycopg(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "import pyagentundo\n"
        "assert 'pytest' not in sys.modules\n"
        "for name in ('click', 'sqlglot', 'psycopg_pool', 'anyio', 'pytest_postgresql'):\n"
        "    sys.modules[name] = None\n"
        "import pyagentundo.testing\n"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
    )
