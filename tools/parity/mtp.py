"""A reference of DeepSeek V3's multi-token prediction layer in float64, from its definition: a decoder layer whose input combines the next
token's embedding and the main model's hidden state after its last norm.

Every value that a bf16 implementation stores passes through `store`, as in deepseek_v3.py.
"""

import torch
from deepseek_v3 import Layers, exact


class Mtp(Layers):
    """weights: name after "model.layers.<n>." -> float64 tensor."""

    def forward(self, ids, hidden, store=exact) -> dict:
        """ids i64[tokens], -1: an embedding of zeros; hidden [tokens, hidden]. Row t is at position t.

        The next draft reads the returned hidden state, which is also taken after the last norm, instead of the main model's.
        """
        embedded = self.w["embed_tokens.weight"][ids.clamp(min=0)] * (ids >= 0)[:, None]
        pair = torch.cat([store(self.norm(embedded, "enorm")), store(self.norm(hidden, "hnorm"))], -1)
        x, experts, gap = self.layer(store(self.linear(pair, "eh_proj")), "", store)
        y = store(self.norm(x, "shared_head.norm"))
        return {"hidden": y, "logits": self.linear(y, "shared_head.head"), "stream": x, "experts": experts, "gap": gap}

    def drafts(self, ids, hidden, count: int, store=exact, recycled="hidden") -> list:
        """Returns forward()'s results for `count` successive greedy drafts. Each draft after the first adds a row, with the hidden state and token of
        the previous draft. Attention is causal, so earlier rows equal those in an implementation's cache."""
        out = [self.forward(ids, hidden, store)]
        while len(out) < count:
            ids = torch.cat([ids, out[-1]["logits"][-1:].argmax(-1)])
            hidden = torch.cat([hidden, out[-1][recycled][-1:]])
            out.append(self.forward(ids, hidden, store))
        return out
