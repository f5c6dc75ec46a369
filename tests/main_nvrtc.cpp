// The main function of test programs that compile kernels: where there is no NVRTC they skip, loudly.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <iostream>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"

int main(int argc, char** argv) {
  try {
    static_cast<void>(flashjit::runtime::load_nvrtc());
  } catch (const flashjit::Error& missing) {
    std::cerr << "SKIPPED: kernels cannot be compiled here.\n" << missing.what() << "\n";
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
