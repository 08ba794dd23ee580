// Exchange of rows between ranks (GPUs). Every word carries its own arrival flag.
//
// A word of 16 bytes carries 8 bytes of a row: {first half, number, second half, number}. The number
// is the index of the exchange; every lane counts exchanges from 1. A rank stores words to the other
// ranks' windows and polls its own window until both numbers match. A half arrives together with its
// number, because stores of 8 bytes are not split. So neither a fence nor a separate flag is needed.
//
// Slots. A lane keeps the words of Wire::kDepth = 4 exchanges; exchange e + 1 overwrites the
// words of e - 3. A rank is at most one exchange ahead: it may send e + 1 before it has
// received e, but after it has received e - 1. By then every rank has sent e - 1, and a rank
// sends e - 1 only after it has received e - 3. So no rank still reads the words of e - 3.
//
// A rank that fails sets a word in host memory. Ranks that wait poll this word at
// intervals; once it is set, they stop waiting and continue with the data that they have.
#pragma once
#include <cstdint>

#include "backends/cuda/group/group.h"

namespace sluice::cuda::tile {

// Polls for a word between two looks at the word that stops the group.
constexpr unsigned kLooks = 4096;

class Exchange {
 public:
  __device__ __forceinline__ Exchange(const Wire& wire, int lane) : wire_(wire), lane_(lane) {
    if (wire.exchanges) number_ = *static_cast<volatile uint32_t*>(wire.exchanges + lane);
  }
  __device__ __forceinline__ void next() { ++number_; }
  // Stores the counter of exchanges. Call this once, after all exchanges, when every thread of the CTA has read the counter.
  __device__ __forceinline__ void keep_count() const {
    if (wire_.exchanges) wire_.exchanges[lane_] = number_;
  }

  // Sends a word of this rank's row to rank `to`. ahead: the word belongs to the next exchange.
  __device__ __forceinline__ void send(int to, int region, int word, uint2 value, bool ahead = false) const {
    const uint32_t number = number_ + ahead;
    uint4* at = wire_.windows_of[to] + place(region, wire_.rank, number) + word;
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"(value.x), "r"(number),
                 "r"(value.y)
                 : "memory");
  }
  // Waits for a word of the row of rank `from`.
  __device__ __forceinline__ uint2 receive(int from, int region, int word) {
    const uint4* at = wire_.window + place(region, from, number_) + word;
    uint4 got;
    unsigned looks = 0;
    do {
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(got.x), "=r"(got.y), "=r"(got.z), "=r"(got.w)
                   : "l"(at)
                   : "memory");
      if (++looks % kLooks == 0) stopped_ |= *static_cast<const volatile uint32_t*>(wire_.stopped) != 0;
    } while ((got.y != number_ || got.w != number_) && !stopped_);
    return {got.x, got.z};
  }

 private:
  __device__ __forceinline__ int64_t place(int region, int from, uint32_t number) const {
    const int64_t slot = (static_cast<int64_t>(region) * wire_.ranks + from) * wire_.lanes + lane_;
    return (slot * Wire::kDepth + number % Wire::kDepth) * wire_.row_words;
  }

  const Wire& wire_;
  const int lane_;
  uint32_t number_ = 0;
  bool stopped_ = false;
};

}  // namespace sluice::cuda::tile
