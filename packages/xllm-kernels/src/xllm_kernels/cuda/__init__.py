"""The kernels for CUDA GPUs, on torch tensors. Imports torch and the extension module `_C_cuda`; nothing imports this but who uses it.

`ops` has the operations of `xllm_kernels.ops` for tensors of 16-bit floats on a GPU, `decode` what a decode step is made of. All start
their kernels on torch's current stream and return without waiting; the tensors' device must be the current one. A kernel may
begin while the one before it ends (programmatic dependent launch): between two of ours no event is needed, and torch's own
kernels wait as ever.
"""

from __future__ import annotations
