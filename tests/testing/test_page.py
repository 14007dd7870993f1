"""The page docs/testing.md as the suite that it shows."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.support import pages

pytest_plugins = ["pytester"]

PAGE = "testing.md"
SCHEMA = (
    "create schema crm; create schema log; create table log.seen (deal text, what text);"
    "create table crm.deals (id text primary key, stage text);"
    "insert into crm.deals values ('D-881', 'Open')"
)


def test_the_page_runs(
    pytester: pytest.Pytester, bare_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(bare_dsn) as conn:
        conn.execute(SCHEMA.encode())
    monkeypatch.setenv("TEST_DATABASE_URL", bare_dsn)
    for block in pages.blocks(PAGE, "python", "ini"):
        name, _, text = block.text.removeprefix("# ").partition("\n")
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, failed=1)
    (shown,) = pages.blocks(PAGE, "text")
    told = [re.sub(r"^E +", "", line).strip() for line in result.stdout.lines]
    for line in shown.text.splitlines():
        assert not line or any(one.endswith(line.strip()) for one in told), line
