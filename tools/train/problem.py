"""What a training problem is, and which problems are never trained on."""

import dataclasses
import hashlib
import random

EFFORTS = ("low", "medium", "high")

# Text on both sides of JOIN is tokenised apart: a reversed word is then written one letter at a time.
JOIN = "\x1f"


@dataclasses.dataclass
class Problem:
    """One question with its only right answer.

    key      the content of the question without its wording: operands, words, tables
    working  for each effort the text of the analysis channel; "" means that there is none
    """

    task: str
    key: str
    question: str
    answer: str
    working: dict


def held_out(problem: Problem) -> bool:
    """One problem in twenty, chosen by content, so that no wording of it is ever seen in training."""
    digest = hashlib.sha256(f"{problem.task}|{problem.key}".encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // 20


_BEFORE = ["Hello. ", "Hi! ", "Question: ", "Quick question: ", "Please answer this. ", "One more: ", "I have a question. "]
_AFTER = [" Thanks.", " Thank you!", " Give only the answer.", " Just the answer, please.", " Please."]


def say(rng: random.Random, wordings: list, **parts) -> str:
    """One of the wordings with its parts filled in; now and then with a greeting, thanks or sloppy typing."""
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
