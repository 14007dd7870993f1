"""Errors as HTTP answers, with the code of docs/errors.md."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pyagentundo import AgentUndo
from tests.conftest import Connect, Connection, MakeRole
from tests.recipes.conftest import TABLE
from tests.support import pages
from tests.support.state import assert_same, snapshot
from tests.support.undo import scalar


@pytest.fixture
def client(
    db: Connection, connect: Connect, make_role: MakeRole, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> Iterator[Any]:
    """Serve the page's application, as a role that is a member of agentundo_app."""
    testclient = pytest.importorskip("fastapi.testclient")
    user = make_role(member_of="agentundo_app")
    monkeypatch.setenv("AGENTUNDO_DATABASE_URL", f"{dsn} user={user}")
    with asyncio.Runner() as runner:
        names = pages.run(pages.section("errors.md", "FastAPI"), {}, runner)
    names["app"].add_middleware(Sessions)
    with testclient.TestClient(names["app"], headers={"cookie": "person=dana"}) as client:
        yield client


class Sessions:
    """Stands for a login: what a signed cookie would hold is in the session."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        cookie = dict(scope.get("headers", ())).get(b"cookie", b"").decode()
        scope["session"] = dict([cookie.split("=")]) if cookie else {}
        await self._app(scope, receive, send)


@pytest.fixture
def call(undo: AgentUndo, db: Connection) -> str:
    with undo.invocation(id="call-1", on_behalf_of="dana", scope="acme") as inv:
        inv.connection.execute("update deals set stage = 'Won'")
    return inv.id


def test_done(client: Any, call: str, db: Connection) -> None:
    answer = client.post(f"/scopes/acme/invocations/{call}/revert")
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["rows_updated"]) == ("reverted", 2)
    assert scalar(db, "select count(*) from deals where stage = 'Open'") == 2


def test_conflict_is_409_and_names_its_rows(client: Any, call: str, db: Connection) -> None:
    db.execute("update deals set stage = 'Lost' where id = 1")
    db.execute("grant select on deals to agentundo_app")  # else it learns no keys
    before = snapshot(db, TABLE)
    answer = client.post(f"/scopes/acme/invocations/{call}/revert")
    assert answer.status_code == 409
    assert answer.json()["total"] == 1
    assert answer.json()["conflicts"] == [
        {
            "relation": "public.deals",
            "key": {"id": 1},
            "reason": "row_changed",
            "columns": ["stage"],
            "invocation": call,
        }
    ]
    assert answer.json()["hint"]
    assert_same(before, snapshot(db, TABLE))


def test_unknown_is_404(client: Any) -> None:
    answer = client.post("/scopes/acme/invocations/nobody/revert")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]


def test_of_another_scope_is_404(client: Any, call: str) -> None:
    answer = client.post(f"/scopes/other/invocations/{call}/revert")
    assert answer.status_code == 404


def test_not_permitted_is_403(client: Any, call: str, db: Connection) -> None:
    path = f"/scopes/acme/invocations/{call}/revert"
    mallory = {"cookie": "person=mallory"}
    # What stands in the address is nobody's word for who asks.
    for params in ({}, {"by": "dana"}, {"person": "dana"}):
        assert client.post(path, params=params, headers=mallory).status_code == 403
        assert client.post(path, params=params, headers={"cookie": ""}).status_code == 401
    assert scalar(db, "select count(*) from deals where stage = 'Won'") == 2


def test_bad_argument_is_400(client: Any) -> None:
    answer = client.post(f"/scopes/acme/invocations/{'x' * 300}/revert")
    assert answer.status_code == 400
    assert "300 bytes" in answer.json()["error"]
