"""Trains the tokenizer: byte-level BPE with gpt-oss's pre-tokenizer and special tokens.

    tokenizer.py DIRECTORY     writes tokenizer.json and tokenizer_config.json there

It is trained on the model's training text without digits, so that no merge joins digits and each digit is one token.
"""

import json
import pathlib
import random
import re
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from harmony import Special
from tasks import conversation

VOCAB = 1024
NAMED = {
    0: "startoftext",
    1: "endoftext",
    4: "return",
    5: "constrain",
    7: "channel",
    8: "start",
    9: "end",
    10: "message",
    14: "call",
    20: "endofprompt",
}
SPECIALS = 21  # in gpt-oss's order; unnamed ones are reserved
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTIONS,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTIONS,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def corpus(count: int):
    rng = random.Random(7)
    for _ in range(count):
        prompt, reply = conversation(rng)
        for part in prompt + reply:
            if not isinstance(part, Special):
                yield re.sub(r"[0-9]", "", part.replace("\x1f", " "))


def special_names(first: int) -> list:
    return [f"<|{NAMED.get(i, f'reserved_{first + i}')}|>" for i in range(SPECIALS)]


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    plain = VOCAB - SPECIALS
    trainer = trainers.BpeTrainer(vocab_size=plain, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(20000), trainer)
    if tokenizer.get_vocab_size() != plain:
        raise SystemExit(f"wanted {plain} tokens, but the text gave only {tokenizer.get_vocab_size()}")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special_names(plain)])
    return tokenizer


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train()
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(name)): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for name in special_names(VOCAB - SPECIALS)
        },
        "bos_token": "<|startoftext|>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|return|>",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
