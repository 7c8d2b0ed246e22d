"""Rotary embeddings: every spelling of a configuration, and every kind of scaling, as inverse frequencies.

Owns the formulas and nothing else. A configuration is read once, when the model is opened, into `RopeSpec`s. Two kinds
depend on the length that is served (dynamic and longrope): their `RopeSpec` carries a `Scaling`, and the engine asks it
once for its own context (`ModelSpec.at_context`). Off switch: none; a kind that is not listed here is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octavo.models.config_reader import ConfigReader
from octavo.models.metadata import Metadata
from octavo.models.spec import ModelSpec, RopeSpec

F64 = npt.NDArray[np.float64]

KINDS = {
    "default": "default",
    "none": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
}
"""Names in configurations -> kinds."""
_SECTION_KEYS = (
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor", "short_factor", "long_factor", "short_mscale", "long_mscale", "finetuned", "mrope_section",
)  # fmt: skip
_MAX_CONTEXT = 1 << 31


def note(spec: ModelSpec, context: int) -> str | None:
    """What the user must know of frequencies that transformers would change with each prompt's length.

    Within the context of pretraining it changes nothing either.
    """
    scalings = [(rope.kind, rope.scaling) for rope in spec.ropes]
    kinds = sorted({kind for kind, scaling in scalings if isinstance(scaling, Scaling) and context > scaling.original})
    if not kinds:
        return None
    return (
        f"{' and '.join(kinds)} frequencies are fixed for {context} positions (--max-model-len), where transformers "
        "changes them with the length of each prompt"
    )


def base_frequencies(theta: float, rotary: int) -> F64:
    """theta ** (-2 i / rotary)."""
    return theta ** (-np.arange(0, rotary, 2, dtype=np.float64) / rotary)


def _stretched(original: int, factor: float) -> int:
    return int(min(original * factor, _MAX_CONTEXT))


def spec_of(frequencies: F64, kind: str, scale: float = 1.0, scaling: Scaling | None = None) -> RopeSpec:
    return RopeSpec(tuple(frequencies.tolist()), scale, kind, scaling=scaling)


@dataclass(frozen=True)
class Dynamic:
    """NTK scaling with a base fixed for the engine: the one of Hugging Face at `context` positions."""

    theta: float
    rotary: int
    factor: float
    original: int

    @property
    def longest(self) -> int:
        """The context that the factor is meant for."""
        return max(self.original, _stretched(self.original, self.factor))

    def at(self, context: int) -> RopeSpec:
        length = max(context, self.original)
        stretch = self.factor * length / self.original - (self.factor - 1)
        theta = self.theta * stretch ** (self.rotary / (self.rotary - 2))
        return spec_of(base_frequencies(theta, self.rotary), "dynamic", scaling=self)


@dataclass(frozen=True)
class LongRope:
    """One list of factors for engines within the original context, and one for those beyond it."""

    theta: float
    short: tuple[float, ...]
    long: tuple[float, ...]
    scale: float
    original: int

    def at(self, context: int) -> RopeSpec:
        factors = np.asarray(self.long if context > self.original else self.short)
        frequencies = base_frequencies(self.theta, 2 * len(factors)) / factors
        return spec_of(frequencies, "longrope", self.scale, self)


Scaling = Dynamic | LongRope


def llama3(frequencies: F64, factor: float, low: float, high: float, original: int) -> F64:
    """Long wavelengths are stretched by `factor`, short ones are not, those between are blended."""
    turns = original * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (blend + (1 - blend) / factor)


def yarn(theta: float, rotary: int, factor: float, original: int, betas: tuple[float, float], truncate: bool) -> F64:
    """Dimensions that turn more than beta_fast times within the original context stay, below beta_slow they stretch."""

    def dimension(turns: float) -> float:
        return rotary * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(betas[0]), dimension(betas[1])
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(rotary // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    frequencies = base_frequencies(theta, rotary)
    return frequencies * (1 - ramp) + frequencies / factor * ramp


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def longrope_scale(factor: float, original: int) -> float:
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


@dataclass(frozen=True)
class RopeDefaults:
    """What a configuration need not say."""

    theta: float = 10000.0
    partial: float = 1.0
    original: int | None = None
    """The context of pretraining; None: what the scaling says, or else the model's context."""


