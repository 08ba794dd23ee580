// The weight formats that kernels decode in registers: the codes and scales that a thread of a
// warpgroup loads for one k block of 64 weight rows in the layout `fragments`, and their conversion
// to tensor core operands. There is one type per format, which the tile and the stream kernels share.
#pragma once
#include "backends/cuda/tile/e4m3_fragments.cuh"
#include "backends/cuda/tile/fp8_operand.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/shared.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"
#include "ops/fragment_layout.h"

namespace sluice::cuda {

// Sizes and offsets that all formats compute in the same way.
template <DType kW, WeightScales kS>
struct CodesOf {
  static constexpr WeightFormat kFormat{kW, kS};
  static constexpr int kCodeBytes = static_cast<int>(fragment_code_bytes(kW)),
                       kScaleBytes = static_cast<int>(fragment_scale_bytes(kFormat));  // per k block
  // Whether a row's sum is multiplied by an f32 factor from memory. If not, the
  // factor is a power of two that is computed from the row's largest scale.
  static constexpr bool kHasFactors = kS != WeightScales::kMx;
  // Whether sums are rescaled before each k block (to the scale
  // of that block) and multiplied by the last scale at the end.
  static constexpr bool kRescales = kS == WeightScales::kBlocks;
  // The tensor core instruction: its operands' types, and how many of them a k block takes.
  static constexpr tile::Operands kOperands = tile::Operands::kBF16;
  static constexpr int kProducts = 4;
  // Sums are in units of this times the rows' factors.
  static constexpr float kUnit = 1;

  // Byte offsets within a k block of the codes and scales of thread `lane` in slab `slab` (16 rows).
  static __device__ __forceinline__ uint32_t codes_at(uint32_t slab, uint32_t lane) {
    return (slab * 32 + lane) * 16;
  }
  static __device__ __forceinline__ uint32_t scales_at(uint32_t slab, uint32_t lane) {
    if constexpr (kRescales) return slab / 2 * 8;
    return (slab * 8 + lane / 4) * (kScaleBytes / 32);
  }
  // The factor of a row's sum: the f32 in `word`, or a power of two from byte `byte` of `word`, which holds the largest scales of four rows.
  static __device__ __forceinline__ float factor(uint32_t word, int byte) {
    if constexpr (kHasFactors) return __uint_as_float(word);
    const uint32_t top = word >> (byte * 8) & 0xff;
    return kW == DType::kE4M3 ? tile::row_factor8(top) : tile::row_factor(top);
  }
};

// Sixteen bytes of codes: four k16 steps of e2m1.
struct CodeWords4 {
  uint4 words;
  __device__ __forceinline__ void load(uint32_t at) { words = tile::load_shared(at); }
  template <int kStep>
  __device__ __forceinline__ uint32_t word() const {
    return kStep == 0 ? words.x : kStep == 1 ? words.y : kStep == 2 ? words.z : words.w;
  }
};
// Twice sixteen bytes of codes: four k16 steps of e4m3, two words each.
struct CodeWords8 {
  uint4 words[2];
  __device__ __forceinline__ void load(uint32_t at) {
    words[0] = tile::load_shared(at);
    words[1] = tile::load_shared(at + kFragmentThreads * 16);
  }
  template <int kStep>
  __device__ __forceinline__ void decode(uint32_t (&a)[4], __nv_bfloat162 scale) const {
    const uint4& two = words[kStep / 2];
    tile::decode_fragment8(a, kStep % 2 == 0 ? two.x : two.z, kStep % 2 == 0 ? two.y : two.w, scale);
  }
};

struct Mxfp4Codes : CodesOf<DType::kE2M1, WeightScales::kMx> {
  struct Block {
    CodeWords4 codes;
    uint32_t scale;
    __device__ __forceinline__ void load(uint32_t codes_at, uint32_t scales_at) {
      codes.load(codes_at), scale = tile::load_shared_word(scales_at);
    }
    template <int kStep>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      tile::decode_fragment(a, codes.word<kStep>(), tile::scale_pair<kStep / 2>(scale));
    }
  };
};

struct Nvfp4Codes : CodesOf<DType::kE2M1, WeightScales::kNv> {
  struct Block {
    CodeWords4 codes;
    uint2 scale;
    __device__ __forceinline__ void load(uint32_t codes_at, uint32_t scales_at) {
      codes.load(codes_at), scale = tile::load_shared_pair(scales_at);
    }
    template <int kStep>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      tile::decode_fragment(a, codes.word<kStep>(), tile::nv_pair<kStep>(kStep < 2 ? scale.x : scale.y));
    }
  };
};

struct Mxfp8Codes : CodesOf<DType::kE4M3, WeightScales::kMx> {
  struct Block {
    CodeWords8 codes;
    uint32_t scale;
    __device__ __forceinline__ void load(uint32_t codes_at, uint32_t scales_at) {
      codes.load(codes_at), scale = tile::load_shared_word(scales_at);
    }
    template <int kStep>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      codes.decode<kStep>(a, tile::scale_pair<kStep / 2>(scale));
    }
  };
};

struct Fp8RowCodes : CodesOf<DType::kE4M3, WeightScales::kRows> {
  struct Block {
    CodeWords8 codes;
    __device__ __forceinline__ void load(uint32_t codes_at, uint32_t) { codes.load(codes_at); }
    template <int kStep>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      codes.decode<kStep>(a, tile::value_pair());
    }
  };
};

struct Fp8BlockCodes : CodesOf<DType::kE4M3, WeightScales::kBlocks> {
  struct Block {
    CodeWords8 codes;
    uint2 scale, factor;  // f32 of the thread's row and of the row 8 below it
    __device__ __forceinline__ void load(uint32_t codes_at, uint32_t scales_at) {
      codes.load(codes_at);
      scale = tile::load_shared_pair(scales_at), factor = tile::load_shared_pair(scales_at + 16);
    }
    template <int kStep>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      codes.decode<kStep>(a, tile::value_pair());
    }
  };
};

// The same bytes as operands of FP8 products, with rows of x in e4m3; a product takes 32 values of k.

// A weight is decoded to e5m2 as its code times 2^(scale - top + 13), exact from scale - top = -28 on.
struct Mxfp4Fp8Codes : Mxfp4Codes {
  static constexpr tile::Operands kOperands = tile::Operands::kE5M2AndE4M3;
  static constexpr int kProducts = 2;
  static constexpr float kUnit = 0x1p-12f;  // row_factor() is for codes times 2^(scale - top + 1)
  struct Block : Mxfp4Codes::Block {
    template <int kProduct>
    __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
      // Brings the bf16 results to exponent fields below 32, for e5m2_bytes().
      const __nv_bfloat162 multiplier =
          __hmul2(tile::scale_pair<kProduct>(scale), tile::as_pair(0x0D800D80u));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t pairs[4];
        tile::decode_fragment(
            pairs, h == 0 ? codes.template word<2 * kProduct>() : codes.template word<2 * kProduct + 1>(),
            multiplier);
        a[2 * h] = tile::e5m2_bytes(pairs[0], pairs[2]);
        a[2 * h + 1] = tile::e5m2_bytes(pairs[1], pairs[3]);
      }
    }
  };
};

// e4m3 codes are operands as they are (tile/operands.cuh).
template <class Codes>
struct Fp8Codes : Codes {
  static constexpr tile::Operands kOperands = tile::Operands::kE4M3;
  static constexpr int kProducts = 2;
};

}  // namespace sluice::cuda
