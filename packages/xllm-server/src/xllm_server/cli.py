"""`xllm-server [MODEL] [options]` and `xllm-server bench`. Knows option names only through the config classes.

Imports stay few here and lazy below: what this module loads is on the way to every first answer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xllm_framework.config import XLLMConfig, load_config
from xllm_framework.errors import XLLMError

EXIT_USAGE = 2
_PROGRAM = "xllm-server"
_DESCRIPTION = """Serves a language model over HTTP, with the routes that OpenAI clients know.

xllm-server [MODEL] [options] serves; xllm-server bench [options] measures a server; --version prints the version.
--config FILE reads options from a JSON object. Values come from the command line, then from that file, then from
XLLM_<OPTION> variables, then from the defaults below."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (`sys.argv` when None) and exit with its code: 0, 1 for a dead engine, 2 for wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["bench"]:
        from xllm_server.bench.command import run_bench

        sys.exit(run_bench(given[1:]))
    if "--version" in given:
        from xllm_server import __version__

        print(f"{_PROGRAM} {__version__}")
        sys.exit(0)
    try:
        config = parse_config(given)
    except XLLMError as error:
        print(error.message, file=sys.stderr)
        sys.exit(EXIT_USAGE)
    from xllm_server.launch import launch

    sys.exit(launch(config))


def parse_config(arguments: Sequence[str]) -> XLLMConfig:
    """Return the options of a command line; wrong flags and `--help` print and exit.

    Only flags that were given override the file and the environment, even with their default value.

    Raises:
        InvalidConfig: a file, a variable or a value is wrong; the message names it.
    """
    given, config_file = _take_config_file(_positional_as_flag(list(arguments)))
    explicit: dict[str, object] = {}
    if given:
        import tyro

        parsed = tyro.cli(
            XLLMConfig,
            prog=_PROGRAM,
            description=_DESCRIPTION,
            args=given,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
        names = _given_names(given)
        explicit = {name: value for name, value in parsed.to_flat().items() if name in names}
    return load_config(explicit, config_file)


def _positional_as_flag(arguments: list[str]) -> list[str]:
    """Read `xllm-server MODEL` as `--model MODEL`."""
    if arguments and not arguments[0].startswith("-"):
        return ["--model", *arguments]
    return arguments


def _take_config_file(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Return the arguments without `--config FILE`, and the file."""
    rest: list[str] = []
    config_file: Path | None = None
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        if argument.startswith("--config="):
            config_file = Path(argument.partition("=")[2])
        elif argument == "--config" and position + 1 < len(arguments):
            position += 1
            config_file = Path(arguments[position])
        else:
            rest.append(argument)
        position += 1
    return rest, config_file


def _given_names(arguments: Sequence[str]) -> set[str]:
    """Return the option names that a command line spells, `--no-` forms included."""
    names = set()
    for argument in arguments:
        if argument.startswith("--"):
            name = argument[2:].partition("=")[0].replace("-", "_")
            names |= {name, name.removeprefix("no_")}
    return names
