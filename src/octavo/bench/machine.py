"""What a figure was measured on: the machine, its limits, and what else ran meanwhile.

Limits are measured in the same run as what is held against them, for machines here drift: the bandwidth of reading a
buffer of a given size with all threads, and the multiply-add rate of the instruction set that the kernels use.
"""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from octavo import __version__, _native
from octavo.bench.stats import Spread

QUIET = 0.1
"""Other processes' share of the CPUs above which figures are not to be quoted."""
NOISY = 0.25
"""Quartiles further apart than this share of the median are no result."""


@dataclass(frozen=True)
class Limits:
    """Measured limits of this machine."""

    read_gbs: float
    """GB/s that all threads together read from a buffer of `buffer_bytes`."""
    gflops: float
    """GFLOP/s of float multiply-adds (bf16 tile products on AMX), all threads."""
    buffer_bytes: int


def measure_limits(isa: str, threads: int, buffer_bytes: int) -> Limits:
    """Takes about a second. buffer_bytes: what one step reads, so that caches help as much as they do in service."""
    size = max(1 << 20, buffer_bytes)
    return Limits(_native.read_rate(isa, threads, size) / 1e9, _native.multiply_add_rate(isa, threads) / 1e9, size)


class Watch:
    """CPU seconds that other processes use while something is measured: `with Watch() as watch`, then `share`."""

    def __enter__(self) -> Watch:  # noqa: PYI034
        self._began = time.monotonic()
        self._busy, self._own = _busy_seconds(), family_seconds()
        self.cpus = psutil.cpu_count() or 1
        self.share = 0.0
        """Of all CPUs, by others."""
        return self

    def __exit__(self, *_: object) -> None:
        seconds = (time.monotonic() - self._began) * self.cpus
        others = (_busy_seconds() - self._busy) - (family_seconds() - self._own)
        self.share = max(0.0, others / seconds) if seconds > 0 else 0.0


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    return sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)


def stolen_seconds() -> float:
    """CPU seconds that the hypervisor took while this machine had work, since it started; 0 on bare metal."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def family_seconds(pid: int | None = None) -> float:
    """CPU seconds of this process, or of another, and its children, the finished ones included."""
    own = psutil.Process(pid)
    times = own.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in own.children(recursive=True):
        try:
            used = child.cpu_times()
            total += used.user + used.system
        except psutil.NoSuchProcess:
            continue
    return total


def describe() -> dict[str, Any]:
    """The machine in plain values, for reports."""
    memory = psutil.virtual_memory()
    return {
        "cpu": _cpu_name(),
        "cpus": _native.cpu_count(),
        "instruction_sets": _native.isas(),
        "memory_gib": round(memory.total / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "octavo": __version__,
        "load_average": [round(value, 2) for value in psutil.getloadavg()],
    }


def machine_lines(facts: dict[str, Any]) -> tuple[str, str]:
    """What `describe` gave, for a person: the machine, and its load."""
    return (
        f"machine    {facts['cpu']}, {facts['cpus']} CPUs, {facts['memory_gib']} GiB, Linux {facts['kernel']}",
        f"load       {' '.join(str(value) for value in facts['load_average'])} (1, 5, 15 minutes)",
    )


def header(isa: str, threads: int, limits: Limits | None) -> list[str]:
    """The lines that open every report."""
    facts = describe()
    machine, load = machine_lines(facts)
    lines = [
        machine,
        f"kernels    {isa} of {', '.join(facts['instruction_sets'])}, {threads} threads",
        load,
    ]
    if limits is not None:
        lines.append(
            f"limits     {limits.read_gbs:.1f} GB/s reading {limits.buffer_bytes / 1e6:.0f} MB, "
            f"{limits.gflops:.0f} GFLOP/s (measured in this run)"
        )
    return lines


def noise(others: float, seen: Spread | None) -> list[str]:
    """What else ran, and whether the figures are worth quoting."""
    lines = [f"others     {others:.0%} of the CPUs were used by other processes"]
    if others > QUIET or (seen is not None and seen.relative > NOISY):
        lines.append("           the machine was not quiet: repeat this before it is quoted")
    return lines


def as_json(limits: Limits | None) -> dict[str, Any]:
    """The machine and its limits, for result files."""
    return {**describe(), "limits": None if limits is None else asdict(limits)}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
