"""What `AgentUndo.tool` has to know of the functions that it wraps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pyagentundo.errors import UsageError

#: The parameter that receives the tagged connection.
CONNECTION = "conn"
#: What would run after the block in which it was made, on a connection without a tag.
_LAZY: dict[str, Callable[[Any], bool]] = {
    "a generator": inspect.isgenerator,
    "an asynchronous generator": inspect.isasyncgen,
    "something to await": inspect.isawaitable,
}


class Tool:
    """A function with the description of its parameters.

    Args:
        function: what is wrapped.
        is_async: whether it has to be a coroutine function.
        describe: makes what is recorded as input out of the arguments.

    Raises:
        UsageError: it is of the other kind, a generator function, or has its connection as a
            positional-only parameter.

    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        is_async: bool,
        describe: Callable[..., Any] | None = None,
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(
                f"{_name(function)} is a generator function: what it does would happen after the"
                " call, untagged and not to be undone.",
                hint="Return a list, or whatever else is whole.",
            )
        if inspect.iscoroutinefunction(function) != is_async:
            kinds = ("a plain function", "AgentUndo"), ("a coroutine function", "AsyncAgentUndo")
            kind, other = kinds[not is_async]
            raise UsageError(
                f"{_name(function)} is {kind}.", hint=f"Wrap it with the tool() of {other}."
            )
        self.function = function
        self.signature = inspect.signature(function)
        self._describe = describe
        self._object = _object_of(function, self.signature)
        parameter = self.signature.parameters.get(CONNECTION)
        self.takes_connection = parameter is not None
        if parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"{_name(function)} takes conn by position only.",
                hint="Move it behind the / in the signature.",
            )

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Take the connection, if the caller gave one, out of the arguments.

        Raises:
            TypeError: the arguments do not fit the function.

        """
        if not self.takes_connection:
            self.signature.bind(*args, **kwargs)
            return args, kwargs, None
        conn = kwargs.get(CONNECTION)
        kwargs = {name: value for name, value in kwargs.items() if name != CONNECTION}
        self.public_signature().bind(*args, **kwargs)
        return args, kwargs, conn

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], conn: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the function, with the connection where it belongs."""
        if not self.takes_connection:
            return args, kwargs
        bound = self.public_signature().bind(*args, **kwargs)
        values = {**bound.arguments, CONNECTION: conn}
        full = inspect.BoundArguments(
            self.signature,
            {name: values[name] for name in self.signature.parameters if name in values},
        )
        return full.args, full.kwargs

    def input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what is recorded as the call's input: its arguments by name, with defaults.

        Without the object of a method: it is no argument, changes, and may hold secrets.
        """
        if self._describe is not None:
            return self._describe(*args, **kwargs)
        bound = self.public_signature().bind(*args, **kwargs)
        bound.apply_defaults()
        return {name: value for name, value in bound.arguments.items() if name != self._object}

    def public_signature(self) -> inspect.Signature:
        """Return the signature without the connection: what a caller, or a model, has to give."""
        parameters = [p for name, p in self.signature.parameters.items() if name != CONNECTION]
        return self.signature.replace(parameters=parameters)

    def dress(self, wrapper: Any) -> None:
        """Give a wrapper the public signature, which frameworks make their schemas from."""
        wrapper.__signature__ = self.public_signature()
        hints = getattr(self.function, "__annotations__", {})
        wrapper.__annotations__ = {n: hint for n, hint in hints.items() if n != CONNECTION}


def error_in(result: Any) -> str | None:
    """Return the error that a tool's result tells of, None when it tells of none.

    An entry or attribute ``error`` that is true, or ``isError`` (as MCP's results have it).
    """

    def get(name: str) -> Any:
        if isinstance(result, Mapping):
            return result.get(name)
        return getattr(result, name, None)

    error = get("error")
    if error:
        return "the tool answered with an error" if error is True else str(error)
    return "the tool answered with isError" if get("isError") is True else None


def require_whole(answer: Any) -> None:
    """Make sure that a function has done what it does.

    Raises:
        UsageError: it would do it later.

    """
    for kind, is_one in _LAZY.items():
        if is_one(answer):
            raise UsageError(
                f"The tool returned {kind}: what that does would happen after the call, untagged"
                " and not to be undone.",
                hint="Return a list, or whatever else is whole.",
            )


def _object_of(function: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """Return the parameter that receives the object of a method, or its class; None without one."""
    first = next(iter(signature.parameters), None)
    around = _name(function).rpartition(".")[0]
    in_class = around != "" and not around.endswith("<locals>")
    return first if first == "self" or (first == "cls" and in_class) else None


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", repr(function))
