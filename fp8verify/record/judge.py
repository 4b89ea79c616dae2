"""Judge windows in a process of lower priority, while the script goes on.

`python -m fp8verify.record.judge` reads a JSON request, inspects the folder that it names, writes
the report into it, and answers with the metrics of the window.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fp8verify.capture.files import find_metas, read_meta
from fp8verify.capture.schema import RankMeta
from fp8verify.errors import Fp8VerifyError, InputError
from fp8verify.files import replacing
from fp8verify.record.settings import RankSelection
from fp8verify.record.window_metrics import Sink, WindowMetrics, window_metrics
from fp8verify.terms import Verdict
from fp8verify.verdict.policy import Policy

REPORT = "report.json"
NICE = 10
PACKAGE = Path(__file__).parents[2]
STRAGGLERS_S = 60.0  # how long the other ranks may take to write the traces of a window
KEPT = "kept"
MAX_KEPT = 20  # of a run whose verdict goes to and fro
# From the best to the worst: exit code 1 is worse than 3.
GRAVITY = (
    Verdict.ACTIVE,
    Verdict.PARTIAL,
    Verdict.INCONCLUSIVE,
    Verdict.INACTIVE,
    Verdict.EMULATED,
    Verdict.CONTRADICTED,
)


class Judged(NamedTuple):
    """A window that was judged: its metrics, or why there are none."""

    folder: Path
    metrics: WindowMetrics | None = None
    error: str | None = None


class Judge:
    """Judges captures in the order in which they are submitted, and writes `report.json` into each.

    Each one has a process of its own: between windows no memory is used.

    Args:
        policy: what the verdict asks for.
        on_judged: called for each, on a thread of its own.
    """

    def __init__(self, policy: Policy, on_judged: Callable[[Judged], object]) -> None:
        self._policy = policy
        self._on_judged = on_judged
        self._waiting: deque[tuple[Path, Path | None]] = deque()
        self._lock = threading.Lock()  # of all that follows
        self._thread: threading.Thread | None = None  # while there is something to judge
        self._process: subprocess.Popen[str] | None = None

    @property
    def idle(self) -> bool:
        """Whether all that was submitted is judged."""
        return self._thread is None

    def submit(self, folder: Path, log: Path | None = None) -> None:
        """Let a capture be judged."""
        with self._lock:
            self._waiting.append((folder, log))
            if self._thread is None:
                self._thread = threading.Thread(target=self._judge_all, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Return when all are judged."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """Return at once; what is not judged stays so."""
        with self._lock:
            self._waiting.clear()
            if self._process is not None:
                self._process.kill()
        self.wait()

    def _judge_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                folder, log = self._waiting.popleft()
                self._process = None
                with suppress(OSError):
                    self._process = _start_process()
            self._on_judged(Judged(folder, **self._ask(folder, log)))

    def _ask(self, folder: Path, log: Path | None) -> dict[str, Any]:
        request = {
            "folder": str(folder.absolute()),
            "log": str(log.absolute()) if log is not None else None,
            "policy": self._policy._asdict(),
        }
        process = self._process
        if process is None:
            return {"error": "no process that reads windows can be started"}
        answer, _ = process.communicate(json.dumps(request))
        try:
            result: dict[str, Any] = json.loads(answer)
        except ValueError:  # somebody killed it
            return {"error": "the process that reads windows died"}
        return result


def _start_process() -> subprocess.Popen[str]:
    """Start one without what attaches us to the script, and without its GPUs."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [entry for entry in path if entry and not Path(entry).name.startswith(".boot-")]
    return subprocess.Popen(
        [sys.executable, "-m", "fp8verify.record.judge"],
        cwd=PACKAGE,  # where `-m` finds us, and not what the script calls like our modules
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries), "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the script
    )


