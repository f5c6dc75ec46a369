// Where NVRTC is looked for, and what is said when it is nowhere.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/compile.hpp"
#include "runtime/dynamic_library.hpp"
#include "runtime/nvrtc/library.hpp"
#include "runtime/nvrtc/search.hpp"
#include "runtime/places.hpp"
#include "tests/runtime/expect_error.hpp"
#include "tests/runtime/scratch.hpp"

namespace fs = std::filesystem;
using flashjit::Error;
using flashjit::ErrorCode;
using flashjit::runtime::find_nvrtc;
using flashjit::runtime::NvrtcPlaces;
using flashjit::test::contains;
using flashjit::test::EnvironmentChange;
using flashjit::test::error_of;
using flashjit::test::ScratchDirectory;

namespace {

auto only(const fs::path& directory) {
  return [=] { return std::vector<fs::path>{directory}; };
}

}  // namespace

TEST_CASE("the places are tried in order, and in each the newest version wins") {
  const ScratchDirectory scratch;
  const fs::path toolkit = scratch.write("toolkit/lib64/libnvrtc.so.12", "").parent_path().parent_path();
  const fs::path newer = scratch.write("toolkit/lib64/libnvrtc.so.13", "");
  const fs::path wheel = scratch.write("site/nvidia/cu13/lib/libnvrtc.so.13", "");
  scratch.write("toolkit/lib64/libnvrtc.so", "");
  scratch.write("toolkit/lib64/libnvrtc.alt.so.14", "");
  const fs::path given = scratch.write("given/libnvrtc.so.12", "");

  NvrtcPlaces places{
      .given = "", .toolkits = {toolkit}, .sonames = {}, .site_packages = only(scratch.path() / "site")};
  CHECK(find_nvrtc(places) == newer);
  places.toolkits = {scratch.path() / "nowhere"};
  CHECK(find_nvrtc(places) == wheel);
  places.given = given;
  CHECK(find_nvrtc(places) == given);
  places.given = given.parent_path();
  CHECK(find_nvrtc(places) == given);
  places.given = toolkit;
  CHECK(find_nvrtc(places) == newer);
}

TEST_CASE("where no more files can be opened, NVRTC does not count as missing") {
  const ScratchDirectory scratch;
  const fs::path library = scratch.write("lib64/libnvrtc.so.13", "");
  NvrtcPlaces places{.given = "",
                     .toolkits = {scratch.path()},
                     .sonames = {},
                     .site_packages = only(scratch.path() / "nowhere")};
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = ::open("/dev/null", O_RDONLY);
  REQUIRE(next >= 0);
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::vector<Error> errors{error_of([&] { return find_nvrtc(places); })};
  places.given = (scratch.path() / "lib64").string();
  errors.push_back(error_of([&] { return find_nvrtc(places); }));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (const Error& error : errors) {
    CHECK(error.code() == ErrorCode::io);
    CHECK(contains(error.message(), "lib64 can't be listed: Too many open files"));
  }
  CHECK(find_nvrtc(places) == library);
}

TEST_CASE("an unversioned or ancient libnvrtc is not taken") {
  const ScratchDirectory scratch;
  scratch.write("lib64/libnvrtc.so", "");
  scratch.write("lib64/libnvrtc.so.11.2", "");
  const NvrtcPlaces places{
      .given = "", .toolkits = {scratch.path()}, .sonames = {}, .site_packages = only("/nowhere/site")};
  CHECK_THROWS_AS(find_nvrtc(places), Error);
}

TEST_CASE("nowhere: the message lists where it looked, the hint how to get it") {
  const ScratchDirectory scratch;
  const fs::path site = scratch.path() / "site-packages";
  const NvrtcPlaces places{.given = "",
                           .toolkits = {"/nowhere/cuda", scratch.path()},
                           .sonames = {"libnvrtc.so.999"},
                           .site_packages = only(site)};
  const Error error = error_of([&] { return find_nvrtc(places); });
  CHECK(error.code() == ErrorCode::not_found);
  CHECK(contains(error.message(), "FLASHJIT_NVRTC: not set"));
  CHECK(contains(error.message(), "/nowhere/cuda: no such directory"));
  CHECK(contains(error.message(), scratch.path().string() + ": no libnvrtc.so.12 or later"));
  CHECK(contains(error.message(), "libnvrtc.so.999"));
  CHECK(contains(error.message(), site.string()));
  CHECK(contains(error.hint(), "toolkit"));
  CHECK(contains(error.hint(), "pip install nvidia-cuda-nvrtc"));
}

