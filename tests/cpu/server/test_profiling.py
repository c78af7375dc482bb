"""The engine's profiler: one recording at a time, and every request for one is answered."""

from __future__ import annotations

import gzip
import pstats
from pathlib import Path

from support.server_process import ServerProcess
from xllm_runtime.master.profiling import PythonRecording, StepProfiler


def test_a_recording_is_written(tmp_path: Path) -> None:
    profiler = StepProfiler(str(tmp_path / "profiles"), PythonRecording)
    profiler.start()
    assert (profiler.state.number, profiler.state.is_running, profiler.state.kind) == (1, True, "python")
    Path("x").with_suffix(".y")
    profiler.stop()
    assert (profiler.state.number, profiler.state.is_running, profiler.state.error) == (2, False, "")
    stats = pstats.Stats(profiler.state.path)
    assert any(name == "with_suffix" for _, _, name in stats.stats)  # type: ignore[attr-defined]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    off = StepProfiler("")
    off.start()
    assert "--profile-dir" in off.state.error
    off.stop()
    assert (off.state.number, off.state.error) == (2, "No profile is being recorded.")
    (tmp_path / "file").write_text("")
    profiler = StepProfiler(str(tmp_path / "file" / "profiles"), PythonRecording)
    profiler.start()
    profiler.start()
    assert (profiler.state.is_running, profiler.state.error) == (True, "A profile is being recorded already.")
    profiler.stop()
    assert "cannot be written" in profiler.state.error


def test_routes_record_the_engine(tmp_path: Path) -> None:
    with ServerProcess("--profile-dir", str(tmp_path)) as server:
        assert server.client.post("/stop_profile").status_code == 400
        assert server.client.post("/start_profile").json() == {"status": "profiling", "kind": "torch"}
        assert server.client.post("/start_profile").status_code == 400
        assert server.complete("ping", max_tokens=1).status_code == 200
        answer = server.client.post("/stop_profile").json()
        assert answer["status"] == "stopped"
        with gzip.open(answer["path"], "rt") as trace:
            assert "aten::" in trace.read()
