"""Which recompute modules have nothing to save on a model."""

from dataclasses import replace

from planner.layers.block import layer_groups
from planner.layers.op import LayerShape
from planner.spec.model import ModelSpec
from planner.spec.traits import FrameworkTraits

_SHARDED = LayerShape.all_of(2.0, seq_len=8)
"""Every axis in use, so that every tensor a layer can keep is there."""


def _saves(model: ModelSpec, traits: FrameworkTraits, module: str) -> bool:
    alone = replace(traits.recompute, selected=(module,))
    groups = layer_groups(model, _SHARDED, replace(traits, recompute=alone))
    return any((op.kept_bytes < op.saved_bytes).any() for group in groups for op in group.ops)


def idle_modules(model: ModelSpec, traits: FrameworkTraits) -> tuple[str, ...]:
    """Return the selected modules that alone would save no byte in any layer of the model."""
    return tuple(
        module for module in traits.recompute.selected if not _saves(model, traits, module)
    )
