"""What agents really did to somebody's data, taken back."""

from __future__ import annotations

from tests.conftest import Connection
from tests.support.state import assert_same
from tests.support.undo import plan, redo, revert, rows, scalar, write
from tests.support.undoing import everything, track

ROWS, LOST = 24_475, 24_472


def test_a_cleaning_that_made_nulls_and_a_deletion_of_all_nulls(db: Connection) -> None:
    """The pattern matched three rows of 24,475: all others were emptied, then deleted."""
    db.execute(
        "create table leads (id int primary key, phone text, clean text, note text);"
        f"insert into leads select i, format('%s/%s', 100 + i %% 900, i), format('+49 %s', i),"
        f" nullif('note ' || i %% 7, 'note 0') from generate_series(1, {ROWS}) i;"
        "update leads set phone = '0' || id where id in (5, 17, 24475);"
        "create table calls (id int primary key, lead int references leads on delete set null);"
        "insert into calls select i, i from generate_series(1, 300) i".encode().replace(b"%%", b"%")
    )
    track(db, "leads", "calls")
    before = everything(db)
    cleaning = "update leads set clean = (regexp_match(phone, '^0[0-9]+$'))[1]"
    write(db, "clean", cleaning, run="tidy up", actor="bot")
    write(db, "delete", "delete from leads where clean is null", run="tidy up", actor="bot")
    assert scalar(db, "select count(*) from leads") == ROWS - LOST
    planned = rows(db, "select relation, action, status, rows from agentundo.plan_summary(%s)",
                   ["delete", "clean"])  # fmt: skip
    assert sorted(planned) == [
        ("public.calls", "update", "ok", 298),
        ("public.leads", "insert", "ok", LOST),
        ("public.leads", "update", "ok", ROWS - LOST),
    ]
    done = scalar(db, "select status from agentundo.revert_run('tidy up')")
    assert done == "reverted"
    assert_same(before, everything(db))


def test_the_cleaning_is_taken_back_after_the_deletion(db: Connection) -> None:
    """One call at a time, the last first; a row that somebody has typed in again stays hers."""
    db.execute(
        "create table leads (id int primary key, phone text, clean text);"
        "insert into leads select i, i::text, 'c' || i from generate_series(1, 50) i"
    )
    track(db, "leads")
    before = rows(db, "select * from leads where id <> 7 order by id")
    write(db, "clean", "update leads set clean = (regexp_match(phone, '^1$'))[1]")
    write(db, "delete", "delete from leads where clean is null")
    db.execute("insert into leads values (7, 'typed in again', 'c7')")
    assert revert(db, "delete", on_conflict="skip").counts == (0, 48, 0, 1, 1)
    assert revert(db, "clean", on_conflict="skip").rows_skipped == 1
    assert rows(db, "select * from leads where id <> 7 order by id") == before
    assert rows(db, "select phone from leads where id = 7") == [("typed in again",)]


def test_the_wrong_deal_a_meeting_and_a_mail(db: Connection) -> None:
    """Eve's later stage stays, the meeting goes, and the mail is named as what stays sent."""
    db.execute(
        "create table deals (id text primary key, stage text, owner text, amount numeric(12,2));"
        "create table meetings (id int generated always as identity primary key,"
        " deal text references deals on delete cascade, what text);"
        "insert into deals values ('D-881', 'Offered', 'dana', 12000),"
        " ('D-882', 'New', 'dana', 900)"
    )
    track(db, "deals", "meetings", capture="all")
    tag = {"run": "run-43", "actor": "sales-bot", "on_behalf_of": "dana"}
    write(
        db,
        "call-7",
        "update deals set stage = 'Won', owner = 'sales-bot', amount = 0 where id = 'D-881';"
        " insert into meetings (deal, what) values ('D-881', 'kickoff')",
        **tag,
    )
    db.execute("select agentundo.record_effect('call-7', 'mail', 'none', 'welcome to dana')")
    db.execute("update deals set stage = 'Negotiation' where id = 'D-881'")
    conflicts = [(row.key, row.reason, row.columns) for row in plan(db, "call-7") if row.reason]
    assert conflicts == [({"id": "D-881"}, "row_changed", ["stage"])]
    effects = "select name, kind, summary from agentundo.effects_of(array['call-7'])"
    assert rows(db, effects) == [("mail", "none", "welcome to dana")]
    left = everything(db)
    assert revert(db, "call-7", on_conflict="skip", merge=True).counts[:3] == (1, 0, 0)
    assert redo(db, "call-7").status == "reverted"
    assert_same(left, everything(db))
    # Her stage is in the same column: this row goes back by force alone.
    forced = {"on_conflict": "force", "reverted_by": "dana", "reason": "wrong deal"}
    assert revert(db, "call-7", **forced).status == "reverted"
    assert rows(db, "select stage, owner, amount::text from deals order by id") == [
        ("Offered", "dana", "12000.00"),
        ("New", "dana", "900.00"),
    ]
    assert rows(db, "select * from meetings") == []
    assert rows(db, effects) == [("mail", "none", "welcome to dana")]
