// The built command: its output, streams and exit statuses.
#include <gtest/gtest.h>

#include <sstream>

#include "cli/command.h"

namespace sluice::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs a command that must succeed: status 0, nothing on stderr.
std::string answer(const std::vector<std::string>& words, int status = 0) {
  const Outcome o = sluice(words);
  EXPECT_EQ(o.status, status) << o.err << o.out;
  EXPECT_EQ(o.err, "");
  return o.out;
}

TEST(Cli, ExplainGivesEveryReasonAgainstEveryKernel) {
  const std::string text =
      answer({"explain", "router_gemm", "--tokens", "600", "--experts", "128", "--hidden", "2884", "--bias",
              "--device", "h200", "--force", "cuda.router_gemm.splitk_sm90"},
             1);
  const std::string want =
      "problem  router_gemm tokens=600 experts=128 hidden=2884 x=bf16 w=bf16 y=f32 bias=1\n"
      "device   h200 (sm90, 132 SMs)\n"
      "           -    cuda.router_gemm.gemv_sm90               refused\n";
  EXPECT_EQ(text.substr(0, want.size()), want);
  EXPECT_TRUE(contains(text,
                       "           -    cuda.router_gemm.splitk_sm90             refused\n"
                       "                needs hidden % 8 == 0 (16-byte chunks of a row); hidden=2884\n"
                       "                needs tokens <= 512 (every tile loads its rows again); tokens=600\n"))
      << text;
  EXPECT_TRUE(contains(
      text,
      "           -    cuda.router_gemm.fma_sm90                refused\n"
      "                needs policy.force to allow this kernel; policy.force=cuda.router_gemm.splitk_sm90\n"))
      << text;
  EXPECT_TRUE(contains(
      text,
      "           -    cpu.router_gemm.dot                      refused\n"
      "                needs a device of backend cpu; the device is h200 (sm90, 132 SMs)\n"
      "                needs policy.force to allow this kernel; policy.force=cuda.router_gemm.splitk_sm90\n"))
      << text;
  EXPECT_TRUE(contains(text, "!! no kernel supports this problem\n")) << text;
}

TEST(Cli, ExplainChoosesAndExitsWithZero) {
  const std::string text = answer({"explain", "router_gemm", "--tokens", "1", "--experts", "128", "--hidden",
                                   "2880", "--bias", "--device", "h200"});
  EXPECT_TRUE(contains(text, "->")) << text;
  EXPECT_TRUE(contains(text, "us  cuda.router_gemm.gemv_sm90")) << text;
  EXPECT_FALSE(contains(text, "(planned")) << text;
}

// Experts' weights are assumed to have the device's layout unless the problem names another layout.
TEST(Cli, ExplainsExpertsInTheDevicesLayout) {
  const std::string gpu = answer({"explain", "expert_gemm", "--device", "h200"});
  EXPECT_TRUE(contains(gpu, "layout=fragments")) << gpu;
  EXPECT_TRUE(contains(gpu, "->")) << gpu;
  EXPECT_TRUE(contains(answer({"explain", "expert_gemm", "--device", "cpu-avx2"}), "layout=panels16"));
  const std::string said = answer({"explain", "expert_gemm", "--layout", "panels16", "--device", "h200"});
  EXPECT_TRUE(contains(said, "needs layout fragments (ops/fragment_layout.h); layout=panels16")) << said;
}

TEST(Cli, ExplainWithoutADeviceAsksThisMachine) {
  const std::string text = answer({"explain", "router_gemm"});
  EXPECT_TRUE(contains(text, "device   cpu (")) << text;
  EXPECT_TRUE(contains(text, "->")) << text;
  EXPECT_EQ(answer({"explain", "router_gemm", "--device", "cpu"}), text);
}

TEST(Cli, FieldsTakeBothSpellingsAndFlagsTakeValues) {
  const std::string want = answer({"explain", "route_topk", "--top_k", "8", "--device", "h200"});
  EXPECT_TRUE(contains(want, "top_k=8 ")) << want;
  EXPECT_EQ(answer({"explain", "route_topk", "--top-k=8", "--device", "h200"}), want);
  EXPECT_EQ(answer({"explain", "--top-k", "8", "route_topk", "--device=h200"}), want);
  EXPECT_TRUE(
      contains(answer({"explain", "route_topk", "--scale-here=0", "--device", "h200"}), "scale_here=0"));
  EXPECT_TRUE(
      contains(answer({"explain", "route_topk", "--scale_here=false", "--device", "h200"}), "scale_here=0"));
}

