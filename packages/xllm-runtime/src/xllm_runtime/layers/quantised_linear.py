"""Linear layers that compute with their matrices as the checkpoint stores them. Knows nothing of what the parts mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xllm_framework.errors import ModelLoadError
from xllm_kernels.quantised_matrix import QuantisedMatrix, from_4_bits, from_8_bits, numbers, stack
from xllm_runtime.layers.kv_scales import KVScaleSlot
from xllm_runtime.layers.linear import Linear
from xllm_runtime.layers.parameter import ParameterSlot, WeightTarget, WeightTargets
from xllm_runtime.layers.quantised_products import (
    QuantisedProducts,
    TorchProducts,
    explain_cuda_products,
    explain_sizes,
    select_products,
)
from xllm_runtime.weights.kept_matrix import explain_kept, kept_matrix
from xllm_runtime.weights.quantisation import QuantisationScheme

OPTIONAL_PIECES = frozenset({"g_idx"})
QUANTISED_DTYPES = (torch.float8_e4m3fn, torch.int8)
DUMMY_SCALE = 0.02
"""Standard deviation of dummy matrices."""


class QuantisedLinear(Linear):
    """`Linear` over a `QuantisedMatrix`; parts that the checkpoint stores plain make all of them plain."""

    def __init__(
        self,
        in_features: int,
        parts: Sequence[tuple[str, int]],
        *,
        has_bias: bool,
        dtype: torch.dtype,
        scheme: QuantisationScheme,
        products: QuantisedProducts,
    ) -> None:
        super().__init__(in_features, parts, has_bias=has_bias, dtype=dtype)
        self.in_features, self.dtype = in_features, dtype
        self.matrix: QuantisedMatrix | None = None
        """None until weights are loaded, and where they are plain."""
        self._scheme = scheme
        self._products = products

    def _new_weight(self, in_features: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(0, in_features, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.forward`."""
        if self.matrix is None:
            return super().forward(x)
        return self._products.multiply(x, self.matrix, self.bias)

    def weight_targets(self, prefix: str) -> WeightTargets:
        """Yield the pieces of every part's matrix under `prefix`, or the plain matrices in their place."""
        slot = MatrixSlot(self, self._scheme)
        for part, name in enumerate(self.names):
            for piece in (*sorted(self._scheme.pieces - OPTIONAL_PIECES - {"weight"}), "weight", *OPTIONAL_PIECES):
                yield f"{prefix}.{name}.{piece}", WeightTarget(slot, part)
        if self.bias is not None:
            biases = ParameterSlot(self, "bias", self.rows)
            for part, name in enumerate(self.names):
                yield f"{prefix}.{name}.bias", WeightTarget(biases, part)

    def make_dummy_weights(self) -> None:
        """Take random weights of the scheme's form; always the same."""
        device, (n, k) = self.weight.device, (sum(self.rows), self.in_features)
        generator = torch.Generator(device).manual_seed(0)
        scheme = self._scheme
        if scheme.form in ("float8", "int8"):
            largest = 448 if scheme.form == "float8" else 127
            values = torch.randn(n, k, generator=generator, device=device, dtype=self.dtype) * (largest / 6)
            stored = values.clamp(-largest, largest).to(torch.float8_e4m3fn if scheme.form == "float8" else torch.int8)
            scale = torch.full((n,), DUMMY_SCALE * 6 / largest, device=device)
            blocks = torch.ones(-(-n // 128), -(-k // 128), device=device) * scale[0]
            self.matrix = (
                from_8_bits(stored, row_scales=scale)
                if scheme.block is None
                else from_8_bits(stored, block_scales=blocks)
            )
        else:
            nibbles = torch.randint(0, 16, (n, k), generator=generator, device=device, dtype=torch.uint8)
            scales = torch.full((n, k // 128), DUMMY_SCALE / 4.6, device=device)
            self.matrix = from_4_bits(nibbles, scales, torch.full_like(scales, 8, dtype=torch.int32))
        if self.bias is not None:
            self.bias.data.zero_()


class MatrixSlot:
    """`WeightSlot` of a `QuantisedLinear`: pieces wait until their part is whole, parts until all are there."""

    def __init__(self, linear: QuantisedLinear, scheme: QuantisationScheme) -> None:
        self._linear = linear
        self._scheme = scheme
        self._needed = scheme.pieces - OPTIONAL_PIECES
        self._pieces: dict[int, dict[str, torch.Tensor]] = {}
        self._parts: dict[int, QuantisedMatrix | torch.Tensor] = {}

    def lacks(self, part: int) -> bool:
        """See `WeightSlot.lacks`."""
        return part not in self._parts

    def take(self, part: int, name: str, tensor: torch.Tensor) -> None:
        """See `WeightSlot.take`."""
        layer, _, piece = name.rpartition(".")
        device = self._linear.weight.device
        if piece == "weight" and tensor.dtype not in QUANTISED_DTYPES:
            self._settle(part, layer, tensor.to(device, self._linear.dtype))
            return
        pieces = self._pieces.setdefault(part, {})
        pieces[piece] = tensor.to(device)
        if self._needed <= pieces.keys():  # optional pieces come first
            self._settle(part, layer, self._matrix(layer, self._pieces.pop(part)))

    def _matrix(self, layer: str, pieces: dict[str, torch.Tensor]) -> QuantisedMatrix:
        try:
            return kept_matrix(pieces, self._scheme)
        except (ValueError, RuntimeError, IndexError) as error:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in pieces.items())
            raise ModelLoadError(f"the tensors of layer {layer!r} do not fit each other ({error}): {shapes}") from error

    def _settle(self, part: int, layer: str, matrix: QuantisedMatrix | torch.Tensor) -> None:
        linear = self._linear
        expected = [linear.rows[part], linear.in_features]
        found = list(matrix.shape) if isinstance(matrix, torch.Tensor) else [matrix.n, matrix.k]
        if found != expected:
            raise ModelLoadError(
                f"layer {layer!r} has a matrix of {found}, but the model's configuration asks for {expected}"
            )
        self._parts[part] = matrix
        if len(self._parts) < len(linear.rows):
            return
        parts = [self._parts[index] for index in range(len(linear.rows))]
        kept = [matrix for matrix in parts if isinstance(matrix, QuantisedMatrix)]
        if len(kept) == len(parts):
            linear.matrix = stack(kept)
        else:
            plain = [part if isinstance(part, torch.Tensor) else numbers(part, linear.dtype) for part in parts]
            linear.weight.data = torch.cat(plain)
        self._parts = dict.fromkeys(self._parts, linear.weight)  # what is kept is the layer's alone


def new_linear(
    in_features: int,
    parts: Sequence[tuple[str, int]],
    *,
    has_bias: bool,
    dtype: torch.dtype,
    scheme: QuantisationScheme | None = None,
    kept: str = "auto",
) -> Linear:
    """Return a linear layer on the default device: over quantised matrices where `scheme` has them and they can stay so.

    `kept` "auto" keeps them where kernels serve, "always" also where torch has to make them plain for each product, "never" not at all.
    """
    device, rows = torch.get_default_device(), [count for _, count in parts]
    if scheme is not None and kept != "never":
        reasons = explain_kept(scheme, in_features) + explain_sizes(
            rows, in_features, has_blocks=scheme.block is not None
        )
        if kept == "auto":
            reasons += explain_cuda_products(device, dtype)
        if not reasons:
            products: QuantisedProducts = (
                TorchProducts()
                if kept == "always"
                else select_products(device, dtype, quantises_input=scheme.quantises_input)
            )
            return QuantisedLinear(in_features, parts, has_bias=has_bias, dtype=dtype, scheme=scheme, products=products)
    return Linear(in_features, parts, has_bias=has_bias, dtype=dtype)


def kept_layers(targets: WeightTargets) -> frozenset[str]:
    """Return what is wanted as it is stored: layers of matrices, and scales of a cache, by their names in a checkpoint."""
    found = set()
    for name, target in targets:
        if isinstance(target.slot, MatrixSlot):
            found.add(name.rpartition(".")[0])
        elif isinstance(target.slot, KVScaleSlot):
            found.add(name)
    return frozenset(found)
