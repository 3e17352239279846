"""Audit a run: prove what it trained on, and that it resumes exactly.

What goes in is a run directory (for `demo` and `selftest`: a configuration); what comes out is a
result for the command line, and nothing in the run directory is changed except `report.html`.
`replay` computes the data digest again without a model, `trace` finds the documents of a step and
the steps of a document, `verify_run` checks all files of a run, `selftest` and `demo` compare an
interrupted run with an uninterrupted one, and `report` writes one HTML page.
"""
