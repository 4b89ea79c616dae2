"""Windows that are judged while the run goes on: when they are complete, by whom, who gets them.

Nothing that reads or judges is imported here: it would delay the start of the run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8verify.capture.names import METAS, REPORT
from fp8verify.errors import InputError, UsageError
from fp8verify.files import writing
from fp8verify.record.lines import say
from fp8verify.record.threads import hearing, start_deaf

if TYPE_CHECKING:
    from fp8verify.capture.schema import RankMeta
    from fp8verify.record.folder import CaptureFolder
    from fp8verify.record.settings import RankSelection, RunSettings
    from fp8verify.verdict.policy import Policy

WindowMetrics = dict[str, Any]  # one line of --metrics
Sink = Callable[
    [WindowMetrics], object
]  # gets the metrics of each window, in their order
Destination = str | Path | Sink

PACKAGE = Path(__file__).parents[2]
POLL_S = 0.5
STRAGGLERS_S = 60.0  # how long the other ranks may take to write the traces of a window
COMMAND_S = 60.0  # how long one call of --on-change may take
AT_THE_END_S = 30.0  # how long after the end of the run one may begin
MAX_ERRORS = 8
KEPT = "kept"
MAX_KEPT = 20  # of a run whose verdict goes to and fro
# From the best to the worst: exit code 1 is worse than 3.
GRAVITY = ("ACTIVE", "PARTIAL", "INCONCLUSIVE", "INACTIVE", "EMULATED", "CONTRADICTED")


def open_sink(what: Destination) -> Sink:
    """Return what appends JSON lines to a file, which is whole after each; a function is itself.

    Raises:
        UsageError: it is neither, or the file cannot be written.
    """
    if callable(what):
        return what
    if not isinstance(what, (str, Path)):
        raise UsageError(
            f"{type(what).__name__} is not a sink.", "Give a file or a function."
        )
    if isinstance(what, str) and re.match(r"[A-Za-z][\w-]+:", what):
        raise UsageError(
            f"{what[:80]!r} is not a file: metrics are written as JSON lines.",
            "Give FILE.jsonl; docs/recipes.md has recipes for TensorBoard, W&B and others.",
        )
    path = Path(what)
    with writing("metrics", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()

    def append(metrics: WindowMetrics) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    return append


# --- which windows are complete


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
    traced = min(map(_traced_windows, known))
    is_last = all(_ends_with(meta, count) for meta in known)
    return traced, is_last


def _traced_windows(meta: RankMeta) -> int:
    """Count the windows of a rank that left a trace."""
    return sum(window.trace is not None for window in meta.windows)


def _ends_with(meta: RankMeta, count: int) -> bool:
    """Whether a rank has so many windows, and none of them may still leave a trace."""
    for window in meta.windows:
        is_open = window.state in ("never", "cut")
        if is_open and window.trace is None:
            return False
    return len(meta.windows) >= count


def _wanted_metas(capture: Path, ranks: RankSelection) -> list[RankMeta | None]:
    """Return the records of the requested ranks, None for one that is not there yet."""
    metas = {meta.rank: meta for meta in _metas_of(capture)}
    size = max((meta.world_size for meta in metas.values()), default=1)
    return [metas.get(rank) for rank in range(size) if ranks.includes(rank, size)]


def _metas_of(capture: Path) -> list[RankMeta]:
    """Return the records of the ranks that have one."""
    paths = sorted(capture.glob(METAS))
    metas = []
    if paths:
        from fp8verify.capture.files import read_meta

        for path in paths:
            with suppress(InputError):  # claimed, and not written yet
                metas.append(read_meta(path))
    return metas


# --- who judges them


class Judge:
    """Judges captures in the order in which they are submitted, and writes `report.json` into each.

    Each one has a process of its own, of lower priority: between windows no memory is used.

    Args:
        policy: what the verdict asks for.
        take: gets each one's folder and metrics, or why there are none, on a thread of its own.
    """

    def __init__(
        self, policy: Policy, take: Callable[[Path, WindowMetrics | str], object]
    ) -> None:
        self._policy = policy
        self._take = take
        self._waiting: deque[tuple[Path, Path | None]] = deque()
        self._lock = threading.Lock()  # of all that follows
        self._thread: threading.Thread | None = (
            None  # while there is something to judge
        )
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
                start_deaf(self._thread)

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
                with suppress(OSError), hearing():
                    self._process = _start_process()
            self._take(folder, self._ask(folder, log))

    def _ask(self, folder: Path, log: Path | None) -> WindowMetrics | str:
        if self._process is None:
            return "no process that reads windows can be started"
        request = {
            "folder": str(folder.absolute()),
            "log": str(log.absolute()) if log is not None else None,
            "policy": self._policy._asdict(),
        }
        answer, _ = self._process.communicate(json.dumps(request))
        try:
            result: WindowMetrics | str = json.loads(answer)
        except ValueError:  # somebody killed it
            return "the process that reads windows died"
        return result


def _start_process() -> subprocess.Popen[str]:
    """Start one without what attaches us to the script, and without its GPUs."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    entries = [
        entry for entry in path if entry and not Path(entry).name.startswith(".boot-")
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "fp8verify.record.judge"],
        cwd=PACKAGE,  # where `-m` finds us, and not what the script calls like our modules
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entries),
            "CUDA_VISIBLE_DEVICES": "",
        },
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
        self._kept = 0

    def take(self, folder: Path, judged: WindowMetrics | str) -> None:
        """Take the next window: its metrics, or why there are none."""
        if isinstance(judged, str):
            metrics = _not_judged(folder, judged)
        else:
            metrics = judged
        verdict = metrics["verdict"]
        before = self.last["verdict"] if self.last else None
        is_worse = all(
            GRAVITY.index(verdict) > GRAVITY.index(other) for other in self.counts
        )
        self.last = metrics
        self.counts[verdict] += 1
        if is_worse or (verdict != before and self._kept < MAX_KEPT):
            self._kept += 1
            folder = self._keep(folder)
            self.worst = folder if is_worse else self.worst
        else:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
        for sink in self._sinks:
            self._guarded("metrics", partial(sink, metrics))
        if verdict != before:
            self._guarded("--on-change", partial(self._on_change, before, metrics))

    def _keep(self, folder: Path) -> Path:
        target = self._capture / KEPT / folder.name
        with suppress(OSError):
            target.parent.mkdir(mode=0o700, exist_ok=True)
            return folder.rename(target)
        return folder

    def _guarded(self, what: str, call: Callable[[], object]) -> None:
        """Call what is not ours: its failure ends neither the script nor the watch."""
        try:
            call()
        except Exception as error:
            message = f"{what}: {type(error).__name__}: {error}"[:300]
            if message not in self.errors:
                self.errors.append(message)


