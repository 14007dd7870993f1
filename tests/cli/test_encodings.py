"""Databases of other encodings than UTF-8."""

from __future__ import annotations

import psycopg
import pytest
from click.testing import CliRunner

from pyagentundo import AgentUndo
from pyagentundo.cli import main
from tests.support.servers import Server


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding(server: Server, encoding: str) -> None:
    """Of one in SQL_ASCII psycopg hands out bytes where nothing says otherwise."""
    name = f"t_{encoding.lower()}"
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute(
            f"create database {name} encoding '{encoding}' template template0 locale 'C'".encode()
        )
    dsn = server.dsn(name)
    try:
        for arguments in (["install"], ["status"], ["log"], ["doctor"], ["log", "--json"]):
            result = CliRunner().invoke(main, [*arguments, "--dsn", dsn])
            assert result.exit_code == 0, f"{arguments}: {result.output}\n{result.exception!r}"
            assert "b'" not in result.output
        with psycopg.connect(dsn, autocommit=True, client_encoding="utf8") as conn:
            conn.execute("create table t (id int primary key, v text)")
            conn.execute("insert into t values (1, 'Café')")
            conn.execute("select agentundo.track('t')")
            before = conn.execute("table t").fetchall()
            with AgentUndo(dsn) as undo:
                with undo.invocation(conn, tool="close") as call:
                    conn.execute("update t set v = 'Thé'")
                assert undo.get(call.id).tool == "close"
                assert undo.revert(call.id, reverted_by="dana").status == "reverted"
            assert conn.execute("table t").fetchall() == before
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(f"drop database {name} with (force)".encode())
