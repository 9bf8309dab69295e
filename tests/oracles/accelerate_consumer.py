"""Accelerate's own start on a CPU: loader, launcher's environment, plugins, mesh and state.

As ``accelerate launch`` and ``Accelerator()`` run them, up to the first call that needs devices.
Asked instead of a GPU: whether fp8 is available, and the state of a process among many.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    TorchDynamoPlugin,
)
from accelerate.utils import launch as environment

_PASSED_ON = re.compile(r"ACCELERATE_|FSDP_|PARALLELISM_")


@dataclass(kw_only=True)
class Started:
    """What Accelerate made of a file."""

    kind: str
    num_processes: int
    mesh: dict[str, int] = field(default_factory=dict)
    fsdp: Any = None
    deepspeed: Any = None


@contextmanager
def _environment(extra: dict[str, str]) -> Iterator[None]:
    with (
        mock.patch.dict(os.environ, extra),
        mock.patch.object(environment, "is_fp8_available", return_value=True),
    ):
        yield
    AcceleratorState._reset_state(reset_partial_state=True)


def start(path: Path, extra: dict[str, str] | None = None) -> Started:
    """Start from a file; raises whatever Accelerate raises."""
    with _environment(extra or {}):
        return _start(path)


def _start(path: Path) -> Started:
    config = load_config_from_file(str(path))
    args = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, from_file = launch._validate_launch_command(args)
    args.main_process_port = args.main_process_port or 0
    if args.use_deepspeed:
        fields = [*config.deepspeed_config, *(["mixed_precision"] if from_file else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        args.deepspeed_multinode_launcher = "standard"
        _, made = environment.prepare_deepspeed_cmd_env(args)
    elif args.use_fsdp or args.multi_gpu:
        made = environment.prepare_multi_gpu_env(args)
    else:
        _, made = environment.prepare_simple_launcher_cmd_env(args)
    os.environ.update({k: str(v) for k, v in made.items() if _PASSED_ON.match(k)})
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    started = Started(kind=kind, num_processes=args.num_processes)
    _plugins(args, started)
    return started


def _plugins(args: Any, started: Started) -> None:
    if args.use_fsdp:
        started.fsdp = FullyShardedDataParallelPlugin()
    if args.use_deepspeed:
        started.deepspeed = DeepSpeedPlugin()
        started.deepspeed.set_mixed_precision(args.mixed_precision)
    mesh = ParallelismConfig() if getattr(args, "use_parallelism_config", False) else None
    if args.num_processes > 1 and not args.use_deepspeed:
        _state(args, started, mesh)
    if mesh is None:
        return
    started.mesh = dict(mesh._sizes)
    is_fsdp2 = args.use_fsdp and started.fsdp.fsdp_version == 2
    mesh._validate_accelerator(
        SimpleNamespace(
            num_processes=args.num_processes,
            multi_device=not args.use_deepspeed,
            is_fsdp2=is_fsdp2,
            distributed_type=DistributedType(started.kind),
            is_main_process=True,
        )
    )


def _state(args: Any, started: Started, mesh: ParallelismConfig | None) -> None:
    """The state of the first of several processes on GPUs."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._shared_state.update(
        _cpu=False,
        backend="nccl",
        device=torch.device("cpu"),
        debug=False,
        distributed_type=DistributedType.MULTI_GPU,
        num_processes=args.num_processes,
        process_index=0,
        local_process_index=0,
        fork_launched=False,
    )
    AcceleratorState(
        mixed_precision="no",
        dynamo_plugin=TorchDynamoPlugin(),
        fsdp_plugin=started.fsdp,
        parallelism_config=mesh,
        _from_accelerator=True,
    )
