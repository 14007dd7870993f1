"""``exec``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import click
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from pyagentundo import dsn as dsns
from pyagentundo._calls import new_id
from pyagentundo._json import storable
from pyagentundo._signals import ENDINGS, handling
from pyagentundo.cli import _ran
from pyagentundo.cli._connection import connected
from pyagentundo.cli._failures import complain
from pyagentundo.cli._options import chosen_dsn, dry_run_option, dsn_option
from pyagentundo.cli._screen import printable

#: What a shell answers when there is no such program, or it cannot be run.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
#: libpq's variables that say where a database is; with any of them a program has an address.


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--run", help="The run that this belongs to.")
@click.option("--actor", help="The agent.")
@click.option("--for", "--on-behalf-of", "on_behalf_of", help="The person for whom it acts.")
@click.option("--tool", help="What to call it. [default: the program's name]")
@click.option("--scope", help="The tenant, campaign or project.")
@dsn_option
@dry_run_option("Print the environment and the command, run nothing.")
@click.argument(
    "command", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED
)  # as it is: names of files may be any bytes
def exec_(
    run: str | None,
    actor: str | None,
    on_behalf_of: str | None,
    tool: str | None,
    scope: str | None,
    dry_run: bool,
    command: tuple[str, ...],
) -> None:
    """Run a program and capture what it writes, under a fresh id.

    The tag travels in PGOPTIONS, which libpq reads: psql, psycopg, psycopg2, node-postgres with
    native bindings and most others. It does not pass a pooler such as PgBouncer, and drivers with a
    protocol of their own (JDBC, asyncpg, pgx) do not read it. At the end it says what was captured
    and how to take it back; also what the role wrote meanwhile under another id, because a program
    may tag itself. Rows are captured, changes of tables themselves (CREATE, ALTER, DROP) are not.

    A program that has no address of its own in PGHOST, PGDATABASE and the like is given that of
    --dsn or of the environment.

    The exit code is the program's; 127 if there is none, 126 if it cannot be run, 128 and its
    number for a signal. SIGTERM and SIGHUP are passed on to the program; what it wrote is told all
    the same.

    \b
    Examples:
      agentundo exec -- psql -f fix.sql
      agentundo exec --run nightly --actor tidy-bot -- python tidy.py --all
    """
    invocation = new_id()
    settings = {
        "agent.invocation": invocation,
        "agent.run": run,
        "agent.tool": tool or storable(Path(command[0]).name),
        "agent.actor": actor,
        "agent.on_behalf_of": on_behalf_of,
        "agent.scope": scope,
    }
    with connected() as conn:  # nothing runs that could not be captured
        before = _ran.Mark.of(conn)
    variables = _variables({name: value for name, value in settings.items() if value})
    if dry_run:
        shown = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        hidden = [line for line in shown if not line.startswith("PGPASSWORD=")]
        click.echo(" ".join([*hidden, shlex.join(command)]))
        return
    program = _Program(command)
    with handling(program.pass_on, *ENDINGS):
        try:
            code = program.run({name: os.fsdecode(v.encode()) for name, v in variables.items()})
        except OSError as error:
            complain(f"{command[0]!r} is no program that can be run here.", [], None)
            code = _NOT_FOUND if _is_missing(command[0], error) else _NOT_EXECUTABLE
        else:
            ended = f"{printable(Path(command[0]).name)} ended with {code}"
            _ran.report(_ran.Ran(ended, invocation, on_behalf_of, scope, before))
    click.get_current_context().exit(code)


def _is_missing(program: str, error: OSError) -> bool:
    """Tell whether there is no such program, rather than one that cannot be run."""
    if os.sep in program:
        return isinstance(error, FileNotFoundError) and not Path(program).exists()
    # What the error says depends on whether all of PATH may be looked into.
    return not shutil.which(program, os.F_OK)


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make libpq tag a connection."""
    found = {}
    if not any(os.environ.get(name) for name in dsns.ADDRESS):
        text, source = dsns.choose(chosen_dsn(), given="--dsn")
        address = conninfo_to_dict(dsns.normalise(text, source=source))
        for one in pq.Conninfo.get_defaults():  # as this libpq knows them
            value = address.get(one.keyword.decode())
            if one.envvar and value not in (None, ""):
                found[one.envvar.decode()] = str(value)
    # Of several settings of one name the last holds.
    options = [found.pop("PGOPTIONS", ""), os.environ.get("PGOPTIONS", "")]
    options += [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
    return {"PGOPTIONS": " ".join(filter(None, options)), **found}


def _escaped(value: str) -> str:
    """Return a value as it stands in PGOPTIONS, where white space separates."""
    return "".join(f"\\{one}" if one.isspace() or one == "\\" else one for one in value)


class _Program:
    """A program that is run on our own streams, and gets the signals that would end us.

    Args:
        command: its words.

    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def run(self, variables: Mapping[str, str]) -> int:
        """Run it with further environment variables, to its end.

        Returns:
            Its exit code, or 128 and the signal's number.

        Raises:
            OSError: it could not be started.

        """
        # Ctrl-C reaches it too; how it ends is its own affair, and we still tell what it wrote.
        with handling(_let_pass, "SIGINT"):
            self._process = subprocess.Popen(self._command, env={**os.environ, **variables})
            for number in self._early:
                self._process.send_signal(number)
            code = self._process.wait()
        return 128 - code if code < 0 else code

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: it is for the program, and after its end for us.

        Raises:
            KeyboardInterrupt: it has ended; somebody is tired of waiting for what it wrote.

        """
        if self._process is None:
            self._early.append(number)
        elif self._process.returncode is None:
            self._process.send_signal(number)
        else:
            raise KeyboardInterrupt


def _let_pass(number: int, frame: FrameType | None) -> None:
    """Do nothing. Unlike a signal that is ignored this is not handed down to a program."""


COMMANDS = [exec_]
