// The compiled tiles of FlashInfer's MXFP4 GEMM for Hopper: 24 of the 116 that its tuner tries, so that every number of tokens per expert
// has suitable tiles. As in the tuner, tiles of 64 rows use the ping-pong schedule and larger tiles the cooperative one.
#pragma once

// T(rows of weights, tokens, k, cluster CTAs along rows, along tokens, schedule), in lists that are compiled in parallel.
#define SLUICE_FLASHINFER_TILES_1(T) \
  T(64, 16, 128, 1, 1, Pingpong)     \
  T(64, 32, 128, 1, 1, Pingpong)     \
  T(128, 16, 128, 1, 1, Cooperative) \
  T(128, 32, 128, 1, 1, Cooperative)
#define SLUICE_FLASHINFER_TILES_2(T)  \
  T(64, 64, 128, 1, 1, Pingpong)      \
  T(128, 64, 128, 1, 1, Cooperative)  \
  T(128, 128, 128, 1, 1, Cooperative) \
  T(128, 128, 128, 2, 1, Cooperative)
#define SLUICE_FLASHINFER_TILES_3(T)  \
  T(128, 64, 256, 1, 1, Cooperative)  \
  T(128, 256, 128, 1, 1, Cooperative) \
  T(128, 256, 128, 2, 1, Cooperative) \
  T(64, 128, 128, 1, 1, Pingpong)
#define SLUICE_FLASHINFER_TILES_4(T)  \
  T(256, 128, 128, 1, 1, Cooperative) \
  T(256, 128, 128, 1, 2, Cooperative) \
  T(128, 256, 128, 1, 2, Cooperative) \
  T(64, 16, 256, 1, 1, Pingpong)
#define SLUICE_FLASHINFER_TILES_5(T) \
  T(128, 16, 256, 1, 1, Cooperative) \
  T(128, 32, 256, 1, 1, Cooperative) \
  T(64, 32, 256, 1, 1, Pingpong)     \
  T(128, 128, 256, 1, 1, Cooperative)
#define SLUICE_FLASHINFER_TILES_6(T) \
  T(64, 16, 512, 1, 1, Pingpong)     \
  T(128, 16, 512, 1, 1, Cooperative) \
  T(64, 64, 256, 1, 1, Pingpong)     \
  T(128, 16, 128, 2, 1, Cooperative)
#define SLUICE_FLASHINFER_TILES(T) \
  SLUICE_FLASHINFER_TILES_1(T)     \
  SLUICE_FLASHINFER_TILES_2(T)     \
  SLUICE_FLASHINFER_TILES_3(T)     \
  SLUICE_FLASHINFER_TILES_4(T)     \
  SLUICE_FLASHINFER_TILES_5(T)     \
  SLUICE_FLASHINFER_TILES_6(T)
