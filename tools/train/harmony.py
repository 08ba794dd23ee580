"""Conversations in gpt-oss's chat format, as text and as token ids.

A prompt ends with <|start|>assistant. The model then writes
<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>ANSWER<|return|>
or only the final message. In a past turn only the final message is kept, and ends with <|end|>.

Source  openai/harmony, and gpt-oss's chat template.
"""

import dataclasses

from problem import JOIN

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."


class Special(str):
    """A special token, as distinct from text that merely looks like one."""


START, END, MESSAGE, CHANNEL, RETURN = map(Special, ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"])


@dataclasses.dataclass
class System:
    identity: str = IDENTITY
    cutoff: str = "2024-06"  # "" omits the line
    date: str = "2025-06-28"  # "" omits the line
    effort: str = "medium"
    instructions: str = ""  # of the developer message; "" omits it


def system_parts(system: System) -> list:
    """Returns the system message as a list of texts and special tokens."""
    lines = [system.identity]
    if system.cutoff:
        lines.append(f"Knowledge cutoff: {system.cutoff}")
    if system.date:
        lines.append(f"Current date: {system.date}")
    text = "\n".join(lines) + f"\n\nReasoning: {system.effort}\n\n{CHANNELS}"
    parts = [START, "system", MESSAGE, text, END]
    if system.instructions:
        parts += [START, "developer", MESSAGE, f"# Instructions\n\n{system.instructions}", END]
    return parts


def user_parts(text: str) -> list:
    return [START, "user", MESSAGE, text, END]


def past_answer_parts(answer: str) -> list:
    return [START, "assistant", CHANNEL, "final", MESSAGE, answer, END]


def prompt_parts(system: System, turns: list) -> list:
    """turns: past (question, answer) pairs, then (question, None)."""
    parts = system_parts(system)
    for question, answer in turns:
        parts += user_parts(question)
        if answer is not None:
            parts += past_answer_parts(answer)
    return parts + [START, "assistant"]


def reply_parts(working: str, answer: str) -> list:
    """Returns the parts that the model must write after a prompt."""
    final = [CHANNEL, "final", MESSAGE, answer, RETURN]
    if not working:
        return final
    return [CHANNEL, "analysis", MESSAGE, working, END, START, "assistant"] + final


def ids_of(parts: list, tokenizer) -> list:
    """Returns the ids of parts. Text between two JOINs is tokenized separately and never becomes a special token.
    tokenizer.encode_special_tokens must be true."""
    out = []
    for part in parts:
        if isinstance(part, Special):
            out.append(tokenizer.token_to_id(part))
            continue
        for piece in part.split(JOIN):
            if piece:
                out += tokenizer.encode(piece, add_special_tokens=False).ids
    return out


def final_text(reply: str) -> str:
    """Returns the final message of a reply that was decoded with its special tokens, or ""."""
    if "<|channel|>final<|message|>" not in reply:
        return ""
    return reply.split("<|channel|>final<|message|>")[-1].split("<|")[0].strip()
