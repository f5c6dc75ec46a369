// The main function of test programs that compile kernels: where there is no NVRTC they skip, loudly.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "flashjit/error.hpp"
#include "runtime/compile.hpp"

int main(int argc, char** argv) {
  try {
    static_cast<void>(flashjit::runtime::load_nvrtc());
  } catch (const flashjit::Error& missing) {
    std::cerr << "SKIPPED: kernels cannot be compiled here.\n" << missing.what() << "\n";
    return 77;
  }
  // Entries of earlier runs would hide a compiler's mistakes, and a test has no business in the user's cache.
  std::string cache = std::filesystem::temp_directory_path() / "flashjit-test-XXXXXX";
  if (::mkdtemp(cache.data()) == nullptr) {
    std::cerr << cache << " cannot be made\n";
    return 1;
  }
  ::setenv("FLASHJIT_CACHE_DIR", cache.c_str(), 1);
  const int failed = doctest::Context(argc, argv).run();
  std::filesystem::remove_all(cache);
  return failed;
}
