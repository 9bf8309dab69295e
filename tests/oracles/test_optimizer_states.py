"""Optimizer states and traffic of torch's own optimizers against the planner's."""

from collections.abc import Callable
from typing import Any

import pytest

from planner.frameworks.registry import load_optimizer
from planner.spec.training import state_bytes

MakeOptimizer = Callable[[Any, list[Any]], Any]
REAL: dict[str, MakeOptimizer] = {
    "adam": lambda torch, params: torch.optim.AdamW(params),
    "sgd": lambda torch, params: torch.optim.SGD(params, lr=0.1),
    "sgd-momentum": lambda torch, params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adafactor": lambda torch, params: torch.optim.Adafactor(params),
    "muon": lambda torch, params: torch.optim.Muon(params),
}


def _real_state_bytes(torch: Any, make: MakeOptimizer, shape: tuple[int, ...]) -> int:
    """Bytes of state one real step leaves behind for one tensor, scalars excluded."""
    parameter = torch.nn.Parameter(torch.ones(shape))
    parameter.grad = torch.ones(shape)
    optimizer = make(torch, [parameter])
    optimizer.step()
    tensors = [t for t in optimizer.state[parameter].values() if torch.is_tensor(t) and t.ndim]
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("shape", [(48, 80), (48,)])
def test_states_of_torch_itself(name: str, shape: tuple[int, ...]) -> None:
    import torch

    is_vector = len(shape) == 1
    # Muon hands vectors to Adam.
    make = REAL["adam" if name == "muon" and is_vector else name]
    expected = state_bytes(load_optimizer(name), "vector" if is_vector else "matrix", *shape)
    assert _real_state_bytes(torch, make, shape) == expected


def _traffic_counter(python_dispatch: Any, torch: Any) -> Any:
    """Sum the bytes every tensor operation reads and writes; views move nothing."""

    class Counter(python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        num_bytes = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            if not any(name in str(func) for name in ("view", "permute", "unsqueeze")):
                touched = [t for t in (*args, result) if isinstance(t, torch.Tensor)]
                self.num_bytes += sum(t.numel() * t.element_size() for t in touched)
            return result

    return Counter()


def test_traffic_of_muon_operation_by_operation() -> None:
    import torch
    from torch.utils import _python_dispatch as python_dispatch

    rows, columns = 32, 4096
    parameter = torch.nn.Parameter(torch.ones(rows, columns))
    parameter.grad = torch.ones(rows, columns)
    optimizer = torch.optim.Muon([parameter])
    optimizer.step()
    with _traffic_counter(python_dispatch, torch) as counter:
        optimizer.step()
    # 12 bytes a step and row more for the square matrices the figure leaves out.
    square = 5 * 12 * rows / columns
    expected = load_optimizer("muon").step_traffic_bytes + square
    assert counter.num_bytes / (rows * columns) == pytest.approx(expected, rel=1e-3)


def test_traffic_of_adafactor_on_a_flat_partition() -> None:
    import torch
    from torch.utils import _python_dispatch as python_dispatch

    parameter = torch.nn.Parameter(torch.ones(100_000))
    parameter.grad = torch.ones(100_000)
    optimizer = torch.optim.Adafactor([parameter], foreach=False)
    optimizer.step()
    with _traffic_counter(python_dispatch, torch) as counter:
        optimizer.step()
    expected = load_optimizer("adafactor", "deepspeed").step_traffic_bytes
    assert counter.num_bytes / 100_000 == pytest.approx(expected, rel=1e-3)
