"""Command-line flags that make an EngineConfig, shared by serve, chat, run and doctor.

Every flag maps to one field of octavo.config; nothing is chosen here. Absent flags leave the field's default,
and None is filled by `resolve()` in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from octavo.config import (
    ConfigError,
    EngineConfig,
    ExecutionConfig,
    KVConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    check_choices,
)

F = TypeVar("F", bound=Callable[..., Any])

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Size(click.ParamType[int]):
    """Bytes, with an optional K, M or G (powers of 1024)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("IB").removesuffix("B")
        unit = text[-1:] if text[-1:] in "KMG" else ""
        number = text[: len(text) - len(unit)]
        try:
            size = float(number) * UNITS[unit]
        except ValueError:
            self.fail(f"{value!r} is not a size; 2G or 512M would work", param, ctx)
        if not 0 < size < 1 << 50:
            self.fail(f"{value!r} is out of range; 2G or 512M would work", param, ctx)
        return int(size)


class FiniteRange(click.FloatRange):
    """A range that NaN, which no comparison refuses, lies outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number; {self.max:g} would work", param, ctx)
        return number


_DEFAULTS = EngineConfig()

_OPTIONS = [
    click.option("--name", default=None, help="Model name shown by the API."),
    click.option("--precision", default="bf16", show_default=True, help="bf16 or float32 (slow, for checking)."),
    click.option(
        "--dequantisation",
        default=_DEFAULTS.model.dequantisation,
        show_default=True,
        help="Products of quantised weights: expanded (to bf16) or integer (inputs become bytes; faster).",
    ),
    click.option("--max-model-len", type=int, default=None, help="Longest prompt + output, tokens [the model's]."),
    click.option(
        "--generation-config",
        default="model",
        show_default=True,
        help="Sampling where a request says nothing: model (its makers' suggestions) or none (the API's defaults).",
    ),
    click.option(
        "--chat-template", default=None, help="A Jinja file, or the name of one of the model's templates [default]."
    ),
    click.option("--kv-memory", type=Size(), default=None, help="Size of the KV pool, such as 2G [from free memory]."),
    click.option("--kv-tokens", type=int, default=None, help="Size of the KV pool in tokens, instead of bytes."),
    click.option("--block-size", type=int, default=_DEFAULTS.kv.block_size, show_default=True, help="Tokens a block."),
    click.option("--paged/--no-paged", default=True, help="Off: one contiguous block a request."),
    click.option("--prefix-cache/--no-prefix-cache", default=True, help="Reuse blocks of equal prompt beginnings."),
    click.option(
        "--prefix-cache-scope",
        "prefix_scope",
        default=_DEFAULTS.kv.prefix_scope,
        show_default=True,
        help="Who shares cached blocks: tenant (each has its own) or shared (all tenants).",
    ),
    click.option(
        "--eviction",
        default=_DEFAULTS.kv.eviction,
        show_default=True,
        help="Which cached block goes first: cost (cheapest to compute again and least used) or lru.",
    ),
    click.option("--kv-disk", default=None, help="Directory that keeps evicted blocks, over restarts too [none]."),
    click.option("--kv-disk-bytes", type=Size(), default=None, help="Size of its files at most, such as 20G [8G]."),
    click.option(
        "--pin-tokens",
        type=int,
        default=_DEFAULTS.kv.pin_tokens,
        show_default=True,
        help="Tokens of cached prefixes that may be pinned (octavo cache); 0: none.",
    ),
    click.option("--policy", default="continuous", show_default=True, help="continuous or static batching."),
    click.option(
        "--max-num-seqs",
        type=int,
        default=_DEFAULTS.scheduler.max_num_seqs,
        show_default=True,
        help="Requests in one step at most.",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=int,
        default=_DEFAULTS.scheduler.max_num_batched_tokens,
        show_default=True,
        help="Token budget of one step.",
    ),
    click.option(
        "--target-itl-ms",
        type=float,
        default=None,
        help="Time between two tokens that prompts may not exceed: it sets each step's chunks [the whole budget].",
    ),
    click.option("--chunked-prefill/--no-chunked-prefill", default=True, help="Off: prompts are computed whole."),
    click.option(
        "--scheduling-policy",
        "order",
        default="fcfs",
        show_default=True,
        help="fcfs, or priority: the request's priority counts.",
    ),
    click.option("--tenant-fairness/--no-tenant-fairness", default=True, help="Tenants share by what they were given."),
    click.option(
        "--output-weight",
        type=float,
        default=_DEFAULTS.scheduler.output_weight,
        show_default=True,
        help="Prompt tokens that a generated token counts as, between tenants.",
    ),
    click.option(
        "--partial-preemption/--no-partial-preemption", default=True, help="Off: preempted requests keep no block."
    ),
    click.option(
        "--kv-watermark",
        "watermark",
        type=float,
        default=_DEFAULTS.scheduler.watermark,
        show_default=True,
        help="Part of the pool that new requests leave free.",
    ),
    click.option(
        "--max-queue-requests",
        type=int,
        default=_DEFAULTS.scheduler.max_queue_requests,
        show_default=True,
        help="Requests that may wait; more are refused.",
    ),
    click.option("--max-queue-tokens", type=int, default=None, help="Prompt tokens that may wait in a server [none]."),
    click.option("--max-queue-seconds", type=float, default=None, help="Longest wait before a request starts [none]."),
    click.option("--backend", default="cpu", show_default=True, help="cpu or reference (NumPy, slow)."),
    click.option("--isa", default=None, help="amx, avx512, avx2 or portable [the best the machine has]."),
    click.option("--threads", type=int, default=None, help="Native threads [the CPUs this process may use]."),
    click.option("--attention", default="tiled", show_default=True, help="tiled or naive."),
    click.option("--program/--no-program", default=True, help="Off: one native call an op."),
    click.option(
        "--speculative",
        default=_DEFAULTS.speculative.proposer,
        show_default=True,
        help="Who guesses tokens that one step then checks: off or ngram. Only the time changes.",
    ),
    click.option("--draft-tokens", type=int, default=None, help="Tokens of one guess at most [8]."),
    click.option(
        "--draft-from",
        default=None,
        help="Where ngram looks: request, or tenant (its finished requests too) [request].",
    ),
    click.option(
        "--adaptive-drafts/--no-adaptive-drafts",
        "adaptive",
        default=None,
        help="Guess as long as it pays [on]; off: always.",
    ),
    click.option(
        "--verification",
        default=None,
        help="coupled (the tokens stay) or rejection (their distribution stays) [coupled].",
    ),
    click.option(
        "--draft-rows", type=int, default=None, help="Guessed tokens of one step, all requests together [128]."
    ),
    click.option(
        "--stuck-seconds",
        type=FiniteRange(0, 86400),
        default=_DEFAULTS.stuck_seconds,
        show_default=True,
        help="An engine in which nothing moves for so long (loading: 90 times it) is ended and restarted; 0: never.",
    ),
    click.option(
        "--verify-prefix-cache", is_flag=True, help="Compare every cached block's tokens before it is used (debugging)."
    ),
    click.option(
        "--shared-prefix-attention/--no-shared-prefix-attention",
        default=None,
        help="Read pages that requests share once a step [on where attention is tiled].",
    ),
    click.option(
        "--structured-outputs/--no-structured-outputs",
        default=True,
        help="Off: requests with a JSON schema, regex, choice or grammar are refused.",
    ),
    click.option(
        "--jump-forward/--no-jump-forward", default=True, help="Off: tokens that a structure forces are drawn too."
    ),
    click.option("--validate-kv", is_flag=True, help="Recount every KV block after each step (slow)."),
]


def engine_options(command: F) -> F:
    """Adds MODEL and the engine's flags; the command gets them as one `engine: EngineConfig`."""
    return click.argument("model", required=False)(engine_flags(command))


