"""What names the bits that keys and values have: every constant of the model, at the context it is served with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import EngineConfig, ModelConfig
from octavo.execution.factory import numerics_id
from octavo.models.spec import LayerSpec, ModelSpec, RopeSpec

SPEC = ModelSpec(
    architecture="gemma3",
    hidden=96,
    layers=2,
    heads=4,
    kv_heads=1,
    head_dim=40,
    intermediate=72,
    vocab=101,
    max_context=512,
    norm_eps=1e-6,
    tied=True,
    ropes=(RopeSpec((1.0, 0.5)), RopeSpec((1.0, 0.25))),
    layer_specs=(LayerSpec(window=7), LayerSpec(rope=1)),
)
CONFIG = EngineConfig(model=ModelConfig(max_model_len=256))


class Stretched:
    """Frequencies that depend on the context, as dynamic scaling has them."""

    def at(self, context: int) -> RopeSpec:
        return RopeSpec((1.0, 1 / context), kind="dynamic", scaling=self)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPEC, layer_specs=(LayerSpec(window=8), LayerSpec(rope=1))),
        replace(SPEC, layer_specs=(LayerSpec(window=7), LayerSpec(rope=None))),
        replace(SPEC, ropes=(RopeSpec((1.0, 0.5)), RopeSpec((1.0, 0.125)))),
        replace(SPEC, ropes=(RopeSpec((1.0, 0.5), scale=1.1), SPEC.ropes[1])),
        replace(SPEC, attn_softcap=50.0),
        replace(SPEC, logit_softcap=30.0),
        replace(SPEC, attn_scale=0.1),
        replace(SPEC, embed_scale=2.0),
        replace(SPEC, residual_scale=0.22),
        replace(SPEC, logit_scale=0.5),
        replace(SPEC, norm_eps=1e-5),
        replace(SPEC, act="gelu"),
    ],
)
def test_every_constant_that_may_change_bits_is_named(changed: ModelSpec) -> None:
    assert numerics_id(CONFIG, changed) != numerics_id(CONFIG, SPEC) == numerics_id(CONFIG, replace(SPEC))


def test_a_rotation_that_depends_on_the_context_is_named_at_the_one_served() -> None:
    spec = replace(SPEC, ropes=(Stretched().at(512), SPEC.ropes[1]))
    longer = EngineConfig(model=ModelConfig(max_model_len=512))
    again = replace(SPEC, ropes=(Stretched().at(512), SPEC.ropes[1]))
    assert numerics_id(CONFIG, spec) == numerics_id(CONFIG, again) != numerics_id(longer, spec)
