"""All benchmarks by name: the paper's, and tasks of ours, which nobody published figures of."""

from collections.abc import Mapping

from hyla_lm.evals.experiments import paper
from hyla_lm.evals.experiments.rows import Benchmark, Column, Experiment, Setting, crossed


def ours(name: str, task: str, metric: str, loss: str) -> Benchmark:
    """A task of ours: gin/evals/NAME.gin with each of three kinds of attention."""
    return Benchmark(
        task,
        task,
        f"held-out {metric}",
        Column("held out", f"validation/held_out_{metric}"),
        Column("in distribution", f"validation/in_distribution_{metric}"),
        (Column("training loss", f"train/{loss}", 1.0, 4),),
        {"learning_rate": (1e-3, 3e-3)},
        {"attention": Experiment("kinds of attention", crossed([Setting()]))},
        {"plain": f"{name}.gin"},
        is_published=False,
    )


BENCHMARKS: Mapping[str, Benchmark] = {
    **paper.BENCHMARKS,
    "match3": ours("match3", "Match3", "accuracy", "loss_nats"),
    "hyperteacher": ours("hyperteacher", "Hyperteacher", "r2", "mse"),
}
