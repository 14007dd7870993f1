"""Unpacking, on every Python that is supported."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, target: Path) -> None:
    """Unpack a whole archive; Debian 12's Python, 3.11.2, knows no filters yet."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(target, filter="data")
    else:
        archive.extractall(target)
