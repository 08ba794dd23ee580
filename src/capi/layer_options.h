// Reads and checks sluice_layer_options.
#pragma once
#include "capi/handles.h"

namespace sluice::capi {

struct LayerOptions {
  MoeConfig whole, local;  // config of the whole layer, and config of this rank's part
  int64_t tokens_max = 1;
  Policy policy;
  MoeBackend backend = {};
  MoeLoadOptions load;
};

Result<LayerOptions> read_layer_options(const sluice_layer_options* from, Backend backend);

}  // namespace sluice::capi
