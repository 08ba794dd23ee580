#include <vector>

#include "base/fields.h"
#include "models/mtp.h"
#include "models/read_config.h"
#include "nn/dense_load.h"
#include "nn/moe/canary.h"

namespace sluice {

struct LoadedMtp::Parts {
  MtpConfig config;
  NamedWeights weights;
  std::vector<OwnedTensor> dense;
  std::unique_ptr<LoadedMoe> moe;
  Device* experts = nullptr;
  int64_t layer = 0, weight_bytes = 0;
};

namespace {

// Chooses the device of the draft's MoE layer.
Result<Device*> moe_device(Device& device, const MtpLoadOptions& o) {
  Device* const main = o.experts ? o.experts : &device;
  const std::string& name = o.speculative_moe_backend;
  if (name.empty()) return main;
  if (name != "cpu" && name != "cuda")
    return invalid("speculative_moe_backend: wanted cpu or cuda, found '" + name + "'");
  if (name == text(main->info().backend)) return main;
  std::string open = text(device.info());
  if (name == text(device.info().backend)) return &device;
  for (Device* d : {o.experts, o.spare}) {
    if (!d) continue;
    if (name == text(d->info().backend)) return d;
    open += ", " + text(d->info());
  }
  return invalid("speculative_moe_backend: wanted the backend of an open device (" + open + "), found '" +
                 name + "'");
}

Result<DType> router_dtype(const MtpLoadOptions& o) {
  const std::string& name = o.speculative_router_dtype;
  if (name.empty()) return o.router_logits;
  if (name == "float32") return DType::kF32;
  if (name == "bfloat16") return DType::kBF16;
  return invalid("speculative_router_dtype: wanted float32 or bfloat16, found '" + name + "'");
}

class MtpLoader {
 public:
  MtpLoader(LoadedMtp::Parts* parts, Device& device, const Checkpoint& checkpoint,
            const MtpLoadOptions& options)
      : parts_(*parts), device_(device), checkpoint_(checkpoint), options_(options) {}

  Status load() {
    const int64_t vocab = parts_.config.vocab, h = parts_.config.hidden;
    if (options_.embedding.present() != options_.head.present())
      return invalid("embedding and head: wanted both of the main model's or none, found one");
    if (options_.embedding.present()) {
      parts_.weights.set(-1, "embedding", options_.embedding);
      parts_.weights.set(-1, "lm_head", options_.head);
    } else {
      SLUICE_TRY(copy(own_or("embed_tokens.weight", "model.embed_tokens.weight"), {vocab, h}, "embedding"));
      SLUICE_TRY(pack(own_or("shared_head.head.weight", "lm_head.weight"), vocab, h, "lm_head"));
    }
    SLUICE_TRY(norm("enorm", h, "enorm"));
    SLUICE_TRY(norm("hnorm", h, "hnorm"));
    SLUICE_TRY(pack(name("eh_proj.weight"), h, 2 * h, "eh_proj"));
    SLUICE_TRY(norm("input_layernorm", h, "attention.norm"));
    SLUICE_TRY(attention(parts_.config.attention));
    SLUICE_TRY(norm("post_attention_layernorm", h, "mlp.norm"));
    SLUICE_TRY(norm("shared_head.norm", h, "final_norm"));
    return experts();
  }

 private:
  std::string name(const std::string& behind) const {
    return "model.layers." + std::to_string(parts_.layer) + "." + behind;
  }
  // Name of a tensor that the published checkpoints repeat in every draft layer, and some others store only in the main model.
  std::string own_or(const std::string& behind, const std::string& main) const {
    const bool borrowed = !checkpoint_.find_if_there(name(behind)) && checkpoint_.find_if_there(main);
    return borrowed ? main : name(behind);
  }

  Status keep(Result<OwnedTensor> made, std::string_view to) {
    if (!made.ok()) return made.status();
    parts_.weights.set(-1, to, made.value().view());
    parts_.weight_bytes += made.value().bytes();
    parts_.dense.push_back(std::move(made).value());
    return {};
  }
  Status copy(const std::string& tensor, std::vector<int64_t> shape, std::string_view to) {
    return keep(load_dense(device_, checkpoint_, {tensor, std::move(shape)}, host_threads(device_)), to);
  }
  Status norm(const std::string& behind, int64_t width, std::string_view to) {
    return copy(name(behind + ".weight"), {width}, to);
  }
  Status pack(const std::string& tensor, int64_t features, int64_t width, std::string_view to) {
    const DensePart part{tensor, features};
    return keep(pack_dense(device_, checkpoint_, {&part, 1}, width, host_threads(device_)), to);
  }

