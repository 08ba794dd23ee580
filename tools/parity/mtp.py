"""The multi-token prediction layer of DeepSeek V3 in float64, from its definition: a layer of the model over the next token's embedding
and the hidden state of the main model after its last norm.

Everything that an implementation with bf16 activations keeps goes through `store`, as in deepseek_v3.py.
"""

import torch
from deepseek_v3 import Layers, exact


class Mtp(Layers):
    """weights: name behind "model.layers.<n>." to a float64 tensor."""

    def forward(self, ids, hidden, store=exact) -> dict:
        """ids i64[tokens], -1: an embedding of zeros; hidden [tokens, hidden]. Row t is at position t.

        The hidden state that it returns is what the next draft reads in place of the main model's: it, too, is after the last norm.
        """
        embedded = self.w["embed_tokens.weight"][ids.clamp(min=0)] * (ids >= 0)[:, None]
        pair = torch.cat([store(self.norm(embedded, "enorm")), store(self.norm(hidden, "hnorm"))], -1)
        x, experts, gap = self.layer(store(self.linear(pair, "eh_proj")), "", store)
        y = store(self.norm(x, "shared_head.norm"))
        return {"hidden": y, "logits": self.linear(y, "shared_head.head"), "stream": x, "experts": experts, "gap": gap}

    def drafts(self, ids, hidden, count: int, store=exact, recycled="hidden") -> list:
        """forward()'s answers for `count` greedy drafts in a row: each but the first has one more row, the hidden state and the token of
        the one before. Rows see no later ones, so that the rows before are what an implementation has in the layer's cache."""
        out = [self.forward(ids, hidden, store)]
        while len(out) < count:
            ids = torch.cat([ids, out[-1]["logits"][-1:].argmax(-1)])
            hidden = torch.cat([hidden, out[-1][recycled][-1:]])
            out.append(self.forward(ids, hidden, store))
        return out