TEST(Cli, NegativeValuesReachTheContract) {
  const std::string text = answer({"explain", "router_gemm", "--tokens", "-1", "--device", "h200"}, 1);
  EXPECT_TRUE(contains(text, "!! the contract needs tokens from 0 to 16384; tokens=-1")) << text;
  EXPECT_TRUE(contains(text, "!! no kernel supports this problem")) << text;
}

TEST(Cli, ListsTheOperations) {
  const std::string text = answer({"explain"});
  EXPECT_TRUE(contains(text, "router_gemm   scores every expert for every token\n")) << text;
  EXPECT_TRUE(contains(text, "sample ")) << text;
  EXPECT_TRUE(contains(answer({"explain", "--json"}), "\"op\": \"router_gemm\""));
}

TEST(Cli, SweepsOverTokens) {
  const std::string text = answer({"explain", "router_gemm", "--y", "bf16", "--device", "h200", "--sweep",
                                   "tokens", "--tokens-max", "4096"});
  EXPECT_TRUE(contains(text, "cuda.router_gemm.splitk_sm90")) << text;
  EXPECT_TRUE(contains(text, "      4096  ")) << text;
  EXPECT_TRUE(contains(text, "cuda.router_gemm.tile_sm90")) << text;
  const std::string json =
      answer({"explain", "router_gemm", "--device", "h200", "--sweep", "tokens", "--json"});
  EXPECT_TRUE(contains(json, "\"last\": 1024")) << json;
  const Outcome gap =
      sluice({"explain", "router_gemm", "--device", "h200", "--sweep", "tokens", "--tokens-max", "20000"});
  EXPECT_EQ(gap.status, 1);
  EXPECT_TRUE(contains(gap.err, "needs tokens from 0 to 16384; tokens=20000")) << gap.err;
}

TEST(Cli, PrintsContracts) {
  const std::string text = answer({"explain", "router_gemm", "--contract", "--tokens", "3"});
  EXPECT_TRUE(contains(text, "length of the sums")) << text;
  EXPECT_TRUE(contains(text, "bf16[3, 2880], rows may be strided")) << text;
  EXPECT_TRUE(contains(text, "bf16[128], not used by this problem")) << text;
  EXPECT_TRUE(contains(answer({"explain", "router_gemm", "--contract", "--json"}), "\"role\": \"out\""));
}

TEST(Cli, AnswersInJson) {
  const std::string text = answer({"explain", "router_gemm", "--device", "h200", "--json"});
  EXPECT_TRUE(contains(text, "\"chosen\": \"cuda.router_gemm.gemv_sm90\"")) << text;
  EXPECT_TRUE(contains(text, "\"planned\": false")) << text;
  const std::string none =
      answer({"explain", "router_gemm", "--device", "h200", "--force", "cpu.router_gemm.dot", "--json"}, 1);
  EXPECT_TRUE(contains(none, "\"chosen\": null")) << none;
}

TEST(Cli, WrongUseIsNamed) {
  EXPECT_EQ(complaint({"explain", "router_gem"}),
            "sluice: unknown operation 'router_gem'; did you mean 'router_gemm'?\n");
  EXPECT_EQ(complaint({"explain", "router_gemm", "--token", "1"}),
            "sluice: unknown flag '--token'; did you mean '--tokens'?\n");
  EXPECT_EQ(complaint({"explain", "router_gemm", "--biass=1"}),
            "sluice: unknown flag '--biass'; did you mean '--bias'?\n");
  EXPECT_EQ(complaint({"explain", "router_gemm", "--tokens", "many"}),
            "sluice: tokens: wanted an integer, found 'many'\n");
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--x", "f31"}), "x: wanted one of f32, bf16"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--bias=maybe"}), "'maybe'"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--device", "h201"}), "'h201'"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--force", "cpu.router_gemm.dto"}),
                       "cpu.router_gemm.dot"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--sweep", "experts"}), "--sweep"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--sweep", "tokens", "--tokens-max", "-1"}),
                       "--tokens-max"));
  EXPECT_TRUE(contains(complaint({"explain", "router_gemm", "--tokens"}), "--tokens"));
  EXPECT_EQ(complaint({"explain", "router_gemm", "extra"}), "sluice: unexpected argument 'extra'\n");
  EXPECT_EQ(complaint({"explan"}), "sluice: unknown command 'explan'; did you mean 'explain'?\n");
  EXPECT_TRUE(contains(complaint({"--nope"}), "--nope"));
  EXPECT_TRUE(contains(complaint({"devices", "--nope"}), "--nope"));
}