  Status attention(const LatentAttentionConfig& a) {
    const auto project = [&](const std::string& behind, int64_t features, int64_t width,
                             std::string_view to) {
      return pack(name("self_attn." + behind + ".weight"), features, width, to);
    };
    SLUICE_TRY(project("q_a_proj", a.q_rank, a.hidden, "attention.q_a"));
    SLUICE_TRY(norm("self_attn.q_a_layernorm", a.q_rank, "attention.q_norm"));
    SLUICE_TRY(project("q_b_proj", a.heads * (a.nope + a.rope), a.q_rank, "attention.q_b"));
    SLUICE_TRY(project("kv_a_proj_with_mqa", a.rank + a.rope, a.hidden, "attention.kv_a"));
    SLUICE_TRY(norm("self_attn.kv_a_layernorm", a.rank, "attention.kv_norm"));
    const int64_t of_head = a.nope + a.v_dim;
    SLUICE_TRY(copy(name("self_attn.kv_b_proj.weight"), {a.heads * of_head, a.rank}, "attention.kv_b"));
    const Tensor flat = parts_.weights(-1, "attention.kv_b");
    parts_.weights.set(-1, "attention.kv_b",
                       make_tensor(flat.data, flat.dtype, {a.heads, of_head, a.rank}, flat.where));
    return project("o_proj", a.hidden, a.heads * a.v_dim, "attention.o");
  }

  Status experts() {
    Device& device = parts_.experts ? *parts_.experts : device_;
    auto loaded = load_moe(device, checkpoint_, parts_.config.moe,
                           {.naming = MoeNaming::kDeepSeekV3,
                            .layer = parts_.layer,
                            .slice = {},
                            .threads = host_threads(device_)});
    if (!loaded.ok()) return loaded.status();
    if (options_.canary == MtpLoadOptions::Canary::kRun)
      SLUICE_TRY(canary(device, *loaded.value(), checkpoint_));
    parts_.weight_bytes += loaded.value()->bytes();
    parts_.weights.set_moe(-1, parts_.config.moe, loaded.value()->weights());
    parts_.moe = std::move(loaded).value();
    return {};
  }

  LoadedMtp::Parts& parts_;
  Device& device_;
  const Checkpoint& checkpoint_;
  const MtpLoadOptions& options_;
};

}  // namespace

LoadedMtp::LoadedMtp(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedMtp::~LoadedMtp() = default;
const MtpConfig& LoadedMtp::config() const { return parts_->config; }
const NamedWeights& LoadedMtp::weights() const { return parts_->weights; }
int64_t LoadedMtp::layer() const { return parts_->layer; }
int64_t LoadedMtp::weight_bytes() const { return parts_->weight_bytes; }
Device* LoadedMtp::experts() const { return parts_->experts; }

Result<std::unique_ptr<LoadedMtp>> LoadedMtp::load(Device& device, const std::string& directory,
                                                   const MtpLoadOptions& options) {
  const auto experts = moe_device(device, options);
  if (!experts.ok()) return experts.status();
  const auto logits = router_dtype(options);
  if (!logits.ok()) return logits.status();
  const std::string path = directory + "/config.json";
  const Result<Json> json = read_json(path, kConfigBytesMax);
  if (!json.ok()) return json.status();
  const auto read = read_mtp_config(JsonAt(json.value(), path));
  if (!read.ok()) return read.status();
  const MtpModelConfig& model = read.value();
  if (options.draft < 0 || options.draft >= model.drafts)
    return invalid("draft: wanted one of the model's num_nextn_predict_layers = " +
                   std::to_string(model.drafts) + " layers, from 0, found " + std::to_string(options.draft));
  auto parts = std::make_unique<Parts>();
  parts->layer = model.layers + options.draft;
  parts->experts = experts.value() == &device ? nullptr : experts.value();
  parts->config = model.mtp.with_layouts_of(device.info()).with_activations(options.x);
  parts->config.moe.logits = logits.value();
  parts->config.moe.layout = layout_for(experts.value()->info().backend);
  const auto checkpoint = Checkpoint::open(directory);
  if (!checkpoint.ok()) return checkpoint.status();
  SLUICE_TRY(MtpLoader(parts.get(), device, *checkpoint.value(), options).load());
  return std::unique_ptr<LoadedMtp>(new LoadedMtp(std::move(parts)));
}

}  // namespace sluice
