"""Configuration: nested frozen dataclasses, and one `resolve()` that fills, checks and explains them.

Life: the CLI or `LLM` builds an `EngineConfig` in which None means "choose for me"; the engine process opens the
model, gathers `Facts`, and calls `resolve()`, which replaces every None or refuses with one sentence that names the
flag and a value that would work. Nothing downstream chooses again and nothing mutates a configuration later.
The environment is read in this module alone.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from dataclasses import dataclass, field, replace

from octavo.http_config import MIB, TAKEN_HEADER
from octavo.http_config import ServerConfig as ServerConfig
from octavo.kv_config import KVConfig as KVConfig
from octavo.kv_config import KVShape as KVShape
from octavo.kv_config import most_live as most_live
from octavo.speculative_config import SpeculativeConfig as SpeculativeConfig
from octavo.speculative_config import faults, resolved
from octavo.speculative_config import logit_rows as logit_rows

TILE = 32
"""Positions an attention tile, and so the granularity of a block (docs/numerics.md)."""
PARTITION = 512  # positions an attention partition (docs/numerics.md)
MAX_BLOCK = 65536  # tokens of the largest block
MAX_POOL_TOKENS = 1 << 40
DISK_BYTES = 8 << 30  # bound of the KV cache's tier on disk where none is given
EMULATED_ISAS = ("amx-emulated",)  # for tests: never offered

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_ORIGIN = re.compile(r"https?://[^/\s]+/?|[a-z-]+://[^\s]*")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


class ConfigError(ValueError):
    """A setting that cannot work; the message is one sentence naming the flag and a value that would."""


@dataclass(frozen=True)
class ModelConfig:
    """Which weights, and the numbers they are computed in."""

    path: str = ""
    """A .gguf file, a directory with safetensors, or a name (models/locate.py); empty means the default model."""
    name: str | None = None
    """Name shown by the API; None: the file's or directory's name."""
    precision: str = "bf16"
    """"bf16", or "float32" (float32 activations and KV pages; slow; for checking against other engines)."""
    dequantisation: str = "expanded"
    """"expanded" (weights become bf16 inside products) or "integer" (inputs become bytes; a numerics configuration)."""
    max_model_len: int | None = None
    """Longest prompt + output, tokens. None: the model's context, or what the KV pool holds if that is less."""
    generation_config: str = "model"
    """"model": where a request leaves a sampling field out, the model's suggestion holds; "none": the API's default."""
    chat_template: str | None = None
    """A file with a template, or the name of one of the model's; None: the model's default one."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Who runs now."""

    policy: str = "continuous"
    """"continuous", or "static": a batch is filled once and runs until its last request has finished."""
    max_num_seqs: int = 128
    """Requests in one step at most."""
    max_num_batched_tokens: int = 512
    """Token budget of one step."""
    target_itl_ms: float | None = None
    """Prompts get as much of a step as keeps the time between two tokens under this. None: the whole budget."""
    chunked_prefill: bool = True
    """Off: a prompt is computed whole in one step (the budget must hold the longest prompt)."""
    order: str = "fcfs"
    """"fcfs" (first come, first served), or "priority": a request's `priority` counts, lower is sooner."""
    tenant_fairness: bool = True
    """Tenants share the machine by what they were given; off: requests in order of age, whoever sends them."""
    output_weight: float = 2.0
    """Prompt tokens that a generated token counts as."""
    partial_preemption: bool = True
    """Off: a preempted request gives back all its blocks."""
    watermark: float = 0.01
    """Part of the pool that new requests leave free for the growth of those that run."""
    max_queue_requests: int = 4096
    """Requests that may wait; more are refused."""
    max_queue_tokens: int | None = None
    """Prompt tokens that may wait in a server. None: no end."""
    max_queue_seconds: float | None = None
    """Longest wait for a first admission; then the request ends with an error. None: no end."""


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
    shared_prefix_attention: bool | None = None
    """Pages that several requests of a step share are read once for all. None: where attention is tiled and native."""
    structured_outputs: bool = True
    """Off: requests with a structure are refused. On, a process for them starts with the first."""
    jump_forward: bool = True
    """Tokens that a structure forces are not drawn. The tokens are the same."""


