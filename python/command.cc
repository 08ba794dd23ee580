// Exports the sluice command as a function of the Python package's library, for `python -m sluice_moe`.

int sluice_main(int argc, char** argv);  // of apps/main.cc

extern "C" __attribute__((visibility("default"))) int sluice_command(int argc, char** argv) {
  return sluice_main(argc, argv);
}
