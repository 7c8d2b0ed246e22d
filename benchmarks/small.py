"""A small random model, for the short forms of rows that are about the server: seconds instead of minutes.

What such a row must show (who is cut off, what is left behind, whose request ends) does not depend on the model. Its
long form, and the short forms about answers and speed, run on the default one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.tiny import Tiny, write_hf

CONTEXT = 4096


@contextmanager
def small_model() -> Iterator[Path]:
    """Its directory, which goes afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        yield write_hf(Path(folder) / "small", Tiny(max_context=CONTEXT, tied=False)).path
