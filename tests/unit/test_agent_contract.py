"""What the agent writes is what the structs of `fp8verify.capture` read, field for field."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from fp8verify.capture.files import find_metas, read_meta
from fp8verify.capture.schema import SCHEMA, RankMeta
from fp8verify.record.folder import CaptureFolder
from fp8verify.record.injection import agent_config, make_boot_folder
from fp8verify.record.settings import (
    LiveWindows,
    RankSelection,
    RunSettings,
    TimedWindow,
)

torch = pytest.importorskip("torch", reason="needs torch, from the train extra")
pytestmark = pytest.mark.train


class Engine:
    global_steps = 0

    def forward(self) -> None:
        pass


class Experts(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.ones(2, 16, 16))


def config(folder: Path) -> dict[str, Any]:
    """Return what the runner tells the agent, as the agent reads it."""
    boot = folder / "boot"
    settings = RunSettings(
        windows=((1, 2), (4, 4)),
        timed_window=TimedWindow(seconds=3600),
        ranks=RankSelection(every=1),
        layers=True,
        debug=True,
    )
    make_boot_folder(boot, agent_config(settings, CaptureFolder(folder)))
    read: dict[str, Any] = json.loads((boot / "config.json").read_text())
    return read


@pytest.mark.parametrize(
    "more",
    [
        {"timed_window": TimedWindow(seconds=3600), "numerics_every": 4},
        {"live": LiveWindows(every=10, length=2, first=10)},
    ],
)
def test_the_agent_knows_all_of_its_configuration(
    more: dict[str, Any], tmp_path: Path
) -> None:
    """`Config` of the agent is what the runner writes, key for key and type for type."""
    from fp8verify.agent.config import Config

    config = agent_config(RunSettings(**more), CaptureFolder(tmp_path, "node2"))
    make_boot_folder(tmp_path / "boot", config)
    written = json.loads((tmp_path / "boot" / "config.json").read_text())

    read = msgspec.convert(written, type=Config, strict=True)
    assert msgspec.to_builtins(read) == written
    assert read.keys() == written.keys() == Config.__annotations__.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three windows of a rank: one complete, two never reached."""
    from fp8verify.agent.clock import Clock
    from fp8verify.agent.debug import debug
    from fp8verify.agent.framework_counters import counters
    from fp8verify.agent.windows.manager import WindowManager
    from fp8verify.agent.windows.profiler import ProfilerArbiter

    folder = tmp_path_factory.mktemp("capture")
    with pytest.MonkeyPatch.context() as patch:
        deepspeed = ModuleType("deepspeed.runtime.engine")
        deepspeed.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "deepspeed.runtime.engine", deepspeed)
        # Whatever other tests compiled here.
        patch.setattr("fp8verify.agent.instruments.compiles", lambda: False)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        allocator = {
            "allocated_bytes": {"all": {"peak": 1 << 30}},
            "reserved_bytes": {"all": {"peak": 2 << 30}},
        }
        patch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: allocator)
        properties = SimpleNamespace(
            total_memory=141 << 30, name="NVIDIA H200", major=9, minor=0
        )
        patch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        model = torch.nn.ModuleDict(
            {"up": torch.nn.Linear(16, 16), "experts": Experts()}
        )
        optimizer, engine = torch.optim.SGD(model.parameters(), lr=0.1), Engine()
        settings, clock = config(folder), Clock()
        counters.use(settings["counters"])
        counters.observe(lambda: None)
        engine.forward()
        debug.open(settings)
        recorder = WindowManager(
            settings,
            clock,
            ProfilerArbiter(lambda: None),
            lambda: [optimizer],
            lambda: [optimizer],
        )
        recorder.after(0)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for step in (1, 2):
            clock.enter(step)
            clock.leave(id(optimizer), "SGD", step)
            engine.global_steps = step
            recorder.after(step)
        clock.outside.resume()
        clock.outside.tick(disturbed=False)
        recorder.record.write()
        debug.open({"debug": False})
    return folder


# Of captures that fp8verify up to 0.4.0 made.
OLD = "RankMeta.naming is read and not written"


@pytest.fixture
def written(folder: Path) -> Any:
    return json.loads((folder / "rank0.meta.json").read_text())


def test_every_field_is_written_and_read(written: Any) -> None:
    assert compare(RankMeta, [written]) == [OLD]
    assert written["schema"] == SCHEMA


def test_a_field_on_one_side_only_is_told(written: Any) -> None:
    written["modules"][0]["invented"] = 1
    for window in written["window"]:
        window.pop("layers", None)

    assert compare(RankMeta, [written]) == [
        "ModuleRecord.invented is written and not read",
        OLD,
        "WindowRecord.layers is read and not written",
    ]


