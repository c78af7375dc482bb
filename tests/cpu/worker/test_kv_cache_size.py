"""How many blocks a worker takes, by option and by memory."""

import pytest
import torch

from xllm_framework.config import KVCacheConfig
from xllm_framework.errors import InvalidConfig, XLLMError
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.platform import DeviceMemory
from xllm_runtime.platform.cpu import CPUPlatform
from xllm_runtime.worker.kv_cache import CPU_CACHE_BYTES, CacheDemand, block_bytes, num_blocks_that_fit
from xllm_runtime.worker.kv_tensors import allocate

GIB = 2**30
BLOCK_BYTES = 2**20
ROOMY = CacheDemand(max_model_len=16_000, max_num_seqs=1000)


def fit(
    demand: CacheDemand = ROOMY, *, total: int = 64 * GIB, available: int = 64 * GIB, is_cpu: bool, **options
) -> int:
    return num_blocks_that_fit(
        KVCacheConfig(**options), demand, BLOCK_BYTES, 16, DeviceMemory(total, available), is_cpu=is_cpu
    )


@pytest.mark.parametrize("is_cpu", [True, False])
def test_an_explicit_number_is_taken_as_it_is(is_cpu):
    assert fit(CacheDemand(16, 1), is_cpu=is_cpu, num_blocks=77, max_cache_size=1) == 77


@pytest.mark.parametrize("is_cpu", [True, False])
def test_an_explicit_size_is_filled_as_far_as_it_can_be_used(is_cpu):
    assert fit(is_cpu=is_cpu, max_cache_size=300 * BLOCK_BYTES + 5) == 300
    assert fit(CacheDemand(33, 4), is_cpu=is_cpu, max_cache_size=300 * BLOCK_BYTES) == 1 + 4 * 3


@pytest.mark.parametrize("options", [{"num_blocks": 11}, {"max_cache_size": 11 * BLOCK_BYTES}])
def test_an_explicit_pool_larger_than_memory_is_an_error(options):
    with pytest.raises(InvalidConfig, match="cache of 11534336 bytes, but only 10485760 are available"):
        fit(is_cpu=True, available=10 * BLOCK_BYTES, **options)


def test_an_accelerator_gives_its_share_less_what_is_used():
    assert fit(is_cpu=False, total=80 * GIB, available=60 * GIB, memory_utilization=0.5) == 20 * 1024
    assert fit(CacheDemand(1600, 8), is_cpu=False) == 1 + 800


def test_a_cpu_gives_a_quarter_gibibyte_or_one_full_sequence():
    assert fit(is_cpu=True) == 1 + 1000
    assert fit(CacheDemand(160, 1000), is_cpu=True) == CPU_CACHE_BYTES // BLOCK_BYTES
    assert fit(CacheDemand(160, 3), is_cpu=True) == 1 + 30


def test_a_cpu_with_little_memory_gives_a_share_of_what_is_left():
    assert fit(is_cpu=True, available=500 * BLOCK_BYTES, memory_utilization=0.5) == 250


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("num_blocks 1", {"is_cpu": True, "num_blocks": 1}),
        ("num_blocks -5", {"is_cpu": True, "num_blocks": -5}),
        ("max_cache_size", {"is_cpu": False, "max_cache_size": BLOCK_BYTES}),
        ("memory_utilization", {"is_cpu": True, "available": 0}),
        ("memory_utilization", {"is_cpu": False, "total": 80 * GIB, "available": GIB}),
    ],
)
def test_no_room_is_an_error_that_names_the_option(named, options):
    with pytest.raises(InvalidConfig, match=named):
        fit(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_caches_are_zeroed_and_of_the_shapes_asked_for(dtype):
    shapes = [KVCacheShape(2, 8, dtype), KVCacheShape(1, 4, dtype)]
    caches = allocate(shapes, 6, 16, CPUPlatform())
    assert [tuple(key.shape) for key, _ in caches] == [(6, 16, 2, 8), (6, 16, 1, 4)]
    assert sum(key.nbytes + value.nbytes for key, value in caches) == 6 * block_bytes(shapes, 16)
    for tensor in (tensor for pair in caches for tensor in pair):
        assert tensor.dtype == dtype
        assert not tensor.any()
        tensor[3] = 1.5
        assert float(tensor.sum()) == 1.5 * tensor[3].numel()


def test_a_cache_larger_than_memory_is_an_error():
    with pytest.raises(XLLMError, match=r"no memory .* bytes"):
        allocate([KVCacheShape(2**10, 2**10, torch.float32)], 2**20, 2**10, CPUPlatform())


def test_a_model_without_kv_has_blocks_of_a_byte():
    assert block_bytes([], 16) == 1
