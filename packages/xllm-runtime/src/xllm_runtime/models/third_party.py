"""Models that installed packages bring. Knows their names only; the registry imports them."""

from __future__ import annotations

from importlib.metadata import entry_points

ENTRY_POINT_GROUP = "xllm.models"
"""Third parties register `Architecture = "module:Class"` here; the class is built like ours, and comes before ours."""


def third_party_models() -> dict[str, str]:
    """Return "module:Class" by architecture."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
