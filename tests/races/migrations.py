"""Who changes tables, tracking and agentundo itself while others work."""

from __future__ import annotations

from pyagentundo import installer
from tests.races.scheduler import Actor, Deed

#: A table in two partitions; rows never leave theirs.
PARTS = """
create table parts (id int, half int, token text not null, primary key (id, half))
  partition by list (half);
create table parts_0 partition of parts for values in (0);
create table parts_1 partition of parts for values in (1);
insert into parts select n, n % 2, 'start#' || n from generate_series(1, 12) n;
"""


class Migrator(Actor):
    """Alters the table deals, in ways that do not concern what is written there."""

    kind = "ddl"
    leads = True
    #: Each is a whole migration; the next begins when it was committed.
    STEPS: tuple[str, ...] = (
        "alter table deals add column note text default 'n'",
        "alter table deals rename column note to remark",
        "alter table deals alter column amount type bigint",
        "alter table deals drop column remark",
        "alter table deals alter column amount type int",
        "alter table deals rename to contracts; alter table contracts rename to deals",
    )

    def act(self, deed: Deed) -> None:
        """Do the next step, or try the one again that found the table locked for too long."""
        self.pause(0.2)
        done = sum(d.kind == self.kind and d.outcome == "committed" for d in self.race.deeds)
        deed.mode = self.STEPS[done % len(self.STEPS)]
        self.conn.execute("set lock_timeout = '2s'")
        self.conn.execute("begin")
        self.conn.execute(deed.mode.encode())
        self.pause()
        self.end(deed)


class Divider(Migrator):
    """Takes one half of a partitioned table off, and puts it on again."""

    STEPS = (
        "alter table parts detach partition parts_1",
        "alter table parts attach partition parts_1 for values in (1)",
    )


class Keeper(Actor):
    """Tracks, follows, leaves off and begins again; what is written is captured all the time."""

    kind = "keep"
    leads = True

    def act(self, deed: Deed) -> None:
        """Do one of them."""
        self.pause(0.1)
        deed.mode = self.random.choice(("track", "sync", "begin anew"))
        self.conn.execute("begin")
        if deed.mode == "begin anew":
            self.conn.execute("select agentundo.untrack('deals')")
            self.pause()
        if deed.mode == "sync":
            self.conn.execute("select agentundo.sync()")
        else:
            self.conn.execute("select agentundo.track('deals', 'all')")
        self.pause()
        self.end(deed)


class Leaver(Keeper):
    """Untracks, and tracks again a moment later; what is written in between is not captured."""

    def act(self, deed: Deed) -> None:
        """Do the one or the other."""
        deed.mode = "track" if self.tracked(False) else "untrack"
        self.pause(0.02 if deed.mode == "track" else 0.4)
        self.conn.execute(f"select agentundo.{deed.mode}('deals')".encode())
        deed.outcome = "committed"

    def tracked(self, active: bool) -> bool:
        """Return whether the table is tracked, or is not."""
        query = "select from agentundo._tracked where name = 'public.deals' and active = %s"
        return self.conn.execute(query, [active]).rowcount > 0


class Upgrader(Actor):
    """Applies all functions, views and grants again."""

    kind = "upgrade"
    leads = True

    def act(self, deed: Deed) -> None:
        """Upgrade."""
        self.pause(0.2)
        deed.outcome = "unknown"
        installer.upgrade(self.conn)
        deed.outcome = "committed"
