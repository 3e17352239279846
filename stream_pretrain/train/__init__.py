"""Steps, evaluation and the loop. assembly (the only wiring) -> loop (the sentence) -> step,
evaluate, loggers.
"""