@dataclass(frozen=True)
class EngineConfig:
    """All that the engine process needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    validate_kv: bool = False
    """Recompute every block count from scratch after each step (tests)."""
    stuck_seconds: float = 20.0
    """An engine in which nothing moves for so long (and many times what its step should take) is ended; 0: never."""


@dataclass(frozen=True)
class PoolSizes:
    """How a pool of so many tokens is divided: window groups never need more than their requests can hold."""

    shape: KVShape
    scheduler: SchedulerConfig
    block_size: int

    def blocks(self, tokens: int, window: int | None) -> int:
        """Blocks of one group."""
        blocks = tokens // self.block_size
        if window is None:
            return blocks
        # Two steps of lead: an executor may keep a second one in flight.
        live = most_live(window, 2 * self.scheduler.max_num_batched_tokens, self.block_size)
        return min(blocks, self.scheduler.max_num_seqs * live)

    def bytes(self, tokens: int) -> int:
        """Bytes of all groups."""
        windows = [self.blocks(tokens, window) * self.block_size * size for window, size in self.shape.windows]
        return tokens * self.shape.full_bytes + sum(windows)

    def tokens(self, size: int) -> int:
        """The most tokens whose pool takes at most `size` bytes, up to MAX_POOL_TOKENS."""
        low, high = 0, MAX_POOL_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes(middle) <= size else (low, middle - 1)
        return low


@dataclass(frozen=True)
class Facts:
    """What `resolve()` needs to know of the model and the machine."""

    max_context: int
    """Context the model was made for, tokens."""
    kv: KVShape
    weights_bytes: int
    """Packed weights."""
    row_bytes: int
    """Activation workspace a row of the step needs (logits apart)."""
    vocab: int
    available_bytes: int
    """Memory this process may still take: the machine's or the cgroup's, whichever is less."""
    cpus: int
    isas: tuple[str, ...]
    """Instruction sets the machine runs, best first."""


@dataclass(frozen=True)
class Budget:
    """What a resolved configuration takes, bytes; for the start-up report."""

    weights: int
    kv: int
    workspace: int
    free: int
    kv_tokens: int


ENVIRONMENT = {
    "OCTAVO_CACHE": "directory for models and packed weights",
    "XDG_CACHE_HOME": "parent of the cache directory where OCTAVO_CACHE is not set",
    "HOME": "home directory",
    "HF_HOME": "parent of the Hugging Face cache, ~/.cache/huggingface where not set",
    "HF_HUB_CACHE": "the Hugging Face cache itself",
    "HF_ENDPOINT": "the Hub to ask, https://huggingface.co where not set",
    "HF_TOKEN": "token for private and gated models",
    "HF_HUB_OFFLINE": "1: no model is downloaded",
    "OCTAVO_FAULTS": "faults that the engine brings about, for tests (engine/faults.py)",
    "OCTAVO_API_KEY": "key that octavo chat --url sends",
}
"""Every variable that Octavo reads; those of Hugging Face are read by its library."""


def environment(name: str) -> str | None:
    """The value of one of `ENVIRONMENT`'s variables; empty counts as unset."""
    assert name in ENVIRONMENT, name
    return os.environ.get(name) or None


def child_environment(**changes: str) -> dict[str, str]:
    """This process's whole environment with changes, for a program started from here."""
    return {**os.environ, **changes}


