"""Matrix products by a named algorithm of cuBLASLt, the library that torch brings and has loaded. Knows nothing of which one is fast.

torch has no say in the algorithm, so the library is called itself; names and numbers are those of its public interface (`cublasLt.h`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

ALIGNMENT = 16
"""Bytes that matrices and their rows are aligned to."""
MOST_ALGORITHMS = 8
MOST_WORKSPACE_BYTES = 1 << 20
MOST_HEIGHTS = 64
TYPES = {torch.float16: 2, torch.bfloat16: 14}
"""`cudaDataType` of what is multiplied; sums are float32."""
_FLOAT32, _COMPUTE_FLOAT32, _TRANSPOSED = 0, 68, 1
_DESC_TRANSA = 3
_PREF_MAX_WORKSPACE_BYTES, _PREF_REDUCTION_SCHEME_MASK, _PREF_MIN_ALIGNMENTS = 1, 3, (5, 6, 7, 8)


class LibraryError(Exception):
    """The library is not there, or refuses what it was asked for."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How one product is computed; what is inside is the library's."""

    data: ctypes.Array[ctypes.c_uint64]
    workspace_bytes: int


class _HeuristicResult(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("num_waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Product:
    """y = x W^T with x [M, K], W [N, K] and y [M, N] of one 16-bit type, rows dense: W of one shape, x of any M.

    For one thread at a time.
    """

    def __init__(self, n: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        """Raises `LibraryError` where the library cannot be had."""
        self._n, self._k, self._type, self._device = n, k, TYPES[dtype], device
        self._library = _library()
        self._handle = _handle(device)
        self._heights: dict[int, tuple[ctypes.c_void_p, ctypes.c_void_p]] = {}
        self._one, self._zero = (ctypes.c_float * 1)(1.0), (ctypes.c_float * 1)(0.0)
        # Matrices are columns first to the library, so it computes y^T = W x^T.
        self._operation = ctypes.c_void_p()
        self._call("cublasLtMatmulDescCreate", ctypes.byref(self._operation), _COMPUTE_FLOAT32, _FLOAT32)
        transposed = ctypes.c_int(_TRANSPOSED)
        self._set("cublasLtMatmulDescSetAttribute", self._operation, _DESC_TRANSA, transposed)
        self._weight = self._layout(k, n)

    def algorithms(self, m: int) -> list[Algorithm]:
        """Return the library's choices for M rows, its first choice first.

        All sum over K in one go and in its order: they give the same bits. Raises `LibraryError` where it has none.
        """
        preference, num_found = ctypes.c_void_p(), ctypes.c_int()
        self._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        try:
            settings = [
                (_PREF_MAX_WORKSPACE_BYTES, ctypes.c_uint64(MOST_WORKSPACE_BYTES)),
                (_PREF_REDUCTION_SCHEME_MASK, ctypes.c_uint32(0)),
                *((name, ctypes.c_uint32(ALIGNMENT)) for name in _PREF_MIN_ALIGNMENTS),
            ]
            for name, value in settings:
                self._set("cublasLtMatmulPreferenceSetAttribute", preference, name, value)
            found = (_HeuristicResult * MOST_ALGORITHMS)()
            x, y = self._layouts(m)
            problem = (self._handle, self._operation, self._weight, x, y, y)
            wanted = (preference, MOST_ALGORITHMS, found, ctypes.byref(num_found))
            self._call("cublasLtMatmulAlgoGetHeuristic", *problem, *wanted)
        finally:
            self._call("cublasLtMatmulPreferenceDestroy", preference)
        results = [result for result in found[: num_found.value] if result.state == 0]
        if not results:
            raise LibraryError(f"cuBLASLt has no algorithm for {m} x {self._n} x {self._k}")
        return [Algorithm((ctypes.c_uint64 * 8)(*result.algorithm), result.workspace_bytes) for result in results]

    def multiply(self, x: torch.Tensor, weight: torch.Tensor, algorithm: Algorithm) -> torch.Tensor:
        """Return x W^T, launched on the current stream; x and W are dense and aligned to `ALIGNMENT`.

        Raises `LibraryError` where the algorithm does not serve so many rows; nothing was launched then.
        """
        out = torch.empty((len(x), self._n), dtype=x.dtype, device=x.device)
        num_bytes = algorithm.workspace_bytes
        workspace = torch.empty(num_bytes, dtype=torch.uint8, device=x.device) if num_bytes else None
        rows, out_rows = self._layouts(len(x))
        self._call(
            "cublasLtMatmul",
            self._handle,
            self._operation,
            self._one,
            weight.data_ptr(),
            self._weight,
            x.data_ptr(),
            rows,
            self._zero,
            out.data_ptr(),
            out_rows,
            out.data_ptr(),
            out_rows,
            algorithm.data,
            None if workspace is None else workspace.data_ptr(),
            num_bytes,
            torch.cuda.current_stream(self._device).cuda_stream,
        )
        return out

    def _layouts(self, m: int) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Return the layouts of x and y with M rows; the last `MOST_HEIGHTS` are kept."""
        found = self._heights.get(m)
        if found is None:
            while len(self._heights) >= MOST_HEIGHTS:
                for layout in self._heights.pop(next(iter(self._heights))):
                    self._call("cublasLtMatrixLayoutDestroy", layout)
            found = self._heights[m] = (self._layout(self._k, m), self._layout(self._n, m))
        return found

    def _layout(self, num_rows: int, num_columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        size = (ctypes.c_uint64(num_rows), ctypes.c_uint64(num_columns), ctypes.c_int64(num_rows))
        self._call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), self._type, *size)
        return layout

    def _set(self, function: str, target: ctypes.c_void_p, name: int, value: Any) -> None:
        self._call(function, target, name, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def _call(self, function: str, *arguments: Any) -> None:
        _check(function, getattr(self._library, function)(*arguments))


def why_no_product(x: torch.Tensor, weight: torch.Tensor) -> str | None:
    """Return why `Product` cannot multiply these; None where it can."""
    if weight.dtype not in TYPES or x.dtype != weight.dtype:
        return "only bfloat16 and float16 are multiplied"
    if x.dim() != 2 or weight.dim() != 2 or not x.is_contiguous() or not weight.is_contiguous():
        return "matrices must be dense"
    if any(size * weight.element_size() % ALIGNMENT for size in weight.shape):
        return f"rows must be multiples of {ALIGNMENT} bytes"
    if x.data_ptr() % ALIGNMENT or weight.data_ptr() % ALIGNMENT:
        return f"matrices must be aligned to {ALIGNMENT} bytes"
    return None


@cache
def _library() -> ctypes.PyDLL:
    """Return the library; its calls are too short to let other threads have their turn."""
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        library = ctypes.PyDLL(f"libcublasLt.so.{major}")
    except OSError as error:
        raise LibraryError(f"cuBLASLt cannot be loaded: {error}") from error
    pointer = ctypes.c_void_p
    library.cublasLtMatmul.argtypes = (*(pointer,) * 14, ctypes.c_size_t, pointer)
    return library


@cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    """Return the library's handle for one GPU."""
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _check("cublasLtCreate", _library().cublasLtCreate(ctypes.byref(handle)))
    return handle


def _check(function: str, status: int) -> None:
    if status:
        raise LibraryError(f"{function} failed with status {status}")
