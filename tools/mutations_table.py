"""The mutations of tools/mutations.py: what a careless hand might do to a kernel, and the tests that must notice."""
from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    breaks: str
    path: str
    old: str
    new: str
    tests: str  # a gtest filter
    needs: str = ""  # a flag of /proc/cpuinfo, where the kernel only runs with it


CPU = "src/backends/cpu/kernels/"
SIMD = "src/backends/cpu/simd/"
PANELS = "src/backends/cpu/panels/"

MUTATIONS = [
    Mutation(
        "router_bias_dropped",
        "the router's bias is not added",
        CPU + "router_gemm_dot.cc",
        "store_scalar(sum + bias, a.y.row<Y>(t) + e);",
        "store_scalar(sum + 0 * bias, a.y.row<Y>(t) + e);",
        "RouterGemm/*",
    ),
    Mutation(
        "router_row_unwritten",
        "the last token's logits are never written",
        CPU + "router_gemm_dot.cc",
        "for_each_dot(p.tokens, x, begin",
        "for_each_dot(p.tokens - 1, x, begin",
        "RouterGemm/*",
    ),
    Mutation(
        "topk_tie_to_higher",
        "of equal scores in one vector, the last expert wins",
        CPU + "route_topk_tournament.cc",
        "const intptr_t lane = hn::FindFirstTrue(di, hn::Eq(keys, most));\n    const auto here",
        "intptr_t lane = 0;\n    for (intptr_t l = 0; l < lanes(); ++l)\n"
        "      if (at[l] == hn::GetLane(most)) lane = l;\n    const auto here",
        "RouteTopk*",
    ),
    Mutation(
        "topk_nan_first",
        "NaN ranks above everything",
        CPU + "route_topk_tournament.cc",
        "constexpr int32_t kNanKey = kRemoved + 1;",
        "constexpr int32_t kNanKey = std::numeric_limits<int32_t>::max();",
        "RouteTopk*",
    ),
    Mutation(
        "topk_sum_without_renormalising",
        "chosen weights are not divided by their sum",
        CPU + "route_topk_tournament.cc",
        "w[k] /= sum + 1e-20f;",
        "w[k] /= 1 + 0 * sum;",
        "RouteTopk*",
    ),
    Mutation(
        "group_takes_padding",
        "an id of -1 counts as expert 0",
        CPU + "group_rows_counting.cc",
        "return id >= 0 && id < p.experts; }",
        "return id >= -1 && id < p.experts; }",
        "GroupRows*",
    ),
    Mutation(
        "combine_scale_dropped",
        "the routed scaling factor is left out",
        CPU + "combine_columns.cc",
        "out.scale = static_cast<float>(p.scale);",
        "out.scale = 1;",
        "Combine*",
    ),
    Mutation(
        "combine_reads_empty_slots",
        "a slot without a row adds row 0",
        CPU + "combine_columns.cc",
        "if (position[k] < 0 || position[k] >= p.rows) continue;",
        "if (position[k] >= p.rows) continue;",
        "Combine*",
    ),
    Mutation(
        "clamp_gate_from_below",
        "the gate is clamped on both sides, not from above alone",
        SIMD + "activation.h",
        "const V gate = at_most(d, g, limit);",
        "const V gate = within(d, g, limit);",
        "ExpertGemm*",
    ),
    Mutation(
        "clamp_after_beta",
        "up is clamped after beta is added",
        SIMD + "activation.h",
        "const V up = hn::Add(within(d, u, limit), hn::Set(d, a.beta));",
        "const V up = within(d, hn::Add(u, hn::Set(d, a.beta)), limit);",
        "ExpertGemm*",
    ),
    Mutation(
        "mxfp4_scale_dropped_f32",
        "panels in f32 ignore their scales",
        SIMD + "mxfp4.h",
        "const auto bits = hn::Max(hn::ShiftLeft<23>(scales), hn::Set(du, 0x00400000u));",
        "const auto bits = hn::Max(hn::Set(du, 127u << 23), hn::ShiftLeft<23>(hn::Zero(du)));",
        "ExpertGemm*",
    ),
    Mutation(
        "mxfp4_scale_zero",
        "a scale byte of 0 decodes to 0 and not to 2^-127",
        PANELS + "dot.cc",
        "_mm512_set1_epi32(0x00400000));",
        "_mm512_setzero_si512());",
        "ExpertGemm*",
        "avx512bw",
    ),
    Mutation(
        "tiles_scale_dropped",
        "tiles forget the row's largest scale",
        PANELS + "tiles.cc",
        "for (int p = 0; p < kPanels; ++p) apply_scales(t.top[p], rows, buffers.sums[p]);",
        "for (int p = 0; p < kPanels - 1; ++p) apply_scales(t.top[p], rows, buffers.sums[p]);",
        "ExpertGemm*",
        "amx_bf16",
    ),
    Mutation(
        "nan_scale_is_infinity",
        "a scale of 255 gives infinities",
        PANELS + "dot.cc",
        "_mm512_set1_epi32(0x7fc00000)));",
        "_mm512_set1_epi32(0x7f800000)));",
        "ExpertGemm*",
        "avx512_bf16",
    ),
    Mutation(
        "expert_weight_on_input_dropped",
        "Llama 4's router weight does not reach the expert's input",
        SIMD + "expert_tile.h",
        "const auto in = hn::Set(d, weight);",
        "const auto in = hn::Set(d, weight * 0 + 1);",
        "ExpertGemm*",
    ),
    Mutation(
        "pack_swaps_nibbles",
        "the high nibble is taken for the even element",
        "src/weights/panel_codec.cc",
        "return together(codes & 0x0F0F0F0F0F0F0F0F) | together(codes >> 4 & 0x0F0F0F0F0F0F0F0F) << 16;",
        "return together(codes & 0x0F0F0F0F0F0F0F0F) << 16 | together(codes >> 4 & 0x0F0F0F0F0F0F0F0F);",
        "*Panels*",
    ),
    Mutation(
        "lora_scale_dropped",
        "the adapter's scale is left out",
        CPU + "lora_delta_dot.cc",
        "scalar_f32(y[n]) + scale * dot(",
        "scalar_f32(y[n]) + (0 * scale + 1) * dot(",
        "LoraDelta*",
    ),
    Mutation(
        "sink_dropped",
        "attention forgets its sinks",
        CPU + "attention_paged.cc",
        "total.sum += rescale(sink, largest) + (sink - sink);",
        "total.sum += 0 * (rescale(sink, largest) + (sink - sink));",
        "Attention*",
    ),
    Mutation(
        "norm_without_eps",
        "the mean square is not kept above zero",
        CPU + "rms_norm_rows.cc",
        "1.f / std::sqrt(mean + static_cast<float>(p.eps))",
        "1.f / std::sqrt(mean + 0 * static_cast<float>(p.eps))",
        "RmsNorm*",
    ),
    Mutation(
        "rope_turns_backwards",
        "pairs turn the other way",
        CPU + "rope_heads.cc",
        "const auto turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));\n    const auto turned_b = hn::MulAdd(a, s, hn::Mul(b, c));",
        "const auto turned_a = hn::MulAdd(b, s, hn::Mul(a, c));\n    const auto turned_b = hn::NegMulAdd(a, s, hn::Mul(b, c));",
        "Rope*",
    ),
    Mutation(
        "embedding_takes_the_end",
        "an id one past the vocabulary is looked up",
        CPU + "embedding_copy.cc",
        "if (id >= 0 && id < p.vocab) {",
        "if (id >= 0 && id < p.vocab + 1) {",
        "Embedding*",
    ),
    Mutation(
        "min_p_ignored",
        "sampling ignores min_p",
        CPU + "sample_draw.h",
        "if (i > 0 && by_share && weight < p.min_p) return {i, running};",
        "if (i > 0 && by_share && weight < 0 * p.min_p) return {i, running};",
        "Sample*",
    ),
    Mutation(
        "decide_takes_the_dearest",
        "dispatch prefers the larger cost",
        "src/dispatch/decide.h",
        "v.cost_us < out.verdicts[out.chosen].cost_us",
        "v.cost_us > out.verdicts[out.chosen].cost_us",
        "Decide*:Goldens*",
    ),
    Mutation(
        "safetensors_holes_allowed",
        "bytes of a file may belong to no tensor",
        "src/weights/safetensors.cc",
        "if (t.begin != at)",
        "if (t.begin < at)",
        "Checkpoint*",
    ),
    Mutation(
        "down_bias_on_every_rank",
        "every tensor-parallel rank adds W2's bias",
        "src/nn/moe_slice.cc",
        "out.down_bias = whole.down_bias && s.tp_rank == 0;",
        "out.down_bias = whole.down_bias;",
        "MoeSlice*",
    ),
    Mutation(
        "slice_scales_from_zero",
        "a tensor-parallel rank reads the first rank's scales",
        "src/nn/moe_source.cc",
        "c.scale_at + c.first * blocks + c.column / kMxBlock;",
        "c.scale_at + c.first * blocks;",
        "MoeSlice*",
    ),
    Mutation(
        "canary_trusts",
        "the canary lets any value pass",
        "src/nn/moe_canary.cc",
        "if (both_nan ||",
        "if (true || both_nan ||",
        "Damaged*",
    ),
]
