"""What lies in a model's directory: files that may be left out, listings, and faults of the file system in words.

A file is absent only where its name does not exist. An entry of that name which cannot be a file (a link to nothing, a
directory, a pipe) is refused: taken as absent, it would change answers without a word. Every fault is a ModelError.
Owns nothing; off switch: none.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path

from octavo.models.spec import ModelError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def unreadable(path: str | Path, error: OSError) -> ModelError:
    return ModelError(f"{path} cannot be read: {error.strerror or error}")


def sentence(error: Exception) -> str:
    """An error for the user: the file and what is wrong with it, without the number that the system gives it."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def present(path: Path) -> bool:
    """Whether there is such a file; ModelError where the name is there and is no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ModelError(
                f"{path} is a link to {os.readlink(path)}, which does not exist; mend the link or remove it"
            ) from None
        return False
    except ValueError:
        return False  # with a NUL: no path of any machine
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise ModelError(f"{path} is {kind}; a file must be there, or nothing")
    return True


def is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        raise unreadable(path, error) from error


def listing(folder: Path, pattern: str) -> list[Path]:
    """The folder's entries of that pattern, sorted; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        if folder.is_symlink():
            raise ModelError(
                f"{folder} is a link to {os.readlink(folder)}, which does not exist; mend the link or remove it"
            ) from None
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(folder / name for name in names if fnmatch.fnmatchcase(name, pattern))
