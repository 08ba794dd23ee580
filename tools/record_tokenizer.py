#!/usr/bin/env python3
"""Records the token ids of Hugging Face tokenizers for some strings, for tests/text/tokenizer_recorded_test.cc.

Requires the Python package tokenizers (the files in the tree were written with 0.23.3).

  tools/record_tokenizer.py train     trains the small tokenizers tests/data/tokenizer/pattern_*.json, then records
  tools/record_tokenizer.py record FILE.json OUT.jsonl
                                      records one tokenizer; each line is {"text": ..., "parse": ids, "as_text": ids, "decoded": text}
  tools/record_tokenizer.py categories
                                      prints the general category of every code point, for src/text/tokenizer/unicode_stand_in.cc
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "tokenizer"

# o200k, the pattern of gpt-oss. Source: openai/tiktoken, tiktoken_ext/openai_public.py.
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
# Qwen2 and Qwen3, which also normalize to form C. Source: Qwen/Qwen3-30B-A3B, tokenizer.json.
QWEN = "|".join([
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"\p{N}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
QWEN_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
# DeepSeek V3, R1 and V3.1: three patterns, applied one after another, and an empty sequence of normalizers. Most of its control tokens are
# not marked as special.
# Source: deepseek-ai/DeepSeek-V3, tokenizer.json.
DEEPSEEK = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "|".join([
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
        " ?[\\p{P}\\p{S}]+[\r\n]*",
        "\\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]),
]
DEEPSEEK_SPECIALS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
DEEPSEEK_ADDED = ["<｜User｜>", "<｜Assistant｜>"] + [
    f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "outputs▁begin", "outputs▁end", "output▁begin", "output▁end", "sep")
] + ["<think>", "</think>"]  # at the end, because V3 has only the others
HARMONY = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
           "<|message|>", "<|call|>"]

# The texts test patterns and UTF-8; their meaning is irrelevant.
SAMPLES = [
    "", " ", "a", "\n", "\t", "\r\n", "\0", "\x7f", "The quick brown fox jumps over the lazy dog.",
    "It's, IT'S, it’s; we'll WE'LL We'Ll they'VE I'd I'D you're YOU'RE I'm I'M don't DON'T 'sup 'tis 'S'T'RE'VE'M'LL'D",
    "o'clock rock'n'roll 'ſ 's'ſ K'K aſs ﬀ ﬁ ﬆ ß ẞ ŉ İ ı ǅ ǈ ǋ ᾈ",
    "camelCase PascalCase SCREAMING_SNAKE snake_case kebab-case HTTPServer iPhone XMLHttpRequest2",
    "1 12 123 1234 12345 123456789 3.14159 1e-10 0xDEADBEEF 1,000,000 ½ ² ⅷ ٣٤٥ १२३ 五 ①",
    "  two   three    four  ", "trailing   ", "   leading", "\n\n\n", " \n \n ", "a\n\n\nb", "a \n b", "\t\tx\t \ty",
    "line\r\nline\r\n\r\nline\rline\n\rline", " \u00a0 \u2003 \u3000 \u200b \u180e \u2028 \u2029 \u0085 \ufeff x",
    "!!! ??? ... --- *** /// \\\\ ||| <<<>>> {[()]} a/b//c\n//\n/// \n/ /\r\n",
    "for (int64_t i = 0; i < n; ++i) { sum += x[i] * w[i]; }  // dot\n",
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"\n\n\nclass A(B):\n\tpass\n",
    "SELECT * FROM t WHERE a <> 'b''c' AND d LIKE '%_x';", "<div class=\"a b\">&amp;nbsp;</div><!-- c -->",
    "{\"key\": [1, 2.5, null, true], \"\\u00e9\": \"\\n\"}", "https://example.org/a?b=c&d=%20e#f user@example.org",
    "$\\frac{a}{b} \\leq \\sum_{i=1}^{n} x_i^2$ ∀x∈ℝ ∃y≠0 → ⇒ ∫∂∇√∞ ≈≤≥",
    "naïve café résumé Ångström Übergröße Straße Œuvre Þórr łódź čeština ğüşiöç",
    "e\u0301 a\u030a n\u0303 o\u0302\u0323 q\u0307\u0323\u0301 \u0301 \u0301\u0301x x\u200dy", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "Привет, как дела? ЁЖИК её", "Γειά σου Κόσμε ΑΒΓ αβγ ς ϑ", "שלום עולם שָׁלוֹם", "مرحبا بالعالم السَّلَامُ عَلَيْكُمْ ١٢٣",
    "नमस्ते दुनिया क्ष त्र ज्ञ", "বাংলা ভাষা", "தமிழ் மொழி", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "සිංහල", "ไทยแลนด์ ภาษาไทย น้ำ",
    "ພາສາລາວ", "မြန်မာဘာသာ", "ភាសាខ្មែរ", "བོད་སྐད་", "ქართული ႠႡႢ ᲐᲑᲒ", "Հայերեն ԱԲԳ", "አማርኛ", "ᏣᎳᎩ ꭰꭱ", "ᐃᓄᒃᑎᑐᑦ", "ᠮᠣᠩᠭᠣᠯ\u180eᠠ",
    "你好，世界！中文分詞測試。", "こんにちは世界。カタカナ、ひらがな、漢字ー々〆", "안녕하세요 세계 한국어 ㄱㄴㄷ \u1112\u1161\u11ab", "𠀀𠀁𪚥 㐀 豈 𰀀 𱍐",
    "👍 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ ☺️ ☺︎ 👩🏿‍💻 🫠🫨🪿 🧑‍🤝‍🧑", "😀😃😄😁 text😆text 😅's", "🤷‍♀️🤦🏻‍♂️\n👁️‍🗨️",
    "𝕳𝖊𝖑𝖑𝖔 𝟘𝟙𝟚 𝒜𝒷𝒸 𝐀𝐁", "𐐀𐐨 𐤀 𒀀 𓀀 𓐰 ꦀ ꧁ 𞤀𞤢", "\U0001e030 \U00016d40 \U00010d50\U00010d70 \U00011bc0 \U0001e4d0\U0001e4f0",
    "\u0378 \u0530 \U0001fffe \U000e0001 \U000e0061\U000e007f \U000f0000 \U0010ffff \ufffe \uffff \ue000 \ufdd0",
    "<|start|>user<|message|>hi<|end|>", "<|end|><|end|>", "<|end", "<|end|", "|end|>", "< |end|>", "<|END|>", "x<|call|>y<|return|>",
    "<|start|><|start|>", "a <tool> b", "<tool></tool>", "<too", "<tool>ish", "<|endoftext|>\n<|endoftext|>",
    "a" * 300, " " * 100, "ab" * 200, "\n" * 50, "あ" * 60, "1" * 50, "'" * 30, "👍" * 20, "é" * 70, "\u0301" * 40, "- " * 40,
]


def random_text(rng):
    """Yields runs of code points of all kinds, so that boundaries of a pattern occur between all kinds of characters."""
    kinds = [
        lambda: chr(rng.randint(0x20, 0x7e)), lambda: chr(rng.randint(0, 0x7f)), lambda: rng.choice(" \n\r\t\u00a0\u3000\u180e\u200b"),
        lambda: rng.choice("'sStTdDmMrReEvVlLſK’"), lambda: chr(rng.randint(0x80, 0x24f)), lambda: chr(rng.randint(0x250, 0x7ff)),
        lambda: chr(rng.randint(0x800, 0xd7ff)), lambda: chr(rng.randint(0xe000, 0xffff)), lambda: chr(rng.randint(0x10000, 0x1ffff)),
        lambda: chr(rng.randint(0x20000, 0x3ffff)), lambda: chr(rng.randint(0x40000, 0x10ffff)), lambda: rng.choice("0123456789٣½²"),
        lambda: rng.choice("/.-_(){}<>|=+*&%$#@!"), lambda: chr(rng.randint(0x300, 0x36f)), lambda: rng.choice(SAMPLES)[:12],
        lambda: rng.choice(HARMONY + ["<tool>"]), lambda: chr(rng.randint(0x1f000, 0x1faff)),
    ]
    out = ""
    for _ in range(rng.randint(1, 12)):
        kind = rng.choice(kinds)
        out += "".join(kind() for _ in range(rng.randint(1, 4)))
    return out[:64]


def texts():
    rng = random.Random(803)
    return SAMPLES + [random_text(rng) for _ in range(420)]


def qwen_texts():
    """Yields the same texts with Qwen's tokens instead of harmony's."""
    for text in texts():
        for theirs, ours in zip(HARMONY[-4:] + ["<|start|>", "<tool>"], ["<|endoftext|>", "<|im_end|>", "<think>", "</think>", "<|im_start|>", "<tool_call>"]):
            text = text.replace(theirs, ours)
        yield text


def deepseek_texts():
    """Yields the same texts with DeepSeek's tokens instead of harmony's, and texts for the character classes of its patterns."""
    yield from ["漢字123かなカナABC", "第12345章：你好world", "a你b好c", "１２３ ㈠ ヿ゠ 龥龦 ー々〆", "，。！？abc ，。abc", "don't_stop #tag @name $x -y -_-",
                "a.b.c ...abc (abc) [abc] {abc} `abc` ~abc \\abc", "x\n\n!abc\r\n?!\r\n\r\nabc", "你好\n\n世界  \n  你", "👍🏽abc 👍123👍你好👍", " \u3000你\u3000好\u00a0a", "é1è2 ñ你"]
    ours = ["<｜User｜>", "<｜tool▁calls▁begin｜>", "<think>", "</think>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
    for text in texts():
        for theirs, our in zip(["<|message|>", "<|call|>", "<|return|>", "<tool>", "<|start|>", "<|end|>"], ours):
            text = text.replace(theirs, our)
        yield text


def corpus():
    rng = random.Random(20)
    words = [w for s in SAMPLES for w in s.split(" ") if w]
    yield from SAMPLES * 4
    for _ in range(4000):
        yield " ".join(rng.choice(words) for _ in range(rng.randint(2, 12)))


def train(name, pre_tokenizer, ignore_merges, specials=HARMONY, added=("<tool>", "<|end|>ing"), normalizer=None, texts=texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=[], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    path = DATA / f"{name}.json"
    tokenizer.save(str(path), pretty=False)
    record(path, DATA / f"{name}.jsonl", texts)


def record(path, out, texts=texts):
    tokenizer = Tokenizer.from_file(str(path))
    with open(out, "w", encoding="utf-8") as lines:
        for text in texts():
            line = {"text": text}
            for key, as_text in (("parse", False), ("as_text", True)):
                tokenizer.encode_special_tokens = as_text
                line[key] = tokenizer.encode(text, add_special_tokens=False).ids
            if line["as_text"] == line["parse"]:
                del line["as_text"]
            decoded = tokenizer.decode(line["parse"], skip_special_tokens=False)
            if decoded != text:
                line["decoded"] = decoded  # differs from the text, because a normalizer changed it
            lines.write(json.dumps(line, separators=(",", ":")) + "\n")


def categories():
    names = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
    points = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    found = {}
    for name in names:
        split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "isolated")
        parting = "-" if name == "Ll" else "a"  # a character of another category, so that each code point is a separate piece
        for begin in range(0, len(points), 65536):
            part = points[begin:begin + 65536]
            for _, (a, b) in split.pre_tokenize_str("".join(parting + chr(c) for c in part)):
                if b - a == 1 and a % 2 == 1:
                    found[part[a // 2]] = name
    for c in points:
        print(f"{c:x} {found.get(c, 'Cn')}")


def main(words):
    if words == ["train"]:
        DATA.mkdir(parents=True, exist_ok=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        split = pre_tokenizers.Split(Regex(O200K), "isolated")
        train("pattern_o200k", pre_tokenizers.Sequence([split, byte_level]), ignore_merges=False)
        train("pattern_gpt2", pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), ignore_merges=True)
        split = pre_tokenizers.Split(Regex(QWEN), "isolated")
        train("pattern_qwen", pre_tokenizers.Sequence([split, byte_level]), ignore_merges=False, specials=QWEN_SPECIALS,
              added=QWEN_ADDED, normalizer=normalizers.NFC(), texts=qwen_texts)
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in DEEPSEEK]
        train("pattern_deepseek", pre_tokenizers.Sequence([*splits, byte_level]), ignore_merges=False, specials=DEEPSEEK_SPECIALS,
              added=DEEPSEEK_ADDED, normalizer=normalizers.Sequence([]), texts=deepseek_texts)
    elif len(words) == 3 and words[0] == "record":
        record(words[1], words[2])
    elif words == ["categories"]:
        categories()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