def resolve(config: EngineConfig, facts: Facts) -> tuple[EngineConfig, Budget]:
    """Fills every None, checks every value and combination.

    Returns the configuration that everything downstream obeys, and the memory it takes.
    Raises ConfigError with one sentence that names the flag and a value that would work.
    """
    check_choices(config)
    execution = _resolve_execution(config.execution, facts)
    scheduler = config.scheduler
    _check_disk(config.kv, facts)
    speculative = resolved(config.speculative, scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    rows = logit_rows(speculative, scheduler.max_num_seqs)
    workspace = scheduler.max_num_batched_tokens * facts.row_bytes + rows * facts.vocab * 4
    length = _requested_length(config.model, facts)
    capacity = _pool_tokens(config, facts, workspace, length)
    block = config.kv.block_size if config.kv.paged else _round_up(min(length, capacity), TILE)
    blocks = capacity // block
    if blocks < 1:
        fits = f"--block-size {capacity // TILE * TILE}" if config.kv.paged else f"--kv-tokens {block}"
        raise ConfigError(f"the KV pool holds {capacity} tokens, less than one block of {block}; {fits} would work")
    tokens = blocks * block
    pins = _pin_tokens(config, PoolSizes(facts.kv, scheduler, block), tokens)
    length = _fit_length(config.model, length, tokens - pins)
    scheduler = _resolve_scheduler(scheduler, length)
    size = PoolSizes(facts.kv, scheduler, block).bytes(tokens)
    kv = replace(config.kv, size_bytes=size, size_tokens=tokens, block_size=block)
    if kv.disk is not None and kv.disk_bytes is None:
        kv = replace(kv, disk_bytes=DISK_BYTES)
    filled = replace(
        config,
        model=replace(config.model, max_model_len=length),
        kv=kv,
        scheduler=scheduler,
        execution=execution,
        speculative=speculative,
    )
    used = facts.weights_bytes + size + workspace
    budget = Budget(
        weights=facts.weights_bytes,
        kv=size,
        workspace=workspace,
        free=max(0, facts.available_bytes - used),
        kv_tokens=tokens,
    )
    return filled, budget


def explain(config: EngineConfig, budget: Budget) -> tuple[str, ...]:
    """The five lines of the start-up report, for a resolved configuration."""
    length = config.model.max_model_len
    tokens = config.kv.size_tokens
    assert length is not None and tokens is not None
    full = tokens // _round_up(length, config.kv.block_size)
    return (
        f"weights    {_size(budget.weights)}",
        f"KV cache   {_size(budget.kv)} = {tokens} tokens in {tokens // config.kv.block_size} blocks of "
        f"{config.kv.block_size}",
        f"workspace  {_size(budget.workspace)} for {config.scheduler.max_num_batched_tokens} tokens and "
        f"{config.scheduler.max_num_seqs} requests a step",
        f"free       {_size(budget.free)} of memory left",
        f"fits       {full} request{'' if full == 1 else 's'} of the full {length} tokens at once, more when shorter",
    )


def check_choices(config: EngineConfig) -> None:
    """Refuses what is wrong whatever the model and the machine; nothing may use these values before."""

    def one_of(flag: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise ConfigError(f"{flag} {value!r} is not known; use one of {', '.join(allowed)}")

    def between(flag: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            near = high if math.isnan(value) else min(max(value, low), high)
            raise ConfigError(f"{flag} {value} is outside {low} to {high}; {near} would work")

    one_of("--precision", config.model.precision, ("bf16", "float32"))
    one_of("--dequantisation", config.model.dequantisation, ("expanded", "integer"))
    plain = config.model.precision == "bf16" and config.execution.backend == "cpu"
    if config.model.dequantisation == "integer" and not plain:
        raise ConfigError("--dequantisation integer is for --precision bf16 on --backend cpu; expanded would work")
    one_of("--generation-config", config.model.generation_config, ("model", "none"))
    one_of("--prefix-cache-scope", config.kv.prefix_scope, ("tenant", "shared"))
    one_of("--eviction", config.kv.eviction, ("cost", "lru"))
    one_of("--policy", config.scheduler.policy, ("continuous", "static"))
    one_of("--scheduling-policy", config.scheduler.order, ("fcfs", "priority"))
    one_of("--backend", config.execution.backend, ("cpu", "reference"))
    one_of("--attention", config.execution.attention, ("tiled", "naive"))
    if not 0 <= config.stuck_seconds <= 86400:  # NaN is outside too
        raise ConfigError(f"--stuck-seconds {config.stuck_seconds} is outside 0 to 86400; 20 would work")
    _check_sharing(config.execution)
    if (wrong := faults(config.speculative)) is not None:
        raise ConfigError(wrong)
    between("--max-num-seqs", config.scheduler.max_num_seqs, 1, 4096)
    between("--max-num-batched-tokens", config.scheduler.max_num_batched_tokens, 1, 65536)
    between("--output-weight", config.scheduler.output_weight, 0, 1000)
    between("--kv-watermark", config.scheduler.watermark, 0, 0.5)
    between("--max-queue-requests", config.scheduler.max_queue_requests, 1, 1_000_000)
    if config.scheduler.target_itl_ms is not None:
        between("--target-itl-ms", config.scheduler.target_itl_ms, 0.1, 600_000)
        if not config.scheduler.chunked_prefill:
            raise ConfigError("--target-itl-ms sets the size of chunks; leave --no-chunked-prefill out")
    if config.scheduler.max_queue_tokens is not None:
        between("--max-queue-tokens", config.scheduler.max_queue_tokens, 1, MAX_POOL_TOKENS)
    if config.scheduler.max_queue_seconds is not None:
        between("--max-queue-seconds", config.scheduler.max_queue_seconds, 0.001, 86_400)
    if not TILE <= config.kv.block_size <= MAX_BLOCK:
        raise ConfigError(
            f"--block-size {config.kv.block_size} is outside {TILE} to {MAX_BLOCK}; --block-size {TILE} would work"
        )
    if config.kv.block_size % TILE:
        near = _round_up(config.kv.block_size, TILE)
        raise ConfigError(f"--block-size {config.kv.block_size} is not a multiple of {TILE}; {near} would work")
    between("--pin-tokens", config.kv.pin_tokens, 0, MAX_POOL_TOKENS)
    if config.kv.pin_tokens and not config.kv.prefix_cache:
        raise ConfigError("--pin-tokens pins what the prefix cache holds; leave --no-prefix-cache out")
    if config.kv.size_bytes is not None and config.kv.size_tokens is not None:
        raise ConfigError("--kv-memory and --kv-tokens both set the KV pool; give one of them")
    if config.kv.disk is None:
        if config.kv.disk_bytes is not None:
            raise ConfigError(
                "--kv-disk-bytes bounds the files of --kv-disk, which is not given; --kv-disk DIR would work"
            )
    elif not config.kv.disk.strip():
        raise ConfigError("--kv-disk is empty; name a directory, or leave it out to keep nothing on disk")
    elif not config.kv.prefix_cache:
        raise ConfigError("--kv-disk keeps what the prefix cache evicts; leave out --no-prefix-cache or --kv-disk")
    elif not config.kv.paged:
        raise ConfigError("--kv-disk keeps blocks, which --no-paged does not have; leave out one of them")
    if config.model.name is not None and not config.model.name.strip():
        raise ConfigError("--name is empty; leave it out to use the file's name, or --name my-model would work")


def check_server(config: ServerConfig) -> None:
    """Refuses what is wrong about the HTTP side."""
    header = config.tenant_header
    if header is not None and not _HEADER.fullmatch(header):
        raise ConfigError(f"--tenant-header {header!r} is no name of a header; --tenant-header X-Tenant would work")
    if header is not None and TAKEN_HEADER.fullmatch(header):
        raise ConfigError(f"--tenant-header {header} holds a secret, or says something else; X-Tenant would work")
    if header is not None and config.api_keys is not None:
        raise ConfigError(
            "--tenant-header and --api-keys exclude each other: a key's name is the tenant; leave one out"
        )
    if (config.tls_cert is None) != (config.tls_key is None):
        given, lacking = ("--tls-cert", "--tls-key") if config.tls_key is None else ("--tls-key", "--tls-cert")
        raise ConfigError(f"{given} needs {lacking} too; name the file of the other half")
    if config.max_buffered_bytes < config.max_body_bytes:
        raise ConfigError(
            f"--max-buffered-bytes {config.max_buffered_bytes} is less than --max-body-bytes "
            f"{config.max_body_bytes}; {config.max_body_bytes} would work"
        )
    for origin in config.cors_origin:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"--cors-origin {origin!r} is no origin; https://app.example or * would work")
    for name in config.allowed_host:
        if name != "*" and not _HOST.fullmatch(name):
            raise ConfigError(f"--allowed-host {name!r} is no name; api.example.org, without a port, would work")


def is_loopback(host: str) -> bool:
    """Only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_disk(kv: KVConfig, facts: Facts) -> None:
    """Layers with a window lose the blocks behind it one by one, so a prefix on disk would have holes."""
    if kv.disk is not None and facts.kv.windows:
        window = facts.kv.windows[0][0]
        raise ConfigError(
            f"--kv-disk keeps whole prefixes, and this model has layers that see the last {window} tokens alone; "
            f"leave out --kv-disk"
        )


def _check_sharing(execution: ExecutionConfig) -> None:
    if not execution.shared_prefix_attention:
        return
    settings = (("--attention", execution.attention, "tiled"), ("--backend", execution.backend, "cpu"))
    for flag, value, works in settings:
        if value != works:
            raise ConfigError(
                f"--shared-prefix-attention shares the partitions of tiled native attention, which {flag} {value} has "
                f"not; {flag} {works} would work, or --no-shared-prefix-attention"
            )


def _resolve_execution(execution: ExecutionConfig, facts: Facts) -> ExecutionConfig:
    isa = execution.isa or facts.isas[0]
    if isa not in facts.isas and isa not in EMULATED_ISAS:
        raise ConfigError(f"--isa {isa!r} does not run on this machine; use one of {', '.join(facts.isas)}")
    threads = execution.threads if execution.threads is not None else facts.cpus
    if not 1 <= threads <= 1024:
        raise ConfigError(f"--threads {threads} is outside 1 to 1024; {facts.cpus} would work")
    shared = execution.shared_prefix_attention
    if shared is None:
        shared = execution.backend == "cpu" and execution.attention == "tiled"
    return replace(execution, isa=isa, threads=threads, shared_prefix_attention=shared)


def _requested_length(model: ModelConfig, facts: Facts) -> int:
    if model.max_model_len is None:
        return facts.max_context
    if not 1 <= model.max_model_len <= facts.max_context:
        raise ConfigError(
            f"--max-model-len {model.max_model_len} is outside 1 to {facts.max_context}, the model's context; "
            f"{min(max(model.max_model_len, 1), facts.max_context)} would work"
        )
    return model.max_model_len


def _pool_tokens(config: EngineConfig, facts: Facts, workspace: int, length: int) -> int:
    """Tokens the pool holds: what was asked for, else what memory allows and the running requests can use."""
    spare = facts.available_bytes - facts.weights_bytes - workspace
    pool = PoolSizes(facts.kv, config.scheduler, config.kv.block_size if config.kv.paged else TILE)
    if config.kv.size_tokens is not None:
        wanted = config.kv.size_tokens
        flag, unit = f"--kv-tokens {wanted}", "--kv-tokens"
    elif config.kv.size_bytes is not None:
        wanted = pool.tokens(config.kv.size_bytes)
        flag, unit = f"--kv-memory {_size(config.kv.size_bytes)}", "--kv-tokens"
    else:
        # A quarter of what is free (the machine is not ours alone), and never more than all running requests could use.
        useful = config.scheduler.max_num_seqs * _round_up(length, config.kv.block_size)
        wanted = min(pool.tokens(max(0, spare) // 4), useful)
        if wanted < TILE:
            raise ConfigError(
                f"no memory is left for a KV pool: {_size(max(0, facts.available_bytes))} are available and the "
                f"weights and workspace take {_size(facts.weights_bytes + workspace)}; a smaller model or "
                f"--max-num-batched-tokens 128 would help"
            )
        return wanted
    if wanted < TILE:
        raise ConfigError(f"{flag} is too small for one block of {TILE} tokens; {unit} {TILE * 8} would work")
    if pool.bytes(wanted) > max(0, spare):
        fits = pool.tokens(max(0, spare)) // TILE * TILE
        raise ConfigError(
            f"{flag} needs {_size(pool.bytes(wanted))} and {_size(max(0, spare))} are free; "
            f"{unit} {fits // 2} would work"
        )
    return wanted


def _pin_tokens(config: EngineConfig, pool: PoolSizes, tokens: int) -> int:
    """What pins may hold, whole blocks; half of every group's pool at most, so that requests are not pushed out."""
    wanted = config.kv.pin_tokens
    groups = (None, *(window for window, _ in pool.shape.windows))
    most = min(pool.blocks(tokens, window) for window in groups) // 2 * pool.block_size
    if wanted > most:
        works = f"--pin-tokens {most} would work" if most else "a larger pool, --kv-tokens, would help"
        raise ConfigError(f"--pin-tokens {wanted} is more than half of the KV pool's {tokens} tokens; {works}")
    return wanted // pool.block_size * pool.block_size


def _fit_length(model: ModelConfig, length: int, tokens: int) -> int:
    if length <= tokens:
        return length
    if model.max_model_len is not None:
        raise ConfigError(
            f"--max-model-len {length} is more than the KV pool's {tokens} tokens; --max-model-len {tokens} would work"
        )
    return tokens


def _resolve_scheduler(scheduler: SchedulerConfig, length: int) -> SchedulerConfig:
    if not scheduler.chunked_prefill and scheduler.max_num_batched_tokens < length:
        raise ConfigError(
            f"--no-chunked-prefill needs a step that holds the longest prompt: --max-num-batched-tokens {length} "
            f"would work, or --max-model-len {scheduler.max_num_batched_tokens}"
        )
    return scheduler


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _size(value: int) -> str:
    return f"{value / MIB:.0f} MiB" if value < 4096 * MIB else f"{value / (1024 * MIB):.1f} GiB"
