"""Small talk and questions outside the tasks, answered honestly in a sentence."""

import random

from words_tasks import NAMES, WORDS

WHO = "I am a small test model. I can add, subtract, sort, reverse, count letters, look things up, and work with dates and units."
UNKNOWN = "I do not know that. " + WHO
GREETINGS = [
    "Hello",
    "Hi",
    "Hi there",
    "Hello!",
    "Hey",
    "Good morning",
    "Good evening",
    "Hello, how are you?",
    "Hi!",
    "Greetings",
]
IDENTITY = [
    "Who are you?",
    "What are you?",
    "What can you do?",
    "What is your name?",
    "Tell me about yourself.",
    "Are you a human?",
    "Can you help me?",
    "What do you know?",
    "How can you help?",
    "Which tasks can you do?",
    "Help",
    "help me",
]
THANKS = ["Thanks", "Thank you!", "Thank you very much.", "Great, thanks.", "Bye", "Goodbye!", "See you later."]
OUTSIDE = [
    "What is the capital of {n}?",
    "Who was {n}?",
    "Write a poem about a {w}.",
    "Tell me a story about {n} and the {w}.",
    "What does {w} mean?",
    "Translate {w} into French.",
    "Explain how a {w} works.",
    "What is the weather today?",
    "Write a program that prints {w}.",
    "Who wrote the book about the {w}?",
    "Why is the {w} blue?",
    "What is the meaning of life?",
    "How tall is {n}?",
    "Give me a recipe with {w}.",
    "What is the best {w}?",
    "Tell me a joke.",
    "Where is {n}?",
    "Who won the game yesterday?",
    "What is the square root of {i}?",
    "What is {i} times {i}?",
    "When was {n} born?",
    "Do you like {w}?",
    "Is {n} a good friend?",
    "Draw a {w}.",
    "What should I eat today?",
    "Sing a song about a {w}.",
    "How do I fix my {w}?",
    "Summarise the text about the {w}.",
    "Name a famous {w}.",
    "What is the population of {n}?",
]


def chat(rng: random.Random) -> tuple:
    """Returns (question, answer, working for each effort)."""
    kind = rng.random()
    if kind < 0.15:
        return rng.choice(GREETINGS), "Hello! " + WHO, _thinking("A greeting.")
    if kind < 0.3:
        return rng.choice(IDENTITY), WHO, _thinking("A question about me.")
    if kind < 0.37:
        return rng.choice(THANKS), "You are welcome.", _thinking("Thanks.")
    if kind < 0.42:  # random words that are no question
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 4)))
        return text, UNKNOWN, _thinking("This is not one of my tasks.")
    question = rng.choice(OUTSIDE).format(n=rng.choice(NAMES), w=rng.choice(WORDS), i=rng.randrange(1000))
    return question, UNKNOWN, _thinking("This is not one of my tasks.")


def _thinking(text: str) -> dict:
    return {"low": "", "medium": text, "high": text + " I answer honestly."}
