"""A model's facts for people and for programs: what `octavo doctor` and `octavo pull` say of it. Loads no weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from octavo.config import Budget, ConfigError, EngineConfig, explain
from octavo.models.inspection import Inspection, inspect
from octavo.models.spec import ModelError, ModelSpec
from octavo.models.tokenizer import Tokenizer, load_tokenizer
from octavo.server.templates import ChatTemplate, ChatTemplateError
from octavo.speculative.fits import fits
from octavo.speculative.fits import line as drafts_line

_SHOWN = 8
"""Names of tensors in the text report; the JSON has all."""


@dataclass(frozen=True)
class TextFacts:
    """The tokeniser and the chat template."""

    kind: str = ""
    tokens: int = 0
    bos: str | None = None
    adds_bos: bool = False
    """Whether a plain prompt gets a BOS in front."""
    eos: tuple[str, ...] = ()
    template: str = ""
    """"renders", "none", or what is wrong with it."""
    refusal: str | None = None


@dataclass(frozen=True)
class PlanFacts:
    """What the engine would choose on this machine."""

    config: EngineConfig
    budget: Budget
    kv_groups: dict[str, int]
    """Group of layers -> bytes that a token takes in it."""
    kinds: dict[str, int]
    """Kind of packed matrix -> how many."""
    rounding: str | None
    sampling: dict[str, float]
    """What the model suggests where a request leaves a field out."""


@dataclass(frozen=True)
class ModelFacts:
    """All of it."""

    inspection: Inspection
    text: TextFacts
    plan: PlanFacts | None
    refusal: str | None
    """Why it would not start; None: it would."""


def model_facts(path: Path, engine: EngineConfig) -> ModelFacts:
    """Never raises ModelError or ConfigError: a refusal is one of the facts."""
    seen = inspect(path)
    text = text_facts(path)
    plan, refusal = None, seen.refusal or text.refusal
    try:
        plan = plan_facts(path, engine) if seen.refusal is None else None
    except (ModelError, ConfigError) as error:
        refusal = refusal or str(error)
    return ModelFacts(seen, text, plan, refusal)


def text_facts(path: Path) -> TextFacts:
    try:
        tokenizer = load_tokenizer(path)
    except ModelError as error:
        return TextFacts(refusal=str(error))
    return TextFacts(
        kind="byte-level BPE" if tokenizer.byte_level else "SentencePiece",
        tokens=tokenizer.num_tokens,
        bos=None if tokenizer.bos_id is None else _token(tokenizer, tokenizer.bos_id),
        adds_bos=tokenizer.add_bos,
        eos=tuple(_token(tokenizer, token) for token in tokenizer.eos_ids),
        template=_template(tokenizer),
    )


def _token(tokenizer: Tokenizer, token: int) -> str:
    return f"{token} {tokenizer.decode([token], skip_special=False)!r}"


def _template(tokenizer: Tokenizer) -> str:
    if tokenizer.chat_template is None:
        return "none: chats are refused, completions work"
    template = ChatTemplate.of(tokenizer)
    try:
        template.try_out()
    except ChatTemplateError as error:
        return f"broken: {error}"
    finally:
        template.close()
    return "renders"


def plan_facts(path: Path, engine: EngineConfig) -> PlanFacts:
    from octavo.execution.factory import plan_resources

    plan = plan_resources(replace(engine, model=replace(engine.model, path=str(path))))
    kinds = Counter(entry.kind for entry in plan.arena.entries.values()) if plan.arena is not None else Counter()
    return PlanFacts(
        config=plan.config,
        budget=plan.budget,
        kv_groups={group.name: group.bytes_per_token for group in plan.groups},
        kinds=dict(kinds),
        rounding=plan.arena.rounding(plan.config.model.dequantisation) if plan.arena is not None else None,
        sampling=plan.sampling.chosen(),
    )


# --- for people ------------------------------------------------------------------------------------------


def lines(facts: ModelFacts) -> list[str]:
    """The report, without the refusal."""
    seen = facts.inspection
    said = [f"files      {seen.kind}, {_size(seen.total_bytes)}, architecture {seen.architecture or 'not given'}"]
    if seen.types:
        types = ", ".join(f"{row.tensors} {row.type} ({_size(row.bytes)})" for row in seen.types)
        said.append(f"tensors    {_count(seen.parameters)} parameters: {types}")
    for what, names in (
        ("missing", seen.faults.missing),
        ("misshapen", seen.faults.misshapen),
        ("unknown", seen.faults.unknown),
    ):
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            said.append(f"{what:<10} {len(names)} tensors: {', '.join(names[:_SHOWN])}{more}")
    if seen.spec is not None:
        said += [*spec_lines(seen.spec), drafts_line(seen.spec)]
    said += _text_lines(facts.text)
    said += [f"note       {note}" for note in seen.notes]
    return said + (_plan_lines(facts.plan) if facts.plan is not None else [])


def spec_lines(spec: ModelSpec) -> list[str]:
    """Sizes, context, rotation, experts."""
    heads = f"{spec.heads} heads of {spec.head_dim} ({spec.kv_heads} KV)"
    said = [
        f"sizes      {spec.architecture}, {spec.layers} layers, hidden {spec.hidden}, {heads}, "
        f"MLP {spec.intermediate}, vocabulary {spec.vocab}, {'tied' if spec.tied else 'untied'} head",
        f"context    {spec.max_context} tokens; {_windows(spec)}",
        f"rope       {'; '.join(_ropes(spec))}",
    ]
    if spec.moe is not None:
        shared = f", a shared one of {spec.moe.shared_intermediate}" if spec.moe.shared_intermediate else ""
        said.append(f"experts    {spec.moe.top_k} of {spec.moe.experts}, {spec.moe.intermediate} wide each{shared}")
    return said


def _windows(spec: ModelSpec) -> str:
    widths = Counter(layer.window for layer in spec.layer_specs)
    if set(widths) == {None}:
        return "every layer sees all of it"
    parts = [
        f"{count} layers see {'all of it' if width is None else f'the last {width}'}"
        for width, count in sorted(widths.items(), key=lambda item: item[0] or 0)
    ]
    return ", ".join(parts)


def _ropes(spec: ModelSpec) -> list[str]:
    parts = []
    for i, rope in enumerate(spec.ropes):
        layers = sum(layer.rope == i for layer in spec.layer_specs)
        rotated = 2 * len(rope.inverse_frequencies)
        fixed = ", fixed for the context that is served" if rope.scaling is not None else ""
        parts.append(f"{rope.kind}, {rotated} of {spec.head_dim} dimensions{fixed}, in {layers} layers")
    without = sum(layer.rope is None for layer in spec.layer_specs)
    return parts + ([f"none in {without} layers"] if without else [])


def _text_lines(text: TextFacts) -> list[str]:
    if text.refusal is not None:
        return [f"tokeniser  {text.refusal}"]
    bos = "no BOS" if text.bos is None else f"BOS {text.bos}{'' if text.adds_bos else ' (not added to prompts)'}"
    eos = " and ".join(text.eos) or "none"
    return [f"tokeniser  {text.kind}, {text.tokens} tokens, {bos}, EOS {eos}", f"template   {text.template}"]


def _plan_lines(plan: PlanFacts) -> list[str]:
    execution = plan.config.execution
    kinds = ", ".join(f"{count} {kind}" for kind, count in plan.kinds.items()) or "NumPy arrays"
    groups = ", ".join(f"{size} bytes in {name} layers" for name, size in plan.kv_groups.items())
    said = [*explain(plan.config, plan.budget), f"KV/token   {groups}", f"packed as  {kinds}"]
    if plan.rounding:
        said.append(f"numbers    {plan.rounding}")
    suggested = ", ".join(f"{name} {value:g}" for name, value in plan.sampling.items())
    said.append(f"sampling   {suggested or 'temperature 1'} where a request leaves it out")
    said.append(
        f"runs       {execution.isa or execution.backend}, {execution.threads} threads, {execution.attention} "
        f"attention, program {'on' if execution.program else 'off'}"
    )
    return said


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"


def _count(values: int) -> str:
    return f"{values / 1e9:.2f} billion" if values >= 10**9 else f"{values / 1e6:.1f} million"


# --- for programs ----------------------------------------------------------------------------------------


def as_json(facts: ModelFacts) -> dict[str, Any]:
    """Plain values; all names of tensors, and no table of frequencies."""
    seen = facts.inspection
    return {
        "path": seen.path,
        "kind": seen.kind,
        "architecture": seen.architecture,
        "supported": seen.spec is not None,
        "starts": facts.refusal is None,
        "refusal": facts.refusal,
        "parameters": seen.parameters,
        "bytes": seen.total_bytes,
        "types": [asdict(row) for row in seen.types],
        "tensors": asdict(seen.faults),
        "spec": None if seen.spec is None else spec_json(seen.spec),
        "proposers": None if seen.spec is None else fits(seen.spec),
        "notes": list(seen.notes),
        "tokeniser": asdict(facts.text),
        "plan": None if facts.plan is None else asdict(facts.plan),
    }


def spec_json(spec: ModelSpec) -> dict[str, Any]:
    plain = asdict(spec)
    plain["ropes"] = [
        {"kind": rope.kind, "dimensions": 2 * len(rope.inverse_frequencies), "scale": rope.scale} for rope in spec.ropes
    ]
    return plain