def _not_judged(folder: Path, why: str) -> WindowMetrics:
    number = folder.name.rpartition("-")[2]
    return {
        "step": int(number) if number.isdecimal() else None,
        "verdict": "INCONCLUSIVE",
        "reason": f"the window could not be judged: {why}",
        "exit_code": 3,
        "findings": [],
    }


# --- who follows a run


class Watcher:
    """Follows a run on a thread, if its runner is the one that made the capture.

    Args:
        settings: of the run.
        policy: what a verdict asks for.
    """

    def __init__(self, settings: RunSettings, policy: Policy) -> None:
        self.settings = settings
        self.policy = policy
        self.over = threading.Event()  # the run has ended

    @contextmanager
    def following(
        self, capture: CaptureFolder, stop: Callable[[], None]
    ) -> Iterator[None]:
        """Follow the run while inside; `stop` asks it to end."""
        if capture.secondary_node is not None:
            yield
            return
        thread = threading.Thread(target=self.follow, args=(capture, stop), daemon=True)
        start_deaf(thread)
        try:
            yield
        finally:
            self.over.set()
            thread.join()

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:
        """Return once the run is over."""
        raise NotImplementedError


class WindowReports(Watcher):
    """Judges the capture when a window has closed on all ranks that record it.

    With `prints`, each verdict is a line on standard error. Where the report goes to a file the
    script's standard error stays its own. What is not judged when the run ends is left to the
    report on the run.
    """

    def __init__(self, settings: RunSettings, policy: Policy, *, prints: bool) -> None:
        super().__init__(settings, policy)
        self._prints = prints

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:  # noqa: ARG002
        """Judge until the last window is judged, or the run is over."""
        asked = self.settings
        judged = 0
        count = len(asked.windows + asked.global_windows) + (
            asked.timed_window is not None
        )
        judge = Judge(self.policy, self._say)
        while not self.over.wait(POLL_S):
            with suppress(
                Exception
            ):  # the script may remove or exchange anything there
                closed, is_last = progress(capture.path, asked.ranks, count)
                if closed > judged:
                    judge.submit(capture.path)
                    judged = closed
                elif is_last and judge.idle:
                    return  # the run may go on for days
        judge.stop()

    def _say(self, capture: Path, judged: WindowMetrics | str) -> None:
        if self._prints and not isinstance(judged, str) and not self.over.is_set():
            say(f"{judged['verdict']} so far: {judged['reason']}; {capture / REPORT}")


