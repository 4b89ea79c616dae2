"""Run a training command with the agent attached, and leave a capture behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fp8verify.capture.names import METAS
from fp8verify.errors import InputError
from fp8verify.files import open_private
from fp8verify.record.command import (
    python_for,
    resolve_command,
    script_name,
    with_switches,
)
from fp8verify.record.folder import (
    CaptureFolder,
    Job,
    check_name,
    holds_nothing,
    job_of,
    make_capture_folder,
    runner_lock,
    undone_unless_started,
    writing_to,
)
from fp8verify.record.injection import agent_config, boot_folder, child_environment
from fp8verify.record.keeper import (
    CLOSE,
    RUNS,
    Keeper,
    Launch,
    ScriptOnTerminal,
    start_keeper,
)
from fp8verify.record.leftovers import ranks_of, remove_drafts
from fp8verify.record.lines import say
from fp8verify.record.log import HEAD_BYTES, TAIL_BYTES
from fp8verify.record.output import Output, reserve_closed_streams
from fp8verify.record.settings import RunSettings
from fp8verify.record.signals import SignalForwarder, forwarded_signals
from fp8verify.record.terminal import STDERR, STDOUT

if TYPE_CHECKING:
    from fp8verify.record.live import Watcher


INNER = "inner"  # written by boot/sitecustomize.py
REPLAYS = (
    "replays"  # by the agent, where CUDA graphs were replayed and no step was counted
)
IMPORTED = "imported"  # by the agent: one line for each process that imported torch
STEP = "call fp8verify.step() after each step"
STREAMS = (
    "streams.jsonl"  # by the agent: where ranks print whose output does not come to us
)
MAX_LOGS = 1024
NAME = re.compile(r"rank[0-9]{1,9}\.(?:out|err)")


class RunResult(NamedTuple):
    """What a run left behind.

    Attributes:
        exit_code: the command's own; 128 + n when signal n killed it.
        notes: what kept the run from being observed, for the user.
        guess: why it was not, where nothing that is left says so.
        ranks: those that trained below this runner.
        last: whether no other runner of the job is left to record, so it can be judged.
        signal: the one that ended the command, if one did.
        is_empty: whether the capture has no more than what the command printed, and may go.
    """

    capture: Path
    exit_code: int
    notes: tuple[str, ...] = ()
    last: bool = True
    ranks: tuple[int, ...] = ()
    signal: int | None = None
    guess: str = ""
    is_empty: bool = False


def run_training(
    command: Sequence[str],
    settings: RunSettings,
    watch: Watcher | None = None,
    on_late_interrupt: Callable[[RunResult], object] | None = None,
) -> RunResult:
    """Run `command` to its end, observed as `settings` say, and return where the capture is.

    The command's input, output, signals and exit code are what they would be without us.

    Args:
        command: the words of it.
        settings: what to record.
        watch: follows the run while it lasts.
        on_late_interrupt: handles Ctrl-C once the command has ended, here and after the return;
            without one it raises KeyboardInterrupt, and the command's exit code is lost.

    Raises:
        UsageError: if `command` is empty or names no module.
        InputError: if the script, the program or the capture folder cannot be used.
    """
    reserve_closed_streams()
    python = python_for(command, settings.python)
    if python.whose is not None:
        say(
            f"runs it with {python.program} ({python.whose}), since the Python of "
            "fp8verify has no torch; --python chooses another"
        )
    arguments = resolve_command(command, python.program)
    check_name(settings.trace_dir or Path())
    if settings.job:
        job = Job(settings.job)
    else:
        job = job_of(arguments, os.environ)
    capture = make_capture_folder(settings.trace_dir, job, script=script_name(command))
    log = capture.log if settings.capture_log else None
    with (
        forwarded_signals() as signals,  # until everything that was recorded is in its place
        undone_unless_started(capture),
        runner_lock(capture.path, job.runners) as lock,
        boot_folder(capture.path, agent_config(settings, capture)) as boot,
    ):
        following: AbstractContextManager[None] = nullcontext()
        if watch is not None:
            following = watch.following(capture, signals.stop)
        with _ready(arguments, boot, log, signals) as run, following:
            code = run()
        exit_code = code if code >= 0 else 128 - code
        try:
            result = collect_result(boot, capture, exit_code, settings)
            result = result._replace(notes=(*result.notes, *capture.notes))
        except Exception as error:  # the run may have left anything there
            why = f"what the run left cannot be read: {type(error).__name__}: {error}"
            result = RunResult(capture.path, exit_code, notes=(why,))
        if on_late_interrupt is not None:
            signals.on_late_interrupt = lambda *_: on_late_interrupt(result)
    is_empty = False
    if result.capture == capture.path:
        with suppress(OSError):
            was_named = settings.trace_dir is not None
            is_empty = holds_nothing(capture, was_named=was_named)
    return result._replace(
        last=lock.last,
        signal=-code if code < 0 else None,
        is_empty=is_empty,
    )


@contextmanager
def _ready(
    arguments: list[str], boot: Path, log: Path | None, signals: SignalForwarder
) -> Iterator[Callable[[], int]]:
    """Prepare all that outlives us if we are killed, while there is one thread.

    Gives what runs the command and returns its exit code; the negative number of a signal that
    ended it.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if it is closed
            stream.flush()
    environment = child_environment(with_switches(os.environ), boot)
    with writing_to(boot.parent):
        output = Output(log)
    launch = None
    if output.terminal is not None:
        launch = Launch(
            arguments, environment, output.slave, output.given, signals.mask
        )
    keeper = start_keeper(output, str(boot), launch)
    if keeper is None:
        output.give_up_session()
        output.begin(lambda _: None)
    else:
        output.begin(partial(keeper.order, CLOSE))
    signals.on_resize = output.follow_size
    has_closed = False

    def close() -> None:
        nonlocal has_closed
        if not has_closed:
            has_closed = True
            is_left = output.close()
            if keeper is not None:
                keeper.end(stays=is_left)

    def run() -> int:
        try:
            script = _start(arguments, environment, output, keeper, signals)
            return script.wait()
        finally:
            close()

    try:
        yield run
    finally:
        close()


