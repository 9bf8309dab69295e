"""Where to begin with batch and learning rate of a plan, by scaling laws."""

from dataclasses import dataclass

from planner.job.hints import (
    at_batch,
    critical_batch_tokens,
    deepseek_batch_tokens,
    deepseek_learning_rate,
    extra_tokens_fraction,
    step_batch_tokens,
    step_learning_rate,
)
from planner.layers.parameters import (
    Parts,
    count_active_parameters,
    embedding_params,
    head_params,
)
from planner.plans.plan import Plan


def total_of(parts: Parts) -> float:
    """Parameters of all parts."""
    return sum(float(part.total) for part in parts.values())


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Where to begin with batch and learning rate, by scaling laws of pre-training from scratch."""

    plan: Plan
    total_tokens: int

    @property
    def batch_tokens(self) -> int:
        """Of one step."""
        return self.plan.context.job.tokens_per_iteration

    @property
    def critical_tokens(self) -> float:
        """Of the critical batch."""
        return float(critical_batch_tokens(self.total_tokens))

    @property
    def is_beyond(self) -> bool:
        """The batch is beyond the critical one."""
        return self.batch_tokens > self.critical_tokens

    @property
    def extra_tokens_fraction(self) -> float:
        """Further tokens for the same loss, against small batches."""
        return float(extra_tokens_fraction(self.batch_tokens, self.critical_tokens))

    @property
    def best_tokens(self) -> tuple[float, float]:
        """Of the batches with the least loss, by DeepSeek's law and by Step Law."""
        return (
            float(deepseek_batch_tokens(self._flops)),
            float(step_batch_tokens(self.total_tokens)),
        )

    @property
    def learning_rates(self) -> tuple[float, float] | None:
        """Of AdamW at its peak, by the same, at the plan's batch or the critical one.

        None of mixtures, and of other optimizers.
        """
        context = self.plan.context
        if context.model.moe is not None or not context.traits.optimizer.name.startswith("adam"):
            return None
        batch = min(self.batch_tokens, self.critical_tokens)
        best = (
            deepseek_learning_rate(self._flops),
            step_learning_rate(self._inner_params, self.total_tokens),
        )
        deepseek, step = (
            float(at_batch(rate, batch, tokens))
            for rate, tokens in zip(best, self.best_tokens, strict=True)
        )
        return deepseek, step

    @property
    def _inner_params(self) -> float:
        """Active parameters without embeddings and head."""
        model = self.plan.context.model
        ends = total_of(embedding_params(model)) + total_of(head_params(model))
        return count_active_parameters(model) - ends

    @property
    def _flops(self) -> float:
        """``6 · parameters · tokens``, attention left out."""
        return 6.0 * self._inner_params * self.total_tokens
