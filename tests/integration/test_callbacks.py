"""The callbacks of training frameworks, in the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fp8verify
from fp8verify.capture.files import read_meta
from tests.attached import SCRIPTS, execute, importable, python

pytestmark = pytest.mark.train


@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_windows_are_recorded_for_later_and_a_watch_goes_to_the_framework_s_own_logs(
    tmp_path: Path, framework: str
) -> None:
    importable(framework)
    windows = {"steps": "3-4", "trace_dir": "cap"}
    watch = {"every": 5, "metrics": "fp8.jsonl"}
    # One after the other in one process, since the frameworks take seconds to import.
    command = [SCRIPTS / "trainers.py", framework, "--steps", 12, "--callbacks"]
    options = [json.dumps(windows), json.dumps(watch)]
    done = execute(python(), *command, *options, cwd=tmp_path)

    assert done.code == 0, done.stderr
    of_windows, of_watch = map(json.loads, re.findall("LOGGED (.*)", done.stdout))
    assert of_windows == []
    assert [row["fp8/step"] for row in of_watch] == [6, 11]
    lines = [
        json.loads(line) for line in (tmp_path / "fp8.jsonl").read_text().splitlines()
    ]
    assert [line["global_step"] for line in lines] == [6, 11]
    meta = read_meta(tmp_path / "cap" / "rank0.meta.json")
    (window,) = meta.windows
    assert (window.state, window.first, window.last) == ("complete", 3, 4)
    assert window.framework is not None
    assert (window.framework.name, window.framework.last) == (framework, 4)
    assert fp8verify.inspect(tmp_path / "cap").ranks[0].clock is not None