class History:
    """Takes the windows of a run in order; the run has the worst verdict.

    Args:
        capture: the capture of the run; windows whose verdict changed move to its folder `kept`.
        sinks: get the metrics of each window.
        on_change: called with the verdict before, None at first, and the metrics.

    Attributes:
        worst: the capture of the window with the worst verdict, None without any.
        counts: windows by verdict.
        last: the last metrics.
        errors: what went wrong in sinks and in `on_change`, once each.
    """

    def __init__(
        self,
        capture: Path,
        sinks: Sequence[Sink],
        on_change: Callable[[str | None, WindowMetrics], object] | None = None,
    ) -> None:
        self.worst: Path | None = None
        self.counts: Counter[str] = Counter()
        self.last: WindowMetrics | None = None
        self.errors: list[str] = []
        self._capture = capture
        self._sinks = sinks
        self._on_change = on_change or (lambda *_: None)
        self._gravest = -1
        self._kept = 0

    def take(self, judged: Judged) -> None:
        """Take the next window."""
        number = judged.folder.name.rpartition("-")[2]
        metrics = judged.metrics or {
            "step": int(number) if number.isdecimal() else None,
            "verdict": Verdict.INCONCLUSIVE.value,
            "reason": f"the window could not be judged: {judged.error}",
            "exit_code": 3,
            "findings": [],
        }
        before = None if self.last is None else str(self.last["verdict"])
        self.last = metrics
        self.counts[metrics["verdict"]] += 1
        gravity = GRAVITY.index(Verdict(metrics["verdict"]))
        is_worse, changed = gravity > self._gravest, before != metrics["verdict"]
        if is_worse or (changed and self._kept < MAX_KEPT):
            self._kept += 1
            folder = self._keep(judged.folder)
            if is_worse:
                self._gravest, self.worst = gravity, folder
        else:
            shutil.rmtree(judged.folder, ignore_errors=True)
        for sink in self._sinks:
            self._guarded(type(sink).__name__, partial(sink.write, metrics))
        if changed:
            self._guarded("--on-change", partial(self._on_change, before, metrics))

    def close(self) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            self._guarded(type(sink).__name__, sink.close)

    def _keep(self, folder: Path) -> Path:
        target = self._capture / KEPT / folder.name
        with suppress(OSError):
            target.parent.mkdir(mode=0o700, exist_ok=True)
            folder.rename(target)
            return target
        return folder

    def _guarded(self, what: str, call: Callable[[], object]) -> None:
        """Call what is not ours: its failure ends neither the script nor the watch."""
        try:
            call()
        except Exception as error:
            message = f"{what}: {type(error).__name__}: {error}"[:300]
            if message not in self.errors:
                self.errors.append(message)


def is_closed(folder: Path, ranks: RankSelection) -> bool:
    """Whether all requested ranks are done with the one window of a folder in `live`.

    A rank that takes a minute longer than the first one is not waited for.
    """
    closed = [path.stat().st_mtime for path in folder.glob("*.closed")]
    if not closed:
        return False
    wanted = len(_wanted_metas(folder, ranks))
    return len(closed) >= wanted or time.time() - min(closed) > STRAGGLERS_S


def progress(capture: Path, ranks: RankSelection, count: int) -> tuple[int, bool]:
    """Return how many windows left a trace on every requested rank, and whether none is to come.

    Args:
        capture: the capture of the run.
        ranks: those that record.
        count: how many windows each of them records.
    """
    metas = _wanted_metas(capture, ranks)
    known = [meta for meta in metas if meta is not None]
    if not known or len(known) < len(metas):
        return 0, False
    closed = min(sum(w.trace is not None for w in meta.windows) for meta in known)
    windows = [window for meta in known for window in meta.windows]
    to_come = any(w.state in ("never", "cut") and w.trace is None for w in windows)
    return closed, not to_come and all(len(meta.windows) >= count for meta in known)


def _wanted_metas(capture: Path, ranks: RankSelection) -> list[RankMeta | None]:
    """Return the records of the requested ranks, None for one that is not there yet."""
    metas = {meta.rank: meta for meta in metas_of(capture)}
    size = max((meta.world_size for meta in metas.values()), default=1)
    return [metas.get(rank) for rank in range(size) if ranks.includes(rank, size)]


def metas_of(capture: Path) -> list[RankMeta]:
    """Return the records of the ranks that have one."""
    metas = []
    for path in find_metas(capture):
        with suppress(InputError):  # claimed, and not written yet
            metas.append(read_meta(path))
    return metas


def keep_report(folder: Path, text: str) -> None:
    """Write `report.json` into a capture, whole at once.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(folder / REPORT, f".{REPORT}.{os.getpid()}") as draft:
        draft.write_text(text, encoding="utf-8")


def main() -> None:
    """Answer one request; an error is an answer too."""
    with suppress(OSError):
        os.nice(NICE)  # the script comes first
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not an answer
    with suppress(BrokenPipeError), answers:
        json.dump(_answer(**request), answers)


def _answer(folder: str, log: str | None, policy: dict[str, Any]) -> dict[str, Any]:
    from fp8verify.pipeline.inspection import inspect

    try:
        report = inspect(folder, log=log, policy=Policy(**policy))
        keep_report(Path(folder), report.to_json())
        return {"metrics": window_metrics(report)}
    except Fp8VerifyError as error:
        return {"error": error.fact.rstrip(".")}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
