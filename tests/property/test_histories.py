"""Random histories, judged: judge.py says what must hold; __main__.py plays many more of them."""

from __future__ import annotations

import pytest

from tests.property.judge import Verdicts
from tests.property.running import Failure, stage

#: Of the first history; each has the next one.
SEED = 20_000
PARTS = 25
EACH = 20


@pytest.mark.whole
@pytest.mark.parametrize("part", range(PARTS))
def test_undo_is_sound_complete_and_minimal(dsn: str, part: int) -> None:
    total, failures = Verdicts(), []
    with stage(dsn) as on:
        for number in range(EACH):
            found = on.play(SEED + part * EACH + number)
            if isinstance(found, Failure):
                failures.append(str(found))
            else:
                total.add(found)
    assert not failures, "\n\n".join(failures)
    assert total.undos >= EACH, "hardly anything was undone"
    assert total.rows_restored >= EACH
