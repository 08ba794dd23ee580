// Exchange of rows between ranks, in words that carry their own arrival flags.
//
// A word of 16 bytes carries 8 bytes of a row: {first half, number, second half, number}. The number is the
// number of the exchange, which each lane counts from 1. A rank stores words into the other ranks' windows
// and reads its own window until both numbers match. Each half arrives together with its number, because
// stores of 8 bytes are not divided. So no fence is needed, and no flag that follows the data.
//
// Slots. A lane keeps the words of Wire::kDepth exchanges. A rank sends at most one exchange ahead: the words
// of e + 1 before it has received the words of e. When it sends e + 1, it has received the words of e - 1, so
// every other rank has sent e - 1. Every rank sends e - 1 only after it has received e - 3. The slot of e + 1
// holds the words of e - 3, which no rank reads any more.
//
// A rank that fails sets a word of host memory. Waiting ranks poll this word now and then, stop waiting and
// compute with the data that they have.
#pragma once
#include <cstdint>

#include "backends/cuda/group/group.h"

namespace sluice::cuda::tile {

// The number of polls for a word between two checks whether the group has been stopped.
constexpr unsigned kLooks = 4096;

class Exchange {
 public:
  __device__ __forceinline__ Exchange(const Wire& wire, int lane) : wire_(wire), lane_(lane) {
    if (wire.exchanges) number_ = *static_cast<volatile uint32_t*>(wire.exchanges + lane);
  }
  __device__ __forceinline__ void next() { ++number_; }
  // Call this once, after all exchanges, when every thread of the CTA has read the counter.
  __device__ __forceinline__ void keep_count() const {
    if (wire_.exchanges) wire_.exchanges[lane_] = number_;
  }

  // Sends a word of this rank's row to a rank. ahead: the word belongs to the next exchange.
  __device__ __forceinline__ void send(int to, int region, int word, uint2 value, bool ahead = false) const {
    const uint32_t number = number_ + ahead;
    uint4* at = wire_.windows_of[to] + place(region, wire_.rank, number) + word;
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(at), "r"(value.x), "r"(number),
                 "r"(value.y)
                 : "memory");
  }
  // Waits for a word of a rank's row.
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
