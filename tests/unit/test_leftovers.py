"""What killed runs left: removed where nobody can need it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fp8verify.record import leftovers
from fp8verify.record.injection import make_boot_folder
from fp8verify.record.leftovers import hold, remove_abandoned, remove_leftovers
from fp8verify.record.node import node_name

NAME = ".boot-0123456789ab"


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    folder = tmp_path / "capture"
    folder.mkdir()
    return folder


def boot_in(capture: Path, name: str = NAME) -> Path:
    """Make the boot folder of a run of rank 0 that was killed."""
    boot = capture / name
    make_boot_folder(boot, {})
    (boot / "ranks").write_text("0\n")
    held = hold(str(boot))
    assert held is not None
    os.close(held)
    return boot


def test_a_dead_boot_folder_goes_with_the_drafts_of_its_ranks(capture: Path) -> None:
    boot_in(capture)
    kept = {"log.txt", "rank0.meta.json", ".rank1.meta.json", ".claim-x-1"}
    for name in (*kept, ".rank0.meta.json", ".rank0-7.json.gz.part"):
        (capture / name).touch()

    assert remove_leftovers(capture) == [NAME]
    assert {path.name for path in capture.iterdir()} == kept
    assert remove_leftovers(capture) == []


def test_temporary_folders_of_killed_commands_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = {
        name: tmp_path / name for name in ("a-dead", "a-new", "a-held", "b-dead")
    }
    for folder in folders.values():
        folder.mkdir()
    for name in ("a-dead", "b-dead"):
        boot_in(folders[name])
        (folders[name] / "model-1.json").touch()
    held = hold(str(boot_in(folders["a-held"])))
    (tmp_path / "a-link").symlink_to(folders["b-dead"])

    remove_abandoned("a-")

    assert held is not None
    os.close(held)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a-new", "a-held", "b-dead", "a-link"}
    assert (folders["b-dead"] / NAME).exists()


def test_what_a_process_holds_stays(capture: Path) -> None:
    boot = boot_in(capture)
    (capture / ".rank0.meta.json").touch()
    runner = hold(str(boot))
    keeper = hold(str(boot))
    assert runner is not None
    assert keeper is not None

    assert remove_leftovers(capture) == []
    os.close(runner)
    assert remove_leftovers(capture) == []
    assert (capture / ".rank0.meta.json").exists()
    os.close(keeper)
    assert remove_leftovers(capture) == [NAME]


def test_drafts_stay_while_another_run_may_write(capture: Path) -> None:
    boot_in(capture)
    living = hold(str(boot_in(capture, ".boot-ba9876543210")))
    (capture / ".rank0.meta.json").touch()

    assert remove_leftovers(capture) == [NAME]
    assert (capture / ".rank0.meta.json").exists()
    assert living is not None
    os.close(living)


def test_what_a_started_process_has_on_its_path_stays(capture: Path) -> None:
    boot = boot_in(capture)
    waits = [sys.executable, "-S", "-c", "input()"]
    with subprocess.Popen(
        waits, env={"PYTHONPATH": str(boot)}, stdin=subprocess.PIPE
    ) as script:
        assert remove_leftovers(capture) == []
        script.communicate(b"\n")

    assert remove_leftovers(capture) == [NAME]


def unmarked(boot: Path) -> None:
    """Make it one of `fp8verify env`."""
    (boot / f"runner.{node_name()}").unlink()


def of_another_node(boot: Path) -> None:
    (boot / f"runner.{node_name()}").rename(boot / "runner.elsewhere")


def of_two_nodes(boot: Path) -> None:
    (boot / "runner.elsewhere").touch()


def behind_a_link(boot: Path) -> None:
    boot.rename(boot.parent.parent / "target")
    boot.symlink_to(boot.parent.parent / "target")


def renamed(boot: Path) -> None:
    boot.rename(boot.with_name(".boot-of-mine"))


@pytest.mark.parametrize(
    "change", [unmarked, of_another_node, of_two_nodes, behind_a_link, renamed]
)
def test_what_is_not_known_to_be_a_dead_runs_stays(
    capture: Path, change: object
) -> None:
    boot = boot_in(capture)
    assert callable(change)
    change(boot)
    before = sorted(capture.parent.rglob("*"))

    assert remove_leftovers(capture) == []
    assert sorted(capture.parent.rglob("*")) == before


def test_another_users_stays(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot_in(capture)
    monkeypatch.setattr(leftovers.os, "getuid", lambda: capture.stat().st_uid + 1)

    assert remove_leftovers(capture) == []


def test_links_in_a_boot_folder_are_not_followed(capture: Path, tmp_path: Path) -> None:
    boot = boot_in(capture)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (boot / "link").symlink_to(tmp_path / "mine")

    assert remove_leftovers(capture) == [NAME]
    assert (tmp_path / "mine" / "file").exists()
