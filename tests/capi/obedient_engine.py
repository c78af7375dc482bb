"""The engine process with an obedient master in place of a model; run with the arguments of `xllm_capi.engine`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from obedient_master import ObedientMaster

from xllm_capi.engine import main


def create(config: Any) -> Any:
    return ObedientMaster(config)


if __name__ == "__main__":
    main(create=create)
