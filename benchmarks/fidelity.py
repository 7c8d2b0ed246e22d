"""Real models against Hugging Face transformers on the same file, in float32: every position of a text.

Owns the rows `smollm2-types` and `gemma-3-270m`. Each model reads the same two thousand tokens; where transformers
prefers one token clearly, Octavo's float32 path must prefer it too, and the text must be as likely to both.
"""

from __future__ import annotations

import gc
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gemma import fetch as fetch_gemma
from octavo.config import EngineConfig, KVConfig, ModelConfig, SchedulerConfig
from octavo.execution.factory import build_executor
from octavo.execution.inputs import StepInputs
from octavo.models.store import default_model
from octavo.models.tokenizer import load_tokenizer

TEXT = Path(__file__).parent / "texts" / "printing.txt"
TOKENS, SHORT_TOKENS = 2000, 200
CLEAR = 1e-2
"""How far apart transformers' two greatest logits must be for the choice to count."""
PERPLEXITY = 1e-3
TYPES = ("Q4_1", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1")
"""Of SmolLM2: the file as published, and written anew in each other type."""
_STEP = 128

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Reading:
    """What a model makes of a text, one value a position."""

    choice: npt.NDArray[np.int64]
    margin: F32
    """Between the two greatest logits."""
    log_probability: npt.NDArray[np.float64]
    """Of the token that follows."""

    @property
    def perplexity(self) -> float:
        return float(np.exp(-self.log_probability.mean()))


def read(logits: F32, following: npt.NDArray[np.int64]) -> Reading:
    """A few positions' logits; `following` are the tokens after them."""
    top = np.partition(logits, -2, axis=-1)[:, -2:]
    greatest = top[:, 1].astype(np.float64)
    total = np.exp(logits - greatest[:, None]).sum(axis=-1)
    chosen = np.take_along_axis(logits, following[:, None], axis=-1)[:, 0]
    return Reading(logits.argmax(axis=-1), top[:, 1] - top[:, 0], chosen - greatest - np.log(total))


def joined(parts: list[Reading]) -> Reading:
    return Reading(
        np.concatenate([part.choice for part in parts]),
        np.concatenate([part.margin for part in parts]),
        np.concatenate([part.log_probability for part in parts]),
    )


def by_transformers(path: Path, ids: list[int]) -> Reading:
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert not getattr(model.config, "final_logit_softcapping", None), "the head alone would not be the logits"
    parts = []
    with torch.no_grad():
        rows = model.model(torch.tensor([ids[:-1]]), use_cache=False).last_hidden_state[0]
        for first in range(0, len(rows), _STEP):
            logits = model.lm_head(rows[first : first + _STEP]).numpy()
            parts.append(read(logits, np.array(ids[first + 1 : first + 1 + len(logits)])))
    del model, rows
    gc.collect()
    return joined(parts)


def by_octavo(path: Path, ids: list[int], precision: str = "float32", dequantisation: str = "expanded") -> Reading:
    """In steps of one request, as a prompt is computed in chunks."""
    tokens = -(-len(ids) // _STEP) * _STEP
    config = EngineConfig(
        model=ModelConfig(path=str(path), precision=precision, dequantisation=dequantisation, max_model_len=tokens),
        kv=KVConfig(size_tokens=tokens),
        scheduler=SchedulerConfig(max_num_seqs=_STEP, max_num_batched_tokens=_STEP),
    )
    executor = build_executor(config, lambda what, fraction: None)
    width = tokens // executor.config.kv.block_size
    assert all(count >= width for count in executor.num_blocks), "every group must hold the whole text"
    tables = [np.arange(width, dtype=np.int32)[None] for _ in executor.num_blocks]
    parts = []
    for first in range(0, len(ids) - 1, _STEP):
        step = np.array(ids[first : min(first + _STEP, len(ids) - 1)], np.int32)
        rows = np.arange(len(step), dtype=np.int32)
        seqs = np.array([[0, len(step), first, 0]], np.int32)
        executor.forward.run(StepInputs(step, seqs, tables, rows, []))
        parts.append(read(executor.forward.logits(len(step)), np.array(ids[first + 1 : first + 1 + len(step)])))
    executor.close()
    gc.collect()
    return joined(parts)


def text_ids(path: Path, short: bool) -> list[int]:
    """The text in the model's tokens, with the BOS that it wants."""
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode(TEXT.read_text(), add_bos=tokenizer.add_bos)
    count = SHORT_TOKENS if short else TOKENS
    assert len(ids) > count, f"the text has only {len(ids)} tokens"
    return ids[: count + 1]


def compare(path: Path, short: bool) -> dict[str, Any]:
    """One file: agreement, perplexities (the bf16 path's too, which has no bar), and whether both bars are met."""
    ids = text_ids(path, short)
    theirs, ours = by_transformers(path, ids), by_octavo(path, ids)
    clear = theirs.margin > CLEAR
    differing = int((theirs.choice != ours.choice)[clear].sum())
    apart = abs(ours.perplexity / theirs.perplexity - 1)
    return {
        "tokens": len(ids) - 1,
        "clear": int(clear.sum()),
        "differing": differing,
        "perplexity": ours.perplexity,
        "transformers": theirs.perplexity,
        "bf16": by_octavo(path, ids, "bf16").perplexity,
        "integer": by_octavo(path, ids, "bf16", "integer").perplexity,
        "apart": apart,
        "met": differing == 0 and apart < PERPLEXITY,
    }


def result(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    worst = max(one["apart"] for one in found.values())
    differing = sum(one["differing"] for one in found.values())
    return {
        "bar": "the same choice where transformers' margin is over 0.01, perplexity within 0.1 %",
        "figure": f"{differing} other choices, perplexity {worst:.5%} apart at most, over {', '.join(found)}",
        "met": all(one["met"] for one in found.values()),
        "details": found,
    }


def smollm2_types(short: bool) -> dict[str, Any]:
    """The default model's file, and files written from it in other types."""
    original = default_model(lambda what, fraction: None)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in TYPES[:2] if short else TYPES:
            path = original if kind == TYPES[0] else written(original, Path(folder) / f"{kind}.gguf", kind)
            found[kind] = compare(path, short)
            if path != original:
                path.unlink()
    return result(found)


def gemma_3_270m(short: bool) -> dict[str, Any]:
    """Gemma 3 270M in Q4_K_M, with Q5_0, Q6_K and Q8_0 among its tensors."""
    return result({"Q4_K_M": compare(fetch_gemma(), short)})


def written(source: Path, target: Path, kind: str) -> Path:
    """The same model with every matrix in another type, metadata and vectors as they are."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, entry.contents(), entry.types[0], inner)
    quant = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        raw = gguf.quants.quantize(values, quant) if values.ndim > 1 else values
        writer.add_tensor(tensor.name, raw, raw_dtype=quant if values.ndim > 1 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
