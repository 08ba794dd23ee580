#include "cuda/routes.h"

#include <algorithm>
#include <cmath>

namespace sluice::bench {
namespace {

constexpr int64_t kRows = 64;  // rows checked at each end, because references are slow

Tensor rows_of(Tensor t, int64_t first, int64_t count) {
  if (!t.present()) return t;
  t.data = static_cast<std::byte*>(t.data) + bytes_of(t.dtype, first * t.stride[0]);
  t.shape[0] = count;
  return t;
}

// Checks a baseline's experts, in any order, against the reference: one row in a hundred may differ.
Result<std::string> check_peer(Device& device, const RouteTopk::Problem& p, const RouteTopk::Args& args) {
  constexpr double kWeightShare = 1e-2, kOtherRows = 0.01;
  HostTensor logits, bias, ids, weights;
  SLUICE_TRY(to_host(device, args.logits, &logits));
  if (p.bias) SLUICE_TRY(to_host(device, args.bias, &bias));
  SLUICE_TRY(to_host(device, args.ids, &ids));
  SLUICE_TRY(to_host(device, args.weights, &weights));
  RouteTopk::Args host;
  host.logits = logits.tensor;
  host.bias = bias.tensor;
  host.ids = ids.tensor;
  host.weights = weights.tensor;
  const Expectations want = reference(p, host);
  const auto named = [&](std::string_view slot) -> const Expected& {
    return *std::find_if(want.begin(), want.end(), [&](const Expected& e) { return e.slot == slot; });
  };
  const std::vector<double>&want_ids = named("ids").value, &want_weights = named("weights").value;
  int64_t other = 0;
  for (int64_t t = 0; t < p.tokens; ++t) {
    bool same = true;
    for (int64_t k = 0; k < p.top_k; ++k) {
      const size_t at = static_cast<size_t>(t * p.top_k + k);
      const auto begin = want_ids.begin() + t * p.top_k, end = begin + p.top_k;
      const auto found = std::find(begin, end, static_cast<double>(ids.tensor.as<int32_t>()[at]));
      if (found == end) {
        same = false;
        continue;
      }
      const double w = want_weights[static_cast<size_t>(found - want_ids.begin())];
      same &= std::abs(static_cast<double>(weights.tensor.as<float>()[at]) - w) <= kWeightShare * std::abs(w);
    }
    other += !same;
  }
  if (static_cast<double>(other) <= kOtherRows * static_cast<double>(p.tokens)) return std::string();
  return std::to_string(other) + " of " + std::to_string(p.tokens) + " tokens have other experts or weights";
}

}  // namespace

Status make_tensors(Memory& memory, const RouteGroup::Problem& problem, RouteGroup::Args* out) {
  Status status;
  RouteGroup::slots(problem, [&](const SlotSpec& spec, Tensor RouteGroup::Args::*member) {
    if (!spec.used || !status.ok()) return;
    Tensor& t = out->*member;
    status = memory.tensor(spec, &t);
    if (status.ok() && spec.role == Role::kIn) status = memory.fill(t, 1);
  });
  return status;
}

Result<std::string> check_routes(Device& device, const RouteTopk::Problem& problem,
                                 const RouteTopk::Args& args, Who who) {
  const int64_t count = std::min(kRows, problem.tokens);
  for (const int64_t first : {int64_t{0}, problem.tokens - count}) {
    RouteTopk::Args some = args;
    for (Tensor* t : {&some.logits, &some.ids, &some.weights}) *t = rows_of(*t, first, count);
    const RouteTopk::Problem p = RouteTopk::at_tokens(problem, count);
    const Result<std::string> wrong =
        who == Who::kPeer ? check_peer(device, p, some) : check_all<RouteTopk>(device, p, some);
    if (!wrong.ok() || !wrong.value().empty()) return wrong;
  }
  return std::string();
}

Result<std::string> check_groups(Device& device, const GroupRows::Problem& problem,
                                 const GroupRows::Args& args) {
  return check_all<GroupRows>(device, problem, args);
}

Status poison_routes(const RouteGroup::Problem& problem, const RouteGroup::Args& args, Stream stream) {
  Status status;
  RouteGroup::slots(problem, [&](const SlotSpec& spec, Tensor RouteGroup::Args::*member) {
    if (spec.used && spec.role == Role::kOut && status.ok()) status = poison(args.*member, stream);
  });
  return status;
}

}  // namespace sluice::bench
