"""What a training waits for before it starts, and what comes while it does."""

from __future__ import annotations

import ast
import errno
import importlib
import marshal
import os
import select
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from fp8verify.record import RunSettings, aftermath, injection, output, run_training
from fp8verify.record.agent_archive import ROOM, reserve, write_agent, write_compiled_agent
from fp8verify.record.byte_code import byte_code
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.injection import boot_folder, write_config

ROOT = Path(__file__).parents[2]
OURS = [sys.executable, "-m", "fp8verify", "run", "--steps", "3-4"]
# Runs `fp8verify run` up to the training, and says of that moment what there is. Before it only the
# process that reads its output may be started.
AT_THE_START = """
import os, sys
before = set(sys.modules)
import _posixsubprocess
carriers = []
def start(*words, **_):
    if not carriers and any("fp8verify.record.carrier" in word for word in words[1]):
        carriers.append(words)
        return os.getpid()
    command = [os.fsdecode(word) for word in words[0 if isinstance(words[0], (list, tuple)) else 1]]
    modules = sorted(set(sys.modules) - before)
    files = sorted(
        os.path.relpath(os.path.join(folder, name), "capture")
        for folder, _, names in os.walk("capture") for name in names
    )
    print(repr((command, modules, files)), flush=True)
    os._exit(0)
os.posix_spawn = _posixsubprocess.fork_exec = start
from fp8verify.cli import main
sys.argv = ["fp8verify", *sys.argv[1:]]
main()
"""
# Modules of the standard library whose import takes a millisecond or more and can wait.
LATE = {
    "ast", "asyncio", "csv", "dataclasses", "difflib", "dis", "email", "hashlib", "json", "logging",
    "py_compile", "random", "shlex", "shutil", "socket", "statistics", "tempfile", "tokenize",
    "tomllib", "traceback", "zipfile",
}  # fmt: skip
# Rooms that judge and report; of those the command line takes names of options.
LATE_ROOMS = {
    "analysis", "annotate", "compare", "doctor", "integrations", "kernels", "logs", "prove",
    "terms", "trace",
}  # fmt: skip
OPTIONS_OF = {"fp8verify.verdict.policy", "fp8verify.verdict.shares", "fp8verify.report.forms"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def at_the_start() -> tuple[list[str], list[str], list[str]]:
    """The first command that a run starts but for its own, what it has imported and its files."""
    Path("train.py").write_text("print('ran')\n")
    Path("pyproject.toml").write_text('[project]\ndependencies = ["fp8verify", "torch"]\n')
    words = ["run", "--steps", "10-12", "--trace-dir", "capture", "train.py", "--lr", "1"]
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_START, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    command, modules, files = ast.literal_eval(done.stdout)
    return command, modules, files


def test_nothing_but_the_reader_of_its_output_is_started_before_the_training(
    at_the_start: tuple[list[str], list[str], list[str]],
) -> None:
    command, _, _ = at_the_start
    assert command[1:] == ["train.py", "--lr", "1"]


def test_nothing_that_can_wait_is_imported_before_the_training(
    at_the_start: tuple[list[str], list[str], list[str]],
) -> None:
    _, modules, _ = at_the_start
    ours = {name for name in modules if name.startswith("fp8verify.")}
    rooms = {name for name in ours if name.split(".")[1] in LATE_ROOMS}
    others = {name for name in ours if name.split(".")[1] in {"verdict", "report"}}

    assert set(modules) & LATE == set()
    assert not {name for name in modules if name.partition(".")[0] in {"rich", "msgspec", "isal"}}
    assert rooms == set()
    assert others - OPTIONS_OF == {"fp8verify.verdict", "fp8verify.report"}
    assert len(ours) < 60


def test_few_files_are_made_before_the_training(
    at_the_start: tuple[list[str], list[str], list[str]],
) -> None:
    _, _, files = at_the_start
    kinds = [name.split("/", 1)[-1] for name in files]
    cached = [name for name in kinds if name.startswith("__pycache__/")]

    assert sorted(set(kinds) - set(cached)) == [
        "_fp8verify_boot.py",
        "agent.zip.draft",
        "log.txt",
        "sitecustomize.py",
    ]
    assert len(cached) == 2


# --- the archive


@pytest.fixture
def _no_agent_stays() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "_fp8verify_agent"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_no_agent_stays")
@pytest.mark.parametrize("compiles", [False, True])
def test_the_agent_is_imported_from_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: bool
) -> None:
    archive = tmp_path / "agent.zip"
    complete = write_agent(str(archive), compiles=compiles)

    monkeypatch.syspath_prepend(archive)
    plan = importlib.import_module("_fp8verify_agent.profiling.plan")
    debug = importlib.import_module("_fp8verify_agent.record.debug")

    assert complete or not compiles
    with pytest.raises(ValueError, match="too many values") as caught:
        plan.Plan([(1, 2, 3)])
    place = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert place.filename == f"{archive}/_fp8verify_agent/profiling/plan.py"
    assert place.line  # the source is there, for tracebacks
    assert "(profiling/plan.py:" in debug.describe(caught.value)


