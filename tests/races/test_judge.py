"""The judge of the races: one who saw nothing would let every race pass."""

from __future__ import annotations

import pytest

from tests.conftest import Connection
from tests.races.actors import make_tables
from tests.races.conftest import NewRace
from tests.races.oracle import DEALS, Judge
from tests.races.scheduler import Deed, Write
from tests.support.undo import FORCE, revert, tag

UPDATE = "update deals set token = %s where id = 1"
#: What is done behind the judge's back, and what he must say about it.
WRONGS = {
    "an image is lost": (
        "delete from agentundo_history.deals_1 where ctid = '(0,4)'",
        "not in history|begins with|ends with",
    ),
    "an image is there twice": (
        "insert into agentundo_history.deals_1 select * from agentundo_history.deals_1 limit 1",
        "is twice in change",
    ),
    "history has a write of nobody": (
        "begin; select agentundo.tag('nobody'); update deals set token = 'agent-9#1' where id = 3;"
        " commit",
        "history has 1 of none",
    ),
    "a row was written past history": (
        "set local agentundo.internal = on; alter table deals disable trigger all;"
        " update deals set token = 'x#1' where id = 2;"
        " alter table deals enable trigger all",
        "history ends with",
    ),
    "a trigger stays off": ("alter table deals disable trigger touch", "triggers are not"),
    "a counter of a revert is left": (
        "insert into agentundo._restoring values (pg_current_xact_id(), 1, 'I', 1)",
        "counters of reverts",
    ),
}


class Story:
    """An agent's write, a person's write after it, and a race that tells of both."""

    def __init__(self, db: Connection, race: NewRace) -> None:
        make_tables(db, noisy=True)
        self.db, self.judge, self.race = db, Judge(db, [DEALS]), race()
        self.write("d:agent-1:1", "agent-1#1")
        self.write(None, "person-1#1")

    def write(self, invocation: str | None, token: str) -> None:
        with self.db.transaction():
            if invocation:
                tag(self.db, invocation)
            self.db.execute(UPDATE.encode(), [token])
        done = Deed(token, "write", tag=invocation, outcome="committed")
        done.writes.append(Write("deals", "U", 1, token))
        self.race.deeds.append(done)

    def undo(self, *invocations: str, **arguments: str) -> None:
        result = revert(self.db, invocations, **arguments)
        done = Deed("undoer-1", "undo", aim=invocations, outcome="committed", result=result)
        self.race.deeds.append(done)


@pytest.fixture
def story(db: Connection, race: NewRace) -> Story:
    return Story(db, race)


def test_he_accepts_what_is_right(story: Story) -> None:
    story.judge.accept(story.race)
    story.write("d:agent-1:2", "agent-1#2")
    story.undo("d:agent-1:2")
    story.judge.accept(story.race)


@pytest.mark.parametrize("wrong", WRONGS)
def test_he_sees_what_is_wrong(story: Story, wrong: str) -> None:
    done, said = WRONGS[wrong]
    story.db.execute(done.encode())
    with pytest.raises(AssertionError, match=said):
        story.judge.accept(story.race)


def test_he_sees_an_undo_that_overwrites_a_person(story: Story) -> None:
    story.undo("d:agent-1:1", **FORCE)
    with pytest.raises(AssertionError, match=r"has overwritten .*person-1#1"):
        story.judge.accept(story.race)


def test_he_sees_an_undo_that_told_of_other_rows(story: Story) -> None:
    story.write("d:agent-1:2", "agent-1#2")
    story.undo("d:agent-1:2")
    story.db.execute("update agentundo._change set rows = 2 where invocation ~ '-.*-.*-'")
    with pytest.raises(AssertionError, match="told of"):
        story.judge.accept(story.race)


@pytest.mark.parametrize(
    ("kind", "level", "state"),
    [
        ("write", "read committed", "40P01"),
        ("undo", "serializable", "40P01"),
        ("write", "read committed", "40001"),
        ("undo", "read committed", "55P03"),
        ("undo", "read committed", "XX000"),
    ],
)
def test_he_sees_an_error_that_nobody_may_see(
    story: Story, kind: str, level: str, state: str
) -> None:
    story.race.deeds.append(Deed("somebody", kind, level=level, sqlstate=state))
    with pytest.raises(AssertionError, match=f"saw {state}"):
        story.judge.accept(story.race)


def test_he_sees_what_was_rolled_back_and_is_there(story: Story) -> None:
    story.race.deeds[0].outcome = "rolled back"
    with pytest.raises(AssertionError, match="history has 1 of none"):
        story.judge.accept(story.race)


def test_he_sees_what_was_committed_and_is_not_there(story: Story) -> None:
    story.race.deeds[0].writes.append(Write("deals", "U", 2, "agent-1#7"))
    with pytest.raises(AssertionError, match="1 writes are not in history"):
        story.judge.accept(story.race)
