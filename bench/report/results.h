// The rows that a benchmark writes and the report reads: CSV without quotes, one header, one row per measurement.
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
  std::string
      impl;  // "sluice", "sluice-..." for another combination of its kernels, a library, or one kernel
  std::string version;                           // a commit for Sluice, a release for a baseline
  double median_us = 0, p10_us = 0, p90_us = 0;  // per run of the operation
  double bytes = 0, flops = 0;                   // the minimum that the operation's contract allows
  std::string note;  // rows are compared if they share op, model, tokens and compared_note()
  bool operator==(const Row&) const = default;
};

constexpr std::string_view kCsvHeader =
    "suite,op,model,tokens,impl,version,median_us,p10_us,p90_us,bytes,flops,note";

// A note up to "; ". The rest belongs to the row alone, such as a P99.
std::string_view compared_note(std::string_view note);
std::string_view remark_of(std::string_view note);  // the part after "; ", or empty

// Arbitrary text as a field: characters that parse_csv() rejects become spaces or semicolons.
std::string csv_word(std::string_view text);

// One line, with its line end. kInvalidArgument names a field that holds a comma, a quote or a line end.
Result<std::string> csv_line(const Row& row);

// All rows of `text`, in order. kCorrupt says "NAME:LINE: wanted ..., found ..." for another header, too few or too many
// fields, an invalid number, quantiles out of order, another suite, a repeated measurement, compared rows that disagree about
// bytes or flops, or a file without rows.
Result<std::vector<Row>> parse_csv(std::string_view text, const std::string& name, std::string_view suite);

}  // namespace sluice::bench
