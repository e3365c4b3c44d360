"""All benchmarks by name: the paper's, and tasks of ours, which nobody published figures of."""

from collections.abc import Mapping

from hyla_lm.evals.experiments import paper
from hyla_lm.evals.experiments.rows import Benchmark, Column, Experiment, Setting, crossed


def ours(task: str, metric: str, loss: str) -> Benchmark:
    """A task of ours, with each of three kinds of attention: its gin file has its name."""
    name = metric.lower()
    return Benchmark(
        task,
        task,
        f"{metric} on new combinations",
        Column("held out", f"validation/held_out_{name}"),
        Column("in distribution", f"validation/in_distribution_{name}"),
        (Column("training loss", f"train/{loss}", 1.0, 4),),
        {"learning_rate": (1e-3, 3e-3)},
        {"attention": Experiment("kinds of attention", crossed([Setting()]))},
        {"plain": f"{task.lower()}.gin"},
        is_published=False,
    )


OURS = (
    ours("Match3", "accuracy", "loss_nats"),
    ours("Hyperteacher", "R2", "mse"),
)
BENCHMARKS: Mapping[str, Benchmark] = {
    **paper.BENCHMARKS,
    **{benchmark.task.lower(): benchmark for benchmark in OURS},
}
