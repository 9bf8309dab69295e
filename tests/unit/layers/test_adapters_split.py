"""Adapters of split matrices under Megatron-Bridge, by hand."""

import numpy as np
import pytest
from contexts import changed_traits, shape_of

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_training
from planner.layers.adapter_targets import adapter_params
from planner.layers.block import embedding_op, head_op, layer_groups
from planner.layers.op import Comm, LayerShape, Op
from planner.spec.training import TARGETS, Target, Training
from planner.spec.traits import FrameworkTraits, traits_at_precision

LLAMA = load_model("llama3-70b")
RANK, TOKENS = 16, 1024.0
HIDDEN, QKV, FFN = 8192, 8192 + 2 * 1024, 28672
QKV_ONLY: tuple[Target, ...] = ("q", "k", "v")


def trained(targets: tuple[Target, ...] = TARGETS, overlap: str = "none") -> FrameworkTraits:
    traits = load_traits("megatron", "bridge", (("overlap.tensor_parallel_overlap", overlap),))
    return with_training(traits, Training(mode="lora", rank=RANK, targets=targets))


def ops_of(shape: LayerShape, traits: FrameworkTraits) -> dict[str, Op]:
    (group,) = layer_groups(LLAMA, shape, traits)
    return {op.name: op for op in group.ops}


def sent(comms: tuple[Comm, ...]) -> list[tuple[str, float]]:
    every = [(comm.collective, float(np.ravel(comm.num_bytes)[0])) for comm in comms]
    return [one for one in every if one[1] > 0.0]


@pytest.mark.parametrize(
    ("targets", "widths"),
    [
        (QKV_ONLY, [HIDDEN + QKV]),
        (("o",), [HIDDEN + HIDDEN]),
        (("gate", "up"), [HIDDEN + 2 * FFN]),
        (TARGETS, [HIDDEN + QKV, HIDDEN + HIDDEN, HIDDEN + 2 * FFN, FFN + HIDDEN]),
    ],
)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_each_rank_has_its_part_of_one_adapter_per_product(
    targets: tuple[Target, ...], widths: list[int], tp: int
) -> None:
    traits = trained(targets)
    ops = ops_of(shape_of(tp=tp), traits)
    params = sum(float(np.ravel(op.params)[0]) for op in ops.values())
    assert params == RANK * sum(widths) / tp
    whole = 80 * RANK * sum(widths)
    assert adapter_params(LLAMA, traits.training, traits.kernels) == whole


def test_a_and_b_are_split_as_the_matrix_beside_them() -> None:
    ops = ops_of(shape_of(tp=4), trained())
    sides = {
        name: [(float(np.ravel(gemm.k)[0]), float(np.ravel(gemm.n)[0])) for gemm in op.gemms]
        for name, op in ops.items()
        if name.startswith("adapters.")
    }
    assert sides == {
        "adapters.qkv": [(HIDDEN, RANK / 4), (RANK, QKV / 4)],
        "adapters.attention_output": [(HIDDEN / 4, RANK), (RANK, HIDDEN / 4)],
        "adapters.mlp_up": [(HIDDEN, RANK / 4), (RANK, FFN / 2)],
        "adapters.mlp_down": [(FFN / 4, RANK), (RANK, HIDDEN / 4)],
    }


LATENT, STREAM = 2.0 * TOKENS * RANK, 2.0 * TOKENS * HIDDEN


GATHERED, REDUCED = ("all_gather", LATENT), ("all_reduce", LATENT)
WHOLE, SCATTERED, SUMMED = (
    (name, STREAM) for name in ("all_gather", "reduce_scatter", "all_reduce")
)


@pytest.mark.parametrize(
    ("sp", "overlap", "name", "forward", "backward"),
    [
        (0, "none", "qkv", [GATHERED], [REDUCED, SUMMED]),
        (1, "none", "qkv", [GATHERED], [REDUCED]),
        (1, "ring", "qkv", [GATHERED, WHOLE], [REDUCED, SCATTERED]),
        (0, "ring", "mlp_down", [REDUCED, WHOLE], [REDUCED]),
        (1, "ring", "mlp_down", [REDUCED, WHOLE], [REDUCED, WHOLE]),
    ],
)
def test_ranks_exchange_what_their_parts_lack(
    sp: int, overlap: str, name: str, forward: list[object], backward: list[object]
) -> None:
    op = ops_of(shape_of(tp=2, sp=sp), trained(overlap=overlap))[f"adapters.{name}"]
    assert (sent(op.comms[0]), sent(op.comms[1])) == (forward, backward)
    alone = ops_of(shape_of(), trained(overlap=overlap))[f"adapters.{name}"]
    assert not sent((*alone.comms[0], *alone.comms[1]))


def test_a_frozen_layer_gathers_nothing_for_gradients_of_weights() -> None:
    shape = shape_of(tp=2, sp=1)
    full = ops_of(shape, load_traits("megatron", "bridge"))["mlp_up"]
    frozen = ops_of(shape, trained(QKV_ONLY, "ring"))
    assert sent(full.comms[1]) == [SCATTERED, WHOLE]
    assert sent(frozen["mlp_up"].comms[1]) == [SCATTERED]
    assert WHOLE not in sent(head_op(LLAMA, shape, trained()).comms[1])
    assert not embedding_op(LLAMA, shape, trained()).comms[1]


def test_the_gather_of_an_adapted_product_is_not_cut_into_chunks() -> None:
    ops = ops_of(shape_of(tp=2, sp=1), trained(QKV_ONLY, "ring"))
    assert [comm.is_waited_for for comm in ops["qkv"].comms[0]] == [True]
    assert [comm.is_waited_for for comm in ops["mlp_up"].comms[0]] == [False]


def test_a_layer_keeps_the_whole_output_of_an_adapted_norm_and_no_other() -> None:
    shape = shape_of(tp=2, sp=1)
    saved = {
        tensor.name: float(np.ravel(tensor.num_bytes)[0])
        for op in ops_of(shape, trained(QKV_ONLY)).values()
        for tensor in op.saved
    }
    assert saved["adapters.qkv.input"] == STREAM
    assert saved["adapters.qkv.latent"] == LATENT
    assert saved["attention_norm.input"] == STREAM / 2
    assert not {"attention_norm.output", "mlp_norm.output", "mlp_activation.product"} & set(saved)
    rows = ops_of(shape, trained(("o", "down")))
    assert rows["adapters.attention_output"].saved_bytes == LATENT
    assert rows["adapters.mlp_down"].saved_bytes == LATENT + TOKENS * FFN


def test_in_fp8_adapters_and_what_attention_keeps_have_16_bits() -> None:
    traits = traits_at_precision(trained(), "fp8")
    ops, plain = ops_of(shape_of(), traits), ops_of(shape_of(), trained())
    assert all(np.array_equal(op.saved_bytes, plain[name].saved_bytes) for name, op in ops.items())
    assert ops["adapters.qkv"].runs_in_16_bit
    assert not ops["qkv"].gemms[0].follows_norm
    assert ops_of(shape_of(), trained(("o",)))["qkv"].gemms[0].follows_norm


def test_recomputing_an_mlp_repeats_the_adapters_in_it() -> None:
    ops = ops_of(shape_of(), changed_traits(trained(), recompute={"selected": ("mlp",)}))
    repeated = [name for name, op in ops.items() if op.selective_fraction == 1.0]
    assert {"adapters.mlp_up", "adapters.mlp_down"} <= set(repeated)
    assert "adapters.qkv" not in repeated
    assert not np.any(ops["adapters.mlp_down"].kept_bytes)
