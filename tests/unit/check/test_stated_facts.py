"""What files of Megatron-LM and Bridge state is read fact by fact, whatever else is wrong."""

from pathlib import Path

import pytest

from planner.check.check import check_file
from planner.check.fix import fix_file
from planner.check.result import FileResult
from planner.formats.format import read_source
from planner.query.from_file import Request

MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--group-query-attention --num-query-groups 8 --normalization RMSNorm --disable-bias-linear "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 "
    "--max-position-embeddings 8192 --seq-length 8192 --micro-batch-size 1 --bf16 "
)
SHARDED = "--tensor-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer "
AWARE = "--use-precision-aware-optimizer "
BRIDGE = (
    "run_recipe.py --recipe llama3_8b_pretrain_config train.micro_batch_size=1 "
    "train.global_batch_size=48 model.seq_length=8192 model.context_parallel_size=1 "
    "model.expert_model_parallel_size=1 model.virtual_pipeline_model_parallel_size=null "
)
STEPS = "--step-batch-size-schedule"
BOTH_OFF = "ddp.use_distributed_optimizer=false optimizer.use_distributed_optimizer=false"


def checked(folder: Path, words: str) -> FileResult:
    batch = "" if " --global" in words or STEPS in words else "--global-batch-size 48 "
    own = f"pretrain_gpt.py {MODEL}{batch}" if words.startswith("--") else BRIDGE
    path = folder / "run.sh"
    script = f"torchrun --nnodes 3 --nproc-per-node 8 {own}{words}"
    path.write_text(f"export CUDA_DEVICE_MAX_CONNECTIONS=1\n{script}\n")
    request = Request(model="llama3-8b", cluster="3xdgx-h100", with_advice=False)
    return check_file(str(path), request)


def peak_gib(result: FileResult) -> float:
    assert result.figures is not None, result.findings
    return result.figures.peak_bytes / 2**30


