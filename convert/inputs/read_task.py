"""Documents of a task. In: spans of input files. Out: `Document`s in file order.

Does not choose or encode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from convert.inputs.document import BadRecords, Document, Reading
from convert.inputs.input_files import InputFile
from convert.inputs.mds_reader import read_mds
from convert.inputs.table_reader import read_arrow, read_csv, read_parquet
from convert.inputs.tasks import ByteRange, Task
from convert.inputs.text_reader import read_lines, read_text
from stream_pretrain.errors import DataError

Reader = Callable[[ByteRange, InputFile, Reading, BadRecords], Iterator[Document]]
READERS: Mapping[str, Reader] = {
    "text": read_text,
    "jsonl": read_lines,
    "csv": read_csv,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "mds": read_mds,
}


def read_task(
    task: Task, files: Sequence[InputFile], how: Reading, bad: BadRecords
) -> Iterator[Document]:
    """All documents of a task, in order."""
    for span in task.spans:
        file = files[span.file]
        try:
            yield from READERS[file.format](span, file, how, bad)
        except MemoryError as error:
            raise DataError(
                f"{file.path}: a record or block needs more memory than there is. Nothing was "
                "published. Split the file, or give fewer --workers."
            ) from error
        except (OSError, pa.ArrowException) as error:
            found = " ".join(str(error).split())
            raise DataError(
                f"{file.path}: cannot be read ({found}). Nothing was published. Check the file "
                "and its disk."
            ) from error
