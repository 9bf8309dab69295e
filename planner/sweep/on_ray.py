"""Cells on an existing Ray cluster; workers and nodes of it may die and lose nothing.

Ray is optional (``pip install 'parallel-planner[ray]'``) and is loaded only here.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from planner.errors import InputError
from planner.sweep.cells import Answer, Answers, Task
from planner.sweep.retries import Retries

OPTION = "--ray"
CONNECT_S, JOIN_S = 5.0, 90.0
TRIAL = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"
TOKEN = "it asks for a token; set RAY_AUTH_MODE=token beside RAY_AUTH_TOKEN or ~/.ray/auth_token"
"""Ray itself sends the token of this machine to no address but ``auto``."""
AHEAD = 2
"""Tasks in flight per core, so that none waits for the next."""
LOCAL = "local"
MOST_PORT = 65_535
WORDS = ("auto", LOCAL)
"""Addresses that are none: the cluster of this machine, and one made for this command."""


def _ray() -> Any:  # noqa: ANN401 - a module that need not be there
    try:
        return import_module("ray")
    except ImportError as error:
        message = "ray is not installed; pip install 'parallel-planner[ray]'"
        raise InputError.single("command line", OPTION, message) from error


def check_ray(address: str) -> None:
    """Raise InputError where Ray is missing or no cluster of it answers at the address."""
    _ray()
    if address not in WORDS:
        _knock(address)
    if address != LOCAL:
        _try(address)


def _knock(address: str) -> None:
    """Raise InputError where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        allowed = f"HOST:PORT with a port up to {MOST_PORT}, ray://HOST:PORT, {', '.join(WORDS)}"
        message = f"is no address; given {address!r}, allowed are {allowed}"
        raise InputError.single("command line", OPTION, message)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        message = f"nobody answers at {address}: {error}"
        raise InputError.single("command line", OPTION, message) from None


def _try(address: str) -> None:
    """Raise InputError where Ray cannot be joined in time; by itself it tries for minutes."""
    command = (sys.executable, "-c", TRIAL, address)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOIN_S, check=False)
    except subprocess.TimeoutExpired:
        message = f"no Ray cluster answers at {address} within {JOIN_S:g} s"
        raise InputError.single("command line", OPTION, message) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        if "AuthenticationError" in done.stderr:
            said = [TOKEN]
        message = f"no Ray cluster at {address}: {said[0]}"
        raise InputError.single("command line", OPTION, message)


def on_ray(tasks: Iterable[Task], answer: Answer, address: str) -> Answers:
    """Answers as they come; raises InputError where the cluster cannot be used.

    What Ray prints of workers that die goes to standard error: results have the other.
    """
    ray = _ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        message = f"no Ray cluster at {address}: {error}"
        raise InputError.single("command line", OPTION, message) from None
    try:
        with redirect_stdout(sys.stderr):
            yield from _answers(ray, Retries(tasks), ray.remote(max_retries=0, num_cpus=1)(answer))
    finally:
        ray.shutdown()


def _answers(ray: Any, queue: Retries, remote: Any) -> Answers:  # noqa: ANN401
    flying: dict[Any, Task] = {}
    errors = ray.exceptions
    while queue or flying:
        room = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        while len(flying) < room and queue:
            task = queue.next()
            flying[remote.remote(task)] = task
        for reference in ray.wait(list(flying))[0]:
            task = flying.pop(reference)
            try:
                yield task, ray.get(reference)
            except errors.RayTaskError as error:
                message = f"the cluster cannot ask: {error.cause or error}"
                raise InputError.single("command line", OPTION, message) from None
            except errors.RayError as error:
                given_up = queue.lost(task, f"on Ray: {type(error).__name__}")
                if given_up is not None:
                    yield task, given_up
