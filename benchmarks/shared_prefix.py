"""Shared-prefix attention: decoding of many streams on one prefix, each page read once a step or once a stream.

What the step can gain is bounded: the products of a row with its context stay, whoever reads the pages, and so does all
that is no attention. So beside the ratio stands the bound, from the measured parts of the step without sharing and the
machine's rate of multiply-adds: (step) / (step - attention + attention's multiply-adds at that rate).
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from octavo.bench.ablate import Pair, measure, shared_prefix_pair
from octavo.bench.arm import Arm
from octavo.bench.offline import limits_of
from octavo.bench.step import metered
from octavo.config import EngineConfig, ModelConfig
from octavo.models.store import default_model

BAR = 1.5


def shared_prefix(short: bool) -> dict[str, Any]:
    """32 streams on 2 048 tokens; short: 8 on 1 024."""
    streams, prefix = (8, 1024) if short else (32, 2048)
    pair = shared_prefix_pair(streams, prefix, 12 if short else 32)
    config = EngineConfig(model=ModelConfig(path=str(default_model(lambda what, fraction: None))))
    seed = secrets.randbelow(1 << 31)
    with Arm("A", pair.a(config)) as a, Arm("B", pair.b(config)) as b:
        found = measure(pair, (a, b), 6 if short else 10, seed)
    parts = _parts(pair, config, streams, prefix, seed)
    # Few streams on a busy machine: the short form shows that the bits are the same.
    met = found.sound and (short or found.ratio.value >= BAR)
    return {
        "bar": f"decode at least {BAR} times as fast, the same tokens",
        "figure": f"{found.ratio.text()}; at most {parts['bound']:.2f} could be had here: attention took "
        f"{parts['attention']:.1f} of {parts['step']:.1f} ms, its multiply-adds alone take {parts['least']:.1f}",
        "met": met,
        "details": {"report": found.text(), **parts},
    }


def _parts(pair: Pair, config: EngineConfig, streams: int, prefix: int, seed: int) -> dict[str, float]:
    """Milliseconds of a decode step without sharing, of its attention, and of attention's multiply-adds alone."""
    arm, meter = metered(lambda wrap: Arm("parts", pair.a(config), wrap))
    with arm:
        program: Any = getattr(arm.forward, "program")  # noqa: B009
        program.set_timing(True)
        meter.program = program
        arm.run(pair.make(arm.info.num_tokens, seed))
        rows = [count for count, _, _ in meter.submits]
        chosen = [i for i, count in enumerate(rows[:-1]) if count == streams and rows[i + 1] == streams]
        step = float(np.median([meter.submits[i + 1][1] - meter.submits[i][1] for i in chosen]))
        attention = float(np.median([meter.native[i]["attention"] for i in chosen]))
        limits = limits_of(arm)
        assert limits is not None, "these kernels are native"
        least = arm.sizes.attention_operations * streams * prefix / (limits.gflops * 1e9)
    return {
        "step": step * 1e3,
        "attention": attention * 1e3,
        "least": least * 1e3,
        "bound": step / (step - attention + least),
    }