def hf_rope(
    config: ConfigReader,
    head_dim: int,
    max_context: int,
    defaults: RopeDefaults = RopeDefaults(),
    layer_type: str | None = None,
) -> RopeSpec:
    """The rotary embedding of config.json, of the layers of `layer_type` where the configuration tells them apart.

    The older format keeps the base at the top and the scaling in `rope_scaling`, the newer one all in
    `rope_parameters`, which may hold an object a layer type.
    """
    section = _section(config, layer_type)
    theta = config.number("rope_theta", defaults.theta, low=1.0)
    partial = config.number("partial_rotary_factor", config.number("rotary_pct", defaults.partial, high=1.0), high=1.0)
    if section is None:
        return spec_of(base_frequencies(theta, _rotary(config, head_dim, partial)), "default")
    theta = section.number("rope_theta", theta, low=1.0)
    partial = section.number("partial_rotary_factor", partial, high=1.0)
    original = section.integer("original_max_position_embeddings", max_context, low=2, high=_MAX_CONTEXT)
    # Some configurations keep it at the top, and then that one counts.
    top = defaults.original or original
    original = config.integer("original_max_position_embeddings", top, low=2, high=_MAX_CONTEXT)
    contexts = _Contexts(max_context, original)
    return _scaled(section, theta, _rotary(config, head_dim, partial), contexts)


def hf_unscaled_rope(config: ConfigReader, head_dim: int, defaults: RopeDefaults, layer_type: str) -> RopeSpec:
    """The rotary embedding of layers that no scaling touches: an object of the newer format, or the base alone."""
    theta = config.number("rope_theta", defaults.theta, low=1.0)
    newer = config.section("rope_parameters")
    section = newer.section(layer_type) if newer is not None else None
    if section is not None:
        section.choice("rope_type", "default", {"default": None})
        theta = section.number("rope_theta", theta, low=1.0)
    return spec_of(base_frequencies(theta, head_dim), "default")


def _section(config: ConfigReader, layer_type: str | None) -> ConfigReader | None:
    """The object that names the kind of scaling."""
    newer, older = config.section("rope_parameters"), config.section("rope_scaling")
    section = older if older is not None and older.values else newer
    if section is not None and layer_type is not None and section.has(layer_type):
        section = section.section(layer_type)
    if section is None or not section.values:
        return None
    if section.has("attn_factor"):
        raise section.wrong("attn_factor", "absent, for transformers does not read it, or be called attention_factor")
    for key in section.values:
        if key not in _SECTION_KEYS:
            raise section.wrong(key, f"absent: known are {', '.join(_SECTION_KEYS)}")
    return section


def _rotary(config: ConfigReader, head_dim: int, partial: float) -> int:
    rotary = int(head_dim * partial)
    if rotary < 2 or rotary % 2:
        raise config.error(f"partial_rotary_factor {partial:g} of a head of {head_dim} rotates {rotary} dimensions; "
                           "it must be an even number of them")  # fmt: skip
    return rotary


@dataclass(frozen=True)
class _Contexts:
    model: int
    original: int
    """Of pretraining."""


def _scaled(section: ConfigReader, theta: float, rotary: int, contexts: _Contexts) -> RopeSpec:
    name = "rope_type" if section.has("rope_type") or not section.has("type") else "type"
    kind = section.choice(name, "default", KINDS)
    frequencies = base_frequencies(theta, rotary)
    if kind == "default":
        return spec_of(frequencies, kind)
    if kind == "longrope" or (kind == "yarn" and section.has("short_factor")):
        return _longrope(section, theta, rotary, contexts)
    if kind == "yarn":
        return _yarn(section, theta, rotary, contexts)
    factor = section.number("factor", high=1e6)
    if kind == "linear":
        return spec_of(frequencies / factor, kind if factor != 1.0 else "default")
    if kind == "dynamic":
        if rotary <= 2:
            raise section.error("dynamic RoPE scaling needs at least 4 rotated dimensions")
        return Dynamic(theta, rotary, factor, contexts.model).at(contexts.model)
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        raise section.wrong("high_freq_factor", f"above low_freq_factor, which is {low:g}")
    return spec_of(llama3(frequencies, factor, low, high, contexts.original), kind)


