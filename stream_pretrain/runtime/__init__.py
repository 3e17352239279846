"""Processes: who am I, when to stop, what do all ranks say. launch -> control -> stop."""
