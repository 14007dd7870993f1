"""``python -m pyagentundo.cli``."""

from pyagentundo.cli import main

main(prog_name="agentundo")
