"""What the functions and views of the schema answer, as frozen types.

One class for each; its fields are the columns, in their order. Queries name these columns, so a
newer schema may add some without an older package noticing. Values of rows are JSON as the server
shows it: numbers that are not whole come as `Decimal`, never as float, texts of other types as str,
and what is nested more than 200 levels deep as the text of its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Invocation:
    """One tool call: what the view ``agentundo.invocations`` says of it.

    Attributes:
        id: its id.
        run: the chain of calls that it belongs to.
        step: its place in the run, from 1.
        scope: the tenant, campaign or project.
        actor: the agent.
        on_behalf_of: the person for whom the agent acted.
        role: the database role that wrote.
        tool: the tool's name.
        tier: ``critical``, ``high``, ``medium`` or ``low``.
        model: the language model.
        status: ``pending``, ``committed``, ``failed``, ``reverted``, ``partially_reverted``.
        recorded: False when it is known by its changes alone.
        input: what the tool was asked, as recorded.
        result: what it answered, as recorded.
        error: why it failed.
        meta: whatever else was recorded.
        rows: how many rows it wrote, counted once per statement.
        relations: the tracked tables that it wrote.
        uncovered: tables that it wrote and that are not tracked; None when it was not recorded.
        created_at: when it was recorded, or wrote first.
        committed_at: when it was marked as committed.
        first_write_at: when it wrote first.
        last_write_at: when it wrote last.
        reverted_at: when the revert that stands was made.
        reverted_by: the person who decided it.
        revert_reason: why.
        revert_id: the revert's own id.
        undoable: whether a revert would find anything to take back.
        undo_by: until when that is possible: a purge may delete it from then on (not while it is
            held), or an effect cannot be made up for any more. Null: nothing limits it, or it is
            not undoable.

    """

    id: str
    run: str | None
    step: int | None
    scope: str | None
    actor: str | None
    on_behalf_of: str | None
    role: str | None
    tool: str | None
    tier: str | None
    model: str | None
    status: str
    recorded: bool
    input: Any
    result: Any
    error: str | None
    meta: Any
    rows: int
    relations: tuple[str, ...]
    uncovered: tuple[str, ...] | None
    created_at: datetime | None
    committed_at: datetime | None
    first_write_at: datetime | None
    last_write_at: datetime | None
    reverted_at: datetime | None
    reverted_by: str | None
    revert_reason: str | None
    revert_id: str | None
    undoable: bool
    undo_by: datetime | None


@dataclass(frozen=True, slots=True)
class Run:
    """A chain of tool calls: what the view ``agentundo.runs`` says of it.

    Attributes:
        run: its id.
        scope: the tenant, campaign or project of its calls.
        actor: the agent.
        on_behalf_of: the person for whom the agent acted.
        invocations: how many calls it has.
        rows: how many rows they wrote.
        first_at: when it began.
        last_at: when it was last heard of.
        status: ``pending``, ``committed``, ``failed``, ``reverted``, ``partially_reverted``.
        undoable: whether a revert would find anything to take back.

    """

    run: str
    scope: str | None
    actor: str | None
    on_behalf_of: str | None
    invocations: int
    rows: int
    first_at: datetime | None
    last_at: datetime | None
    status: str
    undoable: bool


@dataclass(frozen=True, slots=True)
class Undoable:
    """A line behind an undo button: a run or an invocation.

    Attributes:
        kind: ``run`` or ``invocation``.
        id: what `revert_run` or `revert` takes.
        run: the run that an invocation belongs to.
        step: its place there.
        scope: the tenant, campaign or project.
        actor: the agent.
        on_behalf_of: the person for whom the agent acted.
        tools: the names of the tools used.
        rows: how many rows were written.
        last_at: when it was last heard of.
        undoable: whether a revert would find anything to take back.
        why_not: ``already_reverted``, ``not_committed``, ``nothing_to_revert`` or ``expired``.

    """

    kind: str
    id: str
    run: str | None
    step: int | None
    scope: str | None
    actor: str | None
    on_behalf_of: str | None
    tools: tuple[str, ...]
    rows: int
    last_at: datetime | None
    undoable: bool
    why_not: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Conflict(Mapping[str, Any]):
    """A row that cannot go back without destroying or breaking something later.

    Also a mapping of those of its fields that are known, and equal to one.

    Attributes:
        relation: the table.
        key: the row's key columns; None for a table without a key.
        reason: ``row_changed``, ``row_rewritten``, ``row_deleted``, ``row_exists``,
            ``unique_taken``, ``has_dependents``, ``missing_parent``, ``schema_changed``,
            ``constraint``, ``not_visible`` or ``erased``.
        columns: the columns concerned.
        invocation: the call whose change cannot be taken back.
        constraint: the constraint that stands in the way.
        in_the_way: the table that this constraint is of.

    """

    relation: str | None = None
    key: dict[str, Any] | None = None
    reason: str | None = None
    columns: tuple[str, ...] | None = None
    invocation: str | None = None
    constraint: str | None = None
    in_the_way: str | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Conflict:
        """Make one of what DETAIL or a plan says; what this version does not know is left out."""
        known = {one.name: found.get(one.name) for one in fields(cls)}
        if known["columns"] is not None:
            known["columns"] = tuple(known["columns"])
        return cls(**known)

    def __getitem__(self, name: str) -> Any:
        if name not in self._known():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def _known(self) -> list[str]:
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What a revert would do to one row.

    Attributes:
        step: the place of the invocation in its run.
        invocation: the last call of those to be undone that wrote the row.
        relation: the table.
        key: the row's key columns; None for a table without a key.
        action: ``insert`` (bring back), ``delete`` (take away), ``update`` (put back), ``none``.
        status: ``ok``, ``merge``, ``skip``, ``conflict`` or ``done``.
        reason: what stands in the way, see `Conflict.reason`.
        columns: the columns in conflict, or those that a merge puts back.
        before: the row before the call; columns dropped since are in it and not in `current`, and
            do not come back.
        after: the row as the call left it.
        current: the row now.
        detail: what else is known, for example ``basis``.

    """

    step: int | None
    invocation: str
    relation: str
    key: dict[str, Any] | None
    action: str
    status: str
    reason: str | None
    columns: tuple[str, ...] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    current: dict[str, Any] | None
    detail: dict[str, Any] | None

    @property
    def conflict(self) -> Conflict:
        """What stands in this row's way."""
        return Conflict(
            relation=self.relation,
            key=self.key,
            reason=self.reason,
            columns=self.columns,
            invocation=self.invocation,
            constraint=(self.detail or {}).get("constraint"),
            in_the_way=(self.detail or {}).get("relation"),
        )


