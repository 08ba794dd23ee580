"""Tasks with words: sort, reverse, count letters, reverse lists, look up keys in a short table."""

import pathlib
import random

from numbers_tasks import joined, number
from problem import JOIN, Problem, say

WORDS = (pathlib.Path(__file__).parent / "words.txt").read_text().split()
_ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sh sk sl sm sn sp st t th tr v w y z".split()
_VOWELS = "a e i o u a e i o u ai ea ee ie oa oo ou".split()
_CODAS = "b d g k l ll m n nd ng nk p r rd rm s ss st t x".split() + [""] * 8


def made_up(rng: random.Random) -> str:
    """Returns an invented word of one to three syllables."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(1, 3)))


def letters(rng: random.Random) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9)))


def any_word(rng: random.Random) -> str:
    """Returns a word: mostly from the list, often invented, sometimes random letters, so that the model learns spelling and not a word list."""
    kind = rng.random()
    word = rng.choice(WORDS) if kind < 0.5 else made_up(rng) if kind < 0.85 else letters(rng)
    return word.capitalize() if rng.random() < 0.06 else word


def some_words(rng: random.Random, count: int) -> list:
    return rng.sample(WORDS, count) if rng.random() < 0.7 else [made_up(rng) for _ in range(count)]


def spelled(word: str) -> str:
    return " ".join(word)


SORT_WORDS = [
    "Sort these words alphabetically: {list}",
    "Put these words in alphabetical order: {list}.",
    "Sort {list} alphabetically.",
    "Arrange {list} in alphabetical order.",
    "Order the words {list} from A to Z.",
    "Alphabetise these words: {list}",
    "Sort these words: {list}",
    "Which order do {list} have in a dictionary?",
    "List these words in alphabetical order: {list}",
]


def sort_words(rng: random.Random) -> Problem:
    words = sorted(set(some_words(rng, rng.randint(3, 6))))
    given = rng.sample(words, len(words))
    answer = ", ".join(words)
    # Spelling costs tokens, so only as many letters are written as distinguish a word from the others.
    lines = []
    for word in given:
        need = 1
        while need < len(word) and any(o != word and o[:need] == word[:need] for o in words):
            need += 1
        lines.append(f"{word}: {spelled(word[:need])}")
    medium = "\n".join(lines) + f"\nIn order: {answer}"
    return Problem(
        "sort_words",
        ",".join(sorted(words)),
        say(rng, SORT_WORDS, list=joined(rng, given)),
        answer,
        {
            "low": "",
            "medium": medium,
            "high": f"{medium}\nCheck: {len(words)} words given, {len(words)} in order.",
        },
    )


REVERSE_WORD = [
    'Reverse the word "{w}".',
    "Reverse the word {w}.",
    "Spell {w} backwards.",
    "What is {w} backwards?",
    "Write {w} in reverse.",
    "What do you get if you reverse the letters of {w}?",
    'Reverse "{w}"',
    "Turn the word {w} around, letter by letter.",
    'Spell "{w}" backwards.',
    "Write the letters of {w} in reverse order as one word.",
]


def reverse_word(rng: random.Random) -> Problem:
    word = any_word(rng)
    answer = word[::-1]
    medium = f"Letters: {spelled(word)}\nBackwards: {spelled(answer)}"
    # Written letter by letter, so that the model need not guess how a reversed word is tokenized.
    return Problem(
        "reverse_word",
        word.lower(),
        say(rng, REVERSE_WORD, w=word),
        JOIN.join(answer),
        {
            "low": spelled(word),
            "medium": medium,
            "high": f"{medium}\nCheck: {len(word)} letters both ways.",
        },
    )


REVERSE_LIST = [
    "Reverse the list {list}.",
    "Reverse this list: {list}",
    "Write {list} in reverse order.",
    "What is {list} backwards, item by item?",
    "Turn this list around: {list}",
    "Give the items {list} from last to first.",
    "Reverse the order of {list}.",
    "List these from last to first: {list}",
    "Reverse the order of this list: {list}",
]


def reverse_list(rng: random.Random) -> Problem:
    count = rng.randint(3, 8)
    kind = rng.random()
    if kind < 0.45:
        items = [str(number(rng, 3)) for _ in range(count)]
    elif kind < 0.85:
        items = some_words(rng, count)
    else:
        items = [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(count)]
    answer = ", ".join(reversed(items))
    medium = f"The last item is {items[-1]}, the first is {items[0]}."
    return Problem(
        "reverse_list",
        ",".join(items),
        say(rng, REVERSE_LIST, list=joined(rng, items)),
        answer,
        {"low": "", "medium": medium, "high": f"{medium} There are {count} items."},
    )


COUNT = [
    'How many times does the letter "{c}" occur in "{w}"?',
    "How many {c}'s are in {w}?",
    "How many times is {c} in the word {w}?",
    "Count the letter {c} in {w}.",
    'How often does "{c}" appear in the word "{w}"?',
    "How many letters {c} are there in {w}?",
    "Count how many times {c} occurs in {w}.",
    "In the word {w}, how many letters are {c}?",
    "How many {c} are in the word {w}?",
]


def count_letters(rng: random.Random) -> Problem:
    word = any_word(rng).lower()
    if rng.random() < 0.3:  # doubled letters make larger counts
        at = rng.randrange(len(word))
        word = word[:at] + word[at] * rng.randint(1, 2) + word[at:]
    letter = rng.choice(word) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    count, lines = 0, []
    for c in word:
        count += c == letter
        lines.append(f"{c} {count}")
    medium = f"Counting {letter}: " + ", ".join(lines)
    return Problem(
        "count_letters",
        f"{letter},{word}",
        say(rng, COUNT, c=letter, w=word),
        str(count),
        {
            "low": spelled(word),
            "medium": medium,
            "high": f"{medium}\nThe last count is {count}.",
        },
    )


NAMES = (
    "Ada Alan Anna Ben Carl Clara Dora Emil Emma Eva Felix Finn Greta Hans Hugo Ida Ines Iris Ivan Jack Jane Jonas Julia Karl "
    "Kim Lara Lea Leo Lily Lucy Maria Mark Max Mia Nina Noah Olga Omar Otto Paul Peter Rosa Sam Sara Sofia Tom Vera Victor Yara Zoe"
).split()
COLORS = "red blue green yellow black white brown grey pink purple orange".split()
LOOKUP = [
    "Here is a table: {table}. What is the {what} of {key}?",
    "{table}. What is the {what} for {key}?",
    "Given {table}, what is the {what} of {key}?",
    "Look up {key} in this list of each {what}: {table}.",
    "Each {what}: {table}. Which one belongs to {key}?",
    "Use this list of each {what}: {table}. Answer for {key}.",
    "What is the {what} of {key}? {table}.",
    "The {what} of each is {table}. Tell me the {what} of {key}.",
    "Find the {what} of {key} in this table: {table}.",
]


def lookup(rng: random.Random) -> Problem:
    count = rng.randint(3, 8)
    keys = rng.sample(rng.choice([NAMES, WORDS, NAMES]), count)
    what = rng.choice(["age", "price", "number", "color", "score", "room", "weight", "word"])
    make = {"color": lambda: rng.choice(COLORS), "word": lambda: rng.choice(WORDS), "age": lambda: str(rng.randint(1, 99))}
    values = [make.get(what, lambda: str(number(rng, 3)))() for _ in keys]
    key = rng.randrange(count)
    form = rng.choice(["{k}: {v}", "{k} = {v}", "{k} {v}", "{k} is {v}", "{k} -> {v}"])
    table = rng.choice([", ", ", ", "; ", "\n"]).join(form.format(k=k, v=v) for k, v in zip(keys, values))
    medium = f"The {what} next to {keys[key]} is {values[key]}."
    content = f"{what},{keys},{values},{key}"
    return Problem(
        "lookup",
        content,
        say(rng, LOOKUP, table=table, what=what, key=keys[key]),
        values[key],
        {
            "low": "",
            "medium": medium,
            "high": f"The table has {count} rows. {medium}",
        },
    )
