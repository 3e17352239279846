"""A process that has imported everything and forks a child for each run, so that a run starts in a
second.

Protocol: one JSON request a line on stdin, one JSON answer a line on stdout. The child leads a
session of its own, runs `stream-pretrain` with real arguments and may be told to kill itself with
SIGKILL at an exact instant.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ANSWER = "answer: "


@dataclass(frozen=True)
class Kill:
    """A signal at the `count`-th time (from 1) that `point` is reached by `rank`.

    `whole_session` sends it to all ranks and workers, else to that rank alone. The signal `workers`
    is a SIGKILL to the rank's data workers alone.

    Points: `taken` (a step's batches are read, the update not made), `updated` (made, not counted),
    `counted`, `fsync`, `replace` (in a save: files or names just written), `saved` (the loop's save
    has returned).
    """

    point: str
    count: int = 1
    signal: str = "SIGKILL"
    rank: int = 0
    whole_session: bool = True


@dataclass(frozen=True)
class Done:
    """How a run ended: `codes` of its ranks as `subprocess` gives them (-9: killed), `log` their
    output.
    """

    codes: list[int]
    log: str
    seconds: float

    @property
    def code(self) -> int:
        """Rank 0's exit code."""
        return self.codes[0]


class ForkedRuns:
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

    def __enter__(self) -> ForkedRuns:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def run(  # noqa: PLR0913
        self,
        arguments: list[str],
        log: Path,
        *,
        kill: Kill | None = None,
        kill_after_s: float | None = None,
        record: Path | None = None,
        environment: dict[str, str] | None = None,
        ranks: int = 1,
        nodes: int = 1,
        launcher: str = "elastic",
    ) -> Done:
        """Run `stream-pretrain ARGUMENTS` in a forked child for each rank, with a launcher's
        environment.

        `record` gets a line for every step and rank: its sample ids. `launcher` is `elastic` (as
        torchrun) or `slurm`.
        """
        request = {
            "arguments": arguments,
            "log": str(log),
            "kill": asdict(kill) if kill else None,
            "ranks": ranks,
            "nodes": nodes,
            "launcher": launcher,
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
                return Done(answer["codes"], text, answer["seconds"])
        raise RuntimeError("the forked_runs process ended")


@dataclass
class _Trigger:
    """Counts arrivals at a point and sends the signal at the wanted one."""

    kill: Kill | None
    seen: int = field(default=0)

    def reached(self, point: str) -> None:
        if self.kill is None or point != self.kill.point:
            return
        self.seen += 1
        if self.seen == self.kill.count:
            if self.kill.signal == "workers":
                for worker in multiprocessing.active_children():
                    worker.kill()
                return
            number = signal.Signals[self.kill.signal]
            if self.kill.whole_session:
                os.killpg(0, number)
            else:
                os.kill(os.getpid(), number)


def _after(owner: Any, name: str, act: Any) -> None:
    """Call `act(result, *arguments)` after a function of `owner`."""
    real = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        act(result, *arguments)
        return result

    setattr(owner, name, wrapped)


def _install(kill: Kill | None, record: str | None) -> None:
    from stream_pretrain.train.trainer import Trainer

    trigger = _Trigger(kill)
    if record is not None:

        def write(batches: Any, job: Any) -> None:
            ids = sorted(place for batch in batches for place in batch.sample_ids.tolist())
            with Path(record).open("a") as file:
                file.write(json.dumps([job.state.data_step + 1, ids]) + "\n")

        _after(Trainer, "next_batches", write)
    _after(Trainer, "next_batches", lambda *_: trigger.reached("taken"))
    _after(Trainer, "update", lambda *_: trigger.reached("updated"))
    _after(Trainer, "advance", lambda *_: trigger.reached("counted"))
    _after(Trainer, "save", lambda *_: trigger.reached("saved"))
    _after(os, "fsync", lambda *_: trigger.reached("fsync"))
    _after(os, "replace", lambda *_: trigger.reached("replace"))
    _after(os, "rename", lambda *_: trigger.reached("replace"))
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps its own references
    for name in ("replace", "rename") if accessor else ():
        setattr(accessor, name, staticmethod(getattr(os, name)))


def _child(request: dict[str, Any], rank: int) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.update({**request["environment"], **_launched(request, rank)})
    kill = Kill(**request["kill"]) if request["kill"] else None
    mine = kill if kill is not None and kill.rank == rank else None
    _install(mine, request["record"])
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


def _launched(request: dict[str, Any], rank: int) -> dict[str, str]:
    """The variables that a launcher gives to a rank; none for a single process."""
    ranks, nodes = request["ranks"], request["nodes"]
    if ranks == 1:
        return {}
    local = ranks // nodes
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(request["port"])}
    if request["launcher"] == "slurm":
        return {
            **address,
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NAME": "pretrain",
            "SLURM_NTASKS": str(ranks),
            "SLURM_NTASKS_PER_NODE": str(local),
            "SLURM_NNODES": str(nodes),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % local),
            "SLURM_NODEID": str(rank // local),
            "SLURM_NODELIST": "localhost",
        }
    return {
        **address,
        "TORCHELASTIC_RUN_ID": "1",
        "GROUP_RANK": str(rank // local),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _lead(request: dict[str, Any], answer: int) -> None:
    """Lead a session of forked ranks; writes their exit codes to the pipe `answer`."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # as a launcher that passes signals on
    request["port"] = _free_port()
    ranks = []
    for rank in range(request["ranks"]):
        child = os.fork()
        if child == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            os.close(answer)
            _child(request, rank)
        ranks.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
    os.write(answer, json.dumps(codes).encode())
    os._exit(0)


def _kill_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _run(request: dict[str, Any]) -> list[int]:
    """Exit codes of all ranks of one run; -9 for each where the whole session was killed."""
    reading, writing = os.pipe()
    leader = os.fork()
    if leader == 0:
        os.close(reading)
        _lead(request, writing)
    os.close(writing)
    if request["kill_after_s"] is not None:
        select.select([reading], [], [], request["kill_after_s"])
        _kill_session(leader)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(leader, 0)
    _kill_session(leader)  # whatever it left
    return json.loads(text) if text else [-signal.SIGKILL] * request["ranks"]


def _serve() -> None:
    import lightning.fabric  # noqa: F401
    import litgpt  # noqa: F401
    import streaming  # noqa: F401

    import stream_pretrain.train.fit  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        begun = time.monotonic()
        codes = _run(request)
        print(
            ANSWER + json.dumps({"codes": codes, "seconds": time.monotonic() - begun}), flush=True
        )


if __name__ == "__main__":
    _serve()
