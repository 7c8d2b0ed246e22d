"""OpenVINO GenAI as a worker that tells its own figures: `generate` over the whole batch, and its `perf_metrics`."""

from __future__ import annotations

import time
from typing import Any

from loop import serve
from openvino_worker import OpenVino


class OwnMetrics(OpenVino):
    """See `loop.py`. `extra` holds the decode rate that the engine's own TPOT means for all requests together."""

    def run(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.min_new_tokens = output, output
        config.ignore_eos, config.do_sample = True, False
        tensors = [self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64)) for prompt in prompts]
        began = time.perf_counter()
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        seconds = time.perf_counter() - began
        metrics = [result.perf_metrics for result in results]
        extra: dict[str, float] = {}
        if output > 1:
            extra["own_decode"] = sum(1e3 / one.get_tpot().mean for one in metrics)
            extra["own_ttft_ms"] = max(one.get_ttft().mean for one in metrics)
        counts = [len(result.m_generation_ids[0]) for result in results]
        return {"seconds": seconds, "first": None, "last": None, "late": None, "counts": counts, "extra": extra}


if __name__ == "__main__":
    serve(OwnMetrics())
