"""Why a row cannot go back, in words."""

from __future__ import annotations

#: What the reasons of a plan mean. Those of `WRITTEN` are somebody's writes.
REASONS = {
    "row_changed": "changed since",
    "row_rewritten": "written again since, with the values that the call left,",
    "row_deleted": "deleted since",
    "row_exists": "a row with this key was made since",
    "unique_taken": "another row has its unique value now",
    "has_dependents": "other rows refer to it",
    "missing_parent": "the row that it refers to is not there",
    "schema_changed": "its former values do not fit the table any more",
    "constraint": "a constraint does not let it back",
    "not_visible": "row-level security of the table applies to you",
    "erased": "it was erased and can never go back",
}
#: Said instead where the table itself is no more.
TABLE_GONE = "the table is gone"
WRITTEN = ("row_changed", "row_rewritten", "row_deleted", "row_exists")
#: What later calls may have caused, beside `WRITTEN`. A constraint is in the way, and its table.
CAUSED = ("unique_taken", "has_dependents", "missing_parent")
#: The same in words, where the other table is known.
OF_TABLE = {
    "has_dependents": "rows of {} refer to it",
    "missing_parent": "the row of {} that it refers to is not there",
}
