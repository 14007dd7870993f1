"""Where the database is: choosing, checking and showing connection strings.

libpq quotes the string that it could not read, password included, so nothing here passes its
complaint on: the reasons are found anew from parts that hold no secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pyagentundo.errors import DsnError

#: Looked at in this order when no DSN is given; after them libpq's own PGHOST, PGDATABASE, …
ENVIRONMENT = ("AGENTUNDO_DATABASE_URL", "DATABASE_URL")
#: Those of libpq that name a database.
ADDRESS = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
_LIBPQ = "libpq's environment"
_SECRET = ("password", "sslpassword")

_URL = re.compile(r"^([a-z][a-z0-9.-]*)(\+[a-z0-9_]+)?://", re.IGNORECASE)
_EXAMPLE = (
    'Write it as "postgresql://user@host:5432/database" or "host=… dbname=… user=…"; '
    "special characters in a URL's password are percent-encoded."
)


def choose(dsn: str | None = None, *, given: str = "the DSN") -> tuple[str, str]:
    """Return the DSN to use and the name of where it came from.

    The given one wins, then the variables of `ENVIRONMENT`, else the empty string, which leaves
    everything to libpq.

    Args:
        dsn: the given one. An empty one is that of a pool which leaves everything to libpq.
        given: its name in messages.

    """
    if dsn is not None:
        return dsn, given
    for name in ENVIRONMENT:
        value = os.environ.get(name)
        if value:
            return value, name
    return "", _LIBPQ


def normalise(dsn: str, *, source: str = "the DSN") -> str:
    """Return the DSN in libpq's ``key=value`` form; a driver in the scheme is dropped.

    Raises:
        DsnError: it cannot be read. The message names the source and no secret.

    """
    try:
        dsn.encode()
    except UnicodeEncodeError:
        raise DsnError(
            f"{source} cannot be read: it holds bytes that are no UTF-8.", hint=_EXAMPLE
        ) from None
    url = _URL.match(dsn)
    if url:
        if url[1].lower() not in ("postgresql", "postgres"):
            raise DsnError(
                f'{source} cannot be used: "{url[1]}" is no PostgreSQL address.', hint=_EXAMPLE
            )
        dsn = f"postgresql://{dsn[url.end() :]}"
    try:
        parts = conninfo_to_dict(dsn)
        reason = _why_useless(parts)
    except psycopg.Error:
        reason = _why_unreadable(dsn, is_url=bool(url))
    if reason:
        # Raised here and not above: the cause would quote the string.
        raise DsnError(f"{source} cannot be read: {reason}.", hint=_EXAMPLE)
    return make_conninfo("", **parts)


def describe(dsn: str) -> str:
    """Return where a normalised DSN leads, for messages: ``database "x" on host:port``."""
    parts = conninfo_to_dict(dsn)
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    name = parts.get("dbname") or os.environ.get("PGDATABASE")
    database = f'database "{name}"' if name else "the default database"
    return f"{database} on {host}:{port}"


def without_secrets(dsn: str) -> str:
    """Return a DSN as it was given, or without its password in libpq's form.

    Raises:
        DsnError: it cannot be read.

    """
    parts = conninfo_to_dict(normalise(dsn))
    if not any(name in parts for name in _SECRET):
        return dsn
    return make_conninfo("", **{name: parts[name] for name in parts if name not in _SECRET})


def connect(
    dsn: str | None = None, *, given: str = "the DSN", **options: Any
) -> psycopg.Connection[Any]:
    """Connect in autocommit mode to the DSN that `choose` finds.

    Args:
        dsn: a libpq string or URL, or None for the environment's.
        given: its name in messages.
        options: passed on to `psycopg.connect`, for example ``row_factory``.

    Raises:
        DsnError: the string cannot be read or nobody answers there.

    """
    conninfo, options, source = prepare(dsn, options, given=given)
    try:
        return psycopg.connect(conninfo, **options)
    except psycopg.OperationalError as error:
        raise unreachable(conninfo, source, error) from error


def prepare(
    dsn: str | None, options: Mapping[str, Any], *, given: str = "the DSN"
) -> tuple[str, dict[str, Any], str]:
    """Return what to connect with, and the name of where the address came from.

    Raises:
        DsnError: the string cannot be read.

    """
    text, source = choose(dsn, given=given)
    conninfo = normalise(text, source=source)
    # Of a database in SQL_ASCII psycopg would hand out bytes.
    chosen = {"autocommit": True, "application_name": "agentundo", "client_encoding": "utf8"}
    chosen |= options
    if "connect_timeout" not in conninfo_to_dict(conninfo):
        chosen.setdefault("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", "10"))
    return conninfo, chosen, source


def unreachable(conninfo: str, source: str, error: psycopg.Error) -> DsnError:
    """Return what to raise when nobody answers at an address."""
    hint = f"The address came from {source}."
    if source == _LIBPQ and not any(os.environ.get(name) for name in ADDRESS):
        hint = "No database was named: set AGENTUNDO_DATABASE_URL, or give the DSN."
    return DsnError(
        f"Cannot connect to {describe(conninfo)}: {' '.join(str(error).split())}", hint=hint
    )


def _why_useless(parts: Mapping[str, Any]) -> str | None:
    """Find what libpq reads without complaint but then quotes: pieces of a badly escaped URL."""
    if "@" in str(parts.get("host", "")):
        return 'its host contains an "@", so the password is not escaped'
    if not re.fullmatch(r"[0-9,]*", str(parts.get("port", ""))):
        return "its port is not a number"
    return None


def _why_unreadable(dsn: str, *, is_url: bool) -> str:
    """Find a reason that can be said aloud: one that cannot contain a part of the password."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    if not is_url:
        names = re.findall(r"(\w+)\s*=", dsn)
        unknown = [name for name in names if name not in known]
        if (
            unknown
            and "password" not in names
            and re.fullmatch(r"(\s*\w+\s*=\s*[^\s'=]+)+\s*", dsn)
        ):
            return f'it has an unknown parameter "{unknown[0]}"'
        return "it is neither a URL nor a list of key=value pairs that libpq knows"
    query = dsn.partition("?")[2]
    unknown = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in known]
    # A password with an unescaped "?" would end up here too; then an "@" follows it.
    if unknown and "@" not in query:
        return f'it has an unknown parameter "{unknown[0]}"'
    return "it is no valid URL"