class RunWatch(Watcher):
    """Watches a run of `--every` for its whole life.

    Args:
        settings: of the run.
        policy: what a verdict asks for.
        sinks: get the metrics of each window.
        on_change: a shell command for when the verdict changes, or None.
        stop_on: verdicts upon which the script is asked to stop.

    Attributes:
        worst: the capture of the window with the worst verdict; None before the end, or without.
        stopped: whether the script was asked to stop.
        notes: what to say of the run as a whole.
    """

    def __init__(
        self,
        settings: RunSettings,
        policy: Policy,
        sinks: Sequence[Sink],
        on_change: str | None = None,
        stop_on: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(settings, policy)
        self.worst: Path | None = None
        self.stopped = False
        self.notes: tuple[str, ...] = ()
        self._sinks = sinks
        self._command = on_change
        self._stop_on = stop_on
        self._last_call = float("inf")

    def follow(self, capture: CaptureFolder, stop: Callable[[], None]) -> None:
        """Judge each window; at the end of the run, wait until all are judged."""
        live = capture.path / "live"
        history = History(
            capture.path, self._sinks, partial(self._changed, capture.path, stop)
        )
        self._errors = history.errors
        judge = Judge(self.policy, history.take)
        submitted: set[str] = set()
        is_over = False
        while not is_over:
            is_over = self.over.wait(POLL_S)
            with suppress(OSError):  # no window was recorded yet, or one is being moved
                for folder in sorted(live.iterdir()):
                    if folder.name not in submitted and (
                        is_over or is_closed(folder, self.settings.ranks)
                    ):
                        submitted.add(folder.name)
                        judge.submit(
                            folder, capture.log if capture.log.is_file() else None
                        )
        self._last_call = time.monotonic() + AT_THE_END_S
        judge.wait()
        self.worst = history.worst
        with suppress(OSError):
            live.rmdir()
        summary = self._summary(capture.path, history)
        self.notes = (summary, *self.notes, *history.errors)

    def _changed(
        self,
        capture: Path,
        stop: Callable[[], None],
        before: str | None,
        metrics: WindowMetrics,
    ) -> None:
        """Report a verdict that differs from the last one, and do what the user asked for."""
        verdict = metrics["verdict"]
        step = metrics["step"]
        was = "" if before is None else f", was {before}"
        say(f"{verdict} at step {step}{was}: {metrics['reason']}")
        if verdict in self._stop_on and not self.stopped and not self.over.is_set():
            self.stopped = True
            self.notes = (
                f"fp8verify stopped the script, since step {step} is {verdict}",
            )
            say(f"{self.notes[0]} (--stop-on)")
            stop()
        if self._command is not None and before is not None:
            variables = {
                "FP8VERIFY_OLD_VERDICT": before,
                "FP8VERIFY_NEW_VERDICT": str(verdict),
                "FP8VERIFY_AT": str(step),
                "FP8VERIFY_CAPTURE": str(capture),
            }
            failure = self._run_command(self._command, variables)
            if failure is not None and len(self._errors) < MAX_ERRORS:
                self._errors.append(
                    f"--on-change at step {step}: the command {failure}"
                )

    def _run_command(self, command: str, variables: dict[str, str]) -> str | None:
        """Run a shell command, for which the next window waits, and return how it failed."""
        if time.monotonic() > self._last_call:
            return "was not run: the run had ended"
        with hearing():
            process = subprocess.Popen(  # noqa: S602 - a command of the user's, for a shell
                command,
                shell=True,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr or subprocess.DEVNULL,  # None if it is closed
                env={**os.environ, **variables},
                start_new_session=True,  # what it started can be ended with it
            )
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return "was ended: it took too long"
        if code:
            return f"failed with exit code {code}"
        return None

    def _summary(self, capture: Path, history: History) -> str:
        counts = ", ".join(
            f"{count} {verdict}" for verdict, count in history.counts.items()
        )
        if counts:
            return f"of the run's windows {counts}"
        live = self.settings.live
        steps = max((meta.steps_seen for meta in _metas_of(capture)), default=0)
        if live is None or not steps:
            return "no window was recorded"
        return (
            f"no window was recorded: the run ended after step {steps}, and the first window was "
            f"to be steps {live.first}-{live.first + live.length - 1}"
        )
