"""Who takes part in a race: people and agents who write, and those who take back.

Writers lock the rows of a transaction from the highest key to the lowest, so they never deadlock
with each other. A revert locks them from the lowest to the highest: each of more than one row
crosses it.
"""

from __future__ import annotations

from typing import Any

from tests.races.scheduler import Actor, Deed, Write
from tests.support.undo import Connection, Result, plan, redo, revert, tag

#: Few rows, so that all meet on them; on the first of them more often than on the others.
HOT, KEYS = 5, 24
#: What the writers count on; `touches` shows whether the trigger has fired.
TABLES = """
create table deals (id int primary key, stage text, amount int, touches int, token text not null);
insert into deals select n, 'New', 100 * n, 0, 'start#' || n from generate_series(1, 24) n;
create table ledger (id int primary key, a int, a_token text, p int, p_token text);
insert into ledger select n, 0, 'start#' || n, 0, 'start#' || n from generate_series(1, 12) n;
create table folders (id int primary key, token text not null);
create table papers (id int primary key, folder int references folders, token text not null);
insert into folders select n, 'start#' || n from generate_series(1, 4) n;
insert into papers select n, n, 'start#' || n from generate_series(1, 3) n;
"""
#: A trigger that a revert has to silence; it would change rows that go back.
NOISY = """
create function touch() returns trigger language plpgsql as
$$ begin new.touches := old.touches + 1; return new; end $$;
create trigger touch before update on deals for each row execute function touch();
"""


def make_tables(conn: Connection, *, capture: str = "all", noisy: bool = False) -> None:
    """Make the tables of a race, tracked."""
    conn.execute(TABLES.encode())
    if noisy:
        conn.execute(NOISY)
    for table in ("deals", "ledger", "folders", "papers"):
        conn.execute("select agentundo.track(%s::regclass, %s)", [table, capture])


class Writer(Actor):
    """A person, or an agent under a tag of its own for each transaction.

    Args:
        name: also the first part of its tags or tokens.
        seed: of the whole race.
        agent: whether it tags what it writes.
        fields: the parts of the database that it writes to, one of them in each transaction.

    """

    kind = "write"

    def __init__(
        self,
        name: str,
        seed: object,
        *,
        agent: bool,
        fields: tuple[str, ...] = ("deals", "deals", "ledger", "family"),
    ) -> None:
        super().__init__(name, seed)
        self.agent = agent
        self.fields = fields
        self._tokens = 0

    def act(self, deed: Deed) -> None:
        """Write some rows, most of the time for good."""
        self.pause(0.1)  # else nothing would be left as an agent made it
        field = self.random.choice(self.fields)
        self.begin(deed)
        if self.agent:
            deed.tag = f"{field[0]}:{self.name}:{self.number}"
            if self.random.random() < 0.1:
                deed.tag = f"{field[0]}:shared:{self.random.randrange(3)}"
            tag(self.conn, deed.tag)
        getattr(self, f"write_{field}")(deed)
        self.pause()
        self.finish(deed)

    def finish(self, deed: Deed) -> None:
        """End the transaction; what is committed under a tag may be taken back from now on."""
        self.end(deed, commit=self.random.random() < 0.9)
        if deed.tag and deed.outcome == "committed" and deed.writes:
            self.race.written.append(deed.tag)

    def token(self) -> str:
        """Return what no other write has."""
        self._tokens += 1
        return f"{self.name}#{self._tokens}"

    def write(self, deed: Deed, table: str, operation: str, query: str, *values: Any) -> None:
        """Run a statement that returns key and token of each row; some are taken back at once."""
        regretted = self.random.random() < 0.08
        if regretted:
            self.conn.execute("savepoint s")
        found = self.conn.execute(query.encode(), values).fetchall()
        if regretted:
            self.conn.execute("rollback to s")
        else:
            deed.writes += [Write(table, operation, key, token) for key, token in found]
        self.pause()

    def write_deals(self, deed: Deed) -> None:
        """Write one to three deals, from the highest key to the lowest."""
        most = HOT if self.random.random() < 0.4 else KEYS
        chosen = self.random.sample(range(1, most + 1), self.random.choice((1, 1, 2, 3)))
        keys = sorted(chosen, reverse=True)
        kind, token = self.random.random(), self.token()
        if kind < 0.2:
            query = (
                "with k as (select id from deals where id = any (%s) order by id desc for update)"
                " update deals d set stage = 'all', amount = amount + 1, token = %s"
                " from k where d.id = k.id returning d.id, d.token"
            )
            self.write(deed, "deals", "U", query, keys, token)
            return
        for key in keys:
            self.write_deal(deed, key)

    def write_deal(self, deed: Deed, key: int) -> None:
        """Update, delete or insert one deal."""
        kind, token = self.random.random(), self.token()
        if kind < 0.7:
            query = "update deals set stage = %s, amount = amount + 7, token = %s where id = %s"
            self.write(deed, "deals", "U", query + " returning id, token", "Won", token, key)
        elif kind < 0.82:
            query = "delete from deals where id = %s returning id, token"
            self.write(deed, "deals", "D", query, key)
        else:
            query = (
                "insert into deals (id, stage, amount, touches, token) values (%s, 'New', 1, 0, %s)"
                " on conflict do nothing returning id, token"
            )
            self.write(deed, "deals", "I", query, key, token)

    def write_ledger(self, deed: Deed) -> None:
        """Write one half of some rows: agents have theirs, people have theirs."""
        half = "a" if self.agent else "p"
        for key in sorted(self.random.sample(range(1, 13), 2), reverse=True):
            query = (
                f"update ledger set {half} = {half} + 1, {half}_token = %s where id = %s"
                f" returning id, {half}_token"
            )
            self.write(deed, "ledger", "U", query, self.token(), key)

    def write_family(self, deed: Deed) -> None:
        """Write one row only: foreign keys lock others in an order of their own."""
        kind, token, random = self.random.random(), self.token(), self.random
        parent, child = random.randint(1, 4), random.randint(1, 8)
        if kind < 0.2:
            query = "insert into folders values (%s, %s) on conflict do nothing returning id, token"
            self.write(deed, "folders", "I", query, parent, token)
        elif kind < 0.4:
            query = "delete from folders where id = %s returning id, token"
            self.write(deed, "folders", "D", query, parent)
        elif kind < 0.5:
            query = "update folders set token = %s where id = %s returning id, token"
            self.write(deed, "folders", "U", query, token, parent)
        elif kind < 0.75:
            query = (
                "insert into papers values (%s, %s, %s) on conflict do nothing returning id, token"
            )
            self.write(deed, "papers", "I", query, child, parent, token)
        elif kind < 0.85:
            query = "delete from papers where id = %s returning id, token"
            self.write(deed, "papers", "D", query, child)
        else:
            query = "update papers set folder = %s, token = %s where id = %s returning id, token"
            self.write(deed, "papers", "U", query, parent, token, child)


