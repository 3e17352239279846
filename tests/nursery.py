"""A process that has imported everything and forks a child for each run, so that a run starts in a second.

Protocol: one JSON request a line on stdin, one JSON answer a line on stdout. The child leads a session of its own, runs
`stream-pretrain` with real arguments and may be told to kill itself with SIGKILL at an exact instant.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANSWER = "answer: "


@dataclass(frozen=True)
class Kill:
    """SIGKILL to the whole session at the `count`-th time (from 1) that `point` is reached.

    Points: `taken` (a step's batches are read, the update not made), `updated` (made, not counted), `counted`,
    `fsync`, `replace` (in a save: files or names just written), `saved` (the loop's save has returned).
    """

    point: str
    count: int = 1


@dataclass(frozen=True)
class Done:
    """How a child ended: `code` as `subprocess` gives it (-9: killed), `log` its output."""

    code: int
    log: str
    seconds: float


class Nursery:
    """The parent's end. Use as a context manager; one child at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(
        self,
        arguments: list[str],
        log: Path,
        *,
        kill: Kill | None = None,
        kill_after_s: float | None = None,
        record: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Done:
        """Run `stream-pretrain ARGUMENTS` in a forked child. `record` gets a line for every step: its sample ids."""
        request = {
            "arguments": arguments,
            "log": str(log),
            "kill": [kill.point, kill.count] if kill else None,
            "kill_after_s": kill_after_s,
            "record": str(record) if record else None,
            "environment": environment or {},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(ANSWER):
                answer = json.loads(line[len(ANSWER) :])
                text = log.read_text(errors="replace")
                return Done(answer["code"], text, answer["seconds"])
        raise RuntimeError("the nursery process ended")


@dataclass
class _Trigger:
    """Counts arrivals at a point and kills at the wanted one."""

    point: str
    count: int
    seen: int = field(default=0)

    def reached(self, point: str) -> None:
        if point == self.point:
            self.seen += 1
            if self.seen == self.count:
                os.killpg(0, signal.SIGKILL)


def _after(owner: Any, name: str, act: Any) -> None:
    """Call `act(result, *arguments)` after a function of `owner`."""
    real = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        act(result, *arguments)
        return result

    setattr(owner, name, wrapped)


def _install(kill: list[Any] | None, record: str | None) -> None:
    from stream_pretrain.train.job import Job

    trigger = _Trigger(*(kill or ["never", 0]))
    if record is not None:

        def write(batches: Any, job: Any) -> None:
            ids = sorted(place for batch in batches for place in batch.sample_ids.tolist())
            with Path(record).open("a") as file:
                file.write(json.dumps([job.state.data_step + 1, ids]) + "\n")

        _after(Job, "take", write)
    _after(Job, "take", lambda *_: trigger.reached("taken"))
    _after(Job, "update", lambda *_: trigger.reached("updated"))
    _after(Job, "advance", lambda *_: trigger.reached("counted"))
    _after(Job, "save", lambda *_: trigger.reached("saved"))
    _after(os, "fsync", lambda *_: trigger.reached("fsync"))
    _after(os, "replace", lambda *_: trigger.reached("replace"))
    _after(os, "rename", lambda *_: trigger.reached("replace"))


def _child(request: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.update(request["environment"])
    _install(request["kill"], request["record"])
    code = 70
    try:
        from stream_pretrain.cli import main

        code = main(request["arguments"])
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    import lightning.fabric  # noqa: F401
    import litgpt  # noqa: F401
    import streaming  # noqa: F401

    import stream_pretrain.train.command  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(request)
        after = request["kill_after_s"]
        if after is not None:
            time.sleep(after)
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _, status = os.waitpid(child, 0)
        try:
            os.killpg(child, signal.SIGKILL)  # whatever it left in its session
        except (ProcessLookupError, PermissionError):
            pass
        answer = {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}
        print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
