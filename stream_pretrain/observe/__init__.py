"""What a job tells: step records -> events -> metrics.jsonl, console, logger sinks.

`observer.Observer` composes the rest: `events` (the lines), `jsonl` (the file), `throughput`
(rates), `console` (what a person sees). The converter uses `console.Progress` alone, so nothing
here imports torch or numpy, ever.
"""
