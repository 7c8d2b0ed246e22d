"""What the decoder-only architectures share: sizes from a configuration, names of tensors, halves of a layer.

Owns no architecture: each file beside this one takes what fits and says what differs (`dataclasses.replace` of the
spec, other rules, its own forward pass).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from octavo.models.architecture import TensorRule
from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.rope import Dynamic, RopeDefaults, gguf_rope, hf_rope
from octavo.models.spec import LayerSpec, ModelSpec
from octavo.ops.base import OpSet

V = TypeVar("V")
Act = Literal["silu", "gelu"]

SILU: Mapping[str, Act] = {"silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class HFDefaults:
    """What a Hugging Face class assumes where config.json says nothing."""

    tied: bool = False
    norm_eps: float = 1e-6
    max_context: int = 2048
    kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: hidden / heads."""
    rope: RopeDefaults = field(default_factory=RopeDefaults)
    rope_layers: str | None = None
    """The layer type whose rotary embedding is meant, where the configuration has one a type."""
    acts: Mapping[str, Act] = field(default_factory=lambda: SILU)
    partial: bool = False
    """Part of a head may be rotated."""


def hf_decoder(config: ConfigReader, name: str, defaults: HFDefaults | None = None) -> ModelSpec:
    """The spec of a plain pre-norm decoder, its one rotary embedding on every layer, without biases and windows."""
    defaults = defaults or HFDefaults()
    hidden = config.integer("hidden_size", low=1, high=1 << 20)
    heads = config.integer("num_attention_heads", low=1, high=1 << 14)
    kv_default = heads if config.is_null("num_key_value_heads") else defaults.kv_heads or heads
    kv_heads = config.integer("num_key_value_heads", kv_default, low=1, high=heads)
    head_dim = config.integer("head_dim", defaults.head_dim or hidden // heads, low=1, high=1 << 12)
    if head_dim % 2 or heads % kv_heads:
        raise config.error(f"{heads} heads of {head_dim} over {kv_heads} KV heads do not divide evenly")
    layers = config.integer("num_hidden_layers", low=1, high=1 << 12)
    max_context = config.integer("max_position_embeddings", defaults.max_context, low=1)
    rope = hf_rope(config, head_dim, max_context, defaults.rope, defaults.rope_layers)
    if len(rope.inverse_frequencies) != head_dim // 2 and not defaults.partial:
        raise config.error("partial_rotary_factor must be 1 for this architecture: it rotates whole heads")
    if isinstance(rope.scaling, Dynamic):  # the configuration names the context of pretraining
        max_context = rope.scaling.longest
        rope = rope.scaling.at(max_context)
    return ModelSpec(
        architecture=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=config.integer("intermediate_size", low=1, high=1 << 24),
        vocab=config.integer("vocab_size", low=1, high=1 << 24),
        max_context=max(max_context, rope.longest),
        norm_eps=config.number("rms_norm_eps", defaults.norm_eps, high=1.0),
        tied=config.flag("tie_word_embeddings", defaults.tied),
        ropes=(rope,),
        layer_specs=(LayerSpec(),) * layers,
        act=config.choice("hidden_act", "silu", defaults.acts),
    )


def gguf_decoder(meta: Metadata, name: str) -> ModelSpec:
    """The spec of a plain pre-norm decoder from a GGUF file, checked against the embedding's shape."""
    hidden = meta.integer(".embedding_length", low=1, high=1 << 20)
    heads = meta.integer(".attention.head_count", low=1, high=1 << 14)
    kv_heads = meta.integer(".attention.head_count_kv", heads, low=1, high=heads)
    head_dim = meta.integer(".attention.key_length", hidden // heads, low=2, high=1 << 12)
    if meta.integer(".attention.value_length", head_dim) != head_dim:
        raise meta.error("keys and values of different lengths are not supported")
    if head_dim % 2 or heads % kv_heads:
        raise meta.error(f"{heads} heads of {head_dim} over {kv_heads} KV heads do not divide evenly")
    embedding = meta.file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise meta.error("lacks tensor token_embd.weight; the file is incomplete or holds no language model")
    vocab = embedding.shape[0]
    if meta.integer(".vocab_size", vocab) != vocab:
        given = meta.integer(".vocab_size")
        raise meta.error(f"{meta.full('.vocab_size')} is {given}, token_embd.weight has {vocab} rows")
    layers = meta.integer(".block_count", low=1, high=1 << 12)
    max_context = meta.integer(".context_length", low=1)
    rope = gguf_rope(meta, head_dim, max_context)
    tensors = meta.file.tensors
    return ModelSpec(
        architecture=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=meta.integer(".feed_forward_length", low=1, high=1 << 24),
        vocab=vocab,
        max_context=max(max_context, rope.longest),
        norm_eps=meta.number(".attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in tensors,
        ropes=(rope,),
        layer_specs=(LayerSpec(),) * layers,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
    )


def hf_window(config: ConfigReader, default: int | None) -> int | None:
    """sliding_window; null says that there is none, absence what the class assumes."""
    if config.is_null("sliding_window") or (default is None and not config.has("sliding_window")):
        return None
    return config.integer("sliding_window", default, low=1)


LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def hf_windows(config: ConfigReader, layers: int, window: int | None, sliding: Sequence[bool]) -> list[int | None]:
    """One window a layer: where `layer_types` says so, or else where `sliding` does."""
    names = config.items("layer_types", layers, str, "names")
    if names is not None:
        unknown = [name for name in names if name not in LAYER_TYPES]
        if unknown:
            raise config.error(f"layer_types has {unknown[0]!r}; supported: {', '.join(LAYER_TYPES)}")
        sliding = [LAYER_TYPES[name] for name in names]
        if any(sliding) and window is None:
            raise config.error("layer_types has sliding_attention, but no sliding_window is in use")
    return [window if slides else None for slides in sliding]


def with_windows(spec: ModelSpec, windows: Sequence[int | None]) -> ModelSpec:
    """The same model with one window (or None) a layer."""
    pairs = zip(spec.layer_specs, windows, strict=True)
    return replace(spec, layer_specs=tuple(replace(layer, window=window) for layer, window in pairs))


# --- Tensors ------------------------------------------------------------------------------------------


def embed_rule(spec: ModelSpec) -> TensorRule:
    return TensorRule("embed.weight", (spec.vocab, spec.hidden), "model.embed_tokens.weight", "token_embd.weight")


def end_rules(spec: ModelSpec, plus_one: bool = False) -> list[TensorRule]:
    """The last norm, and the head where it is not the embedding."""
    rules = [TensorRule("norm.weight", (spec.hidden,), "model.norm.weight", "output_norm.weight", hf_plus_one=plus_one)]
    if not spec.tied:
        rules.append(TensorRule("head.weight", (spec.vocab, spec.hidden), "lm_head.weight", "output.weight"))
    return rules


def layer_rule(i: int, part: str, shape: tuple[int, ...], hf: str, gguf: str, plus_one: bool = False) -> TensorRule:
    """A tensor of layer i; `part`, `hf` and `gguf` are the names within the layer."""
    return TensorRule(f"layers.{i}.{part}", shape, f"model.layers.{i}.{hf}", f"blk.{i}.{gguf}", hf_plus_one=plus_one)


def attention_rules(spec: ModelSpec, i: int, interleaved: bool = False) -> list[TensorRule]:
    """q, k, v and o with their biases. interleaved: GGUF files keep q and k rows in rotation pairs."""
    rows = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim, "v": spec.kv_heads * spec.head_dim}
    heads = {"q": spec.heads, "k": spec.kv_heads, "v": None}
    rules = []
    for letter, count in rows.items():
        names = (f"attn.{letter}", f"self_attn.{letter}_proj", f"attn_{letter}")
        pair = _linear(i, names, (count, spec.hidden), spec.qkv_bias)
        permuted = heads[letter] if interleaved else None
        rules += [replace(rule, gguf_interleaved_heads=permuted) for rule in pair]
    names = ("attn.o", "self_attn.o_proj", "attn_output")
    return rules + _linear(i, names, (spec.hidden, rows["q"]), spec.o_bias)


def mlp_rules(spec: ModelSpec, i: int) -> list[TensorRule]:
    """gate, up and down with their biases."""
    wide = (spec.intermediate, spec.hidden)
    shapes = {"gate": wide, "up": wide, "down": wide[::-1]}
    rules = []
    for part, shape in shapes.items():
        rules += _linear(i, (f"mlp.{part}", f"mlp.{part}_proj", f"ffn_{part}"), shape, spec.mlp_bias)
    return rules


def _linear(i: int, names: tuple[str, str, str], shape: tuple[int, int], bias: bool) -> list[TensorRule]:
    def rule(suffix: str, shape: tuple[int, ...]) -> TensorRule:
        part, hf, gguf = (f"{name}.{suffix}" for name in names)
        return layer_rule(i, part, shape, hf, gguf)

    return [rule("weight", shape)] + ([rule("bias", shape[:1])] if bias else [])


def pre_norm_rules(spec: ModelSpec, i: int, plus_one: bool = False) -> tuple[TensorRule, TensorRule]:
    """The norms before attention and MLP."""
    shape = (spec.hidden,)
    return (
        layer_rule(i, "attn_norm.weight", shape, "input_layernorm.weight", "attn_norm.weight", plus_one),
        layer_rule(i, "mlp_norm.weight", shape, "post_attention_layernorm.weight", "ffn_norm.weight", plus_one),
    )


def qk_norm_rules(spec: ModelSpec, i: int, whole_row: bool = False, plus_one: bool = False) -> list[TensorRule]:
    """The norms of q and k: of each head, or of all heads' values together."""
    rules = []
    for letter, heads in (("q", spec.heads), ("k", spec.kv_heads)):
        shape = (heads * spec.head_dim if whole_row else spec.head_dim,)
        names = (f"self_attn.{letter}_norm.weight", f"attn_{letter}_norm.weight")
        rules.append(layer_rule(i, f"attn.{letter}_norm.weight", shape, *names, plus_one=plus_one))
    return rules


def post_norm_rules(spec: ModelSpec, i: int, attention: str, plus_one: bool = False) -> tuple[TensorRule, TensorRule]:
    """The norms after attention (under this Hugging Face name) and MLP."""
    shape, hf = (spec.hidden,), "post_feedforward_layernorm.weight"
    return (
        layer_rule(i, "attn_post_norm.weight", shape, f"{attention}.weight", "post_attention_norm.weight", plus_one),
        layer_rule(i, "mlp_post_norm.weight", shape, hf, "post_ffw_norm.weight", plus_one),
    )


def decoder_rules(spec: ModelSpec, interleaved: bool = False, qk_norm: bool = False) -> list[TensorRule]:
    """All tensors of a plain pre-norm decoder."""
    rules = [embed_rule(spec)]
    for i in range(spec.layers):
        before_attention, before_mlp = pre_norm_rules(spec, i)
        rules += [before_attention, *attention_rules(spec, i, interleaved)]
        rules += qk_norm_rules(spec, i) if qk_norm else []
        rules += [before_mlp, *mlp_rules(spec, i)]
    return rules + end_rules(spec)


# --- Forward passes -------------------------------------------------------------------------------------


# Rows "h" are what a product reads (bf16 on the bf16 path), the stream "x" and results of products are float rows.


def embed(ops: OpSet[V], spec: ModelSpec) -> V:
    return ops.embed("embed.weight", spec.embed_scale)


def norm(ops: OpSet[V], spec: ModelSpec, x: V, weight: str, residual: V | None = None) -> V:
    return ops.rms_norm(x, weight, spec.norm_eps, residual)


def qkv_product(ops: OpSet[V], spec: ModelSpec, i: int, h: V) -> V:
    """q, k and v of layer i side by side."""
    attn = f"layers.{i}.attn"
    return ops.linear(h, names(attn, "qkv", "weight"), names(attn, "qkv", "bias") if spec.qkv_bias else None)


def qk_norm(ops: OpSet[V], spec: ModelSpec, i: int, qkv: V) -> V:
    """q and k normed, each head or the whole row, as the weights' sizes say."""
    attn = f"layers.{i}.attn"
    return ops.qk_norm(qkv, f"{attn}.q_norm.weight", f"{attn}.k_norm.weight", spec.norm_eps, i, spec.heads)


def attention(ops: OpSet[V], spec: ModelSpec, i: int, qkv: V) -> V:
    """Rotates, stores and attends as layer i does; heads side by side, before the output product."""
    layer = spec.layer_specs[i]
    q = ops.rope_and_store(qkv, i, spec.heads, layer.rope)
    ops.layer_written(i)
    return ops.attention(q, i, spec.heads, spec.score_scale, layer.window, spec.attn_softcap)


def output(ops: OpSet[V], spec: ModelSpec, i: int, a: V, x: V | None = None) -> V:
    """The attention's output product, added to the stream x where one is given."""
    attn = f"layers.{i}.attn"
    bias = [f"{attn}.o.bias"] if spec.o_bias else None
    return ops.linear(a, [f"{attn}.o.weight"], bias, x, spec.residual_scale)


def mlp(ops: OpSet[V], spec: ModelSpec, i: int, h: V, x: V | None = None, fused: bool = False) -> V:
    """The gated MLP of layer i, added to the stream x where one is given. fused: gate and up are one tensor."""
    part = f"layers.{i}.mlp"
    both = [f"{part}.gate_up"] if fused else [f"{part}.gate", f"{part}.up"]
    up = ops.linear(h, [f"{n}.weight" for n in both], [f"{n}.bias" for n in both] if spec.mlp_bias else None)
    h = ops.silu_mul(up) if spec.act == "silu" else ops.gelu_mul(up)
    bias = [f"{part}.down.bias"] if spec.mlp_bias else None
    return ops.linear(h, [f"{part}.down.weight"], bias, x, spec.residual_scale)


def head(ops: OpSet[V], spec: ModelSpec, x: V, num_tokens: int) -> V:
    """The last norm, for the rows that pooled requests ask for and for those that need logits; logits and the draw."""
    ops.hidden(x, "norm.weight", spec.norm_eps)
    x = norm(ops, spec, ops.gather_rows(x), "norm.weight")
    weight = "embed.weight" if spec.tied else "head.weight"
    logits = ops.logits(x, weight, spec.logit_scale, spec.logit_softcap)
    ops.sample(logits, num_tokens)
    return logits


def names(prefix: str, letters: str, suffix: str) -> list[str]:
    return [f"{prefix}.{letter}.{suffix}" for letter in letters]
