"""The examples in the docstrings of planner.job, which the page shows, come out as they say."""

import doctest
import importlib
import pkgutil

import pytest

import planner.job

MODULES = [f"planner.job.{module.name}" for module in pkgutil.iter_modules(planner.job.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_the_docstrings_hold(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