def _start(
    arguments: list[str],
    environment: dict[str, str],
    output: Output,
    keeper: Keeper | None,
    signals: SignalForwarder,
) -> subprocess.Popen[bytes] | ScriptOnTerminal:
    try:
        if output.terminal is not None and keeper is not None:
            script = ScriptOnTerminal(
                keeper, output.terminal, signals.tell_group, signals.ignoring
            )
            signals.watch(script, keeper, shares_group=False)
            return script
        child = _spawn(arguments, environment, output, signals)
    except OSError as error:
        raise InputError(
            f"Cannot run {arguments[0]}: {error.strerror}.",
            "Check that it is a program for this machine and may be executed.",
        ) from None
    if keeper is not None:
        keeper.order(RUNS, child.pid)
    signals.watch(child, keeper)
    return child


def _spawn(
    arguments: list[str],
    environment: dict[str, str],
    output: Output,
    signals: SignalForwarder,
) -> subprocess.Popen[bytes]:
    ours = signal.pthread_sigmask(signal.SIG_SETMASK, signals.mask)
    try:
        return subprocess.Popen(  # noqa: S603 - running the user's command is the job
            arguments,
            env=environment,
            stdout=output.given.get(STDOUT),
            stderr=output.given.get(STDERR),
            close_fds=False,  # the shell may have opened some for the script: <(zcat …)
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ours)


def collect_result(
    boot: Path, capture: CaptureFolder, exit_code: int, settings: RunSettings
) -> RunResult:
    """Return what a run that has ended left in its capture and in its boot folder."""
    # Not before the run, which waits for what we import.
    from fp8verify.capture.files import boot_errors, boot_lines

    collect_rank_logs(boot, capture)
    # Records that a full disk left empty.
    metas = [path for path in capture.path.glob(METAS) if path.is_file()]
    empty = [path for path in metas if not path.stat().st_size]
    for path in empty:
        path.unlink()
    unwritten = tuple(
        f"{path.name} could not be written: is the disk full?" for path in empty
    )
    errors = boot_errors(boot, capture.path if settings.debug else None)
    ranks = tuple(ranks_of(boot))
    remove_drafts(capture.path, ranks)
    inner = [
        folder for folder in boot_lines(boot / INNER) if any(Path(folder).glob(METAS))
    ]
    if not errors and len(metas) > len(empty):
        return RunResult(capture.path, exit_code, notes=unwritten, ranks=ranks)
    if inner:
        notes = (f"a run of fp8verify inside this one recorded the script: {inner[0]}",)
        return RunResult(capture=Path(inner[0]), exit_code=exit_code, notes=notes)
    known = errors or unwritten
    imported = bool(boot_lines(boot / IMPORTED))
    if known:
        guess = ""
    else:
        replays = bool(boot_lines(boot / REPLAYS))
        guess = _why_unobserved(exit_code, imported=imported, replays=replays)
    return RunResult(capture.path, exit_code, notes=known, guess=guess)


def _why_unobserved(exit_code: int, *, imported: bool, replays: bool) -> str:
    if exit_code:
        return f"the command ended with {exit_code} before its first training step"
    if not imported:
        return (
            "no observed Python process imported torch: either the command trains nothing, or "
            "its Python ran with -I, -E or -S, or a container or launcher dropped PYTHONPATH"
        )
    if replays:
        return (
            "the command ended without a training step: it replayed CUDA graphs, and no "
            "torch.optim optimizer stepped in one or outside; where a replay is a step, "
            f"{STEP} (import fp8verify)"
        )
    return (
        "the command ended without a training step: no torch.optim optimizer stepped; "
        f"where another one does, {STEP} (import fp8verify)"
    )


def collect_rank_logs(boot: Path, capture: CaptureFolder) -> None:
    """Copy the first and last 8 MB of each rank's own log into the capture as `log.rankR.out.txt`.

    Ranks have logs of their own by torchrun's --log-dir and --redirects, Slurm's --output, a
    shell's `>`. One that is gone, or that another process of the rank left already, is passed over.
    """
    from fp8verify.capture.files import boot_lines

    suffix = ""
    if capture.secondary_node:
        suffix = f".{capture.secondary_node}"
    for line in boot_lines(boot / STREAMS)[:MAX_LOGS]:
        with suppress(ValueError, KeyError, TypeError, OSError):
            stream = json.loads(line)
            name = stream["name"]
            source = Path(stream["path"])
            # What goes to our own stdout or stderr is in the log already.
            is_ours = any(
                os.path.samestat(source.stat(), os.fstat(given)) for given in (1, 2)
            )
            if NAME.fullmatch(name) and not is_ours:
                _copy_ends(source, capture.path / f"log.{name}{suffix}.txt")


def _copy_ends(source: Path, target: Path) -> None:
    with source.open("rb") as log, open_private(target, new=True) as copy:
        size = os.fstat(log.fileno()).st_size
        copy.write(log.read(HEAD_BYTES))
        left_out = size - HEAD_BYTES - TAIL_BYTES
        if left_out > 0:
            copy.write(b"\n[fp8verify: %d bytes left out here]\n" % left_out)
            log.seek(-TAIL_BYTES, os.SEEK_END)
        copy.write(log.read(TAIL_BYTES))
