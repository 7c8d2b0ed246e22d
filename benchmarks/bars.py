"""The rows of what must be seen, each a named run: `python -m benchmarks.bars [NAME ...] [--again] [--short]`.

Each run leaves bars/NAME.json with the bar, what was measured and whether it was met; a run whose file exists for the
same commit and form is not repeated, and long rows go on where they were broken off. `--short` is the form that the
tests use.
"""

from __future__ import annotations

import importlib
import json
import platform
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from benchmarks.kept import RESULTS, commit
from benchmarks.skip import Skipped


def lazy(place: str) -> Callable[[bool], dict[str, Any]]:
    """The function `module.name` of this package, imported when it is called."""
    module, name = place.split(".")

    def call(short: bool) -> dict[str, Any]:
        result: dict[str, Any] = getattr(importlib.import_module(f"benchmarks.{module}"), name)(short)
        return result

    return call


ROWS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "install-size": lazy("rows.install_size"),
    "second-start": lazy("rows.second_start"),
    "batching": lazy("rows.batching"),
    "client-times": lazy("client_times.client_times"),
    "soak": lazy("rows.soak"),
    "first-answer": lazy("rows.first_answer"),
    "smollm2-types": lazy("fidelity.smollm2_types"),
    "gemma-3-270m": lazy("fidelity.gemma_3_270m"),
    "smollm2-token-ids": lazy("token_ids.smollm2"),
    "gemma-3-token-ids": lazy("token_ids.gemma_3"),
    "fuzz": lazy("fuzz.fuzz"),
    "fuzz-detokeniser": lazy("fuzzers.fuzz_detokeniser"),
    "fuzz-stops": lazy("fuzzers.fuzz_stops"),
    "fuzz-sse": lazy("fuzzers.fuzz_sse"),
    "fuzz-bodies": lazy("fuzzers.fuzz_bodies"),
    "absurd": lazy("absurd.absurd"),
    "abuse": lazy("abuse.abuse"),
    "nginx": lazy("nginx.nginx"),
    "parity": lazy("parity.parity"),
    "disk-tier": lazy("disk_tier.disk_tier"),
    "load-memory": lazy("memory.load_memory"),
    "tests": lazy("rows.tests"),
    "itl-target": lazy("pressure.itl_target"),
    "tenants": lazy("pressure.tenants"),
    "overload": lazy("pressure.overload"),
    "prefix-trace": lazy("prefix_trace.prefix_trace"),
    "prefix-no-hit": lazy("cache_rows.prefix_no_hit"),
    "prefix-hits": lazy("cache_rows.prefix_hits"),
    "paged-waste": lazy("cache_rows.paged_waste"),
    "run-kills": lazy("run_kills.run_kills"),
    "state-machines": lazy("state_machines.state_machines"),
    "shared-prefix": lazy("shared_prefix.shared_prefix"),
    "speculation-ngram": lazy("speculation.ngram"),
    "speculation-streams": lazy("speculation.streams"),
    "speculation-rejection": lazy("rejection.rejection"),
    "kills": lazy("chaos.kills"),
    "poison": lazy("chaos.poison"),
    "orphans": lazy("chaos.orphans"),
    "bench-null": lazy("instruments.null"),
    "bench-planted": lazy("instruments.planted"),
    "bench-predicted": lazy("instruments.predicted"),
}


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what ends the servers
    met = [run(name, short, again) for name in (names or ROWS)]
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
