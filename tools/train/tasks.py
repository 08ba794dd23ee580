"""All tasks, and random conversations made of them."""

import random

import chat
from dates_tasks import dates, weekdays
from harmony import IDENTITY, System, prompt_parts, reply_parts
from numbers_tasks import addition, sort_numbers, subtraction, units
from problem import EFFORTS, Problem, held_out
from words_tasks import count_letters, lookup, reverse_list, reverse_word, sort_words

TASKS = {
    f.__name__: f
    for f in (
        addition,
        subtraction,
        sort_numbers,
        sort_words,
        reverse_word,
        reverse_list,
        count_letters,
        lookup,
        dates,
        weekdays,
        units,
    )
}
# Tasks that are harder to learn have larger weights.
WEIGHTS = {
    "addition": 2.0,
    "subtraction": 2.5,
    "sort_numbers": 1.5,
    "sort_words": 2.0,
    "reverse_word": 1.3,
    "reverse_list": 1.2,
    "count_letters": 1.3,
    "lookup": 1.0,
    "dates": 2.0,
    "weekdays": 1.0,
    "units": 1.2,
}
CHAT_SHARE = 0.05

IDENTITIES = [
    IDENTITY,
    "You are a helpful assistant.",
    "You are a small language model.",
    "You are Sluice, a small language model.",
    "You are an assistant that answers in short sentences.",
    "You are a test model.",
]
INSTRUCTIONS = [
    "Answer briefly.",
    "Be polite.",
    "Give the answer only.",
    "You help with numbers, words and dates.",
    "Answer in English.",
    "Keep the answer short.",
    "Do not explain.",
    "Always be correct.",
]


def draw(rng: random.Random, task: str, wanted_held_out: bool) -> Problem:
    """Returns a random problem of the task, held out or not."""
    while True:
        problem = TASKS[task](rng)
        if held_out(problem) == wanted_held_out:
            return problem


def _system(rng: random.Random) -> System:
    system = System(effort=rng.choices(EFFORTS, [0.2, 0.55, 0.25])[0])
    if rng.random() < 0.4:  # the default system message remains the most frequent
        return system
    if rng.random() < 0.6:
        system.identity = rng.choice(IDENTITIES)
    dice = rng.random()
    if dice < 0.3:
        system.cutoff = system.date = ""
    elif dice < 0.4:
        system.cutoff = ""
    elif dice < 0.8:
        system.date = f"{rng.randint(2023, 2031)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    if rng.random() < 0.3:
        system.instructions = rng.choice(INSTRUCTIONS)
    return system


def _turn(rng: random.Random) -> tuple:
    if rng.random() < CHAT_SHARE:
        return chat.chat(rng)
    task = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    problem = draw(rng, task, wanted_held_out=False)
    return problem.question, problem.answer, problem.working


def conversation(rng: random.Random) -> tuple:
    """Returns (parts of the prompt, parts of the reply) of a conversation, usually of one turn, sometimes of two or three."""
    system = _system(rng)
    past = [_turn(rng)[:2] for _ in range(rng.choices([0, 1, 2], [0.87, 0.1, 0.03])[0])]
    question, answer, working = _turn(rng)
    return prompt_parts(system, past + [(question, None)]), reply_parts(working[system.effort], answer)


def evaluation(count: int, seed: int) -> list:
    """Returns `count` different held-out problems, cycling through the tasks."""
    rng, seen, out = random.Random(seed), set(), []
    names = list(TASKS)
    while len(out) < count:
        problem = draw(rng, names[len(out) % len(names)], wanted_held_out=True)
        if problem.question in seen:
            continue
        seen.add(problem.question)
        out.append(problem)
    return out
