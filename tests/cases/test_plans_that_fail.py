"""A plan that cannot be made says why in the words of whoever kept it from being made."""

from __future__ import annotations

import psycopg
import pytest

from tests.conftest import Connection
from tests.support.undo import plan
from tests.support.undoing import track, write

pytestmark = pytest.mark.core


@pytest.mark.parametrize("level", ["read committed", "serializable"])
def test_an_error_in_the_function_of_an_index_is_not_taken_for_a_migration(
    db: Connection, level: str
) -> None:
    db.execute(
        "create function g(int) returns int immutable language sql as 'select $1';"
        "create function f(int) returns int immutable language plpgsql as"
        " 'begin return public.g($1); end';"
        "create table t (id int primary key, v int); create unique index on t (f(v));"
        "insert into t values (1, 1), (2, 2)"
    )
    track(db, "t")
    call = write(db, "delete from t where id = 1")
    db.execute("drop function g(int)")
    with db.transaction(force_rollback=True):
        db.execute(f"set transaction isolation level {level}".encode())
        with pytest.raises(psycopg.errors.UndefinedFunction, match=r"public\.g"):
            plan(db, call)
