#include "apps/common/examples.h"

namespace sluice::apps {
namespace {

struct Example {
  std::string_view command, arguments, does;
};
// Those of "bench report" are its parent's. A directory stands only where no model that ships or is known would do.
constexpr Example kExamples[] = {
    {"run", R"(-p "What is 417 + 268?")", "asks the model that ships with Sluice"},
    {"run", R"(-p "Name three colours." --temperature 0 --show-reasoning)",
     "the likeliest answer, and its reasoning"},
    {"run", R"(-p "What is 12 * 12?" --json --quiet)", "the answer as JSON"},
    {"serve", "", "the OpenAI API over the model that ships, at http://127.0.0.1:8000"},
    {"serve", "DIR --host 0.0.0.0 --api-key SECRET", "the model in DIR, for whoever has the key"},
    {"serve", "DIR --max-num-seqs 64 --max-model-len 32768", "more sequences at once, longer ones"},
    {"eval", "", "accuracy of the model that ships, for each task"},
    {"eval", "--limit 5", "with five questions of each task"},
    {"eval", "--limit 5 --json --quiet", "the same as JSON, with every mistake"},
    {"eval", "--server http://127.0.0.1:8000 --limit 5", "the same questions to a server, whichever it is"},
    {"eval",
     "--server http://127.0.0.1:8000 --task gsm8k --data test.jsonl --train train.jsonl --output-json a.json",
     "GSM8K, with five worked examples of another file"},
    {"eval",
     "--server http://127.0.0.1:8000 --task gpqa --data gpqa_diamond.csv --repeat 4 --output-json b.json",
     "GPQA, each question four times with its options in another order"},
    {"eval", "--compare a.json b.json", "whether two such results differ, and how sure that is"},
    {"explain", "", "lists the operations"},
    {"explain", "router_gemm --tokens 1 --experts 128 --hidden 2880 --bias --device h200",
     "which kernel an H200 would run, and why not the others; needs no GPU"},
    {"explain", "expert_gemm --rows 256 --experts 128 --sweep tokens --tokens-max 4096 --device h200",
     "the choice at each count of tokens"},
    {"explain", "--model gpt-oss-120b --tokens 64 --device h200", "all kernels of a layer"},
    {"explain", "--model gpt-oss-120b --moe-backend-decode mxfp4_tile_sm90 --device h200",
     "the same with a kernel of the experts by name"},
    {"explain", "router_gemm --contract", "fields and tensors of an operation"},
    {"bench", "", "the model that ships, one sequence and four at once"},
    {"bench", "--input-len 64 --output-len 32 --max-concurrency 1,2,8",
     "other lengths and counts of sequences"},
    {"bench", "DIR --load-format dummy",
     "random weights of the shapes in DIR/config.json; no other file is read"},
    {"bench", "report --to build/report", "figures and tables of what was measured on an H200"},
    {"bench report", "--to build/report", "figures and tables of what was measured on an H200"},
    {"bench report", "--from rows --to rows", "the same of the files in another folder, beside them"},
    {"bench serve", "--num-prompts 100 --random-input-len 64 --random-output-len 32 --max-concurrency 8",
     "the server at http://127.0.0.1:8000, random prompts, eight at once"},
    {"bench serve", "--request-rate 4 --goodput ttft:200 tpot:50 --num-prompts 200",
     "requests that arrive as a Poisson process, and how many of them keep both bounds"},
    {"bench serve", "--max-concurrency 1,4,16,64 --ignore-eos --svg load.svg --output-json load.json",
     "several loads, drawn and as JSON"},
    {"bench serve", "--backend openai-chat --dataset-name sharegpt --dataset-path ShareGPT.json",
     "conversations, by /v1/chat/completions"},
    {"inspect", "", "the tensors of the model that ships"},
    {"inspect", "--json", "the same as JSON"},
    {"make-checkpoint", "build/random --layers 1", "one layer of gpt-oss-20b with random weights: 4 GB"},
    {"make-checkpoint", "build/random-120b --like gpt-oss-120b --config-only",
     "what `bench --load-format dummy` wants of it: no weights"},
    {"make-checkpoint", "build/random-qwen --like qwen3-30b-a3b --layers 1",
     "one layer of another model: 2 GB"},
    {"moe", "", "a layer of gpt-oss-20b with random weights, checked and timed"},
    {"moe", "qwen3-30b-a3b --tokens 1,8,64", "of another model, at these counts of tokens"},
    {"moe", "qwen3-30b-a3b --tokens 16 --json", "the same as JSON"},
    {"moe", "gpt-oss-120b --device cuda", "on this machine's GPU"},
    {"draft", "DIR", "the draft layer of the DeepSeek V3 checkpoint in DIR, on the CPU"},
    {"draft", "DIR --experts cuda --tokens 1,4,16",
     "its MoE layers on the GPU, at these counts of sequences"},
    {"devices", "", "this machine, and the devices that explain knows"},
    {"devices", "--json", "the same as JSON"},
    {"collect-env", "", "what a report of a fault should contain"},
    {"collect-env", "> environment.txt", "the same as a file"},
};

}  // namespace

std::string examples_of(std::string_view command, std::string_view program) {
  std::string out;
  for (const Example& e : kExamples) {
    if (e.command != command) continue;
    out += (out.empty() ? "Examples:\n  # " : "\n  # ") + std::string(e.does) + "\n  " +
           std::string(program) + " " + std::string(command) + (e.arguments.empty() ? "" : " ") +
           std::string(e.arguments);
  }
  return out;
}

}  // namespace sluice::apps
