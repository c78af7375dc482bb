// y = epilogue(norm(x) W^T + bias) for up to 8 rows of x and quantised W, which comes from memory straight to registers.
//
// A block owns 16 rows of W (gated: 8 gates and the 8 they are applied to); its 8 warps share the boxes of 128 bytes along K. A lane asks
// for DEPTH boxes of its two rows, four loads of 16 bytes each, before it waits for the kernel before, and for the next as one is used.
// Each warp brings the part of x that it multiplies to shared memory, and waits for no other warp until the sums meet at the end.
//
//   lane = 4 * g + t: rows g and g + 8 of the block; row g of x. 8 bits: piece 4 p + t of a box; int4: piece 2 t + h, see quantised_stream.h
//
// Knows nothing of models, and nothing of when to choose it.
#pragma once

#include "async_copy.cuh"
#include "dequantise.cuh"
#include "quantised_plan.h"

namespace xllm::kernels::cuda {

constexpr int kDirectWarps = 8, kDirectRows = 16;

// Loads that stay where they are written: before the wait for the kernel before, whose results they do not need.
__device__ __forceinline__ uint4 stream_piece(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
// A sector of which the next load takes the other half.
__device__ __forceinline__ uint4 stream_half_sector(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t stream_word(const void* from) {
  uint32_t v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

// A lane's share of one box: of rows g and g + 8, with their scales (words of int4, else bits of float32).
template <WeightKind KIND>
struct DirectBox {
  static constexpr int kGroups = KIND == WeightKind::int4 ? 2 : 1;
  uint4 pieces[2][2];
  uint32_t scales[2][kGroups];
};

// Shared memory of one block.
struct DirectMemory {
  unsigned char* x;     // [batch] rows, x_stride bytes apart
  unsigned char* norm;  // [stored columns] where there is one
  float* squares;       // [warps] of x, where there is a norm
  float* x_sums;        // int4: [batch][groups]
  float* partial;       // [warps][16][batch]

  __device__ DirectMemory(unsigned char* memory, const DirectParameters& args, int num_groups) {
    x = memory;
    norm = x + args.batch * args.x_stride;
    squares = reinterpret_cast<float*>(norm + (args.norm_weight == nullptr ? 0 : args.k * 2));
    x_sums = squares + kDirectWarps;
    partial = x_sums + args.batch * num_groups;
  }
};

template <WeightKind KIND>
__device__ __forceinline__ void load_box(const DirectParameters& args, const int (&rows)[2], int box, int t, DirectBox<KIND>& to) {
  constexpr bool kInt4 = KIND == WeightKind::int4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4* row = args.weight + (static_cast<size_t>(rows[half]) * args.num_boxes + box) * 8;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      to.pieces[half][p] = kInt4 ? stream_half_sector(row + 2 * t + p) : stream_piece(row + 4 * p + t);
      if constexpr (kInt4) to.scales[half][p] = stream_word(args.groups + static_cast<size_t>(box * 2 + p) * args.n + rows[half]);
    }
    if constexpr (!kInt4) {
      to.scales[half][0] = 0x3f800000u;
      if (args.block_scales != nullptr)
        to.scales[half][0] = stream_word(args.block_scales + static_cast<size_t>(rows[half] / 128) * args.num_boxes + box);
    }
  }
}

// Brings a warp's boxes of x to shared memory, multiplied by the norm's weight where there is one, with the sums that go with them.
template <WeightKind KIND, class Element>
__device__ __forceinline__ void stage_x(const DirectParameters& args, const DirectMemory& memory, int box0, int box1, int warp, int lane) {
  constexpr bool kInt4 = KIND == WeightKind::int4;
  constexpr int kPieces = kInt4 ? 32 : 16;
  const int first = box0 * kPieces, last = box1 * kPieces, stored = args.k / 8;
  const uint4* norm = static_cast<const uint4*>(args.norm_weight);
  if (norm != nullptr) {
    for (int c = first + lane; c < min(last, stored); c += 32) copy_piece(memory.norm + c * 16, norm + c);
  }
  wait_for_prerequisites();
  for (int b = 0; b < args.batch; ++b) {
    const uint4* row = static_cast<const uint4*>(args.x) + static_cast<size_t>(b) * stored;
    for (int c = first + lane; c < last; c += 32) {
      unsigned char* to = memory.x + b * args.x_stride + c * 16;
      if (c < stored) copy_piece(to, row + c);
      else *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
  }
  wait_for_pieces();
  if (!kInt4 && norm == nullptr) {
    __syncwarp();
    return;
  }
  float squares = 0.f;
  for (int b = 0; b < args.batch; ++b) {
    for (int c = first + lane; c < last; c += 32) {  // the pieces that this lane copied
      uint4* place = reinterpret_cast<uint4*>(memory.x + b * args.x_stride + c * 16);
      const uint4 v = *place;
      uint32_t words[4] = {v.x, v.y, v.z, v.w};
      float sum = 0.f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (norm != nullptr && c < stored)
          words[i] = weigh_pair<Element>(words[i], reinterpret_cast<const uint32_t*>(memory.norm + c * 16)[i], squares);
        const float2 rounded = Element::widen_pair(words[i]);
        sum += rounded.x + rounded.y;
      }
      *place = make_uint4(words[0], words[1], words[2], words[3]);
      if constexpr (kInt4) {
#pragma unroll
        for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        if (lane % 16 == 0) memory.x_sums[b * args.num_boxes * 2 + c / 16] = sum;
      }
    }
  }
  if (norm != nullptr) {
    squares = warp_sum(squares);
    if (lane == 0) memory.squares[warp] = squares;
  }
  __syncwarp();
}

// Adds the products of one box of 8-bit numbers to a warp's sums. `x` is the lane's row.
template <WeightKind KIND, class Element>
__device__ __forceinline__ void multiply_direct(const DirectBox<KIND>& w, const unsigned char* x, int box, int t, float (&sums)[4]) {
  const Element element;
  float part[4] = {};
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint4 columns = *reinterpret_cast<const uint4*>(x + box * 256 + p * 128 + t * 32 + q * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = word_of(w.pieces[half][p], 2 * q + i);
          if constexpr (KIND == WeightKind::float8) float8_pairs(element, word, a[half], a[half + 2]);
          else int8_pairs(element, word, a[half], a[half + 2]);
        }
        Element::multiply_add(part, a, word_of(columns, 2 * i), word_of(columns, 2 * i + 1));
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) sums[c] += __uint_as_float(w.scales[c / 2][0]) * part[c];
}

// The same of nibbles, whose zero points (and 128 or 1024 more) are taken away with the sums of x: `x_sums` of rows 2 t and 2 t + 1.
template <class Element>
__device__ __forceinline__ void multiply_nibbles(const DirectBox<WeightKind::int4>& w, const unsigned char* x,
                                                 const float* const (&x_sums)[2], int box, int t, float (&sums)[4]) {
  const Element element;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float part[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 columns = *reinterpret_cast<const uint4*>(x + box * 512 + h * 256 + t * 64 + j * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = word_of(w.pieces[half][h], j);
          a[half] = int4_pair(element, word, 2 * i);
          a[half + 2] = int4_pair(element, word, 2 * i + 1);
        }
        Element::multiply_add(part, a, word_of(columns, 2 * i), word_of(columns, 2 * i + 1));
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t bits = w.scales[c / 2][h];
      const float zero = nibble_base_value(element) + static_cast<float>(bits & 31u);
      sums[c] += __uint_as_float(bits & ~31u) * (part[c] - zero * x_sums[c % 2][box * 2 + h]);
    }
  }
}

