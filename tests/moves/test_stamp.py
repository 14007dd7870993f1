"""How a database knows that it is a copy."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Connection
from tests.support import moving
from tests.support.dump import move
from tests.support.moving import COPIED
from tests.support.servers import Server


def test_copy_whose_transaction_has_by_chance_the_number_of_the_stamp(
    db: Connection, dsn: str, server: Server, bare_dsn: str, tmp_path: Path
) -> None:
    """In young clusters numbers are small; a restore in another one can meet the same."""
    story = moving.begin(db)
    script = tmp_path / "chance"
    script.write_text(
        "update agentundo._stamp set own_xmin = pg_current_xact_id()::text::bigint;\n"
    )
    restore = f"psql -X -q -o /dev/null -v ON_ERROR_STOP=1 -1 -d TARGET -f FILE -f {script}"
    move(server, ["pg_dump -f FILE -d SOURCE", restore], dsn, bare_dsn, tmp_path)
    with moving.opened(bare_dsn) as there:
        assert COPIED in moving.errors(there)
        moving.assert_arrived(there, story, "value")
