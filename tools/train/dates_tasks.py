"""Dates in a common year (365 days) and days of the week."""

import random

from problem import Problem, say

MONTHS = "January February March April May June July August September October November December".split()
LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

LATER = [
    "What date is {n} days after {d}?",
    "Which date comes {n} days after {d}?",
    "What is the date {n} days after {d}?",
    "Add {n} days to {d}.",
    "{d} plus {n} days",
    "It is {d}. What date is it in {n} days?",
    "{n} days from {d}?",
    "If today is {d}, what is the date {n} days from now?",
    "Start on {d} and go forward {n} days. What date is it?",
]
EARLIER = [
    "What date is {n} days before {d}?",
    "Which date comes {n} days before {d}?",
    "What was the date {n} days before {d}?",
    "Subtract {n} days from {d}.",
    "{d} minus {n} days",
    "It is {d}. What date was it {n} days ago?",
    "If today is {d}, what was the date {n} days ago?",
    "Start on {d} and go back {n} days. What date is it?",
]
BETWEEN = [
    "How many days are there from {a} to {b}?",
    "How many days are between {a} and {b}?",
    "How many days from {a} until {b}?",
    "Count the days from {a} to {b}.",
    "What is the number of days from {a} to {b}?",
    "It is {a}. How many days until {b}?",
    "How many days after {a} is {b}?",
    "How many days pass from {a} to {b}?",
]


def written(month: int, day: int) -> str:
    return f"{day} {MONTHS[month]}"


def asked(rng: random.Random, month: int, day: int) -> str:
    return written(month, day) if rng.random() < 0.75 else f"{MONTHS[month]} {day}"


def forward(month: int, day: int, n: int) -> tuple:
    """Returns (month, day, working) n days later. Months are subtracted until the day fits."""
    day, lines = day + n, [f"{day} + {n} = {day + n}"]
    while day > LENGTHS[month]:
        lines.append(f"{MONTHS[month]} has {LENGTHS[month]} days: {day} - {LENGTHS[month]} = {day - LENGTHS[month]}")
        day, month = day - LENGTHS[month], (month + 1) % 12
    lines.append(f"{day} fits in {MONTHS[month]}.")
    return month, day, "\n".join(lines)


def backward(month: int, day: int, n: int) -> tuple:
    """Returns (month, day, working) n days earlier. Months are added until the day is positive."""
    day, lines = day - n, [f"{day} - {n} = {day - n}"]
    while day < 1:
        month = (month - 1) % 12
        lines.append(f"{MONTHS[month]} has {LENGTHS[month]} days: {day} + {LENGTHS[month]} = {day + LENGTHS[month]}")
        day += LENGTHS[month]
    lines.append(f"{day} fits in {MONTHS[month]}.")
    return month, day, "\n".join(lines)


def dates(rng: random.Random) -> Problem:
    month, n, kind = rng.randrange(12), rng.randint(1, 60), rng.random()
    day = rng.randint(1, LENGTHS[month])
    start = asked(rng, month, day)
    if kind < 0.7:
        back = kind > 0.4
        to_month, to_day, working = (backward if back else forward)(month, day, n)
        answer = written(to_month, to_day)
        low = working.split("\n")[0]
        return Problem(
            "dates",
            f"{month},{day},{n},{back}",
            say(rng, EARLIER if back else LATER, n=n, d=start),
            answer,
            {
                "low": low,
                "medium": working,
                "high": f"{working}\nCheck: {n} days {'before' if back else 'after'} {start} is {answer}.",
            },
        )
    end_month, end_day, _ = forward(month, day, n)
    if end_month == month:
        working = f"Same month: {end_day} - {day} = {n}"
    else:
        total, lines = LENGTHS[month] - day, [f"Left in {MONTHS[month]}: {LENGTHS[month]} - {day} = {LENGTHS[month] - day}"]
        between = (month + 1) % 12
        while between != end_month:
            lines.append(f"{MONTHS[between]}: {total} + {LENGTHS[between]} = {total + LENGTHS[between]}")
            total, between = total + LENGTHS[between], (between + 1) % 12
        lines.append(f"{MONTHS[end_month]}: {total} + {end_day} = {n}")
        working = "\n".join(lines)
    question = say(rng, BETWEEN, a=start, b=asked(rng, end_month, end_day))
    return Problem(
        "dates",
        f"between,{month},{day},{end_month},{end_day}",
        question,
        f"{n} days" if n > 1 else "1 day",
        {
            "low": working.split("\n")[0],
            "medium": working,
            "high": f"{working}\nCheck: {start} and {n} days.",
        },
    )


WEEKDAY_LATER = [
    "What day of the week comes {n} days after {d}?",
    "Which day is {n} days after {d}?",
    "What day is it {n} days after {d}?",
    "Today is {d}. What day is it in {n} days?",
    "{d} plus {n} days is which day of the week?",
    "Which weekday comes {n} days after {d}?",
    "If today is {d}, what day will it be {n} days from now?",
    "It is {d}. Which day of the week is it {n} days later?",
]
WEEKDAY_EARLIER = [
    "What day of the week comes {n} days before {d}?",
    "Which day is {n} days before {d}?",
    "What day was it {n} days before {d}?",
    "Today is {d}. What day was it {n} days ago?",
    "{d} minus {n} days is which day of the week?",
    "Which weekday comes {n} days before {d}?",
    "If today is {d}, what day was it {n} days ago?",
    "It is {d}. Which day of the week was it {n} days earlier?",
]


def weekdays(rng: random.Random) -> Problem:
    start, n, back = rng.randrange(7), rng.randint(1, 100), rng.random() < 0.4
    answer = DAYS[(start - n if back else start + n) % 7]
    rest = n % 7
    weeks = f"{n} = 7 * {n // 7} + {rest}"
    step = -1 if back else 1
    steps = ", ".join(DAYS[(start + step * i) % 7] for i in range(rest + 1))
    working = f"{weeks}\n{rest} days {'back' if back else 'on'}: {steps}"
    return Problem(
        "weekdays",
        f"{start},{n},{back}",
        say(rng, WEEKDAY_EARLIER if back else WEEKDAY_LATER, n=n, d=DAYS[start]),
        answer,
        {
            "low": weeks,
            "medium": working,
            "high": f"{working}\nThe last one is {answer}.",
        },
    )
