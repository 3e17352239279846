"""Read the input files of a conversion.

The `--input` values come in. `list_files` and `input_files` find the files that they name, `tasks`
cuts those into units of work, and `read_task` reads the documents of one unit, in file order.
Nothing here tokenizes text or writes output.
"""
