"""Sums, differences, sorted numbers and units."""

import random

from problem import Problem, say

ADD = [
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a} + {b} = ?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "Compute {a} + {b}.",
    "How much is {a} plus {b}?",
    "What do you get when you add {b} to {a}?",
    "{a} plus {b}?",
    "Calculate {a}+{b}.",
    "I have {a} coins and get {b} more. How many coins do I have now?",
]
SUBTRACT = [
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a} - {b} = ?",
    "Subtract {b} from {a}.",
    "Take {b} away from {a}.",
    "What is the difference when {b} is subtracted from {a}?",
    "Compute {a} - {b}.",
    "How much is {a} minus {b}?",
    "{a} minus {b}?",
    "Calculate {a}-{b}.",
    "What is left if you take {b} from {a}?",
]
PLACES = ["ones", "tens", "hundreds", "thousands", "ten thousands"]


def number(rng: random.Random, max_digits: int = 4) -> int:
    return rng.randrange(10 ** rng.randint(1, max_digits))


def digits(value: int, width: int) -> list:
    """Returns the digits of value, ones first."""
    return [value // 10**i % 10 for i in range(width)]


def width_of(a: int, b: int) -> int:
    return max(len(str(a)), len(str(b)))


def add_columns(a: int, b: int) -> tuple:
    """Returns a short and a long working of a + b, column by column from the ones."""
    width, carry, short, long = width_of(a, b), 0, [], []
    for place, (x, y) in enumerate(zip(digits(a, width), digits(b, width))):
        total = x + y + carry
        short.append(f"{x}+{y}+{carry}={total}")
        long.append(f"{PLACES[place]}: {x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        carry = total // 10
    return " ".join(short), "\n".join(long)


def subtract_columns(a: int, b: int) -> tuple:
    """Returns a short and a long working of a - b for a >= b, column by column from the ones."""
    width, borrow, short, long = width_of(a, b), 0, [], []
    for place, (x, y) in enumerate(zip(digits(a, width), digits(b, width))):
        rest = x - y - borrow
        short.append(f"{x}-{y}-{borrow}={rest}")
        digit, new = rest % 10, int(rest < 0)
        long.append(f"{PLACES[place]}: {x} - {y} - {borrow} = {rest}, write {digit}, borrow {new}")
        borrow = new
    return " ".join(short), "\n".join(long)


def addition(rng: random.Random) -> Problem:
    a, b = number(rng), number(rng)
    short, long = add_columns(a, b)
    answer = str(a + b)
    medium = f"{a} + {b}\n{long}\nSum: {answer}"
    return Problem(
        "addition",
        f"{min(a, b)},{max(a, b)}",
        say(rng, ADD, a=a, b=b),
        answer,
        {
            "low": f"{short} -> {answer}",
            "medium": medium,
            "high": f"{medium}\nCheck: {answer} - {b} is {a}, which is right.",
        },
    )


def subtraction(rng: random.Random) -> Problem:
    a, b = number(rng), number(rng)
    if a < b and rng.random() < 0.5:
        a, b = b, a
    large, small = max(a, b), min(a, b)
    sign = "-" if a < b else ""
    short, long = subtract_columns(large, small)
    answer = str(a - b)
    turned = f"{a} is less than {b}, so the answer is negative.\n" if a < b else ""
    medium = f"{turned}{large} - {small}\n{long}\nDifference: {large - small}\nAnswer: {answer}"
    return Problem(
        "subtraction",
        f"{a},{b}",
        say(rng, SUBTRACT, a=a, b=b),
        answer,
        {
            "low": f"{sign}({large}-{small}) {short} -> {answer}",
            "medium": medium,
            "high": f"{medium}\nCheck: {answer} + {b} is {a}, which is right.",
        },
    )


SORT_UP = [
    "Sort these numbers: {list}",
    "Sort {list} in ascending order.",
    "Put these numbers in order: {list}.",
    "Arrange {list} from smallest to largest.",
    "Sort the list {list}.",
    "Order these from low to high: {list}",
    "Please sort these numbers from smallest to biggest: {list}",
    "What is {list} in increasing order?",
    "Write {list} in ascending order.",
]
SORT_DOWN = [
    "Sort {list} in descending order.",
    "Arrange {list} from largest to smallest.",
    "Order these from high to low: {list}",
    "Sort these numbers from biggest to smallest: {list}",
    "Put these numbers in decreasing order: {list}.",
    "What is {list} in decreasing order?",
    "Sort these numbers in reverse order: {list}",
    "Write {list} in descending order.",
]


def joined(rng: random.Random, items: list) -> str:
    return rng.choice([", ", ", ", ", ", " ", ","]).join(map(str, items))


def sort_numbers(rng: random.Random) -> Problem:
    count, most = rng.randint(3, 8), rng.randint(1, 4)
    values = [number(rng, most) for _ in range(count)]
    down = rng.random() < 0.4
    ordered = sorted(values, reverse=down)
    answer = ", ".join(map(str, ordered))
    lengths = sorted({len(str(v)) for v in values}, reverse=down)
    groups = "\n".join(f"{n} digits: " + ", ".join(str(v) for v in values if len(str(v)) == n) for n in lengths)
    medium = f"{'Largest' if down else 'Smallest'} first.\n{groups}\nIn order: {answer}"
    return Problem(
        "sort_numbers",
        f"{down},{values}",
        say(rng, SORT_DOWN if down else SORT_UP, list=joined(rng, values)),
        answer,
        {"low": "", "medium": medium, "high": f"{medium}\nCheck: {count} numbers given, {count} in order."},
    )


# (large unit, its plural, short form, small unit's plural, short form, factor)
UNITS = [
    ("kilometre", "kilometres", "km", "metres", "m", 1000),
    ("metre", "metres", "m", "centimetres", "cm", 100),
    ("centimetre", "centimetres", "cm", "millimetres", "mm", 10),
    ("metre", "metres", "m", "millimetres", "mm", 1000),
    ("kilogram", "kilograms", "kg", "grams", "g", 1000),
    ("tonne", "tonnes", "t", "kilograms", "kg", 1000),
    ("litre", "litres", "l", "millilitres", "ml", 1000),
    ("hour", "hours", "h", "minutes", "min", 60),
    ("minute", "minutes", "min", "seconds", "s", 60),
    ("day", "days", "days", "hours", "h", 24),
    ("week", "weeks", "weeks", "days", "days", 7),
    ("dozen", "dozens", "dozens", "pieces", "pieces", 12),
]
CONVERT = [
    "How many {to} are {n} {of}?",
    "Convert {n} {of} to {to}.",
    "What is {n} {of} in {to}?",
    "{n} {of} in {to}",
    "How many {to} are in {n} {of}?",
    "Express {n} {of} in {to}.",
    "Turn {n} {of} into {to}.",
    "{n} {of} is how many {to}?",
    "Change {n} {of} to {to}.",
    "How much is {n} {of} in {to}?",
]


def multiply(n: int, factor: int) -> str:
    """Returns the working of n * factor: appends zeros for a power of ten, otherwise multiplies digit by digit."""
    if str(factor).strip("0") == "1":
        return f"append {str(factor)[1:]} to {n}"
    total, steps = 0, []
    for place, digit in enumerate(digits(n, len(str(n)))):
        part = digit * 10**place * factor
        total += part
        steps.append(f"{digit * 10**place} * {factor} = {part}, total {total}")
    return "\n".join(steps)


def divide(n: int, factor: int) -> str:
    """Returns the working of n / factor: drops zeros for a power of ten, otherwise long division from the first digit."""
    if str(factor).strip("0") == "1":
        return f"drop {str(factor)[1:]} from {n}"
    rest, steps = 0, []
    for digit in str(n):
        here = rest * 10 + int(digit)
        rest = here % factor
        steps.append(f"{here} / {factor} = {here // factor}, rest {rest}")
    return "\n".join(steps)


def units(rng: random.Random) -> Problem:
    one, many, short, to_many, to_short, factor = rng.choice(UNITS)
    most = 999 if factor in (10, 100, 1000) else 99
    n = rng.randint(1, most)
    spelled = rng.random() < 0.6
    to = to_many if spelled else to_short
    up = rng.random() < 0.35
    if up:  # from the small to the large unit, whole results only
        given, of, goal, answer = n * factor, to, many if spelled else short, n
        working = f"1 {one} is {factor} {to_many}. {given} / {factor}\n{divide(given, factor)}"
    else:
        given, goal, answer = n, to, n * factor
        of = (one if n == 1 else many) if spelled else short
        working = f"1 {one} is {factor} {to_many}. {given} * {factor}\n{multiply(n, factor)}"
    result = f"{answer} {one if up and answer == 1 and spelled else goal}"
    return Problem(
        "units",
        f"{one},{to_many},{n},{up}",
        say(rng, CONVERT, n=given, of=of, to=goal),
        result,
        {
            "low": working.split("\n")[0],
            "medium": f"{working}\nThe answer is {result}.",
            "high": f"{working}\nThe answer is {result}.\nCheck: {n} {many} and {n * factor} {to_many} are the same.",
        },
    )
