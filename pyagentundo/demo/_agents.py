"""What the agent of the demo does. Its source is what the demo shows before it is called."""

from __future__ import annotations

from typing import Any

import psycopg

from pyagentundo import AgentUndo

Connection = psycopg.Connection[Any]


def close_the_globex_deal(undo: AgentUndo, conn: Connection) -> None:
    """Close D-818, which is signed; invite the customer to a kickoff."""
    with undo.context(run="run-42", actor="sales-bot", on_behalf_of="Dana"):
        with undo.invocation(conn, id="call-1", tool="update_deal"):
            conn.execute(
                "update crm.deals set stage = 'Won' where id = 'D-881';"
                "update crm.contacts set lifecycle = 'customer'"
                " where id = 301"
            )

        with undo.invocation(conn, id="call-2", tool="create_event"):
            conn.execute(
                "insert into crm.meetings (deal, title, starts_at, attendees)"
                " values ('D-881', 'Kickoff with Globex',"
                " '2026-11-04 10:00+00', '{dana,bea}')"
            )
            undo.record_effect(
                "call-2",
                "Invitation to 'Kickoff with Globex'",
                kind="compensate",
                side_effect="attendees get a cancellation notice",
            )

        with undo.invocation(conn, id="call-3", tool="send_email"):
            conn.execute(
                "insert into crm.activities (deal, kind, body)"
                " values ('D-881', 'mail', 'Welcome aboard!')"
            )
            undo.record_effect(
                "call-3",
                "Email to buyer@globex.com",
                kind="none",
                summary="delivered to external recipients",
                remedy="send a correction",
            )