TEST(Cli, WrongUseSaysWhatWasWantedAndFound) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"run", "--temperature", "0", "--temperature", "1"},
       "--temperature: wanted once, found 2 times (see sluice run --help)"},
      {{"run", "-p", "a", "-p", "b", "-p", "c"},
       "--prompt: wanted once, found 3 times (see sluice run --help)"},
      {{"run", "-p", "a", "-f", "b"},
       "--prompt: wanted no --file next to it, found both (see sluice run --help)"},
      {{"run", "--max-tokens"}, "--max-tokens: wanted a value, found none (see sluice run --help)"},
      {{"eval", "--compare", "a.json"},
       "--compare: wanted at least 2 values, found 1 (see sluice eval --help)"},
      {{"eval", "--task", "nope"},
       "unknown --task 'nope'; known: questions gsm8k gpqa (see sluice eval --help)"},
      {{"moe", "--ep-rank", "0"}, "--ep-rank: needs --digest, found none (see sluice moe --help)"},
      {{"bench", "serve", "--num-prompts", "1", "--num-prompts", "2"},
       "--num-prompts: wanted once, found 2 times (see sluice bench serve --help)"},
      {{"collect-env", "--nope"}, "unexpected argument '--nope' (see sluice collect-env --help)"}};
  for (const auto& [words, said] : cases) EXPECT_EQ(complaint(words), "sluice: " + std::string(said) + "\n");
}

TEST(Cli, ExplainIgnoresNoFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--force", "x"}, "--force: needs an operation or --model, found none"},
      {{"--device", "zzz"}, "--device: needs an operation or --model, found none"},
      {{"--sweep", "tokens"}, "--sweep: needs an operation or --model, found none"},
      {{"--tokens", "5"}, "--tokens: needs --model, found none"},
      {{"--contract"}, "--contract: needs an operation, found none"},
      {{"--model", "gpt-oss-20b", "--contract"}, "--contract: needs an operation, found none"},
      {{"router_gemm", "--contract", "--device", "zzz"}, "--device: cannot be combined with --contract"},
      {{"router_gemm", "--sweep", "tokens", "--tokens", "4"},
       "--tokens: cannot be combined with --sweep tokens"},
      {{"--model", "gpt-oss-20b", "--experts", "5"}, "unknown flag '--experts'; known: --help"},
      {{"router_gemm", "--tokens-max", "5"}, "--tokens-max: needs --sweep, found none"},
      {{"--model", "gpt-oss-20b", "--device", "h200", "--max-model-len", "77"},
       "--max-model-len: wanted --model with a directory, found only the MoE layer 'gpt-oss-20b', which has "
       "no sequences"},
      {{"--model", SLUICE_SOURCE_DIR "/models/sluice-16e-tiny", "--device", "h200", "--max-model-len",
        "9999999"},
       "--max-model-len: wanted at most 4096 (max_position_embeddings), found 9999999"}};
  for (auto [words, said] : cases) {
    words.insert(words.begin(), "explain");
    const Outcome o = sluice(words);
    EXPECT_NE(o.status, 0) << said;
    EXPECT_EQ(o.err.find("sluice: " + std::string(said)), 0u) << o.err;
  }
}

TEST(Cli, AnEmptyValueIsAValue) {
  const std::string tiny = "hidden=64 intermediate=64 experts=8 top_k=2";
  const std::pair<std::vector<std::string>, std::string> empty[] = {
      {{"serve", "--host", "--port", "0"}, "--host: wanted some text, found none"},
      {{"serve", "--api-key", "-q"}, "--api-key: wanted a key, found none"},
      {{"serve", "--alias", "x"}, "--served-model-name: wanted some text, found none"},
      {{"run", "-t", "3"}, "--threads: wanted an integer from 0 to 1024, found ''"},
      {{"run", "--max-tokens", "3"}, "--max-tokens: wanted an integer"},
      {{"eval", "--limit", "3"}, "--limit: wanted an integer"},
      {{"moe", tiny, "--tokens", "3"}, "--tokens: wanted an integer from 1 to 16384, found ''"},
      {{"bench", "serve", "--num-prompts", "3"}, "--num-prompts: wanted an integer"},
      {{"explain", "router_gemm", "--tokens"}, "tokens: wanted an integer, found ''"}};
  for (const auto& [words, said] : empty) {
    std::vector<std::string> with_equals = words, apart = words;
    const size_t flag = words[0] == "moe" || words[0] == "explain" || words[0] == "bench" ? 2 : 1;
    with_equals[flag] += "=";
    apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(flag) + 1, "");
    expect_refusal(with_equals, {said});
    EXPECT_EQ(complaint(with_equals), complaint(apart));
  }
  expect_refusal({"run", "-t="}, {"--threads: wanted an integer from 0 to 1024, found ''"});
  expect_refusal({"run", "-t=x"}, {"--threads: wanted an integer from 0 to 1024, found 'x'"});
  expect_refusal({"serve", "-q="}, {"-q: wanted no value, found '-q='"});
  expect_refusal({"devices", "--json="}, {"--json: wanted no value, found '--json='"});
  expect_refusal({"bench", "serve", "--ignore-eos="}, {"--ignore-eos: wanted no value"});
  // Values of other flags and words after "--" are taken literally.
  expect_refusal({"run", "--max-tokens", "--stop="}, {"--max-tokens: wanted", "found '--stop='"});
  expect_refusal({"devices", "--", "--json="}, {"unexpected argument '--json='"});
}

