"""Questions: asked on a terminal, and nowhere else.

Without a terminal there is nobody to answer. What can be taken back goes ahead then, as it was
told to; what destroys something for good is refused until it is told --yes.
"""

from __future__ import annotations

import sys

import click

from pyagentundo.cli._failures import ERROR


def can_ask(*, yes: bool) -> bool:
    """Tell whether there is somebody to ask: on a terminal, and not told to go on."""
    return not yes and sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that can be taken back; leave with exit code 1 on a no."""
    if can_ask(yes=yes) and not click.confirm(question, err=True):
        click.echo("Nothing was changed.", err=True)
        click.get_current_context().exit(ERROR)


def confirm_for_good(question: str, *, yes: bool) -> None:
    """Ask before something that nobody can take back; without a terminal demand --yes."""
    if not yes and not can_ask(yes=yes):
        raise click.UsageError(
            f"{question} There is no terminal to ask on; --yes says yes beforehand."
        )
    confirm(question, yes=yes)
