#include "capi/layer_options.h"

#include <cstddef>

#include "base/named_once.h"

namespace sluice::capi {
namespace {

Result<MoeConfig> config_of(const sluice_layer_options& options, Backend backend) {
  MoeConfig config;
  if (options.model) {
    auto known = known_moe(options.model);
    if (!known.ok()) return known;
    config = std::move(known).value();
  }
  config.layout = layout_for(backend);
  if (!options.fields) return config;
  Status status = named_once(options.fields);
  if (status.ok()) status = parse_fields(options.fields, &config);
  if (status.ok()) return config;
  return Status{status.code, "fields: " + status.message};
}

Slice slice_of(const sluice_layer_options& o) {
  const auto size = [](int64_t n) { return n == 0 ? 1 : n; };
  return {.tp_rank = o.tp_rank, .tp_size = size(o.tp_size), .ep_rank = o.ep_rank, .ep_size = size(o.ep_size)};
}

MoeBackend backend_of(const sluice_layer_options& o) {
  MoeBackend out;
  if (o.backend_decode) out.decode = o.backend_decode;
  if (o.backend_prefill) out.prefill = o.backend_prefill;
  if (o.decode_tokens != 0) out.decode_tokens = o.decode_tokens;
  return out;
}

}  // namespace

Result<LayerOptions> read_layer_options(const sluice_layer_options* from, Backend backend) {
  sluice_layer_options wanted{};
  constexpr size_t kFirstVersion = offsetof(sluice_layer_options, weights);
  if (Status status = read_growing("options", from, kFirstVersion, &wanted); !status.ok()) return status;
  if (wanted.threads < 0 || wanted.threads > 1024)
    return invalid("threads: wanted 0 (all) to 1024, found " + std::to_string(wanted.threads));
  if (!wanted.weights && wanted.weights_bytes > 0)
    return invalid("weights: wanted a pointer to " + std::to_string(wanted.weights_bytes) +
                   " bytes (weights_bytes), found null");
  auto config = config_of(wanted, backend);
  if (!config.ok()) return config.status();
  LayerOptions out{.whole = std::move(config).value(),
                   .local = {},
                   .tokens_max = wanted.tokens_max,
                   .policy = policy_of(wanted.policy),
                   .backend = backend_of(wanted),
                   .load = {.slice = slice_of(wanted), .threads = wanted.threads}};
  if (wanted.weights) out.load.memory = {static_cast<std::byte*>(wanted.weights), wanted.weights_bytes};
  auto local = sliced(out.whole, out.load.slice);
  if (!local.ok()) return local.status();
  out.local = std::move(local).value();
  return out;
}

}  // namespace sluice::capi
