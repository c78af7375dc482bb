"""The policies by name. Importing this package imports none of them."""

from __future__ import annotations

from importlib import import_module

from xllm_framework.errors import InvalidConfig
from xllm_scheduler.policy import SchedulerPolicy

_POLICIES = {
    "decode_first": "xllm_scheduler.policies.decode_first:DecodeFirstPolicy",
    "prefill_first": "xllm_scheduler.policies.prefill_first:PrefillFirstPolicy",
    "unified": "xllm_scheduler.policies.unified:UnifiedPolicy",
}


def create_policy(name: str) -> SchedulerPolicy:
    """Return a new policy.

    Raises:
        InvalidConfig: there is no policy `name`.
    """
    if name not in _POLICIES:
        raise InvalidConfig(f"policy must be one of {', '.join(sorted(_POLICIES))}, not {name!r}.")
    module, class_name = _POLICIES[name].split(":")
    policy: SchedulerPolicy = getattr(import_module(module), class_name)()
    return policy
