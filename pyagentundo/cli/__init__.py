"""The command line, ``agentundo``.

One module per group of commands. Beside them, with an underscore: `_options` and `_selection` read
what was typed, `_queries` and `_diagnosis` ask the database, `_standing` what the role is there,
`_plans` puts together what an undo is about, `_ran` what a program has left, `_show_*` say it,
`_streams` mends the standard streams, `_screen` knows the terminal, `_failures`, `_reasons` and
`_hints` turn errors into exit codes and into words of the command line. Data goes to stdout,
notices, progress and questions to stderr. Exit codes: 0 ok, 1 error, 2 usage, 3 conflict or
partial, 4 not installed or wrong version, 5 refused.
"""

from __future__ import annotations

try:
    import psycopg as _psycopg  # noqa: F401 - only to find out whether it works
except ImportError as _error:
    # psycopg is there but finds no libpq. Whoever imports this module wants the command line.
    raise SystemExit(
        f"error: PostgreSQL's client library libpq is missing ({str(_error).splitlines()[0]})\n"
        '  hint: Run: pip install "psycopg[binary]", which brings it along.'
    ) from None

import click

from pyagentundo import __version__
from pyagentundo.cli import (
    completion,
    demo,
    events,
    granting,
    installing,
    keeping,
    reading,
    running,
    state,
    tracking,
    undoing,
)
from pyagentundo.cli._failures import ErrorGroup
from pyagentundo.cli._options import dsn_option, prepared


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentundo")
@dsn_option
def main() -> None:
    """Undo for what AI agents write to a PostgreSQL database.

    A call is one tool call of an agent, known by an id; SQL and Python name it an invocation. Calls
    of one turn, conversation or job are a run.

    The database is the one of --dsn, else AGENTUNDO_DATABASE_URL, else DATABASE_URL, else what
    libpq's own variables say.

    \b
    Exit codes:
      0  done, also when it had been done before
      1  error
      2  wrong usage, or a question that nobody is there to answer
      3  rows stand in the way, or were left out
      4  agentundo is not in the database, or in another version
      5  refused: not permitted, not trackable, closed, over a limit

    \b
    Example:
      agentundo install
      agentundo track public.deals
      agentundo log
      agentundo revert --last
    """


for _module in (
    installing,
    granting,
    tracking,
    state,
    running,
    reading,
    undoing,
    events,
    keeping,
    demo,
    completion,
):
    for _command in _module.COMMANDS:
        main.add_command(prepared(_command))
prepared(main)
