// y = epilogue(norm(x) W^T) for up to 8 * NT rows of x: the weights pass through shared memory once, at memory speed.
//
// One or two blocks a multiprocessor stay for the whole kernel. One thread asks the bulk tensor copy engine for tiles of W (16 * MT
// rows, KC columns) in a ring of STAGES; WM * WK warps multiply them by mma.m16n8k16. The contraction order is free, so a lane takes
// 16 contiguous bytes of a row as the operands of two products. Since W does not depend on the kernel before, the ring fills while
// that one ends (programmatic dependent launch).
//
//   unit u = (tile of 16 * MT rows, slice s of S of K); a block owns units [u0, u1); S > 1 meets in a float32 workspace
//   a stage is KC / 64 boxes of 64 columns (128 bytes a row, 16-byte pieces p of row r stored at p ^ (r & 7): no bank conflicts)
//   chunk c = (box c / 2, h = c % 2): lane t holds piece 2 t + h; warp (wm, wk) takes chunks wk, wk + WK, ... of its MT / WM row tiles
//   lane = 4 * g + t: rows g and g + 8 of a tile; rows of x: 8 n + g
//
// Knows nothing of models. N must be a multiple of 16 * MT and K of KC * S.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cstdint>

namespace xllm::cuda {

enum class Epilogue : int { kNone = 0, kAddResidual = 1, kSiluMul = 2 };

struct LinearArgs {
  CUtensorMap weight;                // [N, K], boxes of 16 * MT (kSiluMul: 8 * MT) rows and 64 columns; kSiluMul: N = 2 I, gate rows first
  CUtensorMap x_map;                 // XSTAGE: [B, K], boxes of 8 * NT rows and 64 columns
  const __nv_bfloat16* x;            // [B, K]
  const __nv_bfloat16* norm_weight;  // [K] or null: x is normalised by its root mean square first
  __nv_bfloat16* out;                // [B, N] (kSiluMul: [B, I]); kAddResidual: read, added to, written
  float* workspace;                  // S > 1: [S, B, N] partial sums, and per tile S squares
  int* counters;                     // S > 1: [N / (16 MT)], zero before and after
  int batch;
  int n;
  int k;
  int splits;                        // S
  float eps;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void barrier_init(uint64_t* bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count));
}
__device__ __forceinline__ void barrier_expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}\n" ::"r"(
          shared_address(bar)),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void copy_box(void* dst, const CUtensorMap* map, int column, int row, uint64_t* bar, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          shared_address(dst)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(bar)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float2 unpack(uint32_t v) { return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&v)); }
__device__ __forceinline__ uint32_t pack(float a, float b) {
  __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<uint32_t*>(&v);
}
__device__ __forceinline__ uint32_t scale_pair(uint32_t x, uint32_t w, float& squares) {
  const float2 a = unpack(x), b = unpack(w);
  squares += a.x * a.x + a.y * a.y;
  return pack(a.x * b.x, a.y * b.y);
}

template <int MT, int NT, int WM, int WK, int KC, int STAGES, bool XSTAGE>
struct LinearShape {
  static constexpr int kRows = 16 * MT, kColumns = 8 * NT, kConsumers = WM * WK;
  static constexpr int kStageRows = kRows + (XSTAGE ? kColumns : 0);
  static constexpr int kStageBytes = kStageRows * KC * 2;
  static constexpr int kPartialBytes = WK * kRows * (kColumns + 1) * 4 + WK * kColumns * 4;
  static int bytes(int k) { return STAGES * kStageBytes + kPartialBytes + 256 + 1024 + (XSTAGE ? 0 : kColumns * (k + 8) * 2); }
};

