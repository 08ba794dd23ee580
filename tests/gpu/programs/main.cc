// The programs for a GPU machine as one: the name that it is called by says which of them runs.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "apps/command.h"
#include "cuda/command.h"

int main(int argc, char** argv) {
  const std::string name = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "";
  if (name == "sluice") return sluice::apps::command_main(argc, argv);
  if (name == "sluice_bench_cuda") return sluice::bench::command_main(argc, argv);
  if (name == "sluice_gpu_tests") {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  std::fprintf(stderr, "wanted the name sluice, sluice_bench_cuda or sluice_gpu_tests, found '%s'\n",
               name.c_str());
  return 2;
}
