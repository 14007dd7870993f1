"""Every error message of the product is looked for by a test, and says what to do next.

How that is told: by the source alone. A test that looks for a text fails unless the product says
it, so a text in a test is proof that the message is met; what is to be seen is only that there is
one for every message. (To record what the server says while the tests run would show that it was
said, not that anybody looked at it, and would have to be gathered from all workers.) So that no
text counts by accident, it has to have a piece of the message that no other message has
(tests/support/messages.py); docstrings and what is sent to the database do not count.

Messages: in SQL of `agentundo._fail`, `raise exception` and functions that give a reason, in Python
of our exceptions and click's.
"""

from __future__ import annotations

import pytest

from tests.support import messages
from tests.support.messages import Message

#: Do not reach the caller: the revert lets go and begins anew. With what he gets instead.
NEVER_SEEN = {
    "the work changed while it was being locked": "somebody holds rows or tables of this undo",
    "a row changed before it was locked": "somebody holds rows or tables of this undo",
    "it is not a table": "nothing: no kind of relation is left for it",
    "a row came and went while it was being put back": "itself, if lock_timeout is over by then:"
    " a race of two statements that no test can time",
}


def everybody() -> list[Message]:
    return list(messages.of_product())


def test_every_message_is_met_by_a_test() -> None:
    missing = messages.unmet(everybody(), messages.of_tests())
    unknown = [one for one in missing if "…".join(one.parts) not in NEVER_SEEN]
    assert not unknown, "no test looks for\n" + "\n".join(str(one) for one in unknown)


def test_what_is_never_seen_is_still_there() -> None:
    assert NEVER_SEEN.keys() <= {"…".join(one.parts) for one in everybody()}


def test_every_error_says_what_to_do_next() -> None:
    silent = [one for one in everybody() if not one.hinted]
    silent = [one for one in silent if "…".join(one.parts) not in NEVER_SEEN]
    assert not silent, "no hint\n" + "\n".join(str(one) for one in silent)


def test_the_scanner_finds_what_a_search_finds() -> None:
    """Each text in SQL that begins as our errors do is a message, a notice, or compared with."""
    known = {part for one in everybody() for part in one.parts}
    for path in sorted((messages.ROOT / "sql").rglob("*.sql")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "'agentundo: " not in line or "like 'agentundo: " in line:
                continue
            if any(word in line for word in ("raise notice", "raise warning")):
                continue
            assert any(part in line for part in known if len(part) > 3), f"{path.name}: {line}"


SQL = """
-- raise exception using message = 'agentundo: in a comment';
perform agentundo._fail('UN001', format('agentundo: %s is, (well) ''quoted'', %s', f(a, b), c),
  'Do this.', jsonb_build_object('a', 1));
perform agentundo._fail('22023',
  case when a = 'agentundo: no' then 'agentundo: one' else 'agentundo: other' end, '');
raise exception using errcode = '55P03', message = 'agentundo: too long';
raise exception using errcode = 'UNR01';
perform agentundo._refuse_role('sing', 'Hum.');
"""


def test_sql_is_read() -> None:
    found = [(one.where, one.parts, one.hinted, one.code) for one in messages.in_sql(SQL)]
    assert found == [
        ("sql:3", (" is, (well) 'quoted', ",), True, "UN001"),
        ("sql:5", ("one",), False, "22023"),
        ("sql:5", ("other",), False, "22023"),
        ("sql:7", ("too long",), False, "55P03"),
        ("sql:9", (" may not sing",), True, "UN"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "perform agentundo._fail('UN001', f(x), 'Do this.');",
        "raise exception using errcode = 'UN001', hint = 'Do this.';",
        "perform agentundo._fail('UN001', 'agentundo: a'",
    ],
)
def test_sql_that_cannot_be_read_fails(source: str) -> None:
    with pytest.raises(ValueError, match=r"without a message|no text to be read|does not end"):
        messages.in_sql(source)


def test_python_is_read() -> None:
    source = (
        "raise UsageError(f'{a} is ' 'no' f' {b}.', hint='Do this.')\n"
        "raise errors.NotPermitted('short' if a else 'long', hint=None)\n"
        "error = click.UsageError('a' + f'{b} c')\n"
        "raise ValueError('not ours')\n"
    )
    found = [(one.where, one.parts, one.hinted) for one in messages.in_python(source, "a.py")]
    assert found == [
        ("a.py:1", (" is no ", "."), True),
        ("a.py:2", ("short",), False),
        ("a.py:2", ("long",), False),
        ("a.py:3", ("a", " c"), True),
    ]
    with pytest.raises(ValueError, match="no text to be read"):
        messages.in_python("raise UsageError(text)", "a.py")


def message(*parts: str) -> Message:
    return Message("a.sql:1", parts, True, "UN001")


@pytest.mark.parametrize(
    ("source", "met"),
    [
        ("assert 'table t cannot be read by (anybody) there' in text", True),
        (r"pytest.raises(Exception, match=r't cannot be read by \(any')", True),
        ("assert 'cannot be read' in text", False),  # too short
        ("assert 'cannot be written' in text", False),
        ("conn.execute('select cannot be read by (anybody)')", False),
        ("'It cannot be read by (anybody).'", False),  # as docstrings stand there
    ],
)
def test_a_message_is_met_by_a_piece_of_its_own(source: str, met: bool) -> None:
    one = message("table ", " cannot be read by (anybody)")
    assert (messages.unmet([one], messages.looked_for(source)) == []) is met


def test_what_messages_share_meets_none() -> None:
    both = [
        message("the rows cannot be put back: one"),
        message("the rows cannot be put back: two"),
    ]
    assert messages.unmet(both, ["the rows cannot be put back: "]) == both
    assert messages.unmet(both, ["cannot be put back: two"]) == both[:1]


def test_a_message_within_another_wants_a_text_of_its_own() -> None:
    both = [message(" may not revert"), message(" may not revert invocation ")]
    assert messages.unmet(both, ["eve may not revert invocation 1"]) == both[:1]
    assert messages.unmet(both, ["eve may not revert"]) == both[1:]