def compare(struct: type[msgspec.Struct], records: list[Any]) -> list[str]:
    """Return how the fields of a struct differ from those of the records written for it."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
    keys = {key for record in records for key in record}
    said = [
        f"{struct.__name__}.{key} is written and not read" for key in keys - set(fields)
    ]
    said += [
        f"{struct.__name__}.{key} is read and not written" for key in set(fields) - keys
    ]
    hints = get_type_hints(struct)
    for key in keys & set(fields):
        inner, values = (
            struct_in(hints[fields[key]]),
            [record.get(key) for record in records],
        )
        flat = [
            one for v in values for one in (v if isinstance(v, list) else [v]) if one
        ]
        if inner is not None and flat:
            said += compare(inner, flat)
    return sorted(said)


def struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """Return the struct in `Struct`, `Struct | None` or `tuple[Struct, ...]`."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    wraps = get_origin(hint) in (tuple, Union, UnionType)
    return next(filter(None, map(struct_in, get_args(hint))), None) if wraps else None


def test_what_is_left_out_had_not_begun() -> None:
    from fp8verify.agent.record import RankRecord
    from fp8verify.agent.windows.plan import Plan, new_window

    plan, states = Plan(), ("complete", "cut", "never", "skipped")
    plan.windows = [new_window(1, 2, state=state) for state in states]
    RankRecord({}, None, plan, dict).leave_out("dropped", "no room")
    assert [window["state"] for window in plan.windows] == [
        "complete",
        "cut",
        "dropped",
        "skipped",
    ]


def test_each_window_has_a_file_of_its_own(tmp_path: Path) -> None:
    from fp8verify.agent.record import RankFiles

    files = RankFiles(config(tmp_path), 3, 4)
    made = [files.trace_path(0), files.trace_path(1), files.series]
    assert [f"{path.relative_to(tmp_path)}" for path in made] == [
        *(
            "rank3.json.gz",
            "rank3.w2.json.gz",
            "rank3.numerics.jsonl",
        )
    ]


def test_a_process_without_a_gpu_has_none() -> None:
    from fp8verify.agent import process

    assert process.gpu() == {}


@pytest.mark.parametrize(("waiting", "behind"), [(-1, False), (0, True), (1, True)])
def test_a_watch_that_nobody_judges_leaves_windows_out(
    waiting: int, behind: bool, tmp_path: Path
) -> None:
    from fp8verify.agent.windows import manager

    for number in range(manager.MAX_WAITING + waiting):
        (tmp_path / manager.LIVE / f"{number}").mkdir(parents=True)
    said: list[str] = []
    watch: Any = SimpleNamespace(
        _config={"capture": tmp_path}, record=SimpleNamespace(note=said.append)
    )
    assert manager.RepeatingWindows._is_behind(watch) is behind
    assert bool(said) is behind


def test_the_values_are_read_back(folder: Path) -> None:
    (path,) = find_metas(folder)
    meta = read_meta(path)

    window = meta.windows[0]
    assert (window.state, window.trace, window.layers) == (
        "complete",
        "rank0.json.gz",
        True,
    )
    assert window.framework is not None
    assert (window.framework.first, window.framework.last) == (2, 3)
    assert [module.fqn for module in meta.modules] == ["up", "experts.w1"]
    assert meta.versions["torch"] == str(torch.__version__)
    assert meta.environment.gpu == "NVIDIA H200"
    assert meta.environment.compute_capability == "9.0"


def test_the_files_have_the_names_by_which_they_are_found(folder: Path) -> None:
    made = sorted(path.name for path in folder.iterdir() if path.name != "boot")

    debug_log = next(name for name in made if fnmatch(name, "debug.*.log"))
    assert made == sorted([debug_log, "rank0.json.gz", "rank0.meta.json"])


def test_the_debug_log_tells_what_was_done(folder: Path) -> None:
    (log,) = folder.glob("debug.*.log")

    said = [line.split(": ", 1)[1] for line in log.read_text().splitlines()]
    assert said[:3] == [
        "start window 1 after step 0",
        "2 linear modules found",
        "window 1-2 is cut: the process was killed inside the window",
    ]
    assert "stop window 1 after step 2" in said


def test_a_version_is_known_without_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    from fp8verify.agent import process as versions

    monkeypatch.setattr(
        versions, "LIBRARIES", ("msgspec", "accelerate", "no_such_library")
    )
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(__version__="9.9"))  # type: ignore[arg-type]

    found = versions.versions.__wrapped__()
    assert found["msgspec"] == msgspec.__version__
    assert found["accelerate"] == "9.9"
    assert "no_such_library" not in found
