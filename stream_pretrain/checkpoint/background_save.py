"""Run one save at a time in a background thread; its errors say which step was being saved."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stream_pretrain.errors import CheckpointError, StorageError, StreamPretrainError
from stream_pretrain.storage.failures import storage_error


class BackgroundSave:
    """Runs at most one function at a time in a daemon thread.

    `run_url` and `disk` (the directory that is written to) name the locations in errors.
    """

    def __init__(self, run_url: str, disk: str) -> None:
        self._run_url = run_url
        self._disk = disk
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, step: int, work: Callable[[], None]) -> None:
        """Start `work`, the save of `step`; `finish` must have been called since the last start."""
        assert self._thread is None, "the previous save must be finished first"
        self._thread = threading.Thread(
            target=self._run, args=(step, work), name="checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self) -> Exception | None:
        """Wait for the running save; return its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        return error

    def _run(self, step: int, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # raised in the foreground by the caller of `finish`
            self._error = self._named(error, step)

    def _named(self, error: Exception, step: int) -> Exception:
        """Return an error of ours that names the step and the location."""
        if isinstance(error, StreamPretrainError):
            return error
        ours: StreamPretrainError
        if isinstance(error, OSError):
            ours = storage_error(error, self._disk, f"saving step {step}")
        else:
            ours = CheckpointError(
                f"{self._run_url}: saving step {step} failed ({type(error).__name__}: {error}). "
                "The previous checkpoint is untouched."
            )
        ours.__cause__ = error
        return ours


def not_saved(error: Exception, step: int | None, newest_whole: int | None) -> Exception:
    """Return `error` with a message that says which checkpoint is missing and which is the newest.

    Only storage and checkpoint errors are reworded; the class and the reason stay.
    """
    whole = "none yet" if newest_whole is None else f"of step {newest_whole}"
    text = f"the checkpoint of step {step} was not saved; the last whole one is {whole}. {error}"
    if isinstance(error, StorageError):
        return StorageError(text, error.reason).with_traceback(error.__traceback__)
    if type(error) is CheckpointError:
        return CheckpointError(text).with_traceback(error.__traceback__)
    return error
