"""vllm_run.py FILE: runs one vLLM engine that FILE describes, in its own process, and writes its answers to FILE.out; both are JSON.

{"engine": {arguments of vllm.LLM}, "ask": [{"prompts": [...], "sampling": {...}, "before": "reload"|"fill", "adapters": [folder or null for each
prompt]}, ...]}
With a draft model the log contains the numbers of proposed and accepted drafts.
"""
import json
import sys

NUMBERS: dict[str, int] = {}  # of adapters, by folder


def ask(llm, question: dict) -> list[dict]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    if question.get("before") == "reload":
        llm.collective_rpc("reload_weights")
    adapters = question.get("adapters")
    if adapters:
        # vLLM tells adapters apart by their numbers.
        adapters = [LoRARequest(folder, NUMBERS.setdefault(folder, len(NUMBERS) + 1), folder) if folder else None for folder in adapters]
    said = llm.generate(question["prompts"], SamplingParams(temperature=0, **question["sampling"]), lora_request=adapters, use_tqdm=False)
    return [{"text": s.outputs[0].text, "tokens": list(s.outputs[0].token_ids),
             "top": [{str(t): p.logprob for t, p in at.items()} for at in s.outputs[0].logprobs or []]} for s in said]


def main() -> None:
    path = sys.argv[1]
    given = json.load(open(path))
    from vllm import LLM

    llm = LLM(**given["engine"])
    with open(path + ".out", "w") as out:
        json.dump([ask(llm, question) for question in given["ask"]], out)
    if "speculative_config" in given["engine"]:
        accepted, guessed = (next(m.value for m in llm.get_metrics() if m.name == f"vllm:spec_decode_num_{of}_tokens")
                             for of in ("accepted", "draft"))
        print(f"guesses: {accepted} of {guessed} accepted")


if __name__ == "__main__":
    main()