@dataclass(frozen=True, slots=True)
class PlanCount:
    """Rows of a plan that share table, action and status.

    Attributes:
        relation: the table.
        action: see `PlanRow.action`.
        status: see `PlanRow.status`.
        rows: how many.
        conflicts: the first 20 of those in conflict or to be skipped.

    """

    relation: str
    action: str
    status: str
    rows: int
    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that left the database under an invocation: a mail, a payment, a booking.

    Attributes:
        id: its number.
        invocation: the call.
        name: what it is.
        kind: ``compensate`` (something can make up for it), ``none`` (nothing can), ``unknown``.
        summary: one sentence for people.
        undo_by: until when it can be made up for.
        side_effect: what making up for it would do besides.
        cost: what it would cost.
        remedy: how to.
        handler: what does it.
        at: when it was recorded.

    """

    id: int
    invocation: str
    name: str
    kind: str
    summary: str | None
    undo_by: datetime | None
    side_effect: str | None
    cost: str | None
    remedy: str | None
    handler: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Plan(Sequence[PlanRow]):
    """What a revert with the same arguments would do; a sequence of its rows.

    Attributes:
        rows: all of them, the newest change first.
        effects: what left the database and stays; None when the role may not know.
        uncovered: tables that the calls wrote and that are not tracked, so they stay as they are.
            Only of recorded calls it is known; None when the role may not read the log, as an app.

    """

    rows: tuple[PlanRow, ...]
    effects: tuple[Effect, ...] | None = None
    uncovered: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """The rows for which the revert would be refused as UN001."""
        return tuple(row.conflict for row in self.rows if row.status == "conflict")

    @property
    def skipped(self) -> tuple[Conflict, ...]:
        """The rows that the revert would leave as they are."""
        return tuple(row.conflict for row in self.rows if row.status == "skip")

    @property
    def feasible(self) -> bool:
        """Whether the revert would go through: nothing is in conflict."""
        return not any(row.status == "conflict" for row in self.rows)


@dataclass(frozen=True, slots=True)
class RevertResult:
    """What a revert or redo did.

    Attributes:
        status: ``reverted``, ``partially_reverted``, ``already_reverted``, ``nothing_to_revert``
            or ``not_committed``.
        revert_id: the id of the revert, itself an invocation that `redo` takes back.
        invocations: the calls of which something was taken back.
        rows_deleted: rows taken away.
        rows_inserted: rows brought back.
        rows_updated: rows put back.
        rows_skipped: rows left as they are: those in conflict, and those that depend on them.
        conflicts: those of them that were in conflict themselves.

    """

    status: str
    revert_id: str | None
    invocations: tuple[str, ...]
    rows_deleted: int
    rows_inserted: int
    rows_updated: int
    rows_skipped: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One column of one row that an invocation changed.

    Attributes:
        step: the place of the invocation in its run.
        invocation: the call.
        relation: the table.
        key: the row's key columns.
        action: ``insert``, ``update`` or ``delete``.
        column_name: the column.
        before: its value before; None for an inserted row.
        after: its value after; None for a deleted row.

    """

    step: int | None
    invocation: str
    relation: str
    key: dict[str, Any] | None
    action: str
    column_name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One captured version of a row.

    Attributes:
        change: the number of the change; later writes of a row have higher ones.
        version: an opaque string, equal to `row_version` while the row is as this write left it;
            None where versions cannot be trusted.
        invocation: the call that wrote it; None for a person's write.
        run: its run.
        actor: the agent.
        role: the database role; None in a scope that the caller does not see.
        operation: ``insert``, ``update`` or ``delete``.
        at: when.
        columns: the columns that changed.
        before: the row before.
        after: the row after.

    """

    change: int
    version: str | None
    invocation: str | None
    run: str | None
    actor: str | None
    role: str | None
    operation: str
    at: datetime
    columns: tuple[str, ...]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an invocation.

    Attributes:
        event: its number. Numbers are given before commit: one may become visible after a higher.
        at: when.
        kind: for example ``invocation_reverted`` or ``invocation_redone``.
        source: who says so; ``system`` for the schema itself.
        scope: the tenant, campaign or project.
        invocation: the call.
        run: its run.
        step: its place there.
        tool: the tool's name.
        actor: the agent.
        payload: the rest: ``role``, whose session did it, and for a revert ``by`` and why.

    """

    event: int
    at: datetime
    kind: str
    source: str
    scope: str | None
    invocation: str | None
    run: str | None
    step: int | None
    tool: str | None
    actor: str | None
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that would make a promise untrue.

    Attributes:
        severity: ``error``, ``warning`` or ``info``.
        object: the table or other thing concerned.
        problem: what is wrong.
        hint: what to do.

    """

    severity: str
    object: str | None
    problem: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a call stands after it was recorded.

    Attributes:
        id: its id.
        status: ``pending``, or that of the call made before under the same id.
        created: False when this very call was made before: do not write again.
        result: what it answered then.
        xid: the transaction that recorded it, as text; not for showing.

    """

    id: str
    status: str
    created: bool
    result: Any
    xid: str = field(default="", repr=False, compare=False)


def columns_of(cls: type[Any]) -> str:
    """Return the columns of a type as a select list."""
    return ", ".join(f'"{one.name}"' for one in fields(cls))


def row_of(cls: type[T]) -> Callable[[Any], Callable[[Sequence[Any]], T]]:
    """Return a row factory: the columns selected are the fields, arrays become tuples."""
    arrays = [str(one.type).startswith("tuple") for one in fields(cls)]  # type: ignore[arg-type]

    def make(values: Sequence[Any]) -> T:
        return cls(
            *(
                tuple(value) if is_array and value is not None else value
                for value, is_array in zip(values, arrays, strict=False)
            )
        )

    return lambda _cursor: make


def count_of(values: Sequence[Any]) -> PlanCount:
    """Make a `PlanCount` of what ``agentundo.plan_summary`` returned."""
    relation, action, status, rows, conflicts = values
    found = tuple(Conflict.of({"relation": relation, **one}) for one in conflicts or ())
    return PlanCount(relation, action, status, rows, found)
