// The compositions that every backend has: operations whose contract is that of others in turn. kCatalog answers the backend's
// candidates, of which each part takes the best.
//
// Wins    where no kernel does all of it, and with many tokens: the parts are then all there is.
// Loses   launches and their ramps, to a kernel that does all.
// Limits  those of the kernels.
#pragma once
#include "dispatch/composition.h"
#include "dispatch/expert_mlp_between.h"
#include "ops/combine_norm.h"
#include "ops/grouped_mlp.h"
#include "ops/linear_argmax.h"
#include "ops/norm_router_route.h"
#include "ops/qk_norm_rope_kv_write.h"

namespace sluice {

template <const Catalog& (*kCatalog)()>
struct ExpertMlpParts {
  using Op = ExpertMlp;
  using Parts = std::tuple<GroupRows, ExpertGemm, ExpertGemm, Combine>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const ExpertMlp::Problem& p) {
    return std::tuple(PartOf<GroupRows>{ExpertMlp::group(p)}, PartOf<ExpertGemm>{ExpertMlp::up(p)},
                      PartOf<ExpertGemm>{ExpertMlp::down(p)}, PartOf<Combine>{ExpertMlp::combine(p)});
  }
  static size_t between_bytes(const ExpertMlp::Problem& p, Backend where) {
    return ExpertMlpBetween::at(nullptr, p, where).bytes;
  }
  static auto args(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, std::byte* between, Backend where) {
    const ExpertMlpBetween b = ExpertMlpBetween::at(between, p, where);
    return std::tuple(ExpertMlp::group(a, b.groups), ExpertMlp::up(p, a, b.groups, b.h),
                      ExpertMlp::down(a, b.groups, b.h, b.g), ExpertMlp::combine(p, a, b.groups, b.g));
  }
};

// The same with both products as one part.
template <const Catalog& (*kCatalog)()>
struct ExpertMlpGroupedParts {
  using Op = ExpertMlp;
  using Parts = std::tuple<GroupRows, GroupedMlp, Combine>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const ExpertMlp::Problem& p) {
    return std::tuple(PartOf<GroupRows>{ExpertMlp::group(p)}, PartOf<GroupedMlp>{GroupedMlp::of(p)},
                      PartOf<Combine>{ExpertMlp::combine(p)});
  }
  static size_t between_bytes(const ExpertMlp::Problem& p, Backend where) {
    return ExpertMlpBetween::at(nullptr, p, where, true).bytes;
  }
  static auto args(const ExpertMlp::Problem& p, const ExpertMlp::Args& a, std::byte* between, Backend where) {
    const ExpertMlpBetween b = ExpertMlpBetween::at(between, p, where, true);
    return std::tuple(ExpertMlp::group(a, b.groups), GroupedMlp::of(p, a, b.groups, b.g),
                      ExpertMlp::combine(p, a, b.groups, b.g));
  }
};

template <const Catalog& (*kCatalog)()>
struct GroupedMlpParts {
  using Op = GroupedMlp;
  using Parts = std::tuple<ExpertGemm, ExpertGemm>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const GroupedMlp::Problem& p) {
    return std::tuple(PartOf<ExpertGemm>{GroupedMlp::up(p)}, PartOf<ExpertGemm>{GroupedMlp::down(p)});
  }
  static Tensor h_of(const GroupedMlp::Problem& p, std::byte* between, Backend where) {
    return make_tensor(between, p.mlp.x, {GroupedMlp::rows(p), p.mlp.intermediate}, where);
  }
  static size_t between_bytes(const GroupedMlp::Problem& p, Backend where) {
    const Tensor h = h_of(p, nullptr, where);
    return Arena::footprint(static_cast<size_t>(bytes_of(h.dtype, elements_of(h))));
  }
  static auto args(const GroupedMlp::Problem& p, const GroupedMlp::Args& a, std::byte* between,
                   Backend where) {
    const Tensor h = h_of(p, between, where);
    return std::tuple(GroupedMlp::up(p, a, h), GroupedMlp::down(a, h));
  }
};

template <const Catalog& (*kCatalog)()>
struct RouterRouteParts {
  using Op = RouterRoute;
  using Parts = std::tuple<RouterGemm, RouteTopk>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const RouterRoute::Problem& p) {
    return std::tuple(PartOf<RouterGemm>{RouterRoute::gate(p)}, PartOf<RouteTopk>{p.route});
  }
  static size_t between_bytes(const RouterRoute::Problem&, Backend) { return 0; }
  static auto args(const RouterRoute::Problem&, const RouterRoute::Args& a, std::byte*, Backend) {
    return std::tuple(RouterRoute::gate(a), static_cast<const RouteTopk::Args&>(a));
  }
};

template <const Catalog& (*kCatalog)()>
struct NormRouterRouteParts {
  using Op = NormRouterRoute;
  using Parts = std::tuple<RmsNorm, RouterGemm, RouteTopk>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const NormRouterRoute::Problem& p) {
    return std::tuple(PartOf<RmsNorm>{NormRouterRoute::norm(p)},
                      PartOf<RouterGemm>{RouterRoute::gate(p.router)}, PartOf<RouteTopk>{p.router.route});
  }
  static size_t between_bytes(const NormRouterRoute::Problem&, Backend) { return 0; }
  static auto args(const NormRouterRoute::Problem&, const NormRouterRoute::Args& a, std::byte*, Backend) {
    return std::tuple(NormRouterRoute::norm(a), RouterRoute::gate(NormRouterRoute::router(a)),
                      static_cast<const RouteTopk::Args&>(a));
  }
};

