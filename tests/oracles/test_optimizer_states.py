"""Optimizer states and traffic of torch's own optimizers against the planner's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from planner.frameworks.registry import load_optimizer
from planner.spec.training import state_bytes

REAL: dict[str, Callable[[list[Any]], Any]] = {
    "adam": torch.optim.AdamW,
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "sgd-momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
}


def real_state_bytes(make: Callable[[list[Any]], Any], shape: tuple[int, ...]) -> int:
    """Bytes of state one real step leaves behind for one tensor, scalars excluded."""
    parameter = torch.nn.Parameter(torch.ones(shape))
    parameter.grad = torch.ones(shape)
    optimizer = make([parameter])
    optimizer.step()
    tensors = [t for t in optimizer.state[parameter].values() if torch.is_tensor(t) and t.ndim]
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("shape", [(48, 80), (48,)])
def test_states_of_torch_itself(name: str, shape: tuple[int, ...]) -> None:
    is_vector = len(shape) == 1
    # Muon hands vectors to Adam.
    make = REAL["adam" if name == "muon" and is_vector else name]
    expected = state_bytes(load_optimizer(name), "vector" if is_vector else "matrix", *shape)
    assert real_state_bytes(make, shape) == expected


class Traffic(TorchDispatchMode):
    """Bytes that every tensor operation reads and writes; views move nothing."""

    num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(name in str(func) for name in ("view", "permute", "unsqueeze")):
            touched = [t for t in (*args, result) if isinstance(t, torch.Tensor)]
            self.num_bytes += sum(t.numel() * t.element_size() for t in touched)
        return result


ROWS, COLUMNS = 32, 4096


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        # 12 bytes a step and row more for the square matrices the figure leaves out.
        (
            torch.optim.Muon,
            (ROWS, COLUMNS),
            load_optimizer("muon").step_traffic_bytes + 5 * 12 * ROWS / COLUMNS,
        ),
        (
            lambda params: torch.optim.Adafactor(params, foreach=False),
            (100_000,),
            load_optimizer("adafactor", "deepspeed").step_traffic_bytes,
        ),
    ],
    ids=["Muon operation by operation", "Adafactor on a flat partition"],
)
def test_traffic_of_a_second_step(make: Any, shape: tuple[int, ...], expected: float) -> None:
    parameter = torch.nn.Parameter(torch.ones(shape))
    parameter.grad = torch.ones(shape)
    optimizer = make([parameter])
    optimizer.step()
    with Traffic() as counter:
        optimizer.step()
    assert counter.num_bytes / parameter.numel() == pytest.approx(expected, rel=1e-3)
