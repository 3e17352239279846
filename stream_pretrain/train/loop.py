"""The training loop. In: a `Job`. Out: why it ended. Nothing happens between steps that cannot be
read here.
"""

from __future__ import annotations

from stream_pretrain.train.job import Job


def train(job: Job) -> str:
    """Train until a limit, a signal or a fault; returns the reason."""
    if job.plan.evaluate_at_start and job.state.step == 0:
        job.evaluate()
    while (reason := job.stop_reason()) is None:
        batches = job.take()
        result = job.update(batches)
        job.advance(result)
        job.report(result)
        if job.must_rewind:
            job.rewind()
            continue
        if job.plan.evaluation_due(job.state.step):
            job.evaluate()
        if job.cadence.save_now:
            job.save()
    job.finish(reason)
    return reason
