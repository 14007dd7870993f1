"""Migrations as Django writes them, run by Django as the owner of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, models
from django.db.backends.postgresql.features import DatabaseFeatures
from django.db.migrations import Migration, operations
from django.db.migrations.state import ProjectState
from django.db.utils import ConnectionHandler

from tests.conftest import Connection, MakeRole
from tests.support import moving
from tests.support.migrating import FILL, Migrated, assert_survives
from tests.support.servers import Server
from tests.support.there_and_back import run

pytestmark = pytest.mark.core

_DEALS = {"db_table": "deals"}
#: What `migrate` has made before: the tables that the agent's calls are about.
INITIAL = [
    operations.CreateModel(
        "Deal",
        [
            ("id", models.AutoField(primary_key=True)),
            ("stage", models.CharField(max_length=20)),
            ("owner", models.CharField(max_length=20, null=True)),
            ("amount", models.IntegerField(null=True)),
            ("closed", models.DateTimeField(null=True)),
            ("slug", models.SlugField(null=True)),
        ],
        options=_DEALS,
    ),
    operations.CreateModel(
        "Note",
        [
            ("id", models.AutoField(primary_key=True)),
            ("body", models.TextField()),
            ("deal", models.ForeignKey("crm.Deal", models.CASCADE)),
        ],
        options={"db_table": "notes"},
    ),
]
Operations = list[Any]


@pytest.fixture(scope="module", autouse=True)
def configured(server: Server) -> None:
    """Configure Django once. The database that its settings name is replaced for each migration."""
    (oldest, *_) = DatabaseFeatures.minimum_database_version
    if server.major < oldest:
        pytest.skip(f"this Django asks for PostgreSQL {oldest}")
    if not settings.configured:
        named = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}}
        settings.configure(INSTALLED_APPS=[], USE_TZ=True, DATABASES=named)
        django.setup()


@pytest.fixture
def owner(make_role: MakeRole) -> str:
    """Create an ordinary role that owns the tables."""
    return make_role()


@pytest.fixture
def twin(bare_dsn: str, owner: str) -> Iterator[Connection]:
    """Connect to a database with the same tables and without agentundo."""
    with moving.opened(bare_dsn) as conn:
        _make(conn, owner)
        yield conn


def _make(conn: Connection, owner: str) -> None:
    run(conn, f"alter database {conn.info.dbname} owner to {owner}")
    run(conn, f"grant create on schema public to {owner}")
    _apply(conn, owner, ProjectState(), INITIAL)
    run(conn, *FILL)


def _apply(conn: Connection, owner: str, state: ProjectState, steps: Operations) -> ProjectState:
    """Apply operations as one migration, in one transaction, in the database of a connection."""
    info = conn.info
    address = {"NAME": info.dbname, "USER": owner, "HOST": info.host, "PORT": str(info.port)}
    wanted = {"default": {"ENGINE": "django.db.backends.postgresql", **address}}
    connections["default"] = database = ConnectionHandler(wanted)["default"]
    migration = Migration("0001", "crm")
    migration.operations = steps
    try:
        with database.schema_editor(atomic=True) as editor:
            return migration.apply(state, editor)
    finally:
        database.close()
        del connections["default"]


def migrator(owner: str, steps: Operations) -> Callable[[Connection], None]:
    """Return what applies a migration to a database in which `INITIAL` has been applied."""

    def migrate(conn: Connection) -> None:
        state = ProjectState()
        for step in INITIAL:
            step.state_forwards("crm", state)
        _apply(conn, owner, state, steps)

    return migrate


_FILLED = Migrated(
    first={1: "row_rewritten", 3: "constraint", 6: "row_rewritten"},
    second={5: "row_rewritten"},
    writes=("update deals set owner = 'later' where id = 4", "delete from notes"),
)
_RETYPED = Migrated(
    first=dict.fromkeys((1, 3, 6), "schema_changed"),
    second=dict.fromkeys((2, 5), "schema_changed"),
)
#: Rows from before do not know a column that came later without a default of the database's own.
_UNKNOWN = Migrated(first={3: "constraint"})

CASES: dict[str, tuple[Operations, Migrated]] = {
    "field added": (
        [operations.AddField("deal", "region", models.CharField(max_length=9, default="eu"))],
        _UNKNOWN,
    ),
    "field added with a default of the database": (
        [operations.AddField("deal", "region", models.CharField(max_length=9, db_default="eu"))],
        Migrated(),
    ),
    "field added, filled and made not null": (
        [
            operations.AddField("deal", "region", models.CharField(max_length=9, null=True)),
            operations.RunSQL("update deals set region = 'eu'"),
            operations.AlterField("deal", "region", models.CharField(max_length=9)),
        ],
        _FILLED,
    ),
    "foreign key added": (
        [
            operations.CreateModel("Person", [("id", models.BigAutoField(primary_key=True))]),
            operations.AddField(
                "deal", "person", models.ForeignKey("crm.Person", models.SET_NULL, null=True)
            ),
        ],
        Migrated(),
    ),
    "many to many added": (
        [
            operations.CreateModel("Tag", [("id", models.BigAutoField(primary_key=True))]),
            operations.AddField("deal", "tags", models.ManyToManyField("crm.Tag")),
        ],
        Migrated(others=("notes", "deals_tags")),
    ),
    "field renamed": ([operations.RenameField("deal", "amount", "worth")], Migrated()),
    "field made longer": (
        [operations.AlterField("deal", "owner", models.TextField(null=True))],
        Migrated(),
    ),
    "field made another type": (
        [operations.AlterField("deal", "amount", models.CharField(max_length=20, null=True))],
        _RETYPED,
    ),
    "field made not null": (
        [
            operations.AlterField(
                "deal", "slug", models.SlugField(default=""), preserve_default=False
            )
        ],
        Migrated(),
    ),
    "field made unique": (
        [operations.AlterField("deal", "slug", models.SlugField(unique=True, null=True))],
        Migrated(),
    ),
    "key made bigger": (
        [operations.AlterField("deal", "id", models.BigAutoField(primary_key=True))],
        Migrated(),
    ),
    "model renamed": (
        [
            operations.AlterModelTable("deal", None),
            operations.RenameModel("Deal", "Offer"),
        ],
        Migrated(
            deals="crm_offer",
            writes=("update crm_offer set owner = 'later'", "delete from notes"),
        ),
    ),
    "table renamed": (
        [operations.AlterModelTable("deal", "offers")],
        Migrated(deals="offers", writes=("update offers set owner = 'later'",)),
    ),
    "index and constraint added": (
        [
            operations.AddIndex("deal", models.Index(fields=["owner"], name="by_owner")),
            operations.RenameIndex("deal", new_name="by_person", old_name="by_owner"),
            operations.AddConstraint(
                "deal",
                models.UniqueConstraint(fields=["owner", "slug"], name="one_of_each"),
            ),
        ],
        Migrated(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tracked_tables_survive_migrations_of_django(
    db: Connection, twin: Connection, owner: str, case: str
) -> None:
    _make(db, owner)
    run(db, "select agentundo.track('deals')", "select agentundo.track('notes')")
    steps, expected = CASES[case]
    assert_survives(db, twin, migrator(owner, steps), expected, followed=True)


@pytest.mark.parametrize("case", ["many to many added", "model renamed"])
def test_tables_that_django_adds_to_a_tracked_schema_are_captured(
    db: Connection, twin: Connection, owner: str, case: str
) -> None:
    _make(db, owner)
    run(db, "select agentundo.track_schema('public')")
    steps, expected = CASES[case]
    assert_survives(db, twin, migrator(owner, steps), expected, followed=True)
    untracked = (
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
        " and oid <> all (select relation::regclass from agentundo.tracked)"
    )
    assert db.execute(untracked).fetchall() == []