def test_a_compiled_agent_fits_into_the_room_that_was_taken(tmp_path: Path) -> None:
    archive = tmp_path / "agent.zip"
    reserve(str(archive))
    assert (tmp_path / "agent.zip.draft").stat().st_size == ROOM

    assert write_agent(str(archive), compiles=True)

    assert [path.name for path in tmp_path.iterdir()] == ["agent.zip"]
    assert archive.stat().st_size < ROOM


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_the_archive_serves_other_pythons(tmp_path: Path, version: str) -> None:
    python = next(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), None)
    if python is None:
        pytest.skip(f"needs Python {version}")
    write_agent(str(tmp_path / "agent.zip"), compiles=True)
    Path("torch.py").write_text("")
    code = (
        "import sys, _fp8verify_boot as b; b._load_agent('agent.zip').arm; p = list(sys.path);"
        "import _fp8verify_agent.profiling.plan as m; print(m.__file__, 'agent.zip' in p)"
    )
    environment = {"PYTHONPATH": str(ROOT / "fp8verify" / "agent" / "boot")}
    command = [python, "-S", "-B", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "agent.zip/_fp8verify_agent/profiling/plan.py False\n"


def test_a_capture_that_was_moved_gets_no_compiled_agent(tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    write_agent(str(tmp_path / "capture" / "agent.zip"))
    (tmp_path / "capture").rename(tmp_path / "moved")

    write_compiled_agent(str(tmp_path / "capture" / "agent.zip"))

    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_byte_code_is_taken_where_python_keeps_it_and_else_compiled(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("def f():\n    return 1\n")
    assert byte_code(str(source), compiles=False) is None

    compiled = byte_code(str(source), "called.py")

    assert compiled is not None
    code: CodeType = marshal.loads(compiled[16:])
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    assert {code.co_filename, *(c.co_filename for c in inner)} == {"called.py"}
    kept = byte_code(str(source), "called.py", compiles=False)
    assert kept == (None if sys.dont_write_bytecode else compiled)


# --- a run that starts, and what may fail while it does


def test_without_room_for_the_agent_nothing_is_started(tmp_path: Path) -> None:
    Path("train.py").write_text("open('ran', 'w')\n")
    limited = f"ulimit -f 256; exec {' '.join(OURS)} --trace-dir capture train.py"
    done = subprocess.run(
        ["bash", "-c", limited],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    fact, hint = done.stderr.splitlines()
    assert fact == f"error: Cannot write to the capture folder {tmp_path}/capture: File too large."
    assert hint.startswith("hint: Make room there")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


TORCH = "import sys; print('torch', flush=True)\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (MemoryError("no memory"), "no memory"),
    ],
)
def test_an_agent_that_cannot_be_written_is_told_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    told: str,
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(injection, "write_agent", fail)
    Path("torch.py").write_text(TORCH)
    Path("train.py").write_text("import torch\nprint('trained')\nraise SystemExit(3)\n")

    result = run_training(["train.py"], RunSettings(trace_dir=Path("capture")))

    assert result.exit_code == 3
    assert result.notes == (f"the agent could not be written: {told}",)
    assert capfd.readouterr().out == "torch\ntrained\n"
    assert [path.name for path in Path("capture").iterdir()] == ["log.txt"]


def test_without_a_thread_to_compile_it_the_agent_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(
        injection, "write_agent", lambda archive: bool(Path(archive).write_bytes(b""))
    )
    monkeypatch.setattr(injection.Timer, "start", none_left)
    agent = injection.Agent(tmp_path, CaptureFolder(tmp_path))

    agent.write()
    agent.finish()

    assert agent.archive.exists()


def test_what_a_run_leaves_does_not_change_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not what was expected")

    monkeypatch.setattr(aftermath, "look_back", fail)
    Path("train.py").write_text("raise SystemExit(3)\n")

    result = run_training(["train.py"], RunSettings(trace_dir=Path("capture")))

    told = "what the run left cannot be read: ValueError: not what was expected"
    assert (result.exit_code, result.notes) == (3, (told,))
    assert capfd.readouterr().err == ""


def started(boot: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{boot}:."},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_training_that_is_faster_waits_for_the_agent(tmp_path: Path) -> None:
    Path("torch.py").write_text(TORCH)
    (tmp_path / "_fp8verify_agent").mkdir()
    armed = "def arm(config, after_import):\n    print('armed', config['version'], flush=True)\n"
    (tmp_path / "_fp8verify_agent" / "__init__.py").write_text(armed)
    with boot_folder(tmp_path) as boot:
        training = started(boot, "import torch\nprint('trains')")
        assert training.stdout is not None
        first = training.stdout.readline()
        while not (boot / "imported").exists():
            time.sleep(0.01)
        time.sleep(0.2)  # without patience, it would have failed by now
        write_config(boot, {"agent": str(tmp_path), "version": 7})
        rest, _ = training.communicate(timeout=60)

    assert (first, rest) == ("torch\n", "armed 7\ntrains\n")
    assert training.returncode == 0


def test_a_training_without_its_runner_does_not_wait(tmp_path: Path) -> None:
    Path("torch.py").write_text(TORCH)
    with boot_folder(tmp_path) as boot:
        patient = (boot / "_fp8verify_boot.py").read_text().replace("PATIENCE_S, ", "_, ")
        (boot / "_fp8verify_boot.py").write_text(patient + "\nPATIENCE_S = 1e9\n")
        shutil.rmtree(boot / "__pycache__")
        training = started(boot, "import torch\nprint('trains')")
        assert training.stdout is not None
        assert training.stdout.readline() == "torch\n"
        shutil.rmtree(boot, ignore_errors=True)  # as the carrier does, if the runner was killed
        rest, _ = training.communicate(timeout=60)

    assert rest == "trains\n"


# Waits for what the runner writes, without the end that patience has.
WAITS = "import _fp8verify_boot as b\nb.PATIENCE_S = 1e9\nimport torch\nprint('trains')\n"


def test_the_carrier_ends_the_wait_for_a_runner_that_was_killed() -> None:
    Path("torch.py").write_text("")
    Path("train.py").write_text(WAITS)
    killed = (
        "import os, signal, sys\nfrom fp8verify.cli import main\n"
        "from fp8verify.record import injection\n"
        "injection.Agent.write = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv[0] = 'fp8verify'\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", killed, "run", "--steps", "3-4", "train.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,  # until the training ends, or the test
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, "trains\n", "")


# Prints more than a pipe holds.
PRINTS = "import sys\nfor _ in range(300):\n    print('x' * 999)\nprint('end', file=sys.stderr)\n"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_runner_that_is_killed_at_the_start_leaves_a_reader(moment: str) -> None:
    Path("train.py").write_text(PRINTS)
    killed = (
        "import os, signal, sys\nfrom fp8verify.cli import main\n"
        "from fp8verify.record import parent\nbefore = parent._popen\n"
        "def start(*given):\n"
        f"    {'before(*given)' if moment == 'after' else 'pass'}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "parent._popen = start\nsys.argv[0] = 'fp8verify'\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", killed, "run", "--steps", "3-4", "--trace-dir", "c", "train.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,  # until the training and the reader of its output end
        text=True,
        timeout=60,
        check=False,
    )
    printed = ("x" * 999 + "\n") * 300 if moment == "after" else ""
    told = "end\n" if moment == "after" else ""
    assert (done.returncode, done.stdout, done.stderr) == (-9, printed, told)
    assert Path("c/log.txt").stat().st_size == len(printed + told)
    assert not list(Path("c").glob(".boot-*"))


# Says what it was given of what its runner holds, and of what the shell opened for both.
HELD = "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])\n"


def test_the_training_gets_no_descriptor_of_the_reader() -> None:
    Path("train.py").write_text(HELD)
    given = os.open("train.py", os.O_RDONLY)
    os.set_inheritable(given, True)
    plain = [sys.executable, "train.py"]
    command = [*OURS, "--exit-zero", "-o", "report.txt", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    bare, ours = (
        subprocess.check_output(words, text=True, pass_fds=[given], env=environment)
        for words in (plain, command)
    )
    os.close(given)
    assert ours == bare


def test_the_reader_keeps_no_descriptor_that_the_shell_opened() -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    # The training has closed it, and the runner is gone.
    Path("train.py").write_text(
        f"import os, signal\nos.close({write_end})\nos.kill(os.getppid(), signal.SIGKILL)\n"
        "import sys\nprint('closed', flush=True)\nsys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [*OURS, "--exit-zero", "-o", "report.txt", "train.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        pass_fds=[write_end], env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run:  # fmt: skip
        os.close(write_end)
        ended, _, _ = select.select([read_end], [], [], 30)  # once nobody holds the other end
        printed, _ = run.communicate(b"go\n", timeout=60)
    assert ended
    assert os.read(read_end, 1) == b""
    assert printed == b"closed\n"
    os.close(read_end)


def test_only_the_first_process_waits_in_vain(tmp_path: Path) -> None:
    Path("torch.py").write_text("")
    with boot_folder(tmp_path) as boot:
        impatient = started(boot, WAITS.replace("1e9", "0"))
        assert impatient.communicate(timeout=60) == ("trains\n", None)
        assert started(boot, WAITS).communicate(timeout=60) == ("trains\n", None)
        told = (boot / "errors.txt").read_text()
    assert "TimeoutError: the runner did not say what to observe" in told


def test_a_finder_of_the_script_is_asked_once() -> None:
    Path("torch.py").write_text("")
    Path("train.py").write_text("""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        print("asked for", name, flush=True)
sys.meta_path.insert(0, Finder())
import torch
""")
    shown = subprocess.check_output(
        [*OURS, "--exit-zero", "-o", "report", "train.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert shown.count("asked for torch\n") == 1


def test_where_no_process_can_be_started_a_thread_carries_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(output, "_start", none_left)
    Path("train.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")

    result = run_training(["train.py"], RunSettings(trace_dir=Path("capture")))

    shown = capfd.readouterr()
    assert (result.exit_code, shown.out, shown.err) == (0, "out\n", "err\n")
    assert sorted((tmp_path / "capture" / "log.txt").read_text().split()) == ["err", "out"]


def test_the_boot_folder_serves_pythons_of_another_version(tmp_path: Path) -> None:
    python = next(Path.home().glob(".pyenv/versions/3.12.*/bin/python"), None)
    if python is None or sys.version_info[:2] == (3, 12):
        pytest.skip("needs Python 3.12")
    Path("torch.py").write_text("")
    with boot_folder(tmp_path) as boot:
        (boot / "config.json").write_text("{}")
        environment = {"PYTHONPATH": f"{boot}:."}
        code = "import torch, sys; print([m for m in sys.modules if 'fp8verify' in m])"
        done = subprocess.check_output([python, "-c", code], env=environment, text=True)
        assert "_fp8verify_boot" in done


# --- modules that wait


def test_a_deferred_module_is_whole_when_it_is_used() -> None:
    code = """
import sys
from fp8verify.cli.deferred import DEFERRED, defer_imports
defer_imports()
import inspect, ipaddress
print([name in sys.modules for name in ("ast", "dis")])
print(inspect.cleandoc(" a"), ipaddress.ip_address("::1"), inspect.Parameter.empty.__name__)
from inspect import signature
import inspect as again
print(signature(again.cleandoc), again is sys.modules["inspect"], hasattr(again, "nothing"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[False, False]", "a ::1 _empty", "(doc) True False"]