// What one output needs beside its sum, read before the sums meet. `column` and `b` may lie outside, for threads without an output.
template <class Element>
struct DirectOutput {
  using T = typename Element::type;
  float scale = 1.f, up_scale = 1.f, added = 0.f;
  T* place = nullptr;

  __device__ __forceinline__ DirectOutput(const DirectParameters& args, int column, int b) {
    if (b >= args.batch) return;
    const int width = args.is_gated ? args.n / 2 : args.n;
    place = static_cast<T*>(args.out) + static_cast<size_t>(b) * width + column;
    if (args.row_scales != nullptr) {
      scale = __ldg(args.row_scales + column);
      if (args.is_gated) up_scale = __ldg(args.row_scales + args.n / 2 + column);
    }
    if (args.bias != nullptr) added = Element::widen(static_cast<const T*>(args.bias)[column]);
    if (args.adds) added += Element::widen(*place);
  }
};

// Waits for all sums of the block, adds those of its warps, scales, applies the epilogue, writes: one output a thread.
template <class Element>
__device__ __forceinline__ void finish_direct(const DirectParameters& args, const DirectMemory& memory) {
  const int out_rows = args.is_gated ? kDirectRows / 2 : kDirectRows;
  const int row = threadIdx.x % out_rows, b = threadIdx.x / out_rows;
  const DirectOutput<Element> output(args, blockIdx.x * out_rows + row, b);
  __syncthreads();
  if (output.place == nullptr) return;
  const auto total = [&](int r) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kDirectWarps; ++w) sum += memory.partial[(w * kDirectRows + r) * args.batch + b];
    return sum;
  };
  float norm = 1.f;
  if (args.norm_weight != nullptr) {
    float squares = 0.f;
#pragma unroll
    for (int w = 0; w < kDirectWarps; ++w) squares += memory.squares[w];
    norm = norm_scale<Element>(squares, args.k, args.eps);
  }
  float sum = total(row) * (output.scale * norm);
  if (args.is_gated) sum = sum / (1.f + __expf(-sum)) * (total(out_rows + row) * (output.up_scale * norm));
  *output.place = Element::narrow(sum + output.added);
}

