"""Rules of Megatron-Bridge: those of Megatron that its overrides can break."""

import re
from collections.abc import Iterable
from dataclasses import replace

from planner.formats.bridge.keys import NAMED, as_options, spelled
from planner.formats.format import FormatRule, Violation, World
from planner.formats.megatron.rules import RULES as MEGATRON_RULES
from planner.formats.settings import Settings

SHARED = (
    "degrees_divide_processes",
    "expert_degrees_divide_processes",
    "tp_divides_heads",
    "tp_fits_kv_heads",
    "pp_divides_layers",
    "chunks_divide_stage",
    "layout_fits",
    "layout_stands_alone",
    "ends_or_accounted",
    "ends_leave_even_middle",
    "chunks_need_stages",
    "micro_batches_fill_chunks",
    "batch_divides",
    "cp_divides_sequence",
    "ep_divides_experts",
    "instances_divide_dp",
    "full_recompute_is_complete",
    "recompute_has_a_granularity",
    "selective_recompute_takes_modules",
    "host_layers_stand_alone",
    "optimizer_offload_setup",
    "precision_aware_needs_sharded_adam",
    "megatron_fsdp_takes_all_processes",
    "delayed_gradients_need_exchange",
    "layout_holds_mtp",
    "mtp_recomputes_single_layers",
)
_OPTION = re.compile(r"--[a-z0-9-]+")


def _in_overrides(rule: FormatRule) -> FormatRule:
    """A rule of Megatron-LM asked of its options, and told in the keys of the overrides.

    Where the file names a recipe, what a rule asks for may stand there.
    """

    def check(settings: Settings, world: World) -> Iterable[Violation]:
        options = as_options(settings)
        for broken in rule.check(options, world):
            asked = set(_OPTION.findall(broken.message))
            if NAMED not in settings or asked <= options.keys():
                yield Violation(key=spelled(broken.key), message=spelled(broken.message))

    return replace(rule, check=check)


RULES: tuple[FormatRule, ...] = tuple(
    _in_overrides(rule) for rule in MEGATRON_RULES if rule.name in SHARED
)
