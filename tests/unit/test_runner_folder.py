"""Where captures go, which runners may share one, and which logs it ends up with."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from fp8verify.capture.files import find_logs
from fp8verify.errors import InputError
from fp8verify.record.command import script_name
from fp8verify.record.folder import (
    CaptureFolder,
    Job,
    job_of,
    make_capture_folder,
    node_name,
    runner_lock,
)
from fp8verify.record.log import HEAD_BYTES, TAIL_BYTES
from fp8verify.record.runner import STREAMS, collect_rank_logs


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("", ""), ("src/train.py --lr 1", "train-"), ("-m package.train x.py.txt", "train-"),
        ("torchrun --nproc 2 a/pre train.py --config x", "train-"),
        ("torchrun --nproc 2 -m pkg.finetune", "finetune-"), ("-- ./job.sh x", "job.sh-"),
        ("..py", ""), ("a/" + "l$" * 60 + ".py", "l-" * 20 + "-"),
    ],
)  # fmt: skip
def test_a_capture_folder_is_private_and_named_by_script_and_time(
    command: str, name: str
) -> None:
    folder = make_capture_folder(None, script=script_name(command.split())).path

    assert folder.parent == Path.cwd()
    assert folder.name.startswith(f"fp8verify-capture-{name}2")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("job", [None, "rdzv-7"])
@pytest.mark.parametrize("claim", [None, b"", b"[]", b"[" * 70_000, b'{"job": "a"}'])
def test_a_capture_is_never_overwritten(job: str | None, claim: bytes | None) -> None:
    """A claim that cannot be read is of no job."""
    Path("old").mkdir()
    name = "rank0.meta.json" if claim is None else "capture.meta.json"
    Path("old", name).write_bytes(claim or b"")

    with pytest.raises(InputError, match="not empty"):
        make_capture_folder(Path("old"), Job(job))


@pytest.mark.parametrize("job", [None, "slurm-7.0"])
@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [(54321, 0o755, "another user"), (0, 0o777, "all users"), (0, 0o1777, "all users")],
)
def test_a_folder_that_others_made_or_may_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, job: str | None, owner: int, mode: int, why: str
) -> None:
    Path("theirs").mkdir()
    if owner and os.getuid():
        pytest.skip("only root can give a folder away")
    Path("theirs").chmod(mode)
    os.chown("theirs", owner or os.getuid(), -1)

    with pytest.raises(InputError, match=why):
        make_capture_folder(Path("theirs"), Job(job))
    assert not list(Path("theirs").iterdir())

    monkeypatch.setenv("FP8VERIFY_TRUST", f"/elsewhere:{Path.cwd()}")
    assert (
        make_capture_folder(Path("theirs"), Job(job)).path == Path("theirs").absolute()
    )


def test_a_folder_whose_parent_a_group_may_write_gets_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = SimpleNamespace(gr_mem=["somebody"])
    monkeypatch.setattr("grp.getgrgid", lambda _: other)
    assert make_capture_folder(Path("private")).notes == ()
    Path.cwd().chmod(0o775)
    assert str(Path.cwd()) in make_capture_folder(Path("shared")).notes[0]
    Path.cwd().chmod(0o1775)  # sticky: only the owner renames what is in it
    assert make_capture_folder(Path("sticky")).notes == ()
    if not os.getuid():
        Path("theirs").mkdir()
        os.chown("theirs", 54321, -1)  # whoever owns a folder may rename what is in it
        assert make_capture_folder(Path("theirs", "capture")).notes != ()


def test_a_folder_that_cannot_be_made_is_told() -> None:
    Path("file").touch()

    with pytest.raises(InputError, match="Cannot write to"):
        make_capture_folder(Path("file", "capture"))


def test_nodes_of_one_job_share_a_folder_and_no_file() -> None:
    owner = make_capture_folder(Path("shared"), Job("slurm-7.0"))
    guest = make_capture_folder(Path("shared"), Job("slurm-7.0"))

    assert (owner.secondary_node, guest.secondary_node) == (None, node_name())
    assert owner.log.name == "log.txt"
    assert guest.log.name == f"log.{node_name()}-{os.getpid()}.txt"
    assert guest.started == owner.started is not None


def test_a_job_is_joined_until_its_last_node_has_ended() -> None:
    with runner_lock(make_capture_folder(Path("shared"), Job("night")).path):
        with runner_lock(make_capture_folder(Path("shared"), Job("night")).path):
            make_capture_folder(Path("shared"), Job("night"))
        assert (
            make_capture_folder(Path("shared"), Job("night")).secondary_node
            == node_name()
        )
    before = sorted(Path("shared").iterdir())

    with pytest.raises(InputError, match="an earlier run of the job night"):
        make_capture_folder(Path("shared"), Job("night"))
    assert sorted(Path("shared").iterdir()) == before


@pytest.mark.parametrize("other", ["", "-2"], ids=["this node", "another one"])
def test_only_a_runner_that_was_killed_on_this_node_ends_its_job(other: str) -> None:
    make_capture_folder(Path("shared"), Job("night"))
    Path("shared", f".present.{node_name()}{other}.abc").touch()  # no process holds it

    if other:
        assert (
            make_capture_folder(Path("shared"), Job("night")).secondary_node
            == node_name()
        )
    else:
        with pytest.raises(InputError, match="earlier run"):
            make_capture_folder(Path("shared"), Job("night"))


def test_a_capture_for_one_run_keeps_no_list_of_runners_and_one_that_vanishes_can_be_left() -> (
    None
):
    with runner_lock(make_capture_folder(Path("mine")).path):
        assert not list(Path("mine").iterdir())
    with runner_lock(make_capture_folder(Path("shared"), Job("night")).path):
        shutil.rmtree("shared")


def test_a_file_system_without_hard_links_can_be_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert make_capture_folder(Path("shared"), Job("slurm-7.0")).secondary_node is None
    assert (
        make_capture_folder(Path("shared"), Job("slurm-7.0")).secondary_node
        == node_name()
    )


@pytest.mark.parametrize("job", [None, "slurm-8.0"])
def test_another_job_does_not_join(job: str | None) -> None:
    make_capture_folder(Path("shared"), Job("slurm-7.0"))

    with pytest.raises(InputError, match=r"job slurm-7\.0") as caught:
        make_capture_folder(Path("shared"), Job(job))
    assert "--job" in caught.value.hint


STEP = "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2"
PET = "PET_RDZV_ENDPOINT=etcd:2379"


@pytest.mark.parametrize(
    ("environment", "command", "job"),
    [
        ("", "", Job()),
        ("", "torchrun --rdzv-id=77 train.py", Job("rdzv-77")),
        ("", "torchrun --rdzv_id 77 train.py", Job("rdzv-77")),
        ("", "torchrun --rdzv-id", Job()),
        ("SLURM_JOB_ID=5", "python train.py", Job()),
        (STEP, "python train.py", Job("slurm-5.0", 2, once=True)),
        (
            f"{STEP} SLURM_RESTART_COUNT=1",
            "python x.py",
            Job("slurm-5.0-1", 2, once=True),
        ),
        (
            "PMIX_NAMESPACE=a-7@1 OMPI_COMM_WORLD_SIZE=8",
            "x",
            Job("mpi-a-7@1", 8, once=True),
        ),
        (
            "",
            "torchrun --master-addr=gpu1 --master_port 29500 x.py",
            Job("at-gpu1:29500"),
        ),
        ("", "torchrun --rdzv-endpoint gpu1:29500 train.py", Job("at-gpu1:29500")),
        ("MASTER_ADDR=gpu1 MASTER_PORT=1", "python train.py", Job("at-gpu1:1")),
        ("MASTER_ADDR=localhost MASTER_PORT=1", "python train.py", Job()),
        ("", "torchrun --rdzv-endpoint 127.0.0.1:0 train.py", Job()),
        ("", "torchrun --master-addr gpu1 train.py", Job("at-gpu1:29500")),
        (
            "PET_MASTER_ADDR=a-0.a PET_MASTER_PORT=29400",
            "torchrun x.py",
            Job("at-a-0.a:29400"),
        ),
        (f"{PET} PET_RDZV_ID=j1", "torchrun train.py", Job("rdzv-j1")),
        (f"{PET} PET_RDZV_ID=none", "torchrun train.py", Job("at-etcd:2379")),
    ],
)
def test_runners_that_belong_together_are_known_by_their_launcher(
    environment: str, command: str, job: Job
) -> None:
    variables = dict(pair.split("=") for pair in environment.split())
    assert job_of(command.split(), variables) == job


def test_the_tasks_of_a_step_share_the_folder_that_nobody_named() -> None:
    first, second = (
        make_capture_folder(None, Job("slurm-5.0", once=True)) for _ in range(2)
    )

    assert first.path == second.path == Path("fp8verify-capture-slurm-5.0").absolute()
    assert (first.secondary_node, second.secondary_node) == (None, node_name())


def test_of_the_tasks_of_a_step_the_last_one_reports() -> None:
    tasks = [make_capture_folder(None, Job("slurm-5.0", once=True)) for _ in range(3)]
    last = []
    for task in tasks:  # one after the other: none waits for those that have not begun
        with runner_lock(task.path, runners=3) as attending:
            pass
        last.append(attending.last)

    assert last == [False, False, True]


def test_of_nodes_whose_number_is_unknown_the_last_one_there_reports() -> None:
    nodes = [make_capture_folder(Path("shared"), Job("night-7")) for _ in range(2)]
    with runner_lock(nodes[0].path) as first:
        with runner_lock(nodes[1].path) as second:
            pass
        assert not second.last

    assert first.last


def leave_streams(boot: Path, *streams: object) -> None:
    lines = [s if isinstance(s, str) else json.dumps(s) for s in streams]
    (boot / STREAMS).write_text("\n".join(lines))


def test_logs_of_ranks_are_kept_beside_the_runs_own(tmp_path: Path) -> None:
    capture, boot = tmp_path / "capture", tmp_path / "boot"
    capture.mkdir()
    boot.mkdir()
    (capture / "log.txt").write_text("launcher")
    (tmp_path / "stdout.log").write_text("step 1")
    stream = {"name": "rank3.out", "path": str(tmp_path / "stdout.log")}
    gone = {"name": "rank4.err", "path": str(tmp_path / "gone")}
    leave_streams(boot, gone, "{", [], {"name": "../x", "path": "y"}, stream, stream)

    collect_rank_logs(boot, CaptureFolder(capture))

    assert [path.name for path in find_logs(capture)] == [
        "log.txt",
        "log.rank3.out.txt",
    ]
    assert (capture / "log.rank3.out.txt").read_text() == "step 1"


def test_a_long_log_keeps_its_ends(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"a" * HEAD_BYTES + b"lost" + b"z" * TAIL_BYTES)
    leave_streams(tmp_path, {"name": "rank0.out", "path": str(tmp_path / "long")})

    collect_rank_logs(tmp_path, CaptureFolder(tmp_path, "node1"))

    kept = (tmp_path / "log.rank0.out.node1.txt").read_bytes()
    assert kept.startswith(b"aaa")
    assert kept.endswith(b"zzz")
    assert b"4 bytes left out" in kept
    assert b"lost" not in kept


def test_the_run_s_own_output_is_no_log_of_a_rank(tmp_path: Path) -> None:
    capture, boot = tmp_path / "capture", tmp_path / "boot"
    capture.mkdir()
    boot.mkdir()
    own = os.dup(1)
    with (tmp_path / "out").open("w") as out:
        os.dup2(out.fileno(), 1)
        try:
            leave_streams(boot, {"name": "rank0.out", "path": str(tmp_path / "out")})
            collect_rank_logs(boot, CaptureFolder(capture))
        finally:
            os.dup2(own, 1)
            os.close(own)
    assert not list(capture.iterdir())
