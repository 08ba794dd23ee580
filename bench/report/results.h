// The rows that a benchmark writes and the report reads: CSV without quotes, one header, one row a measurement.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice::bench {

struct Row {
  std::string suite;   // "router": the stem of the file
  std::string op;      // "router_gemm"
  std::string model;   // a name of known_moe(), or a shape: "2880x128", "256x8-deepseek_v3" (experts x top_k)
  int64_t tokens = 0;  // 1 or more
  std::string impl;    // "sluice", "sluice-..." for another way of ours, a peer, or a candidate
  std::string version;                           // of ours a commit, of a peer its release
  double median_us = 0, p10_us = 0, p90_us = 0;  // of one run of the operation
  double bytes = 0, flops = 0;                   // what its contract must move and multiply
  std::string note;  // rows are compared if they share op, model, tokens and compared_note()
  bool operator==(const Row&) const = default;
};

constexpr std::string_view kCsvHeader =
    "suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note";

// A note up to "; ": what stands behind it is the row's own, as a P99.
std::string_view compared_note(std::string_view note);
std::string_view remark_of(std::string_view note);  // what stands behind "; "; empty if nothing does

// Somebody else's words as a field: what parse_csv() refuses there becomes a space or a semicolon.
std::string csv_word(std::string_view text);

// One line, with its end. kInvalidArgument names a field that holds a comma, a quote or the end of a line.
Result<std::string> csv_line(const Row& row);

// All rows of `text`, in its order. kCorrupt says "NAME:LINE: wanted ..., found ...": another header, too few or too many
// fields, a number that is none, quantiles out of order, another suite, one measurement twice, rows that are compared
// but disagree about bytes or flops, no row at all.
Result<std::vector<Row>> parse_csv(std::string_view text, const std::string& name, std::string_view suite);

}  // namespace sluice::bench
