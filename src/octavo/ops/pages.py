"""Pages of a mapped model file: given back to the system once read, so that loading needs no second copy of the model.

Owns nothing: the mapping stays whole, and what is read again comes from the file. Off switch: none.
"""

from __future__ import annotations

import mmap

import numpy as np


def give_back(data: memoryview) -> None:
    """Takes the pages under a view of a read-only mapped file out of this process's memory; does nothing to others."""
    mapping = data.obj
    if not isinstance(mapping, mmap.mmap) or not data.readonly or not data.nbytes or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapping, np.uint8).ctypes.data
    start = np.frombuffer(data, np.uint8).ctypes.data - base
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
