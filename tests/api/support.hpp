// An Engine of test parts: a fake device, a compiler that writes what it is asked for, a store in a folder of
// its own.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/engine_state.hpp"
#include "flashjit/flashjit.hpp"
#include "tests/support/fake_device.hpp"

namespace flashjit::test {

// A folder that goes when the test does.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "flashjit-api-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw Error(ErrorCode::io, "mkdtemp failed");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// What the compiler of a test did, and what it is to do. Outlives the Engine.
struct CompilerScript {
  std::atomic<int> loads{0};
  std::atomic<int> compiles{0};
  std::atomic<int> asked{0};  // what NVRTC says when it is loaded only
  std::string build_id = "CL-1 V13.0.88";
  std::string stamp = "stamp-1";
  bool missing = false;  // there is no NVRTC
  bool makes_cubin = true;
  std::vector<std::string> more_options;
  std::function<runtime::Resources(const KernelSource&)> resources;
  std::function<void()> on_compile;
};

class FakeCompiler : public runtime::Compiler {
 public:
  explicit FakeCompiler(CompilerScript& script) : script_(script) {}
  [[nodiscard]] std::string path() const override { return "/fake/libnvrtc.so"; }
  [[nodiscard]] std::string build_id() const override {
    ++script_.asked;
    return script_.build_id;
  }
  [[nodiscard]] std::string stamp() const override { return script_.stamp; }
  [[nodiscard]] std::vector<std::string> archs() const override { return {"sm_80"}; }
  [[nodiscard]] bool makes_cubin(const Target&) const override {
    ++script_.asked;
    return script_.makes_cubin;
  }
  [[nodiscard]] std::vector<std::string> options(const Target& target) const override {
    std::vector<std::string> options{"--gpu-architecture=" + target.arch};
    options.insert(options.end(), script_.more_options.begin(), script_.more_options.end());
    return options;
  }
  runtime::Compiled compile(const KernelSource& source, const Target&, std::chrono::milliseconds,
                            const std::atomic<bool>*) override {
    ++script_.compiles;
    if (script_.on_compile) script_.on_compile();
    runtime::Compiled compiled{
        .ptx = "ptx of " + source.entry, .cubin = "cubin of " + source.entry, .log = "log"};
    compiled.build_id = script_.build_id;
    compiled.milliseconds = 412;
    if (script_.resources) compiled.resources = script_.resources(source);
    return compiled;
  }

 private:
  CompilerScript& script_;
};

inline api::LoadCompiler loader(CompilerScript& script) {
  return [&script]() -> std::shared_ptr<runtime::Compiler> {
    ++script.loads;
    if (script.missing) throw Error(ErrorCode::not_found, "no NVRTC anywhere", "install one");
    return std::make_shared<FakeCompiler>(script);
  };
}

// An Engine on a FakeDevice, and the device. An empty folder: memory alone.
struct FakeEngine {
  FakeDevice* device = nullptr;  // owned by the engine
  std::shared_ptr<EngineState> state;
  std::unique_ptr<Engine> engine;
  std::shared_ptr<std::vector<std::string>> messages = std::make_shared<std::vector<std::string>>();
  std::shared_ptr<std::function<void()>> on_line = std::make_shared<std::function<void()>>();

  explicit FakeEngine(CompilerScript& script, const std::filesystem::path& folder = {},
                      const std::string& arch = "sm_80", TemplateSet templates = embedded_templates()) {
    auto fake = std::make_unique<FakeDevice>(target_of(arch));
    device = fake.get();
    EngineOptions options;
    options.cache_dir = folder.string();
    options.on_message = [messages = messages, on_line = on_line,
                          mutex = std::make_shared<std::mutex>()](std::string_view line) {
      const std::lock_guard lock(*mutex);
      messages->emplace_back(line);
      if (*on_line) (*on_line)();
    };
    cache::StoreOptions store;
    store.directory = folder.empty() ? std::filesystem::path() : folder / "cache";
    store.warn = options.on_message;
    state = std::make_shared<EngineState>(
        options,
        EngineState::Parts{.device = std::move(fake),
                           .store = cache::open_store(store),
                           .wisdom_file = folder.empty() ? folder : folder / "cache" / "wisdom.jsonl",
                           .system_wisdom_file = folder.empty() ? folder : folder / "system-wisdom.jsonl",
                           .templates = std::move(templates),
                           .load_compiler = loader(script)});
    engine = std::make_unique<Engine>(EngineAccess::make(state));
  }
};

inline const Problem kProblem{.dtype = DType::bf16, .head_dim = 64, .causal = true};
inline const Shape kShape{.batch = 2, .heads = 4, .heads_kv = 2, .seqlen_q = 130, .seqlen_k = 200};

// Device memory that is never touched: pointers for calls that the fake device only records.
struct Pointers {
  alignas(256) std::byte q[256], k[256], v[256], o[256], lse[256];
  ForwardArgs args() { return {.q = q, .k = k, .v = v, .o = o, .lse = reinterpret_cast<float*>(lse)}; }
};

}  // namespace flashjit::test
