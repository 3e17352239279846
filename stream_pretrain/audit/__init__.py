"""Proof, after the fact or on demand.

replay (the digest without a model), trace (a step's documents, a document's steps), verify (a run's
files), selftest and demo (real kills, compared), report (one page).
"""
