"""The recipe for Django's ORM, in a process of its own: its settings are global."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from pyagentundo import AgentUndo
from tests.conftest import Connection
from tests.recipes.conftest import TABLE
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar

_SCRIPT = """
import asyncio, json, sys
import django
from django.conf import settings
from tests.support import pages

parts = json.loads(sys.argv[1])
settings.configure(INSTALLED_APPS=[], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"],
    "USER": parts.get("user", ""), "PASSWORD": parts.get("password", ""),
    "HOST": parts.get("host", ""), "PORT": parts.get("port", "")}})
django.setup()
from django.db import IntegrityError, connection, models, transaction
from pyagentundo import AgentUndo


class Deal(models.Model):
    stage = models.TextField()
    amount = models.DecimalField(max_digits=12, decimal_places=2, null=True)

    class Meta:
        app_label = "crm"
        db_table = "deals"


with asyncio.Runner() as runner:
    names = pages.run(pages.section("recipes.md", "Django"), {}, runner)
agent_call, undo = names["agent_call"], names["undo"]

# A call of its own.
with agent_call(id="own", tool="win", input={"id": 1}) as inv:
    assert Deal.objects.filter(id=1).update(stage="Won") == 1
    inv.result = {"ok": True}
assert undo.get("own").status == "committed"

# The same again.
with agent_call(id="own", tool="win", input={"id": 1}) as again:
    assert (again.created, again.result) == (False, {"ok": True})

# A failure leaves the request's transaction usable.
with transaction.atomic():
    Deal.objects.create(id=9, stage="mine")
    try:
        with agent_call(id="bad"):
            Deal.objects.create(id=1, stage="New")
    except IntegrityError:
        pass
    with agent_call(id="within"):
        Deal.objects.filter(id=2).update(stage="Lost")
    assert undo.get("within").status == "pending"
assert undo.get("bad").status == "failed"
assert undo.get("within").status == "committed"

# A request that is rolled back takes its calls along.
try:
    with transaction.atomic():
        with agent_call(id="gone"):
            Deal.objects.filter(id=2).delete()
        1 / 0
except ZeroDivisionError:
    pass
assert undo.get("gone").status == "pending"
assert Deal.objects.count() == 3

# As in a TestCase.
inline = names["undo"] = AgentUndo(names["DSN"], record="inline")
names["agent_call"].__wrapped__.__globals__["undo"] = inline
with transaction.atomic():
    with agent_call(id="test"):
        Deal.objects.filter(id=2).delete()
    transaction.set_rollback(True)
assert [call.id for call in undo.log(limit=100) if call.id == "test"] == []
undo.close()
inline.close()
connection.close()
print("done")
"""


def test_orm(dsn: str, db: Connection, undo: AgentUndo) -> None:
    before = snapshot(db, TABLE)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, json.dumps(conninfo_to_dict(dsn))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert scalar(db, "select count(*) from deals") == 3
    assert undo.revert(["own", "within"]).rows_updated == 2
    db.execute("delete from deals where id = 9")
    assert_same(before, snapshot(db, TABLE))