TEST(Cli, HelpAndVersion) {
  EXPECT_EQ(answer({"--version"}).substr(0, 9), "sluice 0.");
  const std::string help = answer({"--help"});
  EXPECT_TRUE(contains(help, "Examples:")) << help;
  for (const char* command : {"explain", "devices", "collect-env"})
    EXPECT_TRUE(contains(help, command)) << help;
  EXPECT_TRUE(contains(answer({"explain", "router_gemm", "--help"}), "length of the sums"));
  const Outcome nothing = sluice({});
  EXPECT_EQ(nothing.status, 2);
  EXPECT_TRUE(contains(nothing.err, "Usage"));
}

// The commands under "Examples:" in a subcommand's help, without comments and the program's name.
std::vector<std::string> examples_in(const std::string& help) {
  std::vector<std::string> out;
  const std::string program = std::string("  ") + SLUICE_COMMAND + " ";
  std::istringstream lines(help.substr(std::min(help.find("Examples:"), help.size())));
  for (std::string line; std::getline(lines, line);)
    if (line.substr(0, program.size()) == program) out.push_back(line.substr(program.size()));
  return out;
}

TEST(Cli, EachSubcommandShowsExamplesThatWork) {
  const std::string help = answer({"--help"});
  std::istringstream lines(help.substr(help.find("Subcommands:")));
  int commands = 0;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.substr(0, 2) == "  ") {
    if (line[2] == ' ') continue;
    const std::string command = line.substr(2, line.find(' ', 2) - 2);
    ++commands;
    const auto examples = examples_in(answer({command, "--help"}));
    EXPECT_GE(examples.size(), 2u) << command;
    for (const std::string& example : examples) {
      EXPECT_EQ(example.substr(0, command.size()), command) << example;
      // Runs the quick examples in a shell.
      if (command != "explain" && command != "inspect" && command != "devices") continue;
      const Outcome o = run_process({"/bin/sh", "-c", SLUICE_COMMAND " " + example});
      EXPECT_EQ(o.status, 0) << example << "\n" << o.err;
    }
  }
  EXPECT_GE(commands, 10) << help;
  const std::string report = answer({"bench", "report", "--help"});
  const auto reports = examples_in(report);
  EXPECT_GE(reports.size(), 2u) << report;
  for (const std::string& example : reports) EXPECT_EQ(example.substr(0, 13), "bench report ") << example;
  for (const char* suite : {"router.csv", "engine.csv", "serving.csv"})
    EXPECT_TRUE(contains(report, suite)) << report;
}

TEST(Cli, TokensOfAModelHaveOneRange) {
  for (const char* tokens : {"0", "-1", "16385"})
    EXPECT_TRUE(contains(complaint({"explain", "--model", "gpt-oss-20b", "--tokens", tokens}),
                         "--tokens: wanted an integer from 1 to 16384, found '" + std::string(tokens) + "'"));
}

TEST(Cli, MoeNamesWhatIsWrong) {
  EXPECT_TRUE(contains(complaint({"moe", "gpt-oss-20"}), "did you mean 'gpt-oss-20b'?"));
  EXPECT_TRUE(contains(complaint({"moe", "--tokens", "0"}),
                       "--tokens: wanted an integer from 1 to 16384, found '0'"));
  EXPECT_TRUE(contains(complaint({"moe", "--tokens", "many"}), "--tokens"));
  EXPECT_TRUE(contains(complaint({"moe", "--threads", "-3"}),
                       "--threads: wanted an integer from 0 to 1024, found '-3'"));
  EXPECT_TRUE(contains(complaint({"moe", "--token", "4"}), "did you mean '--tokens'?"));
  const std::string tiny = "hidden=64 intermediate=64 experts=8 top_k=2";
  EXPECT_TRUE(contains(complaint({"moe", tiny + " expert=8"}), "did you mean 'experts'?"));
  EXPECT_TRUE(contains(complaint({"moe", "gpt-oss-20b hidden=64 hidden=96"}), "hidden: given twice"));
  EXPECT_TRUE(contains(complaint({"moe", "gpt-oss-20 hidden=64"}), "did you mean 'gpt-oss-20b'?"));
  EXPECT_TRUE(contains(complaint({"moe", tiny + " hidden=64"}), "hidden: given twice"));
  EXPECT_TRUE(contains(complaint({"moe", tiny, "--device", "tpu"}), "--device"));
  EXPECT_TRUE(contains(complaint({"moe", tiny, "--moe-backend", "dots"}), "did you mean 'dot'?"));
  const Outcome o = run_process({SLUICE_COMMAND, "moe", tiny, "--moe-backend-decode", "dot"});
  EXPECT_NE(o.status, 0);
  EXPECT_TRUE(contains(o.err, "moe experts.up: expert_gemm")) << o.err;
  EXPECT_TRUE(contains(o.err, "cpu.expert_gemm.dot: needs layout row_major")) << o.err;
}

