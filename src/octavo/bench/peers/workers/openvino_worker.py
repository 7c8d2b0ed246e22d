"""OpenVINO GenAI as a worker: its continuous-batching pipeline, stepped, so that the time of each token is seen."""

from __future__ import annotations

from typing import Any

from loop import Tracks, serve


class OpenVino:
    """See `loop.py`."""

    _ids = 0

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import numpy
        import openvino
        import openvino_genai

        self._numpy, self._openvino, self._genai = numpy, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 0
        scheduler.num_kv_blocks = settings["kv_tokens"] // 32 + 1
        scheduler.max_num_batched_tokens = settings["chunk"]
        scheduler.max_num_seqs = settings["max_streams"]
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings["threads"]}
        if settings.get("kv"):
            properties["KV_CACHE_PRECISION"] = settings["kv"]
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)
        return {
            "version": openvino_genai.__version__,
            "kv": settings.get("kv") or self._default("KV_CACHE_PRECISION"),
            "arithmetic": self._default("INFERENCE_PRECISION_HINT"),
            "threads": settings["threads"],
        }

    def _default(self, name: str) -> str:
        """What the CPU plug-in uses where nothing is asked for."""
        value = self._openvino.Core().get_property("CPU", name)
        return value.get_type_name() if hasattr(value, "get_type_name") else str(value)

    def run(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.min_new_tokens = output, output
        config.ignore_eos, config.do_sample = True, False
        tensors = [self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64)) for prompt in prompts]
        tracks = Tracks(len(prompts))
        handles = []
        for tensor in tensors:
            self._ids += 1
            handles.append(self._pipeline.add_request(self._ids, tensor, config))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            tracks.take([(index, self._new(handle)) for index, handle in enumerate(handles) if handle.can_read()])
        return tracks.timing()

    @staticmethod
    def _new(handle: Any) -> int:
        """Tokens that came since it was last read."""
        return sum(len(part.generated_ids) for part in handle.read().values())

    def close(self) -> None:
        """Nothing outlives the process."""


if __name__ == "__main__":
    serve(OpenVino())
