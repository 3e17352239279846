"""The training loop. In: a `Trainer`. Out: why it ended. Nothing happens between steps that cannot
be read here.
"""

from __future__ import annotations

from stream_pretrain.train.trainer import Trainer


def train(job: Trainer) -> str:
    """Train until a limit, a signal or a fault; returns the reason."""
    if job.plan.evaluate_at_start and job.state.step == 0:
        job.evaluate()
    while (reason := job.stop_reason()) is None:
        batches = job.next_batches()
        result = job.update(batches)
        job.advance(result)
        job.report(result)
        if job.must_rewind:
            job.rewind()
            continue
        if job.plan.evaluation_due(job.state.step):
            job.evaluate()
        if job.triggers.save_now:
            job.save()
    job.finish(reason)
    return reason
