// `flashjit doctor`: one line for each thing that flashjit needs or can use, and what to do if it is missing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/build/template_overlay.hpp"
#include "cli/common/json.hpp"
#include "cli/verbs.hpp"
#include "cli/verbs/doctor/findings.hpp"
#include "flashjit/engine.hpp"
#include "runtime/compile.hpp"
#include "runtime/cuda_device.hpp"
#include "runtime/disassemble.hpp"
#include "runtime/places.hpp"

namespace flashjit::cli {
namespace {

const char* to_string(State state) {
  switch (state) {
    case State::ok:
      return "ok";
    case State::note:
      return "note";
    case State::absent:
      return "absent";
    case State::problem:
      return "PROBLEM";
  }
  return "";
}

// What the GPUs require of an NVRTC.
struct Gpus {
  std::vector<std::string> archs;
  int cuda_major = 0;  // the newest CUDA that the driver knows; 0: there is no driver
};

Gpus check_gpus(std::vector<Finding>& findings) {
  Gpus gpus;
  check(findings, "driver", State::absent, [&] {
    const runtime::CudaStatus status = runtime::cuda_status();
    gpus.cuda_major = status.cuda_version / 1000;
    findings.push_back(
        {"driver", State::ok,
         fmt::format("{}, up to CUDA {}.{}, {}", status.driver_version, status.cuda_version / 1000,
                     status.cuda_version % 1000 / 10, status.driver_path),
         ""});
    if (status.gpus.empty()) {
      findings.push_back(
          {"GPU", State::absent, "the driver sees none", "do CUDA_VISIBLE_DEVICES or a container hide it?"});
    }
    for (std::size_t i = 0; i < status.gpus.size(); ++i) {
      const auto& gpu = status.gpus[i];
      const std::string what = fmt::format("cuda:{}", i);
      check(findings, what, State::problem, [&] {
        static_cast<void>(runtime::open_cuda_device(what));
        findings.push_back({what, State::ok,
                            fmt::format("{}, {}, {:.1f} GiB", gpu.name, gpu.arch,
                                        static_cast<double>(gpu.memory) / (1024.0 * 1024 * 1024)),
                            ""});
        gpus.archs.push_back(gpu.arch);
      });
    }
  });
  return gpus;
}

void check_compiler(std::vector<Finding>& findings, const Gpus& gpus) {
  check(findings, "NVRTC", State::problem, [&] {
    const auto compiler = runtime::load_nvrtc();
    findings.push_back(
        {"NVRTC", State::ok, fmt::format("{}, {}", compiler->build_id(), compiler->path()), ""});
    findings.push_back({"archs", State::ok, fmt::format("{}", fmt::join(compiler->archs(), " ")), ""});
    if (const int major = compiler->version() / 100; gpus.cuda_major != 0 && major > gpus.cuda_major) {
      findings.push_back({"NVRTC", State::note,
                          fmt::format("it is of CUDA {}, and the driver knows CUDA {}: kernels may not load",
                                      major, gpus.cuda_major),
                          fmt::format("update the driver, or have FLASHJIT_NVRTC name an NVRTC of CUDA {}",
                                      gpus.cuda_major)});
    }
    for (const std::string& arch : gpus.archs) {
      Target target;
      target.arch = arch;
      if (compiler->makes_cubin(target)) continue;
      findings.push_back(
          {"archs", State::note,
           fmt::format("this NVRTC is older than {}: it makes PTX, and the driver the code at each load",
                       arch),
           "`pip install nvidia-cuda-nvrtc` gets the newest; FLASHJIT_NVRTC names it"});
    }
    if (const std::string flags = runtime::nvrtc_append_flags(); !flags.empty()) {
      findings.push_back({"NVRTC", State::note, fmt::format("NVRTC_APPEND_FLAGS is \"{}\"", flags),
                          "it may change every kernel, and has entries of its own in the cache"});
    }
  });
  check(findings, "nvdisasm", State::absent, [&] {
    findings.push_back({"nvdisasm", State::ok, runtime::find_nvdisasm().string(), ""});
  });
}

// What an Engine reads of the environment, beside what the cache does.
void check_engine(std::vector<Finding>& findings) {
  check(findings, "templates", State::problem, [&] {
    const TemplateSet templates = api::templates_from_environment();
    const TemplateSet& embedded = embedded_templates();
    findings.push_back({"templates", State::ok, fmt::format("{} built in", embedded.size()), ""});
    if (const std::string folder = runtime::environment("FLASHJIT_TEMPLATE_DIR"); !folder.empty()) {
      const auto changed = std::count_if(templates.begin(), templates.end(), [&](const auto& item) {
        return embedded.at(item.first) != item.second;
      });
      findings.push_back(
          {"templates", State::note,
           fmt::format("FLASHJIT_TEMPLATE_DIR is \"{}\", and changes {} of them", folder, changed),
           "kernels of other templates have entries of their own in the cache"});
    }
    check(findings, "emulator", State::problem, [&] {
      const Engine engine({.device = "emulated:sm_90a", .use_cache = false});
      findings.push_back({"emulator", State::ok, engine.device_description(), ""});
    });
  });
}

int run(bool as_json) {
  std::vector<Finding> findings;
  check_compiler(findings, check_gpus(findings));
  check_engine(findings);
  check_cache(findings);

  bool well = true;
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    well = well && finding.state != State::problem;
    if (as_json) {
      list.push_back({{"what", finding.what},
                      {"state", to_string(finding.state)},
                      {"words", finding.words},
                      {"advice", finding.advice}});
      continue;
    }
    fmt::print("{:<9} {:<8} {}\n", finding.what, to_string(finding.state), finding.words);
    if (!finding.advice.empty()) fmt::print("{:<9} {:<8} → {}\n", "", "", finding.advice);
  }
  if (as_json) fmt::print("{}\n", indented(list));
  return well ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto* verb =
      app.add_subcommand("doctor", "Check what flashjit needs, and say what to do about what is missing");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "print JSON");
  verb->callback([json, &exit_code] { exit_code = run(*json); });
}

}  // namespace flashjit::cli
