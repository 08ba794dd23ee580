// A decoder's tensors under the names of Hugging Face models.
//
// Source  transformers models/{deepseek_v3,gpt_oss,qwen3_moe}/modeling_*.py.
#include "models/family.h"

namespace sluice {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

// Adds bf16 tensors of layer `layer`; -1: outside the layers.
struct Lister {
  std::vector<TensorSpec> out = {};
  int64_t layer = -1;

  void add(const std::string& name, std::vector<int64_t> shape, std::string_view weight,
           int64_t first_row = 0) {
    const std::string place = layer < 0 ? "" : "model.layers." + std::to_string(layer) + ".";
    out.push_back({.name = place + name,
                   .type = StoredType::kBF16,
                   .shape = std::move(shape),
                   .weight = std::string(weight),
                   .layer = layer,
                   .first_row = first_row});
  }
};

void list_latent_attention(const AttentionConfig& a, Lister* l) {
  const LatentShape& latent = *a.latent;
  const int64_t queries = a.heads * a.query_dim(), row = latent.rank + a.rotary;
  const int64_t q_rows = latent.q_rank > 0 ? latent.q_rank : queries;
  l->add(latent.q_rank > 0 ? "self_attn.q_a_proj.weight" : "self_attn.q_proj.weight", {q_rows, a.hidden},
         "attention.qkv");
  l->add("self_attn.kv_a_proj_with_mqa.weight", {row, a.hidden}, "attention.qkv", q_rows);
  if (latent.q_rank > 0) {
    l->add("self_attn.q_a_layernorm.weight", {latent.q_rank}, "attention.q_norm");
    l->add("self_attn.q_b_proj.weight", {queries, latent.q_rank}, "attention.q_b");
  }
  l->add("self_attn.kv_a_layernorm.weight", {latent.rank}, "attention.kv_norm");
  l->add("self_attn.kv_b_proj.weight", {a.heads * (latent.nope + latent.v_dim), latent.rank},
         "attention.kv_b");
  l->add("self_attn.o_proj.weight", {a.hidden, a.heads * latent.v_dim}, "attention.o");
}

void list_attention(const AttentionConfig& a, Lister* l) {
  if (a.latent) return list_latent_attention(a, l);
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  const auto project = [&](const std::string& name, int64_t rows, int64_t first) {
    l->add("self_attn." + name + "_proj.weight", {rows, a.hidden}, "attention.qkv", first);
    if (a.qkv_bias) l->add("self_attn." + name + "_proj.bias", {rows}, "attention.qkv_bias", first);
  };
  project("q", q, 0), project("k", kv, q), project("v", kv, q + kv);
  if (a.qk_norm) {
    l->add("self_attn.q_norm.weight", {a.head_dim}, "attention.q_norm");
    l->add("self_attn.k_norm.weight", {a.head_dim}, "attention.k_norm");
  }
  if (a.sinks) l->add("self_attn.sinks", {a.heads}, "attention.sinks");
  l->add("self_attn.o_proj.weight", {a.hidden, q}, "attention.o");
  if (a.o_bias) l->add("self_attn.o_proj.bias", {a.hidden}, "attention.o_bias");
}

}  // namespace

std::vector<TensorSpec> hugging_face_layer(const LayerConfig& layer, MoeNaming naming, int64_t number) {
  Lister l{.layer = number};
  l.add("input_layernorm.weight", {layer.attention.hidden}, "attention.norm");
  list_attention(layer.attention, &l);
  l.add("post_attention_layernorm.weight", {layer.mlp.hidden}, "mlp.norm");
  for (TensorSpec& spec : moe_tensors(layer.mlp, naming_of(layer.mlp, naming), number))
    l.out.push_back(std::move(spec));
  return std::move(l.out);
}

std::vector<TensorSpec> hugging_face_tensors(const ModelConfig& config, MoeNaming naming) {
  const DecoderConfig& d = config.decoder;
  Lister l;
  int64_t number = -1;
  l.add(kEmbedding, {d.vocab, d.hidden}, "embedding");
  for (const LayerConfig& layer : d.layers) {
    for (TensorSpec& spec : hugging_face_layer(layer, naming, ++number)) l.out.push_back(std::move(spec));
  }
  l.add("model.norm.weight", {d.hidden}, "final_norm");
  l.add(config.head == ModelConfig::Head::kTied ? kEmbedding : std::string(kHuggingFaceHead),
        {d.vocab, d.hidden}, "lm_head");
  return std::move(l.out);
}

}  // namespace sluice
