"""The command line, ``agentundo``.

One module per group of commands; `_common` has what they share. Data goes to stdout, notices and
questions to stderr. Exit codes: 0 ok, 1 error, 2 usage, 3 conflict or partial, 4 not installed or
wrong version, 5 refused.
"""

from __future__ import annotations

import click

from pyagentundo import __version__
from pyagentundo.cli import installing, reading, tracking, undoing
from pyagentundo.cli._common import ErrorGroup, dsn_option


@click.group(cls=ErrorGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentundo")
@dsn_option
def main() -> None:
    """Undo for what AI agents write to a PostgreSQL database.

    The database is the one of --dsn, else AGENTUNDO_DATABASE_URL, else DATABASE_URL, else what
    libpq's own variables say.

    \b
    Example:
      agentundo install
      agentundo track public.deals
      agentundo log
      agentundo revert --last
    """


for _module in (installing, tracking, reading, undoing):
    for _command in _module.COMMANDS:
        main.add_command(_command)
