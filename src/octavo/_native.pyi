"""The native module (native/src/module.cpp): packed weights, pages, the program executor."""

from collections.abc import Sequence
from typing import Any

def isas() -> list[str]:
    """Instruction sets that this machine runs, best first: of "amx", "avx512", "avx2", "portable".

    "amx" is listed only where the kernel grants the tile permission, which this call asks for.
    """

def cpu_count(prefix: str = "") -> int:
    """CPUs this process may use: affinity, capped by the cgroup's quota (rounded up).

    /proc and /sys are looked for below `prefix` (tests).
    """

def read_rate(isa: str, threads: int, bytes: int) -> float:
    """Bytes a second that all threads together read from a buffer of that size: the machine's limit, not a kernel's."""

def multiply_add_rate(isa: str, threads: int) -> float:
    """Floating-point operations a second of pure multiply-adds (tile products on AMX), all threads."""

# --- weights (pack.h) -----------------------------------------------------------------------------

def source_row_bytes(source: str, k: int) -> int:
    """Bytes of one row of k values, whole blocks. source: "F32", "F16", "BF16", GGUF's "Q8_0", "Q4_0", "Q4_1", "Q5_0",
    "Q5_1", "Q2_K" to "Q6_K", "IQ4_NL", "IQ4_XS", or the neutral "G4" and "G8" (source.h).
    """

def packed_bytes(kind: str, n: int, k: int) -> int:
    """Bytes of a packed matrix; kind is "bf16", "f32" or a quantised source's name in lower case."""

def can_pack(source: str, kind: str) -> bool:
    """Quantised sources pack as their own kind, floats as "bf16"; every source's exact values as "f32"."""

def pack(source: str, kind: str, n: int, k: int, src: Any, dst: Any, first_row: int = 0) -> None:
    """Packs `src` (buffer of n rows) into `dst` (writable buffer of packed_bytes). Releases the GIL.

    Blocks whose scale is not finite are refused by ValueError; rows count from `first_row` in its message. A matrix
    may be packed in pieces of a multiple of 16 rows: packed pieces follow each other.
    """

def unpack(kind: str, n: int, k: int, packed: Any, dst: Any, rounded: bool = True) -> None:
    """Expands a packed matrix to float32 [n, k] (`dst`): as bf16 products see the values, or unrounded."""

class Weight:
    """A packed matrix, or a float vector (kind "vector", n = 1: k plain floats), in memory that `owner` keeps alive."""

    def __init__(self, owner: Any, offset: int, kind: str, n: int, k: int) -> None:
        """`owner` is a buffer; the matrix starts `offset` bytes into it (a multiple of 64)."""
    kind: str
    n: int
    k: int

# --- memory ----------------------------------------------------------------------------------------

def map_arena(path: str, offset: int, length: int) -> Any:
    """A read-only buffer of a file, on huge pages where the machine allows (else an anonymous huge-page copy)."""

def checksum(data: Any) -> int:
    """64 bits that accidental damage of a buffer changes; at the speed of memory."""

class KVPool:
    """The pages of one group: num_blocks blocks of block_size positions for `layers` layers, zeroed memory.

    Layout: block-major (block, layer, head, tile of 32 positions); a tile as in kernels.h.
    """

    def __init__(
        self, num_blocks: int, block_size: int, layers: int, kv_heads: int, head_dim: int, float32: bool
    ) -> None: ...
    bytes: int
    @staticmethod
    def bytes_per_token(layers: int, kv_heads: int, head_dim: int, float32: bool) -> int: ...
    def read(self, layer: int, block: int, key: Any, value: Any) -> None:
        """Writes one block as canonical float32 [block_size, kv_heads, head_dim] into `key` and `value`."""
    wire_bytes: int
    """Bytes of one block in its wire form: [layer][key, value][head][position][dim], bf16 or float32."""
    def export_block(self, block: int, dst: Any) -> None:
        """Writes a block's wire form into `dst` (writable buffer). Releases the GIL."""
    def import_block(self, block: int, src: Any) -> None:
        """Fills a block from its wire form. Releases the GIL."""
    def fill(self, value: float) -> None:
        """Fills every page with one value, NaN included (tests)."""

