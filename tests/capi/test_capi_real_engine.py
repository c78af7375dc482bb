"""The real engine behind the library: one that serves several hosts, hosts that run Python themselves, latencies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capi.building import PROGRAMS, Build, check_output
from support.server_process import ServerProcess
from xllm_capi.paths import LIBRARY, prefix

PROMPTS = ("The capital of France is", "Water boils at", "Once upon a time")


@contextmanager
def listening_engine(path: Path, environment: dict[str, str], model: str = "") -> Iterator[str]:
    """Run `python -m xllm_capi.engine --listen`; yields the address."""
    command = [sys.executable, "-m", "xllm_capi.engine", "--listen", str(path), "--model", model]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "listens at" in line:
                    break
            assert process.poll() is None, "".join(lines)
            yield f"unix:{path}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert not path.exists()


class DemoServer(ServerProcess):
    """The HTTP server with the demo model."""

    def __init__(self) -> None:
        super().__init__("--model", "")


OFFLINE = """
import sys
from xllm_runtime import LLM, SamplingParams
with LLM() as llm:
    for output in llm.generate(sys.argv[1:], SamplingParams(max_tokens=12, temperature=0)):
        print(*output.outputs[0].token_ids, "")
        print(repr(output.outputs[0].text))
    print(*llm.embed(sys.argv[1])[0].embedding)
"""


def test_same_tokens_through_c_cpp_python_and_http(
    build: Build, script_environment: dict[str, str], tmp_path: Path
) -> None:
    """Greedy answers of the demo model, one prompt after the other, and an embedding; the texts through HTTP too."""
    with DemoServer() as server:
        texts = [server.complete(prompt, max_tokens=12, temperature=0).json() for prompt in PROMPTS]
        vector = server.client.post("/v1/embeddings", json={"input": PROMPTS[0]}).json()["data"][0]["embedding"]
    offline = check_output(sys.executable, "-c", OFFLINE, *PROMPTS, env=script_environment).stdout.splitlines()
    with listening_engine(tmp_path / "engine.sock", script_environment) as address:
        for number, prompt in enumerate(PROMPTS):
            token_ids, text = offline[2 * number : 2 * number + 2]
            for source in ("attach.c", "attach.cpp"):
                answer = check_output(build(PROGRAMS / source, f"-DNAME_{source[-1]}"), address, prompt).stdout
                assert answer.partition("\n")[0] == token_ids
                assert repr(answer.partition("\n")[2]) == text
            assert repr(texts[number]["choices"][0]["text"]) == text
            assert len(token_ids.split()) > 3
        embedded, score = check_output(build(PROGRAMS / "embed.cpp"), address, PROMPTS[0]).stdout.splitlines()
    assert list(map(float, embedded.split())) == pytest.approx(vector, abs=2e-6)
    assert list(map(float, offline[-1].split())) == pytest.approx(vector, abs=2e-6)
    assert score == "1.0000"


EMBEDDED = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.xllm_last_error.restype = ctypes.c_char_p
engine, response = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
assert library.xllm_engine_create(None, ctypes.byref(engine)) == 0, library.xllm_last_error()
assert library.xllm_complete(engine, b"say hi", None, ctypes.byref(response)) == 0, library.xllm_last_error()
library.xllm_response_free(response)
assert library.xllm_engine_destroy(engine) == 0
print("done")
"""


@pytest.mark.parametrize("variables", [{}, {"PYTHONHOME": "/no/such/home", "PYTHONSAFEPATH": "1"}])
def test_host_that_runs_python_itself(
    obedient_environment: dict[str, str], variables: dict[str, str], tmp_path: Path
) -> None:
    """Also one whose own settings would break the engine's interpreter, in a folder that shadows modules."""
    (tmp_path / "json.py").write_text("raise SystemError('the host folder is on the path')")
    setting = "".join(f"os.environ[{name!r}] = {value!r}\n" for name, value in variables.items())
    command = [sys.executable, "-P", "-c", f"import os\n{setting}{EMBEDDED}", prefix() / LIBRARY]
    assert check_output(*command, env=obedient_environment, cwd=tmp_path).stdout == "done\n"


def test_log_file(build: Build, obedient_environment: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "log.c"
    source.write_text(
        "#include <xllm/xllm.h>\n#include <stdio.h>\n"
        "int main(int argc, char **argv) { (void)argc; xllm_engine *engine = NULL; xllm_response *response = NULL;\n"
        "xllm_engine_options options = XLLM_ENGINE_OPTIONS_INIT; options.log_path = argv[1];\n"
        "if (xllm_engine_create(&options, &engine) != XLLM_OK) return 1;\n"
        'xllm_status status = xllm_complete(engine, "exit", NULL, &response);\n'
        'printf("%s", xllm_last_error()); xllm_engine_destroy(engine); return status != XLLM_ERROR_ENGINE_DEAD; }\n'
    )
    program = build(source)
    log = tmp_path / "engine.log"
    done = check_output(program, log, env=obedient_environment)
    assert re.search(r"exit code 7; see its log, .*engine\.log\.$", done.stdout)
    assert log.read_text() == "farewell\n"
    assert check_output(program, "-", env=obedient_environment).stderr == "farewell\n"


def test_process_identity_is_checked(tmp_path: Path) -> None:
    """The engine's socket cannot be opened by others: its folder and file are this user's alone."""
    from xllm_capi.listener import Listener

    before = os.umask(0o022)
    listener = Listener(str(tmp_path / "new" / "engine.sock"))
    os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert listener.path.stat().st_mode & 0o077 == 0
    listener.close()
