"""Pages of a mapped model file: given back to the system once read, so that loading needs no second copy of the model.

Owns nothing: the mapping stays whole, and what is read again comes from the file. Off switch: none.
"""

from __future__ import annotations

import mmap


def give_back(data: memoryview) -> None:
    """Takes the pages of the read-only mapped file under a view out of this process's memory; nothing else.

    All of the file's: a fault maps whatever the page cache keeps in one piece with the page, before it and behind,
    and pages given back one by one would return with their neighbours.
    """
    mapping = data.obj
    if isinstance(mapping, mmap.mmap) and data.readonly and data.nbytes and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)