# --- the program -----------------------------------------------------------------------------------

class Batch:
    """One step's inputs: reused from step to step, arrays are copied in.

    Row r of the step is a token. Sequence s owns rows [row, row + count).
    """

    def __init__(self) -> None: ...
    def set_tokens(self, ids: Any) -> None:
        """int32 [rows]."""
    def set_sequences(self, seqs: Any, block_tables: Sequence[Any]) -> None:
        """seqs: int32 [num_seqs, 4] (row, count, start, store_from); block tables: int32 [num_seqs, width] a group."""
    def set_shared(self, groups: Sequence[tuple[Any, Any]]) -> None:
        """Prefixes that sequences share; set_sequences clears them. One entry a group: int32 runs [n, 4] of (first
        member, members, from partition, to partition), and int32 members, which are sequences."""
    def set_logit_rows(self, rows: Any) -> None:
        """int32 [n]: rows whose logits are needed, in the order of the samples."""
    def set_hidden_rows(self, rows: Any) -> None:
        """int32 [n]: rows whose hidden states are wanted; none until this was called."""
    def set_samples(self, samples: Sequence[Sample]) -> None:
        """One a logit row; empty when logits alone are wanted."""

class Sample:
    """How to draw one row (kernels.h SampleRow). Arrays are kept alive by the object."""

    def __init__(
        self,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        choice: int,
        num_logprobs: int,
    ) -> None: ...
    position: int
    """Absolute position of the token drawn; set before each step."""
    given: int
    """-1: a token is drawn. Else it is this one, of which the log-probability and the rank are wanted."""
    def set_penalties(
        self, repetition: float, presence: float, frequency: float, prompt_counts: Any, output_counts: Any
    ) -> None:
        """int32 [vocab] arrays that the caller updates in place; None where unused."""
    def set_bias(self, ids: Any, values: Any) -> None: ...
    def set_banned(self, ids: Any | None) -> None:
        """int32 ids that cannot be drawn; None clears."""
    def set_mask(self, mask: Any | None) -> None:
        """uint32 [vocab / 32] of allowed ids; None clears."""

