// The first part of an MoE layer, from the residual stream to grouped rows, computed by several combinations of kernels.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cuda/gate.h"
#include "cuda/ours.h"
#include "cuda/routes.h"
#include "ops/fused/router_route.h"
#include "ops/rms_norm.h"

namespace sluice::bench {

struct LayerShape {
  GateShape gate;
  RouteTopk::Problem route;  // its token count and logits type are the gate's
};
std::vector<LayerShape> layer_shapes();

// One combination of kernels, in order.
struct Way {
  std::string impl;
  std::vector<Step> steps = {};
};

Contender contender_of(const Way& way, bool dependent);

// Tensors of a shape at one token count.
class Layer {
 public:
  Layer(Gate& gate, const LayerShape& shape, int64_t tokens);
  Status make();

  // Each function appends one operation to `way`, or returns kUnsupported if Sluice has no kernel for it.
  Status norm(Way* way);
  Status gate(Way* way);
  Status route(Way* way);
  Status group(Way* way);
  Status route_group(Way* way);
  Status gate_route(Way* way);  // RouterRoute

  const RouterRoute::Problem& router_route() const { return router_route_; }
  RouterRoute::Args router_route_args(int64_t i) const;
  Memory& memory() { return memory_; }
  // Makes the gate read the output of norm() instead of x from now on.
  void read_normed() { normed_ = true; }
  Status poison_outputs();
  Result<std::string> check_norm();
  // Checks logits, ids and weights of run 0.
  Result<std::string> check_choice();
  Result<std::string> check_grouping();

 private:
  RouteGroup::Args routes(int64_t i) const;  // with the gate's logits
  RouterGemm::Args gate_args(int64_t i) const;
  RmsNorm::Args norm_args(int64_t i) const;
  template <class Op, class MakeArgs>
  Status add(Way* way, const typename Op::Problem& problem, MakeArgs args);

  Gate& gate_;
  Memory memory_;
  RmsNorm::Problem norm_;
  RouterRoute::Problem router_route_;
  RouteGroup::Problem route_group_;
  std::vector<Tensor> h_;
  Tensor norm_weight_ = {};
  std::vector<RouteGroup::Args> routes_;
  bool normed_ = false;
};

}  // namespace sluice::bench
