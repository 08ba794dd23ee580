"""The type of a training problem, and the choice of held-out problems, which are never trained on."""

import dataclasses
import hashlib
import random

EFFORTS = ("low", "medium", "high")

# The texts before and after JOIN are tokenized separately, so that a reversed word is written one letter at a time.
JOIN = "\x1f"


@dataclasses.dataclass
class Problem:
    """One question with its only correct answer.

    key      the content of the question without its wording: operands, words, tables
    working  for each effort the text of the analysis channel; "": no analysis
    """

    task: str
    key: str
    question: str
    answer: str
    working: dict


def held_out(problem: Problem) -> bool:
    """Whether a problem is held out: one in twenty, chosen by content, so that training never sees any wording of it."""
    digest = hashlib.sha256(f"{problem.task}|{problem.key}".encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // 20


_BEFORE = ["Hello. ", "Hi! ", "Question: ", "Quick question: ", "Please answer this. ", "One more: ", "I have a question. "]
_AFTER = [" Thanks.", " Thank you!", " Give only the answer.", " Just the answer, please.", " Please."]


def say(rng: random.Random, wordings: list, **parts) -> str:
    """Returns a random wording with its parts filled in, sometimes with a greeting, thanks or careless typing."""
    text = rng.choice(wordings).format(**parts)
    if rng.random() < 0.05 and text[0].isupper():
        text = text[0].lower() + text[1:]
    if rng.random() < 0.05 and text[-1] in "?.":
        text = text[:-1]
    if rng.random() < 0.06:
        text = rng.choice(_BEFORE) + text
    if rng.random() < 0.06:
        text += rng.choice(_AFTER)
    return text
