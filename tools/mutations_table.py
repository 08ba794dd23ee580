"""The mutations of tools/mutations.py: what a careless hand might do to a kernel, and the tests that must notice."""
from typing import NamedTuple


class Mutation(NamedTuple):
    name: str
    breaks: str
    path: str
    old: str
    new: str
    tests: str  # a gtest filter


CPU = "src/backends/cpu/kernels/"

MUTATIONS = [
    Mutation(
        "router_bias_dropped",
        "the router's bias is not added",
        CPU + "router_gemm_dot.cc",
        "dot(a.x.row<const X>(t), w, p.hidden) + bias",
        "dot(a.x.row<const X>(t), w, p.hidden)",
        "RouterGemm/*",
    ),
    Mutation(
        "router_last_token_unwritten",
        "one row of logits is never written",
        CPU + "router_gemm_dot.cc",
        "for (int64_t t = 0; t < p.tokens; ++t)",
        "for (int64_t t = 0; t < p.tokens - 1; ++t)",
        "RouterGemm/*",
    ),
]
