"""`xllm-server [MODEL] [options]` and `xllm-server bench`. Knows option names only through the config classes.

Imports stay few here and lazy below: what this module loads is on the way to every first answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from xllm_framework.config import XLLMConfig, load_config
from xllm_framework.errors import InvalidConfig, XLLMError
from xllm_server.command_line import read_command_line

EXIT_USAGE = 2
_PROGRAM = "xllm-server"
_DESCRIPTION = """Serves a language model over HTTP, with the routes that OpenAI's and Anthropic's clients know.

xllm-server [MODEL] [options] serves; xllm-server bench [options] measures a server; xllm-server rec build-items makes a
catalogue of items; --version prints the version.
--config FILE reads options from a JSON object, --dump-config FILE writes those that are no defaults as one. Values come
from the command line, then from that file, then from XLLM_<OPTION> variables, then from the defaults below. Flags of vLLM
and of xLLM's C++ predecessor are understood where there is such an option."""
_SECRETS = ("api_key", "control_key")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (`sys.argv` when None) and exit with its code: 0, 1 for a dead engine, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["bench"]:
        from xllm_server.bench.command import run_bench

        sys.exit(run_bench(given[1:]))
    if given[:1] == ["rec"]:
        from xllm_server.rec.command import run_rec

        sys.exit(run_rec(given[1:]))
    if "--version" in given:
        from xllm_server import __version__

        print(f"{_PROGRAM} {__version__}")
        sys.exit(0)
    if "--help" in given or "-h" in given:
        _print_help()
        sys.exit(0)
    try:
        config = parse_config(given)
    except XLLMError as error:
        print(error.message, file=sys.stderr)
        sys.exit(EXIT_USAGE)
    from xllm_server.launch import launch

    sys.exit(launch(config))


def parse_config(arguments: Sequence[str]) -> XLLMConfig:
    """Return the options of a command line, and write them where `--dump-config` says.

    Only flags that were given override the file and the environment, even with their default value.

    Raises:
        InvalidConfig: a flag, a file, a variable or a value is wrong; the message names it.
    """
    given = read_command_line(arguments)
    config_file = Path(given.files["config"]) if "config" in given.files else None
    config = load_config(given.values, config_file, is_text=True)
    if "dump_config" in given.files:
        _dump(config, Path(given.files["dump_config"]))
    return config


def _dump(config: XLLMConfig, path: Path) -> None:
    """Write the options that are no defaults, keys left out."""
    changed = {name: value for name, value in config.to_flat(only_changed=True).items() if name not in _SECRETS}
    try:
        path.write_text(json.dumps(changed, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidConfig(f"The file {path} of --dump-config cannot be written: {error.strerror}.") from error


def _print_help() -> None:
    import tyro

    tyro.cli(
        XLLMConfig,
        prog=_PROGRAM,
        description=_DESCRIPTION,
        args=["--help"],
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