TEST(Cli, MoeRunsALayerGivenAsFieldsWithANamedKernel) {
  const std::string fields =
      "hidden=64 intermediate=64 experts=8 top_k=2 capture=1 padded=1 lora_rank=4 lora_adapters=2";
  const std::string json = answer({"moe", fields, "--tokens", "1,9", "--moe-backend", "panels_f32",
                                   "--moe-decode-tokens", "4", "--json"});
  EXPECT_TRUE(contains(json, "cpu.expert_gemm.panels_f32")) << json;
  EXPECT_TRUE(contains(json, "cpu.lora_delta.dot")) << json;
  EXPECT_FALSE(contains(json, ".0,\n  \"check\"")) << json;  // weight_bytes is an integer
}

// Kernels that round activations to FP8 are listed if they can run; otherwise requesting them is an error.
TEST(Cli, Fp8Activations) {
  const std::vector<std::string> explain = {"explain",  "--model", "gpt-oss-120b",      "--tokens", "8192",
                                            "--device", "h200",    "--moe-activations", "fp8"};
  EXPECT_TRUE(contains(answer(explain), "cuda.expert_gemm.mxfp4_fp8_tile_sm90"));
  auto exact = explain;
  exact.back() = "bf16";
  EXPECT_FALSE(contains(answer(exact), "_fp8_tile"));
  auto in_bf16 = explain;
  in_bf16[2] = "qwen3-30b-a3b";
  EXPECT_TRUE(contains(complaint(in_bf16),
                       "--moe-activations fp8: wanted activations in bf16, experts in e2m1 (scales mx)"));
  EXPECT_TRUE(contains(complaint({"run", "-p", "1+1?", "--device", "cpu", "--moe-activations", "fp8"}),
                       "--moe-activations fp8: wanted activations in bf16"));
  EXPECT_TRUE(contains(complaint({"moe", "gpt-oss-20b fp8_activations=1"}),
                       "fp8_activations: wanted activations in bf16"));
  auto unknown = explain;
  unknown.back() = "int8";
  EXPECT_TRUE(contains(complaint(unknown), "--moe-activations"));
}

// With a GPU the layer runs on the GPU; without a GPU the command prints the reason.
TEST(Cli, MoeOnAGpu) {
  const Outcome o = run_process({SLUICE_COMMAND, "moe", "hidden=256 intermediate=128 experts=16 top_k=4",
                                 "--tokens", "1,64", "--device", "cuda"});
  if (o.status == 0) {
    EXPECT_TRUE(contains(o.out, "same bits")) << o.out;
  } else {
    EXPECT_TRUE(contains(o.err, "cuda")) << o.err;
    EXPECT_TRUE(o.out.empty()) << o.out;
  }
}

TEST(Cli, ListsDevicesAndTheEnvironment) {
  const std::string devices = answer({"devices"});
  EXPECT_TRUE(contains(devices, "this machine")) << devices;
  EXPECT_TRUE(contains(devices, "h200 (sm90, 132 SMs)")) << devices;
  const std::string json = answer({"devices", "--json"});
  EXPECT_TRUE(contains(json, "\"name\": \"h200\"")) << json;
  // With a GPU the GPU is listed; without a GPU the reason is printed.
  const bool gpu = !contains(json, "no_gpu");
  EXPECT_NE(gpu, contains(devices, "  cuda: wanted")) << devices;
  const std::string env = answer({"collect-env"});
  for (const char* part :
       {"sluice  ", "compiler", "build", "processor", "memory", "simd", "cpu (", "cuda", "planned"})
    EXPECT_TRUE(contains(env, part)) << part << " in " << env;
}

}  // namespace
}  // namespace sluice::test