class Program:
    """A recorded forward pass. Record once; run for any batch within the limits given here.

    Buffers are named by the integers that the recording methods return. A buffer holds `max_rows` rows (or
    `max_logit_rows` after `gather_rows`) of a fixed number of columns. In float32 programs all buffers are float;
    else the outputs of rms_norm (without a residual), activate, cast, rope_and_store and attention are bf16.
    """

    def __init__(
        self,
        isa: str,
        threads: int,
        max_rows: int,
        max_logit_rows: int,
        max_positions: int,
        float32: bool,
        naive_attention: bool,
        pools: Sequence[KVPool],
        ropes: Sequence[tuple[Any, Any]],
        integer_products: bool = False,
    ) -> None:
        """ropes: (cos, sin) of each rotary table, float32 [max_positions, rotary / 2]; not copied, must not change."""
    # recording
    def embed(self, weight: Weight, scale: float = 1.0) -> int: ...
    def input(self, columns: int, bf16: bool) -> int:
        """A buffer that the caller fills with write(): for ops called alone."""
    def rms_norm(self, src: int, weight: Weight, eps: float, residual: int | None = None) -> int:
        """weight: a float vector (kind "vector", k = columns). With a residual, float rows, the sum is written
        over it and its number returned."""
    def qk_norm(
        self, qkv: int, group: int, layer: int, q_heads: int, q_weight: Weight, k_weight: Weight, eps: float
    ) -> int:
        """In place. A weight holds one head's values (each head is normalised) or all heads' (the whole row)."""
    def cast(self, src: int) -> int:
        """Float rows as a product reads them."""
    def linear(
        self,
        src: int,
        weights: Sequence[Weight],
        bias: Weight | None = None,
        residual: int | None = None,
        scale: float = 1.0,
    ) -> int:
        """The weights' outputs side by side (fused projections of different types), plus bias, times scale. With a
        residual the result is written over it and its number returned."""
    def moe(
        self,
        src: int,
        router: Weight,
        experts: Sequence[Sequence[Weight]],
        top_k: int,
        renormalise: bool,
        act: str,
        residual: int | None = None,
    ) -> int:
        """experts: (gate, up, down) of each of the router's. Slots are summed in order, then the residual is added,
        over which the result is written."""
    def gated_add(self, src: int, gate: int, residual: int) -> int:
        """residual + sigmoid(gate) * src, written over the residual; the gate has one column."""
    def rope_and_store(self, qkv: int, group: int, layer: int, q_heads: int, rope: int | None = 0) -> int:
        """layer: index within the group. rope: which table; None rotates nothing. Returns q."""
    def attention(
        self,
        q: int,
        group: int,
        layer: int,
        q_heads: int,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Weight | None = None,
    ) -> int:
        """sinks: a float vector of q_heads values."""
    def activate(self, src: int, act: str) -> int:
        """act: "silu" or "gelu"; src holds gate and up side by side."""
    def gather_rows(self, src: int) -> int: ...
    def hidden(self, src: int, weight: Weight, eps: float) -> int:
        """The batch's hidden rows of src, normalised as rms_norm does, float; read() it after the run."""
    def logits(self, src: int, weight: Weight, scale: float = 1.0, softcap: float | None = None) -> int:
        """float [max_logit_rows, n]; scale first. A soft cap is an op of its own, in place."""
    def sample(self, logits: int, vocab: int) -> None: ...
    # slots (DESIGN 4): recorded where the model's structure offers them, free when unused
    def layer_written(self, layer: int) -> None:
        """Publishes `layer + 1` in `layers_written` once all threads have passed it; a run starts at 0."""
    def tap(self, src: int) -> int:
        """Keeps a copy of a buffer's rows until the next run; read() it afterwards."""
    def wait_flag(self, index: int) -> None:
        """The step waits here until set_flag(index) was called for it; flags start set."""
    def collective(self, src: int, function: int, context: int) -> None:
        """Calls a C function `void(void* context, float* rows, int64 rows, int64 columns)` on one thread."""
    # running
    num_ops: int
    op_names: list[str]
    def run(self, batch: Batch) -> None:
        """The whole step in one call; releases the GIL."""
    def run_op(self, index: int, batch: Batch) -> None:
        """One op (`program=off`); equal bits."""
    def run_from(self, index: int, batch: Batch) -> None:
        """The ops from `index` on, for other logit rows of the step that ran last; `index` is gather_rows or later."""
    def run_ops(self, first: int, last: int, batch: Batch) -> None:
        """Ops [first, last) in one call; releases the GIL."""
    def read(self, buffer: int, rows: int) -> Any:
        """A float32 NumPy copy [rows, columns]; ValueError where a later op reused the memory (tap it)."""
    def write(self, buffer: int, values: Any) -> None:
        """float32 [rows, columns]; rounded where the buffer is bf16."""
    def results(self) -> list[tuple[int, float, list[int], list[float]]]:
        """(token or -1, logprob, top ids, top logprobs) a sample of the last run."""
    def ranks(self) -> list[int]:
        """1 + how many tokens come before a given one, a sample; 0 where a token was drawn."""
    def op_seconds(self) -> list[float]:
        """Wall time of each op in the last run (0 unless set_timing(True))."""
    def set_timing(self, on: bool) -> None: ...
    layers_written: int
    def set_flag(self, index: int, ready: bool) -> None: ...
    workspace_bytes: int
    def close(self) -> None:
        """Ends the threads."""
