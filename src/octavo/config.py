"""Configuration: nested frozen dataclasses, and one `resolve()` that fills, checks and explains them.

A value of None means "choose for me"; `resolve()` replaces every None, so nothing downstream chooses again
and nothing mutates a configuration later. The environment is read in this module alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelConfig:
    """Which weights, and the numbers they are computed in."""

    path: str = ""
    """A .gguf file or a directory with safetensors; empty means the default model."""
    name: str | None = None
    """Name shown by the API; None: the file's or directory's name."""
    precision: str = "bf16"
    """"bf16", or "float32" (float32 activations and KV pages; slow; for checking against other engines)."""
    max_model_len: int | None = None
    """Longest prompt + output, tokens. None: the model's context, or what the KV pool holds if that is less."""


@dataclass(frozen=True)
class KVConfig:
    """Where keys and values live."""

    size_bytes: int | None = None
    """Bytes of the pool. None: chosen from free memory."""
    size_tokens: int | None = None
    """Tokens of the pool; instead of `size_bytes` (tests, tiny machines)."""
    block_size: int = 32
    """Tokens a block, a multiple of 32."""
    paged: bool = True
    """Off: one contiguous block of `max_model_len` a request."""
    prefix_cache: bool = True
    """Off: every prompt is computed from its first token."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Who runs now."""

    policy: str = "continuous"
    """"continuous", or "static": a batch is filled once and runs until its last request has finished."""
    max_num_seqs: int = 128
    """Requests in one step at most."""
    max_num_batched_tokens: int = 512
    """Token budget of one step."""
    chunked_prefill: bool = True
    """Off: a prompt is computed whole in one step (the budget must hold the longest prompt)."""
    max_waiting: int = 4096
    """Requests that may wait; more are refused."""


@dataclass(frozen=True)
class ExecutionConfig:
    """How a step runs."""

    backend: str = "cpu"
    """"cpu" (native kernels) or "reference" (NumPy, slow and obvious)."""
    isa: str | None = None
    """"amx", "avx512", "avx2", "portable"; None: the best this machine has. The bits are the same."""
    threads: int | None = None
    """Native threads; None: from affinity and cgroup."""
    attention: str = "tiled"
    """"tiled" (FlashAttention over pages) or "naive" (three steps; a numerics configuration of its own)."""
    program: bool = True
    """Off: one native call an op instead of one a step. The bits are the same."""


@dataclass(frozen=True)
class EngineConfig:
    """All that the engine process needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    validate_kv: bool = False
    """Recompute every block count from scratch after each step (tests)."""


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP side."""

    host: str = "127.0.0.1"
    port: int = 8000
    drain_seconds: float = 30.0
    """After SIGTERM, open requests get this long before they are aborted."""
    max_body_bytes: int = 4 * 1024 * 1024
    max_n: int = 16
    """Choices a request at most."""
    max_logprobs: int = 20
    max_stop_strings: int = 16
    max_logit_bias: int = 1024
    max_prompts: int = 64
    """Prompts in one completions body."""


class ConfigError(ValueError):
    """A setting that cannot work; the message is one sentence naming the flag and a value that would."""
