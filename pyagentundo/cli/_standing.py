"""What the connected role is: which of our roles it is a member of, and what that lets it do."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

# As the database judges callers: membership as it was granted, because pg_has_role() calls a
# superuser a member of every role. Who may act for the owner of our schema may what operators may.
_KINDS = """\
with recursive member as (
  select oid from pg_roles where rolname = current_user
  union
  select a.roleid from pg_auth_members a join member m on a.member = m.oid)
select current_user::text as role,
  array(select substr(r.rolname, 11) from member join pg_roles r using (oid)
        where r.rolname ~ '^agentundo_(app|agent|operator|auditor)$') as kinds,
  coalesce((select pg_has_role(current_user, n.nspowner, 'usage') from pg_namespace n
            where n.nspname = 'agentundo'), false) as owner
"""


@dataclass(frozen=True)
class Standing:
    """A role and what it is.

    Attributes:
        role: its name.
        is_operator: it may plan, revert and read anywhere.
        is_auditor: it may read everything.
        is_app: it may plan and revert within a scope.
        is_agent: it is captured whatever it does, and neither reads nor reverts. An operator is
            none, whatever else it is a member of.

    """

    role: str
    is_operator: bool = False
    is_auditor: bool = False
    is_app: bool = False
    is_agent: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether it may plan and revert within a scope and for a person only."""
        return self.is_app and not self.is_operator

    @classmethod
    def of(cls, conn: psycopg.Connection[DictRow]) -> Standing:
        """Ask the server what the connected role is."""
        row = conn.execute(_KINDS).fetchall()[0]
        kinds = row["kinds"]
        operator = row["owner"] or "operator" in kinds
        return cls(
            role=row["role"],
            is_operator=operator,
            is_auditor="auditor" in kinds,
            is_app="app" in kinds,
            is_agent="agent" in kinds and not operator,
        )
