"""The Grafana dashboard and docs/reference/metrics.md name only metrics that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.asgi import call
from support.fake_master import FakeMaster
from support.serve_fake import serve

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"xllm:\w+")


def exposed_names() -> set[str]:
    """Return the names of all samples of a server that has served something."""

    async def scenario(app: Any, _: Any) -> bytes:
        await call(app, "/v1/completions", {"prompt": "x"})
        return (await call(app, "/metrics")).body

    text = serve(scenario, FakeMaster()).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = json.loads((ROOT / "packages/xllm-server/dashboards/grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= len(dashboard["panels"]) >= 10
    names = {name for expression in expressions for name in NAME.findall(expression)}
    assert names <= exposed_names()
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_reference_names_every_metric_and_no_other() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text()
    documented = set(NAME.findall(text)) - {"xllm:"}
    exposed = exposed_names()
    ours = {name for name in exposed if name.startswith("xllm:") and not name.endswith("_created")}
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in ours}
    assert {name for name in documented if name not in plain} == set()
    assert {name for name in plain if name not in documented} == set()
