"""Lists the questions that a model answers differently on two devices, and how close its choices were.

    eval_gaps.py SLUICE [--model MODEL] [--devices cuda cpu]

Asks all questions of `sluice eval` on both devices. For each question with different answers it prints, at the first different token, by how
much each device prefers its own token: the difference of the two logits.
"""

import argparse
import json
import subprocess
import sys

DATE = "2025-06-28"  # the date in the prompts of `sluice eval`
TOPS = 20


def asked(arguments: argparse.Namespace, device: str, *words: str) -> dict:
    command = [arguments.sluice, *words, "--device", device, "--json", "--quiet"]
    if arguments.model:
        command += ["--model", arguments.model]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def lead(token: dict, over: int) -> float:
    """Returns by how much a token's logit exceeds another token's logit."""
    others = [other["logprob"] for other in token["top_logprobs"] if other["id"] == over]
    return token["logprob"] - others[0] if others else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sluice")
    parser.add_argument("--model")
    parser.add_argument("--devices", nargs=2, default=["cuda", "cpu"])
    arguments = parser.parse_args()
    mistakes = []
    for device in arguments.devices:
        report = asked(arguments, device, "eval")
        print(f"{device}: {report['right']} of {report['questions']} right, on {report['device']}")
        mistakes.append({m["question"]: (m["wanted"], m["found"]) for m in report["mistakes"]})
    apart = [q for q in {**mistakes[0], **mistakes[1]} if mistakes[0].get(q) != mistakes[1].get(q)]
    print(f"{len(apart)} questions have different answers")
    for question in apart:
        run = ("run", "-p", question, "--temperature", "0", "--current-date", DATE, "--logprobs", str(TOPS))
        replies = [asked(arguments, device, *run) for device in arguments.devices]
        print(f"\n{question}  (wanted: {(mistakes[0].get(question) or mistakes[1].get(question))[0]})")
        tokens = [reply["logprobs"] for reply in replies]
        at = next((i for i, (a, b) in enumerate(zip(*tokens)) if a["id"] != b["id"]), None)
        for device, reply, own, other in zip(arguments.devices, replies, tokens, reversed(tokens)):
            by = "" if at is None else f"token {at} is {own[at]['token']!r} by {lead(own[at], other[at]['id']):.4f}"
            print(f"  {device}: {reply['text']!r}  {by}")
        if at is None:
            print("  asked alone, both give the same tokens; the answers differ only in a batch")


if __name__ == "__main__":
    main()