def _yarn(section: ConfigReader, theta: float, rotary: int, contexts: _Contexts) -> RopeSpec:
    ratio = contexts.model / contexts.original if contexts.original != contexts.model else None
    factor = section.number("factor", ratio, high=1e6)
    betas = section.number("beta_fast", 32.0), section.number("beta_slow", 1.0)
    if betas[0] < betas[1]:
        raise section.wrong("beta_fast", f"at least beta_slow, which is {betas[1]:g}")
    scale = yarn_scale(factor)
    if section.has("attention_factor"):
        scale = section.number("attention_factor")
    elif section.has("mscale") and section.has("mscale_all_dim"):
        scale = yarn_scale(factor, section.number("mscale")) / yarn_scale(factor, section.number("mscale_all_dim"))
    frequencies = yarn(theta, rotary, factor, contexts.original, betas, section.flag("truncate", True))
    return replace(spec_of(frequencies, "yarn", scale), longest=_stretched(contexts.original, factor))


def _longrope(section: ConfigReader, theta: float, rotary: int, contexts: _Contexts) -> RopeSpec:
    factor = section.number("factor", contexts.model / contexts.original)
    scale = section.number("attention_factor", longrope_scale(factor, contexts.original))
    short, long = section.numbers("short_factor", rotary // 2), section.numbers("long_factor", rotary // 2)
    return LongRope(theta, short, long, scale, contexts.original).at(contexts.model)


def gguf_rope(meta: Metadata, head_dim: int, max_context: int, theta: float | None = None) -> RopeSpec:
    """The rotary embedding of a GGUF file: its metadata, and its tensors of factors."""
    theta = meta.number(".rope.freq_base", 10000.0) if theta is None else theta
    rotary = meta.integer(".rope.dimension_count", head_dim, low=2, high=head_dim)
    if rotary % 2 or theta <= 1.0:
        raise meta.error(f"a rotary embedding of base {theta:g} over {rotary} dimensions is not possible")
    kind = meta.string(".rope.scaling.type", "linear")
    factor = meta.number(".rope.scaling.factor", 1.0)
    original = meta.integer(".rope.scaling.original_context_length", max_context, low=2)
    if meta.number(".rope.scaling.yarn_ext_factor", 1.0) != 1.0:
        raise meta.error(f"{meta.full('.rope.scaling.yarn_ext_factor')} must be 1")
    long = meta.vector("rope_factors_long.weight", rotary // 2)
    short = meta.vector("rope_factors_short.weight", rotary // 2)
    scale = meta.number(".rope.scaling.attn_factor", 1.0)
    if long is not None and short is not None and factor == 1.0:
        return LongRope(theta, short, long, scale, original).at(max_context)
    if long is not None or short is not None:
        raise meta.error("rope_factors_long.weight and rope_factors_short.weight belong together, without a factor")
    if scale != 1.0 or kind not in ("linear", "none", "yarn"):
        raise meta.error(f"RoPE scaling {kind!r} is not supported without factors; supported: none, linear, yarn")
    frequencies = base_frequencies(theta, rotary)
    if kind == "yarn" and factor != 1.0:
        betas = meta.number(".rope.scaling.yarn_beta_fast", 32.0), meta.number(".rope.scaling.yarn_beta_slow", 1.0)
        frequencies = yarn(theta, rotary, factor, original, betas, truncate=True)
        # Converters write two settings of different meaning under this key, of which transformers reads one.
        given = meta.number(".rope.scaling.yarn_attn_factor", yarn_scale(factor))
        if not math.isclose(given, yarn_scale(factor), rel_tol=1e-5):
            raise meta.error(f"{meta.full('.rope.scaling.yarn_attn_factor')} is {given:g}; supported: none")
        return replace(spec_of(frequencies, "yarn", yarn_scale(factor)), longest=_stretched(original, factor))
    named = "default"
    if kind == "linear" and factor != 1.0:
        frequencies, named = frequencies / factor, "linear"
    factors = meta.vector("rope_freqs.weight", rotary // 2)
    if factors is not None and any(value != 1.0 for value in factors):
        frequencies, named = frequencies / np.asarray(factors), "llama3"
    return spec_of(frequencies, named)
