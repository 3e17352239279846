"""Read the documents of one task.

A task names byte ranges of input files; the reader of each file's format yields `Document`s in file
order. Nothing is filtered or tokenized here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from convert.inputs.document import BadRecords, Document, ReadOptions
from convert.inputs.input_files import InputFile
from convert.inputs.mds_reader import read_mds
from convert.inputs.table_reader import read_arrow, read_csv, read_parquet
from convert.inputs.tasks import ByteRange, Task
from convert.inputs.text_reader import read_jsonl, read_text
from stream_pretrain.errors import DataError

Reader = Callable[[ByteRange, InputFile, ReadOptions, BadRecords], Iterator[Document]]
READERS: Mapping[str, Reader] = {
    "text": read_text,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "mds": read_mds,
}


def read_task(
    task: Task, files: Sequence[InputFile], options: ReadOptions, bad_records: BadRecords
) -> Iterator[Document]:
    """Yield all documents of a task, in order."""
    for byte_range in task.ranges:
        file = files[byte_range.file]
        try:
            yield from READERS[file.format](byte_range, file, options, bad_records)
        except MemoryError as error:
            raise DataError(
                f"{file.path}: a record or block needs more memory than there is. Nothing was "
                "published. Split the file, or give fewer --workers."
            ) from error
        except (OSError, pa.ArrowException) as error:
            message = " ".join(str(error).split())
            raise DataError(
                f"{file.path}: cannot be read ({message}). Nothing was published. Check the file "
                "and its disk."
            ) from error
