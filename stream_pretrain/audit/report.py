"""Write the report of a run, one HTML page.

The run directory may be local or in a bucket, and the run may still be in progress. The page is
written to RUN/report.html or to a given local file; nothing else is changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

from stream_pretrain.audit.report_data import ReportData, read_report_data
from stream_pretrain.audit.report_page import ReportSources, page
from stream_pretrain.errors import DataError
from stream_pretrain.observe.jsonl import read_events
from stream_pretrain.storage.store import Store

REPORT_NAME = "report.html"

_METRICS_NAME = "metrics.jsonl"


def write_report(run: Store, out: Path | None = None) -> str:
    """Write the report of a run to RUN/report.html or the local file `out`; return its path or URL.

    Raises:
        DataError: the run directory has no metrics.
    """
    html = page(_report_data(run), _sources(run)).encode()
    if out is None:
        run.write(REPORT_NAME, html)
        return run.url(REPORT_NAME)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(html)
    return str(out)


def _report_data(run: Store) -> ReportData:
    metrics = run.head(_METRICS_NAME)
    if metrics is None:
        raise DataError(
            f"{run.url(_METRICS_NAME)}: there is no such file. Give the directory of a run that "
            "has started (run.dir in its configuration)."
        )
    if run.is_local:
        return read_report_data(read_events(run.path / _METRICS_NAME))
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        copy = Path(folder) / _METRICS_NAME
        run.download(_METRICS_NAME, copy, size=metrics.size)
        return read_report_data(read_events(copy))


def _sources(run: Store) -> ReportSources:
    names = list(takewhile(lambda name: run.head(name) is not None, _config_names()))
    config = run.read(names[0]).decode(errors="replace") if names else ""
    return ReportSources(location=run.url(), config=config, links=(*names, _METRICS_NAME))


def _config_names() -> Iterator[str]:
    """Yield the name of the configuration of the first start, then those of further starts."""
    yield "config.yaml"
    yield from (f"config.{number}.yaml" for number in count(1))