template <int MT, int NT, int WM, int WK, int KC, int STAGES, bool XSTAGE, Epilogue EPI, bool NORM>
__global__ void __launch_bounds__(WM* WK * 32 + 32, 2) linear_stream(const __grid_constant__ LinearArgs args) {
  using Shape = LinearShape<MT, NT, WM, WK, KC, STAGES, XSTAGE>;
  constexpr int kRows = Shape::kRows, kColumns = Shape::kColumns, kConsumers = Shape::kConsumers;
  constexpr int kThreads = kConsumers * 32;
  extern __shared__ unsigned char unaligned[];
  unsigned char* memory = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  auto* partial = reinterpret_cast<float*>(memory + STAGES * Shape::kStageBytes);
  float* squares_sum = partial + WK * kRows * (kColumns + 1);
  auto* full = reinterpret_cast<uint64_t*>(memory + STAGES * Shape::kStageBytes + Shape::kPartialBytes);
  uint64_t* empty = full + STAGES;
  auto* resident = reinterpret_cast<__nv_bfloat16*>(memory + STAGES * Shape::kStageBytes + Shape::kPartialBytes + 256);
  __shared__ bool is_last;

  const int tiles = args.n / kRows, units = tiles * args.splits, slice = args.k / args.splits, steps = slice / KC;
  const int u0 = static_cast<int>(static_cast<long long>(units) * blockIdx.x / gridDim.x);
  const int u1 = static_cast<int>(static_cast<long long>(units) * (blockIdx.x + 1) / gridDim.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int half = args.n / 2;

  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

  if (warp == kConsumers) {
    uint64_t first, last;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    if (lane > 0) return;
    const int total = (u1 - u0) * steps;
    const auto column_of = [&](int i) { return ((u0 + i / steps) % args.splits) * slice + (i % steps) * KC; };
    const auto copy_weight = [&](int i, int stage) {
      const int tile = (u0 + i / steps) / args.splits, column = column_of(i);
      unsigned char* base = memory + stage * Shape::kStageBytes;
      barrier_expect(full + stage, Shape::kStageBytes);
      for (int box = 0; box < KC / 64; ++box, base += kRows * 128) {
        if constexpr (EPI == Epilogue::kSiluMul) {
          copy_box(base, &args.weight, column + box * 64, tile * (kRows / 2), full + stage, first);
          copy_box(base + kRows * 64, &args.weight, column + box * 64, half + tile * (kRows / 2), full + stage, first);
        } else {
          copy_box(base, &args.weight, column + box * 64, tile * kRows, full + stage, first);
        }
      }
    };
    const auto copy_x = [&](int i, int stage) {
      unsigned char* base = memory + stage * Shape::kStageBytes + kRows * KC * 2;
      for (int box = 0; box < KC / 64; ++box) copy_box(base + box * kColumns * 128, &args.x_map, column_of(i) + box * 64, 0, full + stage, last);
    };
    // W does not depend on the kernel before, x does: the ring is full of W when x may be read.
    const int ahead = min(STAGES, total);
    for (int i = 0; i < ahead; ++i) copy_weight(i, i);
    if constexpr (XSTAGE) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      for (int i = 0; i < ahead; ++i) copy_x(i, i);
    }
    for (int i = ahead; i < total; ++i) {
      const int stage = i % STAGES;
      barrier_wait(empty + stage, (i / STAGES - 1) & 1);
      copy_weight(i, stage);
      if constexpr (XSTAGE) copy_x(i, stage);
    }
    return;
  }

  const int g = lane / 4, t = lane % 4, wm = warp / WK, wk = warp % WK;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if constexpr (!XSTAGE) {
    // x lies in shared memory for the whole kernel, multiplied by the norm's weight where there is one.
    const int row_stride = args.k + 8;
    for (int b = 0; b < args.batch; ++b) {
      float squares = 0.f;
      for (int c = threadIdx.x; c < args.k / 8; c += kThreads) {
        uint4 v = reinterpret_cast<const uint4*>(args.x + static_cast<size_t>(b) * args.k)[c];
        if constexpr (NORM) {
          const uint4 w = __ldg(reinterpret_cast<const uint4*>(args.norm_weight) + c);
          v = make_uint4(scale_pair(v.x, w.x, squares), scale_pair(v.y, w.y, squares), scale_pair(v.z, w.z, squares),
                         scale_pair(v.w, w.w, squares));
        }
        reinterpret_cast<uint4*>(resident + b * row_stride)[c] = v;
      }
      if constexpr (NORM) {
        for (int o = 16; o; o >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, o);
        if (lane == 0) partial[b * kConsumers + warp] = squares;
      }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    if constexpr (NORM) {
      if (threadIdx.x < args.batch) {
        float total = 0.f;
        for (int w = 0; w < kConsumers; ++w) total += partial[threadIdx.x * kConsumers + w];
        squares_sum[threadIdx.x] = total;
      }
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    }
  }

  int stage = 0, parity = 0;
  for (int unit = u0; unit < u1; ++unit) {
    const int tile = unit / args.splits, split = unit % args.splits;
    float sums[MT / WM][NT][4] = {};
    float squares[NT] = {};
    for (int step = 0; step < steps; ++step) {
      barrier_wait(full + stage, parity);
      const unsigned char* base = memory + stage * Shape::kStageBytes;
      const int k0 = split * slice + step * KC;
#pragma unroll
      for (int c = wk; c < KC / 32; c += WK) {
        const int box = c / 2, piece = 2 * t + c % 2, column = box * 64 + piece * 8;
        const int offset = (piece ^ g) * 16;  // rows g, g + 8, ... of a box all have the same three low bits
        uint4 w[MT / WM][2];
#pragma unroll
        for (int m = 0; m < MT / WM; ++m) {
          const unsigned char* row = base + (box * kRows + (wm * (MT / WM) + m) * 16 + g) * 128 + offset;
          w[m][0] = *reinterpret_cast<const uint4*>(row);
          w[m][1] = *reinterpret_cast<const uint4*>(row + 8 * 128);
        }
        uint4 nv;
        if constexpr (NORM && XSTAGE) nv = __ldg(reinterpret_cast<const uint4*>(args.norm_weight + k0 + column));
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          uint4 xv;
          if constexpr (XSTAGE) {
            xv = *reinterpret_cast<const uint4*>(base + kRows * KC * 2 + (box * kColumns + n * 8 + g) * 128 + offset);
            if constexpr (NORM) {
              xv = make_uint4(scale_pair(xv.x, nv.x, squares[n]), scale_pair(xv.y, nv.y, squares[n]),
                              scale_pair(xv.z, nv.z, squares[n]), scale_pair(xv.w, nv.w, squares[n]));
            }
          } else {
            // Rows past the batch repeat its last one: their products are never read.
            const int b = min(n * 8 + g, args.batch - 1);
            xv = *reinterpret_cast<const uint4*>(resident + b * (args.k + 8) + k0 + column);
          }
#pragma unroll
          for (int m = 0; m < MT / WM; ++m) {
            mma_bf16(sums[m][n], w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y, xv.x, xv.y);
            mma_bf16(sums[m][n], w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w, xv.z, xv.w);
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + stage);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }

    float* mine = partial + wk * kRows * (kColumns + 1);
#pragma unroll
    for (int m = 0; m < MT / WM; ++m) {
      const int row = (wm * (MT / WM) + m) * 16 + g;
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        mine[row * (kColumns + 1) + n * 8 + 2 * t] = sums[m][n][0];
        mine[row * (kColumns + 1) + n * 8 + 2 * t + 1] = sums[m][n][1];
        mine[(row + 8) * (kColumns + 1) + n * 8 + 2 * t] = sums[m][n][2];
        mine[(row + 8) * (kColumns + 1) + n * 8 + 2 * t + 1] = sums[m][n][3];
      }
    }
    if constexpr (NORM && XSTAGE) {
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        float s = squares[n];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        if (t == 0 && wm == 0) squares_sum[wk * kColumns + n * 8 + g] = s;
      }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");

    bool finish = true;
    if (args.splits > 1) {
      // Each slice leaves its sums; the one that comes last adds them in the order of the slices.
      float* work = args.workspace + static_cast<size_t>(unit) * (kRows + 1) * kColumns;
      for (int i = threadIdx.x; i < (kRows + 1) * args.batch; i += kThreads) {
        const int b = i % args.batch, row = i / args.batch;
        float sum = 0.f;
        if (row < kRows) {
          for (int w = 0; w < WK; ++w) sum += partial[(w * kRows + row) * (kColumns + 1) + b];
        } else if constexpr (NORM && XSTAGE) {
          for (int w = 0; w < WK; ++w) sum += squares_sum[w * kColumns + b];
        }
        work[row * kColumns + b] = sum;
      }
      __threadfence();
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
      if (threadIdx.x == 0) {
        const int before = atomicAdd(args.counters + tile, 1);
        is_last = before == args.splits - 1;
        if (is_last) args.counters[tile] = 0;
      }
      asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
      finish = is_last;
      if (finish) __threadfence();
    }
    if (finish) {
      constexpr int kOutRows = EPI == Epilogue::kSiluMul ? kRows / 2 : kRows;
      auto total = [&](int row, int b) {
        float sum = 0.f;
        if (args.splits > 1) {
          const float* work = args.workspace + static_cast<size_t>(tile) * args.splits * (kRows + 1) * kColumns;
          for (int s = 0; s < args.splits; ++s) sum += __ldcg(work + (s * (kRows + 1) + row) * kColumns + b);
        } else {
#pragma unroll
          for (int w = 0; w < WK; ++w) sum += partial[(w * kRows + row) * (kColumns + 1) + b];
        }
        return sum;
      };
      for (int i = threadIdx.x; i < kOutRows * args.batch; i += kThreads) {
        const int row = i % kOutRows, b = i / kOutRows;
        float scale = 1.f;
        if constexpr (NORM) {
          float squares_total = 0.f;
          if constexpr (!XSTAGE) {
            squares_total = squares_sum[b];
          } else if (args.splits > 1) {
            squares_total = total(kRows, b);
          } else {
            for (int w = 0; w < WK; ++w) squares_total += squares_sum[w * kColumns + b];
          }
          scale = rsqrtf(squares_total / args.k + args.eps);
        }
        float sum = total(row, b) * scale;
        if constexpr (EPI == Epilogue::kSiluMul) {
          const float up = total(kOutRows + row, b) * scale;
          args.out[static_cast<size_t>(b) * half + tile * kOutRows + row] = __float2bfloat16(sum / (1.f + __expf(-sum)) * up);
        } else {
          __nv_bfloat16* out = args.out + static_cast<size_t>(b) * args.n + tile * kRows + row;
          if constexpr (EPI == Epilogue::kAddResidual) sum += __bfloat162float(*out);
          *out = __float2bfloat16(sum);
        }
      }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
}

// Describes a row-major bf16 matrix to the copy engine: boxes of 64 columns and `box_rows` rows, swizzled by 128 bytes.
inline CUresult describe_matrix(CUtensorMap* map, const void* data, int rows, int columns, int box_rows) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                              const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<Encode>(entry);
  }();
  if (encode == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

template <int MT, int NT, int WM, int WK, int KC, int STAGES, bool XSTAGE, Epilogue EPI, bool NORM>
cudaError_t launch_linear_stream(const LinearArgs& args, int blocks, cudaStream_t stream) {
  auto kernel = linear_stream<MT, NT, WM, WK, KC, STAGES, XSTAGE, EPI, NORM>;
  const int bytes = LinearShape<MT, NT, WM, WK, KC, STAGES, XSTAGE>::bytes(args.k);
  static const cudaError_t once = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024);
  if (once != cudaSuccess) return once;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(WM * WK * 32 + 32);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace xllm::cuda
