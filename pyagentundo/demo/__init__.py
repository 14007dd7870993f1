"""The demo: a CRM, an agent that takes the wrong deal, another that empties a table, and undo.

It is played on a server of its own (`pyagentundo.embedded`), with the command line and the Python
API as everybody has them: what it prints are the commands it runs, and their answers.

`_story` is what happens, `_agents` what the agent does, ``schema.sql`` the CRM, `_digests` the
proof; `_stage` shows and runs each step, `_server` starts and ends the server.
"""

from __future__ import annotations

from pathlib import Path

import click

from pyagentundo.demo import _server, _story
from pyagentundo.demo._stage import Stage


def play(main: click.Command, *, keep: bool = False) -> None:
    """Play the demo to the end; it takes less than a minute and asks nothing.

    Server and data are gone afterwards, also after an error, Ctrl-C or a SIGTERM.

    Args:
        main: the command ``agentundo``, which the demo runs.
        keep: leave the server running at the end and say how to reach and to stop it.

    Raises:
        AgentUndoError: there is no PostgreSQL of version 14 or later, it does not start, or
            something in the demo did not go as it has to.

    """
    stage = Stage(main)
    with _server.serving() as server:
        url = _story.address(server)
        _story.play(stage, server)
        directory = server.keep() if keep else None
    _story.end(stage, directory, url)


def stop(directory: Path) -> None:
    """Stop the server of a demo that was kept, and delete its data.

    Args:
        directory: what the demo printed.

    Raises:
        AgentUndoError: no server of a demo is there, or it belongs to somebody else.

    """
    _server.stop(directory)
