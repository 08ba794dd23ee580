// The compiled tiles of FlashInfer's bf16 GEMM for Hopper. Its tuner tries 45 tiles for the first GEMM and 81 for the second;
// these are the tiles that suit some number of tokens per expert.
#pragma once

// Hopper tiles with tile_k = 64, in lists that are compiled in parallel. T(weights are the left operand, epilogue, rows, columns, cluster
// CTAs along rows, along columns). FINALIZE sums a token's experts in the epilogue; NONE leaves the sum to a later kernel.
#define SLUICE_FLASHINFER_TILES_1(T) \
  T(true, NONE, 128, 16, 1, 1)       \
  T(true, NONE, 128, 32, 1, 1)       \
  T(true, NONE, 128, 64, 1, 1)       \
  T(true, NONE, 128, 128, 1, 1)
#define SLUICE_FLASHINFER_TILES_2(T) \
  T(true, FINALIZE, 128, 16, 1, 1)   \
  T(true, FINALIZE, 128, 32, 1, 1)   \
  T(true, FINALIZE, 128, 64, 1, 1)   \
  T(true, FINALIZE, 128, 128, 1, 1)
#define SLUICE_FLASHINFER_TILES_3(T) \
  T(false, NONE, 128, 128, 2, 1)     \
  T(false, NONE, 128, 256, 1, 1)     \
  T(false, NONE, 128, 256, 2, 1)     \
  T(false, NONE, 256, 128, 1, 1)
#define SLUICE_FLASHINFER_TILES_4(T) \
  T(false, FINALIZE, 128, 128, 2, 1) \
  T(false, FINALIZE, 128, 256, 1, 1) \
  T(false, FINALIZE, 128, 256, 2, 1) \
  T(false, FINALIZE, 256, 128, 1, 1)
#define SLUICE_FLASHINFER_TILES_5(T) \
  T(true, NONE, 128, 256, 1, 1)      \
  T(true, NONE, 256, 128, 1, 1)      \
  T(true, NONE, 256, 128, 2, 1)      \
  T(true, NONE, 128, 16, 2, 1)
#define SLUICE_FLASHINFER_TILES_6(T) \
  T(false, NONE, 128, 256, 1, 2)     \
  T(false, NONE, 256, 128, 1, 2)     \
  T(false, NONE, 256, 128, 2, 1)     \
  T(true, NONE, 128, 128, 2, 1)
#define SLUICE_FLASHINFER_TILES_7(T) \
  T(true, FINALIZE, 256, 128, 1, 1)  \
  T(true, FINALIZE, 256, 128, 2, 1)  \
  T(true, FINALIZE, 128, 256, 1, 1)  \
  T(true, FINALIZE, 128, 16, 2, 1)
#define SLUICE_FLASHINFER_TILES_8(T) \
  T(true, FINALIZE, 128, 32, 2, 1)   \
  T(true, NONE, 128, 32, 2, 1)       \
  T(true, NONE, 128, 64, 2, 1)       \
  T(false, FINALIZE, 128, 256, 1, 2)
#define SLUICE_FLASHINFER_TILES(T) \
  SLUICE_FLASHINFER_TILES_1(T)     \
  SLUICE_FLASHINFER_TILES_2(T)     \
  SLUICE_FLASHINFER_TILES_3(T)     \
  SLUICE_FLASHINFER_TILES_4(T)     \
  SLUICE_FLASHINFER_TILES_5(T)     \
  SLUICE_FLASHINFER_TILES_6(T)     \
  SLUICE_FLASHINFER_TILES_7(T)     \
  SLUICE_FLASHINFER_TILES_8(T)

// Ampere tiles of 128 columns with tile_k = 64, which the tuner tries on Hopper too. T(rows, stages).
#define SLUICE_FLASHINFER_AMPERE_TILES(T) \
  T(32, 3)                                \
  T(32, 4)                                \
  T(64, 4)
