"""Write files so that a reader finds the old file or the new one, and never a part.

The bytes go into ``.lingendice-*.part`` in the folder of the file, which then takes its place in one move. A
process that is killed while it writes leaves such a file behind; it is in nobody's way, and is removed by the
next writing into that folder once it is a day old.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PREFIX, SUFFIX = ".lingendice-", ".part"
KEPT_SECONDS = 86_400.0
"""Age at which an unfinished file is taken for abandoned: no writing of ours lasts a day."""


class StoredFileError(ValueError):
    """A stored file that cannot be used; the message says which and what to do."""


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A stream whose bytes take the place of ``path`` at the end, or never.

    Links are followed, and permissions are those that an ordinary writing would leave. What is no ordinary
    file (``/dev/stdout``, a pipe) is written as it is.
    """
    given = Path(path)
    if given.parent == Path("/dev") or (given.exists() and not given.is_file()):
        with given.open("wb") as stream:
            yield stream
        return
    target = Path(os.path.realpath(given))
    if not target.parent.is_dir():
        raise StoredFileError(f"{path}: there is no folder {target.parent}; make it first")
    remove_abandoned(target.parent)
    unfinished = target.parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
    try:
        with _created(unfinished, path) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(FileNotFoundError):
            os.chmod(unfinished, stat.S_IMODE(target.stat().st_mode))
        os.replace(unfinished, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _created(unfinished: Path, path: str | Path) -> BinaryIO:
    # Mode 0o666 is cut down by the umask, as for any new file; what tempfile makes only its owner can read.
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    try:
        return os.fdopen(os.open(unfinished, flags, 0o666), "wb")
    except OSError as error:
        reason = f"no file can be made in {unfinished.parent} ({error.strerror}); choose another folder"
        raise OSError(error.errno, reason, str(path)) from None


def write_text(path: str | Path, text: str) -> None:
    """Put a text in the place of a file, in UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode())


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder more than a day ago."""
    latest = time.time() - KEPT_SECONDS
    for left in folder.glob(f"{PREFIX}*{SUFFIX}"):
        with suppress(OSError):  # somebody else removes it, or it is not ours to remove
            if left.stat().st_mtime < latest:
                left.unlink()
