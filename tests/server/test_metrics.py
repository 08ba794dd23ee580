"""/metrics agrees with the answers of clients."""
import re
import unittest

from server import ServerTest, close, wait_until

COMPLETION = "/v1/completions"
LAYERS, EXPERTS, TOP_K = 6, 16, 4  # of the shipped model


class Metrics(ServerTest):
    def test_metrics(self):
        before = self.server.metric("vllm:generation_tokens_total")
        usage = self.server.chat(max_tokens=12)["usage"]
        self.assertEqual(self.server.metric("vllm:generation_tokens_total") - before, usage["completion_tokens"])
        self.assertEqual(self.server.metric("sluice:generation_tokens_total"), self.server.metric("vllm:generation_tokens_total"))
        text = self.server.ask("/metrics")[2]
        names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        for line in text.splitlines():
            if not line.startswith("#"):
                name = line.split("{")[0]
                base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                self.assertTrue({name, base} & names, line)
                float(line.rsplit(" ", 1)[1])

    def test_an_idle_server_has_no_queue(self):
        """A prompt of one step is computed in the time to its first token, and does not wait."""
        names = ("request_queue_time_seconds_sum", "request_prefill_time_seconds_sum", "time_to_first_token_seconds_sum")
        before = [self.server.metric(f"vllm:{name}") for name in names]
        self.server.ask(COMPLETION, {"prompt": [1 + i % 900 for i in range(400)], "max_tokens": 2, "ignore_eos": True})
        queue, prefill, first = (self.server.metric(f"vllm:{name}") - b for name, b in zip(names, before))
        self.assertGreater(prefill, queue)
        self.assertAlmostEqual(queue + prefill, first, places=6)

    def test_an_echo_generates_nothing(self):
        names = ("vllm:generation_tokens_total", "vllm:request_generation_tokens_sum")
        before = [self.server.metric(name) for name in names]
        self.assertEqual(self.server.ask(COMPLETION, {"prompt": "a b c", "max_tokens": 0, "echo": True})[2]["usage"]["completion_tokens"], 0)
        self.assertEqual([self.server.metric(name) for name in names], before)

    def test_kernel_runs(self):
        def runs():
            lines = [line for line in self.server.ask("/metrics")[2].splitlines() if line.startswith("sluice:kernel_runs_total{")]
            return {line.split('kernel="')[1].split('"')[0]: int(line.rsplit(" ", 1)[1]) for line in lines}

        self.server.chat(max_tokens=2)
        before = runs()
        self.server.chat(max_tokens=12, ignore_eos=True)
        more = {kernel: count - before.get(kernel, 0) for kernel, count in runs().items()}
        self.assertTrue(all(kernel.startswith("cpu.") for kernel in more), more)
        self.assertEqual(sum(count for kernel, count in more.items() if kernel.startswith("cpu.sample.")), 12)


class ExpertTokens(ServerTest):
    def test_add_up(self):
        def series(name):
            """Samples by (layer, expert) or (layer,)."""
            lines = [line for line in self.server.ask("/metrics")[2].splitlines() if line.startswith(name + "{")]
            return {tuple(int(n) for n in re.findall(r'(?:layer|expert)="(\d+)"', line)): float(line.rsplit(" ", 1)[1]) for line in lines}

        def of_layers(tokens):
            return {layer: sum(n for (at, _), n in tokens.items() if at == layer) for layer, _ in tokens}

        def settled(before, computed):
            """The counters, once each layer has counted this many more tokens."""
            more = {layer: n + computed * TOP_K for layer, n in of_layers(before).items()}
            wait_until(lambda: of_layers(series("sluice:expert_tokens_total")) == more, "counters of experts that add up")
            return series("sluice:expert_tokens_total")

        # No step computes the last token of an answer.
        prompt, tokens = list(range(100, 170)), 40
        before = series("sluice:expert_tokens_total")
        self.assertEqual(before, {(layer, expert): 0 for layer in range(LAYERS) for expert in range(EXPERTS)})
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        self.assertEqual(self.server.ask(COMPLETION, body)[2]["usage"]["completion_tokens"], tokens)
        once = settled(before, len(prompt) + tokens - 1)
        # Prefix cache hits are not computed.
        usage = self.server.ask(COMPLETION, body)[2]["usage"]
        found = usage["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(found, 0)
        twice = settled(once, len(prompt) - found + tokens - 1)
        for layer, imbalance in series("sluice:expert_load_imbalance").items():
            of_layer = [n for (at, _), n in twice.items() if (at,) == layer]
            self.assertAlmostEqual(imbalance, max(of_layer) / (sum(of_layer) / EXPERTS), places=9)
        # The counters also grow during an answer.
        stream = self.server.open_stream(COMPLETION, prompt=prompt, max_tokens=3900, ignore_eos=True, n=8)
        wait_until(lambda: of_layers(series("sluice:expert_tokens_total"))[0] > of_layers(twice)[0], "counters that go on")
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 8)
        close(stream)
        self.server.wait_until_idle()


if __name__ == "__main__":
    unittest.main()
