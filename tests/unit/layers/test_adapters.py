"""Frozen layers and the adapters beside them, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from contexts import changed_traits, shape_of

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_training
from planner.layers.adapter_targets import adapter_params, adapters_of, training_problem
from planner.layers.block import embedding_op, head_op, layer_groups
from planner.layers.op import LayerShape, Op
from planner.layers.parameters import count_parameters
from planner.spec.training import FULL, QUANTISED_BYTES, TARGETS, Mode, Target, Training
from planner.spec.traits import FrameworkTraits

RANK = 16
LLAMA = load_model("llama3.1-8b")
PEFT = load_traits("accelerate").kernels
TOKENS = 1024.0
NORM_TENSORS = ("normalised", "output")


def trained(mode: Mode, targets: tuple[Target, ...] = TARGETS) -> FrameworkTraits:
    return with_training(load_traits("accelerate"), Training(mode=mode, rank=RANK, targets=targets))


def ops_of(traits: FrameworkTraits) -> dict[str, Op]:
    (group,) = layer_groups(LLAMA, shape_of(), traits)
    return {op.name: op for op in group.ops}


@pytest.mark.parametrize(
    ("model", "rank", "targets", "params"),
    [
        # 32 layers of r (2 * 4096 + 2 * 5120 + 4096 * 2 + 3 * 18432)
        ("llama3.1-8b", 16, TARGETS, 41_943_040),
        ("llama2-7b", 64, TARGETS, 159_907_840),
        ("llama2-7b", 8, ("q", "v"), 4_194_304),
        # r of 48 mixers 4 * 5120 + 16480 + 11264, of 16 attentions 40960, of 64 MLPs 67584
        ("qwen3.5-27b", 16, TARGETS, 116_727_808),
    ],
)
def test_adapters_have_as_many_parameters_as_peft_prints(
    model: str, rank: int, targets: tuple[Target, ...], params: int
) -> None:
    training = Training(mode="lora", rank=rank, targets=targets)
    assert adapter_params(load_model(model), training, PEFT) == params


def test_only_adapters_are_trained_and_all_other_weights_are_stored() -> None:
    traits = trained("lora")
    ops = ops_of(traits).values()
    ends = [build(LLAMA, shape_of(), traits) for build in (embedding_op, head_op)]
    params = sum(float(op.params[0]) for op in ops)
    assert params * LLAMA.num_layers == adapter_params(LLAMA, traits.training, PEFT)
    assert not any(np.any(end.params) for end in ends)
    stored = LLAMA.num_layers * sum(float(op.frozen_bytes[0]) for op in ops)
    stored += sum(float(np.ravel(end.frozen_bytes)[0]) for end in ends)
    assert stored == 2.0 * count_parameters(LLAMA)


@pytest.mark.parametrize("name", ["qwen3.5-27b", "qwen3.5-122b-a10b", "qwen3-next-80b-a3b"])
def test_every_adapter_of_linear_mixers_stands_beside_an_op_of_its_layers(name: str) -> None:
    model, traits = load_model(name), trained("lora")
    groups = layer_groups(model, LayerShape.all_of(1.0, 64), traits)
    params = sum(group.num_layers * np.sum(op.params) for group in groups for op in group.ops)
    assert params == adapter_params(model, traits.training, PEFT)


def test_linear_layers_of_a_4_bit_base_are_stored_in_4_bits_and_rebuilt_at_each_use() -> None:
    ops, plain = ops_of(trained("qlora")), ops_of(trained("lora"))["mlp_down"]
    assert ops["mlp_norm"].frozen_bytes[0] == 4096 * 2
    rebuilt = ops["mlp_down"]
    assert rebuilt.frozen_bytes[0] == 4096 * 14336 * QUANTISED_BYTES
    moved = 4096 * 14336 * (QUANTISED_BYTES + 2.0)
    assert rebuilt.forward_bytes - plain.forward_bytes == moved
    assert rebuilt.backward_bytes - plain.backward_bytes == moved
    (group,) = layer_groups(LLAMA, shape_of(), trained("qlora"))
    assert group.dequantised_bytes == 2.0 * 4096 * 14336


def test_frozen_products_have_no_weight_gradient_and_adapters_do() -> None:
    ops = ops_of(trained("lora", ("q", "v")))
    assert [gemm.is_frozen for gemm in ops["qkv"].gemms] == [True]
    assert [gemm.is_frozen for gemm in ops["adapters.q"].gemms] == [False, False]
    assert "adapters.k" not in ops
    flops = sum(float(gemm.flops[0]) for gemm in ops["adapters.v"].gemms)
    assert flops == 2.0 * TOKENS * RANK * (4096 + 1024)


def with_kernels(traits: FrameworkTraits, **changes: object) -> FrameworkTraits:
    return changed_traits(traits, kernels=changes)


def test_adapters_of_16_bits_cast_nothing_and_share_an_input() -> None:
    wide = ops_of(trained("lora"))
    narrow = ops_of(with_kernels(trained("lora"), adapters="16-bit"))
    less = wide["adapters.q"].forward_bytes - narrow["adapters.q"].forward_bytes
    assert less == 12.0 * TOKENS * 4096
    latent = 2.0 * TOKENS * RANK
    shared = sum(float(narrow[f"adapters.{each}"].saved_bytes[0]) for each in "qkv")
    assert shared == 2.0 * TOKENS * 4096 + 3 * latent
    assert narrow["adapters.o"].saved_bytes[0] == latent


def test_dropout_keeps_a_byte_and_a_copy_of_each_input() -> None:
    plain = ops_of(trained("lora"))["adapters.down"]
    dropped = ops_of(with_kernels(trained("lora"), adapter_dropout=True))["adapters.down"]
    assert dropped.saved_bytes - plain.saved_bytes == TOKENS * 14336
    assert dropped.forward_bytes - plain.forward_bytes == 9.0 * TOKENS * 14336
    narrow = ops_of(with_kernels(trained("lora"), adapter_dropout=True, adapters="16-bit"))
    assert narrow["adapters.v"].saved_bytes == TOKENS * (3.0 * 4096 + 2.0 * RANK)


def test_several_adapters_have_parameters_each_and_one_is_computed() -> None:
    one = trained("lora")
    four = changed_traits(one, training={"num_adapters": 4})
    plain, many = (ops_of(each)["adapters.q"] for each in (one, four))
    assert many.params == 4.0 * plain.params
    assert [gemm.flops for gemm in many.gemms] == [gemm.flops for gemm in plain.gemms]
    alone, together = (adapter_params(LLAMA, each.training, PEFT) for each in (one, four))
    assert together == 4 * alone


def test_torchs_operations_rebuild_a_matrix_in_forward_only() -> None:
    plain = ops_of(trained("lora"))["mlp_down"]
    down = ops_of(with_kernels(trained("qlora"), dequantisation="operations"))["mlp_down"]
    assert down.forward_bytes - plain.forward_bytes == 16.5 * 4096 * 14336
    assert down.backward_bytes == plain.backward_bytes
    assert down.small_kernels == (9.0, 0.0)


def test_what_only_weight_gradients_need_is_dropped_and_adapters_keep_their_input() -> None:
    full, frozen = (
        ops_of(each) for each in (load_traits("accelerate"), trained("lora", ("down",)))
    )
    names, kept = ({one.name for op in ops.values() for one in op.saved} for ops in (full, frozen))
    norms = {f"{norm}_norm.{each}" for norm in ("attention", "mlp") for each in NORM_TENSORS}
    assert names - kept == norms | {"mlp_activation.product"}
    assert frozen["adapters.down"].saved_bytes == 2.0 * TOKENS * (14336 + RANK)


def lora(*targets: Target, rank: int = 8, mode: Mode = "lora") -> Training:
    return Training(mode=mode, rank=rank, targets=targets)


STACKED = "tensor; allowed are attention, experts"


@pytest.mark.parametrize(
    ("model", "training", "option", "said"),
    [
        ("llama3.1-8b", lora("k", rank=1024), "", ""),
        ("llama3.1-8b", lora("q", "k", rank=1025), "--lora-rank", "for llama3.1-8b is 1 to 1024"),
        ("nemotron-4-15b", lora("gate", "up"), "--lora-targets", "mlp, q, k, v, o, up, down"),
        ("nemotron-4-15b", lora(*TARGETS), "", ""),
        ("mixtral-8x7b", lora(*TARGETS), "", ""),
        ("mixtral-8x7b", lora("q", "up"), "--lora-targets", STACKED),
        ("grok-1", lora(*TARGETS), "--lora-targets", "not modelled; allowed are attention"),
        ("mixtral-8x7b", lora(*TARGETS[:4], mode="qlora"), "--train", "is full and lora"),
        ("mixtral-8x7b", lora(*TARGETS[:4]), "", ""),
        ("gpt-oss-20b", lora(*TARGETS), "", ""),
        ("gpt-oss-20b", lora("q", "up"), "--lora-targets", STACKED),
        ("gpt-oss-20b", lora("expert_up", "expert_down"), "", ""),
        ("llama3.1-8b", lora("q", "expert_up"), "--lora-targets", "k, v, o, gate, up, down"),
        ("falcon-40b", lora(*TARGETS[:4]), "", ""),
        ("falcon-40b", lora("q", "v"), "--lora-targets", "in any number, q,k,v, o, up, down"),
        ("llama3.2-1b", lora("q", "head"), "--lora-targets", "targets without embedding, head"),
        ("gpt2-small", lora(*TARGETS), "", ""),
        ("qwen3.5-27b", lora(*TARGETS, rank=64), "", ""),
        (
            "qwen3.5-27b",
            lora("in_proj_ba"),
            "--lora-targets",
            "in_proj_a, out_proj, gate, up, down",
        ),
        ("granite-4.0-h-micro", lora(*TARGETS), "--train", "for granite-4.0-h-micro is full"),
        ("phi-3-mini", lora("gate"), "--lora-targets", "q,k,v, o, gate,up, down"),
    ],
)
def test_what_a_model_cannot_be_trained_as_is_said_with_what_is_allowed(
    model: str, training: Training, option: str, said: str
) -> None:
    found, message = training_problem(load_model(model), training, PEFT)
    assert found == option
    assert message.endswith(said)


def test_projections_of_one_product_are_targets_together_under_megatron_bridge() -> None:
    bridge = load_traits("megatron", "bridge").kernels
    for targets, option in ((("q", "v", "up"), "--lora-targets"), (TARGETS[:3], ""), (TARGETS, "")):
        assert training_problem(LLAMA, lora(*targets), bridge)[0] == option
    mixtral = load_model("mixtral-8x7b")
    assert training_problem(mixtral, lora(*TARGETS), bridge)[0] == ""
    _, message = training_problem(mixtral, lora("q", "k", "v", "expert_up"), bridge)
    assert message.startswith("mixtral-8x7b has no expert_up; ")


# Mixtral: 32 heads of 128 over 4,096, 8 of keys and values; 8 experts of 14,336.
QKV = {"q": 4096 + 4096, "k": 4096 + 1024, "v": 4096 + 1024}
SEPARATE = QKV | {"o": 4096 + 4096}
JOINED = {"qkv": 4096 + 6144, "attention_output": 4096 + 4096}
UP, DOWN = 4096 + 2 * 14336, 14336 + 4096
STACKS: tuple[Target, ...] = ("expert_up", "expert_down")


@pytest.mark.parametrize(
    ("profile", "targets", "sides"),
    [
        ("peft", TARGETS[:4], SEPARATE),
        ("peft", TARGETS[:7], SEPARATE | {"expert_up": 8 * 2 * UP, "expert_down": 8 * DOWN}),
        ("peft", STACKS, {"expert_up": 8 * UP, "expert_down": 8 * DOWN}),
        ("bridge", TARGETS[:7], JOINED | {"expert_up": UP, "expert_down": DOWN}),
        ("each", TARGETS[4:7], {"expert_up": 8 * UP, "expert_down": 8 * DOWN}),
    ],
)
def test_a_mixture_with_adapters_trains_nothing_else(
    profile: str, targets: tuple[Target, ...], sides: dict[str, int]
) -> None:
    model, peft, bridge = load_model("mixtral-8x7b"), ("accelerate",), ("megatron", "bridge")
    plain = load_traits(*(peft if profile == "peft" else bridge))
    traits = with_training(plain, lora(*targets, rank=RANK))
    traits = with_kernels(traits, expert_adapters="each") if profile == "each" else traits
    (group,) = layer_groups(model, LayerShape.all_of(1.0, 64), traits)
    params = {op.name: np.sum(op.params) for op in group.ops if np.any(op.params)}
    assert params == {f"adapters.{name}": RANK * side for name, side in sides.items()}
    assert adapter_params(model, traits.training, traits.kernels) == 32 * sum(params.values())
    frozen = sum(np.sum(op.frozen_bytes) for op in group.ops)
    # Two bytes of attention, router, norms and eight experts.
    weights = 4096 * (4096 + 1024) * 2 + 4096 * 8 + 2 * 4096 + 8 * 3 * 4096 * 14336
    assert frozen == 2 * weights


EACH, JOINED_OPS = ("q", "k", "v", "o"), ("qkv", "attention_output", "mlp_up", "mlp_down")
SHARED = ("shared_expert_up", "shared_expert_down")


@pytest.mark.parametrize(
    ("model", "all_linear", "names"),
    [
        ("mixtral-8x7b", "peft", (*EACH, *STACKS, "router")),
        ("mixtral-8x7b", "modules", EACH),
        # Its shared experts and first layer have modules of these names.
        ("glm-4.5-air", "modules", (*EACH, *STACKS)),
        ("glm-4.5-air", "peft", (*EACH, *STACKS, "router")),
        ("glm-4.5-air", "bridge", (*JOINED_OPS, *STACKS, *SHARED)),
        ("gpt-oss-20b", "peft", EACH),
    ],
)
def test_all_linear_layers_of_a_mixture_are_what_peft_makes_of_the_word_or_of_the_names(
    model: str, all_linear: str, names: tuple[str, ...]
) -> None:
    kernels = load_traits("megatron", "bridge").kernels
    if all_linear != "bridge":
        kernels = replace(PEFT, all_linear=all_linear)
    found = adapters_of(load_model(model), lora(*TARGETS), kernels)
    assert tuple(adapter.name for adapter in found) == names


def test_adapters_of_a_stack_are_products_of_its_size_or_of_its_tokens() -> None:
    model, down = load_model("mixtral-8x7b"), 4096 * 14336
    merged = with_training(load_traits("accelerate"), lora("expert_down", rank=RANK))
    for kind, ep, copies, flops, is_frozen in (
        ("merged", 1, 8, 2 * RANK * down * 8, False),
        ("merged", 2, 4, 2 * RANK * down * 4, False),
        # 64 tokens of two experts each.
        ("each", 2, 4, 2 * RANK * DOWN * 128, True),
        ("shared", 2, 1, 2 * RANK * DOWN * 128, True),
    ):
        shape = replace(LayerShape.all_of(1.0, 64), ep=np.full(1, ep))
        (group,) = layer_groups(model, shape, with_kernels(merged, expert_adapters=kind))
        ops = {op.name: op for op in group.ops}
        adapter, base = ops["adapters.expert_down"], ops["expert_down"]
        assert adapter.is_expert
        assert adapter.params == RANK * DOWN * copies
        assert sum(float(np.sum(gemm.flops)) for gemm in adapter.gemms) == flops
        assert [gemm.is_frozen for gemm in base.gemms] == [is_frozen]
        assert group.dequantised_bytes == 2.0 * down * copies * (not is_frozen)
        # The sum of weights and adapters, their copies in 16 bits, and the product that goes in.
        kept = 2.0 * (down + RANK * DOWN) * copies if not is_frozen else 2.0 * RANK * 128
        assert adapter.saved_bytes == kept + 2.0 * 128 * 14336


def test_embedding_and_head_are_trained_whole_beside_the_frozen_ones() -> None:
    traits = trained("lora", (*TARGETS, "embedding", "head"))
    size = 128256 * 4096
    for build, more in ((embedding_op, 0), (head_op, 4096)):
        op = build(LLAMA, shape_of(), traits)
        assert (np.sum(op.params), np.sum(op.frozen_bytes)) == (size + more, 2 * (size + more))
    alone = adapter_params(LLAMA, trained("lora").training, PEFT)
    assert adapter_params(LLAMA, traits.training, PEFT) == alone + 2 * size


def test_training_all_weights_changes_no_trait() -> None:
    traits = load_traits("accelerate")
    assert with_training(traits, FULL) is traits