def engine_flags(command: F) -> F:
    """Adds the engine's flags alone."""

    def wrapper(*args: Any, model: str | None = None, **values: Any) -> Any:
        own = {name: values.pop(name) for name in list(values) if name not in _NAMES}
        return command(*args, engine=make_config(model, values), **own)

    wrapper.__name__ = command.__name__
    wrapper.__doc__ = command.__doc__
    wrapper.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Any = wrapper
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def make_config(model: str | None, values: dict[str, Any]) -> EngineConfig:
    """The configuration that the flags ask for; refuses what no model and no machine could make right."""
    if model is not None and not model.strip():
        raise ConfigError("MODEL is empty; name a .gguf file or a directory, or leave it out for the default model")
    config = EngineConfig(
        model=ModelConfig(
            path=model or "",
            name=values["name"],
            precision=values["precision"],
            dequantisation=values["dequantisation"],
            max_model_len=values["max_model_len"],
            generation_config=values["generation_config"],
            chat_template=values["chat_template"],
        ),
        kv=KVConfig(
            size_bytes=values["kv_memory"],
            size_tokens=values["kv_tokens"],
            block_size=values["block_size"],
            paged=values["paged"],
            prefix_cache=values["prefix_cache"],
            prefix_scope=values["prefix_scope"],
            eviction=values["eviction"],
            disk=values["kv_disk"],
            disk_bytes=values["kv_disk_bytes"],
            pin_tokens=values["pin_tokens"],
            verify_prefix_cache=values["verify_prefix_cache"],
        ),
        scheduler=SchedulerConfig(
            policy=values["policy"],
            max_num_seqs=values["max_num_seqs"],
            max_num_batched_tokens=values["max_num_batched_tokens"],
            target_itl_ms=values["target_itl_ms"],
            chunked_prefill=values["chunked_prefill"],
            order=values["order"],
            tenant_fairness=values["tenant_fairness"],
            output_weight=values["output_weight"],
            partial_preemption=values["partial_preemption"],
            watermark=values["watermark"],
            max_queue_requests=values["max_queue_requests"],
            max_queue_tokens=values["max_queue_tokens"],
            max_queue_seconds=values["max_queue_seconds"],
        ),
        execution=ExecutionConfig(
            backend=values["backend"],
            isa=values["isa"],
            threads=values["threads"],
            attention=values["attention"],
            program=values["program"],
            shared_prefix_attention=values["shared_prefix_attention"],
            structured_outputs=values["structured_outputs"],
            jump_forward=values["jump_forward"],
        ),
        speculative=SpeculativeConfig(
            proposer=values["speculative"],
            draft_tokens=values["draft_tokens"],
            draft_from=values["draft_from"],
            adaptive=values["adaptive"],
            verification=values["verification"],
            draft_rows=values["draft_rows"],
        ),
        validate_kv=values["validate_kv"],
        stuck_seconds=values["stuck_seconds"],
    )
    check_choices(config)
    return config


def _names() -> frozenset[str]:
    def probe() -> None: ...

    for option in _OPTIONS:
        option(probe)
    params: list[click.Parameter] = probe.__click_params__  # type: ignore[attr-defined]
    return frozenset(param.name for param in params if param.name)


_NAMES = _names()
