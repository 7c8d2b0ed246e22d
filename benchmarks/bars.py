"""The rows of what must be seen, each a named run: `python -m benchmarks.bars [NAME ...] [--again] [--short]`.

Each run leaves bars/NAME.json with the bar, what was measured and whether it was met; a run whose file exists for the
same commit and form is not repeated. `--short` is the form that the tests use.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks import client_times, fidelity, fuzz, instruments, memory, prefix_trace, rows, token_ids
from benchmarks.skip import Skipped

RESULTS = Path("bars")

ROWS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "install-size": rows.install_size,
    "second-start": rows.second_start,
    "batching": rows.batching,
    "client-times": client_times.client_times,
    "soak": rows.soak,
    "first-answer": rows.first_answer,
    "smollm2-types": fidelity.smollm2_types,
    "gemma-3-270m": fidelity.gemma_3_270m,
    "smollm2-token-ids": token_ids.smollm2,
    "gemma-3-token-ids": token_ids.gemma_3,
    "fuzz": fuzz.fuzz,
    "load-memory": memory.load_memory,
    "tests": rows.tests,
    "prefix-trace": prefix_trace.prefix_trace,
    "bench-null": instruments.null,
    "bench-planted": instruments.planted,
    "bench-predicted": instruments.predicted,
}


def commit() -> str:
    """The commit measured, marked where the tree differs from it."""
    found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def run(name: str, short: bool, again: bool) -> bool:
    """Runs one row unless its result is there already; False where its bar is missed."""
    path = RESULTS / f"{name}.json"
    if path.exists() and not again:
        old = json.loads(path.read_text())
        if old["commit"] == commit() and old["short"] == short and "dirty" not in old["commit"]:
            click.echo(f"{name}: {verdict(old)} (kept from {old['date']})")
            return bool(old["met"])
    started = time.monotonic()
    try:
        result = ROWS[name](short)
    except Skipped as reason:
        click.echo(f"{name}: not run: {reason}")
        return True
    result |= {
        "name": name,
        "short": short,
        "commit": commit(),
        "machine": f"{platform.machine()} {platform.processor()}".strip(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "seconds": round(time.monotonic() - started, 1),
    }
    RESULTS.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=2) + "\n")
    part.replace(path)
    click.echo(f"{name}: {verdict(result)}")
    return bool(result["met"])


def verdict(result: dict[str, Any]) -> str:
    """One line for a person."""
    return f"{'met' if result['met'] else 'NOT MET'}: {result['figure']} (bar: {result['bar']})"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(sorted(ROWS)))
@click.option("--again", is_flag=True, help="Measure even where a result is there.")
@click.option("--short", is_flag=True, help="The short form.")
def main(names: tuple[str, ...], again: bool, short: bool) -> None:
    """Run the named rows, or all."""
    met = [run(name, short, again) for name in (names or ROWS)]
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
