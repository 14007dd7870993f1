"""Installing, undoing and uninstalling on a server in a container, as testcontainers starts it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import docker
import psycopg
import pytest
from docker.errors import DockerException
from testcontainers.core.config import testcontainers_config

try:
    from testcontainers.community.postgres import PostgresContainer
except ImportError:  # where it was before
    from testcontainers.postgres import PostgresContainer

from tests.support.state import assert_same, snapshot

pytestmark = [pytest.mark.container, pytest.mark.slow]

#: A name on the public registry, unless the environment names an image that is here.
IMAGE = os.environ.get("AGENTUNDO_CONTAINER_IMAGE", "postgres:18-alpine")
#: Set where containers are known to work: nothing is skipped then.
REQUIRED = os.environ.get("AGENTUNDO_CONTAINERS") == "required"


def _lacking() -> str | None:
    """Return why there can be no container here; None if there can."""
    try:
        with closing(docker.from_env()) as client:
            client.ping()
            if not client.images.list(IMAGE):
                client.images.pull(IMAGE)
    except DockerException as error:
        return f"no Docker daemon with the image {IMAGE}: {error}"
    return None


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """Start a container; return the DSN of its superuser."""
    # The library leaves its socket open when nobody answers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lacking = _lacking()
        gc.collect()
    if lacking and REQUIRED:
        pytest.fail(lacking)
    if lacking:
        pytest.skip(lacking)
    # It would be one more image, and the container is removed below in any case.
    testcontainers_config.ryuk_disabled = True
    running = PostgresContainer(IMAGE, driver=None)
    with closing(running.get_docker_client().client), running:
        yield running.get_connection_url()


def agentundo(dsn: str, *arguments: str) -> Any:
    """Run a command, which must succeed; return what it prints with --json."""
    done = subprocess.run(
        [sys.executable, "-m", "pyagentundo", *arguments],
        env={**os.environ, "AGENTUNDO_DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def test_there_and_back(container: str) -> None:
    with psycopg.connect(container, autocommit=True) as conn:
        conn.execute("create table public.deals (id text primary key, stage text, amount numeric)")
        conn.execute("insert into public.deals values ('D-881', 'Open', 1.0), ('D-882', 'Open', 2)")
        before = snapshot(conn, "public.deals")

        agentundo(container, "install")
        agentundo(container, "track", "public.deals")
        with conn.transaction():
            conn.execute("select agentundo.tag('call-1', actor => 'sales-bot')")
            conn.execute("update public.deals set stage = 'Won', amount = 1.00 where id = 'D-881'")
            conn.execute("delete from public.deals where id = 'D-882'")
        after = snapshot(conn, "public.deals")
        assert before != after

        planned = agentundo(container, "plan", "call-1", "--rows", "--json")["rows"]
        assert sorted((row["action"], row["status"], row["key"]["id"]) for row in planned) == [
            ("insert", "ok", "D-882"),
            ("update", "ok", "D-881"),
        ]
        done = agentundo(container, "revert", "call-1", "--json", "--by", "dana")
        assert done["status"] == "reverted"
        assert_same(before, snapshot(conn, "public.deals"))
        assert agentundo(container, "redo", "call-1", "--json")["status"] == "redone"
        assert_same(after, snapshot(conn, "public.deals"))
        agentundo(container, "revert", "call-1", "--json")

        agentundo(container, "uninstall", "--yes")
        assert_same(before, snapshot(conn, "public.deals"))
        left = conn.execute("select nspname from pg_namespace where nspname ~ '^agentundo'")
        assert left.fetchall() == []