// The same with router and routing as one part.
template <const Catalog& (*kCatalog)()>
struct NormApartParts {
  using Op = NormRouterRoute;
  using Parts = std::tuple<RmsNorm, RouterRoute>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const NormRouterRoute::Problem& p) {
    return std::tuple(PartOf<RmsNorm>{NormRouterRoute::norm(p)}, PartOf<RouterRoute>{p.router});
  }
  static size_t between_bytes(const NormRouterRoute::Problem&, Backend) { return 0; }
  static auto args(const NormRouterRoute::Problem&, const NormRouterRoute::Args& a, std::byte*, Backend) {
    return std::tuple(NormRouterRoute::norm(a), NormRouterRoute::router(a));
  }
};

template <const Catalog& (*kCatalog)()>
struct CombineNormParts {
  using Op = CombineNorm;
  using Parts = std::tuple<Combine, RmsNorm>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const CombineNorm::Problem& p) {
    return std::tuple(PartOf<Combine>{p.combine}, PartOf<RmsNorm>{CombineNorm::norm(p)});
  }
  static size_t between_bytes(const CombineNorm::Problem&, Backend) { return 0; }
  static auto args(const CombineNorm::Problem&, const CombineNorm::Args& a, std::byte*, Backend) {
    return std::tuple(static_cast<const Combine::Args&>(a), CombineNorm::norm(a));
  }
};

template <const Catalog& (*kCatalog)()>
struct QkvRopeKvWriteParts {
  using Op = QkvRopeKvWrite;
  using Parts = std::tuple<Linear, RopeKvWrite>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const QkvRopeKvWrite::Problem& p) {
    return std::tuple(PartOf<Linear>{QkvRopeKvWrite::project(p)}, PartOf<RopeKvWrite>{p.rope});
  }
  static size_t between_bytes(const QkvRopeKvWrite::Problem&, Backend) { return 0; }
  static auto args(const QkvRopeKvWrite::Problem& p, const QkvRopeKvWrite::Args& a, std::byte*, Backend) {
    return std::tuple(QkvRopeKvWrite::project(a), QkvRopeKvWrite::turn(p, a));
  }
};

template <const Catalog& (*kCatalog)()>
struct QkNormRopeKvWriteParts {
  using Op = QkNormRopeKvWrite;
  using Parts = std::tuple<RmsNorm, RmsNorm, RopeKvWrite>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const Op::Problem& p) {
    return std::tuple(PartOf<RmsNorm>{Op::queries(p)}, PartOf<RmsNorm>{Op::keys(p)},
                      PartOf<RopeKvWrite>{p.turn});
  }
  static size_t between_bytes(const Op::Problem&, Backend) { return 0; }
  static auto args(const Op::Problem&, const Op::Args& a, std::byte*, Backend) {
    return std::tuple(Op::queries(a), Op::keys(a), static_cast<const RopeKvWrite::Args&>(a));
  }
};

template <const Catalog& (*kCatalog)()>
struct LinearArgmaxParts {
  using Op = LinearArgmax;
  using Parts = std::tuple<Linear, Sample>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const LinearArgmax::Problem& p) {
    return std::tuple(PartOf<Linear>{LinearArgmax::linear(p)}, PartOf<Sample>{LinearArgmax::sample(p)});
  }
  static Tensor logits_of(const LinearArgmax::Problem& p, std::byte* between, Backend where) {
    return make_tensor(between, DType::kF32, {p.tokens, p.features}, where);
  }
  static size_t between_bytes(const LinearArgmax::Problem& p, Backend where) {
    return Arena::footprint(
        static_cast<size_t>(bytes_of(DType::kF32, elements_of(logits_of(p, nullptr, where)))));
  }
  static auto args(const LinearArgmax::Problem& p, const LinearArgmax::Args& a, std::byte* between,
                   Backend where) {
    const Tensor logits = logits_of(p, between, where);
    return std::tuple(LinearArgmax::linear(a, logits), LinearArgmax::sample(a, logits));
  }
};

template <const Catalog& (*kCatalog)()>
struct RouteGroupParts {
  using Op = RouteGroup;
  using Parts = std::tuple<RouteTopk, GroupRows>;
  static const Catalog& catalog() { return kCatalog(); }
  static auto parts(const RouteGroup::Problem& p) {
    return std::tuple(PartOf<RouteTopk>{p.route}, PartOf<GroupRows>{RouteGroup::group(p)});
  }
  static size_t between_bytes(const RouteGroup::Problem&, Backend) { return 0; }
  static auto args(const RouteGroup::Problem&, const RouteGroup::Args& a, std::byte*, Backend) {
    return std::tuple(static_cast<const RouteTopk::Args&>(a), RouteGroup::group(a));
  }
};

}  // namespace sluice
