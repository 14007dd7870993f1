"""``completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ["bash", "zsh", "fish"]


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what a shell needs to complete what is typed.

    Commands, options, ids and tables: the latter two come from the database that the environment
    names. Put it into the shell's start-up file.

    \b
    Examples:
      agentundo completion bash >> ~/.bashrc
      agentundo completion zsh >> ~/.zshrc
      agentundo completion fish > ~/.config/fish/completions/agentundo.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choice offers only those that there are
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "agentundo", "_AGENTUNDO_COMPLETE").source())


COMMANDS = [completion]
