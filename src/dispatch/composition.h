// Kernels of several operations in turn, as one candidate or as one path of a layer. Each part is decided by decide(); the
// composition only adds up.
#pragma once
#include <tuple>
#include <utility>

#include "dispatch/catalog.h"
#include "dispatch/decide.h"

namespace sluice {

// One part: an operation, and what it computes.
template <class Op>
struct PartOf {
  using Operation = Op;
  typename Op::Problem problem;
};

// What the parts cost together; every reason of every part that has no kernel.
struct PartsCost {
  Refusal refusal = {};
  double us = 0;
};
template <class... Ops>
PartsCost cost_of_parts(const DeviceInfo& device, const Catalog& catalog, const Policy& policy,
                        const PartOf<Ops>&... parts) {
  PartsCost out;
  const auto add = [&]<class Op>(const PartOf<Op>& part) {
    const auto table = catalog.table<Op>();
    const Decision d = decide<Op>(part.problem, device, table, policy_for<Op>(policy, table));
    if (d.chosen < 0) {
      out.refusal.need(false, "a kernel for " + std::string(Op::kName), d.status().message);
    } else {
      out.us += d.choice().cost_us;
    }
  };
  (add(parts), ...);
  return out;
}

// The variant of "cuda.router_gemm.splitk_sm90": splitk_sm90.
inline std::string_view variant_of(std::string_view candidate) {
  return candidate.substr(candidate.rfind('.') + 1);
}

// A candidate that runs kernels of other operations in turn. `How` says
//
//   using Op, Parts = std::tuple<OpA, OpB, ...>
//   static std::tuple<PartOf<OpA>, PartOf<OpB>, ...> parts(const Op::Problem&)
//   static size_t between_bytes(const Op::Problem&, Backend)          what stands between the parts
//   static std::tuple<OpA::Args, ...> args(const Op::Problem&, const Op::Args&, std::byte* between, Backend)
//   static const Catalog& catalog()
//
// Its configurations are all choices of a candidate for each part, each with its own best configuration; the launches of a
// configuration are those of its parts. Parts share one scratch: each starts when the part before it no longer uses it.
template <class How>
struct InTurn {
  using Op = typename How::Op;
  using Problem = typename Op::Problem;
  using Parts = typename How::Parts;
  static constexpr size_t kParts = std::tuple_size_v<Parts>;

  static Refusal supports(const Problem& problem, const DeviceInfo& device) {
    Refusal out;
    each_part([&]<size_t kPart>() {
      using P = std::tuple_element_t<kPart, Parts>;
      const Decision d = decide<P>(std::get<kPart>(How::parts(problem)).problem, device, table<P>());
      if (own_rows<P>(d).empty())
        out.need(false, "a kernel for " + std::string(P::kName), why_none<P>(d, device));
    });
    return out;
  }

  static std::vector<Config> configs(const Problem& problem, const DeviceInfo& device, const Policy& policy) {
    const auto parts = How::parts(problem);
    std::vector<Config> out = {Config{}};
    each_part([&]<size_t kPart>() {
      using P = std::tuple_element_t<kPart, Parts>;
      const Decision d =
          decide<P>(std::get<kPart>(parts).problem, device, table<P>(), policy_for<P>(policy, table<P>()));
      std::vector<Config> more;
      const auto rows = own_rows<P>(d);
      for (const Config& before : out)
        for (const size_t row : rows)
          more.push_back(with(before, d.verdicts[row], kPart, static_cast<int>(row)));
      if (more.empty()) {
        more = std::move(out);
        for (Config& one : more)
          one.refusal.need(false, "a kernel for " + std::string(P::kName), why_none<P>(d, device));
      }
      out = std::move(more);
    });
    for (Config& one : out) one.workspace_bytes += How::between_bytes(problem, device.backend);
    return out;
  }

