"""Triggers of ours where they do not belong: a dump of one schema carries them along."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import refused, revert, scalar
from tests.support.undoing import everything, track, write

pytestmark = pytest.mark.core


def test_triggers_that_a_dump_has_brought_capture_nothing_for_another_table(
    db: Connection,
) -> None:
    """As `pg_dump -n` carries them; the function of that name belongs to another table here."""
    db.execute("create table other (id int primary key, stage text); insert into other values (2)")
    db.execute("select agentundo.track('other', 'all')")
    db.execute(
        "create schema app; create table app.deals (id int primary key, stage text);"
        "insert into app.deals values (2, 'Open')"
    )
    function = "agentundo." + scalar(
        db, "select proname from pg_proc where proname ~ '^_capture_[0-9]+$'"
    )
    made = (
        "create trigger agentundo_update after update on app.deals"
        " referencing old table as agentundo_old new table as agentundo_new"
        f" for each statement execute function {function}()"
    )
    db.execute(made.encode())
    db.execute(
        "create trigger agentundo_truncate before truncate on app.deals"
        " for each statement execute function agentundo._capture_truncate()"
    )
    for statement in ("update app.deals set stage = 'Lost'", "truncate app.deals"):
        with refused("UN008"):
            write(db, statement, tag="call")
    heard: list[str | None] = []
    db.add_notice_handler(lambda notice: heard.append(notice.message_primary))
    db.execute("update app.deals set stage = 'Held'")
    assert [text and text.split(":")[0] for text in heard] == ["agentundo"]
    assert scalar(db, "select count(*) from agentundo.changes") == 0
    told = "select object from agentundo.check() where problem like 'it carries triggers%'"
    assert scalar(db, told) == "app.deals"
    track(db, "app.deals")
    assert scalar(db, told) is None
    before = everything(db)
    call = write(db, "update app.deals set stage = 'Lost'")
    assert scalar(db, "select relation from agentundo.changes") == "app.deals"
    assert revert(db, call).status == "reverted"
    assert_same(before, everything(db))
