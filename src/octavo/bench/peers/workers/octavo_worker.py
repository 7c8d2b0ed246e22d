"""Octavo as a worker: the engine without server, as the other engines are driven without theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo import __version__
from octavo.bench.arm import Arm
from octavo.bench.peers.workers.loop import Tracks, serve
from octavo.bench.workload import Item, Workload
from octavo.config import EngineConfig, KVConfig, ModelConfig


class Octavo:
    """See `workers/loop.py`."""

    _arm: Arm | None = None

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        base = EngineConfig(
            model=ModelConfig(path=settings["model"]),
            kv=KVConfig(size_tokens=settings["kv_tokens"], prefix_cache=False),
        )
        config = replace(
            base,
            scheduler=replace(
                base.scheduler,
                max_num_seqs=settings["max_streams"],
                max_num_batched_tokens=settings["chunk"],
            ),
            execution=replace(base.execution, threads=settings["threads"], **settings.get("execution", {})),
        )
        self._arm = arm = Arm("octavo", config)
        return {
            "version": __version__,
            "kernels": arm.config.execution.isa,
            "kv": arm.config.model.precision,
            "threads": arm.config.execution.threads,
            "vocab": arm.info.num_tokens,
        }

    def run(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        assert self._arm is not None
        work = Workload(tuple(Item(tuple(prompt), output) for prompt in prompts), seed=0)
        tracks = Tracks(len(prompts))
        current = self._arm.start(work)
        counts = current.counts
        while not current.done:
            current.step()
            before, counts = counts, current.counts
            tracks.take([(index, now - then) for index, (now, then) in enumerate(zip(counts, before, strict=True))])
        return tracks.timing()

    def close(self) -> None:
        if self._arm is not None:
            self._arm.close()


if __name__ == "__main__":
    serve(Octavo())
