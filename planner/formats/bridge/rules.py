"""Rules of Megatron-Bridge: those of Megatron that its overrides can break."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from planner.formats.bridge.keys import NAMED, as_options, spelled
from planner.formats.format import Broken, FormatRule, Value, World
from planner.formats.megatron.rules import RULES as MEGATRON_RULES

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
Check = Callable[[Mapping[str, Value], World], Iterable[Broken]]


def _translated(check: Check) -> Check:
    def checked(settings: Mapping[str, Value], world: World) -> Iterable[Broken]:
        options = as_options(settings)
        for broken in check(options, world):
            asked = set(_OPTION.findall(broken.message))
            if NAMED in settings and asked - options.keys():
                continue  # the recipe may have it
            yield Broken(key=spelled(broken.key), message=spelled(broken.message))

    return checked


RULES: tuple[FormatRule, ...] = tuple(
    replace(rule, check=_translated(rule.check)) for rule in MEGATRON_RULES if rule.name in SHARED
)
