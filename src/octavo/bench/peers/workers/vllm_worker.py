"""vLLM as a worker: its engine is stepped as its own `LLM.generate` steps it, so that the time of each token is seen.

Compilation, its allocator and its threads are its own defaults, but that no core is kept from the matrix products:
all threads of the machine, as every other engine has.
"""

from __future__ import annotations

from typing import Any

from loop import Tracks, serve


class Vllm:
    """See `loop.py`."""

    _runs = 0

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        import vllm

        self._llm = vllm.LLM(
            settings["model"],
            dtype="float32" if settings["form"] == "fp32" else "bfloat16",
            max_model_len=settings["max_context"],
            enable_prefix_caching=False,
            max_num_seqs=settings["max_streams"],
            max_num_batched_tokens=max(settings["chunk"], settings["max_context"]),
            seed=0,
        )
        self._params = vllm.SamplingParams
        self._kind = vllm.sampling_params.RequestOutputKind.DELTA
        config = self._llm.llm_engine.vllm_config
        return {
            "version": vllm.__version__,
            "arithmetic": str(config.model_config.dtype).removeprefix("torch."),
            "kv": self._kv(str(config.cache_config.cache_dtype), str(config.model_config.dtype)),
            "mode": str(config.compilation_config.mode.name),
            "threads": settings["threads"],
        }

    @staticmethod
    def _kv(asked: str, arithmetic: str) -> str:
        return arithmetic.removeprefix("torch.") if asked == "auto" else asked

    def run(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        self._runs += 1
        engine = self._llm.llm_engine
        params = self._params(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False, output_kind=self._kind
        )
        tracks = Tracks(len(prompts))
        for index, prompt in enumerate(prompts):
            engine.add_request(f"{self._runs}-{index}", {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            done = engine.step()
            tracks.take([(int(one.request_id.split("-")[1]), len(one.outputs[0].token_ids)) for one in done])
        return tracks.timing()

    def close(self) -> None:
        """Its processes end with this one."""


if __name__ == "__main__":
    serve(Vllm())
