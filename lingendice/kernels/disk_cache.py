"""Compiled kernels on disk: Numba's cache, with what it lacks for a library that is upgraded and shipped.

Numba's classes are private. They are used here alone, and `jit.py` takes Numba's own cache where a later
release has changed them. What differs:

- what was compiled is used only while all sources compiled into it are the same, not its own file alone;
- damaged files, or files of another process that wrote at the same time, count as nothing found;
- a folder that cannot be written is still read; without any folder, kernels stay in memory.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache as remember
from pathlib import Path
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
)

_IMPORTS = re.compile(rb"^from (lingendice\.kernels\.[\w.]+) import", re.MULTILINE)
_DIGEST_BYTES = 32


@remember
def source_digest(module: str) -> str:
    """A digest of a module and of all that its kernels take, and have compiled in, from other modules."""
    found = sys.modules[module]
    source = found.__loader__.get_data(found.__file__)
    parts = [source_digest(name.decode()) for name in _IMPORTS.findall(source)]
    return hashlib.sha256("".join(parts).encode() + source).hexdigest()


@remember
def warn_not_kept(reason: str) -> None:
    """Warn once per reason that the next process compiles again."""
    warnings.warn(
        f"compiled kernels cannot be kept on disk ({reason}): every new process compiles what it uses, which "
        "takes seconds; set the environment variable NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )


class _ReadOnly:
    """A folder that is read although it cannot be written: filled once, as in the image of a container."""

    def ensure_cache_path(self) -> None:
        if not os.path.isdir(self.get_cache_path()):
            raise FileNotFoundError(self.get_cache_path())


class _ReadOnlyUserProvided(_ReadOnly, UserProvidedCacheLocator):
    pass


class _ReadOnlyInTree(_ReadOnly, InTreeCacheLocator):
    pass


class _Results(CompileResultCacheImpl):
    _locator_classes = [  # noqa: RUF012
        *CompileResultCacheImpl._locator_classes,
        _ReadOnlyUserProvided,
        _ReadOnlyInTree,
    ]


class _KernelFiles(IndexDataCacheFile):
    """The index of what is on disk for one kernel, and one file for each entry.

    Numba compares the function's own file alone, and that only after it has unpickled every entry, which
    names the classes of its arguments: one that an upgrade has moved raises ModuleNotFoundError. Index and
    entries are replaced one after the other, so that of two processes that compile the same kernel for other
    arguments one may leave an entry under the key of the other: every entry holds its own key, too. Object
    code that was damaged may crash the process that links it: every entry holds its digest.
    """

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()
        except Exception:  # unpickling garbage raises nearly anything
            return {}

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (self._version, key, data))

    def load(self, key: Any) -> Any:
        version, known, data = super().load(key) or (None, None, None)
        return data if version == self._version and known == key else None

    def _save_data(self, name: str, data: Any) -> None:
        pickled = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(pickled).digest() + pickled)

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        digest, pickled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return pickle.loads(pickled) if hashlib.sha256(pickled).digest() == digest else None


class KernelCache(FunctionCache):
    """The cache of one kernel; RuntimeError where there is no folder for it."""

    _impl_class = _Results

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        known = self._cache_file
        self._cache_file = _KernelFiles(self.cache_path, self._impl.filename_base, known._source_stamp)
        package = sys.modules["lingendice"].__version__
        self._cache_file._version = f"{known._version} {package} {source_digest(function.__module__)}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever is wrong with what is on disk, the kernel can be compiled
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            warn_not_kept(error.strerror or type(error).__name__)


def open_cache(function: Callable[..., Any]) -> KernelCache | NullCache:
    """The cache of a kernel; one that keeps nothing, after a warning, where no folder is found for it."""
    try:
        return KernelCache(function)
    except RuntimeError:
        warn_not_kept("found no folder for them")
        return NullCache()
