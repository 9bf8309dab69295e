"""Rules of Megatron-Bridge: those of Megatron that its overrides can break."""

from planner.formats.bridge.keys import NAMED, as_options, spelled
from planner.formats.format import FormatRule
from planner.formats.megatron.rules import RULES as MEGATRON_RULES
from planner.formats.megatron.translated import translated

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
RULES: tuple[FormatRule, ...] = translated(MEGATRON_RULES, SHARED, as_options, spelled, NAMED)
"""The recipe may have what a rule asks for."""