  static Status enqueue_config(const Problem& problem, std::span<const KernelLaunch> launches,
                               const typename Op::Args& args, Workspace w, Stream s) {
    const auto parts = How::parts(problem);
    const auto of_parts = How::args(problem, args, w.data, s.where);
    const size_t between = How::between_bytes(problem, s.where);
    const Workspace rest{w.data + between, w.bytes - between};
    Status status;
    each_part([&]<size_t kPart>() {
      if (!status.ok()) return;
      using P = std::tuple_element_t<kPart, Parts>;
      size_t own = 0;
      while (own < launches.size() && launches[own].part == static_cast<int>(kPart)) ++own;
      const Candidate<P>* c = table<P>()[static_cast<size_t>(launches[0].candidate)];
      status = enqueue(*c, std::get<kPart>(parts).problem, launches.first(own), std::get<kPart>(of_parts),
                       rest, s);
      launches = launches.subspan(own);
    });
    return status;
  }

  static std::string launch_text(const Problem& problem, const KernelLaunch& launch) {
    std::string out;
    each_part([&]<size_t kPart>() {
      if (launch.part != static_cast<int>(kPart)) return;
      using P = std::tuple_element_t<kPart, Parts>;
      const Candidate<P>* c = table<P>()[static_cast<size_t>(launch.candidate)];
      out = c->name;
      if (c->launch_text) out += ": " + c->launch_text(std::get<kPart>(How::parts(problem)).problem, launch);
    });
    return out;
  }

  static Candidate<Op> card(std::string_view name, Backend backend, int alignment_bytes,
                            bool planned = false) {
    return {.name = name,
            .backend = backend,
            .supports = supports,
            .configs = configs,
            .enqueue_config = enqueue_config,
            .launch_text = launch_text,
            .batch_invariant = true,  // as far as the parts that the policy lets through are
            .config_decides_bits = true,
            .alignment_bytes = alignment_bytes,
            .planned = planned,
            .parts = kNames};
  }

 private:
  static constexpr std::array<std::string_view, kParts> kNames =
      []<size_t... kPart>(std::index_sequence<kPart...>) {
    return std::array<std::string_view, kParts>{std::tuple_element_t<kPart, Parts>::kName...};
  }
  (std::make_index_sequence<kParts>());

  template <class P>
  static std::span<const Candidate<P>* const> table() {
    return How::catalog().template table<P>();
  }
  // Candidates of a part that run, compositions left out: their launches have parts of their own.
  template <class P>
  static std::vector<size_t> own_rows(const Decision& d) {
    std::vector<size_t> out;
    for (size_t row = 0; row < d.verdicts.size(); ++row)
      if (d.verdicts[row].config >= 0 && table<P>()[row]->parts.empty()) out.push_back(row);
    return out;
  }
  // The reasons of the device's candidates; where a composition runs, of those that are none.
  template <class P>
  static std::string why_none(const Decision& d, const DeviceInfo& device) {
    if (d.chosen < 0) return d.status().message;
    std::string out;
    for (size_t row = 0; row < d.verdicts.size(); ++row) {
      const Verdict& v = d.verdicts[row];
      if (table<P>()[row]->backend != device.backend || !table<P>()[row]->parts.empty()) continue;
      out += (out.empty() ? "" : "; ") + std::string(v.candidate) + ": " + v.refusal.line();
    }
    return out;
  }
  template <class Visit>
  static void each_part(Visit visit) {
    [&]<size_t... kPart>(std::index_sequence<kPart...>) { (visit.template operator()<kPart>(), ...); }
    (std::make_index_sequence<kParts>());
  }
  // `before` with one part more: a candidate's best configuration.
  static Config with(Config before, const Verdict& v, size_t part, int row) {
    const Config& best = v.configs[static_cast<size_t>(v.config)];
    if (!before.name.empty()) before.name += '+';
    before.name += variant_of(v.candidate);
    before.cost_us += best.cost_us;
    before.workspace_bytes = std::max(before.workspace_bytes, best.workspace_bytes);
    LaunchList launches = best.launches;
    if (launches.empty()) launches.emplace_back();
    for (KernelLaunch& launch : launches) {
      launch.part = static_cast<int>(part), launch.candidate = row;
      before.launches.push_back(launch);
    }
    return before;
  }
};

}  // namespace sluice
