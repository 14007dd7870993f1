"""The error messages of the product, read from its source, and the texts that tests look for.

A message is what stands between placeholders: ``%s`` in SQL, ``{…}`` in Python.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyagentundo import errors

ROOT = Path(__file__).parents[2]
#: A test has to look for this much of a message in one piece, or for its longest piece.
ENOUGH = 15
_SHORTEST = 5


@dataclass(frozen=True)
class Message:
    """An error message.

    Attributes:
        where: file and line.
        parts: its text, without what stands in placeholders.
        hinted: whether the same raise says what to do next.
        code: the SQLSTATE, or the Python class.

    """

    where: str
    parts: tuple[str, ...]
    hinted: bool
    code: str

    def __str__(self) -> str:
        return f"{self.where} {self.code}: {'…'.join(self.parts)}"


#: Words of SQL: texts, comments, names and numbers, one sign at a time.
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*)|(?P<text>'(?:[^']|'')*')|(?P<word>[\w.]+)|(?P<sign>[^\s\w])", re.ASCII
)
#: Whose calls raise: where the message stands, what stands before it, and where the hint is.
_RAISING = {
    "agentundo._fail": (1, "", 2),
    "agentundo._refuse_role": (0, "agentundo: … may not ", 1),
    "agentundo._broke": (1, "agentundo: the rows cannot be put back: ", None),
}
_PREFIX = "agentundo: "
#: What fills a placeholder of a message in words of its own: functions that return a reason, and
#: the words with which one begins.
_REASONS = {
    "agentundo._why_not_trackable": ("it is ", "it does ", "it has ", "its "),
    "agentundo._setting_problem": ("it is ", "it must "),
}


def in_sql(source: str, name: str = "sql") -> list[Message]:
    """Return the messages of ``raise exception using …`` and of calls of what raises.

    Raises:
        ValueError: one of them has no text that could be read.

    """
    tokens = list(_tokens(source))
    found: list[Message] = []
    for at, (kind, word, line) in enumerate(tokens):
        where = f"{name}:{line}"
        following = [token[1] for token in tokens[at + 1 : at + 3]]
        if word in _RAISING and following[:1] == ["("] and tokens[at - 1][1] != "function":
            arguments = _split(tokens[at + 2 :], until=")")
            place, before, hint = _RAISING[word]
            code = _texts(arguments[0])[0] if place == 1 and not before else "UN"
            hinted = hint is None or _says_something(arguments[hint])
            found += _messages(where, arguments[place], before, hinted, code)
        elif kind == "word" and word == "raise" and following == ["exception", "using"]:
            options = {
                argument[0][1]: argument[2:] for argument in _split(tokens[at + 3 :], until=";")
            }
            code = "".join(_texts(options["errcode"]))
            if "message" in options:
                hinted = _says_something(options.get("hint", []))
                found += _messages(where, options["message"], "", hinted, code)
            elif code not in ("UNR01", "UNR02"):  # which never leave the function that catches them
                raise ValueError(f"{where}: raises without a message")
    for function in _REASONS:
        found += _reasons(tokens, function, name)
    return found


_Tokens = list[tuple[str, str, int]]


def _tokens(source: str) -> Iterator[tuple[str, str, int]]:
    line, at = 1, 0
    for match in _TOKEN.finditer(source):
        line += source.count("\n", at, match.start())
        at = match.start()
        kind = match.lastgroup
        assert kind
        if kind != "comment":
            text = match[0]
            yield kind, text[1:-1].replace("''", "'") if kind == "text" else text, line


def _reasons(tokens: _Tokens, function: str, name: str) -> Iterator[Message]:
    """Yield what a function may give as the reason; its definition is one text of SQL."""
    words = [word for _, word, _ in tokens]
    for at, word in enumerate(words):
        if word == function and words[at - 1] == "function":
            end = words.index("body", words.index("body", at) + 1)  # between $body$ and $body$
            for kind, text, line in tokens[at:end]:
                if kind == "text" and text.startswith(_REASONS[function]):
                    yield Message(f"{name}:{line}", _between(text), True, "reason")


def _between(text: str) -> tuple[str, ...]:
    return tuple(filter(None, re.split(r"%[sLI]|…", text)))


def _split(tokens: _Tokens, *, until: str) -> list[_Tokens]:
    """Take arguments apart, at the commas between them."""
    parts: list[_Tokens] = [[]]
    depth = 0
    for token in tokens:
        sign = token[1] if token[0] == "sign" else ""
        if depth == 0 and sign == until:
            return parts
        depth += (sign in ("(", "[")) - (sign in (")", "]") and sign != "")
        if depth == 0 and sign == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    raise ValueError("a call that does not end")


def _texts(tokens: _Tokens) -> list[str]:
    return [text for kind, text, _ in tokens if kind == "text"]


def _says_something(tokens: _Tokens) -> bool:
    """Tell whether an argument is more than null or an empty text."""
    return [text for _, text, _ in tokens] not in ([], [""], ["null"])


def _messages(
    where: str, argument: _Tokens, before: str, hinted: bool, code: str
) -> Iterator[Message]:
    """Yield the messages that an argument may be: `case` has several.

    Where it passes on what the function itself was given, its callers have the texts.
    """
    if [kind for kind, _, _ in argument] == ["word"]:
        return
    texts = [
        text
        for at, (kind, text, _) in enumerate(argument)
        if kind == "text" and (before or text.startswith(_PREFIX)) and not _compared(argument, at)
    ]
    if not texts:
        raise ValueError(f"{where}: no text to be read")
    for text in texts[:1] if before else texts:
        whole = (before + text).removeprefix(_PREFIX)
        yield Message(where, _between(whole), hinted, code)


def _compared(argument: _Tokens, at: int) -> bool:
    return at > 0 and argument[at - 1][1] in ("=", ">", "<", "like", "~")


#: Exceptions of Python whose texts people see; those of the standard library are bugs of a caller.
_CLASSES = {
    name
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, errors.AgentUndoError)
}
_CLICK = {"click.UsageError", "click.BadParameter", "click.ClickException"}


def in_python(source: str, name: str) -> list[Message]:
    """Return the messages with which our exceptions and click's are made.

    Raises:
        ValueError: one of them has no text that could be read.

    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue  # `raise cls(**…)` of the base class hands on
        code = ast.unparse(node.func)
        click = code in _CLICK
        if not click and code.removeprefix("errors.") not in _CLASSES:
            continue
        where = f"{name}:{node.lineno}"
        # click adds how the command is called.
        hinted = click or any(
            one.arg == "hint" and ast.unparse(one.value) not in ("None", "''")
            for one in node.keywords
        )
        for parts in _alternatives(node.args[0]):
            if not any(parts):
                raise ValueError(f"{where}: no text to be read")
            found.append(Message(where, tuple(filter(None, parts)), hinted, code))
    return found


