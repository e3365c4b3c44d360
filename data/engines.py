"""Engines that run a preparation: processes on this machine, or an Apache Beam pipeline."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from hyla_lm.data.preparation import Preparation
from hyla_lm.data.progress import track
from hyla_lm.errors import UserError
from hyla_lm.input.workers import end_with_parent


def run_here(preparation: Preparation, missing: Sequence[int], workers: int) -> None:
    """Makes the missing shards on `workers` processes; raises UserError if one dies."""
    label = f"making {len(missing)} of {preparation.shards} {preparation.split} shards"
    if min(workers, len(missing)) <= 1:
        for index in track(missing, label, len(missing)):
            preparation.make_shard(index)
        return
    count, context = min(workers, len(missing)), get_context("spawn")
    with ProcessPoolExecutor(count, context, end_with_parent) as pool:
        made = [pool.submit(preparation.make_shard, index) for index in missing]
        try:
            for future in track(as_completed(made), label, len(made)):
                future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process died, perhaps for lack of memory: lower --workers and run the "
                "same command again; finished shards stay."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def run_on_beam(preparation: Preparation, missing: Sequence[int], flags: Sequence[str]) -> None:
    """Makes the missing shards in a Beam pipeline with the flags of its runner."""
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError as error:
        raise UserError("--engine=beam needs Beam: pip install 'hyla_lm[seqio]'.") from error
    with beam.Pipeline(options=PipelineOptions(list(flags))) as pipeline:
        indices = pipeline | "shards" >> beam.Create(list(missing))
        spread = indices | "one shard a bundle" >> beam.Reshuffle()
        _ = spread | "make" >> beam.Map(preparation.make_shard)


def default_workers() -> int:
    """One process a core that this process may use."""
    return len(os.sched_getaffinity(0))
