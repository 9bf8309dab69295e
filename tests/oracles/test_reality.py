"""Small GPTs trained for real over gloo, against their plans: bytes on the wire and bytes held.

Bytes are those of the first rank; what stays with gloo under tensor parallelism is named. They
run alone: beside other work DeepSpeed's stage 3 may have let go of gathered weights earlier.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from reality_cases import (
    CASES,
    ONE_CORE,
    REPLICATED,
    SIZES,
    Case,
    Figures,
    measured,
    model_text,
    plan_of,
    planned,
    train,
)

pytestmark = pytest.mark.alone
CLUSTER = Path(__file__).with_name("training") / "cpu-cluster.yaml"
FEW_TOKENS = SIZES | {"seq_len": 48}
ON_FOUR = {
    f"{name} on 4": replace(CASES[name], ranks=4)
    for name in ("FSDP2, ZeRO 3", "DeepSpeed ZeRO 3", "1F1B")
}
ALL = CASES | ON_FOUR
Seen = Mapping[str, tuple[Figures, Figures]]  # planned and measured, by case


def message_bytes(case: Case) -> int:
    """Activations of a micro-batch between two layers."""
    return 4 * case.micro_batch * FEW_TOKENS["seq_len"] * FEW_TOKENS["hidden_size"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("reality")
    model = folder / "tiny-gpt.yaml"
    model.write_text(model_text(FEW_TOKENS))
    ranks = train(ALL, folder, steps=0, sizes=FEW_TOKENS, limit_s=600)
    length = FEW_TOKENS["seq_len"]
    whole = plan_of(REPLICATED, model, CLUSTER, seq_len=length)
    return {
        name: (
            planned(case, plan_of(case, model, CLUSTER, ONE_CORE, length), whole),
            measured(case, ranks[name], FEW_TOKENS),
        )
        for name, case in ALL.items()
    }


FIGURES = ("sent_bytes", "lasting_bytes", "forward_bytes", "step_bytes")


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("name", ALL)
def test_bytes_sent_held_and_left_by_a_forward_are_those_of_the_plan(
    seen: Seen, name: str, figure: str
) -> None:
    ours, real = (getattr(each, figure) for each in seen[name])
    if figure == "forward_bytes" and ALL[name].kind == "tensor":
        ours += 2 * message_bytes(ALL[name])
    assert ours == real