@pytest.mark.parametrize(
    ("words", "saved"),
    [
        ("--grad-reduce-in-bf16", 2.0),
        (AWARE, 2.0 / 6),
        (f"{AWARE}--main-grads-dtype bf16", 2.0 + 2.0 / 6),
        (f"{AWARE}--main-params-dtype fp16", 2.0 / 6),
        (f"{AWARE}--exp-avg-dtype bf16", 4.0 / 6),
        (f"{AWARE}--exp-avg-sq-dtype fp8", 5.0 / 6),
        (f"{AWARE}--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 6.0 / 6),
    ],
)
def test_every_type_of_the_states_counts_alone(words: str, saved: float, tmp_path: Path) -> None:
    # Of 8.03e9 parameters over tp 4, and what the allocator reserves beyond; states are over dp 6.
    before, after = (checked(tmp_path, f"{SHARDED}{each}") for each in ("", words))
    expected = saved * 8.03e9 / 4 * 1.05 / 2**30
    assert peak_gib(before) - peak_gib(after) == pytest.approx(expected, rel=0.01)


UNEVEN = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 3 "
FULL = "--recompute-granularity full --recompute-method"
BRIDGE_AWARE = "optimizer.use_precision_aware_optimizer=true"
BRIDGE_FULL = (
    "model.recompute_granularity=full model.recompute_method=uniform model.recompute_num_layers=1"
)
FIRST, LAST = (f"model.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
FSDP = "--use-megatron-fsdp --ckpt-format fsdp_dtensor --data-parallel-sharding-strategy "
TP2 = "model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size"


@pytest.mark.parametrize(
    ("words", "plain", "low", "high"),
    [
        # Layers that do not split are recomputed all the same.
        (f"{UNEVEN}{FULL} uniform --recompute-num-layers 1", UNEVEN, 0.65, 0.75),
        (f"{UNEVEN}{FULL} block --recompute-num-layers 5", UNEVEN, 0.8, 0.9),
        (f"{UNEVEN}--recompute-activations --recompute-modules mlp", UNEVEN, 0.7, 0.8),
        (f"{TP2}=3 {BRIDGE_FULL}", f"{TP2}=3", 0.45, 0.55),
    ],
)
def test_facts_beside_others_count(
    words: str, plain: str, low: float, high: float, tmp_path: Path
) -> None:
    shares = peak_gib(checked(tmp_path, words)) / peak_gib(checked(tmp_path, plain))
    assert low <= shares <= high, shares


STAGES = f"{TP2}=3 model.sequence_parallel=true {BRIDGE_FULL} "


@pytest.mark.parametrize(
    ("more", "less", "gigabytes"),
    [
        # The recipe's distributed optimizer, until both keys switch it off: 12 bytes over dp 12.
        (f"{TP2}=1 {BOTH_OFF}", f"{TP2}=1", 8.03 / 2 * (12 - 12 / 12)),
        (f"{TP2}=1 {BOTH_OFF.split()[0]}", f"{TP2}=1", 0),
        (f"{TP2}=1 {BOTH_OFF.split()[1]}", f"{TP2}=1", 0),
        (f"{TP2}=1", f"{TP2}=1 {BRIDGE_AWARE}", 8.03 / 2 * 2 / 12),
        (f"{TP2}=1", f"{TP2}=1 {BRIDGE_AWARE} optimizer.exp_avg_dtype=bf16", 8.03 / 2 * 4 / 12),
        # Layers of 0.218e9 parameters, states over dp 4, that keep 8192 x 4096 numbers of each
        # micro-batch: three are under way in the first stage of three, two in the second.
        (f"{FIRST}=2 {LAST}=2", f"{FIRST}=6 {LAST}=2", 4 * (0.2181 / 2 * 9 + 2 * 0.0336)),
        (f"{FIRST}=2 {LAST}=2", f"{FIRST}=2 {LAST}=10", 8 * (0.2181 / 2 * 9 + 2 * 0.0336)),
        (f"{FIRST}=24", f"{FIRST}=20", 4 * (0.2181 / 2 * 9 + 3 * 0.0336)),
    ],
)
def test_overrides_and_the_recipe_beside_them_are_priced_as_by_hand(
    more: str, less: str, gigabytes: float, tmp_path: Path
) -> None:
    stages = "" if TP2 in more else STAGES
    large, small = (peak_gib(checked(tmp_path, f"{stages}{each}")) for each in (more, less))
    assert large - small == pytest.approx(gigabytes * 1.05e9 / 2**30, rel=0.01, abs=0.001)


PP2 = "--pipeline-model-parallel-size 2 "
VPP = f"{PP2}--num-virtual-stages-per-pipeline-rank "
OF_FSDP = ["megatron_fsdp_setup", "megatron_fsdp_takes_all_processes"]


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        (f"{STEPS} '0:24 1B:48'", []),
        (f"{STEPS} '0:24 1B:50'", ["batch_divides"]),
        (f"{STEPS} '0:24 1B:48' --global-batch-size 48", ["batch_schedule_is_whole"]),
        ("--rampup-batch-size 8 8 9", ["batch_ramp_is_ignored"]),
        # Told once, by the rule of the framework.
        (f"{VPP}2 --global-batch-size 36", ["micro_batches_fill_chunks"]),
        (f"{VPP}5", ["chunks_divide_stage"]),
        (f"{VPP}2 --eval-global-batch-size 12", ["evaluation_fills_chunks"]),
        (f"{PP2}--eval-global-batch-size 12", []),
        # The recipe is known, and brings no chunks, layout or method.
        (f"{TP2}=4 {FIRST}=9 {LAST}=10", ["ends_leave_even_middle"]),
        (f"{TP2}=3", ["pp_divides_layers"]),
        (f"{TP2}=2 model.recompute_granularity=full", ["full_recompute_is_complete"]),
        (f"{PP2}--tensor-model-parallel-size 16", ["degrees_divide_processes"]),
        (f"{PP2}{FSDP}optim_grads", OF_FSDP),
        (f"{SHARDED}--moe-paged-stash", ["not_priced"]),
        (f"{PP2}--no-bias-swiglu-fusion", ["not_priced"]),
        (f"{PP2}--no-bias-gelu-fusion", []),  # no GELU
        (f"{TP2}=1 model.cuda_graph_impl=local", ["not_priced"]),
    ],
)
def test_each_breach_is_told_once(words: str, rules: list[str], tmp_path: Path) -> None:
    found = checked(tmp_path, words).findings
    assert [one.kind for one in found if not one.rule.startswith(("memory", "network"))] == rules


@pytest.mark.parametrize("words", [f"{SHARDED}{VPP}5", f"{SHARDED}{VPP}10 --num-layers 48"])
def test_chunks_that_do_not_come_out_get_another_number(words: str, tmp_path: Path) -> None:
    result = checked(tmp_path, words)
    request = Request(model=None if "48" in words else "llama3-8b", cluster="3xdgx-h100")
    made = fix_file(read_source(result.path), request)
    assert [change.field for change in made.answer.repaired[0].changes] == ["vpp"]
    assert "layout" not in "".join(made.diff)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (f"{UNEVEN}{FULL} uniform --recompute-num-layers 1", f"{FULL} uniform"),
        (f"{UNEVEN}--recompute-activations", "--recompute-activations"),
        (f"{TP2}=3 {BRIDGE_FULL}", BRIDGE_FULL),
    ],
)
def test_a_repair_of_stages_keeps_the_recomputation(words: str, kept: str, tmp_path: Path) -> None:
    result = checked(tmp_path, words)
    request = Request(model="llama3-8b", cluster="3xdgx-h100")
    made = fix_file(read_source(result.path), request)
    assert kept in made.fixed.text
