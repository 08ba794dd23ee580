"""The trainer of a draft head (tools/train): it trains exactly the computation that a server runs."""
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

def test_unrolled_steps_are_steps_with_a_cache(root, run_python):
    run_python("""
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch
        from head import Head, HeadConfig

        def compare(before_fc, before_residual, output):
            config = HeadConfig(vocab=64, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, norm_before_fc=before_fc,
                                norm_before_residual=before_residual, norm_output=output)
            head = Head(config, torch.randn(64, 32), torch.randn(64, 32))
            prompts, lengths, left, steps = [3, 7, 5], [9, 20, 12], 7, 4  # of one batch, whose rows have padding on both sides
            columns = left + 13
            features, ids = torch.randn(3, columns, 96), torch.randint(64, (3, columns))
            positions = torch.arange(columns) - (left - torch.tensor(prompts)[:, None])
            unrolled = list(head.unroll(features, ids, positions, left - 1, steps))
            compared = 0
            for row in range(3):
                begin = left - prompts[row]
                sequence, streams = ids[row : row + 1, begin:], features[row : row + 1, begin:]
                cache, at = None, 0
                for last in range(prompts[row] - 1, lengths[row] - 2):  # the entry of the first draft
                    tokens, places = sequence[:, at + 1 : last + 2], torch.arange(at, last + 1)[None]
                    g, y, cache = head.extend(head.reduced(streams[:, at : last + 1]), tokens, places, cache)
                    at, own = last + 1, cache
                    for t in range(min(steps, lengths[row] - 1 - last)):
                        if t:
                            token = sequence[:, last + 1 + t : last + 2 + t]
                            g, y, own = head.extend(g[:, -1:], token, torch.tensor([[last + t]]), own)
                        wanted = unrolled[t][row : row + 1, last + begin - left + 1]
                        torch.testing.assert_close(y[:, -1], wanted, atol=1e-5, rtol=1e-4)
                        compared += 1
            assert compared > 60, compared

        torch.manual_seed(1)
        compare(True, True, False)
        compare(False, False, False)
        compare(True, False, True)
    """, str(root / "tools" / "train"))


def test_the_target_answers_a_batch_as_one_prompt(root, run_python):
    run_python("""
        import json, pathlib, sys
        root = pathlib.Path(sys.argv[1])
        sys.path.insert(0, str(root / "tools" / "train"))
        import torch
        from answers import load_tokenizer
        from harmony import System, final_text, ids_of, prompt_parts
        from target import Target

        model = root / "models" / "sluice-16e-tiny"
        target, tokenizer = Target(model, "cpu", torch.float32), load_tokenizer(model)
        questions = [json.loads(line) for line in (model / "eval.jsonl").read_text().splitlines()][4:8:3]
        prompts = [ids_of(prompt_parts(System(), [(q["question"], None)]), tokenizer) for q in questions]
        together = target.answers(prompts, [False, False], 60, torch.Generator())
        for question, prompt, answer in zip(questions, prompts, together):
            assert final_text(tokenizer.decode(answer, skip_special_tokens=False)) == question["answer"]
            assert target.answers([prompt], [False], 60, torch.Generator()) == [answer]
    """, str(root))