def _alternatives(node: ast.expr) -> list[tuple[str, ...]]:
    """Return the texts that an expression may be, each without what is filled in."""
    if isinstance(node, ast.Constant):
        return [(str(node.value),)]
    if isinstance(node, ast.JoinedStr):
        return [_pieces(node)]
    if isinstance(node, ast.IfExp):
        return _alternatives(node.body) + _alternatives(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            left + right for left in _alternatives(node.left) for right in _alternatives(node.right)
        ]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _alternatives(node.func.value)  # "…".format(…), …removeprefix(…)
    return [("",)]


def _pieces(node: ast.JoinedStr) -> tuple[str, ...]:
    return tuple(
        str(value.value) if isinstance(value, ast.Constant) else "" for value in node.values
    )


@cache
def of_product() -> tuple[Message, ...]:
    """Return all messages; of the twins of Python only those of the source."""
    found: list[Message] = []
    for path in sorted((ROOT / "sql").rglob("*.sql")):
        found += in_sql(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    for path in sorted((ROOT / "pyagentundo").rglob("*.py")):
        if "_sync" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            found += in_python(path.read_text(encoding="utf-8"), name)
    return tuple(found)


def looked_for(source: str) -> list[str]:
    """Return the texts in a test file that may be compared with a message.

    All but docstrings and what is given to the database: ``execute`` is not a comparison.
    """
    tree = ast.parse(source)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(id(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "execute":
            left_out |= {id(inner) for argument in node.args for inner in ast.walk(argument)}
    found = []
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and len(text) >= _SHORTEST and id(node) not in left_out:
            found.append(_plain(text))
    return found


def _plain(text: str) -> str:
    """Return a text as it reads without the signs of a regular expression."""
    return re.sub(r"\\([^\w\s])", r"\1", text)


def unmet(messages: Iterable[Message], texts: Iterable[str]) -> list[Message]:
    """Return the messages for which no text of the tests looks.

    A text looks for a message if it has `ENOUGH` of it in one piece (all of its longest part, if
    that is shorter), and this piece stands in no other message. A message that has no such piece,
    because it stands whole in a longer one, wants a text that looks for none of the longer ones.
    """
    parts = {message.parts for message in messages}
    pieces: dict[tuple[str, ...], set[str]] = {one: _pieces_of(one) for one in parts}
    shared = Counter(piece for of_one in pieces.values() for piece in of_one)
    # Short messages have short pieces, which may stand in the long parts of others.
    own = {
        one: {
            piece
            for piece in of_one
            if shared[piece] == 1
            and (
                len(piece) == ENOUGH
                or not any(piece in part for other in parts if other != one for part in other)
            )
        }
        for one, of_one in pieces.items()
    }
    distinctive = {piece for of_one in own.values() for piece in of_one}
    sizes = {len(piece) for piece in distinctive}
    plain, found = list(texts), set()
    for text in plain:
        grams = {text[at : at + size] for size in sizes for at in range(len(text) - size + 1)}
        found |= grams & distinctive
    missing = []
    for message in messages:
        if own[message.parts]:
            met = bool(own[message.parts] & found)
        else:
            whole = max(message.parts, key=len)
            longer = {
                piece
                for other in parts
                if other != message.parts
                for part in other
                if whole in part
                for piece in _pieces_of(tuple(filter(None, part.split(whole))))
            }
            met = any(
                whole in text and not any(piece in text for piece in longer) for text in plain
            )
        if not met:
            missing.append(message)
    return missing


def _pieces_of(parts: tuple[str, ...]) -> set[str]:
    size = min(ENOUGH, max(map(len, parts), default=0))
    return {part[at : at + size] for part in parts for at in range(len(part) - size + 1)} - {""}


@cache
def of_tests() -> tuple[str, ...]:
    """Return the texts of all tests, without those about messages."""
    found: list[str] = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name not in ("messages.py", "test_messages.py"):
            found += looked_for(path.read_text(encoding="utf-8"))
    return tuple(found)
