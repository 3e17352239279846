"""Report the progress of a job: to `metrics.jsonl`, the console and further loggers.

What goes in are step records, evaluations and saves; what comes out are events.
`observer.Observer` composes `events` (the contents of a line), `jsonl` (the file), `throughput`
(rates) and `console` (what a person sees). The converter uses only `console.Progress`, so no module
here imports torch or numpy.
"""
