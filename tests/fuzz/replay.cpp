// Stands in for libFuzzer where there is none: gives each file of a corpus to the fuzz target, once.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int inputs = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& item : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream file(item.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      std::printf("%s\n", item.path().c_str());  // the last one printed is the one that crashed
      (void)std::fflush(stdout);
      if (LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()) != 0)
        return 1;
      ++inputs;
    }
  }
  return inputs == 0 ? 1 : 0;  // no corpus is a mistake in the call
}
