"""The adapters of a published run: the traits under which only they are trained."""

from planner.errors import InputError
from planner.frameworks.settings import with_training
from planner.layers.adapter_sizes import adapter_params, training_problem
from planner.spec.model import ModelSpec
from planner.spec.training import Mode, Training, read_targets
from planner.spec.traits import FrameworkTraits
from planner.validation.hardware import CannotEstimateError
from planner.validation.records import Lora, Record

TRAINABLE_TOLERANCE = 0.001
"""Of a published number of trained parameters, beyond which something else is trained too."""


def to_training(lora: Lora) -> Training:
    """What a record says is trained; CannotEstimateError where that is not modelled.

    Several adapters, of which every token takes one, count as one that is as large as all.
    """
    if lora.modules_to_save:
        words = ", ".join(lora.modules_to_save)
        raise CannotEstimateError(f"modules trained whole beside adapters: {words}")
    if lora.quantized_base_bits == 8:
        raise CannotEstimateError("a base of 8 bits is not modelled")
    if lora.rank is None:
        raise CannotEstimateError("rank of the adapters not published")
    if not lora.target_modules:
        raise CannotEstimateError("targets of the adapters not published")
    try:
        targets = read_targets(",".join(lora.target_modules))
    except ValueError as error:
        raise CannotEstimateError(f"adapters of other modules: {error}") from None
    mode: Mode = "qlora" if lora.quantized_base_bits == 4 else "lora"
    return Training(
        mode=mode, rank=lora.rank, targets=targets, num_adapters=lora.concurrent_adapters or 1
    )


def with_adapters(traits: FrameworkTraits, record: Record, model: ModelSpec) -> FrameworkTraits:
    """The traits where a record's adapters are trained; as they are where it has none."""
    if record.lora is None:
        return traits
    training = to_training(record.lora)
    joined = traits.kernels.joins_adapters
    _, problem = training_problem(model, training, joined=joined)
    if problem:
        raise CannotEstimateError(problem)
    if stated := record.lora.trainable_params:
        trained = adapter_params(model, training, joined=joined)
        if abs(trained / stated - 1.0) > TRAINABLE_TOLERANCE:
            text = f"{stated:,.0f} trained parameters are not those of adapters, {trained:,}"
            raise CannotEstimateError(text)
    try:
        return with_training(traits, training)
    except InputError as error:
        raise CannotEstimateError(error.problems[0].message) from None
