"""Migrations as Alembic writes them, run by Alembic as the owner of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from tests.conftest import Connection, MakeRole
from tests.support import moving
from tests.support.migrating import FILL, Migrated, assert_survives
from tests.support.there_and_back import run

pytestmark = pytest.mark.core

_TABLES = (
    "create type stage as enum ('Open', 'Won', 'Lost')",
    "create table deals (id serial primary key, stage stage not null default 'Open',"
    " owner varchar(20), amount int, closed timestamp, slug text)",
    "create index ix_deals_slug on deals (slug)",
    "create table notes (id serial primary key, body text,"
    " deal_id int not null constraint fk_notes_deal references deals (id) on delete cascade)",
)
Migration = Callable[[Operations], None]


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
    with conn.transaction():
        run(conn, f"grant create on schema public to {owner}", f"set local role {owner}", *_TABLES)
        run(conn, *FILL)


def migrator(owner: str, upgrade: Migration) -> Callable[[Connection], None]:
    """Return what runs an upgrade in the database of a connection, in one transaction."""

    def migrate(conn: Connection) -> None:
        info = conn.info
        address = sa.URL.create(
            "postgresql+psycopg",
            username=owner,
            database=info.dbname,
            query={"host": info.host, "port": str(info.port)},
        )
        engine = sa.create_engine(address, poolclass=sa.NullPool)
        with engine.begin() as connection:
            # Where a value is converted, nobody else's clock may decide.
            connection.execute(sa.text("set local timezone = 'Asia/Tokyo'"))
            with Operations.context(MigrationContext.configure(connection)) as op:
                upgrade(op)

    return migrate


# What a migration does ---------------------------------------------------------------------------


def enum_replaced(op: Operations) -> None:
    sa.Enum("Open", "Won", "Lost", "New", name="stage_new").create(op.get_bind())
    op.alter_column("deals", "stage", server_default=None)
    new = sa.Enum(name="stage_new")
    op.alter_column("deals", "stage", type_=new, postgresql_using="stage::text::stage_new")
    op.execute("drop type stage")
    op.execute("alter type stage_new rename to stage")
    op.alter_column("deals", "stage", server_default="New")


def enum_made_a_text(op: Operations) -> None:
    op.alter_column("deals", "stage", server_default=None)
    op.alter_column("deals", "stage", type_=sa.String(10), postgresql_using="stage::text")
    op.execute("drop type stage")


def key_widened(op: Operations) -> None:
    op.alter_column("notes", "deal_id", type_=sa.BigInteger())
    op.alter_column("deals", "id", type_=sa.BigInteger())
    op.execute("alter sequence deals_id_seq as bigint")


def number_widened(op: Operations) -> None:
    op.alter_column("deals", "amount", type_=sa.Numeric(12, 2))
    op.alter_column("deals", "owner", type_=sa.Text())


def number_made_a_text(op: Operations) -> None:
    op.alter_column("deals", "amount", type_=sa.Text(), postgresql_using="amount::text")


def time_with_a_zone(op: Operations) -> None:
    kind = sa.DateTime(timezone=True)
    op.alter_column("deals", "closed", type_=kind, postgresql_using="closed at time zone 'UTC'")


def text_made_an_array(op: Operations) -> None:
    kind = sa.ARRAY(sa.Text())
    op.alter_column("deals", "slug", type_=kind, postgresql_using="string_to_array(slug, ',')")


def table_renamed(op: Operations) -> None:
    op.rename_table("deals", "offers")
    op.execute("alter sequence deals_id_seq rename to offers_id_seq")
    op.execute("alter index deals_pkey rename to offers_pkey")


def column_renamed(op: Operations) -> None:
    op.alter_column("deals", "owner", new_column_name="person")
    op.alter_column("deals", "slug", new_column_name="owner")


def constraint_renamed(op: Operations) -> None:
    op.execute("alter table deals rename constraint deals_pkey to pk_deals")
    op.execute("alter table notes rename constraint fk_notes_deal to fk_notes_deal_id_deals")


def foreign_key_replaced(op: Operations) -> None:
    op.drop_constraint("fk_notes_deal", "notes", type_="foreignkey")
    op.create_foreign_key("fk_new", "notes", "deals", ["deal_id"], ["id"], ondelete="RESTRICT")


def column_added_with_a_default_for_now(op: Operations) -> None:
    column = sa.Column("region", sa.String(10), nullable=False, server_default="eu")
    op.add_column("deals", column)
    op.alter_column("deals", "region", server_default=None)


def column_added_and_filled(op: Operations) -> None:
    op.add_column("deals", sa.Column("region", sa.String(10)))
    op.execute("update deals set region = 'eu'")
    op.alter_column("deals", "region", nullable=False)


def column_filled_and_made_not_null(op: Operations) -> None:
    op.execute("update deals set closed = '2026-01-01' where closed is null")
    op.alter_column("deals", "closed", nullable=False)


def column_computed(op: Operations) -> None:
    op.add_column("deals", sa.Column("twice", sa.Integer(), sa.Computed("amount * 2")))


def index_made_unique(op: Operations) -> None:
    op.drop_index("ix_deals_slug", table_name="deals")
    op.create_index("ix_deals_slug", "deals", ["slug"], unique=True)
    op.create_check_constraint("ck_deals_amount", "deals", "amount > 0")


#: What becomes of the agent's rows if former values do not fit a column any more.
_RETYPED = Migrated(
    first=dict.fromkeys((1, 3, 6), "schema_changed"),
    second=dict.fromkeys((2, 5), "schema_changed"),
)
CASES: dict[Migration, Migrated] = {
    enum_replaced: Migrated(),
    enum_made_a_text: Migrated(),
    key_widened: Migrated(),
    number_widened: Migrated(writes=("update deals set amount = 0.5 where id = 4",)),
    number_made_a_text: _RETYPED,
    time_with_a_zone: _RETYPED,
    text_made_an_array: _RETYPED,
    table_renamed: Migrated(
        deals="offers",
        writes=("update offers set owner = 'later' where id in (1, 4)", "delete from notes"),
    ),
    column_renamed: Migrated(),
    constraint_renamed: Migrated(),
    foreign_key_replaced: Migrated(),
    # The row that comes back has no region, and there is no default any more.
    column_added_with_a_default_for_now: Migrated(first={3: "constraint"}),
    column_added_and_filled: Migrated(
        first={1: "row_rewritten", 3: "constraint", 6: "row_rewritten"},
        second={5: "row_rewritten"},
        writes=("update deals set owner = 'later' where id = 4", "delete from notes"),
    ),
    column_filled_and_made_not_null: Migrated(),
    column_computed: Migrated(),
    index_made_unique: Migrated(),
}


#: Those of which capture has to know; the others leave it as it is.
FOLLOWED = (
    enum_replaced,
    number_made_a_text,
    table_renamed,
    column_renamed,
    column_added_with_a_default_for_now,
)


@pytest.fixture
def tracked(db: Connection, owner: str) -> Connection:
    """Make and track the tables."""
    _make(db, owner)
    run(db, "select agentundo.track('deals')", "select agentundo.track('notes')")
    return db


@pytest.mark.parametrize("upgrade", CASES, ids=lambda upgrade: upgrade.__name__)
def test_tracked_tables_survive_migrations_of_alembic(
    tracked: Connection, twin: Connection, owner: str, upgrade: Migration
) -> None:
    assert_survives(tracked, twin, migrator(owner, upgrade), CASES[upgrade], followed=True)


@pytest.mark.parametrize("upgrade", FOLLOWED, ids=lambda upgrade: upgrade.__name__)
def test_sync_follows_migrations_of_alembic_where_no_event_trigger_does(
    tracked: Connection, twin: Connection, owner: str, upgrade: Migration
) -> None:
    run(tracked, "drop event trigger agentundo_ddl", "drop event trigger agentundo_drop")
    assert_survives(tracked, twin, migrator(owner, upgrade), CASES[upgrade], followed=False)
