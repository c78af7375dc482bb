"""What the runtime asks of a device. Knows nothing of any device in particular."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device at one moment, in bytes."""

    total_bytes: int
    """What this process could use at most; on CPU within the limits of its control group."""
    available_bytes: int
    """What of it nobody uses now, caches that can be dropped included."""


class Platform(Protocol):
    """One device. A platform is only constructed where its module's `why_unavailable` returns None."""

    @property
    def name(self) -> str:
        """cpu, cuda or npu."""

    @property
    def device(self) -> torch.device:
        """The device, with its index where there can be several."""

    def default_dtype(self, checkpoint_dtype: torch.dtype) -> torch.dtype:
        """Return the type to compute in for a checkpoint of this type: its own where the device computes that fast."""

    def memory(self) -> DeviceMemory:
        """Return what memory there is now. The second of two calls can return less, never an error."""

    def set_threads(self, threads: int) -> int:
        """Set the compute threads of torch and of our kernels; 0 chooses. Return how many there are now.

        Raises:
            InvalidConfig: there cannot be so many.
        """

    def allocate_zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a zeroed tensor on the device; where the system maps pages on first use, untouched ones cost nothing.

        Raises:
            XLLMError: there is not so much memory; names the bytes.
        """
