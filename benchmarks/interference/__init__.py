"""What ways to undo destroy, and what they bring back, when others wrote in between.

``python -m benchmarks.interference --histories 1000 --seed 1 --json out.json`` generates
histories: rows; an agent's invocation that writes some of them; then people and other agents, who
write the same rows and columns. Every policy is asked to undo the invocation, in a transaction
that is rolled back, so that all of them find the same rows and the same row versions: each mode of
``agentundo.revert`` with each capture mode, and for comparison ways that need no history of ours.
Exits with 1 if an aim is missed, and says which.

What is damage, and what could have gone back, is decided from the history alone, which says who
wrote which cell in which order (oracle.py); the tables are only looked at afterwards.

Written. A statement writes those cells whose values it changes. If it changes none of a row's,
it counts as a write of the whole row: it was meant, and no image tells which column. A column that
a statement sets to the value that it had, beside one that it changes, does not count: mappers
save whole rows.

Damage is any difference between the rows before and after the undo, unless it is the invocation's
own work taken back:

- a row of others is gone, or a row of the agent's that others have written to;
- a cell differs that others wrote last, if only the same value once more, or there and back;
- a cell that the agent wrote last holds what it held neither before nor under the agent;
- a counter (here: a column that everybody only adds to) is not what it was, less what the
  invocation itself added;
- a row is back that others deleted, or that the agent deleted and at whose key others have made or
  deleted another since;
- a row is there that nobody has made.

So children that a cascade takes along, or whose reference is set to NULL, are damage.

Eligible is each cell whose value the invocation changed in the end, each row that it made, each
row that it deleted, if

- nobody has written that cell (of a counter: whatever others added), or that row, since;
- the row is still there, under its key; at the key of a deleted one nobody has made or deleted
  another since;
- it breaks no key, unique value or reference together with rows that stay as they are.

It is made if the cell, or row, is what it was before the invocation.

Where this can be argued about:

- Rows are their primary keys. A row that others gave another key is a row that they deleted and
  another that they made: what the agent wrote to it is not eligible.
- Rows that pass a key on to each other within the invocation are one thing: eligible only if nobody
  has written to any of them.
- Cells are counted one by one: of two columns that the agent wrote, one is eligible though somebody
  wrote the other. Who takes a row for the unit may call that one neither eligible nor made.
- ``merge`` without ``skip`` refuses the whole invocation where one row cannot go back, as it is
  asked to. So it is held to the histories in which everything can go back.
- ``cascade`` is asked to take along other agents' work that stands in the way: that is no damage,
  in whatever row. People's is.
- Some damage the capture mode ``agent`` cannot foresee, since a person's write left no trace: a row
  made and deleted again, or what a person wrote between two agents and left as it was. It counts
  as damage, but misses no aim of ``agent``.
- ``force`` is asked to destroy later work, and shown for the record.
"""
