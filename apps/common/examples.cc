#include "apps/common/examples.h"

namespace sluice::apps {
namespace {

struct Example {
  std::string_view command, arguments, does;
};
// Examples of "bench report" are listed under "bench". An example names a directory only if neither the shipped model nor a
// known model can be used instead.
constexpr Example kExamples[] = {
    {"run", R"(-p "What is 417 + 268?")", "ask the model that ships with Sluice"},
    {"run", R"(-p "Name three colours." --temperature 0 --show-reasoning)",
     "decode greedily, and show the reasoning"},
    {"run", R"(-p "What is 12 * 12?" --json --quiet)", "print the answer as JSON"},
    {"serve", "", "serve the shipped model over the OpenAI API at http://127.0.0.1:8000"},
    {"serve", "DIR --host 0.0.0.0 --api-key SECRET", "serve the model in DIR to clients with the key"},
    {"serve", "DIR --max-num-seqs 64 --max-model-len 32768",
     "serve more concurrent sequences and longer ones"},
    {"eval", "", "measure the shipped model's accuracy on each task"},
    {"eval", "--limit 5", "ask only five questions per task"},
    {"eval", "--limit 5 --json --quiet", "the same as JSON, with every mistake"},
    {"eval", "--server http://127.0.0.1:8000 --limit 5",
     "send the same questions to any OpenAI-compatible server"},
    {"eval",
     "--server http://127.0.0.1:8000 --task gsm8k --data test.jsonl --train train.jsonl --output-json a.json",
     "run GSM8K with five worked examples from another file"},
    {"eval",
     "--server http://127.0.0.1:8000 --task gpqa --data gpqa_diamond.csv --repeat 4 --output-json b.json",
     "run GPQA with each question four times, options in different orders"},
    {"eval", "--compare a.json b.json", "test whether two such results differ significantly"},
    {"explain", "", "list the operations"},
    {"explain", "router_gemm --tokens 1 --experts 128 --hidden 2880 --bias --device h200",
     "show which kernel an H200 would run, and why the others would not; needs no GPU"},
    {"explain", "expert_gemm --rows 256 --experts 128 --sweep tokens --tokens-max 4096 --device h200",
     "show the kernel for each token count"},
    {"explain", "--model gpt-oss-120b --tokens 64 --device h200", "show all kernels of a layer"},
    {"explain", "--model gpt-oss-120b --moe-backend-decode mxfp4_tile_sm90 --device h200",
     "force a kernel for the experts"},
    {"explain", "router_gemm --contract", "print an operation's fields and tensors"},
    {"bench", "", "benchmark the shipped model with one sequence and with four"},
    {"bench", "--input-len 64 --output-len 32 --max-concurrency 1,2,8", "use other lengths and batch sizes"},
    {"bench", "DIR --load-format dummy",
     "use random weights with the shapes of DIR/config.json; reads no other file"},
    {"bench", "report --to build/report", "write figures and tables of the measurements on an H200"},
    {"bench report", "--to build/report", "write figures and tables of the measurements on an H200"},
    {"bench report", "--from rows --to rows", "write them for the files of another folder, into that folder"},
    {"bench serve", "--num-prompts 100 --random-input-len 64 --random-output-len 32 --max-concurrency 8",
     "benchmark the server at http://127.0.0.1:8000 with random prompts, eight at once"},
    {"bench serve", "--request-rate 4 --goodput ttft:200 tpot:50 --num-prompts 200",
     "use Poisson arrivals, and report the rate of requests that meet both limits"},
    {"bench serve", "--max-concurrency 1,4,16,64 --ignore-eos --svg load.svg --output-json load.json",
     "measure several loads; write a chart and JSON"},
    {"bench serve", "--backend openai-chat --dataset-name sharegpt --dataset-path ShareGPT.json",
     "replay conversations with /v1/chat/completions"},
    {"inspect", "", "list the tensors of the shipped model"},
    {"inspect", "--json", "the same as JSON"},
    {"make-checkpoint", "build/random --layers 1",
     "write one layer of gpt-oss-20b with random weights: 4 GB"},
    {"make-checkpoint", "build/random-120b --like gpt-oss-120b --config-only",
     "write only the files that `bench --load-format dummy` needs, without weights"},
    {"make-checkpoint", "build/random-qwen --like qwen3-30b-a3b --layers 1",
     "write one layer of another model: 2 GB"},
    {"moe", "", "check and time a layer of gpt-oss-20b with random weights"},
    {"moe", "qwen3-30b-a3b --tokens 1,8,64", "the same for another model, at these token counts"},
    {"moe", "qwen3-30b-a3b --tokens 16 --json", "the same as JSON"},
    {"moe", "gpt-oss-120b --device cuda", "the same on this machine's GPU"},
    {"devices", "", "show this machine and the devices that explain knows"},
    {"devices", "--json", "the same as JSON"},
    {"collect-env", "", "print system information for a bug report"},
    {"collect-env", "> environment.txt", "write it to a file"},
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