TEST_CASE("FLASHJIT_NVRTC is binding: wrong, it is an error and not a reason to look elsewhere") {
  const ScratchDirectory scratch;
  const EnvironmentChange nowhere("FLASHJIT_NVRTC", "/nowhere/libnvrtc.so.13");
  CHECK(contains(error_of([] { return flashjit::runtime::load_nvrtc(); }).message(),
                 "FLASHJIT_NVRTC is \"/nowhere/libnvrtc.so.13\": no such file or directory"));
  const EnvironmentChange no_file("FLASHJIT_NVRTC", "/dev/null");
  CHECK(contains(error_of([] { return flashjit::runtime::load_nvrtc(); }).message(),
                 "FLASHJIT_NVRTC is \"/dev/null\": neither a file nor a directory"));
  const EnvironmentChange empty("FLASHJIT_NVRTC", scratch.path().c_str());
  CHECK(contains(error_of([] { return flashjit::runtime::load_nvrtc(); }).message(),
                 "no libnvrtc.so.12 or later"));
}

TEST_CASE("a file that is no library, or another one, is named when it is needed") {
  const ScratchDirectory scratch;
  const std::string text = scratch.write("libnvrtc.so.13", "not a library");
  const EnvironmentChange change("FLASHJIT_NVRTC", text.c_str());
  const auto compiler = flashjit::runtime::load_nvrtc();  // finds it, and does not load it yet
  CHECK(compiler->stamp().empty());
  const Error broken = error_of([&] { return compiler->archs(); });
  CHECK(broken.code() == ErrorCode::not_found);
  CHECK(contains(broken.message(), text));

  const Error other = error_of([] { return flashjit::runtime::NvrtcLibrary("libc.so.6"); });
  CHECK(other.code() == ErrorCode::not_found);
  CHECK(contains(other.message(), "it has no nvrtcVersion"));
}

TEST_CASE("stamps name the bytes: equal for copies, empty for what is no ELF file") {
  const std::string real = flashjit::runtime::load_nvrtc()->path();
  const std::string stamp = flashjit::runtime::gnu_build_id(real);
  CHECK(stamp.size() >= 32);
  CHECK(stamp.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(flashjit::runtime::gnu_build_id("/nowhere").empty());
  CHECK(flashjit::runtime::gnu_build_id("/etc/passwd").empty());

  // Cut short anywhere in its headers, it has a stamp or none, and nothing is read beyond the end.
  std::ifstream file(real, std::ios::binary);
  std::string head(4096, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  const ScratchDirectory scratch;
  for (std::size_t size = 0; size < head.size(); size += 7) {
    const std::string cut = flashjit::runtime::gnu_build_id(scratch.write("cut", head.substr(0, size)));
    CHECK((cut.empty() || cut == stamp));
  }
}

TEST_CASE("Python's package directories come from the environment in use") {
  const ScratchDirectory scratch;
  scratch.write("venv/lib/python3.11/site-packages/x", "");
  scratch.write("bin/python3", "");
  fs::permissions(scratch.path() / "bin/python3", fs::perms::owner_all);
  scratch.write("lib/python3.12/site-packages/x", "");
  const EnvironmentChange venv("VIRTUAL_ENV", (scratch.path() / "venv").c_str());
  const EnvironmentChange path("PATH", (scratch.path() / "bin").c_str());
  const EnvironmentChange python_path("PYTHONPATH", "/one::/two");
  const auto found = flashjit::runtime::site_packages();
  REQUIRE(found.size() >= 4);
  CHECK(found[0] == scratch.path() / "venv/lib/python3.11/site-packages");
  CHECK(found[1] == "/one");
  CHECK(found[2] == "/two");
  CHECK(found[3] == scratch.path() / "lib/python3.12/site-packages");
}

TEST_CASE("pyenv's Pythons are found behind its shims") {
  const ScratchDirectory scratch;
  const fs::path shim = scratch.write("pyenv/shims/python3", "#!/bin/sh\nexit 1\n");
  fs::permissions(shim, fs::perms::owner_all);
  scratch.write("pyenv/versions/3.11.4/lib/python3.11/site-packages/x", "");
  scratch.write("pyenv/versions/3.12.1/lib/python3.12/site-packages/x", "");
  const EnvironmentChange path("PATH", shim.parent_path().c_str());
  const auto found = flashjit::runtime::site_packages();
  for (const char* packages : {"3.11.4/lib/python3.11/site-packages", "3.12.1/lib/python3.12/site-packages"})
    CHECK(std::find(found.begin(), found.end(), scratch.path() / "pyenv/versions" / packages) != found.end());
}
