"""``python -m pyagentundo``."""

from pyagentundo.cli import main

main(prog_name="agentundo")
