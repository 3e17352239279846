"""Run a conversion: tasks on workers, with receipts, so that a stopped job goes on.

A `ConversionJob` and its tasks come in; a published dataset comes out. `worker` converts one task
(read, encode, and write through `part_writer`) and leaves a receipt for each part, `engines` run
workers on this machine or on a Ray cluster, `staging` finds the receipts of a stopped job,
`publish_dataset` joins the parts, and `dataset_card` describes the result.
"""
