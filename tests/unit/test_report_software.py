"""The versions that the agent recorded, in every form that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fp8verify import Report, __version__, inspect
from fp8verify.report import forms
from tests.hand_built import TraceBuilder, write_meta


def capture(folder: Path, *metas: dict[str, Any], traced: bool = True) -> Report:
    for rank, meta in enumerate(metas):
        if traced:
            trace = (
                TraceBuilder(rank=rank, world=len(metas))
                .step(3)
                .linear(64, 64, 64, fp8=True)
            )
            trace.write(folder / f"rank{rank}.json")
        write_meta(folder, rank=rank, **{"window": [], **meta})
    return inspect(folder)


def test_versions_are_in_the_forms_that_have_room(tmp_path: Path) -> None:
    report = capture(
        tmp_path, {"versions": {"torch": "2.11.0+cu130", "torchao": "0.17<b>"}}
    )

    shown = "torch 2.11.0+cu130, torchao 0.17"
    versions = {"torch": "2.11.0+cu130", "torchao": "0.17<b>"}
    assert json.loads(report.to_json())["environment"]["versions"] == versions
    assert f"{shown}<b>" in " ".join(forms.render(report, "text", verbose=True).split())
    assert shown not in forms.render(report, "text")
    assert f"{shown}&lt;b" in forms.render(report, "html")
    assert "0.17<b>" not in forms.render(report, "html")
    assert shown.split(",")[0] in forms.render(report, "markdown")


def test_ranks_that_differ_show_it(tmp_path: Path) -> None:
    versions = [{"torch": torch, "triton": "3.6"} for torch in ("2.11", "2.10")]
    report = capture(tmp_path, *({"versions": one} for one in versions))

    assert report.environment.versions == {"torch": "2.11 and 2.10", "triton": "3.6"}


def test_without_versions_nothing_is_said(tmp_path: Path) -> None:
    # As 0.1.0 wrote it.
    old = {
        "python": "3.12.3",
        "torch": "2.11",
        "cuda": None,
        "compute_capability": "9.0",
    }
    report = capture(tmp_path, {"pid": 7, "environment": old})

    assert "versions" not in json.loads(report.to_json())["environment"]
    said = forms.render(report, "text", verbose=True)
    assert f"software fp8verify {__version__}\n" in said


def test_a_run_without_a_trace_still_names_its_gpu(tmp_path: Path) -> None:
    gpu = {"gpu": "NVIDIA H200", "compute_capability": "9.0"}
    report = capture(tmp_path, {"environment": gpu}, traced=False)

    assert (report.environment.gpu, report.environment.compute_capability) == tuple(
        gpu.values()
    )


def test_debug_logs_are_no_part_of_the_evidence(tmp_path: Path) -> None:
    (tmp_path / "debug.node1-7.log").write_text("float8 training active\n")
    report = capture(tmp_path, {})

    assert report.notes == ()
    assert report.claims == ()