template <WeightKind KIND, class Element, int DEPTH>
__global__ void __launch_bounds__(kDirectWarps * 32, DEPTH == 2 ? 3 : 2) quantised_direct_kernel(const __grid_constant__ DirectParameters args) {
  extern __shared__ uint4 shared[];
  constexpr bool kInt4 = KIND == WeightKind::int4;
  const DirectMemory memory(reinterpret_cast<unsigned char*>(shared), args, kInt4 ? args.num_boxes * 2 : 0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, tile = blockIdx.x;
  const int box0 = args.num_boxes * warp / kDirectWarps, box1 = args.num_boxes * (warp + 1) / kDirectWarps;
  const int rows[2] = {tile * (args.is_gated ? 8 : 16) + g, args.is_gated ? args.n / 2 + tile * 8 + g : tile * 16 + g + 8};
  launch_dependents();
  DirectBox<KIND> ahead[DEPTH];
#pragma unroll
  for (int i = 0; i < DEPTH; ++i) {
    if (box0 + i < box1) load_box<KIND>(args, rows, box0 + i, t, ahead[i]);
  }
  stage_x<KIND, Element>(args, memory, box0, box1, warp, lane);

  float sums[4] = {};
  // Rows past the batch repeat its last one: their products are never read.
  const unsigned char* x = memory.x + min(g, args.batch - 1) * args.x_stride;
  const float* const x_sums[2] = {memory.x_sums + min(2 * t, args.batch - 1) * args.num_boxes * 2,
                                  memory.x_sums + min(2 * t + 1, args.batch - 1) * args.num_boxes * 2};
  for (int base = box0; base < box1; base += DEPTH) {
#pragma unroll
    for (int i = 0; i < DEPTH; ++i) {
      const int box = base + i;
      if (box >= box1) break;
      if constexpr (kInt4) multiply_nibbles<Element>(ahead[i], x, x_sums, box, t, sums);
      else multiply_direct<KIND, Element>(ahead[i], x, box, t, sums);
      if (box + DEPTH < box1) load_box<KIND>(args, rows, box + DEPTH, t, ahead[i]);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int b = 2 * t + c % 2;
    if (b < args.batch) memory.partial[(warp * kDirectRows + g + c / 2 * 8) * args.batch + b] = sums[c];
  }
  finish_direct<Element>(args, memory);
}

}  // namespace xllm::kernels::cuda
