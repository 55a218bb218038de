"""Hashes of what files hold, so that one log is never taken for another."""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from clickexp.utils.sources import is_remote, parts_below

_WHOLE = 1 << 20
"""Bytes up to which a file is read whole."""
_SAMPLE = 1 << 16
"""Bytes that are read at the head, the middle and the tail of a larger one."""
_MARKS = (
    "etag", "checksum", "md5hash", "crc32c", "content-md5", "digest", "blob_id", "xet_hash", "mtime", "lastmodified",
    "last_modified", "last-modified", "updated", "created",
)  # fmt: skip
"""Names that servers give to marks of a change of a file."""


def content_of(file: Path) -> str:
    """Returns a hash that files share that hold the same, and others hardly ever.

    Of a file of up to a MiB, it is that of all bytes. Of a larger one, it is made of the size, the time of its last
    change in nanoseconds, and the bytes at head, middle and tail. So two larger files share it that have the same size
    and time and differ elsewhere alone, as where a program changes bytes in place and sets the time back. The copy of
    a larger file has another hash, unless it keeps the time.

    Names, folders and inodes do not matter: a log that is moved, or copied with its time to another machine, is the
    same log. See `inodes_of_large` for what tells large files of one machine apart.

    Of a file elsewhere, it is made of the size, and the tag or time of its last change that the server reports, or of
    all bytes where it reports none.

    Raises:
        OSError: The file cannot be read.
    """
    if is_remote(file):
        return _remote_content(file)
    status = file.stat()
    return _content(file, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.lru_cache(1 << 16)  # jobs of a sweep read the same files
def _content(file: Path, size: int, time: int, _changed: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= _WHOLE:
            digest.update(opened.read())
        else:
            digest.update(str(time).encode())
            for start in (0, (size - _SAMPLE) // 2, size - _SAMPLE):
                opened.seek(start)
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()[:20]


def _remote_content(file: Any) -> str:
    stated = file.fs.info(file.path)
    marks = {name: str(value) for name, value in stated.items() if name.lower() in _MARKS and value}
    digest = hashlib.sha256(str([stated.get("size"), sorted(marks.items())]).encode())
    if not marks:
        with file.open("rb") as opened:
            while block := opened.read(_WHOLE):
                digest.update(block)
    return digest.hexdigest()[:20]


def inodes_of_large(files: Iterable[Path]) -> list[int]:
    """Returns the inodes of files of which `content_of` reads a part: no two files of a machine share one."""
    status = [file.stat() for file in files if not is_remote(file)]
    return [one.st_ino for one in status if one.st_size > _WHOLE]


def content_of_all(files: Iterable[Path], folder: Path | None = None) -> str:
    """Returns a hash of several files, with their names, or with their paths from a folder on."""
    digest = hashlib.sha256()
    for file in files:
        name = file.name if folder is None else "/".join(parts_below(folder, file))
        digest.update(f"{name} {content_of(file)}\n".encode())
    return digest.hexdigest()[:20]


def content_of_target(target: str) -> str | None:
    """Returns the content of the module of a class or function, by its dotted name; None where `content_of_code` is.

    Also None of a module that cannot be found, which is an error elsewhere.
    """
    module = target.rpartition(".")[0]
    if not module or _is_of_package(module):
        return None
    # a package that cannot be imported is an error elsewhere
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.has_location:
            return content_of_code(module, Path(str(spec.origin)))
    return content_of_target(module)  # of a class in it


def content_of_code(module: str, file: Path) -> str | None:
    """Returns a hash of a Python file, of those beside it that it imports, which these import, and so on.

    Args:
        module: Dotted name of its module.
        file: The file.

    Returns:
        The hash; None of this package and others that are installed, whose versions tell them apart.
    """
    file = file.resolve()
    root = file.parents[module.count(".") + (file.name == "__init__.py")]
    if _is_of_package(module) or file.suffix != ".py" or str(root) in _installed():
        return None
    files: set[Path] = set()
    waiting = [file]
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _imported(file, root)
    return content_of_all(sorted(files), root)


def _is_of_package(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


@functools.cache
def _installed() -> set[str]:
    return {str(Path(path).resolve()) for path in sysconfig.get_paths().values()}


def _imported(file: Path, root: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # an error where it is imported, if it is
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        folder, module = root, ""
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            folder = file.parents[node.level - 1] if node.level else root
        for name in (module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)):
            path = folder.joinpath(*name.split("."))
            modules = (path.with_name(f"{path.name}.py"), path / "__init__.py")
            yield from (place for place in modules if place.is_file())