class Undoer(Actor):
    """Takes back what was committed a moment ago, or does it again.

    Args:
        name: of the actor.
        seed: of the whole race.
        plans: whether some look at the plan before.

    """

    kind = "undo"
    leads = True

    def __init__(self, name: str, seed: object, *, plans: bool = True) -> None:
        super().__init__(name, seed)
        self._plans = plans

    def act(self, deed: Deed) -> None:
        """Revert one to three tags, or redo one."""
        recent: list[str] = []
        while not recent and not self.race.done.is_set():
            self.pause()
            # The other half of the ledger is the people's: merge leaves it alone.
            merge, undo = self.random.random() < 0.25, self.random.random() < 0.85
            known = self.race.written if undo else self.race.taken
            recent = [name for name in known if name.startswith("l:") == merge][-8:]
        if not recent:
            deed.outcome, deed.mode = "rolled back", "idle"
            return
        count = self.random.choice((1, 1, 2, 3)) if undo else 1
        mode = "abort" if merge else self.random.choice(("abort", "abort", "skip"))
        deed.aim = tuple(sorted({self.random.choice(recent) for _ in range(count)}))
        deed.mode = f"{mode}{' merge' if merge else ''}{'' if undo else ' redo'}"
        self.begin(deed)
        if self._plans and self.random.random() < 0.2:
            plan(self.conn, deed.aim, on_conflict=mode, merge=merge)
            self.pause()
        deed.result = self.call(deed, undo=undo, on_conflict=mode, merge=merge)
        self.pause()
        self.end(deed, commit=self.random.random() < 0.9)
        if deed.outcome == "committed" and undo and deed.result.status == "reverted":
            self.race.taken += deed.aim

    def call(self, deed: Deed, *, undo: bool, **arguments: Any) -> Result:
        """Call what was chosen."""
        if undo:
            return revert(self.conn, deed.aim, **arguments)
        return redo(self.conn, deed.aim[0], **arguments)
