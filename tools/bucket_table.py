"""The table of docs/overlap.md: exposed gradient reduction against bucket size."""

from dataclasses import dataclass, replace

from planner.catalog import EXAMPLE_NODE
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec
from planner.spec.strategy import FIELD_DEFAULTS, Strategy, split_values
from tools.formulas import table

ELEMENTS = (1e6, 4e6, 1e7, 4e7, 1e8, 4e8, 1e9, 1e18)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One layout on DGX H100, a sequence of 8,192 tokens per micro-batch, sharded optimizer."""

    model: str
    num_nodes: int
    dp: int
    tp: int
    pp: int
    num_micro_batches: int

    @property
    def title(self) -> str:
        return f"{self.model}, dp {self.dp}, tp {self.tp}, pp {self.pp}"

    def milliseconds(self) -> list[str]:
        """Exposed over busy, for every bucket size."""
        context = Context(
            model=load_model(self.model),
            job=JobSpec(global_batch=self.dp * self.num_micro_batches, seq_len=8192),
            cluster=load_cluster(f"{self.num_nodes}x{EXAMPLE_NODE}"),
            traits=load_traits("megatron"),
        )
        layers = (context.model.num_blocks // self.pp,) * self.pp
        own = {
            "dp": self.dp,
            "tp": self.tp,
            "pp": self.pp,
            "etp": self.tp,
            "zero_stage": 1,
            "num_micro_batches": self.num_micro_batches,
            "sequence_parallel": self.tp > 1,
        }
        policies = split_values(layers, {})
        strategy = Strategy(**{**FIELD_DEFAULTS, **own, **policies})
        items = [
            estimate(with_buckets(context, size), strategy).time["data_parallel"]
            for size in ELEMENTS
        ]
        return [f"{1e3 * one.exposed_s:.0f} of {1e3 * one.busy_s:.0f}" for one in items]


def with_buckets(context: Context, elements: float) -> Context:
    """The same with buckets of so many gradients."""
    overlap = replace(
        context.traits.overlap,
        gradient_bucket_elements=elements,
        gradient_bucket_elements_per_rank=0.0,
    )
    return replace(context, traits=replace(context.traits, overlap=overlap))


CASES = (
    _Case(model="llama3.1-8b", num_nodes=16, dp=128, tp=1, pp=1, num_micro_batches=1),
    _Case(model="llama3.1-8b", num_nodes=128, dp=1024, tp=1, pp=1, num_micro_batches=1),
    _Case(model="llama3.1-70b", num_nodes=128, dp=32, tp=8, pp=4, num_micro_batches=8),
)


def bucket_table() -> str:
    """Milliseconds of gradient reduction and weight gather that show, of all, by bucket size."""
    columns = [case.milliseconds() for case in CASES]
    names = [f"{size / 1e6:,.0f} million" for size in ELEMENTS[:-1]] + ["one bucket"]
    rows = ((name, *(column[i] for column in columns)) for i, name in enumerate(names))
    return table(("gradients per bucket", *(case.title for case in CASES)), rows)
