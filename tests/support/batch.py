"""`octavo run` with the echo engine in a process of its own: `python -m tests.support.batch CONFIG`.

CONFIG is the JSON of `Batch`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.batch.lines import Defaults
from octavo.batch.run import BatchOptions, run_batch
from octavo.config import ConfigError, EngineConfig
from tests.support.server import ECHO, ROOT, echo_config
from tests.support.system import use_system


@dataclass(frozen=True)
class Batch:
    """One run."""

    engine: EngineConfig
    input: str
    output: str
    seed: int = 0
    max_tokens: int | None = None
    order: str = "input"
    window: int | None = None
    strict: bool = False
    overwrite: bool = False
    chat: bool = False


def batch(model: Path, source: Path | str, target: Path | str, max_num_seqs: int = 16, **options: object) -> Batch:
    """A run on the echo engine."""
    engine = echo_config(model, max_num_seqs=max_num_seqs).engine
    return Batch(engine, str(source), str(target), **options)  # type: ignore[arg-type]


def start(what: Batch, **streams: object) -> subprocess.Popen[bytes]:
    """The run's process."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "tests.support.batch", msgspec.json.encode(what).decode()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        **given,
    )


def run(what: Batch, stdin: bytes | None = None) -> tuple[int, str, bytes]:
    """Status, standard error and standard output of a run to its end."""
    with start(what, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL) as process:
        out, err = process.communicate(stdin, timeout=60)
    return process.returncode, err.decode(), out


def arguments(what: Batch) -> tuple[EngineConfig, BatchOptions, tuple[str, ...]]:
    """As `run_batch` takes them."""
    options = BatchOptions(
        input=what.input,
        output=what.output,
        defaults=Defaults(what.seed, what.max_tokens, None, what.chat),
        order=what.order,
        window=what.window,
        strict=what.strict,
        overwrite=what.overwrite,
    )
    return what.engine, options, (sys.executable, "-m", ECHO)


def main() -> int:
    what = msgspec.json.decode(sys.argv[1], type=Batch)
    use_system()
    try:
        return run_batch(*arguments(what))
    except ConfigError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
