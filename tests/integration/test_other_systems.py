"""Reading works where Linux's own calls are missing; recording says that it needs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT
from tests.command_line import PATIENCE_S

# What macOS or Windows lack: modules, calls of `os`, and /proc.
PRELUDE = """
import builtins, importlib.abc, io, os, sys
MODULES = ("fcntl", "termios", "resource", "pty", "tty")
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
for name in MODULES:
    sys.modules.pop(name, None)
for name in ("fork", "forkpty", "memfd_create", "sched_getaffinity", "register_at_fork",
             "pidfd_open", "posix_fallocate", "splice", "preadv"):
    if hasattr(os, name):
        delattr(os, name)
def hidden(call):
    def checked(path, *args, **options):
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **options)
    return checked
for module, names in ((builtins, ["open"]), (io, ["open", "open_code"]),
                      (os, ["open", "stat", "lstat", "listdir", "scandir", "readlink"])):
    for name in names:
        setattr(module, name, hidden(getattr(module, name)))
sys.platform = "darwin"
from fp8verify.cli import main
main()
"""


def elsewhere(folder: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE, *map(str, args)]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


CONFIG = ROOT.parent / "examples" / "torchtitan" / "llama3_8b.toml"
KERNEL = "nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT"
READING = {
    "inspect": (("inspect", ROOT / "fp8_compiled"), 0, "ACTIVE"),
    "compare": (
        ("compare", ROOT / "bf16_compiled", ROOT / "fp8_compiled"),
        0,
        "fp8_compiled",
    ),
    "table": (("table", ROOT / "bf16_compiled", ROOT / "fp8_compiled"), 1, "INACTIVE"),
    "explain": (("explain", KERNEL), 0, "fp8"),
    "doctor": (("doctor", "--config", CONFIG), 0, "llama3_8b.toml"),
    "annotate": (
        ("annotate", ROOT / "fp8_experts" / "rank0.json.gz", "-o", "out"),
        0,
        "labeled",
    ),
}


@pytest.mark.parametrize("command", READING)
def test_reading_needs_nothing_of_linux(command: str, tmp_path: Path) -> None:
    args, code, shown = READING[command]
    done = elsewhere(tmp_path, *args)
    assert (done.returncode, done.stderr) == (code, "")
    assert shown in done.stdout


@pytest.mark.parametrize(
    "args", [("run", "--steps", "1-2", "train.py"), ("env", "--steps", "1-2")]
)
def test_recording_says_that_it_needs_linux(
    args: tuple[str, ...], tmp_path: Path
) -> None:
    done = elsewhere(tmp_path, args[0], "--trace-dir", "new", *args[1:])
    fact, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert "needs Linux" in fact
    assert hint.startswith("hint: ")
