"""Run the tasks of a job: on processes of this machine (`local`), or on a Ray cluster (`ray`).

A job and a list of `Call`s come in; their results come out in the order in which they finish.
"""
